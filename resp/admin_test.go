package resp

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// scanAll walks all keys and returns them sorted, each once.
func scanAll(c *testClient, options ...string) []string {
	c.t.Helper()
	var all []string
	for cursor := "0"; ; {
		reply := c.do(append([]string{"SCAN", cursor}, options...)...)
		next, keys, ok := strings.Cut(strings.TrimSuffix(strings.TrimPrefix(reply, "["), "]]"), " [")
		require.True(c.t, ok, "%q", reply)
		all = append(all, strings.Fields(keys)...)
		if cursor = next; cursor == "0" {
			break
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func TestKeysOfAllSlots(t *testing.T) {
	c := dial(t, startServer(t))
	require.Equal(t, "(nil)", c.do("RANDOMKEY"))
	var want []string
	for i := range 300 {
		k := fmt.Sprint("key:", i)
		c.do("SET", k, "v")
		want = append(want, k)
	}
	for i := range 40 { // many in one slot
		k := fmt.Sprint("{tag}:", i)
		c.do("RPUSH", k, "v")
		want = append(want, k)
	}
	c.do("SET expired v PX 1")
	slices.Sort(want)
	require.Eventually(t, func() bool { return c.do("DBSIZE") == "340" }, 10*time.Second, time.Millisecond)
	for _, count := range []string{"1", "7", "100000"} {
		require.Equal(t, want, scanAll(c, "COUNT", count), "COUNT %s", count)
	}
	require.Equal(t, 40, len(scanAll(c, "MATCH", "{tag}:*")))
	require.Equal(t, 40, len(scanAll(c, "TYPE", "LIST", "COUNT", "50")))
	require.Empty(t, scanAll(c, "TYPE", "hash"))
	require.Empty(t, scanAll(c, "TYPE", "list", "MATCH", "key:*"))
	require.Equal(t, 41, strings.Count(c.do("KEYS {tag}:*"), "{tag}")+1)
	require.Equal(t, 340, len(strings.Fields(c.do("KEYS *"))))
	require.Equal(t, "[]", c.do("KEYS", "")) // fits the empty key alone
	require.Contains(t, want, c.do("RANDOMKEY"))
	require.Contains(t, c.do("INFO keyspace"), "db0:keys=340,")
	require.Equal(t, "OK", c.do("FLUSHALL"))
	require.Equal(t, "0", c.do("DBSIZE"))
	require.NotContains(t, c.do("INFO keyspace"), "db0", "redis-cli takes a line for keys")
}

func TestScanCursors(t *testing.T) {
	for arg, want := range map[string]uint64{"": 0, "0": 0, "7\x00x": 7, "17": 17, "+1": 1, "-1": 1<<64 - 1, "18446744073709551615": 1<<64 - 1} {
		got, err := parseCursor([]byte(arg))
		require.NoError(t, err, arg)
		require.Equal(t, want, got, arg)
	}
	for _, arg := range []string{"x", "1x", " 1", "--1", "+-1", "18446744073709551616"} {
		_, err := parseCursor([]byte(arg))
		require.Error(t, err, arg)
	}
	c := dial(t, startServer(t))
	c.do("SET k v")
	require.Equal(t, "[0 []]", c.do("SCAN", strconv.FormatUint(16384<<scanSlotShift, 10)), "behind the last slot")
}

func TestConfig(t *testing.T) {
	var rewritten map[string]string
	s := startServer(t, func(cfg *Config) {
		cfg.Settings = map[string]string{"appendonly": "no", "mine": "1"}
		cfg.Limits.Clients = 20
		cfg.Rewrite = func(settings map[string]string) error {
			rewritten = settings
			if settings["hz"] == "13" {
				return errors.New("disk full")
			}
			return nil
		}
	})
	c := dial(t, s)
	c.check([][2]string{
		{"CONFIG GET save appendonly", "[appendonly no save ]"},
		{"CONFIG GET mine", "[mine 1]"},
		{"CONFIG GET MAXCLIENTS", "[maxclients 20]"},
		{"CONFIG GET cluster-enabled", "[cluster-enabled yes]"},
		{"CONFIG SET mine 2", "ERR CONFIG SET failed (possibly related to argument 'mine') - can't set immutable config"},
		{"CONFIG SET maxmemory 1gb hz x", "ERR CONFIG SET failed (possibly related to argument 'hz') - argument couldn't be parsed into an integer"},
		{"CONFIG GET maxmemory", "[maxmemory 0]"},
		{"CONFIG SET maxmemory 1gb HZ 12", "OK"},
		{"CONFIG GET maxmemory hz", "[hz 12 maxmemory 1073741824]"},
		{"CONFIG SET appendonly yes", "ERR CONFIG SET failed (possibly related to argument 'appendonly') - the keys of this server are in memory alone"},
		{"CONFIG GET *-no-failover", "[cluster-replica-no-failover no cluster-slave-no-failover no]"},
		{"CONFIG SET cluster-slave-no-failover maybe", "ERR CONFIG SET failed (possibly related to argument 'cluster-slave-no-failover') - argument must be 'yes' or 'no'"},
		{"CONFIG SET cluster-slave-no-failover yes cluster-slave-no-failover no", "ERR CONFIG SET failed (possibly related to argument 'cluster-slave-no-failover') - duplicate parameter"},
		{"CONFIG SET min-slaves-max-lag 11", "OK"}, // by its old name
		{"CONFIG GET min-replicas-max-lag", "[min-replicas-max-lag 11]"},
		{"CONFIG SET min-replicas-max-lag 10", "OK"},
		{"CONFIG REWRITE", "OK"},
		{"CONFIG SET hz 13", "OK"},
		{"CONFIG REWRITE", "ERR Rewriting config file: disk full"},
		{"CONFIG SET maxclients 1", "OK"},
	}...)
	require.Equal(t, map[string]string{"maxmemory": "1073741824", "hz": "13"}, rewritten, "what has changed")
	d := dial(t, s)
	require.Equal(t, "ERR max number of clients reached", d.read())
}

func TestInfoCounts(t *testing.T) {
	c := dial(t, startServer(t))
	c.do("SET k v")
	c.do("GET k")
	c.do("GET k")
	c.do("GET")
	c.do("LPUSH k v")
	all := c.do("INFO everything")
	for _, want := range []string{"redis_version:7.0.15\r\n", "cluster_enabled:1\r\n", "redis_mode:cluster\r\n", "role:master\r\n", "loading:0\r\n",
		"connected_clients:1\r\n", "db0:keys=1,", "errorstat_WRONGTYPE:count=1\r\n", "errorstat_ERR:count=1\r\n"} {
		require.Contains(t, all, want)
	}
	require.Regexp(t, regexp.MustCompile(`cmdstat_get:calls=2,usec=\d+,usec_per_call=\d+\.\d\d,rejected_calls=1,failed_calls=0`), all)
	require.Regexp(t, regexp.MustCompile(`cmdstat_lpush:calls=1,usec=\d+,usec_per_call=\d+\.\d\d,rejected_calls=0,failed_calls=1`), all)
	require.Regexp(t, regexp.MustCompile(`(?m)^used_memory:[1-9]\d*\r$`), all)
	require.Equal(t, "# Server", strings.SplitN(c.do("INFO"), "\r\n", 2)[0])
	require.NotContains(t, c.do("INFO"), "# Commandstats")
	require.Equal(t, "# Cluster\r\ncluster_enabled:1\r\n\r\n# Keyspace\r\ndb0:keys=1,expires=0,avg_ttl=0\r\n", c.do("INFO keyspace CLUSTER"))
	c.check([2]string{"SET volatile 1 EX 100", "OK"}, [2]string{"SADD {volatile}set 1", "1"}, [2]string{"EXPIRE {volatile}set 100", "1"})
	require.Contains(t, c.do("INFO keyspace"), "db0:keys=3,expires=2,avg_ttl=0\r\n")
	c.check([2]string{"PERSIST volatile", "1"}, [2]string{"DEL {volatile}set", "1"})
	require.Contains(t, c.do("INFO keyspace"), "db0:keys=2,expires=0,avg_ttl=0\r\n")
	c.check([2]string{"DEL volatile", "1"})
	require.Equal(t, "OK", c.do("CONFIG RESETSTAT"))
	require.NotContains(t, c.do("INFO everything"), "cmdstat_get")
}

func TestSlowCommandsAreLogged(t *testing.T) {
	c := dial(t, startServer(t))
	c.check([][2]string{
		{"CONFIG SET slowlog-max-len 2", "OK"},
		{"CONFIG SET slowlog-log-slower-than 0", "OK"},
		{"CLIENT SETNAME me", "OK"},
		{"SET k v", "OK"},
		{"GET k", "v"},
		{"CONFIG SET slowlog-log-slower-than -1", "OK"},
		{"SLOWLOG LEN", "2"},
		{"SLOWLOG RESET", "OK"},
		{"SLOWLOG GET", "[]"},
		{"CONFIG SET slowlog-log-slower-than 0", "OK"},
	}...)
	c.do("SET", "k", strings.Repeat("x", 200))
	c.do(append([]string{"DEL"}, slices.Repeat([]string{"k"}, 40)...)...)
	c.do("CONFIG SET slowlog-log-slower-than -1")
	got := c.do("SLOWLOG GET -1")
	require.Regexp(t, regexp.MustCompile(`^\[\[\d+ \d+ \d+ \[DEL( k){30} \.\.\. \(10 more arguments\)\] 127\.0\.0\.1:\d+ me\] \[\d+ \d+ \d+ \[SET k x{128}\.\.\. \(72 more bytes\)\] 127\.0\.0\.1:\d+ me\]\]$`), got)
}

func TestSaveAndShutdownAreTheApplications(t *testing.T) {
	c := dial(t, startServer(t))
	c.check([][2]string{
		{"SAVE", string(errNoSave)},
		{"BGSAVE", string(errNoSave)},
		{"SHUTDOWN", "ERR Errors trying to SHUTDOWN. This server lives inside of another program."},
	}...)
	began, end := make(chan struct{}), make(chan struct{})
	down := make(chan struct{})
	c = dial(t, startServer(t, func(cfg *Config) {
		cfg.Save = func(ctx context.Context) error {
			began <- struct{}{}
			<-end
			return nil
		}
		cfg.Shutdown = func() { close(down) }
	}))
	require.Equal(t, "Background saving started", c.do("BGSAVE"))
	<-began
	require.Equal(t, "ERR Background save already in progress", c.do("BGSAVE"))
	close(end)
	require.Eventually(t, func() bool { return strings.Contains(c.do("INFO persistence"), "rdb_bgsave_in_progress:0") }, 10*time.Second, time.Millisecond)
	c.send("SHUTDOWN NOSAVE")
	require.True(t, c.closed())
	<-down
}

func TestStandaloneIsNoCluster(t *testing.T) {
	c := dial(t, startServer(t, func(cfg *Config) { cfg.Standalone = true }))
	c.check([][2]string{
		{"CLUSTER INFO", "ERR This instance has cluster support disabled"},
		{"CLUSTER HELP", "ERR This instance has cluster support disabled"},
		{"CLUSTER HELP x", "ERR wrong number of arguments for 'cluster|help' command"},
		{"MSET a 1 b 2", string(errCrossSlotAlone)},
		{"MULTI", "OK"}, {"SET a 1", "QUEUED"}, {"SET b 2", "QUEUED"}, {"EXEC", string(errCrossSlotAlone)},
		{"ASKING", "ERR This instance has cluster support disabled"},
		{"READONLY", "ERR This instance has cluster support disabled"},
		{"SELECT 1", "ERR DB index is out of range"},
		{"SWAPDB 0 0", "OK"},
		{"SWAPDB 0 1", "ERR DB index is out of range"},
		{"SWAPDB x 1", "ERR invalid first DB index"},
		{"SET k v", "OK"},
		{"CONFIG GET cluster-enabled", "[cluster-enabled no]"},
	}...)
	require.Contains(t, c.do("INFO"), "cluster_enabled:0\r\n")
	require.Contains(t, c.do("HELLO"), "mode standalone")
}

func TestMemoryUsage(t *testing.T) {
	c := dial(t, startServer(t))
	c.do("SET", "s", strings.Repeat("x", 1000))
	usage := func(args ...string) int {
		n, err := strconv.Atoi(c.do(append([]string{"MEMORY", "USAGE"}, args...)...))
		require.NoError(t, err)
		return n
	}
	require.InDelta(t, 1064, usage("s"), 50)
	for i := range 100 {
		m := fmt.Sprint("member:", i)
		c.do("HSET", "h", m, strings.Repeat("v", 100))
		c.do("RPUSH", "l", strings.Repeat("v", 100))
		c.do("SADD", "set", m)
		c.do("ZADD", "z", strconv.Itoa(i), m)
	}
	for _, k := range []string{"h", "l", "set", "z"} {
		all := usage(k, "SAMPLES", "0")
		require.Greater(t, all, 100*itemOverhead, k)
		require.InEpsilon(t, all, usage(k), 0.1, "%s: from some members", k)
	}
	require.Equal(t, "(nil)", c.do("MEMORY USAGE nokey"))
}
