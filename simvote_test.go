package slotmesh

import "slices"

// What a voter answers, looked at in the step in which it makes up its mind: it must
// fit to what is on its disk by then, for that it has been told before.

// noteVote notes what of its votes a node has on disk.
func (n *simNode) noteVote(c cell) {
	if c.key.kind != cellVote {
		return
	}
	var v voteCell
	if c.value == nil || decodeValue(c.value, &v) != nil {
		delete(n.votes, ShardID(c.key.id))
		return
	}
	n.votes[ShardID(c.key.id)] = v
}

// checkAnswers looks at what a step sends.
func (w *simWorld) checkAnswers(n *simNode, sends []send) {
	if w.unchecked {
		return
	}
	for i := range sends {
		switch m := sends[i].msg.(type) {
		case *heartbeat:
			if m.Lease > 0 {
				w.checkOW2Lease(n, sends[i].to.ID)
			}
		case *acceptMsg:
			w.checkEP4Accept(n, m)
		case *startedMsg:
			w.checkOW0Started(n)
		case *stopMsg:
			w.checkR12(n, m)
		}
	}
}

// checkOW2Lease: OW2, a voter leases a primary the very epoch that it has promised last,
// and nothing once it is stopped: who votes next counts on that.
func (w *simWorld) checkOW2Lease(n *simNode, to NodeID) {
	c := n.core
	p := c.peers.get(to)
	if p == nil {
		return
	}
	switch promised := n.votes[p.claim.shard].Promised; {
	case promised != p.claim.epoch:
		w.fail("OW2", "%s leases %s the epoch %v of %s, and has promised %v", n.name(), to.short(), p.claim.epoch, p.claim.shard.short(), promised)
	case n.stoppedIn != 0 && n.stoppedIn == c.table.voters.ID && !c.vote.stop.isZero():
		w.fail("OW2", "%s leases %s something, and has been stopped", n.name(), to.short())
	}
}

// checkEP4Accept: EP4, a voter accepts nothing under an epoch below its promise, and no
// RECORD that is older than the one it has.
func (w *simWorld) checkEP4Accept(n *simNode, m *acceptMsg) {
	v := n.votes[m.Shard]
	if m.Epoch.less(v.Promised) {
		w.fail("EP4", "%s accepts what %v asks for %s, and has promised %v", n.name(), m.Epoch, m.Shard.short(), v.Promised)
		return
	}
	asked := record{Epoch: m.Epoch, N: m.N}
	if m.Ballot == 0 && len(v.Records) > 0 && v.Records[0].newer(&asked) {
		w.fail("EP4", "%s accepts RECORD %d of %v, and has %d of %v", n.name(), m.N, m.Epoch, v.Records[0].N, v.Records[0].Epoch)
	}
}

// checkOW0Started: OW0, a set of voters is decided by those who vote now.
func (w *simWorld) checkOW0Started(n *simNode) {
	if c := n.core; !c.cluster.IsZero() && !c.active() {
		w.fail("OW0", "%s says that it has saved START, and does not vote in version %v", n.name(), c.table.voters.Version)
	}
}

// checkOW0Decided: OW0, a majority of the voters before has a set on disk when the first
// node knows that it is decided.
func (w *simWorld) checkOW0Decided(n *simNode) {
	v := &n.core.table.voters
	before := v.Version
	before.Number--
	old, known := w.ledger.voters[simVersionKey{n.core.cluster, before}]
	if !known || w.ledger.imposedSets[simVersionKey{n.core.cluster, v.Version}] { // who imposes anew may have forgotten that he has before
		return
	}
	k := 0
	for _, o := range w.nodes {
		if old.hasMember(o.was.member) && o.hasStart(v.ID) {
			k++
		}
	}
	if k <= len(old.Members)/2 {
		w.fail("OW0", "%s knows version %v of the voters, and %d of %d that voted before have it", n.name(), v.Version, k, len(old.Members))
	}
}

// checkR12: R12, a voter that lives, and can save, stays one: who proposes others leaves
// out one at most, where the number would be even else and nobody comes for it.
func (w *simWorld) checkR12(n *simNode, m *stopMsg) {
	c := n.core
	if ch := c.change; ch == nil || ch.ballot != m.Ballot || ch.began != c.now || c.cluster.IsZero() || w.ledger.imposed || w.ledger.begun {
		return // it repeats what it has said, or somebody has said so
	}
	now := c.table.voters.Members
	newcomer := slices.ContainsFunc(m.Wanted, func(x member) bool { return !slices.Contains(now, x) })
	left := 0
	for _, x := range now {
		p := c.peers.get(x.ID)
		if p != nil && p.Key == x.Key && p.State == present && c.canVote(p) && !slices.Contains(m.Wanted, x) {
			left++
		}
	}
	if left > 1 || left == 1 && newcomer {
		w.fail("R12", "%s proposes voters without %d that live", n.name(), left)
	}
}

// checkEP2Record: EP2, a RECORD is on disk, with what it opens, before its accept leaves.
func (w *simWorld) checkEP2Record(n *simNode, m *acceptMsg) {
	if m.Ballot != 0 {
		return
	}
	v := n.votes[m.Shard]
	asked := record{Epoch: m.Epoch, N: m.N}
	if len(v.Records) == 0 || asked.newer(&v.Records[0]) || v.Promised.less(m.Epoch) {
		w.fail("EP2", "%s accepts RECORD %d of %v of %s, on disk is %+v under the promise of %v", n.name(), m.N, m.Epoch, m.Shard.short(), v.Records, v.Promised)
		return
	}
	as := w.ledger.asked4[simProposal{cluster: n.core.cluster, shard: m.Shard, epoch: m.Epoch, record: true}]
	if m.N > 0 || as == nil {
		return
	}
	w.checkEP2Accepted(n, as)
	if len(as.opened) == 0 {
		return
	}
	for _, r := range []moveRun{as.opened[0], as.opened[len(as.opened)-1]} {
		if o := n.openedOnDisk(r.Last); o.less(opening{r.Move, m.Epoch}) {
			w.fail("EP2", "%s accepts that slot %d is opened at move %d in %v, on disk is %v", n.name(), r.Last, r.Move, m.Epoch, o)
			return
		}
	}
}

// checkEP2Move: EP2, that slots go to another shard is on disk before the accept leaves.
func (w *simWorld) checkEP2Move(n *simNode, m *acceptMsg) {
	if as := w.ledger.asked4[simProposal{cluster: n.core.cluster, shard: m.Shard, epoch: m.Epoch, ballot: m.Ballot}]; m.Ballot != 0 && as != nil {
		w.checkEP2Accepted(n, as)
	}
}

// checkEP2Accepted: EP2, the moves that a proposal names, the first and the last, are on
// the disk of who accepts it, or later ones of the same slots.
func (w *simWorld) checkEP2Accepted(n *simNode, as *simAnswers) {
	if len(as.slots.Runs) == 0 {
		return
	}
	for _, r := range []acceptRun{as.slots.Runs[0], as.slots.Runs[len(as.slots.Runs)-1]} {
		if have := n.acceptedOnDisk(r.Last); have.less(accepted{move: r.Move, epoch: as.epoch}) {
			w.fail("EP2", "%s accepts that slot %d goes to move %d under %v, on disk is move %d under %v", n.name(), r.Last, r.Move, as.epoch, have.move, have.epoch)
			return
		}
	}
}

// checkEP2Stopped: EP2, a voter that says it has stopped finds so after a restart.
func (w *simWorld) checkEP2Stopped(n *simNode, m *stoppedMsg) {
	var stop ballot
	if n.onDisk(cellKey{kind: cellStop}, &stop); stop.less(m.Ballot) {
		w.fail("EP2", "%s has stopped under ballot %d, on disk is %d", n.name(), m.Ballot.Number, stop.Number)
	}
}

// checkEP2Started: EP2, who says that he has saved START has it on disk, and under that
// ballot or a later one while it is not decided.
func (w *simWorld) checkEP2Started(n *simNode, m *startedMsg) {
	var saved startCell
	n.onDisk(cellKey{kind: cellStart}, &saved)
	if undecided := saved.Value.ID == m.ID; !n.hasStart(m.ID) || undecided && saved.Ballot.less(m.Ballot) {
		w.fail("EP2", "%s has saved START %x under ballot %d, on disk is %x under %d", n.name(), m.ID, m.Ballot.Number, saved.Value.ID, saved.Ballot.Number)
	}
}

func (n *simNode) acceptedOnDisk(slot Slot) (a accepted) {
	var runs acceptRuns
	if n.onDisk(cellKey{kind: cellAccepted, page: uint8(slot / pageSlots)}, &runs) {
		runs.each(func(s Slot, x accepted) {
			if s == slot {
				a = x
			}
		})
	}
	return a
}

func (n *simNode) openedOnDisk(slot Slot) (o opening) {
	var runs openRuns
	if n.onDisk(cellKey{kind: cellOpened, page: uint8(slot / pageSlots)}, &runs) {
		runs.each(func(s Slot, x opening) {
			if s == slot {
				o = x
			}
		})
	}
	return o
}

// checkOW2: OW2, no majority of any set of voters would vote for another node at
// this moment: for one of whom they know nothing, or for one that they have leased.
func (w *simWorld) checkOW2(n *simNode) {
	if ms := n.core.table.voters.Members; len(ms) == 1 && ms[0].ID == n.core.id {
		return // it is the one to ask, and would know
	}
	free := w.votersFor(n, NodeID{})
	for _, o := range w.nodes {
		if o != n && o.up && o.core.self.Shard == n.core.self.Shard && w.leases(o) {
			free = max(free, w.votersFor(n, o.core.id))
		}
	}
	if free > 0 {
		w.fail("OW2", "%s acknowledges, and %d voters would vote for another node", n.name(), free)
	}
}

// leases reports whether anybody leases a node its shard.
func (w *simWorld) leases(n *simNode) bool {
	for _, v := range w.nodes {
		if v.up && v.core.vote.leases[n.core.self.Shard][n.core.id].until > v.local() {
			return true
		}
	}
	return false
}

// votersFor is how many voters of one set would vote for c in n's shard, if that is a
// majority, or 0.
func (w *simWorld) votersFor(n *simNode, c NodeID) int {
	free := w.ledger.voting[:0]
	for _, v := range w.nodes {
		if s := v.core; v.lives() && s.cluster == n.core.cluster && s.active() && s.vote.stop.isZero() && v.wouldVote(n.core.self.Shard, c) {
			free = append(free, v)
		}
	}
	w.ledger.voting = free
	for _, v := range free {
		k := 0
		for _, o := range free {
			if o.core.table.voters.ID == v.core.table.voters.ID {
				k++
			}
		}
		if k > len(v.core.table.voters.Members)/2 {
			return k
		}
	}
	return 0
}

// wouldVote reports whether no lease keeps this voter from voting for c, who asks now.
func (n *simNode) wouldVote(shard ShardID, c NodeID) bool {
	s := n.core
	wait := s.voteWait(&voteMsg{Voters: s.table.voters.Version, Shard: shard, Why: whySilence}, c)
	return wait <= max(0, n.local()-s.now)
}
