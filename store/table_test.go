package store

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"github.com/slotmesh/slotmesh/internal/racing"
)

// check reports what is wrong with the table: each entry must be in exactly one
// chain, the one that its hash chooses, or under its tag in a small table, and
// the arrays no longer than they may.
func (t *table) check() error {
	reached := 0
	if t.heads == nil {
		for i := range t.len {
			if t.tags[i] == smallTag(t.at(i).name()) {
				reached++
			}
		}
	}
	for i, heads := range [][]uint32{t.heads, t.old} {
		for b := range heads {
			for ref := heads[b]; ref != 0; ref = t.at(int(ref - 1)).next {
				reached++
				if reached > t.len {
					return fmt.Errorf("more than %d entries are in chains", t.len)
				}
				if h := t.hash(t.at(int(ref - 1)).name()); int(h&uint64(len(heads)-1)) != b {
					return fmt.Errorf("heads %d: %q is in bucket %d", i, t.at(int(ref-1)).name(), b)
				}
			}
		}
	}
	switch {
	case reached != t.len:
		return fmt.Errorf("%d entries can be found, want %d", reached, t.len)
	case t.len <= chunkSize && len(t.first) != t.len:
		return fmt.Errorf("first chunk has %d entries, want %d", len(t.first), t.len)
	case len(t.rest) > t.len/chunkSize+1:
		return fmt.Errorf("%d more chunks for %d entries", len(t.rest), t.len)
	}
	return nil
}

func TestTableStaysWholeWhileItGrowsAndShrinks(t *testing.T) {
	racing.OneGoroutine(t)
	for _, seed := range []uint64{1, 2, 3} {
		rnd := rand.New(rand.NewPCG(seed, 0))
		m := NewMemory()
		var keys []string
		moving := 0
		for step, target := range []int{3, 0, 511, 513, 30, 1025, 5000, 700, 9000, 100, 1, 0, 20} {
			for len(keys) != target {
				// Three steps towards the target and one away from it.
				if (len(keys) < target) != (rnd.IntN(4) == 0) {
					keys = append(keys, fmt.Sprint(step, ":", rnd.Uint64()))
					put(t, m, keys[len(keys)-1])
				} else if len(keys) > 0 {
					i := rnd.IntN(len(keys))
					remove(t, m, keys[i])
					keys[i] = keys[len(keys)-1]
					keys = keys[:len(keys)-1]
				}
				table := m.slots.Load()[0]
				if table != nil && table.old != nil {
					moving++
				}
				if table != nil && (len(keys) < 20 || len(keys)%97 == 0) {
					if err := table.check(); err != nil {
						t.Fatalf("seed %d, %d keys: %v", seed, len(keys), err)
					}
				}
			}
			for _, key := range keys {
				if _, found, _ := m.Get(0, key, ""); !found {
					t.Fatalf("seed %d: key %q is lost among %d", seed, key, len(keys))
				}
			}
		}
		if moving == 0 {
			t.Errorf("seed %d: no change fell into a move of chains", seed)
		}
	}
}

func TestTableGivesBackWhatItNeedsNoMore(t *testing.T) {
	racing.OneGoroutine(t)
	m := NewMemory()
	const n = 100_000
	for i := range n {
		put(t, m, fmt.Sprint(i))
	}
	for i := 10; i < n; i++ {
		remove(t, m, fmt.Sprint(i))
	}
	table := m.slots.Load()[0]
	for i := range 2 * n / moveStep { // the last move ends within so many changes
		put(t, m, fmt.Sprint(i%10))
		remove(t, m, fmt.Sprint(i%10))
		put(t, m, fmt.Sprint(i%10))
	}
	if len(table.heads) > 128 || table.old != nil || len(table.rest) > 0 || cap(table.first) > 64 {
		t.Errorf("10 keys are left: %d buckets, %d old ones, %d entries, %d more chunks", len(table.heads), len(table.old), cap(table.first), len(table.rest))
	}
	for i := range 10 {
		remove(t, m, fmt.Sprint(i))
	}
	if err := m.Drop(0); err != nil || m.slots.Load()[0] != nil {
		t.Errorf("a dropped slot keeps a table, err %v", err)
	}
}

func TestAPlainKeyPaysNothingForFields(t *testing.T) {
	if size := unsafe.Sizeof(entry{}); size != 40 && unsafe.Sizeof(uintptr(0)) == 8 {
		t.Errorf("an entry has %d bytes, want 40", size)
	}
	m := NewMemory()
	put(t, m, "k")
	apply(t, m, Op{Code: OpPut, Key: "k", Field: "f", Value: []byte("1")})
	e := m.slots.Load()[0].find("k")
	if !e.hasFields {
		t.Error("a key with a field has no tree")
	}
	apply(t, m, Op{Code: OpDelete, Key: "k", Field: "f"})
	if e.hasFields || string(e.head().Value) != "v" {
		t.Errorf("after its last field is gone: hasFields %v, head %q", e.hasFields, e.head().Value)
	}
}

func TestAnEmptyValueKeepsNothingAlive(t *testing.T) {
	m := NewMemory()
	apply(t, m, Op{Code: OpPut, Key: "k", Value: make([]byte, 1<<20)[:0]})
	if e := m.slots.Load()[0].find("k"); e.value != nil {
		t.Error("an empty value points into the array that it was cut from")
	}
}

func TestSizesThatDoNotFitAreNamed(t *testing.T) {
	if strconv.IntSize == 32 {
		t.Skip("an int of 32 bits holds no size that would not fit")
	}
	sizes, keys := uint64(math.MaxUint32), uint64(maxKeys) // variables: as constants they would not compile there
	if err := checkSize(3, "value", int(sizes)); err != nil {
		t.Errorf("the largest size: %v", err)
	}
	err := checkSize(3, "value", int(sizes+1))
	if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "op 3: a value of 4294967296 bytes, want at most 4294967295") {
		t.Errorf("one byte more: %v", err)
	}
	full := &table{len: int(keys - 1)}
	if err := checkRoom(full, make([]Op, 1)); err != nil {
		t.Errorf("the last key: %v", err)
	}
	if err := checkRoom(full, make([]Op, 2)); !errors.Is(err, ErrInvalid) {
		t.Errorf("one key more: %v, want ErrInvalid", err)
	}
}

func apply(t *testing.T, m *Memory, ops ...Op) {
	t.Helper()
	if err := m.Apply(0, ops); err != nil {
		t.Fatal(err)
	}
}

func put(t *testing.T, m *Memory, key string) {
	t.Helper()
	apply(t, m, Op{Code: OpPut, Key: key, Value: []byte("v")})
}

func remove(t *testing.T, m *Memory, key string) {
	t.Helper()
	apply(t, m, Op{Code: OpDeleteKey, Key: key})
}
