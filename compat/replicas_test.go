package compat

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// Replicas and failover with redis-cli and processes: create, kill, pause, failover
// by hand under load, backup.

// replicatedCluster makes a cluster of three primaries with a replica each.
func replicatedCluster(t testing.TB, bin string, args ...string) []*process {
	t.Helper()
	return replicatedClusterOf(t, bin, 6, args...)
}

// replicatedClusterOf makes a cluster of three primaries and so many nodes in all that
// each has a replica at least.
func replicatedClusterOf(t testing.TB, bin string, n int, args ...string) []*process {
	t.Helper()
	all := make([]*process, n)
	create := []string{"--cluster", "create", "--cluster-yes", "--cluster-replicas", "1"}
	for i := range all {
		all[i] = startProcess(t, bin, append([]string{"--cluster-enabled", "yes", "--cluster-node-timeout", "2000"}, args...)...)
		create = append(create, all[i].addr())
	}
	out := cli(t, create...)
	require.Equal(t, n-3, strings.Count(out, "Adding replica"), out)
	require.Contains(t, out, "[OK] All nodes agree about slots configuration.")
	require.Contains(t, out, "[OK] All 16384 slots covered.")
	for _, p := range all {
		if p.info("role") == "slave" {
			p.linkUp()
		}
	}
	return all
}

// info is a line of INFO replication.
func (p *process) info(name string) string {
	p.t.Helper()
	for line := range strings.Lines(p.do("INFO", "replication").text) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), name+":"); ok {
			return value
		}
	}
	return ""
}

func (p *process) linkUp() {
	p.t.Helper()
	require.Eventually(p.t, func() bool { return p.info("master_link_status") == "up" }, 30*time.Second, 10*time.Millisecond, "%s has no link to its primary", p.port)
}

// shardOf is a primary of a cluster and a replica of it.
func shardOf(t testing.TB, all []*process) (primary, replica *process) {
	t.Helper()
	for _, r := range all {
		if r.info("role") != "slave" {
			continue
		}
		for _, p := range all {
			if p.port == r.info("master_port") {
				return p, r
			}
		}
	}
	t.Fatal("nobody follows anybody")
	return nil, nil
}

// numbers writes rising numbers, each writer under keys of its own: a number that
// has been acknowledged and is not there any more shows as a smaller one.
type numbers struct {
	t       testing.TB
	c       *redis.ClusterClient
	wg      sync.WaitGroup
	stop    atomic.Bool
	name    string        // of its keys
	acks    [][]numberAck // of each key, by its writer; read when the writers have ended
	acked   atomic.Int64
	failed  atomic.Int64
	slowest atomic.Int64 // nanoseconds that a write has taken which was acknowledged
}

// numberAck is an acknowledged write.
type numberAck struct {
	n            int64
	began, ended time.Time // of the call
}

func startNumbers(t testing.TB, all []*process, keys int) *numbers {
	o := &redis.ClusterOptions{MaxRedirects: 16, MaxRetries: 1, ReadTimeout: 2 * time.Second, DialTimeout: time.Second, DialerRetries: 1}
	for _, p := range all {
		o.Addrs = append(o.Addrs, p.addr())
	}
	n := &numbers{t: t, c: redis.NewClusterClient(o), acks: make([][]numberAck, keys),
		name: strconv.FormatUint(uint64(rand.Uint32()), 10)}
	for w := range 4 {
		n.wg.Go(func() {
			for i := int64(1); !n.stop.Load(); i++ {
				for k := w; k < keys && !n.stop.Load(); k += 4 {
					n.set(k, i)
				}
			}
		})
	}
	t.Cleanup(func() {
		n.end()
		n.c.Close()
	})
	return n
}

func (n *numbers) set(k int, i int64) {
	began := time.Now()
	if n.c.Set(n.t.Context(), n.key(k), i, 0).Err() != nil {
		n.failed.Add(1)
		return
	}
	now := time.Now()
	n.acks[k] = append(n.acks[k], numberAck{i, began, now})
	n.acked.Add(1)
	for took := now.Sub(began).Nanoseconds(); ; {
		if was := n.slowest.Load(); took <= was || n.slowest.CompareAndSwap(was, took) {
			return
		}
	}
}

func (n *numbers) key(k int) string { return fmt.Sprint("number:", n.name, ":", k) }

func (n *numbers) goOn(more int64) {
	n.t.Helper()
	from := n.acked.Load()
	require.Eventually(n.t, func() bool { return n.acked.Load() >= from+more }, time.Minute, 5*time.Millisecond, "writers get nowhere")
}

func (n *numbers) end() {
	n.stop.Store(true)
	n.wg.Wait()
}

// lost counts the keys whose last acknowledged number is gone.
func (n *numbers) lost() int { return len(n.losses()) }

// losses are the acknowledged writes that are gone, by key, once the writers have ended:
// all of a higher number than the one that is there.
func (n *numbers) losses() map[string][]numberAck {
	n.t.Helper()
	gone := map[string][]numberAck{}
	for k, acks := range n.acks {
		var got int64
		require.Eventually(n.t, func() (ok bool) {
			v, err := n.c.Get(n.t.Context(), n.key(k)).Int64()
			got = v
			return err == nil || err == redis.Nil
		}, 30*time.Second, 20*time.Millisecond)
		for _, a := range acks {
			if a.n > got {
				gone[n.key(k)] = append(gone[n.key(k)], a)
			}
		}
	}
	return gone
}

// A primary that is killed under load is replaced without an operator, and comes
// back as a replica. In a strict shard nothing that was acknowledged is lost.
func TestReplicaReplacesAKilledPrimary(t *testing.T) {
	all := replicatedCluster(t, buildServer(t), "--min-replicas-to-write", "1")
	primary, replica := shardOf(t, all)
	n := startNumbers(t, all, 120)
	n.goOn(2000)
	killed := time.Now()
	primary.kill()
	require.Eventually(t, func() bool {
		return replica.info("role") == "master" && strings.Contains(replica.do("CLUSTER", "INFO").text, "cluster_state:ok")
	}, 30*time.Second, 5*time.Millisecond)
	t.Logf("the cluster is ok again after %v, NodeTimeout 2s", time.Since(killed))
	primary.log = lockedBuffer{}
	primary.start()
	require.Eventually(t, func() bool { return primary.info("role") == "slave" }, 30*time.Second, 20*time.Millisecond)
	primary.linkUp()
	n.goOn(500)
	n.end()
	require.Zero(t, n.lost())
	healthy(t, replica)
}

// An operator's failover there and back again, twice, with writers: nothing is lost. What
// writes wait for it is measured, and depends on what else the machine does.
func TestFailoverByHandUnderLoad(t *testing.T) {
	all := replicatedCluster(t, buildServer(t))
	a, b := shardOf(t, all)
	n := startNumbers(t, all, 120)
	for range 4 {
		n.goOn(1000)
		n.slowest.Store(0)
		n.failed.Store(0)
		began := time.Now()
		require.Equal(t, "OK", b.do("CLUSTER", "FAILOVER").text)
		require.Eventually(t, func() bool { return b.info("role") == "master" }, 10*time.Second, time.Millisecond)
		leads := time.Since(began)
		a.linkUp()
		n.goOn(500)
		t.Logf("it leads after %v, the slowest write has taken %v, %d have failed", leads, time.Duration(n.slowest.Load()), n.failed.Load())
		a, b = b, a
	}
	n.goOn(500)
	n.end()
	require.Zero(t, n.lost())
	healthy(t, a)
}

// A primary that stood still for longer than the timeout acknowledges none of the
// requests that waited for it, and follows the one that took its place. What it alone has
// it drops, and its log says how much that was.
func TestPausedPrimaryAcknowledgesNothing(t *testing.T) {
	all := replicatedCluster(t, buildServer(t))
	primary, replica := shardOf(t, all)
	key := ""
	for i := 0; key == ""; i++ {
		if k := fmt.Sprint("key:", i); primary.do("SET", k, "before").text == "OK" {
			key = k
		}
	}
	list := "{" + key + "}list"
	pushes := connect(t, primary.addr(), "2")
	const pushed = 20_000
	for i := range pushed {
		pushes.add([]string{"RPUSH", list, strconv.Itoa(i)})
	}
	l := connect(t, primary.addr(), "2")
	sent := make(chan error, 1)
	go func() { sent <- pushes.flush() }() // it may wait for a primary that stands still
	before, err := pushes.read()
	require.NoError(t, err)
	require.Equal(t, "1", before.text)
	primary.pause() // in the middle of them
	t.Cleanup(primary.resume)
	acked := 1
	for pushes.readable() {
		r, err := pushes.read()
		require.NoError(t, err)
		acked++
		require.Equal(t, strconv.Itoa(acked), r.text)
	}
	const queued = 100
	for i := range queued {
		l.add([]string{"SET", key, strconv.Itoa(i)})
	}
	require.NoError(t, l.flush())
	require.Eventually(t, func() bool { return replica.info("role") == "master" && replica.do("SET", key, "after").text == "OK" }, 30*time.Second, 10*time.Millisecond)
	has, err := strconv.Atoi(replica.do("LLEN", list).text)
	require.NoError(t, err)
	primary.resume()
	for range queued {
		r, err := l.read()
		require.NoError(t, err)
		require.True(t, r.isError(), "acknowledged: %v", r)
	}
	require.Eventually(t, func() bool { return primary.info("role") == "slave" }, 30*time.Second, 10*time.Millisecond)
	primary.linkUp()
	require.Equal(t, "after", replica.do("GET", key).text)
	for range pushed - acked { // also what had run: its reply was not out
		r, err := pushes.read()
		require.NoError(t, err)
		require.True(t, r.isError(), "acknowledged: %s", r.text)
	}
	require.NoError(t, <-sent)
	dropped := cutNumber(t, primary)
	t.Logf("%d pushes were acknowledged, its successor has %d, and %d changes were dropped", acked, has, dropped)
	require.GreaterOrEqual(t, dropped, acked-has, "acknowledged and gone")
	require.LessOrEqual(t, dropped, pushed-has, "made and gone")
}

// cutNumber is how many changes a process says to have dropped; 0: it says nothing.
func cutNumber(t testing.TB, p *process) int {
	t.Helper()
	lines := regexp.MustCompile(`# cut .*\bnumber=(\d+)`).FindAllStringSubmatch(p.log.String(), -1)
	require.LessOrEqual(t, len(lines), 1, "it is told once")
	if len(lines) == 0 {
		return 0
	}
	n, err := strconv.Atoi(lines[0][1])
	require.NoError(t, err)
	require.Positive(t, n)
	return n
}

// redis-cli adds replicas and removes them, and saves what each primary has.
func TestRedisCliAddsReplicasAndSavesData(t *testing.T) {
	bin := buildServer(t)
	all := cluster(t, bin, 3)
	for i := range 60 {
		cli(t, "-c", "-p", all[0].port, "SET", fmt.Sprint("key:", i), "v")
	}
	added := startProcess(t, bin, "--cluster-enabled", "yes", "--cluster-node-timeout", "2000")
	out := cli(t, "--cluster", "add-node", added.addr(), all[0].addr(), "--cluster-slave", "--cluster-master-id", all[1].id())
	require.Contains(t, out, "[OK] New node added correctly.")
	agree(t, append(all, added)...)
	added.linkUp()
	require.Equal(t, all[1].port, added.info("master_port"))
	require.Equal(t, all[1].do("DBSIZE").text, added.do("DBSIZE").text)
	require.Contains(t, cli(t, "--cluster", "check", all[0].addr()), "1 additional replica(s)")
	require.Contains(t, cli(t, "--cluster", "info", all[0].addr()), "60 keys in 3 masters")

	dir := t.TempDir()
	require.Contains(t, cli(t, "--cluster", "backup", all[0].addr(), dir), "[OK] Backup created")
	files, err := filepath.Glob(filepath.Join(dir, "*.rdb"))
	require.NoError(t, err)
	require.Len(t, files, 3)
	keys := 0
	for _, file := range files {
		keys += loadedKeys(t, file)
	}
	require.Equal(t, 60, keys)

	out = cli(t, "--cluster", "del-node", all[0].addr(), added.id())
	require.Contains(t, out, "Sending CLUSTER RESET")
	agree(t, all...)
	require.Equal(t, "0", added.do("DBSIZE").text)
	require.Equal(t, "master", added.info("role"))
}

// loadedKeys is the number of keys that redis-server finds in an RDB file.
func loadedKeys(t testing.TB, file string) int {
	t.Helper()
	dir := t.TempDir()
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "dump.rdb"), data, 0o600))
	p := &process{t: t, bin: "redis-server", port: freePort(t), dir: dir}
	p.start()
	t.Cleanup(p.kill)
	n, err := strconv.Atoi(p.do("DBSIZE").text)
	require.NoError(t, err)
	return n
}
