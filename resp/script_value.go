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

// readLua makes a Lua value of the first reply in b, which this server has
// written itself, and returns what follows it.
func readLua(L *lua.LState, b []byte) (lua.LValue, []byte) {
	if len(b) == 0 {
		return lua.LNil, nil
	}
	line, rest, _ := bytes.Cut(b[1:], []byte("\r\n"))
	text := string(line)
	switch b[0] {
	case '+':
		return singleField(L, "ok", text), rest
	case '-':
		return singleField(L, "err", text), rest
	case ':':
		n, _ := strconv.ParseInt(text, 10, 64)
		return lua.LNumber(n), rest
	case '_':
		return lua.LNil, rest
	case '#':
		return lua.LBool(text == "t"), rest
	case ',':
		f, _ := strconv.ParseFloat(text, 64)
		t := L.NewTable()
		t.RawSetString("double", lua.LNumber(f))
		return t, rest
	case '(':
		return singleField(L, "big_number", text), rest
	case '$', '=':
		n, _ := strconv.Atoi(text)
		if n < 0 {
			return lua.LFalse, rest
		}
		body := string(rest[:n])
		rest = rest[n+2:]
		if b[0] == '$' {
			return lua.LString(body), rest
		}
		inner, t := L.NewTable(), L.NewTable()
		inner.RawSetString("format", lua.LString(body[:3]))
		inner.RawSetString("string", lua.LString(body[4:]))
		t.RawSetString("verbatim_string", inner)
		return t, rest
	}
	n, _ := strconv.Atoi(text)
	if n < 0 {
		return lua.LFalse, rest
	}
	return readLuaItems(L, b[0], n, rest)
}

func readLuaItems(L *lua.LState, sign byte, n int, rest []byte) (lua.LValue, []byte) {
	items, t := L.NewTable(), L.NewTable()
	switch sign {
	case '%':
		for range n {
			var k, v lua.LValue
			k, rest = readLua(L, rest)
			v, rest = readLua(L, rest)
			items.RawSet(k, v)
		}
		t.RawSetString("map", items)
		return t, rest
	case '~':
		for range n {
			var k lua.LValue
			k, rest = readLua(L, rest)
			items.RawSet(k, lua.LTrue)
		}
		t.RawSetString("set", items)
		return t, rest
	}
	for i := range n {
		var v lua.LValue
		v, rest = readLua(L, rest)
		items.RawSetInt(i+1, v)
	}
	return items, rest
}
