//go:build !linux

package slotmesh

import "time"

// sleptSinceBoot is not known here: a machine that sleeps for longer than a
// lease lasts must not be a primary.
func sleptSinceBoot() time.Duration { return 0 }
