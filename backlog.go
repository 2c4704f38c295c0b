package slotmesh

import (
	"encoding/binary"

	"github.com/slotmesh/slotmesh/store"
)

// What a replica's log is made of, as it travels. An entry is one change of the
// data that a shard's members keep; it has one offset however large it is, and
// takes effect as a whole.

type entryKind byte

const (
	entryOps    entryKind = iota + 1 // effects on a slot
	entryDrop                        // nothing of a slot is here any more, nor staged for it
	entryStaged                      // all of a slot is here, as it will be under the move that brings it
	entryOwn                         // the slot is served under a move, with what is here of it
	entryFresh                       // the slot is served under a move, and empty
	entryImport                      // keys of the slot come one by one, right under a move
	entryMark                        // an operator has put a mark on the slot
	entryUnmark                      // the slot has no mark any more
	numEntryKinds
)

// entryPart flags.
const entryMore = 0x80 // in the byte of the kind: another part of the same entry follows

// logEntry is an entry as it travels, in parts that fit into frames; nearly
// always it is one. Its bytes are never changed.
type logEntry struct {
	first []byte
	rest  [][]byte
}

const entryOverhead = 64 // bytes that the bookkeeping of an entry takes, about

func (e *logEntry) bytes() int {
	n := entryOverhead + len(e.first)
	for _, p := range e.rest {
		n += len(p) + entryOverhead
	}
	return n
}

// opsEntry is effects on a slot. It shares nothing with ops.
func opsEntry(slot Slot, ops []store.Op) (e logEntry) {
	for len(ops) > 0 {
		n, bytes := pieceOf(ops)
		kind := byte(entryOps)
		if n < len(ops) {
			kind |= entryMore
		}
		part := append(make([]byte, 0, bytes+n*opBytesMin/2+16), kind)
		part = appendOps(binary.AppendUvarint(part, uint64(slot)), ops[:n])
		ops = ops[n:]
		if e.first == nil {
			e.first = part
		} else {
			e.rest = append(e.rest, part)
		}
	}
	return e
}

// moveEntry is what has become of a slot, under a move.
func moveEntry(kind entryKind, slot Slot, move uint64) logEntry {
	return logEntry{first: binary.LittleEndian.AppendUint64(binary.AppendUvarint([]byte{byte(kind)}, uint64(slot)), move)}
}

// markEntry is a mark that has been put on a slot, or that there is none (nil).
func markEntry(slot Slot, m *SlotMark) logEntry {
	if m == nil {
		return logEntry{first: append(binary.AppendUvarint([]byte{byte(entryUnmark)}, uint64(slot)), make([]byte, partBytesMin)...)}
	}
	b := binary.AppendUvarint([]byte{byte(entryMark)}, uint64(slot))
	return logEntry{first: appendMark(b, m)}
}

// appendMark appends a mark but for its slot.
func appendMark(b []byte, m *SlotMark) []byte {
	return append(append(b, boolByte(m.Importing)), m.Node[:]...)
}

func (r *bulkReader) mark(slot Slot) *SlotMark {
	m := &SlotMark{Slot: slot, Importing: r.bool()}
	r.array(m.Node[:])
	return m
}

// entryPart is a part of an entry.
type entryPart struct {
	kind entryKind
	more bool
	slot Slot
	move uint64
	mark *SlotMark // of entryMark
	ops  []store.Op
}

func decodePart(b []byte) (p entryPart, err error) {
	r := bulkReader{b: b}
	kind := r.byte()
	p.kind, p.more = entryKind(kind&^entryMore), kind&entryMore != 0
	switch p.slot = r.slot(); p.kind {
	case entryOps:
		p.ops = r.ops()
	case entryMark:
		p.mark = r.mark(p.slot)
	default:
		p.move = r.fixed()
	}
	if p.kind == 0 || p.kind >= numEntryKinds || p.more && p.kind != entryOps || p.kind == entryOps && len(p.ops) == 0 {
		r.fail()
	}
	if err := r.done(); err != nil {
		return p, err
	}
	return p, store.CheckOps(p.ops)
}

// backlog keeps the newest entries of a log, so that a replica that has been away
// for a while gets what it lacks and no more. It is bounded in bytes: at the bound
// the oldest entry goes, and who lacks that copies everything.
type backlog struct {
	limit   int
	base    uint64 // offset of the entry before the first
	entries []logEntry
	head    int // of entries that have gone
	bytes   int
}

func (b *backlog) add(e logEntry) {
	b.entries = append(b.entries, e)
	b.bytes += e.bytes()
	for b.bytes > b.limit && b.head < len(b.entries)-1 {
		b.bytes -= b.entries[b.head].bytes()
		b.entries[b.head] = logEntry{}
		b.head++
		b.base++
	}
	if b.head > 64 && b.head > len(b.entries)/2 {
		n := copy(b.entries, b.entries[b.head:])
		clear(b.entries[n:])
		b.entries, b.head = b.entries[:n], 0
	}
}

// reset makes the log begin after an offset.
func (b *backlog) reset(base uint64) {
	b.base, b.entries, b.head, b.bytes = base, nil, 0, 0
}

// from returns the entries after an offset that make up about so many bytes, at
// least one if there is any; ok is false where some of them have gone.
func (b *backlog) from(offset uint64, bytes int) (entries []logEntry, ok bool) {
	if offset < b.base {
		return nil, false
	}
	rest := b.entries[b.head:]
	skip := offset - b.base
	if skip >= uint64(len(rest)) {
		return nil, true
	}
	rest = rest[skip:]
	n := 0
	for n < len(rest) && (n == 0 || bytes > 0) {
		bytes -= rest[n].bytes()
		n++
	}
	return append([]logEntry(nil), rest[:n]...), true
}
