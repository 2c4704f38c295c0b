package slotmesh

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// owners boots n nodes that have met and share all slots evenly; what would
// form them is held back.
func (w *ruleWorld) owners(n int) []*ruleNode {
	w.t.Helper()
	w.lose = kindsOf(msgStop)
	ns := w.group(n)
	for i, x := range ns {
		x.addSlots(SlotRange{Slot(i * NumSlots / n), Slot((i+1)*NumSlots/n - 1)}.String())
		w.deliver()
	}
	w.until("all show one table", func() bool {
		for _, x := range ns {
			for _, p := range x.core.peers.ordered {
				if p != x.core.self && p.sameSince == never {
					return false
				}
			}
		}
		return true
	})
	return ns
}

func formed(ns ...*ruleNode) bool {
	for _, n := range ns {
		if n.core.cluster.IsZero() || n.core.cluster != ns[0].core.cluster {
			return false
		}
	}
	return true
}

// ---- by hand

// Formers by hand are the owners, once all slots have one.
func TestFormersByHandAreTheOwners(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name string
		edit func(w *ruleWorld, ns []*ruleNode)
		want string
	}{
		{"two owners of three nodes", func(w *ruleWorld, ns []*ruleNode) {}, "ab"},
		{"a slot without an owner", func(w *ruleWorld, ns []*ruleNode) { w.settle(ns[0].delSlots("0")) }, ""},
		{"three owners", func(w *ruleWorld, ns []*ruleNode) { w.settle(ns[2].setSlots("0", ns[2])) }, "abc"},
		{"an owner that is forgotten", func(w *ruleWorld, ns []*ruleNode) { ns[0].forget(ns[1].core.id, true) }, ""},
		{"an owner that has been reset, and was met again", func(w *ruleWorld, ns []*ruleNode) {
			w.settle(ns[1].reset(false, false))
			ns[1].meet(ns[0])
			w.run(ruleNT)
			w.settle(ns[1].setSlots("9000", ns[1]))
		}, "ab"},
	} {
		w := newRules(t)
		w.lose = kindsOf(msgStop)
		ns := w.group(3)
		ns[0].addSlots("0-8191")
		ns[1].addSlots("8192-16383")
		w.run(ruleNT)
		row.edit(w, ns)
		got := w.letters(ns[0].core.formers())
		if got != row.want {
			t.Errorf("%s: %q, want %q", row.name, got, row.want)
		}
		if !ascending(ns[0].core.formers(), member.compare) {
			t.Errorf("%s: not each once in ascending order", row.name)
		}
	}
}

// When every former has shown the proposer's own digest for 200 ms, the former
// with the smallest id proposes.
func TestFormationIsProposedOnceAllShowOneTable(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	ns := w.group(3)
	var stops []string
	var calm time.Duration
	w.seen = func(m ruleMail) {
		if m.msg.kind() == msgStop {
			stops = append(stops, m.from.name)
			if calm == 0 {
				calm = w.now
				for _, n := range ns[1:] {
					require.GreaterOrEqual(t, w.now-ns[0].knows(n).sameSince, formCalm, n.name)
				}
			}
		}
	}
	for i, n := range ns {
		n.addSlots([]string{"0-4999", "5000-9999", "10000-16383"}[i])
	}
	w.until("formed", func() bool { return formed(ns...) })
	require.NotContains(t, stops, "b")
	require.NotContains(t, stops, "c")
}

// A former that shows another table, or none, holds formation up.
func TestFormationWaitsForEveryFormer(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name string
		lose func(ns []*ruleNode) func(ruleMail) bool
	}{
		{"a former is silent", func(ns []*ruleNode) func(ruleMail) bool {
			return func(m ruleMail) bool { return m.from == ns[1] }
		}},
		{"a former shows another table", func(ns []*ruleNode) func(ruleMail) bool {
			ns[1].core.table.setSlot(7, slotEntry{ns[0].shard(), 9})
			return func(m ruleMail) bool { return m.msg.kind() == msgUpdate || m.msg.kind() == msgDigest }
		}},
	} {
		w := newRules(t)
		ns := w.group(3)
		for i, n := range ns {
			n.addSlots([]string{"0-4999", "5000-9999", "10000-16383"}[i])
			w.deliver()
		}
		w.lose = row.lose(ns)
		w.run(3 * ruleNT)
		require.False(t, formed(ns...), row.name)
		require.Nil(t, ns[0].core.change, row.name)
		w.lose = nil
		w.until(row.name, func() bool { return formed(ns...) })
	}
}

func TestSingleOwnerFormsAtOnce(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	a := w.boot()
	a.addSlots("0-16383")
	w.run(ruleNT / 20)
	require.True(t, formed(a))
	require.Equal(t, "a", a.voters())
	require.True(t, a.serves(5))
	require.Len(t, a.eventsOf(EventFormed), 1)

	b := w.boot(func(c *coreConfig) { c.alone = true })
	w.run(ruleNT / 20)
	require.True(t, formed(b))
	require.NotEqual(t, a.core.cluster, b.core.cluster, "a fresh random id")
}

// START names a fresh cluster id, version 1, who is wanted, the whole table, and
// as promises and records its primaries.
func TestWhatFormationProposes(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	ns := w.owners(2)
	x := w.boot()
	x.meet(ns[0])
	w.run(ruleNT)
	a := ns[0].core
	v := a.newFormValue(a.formers())
	require.NotZero(t, v.ID)
	require.False(t, v.Cluster.IsZero())
	require.Equal(t, voterVersion{Number: 1}, v.Version)
	require.Equal(t, "abc", w.letters(v.Members))
	require.Equal(t, "ab", w.letters(v.Formers))
	require.Equal(t, a.table.sum, v.Table)
	require.Equal(t, a.peers.sum, v.Peers)
	require.Len(t, v.Entries, 3)
	require.Equal(t, []slotRun{{0, 8191, 0, 1}, {8192, 16383, 1, 1}}, v.Slots.Runs)
	require.Contains(t, v.Shards, shardRow{ns[0].shard(), ns[0].epoch()})
	require.Contains(t, v.Shards, shardRow{ns[1].shard(), ns[1].epoch()})
	require.Contains(t, v.Votes.Promises, promiseRow{Shard: ns[1].shard(), Epoch: ns[1].epoch()})
	require.Equal(t, ns[1].core.id, v.Votes.Records[1].InSync[0].Node)
	require.NoError(t, v.check())
	other := a.newFormValue(a.formers())
	require.NotEqual(t, v.Cluster, other.Cluster)
	require.NotEqual(t, v.ID, other.ID)
}

// A former saves START only if its digest equals the one in it (not asked by
// number).
func TestFormerAnswersAStart(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name string
		edit func(b *ruleNode, m *startMsg)
		want string
	}{
		{"its own table", func(b *ruleNode, m *startMsg) {}, "STARTED"},
		{"again, under a higher ballot", func(b *ruleNode, m *startMsg) { b.gets(b.w.nodes[0], m); m.Ballot.Number++ }, "STARTED"},
		{"another table", func(b *ruleNode, m *startMsg) { m.Value.Table++ }, "silence"},
		{"another membership", func(b *ruleNode, m *startMsg) { m.Value.Peers++ }, "silence"},
		{"another table, by number", func(b *ruleNode, m *startMsg) { m.Value.Table++; m.Value.ByNumber = true }, "STARTED"},
		{"by number, with an epoch of its shard that is lower than its own", func(b *ruleNode, m *startMsg) {
			m.Value.ByNumber = true
			b.core.setShard(b.shard(), Epoch{Number: 50, Node: b.core.id}, pushNothing)
		}, "silence"},
		{"by number, without its shard, which has an epoch", func(b *ruleNode, m *startMsg) {
			m.Value.ByNumber, m.Value.Shards = true, slices.DeleteFunc(m.Value.Shards, func(r shardRow) bool { return r.ID == b.shard() })
			b.core.setShard(b.shard(), Epoch{Number: 50, Node: b.core.id}, pushNothing)
		}, "silence"},
		{"it is no former", func(b *ruleNode, m *startMsg) { m.Value.Formers = m.Value.Formers[:1] }, "silence"},
		{"it is a former under another key", func(b *ruleNode, m *startMsg) { m.Value.Formers[1].Key++ }, "silence"},
		{"it was stopped by a higher ballot", func(b *ruleNode, m *startMsg) { b.core.vote.stop = ballot{9, NodeID{9}} }, "silence"},
	} {
		w := newRules(t)
		ns := w.owners(2)
		a, b := ns[0], ns[1]
		m := &startMsg{Ballot: ballot{3, a.core.id}, Value: *a.core.newFormValue(a.core.formers())}
		m.Value.Formers = append([]member(nil), m.Value.Formers...)
		row.edit(b, m)
		got := said(b.gets(a, m))
		if got != row.want || (got == "STARTED") != b.core.form.holds() {
			t.Errorf("%s: %s, holds %v, want %s", row.name, got, b.core.form.holds(), row.want)
		}
	}
	w := newRules(t)
	ns := w.cluster(2, 2)
	v := *ns[0].core.vote.current
	require.True(t, v.forms())
	require.Equal(t, "UPDATE voters 1", said(ns[1].gets(ns[0], &startMsg{Value: v})), "who has formed says so")
}

// START is saved before it is answered, and with it that this node is stopped.
func TestFormerSavesStartBeforeItAnswers(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	ns := w.owners(2)
	a, b := ns[0], ns[1]
	b.slowDisk = true
	m := &startMsg{Ballot: ballot{3, a.core.id}, Value: *a.core.newFormValue(a.core.formers())}
	require.Equal(t, "silence", said(b.gets(a, m)))
	w.catchAt = a.cfg.addr
	b.flush()
	w.catchAt = ""
	require.Contains(t, said(w.caught), "STARTED")
	b.slowDisk = false
	b.restart()
	require.True(t, b.core.form.holds())
	require.Equal(t, m.Value.ID, b.core.form.value.ID)
	require.Equal(t, m.Ballot, b.core.vote.stop)
}

// holding is a former b that has saved a START of a and b, which is not decided.
func holding(t *testing.T) (w *ruleWorld, a, b *ruleNode) {
	t.Helper()
	w = newRules(t)
	ns := w.owners(2)
	a, b = ns[0], ns[1]
	w.lose = kindsOf(msgStop, msgStart, msgStarted, msgStopped, msgAskStart, msgNoStart)
	b.gets(a, &startMsg{Ballot: ballot{1, a.core.id}, Value: *a.core.newFormValue(a.core.formers())})
	require.True(t, b.core.form.holds())
	return w, a, b
}

// It then changes no slot, role or mark; such commands wait, one NodeTimeout at
// most, then -CLUSTERDOWN forming.
func TestCommandsWaitWhileAFormerHoldsStart(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name string
		do   func(a, b *ruleNode) *ruleReply
	}{
		{"ADDSLOTS", func(a, b *ruleNode) *ruleReply { b.core.table.setSlot(5, slotEntry{}); return b.addSlots("5") }},
		{"DELSLOTS", func(a, b *ruleNode) *ruleReply { return b.delSlots("9000") }},
		{"SETSLOT NODE", func(a, b *ruleNode) *ruleReply { return b.setSlots("9000", a) }},
		{"RESET", func(a, b *ruleNode) *ruleReply { return b.reset(false, false) }},
		{"BUMPEPOCH", func(a, b *ruleNode) *ruleReply {
			return b.command(func(s *state, now time.Duration, id uint64) output { return s.bumpEpoch(now, id) })
		}},
	} {
		w, a, b := holding(t)
		r := row.do(a, b)
		w.run(ruleNT - ruleNT/50)
		require.Equal(t, "no reply", r.String(), row.name)
		require.True(t, b.core.form.holds(), row.name)
		w.run(ruleNT / 10)
		require.Equal(t, "CLUSTERDOWN forming", r.String(), row.name)
		require.True(t, b.core.form.holds(), row.name)

		// Decided meanwhile: they are carried out by a vote.
		w, a, b = holding(t)
		r = row.do(a, b)
		w.lose = nil
		require.Equal(t, "OK", w.settle(r), row.name)
	}
	w, _, b := holding(t)
	var last *ruleReply
	for range commandsMax + 1 {
		last = b.delSlots("9000")
	}
	require.Equal(t, "TRYAGAIN 1024 commands are under way, which is the limit", last.String())
	_ = w
}

// A primary named in START holds a lease of 0.9 NodeTimeout from its first saving
// of it; after that it serves only under a lease of voters, or again by Redis's
// rules once the START is shown dead.
func TestFirstLeaseOfAFormer(t *testing.T) {
	t.Parallel()
	w, a, b := holding(t)
	require.True(t, b.serves(9000))
	reign := b.core.serve.reign
	w.run(ruleNT * 8 / 10)
	require.True(t, b.serves(9000))
	b.gets(a, &startMsg{Ballot: ballot{4, a.core.id}, Value: *b.core.form.value})
	w.run(ruleNT * 9 / 100)
	require.True(t, b.serves(9000))
	w.run(ruleNT / 50)
	require.False(t, b.serves(9000), "a repeat under a higher ballot is not its first saving")
	require.False(t, b.core.mayReply(reign, w.now))

	b.gets(a, &noStartMsg{ID: b.core.form.value.ID})
	require.False(t, b.core.form.holds())
	require.True(t, b.serves(9000), "by Redis's rules again")

	w, a, b = holding(t)
	b.restart()
	require.False(t, b.serves(9000), "when it has saved it first is not known any more")
	w.lose = nil
	w.until("formed", func() bool { return formed(a, b) })
	w.until("it serves", func() bool { return b.serves(9000) })
}

// The lease of START costs no service: primaries serve through formation, and
// what ran before may be acknowledged after.
func TestPrimariesServeThroughFormation(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	ns := w.owners(3)
	reign := ns[1].core.serve.reign
	w.lose = nil
	for range 60 {
		w.run(ruleNT / 50)
		for i, n := range ns {
			require.True(t, n.serves(Slot(i*6000)), "%s at %v", n.name, w.now)
		}
	}
	require.True(t, formed(ns...))
	require.True(t, ns[1].core.mayReply(reign, w.now))
}

// A former that does not hear the decision stops in time: nobody is elected in
// its place before.
func TestFormerThatMissesTheDecisionStopsInTime(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	ns := w.owners(3)
	a, c := ns[0], ns[2]
	w.lose = func(m ruleMail) bool { return m.to == c && c.core.form.holds() }
	w.until("c holds START", func() bool { return c.core.form.holds() })
	w.deliver()
	c.cut = true
	for range 300 {
		w.run(ruleNT / 50)
		if c.serves(16000) {
			require.False(t, a.core.cluster != ClusterID{} && a.owns(16000) != "c", "at %v", w.now)
		}
	}
	require.True(t, formed(a, ns[1]))
	require.False(t, c.serves(16000))
	c.cut, w.lose = false, nil
	w.until("c has formed", func() bool { return formed(a, c) && c.serves(16000) })
}

// ---- a START that may be dead

// A seen START that one of its formers has answered STOP without is dead; one
// that cannot be shown dead is proposed again with the same cluster id and
// voters, but the table and the formers of now.
func TestWhichStartIsProposedAgain(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name    string
		formers string // of the START that was seen
		without string // formers of now that have answered without it
		again   bool
	}{
		{"all of its formers hold it", "abc", "", true},
		{"one of its formers does not", "abc", "b", false},
		{"one of its formers holds another", "abc", "B", false},
		{"one of its formers is gone, the others hold it", "abd", "c", true},
		{"who was no former does not hold it", "ab", "c", true},
	} {
		w := newRules(t)
		ns := w.owners(3)
		d := &ruleNode{w: w, name: "d", core: lone(t, 4)}
		seen := &startValue{ID: 41, Cluster: ClusterID{0xcc}, Version: voterVersion{Number: 1}, Members: []member{ns[2].member()}}
		for _, letter := range row.formers {
			n := w.byName(string(letter))
			if n == nil {
				n = d
			}
			seen.Formers = append(seen.Formers, n.member())
		}
		a := ns[0].core
		c := &change{version: voterVersion{}, old: a.formers(), forming: true, answers: map[NodeID]*stoppedMsg{}}
		for _, n := range ns {
			m := &stoppedMsg{Starts: []startValue{*seen}, StartBallot: ballot{1, n.core.id}}
			switch row.without {
			case n.name:
				m.Starts = nil
			case "B":
				if n.name == "b" {
					m.Starts = []startValue{{ID: 40}}
					m.StartBallot = ballot{}
				}
			}
			c.answers[n.core.id] = m
		}
		v := a.valueFor(c)
		again := v.ID == 41 && v.Cluster == ClusterID{0xcc} && sameMembers(v.Members, seen.Members)
		if again != row.again {
			t.Errorf("%s: proposed again %v, want %v", row.name, again, row.again)
		}
		if v.Table != a.table.sum || w.letters(v.Formers) != "abc" || len(v.Entries) != 3 {
			t.Errorf("%s: proposed with the table and the formers of another time", row.name)
		}
		if !again && (v.ID == 41 || v.Cluster == ClusterID{0xcc}) {
			t.Errorf("%s: a dead START is mixed with a new one", row.name)
		}
	}
}

// By number the value is proposed as it was: who has saved it may lead by it.
func TestStartByNumberIsProposedAsItWas(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	ns := w.owners(2)
	a := ns[0].core
	seen := a.newFormValue(a.formers())
	seen.ByNumber, seen.Table = true, 12345
	c := &change{old: a.formers(), forming: true, answers: map[NodeID]*stoppedMsg{}}
	for _, n := range ns {
		c.answers[n.core.id] = &stoppedMsg{Starts: []startValue{*seen}, StartBallot: ballot{1, n.core.id}}
	}
	require.Equal(t, seen, a.valueFor(c))
}

// A former that is asked says whether it holds that START; one that does not
// never will.
func TestFormerIsAskedForAStart(t *testing.T) {
	t.Parallel()
	w, a, b := holding(t)
	id, ballot := b.core.form.value.ID, b.core.vote.startBallot
	require.Equal(t, "silence", said(b.gets(a, &askStartMsg{id, ballot})), "it holds it")
	require.Equal(t, "NOSTART", said(b.gets(a, &askStartMsg{id + 1, ballot})))

	require.Equal(t, "NOSTART", said(a.gets(b, &askStartMsg{id, ballot})))
	m := &startMsg{Ballot: ballot, Value: *b.core.form.value}
	require.Equal(t, "silence", said(a.gets(b, m)), "it has said that it never will")
	require.False(t, a.core.form.holds())
	m.Ballot.Number += 2
	require.Equal(t, "STARTED", said(a.gets(b, m)), "another attempt is another thing")
	_ = w
}

func TestWhoseWordMakesAStartDead(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name string
		edit func(a, b *ruleNode, m *noStartMsg)
		want bool
	}{
		{"a former's", func(a, b *ruleNode, m *noStartMsg) {}, true},
		{"a former's, of another START", func(a, b *ruleNode, m *noStartMsg) { m.ID++ }, false},
		{"of a node that is no former", func(a, b *ruleNode, m *noStartMsg) { b.core.form.value.Formers = b.core.form.value.Formers[1:] }, false},
		{"of a former that has become another since", func(a, b *ruleNode, m *noStartMsg) { b.core.form.value.Formers[0].Key++ }, false},
	} {
		_, a, b := holding(t)
		b.core.form.value.Formers = append([]member(nil), b.core.form.value.Formers...)
		m := &noStartMsg{b.core.form.value.ID}
		row.edit(a, b, m)
		b.gets(a, m)
		if dead := !b.core.form.holds(); dead != row.want {
			t.Errorf("%s: dead %v, want %v", row.name, dead, row.want)
		}
	}
}

// A former joins another cluster only if its START is dead: one of its formers,
// as it was then, lives there.
func TestFormerJoinsAnotherClusterOnlyIfItsStartIsDead(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name string
		who  func(a *ruleNode) sender
		want string
	}{
		{"invited by who was no former", func(a *ruleNode) sender { return stranger(ClusterID{0xbb}) }, "REFUSED it is forming another cluster"},
		{"invited by a former", func(a *ruleNode) sender { s := *a.core.who; s.Cluster = ClusterID{0xbb}; return s }, "HEARTBEAT, DIGEST"},
		{"invited by a former that has been reset since", func(a *ruleNode) sender {
			s := *a.core.who
			s.Cluster = ClusterID{0xbb}
			s.Key++
			return s
		}, "REFUSED it is forming another cluster"},
	} {
		_, a, b := holding(t)
		got := said(b.getsAs(row.who(a), &updateMsg{Peers: []peerEntry{b.core.self.peerEntry},
			Voters: []voterSet{{voterVersion{Number: 1}, 9, []member{a.member()}}}}))
		if len(got) > len(row.want) {
			got = got[:len(row.want)] // pushes to all follow
		}
		if got != row.want {
			t.Errorf("%s: %s, want %s", row.name, got, row.want)
		}
	}
}

// A former that hears the table of START's cluster has formed, whatever it
// holds: its claims are those of START.
func TestFormerThatHearsOfItsClusterHasFormed(t *testing.T) {
	t.Parallel()
	for _, keys := range []bool{false, true} {
		w, a, b := holding(t)
		b.core.holdsKeys = keys
		who := *a.core.who
		who.Cluster = b.core.form.value.Cluster
		v := b.core.form.value.voters()
		b.getsAs(who, &updateMsg{Peers: []peerEntry{b.core.self.peerEntry, a.core.self.peerEntry}, Voters: []voterSet{v}})
		require.Equal(t, who.Cluster, b.core.cluster, "keys %v", keys)
		require.True(t, b.serves(9000), "keys %v: under the lease of START", keys)
		require.Equal(t, "b", b.owns(9000))
		require.Equal(t, "a", b.owns(5))
		_ = w
	}
}

// Formation goes on whoever is lost at whichever step, and makes one cluster.
func TestFormationSurvivesItsProposer(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name string
		lose []msgKind
		at   func(ns []*ruleNode) bool // when the proposer is lost
	}{
		{"while it stops", []msgKind{msgStopped}, func(ns []*ruleNode) bool { return !ns[1].core.vote.stop.isZero() }},
		{"once one former has saved START", []msgKind{msgStarted}, func(ns []*ruleNode) bool { return ns[1].core.form.holds() }},
		{"once it has formed, before the others hear so", []msgKind{msgHeartbeat, msgUpdate}, func(ns []*ruleNode) bool { return formed(ns[0]) }},
	} {
		for _, back := range []bool{true, false} {
			w := newRules(t)
			ns := w.owners(3)
			w.lose = nil
			begun := false
			w.lose = func(m ruleMail) bool {
				begun = begun || m.msg.kind() == msgStop
				for _, k := range row.lose {
					if begun && m.msg.kind() == k && (m.msg.kind() != msgUpdate && m.msg.kind() != msgHeartbeat || m.from == ns[0] && m.who.Cluster != ClusterID{}) {
						return true
					}
				}
				return false
			}
			w.until(row.name, func() bool { return row.at(ns) })
			ns[0].crash()
			w.run(2 * ruleNT)
			w.lose = nil
			if back {
				ns[0].restart()
			}
			w.run(8 * ruleNT)
			clusters := map[ClusterID]bool{}
			for _, n := range ns {
				if !n.down && !n.core.cluster.IsZero() {
					clusters[n.core.cluster] = true
				}
			}
			require.LessOrEqual(t, len(clusters), 1, "%s, back %v", row.name, back)
			require.Equal(t, back, formed(ns[1], ns[2]), "%s, back %v: without a former nothing is decided", row.name, back)
			if back {
				w.until(row.name+": calm", w.calm)
			}
		}
	}
}

// After FORGET of a former that is gone for good and ADDSLOTS of its slots at a
// node that holds no START, formation goes on.
func TestFormationGoesOnWithoutAFormerThatIsGone(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	ns := w.owners(3)
	d := w.boot()
	d.meet(ns[0])
	w.run(ruleNT)
	w.lose = kindsOf(msgStarted)
	w.until("two hold START", func() bool { return ns[0].core.form.holds() && ns[1].core.form.holds() })
	id := ns[1].core.form.value.Cluster
	ns[2].crash()
	w.lose = nil
	w.run(2 * ruleNT)
	require.False(t, formed(ns[0]))
	w.settle(d.forget(ns[2].core.id, true))
	mine := ns[1].core.table.slotsOf(ns[2].shard())
	require.Equal(t, "OK", w.settle(d.delSlots(mine.String())))
	require.Equal(t, "OK", w.settle(d.addSlots(mine.String())))
	w.until("formed", func() bool { return formed(ns[0], ns[1], d) })
	if ns[0].core.form.holds() {
		require.Equal(t, id, ns[0].core.cluster, "the same cluster, for c may have formed it")
	}
	w.until("calm", w.calm)
	require.True(t, d.serves(16000))
}

// Members that are no formers come in once the cluster has formed.
func TestMembersOfTheGroupJoinTheClusterItForms(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	ns := w.owners(2)
	x := w.boot()
	x.meet(ns[1])
	w.run(ruleNT)
	w.lose = nil
	w.until("formed", func() bool { return formed(ns[0], ns[1], x) })
	w.until("calm", w.calm)
	require.Equal(t, "abc", x.voters())
}

// ---- by number

// grid boots nodes that form by number; hosts by letter, one per node.
func (w *ruleWorld) grid(hosts string, primaries, replicas uint16) []*ruleNode {
	w.t.Helper()
	var seeds []string
	for i := range hosts {
		seeds = append(seeds, "addr-"+string(rune('a'+i)))
	}
	for i := range hosts {
		n := w.boot(func(c *coreConfig) {
			c.host = "host-" + hosts[i:i+1]
			c.form = formNumbers{Seeds: 3, Primaries: primaries, Replicas: replicas}
		})
		n.core.setSeeds(seeds)
	}
	return w.nodes
}

// All members, once Primaries × (1 + Replicas) nodes with the same numbers are
// alive, form exactly one cluster with equal shares of the slots.
func TestFormationByNumber(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name                string
		hosts               string
		primaries, replicas uint16
		owners, voters      string
	}{
		{"three primaries", "abc", 3, 0, "abc", "abc"},
		{"one primary", "a", 1, 0, "a", "a"},
		{"three primaries, each with a replica, on three hosts", "xxyyzz", 3, 1, "ace", "ace"},
		{"as many hosts as there are", "xxxyyy", 3, 1, "abd", "a"},
		{"more nodes than are asked for", "abcd", 3, 0, "abc", "abc"},
	} {
		w := newRules(t)
		ns := w.grid(row.hosts, row.primaries, row.replicas)
		w.until("formed", func() bool { return formed(ns...) })
		w.until("calm", w.calm)
		owners := ""
		for _, n := range ns {
			if slots := ns[0].core.table.owned[n.shard()]; slots > 0 {
				owners += n.name
				require.InDelta(t, NumSlots/int(row.primaries), slots, 1, row.name)
			}
		}
		require.Equal(t, row.owners, owners, row.name)
		require.Equal(t, row.voters, ns[0].voters(), row.name)
		require.Zero(t, ns[0].core.table.unassigned, row.name)
	}
}

// No shard has a lower epoch in the cluster than it had in the group: its log is of that
// one, and its members have promised to take nothing older.
func TestFormationByNumberLowersNoEpoch(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name    string
		numbers string // by SET-CONFIG-EPOCH, of a, b, ...; 0: none
		want    string // of their shards in the end, before anybody wins a vote
	}{
		{"none has one", "000", "123"},
		{"one has a high one", "070", "172"},
		{"one has one that another would have got", "010", "213"},
		{"all have one", "975", "975"},
	} {
		w := newRules(t)
		w.lose = kindsOf(msgVote) // the first epochs are those of START
		ns := w.grid("abc", 3, 0)
		for i, n := range ns {
			if number := uint64(row.numbers[i] - '0'); number > 0 {
				n.command(func(s *state, now time.Duration, id uint64) output { return s.setConfigEpoch(now, id, number) })
			}
		}
		w.until("formed", func() bool { return formed(ns...) })
		got := ""
		for _, n := range ns {
			got += fmt.Sprint(n.epoch().Number)
			require.LessOrEqual(t, n.core.promise.Number, n.epoch().Number, "%s: %s", row.name, n.name)
		}
		require.Equal(t, row.want, got, row.name)
	}
}

// Nor has the shard of a former that follows another one: it would take nothing of its
// primary's log.
func TestReplicaFollowsOnInTheClusterThatItsGroupForms(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	ns := w.grid("abc", 1, 3) // not all: it forms not yet
	a, b := ns[0], ns[1]
	b.command(func(s *state, now time.Duration, id uint64) output { return s.setConfigEpoch(now, id, 50) })
	w.run(2 * ruleNT)
	a.replicate(b.core.id, false)
	w.run(ruleNT)
	take := func() (ok bool) {
		a.step(func(s *state, now time.Duration) (out output) {
			out, ok = s.takes(now, b.shard(), b.epoch())
			return out
		})
		return ok
	}
	require.True(t, take())
	d := w.boot(func(c *coreConfig) { c.form = b.cfg.form })
	d.core.setSeeds([]string{b.cfg.addr})
	w.until("formed", func() bool { return formed(w.nodes...) })
	require.Equal(t, b.shard(), a.shard())
	require.Equal(t, b.core.id, a.core.table.primary(b.shard()))
	require.Equal(t, uint64(50), b.epoch().Number)
	require.True(t, take())
}

// What a node has numbered its shard before it came into a cluster, its log and its
// members know: it wins that shard under a number above, also after a restart.
func TestWhoJoinsWinsItsShardAboveItsOwnNumber(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	a := w.cluster(1, 1)[0]
	b := w.boot()
	b.command(func(s *state, now time.Duration, id uint64) output { return s.setConfigEpoch(now, id, 50) })
	b.meet(a)
	w.deliver()
	require.Equal(t, a.core.cluster, b.core.cluster)
	require.Nil(t, b.core.stand)
	b.restart()
	w.until("it has opened its shard", func() bool { return b.core.lead != nil && b.core.lead.opened })
	require.Equal(t, uint64(51), b.epoch().Number)
}

// Formers that an operator has told to follow each other, in a circle, have primaries
// all the same: each shard that a former is of has one.
func TestFormersByNumberThatFollowEachOtherHavePrimaries(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	ns := w.grid("abc", 2, 1) // not all: it forms not yet
	w.run(2 * ruleNT)
	a, b, c := ns[0], ns[1], ns[2]
	shard := b.shard()
	w.lose = kindsOf(msgUpdate, msgDigest)
	a.replicate(b.core.id, false)
	b.replicate(a.core.id, false)
	c.replicate(b.core.id, false)
	require.Equal(t, shard, a.shard())
	require.Equal(t, shard, c.shard())
	w.lose = nil
	w.run(ruleNT / 4)
	s := a.core
	for _, n := range ns {
		require.True(t, s.isReplica(s.peers.get(n.core.id)), n.name)
	}
	v := s.newFormValue([]member{a.member(), b.member(), c.member()})
	slots := 0
	v.Slots.each(func(Slot, slotEntry) { slots++ })
	require.Equal(t, NumSlots, slots)
	leads := map[ShardID]NodeID{}
	for _, row := range v.Shards {
		require.NotContains(t, leads, row.ID)
		leads[row.ID] = row.Epoch.Node
	}
	require.Len(t, leads, 2)
	for _, n := range ns {
		require.Contains(t, leads, n.shard(), n.name)
	}
}

// Formation by number waits until all are there.
func TestFormationByNumberWaitsForAll(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	ns := w.grid("abc", 2, 1)
	w.run(5 * ruleNT)
	require.True(t, ns[0].core.cluster.IsZero())
	other := w.boot(func(c *coreConfig) { c.form = formNumbers{Seeds: 3, Primaries: 3} })
	other.meet(ns[0])
	w.run(3 * ruleNT)
	require.NotNil(t, ns[0].knows(other))
	require.True(t, ns[0].core.cluster.IsZero(), "a node with other numbers is none of them")
	last := w.boot(func(c *coreConfig) { c.form = ns[0].cfg.form })
	last.core.setSeeds([]string{"addr-a"})
	w.until("formed", func() bool { return formed(ns...) })
	w.until("all have come in", func() bool { return formed(ns[0], other, last) })
}

// Nodes that are configured unlike each other are named with both values, by an
// event and in the status; where they keep a cluster from forming by number, that
// says so too.
func TestNodesThatAreConfiguredUnlikeEachOtherAreNamed(t *testing.T) {
	t.Parallel()
	forms := func(p, r uint16, seeds uint64) func(*coreConfig) {
		return func(c *coreConfig) { c.form = formNumbers{Seeds: seeds, Primaries: p, Replicas: r} }
	}
	for _, row := range []struct {
		name         string
		edit         func(*coreConfig) // of the second node; the first forms 2 primaries with a replica each
		atA, atB     string
		whileForming bool // it is no problem any more once the cluster has formed
	}{
		{"alike", forms(2, 1, 3), "", "", false},
		{"formed by hand", func(*coreConfig) {}, "", "", false},
		{"another NodeTimeout", func(c *coreConfig) { forms(2, 1, 3)(c); c.nodeTimeout = ruleNT / 2 },
			"NodeTimeout is 500ms there and 1s here", "NodeTimeout is 1s there and 500ms here", false},
		{"other Primaries", forms(3, 1, 3), "Primaries is 3 there and 2 here", "Primaries is 2 there and 3 here", false},
		{"other Replicas", forms(2, 0, 3), "Replicas is 0 there and 1 here", "Replicas is 1 there and 0 here", false},
		{"other Seeds", forms(2, 1, 4), "Seeds are others there than here", "Seeds are others there than here", true},
		{"all three", func(c *coreConfig) { forms(3, 0, 3)(c); c.nodeTimeout = 2 * ruleNT },
			"NodeTimeout is 2s there and 1s here, Primaries is 3 there and 2 here, Replicas is 0 there and 1 here",
			"NodeTimeout is 1s there and 2s here, Primaries is 2 there and 3 here, Replicas is 1 there and 0 here", false},
	} {
		w := newRules(t)
		a, b := w.boot(forms(2, 1, 3)), w.boot(row.edit)
		says := func(n, of *ruleNode, text string) {
			t.Helper()
			var events, problems []string
			for _, e := range n.eventsOf(EventDiffers) {
				require.Equal(t, of.core.id, e.Node, row.name)
				require.Equal(t, of.cfg.addr, e.Addr, row.name)
				events = append(events, e.Text)
			}
			if text != "" {
				problems = []string{fmt.Sprintf("node %s at %s: %s", of.core.id.short(), of.cfg.addr, text)}
				require.Equal(t, []string{text}, events, row.name)
			} else {
				require.Empty(t, events, row.name)
			}
			require.Equal(t, problems, n.core.publish().trouble, row.name)
		}
		a.core.setSeeds([]string{b.cfg.addr})
		b.core.setSeeds([]string{a.cfg.addr})
		w.run(3 * ruleNT)
		says(a, b, row.atA)
		says(b, a, row.atB)
		others := strings.Contains(a.core.unready(), "; 1 that are here have others")
		require.Equal(t, b.cfg.form != a.cfg.form && b.core.byNumber(), others, "%s: %s", row.name, a.core.unready())

		// Whether they differ is said of members of a formed cluster too.
		for range 3 {
			n := w.boot(forms(2, 1, 3))
			n.core.setSeeds([]string{a.cfg.addr})
		}
		w.until(row.name, func() bool { return formed(w.nodes...) })
		w.run(3 * ruleNT)
		if row.whileForming {
			row.atA = ""
			a.events = nil
		}
		says(a, b, row.atA)
	}
}

// So is one that comes to a cluster that has formed, and once only.
func TestANodeThatComesWithOtherNumbersIsNamed(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	a := w.grid("abc", 3, 0)[0]
	w.until("calm", w.calm)
	late := w.boot(func(c *coreConfig) { c.form = formNumbers{Seeds: 9, Primaries: 4} })
	late.core.setSeeds([]string{a.cfg.addr})
	w.until("joined", func() bool { return formed(a, late) })
	w.run(3 * ruleNT)
	events := a.eventsOf(EventDiffers)
	require.Len(t, events, 1)
	require.Equal(t, "Primaries is 4 there and 3 here", events[0].Text)
	require.Empty(t, a.core.unready())
	a.forget(late.core.id, true)
	w.run(3 * ruleNT)
	require.Empty(t, a.core.publish().trouble)
}

// The list in a status is bounded.
func TestProblemsThatAStatusNamesAreBounded(t *testing.T) {
	t.Parallel()
	s := lone(t, 1)
	for i := range problemsMax + 3 {
		s.peers.insert(&peer{peerEntry: peerEntry{ID: NodeID{byte(i + 2)}}, timeout: 7})
	}
	s.tellDifferences()
	ps := s.problems()
	require.Len(t, ps, problemsMax+1)
	require.Equal(t, "and 3 more nodes that are configured unlike this one", ps[problemsMax])
}

// A node with the same numbers that comes later joins by its seeds.
func TestLateNodeOfTheSameNumbersJoins(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	ns := w.grid("abc", 3, 0)
	w.until("calm", w.calm)
	late := w.boot(func(c *coreConfig) { c.form = ns[0].cfg.form })
	late.core.setSeeds([]string{"addr-b"})
	w.until("joined", func() bool { return formed(ns[0], late) })

	// And so does one that formed nodes look for, at an address that they know.
	other := w.boot(func(c *coreConfig) { c.form = ns[0].cfg.form })
	ns[0].core.setSeeds([]string{other.cfg.addr})
	w.until("found", func() bool { return formed(ns[0], other) })

	stranger := w.boot()
	ns[0].core.setSeeds([]string{stranger.cfg.addr})
	w.run(2 * ruleNT)
	require.True(t, stranger.core.cluster.IsZero(), "of another deployment")
}

// ---- groups

// Two groups that both claim a slot do not merge, whoever of them meets whom.
func TestGroupsThatClaimOneSlotDoNotMerge(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	a, b, c, d := w.boot(), w.boot(), w.boot(), w.boot()
	a.meet(b)
	c.meet(d)
	w.run(ruleNT)
	a.addSlots("5")
	c.addSlots("5-6")
	w.run(ruleNT)
	d.meet(b) // neither of them owns the slot itself
	w.run(ruleNT)
	require.Nil(t, b.knows(d))
	require.Nil(t, a.knows(c))
	require.Equal(t, "5", d.eventsOf(EventRefused)[0].Slots.String())
	require.Equal(t, "a", b.owns(5))
	require.Equal(t, "c", d.owns(5))
}

// A group that has just been taken is asked for its claims before the next one.
func TestClaimsOfAGroupCountFromItsMeet(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	a, b, c := w.boot(), w.boot(), w.boot()
	b.addSlots("5")
	c.addSlots("5")
	w.hold = func(m ruleMail) bool { return m.msg.kind() == msgHeartbeat || m.msg.kind() == msgUpdate }
	b.meet(a)
	c.meet(a)
	w.deliver()
	require.NotNil(t, a.knows(b))
	require.Nil(t, a.knows(c), "refused, for b's claim came with its MEET")
	require.NotEmpty(t, c.eventsOf(EventRefused), fmt.Sprint(c.events))
}
