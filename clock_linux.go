package slotmesh

import (
	"syscall"
	"time"
	"unsafe"
)

const (
	clockMonotonic = 1
	clockBoottime  = 7
)

// sleptSinceBoot is the time that the machine has been suspended for: by so much
// CLOCK_BOOTTIME is ahead of CLOCK_MONOTONIC.
func sleptSinceBoot() time.Duration {
	boot, ok := readClock(clockBoottime)
	mono, ok2 := readClock(clockMonotonic)
	if !ok || !ok2 {
		return 0
	}
	return boot - mono
}

func readClock(id uintptr) (time.Duration, bool) {
	var ts syscall.Timespec
	_, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, id, uintptr(unsafe.Pointer(&ts)), 0)
	return time.Duration(ts.Nano()), errno == 0
}
