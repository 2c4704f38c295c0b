package slotmesh

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slotmesh/slotmesh/transport"
	"github.com/stretchr/testify/require"
)

// What tests of the drivers share: nodes whose insides can be looked at.

const driverNT = 2 * time.Second

// formNodes starts nodes at a:1, b:1 ... that form a cluster by number, each on
// its side of the network: "a", "b" ... All are primaries, where cfg names no number.
// They end with the test.
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
		c.Addr, c.Transport, c.Seeds, c.Primaries = seeds[i], faults.Node(seeds[i][:1]), seeds, cmp.Or(cfg.Primaries, count)
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
	for end := time.Now().Add(within); !cond(); time.Sleep(2 * time.Millisecond) {
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

// What a node says of itself is true without anybody asking for it.
func TestAStatusIsNeverOld(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFaults(t)
		nodes := formNodes(t, f, 3, Config{})
		require.NoError(t, nodes[1].Admin().Reset(t.Context(), false)) // it comes back by its seeds
		for _, n := range nodes {
			until(t, 10*driverNT, "its status", func() bool {
				s := n.Status()
				return s.Members == 3 && len(s.Voters) == 3 && strings.Contains(s.Unready, "slots have no owner")
			})
		}
		own := nodes[0].Table()
		var free SlotSet
		for slot := range Slot(NumSlots) {
			if _, ok := own.Owner(slot); !ok {
				free.Add(slot)
			}
		}
		require.NoError(t, nodes[1].Admin().AddSlots(t.Context(), free))
		for _, n := range nodes {
			until(t, driverNT, "its status", func() bool { return n.Status().Ready })
			isReady(t, n)
		}
		f.Partition([]string{"a"}, []string{"b", "c"})
		until(t, driverNT, "its status", func() bool { return !nodes[0].Status().Ready && !nodes[0].Status().OK })
		f.Heal()
		until(t, 2*driverNT, "its status", func() bool { return nodes[0].Status().Ready })
	})
}

// A node that can save nothing any more is dead to the others, though it runs: its
// replica takes its place. It says why.
func TestANodeWithoutADiskIsReplacedThoughItRuns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		nodes := formNodes(t, newFaults(t), 4, Config{Primaries: 2, Replicas: 1})
		n := nodes[slices.IndexFunc(nodes, func(n *node) bool { return ask(t, n, (*state).ownsSlots) })]
		key := keyOf(n, 0)
		require.NoError(t, n.Client().Set(t.Context(), key, []byte("before")))
		until(t, 2*driverNT, "its replica is in sync", func() bool { return len(n.Status().Replication.InSync) == 2 })
		require.NoError(t, n.post(t.Context(), func(s *state, now time.Duration) output { return s.saveFailed(now, errors.New("full")) }))
		require.ErrorContains(t, n.Admin().BumpEpoch(t.Context()), "this node cannot save its state: full")
		other := nodes[slices.IndexFunc(nodes, func(o *node) bool { return o != n })]
		until(t, 3*driverNT, "its replica serves", func() bool { return other.Client().Set(t.Context(), key, []byte("after")) == nil })
		o, ok := other.Table().Owner(KeySlot(key))
		require.True(t, ok && o.ID != n.ID())
		require.Contains(t, n.Status().Reason, "cannot save its state")
	})
}

// Nobody waits for ever for a save that will never complete.
func TestAFailedDiskEndsWhatWaitsForIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, Config{Dir: t.TempDir()})
		isReady(t, n)
		full := errors.New("full")
		until(t, driverNT, "it says so", func() bool {
			n.saver.mu.Lock()
			n.saver.err = full // unless a save that was under way ends well behind it
			n.saver.mu.Unlock()
			signal(n.saver.done)
			return !n.Status().OK
		})
		settles := func() error {
			return n.settled(t.Context(), func(s *state, now time.Duration) output { return s.tick(now) })
		}
		require.ErrorIs(t, settles(), full)
		require.ErrorContains(t, n.Admin().BumpEpoch(t.Context()), "cannot save its state: full")
		require.ErrorIs(t, n.Client().Set(t.Context(), "k", nil), ErrClusterDown)
	})
}

// NodeTimeouts that differ keep no cluster from forming, and are not passed over
// in silence.
func TestAStatusNamesNodesThatAreConfiguredUnlikeThisOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, seeds := newFaults(t), []string{"a:1", "b:1"}
		var nodes []*node
		for i, nt := range []time.Duration{driverNT, 2 * driverNT} {
			nodes = append(nodes, startNode(t, Config{Addr: seeds[i], Seeds: seeds, Primaries: 2, NodeTimeout: nt, Transport: f.Node(seeds[i][:1])}))
		}
		events := nodes[0].Events(t.Context(), 1000)
		for _, n := range nodes {
			isReady(t, n)
		}
		until(t, driverNT, "its status", func() bool { return len(nodes[0].Status().Problems) == 1 })
		want := fmt.Sprintf("node %s at b:1: NodeTimeout is 4s there and 2s here", nodes[1].ID().short())
		require.Equal(t, []string{want}, nodes[0].Status().Problems)
		require.Contains(t, nodes[0].Status().String(), "; "+want)
		var told bool
		for range len(events) {
			e := <-events
			told = told || e.Kind == EventDiffers && e.Node == nodes[1].ID() && e.Text == "NodeTimeout is 4s there and 2s here"
		}
		require.True(t, told)
	})
}
