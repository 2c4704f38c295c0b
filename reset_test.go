package slotmesh

import (
	"context"
	"errors"
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

func TestNoAcknowledgedWriteGoesWithAReset(t *testing.T) {
	done := 0
	for i := 0; i < 200 && done < racing.Fewer(10, 4); i++ {
		n := startNode(t, Config{})
		isReady(t, n)
		var there atomic.Bool // the last that was acknowledged has left a key
		var wg sync.WaitGroup
		began := make(chan struct{})
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			for i := 0; ; i++ {
				if n.Client().Set(ctx, "k", nil) != nil {
					return
				}
				there.Store(true)
				if _, err := n.Client().Delete(ctx, "k"); err != nil {
					return
				}
				there.Store(false)
				if i == 10 {
					close(began)
				}
			}
		})
		<-began
		err := n.Admin().Reset(t.Context(), false)
		switch {
		case err == nil:
			done++
			wg.Go(func() { n.Close() })
		case !errors.Is(err, ErrRefused):
			t.Error(err)
		}
		n.Close()
		wg.Wait()
		if err == nil && there.Load() {
			t.Fatal("a key that was acknowledged is gone")
		}
	}
	require.NotZero(t, done, "no reset fell between two writes")
}

// Real time, for who waits for a lock is not asleep in fake time; and so a node
// alone, whose lease no load can end.
func TestAResetWaitsForACommandAndTheNodeDoesNot(t *testing.T) {
	n := startNode(t, Config{})
	isReady(t, n)
	running, release := make(chan struct{}), make(chan struct{})
	ran := make(chan error, 1)
	go func() {
		ran <- n.Execute(t.Context(), Request{Keys: []string{"k"}}, func(tx *Tx) error {
			close(running)
			<-release
			return tx.Put("k", []byte("v"))
		})
	}()
	<-running
	reset := make(chan error, 1)
	go func() { reset <- n.Admin().Reset(context.Background(), false) }()
	until(t, time.Minute, "the reset has begun", func() bool { return ask(t, n, func(*state) bool { return n.paused != nil }) })
	began := ask(t, n, func(s *state) time.Duration { return s.now })
	ticked := func(s *state) bool { return s.wake > began+s.cfg.nodeTimeout/5 }
	until(t, time.Minute, "the node goes on ticking", func() bool { return ask(t, n, ticked) })
	require.ErrorIs(t, n.Admin().Reset(t.Context(), false), ErrTryAgain, "one at a time")
	require.Empty(t, reset, "it waits")
	close(release)
	require.NoError(t, <-ran)
	require.ErrorIs(t, <-reset, ErrRefused, "there is a key now")
	v, err := n.Client().Get(t.Context(), "k")
	require.NoError(t, err)
	require.Equal(t, "v", string(v))
}

func TestARequestWaitsWhileANodeIsBeingReset(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFaults(t)
		nodes := formNodes(t, f, 3, Config{})
		n, key := nodes[0], keyOf(nodes[0], 0)
		id := n.ID()
		f.SetBoth("a", "b", transport.Link{Delay: 20 * time.Millisecond})
		f.SetBoth("a", "c", transport.Link{Delay: 20 * time.Millisecond})
		over, cancel := context.WithCancel(t.Context())
		reset := make(chan error, 1)
		go func() { reset <- n.Admin().Reset(over, true) }()
		time.Sleep(time.Millisecond)
		set := make(chan error, 1)
		go func() {
			set <- n.Execute(t.Context(), Request{Keys: []string{key}}, func(tx *Tx) error { return tx.Put(key, nil) })
		}()
		cancel()
		var a *AdminError
		require.ErrorAs(t, <-reset, &a)
		require.Equal(t, Unknown, a.Outcome)
		require.ErrorIs(t, <-set, ErrClusterDown, "its slots are nobody's")
		until(t, 10*driverNT, "it has not been reset", func() bool { return n.ID() != id })
		require.False(t, n.holdsKeys())
		until(t, driverNT, "it is still paused", func() bool { return ask(t, n, func(*state) bool { return n.paused == nil }) })
	})
}

// What a node still has of slots that it has no more goes with what it was.
func TestAResetDropsOldCopies(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := store.NewMemory()
		n := startNode(t, Config{Addr: "a:1", Transport: transport.NewMemory(), Store: s, Join: true, NodeTimeout: driverNT})
		require.NoError(t, s.Apply(uint16(KeySlot("k")), []store.Op{{Code: store.OpPut, Key: "k"}}))
		require.ErrorIs(t, n.Admin().Reset(t.Context(), false), ErrRefused)
		ask(t, n, func(s *state) bool { // it leads its shard no more
			s.setShard(s.self.Shard, Epoch{Number: 9, Node: NodeID{1}}, pushNothing)
			return true
		})
		require.NoError(t, n.Admin().Reset(t.Context(), false))
		_, found, err := s.Get(uint16(KeySlot("k")), "k", "")
		require.NoError(t, err)
		require.False(t, found)
	})
}

// A node that has not formed gives up its slots to join a cluster, but not its
// keys.
func TestANodeWithKeysJoinsNoOtherCluster(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFaults(t)
		nodes := formNodes(t, f, 2, Config{})
		s := store.NewMemory()
		key := "k"
		require.NoError(t, s.Apply(uint16(KeySlot(key)), []store.Op{{Code: store.OpPut, Key: key}}))
		x := startNode(t, Config{Addr: "x:1", Transport: f.Node("x"), Join: true, NodeTimeout: driverNT, Store: s})
		require.NoError(t, x.Admin().AddSlots(t.Context(), slotOf(key)))
		time.Sleep(driverNT / 10)
		events := nodes[0].Events(t.Context(), 16)
		require.NoError(t, nodes[0].Admin().Meet(t.Context(), "x:1"))
		e := <-events
		for ; e.Kind != EventRefused; e = <-events {
		}
		require.Contains(t, e.Text, "keys")
		time.Sleep(driverNT)
		require.Len(t, x.Table().Nodes(), 1)
		owned := x.Table().Slots(x.ID())
		require.True(t, owned.Contains(KeySlot(key)))
		c := x.engine.makeCell(KeySlot(key))
		c.mu.Lock()
		require.NoError(t, s.Apply(uint16(KeySlot(key)), []store.Op{{Code: store.OpDeleteKey, Key: key}}))
		c.mu.Unlock()
		time.Sleep(driverNT / 10) // it looks at each tick
		require.NoError(t, nodes[0].Admin().Meet(t.Context(), "x:1"))
		until(t, 5*driverNT, "without keys it joins", func() bool { return len(x.Table().Nodes()) == 3 })
	})
}
