package slotmesh

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// freezesAll plays the drivers' part of every hand-over: no request is left in
// the slots; keys says where keys are.
func (w *ruleWorld) freezesAll(keys ...*ruleNode) {
	w.t.Helper()
	for _, n := range w.nodes {
		left := false
		for _, k := range keys {
			left = left || k == n
		}
		n.freezes(left)
	}
}

// settle runs until a command is answered.
func (w *ruleWorld) settle(r *ruleReply, keys ...*ruleNode) string {
	w.t.Helper()
	for range 400 {
		if r.done {
			return r.String()
		}
		w.deliver()
		w.freezesAll(keys...)
		w.run(ruleNT / 100)
	}
	return r.String()
}

// withoutOwner is a cluster of three voters in which slots 5 to 9 are nobody's,
// a and b own the others, and d owns none.
func withoutOwner(t *testing.T) (w *ruleWorld, a, b, c, d *ruleNode) {
	t.Helper()
	w = newRules(t)
	ns := w.cluster(2, 4)
	require.Equal(t, "abc", ns[0].voters())
	w.run(2 * ruleNT)
	require.Equal(t, "OK", w.settle(ns[0].delSlots("5-9")))
	require.Equal(t, "-", ns[3].owns(5))
	return w, ns[0], ns[1], ns[2], ns[3]
}

// ---- who gets and gives slots

// What has become of a command says the worst of its parts.
func TestTheOutcomeOfACommandInParts(t *testing.T) {
	t.Parallel()
	refused, open := tryAgain("busy"), mayHappen("no answer")
	for _, row := range []struct {
		name  string
		parts []*commandError
		want  string
		may   bool
	}{
		{"all", []*commandError{nil, nil}, "", false},
		{"none", []*commandError{refused, clusterDown("down")}, "busy", false},
		{"some, then no more", []*commandError{nil, refused}, "some of the slots have changed hands; of the others: busy", true},
		{"none, then some", []*commandError{refused, nil}, "some of the slots have changed hands; of the others: busy", true},
		{"none, and one that nobody knows of", []*commandError{refused, open}, open.Text, true},
		{"some, and one that nobody knows of", []*commandError{nil, open}, open.Text, true},
	} {
		w := newRules(t)
		a := w.cluster(3, 3)[0]
		r := a.command(func(s *state, now time.Duration, id uint64) output {
			s.begin(now)
			c := &slotCommand{id: id, parts: len(row.parts)}
			for _, err := range row.parts {
				s.commandDone(c, err)
			}
			return s.end()
		})
		w.settle(r)
		if row.want == "" {
			require.Nil(t, r.err, row.name)
			continue
		}
		require.Equal(t, row.want, r.err.Text, row.name)
		require.Equal(t, row.may, r.err.MayHappen, row.name)
	}
}

func TestSlotCommandsOfAFormedCluster(t *testing.T) {
	t.Parallel()
	type world struct {
		w          *ruleWorld
		a, b, c, d *ruleNode
	}
	dead := func(x world) {
		x.b.crash()
		x.w.until("b has failed", func() bool { return x.a.core.shardFailed(x.b.shard()) && x.d.core.shardFailed(x.b.shard()) })
	}
	for _, row := range []struct {
		name string
		do   func(x world) *ruleReply
		keys func(x world) *ruleNode // who holds keys in its slots
		want string
		owns map[Slot]string
	}{
		// ADDSLOTS: slots of nobody, by a vote on shard 0.
		{"ADDSLOTS of nobody's slots", func(x world) *ruleReply { return x.d.addSlots("5-7") }, nil, "OK", map[Slot]string{4: "a", 5: "d", 7: "d", 8: "-"}},
		{"ADDSLOTS of a slot that has an owner", func(x world) *ruleReply { return x.d.addSlots("10") }, nil, "ERR Slot 10 is already busy", map[Slot]string{10: "a"}},
		{"ADDSLOTS, one of which has an owner: none of them", func(x world) *ruleReply { return x.d.addSlots("9-10") }, nil, "ERR Slot 10 is already busy", map[Slot]string{9: "-", 10: "a"}},
		{"ADDSLOTS of a slot of its own", func(x world) *ruleReply { return x.a.addSlots("4") }, nil, "ERR Slot 4 is already busy", map[Slot]string{4: "a"}},
		{"ADDSLOTS of a member that does not lead", func(x world) *ruleReply { follow(x.d.core); return x.d.addSlots("5") }, nil,
			"ERR this node is a replica: only a primary takes slots", map[Slot]string{5: "-"}},

		// DELSLOTS = MOVE to shard 0.
		{"DELSLOTS of its own slots", func(x world) *ruleReply { return x.a.delSlots("10-11") }, nil, "OK", map[Slot]string{10: "-", 11: "-", 12: "a"}},
		{"DELSLOTS of its own slots with keys", func(x world) *ruleReply { return x.a.delSlots("10") }, func(x world) *ruleNode { return x.a }, "OK", map[Slot]string{10: "-"}},
		{"DELSLOTS of a living primary's slots", func(x world) *ruleReply { return x.d.delSlots("9000") }, nil, "OK", map[Slot]string{9000: "-"}},
		{"DELSLOTS of a failed primary's slots", func(x world) *ruleReply { dead(x); return x.d.delSlots("9000-9001") }, nil, "OK", map[Slot]string{9000: "-", 9001: "-", 9002: "b"}},
		{"DELSLOTS of nobody's slots", func(x world) *ruleReply { return x.a.delSlots("5") }, nil, "ERR Slot 5 is already unassigned", nil},
		{"DELSLOTS, one of which is nobody's: none of them", func(x world) *ruleReply { return x.a.delSlots("4-5") }, nil, "ERR Slot 5 is already unassigned", map[Slot]string{4: "a"}},

		// SETSLOT NODE.
		{"SETSLOT NODE at the owner", func(x world) *ruleReply { return x.a.setSlots("10", x.d) }, nil, "OK", map[Slot]string{10: "d"}},
		{"SETSLOT NODE at the target: forwarded to the owner", func(x world) *ruleReply { return x.d.setSlots("10", x.d) }, nil, "OK", map[Slot]string{10: "d"}},
		{"SETSLOT NODE elsewhere: forwarded to the owner", func(x world) *ruleReply { return x.c.setSlots("10", x.d) }, nil, "OK", map[Slot]string{10: "d"}},
		{"SETSLOT NODE of slots of several owners", func(x world) *ruleReply { return x.c.setSlots("10 5 9000", x.d) }, nil, "OK", map[Slot]string{5: "d", 10: "d", 9000: "d"}},
		{"SETSLOT NODE to who has it already", func(x world) *ruleReply { return x.c.setSlots("10", x.a) }, nil, "OK", map[Slot]string{10: "a"}},
		{"SETSLOT NODE at the owner that holds keys", func(x world) *ruleReply { return x.a.setSlots("10", x.d) }, func(x world) *ruleNode { return x.a },
			"ERR Can't assign hashslot 10 to a different node while I still hold keys for this hash slot.", map[Slot]string{10: "a"}},
		{"SETSLOT NODE elsewhere, the owner holds keys: its text", func(x world) *ruleReply { return x.c.setSlots("10", x.d) }, func(x world) *ruleNode { return x.a },
			"ERR Can't assign hashslot 10 to a different node while I still hold keys for this hash slot.", map[Slot]string{10: "a"}},
		{"SETSLOT NODE of slots of several owners, one of which holds keys", func(x world) *ruleReply { return x.c.setSlots("10 5", x.d) }, func(x world) *ruleNode { return x.a },
			"ERR some of the slots have changed hands; of the others: Can't assign hashslot 10 to a different node while I still hold keys for this hash slot.", map[Slot]string{5: "d", 10: "a"}},
		{"SETSLOT NODE of a slot of nobody, at the target", func(x world) *ruleReply { return x.d.setSlots("5", x.d) }, nil, "OK", map[Slot]string{5: "d"}},
		{"SETSLOT NODE of a slot of nobody, elsewhere", func(x world) *ruleReply { return x.c.setSlots("5", x.d) }, nil, "OK", map[Slot]string{5: "d"}},
		{"SETSLOT NODE of a failed primary's slot, at the target", func(x world) *ruleReply { dead(x); return x.d.setSlots("9000", x.d) }, nil, "OK", map[Slot]string{9000: "d", 9001: "b"}},
		{"SETSLOT NODE of a failed primary's slot, elsewhere", func(x world) *ruleReply { dead(x); return x.c.setSlots("9000", x.d) }, nil, "OK", map[Slot]string{9000: "d"}},
		{"SETSLOT NODE of an unknown node", func(x world) *ruleReply { return x.a.setSlots("10", &ruleNode{core: lone(x.w.t, 0x77)}) }, nil, "ERR Unknown node ID", nil},
		{"SETSLOT NODE of a forgotten node", func(x world) *ruleReply {
			x.a.forget(x.d.core.id, false)
			return x.a.setSlots("10", x.d)
		}, nil, "ERR Unknown node ID", nil},
		{"SETSLOT NODE of a node that does not lead", func(x world) *ruleReply {
			x.a.core.table.setShard(x.d.shard(), Epoch{Number: 9, Node: NodeID{0xee}})
			return x.a.setSlots("10", x.d)
		}, nil, "ERR Target node is not a master", nil},
	} {
		w, a, b, c, d := withoutOwner(t)
		x := world{w, a, b, c, d}
		var keys []*ruleNode
		if row.keys != nil {
			keys = append(keys, row.keys(x))
		}
		got := w.settle(row.do(x), keys...)
		if strings.HasPrefix(row.want, "ERR Unknown node") {
			got = got[:min(len(got), len("ERR Unknown node "))] + "ID"
		}
		if got != row.want {
			t.Errorf("%s: %s, want %s", row.name, got, row.want)
		}
		for slot, want := range row.owns {
			for _, n := range w.nodes {
				if n.down {
					continue
				}
				if owner := n.owns(slot); owner != want {
					t.Errorf("%s: slot %d is of %s in the eyes of %s, want %s", row.name, slot, owner, n.name, want)
				}
			}
			if n := w.byName(want); n != nil && !n.down && row.want == "OK" && !n.serves(slot) {
				t.Errorf("%s: slot %d is not served by %s", row.name, slot, want)
			}
		}
	}
}

func (w *ruleWorld) byName(name string) *ruleNode {
	for _, n := range w.nodes {
		if n.name == name {
			return n
		}
	}
	return nil
}

// Until a cluster has formed Redis's own rules hold: at once, and told to all.
func TestSlotCommandsOfAnUnformedGroup(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	ns := w.group(2)
	a, b := ns[0], ns[1]
	require.Equal(t, "OK", w.settle(a.addSlots("5-9")))
	require.Equal(t, "a", b.owns(9))
	require.True(t, a.core.table.slotIsOf(9, a.shard()))
	require.Equal(t, "ERR Slot 9 is already busy", b.addSlots("9").String())
	require.Equal(t, "OK", w.settle(b.setSlots("9", b)))
	require.Equal(t, "b", a.owns(9), "by the word of who takes it")
	require.Equal(t, "OK", w.settle(b.delSlots("5")))
	require.Equal(t, "-", a.owns(5))
	require.Equal(t, "ERR Slot 5 is already unassigned", a.delSlots("5").String())
	require.Equal(t, uint64(2), a.core.table.slots.at(5).move)
}

// The reply waits for the decision and then until every live member has
// acknowledged the change.
func TestReplyWaitsForTheDecisionAndTheNews(t *testing.T) {
	t.Parallel()
	w, _, _, c, d := withoutOwner(t)
	w.hold = kindsOf(msgUpdated)
	r := d.addSlots("5")
	w.deliver()
	require.Equal(t, "d", c.owns(5))
	require.Equal(t, "no reply", r.String())
	w.releaseHeld()
	require.Equal(t, "OK", r.String())

	// Forwarded, the one who gives waits for its members too.
	w.hold = kindsOf(msgUpdated)
	r = d.delSlots("9000")
	w.deliver()
	w.freezesAll()
	require.Equal(t, "-", c.owns(9000))
	w.run(ruleNT / 20)
	require.Equal(t, "no reply", r.String())
	w.releaseHeld()
	w.run(ruleNT / 20)
	require.Equal(t, "OK", r.String())
}

// Of a command in parts each part is waited for like that, also one that is decided
// before the last.
func TestReplyWaitsForTheNewsOfEachPart(t *testing.T) {
	t.Parallel()
	w, a, _, c, _ := withoutOwner(t)
	w.hold = func(m ruleMail) bool { return m.msg.kind() == msgUpdated && m.from == c && m.to == a }
	r := a.delSlots("10 9000") // its own, and one that b gives
	w.freezesAll()
	w.deliver()
	w.freezesAll()
	w.run(ruleNT / 20)
	require.Equal(t, "-", c.owns(10))
	require.Equal(t, "-", a.owns(9000))
	require.Empty(t, a.core.forwards, "the other part is done")
	require.Equal(t, "no reply", r.String())
	w.releaseHeld()
	require.Equal(t, "OK", r.String())
}

// Without a majority: -CLUSTERDOWN; nothing has changed if no MOVE was sent, else
// the text says that it may still happen.
func TestCommandsWithoutAMajority(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name string
		lose []msgKind
		do   func(a, d *ruleNode) *ruleReply
		want string
		may  bool
	}{
		{"ADDSLOTS, no promise", []msgKind{msgVote}, func(a, d *ruleNode) *ruleReply { return d.addSlots("5") },
			"CLUSTERDOWN no majority of the voters has answered, nothing has changed", false},
		{"ADDSLOTS, no record", []msgKind{msgRecord}, func(a, d *ruleNode) *ruleReply { return d.addSlots("5") },
			"CLUSTERDOWN no majority of the voters has answered, nothing has changed", false},
		{"ADDSLOTS, no move", []msgKind{msgMove}, func(a, d *ruleNode) *ruleReply { return d.addSlots("5") },
			"CLUSTERDOWN no majority of the voters has answered; it may still happen", true},
		{"DELSLOTS of its own, no move", []msgKind{msgMove}, func(a, d *ruleNode) *ruleReply { return a.delSlots("10") },
			"CLUSTERDOWN no majority of the voters has answered; it may still happen", true},
		{"DELSLOTS of its own, and it does not freeze", []msgKind{}, func(a, d *ruleNode) *ruleReply {
			r := a.delSlots("10")
			toldOf[freezeTell](a)
			return r
		}, "CLUSTERDOWN the primary of shard 0000000000000000000000000000000000000000 does not answer, nothing has changed", false},
		{"SETSLOT NODE of its own, the target does not answer", []msgKind{msgStage}, func(a, d *ruleNode) *ruleReply { return a.setSlots("10", d) },
			"CLUSTERDOWN the primary of shard TARGET does not answer, nothing has changed", false},
		{"SETSLOT NODE elsewhere, the owner does not answer", []msgKind{msgForward}, func(a, d *ruleNode) *ruleReply { return d.setSlots("10", d) },
			"CLUSTERDOWN node OWNER, which has to give the slots away, has not answered in time; it may still happen", true},
	} {
		w, a, _, _, d := withoutOwner(t)
		w.lose = kindsOf(row.lose...)
		row.want = strings.Replace(row.want, "TARGET", d.shard().String(), 1)
		row.want = strings.Replace(row.want, "OWNER", a.core.id.String(), 1)
		r := row.do(a, d)
		if got := w.settle(r); got != row.want {
			t.Errorf("%s: %s, want %s", row.name, got, row.want)
		}
		if r.err != nil && r.err.MayHappen != row.may {
			t.Errorf("%s: may happen %v, want %v", row.name, r.err.MayHappen, row.may)
		}
	}
}

// ---- FWD

// It is sent each 150 ms until the table shows it, the primary refuses, or 2.5 s
// are over.
func TestForwardIsRepeated(t *testing.T) {
	t.Parallel()
	w, a, _, _, d := withoutOwner(t)
	w.lose = kindsOf(msgForward)
	r := d.setSlots("10", d)
	var times []time.Duration
	began := w.now
	w.seen = func(m ruleMail) {
		if m.msg.kind() == msgForward {
			require.Equal(t, a, m.to)
			times = append(times, (w.now-began)/time.Millisecond)
		}
	}
	w.run(500 * time.Millisecond)
	require.Equal(t, []time.Duration{150, 300, 450}, times)
	w.lose = nil
	require.Equal(t, "OK", w.settle(r))

	w.lose = kindsOf(msgForward)
	r = d.setSlots("11", d)
	w.run(forwardLimit - time.Millisecond)
	require.Equal(t, "no reply", r.String())
	w.run(time.Millisecond)
	require.True(t, r.done)
}

// Any message of a forwarded command may be lost, and it is done once.
func TestForwardSurvivesLosses(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name string
		kind msgKind
		n    int // that are lost
	}{
		{"the request", msgForward, 2},
		{"the answer", msgForwarded, 1},
		{"the news", msgUpdate, 1},
		{"a refusal", msgForwarded, 2},
	} {
		w, a, _, _, d := withoutOwner(t)
		left := row.n
		w.lose = func(m ruleMail) bool {
			if m.msg.kind() == row.kind && left > 0 && (m.to == d || m.to == a) {
				left--
				return true
			}
			return false
		}
		var keys []*ruleNode
		want := "OK"
		if row.name == "a refusal" {
			keys, want = []*ruleNode{a}, "ERR Can't assign hashslot 10 to a different node while I still hold keys for this hash slot."
		}
		if got := w.settle(d.setSlots("10", d), keys...); got != want {
			t.Errorf("%s is lost: %s, want %s", row.name, got, want)
		}
		require.Zero(t, left, row.name)
		if want == "OK" {
			require.Equal(t, uint64(2), a.core.table.slots.at(10).move, row.name)
		}
		w.run(3 * ruleNT)
		require.Empty(t, a.core.forwarded, row.name)
		require.Empty(t, d.core.forwards, row.name)
	}
}

func TestOwnerAnswersAForward(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name  string
		edit  func(a, d *ruleNode, m *forwardMsg)
		said  string
		gives bool
	}{
		{"of slots that it owns", func(a, d *ruleNode, m *forwardMsg) {}, "silence", true},
		{"of slots that are there already", func(a, d *ruleNode, m *forwardMsg) {
			for i := Slot(10); i <= 12; i++ {
				a.core.table.setSlot(i, slotEntry{d.shard(), 2})
			}
		}, "FORWARDED, UPDATE", false},
		{"of slots, one of which is there already", func(a, d *ruleNode, m *forwardMsg) { a.core.table.setSlot(10, slotEntry{d.shard(), 2}) }, "silence", false},
		{"of slots that have come back since: late", func(a, d *ruleNode, m *forwardMsg) {
			for i := Slot(10); i <= 12; i++ {
				a.core.table.setSlot(i, slotEntry{a.shard(), 3})
			}
		}, "silence", false},
		{"of slots of another", func(a, d *ruleNode, m *forwardMsg) { m.From = ShardID{9} }, "silence", false},
		{"that it does already", func(a, d *ruleNode, m *forwardMsg) { a.gets(d, m); toldOf[freezeTell](a) }, "silence", false},
		{"while its shard is not open", func(a, d *ruleNode, m *forwardMsg) { a.core.lead.opened = false }, "FORWARDED", false},
		{"to a shard that nobody knows", func(a, d *ruleNode, m *forwardMsg) { m.To = ShardID{9} }, "FORWARDED", false},
		{"of slots that it gives to another: later", func(a, d *ruleNode, m *forwardMsg) { a.handOff(1, "10", d.shard()); toldOf[freezeTell](a) }, "silence", false},
		{"while it is unformed", func(a, d *ruleNode, m *forwardMsg) { a.core.cluster = ClusterID{} }, "silence", false},
	} {
		w, a, _, _, d := withoutOwner(t)
		m := &forwardMsg{Request: 1, Slots: moveRuns{{10, 12, 1}}, From: a.shard(), To: d.shard()}
		row.edit(a, d, m)
		who := *d.core.who
		who.Cluster = a.core.cluster
		got := said(a.getsAs(who, m))
		gives := len(toldOf[freezeTell](a)) > 0
		if got != row.said || gives != row.gives {
			t.Errorf("%s: %s, gives %v, want %s, %v", row.name, got, gives, row.said, row.gives)
		}
		_ = w
	}
}

// ---- operations

// First the promises of the shard, then R4's record with primary = none, then
// the MOVE.
func TestOperationTakesTheShardFirst(t *testing.T) {
	t.Parallel()
	w, _, b, _, d := withoutOwner(t)
	epoch := b.epoch()
	b.crash()
	w.until("b has failed", func() bool { return d.core.shardFailed(b.shard()) })
	var steps []string
	w.seen = func(m ruleMail) {
		if m.from != d || m.to != w.nodes[0] {
			return
		}
		switch x := m.msg.(type) {
		case *voteMsg:
			require.Equal(t, whyOperator, x.Why)
			require.Equal(t, b.shard(), x.Shard)
			steps = append(steps, "VOTE")
		case *recordMsg:
			require.True(t, x.Record.Vacant, "primary = none: no lease")
			require.Len(t, x.Record.InSync, 1, "the in-sync set that it found")
			require.Equal(t, b.core.id, x.Record.InSync[0].Node)
			require.Equal(t, d.core.id, x.Record.Epoch.Node)
			steps = append(steps, "RECORD")
		case *moveMsg:
			steps = append(steps, "MOVE")
		}
	}
	require.Equal(t, "OK", w.settle(d.setSlots("9000", d)))
	require.Equal(t, []string{"VOTE", "RECORD", "MOVE"}, slices.Compact(steps))
	require.Equal(t, epoch, w.nodes[0].core.table.shards[b.shard()], "nobody leads that shard now, and nobody says otherwise")

	// The old primary, back, must pass R3 again.
	w.seen = nil
	b.restart()
	w.until("b is back", func() bool { return b.serves(9001) })
	require.Greater(t, b.epoch().Number, epoch.Number+1)
	require.Equal(t, "d", b.owns(9000))
	require.False(t, b.serves(9000))
}

// A half-accepted move of the old primary is completed by the operation, not
// given twice.
func TestOperationCompletesWhatTheOldPrimaryHalfDid(t *testing.T) {
	t.Parallel()
	w, a, b, c, d := withoutOwner(t)
	b.crash()
	w.until("b has failed", func() bool { return d.core.shardFailed(b.shard()) })
	for _, n := range []*ruleNode{a, c} {
		n.core.setAccepted(9000, accepted{c.shard(), 2, b.epoch()})
	}
	require.Equal(t, "ERR Slot 9000 is already busy", w.settle(d.setSlots("9000-9001", d)))
	require.Equal(t, "c", d.owns(9000))
	require.Equal(t, "b", d.owns(9001))
	require.Equal(t, "OK", w.settle(d.setSlots("9001", d)))
}

// An operation that was outbid after its MOVE begins anew, and finds that MOVE
// half accepted: that is its own doing.
func TestOperationThatIsOutbidFindsItsOwnMove(t *testing.T) {
	t.Parallel()
	w, a, b, c, d := withoutOwner(t)
	w.lose = func(m ruleMail) bool { // a alone accepts, and its answer is lost
		return m.msg.kind() == msgMove && m.to != a || m.msg.kind() == msgAccept && m.msg.(*acceptMsg).Ballot != 0
	}
	r := d.addSlots("5-6")
	w.deliver()
	require.Equal(t, uint64(3), a.core.vote.accepted.at(5).move)
	b.cut = true // so that a is asked again
	for _, n := range []*ruleNode{b, c} {
		n.core.vote.shard(ShardID{}).promised.Number += 3
	}
	w.lose = nil
	w.run(ruleNT)
	require.Equal(t, "OK", w.settle(r))
	require.Equal(t, "d", c.owns(5))
	require.True(t, d.serves(5))
	require.True(t, d.serves(6))
}

// An operation whose MOVE is out may still happen, also when it has begun anew
// since.
func TestOperationThatIsOutbidMayStillHappen(t *testing.T) {
	t.Parallel()
	w, a, b, c, d := withoutOwner(t)
	w.lose = func(m ruleMail) bool {
		return m.msg.kind() == msgMove && m.to != a || m.msg.kind() == msgAccept && m.msg.(*acceptMsg).Ballot != 0
	}
	r := d.addSlots("5-6")
	w.deliver()
	for _, n := range []*ruleNode{b, c} {
		n.core.vote.shard(ShardID{}).promised.Number += 3
	}
	w.lose = nil
	w.hold = kindsOf(msgVote)
	require.Equal(t, "CLUSTERDOWN no majority of the voters has answered; it may still happen", w.settle(r))
}

// A MOVE that another has been quicker with ends the operation: the slot is his.
func TestOperationWhoseSlotIsTaken(t *testing.T) {
	t.Parallel()
	w, _, b, c, d := withoutOwner(t)
	w.lose = kindsOf(msgMove)
	r := d.addSlots("5-6")
	w.deliver()
	op := d.core.ops[0]
	m := &refuseMsg{Voters: d.core.table.voters.Version, Ballot: op.move.id, Why: refuseMoved}
	m.Accepted.add(6, accepted{c.shard(), 9, Epoch{Number: 9}})
	d.gets(b, m)
	require.Equal(t, "CLUSTERDOWN Slot 6 is already busy; it may still happen", r.String())
	require.Empty(t, d.core.ops)
}

// Nobody takes slots while its own shard is not open.
func TestOperationNeedsAnOpenShard(t *testing.T) {
	t.Parallel()
	const want = "CLUSTERDOWN this node's shard is not open"
	_, _, _, _, d := withoutOwner(t)
	d.core.lead.opened = false
	require.Equal(t, want, d.addSlots("5").String())

	w, _, _, _, d := withoutOwner(t)
	w.hold = kindsOf(msgAccept)
	r := d.addSlots("5")
	w.deliver()
	require.NotNil(t, d.core.ops[0].recording)
	d.core.lead = nil
	w.releaseHeld()
	require.Equal(t, want, r.String())
}

// Who is asked for what another has to do says nothing: the asker knows better
// by then, and asks him.
func TestForwardToWhoIsNotTheOneToAsk(t *testing.T) {
	t.Parallel()
	_, a, b, c, d := withoutOwner(t)
	m := &forwardMsg{Request: 1, Slots: moveRuns{{10, 10, 1}}, From: a.shard(), To: d.shard()}
	require.Equal(t, "silence", said(b.gets(c, m)))
	require.Empty(t, b.core.forwarded)
	require.Empty(t, b.core.forwards)
}

// A hand-over for an operator that another vote comes between says how far it
// has come.
func TestCommandsOfADeposedPrimary(t *testing.T) {
	t.Parallel()
	depose := func(a, b *ruleNode) {
		a.gets(b, &updateMsg{Shards: []shardRow{{a.shard(), Epoch{99, false, NodeID{0xee}}}}})
	}
	_, a, b, _, _ := withoutOwner(t)
	r := a.delSlots("10")
	depose(a, b)
	require.Equal(t, "CLUSTERDOWN another node leads the shard now, nothing has changed", r.String())

	w, a, b, _, _ := withoutOwner(t)
	w.lose = kindsOf(msgMove)
	r = a.delSlots("10")
	a.freezes(false)
	depose(a, b)
	require.Equal(t, "CLUSTERDOWN another node leads the shard now; it may still happen", r.String())
}

func TestCommandOfWhichAPartHasMoved(t *testing.T) {
	t.Parallel()
	w, a, b, c, _ := withoutOwner(t)
	w.lose = kindsOf(msgMove)
	a.core.vote.current.ID++ // its own vote is silent
	r := a.delSlots("10-12")
	a.freezes(false)
	g := a.core.lead.gives[0]
	c.core.setAccepted(11, accepted{ShardID{}, 2, a.epoch()})
	a.gets(b, &refuseMsg{Voters: a.core.table.voters.Version, Shard: a.shard(), Epoch: a.epoch(), Ballot: g.ballot.id,
		Why: refusePromised, Promised: Epoch{a.epoch().Number + 4, false, NodeID{0xee}}})
	w.run(ruleNT)
	require.Equal(t, "TRYAGAIN another vote came between: slots 10 12 have not moved", r.String())
	require.Equal(t, "-", b.owns(11))
	require.True(t, a.serves(10))
}

// A node that becomes another answers what it was asked before.
func TestCommandsOfANodeThatBecomesAnother(t *testing.T) {
	t.Parallel()
	const reset = "CLUSTERDOWN this node has been reset meanwhile"
	for _, row := range []struct {
		name string
		lose []msgKind
		do   func(d *ruleNode) *ruleReply
		want string
	}{
		{"an operation before its MOVE", []msgKind{msgRecord}, func(d *ruleNode) *ruleReply { return d.addSlots("5") }, reset},
		{"an operation after its MOVE", []msgKind{msgMove}, func(d *ruleNode) *ruleReply { return d.addSlots("5") }, reset + "; it may still happen"},
		{"a forward", []msgKind{msgForward}, func(d *ruleNode) *ruleReply { return d.setSlots("10", d) }, reset},
		{"what waits for a vote", []msgKind{msgVote}, func(d *ruleNode) *ruleReply {
			return d.command(func(s *state, now time.Duration, id uint64) output { return s.bumpEpoch(now, id) })
		}, reset},
		{"what is done, and not known to all", []msgKind{msgUpdated}, func(d *ruleNode) *ruleReply { return d.addSlots("5") }, "OK"},
	} {
		w, _, _, _, d := withoutOwner(t)
		w.lose = kindsOf(row.lose...)
		r := row.do(d)
		w.deliver()
		require.Equal(t, "no reply", r.String(), row.name)
		d.step(func(s *state, now time.Duration) output { s.begin(now); s.wipe(false); return s.end() })
		if got := r.String(); got != row.want {
			t.Errorf("%s: %s, want %s", row.name, got, row.want)
		}
	}
}

// Two nodes that take one slot: one of them gets it.
func TestTwoOperationsOnOneSlot(t *testing.T) {
	t.Parallel()
	w, _, _, c, d := withoutOwner(t)
	first, second := c.addSlots("5"), d.addSlots("5")
	w.run(3 * ruleNT)
	require.ElementsMatch(t, []string{"OK", "ERR Slot 5 is already busy"}, []string{w.settle(first), w.settle(second)})
	require.Contains(t, "cd", c.owns(5))
	require.Equal(t, c.owns(5), d.owns(5))
}

// A command that finds its slots given by another one waits for that one's news too.
func TestTwoOperationsOnOneSlotAtOneNode(t *testing.T) {
	t.Parallel()
	w, _, _, c, d := withoutOwner(t)
	w.hold = func(m ruleMail) bool { return m.msg.kind() == msgUpdated && m.from == c }
	first, second := d.addSlots("5"), d.setSlots("5", d)
	w.until("both are decided", func() bool { return len(d.core.ops) == 0 })
	require.Equal(t, "d", c.owns(5))
	require.Equal(t, "no reply", first.String())
	require.Equal(t, "no reply", second.String())
	w.releaseHeld()
	require.Equal(t, "OK", w.settle(first))
	require.Equal(t, "OK", w.settle(second))
}

// Many commands at once are carried out one after the other.
func TestManyOperationsAtOnce(t *testing.T) {
	t.Parallel()
	w, a, _, c, d := withoutOwner(t)
	require.Equal(t, "OK", w.settle(a.delSlots("100-139")))
	var all []*ruleReply
	for i := range 40 {
		n := []*ruleNode{c, d}[i%2]
		all = append(all, n.addSlots(fmt.Sprint(100+i)))
	}
	for i, r := range all {
		if got := w.settle(r); got != "OK" {
			t.Errorf("command %d: %s, want OK", i, got)
		}
	}
}

func TestCommandsUnderWayAreBounded(t *testing.T) {
	t.Parallel()
	w, _, _, _, d := withoutOwner(t)
	w.lose = kindsOf(msgVote)
	var r *ruleReply
	for range commandsMax + 1 {
		r = d.addSlots("5")
	}
	require.Equal(t, "TRYAGAIN 1024 commands are under way, which is the limit", r.String())
	for range commandsMax + 1 {
		r = d.command(func(s *state, now time.Duration, id uint64) output { return s.bumpEpoch(now, id) })
	}
	require.Equal(t, "TRYAGAIN 1024 commands are under way, which is the limit", r.String())
}

// fix on a formed cluster: DELSLOTS, ADDSLOTS, BUMPEPOCH are three decisions, in
// that order.
func TestFixOfASlot(t *testing.T) {
	t.Parallel()
	w, a, _, _, _ := withoutOwner(t)
	epoch := a.epoch()
	require.Equal(t, "OK", w.settle(a.delSlots("10")))
	require.Equal(t, "OK", w.settle(a.addSlots("10")))
	require.Equal(t, uint64(3), a.core.table.slots.at(10).move)
	require.True(t, a.serves(10))
	require.Equal(t, "OK", w.settle(a.command(func(s *state, now time.Duration, id uint64) output { return s.bumpEpoch(now, id) })))
	require.Greater(t, a.epoch().Number, epoch.Number)
	require.True(t, a.serves(10))
}

// ---- epochs

func TestBumpEpoch(t *testing.T) {
	t.Parallel()
	bump := func(n *ruleNode) *ruleReply {
		return n.command(func(s *state, now time.Duration, id uint64) output { return s.bumpEpoch(now, id) })
	}
	w := newRules(t)
	ns := w.group(2)
	require.Equal(t, "OK", w.settle(bump(ns[0])))
	require.Equal(t, uint64(1), ns[0].epoch().Number)
	require.Equal(t, "OK", w.settle(bump(ns[0])))
	require.Equal(t, uint64(1), ns[0].epoch().Number, "it is the highest already")
	require.Equal(t, "OK", w.settle(bump(ns[1])))
	require.Equal(t, uint64(2), ns[0].core.table.shards[ns[1].shard()].Number)

	w, a, _, _, d := withoutOwner(t)
	was := a.epoch().Number
	require.Equal(t, "OK", w.settle(bump(a)))
	require.Greater(t, a.epoch().Number, was, "by a vote")
	require.Equal(t, a.epoch(), d.core.table.shards[a.shard()])
	w.lose = kindsOf(msgVote)
	require.Equal(t, "CLUSTERDOWN no majority of the voters has answered; it may still happen", w.settle(bump(a)))
	follow(d.core)
	require.Equal(t, "ERR this node is a replica: only a primary has an epoch of its own", bump(d).String())
}

func TestSetConfigEpoch(t *testing.T) {
	t.Parallel()
	set := func(n *ruleNode, number uint64) string {
		return n.command(func(s *state, now time.Duration, id uint64) output { return s.setConfigEpoch(now, id, number) }).String()
	}
	w := newRules(t)
	a, b := w.boot(), w.boot()
	require.Equal(t, "OK", set(a, 7))
	require.Equal(t, uint64(7), a.epoch().Number)
	require.Equal(t, "ERR Node config epoch is already non-zero", set(a, 8))
	a.meet(b)
	w.run(ruleNT)
	require.Equal(t, "ERR The user can assign a config epoch only when the node does not know any other node.", set(b, 3))
	require.Equal(t, uint64(7), b.core.epochHigh, "the highest seen")
}

// ---- R10: TAKEOVER

// TAKEOVER uses highest + 1 with unclean = 1 and shows itself as primary at
// once; it acknowledges only once it has won R3 and R4, under its lease.
func TestTakeoverShowsItselfAtOnce(t *testing.T) {
	t.Parallel()
	w, a, b, c, _ := withoutOwner(t)
	// b is a member of a's shard, and in sync.
	replica(w, a, b)
	for _, n := range []*ruleNode{a, b, c} {
		r := *n.voted(a).record
		r.InSync = append(r.InSync, incarnate{b.core.id, b.cfg.incarnation})
		n.voted(a).record = &r
	}
	before := a.epoch()
	w.hold = kindsOf(msgVote)
	r := b.takeover()
	w.deliver()
	require.Equal(t, "OK", r.String())
	e := b.core.table.shards[a.shard()]
	require.Equal(t, Epoch{before.Number + 1, true, b.core.id}, e)
	require.Equal(t, e, c.core.table.shards[a.shard()], "at once, and to all")
	require.Nil(t, a.core.lead, "the old primary is fenced")
	require.False(t, b.serves(4))
	ev := b.eventsOf(EventUnclean)
	require.Len(t, ev, 1)
	require.Equal(t, Event{Kind: EventUnclean, Node: b.core.id, From: a.core.id, Shard: a.shard(), Epoch: e}, ev[0])

	w.releaseHeld()
	require.True(t, b.core.lead != nil && b.core.lead.opened)
	require.Equal(t, e, b.core.lead.epoch, "it stands under that epoch")
	require.False(t, b.serves(4), "other leases may run")
	w.run(ruleNT + ruleNT/50)
	require.True(t, b.serves(4))
	require.False(t, b.serves(5), "never slots of others")
}

// It beats a voted epoch of the same number; two takeovers have one loser
// everywhere.
func TestTakeoverBeatsAVotedEpochOfItsNumber(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	ns := w.cluster(1, 5)
	a, b, c, d := ns[0], ns[1], ns[2], ns[3]
	w.run(2 * ruleNT)
	n := a.epoch().Number + 1
	voted := Epoch{n, false, NodeID{0xff}}
	byB, byC := Epoch{n, true, b.core.id}, Epoch{n, true, c.core.id}
	for _, order := range [][]Epoch{{voted, byB, byC}, {byC, byB, voted}, {byB, voted, byC}} {
		d.core.table.shards[a.shard()] = Epoch{Number: n - 1, Node: a.core.id}
		for _, e := range order {
			d.gets(a, &updateMsg{Shards: []shardRow{{a.shard(), e}}})
		}
		require.Equal(t, byC, d.core.table.shards[a.shard()], "%v", order)
	}
}

// It takes the shard, never slots accepted for another shard.
func TestTakeoverTakesNoSlotAcceptedForAnother(t *testing.T) {
	t.Parallel()
	w, a, b, c, d := withoutOwner(t)
	for _, n := range []*ruleNode{a, b, c} {
		n.core.setAccepted(10, accepted{d.shard(), 2, a.epoch()})
	}
	a.unleased()
	require.Equal(t, "OK", w.settle(a.takeover()))
	require.True(t, a.epoch().Unclean)
	w.run(2 * ruleNT)
	require.True(t, a.serves(4))
	require.Equal(t, "d", a.owns(10))
	require.False(t, a.serves(10))
}

// Where the voters' majority is gone, TAKEOVER is first ForceVoters(voters alive
// and itself).
func TestTakeoverWithoutAMajorityImposesTheLiving(t *testing.T) {
	t.Parallel()
	w, a, b, c, d := withoutOwner(t)
	b.crash()
	c.crash()
	w.run(2 * ruleNT)
	require.False(t, a.core.majorityHeard())
	r := d.takeover()
	require.Equal(t, "no reply", r.String())
	require.Equal(t, "TRYAGAIN voters are being imposed already", d.takeover().String())
	require.Equal(t, "OK", w.settle(r))
	require.Equal(t, "d", a.voters(), "an odd number, itself among them")
	require.Equal(t, uint64(1), a.core.table.voters.Version.Forced)
	w.until("a and d serve", func() bool { return a.serves(4) && d.core.leaseHeld() })
	require.Equal(t, "OK", w.settle(a.takeover()), "the next one finds a majority")
	require.Equal(t, uint64(1), a.core.table.voters.Version.Forced)
}

func TestTakeoverOfAnUnformedNode(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	require.Equal(t, "ERR the cluster has not formed yet: there is nothing to take over", w.boot().takeover().String())
}
