package slotmesh

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slotmesh/slotmesh/internal/racing"
	"github.com/slotmesh/slotmesh/store"
	"github.com/slotmesh/slotmesh/transport"
	"github.com/stretchr/testify/require"
)

// contents is all that a node's store holds, and under which moves.
func contents(t *testing.T, n *node) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, kind := range []cellKind{cellOwned, cellStaged} {
		all[fmt.Sprint("kept ", kind)] = keptMoves(n.kept, kind)
	}
	for slot := range Slot(NumSlots) {
		if n.engine.keys(slot) == 0 {
			continue
		}
		c := n.engine.makeCell(slot)
		c.mu.RLock()
		page := pageMost
		w := slotWalk{from: n.cfg.Store, slot: slot, page: &page, take: func(ops []store.Op) error {
			for i := range ops {
				all[fmt.Sprint(slot, " ", ops[i].Key, " ", ops[i].Field)] = fmt.Sprintf("%q %d %d", ops[i].Value, ops[i].Kind, ops[i].ExpireAt)
			}
			return nil
		}}
		err := w.run()
		c.mu.RUnlock()
		require.NoError(t, err)
	}
	return all
}

// keptMoves are the moves under which a node holds slots, each with the first of the
// slots in a row that it has brought.
func keptMoves(k *kept, kind cellKind) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	var b strings.Builder
	last := uint64(0)
	for slot := range Slot(NumSlots) {
		move := k.moves[kind][slot]
		if move != last {
			fmt.Fprintf(&b, "%d:%d ", slot, move)
		}
		last = move
	}
	return b.String()
}

// level waits until nodes have the same log, and checks that they have the same
// data, as of one position: keys go on expiring at the primary, and what it removes
// while the stores are read is at the others a moment later.
func level(t *testing.T, within time.Duration, nodes ...*node) {
	t.Helper()
	defer func() {
		if t.Failed() {
			for _, n := range nodes {
				t.Logf("%s: %+v, ready %v %s", n.addr, n.Status().Replication, n.Status().Ready, n.Status().Unready)
			}
		}
	}()
	all := make([]map[string]string, len(nodes))
	until(t, within, "one log", func() bool {
		before, same := onePosition(nodes)
		if !same {
			return false
		}
		for i, n := range nodes {
			all[i] = contents(t, n)
		}
		after, same := onePosition(nodes)
		return same && before == after
	})
	want := all[0]
	for i, n := range nodes[1:] {
		got := all[1+i]
		for k, v := range want {
			if got[k] != v {
				t.Errorf("node %s has %s at %s, expected %s", n.addr, got[k], k, v)
			}
		}
		require.Equal(t, len(want), len(got), "node %s has other entries, too", n.addr)
	}
}

// onePosition is where the logs of nodes end, if they all end there.
func onePosition(nodes []*node) (at logPosition, same bool) {
	at = nodes[0].repl.position()
	for _, n := range nodes[1:] {
		if n.repl.position() != at {
			return at, false
		}
	}
	return at, true
}

// eventsOf collects the events of a kind that a node tells of.
func eventsOf(t *testing.T, n *node, kind EventKind) func() []Event {
	var mu sync.Mutex
	var seen []Event
	ctx, stop := context.WithCancel(t.Context())
	c := n.Events(ctx, 1000)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for e := range c {
			if e.Kind == kind {
				mu.Lock()
				seen = append(seen, e)
				mu.Unlock()
			}
		}
	}()
	t.Cleanup(func() { stop(); <-done })
	return func() []Event {
		mu.Lock()
		defer mu.Unlock()
		return append([]Event(nil), seen...)
	}
}

// churn writes, deletes and lets expire keys and fields at a node until ctx is
// over.
func churn(ctx context.Context, t *testing.T, n *node, keys int) {
	for i := 0; ctx.Err() == nil; i++ {
		key := fmt.Sprint("churn", i*7919%keys)
		r := Request{Keys: []string{key}}
		err := n.Execute(ctx, r, func(tx *Tx) error {
			switch i % 6 {
			case 0, 1:
				return tx.Put(key, []byte(fmt.Sprint(i)))
			case 2:
				_, err := tx.Delete(key)
				return err
			case 3:
				if err := tx.PutEntry(key, store.Entry{Kind: 1, Value: []byte("head")}); err != nil {
					return err
				}
				return tx.PutField(key, fmt.Sprint("f", i%5), []byte(fmt.Sprint(i)))
			case 4:
				_, err := tx.Expire(key, tx.Now().Add(time.Duration(i%50)*time.Millisecond))
				return err
			default:
				return tx.PutField(key, fmt.Sprint("f", i%3), []byte(fmt.Sprint(i)))
			}
		})
		if err != nil && ctx.Err() == nil {
			t.Errorf("key %s: %v", key, err)
			return
		}
		if i%10 == 0 {
			time.Sleep(time.Millisecond)
		}
	}
}

func TestANodeBecomesAReplicaUnderLoad(t *testing.T) {
	t.Parallel()
	keys := racing.Fewer(100_000, 20_000)
	synctest.Test(t, func(t *testing.T) {
		f := newFaults(t)
		a := startNode(t, Config{Addr: "a:1", NodeTimeout: driverNT, Transport: f.Node("a")})
		isReady(t, a)
		for i := range keys {
			require.NoError(t, a.Client().Set(t.Context(), fmt.Sprint("key", i), []byte(fmt.Sprint(i))))
		}
		b := startNode(t, Config{Addr: "b:1", NodeTimeout: driverNT, Transport: f.Node("b"), Join: true, Seeds: []string{"a:1"}})
		isReady(t, b)
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { churn(ctx, t, a, 1000) })
		require.NoError(t, b.Admin().Replicate(t.Context(), a.ID()))
		isReady(t, b)
		require.Equal(t, a.ID(), b.Status().Replication.Primary)
		time.Sleep(100 * time.Millisecond)
		stop()
		wg.Wait()
		level(t, 2*driverNT, a, b)
		for _, x := range a.Table().Shards() {
			require.Equal(t, []NodeID{b.ID()}, x.Replicas)
		}
	})
}

// A key's time has come when its primary says so. A replica hides it, and has it until
// then: whoever compares the two, and whoever leads next, finds what the log says.
func TestAReplicaLetsNothingExpireByItself(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		nodes, f := formShardOn(t, 3, Config{})
		a, b := nodes[0], nodes[1]
		for i := range 300 {
			require.NoError(t, a.Client().SetFor(t.Context(), fmt.Sprint("key", i), []byte("v"), 100*time.Millisecond))
		}
		level(t, 50*time.Millisecond, nodes...)
		had := contents(t, b)
		f.Partition([]string{b.addr[:1]}, []string{a.addr[:1], nodes[2].addr[:1]})
		time.Sleep(driverNT - sweepLater/2) // its sweeper has looked twice, and its primary is not given up
		require.Equal(t, had, contents(t, b))
		require.Equal(t, len(had)-300, len(contents(t, a)))
		require.Equal(t, len(had)-300, len(contents(t, nodes[2])))
		r := Request{Keys: []string{"key1"}, ReadOnly: true, FromReplica: true}
		require.NoError(t, b.Execute(t.Context(), r, func(tx *Tx) error {
			_, found, err := tx.Get("key1")
			require.False(t, found)
			return err
		}))
		f.Heal()
		level(t, 4*driverNT, nodes...)
		require.Equal(t, len(had)-300, len(contents(t, b)))
	})
}

// Up to the borders of what is kept a replica gets what it lacks, and beyond them
// everything.
func TestAReplicaResumesWhereTheBacklogHasWhatItLacks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := formShard(t, 2, Config{Backlog: 4 << 10})[0]
		for i := range 200 {
			require.NoError(t, a.Client().Set(t.Context(), fmt.Sprint("key", i), []byte("v")))
		}
		r := a.repl
		s := a.Status().Replication
		require.Greater(t, s.Backlog.First, uint64(100))
		require.LessOrEqual(t, s.Backlog.Bytes, 4<<10)
		for name, c := range map[string]struct {
			end   uint64
			whole bool
			all   bool
		}{
			"lacks one that has gone":    {s.Backlog.First - 2, true, true},
			"lacks the oldest":           {s.Backlog.First - 1, true, false},
			"lacks all but the oldest":   {s.Backlog.First, true, false},
			"lacks the last":             {s.Offset - 1, true, false},
			"lacks nothing":              {s.Offset, true, false},
			"has one that nobody has":    {s.Offset + 1, true, true},
			"has a copy that is no copy": {s.Offset, false, true},
		} {
			r.mu.Lock()
			past := append(history(nil), r.log.past...)
			r.mu.Unlock()
			f := &feed{r: r, id: NodeID{1}}
			l, err := r.attach(f, &syncAsk{cluster: clusterTag(a.who.Load()), shard: s.Shard, whole: c.whole, end: c.end, past: past}, clusterTag(a.who.Load()))
			require.NoError(t, err)
			r.detach(f)
			require.Equal(t, c.all, l.all, name)
			if !c.all {
				require.Equal(t, c.end, l.from, name)
				entries, ok := r.back.from(l.from, 1<<20)
				require.True(t, ok, name)
				require.Len(t, entries, int(s.Offset-c.end), name)
			}
		}
		_, err := r.attach(&feed{r: r, id: NodeID{1}}, &syncAsk{cluster: clusterTag(a.who.Load()), shard: ShardID{1}}, clusterTag(a.who.Load()))
		require.ErrorIs(t, err, errNotLeading)
	})
}

// slowToClose is a connection whose Close takes its time, as that of TLS may.
type slowToClose struct {
	net.Conn
	goodbye chan struct{}
}

func (c slowToClose) Close() error {
	<-c.goodbye
	return c.Conn.Close()
}

// A primary that has followed another one meanwhile may lead another log: what it has
// sent before is no beginning of that.
func TestAReplicaGoesOnWithTheSameLogAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		nodes := formShard(t, 2, Config{})
		a, b := nodes[0], nodes[1]
		require.NoError(t, put(a, "x", "1"))
		level(t, driverNT, a, b)
		ours, theirs := net.Pipe()
		defer theirs.Close()
		goodbye := make(chan struct{})
		f := &feed{r: a.repl, id: NodeID{1}, conn: slowToClose{ours, goodbye}, wake: make(chan struct{}, 1)}
		at := a.repl.position().Offset
		past := history{{a.repl.position().Epoch, 0}}
		_, err := a.repl.attach(f, &syncAsk{cluster: clusterTag(a.who.Load()), shard: a.Status().Replication.Shard, whole: true, end: at, past: past}, clusterTag(a.who.Load()))
		require.NoError(t, err)
		for _, n := range []*node{b, a} {
			until(t, 2*driverNT, "it takes over", func() bool { return n.Admin().Failover(t.Context(), FailoverPlain) == nil })
		}
		_, err = f.sendSome()
		require.ErrorIs(t, err, errNotLeading)
		close(goodbye)
		synctest.Wait()
		_, err = ours.Write(nil)
		require.ErrorIs(t, err, io.ErrClosedPipe)

		b.repl.mu.Lock()
		following, end := b.repl.following, b.repl.log.end
		had := slices.Clone(b.repl.log.past)
		b.repl.mu.Unlock()
		e := had[len(had)-1].Epoch
		for name, l := range map[string]*logFrom{
			"further":                     {epoch: e, from: end + 1, past: had},
			"the last epoch began before": {epoch: e, from: end, past: append(slices.Clone(had[:len(had)-1]), epochStart{e, end - 1})},
			"another log":                 {epoch: e, from: end, past: history{{Epoch{Number: 1, Node: NodeID{3}}, 0}}},
		} {
			require.ErrorIs(t, following.resume(l), errNotFollowing, name)
		}
		require.NoError(t, following.resume(&logFrom{epoch: e, from: end, past: had}))
	})
}

// frames is a connection to a replica that is none: it notes which frames it is sent,
// and calls at after some of them.
type frames struct {
	net.Conn
	kinds []byte
	at    map[int]func()
}

func (c *frames) Write(b []byte) (int, error) {
	c.kinds = append(c.kinds, b[4])
	if do := c.at[len(c.kinds)]; do != nil {
		do()
	}
	return len(b), nil
}

func (c *frames) Close() error { return nil } // it may take its time

// copiedBy makes a primary copy everything to a replica that is none.
func copiedBy(t *testing.T, n *node, conn *frames) error {
	t.Helper()
	f := &feed{r: n.repl, id: NodeID{1}, conn: conn, wake: make(chan struct{}, 1)}
	tag := clusterTag(n.who.Load())
	l, err := n.repl.attach(f, &syncAsk{cluster: tag, shard: n.Status().Replication.Shard}, tag)
	require.NoError(t, err)
	require.True(t, l.all)
	defer n.repl.detach(f)
	return f.copyAll(t.Context())
}

// What a node holds whose reign has ended nobody says any more: it may be writes that
// its successor has not, and what it takes from that one.
func TestADeposedPrimarySendsNoEndOfACopy(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		nodes := formShard(t, 2, Config{})
		for i := range 20 {
			require.NoError(t, put(nodes[0], fmt.Sprint("key", i), "1"))
		}
		whole := &frames{}
		require.NoError(t, copiedBy(t, nodes[0], whole))
		require.Equal(t, frameSyncEnd, whole.kinds[len(whole.kinds)-1])
		for i, after := range []int{1, 2, len(whole.kinds) / 2, len(whole.kinds) - 1} {
			p, r := nodes[i%2], nodes[1-i%2]
			deposed := &frames{at: map[int]func(){after: func() {
				until(t, 2*driverNT, "it takes over", func() bool { return r.Admin().Failover(t.Context(), FailoverPlain) == nil })
				require.NoError(t, put(r, "key1", "2"))
				level(t, driverNT, p, r)
			}}}
			require.ErrorIs(t, copiedBy(t, p, deposed), errNotLeading)
			require.NotContains(t, deposed.kinds, frameSyncEnd, after)
		}
	})
}

// A copy that does not add up to what its sender says takes nothing's place.
func TestACopyIsCheckedBeforeItTakesThePlaceOfTheOld(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := formShard(t, 2, Config{})[1]
		inc := b.repl.facts.Load().store
		slot := (&syncSlot{3, 4, 5, false, nil}).append(nil)
		data := appendPiece(nil, 0, 3, []store.Op{{Code: store.OpPut, Key: "k", Value: []byte("v")}})
		own := logFrame{first: 8, end: 8, parts: [][]byte{moveEntry(entryOwn, 3, 4).first}}
		half := opsEntry(3, []store.Op{{Code: store.OpPut, Key: "k", Value: []byte("v")}})
		half.first[0] |= entryMore
		var sum copySum
		sum.add(frameSyncSlot, slot)
		sum.add(frameSyncData, data)
		sum.add(frameLog, own.append(nil))
		for name, c := range map[string]struct {
			end  *syncEnd
			more [][]byte // of an entry of which the rest is to come
			want error
		}{
			"whole":                    {&syncEnd{8, sum}, nil, errNotFollowing},
			"an entry less":            {&syncEnd{7, sum}, nil, nil},
			"a frame more":             {&syncEnd{8, copySum{sum.frames + 1, sum.sum}}, nil, nil},
			"of other bytes":           {&syncEnd{8, copySum{sum.frames, sum.sum ^ 1}}, nil, nil},
			"in the midst of an entry": {nil, [][]byte{half.first}, errBulk},
		} {
			f := &following{r: b.repl, primary: NodeID{1}, ctx: t.Context(), wake: make(chan struct{}, 1)}
			f.side = &sideCopy{store: store.NewMemory(), end: 7, slots: map[Slot]*syncSlot{}}
			require.NoError(t, f.handle(frameSyncSlot, slot))
			require.NoError(t, f.handle(frameSyncData, data))
			require.NoError(t, f.handle(frameLog, own.append(nil)))
			if c.more != nil {
				require.NoError(t, f.handle(frameLog, (&logFrame{first: 9, end: 9, parts: c.more}).append(nil)))
				c.end = &syncEnd{f.side.end, f.side.read}
			}
			err := f.handle(frameSyncEnd, c.end.append(nil))
			require.Error(t, err, name)
			if c.want != nil {
				require.ErrorIs(t, err, c.want, name)
			} else {
				require.ErrorContains(t, err, "expected offset", name)
			}
			require.Equal(t, inc, b.repl.facts.Load().store, name)
		}
		f := &following{r: b.repl}
		require.ErrorIs(t, f.handle(frameSyncEnd, (&syncEnd{8, sum}).append(nil)), errBulk, "nothing is copied")
	})
}

// dropping is a store of which a test sees the slots go.
type dropping struct {
	*store.Memory
	seen atomic.Pointer[func(slot uint16)]
}

func (s *dropping) Drop(slot uint16) error {
	if seen := s.seen.Load(); seen != nil {
		(*seen)(slot)
	}
	return s.Memory.Drop(slot)
}

// Whoever leads with a copy that has taken the place of half of what it had has no
// other member's log: nobody goes on with its own there.
func TestAReplicaThatLeadsWithHalfACopyIsCopied(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, seeds := newFaults(t), []string{"a:1", "b:1", "c:1"}
		var nodes []*node
		stores := map[*node]*dropping{}
		for i, at := range seeds {
			s := &dropping{Memory: store.NewMemory()}
			n := startNode(t, Config{Addr: at, Seeds: seeds, Primaries: 1, Replicas: 2, NodeTimeout: driverNT, Backlog: 4 << 10,
				Transport: f.Node(seeds[i][:1]), Store: s})
			nodes, stores[n] = append(nodes, n), s
		}
		for i, n := range nodes {
			isReady(t, n)
			if own := n.Table().Slots(n.ID()); !own.Empty() {
				nodes[0], nodes[i] = nodes[i], nodes[0]
			}
		}
		p, r, other := nodes[0], nodes[1], nodes[2]
		side := func(n *node) string { return n.addr[:1] }
		for i := range 300 {
			require.NoError(t, put(p, fmt.Sprint("key", i), "old"))
		}
		level(t, driverNT, nodes...)

		// Both replicas are where they were, and lack more than is kept.
		f.Partition([]string{side(p)}, []string{side(r)}, []string{side(other)})
		for i := range 300 {
			require.NoError(t, put(p, fmt.Sprint("key", i), "new"))
		}
		for _, n := range nodes[1:] {
			f.Reset(side(p), side(n))
		}
		taken, drops := make(chan struct{}), 0
		seen := func(uint16) {
			if drops++; drops != NumSlots/2 {
				return
			}
			go func() {
				defer close(taken)
				if err := r.Admin().Takeover(t.Context()); err != nil {
					t.Errorf("TAKEOVER: %v", err)
				}
			}()
			for following := true; following; runtime.Gosched() { // under the slot's lock no time may pass
				r.repl.mu.Lock()
				following = r.repl.following != nil
				r.repl.mu.Unlock()
			}
		}
		stores[r].seen.Store(&seen)
		f.Partition([]string{side(p), side(r)}, []string{side(other)})
		<-taken
		stores[r].seen.Store(nil)
		require.Equal(t, NumSlots/2, drops, "it has gone on with the copy")
		f.Heal()
		require.Equal(t, r, leaderOf(t, 4*driverNT, r))
		level(t, 4*driverNT, nodes...)
	})
}

// The end of a log that no other member has is told once, however often the copy begins
// that takes its place, and also where a change that no log knows has come before.
func TestATailIsToldOnce(t *testing.T) {
	t.Parallel()
	old, e, next := Epoch{1, false, NodeID{1}}, Epoch{2, false, NodeID{1}}, Epoch{3, false, NodeID{2}}
	primarys := &logFrom{epoch: next, all: true, from: 90, past: history{{old, 0}, {e, 50}, {next, 60}}}
	for _, row := range []struct {
		name  string
		past  history
		whole bool
		do    func(r *replication)
		want  []uint64
	}{
		{"the copy begins again and again", history{{old, 0}, {e, 50}}, true, func(*replication) {}, []uint64{10, 0, 0}},
		{"after a change that no log knows", history{{old, 0}, {e, 50}}, true, func(r *replication) { r.append(logEntry{}) }, []uint64{10, 0, 0}},
		{"another tail", history{{old, 0}, {e, 50}}, true, func(r *replication) {
			require.Equal(t, uint64(10), r.tail(primarys))
			r.log.end++
		}, []uint64{11, 0}},
		{"of another store", history{{old, 0}, {e, 50}}, true, func(r *replication) {
			require.Equal(t, uint64(10), r.tail(primarys))
			r.facts.Store(&coreFacts{store: 8, whole: true})
		}, []uint64{10, 0}},
		{"it has led again", history{{old, 0}, {e, 50}}, true, func(r *replication) {
			r.append(logEntry{})
			r.carryOut(&state{role: logRole{version: 1, lead: next}})
			r.carryOut(&state{role: logRole{version: 2}})
		}, []uint64{0}},
		{"it has gone on with its primary's log", history{{old, 0}, {e, 50}}, true, func(r *replication) {
			r.append(logEntry{})
			r.take(primarys.past, 90)
		}, []uint64{0}},
		{"a copy that is none", history{{old, 0}, {e, 50}}, false, func(*replication) {}, []uint64{0}},
		{"nothing is shared", history{{Epoch{9, false, NodeID{9}}, 0}}, true, func(*replication) {}, []uint64{0}},
	} {
		r := &replication{feeds: map[NodeID]*feed{}, n: &node{}}
		r.facts.Store(&coreFacts{store: 7, whole: row.whole})
		r.log.take(row.past, 70)
		row.do(r)
		var told []uint64
		for range row.want {
			told = append(told, r.tail(primarys))
		}
		require.Equal(t, row.want, told, row.name)
	}
}

// What a replica has acknowledged counts in the epoch in which it has said so: another
// primary's replica it may have been meanwhile, and have dropped it.
func TestAcknowledgementsOfAnOlderEpochDoNotCount(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		nodes, f := formShardOn(t, 3, Config{})
		a, b, c := nodes[0], nodes[1], nodes[2]
		require.NoError(t, a.Admin().BumpEpoch(t.Context())) // once the voters vote
		require.NoError(t, put(a, "x", "1"))
		level(t, driverNT, nodes...)
		end := a.repl.position().Offset
		have := func() int {
			a.repl.mu.Lock()
			defer a.repl.mu.Unlock()
			return a.repl.have(end)
		}
		until(t, driverNT, "both have said that they have it", func() bool { return have() == 2 })
		f.Partition([]string{b.addr[:1]}, []string{a.addr[:1], c.addr[:1]})
		bumped, was := make(chan error, 1), a.repl.position().Epoch
		go func() { bumped <- a.Admin().BumpEpoch(t.Context()) }() // until all know, which the other does not
		until(t, driverNT/4, "it has won anew", func() bool { return was.less(a.repl.position().Epoch) })
		until(t, driverNT/4, "the one that hears of the epoch says it again", func() bool { return have() > 0 })
		time.Sleep(driverNT / 10)
		require.Equal(t, 1, have())
		f.Heal()
		require.NoError(t, <-bumped)
		until(t, 4*driverNT, "so does the other", func() bool { return have() == 2 })
	})
}

func TestAReplicaThatWasCutOffGetsWhatItLacks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		nodes, f := formShardOn(t, 3, Config{})
		before := nodes[1].Status().Replication
		syncs := eventsOf(t, nodes[1], EventCut)
		f.Partition([]string{nodes[1].addr[:1]}, []string{nodes[0].addr[:1], nodes[2].addr[:1]})
		for i := range 300 {
			require.NoError(t, nodes[0].Client().Set(t.Context(), fmt.Sprint("key", i), []byte("v")))
		}
		time.Sleep(2 * driverNT)
		inc := nodes[1].repl.facts.Load().store
		f.Heal()
		level(t, 4*driverNT, nodes...)
		require.Equal(t, inc, nodes[1].repl.facts.Load().store, "it has copied nothing")
		require.Greater(t, nodes[1].Status().Replication.Offset, before.Offset)
		require.Empty(t, syncs())
	})
}

// A primary that is cut off goes on for as long as its lease runs. What it has
// acknowledged by then is named when it is dropped.
func TestAPrimaryThatWasCutOffDropsItsTailAndSaysSo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		nodes, f := formShardOn(t, 3, Config{})
		a := nodes[0]
		level(t, driverNT, nodes...)
		cut := eventsOf(t, a, EventCut)
		f.Partition([]string{a.addr[:1]}, []string{nodes[1].addr[:1], nodes[2].addr[:1]})
		acked := 0
		for began := time.Now(); time.Since(began) < driverNT; time.Sleep(5 * time.Millisecond) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			err := a.Execute(ctx, Request{Keys: []string{"x"}}, func(tx *Tx) error { return tx.Put("x", []byte("tail")) })
			cancel()
			if err == nil {
				acked++
			}
		}
		require.Positive(t, acked)
		b := leaderOf(t, 2*driverNT, nodes[1:]...)
		require.NoError(t, b.Client().Set(t.Context(), "x", []byte("new")))
		f.Heal()
		until(t, 4*driverNT, "it follows", func() bool { return a.Status().Replication.Link == LinkUp })
		level(t, 2*driverNT, b, a)
		require.Len(t, cut(), 1)
		require.EqualValues(t, acked, cut()[0].Number)
		require.Equal(t, b.ID(), cut()[0].From)
		v, err := a.Client().Get(t.Context(), "x")
		require.NoError(t, err)
		require.Equal(t, "new", string(v))
	})
}

// outliving is a store that says that it outlives its process.
type outliving struct {
	*store.Memory
	id uint64
}

func (s outliving) Incarnation() uint64 { return s.id }

func TestAStoreThatOutlivesItsProcessIsTheSameMember(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		stores := []store.Store{outliving{store.NewMemory(), 1}, outliving{store.NewMemory(), 2}}
		f := newFaults(t)
		start := func(i int) *node {
			return startNode(t, Config{Addr: []string{"a:1", "b:1"}[i], Seeds: []string{"a:1", "b:1"}, Primaries: 1, Replicas: 1, NodeTimeout: driverNT,
				Transport: f.Node([]string{"a", "b"}[i]), Dir: fmt.Sprint(dir, "/", i), Store: stores[i]})
		}
		nodes := []*node{start(0), start(1)}
		for _, n := range nodes {
			isReady(t, n)
		}
		p := 0
		if own := nodes[1].Table().Slots(nodes[1].ID()); !own.Empty() {
			p = 1
		}
		require.NoError(t, nodes[p].Client().Set(t.Context(), "x", []byte("1")))
		level(t, driverNT, nodes...)
		facts := nodes[1-p].repl.facts.Load()
		require.True(t, facts.whole)
		nodes[1-p].Close()
		require.NoError(t, nodes[p].Client().Set(t.Context(), "y", []byte("2")))
		nodes[1-p] = start(1 - p)
		require.Equal(t, facts.store, nodes[1-p].repl.facts.Load().store)
		require.True(t, nodes[1-p].repl.facts.Load().whole)
		isReady(t, nodes[1-p])
		level(t, 2*driverNT, nodes...)

		unclean := eventsOf(t, nodes[1-p], EventUnclean)
		nodes[p].Close()
		nodes[p] = start(p)
		isReady(t, nodes[p])
		isReady(t, nodes[1-p])
		for _, key := range []string{"x", "y"} {
			_, err := nodes[p].Client().Get(t.Context(), key)
			require.NoError(t, err)
		}
		require.Empty(t, unclean())
	})
}

// lasting is a shard of three whose stores outlive their processes. The primary is
// nodes[p].
type lasting struct {
	t      *testing.T
	f      *transport.Faults
	dirs   []string
	stores []outliving
	nodes  []*node
	p      int
}

func newLasting(t *testing.T) *lasting {
	l := &lasting{t: t, f: newFaults(t), nodes: make([]*node, 3)}
	for i := range l.nodes {
		l.dirs = append(l.dirs, t.TempDir())
		l.stores = append(l.stores, outliving{store.NewMemory(), uint64(1 + i)})
		l.start(i)
	}
	for i, n := range l.nodes {
		isReady(t, n)
		if own := n.Table().Slots(n.ID()); !own.Empty() {
			l.p = i
		}
	}
	l.write(50)
	level(t, driverNT, l.nodes...)
	return l
}

func (l *lasting) start(i int) {
	at := string(rune('a' + i))
	l.nodes[i] = startNode(l.t, Config{Addr: at + ":1", Seeds: []string{"a:1", "b:1", "c:1"}, Primaries: 1, Replicas: 2, NodeTimeout: driverNT,
		Transport: l.f.Node(at), Dir: l.dirs[i], Store: l.stores[i]})
}

// cut cuts a node off.
func (l *lasting) cut(i int) {
	var others []string
	for j := range l.nodes {
		if j != i {
			others = append(others, string(rune('a'+j)))
		}
	}
	l.f.Partition([]string{string(rune('a' + i))}, others)
}

// crash ends a node as a crash does: its folder is as it was a moment before.
func (l *lasting) crash(i int) {
	left := l.t.TempDir()
	require.NoError(l.t, os.CopyFS(left, os.DirFS(l.dirs[i])))
	l.nodes[i].Close()
	l.dirs[i] = left
}

func (l *lasting) write(n int) {
	c := l.nodes[l.p].Client()
	for i := range n {
		require.NoError(l.t, c.Set(l.t.Context(), fmt.Sprint("key", i), []byte(fmt.Sprint(time.Now()))))
	}
	_, err := c.Delete(l.t.Context(), "key1")
	require.NoError(l.t, err)
}

func (l *lasting) store(i int) uint64 { return l.nodes[i].repl.facts.Load().store }

// A store that outlives its process is at the point of the log at which its node was
// closed. Where that is sure, its node goes on from there, and else it copies all.
func TestAStoreThatOutlivesItsProcessGoesOnWhereItWas(t *testing.T) {
	t.Parallel()
	i := 0
	for name, row := range map[string]struct {
		between func(l *lasting, r int)
		copies  bool
	}{
		"closed": {func(l *lasting, r int) {
			l.nodes[r].Close()
			l.write(20)
			l.start(r)
		}, false},
		"closed twice": {func(l *lasting, r int) {
			for range 2 {
				l.nodes[r].Close()
				l.write(20)
				l.start(r)
				isReady(l.t, l.nodes[r])
				level(l.t, 2*driverNT, l.nodes...)
			}
		}, false},
		"closed before it has heard of its primary again": {func(l *lasting, r int) {
			l.nodes[r].Close()
			l.write(20)
			l.cut(r)
			l.start(r)
			l.nodes[r].Close()
			l.f.Heal()
			l.start(r)
		}, false},
		"closed under writes": {func(l *lasting, r int) {
			ctx, stop := context.WithCancel(l.t.Context())
			var wg sync.WaitGroup
			wg.Go(func() { churn(ctx, l.t, l.nodes[l.p], 100) })
			time.Sleep(50 * time.Millisecond)
			l.nodes[r].Close()
			time.Sleep(50 * time.Millisecond)
			l.start(r)
			time.Sleep(50 * time.Millisecond)
			stop()
			wg.Wait()
		}, false},
		"the primary closed": {func(l *lasting, r int) {
			l.write(20)
			level(l.t, driverNT, l.nodes...)
			l.nodes[l.p].Close()
			l.start(l.p)
			isReady(l.t, l.nodes[l.p])
		}, false},
		"crashed": {func(l *lasting, r int) {
			l.crash(r)
			l.start(r)
		}, true},
		"crashed after it had gone on": {func(l *lasting, r int) {
			l.nodes[r].Close()
			l.start(r)
			isReady(l.t, l.nodes[r])
			l.write(20)
			level(l.t, driverNT, l.nodes...)
			l.crash(r)
			l.start(r)
		}, true},
		"crashed before it had gone on": {func(l *lasting, r int) {
			l.nodes[r].Close()
			l.cut(r)
			l.start(r)
			l.crash(r)
			l.f.Heal()
			l.start(r)
		}, true},
		"another store": {func(l *lasting, r int) {
			l.nodes[r].Close()
			l.stores[r] = outliving{store.NewMemory(), 7}
			l.start(r)
		}, true},
		"the store has lost something": {func(l *lasting, r int) {
			l.nodes[r].Close()
			l.stores[r].id = 8
			l.start(r)
		}, true},
		"its changes are in no log": {func(l *lasting, r int) {
			l.nodes[r].repl.append(logEntry{})
			l.nodes[r].Close()
			l.start(r)
		}, true},
	} {
		i++
		t.Run(name, func(t *testing.T) {
			racing.OneOf(t, i, 3)
			synctest.Test(t, func(t *testing.T) {
				l := newLasting(t)
				r := (l.p + 1) % 3
				before := []uint64{l.store(0), l.store(1), l.store(2)}
				row.between(l, r)
				isReady(t, l.nodes[r])
				until(t, 4*driverNT, "it follows", func() bool { return l.nodes[r].Status().Replication.Link == LinkUp })
				level(t, 2*driverNT, l.nodes...)
				require.Equal(t, row.copies, before[r] != l.store(r), "it copies everything")
				for i := range before {
					if i != r {
						require.Equal(t, before[i], l.store(i))
					}
				}
				l.write(20)
				level(t, driverNT, l.nodes...)
			})
		})
	}
}

// What a primary has written that nobody has taken is in no other log: closed, it
// must not take it for a part of its successor's.
func TestAPrimaryThatWasClosedDropsItsTail(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLasting(t)
		p := l.p
		l.cut(p)
		require.NoError(t, put(l.nodes[p], "tail", "1"))
		for _, other := range []int{(p + 1) % 3, (p + 2) % 3} { // what was on its way is lost
			l.f.Reset(string(rune('a'+p)), string(rune('a'+other)))
		}
		l.nodes[p].Close()
		l.f.Heal()
		leader := leaderOf(t, 4*driverNT, l.nodes[(p+1)%3], l.nodes[(p+2)%3])
		l.p = slices.Index(l.nodes, leader)
		l.write(1)
		l.start(p)
		cut := eventsOf(t, l.nodes[p], EventCut)
		until(t, 4*driverNT, "it follows", func() bool { return l.nodes[p].Status().Replication.Link == LinkUp })
		level(t, 2*driverNT, l.nodes...)
		_, err := l.nodes[l.p].Client().Get(t.Context(), "tail")
		require.ErrorIs(t, err, ErrNotFound)
		require.Len(t, cut(), 1)
		require.EqualValues(t, 1, cut()[0].Number)
	})
}

// A start that fails, because the address is taken, or because nobody would reach the
// node, has done nothing: it makes no folder, and one that is there says what it said,
// also from where in the log its store can go on.
func TestAStartThatFailsLeavesTheFolderAsItWas(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLasting(t)
		dir, id := l.dirs[0], l.nodes[0].ID()
		l.nodes[0].Close()
		kept := func() map[cellKey]string {
			m, cells, err := openMeta(osFS{}, dir)
			require.NoError(t, err)
			defer m.Close()
			said := map[cellKey]string{}
			for _, c := range cells {
				said[c.key] = string(c.value)
			}
			return said
		}
		before := kept()
		require.Contains(t, before, cellKey{kind: cellLog})
		fails := func(dir, addr, want string) {
			_, err := Start(t.Context(), Config{Addr: addr, NodeTimeout: driverNT, Transport: l.f.Node("a"), Dir: dir, Store: l.stores[0]})
			require.ErrorContains(t, err, want)
		}
		fails(dir, "b:1", "listen at b:1")
		fails(dir, "", "2 other members")
		require.Equal(t, before, kept())
		fresh := filepath.Join(t.TempDir(), "above", "fresh")
		fails(fresh, "b:1", "listen at b:1")
		require.NoDirExists(t, filepath.Dir(fresh))

		l.start(0)
		isReady(t, l.nodes[0])
		require.Equal(t, id, l.nodes[0].ID())
	})
}
