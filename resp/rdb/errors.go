package rdb

import (
	"errors"
	"fmt"
)

// What a payload is refused for. Each is matched by errors.Is.
var (
	// ErrFooter says that the payload is too short for version and checksum,
	// that its version is too new, or that its bytes do not give its checksum.
	// Redis answers "DUMP payload version or checksum are wrong".
	ErrFooter = errors.New("rdb: version or checksum are wrong")
	// ErrFormat says that version and checksum are right but the value is
	// malformed. Redis answers "Bad data format" to this and to what follows.
	ErrFormat = errors.New("rdb: bad data format")
	// ErrUnsupported says that the value is a stream or of a module.
	ErrUnsupported = errors.New("rdb: unsupported type")
	// ErrLimit says that the value goes beyond the Limits given.
	ErrLimit = errors.New("rdb: value is too large")
)

// Error says why a payload was refused, and where.
type Error struct {
	Reason error  // ErrFooter, ErrFormat, ErrUnsupported or ErrLimit
	Offset int    // where in the payload the trouble begins; of a compressed string, where it begins
	Text   string // what was found, and what was expected
}

// Error implements error.
func (e *Error) Error() string {
	return fmt.Sprintf("%v: byte %d: %s", e.Reason, e.Offset, e.Text)
}

// Unwrap returns e.Reason.
func (e *Error) Unwrap() error { return e.Reason }

// failure returns an Error.
func failure(reason error, offset int, format string, args ...any) error {
	return &Error{Reason: reason, Offset: offset, Text: fmt.Sprintf(format, args...)}
}
