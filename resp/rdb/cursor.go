package rdb

import (
	"encoding/binary"
	"fmt"
)

// cursor reads a run of bytes: the payload, or a string of it that holds a
// packed collection.
type cursor struct {
	data []byte
	pos  int
	base int // where data begins in the payload
	// decoded: data was made from the string at base (by LZF, say), so that pos
	// counts no bytes of the payload.
	decoded bool
}

func (c *cursor) left() int { return len(c.data) - c.pos }

// fail returns an ErrFormat about what stands at position at.
func (c *cursor) fail(at int, format string, args ...any) error {
	return c.failAs(ErrFormat, at, format, args...)
}

func (c *cursor) failAs(reason error, at int, format string, args ...any) error {
	if c.decoded {
		return failure(reason, c.base, "%s (at byte %d of what the string there holds)", fmt.Sprintf(format, args...), at)
	}
	return failure(reason, c.base+at, format, args...)
}

// take returns the next n bytes, which belong to what is named. They have no
// spare capacity: appending to an element must not write into the next one.
func (c *cursor) take(n uint64, what string) ([]byte, error) {
	if n > uint64(c.left()) {
		return nil, c.fail(c.pos, "%s needs %d bytes, %d are left", what, n, c.left())
	}
	end := c.pos + int(n)
	b := c.data[c.pos:end:end]
	c.pos = end
	return b, nil
}

func (c *cursor) uint8(what string) (byte, error) {
	if c.left() < 1 {
		return 0, c.fail(c.pos, "%s needs 1 byte, 0 are left", what)
	}
	c.pos++
	return c.data[c.pos-1], nil
}

// uint16 and uint32 read little endian, as the heads of packed collections are
// written.
func (c *cursor) uint16(what string) (uint16, error) {
	b, err := c.take(2, what)
	if err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint16(b), nil
}

func (c *cursor) uint32(what string) (uint32, error) {
	b, err := c.take(4, what)
	if err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint32(b), nil
}

// int reads a signed little-endian integer of width bytes.
func (c *cursor) int(width uint64, what string) (int64, error) {
	b, err := c.take(width, what)
	if err != nil {
		return 0, err
	}
	var u uint64
	for i, x := range b {
		u |= uint64(x) << (8 * i)
	}
	shift := 64 - 8*width
	return int64(u<<shift) >> shift, nil // the shift back carries the sign
}

// length reads a length. Where code is set it is none: n names the encoding of
// a string instead.
func (c *cursor) length(what string) (n uint64, code bool, err error) {
	at := c.pos
	first, err := c.uint8(what)
	if err != nil {
		return 0, false, err
	}
	switch {
	case first&lenBits == len6:
		return uint64(first), false, nil
	case first&lenBits == len14:
		second, err := c.uint8(what)
		return uint64(first&^lenBits)<<8 | uint64(second), false, err
	case first&lenBits == lenCode:
		return uint64(first &^ lenBits), true, nil
	case first == len32:
		b, err := c.take(4, what)
		if err != nil {
			return 0, false, err
		}
		return uint64(binary.BigEndian.Uint32(b)), false, nil
	case first == len64:
		b, err := c.take(8, what)
		if err != nil {
			return 0, false, err
		}
		return binary.BigEndian.Uint64(b), false, nil
	default:
		return 0, false, c.fail(at, "%s begins with %#02x, which begins no length", what, first)
	}
}

// plainLength reads a length where no encoding may stand.
func (c *cursor) plainLength(what string) (uint64, error) {
	at := c.pos
	n, code, err := c.length(what)
	if err == nil && code {
		err = c.fail(at, "%s is the code of an encoding (%d), not a length", what, n)
	}
	return n, err
}

// count reads how many things follow, each of least bytes or more. One that the
// bytes left cannot hold is refused at once, so that it may size a slice.
func (c *cursor) count(least int, what string) (int, error) {
	at := c.pos
	n, err := c.plainLength(what)
	if err != nil {
		return 0, err
	}
	if n > uint64(c.left()/least) {
		return 0, c.fail(at, "%s is %d, more than the %d bytes left can hold", what, n, c.left())
	}
	return int(n), nil
}
