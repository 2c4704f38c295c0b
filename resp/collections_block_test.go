package resp

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// blocked sends a command that will wait, as the n-th that does.
func (c *testClient) blocked(s *Server, n int, command string) {
	c.t.Helper()
	c.send(command)
	require.Eventually(c.t, func() bool { return s.blocked.waiting() == n }, 5*time.Second, time.Millisecond)
}

// A key becomes what the second of two clients waits for: the first one, which
// waits for another kind, is no obstacle, and goes on to wait.
func TestWaiterForAnotherKindDoesNotHoldUpTheNext(t *testing.T) {
	s := startServer(t)
	first, second, other := dial(t, s), dial(t, s), dial(t, s)
	first.blocked(s, 1, "BZPOPMIN q 20")
	second.blocked(s, 2, "BLPOP q 20")
	require.Equal(t, "1", other.do("RPUSH q a"))
	require.Equal(t, "[q a]", second.read())
	require.Equal(t, "1", other.do("SADD q a"))
	require.Equal(t, "1", other.do("DEL q"))
	require.Equal(t, "1", other.do("ZADD q 2 m"))
	require.Equal(t, "[q m 2]", first.read())
}

// BLMOVE waits for its source. What comes to its destination is for others.
func TestBLMoveDoesNotWaitForItsDestination(t *testing.T) {
	s := startServer(t)
	mover, popper, other := dial(t, s), dial(t, s), dial(t, s)
	mover.blocked(s, 1, "BLMOVE {t}a {t}b LEFT LEFT 20")
	popper.blocked(s, 2, "BLPOP {t}b 20")
	require.Equal(t, "1", other.do("RPUSH {t}b x"))
	require.Equal(t, "[{t}b x]", popper.read())
	popper.blocked(s, 2, "BRPOP {t}b 20")
	require.Equal(t, "1", other.do("RPUSH {t}a y"))
	require.Equal(t, "y", mover.read())
	require.Equal(t, "[{t}b y]", popper.read(), "what was moved serves who waits for it")
	mover.blocked(s, 1, "BRPOPLPUSH {t}a {t}b 20")
	require.Equal(t, "1", other.do("SADD {t}b z"))
	require.Equal(t, "1", other.do("RPUSH {t}a y"))
	require.Equal(t, string(errWrongType), mover.read())
	require.Equal(t, "1", other.do("LLEN {t}a"), "what could not be moved stays")
}

// Each of the commands that wait gets what comes, and many get each one member.
func TestEveryBlockingCommandIsServed(t *testing.T) {
	for _, test := range []struct{ wait, push, want string }{
		{"BLPOP {t}x {t}l 20", "RPUSH {t}l a b", "[{t}l a]"},
		{"BRPOP {t}x {t}l 20", "RPUSH {t}l a b", "[{t}l b]"},
		{"BLMOVE {t}l {t}m RIGHT LEFT 20", "RPUSH {t}l a b", "b"},
		{"BRPOPLPUSH {t}l {t}m 20", "RPUSH {t}l a b", "b"},
		{"BLMPOP 20 2 {t}x {t}l RIGHT COUNT 5", "RPUSH {t}l a b", "[{t}l [b a]]"},
		{"BZPOPMIN {t}x {t}z 20", "ZADD {t}z 1 a 2 b", "[{t}z a 1]"},
		{"BZPOPMAX {t}x {t}z 20", "ZADD {t}z 1 a 2 b", "[{t}z b 2]"},
		{"BZMPOP 20 2 {t}x {t}z MAX COUNT 5", "ZADD {t}z 1 a 2 b", "[{t}z [[b 2] [a 1]]]"},
	} {
		name, _, _ := strings.Cut(test.wait, " ")
		t.Run(name, func(t *testing.T) {
			s := startServer(t)
			waiter, other := dial(t, s), dial(t, s)
			waiter.blocked(s, 1, test.wait)
			other.do(test.push)
			require.Equal(t, test.want, waiter.read())
		})
	}
}
