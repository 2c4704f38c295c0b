package compat

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// examples/server as a child process: crowds, slow readers, its config, and what
// outlives it.

// residentMB is the memory that a process holds, as Linux counts it.
func residentMB(t testing.TB, p *process) int {
	t.Helper()
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	require.NoError(t, err)
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if kb, ok := strings.CutPrefix(lines.Text(), "VmRSS:"); ok {
			n, err := strconv.Atoi(strings.Fields(kb)[0])
			require.NoError(t, err)
			return n >> 10
		}
	}
	t.Fatal("no VmRSS in /proc")
	return 0
}

// pause makes a process stand still, every thread of it, until it is resumed.
func (p *process) pause() {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Signal(syscall.SIGSTOP))
	require.Eventually(p.t, func() bool {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.cmd.Process.Pid))
		return err == nil && len(threads) > 0 && !slices.ContainsFunc(threads, func(thread string) bool {
			text, err := os.ReadFile(thread)
			_, state, _ := strings.Cut(string(text), ") ") // the name before it may have spaces
			return err == nil && !strings.HasPrefix(state, "T")
		})
	}, 20*time.Second, time.Millisecond)
}

func (p *process) resume() {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Signal(syscall.SIGCONT))
}

// allowFiles raises the number of open files to n, for this process and its
// children, as far as it may, and returns what it is then.
func allowFiles(t testing.TB, n uint64) int {
	t.Helper()
	var was, now syscall.Rlimit
	require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &was))
	if was.Cur >= n {
		return int(min(was.Cur, 1<<30))
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: n, Max: max(n, was.Max)}); err != nil {
		require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: was.Max, Max: was.Max}))
	}
	t.Cleanup(func() { syscall.Setrlimit(syscall.RLIMIT_NOFILE, &was) })
	require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &now))
	return int(now.Cur)
}

// crowd opens n connections, each of which sends text and then nothing. They are
// closed with the test.
func crowd(t testing.TB, p *process, n int, text string) {
	t.Helper()
	const dialers = 32
	conns := make([]net.Conn, n)
	errs := make([]error, dialers)
	var wg sync.WaitGroup
	for d := range dialers {
		wg.Go(func() {
			for i := d; i < n && errs[d] == nil; i += dialers {
				if conns[i], errs[d] = net.Dial("tcp", p.addr()); errs[d] == nil {
					_, errs[d] = conns[i].Write([]byte(text))
				}
			}
		})
	}
	wg.Wait()
	t.Cleanup(func() {
		for _, c := range conns {
			if c != nil {
				c.Close()
			}
		}
	})
	for _, err := range errs {
		require.NoError(t, err)
	}
}

// infoNumber is a number that INFO shows.
func infoNumber(p *process, name string) int {
	for line := range strings.Lines(p.do("INFO").text) {
		if text, ok := strings.CutPrefix(line, name+":"); ok {
			n, _ := strconv.Atoi(strings.TrimSpace(text))
			return n
		}
	}
	return -1
}

func TestServerServesBesideACrowdThatDoesNothing(t *testing.T) {
	idle, half := 10_000, 2_000
	const others = 500 // of this process and of the test's own clients
	if files := allowFiles(t, uint64(idle+half+others)); files < idle+half+others {
		idle = (files - others) * 5 / 6
		half = files - others - idle
		t.Logf("%d files may be open: %d idle connections and %d half-sent commands", files, idle, half)
	}
	p := startProcess(t, buildServer(t), "--maxclients", "20000")
	load := startLoad(t, p, 4)
	before := residentMB(t, p)

	crowd(t, p, idle, "")
	require.Eventually(t, func() bool { return infoNumber(p, "connected_clients") > idle }, time.Minute, 50*time.Millisecond)
	withIdle := residentMB(t, p)
	// A command whose argument is to be long, and of which little has come.
	crowd(t, p, half, "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$60000000\r\n"+strings.Repeat("x", 2000))
	require.Eventually(t, func() bool { return infoNumber(p, "connected_clients") > idle+half }, time.Minute, 50*time.Millisecond)
	withHalf := residentMB(t, p)
	t.Logf("resident: %d MB, %d MB with %d idle connections, %d MB with %d half-sent commands more", before, withIdle, idle, withHalf, half)
	if per := (withIdle - before) << 10 / idle; per > 15 {
		t.Errorf("an idle connection takes %d KB", per)
	}
	if per := (withHalf - withIdle) << 10 / half; per > 25 {
		t.Errorf("a half-sent command of which 2 KB have come takes %d KB", per)
	}
	load.goOn(1000)
	load.end()
	require.Equal(t, "0", p.do("EXISTS", "k").text)

	began := time.Now()
	require.NoError(t, p.stop())
	require.Less(t, time.Since(began), 20*time.Second, "with all of them connected")
	require.Contains(t, p.log.String(), "bye bye")
}

// normalLoad is clients that set, get and compare, until they are ended.
type normalLoad struct {
	t     testing.TB
	wg    sync.WaitGroup
	stop  chan struct{}
	done  chan struct{} // one per pass
	ended bool
}

func startLoad(t testing.TB, p *process, clients int) *normalLoad {
	l := &normalLoad{t: t, stop: make(chan struct{}), done: make(chan struct{})}
	for c := range clients {
		conn := connect(t, p.addr(), "2")
		l.wg.Go(func() {
			for n := 0; ; n++ {
				key, value := fmt.Sprintf("load:%d:%d", c, n%100), strconv.Itoa(n)
				set, err := conn.do("SET", key, value)
				if err == nil && set.text == "OK" {
					set, err = conn.do("GET", key)
				}
				if err != nil || set.text != value {
					t.Errorf("GET %s: %v %v, want %s", key, set, err, value)
					return
				}
				select {
				case l.done <- struct{}{}:
				case <-l.stop:
					return
				}
			}
		})
	}
	go func() { // passes that nobody waits for
		l.wg.Wait()
		close(l.done)
	}()
	t.Cleanup(l.end)
	return l
}

// goOn waits for n more passes.
func (l *normalLoad) goOn(n int) {
	l.t.Helper()
	late := time.After(time.Minute)
	for range n {
		select {
		case _, more := <-l.done:
			require.True(l.t, more, "the load has ended")
		case <-late:
			l.t.Fatal("normal clients are not served")
		}
	}
}

func (l *normalLoad) end() {
	if !l.ended {
		l.ended = true
		close(l.stop)
		l.wg.Wait()
	}
}

// A subscriber that does not read is cut, and holds up neither who publishes nor
// who reads.
func TestServerCutsASubscriberThatDoesNotRead(t *testing.T) {
	t.Parallel()
	p := startProcess(t, buildServer(t))
	slow, reader, publisher := connect(t, p.addr(), "2"), connect(t, p.addr(), "2"), connect(t, p.addr(), "2")
	for _, l := range []*link{slow, reader} {
		r, err := l.do("SUBSCRIBE", "news")
		require.NoError(t, err)
		require.Len(t, r.items, 3)
	}
	message := strings.Repeat("m", 1<<20)
	before := residentMB(t, p)
	sent := 0
	for receivers := "2"; receivers == "2"; sent++ {
		require.Less(t, sent, 200, "200 MB wait for a client")
		r, err := publisher.do("PUBLISH", "news", message)
		require.NoError(t, err)
		receivers = r.text
		got, err := reader.read()
		require.NoError(t, err)
		require.Equal(t, message, got.items[2].text)
	}
	require.Greater(t, sent, 30, "32 MB may wait")
	require.Less(t, residentMB(t, p)-before, 400)
	r, err := publisher.do("PUBLISH", "news", "end")
	require.NoError(t, err)
	require.Equal(t, "1", r.text)
	for err == nil { // what was on its way, and the end
		_, err = slow.read()
	}
}

func TestServerTakesConfigFromFileAndFlags(t *testing.T) {
	t.Parallel()
	bin := buildServer(t)
	dir := t.TempDir()
	file, logFile := filepath.Join(dir, "redis.conf"), filepath.Join(dir, "server log")
	text := fmt.Sprintf("# comment\n\nrequirepass 'from the file'\nmaxclients 77\nhz 50\nactivedefrag no\nslave-priority 7\nnosuch-directive 1\nlogfile \"%s/server l\\x6fg\"\n", dir)
	require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
	p := &process{t: t, bin: bin, port: freePort(t), dir: dir}
	p.startWith(logFile, file, "--maxclients", "88", "--cluster-enabled", "yes", "--loglevel", "verbose")
	l := connect(t, p.addr(), "2")
	for _, row := range [][]string{
		{"NOAUTH Authentication required.", "PING"},
		{"OK", "AUTH", "from the file"},
		{"PONG", "PING"},
	} {
		r, err := l.do(row[1:]...)
		require.NoError(t, err)
		require.Equal(t, row[0], r.text)
	}
	for name, want := range map[string]string{"maxclients": "88", "hz": "50", "cluster-enabled": "yes", "loglevel": "verbose", "port": p.port, "dir": dir, "requirepass": "from the file"} {
		r, err := l.do("CONFIG", "GET", name)
		require.NoError(t, err)
		require.Len(t, r.items, 2, name)
		require.Equal(t, want, r.items[1].text, name)
	}
	info, err := l.do("INFO", "server")
	require.NoError(t, err)
	require.Contains(t, info.text, "config_file:"+file)
	logged, err := os.ReadFile(logFile)
	require.NoError(t, err)
	require.Contains(t, string(logged), "nosuch-directive", "what is not known is a warning")
	require.Regexp(t, `(?m)^\d+:M \d\d \w{3} \d{4} \d\d:\d\d:\d\d\.\d{3} \* Ready to accept connections$`, string(logged), "scripts wait for this line")

	// CONFIG REWRITE keeps what is there, and the next start knows what was set.
	for _, args := range [][]string{{"CONFIG", "SET", "hz", "99", "replica-priority", "8"}, {"CONFIG", "REWRITE"}} {
		r, err := l.do(args...)
		require.NoError(t, err)
		require.Equal(t, "OK", r.text, "%q", args)
	}
	require.NoError(t, p.stop())
	rewritten, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, strings.NewReplacer("hz 50", "hz 99", "slave-priority 7", "replica-priority 8").Replace(text), string(rewritten))
}

// startWith starts the process with a first argument and flags, and waits for its
// log file to say that it is ready.
func (p *process) startWith(logFile string, args ...string) {
	p.t.Helper()
	p.launch(append(args, "--port", p.port, "--bind", "127.0.0.1", "--dir", p.dir)...)
	p.t.Cleanup(p.kill)
	require.Eventually(p.t, func() bool {
		text, _ := os.ReadFile(logFile)
		return strings.Contains(string(text), "Ready to accept connections")
	}, 20*time.Second, 10*time.Millisecond, "%s", &p.log)
}

// A member that ends, well or not, is the same member with the same slots when it
// starts again with its folder, also at another port.
func TestServerKeepsIdentityAndSlots(t *testing.T) {
	t.Parallel()
	all := cluster(t, buildServer(t), 3)
	p := all[1]
	id := p.id()
	slots := slotsOf(t, all[0], id)
	require.Positive(t, slots)
	key := "" // of a slot of p
	for i := 0; key == ""; i++ {
		if k := fmt.Sprint("key:", i); !p.do("SET", k, "v").isError() {
			key = k
		}
	}
	for name, end := range map[string]func(){
		"SIGTERM": func() { require.NoError(t, p.stop()) },
		"SIGKILL": func() { p.kill() },
		"SIGKILL, and another port": func() {
			p.kill()
			p.port = freePort(t)
		},
	} {
		t.Run(name, func(t *testing.T) {
			end()
			p.log = lockedBuffer{}
			p.start()
			require.Equal(t, id, p.id())
			for _, x := range all {
				require.Eventually(t, func() bool {
					return strings.Contains(x.do("CLUSTER", "INFO").text, "cluster_state:ok") && strings.Contains(x.do("CLUSTER", "NODES").text, id+" "+p.addr()+"@")
				}, 30*time.Second, 20*time.Millisecond)
				require.Equal(t, slots, slotsOf(t, x, id))
			}
			require.Eventually(t, func() bool { return p.do("SET", key, "v").text == "OK" }, 30*time.Second, 20*time.Millisecond)
			r := all[0].do("GET", key)
			require.Equal(t, "MOVED "+p.do("CLUSTER", "KEYSLOT", key).text+" "+p.addr(), r.text)
		})
	}
	healthy(t, all[2])
}
