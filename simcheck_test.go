package slotmesh

import (
	"fmt"
	"slices"
	"time"
)

// What must hold, whatever happens. The checks look at what each step has
// changed, and at everything each thousand steps and in the end. Names are
// those of ARCHITECTURE.md.

// simLedger is what the checks remember of the whole history.
type simLedger struct {
	unclean   bool // an operator has decided without a majority
	hot       []Slot
	serving   []*simNode // of one look
	position  uint64
	transfers map[uint64]map[Slot]*simWrite

	committed map[simSlotKey]*simWrite // last acknowledged
	resets    map[simSlotKey]int       // how often an operator took the slot from nobody or a failed owner: its data may be gone
	loose     map[simSlotKey]bool      // nothing has been acknowledged since
	lastAck   map[simSlotKey]simAckKey
	acks      uint64
	asked     int
	answered  int

	owners  map[ClusterID]*[NumSlots][]ShardID // EP5: by slot and move
	epochs  map[simEpochKey]bool               // EP9: who has come by an epoch rightly
	winners map[simWinKey]NodeID               // EP3
	grants  map[simGrantKey]simGrant           // EP3, EP4
	voters  map[simVersionKey]uint64           // OW0
	met     map[simMetKey]bool                 // MB1
	forced  map[NodeID]bool
	reached map[string]int // rare states, by name
}

type (
	simSlotKey struct {
		cluster ClusterID
		slot    Slot
	}
	simAckKey struct {
		move  uint64
		epoch Epoch
		node  int32
		at    time.Duration
	}
	simEpochKey struct {
		cluster ClusterID
		shard   ShardID
		epoch   Epoch
	}
	simWinKey struct {
		cluster ClusterID
		shard   ShardID
		number  uint64
		unclean bool
	}
	simGrantKey struct {
		cluster ClusterID
		voter   member
		shard   ShardID
		number  uint64
		unclean bool
	}
	simGrant struct {
		candidate NodeID
		versions  []voterVersion
	}
	simMetKey struct {
		id      NodeID
		key     uint64
		version uint64
	}
	simVersionKey struct {
		cluster ClusterID
		version voterVersion
	}
)

func (l *simLedger) init() {
	l.transfers = map[uint64]map[Slot]*simWrite{}
	l.committed, l.loose = map[simSlotKey]*simWrite{}, map[simSlotKey]bool{}
	l.lastAck, l.resets = map[simSlotKey]simAckKey{}, map[simSlotKey]int{}
	l.owners, l.epochs, l.winners = map[ClusterID]*[NumSlots][]ShardID{}, map[simEpochKey]bool{}, map[simWinKey]NodeID{}
	l.grants, l.voters = map[simGrantKey]simGrant{}, map[simVersionKey]uint64{}
	l.met, l.forced = map[simMetKey]bool{}, map[NodeID]bool{}
	l.reached = map[string]int{}
}

// reach notes that a rare state has been seen: a campaign that never sees one
// tests less than it seems to.
func (l *simLedger) reach(name string) { l.reached[name]++ }

// ownerAt is who has owned a slot at a move.
func (l *simLedger) ownerAt(n *simNode, slot Slot, move uint64) ShardID {
	h := l.owners[n.core.cluster]
	if h == nil || move >= uint64(len(h[slot])) {
		return ShardID{}
	}
	return h[slot][move]
}

// noteOwner remembers who owns a slot at a move, and says who else does.
func (l *simLedger) noteOwner(h *[NumSlots][]ShardID, slot Slot, e slotEntry) (other ShardID, same bool) {
	for uint64(len(h[slot])) <= e.move {
		h[slot] = append(h[slot], simUnknown)
	}
	if at := &h[slot][e.move]; *at == simUnknown {
		*at = e.shard
	}
	return h[slot][e.move], h[slot][e.move] == e.shard
}

// simUnknown is the owner of a move that nobody has shown yet.
var simUnknown = ShardID{0xff, 0xff, 0xff}

// ---- acknowledgements

// checkAck: OW1, OW2, OW3, OW4, MG1.
func (w *simWorld) checkAck(n *simNode, op simPending) {
	c, l := n.core, &w.ledger
	if c.cluster.IsZero() {
		return // Redis's own rules hold until a cluster is formed
	}
	l.acks++
	if l.unclean {
		return
	}
	slot := simSlotKey{c.cluster, op.slot}
	key := simAckKey{op.move, op.epoch, int32(n.index), w.now}
	if last, seen := l.lastAck[slot]; seen {
		older := key.move < last.move || key.move == last.move && (key.epoch.less(last.epoch) || key.epoch == last.epoch && key.node != last.node)
		if older {
			w.fail("OW1", "slot %d: %s acknowledges at move %d epoch %v, after n%d at move %d epoch %v", op.slot, n.name(), key.move, key.epoch, last.node, last.move, last.epoch)
		}
	}
	l.lastAck[slot] = key
	w.checkRestarted(n)
	w.checkMinority(n)
	w.checkData(n, op)
}

// checkRestarted: OW4, a primary that has restarted has won its shard since.
func (w *simWorld) checkRestarted(n *simNode) {
	if n.core.lead == nil {
		w.fail("OW4", "%s acknowledges and leads nothing", n.name())
	}
}

// checkMinority: OW3, a node that is cut off from the majority stops within a
// NodeTimeout.
func (w *simWorld) checkMinority(n *simNode) {
	if n.isolatedAt == never || n.core.soleVoter() {
		return
	}
	if w.now-n.isolatedAt > w.nt+w.nt/20 {
		w.fail("OW3", "%s acknowledges %v after it was cut off", n.name(), w.now-n.isolatedAt)
	}
}

// noteIsolation notes who is cut off from everybody else.
func (w *simWorld) noteIsolation(side map[*simNode]bool, oneWay bool) {
	for _, n := range w.nodes {
		n.isolatedAt = never
		if oneWay || side == nil || !side[n] || len(side) > 1 {
			continue
		}
		n.isolatedAt = w.now
	}
}

// checkData: MG1, no acknowledged write is lost, and nothing acknowledged shows
// a value that was never acknowledged before what is known.
func (w *simWorld) checkData(n *simNode, op simPending) {
	l := &w.ledger
	slot := simSlotKey{n.core.cluster, op.slot}
	have := l.committed[slot]
	if l.loose[slot] {
		l.committed[slot] = op.value
		delete(l.loose, slot)
		return
	}
	if op.resets == l.resets[slot] && !descends(op.value, op.inv) {
		w.fail("MG1", "slot %d: %s shows %v at move %d, acknowledged before the call was %v", op.slot, n.name(), op.value.short(), op.move, op.inv.short())
		return
	}
	switch {
	case descends(op.value, have):
		l.committed[slot] = op.value
	case !descends(have, op.value):
		w.fail("MG1", "slot %d: %s shows %v at move %d, acknowledged is %v", op.slot, n.name(), op.value.short(), op.move, have.short())
	}
}

func (v *simWrite) short() string {
	if v == nil {
		return "nothing"
	}
	return fmt.Sprintf("write %d by n%d", v.n, v.node)
}

// descends reports whether a is b or a later write on top of it.
func descends(a, b *simWrite) bool {
	if b == nil {
		return true
	}
	for a != nil && a.n > b.n {
		a = a.prev
	}
	return a == b
}

// checkOverlap: no two nodes could acknowledge for one slot at this moment.
func (w *simWorld) checkOverlap() {
	w.after(10*time.Millisecond, w.checkOverlap)
	if w.ledger.unclean {
		return
	}
	who := w.ledger.serving[:0]
	for _, n := range w.nodes {
		if !n.up || n.paused > w.now || n.core.cluster.IsZero() || n.local() >= n.core.servesUntil() {
			continue
		}
		for _, o := range who {
			if o.core.cluster == n.core.cluster && overlap(&o.core.serve.slots, &n.core.serve.slots) {
				shared := o.core.serve.slots
				shared.Intersect(&n.core.serve.slots)
				w.fail("OW1", "%s and %s both serve %s", o.name(), n.name(), shared.String())
			}
		}
		who = append(who, n)
	}
	w.ledger.serving = who
}

func overlap(a, b *SlotSet) bool {
	for i := range a.words {
		if a.words[i]&b.words[i] != 0 {
			return true
		}
	}
	return false
}

// ---- votes, before they leave

// checkSend: EP2, EP3. What leaves is on disk.
func (w *simWorld) checkSend(n *simNode, m message) {
	g, ok := m.(*grantMsg)
	if !ok {
		return
	}
	c := n.core
	var saved voteCell
	if b := n.disk[cellKey{kind: cellVote, id: g.Shard}]; b == nil || decodeValue(b, &saved) != nil || saved.Promised.less(g.Epoch) {
		w.fail("EP2", "%s grants %v of %s, on disk is %v", n.name(), g.Epoch, g.Shard.short(), saved.Promised)
	}
	w.noteGrant(member{c.id, c.key}, g)
}

// noteGrant: EP3, a voter grants one number of a shard to one candidate.
func (w *simWorld) noteGrant(voter member, g *grantMsg) {
	k := simGrantKey{w.clusterOf(voter), voter, g.Shard, g.Epoch.Number, g.Epoch.Unclean}
	have, seen := w.ledger.grants[k]
	if seen && have.candidate != g.Epoch.Node {
		w.fail("EP3", "voter %s grants epoch %d of %s to %s and to %s", voter.ID.short(), g.Epoch.Number, g.Shard.short(), have.candidate.short(), g.Epoch.Node.short())
	}
	have.candidate = g.Epoch.Node
	if !slices.Contains(have.versions, g.Voters) {
		have.versions = append(have.versions, g.Voters)
	}
	w.ledger.grants[k] = have
}

func (w *simWorld) clusterOf(m member) ClusterID {
	for _, n := range w.nodes {
		if n.up && n.core.id == m.ID && n.core.key == m.Key {
			return n.core.cluster
		}
	}
	return ClusterID{}
}

// ---- what a step has changed

func (w *simWorld) checkStep(n *simNode) {
	c := n.core
	if c.epochHigh < n.durableEpoch {
		w.fail("EP1", "%s: current epoch %d, was %d", n.name(), c.epochHigh, n.durableEpoch)
	}
	if c.savedSeq == c.saveSeq {
		n.durableEpoch = c.epochHigh
	}
	if c.table.sum != n.lastTable {
		n.lastTable = c.table.sum
		w.checkTable(n)
	}
	if c.peers.sum != n.lastPeers {
		n.lastPeers = c.peers.sum
		w.checkPeers(n)
	}
}

// checkLoaded: EP1 over a restart.
func (w *simWorld) checkLoaded(n *simNode) {
	if n.core.epochHigh < n.durableEpoch {
		w.fail("EP1", "%s: current epoch %d after a restart, %d had been saved", n.name(), n.core.epochHigh, n.durableEpoch)
	}
}

// checkTable: EP5, EP9, MB6 of the buckets that have changed.
func (w *simWorld) checkTable(n *simNode) {
	c := n.core
	if c.cluster.IsZero() {
		n.knownShards = map[ShardID]Epoch{}
		n.lastBuckets = [numBuckets]uint64{}
		return
	}
	for b := range numBuckets {
		if c.table.buckets[b] == n.lastBuckets[b] {
			continue
		}
		n.lastBuckets[b] = c.table.buckets[b]
		w.checkPage(n, b)
	}
	for _, id := range c.table.order {
		e := c.table.shards[id]
		if n.knownShards[id] == e {
			continue
		}
		if was, ok := n.knownShards[id]; ok && e.less(was) {
			w.fail("MB6", "%s: epoch of %s goes back from %v to %v", n.name(), id.short(), was, e)
		}
		n.knownShards[id] = e
		if e.Number > 0 && !w.ledger.epochs[simEpochKey{c.cluster, id, e}] {
			w.fail("EP9", "%s adopts epoch %v of %s, which nobody has won", n.name(), e, id.short())
		}
	}
}

// checkPage: EP5, MG6: a move of a slot has one owner in all of history.
func (w *simWorld) checkPage(n *simNode, page int) {
	c := n.core
	p := c.table.slots.pages[page]
	if p == nil || w.ledger.unclean {
		return
	}
	h := w.ledger.owners[c.cluster]
	if h == nil {
		h = new([NumSlots][]ShardID)
		w.ledger.owners[c.cluster] = h
	}
	for i := range p {
		slot := Slot(page*pageSlots + i)
		if p[i].move == 0 {
			continue
		}
		if other, same := w.ledger.noteOwner(h, slot, p[i]); !same {
			w.fail("EP5", "%s: slot %d at move %d belongs to %s, elsewhere to %s", n.name(), slot, p[i].move, p[i].shard.short(), other.short())
		}
	}
}

// checkPeers: MB1, MB6.
func (w *simWorld) checkPeers(n *simNode) {
	c, l := n.core, &w.ledger
	for _, p := range c.peers.ordered {
		was, seen := n.knownPeers[p.ID]
		is := simPeerSeen{p.Key, p.State, p.Version, p.Starts, p.peerEntry.Facts}
		if seen && is == was {
			continue
		}
		n.knownPeers[p.ID] = is
		if !seen || is.key != was.key {
			continue
		}
		if is.version < was.version || is.starts < was.starts || is.starts == was.starts && is.facts < was.facts {
			w.fail("MB6", "%s: entry of %s goes back from %+v to %+v", n.name(), p.ID.short(), was, is)
		}
		if was.state == forgotten && is.state != forgotten && !c.cluster.IsZero() {
			met := false
			for v := was.version + 1; v <= is.version; v++ {
				met = met || l.met[simMetKey{p.ID, is.key, v}]
			}
			if !met {
				w.fail("MB1", "%s: %s is back, and nobody has met it", n.name(), p.ID.short())
			}
		}
	}
}

// checkEvent takes what nodes say into the ledger: EP3, EP4, EP5, OW0.
func (w *simWorld) checkEvent(n *simNode, e Event) {
	l := &w.ledger
	w.logf("%s: event %v node %s shard %s epoch %v slots %s number %d %s %s", n.name(), e.Kind, e.Node.short(), e.Shard.short(), e.Epoch, brief(e.Slots), e.Number, e.Addr, e.Text)
	c := n.core
	switch e.Kind {
	case EventMember:
		if p := c.peers.get(e.Node); p != nil {
			l.met[simMetKey{p.ID, p.Key, p.Version}] = true
		}
	case EventReset:
		n.durableEpoch = c.epochHigh
		n.knownPeers = map[NodeID]simPeerSeen{}
	case EventFormed:
		for _, id := range c.table.order {
			l.epochs[simEpochKey{c.cluster, id, c.table.shards[id]}] = true
		}
		n.formedStore()
		l.reach("formed")
	case EventJoined:
		if c.lead != nil {
			n.formedStore()
		}
	case EventPrimary:
		l.reach("elected")
		w.checkWin(n, e)
	case EventUnclean:
		l.unclean = true
		l.epochs[simEpochKey{c.cluster, e.Shard, e.Epoch}] = true
	case EventMoved:
		w.checkMoved(n, e)
	case EventVoters:
		w.checkVoters(n)
	}
}

func brief(set SlotSet) string {
	s := set.String()
	if len(s) > 60 {
		return s[:60] + "..."
	}
	return s
}

// checkWin: EP3, one winner of an epoch; EP4, a majority of one version has
// granted it.
func (w *simWorld) checkWin(n *simNode, e Event) {
	l, c := &w.ledger, n.core
	l.epochs[simEpochKey{c.cluster, e.Shard, e.Epoch}] = true
	k := simWinKey{c.cluster, e.Shard, e.Epoch.Number, e.Epoch.Unclean}
	if have, ok := l.winners[k]; ok && have != e.Node {
		w.fail("EP3", "epoch %v of %s is won by %s and by %s", e.Epoch, e.Shard.short(), have.short(), e.Node.short())
	}
	l.winners[k] = e.Node
}

// checkMoved notes what has become of slots that were given away.
func (w *simWorld) checkMoved(n *simNode, e Event) {
	l, c := &w.ledger, n.core
	for slot := range e.Slots.All() {
		move := c.table.slots.at(slot).move
		giver := l.ownerAt(n, slot, move-1)
		if giver != c.self.Shard || c.table.slots.at(slot).shard.IsZero() {
			l.loose[simSlotKey{c.cluster, slot}] = true
			l.resets[simSlotKey{c.cluster, slot}]++
			delete(l.committed, simSlotKey{c.cluster, slot})
			l.reach("taken by an operator")
		} else {
			l.reach("handed over")
		}
	}
}

// checkVoters: OW0, a version names one set everywhere.
func (w *simWorld) checkVoters(n *simNode) {
	l, v := &w.ledger, &n.core.table.voters
	k := simVersionKey{n.core.cluster, v.Version}
	if id, ok := l.voters[k]; ok && id != v.ID {
		w.fail("OW0", "%s: version %v of the voters is %x, elsewhere %x", n.name(), v.Version, v.ID, id)
	}
	l.voters[k] = v.ID
	if v.Version.Number > 1 {
		l.reach("voters changed")
	}
}

// ---- frames of another cluster

type simForeign struct {
	foreign      bool
	table, peers uint64
	cluster      ClusterID
}

// beforeForeign and afterForeign: MB2, a frame of another cluster changes
// nothing, but that a node which has left is forgotten.
func (w *simWorld) beforeForeign(f *simFlight, to *simNode) simForeign {
	c := to.core
	return simForeign{!f.from.Cluster.IsZero() && !c.cluster.IsZero() && f.from.Cluster != c.cluster, c.table.sum, c.peers.sum, c.cluster}
}

func (w *simWorld) afterForeign(f *simFlight, to *simNode, b simForeign) {
	if !b.foreign || !to.up {
		return
	}
	w.ledger.reach("frame of another cluster")
	c := to.core
	_, refused := f.msg.(*refusedMsg)
	if c.cluster != b.cluster || (c.table.sum != b.table || c.peers.sum != b.peers) && !refused {
		w.fail("MB2", "%s: %v of cluster %s changes something", to.name(), f.msg.kind(), f.from.Cluster)
	}
}

// ---- everything

// checkAll looks at all that there is.
func (w *simWorld) checkAll() {
	for _, n := range w.nodes {
		if !n.up {
			continue
		}
		c := n.core
		w.checkTable(n)
		w.checkPeers(n)
		if len(c.stages) > stagesMax || len(c.ops) > commandsMax || len(c.claims) > claimsMax || len(c.forwarded) > commandsMax {
			w.fail("bounds", "%s: %d stages, %d operations, %d claims, %d forwarded", n.name(), len(c.stages), len(c.ops), len(c.claims), len(c.forwarded))
		}
	}
}

// simGroup is the nodes of one cluster.
type simGroup struct {
	id    ClusterID
	nodes []*simNode
}

func (w *simWorld) groups() []simGroup {
	var gs []simGroup
	for _, n := range w.nodes {
		if !n.up || n.core.cluster.IsZero() || n.core.self.State != present {
			continue
		}
		i := slices.IndexFunc(gs, func(g simGroup) bool { return g.id == n.core.cluster })
		if i < 0 {
			gs = append(gs, simGroup{id: n.core.cluster})
			i = len(gs) - 1
		}
		gs[i].nodes = append(gs[i].nodes, n)
	}
	return gs
}

// unsettled says what is not as it should be in a calm world, or "".
func (w *simWorld) unsettled() string {
	for _, g := range w.groups() {
		if !g.mayDecide() {
			continue // a majority of its voters is gone for good
		}
		if s := g.unsettled(w); s != "" {
			return s
		}
	}
	return ""
}

// mayDecide reports whether a majority of the newest voters is there.
func (g *simGroup) mayDecide() bool {
	newest := &g.nodes[0].core.table.voters
	for _, n := range g.nodes {
		if v := &n.core.table.voters; newest.Version.less(v.Version) {
			newest = v
		}
	}
	k := 0
	for _, m := range newest.Members {
		if slices.ContainsFunc(g.nodes, func(n *simNode) bool { return n.core.id == m.ID && n.core.key == m.Key }) {
			k++
		}
	}
	return k > len(newest.Members)/2
}

func (g *simGroup) unsettled(w *simWorld) string {
	first := g.nodes[0].core
	for _, n := range g.nodes {
		c := n.core
		switch {
		case c.table.sum != first.table.sum:
			return fmt.Sprintf("LV3: %s and %s have different tables", n.name(), g.nodes[0].name())
		case c.peers.sum != first.peers.sum:
			return fmt.Sprintf("LV3: %s and %s know different members", n.name(), g.nodes[0].name())
		case !sameMembers(c.wantedVoters(), c.table.voters.Members):
			return fmt.Sprintf("LV6: %s wants other voters: %d instead of %d", n.name(), len(c.wantedVoters()), len(c.table.voters.Members))
		case c.isVoter() && !c.active():
			return fmt.Sprintf("LV6: voter %s is not active", n.name())
		case !c.vote.stop.isZero() || c.change != nil:
			return fmt.Sprintf("LV6: %s is stopped by a change of voters", n.name())
		case len(c.ops)+len(c.forwards)+len(c.waits)+len(c.bumps) > 0:
			return fmt.Sprintf("LV6: commands are under way at %s", n.name())
		case len(n.replies) > 0:
			return fmt.Sprintf("LV6: %d commands are not answered at %s", len(n.replies), n.name())
		case c.lead != nil && len(c.lead.gives) > 0:
			return fmt.Sprintf("LV3: %s has a hand-over under way", n.name())
		}
	}
	return g.unserved(w)
}

// unserved: LV1, each slot that has a live owner is served by it alone.
func (g *simGroup) unserved(w *simWorld) string {
	var served SlotSet
	for _, n := range g.nodes {
		c := n.core
		if n.local() >= c.servesUntil() && c.ownsSlots() {
			return fmt.Sprintf("LV1: %s has no lease", n.name())
		}
		both := served
		both.Intersect(&c.serve.slots)
		if !both.Empty() {
			return fmt.Sprintf("LV1: %s is served twice", both.String())
		}
		served.Union(&c.serve.slots)
	}
	first := g.nodes[0].core
	for i := range NumSlots {
		slot := Slot(i)
		owner := first.table.owner(slot)
		if owner.IsZero() || served.Contains(slot) {
			continue
		}
		shard := first.table.slots.at(slot).shard
		if slices.ContainsFunc(g.nodes, func(n *simNode) bool { return n.core.id == owner && n.core.self.Shard == shard }) {
			return fmt.Sprintf("LV1: slot %d of %s is not served", slot, owner.short())
		}
	}
	return ""
}
