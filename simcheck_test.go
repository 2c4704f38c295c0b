package slotmesh

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// What must hold, whatever happens. The checks look at what each step has changed, says
// and acknowledges. All members that nodes know, the table of one of them in turn, EP6,
// MB4 and LV8 are looked at each thousand steps too, changed or not, all tables in the
// end, and each 10 ms who could acknowledge. What is said of a calm world (the LV but
// LV8, R3, MB7, RP11, and MG6 of whole tables) waits until the faults have ended. Each
// invariant is a function that has its name, or several, one for each thing that it is
// seen in:
//
//	EP1  epochs never go down               OW0  one set of voters decides
//	EP2  saved before it is answered        OW1  one acknowledges
//	EP3  one vote, one winner               OW2  under a lease
//	EP4  votes of this epoch count          OW3  a minority stops
//	EP5  one owner of (slot, move)          OW4  a vote after a start
//	EP6  who was replaced stays so          OW5  a replica leads nothing
//	EP7  bounded jumps                      MG1  nothing acknowledged is lost
//	EP8  each rise has a cause              MG6  a slot has an owner
//	EP9  a lost election leaves no trace
//
//	MB1  forgotten for good                 LV1  what can be served is
//	MB2  no frame of other clusters         LV2  few rounds of votes
//	MB3  one live instance of an id         LV3  all agree
//	MB4  FAIL is a majority's word          LV5  who comes back follows
//	MB5  who was stopped blames none        LV6  nothing waits for ever
//	MB6  stale frames change nothing        LV7  who is behind is told
//	MB7  facts stay as they are             LV8  nobody is waited for without end
//	                                        LV9  who has lost all replicas gets one
//
//	RP1  no strict write is lost            RP7  less wipes nobody
//	RP2  a log is its primary's             RP8  losses are an end, bounded
//	RP3  and goes on where it was           RP9  consent loses nothing
//	RP4  one log, the same data             RP10 acknowledged: all in sync have it, or all asked for
//	RP5  no copy, no vote                   RP11 replicas follow primaries
//	RP6  half a copy is none                RP12 an heir has the marks
//	                                        RP13 nothing older than its bound is shown
//
//	R3   nobody stands whose primary is heard
//	R7   a winner by force waits            R9   an answer: all who live know
//	R14  who is reset votes no more         FM1  one cluster of a deployment

// simLedger is what the checks remember of the whole history.
type simLedger struct {
	imposed   bool // an operator has imposed voters: two sets may know nothing of each other
	begun     bool // a schedule has begun a change of voters that nobody wants
	hot       []Slot
	serving   []*simNode // of one look
	voting    []*simNode // of one look
	position  uint64
	transfers map[uint64]map[Slot]simData
	many      SlotSet // that have more keys than one

	committed map[simSlotKey]*simWrite // last acknowledged
	resets    map[simSlotKey]int32     // how often an operator took the slot from nobody or a failed owner: its data may be gone
	loose     map[simSlotKey]bool      // nothing has been acknowledged since
	lastAck   map[simSlotKey]simAckKey
	places    map[simSlotKey]simPlace // where keys of marked slots were acknowledged last
	sessions  map[simSlotKey]uint32   // by slot: counts the changes of where its owner looks for keys
	goals     map[simSlotMoveKey][]simGoal
	leaving   map[simSlotKey]simPlace // keys that MIGRATE has deleted, as their replicas are about to learn
	acks      uint64
	writes    uint64 // of them
	asked     int
	answered  int

	owners      map[ClusterID]*simOwners      // EP5
	acked       map[simEpochKey]uint64        // RP10: how much of a strict log is acknowledged
	epochs      map[simEpochKey]bool          // EP9: who has come by an epoch rightly
	started     map[simEpochKey]bool          // epochs that a START has opened
	winners     map[simWinKey]NodeID          // EP3
	grants      map[simGrantKey]NodeID        // EP3
	voters      map[simVersionKey]voterSet    // OW0
	newest      map[ClusterID]voterSet        // of them
	wiped       map[member]bool               // R14: members that have been reset
	asked4      map[simProposal]*simAnswers   // EP4, OW0: what has been asked of the voters
	given       map[simGiverKey][]*simAnswers // and of those, what gives slots away
	highest     uint64                        // EP8: epoch number that anybody has used
	silent      map[simSilentKey][]NodeID     // MB4: lists of silent nodes
	formed      map[uint64]ClusterID          // FM1: by deployment
	met         map[simMetKey]bool            // MB1
	imposedSets map[simVersionKey]bool        // OW0: of voters, which no others have decided
	metAt       map[simMetKey]time.Duration   // of a member whatever its version, 0: the last time
	said        map[simSaidKey]time.Duration  // MB1: when
	had         map[simHadKey]simHad          // RP10: what members have had of a primary's log
	reached     map[string]int                // rare states, by name
	entries     uint64                        // appended to logs
	log         map[simEntryKey]uint64        // RP2: which entry is where
	won         map[simGiverKey]Epoch         // by whom a shard has been taken over last
	wonLast     map[simGiverKey]Epoch         // under which epoch a shard has been opened last
	heirs       map[simGiverKey]*simHeir      // what is known of that: see noteLost

	newestWon map[simGiverKey]simWon // EP6: how a shard has been won last
	seized    map[simGiverKey]Epoch  // the newest under which a TAKEOVER has shown a shard: its data may be lost, and nothing else
}

type (
	// simSlotKey is a key of a slot; what is of the whole slot is under the first one.
	simSlotKey struct {
		cluster ClusterID
		slot    Slot
		key     uint8
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
		version voterVersion // START carries on one promise of those of all
		shard   ShardID
		number  uint64
		unclean bool
	}
	// simProposal is a VOTE (neither record nor ballot), a RECORD or a MOVE.
	simProposal struct {
		cluster ClusterID
		shard   ShardID
		epoch   Epoch
		record  bool
		ballot  uint64
	}
	simAnswers struct {
		simProposal
		at     time.Duration // when its first message was sent
		slots  acceptRuns    // that it gives away
		opened moveRuns      // that it opens
		taken  bool          // by an operator: its data stays behind
		by     []simAnswer
		ok     bool // a majority has been seen
	}
	simAnswer struct {
		voter   member
		version voterVersion
	}
	simGiverKey struct {
		cluster ClusterID
		shard   ShardID
	}
	simSilentKey struct {
		voter           NodeID
		starts, counter uint64
	}
	simSaidKey struct {
		simMetKey
		forgotten bool
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
	l.transfers = map[uint64]map[Slot]simData{}
	l.committed, l.loose = map[simSlotKey]*simWrite{}, map[simSlotKey]bool{}
	l.lastAck, l.resets = map[simSlotKey]simAckKey{}, map[simSlotKey]int32{}
	l.owners, l.epochs, l.winners = map[ClusterID]*simOwners{}, map[simEpochKey]bool{}, map[simWinKey]NodeID{}
	l.grants, l.voters, l.newest = map[simGrantKey]NodeID{}, map[simVersionKey]voterSet{}, map[ClusterID]voterSet{}
	l.asked4, l.given = map[simProposal]*simAnswers{}, map[simGiverKey][]*simAnswers{}
	l.silent, l.formed = map[simSilentKey][]NodeID{}, map[uint64]ClusterID{}
	l.started, l.wiped = map[simEpochKey]bool{}, map[member]bool{}
	l.said = map[simSaidKey]time.Duration{}
	l.metAt, l.imposedSets = map[simMetKey]time.Duration{}, map[simVersionKey]bool{}
	l.met, l.acked = map[simMetKey]bool{}, map[simEpochKey]uint64{}
	l.reached, l.had = map[string]int{}, map[simHadKey]simHad{}
	l.leaving = map[simSlotKey]simPlace{}
	l.places, l.sessions, l.goals = map[simSlotKey]simPlace{}, map[simSlotKey]uint32{}, map[simSlotMoveKey][]simGoal{}
	l.log, l.won, l.wonLast, l.heirs = map[simEntryKey]uint64{}, map[simGiverKey]Epoch{}, map[simGiverKey]Epoch{}, map[simGiverKey]*simHeir{}
	l.newestWon, l.seized = map[simGiverKey]simWon{}, map[simGiverKey]Epoch{}
}

// reach notes that a rare state has been seen: a campaign that never sees one
// tests less than it seems to.
func (l *simLedger) reach(name string) { l.reached[name]++ }

// ownerAt is who has owned a slot at a move.
func (l *simLedger) ownerAt(n *simNode, slot Slot, move uint64) ShardID {
	h := l.owners[n.core.cluster]
	if h == nil || move >= uint64(len(h.of[slot])) {
		return ShardID{}
	}
	return h.of[slot][move]
}

// simOwners is who has owned the slots of a cluster.
type simOwners struct {
	of     [NumSlots][]ShardID // by move
	newest [NumSlots]slotEntry // most tables have no other
}

// simWon is how a shard has been won.
type simWon struct {
	epoch Epoch
	at    time.Duration
	force bool // nobody has waited for the lease of the one before
}

// noteOwner remembers who owns a slot at a move, and says who else does.
func (h *simOwners) noteOwner(slot Slot, e slotEntry) (other ShardID, same bool) {
	for uint64(len(h.of[slot])) <= e.move {
		h.of[slot] = append(h.of[slot], simUnknown)
		h.newest[slot] = e
	}
	if at := &h.of[slot][e.move]; *at == simUnknown {
		*at = e.shard
	}
	return h.of[slot][e.move], h.of[slot][e.move] == e.shard
}

// simUnknown is the owner of a move that nobody has shown yet.
var simUnknown = ShardID{0xff, 0xff, 0xff}

// ---- acknowledgements

// checkAck looks at an acknowledgement.
func (w *simWorld) checkAck(n *simNode, op simPending) {
	c, l := n.core, &w.ledger
	if c.cluster.IsZero() {
		return // Redis's own rules hold until a cluster is formed
	}
	l.acks++
	w.checkR7(n)
	if l.imposed {
		return
	}
	slot := simSlotKey{c.cluster, op.slot, 0}
	if op.unformed {
		op.epoch = c.reignEpoch // it ran before, and the first lease covers it
	}
	if !op.asked {
		w.checkOW1Order(n, slot, simAckKey{op.move, op.epoch, int32(n.index), w.now})
	}
	w.checkOW2(n)
	w.checkOW4(n)
	w.checkOW3(n)
	w.checkOW5(n)
	if w.overtaken(n, &op) {
		return
	}
	w.checkRP10(n, op)
	if w.ledger.many.Contains(op.slot) && !w.checkOW1Key(n, &op) {
		return
	}
	w.checkMG1(n, op)
}

// checkOW1Order: OW1, acknowledgements of a slot follow (move, epoch), and each of these
// is one node's.
func (w *simWorld) checkOW1Order(n *simNode, slot simSlotKey, key simAckKey) {
	if last, seen := w.ledger.lastAck[slot]; seen {
		older := key.move < last.move || key.move == last.move && (key.epoch.less(last.epoch) || key.epoch == last.epoch && key.node != last.node)
		if older {
			w.fail("OW1", "slot %d: %s acknowledges at move %d epoch %v, after n%d at move %d epoch %v", slot.slot, n.name(), key.move, key.epoch, last.node, last.move, last.epoch)
		}
	}
	w.ledger.lastAck[slot] = key
}

// checkOW4: OW4, a primary has won the epoch in which it acknowledges since it
// started, or formed its cluster with it.
func (w *simWorld) checkOW4(n *simNode) {
	switch l := n.core.lead; {
	case w.unchecked: // nobody has noted what it has won
	case l == nil:
		w.fail("OW4", "%s acknowledges and leads nothing", n.name())
	case l.epoch != n.wonIn:
		w.fail("OW4", "%s acknowledges in epoch %v, and has won %v since it started", n.name(), l.epoch, n.wonIn)
	}
}

// noteLed notes that a node leads under the START that has formed its cluster.
func (n *simNode) noteLed() {
	if l := n.core.lead; l != nil {
		n.wonIn = l.epoch
	}
}

// checkR7: R7, a winner by force acknowledges nothing while a lease that it
// has not waited for may run.
func (w *simWorld) checkR7(n *simNode) {
	if l := n.core.lead; l != nil && l.epoch.Unclean && w.now-n.forcedAt < w.nt*9/10 {
		w.fail("R7", "%s acknowledges %v after it has won by force", n.name(), w.now-n.forcedAt)
	}
}

// noteForced notes when a node has won by force.
func (n *simNode) noteForced(e Epoch) {
	if e.Unclean && e != n.forcedIn {
		n.forcedAt, n.forcedIn = n.w.now, e
	}
}

// checkOW3: OW3, a node that is cut off from the majority stops within a
// NodeTimeout.
func (w *simWorld) checkOW3(n *simNode) {
	switch v := n.core.table.voters.Version; {
	case n.isolatedAt == never:
	case v != n.isolatedIn:
		n.isolatedAt = never // others vote now
	case n.core.soleVoter():
		n.isolatedAt = w.now // it needs nobody
	case w.now-n.isolatedAt > w.nt+w.nt/20:
		w.fail("OW3", "%s acknowledges %v after it was cut off", n.name(), w.now-n.isolatedAt)
	}
}

// noteIsolation notes who is cut off from a majority of the voters that it
// knows. A lease needs both ways.
func (w *simWorld) noteIsolation(side map[*simNode]bool) {
	for _, n := range w.nodes {
		n.isolatedAt = never
		if side == nil || !n.up {
			continue
		}
		voters := &n.core.table.voters
		near := 0
		for _, o := range w.nodes {
			if side[o] == side[n] && voters.hasMember(o.was.member) { // it may come back
				near++
			}
		}
		if near <= len(voters.Members)/2 {
			n.isolatedAt, n.isolatedIn = w.now, voters.Version
		}
	}
}

// checkMG1: MG1, no acknowledged write is lost, and nothing acknowledged shows
// a value that was never acknowledged before what is known.
func (w *simWorld) checkMG1(n *simNode, op simPending) {
	l := &w.ledger
	k := simSlotKey{n.core.cluster, op.slot, op.key}
	have := l.committed[k]
	if l.loose[k] {
		l.commit(k, op.value, w.now)
		delete(l.loose, k)
		return
	}
	if op.resets == l.resets[k] && !descends(op.value, op.inv) {
		w.fail("MG1", "%v: %s shows %v at move %d, acknowledged before the call was %v", k, n.name(), op.value.short(), op.move, op.inv.short())
		return
	}
	switch {
	case descends(op.value, have):
		l.commit(k, op.value, w.now)
	case !descends(have, op.value):
		w.fail("MG1", "%v: %s shows %v at move %d, acknowledged is %v", k, n.name(), op.value.short(), op.move, have.short())
	}
}

func (k simSlotKey) String() string { return fmt.Sprintf("slot %d key %d", k.slot, k.key) }

func (k simSlotKey) first() simSlotKey { return simSlotKey{k.cluster, k.slot, 0} }

// keysOf is how many keys clients use of a slot.
func (w *simWorld) keysOf(slot Slot) int {
	if w.ledger.many.Contains(slot) {
		return simKeys
	}
	return 1
}

// commit notes what has been acknowledged last of a key.
func (l *simLedger) commit(k simSlotKey, v *simWrite, now time.Duration) {
	l.committed[k] = v
	if v != nil && v.acked == 0 {
		v.acked = now
	}
}

// loosen notes that what was acknowledged of a key may be gone: what is acknowledged
// next counts.
func (l *simLedger) loosen(k simSlotKey) {
	l.loose[k] = true
	l.resets[k]++
	delete(l.committed, k)
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

// checkOW1Overlap: OW1, no two nodes could acknowledge for one slot at this moment.
func (w *simWorld) checkOW1Overlap() {
	w.after(10*time.Millisecond, w.checkOW1Overlap)
	if w.ledger.imposed {
		return
	}
	who := w.ledger.serving[:0]
	taken := map[ClusterID]*SlotSet{}
	for _, n := range w.nodes {
		if !n.up || n.paused > w.now || n.clusterToBe().IsZero() || n.local() >= n.core.servesUntil() {
			continue
		}
		all := taken[n.clusterToBe()]
		if all == nil {
			all = &SlotSet{}
			taken[n.clusterToBe()] = all
		}
		if overlap(all, &n.core.serve.slots) {
			w.fail("OW1", "%s", overlapping(n, who))
		}
		all.Union(&n.core.serve.slots)
		who = append(who, n)
	}
	w.ledger.serving = who
}

// overlapping says who serves what n serves too.
func overlapping(n *simNode, others []*simNode) string {
	for _, o := range others {
		if o.clusterToBe() == n.clusterToBe() && overlap(&o.core.serve.slots, &n.core.serve.slots) {
			shared := o.core.serve.slots
			shared.Intersect(&n.core.serve.slots)
			return fmt.Sprintf("%s and %s both serve %s", o.name(), n.name(), shared.String())
		}
	}
	return ""
}

// clusterToBe is the cluster of a node, or the one that its START would form.
func (n *simNode) clusterToBe() ClusterID {
	if f := &n.core.form; n.core.cluster.IsZero() && f.holds() {
		return f.value.Cluster
	}
	return n.core.cluster
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

// checkSend looks at what leaves: it is on disk, and was asked by who may ask.
func (w *simWorld) checkSend(n *simNode, from *sender, m message) {
	l, voter := &w.ledger, member{from.ID, from.Key}
	if w.unchecked {
		return
	}
	if from.Cluster != n.core.cluster || from.Key != n.core.key {
		return // said before it became another node, and held back since
	}
	switch m := m.(type) {
	case *grantMsg:
		w.checkEP2Grant(n, m)
		w.checkEP3Grant(n, m)
		w.checkOW0InForce(n, m.Voters)
		l.answer(simProposal{cluster: from.Cluster, shard: m.Shard, epoch: m.Epoch}, simAnswer{voter, m.Voters})
	case *acceptMsg:
		w.checkEP2Record(n, m)
		w.checkEP2Move(n, m)
		w.checkOW0InForce(n, m.Voters)
		l.answer(simProposal{from.Cluster, m.Shard, m.Epoch, m.Ballot == 0, m.Ballot}, simAnswer{voter, m.Voters})
	case *stoppedMsg:
		w.checkEP2Stopped(n, m)
	case *startedMsg:
		w.checkEP2Started(n, m)
	case *voteMsg:
		w.checkEP3Candidate(n, from, m)
		if !w.lies[m] {
			w.checkRP6Vote(n, m)
		}
	case *recordMsg:
		n.noteForced(m.Record.Epoch)
		w.checkEP4Opening(n, m)
		w.checkRP10Proposed(n, m)
		w.checkRP6Record(n, &m.Record)
		as := l.propose(w.now, simProposal{cluster: from.Cluster, shard: m.Record.Shard, epoch: m.Record.Epoch, record: true}, m.Kept, false)
		if m.Record.N == 0 {
			as.opened = m.Opened
		}
	case *moveMsg:
		l.propose(w.now, simProposal{cluster: from.Cluster, shard: m.Shard, epoch: m.Epoch, ballot: m.Ballot}, m.Slots, m.Shard != from.Shard)
	}
}

// checkRP5: RP5, a replica that has never copied everything does not begin to ask
// for votes, unless it says that nobody in sync is left, or has won so already, without
// opening the shard. A shard without slots has nothing to copy.
func (w *simWorld) checkRP5(n *simNode) {
	c, st := n.core, n.core.stand
	if st != nil && st.why == whyConsent {
		n.byConsent = st.epoch
	}
	if st == nil || st == n.stood {
		return // nothing, or what it does already, perhaps under a higher number
	}
	n.stood = st
	switch {
	case st.why == whyConsent:
	case st.shard == c.self.Shard && c.isReplica(c.self) && !c.holdsCopy && st.why != whyUnclean && !st.epoch.Unclean && c.unnamed == "" && c.table.owned[st.shard] > 0:
		w.fail("RP5", "%s asks for votes, and has no copy", n.name())
	}
}

// checkEP3Candidate: EP3, a candidate asks under an epoch of its own.
func (w *simWorld) checkEP3Candidate(n *simNode, from *sender, m *voteMsg) {
	if m.Epoch.Node != from.ID {
		w.fail("EP3", "%s asks for votes under epoch %v, which is none of its own", n.name(), m.Epoch)
	}
}

// checkEP2Grant: EP2, a promise is on disk before the grant leaves.
func (w *simWorld) checkEP2Grant(n *simNode, g *grantMsg) {
	if promised := n.votes[g.Shard].Promised; promised.less(g.Epoch) {
		w.fail("EP2", "%s grants %v of %s, on disk is %v", n.name(), g.Epoch, g.Shard.short(), promised)
	}
}

// checkEP3Grant: EP3, a voter grants one number of a shard to one candidate.
func (w *simWorld) checkEP3Grant(n *simNode, g *grantMsg) {
	if v := n.core.vote.shards[g.Shard]; v != nil && v.record != nil && v.record.Epoch == g.Epoch {
		return // it has opened already: the voter has heard so and answers again
	}
	voter := member{n.core.id, n.core.key}
	k := simGrantKey{n.core.cluster, voter, g.Voters, g.Shard, g.Epoch.Number, g.Epoch.Unclean}
	if have, seen := w.ledger.grants[k]; seen && have != g.Epoch.Node {
		w.fail("EP3", "voter %s grants epoch %d of %s to %s and to %s", voter.ID.short(), g.Epoch.Number, g.Shard.short(), have.short(), g.Epoch.Node.short())
	}
	w.ledger.grants[k] = g.Epoch.Node
}

// checkOW0InForce: OW0, a voter answers under the START that was decided.
func (w *simWorld) checkOW0InForce(n *simNode, v voterVersion) {
	c := n.core
	if v != c.table.voters.Version || c.vote.current == nil {
		return // it has a newer set by now
	}
	if have, ok := w.ledger.voters[simVersionKey{c.cluster, v}]; ok && have.ID != c.vote.current.ID {
		w.fail("OW0", "%s votes in version %v under START %x, decided is %x", n.name(), v, c.vote.current.ID, have.ID)
	}
}

// checkEP4Opening: EP4, who opens a shard has been granted that very epoch by a
// majority of one set of voters.
func (w *simWorld) checkEP4Opening(n *simNode, m *recordMsg) {
	c, r := n.core, &m.Record
	if w.ledger.started[simEpochKey{c.cluster, r.Shard, r.Epoch}] {
		return // its START has opened it
	}
	if !w.hasMajority(simProposal{cluster: c.cluster, shard: r.Shard, epoch: r.Epoch}) {
		w.fail("EP4", "%s opens %s in epoch %v without a majority of one set", n.name(), r.Shard.short(), r.Epoch)
	}
}

// answer notes that a voter has granted or accepted.
func (l *simLedger) answer(p simProposal, a simAnswer) {
	as := l.asked4[p]
	if as == nil {
		as = &simAnswers{simProposal: p}
		l.asked4[p] = as
	}
	if !slices.Contains(as.by, a) {
		as.by = append(as.by, a)
	}
}

// propose notes what a RECORD or MOVE gives away; taken says that an operator
// takes it from another shard than that of the sender.
func (l *simLedger) propose(now time.Duration, p simProposal, slots acceptRuns, taken bool) *simAnswers {
	if as := l.asked4[p]; as != nil && (len(as.slots.Runs) > 0 || len(slots.Runs) == 0) {
		return as
	}
	as := l.asked4[p]
	if as == nil {
		as = &simAnswers{simProposal: p}
		l.asked4[p] = as
	}
	as.at, as.slots, as.taken = now, slots, taken
	k := simGiverKey{p.cluster, p.shard}
	l.given[k] = append(l.given[k], as)
	return as
}

// hasMajority reports whether a majority of the voters of one set has answered
// a proposal.
func (w *simWorld) hasMajority(p simProposal) bool {
	l := &w.ledger
	as := l.asked4[p]
	if as == nil || as.ok {
		return as != nil
	}
	for _, a := range as.by {
		set := l.voters[simVersionKey{p.cluster, a.version}]
		k := 0
		for _, m := range set.Members {
			if slices.Contains(as.by, simAnswer{m, a.version}) {
				k++
			}
		}
		as.ok = as.ok || k > len(set.Members)/2
	}
	return as.ok
}

// noteOwn notes what a node has answered itself, which no frame shows.
func (w *simWorld) noteOwn(n *simNode) {
	c, l := n.core, &w.ledger
	if !c.active() {
		return
	}
	self := simAnswer{member{c.id, c.key}, c.table.voters.Version}
	granted := func(s *candidacy) {
		if v := c.vote.shards[s.shard]; v != nil && !v.promised.less(s.epoch) {
			l.answer(simProposal{cluster: c.cluster, shard: s.shard, epoch: s.epoch}, self)
		}
	}
	recorded := func(r *recording) {
		rec := &r.msg.Record
		if v := c.vote.shards[rec.Shard]; v != nil && v.promised == rec.Epoch && v.record != nil && v.record.Epoch == rec.Epoch {
			p := simProposal{cluster: c.cluster, shard: rec.Shard, epoch: rec.Epoch, record: true}
			l.propose(w.now, p, r.msg.Kept, false)
			l.answer(p, self)
		}
	}
	moved := func(b *moveBallot, taken bool) {
		slot, _ := firstSlot(b.slots.slots())
		if a := c.vote.accepted.at(slot); a.epoch == b.epoch && gives(&simAnswers{slots: b.slots}, slot, a.shard, a.move) {
			p := simProposal{cluster: c.cluster, shard: b.shard, epoch: b.epoch, ballot: b.id}
			l.propose(w.now, p, b.slots, taken)
			l.answer(p, self)
		}
	}
	if c.stand != nil {
		granted(c.stand)
	}
	if c.lead != nil {
		if c.lead.recording != nil {
			recorded(c.lead.recording)
		}
		for _, g := range c.lead.gives {
			if g.ballot != nil {
				moved(g.ballot, false)
			}
		}
	}
	for _, op := range c.ops {
		switch {
		case op.stand != nil:
			granted(op.stand)
		case op.recording != nil:
			recorded(op.recording)
		case op.move != nil:
			moved(op.move, op.part.from != c.self.Shard)
		}
	}
}

// ---- what a step has changed

func (w *simWorld) checkStep(n *simNode) {
	c := n.core
	if w.unchecked {
		return
	}
	w.checkEP1(n)
	if c.savedSeq == c.saveSeq && c.broken == nil {
		n.durableEpoch = c.epochHigh
	}
	if l := c.lead; l != nil {
		n.noteForced(l.epoch)
	}
	w.checkRP5(n)
	w.noteRise(n)
	w.checkEP7Ballot(n)
	w.checkOW5(n)
	w.checkRP6(n)
	w.checkMB5(n)
	w.noteOwn(n)
	if c.table.sum != n.lastTable {
		n.lastTable = c.table.sum
		w.checkTable(n)
	}
	if c.peers.sum != n.lastPeers {
		n.lastPeers = c.peers.sum
		w.checkPeers(n)
	}
	n.rememberDurable()
	if n.stoppedIn = 0; !c.vote.stop.isZero() {
		n.stoppedIn = c.table.voters.ID
	}
	n.servedUntil = never
	if f := &c.form; c.cluster.IsZero() && f.holds() && !c.serve.slots.Empty() {
		n.servedUntil = c.servesUntil()
	}
	n.was = simWas{member{c.id, c.key}, c.cluster, c.table.voters, c.self.State == forgotten, n.was.others[:0]}
	for _, p := range c.peers.ordered {
		if p != c.self && p.State != forgotten {
			n.was.others = append(n.was.others, p.ID)
		}
	}
}

// rememberDurable keeps what a node knows, once it is on disk: a restart must not make
// it less.
func (n *simNode) rememberDurable() {
	if n.news && n.core.savedSeq == n.core.saveSeq && n.core.broken == nil {
		n.durablePeers, n.durableShards, n.news = copyOf(n.knownPeers), copyOf(n.knownShards), false
	}
}

// copyOf is a copy of m that may be written to.
func copyOf[K comparable, V any](m map[K]V) map[K]V {
	c := make(map[K]V, len(m))
	maps.Copy(c, m)
	return c
}

// simLed is what a node leads.
type simLed struct {
	shard ShardID
	epoch Epoch
	slots bool
}

// checkOW5: OW5, a replica leads nothing and serves nothing; who has led a shard with
// slots follows only where somebody else has come by it, or by its slots.
func (w *simWorld) checkOW5(n *simNode) {
	c, was := n.core, n.led
	n.led = simLed{}
	switch {
	case c.cluster.IsZero():
	case !c.isReplica(c.self):
		n.led = simLed{c.self.Shard, c.table.shards[c.self.Shard], c.ownsSlots()}
	case c.lead != nil && c.lead.opened || !c.serve.slots.Empty():
		w.fail("OW5", "%s is a replica, and leads or serves %s", n.name(), c.serve.slots.String())
	case was.slots && c.table.owned[was.shard] > 0 && c.table.shards[was.shard].Node == c.id && c.self.Shard != was.shard:
		w.fail("OW5", "%s follows in %s, and leads %s, which has slots", n.name(), c.self.Shard.short(), was.shard.short())
	case was.slots && c.self.Shard == was.shard && !was.epoch.less(c.table.shards[was.shard]):
		w.fail("OW5", "%s follows in %s, which it led, and nobody has won that", n.name(), was.shard.short())
	}
}

// checkEP1: EP1, the current epoch of a node never goes down.
func (w *simWorld) checkEP1(n *simNode) {
	if n.core.epochHigh < n.durableEpoch {
		w.fail("EP1", "%s: current epoch %d, was %d", n.name(), n.core.epochHigh, n.durableEpoch)
	}
}

// noteRise looks at how the current epoch has risen.
func (w *simWorld) noteRise(n *simNode) {
	was, is := n.lastEpoch, n.core.epochHigh
	n.lastEpoch = is
	if is > was {
		w.checkEP7(n, numberEpoch, was, is)
		w.checkEP8(n, was, is)
		w.ledger.highest = max(w.ledger.highest, is)
	}
}

// checkEP7: EP7, one member raises no number by more than a frame may, and in a minute
// by no more than a minute may. The next number is free. was is the highest of its kind
// that n knew: up to there a member is believed of any.
//
// The core's minutes follow each other: one begins with the first number that a member
// has to be believed by itself once the last is over. So in a minute that lies across the
// border of two it may be believed twice as much, and in one of the core's, which is what
// is summed up here, exactly jumpPerMinute, of all kinds together. A frame with a number
// that was refused has gone as far towards it as one that was believed: what lies have
// gained a member so is added to what it may.
func (w *simWorld) checkEP7(n *simNode, kind numberKind, was, is uint64) {
	from := w.reading
	if from.IsZero() || from == n.core.id || is <= was+1 || n.core.cluster.IsZero() {
		return
	}
	began := n.core.strangers.minute // those that it does not know have one account
	if p := n.core.peers.get(from); p != nil {
		began = p.jumps.minute
	} else {
		from = NodeID{}
	}
	j := n.jumps[from]
	if began != j.minute {
		if j.known && began > j.minute && began-j.minute <= time.Minute {
			w.fail("EP7", "%s: a minute of %s begins %v after the last", n.name(), from.short(), began-j.minute)
		}
		j.minute, j.sums = began, [numNumberKinds]uint64{}
	}
	j.known = true
	j.sums[kind] += is - was
	n.jumps[from] = j
	sum := uint64(0)
	for _, x := range j.sums {
		sum += x
	}
	if gained := j.lies * jumpPerFrame; is-was > jumpPerFrame+gained || sum > jumpPerMinute+gained {
		w.fail("EP7", "%s: a frame of %s raises a number of kind %d from %d to %d, its frames of a minute those of each kind by %d", n.name(), from.short(), kind, was, is, j.sums)
	}
}

// noteLie notes that a member shows a node a number that it has to refuse.
func (n *simNode) noteLie(from NodeID) {
	j := n.jumps[from]
	j.lies++
	n.jumps[from] = j
}

// checkEP7Ballot: EP7, for the ballots of changes of the voters.
func (w *simWorld) checkEP7Ballot(n *simNode) {
	was, is := n.lastBallot, n.core.vote.stop.Number
	if n.lastBallot = is; is > was {
		w.checkEP7(n, numberBallot, was, is)
	}
}

// checkEP7Member: EP7, for the version of a member, which may be new here.
func (w *simWorld) checkEP7Member(n *simNode, is uint64) {
	highest := uint64(0)
	for _, p := range n.knownPeers {
		highest = max(highest, p.version)
	}
	if is > highest {
		w.checkEP7(n, numberMember, highest, is)
	}
}

// checkEP7Move: EP7, a move of a slot is at most a frame's rise above the highest that
// anybody knows.
func (w *simWorld) checkEP7Move(n *simNode, slot Slot, highest, move uint64) bool {
	if move > highest+jumpPerFrame {
		w.fail("EP7", "%s: slot %d is at move %d, nobody knows of more than %d", n.name(), slot, move, highest)
		return false
	}
	return true
}

// checkEP8: EP8, the current epoch rises to what somebody has used, or by one where
// this node itself uses it.
func (w *simWorld) checkEP8(n *simNode, was, is uint64) {
	if is > max(w.ledger.highest, was+1) {
		w.fail("EP8", "%s: the current epoch rises from %d to %d, nobody has used more than %d", n.name(), was, is, w.ledger.highest)
	}
}

// checkEP1Loaded: EP1 over a restart.
func (w *simWorld) checkEP1Loaded(n *simNode) {
	if n.core.epochHigh < n.durableEpoch {
		w.fail("EP1", "%s: current epoch %d after a restart, %d had been saved", n.name(), n.core.epochHigh, n.durableEpoch)
	}
}

// checkTable looks at the buckets of a table that have changed.
func (w *simWorld) checkTable(n *simNode) {
	c := n.core
	if c.cluster.IsZero() {
		n.knownShards, n.news = map[ShardID]Epoch{}, true
		n.lastBuckets = [numBuckets]uint64{}
		return
	}
	for b := range numBuckets {
		if c.table.buckets[b] == n.lastBuckets[b] {
			continue
		}
		n.lastBuckets[b] = c.table.buckets[b]
		w.checkEP5(n, b)
	}
	for _, id := range c.table.order {
		e := c.table.shards[id]
		if n.knownShards[id] == e {
			continue
		}
		w.checkMB6Shard(n, id, e)
		n.knownShards[id], n.news = e, true
		w.checkEP9(n, id, e)
	}
}

// checkMB6Shard: MB6, the epoch of a shard never goes back.
func (w *simWorld) checkMB6Shard(n *simNode, id ShardID, e Epoch) {
	if was, ok := n.knownShards[id]; ok && e.less(was) {
		w.fail("MB6", "%s: epoch of %s goes back from %v to %v", n.name(), id.short(), was, e)
	}
}

// checkEP9: EP9, an epoch that is adopted was won, formed with, or taken by an operator.
func (w *simWorld) checkEP9(n *simNode, id ShardID, e Epoch) {
	if e.Number > 0 && !w.ledger.epochs[simEpochKey{n.core.cluster, id, e}] {
		w.fail("EP9", "%s adopts epoch %v of %s, which nobody has won", n.name(), e, id.short())
	}
}

// checkEP5: EP5, a move of a slot has one owner in all of history.
func (w *simWorld) checkEP5(n *simNode, page int) {
	c := n.core
	p := c.table.slots.pages[page]
	if p == nil || w.ledger.imposed {
		return
	}
	h := w.ledger.owners[c.cluster]
	if h == nil {
		h = new(simOwners)
		w.ledger.owners[c.cluster] = h
	}
	newest := h.newest[page*pageSlots:][:pageSlots]
	for i := range p {
		slot := Slot(page*pageSlots + i)
		if p[i] == newest[i] || p[i].move == 0 || !w.checkEP7Move(n, slot, uint64(max(1, len(h.of[slot]))-1), p[i].move) {
			continue
		}
		if other, same := h.noteOwner(slot, p[i]); !same {
			w.fail("EP5", "%s: slot %d at move %d belongs to %s, elsewhere to %s", n.name(), slot, p[i].move, p[i].shard.short(), other.short())
		}
		w.checkMG6Move(n, slot, p[i])
	}
}

// checkMG6Move: MG6, a slot comes to nobody where an operator has released it.
func (w *simWorld) checkMG6Move(n *simNode, slot Slot, e slotEntry) {
	if e.shard.IsZero() && w.ledger.resets[simSlotKey{n.core.cluster, slot, 0}] == 0 {
		w.fail("MG6", "%s: slot %d is nobody's at move %d, and nobody has released it", n.name(), slot, e.move)
	}
}

// checkPeers looks at the members that a node knows.
func (w *simWorld) checkPeers(n *simNode) {
	c, l := n.core, &w.ledger
	if own := &c.self.silent; own.Counter != 0 {
		l.silent[simSilentKey{own.Voter, own.Starts, own.Counter}] = own.Nodes
	}
	for _, p := range c.peers.ordered {
		was, seen := n.knownPeers[p.ID]
		is := simPeerSeen{p.Key, p.State, p.Version, p.Starts, p.peerEntry.Facts}
		if seen && is == was {
			continue
		}
		if is.version > was.version+1 {
			w.checkEP7Member(n, is.version)
		}
		n.knownPeers[p.ID], n.news = is, true
		l.noteSaid(simSaidKey{simMetKey{p.ID, p.Key, p.Version}, p.State == forgotten}, w.now)
		if !seen {
			w.checkR13Claims(n, p.ID)
		}
		if !seen || is.key != was.key {
			continue
		}
		w.checkMB6Peer(n, p.ID, was, is)
		w.checkMB1(n, p.ID, was, is)
	}
}

// checkMB6Peer: MB6, what is known of a member never goes back.
func (w *simWorld) checkMB6Peer(n *simNode, id NodeID, was, is simPeerSeen) {
	if is.version < was.version || is.starts < was.starts || is.starts == was.starts && is.facts < was.facts {
		w.fail("MB6", "%s: entry of %s goes back from %+v to %+v", n.name(), id.short(), was, is)
	}
}

// noteSaid notes when it was said first that a member is there, or is forgotten.
func (l *simLedger) noteSaid(k simSaidKey, now time.Duration) {
	if _, seen := l.said[k]; !seen {
		l.said[k] = now
	}
}

// checkMB1: MB1, a member that was forgotten is back by MEET alone. Where who forgot it was
// behind, and the member had said more of itself by then, it was not forgotten at all. Where
// who met it was behind, it has found out itself, and said more.
func (w *simWorld) checkMB1(n *simNode, id NodeID, was, is simPeerSeen) {
	if was.state != forgotten || is.state == forgotten || n.core.cluster.IsZero() {
		return
	}
	if at, met := w.ledger.metAt[simMetKey{id, is.key, 0}]; met && at > w.ledger.said[simSaidKey{simMetKey{id, is.key, was.version}, true}] {
		return
	}
	for v := was.version + 1; v <= is.version; v++ {
		if w.ledger.met[simMetKey{id, is.key, v}] {
			return
		}
		if at, seen := w.ledger.said[simSaidKey{simMetKey{id, is.key, v}, false}]; seen && at < w.ledger.said[simSaidKey{simMetKey{id, is.key, was.version}, true}] {
			return
		}
	}
	w.fail("MB1", "%s: %s is back, and nobody has met it", n.name(), id.short())
}

// checkEvent takes what nodes say into the ledger.
func (w *simWorld) checkEvent(n *simNode, e Event) {
	l := &w.ledger
	if w.unchecked {
		return
	}
	w.logf("%s: event %v node %s shard %s epoch %v slots %s number %d %s %s", n.name(), e.Kind, e.Node.short(), e.Shard.short(), e.Epoch, brief(e.Slots), e.Number, e.Addr, e.Text)
	c := n.core
	switch e.Kind {
	case EventMember:
		if p := c.peers.get(e.Node); p != nil {
			l.met[simMetKey{p.ID, p.Key, p.Version}] = true
			l.metAt[simMetKey{p.ID, p.Key, 0}] = w.now
		}
	case EventForgotten:
		n.was.others = slices.DeleteFunc(n.was.others, func(id NodeID) bool { return id == e.Node }) // for what comes in the same step: a RESET that waited for it
	case EventReset:
		w.checkR14(n)
		n.durableEpoch, n.wasReset = min(n.durableEpoch, c.epochHigh), true // it is not saved yet
		n.votersOf = ClusterID{}                                            // it may join the same cluster again, and hears of older voters first
		n.knownPeers, n.durablePeers, n.durableShards, n.news = map[NodeID]simPeerSeen{}, nil, nil, true
		n.jumps = map[NodeID]simJumps{}
	case EventFormed:
		for _, id := range c.table.order {
			l.epochs[simEpochKey{c.cluster, id, c.table.shards[id]}] = true
			l.started[simEpochKey{c.cluster, id, c.table.shards[id]}] = true
			l.highest = max(l.highest, c.table.shards[id].Number)
		}
		w.checkFM1(n)
		w.checkR13Lease(n)
		n.replica.half = false // what it has is what there is
		n.noteLed()
		if n.isolatedAt != never {
			n.isolatedAt = w.now // a primary that START names holds a lease
		}
		n.formedStore()
		l.reach("formed")
	case EventJoined:
		n.noteLed()
		if c.ownsSlots() {
			n.formedStore()
		}
	case EventPrimary:
		n.wonIn = e.Epoch
		w.checkRP6Win(n, e)
		l.reach("elected")
		if !e.From.IsZero() {
			l.reach("failed over")
		}
		n.followRole()
		if !e.From.IsZero() || e.Epoch.Unclean { // a TAKEOVER has shown itself as the primary before
			l.won[simGiverKey{c.cluster, c.self.Shard}] = e.Epoch
		}
		if shard := (simGiverKey{c.cluster, c.self.Shard}); l.wonLast[shard].less(e.Epoch) {
			l.wonLast[shard] = e.Epoch
			w.noteLost(n, e.From)
		} // else it hears late of its majority, without a lease
		n.noteForced(e.Epoch)
		w.noteWin(n, e)
	case EventDuplicate:
		w.checkMB3Alarm(n, e)
	case EventUnclean:
		if !e.Epoch.Unclean && !e.Shard.IsZero() {
			w.checkRP1Unclean(n, e)
			return
		}
		if e.Shard.IsZero() {
			l.imposed = true
			l.imposedSets[simVersionKey{c.cluster, c.table.voters.Version}] = true
			return
		}
		l.epochs[simEpochKey{c.cluster, e.Shard, e.Epoch}] = true
		l.noteSeized(simGiverKey{c.cluster, e.Shard}, e.Epoch)
	case EventMoved:
		w.checkMoved(n, e)
	case EventVoters:
		w.noteVoters(n)
	}
}

// noteSeized notes that an operator has taken a shard without a vote.
func (l *simLedger) noteSeized(k simGiverKey, e Epoch) {
	if l.seized[k].less(e) {
		l.seized[k] = e
		l.reach("seized")
	}
}

// undecided reports whether a shard has been taken by TAKEOVER, and nobody has won it
// since: its members may have begun to follow one who lacks what was acknowledged.
func (l *simLedger) undecided(k simGiverKey) bool { return l.newestWon[k].epoch.less(l.seized[k]) }

func brief(set SlotSet) string {
	s := set.String()
	if len(s) > 60 {
		return s[:60] + "..."
	}
	return s
}

// noteWin takes it into the ledger that a node has opened a shard.
func (w *simWorld) noteWin(n *simNode, e Event) {
	l, c := &w.ledger, n.core
	l.epochs[simEpochKey{c.cluster, e.Shard, e.Epoch}] = true
	if c.table.voters.Version.Forced == 0 {
		w.checkEP3Winner(n, e)
	}
	if g := (simGiverKey{c.cluster, e.Shard}); l.newestWon[g].epoch.less(e.Epoch) {
		l.newestWon[g] = simWon{e.Epoch, w.now, c.lead.serveFrom > 0}
	}
	w.checkOW0Opening(n, e)
}

// checkEP3Winner: EP3, one winner of an epoch, while nobody has imposed voters beside
// those that a majority has decided: the two sets know nothing of each other's promises.
func (w *simWorld) checkEP3Winner(n *simNode, e Event) {
	k := simWinKey{n.core.cluster, e.Shard, e.Epoch.Number, e.Epoch.Unclean}
	if have, ok := w.ledger.winners[k]; ok && have != e.Node {
		w.fail("EP3", "epoch %v of %s is won by %s and by %s", e.Epoch, e.Shard.short(), have.short(), e.Node.short())
	}
	w.ledger.winners[k] = e.Node
}

// checkOW0Opening: OW0, a majority of one set has accepted the opening of a shard.
func (w *simWorld) checkOW0Opening(n *simNode, e Event) {
	c := n.core
	if !w.hasMajority(simProposal{cluster: c.cluster, shard: e.Shard, epoch: e.Epoch, record: true}) {
		w.fail("OW0", "%s has opened %s in epoch %v without a majority of one set", n.name(), e.Shard.short(), e.Epoch)
	}
}

// checkMoved notes what has become of slots that were given away.
func (w *simWorld) checkMoved(n *simNode, e Event) {
	l, c := &w.ledger, n.core
	w.checkOW0Moved(n, e)
	w.noteDecided(n, e)
	for slot := range e.Slots.All() {
		move := c.table.slots.at(slot).move
		giver := l.ownerAt(n, slot, move-1)
		if h := l.heirs[simGiverKey{c.cluster, c.table.slots.at(slot).shard}]; h != nil && !l.stagedBefore(h, simGiverKey{c.cluster, giver}, slot, c.table.slots.at(slot)) {
			h.seen.Add(slot) // it has not come with the shard
		}
		if c.table.slots.at(slot).shard.IsZero() || l.taken(simGiverKey{c.cluster, giver}, slot, c.table.slots.at(slot)) {
			for key := range w.keysOf(slot) {
				l.loosen(simSlotKey{c.cluster, slot, uint8(key)})
			}
			l.reach("taken by an operator")
		} else {
			l.reach("handed over")
		}
	}
}

const decidedMost = 4 // that are remembered of a node

// noteDecided remembers what a node has counted a majority for, and whom it hears.
func (w *simWorld) noteDecided(n *simNode, e Event) {
	if len(n.replies) != 1 {
		return // for which command, is not known
	}
	slot, _ := firstSlot(e.Slots)
	d := simDecided{at: w.now, slot: slot, to: e.Shard, move: n.core.table.slots.at(slot).move}
	for _, o := range w.nodes {
		if o == n || !o.up || o.core.cluster != n.core.cluster || o.core.self.State != present {
			continue // who has left and comes back before the answer hears of it as a newcomer does
		}
		if p := n.core.peers.get(o.core.id); p != nil && p.State == present && p.heardAt > n.local()-w.nt/2 {
			d.near = append(d.near, simProcess{o, o.run})
		}
	}
	n.decided = append(n.decided, d)
	n.decided = n.decided[max(0, len(n.decided)-decidedMost):]
}

// checkR9: R9, a command is answered once every member that lives knows what it has
// changed, or a NodeTimeout is over.
func (w *simWorld) checkR9(n *simNode, set *SlotSet, to ShardID, asked time.Duration) {
	if !n.lives() || n.core.self.State != present {
		return // it is not what it was when it was asked, or can tell nobody any more
	}
	for _, d := range n.decided {
		if d.at < asked || w.now-d.at > w.nt*2/5 || d.to != to || !set.Contains(d.slot) {
			continue
		}
		for _, o := range d.near {
			p := n.core.peers.get(o.was.member.ID)
			if o.up && o.simNode.run == o.run && o.core.cluster == n.core.cluster && p != nil && p.State == present && o.core.table.slots.at(d.slot).move < d.move {
				w.fail("R9", "%s has answered what it has decided %v ago, and %s does not know that slot %d is at move %d", n.name(), w.now-d.at, o.name(), d.slot, d.move)
			}
		}
	}
}

// checkOW0Moved: OW0, a majority of one set has accepted that slots go away.
func (w *simWorld) checkOW0Moved(n *simNode, e Event) {
	l, c := &w.ledger, n.core
	if l.imposed {
		return
	}
	first, _ := firstSlot(e.Slots) // all of them are of one proposal
	move := c.table.slots.at(first).move
	given := l.given[simGiverKey{c.cluster, l.ownerAt(n, first, move-1)}]
	if move == 1 { // START has assigned it, and a newcomer that does not know yet asks for it as nobody's
		given = slices.Concat(given, l.given[simGiverKey{c.cluster, ShardID{}}])
	}
	for i := len(given) - 1; i >= 0; i-- {
		if gives(given[i], first, e.Shard, move) && w.hasMajority(given[i].simProposal) {
			return
		}
	}
	w.fail("OW0", "%s has moved slot %d to %s, move %d, without a majority of one set", n.name(), first, e.Shard.short(), move)
}

// taken reports whether an operator has begun a move of a slot, whoever has
// completed it.
func (l *simLedger) taken(k simGiverKey, slot Slot, e slotEntry) bool {
	return slices.ContainsFunc(l.given[k], func(as *simAnswers) bool { return as.taken && gives(as, slot, e.shard, e.move) })
}

// stagedBefore reports whether a slot that a shard has been given now was proposed,
// and so its data was there, before its primary took over with nothing of that.
func (l *simLedger) stagedBefore(h *simHeir, k simGiverKey, slot Slot, e slotEntry) bool {
	return h.named && slices.ContainsFunc(l.given[k], func(as *simAnswers) bool { return as.at <= h.at && gives(as, slot, e.shard, e.move) })
}

func gives(as *simAnswers, slot Slot, to ShardID, move uint64) bool {
	for _, r := range as.slots.Runs {
		if r.First <= slot && slot <= r.Last {
			return r.Move == move && as.slots.Shards[r.Shard] == to
		}
	}
	return false
}

// checkR13Lease: R13, forming costs no service: START is the first lease.
func (w *simWorld) checkR13Lease(n *simNode) {
	if n.servedUntil > n.local() && n.core.broken == nil && (n.local() >= n.core.servesUntil() || n.core.serve.slots.Empty()) {
		w.fail("R13", "%s has served until its cluster formed, and serves no more", n.name())
	}
}

// checkR13Claims: R13, nobody unformed meets a node that claims a slot which it claims, too.
func (w *simWorld) checkR13Claims(n *simNode, met NodeID) {
	o := w.nodeOf(met)
	if o == nil || o == n || !w.rivals[n] || !w.rivals[o] || !o.core.cluster.IsZero() || !n.core.cluster.IsZero() {
		return
	}
	if n.core.table.slotIsOf(rivalSlot, n.core.self.Shard) && o.core.table.slotIsOf(rivalSlot, o.core.self.Shard) {
		w.fail("R13", "%s has met %s, and both have assigned slot %d to themselves", n.name(), o.name(), rivalSlot)
	}
}

// checkFM1: FM1, the nodes of one deployment form exactly one cluster.
func (w *simWorld) checkFM1(n *simNode) {
	if n.form == (formNumbers{}) || n.wasReset {
		return
	}
	l := &w.ledger
	if have, ok := l.formed[n.form.Seeds]; ok && have != n.core.cluster {
		w.fail("FM1", "%s forms %s, the deployment has formed %s", n.name(), n.core.cluster.String()[:6], have.String()[:6])
	}
	l.formed[n.form.Seeds] = n.core.cluster
}

// noteVoters takes it into the ledger that a node knows of other voters.
func (w *simWorld) noteVoters(n *simNode) {
	l, v := &w.ledger, &n.core.table.voters
	k := simVersionKey{n.core.cluster, v.Version}
	if _, known := l.voters[k]; known {
		w.checkOW0Voters(n, l.voters[k])
	} else {
		w.checkR14Voters(n)
		w.checkOW0Decided(n)
	}
	w.checkMB6Voters(n)
	l.voters[k] = *v
	if newest, ok := l.newest[k.cluster]; !ok || newest.Version.less(v.Version) {
		l.newest[k.cluster] = *v
	}
	if v.Version.Number > 1 {
		l.reach("voters changed")
	}
}

// checkOW0Voters: OW0, a version names one set everywhere.
func (w *simWorld) checkOW0Voters(n *simNode, elsewhere voterSet) {
	if v := &n.core.table.voters; elsewhere.ID != v.ID || !sameMembers(elsewhere.Members, v.Members) {
		w.fail("OW0", "%s: version %v of the voters is %x, elsewhere %x", n.name(), v.Version, v.ID, elsewhere.ID)
	}
}

// checkR14Voters: R14, nobody becomes a voter who has been reset.
func (w *simWorld) checkR14Voters(n *simNode) {
	v := &n.core.table.voters
	if !w.ledger.imposed && slices.ContainsFunc(v.Members, func(m member) bool { return w.ledger.wiped[m] }) {
		w.fail("R14", "%s: version %v of the voters names a node that has been reset", n.name(), v.Version)
	}
}

// checkMB6Voters: MB6, nobody goes back to older voters, and from those that an operator
// has imposed not to others.
func (w *simWorld) checkMB6Voters(n *simNode) {
	is, was := n.core.table.voters.Version, n.knownVoters
	if n.core.cluster == n.votersOf && (is.Forced < was.Forced || is.Forced == was.Forced && is.Number < was.Number) {
		w.fail("MB6", "%s: voters go back from version %v to %v", n.name(), was, is)
	}
	if n.core.cluster == n.votersOf && is.Number > was.Number {
		w.checkEP7(n, numberVoters, was.Number, is.Number)
	}
	if n.core.cluster == n.votersOf && is.Forced > was.Forced {
		w.checkEP7(n, numberForced, was.Forced, is.Forced)
	}
	n.knownVoters, n.votersOf = is, n.core.cluster
}

// checkR14: R14, a node that is reset is of no voters any more, and those
// who vote instead can decide.
func (w *simWorld) checkR14(n *simNode) {
	l := &w.ledger
	if l.imposed || n.was.cluster.IsZero() || n.was.alone() {
		return
	}
	newest, decided := &n.was.voters, l.newest[n.was.cluster]
	l.wiped[n.was.member] = true
	switch {
	case newest.hasMember(n.was.member):
		w.fail("R14", "%s is reset, and votes in version %v", n.name(), newest.Version)
		return
	case newest.Version != decided.Version:
		l.reach("reset while the voters change")
		if decided.hasMember(n.was.member) {
			w.fail("R14", "%s is reset, and is to vote in version %v", n.name(), decided.Version)
		}
		return // it could not know more
	}
	k := 0
	for _, o := range w.nodes {
		if newest.hasMember(o.was.member) && o.was.cluster == n.was.cluster && o.hasStart(newest.ID) {
			k++
		}
	}
	if k <= len(newest.Members)/2 {
		w.fail("R14", "%s is reset, and %d voters of %d could decide", n.name(), k, len(newest.Members))
	}
}

// hasStart reports whether a node has a START on disk, where a restart would find it.
func (n *simNode) hasStart(id uint64) bool {
	var current startValue
	var saved startCell
	return n.onDisk(cellKey{kind: cellCurrent}, &current) && current.ID == id || n.onDisk(cellKey{kind: cellStart}, &saved) && saved.Value.ID == id
}

// onDisk reads what a node has on disk of a cell, and reports whether there is any.
func (n *simNode) onDisk(k cellKey, v any) bool {
	b := n.disk[k]
	return b != nil && decodeValue(b, v) == nil
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

func (w *simWorld) checkMB2(f *simFlight, to *simNode, b simForeign) {
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

// lookAnew has the whole table of a node looked at next, whether its digests have changed
// or not: 16384 slots are too many to do so for all each time.
func (n *simNode) lookAnew() { n.lastBuckets = [numBuckets]uint64{} }

// checkAll looks at all that there is, but for slots of which the digests are what they were.
func (w *simWorld) checkAll() {
	for _, n := range w.nodes {
		if !n.up {
			continue
		}
		c := n.core
		w.checkTable(n)
		w.checkPeers(n)
		w.checkEP6(n)
		w.checkMB4(n)
		w.checkLV8(n)
		if len(c.stages) > stagesMax || len(c.ops) > commandsMax || len(c.forwarded) > commandsMax {
			w.fail("bounds", "%s: %d stages, %d operations, %d forwarded", n.name(), len(c.stages), len(c.ops), len(c.forwarded))
		}
	}
}

// checkEP6: EP6, whoever leads a shard under a lease has won it last: no primary that was
// failed over comes back by an older epoch, or by an equal number. Where the next one
// has won by force the lease of the one before runs on.
func (w *simWorld) checkEP6(n *simNode) {
	c, l := n.core, n.core.lead
	if c.cluster.IsZero() || l == nil || n.paused > w.now || n.local() >= c.servesUntil() || w.ledger.imposed {
		return
	}
	won := w.ledger.newestWon[simGiverKey{c.cluster, c.self.Shard}]
	if l.epoch.less(won.epoch) && !(won.force && w.now-won.at <= w.nt) {
		w.fail("EP6", "%s leads %s under %v, won under %v %v ago", n.name(), c.self.Shard.short(), l.epoch, won.epoch, w.now-won.at)
	}
}

// checkMB4: MB4, a node has failed for another only if a majority of the
// voters has said so, each counted once.
func (w *simWorld) checkMB4(n *simNode) {
	c := n.core
	if c.cluster.IsZero() {
		return
	}
	for _, p := range c.peers.ordered {
		if p.State == forgotten || !c.silentHere(p) || !c.failed(p) {
			continue
		}
		w.ledger.reach("failed")
		k := 0
		for _, m := range c.table.voters.Members {
			v := c.peers.get(m.ID)
			said := v != nil && slices.Contains(w.ledger.silent[simSilentKey{m.ID, v.silent.Starts, v.silent.Counter}], p.ID)
			if said || m.ID == c.id {
				k++
			}
		}
		if k <= len(c.table.voters.Members)/2 {
			w.fail("MB4", "%s finds that %s has failed, %d of %d voters say so", n.name(), p.ID.short(), k, len(c.table.voters.Members))
		}
	}
}

// checkMB5: MB5, a node that was stopped itself finds nobody silent for that.
// It allows for half a NodeTimeout, and here for one stop.
func (w *simWorld) checkMB5(n *simNode) {
	c := n.core
	if slices.Equal(c.silent, n.lastSilent) {
		return
	}
	was := n.lastSilent
	n.lastSilent = slices.Clone(c.silent)
	if w.faults.lateTicks || w.now-n.stopBefore < 3*w.nt || w.now-n.bootAt < 3*w.nt {
		return // what it allows for is used up
	}
	for _, id := range c.silent {
		p := c.peers.get(id)
		if p == nil || slices.Contains(was, id) || n.local()-p.firstSeen < 3*w.nt {
			continue
		}
		heard := n.heard[id]
		stopped := min(w.nt/2, max(0, n.stopEnd-max(n.stopAt, heard)))
		if ran := w.now - heard - stopped; ran < c.silentAfter(p)*9/10-w.nt/10 {
			w.fail("MB5", "%s finds %s silent, which it has heard %v ago, and was stopped from %v to %v", n.name(), id.short(), w.now-heard, n.stopAt, n.stopEnd)
		}
	}
}

// noteHeard notes that a frame has shown that its sender lives.
func (n *simNode) noteHeard(from NodeID, before time.Duration) {
	if p := n.core.peers.get(from); p != nil && p.heardAt > before {
		n.heard[from] = n.w.now
	}
}

func (n *simNode) heardAt(from NodeID) time.Duration {
	if p := n.core.peers.get(from); p != nil {
		return p.heardAt
	}
	return never
}

// checkMB3Alarm: MB3, who says that there are two of one has a reason.
func (w *simWorld) checkMB3Alarm(n *simNode, e Event) {
	n.alarmed = n.alarmed || e.Node == n.core.id
	k := 0
	for _, o := range w.nodes {
		if o.was.member.ID == e.Node {
			k++
		}
	}
	if k < 2 {
		w.fail("MB3", "%s says that there are two of %s", n.name(), e.Node.short())
	}
}

// checkMB3Twins: MB3, of two live instances of one node both say so.
func (w *simWorld) checkMB3Twins() {
	for _, n := range w.nodes {
		for _, o := range w.nodes {
			if n != o && n.up && o.up && n.core.id == o.core.id && !n.alarmed {
				w.fail("MB3", "%s and %s are both %s, and %s does not say so", n.name(), o.name(), n.core.id.short(), n.name())
			}
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
		if !n.lives() || n.core.cluster.IsZero() || n.core.self.State != present {
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

// unsettled says what is not as it should be in a calm world, or "". The marks of slots
// that operators have left half moved stay, as in Redis: they say where keys are looked
// for, and nothing about who owns the slot, of which all agree all the same.
func (w *simWorld) unsettled() string {
	for _, g := range w.groups() {
		if !g.mayDecide() || w.ledger.imposed && g.startLost() {
			continue // a majority of its voters is gone for good
		}
		if s := g.unsettled(); s != "" {
			return s
		}
		if s := w.checkMG6(&g); s != "" {
			return s
		}
	}
	return w.checkLV6Formed()
}

// checkLV6Formed: LV6, who knows each other and has all that it takes forms a cluster.
func (w *simWorld) checkLV6Formed() string {
	for _, n := range w.nodes {
		if !n.lives() || !n.core.cluster.IsZero() {
			continue
		}
		formers := n.core.formers()
		all := len(formers) > 0
		for _, m := range formers {
			i := slices.IndexFunc(w.nodes, func(o *simNode) bool { return o.lives() && o.core.id == m.ID && o.core.key == m.Key })
			all = all && i >= 0 && w.nodes[i].core.cluster.IsZero() && sameMembers(w.nodes[i].core.formers(), formers)
		}
		if all {
			return fmt.Sprintf("LV6: %s and %d others have not formed", n.name(), len(formers)-1)
		}
	}
	return ""
}

// startLost reports whether nobody holds the START of the newest voters: an
// operator who has imposed them has lost it before anybody had it, and has to
// impose others.
func (g *simGroup) startLost() bool {
	newest := g.newestVoters()
	return !slices.ContainsFunc(g.nodes, func(n *simNode) bool {
		v := &n.core.vote
		return v.current != nil && v.current.ID == newest.ID || v.startValue != nil && v.startValue.ID == newest.ID
	})
}

func (g *simGroup) newestVoters() *voterSet {
	newest := &g.nodes[0].core.table.voters
	for _, n := range g.nodes {
		if v := &n.core.table.voters; newest.Version.less(v.Version) {
			newest = v
		}
	}
	return newest
}

// mayDecide reports whether a majority of the newest voters is there.
func (g *simGroup) mayDecide() bool {
	newest := g.newestVoters()
	k := 0
	for _, m := range newest.Members {
		if slices.ContainsFunc(g.nodes, func(n *simNode) bool { return n.core.id == m.ID && n.core.key == m.Key }) {
			k++
		}
	}
	return k > len(newest.Members)/2
}

func (g *simGroup) unsettled() string {
	for _, check := range []func() string{g.checkLV3, g.checkLV6, g.checkR3, g.checkLV3Voters, g.checkLV1, g.checkRP11, g.checkLV5, g.checkRP4Calm, g.checkLV9} {
		if s := check(); s != "" {
			return s
		}
	}
	return ""
}

// checkLV3: LV3, all know the same table and the same members, and nothing is
// being handed over any more.
func (g *simGroup) checkLV3() string {
	first := g.nodes[0].core
	for _, n := range g.nodes {
		switch c := n.core; {
		case c.table.sum != first.table.sum:
			return fmt.Sprintf("LV3: %s and %s have different tables", n.name(), g.nodes[0].name())
		case c.peers.sum != first.peers.sum:
			return fmt.Sprintf("LV3: %s and %s know different members", n.name(), g.nodes[0].name())
		case c.lead != nil && len(c.lead.gives) > 0:
			return fmt.Sprintf("LV3: %s has a hand-over under way", n.name())
		}
	}
	return ""
}

// checkLV6: LV6, nothing waits for an operator.
func (g *simGroup) checkLV6() string {
	for _, n := range g.nodes {
		switch c := n.core; {
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
		}
	}
	return ""
}

// checkR3: R3, a stand for a primary's silence is withdrawn when it is heard.
func (g *simGroup) checkR3() string {
	for _, n := range g.nodes {
		c := n.core
		if c.stand != nil && c.stand.byItself() && c.lead == nil && slices.ContainsFunc(g.nodes, func(p *simNode) bool {
			return p != n && p.core.self.Shard == c.self.Shard && p.core.leaseHeld()
		}) {
			return fmt.Sprintf("R3: %s stands for %s, whose primary holds its lease", n.name(), c.self.Shard.short())
		}
	}
	return ""
}

// checkMG6: MG6, in calm every slot of a cluster has an owner in its table, unless an
// operator has released it.
func (w *simWorld) checkMG6(g *simGroup) string {
	if w.ledger.imposed {
		return ""
	}
	table := &g.nodes[0].core.table
	for i := range NumSlots {
		if slot := Slot(i); table.slots.at(slot).shard.IsZero() && w.ledger.resets[simSlotKey{g.id, slot, 0}] == 0 {
			return fmt.Sprintf("MG6: slot %d has no owner, and nobody has released it", slot)
		}
	}
	return ""
}

// checkLV3Voters: LV3, every voter has the record of every primary, so that any majority
// of them leases it. One that has been replaced by a member which is gone for good
// wins its shard back from nobody, where that is strict.
func (g *simGroup) checkLV3Voters() string {
	for _, n := range g.nodes {
		l := n.core.lead
		if l == nil || !l.opened || g.dead(n.core.self.Shard) {
			continue
		}
		for _, v := range g.nodes {
			if !v.core.active() {
				continue
			}
			if sh := v.core.vote.shards[n.core.self.Shard]; sh == nil || sh.record == nil || sh.record.Epoch != l.epoch {
				return fmt.Sprintf("LV3: voter %s is behind the record of %s", v.name(), n.name())
			}
		}
	}
	return ""
}

// checkLV1: LV1, each slot that has a live owner is served by it alone, and one whose
// owner is gone by a member that was in sync.
func (g *simGroup) checkLV1() string {
	var served SlotSet
	for _, n := range g.nodes {
		c := n.core
		if n.local() >= c.servesUntil() && c.ownsSlots() && !g.dead(c.self.Shard) {
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
		if g.dead(shard) {
			continue
		}
		if slices.ContainsFunc(g.nodes, func(n *simNode) bool { return n.core.id == owner && n.core.self.Shard == shard }) || g.electable(shard) {
			return fmt.Sprintf("LV1: slot %d of %s is not served", slot, owner.short())
		}
	}
	return ""
}

// dead reports whether a strict shard has no member left that holds every
// acknowledged write: an operator has to say what is to become of it.
func (g *simGroup) dead(shard ShardID) bool {
	newest := g.newestRecord(shard)
	return newest != nil && newest.Strict && !g.electable(shard)
}

// electable reports whether a member of a shard lives that its newest record names.
func (g *simGroup) electable(shard ShardID) bool {
	newest := g.newestRecord(shard)
	return newest != nil && slices.ContainsFunc(g.nodes, func(n *simNode) bool {
		return n.core.self.Shard == shard && newest.electable(n.core.member())
	})
}

func (g *simGroup) newestRecord(shard ShardID) *record {
	var newest *record
	for _, n := range g.nodes {
		if v := n.core.vote.shards[shard]; v != nil && v.record != nil && (newest == nil || v.record.newer(newest)) {
			newest = v.record
		}
	}
	return newest
}

// eachReplica looks at each replica in a calm world whose primary is there, until check
// says something.
func (g *simGroup) eachReplica(check func(n, p *simNode) string) string {
	for _, n := range g.nodes {
		c := n.core
		if !c.isReplica(c.self) || g.dead(c.self.Shard) {
			continue
		}
		i := slices.IndexFunc(g.nodes, func(p *simNode) bool {
			return p.core.id == c.table.primary(c.self.Shard) && p.core.self.Shard == c.self.Shard
		})
		if i < 0 {
			continue // forgotten, and back in another shard if at all: nobody leads this one, see checkLV1
		}
		if s := check(n, g.nodes[i]); s != "" {
			return s
		}
	}
	return ""
}

// checkRP11: RP11, a replica has what it has from the primary itself.
func (g *simGroup) checkRP11() string {
	return g.eachReplica(func(n, p *simNode) string {
		if n.core.role.primary == p.core.id && p.core.role.primary.IsZero() {
			return ""
		}
		return fmt.Sprintf("RP11: %s follows %s, and its primary %s follows %s", n.name(), n.core.role.primary.short(), p.name(), p.core.role.primary.short())
	})
}

// checkLV5: LV5, every replica is in sync and has what its primary has, but for what is
// on its way.
func (g *simGroup) checkLV5() string {
	return g.eachReplica(func(n, p *simNode) string {
		has, all := &n.replica.log, &p.replica.log
		if all.end == 0 && has.end == 0 {
			return "" // a shard in which nothing was ever written has no log to be level with
		}
		if at, ok := all.past.shared(all.end, has.past, has.end); !ok || at != has.end || at+100 < all.end {
			return fmt.Sprintf("LV5: %s is not where its primary %s is: %v of %v", n.name(), p.name(), has.position(), all.position())
		}
		if l := p.core.lead; l != nil && l.opened && !slices.Contains(l.inSync, n.core.member()) {
			return fmt.Sprintf("LV5: %s is not in sync with %s", n.name(), p.name())
		}
		return ""
	})
}

// checkRP4Calm: RP4, a replica has the data of its primary, or that of a moment ago.
func (g *simGroup) checkRP4Calm() string {
	return g.eachReplica(func(n, p *simNode) string {
		if n.replica.log.end == 0 && p.replica.log.end == 0 {
			return ""
		}
		if n.replica.lastID == p.replica.lastID && n.replica.log.end == p.replica.log.end && !maps.Equal(n.store.values, p.store.values) {
			return fmt.Sprintf("RP4: %s and its primary %s have one log, and other data", n.name(), p.name())
		}
		for slot, d := range n.store.values {
			have := p.store.values[slot]
			for key, v := range d {
				if !descends(have[key], v) {
					return fmt.Sprintf("RP4: %s has %v of slot %d, its primary %s has %v", n.name(), v.short(), slot, p.name(), have[key].short())
				}
			}
		}
		return ""
	})
}

// checkRP1Unclean: RP1, a shard is opened by a member that was not in sync only if it
// is not strict, or imposed voters do not know who was; what may be lost is said.
func (w *simWorld) checkRP1Unclean(n *simNode, e Event) {
	w.ledger.reach("nobody in sync left")
	if w.ack > 0 && !w.ledger.imposed {
		w.fail("RP1", "%s opens %s, which is strict, and was not in sync", n.name(), e.Shard.short())
	}
}
