package rdb

import (
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"strconv"
)

// parser builds one value. Each encoding hands its entries to add, which knows
// what an entry is to a value of the kind: an element, a member, a field or the
// value that follows it.
type parser struct {
	limits   Limits
	value    Value
	half     bool   // a field or member came; its value or score is due
	first    []byte // that field or member
	seen     seen
	bytes    int    // of all elements so far
	unpacked int    // what LZF has yielded so far
	digits   []byte // a block in which integers are written; full ones are left to their elements
}

// entry is one item of a collection. Packed collections hold integers as such.
type entry struct {
	text  []byte
	num   int64
	isNum bool
}

// object reads the type byte and the value, to the end of c.
func (p *parser) object(c *cursor) error {
	code, err := c.uint8("the type")
	if err != nil {
		return err
	}
	if err := p.body(c, code); err != nil {
		return err
	}
	if c.left() > 0 {
		return c.fail(c.pos, "%d bytes follow the value", c.left())
	}
	return p.finish(c)
}

// body reads the value of a type.
func (p *parser) body(c *cursor, code byte) error {
	switch code {
	case typeString:
		p.value.Kind = String
		return p.text(c)
	case typeList:
		p.value.Kind = List
		return p.plain(c)
	case typeListZiplist:
		p.value.Kind = List
		return p.packed(c, (*parser).ziplist)
	case typeListQuicklist:
		p.value.Kind = List
		return p.quicklist(c)
	case typeListQuicklist2:
		p.value.Kind = List
		return p.quicklist2(c)
	case typeSet:
		p.value.Kind = Set
		return p.plain(c)
	case typeSetIntset:
		p.value.Kind = Set
		return p.packed(c, (*parser).intset)
	case typeSetListpack:
		p.value.Kind = Set
		return p.packed(c, (*parser).listpack)
	case typeHash:
		p.value.Kind = Hash
		return p.plain(c)
	case typeHashZipmap:
		p.value.Kind = Hash
		return p.packed(c, (*parser).zipmap)
	case typeHashZiplist:
		p.value.Kind = Hash
		return p.packed(c, (*parser).ziplist)
	case typeHashListpack:
		p.value.Kind = Hash
		return p.packed(c, (*parser).listpack)
	case typeZset:
		p.value.Kind = SortedSet
		return p.scored(c, 1, (*cursor).textScore)
	case typeZset2:
		p.value.Kind = SortedSet
		return p.scored(c, 8, (*cursor).binaryScore)
	case typeZsetZiplist:
		p.value.Kind = SortedSet
		return p.packed(c, (*parser).ziplist)
	case typeZsetListpack:
		p.value.Kind = SortedSet
		return p.packed(c, (*parser).listpack)
	case typeModulePreGA, typeModule:
		return c.failAs(ErrUnsupported, c.pos-1, "type %d is a value of a module", code)
	case typeStream, typeStream2, typeStream3:
		return c.failAs(ErrUnsupported, c.pos-1, "type %d is a stream", code)
	default:
		return c.fail(c.pos-1, "type %d is not known", code)
	}
}

// text reads a string value.
func (p *parser) text(c *cursor) error {
	at := c.pos
	s, err := p.str(c, "a string")
	if err != nil {
		return err
	}
	p.value.String = s.data
	return p.charge(c, at, len(s.data))
}

// plain reads a count and the strings of a list, a set or a hash.
func (p *parser) plain(c *cursor) error {
	each := p.entriesEach()
	n, err := c.count(each, "the number of "+p.nouns())
	if err != nil {
		return err
	}
	p.reserve(n * each)
	for range n * each {
		at := c.pos
		s, err := p.str(c, p.due())
		if err != nil {
			return err
		}
		if err := p.add(c, at, entry{text: s.data}); err != nil {
			return err
		}
	}
	return nil
}

// scored reads a count, and members each with a score of least bytes or more.
func (p *parser) scored(c *cursor, least int, score func(*cursor) (float64, error)) error {
	n, err := c.count(1+least, "the number of "+p.nouns())
	if err != nil {
		return err
	}
	p.reserve(2 * n)
	for range n {
		at := c.pos
		s, err := p.str(c, p.due())
		if err != nil {
			return err
		}
		if err := p.add(c, at, entry{text: s.data}); err != nil {
			return err
		}
		at = c.pos
		f, err := score(c)
		if err != nil {
			return err
		}
		if err := p.addScore(c, at, f); err != nil {
			return err
		}
	}
	return nil
}

// packed reads a string that holds a whole collection.
func (p *parser) packed(c *cursor, walk func(*parser, *cursor) error) error {
	s, err := p.str(c, "a packed "+p.value.Kind.String())
	if err != nil {
		return err
	}
	return walk(p, &s)
}

// quicklist reads a list in nodes that are ziplists. Redis writes no node
// without elements, but takes one.
func (p *parser) quicklist(c *cursor) error {
	n, err := c.count(1, "the number of nodes")
	if err != nil {
		return err
	}
	for range n {
		node, err := p.node(c)
		if err != nil {
			return err
		}
		if err := p.ziplist(&node); err != nil {
			return err
		}
	}
	return nil
}

// What the nodes of a quicklist of version 2 are.
const (
	nodePlain  = 1 // one element, too large to share a node
	nodePacked = 2 // a listpack
)

// quicklist2 reads a list in nodes that say what they are.
func (p *parser) quicklist2(c *cursor) error {
	n, err := c.count(2, "the number of nodes")
	if err != nil {
		return err
	}
	for range n {
		at := c.pos
		container, err := c.plainLength("the container of a node")
		if err != nil {
			return err
		}
		if container != nodePlain && container != nodePacked {
			return c.fail(at, "the container of a node is %d, neither plain (%d) nor packed (%d)", container, nodePlain, nodePacked)
		}
		at = c.pos
		node, err := p.node(c)
		if err != nil {
			return err
		}
		if container == nodePlain {
			err = p.add(c, at, entry{text: node.data})
		} else {
			err = p.listpack(&node)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// node reads the string that holds a node of a quicklist.
func (p *parser) node(c *cursor) (cursor, error) {
	at := c.pos
	node, err := p.str(c, "a node")
	if err == nil && len(node.data) == 0 {
		err = c.fail(at, "a node is an empty string")
	}
	return node, err
}

// The encodings of strings.
const (
	codeInt8  = 0
	codeInt16 = 1
	codeInt32 = 2
	codeLZF   = 3
)

// str reads a string, as a cursor over what it holds.
func (p *parser) str(c *cursor, what string) (cursor, error) {
	at := c.pos
	n, code, err := c.length(what)
	if err != nil {
		return cursor{}, err
	}
	if !code {
		start := c.pos
		b, err := c.take(n, what)
		return cursor{data: b, base: c.base + start, decoded: c.decoded}, err
	}
	var b []byte
	switch n {
	case codeInt8, codeInt16, codeInt32:
		var num int64
		num, err = c.int(1<<n, what)
		b = p.integer(num)
	case codeLZF:
		b, err = p.lzf(c, at, what)
	default:
		err = c.fail(at, "%s has the unknown encoding %d", what, n)
	}
	return cursor{data: b, base: c.base + at, decoded: true}, err
}

// lzf reads a compressed string, whose first byte stands at at.
func (p *parser) lzf(c *cursor, at int, what string) ([]byte, error) {
	packedLen, err := c.plainLength(what)
	if err != nil {
		return nil, err
	}
	declared, err := c.plainLength(what)
	if err != nil {
		return nil, err
	}
	start := c.pos
	src, err := c.take(packedLen, what)
	if err != nil {
		return nil, err
	}
	n, bad, how := lzfLen(src)
	if n < 0 {
		return nil, c.fail(start+bad, "%s is no LZF: %s", what, how)
	}
	if uint64(n) != declared {
		return nil, c.fail(at, "%s declares %d bytes, its LZF yields %d", what, declared, n)
	}
	if n > int64(p.limits.Bytes-p.unpacked) {
		return nil, c.failAs(ErrLimit, at, "LZF yields more than %d bytes", p.limits.Bytes)
	}
	p.unpacked += int(n)
	return unpackLZF(src, int(n)), nil
}

// add takes the next entry of the collection, read at position at.
func (p *parser) add(c *cursor, at int, e entry) error {
	if p.half && p.value.Kind == SortedSet {
		f, ok := e.score()
		if !ok {
			return c.fail(at, "a score is %.64q, not a number", e.text)
		}
		return p.addScore(c, at, f)
	}
	b := e.text
	if e.isNum {
		b = p.integer(e.num)
	}
	if err := p.charge(c, at, len(b)); err != nil {
		return err
	}
	if p.half {
		p.half = false
		p.value.Hash = append(p.value.Hash, Pair{Field: p.first, Value: b})
		return nil
	}
	if p.len() == p.limits.Elements {
		return c.failAs(ErrLimit, at, "there are more than %d %s", p.limits.Elements, p.nouns())
	}
	if p.value.Kind == List {
		p.value.List = append(p.value.List, b)
		return nil
	}
	if !p.seen.add(b, p.member) {
		return c.fail(at, "the %s %.64q comes twice", p.noun(), b)
	}
	if p.value.Kind == Set {
		p.value.Set = append(p.value.Set, b)
		return nil
	}
	p.half, p.first = true, b
	return nil
}

// addScore takes the score of the member that came last.
func (p *parser) addScore(c *cursor, at int, f float64) error {
	if math.IsNaN(f) {
		return c.fail(at, "the score of %.64q is NaN", p.first)
	}
	p.half = false
	p.value.SortedSet = append(p.value.SortedSet, Scored{Member: p.first, Score: f})
	return nil
}

// finish checks what only the end shows.
func (p *parser) finish(c *cursor) error {
	switch {
	case p.half:
		return c.fail(c.pos, "the last %s, %.64q, has no %s", p.noun(), p.first, p.partner())
	case p.value.Kind != String && p.len() == 0:
		return c.fail(c.pos, "a %s without %s", p.value.Kind, p.nouns())
	}
	return nil
}

// charge counts n bytes of elements.
func (p *parser) charge(c *cursor, at, n int) error {
	if n > p.limits.Bytes-p.bytes {
		return c.failAs(ErrLimit, at, "the value has more than %d bytes", p.limits.Bytes)
	}
	p.bytes += n
	return nil
}

// reserve makes room for n entries more. The caller has made sure that the
// bytes at hand can hold as many.
func (p *parser) reserve(n int) {
	n = min(n/p.entriesEach(), p.limits.Elements-p.len())
	switch p.value.Kind {
	case List:
		p.value.List = slices.Grow(p.value.List, n)
		return
	case Set:
		p.value.Set = slices.Grow(p.value.Set, n)
	case Hash:
		p.value.Hash = slices.Grow(p.value.Hash, n)
	case SortedSet:
		p.value.SortedSet = slices.Grow(p.value.SortedSet, n)
	}
	p.seen.reserve(n, p.member)
}

// entriesEach returns how many entries make one element.
func (p *parser) entriesEach() int {
	if p.value.Kind == Hash || p.value.Kind == SortedSet {
		return 2
	}
	return 1
}

// len returns the number of whole elements.
func (p *parser) len() int {
	switch p.value.Kind {
	case List:
		return len(p.value.List)
	case Set:
		return len(p.value.Set)
	case Hash:
		return len(p.value.Hash)
	case SortedSet:
		return len(p.value.SortedSet)
	default:
		return 0
	}
}

// member returns what makes element i unique.
func (p *parser) member(i int) []byte {
	switch p.value.Kind {
	case Set:
		return p.value.Set[i]
	case Hash:
		return p.value.Hash[i].Field
	default:
		return p.value.SortedSet[i].Member
	}
}

// due names what the next entry is; noun, nouns and partner name the elements of
// the kind. They are for errors.
func (p *parser) due() string {
	switch {
	case p.half:
		return "a value" // scores are read as such
	case p.value.Kind == List:
		return "an element"
	case p.value.Kind == Hash:
		return "a field"
	default:
		return "a member"
	}
}

func (p *parser) noun() string {
	switch p.value.Kind {
	case List:
		return "element"
	case Hash:
		return "field"
	default:
		return "member"
	}
}

func (p *parser) nouns() string { return p.noun() + "s" }

func (p *parser) partner() string {
	if p.value.Kind == Hash {
		return "value"
	}
	return "score"
}

// Integers are written into blocks: a slice of its own for each would cost as
// much as the digits again.
const (
	digitsMax   = 20 // of an int64, with its sign
	digitsFirst = 2 * digitsMax
	digitsBlock = 4096
)

// integer returns the text of num.
func (p *parser) integer(num int64) []byte {
	if cap(p.digits)-len(p.digits) < digitsMax {
		p.digits = make([]byte, 0, min(max(2*cap(p.digits), digitsFirst), digitsBlock))
	}
	start := len(p.digits)
	p.digits = strconv.AppendInt(p.digits, num, 10)
	return p.digits[start:len(p.digits):len(p.digits)]
}

// score returns e as the score of a sorted set.
func (e entry) score() (float64, bool) {
	if e.isNum {
		return float64(e.num), true
	}
	return parseScore(e.text)
}

// parseScore reads a score as Redis writes it: decimal, or inf. A number beyond
// the range of float64 is infinite, as for strtod. NaN is not told apart here.
func parseScore(text []byte) (float64, bool) {
	for _, b := range text {
		if b == '_' || b == 'x' || b == 'X' || b == 'p' || b == 'P' {
			return 0, false // strconv would read them; Redis writes none
		}
	}
	f, err := strconv.ParseFloat(string(text), 64)
	return f, err == nil || errors.Is(err, strconv.ErrRange)
}

// binaryScore reads a score of type 5.
func (c *cursor) binaryScore() (float64, error) {
	b, err := c.take(8, "a score")
	if err != nil {
		return 0, err
	}
	return math.Float64frombits(binary.LittleEndian.Uint64(b)), nil
}

// Lengths of a score of type 3 that are none.
const (
	scoreNaN      = 253
	scorePlusInf  = 254
	scoreMinusInf = 255
)

// textScore reads a score of type 3.
func (c *cursor) textScore() (float64, error) {
	at := c.pos
	n, err := c.uint8("the length of a score")
	if err != nil {
		return 0, err
	}
	switch n {
	case scoreNaN:
		return math.NaN(), nil
	case scorePlusInf:
		return math.Inf(1), nil
	case scoreMinusInf:
		return math.Inf(-1), nil
	}
	text, err := c.take(uint64(n), "a score")
	if err != nil {
		return 0, err
	}
	f, ok := parseScore(text)
	if !ok {
		return 0, c.fail(at, "a score is %.64q, not a number", text)
	}
	return f, nil
}
