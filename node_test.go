package slotmesh_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slotmesh/slotmesh"
	"github.com/slotmesh/slotmesh/transport"
	"github.com/stretchr/testify/require"
)

func TestANodeAloneServesEveryKey(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		n, err := slotmesh.Start(ctx, slotmesh.Config{})
		require.NoError(t, err)
		defer n.Close()
		require.NoError(t, n.Ready(ctx))
		c := n.Client()
		require.NoError(t, c.Set(ctx, "user:1000", []byte("alice")))
		v, err := c.Get(ctx, "user:1000")
		require.NoError(t, err)
		require.Equal(t, "alice", string(v))
		_, err = c.Get(ctx, "nobody")
		require.ErrorIs(t, err, slotmesh.ErrNotFound)
		sum, err := c.Incr(ctx, "n", 3)
		require.NoError(t, err)
		require.EqualValues(t, 3, sum)
		require.NoError(t, n.Close())
		_, err = c.Get(ctx, "user:1000")
		require.ErrorIs(t, err, slotmesh.ErrClosed)
	})
}

// form starts n nodes that form a cluster by number.
func form(t *testing.T, mem slotmesh.Transport, n int, cfg slotmesh.Config) []slotmesh.Node {
	t.Helper()
	var seeds []string
	for i := range n {
		seeds = append(seeds, fmt.Sprintf("seed-%d:1", i))
	}
	var nodes []slotmesh.Node
	for i := range n {
		c := cfg
		c.Addr, c.Transport, c.Seeds, c.Primaries = seeds[i], mem, seeds, n
		node, err := slotmesh.Start(t.Context(), c)
		require.NoError(t, err)
		t.Cleanup(func() { node.Close() })
		nodes = append(nodes, node)
	}
	for _, node := range nodes {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		require.NoError(t, node.Ready(ctx))
		cancel()
	}
	return nodes
}

func TestThreeNodesFormAndServeEveryKeyFromAnywhere(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		nodes := form(t, transport.NewMemory(), 3, slotmesh.Config{NodeTimeout: 2 * time.Second})
		ctx := t.Context()
		for i := range 200 {
			key := fmt.Sprint("key", i)
			require.NoError(t, nodes[i%3].Client().Set(ctx, key, []byte(key)))
			v, err := nodes[(i+1)%3].Client().Get(ctx, key)
			require.NoError(t, err)
			require.Equal(t, key, string(v))
		}
		for _, n := range nodes {
			n.Close()
		}
	})
}

func TestSlotsMoveWhileTheyAreUsed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		nodes := form(t, transport.NewMemory(), 3, slotmesh.Config{NodeTimeout: 2 * time.Second})
		ctx := t.Context()
		for i := range 500 {
			_, err := nodes[0].Client().Incr(ctx, fmt.Sprint("key", i), 1)
			require.NoError(t, err)
		}
		slots := nodes[0].Table().Slots(nodes[0].ID())
		moved := make(chan error, 1)
		go func() { moved <- nodes[1].Admin().MoveSlots(ctx, slots, nodes[2].ID()) }()
		for i := range 500 {
			_, err := nodes[i%3].Client().Incr(ctx, fmt.Sprint("key", i), 1)
			require.NoError(t, err)
		}
		require.NoError(t, <-moved)
		for i := range 500 {
			v, err := nodes[1].Client().Get(ctx, fmt.Sprint("key", i))
			require.NoError(t, err)
			require.Equal(t, "2", string(v))
		}
		left := nodes[0].Table().Slots(nodes[0].ID())
		require.True(t, left.Empty())
		for _, n := range nodes {
			n.Close()
		}
	})
}

func TestExecuteSaysWhereASlotIsServed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		nodes := form(t, transport.NewMemory(), 2, slotmesh.Config{NodeTimeout: time.Second})
		owner, _ := nodes[0].Table().Owner(slotmesh.KeySlot("foo"))
		for _, n := range nodes {
			err := n.Execute(t.Context(), slotmesh.Request{Keys: []string{"foo"}}, func(tx *slotmesh.Tx) error { return tx.Put("foo", []byte("bar")) })
			if n.ID() == owner.ID {
				require.NoError(t, err)
				continue
			}
			var moved *slotmesh.MovedError
			require.True(t, errors.As(err, &moved))
			require.Equal(t, owner.ID, moved.Node)
		}
		for _, n := range nodes {
			n.Close()
		}
	})
}
