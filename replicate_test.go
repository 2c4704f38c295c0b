package slotmesh

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slotmesh/slotmesh/internal/racing"
	"github.com/stretchr/testify/require"

	"github.com/slotmesh/slotmesh/internal/loopback"
	"github.com/slotmesh/slotmesh/store"
	"github.com/slotmesh/slotmesh/transport"
)

// formShard starts a cluster of one primary and its replicas, at a:1, b:1 ... The
// primary is returned first.
func formShard(t *testing.T, count int, cfg Config) []*node {
	t.Helper()
	nodes, _ := formShardOn(t, count, cfg)
	return nodes
}

// formShardOn is formShard on a network whose faults are the caller's to make.
func formShardOn(t *testing.T, count int, cfg Config) ([]*node, *transport.Faults) {
	t.Helper()
	f := newFaults(t)
	var seeds []string
	for i := range count {
		seeds = append(seeds, fmt.Sprintf("%c:1", 'a'+i))
	}
	var nodes []*node
	for i := range count {
		c := cfg
		c.NodeTimeout = driverNT
		c.Addr, c.Transport, c.Seeds, c.Primaries, c.Replicas = seeds[i], f.Node(seeds[i][:1]), seeds, 1, count-1
		nodes = append(nodes, startNode(t, c))
	}
	for _, n := range nodes {
		isReady(t, n)
	}
	for i, n := range nodes {
		if own := n.Table().Slots(n.ID()); !own.Empty() {
			nodes[0], nodes[i] = nodes[i], nodes[0]
		}
	}
	require.Len(t, nodes[0].Status().Replication.InSync, count)
	return nodes, f
}

// leaderOf is the node of a shard that serves, once there is one.
func leaderOf(t *testing.T, within time.Duration, nodes ...*node) *node {
	t.Helper()
	var leader *node
	until(t, within, "a primary that serves", func() bool {
		for _, n := range nodes {
			r := Request{Keys: []string{"x"}, ReadOnly: true}
			if n.Execute(t.Context(), r, func(*Tx) error { return nil }) == nil {
				leader = n
				return true
			}
		}
		return false
	})
	return leader
}

func TestAReplicaTakesOverWithAllThatItsPrimaryHad(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		nodes := formShard(t, 3, Config{})
		ctx := t.Context()
		for i := range 500 {
			require.NoError(t, nodes[0].Client().Set(ctx, fmt.Sprint("key", i), []byte(fmt.Sprint(i))))
		}
		level(t, driverNT, nodes...)
		stores := []uint64{nodes[0].repl.facts.Load().store, nodes[1].repl.facts.Load().store, nodes[2].repl.facts.Load().store}
		died, before := time.Now(), nodes[0].repl.position().Offset
		nodes[0].Close()
		p := leaderOf(t, 3*driverNT, nodes[1:]...)
		t.Logf("served again after %v", time.Since(died))
		require.Equal(t, before, p.repl.position().Offset, "of its slots there is nothing new to say")
		for i := range 500 {
			v, err := p.Client().Get(ctx, fmt.Sprint("key", i))
			require.NoError(t, err)
			require.Equal(t, fmt.Sprint(i), string(v))
		}
		level(t, driverNT, nodes[1:]...)
		for i, n := range nodes[1:] {
			require.Equal(t, stores[1+i], n.repl.facts.Load().store, "it has copied everything anew")
		}
	})
}

func TestStrictWritesSurviveTheirPrimary(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		nodes := formShard(t, 3, Config{AckReplicas: 1})
		acked := map[string]int{}
		var mu sync.Mutex
		var wg sync.WaitGroup
		ctx, stop := context.WithCancel(t.Context())
		for i := range racing.Fewer(16, 6) {
			wg.Go(func() {
				key := fmt.Sprint("key", i)
				for v := 1; ctx.Err() == nil; v++ {
					err := nodes[1+i%2].Client().Set(ctx, key, []byte(fmt.Sprint(v)))
					if err == nil {
						mu.Lock()
						acked[key] = v
						mu.Unlock()
					}
					time.Sleep(time.Millisecond)
				}
			})
		}
		time.Sleep(time.Second)
		nodes[0].Close()
		p := leaderOf(t, 3*driverNT, nodes[1:]...)
		time.Sleep(time.Second)
		stop()
		wg.Wait()
		for key, v := range acked {
			require.Greater(t, v, 100)
			got, err := p.Client().Get(t.Context(), key)
			require.NoError(t, err)
			var n int
			_, err = fmt.Sscan(string(got), &n)
			require.NoError(t, err)
			require.GreaterOrEqual(t, n, v, key)
		}
	})
}

func TestAPlainFailoverLosesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		nodes := formShard(t, 2, Config{})
		level(t, driverNT, nodes...)
		stores := []uint64{nodes[0].repl.facts.Load().store, nodes[1].repl.facts.Load().store}
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		defer wg.Wait()
		defer stop()
		for i := range 8 { // keys that expire and come again
			wg.Go(func() {
				for j := 0; ctx.Err() == nil; j++ {
					_ = nodes[i%2].Client().SetFor(ctx, fmt.Sprint("short", j%20), []byte("v"), time.Duration(1+j%30)*time.Millisecond)
					time.Sleep(time.Millisecond)
				}
			})
		}
		counts := make([]int64, 16)
		for i := range counts {
			wg.Go(func() {
				for ctx.Err() == nil {
					v, err := nodes[i%2].Client().Incr(t.Context(), fmt.Sprint("key", i), 1)
					if err != nil {
						t.Errorf("key%d: %v", i, err)
						return
					}
					counts[i]++
					if v != counts[i] {
						t.Errorf("key%d is %d, expected %d", i, v, counts[i])
						return
					}
					time.Sleep(time.Millisecond)
				}
			})
		}
		time.Sleep(100 * time.Millisecond)
		for i := range 4 {
			began := time.Now()
			until(t, 2*driverNT, "the failover", func() bool {
				err := nodes[1-i%2].Admin().Failover(ctx, FailoverPlain)
				if err != nil {
					t.Logf("failover %d after %v: %v", i, time.Since(began), err)
				}
				return err == nil
			})
			t.Logf("failover %d took %v", i, time.Since(began))
		}
		stop()
		wg.Wait()
		level(t, driverNT, nodes...)
		for i, n := range nodes {
			require.Equal(t, stores[i], n.repl.facts.Load().store, "it has copied everything anew")
		}
	})
}

// Whose memory is gone is another member than it was: it leads nobody, and what the
// others have stays. O65: in valkey-io/valkey#579 and redis/redis#6434 a primary that
// was back before anybody had missed it was the primary still, and its replicas copied
// nothing from it, wiping what they had.
func TestAPrimaryThatComesBackEmptyWipesNobody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, dir := newFaults(t), t.TempDir()
		seeds := []string{"a:1", "b:1", "c:1"}
		start := func(i int) *node {
			return startNode(t, Config{Addr: seeds[i], Seeds: seeds, Primaries: 1, Replicas: 2, AckReplicas: 1, NodeTimeout: driverNT,
				Transport: f.Node(seeds[i][:1]), Dir: fmt.Sprint(dir, "/", i)})
		}
		nodes := []*node{start(0), start(1), start(2)}
		p := 0
		for i, n := range nodes {
			isReady(t, n)
			if own := n.Table().Slots(n.ID()); !own.Empty() {
				p = i
			}
		}
		for i := range 300 {
			require.NoError(t, nodes[p].Client().Set(t.Context(), fmt.Sprint("key", i), []byte(fmt.Sprint(i))))
		}
		nodes[p].Close()
		nodes[p] = start(p)
		for _, n := range nodes {
			isReady(t, n)
		}
		leader := leaderOf(t, driverNT, nodes...)
		require.NotEqual(t, nodes[p].ID(), leader.ID())
		for i := range 300 {
			v, err := nodes[p].Client().Get(t.Context(), fmt.Sprint("key", i))
			require.NoError(t, err)
			require.Equal(t, fmt.Sprint(i), string(v))
		}
		level(t, driverNT, nodes...)
	})
}

// Whatever has an acknowledged write when its node changes by itself is not the
// primary's copy any more.
func TestAChangeThatTheLogDoesNotKnowMakesAReplicaCopyAnew(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		nodes := formShard(t, 2, Config{})
		a, b := nodes[0], nodes[1]
		require.NoError(t, put(a, "x", "1"))
		level(t, driverNT, a, b)
		inc := b.repl.facts.Load().store
		c := b.engine.makeCell(7)
		c.mu.Lock()
		require.NoError(t, b.cfg.Store.Apply(7, []store.Op{{Code: store.OpPut, Key: "stray"}}))
		b.repl.effects(7, c, nil)
		c.mu.Unlock()
		require.NoError(t, put(a, "x", "2"))
		until(t, driverNT, "a new copy", func() bool { return b.repl.facts.Load().store != inc && b.Status().Replication.Link == LinkUp })
		level(t, driverNT, a, b)
	})
}

func freeAddrs(t *testing.T, count int) []string {
	t.Helper()
	addrs, err := loopback.FreeAddrs(count)
	require.NoError(t, err)
	return addrs
}

// What a bubble cannot show: nodes that are really apart, over TCP. On a machine
// with much else to do a write may take longer than a NodeTimeout: it is repeated.
func TestReplicasOverTCP(t *testing.T) {
	seeds := freeAddrs(t, 3)
	var nodes []*node
	for _, at := range seeds {
		nodes = append(nodes, startNode(t, Config{Addr: at, Seeds: seeds, Primaries: 1, Replicas: 2, AckReplicas: 1, NodeTimeout: 2 * time.Second}))
	}
	for i, n := range nodes {
		isReady(t, n)
		if own := n.Table().Slots(n.ID()); !own.Empty() {
			nodes[0], nodes[i] = nodes[i], nodes[0]
		}
	}
	c := nodes[1].Client()
	set := func(key, value string) {
		until(t, time.Minute, "a write", func() bool { return c.Set(t.Context(), key, []byte(value)) == nil })
	}
	big := make([]byte, 3<<20)
	set("big", string(big))
	for i := range 200 {
		set(fmt.Sprint("key", i), fmt.Sprint(i))
	}
	nodes[0].Close()
	p := leaderOf(t, time.Minute, nodes[1:]...)
	get := func(key string) (v []byte) {
		until(t, time.Minute, "a read", func() bool {
			var err error
			v, err = p.Client().Get(t.Context(), key)
			require.NotErrorIs(t, err, ErrNotFound)
			return err == nil
		})
		return v
	}
	for i := range 200 {
		require.Equal(t, fmt.Sprint(i), string(get(fmt.Sprint("key", i))))
	}
	require.Len(t, get("big"), len(big))
}
