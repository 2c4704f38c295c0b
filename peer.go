package slotmesh

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"
)

// NodeID names a node for as long as its file lives: 160 random bits, printed
// as 40 lower-case hexadecimal digits. The address of a node is a hint that may
// change; the id does not.
type NodeID [20]byte

// String returns the id as 40 lower-case hexadecimal digits.
func (id NodeID) String() string { return hex.EncodeToString(id[:]) }

// IsZero reports whether id names no node.
func (id NodeID) IsZero() bool { return id == NodeID{} }

func (id NodeID) compare(other NodeID) int { return bytes.Compare(id[:], other[:]) }

// short is the id as traces and events print it.
func (id NodeID) short() string { return hex.EncodeToString(id[:4]) }

// ParseNodeID reads an id as [NodeID.String] prints it: exactly 40
// hexadecimal digits.
func ParseNodeID(s string) (NodeID, error) {
	var id NodeID
	if err := parseID(id[:], s); err != nil {
		return NodeID{}, fmt.Errorf("slotmesh: node id %q: %w", s, err)
	}
	return id, nil
}

func parseID(dst []byte, s string) error {
	if len(s) != 2*len(dst) {
		return fmt.Errorf("%d characters, expected %d hexadecimal digits", len(s), 2*len(dst))
	}
	if _, err := hex.Decode(dst, []byte(s)); err != nil {
		return fmt.Errorf("not hexadecimal: expected %d digits 0-9 a-f", 2*len(dst))
	}
	return nil
}

// ClusterID names a formed cluster: 128 random bits, drawn when it forms. The
// zero id is that of an unformed node.
type ClusterID [16]byte

// String returns the id as 32 lower-case hexadecimal digits.
func (id ClusterID) String() string { return hex.EncodeToString(id[:]) }

// IsZero reports whether the node that shows this id has not formed yet.
func (id ClusterID) IsZero() bool { return id == ClusterID{} }

// memberState is the state of a node in the membership. Of two entries of one
// version the later state wins.
type memberState uint8

const (
	present   memberState = iota
	leaving               // still a full member, but no voter is wanted there
	forgotten             // a tombstone, lifted by MEET alone
)

func (m memberState) String() string {
	switch m {
	case present:
		return "present"
	case leaving:
		return "leaving"
	case forgotten:
		return "forgotten"
	default:
		return fmt.Sprintf("memberState(%d)", uint8(m))
	}
}

// peerEntry is what every member knows of a node. Identity, voter key and
// state are under Version, which MEET, FORGET and RESET raise and nothing else;
// the rest are facts of their owner, under the counter that it alone raises.
type peerEntry struct {
	ID      NodeID
	Key     uint64 // voterKey: a node without its file is another voter
	State   memberState
	Version uint64

	Starts     uint64 // how often the owner has started; orders its facts
	Facts      uint64 // how often it has changed its facts since it was made
	Addr       string // of the bus
	ClientAddr string // of the front, "" where it has none
	Hostname   string // of the front, beside its address; "" where it has none
	Host       string // nodes of one label fail together
	Shard      ShardID
	Store      uint64 // incarnation of its store
	NoFailover bool   // it does not stand by itself while it is a replica
}

const maxHostname = 255 // as in Redis

// validHostname reports whether a name is one as Redis takes it, or "".
func validHostname(name string) bool {
	return len(name) <= maxHostname && strings.IndexFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '.' && r != '-'
	}) < 0
}

// newerState reports whether e says something newer about membership than o.
// Keys differ at one version only where a node was reset twice and met at two
// places; any fixed order makes the tables converge.
func (e *peerEntry) newerState(o *peerEntry) bool {
	switch {
	case e.Version != o.Version:
		return e.Version > o.Version
	case e.State != o.State:
		return e.State > o.State
	default:
		return e.Key > o.Key
	}
}

// newerFacts reports whether e, an entry of the same node and key, carries
// newer facts of its owner than o.
func (e *peerEntry) newerFacts(o *peerEntry) bool {
	if e.Starts != o.Starts {
		return e.Starts > o.Starts
	}
	return e.Facts > o.Facts
}

func (e *peerEntry) takeFacts(o *peerEntry) {
	e.Starts, e.Facts = o.Starts, o.Facts
	e.Addr, e.ClientAddr, e.Hostname, e.Host, e.Shard, e.Store, e.NoFailover = o.Addr, o.ClientAddr, o.Hostname, o.Host, o.Shard, o.Store, o.NoFailover
}

// hash is the entry's part in the digest of the membership.
func (e *peerEntry) hash(salt uint64) uint64 {
	h := hashBytes(salt, e.ID[:])
	h = hashUint(h, e.Key)
	h = hashUint(h, uint64(e.State))
	h = hashUint(h, e.Version)
	h = hashUint(h, e.Starts)
	h = hashUint(h, e.Facts)
	return hashEnd(h)
}

// silentEntry is a voter's list of the nodes that it has not heard for a
// NodeTimeout, under the voter's own counter. The lists of a majority of the
// voters make FAIL.
type silentEntry struct {
	Voter   NodeID
	Starts  uint64 // of the voter; a counter begins anew with each start
	Counter uint64
	Nodes   []NodeID // ascending
}

func (e *silentEntry) newer(o *silentEntry) bool {
	if e.Starts != o.Starts {
		return e.Starts > o.Starts
	}
	return e.Counter > o.Counter
}

func (e *silentEntry) lists(id NodeID) bool {
	_, found := slices.BinarySearchFunc(e.Nodes, id, NodeID.compare)
	return found
}

func (e *silentEntry) hash(salt uint64) uint64 {
	h := hashBytes(salt^silentSalt, e.Voter[:])
	h = hashUint(h, e.Starts)
	h = hashUint(h, e.Counter)
	return hashEnd(h)
}

// never is a time before every other.
const never = time.Duration(-1 << 62)

// claim is what a heartbeat of a primary says of its shard: "I have opened it
// in this epoch, and my last accepted record is n".
type claim struct {
	open  bool
	shard ShardID
	epoch Epoch
	n     uint64
	start uint64 // the START in force at the primary
}

// peer is another node as this node sees it, and this node itself.
type peer struct {
	peerEntry
	silent silentEntry

	incarnation uint64        // of the process heard last
	heardStarts uint64        // which start of the node that is; others may have told of a later one
	heardAt     time.Duration // last frame of it as a member of this cluster
	firstSeen   time.Duration
	invitedAt   time.Duration // since when it has been asked to come in and has not
	metNonce    uint64        // of the MEET that it came by
	toldAt      time.Duration // last time that it was told something out of turn
	twinAt      time.Duration // last time that an older process of it was asked whether it lives
	twinNonce   uint64        // of the question; 0: none is open
	toldHealth  health        // last that an event has told of it
	timeout     uint32        // its NodeTimeout, milliseconds; 0: not heard yet
	toldDiffers string        // last that an event has told of its config

	// Heartbeats.
	nextBeat    time.Duration
	beatAt      time.Duration // last one of it
	stamp       uint32        // time sent of its newest, on its clock
	claim       claim         // what its newest says of its shard
	given       uint32        // lease given in answer to the claim, milliseconds
	answered    bool          // the claim has been answered: its lease runs from then
	leased      bool          // it is a primary that holds its lease
	log         logPosition   // where its log ends, of its epoch the number alone
	active      bool          // it votes under the START in force
	stopped     bool          // its set is about to be replaced, or it has not saved what members says
	hangs       bool          // its disk does not answer
	members     uint64        // its digest of the membership
	differs     int           // heartbeats in a row whose digests differ from ours
	sameSince   time.Duration // since when its digests equal ours
	exchangeAt  time.Duration // when an exchange with it began
	formNumbers formNumbers   // of a former by number
	jumps       jumps
}

// peerSet keeps the peers in order of their ids, so that every walk over them
// is the same for the same input.
type peerSet struct {
	byID    map[NodeID]*peer
	ordered []*peer
	table   *table // which counts the members of shards
	salt    uint64
	buckets [numBuckets]uint64
	sum     uint64
}

func newPeerSet(t *table, salt uint64) peerSet {
	return peerSet{byID: map[NodeID]*peer{}, table: t, salt: salt}
}

func (ps *peerSet) get(id NodeID) *peer { return ps.byID[id] }

func (ps *peerSet) search(id NodeID) (int, bool) {
	return slices.BinarySearchFunc(ps.ordered, id, func(p *peer, id NodeID) int { return p.ID.compare(id) })
}

// insert adds a peer that is not there yet.
func (ps *peerSet) insert(p *peer) {
	i, _ := ps.search(p.ID)
	ps.ordered = slices.Insert(ps.ordered, i, p)
	ps.byID[p.ID] = p
	ps.include(p)
}

func (ps *peerSet) remove(p *peer) {
	ps.exclude(p)
	if i, found := ps.search(p.ID); found {
		ps.ordered = slices.Delete(ps.ordered, i, i+1)
	}
	delete(ps.byID, p.ID)
}

// change applies f to p and keeps the digests right.
func (ps *peerSet) change(p *peer, f func()) {
	ps.exclude(p)
	f()
	ps.include(p)
}

func (ps *peerSet) include(p *peer) { ps.add(p, 1) }
func (ps *peerSet) exclude(p *peer) { ps.add(p, ^uint64(0)) }

func (ps *peerSet) add(p *peer, sign uint64) {
	d := p.hash(ps.salt)
	if p.silent.Counter != 0 {
		d += p.silent.hash(ps.salt)
	}
	d *= sign
	ps.buckets[idBucket(p.ID[:])] += d
	ps.sum += d
	if p.State != forgotten {
		ps.table.member(p.Shard, int(sign))
	}
}

func (ps *peerSet) resalt(salt uint64) {
	ordered := ps.ordered
	for _, p := range ordered {
		ps.exclude(p)
	}
	ps.salt = salt
	for _, p := range ordered {
		ps.include(p)
	}
}
