package compat

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Processes whose roles change: a replica that goes where it is needed, and what clients
// hear that wait meanwhile.

// replicate makes a process a replica of another, as soon as it knows it.
func (p *process) replicate(primary *process) {
	p.t.Helper()
	require.Eventually(p.t, func() bool { return p.do("CLUSTER", "REPLICATE", primary.id()).text == "OK" }, 30*time.Second, 20*time.Millisecond,
		"%s is no replica of %s", p.port, primary.port)
}

// byHand makes a cluster of processes: the first ones share the slots, the others follow
// them, so many each.
func byHand(t testing.TB, primaries int, all ...*process) {
	t.Helper()
	const slots = 16384
	for i, p := range all {
		if i > 0 {
			p.must("CLUSTER", "MEET", "127.0.0.1", all[0].port)
		}
		if i < primaries {
			p.must("CLUSTER", "ADDSLOTSRANGE", fmt.Sprint(i*slots/primaries), fmt.Sprint((i+1)*slots/primaries-1))
		}
	}
	isOK(t, all...)
}

// A primary that has lost its only replica gets one of a primary that has two, which
// keeps the other. It is in sync before long: when its primary dies, too, it has all that
// was acknowledged. Who comes back follows it.
func TestOrphanedPrimaryGetsAReplicaOfAnother(t *testing.T) {
	t.Parallel()
	bin := buildServer(t)
	began := time.Now()
	at := func(what string) { t.Logf("%6.2f s: %s", time.Since(began).Seconds(), what) }
	var all []*process
	for range 5 {
		all = append(all, startProcess(t, bin, "--cluster-enabled", "yes", "--cluster-node-timeout", "2000", "--min-replicas-to-write", "1"))
	}
	rich, orphan, lost, two := all[0], all[1], all[2], all[3:]
	at("started")
	byHand(t, 2, all...)
	at("ok")
	lost.replicate(orphan)
	for _, p := range two {
		p.replicate(rich)
	}
	for _, p := range all[2:] {
		p.linkUp()
	}
	at("links")
	key := keyAt(t, orphan)
	set := func(field string) bool { return orphan.do("HSET", key, field, "v").text == "1" }
	require.Eventually(t, func() bool { return set("first") }, 30*time.Second, 10*time.Millisecond, "the replica is in sync")

	at("in sync")
	lost.kill()
	var heir, stays *process
	require.Eventually(t, func() bool {
		for i, p := range two {
			if p.info("master_port") == orphan.port {
				heir, stays = p, two[1-i]
			}
		}
		return heir != nil
	}, 30*time.Second, 20*time.Millisecond, "one of the two goes to who has none")
	at("gone over")
	require.Eventually(t, func() bool { return set("second") }, 30*time.Second, 10*time.Millisecond, "it is in sync")
	require.Equal(t, rich.port, stays.info("master_port"))
	heir.linkUp()
	at("in sync")
	orphan.kill()
	heir.becomes("master")
	at("leads")
	isOK(t, rich, heir)
	at("ok")
	require.Equal(t, "2", heir.must("HLEN", key).text)
	require.NotContains(t, heir.log.String(), "unclean")

	for _, p := range []*process{orphan, lost} {
		p.again()
	}
	for _, p := range []*process{orphan, lost} {
		p.becomes("slave")
		p.linkUp()
		require.Equal(t, heir.port, p.info("master_port"))
	}
	at("back")
	agree(t, all...)
	healthy(t, rich)
}

// Who waits for an element, and who waits for replicas, hears of a failover, once,
// whatever it is: by hand, by force, by a TAKEOVER, or because the primary stood still,
// which then serves nobody with what has come meanwhile.
func TestWhoWaitsHearsOfAFailoverOnce(t *testing.T) {
	t.Parallel()
	all := slowNodes(t, buildServer(t), 3, "5000")
	byHand(t, 1, all...)
	primary, next, third := all[0], all[1], all[2]
	for _, p := range all[1:] {
		p.replicate(primary)
		p.linkUp()
	}
	for _, how := range []string{"", "FORCE", "TAKEOVER", "it stands still", ""} {
		t.Logf("%s takes over from %s: %s", next.port, primary.port, how)
		element, replicas, adds := connect(t, primary.addr(), "2"), connect(t, primary.addr(), "2"), connect(t, primary.addr(), "2")
		require.Eventually(t, func() bool { r, err := replicas.do("SET", "k", how); return err == nil && r.text == "OK" }, 30*time.Second, 10*time.Millisecond)
		require.Equal(t, "2", mustDo(t, replicas, "WAIT", "2", "30000").text, "both have everything")
		send(t, element, "BLPOP", "list", "0")
		send(t, replicas, "WAIT", "3", "0")
		require.Eventually(t, func() bool { return strings.Contains(primary.do("INFO", "clients").text, "blocked_clients:2\r") }, 20*time.Second, 5*time.Millisecond)
		switch how {
		case "it stands still":
			primary.pause()
			send(t, adds, "RPUSH", "list", "late")
			next, third = successor(t, next, third)
			primary.resume()
			r, err := adds.read()
			require.NoError(t, err)
			require.Regexp(t, "^(MOVED|CLUSTERDOWN|TRYAGAIN|ERR the command may have happened)", r.text)
		case "":
			next.must("CLUSTER", "FAILOVER")
		default:
			next.must("CLUSTER", "FAILOVER", how)
		}
		next.becomes("master")
		for _, l := range []*link{element, replicas} {
			r, err := l.read()
			require.NoError(t, err)
			require.Regexp(t, "^(MOVED [0-9]+ "+next.addr()+"|UNBLOCKED |CLUSTERDOWN )", r.text)
			require.Equal(t, "PONG", mustDo(t, l, "PING").text, "no second reply")
		}
		for _, p := range []*process{primary, third} {
			require.Eventually(t, func() bool { return p.info("master_port") == next.port && p.info("master_link_status") == "up" }, 30*time.Second, 10*time.Millisecond)
		}
		require.Eventually(t, func() bool { return next.do("LLEN", "list").text == "0" }, 30*time.Second, 10*time.Millisecond)
		primary, next, third = next, third, primary
	}

	// WAIT counts who is left, and who has come back.
	l := connect(t, primary.addr(), "2")
	require.Eventually(t, func() bool { r, err := l.do("SET", "k", "v"); return err == nil && r.text == "OK" }, 30*time.Second, 10*time.Millisecond)
	require.Equal(t, "2", mustDo(t, l, "WAIT", "2", "30000").text)
	third.kill()
	mustDo(t, l, "SET", "k", "w")
	require.Equal(t, "1", mustDo(t, l, "WAIT", "2", "500").text)
	third.again()
	require.Equal(t, "2", mustDo(t, l, "WAIT", "2", "30000").text)
}

// send sends a command whose reply is read later.
func send(t testing.TB, l *link, args ...string) {
	t.Helper()
	l.add(args)
	require.NoError(t, l.flush())
}

// successor is the one of two replicas that comes to lead, and the other one.
func successor(t testing.TB, a, b *process) (leads, other *process) {
	t.Helper()
	require.Eventually(t, func() bool { return a.info("role") == "master" || b.info("role") == "master" }, 30*time.Second, 5*time.Millisecond)
	if a.info("role") == "master" {
		return a, b
	}
	return b, a
}
