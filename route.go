package slotmesh

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
	"time"
)

// SlotTable is a view of who owns which slot, as one node knew it at one
// moment. It never changes: keep it as long as you like, from any goroutine.
type SlotTable interface {
	// Owner is the primary that serves a slot, and whether the slot has one. A
	// slot above 16383 has none.
	Owner(slot Slot) (NodeInfo, bool)
	// Move counts how often a slot has changed shard. Of two tables of a cluster
	// the one with the higher number is newer, for that slot.
	Move(slot Slot) uint64
	// Shards are the shards that have slots, ascending by id.
	Shards() []ShardInfo
	// Nodes are the members, this node among them, ascending by id. When they
	// were heard is as of the call, whatever the age of the table.
	Nodes() []NodeInfo
	// Slots are the slots that a node serves as a primary.
	Slots(node NodeID) SlotSet
	// Backs reports whether this node is of the shard that has a slot: its primary, or
	// a replica.
	Backs(slot Slot) bool
	// Covered reports whether every slot has an owner that has not failed.
	Covered() bool
	// All walks the ranges of slots with one owner, ascending. Slots without an
	// owner are left out.
	All() iter.Seq2[SlotRange, NodeInfo]
	// Marks are those that operators have put on slots at this node, a primary, or at the one
	// whose place it has taken, ascending by slot. Nobody else shows them.
	Marks() []SlotMark
}

// NodeInfo is a member of a cluster.
type NodeInfo struct {
	ID         NodeID
	Addr       string // of its bus
	ClientAddr string // of its clients; "" where it has none
	Hostname   string // that clients may use in the place of the host in ClientAddr; "" where it has none
	Host       string // label
	Shard      ShardID
	Self       bool
	Voter      bool
	Epoch      uint64 // of its shard
	Primary    NodeID // whom it follows as a replica; zero: it is a primary
	Silent     bool   // this node has not heard it for a NodeTimeout (PFAIL)
	Failed     bool   // a majority of the voters says so (FAIL)
	Reports    int    // how many other voters have not heard it either, as far as this node knows
	Leaving    bool
	NoFailover bool // while it is a replica it does not stand by itself: Policy.NoFailover

	// What this node sees of it at the moment: SlotTable.Nodes alone says so.
	Connected    bool      // there is a control connection
	ConnectedAt  time.Time // since when; zero: there is none, or it is this node
	PingSent     time.Time // of the first heartbeat to it that it has left without an answer for NodeTimeout/2; zero: none
	PongReceived time.Time // of its last heartbeat; zero: none yet
	Offset       uint64    // where its shard's log ended there, as its last heartbeat since it is of that shard has said; see Replication
}

// ShardInfo is a shard that has slots.
type ShardInfo struct {
	ID      ShardID
	Primary NodeID
	Epoch   Epoch
	Slots   SlotSet
	Failed  bool

	Replicas []NodeID // ascending; those that have failed, too
}

// view is a published SlotTable, with what routing needs besides.
type view struct {
	pages   [numPages]*[pageSlots]slotEntry
	nodes   []NodeInfo
	leaders map[ShardID]leader
	self    NodeInfo
	marks   []SlotMark
	cluster ClusterID
	voters  voterSet
	epoch   uint64 // highest number of all
	sum     uint64 // digest of the table
	ok      bool
	reason  string // why it is not ok
	covered bool   // every slot has an owner that has not failed
	heard   bool   // formed: a majority of the voters
	late    SlotSet
	ready   bool
	unready string   // why not
	trouble []string // what is wrong and keeps nothing from being served
	stopped bool
	out     bool               // this node has been forgotten
	policy  Policy             // of this node
	look    func([]NodeInfo)   // fills in what the node sees of the others now; nil: nobody does
	found   func() []SlotRange // findRuns, once for all who ask; nil: for each anew
}

// leader is who leads a shard.
type leader struct {
	node   int // index into nodes, -1 where it is not a member
	epoch  Epoch
	failed bool
}

// publish makes the view of this node's table as it is now.
func (s *state) publish() *view {
	v := &view{pages: s.table.slots.share(), leaders: make(map[ShardID]leader, len(s.table.order)),
		marks: s.usedMarks(), cluster: s.cluster, voters: s.table.voters, epoch: s.epochHigh, sum: s.table.sum, heard: s.majorityHeard()}
	v.ok, v.reason = s.clusterState()
	v.covered = s.table.unassigned == 0 && !s.ownersFailed()
	v.unready = s.unready()
	v.ready = v.unready == ""
	v.stopped = !s.vote.stop.isZero()
	v.trouble = s.problems()
	v.policy = s.cfg.policy
	v.out = s.self.State == forgotten
	index := make(map[NodeID]int, len(s.peers.ordered))
	for _, p := range s.peers.ordered {
		if p.State == forgotten && p != s.self {
			continue
		}
		index[p.ID] = len(v.nodes)
		v.nodes = append(v.nodes, NodeInfo{ID: p.ID, Addr: p.Addr, ClientAddr: p.ClientAddr, Hostname: p.Hostname, Host: p.Host, Shard: p.Shard, Self: p == s.self, Epoch: s.table.shards[p.Shard].Number,
			Voter: s.table.voters.has(p.ID), Silent: s.silentHere(p), Failed: s.failed(p), Reports: s.reports(p), Leaving: p.State == leaving, NoFailover: p.NoFailover})
		if s.isReplica(p) {
			v.nodes[len(v.nodes)-1].Primary = s.table.primary(p.Shard)
		}
	}
	for _, id := range s.table.order {
		e := s.table.shards[id]
		l := leader{node: -1, epoch: e, failed: s.shardFailed(id)}
		if i, ok := index[e.Node]; ok {
			l.node = i
		}
		v.leaders[id] = l
	}
	v.self = v.nodes[index[s.id]]
	if s.lead != nil {
		v.late = s.lead.late
	}
	return v
}

func (v *view) entry(slot Slot) slotEntry {
	if slot >= NumSlots || v.pages[slot/pageSlots] == nil {
		return slotEntry{}
	}
	return v.pages[slot/pageSlots][slot%pageSlots]
}

// Owner implements SlotTable.
func (v *view) Owner(slot Slot) (NodeInfo, bool) {
	l, ok := v.leaders[v.entry(slot).shard]
	if !ok || l.node < 0 {
		return NodeInfo{}, false
	}
	return v.nodes[l.node], true
}

// Move implements SlotTable.
func (v *view) Move(slot Slot) uint64 { return v.entry(slot).move }

// Backs implements SlotTable.
func (v *view) Backs(slot Slot) bool {
	shard := v.entry(slot).shard
	return !shard.IsZero() && v.self.Shard == shard && !v.out
}

// Covered implements SlotTable.
func (v *view) Covered() bool { return v.covered }

// Nodes implements SlotTable.
func (v *view) Nodes() []NodeInfo {
	nodes := slices.Clone(v.nodes)
	if v.look != nil {
		v.look(nodes)
	}
	return nodes
}

// Shards implements SlotTable.
func (v *view) Shards() []ShardInfo {
	slots := map[ShardID]*SlotSet{}
	for r := range v.runs() {
		if id := v.entry(r.First).shard; !id.IsZero() {
			if slots[id] == nil {
				slots[id] = &SlotSet{}
			}
			slots[id].AddRange(r)
		}
	}
	shards := make([]ShardInfo, 0, len(slots))
	for _, id := range sortedShards(slots) {
		l := v.leaders[id]
		shards = append(shards, ShardInfo{ID: id, Primary: l.epoch.Node, Epoch: l.epoch, Slots: *slots[id], Failed: l.failed, Replicas: v.replicas(id)})
	}
	return shards
}

func (v *view) replicas(id ShardID) (ids []NodeID) {
	for i := range v.nodes {
		if n := &v.nodes[i]; n.Shard == id && !n.Primary.IsZero() {
			ids = append(ids, n.ID)
		}
	}
	return ids
}

// Marks implements SlotTable.
func (v *view) Marks() []SlotMark { return slices.Clone(v.marks) }

// marked is the mark of a slot, or nil.
func (v *view) marked(slot Slot) *SlotMark {
	i, found := slices.BinarySearchFunc(v.marks, slot, func(m SlotMark, slot Slot) int { return cmp.Compare(m.Slot, slot) })
	if !found {
		return nil
	}
	return &v.marks[i]
}

// Slots implements SlotTable.
func (v *view) Slots(node NodeID) SlotSet {
	var set SlotSet
	for r, n := range v.All() {
		if n.ID == node {
			set.AddRange(r)
		}
	}
	return set
}

// All implements SlotTable.
func (v *view) All() iter.Seq2[SlotRange, NodeInfo] {
	return func(yield func(SlotRange, NodeInfo) bool) {
		for r := range v.runs() {
			if n, ok := v.Owner(r.First); ok && !yield(r, n) {
				return
			}
		}
	}
}

// runs are the ranges of slots of one shard, ascending; nobody's are ranges, too.
func (v *view) runs() iter.Seq[SlotRange] {
	if v.found != nil {
		return slices.Values(v.found())
	}
	return slices.Values(v.findRuns())
}

func (v *view) findRuns() (all []SlotRange) {
	for first := 0; first < NumSlots; {
		shard := v.entry(Slot(first)).shard
		last := first
		for last+1 < NumSlots && v.entry(Slot(last+1)).shard == shard {
			last++
		}
		all = append(all, SlotRange{Slot(first), Slot(last)})
		first = last + 1
	}
	return all
}

// owns reports whether the table gives a slot to this node.
func (v *view) owns(slot Slot) bool {
	shard := v.entry(slot).shard
	l, ok := v.leaders[shard]
	return ok && v.mine(l, shard)
}

// mine reports whether l, the leader of a shard, is this node as its primary.
func (v *view) mine(l leader, shard ShardID) bool {
	return l.node >= 0 && v.nodes[l.node].Self && v.nodes[l.node].Shard == shard
}

type routeAction uint8

const (
	routeServe    routeAction = iota + 1 // here
	routeMoved                           // another node serves the slot
	routeAsk                             // another node has the keys, for this once
	routeDown                            // nobody can serve it, as far as this node knows
	routeTryAgain                        // something is under way that will be over soon
)

// decision is what becomes of a request.
type decision struct {
	action routeAction
	node   *NodeInfo // of routeMoved and routeAsk
	reason string    // of routeDown and routeTryAgain
}

// question is what the decision about a request needs to know beside the table.
type question struct {
	serves   bool      // this node serves the slot now
	leased   bool      // this node may acknowledge now
	shows    bool      // this node is a replica, what it has may be shown, and the client takes it
	mark     *SlotMark // this node's, on the slot; nil: none
	readOnly bool      // the request writes nothing
	stale    bool      // the client takes old data, if it only reads
	whole    bool      // it wants every slot of the cluster to be served
	asking   bool      // the client has been sent here by ASK
	anyway   bool      // keys are moved by this request: it is served where they are
	// Keys of the request that are here and that are not, and whether it names
	// more than one; asked for only where the slot has a mark.
	present, missing int
	several          bool
}

const (
	notServedReason = "Hash slot not served"
	splitReason     = "Multiple keys request during rehashing of slot"
	downReason      = "The cluster is down"
	downWriteReason = "The cluster is down and only accepts read commands"
)

// route decides where a request for a slot is served: Redis's rules, by their
// numbers. The cases are in order of precedence, the first that matches wins. Rules
// 1 and 2, that a request names no key, or keys of several slots, are those of
// Request.slot, which finds the slot.
func (v *view) route(slot Slot, q question) decision {
	shard := v.entry(slot).shard
	l, known := v.leaders[shard]
	owned := known && v.mine(l, shard)
	reads := q.readOnly && q.stale
	migrating := q.serves && q.mark != nil && !q.mark.Importing && !mutated(mutMigratingServes)
	importing := !owned && q.mark != nil && q.mark.Importing && (q.asking || q.anyway || mutated(mutImportsAll))
	down := func(reason string) decision { return decision{action: routeDown, reason: reason} }
	split := decision{action: routeTryAgain, reason: splitReason}
	switch reason := v.down(&q, q.serves || owned); {
	case shard.IsZero() && !q.serves: // 3
		return down(notServedReason)
	case reason != "": // 4
		return down(reason)
	case migrating && !q.anyway && q.missing > 0 && q.present > 0: // 6
		return split
	case migrating && !q.anyway && q.missing > 0: // 7
		return v.ask(q.mark.Node)
	case q.serves: // 5, 8, and its own slot
		return decision{action: routeServe}
	case owned && v.late.Contains(slot):
		return decision{action: routeTryAgain, reason: fmt.Sprintf("slot %d has come by hearsay and waits for a vote", slot)}
	case owned:
		return down(v.reasonOr("this node does not serve the slot yet"))
	case importing && !q.leased:
		return down(v.reasonOr("this node's shard is not open"))
	case importing && !q.anyway && q.several && q.missing > 0: // 9
		return split
	case importing: // 5, 10
		return decision{action: routeServe}
	case q.shows && q.readOnly: // 11
		return decision{action: routeServe}
	case !known || l.node < 0 || l.failed && !reads:
		return down(fmt.Sprintf("the primary %s of slot %d has failed", l.epoch.Node, slot))
	default: // 12
		return decision{action: routeMoved, node: &v.nodes[l.node]}
	}
}

// down says why the state of the cluster refuses a request, or "": rule 4. here: for
// a slot of this node's own, of which it knows by its lease whether it may serve it.
// Keys that are being moved pass where slots are missing: that is how those are mended.
func (v *view) down(q *question, here bool) string {
	switch reads := q.readOnly && q.stale; {
	case reads:
		return ""
	case q.whole && !v.covered && !q.asking && !q.anyway && q.stale:
		return downWriteReason
	case q.whole && !v.covered && !q.asking && !q.anyway:
		return downReason
	case here || q.shows && q.readOnly: // what a replica may show, it has asked with the rest
		return ""
	case v.cluster.IsZero() && !v.ok:
		return v.reason
	case !v.cluster.IsZero() && !v.heard:
		return v.reasonOr("this node does not hear a majority of the voters")
	}
	return ""
}

// ask sends a request to the node that a slot's keys go to.
func (v *view) ask(to NodeID) decision {
	for i := range v.nodes {
		if v.nodes[i].ID == to {
			return decision{action: routeAsk, node: &v.nodes[i]}
		}
	}
	return decision{action: routeTryAgain, reason: fmt.Sprintf("node %s, where keys go, is no member any more", to)}
}

func (v *view) reasonOr(reason string) string {
	if v.reason != "" {
		return v.reason
	}
	return reason
}

// unready says why this node is not ready, or "".
func (s *state) unready() string {
	switch ok, reason := s.clusterState(); {
	case s.self.State == forgotten:
		return "this node has been forgotten by its cluster"
	case s.cluster.IsZero():
		return "the cluster has not formed yet: " + s.unformedReason()
	case s.isReplica(s.self) && s.lacksAsReplica() != "":
		return s.lacksAsReplica()
	case !s.isReplica(s.self) && (s.lead == nil || !s.lead.opened):
		return "this node's shard is not open yet"
	case s.synced && s.spare() && s.neededAsReplica():
		return "this node is about to back up a primary"
	case s.strict() && s.ownsSlots() && s.role.peers < s.cfg.ackReplicas:
		return fmt.Sprintf("%d replicas are in sync, expected at least %d", s.role.peers, s.cfg.ackReplicas)
	case !s.newSetActive():
		return "a majority of the voters does not vote yet"
	case !sameMembers(s.wantedVoters(), s.table.voters.Members):
		return "the voters are about to change"
	case !ok:
		return reason
	}
	return ""
}

func (s *state) neededAsReplica() bool {
	_, needed := s.toBackUp()
	return needed
}

// unformedReason says what is missing for the cluster to form.
func (s *state) unformedReason() string {
	switch {
	case s.byNumber():
		return fmt.Sprintf("it forms once %d nodes with the same seeds and numbers are here", int(s.cfg.form.Primaries)*(1+int(s.cfg.form.Replicas))) + s.unequalFormers()
	case s.table.unassigned > 0:
		return fmt.Sprintf("%d slots have no owner", s.table.unassigned)
	default:
		return "the owners do not show the same table yet"
	}
}

// serving is what this node serves: the other half of routing, which the table
// does not show. The driver turns it into a gate per slot.
type serving struct {
	version uint64  // raised at each change
	reign   uint64  // raised when what ran before may not be acknowledged any more
	slots   SlotSet // served
	hold    SlotSet // requests wait: opening, or being handed over
}

// assess works out what this node serves.
func (s *state) assess() {
	if !s.reassess {
		return
	}
	s.reassess = false
	if mutated(mutImplicitVoters) {
		s.votersAreOwners()
	}
	var slots, hold SlotSet
	var epoch Epoch
	switch l := s.lead; {
	case s.broken != nil || s.self.State == forgotten:
	case s.cluster.IsZero():
		if ok, _ := s.clusterState(); ok && s.table.primary(s.self.Shard) == s.id {
			slots = s.table.slotsOf(s.self.Shard)
		}
	case l == nil:
		if mutated(mutServeRestart) && s.table.primary(s.self.Shard) == s.id {
			slots = s.table.slotsOf(s.self.Shard)
		}
	case !l.opened:
		hold = l.recording.msg.Opened.slots()
		epoch = l.epoch
	default:
		s.ripen(l)
		slots, epoch = l.mine, l.epoch
		if c := l.consent; c != nil && !(c.final && mutated(mutConsentNotFinal)) {
			slots, hold = SlotSet{}, slots
			importing := s.importing()
			hold.Union(&importing)
		}
		for _, g := range l.gives {
			slots.Subtract(&g.slots)
			hold.Union(&g.slots)
		}
		s.holdComing(l, &hold)
	}
	if len(s.arrived) > 0 {
		s.tell(adoptTell{s.arrived, s.kept, s.back})
		s.arrived = nil
	}
	s.kept, s.back = SlotSet{}, SlotSet{}
	v := &s.serve
	reign := v.reign
	if epoch != s.reignEpoch || s.cluster != s.reignCluster {
		s.reignEpoch, s.reignCluster = epoch, s.cluster
		reign++
	}
	if slots != v.slots || hold != v.hold || reign != v.reign {
		v.slots, v.hold, v.reign = slots, hold, reign
		v.version++
	}
}

// holdComing adds the slots that are about to be served here: their move is
// decided and being saved, or their giver, who serves them no more, is getting it
// decided and their keys are here already. Whoever asks for them waits. Without
// that clients would be sent to and fro between the two, for as long as one of
// them has heard and the other has not. For a NodeTimeout at most: a giver that
// gives up says so, but what it says may be lost.
func (s *state) holdComing(l *leadership, hold *SlotSet) {
	for i := range l.fresh {
		hold.Union(&l.fresh[i].slots)
	}
	for _, h := range s.stages {
		if h.ready && !h.waited && h.inEpoch == l.epoch {
			coming := h.Slots.slots()
			coming.Subtract(&l.mine)
			hold.Union(&coming)
		}
	}
}

// ripen takes into service the slots whose move has been saved.
func (s *state) ripen(l *leadership) {
	rest := l.fresh[:0]
	for i := range l.fresh {
		if l.fresh[i].save <= s.savedSeq {
			l.mine.Union(&l.fresh[i].slots)
		} else {
			rest = append(rest, l.fresh[i])
		}
	}
	l.fresh = rest
}

// servesUntil is until when this node may acknowledge what it serves.
func (s *state) servesUntil() time.Duration {
	if s.broken != nil {
		return never
	}
	if !s.cluster.IsZero() {
		if mutated(mutServeRestart) && s.lead == nil {
			return forever
		}
		return s.leaseUntil()
	}
	if s.form.holds() && !mutated(mutFormServesOn) {
		return s.form.savedAt + s.cfg.nodeTimeout*9/10
	}
	return forever
}

// mayReply reports whether what has run in a reign may be acknowledged now:
// asked when the reply is about to leave, not when the request came. If not,
// its outcome is unknown.
func (s *state) mayReply(reign uint64, now time.Duration) bool {
	return (reign == s.serve.reign || mutated(mutReplyEpoch)) && now < s.servesUntil()
}
