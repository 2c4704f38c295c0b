package resp

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"math/bits"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	lua "github.com/yuin/gopher-lua"
)

// libError is an error of a library, in the words of the library that scripts
// know.
func libError(format string, args ...any) error { return Error(fmt.Sprintf(format, args...)) }

// ---- cjson

const jsonNested = 1000 // tables or arrays within each other

// newCJSON is the library "cjson": encode, decode and null.
func newCJSON(L *lua.LState) *lua.LTable {
	t := L.NewTable()
	null := L.NewUserData()
	t.RawSetString("null", null)
	t.RawSetString("_NAME", lua.LString("cjson"))
	t.RawSetString("_VERSION", lua.LString("2.1.0"))
	t.RawSetString("encode", L.NewFunction(func(L *lua.LState) int {
		if L.GetTop() != 1 {
			L.RaiseError("bad argument #1 to 'encode' (expected 1 argument)")
		}
		e := jsonEncoder{null: null}
		if err := e.value(L.Get(1), 0); err != nil {
			L.RaiseError("%s", err.Error())
		}
		madeIn(L, e.out.Len())
		L.Push(lua.LString(e.out.String()))
		return 1
	}))
	t.RawSetString("decode", L.NewFunction(func(L *lua.LState) int {
		if L.GetTop() != 1 {
			L.RaiseError("bad argument #1 to 'decode' (expected 1 argument)")
		}
		d := jsonDecoder{L: L, null: null, text: []byte(L.CheckString(1)), room: roomIn(L)}
		v, err := d.all()
		if err != nil {
			L.RaiseError("%s", err.Error())
		}
		madeIn(L, int(roomIn(L)-d.room))
		L.Push(v)
		return 1
	}))
	for _, name := range []string{"encode_sparse_array", "encode_max_depth", "decode_max_depth", "encode_number_precision", "encode_keep_buffer", "encode_invalid_numbers", "decode_invalid_numbers"} {
		t.RawSetString(name, L.NewFunction(func(L *lua.LState) int {
			L.RaiseError("cjson.%s cannot be changed here", name)
			return 0
		}))
	}
	return t
}

type jsonEncoder struct {
	out  bytes.Buffer
	null lua.LValue
}

func (e *jsonEncoder) value(v lua.LValue, depth int) error {
	switch {
	case depth > jsonNested:
		return libError("Cannot serialise, excessive depth (%d)", depth)
	case e.out.Len() > luaStringMax: // a few tables within each other may be endless to write
		return libError("Cannot serialise: resulting string too large")
	}
	switch v := v.(type) {
	case lua.LString:
		e.text(string(v))
	case lua.LNumber:
		f := float64(v)
		if math.IsNaN(f) || math.IsInf(f, 0) {
			return libError("Cannot serialise number: must not be NaN or Inf")
		}
		e.out.WriteString(formatG(f, 14))
	case lua.LBool:
		e.out.WriteString(strconv.FormatBool(bool(v)))
	case *lua.LTable:
		return e.table(v, depth)
	case *lua.LNilType:
		e.out.WriteString("null")
	default:
		if v == e.null {
			e.out.WriteString("null")
			return nil
		}
		return libError("Cannot serialise %s: type not supported", v.Type().String())
	}
	return nil
}

// table writes a table whose keys are 1 to n as an array, another as an object.
// An array with too many holes is most likely a mistake.
func (e *jsonEncoder) table(t *lua.LTable, depth int) error {
	size, highest, array := 0, 0, true
	t.ForEach(func(k, _ lua.LValue) {
		n, ok := k.(lua.LNumber)
		if !ok || float64(n) < 1 || float64(n) != math.Trunc(float64(n)) || float64(n) > math.MaxInt32 {
			array = false
			return
		}
		size, highest = size+1, max(highest, int(n))
	})
	if array && size > 0 {
		if highest > 10 && highest > 2*size {
			return libError("Cannot serialise table: excessively sparse array")
		}
		e.out.WriteByte('[')
		for i := 1; i <= highest; i++ {
			if i > 1 {
				e.out.WriteByte(',')
			}
			if err := e.value(t.RawGetInt(i), depth+1); err != nil {
				return err
			}
		}
		e.out.WriteByte(']')
		return nil
	}
	e.out.WriteByte('{')
	first := true
	var failed error
	t.ForEach(func(k, v lua.LValue) {
		if failed != nil {
			return
		}
		if !first {
			e.out.WriteByte(',')
		}
		first = false
		switch k := k.(type) {
		case lua.LString:
			e.text(string(k))
		case lua.LNumber:
			e.text(formatG(float64(k), 14))
		default:
			failed = libError("Cannot serialise table: table key must be a number or string")
			return
		}
		e.out.WriteByte(':')
		failed = e.value(v, depth+1)
	})
	e.out.WriteByte('}')
	return failed
}

// text escapes what cjson escapes: quotes, backslash, slash, control bytes. Other
// bytes go as they are.
func (e *jsonEncoder) text(s string) {
	e.out.WriteByte('"')
	plain := 0 // where the bytes begin that go as they are
	for i := range len(s) {
		b := s[i]
		if b >= 0x20 && b != '"' && b != '\\' && b != '/' && b != 0x7f {
			continue
		}
		e.out.WriteString(s[plain:i])
		plain = i + 1
		switch {
		case b == '"' || b == '\\' || b == '/':
			e.out.WriteByte('\\')
			e.out.WriteByte(b)
		case b == '\b':
			e.out.WriteString(`\b`)
		case b == '\t':
			e.out.WriteString(`\t`)
		case b == '\n':
			e.out.WriteString(`\n`)
		case b == '\f':
			e.out.WriteString(`\f`)
		case b == '\r':
			e.out.WriteString(`\r`)
		default:
			fmt.Fprintf(&e.out, `\u%04x`, b)
		}
	}
	e.out.WriteString(s[plain:])
	e.out.WriteByte('"')
}

// jsonDecoder reads one value. Its strings are made by hand, for the bytes of a
// script's strings need not be UTF-8.
type jsonDecoder struct {
	L    *lua.LState
	null lua.LValue
	text []byte
	at   int
	room int64 // bytes that it may still make
}

func (d *jsonDecoder) all() (lua.LValue, error) {
	v, err := d.value(0)
	if err == nil {
		if d.space(); d.at < len(d.text) {
			err = d.expected("the end")
		}
	}
	return v, err
}

func (d *jsonDecoder) expected(what string) error {
	found := "T_END"
	if d.at < len(d.text) {
		found = "invalid token"
	}
	return libError("Expected %s but found %s at character %d", what, found, d.at+1)
}

func (d *jsonDecoder) space() {
	for d.at < len(d.text) && strings.IndexByte(" \t\r\n", d.text[d.at]) >= 0 {
		d.at++
	}
}

func (d *jsonDecoder) next(b byte) bool {
	d.space()
	if d.at < len(d.text) && d.text[d.at] == b {
		d.at++
		return true
	}
	return false
}

func (d *jsonDecoder) value(depth int) (lua.LValue, error) {
	if depth > jsonNested {
		return nil, libError("Found too many nested data structures (%d)", depth)
	}
	if d.room -= luaValueSize + luaNumberSize; d.room < 0 {
		return nil, libError("Found more values than a script may hold")
	}
	d.space()
	switch {
	case d.next('{'):
		return d.object(depth)
	case d.next('['):
		return d.array(depth)
	case d.next('"'):
		s, err := d.str()
		return lua.LString(s), err
	}
	for word, v := range map[string]lua.LValue{"true": lua.LTrue, "false": lua.LFalse, "null": d.null} {
		if bytes.HasPrefix(d.text[d.at:], []byte(word)) {
			d.at += len(word)
			return v, nil
		}
	}
	return d.number()
}

func (d *jsonDecoder) number() (lua.LValue, error) {
	end := d.at
	for end < len(d.text) && strings.IndexByte("+-.0123456789eE", d.text[end]) >= 0 {
		end++
	}
	if !json.Valid(d.text[d.at:end]) {
		return nil, d.expected("value")
	}
	f, err := strconv.ParseFloat(string(d.text[d.at:end]), 64)
	if err != nil && !math.IsInf(f, 0) {
		return nil, d.expected("value")
	}
	d.at = end
	return lua.LNumber(f), nil
}

func (d *jsonDecoder) array(depth int) (lua.LValue, error) {
	t := d.L.NewTable()
	if d.room -= luaTableSize; d.next(']') {
		return t, nil
	}
	d.room -= luaFirstItems
	for i := 1; ; i++ {
		v, err := d.value(depth + 1)
		if err != nil {
			return nil, err
		}
		t.RawSetInt(i, v)
		if d.next(']') {
			return t, nil
		}
		if !d.next(',') {
			return nil, d.expected("comma or array end")
		}
	}
}

func (d *jsonDecoder) object(depth int) (lua.LValue, error) {
	t := d.L.NewTable()
	if d.room -= luaTableSize; d.next('}') {
		return t, nil
	}
	d.room -= luaFirstItems
	for {
		if !d.next('"') {
			return nil, d.expected("object key string")
		}
		k, err := d.str()
		if err != nil {
			return nil, err
		}
		if !d.next(':') {
			return nil, d.expected("colon")
		}
		v, err := d.value(depth + 1)
		if err != nil {
			return nil, err
		}
		t.RawSetString(k, v)
		if d.room -= luaTextSize + 2*luaEntrySize; d.next('}') {
			return t, nil
		}
		if !d.next(',') {
			return nil, d.expected("comma or object end")
		}
	}
}

// str reads a string after its quote.
func (d *jsonDecoder) str() (string, error) {
	var out []byte
	for d.at < len(d.text) {
		b := d.text[d.at]
		d.at++
		switch {
		case b == '"':
			d.room -= int64(len(out))
			return string(out), nil
		case b < 0x20:
			d.at--
			return "", d.expected("string")
		case b != '\\':
			out = append(out, b)
			continue
		}
		if d.at == len(d.text) {
			break
		}
		b = d.text[d.at]
		d.at++
		if i := strings.IndexByte(`"\/bfnrt`, b); i >= 0 {
			out = append(out, "\"\\/\b\f\n\r\t"[i])
			continue
		}
		if b != 'u' {
			return "", libError("Expected value but found invalid escape code at character %d", d.at-1)
		}
		r, ok := d.rune()
		if !ok {
			return "", libError("Expected value but found invalid unicode escape code at character %d", d.at-1)
		}
		out = utf8.AppendRune(out, r)
	}
	return "", d.expected("string")
}

// rune reads the digits of \u, and the second half of a pair.
func (d *jsonDecoder) rune() (rune, bool) {
	first, ok := d.hex4()
	if !ok || !utf16.IsSurrogate(first) {
		return first, ok
	}
	if !bytes.HasPrefix(d.text[d.at:], []byte(`\u`)) {
		return 0, false
	}
	d.at += 2
	second, ok := d.hex4()
	r := utf16.DecodeRune(first, second)
	return r, ok && r != utf8.RuneError
}

func (d *jsonDecoder) hex4() (rune, bool) {
	if len(d.text)-d.at < 4 {
		return 0, false
	}
	n, err := strconv.ParseUint(string(d.text[d.at:d.at+4]), 16, 16)
	d.at += 4
	return rune(n), err == nil
}

// ---- bit

// newBit is the library "bit": numbers of 32 bits.
func newBit(L *lua.LState) *lua.LTable {
	t := L.NewTable()
	arg := func(L *lua.LState, i int) uint32 { return bitArg(float64(L.CheckNumber(i))) }
	push := func(L *lua.LState, n uint32) int {
		L.Push(lua.LNumber(int32(n)))
		return 1
	}
	unary := func(f func(uint32) uint32) *lua.LFunction {
		return L.NewFunction(func(L *lua.LState) int { return push(L, f(arg(L, 1))) })
	}
	fold := func(f func(a, b uint32) uint32) *lua.LFunction {
		return L.NewFunction(func(L *lua.LState) int {
			n := arg(L, 1)
			for i := 2; i <= L.GetTop(); i++ {
				n = f(n, arg(L, i))
			}
			return push(L, n)
		})
	}
	shift := func(f func(n uint32, by int) uint32) *lua.LFunction {
		return L.NewFunction(func(L *lua.LState) int { return push(L, f(arg(L, 1), int(arg(L, 2)&31))) })
	}
	t.RawSetString("tobit", unary(func(n uint32) uint32 { return n }))
	t.RawSetString("bnot", unary(func(n uint32) uint32 { return ^n }))
	t.RawSetString("bswap", unary(bits.ReverseBytes32))
	t.RawSetString("band", fold(func(a, b uint32) uint32 { return a & b }))
	t.RawSetString("bor", fold(func(a, b uint32) uint32 { return a | b }))
	t.RawSetString("bxor", fold(func(a, b uint32) uint32 { return a ^ b }))
	t.RawSetString("lshift", shift(func(n uint32, by int) uint32 { return n << by }))
	t.RawSetString("rshift", shift(func(n uint32, by int) uint32 { return n >> by }))
	t.RawSetString("arshift", shift(func(n uint32, by int) uint32 { return uint32(int32(n) >> by) }))
	t.RawSetString("rol", shift(func(n uint32, by int) uint32 { return bits.RotateLeft32(n, by) }))
	t.RawSetString("ror", shift(func(n uint32, by int) uint32 { return bits.RotateLeft32(n, -by) }))
	t.RawSetString("tohex", L.NewFunction(func(L *lua.LState) int {
		digits, format := L.OptInt(2, 8), "%08x"
		if digits < 0 {
			digits, format = -digits, "%08X"
		}
		s := fmt.Sprintf(format, arg(L, 1))
		L.Push(lua.LString(s[8-min(8, digits):]))
		return 1
	}))
	return t
}

// bitArg rounds a number to the nearest whole one and takes its low 32 bits.
func bitArg(f float64) uint32 {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return 0
	}
	f = math.Mod(math.RoundToEven(f), 1<<32)
	return uint32(int64(f))
}

// ---- struct

// newStruct is the library "struct": pack, unpack and size.
func newStruct(L *lua.LState) *lua.LTable {
	t := L.NewTable()
	t.RawSetString("pack", L.NewFunction(structPack))
	t.RawSetString("unpack", L.NewFunction(structUnpack))
	t.RawSetString("size", L.NewFunction(structSize))
	return t
}

// structFormat walks a format: one item after the other, with the byte order and
// the alignment in force.
type structFormat struct {
	L     *lua.LState
	text  string
	order binary.ByteOrder
	align int
}

type structItem struct {
	op   byte
	size int // in bytes; for 'c' the count, 0 for "as long as the number before says"
	pad  int // bytes before it
}

const structSizeMax = 32 // bytes of an integer

func newStructFormat(L *lua.LState) *structFormat {
	return &structFormat{L: L, text: L.CheckString(1), order: binary.LittleEndian, align: 1}
}

// number reads the digits that follow, or the default.
func (f *structFormat) number(def int) int {
	n, digits := 0, 0
	for len(f.text) > digits && '0' <= f.text[digits] && f.text[digits] <= '9' {
		n = n*10 + int(f.text[digits]-'0')
		if digits++; n > luaStringMax {
			f.L.RaiseError("integral size overflow")
		}
	}
	f.text = f.text[digits:]
	if digits == 0 {
		return def
	}
	return n
}

// next is the next item, at an offset of the data.
func (f *structFormat) next(at int) (structItem, bool) {
	for f.text != "" {
		op := f.text[0]
		f.text = f.text[1:]
		item := structItem{op: op}
		switch op {
		case ' ':
			continue
		case '<':
			f.order = binary.LittleEndian
			continue
		case '>':
			f.order = binary.BigEndian
			continue
		case '=':
			f.order = binary.LittleEndian
			continue
		case '!':
			f.align = f.number(8)
			if f.align <= 0 || f.align&(f.align-1) != 0 {
				f.L.RaiseError("alignment is not a power of 2")
			}
			continue
		case 'b', 'B', 'x':
			item.size = 1
		case 'h', 'H':
			item.size = 2
		case 'l', 'L', 'T', 'd', 'n':
			item.size = 8
		case 'f':
			item.size = 4
		case 'i', 'I':
			item.size = f.number(4)
			if item.size > structSizeMax || item.size == 0 {
				f.L.RaiseError("integral size %d is larger than limit of %d", item.size, structSizeMax)
			}
		case 's':
		case 'c':
			item.size = f.number(1)
		default:
			f.L.RaiseError("invalid format option [%c]", op)
		}
		if item.size > 1 && op != 'c' && f.align > 1 {
			a := min(item.size, f.align)
			item.pad = (a - at%a) % a
		}
		return item, true
	}
	return structItem{}, false
}

// integer appends n in size bytes.
func (f *structFormat) integer(dst []byte, n uint64, size int, negative bool) []byte {
	fill := byte(0)
	if negative {
		fill = 0xff
	}
	b := bytes.Repeat([]byte{fill}, size)
	for i := range min(size, 8) {
		at := i
		if f.order == binary.BigEndian {
			at = size - 1 - i
		}
		b[at] = byte(n >> (8 * i))
	}
	return append(dst, b...)
}

func structPack(L *lua.LState) int {
	f := newStructFormat(L)
	var out []byte
	arg := 1
	for {
		item, ok := f.next(len(out))
		if !ok {
			break
		}
		out = append(out, make([]byte, item.pad)...)
		switch item.op {
		case 'x':
			out = append(out, 0)
			continue
		}
		arg++
		switch item.op {
		case 's':
			out = append(out, L.CheckString(arg)...)
			out = append(out, 0)
		case 'c':
			s := L.CheckString(arg)
			if item.size == 0 {
				item.size = len(s)
			}
			if len(s) < item.size {
				L.RaiseError("bad argument #%d to 'pack' (string too short)", arg)
			}
			out = append(out, s[:item.size]...)
		case 'f':
			out = f.integer(out, uint64(math.Float32bits(float32(L.CheckNumber(arg)))), 4, false)
		case 'd', 'n':
			out = f.integer(out, math.Float64bits(float64(L.CheckNumber(arg))), 8, false)
		default:
			n := float64(L.CheckNumber(arg))
			v := uint64(int64(n))
			if n >= 1<<63 {
				v = uint64(n)
			}
			out = f.integer(out, v, item.size, n < 0)
		}
		if len(out) > luaStringMax {
			L.RaiseError("resulting string too large")
		}
	}
	madeIn(L, len(out))
	L.Push(lua.LString(out))
	return 1
}

func structUnpack(L *lua.LState) int {
	f := newStructFormat(L)
	data := L.CheckString(2)
	at := L.OptInt(3, 1) - 1
	if at < 0 {
		L.RaiseError("bad argument #3 to 'unpack' (offset must be 1 or greater)")
	}
	pushed := 0
	for {
		item, ok := f.next(at)
		if !ok {
			break
		}
		at += item.pad
		if at > len(data) || len(data)-at < item.size {
			L.RaiseError("bad argument #2 to 'unpack' (data string too short)")
		}
		switch item.op {
		case 'x':
		case 's':
			n := strings.IndexByte(data[at:], 0)
			if n < 0 {
				L.RaiseError("unfinished string in data")
			}
			L.Push(luaPiece(data, data[at:at+n]))
			item.size = n + 1
			pushed++
		case 'c':
			if item.size == 0 {
				n, ok := L.Get(-1).(lua.LNumber)
				if pushed == 0 || !ok {
					L.RaiseError("format 'c0' needs a previous size")
				}
				L.Pop(1)
				pushed--
				if item.size = int(n); item.size < 0 || len(data)-at < item.size {
					L.RaiseError("bad argument #2 to 'unpack' (data string too short)")
				}
			}
			L.Push(luaPiece(data, data[at:at+item.size]))
			pushed++
		default:
			L.Push(lua.LNumber(f.read(item, data[at:at+item.size])))
			pushed++
		}
		at += item.size
	}
	L.Push(lua.LNumber(at + 1))
	return pushed + 1
}

// read is the number in b.
func (f *structFormat) read(item structItem, b string) float64 {
	var n uint64
	for i := range min(len(b), 8) {
		at := i
		if f.order == binary.BigEndian {
			at = len(b) - 1 - i
		}
		n |= uint64(b[at]) << (8 * i)
	}
	switch item.op {
	case 'f':
		return float64(math.Float32frombits(uint32(n)))
	case 'd', 'n':
		return math.Float64frombits(n)
	case 'B', 'H', 'L', 'I', 'T':
		return float64(n)
	}
	shift := 64 - 8*min(len(b), 8)
	return float64(int64(n<<shift) >> shift)
}

func structSize(L *lua.LState) int {
	f := newStructFormat(L)
	size := 0
	for {
		item, ok := f.next(size)
		if !ok {
			break
		}
		if item.op == 's' || item.op == 'c' && item.size == 0 {
			L.RaiseError("variable-size format in 'size'")
		}
		size += item.pad + item.size
	}
	L.Push(lua.LNumber(size))
	return 1
}
