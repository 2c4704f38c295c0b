package compat

import (
	"flag"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/slotmesh/slotmesh/resp"
	"github.com/stretchr/testify/require"
)

// MIGRATE between a real redis-server and slotmesh.

// sizedKeys are commands that make keys of every type in every encoding that
// Redis has for it: those for small values, those for large ones, and what lies
// at the border between the two.
func sizedKeys() (commands [][]string) {
	add := func(args ...string) { commands = append(commands, args) }
	for name, value := range map[string]string{
		"empty": "", "number": "-12345", "large number": "9223372036854775807", "44 bytes": strings.Repeat("a", 44), "45 bytes": strings.Repeat("a", 45),
		"compressible": strings.Repeat("abc", 100_000), "binary": "\x00\xff\r\n$-1\r\n", "a megabyte": noise(1 << 20),
	} {
		add("SET", "{t}string "+name, value)
	}
	// Up to 128 items of 64 bytes are packed, or 512 in a set of numbers.
	for _, n := range []int{1, 128, 129, 512, 513, 3000} {
		for _, width := range []int{5, 64, 65} {
			if n*width > 40_000 {
				continue
			}
			items := make([]string, n)
			for i := range items {
				items[i] = fmt.Sprintf("%0*d", width, i)
				if i%3 == 1 && width == 5 {
					items[i] = strconv.Itoa(i * 7919) // numbers are kept in another way
				}
			}
			key := func(kind string) string { return fmt.Sprintf("{t}%s %d of %d", kind, n, width) }
			hash, scores := []string{"HSET", key("hash")}, []string{"ZADD", key("zset")}
			for i, item := range items {
				hash = append(hash, item, items[n-1-i])
				scores = append(scores, strconv.FormatFloat(float64(i%50)*1.1, 'g', -1, 64), item)
			}
			add(slices.Concat([]string{"RPUSH", key("list")}, items)...)
			add(slices.Concat([]string{"SADD", key("set")}, items)...)
			add(hash...)
			add(scores...)
		}
		numbers := []string{"SADD", fmt.Sprintf("{t}numbers %d", n)}
		for i := range n {
			numbers = append(numbers, strconv.Itoa(i*i*i-1000))
		}
		add(numbers...)
	}
	add("ZADD", "{t}zset of ends", "-inf", "a", "inf", "b", "-0", "c", "1e308", "d", "5e-324", "e", "0.1", "f")
	add("RPUSH", "{t}list of a megabyte", noise(1<<20), "", noise(100))
	add("SET", "{t}\x00\xff binary name", "v")
	return commands
}

// noise is n bytes that do not compress.
func noise(n int) string {
	b := make([]byte, n)
	x := uint32(1)
	for i := range b {
		x = x*1664525 + 1013904223
		b[i] = byte(x >> 24)
	}
	return string(b)
}

// value is all that is in a key, in an order that does not depend on the server.
func value(t testing.TB, l *link, key string) string {
	t.Helper()
	do := func(args ...string) reply {
		r, err := l.do(args...)
		require.NoError(t, err)
		require.False(t, r.isError(), "%.100q: %s", args, r.text)
		return r
	}
	switch kind := do("TYPE", key).text; kind {
	case "string":
		return do("GET", key).wire()
	case "list":
		return do("LRANGE", key, "0", "-1").wire()
	case "set":
		return inOrder(do("SMEMBERS", key), 1)
	case "hash":
		return inOrder(do("HGETALL", key), 2)
	case "zset":
		return do("ZRANGE", key, "0", "-1", "WITHSCORES").wire()
	default:
		return kind
	}
}

// inOrder is the items of an array, width of them together, in the order of their
// bytes.
func inOrder(r reply, width int) string {
	var all []string
	for items := range slices.Chunk(r.items, width) {
		var b []byte
		for _, i := range items {
			b = i.append(b)
		}
		all = append(all, string(b))
	}
	slices.Sort(all)
	return strings.Join(all, "")
}

// mustDo runs a command that must not be refused.
func mustDo(t testing.TB, l *link, args ...string) reply {
	t.Helper()
	r, err := l.do(args...)
	require.NoError(t, err)
	require.False(t, r.isError(), "%.200q: %s", args, r.text)
	return r
}

// migrateTo is MIGRATE of keys to an address.
func migrateTo(addr string, keys []string, options ...string) []string {
	host, port, _ := net.SplitHostPort(addr)
	return slices.Concat([]string{"MIGRATE", host, port, "", "0", "60000"}, options, []string{"KEYS"}, keys)
}

// state is values, digests and times of keys at a server.
type state struct {
	values, digests []string
	ttls            []int64 // -1: none
}

func stateOf(t testing.TB, l *link, keys []string) (s state) {
	t.Helper()
	for _, k := range keys {
		s.values = append(s.values, value(t, l, k))
		ttl, err := strconv.ParseInt(mustDo(t, l, "PTTL", k).text, 10, 64)
		require.NoError(t, err)
		s.ttls = append(s.ttls, ttl)
	}
	for _, d := range mustDo(t, l, append([]string{"DEBUG", "DIGEST-VALUE"}, keys...)...).items {
		s.digests = append(s.digests, d.text)
	}
	return s
}

// same compares two states; times go by in between.
func (s state) same(t testing.TB, keys []string, o state) {
	t.Helper()
	for i, k := range keys {
		if s.values[i] != o.values[i] {
			t.Errorf("%q is %.200q, want %.200q", k, s.values[i], o.values[i])
		}
		if s.digests[i] != o.digests[i] {
			t.Errorf("the digest of %q is %s, want %s", k, s.digests[i], o.digests[i])
		}
		switch gone := o.ttls[i] - s.ttls[i]; {
		case o.ttls[i] == -1 && s.ttls[i] != -1, o.ttls[i] > 0 && (s.ttls[i] <= 0 || gone < 0 || gone > 60_000):
			t.Errorf("%q has %d ms to live, and had %d", k, s.ttls[i], o.ttls[i])
		}
	}
}

func startTheirs(t testing.TB, args ...string) *process {
	t.Helper()
	p := startProcess(t, "redis-server", append([]string{"--enable-debug-command", "yes"}, args...)...)
	if slices.Contains(args, "--cluster-enabled") {
		p.must("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
		require.Eventually(t, func() bool { return strings.Contains(p.do("CLUSTER", "INFO").text, "cluster_state:ok") }, 20*time.Second, 10*time.Millisecond)
	}
	return p
}

func TestMigrateMovesEveryTypeAndSizeFromRedisAndBack(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{"alone": nil, "a cluster": {"--cluster-enabled", "yes"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redis := startTheirs(t, args...)
			oursAddr := startOurs(t)
			theirs, ours := connect(t, redis.addr(), "2"), connect(t, oursAddr, "2")
			var keys []string
			for i, command := range sizedKeys() {
				mustDo(t, theirs, command...)
				keys = append(keys, command[1])
				if i%2 == 1 {
					mustDo(t, theirs, "PEXPIRE", command[1], strconv.Itoa(1_000_000+i))
				}
			}
			want := stateOf(t, theirs, keys)
			for round, leg := range []struct {
				from, to *link
				toAddr   string
			}{{theirs, ours, oursAddr}, {ours, theirs, redis.addr()}, {theirs, ours, oursAddr}} {
				if round == 0 { // one at a time, the others in one go
					for _, k := range keys {
						require.Equal(t, "OK", mustDo(t, leg.from, migrateTo(leg.toAddr, []string{k})...).text, "%q", k)
					}
				} else {
					require.Equal(t, "OK", mustDo(t, leg.from, migrateTo(leg.toAddr, keys)...).text)
				}
				require.Equal(t, "0", mustDo(t, leg.from, "DBSIZE").text)
				stateOf(t, leg.to, keys).same(t, keys, want)
			}
			require.Equal(t, "NOKEY", mustDo(t, theirs, migrateTo(oursAddr, keys[:3])...).text)

			// COPY leaves what it sends; what is there stands in the way, but for REPLACE.
			some := keys[:5]
			require.Equal(t, "OK", mustDo(t, ours, migrateTo(redis.addr(), some, "COPY")...).text)
			stateOf(t, theirs, some).same(t, some, want)
			for _, leg := range []struct {
				from *link
				to   string
			}{{ours, redis.addr()}, {theirs, oursAddr}} {
				r, err := leg.from.do(migrateTo(leg.to, some)...)
				require.NoError(t, err)
				require.Equal(t, "ERR Target instance replied with error: BUSYKEY Target key name already exists.", r.text)
				require.Equal(t, "5", mustDo(t, leg.from, append([]string{"EXISTS"}, some...)...).text)
			}
			require.Equal(t, "OK", mustDo(t, theirs, migrateTo(oursAddr, some, "REPLACE")...).text)
			stateOf(t, ours, keys).same(t, keys, want)
			require.Equal(t, "0", mustDo(t, theirs, "DBSIZE").text)
		})
	}
}

var wideEntries = flag.Int("compat.wide", 100_000, "`entries` of the collections that move as one value")

// Collections of many entries move in one step each, and are copied in one.
func TestMigrateMovesWideCollectionsFromRedisAndBack(t *testing.T) {
	redis := startTheirs(t)
	oursAddr := startOurs(t)
	theirs, ours := connect(t, redis.addr(), "2"), connect(t, oursAddr, "2")
	for _, l := range []*link{theirs, ours} {
		l.patience = 2 * time.Minute
	}
	var keys []string
	for key, call := range map[string]string{
		"{t}list": "'RPUSH', KEYS[1], 'element:' .. i", "{t}set": "'SADD', KEYS[1], 'member:' .. i",
		"{t}hash": "'HSET', KEYS[1], 'field:' .. i, i", "{t}zset": "'ZADD', KEYS[1], i * 0.5, 'member:' .. i",
	} {
		mustDo(t, theirs, "EVAL", "for i = 1, tonumber(ARGV[1]) do redis.call("+call+") end", "1", key, strconv.Itoa(*wideEntries))
		keys = append(keys, key)
	}
	want := mustDo(t, theirs, append([]string{"DEBUG", "DIGEST-VALUE"}, keys...)...).wire()
	move := func(from *link, to string) {
		host, port, _ := net.SplitHostPort(to)
		for _, k := range keys {
			require.Equal(t, "OK", mustDo(t, from, "MIGRATE", host, port, k, "0", "120000").text, k)
		}
	}
	move(theirs, oursAddr)
	require.Equal(t, want, mustDo(t, ours, append([]string{"DEBUG", "DIGEST-VALUE"}, keys...)...).wire())
	for _, k := range keys {
		require.Equal(t, "OK", mustDo(t, ours, "RENAME", k, k+" renamed").text)
		require.Equal(t, "1", mustDo(t, ours, "COPY", k+" renamed", k).text)
		require.Equal(t, "1", mustDo(t, ours, "DEL", k+" renamed").text)
	}
	move(ours, redis.addr())
	require.Equal(t, want, mustDo(t, theirs, append([]string{"DEBUG", "DIGEST-VALUE"}, keys...)...).wire())
	require.Equal(t, "0", mustDo(t, ours, "DBSIZE").text)
}

// A value that is longer, as DUMP writes it, than any argument may be comes from
// redis-server; one that is longer than what redis-server takes stays, and the error
// says why.
func TestMigrateOfValuesLongerThanAnArgument(t *testing.T) {
	redis := startTheirs(t, "--rdbcompression", "no")
	strict := startTheirs(t, "--proto-max-bulk-len", "1mb")
	oursAddr := startOurs(t, resp.Limits{Bulk: 4 << 20})
	theirs, ours := connect(t, redis.addr(), "2"), connect(t, oursAddr, "2")
	theirs.patience, ours.patience = slowReply, slowReply // where the race detector looks at each byte
	mustDo(t, theirs, "EVAL", "for i = 1, 4 do redis.call('RPUSH', KEYS[1], string.rep(i, 1.25 * 2^20)) end", "1", "{t}list")
	want := mustDo(t, theirs, "DEBUG", "DIGEST-VALUE", "{t}list").wire()
	require.Equal(t, "OK", mustDo(t, theirs, migrateTo(oursAddr, []string{"{t}list"})...).text)
	require.Equal(t, want, mustDo(t, ours, "DEBUG", "DIGEST-VALUE", "{t}list").wire())
	r, err := ours.do(migrateTo(strict.addr(), []string{"{t}list"})...)
	require.NoError(t, err)
	require.Regexp(t, `^ERR key '{t}list': its value has \d+ bytes as DUMP writes it, more than the 1048576 \(proto-max-bulk-len\) that the target takes$`, r.text)
	require.Equal(t, want, mustDo(t, ours, "DEBUG", "DIGEST-VALUE", "{t}list").wire())
	require.Equal(t, "OK", mustDo(t, ours, migrateTo(redis.addr(), []string{"{t}list"})...).text)
	require.Equal(t, want, mustDo(t, theirs, "DEBUG", "DIGEST-VALUE", "{t}list").wire())
}

// What slotmesh has no type for stays where it is, and the error says which key it
// is. The others of the same MIGRATE move.
func TestMigrateOfAStreamNamesTheKey(t *testing.T) {
	t.Parallel()
	redis := startTheirs(t)
	oursAddr := startOurs(t)
	theirs, ours := connect(t, redis.addr(), "2"), connect(t, oursAddr, "2")
	mustDo(t, theirs, "XADD", "{t}a stream", "*", "f", "v")
	mustDo(t, theirs, "SET", "{t}1", "v")
	mustDo(t, theirs, "SET", "{t}2", "v")
	r, err := theirs.do(migrateTo(oursAddr, []string{"{t}1", "{t}a stream", "{t}2"})...)
	require.NoError(t, err)
	require.Contains(t, r.text, "ERR Target instance replied with error: ERR ")
	require.Contains(t, r.text, "{t}a stream")
	require.Contains(t, r.text, "is a stream")
	require.Equal(t, "1", mustDo(t, theirs, "DBSIZE").text)
	require.Equal(t, "stream", mustDo(t, theirs, "TYPE", "{t}a stream").text)
	require.Equal(t, "2", mustDo(t, ours, "EXISTS", "{t}1", "{t}2", "{t}a stream").text)
}

// A target that stands still and goes on later takes what it was sent, for that
// is how Redis is. The source keeps the key, and a retry brings the newest value.
func TestMigrateToARedisThatStandsStill(t *testing.T) {
	t.Parallel()
	redis := startTheirs(t)
	ours := connect(t, startOurs(t), "2")
	mustDo(t, ours, "SET", "key", "old")
	redis.pause()
	r, err := ours.do("MIGRATE", "127.0.0.1", redis.port, "key", "0", "300")
	require.NoError(t, err)
	require.Contains(t, r.text, "IOERR error or timeout")
	require.Equal(t, "old", mustDo(t, ours, "GET", "key").text)
	mustDo(t, ours, "SET", "key", "new")
	redis.resume()
	require.Equal(t, "OK", mustDo(t, ours, "MIGRATE", "127.0.0.1", redis.port, "key", "0", "20000").text)
	require.Equal(t, "0", mustDo(t, ours, "EXISTS", "key").text)
	require.Equal(t, "new", redis.must("GET", "key").text)
}

// The same the other way round, in Redis's own way: it wants REPLACE.
func TestMigrateFromRedisToAServerThatStandsStill(t *testing.T) {
	t.Parallel()
	redis := startTheirs(t)
	ours := startProcess(t, buildServer(t))
	redis.must("SET", "key", "v")
	ours.pause()
	r := redis.do("MIGRATE", "127.0.0.1", ours.port, "key", "0", "300")
	require.Contains(t, r.text, "IOERR error or timeout")
	require.Equal(t, "v", redis.must("GET", "key").text)
	ours.resume()
	require.Equal(t, "OK", redis.must("MIGRATE", "127.0.0.1", ours.port, "key", "0", "20000", "REPLACE").text)
	require.Equal(t, "0", redis.must("EXISTS", "key").text)
	require.Equal(t, "v", ours.must("GET", "key").text)
}
