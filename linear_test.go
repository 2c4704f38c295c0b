package slotmesh

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/slotmesh/slotmesh/internal/linear"
	"github.com/slotmesh/slotmesh/internal/racing"
	"github.com/stretchr/testify/require"
)

// Calls are recorded as clients see them, over failures and failovers, and porcupine
// looks for an order in which one copy of each key would have answered as they were
// answered: each call between its beginning and its end, those of unknown outcome at
// any time later, or never.

// oneCopy is one key of which there is one copy.
func oneCopy() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return "" },
		Step: func(state, input, _ any) (bool, any) {
			next, ok := linear.Step(state.(string), input.(linear.Op))
			return ok, next
		},
	}
}

// How long one key may take to check; most take milliseconds.
const (
	oneKeyLimit = time.Minute
	lookLimit   = 100 * time.Millisecond // where other keys, or other seeds, will do as well
)

func check(ops []linear.Op, limit time.Duration) porcupine.CheckResult {
	var all []porcupine.Operation
	for _, op := range ops {
		all = append(all, porcupine.Operation{ClientId: op.Client, Input: op, Call: op.Began, Return: op.Ended})
	}
	return porcupine.CheckOperationsTimeout(oneCopy(), all, limit)
}

// linearizable fails unless every key could be one copy, and returns how many calls
// there were.
func linearizable(t *testing.T, keys map[string][]linear.Op) (calls int) {
	t.Helper()
	for key, ops := range keys {
		calls += len(ops)
		if result := check(ops, oneKeyLimit); result != porcupine.Ok {
			t.Fatalf("%s, %d calls: %s", key, len(ops), result)
		}
	}
	return calls
}

// refused is a key that cannot be one copy, "" if none is seen to be.
func refused(keys map[string][]linear.Op, limit time.Duration) string {
	for key, ops := range keys {
		if check(ops, limit) == porcupine.Illegal {
			return key
		}
	}
	return ""
}

func TestTheCheckRefusesWhatOneCopyWouldNotSay(t *testing.T) {
	op := func(k linear.Kind, value, answer string, began, ended int64) linear.Op {
		return linear.Op{Kind: k, Value: value, Answer: answer, Delta: 1, Began: began, Ended: ended}
	}
	unknown := func(o linear.Op) linear.Op {
		o.Unknown, o.Ended = true, 1<<62
		return o
	}
	const get, set, swap, add = linear.Get, linear.Set, linear.Swap, linear.Add
	for _, row := range []struct {
		name string
		ops  []linear.Op
		want porcupine.CheckResult
	}{
		{"a write and a read", []linear.Op{op(set, "a", "", 1, 2), op(get, "", "a", 3, 4)}, porcupine.Ok},
		{"a write is gone", []linear.Op{op(set, "a", "", 1, 2), op(get, "", "", 3, 4)}, porcupine.Illegal},
		{"an old value is shown", []linear.Op{op(set, "a", "", 1, 2), op(set, "b", "", 3, 4), op(get, "", "a", 5, 6)}, porcupine.Illegal},
		{"a value is shown and gone", []linear.Op{unknown(op(set, "a", "", 1, 0)), op(get, "", "a", 2, 3), op(get, "", "", 4, 5)}, porcupine.Illegal},
		{"a write that nobody has heard of comes late", []linear.Op{unknown(op(set, "a", "", 1, 0)), op(get, "", "", 2, 3), op(get, "", "a", 4, 5)}, porcupine.Ok},
		{"two at once, in either order", []linear.Op{op(set, "a", "", 1, 4), op(set, "b", "", 2, 3), op(get, "", "a", 5, 6)}, porcupine.Ok},
		{"a sum is counted twice", []linear.Op{op(add, "", "1", 1, 2), unknown(op(add, "", "", 3, 0)), op(add, "", "4", 4, 5)}, porcupine.Illegal},
		{"a sum of unknown outcome is counted", []linear.Op{op(add, "", "1", 1, 2), unknown(op(add, "", "", 3, 0)), op(add, "", "3", 4, 5)}, porcupine.Ok},
		{"a sum is lost", []linear.Op{op(add, "", "1", 1, 2), op(add, "", "1", 3, 4)}, porcupine.Illegal},
		{"a swap finds what was replaced", []linear.Op{op(swap, "a", "", 1, 2), op(swap, "b", "a", 3, 4), op(swap, "c", "a", 5, 6)}, porcupine.Illegal},
	} {
		require.Equal(t, row.want, check(row.ops, oneKeyLimit), row.name)
	}
}

// callers are clients that call and record.
type callers struct {
	linear.History
	next atomic.Int64 // of values and clients
	open [8]atomic.Int64
	made atomic.Int64
}

// openMost is how many sums of one key may be of unknown outcome: each doubles what
// the check has to look at.
const openMost = 8

// work has a client call until ctx is over, at whichever node client returns: the
// first half of the keys is set and read, the rest is added to and read.
func (c *callers) work(ctx context.Context, client func() *Client) {
	id := int(c.next.Add(1))
	for ctx.Err() == nil {
		k := rand.IntN(len(c.open))
		op := linear.Op{Client: id, Key: fmt.Sprint("n", k)}
		switch sums := k >= len(c.open)/2; {
		case rand.IntN(2) == 0:
			op.Kind = linear.Get
		case !sums:
			op.Kind, op.Value = linear.Set, fmt.Sprint("v", c.next.Add(1))
		case c.open[k].Load() < openMost:
			op.Kind, op.Delta = linear.Add, 1+rand.Int64N(9)
		}
		c.one(ctx, client(), op, &c.open[k])
		time.Sleep(time.Duration(rand.IntN(30_000)) * time.Microsecond)
	}
}

// one makes a call and records what comes of it; open counts those that stay open.
func (c *callers) one(ctx context.Context, client *Client, op linear.Op, open *atomic.Int64) {
	ctx, cancel := context.WithTimeout(ctx, driverNT/2)
	defer cancel()
	call := c.Begin(op)
	var answer string
	var err error
	switch op.Kind {
	case linear.Get:
		var v []byte
		v, err = client.Get(ctx, op.Key)
		answer = string(v)
	case linear.Set:
		err = client.Set(ctx, op.Key, []byte(op.Value))
	default:
		var n int64
		n, err = client.Incr(ctx, op.Key, op.Delta)
		answer = fmt.Sprint(n)
	}
	var failed *OpError
	switch {
	case err == nil || errors.Is(err, ErrNotFound):
		c.made.Add(1)
		c.End(call, answer)
	case errors.As(err, &failed) && failed.Outcome == NotExecuted:
		c.Undone(call)
	case op.Kind == linear.Add:
		open.Add(1)
	}
}

// slots are those of all keys.
func (c *callers) slots() (set SlotSet) {
	for k := range c.open {
		set.Add(KeySlot(fmt.Sprint("n", k)))
	}
	return set
}

// What clients of strict shards hear over failures of nodes, failovers by hand and
// slots that move is what one copy of each key would say.
func TestCallsOverFailoversAreLinearizable(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name                string
		primaries, replicas int
	}{{"a shard of three", 1, 2}, {"two of two, and slots that move", 2, 1}} {
		for seed := range uint64(racing.Fewer(2, 1)) {
			var c callers
			synctest.Test(t, func(t *testing.T) {
				s := newShards(t, seed+100, row.primaries, row.replicas)
				s.allWell(row.primaries, 1+row.replicas)
				ctx, stop := context.WithCancel(t.Context())
				var wg sync.WaitGroup
				defer wg.Wait()
				defer stop()
				for i := range 24 {
					wg.Go(func() { c.work(ctx, func() *Client { return s.at(i % len(s.nodes)).Client() }) })
				}
				if row.primaries > 1 {
					wg.Go(func() { s.keepMoving(ctx, c.slots()) })
				}
				until(t, 4*driverNT, "one failover for sure", func() bool {
					return slices.ContainsFunc(s.nodes, func(n *node) bool { return n.Admin().Failover(ctx, FailoverPlain) == nil })
				})
				for range racing.Fewer(8, 3) {
					s.fail()
					s.allWell(row.primaries, 1+row.replicas)
				}
			})
			calls := linearizable(t, c.Keys())
			t.Logf("%s, seed %d: %d calls, %d answered", row.name, seed, calls, c.made.Load())
			require.Greater(t, calls, 2000)
		}
	}
}

// keepMoving gives slots to one shard and the other until ctx is over.
func (s *shards) keepMoving(ctx context.Context, slots SlotSet) {
	for i := 0; ctx.Err() == nil; i++ {
		n := s.at(i % len(s.nodes))
		call, cancel := context.WithTimeout(ctx, driverNT)
		if x := n.Table().Shards(); len(x) == 2 {
			_ = n.Admin().MoveSlots(call, slots, x[i%2].Primary) // or not, where somebody has just failed
		}
		cancel()
		time.Sleep(100 * time.Millisecond)
	}
}

// Where no replica is waited for, a primary that is cut off acknowledges what its
// successor never sees, as Config.AckReplicas says: the check finds it, from outside.
func TestCallsShowWhatAReplicaHasNotGot(t *testing.T) {
	t.Parallel()
	var c callers
	synctest.Test(t, func(t *testing.T) {
		nodes, f := formShardOn(t, 3, Config{})
		a := nodes[0]
		var open atomic.Int64
		do := func(n *node, kind linear.Kind, value string) {
			c.one(t.Context(), n.Client(), linear.Op{Kind: kind, Key: "n0", Value: value}, &open)
		}
		do(a, linear.Set, "kept")
		level(t, driverNT, nodes...)
		f.Partition([]string{a.addr[:1]}, []string{nodes[1].addr[:1], nodes[2].addr[:1]})
		do(a, linear.Set, "lost")
		p := leaderOf(t, 3*driverNT, nodes[1:]...)
		do(p, linear.Get, "")
	})
	require.EqualValues(t, 3, c.made.Load())
	require.Equal(t, "n0", refused(c.Keys(), oneKeyLimit))
}
