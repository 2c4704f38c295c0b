package slotmesh

import "fmt"

// EventKind says what an [Event] is about.
type EventKind uint8

// What happens in a cluster, as one node sees it.
const (
	EventFormed        EventKind = iota + 1 // the cluster has formed, proposed by Node
	EventJoined                             // this node has joined the cluster of Node
	EventMember                             // Node has been taken as a member
	EventForgotten                          // Node is on its way out of the cluster, or is out
	EventReset                              // this node has been reset; Node is its id now
	EventRefused                            // somebody at Addr refuses this node, or is refused; Text says why
	EventDuplicate                          // a second live instance of Node has been seen, at Addr
	EventPrimary                            // Node leads Shard, under Epoch
	EventDeposed                            // Node leads Shard no more
	EventMoved                              // Slots have been given to Shard
	EventVoters                             // a set of voters of version Number is in force
	EventReplica                            // this node, Node, is a replica of Shard now; From leads it
	EventUnclean                            // acknowledged writes may be lost: an operator has decided without a majority, or Node was elected for Shard, which From led, though no member was left that had everything; Text says so then
	EventCut                                // this node, Node, has Number changes that no other member of Shard has, made while it led on its own: they are dropped. From leads it
	EventSlow                               // a command held a slot for too long; Text says which
	EventLost                               // events were lost since the last one: the buffer was full, or too many waited for a disk that hangs; Number says how many
	EventNumberRefused                      // Node has shown a number that is too high to be true
	EventSilent                             // Node has not been heard here for a NodeTimeout (PFAIL), or has failed no more and still is not heard
	EventFailed                             // a majority of the voters does not hear Node either (FAIL)
	EventDiffers                            // Node, at Addr, is configured unlike this node; Text names both values
	EventHeard                              // Node, which was silent or had failed, is heard again
	EventReplicas                           // Shard, which Node leads, has lost a replica: Number are heard. Text says how many it should have, and is empty once it has them again. A node looks twice in a NodeTimeout: of a loss that has been made good by then, by a spare that came at once, it tells no more than EventSilent or EventFailed of the node
)

var eventNames = map[EventKind]string{
	EventFormed: "formed", EventJoined: "joined", EventMember: "member", EventForgotten: "forgotten", EventReset: "reset",
	EventRefused: "refused", EventDuplicate: "duplicate", EventPrimary: "primary", EventDeposed: "deposed", EventMoved: "moved",
	EventVoters: "voters", EventReplica: "replica", EventUnclean: "unclean", EventCut: "cut", EventNumberRefused: "number refused",
	EventSlow: "slow", EventLost: "lost", EventSilent: "silent", EventFailed: "failed", EventHeard: "heard", EventDiffers: "differs",
	EventReplicas: "replicas",
}

// String returns the kind as one or two lower-case words.
func (k EventKind) String() string {
	if n, ok := eventNames[k]; ok {
		return n
	}
	return fmt.Sprintf("event(%d)", uint8(k))
}

// Event is something that has happened. Fields that a kind does not name are
// zero.
type Event struct {
	Kind   EventKind
	Node   NodeID
	From   NodeID // who led the shard before
	Shard  ShardID
	Epoch  Epoch
	Slots  SlotSet
	Number uint64
	Addr   string
	Text   string
}
