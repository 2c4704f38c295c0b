package slotmesh_test

import (
	"context"
	"fmt"
	"log"
	"strconv"
	"time"

	"github.com/slotmesh/slotmesh"
	"github.com/slotmesh/slotmesh/transport"
)

// A node alone owns every slot, keeps them in memory and opens no port.
func Example() {
	ctx := context.Background()
	node, err := slotmesh.Start(ctx, slotmesh.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer node.Close()
	c := node.Client()
	if err := c.Set(ctx, "user:1000", []byte("alice")); err != nil {
		log.Fatal(err)
	}
	name, err := c.Get(ctx, "user:1000")
	fmt.Println(string(name), err)
	// Output: alice <nil>
}

// Three nodes in one process form a cluster; any of them serves any key.
func ExampleStart_cluster() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	seeds := []string{"a", "b", "c"}
	network := transport.NewMemory()
	var nodes []slotmesh.Node
	for _, addr := range seeds {
		node, err := slotmesh.Start(ctx, slotmesh.Config{
			Addr: addr, Transport: network, Seeds: seeds, Primaries: len(seeds), NodeTimeout: time.Second,
		})
		if err != nil {
			log.Fatal(err)
		}
		defer node.Close()
		nodes = append(nodes, node)
	}
	for _, node := range nodes {
		if err := node.Ready(ctx); err != nil {
			log.Fatal(err)
		}
	}
	if err := nodes[0].Client().Set(ctx, "user:1000", []byte("alice")); err != nil {
		log.Fatal(err)
	}
	name, err := nodes[2].Client().Get(ctx, "user:1000")
	s := nodes[1].Status()
	fmt.Println(string(name), err)
	fmt.Println(s.Members, "members,", s.Assigned, "slots,", len(s.Voters), "voters")
	// Output:
	// alice <nil>
	// 3 members, 16384 slots, 3 voters
}

// A command is the application's own code at the owner of a key: here a counter
// that does not pass a limit, wherever it is called from.
func ExampleCommand() {
	take := slotmesh.Command{
		Name: "take",
		Run: func(tx *slotmesh.Tx, args [][]byte) ([]byte, error) {
			key := string(args[0])
			limit, err := strconv.Atoi(string(args[1]))
			if err != nil {
				return nil, err
			}
			v, _, err := tx.Get(key)
			if err != nil {
				return nil, err
			}
			n, _ := strconv.Atoi(string(v))
			if n >= limit {
				return []byte("no"), nil
			}
			return []byte("yes"), tx.Put(key, []byte(strconv.Itoa(n+1)))
		},
	}
	ctx := context.Background()
	node, err := slotmesh.Start(ctx, slotmesh.Config{Commands: []slotmesh.Command{take}})
	if err != nil {
		log.Fatal(err)
	}
	defer node.Close()
	for range 3 {
		answer, err := node.Client().Do(ctx, "take", []byte("tickets"), []byte("2"))
		fmt.Println(string(answer), err)
	}
	// Output:
	// yes <nil>
	// yes <nil>
	// no <nil>
}

func ExampleKeySlot() {
	fmt.Println(slotmesh.KeySlot("user:1000"), slotmesh.KeySlot("order:{user:1000}:items"))
	// Output: 1649 1649
}

// A caller decides by the outcome whether a call may be repeated.
func ExampleOpError() {
	ctx := context.Background()
	node, err := slotmesh.Start(ctx, slotmesh.Config{MaxKey: 8})
	if err != nil {
		log.Fatal(err)
	}
	defer node.Close()
	err = node.Client().Set(ctx, "a key that is too long", nil)
	fmt.Println(err)
	// Output: slotmesh: set, slot 907: slotmesh: too large: key of 22 bytes, expected at most 8 (not executed)
}
