package resp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"strconv"
	"time"
	"unsafe"

	"github.com/slotmesh/slotmesh"
	"github.com/slotmesh/slotmesh/store"
)

// Kinds of keys, as the head of a key carries them.
const (
	kindString byte = iota
	kindHash
	kindList
	kindSet
	kindSortedSet
)

// kindNames are what TYPE answers.
var kindNames = [...]string{"string", "hash", "list", "set", "zset"}

// Call is one run of a command: what its function sees. It is valid until the
// function returns.
type Call struct {
	// Tx is the slot.
	Tx *slotmesh.Tx
	// Args are the name and the arguments. They alias the connection's buffer:
	// what is stored must be a copy.
	Args [][]byte
	// Reply takes the reply: exactly one, unless the function returns an error.
	Reply *Reply

	command *Command
	conn    *Conn    // nil in tests of a function alone
	wait    *waitFor // set by a blocking command that has found nothing

	compiled *compiled // of a command that runs a script
}

// waitFor is what a blocking command waits for: that one of its keys is of a
// kind. It outlives the call.
type waitFor struct {
	keys    [][]byte
	kind    byte
	timeout time.Duration // 0: for ever
	none    func(*Reply)  // the reply when the time is over
	refused func(*Reply)  // the reply where it may not wait, as in MULTI; nil: none

	// serve does what the command does, for one key, which is of the kind. It
	// returns the key that it has put something to, if any.
	serve func(c *Call, key string) (put string, err error)
}

// run runs the command. Without a reply it fails, before anything has happened.
func (c *Call) run() error {
	began := c.Reply.size()
	err := c.whole(func() error { return c.command.Run(c) })
	if err != nil {
		return err
	}
	if c.wait == nil && c.Reply.size() == began && !c.Reply.over() {
		return noReply(c.command)
	}
	return nil
}

// whole calls f, which runs the command. Where it fails after it has begun to write, as
// where the Tx has no room for the rest, the Tx must not go on with half of it.
func (c *Call) whole(f func() error) error {
	calls, bytes := c.Tx.Room()
	err := f()
	if err == nil {
		return nil
	}
	if callsLeft, bytesLeft := c.Tx.Room(); callsLeft == calls && bytesLeft == bytes {
		return err
	}
	return &halfDone{err}
}

// halfDone: a command has failed after it has begun to write. All that is done in the same
// Tx is undone with it.
type halfDone struct{ err error }

func (e *halfDone) Error() string { return e.err.Error() }
func (e *halfDone) Unwrap() error { return e.err }

// refuse writes the reply where a command may not wait.
func (w *waitFor) refuse(r *Reply) {
	if w.refused != nil {
		w.refused(r)
	} else {
		w.none(r)
	}
}

// Key is argument i as a key to read with. It aliases the connection's buffer
// and is good until the function returns; what is written needs Own.
func (c *Call) Key(i int) string { return view(c.Args[i]) }

// Own is argument i as a string of its own.
func (c *Call) Own(i int) string { return string(c.Args[i]) }

// view is bytes as a string, without a copy.
func view(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// Now is when the command began, in Unix milliseconds.
func (c *Call) Now() int64 { return c.Tx.Now().UnixMilli() }

// Int is argument i as a decimal number of 64 bits, as Redis reads one: no
// spaces, no plus, no leading zeros.
func (c *Call) Int(i int) (int64, error) {
	n, ok := parseInt(c.Args[i])
	if !ok {
		return 0, errNotInteger
	}
	return n, nil
}

// Float is argument i as a number with a fraction; NaN is none.
func (c *Call) Float(i int) (float64, error) {
	f, ok := parseFloat(c.Args[i])
	if !ok {
		return 0, errNotFloat
	}
	return f, nil
}

// Is reports whether argument i is an option, given in lower case.
func (c *Call) Is(i int, option string) bool { return equalFold(c.Args[i], option) }

// head is the head of a key that must be of a kind: WRONGTYPE where it is not.
func (c *Call) head(key string, kind byte) (store.Entry, bool, error) {
	e, found, err := c.Tx.Entry(key)
	if err != nil || !found {
		return store.Entry{}, false, err
	}
	if e.Kind != kind {
		return store.Entry{}, false, errWrongType
	}
	return e, true, nil
}

// parseInt reads a number as Redis's string2ll does.
func parseInt(b []byte) (int64, bool) {
	if len(b) == 0 || len(b) > 20 {
		return 0, false
	}
	digits := b
	if b[0] == '-' {
		digits = b[1:]
	}
	if len(digits) == 0 || digits[0] == '0' && len(b) > 1 {
		return 0, false
	}
	for _, d := range digits {
		if d < '0' || d > '9' {
			return 0, false
		}
	}
	n, err := strconv.ParseInt(view(b), 10, 64)
	return n, err == nil
}

// parseFloat reads a number as C's strtod does, all of it, without spaces. What
// is too large or too small for 64 bits is none, but "inf" is.
func parseFloat(b []byte) (float64, bool) {
	f, ok := strtod(b)
	if !ok || math.IsInf(f, 0) && bytes.ContainsAny(b, "0123456789") || f == 0 && hasDigits(b) {
		return 0, false
	}
	return f, true
}

// strtod is parseFloat without the bounds: what is too large is infinite, what
// is too small is 0.
func strtod(b []byte) (float64, bool) {
	if bytes.IndexByte(b, '_') >= 0 {
		return 0, false
	}
	text := string(b)
	if isHex(b) && !bytes.ContainsAny(b, "pP") {
		text += "p0" // C can do without
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) || math.IsNaN(f) {
		return 0, false
	}
	return f, true
}

// isHex reports whether a number begins with 0x.
func isHex(b []byte) bool {
	b = bytes.TrimLeft(b, "+-")
	return len(b) > 1 && b[0] == '0' && b[1]|0x20 == 'x'
}

// hasDigits reports whether a number has digits before its exponent that are
// not 0.
func hasDigits(b []byte) bool {
	end, digits := "eE", "123456789"
	if isHex(b) {
		end, digits = "pP", "123456789abcdefABCDEF"
	}
	if i := bytes.IndexAny(b, end); i >= 0 {
		b = b[:i]
	}
	return bytes.ContainsAny(b, digits)
}

// A collection's header is the number of its members.
func countOf(e *store.Entry) uint64 {
	n, _ := binary.Uvarint(e.Value)
	return n
}

// setCount stores the number of members of a collection, and removes the key
// where there is none left.
func (c *Call) setCount(key string, kind byte, e *store.Entry, n uint64) error {
	if n == 0 {
		_, err := c.Tx.Delete(key)
		return err
	}
	return c.Tx.PutEntry(key, store.Entry{Kind: kind, ExpireAt: e.ExpireAt, Value: binary.AppendUvarint(nil, n)})
}

// field is the store's field of a member of a hash or a set.
func field(name []byte) string { return summedField(memberPrefix, name) }

// memberOf is the name of a member behind its field.
func memberOf(field string) string { return field[namePosition:] }
