package resp

import (
	"encoding/binary"
	"math/bits"
)

func bitmapCommands() []Command {
	return []Command{
		{
			Name: "setbit", Arity: 4, Flags: Write | DenyOOM, First: 1, Last: 1, Step: 1,
			Run: runSetBit, Group: "bitmap", Since: "2.2.0",
			Summary:    "Sets or clears the bit at offset in the string value stored at key",
			Complexity: "O(1)",
		},
		{
			Name: "getbit", Arity: 3, Flags: ReadOnly | Fast, First: 1, Last: 1, Step: 1,
			Run: runGetBit, Group: "bitmap", Since: "2.2.0",
			Summary:    "Returns the bit value at offset in the string value stored at key",
			Complexity: "O(1)",
		},
		{
			Name: "bitcount", Arity: -2, Flags: ReadOnly, First: 1, Last: 1, Step: 1,
			Run: runBitCount, Group: "bitmap", Since: "2.6.0",
			Summary:    "Count set bits in a string",
			Complexity: "O(N)",
		},
		{
			Name: "bitpos", Arity: -3, Flags: ReadOnly, First: 1, Last: 1, Step: 1,
			Run: runBitPos, Group: "bitmap", Since: "2.8.7",
			Summary:    "Find first bit set or clear in a string",
			Complexity: "O(N)",
		},
		{
			Name: "bitop", Arity: -4, Flags: Write | DenyOOM, First: 2, Last: -1, Step: 1,
			Run: runBitOp, Group: "bitmap", Since: "2.6.0",
			Summary:    "Perform bitwise operations between strings",
			Complexity: "O(N)",
		},
		{
			Name: "bitfield", Arity: -2, Flags: Write | DenyOOM, First: 1, Last: 1, Step: 1,
			Run: runBitField, Group: "bitmap", Since: "3.2.0",
			Summary:    "Perform arbitrary bitfield integer operations on strings",
			Complexity: "O(1) for each subcommand specified",
		},
		{
			Name: "bitfield_ro", Arity: -2, Flags: ReadOnly | Fast, First: 1, Last: 1, Step: 1,
			Run: runBitFieldRO, Group: "bitmap", Since: "6.0.0",
			Summary:    "Perform arbitrary bitfield integer operations on strings. Read-only variant of BITFIELD",
			Complexity: "O(1) for each subcommand specified",
		},
	}
}

// What bitmap commands answer, in the words of Redis.
const (
	errBitOffset   Error = "ERR bit offset is not an integer or out of range"
	errBitValue    Error = "ERR bit is not an integer or out of range"
	errBitArgument Error = "ERR The bit argument must be 1 or 0."
	errBitOpNot    Error = "ERR BITOP NOT must be called with a single source key."
)

// A bitmap is a string. Bit 0 is the highest of the first byte; behind the last
// byte all bits are 0.

// bitOffset is argument i as the number of a bit.
func (c *Call) bitOffset(i int) (int64, error) { return c.checkBitOffset(c.Args[i], 1) }

// checkBitOffset reads the number of a bit, in units of so many bits. It is
// inside the longest string. A product beyond 64 bits wraps, as it does in Redis.
func (c *Call) checkBitOffset(text []byte, unit int64) (int64, error) {
	n, ok := parseInt(text)
	n *= unit
	if !ok || n < 0 || n/8 >= c.maxString() {
		return 0, errBitOffset
	}
	return n, nil
}

// bitAt is bit n of a bitmap, 0 or 1.
func bitAt(value []byte, n int64) byte {
	if n/8 >= int64(len(value)) {
		return 0
	}
	return value[n/8] >> (7 - n%8) & 1
}

// setBit sets bit n, which is inside of value, to 0 or 1.
func setBit(value []byte, n int64, bit byte) {
	shift := 7 - n%8
	value[n/8] = value[n/8]&^(1<<shift) | bit<<shift
}

func runGetBit(c *Call) error {
	n, err := c.bitOffset(2)
	if err != nil {
		return err
	}
	e, _, err := c.head(c.Key(1), kindString)
	if err != nil {
		return err
	}
	c.Reply.Int(int64(bitAt(e.Value, n)))
	return nil
}

func runSetBit(c *Call) error {
	n, err := c.bitOffset(2)
	if err != nil {
		return err
	}
	bit, ok := parseInt(c.Args[3])
	if !ok || bit != 0 && bit != 1 {
		return errBitValue
	}
	e, _, err := c.head(c.Key(1), kindString)
	if err != nil {
		return err
	}
	old := bitAt(e.Value, n)
	// A bit that stays is no change, unless the string gets longer by it.
	if old != byte(bit) || n/8 >= int64(len(e.Value)) {
		value := grown(e.Value, int(n/8)+1)
		setBit(value, n, byte(bit))
		if err := c.putString(1, value, e.ExpireAt); err != nil {
			return err
		}
	}
	c.Reply.Int(int64(old))
	return nil
}

// ---- ranges of bits

// bitRange is the bits from start to end, both among them.
type bitRange struct{ start, end int64 }

func (r bitRange) empty() bool { return r.start > r.end }

// bitRange is a range of a value as arguments 3 and 4 give it, or the whole. The
// numbers count from the end where they are negative; unit is the bits in each.
func newBitRange(value []byte, start, end, unit int64) bitRange {
	n := int64(len(value)) * 8 / unit
	if start < 0 {
		start = max(0, start+n)
	}
	if end < 0 {
		end = max(0, end+n)
	}
	end = min(end, n-1)
	if start > end { // and before the multiplication, which may overflow
		return bitRange{0, -1}
	}
	return bitRange{start * unit, (end+1)*unit - 1}
}

// bitUnit reads BYTE or BIT, and says how many bits that is.
func (c *Call) bitUnit(i int) (int64, error) {
	switch {
	case i >= len(c.Args) || c.Is(i, "byte"):
		return 8, nil
	case c.Is(i, "bit"):
		return 1, nil
	default:
		return 0, errSyntax
	}
}

// runBitCount looks for the key first, as Redis does: without one the range may
// be anything.
func runBitCount(c *Call) error {
	e, found, err := c.head(c.Key(1), kindString)
	if err != nil {
		return err
	}
	if !found {
		c.Reply.Int(0)
		return nil
	}
	r, err := c.bitCountRange(e.Value)
	if err != nil {
		return err
	}
	c.Reply.Int(countBits(e.Value, r))
	return nil
}

func (c *Call) bitCountRange(value []byte) (bitRange, error) {
	switch len(c.Args) {
	case 2:
		return newBitRange(value, 0, -1, 8), nil
	case 4, 5:
	default:
		return bitRange{}, errSyntax
	}
	start, err := c.Int(2)
	if err != nil {
		return bitRange{}, err
	}
	end, err := c.Int(3)
	if err != nil {
		return bitRange{}, err
	}
	if start < 0 && end < 0 && start > end {
		return bitRange{0, -1}, nil // though both may be cut to the first, and whatever the unit
	}
	unit, err := c.bitUnit(4)
	if err != nil {
		return bitRange{}, err
	}
	return newBitRange(value, start, end, unit), nil
}

// countBits is the number of ones in a range that is inside of value.
func countBits(value []byte, r bitRange) int64 {
	if r.empty() {
		return 0
	}
	n := 0
	piece := value[r.start/8 : r.end/8+1]
	// What the first and the last byte have outside of the range is taken off.
	n -= bits.OnesCount8(piece[0] &^ (0xFF >> (r.start % 8)))
	n -= bits.OnesCount8(piece[len(piece)-1] & (1<<(7-r.end%8) - 1))
	for ; len(piece) >= 8; piece = piece[8:] {
		n += bits.OnesCount64(binary.NativeEndian.Uint64(piece))
	}
	for _, b := range piece {
		n += bits.OnesCount8(b)
	}
	return int64(n)
}

func runBitPos(c *Call) error {
	bit, err := c.Int(2)
	if err != nil {
		return err
	}
	if bit != 0 && bit != 1 {
		return errBitArgument
	}
	e, found, err := c.head(c.Key(1), kindString)
	if err != nil {
		return err
	}
	if !found {
		c.Reply.Int(-bit) // all bits are 0, without an end
		return nil
	}
	r, err := c.bitPosRange(e.Value)
	if err != nil {
		return err
	}
	at, found := findBit(e.Value, byte(bit), r)
	if !found {
		at = -1
		// Without an end the zeros behind the string count, unless the range begins
		// there.
		if bit == 0 && len(c.Args) < 5 && !r.empty() {
			at = int64(len(e.Value)) * 8
		}
	}
	c.Reply.Int(at)
	return nil
}

func (c *Call) bitPosRange(value []byte) (r bitRange, err error) {
	start, end, unit := int64(0), int64(-1), int64(8)
	if len(c.Args) > 6 {
		return r, errSyntax
	}
	if len(c.Args) > 3 {
		if start, err = c.Int(3); err != nil {
			return r, err
		}
		if unit, err = c.bitUnit(5); err != nil {
			return r, err
		}
	}
	if len(c.Args) > 4 {
		if end, err = c.Int(4); err != nil {
			return r, err
		}
	}
	return newBitRange(value, start, end, unit), nil
}

// findBit is the first bit of a range that is as wanted.
func findBit(value []byte, bit byte, r bitRange) (int64, bool) {
	if r.empty() {
		return 0, false
	}
	other := byte(0) // a byte without one
	if bit == 0 {
		other = 0xFF
	}
	for n := r.start; n <= r.end; {
		if n%8 == 0 {
			n += 8 * equalBytes(value[n/8:r.end/8+1], other)
			if n > r.end {
				break
			}
		}
		if bitAt(value, n) == bit {
			return n, true
		}
		n++
	}
	return 0, false
}

// equalBytes is how many bytes at the start are all b.
func equalBytes(value []byte, b byte) (n int64) {
	words := uint64(b) * 0x0101010101010101
	for len(value) >= 8 && binary.NativeEndian.Uint64(value) == words {
		value, n = value[8:], n+8
	}
	for len(value) > 0 && value[0] == b {
		value, n = value[1:], n+1
	}
	return n
}

// ---- BITOP

// bitOps are the operations of BITOP on two words. NOT has one source and turns
// it over: it is XOR with ones.
var bitOps = [...]struct {
	name string
	do   func(a, b uint64) uint64
}{
	{"and", func(a, b uint64) uint64 { return a & b }},
	{"or", func(a, b uint64) uint64 { return a | b }},
	{"xor", func(a, b uint64) uint64 { return a ^ b }},
	{"not", func(a, b uint64) uint64 { return ^a }},
}

func runBitOp(c *Call) error {
	var do func(a, b uint64) uint64
	for _, op := range bitOps {
		if c.Is(1, op.name) {
			do = op.do
		}
	}
	switch {
	case do == nil:
		return errSyntax
	case c.Is(1, "not") && len(c.Args) != 4:
		return errBitOpNot
	}
	sources, longest := make([][]byte, 0, len(c.Args)-3), 0
	for i := 3; i < len(c.Args); i++ {
		e, _, err := c.head(c.Key(i), kindString)
		if err != nil {
			return err
		}
		sources = append(sources, e.Value)
		longest = max(longest, len(e.Value))
	}
	if err := c.putBitOp(combine(sources, longest, do, c.Is(1, "not"))); err != nil {
		return err
	}
	c.Reply.Int(int64(longest))
	return nil
}

// putBitOp stores the result; an empty one removes the key.
func (c *Call) putBitOp(value []byte) error {
	if len(value) > 0 {
		return c.putString(2, value, 0)
	}
	found, err := c.exists(c.Key(2))
	if err == nil && found {
		_, err = c.Tx.Delete(c.Own(2))
	}
	return err
}

// combine is the sources, each with zeros behind it up to n bytes, combined one
// after the other.
func combine(sources [][]byte, n int, do func(a, b uint64) uint64, alone bool) []byte {
	// A whole number of words: the last is not a case of its own.
	out := make([]byte, (n+7)/8*8)
	copy(out, sources[0])
	others := sources[1:]
	if alone {
		others = [][]byte{nil}
	}
	for _, source := range others {
		combineInto(out, source, do)
	}
	return out[:n:n]
}

func combineInto(out, source []byte, do func(a, b uint64) uint64) {
	var last [8]byte
	for ; len(out) > 0; out = out[8:] {
		word := source
		if len(source) < 8 {
			last = [8]byte{}
			copy(last[:], source)
			word, source = last[:], nil
		} else {
			source = source[8:]
		}
		a, b := binary.NativeEndian.Uint64(out), binary.NativeEndian.Uint64(word)
		binary.NativeEndian.PutUint64(out, do(a, b))
	}
}
