package slotmesh

import (
	"slices"
	"time"
)

// How entries spread. A change is pushed once, by the node that made it, to
// all. What a push has missed is found by the digests in the heartbeats: two
// that differ twice in a row start an exchange of 64 bucket digests, and then of
// the entries of the buckets that differ, both ways.

const (
	exchangesMax  = 4        // that a node has under way at a time; more wait for the next heartbeat
	frameBytes    = 30 << 10 // of entries in one UPDATE; with what goes before them it has less than 32 KB
	entryBytes    = 100      // of an entry of the membership at most, but for its texts
	runBytes      = 20       // of a run of slots
	rowBytes      = 56       // of a shard
	silentMax     = 1400     // nodes in one list: a voter that misses more is cut off itself
	jumpPerFrame  = 1_000    // by how much one frame may raise a number
	jumpPerMinute = 10_000   // and one peer in a minute
)

type pushMode uint8

const (
	pushNothing pushMode = iota // heard from others, who have pushed it
	pushChange                  // made here
)

// pendingPush is what this step has changed and will tell all.
type pendingPush struct {
	slots  SlotSet
	given  []givenSlots
	shards []ShardID
	peers  []NodeID
	silent bool
	voters bool
	waits  []*pushWait
}

// givenSlots are moves that this node has counted a majority for.
type givenSlots struct {
	giver ShardID
	slots SlotSet
}

func (p *pendingPush) empty() bool {
	return p.slots.Empty() && len(p.given) == 0 && len(p.shards) == 0 && len(p.peers) == 0 && !p.silent && !p.voters && len(p.waits) == 0
}

// pushWait is a command that waits until every live member has acknowledged a
// push, one NodeTimeout at most.
type pushWait struct {
	command uint64       // to be answered in the end
	decided bool         // with what a majority of the voters has decided
	slots   *slotCommand // or else of which a part is decided
	peer    *peer        // or else who gets msg: it has forwarded the command
	key     forwardKey
	msg     message
	until   time.Duration
	again   time.Duration // when the push is repeated to whom has not answered
	left    []*unacked
}

type unacked struct {
	peer *peer
	msgs []*updateMsg
}

// ---- changing shared entries

// setSlot changes the owner of a slot, for whatever reason. It is the only way
// to do so: what follows from a change is done here.
func (s *state) setSlot(slot Slot, e slotEntry, mode pushMode) {
	was := s.table.slots.at(slot)
	if was == e {
		return
	}
	s.table.setSlot(slot, e)
	s.mark(cellKey{kind: cellSlots, page: uint8(slot / pageSlots)})
	if mode == pushChange {
		s.pending.slots.Add(slot)
	}
	s.settleMark(slot, e.shard)
	s.slotMoved(slot, was, e)
	s.reassess, s.viewDirty = true, true
}

// setShard changes who leads a shard.
func (s *state) setShard(id ShardID, e Epoch, mode pushMode) {
	was, known := s.table.shards[id]
	if known && was == e {
		return
	}
	s.table.setShard(id, e)
	s.mark(cellKey{kind: cellShard, id: id})
	s.epochSave = s.saveSeq + 1
	if mode == pushChange && !slices.Contains(s.pending.shards, id) {
		s.pending.shards = append(s.pending.shards, id)
	}
	s.heardEpoch(id, e.Number)
	if id == s.self.Shard {
		s.shardChanged(was, e)
	} else if known && was.Node != e.Node {
		s.followAllMarked(was.Node)
	}
	s.reassess, s.viewDirty = true, true
}

// setPeer applies f to the entry of p.
func (s *state) setPeer(p *peer, mode pushMode, f func(e *peerEntry)) {
	was := p.peerEntry
	s.peers.change(p, func() { f(&p.peerEntry) })
	if p.peerEntry == was {
		return
	}
	s.mark(cellKey{kind: cellPeer, id: [20]byte(p.ID)})
	if mode == pushChange && !slices.Contains(s.pending.peers, p.ID) {
		s.pending.peers = append(s.pending.peers, p.ID)
	}
	if was.State != p.State || was.Key != p.Key {
		s.stateSave = s.saveSeq + 1
	}
	if p == s.self {
		s.sayWho()
		if was.State != p.State {
			s.selfStateChanged(was.State)
		}
	}
	if p.State == forgotten && was.State != forgotten {
		s.followAllMarked(p.ID)
	}
	if p != s.self && (was.Addr != p.Addr || was.Key != p.Key) {
		p.nextBeat = s.now // it lives elsewhere now: say hello
	}
	s.reassess, s.viewDirty = true, true
}

// changeFacts changes what this node says of itself.
func (s *state) changeFacts(f func(e *peerEntry)) {
	was := s.self.peerEntry
	s.setPeer(s.self, pushChange, func(e *peerEntry) {
		f(e)
		if *e != was {
			e.Facts++
		}
	})
	if s.self.Shard != was.Shard || s.self.Addr != was.Addr || s.self.Host != was.Host {
		s.identitySaved()
		s.tell(identityTell{})
	}
}

// ---- pushing

// push sends what the step has changed to every member.
func (s *state) push() {
	p := &s.pending
	if p.empty() {
		return
	}
	msgs := s.peerUpdates(p.peers) // first: a shard counts once it has a member
	for _, g := range p.given {
		msgs = append(msgs, s.slotUpdates(g.slots, g.giver)...)
	}
	msgs = append(msgs, s.slotUpdates(p.slots, ShardID{})...)
	msgs = append(msgs, s.shardUpdates(p.shards)...)
	if p.voters {
		msgs = append(msgs, s.newUpdate(func(u *updateMsg) { u.Voters = []voterSet{s.table.voters} }))
	}
	waits := p.waits
	if p.silent {
		s.spread(&failMsg{s.self.silent})
	}
	*p = pendingPush{}
	if len(waits) > 0 {
		for _, m := range msgs {
			m.Seq = s.cfg.random() | 1
		}
	}
	for _, m := range msgs {
		s.spread(m)
	}
	for _, w := range waits {
		s.await(w, msgs)
	}
}

// spread sends m to every member.
func (s *state) spread(m message) {
	for _, p := range s.peers.ordered {
		if p != s.self && p.State != forgotten {
			s.post(p, m)
		}
	}
}

func (s *state) newUpdate(fill func(*updateMsg)) *updateMsg {
	u := &updateMsg{Form: s.cfg.form}
	fill(u)
	return u
}

// slotUpdates are the entries of slots, in frames of bounded size.
func (s *state) slotUpdates(slots SlotSet, giver ShardID) []*updateMsg {
	if slots.Empty() {
		return nil
	}
	u := s.newUpdate(func(u *updateMsg) { u.Giver = giver })
	msgs := []*updateMsg{u}
	for slot := range slots.All() {
		if len(u.Slots.Runs)*runBytes+len(u.Slots.Shards)*(rowBytes+len(ShardID{})) >= frameBytes {
			u = s.newUpdate(func(u *updateMsg) { u.Giver = giver })
			msgs = append(msgs, u)
		}
		u.Slots.add(slot, s.table.slots.at(slot))
	}
	// A shard's entry goes with its first slots, so that the owner is known.
	for _, u := range msgs {
		for _, id := range u.Slots.Shards {
			if e, known := s.table.shards[id]; known {
				u.Shards = append(u.Shards, shardRow{id, e})
			}
		}
	}
	return msgs
}

func (s *state) shardUpdates(ids []ShardID) []*updateMsg {
	var msgs []*updateMsg
	for part := range slices.Chunk(ids, frameBytes/rowBytes) {
		msgs = append(msgs, s.newUpdate(func(u *updateMsg) {
			for _, id := range part {
				if e, known := s.table.shards[id]; known {
					u.Shards = append(u.Shards, shardRow{id, e})
				}
			}
		}))
	}
	return msgs
}

func (s *state) peerUpdates(ids []NodeID) []*updateMsg {
	var msgs []*updateMsg
	room := 0
	for _, id := range ids {
		p := s.peers.get(id)
		if p == nil {
			continue
		}
		size := entryBytes + len(p.Addr) + len(p.ClientAddr) + len(p.Hostname) + len(p.Host)
		if room < size {
			msgs, room = append(msgs, s.newUpdate(func(*updateMsg) {})), frameBytes
		}
		room -= size
		u := msgs[len(msgs)-1]
		u.Peers = append(u.Peers, p.peerEntry)
	}
	return msgs
}

// await makes a command wait for the acknowledgements of a push.
func (s *state) await(w *pushWait, msgs []*updateMsg) {
	if len(msgs) > 0 && !mutated(mutReplyEarly) {
		for _, p := range s.peers.ordered {
			if p != s.self && p.State != forgotten && s.alive(p) {
				w.left = append(w.left, &unacked{p, slices.Clone(msgs)})
			}
		}
	}
	w.until, w.again = s.now+s.cfg.nodeTimeout, s.now+s.cfg.nodeTimeout/8
	s.waits = append(s.waits, w)
	s.settleWaits()
}

// replyOncePushed answers a command when every live member has acknowledged
// what this step has changed.
func (s *state) replyOncePushed(command uint64) {
	s.pending.waits = append(s.pending.waits, &pushWait{command: command})
}

// replyDecided is replyOncePushed for what a majority of the voters has decided: the
// reply need not wait for this node's own save of it, as isDecided says of messages.
func (s *state) replyDecided(command uint64) {
	s.pending.waits = append(s.pending.waits, &pushWait{command: command, decided: true})
}

func (s *state) onUpdated(p *peer, m *updatedMsg) {
	for _, w := range s.waits {
		for _, u := range w.left {
			if u.peer == p {
				u.msgs = slices.DeleteFunc(u.msgs, func(x *updateMsg) bool { return x.Seq == m.Seq })
			}
		}
	}
	s.settleWaits()
}

// settleWaits answers the commands whose change is known to all that live.
func (s *state) settleWaits() {
	s.waits = slices.DeleteFunc(s.waits, func(w *pushWait) bool {
		w.left = slices.DeleteFunc(w.left, func(u *unacked) bool {
			return len(u.msgs) == 0 || !s.alive(u.peer) || u.peer.State == forgotten
		})
		if len(w.left) > 0 && s.now < w.until {
			if s.now >= w.again {
				w.again = s.now + s.cfg.nodeTimeout/8
				for _, u := range w.left {
					for _, m := range u.msgs {
						s.post(u.peer, m)
					}
				}
			}
			s.wakeBy(min(w.again, w.until))
			return false
		}
		switch {
		case w.peer != nil:
			delete(s.forwarded, w.key)
			s.post(w.peer, w.msg)
		case w.slots != nil:
			s.commandDone(w.slots, nil)
		case w.command != 0:
			s.tell(replyTell{id: w.command, beside: w.decided})
		}
		return true
	})
}

// ---- merging

func (s *state) onUpdate(from *peer, m *updateMsg) {
	if mt := s.meetingOf(m); mt != nil {
		s.endMeeting(mt)
	}
	from.formNumbers = m.Form
	for i := range m.Peers {
		s.mergePeer(from, &m.Peers[i])
	}
	for i := range m.Silent {
		s.mergeSilent(&m.Silent[i])
	}
	for i := range m.Shards {
		s.mergeShard(from, m.Shards[i].ID, m.Shards[i].Epoch)
	}
	trusted := s.hasCounted(from, m.Giver)
	m.Slots.each(func(slot Slot, e slotEntry) { s.mergeSlot(from, slot, e, trusted) })
	for i := range m.Voters {
		s.mergeVoters(from, &m.Voters[i])
	}
	if m.Seq != 0 {
		s.post(from, &updatedMsg{m.Seq})
	}
}

// hasCounted reports whether from may have counted the majority that moved
// slots of giver: hearsay of anybody else is used for redirects only.
func (s *state) hasCounted(from *peer, giver ShardID) bool {
	if giver.IsZero() {
		return false
	}
	return s.table.primary(giver) == from.ID
}

func (s *state) mergeSlot(from *peer, slot Slot, e slotEntry, trusted bool) {
	was := s.table.slots.at(slot)
	if !was.less(e) && !mutated(mutOldEntry) || was == e {
		return
	}
	if !s.believable(from, numberMove, e.move, was.move) {
		return
	}
	s.setSlot(slot, e, pushNothing)
	if e.shard == s.self.Shard && !s.cluster.IsZero() {
		s.slotArrived(slot, e.move, trusted || s.stagedBy(from, slot, e.move))
	}
}

func (s *state) mergeShard(from *peer, id ShardID, e Epoch) {
	was, known := s.table.shards[id]
	if known && !was.less(e) && !mutated(mutOldEntry) || known && was == e {
		return
	}
	if !known && !s.table.useful(id) {
		return
	}
	if !s.believableEpoch(from, e) {
		return
	}
	s.setShard(id, e, pushNothing)
}

func (s *state) mergeVoters(from *peer, v *voterSet) {
	if !s.table.voters.Version.less(v.Version) && !(mutated(mutOldEntry) && v.ID != s.table.voters.ID) {
		return
	}
	if s.cluster.IsZero() || !s.believableVoters(from, v.Version) {
		return
	}
	s.setVoters(*v, pushNothing)
}

func (s *state) mergePeer(from *peer, e *peerEntry) {
	p := s.peers.get(e.ID)
	if p == s.self {
		s.mergeSelf(from, e)
		return
	}
	if p == nil {
		if e.State == forgotten && s.tombstones() >= tombstonesMax || !s.believable(from, numberMember, e.Version, 0) {
			return
		}
		p = &peer{peerEntry: *e}
		p.resetVolatile(s.now)
		p.nextBeat = s.now
		s.peers.insert(p)
		s.mark(cellKey{kind: cellPeer, id: [20]byte(p.ID)})
		s.stateSave = s.saveSeq + 1
		s.reassess, s.viewDirty = true, true
		return
	}
	stateNewer := e.newerState(&p.peerEntry)
	if stateNewer && !s.believable(from, numberMember, e.Version, p.Version) {
		return
	}
	wasState := p.State
	s.setPeer(p, pushNothing, func(q *peerEntry) {
		if stateNewer {
			if q.Key != e.Key {
				*q = *e
			}
			q.Key, q.State, q.Version = e.Key, e.State, e.Version
		}
		if q.Key == e.Key && q.Key != 0 {
			if mutated(mutAddrVersion) && e.Version >= q.Version || e.newerFacts(q) {
				q.takeFacts(e)
			}
		}
	})
	if wasState == forgotten && p.State != forgotten {
		p.resetVolatile(s.now)
		p.nextBeat = s.now
	}
}

// mergeSelf takes what others say of this node: only its state is theirs. What
// they say of a key that it had before a RESET is not about the member that it
// has become since, which rises above it.
func (s *state) mergeSelf(from *peer, e *peerEntry) {
	switch {
	case !e.newerState(&s.self.peerEntry):
		if e.State == forgotten && s.self.State != forgotten {
			// It has been met since, by somebody whom from does not hear.
			s.post(from, s.newUpdate(func(u *updateMsg) { u.Peers = []peerEntry{s.self.peerEntry} }))
		}
	case !s.believable(from, numberMember, e.Version, s.self.Version):
	case e.Key == s.key:
		s.setPeer(s.self, pushNothing, func(q *peerEntry) { q.State, q.Version = e.State, e.Version })
	case !s.cluster.IsZero():
		s.setPeer(s.self, pushChange, func(q *peerEntry) { q.Version = e.Version + 1 })
	}
}

func (s *state) mergeSilent(e *silentEntry) {
	p := s.peers.get(e.Voter)
	if p == nil || e.Counter == 0 || p.silent.Counter != 0 && !e.newer(&p.silent) {
		return
	}
	if p == s.self {
		s.sayWhoIsSilent() // the others remember a list of an earlier start
		return
	}
	s.peers.change(p, func() { p.silent = *e })
	s.reassess, s.viewDirty = true, true
}

// ---- numbers

type numberKind uint8

const (
	numberEpoch numberKind = iota
	numberMove
	numberMember
	numberVoters
	numberForced
	numberBallot
	numNumberKinds
)

// jumps is by how much one peer may raise the numbers of this node, and has.
type jumps struct {
	minute  time.Duration // began then
	used    uint64        // in it
	told    bool          // in it an event has told of a number that was refused
	frame   uint64
	inFrame uint64 // used in that frame

	reach [numNumberKinds]uint64 // up to there it is believed by itself
	shown [numNumberKinds]uint64 // the highest that it has shown, beyond the next ones
}

// believable reports whether from may raise a number so far. One broken member
// must not exhaust the numbers of all: it is believed by itself up to its reach,
// which rises by what a frame and a minute may raise. What a majority of the
// voters has shown, each on its own connections, is taken, whatever it is. A node
// that has just started or joined is no more gullible than any other: what it
// believed of one member it would show to the others as its own word. Only an
// unformed one, which has no voters, takes all of the group that it meets.
func (s *state) believable(from *peer, kind numberKind, n, highest uint64) bool {
	if n <= highest || n-highest == 1 || from == s.self || s.cluster.IsZero() && !s.synced || mutated(mutJumpAny) {
		return true
	}
	j := &from.jumps
	j.shown[kind] = max(j.shown[kind], n)
	if s.reaches(j, kind, n, highest) || s.shownByMajority(kind, n) {
		return true
	}
	if s.synced && !j.told {
		j.told = true
		s.event(Event{Kind: EventNumberRefused, Node: from.ID, Number: n})
	}
	return false
}

// reaches raises how far a peer is believed by itself, as far as it may, and reports
// whether that is up to n. So a number that is far beyond the highest known is
// believed once it has been shown in frames enough: were it never, a node that was
// away for long would be for good.
func (s *state) reaches(j *jumps, kind numberKind, n, highest uint64) bool {
	if s.now-j.minute > time.Minute {
		j.minute, j.used, j.told = s.now, 0, false
	}
	if j.frame != s.frames {
		j.frame, j.inFrame = s.frames, 0
	}
	reach := max(j.reach[kind], highest)
	if n > reach {
		rise := min(n-reach, jumpPerFrame-j.inFrame, jumpPerMinute-j.used)
		j.inFrame, j.used = j.inFrame+rise, j.used+rise
		reach += rise
	}
	j.reach[kind] = reach
	return n <= reach
}

// shownByMajority reports whether a majority of the voters has shown numbers of a
// kind up to n: at least one of them is no liar, and knows of such.
func (s *state) shownByMajority(kind numberKind, n uint64) bool {
	return s.majority(func(id NodeID) bool {
		p := s.peers.get(id)
		return p != nil && s.voter(p) && p.jumps.shown[kind] >= n
	})
}

func (s *state) believableVoters(from *peer, v voterVersion) bool {
	was := s.table.voters.Version
	return s.believable(from, numberVoters, v.Number, was.Number) && s.believable(from, numberForced, v.Forced, was.Forced)
}

func (s *state) believableEpoch(from *peer, e Epoch) bool {
	return s.believable(from, numberEpoch, e.Number, s.currentEpoch())
}

func (s *state) believableBallot(from *peer, b ballot) bool {
	return s.believable(from, numberBallot, b.Number, s.vote.stop.Number)
}

// believableVotes reports whether from may raise numbers so far as what it says that
// a voter keeps. It looks at every row: what is refused here counts as shown.
func (s *state) believableVotes(from *peer, v *votes) bool {
	ok := true
	for i := range v.Promises {
		ok = s.believableEpoch(from, v.Promises[i].Epoch) && ok
	}
	for i := range v.Records {
		ok = s.believableEpoch(from, v.Records[i].Epoch) && ok
	}
	v.Accepted.each(func(slot Slot, a accepted) { ok = s.believableMove(from, slot, a.move) && ok })
	v.Opened.each(func(slot Slot, o opening) {
		ok = s.believableMove(from, slot, o.move) && s.believableEpoch(from, o.epoch) && ok
	})
	return ok
}

// believableMove is for what voters have accepted of a slot: it may be ahead of the table.
func (s *state) believableMove(from *peer, slot Slot, move uint64) bool {
	return s.believable(from, numberMove, move, max(s.vote.accepted.at(slot).move, s.table.slots.at(slot).move))
}

// currentEpoch is the highest number heard or used in any shard.
func (s *state) currentEpoch() uint64 { return s.epochHigh }

// heardEpoch notes the number of an epoch of a shard: the next one asked for
// will be higher.
func (s *state) heardEpoch(id ShardID, n uint64) {
	s.heard[id] = max(s.heard[id], n)
	if n > s.epochHigh {
		s.epochHigh = n
		s.mark(cellKey{kind: cellEpoch})
		s.epochSave = s.saveSeq + 1
	}
}

// ---- digests

// compareDigests notes whether a peer's digests equal ours, and starts an
// exchange where they have differed twice in a row: a push may be on its way. A
// node that has started or joined, and has not been like anybody since, asks at
// once.
func (s *state) compareDigests(p *peer, m *heartbeat) {
	if m.Table == s.table.sum && m.Peers == s.peers.sum {
		p.differs = 0
		s.synced = true
		if p.sameSince == never {
			p.sameSince = s.now
		}
		return
	}
	p.sameSince = never
	if p.differs++; p.differs >= 2 || !s.synced {
		s.exchange(p)
	}
}

func (s *state) exchange(p *peer) {
	most, running := exchangesMax, 0
	if s.broken != nil {
		most = 1 // what it has not saved nobody knows: they may differ for good
	}
	for _, q := range s.peers.ordered {
		if q.exchangeAt != never && s.now-q.exchangeAt < s.cfg.nodeTimeout/2 {
			if q == p {
				return
			}
			running++
		}
	}
	if running >= most {
		return
	}
	p.exchangeAt = s.now
	s.post(p, s.digestAsk())
}

func (s *state) digestAsk() *digestMsg {
	return &digestMsg{Mute: s.broken != nil, Table: slices.Clone(s.table.buckets[:]), Peers: slices.Clone(s.peers.buckets[:])}
}

func (s *state) onDigest(p *peer, m *digestMsg) {
	send := func(a message) { s.post(p, a) }
	if m.Answer {
		p.exchangeAt = never
		s.bucketEntries(m.WantT, m.WantP, send)
		return
	}
	s.answerDigest(m, send)
}

// answerDigest sends the entries of the buckets that differ, and says which.
func (s *state) answerDigest(m *digestMsg, send func(message)) {
	a := &digestMsg{Answer: true}
	for i := range numBuckets {
		if m.Table[i] != s.table.buckets[i] {
			a.WantT |= 1 << i
		}
		if m.Peers[i] != s.peers.buckets[i] {
			a.WantP |= 1 << i
		}
	}
	s.bucketEntries(a.WantT, a.WantP, send)
	send(a)
}

// bucketEntries sends the entries of the buckets in the masks.
func (s *state) bucketEntries(tables, peers uint64, send func(message)) {
	var ids []NodeID
	var silent []silentEntry
	for _, q := range s.peers.ordered {
		if peers>>idBucket(q.ID[:])&1 == 0 {
			continue
		}
		ids = append(ids, q.ID)
		if q.silent.Counter != 0 {
			silent = append(silent, q.silent)
		}
	}
	msgs := s.peerUpdates(ids)
	for i := range silent {
		msgs = append(msgs, s.newUpdate(func(u *updateMsg) { u.Silent = silent[i : i+1] }))
	}
	msgs = append(msgs, s.shardUpdates(s.shardsIn(tables))...)
	msgs = append(msgs, s.slotUpdates(s.slotsIn(tables), ShardID{})...)
	if tables&1 == 1 && s.table.voters.ID != 0 {
		msgs = append(msgs, s.newUpdate(func(u *updateMsg) { u.Voters = []voterSet{s.table.voters} }))
	}
	for _, m := range msgs {
		send(m)
	}
}

func (s *state) shardsIn(buckets uint64) []ShardID {
	var ids []ShardID
	for _, id := range s.table.order {
		if buckets>>idBucket(id[:])&1 == 1 && s.table.useful(id) {
			ids = append(ids, id)
		}
	}
	return ids
}

func (s *state) slotsIn(buckets uint64) SlotSet {
	var slots SlotSet
	for i, page := range s.table.slots.pages {
		if buckets>>i&1 == 0 || page == nil {
			continue
		}
		for j := range page {
			if page[j] != (slotEntry{}) {
				slots.Add(Slot(i*pageSlots + j))
			}
		}
	}
	return slots
}
