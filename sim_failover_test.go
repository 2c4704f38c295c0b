package slotmesh

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestHalfOfThePrimariesDieAtOnce is a cluster of 200 nodes: 49 of its 100
// primaries die at one moment, and with them four of nine voters. Their replicas
// take over within the bound. Then a majority of the voters dies: nothing is
// acknowledged, and everybody says why, until an operator imposes voters. In
// valkey-io/valkey#2181 and redis/redis#3770 some of the shards never got a primary
// again: their elections disturbed each other, for an epoch had one vote for all.
func TestHalfOfThePrimariesDieAtOnce(t *testing.T) {
	const primaries, dying, deadVoters = 100, 49, 4
	oneGoroutine(t)
	t.Parallel()
	w := newSimWorld(1)
	w.ack, w.unchecked, w.stopAt = 1, true, true
	w.faults.opsEvery, w.faults.backlog = 100*time.Millisecond, 1000
	w.ledger.hot = everySlot(NumSlots / primaries)
	w.standing(primaries, 1)
	w.checkOverlap()
	for _, r := range w.nodes[primaries:] { // they come later, so that the primaries win, of whom some vote
		r.crash(false)
		w.after(2*w.nt, r.restart)
	}
	leaders := func() (ns []*simNode) {
		for _, n := range w.living() {
			if l := n.core.lead; l != nil && len(l.inSync) == 2 && n.core.ownsSlots() && n.core.leaseHeld() {
				ns = append(ns, n)
			}
		}
		return ns
	}
	require.True(t, w.await("every shard has two members in sync", 20*w.nt, func() bool { return len(leaders()) == primaries }), "%v", w.fails)
	w.pass(w.nt)

	var dead []*simNode
	var ids []NodeID
	votes := 0
	for _, n := range leaders() {
		switch {
		case n.core.isVoter() && votes < deadVoters:
			votes++
		case n.core.isVoter() || len(dead)-votes == dying-deadVoters:
			continue
		}
		dead, ids = append(dead, n), append(ids, n.core.id)
	}
	require.Len(t, dead, dying)
	require.Equal(t, deadVoters, votes)
	for _, n := range dead {
		n.crash(false)
	}
	took := w.untilServed(dead, primaries, 3*w.nt)
	require.Empty(t, w.fails)
	t.Logf("%d primaries, %d of them voters, replaced after %.2f NodeTimeouts at most, %.2f in the middle",
		dying, deadVoters, took[len(took)-1].Seconds()/w.nt.Seconds(), took[len(took)/2].Seconds()/w.nt.Seconds())

	require.True(t, w.await("the dead voters are replaced", 20*w.nt, func() bool {
		v := w.living()[0].core.table.voters
		return v.Version.Number > 1 && !slices.ContainsFunc(ids, v.has)
	}), "%v", w.fails)
	w.pass(w.nt)
	var gone []*simNode
	for _, n := range w.living() {
		if len(gone) < maxVotersDefault/2+1 && n.core.isVoter() {
			gone = append(gone, n)
		}
	}
	for _, n := range gone {
		n.crash(false)
	}
	w.pass(w.nt + w.nt/4)
	acks := w.ledger.acks
	w.pass(2 * w.nt)
	require.Equal(t, acks, w.ledger.acks, "acknowledgements without a majority of the voters")
	for _, n := range w.living() {
		ok, reason := n.core.clusterState()
		require.False(t, ok, n.name())
		require.Contains(t, strings.ToLower(reason), "majority", n.name())
	}

	began := w.now
	w.ledger.unclean = true // what has been decided may be lost
	by := w.living()[0]
	var set []NodeID
	for _, n := range w.living()[:maxVotersDefault] {
		set = append(set, n.core.id)
	}
	by.command(func(s *state, now time.Duration, id uint64) output { return s.forceVoters(now, id, set) }, w.logged(by, "ForceVoters"))
	require.True(t, w.await("whoever lives and leads serves again", 8*w.nt, func() bool { return w.unservedShards() == 0 }), "%v", w.fails)
	t.Logf("all is served %.2f NodeTimeouts after voters have been imposed", (w.now-began).Seconds()/w.nt.Seconds())
}

// everySlot is each n-th slot.
func everySlot(n int) (slots []Slot) {
	for i := 0; i < NumSlots; i += n {
		slots = append(slots, Slot(i))
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

// unservedShards counts the shards with slots of which a member in sync lives, and
// that nobody serves.
func (w *simWorld) unservedShards() int {
	served := map[ShardID]bool{}
	for _, n := range w.living() {
		if n.core.leaseHeld() && !n.core.serve.slots.Empty() {
			served[n.core.self.Shard] = true
		}
	}
	k := 0
	for _, n := range w.living() {
		if c := n.core; c.table.owned[c.self.Shard] > 0 && c.holdsCopy && !served[c.self.Shard] {
			k++
		}
	}
	return k
}

const replaceSeeds = 200 // primaries that BenchmarkTimeToReplaceAPrimary kills, one in a world of its own

// BenchmarkTimeToReplaceAPrimary is how long it takes from the death of a primary
// to the first fresh read of its replica, in a cluster of six, in simulated time.
func BenchmarkTimeToReplaceAPrimary(b *testing.B) {
	for b.Loop() {
		var took []float64
		for seed := range uint64(replaceSeeds) {
			took = append(took, timeToReplace(b, seed))
		}
		slices.Sort(took)
		for _, q := range []struct {
			at   int
			unit string
		}{{50, "p50-NodeTimeouts"}, {90, "p90-NodeTimeouts"}, {99, "p99-NodeTimeouts"}, {100, "max-NodeTimeouts"}} {
			b.ReportMetric(took[min(len(took)*q.at/100, len(took)-1)], q.unit)
		}
	}
}

// timeToReplace kills a primary of a fresh world, and returns how many NodeTimeouts
// later its slots are served again.
func timeToReplace(b *testing.B, seed uint64) float64 {
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
	w.pass(w.between(w.nt, 3*w.nt))
	p := ns[slices.IndexFunc(ns, func(n *simNode) bool { return n.core.lead != nil && n.core.ownsSlots() })]
	slots, began := p.core.serve.slots, w.now
	p.crash(false)
	require.True(b, w.await("its replica serves", 5*w.nt, func() bool {
		return slices.ContainsFunc(w.living(), func(n *simNode) bool { return n.core.leaseHeld() && n.servesAll(slots) })
	}), "seed %d: %v", seed, w.fails)
	return (w.now - began).Seconds() / w.nt.Seconds()
}
