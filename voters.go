package slotmesh

import (
	"slices"
	"time"
)

// The voters are an explicit, versioned set. It is changed by a majority of the
// old set, in three steps, so that a change of any size is safe:
//
//	STOP   the old voters grant, accept and lease nothing more under the version
//	       and say all that they keep
//	copy   START holds the highest of it, per entry
//	START  decided once a majority of the old set has saved it
//
// A member of the new set votes only while it holds the START whose id the table
// names.

const (
	maxVotersDefault = 9
	maxVotersLimit   = 63
)

// change is a change of the voters that this node proposes, or the formation of
// a cluster, in which all formers take the place of the majority.
type change struct {
	ballot  ballot
	version voterVersion // that it ends
	old     []member     // whom to stop; at formation, the formers
	wanted  []member
	forming bool
	answers map[NodeID]*stoppedMsg
	value   *startValue // nil while stopping
	started map[NodeID]bool
	began   time.Duration
	again   time.Duration
}

// decidedBy reports whether enough of the old set is in the answers.
func (c *change) decidedBy(has func(NodeID) bool) bool {
	n := 0
	for _, m := range c.old {
		if has(m.ID) {
			n++
		}
	}
	if c.forming {
		return n == len(c.old)
	}
	return n > len(c.old)/2
}

// beginChange proposes another set of voters under a new ballot.
func (s *state) beginChange(old, wanted []member, forming bool) {
	n := max(s.vote.stop.Number, s.vote.startBallot.Number) + 1
	if s.change != nil {
		n = max(n, s.change.ballot.Number+1)
	}
	s.change = &change{ballot: ballot{n, s.id}, version: s.table.voters.Version, old: old, wanted: wanted, forming: forming,
		answers: map[NodeID]*stoppedMsg{}, started: map[NodeID]bool{}, began: s.now}
	s.sendChange(s.change)
}

// sendChange asks whoever has not answered.
func (s *state) sendChange(c *change) {
	c.again = s.now + s.cfg.nodeTimeout/20
	s.wakeBy(c.again)
	if c.value == nil {
		for _, m := range c.old {
			if c.answers[m.ID] == nil {
				s.postTo(m.ID, &stopMsg{c.version, c.ballot, c.wanted})
			}
		}
		return
	}
	m := &startMsg{Voters: c.version, Ballot: c.ballot, Value: *c.value}
	for _, id := range membersOf(c.old, c.value.Members) {
		if !c.started[id] {
			s.postTo(id, m)
		}
	}
}

// membersOf is the union of sets, ascending.
func membersOf(sets ...[]member) []NodeID {
	var ids []NodeID
	for _, set := range sets {
		for _, m := range set {
			ids = append(ids, m.ID)
		}
	}
	slices.SortFunc(ids, NodeID.compare)
	return slices.Compact(ids)
}

func (s *state) changeTick() {
	c := s.change
	switch {
	case c == nil:
		s.takeOverChange()
	case c.version != s.table.voters.Version:
		s.change = nil
	case s.now-c.began > 5*s.cfg.nodeTimeout:
		s.change = nil // begin again with what is known now
		s.vote.stoppedAt = s.now
	case s.now >= c.again:
		s.sendChange(c)
	default:
		s.wakeBy(c.again)
	}
	s.pullStart()
}

// takeOverChange begins again a change whose proposer has fallen silent: a voter
// that was stopped for long enough starts again, under a higher ballot.
func (s *state) takeOverChange() {
	v := &s.vote
	if v.stop.isZero() {
		return
	}
	if at := v.stoppedAt + s.cfg.nodeTimeout/4 + v.stopWait; s.now < at {
		s.wakeBy(at)
		return
	}
	if s.cluster.IsZero() && s.proposerLives() {
		return // all formers are needed: to outbid one who lives gains nothing
	}
	s.stopWaits()
	if s.cluster.IsZero() {
		s.formAgain()
		return
	}
	if s.active() {
		s.beginChange(s.table.voters.Members, s.wantedVoters(), false)
	}
}

// proposerLives reports whether whoever stopped this former is there and has
// had no time to fail.
func (s *state) proposerLives() bool {
	p := s.peers.get(s.vote.stop.Node)
	return p != nil && p != s.self && s.alive(p) && s.now-s.vote.stoppedAt < 4*s.cfg.nodeTimeout
}

// stopWaits draws how long this voter stays stopped before it acts itself.
func (s *state) stopWaits() {
	s.vote.stoppedAt, s.vote.stopWait = s.now, s.jitter(s.cfg.nodeTimeout/4)
}

// ---- the voter's side

func (s *state) onStop(p *peer, m *stopMsg) {
	v := &s.vote
	if m.Ballot.Node != p.ID || !s.believableBallot(p, m.Ballot) {
		return
	}
	if m.Voters != s.table.voters.Version {
		if m.Voters.less(s.table.voters.Version) {
			s.post(p, s.newUpdate(func(u *updateMsg) { u.Voters = []voterSet{s.table.voters} }))
		}
		return
	}
	if !s.cluster.IsZero() && !s.active() || m.Ballot.less(v.stop) {
		return
	}
	if v.stop != m.Ballot {
		v.stop = m.Ballot
		s.mark(cellKey{kind: cellStop})
		s.stopWaits()
		if c := s.change; c != nil && c.ballot.less(m.Ballot) {
			s.change = nil
		}
		s.reassess = true // a sole voter leases itself no more
	}
	a := &stoppedMsg{Voters: m.Voters, Ballot: m.Ballot, Votes: s.allVotes(), Left: s.leftOf(m.Wanted)}
	if st := s.savedStart(); st != nil {
		a.Starts, a.StartBallot = []startValue{*st}, v.startBallot
	}
	s.post(p, a)
}

// leftOf are those of a set that leave, or are members no more, as far as this
// node knows.
func (s *state) leftOf(set []member) []peerEntry {
	var left []peerEntry
	for _, m := range set {
		if p := s.peers.get(m.ID); p != nil && (p.Key != m.Key || p.State != present) {
			left = append(left, p.peerEntry)
		}
	}
	return left
}

// savedStart is the START that this node has saved and that is not decided yet.
func (s *state) savedStart() *startValue {
	if s.cluster.IsZero() {
		return s.form.value
	}
	return s.vote.startValue
}

func (s *state) onStopped(p *peer, m *stoppedMsg) {
	c := s.change
	if c == nil || c.ballot != m.Ballot || c.value != nil || m.Voters != c.version || s.table.voters.Version != c.version {
		return
	}
	if !slices.ContainsFunc(c.old, func(o member) bool { return o.ID == p.ID && o.Key == p.Key }) {
		return
	}
	if !s.believableVotes(p, &m.Votes) {
		return
	}
	for i := range m.Left {
		s.mergePeer(p, &m.Left[i])
	}
	c.answers[p.ID] = m
	if !c.decidedBy(func(id NodeID) bool { return c.answers[id] != nil }) {
		return
	}
	if !c.forming && len(s.leftOf(c.wanted)) > 0 {
		// The old voters know of one who does not stay. Each time that is another one,
		// so that it ends.
		if wanted := s.wantedVoters(); len(wanted) > 0 && !sameMembers(wanted, c.wanted) {
			s.beginChange(c.old, wanted, false)
			return
		}
	}
	c.value = s.valueFor(c)
	if c.value != nil {
		s.sendChange(c)
	}
}

// valueFor is what the change decides: the START of the highest ballot that
// anybody has saved, or else a new one with all that the old voters keep.
func (s *state) valueFor(c *change) *startValue {
	var seen *startValue
	var under ballot
	for _, m := range c.old {
		a := c.answers[m.ID]
		if a != nil && len(a.Starts) > 0 && (seen == nil || under.less(a.StartBallot)) {
			seen, under = &a.Starts[0], a.StartBallot
		}
	}
	if c.forming {
		return s.formValue(c, seen)
	}
	if seen != nil {
		return seen
	}
	v := &startValue{ID: s.cfg.random() | 1, Cluster: s.cluster, Members: c.wanted,
		Version: voterVersion{c.version.Forced, c.version.Number + 1, c.version.Proposer}}
	if mutated(mutStartBare) {
		return v
	}
	var all []*votes
	for _, m := range c.old {
		if a := c.answers[m.ID]; a != nil {
			all = append(all, &a.Votes)
		}
	}
	v.Votes = mergedVotes(all)
	return v
}

// mergedVotes is the highest of all, per entry.
func mergedVotes(all []*votes) votes {
	var m state
	m.vote.init()
	m.used, m.heard, m.dirty = map[ShardID]uint64{}, map[ShardID]uint64{}, map[cellKey]struct{}{}
	for _, v := range all {
		m.mergeVotes(v)
	}
	return m.allVotes()
}

func (s *state) onStart(p *peer, m *startMsg) {
	v := &m.Value
	switch {
	case v.forms():
		s.onFormStart(p, m)
		return
	case s.cluster != v.Cluster || !s.believableBallot(p, m.Ballot) || !s.believableVoters(p, v.Version) || !s.believableVotes(p, &v.Votes):
		return
	case v.Version.Forced > s.table.voters.Version.Forced && v.Version.Proposer == p.ID && m.Ballot.isZero(): // no majority decides it
		s.takeForced(v)
		return
	case v.Version == s.table.voters.Version:
		s.takeInForce(v)
		s.post(p, s.newUpdate(func(u *updateMsg) { u.Voters = []voterSet{s.table.voters} }))
		return
	case m.Pull:
		return
	case v.Version.less(s.table.voters.Version):
		s.post(p, s.newUpdate(func(u *updateMsg) { u.Voters = []voterSet{s.table.voters} }))
		return
	}
	s.saveStart(p, m)
}

// saveStart keeps a START of a version to come. Only a voter of the old set
// that is active under it answers and is counted.
func (s *state) saveStart(p *peer, m *startMsg) {
	sv := &s.vote
	v := m.Value
	counted := m.Voters == s.table.voters.Version && s.active()
	if counted && m.Ballot.less(sv.stop) {
		return
	}
	inactive := mutated(mutCountInactive) && !counted && s.isVoter() && m.Voters == s.table.voters.Version
	if have := sv.startValue; have != nil && !inactive {
		// One of a later version that is only kept here, others hold who have saved it.
		if v.Version.less(have.Version) && !counted || v.Version == have.Version && m.Ballot.less(sv.startBallot) {
			return
		}
	}
	if counted && sv.stop != m.Ballot {
		sv.stop = m.Ballot
		s.mark(cellKey{kind: cellStop})
		s.stopWaits()
	}
	if sv.startValue == nil || sv.startValue.ID != v.ID || sv.startBallot != m.Ballot {
		sv.startValue, sv.startBallot = &v, m.Ballot
		s.mark(cellKey{kind: cellStart})
	}
	if mutated(mutStartSavedVotes) {
		s.setVoters(v.voters(), pushNothing)
	}
	if counted || inactive {
		s.post(p, &startedMsg{m.Voters, m.Ballot, v.ID})
	}
}

func (s *state) onStarted(p *peer, m *startedMsg) {
	c := s.change
	if c == nil || c.value == nil || c.ballot != m.Ballot || c.value.ID != m.ID || s.table.voters.Version != c.version {
		return
	}
	if !slices.ContainsFunc(c.old, func(o member) bool { return o.ID == p.ID && o.Key == p.Key }) {
		return
	}
	c.started[p.ID] = true
	if !c.decidedBy(func(id NodeID) bool { return c.started[id] }) {
		return
	}
	s.change = nil
	if c.forming {
		s.formed(c.value)
		return
	}
	s.vote.startValue = c.value // to hand out, also where this node is of neither set
	s.setVoters(c.value.voters(), pushChange)
}

// setVoters puts a newer set of voters in force.
func (s *state) setVoters(v voterSet, mode pushMode) {
	v.Members = slices.Clone(v.Members)
	if was := s.table.voters.Version; v.Version.Forced > was.Forced || v.Version.Proposer != was.Proposer {
		s.standAnew()
	}
	s.table.setVoters(v)
	s.mark(cellKey{kind: cellVoters})
	if mode == pushChange {
		s.pending.voters = true
	}
	s.event(Event{Kind: EventVoters, Node: s.id, Number: v.Version.Number})
	sv := &s.vote
	s.votersAt, s.wantedAt, s.change = s.now, never, nil
	if !sv.stop.isZero() {
		sv.stop = ballot{}
		s.mark(cellKey{kind: cellStop})
	}
	for _, p := range s.peers.ordered {
		p.active = false // what it has said is of the set before
	}
	if l := s.lead; l != nil {
		l.leases = map[NodeID]time.Duration{} // leaseEnd stays until it runs out
	}
	saved := sv.startValue
	if saved != nil && !v.Version.less(saved.Version) {
		sv.startValue, sv.startBallot = nil, ballot{}
		s.mark(cellKey{kind: cellStart})
	}
	if saved != nil {
		s.takeInForce(saved)
	}
	s.reassess, s.viewDirty = true, true
	s.wakeBy(s.now)
}

// takeInForce keeps the START of the version in force: to vote under it, and to
// hand it out. A START of the same version but another id was never decided.
func (s *state) takeInForce(v *startValue) {
	sv := &s.vote
	if v.Version != s.table.voters.Version || v.ID != s.table.voters.ID && !mutated(mutStartOtherID) {
		return
	}
	if sv.current != nil && sv.current.ID == s.table.voters.ID {
		return
	}
	sv.current = v
	s.mark(cellKey{kind: cellCurrent})
	if s.isVoter() {
		s.mergeVotes(&v.Votes)
		sv.activeAt = s.now
		sv.activeSave = s.saveSeq + 1
	}
}

// pullStart asks every peer for the START in force, if this voter lacks it.
func (s *state) pullStart() {
	if s.cluster.IsZero() || !s.isVoter() || s.active() || s.now < s.nextPull || s.table.voters.ID == 0 {
		return
	}
	s.nextPull = s.now + s.cfg.nodeTimeout/20
	s.wakeBy(s.nextPull)
	s.spread(&getStartMsg{s.table.voters.ID})
}

func (s *state) onGetStart(p *peer, m *getStartMsg) {
	if c := s.vote.current; c != nil && c.ID == m.ID && c.ID == s.table.voters.ID && !mutated(mutNoHandOut) {
		s.post(p, &startMsg{Voters: c.Version, Value: *c, Pull: true})
	}
}

// forgetVotes makes this node keep nothing as a voter.
func (s *state) forgetVotes() {
	v := &s.vote
	for id := range v.shards {
		s.mark(cellKey{kind: cellVote, id: id})
	}
	for i := range numPages {
		s.mark(cellKey{kind: cellAccepted, page: uint8(i)})
		s.mark(cellKey{kind: cellOpened, page: uint8(i)})
	}
	for _, k := range []cellKind{cellLease, cellStop, cellStart, cellCurrent} {
		s.mark(cellKey{kind: k})
	}
	started := v.startedAt
	*v = voterState{startedAt: started, activeAt: s.now}
	v.init()
}

// ---- who should vote

// votersTick changes the voters where they are not the wanted ones for a
// NodeTimeout. The smallest living voter sees to it, when the cluster is calm:
// a change of voters stops votes and must not fall into a failover.
func (s *state) votersTick() {
	if !s.active() || !s.vote.stop.isZero() || s.change != nil || !s.smallestVoter() {
		return
	}
	nt := s.cfg.nodeTimeout
	wanted := s.wantedVoters()
	if sameMembers(wanted, s.table.voters.Members) || len(wanted) == 0 {
		s.wantedAt = never
		return
	}
	if s.wantedAt == never {
		s.wantedAt = s.now
	}
	waited := s.now - s.wantedAt
	switch {
	case waited < nt:
		s.wakeBy(s.wantedAt + nt)
	case !s.majorityHeard():
	case s.leasedAll() || waited >= 2*nt:
		s.wantedAt = never
		s.beginChange(s.table.voters.Members, wanted, false)
	}
}

func (s *state) smallestVoter() bool {
	for _, v := range s.table.voters.Members {
		if s.canVoteID(v.ID) {
			return v.ID == s.id
		}
	}
	return false
}

// leasedAll reports whether this voter has lately leased every shard with slots:
// no failover is under way. A lease counts from the claim, which is answered up to
// NodeTimeout/3 later, and the next one comes as much later again.
func (s *state) leasedAll() bool {
	for _, id := range s.table.order {
		if s.table.owned[id] == 0 {
			continue
		}
		l := s.vote.leases[id][s.table.primary(id)]
		claimed := l.until - s.cfg.nodeTimeout
		if s.now-claimed > s.cfg.nodeTimeout*3/4 {
			return false
		}
	}
	return true
}

// wantedVoters is who should vote: one node per host, an odd number, at most
// nine, and votes stay where they are. A voter that is not alive, or whose disk
// hangs, leaves only when somebody replaces it, or two together.
func (s *state) wantedVoters() []member {
	return s.wantedOf(s.table.voters.Members)
}

func (s *state) wantedOf(now []member) []member {
	w := wanting{s: s, hosts: map[string]bool{}}
	var dead []*peer
	for _, m := range now {
		p := s.peers.get(m.ID)
		switch {
		case p == nil || p.Key != m.Key || p.State != present:
		case s.canVote(p):
			w.take(p)
		default:
			dead = append(dead, p)
		}
	}
	if mutated(mutVotersFollow) {
		w = wanting{s: s, hosts: map[string]bool{}}
	}
	for _, owners := range []bool{true, false} {
		for _, p := range s.peers.ordered {
			if p.State == present && s.canVote(p) && s.leadsSlots(p) == owners {
				w.take(p)
			}
		}
	}
	return w.odd(now, dead)
}

// leadsSlots reports whether p is the primary of a shard with slots.
func (s *state) leadsSlots(p *peer) bool {
	return s.table.primary(p.Shard) == p.ID && s.table.owned[p.Shard] > 0
}

// votersAreOwners is the bug that the explicit set of voters does away with: who
// votes is whoever owns slots in this node's eyes.
func (s *state) votersAreOwners() {
	v := s.table.voters
	if v.Members = nil; s.cluster.IsZero() || v.ID == 0 {
		return
	}
	for _, p := range s.peers.ordered {
		if s.leadsSlots(p) {
			v.Members = append(v.Members, member{p.ID, p.Key})
		}
	}
	s.table.setVoters(v)
}

type wanting struct {
	s     *state
	list  []member
	hosts map[string]bool
}

// take adds p if its host has no vote yet and there is room.
func (w *wanting) take(p *peer) bool {
	if w.hosts[p.Host] || len(w.list) >= w.s.cfg.maxVoters {
		return false
	}
	w.hosts[p.Host] = true
	w.list = append(w.list, member{p.ID, p.Key})
	return true
}

// odd makes the number of voters odd. The list holds those alive, voters of now
// first and newcomers last.
func (w *wanting) odd(now []member, dead []*peer) []member {
	live := len(w.list)
	switch {
	case live >= 3 && live%2 == 1:
	case live >= 4:
		if !w.takeOne(dead) {
			w.list = w.list[:live-1]
		}
	default:
		// Fewer than three: dead ones stay up to three, for leaving out a dead
		// one of three would let two decide.
		if len(now) == 1 && live == 0 {
			return now
		}
		for _, p := range dead {
			if len(w.list) < 3 && len(now) >= 3 {
				w.take(p)
			}
		}
		switch len(w.list) {
		case 0: // everybody is leaving: a change that is under way ends with those that vote now
			return now
		case 2:
			w.list = w.list[:1]
		}
	}
	sortMembers(w.list)
	return w.list
}

func (w *wanting) takeOne(dead []*peer) bool {
	return slices.ContainsFunc(dead, w.take)
}

// ---- an operator imposes the voters

// forcing collects what every voter in reach keeps, before voters are imposed.
type forcing struct {
	command uint64
	request uint64
	set     []member
	until   time.Duration
	answers map[NodeID]*recordsMsg
}

// forceVoters imposes a set of voters without a majority: the one exit when a
// majority is gone for good. Its name says what may be lost.
func (s *state) forceVoters(now time.Duration, id uint64, nodes []NodeID) output {
	s.begin(now)
	set, err := s.forcedSet(nodes)
	switch {
	case err != nil:
		s.reply(id, err)
	case s.cluster.IsZero():
		s.reply(id, invalid("the cluster has not formed yet: it has no voters"))
	case s.forcing != nil:
		s.reply(id, tryAgain("voters are being imposed already"))
	default:
		s.startForcing(id, set)
	}
	return s.end()
}

func (s *state) forcedSet(nodes []NodeID) ([]member, *commandError) {
	var set []member
	if len(nodes)%2 == 0 || len(nodes) > maxVotersLimit {
		return nil, invalid("%d voters, expected an odd number up to %d", len(nodes), maxVotersLimit)
	}
	for _, id := range nodes {
		p := s.peers.get(id)
		if p == nil || p.State == forgotten {
			return nil, invalid("Unknown node %s", id)
		}
		if slices.Contains(set, member{p.ID, p.Key}) {
			return nil, invalid("node %s is named twice", id)
		}
		set = append(set, member{p.ID, p.Key})
	}
	sortMembers(set)
	return set, nil
}

// imposeLiving imposes the voters that live and can save, and this node.
func (s *state) imposeLiving(id uint64) {
	set := []member{{s.id, s.key}}
	for _, v := range s.table.voters.Members {
		if v.ID != s.id && s.canVoteID(v.ID) {
			set = append(set, v)
		}
	}
	if len(set)%2 == 0 {
		set = set[:len(set)-1]
	}
	sortMembers(set)
	if s.forcing == nil {
		s.startForcing(id, set)
	} else {
		s.reply(id, tryAgain("voters are being imposed already"))
	}
}

func (s *state) startForcing(id uint64, set []member) {
	f := &forcing{command: id, request: s.cfg.random() | 1, set: set, until: s.now + s.cfg.nodeTimeout/4, answers: map[NodeID]*recordsMsg{}}
	s.forcing = f
	s.wakeBy(f.until)
	for _, m := range membersOf(s.table.voters.Members, set) {
		if m != s.id {
			s.postTo(m, &getRecordsMsg{f.request})
		}
	}
	s.forceTick()
}

func (s *state) onGetRecords(p *peer, m *getRecordsMsg) {
	s.post(p, &recordsMsg{m.Request, s.table.voters.Version, s.allVotes()})
}

func (s *state) onRecords(p *peer, m *recordsMsg) {
	if f := s.forcing; f != nil && f.request == m.Request && s.believableVotes(p, &m.Votes) {
		f.answers[p.ID] = m
		s.forceTick()
	}
	s.confirmGone(p, m)
}

// forceTick imposes the set once all in reach have answered, or time is over.
func (s *state) forceTick() {
	f := s.forcing
	if f == nil {
		return
	}
	waiting := false
	for _, id := range membersOf(s.table.voters.Members, f.set) {
		waiting = waiting || id != s.id && s.aliveID(id) && f.answers[id] == nil
	}
	if waiting && s.now < f.until {
		return
	}
	s.forcing = nil
	was := s.table.voters.Version
	v := &startValue{ID: s.cfg.random() | 1, Cluster: s.cluster, Members: f.set,
		Version: voterVersion{Forced: was.Forced + 1, Number: was.Number + 1, Proposer: s.id}}
	own, shown := s.allVotes(), s.tableVotes()
	all := []*votes{&own, &shown}
	for _, id := range sortedNodes(f.answers) {
		all = append(all, &f.answers[id].Votes)
	}
	v.Votes = mergedVotes(all)
	s.event(Event{Kind: EventUnclean, Node: s.id, Number: v.Version.Number, Text: "voters imposed"})
	s.takeForced(v)
	s.forced, s.nextForced = v, s.now
	s.replyOncePushed(f.command)
}

func sortedNodes[V any](m map[NodeID]V) []NodeID {
	ids := make([]NodeID, 0, len(m))
	for id := range m {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, NodeID.compare)
	return ids
}

// tableVotes is what the table shows, as votes: what gossip knows counts too
// when records are lost.
func (s *state) tableVotes() votes {
	var v votes
	for _, id := range s.table.order {
		e := s.table.shards[id]
		v.Promises = append(v.Promises, promiseRow{Shard: id, Epoch: e})
	}
	for i := range NumSlots {
		if e := s.table.slots.at(Slot(i)); e.move > 0 {
			v.Accepted.add(Slot(i), accepted{shard: e.shard, move: e.move})
		}
	}
	return v
}

// takeForced puts an imposed set in force.
func (s *state) takeForced(v *startValue) {
	if !s.table.voters.Version.less(v.Version) {
		return
	}
	s.vote.startValue, s.vote.startBallot = v, ballot{}
	s.setVoters(v.voters(), pushChange)
}

// forcedTick hands the imposed START to its members until all of them vote.
func (s *state) forcedTick() {
	s.forceTick()
	v := s.forced
	if v == nil || s.now < s.nextForced {
		return
	}
	s.nextForced = s.now + s.cfg.nodeTimeout/10
	waiting := false
	for _, m := range v.Members {
		if p := s.peers.get(m.ID); p != nil && p != s.self && !p.active {
			s.post(p, &startMsg{Value: *v})
			waiting = true
		}
	}
	if !waiting || v.ID != s.table.voters.ID {
		s.forced = nil
	}
}
