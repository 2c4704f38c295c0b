package slotmesh

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slotmesh/slotmesh/internal/racing"
	"github.com/stretchr/testify/require"
)

// The cluster of the tests below: 200 nodes, of whose 100 primaries 49 die at one
// moment, some of the voters among them.
const manyPrimaries, manyDying = 100, 49

// eachMany runs a test for every seed of such a cluster.
func eachMany(t *testing.T, test func(t *testing.T, seed uint64)) {
	racing.OneGoroutine(t)
	t.Parallel()
	for seed := *simFirst; seed < *simFirst+*simMany; seed++ {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) { test(t, seed) })
	}
}

// manyShards is a world of a hundred strict shards with a replica each, all of them in
// sync, and nine voters, all of them primaries.
func manyShards(t *testing.T, seed uint64) *simWorld {
	t.Helper()
	w := newSimWorld(seed)
	w.ack, w.unchecked, w.stopAt = 1, true, true
	w.faults.opsEvery, w.faults.backlog = 100*time.Millisecond, 1000
	w.ledger.hot = oneOfEachShare(manyPrimaries)
	w.standing(manyPrimaries, 1)
	w.checkOW1Overlap()
	for _, r := range w.nodes[manyPrimaries:] { // they come later, so that the primaries win, of whom some vote
		r.crash(false)
		w.after(2*w.nt, r.restart)
	}
	require.True(t, w.await("every shard has two members in sync", 20*w.nt, func() bool { return len(w.leadersInSync()) == manyPrimaries }), "%v", w.fails)
	w.pass(w.nt)
	w.checkFromNow()
	return w
}

// checkFromNow begins to look at a cluster that nobody has looked at so far: where it
// stands is the history that it is held to. To look at so many nodes from their start
// would take as long again.
func (w *simWorld) checkFromNow() {
	c, l := w.nodes[0].core, &w.ledger
	for _, id := range c.table.order {
		k := simEpochKey{c.cluster, id, c.table.shards[id]}
		l.epochs[k], l.started[k] = true, true
		l.highest = max(l.highest, k.epoch.Number)
	}
	w.noteVoters(w.nodes[0])
	for _, n := range w.nodes {
		n.noteLed()
	}
	w.unchecked = false
}

// leadersInSync are the primaries that serve and have a replica in sync.
func (w *simWorld) leadersInSync() (ns []*simNode) {
	for _, n := range w.living() {
		if l := n.core.lead; l != nil && len(l.inSync) == 2 && n.core.ownsSlots() && n.core.leaseHeld() {
			ns = append(ns, n)
		}
	}
	return ns
}

// killMany kills primaries at one moment, so many voters among them.
func (w *simWorld) killMany(t *testing.T, voters int) (dead []*simNode, ids []NodeID) {
	t.Helper()
	votes := 0
	for _, n := range w.leadersInSync() {
		switch {
		case n.core.isVoter() && votes < voters:
			votes++
		case n.core.isVoter() || len(dead)-votes == manyDying-voters:
			continue
		}
		dead, ids = append(dead, n), append(ids, n.core.id)
	}
	require.Len(t, dead, manyDying)
	require.Equal(t, voters, votes)
	for _, n := range dead {
		n.crash(false)
	}
	return dead, ids
}

// TestHalfOfThePrimariesDieAtOnce: 49 of 100 primaries die, and with them four of nine
// voters. Their replicas take over within the bound, and the dead voters are replaced.
// O49: in valkey-io/valkey#2181 and redis/redis#3770 some of the shards never got a primary
// again: their elections disturbed each other, for an epoch had one vote for all.
func TestHalfOfThePrimariesDieAtOnce(t *testing.T) { eachMany(t, halfDie) }

func halfDie(t *testing.T, seed uint64) {
	w := manyShards(t, seed)
	dead, ids := w.killMany(t, maxVotersDefault/2)
	took := w.untilServed(dead, manyPrimaries, 3*w.nt)
	require.Empty(t, w.fails)
	t.Logf("%d primaries, %d of them voters, replaced after %.2f NodeTimeouts at most, %.2f in the middle",
		manyDying, maxVotersDefault/2, took[len(took)-1].Seconds()/w.nt.Seconds(), took[len(took)/2].Seconds()/w.nt.Seconds())
	require.True(t, w.await("the dead voters are replaced", 20*w.nt, func() bool {
		v := w.living()[0].core.table.voters
		return v.Version.Number > 1 && !slices.ContainsFunc(ids, v.has)
	}), "%v", w.fails)
}

// TestHalfOfThePrimariesDieWithMostVoters: the same with five of nine voters among
// the dead. Nothing is acknowledged, and everybody says why, until an operator imposes
// voters. Then every slot is served, and has what had been acknowledged: each shard has a
// live member that was in sync.
func TestHalfOfThePrimariesDieWithMostVoters(t *testing.T) { eachMany(t, halfDieWithMostVoters) }

func halfDieWithMostVoters(t *testing.T, seed uint64) {
	w := manyShards(t, seed)
	require.True(t, w.await("every shard has something to lose", 20*w.nt, func() bool {
		return !slices.ContainsFunc(w.ledger.hot, func(slot Slot) bool { return w.ledger.committed[simSlotKey{w.nodes[0].core.cluster, slot, 0}] == nil })
	}))
	w.killMany(t, maxVotersDefault/2+1)
	w.pass(w.nt + w.nt/4)
	acks := w.ledger.acks
	w.pass(2 * w.nt)
	require.Equal(t, acks, w.ledger.acks, "acknowledgements without a majority of the voters")
	for _, n := range w.living() {
		ok, reason := n.core.clusterState()
		require.False(t, ok, n.name())
		require.Contains(t, strings.ToLower(reason), "majority", n.name())
	}
	was := maps.Clone(w.ledger.committed)
	for _, slot := range w.ledger.hot {
		require.NotNil(t, was[simSlotKey{w.living()[0].core.cluster, slot, 0}], "slot %d: nothing was acknowledged that could be lost", slot)
	}

	began := w.now
	w.ledger.imposed = true // what has been decided may be lost; and what is still checked then is not worth its time
	w.unchecked = true
	by := w.living()[0]
	var set []NodeID
	for _, n := range w.living()[:maxVotersDefault] {
		set = append(set, n.core.id)
	}
	by.command(func(s *state, now time.Duration, id uint64) output { return s.forceVoters(now, id, set) }, w.logged(by, "ForceVoters"))
	require.True(t, w.await("every slot is served again", 8*w.nt, func() bool { return w.served() == NumSlots }), "%v", w.fails)
	t.Logf("all is served %.2f NodeTimeouts after voters have been imposed", (w.now-began).Seconds()/w.nt.Seconds())
	for k, v := range was {
		n := w.serving(k.slot)
		require.True(t, n != nil && descends(n.store.values[k.slot][k.key], v), "slot %d: acknowledged was %v", k.slot, v.short())
	}
	acks = w.ledger.acks
	w.pass(w.nt)
	require.Greater(t, w.ledger.acks, acks)
	require.Empty(t, w.fails)
}

// oneOfEachShare is the slot in the middle of each share of n equal ones.
func oneOfEachShare(n int) (slots []Slot) {
	for i := range n {
		slots = append(slots, Slot((2*i+1)*NumSlots/(2*n)))
	}
	return slots
}

func (w *simWorld) living() (ns []*simNode) {
	for _, n := range w.nodes {
		if n.up {
			ns = append(ns, n)
		}
	}
	return ns
}

// untilServed is how long the replicas of the dead take until they serve, in order;
// the two members of a shard stand as many places apart in w.nodes as there are shards.
func (w *simWorld) untilServed(dead []*simNode, primaries int, limit time.Duration) (took []time.Duration) {
	began := w.now
	waiting := map[*simNode]bool{}
	for _, n := range dead {
		waiting[w.nodes[(primaries+n.index)%len(w.nodes)]] = true
	}
	w.within("LV1", "every shard with a live replica is served", limit, func() bool {
		for r := range waiting {
			if r.core.leaseHeld() && r.core.ownsSlots() {
				delete(waiting, r)
				took = append(took, w.now-began)
			}
		}
		return len(waiting) == 0
	})
	return took
}

// serving is the node that serves a slot under its lease; nil: nobody does.
func (w *simWorld) serving(slot Slot) *simNode {
	for _, n := range w.living() {
		if n.core.leaseHeld() && n.core.serve.slots.Contains(slot) {
			return n
		}
	}
	return nil
}

// served counts the slots that somebody serves under its lease.
func (w *simWorld) served() int {
	var all SlotSet
	for _, n := range w.living() {
		if n.core.leaseHeld() {
			all.Union(&n.core.serve.slots)
		}
	}
	return all.Len()
}

const replaceSeeds = 200 // primaries that BenchmarkTimeToReplaceAPrimary kills for each case, one in a world of its own

// replaceCase is what happens besides the death of the primary.
type replaceCase struct {
	name  string
	hop   float64 // a message and a save take up to so many NodeTimeouts each; 0: about a millisecond
	voter bool    // a voter of another shard dies with it
	late  bool    // that voter has died before, and the voters have just begun to change for it
	first bool    // and the primary is the one who changes them
}

// BenchmarkTimeToReplaceAPrimary is how long it takes from the death of a primary
// to the first fresh read of its replica, in a cluster of six, in simulated time.
func BenchmarkTimeToReplaceAPrimary(b *testing.B) {
	for _, c := range []replaceCase{
		{name: "calm"},
		{name: "hops=0.02", hop: 0.02},
		{name: "with-a-voter", voter: true},
		{name: "voters-changing", voter: true, late: true},
		{name: "changing-voters", voter: true, late: true, first: true},
	} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				var took []float64
				for seed := uint64(0); len(took) < replaceSeeds; seed++ {
					if d, ok := timeToReplace(b, seed, c); ok {
						took = append(took, d)
					}
				}
				slices.Sort(took)
				for _, q := range []struct {
					at   int
					unit string
				}{{50, "p50-NodeTimeouts"}, {90, "p90-NodeTimeouts"}, {99, "p99-NodeTimeouts"}, {100, "max-NodeTimeouts"}} {
					b.ReportMetric(took[min(len(took)*q.at/100, len(took)-1)], q.unit)
				}
				b.ReportMetric(0, "ns/op") // how long the simulator takes is of no interest
			}
		})
	}
}

// threeShards is a world of three primaries with a replica each.
func threeShards(b *testing.B, seed uint64) *simWorld {
	w := newSimWorld(seed)
	w.unchecked, w.stopAt, w.faults.opsEvery = true, true, 0
	var ns []*simNode
	for range 6 {
		ns = append(ns, w.addNode())
	}
	w.byNumber(ns, 3)
	require.True(b, w.await("three primaries with a replica each", 20*w.nt, func() bool {
		k := 0
		for _, n := range w.living() {
			if l := n.core.lead; l != nil && l.opened && len(l.inSync) == 2 && n.core.ownsSlots() && n.core.leaseHeld() && n.core.unready() == "" {
				k++
			}
		}
		return k == 3 && len(w.living()) == 6
	}), "seed %d: %v", seed, w.fails)
	return w
}

// timeToReplace kills a primary of a fresh world, and returns how many NodeTimeouts
// later its slots are served again; false: the world has nobody to kill in this case.
func timeToReplace(b *testing.B, seed uint64, c replaceCase) (float64, bool) {
	w := threeShards(b, seed)
	if by := time.Duration(c.hop * float64(w.nt)); by > 0 {
		w.faults.slow, w.faults.slowBy, w.faults.diskSlow, w.faults.diskBy = 1, by, 1, by
	}
	w.pass(w.between(w.nt, 3*w.nt))
	var spared ShardID
	if c.late {
		v := w.nodes[slices.IndexFunc(w.nodes, func(n *simNode) bool { return n.core.isVoter() && n.core.lead == nil })]
		spared = v.core.self.Shard // its replica is gone
		v.crash(false)
	}
	changes := func(n *simNode) bool { return n.core.change != nil }
	if c.late {
		require.True(b, w.await("the voters begin to change", 5*w.nt, func() bool { return slices.ContainsFunc(w.living(), changes) }), "seed %d: %v", seed, w.fails)
	}
	i := slices.IndexFunc(w.nodes, func(n *simNode) bool {
		return n.up && n.core.lead != nil && n.core.ownsSlots() && n.core.self.Shard != spared && changes(n) == c.first
	})
	if i < 0 {
		return 0, false
	}
	p := w.nodes[i]
	if c.voter && !c.late {
		w.nodes[slices.IndexFunc(w.nodes, func(n *simNode) bool { return n.core.isVoter() && n.core.self.Shard != p.core.self.Shard })].crash(false)
	}
	slots, began := p.core.serve.slots, w.now
	p.crash(false)
	require.True(b, w.await("its replica serves", 5*w.nt, func() bool {
		return slices.ContainsFunc(w.living(), func(n *simNode) bool { return n.core.leaseHeld() && n.servesAll(slots) })
	}), "seed %d: %v", seed, w.fails)
	return (w.now - began).Seconds() / w.nt.Seconds(), true
}
