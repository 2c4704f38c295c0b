package slotmesh

import "time"

// serving is what this node serves: the other half of routing, which the table
// does not show. It is set under the locks of the slots.
type serving struct {
	version uint64        // raised at each change
	reign   uint64        // raised when what ran before may not be acknowledged any more
	slots   SlotSet       // served
	hold    SlotSet       // requests wait: opening, or being handed over
	until   time.Duration // lease: nothing is acknowledged after that
}

// assess works out what this node serves.
func (s *state) assess() {
	if !s.reassess {
		return
	}
	s.reassess = false
	var slots, hold SlotSet
	var epoch Epoch
	switch l := s.lead; {
	case s.broken != nil || s.self.State == forgotten:
	case s.cluster.IsZero():
		if e := s.table.shards[s.self.Shard]; e.Node == s.id {
			slots = s.table.slotsOf(s.self.Shard)
		}
	case l == nil:
		if mutated(mutServeRestart) && s.table.primary(s.self.Shard) == s.id {
			slots = s.table.slotsOf(s.self.Shard)
		}
	case !l.opened:
		hold = l.recording.msg.Opened.slots()
		epoch = l.epoch
	default:
		s.ripen(l)
		slots, epoch = l.mine, l.epoch
		for _, g := range l.gives {
			slots.Subtract(&g.slots)
			hold.Union(&g.slots)
		}
	}
	if len(s.arrived) > 0 {
		s.tell(adoptTell{s.arrived})
		s.arrived = nil
	}
	v := &s.serve
	reign := v.reign
	if epoch != s.reignEpoch || s.cluster != s.reignCluster {
		s.reignEpoch, s.reignCluster = epoch, s.cluster
		reign++
	}
	if slots != v.slots || hold != v.hold || reign != v.reign {
		v.slots, v.hold, v.reign = slots, hold, reign
		v.version++
	}
}

// ripen takes into service the slots whose move has been saved.
func (s *state) ripen(l *leadership) {
	rest := l.fresh[:0]
	for i := range l.fresh {
		if l.fresh[i].save <= s.savedSeq {
			l.mine.Union(&l.fresh[i].slots)
		} else {
			rest = append(rest, l.fresh[i])
		}
	}
	l.fresh = rest
}

// servesUntil is until when this node may acknowledge what it serves.
func (s *state) servesUntil() time.Duration {
	if s.broken != nil {
		return never
	}
	if !s.cluster.IsZero() {
		if mutated(mutServeRestart) && s.lead == nil {
			return forever
		}
		return s.leaseUntil()
	}
	if s.form.holds() && !mutated(mutFormNoLease) {
		return s.form.savedAt + s.cfg.nodeTimeout*9/10
	}
	return forever
}

// mayReply reports whether what has run in a reign may be acknowledged now:
// asked when the reply is about to leave, not when the request came. If not,
// its outcome is unknown.
func (s *state) mayReply(reign uint64, now time.Duration) bool {
	return (reign == s.serve.reign || mutated(mutReplyEpoch)) && now < s.servesUntil()
}
