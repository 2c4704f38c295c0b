package slotmesh

import (
	"maps"
	"slices"
	"time"
)

func voterSchedules() []*schedule {
	return []*schedule{
		{"a START that was saved and not decided is not voted under", []mutant{mutStartOtherID, mutStartSavedVotes}, func(w *simWorld) {
			c := w.players(5, 1)
			a, e, rest := c.voters[0], c.voters[4], c.voters[1:4]
			// a's START reaches e alone, and no answer comes back.
			forget := w.lose(func(f *simFlight, to *simNode) bool {
				return kindOf(f, msgStop) && !w.sentBy(f, a) || kindOf(f, msgStart) && to != e || kindOf(f, msgStarted)
			})
			a.begins(c.voters...)
			w.await("one voter has saved START", w.nt, func() bool { return e.core.vote.startValue != nil || e.version() == 2 })
			w.apart([]*simNode{a, e}, append(c.others, rest...))
			forget()
			w.await("the others decide another one", 2*w.nt, func() bool { return rest[0].version() == 2 })
			w.together([]*simNode{e}, append(c.others, rest...))
			w.await("the voter has heard of it", 2*w.nt, func() bool { return e.version() == 2 })
			w.bump(c.others[0])
			w.pass(3 * w.nt)
		}},
		{"a voter that does not vote yet does not count for another set", []mutant{mutCountInactive}, func(w *simWorld) {
			c := w.players(5, 1)
			a, b, d, e := c.voters[0], c.voters[1], c.voters[3], c.voters[4]
			isStart := func(f *simFlight, version uint64) bool {
				m, ok := f.msg.(*startMsg)
				return ok && m.Value.Version.Number == version
			}
			noSecond := w.lose(func(f *simFlight, to *simNode) bool { return to == e && isStart(f, 2) })
			a.begins(c.voters...)
			w.await("all know of the second set, and one does not vote", 2*w.nt, func() bool {
				return !slices.ContainsFunc(c.all(), func(n *simNode) bool { return n.version() != 2 }) && !e.core.active() &&
					!slices.ContainsFunc(c.voters[:4], func(n *simNode) bool { return !n.core.active() })
			})
			// a's third set reaches e late, and nobody else.
			late, letLate := w.hold(func(f *simFlight, to *simNode) bool { return w.sentBy(f, a) && isStart(f, 3) && to == e })
			first := w.lose(func(f *simFlight, to *simNode) bool {
				return kindOf(f, msgStop) && (!w.sentBy(f, a) || to == d) || w.sentBy(f, a) && isStart(f, 3)
			})
			a.begins(c.voters...)
			w.await("it is sent", w.nt, func() bool { return len(*late) > 0 })
			w.apart([]*simNode{a}, append(c.others, c.voters[1:]...))
			first()
			// b's third set reaches two voters, and e.
			second := w.lose(func(f *simFlight, to *simNode) bool {
				return w.sentBy(f, b) && isStart(f, 3) && to == d || kindOf(f, msgUpdate, msgDigest) && (to == d || to == e)
			})
			b.begins(c.voters...)
			w.await("another voter goes on", w.nt/10, func() bool {
				return b.core.vote.startValue != nil && e.core.vote.startValue != nil || b.version() == 3
			})
			w.pass(5 * time.Millisecond)
			// d hears a and e, who votes by now.
			w.apart([]*simNode{d, e}, append(c.others, b, c.voters[2]))
			w.together([]*simNode{a}, []*simNode{d, e})
			letLate()
			w.pass(5 * time.Millisecond)
			noSecond()
			second()
			w.await("it votes", w.nt, func() bool { return e.core.active() })
			d.begins(c.voters...)
			w.await("a third set is in force", 4*w.nt, func() bool { return d.version() == 3 })
		}},
		{"hand-overs change no voter", []mutant{mutVotersFollow}, func(w *simWorld) {
			c := w.players(3, 2)
			from, to := c.voters[0], c.others[0]
			w.handOffAll(from, to)
			w.await("it has no slot left", 4*w.nt, func() bool { return to.servesAll(slotSet(NumSlots-1)) || from.core.serve.slots.Empty() })
			w.pass(4 * w.nt)
			for _, n := range c.all() {
				if n.version() != 1 {
					w.fail("R12", "%s knows version %d of the voters, and all that voted live", n.name(), n.version())
				}
			}
		}},
		{"an imposed set beats what the old side decides meanwhile", []mutant{mutForcedIgnored}, func(w *simWorld) {
			c := w.players(3, 2)
			x, z := c.others[0], c.others[1]
			old := []*simNode{c.voters[0], c.voters[1], x}
			w.apart([]*simNode{z, c.voters[2]}, old)
			w.pass(w.nt / 2)
			w.impose(z, z)
			w.await("it is imposed", w.nt, func() bool { return z.core.table.voters.Version.Forced == 1 && z.core.active() })
			for range 2 {
				v := old[0].version()
				old[0].begins(old...)
				w.await("the old side decides", 2*w.nt, func() bool { return old[0].version() > v && old[1].version() > v })
			}
			w.together([]*simNode{z, c.voters[2]}, old)
			w.pass(6 * w.nt)
			for _, n := range c.all() {
				if n.core.table.voters.Version.Forced == 0 {
					w.fail("R15", "%s does not know the voters that an operator has imposed", n.name())
				}
			}
		}},
		{"a winner by force waits until no other lease can run", []mutant{mutForceNoWait}, func(w *simWorld) {
			_, _, rs := w.shard(0, 3, 2, 1, 5, 6)
			p := rs[0]
			w.takeOver(p)
			w.await("it serves", 4*w.nt, func() bool { return p.core.lead != nil && p.core.lead.epoch.Unclean && p.core.leaseHeld() })
			w.pass(w.nt / 2)
		}},
		{"a copy of a directory is noticed at both nodes", nil, func(w *simWorld) {
			c := w.players(3, 2)
			p := c.others[0]
			w.own(p, 5, 6)
			w.ledger.imposed = true // a copy wins what its original has a lease for
			twin := w.addNode()
			twin.host, twin.disk = p.host, maps.Clone(p.disk)
			twin.boot(w.newAddr())
			w.pass(3 * w.nt)
			w.checkMB3Twins()
			twin.crash(false)
			twin.gone = true
			for range 2 { // it has started oftener than its copy then
				p.crash(false)
				p.restart()
				w.pass(w.nt / 10)
			}
		}},
		{"who is reset has been replaced as a voter", []mutant{mutResetEarly}, func(w *simWorld) {
			c := w.players(3, 2)
			v := c.voters[0]
			w.handOffAll(v, c.others[0])
			w.await("it has no slot left", 4*w.nt, func() bool { return v.core.table.owned[v.core.self.Shard] == 0 })
			w.logf("%s: RESET", v.name())
			v.command(func(s *state, now time.Duration, id uint64) output { return s.reset(now, id, false, false) }, w.logged(v, "RESET"))
			w.await("it has been reset", 9*w.nt, func() bool { return v.core.cluster.IsZero() })
		}},
	}
}

// handOffAll gives all slots of a node away.
func (w *simWorld) handOffAll(from, to *simNode) {
	w.handOffSet(from, to, from.core.serve.slots)
}

// impose makes a node impose one voter.
func (w *simWorld) impose(n, voter *simNode) {
	w.logf("%s: imposes voter %s", n.name(), voter.name())
	w.ledger.imposed = true
	n.command(func(s *state, now time.Duration, id uint64) output {
		return s.forceVoters(now, id, []NodeID{voter.core.id})
	}, w.logged(n, "ForceVoters"))
}

func (w *simWorld) takeOver(n *simNode) {
	w.logf("%s: TAKEOVER", n.name())
	n.command(func(s *state, now time.Duration, id uint64) output { return s.takeover(now, id) }, w.logged(n, "TAKEOVER"))
}
