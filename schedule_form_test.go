package slotmesh

import (
	"slices"
	"time"
)

func formSchedules() []*schedule {
	return []*schedule{
		{"two groups that claim one slot do not merge", []mutant{mutFormMerge}, func(w *simWorld) {
			w.ledger.hot = []Slot{5}
			a, b, c := w.addNode(), w.addNode(), w.addNode()
			for _, n := range w.nodes {
				n.boot(w.newAddr())
			}
			a.addSlots(slotSet(5, 6))
			b.addSlots(slotSet(4, 5))
			c.meet(b.addr)
			w.pass(w.nt)
			a.meet(b.addr)
			c.meet(a.addr)
			w.pass(2 * w.nt)
			if a.core.peers.get(b.core.id) != nil || a.core.peers.get(c.core.id) != nil {
				w.fail("R13", "%s has met a group that has assigned slot 5 too", a.name())
			}
			if b.core.peers.get(c.core.id) == nil {
				w.fail(notReached, "the other two have not met")
			}
		}},
		{"a former that is cut off serves no longer than its first lease", []mutant{mutFormServesOn}, func(w *simWorld) {
			w.clocks = 0.09 // else Redis's own rule, by which it waits for who is silent, hides it
			fs, p := w.formers(3)
			slot := p.core.serve.slots.Ranges()[0].First
			w.ledger.hot = []Slot{slot}
			cut := false
			w.intercept(func(f *simFlight, to *simNode) bool {
				if w.sentBy(f, p) && kindOf(f, msgStarted) && to != p {
					w.apart([]*simNode{p}, w.nodes) // once it has answered
					cut = true
				}
				return true
			})
			w.await("the others have formed", 4*w.nt, func() bool { return cut && !fs[0].core.cluster.IsZero() && !fs[1].core.cluster.IsZero() })
			w.await("the primary has failed", 4*w.nt, func() bool { return fs[0].finds(p.core.id) })
			w.insist(fs[0], slot)
			w.await("its slot is served elsewhere", 6*w.nt, func() bool { return fs[0].servesAll(slotSet(slot)) })
		}},
		{"forming costs no service", []mutant{mutFormNoLease}, func(w *simWorld) {
			fs, _ := w.formers(3)
			for end := w.now + 3*w.nt; w.now < end && len(w.fails) == 0; w.pass(time.Millisecond) {
				for _, n := range fs {
					if n.local() >= n.core.servesUntil() || n.core.serve.slots.Empty() {
						w.fail("R13", "%s does not serve while the cluster forms", n.name())
					}
				}
			}
			if fs[0].core.cluster.IsZero() {
				w.fail(notReached, "it has not formed")
			}
		}},
		{"no shard has a lower epoch in the cluster than in the group that forms it", []mutant{mutFormLow}, func(w *simWorld) {
			ns := w.deployment(3)
			w.lose(func(f *simFlight, to *simNode) bool { return kindOf(f, msgUpdated) })
			w.await("all have met", 2*w.nt, func() bool { return allMet(ns) })
			slices.SortFunc(ns, func(a, b *simNode) int { return a.core.id.compare(b.core.id) })
			for range 3 { // also of the one that will propose
				w.bump(ns[1])
				w.pass(3 * time.Millisecond)
				w.bump(ns[0])
				w.pass(3 * time.Millisecond)
			}
			was := map[ShardID]Epoch{}
			for _, n := range ns {
				was[n.core.self.Shard] = n.core.table.shards[n.core.self.Shard]
			}
			w.await("the cluster has formed", 4*w.nt, func() bool { return allFormed(ns) })
			for _, n := range ns {
				if n.core.vote.current == nil {
					continue // it has the voters, and not yet their START
				}
				for _, r := range n.core.vote.current.Shards {
					if r.Epoch.less(was[r.ID]) {
						w.fail("MB6", "%s is formed with epoch %v of %s, which was %v", n.name(), r.Epoch, r.ID.short(), was[r.ID])
					}
				}
			}
			w.pass(w.nt)
		}},
		{"formers by number that know each other by hearsay form", nil, func(w *simWorld) {
			ns := w.deployment(3)
			w.lose(func(f *simFlight, to *simNode) bool {
				return kindOf(f, msgDigest) && to != ns[0] && !w.sentBy(f, ns[0])
			})
			w.await("all have met", 2*w.nt, func() bool { return allMet(ns) })
			w.await("the cluster has formed", 4*w.nt, func() bool { return allFormed(ns) })
		}},
		{"a command is answered once all who live know", []mutant{mutReplyEarly}, func(w *simWorld) {
			c := w.players(3, 2)
			a, x := c.others[0], c.others[1]
			held, release := w.hold(func(f *simFlight, to *simNode) bool { return to == x && (w.tellsOf(f, 5) || kindOf(f, msgDigest)) })
			answered := false
			a.command(func(s *state, now time.Duration, id uint64) output { return s.setSlots(now, id, slotSet(5), a.core.id) },
				func(err *commandError) {
					answered = true
					if err != nil || x.core.table.slots.at(5).shard != a.core.self.Shard {
						w.fail("R9", "%s has answered %v, and %s does not know", a.name(), err, x.name())
					}
				})
			w.await("one has to be told", w.nt, func() bool { return len(*held) > 0 })
			w.pass(w.nt / 2)
			release()
			w.await("the answer", w.nt/2, func() bool { return answered })
		}},
	}
}

// deployment boots nodes that form by number, and know one of them.
func (w *simWorld) deployment(n int) []*simNode {
	for range n {
		w.addNode()
	}
	w.ledger.hot = []Slot{5}
	w.byNumber(w.nodes, n)
	for _, n := range w.nodes {
		n.seeds = []string{"addr1"}
	}
	return slices.Clone(w.nodes)
}

func allMet(ns []*simNode) bool {
	return !slices.ContainsFunc(ns, func(n *simNode) bool { return !n.up || len(n.core.peers.ordered) < len(ns) })
}

func allFormed(ns []*simNode) bool {
	return !slices.ContainsFunc(ns, func(n *simNode) bool { return !n.up || n.core.cluster.IsZero() })
}

// formers boots nodes that form by hand, and one more; they serve by Redis's own
// rules when it returns. last is not the one who proposes.
func (w *simWorld) formers(n int) (formers []*simNode, last *simNode) {
	for range n + 1 {
		w.addNode()
	}
	w.ledger.hot = []Slot{0}
	w.byHand(w.nodes, n)
	formers = slices.Clone(w.nodes[:n])
	w.await("all serve", 4*w.nt, func() bool {
		return !slices.ContainsFunc(formers, func(n *simNode) bool { return n.core.serve.slots.Empty() })
	})
	slices.SortFunc(formers, func(a, b *simNode) int { return a.core.id.compare(b.core.id) })
	return formers, formers[n-1]
}
