package resp

import "github.com/slotmesh/slotmesh/store"

// Errors of BITFIELD.
const (
	errBitfieldType     Error = "ERR Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported but i64 is."
	errBitfieldOverflow Error = "ERR Invalid OVERFLOW type specified"
	errBitfieldReadOnly Error = "ERR BITFIELD_RO only supports the GET subcommand"
)

// bitfieldOp is a subcommand of BITFIELD: it reads, sets or increments a number
// of so many bits inside a string.
type bitfieldOp struct {
	code     bitfieldCode
	overflow bitfieldOverflow
	signed   bool
	bits     int64 // 1 to 64, of an unsigned one to 63
	at       int64 // its first bit
	value    int64
}

type bitfieldCode byte

const (
	bitfieldGet bitfieldCode = iota
	bitfieldSet
	bitfieldIncrBy
)

// bitfieldOverflow says what becomes of a number that does not fit.
type bitfieldOverflow byte

const (
	overflowWrap bitfieldOverflow = iota // its highest bits are lost
	overflowSat                          // the largest or smallest takes its place
	overflowFail                         // nothing is done
)

func runBitField(c *Call) error { return c.bitField(false) }

func runBitFieldRO(c *Call) error { return c.bitField(true) }

func (c *Call) bitField(readOnly bool) error {
	ops, err := c.bitfieldOps()
	if err != nil {
		return err
	}
	size := int64(0) // the string must have so many bytes
	for i := range ops {
		if ops[i].code != bitfieldGet {
			size = max(size, (ops[i].at+ops[i].bits-1)/8+1)
		}
	}
	if readOnly && size > 0 {
		return errBitfieldReadOnly
	}
	e, _, err := c.head(c.Key(1), kindString)
	if err != nil {
		return err
	}
	if size == 0 {
		c.runBitfieldOps(e.Value, ops)
		return nil
	}
	if err := c.mayGrow(size, 0); err != nil {
		return err
	}
	return c.writeBitfield(&e, int(size), ops)
}

// writeBitfield runs ops that write. As in Redis the string grows to where they
// write even if a number does not fit and nothing is done.
func (c *Call) writeBitfield(e *store.Entry, size int, ops []bitfieldOp) error {
	value := grown(e.Value, size)
	if wrote := c.runBitfieldOps(value, ops); !wrote && len(value) == len(e.Value) {
		return nil
	}
	return c.putString(1, value, e.ExpireAt)
}

// runBitfieldOps runs the ops, writes the reply, and says whether value was
// written to.
func (c *Call) runBitfieldOps(value []byte, ops []bitfieldOp) (wrote bool) {
	c.Reply.Array(len(ops))
	for i := range ops {
		n, ok := ops[i].run(value)
		if !ok {
			c.Reply.Null()
			continue
		}
		wrote = wrote || ops[i].code != bitfieldGet
		c.Reply.Int(n)
	}
	return wrote
}

// bitfieldOps reads the subcommands.
func (c *Call) bitfieldOps() (ops []bitfieldOp, err error) {
	overflow := overflowWrap
	for i := 2; i < len(c.Args); {
		op, used := bitfieldOp{overflow: overflow}, 4
		behind := len(c.Args) - i - 1
		switch {
		case c.Is(i, "get") && behind >= 2:
			op.code, used = bitfieldGet, 3
		case c.Is(i, "set") && behind >= 3:
			op.code = bitfieldSet
		case c.Is(i, "incrby") && behind >= 3:
			op.code = bitfieldIncrBy
		case c.Is(i, "overflow") && behind >= 1:
			if overflow, err = c.bitfieldOverflow(i + 1); err != nil {
				return nil, err
			}
			i += 2
			continue
		default:
			return nil, errSyntax
		}
		if err := c.bitfieldArgs(&op, i+1); err != nil {
			return nil, err
		}
		ops = append(ops, op)
		i += used
	}
	return ops, nil
}

func (c *Call) bitfieldOverflow(i int) (bitfieldOverflow, error) {
	switch {
	case c.Is(i, "wrap"):
		return overflowWrap, nil
	case c.Is(i, "sat"):
		return overflowSat, nil
	case c.Is(i, "fail"):
		return overflowFail, nil
	default:
		return 0, errBitfieldOverflow
	}
}

// bitfieldArgs reads type, offset and value.
func (c *Call) bitfieldArgs(op *bitfieldOp, i int) (err error) {
	if err := op.parseType(c.Args[i]); err != nil {
		return err
	}
	at, unit := c.Args[i+1], int64(1)
	if len(at) > 0 && at[0] == '#' { // counted in numbers of this width
		at, unit = at[1:], op.bits
	}
	if op.at, err = c.checkBitOffset(at, unit); err != nil {
		return err
	}
	if op.code != bitfieldGet {
		op.value, err = c.Int(i + 2)
	}
	return err
}

// parseType reads a type as i16 or u8.
func (o *bitfieldOp) parseType(text []byte) error {
	if len(text) == 0 || text[0] != 'i' && text[0] != 'u' {
		return errBitfieldType
	}
	o.signed = text[0] == 'i'
	n, ok := parseInt(text[1:])
	if !ok || n < 1 || n > 64 || n == 64 && !o.signed {
		return errBitfieldType
	}
	o.bits = n
	return nil
}

// run does what the op says and returns the number for the reply: what SET found,
// what GET and INCRBY leave. ok is false where a number did not fit and nothing
// was done.
func (o *bitfieldOp) run(value []byte) (n int64, ok bool) {
	old := o.read(value)
	var next int64
	var fits bool
	switch {
	case o.code == bitfieldGet:
		return old, true
	case o.code == bitfieldSet:
		next, fits = o.add(o.value, 0)
	default:
		next, fits = o.add(old, o.value)
	}
	if !fits && o.overflow == overflowFail {
		return 0, false
	}
	o.write(value, next)
	if o.code == bitfieldSet {
		return old, true
	}
	return next, true
}

// add is a+b as the op's type holds it, and whether it fits there. SET adds 0 to a
// number that may be far out of range; there the differences wrap as in Redis,
// which then saturates at the wrong end.
func (o *bitfieldOp) add(a, b int64) (sum int64, fits bool) {
	least, most := o.bounds()
	sum = a + b
	above := a > most || (o.bits < 64 || a >= 0) && b > most-a
	if !o.signed && a < 0 {
		above = true // SET takes a negative number for a large one
	}
	below := a < least || (o.bits < 64 || a < 0) && b < least-a
	switch {
	case !above && !below:
		return sum, true
	case o.overflow == overflowWrap:
		return o.cut(sum), false
	case above:
		return most, false
	default:
		return least, false
	}
}

// bounds are the smallest and the largest number of the type.
func (o *bitfieldOp) bounds() (least, most int64) {
	if !o.signed {
		return 0, int64(uint64(1)<<o.bits - 1)
	}
	most = int64(uint64(1)<<(o.bits-1) - 1)
	return -most - 1, most
}

// cut is the lowest bits of a number as the type reads them.
func (o *bitfieldOp) cut(n int64) int64 {
	rest := 64 - o.bits
	if o.signed {
		return n << rest >> rest
	}
	return int64(uint64(n) << rest >> rest)
}

// read is the number in a string; what lies behind the string is zeros.
func (o *bitfieldOp) read(value []byte) int64 {
	n := int64(0)
	for i := range o.bits {
		n = n<<1 | int64(bitAt(value, o.at+i))
	}
	return o.cut(n)
}

// write puts a number into a string that is long enough.
func (o *bitfieldOp) write(value []byte, n int64) {
	for i := range o.bits {
		setBit(value, o.at+i, byte(n>>(o.bits-1-i)&1))
	}
}
