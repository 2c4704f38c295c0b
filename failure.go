package slotmesh

import (
	"fmt"
	"slices"
	"time"
)

// Whom this node has not heard for a NodeTimeout is silent (PFAIL). A node that
// a majority of the voters finds silent has failed (FAIL). Both are for
// display, for CLUSTERDOWN and for operators' commands: an election needs
// neither, it waits for leases.
//
// Silence is counted in time during which this node itself ran: a tick that
// comes late moves every deadline by as much, within a budget.

// alive reports whether p counts as living for the choice of voters and for
// formation: heard as a member of this cluster, or first heard of, within a
// NodeTimeout.
func (s *state) alive(p *peer) bool {
	return p == s.self || p.State != forgotten && s.now-max(p.heardAt, p.firstSeen) <= s.cfg.nodeTimeout
}

func (s *state) aliveID(id NodeID) bool {
	p := s.peers.get(id)
	return p != nil && s.alive(p)
}

// canVote reports whether p counts as living where voters are chosen. One whose disk
// hangs goes on to lead, for leases need no disk, and promises nobody anything.
func (s *state) canVote(p *peer) bool {
	if p == s.self {
		return !s.diskHangs()
	}
	return s.alive(p) && (!p.hangs || mutated(mutHangsVotes))
}

func (s *state) canVoteID(id NodeID) bool {
	p := s.peers.get(id)
	return p != nil && s.canVote(p)
}

// silentHere reports whether this node has not heard p for too long.
func (s *state) silentHere(p *peer) bool {
	silence := s.now - max(p.heardAt, p.firstSeen)
	return p != s.self && silence > s.cfg.nodeTimeout && silence > s.silentAfter(p)
}

// failed reports whether p has failed: silent here, and in the lists of a
// majority of the voters, counting only lists whose voter still beats. An
// unformed node has only its own eyes.
func (s *state) failed(p *peer) bool {
	if !s.silentHere(p) {
		return false
	}
	if s.cluster.IsZero() {
		return true
	}
	n := 0
	for _, v := range s.table.voters.Members {
		if s.findsSilent(v.ID, p) {
			n++
		}
	}
	if mutated(mutFailAlone) {
		return n > 0
	}
	return n >= s.table.voters.quorum()
}

// reports is how many voters besides this node say that they do not hear p.
func (s *state) reports(p *peer) (n int) {
	for _, v := range s.table.voters.Members {
		if v.ID != s.id && s.findsSilent(v.ID, p) {
			n++
		}
	}
	return n
}

func (s *state) findsSilent(voter NodeID, p *peer) bool {
	if voter == s.id {
		return true // asked only of whom this node finds silent
	}
	v := s.peers.get(voter)
	return v != nil && v.beatAt != never && s.now-v.beatAt < 2*s.cfg.nodeTimeout && v.silent.lists(p.ID)
}

// shardFailed reports whether a shard's primary has failed, or is a member of
// that shard no more.
func (s *state) shardFailed(id ShardID) bool {
	p := s.peers.get(s.table.primary(id))
	return p == nil || p.State == forgotten || p.Shard != id || s.failed(p)
}

// shardLost reports whether a shard's primary has failed and no member that could
// take over lives, as far as this voter knows: an operator may have its slots.
func (s *state) shardLost(id ShardID) bool {
	if !s.shardFailed(id) {
		return false
	}
	v := s.vote.shards[id]
	if v == nil || v.record == nil {
		return true
	}
	return !slices.ContainsFunc(v.record.InSync, func(m incarnate) bool {
		p := s.peers.get(m.Node)
		return p != nil && p.State != forgotten && p.Shard == id && p.ID != s.table.primary(id) && p.Store == m.Incarnation && !s.silentHere(p)
	})
}

// failureTick renews the list of whom this node finds silent. A voter tells it
// at each change.
func (s *state) failureTick() {
	var list []NodeID
	for _, p := range s.peers.ordered {
		if p.State != forgotten && s.silentHere(p) {
			list = append(list, p.ID)
		}
	}
	if !slices.Equal(list, s.silent) {
		s.silent = list
		s.reassess, s.viewDirty = true, true
	}
	s.tellHealth()
	if !s.cluster.IsZero() && s.isVoter() && !slices.Equal(s.self.silent.Nodes, s.silentToSay()) {
		s.sayWhoIsSilent() // also of what it has found while it did not vote
	}
}

// health is what this node sees of another one.
type health uint8

const (
	heardWell health = iota
	isSilent
	hasFailed
)

func (s *state) healthOf(p *peer) health {
	switch {
	case p.State == forgotten || !s.silentHere(p):
		return heardWell
	case s.failed(p):
		return hasFailed
	default:
		return isSilent
	}
}

// tellHealth tells the application of every node that falls silent, fails, or is
// heard again: one event per node and tick at most. Of one that is forgotten
// EventForgotten has told.
func (s *state) tellHealth() {
	for _, p := range s.peers.ordered {
		h := s.healthOf(p)
		if h == p.toldHealth {
			continue
		}
		p.toldHealth = h
		if p.State != forgotten {
			kind := [...]EventKind{heardWell: EventHeard, isSilent: EventSilent, hasFailed: EventFailed}[h]
			s.event(Event{Kind: kind, Node: p.ID, Shard: p.Shard, Addr: p.Addr})
		}
	}
}

// silentToSay is whom this node finds silent, as far as it fits one list.
func (s *state) silentToSay() []NodeID { return s.silent[:min(silentMax, len(s.silent))] }

// sayWhoIsSilent tells all whom this node finds silent, as a voter.
func (s *state) sayWhoIsSilent() {
	s.peers.change(s.self, func() {
		s.self.silent = silentEntry{Voter: s.id, Starts: s.starts, Counter: s.self.silent.Counter + 1, Nodes: s.silentToSay()}
	})
	s.pending.silent = true
}

// allowForLateness moves the deadlines of all peers by as much as this tick is
// late, NodeTimeout/2 in all per NodeTimeout: a node that was stopped has heard
// nobody, and nobody is to blame.
func (s *state) allowForLateness() {
	nt := s.cfg.nodeTimeout
	if s.now-s.graceAt > nt {
		s.graceAt, s.grace = s.now, nt/2
	}
	late := s.now - s.wake
	if late <= nt/20 || mutated(mutLateBlames) {
		return
	}
	late = min(late, s.grace)
	s.grace -= late
	for _, p := range s.peers.ordered {
		if p.heardAt != never {
			p.heardAt += late
		}
		p.firstSeen += late
	}
	s.primary += late
	s.savingSince += late
	if l := s.lead; l != nil {
		for i := range l.behind {
			l.behind[i].since += late
			for k := range l.behind[i].goals {
				l.behind[i].goals[k].set += late
			}
		}
	}
}

// majorityHeard reports whether this node hears a majority of the voters.
func (s *state) majorityHeard() bool {
	n := 0
	for _, v := range s.table.voters.Members {
		if s.aliveID(v.ID) {
			n++
		}
	}
	return len(s.table.voters.Members) > 0 && n >= s.table.voters.quorum()
}

// clusterState is what CLUSTER INFO says, and why it says so. Reason is empty
// while the state is ok.
func (s *state) clusterState() (ok bool, reason string) {
	switch {
	case s.self.State == forgotten:
		return false, "this node has been forgotten by its cluster"
	case s.broken != nil:
		return false, s.brokenReason()
	case s.ownsSlots() && s.form.holds() && s.now >= s.servesUntil():
		return false, "this node waits until the formation of its cluster is decided"
	case s.ownsSlots() && !s.cluster.IsZero() && (s.lead == nil || !s.lead.opened):
		return false, "this node's shard is not open: it has not won a vote since it started or was deposed"
	case s.ownsSlots() && !s.cluster.IsZero() && !s.leaseHeld():
		return false, "this node's lease is over: it does not hear a majority of the voters"
	case !s.cluster.IsZero() && !s.majorityHeard():
		return false, "this node does not hear a majority of the voters"
	case s.cfg.policy.Partial:
		return s.partialState()
	case s.table.unassigned > 0:
		return false, fmt.Sprintf("%d slots have no owner", s.table.unassigned)
	}
	for _, id := range s.table.order {
		if s.table.owned[id] > 0 && s.shardFailed(id) {
			return false, fmt.Sprintf("the primary %s of %d slots has failed", s.table.primary(id), s.table.owned[id])
		}
	}
	return true, ""
}

// partialState is the state of a cluster of which slots may be missing. A formed one
// has its voters; a group that has not formed needs most owners of slots.
func (s *state) partialState() (ok bool, reason string) {
	if !s.cluster.IsZero() {
		return true, ""
	}
	owners, heard := 0, 0
	for _, id := range s.table.order {
		if s.table.owned[id] > 0 {
			owners++
			if !s.shardFailed(id) {
				heard++
			}
		}
	}
	if heard < owners/2+1 {
		return false, fmt.Sprintf("this node hears %d of %d primaries with slots", heard, owners)
	}
	return true, ""
}

// ownersFailed reports whether the primary of a slot has failed.
func (s *state) ownersFailed() bool {
	return slices.ContainsFunc(s.table.order, func(id ShardID) bool { return s.table.owned[id] > 0 && s.shardFailed(id) })
}

// ownsSlots reports whether this node is the primary of a shard with slots.
func (s *state) ownsSlots() bool {
	return s.table.primary(s.self.Shard) == s.id && s.table.owned[s.self.Shard] > 0
}

// timeSince says how long ago t was; never is a very long time ago.
func (s *state) timeSince(t time.Duration) time.Duration {
	if t == never {
		return 1 << 61
	}
	return s.now - t
}
