package slotmesh

import (
	"slices"
	"time"
)

// The voter's side of deciding: what it promises, accepts and leases. Whatever
// it answers is saved first. Promises are per shard, so that the elections of
// different shards never disturb each other.

// voterShard is what a voter keeps of one shard.
type voterShard struct {
	promised    Epoch
	incarnation uint64  // of the candidate that it was promised to
	record      *record // nil: nobody has opened the shard under a vote of this node
	savedBy     uint64  // the save that holds this
}

// leaseGiven is a lease to one node: until then this voter votes for no other.
type leaseGiven struct {
	until time.Duration
	epoch Epoch
}

// voterState is what this node keeps as a voter. What is not marked is lost in
// a restart; the wait after a start covers that.
type voterState struct {
	shards   map[ShardID]*voterShard // saved
	accepted slotMap[accepted]       // saved
	opened   slotMap[opening]        // saved
	maxLease uint32                  // longest lease ever given, milliseconds; saved before it is given

	stop        ballot      // of the STOP that it has answered; zero: none. Saved
	startValue  *startValue // START saved for the next version. Saved
	startBallot ballot      // under which it came. Saved
	current     *startValue // START of the version in force, to hand out. Saved

	leases       map[ShardID]map[NodeID]leaseGiven
	startedAt    time.Duration
	activeAt     time.Duration // since when it votes under this version
	activeSave   uint64
	maxLeaseSave uint64
	stoppedAt    time.Duration
	stopWait     time.Duration // random, drawn with each STOP
}

// voterShardsMax is for how many shards a voter keeps votes: four times as many as
// can own a slot. Beyond it is silent about those it does not know yet.
const voterShardsMax = 4 * NumSlots

func (v *voterState) init() {
	v.shards = map[ShardID]*voterShard{}
	v.leases = map[ShardID]map[NodeID]leaseGiven{}
}

// hasRoom reports whether a voter may keep something of a shard. What it has promised
// it forgets only with a shard of its table that has been empty for long, so shards
// that nobody has must not fill its memory.
func (v *voterState) hasRoom(id ShardID) bool {
	return v.shards[id] != nil || len(v.shards) < voterShardsMax
}

// known is what a voter keeps of a shard, to read: nothing where it keeps nothing.
func (v *voterState) known(id ShardID) *voterShard {
	if sh := v.shards[id]; sh != nil {
		return sh
	}
	return &voterShard{}
}

// shard is what a voter keeps of a shard, to change.
func (v *voterState) shard(id ShardID) *voterShard {
	sh := v.shards[id]
	if sh == nil {
		sh = &voterShard{}
		v.shards[id] = sh
	}
	return sh
}

// lease remembers a lease per shard and node: a newer one does not replace
// another node's.
func (v *voterState) lease(id ShardID, node NodeID, epoch Epoch, until time.Duration) {
	m := v.leases[id]
	if m == nil || mutated(mutOneLease) && len(m) > 0 && m[node] == (leaseGiven{}) {
		m = map[NodeID]leaseGiven{}
		v.leases[id] = m
	}
	m[node] = leaseGiven{max(until, m[node].until), epoch}
}

// leaseOfOthers is when the last lease of a shard ends that was given to
// another node than c; those that the node of a consent was given up to that epoch
// left out.
func (v *voterState) leaseOfOthers(id ShardID, c NodeID, consent Epoch) time.Duration {
	end := time.Duration(never)
	for node, l := range v.leases[id] {
		if node == c || node == consent.Node && !consent.less(l.epoch) {
			continue
		}
		end = max(end, l.until)
	}
	return end
}

// active reports whether this node votes: it is of the newest set and holds the
// START whose id the table names.
func (s *state) active() bool {
	c := s.vote.current
	return !s.cluster.IsZero() && c != nil && s.isVoter() &&
		(c.ID == s.table.voters.ID || mutated(mutStartOtherID) && c.Version == s.table.voters.Version)
}

// hears reports whether a request under a version of the voters is for this
// voter to answer. An older version is answered with the newer set; a stopped
// voter, or one that is not active, is silent.
func (s *state) hears(p *peer, v voterVersion) bool {
	if s.cluster.IsZero() {
		return false
	}
	if v.less(s.table.voters.Version) {
		s.post(p, s.newUpdate(func(u *updateMsg) { u.Voters = []voterSet{s.table.voters} }))
		return false
	}
	return v == s.table.voters.Version && s.active() && s.vote.stop.isZero()
}

// setVotes marks what a voter keeps of a shard as changed.
func (s *state) votesChanged(id ShardID) {
	s.vote.shard(id).savedBy = s.saveSeq + 1
	s.mark(cellKey{kind: cellVote, id: id})
}

func (s *state) setAccepted(slot Slot, a accepted) {
	s.vote.accepted.set(slot, a)
	s.mark(cellKey{kind: cellAccepted, page: uint8(slot / pageSlots)})
}

func (s *state) setOpened(slot Slot, o opening) {
	s.vote.opened.set(slot, o)
	s.mark(cellKey{kind: cellOpened, page: uint8(slot / pageSlots)})
}

// ---- VOTE

// onVote promises an epoch of a shard to a candidate, or says why not.
func (s *state) onVote(p *peer, m *voteMsg) {
	if !s.hears(p, m.Voters) || !s.vote.hasRoom(m.Shard) || m.Epoch.Node != p.ID || !s.believableEpoch(p, m.Epoch) {
		return
	}
	v := s.vote.shard(m.Shard)
	if !s.mayPromise(v, m) {
		s.refuse(p, m, refusePromised, 0)
		return
	}
	s.learnRecord(p, m)
	if wait := s.inSyncWait(v, p, m); wait > 0 {
		s.refuse(p, m, refuseInSync, wait)
		return
	}
	if m.Why == whyOperator && !m.Shard.IsZero() && !s.shardLost(m.Shard) && !mutated(mutTakeAlive) {
		s.refuse(p, m, refuseLives, s.cfg.nodeTimeout/10)
		return
	}
	if wait := s.voteWait(m, p.ID); wait > 0 {
		s.refuse(p, m, refuseLease, wait)
		return
	}
	v.promised, v.incarnation = m.Epoch, m.Incarnation
	s.votesChanged(m.Shard)
	s.heardEpoch(m.Shard, m.Epoch.Number)
	s.post(p, s.grantFor(v, m))
}

// mayPromise is rule R3a: the number is above what was promised, or the very
// same candidate asks again.
func (s *state) mayPromise(v *voterShard, m *voteMsg) bool {
	same := m.Epoch == v.promised && (m.Incarnation == v.incarnation || mutated(mutSameNode))
	if mutated(mutSameAnyEpoch) && m.Epoch.Number == v.promised.Number {
		same = true
	}
	return m.Epoch.outranks(v.promised) || same
}

// learnRecord saves the candidate's record where this voter's is older.
func (s *state) learnRecord(p *peer, m *voteMsg) {
	v := s.vote.shard(m.Shard)
	if len(m.Records) == 0 || m.Records[0].Shard != m.Shard || m.Why == whyOperator {
		return
	}
	if r := m.Records[0]; (v.record == nil || r.newer(v.record)) && s.believableEpoch(p, r.Epoch) {
		v.record = &r
		s.votesChanged(m.Shard)
	}
}

// inSyncWait is rule R3b: the candidate holds every acknowledged write. It returns
// 0 if so, or else after how long to ask again. A voter that holds no record of
// the shard grants only to the node that its table names as the primary. Where
// nobody of the record is left anybody may stand, unclean, but not in a strict
// shard; and an operator may say that a node takes over whatever it holds.
func (s *state) inSyncWait(v *voterShard, p *peer, m *voteMsg) time.Duration {
	again := s.cfg.nodeTimeout / 5
	switch {
	case m.Why == whyOperator || m.Epoch.Unclean || mutated(mutNoInSync) || mutated(mutSameNode) && m.Epoch == v.promised:
		return 0
	case v.record == nil && s.table.primary(m.Shard) == p.ID:
		return 0
	case v.record == nil:
		return again
	case v.record.electable(incarnate{p.ID, m.Incarnation}):
		return 0
	case m.Why != whyUnclean || v.record.Strict:
		return again
	default:
		return s.lastOfInSync(v.record)
	}
}

// lastOfInSync is for how long a member of a record's in-sync set may still come
// back, as far as this voter knows: one NodeTimeout after it has heard the last of
// them, and after its own start.
func (s *state) lastOfInSync(r *record) time.Duration {
	if s.noCompany() {
		return 0
	}
	end := s.vote.startedAt
	for _, m := range r.InSync {
		if p := s.peers.get(m.Node); p != nil && p.Store == m.Incarnation {
			end = max(end, p.heardAt)
			if p == s.self {
				end = s.now
			}
		}
	}
	return end + s.cfg.nodeTimeout - s.now
}

// voteWait is rule R3c: for how long somebody else may hold a lease of this
// voter, or of one that has left the set or has lost its memory.
func (s *state) voteWait(m *voteMsg, c NodeID) time.Duration {
	if m.Shard.IsZero() || m.Why == whyForce || s.noCompany() || mutated(mutNoLeaseWait) {
		return 0
	}
	if s.vote.known(m.Shard).record == nil && m.Voters.Forced == 0 {
		// A lease goes with a record, and START hands on every record that a
		// majority has accepted: nobody has ever led this shard under a lease.
		return 0
	}
	d := max(s.cfg.nodeTimeout, time.Duration(s.vote.maxLease)*time.Millisecond)
	if m.Why == whyConsent {
		// Its primary acknowledges nothing more: what it has been leased does not
		// count, nor may anybody else have been since it was.
		return s.vote.leaseOfOthers(m.Shard, c, m.Consent) - s.now
	}
	end := s.vote.leaseOfOthers(m.Shard, c, Epoch{})
	if !mutated(mutNoStartWait) {
		end = max(end, s.vote.startedAt+d)
	}
	if !mutated(mutActiveOnly) {
		end = max(end, s.vote.activeAt+d)
	}
	return end - s.now
}

// onlyNode reports whether the cluster has no other node.
func (s *state) onlyNode() bool {
	return !slices.ContainsFunc(s.peers.ordered, func(p *peer) bool { return p != s.self && p.State != forgotten })
}

// noCompany reports whether this node knows of no other, not even of one that has
// been forgotten: such a one may hold a lease yet.
func (s *state) noCompany() bool { return len(s.peers.ordered) == 1 }

// grantFor is a grant: with the record, and for each named slot what this voter
// has accepted and opened.
func (s *state) grantFor(v *voterShard, m *voteMsg) *grantMsg {
	g := &grantMsg{Voters: m.Voters, Shard: m.Shard, Epoch: m.Epoch, MaxLease: max(s.vote.maxLease, uint32(s.cfg.nodeTimeout/time.Millisecond))}
	if v.record != nil {
		g.Records = []record{*v.record}
	}
	m.Slots.each(func(slot Slot, move uint64) {
		if a := s.vote.accepted.at(slot); a.move >= move && a.move > 0 {
			g.Accepted.add(slot, a)
		}
		if o := s.vote.opened.at(slot); o.move == move && o.epoch != (Epoch{}) {
			g.Opened.add(slot, o)
		}
	})
	return g
}

func (s *state) refuse(p *peer, m *voteMsg, w refuseWhy, wait time.Duration) {
	v := s.vote.shard(m.Shard)
	r := &refuseMsg{Voters: m.Voters, Shard: m.Shard, Epoch: m.Epoch, Why: w, Promised: v.promised,
		RetryIn: uint32((wait + time.Millisecond - 1) / time.Millisecond)}
	if v.record != nil {
		r.Records = []record{*v.record}
	}
	s.post(p, r)
}

// ---- RECORD

// onRecord accepts the opening of an epoch, or a change of the in-sync set.
func (s *state) onRecord(p *peer, m *recordMsg) {
	r := &m.Record
	if !s.hears(p, m.Voters) || !s.vote.hasRoom(r.Shard) || r.Epoch.Node != p.ID || !s.believableEpoch(p, r.Epoch) {
		return
	}
	v := s.vote.shard(r.Shard)
	switch {
	case r.Epoch.less(v.promised):
		s.post(p, &refuseMsg{Voters: m.Voters, Shard: r.Shard, Epoch: r.Epoch, Why: refusePromised, Promised: v.promised})
		return
	case v.record != nil && v.record.newer(r) && !mutated(mutOldRecord):
		s.post(p, &refuseMsg{Voters: m.Voters, Shard: r.Shard, Epoch: r.Epoch, Why: refuseBehind, Promised: v.promised, Records: []record{*v.record}})
		return
	}
	s.saveRecord(v, p, m)
	a := &acceptMsg{Voters: m.Voters, Shard: r.Shard, Epoch: r.Epoch, N: r.N, Sent: m.Sent}
	if !r.Vacant {
		// The accept waits for the save of this step, and so for the length of
		// the lease too.
		a.Lease = s.leaseLength()
		s.vote.lease(r.Shard, p.ID, r.Epoch, s.now+time.Duration(a.Lease)*time.Millisecond)
	}
	s.post(p, a)
}

// saveRecord keeps record, moves, openings and promise in one write. A record that is
// known already may be known from a candidate, and what it opens is not.
func (s *state) saveRecord(v *voterShard, p *peer, m *recordMsg) {
	r := m.Record
	if v.record == nil || v.record.Epoch != r.Epoch || v.record.N != r.N || v.promised != r.Epoch {
		v.promised, v.incarnation, v.record = r.Epoch, m.Sender, &r
		s.votesChanged(r.Shard)
		s.heardEpoch(r.Shard, r.Epoch.Number)
	}
	m.Kept.each(func(slot Slot, a accepted) {
		a.epoch = r.Epoch
		if s.vote.accepted.at(slot).less(a) {
			s.setAccepted(slot, a)
		}
	})
	if mutated(mutOpenUnnamed) {
		return
	}
	m.Opened.each(func(slot Slot, move uint64) {
		o := opening{move, r.Epoch}
		if s.vote.opened.at(slot).less(o) {
			s.setOpened(slot, o)
		}
	})
}

// ---- MOVE

// onMove accepts that slots go to another shard, all or none of them.
func (s *state) onMove(p *peer, m *moveMsg) {
	if !s.hears(p, m.Voters) || !s.vote.hasRoom(m.Shard) || m.Epoch.Node != p.ID || !s.believableEpoch(p, m.Epoch) {
		return
	}
	v := s.vote.shard(m.Shard)
	if m.Epoch.less(v.promised) && !mutated(mutMoveBelow) {
		s.post(p, &refuseMsg{Voters: m.Voters, Shard: m.Shard, Epoch: m.Epoch, Ballot: m.Ballot, Why: refusePromised, Promised: v.promised})
		return
	}
	var newer acceptRuns
	believed := true
	m.Slots.each(func(slot Slot, a accepted) {
		have := s.vote.accepted.at(slot)
		if a.move < have.move || a.move == have.move && m.Epoch.less(have.epoch) {
			newer.add(slot, have)
		}
		believed = s.believableMove(p, slot, a.move) && believed
	})
	if !believed {
		return
	}
	if len(newer.Runs) > 0 && !mutated(mutMoveAnyBefore) {
		s.post(p, &refuseMsg{Voters: m.Voters, Shard: m.Shard, Epoch: m.Epoch, Ballot: m.Ballot, Why: refuseMoved, Promised: v.promised, Accepted: newer})
		return
	}
	m.Slots.each(func(slot Slot, a accepted) {
		a.epoch = m.Epoch
		if s.vote.accepted.at(slot) != a {
			s.setAccepted(slot, a)
		}
	})
	s.post(p, &acceptMsg{Voters: m.Voters, Shard: m.Shard, Epoch: m.Epoch, Ballot: m.Ballot})
}

// ---- all votes together, for a change of voters

// allVotes is all that this voter keeps.
func (s *state) allVotes() votes {
	var v votes
	for _, id := range sortedShards(s.vote.shards) {
		sh := s.vote.shards[id]
		if sh.promised != (Epoch{}) {
			v.Promises = append(v.Promises, promiseRow{id, sh.promised, sh.incarnation})
		}
		if sh.record != nil {
			v.Records = append(v.Records, *sh.record)
		}
	}
	for i := range numPages {
		first := Slot(i * pageSlots)
		addPage(s.vote.accepted.pages[i], first, v.Accepted.add, v.Accepted.extend)
		addPage(s.vote.opened.pages[i], first, v.Opened.add, v.Opened.extend)
	}
	v.MaxLease = s.vote.maxLease
	return v
}

// mergeVotes takes over what other voters keep: per entry the highest.
func (s *state) mergeVotes(v *votes) {
	for i := range v.Promises {
		row := &v.Promises[i]
		if sh := s.vote.shard(row.Shard); sh.promised.less(row.Epoch) {
			sh.promised, sh.incarnation = row.Epoch, row.Incarnation
			s.votesChanged(row.Shard)
			s.heardEpoch(row.Shard, row.Epoch.Number)
		}
	}
	for i := range v.Records {
		r := v.Records[i]
		if sh := s.vote.shard(r.Shard); sh.record == nil || r.newer(sh.record) {
			sh.record = &r
			s.votesChanged(r.Shard)
		}
	}
	v.Accepted.each(func(slot Slot, a accepted) {
		if s.vote.accepted.at(slot).less(a) {
			s.setAccepted(slot, a)
		}
	})
	v.Opened.each(func(slot Slot, o opening) {
		if s.vote.opened.at(slot).less(o) {
			s.setOpened(slot, o)
		}
	})
	if v.MaxLease > s.vote.maxLease {
		s.vote.maxLease = v.MaxLease
		s.mark(cellKey{kind: cellLease})
		s.vote.maxLeaseSave = s.saveSeq + 1
	}
}

func sortedShards[V any](m map[ShardID]V) []ShardID {
	ids := make([]ShardID, 0, len(m))
	for id := range m {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, ShardID.compare)
	return ids
}
