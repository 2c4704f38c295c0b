package slotmesh

import (
	"slices"
	"time"
)

// Operators assign, release and give slots with commands that any node takes.
// Who carries a change out depends on who owns the slots now:
//
//	this node's open shard    a hand-over of its own (job.go)
//	nobody, or a failed node  an operation: the one who gets the slots first takes
//	                          the promises of that shard, then sends the MOVE
//	a living primary          is asked to give them: FORWARD
//
// The reply waits for the decision and then until every live member knows.

const (
	forwardEvery = 150 * time.Millisecond
	forwardLimit = 2500 * time.Millisecond
	commandsMax  = 1024 // operators' commands under way; at the bound one more is refused
)

// slotCommand is one operator's command, in parts by the shard that gives.
type slotCommand struct {
	id    uint64
	parts int
	done  bool          // some part has happened
	err   *commandError // of the first part that failed, or may happen still
}

// slotPart is what one shard gives for a command, or for a command that another
// node has forwarded.
type slotPart struct {
	command *slotCommand // nil: forwarded
	peer    *peer        // who forwarded it
	request uint64
	from    ShardID
	to      ShardID
	slots   SlotSet
}

// partDone ends a part.
func (s *state) partDone(p *slotPart, err *commandError) {
	if p.command != nil {
		if err == nil { // all who live are to know of this part, however long the others take
			s.pending.waits = append(s.pending.waits, &pushWait{slots: p.command})
		} else {
			s.commandDone(p.command, err)
		}
		return
	}
	key := forwardKey{p.peer.ID, p.request}
	m := &forwardedMsg{Request: p.request}
	if err == nil {
		s.pending.waits = append(s.pending.waits, &pushWait{peer: p.peer, key: key, msg: m})
		return
	}
	delete(s.forwarded, key)
	if err.Code != codeTryAgain { // else the asker asks again
		m.Error = *err
		m.Error.Text = clipped(err.Text)
		s.post(p.peer, m)
	}
}

// commandDone is called once a part has failed, or all who live know that it is decided.
func (s *state) commandDone(c *slotCommand, err *commandError) {
	c.done = c.done || err == nil
	if c.err == nil || err != nil && err.MayHappen && !c.err.MayHappen {
		c.err = err
	}
	if c.parts--; c.parts > 0 {
		return
	}
	switch {
	case c.err == nil:
		s.tell(replyTell{id: c.id, beside: true}) // as replyDecided
	case c.done && !c.err.MayHappen:
		s.reply(c.id, &commandError{Code: c.err.Code, Text: "some of the slots have changed hands; of the others: " + c.err.Text, MayHappen: true})
	default:
		s.reply(c.id, c.err)
	}
}

// ---- commands

// addSlots assigns slots that nobody has to this node's shard, all or none.
func (s *state) addSlots(now time.Duration, id uint64, slots SlotSet) output {
	s.begin(now)
	s.slotsCommand(id, slots, s.self.Shard, func(slot Slot) *commandError {
		if s.table.primary(s.self.Shard) != s.id {
			return invalid("this node is a replica: only a primary takes slots")
		}
		if !s.table.slots.at(slot).shard.IsZero() {
			return invalid("Slot %d is already busy", slot)
		}
		return nil
	})
	return s.end()
}

// delSlots takes slots from whoever has them.
func (s *state) delSlots(now time.Duration, id uint64, slots SlotSet) output {
	s.begin(now)
	s.slotsCommand(id, slots, ShardID{}, func(slot Slot) *commandError {
		if s.table.slots.at(slot).shard.IsZero() {
			return invalid("Slot %d is already unassigned", slot)
		}
		return nil
	})
	return s.end()
}

// setSlots gives slots to the shard that a node leads.
func (s *state) setSlots(now time.Duration, id uint64, slots SlotSet, node NodeID) output {
	s.begin(now)
	p := s.peers.get(node)
	switch {
	case p == nil || p.State == forgotten:
		s.reply(id, invalid("Unknown node %s", node))
	case s.table.primary(p.Shard) != node:
		s.reply(id, invalid("Target node is not a master"))
	default:
		s.slotsCommand(id, slots, p.Shard, func(Slot) *commandError { return nil })
	}
	return s.end()
}

func hasBeenForgotten() *commandError {
	return clusterDown("this node has been forgotten by its cluster")
}

// announce tells all who owns these slots, and answers when every live member
// has heard it.
func (s *state) announce(now time.Duration, id uint64, slots SlotSet) output {
	s.begin(now)
	s.pending.slots.Union(&slots)
	s.replyDecided(id)
	return s.end()
}

// slotsCommand checks every slot before it changes any.
func (s *state) slotsCommand(id uint64, slots SlotSet, to ShardID, check func(Slot) *commandError) {
	if s.self.State == forgotten {
		s.reply(id, hasBeenForgotten())
		return
	}
	if s.leave != nil && to == s.self.Shard {
		s.reply(id, invalid("this node is leaving: it takes no slots"))
		return
	}
	for slot := range slots.All() {
		if err := check(slot); err != nil {
			s.reply(id, err)
			return
		}
	}
	if s.cluster.IsZero() {
		s.assignUnformed(id, slots, to)
		return
	}
	if len(s.ops)+len(s.waits) >= commandsMax {
		s.reply(id, tryAgain("%d commands are under way, which is the limit", commandsMax))
		return
	}
	s.startCommand(id, slots, to)
}

// startCommand splits a command by the shard that owns the slots now.
func (s *state) startCommand(id uint64, slots SlotSet, to ShardID) {
	byGiver := map[ShardID]*SlotSet{}
	for slot := range slots.All() {
		from := s.table.slots.at(slot).shard
		if from == to {
			continue
		}
		if byGiver[from] == nil {
			byGiver[from] = &SlotSet{}
		}
		byGiver[from].Add(slot)
	}
	if len(byGiver) == 0 {
		s.replyDecided(id)
		return
	}
	c := &slotCommand{id: id, parts: len(byGiver)}
	for _, from := range sortedShards(byGiver) {
		s.startPart(&slotPart{command: c, from: from, to: to, slots: *byGiver[from]})
	}
}

// startPart lets the right node do a part.
func (s *state) startPart(p *slotPart) {
	owner := s.table.primary(p.from)
	switch {
	case p.from == s.self.Shard && owner == s.id:
		if err := s.give(s.cfg.random()|1, p.slots, p.to, true, p); err != nil {
			s.partDone(p, err)
		}
	case p.from.IsZero() || s.shardFailed(p.from):
		if executor := s.taker(p.to); executor == s.id {
			s.startOperation(p)
		} else {
			s.startForward(p, executor)
		}
	default:
		s.startForward(p, owner)
	}
}

// taker is who carries out an operation on slots of nobody or of a failed
// primary: who gets them, or whoever is asked if nobody does.
func (s *state) taker(to ShardID) NodeID {
	if to.IsZero() {
		return s.id
	}
	return s.table.primary(to)
}

// ---- FORWARD

// forwarding asks another node to do a part.
type forwarding struct {
	part    *slotPart
	request uint64
	to      NodeID
	moves   moveRuns
	again   time.Duration
	until   time.Duration
	done    bool // it has said so; the table may be behind
}

type forwardKey struct {
	node    NodeID
	request uint64
}

func (s *state) startForward(p *slotPart, executor NodeID) {
	if p.command == nil {
		s.partDone(p, tryAgain("not the one to ask"))
		return
	}
	f := &forwarding{part: p, request: s.cfg.random() | 1, to: executor, until: s.now + forwardLimit}
	for slot := range p.slots.All() {
		f.moves.add(slot, s.table.slots.at(slot).move)
	}
	s.forwards[f.request] = f
	s.sendForward(f)
}

func (s *state) sendForward(f *forwarding) {
	f.again = s.now + forwardEvery
	s.wakeBy(f.again)
	s.postTo(f.to, &forwardMsg{Request: f.request, Slots: f.moves, From: f.part.from, To: f.part.to})
}

// onForward does what another node's operator asks, if this node is the one to.
func (s *state) onForward(p *peer, m *forwardMsg) {
	key := forwardKey{p.ID, m.Request}
	if s.cluster.IsZero() || s.forwarded[key] != nil {
		return
	}
	part := &slotPart{peer: p, request: m.Request, from: m.From, to: m.To, slots: m.Slots.slots()}
	there, stale := true, false
	m.Slots.each(func(slot Slot, move uint64) {
		e := s.table.slots.at(slot)
		there = there && e.shard == m.To && e.move > move
		stale = stale || e != slotEntry{m.From, move}
	})
	switch {
	case there:
		s.post(p, &forwardedMsg{Request: m.Request})
		for _, u := range s.slotUpdates(part.slots, ShardID{}) {
			s.post(p, u)
		}
	case stale || len(s.forwarded) >= commandsMax:
		// The table of one of the two is behind; it asks again.
	default:
		s.forwarded[key] = part
		s.startPart(part)
	}
}

func (s *state) onForwarded(_ *peer, m *forwardedMsg) {
	f := s.forwards[m.Request]
	if f == nil {
		return
	}
	if m.Error.Code != 0 {
		err := m.Error
		s.endForward(f, &err)
		return
	}
	f.done = true
	s.forwardTick(f)
}

func (s *state) endForward(f *forwarding, err *commandError) {
	delete(s.forwards, f.request)
	s.partDone(f.part, err)
}

// forwardTick ends a forward when the table shows what it asked for.
func (s *state) forwardTick(f *forwarding) {
	shown := true
	f.moves.each(func(slot Slot, move uint64) {
		e := s.table.slots.at(slot)
		shown = shown && e.shard == f.part.to && e.move > move
	})
	switch {
	case shown && f.done:
		s.endForward(f, nil)
	case s.now >= f.until:
		s.endForward(f, mayHappen("node %s, which has to give the slots away, has not answered in time", f.to))
	case s.now >= f.again:
		s.sendForward(f)
	default:
		s.wakeBy(min(f.again, f.until))
	}
}

// ---- operations

// operation takes slots of nobody, or of a primary that has failed.
type operation struct {
	part      *slotPart
	stand     *candidacy
	recording *recording
	move      *moveBallot
	sent      bool // a MOVE is out, of this attempt or one before
	until     time.Duration
}

func (s *state) startOperation(p *slotPart) {
	if !p.to.IsZero() && (s.lead == nil || !s.lead.opened) {
		s.partDone(p, clusterDown("this node's shard is not open"))
		return
	}
	op := &operation{part: p, until: s.now + forwardLimit}
	s.ops = append(s.ops, op)
	op.stand = s.newCandidacy(p.from, whyOperator, op, Epoch{})
}

// endOperation ends an operation. What another one has decided of its slots meanwhile was
// pushed without anybody who waits for it: it is pushed again.
func (s *state) endOperation(op *operation, err *commandError) {
	if err == nil {
		s.pending.slots.Union(&op.part.slots)
	}
	s.ops = slices.DeleteFunc(s.ops, func(x *operation) bool { return x == op })
	s.partDone(op.part, err)
}

// tookPromises goes on with the opening record: without it a half-accepted move
// of the old primary could still be completed later.
func (s *state) tookPromises(c *candidacy) {
	r := s.repair(c)
	op := c.op
	op.stand = nil
	rec := record{Shard: c.shard, Epoch: c.epoch, Vacant: true}
	if found := newestRecord(c.grants); found != nil {
		rec.InSync, rec.Strict = found.InSync, found.Strict
	}
	op.recording = &recording{op: op, msg: recordMsg{Sender: s.self.Store, Record: rec, Kept: r.kept, Opened: r.opened}}
	s.sendRecord(op.recording)
}

// tookShard sends the MOVE of the slots that are still there.
func (s *state) tookShard(r *recording) {
	op := r.op
	op.recording = nil
	s.decided(op.part.from, &r.msg.Kept)
	var moves moveRuns
	for slot := range op.part.slots.All() {
		switch e := s.table.slots.at(slot); e.shard {
		case op.part.from:
			moves.add(slot, e.move+1)
		case op.part.to: // by a MOVE of an attempt before
		default:
			s.endOperation(op, invalid("Slot %d is already busy", slot))
			return
		}
	}
	if len(moves) == 0 {
		s.endOperation(op, nil)
		return
	}
	if !op.part.to.IsZero() {
		if s.lead == nil || !s.lead.opened {
			s.endOperation(op, clusterDown("this node's shard is not open"))
			return
		}
		s.holdOwn(op, moves, r.msg.Record.Epoch)
	}
	op.move, op.sent = s.newMove(op.part.from, r.msg.Record.Epoch, moves, op.part.to), true
	s.sendMove(op.move)
}

// holdOwn is the import record of slots that this node takes itself.
func (s *state) holdOwn(op *operation, moves moveRuns, epoch Epoch) {
	job := s.cfg.random() | 1
	s.stages[job] = &heldStage{from: s.id, ready: true, inEpoch: s.lead.epoch,
		stageMsg: stageMsg{Job: job, Giver: op.part.from, Epoch: epoch, To: op.part.to, Slots: moves, InPlace: true}}
}

func (s *state) operationMoved(op *operation) {
	s.decided(op.part.from, &op.move.slots)
	s.endOperation(op, nil)
}

// takeRefused: somebody has been promised more than an operation's RECORD has.
func (s *state) takeRefused(m *refuseMsg) {
	for _, op := range s.ops {
		if r := op.recording; r != nil && r.msg.Record.Shard == m.Shard && r.msg.Record.Epoch == m.Epoch {
			s.retake(op)
			return
		}
	}
}

func (s *state) operationRefused(op *operation, m *refuseMsg) {
	if m.Why == refusePromised {
		s.retake(op)
		return
	}
	if first, ok := firstSlot(m.Accepted.slots()); ok {
		s.endOperation(op, mayHappen("Slot %d is already busy", first))
	}
}

// retake begins an operation anew, under a higher epoch and a little later at
// random: somebody else is taking the same shard. Until then there is no epoch to
// ask under.
func (s *state) retake(op *operation) {
	op.recording, op.move = nil, nil
	op.stand = &candidacy{shard: op.part.from, why: whyOperator, began: s.now, op: op, raiseAt: s.now + s.duelWait()}
	s.wakeBy(op.stand.raiseAt)
}

// duelWait is for who has been outbid, and is to bid again.
func (s *state) duelWait() time.Duration {
	return s.cfg.nodeTimeout/50 + s.jitter(s.cfg.nodeTimeout/12)
}

func (s *state) operationsTick() {
	for _, op := range slices.Clone(s.ops) {
		switch {
		case s.now >= op.until:
			s.timeOut(op)
		case op.stand != nil:
			s.wakeBy(op.until)
			s.standTick(op.stand)
		case op.recording != nil:
			if s.now >= op.recording.again || op.recording.voters != s.table.voters.ID {
				s.sendRecord(op.recording)
			}
		case op.move != nil:
			s.moveTick(op.move)
		}
	}
	for _, id := range sortedKeys(s.forwards) {
		s.forwardTick(s.forwards[id])
	}
	s.stageTick()
	s.goneTick()
	s.settleWaits()
}

func (s *state) timeOut(op *operation) {
	if op.sent {
		s.endOperation(op, mayHappen("no majority of the voters has answered"))
	} else {
		s.endOperation(op, clusterDown("no majority of the voters has answered, nothing has changed"))
	}
}

// abandon answers what is under way, for this node is not what it was when it
// was asked. What it would still push is of no meaning to others now.
func (s *state) abandon(err *commandError) {
	s.failQueued(err)
	for _, w := range s.waits { // done, and told to who could be told
		if w.slots != nil {
			s.commandDone(w.slots, nil)
		} else {
			s.reply(w.command, nil)
		}
	}
	for _, b := range s.bumps {
		s.reply(b.command, err)
	}
	s.waits, s.bumps, s.pending = nil, nil, pendingPush{}
	for _, id := range sortedKeys(s.forwards) {
		s.endForward(s.forwards[id], err)
	}
	for _, op := range slices.Clone(s.ops) {
		if op.sent {
			s.endOperation(op, mayHappen("%s", err.Text))
		} else {
			s.endOperation(op, err)
		}
	}
	s.pending, s.forwarded = pendingPush{}, map[forwardKey]*slotPart{}
}

func firstSlot(set SlotSet) (Slot, bool) {
	for slot := range set.All() {
		return slot, true
	}
	return 0, false
}

// ---- epochs

// bumpEpoch makes this node win its shard anew, under a higher epoch.
func (s *state) bumpEpoch(now time.Duration, id uint64) output {
	s.begin(now)
	s.onceDecided(id, func() { s.bump(id) })
	return s.end()
}

func (s *state) bump(id uint64) {
	switch {
	case s.self.State == forgotten:
		s.reply(id, hasBeenForgotten())
	case s.table.primary(s.self.Shard) != s.id:
		s.reply(id, invalid("this node is a replica: only a primary has an epoch of its own"))
	case s.cluster.IsZero():
		e := s.table.shards[s.self.Shard]
		if e.Number < s.currentEpoch() || e.Number == 0 {
			s.setShard(s.self.Shard, Epoch{Number: s.currentEpoch() + 1, Node: s.id}, pushChange)
		}
		s.replyOncePushed(id)
	case len(s.bumps) >= commandsMax:
		s.reply(id, tryAgain("%d commands are under way, which is the limit", commandsMax))
	default:
		// For a NodeTimeout after a change of voters nobody is voted for.
		s.bumps = append(s.bumps, bump{id, s.now + 2*s.cfg.nodeTimeout})
		s.wakeBy(s.now)
	}
}

// bump is a BUMPEPOCH that waits for the win.
type bump struct {
	command uint64
	until   time.Duration
}

func (s *state) bumpTick() {
	s.bumps = slices.DeleteFunc(s.bumps, func(b bump) bool {
		if s.now < b.until {
			s.wakeBy(b.until)
			return false
		}
		s.reply(b.command, mayHappen("no majority of the voters has answered"))
		return true
	})
}

// setConfigEpoch gives the first epoch to a node that knows no other.
func (s *state) setConfigEpoch(now time.Duration, id uint64, number uint64) output {
	s.begin(now)
	switch {
	case len(s.peers.ordered) > 1 || !s.cluster.IsZero():
		s.reply(id, invalid("The user can assign a config epoch only when the node does not know any other node."))
	case s.table.shards[s.self.Shard].Number != 0:
		s.reply(id, invalid("Node config epoch is already non-zero"))
	default:
		s.setShard(s.self.Shard, Epoch{Number: number, Node: s.id}, pushChange)
		s.reply(id, nil)
	}
	return s.end()
}

// takeover takes this node's shard without a vote: under an unclean epoch, which
// it shows at once. It stands with FORCE until it has won and acknowledges only
// then, under a lease, as everybody does. Where a majority of the voters has
// failed it first imposes those that live. Asked again it goes on: who leads the
// shard by then, or is taking it, takes it from nobody.
func (s *state) takeover(now time.Duration, id uint64) output {
	s.begin(now)
	switch {
	case s.cluster.IsZero():
		s.reply(id, invalid("the cluster has not formed yet: there is nothing to take over"))
		return s.end()
	case s.self.State == forgotten:
		s.reply(id, hasBeenForgotten())
		return s.end()
	}
	again := s.leadsLeased() || s.takesOver()
	if !again {
		s.takeShard()
	}
	if !s.majorityHeard() {
		s.imposeLiving(id)
	} else {
		s.replyOncePushed(id)
	}
	if !again {
		s.useEpoch(s.stand)
	}
	return s.end()
}

// takeShard shows this node as its shard's primary under an unclean epoch, and makes
// it stand under that.
func (s *state) takeShard() {
	was := s.table.primary(s.self.Shard)
	e := Epoch{Number: s.nextEpoch(s.self.Shard), Unclean: true, Node: s.id}
	s.event(Event{Kind: EventUnclean, Node: s.id, From: was, Shard: s.self.Shard, Epoch: e})
	s.setShard(s.self.Shard, e, pushChange)
	s.dropFailover("a TAKEOVER came between")
	s.stand = &candidacy{shard: s.self.Shard, epoch: e, why: whyForce, began: s.now}
}

// leadsLeased reports whether this node leads its shard, and a majority votes for
// nobody else: though it may be too early for it to acknowledge anything.
func (s *state) leadsLeased() bool {
	l := s.lead
	return l != nil && l.opened && !l.void && !l.outbid && !l.consent.given() && l.epoch == s.table.shards[s.self.Shard] && s.now < s.leasedUntil(l)
}

// takesOver reports whether this node's TAKEOVER of its shard is under way: it is the
// primary in its own table, and stands, or has won and opens.
func (s *state) takesOver() bool {
	e := s.table.shards[s.self.Shard]
	if !e.Unclean || e.Node != s.id {
		return false
	}
	c, l := s.stand, s.lead
	return c != nil && c.op == nil && c.why == whyForce && c.epoch.Unclean || l != nil && !l.opened && !l.void
}
