// Package slotmesh puts the semantics of Redis Cluster inside a Go service:
// 16384 hash slots, a gossip bus, failure detection, elections by majority,
// online slot migration, MOVED and ASK. An application embeds a node, gives it
// its own commands and, if it likes, its own store and transport; the cluster is
// a package, not a server to operate.
//
//	node, err := slotmesh.Start(ctx, slotmesh.Config{}) // alone: every slot, in memory, no port
//	if err != nil { ... }
//	defer node.Close()
//	c := node.Client()
//	err = c.Set(ctx, "user:1000", []byte("alice"))
//
// # Four ideas
//
// A key has a slot ([KeySlot]), a slot a shard, a shard a primary. The first
// mapping never changes; the other two are an explicit, versioned table
// ([SlotTable]) that every node has.
//
// Ownership changes only by a majority of explicit voters, at most nine, one per
// host, each of which saves before it answers. A primary acknowledges only under
// a lease from that majority, checked when the reply leaves: two nodes never
// acknowledge for one slot.
//
// Code goes to the data. A [Command] runs at the primary of its keys' slot, under
// the slot's lock, and sees the slot through a [Tx]. What it has changed is a
// list of absolute ops; if it fails or panics there are none.
//
// A call says what has happened. Its error is an [OpError] whose [Outcome] is
// NotExecuted, Executed or Unknown. What may have happened is never repeated in
// silence.
//
// # Clusters
//
// A node without Seeds, Primaries and Join is a cluster of its own. Nodes with
// the same Seeds and Primaries form one by themselves, started in any order.
// Nodes that Join have no slots until they get some: [Admin] has MoveSlots, with
// the data and while they are used, and the commands that operators of Redis
// Cluster know. A node with a Dir is the same node after a restart; one without
// is another, and the slots of the former wait for an operator.
//
// Whole clusters fit into a test: give their nodes one transport.NewMemory, and
// run them in a testing/synctest bubble if time is not to pass. transport.Faults
// breaks the network between them:
//
//	synctest.Test(t, func(t *testing.T) {
//		faults := transport.NewFaults(transport.NewMemory(), 1)
//		defer faults.Close()
//		seeds := []string{"a", "b", "c"}
//		for _, addr := range seeds {
//			node, err := slotmesh.Start(t.Context(), slotmesh.Config{
//				Addr: addr, Transport: faults.Node(addr), Seeds: seeds, Primaries: 3,
//			})
//			if err != nil { ... }
//			defer node.Close()
//		}
//		...
//		faults.Partition([]string{"a"}, []string{"b", "c"}) // a serves no more, once its lease has ended
//		faults.Heal()
//	})
//
// # What is not guaranteed
//
// What a node alone held in a memory store is gone when it crashes: without
// replicas all of it, with them the writes of the last moment, and with
// Config.AckReplicas none that was acknowledged. Takeover and ForceVoters decide without a majority, say
// so in an event, and may lose what the other side has acknowledged. Clocks of
// nodes may run at rates up to 10 % apart, not more.
package slotmesh
