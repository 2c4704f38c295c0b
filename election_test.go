package slotmesh

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// ---- when a node stands

// replica makes b a member of a's shard, as it is once data is replicated: c
// and all others see a as its primary.
func replica(w *ruleWorld, a, b *ruleNode) {
	for _, n := range w.nodes {
		n.core.begin(w.now)
		n.core.setPeer(n.knows(b), pushNothing, func(e *peerEntry) { e.Shard = a.shard() })
	}
	b.core.lead, b.core.stand, b.core.promise = nil, nil, Epoch{}
	b.core.primary = w.now
}

// For NodeTimeout/2 it has had no heartbeat of a primary that holds its lease (a
// heartbeat says so), or it was this shard's primary and restarted, or it is its
// open primary and a voter's answer names a higher promise.
func TestWhenANodeStands(t *testing.T) {
	t.Parallel()
	const nt = ruleNT
	for _, row := range []struct {
		name string
		edit func(s *state) // of an open primary under its lease
		due  bool
	}{
		{"an open primary under its lease", func(s *state) {}, false},
		{"its lease over for less than half a NodeTimeout", func(s *state) { s.lead.leaseEnd = s.now - nt/2 + 1 }, false},
		{"its lease over for half a NodeTimeout", func(s *state) { s.lead.leaseEnd = s.now - nt/2 }, true},
		{"its lease never held, just opened", func(s *state) { s.lead.leaseEnd, s.lead.openedAt = never, s.now }, false},
		{"its lease never held, opened half a NodeTimeout ago", func(s *state) { s.lead.leaseEnd, s.lead.openedAt = never, s.now-nt/2 }, true},
		{"a higher promise is heard of", func(s *state) { s.outbid(s.lead.epoch.Number + 1) }, true},
		{"a lower promise is heard of", func(s *state) { s.outbid(s.lead.epoch.Number - 1) }, false},
		{"somebody else is promised its own number", func(s *state) { s.outbid(s.lead.epoch.Number) }, true},
		{"it has restarted", func(s *state) { s.lead = nil }, true},
		{"slots were learnt late", func(s *state) { s.lead.late.Add(5) }, true},
		{"a new epoch is asked for", func(s *state) { s.bumps = []bump{{1, s.now + nt}} }, true},
		{"it has just withdrawn", func(s *state) { s.lead, s.nextRun = nil, s.now+1 }, false},
		{"it has won and does not serve yet", func(s *state) { s.lead.opened = false }, false},
		{"it has won, and a higher promise is heard of", func(s *state) { s.lead.opened = false; s.outbid(s.lead.epoch.Number + 1) }, true},
		{"a member, its primary heard", func(s *state) { follow(s); s.primary = s.now - nt/2 + 1 }, false},
		{"a member, its primary silent or without a lease for half a NodeTimeout", func(s *state) { follow(s); s.primary = s.now - nt/2 }, true},
	} {
		w := newRules(t)
		a := w.cluster(1, 3)[0]
		w.run(2 * nt)
		row.edit(a.core)
		if due, why := a.core.standDue(); due != row.due || why != whySilence {
			t.Errorf("%s: due %v for %v, want %v", row.name, due, why, row.due)
		}
	}
}

// follow makes another node the primary of this node's shard.
func follow(s *state) {
	s.lead = nil
	s.table.setShard(s.self.Shard, Epoch{Number: 1, Node: NodeID{0xee}})
}

// Only a heartbeat of the shard's primary that says it holds its lease is one
// that a member waits for; its own lease is one for a primary.
func TestWhichHeartbeatsKeepAMemberFromStanding(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name string
		edit func(m *heartbeat, who *sender)
		want bool
	}{
		{"of the primary under its lease", func(*heartbeat, *sender) {}, true},
		{"of the primary without a lease", func(m *heartbeat, _ *sender) { m.Flags &^= beatLeased }, false},
		{"of a primary of another shard", func(_ *heartbeat, who *sender) { who.Shard = ShardID{9} }, false},
	} {
		w := newRules(t)
		ns := w.cluster(1, 3)
		a, b := ns[0], ns[1]
		replica(w, a, b)
		w.now += ruleNT / 4
		who := *a.core.who
		m := &heartbeat{Flags: beatOpen | beatLeased, Sent: a.core.stamp() + 500}
		row.edit(m, &who)
		b.getsAs(who, m)
		if got := b.core.primary == w.now; got != row.want {
			t.Errorf("%s: kept from standing %v, want %v", row.name, got, row.want)
		}
	}
}

// A stand is no promise: it is withdrawn (its grants forgotten, its epoch stays
// used) when a leased primary is heard.
func TestStandIsWithdrawnWhenALeasedPrimaryIsHeard(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name  string
		flags beatFlags
		why   why
		stays bool
	}{
		{"a leased primary", beatOpen | beatLeased, whySilence, false},
		{"a leased primary, after nobody in sync seemed to be left", beatOpen | beatLeased, whyUnclean, false},
		{"a primary without a lease", beatOpen, whySilence, true},
		{"FORCE does not ask for silence", beatOpen | beatLeased, whyForce, true},
		{"nor does a consent", beatOpen | beatLeased, whyConsent, true},
	} {
		w := newRules(t)
		ns := w.cluster(1, 3)
		a, b := ns[0], ns[1]
		replica(w, a, b)
		w.lose = kindsOf(msgVote)
		b.step(func(s *state, now time.Duration) output { s.begin(now); s.standFor(row.why); return s.end() })
		used := b.core.stand.epoch
		b.gets(a, &heartbeat{Flags: row.flags, Sent: a.core.stamp() + 500})
		if stays := b.core.stand != nil; stays != row.stays {
			t.Errorf("%s: stands %v, want %v", row.name, stays, row.stays)
		}
		require.GreaterOrEqual(t, b.core.used[b.shard()], used.Number, row.name)
		b.step(func(s *state, now time.Duration) output {
			s.begin(now)
			s.stand = nil
			s.standFor(whySilence)
			return s.end()
		})
		require.Equal(t, used.Number+1, b.core.stand.epoch.Number, row.name)
	}
}

// Winning, or taking a frame of a newer epoch, is a promise.
func TestNewerEpochEndsAStandAndARule(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	ns := w.cluster(1, 3)
	a, b := ns[0], ns[1]
	newer := Epoch{a.epoch().Number + 5, false, NodeID{0xee}}
	w.lose = kindsOf(msgVote)
	a.step(func(s *state, now time.Duration) output { s.begin(now); s.standFor(whySilence); return s.end() })
	a.gets(b, &updateMsg{Shards: []shardRow{{a.shard(), newer}}})
	require.Nil(t, a.core.stand)
	require.Nil(t, a.core.lead)
	require.False(t, a.serves(5))
	require.Equal(t, newer, a.core.promise)
	require.Len(t, a.eventsOf(EventDeposed), 1)
	a.restart()
	require.Equal(t, newer, a.core.promise, "a member's own promise is saved")
}

// ---- asking

// epoch = highest heard or used + 1, saved before it asks.
func TestEpochThatIsAskedFor(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name string
		edit func(s *state)
		want uint64
	}{
		{"one above the table", func(s *state) { s.table.shards[s.self.Shard] = Epoch{Number: 7, Node: s.id} }, 8},
		{"one above what was used", func(s *state) { s.used[s.self.Shard] = 11 }, 12},
		{"one above what was heard", func(s *state) { s.heardEpoch(s.self.Shard, 13) }, 14},
		{"one above what was promised here", func(s *state) { s.vote.shard(s.self.Shard).promised.Number = 15 }, 16},
		{"not above what is heard of other shards", func(s *state) { s.heardEpoch(ShardID{9}, 99) }, 2},
	} {
		w := newRules(t)
		a := w.cluster(1, 3)[0]
		a.slowDisk = true
		row.edit(a.core)
		require.Zero(t, w.count(func() {
			a.step(func(s *state, now time.Duration) output { s.begin(now); s.standFor(whySilence); return s.end() })
		}, kindsOf(msgVote)), row.name)
		var asked []*voteMsg
		w.seen = func(m ruleMail) {
			if v, ok := m.msg.(*voteMsg); ok {
				var c numberCell
				require.NoError(t, decodeValue(a.disk[cellKey{kind: cellUsed, id: a.shard()}], &c), row.name)
				require.Equal(t, v.Epoch.Number, c.N, row.name)
				asked = append(asked, v)
			}
		}
		a.flush()
		require.Len(t, asked, 2, row.name)
		if asked[0].Epoch != (Epoch{row.want, false, a.core.id}) {
			t.Errorf("%s: asks for %v, want %d", row.name, asked[0].Epoch, row.want)
		}
	}
}

// VOTE names the voters' version, the incarnation, the newest record that names
// the candidate, and the shard's slots with their moves.
func TestWhatAVoteNames(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	ns := w.cluster(2, 3)
	a := ns[0]
	a.core.begin(w.now)
	a.core.setSlot(7, slotEntry{a.shard(), 4}, pushNothing)
	var m *voteMsg
	w.seen = func(x ruleMail) {
		if v, ok := x.msg.(*voteMsg); ok && x.from == a {
			m = v
		}
	}
	a.core.knownRecord = &record{Shard: a.shard(), Epoch: a.epoch(), N: 3, InSync: []incarnate{a.core.member()}}
	a.step(func(s *state, now time.Duration) output { s.begin(now); s.standFor(whyForce); return s.end() })
	require.Equal(t, &voteMsg{Voters: voterVersion{Number: 1}, Shard: a.shard(), Epoch: Epoch{a.core.used[a.shard()], false, a.core.id},
		Incarnation: a.cfg.incarnation, Records: []record{*a.core.knownRecord}, Slots: moveRuns{{0, 6, 1}, {7, 7, 4}, {8, 8191, 1}}, Why: whyForce}, m)
}

// The record that a candidate brings is the newest that names it, whoever has
// shown it.
func TestRecordsThatACandidateKnows(t *testing.T) {
	t.Parallel()
	s := lone(t, 1)
	rec := func(number uint64, shard ShardID, node NodeID) *record {
		return &record{Shard: shard, Epoch: Epoch{Number: number}, InSync: []incarnate{{node, s.self.Store}}}
	}
	own := s.self.Shard
	for _, row := range []struct {
		name string
		r    *record
		want uint64
	}{
		{"the first one", rec(3, own, s.id), 3},
		{"an older one", rec(2, own, s.id), 3},
		{"a newer one that names another", rec(4, own, NodeID{9}), 3},
		{"a newer one of another shard", rec(5, ShardID{9}, s.id), 3},
		{"a newer one", rec(6, own, s.id), 6},
	} {
		s.knowRecord(row.r)
		if got := s.knownRecord.Epoch.Number; got != row.want {
			t.Errorf("%s: knows record %d, want %d", row.name, got, row.want)
		}
	}
}

// candidate is a, who stands for its shard; the votes that it sends are noted
// and go nowhere.
type candidate struct {
	w     *ruleWorld
	a     *ruleNode
	ns    []*ruleNode
	asked []string // whom it asks, at which time since its stand, for which number
	began time.Duration
}

func newCandidate(t *testing.T, w why) *candidate {
	t.Helper()
	c := &candidate{w: newRules(t)}
	c.ns = c.w.cluster(1, 3)
	c.a = c.ns[0]
	c.w.run(2 * ruleNT)
	c.a.core.lead = nil
	c.w.lose = kindsOf(msgVote, msgUpdate)
	c.began = c.w.now
	c.w.seen = func(m ruleMail) {
		if v, ok := m.msg.(*voteMsg); ok && m.from == c.a {
			c.asked = append(c.asked, fmt.Sprintf("%s %d ms for %d", m.to.name, (c.w.now-c.began)/time.Millisecond, v.Epoch.Number))
		}
	}
	for _, n := range c.ns { // nobody votes for a by itself, a's own vote included
		n.core.vote.shard(c.a.shard()).promised = Epoch{Number: 90, Node: NodeID{0xee}}
	}
	c.a.core.vote.current.ID++ // its own vote is silent
	c.a.step(func(s *state, now time.Duration) output { s.begin(now); s.standFor(w); return s.end() })
	return c
}

func (c *candidate) takeAsked() []string {
	was := c.asked
	c.asked = nil
	slices.Sort(was)
	return was
}

func (c *candidate) refuses(n *ruleNode, w refuseWhy, retry time.Duration, promised uint64) {
	m := &refuseMsg{Voters: c.a.core.table.voters.Version, Shard: c.a.shard(), Epoch: c.a.core.stand.epoch, Why: w,
		RetryIn: uint32(retry / time.Millisecond), Promised: Epoch{Number: promised}}
	c.a.gets(n, m)
}

// It asks all voters; an ask without an answer is repeated each NodeTimeout/10.
func TestAskIsRepeatedUntilItIsAnswered(t *testing.T) {
	t.Parallel()
	c := newCandidate(t, whySilence)
	require.Equal(t, []string{"b 0 ms for 91", "c 0 ms for 91"}, c.takeAsked())
	c.w.run(ruleNT * 25 / 100)
	require.Equal(t, []string{"b 100 ms for 91", "b 200 ms for 91", "c 100 ms for 91", "c 200 ms for 91"}, c.takeAsked())
	c.a.gets(c.ns[1], &grantMsg{Voters: c.a.core.table.voters.Version, Shard: c.a.shard(), Epoch: c.a.core.stand.epoch})
	c.w.run(ruleNT / 10)
	require.Equal(t, []string{"c 300 ms for 91"}, c.takeAsked(), "who has granted is not asked again")
}

// A refusal says in how many ms to ask again; the candidate asks that voter, and
// only that one, again exactly then.
func TestRefusedCandidateAsksAgainExactlyThen(t *testing.T) {
	t.Parallel()
	c := newCandidate(t, whySilence)
	c.takeAsked()
	c.w.run(30 * time.Millisecond)
	c.refuses(c.ns[1], refuseLease, 143*time.Millisecond, 0)
	c.w.run(142 * time.Millisecond)
	require.Equal(t, []string{"c 100 ms for 91"}, c.takeAsked())
	c.w.run(time.Millisecond)
	require.Equal(t, []string{"b 173 ms for 91"}, c.takeAsked())
	c.refuses(c.ns[2], refuseInSync, 20*time.Millisecond, 0)
	c.w.run(20 * time.Millisecond)
	require.Equal(t, []string{"c 193 ms for 91"}, c.takeAsked(), "whatever the reason")
}

// After "promised to another" it asks all with a higher epoch 0.05 NodeTimeout
// later.
func TestAfterPromisedToAnotherItAsksWithAHigherEpoch(t *testing.T) {
	t.Parallel()
	c := newCandidate(t, whySilence)
	c.takeAsked()
	c.a.gets(c.ns[2], &grantMsg{Voters: c.a.core.table.voters.Version, Shard: c.a.shard(), Epoch: c.a.core.stand.epoch})
	c.refuses(c.ns[1], refusePromised, 0, 140)
	c.w.run(49 * time.Millisecond)
	require.Empty(t, c.takeAsked())
	c.w.run(time.Millisecond)
	require.Equal(t, []string{"b 50 ms for 141", "c 50 ms for 141"}, c.takeAsked())
	require.Empty(t, c.a.core.stand.grants, "grants of another epoch are void")
}

// A stand ends after four NodeTimeouts (FORCE: NodeTimeout/2) and begins again
// with a higher epoch.
func TestStandBeginsAgainWithAHigherEpoch(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		why  why
		ends time.Duration
	}{{whySilence, 4 * ruleNT}, {whyForce, ruleNT / 2}, {whyConsent, ruleNT / 2}} {
		c := newCandidate(t, row.why)
		c.w.run(row.ends)
		for _, s := range c.takeAsked() {
			require.Contains(t, s, "for 91", "%v", row.why)
		}
		c.w.run(ruleNT / 10)
		all := c.takeAsked()
		require.NotEmpty(t, all)
		require.Contains(t, all[len(all)-1], "for 92", "%v", row.why)
		require.Equal(t, row.why, c.a.core.stand.why)
	}
}

// A new version of the voters voids the grants and asks all again.
func TestNewVotersVoidTheGrants(t *testing.T) {
	t.Parallel()
	c := newCandidate(t, whySilence)
	a, b := c.a, c.ns[1]
	old := a.core.table.voters.Version
	grant := &grantMsg{Voters: old, Shard: a.shard(), Epoch: a.core.stand.epoch}
	a.gets(b, grant)
	require.Len(t, a.core.stand.grants, 1)
	c.takeAsked()
	next := voterSet{Version: voterVersion{Number: 2}, ID: 99, Members: a.core.table.voters.Members}
	a.gets(b, &updateMsg{Voters: []voterSet{next}})
	a.tick()
	require.Empty(t, a.core.stand.grants)
	require.Equal(t, []string{"b 0 ms for 91", "c 0 ms for 91"}, c.takeAsked())
	a.gets(c.ns[2], grant)
	require.Empty(t, a.core.stand.grants, "an answer of the old version")
	grant = &grantMsg{Voters: next.Version, Shard: a.shard(), Epoch: a.core.stand.epoch}
	a.gets(b, grant)
	require.Len(t, a.core.stand.grants, 1)
}

// Which grants make a majority.
func TestWhichGrantsCount(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name string
		edit func(c *candidate, g *grantMsg)
		want bool
	}{
		{"of a voter", func(*candidate, *grantMsg) {}, true},
		{"of another epoch of this stand", func(_ *candidate, g *grantMsg) { g.Epoch.Number-- }, false},
		{"of another shard", func(_ *candidate, g *grantMsg) { g.Shard = ShardID{9} }, false},
		{"of another version", func(_ *candidate, g *grantMsg) { g.Voters.Number++ }, false},
		{"of another count of imposed voters", func(_ *candidate, g *grantMsg) { g.Voters.Forced++ }, false},
		{"of no voter", func(c *candidate, _ *grantMsg) { c.a.core.table.voters.Members = c.a.core.table.voters.Members[:1] }, false},
		{"of a voter under another key", func(c *candidate, _ *grantMsg) { c.a.core.table.voters.Members[1].Key++ }, false},
	} {
		c := newCandidate(t, whySilence)
		g := &grantMsg{Voters: c.a.core.table.voters.Version, Shard: c.a.shard(), Epoch: c.a.core.stand.epoch}
		row.edit(c, g)
		c.a.gets(c.ns[1], g)
		if got := len(c.a.core.stand.grants) == 1; got != row.want {
			t.Errorf("%s: counts %v, want %v", row.name, got, row.want)
		}
	}
}

// ---- opening: R4

// Per slot as named in the VOTE with move m: of the accepted moves m + 1 in the
// grants the one of highest epoch is kept, unless a grant shows the slot opened
// at m with an epoch above that acceptance's; an accepted move above m + 1
// proves that the slot has left: neither kept nor opened, nor asked for again.
func TestOpeningRepairsWhatItsPredecessorHalfDid(t *testing.T) {
	t.Parallel()
	const m = 5 // the named move of slot 7
	type grant struct {
		accepted accepted // of slot 7
		opened   opening
	}
	ours, b, c := ShardID{1}, ShardID{0xb}, ShardID{0xc}
	epoch := func(n uint64) Epoch { return Epoch{n, false, NodeID{1}} }
	acc := func(shard ShardID, move, number uint64) accepted { return accepted{shard, move, epoch(number)} }
	brought := grant{accepted: acc(ours, m, 3)} // the move that brought it here
	for _, row := range []struct {
		name   string
		grants []grant
		want   string
	}{
		{"no accepted move but the one that brought it", []grant{brought, brought}, "opened"},
		{"the one that brought it, known to one voter", []grant{brought, {}}, "opened"},
		{"no voter knows of the move that brought it: hearsay", []grant{{}, {}}, "not proven"},
		{"another shard by the named move", []grant{{accepted: acc(b, m, 3)}, {}}, "not proven"},
		{"an older move of it", []grant{{accepted: acc(ours, m-1, 3)}, {}}, "not proven"},

		{"half accepted by one", []grant{{accepted: acc(b, m+1, 4)}, brought}, "kept for b by epoch 4"},
		{"half accepted by both", []grant{{accepted: acc(b, m+1, 4)}, {accepted: acc(b, m+1, 4)}}, "kept for b by epoch 4"},
		{"half accepted twice: the highest epoch", []grant{{accepted: acc(b, m+1, 4)}, {accepted: acc(c, m+1, 6)}}, "kept for c by epoch 6"},
		{"half accepted twice, the other way round", []grant{{accepted: acc(c, m+1, 6)}, {accepted: acc(b, m+1, 4)}}, "kept for c by epoch 6"},

		{"half accepted, and opened since by a later primary", []grant{{accepted: acc(b, m+1, 4)}, {accepted: acc(ours, m, 3), opened: opening{m, epoch(5)}}}, "opened"},
		{"half accepted, and opened since, both at one voter", []grant{{accepted: acc(b, m+1, 4), opened: opening{m, epoch(5)}}, {}}, "opened"},
		{"half accepted by the very primary that opened", []grant{{accepted: acc(b, m+1, 4), opened: opening{m, epoch(4)}}, brought}, "kept for b by epoch 4"},
		{"half accepted, and opened before", []grant{{accepted: acc(b, m+1, 4), opened: opening{m, epoch(3)}}, brought}, "kept for b by epoch 4"},
		{"half accepted, and opened since at another move", []grant{{accepted: acc(b, m+1, 4), opened: opening{m + 1, epoch(5)}}, brought}, "kept for b by epoch 4"},
		{"half accepted twice, the older one overruled", []grant{{accepted: acc(b, m+1, 4), opened: opening{m, epoch(5)}}, {accepted: acc(c, m+1, 6)}}, "kept for c by epoch 6"},

		{"a later move accepted: it has left", []grant{{accepted: acc(b, m+2, 9)}, brought}, "not proven"},
		{"a later move accepted, and the next one", []grant{{accepted: acc(b, m+2, 9)}, {accepted: acc(c, m+1, 4)}}, "not proven"},
		{"a later move accepted, and opened since at the named one", []grant{{accepted: acc(b, m+2, 4), opened: opening{m, epoch(9)}}, brought}, "not proven"},
	} {
		s := lone(t, 1)
		s.table.setVoters(voterSet{Version: voterVersion{Number: 1}})
		cand := &candidacy{shard: ours, epoch: epoch(20), named: moveRuns{{0, 6, 1}, {7, 7, m}, {8, 9, 1}}, grants: map[NodeID]*grantMsg{}}
		for i, g := range row.grants {
			msg := &grantMsg{}
			if g.accepted != (accepted{}) {
				msg.Accepted.add(7, g.accepted)
			}
			if g.opened != (opening{}) {
				msg.Opened.add(7, g.opened)
			}
			cand.grants[NodeID{byte(i + 1)}] = msg
		}
		r := s.repair(cand)
		got := "neither"
		r.kept.each(func(slot Slot, a accepted) {
			number := uint64(0)
			for _, g := range cand.grants {
				g.Accepted.each(func(_ Slot, x accepted) {
					if x.shard == a.shard && x.move == a.move {
						number = x.epoch.Number
					}
				})
			}
			got = fmt.Sprintf("kept for %x by epoch %d", a.shard[0], number)
			require.Equal(t, cand.epoch, a.epoch, row.name)
			require.Equal(t, Slot(7), slot, row.name)
			require.Equal(t, uint64(m+1), a.move, row.name)
		})
		r.opened.each(func(slot Slot, move uint64) {
			if slot == 7 {
				got = "opened"
				require.Equal(t, uint64(m), move, row.name)
			}
		})
		if r.unproven.Contains(7) {
			got = "not proven"
		}
		if got != row.want {
			t.Errorf("%s: %s, want %s", row.name, got, row.want)
		}
	}
}

// Where what voters have known may be lost, the table is believed: nobody's
// slots, and after voters have been imposed.
func TestHearsayIsOpenedWhereVotersMayHaveLostIt(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name   string
		shard  ShardID
		forced uint64
		opened bool
	}{
		{"a shard", ShardID{1}, 0, false},
		{"a shard, voters imposed", ShardID{1}, 1, true},
		{"nobody's slots", ShardID{}, 0, true},
	} {
		s := lone(t, 1)
		s.table.setVoters(voterSet{Version: voterVersion{Forced: row.forced, Number: 1}})
		r := s.repair(&candidacy{shard: row.shard, named: moveRuns{{7, 7, 5}}, grants: map[NodeID]*grantMsg{{1}: {}}})
		if got := len(r.opened) == 1; got != row.opened {
			t.Errorf("%s: opened %v, want %v", row.name, got, row.opened)
		}
	}
}

// Only a slot that the VOTE named is opened, whatever grants show.
func TestOpeningNamesTheSlotsOfItsVote(t *testing.T) {
	t.Parallel()
	s := lone(t, 1)
	g := &grantMsg{}
	g.Accepted.add(3, accepted{ShardID{1}, 5, Epoch{}})
	g.Accepted.add(4, accepted{ShardID{2}, 6, Epoch{}})
	g.Accepted.add(9, accepted{ShardID{1}, 5, Epoch{}})
	r := s.repair(&candidacy{shard: ShardID{1}, named: moveRuns{{9, 9, 5}}, grants: map[NodeID]*grantMsg{{1}: g}})
	require.Equal(t, repairs{opened: moveRuns{{9, 9, 5}}}, r)
}

// With grants of a majority c has won, but serves nothing yet: requests wait. A
// majority of accepts opens, and each accept is a lease.
func TestWinnerServesOnceItsRecordIsAccepted(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	ns := w.cluster(1, 3)
	a, b, c := ns[0], ns[1], ns[2]
	w.run(2 * ruleNT)
	w.hold = func(m ruleMail) bool {
		return m.from == a && m.to != a && m.msg.kind() == msgRecord || m.msg.kind() == msgAccept
	}
	a.asleep = true
	a.restart()
	require.Nil(t, a.core.lead)
	require.False(t, a.serves(5))
	require.Nil(t, a.core.serve.hold.Ranges(), "standing: nothing waits")
	a.asleep = false
	w.until("won", func() bool { return a.core.lead != nil })
	require.False(t, a.core.lead.opened)
	require.False(t, a.serves(5))
	require.True(t, a.core.serve.hold.Contains(5), "opening: requests wait")
	before := a.epoch()
	require.Less(t, before.Number, a.core.lead.epoch.Number)

	w.releaseHeld()
	require.True(t, a.core.lead.opened)
	require.True(t, a.serves(5))
	require.Greater(t, a.core.leaseUntil(), w.now, "the accepts are leases")
	require.Equal(t, a.core.lead.epoch, a.epoch())
	require.Equal(t, a.epoch(), b.core.table.shards[a.shard()], "then it tells all")
	require.Equal(t, a.epoch(), c.core.table.shards[a.shard()])
	require.Len(t, a.eventsOf(EventPrimary), 1)
	require.Equal(t, uint64(0), b.voted(a).record.N)
	require.Equal(t, []incarnate{a.core.member()}, b.voted(a).record.InSync)
}

// A primary that stands again goes on under its old lease and epoch until it
// wins.
func TestPrimaryServesOnWhileItStands(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	ns := w.cluster(1, 3)
	a := ns[0]
	w.run(2 * ruleNT)
	w.hold = kindsOf(msgVote, msgRecord)
	old := a.core.lead
	reign := a.core.serve.reign
	a.command(func(s *state, now time.Duration, id uint64) output { return s.bumpEpoch(now, id) })
	w.run(ruleNT / 10)
	require.NotNil(t, a.core.stand)
	require.Same(t, old, a.core.lead)
	require.True(t, a.serves(5))
	require.True(t, a.core.mayReply(reign, w.now))
	w.hold = kindsOf(msgRecord)
	w.mail, w.held = append(w.mail, w.held...), nil
	w.deliver()
	require.NotSame(t, old, a.core.lead)
	require.False(t, a.serves(5), "then as opening")
	require.False(t, a.core.mayReply(reign, w.now), "what ran in the epoch before is of unknown outcome")
	w.releaseHeld()
	require.True(t, a.serves(5))
}

// RECORD is repeated each NodeTimeout/10 until a majority has accepted.
func TestRecordIsRepeatedUntilAMajorityHasAccepted(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	ns := w.cluster(1, 3)
	a := ns[0]
	w.run(2 * ruleNT)
	w.lose = func(m ruleMail) bool { return m.msg.kind() == msgRecord && m.to != a }
	a.restart()
	w.until("won", func() bool { return a.core.lead != nil })
	n := w.count(func() { w.run(ruleNT / 2) }, func(m ruleMail) bool { return m.msg.kind() == msgRecord && m.to == ns[1] })
	require.InDelta(t, 5, n, 1)
	require.False(t, a.core.lead.opened)
	w.lose = nil
	w.run(ruleNT / 10)
	require.True(t, a.core.lead.opened)
	require.Zero(t, w.count(func() { w.run(ruleNT) }, kindsOf(msgRecord)))
}

// A winner that is refused, for a voter has promised more, stands again.
func TestRefusedOpeningStandsAgain(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	ns := w.cluster(1, 3)
	a, b := ns[0], ns[1]
	w.run(2 * ruleNT)
	w.hold = kindsOf(msgRecord)
	a.restart()
	w.until("won", func() bool { return a.core.lead != nil })
	number := a.core.lead.epoch.Number
	for _, n := range ns[1:] {
		n.core.vote.shard(a.shard()).promised = Epoch{number + 3, false, NodeID{0xee}}
	}
	w.releaseHeld()
	w.until("open", func() bool { return a.core.lead != nil && a.core.lead.opened })
	require.Greater(t, a.epoch().Number, number+3)
	require.Equal(t, a.epoch(), b.voted(a).promised)
}

// A winner by FORCE acknowledges nothing for one NodeTimeout after its win, the
// largest lease among the voters.
func TestWinnerByForceWaits(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name     string
		maxLease uint32
		waits    time.Duration
	}{{"one NodeTimeout", 1000, ruleNT}, {"a voter has leased for longer", 1700, ruleNT * 17 / 10}} {
		w := newRules(t)
		ns := w.cluster(1, 3)
		a, b := ns[0], ns[1]
		w.run(2 * ruleNT)
		b.core.vote.maxLease = row.maxLease
		ns[2].cut = true // so that b is of the majority
		a.unleased()
		a.takeover()
		w.deliver()
		require.True(t, a.core.lead != nil && a.core.lead.opened, row.name)
		w.run(row.waits - ruleNT/50)
		require.False(t, a.serves(5), row.name)
		w.run(ruleNT / 25)
		require.True(t, a.serves(5), row.name)
	}
}

// ---- R8, R9: who has never been voted on

// The primary of a shard nobody has voted on yet stands for it as soon as it is
// a member, before it owns a slot; the result is one RECORD with n = 0.
func TestNewMemberStandsForItsShard(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	ns := w.cluster(1, 3)
	a := ns[0]
	x := w.boot()
	began := w.now
	x.meet(a)
	w.until("open", func() bool { return x.core.lead != nil && x.core.lead.opened })
	require.Less(t, w.now-began, ruleNT/2)
	require.Zero(t, x.core.table.owned[x.shard()])
	r := a.voted(x).record
	require.Equal(t, &record{Shard: x.shard(), Epoch: x.epoch(), InSync: []incarnate{x.core.member()}}, r)
	require.Equal(t, uint64(1), x.epoch().Number)
}

// A node that was a shard's primary serves only after winning R3 again in its
// own shard with its current incarnation; leases to itself do not hinder it.
func TestRestartedPrimaryServesOnceItHasWonAgain(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	ns := w.cluster(1, 3)
	a := ns[0]
	w.run(2 * ruleNT)
	before := a.epoch()
	w.hold = kindsOf(msgGrant)
	a.restart()
	w.run(ruleNT / 2)
	require.False(t, a.serves(5))
	ok, _ := a.core.clusterState()
	require.False(t, ok)
	w.releaseHeld()
	w.run(ruleNT / 10)
	require.True(t, a.serves(5))
	require.Greater(t, a.epoch().Number, before.Number)
	require.Equal(t, a.core.self.Store, ns[1].voted(a).incarnation)
}

// ---- slots that come between

// A slot learnt late is named in a new stand first, and answers wait until then.
func TestSlotLearntLateIsServedOnceItHasBeenNamed(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	ns := w.cluster(2, 3)
	a, b, c := ns[0], ns[1], ns[2]
	w.run(2 * ruleNT)
	epoch := a.epoch()
	w.hold = kindsOf(msgVote)
	// c tells that slot 9000 went from b to a: hearsay, for c has not counted.
	a.gets(c, &updateMsg{Slots: slotRuns{Shards: []ShardID{a.shard()}, Runs: []slotRun{{9000, 9000, 0, 2}}}})
	require.Equal(t, "a", a.owns(9000))
	require.False(t, a.serves(9000))
	require.True(t, a.core.lead.late.Contains(9000))
	w.run(ruleNT / 10)
	require.True(t, a.serves(5), "the others are served on")
	require.NotNil(t, a.core.stand)
	w.releaseHeld()
	w.run(ruleNT / 10)
	require.Greater(t, a.epoch().Number, epoch.Number)
	require.False(t, a.serves(9000), "no voter knows of that move")
	require.True(t, a.core.lead.unproven.Contains(9000))
	require.Nil(t, a.core.stand, "it does not stand for it again")
	_ = b
}

// ---- R3: members that stand

// The member that has the most goes first: each waits NodeTimeout/20 for every
// other one, the last primary left out, that has more of the log, or as much and a
// smaller id.
func TestRankOfAMember(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name string
		edit func(s *state, b, d *peer) // as c sees it, whose log is at 5 of epoch 7
		want int
	}{
		{"the other is behind", func(s *state, b, d *peer) { b.log = logPosition{Epoch{Number: 7}, 4} }, 0},
		{"the other is further", func(s *state, b, d *peer) { b.log = logPosition{Epoch{Number: 7}, 6} }, 1},
		{"as far, with a smaller id", func(s *state, b, d *peer) { b.log = logPosition{Epoch{Number: 7}, 5} }, 1},
		{"as far, with a larger id", func(s *state, b, d *peer) { d.log = logPosition{Epoch{Number: 7}, 5} }, 0},
		{"the other is of an older epoch, with a larger offset", func(s *state, b, d *peer) { b.log = logPosition{Epoch{Number: 6}, 99} }, 0},
		{"the other is of a newer epoch", func(s *state, b, d *peer) { b.log = logPosition{Epoch{Number: 8}, 1} }, 1},
		{"two are further", func(s *state, b, d *peer) {
			b.log, d.log = logPosition{Epoch{Number: 7}, 6}, logPosition{Epoch{Number: 7}, 7}
		}, 2},
		{"the one that is further is silent", func(s *state, b, d *peer) {
			b.log = logPosition{Epoch{Number: 7}, 6}
			b.heardAt, b.firstSeen = 0, 0
		}, 0},
		{"it is forgotten", func(s *state, b, d *peer) {
			b.log = logPosition{Epoch{Number: 7}, 6}
			s.setPeer(b, pushNothing, func(e *peerEntry) { e.State = forgotten })
		}, 0},
		{"it is of another shard", func(s *state, b, d *peer) {
			b.log = logPosition{Epoch{Number: 7}, 6}
			s.setPeer(b, pushNothing, func(e *peerEntry) { e.Shard = ShardID{9} })
		}, 0},
	} {
		x := newReplicas(t)
		s := x.c.core
		s.begin(x.w.now)
		s.logAt = logPosition{Epoch{Number: 7, Node: x.a.core.id}, 5}
		x.c.knows(x.a).log = logPosition{Epoch{Number: 9}, 99}
		x.c.knows(x.b).log, x.c.knows(x.d).log = logPosition{}, logPosition{}
		s.setPeer(x.c.knows(x.d), pushNothing, func(e *peerEntry) { e.Shard = s.self.Shard })
		row.edit(s, x.c.knows(x.b), x.c.knows(x.d))
		if got := s.rank(); got != row.want {
			t.Errorf("%s: %d, want %d", row.name, got, row.want)
		}
		wait := s.rankWait(&candidacy{why: whySilence})
		require.Equal(t, time.Duration(row.want)*ruleNT/20, wait, row.name)
		require.Zero(t, s.rankWait(&candidacy{why: whyForce}), "an operator's word waits for nobody")
		require.Zero(t, s.rankWait(&candidacy{why: whyConsent}))
	}
}

// Where nobody of the in-sync set is left a member may stand all the same: one
// NodeTimeout after it could have stood otherwise, one more without a copy where
// others may have one, and never in a strict shard.
func TestWhenNobodyInSyncIsLeft(t *testing.T) {
	t.Parallel()
	const nt = ruleNT
	for _, row := range []struct {
		name   string
		silent time.Duration // since the primary was heard
		edit   func(x *replicas, s *state)
		want   bool
	}{
		{"it has waited for long enough", nt * 3 / 2, func(x *replicas, s *state) {}, true},
		{"it has not", nt*3/2 - 1, func(x *replicas, s *state) {}, false},
		{"without a copy, where another may have one", nt*5/2 - 1, func(x *replicas, s *state) { s.holdsCopy = false }, false},
		{"without a copy, last of all", nt * 5 / 2, func(x *replicas, s *state) { s.holdsCopy = false }, true},
		{"one of them was heard within a NodeTimeout", nt * 3 / 2, func(x *replicas, s *state) { x.c.knows(x.b).heardAt = x.w.now - nt + 1 }, false},
		{"one of them is heard, with another store", nt * 3 / 2, func(x *replicas, s *state) {
			x.c.knows(x.b).heardAt = x.w.now
			x.c.knows(x.b).Store++
		}, true},
		{"it is one of them itself", 9 * nt, func(x *replicas, s *state) { s.self.Store-- }, false},
		{"the shard is strict", 9 * nt, func(x *replicas, s *state) { s.shardRecord.Strict = true }, false},
		{"it knows of no record", 9 * nt, func(x *replicas, s *state) { s.shardRecord = nil }, false},
	} {
		x := newReplicas(t)
		s := x.c.core
		s.begin(x.w.now)
		r := *s.shardRecord
		s.shardRecord = &r
		s.self.Store++ // it is another one than was in sync
		x.c.knows(x.a).heardAt, x.c.knows(x.b).heardAt = x.w.now-9*nt, x.w.now-9*nt
		s.primary = s.now - row.silent
		row.edit(x, s)
		if got := s.nobodyInSync(); got != row.want {
			t.Errorf("%s: %v, want %v", row.name, got, row.want)
		}
	}
}
