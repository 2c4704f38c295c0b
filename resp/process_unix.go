//go:build unix

package resp

import (
	"syscall"
	"time"
)

// cpuTime is what the process has used of the processors.
func cpuTime() (system, user time.Duration, ok bool) {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0, 0, false
	}
	return time.Duration(u.Stime.Nano()), time.Duration(u.Utime.Nano()), true
}
