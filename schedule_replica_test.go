package slotmesh

import (
	"slices"
	"time"
)

// ---- what schedules of replicas are made of

// follows makes r a replica of p, and waits until it is in sync.
func (w *simWorld) follows(r, p *simNode) {
	w.replicate(r, p.core.id)
	w.await(r.name()+" is in sync", 4*w.nt, func() bool { return p.inSync(r) })
}

// inSync reports whether the last accepted record of n names r, and no other is on
// its way.
func (n *simNode) inSync(r *simNode) bool {
	l := n.core.lead
	return l != nil && l.opened && l.recording == nil && slices.Contains(l.inSync, r.core.member())
}

// shard makes the first of the others the primary of some slots, and the next ones
// its replicas, with acks of them in every acknowledged write.
func (w *simWorld) shard(acks, voters, others, replicas int, slots ...Slot) (c players, p *simNode, rs []*simNode) {
	w.ack, w.faults.backlog = acks, 1000
	c = w.players(voters, others)
	p, rs = c.others[0], c.others[1:1+replicas]
	w.own(p, slots...)
	for _, r := range rs {
		w.follows(r, p)
	}
	w.pass(w.nt / 4) // and is written to
	return c, p, rs
}

// within fails, by the name of an invariant, if something does not come about in
// time.
func (w *simWorld) within(name, what string, limit time.Duration, cond func() bool) bool {
	for end := w.now + limit; len(w.fails) == 0; w.run(w.now + time.Millisecond) {
		if cond() {
			return true
		}
		if w.now >= end {
			w.fail(name, "%s: not within %v", what, limit)
		}
	}
	return false
}

// serves waits until n serves slots of a primary that is gone.
func (w *simWorld) serves(n *simNode, slots ...Slot) {
	w.within("LV1", n.name()+" serves what its primary did", 4*w.nt, func() bool { return n.up && n.servesAll(slotSet(slots...)) && n.core.leaseHeld() })
}

// loseLog drops what logs carry and match; forget ends it.
func (w *simWorld) loseLog(match func(from, to *simNode, what any) bool) (forget func()) {
	return w.interceptLog(func(from, to *simNode, what any, _ func()) bool { return !match(from, to, what) })
}

// holdLog keeps back what logs carry and match; release lets all of it arrive.
func (w *simWorld) holdLog(match func(from, to *simNode, what any) bool) (held *[]func(), release func()) {
	held = new([]func())
	forget := w.interceptLog(func(from, to *simNode, what any, arrive func()) bool {
		if !match(from, to, what) {
			return true
		}
		*held = append(*held, arrive)
		return false
	})
	return held, func() {
		forget()
		for _, arrive := range *held {
			w.after(w.between(0, time.Millisecond), arrive)
		}
		*held = nil
	}
}

func (w *simWorld) interceptLog(keep func(from, to *simNode, what any, arrive func()) bool) (forget func()) {
	if w.logFilters == nil {
		w.logFilters = map[int]func(from, to *simNode, what any, arrive func()) bool{}
	}
	w.filterSeq++
	id := w.filterSeq
	w.logFilters[id] = keep
	return func() { delete(w.logFilters, id) }
}

// asksLog and answersLog tell what a log carries: a question to the primary, or what
// it has sent, entries or everything.
func asksLog(what any) bool {
	q, ok := what.(*simPull)
	return ok && q.epoch == (Epoch{})
}

func answersLog(what any) bool {
	q, ok := what.(*simPull)
	return ok && q.epoch != (Epoch{})
}

func copiesLog(what any) bool {
	q, ok := what.(*simPull)
	return ok && q.all != nil
}

// showsAtOnce reports whether a replica shows what it has of a slot that is written to.
func (w *simWorld) showsAtOnce(r *simNode, slot Slot) bool {
	return w.await(r.name()+" shows what it has", w.nt, func() bool {
		w.readAtReplica(r, slot)
		return w.ledger.reached["read at a replica"] > 0
	})
}

// readFor has a client read a slot at a replica again and again.
func (w *simWorld) readFor(d time.Duration, r *simNode, slot Slot) {
	for end := w.now + d; w.now < end && len(w.fails) == 0; w.pass(5 * time.Millisecond) {
		w.readAtReplica(r, slot)
	}
}

// failOverTo is an operator's plain failover.
func (w *simWorld) failOverTo(n *simNode, mode FailoverMode) {
	w.logf("%s: FAILOVER %d", n.name(), mode)
	n.command(func(s *state, now time.Duration, cmd uint64) output { return s.failoverTo(now, cmd, mode) }, w.logged(n, "FAILOVER"))
}

// imports marks a slot of another primary IMPORTING at n.
func (w *simWorld) imports(n, from *simNode, slot Slot) {
	n.command(func(s *state, now time.Duration, id uint64) output {
		return s.setSlotImporting(now, id, slot, from.core.id)
	}, w.logged(n, "SETSLOT IMPORTING"))
	w.await("it imports the slot", w.nt, func() bool { return len(n.core.marks) == 1 })
}

// asking is a write to a slot that n imports, by a client whom ASK has sent there;
// false: it is not acknowledged.
func (w *simWorld) asking(n *simNode, slot Slot) (*simWrite, bool) {
	if m, marked := n.core.marks[slot]; !marked || !m.Importing || n.core.serve.hold.Contains(slot) || n.local() >= n.core.servesUntil() {
		return nil, false
	}
	v := &simWrite{n: 1, node: int32(n.index), at: w.now}
	n.log(simEntry{kind: simPut, slot: slot, value: v})
	return v, true
}

// ---- rules of replicas

func replicaSchedules() []*schedule {
	return []*schedule{
		{"who has agreed to a failover acknowledges nothing more, not even to ASKING", []mutant{mutConsentNotFinal}, func(w *simWorld) {
			c, p, rs := w.shard(0, 3, 3, 1, 5)
			r, a := rs[0], c.others[2]
			w.own(a, 9)
			w.imports(p, a, 9)
			_, votes := w.hold(func(f *simFlight, _ *simNode) bool { return kindOf(f, msgVote) && w.sentBy(f, r) })
			w.failOverTo(r, FailoverPlain)
			w.await("it has agreed", w.nt, func() bool { return p.core.lead.consent.given() })
			w.lose(func(_ *simFlight, to *simNode) bool { return to == p }) // of its successor it hears nothing
			votes()
			if !w.await("its successor leads", w.nt/4, func() bool { return r.servesAll(slotSet(5)) }) {
				return
			}
			if v, ok := w.asking(p, 9); ok && r.store.values[9][0] != v {
				w.fail("RP9", "%s has agreed to a failover, and acknowledges what %s has not", p.name(), r.name())
			}
		}},
		{"who has handed its shard over leads it again where its successor dies at once", []mutant{mutGiverLost}, func(w *simWorld) {
			_, p, rs := w.shard(1, 3, 2, 1, 5, 6)
			r := rs[0]
			w.failOverTo(r, FailoverPlain)
			w.await("its successor leads", w.nt, func() bool { return r.core.lead != nil && r.core.lead.opened })
			r.crash(false)
			w.serves(p, 5, 6)
		}},
		{"whoever is being handed over acknowledges nothing that its successor may lack, not even to ASKING", []mutant{mutAskingPaused}, func(w *simWorld) {
			c, p, rs := w.shard(0, 3, 3, 1, 5)
			r, a := rs[0], c.others[2]
			w.own(a, 9)
			w.imports(p, a, 9)
			_, acks := w.holdLog(func(from, to *simNode, what any) bool { _, ok := what.(simSay); return ok && from == r && to == p })
			first, ok := w.asking(p, 9)
			if !ok {
				w.fail(notReached, "%s serves nothing to ASKING", p.name())
			}
			w.failOverTo(r, FailoverPlain)
			w.await("it lets nobody in", w.nt/4, func() bool { return p.core.lead.consent != nil })
			w.pass(10 * time.Millisecond) // what ran has ended: it waits for what there is by now
			w.loseLog(func(_, to *simNode, what any) bool { return to == r && answersLog(what) })
			v, ok := w.asking(p, 9)
			acks()
			if !w.await("its successor leads", w.nt/4, func() bool { return r.servesAll(slotSet(5)) }) {
				return
			}
			if have := r.store.values[9][0]; have != first && (!ok || have != v) {
				w.fail("RP9", "%s has %v, acknowledged before was %v", r.name(), have.short(), first.short())
			}
			if ok && r.store.values[9][0] != v {
				w.fail("RP9", "%s has acknowledged what %s has not", p.name(), r.name())
			}
		}},
		{"RP13: a replica that has not heard that a slot has left its shard does not show what was there", []mutant{mutShowsReplaced}, func(w *simWorld) {
			c, p, rs := w.shard(0, 3, 3, 1, 5, 6)
			r, a := rs[0], c.others[2]
			if !w.showsAtOnce(r, 5) {
				return
			}
			w.lose(func(f *simFlight, to *simNode) bool { return to == r && !kindOf(f, msgHeartbeat) })
			p.do(func(s *state, now time.Duration) output { return s.handOff(now, 7, slotSet(5), a.core.self.Shard) })
			w.await("the slot has a new owner", w.nt, func() bool { return a.servesAll(slotSet(5)) })
			w.readFor(3*w.nt, r, 5)
		}},
		{"RP13: a replica that follows a primary which was replaced does not show what it has", []mutant{mutShowsReplaced}, func(w *simWorld) {
			_, p, rs := w.shard(0, 3, 4, 2, 5, 6)
			r, q := rs[0], rs[1]
			if !w.showsAtOnce(r, 5) {
				return
			}
			near := []*simNode{p, r} // they hear that the others live, and nothing else; the others do not hear them
			w.lose(func(f *simFlight, to *simNode) bool {
				from, inside := slices.Contains(near, w.nodes[f.node]), slices.Contains(near, to)
				return from && !inside || inside && !from && !kindOf(f, msgHeartbeat)
			})
			w.await("the other replica leads", 4*w.nt, func() bool { return q.servesAll(slotSet(5)) && q.core.leaseHeld() })
			w.readFor(3*w.nt, r, 5)
			if r.core.role.primary != p.core.id || !r.core.majorityHeard() {
				w.fail(notReached, "%s follows %s", r.name(), r.core.role.primary.short())
			}
		}},
		{"a member is proposed when it has everything that was acknowledged before", []mutant{mutJoinBehind, mutGrowEarly}, func(w *simWorld) {
			_, p, rs := w.shard(1, 3, 3, 1, 5, 6)
			r, x := rs[0], w.nodes[5]
			// It has copied everything when writes go on without it.
			forget := w.loseLog(func(from, _ *simNode, what any) bool { return from == x && asksLog(what) && x.core.holdsCopy })
			w.replicate(x, p.core.id)
			w.await("it has a copy", 2*w.nt, func() bool { return x.core.holdsCopy && x.core.role.primary == p.core.id })
			w.pass(w.nt / 4)
			w.loseLog(func(_, to *simNode, what any) bool { return to == x && answersLog(what) })
			forget()
			w.pass(w.nt / 2) // it asks, and is waited for
			p.crash(false)
			r.crash(false)
			w.pass(4 * w.nt)
		}},
		{"who has lost its copy since it was promised something is another candidate", []mutant{mutSameNode}, func(w *simWorld) {
			c, p, rs := w.shard(1, 3, 3, 2, 5, 6)
			r, x := rs[0], rs[1]
			w.faults.backlog = 0
			shard, store := p.core.self.Shard, r.core.self.Store
			stays := w.loseLog(func(_, to *simNode, what any) bool { return to == r && answersLog(what) })
			w.await("it lacks more than is kept", w.nt/4, func() bool { return p.replica.log.end-uint64(len(p.replica.entries)) > r.replica.log.end })
			w.lose(func(f *simFlight, _ *simNode) bool { return w.sentBy(f, p) || kindOf(f, msgVote) && w.sentBy(f, x) })
			granted := w.lose(func(f *simFlight, to *simNode) bool { return to == r && kindOf(f, msgGrant) })
			w.await("every voter has promised it", 3*w.nt, func() bool {
				return !slices.ContainsFunc(c.voters, func(v *simNode) bool { return v.core.vote.known(shard).promised.Node != r.core.id })
			})
			stays()
			w.await("a copy takes the place of what it has", w.nt, func() bool { return r.core.self.Store != store })
			granted()
			w.pass(w.nt)
		}},
		{"LV8: who is heard and gets no further with the log is waited for no more, until it has caught up", []mutant{mutStandsStill, mutStuckBack}, func(w *simWorld) {
			w.faults.opsEvery = 100 * time.Millisecond // so that it lacks little, and would be as good as there
			_, p, rs := w.shard(1, 3, 3, 2, 5, 6)
			r := rs[0]
			for way := hangBoth; way <= hangEntries && len(w.fails) == 0; way++ {
				w.hang(r, p, way, 2*w.nt)
				w.pass(10 * time.Millisecond) // what was on its way has come
				writes, heals := w.ledger.writes, w.now+2*w.nt-10*time.Millisecond
				w.within("LV8", "writes go on with the other replica", w.nt, func() bool { return w.ledger.writes > writes && !p.inSync(r) && p.inSync(rs[1]) })
				for w.now < heals && len(w.fails) == 0 {
					if slices.Contains(p.core.role.waits, r.core.member()) {
						w.fail("LV8", "%s waits for %s again, whose connection hangs yet", p.name(), r.name())
					}
					w.pass(time.Millisecond)
				}
				w.within("LV5", "it has caught up, and is in sync", w.nt, func() bool { return p.inSync(r) })
			}
		}},
		{"LV8: a strict primary without the replicas that it needs acknowledges no write", nil, func(w *simWorld) {
			_, p, rs := w.shard(1, 3, 2, 1, 5, 6)
			w.hang(rs[0], p, w.r.IntN(3), 4*w.nt)
			w.pass(10 * time.Millisecond)
			writes := w.ledger.writes
			w.within("LV8", "nobody is left in sync", w.nt, func() bool { return p.core.role.peers == 0 && len(p.core.role.waits) == 0 })
			w.pass(2 * w.nt)
			if n := w.ledger.writes - writes; n > 0 {
				w.fail("RP1", "%s has acknowledged %d writes that nobody else has", p.name(), n)
			}
			w.within("LV5", "it has caught up, and writes go on", 2*w.nt, func() bool { return p.inSync(rs[0]) && w.ledger.writes > writes })
		}},
		{"a winner acknowledges nothing of what it has inherited before all have it", []mutant{mutInheritedShown}, func(w *simWorld) {
			_, p, rs := w.shard(1, 3, 3, 2, 5, 6)
			r, x := rs[0], rs[1]
			forget := w.loseLog(func(_, to *simNode, what any) bool { return to == x && answersLog(what) })
			w.pass(w.nt / 2) // writes that are on one replica of two
			p.crash(false)
			w.await("the one that has more has won", 3*w.nt, func() bool { return r.core.lead != nil && r.core.lead.opened })
			w.pass(w.nt / 5) // and is asked for what it has
			r.crash(false)
			forget()
			w.serves(x, 5, 6)
		}},
		{"a primary that its replicas hear is replaced when it has lost its lease", []mutant{mutStandAnyBeat}, func(w *simWorld) {
			c, p, rs := w.shard(0, 3, 2, 1, 5, 6)
			w.apart([]*simNode{p}, c.voters)
			w.serves(rs[0], 5, 6)
		}},
		{"a RECORD that comes late does not bring a lost member back", []mutant{mutOldRecord}, func(w *simWorld) {
			c := w.lostMember(func(p, x *simNode, late []*simFlight) {
				for _, f := range late {
					w.redeliver(f)
				}
				w.pass(2 * time.Millisecond)
			})
			w.pass(4 * w.nt)
			if x := c.others[2]; x.core.lead != nil {
				w.fail("RP1", "%s leads, and had been lost", x.name())
			}
		}},
		{"of two members in sync the one that has more goes first", []mutant{mutNoRank}, func(w *simWorld) {
			_, p, rs := w.shard(0, 3, 3, 2, 5, 6)
			r, x := rs[0], rs[1]
			w.loseLog(func(_, to *simNode, what any) bool { return to == x && answersLog(what) })
			w.pass(w.nt / 4) // in sync yet: it has not stood still for long
			if !p.inSync(x) || p.replica.log.end <= x.replica.log.end {
				w.fail(notReached, "%s is in sync, and lacks some", x.name())
			}
			p.crash(false)
			w.within("LV1", "one of them leads", 2*w.nt, func() bool { return r.core.lead != nil || x.core.lead != nil })
			if x.core.lead != nil {
				w.fail("RP8", "%s has won, and %s has more", x.name(), r.name())
			}
		}},
		{"a lease that a voter has given ends by itself, and not by one that it gives to another", []mutant{mutOneLease}, func(w *simWorld) {
			c, p, rs := w.shard(0, 3, 2, 1, 5, 6)
			r := rs[0]
			w.apart([]*simNode{p}, append([]*simNode{r}, c.voters...))
			w.failOverTo(r, FailoverForce)
			w.await("it has won", w.nt/2, func() bool { return r.core.lead != nil && r.core.lead.opened })
			w.pass(w.nt / 20) // and is leased
			w.bump(r)
			w.pass(w.nt)
		}},
		{"whoever has won by force gives nothing that the one before may serve", []mutant{mutForceGives}, func(w *simWorld) {
			c, p, rs := w.shard(0, 3, 3, 1, 5, 6)
			r, q := rs[0], c.others[2]
			w.apart([]*simNode{p}, append([]*simNode{r, q}, c.voters...))
			w.failOverTo(r, FailoverForce)
			w.await("it has won", w.nt/2, func() bool { return r.core.lead != nil && r.core.lead.opened })
			w.handOff(r, q, 5)
			w.pass(w.nt)
		}},
		{"a replica goes to another primary only where its own keeps one that can take its place", []mutant{mutMayGo}, func(w *simWorld) {
			c, p, rs := w.shard(1, 3, 5, 1, 5, 6)
			r, x, q, y := rs[0], c.others[2], c.others[3], c.others[4]
			w.own(q, 9)
			w.ledger.hot = []Slot{5, 6}
			w.follows(y, q)
			w.loseLog(func(_, to *simNode, what any) bool { return to == x && answersLog(what) })
			w.replicate(x, p.core.id)
			w.pass(w.nt / 4)
			y.crash(false)
			y.gone = true
			w.pass(2 * w.nt)
			p.crash(false)
			w.serves(r, 5, 6)
		}},
		{"LV9: a primary that has lost its last replica gets one of another's two", []mutant{mutStaysPut}, func(w *simWorld) {
			c, p, rs := w.shard(1, 3, 5, 2, 5, 6)
			q, y := c.others[3], c.others[4]
			w.own(q, 9)
			w.ledger.hot = []Slot{5, 6}
			w.follows(y, q)
			y.crash(false)
			y.gone = true
			w.within("LV9", "one of the two goes there", 4*w.nt, func() bool { return q.inSync(rs[0]) || q.inSync(rs[1]) })
			w.pass(w.nt)
			if p.inSync(rs[0]) == p.inSync(rs[1]) {
				w.fail("LV9", "%s has not kept one of its two replicas", p.name())
			}
		}},
		{"LV9: a node to spare backs up who has no replica", []mutant{mutIdleSpare}, func(w *simWorld) {
			c := w.players(3, 1)
			x := c.others[0]
			x.core.cfg.form.Replicas = 1
			w.within("LV9", "it is a replica", 4*w.nt, func() bool {
				return slices.ContainsFunc(c.voters, func(v *simNode) bool { return v.inSync(x) })
			})
		}},
		{"RP4: what a deposed primary sends is no copy", nil, copyOfADeposed},
		{"RP4: nobody goes on with its own log where a store is half a copy", nil, leadsWithHalfACopy},
		{"what an older primary has sent does not replace what a newer one has", []mutant{mutAckOld}, func(w *simWorld) {
			_, p, rs := w.shard(1, 3, 3, 1, 5, 6)
			r, x := rs[0], w.nodes[5]
			held, release := w.holdLog(func(from, to *simNode, what any) bool { return from == p && to == x && copiesLog(what) })
			w.replicate(x, p.core.id)
			w.await("a copy is on its way", w.nt, func() bool { return len(*held) > 0 })
			p.crash(false)
			w.serves(r, 5, 6)
			w.await("it is in sync with the next primary", 2*w.nt, func() bool { return r.inSync(x) })
			w.pass(w.nt / 4) // acknowledged: two have it
			release()
			w.pass(2 * time.Millisecond)
			r.crash(false)
			w.within("RP1", "the last member that has everything serves", 4*w.nt, func() bool { return x.servesAll(slotSet(5, 6)) })
		}},
	}
}

// copyOfADeposed: a primary is deposed while it sends a copy, with writes at the end of
// its log that its successor has not got. Whoever copies hears of the successor late.
func copyOfADeposed(w *simWorld) {
	_, p, rs := w.shard(0, 3, 3, 1, 5, 6)
	r, x := rs[0], w.nodes[5]
	asked, begin := w.holdLog(func(from, to *simNode, what any) bool { return from == x && to == p && asksLog(what) })
	w.replicate(x, p.core.id)
	w.await("it asks", w.nt, func() bool { return len(*asked) > 0 })
	hot := w.ledger.hot
	w.ledger.hot = []Slot{NumSlots - 1}
	w.await("its replica has everything", w.nt, func() bool { return r.replica.log.end == p.replica.log.end })
	w.pass(5 * time.Millisecond)
	heals := w.lose(func(_ *simFlight, to *simNode) bool { return to == x })
	begin()
	w.pass(3 * time.Millisecond)
	follows := w.loseLog(func(_, to *simNode, what any) bool { return to == r && answersLog(what) })
	w.ledger.hot = hot
	w.pass(10 * time.Millisecond) // a tail
	w.takeOver(r)
	w.pass(w.nt / 8)
	follows()
	heals()
	w.pass(2 * w.nt)
}

// leadsWithHalfACopy: a replica takes over while a copy takes the place of what it has,
// and another one is where it was before.
func leadsWithHalfACopy(w *simWorld) {
	_, p, rs := w.shard(0, 3, 3, 2, 5, 6)
	w.faults.backlog = 8
	stays := w.loseLog(func(_, to *simNode, what any) bool { return slices.Contains(rs, to) && answersLog(what) })
	w.pass(10 * time.Millisecond) // what was on its way has come
	r, x := rs[0], rs[1]
	if r.replica.log.end < x.replica.log.end {
		r, x = x, r
	}
	w.await("they lack more than is kept", 2*w.nt, func() bool { return p.replica.log.end-uint64(len(p.replica.entries)) > r.replica.log.end })
	w.loseLog(func(_, to *simNode, what any) bool {
		return to == x && answersLog(what) && w.nodeOf(what.(*simPull).primary) == p
	})
	stays()
	w.await("a copy takes the place of what it has", 2*w.nt, func() bool { return r.replica.copying != nil })
	w.takeOver(r)
	w.serves(r, 5, 6)
	w.pass(w.nt)
}

// lostMember makes a strict shard of three, of which the primary loses the last
// one, which is cut off from it and lives. before is what happens then; late are the
// RECORDs, one to each voter, that still name it. In the end the primary and its other
// replica die.
func (w *simWorld) lostMember(before func(p, x *simNode, late []*simFlight)) players {
	named := map[*simNode]*simFlight{}
	var x *simNode
	w.intercept(func(f *simFlight, to *simNode) bool {
		if m, ok := f.msg.(*recordMsg); ok && x != nil && slices.Contains(m.Record.InSync, x.core.member()) {
			named[to] = f
		}
		return true
	})
	w.ack, w.faults.backlog = 1, 1000
	c := w.players(3, 3)
	p, r := c.others[0], c.others[1]
	x = c.others[2]
	w.own(p, 5, 6)
	w.follows(r, p)
	w.follows(x, p)
	w.pass(w.nt / 4)
	w.apart([]*simNode{x}, []*simNode{p, r})
	w.await("it is lost, and every voter knows", 2*w.nt, func() bool {
		return !p.inSync(x) && p.inSync(r) && !slices.ContainsFunc(c.voters, func(v *simNode) bool {
			return v.core.vote.shards[p.core.self.Shard].record.N != p.core.lead.n
		})
	})
	w.pass(w.nt / 4) // acknowledged without it
	var late []*simFlight
	for _, v := range c.voters {
		if f := named[v]; f != nil {
			late = append(late, f)
		}
	}
	if len(late) < 2 && len(w.fails) == 0 {
		w.fail(notReached, "%d RECORDs that name it", len(late))
	}
	before(p, x, late)
	p.crash(false)
	r.crash(false)
	return c
}
