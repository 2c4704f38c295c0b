package slotmesh

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// A shard has a primary and, if it has more members, replicas: the other nodes
// that name it as theirs. They follow the primary's log (shardlog.go); the entries
// go from driver to driver. What the core decides is who has to have them:
//
//	in sync   members that hold every acknowledged write. The voters keep them in
//	          the shard's record, and elect nobody else
//	waited    whom the primary waits for before it acknowledges: the members of the
//	for       last accepted record, and of every one that it has proposed since
//
// The set of those that are waited for grows before the record does, and shrinks
// after it, so that at any moment whoever may be elected has it all.

// logRole is what this node does with its shard's log. The driver follows it
// before it does anything else that a step asks for.
type logRole struct {
	version uint64 // raised at each change
	shard   ShardID
	lead    Epoch       // under which it appends, and takes nothing from others; zero: it does not
	primary NodeID      // whom it follows; zero: nobody
	waits   []incarnate // leading: the members that are waited for
	peers   int         // leading: how many of them count for AckReplicas
}

// joiner is a member that the primary waits for already, so that it can become
// one of those in sync.
type joiner struct {
	incarnate
	caughtUp bool // it has everything that was acknowledged before it was waited for
}

// laggard is a member that is waited for and lacks entries of the log.
type laggard struct {
	incarnate
	at    uint64        // the last entry that it has acknowledged
	since time.Duration // when it has, or when it began to lack some
	goals [2]goal       // ends of the log that it has to reach in time, the nearest first
	owes  uint64        // it is waited for no more: what it has to have to be waited for again; 0: it is
}

// goal is where the log of a shard ended at a time.
type goal struct {
	offset uint64
	set    time.Duration
}

// member is this node as a member of its shard.
func (s *state) member() incarnate { return incarnate{s.id, s.self.Store} }

// strict reports whether this node's shard acknowledges a write only when others
// have it, too.
func (s *state) strict() bool { return s.cfg.ackReplicas > 0 }

// assessLog works out what this node does with its shard's log.
func (s *state) assessLog() {
	r := logRole{shard: s.self.Shard}
	switch primary := s.table.primary(r.shard); {
	case s.lead != nil:
		r.lead, r.waits, r.peers = s.lead.epoch, s.waitedFor(s.lead), len(s.lead.inSync)-1
	case primary != s.id && s.mayFollow(primary):
		r.primary = primary
	}
	was := &s.role
	if r.shard == was.shard && r.lead == was.lead && r.primary == was.primary && r.peers == was.peers && slices.Equal(r.waits, was.waits) {
		return
	}
	r.version = was.version + 1
	*was = r
}

func (s *state) mayFollow(primary NodeID) bool {
	p := s.peers.get(primary)
	return !s.cluster.IsZero() && s.self.State != forgotten && p != nil && p.State != forgotten && p.Shard == s.self.Shard
}

// waitedFor is the members that a write waits for, without this node, in order.
func (s *state) waitedFor(l *leadership) []incarnate {
	var ms []incarnate
	add := func(m incarnate) {
		if m.Node != s.id && !slices.Contains(ms, m) {
			ms = append(ms, m)
		}
	}
	for _, m := range l.inSync {
		add(m)
	}
	if r := l.recording; r != nil && !mutated(mutGrowEarly) {
		for _, m := range r.msg.Record.InSync {
			add(m)
		}
	}
	if mutated(mutShrinkEarly) && l.recording != nil {
		ms = nil
		for _, m := range l.recording.msg.Record.InSync {
			add(m)
		}
	}
	if !mutated(mutGrowEarly) {
		for _, j := range l.joining {
			add(j.incarnate)
		}
	}
	slices.SortFunc(ms, func(a, b incarnate) int {
		return cmp.Or(a.Node.compare(b.Node), cmp.Compare(a.Incarnation, b.Incarnation))
	})
	return ms
}

// firstInSync is with whom a winner opens: who was in sync and is heard now. The
// primary that it replaces is not: what nobody else has is to go first. But one that
// has consented has nothing of the kind, and is needed: where the winner dies before
// anybody has caught up with it, nobody else would be left who may lead.
func (s *state) firstInSync(rec *record, consent Epoch) []incarnate {
	set := []incarnate{s.member()}
	if rec == nil || !rec.electable(s.member()) {
		return set
	}
	for _, m := range rec.InSync {
		if m.Node != s.id && (m.Node != rec.Epoch.Node || rec.Epoch == consent && !mutated(mutGiverLost)) && !s.memberLost(m) {
			set = append(set, m)
		}
	}
	return set
}

// lostMembers says who may have had more than a winner that was not in sync.
func (s *state) lostMembers(c *candidacy, rec *record) string {
	if c.epoch.Unclean || rec.electable(s.member()) {
		return ""
	}
	return "no member that was in sync is left: acknowledged writes may be lost"
}

// memberGone reports whether a member is none of this shard any more.
func (s *state) memberGone(m incarnate) bool {
	p := s.peers.get(m.Node)
	return p == nil || p.State == forgotten || p.Shard != s.self.Shard || p.Store != m.Incarnation
}

// memberLost reports whether a member has gone, or is not heard any more.
func (s *state) memberLost(m incarnate) bool {
	return s.memberGone(m) || s.now-s.peers.get(m.Node).heardAt >= s.cfg.nodeTimeout/2
}

// noteProgress notes who of those that are waited for lacks entries, and since when.
// Heartbeats travel on a connection of their own: that a member sends them says
// nothing of the one on which it gets the log, which may hang, one way or both. So
// it has to get on with the log, too, as long as it lacks some of it; if it does not
// for as long as it may be silent, NodeTimeout/2, it is lost. A write waits for a
// NodeTimeout in all: one that waits for such a member goes on with the others. Whoever
// is lost, for whichever reason, while it lacks some is waited for again once it has that.
func (s *state) noteProgress(l *leadership) {
	if s.logHas.epoch != l.epoch {
		return // it is of before
	}
	was := l.behind
	l.behind = nil
	for _, m := range s.logHas.members {
		if m.offset < s.logHas.end {
			l.behind = append(l.behind, s.lacks(was, m))
		}
	}
	for _, b := range was {
		waited := slices.ContainsFunc(s.logHas.members, func(m memberAt) bool { return m.incarnate == b.incarnate })
		if waited || s.memberGone(b.incarnate) {
			continue
		}
		if b.owes == 0 { // it was lost for it was not heard
			b.owes = s.logHas.end
		}
		l.behind = append(l.behind, b)
	}
}

// lacks is a member that lacks entries, and was among others that did. It is too slow
// where it stands still for NodeTimeout/2, and where it gets on, but needs longer than
// that for what there was to get: goals are set NodeTimeout/4 apart, so that no entry is
// waited for longer than three of those.
func (s *state) lacks(was []laggard, m memberAt) laggard {
	end := goal{s.logHas.end, s.now}
	begins := laggard{incarnate: m.incarnate, at: m.offset, since: s.now, goals: [2]goal{end}}
	i := slices.IndexFunc(was, func(b laggard) bool { return b.incarnate == m.incarnate })
	if i < 0 || was[i].owes > 0 && m.offset >= was[i].owes {
		return begins
	}
	b := was[i]
	if m.offset != b.at {
		b.at, b.since = m.offset, s.now
	}
	for range b.goals {
		if b.goals[0].offset != 0 && m.offset >= b.goals[0].offset {
			b.goals = [2]goal{b.goals[1]}
		}
	}
	switch {
	case b.goals[0].offset == 0:
		b.goals[0] = end
	case b.goals[1].offset == 0 && s.now-b.goals[0].set >= s.cfg.nodeTimeout/4:
		b.goals[1] = end
	}
	slow := s.now-b.goals[0].set >= s.cfg.nodeTimeout/2
	if b.owes == 0 && (slow || s.now-b.since >= s.cfg.nodeTimeout/2) {
		b.owes = end.offset
	}
	return b
}

// owes reports whether a member that has everything up to an offset has stood still,
// and lacks some of what it lacked then.
func (l *leadership) owes(m incarnate, at uint64) bool {
	return !mutated(mutStuckBack) && slices.ContainsFunc(l.behind, func(b laggard) bool { return b.incarnate == m && at < b.owes })
}

// standsStill reports whether a member has stood still, and has not caught up since.
func (l *leadership) standsStill(m incarnate) bool {
	return !mutated(mutStandsStill) && slices.ContainsFunc(l.behind, func(b laggard) bool { return b.incarnate == m && b.owes > 0 })
}

// leavesSync reports whether a member is not to be waited for any more.
func (s *state) leavesSync(l *leadership, m incarnate) bool {
	return m.Node != s.id && (s.memberLost(m) || l.standsStill(m))
}

// inSyncTick proposes the next in-sync set where it is not what it should be: one
// proposal at a time.
func (s *state) inSyncTick(l *leadership) {
	l.joining = slices.DeleteFunc(l.joining, func(j joiner) bool { return s.leavesSync(l, j.incarnate) })
	if l.recording != nil || !l.claims() {
		return
	}
	set := slices.DeleteFunc(slices.Clone(l.inSync), func(m incarnate) bool { return s.leavesSync(l, m) })
	for _, j := range l.joining {
		if (j.caughtUp || mutated(mutJoinBehind) || mutated(mutGrowEarly)) && s.heardLately(j.Node) {
			set = append(slices.DeleteFunc(set, func(m incarnate) bool { return m.Node == j.Node }), j.incarnate)
		}
	}
	if slices.Equal(set, l.inSync) {
		return
	}
	s.sortInSync(set)
	l.recording = &recording{msg: recordMsg{Sender: s.self.Store,
		Record: record{Shard: s.self.Shard, Epoch: l.epoch, N: l.n + 1, InSync: set, Strict: s.strict()}}}
	l.joining = slices.DeleteFunc(l.joining, func(j joiner) bool { return slices.Contains(set, j.incarnate) })
	s.sendRecord(l.recording)
}

func (s *state) heardLately(id NodeID) bool {
	p := s.peers.get(id)
	return p != nil && s.now-p.heardAt < s.cfg.nodeTimeout/4
}

// sortInSync puts this node first and the rest in order.
func (s *state) sortInSync(set []incarnate) {
	slices.SortFunc(set, func(a, b incarnate) int {
		if a.Node == s.id || b.Node == s.id {
			return order(a.Node == s.id && b.Node != s.id)
		}
		return a.Node.compare(b.Node)
	})
}

// nearlyInSync says that a replica has nearly all of the log, up to an offset. If it
// is not in sync yet the primary begins to wait for it; for one that has stood still
// once it has what it lacked when it was given up.
func (s *state) nearlyInSync(now time.Duration, m incarnate, at uint64) output {
	s.begin(now)
	if l := s.lead; l != nil && l.claims() && !s.memberLost(m) && s.heardLately(m.Node) && !slices.Contains(s.waitedFor(l), m) && !l.owes(m, at) {
		l.behind = slices.DeleteFunc(l.behind, func(b laggard) bool { return b.incarnate == m })
		l.joining = slices.DeleteFunc(l.joining, func(j joiner) bool { return j.Node == m.Node })
		l.joining = append(l.joining, joiner{incarnate: m})
	}
	return s.end()
}

// hasCaughtUp says that a member, which is waited for under an epoch, has all that
// was acknowledged before it was.
func (s *state) hasCaughtUp(now time.Duration, e Epoch, m incarnate) output {
	s.begin(now)
	if l := s.lead; l != nil && l.epoch == e {
		for i := range l.joining {
			if l.joining[i].incarnate == m {
				l.joining[i].caughtUp = true
			}
		}
		s.inSyncTick(l)
	}
	return s.end()
}

// tellMembers shows the members of the shard the record that names them.
func (s *state) tellMembers(r *record) {
	for _, p := range s.peers.ordered {
		if p != s.self && p.Shard == s.self.Shard && p.State != forgotten {
			s.post(p, &inSyncMsg{*r})
		}
	}
}

// askInSync asks this node's primary for its accepted record, where its heartbeat says
// that there is a newer one than this node knows.
func (s *state) askInSync(p *peer) {
	c, r := &p.claim, s.shardRecord
	if s.lead == nil && c.open && p.ID == s.table.primary(s.self.Shard) && (r == nil || (&record{Epoch: c.epoch, N: c.n}).newer(r)) {
		s.post(p, &inSyncMsg{})
	}
}

// onInSync takes the record of this node's primary, or, as the primary, answers a
// member that asks for it.
func (s *state) onInSync(p *peer, m *inSyncMsg) {
	r := m.Record
	switch l := s.lead; {
	case p.Shard != s.self.Shard:
	case r.Epoch == (Epoch{}) && l != nil && l.opened:
		s.post(p, &inSyncMsg{record{Shard: s.self.Shard, Epoch: l.epoch, N: l.n, InSync: l.inSync, Strict: s.strict()}})
	case r.Epoch.Node == p.ID && r.Shard == p.Shard && s.believableEpoch(p, r.Epoch):
		s.knowRecord(&r)
	}
}

// lacksAsReplica says what keeps this node, a replica, from taking its primary's place
// without a loss; "": nothing. It takes its primary's word for being in sync, for the
// epoch that it leads in: a record of a primary that leads no more names no more than
// who may be elected.
func (s *state) lacksAsReplica() string {
	r := s.shardRecord
	switch {
	case !s.holdsCopy:
		return "this node has not copied its primary's data yet"
	case s.timeSince(s.primary) >= s.cfg.nodeTimeout:
		return "this node's shard has no primary that leads"
	case r == nil || r.Epoch != s.table.shards[s.self.Shard] || !r.electable(s.member()):
		return "this node is not in sync with its primary yet"
	}
	return ""
}

// mayTake reports whether what a primary of a shard has sent in an epoch is for this
// node: it leads nothing, and has promised itself to nobody newer.
func (s *state) mayTake(shard ShardID, e Epoch) bool {
	return s.lead == nil && shard == s.self.Shard && (!e.less(s.promise) || mutated(mutAckOld))
}

// takes reports whether this node may take entries of its shard's log that were
// appended in an epoch, and promises to take nothing older from then on. What it
// acknowledges waits for the save.
func (s *state) takes(now time.Duration, shard ShardID, e Epoch) (output, bool) {
	s.begin(now)
	ok := s.mayTake(shard, e)
	if ok && s.promise.less(e) {
		s.promise = e
		s.mark(cellKey{kind: cellNode})
		s.heardEpoch(shard, e.Number)
		if c := s.stand; c != nil && c.op == nil && c.epoch.less(e) {
			s.withdraw()
		}
	}
	return s.end(), ok
}

// storeIs says that this node's store is another one now, whole or not: what it
// held before does not count any more.
func (s *state) storeIs(now time.Duration, incarnation uint64, holdsCopy bool) output {
	s.begin(now)
	s.holdsCopy = holdsCopy
	if incarnation != s.self.Store {
		// What it has been promised, or has won, was for the member that it was.
		if s.stand != nil && !mutated(mutSameNode) {
			s.withdraw()
		}
		if s.lead != nil {
			s.stepDown()
		}
		s.knownRecord = nil
	}
	s.changeFacts(func(e *peerEntry) { e.Store = incarnation })
	return s.end()
}

// replaces says that a copy of the shard's data, as of an epoch, is about to take the
// place of what this node's store holds. From then on it is another member, inc, and
// without a copy; ok is false where it has promised itself to another primary, or
// leads: then all stays.
func (s *state) replaces(now time.Duration, shard ShardID, e Epoch) (out output, inc uint64, ok bool) {
	if !s.mayTake(shard, e) {
		return output{}, 0, false
	}
	if mutated(mutHalfCounts) {
		return s.storeIs(now, s.self.Store, s.holdsCopy), s.self.Store, true
	}
	inc = s.newStore()
	return s.storeIs(now, inc, false), inc, true
}

// hasReplaced says that the copy has taken the place of the old; ok is false where
// the store is to be another one by now. marks are those of the copy.
func (s *state) hasReplaced(now time.Duration, inc uint64, marks map[Slot]SlotMark) (out output, ok bool) {
	if s.self.Store != inc {
		return output{}, false
	}
	s.copyMarks(marks)
	return s.storeIs(now, inc, true), true
}

// newStore is a fresh incarnation: what the store holds is not what its node has
// acknowledged any more.
func (s *state) newStore() uint64 { return s.cfg.random() | 1 }

// ---- roles

// replicate makes this node a replica of another one. keys says whether its store
// holds any.
func (s *state) replicate(now time.Duration, id uint64, node NodeID, keys bool) output {
	s.begin(now)
	s.onceDecided(id, func() {
		p := s.peers.get(node)
		switch {
		case s.self.State == forgotten:
			s.reply(id, hasBeenForgotten())
		case p == nil || p.State == forgotten:
			s.reply(id, invalid("Unknown node %s", node))
		case p == s.self:
			s.reply(id, invalid("Can't replicate myself"))
		case s.followsAnother(p):
			s.reply(id, invalid("I can only replicate a master, not a replica."))
		case s.ownsSlots(), keys && s.table.primary(s.self.Shard) == s.id && p.Shard != s.self.Shard:
			s.reply(id, invalid("To set a master the node must be empty and without assigned slots."))
		case p.Shard == s.self.Shard:
			s.replyOncePushed(id)
		case s.awaitsSlots() || s.leave != nil:
			s.reply(id, tryAgain("slots are on their way to this node, or it is leaving"))
		default:
			s.becomeReplica(p.Shard)
			s.replyOncePushed(id)
		}
	})
	return s.end()
}

// becomeReplica makes this node a member of another shard. What its store holds is
// not that shard's, so that it is another member there than it ever was.
func (s *state) becomeReplica(shard ShardID) {
	s.leaveShard()
	s.changeFacts(func(e *peerEntry) { e.Shard, e.Store = shard, s.newStore() })
	s.event(Event{Kind: EventReplica, Node: s.id, Shard: shard, From: s.table.primary(shard)})
}

// leaveShard ends what this node is in its shard, which another is to follow.
func (s *state) leaveShard() {
	if s.lead != nil {
		s.stepDown()
	}
	s.dropMarks()
	s.dropFailover("this node is of another shard now")
	s.stand, s.knownRecord, s.shardRecord, s.unnamed = nil, nil, nil, ""
	s.holdsCopy, s.fresh = false, never
	s.followed.AddRange(SlotRange{0, NumSlots - 1})
	s.promise = Epoch{}
	s.primary = s.now
	s.stages, s.gone = map[uint64]*heldStage{}, map[Slot]goneSlot{}
	s.mark(cellKey{kind: cellNode})
	s.reassess, s.viewDirty = true, true
}

// followTheGone is for a replica of a shard without slots whose primary has left
// it: it goes where its primary has gone, or, if that is nowhere, leads a shard of
// its own.
func (s *state) followTheGone() bool {
	if s.table.owned[s.self.Shard] > 0 {
		return false // there is data: it stands for it
	}
	p := s.peers.get(s.table.primary(s.self.Shard))
	switch {
	case p != nil && p.State != forgotten && p.Shard == s.self.Shard:
		return false
	case p != nil && p.State != forgotten && s.table.shards[p.Shard] != (Epoch{}):
		s.becomeReplica(p.Shard)
	default:
		s.leadOwnShard()
	}
	return true
}

// leadOwnShard makes this node the primary of a fresh shard, without slots.
func (s *state) leadOwnShard() {
	s.leaveShard()
	s.changeFacts(func(e *peerEntry) { e.Store = s.newStore() })
	s.joinNewShard()
}

// isReplica reports whether p follows the primary of a shard.
func (s *state) isReplica(p *peer) bool {
	return p.State == present && !p.Shard.IsZero() && s.table.primary(p.Shard) != p.ID && s.table.shards[p.Shard] != (Epoch{})
}

// liveReplicas is the replicas of each shard that are heard, in order of their ids.
func (s *state) liveReplicas() map[ShardID][]*peer {
	rs := map[ShardID][]*peer{}
	for _, p := range s.peers.ordered {
		if s.isReplica(p) && !s.silentHere(p) {
			rs[p.Shard] = append(rs[p.Shard], p)
		}
	}
	return rs
}

// replicaTick gives a primary that has lost its last replica one of another's, as
// Redis does, and has nodes to spare back up who lacks replicas.
func (s *state) replicaTick() {
	if s.now < s.nextReplica {
		return
	}
	s.nextReplica = s.now + s.cfg.nodeTimeout/2
	if s.self.State != present || s.leave != nil || s.failing != nil || !s.synced {
		return
	}
	if s.stand != nil {
		if s.stand.byItself() && s.isReplica(s.self) {
			s.followTheGone() // there is nothing to stand for, and perhaps nobody who votes for it
		}
		return
	}
	replicas := s.liveReplicas()
	s.tellReplicas(replicas)
	switch {
	case s.table.shards[s.self.Shard] == (Epoch{}):
		if s.timeSince(s.primary) > 2*s.cfg.nodeTimeout {
			s.leadOwnShard() // the primary that it was to follow has not come
		}
	case !s.isReplica(s.self):
		if ok, _ := s.clusterState(); ok && s.spare() && !mutated(mutIdleSpare) {
			s.backUp()
		}
	case s.followTheGone():
	default:
		if ok, _ := s.clusterState(); ok && !s.cfg.policy.NoMigration && !mutated(mutStaysPut) {
			s.migrateReplica(replicas)
		}
	}
}

// backing is how many replicas of a shard this node has heard when it looked last, of
// those that the shard should have.
type backing struct {
	have  int
	lacks bool // it has had more
}

// replicasWanted is how many replicas each shard should have: as many as the deployment
// was started with, or else one, if it ever had one.
func (s *state) replicasWanted() int { return max(1, int(s.cfg.form.Replicas)) }

// tellReplicas tells the application of each shard that has lost a replica which it
// should have, and of each change until it has as many as it should. Of those that come
// to a new shard it does not tell, nor where another has come before it looks again: the
// event is for an operator who has something to do, and a shard that is not short any
// more needs nothing. That a node has failed is told of itself.
func (s *state) tellReplicas(replicas map[ShardID][]*peer) {
	if !s.majorityHeard() {
		return // it is cut off, and says nothing of the others
	}
	want := s.replicasWanted()
	for _, id := range s.table.order {
		was := s.backed[id]
		have := min(len(replicas[id]), want)
		switch {
		case s.table.owned[id] == 0:
			delete(s.backed, id)
		case have < was.have || was.lacks && have != was.have:
			s.backed[id] = backing{have, have < want}
			s.viewDirty = true
			s.event(Event{Kind: EventReplicas, Node: s.table.primary(id), Shard: id, Number: uint64(have), Text: s.lackOf(id)})
		case have > was.have:
			s.backed[id] = backing{have: have}
		}
	}
}

// lackOf says what a shard has lost of its replicas, or "".
func (s *state) lackOf(id ShardID) string {
	b := s.backed[id]
	if !b.lacks {
		return ""
	}
	return fmt.Sprintf("replicas: %d heard, expected %d", b.have, s.replicasWanted())
}

// migrateReplica makes this node a replica of a primary that has none, if it is the
// one to go: of those that share their primary with most others, the smallest.
func (s *state) migrateReplica(replicas map[ShardID][]*peer) {
	most := 0
	for id, rs := range replicas {
		if s.table.owned[id] > 0 {
			most = max(most, len(rs))
		}
	}
	mine := replicas[s.self.Shard]
	if most <= s.cfg.policy.barrier() || len(mine) < most {
		return
	}
	for _, id := range sortedShards(replicas) {
		if rs := replicas[id]; len(rs) == most && rs[0].ID.compare(mine[0].ID) < 0 {
			return // another shard's is smaller
		}
	}
	if mine[0] != s.self || !s.mayGo(mine) {
		return
	}
	for _, id := range s.table.order {
		p := s.peers.get(s.table.primary(id))
		if s.table.owned[id] == 0 || len(replicas[id]) > 0 || !s.hasReplicas(id) || p == nil || p.State != present || p.Shard != id || s.silentHere(p) || p.Host == s.self.Host {
			continue
		}
		s.becomeReplica(id)
		return
	}
}

// hasReplicas reports whether a shard has replicas, heard or not. A primary that never had
// one gets none of another's, nor does one whose last was taken from it, as in Redis: that
// was an operator's decision. It is asked of the table, of which all know the same: the
// one that is to go may have come only when the last replica had died already.
func (s *state) hasReplicas(id ShardID) bool {
	return slices.ContainsFunc(s.peers.ordered, func(p *peer) bool { return p.Shard == id && s.isReplica(p) })
}

// mayGo reports whether enough of its shard's replicas hold every acknowledged write
// when this one goes: its primary may be dead already, and one that has just come could
// not take its place. Where none has to stay the primary has to live.
func (s *state) mayGo(mine []*peer) bool {
	kept := 0
	for _, p := range mine {
		if p != s.self && s.shardRecord != nil && s.shardRecord.electable(incarnate{p.ID, p.Store}) {
			kept++
		}
	}
	p := s.peers.get(s.table.primary(s.self.Shard))
	return mutated(mutMayGo) || kept >= s.cfg.policy.barrier() && (kept > 0 || p != nil && !s.silentHere(p))
}

// spare reports whether this node may back up a primary: it is of a deployment that
// wants replicas, and has nothing of its own.
func (s *state) spare() bool {
	return s.cfg.form.Replicas > 0 && s.spareNode(s.self) && !s.holdsKeys && !s.awaitsSlots() && s.table.unassigned == 0
}

func (s *state) spareNode(p *peer) bool {
	return p.State == present && s.table.primary(p.Shard) == p.ID && s.table.owned[p.Shard] == 0 && s.table.members[p.Shard] == 1 && !s.silentHere(p)
}

// backUp makes this node a replica of a primary that has fewer than the deployment
// wants.
func (s *state) backUp() {
	if id, found := s.toBackUp(); found {
		s.becomeReplica(id)
	}
}

// toBackUp is the shard that this node, a spare one, is to back up, if it is needed.
// Every spare node works out the same pairs, so that they do not all go to one:
// whoever lacks most first, on another host if there is one.
func (s *state) toBackUp() (best ShardID, found bool) {
	count, hosts := map[ShardID]int{}, map[ShardID]map[string]bool{}
	for _, p := range s.peers.ordered {
		if p.State == present && s.table.owned[p.Shard] > 0 && !s.silentHere(p) {
			if hosts[p.Shard] == nil {
				hosts[p.Shard] = map[string]bool{}
			}
			hosts[p.Shard][p.Host] = true
			if s.isReplica(p) {
				count[p.Shard]++
			}
		}
	}
	for _, p := range s.peers.ordered {
		if !s.spareNode(p) {
			continue
		}
		best, found = ShardID{}, false
		better := func(a, b ShardID) bool { // a needs p more than b does
			return cmp.Or(cmp.Compare(count[a], count[b]), boolOrder(hosts[a][p.Host], hosts[b][p.Host]), a.compare(b)) < 0
		}
		for _, id := range s.table.order {
			if s.table.owned[id] > 0 && hosts[id] != nil && count[id] < int(s.cfg.form.Replicas) && (!found || better(id, best)) {
				best, found = id, true
			}
		}
		if !found || p == s.self {
			return best, found
		}
		count[best]++
		hosts[best][p.Host] = true
	}
	return ShardID{}, false
}

// boolOrder puts false before true.
func boolOrder(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}
