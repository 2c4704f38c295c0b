package slotmesh

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func (n *ruleNode) migrating(slot Slot, to NodeID) *ruleReply {
	n.w.t.Helper()
	return n.command(func(s *state, now time.Duration, id uint64) output { return s.setSlotMigrating(now, id, slot, to) })
}

func (n *ruleNode) importing(slot Slot, from NodeID) *ruleReply {
	n.w.t.Helper()
	return n.command(func(s *state, now time.Duration, id uint64) output { return s.setSlotImporting(now, id, slot, from) })
}

func (n *ruleNode) stable(slot Slot) *ruleReply {
	n.w.t.Helper()
	return n.command(func(s *state, now time.Duration, id uint64) output { return s.setSlotStable(now, id, slot) })
}

// marks is n's marks as Redis prints them, with letters for ids.
func (n *ruleNode) marks() string {
	var out []string
	for _, m := range n.core.publish().Marks() {
		arrow := "->-"
		if m.Importing {
			arrow = "-<-"
		}
		out = append(out, SlotRange{m.Slot, m.Slot}.String()+arrow+n.w.letter(m.Node))
	}
	return strings.Join(out, " ")
}

// What SETSLOT MIGRATING, IMPORTING and STABLE answer, in the words of Redis.
func TestMarkCommands(t *testing.T) {
	t.Parallel()
	unknown := NodeID{0xee}
	for _, row := range []struct {
		name string
		do   func(a, b, c, d *ruleNode) *ruleReply // a owns 0-8191, b the rest, c and d nothing
		want string
		mark string // of who was asked
	}{
		{"migrating", func(a, b, c, d *ruleNode) *ruleReply { return a.migrating(5, b.core.id) }, "OK", "5->-b"},
		{"migrating, to a node without slots", func(a, b, c, d *ruleNode) *ruleReply { return a.migrating(5, d.core.id) }, "OK", "5->-d"},
		{"migrating, to itself", func(a, b, c, d *ruleNode) *ruleReply { return a.migrating(5, a.core.id) }, "OK", "5->-a"},
		{"migrating, another one's slot", func(a, b, c, d *ruleNode) *ruleReply { return a.migrating(9000, b.core.id) }, "ERR I'm not the owner of hash slot 9000", ""},
		{"migrating, nobody's slot", func(a, b, c, d *ruleNode) *ruleReply {
			a.w.settle(a.delSlots("5"))
			return a.migrating(5, b.core.id)
		}, "ERR I'm not the owner of hash slot 5", ""},
		{"migrating, to nobody that is known", func(a, b, c, d *ruleNode) *ruleReply { return a.migrating(5, unknown) }, "ERR I don't know about node " + unknown.String(), ""},
		{"migrating, to a node that was forgotten", func(a, b, c, d *ruleNode) *ruleReply {
			a.forget(d.core.id, false)
			a.w.until("forgotten", func() bool { return a.knows(d).State == forgotten })
			return a.migrating(5, d.core.id)
		}, "ERR I don't know about node d", ""},
		{"migrating, to a node that leads nothing", func(a, b, c, d *ruleNode) *ruleReply {
			a.core.setShard(d.shard(), Epoch{99, false, c.core.id}, pushNothing)
			return a.migrating(5, d.core.id)
		}, "ERR Target node is not a master", ""},
		{"migrating, twice", func(a, b, c, d *ruleNode) *ruleReply {
			a.migrating(5, b.core.id)
			return a.migrating(5, c.core.id)
		}, "OK", "5->-c"},
		{"migrating, while it is handed over", func(a, b, c, d *ruleNode) *ruleReply {
			a.handOff(1, "5", d.shard())
			return a.migrating(5, b.core.id)
		}, "TRYAGAIN slot 5 is being handed over", ""},
		{"importing", func(a, b, c, d *ruleNode) *ruleReply { return b.importing(5, a.core.id) }, "OK", "5-<-a"},
		{"importing, to a node without slots", func(a, b, c, d *ruleNode) *ruleReply { return d.importing(5, a.core.id) }, "OK", "5-<-a"},
		{"importing, from another than the owner", func(a, b, c, d *ruleNode) *ruleReply { return b.importing(5, c.core.id) }, "OK", "5-<-c"},
		{"importing, nobody's slot", func(a, b, c, d *ruleNode) *ruleReply {
			a.w.settle(a.delSlots("5"))
			return b.importing(5, a.core.id)
		}, "OK", "5-<-a"},
		{"importing, its own slot", func(a, b, c, d *ruleNode) *ruleReply { return a.importing(5, b.core.id) }, "ERR I'm already the owner of hash slot 5", ""},
		{"importing, from nobody that is known", func(a, b, c, d *ruleNode) *ruleReply { return b.importing(5, unknown) }, "ERR I don't know about node " + unknown.String(), ""},
		{"importing, while its data comes", func(a, b, c, d *ruleNode) *ruleReply {
			a.handOff(1, "5", d.shard())
			a.frozen(1, 7, false)
			a.w.deliver()
			return d.importing(5, a.core.id)
		}, "TRYAGAIN slot 5 is being handed over to this node", ""},
		{"stable", func(a, b, c, d *ruleNode) *ruleReply {
			a.migrating(6, b.core.id)
			a.migrating(5, b.core.id)
			return a.stable(5)
		}, "OK", "6->-b"},
		{"stable, of an imported slot", func(a, b, c, d *ruleNode) *ruleReply {
			b.importing(5, a.core.id)
			return b.stable(5)
		}, "OK", ""},
		{"stable, without a mark", func(a, b, c, d *ruleNode) *ruleReply { return a.stable(9000) }, "OK", ""},
		{"out of range", func(a, b, c, d *ruleNode) *ruleReply { return a.stable(NumSlots) }, "ERR Invalid or out of range slot 16384, expected 0-16383", ""},
		{"out of range, migrating", func(a, b, c, d *ruleNode) *ruleReply { return a.migrating(NumSlots, unknown) }, "ERR Invalid or out of range slot 16384, expected 0-16383", ""},
		{"asked of a replica", func(a, b, c, d *ruleNode) *ruleReply {
			a.core.setShard(a.shard(), Epoch{99, false, c.core.id}, pushNothing)
			return a.stable(5)
		}, "ERR Please use SETSLOT only with masters.", ""},
		{"asked of a forgotten node", func(a, b, c, d *ruleNode) *ruleReply {
			a.migrating(5, b.core.id)
			a.step(func(s *state, now time.Duration) output {
				s.begin(now)
				s.setPeer(s.self, pushNothing, func(e *peerEntry) { e.State, e.Version = forgotten, e.Version+1 })
				return s.end()
			})
			return a.stable(5)
		}, "CLUSTERDOWN this node has been forgotten by its cluster", ""},
	} {
		w := newRules(t)
		ns := w.cluster(2, 4)
		w.run(2 * ruleNT)
		r := row.do(ns[0], ns[1], ns[2], ns[3])
		got := strings.ReplaceAll(r.String(), ns[3].core.id.String(), "d")
		asked := ns[0]
		for _, n := range ns {
			if len(n.replies) > 0 && n.replies[n.commands] == r {
				asked = n
			}
		}
		if got != row.want || asked.marks() != row.mark {
			t.Errorf("%s: %s, marks %q, want %s, %q", row.name, got, asked.marks(), row.want, row.mark)
		}
	}
}

// A mark is answered before it is on disk: until then it is not used, and nothing
// else waits for it. Taking it off is answered once that is on disk.
func TestMarksAreSavedBesideTheirAnswer(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	ns := w.cluster(2, 4)
	a, b := ns[0], ns[1]
	a.told = nil
	a.slowDisk = true
	require.Equal(t, "OK", a.migrating(5, b.core.id).String())
	told := toldOf[markTell](a)
	require.Len(t, told, 1)
	require.Equal(t, a.core.saveSeq, told[0].after)
	require.Greater(t, told[0].after, a.core.savedSeq, "it says for which save it waits")
	require.Zero(t, a.core.unsaved(), "nothing else does")
	require.Equal(t, "5->-b", a.marks())
	r := a.stable(5)
	require.Equal(t, "no reply", r.String())
	require.Empty(t, toldOf[markTell](a))
	a.flush()
	a.slowDisk = false
	require.Equal(t, "OK", r.String())
	require.Equal(t, []markTell{{slot: 5}}, toldOf[markTell](a))

	// A crash may undo what was answered.
	a.slowDisk = true
	require.Equal(t, "OK", a.migrating(5, b.core.id).String())
	a.slowDisk = false
	a.restart()
	require.Empty(t, a.marks())
}

// Marks come back after a crash.
func TestMarksAreSaved(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	ns := w.cluster(2, 4)
	a, b := ns[0], ns[1]
	for _, n := range ns {
		n.told = nil
	}
	require.Equal(t, "OK", a.migrating(5, b.core.id).String())
	require.Equal(t, []markTell{{slot: 5, mark: &SlotMark{Slot: 5, Node: b.core.id}, after: a.core.saveSeq}}, toldOf[markTell](a))
	a.migrating(300, b.core.id)
	a.migrating(301, b.core.id)
	a.stable(300)
	b.importing(5, a.core.id)
	a.restart()
	b.restart()
	require.Equal(t, "5->-b 301->-b", a.marks())
	require.Equal(t, "5-<-a", b.marks())
	require.Len(t, toldOf[markTell](a), 2, "the driver of the new process hears of them")
	a.stable(301)
	a.stable(5)
	for k := range a.disk {
		require.NotEqual(t, cellMarks, k.kind, "nothing is left of them")
	}
}

// What ends a mark, and what does not.
func TestMarksEndWhenTheSlotChangesHands(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name string
		do   func(t *testing.T, w *ruleWorld, a, b, c, d *ruleNode)
		a, d string
		kept bool // d keeps what it has of slot 5
	}{
		{"nothing", func(t *testing.T, w *ruleWorld, a, b, c, d *ruleNode) {}, "5->-d", "5-<-a", false},
		{"a refusal: keys are left", func(t *testing.T, w *ruleWorld, a, b, c, d *ruleNode) {
			require.Equal(t, "ERR Can't assign hashslot 5 to a different node while I still hold keys for this hash slot.", w.settle(d.setSlots("5", d), a))
			require.True(t, a.serves(5))
		}, "5->-d", "5-<-a", false},
		{"given to the importing node, asked of the target", func(t *testing.T, w *ruleWorld, a, b, c, d *ruleNode) {
			require.Equal(t, "OK", w.settle(d.setSlots("5", d)))
			require.Equal(t, "OK", w.settle(a.setSlots("5", d)), "then of the source")
			require.Equal(t, "OK", w.settle(c.setSlots("5", d)), "then of the others")
			require.True(t, d.serves(5))
		}, "", "", true},
		{"given to the importing node, asked of the source", func(t *testing.T, w *ruleWorld, a, b, c, d *ruleNode) {
			require.Equal(t, "OK", w.settle(a.setSlots("5", d)))
		}, "", "", true},
		{"given to a third one", func(t *testing.T, w *ruleWorld, a, b, c, d *ruleNode) {
			require.Equal(t, "OK", w.settle(a.setSlots("5", b)))
		}, "", "5-<-a", false},
		{"released", func(t *testing.T, w *ruleWorld, a, b, c, d *ruleNode) {
			require.Equal(t, "OK", w.settle(a.delSlots("5")))
		}, "", "5-<-a", false},
		{"released and assigned to the importing node", func(t *testing.T, w *ruleWorld, a, b, c, d *ruleNode) {
			require.Equal(t, "OK", w.settle(a.delSlots("5")))
			require.Equal(t, "OK", w.settle(d.addSlots("5")))
		}, "", "", true},
		{"the owner dies, the slot is assigned to the importing node", func(t *testing.T, w *ruleWorld, a, b, c, d *ruleNode) {
			a.crash()
			w.until("failed", func() bool { return d.core.shardFailed(a.shard()) })
			require.Equal(t, "OK", w.settle(d.setSlots("5", d)))
			a.restart()
			w.until("calm", w.calm)
		}, "", "", true},
		{"given to the owner, who has it", func(t *testing.T, w *ruleWorld, a, b, c, d *ruleNode) {
			require.Equal(t, "OK", w.settle(d.setSlots("5", a)))
		}, "5->-d", "5-<-a", false},
		{"the owner wins its shard anew", func(t *testing.T, w *ruleWorld, a, b, c, d *ruleNode) {
			a.restart()
			w.until("calm", w.calm)
		}, "5->-d", "5-<-a", false},
		{"the target is forgotten", func(t *testing.T, w *ruleWorld, a, b, c, d *ruleNode) {
			a.forget(d.core.id, false)
			w.until("forgotten", func() bool { return a.knows(d).State == forgotten && d.core.self.State == forgotten })
		}, "", "", false},
		{"the source is forgotten", func(t *testing.T, w *ruleWorld, a, b, c, d *ruleNode) {
			a.crash()
			d.forget(a.core.id, true)
			w.until("forgotten", func() bool { return d.knows(a).State == forgotten })
		}, "5->-d", "", false},
		{"the target is reset", func(t *testing.T, w *ruleWorld, a, b, c, d *ruleNode) {
			d.reset(false, false)
			w.until("reset", func() bool { return d.core.cluster.IsZero() })
			w.run(ruleNT)
		}, "", "", false},
	} {
		w := newRules(t)
		ns := w.cluster(2, 4)
		a, b, c, d := ns[0], ns[1], ns[2], ns[3]
		w.run(2 * ruleNT)
		require.Equal(t, "OK", d.importing(5, a.core.id).String())
		require.Equal(t, "OK", a.migrating(5, d.core.id).String())
		d.told = nil
		row.do(t, w, a, b, c, d)
		kept := false
		for _, x := range toldOf[adoptTell](d) {
			kept = kept || x.kept.Contains(5)
		}
		if a.marks() != row.a || d.marks() != row.d || kept != row.kept {
			t.Errorf("%s: marks %q and %q, kept %v, want %q, %q, %v", row.name, a.marks(), d.marks(), kept, row.a, row.d, row.kept)
		}
	}
}

// A slot has a mark or a hand-over with its data, not both; one in place ends
// the mark.
func TestAMarkedSlotIsHandedOverInPlaceAlone(t *testing.T) {
	t.Parallel()
	m := newMoving(t)
	m.a.migrating(5, m.d.core.id)
	r := ruleReply{done: true, err: m.give("4-6", m.d.shard())}
	require.Equal(t, "ERR slot 5 is marked MIGRATING or IMPORTING: move its keys, or take the mark off with SETSLOT STABLE", r.String())
	m.a.handOff(1, "5", m.d.shard())
	require.Equal(t, []jobTell{{1, false}}, toldOf[jobTell](m.a))
	require.Equal(t, "OK", m.w.settle(m.b.setSlots("4-6", m.d)))
	require.Empty(t, m.a.marks())
}

// What a node still has of a slot that has left it is shown again only where
// nobody has served the slot since.
func TestWhatImportingFindsOfASlotThatHasLeft(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name  string
		leave func(m *moving)
		want  string
		stale bool
	}{
		{"it never had it", func(m *moving) {}, "OK", false},
		{"released to nobody", func(m *moving) { m.w.settle(m.a.delSlots("5")) }, "OK", false},
		{"gone with its data", func(m *moving) {
			m.w.lose = func(x ruleMail) bool { return x.from == m.d && x.to == m.a && x.msg.kind() == msgHeartbeat }
			m.hold()
		}, "OK", true},
		{"gone by hearsay", func(m *moving) {
			m.w.lose = kindsOf(msgVote, msgRecords)
			m.a.gets(m.b, &updateMsg{Slots: slotRuns{Shards: []ShardID{m.d.shard()}, Runs: []slotRun{{5, 5, 0, 2}}}})
		}, "TRYAGAIN slot 5 has left this node by hearsay: its keys stay until a majority of the voters has confirmed it", false},
	} {
		m := newMoving(t)
		row.leave(m)
		asked, slot := m.a, Slot(5)
		if row.name == "it never had it" {
			asked = m.d
		}
		asked.told = nil
		r := asked.importing(slot, m.d.core.id)
		stale := false
		for _, x := range toldOf[markTell](asked) {
			stale = stale || x.stale
		}
		if r.String() != row.want || stale != row.stale {
			t.Errorf("%s: %s, stale %v, want %s, %v", row.name, r.String(), stale, row.want, row.stale)
		}
		m.w.lose = nil
		m.w.run(3 * ruleNT)
		if row.want == "OK" {
			require.Empty(t, toldOf[dropTell](asked), "%s: what is imported is not dropped", row.name)
		}
	}
}

// Marks work in a group that has not formed, wait for a START to be decided, and
// outlive the formation.
func TestMarksOfAGroupThatForms(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	ns := w.group(2)
	a, b := ns[0], ns[1]
	a.addSlots("0-5")
	w.run(ruleNT)
	require.Equal(t, "OK", a.migrating(5, b.core.id).String())
	require.Equal(t, "OK", b.importing(5, a.core.id).String())
	require.Equal(t, "OK", a.migrating(4, b.core.id).String())
	w.settle(b.setSlots("4", b))
	w.run(ruleNT)
	require.Equal(t, "5->-b", a.marks(), "what is not its own is not migrating")

	w.lose = kindsOf(msgStarted)
	b.addSlots("6-16383")
	w.until("holds", func() bool { return a.core.form.holds() })
	r := a.migrating(3, b.core.id)
	require.Equal(t, "no reply", r.String())
	w.lose = nil
	w.until("calm", w.calm)
	require.Equal(t, "OK", r.String())
	require.Equal(t, "3->-b 5->-b", a.marks())
	require.Equal(t, "5-<-a", b.marks())
	require.Equal(t, "OK", w.settle(b.setSlots("5", b)))
	require.Equal(t, "3->-b", a.marks())
	require.Empty(t, b.marks())
}

func TestANodeThatJoinsLeavesItsMarksBehind(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	w.cluster(2, 3)
	d := w.boot()
	d.addSlots("5")
	d.migrating(5, d.core.id)
	d.importing(6, d.core.id)
	require.Equal(t, "5->-d 6-<-d", d.marks())
	w.settle(d.delSlots("5"))
	d.meet(w.nodes[0])
	w.until("joined", func() bool { return !d.core.cluster.IsZero() })
	require.Empty(t, d.marks())
}

// Replicas know the marks of their shard by its log, and use none; who leads it goes on with
// them. A mark names whoever leads the shard now of the node that it named.
func TestMarksInTheLog(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	a, b, c, d, e := w.replicated()
	require.Equal(t, "OK", w.settle(a.delSlots("6")))
	require.Equal(t, "OK", w.settle(d.addSlots("6")))
	require.Equal(t, "OK", a.migrating(5, d.core.id).String())
	require.Equal(t, "OK", a.importing(6, d.core.id).String())
	log := func(x *ruleNode, slot Slot, m *SlotMark) {
		x.step(func(s *state, now time.Duration) output { return s.followMark(now, slot, m) })
	}
	for _, x := range []*ruleNode{b, c} {
		log(x, 5, &SlotMark{5, d.core.id, false})
		log(x, 6, &SlotMark{6, d.core.id, true})
		log(x, 7, &SlotMark{7, d.core.id, false})
		log(x, 7, nil)
		require.Empty(t, x.marks())
		require.Empty(t, toldOf[markTell](x))
		importing := x.core.importing()
		require.True(t, importing.Empty(), "it serves nothing after ASKING")
	}
	a.crash()
	c.restart()
	require.Len(t, c.core.marks, 2, "they are saved")
	require.Empty(t, toldOf[markTell](c))
	heir := b // c's store is another one
	w.until("taken over", func() bool { return heir.core.lead != nil && heir.core.lead.opened })
	require.Equal(t, "5->-d 6-<-d", heir.marks())
	told := toldOf[markTell](heir)
	require.Len(t, told, 2)
	for _, m := range told {
		require.True(t, m.known && m.mark != nil, "the log has them already")
	}
	a.restart()
	w.until("it has been replaced", func() bool { return a.core.table.primary(a.shard()) == heir.core.id })
	require.Empty(t, a.marks())
	require.Len(t, a.core.marks, 2, "its log has them as yet")
	a.step(func(s *state, now time.Duration) output {
		out, _ := s.hasReplaced(now, s.self.Store, map[Slot]SlotMark{6: {6, d.core.id, true}, 8: {8, d.core.id, false}})
		return out
	})
	require.Equal(t, map[Slot]SlotMark{6: {6, d.core.id, true}, 8: {8, d.core.id, false}}, a.core.marks, "those of what it has copied")

	heir.told = nil
	e.step(func(s *state, now time.Duration) output {
		s.begin(now)
		s.becomeReplica(d.shard())
		return s.end()
	})
	w.until("of d's shard", func() bool { return heir.knows(e).Shard == d.shard() })
	heir.step(func(s *state, now time.Duration) output {
		s.begin(now)
		s.setShard(d.shard(), Epoch{99, false, e.core.id}, pushNothing)
		return s.end()
	})
	require.Equal(t, "5->-e 6-<-e", heir.marks(), "e has taken d's place")
	for _, m := range toldOf[markTell](heir) {
		require.False(t, m.known, "it is to be logged")
	}

	c.step(func(s *state, now time.Duration) output {
		s.begin(now)
		s.becomeReplica(e.shard())
		return s.end()
	})
	require.Empty(t, c.core.marks, "they are of a log that is not its own any more")
}
