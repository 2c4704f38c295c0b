package slotmesh

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// R7: a machine that has slept finds its lease over with the first reply, not when
// the run loop looks next.
func TestAReplyFindsThatTheMachineHasSlept(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var asleep atomic.Int64
		asleep.Store(int64(time.Hour)) // before this node was made
		e := engine{clock: newClock(func() time.Duration { return time.Duration(asleep.Load()) })}
		e.setLease(1, time.Second)
		l := e.lease.Load()
		require.True(t, e.held(l))
		asleep.Add(int64(2 * time.Second))
		time.Sleep(sleepLook) // to go to sleep and to wake up takes longer
		require.False(t, e.held(l))
		require.Equal(t, 2*time.Second+sleepLook, e.now())
		asleep.Add(int64(-time.Second))
		time.Sleep(sleepLook)
		require.Equal(t, 2*time.Second+2*sleepLook, e.now(), "it never goes back")
	})
}

// Every branch of the run loop knows of a sleep: here a message is what wakes it.
func TestTheRunLoopKnowsOfASleepWhateverWakesIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, Config{})
		isReady(t, n)
		before := ask(t, n, func(s *state) time.Duration { return s.now })
		ask(t, n, func(*state) bool { n.clock.before -= time.Minute; return true }) // by so much the machine has slept since
		time.Sleep(sleepLook)
		after := ask(t, n, func(s *state) time.Duration { return s.now })
		require.Greater(t, after, before+time.Minute-time.Second) // the two clocks are not read at one moment
	})
}
