package slotmesh

import (
	"encoding/binary"
	"fmt"
	"iter"
	"math/bits"
	"strconv"
	"strings"
	"unsafe"
)

// NumSlots is the number of hash slots, the same in every cluster.
const NumSlots = 16384

// A Slot is one of the hash slots 0 to 16383. Each key belongs to exactly one,
// for ever; which shard serves a slot may change.
type Slot uint16

// Valid reports whether s is in 0-16383.
func (s Slot) Valid() bool { return s < NumSlots }

// ParseSlot reads a slot in decimal, without sign, spaces or leading zeros.
// The error names the text and the range.
func ParseSlot(text string) (Slot, error) {
	s, ok := parseSlot(text)
	if !ok {
		return 0, fmt.Errorf("slotmesh: slot %s: want a plain number in 0-%d", quote(text), NumSlots-1)
	}
	return s, nil
}

// parseSlot takes the one spelling that String and Redis print, and no other.
func parseSlot(text string) (Slot, bool) {
	n, err := strconv.ParseUint(text, 10, 16)
	plain := len(text) == 1 || err == nil && text[0] != '0'
	return Slot(n), err == nil && plain && n < NumSlots
}

// quote quotes the text of a bad value. It comes from outside, so that an
// error does not carry more of it than a reader needs.
func quote(text string) string {
	const enough = 64
	if len(text) > enough {
		return fmt.Sprintf("%q... (%d bytes)", text[:enough], len(text))
	}
	return strconv.Quote(text)
}

// The checksum behind KeySlot is CRC16/XMODEM:
//
//	width       16
//	polynomial  0x1021
//	initial     0
//	reflected   no, neither input nor output
//	final xor   0
//	check       0x31C3 for "123456789"
//
// A CRC that starts at zero is linear: the CRC of some bytes is the xor of one
// number per byte, the CRC of that byte followed by as many zero bytes as bytes
// come after it. crcTable[i][b] is that number for byte b with i bytes after it.
// So up to eight bytes take one look-up each, and no look-up waits for another,
// where the usual loop waits for memory once per byte. A longer key goes in
// blocks of eight, with the CRC so far added to the first two bytes of the next
// block, which is where the shift register would meet it.
//
// The CRC fills the lower half of an entry. The upper half marks braces: '{'
// with i bytes after it has bit openMark+i, '}' has closeMark+i. A sum over up to
// eight bytes therefore tells, at no cost, whether and where there are braces: a
// key of one or two such parts needs no search. A longer one, which may have its
// tag far behind, is searched first, so that little is hashed in vain.
//
// The table is never written after it is made.
var crcTable = newCRCTable()

const (
	blockSize = 8  // bytes per step, and tables
	closeMark = 16 // lowest of the eight bits that mark '}'
	openMark  = 24 // lowest of the eight bits that mark '{'
)

func newCRCTable() *[blockSize][256]uint32 {
	const polynomial = 0x1021
	t := new([blockSize][256]uint32)
	for b := range 256 {
		crc := uint16(b) << 8
		for range 8 {
			carry := crc >> 15
			crc = crc<<1 ^ carry*polynomial
		}
		t[0][b] = uint32(crc)
	}
	for i := 1; i < blockSize; i++ {
		for b := range 256 {
			crc := uint16(t[i-1][b]) // append one zero byte
			t[i][b] = uint32(crc<<8) ^ t[0][crc>>8]
		}
	}
	for i := range blockSize {
		t[i]['{'] |= 1 << (openMark + i)
		t[i]['}'] |= 1 << (closeMark + i)
	}
	return t
}

// KeySlot returns the slot of a key, as Redis Cluster computes it: the CRC16 of
// the key modulo 16384. Where the key has a hash tag, a non-empty text between
// the first '{' and the first '}' after it, only that text counts, so keys with
// one tag share a slot. A key may hold any bytes; the empty key is in slot 0.
//
// It does not allocate, and is safe for concurrent use.
func KeySlot(key string) Slot {
	const mask = NumSlots - 1
	k := key          // the bytes that count, once narrowed
	narrowed := false // k is a tag, or known to have none
	switch n := len(k); {
	case n > 2*blockSize:
		open := 0 // most keys with a tag begin with it
		if k[0] != '{' {
			open = strings.IndexByte(k, '{')
		}
		if open >= 0 {
			k = tagAt(k, open)
		}
		narrowed = true
	case n > blockSize:
		if k[0] == '{' {
			k, narrowed = tagAt(k, 0), true
		}
	case n <= 3:
		t := crcTable
		switch n {
		case 0:
			return 0
		case 1:
			return Slot(t[0][k[0]] & mask)
		case 2:
			return Slot((t[0][k[1]] ^ t[1][k[0]]) & mask)
		}
		if k[0] == '{' && k[1] != '}' && k[2] == '}' { // the only tag there is room for
			return Slot(t[0][k[1]] & mask)
		}
		return Slot((t[0][k[2]] ^ t[1][k[1]] ^ t[2][k[0]]) & mask)
	}

hash: // reached a second time where the first pass comes upon a tag
	// The odd bytes come first, as many as leave a multiple of eight. The CRC
	// is still zero there, so they need no look-up but their own.
	t := crcTable
	var sum uint32
	odd := (len(k)-1)&(blockSize-1) + 1
	switch odd {
	case 1:
		sum = t[0][k[0]]
	case 2:
		sum = t[0][k[1]] ^ t[1][k[0]]
	case 3:
		sum = t[0][k[2]] ^ t[1][k[1]] ^ t[2][k[0]]
	case 4:
		sum = t[0][k[3]] ^ t[1][k[2]] ^ t[2][k[1]] ^ t[3][k[0]]
	case 5:
		sum = t[0][k[4]] ^ t[1][k[3]] ^ t[2][k[2]] ^ t[3][k[1]] ^ t[4][k[0]]
	case 6:
		sum = t[0][k[5]] ^ t[1][k[4]] ^ t[2][k[3]] ^ t[3][k[2]] ^ t[4][k[1]] ^ t[5][k[0]]
	case 7:
		sum = t[0][k[6]] ^ t[1][k[5]] ^ t[2][k[4]] ^ t[3][k[3]] ^ t[4][k[2]] ^ t[5][k[1]] ^ t[6][k[0]]
	case 8:
		sum = t[0][k[7]] ^ t[1][k[6]] ^ t[2][k[5]] ^ t[3][k[4]] ^ t[4][k[3]] ^ t[5][k[2]] ^ t[6][k[1]] ^ t[7][k[0]]
	}
	if len(k) <= blockSize {
		if narrowed || sum < 1<<openMark {
			return Slot(sum & mask)
		}
		k, narrowed = markedTag(k, sum>>openMark, sum>>closeMark), true
		goto hash
	}
	if !narrowed { // nine to sixteen bytes: one block after the odd ones
		b := k[len(k)-blockSize:]
		block := t[0][b[7]] ^ t[1][b[6]] ^ t[2][b[5]] ^ t[3][b[4]] ^ t[4][b[3]] ^ t[5][b[2]] ^ t[6][b[1]] ^ t[7][b[0]]
		if sum|block < 1<<openMark {
			return Slot((block ^ t[6][byte(sum)] ^ t[7][byte(sum>>8)]) & mask)
		}
		opens, closes := sum>>openMark<<blockSize|block>>openMark, sum>>closeMark<<blockSize|block>>closeMark&0xFF
		k, narrowed = markedTag(k, opens, closes), true
		goto hash
	}
	for i := odd; i < len(k); i += blockSize {
		b := k[i : i+blockSize]
		sum = t[0][b[7]] ^ t[1][b[6]] ^ t[2][b[5]] ^ t[3][b[4]] ^ t[4][b[3]] ^ t[5][b[2]] ^
			(t[6][b[1]^byte(sum)] ^ t[7][b[0]^byte(sum>>8)]) // only these two wait for the block before
	}
	return Slot(sum & mask)
}

// KeySlotBytes is KeySlot for a key held in a byte slice. It does not keep or
// change the slice.
func KeySlotBytes(key []byte) Slot {
	// The string shares the memory of key for as long as KeySlot runs, which
	// keeps no part of it.
	return KeySlot(unsafe.String(unsafe.SliceData(key), len(key)))
}

// tagAt returns the hash tag of a key of more than eight bytes whose first '{'
// is at open, or the whole key where nothing, or no '}', follows the brace.
func tagAt(key string, open int) string {
	rest := key[open+1:]
	var w uint64 // the first word after the brace, filled up with zeros
	if len(rest) >= 8 {
		w = word(rest)
	} else {
		w = word(key[len(key)-8:]) >> (64 - 8*len(rest))
	}
	end := bits.TrailingZeros64(matches(w, '}')) / 8
	if end == 8 { // not in the word
		end = strings.IndexByte(rest, '}')
	}
	if end <= 0 {
		return key
	}
	return rest[:end]
}

// markedTag returns the hash tag of a key of up to sixteen bytes with a '{' in
// it, or the whole key where it has none. Bit i of opens says that the byte with
// i bytes after it is a '{', closes says it of '}'; higher bits of closes, for
// bytes that the key does not have, mean nothing.
func markedTag(key string, opens, closes uint32) string {
	open := bits.Len32(opens) - 1                   // bytes after the brace
	end := bits.Len32(closes&(1<<uint(open)-1)) - 1 // bytes after the first '}' behind it
	if end < 0 || end == open-1 {
		return key
	}
	return key[len(key)-open : len(key)-end-1]
}

// word reads the first eight bytes of s, the first as the lowest.
func word(s string) uint64 {
	_ = s[7]
	return uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 |
		uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56
}

// matches returns zero if no byte of w is c. Otherwise its lowest bit set is
// the high bit of the lowest byte that is c; higher bits mean nothing, as the
// subtraction borrows across bytes.
func matches(w uint64, c byte) uint64 {
	const ones, highs = 0x0101010101010101, 0x8080808080808080
	x := w ^ ones*uint64(c)
	return (x - ones) &^ x & highs
}

// A SlotRange is the slots First to Last, both included. It is empty if First
// is greater than Last.
type SlotRange struct {
	First, Last Slot
}

// ParseSlotRange reads a range as String prints it: "0-5460", or "8000" for one
// slot. The error names the text and what was expected.
func ParseSlotRange(text string) (SlotRange, error) {
	first, last, two := strings.Cut(text, "-")
	if !two {
		last = first
	}
	f, okFirst := parseSlot(first)
	l, okLast := parseSlot(last)
	if !okFirst || !okLast || f > l {
		return SlotRange{}, fmt.Errorf("slotmesh: slot range %s: want first-last or one slot, in 0-%d, first not greater than last",
			quote(text), NumSlots-1)
	}
	return SlotRange{f, l}, nil
}

// Validate returns an error that names the range if it is empty or reaches
// beyond slot 16383.
func (r SlotRange) Validate() error {
	switch {
	case !r.First.Valid() || !r.Last.Valid():
		return fmt.Errorf("slotmesh: slot range %s: want slots in 0-%d", r, NumSlots-1)
	case r.First > r.Last:
		return fmt.Errorf("slotmesh: slot range %s: first is greater than last", r)
	}
	return nil
}

// String returns "0-5460", or "8000" if the range is one slot.
func (r SlotRange) String() string { return string(r.append(nil)) }

func (r SlotRange) append(b []byte) []byte {
	b = strconv.AppendUint(b, uint64(r.First), 10)
	if r.First != r.Last {
		b = append(b, '-')
		b = strconv.AppendUint(b, uint64(r.Last), 10)
	}
	return b
}

// Len returns the number of slots in the range.
func (r SlotRange) Len() int { return max(0, int(r.Last)-int(r.First)+1) }

// Contains reports whether s is in the range.
func (r SlotRange) Contains(s Slot) bool { return r.First <= s && s <= r.Last }

// All yields the slots of the range in ascending order.
func (r SlotRange) All() iter.Seq[Slot] {
	return func(yield func(Slot) bool) {
		for s := int(r.First); s <= int(r.Last); s++ {
			if !yield(Slot(s)) {
				return
			}
		}
	}
}

// A SlotSet is a set of slots. The zero value is the empty set. Sets are plain
// values of 2048 bytes: assignment copies, == compares.
//
// A method that is given a slot beyond 16383 panics, and names it: check what comes
// from outside by [ParseSlot], [Slot.Valid] or [SlotRange.Validate]. Readers may share
// a set; a writer needs it alone.
type SlotSet struct {
	words [NumSlots / 64]uint64 // slot s is bit s%64 of words[s/64]
}

const slotSetSize = NumSlots / 8 // bytes of a set in binary form

// Add puts a slot into the set. It panics for a slot beyond 16383.
func (s *SlotSet) Add(slot Slot) {
	if slot >= NumSlots {
		panic(noSuchSlot(slot))
	}
	s.words[slot/64] |= 1 << (slot % 64)
}

// Remove takes a slot out of the set. It panics for a slot beyond 16383.
func (s *SlotSet) Remove(slot Slot) {
	if slot >= NumSlots {
		panic(noSuchSlot(slot))
	}
	s.words[slot/64] &^= 1 << (slot % 64)
}

// Contains reports whether a slot is in the set. It panics for a slot beyond 16383.
func (s *SlotSet) Contains(slot Slot) bool {
	if slot >= NumSlots {
		panic(noSuchSlot(slot))
	}
	return s.words[slot/64]>>(slot%64)&1 != 0
}

// noSuchSlot is what methods of a SlotSet panic with. It costs them nothing: the text is
// made when somebody asks for it, so they stay short enough to be inlined, and their
// comparison takes the place of the one that the index would need.
type noSuchSlot Slot

func (s noSuchSlot) Error() string {
	return fmt.Sprintf("slotmesh: slot %d, expected 0-%d", uint16(s), NumSlots-1)
}

// AddRange puts the slots of r into the set. An empty range adds nothing. It panics
// for a range that reaches beyond 16383, before it adds anything.
func (s *SlotSet) AddRange(r SlotRange) {
	if r.Len() == 0 {
		return
	}
	if r.Last >= NumSlots {
		panic(noSuchSlot(r.Last))
	}
	for i, last := int(r.First), int(r.Last); i <= last; i = (i | 63) + 1 {
		upTo := min(i|63, last)
		s.words[i/64] |= ^uint64(0) << (i % 64) & (^uint64(0) >> (63 - upTo%64))
	}
}

// Union adds the slots of other to the set.
func (s *SlotSet) Union(other *SlotSet) {
	for i := range s.words {
		s.words[i] |= other.words[i]
	}
}

// Subtract removes the slots of other from the set.
func (s *SlotSet) Subtract(other *SlotSet) {
	for i := range s.words {
		s.words[i] &^= other.words[i]
	}
}

// Intersect removes the slots that are not in other from the set.
func (s *SlotSet) Intersect(other *SlotSet) {
	for i := range s.words {
		s.words[i] &= other.words[i]
	}
}

// Len returns the number of slots in the set.
func (s *SlotSet) Len() int {
	n := 0
	for _, w := range s.words {
		n += bits.OnesCount64(w)
	}
	return n
}

// Empty reports whether no slot is in the set.
func (s *SlotSet) Empty() bool { return *s == SlotSet{} }

// All yields the slots of the set in ascending order. The loop may change the
// set: a slot added or removed behind the loop is not noticed, one ahead is.
func (s *SlotSet) All() iter.Seq[Slot] {
	return func(yield func(Slot) bool) {
		for i := s.next(0, true); i < NumSlots; i = s.next(i+1, true) {
			if !yield(Slot(i)) {
				return
			}
		}
	}
}

// AllRanges yields the set as ranges that are as long as possible and
// ascending: no two of them touch. It does not allocate.
func (s *SlotSet) AllRanges() iter.Seq[SlotRange] {
	return func(yield func(SlotRange) bool) {
		for end := 0; ; {
			first := s.next(end, true)
			if first == NumSlots {
				return
			}
			end = s.next(first, false)
			if !yield(SlotRange{Slot(first), Slot(end - 1)}) {
				return
			}
		}
	}
}

// Ranges returns what AllRanges yields, nil for the empty set.
func (s *SlotSet) Ranges() []SlotRange {
	var rs []SlotRange
	for r := range s.AllRanges() {
		rs = append(rs, r)
	}
	return rs
}

// next returns the first slot at or after from that is in the set, or is not if
// member is false; NumSlots if there is none.
func (s *SlotSet) next(from int, member bool) int {
	var flip uint64
	if !member {
		flip = ^flip
	}
	for i := from; i < NumSlots; i = (i | 63) + 1 {
		if w := (s.words[i/64] ^ flip) >> (i % 64); w != 0 {
			return i + bits.TrailingZeros64(w)
		}
	}
	return NumSlots
}

// String returns the set as ranges, "0-5460 8000", as in CLUSTER NODES. The
// empty set is "".
//
// Its receiver is a value, unlike the others', so that a set also prints as
// text where it is a field or an element.
func (s SlotSet) String() string {
	var b []byte
	for r := range s.AllRanges() {
		if len(b) > 0 {
			b = append(b, ' ')
		}
		b = r.append(b)
	}
	return string(b)
}

// ParseSlotSet reads ranges separated by white space, in any order; they may
// overlap. So it reads what String prints. The error names the range that is
// wrong and what was expected.
func ParseSlotSet(text string) (SlotSet, error) {
	var s SlotSet
	for field := range strings.FieldsSeq(text) {
		r, err := ParseSlotRange(field)
		if err != nil {
			return SlotSet{}, err
		}
		s.AddRange(r)
	}
	return s, nil
}

// AppendBinary appends the set as Redis Cluster's bitmap of 2048 bytes, in
// which slot j is bit j%8 of byte j/8. The error is always nil.
func (s *SlotSet) AppendBinary(b []byte) ([]byte, error) {
	for _, w := range s.words {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	return b, nil
}

// MarshalBinary returns what AppendBinary appends, in a slice of its own.
func (s *SlotSet) MarshalBinary() ([]byte, error) {
	return s.AppendBinary(make([]byte, 0, slotSetSize))
}

// UnmarshalBinary reads what AppendBinary appends, exactly 2048 bytes, and does
// not keep them. On an error, which names the length, the set is unchanged.
func (s *SlotSet) UnmarshalBinary(b []byte) error {
	if len(b) != slotSetSize {
		return fmt.Errorf("slotmesh: slot set of %d bytes: want %d", len(b), slotSetSize)
	}
	for i := range s.words {
		s.words[i] = binary.LittleEndian.Uint64(b[8*i:])
	}
	return nil
}
