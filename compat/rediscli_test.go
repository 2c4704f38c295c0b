package compat

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What redis-cli --cluster does at length: fix, six nodes, import, users.

// halfOpen is a state in which a slot was left half way. Its keys are foo, {foo}1
// and {foo}2, which owner serves.
type halfOpen struct {
	name string
	open func(owner, to, other *process)

	// alone is for states in which foo is at another node than the one that redis-cli
	// makes the owner: that with the most keys, also where both marks say where keys go.
	// Its first step has the slot served there, its last one brings foo: a client that
	// writes foo in between makes a second one, redis-cli finds it by BUSYKEY, and stops,
	// for it wants to be told which of the two is right. That is so with redis-server,
	// too. So no client writes foo meanwhile; they write the others.
	alone bool

	// atRest is for a state in which every key is at another node, one each: whichever
	// becomes the owner, there is no key that clients may write, for the same reason.
	atRest bool

	flags []string // of redis-cli, without which it does not look for the state

	// before is what an operator has to do for fix to mend the state: it sends MIGRATE to
	// a node that has neither the slot nor a mark, and stops at the MOVED that it gets
	// there, from redis-server as well. nil: nothing.
	before func(owner, to *process)
}

const (
	fooSlot = "12182"
	fooKey  = "foo"
)

func halfOpenStates() []halfOpen {
	const slot = fooSlot
	importing := func(at, from *process) { at.must("CLUSTER", "SETSLOT", slot, "IMPORTING", from.id()) }
	migrating := func(at, to *process) { at.must("CLUSTER", "SETSLOT", slot, "MIGRATING", to.id()) }
	migrate := func(from, to *process, keys ...string) {
		from.must(append([]string{"MIGRATE", "127.0.0.1", to.port, "", "0", "5000", "KEYS"}, keys...)...)
	}
	both := func(owner, to *process) {
		importing(to, owner)
		migrating(owner, to)
	}
	stable := func(at *process) { at.must("CLUSTER", "SETSLOT", slot, "STABLE") }
	apart := func(owner, to *process) { // foo is at to, and nothing says why
		both(owner, to)
		migrate(owner, to, fooKey)
		stable(to)
		stable(owner)
	}
	return []halfOpen{
		{name: "only migrating", open: func(owner, to, other *process) { migrating(owner, to) }},
		{name: "only importing", open: func(owner, to, other *process) { importing(to, owner) }},
		{name: "importing with a key", alone: true, open: func(owner, to, other *process) {
			both(owner, to)
			migrate(owner, to, fooKey)
			stable(owner)
		}},
		{name: "both, nothing moved", open: func(owner, to, other *process) { both(owner, to) }},
		{name: "both, half moved", alone: true, open: func(owner, to, other *process) {
			both(owner, to)
			migrate(owner, to, fooKey)
		}},
		{name: "both, all moved", open: func(owner, to, other *process) {
			both(owner, to)
			migrate(owner, to, fooKey, "{foo}1", "{foo}2")
		}},
		{name: "importing at two", open: func(owner, to, other *process) {
			both(owner, to)
			importing(other, owner)
		}},
		{name: "migrating to one, importing at another", open: func(owner, to, other *process) {
			migrating(owner, to)
			importing(other, owner)
		}},
		{name: "not covered", open: func(owner, to, other *process) { owner.must("CLUSTER", "DELSLOTS", slot) }},
		{name: "not covered, and open", open: func(owner, to, other *process) {
			both(owner, to)
			owner.must("CLUSTER", "DELSLOTS", slot)
		}},
		{name: "not covered, and half moved", alone: true, open: func(owner, to, other *process) {
			both(owner, to)
			migrate(owner, to, fooKey)
			owner.must("CLUSTER", "DELSLOTS", slot)
		}},
		{name: "not covered, keys at two nodes and no mark", alone: true, open: func(owner, to, other *process) {
			apart(owner, to)
			owner.must("CLUSTER", "DELSLOTS", slot)
		}},
		{name: "not covered, keys at three nodes and no mark", atRest: true, open: func(owner, to, other *process) {
			apart(owner, to)
			both(owner, other)
			migrate(owner, other, "{foo}1")
			stable(other)
			stable(owner)
			owner.must("CLUSTER", "DELSLOTS", slot)
		}},
		{name: "a key where the slot is not, and no mark", alone: true, flags: []string{"--cluster-search-multiple-owners"}, open: func(owner, to, other *process) {
			apart(owner, to)
		}, before: func(owner, to *process) { importing(to, owner) }},
	}
}

// O75, redis/redis#5270: fix made slots that were half way worse. It mends each of
// these states, with one owner and every key in the end, also while clients write.
func TestRedisCliFixesHalfOpenSlots(t *testing.T) {
	t.Parallel()
	bin := buildServer(t)
	for _, mode := range []struct {
		name string
		load bool
	}{{"at rest", false}, {"under load", true}} {
		t.Run(mode.name, func(t *testing.T) {
			t.Parallel()
			c := cluster(t, bin, 3)
			for i, state := range halfOpenStates() {
				if !mode.load || !state.atRest {
					t.Run(state.name, func(t *testing.T) { fixed(t, c, state, mode.load, i) })
				}
			}
		})
	}
}

// written are the keys that clients write while the state is mended.
func (s *halfOpen) written() []string {
	keys := []string{"{foo}1", "{foo}2"}
	if !s.alone {
		keys = append(keys, fooKey)
	}
	return keys
}

func fixed(t *testing.T, c []*process, state halfOpen, load bool, n int) {
	owner := ownerOf(t, c, fooKey)
	rest := slices.DeleteFunc(slices.Clone(c), func(p *process) bool { return p == owner })
	values := map[string]string{}
	for i, k := range []string{fooKey, "{foo}1", "{foo}2"} {
		values[k] = strconv.Itoa(1_000_000*n + i)
		owner.must("SET", k, values[k])
	}
	var w *slotWriter
	if load {
		w = startSlotWriter(t, c, state.written()...)
	}
	state.open(owner, rest[0], rest[1])
	fix := append([]string{"--cluster", "fix", rest[1].addr()}, state.flags...)
	if state.before != nil {
		out, err := runCli(t, fix...)
		require.Error(t, err, "fix: %s", out)
		require.Contains(t, out, "MOVED "+fooSlot, "fix")
		state.before(owner, rest[0])
	}
	out, err := runCli(t, fix...)
	require.NoError(t, err, "fix: %s", out)
	require.Eventually(t, func() bool {
		check, err := runCli(t, append([]string{"--cluster", "check", rest[1].addr()}, state.flags...)...)
		return err == nil && !strings.Contains(check, "[WARNING]") && strings.Contains(check, "[OK] All 16384 slots covered.")
	}, 20*time.Second, 100*time.Millisecond, "fix: %s", out)
	healthy(t, rest[1])
	if load {
		w.goesOn()
		w.end()
	}
	for k, want := range values {
		got, err := newFollower(t, c).follow("GET", k)
		require.NoError(t, err)
		if load && w.last[k] != nil {
			require.NoError(t, w.last[k].is(got.text), "%s; fix: %s", k, out)
			continue
		}
		require.Equal(t, want, got.text, "%s; fix: %s", k, out)
	}
	now := ownerOf(t, c, fooKey)
	for _, p := range c { // nobody else has an old copy that might come back
		want := "0"
		if p == now {
			want = "3"
		}
		require.Equal(t, want, p.must("CLUSTER", "COUNTKEYSINSLOT", fooSlot).text, "at %s; fix: %s", p.port, out)
	}
}

// newFollower runs commands where redirects lead to.
func newFollower(t testing.TB, all []*process) *writer {
	w := &writer{t: t, links: map[string]*link{}}
	for _, p := range all {
		w.addrs = append(w.addrs, p.addr())
	}
	t.Cleanup(func() {
		for _, l := range w.links {
			l.close()
		}
	})
	return w
}

// slotWriter writes rising numbers to keys of one slot, whatever state the slot
// is in.
type slotWriter struct {
	t     testing.TB
	stop  atomic.Bool
	wg    sync.WaitGroup
	acked atomic.Int64
	last  map[string]*written
}

// written is the last number that was acknowledged, and the last whose fate is
// not known: it may have been refused, or have happened.
type written struct{ acked, unsure int64 }

func (w *written) is(text string) error {
	n, err := strconv.ParseInt(text, 10, 64)
	if err == nil && n != w.acked && (n < w.acked || n > w.unsure) {
		err = fmt.Errorf("%d, last acknowledged %d, unsure up to %d", n, w.acked, w.unsure)
	}
	return err
}

func startSlotWriter(t testing.TB, all []*process, keys ...string) *slotWriter {
	w := &slotWriter{t: t, last: map[string]*written{}}
	f := newFollower(t, all)
	for _, k := range keys {
		r, err := f.follow("GET", k)
		require.NoError(t, err)
		n, err := strconv.ParseInt(r.text, 10, 64)
		require.NoError(t, err)
		w.last[k] = &written{acked: n}
	}
	w.wg.Go(func() {
		for !w.stop.Load() {
			for _, k := range keys {
				w.write(f, k, w.last[k].acked+1)
			}
			time.Sleep(time.Millisecond) // redis-cli needs the processor, too
		}
	})
	t.Cleanup(w.end)
	return w
}

func (w *slotWriter) write(f *writer, key string, n int64) {
	last := w.last[key]
	n = max(n, last.unsure+1)
	r, err := f.follow("SET", key, strconv.FormatInt(n, 10))
	switch {
	case err == nil && r.text == "OK":
		last.acked = n
		w.acked.Add(1)
	case err != nil && strings.Contains(err.Error(), "redirected for ever"), strings.HasPrefix(r.text, "CLUSTERDOWN "), strings.HasPrefix(r.text, "TRYAGAIN "):
		// nothing has happened
	case strings.HasPrefix(r.text, "ERR the command may have happened"):
		last.unsure = n
	default:
		w.t.Errorf("SET %s: %v %v", key, r, err)
		w.stop.Store(true)
	}
}

// goesOn waits until writes are acknowledged again.
func (w *slotWriter) goesOn() {
	w.t.Helper()
	from := w.acked.Load()
	require.Eventually(w.t, func() bool { return w.acked.Load() > from+10 }, 20*time.Second, time.Millisecond)
}

func (w *slotWriter) end() {
	w.stop.Store(true)
	w.wg.Wait()
}

func TestRedisCliWithSixNodes(t *testing.T) {
	t.Parallel()
	all := cluster(t, buildServer(t), 6)
	w := startWriter(t, 300, all...)
	healthy(t, all[5])
	require.Equal(t, 6, strings.Count(cli(t, "--cluster", "info", all[2].addr()), " slots | 0 slaves"))
	require.Equal(t, 6, strings.Count(cli(t, "--cluster", "call", all[3].addr(), "PING", "--cluster-only-masters"), "PONG"))
	require.Contains(t, cli(t, "--cluster", "set-timeout", all[4].addr(), "2500"), "6 OK, 0 ERR")

	before := slotsOf(t, all[0], all[1].id())
	cli(t, "--cluster", "rebalance", all[0].addr(), "--cluster-weight", all[1].id()+"=3", "--cluster-simulate")
	require.Equal(t, before, slotsOf(t, all[0], all[1].id()), "nothing has moved")
	cli(t, "--cluster", "reshard", all[0].addr(), "--cluster-from", "all", "--cluster-to", all[1].id(), "--cluster-slots", "100", "--cluster-yes", "--cluster-pipeline", "50")
	require.Equal(t, before+100, slotsOf(t, all[2], all[1].id()))
	cli(t, "--cluster", "rebalance", all[3].addr(), "--cluster-threshold", "1")
	singlyOwned(t, all[5])
	for _, p := range all {
		require.InDelta(t, 16384/6, slotsOf(t, all[0], p.id()), 30)
	}
	w.check()
}

func TestRedisCliImportsFromARedisThatIsNoCluster(t *testing.T) {
	t.Parallel()
	theirs := startProcess(t, "redis-server")
	all := cluster(t, buildServer(t), 3)
	const keys = 120
	for i := range keys {
		k := fmt.Sprint("key:", i)
		theirs.must([][]string{{"SET", k, "v"}, {"RPUSH", k, "a", "b"}, {"SADD", k, "a", "1"}, {"HSET", k, "f", "v"}, {"ZADD", k, "1.5", "m"}}[i%5]...)
		if i%3 == 0 {
			theirs.must("PEXPIRE", k, "1000000")
		}
	}
	size := func() (n int) {
		for _, p := range all {
			here, err := strconv.Atoi(p.must("DBSIZE").text)
			require.NoError(t, err)
			n += here
		}
		return n
	}
	importing := []string{"--cluster", "import", all[1].addr(), "--cluster-from", theirs.addr()}
	cli(t, append(importing, "--cluster-copy")...)
	require.Equal(t, keys, size())
	require.Equal(t, strconv.Itoa(keys), theirs.must("DBSIZE").text, "they were copied")
	out, _ := runCli(t, importing...)
	require.Contains(t, out, "BUSYKEY", "nothing is overwritten without being asked")
	require.Equal(t, strconv.Itoa(keys), theirs.must("DBSIZE").text)

	theirs.must("SET", "key:0", "newer")
	cli(t, append(importing, "--cluster-replace")...)
	require.Equal(t, keys, size())
	require.Equal(t, "0", theirs.must("DBSIZE").text)
	f := newFollower(t, all)
	for i := range keys {
		k := fmt.Sprint("key:", i)
		kind, err := f.follow("TYPE", k)
		require.NoError(t, err)
		require.Equal(t, []string{"string", "list", "set", "hash", "zset"}[i%5], kind.text, k)
		ttl, err := f.follow("PTTL", k)
		require.NoError(t, err)
		n, err := strconv.Atoi(ttl.text)
		require.NoError(t, err)
		switch {
		case i > 0 && i%3 == 0 && (n < 900_000 || n > 1_000_000), (i == 0 || i%3 > 0) && n != -1:
			t.Errorf("%s has %d ms to live", k, n)
		}
	}
	got, err := f.follow("GET", "key:0")
	require.NoError(t, err)
	require.Equal(t, "newer", got.text)
}
