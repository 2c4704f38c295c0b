package store_test

import (
	"fmt"
	"runtime"
	"sync"
	"testing"

	"github.com/slotmesh/slotmesh/store"
)

// The benchmarks put "a map under one RWMutex" beside the store, as the way
// that a service without slots would go. The store pays for a lock per slot in
// the same place, as its callers do.

// lockedMap is the yardstick.
type lockedMap struct {
	mu sync.RWMutex
	m  map[string][]byte
}

// slotLocks are the locks that a node holds, on a cache line each.
type slotLocks [store.NumSlots]struct {
	sync.RWMutex
	_ [40]byte
}

// benchKeys returns n keys and a slot for each.
func benchKeys(n int) (keys []string, slots []uint16) {
	keys, slots = make([]string, n), make([]uint16, n)
	for i := range n {
		keys[i] = benchKey(i)
		slots[i] = slotOf(i)
	}
	return keys, slots
}

func fill(b *testing.B, s store.Store, keys []string, slots []uint16) {
	b.Helper()
	for i := range keys {
		if err := s.Apply(slots[i], []store.Op{{Code: store.OpPut, Key: keys[i], Value: make([]byte, 32)}}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkGet(b *testing.B) {
	for _, n := range []int{256, 100_000} {
		keys, slots := benchKeys(n)
		b.Run(fmt.Sprintf("store/keys=%d", n), func(b *testing.B) {
			s, locks := store.NewMemory(), new(slotLocks)
			fill(b, s, keys, slots)
			b.ReportAllocs()
			for i := 0; b.Loop(); i = (i + 7919) % n {
				lock := &locks[slots[i]]
				lock.RLock()
				_, found, err := store.Store(s).Get(slots[i], keys[i], "")
				lock.RUnlock()
				if !found || err != nil {
					b.Fatal(keys[i], found, err)
				}
			}
		})
		b.Run(fmt.Sprintf("map/keys=%d", n), func(b *testing.B) {
			m := lockedMap{m: map[string][]byte{}}
			for _, key := range keys {
				m.m[key] = make([]byte, 32)
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i = (i + 7919) % n {
				m.mu.RLock()
				_, found := m.m[keys[i]]
				m.mu.RUnlock()
				if !found {
					b.Fatal(keys[i])
				}
			}
		})
	}
}

func BenchmarkGetField(b *testing.B) {
	s := store.NewMemory()
	fields := fillHash(b, s, 1_000_000)
	b.ReportAllocs()
	for i := 0; b.Loop(); i = (i + 7919) % len(fields) {
		if _, found, err := s.Get(1, "hash", fields[i]); !found || err != nil {
			b.Fatal(fields[i], found, err)
		}
	}
}

// fillHash puts a key with n fields into slot 1 and returns the fields.
func fillHash(b *testing.B, s store.Store, n int) []string {
	b.Helper()
	fields := make([]string, n)
	for i := range fields {
		fields[i] = fmt.Sprintf("field:%010d", i)
		if err := s.Apply(1, []store.Op{{Code: store.OpPut, Key: "hash", Field: fields[i], Value: make([]byte, 32)}}); err != nil {
			b.Fatal(err)
		}
	}
	return fields
}

func BenchmarkPutOverwrite(b *testing.B) {
	const n = 100_000
	keys, slots := benchKeys(n)
	s := store.NewMemory()
	fill(b, s, keys, slots)
	value, ops := make([]byte, 32), make([]store.Op, 1)
	b.ReportAllocs()
	for i := 0; b.Loop(); i = (i + 7919) % n {
		ops[0] = store.Op{Code: store.OpPut, Key: keys[i], Value: value}
		if err := s.Apply(slots[i], ops); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkPutNew starts over with an empty store after each million of keys.
func BenchmarkPutNew(b *testing.B) {
	const n = 1_000_000
	keys, slots := benchKeys(n)
	for _, where := range []string{"spread", "one slot"} {
		b.Run(where, func(b *testing.B) {
			s := store.NewMemory()
			value, ops := make([]byte, 32), make([]store.Op, 1)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if i == n {
					i, s = 0, store.NewMemory()
				}
				slot := slots[i]
				if where == "one slot" {
					slot = 0
				}
				ops[0] = store.Op{Code: store.OpPut, Key: keys[i], Value: value}
				if err := s.Apply(slot, ops); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkPutFieldOfAMillion(b *testing.B) {
	s := store.NewMemory()
	fields := fillHash(b, s, 1_000_000)
	value, ops := make([]byte, 32), make([]store.Op, 1)
	b.ReportAllocs()
	for i := 0; b.Loop(); i = (i + 7919) % len(fields) {
		ops[0] = store.Op{Code: store.OpPut, Key: "hash", Field: fields[i], Value: value}
		if err := s.Apply(1, ops); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkScanPage(b *testing.B) {
	const n = 100_000
	keys, _ := benchKeys(n)
	s := store.NewMemory()
	fill(b, s, keys, make([]uint16, n))
	b.ReportAllocs()
	cursor := uint64(0)
	for b.Loop() {
		var err error
		if _, cursor, err = s.Scan(0, cursor, 100); err != nil {
			b.Fatal(err)
		}
	}
}

// Both take as long for many keys as for one.
func BenchmarkLenAndDrop(b *testing.B) {
	for _, n := range []int{1, 100_000} {
		keys, _ := benchKeys(n)
		slots := make([]uint16, n)
		b.Run(fmt.Sprintf("len/keys=%d", n), func(b *testing.B) {
			s := store.NewMemory()
			fill(b, s, keys, slots)
			for b.Loop() {
				if got, err := s.Len(0); got != n || err != nil {
					b.Fatal(got, err)
				}
			}
		})
		b.Run(fmt.Sprintf("drop/keys=%d", n), func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				s := store.NewMemory()
				fill(b, s, keys, slots)
				b.StartTimer()
				if err := s.Drop(0); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkMemoryPerKey reports what a key of 16 bytes with a value of 32 bytes
// occupies, both included, once all are there. The maps are what the store could
// have been: a Go map per slot beside a list of keys for Scan, or one map of all.
func BenchmarkMemoryPerKey(b *testing.B) {
	for _, build := range []struct {
		name string
		of   func(n int) any
	}{{"store", storeOf}, {"map per slot", mapPerSlotOf}, {"one map", oneMapOf}} {
		for _, n := range []int{100_000, 1_000_000, 3_000_000} {
			b.Run(fmt.Sprintf("%s/keys=%d", build.name, n), func(b *testing.B) {
				for b.Loop() {
					before := heap()
					kept := build.of(n)
					b.ReportMetric(float64(heap()-before)/float64(n), "B/key")
					runtime.KeepAlive(kept)
				}
			})
		}
	}
}

func storeOf(n int) any {
	s := store.NewMemory()
	for i := range n {
		_ = s.Apply(slotOf(i), []store.Op{{Code: store.OpPut, Key: benchKey(i), Value: make([]byte, 32)}})
	}
	return s
}

func mapPerSlotOf(n int) any {
	type listed struct {
		value []byte
		at    uint32
	}
	maps, lists := make([]map[string]listed, store.NumSlots), make([][]string, store.NumSlots)
	for i := range n {
		slot, key := slotOf(i), benchKey(i)
		if maps[slot] == nil {
			maps[slot] = map[string]listed{}
		}
		maps[slot][key] = listed{value: make([]byte, 32), at: uint32(len(lists[slot]))}
		lists[slot] = append(lists[slot], key)
	}
	return []any{maps, lists}
}

func oneMapOf(n int) any {
	m := map[string][]byte{}
	for i := range n {
		m[benchKey(i)] = make([]byte, 32)
	}
	return m
}

func benchKey(i int) string { return fmt.Sprintf("user:%011d", i) } // 16 bytes

// slotOf spreads keys as hashing would.
func slotOf(i int) uint16 { return uint16(uint32(i) * 2654435761 >> 18) }

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
