package slotmesh

import "time"

// Policy is what a node does by itself, and what it waits for an operator with. The
// zero value does all that is safe. Config.Policy is what it starts with and
// Admin.SetPolicy changes it while the node runs; it is not saved. It is each node's
// own, but the nodes of a cluster are easier to understand where all have the same.
type Policy struct {
	// NoFailover keeps this node, while it is a replica, from standing for a primary
	// that fails: an operator's failover alone makes it lead. Where no other replica
	// is in sync the shard waits for that, or for its primary.
	NoFailover bool

	// DataAge bounds how old the data of a replica that is not in sync may be, in
	// NodeTimeouts, if it is to stand where nobody in sync is left: the longer it had
	// not followed, the more acknowledged writes it lacks. A replica in sync lacks
	// none, and stands however long its primary is gone. 0, the default, is no bound:
	// the shard is served again, and an EventUnclean says what it may have cost.
	DataAge int

	// NoMigration keeps this node, while it is a replica, at its primary. By default
	// it goes to one whose replicas are all silent, if its own has others. Where an
	// operator has taken the last one away none comes.
	NoMigration bool

	// MigrationBarrier is how many replicas a primary keeps when one of them goes to
	// another. 0 is 1.
	MigrationBarrier int

	// Partial lets the state of the cluster be ok while slots have no owner, or a
	// failed one: requests for those are refused then, and only those. A group that
	// has not formed yet serves the slots that it has, as long as most of their
	// owners are heard. By default the state says that something is missing, and a
	// group serves once it has every slot.
	Partial bool
}

const (
	maxDataAge          = 1<<31 - 1 // as in redis.conf
	maxMigrationBarrier = 1<<31 - 1
)

// problems are what is wrong with a policy: field, value and what was expected.
func (p *Policy) problems(bad func(field string, value any, expected string, args ...any)) {
	if p.DataAge < 0 || p.DataAge > maxDataAge {
		bad("DataAge", p.DataAge, "0 to %d NodeTimeouts", maxDataAge)
	}
	if p.MigrationBarrier < 0 || p.MigrationBarrier > maxMigrationBarrier {
		bad("MigrationBarrier", p.MigrationBarrier, "0 to %d", maxMigrationBarrier)
	}
}

// barrier is how many replicas a primary keeps.
func (p *Policy) barrier() int { return max(p.MigrationBarrier, 1) }

// setPolicy changes what this node does by itself. A stand that the new policy does
// not allow ends.
func (s *state) setPolicy(now time.Duration, id uint64, p Policy) output {
	s.begin(now)
	s.cfg.policy = p
	if p.NoFailover != s.self.NoFailover {
		s.changeFacts(func(e *peerEntry) { e.NoFailover = p.NoFailover })
	}
	if c := s.stand; p.NoFailover && c != nil && c.byItself() && s.follows() {
		s.withdraw()
	}
	s.reassess, s.viewDirty = true, true
	s.reply(id, nil)
	return s.end()
}

// follows reports whether this node is a replica: it leads its shard neither now nor
// once it has won it again.
func (s *state) follows() bool { return s.lead == nil && s.table.primary(s.self.Shard) != s.id }

// dataTooOld reports whether what this node, a replica, holds is older than its
// policy lets it stand with.
func (s *state) dataTooOld() bool {
	bound := s.cfg.policy.DataAge
	switch {
	case bound == 0 || !s.follows():
		return false
	case !s.holdsCopy || s.fresh == never:
		return true
	}
	return (s.now-s.fresh)/s.cfg.nodeTimeout >= time.Duration(bound)
}

// noteFresh notes how new the data of this node, a replica, is when its leased
// primary shows how far its own goes: as new as the primary's last heartbeat, where
// it has all that was shown there.
func (s *state) noteFresh(shown logPosition, at time.Duration) {
	if s.holdsCopy && at != never && !s.endOfLog().less(shown) {
		s.fresh = at
	}
}
