package slotmesh

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// ---- R12: who votes

// cast makes a core that knows nodes as a text says: a letter each, with
//
//   - it votes now         !  it is not alive     ^  it leads slots
//   - it is leaving        ~  it is forgotten     ?  it votes under another key
//     %  its disk hangs          /x it is on host x (else on a host of its own)
func cast(t *testing.T, text string, maxVoters int) *state {
	t.Helper()
	s := lone(t, 0x7f)
	s.peers = newPeerSet(&s.table, 0)
	s.cfg.maxVoters = maxVoters
	s.now = time.Hour
	var now voterSet
	for _, word := range strings.Fields(text) {
		flags, host, onHost := strings.Cut(word, "/")
		if !onHost {
			host = "own-" + word[:1]
		}
		id := NodeID{word[0]}
		p := &peer{peerEntry: peerEntry{ID: id, Key: 1, Host: host, Shard: ShardID{word[0]}}}
		p.resetVolatile(0)
		p.heardAt = s.now
		for _, f := range flags[1:] {
			switch f {
			case '*':
				now.Members = append(now.Members, member{id, 1})
			case '?':
				now.Members = append(now.Members, member{id, 2})
			case '!':
				p.heardAt = never
			case '%':
				p.hangs = true
			case '-':
				p.State = leaving
			case '~':
				p.State = forgotten
			case '^':
				s.table.setShard(p.Shard, Epoch{Number: 1, Node: id})
				s.table.setSlot(Slot(word[0]), slotEntry{p.Shard, 1})
			default:
				t.Fatalf("what is %q of %q?", f, word)
			}
		}
		s.peers.insert(p)
	}
	s.table.setVoters(now)
	return s
}

func TestWhoShouldVote(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name, nodes, want string
	}{
		// Hosts to voters: 1–2 → 1, 3–4 → 3, 5–6 → 5, 7–8 → 7, 9 or more → 9.
		{"one host", "a", "a"},
		{"two hosts", "a b", "a"},
		{"three hosts", "a b c", "abc"},
		{"four hosts", "a b c d", "abc"},
		{"five hosts", "a b c d e", "abcde"},
		{"six hosts", "a b c d e f", "abcde"},
		{"seven hosts", "a b c d e f g", "abcdefg"},
		{"eight hosts", "a b c d e f g h", "abcdefg"},
		{"nine hosts", "a b c d e f g h i", "abcdefghi"},
		{"twelve hosts", "a b c d e f g h i j k l", "abcdefghi"},
		// One vote per host.
		{"six nodes on three hosts", "a/x b/x c/y d/y e/z f/z", "ace"},
		{"three nodes on one host", "a/x b/x c/x", "a"},
		{"four nodes on two hosts", "a/x b/x c/y d/y", "a"},
		{"the voter of a host stays", "a/x b*/x c*/y d e*", "bce"},
		{"two voters that have come to one host", "a*/x b*/x c* d", "acd"},
		// Votes stay where they are: failovers and hand-overs change no voter.
		{"voters without slots stay", "a*^ b* c* d^ e^", "abcde"},
		{"voters stay, whoever leads", "b* c* d* a^", "bcd"},
		// Newcomers: primaries of slots first, then the smallest id.
		{"one newcomer of two: the one that leads slots", "a* b* d c^ e*", "abcde"},
		{"three of five: those that lead slots", "a* b c d^ e^", "abcde"},
		{"room for one: the one that leads slots", "a* b* c* d* e* f* g* h* i j^", "abcdefghj"},
		{"room for two of three", "a* b c^ d/x e/x", "abc"},
		{"even: the last of the newcomers is left out", "a* b* c* d", "abc"},
		{"even: the newcomer that leads slots stands before the other", "a* b* c* d e f^", "abcdf"},
		// A voter that is not alive leaves only when somebody replaces it, or two
		// together.
		{"one of three is gone, and nobody is there", "a* b*! c*", "abc"},
		{"one of three is gone, and is replaced", "a* b*! c* d", "acd"},
		{"one of three is gone, and two are there: it makes the number odd", "a* b*! c* d e", "abcde"},
		{"one of five is gone, and nobody is there", "a* b*! c* d* e*", "abcde"},
		{"one of five is gone, and is replaced", "a* b*! c* d* e* f", "acdef"},
		{"two of five are gone", "a* b*! c*! d* e*", "ade"},
		{"two of five are gone, one is there", "a* b*! c*! d* e* f", "abdef"},
		{"three of five are gone", "a* b*! c*! d*! e*", "abe"},
		{"four of five are gone", "a* b*! c*! d*! e*!", "abc"},
		{"two of three are gone", "a* b*! c*!", "abc"},
		{"two of three are gone, and replaced", "a* b*! c*! d e", "ade"},
		{"two of three are gone, one is there", "a* b*! c*! d", "abd"},
		{"of two gone voters on one host one stays", "a* b*!/x c*!/x d*", "abd"},
		{"a gone voter on the host of a newcomer does not stay", "a* b*!/x c* d/x", "acd"},
		// Nor does one that cannot save, though it is heard; it is no newcomer either.
		{"the disk of one hangs, and nobody is there", "a* b*% c*", "abc"},
		{"the disk of one hangs, and it is replaced", "a* b*% c* d", "acd"},
		{"the disks of two hang, one is there", "a* b*% c*% d", "abd"},
		{"the disk of a newcomer hangs", "a* b c%", "a"},
		// A set of one grows only to three.
		{"one voter, two hosts", "b* a", "b"},
		{"one voter, three hosts", "b* a c", "abc"},
		{"one voter, three hosts, one not alive", "b* a c!", "b"},
		{"one voter, not alive, alone", "a*!", "a"},
		// Leaving and forgotten nodes are not wanted, nor one under another key.
		{"a voter that leaves, and nobody is there", "a* b*- c*", "a"},
		{"a voter that leaves, and is replaced", "a* b*- c* d", "acd"},
		{"a voter that was forgotten", "a* b*~ c* d", "acd"},
		{"a voter that leaves and is not alive", "a* b*-! c*", "a"},
		{"all voters leave, and nobody is there", "a*- b*- c*- d!", "abc"},
		{"newcomers that leave or are forgotten", "a* b- c~ d!", "a"},
		{"a voter that was reset", "a* b? c* d", "abc"},
		{"a voter that was reset, and nobody else is there", "a* b? c*", "abc"},
		{"nobody is wanted where nobody is alive", "a! b!", ""},
		// Nine at most.
		{"eleven that an operator has imposed", "a* b* c* d* e* f* g* h* i* j* k*", "abcdefghi"},
	} {
		s := cast(t, row.nodes, maxVotersDefault)
		got := ""
		for _, m := range s.wantedVoters() {
			got += string(m.ID[0])
		}
		if got != row.want {
			t.Errorf("%s (%s): %q, want %q", row.name, row.nodes, got, row.want)
		}
		if len(got)%2 == 0 && got != "" {
			t.Errorf("%s: %d voters, want an odd number", row.name, len(got))
		}
	}
	for maxVoters, want := range map[int]int{1: 1, 3: 3, 5: 5, 63: 11} {
		s := cast(t, "a b c d e f g h i j k l", maxVoters)
		if got := len(s.wantedVoters()); got != want {
			t.Errorf("at most %d voters: %d, want %d", maxVoters, got, want)
		}
	}
}

// One NodeTimeout after wanted ≠ voters in the eyes of the smallest live voter,
// R11 runs, if that voter hears a majority of the voters and has itself leased
// every shard with slots lately, else one NodeTimeout later.
func TestWhenTheVotersAreChanged(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name string
		edit func(w *ruleWorld, ns []*ruleNode)
		want time.Duration // after the smallest live voter has seen that others are wanted; 0: never
	}{
		{"calm", func(*ruleWorld, []*ruleNode) {}, ruleNT},
		{"a shard is without a lease", func(w *ruleWorld, ns []*ruleNode) {
			w.lose = func(m ruleMail) bool { // c's heartbeats do not come through, and c is no voter's loss
				h, ok := m.msg.(*heartbeat)
				return ok && m.from == ns[2] && h.Flags&beatOpen != 0 && m.to == ns[0]
			}
		}, 2 * ruleNT},
		{"no majority is heard", func(w *ruleWorld, ns []*ruleNode) { ns[1].crash(); ns[2].crash() }, 0},
	} {
		w := newRules(t)
		ns := w.cluster(3, 4)
		a := ns[0]
		require.Equal(t, "abc", a.voters())
		w.run(2 * ruleNT)
		// d takes the place of b, who leaves.
		var stopped time.Duration
		w.seen = func(m ruleMail) {
			if _, ok := m.msg.(*stopMsg); ok && stopped == 0 {
				require.Equal(t, a, m.from, "the smallest live voter")
				stopped = w.now
			}
		}
		row.edit(w, ns)
		a.forget(ns[1].core.id, true)
		w.until("seen", func() bool { return a.core.wantedAt != never || row.want == 0 })
		began := w.now
		w.run(4 * ruleNT)
		got := stopped - began
		if stopped == 0 {
			got = 0
		}
		if got < row.want-ruleNT/10 || got > row.want+ruleNT/5 {
			t.Errorf("%s: after %v, want %v", row.name, got, row.want)
		}
	}
}

// The smallest voter alive sees to it, also when smaller ones are dead.
func TestSmallestLiveVoterChangesTheVoters(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	ns := w.cluster(2, 4)
	w.run(ruleNT)
	ns[0].crash()
	w.until("the dead one is replaced", func() bool { return ns[1].voters() == "bcd" })
	w.until("all vote", func() bool { return ns[3].core.active() && ns[2].core.active() })
}

// A voter that cannot save is replaced though it is heard, the smallest one by the next;
// it hears so, and votes no more once its disk goes on.
func TestVoterWhoseDiskHangsIsReplaced(t *testing.T) {
	t.Parallel()
	for i, want := range []string{"bcd", "acd"} {
		w := newRules(t)
		ns := w.cluster(3, 4)
		w.run(ruleNT)
		hangs := ns[i]
		hangs.slowDisk = true
		w.run(5 * ruleNT)
		require.Equal(t, "abc", ns[2].voters(), "nobody can know: there is nothing to save")
		ns[2].command(func(s *state, now time.Duration, id uint64) output { return s.bumpEpoch(now, id) })
		w.until("it is replaced", func() bool { return ns[2].voters() == want && ns[3].core.active() })
		require.Equal(t, want, hangs.voters())
		require.True(t, hangs.core.leaseHeld(), "it leads on")
		require.Empty(t, hangs.core.silent)
		hangs.slowDisk = false
		hangs.flush()
		w.run(5 * ruleNT)
		require.Equal(t, want, hangs.voters(), "votes stay where they are")
		require.Equal(t, want, ns[2].voters())
	}
}

// ---- R11: stop

// electorate is a voter b, to whom a proposes a change of the voters a, b, c.
type electorate struct {
	w          *ruleWorld
	a, b, c, d *ruleNode
	ballot     ballot
}

func newElectorate(t *testing.T) *electorate {
	t.Helper()
	w := newRules(t)
	ns := w.cluster(1, 4)
	w.run(2 * ruleNT)
	return &electorate{w, ns[0], ns[1], ns[2], ns[3], ballot{5, ns[0].core.id}}
}

func (x *electorate) stop() *stopMsg {
	return &stopMsg{Voters: x.b.core.table.voters.Version, Ballot: x.ballot}
}

func (x *electorate) start() *startMsg {
	return &startMsg{Voters: x.b.core.table.voters.Version, Ballot: x.ballot, Value: startValue{ID: 77, Cluster: x.b.core.cluster,
		Version: voterVersion{Number: 2}, Members: []member{x.a.member(), x.b.member(), x.d.member()}}}
}

// Each that is active under this version saves the ballot if it is higher, and
// answers.
func TestVoterAnswersAStop(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name string
		edit func(x *electorate, m *stopMsg)
		want string
	}{
		{"the first one", func(x *electorate, m *stopMsg) {}, "STOPPED"},
		{"a higher ballot", func(x *electorate, m *stopMsg) { x.b.core.vote.stop = ballot{4, x.c.core.id} }, "STOPPED"},
		{"the same ballot again", func(x *electorate, m *stopMsg) { x.b.core.vote.stop = m.Ballot }, "STOPPED"},
		{"a lower ballot", func(x *electorate, m *stopMsg) { x.b.core.vote.stop = ballot{6, x.a.core.id} }, "silence"},
		{"the same number of a higher node", func(x *electorate, m *stopMsg) { x.b.core.vote.stop = ballot{5, x.c.core.id} }, "silence"},
		{"a ballot of another node", func(x *electorate, m *stopMsg) { m.Ballot.Node = x.c.core.id }, "silence"},
		{"an older version: the table", func(x *electorate, m *stopMsg) { m.Voters.Number = 0 }, "UPDATE voters 1"},
		{"a newer version", func(x *electorate, m *stopMsg) { m.Voters.Number = 2 }, "silence"},
		{"a voter that is not active", func(x *electorate, m *stopMsg) { x.b.core.vote.current = nil }, "silence"},
		{"no voter", func(x *electorate, m *stopMsg) { x.b.core.table.voters.Members = x.b.core.table.voters.Members[:1] }, "silence"},
	} {
		x := newElectorate(t)
		m := x.stop()
		row.edit(x, m)
		was := x.b.core.vote.stop
		got := said(x.b.gets(x.a, m))
		if got != row.want {
			t.Errorf("%s: %s, want %s", row.name, got, row.want)
		}
		if stopped := x.b.core.vote.stop == m.Ballot; stopped != (got == "STOPPED") && was != m.Ballot {
			t.Errorf("%s: stopped %v after %s", row.name, stopped, got)
		}
	}
}

// From then on it grants, accepts and leases nothing under this version.
func TestStoppedVoterDoesNothingUnderItsVersion(t *testing.T) {
	t.Parallel()
	x := newElectorate(t)
	a, b := x.a, x.b
	b.core.vote.stopWait = 10 * ruleNT
	b.gets(a, x.stop())
	b.core.vote.stopWait = 10 * ruleNT
	v, e := b.core.table.voters.Version, Epoch{a.epoch().Number + 1, false, a.core.id}
	move := &moveMsg{Voters: v, Shard: a.shard(), Epoch: e, Ballot: 8}
	move.Slots.add(5, accepted{x.d.shard(), 2, e})
	for _, m := range []message{
		&voteMsg{Voters: v, Shard: a.shard(), Epoch: e, Incarnation: a.cfg.incarnation},
		&recordMsg{Voters: v, Record: record{Shard: a.shard(), Epoch: e}},
		move,
	} {
		require.Equal(t, "silence", said(b.gets(a, m)), m.kind().String())
	}
	leases := x.w.count(func() { x.w.run(2 * ruleNT) }, func(m ruleMail) bool {
		h, ok := m.msg.(*heartbeat)
		return ok && m.from == b && (h.Lease > 0 || h.Flags&beatBehind != 0)
	})
	require.Zero(t, leases)
	require.Equal(t, "RECORDS", said(b.gets(a, &getRecordsMsg{1})), "it tells what it keeps, to whom asks by name")
}

// It answers with all its records, accepted moves and openings, and the START it
// has saved, once the ballot is on disk.
func TestStoppedCarriesAllThatTheVoterKeeps(t *testing.T) {
	t.Parallel()
	x := newElectorate(t)
	x.b.core.setAccepted(5, accepted{x.d.shard(), 9, Epoch{Number: 9}})
	x.b.core.setOpened(6, opening{9, Epoch{Number: 9}})
	x.b.slowDisk = true
	require.Equal(t, "silence", said(x.b.gets(x.a, x.stop())))
	x.w.catchAt = x.a.cfg.addr
	x.b.flush()
	x.w.catchAt = ""
	m := x.w.caught[0].(*stoppedMsg)
	require.Equal(t, x.b.core.allVotes(), m.Votes)
	require.NotEmpty(t, m.Votes.Records)
	require.NotEmpty(t, m.Votes.Accepted.Runs)
	require.NotEmpty(t, m.Votes.Opened.Runs)
	require.Equal(t, uint32(1000), m.Votes.MaxLease)
	require.Empty(t, m.Starts)
	var saved ballot
	require.NoError(t, decodeValue(x.b.disk[cellKey{kind: cellStop}], &saved))
	require.Equal(t, x.ballot, saved)

	x.b.slowDisk = false
	start := x.start()
	x.b.gets(x.a, start)
	x.ballot.Number++
	m = x.b.gets(x.a, x.stop())[0].(*stoppedMsg)
	require.Equal(t, []startValue{start.Value}, m.Starts)
	require.Equal(t, start.Ballot, m.StartBallot)

	x.b.restart()
	require.Equal(t, x.ballot, x.b.core.vote.stop, "stopped also after a restart")
	require.Equal(t, start.Value.ID, x.b.core.vote.startValue.ID)
}

// ---- R11: copy and start

// If a START was seen, that of the highest ballot, else one of the next version
// with a random id, and per entry the highest of what the voters keep.
func TestWhatAChangeProposes(t *testing.T) {
	t.Parallel()
	x := newElectorate(t)
	a := x.a
	wanted := []member{a.member(), x.b.member(), x.d.member()}
	seen := func(id uint64, number uint64) *stoppedMsg {
		return &stoppedMsg{Starts: []startValue{{ID: id, Members: wanted}}, StartBallot: ballot{number, a.core.id}}
	}
	keeps := func(number uint64) *stoppedMsg {
		return &stoppedMsg{Votes: votes{Promises: []promiseRow{{ShardID{9}, Epoch{Number: number}, number}}}}
	}
	for _, row := range []struct {
		name    string
		b, c    *stoppedMsg
		want    uint64 // id; 0: a new one
		promise uint64
	}{
		{"no START seen", keeps(3), keeps(5), 0, 5},
		{"no START seen, the other way round", keeps(5), keeps(3), 0, 5},
		{"one START seen", seen(41, 1), keeps(5), 41, 0},
		{"two STARTs seen: the higher ballot", seen(41, 3), seen(42, 2), 41, 0},
		{"two STARTs seen, the other way round", seen(41, 2), seen(42, 3), 42, 0},
		{"one voter alone has answered", nil, keeps(5), 0, 5},
	} {
		c := &change{version: voterVersion{Forced: 1, Number: 7}, old: a.core.table.voters.Members, wanted: wanted, answers: map[NodeID]*stoppedMsg{}}
		if row.b != nil {
			c.answers[x.b.core.id] = row.b
		}
		c.answers[x.c.core.id] = row.c
		v := a.core.valueFor(c)
		if row.want != 0 && v.ID != row.want {
			t.Errorf("%s: proposes %d, want %d", row.name, v.ID, row.want)
		}
		if row.want != 0 {
			continue
		}
		if v.ID == 0 || v.Version != (voterVersion{Forced: 1, Number: 8}) || !sameMembers(v.Members, wanted) || v.Cluster != a.core.cluster {
			t.Errorf("%s: proposes %+v", row.name, v)
		}
		if len(v.Votes.Promises) != 1 || v.Votes.Promises[0].Epoch.Number != row.promise {
			t.Errorf("%s: with promises %v, want %d", row.name, v.Votes.Promises, row.promise)
		}
	}
}

// A member active under the old version saves it with ballot ≥ its own and
// answers STARTED; everybody else only keeps it (if it knows no newer version)
// and is not counted; who knows that version or a newer one answers with the
// table.
func TestMemberAnswersAStart(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name string
		at   func(x *electorate) *ruleNode
		edit func(x *electorate, n *ruleNode, m *startMsg)
		want string
		kept bool
	}{
		{"an active voter", nil, nil, "STARTED", true},
		{"an active voter stopped by this ballot", nil, func(x *electorate, n *ruleNode, m *startMsg) { n.core.vote.stop = m.Ballot }, "STARTED", true},
		{"an active voter stopped by a lower ballot", nil, func(x *electorate, n *ruleNode, m *startMsg) { n.core.vote.stop = ballot{4, x.c.core.id} }, "STARTED", true},
		{"an active voter stopped by a higher ballot", nil, func(x *electorate, n *ruleNode, m *startMsg) { n.core.vote.stop = ballot{6, x.c.core.id} }, "silence", false},
		{"again", nil, func(x *electorate, n *ruleNode, m *startMsg) { n.gets(x.a, m) }, "STARTED", true},
		{"another one under a higher ballot", nil, func(x *electorate, n *ruleNode, m *startMsg) {
			other := *m
			other.Value.ID, other.Ballot.Number = 66, 4
			n.gets(x.a, &other)
		}, "STARTED", true},
		{"another one under a lower ballot", nil, func(x *electorate, n *ruleNode, m *startMsg) {
			other := *m
			other.Value.ID, other.Ballot.Number = 66, 6
			n.gets(x.a, &other)
		}, "silence", false},
		{"a voter that is not active", nil, func(x *electorate, n *ruleNode, m *startMsg) { n.core.vote.current = nil }, "silence", true},
		{"a member that does not vote", func(x *electorate) *ruleNode { return x.d }, nil, "silence", true},
		{"a member that holds a START of a later version", func(x *electorate) *ruleNode { return x.d }, func(x *electorate, n *ruleNode, m *startMsg) {
			n.core.vote.startValue = &startValue{ID: 66, Version: voterVersion{Number: 3}}
		}, "silence", false},
		{"an active voter that keeps a START of a later version", nil, func(x *electorate, n *ruleNode, m *startMsg) {
			later := *m
			later.Voters.Number, later.Value.ID, later.Value.Version.Number = 2, 66, 3
			n.gets(x.a, &later)
			require.Equal(t, uint64(66), n.core.vote.startValue.ID)
		}, "STARTED", true},
		{"who knows that version", nil, func(x *electorate, n *ruleNode, m *startMsg) { m.Value.Version.Number = 1 }, "UPDATE voters 1", false},
		{"who knows a newer version", nil, func(x *electorate, n *ruleNode, m *startMsg) { m.Value.Version.Number = 0 }, "UPDATE voters 1", false},
		{"handed out, of a version that is not in force here yet", nil, func(x *electorate, n *ruleNode, m *startMsg) { m.Pull = true }, "silence", false},
		{"of another cluster", nil, func(x *electorate, n *ruleNode, m *startMsg) { m.Value.Cluster[0]++ }, "silence", false},
		{"that ends another version", nil, func(x *electorate, n *ruleNode, m *startMsg) { m.Voters.Number = 2; m.Value.Version.Number = 3 }, "silence", true},
	} {
		x := newElectorate(t)
		n := x.b
		if row.at != nil {
			n = row.at(x)
		}
		m := x.start()
		if row.edit != nil {
			row.edit(x, n, m)
		}
		got := said(n.gets(x.a, m))
		sv := n.core.vote.startValue
		kept := sv != nil && sv.ID == m.Value.ID
		if got != row.want || kept != row.kept {
			t.Errorf("%s: %s, kept %v, want %s, %v", row.name, got, kept, row.want, row.kept)
		}
		if kept && n.core.table.voters.Version.Number != 1 {
			t.Errorf("%s: it is in force before it is decided", row.name)
		}
	}
}

// Ballot and START are saved before STARTED.
func TestStartIsSavedBeforeItIsAnswered(t *testing.T) {
	t.Parallel()
	x := newElectorate(t)
	x.b.slowDisk = true
	require.Equal(t, "silence", said(x.b.gets(x.a, x.start())))
	x.w.catchAt = x.a.cfg.addr
	x.b.flush()
	x.w.catchAt = ""
	require.Equal(t, "STARTED", said(x.w.caught))
	var c startCell
	require.NoError(t, decodeValue(x.b.disk[cellKey{kind: cellStart}], &c))
	require.Equal(t, uint64(77), c.Value.ID)
	require.Equal(t, x.ballot, c.Ballot)
}

// Decided when a majority of the old set has answered for one (id, ballot).
func TestWhichAnswersDecideAChange(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name string
		edit func(x *electorate, m *startedMsg) (from *ruleNode)
		want bool
	}{
		{"of the old set", func(x *electorate, m *startedMsg) *ruleNode { return x.b }, true},
		{"of the new set alone", func(x *electorate, m *startedMsg) *ruleNode { return x.d }, false},
		{"of the old set under another key", func(x *electorate, m *startedMsg) *ruleNode { x.a.core.change.old[1].Key++; return x.b }, false},
		{"for another START", func(x *electorate, m *startedMsg) *ruleNode { m.ID++; return x.b }, false},
		{"under another ballot", func(x *electorate, m *startedMsg) *ruleNode { m.Ballot.Number--; return x.b }, false},
	} {
		x := newElectorate(t)
		a := x.a
		x.w.lose = kindsOf(msgStop, msgStart)
		wanted := []member{a.member(), x.b.member(), x.d.member()}
		a.step(func(s *state, now time.Duration) output {
			s.begin(now)
			s.beginChange(append([]member(nil), s.table.voters.Members...), wanted, false)
			return s.end()
		})
		c := a.core.change
		require.NotNil(t, c.answers[a.core.id], "its own vote is stopped")
		a.gets(x.b, &stoppedMsg{Voters: c.version, Ballot: c.ballot})
		require.NotNil(t, c.value)
		require.True(t, c.started[a.core.id])
		m := &startedMsg{Voters: c.version, Ballot: c.ballot, ID: c.value.ID}
		a.gets(row.edit(x, m), m)
		if got := a.voters() == "abd"; got != row.want {
			t.Errorf("%s: decided %v, want %v", row.name, got, row.want)
		}
	}
}

// Which STOPPED answers count.
func TestWhichAnswersStopAVersion(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name string
		edit func(x *electorate, m *stoppedMsg) (from *ruleNode)
		want bool
	}{
		{"of a voter", func(x *electorate, m *stoppedMsg) *ruleNode { return x.b }, true},
		{"of no voter", func(x *electorate, m *stoppedMsg) *ruleNode { return x.d }, false},
		{"under another ballot", func(x *electorate, m *stoppedMsg) *ruleNode { m.Ballot.Number++; return x.b }, false},
		{"of another version", func(x *electorate, m *stoppedMsg) *ruleNode { m.Voters.Number++; return x.b }, false},
		{"with a promise that is too high to be true", func(x *electorate, m *stoppedMsg) *ruleNode {
			m.Votes.Promises = []promiseRow{{x.a.shard(), Epoch{Number: 1 << 50}, 1}}
			return x.b
		}, false},
	} {
		x := newElectorate(t)
		a := x.a
		x.w.lose = kindsOf(msgStop)
		a.step(func(s *state, now time.Duration) output {
			s.begin(now)
			s.beginChange(s.table.voters.Members, []member{a.member(), x.b.member(), x.d.member()}, false)
			return s.end()
		})
		m := &stoppedMsg{Voters: a.core.change.version, Ballot: a.core.change.ballot}
		a.gets(row.edit(x, m), m)
		if got := a.core.change.value != nil; got != row.want {
			t.Errorf("%s: counts %v, want %v", row.name, got, row.want)
		}
	}
}

// A member is active only while it holds the START whose id the table names.
func TestMemberIsActiveUnderTheStartThatTheTableNames(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name   string
		id     uint64 // of the START that it holds
		number uint64
		want   bool
	}{
		{"that START", 77, 2, true},
		{"another START of that version, which was never decided", 78, 2, false},
		{"a START of another version", 77, 3, false},
	} {
		x := newElectorate(t)
		d := x.d
		d.core.vote.startValue = &startValue{ID: row.id, Cluster: d.core.cluster, Version: voterVersion{Number: row.number},
			Members: []member{x.a.member(), x.b.member(), d.member()}}
		d.gets(x.a, &updateMsg{Voters: []voterSet{{voterVersion{Number: 2}, 77, []member{x.a.member(), x.b.member(), d.member()}}}})
		if got := d.core.active(); got != row.want {
			t.Errorf("%s: active %v, want %v", row.name, got, row.want)
		}
	}
}

// A member without it asks every peer for it each tick; who holds the START of
// the newest version hands it out, and keeps it until the next one.
func TestStartIsHandedOutToMembersWithoutIt(t *testing.T) {
	t.Parallel()
	x := newElectorate(t)
	x.w.lose = func(m ruleMail) bool { return m.to == x.d && m.msg.kind() == msgStart }
	x.a.forget(x.b.core.id, false)
	x.w.until("changed", func() bool { return x.d.voters() == "acd" })
	require.False(t, x.d.core.active())
	asks := x.w.count(func() { x.w.run(ruleNT) }, func(m ruleMail) bool { return m.from == x.d && m.to == x.a && m.msg.kind() == msgGetStart })
	require.InDelta(t, 20, asks, 1)
	id := x.a.core.table.voters.ID
	for _, row := range []struct {
		name string
		of   *ruleNode
		id   uint64
		want string
	}{
		{"a voter that holds it", x.a, id, "START"},
		{"a node that was of the old set alone", x.b, id, "START"},
		{"another START is asked for", x.a, id + 1, "silence"},
	} {
		require.Equal(t, row.want, said(row.of.gets(x.d, &getStartMsg{row.id})), row.name)
	}
	x.w.lose = nil
	x.w.run(ruleNT / 10)
	require.True(t, x.d.core.active())
	require.NotEmpty(t, x.d.core.vote.shards, "with the records")
	x.d.restart()
	require.True(t, x.d.core.active(), "it keeps it")
}

// A voter stopped for NodeTimeout/4 (and up to as much at random) starts again
// with a higher ballot: the proposer may be gone at any step.
func TestChangeGoesOnWithoutItsProposer(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name string
		lose []msgKind
		same bool // the START of the proposer is the one that is decided
	}{
		{"gone while it stops", []msgKind{msgStopped}, false},
		{"gone once one voter has saved START", []msgKind{msgStarted}, true},
	} {
		x := newElectorate(t)
		x.w.lose = kindsOf(row.lose...)
		x.a.forget(x.d.core.id, false)
		x.w.run(ruleNT / 10)
		g := x.w.boot()
		g.meet(x.b)
		x.c.crash()
		var id uint64
		x.w.until("a change is under way", func() bool { return !x.b.core.vote.stop.isZero() })
		x.w.until("as far as it gets", func() bool {
			if v := x.b.core.vote.startValue; v != nil {
				id = v.ID
			}
			return id != 0 || !row.same
		})
		ballot := x.b.core.vote.stop
		x.a.crash() // with c it was two of three: nothing is decided until it is back
		x.w.lose = nil
		x.c.restart()
		x.w.run(ruleNT * 6 / 10)
		require.True(t, ballot.less(x.b.core.vote.stop) || x.b.core.table.voters.Version.Number > 1, "%s: a higher ballot", row.name)
		x.w.until("changed", func() bool { return x.b.core.table.voters.Version.Number > 1 })
		if row.same {
			require.Equal(t, id, x.b.core.table.voters.ID, row.name)
		}
	}
}

func TestStoppedVoterWaitsBeforeItStartsAgain(t *testing.T) {
	t.Parallel()
	for _, restarts := range []bool{false, true} {
		x := newElectorate(t)
		x.a.crash()
		x.w.lose = kindsOf(msgStop)
		x.w.run(ruleNT / 10)
		who := *x.a.core.who
		x.b.getsAs(who, x.stop())
		if restarts {
			x.w.run(ruleNT / 5)
			x.b.restart()
		}
		began := x.w.now
		x.w.until("another ballot", func() bool { return x.b.core.vote.stop != x.ballot })
		if waited := x.w.now - began; waited < ruleNT/4 || waited > ruleNT/2+ruleNT/20 {
			t.Errorf("restarts %v: again after %v, want NodeTimeout/4 to NodeTimeout/2", restarts, waited)
		}
		require.Equal(t, ballot{x.ballot.Number + 1, x.b.core.id}, x.b.core.vote.stop)
	}
}

// Any change of size is safe, and costs no service.
func TestServiceGoesOnWhileTheVotersChange(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	ns := w.cluster(1, 8)
	a := ns[0]
	require.Equal(t, "abcdefg", a.voters())
	w.run(2 * ruleNT)
	for _, n := range ns[1:6] { // five of seven at once
		a.forget(n.core.id, false)
	}
	for range 200 {
		w.run(ruleNT / 20)
		require.True(t, a.serves(5), "at %v under %s", w.now, a.voters())
	}
	require.Equal(t, "agh", a.voters())
	for _, n := range ns[1:6] {
		require.Equal(t, forgotten, a.knows(n).State)
	}
}

// A change that does not come to an end begins again with what is known then.
func TestChangeBeginsAgainAfterAWhile(t *testing.T) {
	t.Parallel()
	x := newElectorate(t)
	x.w.lose = kindsOf(msgStop, msgStopped)
	x.a.forget(x.b.core.id, false)
	x.w.until("begun", func() bool { return x.a.core.change != nil })
	first := x.a.core.change
	x.w.run(5*ruleNT + ruleNT/10)
	require.NotSame(t, first, x.a.core.change)
	x.w.until("begun again", func() bool { return x.a.core.change != nil })
	require.True(t, first.ballot.less(x.a.core.change.ballot))
}

// A change that somebody else has decided meanwhile is over.
func TestChangeEndsWhenAnotherIsDecided(t *testing.T) {
	t.Parallel()
	x := newElectorate(t)
	x.w.lose = kindsOf(msgStop, msgStopped)
	x.a.forget(x.b.core.id, false)
	x.w.until("begun", func() bool { return x.a.core.change != nil })
	x.a.gets(x.c, &updateMsg{Voters: []voterSet{{voterVersion{Number: 2}, 99, []member{x.a.member(), x.c.member(), x.d.member()}}}})
	require.Nil(t, x.a.core.change)
	require.True(t, x.a.core.vote.stop.isZero())
}

// ---- R15: voters that an operator imposes

func TestForceVotersIsRefused(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	ns := w.cluster(1, 4)
	a, b, c := ns[0], ns[1], ns[2]
	require.Equal(t, "ERR 2 voters, expected an odd number up to 63", a.forceVoters(a, b).String())
	require.Equal(t, "ERR 0 voters, expected an odd number up to 63", a.forceVoters().String())
	require.Equal(t, "ERR node "+b.core.id.String()+" is named twice", a.forceVoters(a, b, b).String())
	require.Equal(t, "ERR Unknown node 77", a.forceVoters(a, b, &ruleNode{core: lone(t, 0x77)}).String()[:len("ERR Unknown node 77")])
	b.crash()
	c.crash()
	first := a.forceVoters(a)
	require.Equal(t, "no reply", first.String())
	require.Equal(t, "TRYAGAIN voters are being imposed already", a.forceVoters(a).String())
	require.Equal(t, "ERR the cluster has not formed yet: it has no voters", func() string { x := w.boot(); return x.forceVoters(x).String() }())
}

// It raises forced and version by one, and copies per entry the highest record
// of all voters it can reach and the table's epochs.
func TestForceVotersCopiesWhatCanBeReached(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	ns := w.cluster(2, 6)
	a, b, c, d, f := ns[0], ns[1], ns[2], ns[3], ns[5]
	require.Equal(t, "abcde", a.voters())
	w.run(2 * ruleNT)
	d.core.vote.shard(ShardID{9}).promised = Epoch{Number: 9}
	d.core.vote.shard(ShardID{9}).record = &record{Shard: ShardID{9}, Epoch: Epoch{Number: 8}}
	d.core.setAccepted(7, accepted{ShardID{9}, 9, Epoch{Number: 4}})
	for _, n := range []*ruleNode{a, b, c} {
		n.crash()
	}
	r := f.forceVoters(d, f, ns[4])
	w.deliver()
	require.Equal(t, "no reply", r.String(), "a, b and c may still answer")
	w.run(ruleNT/4 + ruleNT/20)
	require.Equal(t, voterVersion{1, 2, f.core.id}, f.core.table.voters.Version)
	require.Equal(t, "def", d.voters())
	v := f.core.vote.shards
	require.Equal(t, Epoch{Number: 9}, v[ShardID{9}].promised)
	require.Equal(t, Epoch{Number: 8}, v[ShardID{9}].record.Epoch)
	require.Equal(t, uint64(9), f.core.vote.accepted.at(7).move)
	require.Equal(t, f.core.table.shards[a.shard()], v[a.shard()].promised)
	require.Equal(t, b.shard(), f.core.vote.accepted.at(9000).shard, "the table counts too")
	require.Equal(t, uint64(2), f.eventsOf(EventUnclean)[0].Number)
	w.until("all vote", func() bool { return d.core.active() && f.core.active() && ns[4].core.active() })
	w.run(ruleNT)
	require.Equal(t, "OK", r.String())
	a.restart()
	w.until("the old side hears of it", func() bool { return a.voters() == "def" && a.serves(5) })
}

// Whoever is reached at once need not be waited for.
func TestForceVotersWaitsForNobodyWhoHasAnswered(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	ns := w.cluster(1, 3)
	r := ns[0].forceVoters(ns[0])
	w.deliver()
	require.Equal(t, "a", ns[1].voters())
	require.Equal(t, "OK", r.String())
}

// A forced set beats all that its old side decides meanwhile.
func TestImposedVotersBeatWhatTheOldSideDecides(t *testing.T) {
	t.Parallel()
	s := lone(t, 1)
	forced := voterSet{voterVersion{1, 2, NodeID{9}}, 5, []member{{NodeID{9}, 1}}}
	later := voterSet{voterVersion{0, 40, NodeID{}}, 6, []member{{NodeID{8}, 1}}}
	for _, order := range [][]voterSet{{forced, later}, {later, forced}} {
		s.table.setVoters(voterSet{Version: voterVersion{Number: 1}})
		for i := range order {
			s.onUpdate(&peer{}, &updateMsg{Voters: []voterSet{order[i]}})
		}
		require.Equal(t, forced.Version, s.table.voters.Version)
	}
}

// Where voters are imposed on two sides at once, what each side decides from then on has
// versions of its own, or the two would never be one again.
func TestTwoSidesOnWhichVotersAreImposed(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	ns := w.cluster(2, 4)
	w.run(2 * ruleNT)
	left := func(n *ruleNode) bool { return n == ns[0] || n == ns[1] }
	w.lose = func(m ruleMail) bool { return left(m.from) != left(m.to) }
	w.run(2 * ruleNT)
	ns[0].forceVoters(ns[0])
	ns[3].forceVoters(ns[3])
	for _, n := range []*ruleNode{ns[0], ns[3]} {
		n.step(func(s *state, now time.Duration) output {
			s.begin(now)
			s.beginChange(s.table.voters.Members, s.table.voters.Members, false)
			return s.end()
		})
	}
	w.run(ruleNT / 2)
	is := func(n *ruleNode) voterSet { return n.core.table.voters }
	require.Equal(t, is(ns[0]).Version.Number, is(ns[3]).Version.Number)
	require.NotEqual(t, is(ns[0]).ID, is(ns[3]).ID)
	require.NotEqual(t, is(ns[0]).Version, is(ns[3]).Version)
	w.lose = nil
	w.until("there is one set again", func() bool { return is(ns[0]).ID == is(ns[3]).ID })
}

// Going over to a set that was imposed elsewhere, or came of it, is like that too.
func TestVotersImposedElsewhereKnowNothingOfWhatWasWon(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name string
		next voterVersion
		void bool
	}{
		{"decided by the voters of now", voterVersion{1, 3, NodeID{7}}, false},
		{"imposed on top", voterVersion{2, 3, NodeID{9}}, true},
		{"decided from those that were imposed elsewhere", voterVersion{1, 3, NodeID{9}}, true},
	} {
		w := newRules(t)
		a := w.cluster(2, 4)[0]
		w.run(2 * ruleNT)
		a.core.table.setVoters(voterSet{voterVersion{1, 2, NodeID{7}}, 5, a.core.table.voters.Members})
		a.step(func(s *state, now time.Duration) output {
			s.begin(now)
			s.setVoters(voterSet{row.next, 6, s.table.voters.Members}, pushNothing)
			require.Equal(t, row.void, s.lead.void, row.name)
			return s.end()
		})
	}
}

// That side's primaries stand again: what they have won there the new voters
// need not know, and are not told to accept.
func TestPrimariesOfTheOldSideStandAgain(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	ns := w.cluster(2, 4)
	a, b, c, d := ns[0], ns[1], ns[2], ns[3]
	w.run(2 * ruleNT)
	d.cut = true
	require.Equal(t, "OK", w.settle(a.command(func(s *state, now time.Duration, id uint64) output { return s.bumpEpoch(now, id) })))
	won := a.epoch() // which d has not heard of
	a.handOff(1, "5", b.shard())
	w.lose = kindsOf(msgMove)
	a.core.vote.stop = ballot{1, c.core.id}
	a.frozen(1, 7, false)
	w.deliver()
	b.stageHeld(1, 7)
	w.deliver()
	a.core.vote.stop = ballot{}
	require.Equal(t, giveMoving, a.core.lead.gives[0].phase)
	w.run(2 * ruleNT)
	d.forceVoters(d)
	w.run(ruleNT)
	require.Equal(t, "d", d.voters())

	var told []string
	w.seen = func(m ruleMail) {
		if m.to != d || m.from != a {
			return
		}
		switch x := m.msg.(type) {
		case *recordMsg:
			told = append(told, fmt.Sprintf("RECORD %v", x.Record.Epoch == won))
		case *moveMsg:
			told = append(told, fmt.Sprintf("MOVE %v", x.Epoch == won))
		case *voteMsg:
			told = append(told, "VOTE")
		}
	}
	d.cut = false
	w.until("heard", func() bool { return a.voters() == "d" })
	w.lose = nil
	require.True(t, a.serves(4), "it goes on under its old lease")
	w.until("won again", func() bool { return a.epoch().Number > won.Number && a.serves(4) })
	require.Equal(t, "VOTE", told[0])
	require.NotContains(t, told, "RECORD true", "of what it has won before")
	require.NotContains(t, told, "MOVE true")
	w.run(ruleNT)
	require.Empty(t, a.core.lead.gives)
	require.Equal(t, "a", d.owns(5), "no voter of now has accepted that MOVE")
	require.True(t, a.serves(5))
}

// The same for what an operator's command has taken under the old voters.
func TestOperationOfTheOldSideBeginsAgain(t *testing.T) {
	t.Parallel()
	w, a, b, c, d := withoutOwner(t)
	w.lose = kindsOf(msgMove)
	r := d.addSlots("5")
	w.run(ruleNT / 10)
	require.NotNil(t, d.core.ops[0].move)
	c.forceVoters(c)
	w.deliver()
	require.Equal(t, "c", d.voters())
	require.Nil(t, d.core.ops[0].move)
	require.NotNil(t, d.core.ops[0].stand)
	w.lose = nil
	require.Equal(t, "OK", w.settle(r))
	_, _ = a, b
}
