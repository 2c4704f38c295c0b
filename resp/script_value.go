package resp

import (
	"bytes"
	"math"
	"strconv"

	lua "github.com/yuin/gopher-lua"
)

// formatG is a number as C's %.{digits}g prints it.
func formatG(f float64, digits int) string {
	switch {
	case math.IsInf(f, 1):
		return "inf"
	case math.IsInf(f, -1):
		return "-inf"
	case math.IsNaN(f):
		return "nan"
	case f == 0:
		if math.Signbit(f) {
			return "-0"
		}
		return "0"
	}
	s := strconv.FormatFloat(f, 'e', digits-1, 64)
	mantissa, exponent, _ := bytes.Cut([]byte(s), []byte{'e'})
	x, _ := strconv.Atoi(string(exponent))
	if x < -4 || x >= digits {
		mantissa = trimZeros(mantissa)
		sign := "+"
		if x < 0 {
			sign, x = "-", -x
		}
		out := string(mantissa) + "e" + sign
		if x < 10 {
			out += "0"
		}
		return out + strconv.Itoa(x)
	}
	return string(trimZeros([]byte(strconv.FormatFloat(f, 'f', max(0, digits-1-x), 64))))
}

func trimZeros(b []byte) []byte {
	if !bytes.ContainsRune(b, '.') {
		return b
	}
	return bytes.TrimSuffix(bytes.TrimRight(b, "0"), []byte{'.'})
}

// writeLua puts the value of a script as a reply. proto is what the script has
// chosen with redis.setresp: only from 3 on, true and false are booleans.
func writeLua(r *Reply, v lua.LValue, proto, depth int) {
	if r.over() {
		return // a few tables within each other may be endless to write
	}
	if depth > luaReplyNested {
		r.Error("ERR reached lua stack limit")
		return
	}
	switch v := v.(type) {
	case lua.LString:
		r.BulkString(string(v))
	case lua.LNumber:
		r.Int(luaInt(float64(v)))
	case lua.LBool:
		switch {
		case proto == 3:
			r.Bool(bool(v))
		case bool(v):
			r.Int(1)
		default:
			r.Null()
		}
	case *lua.LTable:
		writeLuaTable(r, v, proto, depth)
	default:
		r.Null()
	}
}

// luaInt drops the fraction, as a C cast does.
func luaInt(f float64) int64 {
	switch {
	case math.IsNaN(f) || f < -1<<63 || f >= 1<<63:
		return math.MinInt64
	default:
		return int64(f)
	}
}

func writeLuaTable(r *Reply, t *lua.LTable, proto, depth int) {
	field := func(name string) lua.LValue { return t.RawGetString(name) }
	if s, ok := field("err").(lua.LString); ok {
		r.Error(oneLine(string(s)))
		return
	}
	if s, ok := field("ok").(lua.LString); ok {
		r.Simple(oneLine(string(s)))
		return
	}
	if f, ok := field("double").(lua.LNumber); ok {
		r.Double(float64(f))
		return
	}
	if m, ok := field("map").(*lua.LTable); ok {
		r.Map(tableSize(m))
		m.ForEach(func(k, v lua.LValue) {
			writeLua(r, k, proto, depth+1)
			writeLua(r, v, proto, depth+1)
		})
		return
	}
	if m, ok := field("set").(*lua.LTable); ok {
		r.Set(tableSize(m))
		m.ForEach(func(k, _ lua.LValue) { writeLua(r, k, proto, depth+1) })
		return
	}
	if s, ok := field("big_number").(lua.LString); ok {
		r.BigNumber(oneLine(string(s)))
		return
	}
	if m, ok := field("verbatim_string").(*lua.LTable); ok {
		format, ok1 := m.RawGetString("format").(lua.LString)
		text, ok2 := m.RawGetString("string").(lua.LString)
		if ok1 && ok2 {
			r.Verbatim(string(format), string(text))
			return
		}
	}
	n := 0
	for t.RawGetInt(n+1) != lua.LNil {
		n++
	}
	r.Array(n)
	for i := 1; i <= n; i++ {
		writeLua(r, t.RawGetInt(i), proto, depth+1)
	}
}

func tableSize(t *lua.LTable) (n int) {
	t.ForEach(func(_, _ lua.LValue) { n++ })
	return n
}

// luaReader makes Lua values of replies that this server has written itself.
type luaReader struct {
	L    *lua.LState
	rest []byte
	room int64 // bytes that it may still make
}

// readLua makes a Lua value of a reply. ok is false where that is more than a
// script may hold; rest is what follows the reply.
func readLua(L *lua.LState, b []byte) (v lua.LValue, rest []byte, ok bool) {
	r := luaReader{L: L, rest: b, room: roomIn(L)}
	v = r.value()
	madeIn(L, int(roomIn(L)-max(0, r.room)))
	return v, r.rest, r.room >= 0
}

// value reads a value, or what it can where there is no room for all.
func (r *luaReader) value() lua.LValue {
	if r.room -= luaValueSize + luaTextSize; len(r.rest) == 0 || r.room < 0 {
		return lua.LNil
	}
	sign := r.rest[0]
	line, rest, _ := bytes.Cut(r.rest[1:], []byte("\r\n"))
	text := string(line)
	r.rest = rest
	switch sign {
	case '+':
		return r.single("ok", text)
	case '-':
		return r.single("err", text)
	case ':':
		n, _ := strconv.ParseInt(text, 10, 64)
		return lua.LNumber(n)
	case '_':
		return lua.LNil
	case '#':
		return lua.LBool(text == "t")
	case ',':
		f, _ := strconv.ParseFloat(text, 64)
		t := r.table()
		t.RawSetString("double", lua.LNumber(f))
		return t
	case '(':
		return r.single("big_number", text)
	}
	n, _ := strconv.Atoi(text)
	if n < 0 {
		return lua.LFalse
	}
	if sign == '$' || sign == '=' {
		return r.bulk(sign, n)
	}
	return r.items(sign, n)
}

// table is one that has members with names.
func (r *luaReader) table() *lua.LTable {
	r.room -= luaTableSize + luaFirstItems
	return r.L.NewTable()
}

func (r *luaReader) single(name, text string) lua.LValue {
	t := r.table()
	t.RawSetString(name, lua.LString(text))
	return t
}

func (r *luaReader) bulk(sign byte, n int) lua.LValue {
	r.room -= int64(n)
	body := string(r.rest[:n])
	r.rest = r.rest[n+2:]
	if sign == '$' {
		return lua.LString(body)
	}
	inner, t := r.table(), r.table()
	inner.RawSetString("format", lua.LString(body[:3]))
	inner.RawSetString("string", lua.LString(body[4:]))
	t.RawSetString("verbatim_string", inner)
	return t
}

func (r *luaReader) items(sign byte, n int) lua.LValue {
	if sign == '%' || sign == '~' {
		return r.named(sign, n)
	}
	r.room -= luaTableSize + int64(n)*luaValueSize
	if r.room < 0 {
		return lua.LNil
	}
	items := r.L.CreateTable(n, 0)
	for i := 0; i < n && r.room >= 0; i++ {
		items.RawSetInt(i+1, r.value())
	}
	return items
}

func (r *luaReader) named(sign byte, n int) lua.LValue {
	items, t := r.table(), r.table()
	for i := 0; i < n && r.room >= 0; i++ {
		r.room -= 2 * luaEntrySize
		if k := r.value(); sign == '~' {
			items.RawSet(k, lua.LTrue)
		} else {
			items.RawSet(k, r.value())
		}
	}
	if sign == '~' {
		t.RawSetString("set", items)
	} else {
		t.RawSetString("map", items)
	}
	return t
}
