package rdb

// The packed collections: one string that holds all entries one behind the
// other. Each begins with a head and (but for the intset) ends with a byte 0xFF.
const packedEnd = 0xFF

// open checks the bytes that a packed collection says to have, and that it ends
// where it should; the end byte is taken off c, so that no entry runs into it.
func (c *cursor) open(size uint64, what string) error {
	if size != uint64(len(c.data)) {
		return c.fail(0, "a %s says it has %d bytes, it has %d", what, size, len(c.data))
	}
	return c.cutEnd(what)
}

func (c *cursor) cutEnd(what string) error {
	if c.left() == 0 {
		return c.fail(c.pos, "a %s without its end byte", what)
	}
	last := len(c.data) - 1
	if c.data[last] != packedEnd {
		return c.fail(last, "a %s ends with %#02x, not with %#02x", what, c.data[last], packedEnd)
	}
	c.data = c.data[:last]
	return nil
}

// countUnknown is the count of a listpack or a ziplist that has as many entries
// or more.
const countUnknown = 0xFFFF

// checkCount compares the count in the head with the entries found.
func (c *cursor) checkCount(declared uint16, found int, what string) error {
	if declared != countUnknown && int(declared) != found {
		return c.fail(0, "a %s says it has %d entries, it has %d", what, declared, found)
	}
	return nil
}

// A listpack: its size in four bytes and its count in two; entries; the end. An
// entry is its data, then the length of that, to be read from behind.
//
// The first bits of the data say what it is:
const (
	lpUint7  = 0x00 // 0xxxxxxx: an integer from 0 to 127
	lpStr6   = 0x80 // 10xxxxxx: a string of up to 63 bytes
	lpInt13  = 0xC0 // 110xxxxx: an integer, lower bits in the next byte
	lpStr12  = 0xE0 // 1110xxxx: a string, lower bits of its length in the next byte
	lpStr32  = 0xF0 // a string, its length in four bytes
	lpInt16  = 0xF1
	lpInt24  = 0xF2
	lpInt32  = 0xF3
	lpInt64  = 0xF4
	lpMin    = 2 // bytes of the shortest entry
	lpWhat   = "listpack"
	lpEntry  = "an entry of a listpack"
	lpLength = "the length behind an entry"
)

func (p *parser) listpack(c *cursor) error {
	size, err := c.uint32("the size of a listpack")
	if err != nil {
		return err
	}
	count, err := c.uint16("the count of a listpack")
	if err != nil {
		return err
	}
	if err := c.open(uint64(size), lpWhat); err != nil {
		return err
	}
	p.reserve(min(int(count), c.left()/lpMin))
	n := 0
	for ; c.left() > 0; n++ {
		at := c.pos
		e, err := c.listpackEntry()
		if err != nil {
			return err
		}
		if err := c.backLength(c.pos - at); err != nil {
			return err
		}
		if err := p.add(c, at, e); err != nil {
			return err
		}
	}
	return c.checkCount(count, n, lpWhat)
}

// listpackEntry reads the data of an entry.
func (c *cursor) listpackEntry() (entry, error) {
	at := c.pos
	b, err := c.uint8(lpEntry)
	if err != nil {
		return entry{}, err
	}
	switch {
	case b&0x80 == lpUint7:
		return entry{num: int64(b), isNum: true}, nil
	case b&0xC0 == lpStr6:
		return c.textEntry(uint64(b&0x3F), lpEntry)
	case b&0xE0 == lpInt13:
		low, err := c.uint8(lpEntry)
		num := int64(b&0x1F)<<8 | int64(low)
		return entry{num: num << (64 - 13) >> (64 - 13), isNum: true}, err
	case b&0xF0 == lpStr12:
		low, err := c.uint8(lpEntry)
		if err != nil {
			return entry{}, err
		}
		return c.textEntry(uint64(b&0x0F)<<8|uint64(low), lpEntry)
	case b == lpStr32:
		n, err := c.uint32(lpEntry)
		if err != nil {
			return entry{}, err
		}
		return c.textEntry(uint64(n), lpEntry)
	case b == lpInt16:
		return c.intEntry(2, lpEntry)
	case b == lpInt24:
		return c.intEntry(3, lpEntry)
	case b == lpInt32:
		return c.intEntry(4, lpEntry)
	case b == lpInt64:
		return c.intEntry(8, lpEntry)
	default:
		return entry{}, c.fail(at, "an entry of a listpack begins with %#02x, which begins none", b)
	}
}

// backLength reads the length behind the data of an entry, n bytes long: seven
// bits a byte, the highest first, all bytes but the first marked with 0x80.
func (c *cursor) backLength(n int) error {
	at := c.pos
	b, err := c.take(uint64(backLengthLen(n)), lpLength)
	if err != nil {
		return err
	}
	got := 0
	for i, x := range b {
		if marked := x&0x80 != 0; marked != (i > 0) {
			return c.fail(at, "%s is malformed", lpLength)
		}
		got = got<<7 | int(x&0x7F)
	}
	if got != n {
		return c.fail(at, "%s is %d, the entry has %d bytes", lpLength, got, n)
	}
	return nil
}

// backLengthLen returns how many bytes the length n takes behind an entry. That
// the largest number of two bytes or more is given one byte more than it needs
// is how Redis does it.
func backLengthLen(n int) int {
	switch {
	case n < 1<<7:
		return 1
	case n < 1<<14-1:
		return 2
	case n < 1<<21-1:
		return 3
	case n < 1<<28-1:
		return 4
	default:
		return 5
	}
}

// A ziplist: its size and the place of its last entry in four bytes each, its
// count in two; entries; the end. An entry is the length of the one before it
// (in one byte, or in four behind a byte 0xFE), then its data, whose first bits
// say what it is:
const (
	zlLongPrev = 0xFE
	zlStr6     = 0x00 // 00xxxxxx: a string of up to 63 bytes
	zlStr14    = 0x40 // 01xxxxxx: a string, lower bits of its length in the next byte
	zlStr32    = 0x80 // 10......: a string, its length in four bytes, big endian
	zlInt16    = 0xC0
	zlInt32    = 0xD0
	zlInt64    = 0xE0
	zlInt24    = 0xF0
	zlInt8     = 0xFE
	zlUint4Min = 0xF1 // from here to the next, an integer: 0 to 12
	zlUint4Max = 0xFD
	zlMin      = 2 // bytes of the shortest entry
	zlWhat     = "ziplist"
	zlEntry    = "an entry of a ziplist"
	zlPrev     = "the length before an entry"
)

func (p *parser) ziplist(c *cursor) error {
	size, err := c.uint32("the size of a ziplist")
	if err != nil {
		return err
	}
	tail, err := c.uint32("the place of the last entry of a ziplist")
	if err != nil {
		return err
	}
	count, err := c.uint16("the count of a ziplist")
	if err != nil {
		return err
	}
	if err := c.open(uint64(size), zlWhat); err != nil {
		return err
	}
	p.reserve(min(int(count), c.left()/zlMin))
	n, last := 0, c.pos
	for prev := 0; c.left() > 0; n++ {
		last = c.pos
		if err := c.prevLength(prev); err != nil {
			return err
		}
		e, err := c.ziplistEntry()
		if err != nil {
			return err
		}
		if err := p.add(c, last, e); err != nil {
			return err
		}
		prev = c.pos - last
	}
	if uint64(tail) != uint64(last) {
		return c.fail(0, "a ziplist says its last entry is at byte %d, it is at %d", tail, last)
	}
	return c.checkCount(count, n, zlWhat)
}

// prevLength reads the length of the entry before, which has want bytes.
func (c *cursor) prevLength(want int) error {
	at := c.pos
	short, err := c.uint8(zlPrev)
	if err != nil {
		return err
	}
	n := uint32(short)
	switch {
	case short == packedEnd:
		return c.fail(at, "the end byte before the end of a ziplist")
	case short == zlLongPrev:
		if n, err = c.uint32(zlPrev); err != nil {
			return err
		}
	}
	if uint64(n) != uint64(want) {
		return c.fail(at, "%s is %d, the entry there has %d bytes", zlPrev, n, want)
	}
	return nil
}

// ziplistEntry reads the data of an entry.
func (c *cursor) ziplistEntry() (entry, error) {
	at := c.pos
	b, err := c.uint8(zlEntry)
	if err != nil {
		return entry{}, err
	}
	switch {
	case b&0xC0 == zlStr6:
		return c.textEntry(uint64(b), zlEntry)
	case b&0xC0 == zlStr14:
		low, err := c.uint8(zlEntry)
		if err != nil {
			return entry{}, err
		}
		return c.textEntry(uint64(b&0x3F)<<8|uint64(low), zlEntry)
	case b&0xC0 == zlStr32:
		n, err := c.take(4, zlEntry)
		if err != nil {
			return entry{}, err
		}
		return c.textEntry(uint64(n[0])<<24|uint64(n[1])<<16|uint64(n[2])<<8|uint64(n[3]), zlEntry)
	case b == zlInt16:
		return c.intEntry(2, zlEntry)
	case b == zlInt32:
		return c.intEntry(4, zlEntry)
	case b == zlInt64:
		return c.intEntry(8, zlEntry)
	case b == zlInt24:
		return c.intEntry(3, zlEntry)
	case b == zlInt8:
		return c.intEntry(1, zlEntry)
	case b >= zlUint4Min && b <= zlUint4Max:
		return entry{num: int64(b - zlUint4Min), isNum: true}, nil
	default:
		return entry{}, c.fail(at, "an entry of a ziplist begins with %#02x, which begins none", b)
	}
}

// textEntry reads an entry of n bytes of text.
func (c *cursor) textEntry(n uint64, what string) (entry, error) {
	b, err := c.take(n, what)
	return entry{text: b}, err
}

// intEntry reads an entry that is an integer of width bytes.
func (c *cursor) intEntry(width uint64, what string) (entry, error) {
	num, err := c.int(width, what)
	return entry{num: num, isNum: true}, err
}

// A zipmap: its count in one byte, or zmMany for as many or more; entries; the
// end. An entry is the length of a field and the field, the length of a value,
// how many bytes behind it are unused, the value and those bytes. A length is
// one byte, or four behind a byte zmLong.
const (
	zmMany  = 254
	zmLong  = 254
	zmMin   = 3 // bytes of the shortest entry
	zmWhat  = "zipmap"
	zmField = "a field of a zipmap"
	zmValue = "a value of a zipmap"
)

func (p *parser) zipmap(c *cursor) error {
	count, err := c.uint8("the count of a zipmap")
	if err != nil {
		return err
	}
	if err := c.cutEnd(zmWhat); err != nil {
		return err
	}
	p.reserve(2 * min(int(count), c.left()/zmMin))
	n := 0
	for ; c.left() > 0; n++ {
		if err := p.zipmapPair(c); err != nil {
			return err
		}
	}
	if count != zmMany && int(count) != n {
		return c.fail(0, "a zipmap says it has %d fields, it has %d", count, n)
	}
	return nil
}

func (p *parser) zipmapPair(c *cursor) error {
	at := c.pos
	n, err := c.zipmapLength(zmField)
	if err != nil {
		return err
	}
	field, err := c.take(n, zmField)
	if err != nil {
		return err
	}
	if err := p.add(c, at, entry{text: field}); err != nil {
		return err
	}
	at = c.pos
	if n, err = c.zipmapLength(zmValue); err != nil {
		return err
	}
	free, err := c.uint8(zmValue)
	if err != nil {
		return err
	}
	value, err := c.take(n, zmValue)
	if err != nil {
		return err
	}
	if _, err := c.take(uint64(free), "the free bytes of a zipmap"); err != nil {
		return err
	}
	return p.add(c, at, entry{text: value})
}

func (c *cursor) zipmapLength(what string) (uint64, error) {
	at := c.pos
	short, err := c.uint8(what)
	if err != nil {
		return 0, err
	}
	switch short {
	case packedEnd:
		return 0, c.fail(at, "the end byte before the end of a zipmap")
	case zmLong:
		n, err := c.uint32(what)
		return uint64(n), err
	default:
		return uint64(short), nil
	}
}

// An intset: the width of its members and their number, in four bytes each; the
// members, ascending.
const isWhat = "a member of an intset"

func (p *parser) intset(c *cursor) error {
	width, err := c.uint32("the width of an intset")
	if err != nil {
		return err
	}
	if width != 2 && width != 4 && width != 8 {
		return c.fail(0, "an intset has members of %d bytes, not 2, 4 or 8", width)
	}
	at := c.pos
	n, err := c.uint32("the count of an intset")
	if err != nil {
		return err
	}
	if uint64(n)*uint64(width) != uint64(c.left()) {
		return c.fail(at, "an intset says it has %d members of %d bytes, it has %d bytes", n, width, c.left())
	}
	p.reserve(int(n))
	var last int64
	for i := range n {
		at := c.pos
		num, err := c.int(uint64(width), isWhat)
		if err != nil {
			return err
		}
		if i > 0 && num <= last {
			return c.fail(at, "%s, %d, is not above the one before it, %d", isWhat, num, last)
		}
		last = num
		if err := p.add(c, at, entry{num: num, isNum: true}); err != nil {
			return err
		}
	}
	return nil
}
