package resp

import (
	"math"
	"math/rand/v2"
	"strconv"
	"strings"

	lua "github.com/yuin/gopher-lua"
)

// What Lua's base and math libraries do otherwise than the interpreter's own.

// openBase replaces tonumber and error.
func (vm *interpreter) openBase() {
	L := vm.state
	L.G.Global.RawSetString("tonumber", L.NewFunction(luaToNumber))
	L.G.Global.RawSetString("error", L.NewFunction(luaError))
}

// luaToNumber reads numbers as C does: with exponents, in base 16 after 0x, with
// spaces around.
func luaToNumber(L *lua.LState) int {
	if L.GetTop() == 0 {
		L.RaiseError("bad argument #1 to 'tonumber' (value expected)")
	}
	base := L.OptInt(2, 10)
	if base < 2 || base > 36 {
		L.RaiseError("bad argument #2 to 'tonumber' (base out of range)")
	}
	v := L.Get(1)
	if n, ok := v.(lua.LNumber); ok && base == 10 {
		L.Push(n)
		return 1
	}
	value := lua.LValue(lua.LNil)
	switch v.(type) {
	case lua.LString, lua.LNumber:
		text := strings.Trim(luaStringArg(L, 1), " \t\n\v\f\r")
		if base == 10 {
			if f, ok := strtod([]byte(text)); ok {
				value = lua.LNumber(f)
			} else if strings.EqualFold(strings.TrimLeft(text, "+-"), "nan") {
				value = lua.LNumber(math.NaN())
			}
		} else if n, ok := strtoul(text, base); ok {
			value = lua.LNumber(n)
		}
	}
	L.Push(value)
	return 1
}

// strtoul reads a number of a base as C does: a negative one wraps.
func strtoul(text string, base int) (uint64, bool) {
	digits := strings.TrimLeft(text, "+-")
	if len(text)-len(digits) > 1 {
		return 0, false
	}
	if base == 16 && len(digits) > 2 && digits[0] == '0' && digits[1]|0x20 == 'x' {
		digits = digits[2:]
	}
	n, err := strconv.ParseUint(digits, base, 64)
	if err != nil && n == 0 {
		return 0, false
	}
	if text[0] == '-' {
		n = -n
	}
	return n, true
}

// luaError is error: a text is told with the line of the function that called
// it, or of one further out.
func luaError(L *lua.LState) int {
	value, level := L.Get(1), L.OptInt(2, 1)
	if L.GetTop() == 0 {
		value = lua.LNil
	}
	switch value.(type) {
	case lua.LString, lua.LNumber:
		if level > 0 {
			value = lua.LString(luaWhere(L, level) + luaStringArg(L, 1))
		}
	}
	L.Error(value, 0)
	return 0
}

// luaWhere is "user_script:3: " for the function at a level, nothing for one that
// is not of the script.
func luaWhere(L *lua.LState, level int) string {
	d, ok := L.GetStack(level)
	if !ok {
		return ""
	}
	if _, err := L.GetInfo("Sl", d, lua.LNil); err != nil || d.What == "G" || d.CurrentLine <= 0 {
		return ""
	}
	return d.Source + ":" + strconv.Itoa(d.CurrentLine) + ": "
}

// drand48 is C's generator of that name, which math.random has in Redis: the same
// seed gives the same numbers.
type drand48 struct{ x uint64 }

func (r *drand48) seed(n uint32) { r.x = uint64(n)<<16 | 0x330E }

// next is between 0 and 1, without 1.
func (r *drand48) next() float64 {
	const largest = math.MaxInt32
	r.x = (r.x*0x5DEECE66D + 0xB) & (1<<48 - 1)
	return float64((r.x>>17)%largest) / largest
}

// openMath replaces the generator of random numbers. Scripts that do not seed it
// go on where others ended, from a start by chance.
func (vm *interpreter) openMath() {
	L := vm.state
	vm.random.seed(rand.Uint32())
	m := L.G.Global.RawGetString("math").(*lua.LTable)
	m.RawSetString("randomseed", L.NewFunction(func(L *lua.LState) int {
		vm.random.seed(uint32(luaInt(float64(L.CheckNumber(1)))))
		return 0
	}))
	m.RawSetString("random", L.NewFunction(func(L *lua.LState) int {
		r := vm.random.next()
		low, high := 1.0, 0.0
		switch L.GetTop() {
		case 0:
			L.Push(lua.LNumber(r))
			return 1
		case 1:
			high = math.Trunc(float64(L.CheckNumber(1)))
		case 2:
			low, high = math.Trunc(float64(L.CheckNumber(1))), math.Trunc(float64(L.CheckNumber(2)))
		default:
			L.RaiseError("wrong number of arguments")
		}
		if !(low <= high) {
			L.RaiseError("bad argument #%d to 'random' (interval is empty)", L.GetTop())
		}
		L.Push(lua.LNumber(math.Floor(r*(high-low+1)) + low))
		return 1
	}))
}
