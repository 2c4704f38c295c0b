package slotmesh

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What a node answers: it serves a slot, holds requests for it back, or neither;
// and "as a primary" is asked at reply time too.
func TestWhatANodeServes(t *testing.T) {
	const serves, holds, neither = "serves", "holds", "neither"
	for _, row := range []struct {
		name string
		make func(w *ruleWorld) *ruleNode // who is asked for slot 5
		want string
		may  bool // what ran before may be acknowledged
	}{
		{"unformed, every slot has an owner", func(w *ruleWorld) *ruleNode { return w.owners(2)[0] }, serves, true},
		{"unformed, holding START", func(w *ruleWorld) *ruleNode {
			ns := w.owners(2)
			w.lose = kindsOf(msgStarted)
			w.until("holds", func() bool { return ns[0].core.form.holds() })
			return ns[0]
		}, serves, true},
		{"unformed, holding START for too long", func(w *ruleWorld) *ruleNode {
			ns := w.owners(2)
			w.lose = kindsOf(msgStarted)
			w.until("holds", func() bool { return ns[0].core.form.holds() })
			w.run(ruleNT)
			return ns[0]
		}, neither, false},
		{"unformed, the slot is of another", func(w *ruleWorld) *ruleNode { return w.owners(2)[1] }, neither, true},
		{"unformed, a slot is of nobody", func(w *ruleWorld) *ruleNode {
			a := w.group(2)[0]
			a.addSlots("5")
			w.run(ruleNT)
			return a
		}, neither, true},
		{"formed, under its lease", func(w *ruleWorld) *ruleNode { return w.cluster(2, 3)[0] }, serves, true},
		{"formed, its lease over", func(w *ruleWorld) *ruleNode {
			a := w.cluster(2, 3)[0]
			a.cut = true
			w.run(ruleNT)
			return a
		}, neither, false},
		{"formed, the slot is of another", func(w *ruleWorld) *ruleNode { return w.cluster(2, 3)[1] }, neither, true},
		{"restarted", func(w *ruleWorld) *ruleNode {
			a := w.cluster(2, 3)[0]
			a.cut = true
			a.restart()
			return a
		}, neither, false},
		{"opening: won, RECORD not accepted", func(w *ruleWorld) *ruleNode {
			a := w.cluster(2, 3)[0]
			w.run(2 * ruleNT)
			w.lose = kindsOf(msgRecord)
			a.core.vote.current.ID++ // its own vote does not accept either
			a.restart()
			w.until("won", func() bool { return a.core.lead != nil })
			return a
		}, holds, false},
		{"standing again under its old epoch", func(w *ruleWorld) *ruleNode {
			a := w.cluster(2, 3)[0]
			w.run(2 * ruleNT)
			w.lose = kindsOf(msgVote)
			a.command(func(s *state, now time.Duration, id uint64) output { return s.bumpEpoch(now, id) })
			w.run(ruleNT / 10)
			require.NotNil(w.t, a.core.stand)
			return a
		}, serves, true},
		{"frozen", func(w *ruleWorld) *ruleNode {
			ns := w.cluster(2, 3)
			ns[0].handOff(1, "5", ns[1].shard())
			return ns[0]
		}, holds, true},
		{"MOVE under way", func(w *ruleWorld) *ruleNode {
			ns := w.cluster(2, 3)
			w.lose = kindsOf(msgMove)
			ns[0].handOff(1, "5", ShardID{})
			ns[0].frozen(1, 1, false)
			return ns[0]
		}, holds, true},
		{"handed over", func(w *ruleWorld) *ruleNode {
			ns := w.cluster(2, 3)
			ns[0].handOff(1, "5", ShardID{})
			ns[0].frozen(1, 1, false)
			w.deliver()
			return ns[0]
		}, neither, true},
		{"a slot learnt late", func(w *ruleWorld) *ruleNode {
			ns := w.cluster(2, 3)
			w.run(2 * ruleNT)
			w.lose = kindsOf(msgVote)
			ns[1].gets(ns[2], &updateMsg{Slots: slotRuns{Shards: []ShardID{ns[1].shard()}, Runs: []slotRun{{5, 5, 0, 2}}}})
			return ns[1]
		}, neither, true},
		{"deposed", func(w *ruleWorld) *ruleNode {
			ns := w.cluster(2, 3)
			ns[0].gets(ns[1], &updateMsg{Shards: []shardRow{{ns[0].shard(), Epoch{9, false, NodeID{0xee}}}}})
			return ns[0]
		}, neither, false},
		{"forgotten", func(w *ruleWorld) *ruleNode {
			a := w.cluster(2, 3)[0]
			a.step(func(s *state, now time.Duration) output {
				s.begin(now)
				s.setPeer(s.self, pushNothing, func(e *peerEntry) { e.State, e.Version = forgotten, e.Version+1 })
				return s.end()
			})
			return a
		}, neither, false},
		{"a disk that has failed", func(w *ruleWorld) *ruleNode {
			a := w.cluster(2, 3)[0]
			a.step(func(s *state, now time.Duration) output { return s.saveFailed(now, errors.New("full")) })
			return a
		}, neither, false},
	} {
		w := newRules(t)
		n := row.make(w)
		got := neither
		switch {
		case n.serves(5):
			got = serves
		case n.core.serve.hold.Contains(5) && w.now < max(n.core.servesUntil(), w.now+1):
			got = holds
		}
		if got != row.want {
			t.Errorf("%s: %s, want %s", row.name, got, row.want)
		}
		if may := n.core.mayReply(n.core.serve.reign, w.now); may != row.may {
			t.Errorf("%s: may reply %v, want %v", row.name, may, row.may)
		}
		if n.core.serve.slots.Contains(5) && n.core.serve.hold.Contains(5) {
			t.Errorf("%s: serves and holds", row.name)
		}
	}
}

// What ran in an epoch may be acknowledged in that epoch alone.
func TestReignEndsWithTheEpoch(t *testing.T) {
	for _, row := range []struct {
		name string
		do   func(w *ruleWorld, ns []*ruleNode)
		same bool
	}{
		{"nothing", func(w *ruleWorld, ns []*ruleNode) {}, true},
		{"time under its lease", func(w *ruleWorld, ns []*ruleNode) { w.run(5 * ruleNT) }, true},
		{"a slot comes and goes", func(w *ruleWorld, ns []*ruleNode) {
			w.settle(ns[0].setSlots("9000", ns[0]))
			w.settle(ns[0].setSlots("9000", ns[1]))
		}, true},
		{"a hand-over is cancelled", func(w *ruleWorld, ns []*ruleNode) {
			ns[0].handOff(1, "5", ns[1].shard())
			ns[0].thaw(1)
		}, true},
		{"the lease is lost and reached again", func(w *ruleWorld, ns []*ruleNode) {
			ns[0].unleased()
			w.run(ruleNT / 5)
		}, true},
		{"another epoch of its own", func(w *ruleWorld, ns []*ruleNode) {
			w.settle(ns[0].command(func(s *state, now time.Duration, id uint64) output { return s.bumpEpoch(now, id) }))
		}, false},
		{"a takeover", func(w *ruleWorld, ns []*ruleNode) {
			ns[0].unleased()
			ns[0].takeover()
			w.run(2 * ruleNT)
		}, false},
		{"a change of voters", func(w *ruleWorld, ns []*ruleNode) {
			ns[0].forget(ns[2].core.id, false)
			w.until("changed", func() bool { return ns[0].voters() == "abd" })
			w.run(ruleNT)
		}, true},
	} {
		w := newRules(t)
		ns := w.cluster(2, 4)
		w.run(2 * ruleNT)
		reign, version := ns[0].core.serve.reign, ns[0].core.serve.version
		row.do(w, ns)
		require.True(t, ns[0].serves(5), row.name)
		if same := ns[0].core.mayReply(reign, w.now); same != row.same {
			t.Errorf("%s: may reply %v, want %v", row.name, same, row.same)
		}
		if !row.same && ns[0].core.serve.version == version {
			t.Errorf("%s: no other version is published", row.name)
		}
	}
}
