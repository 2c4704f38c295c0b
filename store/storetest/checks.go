package storetest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/slotmesh/slotmesh/store"
)

const lastSlot = store.NumSlots - 1

func checkEmpty(t testing.TB, s store.Store) {
	for _, slot := range []uint16{0, 1, lastSlot} {
		wantNone(t, s, slot, "key", "")
		wantNone(t, s, slot, "", "")
		wantNone(t, s, slot, "key", "field")
		wantLen(t, s, slot, 0)
		wantFields(t, s, slot, "key", "", 10, false)
		if items := scanAll(t, s, slot, 10, nil); len(items) > 0 {
			t.Errorf("Scan(%d) of a new store returned %d keys", slot, len(items))
		}
		apply(t, s, slot, del("key", ""), del("key", "field"), delKey("key"), dropSlot())
		wantLen(t, s, slot, 0)
	}
}

func checkPutGet(t testing.TB, s store.Store) {
	entries := map[string]store.Entry{
		"plain":                    {Value: []byte("value")},
		"":                         {Value: []byte("the empty key")},
		"empty value":              {Value: []byte{}},
		"nil value":                {},
		"\x00\xff\n":               {Value: []byte("\x00\r\n\xfe")},
		strings.Repeat("k", 65536): {Value: []byte("a key of 64 KiB")},
		"expires":                  {Value: []byte("v"), ExpireAt: 1_700_000_000_123},
		"expires at the end":       {ExpireAt: math.MaxInt64},
		"has expired":              {Value: []byte("still there"), ExpireAt: 1},
		"a kind":                   {Value: []byte("header"), Kind: 255, ExpireAt: 7},
	}
	putAll := func(e func(store.Entry) store.Entry) {
		for key, was := range entries {
			is := e(was)
			apply(t, s, 5, store.Op{Code: store.OpPut, Key: key, Value: is.Value, Kind: is.Kind, ExpireAt: is.ExpireAt})
			wantEntry(t, s, 5, key, "", &is)
			entries[key] = is
		}
		for key, e := range entries {
			wantEntry(t, s, 5, key, "", &e)
			wantNone(t, s, 5, key, "field")
			wantNone(t, s, 5, key, store.FirstField)
			wantNone(t, s, 5, key+"x", "")
		}
		wantLen(t, s, 5, len(entries))
	}
	putAll(func(e store.Entry) store.Entry { return e })
	// Overwriting replaces all of the head, a kind and an expiry that are 0 too.
	putAll(func(e store.Entry) store.Entry { return store.Entry{Value: append([]byte("new "), e.Value...)} })
	putAll(func(store.Entry) store.Entry { return store.Entry{Kind: 3, ExpireAt: 9} })
}

func checkSlotsApart(t testing.TB, s store.Store) {
	slots := []uint16{0, 1, 255, 256, 8192, lastSlot}
	for _, slot := range slots {
		apply(t, s, slot, put("same", fmt.Sprint(slot)), putField("same", "f", fmt.Sprint(slot)))
	}
	for _, slot := range slots {
		wantValue(t, s, slot, "same", "", fmt.Sprint(slot))
		wantValue(t, s, slot, "same", "f", fmt.Sprint(slot))
		wantLen(t, s, slot, 1)
	}
	apply(t, s, 255, delKey("same"))
	wantNone(t, s, 255, "same", "")
	wantValue(t, s, 256, "same", "", "256")
}

func checkKeyLife(t testing.TB, s store.Store) {
	steps := []struct {
		about  string
		op     store.Op
		fields []string
	}{
		{"a field may come before the head", putField("k", "b", "1"), []string{"b"}},
		{"the head joins it", store.Op{Code: store.OpPut, Key: "k", Value: []byte("h"), Kind: 2, ExpireAt: 5}, []string{"", "b"}},
		{"another field", putField("k", "a", "2"), []string{"", "a", "b"}},
		{"the same field again", putField("k", "a", "3"), []string{"", "a", "b"}},
		{"the head again keeps the fields", put("k", "h2"), []string{"", "a", "b"}},
		{"deleting the head keeps the fields", del("k", ""), []string{"a", "b"}},
		{"deleting what is gone changes nothing", del("k", ""), []string{"a", "b"}},
		{"deleting what never was changes nothing", del("k", "x"), []string{"a", "b"}},
		{"one field less", del("k", "a"), []string{"b"}},
		{"the last entry takes the key along", del("k", "b"), nil},
		{"a plain key", put("k", "plain"), []string{""}},
		{"becomes a collection", putField("k", "f", "1"), []string{"", "f"}},
		{"deleting the last field keeps the head", del("k", "f"), []string{""}},
		{"deleting the head takes the key along", del("k", ""), nil},
		{"a field", putField("k", "f", "1"), []string{"f"}},
		{"deleting the key takes all", delKey("k"), nil},
	}
	apply(t, s, 9, put("other", "stays"), putField("other", "f", "stays"))
	m := model{"other": {"": {Value: []byte("stays")}, "f": {Value: []byte("stays")}}}
	for _, step := range steps {
		apply(t, s, 9, step.op)
		m.apply([]store.Op{step.op})
		if fmt.Sprint(m.fields("k")) != fmt.Sprint(step.fields) {
			t.Fatalf("the suite is wrong: after %q the fields are %q, want %q", step.about, m.fields("k"), step.fields)
		}
		wantFields(t, s, 9, "k", "", 0, false, step.fields...)
		m.compare(t, s, 9)
	}
}

func checkRangeOrder(t testing.TB, s store.Store) {
	for _, f := range []string{"b", "a", "\xff\xff", "aa", "\xff", store.FirstField, "a\x00", "\x00\x00", "B", "é"} {
		apply(t, s, 3, putField("k", f, "v"))
	}
	apply(t, s, 3, put("k", "head"), putField("j", "zz", "before k"), putField("k\x00", "0", "after k"), putField("l", "0", "after k"))
	ordered := []string{"", "\x00", "\x00\x00", "B", "a", "a\x00", "aa", "b", "é", "\xff", "\xff\xff"}
	wantFields(t, s, 3, "k", "", 0, false, ordered...)
	wantFields(t, s, 3, "k", "", 100, false, ordered...)
	wantFields(t, s, 3, "k", "", math.MaxInt, false, ordered...)
	for i, from := range ordered {
		wantFields(t, s, 3, "k", from, 0, false, ordered[i:]...)
		wantFields(t, s, 3, "k", from, len(ordered)-i, false, ordered[i:]...)
		wantFields(t, s, 3, "k", from, 1, i < len(ordered)-1, from)
	}
	wantFields(t, s, 3, "k", "", 2, true, "", "\x00")
	wantFields(t, s, 3, "k", store.FirstField, 2, true, "\x00", "\x00\x00")
	wantFields(t, s, 3, "k", "aaa", 1, true, "b")
	wantFields(t, s, 3, "k", "\xff\xff\x00", 1, false)
	wantFields(t, s, 3, "k\x00", "", 5, false, "0")
	wantFields(t, s, 3, "absent", "", 5, false)
	apply(t, s, 3, put("plain", "v"))
	wantFields(t, s, 3, "plain", "", 1, false, "")
	wantFields(t, s, 3, "plain", store.FirstField, 1, false)
}

func checkRangePages(t testing.TB, s store.Store) {
	const n = 5000
	ops := []store.Op{put("k", "head")}
	for i := range n {
		ops = append(ops, putField("k", fmt.Sprintf("f%04d", i), fmt.Sprint(i)))
	}
	rand.New(rand.NewPCG(1, 2)).Shuffle(len(ops), func(i, j int) { ops[i], ops[j] = ops[j], ops[i] })
	apply(t, s, 4, ops...)
	for _, limit := range []int{0, 1, 7, 1000, n, n + 1, n + 2} {
		items := rangeAll(t, s, 4, "k", limit)
		if len(items) != n+1 {
			t.Fatalf("Range in pages of %d returned %d items, want %d", limit, len(items), n+1)
		}
		for i, it := range items[1:] {
			if it.Field != fmt.Sprintf("f%04d", i) || string(it.Value) != fmt.Sprint(i) {
				t.Fatalf("Range in pages of %d: item %d is %q = %q", limit, i+1, it.Field, it.Value)
			}
		}
	}
}

func checkRanked(t testing.TB, s store.Store) {
	compareRanks(t, s, 4, "absent", nil)
	apply(t, s, 4, put("plain", "v"))
	compareRanks(t, s, 4, "plain", nil)
	const n = 3000
	var ops []store.Op
	var fields []string
	for i := range n {
		fields = append(fields, fmt.Sprintf("f%04d", i))
		ops = append(ops, putField("k", fields[i], fmt.Sprint(i)))
	}
	rand.New(rand.NewPCG(3, 4)).Shuffle(len(ops), func(i, j int) { ops[i], ops[j] = ops[j], ops[i] })
	apply(t, s, 4, ops...)
	apply(t, s, 4, put("k", "head"), putField("j", "zz", "before k"), putField("l", "0", "after k"))
	r := store.RankedOf(s)
	for i := 0; i < n; i += 97 {
		wantRank(t, r, 4, "k", fields[i], i)
		if it, found, err := r.At(4, "k", i); it.Field != fields[i] || string(it.Value) != fmt.Sprint(i) || !found || err != nil {
			t.Errorf("At(%d) = %q = %q, %v, %v", i, it.Field, it.Value, found, err)
		}
	}
	wantRank(t, r, 4, "k", "\xff", n)
	wantRank(t, r, 4, "k", "f0000\x00", 1)
	for _, limit := range []int{0, 7, n, n + 1, math.MaxInt} {
		got := backAll(t, r, 4, "k", limit)
		slices.Reverse(got)
		if !slices.Equal(got, fields) {
			t.Errorf("RangeBack by %d returned %d fields, or in another order, want %d", limit, len(got), n)
		}
	}
	for _, row := range []struct {
		before string
		want   []string
		more   bool
	}{
		{"f0002", []string{"f0001", "f0000"}, false},
		{"f0002\x00", []string{"f0002", "f0001"}, true},
		{"f0001zz", []string{"f0001", "f0000"}, false},
		{"f0000", nil, false},
		{store.FirstField, nil, false},
	} {
		items, more, err := r.RangeBack(4, "k", row.before, 2)
		var got []string
		for _, it := range items {
			got = append(got, it.Field)
		}
		if err != nil || more != row.more || !slices.Equal(got, row.want) {
			t.Errorf("RangeBack(%q, 2) = %q, %v, %v, want %q, %v", row.before, got, more, err, row.want, row.more)
		}
	}
	if _, _, err := r.RangeBack(4, "k", "", -1); !errors.Is(err, store.ErrInvalid) {
		t.Errorf("RangeBack with limit -1: %v, want ErrInvalid", err)
	}
	apply(t, s, 4, del("k", fields[0]), del("k", fields[n-1]))
	wantRank(t, r, 4, "k", fields[1], 0)
	wantRank(t, r, 4, "k", "\xff", n-2)
}

func checkBatchOrder(t testing.TB, s store.Store) {
	apply(t, s, 7)
	apply(t, s, 7, []store.Op{}...)
	wantLen(t, s, 7, 0)
	apply(t, s, 7, put("a", "1"), put("a", "2"), del("a", ""), put("a", "3"), put("b", "1"), delKey("b"))
	wantValue(t, s, 7, "a", "", "3")
	wantNone(t, s, 7, "b", "")
	apply(t, s, 7, put("c", "1"), putField("a", "f", "1"), dropSlot(), put("d", "1"))
	for _, key := range []string{"a", "b", "c"} {
		wantNone(t, s, 7, key, "")
	}
	wantNone(t, s, 7, "a", "f")
	wantValue(t, s, 7, "d", "", "1")
	wantLen(t, s, 7, 1)
	apply(t, s, 7, put("e", "1"), dropSlot())
	wantLen(t, s, 7, 0)
	if items := scanAll(t, s, 7, 10, nil); len(items) > 0 {
		t.Errorf("Scan after a batch that ends in DropSlot returned %d keys", len(items))
	}
}

func checkBatchAtomic(t testing.TB, s store.Store) {
	m := model{}
	before := []store.Op{put("a", "1"), putField("a", "f", "1"), put("b", "2")}
	apply(t, s, 11, before...)
	m.apply(before)
	bad := []store.Op{
		{},
		{Code: 5, Key: "a"},
		{Code: 255, Key: "a"},
		{Code: store.OpPut, Key: "a", ExpireAt: -1},
		{Code: store.OpPut, Key: "a", Field: "f", ExpireAt: 1},
		{Code: store.OpPut, Key: "a", Field: "f", ExpireAt: -1},
		{Code: store.OpPut, Key: "a", Field: "f", Kind: 1},
		{Code: store.OpDelete, Key: "a", Value: []byte("v")},
		{Code: store.OpDelete, Key: "a", Kind: 1},
		{Code: store.OpDelete, Key: "a", ExpireAt: 1},
		{Code: store.OpDeleteKey, Key: "a", Field: "f"},
		{Code: store.OpDropSlot, Key: "a"},
		{Code: store.OpDropSlot, Field: "f"},
	}
	good := []store.Op{put("a", "new"), put("c", "new"), del("a", "f"), delKey("b"), putField("b", "g", "new")}
	for _, op := range bad {
		for _, at := range []int{0, 2, len(good)} {
			ops := append(append(append([]store.Op{}, good[:at]...), op), good[at:]...)
			err := s.Apply(11, ops)
			if !errors.Is(err, store.ErrInvalid) {
				t.Errorf("Apply with %+v as op %d = %v, want ErrInvalid", op, at, err)
			} else if !strings.Contains(err.Error(), fmt.Sprintf("op %d", at)) {
				t.Errorf("Apply with %+v as op %d = %q, want the text to name the op", op, at, err)
			}
		}
		if err := s.Apply(11, []store.Op{dropSlot(), op}); !errors.Is(err, store.ErrInvalid) {
			t.Errorf("Apply of a DropSlot and %+v = %v, want ErrInvalid", op, err)
		}
	}
	m.compare(t, s, 11)
}

func checkBatchIdempotent(t testing.TB, s store.Store) {
	ops := []store.Op{put("a", "1"), putField("a", "f", "1"), del("b", ""), delKey("c"), put("d", ""), del("a", "g")}
	m := model{}
	apply(t, s, 12, put("c", "1"), putField("b", "f", "1"))
	m.apply([]store.Op{put("c", "1"), putField("b", "f", "1")}).apply(ops)
	for range 3 {
		apply(t, s, 12, ops...)
		m.compare(t, s, 12)
	}
}

func checkBadArguments(t testing.TB, s store.Store) {
	for _, slot := range []uint16{store.NumSlots, store.NumSlots + 1, math.MaxUint16} {
		for call, err := range callAll(s, slot) {
			if !errors.Is(err, store.ErrInvalid) || !strings.Contains(fmt.Sprint(err), fmt.Sprint(slot)) {
				t.Errorf("%s of slot %d = %v, want an ErrInvalid that names it", call, slot, err)
			}
		}
	}
	apply(t, s, 1, put("k", "v"))
	if _, _, err := s.Range(1, "k", "", -1); !errors.Is(err, store.ErrInvalid) {
		t.Errorf("Range with limit -1 = %v, want ErrInvalid", err)
	}
	if _, _, err := s.Scan(1, 0, -1); !errors.Is(err, store.ErrInvalid) {
		t.Errorf("Scan with limit -1 = %v, want ErrInvalid", err)
	}
	wantLen(t, s, 1, 1)
}

// callAll calls every method but Close and returns the error of each.
func callAll(s store.Store, slot uint16) map[string]error {
	errs := map[string]error{}
	_, _, errs["Get"] = s.Get(slot, "k", "")
	_, _, errs["Range"] = s.Range(slot, "k", "", 1)
	errs["Apply"] = s.Apply(slot, []store.Op{put("k", "v")})
	errs["Apply of nothing"] = s.Apply(slot, nil)
	_, errs["Len"] = s.Len(slot)
	_, _, errs["Scan"] = s.Scan(slot, 0, 1)
	errs["Drop"] = s.Drop(slot)
	return errs
}

func checkOwnership(t testing.TB, s store.Store) {
	ops := []store.Op{put("k", "head"), putField("k", "f", "field")}
	apply(t, s, 2, ops...)
	clear(ops) // the slice of ops is the caller's again

	var got [4][]byte
	e, _, _ := s.Get(2, "k", "")
	got[0] = e.Value
	e, _, _ = s.Get(2, "k", "f")
	got[1] = e.Value
	if items, _, _ := s.Range(2, "k", "f", 1); len(items) == 1 {
		got[2] = items[0].Value
	}
	if items, _, _ := s.Scan(2, 0, 1); len(items) == 1 {
		got[3] = items[0].Value
	}
	// An append by the reader must go to a new array, not into the store's.
	for _, v := range got {
		_ = append(v, "xxxxxxxxxxxxxxxx"...)
	}
	wantValue(t, s, 2, "k", "", "head")
	wantValue(t, s, 2, "k", "f", "field")
	// What was handed out outlives what replaces it.
	apply(t, s, 2, put("k", "HEAD"), putField("k", "f", "FIELD"))
	apply(t, s, 2, delKey("k"), put("m", "other"), dropSlot())
	for i, want := range []string{"head", "field", "field", "head"} {
		if string(got[i]) != want {
			t.Errorf("a value that was handed out as %q is now %q", want, got[i])
		}
	}
	checkKeysAreRead(t, s)
}

// checkKeysAreRead hands in views of a buffer as key and field of Get and
// Range, and changes the buffer after the call.
func checkKeysAreRead(t testing.TB, s store.Store) {
	apply(t, s, 2, put("key1", "1"), putField("key1", "field1", "1"))
	buf := []byte("key1field1")
	view := unsafe.String(&buf[0], len(buf))
	e, found, err := s.Get(2, view[:4], view[4:])
	items, _, rangeErr := s.Range(2, view[:4], view[4:], 1)
	copy(buf, "XXXXXXXXXX")
	if err != nil || !found || string(e.Value) != "1" {
		t.Errorf("Get by a view of a buffer = %s, %v, %v", show(e), found, err)
	}
	if rangeErr != nil || len(items) != 1 || items[0].Key != "key1" || items[0].Field != "field1" {
		t.Errorf("Range by a view of a buffer that is used again = %+v, %v", items, rangeErr)
	}
	wantValue(t, s, 2, "key1", "field1", "1")
}

func checkLen(t testing.TB, s store.Store) {
	for i := range 100 {
		key := fmt.Sprint("k", i)
		apply(t, s, 6, put(key, "v"), putField(key, "f", "v"), putField(key, "g", "v"))
		apply(t, s, 6, put(key, "w"))
		wantLen(t, s, 6, i+1)
	}
	for i := range 100 {
		key := fmt.Sprint("k", i)
		apply(t, s, 6, del(key, "f"), del(key, "absent"), delKey("absent"))
		wantLen(t, s, 6, 100-i)
		apply(t, s, 6, delKey(key))
		wantLen(t, s, 6, 99-i)
		apply(t, s, 6, delKey(key))
	}
	wantLen(t, s, 6, 0)
}

func checkScanComplete(t testing.TB, s store.Store) {
	m := model{}
	for i := range 1000 {
		key := fmt.Sprint("k", i)
		ops := []store.Op{{Code: store.OpPut, Key: key, Value: []byte{byte(i)}, Kind: byte(i % 3), ExpireAt: int64(i)}}
		switch i % 4 {
		case 1:
			ops = append(ops, putField(key, "f", "v"))
		case 2:
			ops = []store.Op{putField(key, "g", "2"), putField(key, "f", "1")} // no head
		}
		apply(t, s, 8, ops...)
		m.apply(ops)
	}
	for _, limit := range []int{0, 1, 10, 999, 1000, 1001, math.MaxInt} {
		if items := scanAll(t, s, 8, limit, nil); len(items) != 1000 {
			t.Errorf("Scan in pages of %d returned %d keys, want 1000", limit, len(items))
		}
	}
	m.compare(t, s, 8)
}

func checkScanWhileChanging(t testing.TB, s store.Store) {
	for seed := range uint64(30) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		slot := uint16(100 + seed)
		stay, limit := 1+rnd.IntN(400), 1+rnd.IntN(20)
		var comers []string
		for i := range stay {
			apply(t, s, slot, put(fmt.Sprint("stay", i), "v"))
			if rnd.IntN(2) == 0 {
				comers = append(comers, fmt.Sprint("come", i))
				apply(t, s, slot, put(comers[len(comers)-1], "v"))
			}
		}
		// A few seeds mostly add, a few mostly remove: the store grows or shrinks under the walk.
		add := rnd.IntN(101)
		next, adds := 0, 4*stay // bounded, or a walk that always finds new keys might not end
		items := scanAll(t, s, slot, limit, func() {
			for range rnd.IntN(3 * limit) {
				if rnd.IntN(100) < add && next < adds {
					comers = append(comers, fmt.Sprint("new", next))
					next++
					apply(t, s, slot, put(comers[len(comers)-1], "v"))
				} else if len(comers) > 0 {
					i := rnd.IntN(len(comers))
					apply(t, s, slot, delKey(comers[i]))
					comers = append(comers[:i], comers[i+1:]...)
				}
				apply(t, s, slot, put(fmt.Sprint("stay", rnd.IntN(stay)), "w")) // a change keeps a key where it is
			}
		})
		seen := map[string]bool{}
		for _, it := range items {
			seen[it.Key] = true
		}
		for i := range stay {
			if key := fmt.Sprint("stay", i); !seen[key] {
				t.Errorf("seed %d, pages of %d: scan did not return %q, which was there all the time", seed, limit, key)
			}
		}
	}
}

func checkScanAnyCursor(t testing.TB, s store.Store) {
	for i := range 50 {
		apply(t, s, 13, put(fmt.Sprint("k", i), "v"))
	}
	for _, cursor := range []uint64{1, 2, 49, 50, 51, 1 << 20, store.MaxCursor, math.MaxUint64} {
		if _, next, err := s.Scan(13, cursor, 10); err != nil || next > store.MaxCursor {
			t.Errorf("Scan from cursor %d = next %d, %v", cursor, next, err)
		}
	}
	_, cursor, err := s.Scan(13, 0, 10)
	if err != nil || cursor == 0 {
		t.Fatalf("Scan of 10 of 50 keys = cursor %d, %v, want one to go on with", cursor, err)
	}
	apply(t, s, 13, dropSlot(), put("new", "v"))
	if _, _, err := s.Scan(13, cursor, 10); err != nil {
		t.Errorf("Scan from a cursor that is older than a drop: %v", err)
	}
}

func checkDrop(t testing.TB, s store.Store) {
	for i := range 100 {
		for slot := range uint16(3) {
			apply(t, s, slot, put(fmt.Sprint("k", i), "v"), putField("hash", fmt.Sprint("f", i), "v"))
		}
	}
	for range 2 {
		if err := s.Drop(1); err != nil {
			t.Fatalf("Drop(1) = %v", err)
		}
		model{}.compare(t, s, 1)
		wantNone(t, s, 1, "k1", "")
		wantFields(t, s, 1, "hash", "", 10, false)
	}
	wantLen(t, s, 0, 101)
	wantLen(t, s, 2, 101)
	wantValue(t, s, 2, "hash", "f7", "v")
	apply(t, s, 1, put("k1", "again"))
	model{"k1": {"": {Value: []byte("again")}}}.compare(t, s, 1)
}

// checkDropAtOnce drops more than anybody removes on the way, and goes on at once:
// nothing of before is seen any more, whoever frees it and when, and nothing of after
// goes with it.
func checkDropAtOnce(t testing.TB, s store.Store) {
	const slot, n, each = 30, 5000, 50
	key := func(i int) string { return fmt.Sprint("key:", i) }
	wantGone := func() {
		t.Helper()
		if left, err := s.Len(slot); left != 0 || err != nil {
			t.Fatalf("Len(%d) after Drop = %d, %v, want 0", slot, left, err)
		}
		if items := scanAll(t, s, slot, 1000, nil); len(items) > 0 {
			t.Fatalf("Scan after Drop returned %d keys, the first %.64q", len(items), items[0].Key)
		}
		for i := range n {
			wantNone(t, s, slot, key(i), "")
		}
		wantFields(t, s, slot, "hash", "", 1, false)
	}
	for _, round := range []string{"first", "second", "third"} {
		for i := 0; i < n; i += each {
			var ops []store.Op
			for j := range each {
				ops = append(ops, put(key(i+j), round), putField("hash", fmt.Sprint(i+j), round))
			}
			apply(t, s, slot, ops...)
		}
		wantLen(t, s, slot, n+1)
		held, _, err := s.Get(slot, key(7), "")
		if err != nil {
			t.Fatalf("Get(%d, %q): %v", slot, key(7), err)
		}
		if err := s.Drop(slot); err != nil {
			t.Fatalf("Drop(%d) = %v", slot, err)
		}
		wantGone()
		after := model{}
		for i := 0; i < n; i += each { // keys and fields that were there
			ops := []store.Op{put(key(i), "after "+round), putField("hash", fmt.Sprint(i), "after "+round)}
			apply(t, s, slot, ops...)
			after.apply(ops)
		}
		after.compare(t, s, slot)
		if string(held.Value) != round {
			t.Errorf("a value that was read before Drop is %q, was %q", held.Value, round)
		}
		apply(t, s, slot, dropSlot())
		wantGone()
	}
}

func checkBig(t testing.TB, s store.Store) {
	big := strings.Repeat("0123456789abcdef", 1<<18) // 4 MiB
	apply(t, s, 20, put("big", big), putField("big", "f", big), putField("big", big[:65536], "a field of 64 KiB"))
	wantValue(t, s, 20, "big", "", big)
	wantValue(t, s, 20, "big", "f", big)
	wantValue(t, s, 20, "big", big[:65536], "a field of 64 KiB")
	apply(t, s, 20, dropSlot())

	const n = 20_000
	key := func(i int) string { return fmt.Sprintf("key:%d", i) }
	for i := range n {
		apply(t, s, 20, put(key(i), fmt.Sprint(i)))
	}
	for i := range n {
		wantValue(t, s, 20, key(i), "", fmt.Sprint(i))
	}
	// Remove all but every hundredth; the rest stays reachable at every size.
	for i := range n {
		if i%100 != 0 {
			apply(t, s, 20, delKey(key(i)))
			wantNone(t, s, 20, key(i), "")
		}
		wantValue(t, s, 20, key(i/100*100), "", fmt.Sprint(i/100*100))
	}
	wantLen(t, s, 20, n/100)
	if items := scanAll(t, s, 20, 0, nil); len(items) != n/100 {
		t.Errorf("Scan returned %d keys, want %d", len(items), n/100)
	}
}

func checkRandom(t testing.TB, s store.Store) {
	rnd := rand.New(rand.NewPCG(3, 4))
	script := make([]byte, 60_000)
	for i := range script {
		script[i] = byte(rnd.Uint32())
	}
	Replay(t, s, script)
}

// checkConcurrent uses eight slots at a time, each as the contract allows: one
// writer or many readers.
func checkConcurrent(t testing.TB, s store.Store) {
	var wg sync.WaitGroup
	for i := range uint16(8) {
		slot := 1000 + i
		var lock sync.RWMutex
		wg.Go(func() {
			for n := range 2000 {
				lock.Lock()
				err := s.Apply(slot, []store.Op{put("k", fmt.Sprint(n)), putField("h", "f", fmt.Sprint(n)), put(fmt.Sprint("k", n%64), "v")})
				if n%100 == 50 {
					readTogether(t, s, slot) // also where the readers get no turn beside the writer
				}
				if err == nil && n%500 == 499 {
					err = s.Drop(slot)
				}
				lock.Unlock()
				if err != nil {
					t.Errorf("change %d to slot %d: %v", n, slot, err)
				}
			}
		})
		for range 2 {
			wg.Go(func() {
				for range 2000 {
					lock.RLock()
					readTogether(t, s, slot)
					lock.RUnlock()
				}
			})
		}
	}
	wg.Wait()
}

// readTogether checks that a reader sees a batch whole.
func readTogether(t testing.TB, s store.Store, slot uint16) {
	k, foundK, err := s.Get(slot, "k", "")
	h, foundH, err2 := s.Get(slot, "h", "f")
	n, err3 := s.Len(slot)
	items, _, err4 := s.Scan(slot, 0, 3)
	_, _, err5 := s.Range(slot, "h", "", 3)
	if err := errors.Join(err, err2, err3, err4, err5); err != nil {
		t.Errorf("read of slot %d: %v", slot, err)
	}
	if foundK != foundH || string(k.Value) != string(h.Value) {
		t.Errorf("slot %d: k is %q and h is %q, one batch put both", slot, k.Value, h.Value)
	}
	if foundK != (n > 0) || foundK != (len(items) > 0) {
		t.Errorf("slot %d: Get found = %v, Len = %d, Scan returned %d keys", slot, foundK, n, len(items))
	}
}

func checkClosed(t testing.TB, s store.Store) {
	apply(t, s, 1, put("k", "v"))
	for range 2 {
		if err := s.Close(); err != nil {
			t.Errorf("Close() = %v, want nil, also the second time", err)
		}
		for call, err := range callAll(s, 1) {
			if !errors.Is(err, store.ErrClosed) {
				t.Errorf("%s after Close = %v, want ErrClosed", call, err)
			}
		}
	}
}

func checkCloseWhileUsed(t testing.TB, s store.Store) {
	var users, started sync.WaitGroup
	for slot := range uint16(4) {
		started.Add(1)
		users.Go(func() {
			err := useSlot(s, slot, 10)
			started.Done()
			for err == nil {
				err = useSlot(s, slot, 1)
			}
			if !errors.Is(err, store.ErrClosed) {
				t.Errorf("a call beside Close = %v, want nil or ErrClosed", err)
			}
		})
	}
	started.Wait()
	if err := s.Close(); err != nil {
		t.Errorf("Close() = %v", err)
	}
	users.Wait()
}

// useSlot writes and reads n times.
func useSlot(s store.Store, slot uint16, n int) error {
	for i := range n {
		if err := s.Apply(slot, []store.Op{put(fmt.Sprint("k", i), "v")}); err != nil {
			return err
		}
		if _, _, err := s.Get(slot, "k0", ""); err != nil {
			return err
		}
	}
	return nil
}

// checkDurable has nothing to check on a store that is not a Durable.
func checkDurable(t testing.TB, s store.Store) {
	d, ok := s.(store.Durable)
	if !ok {
		return
	}
	ctx := context.Background()
	if err := d.Wait(ctx, 1, d.Position(1)); err != nil {
		t.Errorf("Wait for the position of an empty slot = %v", err)
	}
	last := d.Position(1)
	for i := range 20 {
		if i%5 == 4 {
			if err := s.Drop(1); err != nil {
				t.Fatalf("Drop(1) = %v", err)
			}
		} else {
			apply(t, s, 1, put("k", fmt.Sprint(i)))
		}
		p := d.Position(1)
		if p <= last {
			t.Errorf("Position after change %d = %d, want more than %d", i, p, last)
		}
		if err := d.Wait(ctx, 1, p); err != nil {
			t.Errorf("Wait for position %d = %v", p, err)
		}
		last = p
	}
	over, cancel := context.WithCancel(ctx)
	cancel()
	if err := d.Wait(over, 1, last+1_000_000); !errors.Is(err, context.Canceled) {
		t.Errorf("Wait for a position to come, with a context that is over = %v, want its error", err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("Close() = %v", err)
	}
	if err := d.Wait(ctx, 1, last+1_000_000); !errors.Is(err, store.ErrClosed) {
		t.Errorf("Wait for a position to come, after Close = %v, want ErrClosed", err)
	}
}
