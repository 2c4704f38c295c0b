package slotmesh

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Who is of the cluster. A peer entry is (id, voterKey, state, version): MEET,
// FORGET and RESET raise the version and nothing else does, and only MEET lifts
// a tombstone. Every message names its sender's cluster and the node it is for,
// so that reused addresses and other clusters change nothing here.

const (
	meetLimit     = 10   // NodeTimeouts that a MEET, an invitation or a RESET is tried for
	meetingsMax   = 1024 // MEETs under way; at the bound one more is refused
	tombstonesMax = 4096 // the oldest beyond are dropped
	tellForgotten = 5    // a forgotten node is told in answer to one frame in so many
)

// admit decides whether a message may be read at all, and takes new members.
// It returns the member who sent it, or nil.
func (s *state) admit(from *sender, to wanted, m message) *peer {
	if from.ID == s.id {
		s.meetSelf(from, to, m)
		return nil
	}
	if r, ok := m.(*refusedMsg); ok {
		s.onRefused(from, to, r)
		return nil
	}
	if !to.ID.IsZero() && (to.ID != s.id || to.Key != s.key) {
		s.answer(from, &refusedMsg{Why: refusedOther})
		return nil
	}
	p := s.peers.get(from.ID)
	if p != nil && p.Key == from.Key && !s.sameInstance(p, from) {
		return nil
	}
	if to.Incarnation != 0 && to.Incarnation != s.cfg.incarnation {
		// Meant for the process that was here before. A member hears of this one;
		// who has been forgotten does not, and has to be told.
		if p != nil && p.Key == from.Key && p.State == forgotten && from.Cluster == s.cluster && !s.cluster.IsZero() {
			s.tellForgotten(p, from)
		}
		return nil
	}
	if p = s.admitByCluster(p, from, to, m); p == nil {
		return nil
	}
	s.heardFrom(p, from, m)
	return p
}

// admitByCluster is the table of who may speak to whom.
func (s *state) admitByCluster(p *peer, from *sender, to wanted, m message) *peer {
	formed, theirs := !s.cluster.IsZero(), !from.Cluster.IsZero()
	switch {
	case formed && theirs && from.Cluster != s.cluster && !mutated(mutNoClusterID):
		if to.ID == s.id || isMeet(m) {
			s.answer(from, &refusedMsg{Why: refusedCluster, Nonce: nonceOf(m)})
		}
		if isMeet(m) {
			s.sayRefused(from, refusedCluster, SlotSet{})
		}
		return nil
	case formed && theirs:
		return s.admitMember(p, from, m)
	case !formed && !theirs:
		return s.admitUnformed(p, from, to, m)
	case formed:
		return s.admitJoiner(p, from, to, m)
	default:
		return s.admitInvitation(p, from, m)
	}
}

func isMeet(m message) bool {
	_, ok := m.(*meetMsg)
	return ok
}

func nonceOf(m message) uint64 {
	if m, ok := m.(*meetMsg); ok {
		return m.Nonce
	}
	return 0
}

// known reports whether p is a member under the key that the sender shows.
func known(p *peer, from *sender) bool {
	return p != nil && p.Key == from.Key && p.State != forgotten
}

// admitMember reads a message of a node of the same formed cluster.
func (s *state) admitMember(p *peer, from *sender, m message) *peer {
	switch {
	case s.self.State != forgotten && (isMeet(m) || s.meetingOf(m) != nil):
		if !known(p, from) {
			p = s.add(from)
		}
		return p
	case p != nil && p.Key == from.Key && p.State == forgotten:
		if !s.hearsMet(p, m) {
			s.tellForgotten(p, from)
		}
		return nil
	case p == nil || p.Key != from.Key:
		s.askStranger(from, m)
		return nil
	}
	return p
}

// tellForgotten tells a node that it has been forgotten, once in a while.
func (s *state) tellForgotten(p *peer, from *sender) {
	if s.cfg.random()%tellForgotten != 0 || s.timeSince(p.toldAt) < s.cfg.nodeTimeout/10 {
		return
	}
	p.toldAt = s.now
	s.answer(from, s.newUpdate(func(u *updateMsg) { u.Peers = []peerEntry{p.peerEntry} }))
}

// hearsMet reads, in what a forgotten node answers, that it has been met since,
// by somebody whom this node does not hear.
func (s *state) hearsMet(p *peer, m message) bool {
	u, ok := m.(*updateMsg)
	if !ok {
		return false
	}
	for i := range u.Peers {
		if e := &u.Peers[i]; e.ID == p.ID && e.newerState(&p.peerEntry) {
			s.mergePeer(p, e)
			return true
		}
	}
	return false
}

// askStranger asks a node of this cluster that is not known here, or under
// another key, for what it knows: its entry has not come here yet.
func (s *state) askStranger(from *sender, m message) {
	switch m := m.(type) {
	case *heartbeat:
		if s.timeSince(s.strangerAt) >= s.cfg.nodeTimeout/10 {
			s.strangerAt = s.now
			s.answer(from, s.digestAsk())
		}
	case *updateMsg:
		// Entries of the membership alone, and nothing else, may be read of it.
		p := &peer{peerEntry: peerEntry{ID: from.ID, Key: from.Key, Addr: from.Addr}, incarnation: from.Incarnation, jumps: s.strangers}
		for i := range m.Peers {
			s.mergePeer(p, &m.Peers[i])
		}
		s.strangers = p.jumps
	case *digestMsg:
		if !m.Answer {
			s.answerDigest(m, func(a message) { s.answer(from, a) })
		} else {
			s.bucketEntries(m.WantT, m.WantP, func(a message) { s.answer(from, a) })
		}
	}
}

// admitUnformed reads a message between two nodes that have not formed.
func (s *state) admitUnformed(p *peer, from *sender, to wanted, m message) *peer {
	if known(p, from) {
		return p
	}
	asked, claims := s.asksIn(m)
	met := s.meetingOf(m) != nil
	if !asked && !met && (to.ID.IsZero() || p != nil) {
		return nil // it must be met, or name this node from its own group
	}
	if p != nil && p.State == forgotten && !isMeet(m) && !met {
		return nil
	}
	if s.form.holds() && !s.byNumber() {
		s.answer(from, &refusedMsg{Why: refusedForming})
		return nil // it asks again
	}
	if slot, both := s.claimedTwice(claims); both && !mutated(mutFormMerge) {
		s.answer(from, &refusedMsg{Why: refusedSlot, Slot: slot, Nonce: nonceOf(m)})
		s.sayRefused(from, refusedSlot, oneSlot(slot))
		return nil
	}
	return s.add(from)
}

// sayRefused says on this side, too, why somebody was refused: once in a
// NodeTimeout, whoever asks however often.
func (s *state) sayRefused(from *sender, why refusal, slots SlotSet) {
	if s.timeSince(s.refusedAt) < s.cfg.nodeTimeout {
		return
	}
	s.refusedAt = s.now
	s.event(Event{Kind: EventRefused, Node: from.ID, Addr: from.Addr, Text: why.String(), Slots: slots})
}

// asksIn reports whether m asks to be of one group, and what its group claims.
func (s *state) asksIn(m message) (bool, *slotRuns) {
	switch m := m.(type) {
	case *meetMsg:
		return true, &m.Claims
	case *seedMsg:
		return true, &m.Claims
	case *updateMsg:
		return false, &m.Slots
	default:
		return false, &slotRuns{}
	}
}

// claimedTwice finds a slot that two unformed groups have both assigned.
func (s *state) claimedTwice(claims *slotRuns) (Slot, bool) {
	var slot Slot
	found := false
	claims.each(func(sl Slot, e slotEntry) {
		have := s.table.slots.at(sl)
		if !found && !have.shard.IsZero() && !e.shard.IsZero() && have.shard != e.shard {
			slot, found = sl, true
		}
	})
	return slot, found
}

// admitJoiner reads a message of an unformed node at a formed one.
func (s *state) admitJoiner(p *peer, from *sender, to wanted, m message) *peer {
	if s.self.State == forgotten {
		return nil // this node has nobody to bring it to
	}
	if known(p, from) {
		s.invite(p) // it has been taken, and has not heard so
		return nil
	}
	seeking, isSeed := m.(*seedMsg)
	if isSeed && p != nil && p.Key == from.Key {
		return nil // a tombstone, which only MEET lifts
	}
	named := !to.ID.IsZero() && p == nil
	if !isMeet(m) && !isSeed && !named && s.meetingOf(m) == nil {
		return nil
	}
	p = s.add(from)
	if isSeed {
		p.formNumbers = seeking.Form
	}
	if mt := s.meetingOf(m); mt != nil {
		s.endMeeting(mt)
	}
	p.metNonce = nonceOf(m)
	p.invitedAt = s.now
	s.invite(p)
	return nil
}

// invite tells a node that it is a member: the entry that names it, and the
// voters, so that it finds its way if this node is on its own way out.
func (s *state) invite(p *peer) {
	if s.timeSince(p.toldAt) < s.cfg.nodeTimeout/50 {
		return
	}
	p.toldAt = s.now
	s.post(p, s.newUpdate(func(u *updateMsg) {
		u.Peers = []peerEntry{p.peerEntry, s.self.peerEntry}
		for _, v := range s.table.voters.Members {
			if q := s.peers.get(v.ID); q != nil && q != s.self && q != p {
				u.Peers = append(u.Peers, q.peerEntry)
			}
		}
		u.Voters = []voterSet{s.table.voters}
		u.Met = p.metNonce
	}))
}

// admitInvitation reads a message of a formed cluster at an unformed node.
func (s *state) admitInvitation(p *peer, from *sender, m message) *peer {
	switch m := m.(type) {
	case *seedMsg:
		// A formed node looks for its own cluster here. Only a node of the same
		// deployment asks to be taken.
		if s.byNumber() && m.Form == s.cfg.form {
			s.answer(from, &seedMsg{Form: s.cfg.form})
		}
	case *meetMsg:
		s.answer(from, s.newUpdate(func(u *updateMsg) {
			u.Met = m.Nonce
			u.Peers = []peerEntry{s.self.peerEntry}
		}))
	case *updateMsg:
		i := slices.IndexFunc(m.Peers, func(e peerEntry) bool { return e.ID == s.id && e.Key == s.key && e.State == present })
		if i < 0 || len(m.Voters) == 0 {
			return nil // without the voters this node could not tell whom to believe
		}
		if why := s.refusesToJoin(from); why != 0 {
			s.answer(from, &refusedMsg{Why: why})
			return nil
		}
		if mt := s.meetings[m.Met]; mt != nil {
			s.endMeeting(mt)
		}
		s.join(from, m)
		return s.peers.get(from.ID)
	case *heartbeat:
		s.beatStranger(from) // so that it invites
	}
	return nil
}

// beatStranger shows this node to one that takes it for a member.
func (s *state) beatStranger(from *sender) {
	s.answer(from, &heartbeat{Table: s.table.sum, Peers: s.peers.sum, Sent: s.stamp()})
}

// refusesToJoin says why this unformed node may not give up what it has, or 0.
func (s *state) refusesToJoin(from *sender) refusal {
	switch {
	case s.form.holds() && s.form.value.Cluster == from.Cluster:
		return 0 // it has formed, and keeps what it has
	case s.holdsKeys && s.table.owned[s.self.Shard] > 0:
		return refusedKeys
	case s.form.holds() && !s.formDeadBy(from):
		return refusedForming
	}
	return 0
}

// meetSelf hears this node's own id from somebody: itself at another address,
// or a second live instance of it.
func (s *state) meetSelf(from *sender, to wanted, m message) {
	r, refused := m.(*refusedMsg)
	switch {
	case from.Incarnation == s.cfg.incarnation:
	case refused && r.Why == refusedDuplicate:
		s.onDuplicate(s.self, from, to, r)
	case from.Starts < s.starts:
		s.askTwin(s.self, from)
	default:
		s.event(Event{Kind: EventDuplicate, Node: from.ID, Addr: from.Addr})
		s.answer(from, &refusedMsg{Why: refusedDuplicate})
	}
}

// sameInstance reports whether the sender is the newest process of p. Frames of
// an older one change nothing; of two with one start count the first stays.
func (s *state) sameInstance(p *peer, from *sender) bool {
	switch {
	case p.incarnation == from.Incarnation:
		return true
	case from.Starts < p.Starts:
		s.askTwin(p, from)
		return false
	case from.Starts == p.heardStarts && p.incarnation != 0 && s.timeSince(p.beatAt) < s.cfg.nodeTimeout:
		s.event(Event{Kind: EventDuplicate, Node: p.ID, Addr: from.Addr})
		s.answer(from, &refusedMsg{Why: refusedDuplicate})
		return false
	}
	return true
}

// askTwin asks an older process of p whether it still lives: its frame may be
// late. If it answers, somebody has copied the directory of a node that runs.
func (s *state) askTwin(p *peer, from *sender) {
	if s.timeSince(p.twinAt) < s.cfg.nodeTimeout {
		return
	}
	p.twinAt = s.now
	if p.twinNonce == 0 {
		p.twinNonce = s.cfg.random()>>1 | 1
	}
	s.answer(from, &refusedMsg{Why: refusedDuplicate, Nonce: p.twinNonce})
}

// onDuplicate hears that two processes have one id: this node's, or, in answer
// to what askTwin has asked, p's. A question has an odd number, the answer the
// next one.
func (s *state) onDuplicate(p *peer, from *sender, to wanted, m *refusedMsg) {
	switch {
	case to.Incarnation != 0 && to.Incarnation != s.cfg.incarnation:
		return // meant for the process that was here before
	case m.Nonce != 0 && m.Nonce%2 == 0 && m.Nonce != p.twinNonce+1:
		return // answered before
	}
	twice := s.id
	switch {
	case m.Nonce%2 == 1:
		s.answer(from, &refusedMsg{Why: refusedDuplicate, Nonce: m.Nonce + 1})
	case m.Nonce != 0:
		p.twinNonce = 0
		if twice = p.ID; p != s.self {
			s.post(p, &refusedMsg{Why: refusedDuplicate}) // the newer one is to know too
		}
	}
	s.event(Event{Kind: EventDuplicate, Node: twice, Addr: from.Addr})
}

// heardFrom notes that p lives, and what its handshake says of it.
func (s *state) heardFrom(p *peer, from *sender, m message) {
	if p.incarnation != from.Incarnation {
		p.incarnation = from.Incarnation
		p.beatAt, p.answered, p.claim, p.leased, p.active, p.hangs = never, false, claim{}, false, false, false
	}
	p.heardStarts, p.timeout = from.Starts, from.Timeout
	switch m := m.(type) {
	case *heartbeat: // may be late, which its stamp tells
	case *digestMsg:
		if !m.Mute {
			p.heardAt = s.now
		}
	default:
		p.heardAt = s.now
	}
	p.invitedAt = never
	if from.Starts > p.Starts || from.Starts == p.Starts && from.Facts > p.Facts {
		s.setPeer(p, pushNothing, func(e *peerEntry) {
			e.Starts, e.Facts = from.Starts, from.Facts
			e.Addr, e.ClientAddr, e.Hostname, e.Host, e.Shard, e.Store, e.NoFailover = from.Addr, from.ClientAddr, from.Hostname, from.Host, from.Shard, from.Store, from.NoFailover
		})
	}
}

// add makes the sender a member, as MEET does: under a version above any
// tombstone's.
func (s *state) add(from *sender) *peer {
	e := peerEntry{ID: from.ID, Key: from.Key, State: present, Version: 1, Starts: from.Starts, Facts: from.Facts,
		Addr: from.Addr, ClientAddr: from.ClientAddr, Hostname: from.Hostname, Host: from.Host, Shard: from.Shard, Store: from.Store, NoFailover: from.NoFailover}
	p := s.peers.get(from.ID)
	if p == nil {
		p = &peer{peerEntry: e}
		p.resetVolatile(s.now)
		s.peers.insert(p)
		s.mark(cellKey{kind: cellPeer, id: [20]byte(p.ID)})
		s.pending.peers = append(s.pending.peers, p.ID)
		s.reassess, s.viewDirty = true, true
	} else {
		e.Version = p.Version + 1
		if p.Key == e.Key && p.peerEntry.newerFacts(&e) {
			e.takeFacts(&p.peerEntry) // its frame has been on its way for long
		}
		s.setPeer(p, pushChange, func(q *peerEntry) { *q = e })
		p.resetVolatile(s.now)
	}
	p.incarnation, p.heardStarts, p.nextBeat = from.Incarnation, from.Starts, s.now
	if _, ok := s.table.shards[from.Shard]; !ok && !from.Shard.IsZero() && !s.cluster.IsZero() {
		s.setShard(from.Shard, Epoch{Node: from.ID}, pushChange)
	}
	s.wakeBy(s.now)
	s.event(Event{Kind: EventMember, Node: p.ID, Addr: p.Addr})
	return p
}

// join gives up what this node has claimed and becomes a member of a formed
// cluster. Nothing leaves under the cluster's id before it is saved.
func (s *state) join(from *sender, u *updateMsg) {
	s.event(Event{Kind: EventJoined, Node: from.ID, Addr: from.Addr})
	formedHere := s.form.holds() && s.form.value.Cluster == from.Cluster
	var queued []queuedCommand
	if formedHere {
		queued, s.form.queued = s.form.queued, nil // what they have waited for has come
	}
	s.abandon(clusterDown("this node has joined a cluster meanwhile"))
	s.cluster = from.Cluster
	s.forgetVotes()
	s.change = nil
	follows := s.isReplica(s.self)
	s.dropTable()
	if formedHere {
		s.takeFormedTable(s.form.value)
	} else {
		s.form = formation{}
		s.dropMarks()
		s.mark(cellKey{kind: cellStart})
		if !follows { // else its primary comes with that shard
			s.setShard(s.self.Shard, Epoch{Node: s.id}, pushNothing)
		}
	}
	s.table.resalt(s.salt())
	s.peers.resalt(s.salt())
	p := s.peers.get(from.ID)
	if p == nil || p.Key != from.Key || p.State == forgotten {
		p = s.add(from)
	}
	for i := range u.Peers {
		s.mergePeer(p, &u.Peers[i])
	}
	s.synced = false
	s.identitySaved()
	s.tell(identityTell{})
	for i := range u.Voters {
		s.setVoters(u.Voters[i], pushNothing)
	}
	if formedHere {
		s.leadAsFormed(s.form.value, s.form.savedAt)
		s.form = formation{queued: queued}
		s.mark(cellKey{kind: cellStart})
		s.runQueued()
	}
	s.beat(p, false)
	s.exchange(p)
	s.reassess, s.viewDirty = true, true
}

// salt makes the digests of two clusters differ.
func (s *state) salt() uint64 {
	if s.cluster.IsZero() {
		return 0
	}
	return hashEnd(hashBytes(0, s.cluster[:]))
}

// dropTable forgets slots, shards and voters, here and on disk.
func (s *state) dropTable() {
	for i, page := range s.table.slots.pages {
		if page != nil {
			s.mark(cellKey{kind: cellSlots, page: uint8(i)})
		}
	}
	for _, id := range s.table.order {
		s.mark(cellKey{kind: cellShard, id: id})
	}
	s.mark(cellKey{kind: cellVoters})
	s.table.clear()
	s.reassess, s.viewDirty = true, true
}

// onRefused hears why a node takes nothing from this one.
func (s *state) onRefused(from *sender, to wanted, m *refusedMsg) {
	if mt := s.meetings[m.Nonce]; mt != nil && m.Why != refusedForming {
		s.endMeeting(mt)
		s.event(Event{Kind: EventRefused, Node: from.ID, Addr: from.Addr, Text: m.Why.String(), Slots: oneSlotIf(m.Why == refusedSlot, m.Slot)})
	}
	if !to.ID.IsZero() && (to.ID != s.id || to.Key != s.key) {
		return
	}
	p := s.peers.get(from.ID)
	if !known(p, from) {
		return
	}
	switch {
	case m.Why == refusedKeys && p.invitedAt != never:
		p.invitedAt = never
		s.event(Event{Kind: EventRefused, Node: from.ID, Addr: from.Addr, Text: m.Why.String()})
		s.forgetPeer(p) // it does not come
	case m.Why == refusedDuplicate:
		s.onDuplicate(p, from, to, m)
	case m.Why == refusedCluster && !s.cluster.IsZero() && !from.Cluster.IsZero() && from.Cluster != s.cluster:
		s.forgetPeer(p) // it has left: a ghost here
	}
}

func oneSlot(slot Slot) SlotSet {
	var set SlotSet
	set.Add(slot)
	return set
}

func oneSlotIf(ok bool, slot Slot) SlotSet {
	if ok {
		return oneSlot(slot)
	}
	return SlotSet{}
}

// ---- MEET

// meet asks whoever lives at an address to be of one cluster.
func (s *state) meet(now time.Duration, id uint64, addr string) output {
	s.begin(now)
	switch {
	case len(s.meetings) >= meetingsMax:
		s.reply(id, tryAgain("%d MEETs are under way, which is the limit", meetingsMax))
	default:
		s.startMeeting(addr)
		s.reply(id, nil)
	}
	return s.end()
}

func (s *state) startMeeting(addr string) {
	for _, m := range s.meetings {
		if m.addr == addr {
			m.until = s.now + meetLimit*s.cfg.nodeTimeout
			return
		}
	}
	m := &meeting{nonce: s.cfg.random() | 1, addr: addr, until: s.now + meetLimit*s.cfg.nodeTimeout}
	s.meetings[m.nonce] = m
	s.sendMeet(m)
}

func (s *state) sendMeet(m *meeting) {
	m.next = s.now + s.cfg.nodeTimeout/20
	s.postAddr(m.addr, &meetMsg{Nonce: m.nonce, Claims: s.unformedClaims(), Form: s.cfg.form})
}

func (s *state) endMeeting(m *meeting) { delete(s.meetings, m.nonce) }

// meetingOf is the MEET that m answers, or nil.
func (s *state) meetingOf(m message) *meeting {
	if u, ok := m.(*updateMsg); ok && u.Met != 0 {
		return s.meetings[u.Met]
	}
	return nil
}

// unformedClaims is what this node's group has assigned while it is unformed.
func (s *state) unformedClaims() slotRuns {
	if !s.cluster.IsZero() {
		return slotRuns{}
	}
	return s.table.assigned()
}

// onMeet answers a MEET of somebody who has just been taken, or was known.
func (s *state) onMeet(p *peer, m *meetMsg) {
	p.formNumbers = m.Form
	s.takeClaims(p, &m.Claims)
	s.welcome(p, m.Nonce)
}

// takeClaims enters what another group has assigned, so that the next group
// that claims the same is refused.
func (s *state) takeClaims(p *peer, claims *slotRuns) {
	if s.cluster.IsZero() {
		claims.each(func(slot Slot, e slotEntry) { s.mergeSlot(p, slot, e, false) })
	}
}

// welcome shows a new member this node and what its group has assigned.
func (s *state) welcome(p *peer, nonce uint64) {
	claims := s.unformedClaims()
	msgs := s.slotUpdates(claims.slots(), ShardID{})
	if len(msgs) == 0 {
		msgs = append(msgs, s.newUpdate(func(*updateMsg) {}))
	}
	msgs[0].Met = nonce
	msgs[0].Peers = []peerEntry{s.self.peerEntry, p.peerEntry}
	for _, m := range msgs {
		s.post(p, m)
	}
}

func (s *state) onSeed(p *peer, m *seedMsg) {
	p.formNumbers = m.Form
	s.takeClaims(p, &m.Claims)
	s.welcome(p, 0)
}

// ---- each tick

func (s *state) membershipTick() {
	for _, nonce := range sortedKeys(s.meetings) {
		m := s.meetings[nonce]
		switch {
		case s.now >= m.until:
			s.endMeeting(m)
			s.event(Event{Kind: EventRefused, Addr: m.addr, Text: "nobody has answered"})
		case s.now >= m.next:
			s.sendMeet(m)
		}
	}
	s.seedTick()
	s.tellDifferences()
	for _, p := range s.peers.ordered {
		if p.invitedAt == never {
			continue
		}
		if s.now-p.invitedAt > meetLimit*s.cfg.nodeTimeout {
			p.invitedAt = never
			if p.State == present {
				s.forgetPeer(p) // it never came
			}
			continue
		}
		s.invite(p)
	}
	s.leavingTick()
	s.departTick()
	s.bumpTick()
	s.trimTombstones()
	s.trimShards()
}

// seed is an address that this node looks for its cluster at: a name, and the
// address that the node there has shown.
type seed struct {
	name string
	addr string
}

// setSeeds gives the addresses that this node looks for its cluster at.
func (s *state) setSeeds(names []string) {
	s.seeds = nil
	for _, n := range names {
		s.seeds = append(s.seeds, seed{n, n})
	}
}

// seedIs notes under which address the node at a seed is known. One that is starting
// shows none yet: it would never be among the members that live, and be dialed for good.
func (s *state) seedIs(name, addr string) {
	if addr == "" {
		return
	}
	for i := range s.seeds {
		if s.seeds[i].name == name {
			s.seeds[i].addr = addr
		}
	}
}

// seedTick dials the seeds that are no known live members. Of nodes that are
// known by hearsay alone a former by number has to hear that they are formers
// too.
func (s *state) seedTick() {
	if s.now < s.nextSeed {
		return
	}
	s.nextSeed = s.now + s.cfg.nodeTimeout/5
	if s.cluster.IsZero() && s.byNumber() {
		for _, p := range s.peers.ordered {
			if p != s.self && p.State == present && p.formNumbers == (formNumbers{}) {
				s.post(p, &seedMsg{Claims: s.unformedClaims(), Form: s.cfg.form})
			}
		}
	}
	for _, sd := range s.seeds {
		if sd.addr != s.cfg.addr && !s.livesAt(sd.addr) {
			s.postAddr(sd.name, &seedMsg{Claims: s.unformedClaims(), Form: s.cfg.form})
		}
	}
}

func (s *state) livesAt(addr string) bool {
	return slices.ContainsFunc(s.peers.ordered, func(p *peer) bool {
		return p.Addr == addr && p.State != forgotten && s.timeSince(p.heardAt) < s.cfg.nodeTimeout/2
	})
}

// ---- nodes that are configured unlike each other

// difference says in what p is configured unlike this node though it should be
// alike, and names both values; "" is in nothing. It is no reason to refuse p:
// every voter leases for its own NodeTimeout, which the leases carry, and
// formation by number counts none but its equals.
func (s *state) difference(p *peer) string {
	var parts []string
	differs := func(what string, theirs, ours any) {
		parts = append(parts, fmt.Sprintf("%s is %v there and %v here", what, theirs, ours))
	}
	if ours := milliseconds(s.cfg.nodeTimeout); p.timeout != 0 && p.timeout != ours {
		differs("NodeTimeout", time.Duration(p.timeout)*time.Millisecond, time.Duration(ours)*time.Millisecond)
	}
	if theirs, ours := p.formNumbers, s.cfg.form; theirs != ours && theirs != (formNumbers{}) && s.byNumber() {
		if theirs.Primaries != ours.Primaries {
			differs("Primaries", theirs.Primaries, ours.Primaries)
		}
		if theirs.Replicas != ours.Replicas {
			differs("Replicas", theirs.Replicas, ours.Replicas)
		}
		if theirs.Seeds != ours.Seeds && s.cluster.IsZero() { // a cluster that grows may have more of them
			parts = append(parts, "Seeds are others there than here")
		}
	}
	return strings.Join(parts, ", ")
}

// tellDifferences tells the application, once each.
func (s *state) tellDifferences() {
	for _, p := range s.peers.ordered {
		if p == s.self || p.State == forgotten {
			continue
		}
		d := s.difference(p)
		if d == p.toldDiffers {
			continue
		}
		p.toldDiffers, s.viewDirty = d, true
		if d != "" {
			s.event(Event{Kind: EventDiffers, Node: p.ID, Addr: p.Addr, Text: d})
		}
	}
}

const problemsMax = 8 // of a kind that a status names; it counts those beyond

// problems names what is wrong though all is served.
func (s *state) problems() []string { return append(s.differences(), s.unbacked()...) }

// unbacked names the shards that have lost replicas.
func (s *state) unbacked() []string {
	var ps []string
	more := 0
	for _, id := range s.table.order {
		switch lack := s.lackOf(id); {
		case lack == "":
		case len(ps) == problemsMax:
			more++
		default:
			ps = append(ps, fmt.Sprintf("shard %s: %s", id.short(), lack))
		}
	}
	if more > 0 {
		ps = append(ps, fmt.Sprintf("and %d more shards that lack replicas", more))
	}
	return ps
}

// differences names the members that are configured unlike this node.
func (s *state) differences() []string {
	var ps []string
	more := 0
	for _, p := range s.peers.ordered {
		switch {
		case p.State == forgotten || p.toldDiffers == "":
		case len(ps) == problemsMax:
			more++
		default:
			ps = append(ps, fmt.Sprintf("node %s at %s: %s", p.ID.short(), p.Addr, p.toldDiffers))
		}
	}
	if more > 0 {
		ps = append(ps, fmt.Sprintf("and %d more nodes that are configured unlike this one", more))
	}
	return ps
}

// ---- FORGET, leaving

// forget removes a node for good.
func (s *state) forget(now time.Duration, id uint64, node NodeID, force bool) output {
	s.begin(now)
	p := s.peers.get(node)
	switch {
	case node == s.id:
		s.reply(id, invalid("I tried hard but I can't forget myself..."))
	case p == nil:
		s.reply(id, invalid("Unknown node %s", node))
	case p.State == forgotten:
		s.replyOncePushed(id)
	case s.table.primary(p.Shard) == node && s.table.owned[p.Shard] > 0 && !force && !s.cluster.IsZero():
		s.reply(id, invalid("Node %s owns %d slots: move them first, or forget it by force", node, s.table.owned[p.Shard]))
	default:
		s.forgetPeer(p)
		s.replyOncePushed(id)
	}
	return s.end()
}

// forgetPeer writes a tombstone, or leaving for a voter: it stays a full member
// until somebody else votes for it.
func (s *state) forgetPeer(p *peer) {
	to := forgotten
	if !s.cluster.IsZero() && s.table.voters.has(p.ID) {
		to = leaving
	}
	if p.State >= to {
		return
	}
	s.setPeer(p, pushChange, func(e *peerEntry) { e.State, e.Version = to, e.Version+1 })
	s.event(Event{Kind: EventForgotten, Node: p.ID, Addr: p.Addr})
}

// leavingTick forgets the leaving nodes that vote no more, once the set without
// them can decide.
func (s *state) leavingTick() {
	if s.cluster.IsZero() || !s.newSetDecides() {
		return
	}
	for _, p := range s.peers.ordered {
		if p.State == leaving && !s.table.voters.has(p.ID) {
			s.setPeer(p, pushChange, func(e *peerEntry) { e.State, e.Version = forgotten, e.Version+1 })
			s.event(Event{Kind: EventForgotten, Node: p.ID, Addr: p.Addr})
		}
	}
}

// newSetActive reports whether a majority of the newest set of voters has shown
// that it votes.
func (s *state) newSetActive() bool {
	return s.majority(func(id NodeID) bool {
		if id == s.id {
			return s.active()
		}
		p := s.peers.get(id)
		return p != nil && p.active
	})
}

// newSetDecides reports whether a majority of it knows, for good, the members as
// this node does, and had answered no STOP by then. From then on no set that it
// decides has a voter in it that is leaving here: each STOP is answered by one of
// them, who says so.
func (s *state) newSetDecides() bool {
	return s.majority(func(id NodeID) bool {
		if id == s.id {
			return s.active() && s.vote.stop.isZero() && s.stateSave <= s.savedSeq
		}
		p := s.peers.get(id)
		return p != nil && p.active && !p.stopped && p.members == s.peers.sum
	})
}

// askVoters has the voters show their members at once, where they have not shown
// the same as this node's.
func (s *state) askVoters() {
	for _, v := range s.table.voters.Members {
		if p := s.peers.get(v.ID); p != nil && p != s.self && p.State != forgotten && p.members != s.peers.sum {
			s.beat(p, true)
		}
	}
}

func (s *state) selfStateChanged(was memberState) {
	switch {
	case s.self.State == forgotten:
		s.event(Event{Kind: EventForgotten, Node: s.id})
		s.stand = nil
		if s.lead != nil {
			s.stepDown()
		}
		s.hideMarks()
	case was == forgotten:
		s.event(Event{Kind: EventMember, Node: s.id})
		if s.leadsMarks() {
			s.showMarks()
		}
	}
}

func (s *state) tombstones() int {
	n := 0
	for _, p := range s.peers.ordered {
		if p.State == forgotten {
			n++
		}
	}
	return n
}

// trimTombstones drops the tombstones seen first, beyond the bound.
func (s *state) trimTombstones() {
	for n := s.tombstones(); n > tombstonesMax; n-- {
		var oldest *peer
		for _, p := range s.peers.ordered {
			if p.State == forgotten && (oldest == nil || p.firstSeen < oldest.firstSeen) {
				oldest = p
			}
		}
		s.peers.remove(oldest)
		s.mark(cellKey{kind: cellPeer, id: [20]byte(oldest.ID)})
	}
}

const shardlessLimit = 24 * time.Hour // a shard without member and slot is kept for so long

// trimShards drops the shards that have had neither a member nor a slot for a
// day: their ids are random and never come back.
func (s *state) trimShards() {
	if s.now < s.nextTrim {
		return
	}
	s.nextTrim = s.now + s.cfg.nodeTimeout
	for _, id := range slices.Clone(s.table.order) {
		if s.table.useful(id) {
			delete(s.shardless, id)
			continue
		}
		since, seen := s.shardless[id]
		if !seen {
			s.shardless[id] = s.now
			continue
		}
		if s.now-since > shardlessLimit {
			s.table.dropShard(id)
			delete(s.shardless, id)
			delete(s.backed, id)
			delete(s.vote.shards, id)
			delete(s.vote.leases, id)
			delete(s.used, id)
			delete(s.heard, id)
			for _, kind := range []cellKind{cellShard, cellVote, cellUsed} {
				s.mark(cellKey{kind: kind, id: id})
			}
		}
	}
}

// ---- RESET and leave

// departure is a RESET or a leave that waits until this node votes no more.
type departure struct {
	command uint64
	until   time.Duration
	reset   bool
	hard    bool
	gaveAt  time.Duration // when it last asked to give its slots to nobody
}

// reset makes this node unformed, with a new voter key; hard gives it a new id
// too. A primary with keys refuses, as in Redis; one with slots first gives them
// to nobody. keys says whether this node's store holds any.
func (s *state) reset(now time.Duration, id uint64, hard, keys bool) output {
	s.begin(now)
	switch {
	case keys && s.table.primary(s.self.Shard) == s.id:
		s.reply(id, invalid("CLUSTER RESET can't be called with master nodes containing keys"))
	case s.leave != nil:
		s.reply(id, tryAgain("this node is leaving already"))
	default:
		s.onceDecided(id, func() {
			s.leave = &departure{command: id, until: s.now + meetLimit*s.cfg.nodeTimeout, gaveAt: never, reset: true, hard: hard}
			s.departTick()
		})
	}
	return s.end()
}

// depart makes this node, which has no slots, leave its cluster.
func (s *state) depart(now time.Duration, id uint64) output {
	s.begin(now)
	switch {
	case s.ownsSlots():
		s.reply(id, invalid("this node owns %d slots: move them first", s.table.owned[s.self.Shard]))
	case s.leave != nil:
		s.reply(id, tryAgain("this node is leaving already"))
	default:
		s.leave = &departure{command: id, until: s.now + meetLimit*s.cfg.nodeTimeout, gaveAt: never}
		s.departTick()
	}
	return s.end()
}

// departTick goes on with a departure.
func (s *state) departTick() {
	d := s.leave
	if d == nil {
		return
	}
	alone := s.cluster.IsZero() || s.self.State == forgotten || s.onlyNode() && !s.tellsTheForgotten()
	switch {
	case !alone && s.now >= d.until:
		s.leave = nil
		s.reply(d.command, clusterDown("this node still votes: no majority has replaced it"))
	case !alone && s.ownsSlots():
		if s.timeSince(d.gaveAt) >= s.cfg.nodeTimeout {
			d.gaveAt = s.now
			s.startCommand(0, s.table.slotsOf(s.self.Shard), ShardID{})
		}
	case !alone && s.awaitsSlots():
		// What it has agreed to take is cancelled, or comes and is given away.
	case !alone && s.self.State == present:
		s.setPeer(s.self, pushChange, func(e *peerEntry) { e.State, e.Version = leaving, e.Version+1 })
	case !alone && (s.table.voters.has(s.id) || !s.newSetDecides()) && !mutated(mutResetEarly):
		// It still votes, or the set without it cannot decide yet.
		s.askVoters()
	case !alone && !d.reset && s.self.State != forgotten:
		// The others write forgotten; that this node hears of it ends the leave.
	case d.reset:
		s.leave = nil
		s.wipe(d.hard)
		s.reply(d.command, nil)
	default:
		s.leave = nil
		s.reply(d.command, nil)
	}
}

// tellsTheForgotten reports whether a node that has been forgotten was heard within
// a NodeTimeout, so that it may not know yet, and tells it: it would wait for the
// vote of this node, the last of its cluster, for good.
func (s *state) tellsTheForgotten() bool {
	telling := false
	for _, p := range s.peers.ordered {
		if p.State == forgotten && s.timeSince(p.heardAt) <= s.cfg.nodeTimeout {
			telling = true
			s.post(p, s.newUpdate(func(u *updateMsg) { u.Peers = []peerEntry{p.peerEntry} }))
		}
	}
	return telling
}

// awaitsSlots reports whether slots may still come to this node's shard.
func (s *state) awaitsSlots() bool {
	return len(s.stages) > 0 || slices.ContainsFunc(s.ops, func(op *operation) bool { return op.part.to == s.self.Shard })
}

// wipe makes this node unformed and alone.
func (s *state) wipe(hard bool) {
	s.abandon(clusterDown("this node has been reset meanwhile"))
	for _, p := range s.peers.ordered {
		s.mark(cellKey{kind: cellPeer, id: [20]byte(p.ID)})
	}
	s.dropTable()
	s.dropMarks()
	s.table.members = map[ShardID]int{}
	s.forgetVotes()
	s.change, s.form, s.lead, s.stand, s.knownRecord, s.shardRecord = nil, formation{}, nil, nil, nil, nil
	s.dropFailover("this node has been reset meanwhile")
	s.stages, s.gone, s.arrived, s.kept = map[uint64]*heldStage{}, map[Slot]goneSlot{}, nil, SlotSet{}
	s.back = SlotSet{}
	for id := range s.used {
		s.mark(cellKey{kind: cellUsed, id: id})
	}
	s.used, s.heard = map[ShardID]uint64{}, map[ShardID]uint64{}
	s.cluster = ClusterID{}
	s.peers = newPeerSet(&s.table, s.salt())
	s.table.resalt(s.salt())
	s.key, s.synced = s.cfg.random(), false
	if hard {
		fillRandom(s.id[:], s.cfg.random)
		s.epochHigh = 0
		s.mark(cellKey{kind: cellEpoch})
	}
	facts, silent := s.self.peerEntry, s.self.silent.Counter
	s.makeSelf()
	s.changeFacts(func(e *peerEntry) {
		e.Starts, e.Facts, e.Addr, e.ClientAddr, e.Hostname, e.Host = facts.Starts, facts.Facts+1, facts.Addr, facts.ClientAddr, facts.Hostname, facts.Host
		e.Store, e.NoFailover = s.newStore(), facts.NoFailover // its data is dropped
	})
	s.self.resetVolatile(s.now)
	s.self.heardAt, s.self.incarnation = s.now, s.cfg.incarnation
	if !hard && silent > 0 {
		// What it has said under the old key is not to be counted under the new.
		s.silent = nil
		s.peers.change(s.self, func() {
			s.self.silent = silentEntry{Voter: s.id, Starts: s.starts, Counter: silent + 1}
		})
	}
	s.identitySaved()
	s.tell(identityTell{})
	s.event(Event{Kind: EventReset, Node: s.id})
}
