// Package storetest checks that a store keeps the contract of [store.Store].
// Give it a function that opens an empty store:
//
//	func TestBoltKeepsTheContract(t *testing.T) {
//		storetest.Run(t, func(t *testing.T) store.Store { return openBolt(t, t.TempDir()) })
//	}
//
// It works best under the race detector. [Replay] serves fuzz tests.
//
// One thing that the contract asks for it cannot tell: that Len and Drop take the same
// short time whatever the number of keys. From outside, the steps that a store takes can
// only be timed, and a test that depends on a clock fails on a busy machine. What can be
// seen of it is checked: a Drop of many keys is whole when it returns, and what is done
// about them later takes nothing of what is written after it. A benchmark of Len and of
// Drop over slots of 1 and of 100,000 keys shows the rest; package store has one.
package storetest

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/slotmesh/slotmesh/store"
)

// Run runs every check of the suite as a subtest, each on a store of its own,
// which it closes at the end. newStore returns an empty store that nobody else
// uses, and fails the test if it cannot. The suite runs in a few seconds on a
// store in memory; it holds at most 16 MiB in it at a time.
func Run(t *testing.T, newStore func(t *testing.T) store.Store) {
	t.Helper()
	for _, c := range checks {
		t.Run(c.name, func(t *testing.T) {
			s := newStore(t)
			defer func() {
				if err := s.Close(); err != nil {
					t.Errorf("Close() = %v, want nil", err)
				}
			}()
			c.run(t, s)
		})
	}
}

// A check fails t where the store breaks the contract. It uses no more of t than
// Helper, Errorf and Fatalf: the suite's own tests hand in a TB that only has those.
type check struct {
	name string
	run  func(t testing.TB, s store.Store)
}

var checks = []check{
	{"a new store is empty", checkEmpty},
	{"what is put is what is got", checkPutGet},
	{"a slot sees nothing of another", checkSlotsApart},
	{"a key lives from its first entry to its last", checkKeyLife},
	{"range goes through the fields in byte order", checkRangeOrder},
	{"range goes on where it stopped", checkRangePages},
	{"a field is found by its place, and its place by the field", checkRanked},
	{"a batch is applied in order", checkBatchOrder},
	{"a batch with a bad op changes nothing", checkBatchAtomic},
	{"a batch applied twice is applied once", checkBatchIdempotent},
	{"a bad slot or limit is named", checkBadArguments},
	{"values are nobody's to change", checkOwnership},
	{"len counts keys and not entries", checkLen},
	{"scan returns every key", checkScanComplete},
	{"scan misses no key that stays while others come and go", checkScanWhileChanging},
	{"scan takes any cursor", checkScanAnyCursor},
	{"drop empties a slot and no other", checkDrop},
	{"drop detaches at once", checkDropAtOnce},
	{"big values and many keys", checkBig},
	{"random changes agree with a plain map", checkRandom},
	{"slots are used side by side", checkConcurrent},
	{"a closed store says so", checkClosed},
	{"close may come at any time", checkCloseWhileUsed},
	{"a durable store waits", checkDurable},
}

// put, field and friends build ops.

func put(key, value string) store.Op {
	return store.Op{Code: store.OpPut, Key: key, Value: []byte(value)}
}

func putField(key, field, value string) store.Op {
	return store.Op{Code: store.OpPut, Key: key, Field: field, Value: []byte(value)}
}

func del(key, field string) store.Op {
	return store.Op{Code: store.OpDelete, Key: key, Field: field}
}

func delKey(key string) store.Op { return store.Op{Code: store.OpDeleteKey, Key: key} }

func dropSlot() store.Op { return store.Op{Code: store.OpDropSlot} }

// apply applies ops that must succeed.
func apply(t testing.TB, s store.Store, slot uint16, ops ...store.Op) {
	t.Helper()
	if err := s.Apply(slot, ops); err != nil {
		t.Fatalf("Apply(%d, %d ops) = %v, want nil", slot, len(ops), err)
	}
}

// wantEntry checks what Get returns for one address; nil means nothing.
func wantEntry(t testing.TB, s store.Store, slot uint16, key, field string, want *store.Entry) {
	t.Helper()
	got, found, err := s.Get(slot, key, field)
	switch {
	case err != nil:
		t.Fatalf("Get(%d, %.64q, %.64q): %v", slot, key, field, err)
	case found != (want != nil):
		t.Errorf("Get(%d, %.64q, %.64q) found = %v, want %v", slot, key, field, found, want != nil)
	case want == nil:
		if got.Value != nil || got.Kind != 0 || got.ExpireAt != 0 {
			t.Errorf("Get(%d, %.64q, %.64q) = %s with found = false, want the zero Entry", slot, key, field, show(got))
		}
	case !sameEntry(got, *want):
		t.Errorf("Get(%d, %.64q, %.64q) = %s, want %s", slot, key, field, show(got), show(*want))
	}
}

func wantValue(t testing.TB, s store.Store, slot uint16, key, field, want string) {
	t.Helper()
	wantEntry(t, s, slot, key, field, &store.Entry{Value: []byte(want)})
}

func wantNone(t testing.TB, s store.Store, slot uint16, key, field string) {
	t.Helper()
	wantEntry(t, s, slot, key, field, nil)
}

func wantLen(t testing.TB, s store.Store, slot uint16, want int) {
	t.Helper()
	got, err := s.Len(slot)
	if err != nil || got != want {
		t.Errorf("Len(%d) = %d, %v, want %d", slot, got, err, want)
	}
}

// wantFields checks the fields that Range returns, in order.
func wantFields(t testing.TB, s store.Store, slot uint16, key, from string, limit int, wantMore bool, want ...string) {
	t.Helper()
	items, more, err := s.Range(slot, key, from, limit)
	if err != nil {
		t.Fatalf("Range(%d, %q, %q, %d): %v", slot, key, from, limit, err)
	}
	var got []string
	for _, it := range items {
		if it.Key != key {
			t.Errorf("Range(%d, %q, %q, %d) returned key %q", slot, key, from, limit, it.Key)
		}
		got = append(got, it.Field)
	}
	if !slices.Equal(got, want) || more != wantMore {
		t.Errorf("Range(%d, %q, %q, %d) = %q, more %v, want %q, more %v", slot, key, from, limit, got, more, want, wantMore)
	}
}

// rangeAll returns every entry of a key, in pages of the given limit.
func rangeAll(t testing.TB, s store.Store, slot uint16, key string, limit int) []store.Item {
	t.Helper()
	var all []store.Item
	for from := ""; ; {
		items, more, err := s.Range(slot, key, from, limit)
		switch {
		case err != nil:
			t.Fatalf("Range(%d, %.64q, %.64q, %d): %v", slot, key, from, limit, err)
		case limit > 0 && len(items) > limit:
			t.Fatalf("Range(%d, %.64q, %.64q, %d) returned %d items", slot, key, from, limit, len(items))
		case more && len(items) == 0:
			t.Fatalf("Range(%d, %.64q, %.64q, %d) returned nothing and more = true", slot, key, from, limit)
		}
		all = append(all, items...)
		if !more {
			return all
		}
		from = items[len(items)-1].Field + "\x00"
	}
}

// scanAll walks a slot and calls between after each page but the last.
func scanAll(t testing.TB, s store.Store, slot uint16, limit int, between func()) []store.Item {
	t.Helper()
	var all []store.Item
	for cursor, pages := uint64(0), 0; ; pages++ {
		items, next, err := s.Scan(slot, cursor, limit)
		switch {
		case err != nil:
			t.Fatalf("Scan(%d, %d, %d): %v", slot, cursor, limit, err)
		case limit > 0 && len(items) > limit:
			t.Fatalf("Scan(%d, %d, %d) returned %d keys", slot, cursor, limit, len(items))
		case next > store.MaxCursor:
			t.Fatalf("Scan(%d, %d, %d) returned cursor %d, want at most %d", slot, cursor, limit, next, uint64(store.MaxCursor))
		case pages > 1_000_000:
			t.Fatalf("Scan(%d) has not ended after %d pages", slot, pages)
		}
		all = append(all, items...)
		if next == 0 {
			return all
		}
		if between != nil {
			between()
		}
		cursor = next
	}
}

// sameEntry compares two entries; an empty value may be nil.
func sameEntry(a, b store.Entry) bool {
	return a.Kind == b.Kind && a.ExpireAt == b.ExpireAt && bytes.Equal(a.Value, b.Value)
}

func show(e store.Entry) string {
	return fmt.Sprintf("{%.64q (%d bytes) kind %d expire %d}", e.Value, len(e.Value), e.Kind, e.ExpireAt)
}
