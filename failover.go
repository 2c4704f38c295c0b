package slotmesh

import "time"

// A manual failover hands a shard over to one of its replicas, by an operator's
// word. In a plain one the primary agrees, and nothing is lost:
//
//	FAILOVER  the replica asks its primary
//	pause     requests for the shard, and for what it imports, wait; what has run is
//	          out or failed
//	catch up  the replica has everything
//	CONSENT   the primary acknowledges nothing more in its epoch
//	VOTE      the replica stands, and the voters need not wait for the lease
//
// FORCE stands without the primary's word, and then acknowledges nothing for as
// long as its lease may run. TAKEOVER (operator.go) decides alone.

// FailoverMode says what an operator's failover waits for.
type FailoverMode uint8

// The modes of Redis's CLUSTER FAILOVER.
const (
	// FailoverPlain waits for the primary: it lets nobody in, waits until this node has
	// everything, for half a NodeTimeout at most, and agrees. Nothing is lost.
	FailoverPlain FailoverMode = iota
	// FailoverForce is for a primary that does not answer: a majority of the voters
	// agrees, and only to a replica in sync. This node serves one NodeTimeout later,
	// the longest that the primary's lease may run. Where the shard is strict
	// (Config.AckReplicas) nothing is lost; else what the primary acknowledges until it
	// hears of it is, and an EventCut there counts it.
	FailoverForce
	// FailoverTakeover asks nobody: for when a majority is gone. Acknowledged writes
	// may be lost.
	FailoverTakeover
)

// failover is one to this node, under way.
type failover struct {
	command uint64
	request uint64
	mode    FailoverMode
	until   time.Duration
	again   time.Duration
	notYet  string // why the primary has not agreed yet, as it has said last
	stood   bool   // it has been voted on: it may happen
}

// failoverLimit is how long a failover is tried for.
func (s *state) failoverLimit() time.Duration { return 2 * s.cfg.nodeTimeout }

// failoverTo hands this node's shard over to it.
func (s *state) failoverTo(now time.Duration, id uint64, mode FailoverMode) output {
	s.begin(now)
	p := s.peers.get(s.table.primary(s.self.Shard))
	switch {
	case s.cluster.IsZero():
		s.reply(id, invalid("the cluster has not formed yet: there is nothing to take over"))
	case s.self.State == forgotten:
		s.reply(id, hasBeenForgotten())
	case s.table.primary(s.self.Shard) == s.id:
		s.reply(id, invalid("You should send CLUSTER FAILOVER to a replica"))
	case mode == FailoverPlain && (p == nil || p.State == forgotten || s.silentHere(p)):
		s.reply(id, invalid("Master is down or failed, please use CLUSTER FAILOVER FORCE"))
	case s.failing != nil:
		s.reply(id, tryAgain("a failover to this node is under way"))
	case !s.holdsCopy && mode != FailoverTakeover:
		s.reply(id, tryAgain("this node has no copy of its primary's data yet"))
	default:
		s.failing = &failover{command: id, request: s.cfg.random() | 1, mode: mode, until: s.now + s.failoverLimit()}
		if mode == FailoverForce {
			s.failing.stood = true
			s.standFor(whyForce)
		} else {
			s.askConsent()
		}
	}
	return s.end()
}

func (s *state) askConsent() {
	f := s.failing
	f.again = s.now + s.cfg.nodeTimeout/10
	s.wakeBy(f.again)
	s.postTo(s.table.primary(s.self.Shard), &failoverMsg{Request: f.request, Shard: s.self.Shard, Epoch: s.table.shards[s.self.Shard]})
}

func (s *state) failoverTick() {
	f := s.failing
	switch {
	case f == nil:
	case s.now >= f.until && f.stood:
		s.endFailover(mayHappen("no majority of the voters has answered"))
	case s.now >= f.until && f.notYet != "":
		s.endFailover(tryAgain("the primary has not agreed in time, nothing has changed: %s", f.notYet))
	case s.now >= f.until:
		s.endFailover(tryAgain("the primary has not agreed in time, nothing has changed"))
	case f.stood:
		s.wakeBy(f.until)
	case s.now >= f.again:
		s.askConsent()
	default:
		s.wakeBy(f.again)
	}
}

func (s *state) endFailover(err *commandError) {
	f := s.failing
	s.failing = nil
	if c := s.stand; c != nil && (c.why == whyConsent || c.why == whyForce && f.mode == FailoverForce) && err != nil {
		s.withdraw()
	}
	if err != nil {
		s.reply(f.command, err)
		return
	}
	s.replyOncePushed(f.command)
}

// dropFailover ends a failover that something else has overtaken.
func (s *state) dropFailover(text string) {
	f := s.failing
	switch {
	case f == nil:
		return
	case f.stood:
		s.reply(f.command, mayHappen("%s", text))
	default:
		s.reply(f.command, tryAgain("%s, nothing has changed", text))
	}
	s.failing = nil
}

// failoverDone is called when this node has opened its shard.
func (s *state) failoverDone() {
	if s.failing != nil {
		s.endFailover(nil)
	}
}

func (s *state) onConsent(p *peer, m *consentMsg) {
	f := s.failing
	if f == nil || f.request != m.Request || f.stood || p.ID != s.table.primary(s.self.Shard) {
		return
	}
	switch {
	case m.Error != "" && m.NotYet:
		f.notYet = m.Error
		return
	case m.Error != "":
		s.endFailover(tryAgain("%s", m.Error))
		return
	}
	f.stood = true
	s.stand = s.newCandidacy(s.self.Shard, whyConsent, nil, m.Epoch)
}

// ---- the primary

// consent is a handing over of this node's shard.
type consent struct {
	to      NodeID
	request uint64
	until   time.Duration
	at      time.Duration // when it was given
	final   bool
}

// notCaughtUp is why a failover has been given up.
const notCaughtUp = "the replica has not caught up in time"

func (c *consent) given() bool { return c != nil && c.final }

// pauseTell asks to let no request into the slots that this shard's log is about
// (pausing), to wait until every reply is out or failed and until a replica has
// everything, and then to call paused. With node zero it is over.
type pauseTell struct {
	epoch Epoch
	node  incarnate
}

// pausing is the slots into which nobody gets while this primary hands its shard
// over: those of the shard, and those that it imports, which ASKING writes to. What
// is written there is in the same log, and may be what the replica lacks when it is
// said to have everything.
func (s *state) pausing() SlotSet {
	slots := s.table.slotsOf(s.self.Shard)
	importing := s.importing()
	slots.Union(&importing)
	return slots
}

// onFailover begins to hand over to the replica that asks. What is in the way and
// passes by itself, a RECORD or a hand-over of slots, is no reason to refuse: the
// replica asks again until its limit, and whoever has given the command may have been
// answered by then.
func (s *state) onFailover(p *peer, m *failoverMsg) {
	l := s.lead
	refuse := func(text string) { s.post(p, &consentMsg{Request: m.Request, Error: text}) }
	notYet := func(text string) { s.post(p, &consentMsg{Request: m.Request, Error: text, NotYet: true}) }
	switch {
	case m.Shard != s.self.Shard || p.Shard != m.Shard:
	case l != nil && m.Epoch != l.epoch:
		// It is late, or the table of who asks is: that one asks again.
	case l == nil || !l.opened || l.void || l.outbid || !s.leaseHeld() && !l.consent.given():
		refuse("the primary cannot hand over: it does not lead under a lease")
	case l.consent != nil && l.consent.request == m.Request:
		s.sayConsent(l)
	case l.consent != nil:
		refuse("the primary is handing over to another replica")
	case m.Request == l.givenUp:
		refuse(notCaughtUp) // it has crossed the answer: nobody waits for it any more
	case !s.inSyncNow(l, p):
		notYet("this replica is not in sync")
	case len(l.gives) > 0:
		notYet("the primary is handing slots over")
	default:
		l.consent = &consent{to: p.ID, request: m.Request, until: s.now + s.cfg.nodeTimeout/2}
		s.wakeBy(l.consent.until)
		s.reassess = true
		s.tell(pauseTell{l.epoch, incarnate{p.ID, p.Store}})
	}
}

// inSyncNow reports whether a member is in the last accepted set, and no other is
// being proposed.
func (s *state) inSyncNow(l *leadership, p *peer) bool {
	m := incarnate{p.ID, p.Store}
	if l.recording != nil {
		return false
	}
	for _, x := range l.inSync {
		if x == m {
			return true
		}
	}
	return false
}

// paused says that no request is in the slots of this shard, no reply pending, and
// that a replica has the whole log.
func (s *state) paused(now time.Duration, e Epoch, m incarnate) output {
	s.begin(now)
	if l := s.lead; l != nil && l.epoch == e && l.consent != nil && !l.consent.final && l.consent.to == m.Node && s.leaseHeld() {
		l.consent.final, l.consent.at = true, s.now
		s.reassess, s.viewDirty = true, true
		s.wakeBy(s.now + s.cfg.nodeTimeout/2)
		s.sayConsent(l)
	}
	return s.end()
}

func (s *state) sayConsent(l *leadership) {
	if c := l.consent; c.final {
		s.postTo(c.to, &consentMsg{Request: c.request, Epoch: l.epoch})
	}
}

// consentTick serves on where a replica has not caught up in time.
func (s *state) consentTick(l *leadership) {
	c := l.consent
	if c == nil || c.final {
		return
	}
	if s.now < c.until && s.leaseHeld() {
		s.wakeBy(c.until)
		return
	}
	l.consent, l.givenUp = nil, c.request
	s.reassess = true
	s.tell(pauseTell{epoch: l.epoch})
	s.postTo(c.to, &consentMsg{Request: c.request, Error: notCaughtUp})
}
