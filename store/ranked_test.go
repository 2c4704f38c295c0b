package store_test

import (
	"fmt"
	"testing"

	"github.com/slotmesh/slotmesh/internal/racing"
	"github.com/slotmesh/slotmesh/store"
	"github.com/slotmesh/slotmesh/store/storetest"
)

// unranked is a store that does no more than it has to.
type unranked struct{ store.Store }

func TestAStoreWithoutRanksIsWalked(t *testing.T) {
	racing.OneGoroutine(t)
	storetest.Run(t, func(*testing.T) store.Store { return unranked{store.NewMemory()} })
}

func BenchmarkRanked(b *testing.B) {
	s := store.NewMemory()
	fields := fillHash(b, s, 1_000_000)
	b.Run("rank", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i = (i + 7919) % len(fields) {
			if n, err := s.Rank(1, "hash", fields[i]); n != i || err != nil {
				b.Fatal(fmt.Sprint(n, err, i))
			}
		}
	})
	b.Run("at", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i = (i + 7919) % len(fields) {
			if it, _, err := s.At(1, "hash", i); it.Field != fields[i] || err != nil {
				b.Fatal(it, err)
			}
		}
	})
	b.Run("back", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i = (i + 7919) % len(fields) {
			if items, _, err := s.RangeBack(1, "hash", fields[i]+"\x00", 1); items[0].Field != fields[i] || err != nil {
				b.Fatal(items, err)
			}
		}
	})
}
