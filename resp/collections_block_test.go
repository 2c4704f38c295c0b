package resp

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/slotmesh/slotmesh"
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

// pipeline sends commands at once, and returns their replies.
func (c *testClient) pipeline(commands ...string) (replies []string) {
	c.t.Helper()
	_, err := c.nc.Write([]byte(strings.Join(commands, "\r\n") + "\r\n"))
	require.NoError(c.t, err)
	for range commands {
		replies = append(replies, c.read())
	}
	return replies
}

// Who waits is served before the next command of anybody, the one who waits
// longest first, as in redis-server 7.0.
func TestWaitersAreServedBeforeAnybodyElse(t *testing.T) {
	for _, test := range []struct {
		name    string
		waiters []string
		do      []string
		replies []string
		served  []string // "": it goes on to wait
	}{
		{"one", []string{"BLPOP {t}q 0"}, []string{"RPUSH {t}q a", "LPOP {t}q", "EXISTS {t}q"}, []string{"1", "(nil)", "0"}, []string{"[{t}q a]"}},
		{"the longest first", []string{"BLPOP {t}q 0", "BRPOP {t}q 0", "BLPOP {t}q 0"}, []string{"RPUSH {t}q a b", "LPOP {t}q"}, []string{"2", "(nil)"}, []string{"[{t}q a]", "[{t}q b]", ""}},
		{"more than is waited for", []string{"BLPOP {t}q 0"}, []string{"RPUSH {t}q a b", "LPOP {t}q"}, []string{"2", "b"}, []string{"[{t}q a]"}},
		{"a transaction", []string{"BLPOP {t}q 0"}, []string{"MULTI", "RPUSH {t}q a", "RPUSH {t}q b", "LPOP {t}q", "EXEC", "LPOP {t}q"}, []string{"OK", "QUEUED", "QUEUED", "QUEUED", "[1 2 a]", "(nil)"}, []string{"[{t}q b]"}},
		{"a transaction that takes what it gives", []string{"BLPOP {t}q 0"}, []string{"MULTI", "RPUSH {t}q a", "DEL {t}q", "EXEC"}, []string{"OK", "QUEUED", "QUEUED", "[1 1]"}, []string{""}},
		{"the key that was written first", []string{"BLPOP {t}q {t}r 0"}, []string{"MULTI", "RPUSH {t}r r", "RPUSH {t}q q", "EXEC", "LPOP {t}q", "LPOP {t}r"}, []string{"OK", "QUEUED", "QUEUED", "[1 1]", "q", "(nil)"}, []string{"[{t}r r]"}},
		{"a script", []string{"BLPOP {t}q 0"}, []string{`EVAL "return redis.call('rpush','{t}q','a')" 1 {t}z`, "LPOP {t}q"}, []string{"1", "(nil)"}, []string{"[{t}q a]"}},
		{"a script that names no key", []string{"BLPOP {t}q 0"}, []string{`EVAL "return redis.call('rpush','{t}q','a')" 0`, "LPOP {t}q"}, []string{"1", "(nil)"}, []string{"[{t}q a]"}},
		{"a script in a transaction", []string{"BLPOP {t}q 0"}, []string{"MULTI", `EVAL "return redis.call('rpush','{t}q','a')" 1 {t}z`, "EXEC", "LPOP {t}q"}, []string{"OK", "QUEUED", "[1]", "(nil)"}, []string{"[{t}q a]"}},
		{"RENAME", []string{"BLPOP {t}q 0"}, []string{"RPUSH {t}x a", "RENAME {t}x {t}q", "LPOP {t}q"}, []string{"1", "OK", "(nil)"}, []string{"[{t}q a]"}},
		{"SORT STORE", []string{"BLMPOP 0 1 {t}q LEFT COUNT 2"}, []string{"RPUSH {t}x 3 1 2", "SORT {t}x STORE {t}q", "LPOP {t}q"}, []string{"3", "3", "3"}, []string{"[{t}q [1 2]]"}},
		{"a chain", []string{"BLPOP {t}c 0", "BLMOVE {t}b {t}c LEFT LEFT 0", "BLMOVE {t}a {t}b LEFT LEFT 0"}, []string{"RPUSH {t}a x", "EXISTS {t}a {t}b {t}c"}, []string{"1", "0"}, []string{"[{t}c x]", "x", "x"}},
		{"a circle", []string{"BLMOVE {t}a {t}b LEFT LEFT 0", "BLMOVE {t}b {t}a LEFT LEFT 0"}, []string{"RPUSH {t}a x", "LRANGE {t}a 0 -1"}, []string{"1", "[x]"}, []string{"x", "x"}},
		{"onto itself", []string{"BLMOVE {t}a {t}a LEFT RIGHT 0", "BLPOP {t}a 0"}, []string{"RPUSH {t}a x y", "LRANGE {t}a 0 -1"}, []string{"2", "[x]"}, []string{"x", "[{t}a y]"}},
		{"what cannot be moved", []string{"BLMOVE {t}a {t}s LEFT LEFT 0", "BLPOP {t}a 0"}, []string{"SADD {t}s x", "RPUSH {t}a y", "EXISTS {t}a"}, []string{"1", "1", "0"}, []string{string(errWrongType), "[{t}a y]"}},
		{"a key twice", []string{"BLPOP {t}q {t}q 0", "BLPOP {t}q 0"}, []string{"RPUSH {t}q a", "LPOP {t}q"}, []string{"1", "(nil)"}, []string{"[{t}q a]", ""}},
		{"a key of another kind twice", []string{"BZPOPMAX {t}q {t}q 0", "BLPOP {t}q {t}r {t}q 0"}, []string{"RPUSH {t}q a b", "LPOP {t}q"}, []string{"2", "b"}, []string{"", "[{t}q a]"}},
		{"kinds", []string{"BZPOPMIN {t}q 0", "BLPOP {t}q 0", "BZPOPMAX {t}q 0"}, []string{"ZADD {t}q 1 a 2 b", "ZCARD {t}q"}, []string{"2", "0"}, []string{"[{t}q a 1]", "", "[{t}q b 2]"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := startServer(t)
			var waiters []*testClient
			for i, command := range test.waiters {
				waiters = append(waiters, dial(t, s))
				waiters[i].blocked(s, i+1, command)
			}
			other := dial(t, s)
			require.Equal(t, test.replies, other.pipeline(test.do...))
			left := 0
			for i, want := range test.served {
				if want == "" {
					left++
				} else {
					require.Equal(t, want, waiters[i].read(), test.waiters[i])
					require.Equal(t, "PONG", waiters[i].do("PING"))
				}
			}
			require.Equal(t, left, s.blocked.waiting())
			require.EqualValues(t, left, s.blocked.n.Load())
		})
	}
}

// What the application writes serves who waits, in order.
func TestWaitersAreServedByTheApplication(t *testing.T) {
	s := startServer(t)
	first, second, other := dial(t, s), dial(t, s), dial(t, s)
	first.blocked(s, 1, "BLPOP q 0")
	second.blocked(s, 2, "BLPOP q 0")
	push(t, s, "q", "a", "b", "c")
	require.Equal(t, "[q a]", first.read())
	require.Equal(t, "[q b]", second.read())
	require.Equal(t, "[c]", other.do("LRANGE q 0 -1"))
}

// push puts a list as the application does.
func push(t *testing.T, s *Server, key string, values ...string) {
	t.Helper()
	require.NoError(t, s.node.Execute(context.Background(), slotmesh.Request{Keys: []string{key}}, func(tx *slotmesh.Tx) error {
		var all [][]byte
		for _, v := range values {
			all = append(all, []byte(v))
		}
		return putList(tx, key, all, 0)
	}))
}

// A write that is undone has served nobody.
func TestWritesThatAreUndoneServeNobody(t *testing.T) {
	s := startServer(t)
	waiter, c, other := dial(t, s), dial(t, s), dial(t, s)
	waiter.blocked(s, 1, "BLPOP q 0")
	c.send("EVAL", "redis.call('rpush', KEYS[1], 'a') while true do end", "1", "q")
	require.Eventually(t, func() bool { return other.do("SCRIPT KILL") == "OK" }, 5*time.Second, time.Millisecond)
	require.Contains(t, c.read(), "Script killed by user")
	require.Equal(t, []string{"1", "(nil)"}, c.pipeline("RPUSH q b", "LPOP q"))
	require.Equal(t, "[q b]", waiter.read())
}

// A pause holds up who waits, whoever it is that writes; its time may be over
// meanwhile.
func TestPauseHoldsUpWhoWaits(t *testing.T) {
	for _, mode := range []string{"WRITE", "ALL"} {
		s := startServer(t)
		waiter, late, other := dial(t, s), dial(t, s), dial(t, s)
		waiter.blocked(s, 1, "BLPOP q 0")
		late.blocked(s, 2, "BLPOP other 0.05")
		other.check([2]string{"CLIENT PAUSE 100000 " + mode, "OK"})
		push(t, s, "q", "a")
		s.blocked.mu.Lock()
		w := s.blocked.byKey["q"][0]
		s.blocked.mu.Unlock()
		require.Eventually(t, func() bool { return len(w.changed) == 0 }, 5*time.Second, time.Millisecond)
		require.Equal(t, "(nil)", late.read())
		require.Equal(t, 1, s.blocked.waiting())
		other.check([2]string{"CLIENT UNPAUSE", "OK"}, [2]string{"PING", "PONG"})
		require.Equal(t, "[q a]", waiter.read())
		waiter.blocked(s, 1, "BLPOP q 0")
		other.check([2]string{"CLIENT PAUSE 50 " + mode, "OK"})
		push(t, s, "q", "b")
		require.Equal(t, "[q b]", waiter.read(), "a pause ends by itself")
	}
}

// Whether its time is over first, or it is served: each of those who wait hears one
// of the two, and nothing is lost.
func TestWaitersAreServedOrNot(t *testing.T) {
	s := startServer(t)
	const waiters, rounds = 6, 40
	var wg sync.WaitGroup
	var mu sync.Mutex
	got := map[string]int{}
	for i := range waiters {
		c := dial(t, s)
		wg.Go(func() {
			for range rounds {
				reply := c.do("BLPOP q 0.00" + fmt.Sprint(i%3+1))
				if reply != "(nil)" {
					mu.Lock()
					got[reply]++
					mu.Unlock()
				}
			}
		})
	}
	other := dial(t, s)
	for i := range waiters * rounds / 2 {
		other.do("RPUSH", "q", fmt.Sprint(i))
	}
	wg.Wait()
	left := other.do("LRANGE q 0 -1")
	for _, v := range strings.Fields(strings.Trim(left, "[]")) {
		got["[q "+v+"]"]++
	}
	require.Len(t, got, waiters*rounds/2)
	for v, n := range got {
		require.Equal(t, 1, n, v)
	}
	require.Zero(t, s.blocked.waiting())
}
