package slotmesh

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Where a request goes for a slot that is not served here.
func TestWhereARequestGoes(t *testing.T) {
	t.Parallel()
	const slot = 9000 // of b, in a cluster of three voters where a and b own all slots and d none
	for _, row := range []struct {
		name string
		make func(w *ruleWorld) *ruleNode // who is asked
		want string
	}{
		{"formed, the owner is another", func(w *ruleWorld) *ruleNode { return w.cluster(2, 4)[0] }, "MOVED b"},
		{"formed without own slots, the owner is another", func(w *ruleWorld) *ruleNode { return w.cluster(2, 4)[3] }, "MOVED b"},
		{"formed, the owner is leaving", func(w *ruleWorld) *ruleNode {
			ns := w.cluster(2, 4)
			ns[0].forget(ns[1].core.id, true)
			return ns[0]
		}, "MOVED b"},
		{"formed, the owner has failed", func(w *ruleWorld) *ruleNode {
			ns := w.cluster(2, 4)
			ns[1].crash()
			w.run(2 * ruleNT)
			return ns[3]
		}, "CLUSTERDOWN the primary of the slot has failed"},
		{"formed, the owner was forgotten", func(w *ruleWorld) *ruleNode {
			ns := w.cluster(2, 4)
			ns[1].crash()
			ns[0].forget(ns[1].core.id, true)
			w.until("replaced", func() bool { return ns[0].knows(ns[1]).State == forgotten })
			return ns[0]
		}, "CLUSTERDOWN the primary of the slot has failed"},
		{"formed, the slot is nobody's", func(w *ruleWorld) *ruleNode {
			ns := w.cluster(2, 4)
			w.settle(ns[1].delSlots("9000"))
			return ns[3]
		}, "CLUSTERDOWN Hash slot not served"},
		{"formed, no majority of the voters is heard", func(w *ruleWorld) *ruleNode {
			ns := w.cluster(2, 4)
			ns[3].cut = true
			w.run(2 * ruleNT)
			return ns[3]
		}, "CLUSTERDOWN this node does not hear a majority of the voters"},
		{"formed, its own slot, its lease over", func(w *ruleWorld) *ruleNode {
			ns := w.cluster(2, 4)
			ns[1].cut = true
			w.run(ruleNT)
			return ns[1]
		}, "CLUSTERDOWN this node's lease is over: it does not hear a majority of the voters"},
		{"formed, its own slot, its shard not open", func(w *ruleWorld) *ruleNode {
			ns := w.cluster(2, 4)
			ns[1].cut = true
			ns[1].restart()
			return ns[1]
		}, "CLUSTERDOWN this node's shard is not open: it has not won a vote since it started or was deposed"},
		{"formed, a slot learnt late", func(w *ruleWorld) *ruleNode {
			ns := w.cluster(2, 4)
			w.run(2 * ruleNT)
			w.lose = kindsOf(msgVote)
			ns[3].gets(ns[0], &updateMsg{Slots: slotRuns{Shards: []ShardID{ns[3].shard()}, Runs: []slotRun{{slot, slot, 0, 2}}}})
			return ns[3]
		}, "TRYAGAIN slot 9000 has come by hearsay and waits for a vote"},
		{"formed, a slot that no voter knows here", func(w *ruleWorld) *ruleNode {
			ns := w.cluster(2, 4)
			w.run(2 * ruleNT)
			ns[3].gets(ns[0], &updateMsg{Slots: slotRuns{Shards: []ShardID{ns[3].shard()}, Runs: []slotRun{{slot, slot, 0, 2}}}})
			w.run(ruleNT / 5)
			return ns[3]
		}, "CLUSTERDOWN this node does not serve the slot yet"},
		{"unformed, the owner is another", func(w *ruleWorld) *ruleNode { return w.owners(2)[0] }, "MOVED b"},
		{"unformed, another slot is nobody's", func(w *ruleWorld) *ruleNode {
			ns := w.owners(2)
			w.settle(ns[1].delSlots("9001"))
			return ns[0]
		}, "CLUSTERDOWN 1 slots have no owner"},
	} {
		w := newRules(t)
		n := row.make(w)
		got := w.decided(n.core.publish().route(slot, question{}))
		if got != row.want {
			t.Errorf("%s: %s, want %s", row.name, got, row.want)
		}
	}
}

// replaceID leaves the id out of "the primary … of slot … has failed".
func replaceID(text string, w *ruleWorld) string {
	for _, n := range w.nodes {
		if text == "the primary "+n.core.id.String()+" of slot 9000 has failed" {
			return "the primary of the slot has failed"
		}
	}
	return text
}

// The published table says what the core knows, and does not change.
func TestPublishedTable(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	ns := w.cluster(2, 4)
	a, b, c, d := ns[0], ns[1], ns[2], ns[3]
	var table SlotTable = a.core.publish()
	owner, ok := table.Owner(9000)
	require.True(t, ok)
	require.Equal(t, NodeInfo{ID: b.core.id, Addr: "addr-b", ClientAddr: "client-b", Host: "host-b", Shard: b.shard(), Voter: true, Epoch: b.epoch().Number}, owner)
	self, ok := table.Owner(5)
	require.True(t, ok)
	require.True(t, self.Self)
	_, ok = table.Owner(NumSlots)
	require.False(t, ok)
	require.Equal(t, uint64(1), table.Move(5))
	require.Equal(t, uint64(0), table.Move(NumSlots))
	mine := table.Slots(a.core.id)
	require.Equal(t, "0-8191", mine.String())
	none := table.Slots(c.core.id)
	require.True(t, none.Empty())
	var ids []NodeID
	for _, n := range table.Nodes() {
		ids = append(ids, n.ID)
	}
	require.Equal(t, []NodeID{a.core.id, b.core.id, c.core.id, d.core.id}, ids)
	require.True(t, slices.IsSortedFunc(table.Shards(), func(x, y ShardInfo) int { return x.ID.compare(y.ID) }))
	require.Len(t, table.Shards(), 2, "with slots")
	require.Equal(t, b.epoch(), table.Shards()[1].Epoch)

	require.Equal(t, "OK", w.settle(a.delSlots("5")))
	require.Equal(t, "OK", w.settle(a.setSlots("6-7", d)))
	c.crash()
	w.run(2 * ruleNT)
	a.forget(b.core.id, true)
	_, ok = table.Owner(5)
	require.True(t, ok, "a view never changes")
	require.True(t, table.Covered())
	now := a.core.publish()
	require.False(t, now.Covered(), "a slot without an owner")
	_, ok = now.Owner(5)
	require.False(t, ok)
	var ranges []string
	for r, n := range now.All() {
		ranges = append(ranges, r.String()+w.letter(n.ID))
	}
	require.Equal(t, []string{"0-4a", "6-7d", "8-8191a", "8192-16383b"}, ranges)
	for r := range now.All() {
		require.Equal(t, "0-4", r.String())
		break
	}
	nodes := now.Nodes()
	require.True(t, nodes[2].Silent)
	require.True(t, nodes[1].Leaving)
	nodes[0].Addr = "changed"
	require.NotEqual(t, "changed", now.Nodes()[0].Addr, "the list is the caller's own")
	require.True(t, now.owns(4) && !now.owns(9000) && !now.owns(5))
}

// Ready waits until wanted = voters in the node's own eyes and the newest set's
// majority is active.
func TestWhyANodeIsNotReady(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name string
		make func(w *ruleWorld) *ruleNode
		want string
	}{
		{"a calm cluster", func(w *ruleWorld) *ruleNode { return w.cluster(1, 4)[0] }, ""},
		{"a node without slots", func(w *ruleWorld) *ruleNode { return w.cluster(1, 4)[3] }, ""},
		{"unformed by hand", func(w *ruleWorld) *ruleNode { return w.boot() }, "the cluster has not formed yet: 16384 slots have no owner"},
		{"unformed with all slots", func(w *ruleWorld) *ruleNode { return w.owners(2)[0] }, "the cluster has not formed yet: the owners do not show the same table yet"},
		{"unformed by number", func(w *ruleWorld) *ruleNode { return w.grid("ab", 3, 1)[0] }, "the cluster has not formed yet: it forms once 6 nodes with the same seeds and numbers are here"},
		{"its shard is not open", func(w *ruleWorld) *ruleNode {
			a := w.cluster(1, 4)[0]
			a.cut = true
			a.restart()
			return a
		}, "this node's shard is not open yet"},
		{"voters are not active", func(w *ruleWorld) *ruleNode {
			ns := w.cluster(1, 4)
			d := ns[3]
			d.gets(ns[0], &updateMsg{Voters: []voterSet{{voterVersion{Number: 2}, 99, ns[0].core.table.voters.Members}}})
			return d
		}, "a majority of the voters does not vote yet"},
		{"other voters are wanted", func(w *ruleWorld) *ruleNode {
			ns := w.cluster(1, 4)
			w.lose = kindsOf(msgStop)
			ns[1].crash()
			w.run(ruleNT + ruleNT/10)
			return ns[0]
		}, "the voters are about to change"},
		{"a slot is nobody's", func(w *ruleWorld) *ruleNode {
			a := w.cluster(1, 4)[0]
			w.settle(a.delSlots("5"))
			return a
		}, "1 slots have no owner"},
		{"forgotten", func(w *ruleWorld) *ruleNode {
			ns := w.cluster(1, 4)
			ns[0].forget(ns[3].core.id, false)
			w.run(ruleNT)
			return ns[3]
		}, "this node has been forgotten by its cluster"},
	} {
		w := newRules(t)
		n := row.make(w)
		if got := n.core.publish(); got.unready != row.want || got.ready != (row.want == "") {
			t.Errorf("%s: ready %v, %q, want %q", row.name, got.ready, got.unready, row.want)
		}
	}
}

// Seeds are names; where the node there says that it lives is what is looked
// for among the members.
func TestSeedIsKnownByTheAddressThatItShows(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	ns := w.cluster(1, 2)
	a, b := ns[0], ns[1]
	a.core.setSeeds([]string{"b.example"})
	seeds := func() int { return w.count(func() { w.run(ruleNT) }, kindsOf(msgSeed)) }
	require.NotZero(t, seeds())
	a.core.seedIs("b.example", b.cfg.addr)
	a.core.seedIs("c.example", "elsewhere")
	require.Zero(t, seeds())
	a.core.seedIs("b.example", "") // by a process that is only starting
	require.Zero(t, seeds())
}

// What a driver changes by itself is told like any change.
func TestAnnounceWaitsUntilAllKnow(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	ns := w.cluster(1, 3)
	w.hold = kindsOf(msgUpdated)
	r := ns[0].command(func(s *state, now time.Duration, id uint64) output { return s.announce(now, id, slotsOf(t, "5-9")) })
	w.deliver()
	require.Equal(t, "no reply", r.String())
	w.releaseHeld()
	require.Equal(t, "OK", r.String())
}

// The rules of Redis about where a request goes (getNodeByQuery), by their
// numbers in order of precedence. A node a is asked about slot 5, or about keys.
func TestRulesOfRouting(t *testing.T) {
	t.Parallel()
	own := func(w *ruleWorld) *ruleNode { return w.cluster(2, 4)[0] }
	other := func(w *ruleWorld) *ruleNode { // a is the second, the slot of b
		ns := w.cluster(2, 4)
		w.nodes[0].name, w.nodes[1].name = "b", "a"
		return ns[1]
	}
	nobodys := func(w *ruleWorld) *ruleNode {
		n := own(w)
		w.run(2 * ruleNT)
		w.settle(n.delSlots("5"))
		return n
	}
	missing := func(w *ruleWorld) *ruleNode { // another slot is nobody's
		n := own(w)
		w.run(2 * ruleNT)
		w.settle(n.delSlots("6"))
		return n
	}
	missing2 := func(w *ruleWorld) *ruleNode {
		n := other(w)
		w.run(2 * ruleNT)
		w.settle(w.nodes[0].delSlots("6"))
		return n
	}
	migrating := func(n *ruleNode) *SlotMark { return &SlotMark{Slot: 5, Node: n.w.nodes[3].core.id} }
	importing := func(n *ruleNode) *SlotMark {
		return &SlotMark{Slot: 5, Node: n.w.nodes[0].core.id, Importing: true}
	}
	for _, row := range []struct {
		rule string
		make func(w *ruleWorld) *ruleNode
		mark func(n *ruleNode) *SlotMark
		r    Request
		q    question
		want string
	}{
		{"1 no keys: the caller names no slot", own, nil, Request{Keys: []string{}}, question{serves: true}, "INVALID"},
		{"2 keys of several slots", own, nil, Request{Keys: []string{"foo", "bar"}}, question{serves: true}, "CROSSSLOT"},
		{"2 before the state of the slot", nobodys, nil, Request{Keys: []string{"foo", "bar"}}, question{}, "CROSSSLOT"},
		{"2 keys of one slot by their tag", own, nil, Request{Keys: []string{"{foo}1", "{foo}2"}}, question{serves: true}, "serve"},
		{"3 the slot is nobody's", nobodys, nil, Request{}, question{}, "CLUSTERDOWN Hash slot not served"},
		{"3 nobody's, and marked: after the state", nobodys, importing, Request{Asking: true}, question{leased: true, present: 1}, "CLUSTERDOWN Hash slot not served"},
		{"4 no majority is heard", func(w *ruleWorld) *ruleNode {
			n := other(w)
			n.cut = true
			w.run(2 * ruleNT)
			return n
		}, nil, Request{}, question{}, "CLUSTERDOWN this node's lease is over: it does not hear a majority of the voters"},
		{"4 before a mark", func(w *ruleWorld) *ruleNode {
			n := other(w)
			n.cut = true
			w.run(2 * ruleNT)
			return n
		}, importing, Request{Asking: true}, question{leased: true, present: 1}, "CLUSTERDOWN this node's lease is over: it does not hear a majority of the voters"},
		{"4 its own slot, which it may not serve", own, nil, Request{}, question{}, "CLUSTERDOWN this node does not serve the slot yet"},
		{"4 a slot is nobody's, and all are wanted: a read", missing, nil, Request{ReadOnly: true, Whole: true}, question{serves: true}, "CLUSTERDOWN The cluster is down"},
		{"4 a slot is nobody's, and all are wanted: a write", missing, nil, Request{Whole: true}, question{serves: true}, "CLUSTERDOWN The cluster is down"},
		{"4 a slot is nobody's, and it may be", missing, nil, Request{}, question{serves: true}, "serve"},
		{"4 another one's slot while a slot is nobody's", missing2, nil, Request{ReadOnly: true, Whole: true}, question{}, "CLUSTERDOWN The cluster is down"},
		{"4 before 11", missing2, nil, Request{ReadOnly: true, Whole: true, FromReplica: true}, question{shows: true}, "CLUSTERDOWN The cluster is down"},
		{"4 reads only: a read", missing, nil, Request{ReadOnly: true, Whole: true, Stale: true}, question{serves: true}, "serve"},
		{"4 reads only: a write", missing, nil, Request{Whole: true, Stale: true}, question{serves: true}, "CLUSTERDOWN The cluster is down and only accepts read commands"},
		{"4 reads only: a read of the slot that is nobody's, 3", nobodys, nil, Request{ReadOnly: true, Whole: true, Stale: true}, question{}, "CLUSTERDOWN Hash slot not served"},
		{"4 reads only: a read of another one's slot, 12", missing2, nil, Request{ReadOnly: true, Whole: true, Stale: true}, question{}, "MOVED b"},
		{"4 reads only: a read, no majority is heard, 12", func(w *ruleWorld) *ruleNode {
			n := other(w)
			n.cut = true
			w.run(2 * ruleNT)
			return n
		}, nil, Request{ReadOnly: true, Stale: true}, question{}, "MOVED b"},
		{"4 reads only: a read, the owner has failed, 12", func(w *ruleWorld) *ruleNode {
			n := other(w)
			w.nodes[0].crash()
			w.run(2 * ruleNT)
			return n
		}, nil, Request{ReadOnly: true, Stale: true}, question{}, "MOVED b"},
		{"4 what mends it passes: ASKING", missing, migrating, Request{Asking: true, Whole: true}, question{serves: true, present: 1}, "serve"},
		{"4 what mends it passes: keys are being moved", missing, migrating, Request{Anyway: true, Whole: true}, question{serves: true, missing: 1}, "serve"},
		{"5 keys are being moved, MIGRATING", own, migrating, Request{Anyway: true}, question{serves: true, missing: 1}, "serve"},
		{"5 keys are being moved, MIGRATING, some are gone", own, migrating, Request{Anyway: true}, question{serves: true, present: 1, missing: 1, several: true}, "serve"},
		{"5 keys are being moved, IMPORTING", other, importing, Request{Anyway: true}, question{leased: true, present: 1, missing: 1, several: true}, "serve"},
		{"6 MIGRATING, some keys here and some not", own, migrating, Request{}, question{serves: true, present: 1, missing: 1, several: true}, "TRYAGAIN Multiple keys request during rehashing of slot"},
		{"6 to a reader too", own, migrating, Request{ReadOnly: true}, question{serves: true, present: 2, missing: 1, several: true}, "TRYAGAIN Multiple keys request during rehashing of slot"},
		{"7 MIGRATING, the key is not here", own, migrating, Request{}, question{serves: true, missing: 1}, "ASK d"},
		{"7 MIGRATING, no key is here", own, migrating, Request{}, question{serves: true, missing: 2, several: true}, "ASK d"},
		{"7 after ASKING too", own, migrating, Request{Asking: true}, question{serves: true, missing: 1}, "ASK d"},
		{"8 MIGRATING, the key is here", own, migrating, Request{}, question{serves: true, present: 1}, "serve"},
		{"8 MIGRATING, all keys are here", own, migrating, Request{}, question{serves: true, present: 2, several: true}, "serve"},
		{"9 IMPORTING, asking, several keys and none here", other, importing, Request{Asking: true}, question{leased: true, missing: 2, several: true}, "TRYAGAIN Multiple keys request during rehashing of slot"},
		{"9 IMPORTING, asking, several keys and one not here", other, importing, Request{Asking: true}, question{leased: true, present: 1, missing: 1, several: true}, "TRYAGAIN Multiple keys request during rehashing of slot"},
		{"10 IMPORTING, asking, the key is here", other, importing, Request{Asking: true}, question{leased: true, present: 1}, "serve"},
		{"10 IMPORTING, asking, the key is not here", other, importing, Request{Asking: true}, question{leased: true, missing: 1}, "serve"},
		{"10 IMPORTING, asking, the same key twice", other, importing, Request{Asking: true}, question{leased: true, missing: 2}, "serve"},
		{"10 IMPORTING, asking, all keys are here", other, importing, Request{Asking: true}, question{leased: true, present: 2, several: true}, "serve"},
		{"10 IMPORTING, asking, the owner has failed", func(w *ruleWorld) *ruleNode {
			n := other(w)
			w.nodes[0].crash()
			w.run(2 * ruleNT)
			return n
		}, importing, Request{Asking: true}, question{leased: true, present: 1}, "serve"},
		{"10 IMPORTING, asking, but without a lease", other, importing, Request{Asking: true}, question{present: 1}, "CLUSTERDOWN this node's shard is not open"},
		{"11 READONLY at a replica: serve", other, nil, Request{ReadOnly: true, FromReplica: true}, question{shows: true}, "serve"},
		{"11 a write: MOVED", other, nil, Request{FromReplica: true}, question{shows: true}, "MOVED b"},
		{"11 READONLY, no replica of this slot, or not READONLY: MOVED", other, nil, Request{ReadOnly: true}, question{}, "MOVED b"},
		{"11 READONLY, the primary has failed", func(w *ruleWorld) *ruleNode {
			n := other(w)
			w.nodes[0].crash()
			w.run(2 * ruleNT)
			return n
		}, nil, Request{ReadOnly: true, FromReplica: true}, question{shows: true}, "serve"},
		{"12 another one's slot", other, nil, Request{}, question{}, "MOVED b"},
		{"12 IMPORTING, not asking", other, importing, Request{}, question{leased: true, present: 1}, "MOVED b"},
		{"12 asking, no mark", other, nil, Request{Asking: true}, question{leased: true, present: 1}, "MOVED b"},
		{"its own slot", own, nil, Request{}, question{serves: true}, "serve"},
		{"its own slot, asking", own, nil, Request{Asking: true}, question{serves: true}, "serve"},
	} {
		w := newRules(t)
		n := row.make(w)
		if row.r.Keys == nil {
			row.r.Keys = []string{"k"}
		}
		got := ""
		switch _, err := row.r.slot(1 << 10); {
		case errors.Is(err, ErrInvalid):
			got = "INVALID"
		case errors.Is(err, ErrCrossSlot):
			got = "CROSSSLOT"
		default:
			q := row.r.question()
			q.serves, q.leased, q.shows = row.q.serves, row.q.leased, row.q.shows
			q.present, q.missing, q.several = row.q.present, row.q.missing, row.q.several
			if row.mark != nil {
				q.mark = row.mark(n)
			}
			got = w.decided(n.core.publish().route(5, q))
		}
		if got != row.want {
			t.Errorf("%s: %s, want %s", row.rule, got, row.want)
		}
	}
}

// decided is a decision as text.
func (w *ruleWorld) decided(d decision) string {
	switch d.action {
	case routeServe:
		return "serve"
	case routeMoved:
		return "MOVED " + w.letter(d.node.ID)
	case routeAsk:
		return "ASK " + w.letter(d.node.ID)
	case routeTryAgain:
		return "TRYAGAIN " + d.reason
	default:
		return "CLUSTERDOWN " + replaceID(d.reason, w)
	}
}
