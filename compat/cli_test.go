package compat

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/slotmesh/slotmesh/internal/loopback"
)

// redis-cli --cluster and other tools of Redis against examples/server, as child
// processes on loopback.

// process is a server as a child process. It ends with the test.
type process struct {
	t    testing.TB
	bin  string
	port string
	dir  string
	args []string
	cmd  *exec.Cmd
	log  lockedBuffer
}

// lockedBuffer is written by a process and read by the test.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// startProcess starts a server that takes redis-server's flags, and waits until
// it says that it is ready.
func startProcess(t testing.TB, bin string, args ...string) *process {
	t.Helper()
	p := &process{t: t, bin: bin, port: freePort(t), dir: t.TempDir(), args: args}
	p.start()
	t.Cleanup(p.kill)
	return p
}

func (p *process) start() {
	p.t.Helper()
	p.launch(append([]string{"--port", p.port, "--bind", "127.0.0.1", "--dir", p.dir, "--save", "", "--appendonly", "no"}, p.args...)...)
	require.Eventually(p.t, func() bool { return strings.Contains(p.log.String(), "Ready to accept connections") }, 20*time.Second, 10*time.Millisecond,
		"%s did not come up: %s", p.bin, &p.log)
}

// launch starts the program, and does not wait for it.
func (p *process) launch(args ...string) {
	p.t.Helper()
	p.cmd = exec.Command(p.bin, args...)
	p.cmd.Stdout, p.cmd.Stderr = &p.log, &p.log
	p.cmd.SysProcAttr = endWithParent()
	require.NoError(p.t, p.cmd.Start())
}

// kill ends the process, whatever it does.
func (p *process) kill() {
	if p.cmd.ProcessState == nil {
		p.cmd.Process.Kill()
		p.cmd.Wait()
	}
}

// stop ends the process as an operator does.
func (p *process) stop() error {
	p.cmd.Process.Signal(syscall.SIGTERM)
	return p.cmd.Wait()
}

func (p *process) addr() string { return net.JoinHostPort("127.0.0.1", p.port) }

// do runs a command over a connection of its own.
func (p *process) do(args ...string) reply {
	p.t.Helper()
	l, err := dial(p.addr())
	require.NoError(p.t, err)
	defer l.close()
	r, err := l.do(args...)
	require.NoError(p.t, err, "%q", args)
	return r
}

func (p *process) id() string { return p.do("CLUSTER", "MYID").text }

// freePort is a port that is free together with that of the bus, 10000 above.
func freePort(t testing.TB) string {
	t.Helper()
	addrs, err := loopback.FreeAddrs(1)
	require.NoError(t, err)
	_, port, err := net.SplitHostPort(addrs[0])
	require.NoError(t, err)
	return port
}

// nodes starts servers that are to become a cluster.
func nodes(t testing.TB, bin string, n int) []*process { return slowNodes(t, bin, n, "2000") }

// slowNodes takes NodeTimeout, in milliseconds: one that a busy machine does not exceed
// where a failover would spoil a test.
func slowNodes(t testing.TB, bin string, n int, timeout string) []*process {
	t.Helper()
	out := make([]*process, n)
	for i := range out {
		out[i] = startProcess(t, bin, "--cluster-enabled", "yes", "--cluster-node-timeout", timeout)
	}
	return out
}

// cluster makes one of n servers with redis-cli.
func cluster(t testing.TB, bin string, n int) []*process {
	t.Helper()
	all := nodes(t, bin, n)
	args := []string{"--cluster", "create", "--cluster-yes"}
	for _, p := range all {
		args = append(args, p.addr())
	}
	out := cli(t, args...)
	require.Contains(t, out, "[OK] All nodes agree about slots configuration.")
	require.Contains(t, out, "[OK] All 16384 slots covered.")
	return all
}

// cli runs redis-cli, which must succeed, and returns what it prints.
func cli(t testing.TB, args ...string) string {
	t.Helper()
	out, err := runCli(t, args...)
	require.NoError(t, err, "redis-cli %s: %s", strings.Join(args, " "), out)
	return out
}

func runCli(t testing.TB, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "redis-cli", args...)
	cmd.Stdin = strings.NewReader(strings.Repeat("yes\n", 10)) // fix asks, whatever it is told
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// agree waits until all servers know each other and who owns what. redis-cli does
// not wait after add-node.
func agree(t testing.TB, all ...*process) {
	t.Helper()
	view := func(p *process) string {
		var lines []string
		for line := range strings.Lines(p.do("CLUSTER", "NODES").text) {
			f := strings.Fields(line)
			lines = append(lines, f[0]+" "+strings.Join(f[8:], " "))
		}
		slices.Sort(lines)
		return strings.Join(lines, "\n")
	}
	require.Eventually(t, func() bool {
		first := view(all[0])
		for _, p := range all[1:] {
			if view(p) != first {
				return false
			}
		}
		return strings.Count(first, "\n") == len(all)-1
	}, 20*time.Second, 10*time.Millisecond)
}

// healthy checks the cluster as redis-cli does.
func healthy(t testing.TB, p *process, flags ...string) string {
	t.Helper()
	out := cli(t, append([]string{"--cluster", "check", p.addr()}, flags...)...)
	for _, want := range []string{"[OK] All nodes agree about slots configuration.", "[OK] All 16384 slots covered."} {
		require.Contains(t, out, want)
	}
	require.NotContains(t, out, "[WARNING]")
	return out
}

// singlyOwned has redis-cli ask every node, too, how many keys it has in each slot.
func singlyOwned(t testing.TB, p *process) {
	t.Helper()
	require.Contains(t, healthy(t, p, "--cluster-search-multiple-owners"), "[OK] No multiple owners found.")
}

func TestRedisCliCreatesChecksAndCalls(t *testing.T) {
	t.Parallel()
	all := cluster(t, buildServer(t), 3)
	singlyOwned(t, all[1])
	lines := strings.Split(strings.TrimSpace(all[0].do("CLUSTER", "NODES").text), "\n")
	require.Len(t, lines, 3)
	line := regexp.MustCompile(`^[0-9a-f]{40} 127\.0\.0\.1:\d+@\d+ (myself,)?master - \d+ \d+ [123] connected \d+-\d+$`)
	for _, l := range lines {
		require.Regexp(t, line, l)
	}
	require.Regexp(t, `0 keys \| 5461 slots \| 0 slaves`, cli(t, "--cluster", "info", all[2].addr()))
	require.Equal(t, 3, strings.Count(cli(t, "--cluster", "call", all[0].addr(), "PING"), "PONG"))
	out := cli(t, "--cluster", "set-timeout", all[0].addr(), "3000")
	require.Contains(t, out, "3 OK, 0 ERR")
	require.Contains(t, all[0].log.String(), "cluster-node-timeout")
}

func TestRedisCliFollowsRedirectsAndWalksKeys(t *testing.T) {
	t.Parallel()
	all := cluster(t, buildServer(t), 3)
	for i := range 30 {
		require.Equal(t, "OK\n", cli(t, "-c", "-p", all[i%3].port, "SET", fmt.Sprint("key:", i), "v"))
	}
	keys := 0
	for _, p := range all {
		keys += len(strings.Fields(cli(t, "-p", p.port, "--scan", "--pattern", "key:*")))
		require.Contains(t, cli(t, "-p", p.port, "--bigkeys"), "keys in the keyspace")
		require.Contains(t, cli(t, "-p", p.port, "--memkeys"), "keys in the keyspace")
	}
	require.Equal(t, 30, keys)
	require.Contains(t, cli(t, "-3", "-p", all[0].port, "HELLO"), "proto 3")
}

// writer writes rising numbers under keys of a cluster until it is ended.
type writer struct {
	t     testing.TB
	addrs []string
	links map[string]*link
	last  []int64 // acknowledged, by key
	stop  atomic.Bool
	done  chan struct{}
	err   error // what no redirect is
}

func startWriter(t testing.TB, keys int, all ...*process) *writer {
	w := &writer{t: t, links: map[string]*link{}, last: make([]int64, keys), done: make(chan struct{})}
	for _, p := range all {
		w.addrs = append(w.addrs, p.addr())
	}
	go func() {
		defer close(w.done)
		for n := int64(1); !w.stop.Load() && w.err == nil; n++ {
			for i := range w.last {
				if w.err = w.set(i, n); w.err != nil {
					return
				}
			}
		}
	}()
	t.Cleanup(func() { w.end() })
	return w
}

func (w *writer) key(i int) string { return fmt.Sprint("writer:", i) }

func (w *writer) set(i int, n int64) error {
	r, err := w.follow("SET", w.key(i), strconv.FormatInt(n, 10))
	if err == nil && r.isError() {
		err = fmt.Errorf("SET %s: %s", w.key(i), r.text)
	}
	if err == nil {
		w.last[i] = n
	}
	return err
}

// follow runs a command where redirects lead to.
func (w *writer) follow(args ...string) (r reply, err error) {
	addr, asking := w.addrs[0], false
	for range 50 {
		l := w.links[addr]
		if l == nil {
			if l, err = dial(addr); err != nil {
				return r, err
			}
			w.links[addr] = l
		}
		if asking {
			l.do("ASKING")
		}
		if r, err = l.do(args...); err != nil {
			return r, err
		}
		f := strings.Fields(r.text)
		switch {
		case r.kind == '-' && f[0] == "MOVED":
			addr, asking = f[2], false
		case r.kind == '-' && f[0] == "ASK":
			addr, asking = f[2], true
		case r.kind == '-' && f[0] == "TRYAGAIN":
		default:
			return r, nil
		}
	}
	return r, fmt.Errorf("%q: redirected for ever, at last %s", args, r.text)
}

// end ends the writing.
func (w *writer) end() {
	if !w.stop.Swap(true) {
		<-w.done
		for _, l := range w.links {
			l.close()
		}
		w.links = map[string]*link{}
	}
}

// check ends the writing and reads everything back.
func (w *writer) check() {
	w.t.Helper()
	w.end()
	require.NoError(w.t, w.err)
	total := int64(0)
	for i, want := range w.last {
		r, err := w.follow("GET", w.key(i))
		require.NoError(w.t, err)
		if r.text != strconv.FormatInt(want, 10) {
			w.t.Errorf("%s is %s, last acknowledged %d", w.key(i), r.text, want)
		}
		total += want
	}
	require.Positive(w.t, total, "nothing was written")
	for _, l := range w.links {
		l.close()
	}
}

func TestRedisCliReshardsUnderWrites(t *testing.T) {
	t.Parallel()
	all := cluster(t, buildServer(t), 3)
	w := startWriter(t, 500, all...)
	out := cli(t, "--cluster", "reshard", all[0].addr(), "--cluster-from", all[0].id(), "--cluster-to", all[2].id(), "--cluster-slots", "400", "--cluster-yes")
	require.Equal(t, 400, strings.Count(out, "Moving slot ")/2, "slots in the plan and in the moves")
	w.check()
	healthy(t, all[0])
	require.Equal(t, 5461+400, slotsOf(t, all[1], all[2].id()))
}

// slotsOf counts the slots that p shows for a node.
func slotsOf(t testing.TB, p *process, id string) (n int) {
	t.Helper()
	for line := range strings.Lines(p.do("CLUSTER", "NODES").text) {
		f := strings.Fields(line)
		if f[0] != id {
			continue
		}
		for _, s := range f[8:] {
			first, last, isRange := strings.Cut(s, "-")
			a, err := strconv.Atoi(first)
			require.NoError(t, err, "%s", line)
			b := a
			if isRange {
				b, err = strconv.Atoi(last)
				require.NoError(t, err, "%s", line)
			}
			n += b - a + 1
		}
	}
	return n
}

func TestRedisCliAddsRebalancesAndDeletesNodes(t *testing.T) {
	t.Parallel()
	bin := buildServer(t)
	all := cluster(t, bin, 3)
	w := startWriter(t, 200, all...)
	added := nodes(t, bin, 1)[0]
	out := cli(t, "--cluster", "add-node", added.addr(), all[0].addr())
	require.Contains(t, out, "[OK] New node added correctly.")
	id := added.id()
	agree(t, append(all, added)...)
	// A light one, for each slot takes redis-cli six commands.
	cli(t, "--cluster", "rebalance", all[0].addr(), "--cluster-use-empty-masters", "--cluster-weight", id+"=0.05")
	n := slotsOf(t, all[0], id)
	require.InDelta(t, 16384*0.05/3.05, n, 3)
	healthy(t, all[1])

	out, err := runCli(t, "--cluster", "del-node", all[0].addr(), id)
	require.Error(t, err, "a node with slots is not deleted: %s", out)
	cli(t, "--cluster", "reshard", all[0].addr(), "--cluster-from", id, "--cluster-to", all[0].id(), "--cluster-slots", strconv.Itoa(n), "--cluster-yes")
	cli(t, "--cluster", "del-node", all[0].addr(), id)
	for _, p := range all {
		require.Eventually(t, func() bool { return !strings.Contains(p.do("CLUSTER", "NODES").text, id) }, 20*time.Second, 10*time.Millisecond)
	}
	require.Eventually(t, func() bool { return strings.Count(added.do("CLUSTER", "NODES").text, "\n") == 1 }, 20*time.Second, 10*time.Millisecond, "it is alone after RESET")
	w.check()
	healthy(t, all[0])
}

// must runs a command that must not be refused.
func (p *process) must(args ...string) reply {
	p.t.Helper()
	r := p.do(args...)
	require.False(p.t, r.isError(), "%q at %s: %s", args, p.port, r.text)
	return r
}

// typedKeys are commands that make keys of every type.
func typedKeys() [][]string {
	return [][]string{
		{"SET", "{t}string", "value"},
		{"SET", "{t}number", "12345"},
		{"SET", "{t}binary", "\x00\xff\r\n"},
		{"SET", "{t}big", strings.Repeat("0123456789", 20_000)},
		{"RPUSH", "{t}list", "a", "b", "3", strings.Repeat("x", 10_000)},
		{"SADD", "{t}set", "a", "b", "c"},
		{"SADD", "{t}numbers", "1", "2", "70000", "-5"},
		{"HSET", "{t}hash", "f", "v", "g", "7", "h", ""},
		{"ZADD", "{t}sorted", "1", "a", "2.5", "b", "-inf", "c", "inf", "d"},
		{"SET", "{t}ttl", "short", "PX", "600000"},
		{"RPUSH", "{t}list with a time", "a"},
		{"PEXPIRE", "{t}list with a time", "600000"},
	}
}

func TestKeysOfEveryTypeMoveFromRedisAndBack(t *testing.T) {
	t.Parallel()
	theirs := startProcess(t, "redis-server", "--enable-debug-command", "yes")
	all := cluster(t, buildServer(t), 3)
	keys := map[string]bool{}
	var names []string
	for _, args := range typedKeys() {
		theirs.must(args...)
		if !keys[args[1]] {
			keys[args[1]] = true
			names = append(names, args[1])
		}
	}
	digests := theirs.must(append([]string{"DEBUG", "DIGEST-VALUE"}, names...)...)
	out := cli(t, "--cluster", "import", all[0].addr(), "--cluster-from", theirs.addr())
	require.NotContains(t, out, "ERR", "%s", out)
	require.Equal(t, "0", theirs.must("DBSIZE").text)
	owner := ownerOf(t, all, names[0])
	require.Equal(t, digests.wire(), owner.must(append([]string{"DEBUG", "DIGEST-VALUE"}, names...)...).wire(), "values and whether they have a time")
	ttl, err := strconv.Atoi(owner.must("PTTL", "{t}ttl").text)
	require.NoError(t, err)
	require.InDelta(t, 590_000, ttl, 10_000)

	owner.must(append([]string{"MIGRATE", "127.0.0.1", theirs.port, "", "0", "5000", "KEYS"}, names...)...)
	require.Equal(t, "0", owner.must("DBSIZE").text)
	require.Equal(t, digests.wire(), theirs.must(append([]string{"DEBUG", "DIGEST-VALUE"}, names...)...).wire())

	theirs.must("XADD", "stream", "*", "a", "b")
	r := theirs.do("MIGRATE", "127.0.0.1", ownerOf(t, all, "stream").port, "stream", "0", "5000")
	require.True(t, r.isError(), "a stream has no place here: %s", r.text)
	require.Equal(t, "1", theirs.must("EXISTS", "stream").text)
}

// ownerOf is the process that serves a key.
func ownerOf(t testing.TB, all []*process, key string) *process {
	t.Helper()
	for _, p := range all {
		if !p.do("TYPE", key).isError() {
			return p
		}
	}
	t.Fatalf("nobody serves %q", key)
	return nil
}

func TestMigrateThatTimesOutLeavesKeysOnOneSide(t *testing.T) {
	t.Parallel()
	c := cluster(t, buildServer(t), 3)
	const slot = "12182"
	keys := []string{"foo", "{foo}1", "{foo}2"}
	for _, k := range keys {
		c[2].must("SET", k, "v")
	}
	c[0].must("CLUSTER", "SETSLOT", slot, "IMPORTING", c[2].id())
	c[2].must("CLUSTER", "SETSLOT", slot, "MIGRATING", c[0].id())
	migrate := append([]string{"MIGRATE", "127.0.0.1", c[0].port, "", "0", "300", "KEYS"}, keys...)

	c[0].pause()
	r := c[2].do(migrate...)
	require.Contains(t, r.text, "IOERR error or timeout")
	require.Equal(t, "3", c[2].must("CLUSTER", "COUNTKEYSINSLOT", slot).text)
	c[0].resume()
	for range 20 { // whatever was on its way has come by then
		require.Equal(t, "0", c[0].must("CLUSTER", "COUNTKEYSINSLOT", slot).text)
	}
	require.Eventually(t, func() bool { return c[2].do(migrate...).text == "OK" }, 20*time.Second, 50*time.Millisecond)
	require.Equal(t, "0", c[2].must("CLUSTER", "COUNTKEYSINSLOT", slot).text)
	require.Equal(t, "3", c[0].must("CLUSTER", "COUNTKEYSINSLOT", slot).text)
}

func TestBenchmarkOfRedisRuns(t *testing.T) {
	t.Parallel()
	bin := buildServer(t)
	all := cluster(t, bin, 3)
	alone := startProcess(t, bin)
	for _, args := range [][]string{
		{"-p", all[0].port, "--cluster", "-r", "1000"},
		{"-p", alone.port}, // with -r the keys of its MSET would be in many slots
	} {
		args = append(args, "-n", "2000", "-q", "-P", "8")
		out, err := exec.Command("redis-benchmark", args...).CombinedOutput()
		require.NoError(t, err, "%s", out)
		for _, want := range []string{"SET", "GET", "INCR", "LPUSH", "RPUSH", "LPOP", "RPOP", "SADD", "HSET", "SPOP", "ZADD", "ZPOPMIN", "LRANGE_600", "MSET"} {
			require.Contains(t, string(out), want)
		}
		require.NotContains(t, string(out), "Error")
	}
}

func TestServerEndsCleanlyAndIsTheSameNodeAfterwards(t *testing.T) {
	t.Parallel()
	p := nodes(t, buildServer(t), 1)[0]
	id := p.id()
	require.NoError(t, p.stop())
	require.Contains(t, p.log.String(), "bye bye")
	p.log.mu.Lock()
	p.log.b.Reset()
	p.log.mu.Unlock()
	p.start()
	require.Equal(t, id, p.id())
	l, err := dial(p.addr())
	require.NoError(t, err)
	defer l.close()
	l.do("SHUTDOWN", "NOSAVE")
	require.NoError(t, p.cmd.Wait())
}

func TestServerSaysWhatIsWrongWithItsOptions(t *testing.T) {
	t.Parallel()
	bin := buildServer(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "redis.conf")
	require.NoError(t, os.WriteFile(file, []byte("# a comment\nport 0x\n"), 0o644))
	for _, row := range []struct {
		args []string
		want string
	}{
		{[]string{file}, "redis.conf line 2: port \"0x\": argument couldn't be parsed into an integer"},
		{[]string{"--port", "70000"}, "argument must be between 0 and 65535"},
		{[]string{"--port", "60000", "--cluster-enabled", "yes"}, "expected a port up to 55535"},
		{[]string{"--cluster-enabled", "maybe"}, "argument must be 'yes' or 'no'"},
		{[]string{"--bind", "0.0.0.0", "--cluster-enabled", "yes"}, "protected-mode no"},
		{[]string{"--cluster-node-timeout", "1", "--cluster-enabled", "yes", "--port", freePort(t), "--dir", dir}, "NodeTimeout"},
		{[]string{"port"}, "config file"},
	} {
		out, err := exec.Command(bin, row.args...).CombinedOutput()
		require.Error(t, err, "%q", row.args)
		require.Contains(t, string(out), row.want, "%q", row.args)
	}
}
