package resp

import (
	"context"
	"io"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/slotmesh/slotmesh"
	"github.com/stretchr/testify/require"
)

func TestStartSaysWhatIsMissing(t *testing.T) {
	node, err := slotmesh.Start(context.Background(), slotmesh.Config{})
	require.NoError(t, err)
	defer node.Close()
	run := func(*Call) error { return nil }
	conn := func(*Conn, [][]byte) error { return nil }
	for want, cfg := range map[string]Config{
		"resp: Config.Node is nil, expected a node that has been started":                        {Addr: "127.0.0.1:0"},
		`resp: Config.Addr is empty and Config.Listener nil, expected "host:port" or a listener`: {Node: node},
		`resp: command "x" is there twice, expected each name once`:                              {Node: node, Commands: []Command{{Name: "x", Arity: 1, Conn: conn}, {Name: "x", Arity: 1, Conn: conn}}},
		`resp: command "y" has neither Run nor Conn nor Sub, as a subcommand of "x"`:             {Node: node, Commands: []Command{{Name: "x", Arity: -2, Sub: []Command{{Name: "y", Arity: 2}}}}},
		`resp: command "x" has Run and no keys, expected First or Keys`:                          {Node: node, Commands: []Command{{Name: "x", Arity: 1, Flags: Write, Run: run}}},
		`resp: Limits.Output is -1, expected a positive number, or 0 for the default`:            {Node: node, Limits: Limits{Output: -1}},
	} {
		s, err := Start(context.Background(), cfg)
		require.Nil(t, s)
		require.EqualError(t, err, want)
	}
}

// What an application brings must not end the process.
func TestCommandThatPanicsIsAnError(t *testing.T) {
	s := startServer(t, func(c *Config) {
		c.Commands = []Command{
			{Name: "conn.panic", Arity: 1, Conn: func(*Conn, [][]byte) error { panic("no conn") }},
			{Name: "run.panic", Arity: 2, Flags: Write, First: 1, Last: 1, Step: 1, Run: func(c *Call) error {
				c.Reply.Simple("half")
				panic("no run")
			}},
		}
	})
	c := dial(t, s)
	c.check([2]string{"CONN.PANIC", "ERR the command panicked: no conn"}, [2]string{"RUN.PANIC k", "ERR the command panicked: no run"},
		[2]string{"MULTI", "OK"}, [2]string{"CONN.PANIC", "QUEUED"}, [2]string{"SET k v", "QUEUED"}, [2]string{"EXEC", "[ERR the command panicked: no conn OK]"},
		[2]string{"GET k", "v"})
}

// A listener may shake hands in its first write, and the client not at all.
func TestClientThatIsTurnedAwayHoldsNobodyUp(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := startServer(t, func(c *Config) { c.Listener, c.Limits.Clients = stuckListener{l}, 1 })
	c := dial(t, s)
	c.check([2]string{"PING", "PONG"})
	for range 10 {
		dial(t, s)
	}
	require.Eventually(t, func() bool { return s.stats.rejected.Load() == 10 }, 500*time.Millisecond, time.Millisecond)
	c.check([2]string{"PING", "PONG"})
}

// stuckListener accepts connections whose first bytes do not get away once one
// has been accepted.
type stuckListener struct{ net.Listener }

func (l stuckListener) Accept() (net.Conn, error) {
	nc, err := l.Listener.Accept()
	return stuckConn{nc}, err
}

type stuckConn struct{ net.Conn }

func (c stuckConn) Write(b []byte) (int, error) {
	if strings.HasPrefix(string(b), "-ERR max") {
		_, err := c.Conn.Read(make([]byte, 1)) // until the deadline
		return 0, err
	}
	return c.Conn.Write(b)
}

// Replies of redis-server 7.0.
func TestRemovalOfAllKeysIsToldToWhoCachesSome(t *testing.T) {
	s := startServer(t)
	c, all, self, other := dial(t, s), dial(t, s), dial(t, s), dial(t, s)
	for _, x := range []*testClient{c, all, self} {
		x.do("HELLO 3")
	}
	c.check([2]string{"CLIENT TRACKING ON", "OK"}, [2]string{"SET k 1", "OK"}, [2]string{"GET k", "1"})
	all.check([2]string{"CLIENT TRACKING ON BCAST", "OK"})
	self.check([2]string{"CLIENT TRACKING ON NOLOOP", "OK"})
	for range 2 {
		other.check([2]string{"FLUSHALL", "OK"})
		for _, x := range []*testClient{c, all, self} {
			require.Equal(t, ">[invalidate (nil)]", x.read())
		}
	}
	self.check([2]string{"FLUSHALL", "OK"})
	require.Equal(t, ">[invalidate (nil)]", self.read())
	require.Equal(t, ">[invalidate (nil)]", c.read())
	c.check([2]string{"GET k", "(nil)"})
	other.check([2]string{"SET k 2", "OK"})
	require.Equal(t, ">[invalidate [k]]", c.read())
}

// Who speaks RESP2 and does not listen would take an invalidation for a reply.
func TestInvalidationsGoOnlyToWhoListens(t *testing.T) {
	s := startServer(t)
	c, listener, other := dial(t, s), dial(t, s), dial(t, s)
	c.check([2]string{"CLIENT TRACKING ON REDIRECT " + listener.do("CLIENT ID"), "OK"}, [2]string{"GET k", "(nil)"})
	other.check([2]string{"SET k 1", "OK"})
	listener.check([2]string{"PING", "PONG"}, [2]string{"SUBSCRIBE __redis__:invalidate", "[subscribe __redis__:invalidate 1]"})
	c.check([2]string{"GET k", "1"})
	other.check([2]string{"FLUSHALL", "OK"})
	require.Equal(t, "[message __redis__:invalidate (nil)]", listener.read())
}

func TestScriptThatBeginsAnewPublishesOnce(t *testing.T) {
	s := startServer(t)
	sub, c := dial(t, s), dial(t, s)
	sub.check([2]string{"SUBSCRIBE news", "[subscribe news 1]"})
	require.Equal(t, "[1 1 OK 1]", c.do("EVAL", `local n = {}
		for i = 1, 2 do n[i] = redis.call('publish', 'news', i) end
		n[3] = redis.call('set', 'k', 1)
		n[4] = redis.call('publish', 'news', 3)
		return n`, "0"))
	for _, want := range []string{"1", "2", "3"} {
		require.Equal(t, "[message news "+want+"]", sub.read())
	}
	c.check([2]string{"PUBLISH news end", "1"})
	require.Equal(t, "[message news end]", sub.read())
}

// Any client may send what members send each other.
func TestValuesAreTakenFromMembersAlone(t *testing.T) {
	s := startServer(t)
	c := dial(t, s)
	for _, id := range []string{"x", s.node.ID().String(), strings.Repeat("0", 40)} {
		want := `ERR "` + id + `" is not the id of another member of this cluster`
		c.check([2]string{"slotmesh.prepare " + id + " k 0 v", want}, [2]string{"slotmesh.commit " + id, want})
	}
	require.Empty(t, s.importers.by)
}

// At the bound the connection that was used longest ago is closed.
func TestConnectionsToOtherServersAreBounded(t *testing.T) {
	var s sockets
	defer s.close()
	use := func(addr string) *target {
		t := s.hold(addr)
		s.release(t)
		return t
	}
	first := use("first")
	for i := range socketsMax - 1 {
		use(strings.Repeat("x", i+1))
	}
	require.Equal(t, socketsMax, s.count())
	first.used = first.used.Add(time.Second)
	s.by["x"].used = first.used.Add(-2 * time.Second)
	require.Same(t, first, use("first"), "one that is there needs no room")
	require.Equal(t, socketsMax, s.count())
	use("another")
	require.Equal(t, socketsMax, s.count())
	require.Nil(t, s.by["x"])
	require.Same(t, first, s.by["first"])
}

// Nobody closes a connection while it is used, and none outlives the server.
func TestConnectionsToOtherServersAreClosed(t *testing.T) {
	var s sockets
	held := s.hold("held")
	near, far := net.Pipe()
	defer far.Close()
	held.conn = near
	held.used = held.used.Add(-2 * socketIdle)
	s.release(s.hold("another"))
	require.Same(t, held, s.by["held"], "it is in use")
	s.close()
	require.Same(t, near, held.conn)
	s.release(held)
	require.Nil(t, held.conn)
	_, err := far.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
}

// Before a client has authenticated, no more replies are held for it than
// PreAuthOutput, and one more.
func TestRepliesBeforeAuthenticationAreBounded(t *testing.T) {
	const limit, commands = 200, 400
	l := &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
	startServer(t, func(c *Config) {
		c.Password, c.Listener = "secret", l
		c.Limits.PreAuthOutput = limit
	})
	nc := l.dial()
	defer nc.Close()
	nc.SetDeadline(time.Now().Add(30 * time.Second))
	go io.WriteString(nc, strings.Repeat("PING\r\n", commands)+"AUTH secret\r\n"+strings.Repeat("PING\r\n", commands)+"QUIT\r\n")
	noAuth := "-" + string(errNoAuth) + "\r\n"
	var all strings.Builder
	largest := map[bool]int{}
	buf := make([]byte, 1<<20)
	for {
		n, err := nc.Read(buf) // of a pipe: what is written at once
		if err != nil {
			break
		}
		all.Write(buf[:n])
		authed := strings.Contains(all.String(), "+OK\r\n")
		largest[authed] = max(largest[authed], n)
	}
	require.Equal(t, strings.Repeat(noAuth, commands)+"+OK\r\n"+strings.Repeat("+PONG\r\n", commands)+"+OK\r\n", all.String())
	require.GreaterOrEqual(t, largest[false], limit)
	require.Less(t, largest[false], limit+len(noAuth))
	require.Greater(t, largest[true], limit+len(noAuth))
}

// pipeListener accepts connections without a network.
type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (l *pipeListener) dial() net.Conn {
	near, far := net.Pipe()
	l.conns <- far
	return near
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	close(l.closed)
	return nil
}

func (l *pipeListener) Addr() net.Addr { return &net.TCPAddr{} }

// An application's command that writes no reply has an error for one, and no
// effect: its client would wait for ever, or take the next reply for this one.
func TestCommandWithoutReply(t *testing.T) {
	c := dial(t, startServer(t, func(c *Config) {
		c.Commands = []Command{
			{Name: "app.put", Arity: 2, Flags: Write, First: 1, Last: 1, Step: 1, Run: func(c *Call) error { return c.Tx.Put(c.Own(1), nil) }},
			{Name: "app.silent", Arity: 1, Conn: func(*Conn, [][]byte) error { return nil }},
			{Name: "app.hello", Arity: 1, Conn: func(c *Conn, _ [][]byte) error {
				c.Reply().Int(c.ID())
				return c.Context().Err()
			}},
		}
	}))
	const put, silent = "ERR the command 'app.put' has written no reply", "ERR the command 'app.silent' has written no reply"
	c.check([][2]string{
		{"APP.PUT a", put},
		{"EXISTS a", "0"},
		{"APP.SILENT", silent},
		{"APP.HELLO", c.do("CLIENT ID")},
		{"MULTI", "OK"},
		{"APP.PUT a", "QUEUED"},
		{"APP.SILENT", "QUEUED"},
		{"APP.HELLO", "QUEUED"},
		{"EXEC", "[" + put + " " + silent + " 1]"},
		{"PING", "PONG"},
	}...)
	require.Equal(t, put, c.do("EVAL", "return redis.pcall('app.put', KEYS[1])", "1", "b"))
	c.send("CLIENT REPLY OFF")
	c.send("APP.SILENT")
	require.Equal(t, "OK", c.do("CLIENT REPLY ON"))
}

// What many GETs make of a few elements is not built where it may not be sent.
func TestSortOfManyGets(t *testing.T) {
	s := startServer(t, func(c *Config) { c.Limits.Output = 1 << 20 })
	c, other := dial(t, s), dial(t, s)
	for range 10 {
		other.do("RPUSH", "l", strings.Repeat("x", 1000))
	}
	gets := strings.Split("SORT l ALPHA"+strings.Repeat(" GET #", 50_000), " ")
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	c.send(gets...)
	require.True(t, c.closed())
	require.Contains(t, other.do(append(gets, "STORE", "l")...), "too many to be written in one step")
	runtime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(200<<20))
	require.Equal(t, "10", other.do("LLEN l"))
	require.Equal(t, "[1 1 1 2 2 2]", other.pipeline("RPUSH k 2 1", "SORT k GET # GET # GET #")[1])
	require.Equal(t, []string{"4", "[1 1 2 2]"}, other.pipeline("SORT k GET # GET # STORE k", "LRANGE k 0 -1"))
}
