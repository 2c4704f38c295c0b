package slotmesh

import (
	"context"
	"fmt"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slotmesh/slotmesh/store"
	"github.com/slotmesh/slotmesh/transport"
	"github.com/stretchr/testify/require"
)

// durableNodes starts three nodes with stores and folders that outlive them.
func durableNodes(t *testing.T, f *transport.Faults) (nodes []*node, cfgs []Config) {
	seeds := []string{"a:1", "b:1", "c:1"}
	dir := t.TempDir()
	for i, addr := range seeds {
		c := Config{Addr: addr, Seeds: seeds, Primaries: 3, Transport: f.Node(addr[:1]), NodeTimeout: driverNT, Dir: fmt.Sprint(dir, "/", i), Store: store.NewMemory()}
		nodes, cfgs = append(nodes, startNode(t, c)), append(cfgs, c)
	}
	for _, n := range nodes {
		isReady(t, n)
	}
	return nodes, cfgs
}

// Between the taker's word that it holds the data and its first answer for the
// slot nobody else may have it any more.
func TestATakerThatRestartsHoldsWhatItSaidItHolds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFaults(t)
		nodes, cfgs := durableNodes(t, f)
		key := keyOf(nodes[0], 0)
		require.NoError(t, nodes[0].Client().Set(t.Context(), key, []byte("precious")))
		f.SetBoth("a", "b", transport.Link{Delay: 50 * time.Millisecond})
		f.SetBoth("a", "c", transport.Link{Delay: 50 * time.Millisecond})
		moved := make(chan error, 1)
		go func() { moved <- nodes[0].Admin().MoveSlots(context.Background(), slotOf(key), nodes[1].ID()) }()
		until(t, driverNT, "MOVE is not out", func() bool { return moveIsOut(t, nodes[0]) })
		require.NoError(t, nodes[1].Close())
		nodes[1] = startNode(t, cfgs[1])
		require.NoError(t, <-moved)
		isReady(t, nodes[1])
		v, err := nodes[2].Client().Get(t.Context(), key)
		require.NoError(t, err)
		require.Equal(t, "precious", string(v))
		until(t, 5*driverNT, "the giver drops its copy", func() bool { return nodes[0].engine.keys(KeySlot(key)) == 0 })
		v, err = nodes[2].Client().Get(t.Context(), key)
		require.NoError(t, err)
		require.Equal(t, "precious", string(v))
	})
}

// What has come in part is no copy.
func TestATakerThatRestartsHalfWayHoldsNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFaults(t)
		nodes, cfgs := durableNodes(t, f)
		key := keyOf(nodes[0], 0)
		require.NoError(t, nodes[0].Client().Set(t.Context(), key, []byte("old")))
		f.SetBoth("a", "b", transport.Link{Delay: 100 * time.Millisecond})
		ctx, cancel := context.WithCancel(t.Context())
		moved := make(chan error, 1)
		go func() { moved <- nodes[0].Admin().MoveSlots(ctx, slotOf(key), nodes[1].ID()) }()
		until(t, driverNT, "the data has not come", func() bool {
			c := nodes[1].engine.makeCell(KeySlot(key))
			c.mu.RLock()
			defer c.mu.RUnlock()
			keys, err := cfgs[1].Store.Len(uint16(KeySlot(key)))
			return err == nil && keys > 0
		})
		require.NoError(t, nodes[1].Close())
		cancel()
		require.Error(t, <-moved)
		f.Heal()
		nodes[1] = startNode(t, cfgs[1])
		isReady(t, nodes[1])
		_, err := nodes[0].Client().Delete(t.Context(), key)
		require.NoError(t, err)
		require.NoError(t, nodes[0].Admin().SetSlots(t.Context(), slotOf(key), nodes[1].ID()), "it is empty")
		_, err = nodes[2].Client().Get(t.Context(), key)
		require.ErrorIs(t, err, ErrNotFound)
	})
}

func TestKeysOfASlotThatWasReleasedStayOverARestart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFaults(t)
		nodes, cfgs := durableNodes(t, f)
		n, key := nodes[0], keyOf(nodes[0], 0)
		slots := slotOf(key)
		require.NoError(t, n.Client().Set(t.Context(), key, []byte("v")))
		require.NoError(t, n.Admin().DelSlots(t.Context(), slots))
		time.Sleep(driverNT)
		restart := func() {
			require.NoError(t, n.Close())
			n = startNode(t, cfgs[0])
			until(t, 10*driverNT, "it does not lead", func() bool {
				return ask(t, n, func(s *state) bool { return s.lead != nil && s.lead.opened })
			})
		}
		restart()
		require.NoError(t, n.Admin().AddSlots(t.Context(), slots))
		v, err := nodes[1].Client().Get(t.Context(), key)
		require.NoError(t, err)
		require.Equal(t, "v", string(v))

		// With another owner between they are old.
		require.NoError(t, n.Admin().DelSlots(t.Context(), slots))
		restart()
		require.NoError(t, nodes[1].Admin().AddSlots(t.Context(), slots))
		require.NoError(t, n.Close())
		require.NoError(t, nodes[1].Admin().DelSlots(t.Context(), slots))
		n = startNode(t, cfgs[0])
		until(t, 10*driverNT, "it does not lead", func() bool {
			_, owned := n.Table().Owner(KeySlot(key))
			return !owned && ask(t, n, func(s *state) bool { return s.lead != nil && s.lead.opened })
		})
		require.NoError(t, n.Admin().AddSlots(t.Context(), slots))
		_, err = nodes[1].Client().Get(t.Context(), key)
		require.ErrorIs(t, err, ErrNotFound)
	})
}

func TestCopiesThatWereSavedBelongToACluster(t *testing.T) {
	cells := func(c ClusterID) []cell {
		k := newKept(&node{})
		k.n.who.Store(&sender{Cluster: c})
		k.set(cellStaged, 5, 7)
		k.set(cellOwned, 9000, 3)
		return k.takeDirty()
	}
	core := func(c ClusterID) *state {
		s := &state{cluster: c, table: newTable(0)}
		s.table.setSlot(9000, slotEntry{move: 4})
		return s
	}
	here, there := ClusterID{1}, ClusterID{2}
	for _, row := range []struct {
		of   ClusterID
		want bool
	}{{here, true}, {there, false}} {
		k := newKept(&node{})
		rest, err := k.load(append(cells(row.of), cell{key: cellKey{kind: cellNode}}))
		require.NoError(t, err)
		require.Equal(t, []cell{{key: cellKey{kind: cellNode}}}, rest, "the core's")
		k.begin(core(here))
		require.Equal(t, row.want, k.at(cellStaged, 5) == 7)
		require.Equal(t, row.want, k.back(9000, 5, false))
		if row.want {
			require.False(t, k.released.Contains(5))
			require.False(t, k.moves[cellOwned][9000]+2 == 6)
		}
	}
	_, err := newKept(&node{}).load([]cell{{cellKey{kind: cellStaged, page: 3}, []byte{0xc1}}})
	require.ErrorContains(t, err, "saved copies, page 3")
}

// A crash undoes a mark that is not on disk: until it is there, nobody is told
// anything that depends on it, and no key comes or goes under it.
func TestAMarkIsNotUsedBeforeItIsSaved(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		nodes, _ := durableNodes(t, newFaults(t))
		owner, target := nodes[0], nodes[1]
		key := keyOf(owner, 0)
		slot, absent := KeySlot(key), "{"+key+"}absent"
		require.NoError(t, owner.Client().Set(t.Context(), key, []byte("v")))
		try := func(n *node, r Request) error {
			_, err := n.engine.execute(t.Context(), new(Tx), &r, func(*Tx) error { return nil }, waitLock)
			return err
		}
		withoutDisk := func(n *node, f func()) {
			n.meta.mu.Lock()
			defer n.meta.mu.Unlock()
			f()
		}
		withoutDisk(target, func() {
			require.NoError(t, target.Admin().SetSlotImporting(t.Context(), slot, owner.ID()))
			require.Len(t, target.Table().Marks(), 1)
			require.ErrorIs(t, try(target, Request{Keys: []string{key}, Asking: true}), errWouldWait)
			var moved *MovedError
			require.ErrorAs(t, try(target, Request{Keys: []string{key}}), &moved, "without ASKING it is not needed")
		})
		withoutDisk(owner, func() {
			require.NoError(t, owner.Admin().SetSlotMigrating(t.Context(), slot, target.ID()))
			require.NoError(t, try(owner, Request{Keys: []string{key}}), "what is here is served")
			require.ErrorIs(t, try(owner, Request{Keys: []string{absent}}), errWouldWait)
			require.ErrorIs(t, try(owner, Request{Keys: []string{key}, Anyway: true}), errWouldWait, "MIGRATE")
		})
		nop := func(*Tx) error { return nil }
		var ask *AskError
		require.ErrorAs(t, owner.Execute(t.Context(), Request{Keys: []string{absent}}, nop), &ask)
		require.NoError(t, owner.Execute(t.Context(), Request{Keys: []string{key}, Anyway: true}, nop))
		require.NoError(t, target.Execute(t.Context(), Request{Keys: []string{key}, Asking: true}, nop))
	})
}

// crash ends a node as a crash would that leaves on disk what is there now, and starts
// it anew with the same store.
func crash(t *testing.T, n *node, cfg *Config) *node {
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, os.DirFS(cfg.Dir)))
	require.NoError(t, n.Close())
	cfg.Dir = dir
	return startNode(t, *cfg)
}

// From the first answer on a slot's keys are found again, however soon the crash
// comes.
func TestWhatIsAcknowledgedOfANewSlotOutlivesACrash(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := Config{Addr: "a:1", Transport: newFaults(t).Node("a"), NodeTimeout: driverNT, Dir: t.TempDir(), Store: store.NewMemory(), Seeds: []string{"a:1"}, Primaries: 1}
		n := startNode(t, cfg)
		require.Eventually(t, func() bool { return n.Client().Set(t.Context(), "x", []byte("v")) == nil }, 10*driverNT, time.Millisecond)
		n = crash(t, n, &cfg)
		isReady(t, n)
		v, err := n.Client().Get(t.Context(), "x")
		require.NoError(t, err)
		require.Equal(t, "v", string(v))
	})
}

// The same of a slot that comes key by key.
func TestWhatIsAcknowledgedOfASlotThatCameInPlaceOutlivesACrash(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		nodes, cfgs := durableNodes(t, newFaults(t))
		a, b := nodes[0], nodes[1]
		key := keyOf(a, 0)
		slot := KeySlot(key)
		require.NoError(t, b.Admin().SetSlotImporting(t.Context(), slot, a.ID()))
		require.NoError(t, a.Admin().SetSlotMigrating(t.Context(), slot, b.ID()))
		put := func(k, v string) error {
			return b.Execute(t.Context(), Request{Keys: []string{k}, Asking: true}, func(tx *Tx) error { return tx.Put(k, []byte(v)) })
		}
		require.NoError(t, put("{"+key+"}1", "under the mark"))
		require.NoError(t, b.Admin().SetSlots(t.Context(), slotOf(key), b.ID()))
		require.Eventually(t, func() bool { return b.Client().Set(t.Context(), "{"+key+"}2", []byte("then")) == nil }, driverNT, time.Millisecond)
		nodes[1] = crash(t, b, &cfgs[1])
		isReady(t, nodes[1])
		for k, want := range map[string]string{"{" + key + "}1": "under the mark", "{" + key + "}2": "then"} {
			v, err := nodes[2].Client().Get(t.Context(), k)
			require.NoError(t, err, k)
			require.Equal(t, want, string(v))
		}
	})
}
