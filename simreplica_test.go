package slotmesh

import (
	"maps"
	"slices"
	"time"
)

// The log of a shard in the simulator: a primary appends what it does to its
// store, its replicas ask for what they lack, and copy everything where that is
// not there any more. What a replica says that it has is on its disk, or in its
// memory, by then.

type simEntryKind uint8

const (
	simPut      simEntryKind = iota // a write
	simOwn                          // the slot is served under a move, with this data
	simStage                        // data of a hand-over
	simUnstage                      // a hand-over has been cancelled
	simDrop                         // the slot's data has gone
	simImport                       // keys of the slot come one by one, right under a move
	simRestore                      // one has come
	simMigrated                     // one has gone
	simMarked                       // a mark has been put on the slot, or taken off
)

// simEntry is one entry of a log.
type simEntry struct {
	kind   simEntryKind
	key    uint8
	slot   Slot
	value  *simWrite
	data   simData
	move   uint64
	staged *simStaged
	job    uint64
	mark   *SlotMark

	epoch  Epoch // in which it was appended
	id     uint64
	behind uint64 // the entry before it
}

func (s *simStore) apply(e simEntry) {
	switch e.kind {
	case simPut:
		s.put(e.slot, e.key, e.value)
	case simRestore:
		s.put(e.slot, e.key, e.value)
	case simMigrated:
		s.put(e.slot, e.key, nil)
	case simImport:
		s.imported[e.slot] = e.move
	case simMarked:
		delete(s.marks, e.slot)
		if e.mark != nil {
			s.marks[e.slot] = *e.mark
		}
	case simOwn:
		s.moves[e.slot] = e.move
		s.set(e.slot, e.data)
		delete(s.imported, e.slot)
	case simStage:
		s.staged[simSlotMove{e.slot, e.move}] = *e.staged
		if _, imported := s.imported[e.slot]; imported {
			s.set(e.slot, simData{})
			delete(s.imported, e.slot)
		}
	case simUnstage:
		maps.DeleteFunc(s.staged, func(_ simSlotMove, d simStaged) bool { return d.job == e.job })
	case simDrop:
		delete(s.values, e.slot)
		delete(s.moves, e.slot)
		delete(s.imported, e.slot)
	}
}

// set makes d what there is of a slot.
func (s *simStore) set(slot Slot, d simData) {
	if d == (simData{}) {
		delete(s.values, slot)
	} else {
		s.values[slot] = d
	}
}

// put makes v the value of a key; nil: there is no such key.
func (s *simStore) put(slot Slot, key uint8, v *simWrite) {
	d := s.values[slot]
	d[key] = v
	s.set(slot, d)
}

func (s *simStore) clone() simStore {
	return simStore{maps.Clone(s.values), maps.Clone(s.moves), maps.Clone(s.staged), maps.Clone(s.imported), maps.Clone(s.marks), map[uint64]bool{}}
}

// simReplica is a node's part in its shard's log.
type simReplica struct {
	inc     uint64 // incarnation of the store
	copy    bool   // it is whole
	shard   ShardID
	log     shardLog
	entries []simEntry // the last ones
	last    map[Slot]uint64
	lastID  uint64 // of the last entry that the store has
	version uint64 // of the role that is carried out
	asked   uint64 // counts the questions to the primary
	waiting bool   // for an answer to the last one
	due     bool   // it will ask
	commits []simCommit
	says    []simSay
	moved   map[incarnate]time.Duration // when a member that is waited for got further last, or had everything
	half    bool                        // the store is half a copy: RP6
	copying *simPull                    // what is taking the place of the store's
	follows simFollows                  // whom it follows
	caught  time.Duration               // as heldCopy
	asOf    time.Duration               // the same
	heard   map[NodeID]simHeard         // what replicas have said
	heardIn Epoch                       // in which epoch
	busy    time.Duration               // when it led nothing last, or had a RECORD under way: one set is proposed at a time
}

// simCommit is to be done once every member has the log up to an offset.
type simCommit struct {
	offset uint64
	epoch  Epoch
	do     func()
}

// bootReplica is what of the store a new process finds.
func (n *simNode) bootReplica() {
	r := &n.replica
	if n.store.values == nil || n.w.volatile {
		n.store = newSimStore()
		*r = simReplica{inc: n.w.r.Uint64() | 1}
	}
	r.log.follow()
	r.follows, r.caught, r.asOf, r.heard, r.heardIn = simFollows{}, 0, 0, nil, Epoch{}
	r.version, r.waiting, r.due, r.commits, r.says, r.copying = 0, false, false, nil, nil, nil
	r.last, r.moved = map[Slot]uint64{}, map[incarnate]time.Duration{}
}

func (n *simNode) wipeStore() {
	n.store = newSimStore()
	n.replica.log, n.replica.entries, n.replica.lastID, n.replica.version = shardLog{}, nil, 0, 0
	n.replica.copying, n.replica.half = nil, false
}

// forgetLog makes this node's log one that shares nothing with any other: whoever
// follows it has to copy what is there.
func (r *simReplica) forgetLog() { r.log.past, r.entries, r.lastID = nil, nil, 0 }

// log does something to the store, and to those of the replicas.
func (n *simNode) log(e simEntry) {
	n.store.apply(e)
	r := &n.replica
	if r.log.epoch == (Epoch{}) {
		r.forgetLog()
		r.copying = nil // it is none any more
		return
	}
	n.w.ledger.entries++
	for _, m := range n.core.role.waits {
		if r.log.acks[m] == r.log.end {
			r.moved[m] = n.w.now
		}
	}
	e.id, e.epoch, e.behind = n.w.ledger.entries, r.log.epoch, r.lastID
	r.lastID = e.id
	r.last[e.slot] = r.log.append()
	if e.kind == simPut {
		e.value.log = simEntryKey{n.core.cluster, n.core.self.Shard, e.epoch, r.log.end}
	}
	n.keep(e)
	n.w.noteEntry(n, r.log.end, e)
	for _, o := range n.w.nodes {
		if o.up && o.core.role.primary == n.core.id {
			o.askSoon()
		}
	}
}

// keep remembers an entry for those that have not got it yet.
func (n *simNode) keep(e simEntry) {
	r := &n.replica
	r.entries = append(r.entries, e)
	if most := max(8, n.w.faults.backlog); len(r.entries) > 2*most {
		r.entries = slices.Clone(r.entries[len(r.entries)-most:])
	}
}

// mayWrite reports whether enough members are in sync for a write that wants so many.
func (n *simNode) mayWrite(want int) bool {
	return n.core.cluster.IsZero() || n.core.role.peers >= max(n.w.ack, want)
}

// owes reports whether a reply waits for replicas still.
func (n *simNode) owes(op *simPending) bool {
	if n.w.ack == 0 && op.want == 0 || op.unformed || n.w.wrong == wrongEarly {
		return false
	}
	return !n.replica.log.enough(op.offset, n.w.ack > 0, op.want, n.haveFor(op.offset, op.want)) || op.wrote && !n.mayWrite(0)
}

// seen is the offset of what a request on a slot has seen.
func (n *simNode) seen(slot Slot) uint64 { return max(n.replica.last[slot], n.replica.log.inherited) }

// onceCommitted calls do when every member has the log up to an offset.
func (n *simNode) onceCommitted(offset uint64, do func()) {
	r := &n.replica
	if r.log.epoch == (Epoch{}) || r.log.committed() >= offset {
		do()
		return
	}
	r.commits = append(r.commits, simCommit{offset, r.log.epoch, do})
}

func (n *simNode) settleCommits() {
	r := &n.replica
	var ready []simCommit
	r.commits = slices.DeleteFunc(r.commits, func(c simCommit) bool {
		if c.epoch == r.log.epoch && c.offset > r.log.committed() {
			return false
		}
		if c.epoch == r.log.epoch {
			ready = append(ready, c)
		}
		return true
	})
	for _, c := range ready {
		c.do()
	}
}

// followRole does what the core says is to be done with the log.
func (n *simNode) followRole() {
	c, r := n.core, &n.replica
	if l := c.lead; l == nil || !l.claims() || l.recording != nil {
		r.busy = n.w.now
	}
	r.inc, r.copy = c.self.Store, c.holdsCopy
	if r.version == c.role.version {
		return
	}
	r.version = c.role.version
	if f := (simFollows{c.role.shard, c.role.primary}); f != r.follows {
		r.follows, r.caught, r.asOf = f, 0, 0
	}
	if q := r.copying; q != nil && (r.shard != c.role.shard || q.following != c.role.primary) {
		r.copying = nil
	}
	if r.shard != c.role.shard {
		r.shard = c.role.shard
		r.log, r.entries, r.lastID = shardLog{}, nil, 0
	}
	switch {
	case c.role.lead == (Epoch{}):
		r.log.follow()
	case !r.log.leads(c.role.lead):
		r.log.lead(c.role.lead)
		r.last, r.moved = map[Slot]uint64{}, map[incarnate]time.Duration{}
	}
	r.asked++
	r.waiting = false
	for _, m := range c.role.waits {
		if !slices.ContainsFunc(r.log.waits, func(w logWait) bool { return w.incarnate == m }) {
			r.moved[m] = n.w.now
		}
	}
	r.log.waitFor(c.role.waits)
	if !c.role.primary.IsZero() {
		n.askSoon()
	}
	n.w.after(0, n.tellCaughtUp)
}

// tellCaughtUp says which members have all that is acknowledged.
func (n *simNode) tellCaughtUp() {
	if !n.up {
		return
	}
	for _, m := range slices.Clone(n.core.role.waits) {
		if e := n.replica.log.epoch; n.replica.log.caughtUp(m) {
			n.do(func(s *state, now time.Duration) output { return s.hasCaughtUp(now, e, m) })
		}
	}
	n.settleCommits()
}

// askSoon asks the primary for what this replica lacks.
func (n *simNode) askSoon() {
	r := &n.replica
	if r.due {
		return
	}
	r.due = true
	run := n.run
	n.w.after(n.w.between(100*time.Microsecond, 2*time.Millisecond), func() {
		if n.up && n.run == run {
			r.due = false
			n.ask()
		}
	})
}

// simPull is a replica's question, and the answer.
type simPull struct {
	from    *simNode
	run     int32
	asked   uint64
	shard   ShardID
	primary NodeID
	past    history
	end     uint64
	whole   bool
	sent    time.Duration // by the replica's clock

	epoch   Epoch
	entries []simEntry
	all     *simStore // instead of entries
	lastID  uint64    // the last entry in it
	newPast history
	newEnd  uint64
	news    logNews
	more    bool

	following NodeID // whom the replica followed when all began to take the place of what it had
}

func (n *simNode) ask() {
	w, c, r := n.w, n.core, &n.replica
	if c.role.primary.IsZero() || r.waiting || r.copying != nil {
		return
	}
	r.asked++
	r.waiting = true
	q := &simPull{from: n, run: n.run, asked: r.asked, shard: c.role.shard, primary: c.role.primary,
		past: slices.Clone(r.log.past), end: r.log.end, whole: r.copy, sent: n.local()}
	w.after(w.nt/5, func() { // no answer: ask again
		if n.up && n.run == q.run && r.asked == q.asked && r.waiting {
			r.waiting = false
			n.ask()
		}
	})
	w.carry(n, w.nodeOf(q.primary), q, func(p *simNode) { p.answer(q) })
}

// carry brings what, a *simPull or a simSay, from a node to another over a
// connection of its own.
func (w *simWorld) carry(from, to *simNode, what any, do func(to *simNode)) {
	if to == nil {
		return
	}
	run := to.run
	d := w.between(100*time.Microsecond, time.Millisecond)
	if w.chance(w.faults.slow) {
		d = w.between(0, w.faults.slowBy)
	}
	var arrive func()
	arrive = func() {
		if !to.up || to.run != run || w.isCut(from, to) || w.isCut(to, from) {
			return
		}
		if to.paused > w.now {
			w.after(to.paused-w.now, arrive)
			return
		}
		if end := w.hung[[2]*simNode{from, to}]; end > w.now {
			w.after(end-w.now, arrive)
			return
		}
		for _, i := range sortedKeys(w.logFilters) {
			if !w.logFilters[i](from, to, what, arrive) {
				return
			}
		}
		w.mixHash(uint64(to.index)<<8 | 0xff)
		do(to)
	}
	w.after(d, arrive)
}

func (w *simWorld) nodeOf(id NodeID) *simNode {
	i := slices.IndexFunc(w.nodes, func(n *simNode) bool { return n.up && n.core.id == id })
	if i < 0 {
		return nil
	}
	return w.nodes[i]
}

const simBatch = 64

// answer sends a replica the entries that it lacks, or everything.
func (n *simNode) answer(q *simPull) {
	w, r := n.w, &n.replica
	if r.log.epoch == (Epoch{}) || n.core.role.shard != q.shard || n.core.cluster != q.from.clusterNow() {
		return
	}
	q.epoch = r.log.epoch
	from, drop, ok := r.log.resume(q.past, q.end)
	if w.wrong == wrongResume {
		from, drop, ok = min(q.end, r.log.end), 0, true
	}
	base := r.log.end - uint64(len(r.entries))
	if q.whole && ok && drop == 0 && from >= base {
		to := min(r.log.end, from+simBatch)
		q.entries = slices.Clone(r.entries[from-base : to-base])
		q.newPast, q.newEnd, q.more = r.log.past.upTo(to), to, to < r.log.end
		q.news = n.newsFor(q)
		m := incarnate{q.from.core.id, q.from.core.self.Store}
		if r.log.end-from <= simBatch {
			n.do(func(s *state, now time.Duration) output { return s.nearlyInSync(now, m, from) })
		}
		w.carry(n, q.from, q, func(to *simNode) { to.take(q) })
		return
	}
	if drop > 0 && ok {
		w.ledger.reach("tail cut")
	}
	run := n.run
	q.newPast, q.newEnd, q.lastID = slices.Clone(r.log.past), r.log.end, r.lastID
	w.after(w.between(time.Millisecond, w.nt/8), func() {
		leads := r.log.leads(q.epoch)
		if !n.up || n.run != run || !leads && w.wrong != wrongDeposed {
			return
		}
		all := n.store.clone()
		if w.wrong == wrongEmpty {
			all = newSimStore()
		}
		q.all = &all
		if leads {
			q.newPast, q.newEnd, q.lastID = slices.Clone(r.log.past), r.log.end, r.lastID
		}
		w.ledger.reach("full sync")
		w.carry(n, q.from, q, func(to *simNode) { to.take(q) })
	})
}

func (n *simNode) clusterNow() ClusterID {
	if !n.up {
		return ClusterID{}
	}
	return n.core.cluster
}

// take makes the store what a primary has sent. What is late by then, of a
// primary that has been replaced, is for the core to refuse: a driver may have it
// half read when its role changes.
func (n *simNode) take(q *simPull) {
	w, c, r := n.w, n.core, &n.replica
	late := r.asked != q.asked || !r.waiting || c.role.primary != q.primary
	if n.run != q.run || c.role.shard != q.shard || r.copying != nil || late && !q.epoch.less(c.promise) {
		return
	}
	if !late {
		r.waiting = false
	}
	ok := false
	n.do(func(s *state, now time.Duration) output {
		var out output
		out, ok = s.takes(now, q.shard, q.epoch)
		return out
	})
	switch {
	case late && !ok:
		return
	case q.all == nil && (r.log.end != q.end || r.log.past.last() != q.past.last()):
		if !late {
			n.askSoon() // it has changed something on its own meanwhile
		}
		return
	case !ok || !late && r.asked != q.asked:
		n.askSoon()
		return
	}
	if q.all != nil {
		w.checkRP7(n, q)
		n.replace(q)
		return
	}
	for i, e := range q.entries {
		w.checkRP2(n, q.end+uint64(i)+1, e)
		w.checkRP3(n, e)
		n.store.apply(e)
		r.lastID = e.id
		n.keep(e)
		if e.kind == simMarked {
			n.do(func(s *state, now time.Duration) output { return s.followMark(now, e.slot, e.mark) })
		}
	}
	r.log.take(q.newPast, q.newEnd)
	if !late {
		n.noteNews(q.newEnd, &q.news)
	}
	w.noteHad(n, q.shard, q.epoch, q.newEnd)
	w.checkRP4(n, q)
	n.sayHave(q.primary, q.epoch, incarnate{c.id, c.self.Store}, q.newEnd)
	if q.more {
		n.askSoon()
		return
	}
	asked := r.asked
	w.after(w.nt/10, func() { // that it is there is news, too
		if n.up && n.run == q.run && r.asked == asked {
			n.ask()
		}
	})
}

// replace puts a copy in place of what this node holds, slot by slot: from before the
// first on it is another member, without a copy and of no log, and only after the last
// a whole one. Before that its process may end, or its role change.
func (n *simNode) replace(q *simPull) {
	w, r := n.w, &n.replica
	inc, ok := uint64(0), false
	n.do(func(s *state, now time.Duration) (out output) {
		out, inc, ok = s.replaces(now, q.shard, q.epoch)
		return out
	})
	if !ok {
		n.askSoon()
		return
	}
	if w.wrong != wrongKept {
		r.forgetLog()
	}
	q.following = n.core.role.primary
	r.copying, r.half, r.caught, r.asOf = q, true, 0, 0
	if slots := sortedKeys(q.all.values); len(slots) > 0 {
		n.store.takeUpTo(slots[w.r.IntN(len(slots))], q.all)
	}
	takes := w.nt / 20
	if w.wrong == wrongHalf {
		takes = w.nt // so that it is seen
		n.do(func(s *state, now time.Duration) (out output) {
			out, _ = s.hasReplaced(now, inc, q.all.marks)
			return out
		})
		n.sayHave(q.primary, q.epoch, incarnate{n.core.id, inc}, q.newEnd)
	}
	run := n.run
	w.after(w.between(100*time.Microsecond, takes), func() {
		if !n.up || n.run != run {
			return
		}
		if r.copying != q {
			w.ledger.reach("half a copy")
			n.askSoon()
			return
		}
		r.copying, r.half = nil, false
		n.store = q.all.clone()
		r.entries, r.lastID = nil, q.lastID
		r.log.take(q.newPast, q.newEnd)
		w.noteHad(n, q.shard, q.epoch, q.newEnd)
		n.do(func(s *state, now time.Duration) (out output) {
			out, ok = s.hasReplaced(now, inc, q.all.marks)
			return out
		})
		if ok {
			n.sayHave(q.primary, q.epoch, incarnate{n.core.id, inc}, q.newEnd)
		}
		n.askSoon()
	})
}

// takeUpTo makes the store another one up to a slot.
func (s *simStore) takeUpTo(border Slot, from *simStore) {
	maps.DeleteFunc(s.values, func(slot Slot, _ simData) bool { return slot <= border })
	maps.DeleteFunc(s.moves, func(slot Slot, _ uint64) bool { return slot <= border })
	maps.DeleteFunc(s.imported, func(slot Slot, _ uint64) bool { return slot <= border })
	maps.DeleteFunc(s.staged, func(k simSlotMove, _ simStaged) bool { return k.slot <= border })
	other := from.clone()
	maps.DeleteFunc(other.values, func(slot Slot, _ simData) bool { return slot > border })
	maps.DeleteFunc(other.moves, func(slot Slot, _ uint64) bool { return slot > border })
	maps.DeleteFunc(other.imported, func(slot Slot, _ uint64) bool { return slot > border })
	maps.DeleteFunc(other.staged, func(k simSlotMove, _ simStaged) bool { return k.slot > border })
	maps.Copy(s.values, other.values)
	maps.Copy(s.moves, other.moves)
	maps.Copy(s.staged, other.staged)
	maps.Copy(s.imported, other.imported)
}

// sayHave acknowledges, once what this replica has promised is saved.
func (n *simNode) sayHave(primary NodeID, e Epoch, m incarnate, end uint64) {
	n.replica.says = append(n.replica.says, simSay{n.core.saveSeq, primary, e, m, end, 0})
	n.say()
}

// simSay is an acknowledgement that waits for a save.
type simSay struct {
	after   uint64
	primary NodeID
	epoch   Epoch
	member  incarnate
	end     uint64
	at      time.Duration // when it is sent
}

// say sends the acknowledgements whose save has completed.
func (n *simNode) say() {
	w, r := n.w, &n.replica
	i := 0
	for ; i < len(r.says) && r.says[i].after <= n.core.savedSeq; i++ {
		s := r.says[i]
		s.at = w.now
		w.carry(n, w.nodeOf(s.primary), s, func(p *simNode) {
			if p.replica.log.leads(s.epoch) {
				if s.end > p.replica.log.acks[s.member] {
					p.replica.moved[s.member] = w.now
				}
				p.replica.log.acked(s.member, s.end)
				p.replica.noteHeard(&s, w.now, w.nt)
				p.tellCaughtUp()
			}
		})
	}
	r.says = slices.Delete(r.says, 0, i)
}

// pause lets no request in, and says when a replica has everything.
func (n *simNode) pause(t pauseTell) {
	w, run := n.w, n.run
	if t.node.Node.IsZero() {
		return
	}
	w.after(w.between(w.freezeFor, w.freezeFor+2*time.Millisecond), func() {
		if !n.up || n.run != run {
			return
		}
		n.pending = nil // failed
		end := n.replica.log.end
		var wait func()
		wait = func() {
			l := n.core
			if !n.up || n.run != run || l.lead == nil || l.lead.epoch != t.epoch || l.lead.consent == nil {
				return
			}
			if n.replica.log.acks[t.node] < end {
				w.after(time.Millisecond, wait)
				return
			}
			n.do(func(s *state, now time.Duration) output { return s.paused(now, t.epoch, t.node) })
		}
		wait()
	})
}

// ---- what must hold

// checkLV8: LV8, nobody is waited for without end: who is heard, lacks entries and
// gets no further is proposed to be left out. It is a little more than NodeTimeout/2
// until then, and up to as much again where the primary's own ticks are late.
func (w *simWorld) checkLV8(n *simNode) {
	l, r := n.core.lead, &n.replica
	if l == nil {
		return
	}
	if slices.ContainsFunc(l.behind, func(b laggard) bool { return b.owes > 0 }) {
		w.ledger.reach("stood still")
	}
	for _, m := range n.core.role.waits {
		if still := w.now - max(r.moved[m], r.busy, n.stopEnd); r.log.acks[m] < r.log.end && still > w.nt*5/4 {
			w.fail("LV8", "%s waits for %s, which has got no further than %d of %d for %v", n.name(), m.Node.short(), r.log.acks[m], r.log.end, still)
		}
	}
}

type simEntryKey struct {
	cluster ClusterID
	shard   ShardID
	epoch   Epoch
	offset  uint64
}

// noteEntry remembers what a primary has appended.
func (w *simWorld) noteEntry(n *simNode, offset uint64, e simEntry) {
	w.ledger.log[simEntryKey{n.core.cluster, n.core.self.Shard, e.epoch, offset}] = e.id
}

// checkRP2: RP2, a replica's log is a prefix of the primary's, epoch by epoch.
func (w *simWorld) checkRP2(n *simNode, offset uint64, e simEntry) {
	k := simEntryKey{n.core.cluster, n.core.self.Shard, e.epoch, offset}
	if id, ok := w.ledger.log[k]; !ok || id != e.id {
		w.fail("RP2", "%s takes entry %d at offset %d of epoch %v, appended there was %d", n.name(), e.id, offset, e.epoch, id)
	}
}

// checkRP3: RP3, a replica goes on where its own log is the beginning of its
// primary's: each entry comes behind the one behind which it was appended.
func (w *simWorld) checkRP3(n *simNode, e simEntry) {
	if e.behind != n.replica.lastID {
		w.fail("RP3", "%s takes entry %d behind %d, it was appended behind %d", n.name(), e.id, n.replica.lastID, e.behind)
	}
}

// checkRP4: RP4, a replica that is where its primary is has the same data.
func (w *simWorld) checkRP4(n *simNode, q *simPull) {
	p := w.nodeOf(q.primary)
	if p == nil || !p.replica.log.leads(q.epoch) || p.replica.log.end != n.replica.log.end {
		return
	}
	if !maps.Equal(n.core.marks, n.store.marks) && n.core.broken == nil && !n.marksHeld() {
		w.fail("RP4", "%s knows the marks %v, its log has %v", n.name(), n.core.sortedMarks(), n.store.marks)
	}
	if !maps.Equal(n.store.values, p.store.values) || !maps.Equal(n.store.imported, p.store.imported) || !maps.Equal(n.store.marks, p.store.marks) {
		w.fail("RP4", "%s and its primary %s have one log, up to offset %d of %v, and other data", n.name(), p.name(), q.newEnd, q.epoch)
	}
}

// marksHeld reports whether the driver has yet to hear of a mark that was changed before
// another node led: then the log will be none, and everything copied.
func (n *simNode) marksHeld() bool {
	return slices.ContainsFunc(n.toldHeld, func(t tell) bool { m, ok := t.what.(markTell); return ok && !m.known })
}

// checkRP7: RP7, what a replica copies has every acknowledged write that the
// replica has: a primary with less wipes nobody.
func (w *simWorld) checkRP7(n *simNode, q *simPull) {
	own := n.core.table.slotsOf(q.shard)
	primary := w.nodeOf(q.primary)
	if primary == nil || primary.core.unnamed != "" || w.ledger.imposed || w.ledger.undecided(simGiverKey{n.core.cluster, q.shard}) {
		return // or it has won where nobody in sync is left, and will say so, or an operator has said what may be lost
	}
	theirs := primary.core.table.slotsOf(q.shard) // it may have given some away meanwhile
	own.Intersect(&theirs)
	unseen := primary.lostUnseen()
	for slot, d := range n.store.values {
		if unseen.Contains(slot) {
			continue
		}
		if !own.Contains(slot) && !w.ledger.many.Contains(slot) {
			continue
		}
		for key, v := range d[:w.keysOf(slot)] {
			k := simSlotKey{n.core.cluster, slot, uint8(key)}
			was := w.ledger.committed[k]
			_, leaving := w.ledger.leaving[k]
			if was == nil || leaving || w.ledger.loose[k] || !w.isAt(n, k, q.shard, own.Contains(slot)) {
				continue
			}
			if has := q.all.values[slot][key]; descends(v, was) && !descends(has, was) && !q.all.stages(k, was) && q.all.moves[slot] == n.store.moves[slot] {
				w.fail("RP7", "%s has %v of %v, which is acknowledged, and copies %v", n.name(), v.short(), k, has.short())
				return
			}
		}
	}
}

// lostUnseen is the slots of which a primary may have lost something when it took its shard
// over, and of which it has not said yet that they are among those.
func (n *simNode) lostUnseen() (slots SlotSet) {
	h := n.w.ledger.heirs[simGiverKey{n.core.cluster, n.core.self.Shard}]
	if l := n.core.lead; l != nil && h != nil && h.node == n.core.id && h.excuse {
		slots = l.late
		slots.Union(&l.unproven)
	}
	return slots
}

// stages reports whether a store holds a write in what has come of a slot that is not
// live yet.
func (s *simStore) stages(k simSlotKey, w *simWrite) bool {
	for at, v := range s.staged {
		if at.slot == k.slot && descends(v.data[k.key], w) {
			return true
		}
	}
	return false
}

// checkRP10: RP10, what is acknowledged in a strict shard every member in sync has,
// in this very log: a word of another epoch does not count for it.
func (w *simWorld) checkRP10(n *simNode, op simPending) {
	l := n.core.lead
	if w.ack == 0 || op.unformed || l == nil || op.epoch != l.epoch || op.offset == 0 {
		return
	}
	if op.epoch.less(w.ledger.seized[simGiverKey{n.core.cluster, n.core.self.Shard}]) {
		return // members may follow whoever has taken the shard by TAKEOVER, and have dropped what they had acknowledged
	}
	k := simEpochKey{n.core.cluster, n.core.self.Shard, l.epoch}
	w.ledger.acked[k] = max(w.ledger.acked[k], op.offset)
	members := l.inSync
	if l.recording != nil {
		members = slices.Concat(members, l.recording.msg.Record.InSync)
	}
	w.checkRP10Members(n, members, op.offset)
}

// checkRP10Members: RP10, members in sync, or about to be, have a log up to an offset that
// is acknowledged.
func (w *simWorld) checkRP10Members(n *simNode, members []incarnate, offset uint64) {
	r := &n.replica
	for _, m := range members {
		o := w.nodeOf(m.Node)
		if o == nil || o == n || o.core.member() != m || len(o.replica.log.past) == 0 || o.replica.log.past[0].After > 0 {
			continue // gone, and with it what it had; or it has changed something on its own, and has no history of before
		}
		if at, ok := r.log.past.shared(r.log.end, o.replica.log.past, o.replica.log.end); !ok || at < offset {
			w.fail("RP10", "%s has acknowledged what is at offset %d, %s is in sync and has %v, the two share %d", n.name(), offset, o.name(), o.replica.log.position(), at)
			return
		}
	}
}

// checkRP10Proposed: RP10, who is proposed to be in sync has all that was acknowledged in
// this epoch.
func (w *simWorld) checkRP10Proposed(n *simNode, m *recordMsg) {
	l := n.core.lead
	rec := &m.Record
	acked := w.ledger.acked[simEpochKey{n.core.cluster, rec.Shard, rec.Epoch}]
	if acked > 0 && rec.N > 0 && l != nil && l.epoch == rec.Epoch && l.recording != nil && l.recording.msg.Record.N == rec.N {
		w.checkRP10Members(n, rec.InSync, acked)
	}
}

// checkRP8: RP8, what a failover has lost is the end of what its shard had
// acknowledged: the winner's log ends before it, and there is no hole. And it is no more
// than the winner may lack: it was elected as a member in sync, which lacks of each
// primary what is younger than lagMost (LV8), and that one has acknowledged, cut off,
// until its lease was over.
func (w *simWorld) checkRP8(n *simNode, k simSlotKey, was, has *simWrite) {
	first, shared := firstLost(was, has)
	if shared != has && !has.log.epoch.less(first.log.epoch) {
		w.fail("RP8", "%s shows %v of %v, which is not the beginning of %v", n.name(), has.short(), k, was.short())
		return
	}
	at, past := first.log, n.replica.log.past
	if at.epoch == (Epoch{}) || at.shard != n.core.self.Shard || at.cluster != n.core.cluster {
		return // made elsewhere, before the slot came
	}
	i := slices.IndexFunc(past, func(s epochStart) bool { return s.Epoch == at.epoch })
	if i >= 0 && past[i].After < at.offset && at.offset <= past.endOf(i, n.replica.log.end) {
		w.fail("RP8", "%s lacks %v of %v, and its log has offset %d of epoch %v", n.name(), first.short(), k, at.offset, at.epoch)
	}
	last := w.ledger.lastAck[k.first()]
	if lag, most := longestReign(was, shared, &last), w.lagMost()+w.nt+w.nt/20; lag > most && !w.hungSince(first) {
		w.fail("RP8", "%s lacks what %v had for %v when one primary acknowledged it last, more than %v", n.name(), k, lag, most)
	}
}

// hungSince reports whether the disk of the primary that made a write has hung since: it
// could not leave out who fell behind, nor, for the same reason, does it wait for it.
func (w *simWorld) hungSince(v *simWrite) bool {
	return w.nodes[v.node].hungTo >= v.at && w.nodes[v.node].hungFrom > 0
}

// firstLost is the first write that led to was and that has does not stem from, and what
// the two share. That is less than has where a primary has won without some of what the
// one before had made, and is lost before any other member has followed it: who had got
// that, and wins next, shows it again.
func firstLost(was, has *simWrite) (first, shared *simWrite) {
	for shared = was; shared != nil && !descends(has, shared); shared = shared.prev {
		first = shared
	}
	return first, shared
}

// longestReign is for how long one primary has acknowledged a slot without a write that
// is missing, which are those up to was after has. ack is when the slot was acknowledged
// last. Every reign has a lag of its own, and between two nobody acknowledges.
func longestReign(was, has *simWrite, ack *simAckKey) (longest time.Duration) {
	last := ack.at
	if was.log.epoch != ack.epoch {
		last = was.at // a later primary has shown it
	}
	for at := was; at != nil && at != has; at = at.prev {
		longest = max(longest, last-at.at)
		if at.prev != nil && at.prev.log.epoch != at.log.epoch {
			last = at.prev.at
		}
	}
	return longest
}

// lagMost is for how long a member may lack an entry and be in sync. What is not
// acknowledged for NodeTimeout/2 costs it its place, by and by: see checkLV8.
func (w *simWorld) lagMost() time.Duration { return w.nt * 5 / 4 }

// simHeir is a node that leads a shard, and the slots that were looked at since it
// took it over.
type simHeir struct {
	node   NodeID
	at     time.Duration // when it took it over
	excuse bool          // something may have been lost then
	named  bool          // and the node has said so: nobody in sync was left
	seen   SlotSet
}

// noteLost explains what a failover has lost of a shard that is not strict: what
// its last primary had acknowledged, and the new one never had. A primary that is
// elected again has what it had, unless its store is gone; but of a slot it may hear
// only then that it is among those that it has taken over.
func (w *simWorld) noteLost(n *simNode, from NodeID) {
	l, c := &w.ledger, n.core
	seized := l.imposed || c.lead.epoch.Unclean || l.undecided(simGiverKey{c.cluster, c.self.Shard})
	allowed := seized || w.ack == 0 && (!from.IsZero() || c.lead.uncleanOf != "") && c.lead.epoch != n.byConsent
	own := c.table.slotsOf(c.self.Shard)
	own.Subtract(&c.lead.unproven) // those have left, or are to be named again
	own.Subtract(&c.lead.late)
	named := seized || c.lead.uncleanOf != ""
	shard := simGiverKey{c.cluster, c.self.Shard}
	heir := l.heirs[shard]
	if heir == nil || heir.node != c.id || allowed {
		if heir == nil || heir.node != c.id {
			w.heirMarks(n, allowed)
		}
		heir = &simHeir{node: c.id, at: w.now, excuse: allowed, named: named}
		l.heirs[shard] = heir
	}
	defer func() { heir.seen.Union(&own) }()
	w.noteImported(n, allowed)
	for slot := range own.All() {
		has, session := n.dataToBe(slot), l.sessions[simSlotKey{c.cluster, slot, 0}]
		for key := range w.keysOf(slot) {
			k := simSlotKey{c.cluster, slot, uint8(key)}
			was := l.committed[k]
			if len(w.marked) > 0 && w.gone(n, k, has[key], session, allowed) || was == nil || descends(has[key], was) {
				continue
			}
			if !allowed && (!heir.excuse || heir.seen.Contains(slot)) {
				w.noteLacks(n, k, was, has[key])
				return
			}
			if !named && !heir.named && !w.ledger.many.Contains(slot) { // a key that goes and comes has no place in one log
				w.checkRP8(n, k, was, has[key])
				w.checkRP1Asked(n, k, was, has[key])
			}
			l.reach("lost for lag")
			l.loosen(k)
		}
	}
}

// noteLacks says what it means that a winner lacks what was acknowledged, and nothing
// excuses that.
func (w *simWorld) noteLacks(n *simNode, k simSlotKey, was, has *simWrite) {
	if n.core.lead.epoch == n.byConsent {
		w.checkRP9(n, k, was, has)
	} else {
		w.checkRP1(n, k, was, has)
	}
}

// checkRP1: RP1, who wins a strict shard has what was acknowledged there, and so has, in
// any, who wins again what it has.
func (w *simWorld) checkRP1(n *simNode, k simSlotKey, was, has *simWrite) {
	if !descends(has, was) {
		w.fail("RP1", "%s leads %s under %v: of %v it has %v, acknowledged is %v", n.name(), n.core.self.Shard.short(), n.core.lead.epoch, k, has.short(), was.short())
	}
}

// checkRP9: RP9, who wins by consent has what was acknowledged: both sides lived, and
// one has waited for the other.
func (w *simWorld) checkRP9(n *simNode, k simSlotKey, was, has *simWrite) {
	if !descends(has, was) {
		w.fail("RP9", "%s has taken %s over under %v: of %v it has %v, acknowledged is %v", n.name(), n.core.self.Shard.short(), n.core.lead.epoch, k, has.short(), was.short())
	}
}

// checkRP6: RP6, half a copy is none. What the simulator's driver knows of a store, that
// it is half of one state and half of another, is held against what a node says and
// does, not against what its core takes itself for: nobody says that such a replica
// could take its primary's place.
func (w *simWorld) checkRP6(n *simNode) {
	if c := n.core; n.replica.half && c.isReplica(c.self) && c.lacksAsReplica() == "" {
		w.fail("RP6", "%s calls itself ready, and its store is half a copy", n.name())
	}
}

// checkRP6Vote: RP6, nobody asks for votes for a store that is half a copy, unless he says
// that nobody in sync is left, or has won so already. Who asks for an operator does not
// want to lead.
func (w *simWorld) checkRP6Vote(n *simNode, m *voteMsg) {
	c := n.core
	if n.replica.half && m.Shard == c.self.Shard && m.Incarnation == c.self.Store && m.Why != whyUnclean && m.Why != whyOperator && !m.Epoch.Unclean && !n.saysUnclean() && c.table.owned[m.Shard] > 0 {
		w.fail("RP6", "%s asks for votes, and its store is half a copy", n.name())
	}
}

// checkRP6Record: RP6, no record names a member whose store is half a copy.
func (w *simWorld) checkRP6Record(n *simNode, r *record) {
	for _, m := range r.InSync {
		if o := w.nodeOf(m.Node); o != nil && o.replica.half && o.core.member() == m && (o != n || !n.saysUnclean()) && !r.Epoch.Unclean && !w.ledger.imposed && n.core.table.owned[r.Shard] > 0 {
			w.fail("RP6", "%s names %s in sync, whose store is half a copy", n.name(), o.name())
		}
	}
}

// checkRP6Win: RP6, nobody leads with half a copy who does not say so.
func (w *simWorld) checkRP6Win(n *simNode, e Event) {
	if n.replica.half && !n.saysUnclean() && !e.Epoch.Unclean && !w.ledger.imposed && n.core.table.owned[e.Shard] > 0 {
		w.fail("RP6", "%s leads %s, and its store is half a copy", n.name(), e.Shard.short())
	}
	n.replica.half = false // what it has is what there is
}

// saysUnclean reports whether a node says, or will when it has opened its shard, that it
// was not in sync.
func (n *simNode) saysUnclean() bool {
	return n.core.unnamed != "" || n.core.lead != nil && n.core.lead.uncleanOf != ""
}

// overtaken explains what a failover by force may lose of a shard that is not
// strict, and a TAKEOVER of any: its old primary acknowledges until its lease is over,
// and nobody waits.
func (w *simWorld) overtaken(n *simNode, op *simPending) bool {
	shard := simGiverKey{n.core.cluster, n.core.self.Shard}
	by, seized := w.ledger.won[shard], w.ledger.seized[shard]
	if !op.epoch.less(by) || w.ack > 0 && (by.less(seized) || !op.epoch.less(seized)) {
		return false
	}
	w.ledger.reach("overtaken by force")
	return true
}

// dataToBe is what a slot shows once what has been staged for it is live.
func (n *simNode) dataToBe(slot Slot) simData {
	e := n.core.table.slots.at(slot)
	if v, ok := n.store.staged[simSlotMove{slot, e.move}]; ok && n.store.moves[slot] < e.move {
		return v.data
	}
	return n.store.values[slot]
}
