package store

import (
	"fmt"
	"hash/maphash"
	"math"
	"sync/atomic"
)

// pageSize is the number of items that Range and Scan return where the caller
// leaves it to the store.
const pageSize = 1024

// Memory is a [Store] in the memory of the process. It keeps the values and
// strings that it is given, without a copy; an empty slot costs next to nothing.
// It fails only on bad input and after Close. Make one with [NewMemory].
//
// A key or a value is at most 4 GiB - 1 byte, a slot at most 2^32 - 2 keys.
type Memory struct {
	seed  maphash.Seed                     // random per store, so that nobody can choose keys that collide
	slots atomic.Pointer[[NumSlots]*table] // nil once closed; element i is guarded by the caller's lock of slot i
}

// NewMemory returns an empty store.
func NewMemory() *Memory {
	m := &Memory{seed: maphash.MakeSeed()}
	m.slots.Store(new([NumSlots]*table))
	return m
}

// Get implements [Store]. It does not allocate.
func (m *Memory) Get(slot uint16, key, field string) (got Entry, found bool, err error) {
	if field == "" {
		got.Value, got.Kind, got.ExpireAt, found, err = m.Head(slot, key)
		return got, found, err
	}
	t, err := m.table(slot)
	if t == nil {
		return got, false, err
	}
	if e := t.find(key); e != nil {
		got.Value, found = e.field(field)
	}
	return got, found, nil
}

// Head is Get of a key's head, in parts: they stay in registers, where an [Entry],
// which has more words than the compiler keeps there, is written to memory and copied
// by every function that it passes. It does not allocate.
func (m *Memory) Head(slot uint16, key string) (value []byte, kind byte, expireAt int64, found bool, err error) {
	t, err := m.table(slot)
	if t == nil {
		return nil, 0, 0, false, err
	}
	e := t.find(key)
	if e == nil || !e.hasHead {
		return nil, 0, 0, false, nil
	}
	value, kind, expireAt = e.headParts()
	return value, kind, expireAt, true, nil
}

// Range implements [Store].
func (m *Memory) Range(slot uint16, key, from string, limit int) ([]Item, bool, error) {
	t, err := m.table(slot)
	if err == nil {
		err = CheckLimit(limit)
	}
	if t == nil || err != nil {
		return nil, false, err
	}
	e := t.find(key)
	if e == nil {
		return nil, false, nil
	}
	if limit == 0 {
		limit = pageSize
	}
	items, more := e.items(from, limit)
	return items, more, nil
}

// RangeBack implements [Ranked].
func (m *Memory) RangeBack(slot uint16, key, before string, limit int) ([]Item, bool, error) {
	t, err := m.table(slot)
	if err == nil {
		err = CheckLimit(limit)
	}
	e := t.collectionOf(key)
	if e == nil || err != nil {
		return nil, false, err
	}
	if limit == 0 {
		limit = pageSize
	}
	items, more := e.itemsBack(before, limit)
	return items, more, nil
}

// Rank implements [Ranked].
func (m *Memory) Rank(slot uint16, key, field string) (int, error) {
	t, err := m.table(slot)
	e := t.collectionOf(key)
	if e == nil || err != nil {
		return 0, err
	}
	return e.collection().rank(field), nil
}

// At implements [Ranked].
func (m *Memory) At(slot uint16, key string, i int) (Item, bool, error) {
	t, err := m.table(slot)
	e := t.collectionOf(key)
	if e == nil || err != nil {
		return Item{}, false, err
	}
	field, value, ok := e.collection().fields.GetAt(i)
	if !ok {
		return Item{}, false, nil
	}
	return Item{Key: e.name(), Field: field, Entry: Entry{Value: bytesOf(value)}}, true, nil
}

// Apply implements [Store]. Nothing can fail once the ops are checked, and the
// caller keeps readers out meanwhile; that is all it takes to be atomic.
func (m *Memory) Apply(slot uint16, ops []Op) error {
	slots := m.slots.Load()
	switch {
	case slots == nil:
		return ErrClosed
	case slot >= NumSlots:
		return CheckSlot(slot)
	}
	if err := CheckOps(ops); err != nil {
		return err
	}
	if err := checkRoom(slots[slot], ops); err != nil {
		return err
	}
	for i := range ops {
		slots[slot] = m.apply(slots[slot], &ops[i])
	}
	return nil
}

// apply makes one change to a table and returns the table that the slot has
// now, nil where it needs none.
func (m *Memory) apply(t *table, op *Op) *table {
	if op.Code == OpDropSlot {
		return nil
	}
	if op.Code == OpPut {
		if t == nil {
			t = newTable(m.seed)
		}
		t.put(op)
		return t
	}
	if t == nil {
		return nil
	}
	if op.Code == OpDeleteKey {
		t.remove(op.Key)
	} else {
		t.removeField(op.Key, op.Field)
	}
	if t.len == 0 && t.large() {
		return nil // a small one stays, for the slot whose only key comes and goes
	}
	return t
}

// Len implements [Store].
func (m *Memory) Len(slot uint16) (int, error) {
	t, err := m.table(slot)
	if t == nil {
		return 0, err
	}
	return t.len, nil
}

// LenExpiring implements [Expiring].
func (m *Memory) LenExpiring(slot uint16) (int, error) {
	t, err := m.table(slot)
	if t == nil {
		return 0, err
	}
	return t.expiring, nil
}

// Scan implements [Store]. The cursor is the number of keys still to come.
// Keys stand in an array that is walked from its end to its start; a key is
// added at the end, and where one is removed the last one takes its place. So
// a key only ever moves towards the start, where the walk has not been yet,
// and none that stays can be missed.
func (m *Memory) Scan(slot uint16, cursor uint64, limit int) ([]Item, uint64, error) {
	t, err := m.table(slot)
	if err == nil {
		err = CheckLimit(limit)
	}
	if t == nil || t.len == 0 || err != nil {
		return nil, 0, err
	}
	if limit == 0 {
		limit = pageSize
	}
	end := t.len
	if cursor > 0 && cursor < uint64(end) {
		end = int(cursor)
	}
	start := max(end-limit, 0)
	items := make([]Item, 0, end-start)
	for i := end - 1; i >= start; i-- {
		items = append(items, t.at(i).first())
	}
	return items, uint64(start), nil
}

// Drop implements [Store].
func (m *Memory) Drop(slot uint16) error {
	return m.Apply(slot, []Op{{Code: OpDropSlot}})
}

// Close implements [Store]. What was stored is left to the garbage collector.
func (m *Memory) Close() error {
	m.slots.Store(nil)
	return nil
}

// table returns the table of a slot, nil where the slot has no keys.
func (m *Memory) table(slot uint16) (*table, error) {
	slots := m.slots.Load()
	switch {
	case slots == nil:
		return nil, ErrClosed
	case slot >= NumSlots:
		return nil, CheckSlot(slot)
	}
	return slots[slot], nil
}

// checkRoom returns an error where an entry would not fit the table's 32-bit
// lengths and positions.
func checkRoom(t *table, ops []Op) error {
	keys := len(ops)
	if t != nil {
		keys += t.len
	}
	if uint64(keys) > maxKeys {
		return fmt.Errorf("%w: up to %d keys in one slot, want at most %d", ErrInvalid, keys, uint64(maxKeys))
	}
	for i := range ops {
		if err := checkSize(i, "key", len(ops[i].Key)); err != nil {
			return err
		}
		if err := checkSize(i, "value", len(ops[i].Value)); err != nil {
			return err
		}
	}
	return nil
}

func checkSize(op int, what string, size int) error {
	if uint64(size) > math.MaxUint32 {
		return fmt.Errorf("%w: op %d: a %s of %d bytes, want at most %d", ErrInvalid, op, what, size, uint32(math.MaxUint32))
	}
	return nil
}
