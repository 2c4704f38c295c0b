package compat

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A primary that stands still for longer than its lease: what becomes of the replies to
// what it has run, and what it says of the changes that nobody else has.

// keysOf are keys of as many slots, all of a process.
func keysOf(t testing.TB, p *process, n int) (keys []string) {
	t.Helper()
	slots := map[string]bool{}
	for i := 0; len(keys) < n; i++ {
		require.Less(t, i, 10_000, "%s serves too little", p.port)
		k := fmt.Sprint("{key:", i, "}")
		if slot := p.do("CLUSTER", "KEYSLOT", k).text; !slots[slot] && !p.do("TYPE", k).isError() {
			slots[slot] = true
			keys = append(keys, k)
		}
	}
	return keys
}

// dataHello is how a connection for data begins: of the bus's hello the magic number, the
// version, no features, and the role.
const dataHello = "slm1\x01\x00\x02"

// lag has the log of a primary get to no replica. Heartbeats pass: its replica counts as
// in sync for half a NodeTimeout more.
func (c *isolable) lag(primary *process) { c.ways[primary].stall(dataHello) }

// answered is what a process answers once it serves.
func (p *process) answered(args ...string) (text string) {
	p.t.Helper()
	require.Eventually(p.t, func() bool {
		r := p.do(args...)
		text = r.text
		return !r.isError()
	}, 30*time.Second, 10*time.Millisecond, "%q at %s", args, p.port)
	return text
}

// What has run at a primary before it stood still, while its reply was not out, is not
// acknowledged when it goes on: not in a pipeline whose replies wait for a script in it,
// nor where the reply waits for the replicas, nor is WAIT answered with a number.
func TestReplyOfWhatHasRunAtAPausedPrimary(t *testing.T) {
	for name, args := range map[string][]string{"waits for nobody": nil, "strict": {"--min-replicas-to-write", "1"}} {
		t.Run(name, func(t *testing.T) {
			c := isolableCluster(t, append([]string{"--cluster-node-timeout", "4000"}, args...)...)
			primary, replica := shardOf(t, c.all)
			keys := keysOf(t, primary, 2)
			tag, busy := keys[0], keys[1]
			slot := primary.do("CLUSTER", "KEYSLOT", tag).text
			primary.answered("SET", tag, "before") // once a replica is in sync
			require.Equal(t, "1", primary.do("WAIT", "1", "0").text)
			l, waits, lone, looks := connect(t, primary.addr(), "2"), connect(t, primary.addr(), "2"), connect(t, primary.addr(), "2"), connect(t, primary.addr(), "2")
			waits.queue(t, []string{"SET", tag + "waits", "v"}, []string{"WAIT", "2", "0"})
			require.Equal(t, "OK", waits.readUntil(t, time.Now().Add(failuresNT), 1)[0])
			c.lag(primary)
			l.queue(t, []string{"SET", tag + "run", "v"}, []string{"ECHO", "between"}, []string{"GET", tag + "run"}, []string{"EVAL", busyScript, "1", busy, "4000"})
			lone.queue(t, []string{"RPUSH", tag + "lone", "v"})
			require.Eventually(t, func() bool { return mustDo(t, looks, "CLUSTER", "COUNTKEYSINSLOT", slot).text == "4" }, 10*time.Second, time.Millisecond, "all have run")
			primary.pause()
			t.Cleanup(primary.resume)
			require.False(t, l.readable())
			replica.becomes("master")
			c.heal()
			primary.resume()
			texts := l.readUntil(t, time.Now().Add(10*failuresNT), 4)
			require.Contains(t, texts[0], mayHaveHappened)
			require.Equal(t, "between", texts[1])
			require.Contains(t, texts[2], "CLUSTERDOWN ")
			require.NotEqual(t, "1", texts[3])
			if text := lone.readUntil(t, time.Now().Add(failuresNT), 1)[0]; args != nil {
				require.Contains(t, text, mayHaveHappened)
			}
			require.Contains(t, waits.readUntil(t, time.Now().Add(10*failuresNT), 1)[0], "UNBLOCKED ")
			primary.becomes("slave")
			primary.linkUp()
			require.Equal(t, "before", replica.answered("GET", tag))
			require.Equal(t, "0", replica.answered("EXISTS", tag+"run", tag+"lone"))
			agree(t, c.all...)
		})
	}
}

// What a primary that waits for no replicas has made when it stood still, and nobody else
// has, is gone: its log says how many changes that is, and it is as many as are gone.
func TestPausedPrimarySaysHowMuchItHasCut(t *testing.T) {
	c := isolableCluster(t, "--cluster-node-timeout", "4000")
	primary, replica := shardOf(t, c.all)
	tag := "{" + keyAt(t, primary) + "}"
	primary.must("SET", tag+"n", "7")
	require.Equal(t, "1", primary.do("WAIT", "1", "0").text)
	const sets, sums = 30, 20
	l := connect(t, primary.addr(), "2")
	for i := range sets {
		l.add([]string{"SET", tag + strconv.Itoa(i), "v"})
	}
	for range sums {
		l.add([]string{"INCR", tag + "n"})
	}
	c.lag(primary)
	l.queue(t)
	for _, text := range l.readUntil(t, time.Now().Add(failuresNT), sets+sums) {
		require.True(t, text == "OK" || text >= "0" && text <= "9", "acknowledged: %s", text)
	}
	primary.pause()
	t.Cleanup(primary.resume)
	follows := func() {
		t.Helper()
		replica.becomes("master")
		c.heal()
		primary.resume()
		primary.becomes("slave")
		primary.linkUp()
		isOK(t, c.all...)
	}
	follows()
	gone := 0
	for i := range sets {
		if replica.answered("EXISTS", tag+strconv.Itoa(i)) == "0" {
			gone++
		}
	}
	n, err := strconv.Atoi(replica.answered("GET", tag+"n"))
	require.NoError(t, err)
	gone += 7 + sums - n
	require.Equal(t, sets+sums, gone)
	require.Equal(t, gone, cutNumber(t, primary))

	// And of writers who follow redirects, all that they were told while the replica lagged.
	primary, replica = replica, primary
	load := startNumbers(t, c.all, 60)
	load.goOn(1000)
	keys := load.served(primary)
	lagged := time.Now()
	c.lag(primary)
	load.goOn(200)
	load.end()
	primary.pause()
	paused := time.Now()
	t.Cleanup(primary.resume)
	follows()
	gone = load.explained(keys, lagged.Add(-lagAtMost), paused)
	t.Logf("%d acknowledged writes are gone", gone)
	require.Positive(t, gone)
	require.Equal(t, gone, cutNumber(t, primary))
}
