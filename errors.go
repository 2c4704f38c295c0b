package slotmesh

import (
	"errors"
	"fmt"
	"strings"
)

// Plain facts, to be asked for with [errors.Is]. A [*OpError] matches the one
// that is its cause.
var (
	// ErrClosed: the node or client has been closed.
	ErrClosed = errors.New("slotmesh: closed")
	// ErrNotFound: there is no such key.
	ErrNotFound = errors.New("slotmesh: key not found")
	// ErrCrossSlot: the keys of one atomic call are in more than one slot.
	ErrCrossSlot = errors.New("slotmesh: keys in different slots")
	// ErrTryAgain: something is under way that will be over soon.
	ErrTryAgain = errors.New("slotmesh: try again")
	// ErrClusterDown: no node can serve this now. The text says why.
	ErrClusterDown = errors.New("slotmesh: cluster down")
	// ErrNoReplicas: fewer members are in sync than must have a write before it is
	// acknowledged. Nothing has happened. Of Client.Wait: nobody knows who has what was
	// written.
	ErrNoReplicas = errors.New("slotmesh: not enough replicas in sync")
	// ErrInTx: a call was made from inside a command that holds its slot.
	ErrInTx = errors.New("slotmesh: call from inside a command")
	// ErrTooLarge: a key, value, reply or command is over its limit.
	ErrTooLarge = errors.New("slotmesh: too large")
	// ErrUnknownCommand: the node that calls, or the primary of the slot, has no
	// command of this name.
	ErrUnknownCommand = errors.New("slotmesh: unknown command")
	// ErrReadOnly: a command that says it only reads has tried to write.
	ErrReadOnly = errors.New("slotmesh: write in a read-only command")
	// ErrConflict: the value is not what CompareAndSwap expected.
	ErrConflict = errors.New("slotmesh: the value has changed")
	// ErrInvalid: an argument that no node takes. The text names it.
	ErrInvalid = errors.New("slotmesh: invalid argument")
	// ErrRefused: the state of the cluster does not allow a command of an
	// operator. The text names what was wrong and what was expected.
	ErrRefused = errors.New("slotmesh: refused")
)

// MovedError says that another node serves a slot, for good. Its text is that
// of the Redis protocol.
type MovedError struct {
	Slot Slot
	Node NodeID
	Addr string // of the node's clients; of its bus where it has no client address
}

func (e *MovedError) Error() string { return fmt.Sprintf("MOVED %d %s", e.Slot, e.Addr) }

// AskError says that another node has the key, for this once: the slot is
// being moved there.
type AskError struct {
	Slot Slot
	Node NodeID
	Addr string
}

func (e *AskError) Error() string { return fmt.Sprintf("ASK %d %s", e.Slot, e.Addr) }

// UnservedError says why nobody serves a request now. It matches ErrTryAgain or
// ErrClusterDown.
type UnservedError struct {
	Slot   Slot
	Reason string // in the words of Redis where it has them
	Err    error
}

func (e *UnservedError) Error() string { return fmt.Sprintf("%v: %s", e.Err, e.Reason) }

// Unwrap returns the sentinel.
func (e *UnservedError) Unwrap() error { return e.Err }

// CommandError is an error that a command has returned. The effects of the
// command are discarded.
type CommandError struct {
	Code string // one word in capitals, as in the Redis protocol; "ERR" by default
	Text string
}

func (e *CommandError) Error() string { return e.Code + " " + e.Text }

// Outcome says what has become of a call.
type Outcome uint8

const (
	// NotExecuted: nothing has happened, and nothing will.
	NotExecuted Outcome = iota
	// Executed: it has happened; the error is about what came after.
	Executed
	// Unknown: it may have happened, or may still happen. Whoever repeats such
	// a call may do it twice.
	Unknown
)

// String returns "not executed", "executed" or "unknown".
func (o Outcome) String() string {
	switch o {
	case NotExecuted:
		return "not executed"
	case Executed:
		return "executed"
	default:
		return "unknown"
	}
}

// OpError is a call on keys that failed.
type OpError struct {
	Op      string // "get", "set", the name of a command ...
	Slot    Slot   // of the keys; NumSlots where the call has none, or keys of several slots
	Node    NodeID // that answered, or was asked last; zero where none was
	Outcome Outcome
	Err     error // the cause
}

func (e *OpError) Error() string {
	where := ""
	if e.Slot < NumSlots {
		where = fmt.Sprintf(", slot %d", e.Slot)
	}
	if !e.Node.IsZero() {
		where += " at " + e.Node.short()
	}
	outcome := fmt.Sprintf(" (%v)", e.Outcome)
	cause := strings.TrimSuffix(words(e.Err), outcome) // a call that the command has made may have ended alike
	return "slotmesh: " + e.Op + where + ": " + cause + outcome
}

// words is the text of an error that becomes part of another one.
func words(err error) string { return strings.TrimPrefix(err.Error(), "slotmesh: ") }

// Unwrap returns the cause.
func (e *OpError) Unwrap() error { return e.Err }

// commandCode says what kind of refusal a command met.
type commandCode uint8

const (
	codeInvalid     commandCode = iota + 1 // the arguments, or the state of this node, do not allow it
	codeClusterDown                        // no majority, no primary, no time left
	codeTryAgain                           // something else is under way for the same slots
)

// commandError is why a command of an operator was not carried out. It travels
// in FORWARDED, so that the caller reads the words of the node that refused.
type commandError struct {
	Code      commandCode
	Text      string
	MayHappen bool // a majority may still decide it
}

func (e *commandError) Error() string { return e.Text }

// public is the error that an application sees.
func (e *commandError) public() error {
	if e == nil {
		return nil
	}
	cause := ErrRefused
	switch e.Code {
	case codeClusterDown:
		cause = ErrClusterDown
	case codeTryAgain:
		cause = ErrTryAgain
	}
	a := &AdminError{Text: e.Text, Err: cause}
	if e.MayHappen {
		a.Outcome = Unknown
	}
	return a
}

// AdminError is an operator's command that was not carried out. It matches
// ErrRefused, ErrClusterDown or ErrTryAgain.
type AdminError struct {
	Text    string // in the words of Redis where it has them
	Outcome Outcome
	Err     error
}

func (e *AdminError) Error() string {
	return fmt.Sprintf("%v: %s", e.Err, strings.TrimPrefix(e.Text, "slotmesh: "))
}

// Unwrap returns the sentinel.
func (e *AdminError) Unwrap() error { return e.Err }
