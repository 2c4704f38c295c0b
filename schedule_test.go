package slotmesh

import (
	"flag"
	"slices"
	"testing"
	"time"

	"github.com/slotmesh/slotmesh/internal/racing"
)

// A schedule is a chain of events that chance brings about too seldom. It holds
// with the rules as they are; where one of the mutants that it names is planted
// it violates an invariant, which shows that it goes where it says. Delays alone
// are drawn from the seed.
type schedule struct {
	name  string
	finds []mutant
	run   func(w *simWorld)
}

var scheduleSeeds = flag.Int("sim.schedules", 1, "seeds that TestSchedules runs of each schedule")

// notReached is the name under which a schedule says that it did not come about.
const notReached = "not reached"

func (s *schedule) world(seed uint64) *simWorld { return s.traced(seed, nil) }

func (s *schedule) traced(seed uint64, trace *simTrace) *simWorld {
	w := newSimWorld(seed)
	w.trace = trace
	return s.in(w)
}

// in runs it in a world of its own.
func (s *schedule) in(w *simWorld) *simWorld {
	w.stopAt = true
	w.checkOW1Overlap()
	s.run(w)
	if len(w.fails) == 0 {
		w.mendAll()
		w.settle(w.now + 2*simCalmFor*w.nt)
	}
	return w
}

func TestSchedules(t *testing.T) {
	racing.Pure(t)
	for _, s := range schedules() {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			t.Logf("finds the mutants %v", s.finds)
			for seed := range uint64(*scheduleSeeds) {
				if w := s.world(seed); len(w.fails) > 0 {
					tr := &simTrace{max: *simTail}
					w = s.traced(seed, tr)
					t.Fatalf("seed %d: %v\nreplay: go test -run '%s' -sim.schedules=%d -sim.tail=2000\n%v\n%s", seed, w.fails, t.Name(), seed+1, tr, w.dump())
				}
			}
		})
	}
}

func schedules() []*schedule {
	return slices.Concat(leaseSchedules(), moveSchedules(), voterSchedules(), formSchedules(), replicaSchedules(), lostWriteSchedules())
}

// ---- what schedules are made of

// players are the nodes of a schedule. The voters form the cluster and own every
// slot at first; the others have joined it, do not vote, and lead shards of
// their own.
type players struct {
	voters []*simNode // ascending by id
	others []*simNode
}

// players makes a settled cluster. rates are the rates of the voters' clocks and
// of the first other's; nil: as drawn.
func (w *simWorld) players(voters, others int, rates ...float64) players {
	w.maxVoters = voters
	w.ledger.hot = []Slot{NumSlots - 1}
	var c players
	for range voters {
		c.voters = append(c.voters, w.addNode())
	}
	for range others {
		c.others = append(c.others, w.addNode())
	}
	for i, r := range rates {
		w.nodes[i].rate = r
	}
	w.byHand(w.nodes, voters)
	w.await("a settled cluster", 10*w.nt, func() bool {
		if slices.ContainsFunc(w.nodes, func(n *simNode) bool { return !n.core.leaseHeld() }) {
			return false
		}
		w.pass(w.nt / 20)
		gs := w.groups()
		return len(gs) == 1 && len(gs[0].nodes) == len(w.nodes) && w.unsettled() == ""
	})
	w.run(w.now + w.between(0, w.nt/2)) // heartbeats come as they come
	if len(w.fails) == 0 {
		slices.SortFunc(c.voters, func(a, b *simNode) int { return a.core.id.compare(b.core.id) })
	}
	return c
}

// await runs until cond holds.
func (w *simWorld) await(what string, limit time.Duration, cond func() bool) bool {
	for end := w.now + limit; len(w.fails) == 0; {
		if cond() {
			return true
		}
		if w.now >= end {
			w.fail(notReached, "%s within %v", what, limit)
		}
		w.run(w.now + time.Millisecond)
	}
	return false
}

// pass lets time go by.
func (w *simWorld) pass(d time.Duration) { w.run(w.now + d) }

func slotSet(slots ...Slot) SlotSet {
	var set SlotSet
	for _, s := range slots {
		set.Add(s)
	}
	return set
}

// own gives slots without keys to a node, and waits until it serves them. From
// then on they are the ones that clients use.
func (w *simWorld) own(n *simNode, slots ...Slot) {
	set := slotSet(slots...)
	w.setSlot(w.nodes[0], set, n.core.id)
	w.await(n.name()+" serves its slots", 4*w.nt, func() bool { return n.servesAll(set) })
	w.ledger.hot = slots
}

func (n *simNode) servesAll(set SlotSet) bool {
	set.Subtract(&n.core.serve.slots)
	return set.Empty()
}

// insist repeats an operator's command until a node serves the slots that it is
// to take.
func (w *simWorld) insist(n *simNode, slots ...Slot) {
	set := slotSet(slots...)
	var again func()
	again = func() {
		if w.calm || n.servesAll(set) {
			return
		}
		w.setSlot(n, set, n.core.id)
		w.after(w.nt/20, again)
	}
	again()
}

// apart cuts the connections between two sides, both ways.
func (w *simWorld) apart(as, bs []*simNode) {
	if w.cuts == nil {
		w.cuts = map[[2]*simNode]bool{}
		w.cut = func(from, to *simNode) bool { return w.cuts[[2]*simNode{from, to}] }
	}
	for _, a := range as {
		for _, b := range bs {
			if a != b {
				w.cuts[[2]*simNode{a, b}], w.cuts[[2]*simNode{b, a}] = true, true
			}
		}
	}
}

// together mends them.
func (w *simWorld) together(as, bs []*simNode) {
	for _, a := range as {
		for _, b := range bs {
			delete(w.cuts, [2]*simNode{a, b})
			delete(w.cuts, [2]*simNode{b, a})
		}
	}
}

// lose drops what matches, until the end or until forget is called.
func (w *simWorld) lose(match func(f *simFlight, to *simNode) bool) (forget func()) {
	return w.intercept(func(f *simFlight, to *simNode) bool { return !match(f, to) })
}

func (w *simWorld) intercept(keep func(f *simFlight, to *simNode) bool) (forget func()) {
	if w.filters == nil {
		w.filters = map[int]func(*simFlight, *simNode) bool{}
		w.filter = func(f *simFlight, to *simNode) bool {
			for _, i := range sortedKeys(w.filters) {
				if !w.filters[i](f, to) {
					return false
				}
			}
			return true
		}
	}
	w.filterSeq++
	id := w.filterSeq
	w.filters[id] = keep
	return func() { delete(w.filters, id) }
}

// hold keeps back what matches; release lets all of it go.
func (w *simWorld) hold(match func(f *simFlight, to *simNode) bool) (held *[]*simFlight, release func()) {
	held = new([]*simFlight)
	forget := w.intercept(func(f *simFlight, to *simNode) bool {
		if !match(f, to) {
			return true
		}
		*held = append(*held, f)
		return false
	})
	return held, func() {
		forget()
		for _, f := range *held {
			w.redeliver(f)
		}
		*held = nil
	}
}

// redeliver delivers a message soon, once more.
func (w *simWorld) redeliver(f *simFlight) {
	w.schedule(simEvent{at: w.now + w.between(0, time.Millisecond), kind: simDeliver, node: -1, flight: f})
}

func (w *simWorld) sentBy(f *simFlight, n *simNode) bool { return w.nodes[f.node] == n }

func kindOf(f *simFlight, kinds ...msgKind) bool { return slices.Contains(kinds, f.msg.kind()) }

// mendAll ends what a schedule has done.
func (w *simWorld) mendAll() {
	clear(w.cuts)
	clear(w.filters)
	clear(w.logFilters)
	w.calmDown()
}

// begins makes a voter propose another set.
func (n *simNode) begins(wanted ...*simNode) {
	n.w.ledger.begun = true
	n.do(func(s *state, now time.Duration) output {
		s.begin(now)
		var set []member
		for _, o := range wanted {
			set = append(set, member{o.core.id, o.core.key})
		}
		sortMembers(set)
		s.beginChange(s.table.voters.Members, set, false)
		return s.end()
	})
}

func (n *simNode) version() uint64 { return n.core.table.voters.Version.Number }

// finds reports whether n finds that a node has failed.
func (n *simNode) finds(id NodeID) bool {
	p := n.core.peers.get(id)
	return p != nil && n.core.failed(p)
}

// freshlyLeased waits until a primary has a lease that its voters have given at
// once when they were asked, so that the two run side by side.
func (w *simWorld) freshlyLeased(p *simNode) {
	forget := w.lose(func(f *simFlight, to *simNode) bool { return to == p && kindOf(f, msgHeartbeat) })
	w.await("a lease that runs short", 2*w.nt, func() bool { return p.core.leaseUntil()-p.local() < w.nt/6 })
	forget()
	w.await("a fresh lease", w.nt, func() bool { return p.core.leaseUntil()-p.local() > w.nt*4/5 })
}

// shortly are moments of nothing in particular, so that schedules of different
// seeds differ.
func (w *simWorld) shortly() { w.pass(w.between(0, w.nt/10)) }

func (c *players) all() []*simNode { return slices.Concat(c.voters, c.others) }

// ---- leases

func leaseSchedules() []*schedule {
	return []*schedule{
		{"a primary with a slow clock is replaced by voters with fast ones", []mutant{mutLeaseFull}, func(w *simWorld) {
			c := w.players(3, 2, 1.0445, 1.0445, 1.0445, 0.9555)
			p, x := c.others[0], c.others[1]
			w.own(p, 5, 6)
			w.freshlyLeased(p)
			w.apart([]*simNode{p}, c.all())
			w.insist(x, 5, 6)
			w.await("the slots are served elsewhere", 6*w.nt, func() bool { return x.servesAll(slotSet(5, 6)) })
		}},
		{"a primary that is forgotten by force acknowledges until its lease is over", []mutant{mutNoLeaseWait}, func(w *simWorld) {
			w.takeForgotten(false)
		}},
		{"voters that have restarted do not know whom they have leased", []mutant{mutNoStartWait}, func(w *simWorld) {
			w.takeForgotten(true)
		}},
		{"a new set of voters does not know whom the old one has leased", []mutant{mutActiveOnly}, func(w *simWorld) {
			c := w.players(3, 4)
			p, next := c.others[0], c.others[1:]
			w.own(p, 5, 6)
			w.apart([]*simNode{p}, next)
			w.pass(2 * w.nt) // the next voters find it silent; the old ones lease it
			w.shortly()
			c.voters[0].begins(next...)
			w.await("new voters", w.nt, func() bool { return next[0].version() == 2 && next[1].version() == 2 })
			w.apart([]*simNode{p}, c.all())
			w.insist(next[0], 5, 6)
			w.await("the slots are served elsewhere", 4*w.nt, func() bool { return next[0].servesAll(slotSet(5, 6)) })
		}},
		{"voters that are stopped lease nothing under the old set", []mutant{mutStopLeases}, func(w *simWorld) {
			c := w.players(5, 3)
			p, x, y := c.others[0], c.others[1], c.others[2]
			w.own(p, 5, 6)
			left, right := c.voters[:2], c.voters[2:]
			w.apart([]*simNode{p}, append([]*simNode{x, y}, left...))
			w.pass(2 * w.nt)
			w.shortly()
			left[0].begins(left[0], left[1], y)
			w.await("the change is decided", w.nt, func() bool { return left[0].version() == 2 })
			w.apart(append([]*simNode{p}, right...), append([]*simNode{x, y}, left...))
			w.lose(func(f *simFlight, to *simNode) bool {
				return slices.Contains(right, to) && kindOf(f, msgStop, msgStart) // they do not get to know that it is
			})
			w.insist(x, 5, 6)
			w.await("the slots are served elsewhere", 5*w.nt, func() bool { return x.servesAll(slotSet(5, 6)) })
			w.pass(w.nt)
		}},
		{"a primary that comes back is not leased in an epoch that is over", []mutant{mutLeaseOldEpoch, mutLeaseAny}, func(w *simWorld) {
			c := w.players(3, 2)
			p, x := c.others[0], c.others[1]
			w.own(p, 5, 6)
			w.takeFromFailed(c, p, x, 5, 6)
			// It hears of nothing but heartbeats, and cannot win.
			w.lose(func(f *simFlight, to *simNode) bool {
				return to == p && kindOf(f, msgUpdate, msgDigest) || w.sentBy(f, p) && kindOf(f, msgVote)
			})
			w.together([]*simNode{p}, c.all())
			w.pass(2 * w.nt)
		}},
		{"a voter that has promised an equal number to another node leases again", nil, func(w *simWorld) {
			c := w.players(3, 2)
			p, x := c.others[0], c.others[1]
			if p.core.id.compare(x.core.id) > 0 {
				p, x = x, p // so that x's promise is the higher one
			}
			w.own(p, 5, 6)
			w.apart([]*simNode{p}, c.all())
			w.await("the primary has failed", 3*w.nt, func() bool { return x.finds(p.core.id) })
			far := c.voters[2]
			w.apart([]*simNode{x}, c.voters[:2])
			w.setSlot(x, slotSet(5, 6), x.core.id)
			w.await("one voter has promised", 2*w.nt, func() bool {
				v := far.core.vote.shards[p.core.self.Shard]
				return v != nil && v.promised.Node == x.core.id
			})
			w.together([]*simNode{p}, slices.Concat(c.voters[:2], []*simNode{x}))
			w.apart([]*simNode{x}, c.voters) // its command fails
			w.bump(p)
			w.await("the primary has won the same number", 4*w.nt, func() bool {
				return p.core.lead != nil && p.core.lead.opened && p.core.lead.epoch.Number == far.core.vote.shards[p.core.self.Shard].promised.Number
			})
			w.together([]*simNode{p}, c.voters)
			w.await("every voter leases it", 2*w.nt, func() bool { return far.core.vote.leases[p.core.self.Shard][p.core.id].until > far.local() })
		}},
	}
}

// takeForgotten: a primary that does not vote is cut off with a fresh lease,
// forgotten by force, and its slots are taken at once; in between all voters may
// restart.
func (w *simWorld) takeForgotten(restart bool) {
	c := w.players(3, 2)
	p, x := c.others[0], c.others[1]
	w.own(p, 5, 6)
	w.freshlyLeased(p)
	w.apart([]*simNode{p}, c.all())
	if restart {
		for _, v := range c.voters {
			v.crash(true)
			v.restart()
		}
		w.pass(w.nt / 10)
	}
	w.forget(x, p.core.id, true)
	w.insist(x, 5, 6)
	w.await("the slots are served elsewhere", 4*w.nt, func() bool { return x.servesAll(slotSet(5, 6)) })
}

// takeFromFailed: p is cut off, and x takes its slots when it has failed.
func (w *simWorld) takeFromFailed(c players, p, x *simNode, slots ...Slot) {
	w.apart([]*simNode{p}, c.all())
	w.await("the primary has failed", 3*w.nt, func() bool { return x.finds(p.core.id) })
	w.insist(x, slots...)
	w.await("its slots are served elsewhere", 4*w.nt, func() bool { return x.servesAll(slotSet(slots...)) })
}

// ---- hand-overs

func moveSchedules() []*schedule {
	return []*schedule{
		{"what a later primary has opened is not given away by an older MOVE", []mutant{mutOpenUnnamed}, func(w *simWorld) {
			c := w.players(3, 2)
			s, b := c.others[0], c.others[1]
			w.own(s, 5)
			forget := w.halfAccepted(s, b, c.voters[0], 5)
			s.crash(false)
			forget()
			w.apart([]*simNode{s}, c.voters[:1])
			s.restart()
			w.await("it serves again, having seen no MOVE", 3*w.nt, func() bool { return s.servesAll(slotSet(5)) })
			w.pass(w.nt / 4) // and writes
			s.crash(false)
			w.together([]*simNode{s}, c.voters[:1])
			w.apart([]*simNode{s}, c.voters[2:])
			s.restart()
			w.await("somebody serves", 3*w.nt, func() bool { return s.servesAll(slotSet(5)) || b.servesAll(slotSet(5)) })
			w.pass(w.nt / 4)
		}},
		{"a primary that comes back completes what has been taken from it", []mutant{mutNoRepair}, func(w *simWorld) {
			c := w.players(3, 2)
			p, x := c.others[0], c.others[1]
			w.own(p, 5, 6)
			w.takeFromFailed(c, p, x, 5)
			w.lose(func(f *simFlight, to *simNode) bool { return to == p && kindOf(f, msgUpdate, msgDigest) })
			w.together([]*simNode{p}, c.all())
			w.await("it has won again", 3*w.nt, func() bool { return p.servesAll(slotSet(6)) })
			w.pass(w.nt / 2)
		}},
		{"a slot that was learnt late is served after a vote only", []mutant{mutLateSlot}, func(w *simWorld) {
			c := w.players(3, 3)
			a, b, x := c.others[0], c.others[1], c.others[2]
			w.own(a, 5)
			// The target has staged it and does not hear of the decision.
			held, _ := w.hold(func(f *simFlight, to *simNode) bool { return to == b && kindOf(f, msgUpdate, msgDigest) })
			w.handOff(a, b, 5)
			moved := func(n *simNode, to *simNode, move uint64) bool {
				return n.core.table.slots.at(5) == slotEntry{to.core.self.Shard, move}
			}
			w.await("the move is decided", w.nt, func() bool { return moved(a, b, 3) && moved(x, b, 3) })
			w.await("the target would be told", w.nt, func() bool { return w.toldOf(*held, a, b, 5, 3) != nil })
			told := w.toldOf(*held, a, b, 5, 3)
			w.takeFromFailed(c, b, x, 5)
			w.together([]*simNode{b}, c.all())
			w.await("the target leads again", 4*w.nt, func() bool { return b.core.leaseHeld() && b.core.lead.openedAt > b.local()-w.nt })
			w.filters = nil
			w.filter = nil
			w.lose(func(f *simFlight, to *simNode) bool { return to == b && kindOf(f, msgUpdate, msgDigest) && f != told })
			w.redeliver(told)
			w.pass(w.nt)
		}},
		{"two operators take one slot: a MOVE below the promise is refused", []mutant{mutMoveBelow}, func(w *simWorld) {
			c := w.players(3, 3)
			a, x, y := c.others[0], c.others[1], c.others[2]
			w.own(a, 5)
			w.release(a, 5)
			xs, letX := w.hold(func(f *simFlight, to *simNode) bool { return kindOf(f, msgMove) && w.sentBy(f, x) })
			ys, letY := w.hold(func(f *simFlight, to *simNode) bool { return kindOf(f, msgMove) && w.sentBy(f, y) })
			x.addSlots(slotSet(5))
			w.await("one has taken the promises", w.nt, func() bool { return len(*xs) > 0 })
			y.addSlots(slotSet(5))
			w.await("the other has taken them from it", w.nt, func() bool { return len(*ys) > 0 })
			forget := w.lose(func(f *simFlight, to *simNode) bool { return to == y && kindOf(f, msgUpdate, msgDigest) })
			letX()
			w.pass(5 * time.Millisecond)
			letY()
			w.pass(5 * time.Millisecond)
			forget()
			w.await("the slot is served", 2*w.nt, func() bool { return x.servesAll(slotSet(5)) || y.servesAll(slotSet(5)) })
		}},
		{"a MOVE that comes late does not hide a later one", []mutant{mutMoveAnyBefore}, func(w *simWorld) {
			c := w.players(3, 3)
			x, y, z := c.others[0], c.others[1], c.others[2]
			first, second, third := c.voters[0], c.voters[1], c.voters[2]
			w.own(x, 5)
			w.lose(func(f *simFlight, to *simNode) bool { return kindOf(f, msgMove) && to == third && !w.sentBy(f, z) })
			var late *simFlight
			forget := w.intercept(func(f *simFlight, to *simNode) bool {
				if kindOf(f, msgMove) && w.sentBy(f, x) && to == first {
					late = f
				}
				return true
			})
			w.release(x, 5)
			w.await("all know that it belongs to nobody", w.nt, func() bool {
				return z.core.table.slots.at(5).shard.IsZero() && third.core.table.slots.at(5).shard.IsZero()
			})
			forget()
			// y takes it; z does not hear of that, nor the third voter.
			w.lose(func(f *simFlight, to *simNode) bool {
				return (to == z || to == third) && kindOf(f, msgUpdate, msgDigest)
			})
			y.addSlots(slotSet(5))
			w.await("it is taken", 2*w.nt, func() bool { return y.servesAll(slotSet(5)) })
			if late == nil {
				w.fail(notReached, "no MOVE to the first voter")
				return
			}
			w.redeliver(late)
			w.pass(2 * time.Millisecond)
			w.apart([]*simNode{z}, []*simNode{second})
			z.addSlots(slotSet(5))
			w.pass(2 * w.nt)
		}},
		{"a slot that comes back while its primary stands is served", nil, func(w *simWorld) {
			c := w.players(3, 2)
			s := c.others[0]
			w.own(s, 5)
			let := w.lose(func(f *simFlight, to *simNode) bool {
				return kindOf(f, msgVote) && w.sentBy(f, s) && f.msg.(*voteMsg).Why != whyOperator
			})
			w.bump(s)
			w.release(s, 5)
			s.addSlots(slotSet(5))
			w.await("it has come back", 2*w.nt, func() bool { return s.servesAll(slotSet(5)) && s.core.table.slots.at(5).move == 4 })
			let()
			w.await("it has won", 2*w.nt, func() bool { return s.core.stand == nil && s.core.lead.opened })
			w.await("the slot is served", 2*w.nt, func() bool { return s.servesAll(slotSet(5)) })
		}},
		{"a hand-over waits until a primary that stands again has opened its epoch", []mutant{mutMoveUnopened}, func(w *simWorld) {
			c := w.players(3, 2)
			s, b := c.others[0], c.others[1]
			w.own(s, 5)
			// It begins to freeze the slot. Before that is done it wins a new epoch,
			// whose RECORD takes its time.
			w.freezeFor = w.nt / 100
			_, records := w.hold(func(f *simFlight, to *simNode) bool { return kindOf(f, msgRecord) && w.sentBy(f, s) })
			forget := w.lose(func(f *simFlight, to *simNode) bool {
				m, _ := f.msg.(*acceptMsg)
				return kindOf(f, msgMove) && to != c.voters[0] || m != nil && m.Ballot != 0
			})
			w.handOff(s, b, 5)
			w.bump(s)
			w.await("it has won again", w.nt, func() bool { return s.core.lead != nil && !s.core.lead.opened })
			w.pass(w.nt / 10)
			records()
			w.await("it is open", w.nt, func() bool { return s.core.lead.opened })
			if !s.core.serve.slots.Contains(5) {
				forget() // the slot goes over after all
			}
			w.pass(w.nt / 4)
			w.apart([]*simNode{s}, c.voters[2:])
			w.bump(s)
			w.pass(w.nt)
		}},
		{"a stage outlives the epoch in which it was made", []mutant{mutStageDropped}, func(w *simWorld) {
			c := w.players(3, 2)
			s, b := c.others[0], c.others[1]
			w.own(s, 5)
			w.pass(w.nt / 4)
			forget := w.halfAccepted(s, b, c.voters[0], 5)
			forget() // the giver wins again and completes it
			w.apart([]*simNode{s}, c.voters[2:])
			epoch := s.core.lead.epoch
			_, told := w.hold(func(f *simFlight, to *simNode) bool { return to == b && w.tellsOf(f, 5) })
			w.bump(s)
			w.await("it has won again", 2*w.nt, func() bool { return s.core.lead != nil && s.core.lead.opened && epoch.less(s.core.lead.epoch) })
			w.await("the target knows the new epoch", 2*w.nt, func() bool { return b.core.table.shards[s.core.self.Shard] != epoch })
			w.pass(w.nt / 2)
			told()
			w.await("the target serves", 2*w.nt, func() bool { return b.servesAll(slotSet(5)) })
			w.pass(w.nt / 4)
		}},
		{"an operator takes nothing from a primary that lives", []mutant{mutTakeAlive}, func(w *simWorld) {
			c := w.players(3, 2)
			p, x := c.others[0], c.others[1]
			w.own(p, 5)
			id := p.core.id
			p.crash(false)
			w.await("the primary has failed", 3*w.nt, func() bool { return x.finds(id) })
			// It is back, and cannot win yet; the operator's node has not heard so.
			w.apart([]*simNode{p}, []*simNode{x})
			w.lose(func(f *simFlight, to *simNode) bool {
				return to == x && kindOf(f, msgFail, msgUpdate, msgDigest) || w.sentBy(f, p) && kindOf(f, msgVote)
			})
			p.restart()
			w.await("the voters hear it", w.nt, func() bool {
				return !slices.ContainsFunc(c.voters, func(v *simNode) bool { return v.finds(id) })
			})
			w.setSlot(x, slotSet(5), x.core.id)
			w.pass(2 * w.nt)
			if x.core.serve.slots.Contains(5) {
				w.fail("R9", "%s has taken a slot of %s, which lives", x.name(), p.name())
			}
		}},
	}
}

// handOff gives a slot with its data to another node, as the native job does.
func (w *simWorld) handOff(from, to *simNode, slot Slot) { w.handOffSet(from, to, slotSet(slot)) }

func (w *simWorld) handOffSet(from, to *simNode, slots SlotSet) {
	job := w.r.Uint64() | 1
	shard := to.core.self.Shard
	w.logf("%s hands %s to %s, job %x", from.name(), slots.String(), to.name(), job&0xffff)
	from.do(func(s *state, now time.Duration) output { return s.handOff(now, job, slots, shard) })
}

// halfAccepted hands a slot over, so that MOVE reaches one voter and no answer
// comes back.
func (w *simWorld) halfAccepted(from, to, voter *simNode, slot Slot) (forget func()) {
	forget = w.lose(func(f *simFlight, n *simNode) bool {
		return kindOf(f, msgMove) && n != voter || kindOf(f, msgAccept) && n == from
	})
	w.handOff(from, to, slot)
	move := from.core.table.slots.at(slot).move + 1
	w.await("one voter has accepted", w.nt, func() bool { return voter.core.vote.accepted.at(slot).move == move })
	w.pass(2 * time.Millisecond) // what is on its way is lost too
	return forget
}

// release takes a slot from its owner, so that it belongs to nobody.
func (w *simWorld) release(n *simNode, slot Slot) {
	w.logf("%s: DELSLOTS %d", n.name(), slot)
	n.delSlots(slotSet(slot), nil)
	w.await("the slot belongs to nobody", 2*w.nt, func() bool { return n.core.table.slots.at(slot).shard.IsZero() })
	w.pass(w.nt / 20)
}

func (w *simWorld) bump(n *simNode) {
	n.command(func(s *state, now time.Duration, id uint64) output { return s.bumpEpoch(now, id) }, w.logged(n, "BUMPEPOCH"))
}

// tellsOf reports whether a message shows the owner of a slot.
func (w *simWorld) tellsOf(f *simFlight, slot Slot) bool {
	u, ok := f.msg.(*updateMsg)
	if !ok {
		return false
	}
	return slices.ContainsFunc(u.Slots.Runs, func(r slotRun) bool { return r.First <= slot && slot <= r.Last })
}

// toldOf finds what a node has been told of a slot by the one who counted.
func (w *simWorld) toldOf(held []*simFlight, from, to *simNode, slot Slot, move uint64) *simFlight {
	for _, f := range held {
		if !w.sentBy(f, from) || !w.tellsOf(f, slot) || f.msg.(*updateMsg).Giver.IsZero() {
			continue
		}
		return f
	}
	return nil
}
