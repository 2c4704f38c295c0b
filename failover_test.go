package slotmesh

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func (n *ruleNode) failover(mode FailoverMode) *ruleReply {
	n.w.t.Helper()
	return n.command(func(s *state, now time.Duration, id uint64) output { return s.failoverTo(now, id, mode) })
}

// paused plays the driver's part of a failover at the primary: no request is left in
// its slots, and the replica has everything.
func (n *ruleNode) paused() {
	n.w.t.Helper()
	for _, p := range toldOf[pauseTell](n) {
		if !p.node.Node.IsZero() {
			n.step(func(s *state, now time.Duration) output { return s.paused(now, p.epoch, p.node) })
		}
	}
	n.w.deliver()
}

// consents are the answers of a primary to a replica that has asked it to hand over.
func (x *replicas) asks(from *ruleNode, request uint64) []message {
	x.w.t.Helper()
	return x.a.gets(from, &failoverMsg{Request: request, Shard: x.a.shard(), Epoch: x.a.epoch()})
}

// A plain failover, step by step: the replica asks, the primary lets nobody in,
// waits until the replica has everything, consents, and the voters wait for no
// lease.
func TestPlainFailoverStepByStep(t *testing.T) {
	t.Parallel()
	x := newReplicas(t)
	a, b := x.a, x.b
	epoch, began := a.epoch(), x.w.now
	r := b.failover(FailoverPlain)
	x.w.deliver()
	require.Equal(t, []pauseTell{{epoch, b.core.member()}}, a.told1(t))
	require.False(t, a.serves(5), "nobody is let in")
	require.True(t, a.core.serve.hold.Contains(5), "requests wait")
	require.True(t, a.core.leaseHeld(), "what runs may be acknowledged yet")
	require.Nil(t, b.core.stand)

	a.step(func(s *state, now time.Duration) output { return s.paused(now, epoch, b.core.member()) })
	require.False(t, a.core.leaseHeld(), "it acknowledges nothing more in this epoch")
	x.w.deliver()
	x.w.until("the replica serves", func() bool { return b.serves(5) })
	require.Less(t, x.w.now-began, ruleNT/5, "no lease is waited for")
	require.Equal(t, "OK", x.w.settle(r))
	require.Greater(t, b.epoch().Number, epoch.Number)
	require.Nil(t, a.core.lead)
	require.Equal(t, b.core.id, a.core.role.primary, "it is a replica now")
	require.Empty(t, b.eventsOf(EventUnclean))
	require.Equal(t, "b", x.d.owns(5))
}

// Nobody gets into the slots that the primary imports either, from the pause on until
// it is over: those that are marked meanwhile, too, and not those that are marked no
// more.
func TestNobodyIsLetIntoWhatIsImported(t *testing.T) {
	t.Parallel()
	x := newReplicas(t)
	a, b, d := x.a, x.b, x.d
	for _, n := range x.w.nodes {
		n.step(func(s *state, now time.Duration) output {
			s.begin(now)
			for _, slot := range []Slot{7, 8, 9} {
				s.setSlot(slot, slotEntry{d.shard(), 2}, pushNothing)
				delete(s.gone, slot)
			}
			return s.end()
		})
	}
	x.w.run(ruleNT)
	mark := func(slot Slot) { require.Equal(t, "OK", x.w.settle(a.importing(slot, d.core.id))) }
	held := func(slots ...Slot) {
		t.Helper()
		for _, slot := range []Slot{7, 8, 9} {
			require.Equal(t, slices.Contains(slots, slot), a.core.serve.hold.Contains(slot), "slot %d", slot)
		}
	}
	mark(8)
	mark(9)
	held()
	b.failover(FailoverPlain)
	x.w.deliver()
	held(8, 9)
	pausing := a.core.pausing()
	require.True(t, pausing.Contains(5) && pausing.Contains(8) && pausing.Contains(9))
	require.False(t, pausing.Contains(7))
	mark(7)
	held(7, 8, 9)
	require.Equal(t, "OK", x.w.settle(a.command(func(s *state, now time.Duration, id uint64) output { return s.setSlotStable(now, id, 8) })))
	held(7, 9)
	x.w.run(ruleNT * 6 / 10)
	require.True(t, a.serves(5), "the replica has not caught up")
	held()

	b.failover(FailoverPlain)
	x.w.deliver()
	a.paused()
	require.Nil(t, a.core.lead)
	held()
	require.Empty(t, a.marks(), "marks are for primaries")
}

// told1 takes what a node has told its driver about pausing.
func (n *ruleNode) told1(t *testing.T) []pauseTell {
	t.Helper()
	return toldOf[pauseTell](n)
}

// What a failover is refused for at the replica itself, in Redis's words.
func TestFailoverIsRefusedAtTheReplica(t *testing.T) {
	t.Parallel()
	const down = "ERR Master is down or failed, please use CLUSTER FAILOVER FORCE"
	for _, row := range []struct {
		name string
		who  string
		mode FailoverMode
		edit func(x *replicas, s *state)
		want string
	}{
		{"unformed", "b", FailoverPlain, func(x *replicas, s *state) { s.cluster = ClusterID{} }, "ERR the cluster has not formed yet: there is nothing to take over"},
		{"forgotten", "b", FailoverPlain, func(x *replicas, s *state) {
			s.setPeer(s.self, pushNothing, func(e *peerEntry) { e.State = forgotten })
		}, "CLUSTERDOWN this node has been forgotten by its cluster"},
		{"a primary", "a", FailoverPlain, nil, "ERR You should send CLUSTER FAILOVER to a replica"},
		{"a primary, by force", "a", FailoverForce, nil, "ERR You should send CLUSTER FAILOVER to a replica"},
		{"the primary is silent", "b", FailoverPlain, func(x *replicas, s *state) { silence(s, 0) }, down},
		{"the primary is forgotten", "b", FailoverPlain, func(x *replicas, s *state) {
			s.setPeer(s.peers.ordered[0], pushNothing, func(e *peerEntry) { e.State = forgotten })
		}, down},
		{"the primary is silent, by force", "b", FailoverForce, func(x *replicas, s *state) { silence(s, 0) }, "no reply"},
		{"it has no copy", "b", FailoverPlain, func(x *replicas, s *state) { s.holdsCopy = false }, "TRYAGAIN this node has no copy of its primary's data yet"},
		{"it has no copy, by force", "b", FailoverForce, func(x *replicas, s *state) { s.holdsCopy = false }, "TRYAGAIN this node has no copy of its primary's data yet"},
		{"another one is under way", "b", FailoverPlain, func(x *replicas, s *state) { s.failing = &failover{until: s.now + ruleNT} },
			"TRYAGAIN a failover to this node is under way"},
		{"a replica", "b", FailoverPlain, nil, "no reply"},
	} {
		x := newReplicas(t)
		who := x.w.byName(row.who)
		if row.edit != nil {
			who.core.begin(x.w.now)
			row.edit(x, who.core)
		}
		if r := who.failover(row.mode); r.String() != row.want {
			t.Errorf("%s: %s, want %s", row.name, r, row.want)
		}
	}
}

// What a primary refuses to hand over for, and says.
func TestFailoverIsRefusedByThePrimary(t *testing.T) {
	t.Parallel()
	const noLease = "the primary cannot hand over: it does not lead under a lease"
	for _, row := range []struct {
		name string
		edit func(x *replicas, s *state)
		want string // "": it pauses
		yet  bool   // it may agree when it is asked again
	}{
		{"a replica in sync", func(x *replicas, s *state) {}, "", false},
		{"it does not lead", func(x *replicas, s *state) { s.lead = nil }, noLease, false},
		{"it has not opened its shard", func(x *replicas, s *state) { s.lead.opened = false }, noLease, false},
		{"its lease is over", func(x *replicas, s *state) { s.lead.leaseEnd = s.now }, noLease, false},
		{"somebody has been promised more", func(x *replicas, s *state) { s.lead.outbid = true }, noLease, false},
		{"it has to win again", func(x *replicas, s *state) { s.lead.void = true }, noLease, false},
		{"the replica is not in sync", func(x *replicas, s *state) { s.lead.inSync = s.lead.inSync[:1] }, "this replica is not in sync", true},
		{"the replica is in sync in another incarnation", func(x *replicas, s *state) { s.lead.inSync[1].Incarnation++ }, "this replica is not in sync", true},
		{"another set is being proposed", func(x *replicas, s *state) { s.lead.recording = &recording{} }, "this replica is not in sync", true},
		{"slots are being handed over", func(x *replicas, s *state) { s.lead.gives = []*handOver{{}} }, "the primary is handing slots over", true},
		{"it hands over to another", func(x *replicas, s *state) {
			s.lead.consent = &consent{to: x.c.core.id, request: 4, until: s.now + ruleNT}
		},
			"the primary is handing over to another replica", false},
		{"it has consented to another", func(x *replicas, s *state) {
			s.lead.consent = &consent{to: x.c.core.id, request: 4, final: true, at: s.now}
		}, "the primary is handing over to another replica", false},
	} {
		x := newReplicas(t)
		x.a.core.begin(x.w.now)
		row.edit(x, x.a.core)
		got := ""
		for _, m := range x.asks(x.b, 77) {
			if c, ok := m.(*consentMsg); ok {
				require.Equal(t, uint64(77), c.Request, row.name)
				require.Equal(t, Epoch{}, c.Epoch, "%s: no consent", row.name)
				require.Equal(t, row.yet, c.NotYet, row.name)
				got = c.Error
			}
		}
		if pauses := len(x.a.told1(t)) == 1; got != row.want || pauses != (row.want == "") {
			t.Errorf("%s: %q, pauses %v, want %q", row.name, got, pauses, row.want)
		}
	}
	x := newReplicas(t)
	require.Empty(t, x.a.gets(x.d, &failoverMsg{Request: 7, Shard: x.a.shard(), Epoch: x.a.epoch()}), "a node of another shard")
	require.Empty(t, x.a.gets(x.b, &failoverMsg{Request: 7, Shard: x.d.shard(), Epoch: x.a.epoch()}), "another shard")
	require.Empty(t, x.a.told1(t))
}

// The replica hears why, and nothing has changed.
func TestRefusedFailoverIsAnswered(t *testing.T) {
	t.Parallel()
	x := newReplicas(t)
	x.a.core.lead.consent = &consent{to: x.c.core.id, request: 4, until: x.w.now + ruleNT}
	r := x.b.failover(FailoverPlain)
	x.w.deliver()
	require.Equal(t, "TRYAGAIN the primary is handing over to another replica", r.String())
	require.Nil(t, x.b.core.failing)
	require.Nil(t, x.b.core.stand)
	require.Equal(t, "a", x.b.owns(5))
}

// What passes the replica waits for, as long as it tries at all: whoever has given the
// command may have been told OK.
func TestFailoverWaitsForWhatPasses(t *testing.T) {
	t.Parallel()
	x := newReplicas(t)
	l := x.a.core.lead
	all := l.inSync
	l.inSync = all[:1]
	r := x.b.failover(FailoverPlain)
	x.w.run(ruleNT)
	require.Equal(t, "no reply", r.String())
	require.True(t, x.a.serves(5), "nobody waits")
	l.inSync = all
	x.w.until("it lets nobody in", func() bool { return !x.a.serves(5) })
	x.a.paused()
	require.Equal(t, "OK", x.w.settle(r))
	require.Equal(t, "b", x.c.owns(5))

	x = newReplicas(t)
	x.a.core.lead.inSync = x.a.core.lead.inSync[:1]
	r = x.b.failover(FailoverPlain)
	x.w.run(ruleNT * 21 / 10)
	require.Equal(t, "TRYAGAIN the primary has not agreed in time, nothing has changed: this replica is not in sync", r.String())
	require.Nil(t, x.b.core.failing)
}

// Where the replica does not catch up within NodeTimeout/2 the primary serves on.
func TestPrimaryServesOnWhereTheReplicaDoesNotCatchUp(t *testing.T) {
	t.Parallel()
	x := newReplicas(t)
	epoch := x.a.epoch()
	r := x.b.failover(FailoverPlain)
	x.w.deliver()
	require.Len(t, x.a.told1(t), 1)
	x.w.run(ruleNT/2 - ruleNT/100)
	require.False(t, x.a.serves(5))
	require.Equal(t, "no reply", r.String())
	x.w.run(ruleNT / 50)
	require.True(t, x.a.serves(5))
	require.Equal(t, []pauseTell{{epoch: epoch}}, x.a.told1(t), "it is over")
	require.Equal(t, "TRYAGAIN the replica has not caught up in time", r.String())
	require.Equal(t, epoch, x.a.epoch())

	x.a.step(func(s *state, now time.Duration) output { return s.paused(now, epoch, x.b.core.member()) })
	require.True(t, x.a.serves(5), "that it has caught up now comes too late")
	r = x.b.failover(FailoverPlain)
	x.w.deliver()
	x.a.paused()
	require.Equal(t, "OK", x.w.settle(r), "it may be asked again")
}

// A repeat of the question that crosses the answer does not pause anew: nobody
// waits for it any more.
func TestRepeatOfAFailoverThatWasGivenUp(t *testing.T) {
	t.Parallel()
	x := newReplicas(t)
	require.Empty(t, x.asks(x.b, 77))
	x.w.run(ruleNT * 6 / 10)
	require.True(t, x.a.serves(5))
	answers := x.asks(x.b, 77)
	require.Len(t, answers, 1)
	require.Equal(t, "the replica has not caught up in time", answers[0].(*consentMsg).Error)
	require.True(t, x.a.serves(5))
	require.Empty(t, x.asks(x.b, 78), "another question does")
	require.False(t, x.a.serves(5))
}

// A pause ends when the lease does: what has been promised to nobody is not to be
// held up.
func TestPauseEndsWithTheLease(t *testing.T) {
	t.Parallel()
	x := newReplicas(t)
	x.b.failover(FailoverPlain)
	x.w.deliver()
	x.a.told1(t)
	x.a.core.lead.leaseEnd, x.a.core.lead.leases = x.w.now, map[NodeID]time.Duration{}
	x.a.step(func(s *state, now time.Duration) output { return s.paused(now, s.lead.epoch, x.b.core.member()) })
	require.False(t, x.a.core.lead.consent.final, "who may not acknowledge cannot consent")
	x.a.tick()
	require.Nil(t, x.a.core.lead.consent)
	require.Len(t, x.a.told1(t), 1)
}

// A consent is final for its epoch: it acknowledges nothing more until it has won
// again, which it may try after NodeTimeout/2.
func TestConsentIsFinal(t *testing.T) {
	t.Parallel()
	x := newReplicas(t)
	a, b := x.a, x.b
	epoch, given := a.epoch(), x.w.now
	x.w.lose = func(m ruleMail) bool { return m.msg.kind() == msgConsent }
	r := b.failover(FailoverPlain)
	x.w.deliver()
	a.paused()
	require.True(t, a.core.lead.consent.final)
	x.w.run(ruleNT/2 - ruleNT/100)
	require.False(t, a.serves(5))
	require.False(t, a.core.leaseHeld())
	require.Equal(t, epoch, a.epoch())
	require.Nil(t, a.core.stand)
	require.Greater(t, a.core.leasedUntil(a.core.lead), x.w.now, "the voters lease it on")
	x.w.until("it has won again", func() bool { return a.serves(5) })
	require.Less(t, x.w.now-given, ruleNT*8/10)
	require.Greater(t, a.epoch().Number, epoch.Number)
	require.Nil(t, a.core.lead.consent)

	// The consent comes late: it covers what was leased up to its epoch, and not what
	// has been leased since.
	x.w.lose = nil
	if b.core.failing != nil {
		m := &consentMsg{Request: b.core.failing.request, Epoch: epoch}
		b.gets(a, m)
		x.w.run(ruleNT / 5)
		require.True(t, a.serves(5))
		require.False(t, b.serves(5))
	}
	x.w.run(3 * ruleNT)
	require.NotEqual(t, "no reply", r.String())
	require.False(t, a.serves(5) && b.serves(5))
}

// Repeats of what a failover says change nothing.
func TestRepeatsOfAFailoverAreHarmless(t *testing.T) {
	t.Parallel()
	x := newReplicas(t)
	a, b := x.a, x.b
	require.Empty(t, x.asks(b, 77))
	require.Len(t, a.told1(t), 1)
	require.Empty(t, x.asks(b, 77), "it is being paused")
	require.Empty(t, a.told1(t))
	a.step(func(s *state, now time.Duration) output { return s.paused(now, s.lead.epoch, b.core.member()) })
	at := a.core.lead.consent.at
	answers := x.asks(b, 77)
	require.Len(t, answers, 1)
	require.Equal(t, &consentMsg{Request: 77, Epoch: a.epoch()}, answers[0], "said again")
	x.w.now += ruleNT / 10
	a.step(func(s *state, now time.Duration) output { return s.paused(now, s.lead.epoch, b.core.member()) })
	require.Equal(t, at, a.core.lead.consent.at)

	// The replica has asked nothing.
	b.gets(a, answers[0])
	require.Nil(t, b.core.stand)

	// A consent that comes twice is stood for once.
	x.w.lose = kindsOf(msgVote, msgFailover)
	b.failover(FailoverPlain)
	m := &consentMsg{Request: b.core.failing.request, Epoch: a.epoch()}
	b.gets(a, m)
	c := b.core.stand
	require.NotNil(t, c)
	require.Equal(t, whyConsent, c.why)
	b.gets(a, m)
	require.Same(t, c, b.core.stand)
	b.gets(a, &consentMsg{Request: m.Request, Error: "no"})
	require.Same(t, c, b.core.stand, "nor is it taken back")
}

// The primary's word counts, and nobody else's.
func TestWhoseConsentCounts(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name string
		edit func(x *replicas, m *consentMsg, from **ruleNode)
		want bool
	}{
		{"the primary's", func(x *replicas, m *consentMsg, from **ruleNode) {}, true},
		{"another's", func(x *replicas, m *consentMsg, from **ruleNode) { *from = x.c }, false},
		{"to another request", func(x *replicas, m *consentMsg, from **ruleNode) { m.Request++ }, false},
	} {
		x := newReplicas(t)
		x.w.lose = kindsOf(msgVote, msgFailover)
		x.b.failover(FailoverPlain)
		m, from := &consentMsg{Request: x.b.core.failing.request, Epoch: x.a.epoch()}, x.a
		row.edit(x, m, &from)
		x.b.gets(from, m)
		if got := x.b.core.stand != nil; got != row.want {
			t.Errorf("%s: stands %v, want %v", row.name, got, row.want)
		}
	}
}

// The replica asks again each NodeTimeout/10, and gives up after two NodeTimeouts.
func TestFailoverIsAskedForAgain(t *testing.T) {
	t.Parallel()
	x := newReplicas(t)
	x.w.lose = kindsOf(msgFailover)
	var r *ruleReply
	n := x.w.count(func() {
		r = x.b.failover(FailoverPlain)
		x.w.run(ruleNT/2 - 1)
	}, kindsOf(msgFailover))
	require.Equal(t, 5, n)
	x.w.run(ruleNT * 3 / 2)
	x.w.run(ruleNT / 10)
	require.Equal(t, "TRYAGAIN the primary has not agreed in time, nothing has changed", r.String())
	require.Nil(t, x.b.core.failing)
	require.Equal(t, "a", x.b.owns(5))
}

// Once it has been voted on it may happen.
func TestFailoverWithoutAMajorityMayHappen(t *testing.T) {
	t.Parallel()
	for _, mode := range []FailoverMode{FailoverPlain, FailoverForce} {
		x := newReplicas(t)
		x.w.lose = func(m ruleMail) bool { return m.from == x.b && m.msg.kind() == msgVote }
		r := x.b.failover(mode)
		x.w.deliver()
		x.a.paused()
		x.w.run(ruleNT * 21 / 10)
		require.Equal(t, "CLUSTERDOWN no majority of the voters has answered; it may still happen", r.String())
		require.Nil(t, x.b.core.stand)
		require.True(t, x.a.serves(5), "the primary has won again")
	}
}

// FORCE does without the primary's word, and acknowledges nothing for as long as
// its lease may run.
func TestForcedFailoverServesLate(t *testing.T) {
	t.Parallel()
	for _, dead := range []bool{false, true} {
		x := newReplicas(t)
		a, b := x.a, x.b
		if dead {
			a.crash()
		}
		began := x.w.now
		r := b.failover(FailoverForce)
		x.w.deliver()
		require.True(t, b.core.lead != nil && b.core.lead.opened, "no lease is waited for")
		require.Equal(t, "OK", x.w.settle(r))
		require.Empty(t, a.told1(t), "nobody has been paused")
		x.w.run(began + ruleNT - ruleNT/50 - x.w.now)
		require.False(t, b.serves(5))
		x.w.run(ruleNT / 25)
		require.True(t, b.serves(5))
		require.False(t, !dead && a.serves(5))
	}
}

// Until then it gives no slots away either: whoever got them would acknowledge beside
// the primary that was.
func TestAWinnerByForceGivesNothingBeforeItServes(t *testing.T) {
	t.Parallel()
	x := newReplicas(t)
	a, b := x.a, x.b
	began := x.w.now
	a.cut = true
	b.failover(FailoverForce)
	x.w.deliver()
	require.True(t, b.core.lead != nil && b.core.lead.opened)
	b.told = nil
	b.handOff(7, "5", x.d.shard())
	require.Equal(t, []jobTell{{7, false}}, toldOf[jobTell](b))
	require.True(t, a.serves(5), "its lease runs")
	require.Contains(t, b.setSlots("5", x.d).String(), "won by force")
	x.w.until("it serves", func() bool { return b.serves(5) })
	require.GreaterOrEqual(t, x.w.now, began+ruleNT-ruleNT/50)
	b.told = nil
	b.handOff(8, "5", x.d.shard())
	require.NotEmpty(t, toldOf[freezeTell](b))
}

// FORCE is for who is in sync: the voters hold the record against any other.
func TestForcedFailoverOfWhoIsNotInSync(t *testing.T) {
	t.Parallel()
	x := newReplicas(t)
	require.Equal(t, "OK", x.w.settle(x.d.replicate(x.a.core.id, false)))
	x.d.core.holdsCopy = true
	r := x.d.failover(FailoverForce)
	x.w.run(3 * ruleNT)
	require.Equal(t, "CLUSTERDOWN no majority of the voters has answered; it may still happen", r.String())
	require.True(t, x.a.serves(5))
}

// TAKEOVER makes a replica the primary at once, whatever it holds; it acknowledges
// once it has won, and one NodeTimeout later.
func TestTakeoverOfAReplica(t *testing.T) {
	t.Parallel()
	x := newReplicas(t)
	require.Equal(t, "OK", x.w.settle(x.d.replicate(x.a.core.id, false)))
	a, d := x.a, x.d
	require.False(t, d.core.holdsCopy)
	epoch, began := a.epoch(), x.w.now
	r := d.takeover()
	x.w.deliver()
	require.Equal(t, "OK", x.w.settle(r))
	e := d.epoch()
	require.Equal(t, []any{epoch.Number + 1, true, d.core.id}, []any{e.Number, e.Unclean, e.Node})
	require.Equal(t, "d", x.e.owns(5))
	require.Nil(t, a.core.lead)
	require.Len(t, d.eventsOf(EventUnclean), 1)
	require.Equal(t, a.core.id, d.eventsOf(EventUnclean)[0].From)
	require.Equal(t, "d", d.inSync(), "nobody else has what it has")
	require.False(t, d.serves(5))
	x.w.run(began + ruleNT - ruleNT/50 - x.w.now)
	require.False(t, d.serves(5))
	x.w.until("it serves", func() bool { return d.serves(5) })
}

// A TAKEOVER that has not won in time, or whose number is taken, goes on as one under
// a higher number.
func TestTakeoverGoesOn(t *testing.T) {
	t.Parallel()
	x := newReplicas(t)
	require.Equal(t, "OK", x.w.settle(x.d.replicate(x.a.core.id, false)))
	x.w.lose = kindsOf(msgVote)
	r := x.d.takeover()
	x.w.deliver()
	e := x.d.core.stand.epoch
	require.True(t, e.Unclean)
	x.w.run(ruleNT * 6 / 10)
	require.True(t, x.d.core.stand.epoch.Unclean)
	require.Greater(t, x.d.core.stand.epoch.Number, e.Number)
	x.w.lose = nil
	require.Equal(t, "OK", x.w.settle(r))
	x.w.until("it serves, and had no copy", func() bool { return x.d.serves(5) })
	require.True(t, x.d.epoch().Unclean)
}

// Asked again a TAKEOVER goes on: it takes the shard from nobody, and least of all from
// this node itself, which would acknowledge nothing for as long as its own lease runs.
func TestTakeoverAskedAgain(t *testing.T) {
	t.Parallel()
	x := newReplicas(t)
	d := x.d
	require.Equal(t, "OK", x.w.settle(d.replicate(x.a.core.id, false)))
	again := func(when string, e Epoch) {
		require.Equal(t, "OK", x.w.settle(d.takeover()), when)
		require.Equal(t, e, d.epoch(), when)
		require.Len(t, d.eventsOf(EventUnclean), 1, when)
		require.Len(t, d.eventsOf(EventDeposed), 1, "%s: of the shard that it had before", when)
	}
	x.w.lose = kindsOf(msgVote)
	x.w.settle(d.takeover())
	e := d.epoch()
	again("it stands", e)
	x.w.lose = kindsOf(msgRecord)
	x.w.until("it has won", func() bool { return d.core.lead != nil })
	again("it opens", d.epoch())
	x.w.lose = nil
	x.w.until("it has opened", func() bool { return d.core.leadsLeased() })
	e = d.epoch()
	require.False(t, d.serves(5))
	again("other leases may run", e)
	x.w.until("it serves", func() bool { return d.serves(5) })
	again("it serves", e)
	require.True(t, d.serves(5))

	// Of a primary that a majority may have replaced it is a new one.
	d.unleased()
	require.Equal(t, "OK", x.w.settle(d.takeover()))
	require.Less(t, e.Number, d.epoch().Number)
}

// A failover that something else overtakes is answered.
func TestFailoverIsOvertaken(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name  string
		stood bool
		do    func(x *replicas)
		want  string
	}{
		{"by a TAKEOVER", false, func(x *replicas) { x.b.takeover() }, "TRYAGAIN a TAKEOVER came between, nothing has changed"},
		{"by a TAKEOVER, once it has been voted on", true, func(x *replicas) { x.b.takeover() }, "CLUSTERDOWN a TAKEOVER came between; it may still happen"},
		{"by REPLICATE of another", false, func(x *replicas) { x.b.replicate(x.d.core.id, false) }, "TRYAGAIN this node is of another shard now, nothing has changed"},
	} {
		x := newReplicas(t)
		x.w.lose = kindsOf(msgVote, msgFailover)
		r := x.b.failover(FailoverPlain)
		if row.stood {
			x.b.gets(x.a, &consentMsg{Request: x.b.core.failing.request, Epoch: x.a.epoch()})
		}
		row.do(x)
		if r.String() != row.want {
			t.Errorf("%s: %s, want %s", row.name, r, row.want)
		}
	}
}

// Who wins where nobody in sync is left may have to stand again before it has opened
// the shard. It is in sync in its own record by then: what is lost is named all the
// same, once.
func TestALossIsNamedThoughTheShardIsWonOnceMore(t *testing.T) {
	t.Parallel()
	x := newReplicas(t)
	a, w := x.a, x.w
	x.b.crash()
	x.c.crash()
	w.until("it is alone in sync", func() bool { return a.inSync() == "a" })
	a.crash()
	a.cfg.store += 100
	w.run(ruleNT)
	w.lose = func(m ruleMail) bool { return m.msg.kind() == msgRecord && m.to == x.e }
	a.restart()
	w.until("it has won", func() bool { return a.core.lead != nil })
	w.until("a voter has its record", func() bool { r := x.d.voted(a).record; return r != nil && r.Epoch == a.core.lead.epoch })
	require.Empty(t, a.eventsOf(EventUnclean))
	won := a.core.lead.epoch
	a.step(func(s *state, now time.Duration) output {
		s.begin(now)
		s.outbid(won.Number + 1)
		return s.end()
	})
	w.lose = nil
	w.until("it serves", func() bool { return a.serves(5) })
	require.Greater(t, a.core.lead.epoch.Number, won.Number)
	require.Len(t, a.eventsOf(EventUnclean), 1)
	require.Equal(t, a.core.lead.epoch, a.eventsOf(EventUnclean)[0].Epoch)
	require.Contains(t, a.eventsOf(EventUnclean)[0].Text, "acknowledged writes may be lost")
}
