package resp

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/slotmesh/slotmesh"
	"github.com/stretchr/testify/require"
)

// startServer serves a node that owns every slot.
func startServer(t testing.TB, change ...func(*Config)) *Server {
	t.Helper()
	node, err := slotmesh.Start(context.Background(), slotmesh.Config{Store: storeOf(t)})
	require.NoError(t, err)
	t.Cleanup(func() { node.Close() })
	cfg := Config{Node: node, Addr: "127.0.0.1:0"}
	for _, f := range change {
		f(&cfg)
	}
	s, err := Start(context.Background(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

// testClient speaks to a server and reads replies as text: "OK", "(nil)",
// "[a b]", "ERR …".
type testClient struct {
	t  testing.TB
	nc net.Conn
	r  *bufio.Reader
}

func dial(t testing.TB, s *Server) *testClient {
	t.Helper()
	nc, err := net.Dial("tcp", s.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { nc.Close() })
	nc.SetDeadline(time.Now().Add(30 * time.Second))
	return &testClient{t, nc, bufio.NewReader(nc)}
}

// send sends a command: a line of words, or the words.
func (c *testClient) send(words ...string) {
	c.t.Helper()
	if len(words) == 1 {
		words = strings.Fields(words[0])
	}
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(words))
	for _, w := range words {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(w), w)
	}
	_, err := io.WriteString(c.nc, b.String())
	require.NoError(c.t, err)
}

func (c *testClient) do(words ...string) string {
	c.t.Helper()
	c.send(words...)
	return c.read()
}

// read reads one reply.
func (c *testClient) read() string {
	c.t.Helper()
	line, err := c.r.ReadString('\n')
	require.NoError(c.t, err)
	line = strings.TrimSuffix(line, "\r\n")
	n, _ := strconv.Atoi(line[1:])
	switch line[0] {
	case '$', '=':
		if n < 0 {
			return "(nil)"
		}
		b := make([]byte, n+2)
		_, err := io.ReadFull(c.r, b)
		require.NoError(c.t, err)
		return string(b[:n])
	case '_':
		return "(nil)"
	case '*', '~', '>', '%':
		if n < 0 {
			return "(nil)"
		}
		if line[0] == '%' {
			n *= 2
		}
		items := make([]string, n)
		for i := range items {
			items[i] = c.read()
		}
		sign := ""
		if line[0] == '>' {
			sign = ">"
		}
		return sign + "[" + strings.Join(items, " ") + "]"
	}
	return line[1:]
}

// closed reports whether the server has ended the connection.
func (c *testClient) closed() bool {
	_, err := c.r.ReadByte()
	return err != nil
}

// check does commands in order: each row is a command and its reply.
func (c *testClient) check(rows ...[2]string) {
	c.t.Helper()
	for _, row := range rows {
		if got := c.do(row[0]); got != row[1] {
			c.t.Errorf("%s: %q, want %q", row[0], got, row[1])
		}
	}
}

// Scripts keep their place in a transaction, whether they name keys or not, and so do
// the commands that load and forget them. Replies of redis-server 7.0.
func TestScriptsInATransaction(t *testing.T) {
	const load, sha = "return redis.call('append', '{a}', ARGV[1])", "14f0bd5a2a5da46fc0b3aa3ef2bdcf2ccd5a9d3d"
	loaded := shaOf([]byte(load))
	for name, row := range map[string]struct {
		calls [][]string
		want  string
		value string // of {a}
	}{
		"before a write": {[][]string{{"EVAL", load, "0", "x"}, {"SET", "{a}", "2"}}, "[1 OK]", "2"},
		"behind a write": {[][]string{{"SET", "{a}", "2"}, {"EVAL", load, "0", "x"}, {"APPEND", "{a}", "y"}}, "[OK 2 3]", "2xy"},
		"alone":          {[][]string{{"EVAL", load, "0", "x"}, {"PING"}, {"EVAL", "return 1", "0"}, {"EVAL", load, "0", "y"}}, "[1 PONG 1 2]", "xy"},
		"without a key":  {[][]string{{"EVAL", "return 1", "0"}, {"EVAL", "return 2", "0"}}, "[1 2]", "(nil)"},
		"loaded":         {[][]string{{"SCRIPT", "LOAD", load}, {"EVALSHA", loaded, "1", "{a}", "x"}, {"EVALSHA", loaded, "0", "y"}}, "[" + loaded + " 1 2]", "xy"},
		"before it is loaded": {[][]string{{"EVALSHA", loaded, "1", "{a}", "x"}, {"SCRIPT", "EXISTS", loaded}, {"EVAL", load, "0", "y"}, {"SCRIPT", "EXISTS", loaded}, {"EVALSHA", loaded, "1", "{a}", "z"}},
			"[" + string(errNoScript) + " [0] 1 [1] 2]", "yz"},
		"forgotten": {[][]string{{"SCRIPT", "LOAD", load}, {"SCRIPT", "FLUSH"}, {"EVALSHA", loaded, "1", "{a}", "x"}, {"SCRIPT", "EXISTS", loaded}, {"SCRIPT", "FLUSH", "x"}, {"EVAL", load, "1", "{a}", "x"}, {"SCRIPT", "EXISTS", loaded}},
			"[" + loaded + " OK " + string(errNoScript) + " [0] ERR SCRIPT FLUSH only support SYNC|ASYNC option 1 [1]]", "x"},
		"around all keys": {[][]string{{"EVAL", load, "0", "x"}, {"FLUSHALL"}, {"EVAL", load, "0", "y"}, {"EVALSHA", sha, "0"}}, "[1 OK 1 " + string(errNoScript) + "]", "y"},
		"wrong":           {[][]string{{"SCRIPT", "LOAD", "return ("}, {"EVAL", load, "-1"}, {"EVAL", load, "0", "x"}}, "", "x"},
		"in other slots":  {[][]string{{"SET", "{a}", "x"}, {"EVAL", "return redis.pcall('get', '{b}').err", "0"}}, "[OK ERR Script attempted to access keys that do not hash to the same slot: it is one step under the lock of slot 15495, with the transaction that it is in, and the key is in slot 3300]", "x"},
	} {
		t.Run(name, func(t *testing.T) {
			c := dial(t, startServer(t))
			require.Equal(t, "OK", c.do("MULTI"))
			for _, call := range row.calls {
				require.Equal(t, "QUEUED", c.do(call...), "%q", call)
			}
			if got := c.do("EXEC"); row.want != "" {
				require.Equal(t, row.want, got)
			} else {
				require.Regexp(t, `^\[ERR Error compiling script .* ERR Number of keys can't be negative 1\]$`, got)
			}
			require.Equal(t, row.value, c.do("GET {a}"))
		})
	}
}

// Nobody sees what a transaction of scripts has half done.
func TestScriptsInATransactionAreOneStep(t *testing.T) {
	s := startServer(t)
	c, other := dial(t, s), dial(t, s)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 300 {
			c.send("MULTI")
			c.send("EVAL", "return redis.call('incr', 'k')", "0")
			c.send("EVAL", "return redis.call('incr', 'k')", "0")
			c.send("EXEC")
			for range 4 {
				c.read()
			}
		}
	}()
	for range 300 {
		if n, _ := strconv.Atoi(other.do("GET k")); n%2 != 0 {
			t.Errorf("another client sees %d", n)
			break
		}
	}
	<-done
	require.Equal(t, "600", other.do("GET k"))
}

func TestTransaction(t *testing.T) {
	c := dial(t, startServer(t))
	c.check([][2]string{
		{"EXEC", "ERR EXEC without MULTI"},
		{"DISCARD", "ERR DISCARD without MULTI"},
		{"MULTI", "OK"},
		{"MULTI", "ERR MULTI calls can not be nested"},
		{"SET {a}1 x", "QUEUED"},
		{"INCR {a}1", "QUEUED"},
		{"GET {a}1", "QUEUED"},
		{"PING", "QUEUED"},
		{"EXEC", "[OK ERR value is not an integer or out of range x PONG]"},
		{"GET {a}1", "x"},
		{"MULTI", "OK"},
		{"SET {a}1 y", "QUEUED"},
		{"NOSUCH", "ERR unknown command 'NOSUCH', with args beginning with: "},
		{"EXEC", "EXECABORT Transaction discarded because of previous errors."},
		{"GET {a}1", "x"},
		{"MULTI", "OK"},
		{"SET {a}1 y", "QUEUED"},
		{"DISCARD", "OK"},
		{"GET {a}1", "x"},
		{"MULTI", "OK"},
		{"SET a 1", "QUEUED"},
		{"SET b 1", "QUEUED"},
		{"EXEC", "CROSSSLOT Keys in request don't hash to the same slot"},
		{"MULTI", "OK"},
		{"SLOWLOG RESET", "QUEUED"}, // not RESET
		{"SET {a}1 1", "QUEUED"},
		{"FLUSHALL", "QUEUED"},
		{"SET {a}2 2", "QUEUED"}, // after it
		{"DBSIZE", "QUEUED"},
		{"EXEC", "[OK OK OK OK 1]"},
		{"EXISTS {a}1 {a}2", "1"},
		{"MULTI", "OK"},
		{"GET {a}1", "QUEUED"},
		{"GET {b}1", "QUEUED"},
		{"GET", "ERR wrong number of arguments for 'get' command"},
		{"EXEC", "CROSSSLOT Keys in request don't hash to the same slot"},
		{"MULTI", "OK"},
		{"GET {a}1", "QUEUED"},
		{"SPUBLISH {b}1 x", "QUEUED"},
		{"COMMAND NOSUCH", "ERR unknown subcommand 'NOSUCH'. Try COMMAND HELP."},
		{"EXEC", "CROSSSLOT Keys in request don't hash to the same slot"},
		{"MULTI", "OK"},
		{"UNWATCH", "QUEUED"},
		{"ZUNIONSTORE {a}z x {a}1", "QUEUED"}, // EXEC says what is wrong with it
		{"EVAL x 7", "QUEUED"},
		{"EXEC", "[OK ERR value is not an integer or out of range ERR Number of keys can't be greater than number of args]"},
		{"MULTI", "OK"},
		{"EXEC x", "EXECABORT Transaction discarded because of: wrong number of arguments for 'exec' command"},
		{"EXEC", "ERR EXEC without MULTI"},
		{"EXEC x", "EXECABORT Transaction discarded because of: wrong number of arguments for 'exec' command"},
		{"MULTI", "OK"},
		{"EXEC", "[]"},
	}...)
}

func TestWatchedKeyThatChangesAbortsExec(t *testing.T) {
	s := startServer(t)
	c, other := dial(t, s), dial(t, s)
	for _, row := range []struct{ change, exec string }{
		{"GET {a}k", "[OK]"},
		{"SET {a}other v", "[OK]"},
		{"SET {a}k w", "(nil)"},
		{"DEL {a}k", "(nil)"},
		{"PEXPIRE {a}k 1", "(nil)"},
	} {
		c.check([2]string{"SET {a}k v", "OK"}, [2]string{"WATCH {a}k", "OK"})
		other.do(row.change)
		if strings.HasPrefix(row.change, "PEXPIRE") {
			require.Eventually(t, func() bool { return other.do("EXISTS {a}k") == "0" }, 5*time.Second, time.Millisecond)
		}
		c.check([2]string{"MULTI", "OK"}, [2]string{"SET {a}done 1", "QUEUED"})
		if got := c.do("EXEC"); got != row.exec {
			t.Errorf("after %s: %s, want %s", row.change, got, row.exec)
		}
	}
	c.check([2]string{"WATCH {a}k", "OK"}, [2]string{"UNWATCH", "OK"})
	other.do("SET {a}k z")
	c.check([2]string{"MULTI", "OK"}, [2]string{"EXEC", "[]"}, [2]string{"MULTI", "OK"},
		[2]string{"WATCH {a}k", "ERR WATCH inside MULTI is not allowed"}, [2]string{"DISCARD", "OK"})
}

func TestBlockedClientsAreServedInOrder(t *testing.T) {
	s := startServer(t)
	first, second, third, pusher := dial(t, s), dial(t, s), dial(t, s), dial(t, s)
	for i, c := range []*testClient{first, second, third} {
		c.send("BLPOP q 20")
		require.Eventually(t, func() bool { return s.blocked.waiting() == i+1 }, 5*time.Second, time.Millisecond)
	}
	pusher.check([2]string{"RPUSH q a b", "2"})
	require.Equal(t, "[q a]", first.read())
	require.Equal(t, "[q b]", second.read())
	pusher.check([2]string{"SET other x", "OK"}, [2]string{"RPUSH q c", "1"})
	require.Equal(t, "[q c]", third.read())
	pusher.check([2]string{"LLEN q", "0"}, [2]string{"BLPOP q 0.01", "(nil)"},
		[2]string{"MULTI", "OK"}, [2]string{"BLPOP q 0", "QUEUED"}, [2]string{"EXEC", "[(nil)]"})
	require.Zero(t, s.blocked.waiting())
}

func TestBlockedClientThatGoesTakesNothing(t *testing.T) {
	s := startServer(t)
	gone, pusher := dial(t, s), dial(t, s)
	gone.send("BLPOP q 0")
	require.Eventually(t, func() bool { return s.blocked.waiting() == 1 }, 5*time.Second, time.Millisecond)
	gone.nc.Close()
	require.Eventually(t, func() bool { return s.blocked.waiting() == 0 }, 5*time.Second, time.Millisecond)
	pusher.check([2]string{"RPUSH q a", "1"}, [2]string{"LLEN q", "1"})
}

// What a client has sent while it was blocked is answered afterwards.
func TestCommandsBehindABlockedOne(t *testing.T) {
	s := startServer(t)
	c, pusher := dial(t, s), dial(t, s)
	c.send("BLPOP q 0")
	c.send("ECHO one")
	require.Eventually(t, func() bool { return s.blocked.waiting() == 1 }, 5*time.Second, time.Millisecond)
	c.send("ECHO two")
	pusher.check([2]string{"RPUSH q a", "1"})
	require.Equal(t, []string{"[q a]", "one", "two"}, []string{c.read(), c.read(), c.read()})
}

func TestMessagesReachSubscribers(t *testing.T) {
	s := startServer(t)
	sub, pub := dial(t, s), dial(t, s)
	sub.check([2]string{"SUBSCRIBE news", "[subscribe news 1]"}, [2]string{"PSUBSCRIBE n?w*", "[psubscribe n?w* 2]"},
		[2]string{"GET a", "ERR Can't execute 'get': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context"})
	pub.check([2]string{"PUBLISH news hello", "2"}, [2]string{"PUBLISH other x", "0"},
		[2]string{"PUBSUB CHANNELS", "[news]"}, [2]string{"PUBSUB NUMSUB news x", "[news 1 x 0]"}, [2]string{"PUBSUB NUMPAT", "1"})
	require.ElementsMatch(t, []string{"[message news hello]", "[pmessage n?w* news hello]"}, []string{sub.read(), sub.read()})
	sub.check([2]string{"UNSUBSCRIBE", "[unsubscribe news 1]"}, [2]string{"PUNSUBSCRIBE", "[punsubscribe n?w* 0]"}, [2]string{"UNSUBSCRIBE", "[unsubscribe (nil) 0]"}, [2]string{"GET a", "(nil)"})

	sub.check([2]string{"SSUBSCRIBE {a}1 {a}2", "[ssubscribe {a}1 1]"})
	require.Equal(t, "[ssubscribe {a}2 2]", sub.read())
	pub.check([2]string{"SPUBLISH {a}2 hi", "1"}, [2]string{"PUBLISH {a}2 hi", "0"}, [2]string{"PUBSUB SHARDNUMSUB {a}1", "[{a}1 1]"},
		[2]string{"SSUBSCRIBE a b", "CROSSSLOT Keys in request don't hash to the same slot"})
	require.Equal(t, "[smessage {a}2 hi]", sub.read())
}

// Under RESP3 a client that listens may call everything, and messages are pushes.
func TestSubscriberUnderRESP3(t *testing.T) {
	s := startServer(t)
	c := dial(t, s)
	c.do("HELLO 3")
	c.check([2]string{"SUBSCRIBE news", ">[subscribe news 1]"}, [2]string{"SET a 1", "OK"}, [2]string{"PUBLISH news x", "1"})
	require.Equal(t, ">[message news x]", c.read())
	c.check([2]string{"GET a", "1"})
}

func TestClientIsToldOfWhatItCaches(t *testing.T) {
	s := startServer(t)
	c, other := dial(t, s), dial(t, s)
	c.do("HELLO 3")
	c.check([2]string{"CLIENT TRACKING ON", "OK"}, [2]string{"GET a", "(nil)"})
	other.check([2]string{"SET a 1", "OK"}, [2]string{"SET a 2", "OK"})
	require.Equal(t, ">[invalidate [a]]", c.read())
	c.check([2]string{"GET a", "2"}, [2]string{"GET b", "(nil)"}) // once, until it is read again
	other.check([2]string{"DEL a", "1"})
	require.Equal(t, ">[invalidate [a]]", c.read())
	c.check([2]string{"CLIENT TRACKING OFF", "OK"})
	other.check([2]string{"SET b 1", "OK"})
	c.check([2]string{"PING", "PONG"})

	c.check([2]string{"CLIENT TRACKING ON BCAST PREFIX x: NOLOOP", "OK"}, [2]string{"SET x:own 1", "OK"})
	other.check([2]string{"SET y:1 1", "OK"}, [2]string{"SET x:1 1", "OK"})
	require.Equal(t, ">[invalidate [x:1]]", c.read())
	c.check([2]string{"CLIENT TRACKING OFF", "OK"}, [2]string{"CLIENT TRACKING ON OPTIN", "OK"}, [2]string{"GET m", "(nil)"},
		[2]string{"CLIENT CACHING YES", "OK"}, [2]string{"GET n", "(nil)"})
	other.check([2]string{"SET m 1", "OK"}, [2]string{"SET n 1", "OK"})
	require.Equal(t, ">[invalidate [n]]", c.read())
}

func TestInvalidationsGoToAnotherConnection(t *testing.T) {
	s := startServer(t)
	c, listener, other := dial(t, s), dial(t, s), dial(t, s)
	id := listener.do("CLIENT ID")
	listener.check([2]string{"SUBSCRIBE __redis__:invalidate", "[subscribe __redis__:invalidate 1]"})
	c.check([2]string{"CLIENT TRACKING ON REDIRECT " + id, "OK"}, [2]string{"GET a", "(nil)"}, [2]string{"CLIENT GETREDIR", id})
	other.check([2]string{"SET a 1", "OK"})
	require.Equal(t, "[message __redis__:invalidate [a]]", listener.read())
}

// A pipeline is answered whole and in order, however it is cut: at each byte, and
// into single bytes. What is written to a pipe is read as it was written.
func TestPipelineCutAnywhere(t *testing.T) {
	l := &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
	startServer(t, func(c *Config) { c.Listener = l })
	const text = "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$4\r\n\r\n$1\r\nGET k\r\n\r\n*0\r\nSET j \"a \\x42\"\n*2\r\n$3\r\nGET\r\n$1\r\nj\r\nMULTI\r\nPING\r\nEXEC\r\n*1\r\n!3\r\n"
	const want = "+OK\r\n$4\r\n\r\n$1\r\n+OK\r\n$3\r\na B\r\n+OK\r\n+QUEUED\r\n*1\r\n+PONG\r\n-ERR Protocol error: expected '$', got '!'\r\n"
	answer := func(pieces ...string) string {
		nc := l.dial()
		defer nc.Close()
		nc.SetDeadline(time.Now().Add(30 * time.Second))
		go func() {
			for _, p := range pieces {
				io.WriteString(nc, p)
			}
		}()
		all, err := io.ReadAll(nc)
		require.NoError(t, err)
		return string(all)
	}
	require.Equal(t, want, answer(strings.Split(text, "")...))
	for cut := range len(text) {
		require.Equal(t, want, answer(text[:cut], text[cut:]), "cut at %d", cut)
	}
}

func TestBytesThatAreNoCommandsEndTheConnection(t *testing.T) {
	s := startServer(t)
	for _, row := range [][2]string{
		{"*1\r\n!3\r\n", "ERR Protocol error: expected '$', got '!'"},
		{"*9999999999\r\n", "ERR Protocol error: invalid multibulk length"},
	} {
		c := dial(t, s)
		io.WriteString(c.nc, row[0])
		if got := c.read(); got != row[1] || !c.closed() {
			t.Errorf("%q: %q, want %q and the end", row[0], got, row[1])
		}
	}
	c := dial(t, s)
	io.WriteString(c.nc, "POST / HTTP/1.1\r\n")
	require.True(t, c.closed())
}

func TestPasswordComesFirst(t *testing.T) {
	s := startServer(t, func(c *Config) { c.Password = "secret" })
	c := dial(t, s)
	c.check([2]string{"GET a", "NOAUTH Authentication required."}, [2]string{"AUTH wrong", "WRONGPASS invalid username-password pair or user is disabled."},
		[2]string{"AUTH secret", "OK"}, [2]string{"GET a", "(nil)"})
}

func TestClientsOverTheLimitAreTurnedAway(t *testing.T) {
	s := startServer(t, func(c *Config) { c.Limits.Clients = 2 })
	a, b := dial(t, s), dial(t, s)
	a.check([2]string{"PING", "PONG"})
	b.check([2]string{"PING", "PONG"})
	require.Equal(t, "ERR max number of clients reached", dial(t, s).read())
	a.nc.Close()
	require.Eventually(t, func() bool { return len(s.clients()) == 1 }, 5*time.Second, time.Millisecond)
	dial(t, s).check([2]string{"PING", "PONG"})
}

// A client that asks and does not read holds up nobody, and is cut.
func TestClientThatDoesNotReadIsCut(t *testing.T) {
	s := startServer(t, func(c *Config) { c.Limits.WriteTime = 100 * time.Millisecond })
	slow, other := dial(t, s), dial(t, s)
	other.check([2]string{"SET a " + strings.Repeat("x", 1<<20), "OK"})
	go func() {
		for range 200 {
			if _, err := io.WriteString(slow.nc, "GET a\r\n"); err != nil {
				return
			}
		}
	}()
	require.Eventually(t, func() bool { return len(s.clients()) == 1 }, 10*time.Second, 5*time.Millisecond)
	other.check([2]string{"PING", "PONG"})
}

// For a client that does not read no more is held than what was to be written when
// it stopped: nothing that it asks for then is run.
func TestNothingIsRunForAClientThatDoesNotRead(t *testing.T) {
	l := &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
	s := startServer(t, func(c *Config) {
		c.Listener = l
		c.Limits.WriteTime = 50 * time.Millisecond
	})
	nc := l.dial()
	defer nc.Close()
	nc.SetDeadline(time.Now().Add(30 * time.Second))
	go io.WriteString(nc, strings.Repeat("ECHO "+strings.Repeat("x", 1000)+"\r\n", 1000))
	require.Eventually(t, func() bool { return s.stats.commands.Load() > 0 }, 10*time.Second, time.Millisecond)
	require.Eventually(t, func() bool { return len(s.clients()) == 0 }, 10*time.Second, time.Millisecond)
	require.LessOrEqual(t, s.stats.commands.Load(), int64(flushAt/1009+1))
	all, _ := io.ReadAll(nc)
	require.Empty(t, all)
}

// What a client is sent unasked waits for it up to a bound; one that does not read
// it is cut there, and holds up nobody.
func TestListenerThatDoesNotReadIsCut(t *testing.T) {
	l := &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
	s := startServer(t, func(c *Config) {
		c.Listener = l
		c.Limits.Push = 100_000
	})
	slow, fast := l.dial(), l.dial()
	defer slow.Close()
	defer fast.Close()
	other := &testClient{t, fast, bufio.NewReader(fast)}
	io.WriteString(slow, "SUBSCRIBE a\r\n")
	require.Equal(t, "[subscribe a 1]", (&testClient{t, slow, bufio.NewReader(slow)}).read())
	conn := s.clients()[0]
	for _, c := range s.clients() {
		if c.inPubSub() {
			conn = c
		}
	}
	most := 0
	for conn.ctx.Err() == nil {
		other.do("PUBLISH", "a", strings.Repeat("x", 1000))
		most = max(most, conn.pushes.waiting())
	}
	require.Greater(t, most, 90_000)
	require.LessOrEqual(t, most, 100_000)
	require.Eventually(t, func() bool { return len(s.clients()) == 1 }, 10*time.Second, time.Millisecond)
}

func TestCloseEndsBlockedAndListeningClients(t *testing.T) {
	s := startServer(t)
	blocked, listening := dial(t, s), dial(t, s)
	blocked.send("BLPOP q 0")
	listening.check([2]string{"SUBSCRIBE a", "[subscribe a 1]"})
	require.Eventually(t, func() bool { return s.blocked.waiting() == 1 }, 5*time.Second, time.Millisecond)
	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
	require.True(t, blocked.closed() && listening.closed())
}

// A client that waits hears when its slot is served no more, also where no key
// changes.
func TestBlockedClientHearsThatTheSlotHasGone(t *testing.T) {
	s := startServer(t)
	c := dial(t, s)
	c.send("BLPOP q 0")
	require.Eventually(t, func() bool { return s.blocked.waiting() == 1 }, 5*time.Second, time.Millisecond)
	var slots slotmesh.SlotSet
	slots.Add(slotmesh.KeySlot("q"))
	require.NoError(t, s.node.Admin().DelSlots(context.Background(), slots))
	require.Equal(t, "CLUSTERDOWN Hash slot not served", c.read())
}
