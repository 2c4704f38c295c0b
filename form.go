package slotmesh

import (
	"fmt"
	"slices"
	"time"
)

// Formation. Unformed nodes that meet are one group: they gossip, show and
// serve slots by Redis's own rules, without votes. The group forms when its
// formers all show the same table: START of version 1 with a fresh cluster id,
// which all of them save. Formers are
//
//	by hand    the owners, once every slot has one
//	by number  all members, once Primaries x (1 + Replicas) of them live
//
// A former that has saved START changes nothing until it is decided, or shown
// dead by a former that never saved it.

const formCalm = 200 * time.Millisecond // that all formers have shown the same table for

// formation is what an unformed node keeps of the START that it has saved.
type formation struct {
	value   *startValue   // saved and not decided. Saved
	savedAt time.Duration // first
	queued  []queuedCommand
}

func (f *formation) holds() bool { return f.value != nil }

// queuedCommand changes slots, and waits for the decision.
type queuedCommand struct {
	id    uint64
	until time.Duration
	run   func()
}

func (s *state) byNumber() bool { return s.cfg.form != formNumbers{} }

// onceDecided runs a command that changes slots or roles: at once, or, where
// this node holds a START, when that is decided or dead.
func (s *state) onceDecided(id uint64, run func()) {
	switch {
	case !s.form.holds():
		run()
	case len(s.form.queued) >= commandsMax:
		s.reply(id, tryAgain("%d commands are under way, which is the limit", commandsMax))
	default:
		s.form.queued = append(s.form.queued, queuedCommand{id, s.now + s.cfg.nodeTimeout, run})
		s.wakeBy(s.now + s.cfg.nodeTimeout)
	}
}

// assignUnformed changes slots by Redis's own rule: at once, and told to all.
func (s *state) assignUnformed(id uint64, slots SlotSet, to ShardID) {
	s.onceDecided(id, func() {
		if !s.cluster.IsZero() {
			s.startCommand(id, slots, to)
			return
		}
		for slot := range slots.All() {
			if e := s.table.slots.at(slot); e.shard != to {
				s.setSlot(slot, slotEntry{to, e.move + 1}, pushChange)
			}
		}
		s.replyOncePushed(id)
	})
}

// runQueued carries out what has waited for the decision.
func (s *state) runQueued() {
	q := s.form.queued
	s.form.queued = nil
	for _, c := range q {
		c.run()
	}
}

func (s *state) failQueued(err *commandError) {
	for _, c := range s.form.queued {
		s.reply(c.id, err)
	}
	s.form.queued = nil
}

func (s *state) formationTick() {
	s.form.queued = slices.DeleteFunc(s.form.queued, func(c queuedCommand) bool {
		if s.now < c.until {
			s.wakeBy(c.until)
			return false
		}
		s.reply(c.id, clusterDown("forming"))
		return true
	})
	if s.form.holds() || s.change != nil || !s.vote.stop.isZero() {
		return // changeTick goes on
	}
	s.proposeForming()
}

// proposeForming begins to form if this node is the one to, and all agree.
func (s *state) proposeForming() {
	formers := s.formers()
	if len(formers) > 0 && formers[0].ID == s.id && s.formersAgree(formers) {
		s.beginChange(formers, nil, true)
	}
}

// formAgain goes on with a formation whose proposer has fallen silent.
func (s *state) formAgain() {
	if f := &s.form; f.holds() {
		// One former that never saved this START shows it dead.
		for _, m := range f.value.Formers {
			s.postTo(m.ID, &askStartMsg{ID: f.value.ID, Ballot: s.vote.startBallot})
		}
		if formers := s.formers(); len(formers) > 0 {
			s.beginChange(formers, nil, true)
		}
		return
	}
	s.proposeForming()
}

// formers are all those who must save START, ascending; none while the group is
// not complete.
func (s *state) formers() []member {
	var set []member
	if s.byNumber() {
		for _, p := range s.peers.ordered {
			if p.State == present && s.alive(p) && (p == s.self || p.formNumbers == s.cfg.form) {
				set = append(set, member{p.ID, p.Key})
			}
		}
		need := int(s.cfg.form.Primaries) * (1 + int(s.cfg.form.Replicas))
		if mutated(mutFormEarly) {
			need = int(s.cfg.form.Primaries)
		}
		if len(set) < need {
			return nil
		}
		return set
	}
	if s.table.unassigned > 0 {
		return nil
	}
	for id := range s.table.owned {
		p := s.peers.get(s.table.primary(id))
		if p == nil || p.State != present {
			return nil
		}
		set = append(set, member{p.ID, p.Key})
	}
	sortMembers(set)
	return slices.Compact(set) // a node that was reset may lead two shards here
}

// unequalFormers says that nodes which were to form by number are not counted, or
// nothing.
func (s *state) unequalFormers() string {
	n := 0
	for _, p := range s.peers.ordered {
		if p != s.self && p.State == present && s.alive(p) && p.formNumbers != (formNumbers{}) && p.formNumbers != s.cfg.form {
			n++
		}
	}
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("; %d that are here have others", n)
}

// formersAgree reports whether every former has shown this node's own table for
// a while.
func (s *state) formersAgree(formers []member) bool {
	for _, m := range formers {
		p := s.peers.get(m.ID)
		if p == s.self {
			continue
		}
		if !s.alive(p) || s.timeSince(p.beatAt) > s.cfg.nodeTimeout/2 || p.sameSince == never {
			return false
		}
		if wait := p.sameSince + formCalm; s.now < wait {
			s.wakeBy(wait)
			return false
		}
	}
	return true
}

// formValue is the START to form with. One that was seen is dead if one of its
// formers has answered without it; one that cannot be shown dead is proposed
// again with its cluster id and voters, but the table and formers of now.
func (s *state) formValue(c *change, seen *startValue) *startValue {
	if seen != nil {
		for _, m := range seen.Formers {
			a := c.answers[m.ID]
			if a != nil && (len(a.Starts) == 0 || a.Starts[0].ID != seen.ID) {
				seen = nil
				break
			}
		}
	}
	v := s.newFormValue(c.old)
	if seen == nil {
		return v
	}
	if seen.ByNumber {
		again := *seen
		again.Formers = c.old
		return &again
	}
	v.ID, v.Cluster, v.Members = seen.ID, seen.Cluster, seen.Members
	return v
}

// newFormValue is START of version 1: a fresh cluster id and this node's table.
func (s *state) newFormValue(formers []member) *startValue {
	v := &startValue{ID: s.cfg.random() | 1, Version: voterVersion{Number: 1}, Formers: formers,
		ByNumber: s.byNumber(), Table: s.table.sum, Peers: s.peers.sum}
	fillRandom(v.Cluster[:], s.cfg.random)
	for _, p := range s.peers.ordered {
		v.Entries = append(v.Entries, p.peerEntry)
	}
	if v.ByNumber {
		s.assignByNumber(v)
	} else {
		for i := range NumSlots {
			v.Slots.add(Slot(i), s.table.slots.at(Slot(i)))
		}
		for _, p := range s.peers.ordered {
			if e, ok := s.table.shards[p.Shard]; ok && p.State == present && e.Node == p.ID {
				v.Shards = append(v.Shards, shardRow{p.Shard, e})
			}
		}
	}
	v.Members = s.wantedOf(nil)
	for _, row := range v.Shards {
		v.Votes.Promises = append(v.Votes.Promises, promiseRow{Shard: row.ID, Epoch: row.Epoch})
		m := incarnate{Node: row.Epoch.Node}
		if p := s.peers.get(m.Node); p != nil {
			m.Incarnation = p.Store
		}
		v.Votes.Records = append(v.Votes.Records, record{Shard: row.ID, Epoch: row.Epoch, InSync: []incarnate{m}, Strict: s.strict()})
	}
	v.Slots.each(func(slot Slot, e slotEntry) { v.Votes.Accepted.add(slot, accepted{shard: e.shard, move: e.move}) })
	return v
}

// assignByNumber gives equal ranges of slots to Primaries nodes, on as many
// hosts as there are. What an operator has given to a former stays there, and
// whatever it has written to.
func (s *state) assignByNumber(v *startValue) {
	type candidate struct {
		p    *peer
		rank int // how many of its host come before
	}
	var cs []candidate
	hosts := map[string]int{}
	for _, m := range v.Formers {
		p := s.peers.get(m.ID)
		if s.followsFormer(p, v.Formers) {
			continue // an operator has said whom it follows
		}
		cs = append(cs, candidate{p, hosts[p.Host]})
		hosts[p.Host]++
	}
	slices.SortStableFunc(cs, func(a, b candidate) int { return a.rank - b.rank })
	former := map[ShardID]bool{}
	cs = slices.DeleteFunc(cs, func(c candidate) bool {
		if former[c.p.Shard] {
			return true // both followed one who is not there: it follows the first
		}
		former[c.p.Shard] = true
		return false
	})
	for _, c := range cs {
		v.Shards = append(v.Shards, shardRow{c.p.Shard, Epoch{Node: c.p.ID}})
	}
	s.numberByNumber(v.Shards)
	n := min(int(s.cfg.form.Primaries), len(cs))
	for i, c := range cs[:n] {
		for slot := i * NumSlots / n; slot < (i+1)*NumSlots/n; slot++ {
			e := s.table.slots.at(Slot(slot))
			if !former[e.shard] {
				e = slotEntry{c.p.Shard, e.move + 1}
			}
			v.Slots.add(Slot(slot), e)
		}
	}
}

// numberByNumber gives each shard of a START an epoch that is no lower than the one it
// has: its log is of that epoch, and members have promised to take nothing older. Those
// without one get the lowest numbers that are free.
func (s *state) numberByNumber(rows []shardRow) {
	taken := map[uint64]bool{}
	for i := range rows {
		e := &rows[i].Epoch
		was := s.table.shards[rows[i].ID]
		if mutated(mutFormLow) {
			continue
		}
		if e.Number = was.Number; e.Number > 0 && was.Node != e.Node {
			e.Number++
		}
		taken[e.Number] = true
	}
	next := uint64(1)
	for i := range rows {
		if rows[i].Epoch.Number > 0 {
			continue
		}
		for taken[next] {
			next++
		}
		rows[i].Epoch.Number = next
		next++
	}
}

// followsFormer reports whether a former's primary is a former, and of that shard yet.
// Operators may have told formers to follow each other in a circle.
func (s *state) followsFormer(p *peer, formers []member) bool {
	q := s.peers.get(s.table.primary(p.Shard))
	return q != nil && q != p && q.Shard == p.Shard && slices.Contains(formers, member{q.ID, q.Key})
}

// keepsOwn reports whether a START leaves this node what it has: the slots of its shard,
// and an epoch no lower than its own. The proposer may not have heard of them.
func (s *state) keepsOwn(v *startValue) bool {
	i := slices.IndexFunc(v.Shards, func(r shardRow) bool { return r.ID == s.self.Shard })
	if e := s.table.shards[s.self.Shard]; e.Number > 0 && (i < 0 || v.Shards[i].Epoch.less(e)) && !mutated(mutFormLow) {
		return false
	}
	own := s.table.slotsOf(s.self.Shard)
	v.Slots.each(func(slot Slot, e slotEntry) {
		if e.shard == s.self.Shard {
			own.Remove(slot)
		}
	})
	return own.Empty()
}

// onFormStart saves START of a formation. By hand a former does so only if it
// shows the very same table, by number if it keeps what it has.
func (s *state) onFormStart(p *peer, m *startMsg) {
	v := &m.Value
	if !s.cluster.IsZero() {
		if s.cluster == v.Cluster {
			s.takeInForce(v)
			s.post(p, s.newUpdate(func(u *updateMsg) { u.Voters = []voterSet{s.table.voters} }))
		}
		return
	}
	former := slices.Contains(v.Formers, member{s.id, s.key})
	same := v.ByNumber && s.keepsOwn(v) || v.Table == s.table.sum && v.Peers == s.peers.sum
	if !former || !same || m.Ballot.less(s.vote.stop) || !s.believableBallot(p, m.Ballot) {
		return
	}
	if !s.form.holds() || s.form.value.ID != v.ID {
		s.form.savedAt = s.now
	}
	if !s.form.holds() || s.form.value != v {
		saved := *v
		s.form.value = &saved
	}
	if s.vote.stop != m.Ballot || s.vote.startBallot != m.Ballot {
		s.stopWaits()
	}
	s.vote.stop, s.vote.startBallot = m.Ballot, m.Ballot
	s.mark(cellKey{kind: cellStart})
	s.mark(cellKey{kind: cellStop})
	s.reassess = true
	s.wakeBy(s.form.savedAt + s.cfg.nodeTimeout*9/10)
	s.post(p, &startedMsg{m.Voters, m.Ballot, v.ID})
}

func (s *state) onAskStart(p *peer, m *askStartMsg) {
	if !s.cluster.IsZero() || s.form.holds() && s.form.value.ID == m.ID || !s.believableBallot(p, m.Ballot) {
		return
	}
	if b := (ballot{Number: m.Ballot.Number + 1}); s.vote.stop.less(b) {
		s.vote.stop = b
		s.mark(cellKey{kind: cellStop})
		s.stopWaits()
	}
	s.post(p, &noStartMsg{m.ID})
}

// onNoStart: a former does not hold the START, and never will. It is dead.
func (s *state) onNoStart(p *peer, m *noStartMsg) {
	f := &s.form
	if !s.cluster.IsZero() || !f.holds() || f.value.ID != m.ID ||
		!slices.Contains(f.value.Formers, member{p.ID, p.Key}) {
		return // one that was reset since may have saved it before
	}
	s.startDead()
}

// formDeadBy reports whether the START that this node holds can never be
// decided, for one of its formers lives in another cluster, as the member that
// it was.
func (s *state) formDeadBy(from *sender) bool {
	return slices.Contains(s.form.value.Formers, member{from.ID, from.Key})
}

func (s *state) startDead() {
	s.form.value = nil
	s.vote.startBallot = ballot{}
	s.mark(cellKey{kind: cellStart})
	s.reassess = true
	s.runQueued()
}

// formed is called at the proposer when all formers have saved START: the
// cluster is formed.
func (s *state) formed(v *startValue) {
	savedAt := s.form.savedAt
	queued := s.form.queued
	s.form.queued = nil
	s.abandon(nil) // what the group has been told by its own rules is not to be told again
	s.cluster = v.Cluster
	s.forgetVotes()
	s.dropTable()
	s.takeFormedTable(v)
	s.table.resalt(s.salt())
	s.peers.resalt(s.salt())
	s.vote.startValue = v
	s.setVoters(v.voters(), pushNothing)
	s.leadAsFormed(v, savedAt)
	s.form = formation{queued: queued}
	s.mark(cellKey{kind: cellStart})
	s.identitySaved()
	s.tell(identityTell{})
	s.event(Event{Kind: EventFormed, Node: s.id})
	for _, p := range s.peers.ordered {
		if p != s.self && p.State == present {
			s.invite(p)
			p.nextBeat = s.now
		}
	}
	s.runQueued()
	s.reassess, s.viewDirty = true, true
}

// takeFormedTable enters the table of START.
func (s *state) takeFormedTable(v *startValue) {
	s.vote.startValue = v
	for i := range v.Entries {
		s.mergePeer(s.self, &v.Entries[i])
	}
	for _, row := range v.Shards {
		s.setShard(row.ID, row.Epoch, pushNothing)
	}
	v.Slots.each(func(slot Slot, e slotEntry) { s.setSlot(slot, e, pushNothing) })
	if _, ok := s.table.shards[s.self.Shard]; !ok {
		s.setShard(s.self.Shard, Epoch{Node: s.id}, pushNothing)
	}
}

// leadAsFormed lets a primary that START names serve on: its first lease is the
// START itself, counted from when it first saved it. One that has restarted
// since has to win its shard like anybody else.
func (s *state) leadAsFormed(v *startValue, savedAt time.Duration) {
	i := slices.IndexFunc(v.Shards, func(r shardRow) bool { return r.ID == s.self.Shard && r.Epoch.Node == s.id })
	if savedAt == never || i < 0 || s.table.shards[s.self.Shard] != v.Shards[i].Epoch {
		return
	}
	e := v.Shards[i].Epoch
	l := &leadership{epoch: e, opened: true, void: s.table.voters.Version.Forced > 0, openedAt: s.now, claimedFrom: s.now, leases: map[NodeID]time.Duration{},
		inSync: []incarnate{s.member()}, leaseEnd: savedAt + s.cfg.nodeTimeout*9/10}
	if mutated(mutFormNoLease) {
		l.leaseEnd = never
	}
	l.mine = s.table.slotsOf(s.self.Shard)
	var opened moveRuns
	for slot := range l.mine.All() {
		opened.add(slot, s.table.slots.at(slot).move)
	}
	l.last = &recordMsg{Sender: s.self.Store, Opened: opened,
		Record: record{Shard: s.self.Shard, Epoch: e, InSync: l.inSync, Strict: s.strict()}}
	s.promise = e
	s.lead = l
	s.holdsCopy = true
	// What ran before may be acknowledged under the new lease: no slot has
	// changed since START was saved.
	s.reignEpoch, s.reignCluster = e, s.cluster
}
