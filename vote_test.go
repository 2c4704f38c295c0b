package slotmesh

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// ballotBox is a voter b, whom a asks about its own shard; c is another voter
// and another primary. All waits after their start are over.
type ballotBox struct {
	w       *ruleWorld
	a, b, c *ruleNode
	v       *voterShard // what b keeps of a's shard
	m       *voteMsg    // from a
	from    *ruleNode
}

func newBallotBox(t *testing.T) *ballotBox {
	t.Helper()
	w := newRules(t)
	ns := w.cluster(3, 4)
	w.run(2 * ruleNT)
	w.now = w.now.Truncate(time.Millisecond) + time.Millisecond
	x := &ballotBox{w: w, a: ns[0], b: ns[1], c: ns[2], v: ns[1].voted(ns[0]), from: ns[0]}
	x.b.asleep = true
	x.m = &voteMsg{Voters: x.b.core.table.voters.Version, Shard: x.a.shard(), Epoch: Epoch{10, false, x.a.core.id}, Incarnation: x.a.cfg.incarnation}
	x.b.core.vote.leases = map[ShardID]map[NodeID]leaseGiven{}
	return x
}

// by makes another node the candidate.
func (x *ballotBox) by(n *ruleNode) {
	x.from = n
	x.m.Epoch.Node, x.m.Incarnation = n.core.id, n.cfg.incarnation
}

func (x *ballotBox) promise(number uint64, to *ruleNode) {
	x.v.promised, x.v.incarnation = Epoch{number, false, to.core.id}, to.cfg.incarnation
}

// lease gives n a lease of the shard for so long from now on.
func (x *ballotBox) lease(n *ruleNode, d time.Duration) {
	x.b.core.vote.lease(x.a.shard(), n.core.id, Epoch{}, x.w.now+d)
}

// inSync makes a record that names nodes.
func (x *ballotBox) inSync(number uint64, nodes ...*ruleNode) *record {
	r := &record{Shard: x.a.shard(), Epoch: Epoch{number, false, nodes[0].core.id}}
	for _, n := range nodes {
		r.InSync = append(r.InSync, incarnate{n.core.id, n.cfg.incarnation})
	}
	return r
}

// consents makes a stand with the word of c, given under a number.
func (x *ballotBox) consents(number uint64) {
	x.m.Why, x.m.Consent = whyConsent, Epoch{number, false, x.c.core.id}
}

// leaseOf is lease under a number of n's.
func (x *ballotBox) leaseOf(n *ruleNode, number uint64, d time.Duration) {
	x.b.core.vote.lease(x.a.shard(), n.core.id, Epoch{number, false, n.core.id}, x.w.now+d)
}

// unclean makes a stand where only c is in sync, which b has heard so long ago.
func (x *ballotBox) unclean(heard time.Duration) {
	x.m.Why, x.v.record = whyUnclean, x.inSync(5, x.c)
	x.b.core.now, x.b.core.vote.startedAt = x.w.now, x.w.now-9*ruleNT
	x.b.knows(x.c).heardAt = x.w.now - heard
}

// heir makes a fourth node a member of a's shard, in sync and heard, but for an edit.
func (x *ballotBox) heir(edit func(p *peer)) {
	d := x.w.nodes[3]
	p := x.b.knows(d)
	x.b.core.peers.change(p, func() { p.Shard = x.a.shard() })
	p.heardAt = x.w.now
	x.v.record = x.inSync(5, x.a, d)
	if edit != nil {
		x.b.core.peers.change(p, func() { edit(p) })
	}
}

// asOperator makes c take the shard of a for an operator.
func (x *ballotBox) asOperator() {
	x.by(x.c)
	x.m.Why = whyOperator
}

// fails makes a silent in the eyes of b and c.
func (x *ballotBox) fails() {
	x.w.now += 2 * ruleNT
	x.b.core.now = x.w.now
	p := x.b.knows(x.c)
	p.beatAt, p.heardAt = x.w.now, x.w.now
	p.silent.Nodes = []NodeID{x.a.core.id}
}

func TestVoterAnswersAVote(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name string
		edit func(x *ballotBox)
		want string
	}{
		// R3a: the number of the epoch is above that of the promise.
		{"a higher number", func(x *ballotBox) { x.promise(9, x.a) }, "GRANT 10"},
		{"a higher number than was promised to another", func(x *ballotBox) { x.promise(9, x.c) }, "GRANT 10"},
		{"the number promised to another", func(x *ballotBox) { x.promise(10, x.c) }, "REFUSE promised 10"},
		{"the number promised to another, whose id is smaller", func(x *ballotBox) { x.by(x.c); x.v.record = x.inSync(1, x.c); x.promise(10, x.a) }, "REFUSE promised 10"},
		{"a lower number", func(x *ballotBox) { x.promise(11, x.c) }, "REFUSE promised 11"},
		{"a lower number of its own", func(x *ballotBox) { x.promise(11, x.a) }, "REFUSE promised 11"},
		{"the same epoch of the same candidate: again", func(x *ballotBox) { x.promise(10, x.a) }, "GRANT 10"},
		{"the same epoch of the same candidate, in another incarnation", func(x *ballotBox) { x.promise(10, x.a); x.v.incarnation++ }, "REFUSE promised 10"},
		{"the same epoch of the same candidate is checked afresh", func(x *ballotBox) { x.promise(10, x.a); x.lease(x.c, 300*time.Millisecond) }, "REFUSE lease, again in 300 ms"},
		{"a takeover of the number promised", func(x *ballotBox) { x.promise(10, x.c); x.m.Epoch.Unclean = true }, "GRANT 10"},
		{"a takeover of the number of a takeover", func(x *ballotBox) {
			x.promise(10, x.c)
			x.v.promised.Unclean, x.m.Epoch.Unclean = true, true
		}, "REFUSE promised 10"},
		{"the number of a takeover", func(x *ballotBox) { x.promise(10, x.c); x.v.promised.Unclean = true }, "REFUSE promised 10"},
		{"an epoch of another node", func(x *ballotBox) { x.from = x.c }, "silence"},

		// R3b: c is in the newest in-sync set that the voter holds.
		{"named in the record", func(x *ballotBox) { x.v.record = x.inSync(5, x.c, x.a) }, "GRANT 10"},
		{"not named in the record", func(x *ballotBox) { x.v.record = x.inSync(5, x.c) }, "REFUSE not in sync, again in 200 ms"},
		{"no record: the primary of the table", func(x *ballotBox) { x.v.record = nil }, "GRANT 10"},
		{"no record: another than the primary of the table", func(x *ballotBox) { x.v.record = nil; x.by(x.c) }, "REFUSE not in sync, again in 200 ms"},
		{"not asked of an operator", func(x *ballotBox) { x.fails(); x.asOperator() }, "GRANT 10"},
		// A voter that holds an older record saves the candidate's before it checks.
		{"the candidate brings a newer record that names it", func(x *ballotBox) {
			x.v.record, x.m.Records = x.inSync(5, x.c), []record{*x.inSync(6, x.c, x.a)}
		}, "GRANT 10"},
		{"the candidate brings an older record that names it", func(x *ballotBox) {
			x.v.record, x.m.Records = x.inSync(5, x.c), []record{*x.inSync(4, x.c, x.a)}
		}, "REFUSE not in sync, again in 200 ms"},
		{"the candidate brings a newer record that does not name it", func(x *ballotBox) {
			x.v.record, x.m.Records = x.inSync(5, x.a), []record{*x.inSync(6, x.c)}
		}, "REFUSE not in sync, again in 200 ms"},
		{"the candidate brings a record where the voter has none", func(x *ballotBox) {
			x.by(x.c)
			x.v.record, x.m.Records = nil, []record{*x.inSync(6, x.c)}
		}, "GRANT 10"},
		{"the candidate brings a record of another shard", func(x *ballotBox) {
			r := x.inSync(6, x.c, x.a)
			r.Shard = x.c.shard()
			x.v.record, x.m.Records = x.inSync(5, x.c), []record{*r}
		}, "REFUSE not in sync, again in 200 ms"},
		{"the candidate brings a record that is too new to be true", func(x *ballotBox) {
			x.v.record, x.m.Records = x.inSync(5, x.c), []record{*x.inSync(1<<50, x.a)}
		}, "REFUSE not in sync, again in 200 ms"},

		// R3c: no lease to another node is running.
		{"its own lease runs", func(x *ballotBox) { x.lease(x.a, ruleNT) }, "GRANT 10"},
		{"a lease of another runs", func(x *ballotBox) { x.lease(x.c, 700*time.Millisecond) }, "REFUSE lease, again in 700 ms"},
		{"a lease of another runs for a part of a millisecond", func(x *ballotBox) { x.lease(x.c, 1500*time.Microsecond) }, "REFUSE lease, again in 2 ms"},
		{"a lease of another ends now", func(x *ballotBox) { x.lease(x.c, 0) }, "GRANT 10"},
		{"a newer lease of its own does not replace another's", func(x *ballotBox) {
			x.lease(x.c, 100*time.Millisecond)
			x.lease(x.a, ruleNT)
		}, "REFUSE lease, again in 100 ms"},
		{"the last lease of several counts", func(x *ballotBox) {
			x.lease(x.c, 100*time.Millisecond)
			x.lease(x.b, 400*time.Millisecond)
		}, "REFUSE lease, again in 400 ms"},
		{"a lease of another shard", func(x *ballotBox) { x.b.core.vote.lease(x.c.shard(), x.c.core.id, Epoch{}, x.w.now+ruleNT) }, "GRANT 10"},
		// One NodeTimeout since the voter's start and since it activated this
		// version.
		{"the voter has just started", func(x *ballotBox) { x.b.core.vote.startedAt = x.w.now - 400*time.Millisecond }, "REFUSE lease, again in 600 ms"},
		{"the voter has started a NodeTimeout ago", func(x *ballotBox) { x.b.core.vote.startedAt = x.w.now - ruleNT }, "GRANT 10"},
		{"the voter has just activated this version", func(x *ballotBox) { x.b.core.vote.activeAt = x.w.now - 300*time.Millisecond }, "REFUSE lease, again in 700 ms"},
		{"the voter has given longer leases", func(x *ballotBox) {
			x.b.core.vote.startedAt, x.b.core.vote.maxLease = x.w.now-ruleNT, 1500
		}, "REFUSE lease, again in 500 ms"},
		{"the voter has just started, and nobody has led the shard under a vote", func(x *ballotBox) {
			x.b.core.vote.startedAt, x.v.record = x.w.now, nil
		}, "GRANT 10"},
		{"the same, where voters have been imposed", func(x *ballotBox) {
			x.b.core.vote.startedAt, x.v.record = x.w.now, nil
			x.b.core.table.voters.Version.Forced, x.m.Voters.Forced = 1, 1
		}, "REFUSE lease, again in 1000 ms"},
		{"FORCE covers it whole", func(x *ballotBox) {
			x.m.Why = whyForce
			x.lease(x.c, ruleNT)
			x.b.core.vote.startedAt, x.b.core.vote.activeAt = x.w.now, x.w.now
		}, "GRANT 10"},
		{"FORCE covers nothing else: the promise", func(x *ballotBox) { x.m.Why = whyForce; x.promise(10, x.c) }, "REFUSE promised 10"},
		{"FORCE covers nothing else: the record", func(x *ballotBox) { x.m.Why = whyForce; x.v.record = x.inSync(5, x.c) }, "REFUSE not in sync, again in 200 ms"},

		// A consent covers what its node was leased for its epoch or older, and the waits
		// of start and activation.
		{"a consent: its own lease", func(x *ballotBox) { x.consents(5); x.leaseOf(x.c, 5, ruleNT) }, "GRANT 10"},
		{"a consent: an older lease", func(x *ballotBox) { x.consents(5); x.leaseOf(x.c, 4, ruleNT) }, "GRANT 10"},
		{"a consent: its node has been leased a newer epoch since", func(x *ballotBox) { x.consents(5); x.leaseOf(x.c, 6, 700*time.Millisecond) }, "REFUSE lease, again in 700 ms"},
		{"a consent: somebody else's lease", func(x *ballotBox) {
			x.consents(5)
			x.leaseOf(x.c, 5, ruleNT)
			x.leaseOf(x.b, 4, 300*time.Millisecond)
		}, "REFUSE lease, again in 300 ms"},
		{"a consent: the voter has just started", func(x *ballotBox) {
			x.consents(5)
			x.b.core.vote.startedAt, x.b.core.vote.activeAt = x.w.now, x.w.now
		}, "GRANT 10"},
		{"a consent covers nothing else: the promise", func(x *ballotBox) { x.consents(5); x.promise(10, x.c) }, "REFUSE promised 10"},
		{"a consent covers nothing else: the record", func(x *ballotBox) { x.consents(5); x.v.record = x.inSync(5, x.c) }, "REFUSE not in sync, again in 200 ms"},
		{"a consent, and why is silence: it is not read", func(x *ballotBox) {
			x.consents(5)
			x.m.Why = whySilence
			x.leaseOf(x.c, 5, 700*time.Millisecond)
		}, "REFUSE lease, again in 700 ms"},

		// The candidate is named with the incarnation of its store.
		{"named in another incarnation", func(x *ballotBox) { x.v.record = x.inSync(5, x.a); x.m.Incarnation++ }, "REFUSE not in sync, again in 200 ms"},
		// Unclean: where nobody of the record is left, as far as this voter knows for a
		// NodeTimeout, anybody may win, but not in a strict shard.
		{"unclean, nobody is left", func(x *ballotBox) { x.unclean(9 * ruleNT) }, "GRANT 10"},
		{"nobody is left, and it stands for silence", func(x *ballotBox) { x.unclean(9 * ruleNT); x.m.Why = whySilence }, "REFUSE not in sync, again in 200 ms"},
		{"unclean, the last was heard a NodeTimeout ago", func(x *ballotBox) { x.unclean(ruleNT) }, "GRANT 10"},
		{"unclean, the last was heard a moment ago", func(x *ballotBox) { x.unclean(400 * time.Millisecond) }, "REFUSE not in sync, again in 600 ms"},
		{"unclean, the last is heard, with another store", func(x *ballotBox) { x.unclean(0); x.b.knows(x.c).Store++ }, "GRANT 10"},
		{"unclean, the voter is the last itself", func(x *ballotBox) { x.unclean(9 * ruleNT); x.v.record = x.inSync(5, x.b) }, "REFUSE not in sync, again in 1000 ms"},
		{"unclean, the voter has just started", func(x *ballotBox) {
			x.unclean(9 * ruleNT)
			x.b.core.vote.startedAt = x.w.now - 300*time.Millisecond
		}, "REFUSE not in sync, again in 700 ms"},
		{"unclean, the shard is strict", func(x *ballotBox) { x.unclean(9 * ruleNT); x.v.record.Strict = true }, "REFUSE not in sync, again in 200 ms"},
		{"unclean, no record", func(x *ballotBox) { x.unclean(9 * ruleNT); x.v.record = nil; x.by(x.c) }, "REFUSE not in sync, again in 200 ms"},
		{"unclean covers nothing else: a lease", func(x *ballotBox) { x.unclean(9 * ruleNT); x.lease(x.c, 300*time.Millisecond) }, "REFUSE lease, again in 300 ms"},
		{"a takeover of a node that is not in sync", func(x *ballotBox) { x.v.record = x.inSync(5, x.c); x.m.Epoch.Unclean = true }, "GRANT 10"},

		// R9: op is allowed only for shard 0 or a FAIL primary.
		{"an operator, the primary lives", func(x *ballotBox) { x.asOperator() }, "REFUSE primary lives, again in 100 ms"},
		{"an operator, the primary has failed", func(x *ballotBox) { x.fails(); x.asOperator() }, "GRANT 10"},
		{"an operator, the primary has failed and its lease runs", func(x *ballotBox) { x.fails(); x.asOperator(); x.lease(x.a, ruleNT/2) }, "REFUSE lease, again in 500 ms"},
		{"an operator, the primary has failed and a member in sync lives", func(x *ballotBox) { x.fails(); x.asOperator(); x.heir(nil) }, "REFUSE primary lives, again in 100 ms"},
		{"an operator, that member has another store", func(x *ballotBox) { x.fails(); x.asOperator(); x.heir(func(p *peer) { p.Store++ }) }, "GRANT 10"},
		{"an operator, that member is silent", func(x *ballotBox) {
			x.fails()
			x.asOperator()
			x.heir(func(p *peer) { p.heardAt, p.firstSeen = 0, 0 })
		}, "GRANT 10"},
		{"an operator, that member is of another shard", func(x *ballotBox) { x.fails(); x.asOperator(); x.heir(func(p *peer) { p.Shard = x.c.shard() }) }, "GRANT 10"},
		{"an operator, that member is forgotten", func(x *ballotBox) { x.fails(); x.asOperator(); x.heir(func(p *peer) { p.State = forgotten }) }, "GRANT 10"},
		{"an operator, its number is promised", func(x *ballotBox) { x.fails(); x.asOperator(); x.promise(10, x.a) }, "REFUSE promised 10"},
		{"an operator, shard 0", func(x *ballotBox) { x.asOperator(); x.m.Shard = ShardID{} }, "GRANT 10"},
		{"an operator, shard 0, at a voter that has just started", func(x *ballotBox) {
			x.asOperator()
			x.m.Shard = ShardID{}
			x.b.core.vote.startedAt, x.b.core.vote.activeAt = x.w.now, x.w.now
		}, "GRANT 10"},

		// R1: only answers of one version are added up.
		{"an older version: the newer set", func(x *ballotBox) { x.m.Voters.Number = 0 }, "UPDATE voters 1"},
		{"a newer version", func(x *ballotBox) { x.m.Voters.Number = 2 }, "silence"},
		{"an imposed version", func(x *ballotBox) { x.m.Voters.Forced = 1 }, "silence"},
		{"a stopped voter", func(x *ballotBox) { x.b.core.vote.stop = ballot{1, x.c.core.id} }, "silence"},
		{"a voter without its START", func(x *ballotBox) { x.b.core.vote.current = nil }, "silence"},
		{"a voter with another START", func(x *ballotBox) { x.b.core.vote.current.ID++ }, "silence"},
		{"no voter", func(x *ballotBox) { x.b.core.table.voters.Members = x.b.core.table.voters.Members[:1] }, "silence"},
		{"a voter under another key", func(x *ballotBox) { x.b.core.table.voters.Members[1].Key++ }, "silence"},
	} {
		x := newBallotBox(t)
		row.edit(x)
		was := x.v.promised
		got := said(x.b.gets(x.from, x.m))
		if got != row.want {
			t.Errorf("%s: %s, want %s", row.name, got, row.want)
		}
		granted := got == "GRANT 10"
		v := x.b.core.vote.shard(x.m.Shard)
		if granted && (v.promised != x.m.Epoch || v.incarnation != x.m.Incarnation) || !granted && x.v.promised != was {
			t.Errorf("%s: promised %v of incarnation %d after %q, was %v", row.name, v.promised, v.incarnation, got, was)
		}
	}
}

// Nothing of R3c is asked where the cluster has no other node.
func TestOnlyNodeWaitsForNoLease(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	a := w.boot(func(c *coreConfig) { c.alone = true })
	w.run(ruleNT)
	a.restart()
	w.run(ruleNT / 10)
	require.True(t, a.serves(5), "won at once after its restart")
}

// Shards that nobody has ever heard of do not fill a voter's memory, nor the file.
func TestVotesOfUnknownShardsAreBounded(t *testing.T) {
	t.Parallel()
	x := newBallotBox(t)
	shards := x.b.core.vote.shards
	for i := 0; len(shards) < voterShardsMax; i++ {
		shards[ShardID{1, byte(i >> 16), byte(i >> 8), byte(i)}] = &voterShard{}
	}
	known := x.m.Shard
	x.m.Shard = ShardID{9}
	require.Equal(t, "silence", said(x.b.gets(x.from, x.m)))
	require.Len(t, shards, voterShardsMax)
	x.m.Shard = known
	require.Equal(t, "GRANT 10", said(x.b.gets(x.from, x.m)))
}

// Promises are per shard: elections of different shards never disturb each
// other.
func TestPromisesArePerShard(t *testing.T) {
	t.Parallel()
	x := newBallotBox(t)
	require.Equal(t, "GRANT 10", said(x.b.gets(x.a, x.m)))
	x.by(x.c)
	x.m = &voteMsg{Voters: x.m.Voters, Shard: x.c.shard(), Epoch: Epoch{10, false, x.c.core.id}, Incarnation: x.c.cfg.incarnation}
	require.Equal(t, "GRANT 10", said(x.b.gets(x.c, x.m)))
}

// A refusal says why and what is newer.
func TestRefusalSaysWhatIsNewer(t *testing.T) {
	t.Parallel()
	x := newBallotBox(t)
	x.promise(12, x.c)
	x.v.record = x.inSync(5, x.c)
	r := x.b.gets(x.a, x.m)[0].(*refuseMsg)
	require.Equal(t, Epoch{12, false, x.c.core.id}, r.Promised)
	require.Equal(t, []record{*x.v.record}, r.Records)
	require.Equal(t, x.m.Shard, r.Shard)
	require.Equal(t, x.m.Epoch, r.Epoch)
	require.Equal(t, x.m.Voters, r.Voters)
}

// The grant carries the record, and for each named slot the voter's openings and
// any higher accepted move.
func TestGrantCarriesWhatTheVoterKeeps(t *testing.T) {
	t.Parallel()
	x := newBallotBox(t)
	core := x.b.core
	ea, ec := Epoch{3, false, x.a.core.id}, Epoch{4, false, x.c.core.id}
	core.vote.accepted, core.vote.opened = slotMap[accepted]{}, slotMap[opening]{}
	core.vote.accepted.set(1, accepted{x.a.shard(), 4, ea}) // below the named move
	core.vote.accepted.set(2, accepted{x.a.shard(), 5, ea}) // the named move
	core.vote.accepted.set(3, accepted{x.c.shard(), 6, ea}) // the next one
	core.vote.accepted.set(4, accepted{x.c.shard(), 9, ec}) // later ones
	core.vote.accepted.set(9, accepted{x.c.shard(), 9, ec}) // not named
	core.vote.opened.set(1, opening{4, ea})
	core.vote.opened.set(2, opening{5, ec})
	core.vote.opened.set(3, opening{6, ec})
	core.vote.opened.set(9, opening{5, ec})
	core.vote.maxLease = 2500
	x.m.Slots = moveRuns{{0, 8, 5}}
	x.m.Epoch.Number = 20
	x.v.record = x.inSync(5, x.a)
	core.vote.startedAt, core.vote.activeAt = 0, 0
	g := x.b.gets(x.a, x.m)[0].(*grantMsg)
	require.Equal(t, []record{*x.v.record}, g.Records)
	require.Equal(t, uint32(2500), g.MaxLease)
	moves := map[Slot]accepted{}
	g.Accepted.each(func(s Slot, a accepted) { moves[s] = a })
	require.Equal(t, map[Slot]accepted{2: {x.a.shard(), 5, ea}, 3: {x.c.shard(), 6, ea}, 4: {x.c.shard(), 9, ec}}, moves)
	opened := map[Slot]opening{}
	g.Opened.each(func(s Slot, o opening) { opened[s] = o })
	require.Equal(t, map[Slot]opening{2: {5, ec}}, opened)
}

// Whatever a voter answers is saved first, promise and incarnation together.
func TestGrantLeavesOnceItIsSaved(t *testing.T) {
	t.Parallel()
	x := newBallotBox(t)
	x.b.slowDisk = true
	require.Equal(t, "silence", said(x.b.gets(x.a, x.m)))
	x.w.catchAt = x.a.cfg.addr
	x.b.flush()
	x.w.catchAt = ""
	require.Equal(t, "GRANT 10", said(x.w.caught))
	var c voteCell
	require.NoError(t, decodeValue(x.b.disk[cellKey{kind: cellVote, id: x.a.shard()}], &c))
	require.Equal(t, x.m.Epoch, c.Promised)
	require.Equal(t, x.m.Incarnation, c.Incarnation)

	// A voter that starts again knows what it has promised.
	x.b.asleep, x.b.slowDisk = false, false
	x.b.restart()
	x.by(x.c)
	require.Equal(t, "REFUSE promised 10", said(x.b.gets(x.c, x.m)))
}

// ---- RECORD

func (x *ballotBox) record(number, n uint64) *recordMsg {
	e := Epoch{number, false, x.a.core.id}
	return &recordMsg{Voters: x.m.Voters, Sender: x.a.cfg.incarnation, Sent: 77,
		Record: record{Shard: x.a.shard(), Epoch: e, N: n, InSync: []incarnate{{x.a.core.id, x.a.cfg.incarnation}}}}
}

// A voter accepts iff epoch ≥ promised.epoch and (epoch, n) is not below its
// record's. Each accept is a lease.
func TestVoterAnswersARecord(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name string
		edit func(x *ballotBox, m *recordMsg)
		want string
	}{
		{"the epoch promised", func(x *ballotBox, m *recordMsg) { x.promise(10, x.a) }, "ACCEPT 10.0 lease 1000 ms"},
		{"an epoch above the promise", func(x *ballotBox, m *recordMsg) { x.promise(9, x.c) }, "ACCEPT 10.0 lease 1000 ms"},
		{"an epoch below the promise", func(x *ballotBox, m *recordMsg) { x.promise(11, x.c) }, "REFUSE promised 11"},
		{"whole epochs are compared: the same number of a smaller node", func(x *ballotBox, m *recordMsg) { x.promise(10, x.c) }, "REFUSE promised 10"},
		{"whole epochs are compared: the same number of a takeover", func(x *ballotBox, m *recordMsg) {
			x.promise(10, x.a)
			x.v.promised.Unclean = true
		}, "REFUSE promised 10"},
		{"an older record of the same epoch", func(x *ballotBox, m *recordMsg) {
			x.promise(10, x.a)
			x.v.record = x.inSync(10, x.a)
			x.v.record.N = 1
		}, "REFUSE behind"},
		{"the same record again", func(x *ballotBox, m *recordMsg) {
			x.promise(10, x.a)
			x.v.record = x.inSync(10, x.a)
		}, "ACCEPT 10.0 lease 1000 ms"},
		{"the next record", func(x *ballotBox, m *recordMsg) {
			x.promise(10, x.a)
			x.v.record = x.inSync(10, x.a)
			m.Record.N = 1
		}, "ACCEPT 10.1 lease 1000 ms"},
		{"an older epoch than its record's, above its promise", func(x *ballotBox, m *recordMsg) {
			x.promise(9, x.a)
			x.v.record = x.inSync(11, x.c)
		}, "REFUSE behind"},
		{"a record that leaves the shard to nobody gives no lease", func(x *ballotBox, m *recordMsg) { m.Record.Vacant = true }, "ACCEPT 10.0"},
		{"leases of others are not asked", func(x *ballotBox, m *recordMsg) { x.lease(x.c, ruleNT) }, "ACCEPT 10.0 lease 1000 ms"},
		{"an epoch of another node", func(x *ballotBox, m *recordMsg) { m.Record.Epoch.Node = x.c.core.id }, "silence"},
		{"an older version: the newer set", func(x *ballotBox, m *recordMsg) { m.Voters.Number = 0 }, "UPDATE voters 1"},
		{"a newer version", func(x *ballotBox, m *recordMsg) { m.Voters.Number = 2 }, "silence"},
		{"a stopped voter", func(x *ballotBox, m *recordMsg) { x.b.core.vote.stop = ballot{1, x.c.core.id} }, "silence"},
		{"a voter without its START", func(x *ballotBox, m *recordMsg) { x.b.core.vote.current = nil }, "silence"},
	} {
		x := newBallotBox(t)
		m := x.record(10, 0)
		row.edit(x, m)
		was := *x.v
		answers := x.b.gets(x.a, m)
		got := said(answers)
		if got != row.want {
			t.Errorf("%s: %s, want %s", row.name, got, row.want)
		}
		if len(answers) == 1 {
			if a, ok := answers[0].(*acceptMsg); ok {
				until := x.b.core.vote.leases[x.a.shard()][x.a.core.id].until
				if a.Sent != 77 || a.Ballot != 0 || (until > x.w.now) != (a.Lease > 0) {
					t.Errorf("%s: accept of what was sent at %d, lease until %v", row.name, a.Sent, until)
				}
				if x.v.promised != m.Record.Epoch || x.v.incarnation != m.Sender || x.v.record.N != m.Record.N {
					t.Errorf("%s: keeps promise %v and record %v", row.name, x.v.promised, x.v.record)
				}
				continue
			}
		}
		if *x.v != was {
			t.Errorf("%s: keeps %v, was %v", row.name, x.v, was)
		}
	}
}

// Record, moves, openings and promise are saved in one write.
func TestRecordIsSavedInOneWrite(t *testing.T) {
	t.Parallel()
	x := newBallotBox(t)
	m := x.record(10, 0)
	m.Kept.add(4, accepted{x.c.shard(), 6, Epoch{}})
	m.Kept.add(600, accepted{x.c.shard(), 6, Epoch{}})
	m.Opened = moveRuns{{5, 700, 5}}
	x.b.slowDisk = true
	x.b.gets(x.a, m)
	require.Len(t, x.b.saving, 1)
	kinds := map[cellKind]int{}
	for _, c := range x.b.saving[0].cells {
		kinds[c.key.kind]++
	}
	require.Equal(t, map[cellKind]int{cellVote: 1, cellAccepted: 2, cellOpened: 3, cellEpoch: 1}, kinds)
	require.Equal(t, accepted{x.c.shard(), 6, m.Record.Epoch}, x.b.core.vote.accepted.at(600), "under the epoch of the opening")
	require.Equal(t, opening{5, m.Record.Epoch}, x.b.core.vote.opened.at(700))
	x.b.flush()
}

// A record that a candidate has shown is known, and what it opens is not: that comes with
// the RECORD, whose accept promises that it is kept.
func TestRecordThatIsKnownIsKeptWithWhatItOpens(t *testing.T) {
	t.Parallel()
	x := newBallotBox(t)
	m := x.record(10, 0)
	m.Kept.add(4, accepted{x.c.shard(), 6, Epoch{}})
	m.Opened = moveRuns{{5, 700, 5}}
	x.promise(10, x.a)
	r := m.Record
	x.v.record = &r
	require.Equal(t, "ACCEPT 10.0 lease 1000 ms", said(x.b.gets(x.a, m)))
	require.Equal(t, accepted{x.c.shard(), 6, r.Epoch}, x.b.core.vote.accepted.at(4))
	require.Equal(t, opening{5, r.Epoch}, x.b.core.vote.opened.at(700))
	x.b.slowDisk = true
	require.Equal(t, "ACCEPT 10.0 lease 1000 ms", said(x.b.gets(x.a, m)), "what is kept already waits for no disk")
}

// What a voter keeps of a slot is not taken back by an opening that knows less.
func TestRecordDoesNotTakeBackNewerMoves(t *testing.T) {
	t.Parallel()
	x := newBallotBox(t)
	later := Epoch{12, false, x.c.core.id}
	x.b.core.vote.accepted.set(4, accepted{x.c.shard(), 9, later})
	x.b.core.vote.accepted.set(5, accepted{x.c.shard(), 6, later})
	x.b.core.vote.opened.set(6, opening{9, later})
	x.b.core.vote.opened.set(7, opening{5, later})
	m := x.record(10, 0)
	m.Kept.add(4, accepted{x.a.shard(), 6, Epoch{}})
	m.Kept.add(5, accepted{x.a.shard(), 6, Epoch{}})
	m.Opened = moveRuns{{6, 7, 5}}
	require.Equal(t, "ACCEPT 10.0 lease 1000 ms", said(x.b.gets(x.a, m)))
	require.Equal(t, uint64(9), x.b.core.vote.accepted.at(4).move)
	require.Equal(t, later, x.b.core.vote.accepted.at(5).epoch)
	require.Equal(t, opening{9, later}, x.b.core.vote.opened.at(6))
	require.Equal(t, opening{5, later}, x.b.core.vote.opened.at(7))
}

// ---- MOVE

// A voter accepts iff epoch ≥ promised and the move is above what it has accepted
// for the slot, or equal with an epoch of the giver not below; all slots or none.
func TestVoterAnswersAMove(t *testing.T) {
	t.Parallel()
	const move = 6
	for _, row := range []struct {
		name string
		edit func(x *ballotBox, m *moveMsg)
		want string
	}{
		{"nothing accepted", func(x *ballotBox, m *moveMsg) {}, "ACCEPT MOVE"},
		{"a lower move accepted", func(x *ballotBox, m *moveMsg) { x.accept(5, move-1, 99) }, "ACCEPT MOVE"},
		{"the same move accepted, of an older epoch", func(x *ballotBox, m *moveMsg) { x.accept(5, move, 9) }, "ACCEPT MOVE"},
		{"the same move accepted, of the same epoch: again", func(x *ballotBox, m *moveMsg) { x.accept(5, move, 10) }, "ACCEPT MOVE"},
		{"the same move accepted, of a newer epoch", func(x *ballotBox, m *moveMsg) { x.accept(5, move, 11) }, "REFUSE moved"},
		{"a higher move accepted", func(x *ballotBox, m *moveMsg) { x.accept(5, move+1, 1) }, "REFUSE moved"},
		{"a higher move accepted for one of the slots", func(x *ballotBox, m *moveMsg) { x.accept(6, move+1, 1) }, "REFUSE moved"},
		{"the epoch promised", func(x *ballotBox, m *moveMsg) { x.promise(10, x.a) }, "ACCEPT MOVE"},
		{"an epoch above the promise", func(x *ballotBox, m *moveMsg) { x.promise(9, x.c) }, "ACCEPT MOVE"},
		{"an epoch below the promise", func(x *ballotBox, m *moveMsg) { x.promise(11, x.a) }, "REFUSE promised 11"},
		{"whole epochs are compared", func(x *ballotBox, m *moveMsg) { x.promise(10, x.c) }, "REFUSE promised 10"},
		{"an epoch of another node", func(x *ballotBox, m *moveMsg) { m.Epoch.Node = x.c.core.id }, "silence"},
		{"an epoch that nobody comes to by counting", func(x *ballotBox, m *moveMsg) { m.Epoch.Number = 1 << 60 }, "silence"},
		{"an older version: the newer set", func(x *ballotBox, m *moveMsg) { m.Voters.Number = 0 }, "UPDATE voters 1"},
		{"a newer version", func(x *ballotBox, m *moveMsg) { m.Voters.Number = 2 }, "silence"},
		{"a stopped voter", func(x *ballotBox, m *moveMsg) { x.b.core.vote.stop = ballot{1, x.c.core.id} }, "silence"},
	} {
		x := newBallotBox(t)
		x.promise(10, x.a)
		e := Epoch{10, false, x.a.core.id}
		m := &moveMsg{Voters: x.m.Voters, Shard: x.a.shard(), Epoch: e, Ballot: 88}
		for _, slot := range []Slot{5, 6} {
			x.b.core.vote.accepted.set(slot, accepted{})
			m.Slots.add(slot, accepted{x.c.shard(), move, e})
		}
		row.edit(x, m)
		was := [2]accepted{x.b.core.vote.accepted.at(5), x.b.core.vote.accepted.at(6)}
		answers := x.b.gets(x.a, m)
		got := said(answers)
		if got != row.want {
			t.Errorf("%s: %s, want %s", row.name, got, row.want)
		}
		want := was
		if got == "ACCEPT MOVE" {
			want = [2]accepted{{x.c.shard(), move, e}, {x.c.shard(), move, e}}
		}
		if have := [2]accepted{x.b.core.vote.accepted.at(5), x.b.core.vote.accepted.at(6)}; have != want {
			t.Errorf("%s: keeps %v, want %v", row.name, have, want)
		}
		if r, ok := answers0(answers).(*refuseMsg); ok {
			if r.Ballot != 88 || r.Why == refuseMoved && r.Accepted.Runs == nil {
				t.Errorf("%s: refusal of ballot %d with %v", row.name, r.Ballot, r.Accepted)
			}
		}
	}
}

func answers0(ms []message) message {
	if len(ms) == 0 {
		return nil
	}
	return ms[0]
}

// accept makes b have accepted a move of a slot, given by a under a number.
func (x *ballotBox) accept(slot Slot, move, number uint64) {
	x.b.core.vote.accepted.set(slot, accepted{x.c.shard(), move, Epoch{number, false, x.a.core.id}})
}

// Accepted is not known: it is told in votes and never gossiped as ownership.
func TestAcceptedMoveIsNoOwnership(t *testing.T) {
	t.Parallel()
	x := newBallotBox(t)
	m := &moveMsg{Voters: x.m.Voters, Shard: x.a.shard(), Epoch: x.a.epoch(), Ballot: 88}
	m.Slots.add(5, accepted{x.c.shard(), 2, x.a.epoch()})
	sum := x.b.core.table.sum
	require.Equal(t, "ACCEPT MOVE", said(x.b.gets(x.a, m)))
	require.Equal(t, "a", x.b.owns(5))
	require.Equal(t, sum, x.b.core.table.sum)
}

// ---- all votes together

// Per entry the highest, in any order.
func TestVotesAreMergedPerEntryToTheHighest(t *testing.T) {
	t.Parallel()
	a, b := ShardID{1}, ShardID{2}
	e := func(n uint64) Epoch { return Epoch{n, false, NodeID{byte(n)}} }
	accepts := func(shard ShardID, move uint64, epoch Epoch) (r acceptRuns) {
		r.add(5, accepted{shard, move, epoch})
		return r
	}
	opens := func(move uint64, epoch Epoch) (r openRuns) {
		r.add(5, opening{move, epoch})
		return r
	}
	low := votes{
		Promises: []promiseRow{{a, e(3), 30}, {b, e(9), 90}},
		Records:  []record{{Shard: a, Epoch: e(3), N: 1}, {Shard: b, Epoch: e(8)}},
		Accepted: accepts(a, 4, e(9)), Opened: opens(4, e(9)), MaxLease: 500,
	}
	high := votes{
		Promises: []promiseRow{{a, e(4), 40}, {b, e(7), 70}},
		Records:  []record{{Shard: a, Epoch: e(3), N: 2}, {Shard: b, Epoch: e(7), N: 9}},
		Accepted: accepts(b, 5, e(2)), Opened: opens(5, e(2)), MaxLease: 700,
	}
	want := votes{
		Promises: []promiseRow{{a, e(4), 40}, {b, e(9), 90}},
		Records:  []record{{Shard: a, Epoch: e(3), N: 2}, {Shard: b, Epoch: e(8)}},
		Accepted: accepts(b, 5, e(2)), Opened: opens(5, e(2)), MaxLease: 700,
	}
	require.Equal(t, want, mergedVotes([]*votes{&low, &high}))
	require.Equal(t, want, mergedVotes([]*votes{&high, &low}))
	require.Equal(t, want, mergedVotes([]*votes{&high, &low, &want, &low}))
	require.Equal(t, votes{}, mergedVotes(nil))
}

// Votes that a voter takes over are saved, and known to it after a restart.
func TestMergedVotesAreSaved(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	a := w.boot(func(c *coreConfig) { c.alone = true })
	w.run(ruleNT)
	v := votes{Promises: []promiseRow{{ShardID{0xee}, Epoch{Number: 5, Node: NodeID{2}}, 3}}, MaxLease: 5000,
		Records: []record{{Shard: ShardID{0xee}, Epoch: Epoch{Number: 5, Node: NodeID{2}}, InSync: []incarnate{{NodeID{2}, 3}}}}}
	v.Accepted.add(4000, accepted{ShardID{0xee}, 9, Epoch{Number: 5}})
	v.Opened.add(4001, opening{9, Epoch{Number: 5}})
	a.step(func(s *state, now time.Duration) output { s.begin(now); s.mergeVotes(&v); return s.end() })
	was := a.core.allVotes()
	a.restart()
	require.Equal(t, fmt.Sprint(was), fmt.Sprint(a.core.allVotes()))
	require.Equal(t, uint64(5), a.core.epochHigh)
}
