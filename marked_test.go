package slotmesh_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slotmesh/slotmesh"
	"github.com/slotmesh/slotmesh/store"
	"github.com/slotmesh/slotmesh/transport"
	"github.com/stretchr/testify/require"
)

// halfMoved is a cluster of three in which a slot of a, the owner, is on its way
// to b, key by key.
type halfMoved struct {
	t       *testing.T
	a, b, c slotmesh.Node
	tag     string // of keys of the slot
	slot    slotmesh.Slot
}

// halfMoves runs f in a bubble with the slot of tag marked at both ends.
func halfMoves(t *testing.T, f func(t *testing.T, h *halfMoved)) {
	synctest.Test(t, func(t *testing.T) {
		nodes := form(t, transport.NewMemory(), 3, slotmesh.Config{NodeTimeout: nt})
		defer closeAll(nodes...)
		key := keyAt(nodes[0])
		h := &halfMoved{t, nodes[0], nodes[1], nodes[2], "{" + key + "}", slotmesh.KeySlot(key)}
		h.mark()
		f(t, h)
	})
}

// joined is a node without slots that has joined the group that form makes.
func joined(t *testing.T, mem *transport.Memory) slotmesh.Node {
	t.Helper()
	d, err := slotmesh.Start(t.Context(), slotmesh.Config{NodeTimeout: nt, Addr: "d:1", Transport: mem, Join: true, Seeds: []string{"seed-0:1"}})
	require.NoError(t, err)
	require.NoError(t, d.Ready(t.Context()))
	return d
}

func (h *halfMoved) mark() {
	h.t.Helper()
	require.NoError(h.t, h.b.Admin().SetSlotImporting(h.t.Context(), h.slot, h.a.ID()))
	require.NoError(h.t, h.a.Admin().SetSlotMigrating(h.t.Context(), h.slot, h.b.ID()))
}

func (h *halfMoved) slots() (set slotmesh.SlotSet) {
	set.Add(h.slot)
	return set
}

// put stores keys at a node as Redis's RESTORE-ASKING does at the importing one.
func (h *halfMoved) put(n slotmesh.Node, keys ...string) {
	h.t.Helper()
	for _, k := range keys {
		r := slotmesh.Request{Keys: []string{h.tag + k}, Asking: true, Anyway: true}
		require.NoError(h.t, n.Execute(h.t.Context(), r, func(tx *slotmesh.Tx) error { return tx.Put(h.tag+k, []byte(k)) }))
	}
}

// move moves a key, as MIGRATE does: no other request sees it in between.
func (h *halfMoved) move(key string) error {
	r := slotmesh.Request{Keys: []string{key}, Anyway: true, Name: "MIGRATE"}
	return h.a.Execute(h.t.Context(), r, func(tx *slotmesh.Tx) error {
		head, found, err := tx.Entry(key)
		if err != nil || !found {
			return err
		}
		fields, _, err := tx.Range(key, "", 0)
		if err != nil {
			return err
		}
		restore := slotmesh.Request{Keys: []string{key}, Asking: true, Name: "RESTORE-ASKING"}
		if err := h.b.Execute(context.Background(), restore, func(tx *slotmesh.Tx) error {
			err := tx.PutEntry(key, head)
			for _, f := range fields {
				err = errors.Join(err, tx.PutField(key, f.Field, f.Value))
			}
			return err
		}); err != nil {
			return err
		}
		_, err = tx.Delete(key)
		return err
	})
}

// moveAll moves what the slot holds, by pages of its keys, as redis-cli does.
func (h *halfMoved) moveAll(pause time.Duration) {
	h.t.Helper()
	for {
		items, _, err := h.a.ScanSlot(h.slot, 0, 10)
		require.NoError(h.t, err)
		if len(items) == 0 {
			return
		}
		for _, it := range items {
			require.NoError(h.t, h.move(it.Key))
			time.Sleep(pause)
		}
	}
}

func (h *halfMoved) count(n slotmesh.Node) int {
	h.t.Helper()
	keys, err := n.CountKeys(h.slot)
	require.NoError(h.t, err)
	return keys
}

// answer is what a node says to a request for keys of the slot, as text.
func (h *halfMoved) answer(n slotmesh.Node, asking, write bool, keys ...string) string {
	h.t.Helper()
	r := slotmesh.Request{Asking: asking, ReadOnly: !write}
	for _, k := range keys {
		r.Keys = append(r.Keys, h.tag+k)
	}
	got := ""
	err := n.Execute(h.t.Context(), r, func(tx *slotmesh.Tx) error {
		for _, k := range r.Keys {
			if write {
				got = "OK"
				if err := tx.Put(k, []byte("v")); err != nil {
					return err
				}
				continue
			}
			v, found, err := tx.Get(k)
			if got += " " + string(v); !found {
				got += "nil"
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	var moved *slotmesh.MovedError
	var ask *slotmesh.AskError
	var unserved *slotmesh.UnservedError
	switch {
	case err == nil:
		return strings.TrimSpace(got)
	case errors.As(err, &moved):
		return "MOVED " + h.name(moved.Node)
	case errors.As(err, &ask):
		require.Equal(h.t, h.slot, ask.Slot)
		return "ASK " + h.name(ask.Node)
	case errors.As(err, &unserved) && errors.Is(err, slotmesh.ErrTryAgain):
		return "TRYAGAIN " + unserved.Reason
	default:
		return err.Error()
	}
}

func (h *halfMoved) name(id slotmesh.NodeID) string {
	return map[slotmesh.NodeID]string{h.a.ID(): "A", h.c.ID(): "C", h.b.ID(): "B"}[id]
}

// Redis's own sequence, while the keys are in use from everywhere: nothing is
// lost and nothing done twice.
func TestASlotMovesKeyByKeyWhileItIsUsed(t *testing.T) {
	halfMoves(t, func(t *testing.T, h *halfMoved) {
		ctx, stop := context.WithCancel(t.Context())
		const keys = 40
		counts := make([]int, 2*keys)
		var wg sync.WaitGroup
		incr := func(i int) {
			n := []slotmesh.Node{h.a, h.b, h.c}[i%3]
			for ctx.Err() == nil {
				if _, err := n.Client().Incr(t.Context(), fmt.Sprint(h.tag, i), 1); err != nil {
					t.Errorf("%d: %v", i, err)
					return
				}
				counts[i]++
				time.Sleep(time.Millisecond)
			}
		}
		for i := range keys {
			wg.Go(func() { incr(i) })
		}
		time.Sleep(10 * time.Millisecond)
		for i := keys; i < 2*keys; i++ {
			wg.Go(func() { incr(i) }) // keys that are new
		}
		h.moveAll(3 * time.Millisecond)
		require.Zero(t, h.count(h.a))
		require.GreaterOrEqual(t, h.count(h.b), keys)
		require.Positive(t, h.c.Client().Stats().Asked)
		for _, n := range []slotmesh.Node{h.b, h.a, h.c} {
			require.NoError(t, n.Admin().SetSlots(t.Context(), h.slots(), h.b.ID()))
		}
		time.Sleep(50 * time.Millisecond)
		stop()
		wg.Wait()
		for _, n := range []slotmesh.Node{h.a, h.b, h.c} {
			owner, _ := n.Table().Owner(h.slot)
			require.Equal(t, h.b.ID(), owner.ID)
			require.Empty(t, n.Table().Marks())
		}
		for i, want := range counts {
			v, err := h.c.Client().Get(t.Context(), fmt.Sprint(h.tag, i))
			require.NoError(t, err)
			require.Equal(t, strconv.Itoa(want), string(v), "key %d", i)
		}
	})
}

func TestCollectionsMoveKeyByKey(t *testing.T) {
	halfMoves(t, func(t *testing.T, h *halfMoved) {
		key := h.tag + "hash"
		put := slotmesh.Request{Keys: []string{key}, Anyway: true}
		require.NoError(t, h.a.Execute(t.Context(), put, func(tx *slotmesh.Tx) error {
			return errors.Join(tx.PutEntry(key, store.Entry{Kind: 1, Value: []byte("head"), ExpireAt: tx.Now().Add(time.Hour).UnixMilli()}), tx.PutField(key, "f", []byte("v")))
		}))
		headless := h.tag + "headless"
		require.NoError(t, h.a.Execute(t.Context(), slotmesh.Request{Keys: []string{headless}, Anyway: true}, func(tx *slotmesh.Tx) error {
			return tx.PutField(headless, "f", nil)
		}))
		require.Equal(t, "nil", h.answer(h.a, false, false, "headless"), "a key without a head is there")
		require.NoError(t, h.move(key))
		require.Equal(t, "ASK B", h.answer(h.a, false, false, "hash"))
		require.NoError(t, h.b.Execute(t.Context(), slotmesh.Request{Keys: []string{key}, Asking: true, ReadOnly: true}, func(tx *slotmesh.Tx) error {
			v, found, err := tx.GetField(key, "f")
			require.True(t, found && string(v) == "v")
			return err
		}))
	})
}

// What the two nodes and a third one answer while the slot is half moved: k1 and
// k2 are at A still, k3 has gone to B.
func TestWhatNodesAnswerWhileASlotMoves(t *testing.T) {
	halfMoves(t, func(t *testing.T, h *halfMoved) {
		h.put(h.a, "k1", "k2", "gone")
		h.put(h.b, "k3")
		_, err := h.a.Client().Expire(t.Context(), h.tag+"gone", time.Millisecond)
		require.NoError(t, err)
		time.Sleep(2 * time.Millisecond) // and is not swept yet
		const split = "TRYAGAIN Multiple keys request during rehashing of slot"
		for _, row := range []struct {
			n             slotmesh.Node
			asking, write bool
			keys, want    string
		}{
			{h.a, false, false, "k1", "k1"},
			{h.a, false, false, "k3", "ASK B"},
			{h.a, false, true, "k3", "ASK B"},
			{h.a, true, false, "k3", "ASK B"},
			{h.a, false, false, "k1 k2", "k1 k2"},
			{h.a, false, false, "k1 k3", split},
			{h.a, false, true, "k1 k3", split},
			{h.a, false, false, "k3 k4", "ASK B"},
			{h.a, false, false, "gone", "ASK B"},
			{h.a, false, false, "k1 gone", split},
			{h.b, false, false, "k1", "MOVED A"},
			{h.b, false, false, "k3", "MOVED A"},
			{h.b, true, false, "k1", "nil"},
			{h.b, true, false, "k3", "k3"},
			{h.b, true, false, "k3 k3", "k3 k3"},
			{h.b, true, false, "k4 k4", "nil nil"},
			{h.b, true, false, "k1 k3", split},
			{h.b, true, true, "k5 k6", split},
			{h.b, true, true, "k7", "OK"},
			{h.c, false, false, "k1", "MOVED A"},
			{h.c, true, false, "k1", "MOVED A"},
		} {
			if got := h.answer(row.n, row.asking, row.write, strings.Fields(row.keys)...); got != row.want {
				t.Errorf("%s: asking %v, write %v, %s: %s, want %s", h.name(row.n.ID()), row.asking, row.write, row.keys, got, row.want)
			}
		}
		// A client of the library finds every key.
		for _, k := range []string{"k1", "k2", "k3"} {
			for _, n := range []slotmesh.Node{h.a, h.b, h.c} {
				v, err := n.Client().Get(t.Context(), h.tag+k)
				require.NoError(t, err)
				require.Equal(t, k, string(v))
			}
		}
	})
}

func TestSetSlotNodeWaitsForTheLastKey(t *testing.T) {
	halfMoves(t, func(t *testing.T, h *halfMoved) {
		h.put(h.a, "k1", "soon gone")
		const text = "while I still hold keys for this hash slot."
		for _, n := range []slotmesh.Node{h.a, h.b, h.c} {
			err := n.Admin().SetSlots(t.Context(), h.slots(), h.b.ID())
			require.ErrorIs(t, err, slotmesh.ErrRefused)
			require.ErrorContains(t, err, fmt.Sprintf("Can't assign hashslot %d to a different node %s", h.slot, text))
		}
		require.Equal(t, "k1", h.answer(h.a, false, false, "k1"), "it serves on")
		require.NoError(t, h.move(h.tag+"k1"))
		_, err := h.a.Client().Expire(t.Context(), h.tag+"soon gone", time.Millisecond)
		require.NoError(t, err)
		time.Sleep(2 * time.Millisecond)
		require.Equal(t, 1, h.count(h.a), "not swept yet")
		require.NoError(t, h.b.Admin().SetSlots(t.Context(), h.slots(), h.b.ID()), "a key whose time has come holds nothing up")
		require.Equal(t, "k1", h.answer(h.b, false, false, "k1"))
		require.Equal(t, "MOVED B", h.answer(h.a, false, false, "soon gone"))
	})
}

func TestAMarkThatIsTakenOffLeavesKeysWhereTheyAre(t *testing.T) {
	halfMoves(t, func(t *testing.T, h *halfMoved) {
		h.put(h.a, "k1", "k2")
		require.NoError(t, h.move(h.tag+"k1"))
		ctx := t.Context()
		err := h.a.Admin().MoveSlots(ctx, h.slots(), h.b.ID())
		require.ErrorIs(t, err, slotmesh.ErrRefused)
		require.ErrorContains(t, err, "is marked MIGRATING or IMPORTING")
		require.NoError(t, h.a.Admin().SetSlotStable(ctx, h.slot))
		require.ErrorIs(t, h.a.Admin().MoveSlots(ctx, h.slots(), h.b.ID()), slotmesh.ErrTryAgain, "it is marked IMPORTING still")
		require.Equal(t, "k1", h.answer(h.b, true, false, "k1"), "and keeps what it has")
		require.NoError(t, h.b.Admin().SetSlotStable(ctx, h.slot))
		require.Equal(t, "nil", h.answer(h.a, false, false, "k1"))
		require.Equal(t, "MOVED A", h.answer(h.b, true, false, "k1"))
		h.mark()
		require.Equal(t, "k1", h.answer(h.b, true, false, "k1"), "the move goes on where it stopped")
		h.moveAll(0)
		require.NoError(t, h.b.Admin().SetSlots(ctx, h.slots(), h.b.ID()))
		require.Equal(t, "k1 k2", h.answer(h.b, false, false, "k1", "k2"))
	})
}

// To whom a slot belongs already, SETSLOT NODE ends MIGRATING where no key is
// left, as in Redis.
func TestSetSlotNodeOfTheOwnerItself(t *testing.T) {
	halfMoves(t, func(t *testing.T, h *halfMoved) {
		h.put(h.a, "k1")
		require.NoError(t, h.a.Admin().SetSlots(t.Context(), h.slots(), h.a.ID()))
		require.Equal(t, []slotmesh.SlotMark{{Slot: h.slot, Node: h.b.ID()}}, h.a.Table().Marks())
		require.NoError(t, h.a.FlushSlot(t.Context(), h.slot))
		require.NoError(t, h.a.Admin().SetSlots(t.Context(), h.slots(), h.a.ID()))
		require.Empty(t, h.a.Table().Marks())
		require.Equal(t, []slotmesh.SlotMark{{Slot: h.slot, Node: h.a.ID(), Importing: true}}, h.b.Table().Marks())
	})
}

// The owner dies half way: what has been moved is still there when the slot is
// given to the node that has it, whether it has been forgotten before or not.
func TestTheOwnerDiesHalfWay(t *testing.T) {
	for _, forget := range []bool{false, true} {
		halfMoves(t, func(t *testing.T, h *halfMoved) {
			h.put(h.a, "k1", "k2")
			require.NoError(t, h.move(h.tag+"k1"))
			ctx := t.Context()
			dead := h.a.ID()
			h.a.Close()
			eventually(t, 5*nt, "the owner has not failed", func() bool { return h.b.Status().Failed > 0 && h.c.Status().Failed > 0 })
			if forget {
				require.NoError(t, h.b.Admin().Forget(ctx, dead, true))
				eventually(t, 5*nt, "the mark is still there", func() bool { return len(h.b.Table().Marks()) == 0 })
			}
			require.NoError(t, h.c.Admin().SetSlots(ctx, h.slots(), h.b.ID()))
			require.Equal(t, "k1 nil", h.answer(h.b, false, false, "k1", "k2"))
			require.Empty(t, h.b.Table().Marks())
		})
	}
}

// What has been imported outlives the primary that has imported it: whoever takes its
// place has got it by the log, and serves it once the slot is its own. It is no old copy
// either, where the slot had been here before.
func TestWhatHasBeenImportedOutlivesItsPrimary(t *testing.T) {
	for _, wasHere := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			mem := transport.NewMemory()
			nodes := form(t, mem, 3, slotmesh.Config{NodeTimeout: nt})
			defer closeAll(nodes...)
			ctx := t.Context()
			d := joined(t, mem)
			defer d.Close()
			require.NoError(t, d.Admin().Replicate(ctx, nodes[1].ID()))
			require.NoError(t, d.Ready(ctx))
			key := keyAt(nodes[0])
			if wasHere {
				key = keyAt(nodes[1])
			}
			h := &halfMoved{t, nodes[0], nodes[1], nodes[2], "{" + key + "}", slotmesh.KeySlot(key)}
			if wasHere {
				h.put(h.b, "k1", "k0")
				require.NoError(t, h.b.Admin().MoveSlots(ctx, h.slots(), h.a.ID()))
				require.NoError(t, h.a.Client().Set(ctx, h.tag+"k1", []byte("old")))
				eventually(t, 2*nt, "the hand-over has no end", func() bool { return h.a.Admin().SetSlotMigrating(ctx, h.slot, h.b.ID()) == nil })
			}
			h.mark()
			h.put(h.a, "k1", "k2")
			for range 3 {
				items, _, err := h.a.ScanSlot(h.slot, 0, 10)
				require.NoError(t, err)
				for _, it := range items {
					require.NoError(t, h.move(it.Key))
				}
			}
			eventually(t, nt, "the replica has not got them", func() bool { return h.count(d) == h.count(h.b) && h.count(d) >= 2 })
			h.b.Close()
			eventually(t, 5*nt, "nobody has taken its place", func() bool { return d.Admin().SetSlotStable(ctx, h.slot) == nil })
			time.Sleep(5 * nt) // an old copy would have been dropped
			require.NoError(t, d.Admin().SetSlotImporting(ctx, h.slot, h.a.ID()))
			require.Equal(t, "k1 k2", h.answer(d, true, false, "k1", "k2"))
			require.NoError(t, d.Admin().SetSlotStable(ctx, h.slot))
			require.NoError(t, h.a.Admin().SetSlots(ctx, h.slots(), d.ID()))
			require.Equal(t, "k1 k2", h.answer(d, false, false, "k1", "k2"))
		})
	}
}

// An old copy, of a slot that has gone and comes back, never shows.
func TestWhatHasGoneDoesNotShowUnderImporting(t *testing.T) {
	halfMoves(t, func(t *testing.T, h *halfMoved) {
		ctx := t.Context()
		for _, n := range []slotmesh.Node{h.a, h.b} {
			require.NoError(t, n.Admin().SetSlotStable(ctx, h.slot))
		}
		h.put(h.a, "k1", "k2")
		require.NoError(t, h.a.Admin().MoveSlots(ctx, h.slots(), h.b.ID()))
		_, err := h.b.Client().Delete(ctx, h.tag+"k1")
		require.NoError(t, err)
		require.Positive(t, h.count(h.a), "the old copy has not been dropped yet")
		require.NoError(t, h.a.Admin().SetSlotImporting(ctx, h.slot, h.b.ID()))
		require.Equal(t, "nil", h.answer(h.a, true, false, "k1"))
		require.Equal(t, "OK", h.answer(h.a, true, true, "k3"))
		time.Sleep(3 * nt)
		require.Equal(t, "v", h.answer(h.a, true, false, "k3"), "what has been imported is not dropped")
		require.Equal(t, 1, h.count(h.a))
	})
}

func TestExpiredKeysOfMarkedSlotsAreSwept(t *testing.T) {
	halfMoves(t, func(t *testing.T, h *halfMoved) {
		for _, n := range []slotmesh.Node{h.a, h.b} {
			r := slotmesh.Request{Keys: []string{h.tag + "k"}, Asking: true, Anyway: true}
			require.NoError(t, n.Execute(t.Context(), r, func(tx *slotmesh.Tx) error {
				return tx.PutEntry(h.tag+"k", store.Entry{ExpireAt: tx.Now().Add(time.Second).UnixMilli()})
			}))
			require.Equal(t, 1, h.count(n))
		}
		time.Sleep(5 * time.Second)
		require.Zero(t, h.count(h.a))
		require.Zero(t, h.count(h.b))
	})
}

// Who watches a key at the importing node is told when that is not the place any
// more, and not when the slot comes.
func TestWatchOfAnImportingSlot(t *testing.T) {
	halfMoves(t, func(t *testing.T, h *halfMoved) {
		var told []string
		w := h.b.Watch(func(key string, gone bool) {
			told = append(told, fmt.Sprint(strings.TrimPrefix(key, h.tag), " ", gone))
		})
		defer w.Close()
		w.Add(h.tag + "k")
		h.put(h.b, "k")
		require.NoError(t, h.b.Admin().SetSlotStable(t.Context(), h.slot))
		require.Equal(t, []string{"k false", "k true"}, told)
		require.NoError(t, h.b.Admin().SetSlotImporting(t.Context(), h.slot, h.a.ID()))
		require.NoError(t, h.b.Admin().SetSlots(t.Context(), h.slots(), h.b.ID()))
		require.Len(t, told, 2)
		require.Equal(t, "k", h.answer(h.b, false, false, "k"))
	})
}

func TestAnImportingSlotIsFlushedWhereItIs(t *testing.T) {
	halfMoves(t, func(t *testing.T, h *halfMoved) {
		h.put(h.a, "k1")
		h.put(h.b, "k2")
		require.NoError(t, h.b.FlushSlot(t.Context(), h.slot))
		require.Zero(t, h.count(h.b))
		require.Equal(t, 1, h.count(h.a))
	})
}

// A group that has not formed moves slots by Redis's rules, marks included.
func TestMarksWithoutACluster(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mem := transport.NewMemory()
		var nodes []slotmesh.Node
		for _, addr := range []string{"a:1", "b:1"} {
			n, err := slotmesh.Start(t.Context(), slotmesh.Config{Addr: addr, Join: true, Transport: mem, NodeTimeout: nt})
			require.NoError(t, err)
			defer n.Close()
			nodes = append(nodes, n)
		}
		a, b := nodes[0], nodes[1]
		ctx := t.Context()
		var all, rest slotmesh.SlotSet
		all.AddRange(slotmesh.SlotRange{First: 0, Last: 16382})
		rest.Add(16383)
		require.NoError(t, a.Admin().AddSlots(ctx, all))
		require.NoError(t, b.Admin().Meet(ctx, "a:1"))
		eventually(t, 5*nt, "they have met", func() bool { return len(a.Table().Nodes()) == 2 && len(b.Table().Nodes()) == 2 })
		h := &halfMoved{t, a, b, b, "{foo}", slotmesh.KeySlot("foo")}
		h.mark()
		require.ErrorIs(t, a.Execute(ctx, slotmesh.Request{Keys: []string{h.tag}}, func(*slotmesh.Tx) error { return nil }), slotmesh.ErrClusterDown, "a slot has no owner")
		require.NoError(t, b.Admin().AddSlots(ctx, rest))
		// From here on the group forms; the marks hold before and after.
		var err error
		eventually(t, 5*nt, "nobody serves", func() bool {
			r := slotmesh.Request{Keys: []string{h.tag + "k1"}, Anyway: true}
			err = a.Execute(ctx, r, func(tx *slotmesh.Tx) error { return tx.Put(h.tag+"k1", []byte("k1")) })
			return err == nil
		})
		require.Equal(t, "k1", h.answer(a, false, false, "k1"))
		require.Equal(t, "ASK B", h.answer(a, false, false, "k2"))
		require.Equal(t, "OK", h.answer(b, true, true, "k2"))
		require.NoError(t, b.Ready(ctx))
		require.ErrorContains(t, a.Admin().SetSlots(ctx, h.slots(), b.ID()), "while I still hold keys")
		require.NoError(t, h.move(h.tag+"k1"))
		require.NoError(t, b.Admin().SetSlots(ctx, h.slots(), b.ID()))
		require.Equal(t, "k1 v", h.answer(b, false, false, "k1", "k2"))
	})
}

// Without a cluster a slot changes hands at once, and what was imported stays.
func TestASlotMovesKeyByKeyInAGroupThatHasNotFormed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mem := transport.NewMemory()
		ctx := t.Context()
		var nodes []slotmesh.Node
		for _, addr := range []string{"a:1", "b:1"} {
			n, err := slotmesh.Start(ctx, slotmesh.Config{Addr: addr, Join: true, Transport: mem, NodeTimeout: nt})
			require.NoError(t, err)
			defer n.Close()
			nodes = append(nodes, n)
		}
		a, b := nodes[0], nodes[1]
		require.NoError(t, b.Admin().Meet(ctx, "a:1"))
		eventually(t, 5*nt, "they have met", func() bool { return len(a.Table().Nodes()) == 2 && len(b.Table().Nodes()) == 2 })
		var all, last slotmesh.SlotSet
		all.AddRange(slotmesh.SlotRange{First: 0, Last: 16382})
		last.Add(16383)
		require.NoError(t, a.Admin().AddSlots(ctx, all))
		h := &halfMoved{t, a, b, b, "{foo}", slotmesh.KeySlot("foo")}
		h.mark()
		require.NoError(t, b.Admin().AddSlots(ctx, last))
		eventually(t, nt, "a does not serve", func() bool { return a.Status().OK && b.Status().OK }) // and forms 200 ms later
		h.put(a, "k1")
		require.ErrorContains(t, a.Admin().SetSlots(ctx, h.slots(), b.ID()), "while I still hold keys")
		require.NoError(t, h.move(h.tag+"k1"))
		require.Equal(t, "ASK B", h.answer(a, false, false, "k1"))
		require.NoError(t, b.Admin().SetSlots(ctx, h.slots(), b.ID()))
		require.Equal(t, "k1", h.answer(b, false, false, "k1"))
		eventually(t, nt, "a does not know", func() bool { return h.answer(a, false, false, "k1") == "MOVED B" })
		require.Empty(t, a.Table().Marks())
		require.Empty(t, b.Table().Marks())
		require.True(t, b.Status().Cluster.IsZero())
		require.NoError(t, b.Ready(ctx))
		require.Equal(t, "k1", h.answer(b, false, false, "k1"))
	})
}

// What is here of a slot that was released is the only copy. It waits for the operator
// who gives the slot an owner first and moves the keys then, as redis-cli --cluster fix
// does, however long that takes.
func TestWhatWasReleasedIsNotDropped(t *testing.T) {
	halfMoves(t, func(t *testing.T, h *halfMoved) {
		ctx := t.Context()
		for _, n := range []slotmesh.Node{h.a, h.b} {
			require.NoError(t, n.Admin().SetSlotStable(ctx, h.slot))
		}
		h.put(h.a, "k1", "k2")
		require.NoError(t, h.a.Admin().DelSlots(ctx, h.slots()))
		require.NoError(t, h.c.Admin().AddSlots(ctx, h.slots()))
		time.Sleep(10 * nt)
		require.Equal(t, 2, h.count(h.a))
		require.NoError(t, h.a.Admin().SetSlotImporting(ctx, h.slot, h.c.ID()))
		require.Equal(t, "k1 k2", h.answer(h.a, true, false, "k1", "k2"))
	})
}

// The log has the marks of a shard: who leads it next goes on with them, whether it has
// been told of each or has copied everything, and the other end of the move follows.
func TestMarksGoWithTheShard(t *testing.T) {
	for _, row := range []struct {
		name   string
		copied bool // the replica comes when the marks are there already
		target bool // whose primary dies: that of the importing shard, not the owner
	}{
		{"the owner dies", false, false},
		{"the owner dies, its replica has copied everything", true, false},
		{"the target dies", false, true},
		{"the target dies, its replica has copied everything", true, true},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, mem := t.Context(), transport.NewMemory()
				nodes := form(t, mem, 3, slotmesh.Config{NodeTimeout: nt})
				defer closeAll(nodes...)
				d := joined(t, mem)
				defer d.Close()
				key := keyAt(nodes[0])
				h := &halfMoved{t, nodes[0], nodes[1], nodes[2], "{" + key + "}", slotmesh.KeySlot(key)}
				dies := &h.a
				if row.target {
					dies = &h.b
				}
				follow := func() {
					require.NoError(t, d.Admin().Replicate(ctx, (*dies).ID()))
					require.NoError(t, d.Ready(ctx))
				}
				if !row.copied {
					follow()
				}
				h.put(h.a, "k1", "k2")
				h.mark()
				require.NoError(t, h.move(h.tag+"k1"))
				if row.copied {
					follow()
				}
				eventually(t, nt, "the replica has not got it", func() bool { return h.count(d) == h.count(*dies) })
				require.Empty(t, d.Table().Marks(), "they are its primary's")
				eventually(t, nt, "the replica is not in sync", func() bool {
					r := (*dies).Status().Replication
					return len(r.InSync) == 2 && d.Ready(ctx) == nil
				})
				require.NoError(t, (*dies).Close())
				eventually(t, 5*nt, "nobody has taken its place", func() bool { return len(d.Table().Marks()) == 1 && d.Status().OK })
				*dies = d
				if row.target {
					eventually(t, nt, "the owner sends clients to the dead node", func() bool { return h.answer(h.a, false, false, "k1") == "ASK B" })
				}
				require.Equal(t, "ASK B", h.answer(h.a, false, false, "k1"))
				require.Equal(t, "ASK B", h.answer(h.a, false, true, "k3"), "a new one")
				require.Equal(t, "k2", h.answer(h.a, false, false, "k2"))
				require.Equal(t, "k1", h.answer(h.b, true, false, "k1"))
				require.Equal(t, "OK", h.answer(h.b, true, true, "k3"))
				require.Equal(t, "MOVED A", h.answer(h.b, false, false, "k1"))
				h.moveAll(0)
				require.NoError(t, h.c.Admin().SetSlots(ctx, h.slots(), h.b.ID()))
				require.Equal(t, "k1 k2 v", h.answer(h.b, false, false, "k1", "k2", "k3"))
				require.Empty(t, h.a.Table().Marks())
				require.Empty(t, h.b.Table().Marks())
			})
		})
	}
}

// A mark that has been taken off is none for the successor.
func TestAMarkThatIsTakenOffDoesNotComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, mem := t.Context(), transport.NewMemory()
		nodes := form(t, mem, 3, slotmesh.Config{NodeTimeout: nt})
		defer closeAll(nodes...)
		d := joined(t, mem)
		defer d.Close()
		require.NoError(t, d.Admin().Replicate(ctx, nodes[0].ID()))
		require.NoError(t, d.Ready(ctx))
		key := keyAt(nodes[0])
		h := &halfMoved{t, nodes[0], nodes[1], nodes[2], "{" + key + "}", slotmesh.KeySlot(key)}
		h.mark()
		require.NoError(t, h.a.Admin().SetSlotStable(ctx, h.slot))
		h.put(h.a, "k1")
		eventually(t, nt, "the replica has not got it", func() bool { return h.count(d) == 1 && len(h.a.Status().Replication.InSync) == 2 })
		require.NoError(t, h.a.Close())
		eventually(t, 5*nt, "nobody has taken its place", func() bool {
			owner, ok := d.Table().Owner(h.slot)
			return ok && owner.Self && d.Status().OK
		})
		require.Empty(t, d.Table().Marks())
		require.Equal(t, "nil", h.answer(d, false, false, "k2"))
	})
}

// What an earlier mark has brought, and IMPORTING shows again, is not dropped when the slot
// comes, though nothing has been written since and that mark has been taken off, too.
func TestWhatImportingShowsStays(t *testing.T) {
	halfMoves(t, func(t *testing.T, h *halfMoved) {
		ctx := t.Context()
		h.put(h.a, "k1")
		require.NoError(t, h.move(h.tag+"k1"))
		for _, n := range []slotmesh.Node{h.a, h.b} {
			require.NoError(t, n.Admin().SetSlotStable(ctx, h.slot))
		}
		require.NoError(t, h.a.Admin().MoveSlots(ctx, h.slots(), h.c.ID()))
		require.NoError(t, h.b.Admin().SetSlotImporting(ctx, h.slot, h.c.ID()))
		require.Equal(t, "k1", h.answer(h.b, true, false, "k1"))
		require.NoError(t, h.b.Admin().SetSlotStable(ctx, h.slot))
		require.NoError(t, h.b.Admin().SetSlots(ctx, h.slots(), h.b.ID()))
		require.Equal(t, "k1", h.answer(h.b, false, false, "k1"))
	})
}

// redis-cli --cluster fix may make the importing node the owner by DELSLOTS and ADDSLOTS: what
// it has imported stays, and so it does where another has taken the importing node's place.
func TestWhatHasBeenImportedStaysThoughNobodyHadTheSlot(t *testing.T) {
	for _, copied := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			ctx, mem := t.Context(), transport.NewMemory()
			nodes := form(t, mem, 3, slotmesh.Config{NodeTimeout: nt})
			defer closeAll(nodes...)
			d := joined(t, mem)
			defer d.Close()
			key := keyAt(nodes[0])
			h := &halfMoved{t, nodes[0], nodes[1], nodes[2], "{" + key + "}", slotmesh.KeySlot(key)}
			follow := func() {
				require.NoError(t, d.Admin().Replicate(ctx, h.b.ID()))
				require.NoError(t, d.Ready(ctx))
			}
			if !copied {
				follow()
			}
			h.mark()
			h.put(h.a, "k1", "k2")
			require.NoError(t, h.move(h.tag+"k1"))
			require.NoError(t, h.b.Admin().SetSlotStable(ctx, h.slot))
			if copied {
				follow()
			}
			eventually(t, nt, "the replica has not got it", func() bool { return h.count(d) == 1 && len(h.b.Status().Replication.InSync) == 2 })
			require.NoError(t, h.b.Close())
			eventually(t, 5*nt, "nobody has taken its place", func() bool { return d.Admin().SetSlotStable(ctx, h.slot) == nil && d.Status().OK })
			require.NoError(t, h.c.Admin().DelSlots(ctx, h.slots()))
			require.NoError(t, d.Admin().AddSlots(ctx, h.slots()))
			require.Equal(t, "k1", h.answer(d, false, false, "k1"))
			time.Sleep(5 * nt)
			require.Equal(t, 1, h.count(h.a), "what is left waits for the operator")
		})
	}
}
