package compat

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// redis-cli --cluster where primaries have replicas: what it plans is what there is
// then, and whatever it moves arrives at the replicas.

// planned are the primaries and the replicas, with their primaries, that create says
// it will make: "M: ID ADDR", or "S: ID ADDR" and a line "replicates ID".
func planned(out string) (primaries []string, follows map[string]string) {
	plan, _, _ := strings.Cut(out, "Nodes configuration updated")
	follows = map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)([MS]): (\w{40}) .*\n(?:\s+slots:.*\n)?(?:\s+replicates (\w{40}))?`).FindAllStringSubmatch(plan, -1) {
		if m[1] == "M" {
			primaries = append(primaries, m[2])
		} else {
			follows[m[2]] = m[3]
		}
	}
	return primaries, follows
}

// roles are the primaries and the replicas as a node sees them.
func roles(p *process) (primaries []string, follows map[string]string) {
	follows = map[string]string{}
	for line := range strings.Lines(p.do("CLUSTER", "NODES").text) {
		f := strings.Fields(line)
		if strings.Contains(f[2], "master") {
			primaries = append(primaries, f[0])
		} else {
			follows[f[0]] = f[3]
		}
	}
	return primaries, follows
}

// sameKeys waits until every replica has as many keys as its primary.
func sameKeys(t testing.TB, all []*process) {
	t.Helper()
	byID := map[string]*process{}
	for _, p := range all {
		byID[p.id()] = p
	}
	_, follows := roles(all[0])
	require.Eventually(t, func() bool {
		for replica, primary := range follows {
			if byID[replica].do("DBSIZE").text != byID[primary].do("DBSIZE").text {
				return false
			}
		}
		return true
	}, 20*time.Second, 20*time.Millisecond, "replicas have what their primaries have")
}

// create with two replicas a primary: the first addresses are primaries, the others
// follow whom redis-cli has told them to, in equal numbers, as with redis-server.
func TestRedisCliPlacesReplicasAsWithRedis(t *testing.T) {
	t.Parallel()
	var plans []string
	for _, bin := range []string{"redis-server", buildServer(t)} {
		all := nodes(t, bin, 9)
		args := []string{"--cluster", "create", "--cluster-yes", "--cluster-replicas", "2"}
		for _, p := range all {
			args = append(args, p.addr())
		}
		out := cli(t, args...)
		number := map[string]int{}
		for i, p := range all {
			number[p.id()] = i
			out = strings.ReplaceAll(out, p.addr(), fmt.Sprint("node ", i))
		}
		var plan strings.Builder
		for line := range strings.Lines(out) {
			if strings.HasPrefix(line, "Adding replica") || strings.HasPrefix(line, "Master[") {
				plan.WriteString(line)
			}
		}
		plans = append(plans, plan.String())

		primaries, follows := planned(out)
		require.Len(t, primaries, 3, out)
		require.Len(t, follows, 6, out)
		counts := map[string]int{}
		for replica, primary := range follows {
			require.GreaterOrEqual(t, number[replica], 3)
			require.Less(t, number[primary], 3)
			counts[primary]++
		}
		for _, n := range counts {
			require.Equal(t, 2, n)
		}
		for _, p := range all {
			require.Eventually(t, func() bool {
				now, following := roles(p)
				slices.Sort(now)
				slices.Sort(primaries)
				return slices.Equal(now, primaries) && fmt.Sprint(following) == fmt.Sprint(follows)
			}, 20*time.Second, 20*time.Millisecond, "%s sees what was planned", p.port)
		}
		for _, p := range all[3:] {
			p.linkUp()
		}
	}
	require.Equal(t, plans[0], plans[1])
}

// reshard, rebalance, fix, del-node, add-node and backup with replicas, under writes:
// nothing is lost, and the replicas have everything.
func TestRedisCliWorksWithReplicas(t *testing.T) {
	t.Parallel()
	bin := buildServer(t)
	all := replicatedCluster(t, bin)
	a := all[0].addr()
	w := startWriter(t, 300, all[:3]...)
	out := cli(t, "--cluster", "check", a)
	require.Equal(t, 3, strings.Count(out, "1 additional replica(s)"))
	require.Equal(t, 3, strings.Count(cli(t, "--cluster", "info", a), "| 1 slaves."))
	require.Equal(t, 6, strings.Count(cli(t, "--cluster", "call", a, "PING"), "PONG"))
	require.Equal(t, 3, strings.Count(cli(t, "--cluster", "call", a, "PING", "--cluster-only-replicas"), "PONG"))

	cli(t, "--cluster", "reshard", a, "--cluster-from", all[0].id(), "--cluster-to", all[1].id(), "--cluster-slots", "150", "--cluster-yes")
	require.Equal(t, 5462+150, slotsOf(t, all[5], all[1].id()))
	cli(t, "--cluster", "rebalance", a, "--cluster-threshold", "1")
	require.InDelta(t, 16384/3, slotsOf(t, all[5], all[1].id()), 30)
	healthy(t, all[4])
	w.check()

	// Slots that are half open, and one that nobody has.
	owner := ownerOf(t, all, fooKey)
	to := all[slices.IndexFunc(all[:3], func(p *process) bool { return p != owner })]
	owner.must("SET", fooKey, "v")
	to.must("CLUSTER", "SETSLOT", fooSlot, "IMPORTING", owner.id())
	owner.must("CLUSTER", "SETSLOT", fooSlot, "MIGRATING", to.id())
	owner.must("MIGRATE", "127.0.0.1", to.port, fooKey, "0", "5000")
	out, _ = runCli(t, "--cluster", "check", a)
	require.Contains(t, out, "[WARNING]")
	runCli(t, "--cluster", "fix", a)
	all[2].must("CLUSTER", "DELSLOTS", "16383")
	runCli(t, "--cluster", "fix", a)
	require.Eventually(t, func() bool {
		check, err := runCli(t, "--cluster", "check", a)
		return err == nil && !strings.Contains(check, "[WARNING]") && strings.Contains(check, "[OK] All 16384 slots covered.")
	}, 20*time.Second, 100*time.Millisecond)
	require.Equal(t, "v", ownerOf(t, all, fooKey).must("GET", fooKey).text)
	sameKeys(t, all)

	// A replica goes, and another one comes: redis-cli gives it to who lacks one.
	primary, gone := shardOf(t, all)
	require.Contains(t, cli(t, "--cluster", "del-node", a, gone.id()), "Sending CLUSTER RESET")
	rest := slices.DeleteFunc(slices.Clone(all), func(p *process) bool { return p == gone })
	agree(t, rest...)
	require.Equal(t, "master", gone.info("role"))
	require.Equal(t, "0", gone.do("DBSIZE").text)
	added := startProcess(t, bin, "--cluster-enabled", "yes", "--cluster-node-timeout", "2000")
	out = cli(t, "--cluster", "add-node", added.addr(), a, "--cluster-slave")
	require.Contains(t, out, "Automatically selected master "+primary.addr())
	require.Contains(t, out, "[OK] New node added correctly.")
	rest = append(rest, added)
	agree(t, rest...)
	added.linkUp()
	require.Equal(t, primary.port, added.info("master_port"))
	sameKeys(t, rest)

	// A backup has the data of the primaries, and says who the replicas were.
	dir := t.TempDir()
	require.Contains(t, cli(t, "--cluster", "backup", a, dir), "[OK] Backup created")
	files, err := filepath.Glob(filepath.Join(dir, "*.rdb"))
	require.NoError(t, err)
	require.Len(t, files, 3)
	text, err := os.ReadFile(filepath.Join(dir, "nodes.json"))
	require.NoError(t, err)
	var listed []struct {
		Name, Replicate string
		Slots           [][2]int
	}
	require.NoError(t, json.Unmarshal(text, &listed))
	_, follows := roles(all[0])
	for _, n := range listed {
		require.Equal(t, follows[n.Name], n.Replicate, "%s", text)
	}
	require.Len(t, listed, 6, "%s", text)
	keys := 0
	for _, file := range files {
		keys += loadedKeys(t, file)
	}
	require.Equal(t, 301, keys)
}

// go-redis that reads at replicas listens there, too: what is published to a sharded
// channel arrives wherever it listens.
func TestGoRedisListensAtReplicas(t *testing.T) {
	t.Parallel()
	all := replicatedCluster(t, buildServer(t))
	for _, proto := range []int{2, 3} {
		c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{all[0].addr()}, Protocol: proto, ReadOnly: true, RouteRandomly: true})
		defer c.Close()
		subs := make([]*redis.PubSub, 12)
		channel := fmt.Sprint("news", proto)
		for i := range subs {
			subs[i] = listen(t, c, channel)
			defer subs[i].Close()
		}
		require.NoError(t, c.SPublish(t.Context(), channel, "hello").Err())
		for i, s := range subs {
			m, err := s.ReceiveTimeout(t.Context(), 20*time.Second)
			require.NoError(t, err, "listener %d", i)
			require.Equal(t, "hello", m.(*redis.Message).Payload, "listener %d", i)
		}
	}
}

// listen subscribes at a member of the channel's shard. The client does not follow a
// MOVED here, which it gets where its table is older than a member's.
func listen(t *testing.T, c *redis.ClusterClient, channel string) *redis.PubSub {
	t.Helper()
	for limit := time.Now().Add(20 * time.Second); ; {
		s := c.SSubscribe(t.Context(), channel)
		_, err := s.Receive(t.Context())
		if err == nil {
			return s
		}
		s.Close()
		if !strings.HasPrefix(err.Error(), "MOVED ") || time.Now().After(limit) {
			require.NoError(t, err)
		}
		c.ReloadState(t.Context())
	}
}

// Settings of redis-server about replicas, by their old names and their new ones: who
// may not fail over does not, until CONFIG SET lets it.
func TestServerTakesTheSettingsOfReplicas(t *testing.T) {
	t.Parallel()
	bin := buildServer(t)
	all := replicatedCluster(t, bin, "--cluster-slave-no-failover", "yes", "--cluster-slave-validity-factor", "3",
		"--cluster-migration-barrier", "2", "--cluster-allow-replica-migration", "no", "--cluster-require-full-coverage", "no", "--cluster-allow-reads-when-down", "yes")
	primary, replica := shardOf(t, all)
	for name, want := range map[string]string{"cluster-replica-no-failover": "yes", "cluster-replica-validity-factor": "3", "cluster-migration-barrier": "2",
		"cluster-allow-replica-migration": "no", "cluster-require-full-coverage": "no", "cluster-allow-reads-when-down": "yes"} {
		require.Equal(t, want, replica.do("CONFIG", "GET", name).items[1].text, name)
		require.NotContains(t, replica.log.String(), name, "no warning")
	}
	require.Regexp(t, replica.id()+` \S+ slave,nofailover `, primary.do("CLUSTER", "NODES").text)
	other := all[slices.IndexFunc(all[:3], func(p *process) bool { return p != primary })]
	key := ""
	for i := 0; key == ""; i++ {
		if k := fmt.Sprint("key:", i); other.do("SET", k, "v").text == "OK" {
			key = k
		}
	}
	primary.kill()
	require.Eventually(t, func() bool {
		return strings.Contains(other.do("CLUSTER", "NODES").text, primary.addr()+"@") && strings.Contains(other.do("CLUSTER", "NODES").text, "master,fail,nofailover ")
	}, 30*time.Second, 20*time.Millisecond)
	require.Equal(t, "OK", other.do("SET", key, "w").text, "not every slot has to be served")
	require.Equal(t, "slave", replica.info("role"))
	replica.must("CONFIG", "SET", "cluster-slave-no-failover", "no")
	require.Eventually(t, func() bool { return replica.info("role") == "master" }, 30*time.Second, 20*time.Millisecond)
}

// The files that redis-cli asks for are whole and right for the program that checks them.
func TestDataOfANodeAsAFile(t *testing.T) {
	addr := startOurs(t)
	l := connect(t, addr, "2")
	for i := range 3000 {
		l.add([]string{"SET", "{a}" + strconv.Itoa(i), "v" + strings.Repeat("v", i%100)})
	}
	require.NoError(t, l.flush())
	for range 3000 {
		r, err := l.read()
		require.NoError(t, err)
		require.Equal(t, "OK", r.text)
	}
	for _, line := range []string{"SET b v PX 100000000", "HSET h f v g w", "RPUSH l 1 2 3", "SADD s a b", "ZADD z 1 a 2.5 b inf c", "SET gone v PX 1", "SET large " + strings.Repeat("x", 300_000)} {
		r, err := l.do(strings.Fields(line)...)
		require.NoError(t, err)
		require.False(t, r.isError(), r)
	}
	require.Eventually(t, func() bool { r, err := l.do("EXISTS", "gone"); return err == nil && r.text == "0" }, 5*time.Second, time.Millisecond)
	host, port, err := net.SplitHostPort(addr)
	require.NoError(t, err)
	for keys, flag := range map[string]string{"3006": "--rdb", "0": "--functions-rdb"} {
		at := filepath.Join(t.TempDir(), "dump.rdb")
		out, err := exec.Command("redis-cli", "-h", host, "-p", port, flag, at).CombinedOutput()
		require.NoError(t, err, "%s", out)
		out, err = exec.Command("redis-check-rdb", at).CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Contains(t, string(out), "Checksum OK")
		require.Contains(t, string(out), "] "+keys+" keys read")
	}
}
