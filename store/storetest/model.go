package storetest

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/slotmesh/slotmesh/store"
)

// A model says what one slot should hold: key → field → entry, by the words of
// the contract and with no thought of speed.
type model map[string]map[string]store.Entry

// apply returns the slot after the ops.
func (m model) apply(ops []store.Op) model {
	for _, op := range ops {
		switch op.Code {
		case store.OpPut:
			if m[op.Key] == nil {
				m[op.Key] = map[string]store.Entry{}
			}
			m[op.Key][op.Field] = store.Entry{Value: bytes.Clone(op.Value), Kind: op.Kind, ExpireAt: op.ExpireAt}
		case store.OpDelete:
			delete(m[op.Key], op.Field)
			if len(m[op.Key]) == 0 {
				delete(m, op.Key)
			}
		case store.OpDeleteKey:
			delete(m, op.Key)
		case store.OpDropSlot:
			clear(m)
		}
	}
	return m
}

// fields returns the fields of a key in the order of Range.
func (m model) fields(key string) []string { return slices.Sorted(maps.Keys(m[key])) }

// compare reports every difference between the slot of the store and the model.
func (m model) compare(t testing.TB, s store.Store, slot uint16) {
	t.Helper()
	wantLen(t, s, slot, len(m))
	m.compareExpiring(t, s, slot)
	seen := map[string]bool{}
	for _, it := range scanAll(t, s, slot, 7, nil) {
		if seen[it.Key] {
			t.Errorf("slot %d: scan returned key %q twice though nothing changed", slot, it.Key)
		}
		seen[it.Key] = true
		fields := m.fields(it.Key)
		if len(fields) == 0 || it.Field != fields[0] || !sameEntry(it.Entry, m[it.Key][it.Field]) {
			t.Errorf("slot %d: scan returned key %q, field %q, %s; the fields are %q", slot, it.Key, it.Field, show(it.Entry), fields)
		}
	}
	for key := range m {
		if !seen[key] {
			t.Errorf("slot %d: scan did not return key %q", slot, key)
		}
		m.compareKey(t, s, slot, key)
	}
}

// compareExpiring compares the number of keys that expire, where the store can
// tell.
func (m model) compareExpiring(t testing.TB, s store.Store, slot uint16) {
	t.Helper()
	counts, ok := s.(store.Expiring)
	if !ok {
		return
	}
	want := 0
	for _, entries := range m {
		if entries[""].ExpireAt != 0 {
			want++
		}
	}
	if got, err := counts.LenExpiring(slot); err != nil || got != want {
		t.Errorf("slot %d: LenExpiring = %d, %v, want %d", slot, got, err, want)
	}
}

// compareKey reports every difference in one key, which may be one that the
// model does not have.
func (m model) compareKey(t testing.TB, s store.Store, slot uint16, key string) {
	t.Helper()
	fields := m.fields(key)
	items := rangeAll(t, s, slot, key, 3)
	got := make([]string, len(items))
	for i, it := range items {
		got[i] = it.Field
		if it.Key != key || !sameEntry(it.Entry, m[key][it.Field]) {
			t.Errorf("slot %d: Range(%q) returned key %q, field %q, %s, want %s", slot, key, it.Key, it.Field, show(it.Entry), show(m[key][it.Field]))
		}
	}
	if !slices.Equal(got, fields) {
		t.Errorf("slot %d: Range(%q) returned fields %q, want %q", slot, key, got, fields)
	}
	for _, field := range fields {
		e := m[key][field]
		wantEntry(t, s, slot, key, field, &e)
	}
	wantNone(t, s, slot, key, "a field that nobody puts")
	compareRanks(t, s, slot, key, fields)
}

// compareRanks reports every difference between the fields of a key, in order,
// the head among them or not, and what a store says of their places.
func compareRanks(t testing.TB, s store.Store, slot uint16, key string, fields []string) {
	t.Helper()
	r := store.RankedOf(s)
	if len(fields) > 0 && fields[0] == "" {
		fields = fields[1:]
	}
	for i, field := range fields {
		wantRank(t, r, slot, key, field, i)
		wantRank(t, r, slot, key, field+"\x00", i+1)
		it, found, err := r.At(slot, key, i)
		if err != nil || !found || it.Key != key || it.Field != field {
			t.Errorf("slot %d: At(%q, %d) returned key %q, field %q, %v, %v, want %q", slot, key, i, it.Key, it.Field, found, err, field)
		}
		if e, _, err := s.Get(slot, key, field); err != nil || !sameEntry(e, it.Entry) {
			t.Errorf("slot %d: At(%q, %d) returned %s, want %s", slot, key, i, show(it.Entry), show(e))
		}
	}
	wantRank(t, r, slot, key, "", 0)
	wantRank(t, r, slot, key, store.FirstField, 0)
	for _, i := range []int{-1, len(fields), len(fields) + 1} {
		if it, found, err := r.At(slot, key, i); found || err != nil {
			t.Errorf("slot %d: At(%q, %d) of %d fields returned %q, %v, %v, want none", slot, key, i, len(fields), it.Field, found, err)
		}
	}
	backwards := slices.Clone(fields)
	slices.Reverse(backwards)
	for _, limit := range []int{0, 1, 3} {
		if got := backAll(t, r, slot, key, limit); !slices.Equal(got, backwards) {
			t.Errorf("slot %d: RangeBack(%q) by %d returned fields %q, want %q", slot, key, limit, got, backwards)
		}
	}
}

func wantRank(t testing.TB, r store.Ranked, slot uint16, key, field string, want int) {
	t.Helper()
	if got, err := r.Rank(slot, key, field); err != nil || got != want {
		t.Errorf("slot %d: Rank(%q, %q) = %d, %v, want %d", slot, key, field, got, err, want)
	}
}

// backAll returns the fields of a key from the last to the first.
func backAll(t testing.TB, r store.Ranked, slot uint16, key string, limit int) (fields []string) {
	t.Helper()
	for before, more := "", true; more; {
		items, rest, err := r.RangeBack(slot, key, before, limit)
		if err != nil {
			t.Fatalf("RangeBack(%d, %q, %q, %d): %v", slot, key, before, limit, err)
		}
		if len(items) == 0 && rest || limit > 0 && len(items) > limit {
			t.Fatalf("RangeBack(%d, %q, %q, %d) returned %d items, more %v", slot, key, before, limit, len(items), rest)
		}
		for _, it := range items {
			fields = append(fields, it.Field)
			before = it.Field
		}
		more = rest
	}
	return fields
}

// Replay reads script as a list of batches, each for one of a few slots, and
// applies them to the store and to a naive model beside it. It reports where
// the two differ. Any script is valid, so it serves as the body of a fuzz test:
//
//	f.Fuzz(func(t *testing.T, script []byte) { storetest.Replay(t, newStore(t), script) })
func Replay(t testing.TB, s store.Store, script []byte) {
	t.Helper()
	slots := [3]uint16{0, 8191, store.NumSlots - 1}
	models := [3]model{{}, {}, {}}
	r := scriptReader{script}
	for len(r.rest) > 0 {
		i := r.next() % len(slots)
		ops := r.batch()
		err := s.Apply(slots[i], ops)
		if bad := store.CheckOps(ops); (err == nil) != (bad == nil) {
			t.Fatalf("Apply(%d, %+v) = %v, want %v", slots[i], ops, err, bad)
		}
		if err == nil {
			models[i].apply(ops)
		}
		for _, op := range ops {
			models[i].compareKey(t, s, slots[i], op.Key)
		}
	}
	for i, m := range models {
		m.compare(t, s, slots[i])
	}
}

// A scriptReader turns bytes into ops. It favours few keys and fields, as
// collisions are where the mistakes are. After the end it reads zeros.
type scriptReader struct{ rest []byte }

func (r *scriptReader) next() int {
	if len(r.rest) == 0 {
		return 0
	}
	b := r.rest[0]
	r.rest = r.rest[1:]
	return int(b)
}

// batch reads up to eight ops.
func (r *scriptReader) batch() []store.Op {
	ops := make([]store.Op, r.next()%9)
	for i := range ops {
		ops[i] = r.op()
	}
	return ops
}

// op reads one op. Half of them put; one in 256 drops the slot, one is invalid.
func (r *scriptReader) op() store.Op {
	switch code := r.next(); {
	case code == 255:
		return dropSlot()
	case code == 254:
		return store.Op{Code: store.OpDeleteKey, Key: r.key(), Field: "no field goes with this code"}
	case code >= 224:
		return delKey(r.key())
	case code >= 128:
		return del(r.key(), r.field())
	}
	op := store.Op{Code: store.OpPut, Key: r.key(), Field: r.field(), Value: bytes.Repeat([]byte{byte(r.next())}, r.next()%40)}
	if op.Field == "" {
		op.Kind, op.ExpireAt = byte(r.next()), int64(r.next())
	}
	return op
}

func (r *scriptReader) key() string {
	if n := r.next(); n > 0 {
		return fmt.Sprintf("key:%d", n)
	}
	return ""
}

func (r *scriptReader) field() string {
	if n := r.next() % 16; n > 0 {
		return string([]byte{byte(n * 17), 'f'})
	}
	return ""
}
