package compat

import (
	"crypto/sha1"
	"encoding/hex"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// handOn are scripts that do the command in ARGV.
var handOn = []string{
	"return redis.call(unpack(ARGV))",
	"return redis.pcall(unpack(ARGV))",
	"local r = redis.call(unpack(ARGV)) return r",
}

const hashScript = "redis.setresp(3) return redis.call('hgetall', KEYS[1])"

// scripted is the command inside a script that only hands it on, or nil.
func scripted(args []string) []string {
	if len(args) < 3 || !strings.HasPrefix(strings.ToLower(args[0]), "eval") {
		return nil
	}
	n, err := strconv.Atoi(args[2])
	if err != nil || n < 0 || n > len(args)-4 {
		return nil
	}
	if args[1] == hashScript || args[1] == sum(hashScript) {
		return []string{"HGETALL"}
	}
	for _, source := range handOn {
		if args[1] == source || args[1] == sum(source) {
			return args[3+n:]
		}
	}
	return nil
}

// sourceOf is the text of a script that a call names, by the text or by its sum.
func sourceOf(args []string) string {
	if len(args) < 2 || !strings.HasPrefix(strings.ToLower(args[0]), "eval") {
		return ""
	}
	for _, source := range scripts {
		if args[1] == sum(source) {
			return source
		}
	}
	return args[1]
}

// sum is the name of a script for EVALSHA.
func sum(source string) string {
	b := sha1.Sum([]byte(source))
	return hex.EncodeToString(b[:])
}

// scripts are those that say more than one command. They take at most three keys,
// and arguments.
var scripts = []string{
	"return 1", "return 'text'", "return 1.9", "return -1.9", "return true", "return false", "return nil", "return", "", "return {1,2,{3,'four',{5}},nil,6}",
	"return {}", "return {a=1}", "return {ok='FINE'}", "return {err='BAD thing'}", "return {err='noprefix'}", "return redis.error_reply('MY error')",
	"return redis.error_reply('noprefix')", "return redis.error_reply('-one')", "return redis.error_reply('')", "return redis.error_reply(1)", "return redis.status_reply()", "return {err='a\\r\\nb'}", "return {ok='a\\r\\nb'}", "error('a\\nb')", "error('x', 0)", "error()", "error(5)", "redis.setresp(3) return {true, false, nil}", "redis.setresp(3) return false", "redis.setresp('3') return true", "return redis.error_reply('-LEAD error')", "return redis.status_reply('YES')", "return {1,false,true,'x'}", "return {1.5,2.9,-0.5}",
	"return KEYS", "return ARGV", "return {KEYS[1], ARGV[1], #KEYS, #ARGV}", "return 9007199254740993", "return 1e20", "return 0/0", "return 1/0", "return '\\0\\255'",
	"return redis.call('get', KEYS[1])", "return redis.call('incr', KEYS[1])", "return {redis.call('get', KEYS[1]), redis.pcall('incr', KEYS[1])}",
	"return redis.pcall('incr', KEYS[1]).err", "return redis.call('nosuch')", "return redis.pcall('nosuch')", "return redis.call('get')", "return redis.pcall('get').err",
	"return redis.call()", "return redis.pcall()", "return redis.call({})", "return redis.call('get', {})", "return redis.call('set', KEYS[1], 3.5)", "return redis.call('set', KEYS[1], 10)",
	"return redis.call('set', KEYS[1], 1e15)", "return redis.call('set', KEYS[1], 2^53)", "return redis.call('set', KEYS[1], 0.1)", "return redis.call('set', KEYS[1], -0)",
	"for i = 1, 20 do redis.call('rpush', KEYS[1], i) end return redis.call('llen', KEYS[1])",
	"local n = 0 for i = 1, 10 do n = n + redis.call('sadd', KEYS[1], i % 4) end return n",
	"redis.call('set', KEYS[1], ARGV[1]) error('oops')", "redis.call('set', KEYS[1], 'v') return redis.call('lpush', KEYS[1], 'x')", "error({err='MY table'})", "error({err='noprefix'})",
	hashScript, "redis.setresp(2) return redis.call('zrange', KEYS[1], 0, -1, 'withscores')",
	"redis.setresp(3) return redis.call('zscore', KEYS[1], 'm1')", "redis.setresp(3) return redis.call('zrange', KEYS[1], 0, -1, 'withscores')", "redis.setresp(3) return redis.call('smembers', KEYS[1])[1]",
	"redis.setresp(4)", "return redis.setresp()", "redis.setresp(3) return {double=3.25}", "return {double=3.25}", "return {map={a=1}}", "return {set={a=true}}", "return {big_number='123'}",
	"return {verbatim_string={format='txt',string='hi'}}", "redis.setresp(3) return redis.call('get', '{t}none')", "redis.setresp(3) return redis.call('get', '{t}none') == nil", "return redis.call('get', KEYS[1]) == false",
	"return type(redis.call('hgetall', KEYS[1]))", "return type(redis.call('zscore', KEYS[1], 'm1'))", "redis.setresp(3) return type(redis.call('zscore', KEYS[1], 'm1'))", "return type(redis.call('ping'))", "return redis.call('ping').ok",
	"return redis.call('type', KEYS[1])", "return redis.call('type', KEYS[1]).ok", "return redis.call('exists', KEYS[1])", "return redis.call('echo', ARGV[1])",
	"return redis.sha1hex(ARGV[1])", "return redis.sha1hex()", "return redis.replicate_commands()", "return redis.log(redis.LOG_DEBUG, 'x')", "redis.log(9, 'x')", "redis.log()",
	"return {redis.LOG_DEBUG, redis.LOG_VERBOSE, redis.LOG_NOTICE, redis.LOG_WARNING}", "return redis.REDIS_VERSION", "return redis.REDIS_VERSION_NUM", "return redis.set_repl(redis.REPL_ALL)",
	"return redis.breakpoint()", "return redis.debug('x')", "return server == nil", "return redis.acl_check_cmd('get', 'x')",
	"x = 1", "return x", "local t = setmetatable({}, {}) t.x = 1 return t.x", "redis.call = 1", "string.x = 1", "return _G == nil", "return os.clock() >= 0", "return os.time", "return io", "return require", "return dofile", "return loadfile", "return print",
	"return cjson.encode({1,2,3})", "return cjson.encode({a=1})", "return cjson.encode({})", "return cjson.encode(ARGV)", "return cjson.encode({1.5, 'x', true, false, cjson.null})", "return cjson.encode(3.14159265358979)", "return cjson.encode(1e20)", "return cjson.encode('\"\\\\/\\n\\1é')",
	"return cjson.decode('[1,2,[3,{\"a\":null}],true,\"x\"]')", "return cjson.decode('{\"a\":{\"b\":[1,2]}}').a.b", "return cjson.decode('{')", "return cjson.decode('')", "return tostring(cjson.decode('1.5'))", "return cjson.decode('\"\\\\u00e9\\\\n\"')", "return type(cjson.decode('null'))", "return cjson.encode(cjson.decode('[]'))",
	"return cjson.encode({[1]=1,[5]=5})", "return cjson.encode({[1]='a',x='b'})", "return cjson.encode(function() end)", "return pcall(cjson.decode, '[1,')",
	"return struct.pack('>I2', 258)", "return {struct.unpack('>I2', struct.pack('<I2', 258))}", "return {struct.unpack('<i4', '\\255\\255\\255\\255')}", "return struct.size('>I4I2b')", "return struct.pack('z', 'x')", "return struct.pack('d', 1.5)", "return {struct.unpack('sI1', 'ab\\0\\5')}", "return struct.pack('I')",
	"return struct.pack('>lHBhc3', 1, 2, 3, 4, 'abcdef')", "return {struct.unpack('c2', 'abcd', 2)}", "return struct.unpack('I4', 'a')", "return {struct.unpack('bBhH', '\\255\\255\\254\\255\\254\\255')}",
	"return bit.band(12, 10)", "return bit.bor(12, 10)", "return bit.bxor(12, 10)", "return bit.bnot(0)", "return bit.lshift(1, 31)", "return bit.rshift(-1, 28)", "return bit.arshift(-256, 4)", "return bit.rol(0x12345678, 12)", "return bit.ror(0x12345678, 12)", "return bit.bswap(0x12345678)", "return bit.tohex(255)", "return bit.tohex(-1, -4)", "return bit.tobit(2^31)", "return bit.band('x')",
	"return string.format('%d %s %5.2f %q %x', 3, 'a', 2.5, 'q', 255)", "return string.format('%s', 1.0)", "return tostring(1e15)", "return tostring(1e14)", "return tostring(0.1)", "return tostring(100)", "return tostring(1/3)", "return tostring(-0)", "return tostring(2^63)", "return tostring(nil)", "return 10 .. ''", "return 2^31 .. ''", "return '10' + 5", "return '1e1' + 0", "return tonumber('0x')", "return tonumber('1e')", "return tonumber('  10  ')", "return tonumber('7', 8)", "return tonumber('9', 8)", "return tostring(tonumber('-7', 8))", "return tonumber('10', 40)", "return tonumber('.5') * 10", "return {pcall(function() error('x') end)}", "return {pcall(function() error('x', 2) end)}", "local function f() error('deep', 2) end f()", "error(true)", "return '0x10' + 0", "return tonumber('1e2')", "return tonumber('z', 36)", "return tonumber('x')", "return tonumber(' 12 ')",
	"return string.rep('ab', 3)", "return ('x'):rep(3)", "return string.sub('hello', 2, -2)", "return string.byte('A')", "return {string.byte('abc', 1, -1)}", "return string.char(0, 255)", "return string.reverse('abc')", "return string.upper('abc')", "return #ARGV[1]", "return {string.find('hello', 'l+')}", "return {string.match('key=val', '(%w+)=(%w+)')}", "return string.gsub('hello', 'l', 'L')", "return {string.gsub('abc', '%w', '%0%0')}", "local t = {} for w in string.gmatch('a b c', '%a') do t[#t+1] = w end return t",
	"return table.concat({1,2,3}, ',')", "local t = {3,1,2} table.sort(t) return t", "local t = {1,2} table.insert(t, 1, 0) table.remove(t) return t", "return table.getn({1,2,3})", "return {unpack({1,2,3}, 2)}", "return select('#', 1, 2, 3)", "return {select(2, 'a', 'b', 'c')}", "return next({})", "return type(next)", "return rawget({5}, 1)", "return {pcall(error, 'x')}", "return {pcall(function() return 1, 2 end)}", "return select(2, pcall(error, {code=1})).code", "return math.floor(2.7)", "return math.ceil(2.1)", "return math.max(1, 5, 3)", "return math.abs(-3)", "return 7 % 3", "return -7 % 3", "return 7.5 % 2", "return math.fmod(-7, 3)", "return 2 ^ 10", "return math.pi * 1000", "return math.huge", "return math.sqrt(16)", "return {math.modf(3.7)}", "return {math.frexp(8)}", "return math.ldexp(1, 4)", "return math.log10(1000)", "return math.pow(2, 3)", "return loadstring('return 1+1')()", "return load(function() return nil end) ~= nil", "return type(coroutine.create(function() end))",
	"math.randomseed(1) return math.random(100)", "math.randomseed(7) return {math.random(1000), math.random(5, 10), math.random(2)}", "return math.random(0)",
	"#!lua\nreturn 1", "#!lua flags=no-writes\nreturn redis.call('get', KEYS[1])", "#!lua flags=no-writes\nreturn redis.call('set', KEYS[1], 1)", "#!lua flags=nosuch\nreturn 1", "#!python\nreturn 1", "#!lua name=x\nreturn 1", "#!lua flags=allow-stale,no-cluster\nreturn 1", "#!lua", "#!lua flags=allow-oom\nreturn redis.call('incr', KEYS[1])",
	"return redis.call('subscribe', 'x')", "return redis.call('multi')", "return redis.call('blpop', KEYS[1], 0)", "return redis.call('bzpopmin', KEYS[1], 0)", "return redis.call('watch', KEYS[1])", "return redis.call('client', 'id')", "return redis.call('eval', 'return 1', 0)", "return redis.call('hello')", "return redis.call('config', 'get', 'x')", "return redis.call('auth', 'x')", "return redis.call('script', 'load', 'x')", "return redis.call('cluster', 'nosuch')", "return redis.call('dbsize')", "return redis.call('select', 0)", "return redis.call('select', 1)", "return redis.call('publish', 'ch', 'x')", "return redis.call('command', 'count', 'x')", "return redis.call('object', 'nosuch')",
	"if redis.call('exists', KEYS[1]) == 1 then return redis.call('type', KEYS[1]) end return 'gone'", "local v = redis.pcall('lrange', KEYS[1], 0, -1) if v.err then return v end return #v", "local r = redis.pcall('hset', KEYS[1], 'f1', '1') if type(r) == 'table' then return {'failed', r.err} end return r",
	"return {redis.pcall('set', KEYS[1]), redis.pcall('get', KEYS[1])}", "redis.call('del', KEYS[1]) redis.call('rpush', KEYS[1], unpack(ARGV)) return redis.call('lrange', KEYS[1], 0, -1)", "return redis.call('set', KEYS[1], ARGV[1], 'EX', 100000)", "return {redis.call('mget', KEYS[1], KEYS[2])}", "redis.call('rename', KEYS[1], KEYS[2]) return 1", "return redis.call('expire', KEYS[1], 1000000)",
	"local t = {} for i = 1, 3 do t[i] = redis.call('incrby', KEYS[1], i) end return t", "return redis.call('zadd', KEYS[1], 1, 'a', 2, 'b')", "return redis.call('zincrby', KEYS[1], 1.5, 'a')", "return redis.call('incrbyfloat', KEYS[1], 0.1)", "return tonumber(redis.call('incrbyfloat', KEYS[1], 0.5)) * 2", "return redis.call('SORT', KEYS[1], 'ALPHA')", "return redis.call('RESTORE', KEYS[1], 0, 'x')",
	"return a.b", "return nil .. 'x'", "return 1 + {}", "return #nil", "return ('x').y.z", "return nil()", "local function f() return f() + 1 end", "return {1, {err='inner'}, {ok='in'}}", "return 1 < 'x'", "goto x", "return (", "x =", "return 'unfinished", "local a <const> = 1", "return 1 // 2", "return 5 & 3", "--comment", "return --[[ in ]] 4", "return [[long\nstring]]", "return 'a\\\nb'", "return 0xff", "return 1e2", "return .5 * 4", "repeat local x = 1 until x return 3", "while true do break end return 6", "for k, v in pairs({1}) do return k + v end", "for i, v in ipairs({4, 5}) do if i == 2 then return v end end", "return not nil == true", "return 1 and 2 or 3", "return 'a' < 'b'", "return {n=1, 2, [2]=3}", "return (function(...) return select('#', ...) end)(nil, nil)", "return tostring(print)", "return string.len('\\0x')", "return ('%d'):format('10')", "return ('%d'):format(3.7)", "return ('%i %u %c %o %X %e %g'):format(1, 2, 65, 8, 255, 1.5, 0.0001)", "return string.format('%10s|%-10s|%.2s', 'a', 'b', 'cde')", "return string.format('%d')", "return string.format('%y', 1)", "return string.rep('x', -1)", "return 2^53 + 1", "return -2^63", "return 1e308 * 10", "return 4294967296", "return -4294967297",
}

// script makes EVAL and the like.
func (g *generator) script() []string {
	source, keys, args := "", []string(nil), []string(nil)
	if g.chance(0.35) {
		source = pick(g, handOn)
		args = g.keyed()
		if g.chance(0.6) { // else none is named
			keys = append(keys, g.keys...)
		}
	} else {
		source = pick(g, scripts)
		for range 1 + g.rnd.IntN(3) {
			keys = append(keys, g.key(keyType(g.rnd.IntN(int(anyType)))))
		}
		for range 1 + g.rnd.IntN(2) {
			args = append(args, g.value())
		}
	}
	name := "EVAL"
	if g.chance(0.05) {
		name = "EVAL_RO"
	}
	if g.chance(0.1) {
		source, name = sum(source), "EVALSHA"+name[4:]
	}
	return append(append([]string{name, source, g.odd(0.02, strconv.Itoa(len(keys)))}, keys...), args...)
}

// A script that touches keys of two slots, its own or that of the transaction that it is
// in, both served by the node that it runs at. Where Redis goes on, it is refused
// here, with the reason; where Redis refuses, the words are the same.
func TestScriptsOfTwoSlots(t *testing.T) {
	a, b := connect(t, startRedis(t), "2"), connect(t, startOurs(t), "2")
	const two = "redis.call('set', '{b}', '1') return redis.call('get', '{a}')"
	for _, row := range []struct {
		name    string
		calls   []string
		refused bool
	}{
		{"in a transaction of another slot", []string{"MULTI", "SET {a} 1", "EVAL 'return redis.call(\"set\",\"{b}\",\"2\")' 0", "EXEC"}, true},
		{"in a transaction of its own slot", []string{"MULTI", "SET {a} 1", "EVAL 'return redis.call(\"get\",\"{a}\")' 0", "EXEC"}, false},
		{"in a transaction of no slot", []string{"MULTI", "EVAL 'return redis.call(\"get\",\"{a}\")' 0", "EVAL 'return redis.call(\"set\",\"{b}\",\"2\")' 0", "EXEC"}, true},
		{"alone", []string{"EVAL '" + strings.ReplaceAll(two, "'", `"`) + "' 0"}, true},
		{"alone, its key named", []string{"EVAL '" + strings.ReplaceAll(two, "'", `"`) + "' 1 {b}"}, true},
		{"a command of two slots", []string{"EVAL 'return redis.call(\"mget\",\"{a}\",\"{b}\")' 0"}, false},
		{"a command of two slots, one of them named", []string{"EVAL 'return redis.call(\"mget\",\"{a}\",\"{b}\")' 1 {a}"}, false},
		{"in Redis's words", []string{"EVAL '#!lua\n" + strings.ReplaceAll(two, "'", `"`) + "' 1 {b}"}, false},
		{"allowed", []string{"EVAL '#!lua flags=allow-cross-slot-keys\n" + strings.ReplaceAll(two, "'", `"`) + "' 1 {b}"}, true},
	} {
		var want, got reply
		for _, call := range row.calls {
			var err error
			want, err = a.do(words(call)...)
			require.NoError(t, err)
			got, err = b.do(words(call)...)
			require.NoError(t, err)
		}
		if !row.refused {
			require.Equal(t, want, got, row.name)
			continue
		}
		require.NotContains(t, want.wire(), "-ERR", row.name)
		require.Contains(t, got.wire(), "-ERR Script attempted to access keys that do not hash to the same slot: it is one step under the lock of slot ", row.name)
	}
}
