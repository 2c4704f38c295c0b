package slotmesh

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slotmesh/slotmesh/internal/linear"
	"github.com/slotmesh/slotmesh/internal/racing"
	"github.com/stretchr/testify/require"
)

// simCalls is what the clients of a world call and hear. The methods of a nil one do
// nothing.
type simCalls struct {
	linear.History
	names map[*simWrite]string
}

// begin notes a request that has run, and whose reply is on its way.
func (c *simCalls) begin(n *simNode, op simPending) *linear.Op {
	if c == nil {
		return nil
	}
	call := linear.Op{Client: n.index, Kind: linear.Get, Key: fmt.Sprint(n.core.cluster.String()[:6], " slot ", op.slot)}
	if op.wrote {
		call.Kind, call.Value = linear.Swap, c.name(op.value)
	}
	return c.Begin(call)
}

// end notes that the reply has reached the client: what a read shows, and what a
// write has found.
func (c *simCalls) end(op simPending) {
	switch {
	case c == nil:
	case op.call.Kind == linear.Swap:
		c.End(op.call, c.name(op.value.prev))
	default:
		c.End(op.call, c.name(op.value))
	}
}

// name is the value of a write: no two writes have the same.
func (c *simCalls) name(v *simWrite) string {
	if v == nil {
		return ""
	}
	if c.names[v] == "" {
		c.names[v] = fmt.Sprint("v", len(c.names)+1)
	}
	return c.names[v]
}

// simWrong is what the simulator's drivers do wrong, to see that it is found.
type simWrong uint8

const (
	_            simWrong = iota
	wrongEarly            // a write is acknowledged before the replicas have it
	wrongLease            // requests are answered though the lease is over
	wrongResume           // a replica goes on at its offset, whatever its history
	wrongEmpty            // a primary sends a copy of nothing
	wrongDeposed          // one that is deposed sends the rest of a copy, as of before
	wrongKept             // a store that is half a copy keeps its log
	wrongHalf             // a copy is called whole when half of it is there
	wrongClock            // the clock does not jump by the machine's sleep before the next tick
)

// strictLife is the life of two strict shards of three: crashes, pauses, partitions,
// lost and late messages, hand-overs and failovers by hand, plain and by force. Its
// calls are recorded.
func strictLife(seed uint64, wrong simWrong) *simWorld {
	w := newSimWorld(seed)
	w.stopAt, w.wrong = wrong == 0, wrong
	w.calls = &simCalls{names: map[*simWrite]string{}}
	var ns []*simNode
	for range 6 {
		ns = append(ns, w.addNode())
	}
	w.drawFaults()
	chaos := w.faults
	chaos.operators, chaos.imposes, chaos.marks, chaos.foreign = 0, 0, 0, false
	w.ack, w.drawn = 1, chaos
	w.faults = simFaults{opsEvery: chaos.opsEvery, replyBy: chaos.replyBy, backlog: chaos.backlog}
	w.byNumber(ns, 2)
	w.checkOW1Overlap()
	w.run(6 * w.nt)
	w.faults = chaos
	w.unleash()
	w.every(3*w.nt, func() {
		if n := w.liveNode(); n != nil {
			w.failOver(n)
		}
	})
	w.run(50 * time.Second)
	w.calmDown()
	w.settle(w.now + simCalmFor*w.nt)
	return w
}

// What clients of strict shards hear is what one copy of each key would say.
func TestSimulatedCallsAreLinearizable(t *testing.T) {
	racing.OneGoroutine(t)
	t.Parallel()
	reached := map[string]int{}
	calls := 0
	for seed := range uint64(20) {
		w := strictLife(seed, 0)
		require.Empty(t, w.fails, "seed %d", seed)
		for k, v := range w.ledger.reached {
			reached[k] += v
		}
		calls += linearizable(t, w.calls.Keys())
	}
	t.Logf("%d calls, reached %v", calls, reached)
	for _, state := range []string{"failed over", "handed over", "full sync", "tail cut"} {
		require.Positive(t, reached[state], state)
	}
}

// What drivers do wrong with logs and clocks is found by the check of that name.
func TestTheSimulatorFindsWhatDriversDoWrong(t *testing.T) {
	racing.OneGoroutine(t)
	t.Parallel()
	for wrong, rule := range map[simWrong]string{wrongEarly: "RP10", wrongResume: "RP3", wrongEmpty: "RP7", wrongHalf: "RP6", wrongClock: "OW2"} {
		t.Run(rule, func(t *testing.T) {
			for seed := range uint64(40) {
				w := strictLife(seed, wrong)
				for _, f := range w.fails {
					if strings.Contains(f, " "+rule+": ") {
						t.Logf("seed %d: %s", seed, f)
						return
					}
				}
			}
			t.Error("no seed shows it")
		})
	}
}

// So is what takes a chain of events of its own.
func TestSchedulesFindWhatIsDoneWrongWithCopies(t *testing.T) {
	racing.OneGoroutine(t)
	t.Parallel()
	for _, row := range []struct {
		name  string
		wrong simWrong
		run   func(w *simWorld)
	}{
		{"a copy of a deposed primary", wrongDeposed, copyOfADeposed},
		{"half a copy that keeps its log", wrongKept, leadsWithHalfACopy},
	} {
		t.Run(row.name, func(t *testing.T) {
			for seed := range uint64(40) {
				w := newSimWorld(seed)
				w.wrong = row.wrong
				(&schedule{run: row.run}).in(w)
				if slices.ContainsFunc(w.fails, func(f string) bool { return strings.Contains(f, " RP4: ") }) {
					t.Logf("seed %d: %s", seed, w.fails[0])
					return
				}
			}
			t.Error("no seed shows it")
		})
	}
}

// And what is done wrong is found in what they hear, without a look inside.
func TestSimulatedCallsShowWhatIsDoneWrong(t *testing.T) {
	racing.OneGoroutine(t)
	t.Parallel()
	for wrong, name := range map[simWrong]string{wrongEarly: "acknowledged before the replicas have it", wrongLease: "answered without a lease"} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(40) {
				if key := refused(strictLife(seed, wrong).calls.Keys(), lookLimit); key != "" {
					t.Logf("seed %d shows it in %s", seed, key)
					return
				}
			}
			t.Error("no seed shows it")
		})
	}
}
