package compat

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// What a client that reads at a replica is answered, beside redis-server: above all
// by scripts, which may or may not write.

// replicaLines are sent to a replica one after the other, over one connection. The
// primary has served SET k v before. @GET, @SET and @READ stand for the SHA-1 of
// the scripts of that name.
const replicaLines = `
GET k
READONLY
GET k
SET k x
EVAL @get 1 k
EVAL @set 1 k
GET k
EVAL @both 1 k
EVAL @publish 1 k
EVAL @sort 1 k
EVAL @expire 1 k
EVAL @blpop 1 k
EVAL @written 1 k
EVAL @read 1 k
EVAL @readSets 1 k
EVAL @one 1 k
EVAL_RO @get 1 k
EVAL_RO @set 1 k
EVAL_RO @written 1 k
EVAL_RO @read 1 k
EVALSHA @GET 1 k
EVALSHA @SET 1 k
EVALSHA @READ 1 k
EVALSHA_RO @GET 1 k
EVALSHA_RO @SET 1 k
EVALSHA ffffffffffffffffffffffffffffffffffffffff 1 k
EVALSHA ffff 1 k
EVAL @get x k
EVAL @get 2 k
EVAL @get 2 k other
EVAL @nosuchFlag 1 k
EVAL @nosuchEngine 1 k
EVAL @noCluster 1 k
EVAL @noClusterRead 1 k
EVAL @getK 0
EVAL @setK 0
EVAL @writtenK 0
EVAL @readK 0
EVAL @one 0
EVAL @writtenOne 0
EVAL @readOne 0
EVALSHA @GET 0
WATCH k
MULTI
EVAL @get 1 k
GET k
EXEC
MULTI
EVAL @set 1 k
GET k
EXEC
MULTI
EVAL @written 1 k
EXEC
MULTI
EVAL @read 1 k
EVALSHA @GET 1 k
EVAL_RO @get 1 k
EXEC
MULTI
SET k x
EXEC
SORT k
SORT_RO k
BITFIELD k GET u8 0
BITFIELD_RO k GET u8 0
GETEX k
BLPOP k 1
FLUSHALL
READWRITE
GET k
EVAL @get 1 k
EVAL @read 1 k
EVAL_RO @get 1 k
EVALSHA @GET 1 k
EVALSHA ffffffffffffffffffffffffffffffffffffffff 1 k
EVAL @one 0
EVAL @writtenOne 0
EVAL @writtenK 0
EVAL @readOne 0
MULTI
EVAL @get 1 k
EXEC
`

var replicaScripts = map[string]string{
	"@get":           "return redis.call('get', KEYS[1])",
	"@set":           "return redis.call('set', KEYS[1], 'x')",
	"@both":          "return {redis.pcall('set', KEYS[1], 'x'), redis.call('get', KEYS[1])}",
	"@publish":       "return redis.call('publish', 'ch', 'm')",
	"@sort":          "return redis.call('sort', KEYS[1], 'store', KEYS[1])",
	"@expire":        "return redis.call('expire', KEYS[1], 1)",
	"@blpop":         "return redis.call('blpop', KEYS[1], 1)",
	"@one":           "return 1",
	"@getK":          "return redis.call('get', 'k')",
	"@setK":          "return redis.call('set', 'k', 'x')",
	"@written":       "#!lua\nreturn redis.call('get', KEYS[1])",
	"@writtenK":      "#!lua\nreturn redis.call('get', 'k')",
	"@writtenOne":    "#!lua\nreturn 1",
	"@read":          "#!lua flags=no-writes\nreturn redis.call('get', KEYS[1])",
	"@readSets":      "#!lua flags=no-writes\nreturn redis.call('set', KEYS[1], 'x')",
	"@readK":         "#!lua flags=no-writes\nreturn redis.call('get', 'k')",
	"@readOne":       "#!lua flags=no-writes\nreturn 1",
	"@nosuchFlag":    "#!lua flags=nosuch\nreturn 1",
	"@nosuchEngine":  "#!python\nreturn 1",
	"@noCluster":     "#!lua flags=no-cluster\nreturn 1",
	"@noClusterRead": "#!lua flags=no-cluster,no-writes\nreturn 1",
}

// readPair makes a primary that serves every slot and a replica of it.
func readPair(t testing.TB, bin string) (primary, replica *process) {
	t.Helper()
	args := []string{"--cluster-enabled", "yes", "--cluster-node-timeout", "2000"}
	primary, replica = startProcess(t, bin, args...), startProcess(t, bin, args...)
	primary.must("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
	replica.must("CLUSTER", "MEET", "127.0.0.1", primary.port)
	replica.replicate(primary)
	replica.linkUp()
	agree(t, primary, replica)
	l := connect(t, primary.addr(), "2") // WAIT waits for what its own connection wrote
	mustDo(t, l, "SET", "k", "v")
	require.Equal(t, "1", mustDo(t, l, "WAIT", "1", "10000").text)
	return primary, replica
}

func TestReadsAndScriptsAtAReplicaAreAnsweredAsByRedis(t *testing.T) {
	t.Parallel()
	theirPrimary, theirs := readPair(t, "redis-server")
	ourPrimary, ours := readPair(t, buildServer(t))
	for _, proto := range []string{"2", "3"} {
		a, b := connect(t, theirs.addr(), proto), connect(t, ours.addr(), proto)
		for line := range strings.Lines(strings.TrimSpace(replicaLines)) {
			args := strings.Fields(line)
			for i, arg := range args {
				if text, ok := replicaScripts[arg]; ok {
					args[i] = text
				} else if text, ok := replicaScripts[strings.ToLower(arg)]; ok {
					args[i] = sum(text)
				}
			}
			redis, err := a.do(args...)
			require.NoError(t, err, "%q", args)
			got, err := b.do(args...)
			require.NoError(t, err, "%q", args)
			want := strings.ReplaceAll(redis.wire(), theirPrimary.addr(), ourPrimary.addr())
			if got.wire() != want {
				t.Errorf("RESP%s %q: %q, of Redis %q", proto, args, got.wire(), want)
			}
		}
	}
}
