package slotmesh

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// memory is all that a node must remember, as a text that shows differences.
func memory(s *state) map[string]string {
	m := map[string]string{
		"identity":   fmt.Sprint(s.id, s.key, s.cluster, s.starts),
		"promise":    fmt.Sprint(s.promise),
		"table":      fmt.Sprintf("%x %x", s.table.sum, s.table.buckets),
		"membership": fmt.Sprintf("%x", peersWithoutSilent(s)),
		"voters":     fmt.Sprint(s.table.voters),
		"votes":      fmt.Sprint(s.allVotes()),
		"stop":       fmt.Sprint(s.vote.stop),
		"START": fmt.Sprint(s.vote.startValue == nil, s.form.value == nil, s.savedStart() == nil || s.savedStart().ID == 0,
			startText(s.savedStart()), s.vote.startBallot),
		"START in force": startText(s.vote.current),
		"used":           fmt.Sprint(slices.Sorted(maps.Values(s.used)), len(s.used)),
		"epoch":          fmt.Sprint(s.epochHigh),
		"marks":          fmt.Sprint(s.sortedMarks()),
	}
	if s.savedStart() == nil {
		m["START"] = "" // the ballot of none is nothing
	}
	return m
}

func startText(v *startValue) string {
	if v == nil {
		return "none"
	}
	b, err := encodeValue(v)
	if err != nil {
		panic(err)
	}
	return fmt.Sprintf("%x", b)
}

func peersWithoutSilent(s *state) (entries []string) {
	for _, p := range s.peers.ordered {
		entries = append(entries, fmt.Sprintf("%+v", p.peerEntry))
	}
	return entries
}

func cellsOf(disk map[cellKey][]byte) []cell {
	var cells []cell
	for _, k := range slices.SortedFunc(maps.Keys(disk), cellKey.compare) {
		cells = append(cells, cell{k, disk[k]})
	}
	return cells
}

// What is saved comes back, whatever a node has lived through.
func TestWhatIsSavedComesBack(t *testing.T) {
	t.Parallel()
	seen := map[cellKind]bool{}
	for _, row := range []struct {
		name string
		live func(w *ruleWorld)
	}{
		{"new", func(w *ruleWorld) { w.boot() }},
		{"in a group", func(w *ruleWorld) { w.group(3)[0].addSlots("5-10") }},
		{"a former that holds START", func(w *ruleWorld) {
			ns := w.owners(2)
			w.lose = kindsOf(msgStarted)
			w.run(2 * ruleNT)
			require.True(w.t, ns[0].core.form.holds() && ns[1].core.form.holds())
		}},
		{"in a cluster", func(w *ruleWorld) { w.cluster(2, 4); w.run(ruleNT) }},
		{"after an election, a hand-over and an operation", func(w *ruleWorld) {
			ns := w.cluster(2, 4)
			w.run(2 * ruleNT)
			w.settle(ns[0].command(func(s *state, now time.Duration, id uint64) output { return s.bumpEpoch(now, id) }))
			w.settle(ns[0].setSlots("5-300", ns[3]))
			w.settle(ns[0].delSlots("400"))
			w.settle(ns[2].addSlots("400"))
			ns[0].migrating(700, ns[1].core.id)
			ns[0].migrating(701, ns[1].core.id)
			ns[2].importing(300, ns[3].core.id)
			ns[0].stable(701)
		}},
		{"in the middle of an election and a hand-over", func(w *ruleWorld) {
			ns := w.cluster(2, 4)
			w.run(2 * ruleNT)
			w.lose = kindsOf(msgRecord, msgAccept)
			ns[0].command(func(s *state, now time.Duration, id uint64) output { return s.bumpEpoch(now, id) })
			ns[1].handOff(1, "9000-9400", ns[3].shard())
			ns[1].frozen(1, 7, false)
			w.deliver()
			ns[3].stageHeld(1, 7)
			w.run(ruleNT / 5)
		}},
		{"stopped, with a START that is not decided", func(w *ruleWorld) {
			ns := w.cluster(1, 4)
			w.run(2 * ruleNT)
			w.lose = kindsOf(msgStarted)
			ns[0].forget(ns[1].core.id, false)
			w.until("saved", func() bool { return ns[2].core.vote.startValue != nil && ns[3].core.vote.startValue != nil })
		}},
		{"after the voters have changed", func(w *ruleWorld) {
			ns := w.cluster(1, 4)
			ns[0].forget(ns[1].core.id, false)
			w.until("changed", func() bool { return ns[3].core.active() })
			w.run(ruleNT)
		}},
		{"with imposed voters", func(w *ruleWorld) {
			ns := w.cluster(1, 4)
			ns[1].forceVoters(ns[1], ns[2], ns[3])
			w.run(3 * ruleNT)
		}},
		{"after a takeover", func(w *ruleWorld) {
			ns := w.cluster(1, 3)
			ns[0].unleased()
			ns[0].takeover()
			w.run(2 * ruleNT)
		}},
		{"after a RESET", func(w *ruleWorld) {
			ns := w.cluster(1, 4)
			ns[3].reset(true, false)
			w.run(ruleNT)
			require.True(w.t, ns[3].core.cluster.IsZero())
		}},
	} {
		w := newRules(t)
		row.live(w)
		w.deliver()
		for _, n := range w.nodes {
			require.Equal(t, n.core.saveSeq, n.core.savedSeq, "%s: %s", row.name, n.name)
			for k := range n.disk {
				seen[k.kind] = true
			}
			s, err := newState(n.cfg, cellsOf(n.disk))
			require.NoError(t, err, "%s: %s", row.name, n.name)
			was, is := memory(n.core), memory(s)
			for what, text := range was {
				if is[what] != text {
					t.Errorf("%s: %s of %s came back as\n%.300s\nwas\n%.300s", row.name, what, n.name, is[what], text)
				}
			}
		}
	}
	for k := cellNode; k <= cellMarks; k++ {
		if !seen[k] {
			t.Errorf("no node has saved a cell of kind %d", k)
		}
	}
}

// What a node was before a RESET is gone from its disk.
func TestResetLeavesNothingOnDisk(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	ns := w.cluster(2, 4)
	d := ns[3]
	w.run(2 * ruleNT)
	w.settle(ns[0].setSlots("5-300", d))
	w.settle(d.setSlots("5-300", ns[0]))
	require.Greater(t, len(d.disk), 10)
	d.reset(true, false)
	w.until("reset", func() bool { return d.core.cluster.IsZero() })
	kinds := map[cellKind]int{}
	for k := range d.disk {
		kinds[k.kind]++
	}
	require.Equal(t, 1, kinds[cellPeer])
	require.Equal(t, 1, kinds[cellShard])
	for _, k := range []cellKind{cellSlots, cellVoters, cellAccepted, cellOpened, cellStart, cellCurrent, cellVote, cellUsed, cellMarks} {
		require.Zero(t, kinds[k], "kind %d", k)
	}
}

// A step that changes things saves each cell once, in one batch, in order.
func TestStepSavesEachCellOnce(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	a := w.boot()
	a.slowDisk = true
	a.addSlots("0-5 300 16383")
	require.Len(t, a.saving, 1)
	cells := a.saving[0].cells
	require.True(t, ascending(cells, func(x, y cell) int { return x.key.compare(y.key) }))
	var pages []uint8
	for _, c := range cells {
		if c.key.kind == cellSlots {
			pages = append(pages, c.key.page)
		}
	}
	require.Equal(t, []uint8{0, 1, 63}, pages)
	a.flush()
	a.delSlots("300")
	require.Len(t, a.saving, 1)
	for _, c := range a.saving[0].cells {
		require.Equal(t, cellKey{kind: cellSlots, page: 1}, c.key)
		require.NotNil(t, c.value, "the move stays")
	}
}

// A volatile node saves nothing and waits for nothing.
func TestVolatileNodeSavesNothing(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	a := w.boot(func(c *coreConfig) { c.alone, c.volatile = true, true })
	w.run(ruleNT)
	require.Empty(t, a.disk)
	require.True(t, a.serves(5))
	b := w.boot(func(c *coreConfig) { c.volatile = true })
	b.meet(a)
	w.until("calm", w.calm)
}

// A file that does not hold what a node has saved is refused, and says where.
func TestSavedStateThatIsBadIsRefused(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	ns := w.owners(2)
	w.lose = kindsOf(msgStarted)
	w.run(2 * ruleNT)
	former := cellsOf(ns[0].disk)

	w = newRules(t)
	ns = w.cluster(1, 4)
	w.run(2 * ruleNT)
	w.settle(ns[0].command(func(s *state, now time.Duration, id uint64) output { return s.bumpEpoch(now, id) }))
	ns[0].migrating(5, ns[1].core.id)
	w.lose = kindsOf(msgStarted)
	ns[0].forget(ns[1].core.id, false)
	w.until("saved", func() bool { return ns[2].core.vote.startValue != nil })
	voter := cellsOf(ns[0].disk)

	load := func(cells []cell) string {
		_, err := newState(ns[0].cfg, cells)
		if err == nil {
			return ""
		}
		return err.Error()
	}
	require.Empty(t, load(former))
	require.Empty(t, load(voter))
	seen := map[cellKind]int{}
	for _, cells := range [][]cell{former, voter} {
		for i, c := range cells {
			if seen[c.key.kind]++; seen[c.key.kind] > 3 {
				continue // the pages of a slot map are alike
			}
			where := fmt.Sprintf("slotmesh: saved state, cell %d/%d/%x: ", c.key.kind, c.key.page, c.key.id)
			for _, row := range []struct {
				name  string
				value []byte
			}{
				{"cut", c.value[:len(c.value)-1]},
				{"empty", []byte{}},
				{"longer", append(slices.Clone(c.value), 0)},
				{"of another type", []byte{0x93, 0x93, 1, 2, 3, 4}},
			} {
				bad := slices.Clone(cells)
				bad[i].value = row.value
				require.Contains(t, load(bad), where, "%s value of kind %d", row.name, c.key.kind)
			}
			twice := append(slices.Clone(cells), c)
			require.Contains(t, load(twice), "twice", "kind %d", c.key.kind)
		}
	}
	for k := cellNode; k <= cellMarks; k++ {
		require.NotZero(t, seen[k], "kind %d", k)
	}

	encode := func(v any) []byte {
		b, err := encodeValue(v)
		require.NoError(t, err)
		return b
	}
	self := ns[0].core.self.peerEntry
	for _, row := range []struct {
		name string
		c    cell
		want string
	}{
		{"a kind to come", cell{cellKey{kind: cellMarks + 1}, []byte{1}}, "unknown kind, expected 1 to 15"},
		{"no kind", cell{cellKey{}, []byte{1}}, "unknown kind"},
		{"a promise with two records", cell{cellKey{kind: cellVote, id: [20]byte{9}}, encode(&voteCell{Records: make([]record, 2)})}, "2 records, expected at most one"},
		{"a member under the id of another", cell{cellKey{kind: cellPeer, id: [20]byte{9}}, encode(&self)}, "entry of node " + self.ID.String()},
		{"a mark beyond the slots", cell{cellKey{kind: cellMarks, page: 8}, encode(&marksCell{[]SlotMark{{Slot: NumSlots}}})}, "slot 16384, expected 0 to 16383"},
		{"two marks of a slot", cell{cellKey{kind: cellMarks, page: 9}, encode(&marksCell{[]SlotMark{{Slot: 5}, {Slot: 5, Importing: true}}})}, "slot 5 after 5"},
		{"a member in no state", cell{cellKey{kind: cellPeer, id: [20]byte{9}}, encode(&peerEntry{ID: NodeID{9}, State: 7})}, "state 7"},
	} {
		require.Contains(t, load(append(slices.Clone(voter), row.c)), row.want, row.name)
	}
	without := func(drop func(cellKey) bool) []cell {
		return slices.DeleteFunc(slices.Clone(voter), func(c cell) bool { return drop(c.key) })
	}
	const who = "slotmesh: saved state does not say who the node is"
	require.Equal(t, who, load(without(func(k cellKey) bool { return k.kind == cellNode })))
	require.Equal(t, who, load(without(func(k cellKey) bool { return k.kind == cellPeer && NodeID(k.id) == self.ID })))
	require.Contains(t, load([]cell{{cellKey{kind: cellVoters}, encode(&voterSet{})}}), "0 voters")
}

// What a node says to itself waits for its own disk, and is repeated: while that hangs
// the oldest is lost, and when it goes on so does the node.
func TestWhatANodeSaysToItselfIsBounded(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	a := w.cluster(3, 3)[0]
	a.slowDisk = true
	for range loopMax + 8 {
		a.step(func(s *state, now time.Duration) output {
			s.begin(now)
			s.mark(cellKey{kind: cellEpoch})
			s.postVoters(&getStartMsg{})
			return s.end()
		})
		require.LessOrEqual(t, len(a.core.loop), loopMax)
	}
	require.Len(t, a.core.loop, loopMax)
	a.slowDisk = false
	a.flush()
	require.Empty(t, a.core.loop)
	require.Equal(t, "OK", w.settle(a.command(func(s *state, now time.Duration, id uint64) output { return s.bumpEpoch(now, id) })))
}
