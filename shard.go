package slotmesh

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"slices"
)

// ShardID names a shard, a primary and its replicas, for ever: 160 random bits.
// The zero id is the shard of nobody, to which unassigned slots belong.
type ShardID [20]byte

// String returns the id as 40 lower-case hexadecimal digits.
func (id ShardID) String() string { return hex.EncodeToString(id[:]) }

// IsZero reports whether id is that of nobody's slots.
func (id ShardID) IsZero() bool { return id == ShardID{} }

func (id ShardID) compare(other ShardID) int { return bytes.Compare(id[:], other[:]) }

func (id ShardID) short() string { return hex.EncodeToString(id[:4]) }

// Epoch is the version of one shard's primary: Redis's configEpoch, with the
// node that won it. Epochs compare as (Number, Unclean, Node), so that no two
// nodes ever hold the same one.
type Epoch struct {
	Number  uint64
	Unclean bool   // taken by an operator without a vote
	Node    NodeID // who leads the shard in this epoch
}

// Compare returns -1, 0 or +1 as e is older than, equal to or newer than o.
func (e Epoch) Compare(o Epoch) int {
	switch {
	case e.Number != o.Number:
		return order(e.Number < o.Number)
	case e.Unclean != o.Unclean:
		return order(!e.Unclean)
	default:
		return e.Node.compare(o.Node)
	}
}

func order(less bool) int {
	if less {
		return -1
	}
	return 1
}

func (e Epoch) less(o Epoch) bool { return e.Compare(o) < 0 }

// outranks reports whether a voter that has promised o may promise e to another
// candidate: by number alone, so that two candidates never get one number from
// one voter, but for a takeover, which beats a voted epoch of its number.
func (e Epoch) outranks(o Epoch) bool {
	if mutated(mutTwoGrants) && e.Number == o.Number && e.Node != o.Node {
		return true
	}
	return e.Number > o.Number || e.Number == o.Number && e.Unclean && !o.Unclean
}

func (e Epoch) String() string {
	mark := ""
	if e.Unclean {
		mark = "!"
	}
	return fmt.Sprintf("%d%s@%s", e.Number, mark, e.Node.short())
}

// incarnate is a member of a shard with the incarnation of its store: where the
// data is gone, as that of a store in memory after a start, or is that of another
// shard, it is another member.
type incarnate struct {
	Node        NodeID
	Incarnation uint64
}

// record is what the voters keep of a shard: who leads it since when, and which
// members hold every acknowledged write. Records are ordered by (Epoch, N).
type record struct {
	Shard  ShardID
	Epoch  Epoch
	N      uint64 // counts the changes of InSync under one epoch
	InSync []incarnate
	Strict bool
	Vacant bool // an operator took the epoch to give slots away: nobody leads
}

func (r *record) newer(o *record) bool {
	if c := r.Epoch.Compare(o.Epoch); c != 0 {
		return c > 0
	}
	return r.N > o.N
}

// electable reports whether a member holds every acknowledged write, and so may
// lead the shard.
func (r *record) electable(m incarnate) bool {
	if mutated(mutAnyIncarnation) {
		return slices.ContainsFunc(r.InSync, func(x incarnate) bool { return x.Node == m.Node })
	}
	return slices.Contains(r.InSync, m)
}

// member is a voter: a node and the key of the file that holds its votes.
type member struct {
	ID  NodeID
	Key uint64
}

// voterVersion orders the sets of voters. Forced counts the sets that an
// operator has imposed, so that such a set beats all that its old side decides
// meanwhile.
type voterVersion struct {
	Forced   uint64
	Number   uint64
	Proposer NodeID // of the set that was imposed, and of all that are decided from it on; zero: none was
}

func (v voterVersion) compare(o voterVersion) int {
	switch {
	case v.Forced != o.Forced && !mutated(mutForcedIgnored):
		return order(v.Forced < o.Forced)
	case v.Number != o.Number:
		return order(v.Number < o.Number)
	default:
		return v.Proposer.compare(o.Proposer)
	}
}

func (v voterVersion) less(o voterVersion) bool { return v.compare(o) < 0 }

func (v voterVersion) String() string {
	if v.Forced == 0 {
		return fmt.Sprint(v.Number)
	}
	return fmt.Sprintf("%d.%d@%s", v.Forced, v.Number, v.Proposer.short())
}

// voterSet is the explicit, versioned set of nodes whose majority decides.
type voterSet struct {
	Version voterVersion
	ID      uint64   // of the START that decided the set
	Members []member // ascending by node
}

func (v *voterSet) has(id NodeID) bool {
	return slices.ContainsFunc(v.Members, func(m member) bool { return m.ID == id })
}

func (v *voterSet) hasMember(m member) bool { return slices.Contains(v.Members, m) }

// quorum is the number of voters that make a majority.
func (v *voterSet) quorum() int {
	if mutated(mutQuorumLow) {
		return max(1, len(v.Members)/2)
	}
	return len(v.Members)/2 + 1
}

// compare orders by node alone: a set has a node once, under one key.
func (m member) compare(o member) int { return m.ID.compare(o.ID) }

func sortMembers(ms []member) { slices.SortFunc(ms, member.compare) }

func sameMembers(a, b []member) bool { return slices.Equal(a, b) }
