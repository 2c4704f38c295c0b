package slotmesh

import (
	"fmt"
	"slices"
	"time"
)

// A hand-over gives slots of this node's shard to another shard. Only the open
// primary of a shard gives its slots away, in four steps:
//
//	freeze  no request gets in, and every reply is out or failed
//	stage   the target's primary says that it holds the data
//	move    MOVE to the voters; from the first one on there is no way back here
//	tell    a majority has accepted: the target serves, this node redirects
//
// Before the first MOVE the slots can be thawed. After it this node only goes
// forward; when it is deposed, its successor finds the move in the grants.

type givePhase uint8

const (
	giveFreezing givePhase = iota
	giveStaging
	giveReady // MOVE may be sent, once this node has opened its epoch
	giveMoving
)

type handOver struct {
	job      uint64
	to       ShardID
	slots    SlotSet
	moves    moveRuns // as the slots will have them
	inPlace  bool
	phase    givePhase
	position uint64
	until    time.Duration // before the first MOVE: thaw
	again    time.Duration
	part     *slotPart // of an operator's command; nil: a job of the driver
	ballot   *moveBallot
}

// moveBallot is a MOVE under way.
type moveBallot struct {
	id      uint64
	shard   ShardID
	epoch   Epoch
	slots   acceptRuns
	voters  uint64
	accepts map[NodeID]bool
	again   time.Duration
}

// heldStage is a stage that this node, as the target's primary, has been shown.
type heldStage struct {
	stageMsg
	from    NodeID // who will count the majority
	ready   bool   // the data is here
	readyAt time.Duration
	waited  bool  // so long that nobody waits for it any more
	inEpoch Epoch // of this shard, when ready was said
	pending bool  // the driver is asked to make it ready
}

const stagesMax = 4096 // held at a time; one more is refused

// give begins to hand over slots, at once if it can.
func (s *state) give(job uint64, slots SlotSet, to ShardID, inPlace bool, part *slotPart) *commandError {
	if err := s.mayGive(slots, to, inPlace); err != nil {
		return err
	}
	g := &handOver{job: job, to: to, slots: slots, inPlace: inPlace, part: part, until: s.now + s.cfg.nodeTimeout}
	for slot := range slots.All() {
		g.moves.add(slot, s.table.slots.at(slot).move+1)
	}
	s.lead.gives = append(s.lead.gives, g)
	s.reassess = true
	s.tell(freezeTell{job, slots, inPlace && !to.IsZero()})
	return nil
}

func (s *state) mayGive(slots SlotSet, to ShardID, inPlace bool) *commandError {
	l := s.lead
	if l == nil || !l.opened {
		return clusterDown("this node's shard is not open")
	}
	if s.now < l.serveFrom && !mutated(mutForceGives) {
		return tryAgain("this node has won by force: its slots may be served by the primary before it until that one's lease is over")
	}
	if to == s.self.Shard {
		return invalid("slots %s already belong to this shard", slots.String())
	}
	if !to.IsZero() {
		if _, known := s.table.shards[to]; !known {
			return invalid("unknown shard %s", to)
		}
	}
	for slot := range slots.All() {
		if !l.mine.Contains(slot) {
			return tryAgain("slot %d is not served here now", slot)
		}
		if s.givenBy(slot) != nil {
			return tryAgain("slot %d is being handed over already", slot)
		}
		if m, marked := s.marks[slot]; marked && !inPlace {
			return m.forbidsHandOver()
		}
	}
	return nil
}

// givenBy is the hand-over that a slot is in, or nil.
func (s *state) givenBy(slot Slot) *handOver {
	if s.lead == nil {
		return nil
	}
	for _, g := range s.lead.gives {
		if g.slots.Contains(slot) {
			return g
		}
	}
	return nil
}

func (s *state) giveByJob(job uint64) *handOver {
	if s.lead == nil {
		return nil
	}
	i := slices.IndexFunc(s.lead.gives, func(g *handOver) bool { return g.job == job })
	if i < 0 {
		return nil
	}
	return s.lead.gives[i]
}

// handOff is the driver's job: slots whose data it has copied to the target.
func (s *state) handOff(now time.Duration, job uint64, slots SlotSet, to ShardID) output {
	s.begin(now)
	if err := s.give(job, slots, to, false, nil); err != nil {
		s.tell(jobTell{job: job})
	}
	return s.end()
}

// frozen says that no request is in the slots of a job and no reply pending.
// position is that of the last effect; keysLeft whether any key is there.
func (s *state) frozen(now time.Duration, job uint64, position uint64, keysLeft bool) output {
	s.begin(now)
	if g := s.giveByJob(job); g != nil && g.phase == giveFreezing {
		g.position = position
		switch {
		case g.inPlace && keysLeft && !g.to.IsZero():
			first, _ := firstSlot(g.slots)
			s.endGive(g, false, stillHoldKeys(first))
		case g.to.IsZero() || mutated(mutMoveNoStage):
			s.startMove(g)
		default:
			g.phase = giveStaging
			s.sendStage(g)
		}
	}
	return s.end()
}

// thaw gives a job up, if its MOVE is not out yet. Else it goes on.
func (s *state) thaw(now time.Duration, job uint64) output {
	s.begin(now)
	if g := s.giveByJob(job); g != nil && g.phase != giveMoving {
		s.endGive(g, false, tryAgain("the hand-over was cancelled, nothing has changed"))
	}
	return s.end()
}

func (s *state) sendStage(g *handOver) {
	g.again = s.now + s.cfg.nodeTimeout/10
	s.wakeBy(g.again)
	s.postTo(s.table.primary(g.to), &stageMsg{Job: g.job, Giver: s.self.Shard, Epoch: s.lead.epoch,
		Position: g.position, To: g.to, Slots: g.moves, InPlace: g.inPlace})
}

func (s *state) onStaged(p *peer, m *stagedMsg) {
	g := s.giveByJob(m.Job)
	if g == nil || g.phase != giveStaging || s.lead.epoch != m.Epoch || g.position != m.Position || p.ID != s.table.primary(g.to) {
		return
	}
	if m.Error != "" {
		s.endGive(g, false, tryAgain("%s", m.Error))
		return
	}
	s.startMove(g)
}

// startMove sends the first MOVE. A primary that stands again opens the frozen
// slots once more where no grant names their move: a MOVE of the new epoch must
// come after that, or it would look as if it were not overruled.
func (s *state) startMove(g *handOver) {
	if !s.lead.opened && !mutated(mutMoveUnopened) {
		g.phase = giveReady
		return
	}
	g.phase = giveMoving
	g.ballot = s.newMove(s.self.Shard, s.lead.epoch, g.moves, g.to)
	s.sendMove(g.ballot)
}

func (s *state) newMove(giver ShardID, epoch Epoch, moves moveRuns, to ShardID) *moveBallot {
	b := &moveBallot{id: s.cfg.random() | 1, shard: giver, epoch: epoch}
	moves.each(func(slot Slot, move uint64) { b.slots.add(slot, accepted{to, move, epoch}) })
	return b
}

// sendMove sends MOVE to the voters that have not accepted it.
func (s *state) sendMove(b *moveBallot) {
	if b.accepts == nil || b.voters != s.table.voters.ID && !mutated(mutMixedVersions) {
		b.voters, b.accepts = s.table.voters.ID, map[NodeID]bool{}
	}
	b.again = s.now + s.cfg.nodeTimeout/10
	s.wakeBy(b.again)
	m := &moveMsg{Voters: s.table.voters.Version, Shard: b.shard, Epoch: b.epoch, Ballot: b.id, Slots: b.slots}
	for _, v := range s.table.voters.Members {
		if !b.accepts[v.ID] {
			s.postTo(v.ID, m)
		}
	}
}

func (s *state) moveTick(b *moveBallot) {
	if s.now >= b.again || b.voters != s.table.voters.ID {
		s.sendMove(b)
	} else {
		s.wakeBy(b.again)
	}
}

func (s *state) moveAccepted(p *peer, m *acceptMsg) {
	matches := func(b *moveBallot) bool {
		return b != nil && b.id == m.Ballot && (b.voters == s.table.voters.ID || mutated(mutMixedVersions))
	}
	if s.lead != nil {
		for _, g := range s.lead.gives {
			if matches(g.ballot) {
				if s.countMove(p, g.ballot) {
					s.decided(s.self.Shard, &g.ballot.slots)
					s.endGive(g, true, nil)
				}
				return
			}
		}
	}
	for _, op := range s.ops {
		if matches(op.move) {
			if s.countMove(p, op.move) {
				s.operationMoved(op)
			}
			return
		}
	}
}

func (s *state) countMove(p *peer, b *moveBallot) bool {
	b.accepts[p.ID] = true
	return s.majority(func(id NodeID) bool { return b.accepts[id] })
}

// moveRefused: somebody has been promised more, or the slots have moved on. The
// way to know is to win this shard again.
func (s *state) moveRefused(p *peer, m *refuseMsg) {
	if l := s.lead; l != nil {
		for _, g := range l.gives {
			if g.ballot != nil && g.ballot.id == m.Ballot {
				s.outbid(max(m.Promised.Number, l.epoch.Number))
				return
			}
		}
	}
	for _, op := range s.ops {
		if op.move != nil && op.move.id == m.Ballot {
			s.operationRefused(op, m)
			return
		}
	}
}

// decided enters moves that this node has counted a majority for.
func (s *state) decided(giver ShardID, moves *acceptRuns) {
	var given SlotSet
	to := map[ShardID]*SlotSet{}
	s.counting = true
	moves.each(func(slot Slot, a accepted) {
		if s.table.slots.at(slot).move >= a.move {
			return
		}
		s.setSlot(slot, slotEntry{a.shard, a.move}, pushNothing)
		given.Add(slot)
		if to[a.shard] == nil {
			to[a.shard] = &SlotSet{}
		}
		to[a.shard].Add(slot)
		if a.shard == s.self.Shard {
			s.slotArrived(slot, a.move, true)
		}
	})
	s.counting = false
	if given.Empty() {
		return
	}
	s.pending.given = append(s.pending.given, givenSlots{giver, given})
	for _, id := range sortedShards(to) {
		s.event(Event{Kind: EventMoved, Node: s.id, Slots: *to[id], Shard: id})
	}
}

// giveTick goes on with the hand-overs under way.
func (s *state) giveTick(l *leadership) {
	for _, g := range slices.Clone(l.gives) {
		switch {
		case g.phase == giveMoving:
			if !l.void {
				s.moveTick(g.ballot)
			}
			if g.part != nil && s.now >= g.until {
				s.partDone(g.part, mayHappen("no majority of the voters has answered"))
				g.part = nil
			}
			if mutated(mutThawLate) && s.now >= g.until {
				s.endGive(g, false, nil)
			}
		case g.part != nil && s.now >= g.until:
			s.endGive(g, false, clusterDown("the primary of shard %s does not answer, nothing has changed", g.to))
		case g.phase == giveReady:
			s.startMove(g)
		case g.phase == giveStaging && s.now >= g.again:
			s.sendStage(g)
		case g.phase == giveStaging:
			s.wakeBy(g.again)
		}
	}
}

// endGive ends a hand-over. Slots that have not moved are served here again.
func (s *state) endGive(g *handOver, done bool, err *commandError) {
	if l := s.lead; l != nil {
		l.gives = slices.DeleteFunc(l.gives, func(x *handOver) bool { return x == g })
	}
	if !done && (g.phase == giveStaging || g.phase == giveReady) && !g.to.IsZero() {
		s.cancelStage(g)
	}
	s.reassess = true
	s.tell(jobTell{g.job, done})
	if g.part != nil {
		s.partDone(g.part, err)
	}
}

func (s *state) cancelStage(g *handOver) {
	s.postTo(s.table.primary(g.to), &cancelStageMsg{Job: g.job, Giver: s.self.Shard, Epoch: s.lead.epoch})
}

// giveEnded is for a primary that is deposed: what is under way is for its
// successor to find.
func (s *state) giveEnded(g *handOver) {
	if g.phase == giveMoving {
		s.tell(jobLostTell{g.job})
	}
	s.tell(jobTell{job: g.job})
	if g.part == nil {
		return
	}
	if g.phase == giveMoving {
		s.partDone(g.part, mayHappen("another node leads the shard now"))
	} else {
		s.partDone(g.part, clusterDown("another node leads the shard now, nothing has changed"))
	}
}

// settleGives is called when this node has won its shard again: the opening
// has completed or overruled each MOVE that was under way.
func (s *state) settleGives(l *leadership, m *recordMsg) {
	kept, opened := m.Kept.slots(), m.Opened.slots()
	for _, g := range slices.Clone(l.gives) {
		if g.phase != giveMoving {
			continue
		}
		left := g.slots
		left.Subtract(&kept)
		switch {
		case left.Empty():
			s.endGive(g, true, nil)
		case left == g.slots:
			if left.Subtract(&opened); left.Empty() {
				s.cancelStage(g) // its MOVE can never be completed
			}
			s.endGive(g, false, tryAgain("another vote came between, nothing has changed"))
		default:
			s.endGive(g, false, tryAgain("another vote came between: slots %s have not moved", left.String()))
		}
	}
}

// ---- the target

func (s *state) onStage(p *peer, m *stageMsg) {
	l := s.lead
	if l == nil || !l.opened || m.To != s.self.Shard || p.ID != s.table.primary(m.Giver) && m.Epoch.Node != p.ID {
		return
	}
	if s.stagePast(m) {
		return
	}
	if s.staleStage(m) {
		return // late: the highest one counts
	}
	refuse := func(text string) {
		s.post(p, &stagedMsg{Job: m.Job, Giver: m.Giver, Epoch: m.Epoch, Position: m.Position, Error: text})
	}
	h := s.stages[m.Job]
	switch {
	case h == nil && (s.leave != nil || s.self.State != present):
		refuse("the target is leaving")
		return
	case h == nil && len(s.stages) >= stagesMax:
		refuse(fmt.Sprintf("the target holds %d stages already", stagesMax))
		return
	case h == nil:
		h = &heldStage{}
		s.stages[m.Job] = h
	}
	if h.Epoch != m.Epoch || h.Position != m.Position {
		*h = heldStage{stageMsg: *m, from: p.ID}
	}
	if h.ready {
		h.inEpoch = l.epoch
		s.sayStaged(h)
		return
	}
	if m.InPlace && len(s.waitedFor(l)) == 0 {
		s.holdStage(h)
		return
	}
	if !h.pending {
		h.pending = true
		s.tell(stageTell{h})
	}
}

// staleStage reports whether a stage of the same slots with a higher epoch and
// position is known, and drops those with a lower one.
func (s *state) staleStage(m *stageMsg) bool {
	for _, job := range sortedKeys(s.stages) {
		h := s.stages[job]
		if h.Giver != m.Giver || !h.overlaps(m.Slots) {
			continue
		}
		if m.before(&h.stageMsg) {
			return true
		}
		if job != m.Job {
			s.dropStage(h)
		}
	}
	return false
}

// before reports whether m is of an older state of the giver's log than o.
func (m *stageMsg) before(o *stageMsg) bool {
	if c := m.Epoch.Compare(o.Epoch); c != 0 {
		return c < 0
	}
	return m.Position < o.Position
}

func (h *heldStage) overlaps(slots moveRuns) bool {
	for _, a := range h.Slots {
		for _, b := range slots {
			if a.First <= b.Last && b.First <= a.Last {
				return true
			}
		}
	}
	return false
}

// stagePast reports whether every slot of a stage has moved on already.
func (s *state) stagePast(m *stageMsg) bool {
	past := true
	m.Slots.each(func(slot Slot, move uint64) { past = past && s.table.slots.at(slot).move >= move })
	return past
}

// stageLost says that the data of a stage is here no more: its giver begins to
// send the slots anew, and so has given it up.
func (s *state) stageLost(now time.Duration, job uint64) output {
	s.begin(now)
	if h := s.stages[job]; h != nil {
		s.dropStage(h)
	}
	return s.end()
}

// stageHeld says that the data of a stage, up to its position, is here.
func (s *state) stageHeld(now time.Duration, job uint64, position uint64) output {
	s.begin(now)
	if h := s.stages[job]; h != nil && h.Position == position && s.lead != nil && s.lead.opened {
		s.holdStage(h)
	}
	return s.end()
}

func (s *state) holdStage(h *heldStage) {
	h.ready, h.readyAt, h.waited, h.inEpoch = true, s.now, false, s.lead.epoch
	s.reassess = true
	s.wakeBy(s.now + s.cfg.nodeTimeout)
	s.sayStaged(h)
}

func (s *state) sayStaged(h *heldStage) {
	s.postTo(h.from, &stagedMsg{Job: h.Job, Giver: h.Giver, Epoch: h.Epoch, Position: h.Position})
}

func (s *state) onCancelStage(p *peer, m *cancelStageMsg) {
	h := s.stages[m.Job]
	if h == nil || p.ID != s.table.primary(m.Giver) || m.Epoch.less(h.Epoch) {
		return
	}
	s.dropStage(h)
}

func (s *state) dropStage(h *heldStage) {
	delete(s.stages, h.Job)
	s.reassess = true
	s.tell(stageEndTell{h.Job})
}

// heldHere reports whether this node has said, in epoch, that it holds the
// stage of a slot at a move.
func (s *state) heldHere(slot Slot, move uint64, epoch Epoch) bool {
	for _, h := range s.stages {
		if h.ready && h.inEpoch == epoch && h.names(slot, move) {
			return true
		}
	}
	return false
}

// stagedBy reports whether from is the one who staged a slot here and counts
// the majority for it.
func (s *state) stagedBy(from *peer, slot Slot, move uint64) bool {
	for _, h := range s.stages {
		if h.from == from.ID && h.names(slot, move) {
			return true
		}
	}
	return false
}

func (h *heldStage) names(slot Slot, move uint64) bool {
	for _, r := range h.Slots {
		if r.First <= slot && slot <= r.Last {
			return r.Move == move
		}
	}
	return false
}

// stageTick forgets the stages whose slots have all moved on.
func (s *state) stageTick() {
	for _, job := range sortedKeys(s.stages) {
		h := s.stages[job]
		if s.stagePast(&h.stageMsg) || mutated(mutStageDropped) && h.Epoch.less(s.table.shards[h.Giver]) {
			s.dropStage(h)
		} else if h.ready && !h.waited && s.timeSince(h.readyAt) >= s.cfg.nodeTimeout {
			h.waited, s.reassess = true, true
		}
	}
}

// ---- what has gone

// goneSlot is a slot that has left this node's shard. Its data may be dropped
// once a majority is known to have decided it and the owner serves. Where the slot went
// to nobody the data went to nobody either, whoever owns the slot since: it stays, as in
// Redis, until the slot is served here again, by MOVE or key by key.
type goneSlot struct {
	move      uint64
	since     time.Duration
	confirmed bool // a majority of the voters has accepted the move, or this node has counted it
	nobody    bool // it has gone to nobody
}

// noteGone remembers a slot that has left. Hearsay fences this node, but drops
// nothing.
func (s *state) noteGone(slot Slot, is slotEntry) {
	s.gone[slot] = goneSlot{move: is.move, since: s.now, confirmed: s.counting, nobody: is.shard.IsZero()}
}

// wentToNobody reports whether a slot left this node's shard for nobody, at a
// move.
func (s *state) wentToNobody(slot Slot, move uint64) bool {
	g, ok := s.gone[slot]
	return ok && g.nobody && g.move == move
}

// goneTick tells the driver what it may drop, and asks the voters about slots
// that have gone by hearsay. A replica, which may have been the primary then, drops what
// its primary's log says: what it did on its own would be in no log, and it would have to
// copy everything.
func (s *state) goneTick() {
	if len(s.gone) == 0 || s.now < s.nextGone || s.isReplica(s.self) {
		return
	}
	s.nextGone = s.now + s.cfg.nodeTimeout/10
	var drop moveRuns
	unconfirmed := false
	for _, slot := range sortedKeys(s.gone) {
		g := s.gone[slot]
		owner := s.table.slots.at(slot).shard
		switch {
		case owner == s.self.Shard:
			delete(s.gone, slot)
		case g.nobody:
		case !g.confirmed:
			unconfirmed = true
		case s.shardServes(owner, g.since):
			drop.add(slot, g.move)
			delete(s.gone, slot)
		}
	}
	if len(drop) > 0 {
		s.tell(dropTell{drop})
	}
	if unconfirmed && s.now >= s.nextConfirm {
		s.nextConfirm = s.now + 2*s.cfg.nodeTimeout
		s.confirm = confirming{request: s.cfg.random() | 1, accepted: map[Slot]int{}, asked: map[NodeID]bool{}}
		s.postVoters(&getRecordsMsg{s.confirm.request})
	}
}

// shardServes reports whether the primary of a shard has shown, since a time,
// that it leads under a lease and knows this node's table.
func (s *state) shardServes(id ShardID, since time.Duration) bool {
	p := s.peers.get(s.table.primary(id))
	return !id.IsZero() && p != nil && p != s.self && p.Shard == id && p.leased && p.beatAt > since && p.differs == 0
}

// confirming counts how many voters have accepted the moves of slots that have
// gone by hearsay.
type confirming struct {
	request  uint64
	asked    map[NodeID]bool // that have answered
	accepted map[Slot]int
}

func (s *state) confirmGone(p *peer, m *recordsMsg) {
	c := &s.confirm
	if c.request == 0 || m.Request != c.request || !s.voter(p) || m.Voters != s.table.voters.Version || c.asked[p.ID] {
		return
	}
	c.asked[p.ID] = true
	m.Votes.Accepted.each(func(slot Slot, a accepted) {
		g, ok := s.gone[slot]
		if !ok || a.move < g.move || a.move == g.move && a.shard != s.table.slots.at(slot).shard {
			return
		}
		if c.accepted[slot]++; c.accepted[slot] >= s.table.voters.quorum() {
			g.confirmed = true
			s.gone[slot] = g
		}
	})
}
