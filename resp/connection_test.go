package resp

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestConnectionCommands(t *testing.T) {
	c := dial(t, startServer(t))
	c.check([][2]string{
		{"PING", "PONG"},
		{"PING hello", "hello"},
		{"ECHO x", "x"},
		{"SELECT 0", "OK"},
		{"SELECT 1", "ERR SELECT is not allowed in cluster mode"},
		{"CLIENT GETNAME", "(nil)"},
		{"CLIENT SETNAME me", "OK"},
		{"CLIENT GETNAME", "me"},
		{"CLIENT SETINFO LIB-NAME go-redis", "OK"},
		{"CLIENT SETINFO LIB-VER 9", "OK"},
		{"CLIENT SETINFO LIB-COLOR red", "ERR Unrecognized option 'LIB-COLOR'"},
		{"CLIENT NO-TOUCH on", "OK"},
		{"READONLY", "OK"},
		{"READWRITE", "OK"},
		{"CLUSTER MEET -2.25 17", "ERR Invalid node address specified: -2.25:17"}, // neither an address nor a name
		{"HELLO 3 AUTH nobody x SETNAME", "WRONGPASS invalid username-password pair or user is disabled."}, // one after the other
		{"HELLO 3 SETNAME you", "[server redis version 7.0.15 proto 3 id 1 mode cluster role master modules []]"},
		{"CLIENT GETNAME", "you"},
		{"HELLO 2", "[server redis version 7.0.15 proto 2 id 1 mode cluster role master modules []]"},
		{"RESET", "RESET"},
		{"CLIENT GETNAME", "(nil)"},
	}...)
	require.Contains(t, c.do("CLIENT INFO"), "id=1 ")
	require.Contains(t, c.do("CLIENT LIST"), "lib-name=go-redis lib-ver=9")
	require.Equal(t, "OK", c.do("QUIT"))
	require.True(t, c.closed())
}

func TestClientMustLogIn(t *testing.T) {
	s := startServer(t, func(cfg *Config) { cfg.Password = "secret" })
	c := dial(t, s)
	c.check([][2]string{
		{"GET k", "NOAUTH Authentication required."},
		{"HELLO 3", "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol version at the same time"},
		{"AUTH wrong", "WRONGPASS invalid username-password pair or user is disabled."},
		{"AUTH nobody secret", "WRONGPASS invalid username-password pair or user is disabled."},
		{"GET k", "NOAUTH Authentication required."},
		{"AUTH secret", "OK"},
		{"GET k", "(nil)"},
		{"RESET", "RESET"},
		{"GET k", "NOAUTH Authentication required."},
		{"HELLO 2 AUTH default secret", "[server redis version 7.0.15 proto 2 id 1 mode cluster role master modules []]"},
		{"CONFIG SET requirepass other", "OK"},
		{"GET k", "(nil)"},
	}...)
	d := dial(t, s)
	d.check([2]string{"AUTH secret", "WRONGPASS invalid username-password pair or user is disabled."}, [2]string{"AUTH other", "OK"})
}

func TestRepliesMayBeSwitchedOff(t *testing.T) {
	c := dial(t, startServer(t))
	c.send("CLIENT REPLY OFF")
	c.send("PING")
	c.send("NOSUCH")
	c.send("CLIENT REPLY ON")
	require.Equal(t, "OK", c.read())
	c.send("CLIENT REPLY SKIP")
	c.send("PING one")
	c.send("PING two")
	require.Equal(t, "two", c.read())
}

func TestClientKillEndsConnections(t *testing.T) {
	s := startServer(t)
	a, b, c := dial(t, s), dial(t, s), dial(t, s)
	id := a.do("CLIENT ID")
	for _, x := range []*testClient{b, c} {
		x.do("PING")
	}
	require.Equal(t, "1", b.do("CLIENT", "KILL", "ID", id))
	require.True(t, a.closed())
	require.Equal(t, "OK", b.do("CLIENT", "KILL", c.nc.LocalAddr().String()))
	require.True(t, c.closed())
	require.Equal(t, "0", b.do("CLIENT", "KILL", "ADDR", ""))
	require.Equal(t, "ERR No such client", b.do("CLIENT", "KILL", ""))
	require.Eventually(t, func() bool { return b.do("CLIENT KILL TYPE normal") == "0" }, 10*time.Second, time.Millisecond, "those that were ended are there for a moment")
	require.Equal(t, "1", b.do("CLIENT KILL TYPE normal SKIPME no"), "it hears how many before it goes")
	require.True(t, b.closed())
}

func TestClientPauseHoldsCommandsUp(t *testing.T) {
	s := startServer(t)
	a, b, c := dial(t, s), dial(t, s), dial(t, s)
	require.Equal(t, "OK", a.do("CLIENT PAUSE 600000 WRITE"))
	require.Equal(t, "(nil)", a.do("GET k"), "reads go on")
	b.send("SET k v")
	c.send("MULTI")
	c.send("SET k w")
	require.Equal(t, "OK", c.read())
	require.Equal(t, "QUEUED", c.read())
	c.send("EXEC")
	require.Eventually(t, func() bool {
		return strings.Count(a.do("CLIENT LIST"), "flags=b")+strings.Count(a.do("CLIENT LIST"), "flags=xb") == 2
	}, 10*time.Second, time.Millisecond)
	require.Equal(t, "(nil)", a.do("GET k"))
	require.Equal(t, "OK", a.do("CLIENT UNPAUSE"))
	require.Equal(t, "OK", b.read())
	require.Equal(t, "[OK]", c.read())
	require.Equal(t, "OK", a.do("CLIENT PAUSE 1"))
	require.Equal(t, "PONG", b.do("PING"), "the time is over")
}

func TestClientUnblockEndsAWait(t *testing.T) {
	s := startServer(t)
	a, b := dial(t, s), dial(t, s)
	id := a.do("CLIENT ID")
	for _, row := range [][3]string{
		{"WAIT 1 0", "TIMEOUT", "0"},
		{"WAIT 1 0", "ERROR", "UNBLOCKED client unblocked via CLIENT UNBLOCK"},
		{"DEBUG SLEEP 1000", "TIMEOUT", "OK"},
	} {
		// What is in front of it in the pipeline is answered first, and once.
		a.send("PING")
		a.send(row[0])
		require.Equal(t, "PONG", a.read())
		require.Eventually(t, func() bool { return b.do("CLIENT", "UNBLOCK", id, row[1]) == "1" }, 10*time.Second, time.Millisecond)
		require.Equal(t, row[2], a.read(), row[0])
	}
	require.Equal(t, "0", b.do("CLIENT", "UNBLOCK", id))
}

func TestClientThatGoesWhileItWaitsIsForgotten(t *testing.T) {
	s := startServer(t)
	a, b := dial(t, s), dial(t, s)
	a.send("WAIT 1 0")
	require.Eventually(t, func() bool { return strings.Contains(b.do("CLIENT LIST"), "flags=b") }, 10*time.Second, time.Millisecond)
	a.nc.Close()
	require.Eventually(t, func() bool { return strings.Count(b.do("CLIENT LIST"), "id=") == 1 }, 10*time.Second, time.Millisecond)
}
