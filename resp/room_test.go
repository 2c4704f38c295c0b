package resp

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/slotmesh/slotmesh"
	"github.com/stretchr/testify/require"
)

// Commands that make a collection of what is stored are refused before anything is
// written where the Tx has no room for it: here under a long name, which each entry
// has.
func TestNothingIsMadeThatDoesNotFit(t *testing.T) {
	node, err := slotmesh.Start(t.Context(), slotmesh.Config{MaxValue: 16 << 10})
	require.NoError(t, err)
	t.Cleanup(func() { node.Close() })
	table, err := newTable(Commands())
	require.NoError(t, err)
	b := &bench{t: t, node: node, table: table, proto: 2}
	member := func(i int) string { return fmt.Sprintf("%07d", i) }
	b.fill([]string{"SADD", "{t}set"}, 10_000, func(i int) []string { return []string{member(i)} })
	b.fill([]string{"ZADD", "{t}zset"}, 10_000, func(i int) []string { return []string{strconv.Itoa(i), member(i)} })
	b.fill([]string{"RPUSH", "{t}list"}, 10_000, func(i int) []string { return []string{member(i)} })
	b.fill([]string{"HSET", "{t}hash"}, 10_000, func(i int) []string { return []string{member(i), "v"} })
	long := "{t}" + strings.Repeat("k", 200)
	for _, command := range []string{
		"SUNIONSTORE LONG {t}set", "SUNIONSTORE LONG {t}none {t}set", "SINTERSTORE LONG {t}set {t}set", "SDIFFSTORE LONG {t}set {t}none",
		"ZUNIONSTORE LONG 1 {t}zset", "ZUNIONSTORE LONG 2 {t}set {t}zset", "ZINTERSTORE LONG 2 {t}zset {t}set", "ZDIFFSTORE LONG 1 {t}zset",
		"ZRANGESTORE LONG {t}zset 0 -1", "ZRANGESTORE LONG {t}zset 0 20000 BYSCORE", "ZRANGESTORE LONG {t}zset (0 +inf BYSCORE LIMIT 5 9000",
		"SORT {t}list STORE LONG", "SORT {t}set STORE LONG", "SORT {t}zset STORE LONG",
		"COPY {t}set LONG REPLACE", "COPY {t}zset LONG REPLACE", "COPY {t}list LONG REPLACE", "COPY {t}hash LONG REPLACE",
		"RENAME {t}set LONG", "RENAME {t}zset LONG", "RENAME {t}list LONG", "RENAME {t}hash LONG",
	} {
		b.run("SET", long, "v")
		require.Contains(t, b.run(strings.Fields(strings.ReplaceAll(command, "LONG", long))...), "too many to be written in one step", command)
		require.Equal(t, "$1\r\nv\r\n", b.run("GET", long), command)
		short := strings.ReplaceAll(command, "LONG", "{t}k")
		if name, _, _ := strings.Cut(command, " "); name != "RENAME" {
			require.NotContains(t, b.run(short), "-ERR", short)
			require.NotEqual(t, "$1\r\nv\r\n", b.run("TYPE {t}k"), short)
		}
	}
}

// A command that fails after it has begun to write, since the Tx has no room for the
// rest, takes all of the Tx with it: no client sees half of it.
func TestNothingIsDoneByHalf(t *testing.T) {
	node, err := slotmesh.Start(t.Context(), slotmesh.Config{MaxValue: 512 << 10})
	require.NoError(t, err)
	t.Cleanup(func() { node.Close() })
	s := startServer(t, func(cfg *Config) { cfg.Node = node })
	c := dial(t, s)
	key := "{t}" + strings.Repeat("k", 500) // with each entry that is written or removed
	var members, pairs, scores, strs []string
	for i := range 500 {
		m := strconv.Itoa(i)
		members, pairs, scores, strs = append(members, m), append(pairs, m, "v"), append(scores, m, m), append(strs, "{t}"+strings.Repeat("s", 500)+m, "v")
	}
	call := func(name string, args ...string) []string { return append([]string{name, key}, args...) }
	for name, row := range map[string]struct{ before, command []string }{
		"HSET":            {nil, call("HSET", pairs...)},
		"SADD":            {nil, call("SADD", members...)},
		"ZADD":            {nil, call("ZADD", scores...)},
		"RPUSH":           {nil, call("RPUSH", members...)},
		"MSET":            {nil, append([]string{"MSET"}, strs...)},
		"HDEL":            {call("HSET", pairs...), call("HDEL", members...)},
		"SREM":            {call("SADD", members...), call("SREM", members...)},
		"SPOP":            {call("SADD", members...), call("SPOP", "240")},
		"ZREM":            {call("ZADD", scores...), call("ZREM", members...)},
		"ZREMRANGEBYRANK": {call("ZADD", scores...), call("ZREMRANGEBYRANK", "1", "240")},
		"ZPOPMIN":         {call("ZADD", scores...), call("ZPOPMIN", "240")},
		"LPOP":            {call("RPUSH", members...), call("LPOP", "240")},
		"LTRIM":           {call("RPUSH", members...), call("LTRIM", "0", "259")},
	} {
		t.Run(name, func(t *testing.T) {
			c.t = t
			c.do("FLUSHALL")
			if row.before != nil {
				c.do(row.before...)
			}
			before := c.do("DUMP", key)
			filler := []string{"SET", "{t}filler", strings.Repeat("x", 500<<10)}
			const text = "; nothing of the transaction has happened"
			c.do("MULTI")
			c.do(filler...)
			c.do("SET", "{t}other", strings.Repeat("x", 500<<10))
			c.do(row.command...)
			require.Regexp(t, `^ERR .*expected at most \d+`+text+"$", c.do("EXEC"))
			require.Equal(t, "0", c.do("EXISTS {t}filler {t}other"))
			require.Equal(t, before, c.do("DUMP", key))

			script := "redis.call('set', '{t}filler', ('x'):rep(500*1024)) redis.call('set', '{t}other', ('x'):rep(500*1024)) redis.pcall(unpack(ARGV)) redis.call('del', '{t}filler') return 'went on'"
			got := c.do(append([]string{"EVAL", script, "0"}, row.command...)...)
			require.Regexp(t, `^ERR .*expected at most \d+; nothing of the script has happened$`, got)
			require.Equal(t, "0", c.do("EXISTS {t}filler {t}other"))
			require.Equal(t, before, c.do("DUMP", key))

			require.NotContains(t, c.do(row.command...), "ERR", "alone it fits")
			require.NotEqual(t, before, c.do("DUMP", key)+c.do("EXISTS", strs[0]))
		})
	}
}
