package slotmesh

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/slotmesh/slotmesh/store"
)

// Bounds of one Tx.
const (
	maxTxOps   = 1 << 16
	txBytesPer = 2 // a Tx may write this many times MaxValue
)

// Command is application code that runs at the primary of a slot, under the
// slot's lock: no other call on keys of that slot runs meanwhile.
type Command struct {
	// Name is what Client.Do calls it by. 1 to 64 letters, digits, '.', '_' or
	// '-'; case counts.
	Name string

	// ReadOnly says that Run writes nothing. Read-only commands of one slot run
	// beside each other.
	ReadOnly bool

	// Keys returns the keys that Run touches, all in one slot. nil takes the
	// first argument. The arguments must not be kept or changed.
	Keys func(args [][]byte) [][]byte

	// Run does the work and returns the reply. It computes and does not wait: it
	// holds the lock of a slot. An error discards what it has written and
	// reaches the caller as a *CommandError; so does a panic. The arguments and
	// what Tx hands out must not be changed; what it hands in must not be changed
	// afterwards.
	Run func(tx *Tx, args [][]byte) ([]byte, error)
}

func validateCommands(cmds []Command) (errs []error) {
	seen := map[string]bool{}
	for i, c := range cmds {
		switch {
		case c.Name == "" || len(c.Name) > 64 || !validLabel(c.Name):
			errs = append(errs, fmt.Errorf("slotmesh: Config.Commands[%d].Name is %.80q, expected 1 to 64 letters, digits, '.', '_' and '-'", i, c.Name))
		case seen[c.Name]:
			errs = append(errs, fmt.Errorf("slotmesh: Config.Commands[%d].Name is %q, which is there already: expected each name once", i, c.Name))
		case c.Run == nil:
			errs = append(errs, fmt.Errorf("slotmesh: Config.Commands[%d].Run of %q is nil, expected a function", i, c.Name))
		}
		seen[c.Name] = true
	}
	return errs
}

// Tx is what a command sees of its slot. It reads what it has written. What it
// writes becomes visible all at once when the command returns without an error.
// It is valid until then, in the goroutine that was given it.
type Tx struct {
	ctx      context.Context
	e        *engine
	slot     Slot
	at       time.Time
	readOnly bool
	ops      []store.Op
	bytes    int
	keys     map[string]*txKey // what has been written
	err      error             // the first that a write met
}

// txKey is what a Tx has done to a key.
type txKey struct {
	erased bool // nothing of what was stored shows
	head   *store.Entry
	noHead bool
	fields map[string]*store.Entry // nil entry: deleted
}

type inTxKey struct{}

// inTx reports whether ctx is that of a running command.
func inTx(ctx context.Context) bool { return ctx.Value(inTxKey{}) != nil }

// Context is the caller's. A Client or Execute call made with it returns
// ErrInTx, for it would wait for the lock that its own command holds.
func (t *Tx) Context() context.Context {
	if t.ctx == nil {
		t.ctx = context.Background()
	}
	return context.WithValue(t.ctx, inTxKey{}, t)
}

// Slot is the slot of every key that the command may touch.
func (t *Tx) Slot() Slot { return t.slot }

// Now is when the command began. It stays the same while the command runs.
func (t *Tx) Now() time.Time {
	if t.at.IsZero() {
		t.at = time.Now()
	}
	return t.at
}

// Get returns the value of a plain key, and whether there is one.
func (t *Tx) Get(key string) (value []byte, found bool, err error) {
	e, found, err := t.head(key)
	return e.Value, found, err
}

// Entry returns the head of a key: its kind, time of expiry and value.
func (t *Tx) Entry(key string) (store.Entry, bool, error) { return t.head(key) }

// head is a key's head as the command sees it. A key whose time has come is not
// there.
func (t *Tx) head(key string) (store.Entry, bool, error) {
	if err := t.check(key); err != nil {
		return store.Entry{}, false, err
	}
	if k := t.keys[key]; k != nil && (k.erased || k.head != nil || k.noHead) {
		if k.head == nil {
			return store.Entry{}, false, nil
		}
		return *k.head, true, nil
	}
	e, found, err := t.e.store.Get(uint16(t.slot), key, "")
	if err != nil || !found || t.expired(&e) {
		return store.Entry{}, false, err
	}
	return e, true, nil
}

func (t *Tx) expired(e *store.Entry) bool {
	return e.ExpireAt != 0 && e.ExpireAt <= t.Now().UnixMilli()
}

// Put stores a plain value under key, in place of all that was there.
func (t *Tx) Put(key string, value []byte) error {
	return t.PutEntry(key, store.Entry{Value: value})
}

// PutEntry stores the head of a key, with kind and time of expiry. A plain one
// (kind 0) takes the place of all that was there; one of a collection leaves
// the fields.
func (t *Tx) PutEntry(key string, e store.Entry) error {
	k, err := t.write(key, len(key)+len(e.Value))
	if err != nil {
		return err
	}
	if e.Kind == 0 {
		t.erase(key, k)
	}
	k.head, k.noHead = &e, false
	return t.add(store.Op{Code: store.OpPut, Key: key, Value: e.Value, ExpireAt: e.ExpireAt, Kind: e.Kind})
}

// erase removes what is stored under a key, where that is more than a head.
func (t *Tx) erase(key string, k *txKey) {
	if k.erased && len(k.fields) == 0 {
		return
	}
	more := len(k.fields) > 0
	if !more {
		items, _, err := t.e.store.Range(uint16(t.slot), key, store.FirstField, 1)
		more = err != nil || len(items) > 0
	}
	if more {
		t.err = t.add(store.Op{Code: store.OpDeleteKey, Key: key})
	}
	k.erased, k.fields, k.head, k.noHead = true, nil, nil, true
}

// Delete removes a key with all its fields, and reports whether it was there.
func (t *Tx) Delete(key string) (bool, error) {
	_, found, err := t.head(key)
	if err != nil {
		return false, err
	}
	if !found {
		items, _, err := t.Range(key, "", 1)
		if err != nil {
			return false, err
		}
		found = len(items) > 0
	}
	k, err := t.write(key, len(key))
	if err != nil {
		return false, err
	}
	k.erased, k.fields, k.head, k.noHead = true, nil, nil, true
	return found, t.add(store.Op{Code: store.OpDeleteKey, Key: key})
}

// Expire sets the time at which a key is gone; the zero time is never. It
// reports whether the key is there.
func (t *Tx) Expire(key string, at time.Time) (bool, error) {
	e, found, err := t.head(key)
	if err != nil || !found {
		return false, err
	}
	e.ExpireAt = 0
	if !at.IsZero() {
		e.ExpireAt = max(1, at.UnixMilli())
	}
	k, err := t.write(key, len(key)+len(e.Value))
	if err != nil {
		return false, err
	}
	k.head, k.noHead = &e, false
	return true, t.add(store.Op{Code: store.OpPut, Key: key, Value: e.Value, ExpireAt: e.ExpireAt, Kind: e.Kind})
}

// GetField returns the value of a field of a key. The empty field is the head.
func (t *Tx) GetField(key, field string) (value []byte, found bool, err error) {
	if field == "" {
		return t.Get(key)
	}
	if err := t.check(key); err != nil {
		return nil, false, err
	}
	if gone, err := t.gone(key); err != nil || gone {
		return nil, false, err
	}
	if k := t.keys[key]; k != nil {
		if e, ok := k.fields[field]; ok {
			if e == nil {
				return nil, false, nil
			}
			return e.Value, true, nil
		}
		if k.erased {
			return nil, false, nil
		}
	}
	e, found, err := t.e.store.Get(uint16(t.slot), key, field)
	return e.Value, found, err
}

// gone reports whether what is stored under a key has expired.
func (t *Tx) gone(key string) (bool, error) {
	if k := t.keys[key]; k != nil && (k.erased || k.head != nil || k.noHead) {
		return false, nil
	}
	e, found, err := t.e.store.Get(uint16(t.slot), key, "")
	return err == nil && found && t.expired(&e), err
}

// PutField stores a field of a key. The empty field is the head of a plain key.
func (t *Tx) PutField(key, field string, value []byte) error {
	if field == "" {
		return t.Put(key, value)
	}
	k, err := t.write(key, len(key)+len(field)+len(value))
	if err != nil {
		return err
	}
	if k.fields == nil {
		k.fields = map[string]*store.Entry{}
	}
	k.fields[field] = &store.Entry{Value: value}
	return t.add(store.Op{Code: store.OpPut, Key: key, Field: field, Value: value})
}

// DeleteField removes a field of a key and leaves the others.
func (t *Tx) DeleteField(key, field string) error {
	k, err := t.write(key, len(key)+len(field))
	if err != nil {
		return err
	}
	if field == "" {
		k.head, k.noHead = nil, true
	} else {
		if k.fields == nil {
			k.fields = map[string]*store.Entry{}
		}
		k.fields[field] = nil
	}
	return t.add(store.Op{Code: store.OpDelete, Key: key, Field: field})
}

// Range returns at most limit fields of a key whose name is from or comes after
// it, in ascending order of their bytes; the head is none of them. limit 0 is
// 1024. more says that others follow: go on from the last name + "\x00".
func (t *Tx) Range(key, from string, limit int) (items []store.Item, more bool, err error) {
	if err := t.check(key); err != nil {
		return nil, false, err
	}
	if limit < 0 {
		return nil, false, fmt.Errorf("%w: limit %d of Range, expected 0 or more", ErrInvalid, limit)
	}
	if limit == 0 {
		limit = 1024
	}
	if from == "" {
		from = store.FirstField
	}
	if gone, err := t.gone(key); err != nil || gone {
		return nil, false, err
	}
	return t.rangeOf(key, from, limit)
}

// rangeOf merges what is stored with what has been written. It returns at most
// limit items from from on, the head not among them.
func (t *Tx) rangeOf(key, from string, limit int) (out []store.Item, more bool, err error) {
	k := t.keys[key]
	if k == nil {
		return t.e.store.Range(uint16(t.slot), key, from, limit)
	}
	written := k.writtenFrom(from)
	emit := func(field string, e *store.Entry) {
		if e != nil {
			out = append(out, store.Item{Key: key, Field: field, Entry: *e})
		}
	}
	for stored := !k.erased; stored && len(out) <= limit; {
		var items []store.Item
		if items, stored, err = t.e.store.Range(uint16(t.slot), key, from, limit+1); err != nil {
			return nil, false, err
		}
		for i := range items {
			field := items[i].Field
			for len(written) > 0 && written[0] < field {
				emit(written[0], k.fields[written[0]])
				written = written[1:]
			}
			if len(written) > 0 && written[0] == field {
				emit(field, k.fields[field])
				written = written[1:]
			} else {
				emit(field, &items[i].Entry)
			}
			from = field + "\x00"
		}
	}
	for _, field := range written {
		if len(out) <= limit {
			emit(field, k.fields[field])
		}
	}
	if len(out) > limit {
		return out[:limit], true, nil
	}
	return out, false, nil
}

// writtenFrom is the fields that a command has put or deleted, from from on, in
// order.
func (k *txKey) writtenFrom(from string) []string {
	var names []string
	for f := range k.fields {
		if f >= from {
			names = append(names, f)
		}
	}
	slices.Sort(names)
	return names
}

// write checks that a key may be written, and counts the bytes.
func (t *Tx) write(key string, n int) (*txKey, error) {
	if err := t.check(key); err != nil {
		return nil, err
	}
	if t.readOnly {
		return nil, ErrReadOnly
	}
	if t.bytes += n; t.bytes > txBytesPer*t.e.maxValue {
		return nil, fmt.Errorf("%w: a command writes %d bytes, expected at most %d", ErrTooLarge, t.bytes, txBytesPer*t.e.maxValue)
	}
	if len(t.ops) >= maxTxOps {
		return nil, fmt.Errorf("%w: a command makes more than %d changes", ErrTooLarge, maxTxOps)
	}
	k := t.keys[key]
	if k == nil {
		k = &txKey{}
		if err := t.eraseExpired(key, k); err != nil {
			return nil, err
		}
		if t.keys == nil {
			t.keys = map[string]*txKey{}
		}
		t.keys[key] = k
	}
	return k, nil
}

// eraseExpired makes room where a key's time has come: nothing of it may show
// under what is written now.
func (t *Tx) eraseExpired(key string, k *txKey) error {
	e, found, err := t.e.store.Get(uint16(t.slot), key, "")
	if err != nil || !found || !t.expired(&e) {
		return err
	}
	k.erased, k.noHead = true, true
	return t.add(store.Op{Code: store.OpDeleteKey, Key: key})
}

// add appends a change.
func (t *Tx) add(op store.Op) error {
	if t.err != nil {
		return t.err
	}
	if len(op.Value) > t.e.maxValue {
		return fmt.Errorf("%w: value of %d bytes, expected at most %d", ErrTooLarge, len(op.Value), t.e.maxValue)
	}
	t.ops = append(t.ops, op)
	return nil
}

// check refuses a key that is too long or in another slot.
func (t *Tx) check(key string) error {
	if len(key) > t.e.maxKey {
		return fmt.Errorf("%w: key of %d bytes, expected at most %d", ErrTooLarge, len(key), t.e.maxKey)
	}
	if s := KeySlot(key); s != t.slot {
		return fmt.Errorf("%w: key %.64q is in slot %d, the command runs in slot %d", ErrCrossSlot, key, s, t.slot)
	}
	return nil
}
