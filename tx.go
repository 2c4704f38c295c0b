package slotmesh

import (
	"context"
	"fmt"
	"time"

	"github.com/slotmesh/slotmesh/store"
	"github.com/tidwall/btree"
)

// Bounds of one Tx.
const (
	maxTxOps   = 1 << 22 // changes: enough to take a sorted set of two million members apart
	txBytesPer = 2       // keys, fields and values may have this many times MaxValue,
	txBytesMin = 1 << 20 // or this many bytes
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
	// holds the lock of a slot, and calls no Client: see Tx.Context. It checks how
	// many arguments there are. An error discards what it has written and reaches
	// the caller as a *CommandError; so does a panic. One that matches ErrTooLarge,
	// ErrCrossSlot, ErrReadOnly, ErrInTx, ErrInvalid, ErrConflict or ErrNotFound
	// still does at the caller. The arguments and what Tx hands out must not be
	// changed; what it hands in must not be changed afterwards.
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
	named    string // a key that is known to be in the slot
	ops      []store.Op
	bytes    int
	after    []func()

	// What has been written. Most commands write one key: it has a place of its
	// own.
	onlyKey string
	only    *txKey            // nil: nothing has been written
	others  map[string]*txKey // but for the only one
	spare   []*txKey          // of requests before
}

// txKey is what a Tx has done to a key.
type txKey struct {
	erased  bool // nothing of what was stored shows
	wrote   bool // the head
	hasHead bool // and there is one
	head    store.Entry
	fields  btree.Map[string, txField]
	unseen  int // of fields: put or deleted since learn was called
}

// txField is a field that a Tx has put or deleted.
type txField struct {
	value   []byte
	deleted bool

	// What is stored meanwhile, once it has been looked for.
	seen   bool
	stored bool // the field is
	rank   int  // its place among the stored ones
}

// Bounds of what a Tx keeps for the next request.
const (
	txKeepOps  = 1 << 10
	txKeepKeys = 64
)

// begin makes a Tx ready for a request.
func (t *Tx) begin(ctx context.Context, e *engine, slot Slot, r *Request) {
	t.ctx, t.e, t.slot, t.readOnly = ctx, e, slot, r.ReadOnly
	if len(r.Keys) > 0 {
		t.named = r.Keys[0]
	}
}

// end lets go of a request. What stays for the next one is memory alone.
func (t *Tx) end() {
	clear(t.ops)
	if t.only != nil {
		t.release(t.only)
	}
	for _, k := range t.others {
		t.release(k)
	}
	clear(t.others)
	keep := Tx{ops: t.ops[:0], others: t.others, spare: t.spare}
	if cap(keep.ops) > txKeepOps {
		keep.ops = nil
	}
	if len(keep.spare) > txKeepKeys {
		keep.others, keep.spare = nil, nil
	}
	*t = keep
}

func (t *Tx) release(k *txKey) {
	*k = txKey{}
	t.spare = append(t.spare, k)
}

// written is what has been done to a key, or nil.
func (t *Tx) written(key string) *txKey {
	if t.only == nil {
		return nil
	}
	if t.onlyKey == key {
		return t.only
	}
	return t.others[key]
}

// writing makes what written does not find.
func (t *Tx) writing(key string) (k *txKey) {
	if n := len(t.spare); n > 0 {
		k, t.spare = t.spare[n-1], t.spare[:n-1]
	} else {
		k = new(txKey)
	}
	switch {
	case t.only == nil:
		t.only, t.onlyKey = k, key
	case t.others == nil:
		t.others = map[string]*txKey{key: k}
	default:
		t.others[key] = k
	}
	return k
}

// showsHead reports whether what the command has written, and not what is
// stored, says whether a key has a head.
func (k *txKey) showsHead() bool { return k != nil && (k.erased || k.wrote) }

func (k *txKey) putHead(e store.Entry) { k.wrote, k.hasHead, k.head = true, true, e }

func (k *txKey) dropHead() { k.wrote, k.hasHead, k.head = true, false, store.Entry{} }

// eraseAll makes nothing of the key show.
func (k *txKey) eraseAll() {
	k.erased = true
	k.dropHead()
	k.fields, k.unseen = btree.Map[string, txField]{}, 0
}

func (k *txKey) setField(name string, f txField) {
	if was, found := k.fields.Set(name, f); !found || was.seen {
		k.unseen++
	}
}

type inTxKey struct{}

// inTx reports whether ctx is that of a running command.
func inTx(ctx context.Context) bool { return ctx.Value(inTxKey{}) != nil }

// Context is the caller's. A Client or Execute call made with it, or with one
// derived from it, returns ErrInTx, for it would wait for the lock that its own
// command holds. With any other context it may wait for ever.
func (t *Tx) Context() context.Context {
	if t.ctx == nil {
		t.ctx = context.Background()
	}
	return context.WithValue(t.ctx, inTxKey{}, t)
}

// After has f called when the command has ended, still under the lock of the slot:
// what it has written is visible and has been told to who watches, or has been
// discarded. f must not wait, nor use the Tx.
func (t *Tx) After(f func()) { t.after = append(t.after, f) }

// Slot is the slot of every key that the command may touch.
func (t *Tx) Slot() Slot { return t.slot }

// Now is when the command began. It stays the same while the command runs.
func (t *Tx) Now() time.Time {
	if t.at.IsZero() {
		t.at = time.Now()
	}
	return t.at
}

// Get returns the value of a plain key, and whether there is one. Of a
// collection it is the header; see Entry.
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
	if k := t.written(key); k.showsHead() {
		return k.head, k.hasHead, nil
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
	if e.ExpireAt < 0 {
		return fmt.Errorf("%w: time of expiry %d, expected Unix milliseconds or 0 for never", ErrInvalid, e.ExpireAt)
	}
	k, err := t.write(key, "", e.Value)
	if err != nil {
		return err
	}
	if e.Kind == 0 {
		t.erase(key, k)
	}
	k.putHead(e)
	t.add(store.Op{Code: store.OpPut, Key: key, Value: e.Value, ExpireAt: e.ExpireAt, Kind: e.Kind})
	return nil
}

// erase removes what is stored under a key, where that is more than a head.
func (t *Tx) erase(key string, k *txKey) {
	if k.erased && k.fields.Len() == 0 {
		return
	}
	more := k.fields.Len() > 0
	if !more {
		_, found, err := t.e.ranked.At(uint16(t.slot), key, 0)
		more = found || err != nil
	}
	if more {
		t.add(store.Op{Code: store.OpDeleteKey, Key: key})
	}
	k.eraseAll()
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
	k, err := t.write(key, "", nil)
	if err != nil {
		return false, err
	}
	k.eraseAll()
	t.add(store.Op{Code: store.OpDeleteKey, Key: key})
	return found, nil
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
	k, err := t.write(key, "", e.Value)
	if err != nil {
		return false, err
	}
	k.putHead(e)
	t.add(store.Op{Code: store.OpPut, Key: key, Value: e.Value, ExpireAt: e.ExpireAt, Kind: e.Kind})
	return true, nil
}

// GetField returns the value of a field of a key. The empty field is the head.
func (t *Tx) GetField(key, field string) (value []byte, found bool, err error) {
	if field == "" {
		return t.Get(key)
	}
	if err := t.checkField(key, field); err != nil {
		return nil, false, err
	}
	if gone, err := t.gone(key); err != nil || gone {
		return nil, false, err
	}
	if k := t.written(key); k != nil {
		if f, ok := k.fields.Get(field); ok {
			return f.value, !f.deleted, nil
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
	if t.written(key).showsHead() {
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
	k, err := t.write(key, field, value)
	if err != nil {
		return err
	}
	k.setField(field, txField{value: value})
	t.add(store.Op{Code: store.OpPut, Key: key, Field: field, Value: value})
	return nil
}

// DeleteField removes a field of a key and leaves the others.
func (t *Tx) DeleteField(key, field string) error {
	k, err := t.write(key, field, nil)
	if err != nil {
		return err
	}
	if field == "" {
		k.dropHead()
	} else {
		k.setField(field, txField{deleted: true})
	}
	t.add(store.Op{Code: store.OpDelete, Key: key, Field: field})
	return nil
}

// write checks that an entry may be written, and counts its bytes. Where it
// returns an error nothing has changed: a command may go on without that entry.
func (t *Tx) write(key, field string, value []byte) (*txKey, error) {
	if err := t.checkField(key, field); err != nil {
		return nil, err
	}
	bytes := t.bytes + len(key) + len(field) + len(value)
	switch limit := t.e.bytesMax(); {
	case t.readOnly:
		return nil, ErrReadOnly
	case len(value) > t.e.maxValue:
		return nil, tooLong("value", len(value), t.e.maxValue)
	case bytes > limit:
		return nil, fmt.Errorf("%w: a command writes %d bytes, expected at most %d", ErrTooLarge, bytes, limit)
	case len(t.ops)+opsPerWrite > maxTxOps:
		return nil, fmt.Errorf("%w: a command makes more than %d changes", ErrTooLarge, maxTxOps-opsPerWrite)
	}
	k, err := t.writingFresh(key)
	if err == nil {
		t.bytes = bytes
	}
	return k, err
}

// Room is how much more the command may write: calls that write, of a key that it
// has written already (the first one of a key counts for up to three), and bytes
// of keys, fields and values. A command that would write only a part of what it is
// told to, and may not fail half way, asks first.
func (t *Tx) Room() (calls, bytes int) {
	if t.e == nil {
		return 0, 0
	}
	return max(0, maxTxOps-len(t.ops)-(opsPerWrite-1)), t.e.bytesMax() - t.bytes
}

// bytesMax bounds what one Tx writes, and the arguments of one request.
func (e *engine) bytesMax() int { return e.maxKey + max(txBytesPer*e.maxValue, txBytesMin) }

// opsPerWrite is the most that one call adds: what has expired goes, what is in
// the way goes, the entry comes.
const opsPerWrite = 3

// writingFresh is writing; it makes room where a key's time has come: nothing of
// it may show under what is written now.
func (t *Tx) writingFresh(key string) (*txKey, error) {
	if k := t.written(key); k != nil {
		return k, nil
	}
	e, found, err := t.e.store.Get(uint16(t.slot), key, "")
	if err != nil {
		return nil, err
	}
	k := t.writing(key)
	if found && t.expired(&e) {
		k.eraseAll()
		t.add(store.Op{Code: store.OpDeleteKey, Key: key})
	}
	return k, nil
}

// add appends a change.
func (t *Tx) add(op store.Op) { t.ops = append(t.ops, op) }

// check refuses a key that is too long or in another slot.
func (t *Tx) check(key string) error {
	if t.e == nil {
		return fmt.Errorf("%w: a Tx is used after its command has returned", ErrInvalid)
	}
	if key == t.named {
		return nil
	}
	if len(key) > t.e.maxKey {
		return tooLong("key", len(key), t.e.maxKey)
	}
	if s := KeySlot(key); s != t.slot {
		return fmt.Errorf("%w: key %.64q is in slot %d, the command runs in slot %d", ErrCrossSlot, key, s, t.slot)
	}
	return nil
}

// checkField is check for a key and a field.
func (t *Tx) checkField(key, field string) error {
	if err := t.check(key); err != nil {
		return err
	}
	if len(field) > t.e.maxValue {
		return tooLong("field", len(field), t.e.maxValue)
	}
	return nil
}
