package slotmesh

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
)

// plan is what the encoding of one Go type looks like. Every walk follows a
// plan, so it is as deep as the type, whatever the input.
type plan struct {
	kind   planKind
	most   uint64         // of integers: the largest; of negative ones, how far below -1
	count  int            // of structs and arrays: fields, elements
	least  int            // bytes of the shortest encoding
	size   int            // bytes in memory
	elem   *plan          // of arrays and slices
	fields []plannedField // of structs
}

type plannedField struct {
	name string
	*plan
}

type planKind uint8

const (
	planBool planKind = iota
	planUint
	planInt
	planString
	planBytes     // []byte
	planByteArray // [N]byte
	planStruct
	planArray // [N]T
	planSlice
)

// plans are those of the types that the core sends and saves, whichever node does
// it: made once, and never changed. A type that is not among them, as those that a
// connection needs once, only costs the making of its plan each time.
var plans = plansOf(wireTypes())

// wireTypes are the messages, and what stands in the cells of the core.
func wireTypes() []reflect.Type {
	types := []reflect.Type{reflect.TypeFor[wireBeat](),
		reflect.TypeFor[nodeCell](), reflect.TypeFor[peerEntry](), reflect.TypeFor[slotRuns](), reflect.TypeFor[Epoch](),
		reflect.TypeFor[voterSet](), reflect.TypeFor[voteCell](), reflect.TypeFor[acceptRuns](), reflect.TypeFor[openRuns](),
		reflect.TypeFor[numberCell](), reflect.TypeFor[ballot](), reflect.TypeFor[startCell](), reflect.TypeFor[startValue]()}
	for k := msgKind(1); k < numMsgKinds; k++ {
		if m, err := newMessage(k); err == nil {
			types = append(types, reflect.TypeOf(m).Elem())
		}
	}
	return types
}

func plansOf(types []reflect.Type) map[reflect.Type]*plan {
	plans := make(map[reflect.Type]*plan, len(types))
	for _, t := range types {
		if p, err := makePlan(t, nil); err == nil {
			plans[t] = p
		}
	}
	return plans
}

func planOf(t reflect.Type) (*plan, error) {
	if p := plans[t]; p != nil {
		return p, nil
	}
	return makePlan(t, nil)
}

// makePlan refuses types whose values would have no meaning on the wire, or more
// than one: pointers, maps, interfaces, unexported fields. outer holds the types
// around t.
func makePlan(t reflect.Type, outer []reflect.Type) (p *plan, err error) {
	if slices.Contains(outer, t) {
		return nil, fmt.Errorf("type %v contains itself, expected one of limited depth", t)
	}
	outer = append(outer, t)
	p = &plan{size: int(t.Size()), least: 1}
	switch t.Kind() {
	case reflect.Bool:
		p.kind = planBool
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uint:
		p.kind, p.most = planUint, 1<<t.Bits()-1
	case reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Int:
		p.kind, p.most = planInt, 1<<(t.Bits()-1)-1
	case reflect.String:
		p.kind = planString
	case reflect.Struct:
		err = p.planFields(t, outer)
	case reflect.Array, reflect.Slice:
		err = p.planElements(t, outer)
	default:
		err = fmt.Errorf("type %v has no encoding, expected structs, slices, arrays, strings, integers and bools", t)
	}
	return p, err
}

func (p *plan) planFields(t reflect.Type, outer []reflect.Type) error {
	p.kind, p.count = planStruct, t.NumField()
	p.least = lengthSize(isArray, p.count)
	for i := range p.count {
		f := t.Field(i)
		if !f.IsExported() {
			return fmt.Errorf("field %v.%s is not exported and would be lost", t, f.Name)
		}
		field, err := makePlan(f.Type, outer)
		if err != nil {
			return err
		}
		p.fields = append(p.fields, plannedField{f.Name, field})
		p.least += field.least
	}
	return nil
}

func (p *plan) planElements(t reflect.Type, outer []reflect.Type) (err error) {
	isSlice, ofBytes := t.Kind() == reflect.Slice, t.Elem().Kind() == reflect.Uint8
	if !isSlice {
		p.count = t.Len()
	}
	if ofBytes {
		p.kind = planByteArray
		if isSlice {
			p.kind = planBytes
		}
		p.least = lengthSize(isBin, p.count) + p.count
		return nil
	}
	p.kind = planArray
	if isSlice {
		p.kind = planSlice
	}
	if p.elem, err = makePlan(t.Elem(), outer); err != nil {
		return err
	}
	p.least = lengthSize(isArray, p.count) + p.count*p.elem.least
	return nil
}

// token is what a msgpack value begins with.
type token struct {
	is family
	n  uint64 // value, length, or how far a negative integer is below -1
}

type family uint8

const (
	isNothing family = iota // a code that msgpack does not use
	isNil
	isBool
	isUint
	isNegative
	isFloat
	isString
	isBin
	isArray
	isMap
	isExt
)

func (f family) String() string {
	return [...]string{"an unused code", "nil", "a bool", "an integer", "a negative integer", "a float",
		"a string", "bin", "an array", "a map", "an extension"}[f]
}

// codes are the codes of msgpack that do not carry their number in themselves.
// width bytes follow, for a number of at least least: a smaller one has a shorter
// form.
var codes = [256]struct {
	is    family
	width int
	least uint64
}{
	0xc0: {is: isNil},
	0xc2: {is: isBool}, 0xc3: {is: isBool},
	0xc4: {isBin, 1, 0}, 0xc5: {isBin, 2, 1 << 8}, 0xc6: {isBin, 4, 1 << 16},
	0xc7: {is: isExt}, 0xc8: {is: isExt}, 0xc9: {is: isExt},
	0xca: {is: isFloat}, 0xcb: {is: isFloat},
	0xcc: {isUint, 1, 1 << 7}, 0xcd: {isUint, 2, 1 << 8}, 0xce: {isUint, 4, 1 << 16}, 0xcf: {isUint, 8, 1 << 32},
	0xd0: {isNegative, 1, 1 << 5}, 0xd1: {isNegative, 2, 1 << 7}, 0xd2: {isNegative, 4, 1 << 15}, 0xd3: {isNegative, 8, 1 << 31},
	0xd4: {is: isExt}, 0xd5: {is: isExt}, 0xd6: {is: isExt}, 0xd7: {is: isExt}, 0xd8: {is: isExt},
	0xd9: {isString, 1, 1 << 5}, 0xda: {isString, 2, 1 << 8}, 0xdb: {isString, 4, 1 << 16},
	0xdc: {isArray, 2, 1 << 4}, 0xdd: {isArray, 4, 1 << 16},
	0xde: {is: isMap}, 0xdf: {is: isMap},
}

// lengthSize is how many bytes a token of a bin or array of n takes.
func lengthSize(is family, n int) int {
	switch {
	case n < 1<<4 && is == isArray:
		return 1
	case n < 1<<8 && is == isBin:
		return 2
	case n < 1<<16:
		return 3
	default:
		return 5
	}
}

// checker walks over an encoding before it is decoded.
type checker struct {
	rest   []byte
	memory int // that decoding what has been seen takes
	most   int // memory allowed
}

// check returns nil if b is the encoding of a value of the type of p.
func (p *plan) check(b []byte) *malformed {
	// Some entries take six times as much memory as their shortest encoding.
	// Real ones take less than four times as much, and so may all together.
	c := checker{rest: b, most: 4*len(b) + 32<<10}
	if bad := c.value(p); bad != nil {
		return bad
	}
	if len(c.rest) > 0 {
		return wrong("%d bytes more than the value has", len(c.rest))
	}
	return nil
}

func (c *checker) value(p *plan) *malformed {
	t, bad := c.token()
	if bad != nil {
		return bad
	}
	switch p.kind {
	case planBool:
		return t.expect(isBool)
	case planUint:
		return t.integer(p.most, false)
	case planInt:
		return t.integer(p.most, true)
	case planString:
		return c.bytes(p, t, isString)
	case planBytes, planByteArray:
		return c.bytes(p, t, isBin)
	case planStruct:
		return c.fields(p, t)
	default:
		return c.elements(p, t)
	}
}

func (c *checker) fields(p *plan, t token) *malformed {
	if bad := t.counts(isArray, p.count, "fields"); bad != nil {
		return bad
	}
	for i := range p.fields {
		if bad := c.value(p.fields[i].plan); bad != nil {
			bad.Path = "." + p.fields[i].name + bad.Path
			return bad
		}
	}
	return nil
}

func (c *checker) elements(p *plan, t token) *malformed {
	if p.kind == planArray {
		if bad := t.counts(isArray, p.count, "elements"); bad != nil {
			return bad
		}
	} else if bad := c.room(t, isArray, p.elem.least, p.elem.size); bad != nil {
		return bad
	}
	for i := range int(t.n) {
		if bad := c.value(p.elem); bad != nil {
			bad.Path = "[" + strconv.Itoa(i) + "]" + bad.Path
			return bad
		}
	}
	return nil
}

func (c *checker) bytes(p *plan, t token, is family) *malformed {
	if p.kind == planByteArray {
		if bad := t.counts(isBin, p.count, "bytes"); bad != nil {
			return bad
		}
	}
	memory := 1
	if is == isString && t.n > shortText {
		memory = 2
	}
	if bad := c.room(t, is, 1, memory); bad != nil {
		return bad
	}
	c.rest = c.rest[t.n:]
	return nil
}

// room returns an error unless there is room for t.n things of at least least
// bytes each here, and of size bytes each in memory.
func (c *checker) room(t token, is family, least, size int) *malformed {
	if bad := t.expect(is); bad != nil {
		return bad
	}
	if most := uint64(len(c.rest) / least); t.n > most {
		return wrong("%v of %d, expected at most %d: %d bytes are left", is, t.n, most, len(c.rest))
	}
	if c.memory += int(t.n) * size; c.memory > c.most {
		return wrong("%d bytes of memory are needed for all up to here, expected at most %d", c.memory, c.most)
	}
	return nil
}

func (t token) expect(is family) *malformed {
	if t.is != is {
		return wrong("%v, expected %v", t.is, is)
	}
	return nil
}

func (t token) counts(is family, n int, what string) *malformed {
	switch {
	case t.is != is:
		return wrong("%v, expected %v of %d %s", t.is, is, n, what)
	case t.n != uint64(n):
		return wrong("%v of %d, expected %d %s", is, t.n, n, what)
	}
	return nil
}

func (t token) integer(most uint64, signed bool) *malformed {
	lowest := int64(0)
	if signed {
		lowest = -int64(most) - 1
	}
	switch {
	case t.is != isUint && t.is != isNegative, t.is == isNegative && !signed:
		return wrong("%v, expected an integer from %d to %d", t.is, lowest, most)
	case t.n > most && t.is == isNegative:
		return wrong("-%d, expected at least %d", t.n+1, lowest)
	case t.n > most:
		return wrong("%d, expected at most %d", t.n, most)
	}
	return nil
}

// token reads the beginning of a value.
func (c *checker) token() (token, *malformed) {
	if len(c.rest) == 0 {
		return token{}, wrong("the end, expected a value")
	}
	code := c.rest[0]
	c.rest = c.rest[1:]
	switch {
	case code < 0x80:
		return token{isUint, uint64(code)}, nil
	case code < 0x90:
		return token{isMap, uint64(code & 0x0f)}, nil
	case code < 0xa0:
		return token{isArray, uint64(code & 0x0f)}, nil
	case code < 0xc0:
		return token{isString, uint64(code & 0x1f)}, nil
	case code < 0xe0:
		return c.longToken(code)
	default:
		return token{isNegative, uint64(^code)}, nil
	}
}

func (c *checker) longToken(code byte) (token, *malformed) {
	is, width, least := codes[code].is, codes[code].width, codes[code].least
	if len(c.rest) < width {
		return token{}, wrong("the end, expected the %d bytes of %v", width, is)
	}
	var n uint64
	for _, b := range c.rest[:width] {
		n = n<<8 | uint64(b)
	}
	c.rest = c.rest[width:]
	if is == isNegative {
		n = ^n & (1<<(8*width) - 1)
		if n>>(8*width-1) == 1 {
			return token{}, wrong("a positive integer in a signed form, expected its shortest")
		}
	}
	if n < least {
		return token{}, wrong("%v in %d bytes, expected its shortest form", is, 1+width)
	}
	return token{is, n}, nil
}
