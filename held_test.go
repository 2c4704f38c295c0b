package slotmesh

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/slotmesh/slotmesh/transport"
	"github.com/stretchr/testify/require"
)

// What the members in sync of a shard hold before its primary goes on: a stage before it
// says STAGED, what a winner has inherited before it shows it, and stages with a copy of
// everything. The core asks for it (job.go, replica.go), the drivers do it, and the
// simulator has drivers of its own: so these are tests of the real ones.

// holds is what the store of a node has under a key; false: nothing.
func holds(t *testing.T, n *node, key string) (string, bool) {
	t.Helper()
	slot := KeySlot(key)
	c := n.engine.makeCell(slot)
	c.mu.RLock()
	defer c.mu.RUnlock()
	e, found, err := n.cfg.Store.Get(uint16(slot), key, "")
	require.NoError(t, err)
	return string(e.Value), found
}

// giveAndTake forms two shards of two members each: who gives, who takes, and the replica
// of the latter, whose log comes late by less than would cost it its place.
func giveAndTake(t *testing.T) (giver, taker, replica *node) {
	t.Helper()
	f := newFaults(t)
	byID := map[NodeID]*node{}
	nodes := formNodes(t, f, 4, Config{Primaries: 2, Replicas: 1})
	for _, n := range nodes {
		byID[n.ID()] = n
	}
	until(t, 4*driverNT, "two shards of two", func() bool {
		x := nodes[0].Table().Shards()
		if len(x) != 2 || len(x[0].Replicas) != 1 || len(x[1].Replicas) != 1 {
			return false
		}
		giver, taker, replica = byID[x[0].Primary], byID[x[1].Primary], byID[x[1].Replicas[0]]
		return len(giver.Status().Replication.InSync) == 2 && len(taker.Status().Replication.InSync) == 2
	})
	f.Set(taker.addr[:1], replica.addr[:1], transport.Link{Delay: driverNT / 20})
	return giver, taker, replica
}

// requireStaged fails where a replica in sync lacks a key that has moved to its shard:
// it would win the shard if the taker died now, and the giver drops its copy.
func requireStaged(t *testing.T, taker, replica *node, key, value string) {
	t.Helper()
	require.Len(t, taker.Status().Replication.InSync, 2)
	got, found := holds(t, replica, key)
	require.True(t, found, "the slot has moved, and a member in sync lacks its data")
	require.Equal(t, value, got)
}

// R5, T9: the taker says that it holds a stage once every member in sync has it, and
// the rest of the hand-over waits for its word.
func TestStagedIsSaidOnceTheMembersInSyncHaveTheStage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		giver, taker, replica := giveAndTake(t)
		key := keyOf(giver, 0)
		require.NoError(t, put(giver, key, "v"))
		require.NoError(t, giver.Admin().MoveSlots(t.Context(), slotOf(key), taker.ID()))
		requireStaged(t, taker, replica, key, "v")
	})
}

// The same where the data has come before, key by key.
func TestStagedInPlaceIsSaidOnceTheMembersInSyncHaveWhatHasCome(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		giver, taker, replica := giveAndTake(t)
		key := keyOf(giver, 0)
		require.NoError(t, taker.Admin().SetSlotImporting(t.Context(), KeySlot(key), giver.ID()))
		require.NoError(t, giver.Admin().SetSlotMigrating(t.Context(), KeySlot(key), taker.ID()))
		require.NoError(t, importKey(t.Context(), taker, key, "v"))
		_, found := holds(t, replica, key)
		require.False(t, found, "the way to the replica is no slow one")
		require.NoError(t, giver.Admin().SetSlots(t.Context(), slotOf(key), taker.ID()))
		requireStaged(t, taker, replica, key, "v")
	})
}

// importKey writes a key to a node that imports its slot, as RESTORE-ASKING does.
func importKey(ctx context.Context, n *node, key, value string) error {
	r := Request{Keys: []string{key}, Asking: true}
	return n.Execute(ctx, r, func(tx *Tx) error { return tx.Put(key, []byte(value)) })
}

// R6: what a winner has inherited it shows to nobody before every member in sync has
// it: one of those that lack it may be the next to win, and then it would be gone again.
func TestAWinnerShowsWhatItHasInheritedOnceTheMembersInSyncHaveIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		nodes, f := formShardOn(t, 3, Config{AckReplicas: 1})
		a, b, c := nodes[0], nodes[1], nodes[2]
		require.NoError(t, put(a, "x", "1"))
		level(t, driverNT, nodes...)
		f.Set(a.addr[:1], c.addr[:1], transport.Link{Delay: driverNT / 5})
		written := make(chan struct{})
		go func() {
			defer close(written)
			_ = put(a, "x", "2") // nobody knows of it: its primary is cut off
		}()
		defer func() { <-written }()
		until(t, driverNT/10, "it is at one of two", func() bool { v, _ := holds(t, b, "x"); return v == "2" })
		f.Partition([]string{a.addr[:1]}, []string{b.addr[:1], c.addr[:1]})
		f.Set(b.addr[:1], c.addr[:1], transport.Link{Delay: driverNT / 20}) // the log comes late, and by less than would cost it its place
		until(t, 3*driverNT, "who has more has won, and shows it", func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), driverNT)
			defer cancel()
			v, err := get(ctx, b, "x")
			return err == nil && v == "2"
		})
		require.ElementsMatch(t, []NodeID{b.ID(), c.ID()}, b.Status().Replication.InSync)
		v, _ := holds(t, c, "x")
		require.Equal(t, "2", v, "it is shown, and a member in sync lacks it")
	})
}

// get reads a key at a node that has to serve it itself.
func get(ctx context.Context, n *node, key string) (v string, err error) {
	err = n.Execute(ctx, Request{Keys: []string{key}, ReadOnly: true}, func(tx *Tx) error {
		b, found, err := tx.Get(key)
		if err == nil && !found {
			err = ErrNotFound
		}
		v = string(b)
		return err
	})
	return v, err
}

// R5: who copies everything copies stages, too. A replica that came after a key had been
// imported leads when its primary has gone, and knows that the key is no old copy.
func TestACopyOfEverythingHasWhatIsStaged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFaults(t)
		nodes := formNodes(t, f, 3, Config{})
		a, b := nodes[0], nodes[1]
		key := keyOf(a, 0)
		slot := KeySlot(key)
		require.NoError(t, b.Admin().SetSlotImporting(t.Context(), slot, a.ID()))
		require.NoError(t, a.Admin().SetSlotMigrating(t.Context(), slot, b.ID()))
		require.NoError(t, importKey(t.Context(), b, key, "v"))
		d := startNode(t, Config{Addr: "d:1", NodeTimeout: driverNT, Transport: f.Node("d"), Join: true, Seeds: []string{"a:1"}})
		isReady(t, d)
		require.NoError(t, d.Admin().Replicate(t.Context(), b.ID()))
		isReady(t, d)
		level(t, driverNT, b, d)
		require.NotZero(t, d.kept.at(cellStaged, slot))
		b.Close()
		until(t, 5*driverNT, "its replica leads", func() bool { return d.Admin().SetSlotImporting(t.Context(), slot, a.ID()) == nil })
		v, err := "", error(nil)
		until(t, driverNT, "an answer", func() bool {
			err = d.Execute(t.Context(), Request{Keys: []string{key}, ReadOnly: true, Asking: true}, func(tx *Tx) error {
				b, _, err := tx.Get(key)
				v = string(b)
				return err
			})
			return !errors.Is(err, ErrTryAgain)
		})
		require.NoError(t, err)
		require.Equal(t, "v", v, "what was imported is taken for an old copy")
	})
}
