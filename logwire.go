package slotmesh

import (
	"encoding/binary"
	"fmt"
)

// Frames between a replica and its primary, on a connection of their own, which
// the replica dials. They are bulk frames, written as those of request.go.
//
//	replica                         primary
//	SYNC    who it is, its log  ►
//	                            ◄   FROM    under which epoch, the history, from where on
//	                            ◄   LOG     entries; without any a sign of life
//	ACK     up to where it has  ►
//
// Where the replica lacks more than the primary has kept, FROM says so, and what
// every slot holds comes among the entries: SLOT, DATA..., and END after the last,
// with what all of it adds up to: a copy that does not takes nothing's place.
// FROM comes again when the primary has won its shard anew.

// logFrameBytes is what a frame of entries has, unless one part is larger.
const logFrameBytes = 256 << 10

func appendEpoch(b []byte, e Epoch) []byte {
	b = binary.AppendUvarint(b, e.Number)
	b = append(b, boolByte(e.Unclean))
	return append(b, e.Node[:]...)
}

func boolByte(v bool) byte {
	if v {
		return 1
	}
	return 0
}

func (r *bulkReader) bool() bool {
	b := r.byte()
	if b > 1 {
		r.fail()
	}
	return b == 1
}

func (r *bulkReader) epoch() (e Epoch) {
	e.Number, e.Unclean = r.uint(), r.bool()
	r.array(e.Node[:])
	return e
}

// array fills in bytes of a fixed number.
func (r *bulkReader) array(to []byte) {
	if len(r.b) < len(to) {
		r.fail()
		return
	}
	r.b = r.b[copy(to, r.b):]
}

func (p logPoint) append(b []byte) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(b, p.reign), p.offset)
}

func (r *bulkReader) point() logPoint { return logPoint{r.uint(), r.uint()} }

const historyBytesMin = 1 + 1 + len(NodeID{}) + 1 // an epoch of a history on the wire

func appendHistory(b []byte, h history) []byte {
	b = binary.AppendUvarint(b, uint64(len(h)))
	for i := range h {
		b = binary.AppendUvarint(appendEpoch(b, h[i].Epoch), h[i].After)
	}
	return b
}

func (r *bulkReader) history() history {
	h := make(history, r.count(historyBytesMin, historyMax))
	for i := range h {
		h[i] = epochStart{r.epoch(), r.uint()}
		if i > 0 && h[i].After < h[i-1].After {
			r.fail()
		}
	}
	return h
}

// syncAsk is a replica's question: what it has.
type syncAsk struct {
	cluster uint64
	shard   ShardID
	store   uint64 // incarnation
	whole   bool   // the store holds all data, as of end
	end     uint64
	past    history
}

func (q *syncAsk) append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint64(b, q.cluster)
	b = append(b, q.shard[:]...)
	b = binary.LittleEndian.AppendUint64(b, q.store)
	b = append(b, boolByte(q.whole))
	b = binary.AppendUvarint(b, q.end)
	return appendHistory(b, q.past)
}

func decodeSyncAsk(payload []byte) (*syncAsk, error) {
	r := bulkReader{b: payload}
	q := &syncAsk{cluster: r.fixed()}
	r.array(q.shard[:])
	q.store, q.whole, q.end, q.past = r.fixed(), r.bool(), r.uint(), r.history()
	return q, r.done()
}

// logFrom says what the entries that follow are.
type logFrom struct {
	epoch Epoch  // of the primary
	all   bool   // everything is copied
	from  uint64 // the entries are those after this offset
	past  history
}

func (l *logFrom) append(b []byte) []byte {
	b = append(appendEpoch(b, l.epoch), boolByte(l.all))
	b = binary.AppendUvarint(b, l.from)
	return appendHistory(b, l.past)
}

func decodeLogFrom(payload []byte) (*logFrom, error) {
	r := bulkReader{b: payload}
	l := &logFrom{epoch: r.epoch(), all: r.bool(), from: r.uint(), past: r.history()}
	return l, r.done()
}

const partBytesMin = 8 // a slice header is 24 bytes

// logFrame is entries, and where the primary's log ends. The first part belongs to
// the entry at offset first.
type logFrame struct {
	first   uint64
	end     uint64
	answers uint64 // sent of the newest acknowledgement that the primary has had
	table   uint64 // digest of its table, while it holds its lease; 0: it does not
	parts   [][]byte
}

func (f *logFrame) append(b []byte) []byte {
	b = binary.AppendUvarint(b, f.first)
	b = binary.AppendUvarint(b, f.end)
	b = binary.AppendUvarint(b, f.answers)
	b = binary.LittleEndian.AppendUint64(b, f.table)
	for _, p := range f.parts {
		b = appendText(b, p)
	}
	return b
}

// decodeLogFrame reads a frame of entries. Its parts share the payload's memory.
func decodeLogFrame(payload []byte) (*logFrame, error) {
	r := bulkReader{b: payload}
	f := &logFrame{first: r.uint(), end: r.uint(), answers: r.uint(), table: r.fixed()}
	for r.err == nil && len(r.b) > 0 {
		p := r.bytes()
		if len(p) < partBytesMin {
			r.fail()
		}
		f.parts = append(f.parts, p)
	}
	return f, r.done()
}

// syncSlot is what is known of a slot beside what it holds.
type syncSlot struct {
	slot     Slot
	owned    uint64 // as cellOwned
	staged   uint64 // as cellStaged
	imported bool   // as in slotCell
	mark     *SlotMark
}

func (s *syncSlot) append(b []byte) []byte {
	b = binary.AppendUvarint(b, uint64(s.slot))
	b = binary.AppendUvarint(b, s.owned)
	b = append(binary.AppendUvarint(b, s.staged), boolByte(s.imported), boolByte(s.mark != nil))
	if s.mark != nil {
		b = appendMark(b, s.mark)
	}
	return b
}

func decodeSyncSlot(payload []byte) (*syncSlot, error) {
	r := bulkReader{b: payload}
	s := &syncSlot{slot: r.slot(), owned: r.uint(), staged: r.uint(), imported: r.bool()}
	if r.bool() {
		s.mark = r.mark(s.slot)
	}
	return s, r.done()
}

// copySum is what a copy of everything adds up to: the frames between FROM and END,
// in order. Both sides reckon it over what they have written, and read.
type copySum struct {
	frames uint64
	sum    uint32
}

func (c *copySum) add(kind byte, payload []byte) {
	c.frames++
	c.sum = checksum(checksum(c.sum, []byte{kind}), payload)
}

// syncEnd says that a copy is whole: what it is a copy of, and what it adds up to.
type syncEnd struct {
	end uint64 // offset of the last entry
	copySum
}

func (e *syncEnd) append(b []byte) []byte {
	b = binary.AppendUvarint(binary.AppendUvarint(b, e.end), e.frames)
	return binary.LittleEndian.AppendUint32(b, e.sum)
}

func decodeSyncEnd(payload []byte) (*syncEnd, error) {
	r := bulkReader{b: payload}
	e := &syncEnd{end: r.uint(), copySum: copySum{frames: r.uint()}}
	var sum [4]byte
	r.array(sum[:])
	e.sum = binary.LittleEndian.Uint32(sum[:])
	return e, r.done()
}

// logAck says up to where a replica has the log of an epoch; without one it is a
// sign of life.
type logAck struct {
	epoch  Epoch
	store  uint64
	offset uint64
	sent   uint64 // when, in milliseconds of the replica's clock
}

func (a *logAck) append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint64(appendEpoch(b, a.epoch), a.store)
	return binary.AppendUvarint(binary.AppendUvarint(b, a.offset), a.sent)
}

func decodeLogAck(payload []byte) (*logAck, error) {
	r := bulkReader{b: payload}
	a := &logAck{r.epoch(), r.fixed(), r.uint(), r.uint()}
	if err := r.done(); err != nil {
		return nil, fmt.Errorf("slotmesh: acknowledgement: %w", err)
	}
	return a, nil
}

// syncLimits are those of what a replica sends, feedLimits of what it is sent: as
// large as any node may be configured for, so that one with lower limits than its
// primary has the data all the same.
func syncLimits(kind byte) int {
	switch kind {
	case frameSync:
		return 64 << 10
	case frameAck:
		return 128
	default:
		return 0
	}
}

func feedLimits(kind byte) int {
	switch kind {
	case frameLogFrom:
		return 64 << 10
	case frameLog, frameSyncData:
		return frameLargest
	case frameSyncSlot, frameSyncEnd:
		return 64
	default:
		return 0
	}
}
