//go:build !linux

package resp

// residentBytes is the memory of the process that is in the machine's: not known
// here.
func residentBytes() (int64, bool) { return 0, false }
