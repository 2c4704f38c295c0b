package slotmesh

import (
	"maps"
	"slices"
	"time"
)

// The ways in which systems like this one have lost acknowledged writes, and what
// of the tests goes there. Where no schedule is named, it is the simulator that
// finds the mutant.
//
//	T1   a replica wins that lacks a write                test of O44, mutants no-in-sync, old-record, join-behind
//	T2   primary and one replica are cut off together     schedule T2
//	T3   a replica that has a write follows one without   schedules T3, T2, T6
//	T4   a primary is back at once, with less             schedule T4, mutants any-incarnation, serve-restart
//	T5   a replica has acknowledged, and is back without  schedule T5, mutant any-incarnation
//	T6   offsets of two histories are compared            schedule T6, mutant ack-old
//	T7   the replica that has a write leaves              schedules T7
//	T8   a tie of epochs                                  test of O46, mutants two-grants, same-any-epoch, schedule EP6
//	T9   a slot goes where no replica has it              schedule T9, mutants move-no-stage, stage-alone
//	T10  the giver of a slot fails over in the middle     schedules T10, mutants no-repair, open-unnamed, no-record, mark-forgotten
//	T11  a paused primary answers what is queued          schedule T11, mutants reply-lease, reply-epoch
//	T12  a late frame brings an old role back             schedule T12, mutants lease-old-epoch, old-record, old-entry
//	T13  a replica counts before the voters know of it    schedule T13, mutants grow-early, shrink-early
//	T14  an operator decides without a majority           schedule T14, and checkUnclean
//	T15  who votes is implicit                            schedule "hand-overs change no voter", mutants implicit-voters, voters-follow, mixed-versions
//	T16  a voter has lost its votes                       schedule T16, mutants grant-unsaved, no-start-wait
//
// And of the invariants: EP6, LV2, LV7, RP3 (T6), RP5, RP6, RP7 (T4) and RP10 are
// schedules here; MB7 and RP11 are checked of every world, in settle and apart.
func lostWriteSchedules() []*schedule {
	return []*schedule{
		{"T2: a primary and a replica that are cut off acknowledge nothing without the other replica", nil, func(w *simWorld) {
			c, p, rs := w.shard(1, 3, 3, 2, 5, 6)
			r, x := rs[0], rs[1]
			w.apart([]*simNode{p, r}, append(c.voters, x))
			w.serves(x, 5, 6)
			w.pass(w.nt) // x alone: it writes nothing
			w.together([]*simNode{r}, append(c.voters, x))
			w.within("LV5", "the replica of the old primary follows the new one", 3*w.nt, func() bool { return x.inSync(r) })
			w.pass(w.nt / 2)
			w.together([]*simNode{p}, c.all())
			w.within("LV5", "the old primary follows the new one", 3*w.nt, func() bool { return x.inSync(p) })
		}},
		{"T3: a replica that has a write never follows one that lacks it", nil, func(w *simWorld) {
			_, p, rs := w.shard(1, 3, 3, 2, 5, 6)
			r, x := rs[0], rs[1]
			forget := w.loseLog(func(_, to *simNode, what any) bool { return to == x && answersLog(what) })
			w.await("who gets nothing is out of sync", 3*w.nt, func() bool { return !p.inSync(x) && p.inSync(r) })
			w.pass(w.nt / 4) // writes that it lacks
			shard, store := p.core.self.Shard, r.core.self.Store
			_, release := w.hold(func(f *simFlight, _ *simNode) bool { return kindOf(f, msgVote) && w.sentBy(f, r) })
			w.onSend = func(n *simNode, m message) {
				if m, ok := m.(*recordMsg); ok && n == x && m.Record.Shard == shard {
					w.fail("RP1", "%s leads, and lacks what is acknowledged", n.name())
				}
			}
			p.crash(false)
			forget()
			w.pass(2 * w.nt) // it asks, and the one that has everything is not heard
			release()
			w.serves(r, 5, 6)
			w.within("LV5", "the other one follows it", 3*w.nt, func() bool { return r.inSync(x) })
			if r.core.self.Store != store {
				w.fail("RP7", "%s has copied everything anew", r.name())
			}
		}},
		{"T4, RP7: a primary that is back at once, with nothing, is a replica", nil, func(w *simWorld) {
			w.volatile = true
			_, p, rs := w.shard(1, 3, 3, 2, 5, 6)
			r, x := rs[0], rs[1]
			id := p.core.id
			p.crash(false)
			w.pass(w.between(0, w.nt/10))
			p.restart()
			w.await("a replica has won", 3*w.nt, func() bool {
				return r.core.lead != nil && r.core.lead.opened || x.core.lead != nil && x.core.lead.opened
			})
			w.within("RP7", "it serves, and has everything", w.nt, func() bool { return r.servesAll(slotSet(5, 6)) || x.servesAll(slotSet(5, 6)) })
			for _, n := range []*simNode{r, x} {
				if len(n.store.values) == 0 {
					w.fail("RP7", "%s has lost its data because %s has", n.name(), id.short())
				}
			}
			if p.core.lead != nil {
				w.fail("RP1", "%s leads, and had lost everything", p.name())
			}
		}},
		{"a primary whose disk has failed is replaced, though its process lives", []mutant{mutBrokenSpeaks}, func(w *simWorld) {
			_, p, rs := w.shard(1, 3, 2, 1, 5, 6)
			p.breakDisk()
			w.serves(rs[0], 5, 6)
			w.pass(w.nt)
		}},
		{"a voter whose disk has failed is replaced, though its process lives", []mutant{mutBrokenSpeaks}, func(w *simWorld) {
			c := w.players(3, 2)
			v := c.voters[0]
			w.shortly()
			v.breakDisk()
			w.within("R12", "somebody else votes instead", 6*w.nt, func() bool {
				set := c.others[0].core.table.voters
				return set.Version.Number > 1 && !set.has(v.core.id)
			})
		}},
		{"a voter whose disk hangs is replaced, though it neither fails nor falls silent", []mutant{mutHangsVotes}, func(w *simWorld) {
			c := w.players(3, 2)
			v := c.voters[w.r.IntN(3)] // also the smallest, who would see to it
			w.shortly()
			v.hangDisk()
			p := c.others[0] // gives it something to save
			p.command(func(s *state, now time.Duration, id uint64) output { return s.bumpEpoch(now, id) }, w.logged(p, "BUMPEPOCH"))
			w.within("R12", "somebody else votes instead", 6*w.nt, func() bool {
				set := c.others[0].core.table.voters
				return set.Version.Number > 1 && !set.has(v.core.id)
			})
			v.unblockDisk()
			w.within("R12", "it knows so", 2*w.nt, func() bool { return !v.core.table.voters.has(v.core.id) })
		}},
		{"T5: a replica that is back without what it has acknowledged is not elected", nil, func(w *simWorld) {
			w.volatile = true
			_, p, rs := w.shard(1, 3, 3, 2, 5, 6)
			r, x := rs[0], rs[1]
			r.crash(false)
			r.restart()
			w.pass(w.between(0, 5*time.Millisecond))
			p.crash(false)
			w.serves(x, 5, 6)
		}},
		{"T6, RP3: a primary that comes back with more than its successor drops it", nil, func(w *simWorld) {
			c, p, rs := w.shard(0, 3, 2, 1, 5, 6)
			r := rs[0]
			w.freshlyLeased(p)
			w.await("its replica is in sync", w.nt, func() bool { return p.inSync(r) })
			w.apart([]*simNode{p}, c.all())
			w.serves(r, 5, 6)
			cuts := w.ledger.reached["tail cut"]
			w.together([]*simNode{p}, c.all())
			w.within("RP3", "it copies everything anew", 3*w.nt, func() bool { return r.inSync(p) && w.ledger.reached["tail cut"] > cuts })
		}},
		{"T7: nothing is acknowledged once the replica has gone to another primary", nil, func(w *simWorld) {
			c, p, rs := w.shard(1, 3, 3, 1, 5, 6)
			w.replicate(rs[0], c.others[2].core.id)
			w.alone(p, 5, 6)
		}},
		{"T7: nothing is acknowledged once the replica has been reset", nil, func(w *simWorld) {
			_, p, rs := w.shard(1, 3, 3, 1, 5, 6)
			r := rs[0]
			r.command(func(s *state, now time.Duration, id uint64) output { return s.reset(now, id, false, false) }, w.logged(r, "RESET"))
			w.await("it has been reset", 9*w.nt, func() bool { return r.core.cluster.IsZero() })
			w.alone(p, 5, 6)
		}},
		{"T7: nothing is acknowledged once the replica has been forgotten", nil, func(w *simWorld) {
			c, p, rs := w.shard(1, 3, 3, 1, 5, 6)
			r := rs[0]
			p.command(func(s *state, now time.Duration, id uint64) output { return s.forget(now, id, r.core.id, true) }, w.logged(p, "FORGET"))
			w.await("everybody has forgotten it", 9*w.nt, func() bool {
				return !slices.ContainsFunc(c.all(), func(n *simNode) bool {
					return n != r && n.core.peers.get(r.core.id) != nil && n.core.peers.get(r.core.id).State != forgotten
				})
			})
			w.alone(p, 5, 6)
		}},
		{"T9: a slot goes when the replicas of its next primary have it", []mutant{mutStageAlone}, func(w *simWorld) {
			c, s, _ := w.shard(1, 3, 4, 1, 5, 6)
			t, x := c.others[2], c.others[3]
			w.follows(x, t)
			forget := w.loseLog(func(_, to *simNode, what any) bool { return to == x && answersLog(what) })
			w.handOff(s, t, 5)
			w.pass(w.nt / 4)
			if t.core.table.slots.at(5).shard == t.core.self.Shard {
				w.fail("MG1", "slot 5 has gone to %s, whose replica has none of it", t.name())
			}
			forget()
			w.await("it is served there", w.nt, func() bool { return t.servesAll(slotSet(5)) })
			t.crash(false)
			w.serves(x, 5)
		}},
		{"T10: a successor completes the MOVE that its primary has begun", nil, func(w *simWorld) {
			c, s, rs := w.shard(1, 3, 4, 1, 5, 6)
			t, x := c.others[2], c.others[3]
			w.follows(x, t)
			forget := w.halfAccepted(s, t, c.voters[0], 5)
			w.apart([]*simNode{rs[0]}, c.voters[2:])
			s.crash(false)
			forget()
			w.serves(rs[0], 6)
			w.within("MG1", "the slot is served where it was to go", 2*w.nt, func() bool { return t.servesAll(slotSet(5)) })
			w.pass(w.nt / 4)
		}},
		{"T10: a successor serves what its primary has frozen", nil, func(w *simWorld) {
			c, s, rs := w.shard(1, 3, 4, 1, 5, 6)
			t, x := c.others[2], c.others[3]
			w.follows(x, t)
			w.lose(func(f *simFlight, to *simNode) bool { return to == s && kindOf(f, msgStaged) })
			w.handOff(s, t, 5)
			w.await("it is staged", w.nt, func() bool { return len(t.store.staged) > 0 })
			s.crash(false)
			w.serves(rs[0], 5, 6)
			w.pass(w.nt / 4)
		}},
		{"T11: a primary that was paused answers nothing of what was queued", nil, func(w *simWorld) {
			w.faults.replyBy = w.nt / 2
			_, p, rs := w.shard(0, 3, 2, 1, 5, 6)
			if len(p.pending) == 0 {
				w.fail(notReached, "requests under way")
			}
			p.stop(3 * w.nt)
			w.serves(rs[0], 5, 6)
			w.pass(3 * w.nt)
		}},
		{"T12: what was said before two changes of roles changes nothing", nil, func(w *simWorld) {
			var said []*simFlight
			var of []*simNode
			w.intercept(func(f *simFlight, _ *simNode) bool {
				if len(of) > 0 && slices.Contains(of, w.nodes[f.node]) && len(said) < 2000 {
					said = append(said, f)
				}
				return true
			})
			c, p, rs := w.shard(0, 3, 3, 2, 5, 6)
			of = []*simNode{p, rs[0]}
			for _, n := range []*simNode{rs[0], p, rs[0]} {
				w.pass(w.nt)
				w.await("the next primary has everything", 2*w.nt, func() bool {
					return slices.ContainsFunc(of, func(o *simNode) bool { return o != n && o.inSync(n) })
				})
				w.failOverTo(n, FailoverPlain)
				w.await("it has taken over", w.nt, func() bool { return n.servesAll(slotSet(5, 6)) })
			}
			w.pass(w.nt)
			of = nil
			was := c.tables()
			for _, f := range said {
				w.redeliver(f)
			}
			w.pass(w.nt)
			if !slices.Equal(c.tables(), was) || !rs[0].servesAll(slotSet(5, 6)) {
				w.fail("MB6", "late frames have changed who leads")
			}
		}},
		{"T13: a replica that the voters do not know yet does not count", nil, func(w *simWorld) {
			c, p, _ := w.shard(1, 3, 3, 0, 5, 6)
			x := c.others[1]
			w.lose(func(f *simFlight, _ *simNode) bool {
				m, ok := f.msg.(*recordMsg)
				return ok && w.sentBy(f, p) && m.Record.N > 0
			})
			w.replicate(x, p.core.id)
			w.await("it has everything, and is proposed", 2*w.nt, func() bool { return p.core.lead.recording != nil })
			w.alone(p, 5, 6)
			w.pass(w.nt)
		}},
		{"T14: who decides without a majority says so", nil, func(w *simWorld) {
			_, p, rs := w.shard(1, 3, 2, 1, 5, 6)
			var said []Event
			w.tap = func(n *simNode, what any) {
				if e, ok := what.(eventTell); ok && e.event.Kind == EventUnclean {
					said = append(said, e.event)
				}
			}
			w.failOverTo(rs[0], FailoverForce)
			w.serves(rs[0], 5, 6)
			if len(said) > 0 {
				w.fail("T14", "a vote of a majority is called unclean: %v", said[0].Text)
			}
			w.await("the other follows it", 3*w.nt, func() bool { return rs[0].inSync(p) })
			w.takeOver(p)
			w.await("it serves", 4*w.nt, func() bool { return p.servesAll(slotSet(5, 6)) && p.core.leaseHeld() })
			if len(said) != 1 || said[0].Shard != p.core.self.Shard || said[0].From != rs[0].core.id || said[0].Node != p.core.id {
				w.fail("T14", "a TAKEOVER is not told of: %+v", said)
			}
		}},
		{"T16: a voter without its votes does not vote", nil, func(w *simWorld) {
			c, p, rs := w.shard(0, 3, 2, 1, 5, 6)
			r, v := rs[0], c.voters[0]
			_, release := w.hold(func(f *simFlight, to *simNode) bool { return to == r && kindOf(f, msgGrant) })
			shard := p.core.self.Shard
			p.crash(false)
			w.await("it has voted", 3*w.nt, func() bool { return v.core.vote.shards[shard].promised.Node == r.core.id })
			id := v.core.id
			v.crash(false)
			v.disk, v.durableEpoch = map[cellKey][]byte{}, 0 // another node, on its host
			w.onSend = func(n *simNode, m message) {
				if n == v && (m.kind() == msgGrant || m.kind() == msgAccept) {
					w.fail("EP2", "%s votes, and has lost its votes", n.name())
				}
			}
			v.restart()
			if v.core.id == id || v.core.isVoter() {
				w.fail("EP2", "%s is a voter, and has lost its votes", v.name())
			}
			release()
			w.serves(r, 5, 6)
			w.pass(2 * w.nt)
		}},

		{"EP6: a primary that has been replaced wins nothing back by a higher number", nil, func(w *simWorld) {
			c, p, rs := w.shard(0, 3, 2, 1, 5, 6)
			r := rs[0]
			w.apart([]*simNode{p}, c.all())
			w.serves(r, 5, 6)
			w.await("it has asked under a higher number", 20*w.nt, func() bool {
				return p.core.stand != nil && p.core.stand.epoch.Number > r.core.lead.epoch.Number
			})
			w.together([]*simNode{p}, c.all())
			w.within("EP6", "it follows its successor", 3*w.nt, func() bool { return r.inSync(p) })
			w.pass(5 * w.nt)
			if !r.servesAll(slotSet(5, 6)) {
				w.fail("EP6", "%s serves no more what it has won", r.name())
			}
		}},
		{"LV2: two candidates that do not hear each other do not hinder each other for long", []mutant{mutLockstep}, func(w *simWorld) {
			c, p, rs := w.shard(0, 3, 3, 2, 5, 6)
			r, x := rs[0], rs[1]
			was := p.core.lead.epoch
			// Each is near to one voter, and the third is down: a majority is both.
			w.apart([]*simNode{r}, []*simNode{x})
			c.voters[2].crash(false)
			w.intercept(func(f *simFlight, to *simNode) bool {
				if !kindOf(f, msgVote) || w.sentBy(f, r) == (to == c.voters[0]) {
					return true
				}
				if w.calm {
					return true
				}
				w.after(2*time.Millisecond, func() {
					if to.up {
						to.do(func(s *state, now time.Duration) output { return s.receive(now, f.from, f.to, f.msg) })
					}
				})
				return false
			})
			w.pass(2 * w.nt) // each finds the other silent, and itself the first
			p.crash(false)
			w.within("LV2", "one of them serves", 3*w.nt, func() bool { return r.servesAll(slotSet(5, 6)) || x.servesAll(slotSet(5, 6)) })
			for _, n := range []*simNode{r, x} {
				if l := n.core.lead; l != nil && l.epoch.Number > was.Number+2*roundsMost {
					w.fail("LV2", "%s has won under %v, the one before was %v", n.name(), l.epoch, was)
				}
			}
		}},
		{"LV7: a voter that lacks the newest record learns it from who stands", nil, func(w *simWorld) {
			w.faults.backlog = 1000
			c := w.players(3, 2)
			p, r := c.others[0], c.others[1]
			w.own(p, 5, 6)
			behind := c.voters[0]
			w.lose(func(f *simFlight, to *simNode) bool {
				return kindOf(f, msgRecord) && w.sentBy(f, p) && to == behind || kindOf(f, msgInSync) && to == r
			})
			w.follows(r, p)
			w.pass(w.nt / 2)
			if v := behind.core.vote.shards[p.core.self.Shard]; v.record.electable(r.core.member()) {
				w.fail(notReached, "a voter that is behind")
			}
			c.voters[2].crash(false)
			p.crash(false)
			w.serves(r, 5, 6)
		}},
		{"RP5: a replica that has copied nothing yet does not stand", []mutant{mutEmptyStands}, func(w *simWorld) {
			c, p, _ := w.shard(1, 3, 3, 0, 5, 6)
			x := c.others[1]
			w.loseLog(func(_, to *simNode, what any) bool { return to == x && copiesLog(what) })
			w.replicate(x, p.core.id)
			w.await("it is a replica", w.nt, func() bool { return x.core.role.primary == p.core.id })
			w.pass(10 * time.Millisecond)
			shard := p.core.self.Shard
			w.onSend = func(n *simNode, m message) {
				if v, ok := m.(*voteMsg); ok && n == x && v.Shard == shard && !n.core.holdsCopy {
					w.fail("RP5", "%s stands, and has no copy", n.name())
				}
			}
			p.crash(false)
			w.pass(4 * w.nt)
		}},
		{"RP6: a copy that does not come whole replaces nothing", nil, func(w *simWorld) {
			w.volatile = false
			_, p, rs := w.shard(0, 3, 3, 2, 5, 6)
			r, x := rs[0], rs[1]
			w.faults.backlog = 0
			forget := w.loseLog(func(from, _ *simNode, what any) bool { return from == x && asksLog(what) })
			w.pass(2 * w.nt) // more is written than its primary keeps
			_, release := w.holdLog(func(_, to *simNode, what any) bool { return to == x && copiesLog(what) })
			forget()
			w.pass(w.nt / 2)
			had := maps.Clone(x.store.values)
			p.crash(false)
			r.crash(false)
			release()
			w.serves(x, 5, 6)
			for slot, v := range had {
				if has := x.store.values[slot]; !descends(has[0], v[0]) {
					w.fail("RP6", "%s had %v of slot %d, and has %v", x.name(), v[0].short(), slot, has[0].short())
				}
			}
		}},
		{"RP10: what was acknowledged in an older epoch does not count", nil, func(w *simWorld) {
			_, p, rs := w.shard(0, 3, 2, 1, 5, 6)
			r := rs[0]
			held, release := w.holdLog(func(from, _ *simNode, what any) bool { _, ok := what.(simSay); return ok && from == r })
			w.await("it acknowledges", w.nt, func() bool { return len(*held) > 3 })
			was := p.core.lead.epoch
			w.bump(p)
			w.await("there is a new epoch", 2*w.nt, func() bool { return p.core.lead.opened && was.less(p.core.lead.epoch) })
			forget := w.loseLog(func(from, _ *simNode, what any) bool {
				s, ok := what.(simSay)
				return ok && from == r && s.epoch != was
			})
			release()
			w.pass(5 * time.Millisecond)
			if at := p.replica.log.acks[r.core.member()]; at > 0 {
				w.fail("RP10", "%s counts as having %d entries, and has said nothing in epoch %v", r.name(), at, p.core.lead.epoch)
			}
			forget()
			w.within("RP10", "it counts again", w.nt, func() bool { return p.replica.log.acks[r.core.member()] >= p.replica.log.inherited })
		}},
	}
}

// alone checks that a strict primary acknowledges no write while no other member
// that the voters know of has it.
func (w *simWorld) alone(p *simNode, slots ...Slot) {
	w.await("it knows that it is alone", 3*w.nt, func() bool { return p.core.lead != nil && p.core.role.peers == 0 })
	w.pass(w.nt / 20)
	var was []*simWrite
	for _, s := range slots {
		was = append(was, w.ledger.committed[simSlotKey{p.core.cluster, s, 0}])
	}
	w.pass(2 * w.nt)
	for i, s := range slots {
		if is := w.ledger.committed[simSlotKey{p.core.cluster, s, 0}]; is != was[i] {
			w.fail("RP1", "%s has acknowledged %v of slot %d, and nobody else has it", p.name(), is.short(), s)
		}
	}
}

// tables are the tables of all players that are up, as sums.
func (c *players) tables() []uint64 {
	var sums []uint64
	for _, n := range c.all() {
		if n.up {
			sums = append(sums, n.core.table.sum)
		}
	}
	return sums
}
