package store_test

import (
	"fmt"
	"log"

	"github.com/slotmesh/slotmesh/store"
)

// A hash is a head, which alone has a kind and a time of expiry, and a field for
// each of its members.
func ExampleMemory() {
	s := store.NewMemory()
	defer s.Close()
	const slot, kind = 1649, 'h'
	err := s.Apply(slot, []store.Op{
		{Code: store.OpPut, Key: "user:1000", Kind: kind},
		{Code: store.OpPut, Key: "user:1000", Field: "name", Value: []byte("alice")},
		{Code: store.OpPut, Key: "user:1000", Field: "city", Value: []byte("paris")},
	})
	if err != nil {
		log.Fatal(err)
	}
	members, more, err := s.Range(slot, "user:1000", store.FirstField, 10)
	for _, m := range members {
		fmt.Println(m.Field, string(m.Value))
	}
	fmt.Println(more, err)
	// Output:
	// city paris
	// name alice
	// false <nil>
}
