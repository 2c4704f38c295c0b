package slotmesh

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Alive = a frame as a member of this cluster within NodeTimeout, or first heard
// of within NodeTimeout. Silent: beyond that, and beyond three heartbeats where
// they are stretched.
func TestAliveAndSilent(t *testing.T) {
	t.Parallel()
	const nt = ruleNT
	for _, row := range []struct {
		name          string
		heard, seen   time.Duration // before now; 0: never
		state         memberState
		load          float64
		alive, silent bool
	}{
		{"heard just now", 1, 9 * nt, present, 0, true, false},
		{"heard a NodeTimeout ago", nt, 9 * nt, present, 0, true, false},
		{"heard longer ago", nt + 1, 9 * nt, present, 0, false, true},
		{"never heard, first heard of just now", 0, 1, present, 0, true, false},
		{"never heard, first heard of longer ago", 0, nt + 1, present, 0, false, true},
		{"leaving", nt, 9 * nt, leaving, 0, true, false},
		{"forgotten", 1, 9 * nt, forgotten, 0, false, false},
		{"heard longer ago, with heartbeats stretched to NodeTimeout", 3 * nt, 9 * nt, present, 1000, false, false},
		{"heard much longer ago, with heartbeats stretched to NodeTimeout", 3*nt + 1, 9 * nt, present, 1000, false, true},
	} {
		s := lone(t, 1)
		s.now, s.beatLoad = time.Hour, row.load
		p := &peer{peerEntry: peerEntry{ID: NodeID{2}, State: row.state}, heardAt: never, firstSeen: s.now - row.seen}
		if row.heard > 0 {
			p.heardAt = s.now - row.heard
		}
		if alive, silent := s.alive(p), s.silentHere(p); alive != row.alive || silent != row.silent {
			t.Errorf("%s: alive %v, silent %v, want %v, %v", row.name, alive, silent, row.alive, row.silent)
		}
	}
	s := lone(t, 1)
	s.now = time.Hour
	require.True(t, s.alive(s.self))
	require.False(t, s.silentHere(s.self))
	require.False(t, s.aliveID(NodeID{9}))
}

// A frame of another cluster, or one that has not come in, is no sign of life of
// a member.
func TestOnlyFramesOfThisClusterAreSignsOfLife(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name string
		edit func(who *sender)
		m    message
		want bool
	}{
		{"a heartbeat", func(*sender) {}, &heartbeat{Sent: 1 << 31}, true},
		{"another message", func(*sender) {}, &updatedMsg{}, true},
		{"a late heartbeat", func(*sender) {}, &heartbeat{Sent: 1}, false},
		{"of another cluster", func(who *sender) { who.Cluster = ClusterID{0xbb} }, &heartbeat{Sent: 1 << 31}, false},
		{"unformed", func(who *sender) { who.Cluster = ClusterID{} }, &heartbeat{Sent: 1 << 31}, false},
		{"under another key", func(who *sender) { who.Key++ }, &heartbeat{Sent: 1 << 31}, false},
	} {
		w := newRules(t)
		ns := w.cluster(1, 2)
		a, b := ns[0], ns[1]
		w.run(2 * ruleNT)
		was := a.knows(b).heardAt
		w.now += ruleNT / 20
		who := *b.core.who
		row.edit(&who)
		a.getsAs(who, row.m)
		if got := a.knows(b).heardAt > was; got != row.want {
			t.Errorf("%s: a sign of life %v, want %v", row.name, got, row.want)
		}
	}
}

// FAIL = silent here and listed as silent by a majority of the voters, counting
// only those whose last heartbeat is younger than two NodeTimeouts; this node
// counts itself if it votes.
func TestFailTakesAMajorityOfTheVoters(t *testing.T) {
	t.Parallel()
	const lists, listsNot, stale = "lists it", "does not", "lists it, and is silent itself"
	for _, row := range []struct {
		name       string
		silentHere bool
		formed     bool
		votesHere  bool
		voters     []string // the others
		want       bool
	}{
		{"two of three others", true, true, false, []string{lists, lists, listsNot}, true},
		{"one of three others", true, true, false, []string{lists, listsNot, listsNot}, false},
		{"two of three others, heard here", false, true, false, []string{lists, lists, lists}, false},
		{"itself and one of three", true, true, true, []string{lists, listsNot}, true},
		{"itself alone of three", true, true, true, []string{listsNot, listsNot}, false},
		{"a list that is too old", true, true, false, []string{lists, stale, listsNot}, false},
		{"an old list beyond the majority", true, true, false, []string{lists, stale, lists}, true},
		{"itself, the only voter", true, true, true, nil, true},
		{"unformed: its own eyes", true, false, false, nil, true},
		{"unformed, heard", false, false, false, nil, false},
		{"two of five", true, true, false, []string{lists, lists, listsNot, listsNot, listsNot}, false},
		{"three of five", true, true, false, []string{lists, lists, lists, listsNot, listsNot}, true},
	} {
		s := lone(t, 1)
		s.now = time.Hour
		if !row.formed {
			s.cluster = ClusterID{}
		}
		victim := &peer{peerEntry: peerEntry{ID: NodeID{9}}, heardAt: s.now}
		if row.silentHere {
			victim.heardAt -= ruleNT + 1
		}
		s.peers.insert(victim)
		var v voterSet
		if row.votesHere {
			v.Members = append(v.Members, member{s.id, s.key})
		}
		for i, says := range row.voters {
			p := &peer{peerEntry: peerEntry{ID: NodeID{byte(2 + i)}}, beatAt: s.now - 2*ruleNT + 1}
			if says != listsNot {
				p.silent.Nodes = []NodeID{{8}, victim.ID}
			}
			if says == stale {
				p.beatAt--
			}
			s.peers.insert(p)
			v.Members = append(v.Members, member{p.ID, 0})
		}
		s.table.setVoters(v)
		if got := s.failed(victim); got != row.want {
			t.Errorf("%s: failed %v, want %v", row.name, got, row.want)
		}
	}
}

// Whom a voter finds silent is pushed as FAIL at each change, under the voter's
// own counter.
func TestVotersTellWhomTheyFindSilent(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	ns := w.cluster(1, 11)
	a, c, k := ns[0], ns[2], ns[10]
	require.False(t, k.core.isVoter())
	var told []string
	w.seen = func(m ruleMail) {
		if f, ok := m.msg.(*failMsg); ok && m.to == k {
			told = append(told, fmt.Sprintf("%s finds %d", m.from.name, len(f.Silent.Nodes)))
		}
	}
	c.crash()
	w.run(ruleNT + ruleNT/2)
	require.ElementsMatch(t, []string{"a finds 1", "b finds 1", "d finds 1", "e finds 1", "f finds 1", "g finds 1", "h finds 1", "i finds 1"}, told,
		"each voter once, and nobody else")
	require.True(t, k.core.failed(k.knows(c)))
	require.True(t, a.core.failed(a.knows(c)))
	told = nil
	w.run(ruleNT / 2)
	require.Equal(t, []string{"j finds 1"}, told, "it votes in c's place by now; for the others nothing has changed")
	counter := k.knows(a).silent.Counter
	c.restart()
	w.run(ruleNT)
	require.Contains(t, told, "a finds 0")
	require.Greater(t, k.knows(a).silent.Counter, counter)
	require.False(t, k.core.failed(k.knows(c)))

	// A voter that starts again begins to count anew, under its start count.
	a.restart()
	w.until("calm", w.calm)
	require.Equal(t, a.core.self.silent, k.knows(a).silent)
}

// The application is told, once each, of who falls silent, fails and is heard
// again; not of who has been forgotten.
func TestEventsTellOfNodesThatFailAndComeBack(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	ns := w.cluster(2, 4)
	a, d := ns[0], ns[3]
	told := func() string {
		text := ""
		for _, e := range a.events {
			if e.Kind == EventSilent || e.Kind == EventFailed || e.Kind == EventHeard {
				require.Equal(t, d.cfg.addr, e.Addr)
				require.Equal(t, d.shard(), e.Shard)
				text += w.letter(e.Node) + " " + e.Kind.String() + " "
			}
		}
		a.events = nil
		return text
	}
	w.run(3 * ruleNT)
	require.Empty(t, told())

	w.lose = func(m ruleMail) bool { return m.from == a && m.to == d || m.from == d && m.to == a }
	w.run(3 * ruleNT)
	require.Equal(t, "d silent ", told(), "the others hear it")
	w.lose = nil
	w.run(ruleNT)
	require.Equal(t, "d heard ", told())

	d.crash()
	w.run(2 * ruleNT)
	require.Equal(t, "d silent d failed ", told())
	d.restart()
	w.run(ruleNT)
	require.Equal(t, "d heard ", told())

	d.crash()
	w.until("failed", func() bool { return a.core.failed(a.knows(d)) })
	w.run(ruleNT)
	require.Equal(t, "d silent d failed ", told())
	a.forget(d.core.id, true)
	w.run(2 * ruleNT)
	require.Empty(t, told())
}

// An unformed node has only its own eyes: there whoever is silent has failed.
func TestEventsTellOfUnformedNodesThatFail(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	ns := w.group(2)
	ns[1].crash()
	w.run(2 * ruleNT)
	require.Len(t, ns[0].eventsOf(EventFailed), 1)
	require.Empty(t, ns[0].eventsOf(EventSilent))
}

// A tick that comes L late (L > NodeTimeout/20) moves every peer's deadline by
// L, at most NodeTimeout/2 in all per NodeTimeout.
func TestLateTickMovesTheDeadlines(t *testing.T) {
	t.Parallel()
	const nt = ruleNT
	for _, row := range []struct {
		name string
		late []time.Duration // of ticks, one after the other
		want time.Duration   // by which the deadline is moved
	}{
		{"in time", []time.Duration{0}, 0},
		{"a little late", []time.Duration{nt / 20}, 0},
		{"late", []time.Duration{nt/20 + 1}, nt/20 + 1},
		{"later", []time.Duration{nt / 2}, nt / 2},
		{"too late", []time.Duration{nt/2 + 1}, nt / 2},
		{"much too late", []time.Duration{5 * nt}, nt / 2},
		{"late twice", []time.Duration{nt / 10, nt / 5}, nt/10 + nt/5},
		{"late more often than the budget is for", []time.Duration{nt / 4, nt / 5, nt / 5}, nt / 2},
		{"late again in another NodeTimeout", []time.Duration{nt / 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, nt / 4}, nt/2 + nt/4},
	} {
		s := lone(t, 1)
		s.tick(0)
		p := &peer{peerEntry: peerEntry{ID: NodeID{2}}}
		p.resetVolatile(0)
		p.heardAt = 0
		s.peers.insert(p)
		s.graceAt, s.grace = s.now, nt/2
		primary := s.primary
		for _, late := range row.late {
			s.wake = s.now + nt/20
			s.now += nt/20 + late
			s.allowForLateness()
		}
		if p.heardAt != row.want || p.firstSeen != row.want || s.primary-primary != row.want {
			t.Errorf("%s: moved by %v, %v and %v, want %v", row.name, p.heardAt, p.firstSeen, s.primary-primary, row.want)
		}
	}
}

// A node that was paused blames nobody.
func TestPausedNodeFindsNobodySilent(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name  string
		pause time.Duration
		want  int // silent nodes
	}{
		{"for less than half a NodeTimeout", ruleNT * 4 / 10, 0},
		{"for half a NodeTimeout beyond what it misses anyhow", ruleNT * 9 / 10, 0},
		{"for much longer", 3 * ruleNT, 2},
	} {
		w := newRules(t)
		ns := w.cluster(1, 3)
		a := ns[0]
		w.run(2 * ruleNT)
		a.asleep = true
		w.lose = func(m ruleMail) bool { return m.to == a } // what comes meanwhile is read after the tick
		w.run(row.pause)
		a.tick()
		require.Len(t, a.core.silent, row.want, row.name)
	}
}

// Cluster state as in Redis, with the reason.
func TestClusterStateSaysWhy(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name string
		make func(w *ruleWorld) *ruleNode
		want string
	}{
		{"a primary under its lease", func(w *ruleWorld) *ruleNode { return w.cluster(2, 3)[0] }, ""},
		{"a node without slots", func(w *ruleWorld) *ruleNode { return w.cluster(2, 3)[2] }, ""},
		{"unformed with every slot owned", func(w *ruleWorld) *ruleNode {
			ns := w.group(3)
			w.lose = kindsOf(msgStop)
			ns[0].addSlots("0-8191")
			ns[1].addSlots("8192-16383")
			w.run(ruleNT)
			return ns[2]
		}, ""},
		{"unformed with slots of nobody", func(w *ruleWorld) *ruleNode {
			ns := w.group(2)
			ns[0].addSlots("0-999")
			w.run(ruleNT)
			return ns[1]
		}, "15384 slots have no owner"},
		{"unformed, an owner is silent", func(w *ruleWorld) *ruleNode {
			ns := w.group(3)
			w.lose = kindsOf(msgStop)
			ns[0].addSlots("0-8191")
			ns[1].addSlots("8192-16383")
			w.run(ruleNT)
			ns[0].crash()
			w.run(2 * ruleNT)
			return ns[2]
		}, "the primary a of 8192 slots has failed"},
		{"unformed, holding START, its first lease over", func(w *ruleWorld) *ruleNode {
			n := w.formerOf()
			n.core.setSlot(5, slotEntry{n.shard(), 1}, pushNothing)
			w.run(ruleNT)
			return n
		}, "this node waits until the formation of its cluster is decided"},
		{"formed, its lease over", func(w *ruleWorld) *ruleNode {
			a := w.cluster(2, 3)[0]
			a.cut = true
			w.run(ruleNT)
			return a
		}, "this node's lease is over: it does not hear a majority of the voters"},
		{"formed, its shard not open", func(w *ruleWorld) *ruleNode {
			a := w.cluster(2, 3)[0]
			a.cut = true
			a.restart()
			return a
		}, "this node's shard is not open: it has not won a vote since it started or was deposed"},
		{"formed without slots, no majority heard", func(w *ruleWorld) *ruleNode {
			c := w.cluster(2, 3)[2]
			c.cut = true
			w.run(2 * ruleNT)
			return c
		}, "this node does not hear a majority of the voters"},
		{"formed without slots, an owner has failed", func(w *ruleWorld) *ruleNode {
			ns := w.cluster(2, 4)
			ns[1].crash()
			w.run(2 * ruleNT)
			return ns[3]
		}, "the primary b of 8192 slots has failed"},
		{"formed, a primary, another owner has failed", func(w *ruleWorld) *ruleNode {
			ns := w.cluster(2, 4)
			ns[1].crash()
			w.run(2 * ruleNT)
			return ns[0]
		}, "the primary b of 8192 slots has failed"},
		{"formed, a slot of nobody", func(w *ruleWorld) *ruleNode {
			ns := w.cluster(1, 3)
			ns[0].delSlots("7")
			ns[0].freezes(false)
			w.run(ruleNT)
			return ns[2]
		}, "1 slots have no owner"},
		{"forgotten", func(w *ruleWorld) *ruleNode {
			ns := w.cluster(1, 11)
			ns[0].forget(ns[10].core.id, false)
			w.run(ruleNT)
			return ns[10]
		}, "this node has been forgotten by its cluster"},
		{"a disk that has failed", func(w *ruleWorld) *ruleNode {
			a := w.cluster(1, 3)[0]
			a.step(func(s *state, now time.Duration) output { return s.saveFailed(now, errors.New("disk full")) })
			return a
		}, "this node cannot save its state: disk full"},
	} {
		w := newRules(t)
		n := row.make(w)
		for _, x := range w.nodes { // letters are easier to read than ids
			if x.core != nil {
				row.want = replaceWord(row.want, x.name, x.core.id.String())
			}
		}
		ok, reason := n.core.clusterState()
		if reason != row.want || ok != (row.want == "") {
			t.Errorf("%s: ok %v, %q, want %q", row.name, ok, reason, row.want)
		}
	}
}

// replaceWord puts an id in the place of "primary x of".
func replaceWord(text, letter, id string) string {
	var before, after string
	if n, _ := fmt.Sscanf(text, "the primary "+letter+" of %s slots has "+"%s", &before, &after); n == 2 {
		return fmt.Sprintf("the primary %s of %s slots has %s", id, before, after)
	}
	return text
}
