package slotmesh_test

import (
	"context"
	"errors"
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
	var op *slotmesh.OpError
	if errors.As(err, &op) && op.Outcome == slotmesh.Unknown {
		fmt.Println("whoever repeats it may do it twice")
	}
	fmt.Println(errors.Is(err, slotmesh.ErrTooLarge))
	// Output:
	// slotmesh: set, slot 907: too large: key of 22 bytes, expected at most 8 (not executed)
	// true
}

// A second node joins a node that was alone, and is given half of the slots
// while they are used. Their keys go with them.
func ExampleAdmin_moveSlots() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	network := transport.NewMemory()
	first, err := slotmesh.Start(ctx, slotmesh.Config{Addr: "first", Transport: network, NodeTimeout: time.Second})
	if err != nil {
		log.Fatal(err)
	}
	defer first.Close()
	if err := first.Client().Set(ctx, "user:1000", []byte("alice")); err != nil {
		log.Fatal(err)
	}
	second, err := slotmesh.Start(ctx, slotmesh.Config{
		Addr: "second", Transport: network, Join: true, Seeds: []string{"first"}, NodeTimeout: time.Second,
	})
	if err != nil {
		log.Fatal(err)
	}
	defer second.Close()
	if err := second.Ready(ctx); err != nil {
		log.Fatal(err)
	}
	half, err := slotmesh.ParseSlotSet("0-8191")
	if err != nil {
		log.Fatal(err)
	}
	if err := first.Admin().MoveSlots(ctx, half, second.ID()); err != nil {
		log.Fatal(err)
	}
	for slots, owner := range first.Table().All() {
		fmt.Println(slots, owner.Addr)
	}
	keys, err := second.CountKeys(slotmesh.KeySlot("user:1000"))
	fmt.Println(keys, err)
	name, err := first.Client().Get(ctx, "user:1000")
	fmt.Println(string(name), err)
	// Output:
	// 0-8191 second
	// 8192-16383 first
	// 1 <nil>
	// alice <nil>
}

// A Watch hears of changes at the node that serves the key. Its function holds
// the lock of the slot, so it hands on what it hears and reads nothing itself.
func ExampleWatch() {
	ctx := context.Background()
	node, err := slotmesh.Start(ctx, slotmesh.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer node.Close()
	changed := make(chan string, 16)
	watch := node.Watch(func(key string, gone bool) {
		select {
		case changed <- key:
		default: // behind: whoever needs every change counts what it misses
		}
	})
	defer watch.Close()
	watch.Add("user:1000")
	for _, key := range []string{"user:999", "user:1000"} {
		if err := node.Client().Set(ctx, key, []byte("alice")); err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println(<-changed)
	// Output: user:1000
}

// What one node publishes, every node of the cluster hears.
func ExampleNode_subscribe() {
	ctx := context.Background()
	node, err := slotmesh.Start(ctx, slotmesh.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer node.Close()
	messages := make(chan string, 16)
	stop := node.Subscribe(func(channel string, payload []byte) (receivers int) {
		if channel != "news" {
			return 0
		}
		select {
		case messages <- string(payload):
			return 1
		default:
			return 0
		}
	})
	defer stop()
	receivers, err := node.Publish(ctx, "news", []byte("hello"))
	fmt.Println(receivers, err)
	fmt.Println(<-messages)
	// Output:
	// 1 <nil>
	// hello
}

// Many writes that must not be lost with their primary are waited for together.
func ExampleClient_Wait() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	seeds := []string{"a", "b", "c"}
	network := transport.NewMemory()
	var nodes []slotmesh.Node
	for _, addr := range seeds {
		node, err := slotmesh.Start(ctx, slotmesh.Config{
			Addr: addr, Transport: network, Seeds: seeds, Primaries: 1, Replicas: 2, NodeTimeout: time.Second,
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
	c := nodes[0].Client()
	for i := range 1000 {
		if err := c.Set(ctx, fmt.Sprint("user:", i), []byte("alice")); err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println(c.Wait(ctx, 2))
	// Output: 2 <nil>
}

// A write that must not be lost with its primary is refused where nobody else would
// have it.
func ExampleClient_WithAckReplicas() {
	ctx := context.Background()
	node, err := slotmesh.Start(ctx, slotmesh.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer node.Close()
	c := node.Client()
	fmt.Println(c.Set(ctx, "cache:1000", []byte("alice")))
	err = c.WithAckReplicas(1).Set(ctx, "user:1000", []byte("alice"))
	fmt.Println(errors.Is(err, slotmesh.ErrNoReplicas))
	// Output:
	// <nil>
	// true
}
