package slotmesh

import (
	"sync/atomic"
	"time"
)

// sleepLook is how old what the clock knows of the machine's sleep may be, in time
// during which the machine runs. To go to sleep and to wake up takes a machine
// longer than that, for it stops every process and device: so whoever asks first
// after a sleep finds that it is time to look. A look is two system calls, too much for
// every read of a key.
const sleepLook = 100 * time.Microsecond

// clock is a node's own clock: it never goes back, and it runs on while the
// process is stopped or the machine sleeps, which the monotonic clock of Go leaves
// out.
type clock struct {
	base   time.Time
	asleep func() time.Duration // how long the machine has slept since it booted
	before time.Duration        // when the clock was made
	slept  atomic.Int64         // since then, at the last look
	looked atomic.Int64         // when that was, sleep left out
}

func newClock(asleep func() time.Duration) *clock {
	return &clock{base: time.Now(), asleep: asleep, before: asleep()}
}

// now is the time since the clock was made.
func (c *clock) now() time.Duration {
	awake := time.Since(c.base)
	if awake-time.Duration(c.looked.Load()) >= sleepLook {
		c.look(awake)
	}
	return awake + time.Duration(c.slept.Load())
}

// look finds out how long the machine has slept. Several may look at once: the sleep
// never gets shorter, and it is there before anybody believes that he need not look.
func (c *clock) look(awake time.Duration) {
	slept := int64(c.asleep() - c.before)
	for was := c.slept.Load(); slept > was && !c.slept.CompareAndSwap(was, slept); was = c.slept.Load() {
	}
	c.looked.Store(int64(awake))
}
