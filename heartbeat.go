package slotmesh

import "time"

// Heartbeats are one way, each node at its own pace: each direction is its own
// evidence. Between a primary and a voter one frame both asks for a lease and
// answers the newest frame of the other side, so that a lease costs no message
// of its own.

const (
	beatsPerSecond   = 500 // that a node sends, about; beyond it the pace is stretched
	unformedBeat     = 200 * time.Millisecond
	answerNowFactor  = 5 // a lease with less than NodeTimeout/5 to run asks for an answer at once
	silencePerPeriod = 3 // a peer whose pace is stretched is silent after so many periods
)

// beatPeriod is the pace of heartbeats to p. Two nodes reckon it alike for each
// other, so that each knows how often to expect the other.
func (s *state) beatPeriod(p *peer) time.Duration {
	nt := s.cfg.nodeTimeout
	if s.leasePair(p) {
		return nt / 3 // never stretched: leases hang on it, and voters are few
	}
	period := nt / 2
	switch {
	case s.cluster.IsZero():
		period = min(nt/10, unformedBeat)
	case p.Shard == s.self.Shard:
		period = nt / 10
	}
	if s.beatLoad > beatsPerSecond {
		period = time.Duration(float64(period) * s.beatLoad / beatsPerSecond)
	}
	return period
}

// leasePair reports whether one of this node and p votes and the other leads.
func (s *state) leasePair(p *peer) bool {
	if s.cluster.IsZero() {
		return false
	}
	v := &s.table.voters
	return v.has(p.ID) && s.table.primary(s.self.Shard) == s.id || v.has(s.id) && s.table.primary(p.Shard) == p.ID
}

// silentAfter is how long p may be silent before it counts as such.
func (s *state) silentAfter(p *peer) time.Duration {
	nt := s.cfg.nodeTimeout
	if period := s.beatPeriod(p); period > nt/2 {
		return max(nt, silencePerPeriod*period)
	}
	return nt
}

// beatTick sends the heartbeats that are due.
func (s *state) beatTick() {
	soon := s.now + s.cfg.nodeTimeout/40 // the next tick would be later than that
	load := 0.0
	askNow := s.leaseRunsShort() && s.lead.claims()
	for _, p := range s.peers.ordered {
		if p == s.self || p.State == forgotten {
			continue
		}
		period := s.beatPeriod(p)
		if !s.leasePair(p) {
			load += 1 / (period.Seconds() / max(1, s.beatLoad/beatsPerSecond))
		}
		if p.nextBeat <= soon || askNow && s.table.voters.has(p.ID) {
			s.beat(p, askNow)
			p.nextBeat = s.now + period
		}
	}
	s.beatLoad = load
}

// beat sends p a heartbeat.
func (s *state) beat(p *peer, askNow bool) {
	h := &heartbeat{Table: s.table.sum, Peers: s.peers.sum, Start: s.table.voters.ID, Sent: s.stamp(),
		Epoch: s.logAt.Epoch.Number, Position: s.logAt.Offset}
	if s.active() && s.vote.activeSave <= s.savedSeq {
		h.Flags |= beatActive
	}
	if !s.vote.stop.isZero() || s.stateSave > s.savedSeq {
		h.Flags |= beatStopped
	}
	if s.diskHangs() {
		h.Flags |= beatHangs
	}
	if askNow && s.table.voters.has(p.ID) {
		h.Flags |= beatAnswerNow
	}
	if l := s.lead; l != nil && l.claims() {
		h.Flags |= beatOpen
		h.Epoch, h.N = l.epoch.Number, l.n
		if l.epoch.Unclean {
			h.Flags |= beatUnclean
		}
		if s.now < s.leasedUntil(l) {
			h.Flags |= beatLeased
		}
	}
	if p.beatAt != never {
		h.Flags |= beatAnswers
		h.Answers = p.stamp
		s.answerClaim(p, h)
	}
	s.post(p, h)
}

// answerClaim puts into h what this node as a voter says to the claim in p's
// newest heartbeat.
func (s *state) answerClaim(p *peer, h *heartbeat) {
	c := &p.claim
	if !c.open || !s.active() || c.start != s.table.voters.ID {
		return
	}
	v := s.vote.known(c.shard)
	switch {
	case mutated(mutLeaseAny):
		h.Lease = s.giveLease(p)
	case v.promised.less(c.epoch), v.promised == c.epoch && v.olderRecord(c) && !mutated(mutNoBehind):
		if s.vote.stop.isZero() {
			h.Flags |= beatBehind
		}
	case c.epoch.less(v.promised) && !mutated(mutLeaseOldEpoch):
		h.Promised = v.promised.Number
	default:
		h.Lease = s.giveLease(p)
	}
}

// olderRecord reports whether the voter has not accepted the record that a
// primary claims.
func (v *voterShard) olderRecord(c *claim) bool {
	return v.record == nil || v.record.Epoch.less(c.epoch) || v.record.Epoch == c.epoch && v.record.N < c.n
}

// giveLease leases p the shard that it claims: this voter promises not to vote
// for anybody else for a NodeTimeout d after the claim came in. The primary counts
// 0.9 d from when it sent the claim, which was before. So in real time its lease is
// over at sent + 0.9 d / r, by a clock of rate r, and the voter's at came + d / r'
// with came >= sent: not earlier, as long as r' / r <= 1 / 0.9, which is the tenth by
// which rates may differ. Counted from the answer, up to NodeTimeout/3 later, a
// primary that has died in between would be leased on for as much longer. Answering
// one claim twice does not make the lease longer.
func (s *state) giveLease(p *peer) uint32 {
	c := &p.claim
	v := s.vote.known(c.shard)
	stopped := !s.vote.stop.isZero() && !mutated(mutStopLeases)
	ours := v.promised == c.epoch && v.record != nil && v.record.Epoch == c.epoch && !v.record.Vacant
	if mutated(mutLeaseAny) || mutated(mutLeaseOldEpoch) {
		ours = v.record != nil
	}
	if stopped || !ours || v.savedBy > s.savedSeq {
		return 0
	}
	if p.answered {
		return p.given
	}
	d := s.leaseLength()
	if s.vote.maxLeaseSave > s.savedSeq {
		return 0
	}
	came := p.beatAt
	if p == s.self {
		came = s.now // it asks itself
	}
	s.vote.lease(c.shard, p.ID, c.epoch, came+time.Duration(d)*time.Millisecond)
	p.answered, p.given = true, d
	return d
}

// leaseLength is how long this voter leases, in milliseconds: its NodeTimeout.
// That it may have given so long a lease is saved before it is given.
func (s *state) leaseLength() uint32 {
	d := milliseconds(s.cfg.nodeTimeout)
	if s.vote.maxLease < d {
		s.vote.maxLease = d
		s.mark(cellKey{kind: cellLease})
		s.vote.maxLeaseSave = s.saveSeq + 1
	}
	return d
}

func milliseconds(d time.Duration) uint32 { return uint32(d / time.Millisecond) }

// stamp is the time now as heartbeats carry it: milliseconds, modulo 2^32.
func (s *state) stamp() uint32 { return uint32(s.now / time.Millisecond) }

// unstamp is when this node sent a stamp that comes back: at most 49 days ago,
// and rounded down, so that what is counted from it ends early.
func (s *state) unstamp(stamp uint32) time.Duration {
	ms := s.now / time.Millisecond
	return (ms - time.Duration(uint32(ms)-stamp)) * time.Millisecond
}

func (s *state) onHeartbeat(p *peer, from *sender, m *heartbeat) {
	if p.beatAt != never && int32(m.Sent-p.stamp) <= 0 {
		return // late or twice: its time has passed
	}
	shown, shownAt := p.log, p.beatAt
	p.beatAt, p.heardAt = s.now, s.now
	p.stamp = m.Sent
	p.active = m.Flags&beatActive != 0 && m.Start == s.table.voters.ID
	p.stopped = m.Flags&beatStopped != 0
	p.hangs = m.Flags&beatHangs != 0
	p.members = m.Peers
	p.leased = m.Flags&beatLeased != 0
	p.log = logPosition{Epoch{Number: m.Epoch}, m.Position}
	p.claim = claim{open: m.Flags&beatOpen != 0, shard: from.Shard, n: m.N, start: m.Start,
		epoch: Epoch{m.Epoch, m.Flags&beatUnclean != 0, from.ID}}
	p.answered, p.given = false, 0
	s.compareDigests(p, m)
	if from.Shard == s.self.Shard && (p.leased || mutated(mutStandAnyBeat) && p.claim.open) {
		s.leasedPrimaryHeard()
		s.noteFresh(shown, shownAt)
		s.askInSync(p)
	}
	if m.Flags&beatAnswers != 0 {
		s.onAnswer(p, m)
	}
	if m.Flags&beatAnswerNow != 0 {
		s.beat(p, false)
		p.nextBeat = s.now + s.beatPeriod(p)
	}
}

// onAnswer reads a voter's answer to this primary's claim.
func (s *state) onAnswer(p *peer, m *heartbeat) {
	l := s.lead
	if l == nil || !s.voter(p) || m.Start != s.table.voters.ID && !mutated(mutMixedVersions) {
		return
	}
	sent := s.unstamp(m.Answers)
	if m.Promised > 0 && s.believableEpoch(p, Epoch{Number: m.Promised}) {
		s.heardEpoch(s.self.Shard, m.Promised)
		if sent > l.claimedFrom { // it answers a claim of this epoch
			s.outbid(m.Promised)
		}
	}
	if m.Flags&beatBehind != 0 && l.last != nil && !mutated(mutRecordNoRepeat) {
		s.repeatRecord(p)
	}
	if m.Lease > 0 && sent >= l.claimedFrom && sent >= s.votersAt {
		s.gotLease(p.ID, sent, m.Lease)
	}
}
