package compat

import (
	"bytes"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What may happen to processes of a cluster with replicas, and what becomes of its data:
// a majority that is gone or stands still, copies that break off, primaries that come
// back empty or elsewhere, replicas that are lost, and writes that are.

const failuresNT = 2 * time.Second // as replicatedCluster has it

// proxy is a way to the bus of a node that a test can see, slow down and break.
type proxy struct {
	l     net.Listener
	to    string
	rate  atomic.Int64 // bytes a second and connection that come back from the node; 0: as many as can
	bytes atomic.Int64 // that have come back
	wg    sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]bool        // guarded by mu
	apart map[string]chan struct{} // guarded by mu: nodes from which nothing passes, by their ids; "": from nobody
	ended bool                     // guarded by mu
}

func startProxy(t testing.TB, to string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &proxy{l: l, to: to, conns: map[net.Conn]bool{}, apart: map[string]chan struct{}{}}
	p.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			p.wg.Go(func() { p.carry(c) })
		}
	})
	t.Cleanup(func() {
		p.mu.Lock()
		p.ended = true
		p.mu.Unlock()
		l.Close()
		p.rejoin()
		p.hangUp()
		p.wg.Wait()
	})
	return p
}

// stall has nothing pass any more that goes to or from a node: what is written to it is
// taken and gets nowhere. The node is that whose id this is, of those that have dialed;
// "" is all of them.
func (p *proxy) stall(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.apart[id] = make(chan struct{})
}

// rejoin has all pass again, over new connections.
func (p *proxy) rejoin() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, back := range p.apart {
		close(back)
	}
	clear(p.apart)
}

// passes reports whether more may pass over a connection that began like this. Where
// nothing passes it waits, for the end of that and the connection.
func (p *proxy) passes(hello []byte) bool {
	p.mu.Lock()
	var back chan struct{}
	for id, c := range p.apart {
		if bytes.Contains(hello, []byte(id)) {
			back = c
		}
	}
	p.mu.Unlock()
	if back != nil {
		<-back
	}
	return back == nil
}

func (p *proxy) port() string {
	_, port, _ := net.SplitHostPort(p.l.Addr().String())
	return port
}

// hangUp breaks all connections.
func (p *proxy) hangUp() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.Close()
	}
	clear(p.conns)
}

// keep makes a connection one that hangUp breaks; false: the test has ended.
func (p *proxy) keep(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		c.Close()
		return false
	}
	p.conns[c] = true
	return true
}

func (p *proxy) drop(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
	c.Close()
}

// carry carries what goes over a connection until one of its sides ends it. It begins
// with the dialer's hello, which has its id in it.
func (p *proxy) carry(from net.Conn) {
	defer p.drop(from)
	if !p.keep(from) {
		return
	}
	hello := make([]byte, 32<<10)
	n, err := from.Read(hello)
	hello = hello[:n]
	if err != nil || !p.passes(hello) {
		return
	}
	to, err := net.Dial("tcp", p.to)
	if err != nil || !p.keep(to) {
		return
	}
	defer p.drop(to)
	p.wg.Go(func() {
		defer p.drop(to)
		buf := make([]byte, 32<<10)
		for first := hello; p.passes(hello); {
			if _, err := to.Write(first); err != nil {
				return
			}
			n, err := from.Read(buf)
			if err != nil {
				return
			}
			first = buf[:n]
		}
	})
	for buf := make([]byte, 32<<10); ; {
		n, err := to.Read(buf)
		if !p.passes(hello) {
			return
		}
		if _, err := from.Write(buf[:n]); err != nil {
			return
		}
		p.bytes.Add(int64(n))
		if rate := p.rate.Load(); rate > 0 {
			time.Sleep(time.Duration(n) * time.Second / time.Duration(rate)) // the pace of the line
		}
		if err != nil {
			return
		}
	}
}

// startBehindProxy starts a server that other nodes reach through a proxy.
func startBehindProxy(t testing.TB, bin string, args ...string) (*process, *proxy) {
	t.Helper()
	port := freePort(t)
	n, err := strconv.Atoi(port)
	require.NoError(t, err)
	way := startProxy(t, net.JoinHostPort("127.0.0.1", strconv.Itoa(n+10000)))
	p := &process{t: t, bin: bin, port: port, dir: t.TempDir(), args: append([]string{"--cluster-announce-bus-port", way.port()}, args...)}
	p.start()
	t.Cleanup(p.kill)
	return p, way
}

// again starts a process anew that has ended.
func (p *process) again() {
	p.t.Helper()
	p.log = lockedBuffer{}
	p.start()
}

// becomes waits until a process has a role.
func (p *process) becomes(role string) {
	p.t.Helper()
	require.Eventually(p.t, func() bool { return p.info("role") == role }, 30*time.Second, 5*time.Millisecond, "%s is no %s", p.port, role)
}

// isOK waits until processes say that the cluster is ok.
func isOK(t testing.TB, all ...*process) {
	t.Helper()
	for _, p := range all {
		require.Eventually(t, func() bool { return strings.Contains(p.do("CLUSTER", "INFO").text, "cluster_state:ok") }, 30*time.Second, 10*time.Millisecond, "%s", p.port)
	}
}

// keyAt is a key that a process serves.
func keyAt(t testing.TB, p *process) string {
	t.Helper()
	for i := range 10_000 {
		if k := fmt.Sprint("key:", i); !p.do("TYPE", k).isError() {
			return k
		}
	}
	t.Fatalf("%s serves nothing", p.port)
	return ""
}

// served are those of the writers' keys that a process serves.
func (n *numbers) served(p *process) map[string]bool {
	n.t.Helper()
	l := connect(n.t, p.addr(), "2")
	keys := map[string]bool{}
	for k := range n.acks {
		r, err := l.do("TYPE", n.key(k))
		require.NoError(n.t, err)
		keys[n.key(k)] = !r.isError()
	}
	return keys
}

// explained fails unless each acknowledged write that is gone was to one of some keys,
// and made and acknowledged between two moments. It returns how many are gone.
func (n *numbers) explained(keys map[string]bool, from, to time.Time) (gone int) {
	n.t.Helper()
	for key, acks := range n.losses() {
		require.True(n.t, keys[key], "%s is of another shard, and %d acknowledged writes of it are gone", key, len(acks))
		for _, a := range acks {
			require.True(n.t, a.ended.After(from) && a.began.Before(to), "%s: %d is gone, made %v and acknowledged %v after what could explain it began", key, a.n, a.began.Sub(from), a.ended.Sub(from))
			gone++
		}
	}
	return gone
}

// lagAtMost is for how long a replica may lack a write and still count as in sync: one
// that gets no further is out after half a NodeTimeout, and as much later as the vote on
// it and late ticks take.
const lagAtMost = failuresNT * 5 / 4

// A majority of the voters is killed, all primaries among them: nothing is acknowledged
// until an operator's TAKEOVERs bring all back, each of which says what it may lose. What
// is lost was on its way when the primaries died.
func TestTakeoversBringBackAClusterWithoutItsMajority(t *testing.T) {
	all := replicatedCluster(t, buildServer(t))
	n := startNumbers(t, all, 60)
	n.goOn(1000)
	primaries, replicas := all[:3], all[3:]
	keys := map[string]bool{}
	for _, p := range primaries {
		mine := n.served(p)
		maps.DeleteFunc(mine, func(_ string, serves bool) bool { return !serves })
		maps.Copy(keys, mine)
	}
	for _, p := range primaries {
		p.kill()
	}
	killed := time.Now()
	for _, p := range replicas {
		require.Eventually(t, func() bool { return strings.Contains(p.do("CLUSTER", "INFO").text, "cluster_state:fail") }, 30*time.Second, 10*time.Millisecond)
	}
	acked := n.acked.Load()
	for limit := time.Now().Add(2 * failuresNT); time.Now().Before(limit); time.Sleep(20 * time.Millisecond) {
		require.Equal(t, acked, n.acked.Load(), "acknowledged without a majority")
		require.Equal(t, "slave", replicas[0].info("role"))
	}
	for _, p := range replicas {
		require.Eventually(t, func() bool { return p.do("CLUSTER", "FAILOVER", "TAKEOVER").text == "OK" || p.info("role") == "master" }, 30*time.Second, 20*time.Millisecond)
		p.becomes("master")
	}
	isOK(t, replicas...)
	for _, p := range replicas {
		require.Contains(t, p.log.String(), "unclean")
	}
	for _, p := range primaries {
		p.again()
	}
	for _, p := range primaries {
		p.becomes("slave")
		p.linkUp()
	}
	n.goOn(500)
	n.end()
	t.Logf("%d acknowledged writes are gone", n.explained(keys, killed.Add(-lagAtMost), killed))
	healthy(t, replicas[0])
}

// All processes but one primary stand still: it acknowledges nothing that was asked of it
// after its lease was over, which is no longer than a NodeTimeout. When they go on, all is
// well again without an operator, and what had reached a replica is there.
func TestPrimaryInTheMinorityAcknowledgesNothing(t *testing.T) {
	all := replicatedCluster(t, buildServer(t))
	primary := all[0]
	key := keyAt(t, primary)
	l := connect(t, primary.addr(), "2")
	mustDo(t, l, "SET", key, "before")
	require.Equal(t, "1", mustDo(t, l, "WAIT", "1", "10000").text)
	for _, p := range all[1:] {
		p.pause()
		t.Cleanup(p.resume)
	}
	stood := time.Now()
	last := stood
	require.Eventually(t, func() bool {
		began := time.Now()
		r, err := l.do("SET", key, "late")
		require.NoError(t, err)
		if !r.isError() {
			last = began
		}
		return strings.HasPrefix(r.text, "CLUSTERDOWN")
	}, 30*time.Second, time.Millisecond)
	t.Logf("the last write that was acknowledged was sent %v after the others stood still", last.Sub(stood))
	require.Less(t, last.Sub(stood), failuresNT+failuresNT/20, "a lease is longer than a NodeTimeout")
	for limit := time.Now().Add(2 * failuresNT); time.Now().Before(limit); time.Sleep(5 * time.Millisecond) {
		for _, args := range [][]string{{"SET", key, "later"}, {"GET", key}} {
			r, err := l.do(args...)
			require.NoError(t, err)
			require.True(t, strings.HasPrefix(r.text, "CLUSTERDOWN"), "%q: %s", args, r.text)
		}
	}
	for _, p := range all[1:] {
		p.resume()
	}
	isOK(t, all...)
	f := newFollower(t, all)
	require.Eventually(t, func() bool {
		r, err := f.follow("GET", key)
		return err == nil && (r.text == "before" || r.text == "late")
	}, 30*time.Second, 10*time.Millisecond)
	require.Eventually(t, func() bool {
		r, err := f.follow("SET", key, "after")
		return err == nil && r.text == "OK"
	}, 30*time.Second, 10*time.Millisecond)
	agree(t, all...)
	healthy(t, all[1])
}

// manyKeys is what lots writes: some 20 MB.
const (
	manyKeys  = 200
	manyBytes = manyKeys * 100_000
)

func lots(t testing.TB, p *process) {
	t.Helper()
	l, tag := connect(t, p.addr(), "2"), keyAt(t, p)
	for i := range manyKeys {
		l.add([]string{"SET", fmt.Sprint("{", tag, "}", i), strings.Repeat("x", manyBytes/manyKeys)})
	}
	require.NoError(t, l.flush())
	for range manyKeys {
		r, err := l.read()
		require.NoError(t, err)
		require.Equal(t, "OK", r.text)
	}
}

// level waits until a replica has as many keys as its primary, and is attached, and then
// until it has the same under those of every kind.
func level(t testing.TB, primary, replica *process) {
	t.Helper()
	require.Eventually(t, func() bool {
		return replica.info("master_link_status") == "up" && replica.do("DBSIZE").text == primary.do("DBSIZE").text
	}, 60*time.Second, 20*time.Millisecond, "the replica has what its primary has")
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		assert.Equal(c, everyKindAt(t, primary), everyKindAt(t, replica))
	}, 30*time.Second, 50*time.Millisecond, "and the same")
}

// everyKind changes, at a primary of all slots, keys of every kind: fields and elements
// come and go, and so do times of expiry.
func everyKind(p *process, round int) {
	n := strconv.Itoa(round)
	for _, args := range [][]string{
		{"APPEND", "{kinds}string", n},
		{"SET", "{kinds}time", n, "PX", strconv.Itoa(600_000 + round)},
		{"SET", "{kinds}no time", n},
		{"SET", "{kinds}short", n, "PX", "1"},
		{"HSET", "{kinds}hash", "round", n, "of " + n, "", "last", "\x00\xff\r\n"},
		{"HDEL", "{kinds}hash", "of " + strconv.Itoa(round-2), "last"},
		{"PEXPIRE", "{kinds}hash", strconv.Itoa(700_000 + round)},
		{"RPUSH", "{kinds}list", n, "a", n},
		{"LPOP", "{kinds}list"},
		{"SADD", "{kinds}set", n, "a"},
		{"SREM", "{kinds}set", strconv.Itoa(round - 2)},
		{"ZADD", "{kinds}sorted", n + ".5", "m" + n, "-inf", "a"},
		{"ZREM", "{kinds}sorted", "m" + strconv.Itoa(round-2)},
		{"PERSIST", "{kinds}no time"},
		{"PEXPIRE", "{kinds}no time", "500000"},
		{"PERSIST", "{kinds}no time"},
	} {
		p.must(args...)
	}
}

// everyKindAt is what a process, primary or replica, has under the keys of everyKind: the
// kind of each, what it holds, and when it expires.
func everyKindAt(t testing.TB, p *process) map[string]string {
	t.Helper()
	l := connect(t, p.addr(), "2")
	defer l.close()
	ask := func(args ...string) reply {
		r, err := l.do(args...)
		require.NoError(t, err)
		return r
	}
	ask("READONLY")
	has := map[string]string{}
	for key, read := range map[string][]string{
		"string": {"GET"}, "time": {"GET"}, "no time": {"GET"}, "short": {"GET"},
		"hash": {"HGETALL"}, "list": {"LRANGE", "0", "-1"}, "set": {"SMEMBERS"}, "sorted": {"ZRANGE", "0", "-1", "WITHSCORES"},
	} {
		name := "{kinds}" + key
		r := ask(append([]string{read[0], name}, read[1:]...)...)
		var holds []string
		for i := range r.items {
			if holds = append(holds, r.items[i].text); key == "hash" && i%2 == 1 {
				holds = append(holds[:i/2], holds[i/2]+"="+holds[i/2+1])
			}
		}
		if key == "hash" || key == "set" {
			slices.Sort(holds) // they are in no order
		}
		has[key] = fmt.Sprintf("%s %q %q %s", ask("TYPE", name).text, r.text, holds, ask("PEXPIRETIME", name).text)
	}
	return has
}

// A replica that stood still for a while, or whose connection broke, gets what it lacks;
// one that comes back without anything gets everything.
func TestReplicaThatStoodStillCopiesOnlyWhatItLacks(t *testing.T) {
	bin := buildServer(t)
	args := []string{"--cluster-enabled", "yes", "--cluster-node-timeout", "2000"}
	primary, way := startBehindProxy(t, bin, args...)
	replica := startProcess(t, bin, args...)
	primary.must("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
	isOK(t, primary)
	lots(t, primary)
	replica.must("CLUSTER", "MEET", "127.0.0.1", primary.port)
	replica.replicate(primary)
	level(t, primary, replica)
	round := 0
	copied := func(what func()) int64 {
		t.Helper()
		from := way.bytes.Load()
		what()
		for i := range 20 {
			primary.must("SET", fmt.Sprint("more:", i), "v")
		}
		round++
		everyKind(primary, round) // after what the replica has missed
		level(t, primary, replica)
		return way.bytes.Load() - from
	}
	require.Less(t, copied(func() {
		replica.pause()
		require.Eventually(t, func() bool { return strings.Contains(primary.do("CLUSTER", "NODES").text, "fail") }, 30*time.Second, 10*time.Millisecond)
		primary.must("SET", "meanwhile", "v")
		round++
		everyKind(primary, round)
		replica.resume()
	}), int64(manyBytes/4), "bytes after a pause")
	require.Less(t, copied(func() {
		primary.must("SET", "before", "v")
		round++
		everyKind(primary, round)
		way.hangUp()
	}), int64(manyBytes/4), "bytes after a connection that broke")
	require.Greater(t, copied(func() {
		replica.kill()
		replica.again()
	}), int64(manyBytes), "bytes after a restart without data")
}

// A copy of everything that breaks off, once as the replica dies and once as the primary
// does, begins anew. Who has no whole copy does not lead.
func TestCopyOfEverythingThatBreaksOffBeginsAnew(t *testing.T) {
	bin := buildServer(t)
	args := []string{"--cluster-enabled", "yes", "--cluster-node-timeout", "2000"}
	primary, way := startBehindProxy(t, bin, args...)
	all := []*process{primary}
	create := []string{"--cluster", "create", "--cluster-yes", primary.addr()}
	for range 2 {
		p := startProcess(t, bin, args...)
		all = append(all, p)
		create = append(create, p.addr())
	}
	cli(t, create...)
	whole, half := startProcess(t, bin, args...), startProcess(t, bin, args...)
	for _, p := range []*process{whole, half} {
		p.must("CLUSTER", "MEET", "127.0.0.1", primary.port)
	}
	whole.replicate(primary)
	lots(t, primary)
	level(t, primary, whole)

	way.rate.Store(manyBytes / 10) // ten seconds
	copying := func() {
		t.Helper()
		require.Eventually(t, func() bool { return half.info("master_sync_in_progress") == "1" }, 30*time.Second, 5*time.Millisecond)
		from := way.bytes.Load()
		require.Eventually(t, func() bool { return way.bytes.Load() > from+manyBytes/10 }, 30*time.Second, 5*time.Millisecond, "the copy gets on")
		require.Equal(t, "1", half.info("master_sync_in_progress"))
	}
	half.replicate(primary)
	copying()
	half.kill()
	half.again()
	copying()
	primary.kill()
	whole.becomes("master")
	level(t, whole, half)
	require.Equal(t, whole.port, half.info("master_port"))
	require.Equal(t, strconv.Itoa(manyKeys), whole.do("DBSIZE").text)
	require.NotContains(t, half.log.String(), "unclean")
}

// A replica that clients read at shows nothing old: once its primary stands still it
// sends them there, and shows nothing more.
func TestReplicaOfAPrimaryThatStandsStillShowsNothingOld(t *testing.T) {
	all := replicatedCluster(t, buildServer(t), "--cluster-replica-no-failover", "yes")
	primary, replica := shardOf(t, all)
	key := keyAt(t, primary)
	primary.must("SET", key, "v")
	l := connect(t, replica.addr(), "2")
	mustDo(t, l, "READONLY")
	require.Eventually(t, func() bool { r, err := l.do("GET", key); return err == nil && r.text == "v" }, 30*time.Second, time.Millisecond)
	primary.pause()
	t.Cleanup(primary.resume)
	stood := time.Now()
	first := ""
	require.Eventually(t, func() bool {
		r, err := l.do("GET", key)
		require.NoError(t, err)
		first = r.text
		return r.isError()
	}, 30*time.Second, time.Millisecond)
	t.Logf("%v after its primary stood still: %s", time.Since(stood), first)
	moved := fmt.Sprintf("MOVED %s %s", replica.do("CLUSTER", "KEYSLOT", key).text, primary.addr())
	require.True(t, first == moved || strings.HasPrefix(first, "CLUSTERDOWN"), "%s; it says the latter once all know that its primary has failed", first)
	for limit := time.Now().Add(failuresNT); time.Now().Before(limit); time.Sleep(5 * time.Millisecond) {
		r, err := l.do("GET", key)
		require.NoError(t, err)
		require.True(t, r.isError(), r.text)
	}
	primary.resume()
	require.Eventually(t, func() bool { r, err := l.do("GET", key); return err == nil && r.text == "v" }, 30*time.Second, 10*time.Millisecond)
}

// A primary that is back at once with nothing is a replica of the one that was, and
// takes nothing from it; so is one that comes back at another address.
func TestPrimaryThatComesBackEmptyWipesNobody(t *testing.T) {
	all := replicatedCluster(t, buildServer(t), "--min-replicas-to-write", "1")
	primary, replica := shardOf(t, all)
	key := keyAt(t, primary)
	for i := range 100 {
		primary.must("SET", fmt.Sprint("{", key, "}", i), "v")
	}
	for _, elsewhere := range []bool{false, true} {
		primary.kill()
		if elsewhere {
			primary.port = freePort(t)
		}
		primary.again()
		replica.becomes("master")
		primary.becomes("slave")
		level(t, replica, primary)
		require.Equal(t, "100", replica.do("DBSIZE").text)
		agree(t, all...)
		require.Contains(t, all[0].do("CLUSTER", "NODES").text, primary.addr()+"@")
		primary, replica = replica, primary
		require.Eventually(t, func() bool { return primary.do("SET", "{"+key+"}0", "v").text == "OK" }, 30*time.Second, 10*time.Millisecond, "the replica is in sync")
	}
	healthy(t, primary)
}

// Where nobody waits for replicas, what a crash loses is of its shard, and was on its way
// to the replica; what a replica that has missed more loses, where nobody else is left, an
// event has warned of.
func TestLostWritesAreExplained(t *testing.T) {
	all := replicatedCluster(t, buildServer(t))
	primary, replica := shardOf(t, all)
	n := startNumbers(t, all, 120)
	n.goOn(2000)
	keys := n.served(primary)
	primary.kill()
	killed := time.Now()
	back := func() {
		t.Helper()
		replica.becomes("master")
		primary.again()
		primary.becomes("slave")
		primary.linkUp()
		n.goOn(500)
		n.end()
	}
	back()
	t.Logf("%d acknowledged writes are gone with the primary", n.explained(keys, killed.Add(-lagAtMost), killed))
	require.NotContains(t, replica.log.String(), "unclean")

	primary, replica = replica, primary
	n = startNumbers(t, all, 120)
	n.goOn(1000)
	keys = n.served(primary)
	stood := time.Now()
	replica.pause()
	t.Cleanup(replica.resume)
	for time.Since(stood) < 2*failuresNT { // it is out of sync by then
		n.goOn(100)
	}
	primary.kill()
	killed = time.Now()
	replica.resume()
	back()
	gone := n.explained(keys, stood.Add(-lagAtMost), killed)
	t.Logf("%d acknowledged writes are gone with the primary whose replica stood still", gone)
	require.Positive(t, gone)
	require.Contains(t, replica.log.String(), "unclean")
}
