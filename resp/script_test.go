package resp

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	lua "github.com/yuin/gopher-lua"
)

// Replies of redis-server 7.0.
func TestScript(t *testing.T) {
	c := dial(t, startServer(t))
	sha := func(text string) string { return shaOf([]byte(text)) }
	for _, row := range []struct {
		text string
		args string
		want string
	}{
		{"return 1", "0", "1"},
		{"return 3.99", "0", "3"},
		{"return -3.99", "0", "-3"},
		{"return 'a'", "0", "a"},
		{"return true", "0", "1"},
		{"return false", "0", "(nil)"},
		{"return nil", "0", "(nil)"},
		{"return {1,2,{3,'a'},nil,4}", "0", "[1 2 [3 a]]"},
		{"return {err='MY err'}", "0", "MY err"},
		{"return {ok='fine'}", "0", "fine"},
		{"return {double=3.5}", "0", "3.5"},
		{"return {KEYS[1],ARGV[1],#KEYS,#ARGV}", "1 k v", "[k v 1 1]"},
		{"return redis.error_reply('ERR x')", "0", "ERR x"},
		{"return redis.error_reply('boom')", "0", "ERR boom"},
		{"return redis.status_reply('x')", "0", "x"},
		{"return redis.sha1hex('')", "0", "da39a3ee5e6b4b0d3255bfef95601890afd80709"},
		{"return _VERSION", "0", "Lua 5.1"},
		{"x=1", "0", "ERR user_script:1: Attempt to modify a readonly table script: SHA, on @user_script:1."},
		{"return x", "0", "ERR user_script:1: Script attempted to access nonexistent global variable 'x' script: SHA, on @user_script:1."},
		{"error('boom')", "0", "ERR user_script:1: boom script: SHA, on @user_script:1."},
		{"\n\nerror('boom')", "0", "ERR user_script:3: boom script: SHA, on @user_script:3."},
		{"return redis.error_reply('-CODE x')", "0", "CODE x"},
		{"return redis.error_reply('-x')", "0", "ERR x"},
		{"return redis.error_reply(1)", "0", "ERR wrong number or type of arguments"},
		{"redis.setresp(4)", "0", "ERR RESP version must be 2 or 3. script: SHA, on @user_script:1."},
		{"redis.setresp()", "0", "ERR redis.setresp() requires one argument. script: SHA, on @user_script:1."},
		{"redis.setresp(3) return {true,false}", "0", "[1 0]"},
		{"redis.log(9,'x')", "0", "ERR Invalid debug level. script: SHA, on @user_script:1."},
		{"return redis.sha1hex()", "0", "ERR wrong number of arguments script: SHA, on @user_script:1."},
		{"return redis.call('object','nosuch')", "0", "ERR Unknown Redis command called from script script: SHA, on @user_script:1."},
		{"return redis.breakpoint()", "0", "(nil)"},
		{`return {err='a\r\nb'}`, "0", "a  b"},
		{"return redis.call('echo', -0) .. redis.call('echo', 1e15) .. redis.call('echo', 0.1)", "0", "-010000000000000000.10000000000000001"},
		{"math.randomseed(1) return {math.random(100), math.random(100)}", "0", "[5 46]"},
		{"math.randomseed(7) return {math.random(1000), math.random(5, 10), math.random(2)}", "0", "[267 9 1]"},
		{"return math.random(0)", "0", "ERR user_script:1: bad argument #1 to 'random' (interval is empty) script: SHA, on @user_script:1."},
		{"return {tonumber('1e2'), tonumber(' 0x10 '), tonumber('zz', 36), tonumber('5.'), tonumber('0x1F', 16)}", "0", "[100 16 1295 5 31]"},
		{"return {tonumber('1_0') == nil, tonumber('') == nil, tonumber('9', 8) == nil, tonumber('x') == nil, tonumber({}) == nil}", "0", "[1 1 1 1 1]"},
		{"return tonumber('10', 40)", "0", "ERR user_script:1: bad argument #2 to 'tonumber' (base out of range) script: SHA, on @user_script:1."},
		{"return select(2, pcall(error, 'x'))", "0", "x"},
		{"return select(2, pcall(function() error('x', 2) end))", "0", "x"},
		{"return select(2, pcall(function() error('x') end))", "0", "user_script:1: x"},
		{"error(5)", "0", "ERR user_script:1: 5 script: SHA, on @user_script:1."},
		{"error()", "0", "ERR nil script: SHA, on @user_script:1."},
		{"#!lua", "0", "ERR Invalid script shebang"},
		{"#!python\nreturn 1", "0", "ERR Unexpected engine in script shebang: #!python"},
		{"return tostring(1e15)", "0", "1e+15"},
		{"return tostring(100)", "0", "100"},
		{`return string.format('%d|%5.2f|%-5s|%05d|%x|%q|%c|%i|%u|%%|%+d', 3.7, 2.345, 'ab', -42, 255, 'a\n"', 65, 7, 8, 5)`, "0", "3| 2.35|ab   |-0042|ff|\"a\\\n\\\"\"|A|7|8|%|+5"},
		{"return string.format('%e %g %G %.3g %#x %#o %.3d %s', 12345.678, 0.0001, 1e-10, 1e20, 255, 8, 5, 1.5)", "0", "1.234568e+04 0.0001 1E-10 1e+20 0xff 010 005 1.5"},
		{"return string.format('%5.1s|%5d|%-5d|', 'abc', 3, 4)", "0", "    a|    3|4    |"},
		{"return string.format('%d')", "0", "ERR user_script:1: bad argument #2 to 'format' (no value) script: SHA, on @user_script:1."},
		{"return string.format('%y', 1)", "0", "ERR user_script:1: invalid option '%y' to 'format' script: SHA, on @user_script:1."},
		{"math.random=1", "0", "ERR user_script:1: Attempt to modify a readonly table script: SHA, on @user_script:1."},
		{"return redis.call('nosuch')", "0", "ERR Unknown Redis command called from script script: SHA, on @user_script:1."},
		{"return redis.call('multi')", "0", "ERR This Redis command is not allowed from script script: SHA, on @user_script:1."},
		{"return redis.call()", "0", "ERR Please specify at least one argument for this redis lib call script: SHA, on @user_script:1."},
		{"return redis.call('get',{})", "0", "ERR Lua redis lib command arguments must be strings or integers script: SHA, on @user_script:1."},
		{"return redis.pcall('set','a')", "1 a", "ERR Wrong number of args calling Redis command from script"},
		{"local e=redis.pcall('get') return e.err", "0", "ERR Wrong number of args calling Redis command from script"},
		{"return redis.call('set',KEYS[1],ARGV[1])", "1 a 5", "OK"},
		{"return redis.call('get','a')", "1 a", "5"},
		{"return redis.call('get','a')", "0", "5"}, // no key named: the slot is that of the first it touches
		{"return redis.call('get','b')", "1 a", "ERR Script attempted to access keys that do not hash to the same slot: it is one step under the lock of slot 15495, with the transaction that it is in, and the key is in slot 3300 script: SHA, on @user_script:1."},
		{"#!lua\nreturn redis.call('get','b')", "1 a", "ERR Script attempted to access keys that do not hash to the same slot script: SHA, on @user_script:2."},
		{"return redis.call('incr',KEYS[1])+redis.call('incr',KEYS[1])", "1 a", "13"},
		{"redis.call('del',KEYS[1]) redis.call('lpush',KEYS[1],1) return redis.call('get',KEYS[1])", "1 l", "WRONGTYPE Operation against a key holding the wrong kind of value script: SHA, on @user_script:1."},
		{"return redis.call('llen',KEYS[1])", "1 l", "1"}, // what a script did before it failed stays
		{"return redis.call('get',KEYS[1])", "1 nosuch", "(nil)"},
		{"return redis.call('get',KEYS[1]) == false", "1 nosuch", "1"},
		{"#!lua flags=no-writes\nreturn redis.call('set',KEYS[1],1)", "1 a", "ERR Write commands are not allowed from read-only scripts. script: SHA, on @user_script:2."},
		{"return cjson.encode({1,2,'x',{a=true}})", "0", `[1,2,"x",{"a":true}]`},
		{`return cjson.decode('{"a":[1,2,{"b":"\\u00e9"}],"n":null}').a[3].b`, "0", "é"},
		{"return cjson.encode(cjson.decode('[null,1.5,-2e3]'))", "0", "[null,1.5,-2000]"},
		{"return tostring(cjson.decode('null') == cjson.null)", "0", "true"},
		{"return bit.band(0xff, 0x0f) + bit.lshift(1, 4) + bit.bnot(0)", "0", "30"},
		{"return bit.tohex(255, 4)", "0", "00ff"},
		{"return {struct.unpack('>Ih', struct.pack('>Ih', 1, -2))}", "0", "[1 -2 7]"},
		{"return struct.size('!4 b i')", "0", "8"},
		{"return {struct.unpack('s', 'abc\\0def')}", "0", "[abc 5]"},
		{"return math.floor(math.random()) ", "0", "0"},
		{"local f=loadstring('y=1') return tostring(pcall(f))", "0", "false"},
		{"return table.concat({'a','b'},',')", "0", "a,b"},
		{"return string.rep('x', 1e9)", "0", "ERR user_script:1: resulting string too large script: SHA, on @user_script:1."},
	} {
		want := strings.ReplaceAll(row.want, "SHA", sha(row.text))
		words := append([]string{"EVAL", row.text}, strings.Fields(row.args)...)
		if got := c.do(words...); got != want {
			t.Errorf("%q %s:\n got %q\nwant %q", row.text, row.args, got, want)
		}
	}
	for _, row := range [][2]string{
		{"EVALSHA ffffffffffffffffffffffffffffffffffffffff 0", "NOSCRIPT No matching script. Please use EVAL."},
		{"EVALSHA short x", "NOSCRIPT No matching script. Please use EVAL."},
		{"EVAL x x", "ERR value is not an integer or out of range"},
		{"EVAL x 5 a", "ERR Number of keys can't be greater than number of args"},
		{"EVAL x -1", "ERR Number of keys can't be negative"},
		{"SCRIPT LOAD return", sha("return")},
		{"EVALSHA " + sha("return") + " 0", "(nil)"},
		{"SCRIPT EXISTS " + sha("return") + " a", "[1 0]"},
		{"SCRIPT KILL", "NOTBUSY No scripts in execution right now."},
		{"SCRIPT FLUSH x", "ERR SCRIPT FLUSH only support SYNC|ASYNC option"},
		{"SCRIPT FLUSH", "OK"},
		{"SCRIPT EXISTS " + sha("return"), "[0]"},
	} {
		c.check(row)
	}
	require.Equal(t, "ERR Write commands are not allowed from read-only scripts. script: "+sha("redis.call('set','a',1)")+", on @user_script:1.",
		c.do("EVAL_RO", "redis.call('set','a',1)", "1", "a"))
}

// A script that is stopped has done nothing, and the next ones run.
func TestScriptIsStopped(t *testing.T) {
	s := startServer(t)
	c, other := dial(t, s), dial(t, s)
	c.send("EVAL", "redis.call('set',KEYS[1],1) while true do pcall(function() while true do end end) end", "1", "a")
	require.Eventually(t, func() bool { return other.do("SCRIPT KILL") == "OK" }, 5*time.Second, time.Millisecond)
	require.Equal(t, "ERR Error running script: Script killed by user with SCRIPT KILL...", c.read())
	require.Equal(t, "(nil)", c.do("GET a"))
	require.Equal(t, "1", c.do("EVAL", "return 1", "0"))
}

func TestScriptInTransaction(t *testing.T) {
	c := dial(t, startServer(t))
	c.check([2]string{"MULTI", "OK"}, [2]string{"SET a 1", "QUEUED"})
	require.Equal(t, "QUEUED", c.do("EVAL", "return redis.call('incr',KEYS[1])", "1", "a"))
	require.Equal(t, "[OK 2]", c.do("EXEC"))
}

func FuzzScriptLibraries(f *testing.F) {
	for _, s := range []string{`{"a":[1,2.5e3,"x\u00e9\ud83d\ude00"],"b":null}`, "!4bhi>Ids", "[[[[[[", `"\u12`, "c0", "i99", ""} {
		f.Add(s, "abc\x00def")
	}
	vm := newInterpreter()
	defer vm.close()
	L := vm.state
	f.Fuzz(func(t *testing.T, text, data string) {
		for _, call := range []struct{ lib, name string }{{"cjson", "decode"}, {"struct", "pack"}, {"struct", "unpack"}, {"struct", "size"}} {
			lib := L.G.Global.RawGetString(call.lib)
			fn := L.GetField(lib, call.name)
			L.Push(fn)
			n := 1
			L.Push(lua.LString(text))
			if call.lib == "struct" && call.name != "size" {
				L.Push(lua.LString(data))
				n = 2
			}
			L.PCall(n, -1, nil)
			L.SetTop(0)
		}
	})
}

// What is only queued is not kept: the script of a transaction that is discarded is
// not there afterwards.
func TestQueuedScriptIsNotKept(t *testing.T) {
	c := dial(t, startServer(t))
	sha := shaOf([]byte("return 77"))
	c.check([2]string{"MULTI", "OK"})
	require.Equal(t, "QUEUED", c.do("EVAL", "return 77", "1", "k"))
	require.Equal(t, "QUEUED", c.do("EVAL", "#!lua flags=no-writes\nreturn 78", "1", "k"))
	require.Equal(t, "QUEUED", c.do("EVAL", "#!lua flags=nosuch\nreturn 79", "1", "k"))
	c.check([2]string{"DISCARD", "OK"}, [2]string{"EVALSHA " + sha + " 1 k", string(errNoScript)}, [2]string{"MULTI", "OK"})
	require.Equal(t, "QUEUED", c.do("EVAL", "return 77", "1", "k"))
	c.check([2]string{"EXEC", "[77]"}, [2]string{"SCRIPT FLUSH", "OK"})
	for _, keys := range []string{"2", "-1", "x"} { // wrong: it has not run
		require.Contains(t, c.do("EVAL", "return 77", keys, "k"), "ERR ")
	}
	c.check([2]string{"EVALSHA " + sha + " 1 k", string(errNoScript)})
	require.Equal(t, "77", c.do("EVAL", "return 77", "1", "k"))
	c.check([2]string{"PING", "PONG"}, [2]string{"EVALSHA " + sha + " 1 k", "77"})
}
