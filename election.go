package slotmesh

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// Who leads a shard is decided by a majority of the voters, in two phases:
//
//	VOTE    c asks for a promise of its epoch; with the promises come the record,
//	        and what the voters have half accepted and opened (R3)
//	RECORD  c says with which in-sync set it opens, which half-done moves it
//	        completes and which slots it opens; a majority of accepts decides
//	        all that at once, and is the first lease (R4)
//
// Elections are not triggered by FAIL: they wait for leases to end. A refusal
// says in how many milliseconds to ask again.

const forever = time.Duration(1 << 62)

// candidacy is one stand for a shard.
type candidacy struct {
	shard   ShardID
	epoch   Epoch
	why     why
	began   time.Duration
	voters  uint64 // id of the set whose answers count
	named   moveRuns
	asks    map[NodeID]time.Duration // when to ask a voter, again
	raiseAt time.Duration            // when to ask all under a higher epoch; 0: not yet
	raised  bool                     // it has done so before
	grants  map[NodeID]*grantMsg
	op      *operation // on whose behalf; nil: this node's own shard
	consent Epoch      // of whyConsent
}

// newCandidacy begins a stand under an epoch above all that is known. The
// number counts as used, and is saved before it leaves.
func (s *state) newCandidacy(shard ShardID, w why, op *operation, consent Epoch) *candidacy {
	c := &candidacy{shard: shard, epoch: Epoch{Number: s.nextEpoch(shard), Node: s.id}, why: w, began: s.now, op: op, consent: consent}
	s.useEpoch(c)
	return c
}

// nextEpoch is above every number of a shard that this node has used, heard or
// promised, as a voter or as a member: what it has heard alone does not outlive its
// process.
func (s *state) nextEpoch(shard ShardID) uint64 {
	n := max(s.used[shard], s.heard[shard], s.table.shards[shard].Number)
	if v := s.vote.shards[shard]; v != nil {
		n = max(n, v.promised.Number)
	}
	if shard == s.self.Shard {
		n = max(n, s.promise.Number)
	}
	return n + 1
}

// useEpoch begins to ask under c's epoch.
func (s *state) useEpoch(c *candidacy) {
	s.used[c.shard] = c.epoch.Number
	s.mark(cellKey{kind: cellUsed, id: c.shard})
	s.heardEpoch(c.shard, c.epoch.Number)
	c.grants = map[NodeID]*grantMsg{}
	c.named = nil
	slots := s.table.slotsOf(c.shard)
	for slot := range slots.All() {
		c.named.add(slot, s.table.slots.at(slot).move)
	}
	s.askAll(c)
}

// raiseEpoch asks all again under a higher epoch, and as what it was: a TAKEOVER
// is one until it has won.
func (s *state) raiseEpoch(c *candidacy) {
	c.epoch = Epoch{Number: s.nextEpoch(c.shard), Unclean: c.epoch.Unclean, Node: s.id}
	c.raised = true
	s.useEpoch(c)
}

// askAll makes every voter due to be asked. Grants of an older set are void.
func (s *state) askAll(c *candidacy) {
	c.voters = s.table.voters.ID
	if !mutated(mutMixedVersions) {
		clear(c.grants)
	}
	c.asks = map[NodeID]time.Duration{}
	for _, v := range s.table.voters.Members {
		c.asks[v.ID] = s.now + s.rankWait(c)
	}
	s.askDue(c)
}

// rankWait lets the member of a shard that has the most go first.
func (s *state) rankWait(c *candidacy) time.Duration {
	if c.op != nil || c.why == whyConsent || c.why == whyForce || mutated(mutNoRank) {
		return 0
	}
	return time.Duration(s.rank()) * s.cfg.nodeTimeout / 20
}

// endOfLog is where this node's log ends, as heartbeats show it: an epoch is its
// number there.
func (s *state) endOfLog() logPosition {
	return logPosition{Epoch{Number: s.logAt.Epoch.Number}, s.logAt.Offset}
}

// rank counts the living members of this node's shard that may stand, without its
// last primary, whose log is further than this node's, or as far with a smaller id.
func (s *state) rank() int {
	n := 0
	mine := s.endOfLog()
	for _, p := range s.peers.ordered {
		if p == s.self || p.Shard != s.self.Shard || p.State == forgotten || p.NoFailover || p.ID == s.table.primary(p.Shard) || s.silentHere(p) {
			continue
		}
		if mine.less(p.log) || p.log == mine && p.ID.compare(s.id) < 0 {
			n++
		}
	}
	return n
}

// askDue asks the voters whose time has come.
func (s *state) askDue(c *candidacy) {
	if c.voters != s.table.voters.ID {
		s.askAll(c)
		return
	}
	for _, v := range s.table.voters.Members {
		if c.grants[v.ID] != nil {
			continue
		}
		if at := c.asks[v.ID]; at > s.now {
			s.wakeBy(at)
			continue
		}
		c.asks[v.ID] = s.now + s.cfg.nodeTimeout/10
		s.wakeBy(c.asks[v.ID])
		s.postTo(v.ID, s.voteFor(c))
	}
}

func (s *state) voteFor(c *candidacy) *voteMsg {
	m := &voteMsg{Voters: s.table.voters.Version, Shard: c.shard, Epoch: c.epoch,
		Incarnation: s.self.Store, Slots: c.named, Why: c.why, Consent: c.consent}
	if r := s.knownRecord; c.op == nil && r != nil {
		m.Records = []record{*r}
	}
	return m
}

// candidacyOf finds the stand that an answer belongs to.
func (s *state) candidacyOf(shard ShardID, e Epoch) *candidacy {
	if c := s.stand; c != nil && c.shard == shard && c.epoch == e {
		return c
	}
	for _, op := range s.ops {
		if c := op.stand; c != nil && c.shard == shard && c.epoch == e {
			return c
		}
	}
	return nil
}

// counts reports whether an answer under version v is one of the set in force.
func (s *state) counts(p *peer, v voterVersion) bool {
	if mutated(mutMixedVersions) {
		return true
	}
	return v == s.table.voters.Version && s.voter(p)
}

// majority reports whether the nodes for which has holds make a majority of the
// voters.
func (s *state) majority(has func(NodeID) bool) bool {
	n := 0
	for _, v := range s.table.voters.Members {
		if has(v.ID) {
			n++
		}
	}
	return len(s.table.voters.Members) > 0 && n >= s.table.voters.quorum()
}

func (s *state) onGrant(p *peer, m *grantMsg) {
	c := s.candidacyOf(m.Shard, m.Epoch)
	if c == nil || !s.counts(p, m.Voters) {
		return
	}
	c.grants[p.ID] = m
	s.knowRecords(m.Records)
	if !s.majority(func(id NodeID) bool { return c.grants[id] != nil }) {
		return
	}
	if c.op != nil {
		s.tookPromises(c)
	} else {
		s.win(c)
	}
}

// knowRecord keeps the newest record of this shard, and the newest that names this
// node.
func (s *state) knowRecord(r *record) {
	if r.Shard != s.self.Shard {
		return
	}
	if s.shardRecord == nil || r.newer(s.shardRecord) {
		s.shardRecord = r
	}
	if r.electable(s.member()) && (s.knownRecord == nil || r.newer(s.knownRecord)) {
		s.knownRecord = r
	}
}

func (s *state) knowRecords(rs []record) {
	if len(rs) > 0 {
		s.knowRecord(&rs[0])
	}
}

func (s *state) onRefuse(p *peer, m *refuseMsg) {
	if !s.counts(p, m.Voters) || !s.believableEpoch(p, m.Promised) {
		return
	}
	s.heardEpoch(m.Shard, m.Promised.Number)
	if m.Ballot != 0 {
		s.moveRefused(p, m)
		return
	}
	if c := s.candidacyOf(m.Shard, m.Epoch); c != nil {
		s.voteRefused(p, c, m)
		return
	}
	if l := s.lead; l != nil && m.Shard == s.self.Shard && l.epoch == m.Epoch && m.Why == refusePromised {
		s.outbid(m.Promised.Number)
	}
	s.takeRefused(m)
}

// voteRefused goes on with a stand as the refusal says. Of members that hear each other
// one waits for the other. Two that do not, and of which either is nearer to some voters,
// would outbid each other in step for as long as messages take the same time: so from the
// second time on that somebody else is promised the shard it is drawn how long to wait.
func (s *state) voteRefused(p *peer, c *candidacy, m *refuseMsg) {
	nt := s.cfg.nodeTimeout
	switch m.Why {
	case refusePromised:
		if c.raiseAt == 0 {
			c.raiseAt = s.now + nt/20
			if c.op != nil || c.raised && !mutated(mutLockstep) {
				c.raiseAt = s.now + s.duelWait()
			}
			s.wakeBy(c.raiseAt)
		}
	default:
		s.knowRecords(m.Records)
		wait := time.Duration(m.RetryIn)*time.Millisecond + s.rankWait(c)
		c.asks[p.ID] = s.now + wait
		s.wakeBy(c.asks[p.ID])
	}
}

// standTick goes on with a stand that is under way.
func (s *state) standTick(c *candidacy) {
	nt := s.cfg.nodeTimeout
	limit := 4 * nt
	if c.why == whyForce || c.why == whyConsent {
		limit = nt / 2
	}
	switch {
	case c.op == nil && c.why == whySilence && s.nobodyInSync():
		c.why = whyUnclean
		s.raiseEpoch(c)
	case c.op == nil && c.why == whyUnclean && s.dataTooOld():
		s.withdraw()
	case c.raiseAt != 0 && s.now >= c.raiseAt, s.now-c.began > limit:
		if s.now-c.began > limit {
			c.began = s.now
		}
		c.raiseAt = 0
		s.raiseEpoch(c)
	default:
		if c.raiseAt != 0 {
			s.wakeBy(c.raiseAt)
		}
		if c.epoch != (Epoch{}) { // not before an operation that begins anew has drawn one
			s.askDue(c)
		}
	}
}

// ---- standing

// electionTick stands where that is due.
func (s *state) electionTick() {
	if s.self.State == forgotten || len(s.table.voters.Members) == 0 {
		return
	}
	if s.stand != nil {
		s.standTick(s.stand)
		return
	}
	if due, w := s.standDue(); due {
		s.standFor(w)
	}
}

func (s *state) standFor(w why) { s.stand = s.newCandidacy(s.self.Shard, w, nil, Epoch{}) }

// standDue reports whether this node is to stand for its shard. A stand is no
// promise: an open primary goes on under its old lease until it wins.
func (s *state) standDue() (bool, why) {
	l := s.lead
	nt := s.cfg.nodeTimeout
	switch {
	case s.now < s.nextRun:
		s.wakeBy(s.nextRun)
		return false, 0
	case l != nil && !l.opened:
		return l.outbid, whySilence
	case l != nil && l.consent.given() && s.now < l.consent.at+nt/2:
		s.wakeBy(l.consent.at + nt/2)
		return false, 0
	case l != nil && l.consent.given():
		return true, whySilence // nobody has taken it over
	case l != nil && (l.void || l.outbid):
		return true, whySilence // win it back at once
	case l != nil && l.late.Len() > 0:
		return true, whySilence // slots learnt late are served once they have been named
	case l != nil && len(s.bumps) > 0:
		return true, whySilence
	case l != nil:
		// A primary's own lease counts as the heartbeat it waits for.
		return s.now-max(min(s.leasedUntil(l), s.now), l.openedAt) >= nt/2, whySilence
	case s.table.primary(s.self.Shard) == s.id:
		if mutated(mutNewNoStand) && s.table.shards[s.self.Shard].Number == 0 {
			return false, 0
		}
		return true, whySilence // it has restarted, or nobody has voted on its shard yet: what it lacks the voters know
	default:
		return s.replicaDue()
	}
}

// replicaDue reports whether this node, a replica, is to stand. One that has no
// copy of the data stands last of all, where nobody is left who has.
func (s *state) replicaDue() (bool, why) {
	switch due := s.primary + s.cfg.nodeTimeout/2; {
	case s.cfg.policy.NoFailover:
		return false, 0
	case s.now < due:
		s.wakeBy(due)
		return false, 0
	case s.holdsCopy || mutated(mutEmptyStands):
		return true, whySilence
	default:
		return s.nobodyInSync(), whyUnclean
	}
}

// nobodyInSync reports whether nobody is left, as far as this node knows, who holds
// every acknowledged write of its shard, and whether it may then stand all the
// same: one NodeTimeout after it could have stood otherwise, and one more where it
// has no copy and others may have one.
func (s *state) nobodyInSync() bool {
	r := s.shardRecord
	nt := s.cfg.nodeTimeout
	if r == nil || r.Strict || r.electable(s.member()) || s.dataTooOld() {
		return false
	}
	wait := nt
	if s.table.primary(s.self.Shard) != s.id {
		wait += nt / 2
	}
	if !s.holdsCopy && s.table.members[s.self.Shard] > 1 {
		wait += nt
	}
	if s.noCompany() {
		wait = 0
	}
	if s.now < s.primary+wait {
		s.wakeBy(s.primary + wait)
		return false
	}
	return !slices.ContainsFunc(r.InSync, func(m incarnate) bool {
		p := s.peers.get(m.Node)
		return p != nil && p != s.self && p.State != forgotten && p.Store == m.Incarnation && s.now-p.heardAt < nt
	})
}

// byItself reports whether its node stands for its own shard without an operator's
// word.
func (c *candidacy) byItself() bool {
	return c.op == nil && (c.why == whySilence || c.why == whyUnclean)
}

// leasedPrimaryHeard is called for every heartbeat of a primary of this shard
// that holds its lease. A stand for its silence was no promise, and no more was one
// because of that silence nobody in sync seemed to be left.
func (s *state) leasedPrimaryHeard() {
	s.primary = s.now
	if c := s.stand; c != nil && c.byItself() && s.lead == nil {
		s.withdraw()
	}
}

// withdraw ends a stand; its epoch stays used.
func (s *state) withdraw() {
	s.stand = nil
	s.nextRun = s.now + s.cfg.nodeTimeout/20
}

// outbid notes that a voter has promised this shard to somebody else. Under the
// number of this primary's epoch that is so too: the voter never leases it again
// before it has won under a higher one.
func (s *state) outbid(n uint64) {
	s.heardEpoch(s.self.Shard, n)
	if l := s.lead; l != nil && n >= l.epoch.Number {
		l.outbid = true
		if s.stand == nil && !l.consent.given() {
			s.wakeBy(s.now)
		}
	}
}

// ---- leading

// leadership is this node's rule over its shard, in one epoch.
type leadership struct {
	epoch       Epoch
	n           uint64      // of the last accepted record
	inSync      []incarnate // members of the last accepted record, this node among them
	joining     []joiner    // members that are waited for already, and not in it yet
	behind      []laggard   // members that are waited for and lack entries, and those that have stood still
	consent     *consent    // this node is handing the shard over
	givenUp     uint64      // request of the last handing over that came to nothing
	opened      bool
	void        bool // won under voters that an operator has replaced: to be won again
	openedAt    time.Duration
	claimedFrom time.Duration // heartbeats sent from then on claim this epoch
	serveFrom   time.Duration // after a win by FORCE, other leases may run until then
	maxLease    time.Duration // longest lease of any voter, as grants told

	recording *recording
	last      *recordMsg // repeated to voters that are behind

	leases   map[NodeID]time.Duration // ends, by voter of the set in force
	leaseEnd time.Duration            // until then a majority does not vote against this node

	mine     SlotSet      // may be served: opened, or staged in this epoch
	fresh    []freshSlots // will be mine once their move is saved
	late     SlotSet      // learnt late: to be named in a new stand
	unproven SlotSet      // named, but no voter of a majority knows of the move, or one knows of a later one
	gives    []*handOver
	outbid   bool // a voter has promised the shard to somebody else

	uncleanOf string // what may have been lost when this node won it, once it is open; "": nothing
}

type freshSlots struct {
	slots SlotSet
	save  uint64
}

// claims reports whether heartbeats claim the shard and ask for a lease.
func (l *leadership) claims() bool { return l.opened && !l.void }

// recording is a RECORD under way.
type recording struct {
	msg     recordMsg
	voters  uint64
	again   time.Duration
	accepts map[NodeID]bool
	op      *operation // on whose behalf; nil: this node's own shard
}

// win makes this node the primary of its shard, once it has opened it.
func (s *state) win(c *candidacy) {
	rec := newestRecord(c.grants)
	l := &leadership{epoch: c.epoch, inSync: s.firstInSync(rec, c.consent), leases: map[NodeID]time.Duration{},
		leaseEnd: never, claimedFrom: forever, openedAt: s.now}
	if rec != nil {
		s.knowRecord(rec)
		s.unnamed = cmp.Or(s.lostMembers(c, rec), s.unnamed)
	}
	for _, g := range c.grants {
		l.maxLease = max(l.maxLease, time.Duration(g.MaxLease)*time.Millisecond)
	}
	if c.why == whyForce && !mutated(mutForceNoWait) {
		l.serveFrom = s.now + l.maxLease
	}
	r := s.repair(c)
	l.unproven = r.unproven
	c.named.each(func(slot Slot, move uint64) {
		if s.table.slots.at(slot).move != move {
			l.unproven.Remove(slot) // it has left since, and may be back: late, if it is
		}
	})
	if s.lead != nil {
		l.gives = s.lead.gives
	}
	s.stand, s.lead = nil, l
	s.promise = c.epoch
	s.mark(cellKey{kind: cellNode})
	l.recording = &recording{msg: recordMsg{Sender: s.self.Store, Kept: r.kept, Opened: r.opened,
		Record: record{Shard: c.shard, Epoch: c.epoch, InSync: l.inSync, Strict: s.strict()}}}
	s.reassess, s.viewDirty = true, true
	if mutated(mutNoRecord) && len(r.kept.Runs) == 0 {
		s.recordDecided(l.recording)
		return
	}
	s.sendRecord(l.recording)
}

func newestRecord(grants map[NodeID]*grantMsg) *record {
	var newest *record
	for _, g := range grants {
		for i := range g.Records {
			if r := &g.Records[i]; newest == nil || r.newer(newest) {
				newest = r
			}
		}
	}
	return newest
}

// repairs is what an opening does with the slots that its VOTE has named.
type repairs struct {
	kept     acceptRuns // half-accepted moves that it completes
	opened   moveRuns   // slots that it opens
	unproven SlotSet    // not opened: of a move that no grant knows, or with a later one
}

// repair is rule R4. Of a slot named at move m:
//   - an accepted move above m+1 proves that it has left: neither kept nor opened;
//   - of the accepted moves m+1 the one of the highest epoch is kept, unless a
//     later primary has opened the slot at m since;
//   - else the slot is opened, if a grant knows of the move that brought it: what
//     the table has by hearsay alone is not. Where voters have been imposed such
//     knowledge may be lost, and the table is believed.
func (s *state) repair(c *candidacy) repairs {
	named := make(map[Slot]uint64) // of slots with a higher accepted move
	best := make(map[Slot]accepted)
	var proven, left SlotSet
	moves := s.namedMoves(c)
	for _, id := range slices.SortedFunc(maps.Keys(c.grants), NodeID.compare) {
		g := c.grants[id]
		g.Accepted.each(func(slot Slot, a accepted) {
			m, ok := moves(slot)
			switch {
			case !ok || a.move < m:
			case a.move == m:
				if a.shard == c.shard {
					proven.Add(slot)
				}
			case a.move > m+1:
				left.Add(slot)
			default:
				proven.Add(slot) // the next move is given by who owned the slot at this one
				named[slot] = m
				if b, seen := best[slot]; !seen || b.epoch.less(a.epoch) {
					best[slot] = a
				}
			}
		})
	}
	for _, g := range c.grants {
		if len(best) == 0 {
			break
		}
		g.Opened.each(func(slot Slot, o opening) {
			if b, ok := best[slot]; ok && o.move == named[slot] && b.epoch.less(o.epoch) {
				delete(best, slot)
			}
		})
	}
	if mutated(mutNoRepair) {
		clear(best)
	}
	var r repairs
	c.named.each(func(slot Slot, m uint64) {
		b, keep := best[slot]
		switch {
		case left.Contains(slot):
			r.unproven.Add(slot)
		case keep:
			r.kept.add(slot, accepted{b.shard, b.move, c.epoch})
		case !proven.Contains(slot) && !c.shard.IsZero() && s.table.voters.Version.Forced == 0:
			r.unproven.Add(slot)
		default:
			r.opened.add(slot, m)
		}
	})
	return r
}

// namedMoves looks up the move at which c has named a slot.
func (s *state) namedMoves(c *candidacy) func(Slot) (uint64, bool) {
	return func(slot Slot) (uint64, bool) {
		i, found := slices.BinarySearchFunc(c.named, slot, func(r moveRun, slot Slot) int {
			switch {
			case r.Last < slot:
				return -1
			case r.First > slot:
				return 1
			default:
				return 0
			}
		})
		if !found {
			return 0, false
		}
		return c.named[i].Move, true
	}
}

// sendRecord sends a RECORD to the voters that have not accepted it.
func (s *state) sendRecord(r *recording) {
	if r.accepts == nil || r.voters != s.table.voters.ID && !mutated(mutMixedVersions) {
		r.voters, r.accepts = s.table.voters.ID, map[NodeID]bool{}
	}
	r.again = s.now + s.cfg.nodeTimeout/10
	s.wakeBy(r.again)
	m := r.msg
	m.Voters, m.Sent = s.table.voters.Version, s.stamp()
	if r.op == nil && s.lead != nil {
		s.lead.last = &m
	}
	for _, v := range s.table.voters.Members {
		if !r.accepts[v.ID] {
			s.postTo(v.ID, &m)
		}
	}
}

// repeatRecord sends the last record to a voter that lacks it.
func (s *state) repeatRecord(p *peer) {
	m := *s.lead.last
	m.Voters, m.Sent = s.table.voters.Version, s.stamp()
	s.post(p, &m)
}

func (s *state) onAccept(p *peer, m *acceptMsg) {
	if !s.counts(p, m.Voters) {
		return
	}
	if m.Ballot != 0 {
		s.moveAccepted(p, m)
		return
	}
	if l := s.lead; l != nil && l.epoch == m.Epoch && m.Shard == s.self.Shard && m.Lease > 0 {
		if sent := s.unstamp(m.Sent); sent >= s.votersAt {
			s.gotLease(p.ID, sent, m.Lease)
		}
	}
	if r := s.recordingOf(m); r != nil {
		r.accepts[p.ID] = true
		if s.majority(func(id NodeID) bool { return r.accepts[id] }) {
			s.recordDecided(r)
		}
	}
}

func (s *state) recordingOf(m *acceptMsg) *recording {
	matches := func(r *recording) bool {
		return r != nil && r.msg.Record.Shard == m.Shard && r.msg.Record.Epoch == m.Epoch && r.msg.Record.N == m.N &&
			(r.voters == s.table.voters.ID || mutated(mutMixedVersions))
	}
	if s.lead != nil && matches(s.lead.recording) {
		return s.lead.recording
	}
	for _, op := range s.ops {
		if matches(op.recording) {
			return op.recording
		}
	}
	return nil
}

// recordDecided is called when a majority has accepted a RECORD.
func (s *state) recordDecided(r *recording) {
	if r.op != nil {
		s.tookShard(r)
		return
	}
	l := s.lead
	l.recording = nil
	l.n, l.inSync = r.msg.Record.N, r.msg.Record.InSync
	s.knowRecord(&r.msg.Record)
	s.tellMembers(&r.msg.Record)
	if !l.opened {
		s.open(l, r)
	}
}

// open begins to serve: the epoch, the kept moves and the opened slots are
// decided.
func (s *state) open(l *leadership, r *recording) {
	l.opened, l.openedAt, l.claimedFrom = true, s.now, s.now
	was := s.table.primary(s.self.Shard)
	s.setShard(s.self.Shard, l.epoch, pushChange)
	s.holdsCopy = true // what it has is what there is
	var mine SlotSet
	r.msg.Opened.each(func(slot Slot, move uint64) {
		if s.table.slots.at(slot) == (slotEntry{s.self.Shard, move}) {
			mine.Add(slot)
		}
	})
	s.decided(s.self.Shard, &r.msg.Kept)
	mine = s.stillOwn(mine)
	l.mine = mine
	s.lookThrough(l)
	s.noteLate(l, mine)
	s.settleGives(l, &r.msg)
	for _, b := range s.bumps {
		s.replyOncePushed(b.command)
	}
	s.bumps = nil
	s.wakeBy(s.now)
	if was == s.id {
		was = NodeID{}
	}
	s.event(Event{Kind: EventPrimary, Node: s.id, From: was, Shard: s.self.Shard, Epoch: l.epoch})
	if l.uncleanOf, s.unnamed = s.unnamed, ""; l.uncleanOf != "" {
		s.event(Event{Kind: EventUnclean, Node: s.id, From: was, Shard: s.self.Shard, Epoch: l.epoch, Text: l.uncleanOf})
	}
	s.failoverDone()
	s.reassess, s.viewDirty = true, true
}

// noteLate finds the slots of this shard that the opening has not named: they
// came between VOTE and win.
func (s *state) noteLate(l *leadership, opened SlotSet) {
	slots := s.table.slotsOf(s.self.Shard)
	slots.Subtract(&opened)
	slots.Subtract(&l.unproven)
	l.late = slots
}

// stillOwn is which of slots belong to this node's shard.
func (s *state) stillOwn(slots SlotSet) SlotSet {
	for slot := range slots.All() {
		if !s.table.slotIsOf(slot, s.self.Shard) {
			slots.Remove(slot)
		}
	}
	return slots
}

// lookThrough makes a member look through what it holds of the slots for which it
// has only followed its primary's log so far, before it serves them: which of its
// copies are right under the moves that it has opened.
func (s *state) lookThrough(l *leadership) {
	slots := l.mine
	slots.Intersect(&s.followed)
	l.mine.Subtract(&slots)
	s.followed.Subtract(&slots)
	for slot := range slots.All() {
		s.arrived.add(slot, s.table.slots.at(slot).move)
		s.freshen(l, slot)
	}
}

// gotLease counts a voter's lease from when it was asked for.
func (s *state) gotLease(voter NodeID, sent time.Duration, ms uint32) {
	l := s.lead
	d := time.Duration(ms) * time.Millisecond
	if !mutated(mutLeaseFull) {
		d = d * 9 / 10
	}
	l.leases[voter] = max(l.leases[voter], sent+d)
	ends := make([]time.Duration, 0, maxVotersLimit)
	for _, v := range s.table.voters.Members {
		ends = append(ends, l.leases[v.ID])
	}
	slices.Sort(ends)
	// With k voters needed, the k-th newest: what was reached under an older
	// set stays valid until it runs out.
	if k := s.table.voters.quorum(); k <= len(ends) {
		if end := ends[len(ends)-k]; end > l.leaseEnd {
			if l.leaseEnd <= s.now {
				s.reassess, s.viewDirty = true, true
			}
			l.leaseEnd = end
		}
	}
}

// leaseUntil is until when this node may acknowledge as its shard's primary.
func (s *state) leaseUntil() time.Duration {
	l := s.lead
	if l == nil || !l.opened || s.now < l.serveFrom || l.consent.given() && !mutated(mutConsentNotFinal) {
		return never
	}
	return s.leasedUntil(l)
}

// leasedUntil is until when no majority votes against this node. A winner by
// FORCE is leased like any other, before it may acknowledge.
func (s *state) leasedUntil(l *leadership) time.Duration {
	if s.soleVoter() {
		return forever
	}
	return l.leaseEnd
}

// soleVoter reports whether nobody can be elected without a vote of this node
// itself, so that it need not ask anybody.
func (s *state) soleVoter() bool {
	l := s.lead
	return len(s.table.voters.Members) == 1 && s.active() && s.vote.stop.isZero() && s.vote.known(s.self.Shard).promised == l.epoch
}

func (s *state) leaseHeld() bool { return s.now < s.leaseUntil() }

// leaseRunsShort reports whether this primary should have an answer at once.
func (s *state) leaseRunsShort() bool {
	l := s.lead
	if l == nil || !l.opened || s.soleVoter() {
		return false
	}
	return l.leaseEnd-s.now < s.cfg.nodeTimeout/answerNowFactor
}

// leadTick goes on with what this primary has under way.
func (s *state) leadTick() {
	l := s.lead
	if l == nil {
		return
	}
	if r := l.recording; r != nil {
		if s.now >= r.again || r.voters != s.table.voters.ID {
			s.sendRecord(r)
		} else {
			s.wakeBy(r.again)
		}
	}
	if l.claims() {
		s.leaseSelf(l)
	}
	if l.opened {
		s.noteProgress(l)
		s.inSyncTick(l)
		s.consentTick(l)
		s.giveTick(l)
	}
	if held := s.leaseHeld(); held != s.wasLeased {
		s.wasLeased = held
		s.reassess, s.viewDirty = true, true
	}
	if s.wasLeased {
		s.wakeBy(s.leaseUntil()) // so that what this node says of itself is true
	}
	if l.serveFrom > s.now {
		s.wakeBy(l.serveFrom)
	}
}

// leaseSelf is the lease of this node's own vote: it asks itself.
func (s *state) leaseSelf(l *leadership) {
	if !s.active() {
		return
	}
	s.self.claim = claim{open: true, shard: s.self.Shard, epoch: l.epoch, n: l.n, start: s.table.voters.ID}
	s.self.answered = false
	var h heartbeat
	s.answerClaim(s.self, &h)
	switch {
	case h.Promised > 0:
		s.outbid(h.Promised)
	case h.Flags&beatBehind != 0 && l.last != nil && !mutated(mutRecordNoRepeat):
		s.repeatRecord(s.self)
	case h.Lease > 0:
		s.gotLease(s.id, s.now, h.Lease)
	}
}

// standAnew makes this node win again what it has won under other voters than
// those that an operator has imposed, who need not know of it: not even to
// repeat a RECORD or a MOVE to them would be right.
func (s *state) standAnew() {
	switch l := s.lead; {
	case l == nil:
	case l.opened:
		l.void = true
	default:
		s.lead = nil
	}
	for _, op := range s.ops {
		if op.stand == nil {
			s.retake(op)
		}
	}
}

// shardChanged is called when the table shows another epoch for this shard.
func (s *state) shardChanged(was, e Epoch) {
	if c := s.stand; c != nil && c.epoch.Number <= e.Number && e != c.epoch {
		s.withdraw()
	}
	if l := s.lead; l != nil && l.epoch.less(e) {
		s.stepDown()
	}
	switch {
	case e.Node == s.id && was.Node.IsZero():
		s.showMarks()
	case e.Node == s.id && was.Node != s.id:
		s.inheritMarks()
	case e.Node != s.id && was.Node == s.id:
		s.hideMarks()
	}
	if e.Node != s.id {
		s.followed.AddRange(SlotRange{0, NumSlots - 1})
	}
	if s.promise.less(e) {
		s.promise = e
		s.mark(cellKey{kind: cellNode})
	}
	s.primary = s.now
}

// stepDown ends this node's rule: what it has begun to give is left to the
// successor.
func (s *state) stepDown() {
	s.fresh = s.now
	for _, g := range s.lead.gives {
		s.giveEnded(g)
	}
	s.event(Event{Kind: EventDeposed, Node: s.id, Shard: s.self.Shard, Epoch: s.lead.epoch})
	s.lead = nil
	s.reassess, s.viewDirty = true, true
}

// slotMoved is called for every change of a slot's owner.
func (s *state) slotMoved(slot Slot, was, is slotEntry) {
	if s.cluster.IsZero() || was.shard != s.self.Shard || is.shard == s.self.Shard {
		return
	}
	s.noteGone(slot, is)
	if l := s.lead; l != nil {
		l.mine.Remove(slot)
		l.late.Remove(slot)
		l.unproven.Remove(slot)
		for i := range l.fresh {
			l.fresh[i].slots.Remove(slot)
		}
	}
}

// slotArrived is called when a slot has come to this node's shard, told by
// somebody. It may be served at once only if this node holds the stage, has
// said so in its present epoch, and hears of the decision from who counted it;
// else it is named in a new stand first.
func (s *state) slotArrived(slot Slot, move uint64, counted bool) {
	if s.wentToNobody(slot, move-1) {
		s.back.Add(slot)
	}
	l := s.lead
	if l != nil || s.table.primary(s.self.Shard) == s.id {
		s.arrived.add(slot, move)
		s.followed.Remove(slot)
	} else {
		s.followed.Add(slot) // it comes in its primary's log
	}
	if l == nil {
		return // named when it stands
	}
	l.unproven.Remove(slot)
	if counted && s.heldHere(slot, move, l.epoch) || mutated(mutLateSlot) {
		s.freshen(l, slot)
		return
	}
	l.mine.Remove(slot)
	l.late.Add(slot)
	s.wakeBy(s.now)
}

// freshen lets a slot be served once its move is saved.
func (s *state) freshen(l *leadership, slot Slot) {
	l.late.Remove(slot)
	s.mark(cellKey{kind: cellSlots, page: uint8(slot / pageSlots)}) // so that there is such a save
	save := s.saveSeq + 1
	if n := len(l.fresh); n == 0 || l.fresh[n-1].save != save {
		l.fresh = append(l.fresh, freshSlots{save: save})
	}
	l.fresh[len(l.fresh)-1].slots.Add(slot)
}
