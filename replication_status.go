package slotmesh

import (
	"slices"
	"time"
)

// Replication is what a node says of its shard's log: enough for INFO replication
// and ROLE.
type Replication struct {
	Shard   ShardID
	Primary NodeID // whom this node follows; zero: nobody
	Leads   bool   // this node appends to the log

	// Position is where this node's log ends: the epoch in which its last entry was
	// appended, and how many there are since the shard began.
	Epoch  Epoch
	Offset uint64

	// Of a replica.
	Link       LinkState
	SilentFor  time.Duration // since it had all that its primary had; 0 where it never has
	HoldsCopy  bool          // it has all data, as of some moment
	PrimaryEnd uint64        // where the primary's log ended, as it has said last

	// Of a primary.
	Replicas  []ReplicaStatus // those that are attached, ascending by id
	InSync    []NodeID        // members that have every acknowledged write, this node first
	Committed uint64          // up to which offset all of them have the log
	Backlog   BacklogStatus
}

// LinkState is what a replica's connection to its primary does.
type LinkState uint8

const (
	LinkDown LinkState = iota // there is none
	LinkSync                  // everything is being copied
	LinkUp                    // entries come as they are made
)

// ReplicaStatus is a replica as its primary sees it.
type ReplicaStatus struct {
	Node   NodeID
	Offset uint64 // up to where it has acknowledged the log
	Link   LinkState
	Heard  time.Duration // since its last word
}

// BacklogStatus is what a node remembers of its log.
type BacklogStatus struct {
	First uint64 // offset of the oldest entry that is there
	Bytes int
	Limit int
}

// status is what Status says of the log.
func (r *replication) status() Replication {
	facts := r.facts.Load()
	r.mu.Lock()
	defer r.mu.Unlock()
	at := r.log.position()
	s := Replication{Shard: r.shard, Leads: r.log.epoch != (Epoch{}), Epoch: at.Epoch, Offset: at.Offset, HoldsCopy: facts.whole,
		Backlog: BacklogStatus{r.back.base + 1, r.back.bytes, r.back.limit}}
	now := r.n.now()
	if f := r.following; f != nil {
		s.Primary, s.Link, s.PrimaryEnd = f.primary, LinkState(f.link.Load()), f.primaryEnd.Load()
		if caught := f.caught.Load(); caught != 0 {
			s.SilentFor = now - time.Duration(caught)
		}
	}
	if !s.Leads {
		return s
	}
	s.InSync, s.Committed = r.inSync, r.log.committed()
	for _, f := range r.feeds {
		s.Replicas = append(s.Replicas, ReplicaStatus{f.id, f.acked, f.state, now - f.heard})
	}
	slices.SortFunc(s.Replicas, func(a, b ReplicaStatus) int { return a.Node.compare(b.Node) })
	return s
}
