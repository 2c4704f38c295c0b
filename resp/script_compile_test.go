package resp

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A script that is nested deep enough to use up the stack of a goroutine would
// end the process.
func TestScriptsAreNotNestedWithoutBounds(t *testing.T) {
	c := dial(t, startServer(t))
	const deep = "chunk has too many syntax levels"
	const many = 10_000
	for name, text := range map[string]string{
		"unary operators":  "return " + strings.Repeat("not ", many) + "1",
		"signs":            "return " + strings.Repeat("- ", many) + "1",
		"tables":           "return " + strings.Repeat("{", many) + strings.Repeat("}", many),
		"texts in a row":   "return " + strings.Repeat("''..", many) + "''",
		"sums":             "return 1" + strings.Repeat("+1", many),
		"calls":            "return print" + strings.Repeat("()", many),
		"fields":           "return a" + strings.Repeat(".a", many),
		"blocks":           strings.Repeat("do ", many) + strings.Repeat("end ", many),
		"functions":        strings.Repeat("return function() ", many/4) + strings.Repeat("end ", many/4),
		"other conditions": "if a then " + strings.Repeat("elseif a then ", many/4) + "end",
	} {
		if got := c.do("EVAL", text, "0"); !strings.Contains(got, deep) {
			t.Errorf("%s: %.100q, want %q", name, got, deep)
		}
	}
	require.Equal(t, "1", c.do("EVAL", "return "+strings.Repeat("(", many)+"1"+strings.Repeat(")", many), "0"))
	require.Equal(t, "901", c.do("EVAL", "return 1"+strings.Repeat("+1", 900), "0"))
	require.Equal(t, "6000", c.do("EVAL", strings.Repeat("local a=1\n", 100)+strings.Repeat("a=a or 2\n", 5000)+"return 6000", "0"))
	require.Contains(t, c.do("EVAL", "--"+strings.Repeat("x", luaTextMax), "0"), "a script of 1048578 bytes, expected at most 1048576")
	for _, call := range []string{`loadstring(t)`, `load(function() local x = t t = nil return x end)`} {
		got := c.do("EVAL", `local t = "return "..string.rep("not ", 10000).."1" local f, e = `+call+` return e`, "0")
		require.Contains(t, got, deep, call)
	}
}

func TestScriptsCompileText(t *testing.T) {
	c := dial(t, startServer(t))
	for _, row := range [][2]string{
		{`return loadstring("return 1+1")()`, "2"},
		{`local n=0 return load(function() n=n+1 return ({"return ","7"})[n] end)()`, "7"},
		{`return {load(function() return {} end)}`, "[]"},
		{`local f, e = load(function() return {} end) return e`, "reader function must return a string"},
		{`return loadstring("return KEYS[1]")()`, "(nil)"},
		{`local f = loadstring("z=1") return tostring(pcall(f))`, "false"},
	} {
		if got := c.do("EVAL", row[0], "0"); got != row[1] {
			t.Errorf("%s: %q, want %q", row[0], got, row[1])
		}
	}
}

// What one script does to the libraries another one must not see. Replies of
// redis-server 7.0.
func TestScriptsCannotChangeWhatOthersSee(t *testing.T) {
	c := dial(t, startServer(t))
	for _, text := range []string{
		`rawset(_G, 'x', 5)`, `rawset(redis, 'call', function() return 'mine' end)`, `table.insert(string, 'q')`, `table.insert(_G, 1, 'q')`, `table.remove(math, 1)`,
	} {
		require.Equal(t, "ERR Attempt to modify a readonly table script: "+shaOf([]byte(text))+", on @user_script:1.", c.do("EVAL", text, "0"), text)
	}
	require.Contains(t, c.do("EVAL", "return x", "0"), "nonexistent global variable 'x'")
	require.Equal(t, "(nil)", c.do("EVAL", "return redis.call('get', KEYS[1])", "1", "k"))
	require.Equal(t, "[1 2]", c.do("EVAL", "local t = {} rawset(t, 1, 1) table.insert(t, 2) return t", "0"))
}

// A script is compiled before its call takes the lock of the slot: others use the
// slot meanwhile. What is wrong with it is said after what is wrong with its keys.
func TestScriptsAreCompiledBeforeTheirSlotIsTaken(t *testing.T) {
	s := startServer(t)
	text := "return 1"
	c := &Conn{server: s}
	eval := s.table.byName["eval"]
	early := c.compile(eval, [][]byte{[]byte("eval"), []byte(text), []byte("0")})
	require.NoError(t, early.err)
	require.Nil(t, s.scripts.find(shaOf([]byte(text))), "it is kept when it runs")
	require.Nil(t, c.compile(s.table.byName["get"], nil))
	run, err := c.newRun(eval, [][]byte{[]byte("eval"), []byte(text), []byte("1"), []byte("k")}, early)
	require.NoError(t, err)
	require.Same(t, early.script, run.script)
	require.Equal(t, early.script, c.compile(s.table.byName["evalsha"], [][]byte{[]byte("evalsha"), []byte(shaOf([]byte(text))), []byte("0")}).script)
	other := dial(t, s)
	for _, call := range [][]string{{"EVAL", "return 2", "2", "a", "b"}, {"EVAL", "return 2", "x", "a"}, {"EVAL", "return 2", "4294967297", "a"}} {
		require.Contains(t, []string{string(errCrossSlot), string(errNotInteger), "ERR Number of keys can't be greater than number of args"}, other.do(call...))
		require.Equal(t, "[0]", other.do("SCRIPT", "EXISTS", shaOf([]byte("return 2"))), "%q has not run", call)
	}
	require.Equal(t, "CROSSSLOT Keys in request don't hash to the same slot", dial(t, s).do("EVAL", "this is no Lua", "2", "a", "b"))
	require.Contains(t, dial(t, s).do("EVAL", "this is no Lua", "1", "a"), "ERR Error compiling script")
}
