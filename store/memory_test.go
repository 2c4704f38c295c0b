package store_test

import (
	"testing"

	"github.com/slotmesh/slotmesh/store"
	"github.com/slotmesh/slotmesh/store/storetest"
)

func TestMemoryKeepsTheContract(t *testing.T) {
	storetest.Run(t, func(*testing.T) store.Store { return store.NewMemory() })
}

func FuzzMemoryAgreesWithAPlainMap(f *testing.F) {
	f.Add([]byte("a few bytes to start from, as any script is valid"))
	f.Add([]byte{0, 2, 0, 1, 0, 9, 5, 0, 0, 0, 1, 3, 9, 5, 0, 1, 200, 1, 0})
	f.Fuzz(func(t *testing.T, script []byte) {
		s := store.NewMemory()
		defer s.Close()
		storetest.Replay(t, s, script)
	})
}
