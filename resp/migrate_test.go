package resp

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/slotmesh/slotmesh"
	"github.com/slotmesh/slotmesh/transport"
	"github.com/stretchr/testify/require"
)

// fakeRedis is a server that answers as a test wants it.
type fakeRedis struct {
	t      testing.TB
	l      net.Listener
	answer func(args []string) string // the reply as on the wire; "": hang up

	mu    sync.Mutex
	heard [][]string // guarded by mu
	conns atomic.Int32
	wg    sync.WaitGroup
}

func startFakeRedis(t testing.TB, answer func(args []string) string) *fakeRedis {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	f := &fakeRedis{t: t, l: l, answer: answer}
	f.wg.Go(func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			f.conns.Add(1)
			f.wg.Go(func() { f.serve(nc) })
		}
	})
	t.Cleanup(func() { l.Close() })
	return f
}

func (f *fakeRedis) serve(nc net.Conn) {
	defer nc.Close()
	r := newReader(nc, Limits{}, true)
	for {
		args, err := r.next()
		if err != nil {
			return
		}
		var words []string
		for _, a := range args {
			words = append(words, string(a))
		}
		f.mu.Lock()
		f.heard = append(f.heard, words)
		f.mu.Unlock()
		reply := f.answer(words)
		if reply == "" {
			return
		}
		io.WriteString(nc, reply)
	}
}

// commands are those heard, each by its name and, of RESTORE, whether REPLACE
// was among its arguments.
func (f *fakeRedis) commands() (out []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, words := range f.heard {
		name := strings.ToLower(words[0])
		if words[len(words)-1] == "REPLACE" {
			name += " replace"
		}
		out = append(out, name)
	}
	return out
}

// migrateTo is the command that moves a key to the fake.
func (f *fakeRedis) migrateTo(key string, options ...string) []string {
	host, port, err := net.SplitHostPort(f.l.Addr().String())
	require.NoError(f.t, err)
	return append([]string{"MIGRATE", host, port, key, "0", "500"}, options...)
}

func ok([]string) string { return "+OK\r\n" }

func TestMigrateOverPooledSockets(t *testing.T) {
	f := startFakeRedis(t, ok)
	s := startServer(t, func(cfg *Config) { cfg.Standalone = true })
	c := dial(t, s)
	c.do("SET a 1")
	c.do("SET b 2 PX 100000")
	require.Equal(t, "OK", c.do(f.migrateTo("a")...))
	require.Equal(t, "OK", c.do(f.migrateTo("b", "COPY")...))
	require.Equal(t, "NOKEY", c.do(f.migrateTo("a")...))
	require.Equal(t, "(nil)", c.do("GET a"))
	require.Equal(t, "2", c.do("GET b"), "COPY leaves it")
	require.Equal(t, []string{"select", "restore", "restore"}, f.commands(), "SELECT once")
	require.EqualValues(t, 1, f.conns.Load())
	require.Contains(t, c.do("INFO stats"), "migrate_cached_sockets:1\r\n")
	f.mu.Lock()
	require.Equal(t, "0", f.heard[1][2], "no time of expiry")
	ttl, err := strconv.Atoi(f.heard[2][2])
	f.mu.Unlock()
	require.NoError(t, err)
	require.InDelta(t, 100_000, ttl, 60_000)
}

func TestMigrateTellsWhatTheTargetRefuses(t *testing.T) {
	for _, row := range []struct {
		name   string
		refuse string // the command that is refused
		text   string
		args   []string
	}{
		{"the value", "RESTORE", "-ERR no room\r\n", nil},
		{"the login", "AUTH", "-WRONGPASS no\r\n", []string{"AUTH", "secret"}},
		{"the login of a user", "AUTH", "-WRONGPASS no\r\n", []string{"AUTH2", "me", "secret"}},
		{"the database", "SELECT", "-ERR DB index is out of range\r\n", nil},
	} {
		t.Run(row.name, func(t *testing.T) {
			f := startFakeRedis(t, func(args []string) string {
				if args[0] == row.refuse {
					return row.text
				}
				return "+OK\r\n"
			})
			c := dial(t, startServer(t, func(cfg *Config) { cfg.Standalone = true }))
			c.do("SET a 1")
			require.Equal(t, "ERR Target instance replied with error: "+strings.Trim(row.text, "-\r\n"), c.do(f.migrateTo("a", row.args...)...))
			require.Equal(t, "1", c.do("GET a"))
		})
	}
}

func TestMigrateReplacesAConnectionThatHasDied(t *testing.T) {
	hangUp := atomic.Bool{}
	f := startFakeRedis(t, func(args []string) string {
		if args[0] == "RESTORE" && hangUp.Swap(false) {
			return ""
		}
		return "+OK\r\n"
	})
	s := startServer(t, func(cfg *Config) { cfg.Standalone = true })
	c := dial(t, s)
	c.do("SET a 1")
	c.do("SET b 1")
	require.Equal(t, "OK", c.do(f.migrateTo("a")...))
	// The target has closed it meanwhile: nothing was sent over it.
	target := s.sockets.target(f.l.Addr().String())
	target.mu.Lock()
	target.conn.Close()
	target.mu.Unlock()
	require.Equal(t, "OK", c.do(f.migrateTo("b")...))
	require.EqualValues(t, 2, f.conns.Load())
	// The target ends it when the value has been sent.
	c.do("SET c 1")
	hangUp.Store(true)
	require.Equal(t, "OK", c.do(f.migrateTo("c")...))
	require.EqualValues(t, 3, f.conns.Load())
	require.Equal(t, "(nil)", c.do("GET c"))
}

// A key that is written while it is being sent is sent again, one that is deleted
// is taken back, and clients' writes wait.
func TestMigrateOfAKeyThatChanges(t *testing.T) {
	for _, row := range []struct {
		name   string
		change func(client *slotmesh.Client) error
		sent   string
	}{
		{"not at all", func(*slotmesh.Client) error { return nil }, "select restore"},
		{"written", func(client *slotmesh.Client) error { return client.Set(context.Background(), "k", []byte("new")) }, "select restore restore replace"},
		{"deleted", func(client *slotmesh.Client) error {
			_, err := client.Delete(context.Background(), "k")
			return err
		}, "select restore asking del"},
	} {
		t.Run(row.name, func(t *testing.T) {
			sending, goOn := make(chan struct{}), make(chan struct{})
			once := sync.Once{}
			f := startFakeRedis(t, func(args []string) string {
				if args[0] == "RESTORE" {
					once.Do(func() {
						close(sending)
						<-goOn
					})
				}
				return "+OK\r\n"
			})
			s := startServer(t, func(cfg *Config) { cfg.Standalone = true })
			c, other := dial(t, s), dial(t, s)
			c.do("SET k old")
			c.send(append(f.migrateTo("k")[:5], "60000")...)
			<-sending
			require.Equal(t, "old", other.do("GET k"), "reads go on")
			other.send("APPEND k x")
			require.NoError(t, row.change(s.node.Client()))
			close(goOn)
			require.Equal(t, "OK", c.read())
			require.Equal(t, "1", other.read(), "it has waited, and finds no key")
			require.Equal(t, row.sent, strings.Join(f.commands(), " "))
		})
	}
}

// pair is two members of a cluster whose clients' ports are on loopback. What
// goes to the second goes through a wire that a test may cut.
type pair struct {
	a, b *Server
	wire *wire
	key  string // a's
}

func newPair(t testing.TB, limits ...Limits) *pair {
	t.Helper()
	return newPairWithin(t, 2*time.Second, limits...)
}

// newPairWithin is newPair with another NodeTimeout.
func newPairWithin(t testing.TB, nodeTimeout time.Duration, limits ...Limits) *pair {
	t.Helper()
	limits = append(limits, Limits{})
	mem := transport.NewMemory()
	la, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	lb, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	w := newWire(t, lb.Addr().String())
	start := func(name, clientAddr string, l net.Listener) *Server {
		node, err := slotmesh.Start(context.Background(), slotmesh.Config{Addr: name, Transport: mem, ClientAddr: clientAddr,
			Seeds: []string{"a:1", "b:1"}, Primaries: 2, NodeTimeout: nodeTimeout})
		require.NoError(t, err)
		t.Cleanup(func() { node.Close() })
		s, err := Start(context.Background(), Config{Node: node, Listener: l, Limits: limits[0]})
		require.NoError(t, err)
		t.Cleanup(func() { s.Close() })
		return s
	}
	p := &pair{a: start("a:1", la.Addr().String(), la), b: start("b:1", w.addr(), lb), wire: w}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	require.NoError(t, p.a.node.Ready(ctx))
	require.NoError(t, p.b.node.Ready(ctx))
	for i := 0; p.key == ""; i++ {
		k := fmt.Sprintf("{%d}", i)
		if o, ok := p.a.node.Table().Owner(slotmesh.KeySlot(k)); ok && o.Self {
			p.key = k
		}
	}
	return p
}

// open opens the slot: from then on keys that are not at a are at b.
func (p *pair) open(t *testing.T) {
	t.Helper()
	slot := slotmesh.KeySlot(p.key)
	require.NoError(t, p.b.node.Admin().SetSlotImporting(t.Context(), slot, p.a.node.ID()))
	require.NoError(t, p.a.node.Admin().SetSlotMigrating(t.Context(), slot, p.b.node.ID()))
}

// migrate is MIGRATE of keys from a to b.
func (p *pair) migrate(options ...string) []string {
	host, port, _ := net.SplitHostPort(p.wire.addr())
	return append([]string{"MIGRATE", host, port, "", "0", "400"}, options...)
}

// counts are the keys of the slot at a and at b.
func (p *pair) counts(t *testing.T) string {
	t.Helper()
	slot := slotmesh.KeySlot(p.key)
	a, err := p.a.node.CountKeys(slot)
	require.NoError(t, err)
	b, err := p.b.node.CountKeys(slot)
	require.NoError(t, err)
	return fmt.Sprint(a, " ", b)
}

// wire passes bytes on between those who connect to it and a server.
type wire struct {
	l    net.Listener
	to   string
	wg   sync.WaitGroup
	mute func(sent string) bool // whether nothing comes back over a connection any more, asked with each piece that is sent
	mu   sync.Mutex
}

func newWire(t testing.TB, to string) *wire {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	w := &wire{l: l, to: to}
	w.wg.Go(func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			w.wg.Go(func() { w.pass(nc) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		w.wg.Wait()
	})
	return w
}

func (w *wire) addr() string { return w.l.Addr().String() }

func (w *wire) setMute(f func(sent string) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mute = f
}

func (w *wire) pass(nc net.Conn) {
	defer nc.Close()
	server, err := net.Dial("tcp", w.to)
	if err != nil {
		return
	}
	defer server.Close()
	var mute atomic.Bool
	w.wg.Go(func() {
		defer nc.Close()
		b := make([]byte, 64<<10)
		for {
			n, err := server.Read(b)
			if err != nil {
				return
			}
			if !mute.Load() {
				nc.Write(b[:n])
			}
		}
	})
	r := bufio.NewReaderSize(nc, 64<<10)
	b := make([]byte, 64<<10)
	for {
		n, err := r.Read(b)
		if err != nil {
			return
		}
		w.mu.Lock()
		f := w.mute
		w.mu.Unlock()
		if f != nil && f(string(b[:n])) {
			mute.Store(true)
		}
		server.Write(b[:n])
	}
}

func TestMigrateToAMember(t *testing.T) {
	p := newPair(t)
	c := dial(t, p.a)
	c.do("SET", p.key+"1", "one")
	c.do("RPUSH", p.key+"2", "x", "y")
	p.open(t)
	require.Equal(t, "OK", c.do(p.migrate("KEYS", p.key+"1", p.key+"2", p.key+"none")...))
	require.Equal(t, "0 2", p.counts(t))
	require.Equal(t, "NOKEY", c.do(p.migrate("KEYS", p.key+"1")...))
	d := dial(t, p.b)
	d.do("ASKING")
	require.Equal(t, "[x y]", d.do("LRANGE", p.key+"2", "0", "-1"))
	require.Contains(t, d.do("INFO commandstats"), "cmdstat_slotmesh.commit:calls=1,")
}

// A value as DUMP writes it may be longer than any argument, and a string of the
// greatest length is.
func TestMigrateOfAValueThatIsLongerThanAnArgument(t *testing.T) {
	const bulk = 1 << 20
	p := newPair(t, Limits{Bulk: bulk})
	c, d := dial(t, p.a), dial(t, p.b)
	value := strings.Repeat("v", bulk)
	c.do("SET", p.key+"1", value)
	c.do("RPUSH", p.key+"2", value, value)
	p.open(t)
	migrate := p.migrate("KEYS", p.key+"1", p.key+"2")
	migrate[5] = "20000"
	require.Equal(t, "OK", c.do(migrate...))
	require.Equal(t, "0 2", p.counts(t))
	d.do("ASKING")
	require.Equal(t, value, d.do("GET", p.key+"1"))
	d.do("ASKING")
	require.Equal(t, "["+value+" "+value+"]", d.do("LRANGE", p.key+"2", "0", "-1"))
}

// What is over the bound of all that waits for COMMIT stays where it is, and the
// error says which it is.
func TestMigrateOfMoreThanTheTargetKeeps(t *testing.T) {
	p := newPair(t, Limits{Bulk: 1 << 20, Queue: 2 << 20})
	c := dial(t, p.a)
	value := strings.Repeat("v", 1<<20)
	c.do("SET", p.key+"1", value)
	c.do("SET", p.key+"2", value)
	p.open(t)
	require.Regexp(t, `^ERR Target instance replied with error: ERR key '.*2': a value of \d+ bytes and the \d+ before it are more than the 2097152 that wait for a commit$`, c.do(p.migrate("KEYS", p.key+"1", p.key+"2")...))
	require.Equal(t, "2 0", p.counts(t))
	require.Equal(t, "OK", c.do(p.migrate("KEYS", p.key+"1")...))
	require.Equal(t, "OK", c.do(p.migrate("KEYS", p.key+"2")...))
}

func TestMigrateToARedisThatTakesNoSuchValue(t *testing.T) {
	for _, row := range []struct{ says, want string }{
		{"*2\r\n$18\r\nproto-max-bulk-len\r\n$7\r\n1048576\r\n", "ERR key 'k': its value has 1048592 bytes as DUMP writes it, more than the 1048576 (proto-max-bulk-len) that the target takes"},
		{"*2\r\n$18\r\nproto-max-bulk-len\r\n$9\r\n536870912\r\n", "IOERR error or timeout reading to target instance"},
		{"-ERR unknown command\r\n", "IOERR error or timeout reading to target instance"},
		{"*0\r\n", "IOERR error or timeout reading to target instance"},
	} {
		f := startFakeRedis(t, func(args []string) string {
			switch args[0] {
			case "RESTORE":
				return ""
			case "CONFIG":
				return row.says
			}
			return "+OK\r\n"
		})
		c := dial(t, startServer(t, func(cfg *Config) { cfg.Standalone = true }))
		c.do("SET", "k", strings.Repeat("v", 1<<20))
		require.Equal(t, row.want, c.do(f.migrateTo("k")...), row.says)
		require.Equal(t, "1", c.do("EXISTS", "k"))
	}
}

// The cost of a value does not grow with those before it.
func TestPreparedValuesAreCountedOnce(t *testing.T) {
	var p prepared
	args := [][]byte{nil, []byte("k"), []byte("0"), []byte("v")}
	one := queuedOverhead + 3
	for range 3 {
		require.NoError(t, p.add(args, 3*one))
	}
	require.Equal(t, 3*one, p.bytes)
	require.EqualError(t, p.add(args, 3*one), "ERR key 'k': a value of 67 bytes and the 201 before it are more than the 201 that wait for a commit")
	require.Len(t, p.values, 3)
	require.Nil(t, args[0], "the caller's arguments stay as they are")
}

func TestMigrateDoesNotOverwriteWhatIsNotItsOwn(t *testing.T) {
	p := newPair(t)
	c, d := dial(t, p.a), dial(t, p.b)
	c.do("SET", p.key, "ours")
	p.open(t)
	d.do("ASKING")
	require.Equal(t, "OK", d.do("SET", p.key, "theirs"))
	require.Equal(t, "ERR Target instance replied with error: BUSYKEY Target key name already exists.", c.do(p.migrate("KEYS", p.key)...))
	require.Equal(t, "ours", c.do("GET", p.key))
	require.Equal(t, "OK", c.do(p.migrate("REPLACE", "KEYS", p.key)...))
	d.do("ASKING")
	require.Equal(t, "ours", d.do("GET", p.key))
}

// Whatever is lost on the way, a key is on one side and a retry works.
func TestMigrateWhoseAnswersAreLost(t *testing.T) {
	for _, row := range []struct {
		name   string
		lose   string // from this command on nothing comes back
		for2nd bool   // over later connections neither
		want   string
		counts string
	}{
		{"to PREPARE", prepareName, false, "IOERR error or timeout reading to target instance", "2 0"},
		{"to PREPARE, for good", prepareName, true, "IOERR error or timeout reading to target instance", "2 0"},
		{"to COMMIT: the target is asked", commitName, false, "OK", "0 2"},
	} {
		t.Run(row.name, func(t *testing.T) {
			p := newPair(t)
			c := dial(t, p.a)
			keys := []string{"KEYS", p.key + "1", p.key + "2"}
			c.do("SET", keys[1], "1")
			c.do("SET", keys[2], "2")
			p.open(t)
			lost := false
			p.wire.setMute(func(sent string) bool {
				hit := strings.Contains(sent, row.lose) && (row.for2nd || !lost)
				lost = lost || hit
				return hit
			})
			require.Equal(t, row.want, c.do(p.migrate(keys...)...))
			require.Equal(t, row.counts, p.counts(t))
			p.wire.setMute(nil)
			if row.want != "OK" {
				require.Equal(t, "OK", c.do(p.migrate(keys...)...))
			}
			require.Equal(t, "0 2", p.counts(t))
		})
	}
}

// Where the target cannot be asked either, its copy is known as this server's at
// the next try, and does not stand in the way; the newer value wins.
func TestMigrateAfterAnUnknownOutcome(t *testing.T) {
	p := newPair(t)
	c, d := dial(t, p.a), dial(t, p.b)
	c.do("SET", p.key, "old")
	p.open(t)
	p.wire.setMute(func(sent string) bool { return strings.Contains(sent, commitName) })
	require.Equal(t, "IOERR error or timeout reading to target instance", c.do(p.migrate("KEYS", p.key)...))
	require.Equal(t, "1 1", p.counts(t), "the source serves the key, and nobody is sent to the copy")
	require.Equal(t, "old", c.do("GET", p.key))
	require.Equal(t, "OK", c.do("SET", p.key, "new"))
	p.wire.setMute(nil)
	require.Equal(t, "OK", c.do(p.migrate("KEYS", p.key)...))
	require.Equal(t, "0 1", p.counts(t))
	d.do("ASKING")
	require.Equal(t, "new", d.do("GET", p.key))
}

// What comes late over a connection that was given up is not taken.
func TestCommitThatComesLateIsRefused(t *testing.T) {
	p := newPair(t)
	c := dial(t, p.a)
	c.do("SET", p.key, "v")
	p.open(t)
	payload := c.do("DUMP", p.key)
	self := p.a.node.ID().String()
	late, newer := dial(t, p.b), dial(t, p.b)
	require.Equal(t, "QUEUED", late.do(prepareName, self, p.key, "0", payload))
	require.Equal(t, "[]", newer.do(commitName, self))
	require.Equal(t, "ERR another connection of this member has taken over", late.do(commitName, self))
	require.Equal(t, "1 0", p.counts(t))
	require.Equal(t, "QUEUED", newer.do(prepareName, self, p.key, "0", payload))
	require.Equal(t, "[OK]", newer.do(commitName, self))
	require.Equal(t, "1 1", p.counts(t))
}

// O74, redis/redis#15261, #6135: what redis-cli --user adds to the keys is not one.
func TestMigrateKeysWithAFiller(t *testing.T) {
	for _, row := range []struct {
		keys []string
		want int
	}{
		{[]string{"a", "{a}b", ""}, 2},
		{[]string{"a", ""}, 1},
		{[]string{""}, 1},          // the key that has no name
		{[]string{"", "a"}, 2},     // at the beginning it is one
		{[]string{"{06S}", ""}, 2}, // of the same slot: it may be one
		{[]string{"a", "", "{a}b"}, 3},
	} {
		args := [][]byte{[]byte("MIGRATE"), []byte("h"), []byte("1"), nil, []byte("0"), []byte("1"), []byte("KEYS")}
		for _, k := range row.keys {
			args = append(args, []byte(k))
		}
		at, err := migrateKeys(args)
		if err != nil || len(at) != row.want {
			t.Errorf("%q: %d keys, %v, want %d", row.keys, len(at), err, row.want)
		}
	}
}

// A key in its place and KEYS too is for MIGRATE to refuse: it has no keys that
// could lead elsewhere. A password may be any word.
func TestMigrateFindsItsKeys(t *testing.T) {
	for _, row := range []struct {
		call string
		want []int
	}{
		{"MIGRATE h 1 k 0 1", []int{3}},
		{"MIGRATE h 1 k 0 1 COPY AUTH KEYS", []int{3}},
		{"MIGRATE h 1 k 0 1 AUTH2 KEYS KEYS REPLACE", []int{3}},
		{"MIGRATE h 1 k 0 1 KEYS a b", nil},
		{"MIGRATE h 1 k 0 1 KEYS", nil},
		{"MIGRATE h 1 _ 0 1 KEYS a b", []int{7, 8}},
		{"MIGRATE h 1 _ 0 1 AUTH keys KEYS a", []int{9}},
	} {
		args := bytes.Fields([]byte(row.call))
		if string(args[3]) == "_" {
			args[3] = nil
		}
		at, err := migrateKeys(args)
		require.NoError(t, err)
		require.Equal(t, row.want, at, row.call)
	}
}
