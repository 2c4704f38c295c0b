package slotmesh

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// ---- who may speak to whom

// stranger is what the handshake of a node says that is none of ours.
func stranger(cluster ClusterID) sender {
	return sender{ID: NodeID{0xee}, Key: 7, Cluster: cluster, Incarnation: 70, Starts: 1, Facts: 1,
		Addr: "addr-x", ClientAddr: "client-x", Host: "host-x", Shard: ShardID{0xee}}
}

// How a node is known at another.
const (
	unknown        = "unknown"
	asMember       = "as a member"
	asTombstone    = "as a tombstone"
	underOtherKey  = "under another key"
	otherTombstone = "as a tombstone of another key"
)

func (n *ruleNode) knowAs(how string, who sender) {
	e := peerEntry{ID: who.ID, Key: who.Key, Version: 3, Addr: who.Addr, Shard: who.Shard}
	switch how {
	case unknown:
		return
	case asTombstone:
		e.State = forgotten
	case underOtherKey:
		e.Key++
	case otherTombstone:
		e.Key++
		e.State = forgotten
	}
	p := &peer{peerEntry: e}
	p.resetVolatile(n.w.now)
	n.core.peers.insert(p)
}

// formerOf is a node that holds the START of a formation with another node, who
// has not saved it.
func (w *ruleWorld) formerOf() *ruleNode {
	x := w.boot()
	x.core.form.value = &startValue{ID: 1, Cluster: ClusterID{0xcc}, Members: []member{x.member()}, Formers: []member{x.member(), {NodeID{0xdd}, 7}}}
	x.core.vote.stop = ballot{1, x.core.id}
	x.core.vote.stoppedAt = w.now + time.Hour // it does not begin again by itself
	x.core.form.savedAt = w.now
	return x
}

// Rows of three: the message comes to a node (formed or not), from a node
// (formed or not) that is known there in some way.
func TestWhoMaySpeakToWhom(t *testing.T) {
	t.Parallel()
	numbers := formNumbers{Seeds: 5, Primaries: 3}
	alone := func(w *ruleWorld) *ruleNode { return w.boot(func(c *coreConfig) { c.alone = true }) }
	unformed := func(w *ruleWorld) *ruleNode { return w.boot() }
	numbered := func(w *ruleWorld) *ruleNode { return w.boot(func(c *coreConfig) { c.form = numbers }) }
	claiming := func(w *ruleWorld) *ruleNode {
		n := w.boot()
		n.addSlots("5")
		return n
	}
	withKeys := func(w *ruleWorld) *ruleNode {
		n := claiming(w)
		n.core.holdsKeys = true
		return n
	}
	gone := func(w *ruleWorld) *ruleNode {
		n := alone(w)
		w.run(ruleNT)
		n.core.setPeer(n.core.self, pushNothing, func(e *peerEntry) { e.State, e.Version = forgotten, e.Version+1 })
		return n
	}
	holding := func(w *ruleWorld) *ruleNode { return w.formerOf() }

	meet := func(*ruleNode) message { return &meetMsg{Nonce: 9} }
	meetClaiming := func(n *ruleNode) message {
		return &meetMsg{Nonce: 9, Claims: slotRuns{Shards: []ShardID{{0xee}}, Runs: []slotRun{{5, 5, 0, 1}}}}
	}
	seed := func(*ruleNode) message { return &seedMsg{Form: numbers} }
	beat := func(*ruleNode) message { return &heartbeat{Sent: 1} }
	vote := func(*ruleNode) message { return &voteMsg{} }
	answer := func(n *ruleNode) message {
		n.command(func(s *state, now time.Duration, id uint64) output { return s.meet(now, id, "addr-x") })
		var nonce uint64
		for nonce = range n.core.meetings {
		}
		return &updateMsg{Met: nonce}
	}
	theirs := []voterSet{{ID: 7, Version: voterVersion{Number: 1}, Members: []member{{NodeID{0xdd}, 1}}}}
	invitation := func(n *ruleNode) message {
		return &updateMsg{Peers: []peerEntry{n.core.self.peerEntry}, Voters: theirs}
	}
	withoutVoters := func(n *ruleNode) message { return &updateMsg{Peers: []peerEntry{n.core.self.peerEntry}} }
	invitationOf := func(key uint64, state memberState) func(*ruleNode) message {
		return func(n *ruleNode) message {
			return &updateMsg{Peers: []peerEntry{{ID: n.core.id, Key: n.core.key + key, State: state, Version: 5}}, Voters: theirs}
		}
	}

	none, other := ClusterID{}, ClusterID{0xbb}
	same := ClusterID{1} // stands for the receiver's own
	startOf := ClusterID{0xcc}

	const ( // with what is pushed to all
		invited  = "UPDATE voters 1, UPDATE 1 peers, UPDATE"
		welcomed = "UPDATE 2 peers, UPDATE 1 peers"
		joins    = "HEARTBEAT, DIGEST, UPDATE 1 peers, UPDATE"
	)

	for _, row := range []struct {
		name   string
		at     func(*ruleWorld) *ruleNode
		of     ClusterID
		known  string
		m      func(*ruleNode) message
		member bool // the sender is one afterwards
		said   string
	}{
		// A formed node takes an unformed one that MEETs it, that it MEETs, or that
		// names it by (id, voterKey) from its group.
		{"formed, MEET of an unformed", alone, none, unknown, meet, true, invited},
		{"formed, answer of an unformed to MEET", alone, none, unknown, answer, true, invited},
		{"formed, frame of an unformed that names it", alone, none, unknown, beat, true, invited},
		{"formed, frame of an unformed member that has not heard so", alone, none, asMember, beat, true, "UPDATE voters 1"},
		{"formed, frame of an unformed under another key", alone, none, underOtherKey, beat, false, "silence"},
		{"formed, MEET of an unformed under another key", alone, none, underOtherKey, meet, true, invited},
		// A seed dial takes an unformed node, unless it is a tombstone.
		{"formed, SEED of an unformed", alone, none, unknown, seed, true, invited},
		{"formed, SEED of an unformed tombstone", alone, none, asTombstone, seed, false, "silence"},
		// Only MEET lifts a tombstone.
		{"formed, frame of an unformed tombstone", alone, none, asTombstone, beat, false, "silence"},
		{"formed, MEET of an unformed tombstone", alone, none, asTombstone, meet, true, invited},
		{"formed, answer of an unformed tombstone to MEET", alone, none, asTombstone, answer, true, invited},

		// Of one cluster.
		{"formed, frame of a member", alone, same, asMember, beat, true, "DIGEST"},
		{"formed, frame of a member not known yet: asked who it is", alone, same, unknown, beat, false, "DIGEST"},
		{"formed, frame of a member under another key", alone, same, underOtherKey, beat, false, "DIGEST"},
		{"formed, vote of a member not known yet", alone, same, unknown, vote, false, "silence"},
		{"formed, MEET of a member not known yet", alone, same, unknown, meet, true, welcomed + ", UPDATE"},
		{"formed, MEET of a forgotten member", alone, same, asTombstone, meet, true, welcomed + ", UPDATE"},
		// Who has been forgotten is told so.
		{"formed, SEED of a forgotten member", alone, same, asTombstone, seed, false, "UPDATE 1 peers"},
		{"formed, vote of a forgotten member", alone, same, asTombstone, vote, false, "UPDATE 1 peers"},

		// Formed and formed: refused.
		{"formed, frame of another cluster", alone, other, unknown, beat, false, "REFUSED it belongs to another cluster, expected a node of none: it has to be reset first"},
		{"formed, frame of another cluster of a member", alone, other, asMember, beat, true, "REFUSED it belongs to another cluster, expected a node of none: it has to be reset first"},
		{"formed, MEET of another cluster", alone, other, unknown, meet, false, "REFUSED it belongs to another cluster, expected a node of none: it has to be reset first"},
		{"formed, SEED of another cluster, which looks for its own", alone, other, unknown, seed, false, "silence"},

		// A forgotten node takes nobody.
		{"forgotten, MEET of an unformed", gone, none, unknown, meet, false, "silence"},
		{"forgotten, SEED of an unformed", gone, none, unknown, seed, false, "silence"},
		{"forgotten, frame of a member", gone, same, asMember, beat, true, "DIGEST"},

		// Unformed nodes that meet form one group.
		{"unformed, MEET of an unformed", unformed, none, unknown, meet, true, welcomed},
		{"unformed, SEED of an unformed", unformed, none, unknown, seed, true, welcomed},
		{"unformed, answer of an unformed to MEET", unformed, none, unknown, answer, true, "UPDATE 1 peers"},
		{"unformed, frame of an unformed that names it", unformed, none, unknown, beat, true, "DIGEST, UPDATE 1 peers"},
		{"unformed, frame of an unformed tombstone", unformed, none, asTombstone, beat, false, "silence"},
		{"unformed, SEED of an unformed tombstone", unformed, none, asTombstone, seed, false, "silence"},
		{"unformed, MEET of an unformed tombstone", unformed, none, asTombstone, meet, true, welcomed},
		{"unformed, MEET of an unformed tombstone under another key", unformed, none, otherTombstone, meet, true, welcomed},
		{"unformed, frame of an unformed under another key", unformed, none, underOtherKey, beat, false, "silence"},
		// Two groups that both claim a slot do not merge: refused, the slot is named.
		{"unformed with slot 5, MEET that claims slot 5", claiming, none, unknown, meetClaiming, false, "REFUSED both sides have assigned the same slot"},
		{"unformed with slot 5, MEET that claims nothing", claiming, none, unknown, meet, true, welcomed},
		{"unformed without slots, MEET that claims slot 5", unformed, none, unknown, meetClaiming, true, welcomed},
		// A former changes nothing and joins nothing.
		{"holding START, MEET of an unformed", holding, none, unknown, meet, false, "REFUSED it is forming another cluster"},
		{"holding START, SEED of an unformed", holding, none, unknown, seed, false, "REFUSED it is forming another cluster"},
		{"holding START, frame of a member", holding, none, asMember, beat, true, "DIGEST"},

		// What a formed node says to an unformed one.
		{"unformed, MEET of a formed: says who it is", unformed, other, unknown, meet, false, "UPDATE 1 peers"},
		{"unformed, frame of a formed: shows itself, to be invited", unformed, other, unknown, beat, false, "HEARTBEAT"},
		{"unformed, vote of a formed", unformed, other, unknown, vote, false, "silence"},
		{"unformed, invitation", unformed, other, unknown, invitation, true, joins},
		{"unformed, invitation that names no voters", unformed, other, unknown, withoutVoters, false, "silence"},
		{"unformed, invitation of another key", unformed, other, unknown, invitationOf(1, present), false, "silence"},
		{"unformed, entry that says it is forgotten", unformed, other, unknown, invitationOf(0, forgotten), false, "silence"},
		// A formed node's seed dial only looks for its own cluster: an unformed node
		// answers only if its numbers are the same.
		{"unformed by the same numbers, SEED of a formed", numbered, other, unknown, seed, false, "SEED"},
		{"unformed by hand, SEED of a formed", unformed, other, unknown, seed, false, "silence"},
		// The joiner drops its slot claims: refused, if it holds keys or a START.
		{"unformed with slots, invitation", claiming, other, unknown, invitation, true, joins},
		{"unformed with slots and keys, invitation", withKeys, other, unknown, invitation, false, "REFUSED it owns slots and holds keys"},
		{"holding START of another cluster, invitation", holding, other, unknown, invitation, false, "REFUSED it is forming another cluster"},
		{"holding START of this cluster, invitation", holding, startOf, unknown, invitation, true, joins},
	} {
		w := newRules(t)
		n := row.at(w)
		w.run(ruleNT)
		if row.of == same {
			row.of = n.core.cluster
		}
		who := stranger(row.of)
		n.knowAs(row.known, who)
		m := row.m(n)
		w.mail = nil
		to := wanted{n.core.id, n.core.key, 0}
		if m.kind() == msgMeet || m.kind() == msgSeed {
			to = wanted{}
		}
		got := said(n.getsFor(who, to, m))
		p := n.core.peers.get(who.ID)
		if member := known(p, &who); member != row.member || got != row.said {
			t.Errorf("%s: member %v and said %q, want %v and %q", row.name, member, got, row.member, row.said)
		}
	}
}

// A frame names (id, voterKey) of the wanted node, or none; another one at that
// address, or another cluster id, is refused.
func TestFrameForAnotherNodeIsRefused(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name string
		to   func(n *ruleNode) wanted
		want string
	}{
		{"this node", func(n *ruleNode) wanted { return wanted{n.core.id, n.core.key, n.cfg.incarnation} }, "UPDATE voters 1, UPDATE 1 peers, UPDATE"},
		{"this node, its process unknown", func(n *ruleNode) wanted { return wanted{n.core.id, n.core.key, 0} }, "UPDATE voters 1, UPDATE 1 peers, UPDATE"},
		{"another id", func(n *ruleNode) wanted { return wanted{NodeID{3}, n.core.key, 0} }, "REFUSED another node lives at this address"},
		{"another key", func(n *ruleNode) wanted { return wanted{n.core.id, n.core.key + 1, 0} }, "REFUSED another node lives at this address"},
		{"the process that was here before", func(n *ruleNode) wanted { return wanted{n.core.id, n.core.key, n.cfg.incarnation + 1} }, "silence"},
	} {
		w := newRules(t)
		n := w.boot(func(c *coreConfig) { c.alone = true })
		w.run(ruleNT)
		got := said(n.getsFor(stranger(ClusterID{}), row.to(n), &meetMsg{Nonce: 9}))
		if got != row.want {
			t.Errorf("%s: %s, want %s", row.name, got, row.want)
		}
	}
}

// Who answers a frame with "another cluster" under the right (id, voterKey) has
// left, and is forgotten here.
func TestNodeThatHasLeftIsForgotten(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name string
		who  func(b *ruleNode) sender
		why  refusal
		to   func(a *ruleNode) wanted
		want memberState
	}{
		{"it lives in another cluster", func(b *ruleNode) sender { return *b.core.who }, refusedCluster, nil, forgotten},
		{"another node lives at its address", func(b *ruleNode) sender { return stranger(ClusterID{}) }, refusedOther, nil, present},
		{"a node of its id and another key does", func(b *ruleNode) sender { s := *b.core.who; s.Key++; return s }, refusedCluster, nil, present},
		{"what it says is for another", func(b *ruleNode) sender { return *b.core.who }, refusedCluster,
			func(a *ruleNode) wanted { return wanted{a.core.id, a.core.key + 1, 0} }, present},
		{"it refuses another thing", func(b *ruleNode) sender { return *b.core.who }, refusedOther, nil, present},
	} {
		w := newRules(t)
		ns := w.cluster(1, 2)
		a, b := ns[0], ns[1]
		who := row.who(b)
		if row.why == refusedCluster {
			who.Cluster = ClusterID{0xbb}
		}
		to := wanted{a.core.id, a.core.key, 0}
		if row.to != nil {
			to = row.to(a)
		}
		a.getsFor(who, to, &refusedMsg{Why: row.why})
		if got := a.knows(b).State; got != row.want {
			t.Errorf("%s: %v, want %v", row.name, got, row.want)
		}
	}
}

// ---- processes of one node

func TestOfTwoProcessesOfANodeTheOneThatStartedLaterCounts(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name   string
		starts int // beyond those that are known
		silent time.Duration
		read   bool
		event  bool
		said   string
	}{
		{"a later start", 1, 0, true, false, "silence"},
		{"an earlier start, which is asked whether it lives", -1, 0, false, false, "REFUSED another live instance has the same node id"},
		{"the same start, while the other lives", 0, ruleNT / 2, false, true, "REFUSED another live instance has the same node id"},
		{"the same start, once the other is silent", 0, ruleNT + 1, true, false, "silence"},
	} {
		w := newRules(t)
		ns := w.cluster(1, 2)
		a, b := ns[0], ns[1]
		b.getsAs(*a.core.who, &heartbeat{Sent: 1 << 30})
		b.cut, a.cut = true, true
		b.asleep = true
		w.run(row.silent)
		who := *a.core.who
		who.Incarnation, who.Starts, who.Addr = 999, uint64(int(who.Starts)+row.starts), "addr-twin"
		got := said(b.getsAs(who, &heartbeat{Sent: 1}))
		read := b.knows(a).incarnation == 999
		if read != row.read || got != row.said || len(b.eventsOf(EventDuplicate)) > 0 != row.event {
			t.Errorf("%s: read %v, said %s, events %v, want %v, %s", row.name, read, got, b.eventsOf(EventDuplicate), row.read, row.said)
		}
	}
}

// Who has heard from others that a node has started again has not heard the new
// process itself: it is no twin of the one before.
func TestStartThatOthersToldOfIsNoTwin(t *testing.T) {
	w := newRules(t)
	ns := w.cluster(1, 3)
	a, b, c := ns[0], ns[1], ns[2]
	b.getsAs(*a.core.who, &heartbeat{Sent: 1 << 30})
	again := *a.core.who
	again.Incarnation, again.Starts = 999, again.Starts+1
	e := a.core.self.peerEntry
	e.Starts = again.Starts
	b.gets(c, &updateMsg{Peers: []peerEntry{e}})
	b.getsAs(again, &heartbeat{Sent: 1})
	require.Empty(t, b.eventsOf(EventDuplicate))
	require.EqualValues(t, 999, b.knows(a).incarnation)
}

func TestNodeHearsOfItsTwin(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	a := w.boot()
	who := *a.core.who
	require.Equal(t, "silence", said(a.getsAs(who, &heartbeat{})), "itself at another address is no twin")
	require.Empty(t, a.eventsOf(EventDuplicate))
	who.Incarnation, who.Addr = 999, "addr-twin"
	require.Equal(t, "REFUSED another live instance has the same node id", said(a.getsAs(who, &heartbeat{})))
	require.Equal(t, "addr-twin", a.eventsOf(EventDuplicate)[0].Addr)

	w = newRules(t)
	ns := w.cluster(1, 2)
	ns[0].gets(ns[1], &refusedMsg{Why: refusedDuplicate})
	require.Len(t, ns[0].eventsOf(EventDuplicate), 1, "the one that is refused says so too")
}

// A late frame of a process that has ended looks like one of a twin: only who
// lives answers, and then both are told.
func TestOlderProcessThatAnswersIsATwin(t *testing.T) {
	w := newRules(t)
	ns := w.cluster(1, 2)
	a, b := ns[0], ns[1]
	older := *a.core.who
	older.Incarnation, older.Starts, older.Addr = 999, 0, "addr-twin"
	b.getsAs(older, &heartbeat{Sent: 1})
	asked := b.core.peers.get(a.core.id).twinNonce
	require.NotZero(t, asked)
	require.Equal(t, "silence", said(b.getsAs(older, &heartbeat{Sent: 2})), "it is asked once in a while")

	for _, row := range []struct {
		name   string
		nonce  uint64
		events int
	}{
		{"an answer to another question", asked + 3, 0},
		{"the answer", asked + 1, 1},
		{"the same answer, twice", asked + 1, 1},
	} {
		b.getsAs(older, &refusedMsg{Why: refusedDuplicate, Nonce: row.nonce})
		if got := b.eventsOf(EventDuplicate); len(got) != row.events {
			t.Errorf("%s: events %v, want %d", row.name, got, row.events)
		}
	}

	// The older process itself answers a question, and only one for it.
	a.getsFor(*b.core.who, wanted{a.core.id, a.core.key, 999}, &refusedMsg{Why: refusedDuplicate, Nonce: 5})
	require.Empty(t, a.eventsOf(EventDuplicate), "a question for the process that was here before")
	a.getsFor(*b.core.who, wanted{a.core.id, a.core.key, a.core.cfg.incarnation}, &refusedMsg{Why: refusedDuplicate, Nonce: 5})
	require.Len(t, a.eventsOf(EventDuplicate), 1)
}

// ---- MEET

// MEET is repeated each tick until answered, ten NodeTimeouts at most, and not
// saved.
func TestMeetIsRepeatedUntilAnswered(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	a := w.boot()
	require.Equal(t, "OK", a.meet(&ruleNode{cfg: coreConfig{addr: "nowhere"}}).String())
	meets := w.count(func() { w.run(ruleNT) }, kindsOf(msgMeet))
	require.Equal(t, 20, meets, "one each NodeTimeout/20")
	a.meet(&ruleNode{cfg: coreConfig{addr: "nowhere"}})
	require.Len(t, a.core.meetings, 1, "one address is met once")
	w.run(meetLimit*ruleNT - 1)
	require.Empty(t, a.eventsOf(EventRefused))
	w.run(ruleNT / 20)
	require.Equal(t, "nobody has answered", a.eventsOf(EventRefused)[0].Text)
	require.Empty(t, a.core.meetings)

	a.meet(&ruleNode{cfg: coreConfig{addr: "nowhere"}})
	a.restart()
	require.Empty(t, a.core.meetings)

	b := w.boot()
	a.meet(b)
	w.deliver()
	require.Empty(t, a.core.meetings, "answered")
	require.NotNil(t, a.knows(b))
}

func TestMeetIsBounded(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	a := w.boot()
	for i := range meetingsMax {
		a.meet(&ruleNode{cfg: coreConfig{addr: fmt.Sprint("nowhere-", i)}})
	}
	r := a.meet(&ruleNode{cfg: coreConfig{addr: "one-more"}})
	require.Equal(t, "TRYAGAIN 1024 MEETs are under way, which is the limit", r.String())
}

func TestRefusedMeetSaysWhy(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	a, b := w.boot(), w.boot()
	a.addSlots("5-9")
	b.addSlots("7-20")
	a.meet(b)
	w.deliver()
	events := a.eventsOf(EventRefused)
	require.Len(t, events, 1)
	require.Equal(t, "both sides have assigned the same slot", events[0].Text)
	require.Equal(t, "7", events[0].Slots.String())
	require.Equal(t, "7", b.eventsOf(EventRefused)[0].Slots.String(), "both sides say so")
	require.Empty(t, a.core.meetings, "it is not repeated")

	w = newRules(t)
	c, d := w.boot(func(c *coreConfig) { c.alone = true }), w.boot(func(c *coreConfig) { c.alone = true })
	w.run(ruleNT)
	c.meet(d)
	w.deliver()
	for _, n := range []*ruleNode{c, d} {
		require.Len(t, n.eventsOf(EventRefused), 1, "both sides say so")
		require.Contains(t, n.eventsOf(EventRefused)[0].Text, "it belongs to another cluster, expected a node of none")
	}
	c.meet(d)
	w.deliver()
	require.Len(t, d.eventsOf(EventRefused), 1, "not each time")
}

// MEET of a node that is forming is no refusal for good: it asks again.
func TestMeetOfAFormerIsAskedAgain(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	f, x := w.formerOf(), w.boot()
	x.meet(f)
	w.run(ruleNT / 2)
	require.Len(t, x.core.meetings, 1)
	require.Empty(t, x.eventsOf(EventRefused))
	f.core.form = formation{}
	w.run(ruleNT / 10)
	require.Empty(t, x.core.meetings)
	require.NotNil(t, x.knows(f))
}

// MEET between members of one cluster only refreshes the address.
func TestMeetBetweenMembersRefreshesTheAddress(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	ns := w.cluster(1, 3)
	b := ns[1]
	b.crash()
	for _, n := range ns {
		n.cfg.addr += "-new" // nobody can be reached where it was
	}
	for _, n := range ns {
		n.restart()
	}
	w.run(3 * ruleNT)
	require.NotEqual(t, b.cfg.addr, ns[0].knows(b).Addr)
	version := ns[0].knows(b).Version
	b.meet(ns[0])
	w.run(ruleNT)
	require.Equal(t, b.cfg.addr, ns[0].knows(b).Addr)
	require.Equal(t, ns[0].cfg.addr, b.knows(ns[0]).Addr)
	require.Equal(t, version, ns[0].knows(b).Version)
	require.Empty(t, b.core.meetings)
}

// Without seeds one MEET per node is needed; with seeds it heals itself: all
// nodes, also formed ones, dial until every seed is a known live member.
func TestSeedsAreDialledUntilTheyAreLiveMembers(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	ns := w.cluster(1, 3)
	for i, n := range ns {
		n.crash()
		n.cfg.addr = fmt.Sprint("elsewhere-", i)
	}
	var seeds []string
	for _, n := range ns {
		n.restart()
		seeds = append(seeds, n.cfg.addr)
	}
	ns[1].core.setSeeds(seeds)
	ns[2].core.setSeeds(seeds)
	w.until("all have found each other", w.calm)
	require.Zero(t, w.count(func() { w.run(ruleNT) }, kindsOf(msgSeed)), "all seeds are live members")
	ns[0].cut = true
	require.NotZero(t, w.count(func() { w.run(2 * ruleNT) }, kindsOf(msgSeed)), "one is not any more")
}

// ---- joining

func TestJoinerIsAMemberFromItsFirstFrame(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	ns := w.cluster(1, 1)
	a := ns[0]
	x := w.boot()
	x.addSlots("0-10")
	x.slowDisk = true
	var shown []ClusterID
	w.seen = func(m ruleMail) {
		if m.from == x {
			shown = append(shown, m.who.Cluster)
		}
	}
	a.meet(x)
	w.deliver()
	require.Equal(t, a.core.cluster, x.core.cluster)
	require.NotContains(t, shown, a.core.cluster, "the cluster's id is saved before the first frame with it")
	require.Zero(t, x.core.table.owned[x.shard()], "its claims are dropped")
	x.flush()
	w.deliver()
	require.Contains(t, shown, a.core.cluster)
	x.slowDisk = false
	w.run(ruleNT / 10)
	require.True(t, a.core.alive(a.knows(x)))
	require.NotEqual(t, never, a.knows(x).beatAt)
	require.Equal(t, "a", x.owns(5))
	require.Len(t, x.eventsOf(EventJoined), 1)

	x.restart()
	require.Equal(t, a.core.cluster, x.core.cluster)
	w.until("calm", w.calm)
}

// A node that has been taken and never comes is forgotten after a while.
func TestGhostIsForgotten(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	ns := w.cluster(1, 1)
	a := ns[0]
	x := w.boot()
	x.meet(a)
	x.crash()
	w.deliver()
	w.run(meetLimit * ruleNT)
	require.Equal(t, present, a.knows(x).State)
	w.run(ruleNT)
	require.Equal(t, forgotten, a.knows(x).State)
}

func TestNodeThatIsTakenIsInvitedUntilItComes(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	ns := w.cluster(1, 2)
	a := ns[0]
	x := w.boot()
	w.lose = func(m ruleMail) bool { return m.to == x }
	x.meet(a)
	w.run(3 * ruleNT)
	require.True(t, x.core.cluster.IsZero())
	w.lose = nil
	w.run(ruleNT / 10)
	require.Equal(t, a.core.cluster, x.core.cluster)
}

// A member that somebody else has met is asked what it knows, and shown what is
// known here, before it is a member here too.
func TestMemberThatIsNotKnownYetExchangesEntries(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	ns := w.cluster(1, 3)
	a, b, c := ns[0], ns[1], ns[2]
	x := w.boot()
	w.lose = func(m ruleMail) bool { // b hears of x by x alone, and x of b by a
		u, ok := m.msg.(*updateMsg)
		return m.to == b && (m.from == a || m.from == c) && (ok && len(u.Peers) > 0 || m.msg.kind() == msgDigest)
	}
	x.meet(a)
	w.until("b knows x", func() bool { return b.knows(x) != nil && !x.core.cluster.IsZero() })
	w.until("calm", w.calm)
	who := stranger(a.core.cluster)
	require.Contains(t, said(a.getsAs(who, &digestMsg{Table: make([]uint64, numBuckets), Peers: make([]uint64, numBuckets)})), "DIGEST", "it is shown what is known here")
	require.Contains(t, said(a.getsAs(who, &digestMsg{Answer: true, WantP: ^uint64(0)})), "UPDATE 4 peers")
	require.Nil(t, a.core.peers.get(who.ID))
}

// ---- FORGET

func TestForget(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name  string
		whom  func(ns []*ruleNode) NodeID
		force bool
		said  string
		state memberState // of that node, in the end
	}{
		{"itself", func(ns []*ruleNode) NodeID { return ns[0].core.id }, false, "ERR I tried hard but I can't forget myself...", present},
		{"nobody", func(ns []*ruleNode) NodeID { return NodeID{0xee} }, false, "ERR Unknown node ee00000000000000000000000000000000000000", 0},
		{"a primary with slots", func(ns []*ruleNode) NodeID { return ns[1].core.id }, false,
			"ERR Node %s owns 8192 slots: move them first, or forget it by force", present},
		{"a primary with slots, by force", func(ns []*ruleNode) NodeID { return ns[1].core.id }, true, "OK", leaving},
		{"a voter", func(ns []*ruleNode) NodeID { return ns[2].core.id }, false, "OK", leaving},
		{"a node that does not vote", func(ns []*ruleNode) NodeID { return ns[3].core.id }, false, "OK", forgotten},
		{"a node that is forgotten already", func(ns []*ruleNode) NodeID {
			ns[0].forget(ns[3].core.id, false)
			return ns[3].core.id
		}, false, "OK", forgotten},
		{"a voter that is leaving already", func(ns []*ruleNode) NodeID {
			ns[0].forget(ns[2].core.id, false)
			return ns[2].core.id
		}, false, "OK", leaving},
	} {
		w := newRules(t)
		ns := w.cluster(2, 4)
		require.Equal(t, "abc", ns[0].voters())
		id := row.whom(ns)
		if strings.Contains(row.said, "%s") {
			row.said = fmt.Sprintf(row.said, id)
		}
		r := ns[0].forget(id, row.force)
		w.deliver()
		if got := r.String(); got != row.said {
			t.Errorf("%s: %s, want %s", row.name, got, row.said)
		}
		if p := ns[0].core.peers.get(id); p != nil && p.State != row.state {
			t.Errorf("%s: %v, want %v", row.name, p.State, row.state)
		}
	}
}

// FORGET of a voter writes leaving; whoever sees a leaving node outside a newest
// set whose majority is active writes forgotten.
func TestForgottenVoterStaysUntilItIsReplaced(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	ns := w.cluster(1, 4)
	a, b, d := ns[0], ns[1], ns[3]
	r := a.forget(b.core.id, false)
	require.Equal(t, "no reply", r.String(), "it waits until all know")
	w.deliver()
	require.Equal(t, "OK", r.String())
	require.Equal(t, leaving, d.knows(b).State, "pushed to all")
	require.Equal(t, leaving, b.core.self.State)
	require.True(t, b.core.active(), "a full member still")
	w.lose = kindsOf(msgGetStart, msgStart) // the new one lacks its START
	w.until("a change is tried", func() bool { return !a.core.vote.stop.isZero() })
	require.Equal(t, leaving, a.knows(b).State)
	w.lose = nil
	w.until("replaced", func() bool { return a.voters() == "acd" })
	w.until("forgotten", func() bool { return a.knows(b).State == forgotten })
	require.True(t, a.core.active() && d.core.active())
	w.until("it knows", func() bool { return b.core.self.State == forgotten })
	w.run(3 * ruleNT)
	require.Equal(t, forgotten, d.knows(b).State)
}

// Members count as active under the newest set only by what they have said since
// it is in force.
func TestNobodyIsActiveUnderASetThatHasJustComeIntoForce(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	ns := w.cluster(1, 4)
	a, b, c, d := ns[0], ns[1], ns[2], ns[3]
	require.Equal(t, "abc", a.voters())
	require.True(t, d.core.newSetActive())
	next := voterSet{Version: voterVersion{Number: 2}, ID: 99, Members: []member{a.member(), b.member(), d.member()}}
	d.gets(c, &updateMsg{Voters: []voterSet{next}})
	require.False(t, d.core.newSetActive(), "they have said so of the set before")
	d.gets(a, &heartbeat{Flags: beatActive, Start: 99, Sent: a.core.stamp() + 1})
	require.False(t, d.core.newSetActive(), "one of three")
	d.gets(b, &heartbeat{Flags: beatActive, Start: 98, Sent: b.core.stamp() + 1})
	require.False(t, d.core.newSetActive(), "under another START")
	d.gets(b, &heartbeat{Flags: beatActive, Start: 99, Sent: b.core.stamp() + 2})
	require.True(t, d.core.newSetActive())
}

// MEET, FORGET and RESET raise the version; nothing else does.
func TestWhatRaisesTheVersionOfAnEntry(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	ns := w.cluster(2, 4)
	a, d := ns[0], ns[3]
	version := func() uint64 { return a.knows(d).Version }
	was := version()
	same := func(what string) {
		t.Helper()
		w.until("calm", w.calm)
		require.Equal(t, was, version(), what)
	}
	d.cfg.addr += "-new"
	d.restart()
	same("a new address and a start")
	d.crash()
	w.run(3 * ruleNT)
	d.restart()
	same("failing and coming back")
	a.meet(d)
	same("MEET of a member")

	a.forget(d.core.id, false)
	w.deliver()
	require.Greater(t, version(), was, "FORGET")
	was = version()
	a.meet(d)
	w.until("met", func() bool { return a.knows(d).State == present })
	require.Greater(t, version(), was, "MEET of a forgotten node")
	w.until("calm", w.calm)
}

// Any member answers the frames of a forgotten node with the entry, one in
// five, and nothing else.
func TestForgottenNodeIsToldOnceInAWhile(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	ns := w.cluster(1, 4)
	a, d := ns[0], ns[3]
	a.forget(d.core.id, false)
	w.mail = nil // it has not heard
	told, asked := 0, 0
	for i := range 200 {
		w.now += ruleNT / 10
		for _, m := range a.gets(d, &voteMsg{Voters: a.core.table.voters.Version, Shard: d.shard(), Epoch: Epoch{uint64(50 + i), false, d.core.id}}) {
			u := m.(*updateMsg)
			require.Equal(t, forgotten, u.Peers[0].State)
			require.Equal(t, d.core.id, u.Peers[0].ID)
			require.Len(t, u.Peers, 1)
			told++
		}
		asked++
	}
	if told < asked/8 || told > asked/3 {
		t.Errorf("told %d times of %d, want one in five", told, asked)
	}
	told = 0
	for range 200 {
		told += len(a.gets(d, &heartbeat{}))
	}
	require.LessOrEqual(t, told, 1, "at one moment")
}

// A forgotten node keeps cluster id, data and file and says so. It is not a
// candidate.
func TestForgottenNodeSaysSo(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	ns := w.cluster(2, 4)
	a, b := ns[0], ns[1]
	b.cut = true
	w.run(3 * ruleNT)
	a.forget(b.core.id, true)
	w.until("replaced", func() bool { return a.knows(b).State == forgotten })
	b.cut = false
	w.until("told", func() bool { return b.core.self.State == forgotten })
	cluster := b.core.cluster
	ok, reason := b.core.clusterState()
	require.False(t, ok)
	require.Equal(t, "this node has been forgotten by its cluster", reason)
	require.Nil(t, b.core.lead)
	require.False(t, b.serves(9000))
	require.Len(t, b.eventsOf(EventForgotten), 1)
	votes := w.count(func() { w.run(10 * ruleNT) }, func(m ruleMail) bool { return m.from == b && m.msg.kind() == msgVote })
	require.Zero(t, votes)
	require.Equal(t, "CLUSTERDOWN this node has been forgotten by its cluster", b.addSlots("3").String())
	require.Equal(t, "CLUSTERDOWN this node has been forgotten by its cluster", b.takeover().String())
	bump := b.command(func(s *state, now time.Duration, id uint64) output { return s.bumpEpoch(now, id) })
	require.Equal(t, "CLUSTERDOWN this node has been forgotten by its cluster", bump.String())

	b.restart()
	require.Equal(t, cluster, b.core.cluster)
	require.Equal(t, forgotten, b.core.self.State)

	b.meet(a)
	w.until("MEET lifts the tombstone", func() bool { return b.core.self.State == present && a.knows(b).State == present })
	w.until("calm", w.calm)
	require.NotEmpty(t, b.eventsOf(EventMember))
}

func TestTombstonesAreBounded(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	a := w.boot(func(c *coreConfig) { c.alone = true })
	w.run(ruleNT)
	for i := range tombstonesMax + 10 {
		p := &peer{peerEntry: peerEntry{ID: NodeID{0xee, byte(i >> 8), byte(i)}, State: forgotten, Version: 1}}
		p.resetVolatile(time.Duration(i))
		a.core.peers.insert(p)
	}
	a.tick()
	require.Equal(t, tombstonesMax, a.core.tombstones())
	require.Nil(t, a.core.peers.get(NodeID{0xee, 0, 9}), "those seen first are dropped")
	require.NotNil(t, a.core.peers.get(NodeID{0xee, 0, 10}))
	a.gets(a, &updateMsg{Peers: []peerEntry{{ID: NodeID{0xef}, State: forgotten, Version: 1}}})
	a.core.mergePeer(&peer{}, &peerEntry{ID: NodeID{0xef}, State: forgotten, Version: 1})
	require.Nil(t, a.core.peers.get(NodeID{0xef}), "one that is heard of beyond the bound is not kept")
}

// A shard without a member or a slot for a day is dropped from table and votes.
func TestShardThatIsGoneIsDroppedAfterADay(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	a := w.boot(func(c *coreConfig) { c.alone = true })
	w.run(ruleNT)
	shard := ShardID{0xee}
	a.core.begin(w.now)
	a.core.setShard(shard, Epoch{Number: 3}, pushNothing)
	a.core.vote.shard(shard).promised = Epoch{Number: 3}
	a.core.votesChanged(shard)
	a.core.used[shard] = 3
	a.core.mark(cellKey{kind: cellUsed, id: shard})
	a.step(func(s *state, now time.Duration) output { return s.end() })
	require.Contains(t, a.disk, cellKey{kind: cellVote, id: shard})
	w.run(2 * ruleNT)
	a.asleep = true
	w.now += shardlessLimit - 2*ruleNT
	a.tick()
	require.Contains(t, a.core.table.shards, shard)
	w.now += 4 * ruleNT
	a.tick()
	require.NotContains(t, a.core.table.shards, shard)
	require.NotContains(t, a.core.vote.shards, shard)
	for _, kind := range []cellKind{cellShard, cellVote, cellUsed} {
		require.NotContains(t, a.disk, cellKey{kind: kind, id: shard})
	}
	require.Contains(t, a.core.table.shards, a.shard(), "one with a member stays")
}

// ---- RESET and leave

func TestReset(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name string
		hard bool
	}{{"soft", false}, {"hard", true}} {
		w := newRules(t)
		ns := w.cluster(1, 2)
		a, b := ns[0], ns[1]
		id, key, shard, cluster := b.core.id, b.core.key, b.shard(), b.core.cluster
		version := a.knows(b).Version
		r := b.reset(row.hard, false)
		w.run(ruleNT)
		require.Equal(t, "OK", r.String(), row.name)
		require.True(t, b.core.cluster.IsZero(), row.name)
		require.Equal(t, row.hard, b.core.id != id, row.name)
		require.NotEqual(t, key, b.core.key, row.name)
		require.NotEqual(t, shard, b.shard(), row.name)
		require.Len(t, b.core.peers.ordered, 1, row.name)
		require.False(t, b.core.synced, "%s: it has seen no other table", row.name)
		require.Equal(t, NumSlots, b.core.table.unassigned, row.name)
		require.Equal(t, voterVersion{}, b.core.table.voters.Version, row.name)
		require.Equal(t, b.core.id, b.eventsOf(EventReset)[0].Node, row.name)
		p := a.core.peers.get(id)
		require.Equal(t, forgotten, p.State, row.name)
		require.Greater(t, p.Version, version, row.name)

		b.restart()
		require.True(t, b.core.cluster.IsZero(), row.name)
		require.Equal(t, row.hard, b.core.id != id, row.name)
		require.Len(t, b.core.peers.ordered, 1, row.name)

		b.meet(a)
		w.until("it joins again", func() bool { return b.core.cluster == cluster })
		w.until("calm", w.calm)
		require.Equal(t, b.core.key, a.knows(b).Key, row.name)
	}
}

func TestResetIsRefused(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	ns := w.cluster(2, 4)
	require.Equal(t, "ERR CLUSTER RESET can't be called with master nodes containing keys", ns[0].reset(false, true).String())
	ns[1].cut = true
	first := ns[1].reset(false, false)
	require.Equal(t, "no reply", first.String())
	require.Equal(t, "TRYAGAIN this node is leaving already", ns[1].reset(true, false).String())
	require.Equal(t, "ERR this node is leaving: it takes no slots", ns[1].addSlots("1").String())
	w.run(meetLimit*ruleNT - 1)
	require.Equal(t, "no reply", first.String())
	w.run(ruleNT / 10)
	require.Equal(t, "CLUSTERDOWN this node still votes: no majority has replaced it", first.String())
	require.False(t, ns[1].core.cluster.IsZero())
}

// Of a voter RESET writes leaving and waits until the newest set is without it
// and a majority of that set is active.
func TestResetOfAVoterWaitsForTheNewSet(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	ns := w.cluster(1, 4)
	a, b := ns[0], ns[1]
	cluster := b.core.cluster
	w.lose = kindsOf(msgStop)
	r := b.reset(false, false)
	w.run(2 * ruleNT)
	require.Equal(t, leaving, a.knows(b).State)
	require.Equal(t, "no reply", r.String(), "it votes")
	require.Equal(t, cluster, b.core.cluster)

	w.lose = func(m ruleMail) bool { return m.msg.kind() == msgStart && (m.from != a || m.to != b) } // c and d cannot vote yet
	w.until("another set is in force", func() bool { return a.voters() == "acd" })
	w.run(ruleNT)
	require.Equal(t, "no reply", r.String(), "the set without it cannot decide")
	require.Equal(t, cluster, b.core.cluster)

	w.lose = nil
	w.until("reset", func() bool { return b.core.cluster.IsZero() })
	require.Equal(t, "OK", r.String())
	require.True(t, ns[2].core.active() && ns[3].core.active())
}

// A majority of the voters has to know who leaves: then every change of voters
// hears of it before it is decided, and a node that is reset is of no set.
func TestResetWaitsUntilAMajorityKnows(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	ns := w.cluster(1, 4)
	a, b, c, d := ns[0], ns[1], ns[2], ns[3]
	require.Equal(t, "abc", a.voters())
	w.lose = func(m ruleMail) bool { return m.from == d && m.msg.kind() == msgUpdate }
	r := d.reset(false, false)
	w.run(ruleNT)
	require.Equal(t, "no reply", r.String(), "nobody knows that it leaves")

	w.lose = func(m ruleMail) bool {
		return m.to == a && m.msg.kind() == msgUpdate || m.from == a && m.msg.kind() == msgDigest
	}
	w.until("reset", func() bool { return d.core.cluster.IsZero() })
	require.Equal(t, "OK", r.String())
	require.NotEqual(t, present, b.knows(d).State)
	require.Equal(t, present, a.knows(d).State, "it has not heard of it yet")
	wanted := []member{a.member(), b.member(), member{d.core.id, a.knows(d).Key}}
	sortMembers(wanted)
	a.step(func(s *state, now time.Duration) output {
		s.begin(now)
		s.beginChange(s.table.voters.Members, wanted, false)
		return s.end()
	})
	w.until("the voters have changed", func() bool { return a.core.table.voters.Version.Number > 1 && a.core.change == nil })
	for _, n := range []*ruleNode{a, b, c} {
		require.NotContains(t, n.voters(), "d")
	}
}

// The last of a cluster tells those that it has forgotten, before it is reset:
// they would wait for its vote for good.
func TestTheLastOneTellsTheForgotten(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	ns := w.cluster(1, 2)
	a, b := ns[0], ns[1]
	require.Equal(t, "a", b.voters())
	require.Equal(t, "OK", w.settle(a.forget(b.core.id, false)))
	require.Equal(t, present, b.core.self.State)
	w.lose = func(m ruleMail) bool { return m.from == b } // it need not ask
	require.Equal(t, "OK", w.settle(a.reset(false, false)))
	require.Equal(t, forgotten, b.core.self.State)
	require.Equal(t, "OK", b.reset(false, false).String())
}

// One with slots first gives them to shard 0.
func TestResetGivesTheSlotsToNobodyFirst(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	ns := w.cluster(2, 4)
	a, b := ns[0], ns[1]
	require.Equal(t, "b", a.owns(9000))
	r := b.reset(true, false)
	require.Equal(t, leaving, max(b.core.self.State, leaving))
	b.freezes(false)
	w.until("reset", func() bool { return b.core.cluster.IsZero() })
	require.Equal(t, "OK", r.String())
	w.run(ruleNT)
	require.Equal(t, "-", a.owns(9000))
	require.Equal(t, uint64(2), a.core.table.slots.at(9000).move, "by a vote")
}

func TestResetAloneNeedsNoWait(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name  string
		alone bool
	}{{"formed", true}, {"unformed", false}} {
		w := newRules(t)
		a := w.boot(func(c *coreConfig) { c.alone = row.alone })
		w.run(ruleNT)
		require.Equal(t, row.alone, !a.core.cluster.IsZero(), row.name)
		r := a.reset(false, false)
		require.Equal(t, "OK", r.String(), row.name)
		require.True(t, a.core.cluster.IsZero(), row.name)
		require.Equal(t, NumSlots, a.core.table.unassigned, row.name)
	}
}

// What a node has been asked before it was reset is answered.
func TestResetAnswersWhatIsUnderWay(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	ns := w.cluster(1, 4)
	a, d := ns[0], ns[3]
	w.lose = kindsOf(msgForward)
	moved := d.setSlots("5", d)
	require.Equal(t, "no reply", moved.String())
	a.forget(d.core.id, false)
	w.deliver()
	r := d.reset(false, false)
	w.run(ruleNT / 10)
	require.Equal(t, "OK", r.String())
	require.Equal(t, "CLUSTERDOWN this node has been reset meanwhile", moved.String())
}

func TestLeaveOfANodeWithoutSlots(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	ns := w.cluster(1, 4)
	a, d := ns[0], ns[3]
	leave := func(n *ruleNode) *ruleReply {
		return n.command(func(s *state, now time.Duration, id uint64) output { return s.depart(now, id) })
	}
	require.Equal(t, "ERR this node owns 16384 slots: move them first", leave(a).String())
	r := leave(d)
	require.Equal(t, "TRYAGAIN this node is leaving already", leave(d).String())
	w.run(ruleNT)
	require.Equal(t, "OK", r.String())
	require.Equal(t, forgotten, a.knows(d).State)
	require.Equal(t, forgotten, d.core.self.State)
	require.Equal(t, a.core.cluster, d.core.cluster, "its file stays")
	require.True(t, slices.ContainsFunc(d.eventsOf(EventForgotten), func(e Event) bool { return e.Node == d.core.id }))
}

// A node that is leaving agrees to take nothing.
func TestLeavingNodeRefusesAStage(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	ns := w.cluster(1, 4)
	a, b := ns[0], ns[1]
	b.reset(false, false)
	a.handOff(1, "5", b.shard())
	a.freezes(false)
	require.Equal(t, []jobTell{{1, false}}, toldOf[jobTell](a))
}

// A host name is a fact of its owner: all members hear it, also of one that has
// another when it starts again, and none takes one that no host can have.
func TestHostnameTravelsWithTheAddress(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	ns := w.cluster(2, 3)
	for _, n := range ns {
		require.Empty(t, n.knows(ns[1]).Hostname)
	}
	ns[1].cfg.hostname = "one.example"
	ns[1].restart()
	w.run(2 * ruleNT)
	for _, n := range ns {
		require.Equal(t, "one.example", n.knows(ns[1]).Hostname, n.name)
		i := slices.IndexFunc(n.core.publish().nodes, func(i NodeInfo) bool { return i.ID == ns[1].core.id })
		require.Equal(t, "one.example", n.core.publish().nodes[i].Hostname)
	}
	e := ns[1].core.self.peerEntry
	for name, ok := range map[string]bool{"": true, strings.Repeat("a", 255): true, strings.Repeat("a", 256): false, "a b": false, "a_b": false, "a,b": false, "a\nb": false, "ä": false} {
		e.Hostname = name
		require.Equal(t, ok, e.check() == nil, "%.20q", name)
		s := sender{ID: e.ID, Hostname: name}
		require.Equal(t, ok, s.check() == nil, "%.20q", name)
	}
}
