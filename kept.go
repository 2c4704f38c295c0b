package slotmesh

import (
	"fmt"
	"slices"
	"sync"
)

// What a store holds of slots that this node does not serve may be right when
// they come to be served here. Where the store outlives the process that has to
// be known to the next one, so it is saved beside the core's cells:
//
//	staged  all of a slot, as it will be under the move that brings it here, or what has
//	        come of it key by key; it is saved before the giver hears that the data is here
//	owned   the move under which a slot was served here last: if it has only been
//	        nobody's since, its keys are still right
const (
	cellStaged cellKind = 200 + iota // page
	cellOwned                        // page
	cellCopy                         // one; which copy of a shard a store that outlives the process holds
	cellLog                          // one; where that copy's log ended when the node was closed
)

// copyCell is the value of cellCopy: as long as its numbers are those that the
// store and the core name, the store holds all that this node has acknowledged as
// that member of that shard.
type copyCell struct {
	Shard ShardID
	Store uint64 // incarnation of the member
	Held  uint64 // store.Persistent's
}

func (*copyCell) check() error { return nil }

// logCell is the value of cellLog. The store is at this very point of the log, and
// not beyond: so it is written last of all when a node is closed, and has gone from
// the folder before the next start changes the store. Who starts after a crash has
// none. To resume at a point that the store has passed would be wrong where another
// member has led meanwhile: what the store has beyond it may be in no other log.
type logCell struct {
	Copy copyCell
	End  uint64
	Past history
}

func (c *logCell) check() error {
	if len(c.Past) > historyMax {
		return fmt.Errorf("a history of %d epochs, expected at most %d", len(c.Past), historyMax)
	}
	for i := range c.Past {
		if c.Past[i].After > c.End || i > 0 && c.Past[i].After < c.Past[i-1].After {
			return fmt.Errorf("an epoch of a history begins after %d, expected them ascending and at most %d", c.Past[i].After, c.End)
		}
	}
	return nil
}

// keptCell is the value of such a cell. Moves count within a cluster.
type keptCell struct {
	Cluster ClusterID
	Runs    moveRuns
}

func (c *keptCell) check() error { return c.Runs.check() }

// kept remembers which copies are right. Saves of it are few: one per group of
// slots that comes.
type kept struct {
	n      *node
	saving sync.Mutex // one save at a time, so that they keep their order

	mu       sync.Mutex // guards what follows
	moves    map[cellKind]map[Slot]uint64
	dirty    map[cellKey]struct{}
	cluster  ClusterID // as saved last
	released SlotSet   // were nobody's at the start, and this node's before
	copy     copyCell  // zero: there is none
	log      *logCell  // nil: the copy is at no known point
}

func newKept(n *node) *kept {
	return &kept{n: n, moves: map[cellKind]map[Slot]uint64{cellStaged: {}, cellOwned: {}}, dirty: map[cellKey]struct{}{}}
}

// load takes its own cells out of what was saved.
func (k *kept) load(cells []cell) (rest []cell, err error) {
	for _, c := range cells {
		switch c.key.kind {
		case cellCopy:
			err = loadChecked(c, func(v *copyCell) { k.copy = *v })
		case cellLog:
			err = loadChecked(c, func(v *logCell) { k.log = v })
		}
		if err != nil {
			return nil, fmt.Errorf("slotmesh: saved copy: %w", err)
		}
		if c.key.kind == cellCopy || c.key.kind == cellLog {
			continue
		}
		moves := k.moves[c.key.kind]
		if moves == nil {
			rest = append(rest, c)
			continue
		}
		err := loadChecked(c, func(v *keptCell) {
			k.cluster = v.Cluster
			v.Runs.each(func(slot Slot, move uint64) { moves[slot] = move })
		})
		if err != nil {
			return nil, fmt.Errorf("slotmesh: saved copies, page %d: %w", c.key.page, err)
		}
	}
	return rest, nil
}

// begin compares what was loaded with the table that was.
func (k *kept) begin(s *state) {
	if k.cluster != s.cluster {
		clear(k.moves[cellStaged])
		clear(k.moves[cellOwned])
	}
	k.cluster = s.cluster
	for slot, move := range k.moves[cellOwned] {
		if s.table.slots.at(slot) == (slotEntry{move: move + 1}) {
			k.released.Add(slot)
		}
	}
}

// holdsCopy notes which copy the store holds, for the next start; the zero value is
// none. It reports whether that is news.
func (k *kept) holdsCopy(c copyCell) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.copy == c {
		return false
	}
	k.copy = c
	k.dirty[cellKey{kind: cellCopy}] = struct{}{}
	return true
}

// takeLog is where the log of the copy ended that the store holds, if that is known.
// It is so once: from here on the store may go beyond it.
func (k *kept) takeLog() (*logCell, error) {
	l := k.log
	if l == nil {
		return nil, nil
	}
	k.log = nil
	if err := k.n.meta.save([]cell{{key: cellKey{kind: cellLog}}}); err != nil {
		return nil, err
	}
	if !k.n.holdsCopy() || l.Copy != k.copy {
		return nil, nil
	}
	return l, nil
}

// close saves, once nothing changes the store any more, what the next start may go
// on with.
func (k *kept) close(l *logCell) error {
	k.mu.Lock()
	if l != nil && l.Copy == k.copy {
		k.log = l
		k.dirty[cellKey{kind: cellLog}] = struct{}{}
	}
	k.mu.Unlock()
	return k.saveMoves()
}

// set notes a move of a slot; 0 is none.
func (k *kept) set(kind cellKind, slot Slot, move uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.setLocked(kind, slot, move)
}

func (k *kept) setLocked(kind cellKind, slot Slot, move uint64) {
	if k.moves[kind][slot] == move {
		return
	}
	if move == 0 {
		delete(k.moves[kind], slot)
	} else {
		k.moves[kind][slot] = move
	}
	k.dirty[cellKey{kind: kind, page: uint8(slot / pageSlots)}] = struct{}{}
}

// served notes under which moves slots are served here now, and returns those of
// which that was not known.
func (k *kept) served(slots *SlotSet, t *table) (news moveRuns) {
	k.mu.Lock()
	for slot := range slots.All() {
		if move := t.slots.at(slot).move; k.moves[cellOwned][slot] != move {
			k.setLocked(cellOwned, slot, move)
			news.add(slot, move)
		}
	}
	k.mu.Unlock()
	k.saveLater()
	return news
}

func (k *kept) at(kind cellKind, slot Slot) uint64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.moves[kind][slot]
}

// ownsAlready reports whether it would be nothing new that a slot is served here
// under a move.
func (k *kept) ownsAlready(slot Slot, move uint64) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.moves[cellOwned][slot] == move && k.moves[cellStaged][slot] == 0
}

// back reports whether what was served here is right under a move: it is the one
// under which it was served, named anew when the shard was won again, or the slot
// has only been nobody's between, as the core knows or this start has found.
func (k *kept) back(slot Slot, move uint64, fromNobody bool) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	was := k.moves[cellOwned][slot]
	return was != 0 && (was == move || was+2 == move && (fromNobody || k.released.Contains(slot)))
}

// clear forgets everything: the store has been emptied.
func (k *kept) clear() error {
	k.mu.Lock()
	for kind, moves := range k.moves {
		for slot := range moves {
			k.dirty[cellKey{kind: kind, page: uint8(slot / pageSlots)}] = struct{}{}
		}
		clear(moves)
	}
	k.released = SlotSet{}
	k.mu.Unlock()
	return k.save()
}

// save returns when all that was set before is saved.
func (k *kept) save() error { return k.saveWith(nil) }

// saveWith saves other cells along with what was set before.
func (k *kept) saveWith(others []cell) error {
	k.saving.Lock()
	defer k.saving.Unlock()
	cells := append(others, k.takeDirty()...)
	if k.n.meta == nil || len(cells) == 0 {
		return nil
	}
	return k.n.meta.save(cells)
}

// saveMoves is save where there is a file to save to.
func (k *kept) saveMoves() error {
	if k.n.meta == nil {
		return nil
	}
	return k.save()
}

// saveLater is for what may be lost in a crash: then keys are dropped that could
// have stayed.
func (k *kept) saveLater() {
	k.mu.Lock()
	defer k.mu.Unlock()
	who := k.n.who.Load()
	if k.n.meta != nil && who != nil && (len(k.dirty) > 0 || k.cluster != who.Cluster) {
		k.n.saver.later()
	}
}

func (k *kept) takeDirty() []cell {
	who := k.n.who.Load()
	k.mu.Lock()
	defer k.mu.Unlock()
	if who != nil && k.cluster != who.Cluster { // nil: closed before this start was saved
		k.cluster = who.Cluster
		for kind, moves := range k.moves {
			for slot := range moves {
				k.dirty[cellKey{kind: kind, page: uint8(slot / pageSlots)}] = struct{}{}
			}
		}
	}
	cells := make([]cell, 0, len(k.dirty))
	for key := range k.dirty {
		cells = append(cells, cell{key, k.encode(key)})
	}
	clear(k.dirty)
	slices.SortFunc(cells, func(a, b cell) int { return a.key.compare(b.key) })
	return cells
}

// encode is the value of a cell; nil if it is to go.
func (k *kept) encode(key cellKey) []byte {
	switch {
	case key.kind == cellCopy && k.copy != (copyCell{}):
		return mustEncode(&k.copy)
	case key.kind == cellLog && k.log != nil:
		return mustEncode(k.log)
	case key.kind == cellCopy || key.kind == cellLog:
		return nil
	}
	c := keptCell{Cluster: k.cluster}
	first := Slot(key.page) * pageSlots
	for i := range Slot(pageSlots) {
		if move := k.moves[key.kind][first+i]; move != 0 {
			c.Runs.add(first+i, move)
		}
	}
	if len(c.Runs) == 0 {
		return nil
	}
	return mustEncode(&c)
}

func mustEncode(v any) []byte {
	b, err := encodeValue(v)
	if err != nil {
		panic(fmt.Sprintf("slotmesh: encoding what is kept: %v", err)) // the types are encodable
	}
	return b
}
