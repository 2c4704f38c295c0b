package resp

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/slotmesh/slotmesh/internal/racing"
	"github.com/stretchr/testify/require"
)

// Whatever a script makes, what it holds is bounded, and it has done nothing.
func TestScriptsHoldNoEndlessMemory(t *testing.T) {
	racing.OneGoroutine(t)
	const limit = 4 << 20
	s := startServer(t, func(c *Config) { c.Limits.Scripts = limit })
	c := dial(t, s)
	for range 100 {
		c.do("RPUSH", "{k}list", strings.Repeat("1", 1000))
	}
	for name, text := range map[string]string{
		"texts that double":       `local s = 'x' while true do s = s .. s end`,
		"texts of many parts":     `local s = ('x'):rep(1e6) local t = {} while true do t[#t+1] = s .. s .. s .. #t .. s end`,
		"numbers in an array":     `local t, i = {}, 0 while true do i = i + 1 t[i] = i + 0.5 end`,
		"empty tables":            `local t = {} while true do t[#t+1] = {} end`,
		"tables with one entry":   `local t = {} while true do t[#t+1] = {a=1} end`,
		"tables in a chain":       `local t = {} while true do t = {t} end`,
		"keys":                    `local t, i = {}, 0 while true do i = i + 1 t['key' .. i] = true end`,
		"keys that are deleted":   `local t, i = {}, 0 while true do i = i + 1 t['key' .. i] = true t['key' .. i] = nil end`,
		"tables as keys":          `local t = {} while true do t[{}] = true end`,
		"repeated texts":          `local t = {} while true do t[#t+1] = ('x'):rep(1e5) end`,
		"formatted texts":         `local s, t = ('x'):rep(1e5), {} while true do t[#t+1] = string.format('%s%s', s, #t) end`,
		"texts in capitals":       `local s, t = ('x'):rep(1e5), {} while true do t[#t+1] = s:upper() end`,
		"reversed texts":          `local s, t = ('x'):rep(1e5), {} while true do t[#t+1] = s:reverse() end`,
		"concatenated tables":     `local s, t = ('x'):rep(1e5), {} while true do t[#t+1] = table.concat({s, #t}) end`,
		"replaced texts":          `local s, t = ('x'):rep(1e4), {} while true do t[#t+1] = s:gsub('x', 'yz') end`,
		"small pieces of texts":   `local t = {} while true do t[#t+1] = ('x'):rep(1e5):sub(1, 40000) end`,
		"captures":                `local t = {} while true do t[#t+1] = ('x'):rep(1e5):match('(x+)') end`,
		"iterators of texts":      `local t = {} while true do t[#t+1] = ('x'):rep(1e5):gmatch('.') end`,
		"closures":                `local t = {} while true do local x = {} t[#t+1] = function() return x end end`,
		"coroutines":              `local t = {} while true do t[#t+1] = coroutine.create(function() coroutine.yield() end) end`,
		"within a coroutine":      `coroutine.wrap(function() local t = {} while true do t[#t+1] = {} end end)()`,
		"in coroutines that wait": `local t = {} while true do local c = coroutine.wrap(function() local s = ('x'):rep(1e5) coroutine.yield() return s end) c() t[#t+1] = c end`,
		"stacks":                  `local function f(...) return 1 + f(1, ...) end local t = {} for i=1,200 do t[i] = coroutine.wrap(function() local x = {} for i=1,200000 do x[i] = i end coroutine.yield(unpack(x)) end) t[i]() end return 1`,
		"arrays with holes":       `local t = {} while true do local x = {} x[1e6] = 1 t[#t+1] = x end`,
		"one large hole":          `local t = {} t[8388607] = 1 while true do end`,
		"decoded JSON":            `local s = '[' .. ('[1],'):rep(1e6) .. '1]' return cjson.decode(s)`,
		"JSON over and over":      `local s, t = cjson.encode({{}, {}, {}}), {} while true do t[#t+1] = cjson.decode(s) end`,
		"packed texts":            `local s, t = ('x'):rep(1e5), {} while true do t[#t+1] = struct.pack('sI', s, #t) end`,
		"replies":                 `local t = {} while true do t[#t+1] = redis.call('lrange', KEYS[1], 0, -1) end`,
		"compiled texts":          `local t = {} while true do t[#t+1] = loadstring('return {' .. ('1,'):rep(1000) .. #t .. '}') end`,
		"what is caught":          `local t = {} while true do pcall(function() while true do t[#t+1] = ('x'):rep(1e5) end end) end`,
		"functions alone":         `local t = {} for i=1,1e5 do t[i] = '9999' end return (('x'):rep(1e6):gsub('x', coroutine.wrap(function() while true do t[#t+1] = ('x'):rep(1e5) coroutine.yield('y') end end)))`,
	} {
		t.Run(name, func(t *testing.T) {
			sum, stop := peakOf(t)
			text = "redis.call('set', KEYS[2], 1) " + text
			c := dial(t, s)
			got := c.do("EVAL", text, "2", "{k}list", "{k}set")
			stop()
			if !strings.Contains(got, "resulting string too large") && !strings.Contains(got, "Found more values than a script may hold") {
				require.Equal(t, fmt.Sprintf("ERR script %s held more memory than scripts may, %d bytes, and was stopped; nothing of it has happened", shaOf([]byte(text)), limit), got)
				require.Equal(t, "(nil)", c.do("GET {k}set"))
			}
			c.do("DEL {k}set")
			require.Less(t, *sum, uint64(1<<30), "bytes that the process held at a time")
		})
	}
	require.Zero(t, s.scripts.memory.held.Load())
	require.Zero(t, s.scripts.memory.running.Load())
	require.Equal(t, "1", dial(t, s).do("EVAL", "return 1", "0"))
}

// peakOf looks at the live memory of the process until stop is called.
func peakOf(t *testing.T) (peak *uint64, stop func()) {
	t.Helper()
	runtime.GC()
	peak = new(uint64)
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			*peak = max(*peak, m.HeapInuse)
			select {
			case <-end:
				return
			case <-tick.C:
			}
		}
	}()
	return peak, func() {
		close(end)
		<-ended
	}
}

// What a script has let go of does not count, nor does what it was given.
func TestScriptsMayMakeMoreThanTheyHold(t *testing.T) {
	racing.OneGoroutine(t)
	s := startServer(t, func(c *Config) { c.Limits.Scripts = 4 << 20 })
	c := dial(t, s)
	for _, row := range [][2]string{
		{"for i=1,20000 do local s = ('x'):rep(10000) end return 'done'", "done"},
		{"local s = '' for i=1,20000 do s = s .. 'x' end return #s", "20000"},
		{"local n = 0 for i=1,300000 do local t = {i} n = n + #t end return n", "300000"},
		{"for i=1,20000 do coroutine.wrap(function() return 1 end)() end return 'done'", "done"},
		{"local t = {} for i=1,100000 do t[i%100+1] = {} end return #t", "100"},
	} {
		require.Equal(t, row[1], c.do("EVAL", row[0], "0"), row[0])
	}
	large := strings.Repeat("x", 16<<20)
	require.Equal(t, "2000", c.do("EVAL", "local n = 0 for i=1,2000 do n = n + #('x'):rep(i) / i end return n", "0", large, large))
}

// Scripts share the bound; a small one that runs beside a large one is not
// stopped for it.
func TestScriptsShareTheBound(t *testing.T) {
	s := startServer(t, func(c *Config) { c.Limits.Scripts = 4 << 20 })
	small, large := dial(t, s), dial(t, s)
	small.send("EVAL", "local t = {} for i=1,1000 do t[i] = {} end local n = 0 while redis.call('ping') and n < 20000 do n = n + #t[n % 1000 + 1] + 1 end return n", "0")
	require.Contains(t, large.do("EVAL", "local t = {} while true do t[#t+1] = ('x'):rep(1000) .. #t end", "0"), "held more memory than scripts may")
	require.Equal(t, "20000", small.read())
}

// ".." as Lua has it: numbers as Lua writes them, values that bring a function,
// one value of a call, rows of any length.
func TestScriptsConcatenate(t *testing.T) {
	c := dial(t, startServer(t))
	long := "'a'" + strings.Repeat("..'b'", 150)
	for _, row := range [][2]string{
		{`return 'a'..'b'..'c'`, "abc"},
		{`return 1 ..2`, "12"},
		{`return 0.1+0.2 ..''`, "0.3"},
		{`return 1e15 ..'|'..1e14..'|'..-0`, "1e+15|1e+14|-0"},
		{`local function f() return 'a','b' end return 'x'..f()`, "xa"},
		{`local function f() return 'a','b' end return f()..'x'`, "ax"},
		{`local function f(...) return 'x'.. ... end return f('y','z')`, "xy"},
		{`local function f(s) s = s..'x' return s end return f('a')`, "ax"},
		{`local function f(s) local r = s..'x' return r end return f('a')`, "ax"},
		{`local function f(a, s) s = a..s s = s..a return s end return f('a','b')`, "aba"},
		{`local s = 'a' s = s..s..s return s`, "aaa"},
		{`local function f(s) s = (s:gsub('a', 'b')) return s end return f('aaa')`, "bbb"},
		{`local function f(s) s = ((s:gsub('a', 'b'))) return s end return f('aaa')`, "bbb"},
		{`local function f(x, s) x, s = (s:gsub('a', 'b')), (x:gsub('x', 'y')) return x .. s end return f('x', 'a')`, "by"},
		{`local a, b = 1, 2 a, b = b, a return {a, b}`, "[2 1]"},
		{`local a, b, c = 1, 2 a, b, c = b, (function() return a, 8, 9 end)() return {a, b, c}`, "[2 1 8]"},
		{`local t, i = {}, 1 i, t[i] = i + 1, 5 return {i, t[1]}`, "[2 5]"},
		{`local a, b a, b = 1 return {a, b == nil}`, "[1 1]"},
		{`local a = 0 a = 1, 2, 3 return a`, "1"},
		{`local function f(s) s = s and s:upper() return s end return f('a')`, "A"},
		{`local function f(s) s = s and (s:gsub('a', 'b')) return s end return f('a')`, "b"},
		{`local function f(s) s = #s > 0 and (s:gsub('a', 'b')) or (s .. 'x') return s end return f('a')`, "b"},
		{`local function f(s) s = (s .. 'x') return s end return f('a')`, "ax"},
		{`local function f(s) s = {(s:gsub('a', 'b'))} return s[1] end return f('a')`, "b"},
		{`local function f(s) s = #(s:gsub('a', 'b')) return s end return f('a')`, "1"},
		{`local function f(s) s = (s:gsub('a', 'b')) == 'b' return s end return f('a')`, "1"},
		{`local function f(s) s = -(tonumber(s)) + 1 return s end return f('5')`, "-4"},
		{`local function f(s) s = not (tonumber(s)) return s end return f('5')`, "(nil)"},
		{`local function f(s) local t = {x=s} t.x = (t.x:gsub('a', 'b')) return t.x end return f('a')`, "b"},
		{`local t = {x='a'} t.x = t.x..'b' t['y'..1] = 'c'..2 return t.x..t.y1`, "abc2"},
		{`return ('a'..'b'):rep(2)..#('x'..'y')`, "abab2"},
		{`return {'a'..'b', ('c'..'d')}`, "[ab cd]"},
		{`return (function() return 'a'..'b' end)()`, "ab"},
		{`local t = {} for k, v in pairs({a=1}) do t[#t+1] = k..'='..v end return t`, "[a=1]"},
		{`local m = {__concat=function(a, b) return (type(a)=='table' and 'T' or a)..'+'..(type(b)=='table' and 'T' or b) end} local t = setmetatable({}, m) return 'a'..t..'b'`, "aT+b"}, // the right side first
		{`local m = {__concat=function(a, b) return 'm' end} local t = setmetatable({}, m) return t..'a'..'b'..'c'`, "m"},
		{`local m = {__concat=function(a, b) return 'm' end} local t = setmetatable({}, m) return t..t..1`, "m"},
		{`return #(` + long + `)`, "151"},
		{`return loadstring("return 'a'..'b'..#...")('xyz')`, "ab3"},
		{`if 'a'..'b' == 'ab' and not ('a'..'b' ~= 'ab') then return 'yes' end`, "yes"},
		{`local s = '' while #s < 5 do s = s..'x' end repeat s = s..'y' until s..'' == s return s`, "xxxxxy"},
		{`return select('#', 'a'..'b', ('c'..'d'))`, "2"},
		{`return 'a'..'b', 'c'`, "ab"},
		{`return string.upper('aäß\255z') .. string.lower('AÄZ')`, "Aäß\xffZ" + "aÄz"},
	} {
		if got := c.do("EVAL", row[0], "0"); got != row[1] {
			t.Errorf("%s: %q, want %q", row[0], got, row[1])
		}
	}
	for _, row := range [][2]string{
		{`return 'a'..nil`, "attempt to concatenate a nil value"},
		{`return {}..'a'`, "attempt to concatenate a table value"},
		{"local x\n\nreturn 'a'..x..'b'", "user_script:3: attempt to concatenate a nil value script: "},
		{"return 1\n..{}", "on @user_script:"},
		{`return select(2, pcall(function() return true..'a' end))`, "user_script:1: attempt to concatenate a boolean value"},
	} {
		require.Contains(t, c.do("EVAL", row[0], "0"), row[1], row[0])
	}
}
