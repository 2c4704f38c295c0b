package resp

import (
	"fmt"
	"strings"
	"testing"

	"github.com/slotmesh/slotmesh"
	"github.com/stretchr/testify/require"
)

// NOLOOP spares a client its own changes, however often it has made them, and no
// change of others: not where it has written the key and changed nothing, nor
// where another client took in the same step what it has put.
func TestNoLoopHearsOfOthers(t *testing.T) {
	s := startServer(t, func(c *Config) {
		node := c.Node
		c.Commands = []Command{{Name: "app.change", Arity: 2, Conn: func(c *Conn, args [][]byte) error {
			c.Reply().Simple("OK")
			return node.Execute(c.Context(), slotmesh.Request{Keys: []string{string(args[1])}}, func(tx *slotmesh.Tx) error {
				return tx.Put(string(args[1]), []byte("changed"))
			})
		}}}
	})
	c, waiter, other := dial(t, s), dial(t, s), dial(t, s)
	c.do("HELLO 3")
	c.check([2]string{"CLIENT TRACKING ON NOLOOP", "OK"}, [2]string{"SET a 1", "OK"}, [2]string{"GET a", "1"})
	require.Equal(t, []string{"OK", "QUEUED", "QUEUED", "[0 OK]", ">[invalidate [a]]"}, append(c.pipeline("MULTI", "SETNX a 2", "APP.CHANGE a", "EXEC"), c.read()))

	waiter.blocked(s, 1, "BLPOP {q}l 0")
	c.check([2]string{"LLEN {q}l", "0"}, [2]string{"RPUSH {q}l x", "1"})
	require.Equal(t, ">[invalidate [{q}l]]", c.read())
	require.Equal(t, "[{q}l x]", waiter.read())

	c.check([2]string{"CLIENT TRACKING OFF", "OK"}, [2]string{"CLIENT TRACKING ON NOLOOP BCAST", "OK"})
	c.pipeline("MULTI", "SET {a}1 1", "SET {a}2 1", "SET {a}1 2", "EXEC")
	other.check([2]string{"SET z 1", "OK"})
	require.Equal(t, ">[invalidate [z]]", c.read())
}

// All clients together cache no more than tracking-table-max-keys: at the bound
// some are told that a key has changed.
func TestCachedKeysAreBounded(t *testing.T) {
	s := startServer(t)
	first, second, other := dial(t, s), dial(t, s), dial(t, s)
	other.check([2]string{"CONFIG SET tracking-table-max-keys 10", "OK"})
	first.do("HELLO 3")
	second.do("HELLO 3")
	first.check([2]string{"CLIENT TRACKING ON", "OK"})
	second.check([2]string{"CLIENT TRACKING ON", "OK"})
	for i := range 10 {
		first.check([2]string{fmt.Sprint("GET a", i), "(nil)"})
	}
	items := func(n int) {
		t.Helper()
		require.Contains(t, other.do("INFO stats"), fmt.Sprintf("tracking_total_items:%d\r\n", n))
	}
	items(10)
	told := 0
	read := func(c *testClient, command, want string) {
		c.send(command)
		for got := c.read(); got != want; got = c.read() {
			require.True(t, strings.HasPrefix(got, ">[invalidate ["), got)
			told++
		}
	}
	for i := range 5 {
		read(second, fmt.Sprint("GET b", i), "(nil)")
	}
	items(10)
	read(first, "PING", "PONG")
	read(second, "PING", "PONG")
	require.Equal(t, 5, told)

	// Those that have been told of are the first to be forgotten, and of all that
	// is cached a change is told.
	for i := range 10 {
		other.do(fmt.Sprint("SET a", i, " 1"))
	}
	for i := range 5 {
		other.do(fmt.Sprint("SET b", i, " 1"))
	}
	read(first, "PING", "PONG")
	read(second, "PING", "PONG")
	require.Equal(t, 15, told)
	for i := range 10 {
		read(first, fmt.Sprint("GET c", i), "(nil)")
	}
	require.Equal(t, 15, told)
	items(10)
	other.check([2]string{"CONFIG SET tracking-table-max-keys 0", "OK"})
	for i := range 20 {
		read(first, fmt.Sprint("GET d", i), "(nil)")
	}
	items(30)
	first.check([2]string{"CLIENT TRACKING ON OPTOUT", "OK"})
	items(30)
	first.check([2]string{"CLIENT TRACKING OFF", "OK"})
	second.check([2]string{"CLIENT TRACKING OFF", "OK"})
	items(0)
}

// What a client has changed, and has been told so, every other hears of before the
// reply to what it asks after that.
func TestAChangeIsToldBeforeWhatIsAskedAfterIt(t *testing.T) {
	s := startServer(t)
	reader, writer := dial(t, s), dial(t, s)
	reader.do("HELLO 3")
	reader.check([2]string{"CLIENT TRACKING ON", "OK"})
	for i := range 300 {
		reader.do("GET a")
		writer.check([2]string{fmt.Sprint("SET a ", i), "OK"})
		reader.send("PING")
		require.Equal(t, ">[invalidate [a]]", reader.read(), "round %d", i)
		require.Equal(t, "PONG", reader.read())
	}
}
