package slotmesh

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// NodeTimeout/10 among the members of one shard, NodeTimeout/3 between primaries
// and voters, NodeTimeout/2 elsewhere, and often while nodes are unformed.
func TestPaceOfHeartbeats(t *testing.T) {
	t.Parallel()
	const nt = 5 * time.Second
	type setting struct {
		formed             bool
		votes, peerVotes   bool
		leads, peerLeads   bool
		sameShard          bool
		load               float64 // heartbeats a second
		nodeTimeout, wants time.Duration
	}
	for _, row := range []struct {
		name string
		setting
	}{
		{"a primary and a voter", setting{formed: true, leads: true, peerVotes: true, wants: nt / 3}},
		{"a voter and a primary", setting{formed: true, votes: true, peerLeads: true, wants: nt / 3}},
		{"two voters, neither of which leads", setting{formed: true, votes: true, peerVotes: true, wants: nt / 2}},
		{"two primaries, neither of which votes", setting{formed: true, leads: true, peerLeads: true, wants: nt / 2}},
		{"others", setting{formed: true, wants: nt / 2}},
		{"members of one shard", setting{formed: true, sameShard: true, wants: nt / 10}},
		{"a primary and its member who votes", setting{formed: true, leads: true, peerVotes: true, sameShard: true, wants: nt / 3}},
		{"unformed", setting{leads: true, peerVotes: true, wants: 200 * time.Millisecond}},
		{"unformed with a short NodeTimeout", setting{nodeTimeout: time.Second, wants: 100 * time.Millisecond}},
		{"others, with 500 a second", setting{formed: true, load: 500, wants: nt / 2}},
		{"others, with 1,000 a second", setting{formed: true, load: 1000, wants: nt}},
		{"members of one shard, with 1,000 a second", setting{formed: true, sameShard: true, load: 1000, wants: nt / 5}},
		{"a primary and a voter, with 1,000 a second: leases hang on it", setting{formed: true, leads: true, peerVotes: true, load: 1000, wants: nt / 3}},
	} {
		s := lone(t, 1)
		s.cfg.nodeTimeout = max(row.nodeTimeout, nt)
		if row.nodeTimeout > 0 {
			s.cfg.nodeTimeout = row.nodeTimeout
		}
		if !row.formed {
			s.cluster = ClusterID{}
		}
		p := &peer{peerEntry: peerEntry{ID: NodeID{2}, Key: 2, Shard: ShardID{2}}}
		if row.sameShard {
			p.Shard = s.self.Shard
		}
		s.peers.insert(p)
		leader := func(is bool, id NodeID) Epoch {
			if is {
				return Epoch{Node: id}
			}
			return Epoch{Node: NodeID{9}}
		}
		s.table.setShard(p.Shard, leader(row.peerLeads, p.ID))
		s.table.setShard(s.self.Shard, leader(row.leads, s.id))
		var v voterSet
		if row.votes {
			v.Members = append(v.Members, member{s.id, s.key})
		}
		if row.peerVotes {
			v.Members = append(v.Members, member{p.ID, p.Key})
		}
		s.table.setVoters(v)
		s.beatLoad = row.load
		if got := s.beatPeriod(p); got != row.wants {
			t.Errorf("%s: every %v, want every %v", row.name, got, row.wants)
		}
		silent := s.cfg.nodeTimeout
		if row.wants > silent/2 {
			silent = 3 * row.wants
		}
		if got := s.silentAfter(p); got != silent {
			t.Errorf("%s: silent after %v, want %v", row.name, got, silent)
		}
	}
}

// Each node keeps the pace: one frame per direction and period.
func TestHeartbeatsKeepThePace(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	ns := w.cluster(1, 11)
	require.Equal(t, "abcdefghi", ns[0].voters())
	between := func(x, y *ruleNode) int {
		return w.count(func() { w.run(12 * ruleNT) }, func(m ruleMail) bool { return m.from == x && m.to == y && m.msg.kind() == msgHeartbeat })
	}
	require.InDelta(t, 36, between(ns[0], ns[1]), 3, "a primary and a voter")
	require.InDelta(t, 24, between(ns[9], ns[10]), 2, "others")
}

// A node sends at most about 500 messages a second.
func TestHeartbeatsAreStretchedInALargeCluster(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	a := w.boot(func(c *coreConfig) { c.alone = true })
	w.run(ruleNT)
	for i := range 2000 {
		id := NodeID{2, byte(i >> 8), byte(i)}
		a.core.mergePeer(&peer{}, &peerEntry{ID: id, Version: 1, Addr: fmt.Sprint(i), Shard: ShardID{3}})
	}
	// None of them votes or leads.
	for _, p := range a.core.peers.ordered {
		p.nextBeat = w.now + a.core.jitter(ruleNT)
	}
	v := a.core.table.voters
	v.Members = []member{{NodeID{2}, 0}}
	a.core.table.setVoters(v)
	w.run(5 * ruleNT)
	sent := w.count(func() { w.run(20 * ruleNT) }, kindsOf(msgHeartbeat))
	if perSecond := sent / 20; perSecond < 400 || perSecond > 600 {
		t.Errorf("%d heartbeats a second, want about %d", perSecond, beatsPerSecond)
	}
}

// ---- leases: the voter

// The voter's PONG says "not against you for d ms" iff it is active and not
// stopped, the versions are equal, e = promised exactly, and its record of epoch
// e is the sender's. If its promise is older, or equal and its record older,
// PONG says "behind".
func TestVoterLeasesWhatItHasRecorded(t *testing.T) {
	t.Parallel()
	const epoch, n, start = 7, 3, 99
	const nothing = ""
	type situation struct {
		voter *ruleNode
		v     *voterShard
		m     *heartbeat
		a     NodeID
	}
	for _, row := range []struct {
		name string
		edit func(x *situation)
		want string
	}{
		{"its promise and record", func(*situation) {}, "lease 1000"},
		{"its promise, and a later record", func(x *situation) { x.v.record.N = n + 1 }, "lease 1000"},
		{"an older promise", func(x *situation) { x.v.promised.Number = epoch - 1 }, "behind"},
		{"no promise at all", func(x *situation) { *x.v = voterShard{} }, "behind"},
		{"its promise, and an older record", func(x *situation) { x.v.record.N = n - 1 }, "behind"},
		{"its promise, and a record of an older epoch", func(x *situation) { x.v.record.Epoch.Number = epoch - 1 }, "behind"},
		{"its promise, and no record", func(x *situation) { x.v.record = nil }, "behind"},
		{"a newer promise to another", func(x *situation) { x.v.promised = Epoch{9, false, NodeID{3}} }, "promised 9"},
		{"a promise of its number to another", func(x *situation) { x.v.promised = Epoch{epoch, false, NodeID{0xff}} }, "promised 7"},
		{"a takeover of its number", func(x *situation) { x.v.promised.Unclean = true }, "promised 7"},
		{"a record that leaves the shard to nobody", func(x *situation) { x.v.record.Vacant = true }, nothing},
		{"another START", func(x *situation) { x.m.Start++ }, nothing},
		{"no claim", func(x *situation) { x.m.Flags &^= beatOpen }, nothing},
		{"stopped", func(x *situation) { x.voter.core.vote.stop = ballot{1, x.a} }, nothing},
		{"stopped, with an older promise", func(x *situation) {
			x.voter.core.vote.stop = ballot{1, x.a}
			x.v.promised.Number = epoch - 1
		}, nothing},
		{"not active", func(x *situation) { x.voter.core.vote.current = nil }, nothing},
		{"no voter", func(x *situation) {
			x.voter.core.table.voters.Members = x.voter.core.table.voters.Members[:1]
		}, nothing},
		{"its record is not saved yet", func(x *situation) { x.v.savedBy = x.voter.core.savedSeq + 1 }, nothing},
		{"that it leases so long is not saved yet", func(x *situation) { x.voter.core.vote.maxLeaseSave = x.voter.core.savedSeq + 1 }, nothing},
		{"a claim under a takeover that it has recorded", func(x *situation) {
			x.m.Flags |= beatUnclean
			x.v.promised.Unclean, x.v.record.Epoch.Unclean = true, true
		}, "lease 1000"},
	} {
		w := newRules(t)
		ns := w.cluster(3, 3)
		a, b := ns[0], ns[1]
		for _, x := range ns {
			x.core.table.voters.ID = start
		}
		b.core.vote.current.ID = start
		e := Epoch{epoch, false, a.core.id}
		v := b.voted(a)
		*v = voterShard{promised: e, record: &record{Shard: a.shard(), Epoch: e, N: n, InSync: []incarnate{{a.core.id, 1}}}}
		m := &heartbeat{Flags: beatOpen | beatAnswerNow, Start: start, Epoch: epoch, N: n, Sent: a.core.stamp() + 1}
		row.edit(&situation{b, v, m, a.core.id})
		got := nothing
		for _, answer := range b.gets(a, m) {
			h, ok := answer.(*heartbeat)
			if !ok || h.Answers != m.Sent {
				continue
			}
			switch {
			case h.Lease > 0:
				got = fmt.Sprint("lease ", h.Lease)
			case h.Flags&beatBehind != 0:
				got = "behind"
			case h.Promised > 0:
				got = fmt.Sprint("promised ", h.Promised)
			}
		}
		if got != row.want {
			t.Errorf("%s: %q, want %q", row.name, got, row.want)
		}
	}
}

// A lease counts from when the claim came in, and not from when it is answered.
func TestALeaseCountsFromItsClaim(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	ns := w.cluster(1, 3)
	a, b := ns[0], ns[1]
	w.run(2 * ruleNT)
	given := func() time.Duration { return b.core.vote.leases[a.shard()][a.core.id].until }
	own := func() time.Duration { return a.core.vote.leases[a.shard()][a.core.id].until }
	a.crash()
	came := b.knows(a).beatAt
	b.knows(a).answered = false // the claim has come, and is not answered yet
	w.run(ruleNT / 2)
	require.True(t, b.knows(a).answered)
	require.Equal(t, came+ruleNT, given())
	a.restart()
	w.until("it leads again", func() bool { return a.serves(5) })
	a.tick()
	require.Equal(t, w.now+ruleNT, own(), "it asks itself when it ticks")
	at := w.now
	w.hold = func(m ruleMail) bool { return m.from == a && m.msg.kind() == msgHeartbeat }
	w.run(ruleNT / 3)
	w.releaseHeld() // it was on its way for long
	came = b.knows(a).beatAt
	require.Greater(t, came, at)
	w.run(ruleNT / 2)
	require.GreaterOrEqual(t, given(), came+ruleNT, "from when it came, whenever it was sent")
}

// A claim that is answered twice is leased once: a primary that has died must
// not be leased on.
func TestAnsweringAClaimAgainDoesNotLeaseItLonger(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	ns := w.cluster(1, 3)
	a, b := ns[0], ns[1]
	w.run(2 * ruleNT)
	a.crash()
	w.run(ruleNT / 2)
	until := b.core.vote.leases[a.shard()][a.core.id].until
	var answers []*heartbeat
	w.seen = func(m ruleMail) {
		if h, ok := m.msg.(*heartbeat); ok && m.from == b && m.dest.ID == a.core.id {
			answers = append(answers, h)
		}
	}
	w.run(2 * ruleNT)
	require.NotEmpty(t, answers)
	for _, h := range answers {
		require.Equal(t, answers[0].Answers, h.Answers)
		require.Equal(t, uint32(1000), h.Lease, "the same as before")
	}
	require.Equal(t, until, b.core.vote.leases[a.shard()][a.core.id].until)
}

// Leases are remembered per shard and node: a newer one does not replace
// another node's.
func TestLeasesAreRememberedPerNode(t *testing.T) {
	t.Parallel()
	var v voterState
	v.init()
	shard, a, b := ShardID{1}, NodeID{1}, NodeID{2}
	require.Equal(t, time.Duration(never), v.leaseOfOthers(shard, a, Epoch{}))
	v.lease(shard, a, Epoch{Number: 1}, 10)
	v.lease(shard, b, Epoch{Number: 2}, 7)
	require.Equal(t, time.Duration(7), v.leaseOfOthers(shard, a, Epoch{}))
	require.Equal(t, time.Duration(10), v.leaseOfOthers(shard, b, Epoch{}))
	require.Equal(t, time.Duration(10), v.leaseOfOthers(shard, NodeID{3}, Epoch{}))
	v.lease(shard, b, Epoch{Number: 2}, 5)
	require.Equal(t, time.Duration(7), v.leaseOfOthers(shard, a, Epoch{}), "a lease is not shortened")
	require.Equal(t, time.Duration(never), v.leaseOfOthers(ShardID{2}, a, Epoch{}))
}

// The largest lease ever given is saved before it is given.
func TestLengthOfALeaseIsSavedBeforeItIsGiven(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	ns := w.cluster(1, 3)
	a, b := ns[0], ns[1]
	require.Equal(t, uint32(1000), b.core.vote.maxLease)
	require.Contains(t, b.disk, cellKey{kind: cellLease})
	b.crash()
	b.cfg.nodeTimeout = 3 * ruleNT
	b.restart()
	require.Equal(t, uint32(1000), b.core.vote.maxLease)
	b.slowDisk = true
	leases := func() (got []uint32) {
		w.seen = func(m ruleMail) {
			if h, ok := m.msg.(*heartbeat); ok && m.from == b && m.to == a && h.Lease > 0 {
				got = append(got, h.Lease)
			}
		}
		w.run(ruleNT)
		return got
	}
	require.Empty(t, leases())
	b.flush()
	b.slowDisk = false
	require.Contains(t, leases(), uint32(3000))
	var saved numberCell
	require.NoError(t, decodeValue(b.disk[cellKey{kind: cellLease}], &saved))
	require.Equal(t, uint64(3000), saved.N)
}

// ---- leases: the primary

// The primary may acknowledge only while sent-time + 0.9 d of a majority lies
// ahead: with k voters needed, the k-th newest.
func TestPrimaryCountsItsLeaseFromTheAsking(t *testing.T) {
	t.Parallel()
	type answer struct {
		voter int
		sent  time.Duration // before now
		lease uint32
	}
	const d = 1000
	const none = time.Duration(0)
	for _, row := range []struct {
		name    string
		answers []answer
		want    time.Duration // from now on
	}{
		{"no answer", nil, none},
		{"one of five", []answer{{1, 0, d}}, none},
		{"two of five", []answer{{1, 0, d}, {2, 0, d}}, none},
		{"three of five", []answer{{1, 0, d}, {2, 0, d}, {3, 0, d}}, 900 * time.Millisecond},
		{"three of five, asked at three times", []answer{{1, 100 * time.Millisecond, d}, {2, 300 * time.Millisecond, d}, {3, 0, d}}, 600 * time.Millisecond},
		{"four of five", []answer{{1, 100 * time.Millisecond, d}, {2, 300 * time.Millisecond, d}, {3, 0, d}, {4, 200 * time.Millisecond, d}}, 700 * time.Millisecond},
		{"one of them twice", []answer{{1, 0, d}, {2, 0, d}, {2, 0, d}}, none},
		{"one of them again, later", []answer{{1, 0, d}, {2, 0, d}, {3, 300 * time.Millisecond, d}, {3, 100 * time.Millisecond, d}}, 800 * time.Millisecond},
		{"one of them again, an older one late", []answer{{1, 0, d}, {2, 0, d}, {3, 100 * time.Millisecond, d}, {3, 300 * time.Millisecond, d}}, 800 * time.Millisecond},
		{"one leases for less", []answer{{1, 0, d}, {2, 0, 500}, {3, 0, d}}, 450 * time.Millisecond},
		{"one says nothing", []answer{{1, 0, d}, {2, 0, 0}, {3, 0, d}}, none},
		{"an answer to what was asked too long ago", []answer{{1, 0, d}, {2, 0, d}, {3, 950 * time.Millisecond, d}}, -50 * time.Millisecond},
	} {
		w := newRules(t)
		ns := w.cluster(1, 5)
		a := ns[0]
		w.now = (w.now/time.Millisecond + 5000) * time.Millisecond // no voter is heard meanwhile
		a.asleep = true
		l := a.core.lead
		l.leases, l.leaseEnd = map[NodeID]time.Duration{}, w.now+none
		for i, x := range row.answers {
			v := ns[x.voter]
			a.gets(v, &heartbeat{Flags: beatAnswers, Start: a.core.table.voters.ID, Sent: v.core.stamp() + uint32(i) + 1,
				Answers: uint32((w.now - x.sent) / time.Millisecond), Lease: x.lease})
		}
		if got := max(a.core.leaseUntil()-w.now, 0); got != max(row.want, 0) {
			t.Errorf("%s: lease for %v, want %v", row.name, got, row.want)
		}
	}
}

// Only answers of one version are added up, of voters, to what was asked since
// the shard was opened.
func TestWhichAnswersAreNoLease(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name string
		edit func(a, b *ruleNode, m *heartbeat)
		want bool
	}{
		{"an answer of a voter", func(a, b *ruleNode, m *heartbeat) {}, true},
		{"under another START", func(a, b *ruleNode, m *heartbeat) { m.Start++ }, false},
		{"of no voter", func(a, b *ruleNode, m *heartbeat) { a.core.table.voters.Members = a.core.table.voters.Members[:1] }, false},
		{"of a voter under another key", func(a, b *ruleNode, m *heartbeat) { a.core.table.voters.Members[1].Key++ }, false},
		{"to what was asked under the version before", func(a, b *ruleNode, m *heartbeat) { a.core.votersAt = a.w.now + 1 }, false},
		{"to what was asked under the epoch before", func(a, b *ruleNode, m *heartbeat) { a.core.lead.claimedFrom = a.w.now + 1 }, false},
		{"to nothing that was asked", func(a, b *ruleNode, m *heartbeat) { m.Flags = 0 }, false},
	} {
		w := newRules(t)
		ns := w.cluster(1, 3)
		a, b := ns[0], ns[1]
		w.now = (w.now/time.Millisecond + 5000) * time.Millisecond
		m := &heartbeat{Flags: beatAnswers, Start: a.core.table.voters.ID, Sent: b.core.stamp() + 1,
			Answers: uint32(w.now / time.Millisecond), Lease: 1000}
		row.edit(a, b, m)
		a.gets(b, m)
		if got := a.core.lead.leases[b.core.id] > w.now; got != row.want {
			t.Errorf("%s: counted %v, want %v", row.name, got, row.want)
		}
	}
}

// What was reached under an older version of the set stays valid until it runs
// out, so a change of voters costs no service.
func TestLeaseStaysWhenTheVotersChange(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	ns := w.cluster(1, 5)
	a := ns[0]
	end := a.core.leaseUntil()
	require.Greater(t, end, w.now+ruleNT/3)
	next := voterSet{Version: voterVersion{Number: 2}, ID: 99, Members: a.core.table.voters.Members[1:4]}
	a.gets(ns[4], &updateMsg{Voters: []voterSet{next}})
	require.Equal(t, end, a.core.leaseUntil())
	require.True(t, a.serves(5))
	w.now = end
	require.False(t, a.serves(5))
}

// A primary whose lease has less than NodeTimeout/5 to run asks for an answer at
// once.
func TestPrimaryAsksForAnAnswerWhenItsLeaseRunsShort(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	ns := w.cluster(1, 3)
	a := ns[0]
	var asked, answered []time.Duration
	w.seen = func(m ruleMail) {
		h, ok := m.msg.(*heartbeat)
		switch {
		case ok && m.from == a && h.Flags&beatAnswerNow != 0:
			asked = append(asked, w.now)
		case ok && m.to == a && len(asked) > 0 && w.now == asked[len(asked)-1]:
			answered = append(answered, w.now)
		}
	}
	w.run(3 * ruleNT)
	require.Empty(t, asked, "nothing runs short")

	end := a.core.leaseUntil()
	w.lose = func(m ruleMail) bool { return m.to == a }
	w.run(end - ruleNT/5 - w.now)
	require.Empty(t, asked)
	w.run(ruleNT / 20)
	require.NotEmpty(t, asked)
	w.lose = nil
	w.run(ruleNT / 20)
	require.NotEmpty(t, answered)
	require.Greater(t, a.core.leaseUntil(), w.now+ruleNT/2)
}

// A voter that is behind gets the last RECORD again.
func TestRecordIsRepeatedToAVoterThatIsBehind(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	ns := w.cluster(1, 3)
	a, b := ns[0], ns[1]
	*b.voted(a) = voterShard{} // it has lost it somehow
	w.run(ruleNT)
	require.Equal(t, a.epoch(), b.voted(a).promised)
	require.Equal(t, a.epoch(), b.voted(a).record.Epoch)
	require.True(t, b.core.vote.opened.at(5).epoch == a.epoch(), "with the openings")

	*a.voted(a) = voterShard{}
	w.run(ruleNT)
	require.Equal(t, a.epoch(), a.voted(a).promised, "its own vote too")
}

// ---- stamps

// A heartbeat that comes late or twice says nothing: its time has passed.
func TestLateHeartbeatSaysNothing(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name        string
		first, next uint32
		read        bool
	}{
		{"the next", 1000, 1001, true},
		{"the same", 1000, 1000, false},
		{"an older one", 1000, 999, false},
		{"a much older one", 1 << 31, 1, false},
		{"over the edge of 32 bits", ^uint32(0), 0, true},
		{"back over the edge", 3, ^uint32(0), false},
	} {
		w := newRules(t)
		ns := w.cluster(1, 2)
		a, b := ns[0], ns[1]
		p := a.knows(b)
		p.beatAt = never
		a.gets(b, &heartbeat{Sent: row.first})
		heard := p.heardAt
		w.now += ruleNT / 10
		a.gets(b, &heartbeat{Sent: row.next, Flags: beatLeased})
		if p.leased != row.read || p.heardAt > heard != row.read {
			t.Errorf("%s: read %v, want %v", row.name, p.leased, row.read)
		}
	}
}

// Stamps are milliseconds modulo 2^32, and rounded down: what is counted from
// them ends early.
func TestStampsComeBackAsWhenTheyWereSent(t *testing.T) {
	t.Parallel()
	const wrap = time.Duration(1<<32) * time.Millisecond
	for _, row := range []struct {
		name      string
		sent, now time.Duration
	}{
		{"at once", time.Hour, time.Hour},
		{"later", time.Hour, time.Hour + 17*time.Second},
		{"over the edge of 32 bits", wrap - 5*time.Millisecond, wrap + 9*time.Millisecond},
		{"after many edges", 5*wrap + time.Hour, 5*wrap + time.Hour + time.Second},
		{"within a millisecond", time.Hour + 700*time.Microsecond, time.Hour + 900*time.Microsecond},
	} {
		s := lone(t, 1)
		s.now = row.sent
		stamp := s.stamp()
		s.now = row.now
		if got, want := s.unstamp(stamp), row.sent.Truncate(time.Millisecond); got != want {
			t.Errorf("%s: %v, want %v", row.name, got, want)
		}
	}
}

func TestLeasesHoldOverTheEdgeOfStamps(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	w.now = time.Duration(1<<32)*time.Millisecond - 12*ruleNT
	ns := w.cluster(1, 3)
	for range 400 {
		w.run(ruleNT / 20)
		require.True(t, ns[0].serves(5), "at %v", w.now)
	}
	require.Greater(t, w.now, time.Duration(1<<32)*time.Millisecond)
}

// ---- what heartbeats say

// Heartbeats wait for no save but that of the identity: a slow disk must not
// silence a node.
func TestSlowDiskDoesNotSilenceANode(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	ns := w.cluster(2, 3)
	a := ns[0]
	a.slowDisk = true
	a.command(func(s *state, now time.Duration, id uint64) output { return s.bumpEpoch(now, id) })
	w.run(ruleNT / 2)
	require.NotEmpty(t, a.saving)
	beats := w.count(func() { w.run(ruleNT) }, func(m ruleMail) bool { return m.from == a && m.msg.kind() == msgHeartbeat })
	require.NotZero(t, beats)
	others := w.count(func() { w.run(ruleNT) }, func(m ruleMail) bool { return m.from == a && m.msg.kind() == msgVote })
	require.Zero(t, others)

	b := w.boot()
	b.crash()
	b.disk, b.slowDisk = map[cellKey][]byte{}, true
	b.load()
	b.meet(a)
	require.Zero(t, w.count(func() { w.run(ruleNT) }, func(m ruleMail) bool { return m.from == b }), "who it is, is not on disk")
	b.flush()
}

func TestFlagsOfHeartbeats(t *testing.T) {
	t.Parallel()
	beatOf := func(w *ruleWorld, from, to *ruleNode) *heartbeat {
		var got *heartbeat
		w.seen = func(m ruleMail) {
			if h, ok := m.msg.(*heartbeat); ok && m.from == from && m.to == to {
				got = h
			}
		}
		w.run(ruleNT)
		return got
	}
	for _, row := range []struct {
		name     string
		edit     func(w *ruleWorld, ns []*ruleNode)
		has, not beatFlags
	}{
		{"an open primary that votes", func(*ruleWorld, []*ruleNode) {}, beatActive | beatOpen | beatLeased | beatAnswers, beatStopped | beatUnclean},
		{"without START", func(w *ruleWorld, ns []*ruleNode) {
			ns[0].core.vote.current = nil
			w.lose = kindsOf(msgStart, msgGetStart)
		}, beatOpen, beatActive},
		{"whose START is not saved", func(w *ruleWorld, ns []*ruleNode) { ns[0].core.vote.activeSave = 1 << 60 }, beatOpen, beatActive},
		{"stopped", func(w *ruleWorld, ns []*ruleNode) {
			ns[0].core.vote.stop, ns[0].core.vote.stoppedAt = ballot{1, ns[1].core.id}, w.now+time.Hour
		}, beatActive | beatStopped, 0},
		{"that leads nothing", func(w *ruleWorld, ns []*ruleNode) {
			ns[0].core.lead = nil
			w.lose = kindsOf(msgVote)
		}, beatActive, beatOpen | beatLeased},
		{"whose lease is over", func(w *ruleWorld, ns []*ruleNode) {
			w.lose = func(m ruleMail) bool { return m.to == ns[0] }
			w.run(ruleNT)
		}, beatOpen, beatLeased},
	} {
		w := newRules(t)
		ns := w.cluster(1, 3)
		row.edit(w, ns)
		h := beatOf(w, ns[0], ns[1])
		require.NotNil(t, h, row.name)
		if h.Flags&row.has != row.has || h.Flags&row.not != 0 {
			t.Errorf("%s: flags %b, want %b and not %b", row.name, h.Flags, row.has, row.not)
		}
		if h.Start != ns[0].core.table.voters.ID {
			t.Errorf("%s: START %x", row.name, h.Start)
		}
	}
}

// A heartbeat says so where a save is under way and none has completed for a
// NodeTimeout in which this node itself has run.
func TestHeartbeatSaysThatTheDiskHangs(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name string
		then func(w *ruleWorld, b *ruleNode)
		want bool
	}{
		{"nothing is to be saved", func(w *ruleWorld, b *ruleNode) { b.flush(); w.run(2 * ruleNT) }, false},
		{"a save takes long", func(w *ruleWorld, b *ruleNode) { w.run(ruleNT - ruleNT/10) }, false},
		{"a save takes a NodeTimeout", func(w *ruleWorld, b *ruleNode) { w.run(ruleNT + ruleNT/10) }, true},
		{"and completes", func(w *ruleWorld, b *ruleNode) { w.run(2 * ruleNT); b.flush() }, false},
		{"one after the other completes", func(w *ruleWorld, b *ruleNode) {
			for range 5 {
				w.run(ruleNT / 2)
				b.dirties()
				first := b.saving[:1]
				rest := b.saving[1:]
				b.saving = first
				b.flush()
				b.saving = append(b.saving, rest...)
			}
		}, false},
		{"the next one is to be made after a long calm", func(w *ruleWorld, b *ruleNode) { b.flush(); w.run(2 * ruleNT); b.dirties() }, false},
		{"its process has not run", func(w *ruleWorld, b *ruleNode) {
			w.run(ruleNT * 3 / 4)
			w.now += ruleNT / 2
		}, false},
	} {
		w := newRules(t)
		ns := w.cluster(1, 2)
		b := ns[1]
		b.slowDisk = true
		b.dirties()
		row.then(w, b)
		said := false
		w.seen = func(m ruleMail) {
			if h, ok := m.msg.(*heartbeat); ok && m.from == b {
				said = h.Flags&beatHangs != 0
			}
		}
		w.now += 1 // so that time has passed
		b.tick()
		b.core.peers.get(ns[0].core.id).nextBeat = w.now
		b.tick()
		w.deliver()
		if said != row.want || b.core.diskHangs() != row.want || ns[0].knows(b).hangs != row.want {
			t.Errorf("%s: said %v, known %v, want %v", row.name, said, ns[0].knows(b).hangs, row.want)
		}
	}
}

// dirties makes n have something to save.
func (n *ruleNode) dirties() {
	n.step(func(s *state, now time.Duration) output {
		s.begin(now)
		s.mark(cellKey{kind: cellNode})
		return s.end()
	})
}
