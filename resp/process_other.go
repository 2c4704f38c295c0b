//go:build !unix

package resp

import "time"

// cpuTime is what the process has used of the processors: not known here.
func cpuTime() (system, user time.Duration, ok bool) { return 0, 0, false }
