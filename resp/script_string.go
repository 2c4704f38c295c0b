package resp

import (
	"bytes"
	"math"
	"strconv"
	"strings"

	lua "github.com/yuin/gopher-lua"
)

// string.format and tostring as C prints: the interpreter's own print as Go does,
// which knows other verbs and other forms of numbers.

// luaText is tostring of a number: 14 digits.
func luaText(f float64) string {
	if math.IsNaN(f) && math.Signbit(f) {
		return "-nan" // what 0/0 is on most processors
	}
	return formatG(f, 14)
}

// luaVerb is one conversion of string.format.
type luaVerb struct {
	minus, plus, space, sharp, zero bool
	width, precision                int // precision -1: none
	verb                            byte
}

// luaFormat is string.format.
func luaFormat(L *lua.LState) int {
	text := L.CheckString(1)
	var out []byte
	arg := 1
	for i := 0; i < len(text); i++ {
		if text[i] != '%' {
			out = append(out, text[i])
			continue
		}
		if i++; i < len(text) && text[i] == '%' {
			out = append(out, '%')
			continue
		}
		if arg++; arg > L.GetTop() {
			L.RaiseError("bad argument #%d to 'format' (no value)", arg)
		}
		var v luaVerb
		v, i = parseVerb(L, text, i)
		out = v.print(L, out, arg)
		if len(out) > luaStringMax {
			L.RaiseError("resulting string too large")
		}
	}
	madeIn(L, len(out))
	L.Push(lua.LString(out))
	return 1
}

// parseVerb reads a conversion behind its %, and returns where it ends.
func parseVerb(L *lua.LState, text string, i int) (luaVerb, int) {
	v := luaVerb{precision: -1}
	flags := i
	for ; i < len(text) && strings.IndexByte("-+ #0", text[i]) >= 0; i++ {
		switch text[i] {
		case '-':
			v.minus = true
		case '+':
			v.plus = true
		case ' ':
			v.space = true
		case '#':
			v.sharp = true
		case '0':
			v.zero = true
		}
	}
	if i-flags >= 6 {
		L.RaiseError("invalid format (repeated flags)")
	}
	number := func() (n int) {
		for digits := 0; digits < 2 && i < len(text) && '0' <= text[i] && text[i] <= '9'; digits++ {
			n = 10*n + int(text[i]-'0')
			i++
		}
		return n
	}
	v.width = number()
	if i < len(text) && text[i] == '.' {
		i++
		v.precision = number()
	}
	if i < len(text) && '0' <= text[i] && text[i] <= '9' {
		L.RaiseError("invalid format (width or precision too long)")
	}
	if i < len(text) {
		v.verb = text[i]
	}
	return v, i
}

func (v luaVerb) print(L *lua.LState, out []byte, arg int) []byte {
	switch v.verb {
	case 'c':
		return v.pad(out, "", string([]byte{byte(int64(L.CheckNumber(arg)))}))
	case 'd', 'i':
		n := luaInt(float64(L.CheckNumber(arg)))
		return v.integer(out, v.sign(n < 0), magnitude(n), 10)
	case 'u':
		return v.integer(out, "", luaUint(float64(L.CheckNumber(arg))), 10)
	case 'o':
		n := luaUint(float64(L.CheckNumber(arg)))
		if v.sharp && n != 0 {
			v.precision = max(v.precision, 1+len(strconv.FormatUint(n, 8)))
		}
		return v.integer(out, "", n, 8)
	case 'x', 'X':
		n, prefix := luaUint(float64(L.CheckNumber(arg))), ""
		if v.sharp && n != 0 {
			prefix = "0" + string(v.verb)
		}
		return v.integer(out, prefix, n, 16)
	case 'e', 'E', 'f', 'g', 'G':
		return v.float(out, float64(L.CheckNumber(arg)))
	case 'q':
		return quoteLua(out, L.CheckString(arg))
	case 's':
		s := luaStringArg(L, arg)
		if v.precision < 0 && len(s) >= 100 {
			return append(out, s...) // as it is: neither cut nor padded
		}
		s, _, _ = strings.Cut(s, "\x00") // C's strings end there
		if v.precision >= 0 {
			s = s[:min(len(s), v.precision)]
		}
		v.zero = false
		return v.pad(out, "", s)
	case 0:
		L.RaiseError("invalid option '%%' to 'format'")
	}
	L.RaiseError("invalid option '%%%c' to 'format'", v.verb)
	return nil
}

// luaStringArg is an argument that may be a string or a number.
func luaStringArg(L *lua.LState, arg int) string {
	if n, ok := L.Get(arg).(lua.LNumber); ok {
		return luaText(float64(n))
	}
	return L.CheckString(arg)
}

// luaUint is a number as C casts it to 64 bits without a sign.
func luaUint(f float64) uint64 {
	if f >= 1<<63 && f < 1<<64 {
		return uint64(f)
	}
	return uint64(luaInt(f))
}

func magnitude(n int64) uint64 {
	if n < 0 {
		return -uint64(n)
	}
	return uint64(n)
}

func (v luaVerb) sign(negative bool) string {
	switch {
	case negative:
		return "-"
	case v.plus:
		return "+"
	case v.space:
		return " "
	}
	return ""
}

// integer prints at least as many digits as the precision says; one turns the
// flag 0 off.
func (v luaVerb) integer(out []byte, prefix string, n uint64, base int) []byte {
	digits := strconv.FormatUint(n, base)
	if v.verb == 'X' {
		digits = strings.ToUpper(digits)
	}
	if v.precision == 0 && n == 0 {
		digits = ""
	}
	if v.precision >= 0 {
		v.zero = false
		digits = strings.Repeat("0", max(0, v.precision-len(digits))) + digits
	}
	return v.pad(out, prefix, digits)
}

func (v luaVerb) float(out []byte, f float64) []byte {
	sign := v.sign(math.Signbit(f))
	f = math.Abs(f)
	if v.precision < 0 {
		v.precision = 6
	}
	var s string
	switch lower := v.verb | 0x20; {
	case math.IsInf(f, 0) || math.IsNaN(f):
		v.zero = false
		s = formatG(f, 1)
	case lower == 'g':
		if s = formatG(f, max(1, v.precision)); v.sharp {
			s = string(strconv.AppendFloat(nil, f, 'g', max(1, v.precision), 64))
		}
	default:
		s = strconv.FormatFloat(f, lower, v.precision, 64)
		if v.sharp && v.precision == 0 {
			mantissa, exponent, found := strings.Cut(s, "e")
			if s = mantissa + "."; found {
				s += "e" + exponent
			}
		}
	}
	if v.verb == 'E' || v.verb == 'G' {
		s = strings.ToUpper(s)
	}
	return v.pad(out, sign, s)
}

// pad brings prefix and text to the width: zeros come between them.
func (v luaVerb) pad(out []byte, prefix, text string) []byte {
	missing := max(0, v.width-len(prefix)-len(text))
	switch {
	case v.minus:
		out = append(append(out, prefix...), text...)
		return append(out, bytes.Repeat([]byte{' '}, missing)...)
	case v.zero:
		out = append(append(out, prefix...), bytes.Repeat([]byte{'0'}, missing)...)
		return append(out, text...)
	}
	out = append(out, bytes.Repeat([]byte{' '}, missing)...)
	return append(append(out, prefix...), text...)
}

// quoteLua is %q: a string that Lua reads back.
func quoteLua(out []byte, s string) []byte {
	out = append(out, '"')
	for i := range len(s) {
		switch s[i] {
		case '"', '\\', '\n':
			out = append(out, '\\', s[i])
		case '\r':
			out = append(out, `\r`...)
		case 0:
			out = append(out, `\000`...)
		default:
			out = append(out, s[i])
		}
	}
	return append(out, '"')
}
