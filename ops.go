package slotmesh

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"github.com/slotmesh/slotmesh/store"
)

// The calls that every node knows, as they run at the primary. Arguments come
// from a request, key first.

// errWrongKind: a call for plain values meets a collection.
var errWrongKind = &CommandError{Code: "WRONGTYPE", Text: "Operation against a key holding the wrong kind of value"}

var errArgs = fmt.Errorf("%w: wrong number of arguments", ErrInvalid)

// runOp runs a request here, or says where to go.
func (e *engine) runOp(ctx context.Context, q *request, wait patience) (value []byte, ran bool, err error) {
	if len(q.args) == 0 && q.op != opDo {
		return nil, false, errArgs
	}
	switch q.op {
	case opGet:
		return e.runGet(ctx, q, wait)
	case opDo:
		return e.runCommand(ctx, q, wait)
	}
	return e.runWriteOp(ctx, q, wait)
}

// runWriteOp is runOp for the calls that write. It is a function of its own, as what its
// closure shares with it lies on the heap from its beginning on.
func (e *engine) runWriteOp(ctx context.Context, q *request, wait patience) (value []byte, ran bool, err error) {
	r := Request{Keys: []string{string(q.args[0])}, Name: q.op.String(), Asking: q.asking, AckReplicas: q.acks, wrote: &q.wrote}
	ran, err = e.execute(ctx, new(Tx), &r, func(tx *Tx) (err error) {
		value, err = runWrite(tx, q, r.Keys[0])
		return err
	}, wait)
	return value, ran, err
}

func (e *engine) runGet(ctx context.Context, q *request, wait patience) ([]byte, bool, error) {
	key := unsafe.String(unsafe.SliceData(q.args[0]), len(q.args[0])) // nobody changes an argument
	if len(key) > e.maxKey {
		return nil, false, tooLong("key", len(key), e.maxKey)
	}
	slot, s := KeySlot(key), stay{patience: wait}
	for {
		if c := e.cell(slot); c != nil && c.mark.Load() != nil {
			return e.getMarked(ctx, key, q.asking, wait)
		}
		value, found, served, h, err := e.get(ctx, slot, key, wait)
		switch {
		case served && err == nil && !found:
			return nil, false, ErrNotFound
		case served:
			return value, false, err
		case h == nil && e.cell(slot) != nil && e.cell(slot).mark.Load() != nil:
			continue // marked meanwhile
		}
		if err := e.notServed(ctx, slot, &Request{ReadOnly: true, Asking: q.asking}, h, &s); err != nil {
			return nil, false, err
		}
	}
}

// getMarked is get in a slot that has a mark.
func (e *engine) getMarked(ctx context.Context, key string, asking bool, wait patience) (value []byte, ran bool, err error) {
	r := Request{Keys: []string{key}, Name: opGet.String(), ReadOnly: true, Asking: asking}
	found := false
	_, err = e.execute(ctx, new(Tx), &r, func(tx *Tx) (err error) {
		var head store.Entry
		if head, found, err = tx.Entry(key); err == nil && head.Kind != 0 {
			err = errWrongKind
		}
		value = head.Value
		return err
	}, wait)
	if err == nil && !found {
		err = ErrNotFound
	}
	return value, false, err
}

func tooLong(what string, n, limit int) error {
	return fmt.Errorf("%w: %s of %d bytes, expected at most %d", ErrTooLarge, what, n, limit)
}

// runWrite is the calls that write.
func runWrite(tx *Tx, q *request, key string) ([]byte, error) {
	args := q.args[1:]
	switch {
	case q.op == opSet && len(args) == 2:
		at, err := strconv.ParseInt(string(args[1]), 10, 64)
		if err != nil || at < 0 {
			return nil, fmt.Errorf("%w: time of expiry %q, expected milliseconds", ErrInvalid, args[1])
		}
		return nil, tx.PutEntry(key, store.Entry{Value: q.own(args[0]), ExpireAt: at})
	case q.op == opDelete && len(args) == 0:
		found, err := tx.Delete(key)
		return boolReply(found), err
	case q.op == opExpire && len(args) == 1:
		return runExpire(tx, key, args[0])
	case q.op == opIncr && len(args) == 1:
		return runIncr(tx, key, args[0])
	case q.op == opCompareAndSwap && len(args) == 3:
		return nil, runCompareAndSwap(tx, key, args, q)
	default:
		return nil, errArgs
	}
}

// own is an argument that the store may keep: one that has come over the bus
// shares the memory of its frame.
func (q *request) own(arg []byte) []byte {
	if q.shared {
		return bytes.Clone(arg)
	}
	return arg
}

func boolReply(b bool) []byte {
	if b {
		return []byte{'1'}
	}
	return []byte{'0'}
}

func runExpire(tx *Tx, key string, ttl []byte) ([]byte, error) {
	ms, err := strconv.ParseInt(string(ttl), 10, 64)
	if err != nil {
		return nil, fmt.Errorf("%w: time to live %q, expected milliseconds", ErrInvalid, ttl)
	}
	if ms <= 0 {
		found, err := tx.Delete(key)
		return boolReply(found), err
	}
	if ms > math.MaxInt64/int64(time.Millisecond) {
		return nil, fmt.Errorf("%w: time to live of %d ms, expected at most %d", ErrInvalid, ms, math.MaxInt64/int64(time.Millisecond))
	}
	found, err := tx.Expire(key, tx.Now().Add(time.Duration(ms)*time.Millisecond))
	return boolReply(found), err
}

// runIncr adds to a decimal number, as Redis's INCRBY does. The time of expiry
// stays.
func runIncr(tx *Tx, key string, by []byte) ([]byte, error) {
	delta, err := strconv.ParseInt(string(by), 10, 64)
	if err != nil {
		return nil, fmt.Errorf("%w: increment %q, expected a whole number", ErrInvalid, by)
	}
	e, found, err := tx.Entry(key)
	if err != nil {
		return nil, err
	}
	n := int64(0)
	if e.Kind != 0 {
		return nil, errWrongKind
	}
	if found {
		if n, err = strconv.ParseInt(string(e.Value), 10, 64); err != nil {
			return nil, &CommandError{Code: "ERR", Text: "value is not an integer or out of range"}
		}
	}
	if delta > 0 && n > math.MaxInt64-delta || delta < 0 && n < math.MinInt64-delta {
		return nil, &CommandError{Code: "ERR", Text: "increment or decrement would overflow"}
	}
	v := strconv.AppendInt(nil, n+delta, 10)
	return v, tx.PutEntry(key, store.Entry{Value: v, ExpireAt: e.ExpireAt})
}

// runCompareAndSwap stores args[2] if the key holds args[1]; args[0] is '1' if it
// is to hold anything at all.
func runCompareAndSwap(tx *Tx, key string, args [][]byte, q *request) error {
	e, found, err := tx.Entry(key)
	if err == nil && e.Kind != 0 {
		err = errWrongKind
	}
	if err != nil {
		return err
	}
	if want := string(args[0]) == "1"; found != want || found && !bytes.Equal(e.Value, args[1]) {
		return ErrConflict
	}
	return tx.PutEntry(key, store.Entry{Value: q.own(args[2]), ExpireAt: e.ExpireAt})
}

// runCommand runs a command of the application.
func (e *engine) runCommand(ctx context.Context, q *request, wait patience) (value []byte, ran bool, err error) {
	c := e.commands[q.name]
	if c == nil {
		return nil, false, fmt.Errorf("%w %q at this node: expected one of its Config.Commands", ErrUnknownCommand, q.name)
	}
	keys, err := c.keysOf(q.args)
	if err != nil {
		return nil, false, err
	}
	r := Request{Keys: keys, ReadOnly: c.ReadOnly, Name: c.Name, Asking: q.asking, wrote: &q.wrote}
	if !c.ReadOnly {
		r.AckReplicas = q.acks
	}
	ran, err = e.execute(ctx, new(Tx), &r, func(tx *Tx) error {
		var err error
		if value, err = c.Run(tx, q.args); err != nil {
			return asCommandError(err)
		}
		if len(value) > e.maxValue {
			return tooLong("reply", len(value), e.maxValue)
		}
		return nil
	}, wait)
	if err != nil {
		value = nil
	}
	return value, ran, err
}

// keysOf is the keys that a call of the command touches.
func (c *Command) keysOf(args [][]byte) (keys []string, err error) {
	raw := args
	if len(raw) > 1 {
		raw = raw[:1]
	}
	if c.Keys != nil {
		defer func() {
			if p := recover(); p != nil {
				err = fmt.Errorf("%w: Command.Keys of %q panicked: %v", ErrInvalid, c.Name, p)
			}
		}()
		raw = c.Keys(args)
	}
	for _, k := range raw {
		keys = append(keys, string(k))
	}
	return keys, nil
}

// asCommandError is an error of a command as its caller sees it. What a Tx says
// keeps its meaning; what other nodes have told the command does not, or its
// caller would take it for an answer of this one.
func asCommandError(err error) error {
	var cmd *CommandError
	if errors.As(err, &cmd) {
		return &CommandError{Code: cut(cmd.Code, commandCodeMax), Text: cut(cmd.Text, errorTextMax)}
	}
	for _, s := range [...]error{ErrTooLarge, ErrCrossSlot, ErrReadOnly, ErrInTx, ErrInvalid, ErrConflict, ErrNotFound} {
		if errors.Is(err, s) {
			return err
		}
	}
	return &CommandError{Code: "ERR", Text: cut(words(err), errorTextMax)}
}

const (
	errorTextMax   = 16 << 10 // bytes of an error's text; what is longer is cut
	commandCodeMax = 64
)

// cut is text, at most limit bytes of it, and says so where some are missing.
func cut(text string, limit int) string {
	const more = "..."
	if len(text) <= limit {
		return text
	}
	return strings.ToValidUTF8(text[:limit-len(more)], "") + more
}
