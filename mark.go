package slotmesh

import (
	"fmt"
	"time"
)

// Marks are Redis's own way to move a slot, key by key, under an operator's
// hand: MIGRATING at the owner, IMPORTING at the node that is to have it.
//
//	owner      a key that is here is served; one that is not: ASK, to the other
//	           node; some of several: TRYAGAIN
//	importing  MOVED; after ASKING it serves, under its own lease, into its own store
//
// A primary keeps its marks, on disk, and in its shard's log: its replicas have them too,
// and tell nobody; whoever leads next goes on with them. So what an owner has given away
// key by key is not forgotten with it. SETSLOT is answered before its mark is there:
// what depends on the mark waits for it (an ASK, what MIGRATE takes away, what is
// written after ASKING), so that a mark that a crash undoes has not been used. They
// change where keys are looked for and nothing about who owns the slot: that is for
// SETSLOT NODE, a hand-over in place, which the owner refuses while it holds keys. The
// decision ends both marks, and what was written under IMPORTING stays. A mark that
// names a primary names its successor once it has one. A slot has a mark or a hand-over
// with its data, not both.

// SlotMark is a mark that an operator has put on a slot at this node.
type SlotMark struct {
	Slot      Slot
	Node      NodeID // where keys go (MIGRATING), or come from (IMPORTING)
	Importing bool
}

func (m SlotMark) forbidsHandOver() *commandError {
	return invalid("slot %d is marked MIGRATING or IMPORTING: move its keys, or take the mark off with SETSLOT STABLE", m.Slot)
}

// markTell says that a slot has a mark now, or none any more (nil). stale says
// that what this node still has of the slot is an old copy, to be dropped before
// anybody sees it. Until save after has completed the mark is not used, 0: it may
// be at once. settled says that a mark that is taken off meant nothing any more, known
// that it has only come to be used, or not: the shard's log has it already, or is not
// this node's any more.
//
// It is told beside its save, but for a mark that an operator takes off, which counts
// until that is saved, and what comes after it.
type markTell struct {
	slot    Slot
	mark    *SlotMark
	stale   bool
	settled bool
	known   bool
	after   uint64
}

// setSlotMigrating marks a slot of this node: its keys go to another node.
func (s *state) setSlotMigrating(now time.Duration, id uint64, slot Slot, to NodeID) output {
	s.begin(now)
	s.onceDecided(id, func() { s.markSlot(id, SlotMark{Slot: slot, Node: to}) })
	return s.end()
}

// setSlotImporting marks a slot of another node: its keys come here.
func (s *state) setSlotImporting(now time.Duration, id uint64, slot Slot, from NodeID) output {
	s.begin(now)
	s.onceDecided(id, func() { s.markSlot(id, SlotMark{Slot: slot, Node: from, Importing: true}) })
	return s.end()
}

// setSlotStable takes the mark off a slot. Keys stay where they are.
func (s *state) setSlotStable(now time.Duration, id uint64, slot Slot) output {
	s.begin(now)
	s.onceDecided(id, func() {
		err := s.maySetSlot(slot)
		if err == nil && s.unmark(slot, false) {
			s.unmarkSave = s.saveSeq + 1
		}
		s.reply(id, err)
	})
	return s.end()
}

func (s *state) markSlot(id uint64, m SlotMark) {
	err := s.mayMark(m)
	stale := false
	if err == nil && m.Importing {
		stale, err = s.claimCopy(m.Slot)
	}
	if err != nil {
		s.reply(id, err)
		return
	}
	s.setMark(m, stale)
	s.tell(replyTell{id: id, beside: true})
}

// maySetSlot is what holds for every SETSLOT that changes marks.
func (s *state) maySetSlot(slot Slot) *commandError {
	switch {
	case s.self.State == forgotten:
		return hasBeenForgotten()
	case s.table.primary(s.self.Shard) != s.id:
		return invalid("Please use SETSLOT only with masters.")
	case slot >= NumSlots:
		return invalid("Invalid or out of range slot %d, expected 0-%d", slot, NumSlots-1)
	}
	return nil
}

// mayMark checks in Redis's order and words.
func (s *state) mayMark(m SlotMark) *commandError {
	if err := s.maySetSlot(m.Slot); err != nil {
		return err
	}
	own := s.table.slots.at(m.Slot).shard == s.self.Shard
	p := s.peers.get(m.Node)
	switch {
	case m.Importing && own:
		return invalid("I'm already the owner of hash slot %d", m.Slot)
	case !m.Importing && !own:
		return invalid("I'm not the owner of hash slot %d", m.Slot)
	case p == nil || p.State == forgotten:
		return invalid("I don't know about node %s", m.Node)
	case s.followsAnother(p):
		return invalid("Target node is not a master")
	case own && s.givenBy(m.Slot) != nil:
		return tryAgain("slot %d is being handed over", m.Slot)
	case s.comesWithData(m.Slot):
		return tryAgain("slot %d is being handed over to this node", m.Slot)
	}
	return nil
}

// followsAnother reports whether p's shard has another primary. One that has just
// been met has not told of its shard yet.
func (s *state) followsAnother(p *peer) bool {
	e, known := s.table.shards[p.Shard]
	return known && e.Node != p.ID
}

// comesWithData reports whether a hand-over has brought the data of a slot here.
func (s *state) comesWithData(slot Slot) bool {
	for _, h := range s.stages {
		if !h.InPlace && h.overlaps(moveRuns{{First: slot, Last: slot}}) {
			return true
		}
	}
	return false
}

// claimCopy says what becomes of what this node may still have of a slot that
// has left it and is to come back key by key. What it had when the slot was
// released is nobody else's, and stays. What it had when the slot went to a new
// owner is old, and must not show again; but while that is hearsay, it may be all
// there is.
func (s *state) claimCopy(slot Slot) (stale bool, err *commandError) {
	g, gone := s.gone[slot]
	switch {
	case !gone:
		return false, nil
	case !g.nobody && !g.confirmed:
		return false, tryAgain("slot %d has left this node by hearsay: its keys stay until a majority of the voters has confirmed it", slot)
	}
	delete(s.gone, slot)
	return !g.nobody, nil
}

func (s *state) setMark(m SlotMark, stale bool) {
	s.marks[m.Slot] = m
	s.markChanged(m.Slot, markTell{slot: m.Slot, mark: &m, stale: stale})
}

// unmark takes a mark off, if there is one, because an operator says so, or because
// it means nothing any more: settled.
func (s *state) unmark(slot Slot, settled bool) bool {
	if _, marked := s.marks[slot]; !marked {
		return false
	}
	delete(s.marks, slot)
	s.unmarked = true
	s.markChanged(slot, markTell{slot: slot, settled: settled})
	return true
}

// importing is the slots of other shards that this node serves to ASKING.
func (s *state) importing() (slots SlotSet) {
	if !s.leadsMarks() || mutated(mutAskingPaused) {
		return slots
	}
	for slot, m := range s.marks {
		if m.Importing {
			slots.Add(slot)
		}
	}
	return slots
}

// usedMarks are the marks by which this node decides, ascending by slot.
func (s *state) usedMarks() []SlotMark {
	if !s.leadsMarks() {
		return nil
	}
	return s.sortedMarks()
}

func (s *state) markChanged(slot Slot, t markTell) {
	s.mark(cellKey{kind: cellMarks, page: uint8(slot / pageSlots)})
	s.tell(t)
	s.viewDirty = true
	if l := s.lead; l != nil && l.consent != nil {
		s.reassess = true // it is on hold
	}
}

// savesNewMarks reports whether all that is to be saved are marks that have been
// set. Nothing waits for those but what uses them. One that is taken off is waited
// for: it would come back, and hide the keys that have been written since.
func (s *state) savesNewMarks() bool {
	for k := range s.dirty {
		if k.kind != cellMarks {
			return false
		}
	}
	return !s.unmarked
}

// leadsMarks reports whether marks are this node's to change, and to use: a replica
// only knows those that are in its primary's log.
func (s *state) leadsMarks() bool {
	return s.table.primary(s.self.Shard) == s.id && s.self.State != forgotten
}

// showMarks is for a node whose marks count from now on.
func (s *state) showMarks() {
	for _, m := range s.sortedMarks() {
		s.tell(markTell{slot: m.Slot, mark: &m, known: true})
	}
}

// inheritMarks is for a node that has taken another one's place: of the marks that it knows
// it may not know what the other was about to learn.
func (s *state) inheritMarks() {
	s.showMarks()
	for _, m := range s.sortedMarks() {
		s.settleMark(m.Slot, s.table.slots.at(m.Slot).shard)
		s.followMarked(m.Slot)
	}
}

// hideMarks is for one whose marks do not count any more: another has replaced it. It keeps
// what its log has.
func (s *state) hideMarks() {
	for _, m := range s.sortedMarks() {
		s.tell(markTell{slot: m.Slot, known: true})
	}
}

// dropMarks is for one whose log is another one from now on.
func (s *state) dropMarks() {
	s.hideMarks()
	for slot := range s.marks {
		s.forgetMark(slot)
	}
}

func (s *state) forgetMark(slot Slot) {
	delete(s.marks, slot)
	s.unmarked = true
	s.mark(cellKey{kind: cellMarks, page: uint8(slot / pageSlots)})
}

// followMark is a mark of the shard's log, or that there is none any more (nil), which a
// replica takes from its primary.
func (s *state) followMark(now time.Duration, slot Slot, m *SlotMark) output {
	s.begin(now)
	s.noteMark(slot, m)
	return s.end()
}

func (s *state) noteMark(slot Slot, m *SlotMark) {
	was, marked := s.marks[slot]
	switch {
	case mutated(mutMarkForgotten):
	case m == nil && marked:
		s.forgetMark(slot)
	case m != nil && (!marked || was != *m):
		s.marks[slot] = *m
		s.mark(cellKey{kind: cellMarks, page: uint8(slot / pageSlots)})
	}
}

// copyMarks makes the marks that a replica knows those of a copy of everything.
func (s *state) copyMarks(marks map[Slot]SlotMark) {
	for slot := range s.marks {
		if _, marked := marks[slot]; !marked {
			s.noteMark(slot, nil)
		}
	}
	for slot, m := range marks {
		s.noteMark(slot, &m)
	}
}

// settleMark ends the mark of a slot that has changed hands, if it means nothing
// any more: nobody migrates what is not theirs, or imports what is.
func (s *state) settleMark(slot Slot, owner ShardID) {
	m, marked := s.marks[slot]
	if own := owner == s.self.Shard; !marked || own != m.Importing || !s.leadsMarks() {
		return
	}
	if m.Importing && !s.cluster.IsZero() {
		s.kept.Add(slot)
	}
	s.unmark(slot, true)
}

// followMarked makes a mark name whoever leads now the shard of the node that it names,
// and takes it off where that node is no member any more.
func (s *state) followMarked(slot Slot) {
	m, marked := s.marks[slot]
	if !marked {
		return
	}
	p := s.peers.get(m.Node)
	if p == nil || p.State == forgotten {
		s.unmark(slot, true)
		return
	}
	if next := s.peers.get(s.table.primary(p.Shard)); next != nil && next != p && next.Shard == p.Shard {
		m.Node = next.ID
		s.setMark(m, false)
	}
}

// followAllMarked is followMarked for the marks that name a node.
func (s *state) followAllMarked(node NodeID) {
	if len(s.marks) == 0 || !s.leadsMarks() {
		return
	}
	for _, m := range s.sortedMarks() {
		if m.Node == node {
			s.followMarked(m.Slot)
		}
	}
}

func (s *state) sortedMarks() []SlotMark {
	marks := make([]SlotMark, 0, len(s.marks))
	for _, slot := range sortedKeys(s.marks) {
		marks = append(marks, s.marks[slot])
	}
	return marks
}

// marksCell is the marks of a page of slots, as they are saved.
type marksCell struct{ Marks []SlotMark }

func (s *state) marksOf(page uint8) *marksCell {
	c := &marksCell{}
	for _, m := range s.sortedMarks() {
		if m.Slot/pageSlots == Slot(page) {
			c.Marks = append(c.Marks, m)
		}
	}
	if len(c.Marks) == 0 {
		return nil
	}
	return c
}

func (c *marksCell) check() error {
	for i, m := range c.Marks {
		if m.Slot >= NumSlots {
			return fmt.Errorf("slot %d, expected 0 to %d", m.Slot, NumSlots-1)
		}
		if i > 0 && m.Slot <= c.Marks[i-1].Slot {
			return fmt.Errorf("slot %d after %d, expected them to ascend", m.Slot, c.Marks[i-1].Slot)
		}
	}
	return nil
}
