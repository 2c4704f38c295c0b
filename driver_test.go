package slotmesh

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/slotmesh/slotmesh/transport"
	"github.com/stretchr/testify/require"
)

// What tests of the drivers share: nodes whose insides can be looked at.

const driverNT = 2 * time.Second

// formNodes starts nodes at a:1, b:1 ... that form a cluster by number, each on
// its side of the network: "a", "b" ... They end with the test.
func formNodes(t *testing.T, faults *transport.Faults, count int, cfg Config) []*node {
	t.Helper()
	var seeds []string
	for i := range count {
		seeds = append(seeds, fmt.Sprintf("%c:1", 'a'+i))
	}
	var nodes []*node
	for i := range count {
		c := cfg
		if c.NodeTimeout == 0 {
			c.NodeTimeout = driverNT
		}
		c.Addr, c.Transport, c.Seeds, c.Primaries = seeds[i], faults.Node(seeds[i][:1]), seeds, count
		nodes = append(nodes, startNode(t, c))
	}
	for _, n := range nodes {
		isReady(t, n)
	}
	return nodes
}

func startNode(t *testing.T, cfg Config) *node {
	t.Helper()
	n, err := Start(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { n.Close() })
	return n.(*node)
}

func isReady(t *testing.T, n *node) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.NoError(t, n.Ready(ctx))
}

// newFaults is a network of its own that ends with the test.
func newFaults(t *testing.T) *transport.Faults {
	f := transport.NewFaults(transport.NewMemory(), 1)
	t.Cleanup(func() { f.Close() })
	return f
}

// keyOf returns the i-th key whose slot a node owns.
func keyOf(n *node, i int) string {
	for j := 0; j < 1<<20; j++ {
		k := fmt.Sprint("k", j)
		if o, ok := n.Table().Owner(KeySlot(k)); ok && o.ID == n.ID() {
			if i--; i < 0 {
				return k
			}
		}
	}
	panic("the node owns no slot")
}

func slotOf(key string) SlotSet { return oneSlotSet(KeySlot(key)) }

// until waits for a condition, as time goes by.
func until(t *testing.T, within time.Duration, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(within); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", within, what)
		}
	}
}

// ask looks at the core of a node.
func ask[T any](t *testing.T, n *node, f func(s *state) T) T {
	t.Helper()
	answer := make(chan T, 1)
	require.NoError(t, n.post(t.Context(), func(s *state, now time.Duration) output {
		s.begin(now)
		answer <- f(s)
		return s.end()
	}))
	return <-answer
}
