package compat

import (
	"encoding/hex"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A primary that its clients reach and no other node does: what becomes of what they ask.

// isolable is a cluster of three primaries with a replica each, of which any node can be
// cut off from the others.
type isolable struct {
	t    testing.TB
	all  []*process
	ways map[*process]*proxy
}

func isolableCluster(t testing.TB, args ...string) *isolable {
	t.Helper()
	c := &isolable{t: t, ways: map[*process]*proxy{}}
	bin := buildServer(t)
	create := []string{"--cluster", "create", "--cluster-yes", "--cluster-replicas", "1"}
	for range 6 {
		p, way := startBehindProxy(t, bin, append([]string{"--cluster-enabled", "yes", "--cluster-node-timeout", "2000"}, args...)...)
		c.all = append(c.all, p)
		c.ways[p] = way
		create = append(create, p.addr())
	}
	require.Contains(t, cli(t, create...), "[OK] All 16384 slots covered.")
	for _, p := range c.all {
		if p.info("role") == "slave" {
			p.linkUp()
		}
	}
	return c
}

// isolate cuts a node off from all others.
func (c *isolable) isolate(p *process) {
	c.t.Helper()
	id, err := hex.DecodeString(p.id())
	require.NoError(c.t, err)
	for other, way := range c.ways {
		if other == p {
			way.stall("")
		} else {
			way.stall(string(id))
		}
	}
}

func (c *isolable) heal() {
	for _, way := range c.ways {
		way.rejoin()
	}
}

// ends reads the replies to commands that came together, which have to be there by a time.
func (l *link) readUntil(t testing.TB, end time.Time, n int) (texts []string) {
	t.Helper()
	l.patience = max(time.Until(end), time.Millisecond)
	for range n {
		r, err := l.read()
		require.NoError(t, err, "%d of %d replies have come", len(texts), n)
		texts = append(texts, r.text)
	}
	return texts
}

// queue sends commands together.
func (l *link) queue(t testing.TB, commands ...[]string) {
	t.Helper()
	for _, args := range commands {
		l.add(args)
	}
	require.NoError(t, l.flush())
}

const mayHaveHappened = "ERR the command may have happened: "

// unknown fails unless all are errors that say what has become of a command: it may have
// happened, or it has not.
func unknown(t testing.TB, texts ...string) {
	t.Helper()
	for _, text := range texts {
		require.True(t, strings.HasPrefix(text, mayHaveHappened) || nothingDone(text), text)
	}
}

// isolatedSlack is what a busy machine adds to a NodeTimeout.
const isolatedSlack = failuresNT / 2

// What many clients have sent together to a strict primary that no other node reaches
// ends within a NodeTimeout, all of it, with an error for each command; and none of what
// was acknowledged before is lost.
func TestPipelinesAtAnIsolatedStrictPrimaryEndTogether(t *testing.T) {
	c := isolableCluster(t, "--min-replicas-to-write", "1")
	primary, replica := shardOf(t, c.all)
	tag := "{" + keyAt(t, primary) + "}"
	primary.answered("SET", tag, "before") // once a replica is in sync
	lone, sets, many, exec, reads := connect(t, primary.addr(), "2"), connect(t, primary.addr(), "2"), connect(t, primary.addr(), "2"), connect(t, primary.addr(), "2"), connect(t, primary.addr(), "2")
	c.isolate(primary)
	end := time.Now().Add(failuresNT + isolatedSlack)
	const few, lots = 20, 10_000
	lone.queue(t, []string{"SET", tag + "lone", "v"})
	for i := range few {
		sets.add([]string{"SET", tag, strconv.Itoa(i)})
		exec.add([]string{"MULTI"})
		exec.add([]string{"SET", tag + "exec", strconv.Itoa(i)})
		exec.add([]string{"EXEC"})
		reads.add([]string{"GET", tag})
	}
	for i := range lots {
		many.add([]string{"RPUSH", tag + "list", strconv.Itoa(i)})
	}
	for _, l := range []*link{sets, many, exec, reads} {
		l.queue(t)
	}
	require.Contains(t, lone.readUntil(t, end, 1)[0], mayHaveHappened)
	unknown(t, sets.readUntil(t, end, few)...)
	unknown(t, many.readUntil(t, end, lots)...)
	texts := exec.readUntil(t, end, 3*few)
	for i := range few {
		require.Equal(t, "OK", texts[3*i])
		require.NotEqual(t, "OK", texts[3*i+2])
	}
	for _, text := range reads.readUntil(t, end, few) {
		require.True(t, text == "before" || strings.HasPrefix(text, "CLUSTERDOWN"), "%s: what nobody else has is shown", text)
	}
	for _, l := range []*link{lone, sets, many, exec, reads} { // they go on, and hear at once that nothing is served
		l.queue(t, []string{"PING"}, []string{"SET", tag, "late"}, []string{"GET", tag})
		texts := l.readUntil(t, time.Now().Add(isolatedSlack), 3)
		require.Equal(t, "PONG", texts[0])
		require.Contains(t, texts[1], "CLUSTERDOWN ")
		require.Contains(t, texts[2], "CLUSTERDOWN ")
	}
	replica.becomes("master")
	require.Equal(t, "before", replica.answered("GET", tag))
	require.Equal(t, "0", replica.answered("EXISTS", tag+"lone", tag+"list", tag+"exec"))
	c.heal()
	primary.becomes("slave")
	primary.linkUp()
	isOK(t, c.all...)
	replica.answered("SET", tag, "after")
	agree(t, c.all...)
}

// busyScript runs until so much time has passed, and then adds to its key.
const busyScript = `local function now() local t = redis.call('TIME') return t[1] * 1000 + t[2] / 1000 end
	local till = now() + ARGV[1]
	while now() < till do end
	return redis.call('INCR', KEYS[1])`

// What has run at a primary that waits for no replicas, while its reply is not out, is not
// acknowledged once the lease is over: its successor lacks it. Here the replies of a
// pipeline wait for a script in it that takes its time.
func TestReplyOfWhatHasRunAtAnIsolatedPrimary(t *testing.T) {
	c := isolableCluster(t)
	primary, replica := shardOf(t, c.all)
	tag := "{" + keyAt(t, primary) + "}"
	primary.must("SET", tag, "before")
	require.Equal(t, "1", primary.do("WAIT", "1", "0").text)
	l, waits := connect(t, primary.addr(), "2"), connect(t, primary.addr(), "2")
	c.isolate(primary)
	began := time.Now()
	waits.queue(t, []string{"SET", tag + "waits", "v"}, []string{"WAIT", "1", "0"})
	require.Equal(t, "OK", waits.readUntil(t, began.Add(failuresNT/2), 1)[0], "nobody is to have it")
	busy := strconv.FormatInt((failuresNT + failuresNT/4).Milliseconds(), 10)
	l.queue(t, []string{"SET", tag, "run"}, []string{"ECHO", "between"}, []string{"GET", tag}, []string{"EVAL", busyScript, "1", tag + "n", busy})
	replica.becomes("master")
	texts := l.readUntil(t, began.Add(10*failuresNT), 4)
	require.Contains(t, texts[0], mayHaveHappened)
	require.Equal(t, "between", texts[1])
	require.Contains(t, texts[2], "CLUSTERDOWN ")
	require.Contains(t, texts[3], mayHaveHappened)
	require.False(t, waits.readable(), "who waits for a replica that cannot have it")
	require.Equal(t, "before", replica.answered("GET", tag))
	c.heal()
	require.Contains(t, waits.readUntil(t, time.Now().Add(10*failuresNT), 1)[0], "UNBLOCKED ")
	primary.becomes("slave")
	primary.linkUp()
	require.Equal(t, 3, cutNumber(t, primary), "waits, run and n")
	require.Equal(t, "0", replica.answered("EXISTS", tag+"waits", tag+"n"))
	agree(t, c.all...)
}
