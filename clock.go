package slotmesh

import "time"

// clock is a node's own clock: it never goes back, and it runs on while the
// process is stopped. Time during which the machine itself sleeps is added at
// each look of the run loop, see node.run: the monotonic clock of Go leaves it
// out.
type clock struct {
	base  time.Time
	slept func() time.Duration // how long the machine has slept since it booted
}

func newClock() clock {
	c := clock{base: time.Now(), slept: sleptSinceBoot}
	return c
}

// now is the time since the node was made, sleep of the machine left out.
func (c *clock) now() time.Duration { return time.Since(c.base) }
