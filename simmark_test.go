package slotmesh

import (
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// Slots that move key by key, in the simulator: operators who set marks and take them
// off, in their order and in any other; a MIGRATE of single keys; clients who follow ASK.
// A few of the slots that clients use have several keys for it.

const simMarkedSlots = 4 // in a world whose operators set marks

// simMark is a mark as a driver knows it.
type simMark struct {
	SlotMark
	after uint64 // the save that has it: what uses the mark waits for that
}

// simPlace is where a key was when it was acknowledged last: at the owner of its slot, or
// at the node to which keys go. In a session, as long as nobody changes where the owner
// of a slot looks for its keys, a key goes one way.
type simPlace struct {
	shard   ShardID
	move    uint64 // of the slot
	session uint32
	since   time.Duration // it is there
}

// drawMarks draws whether operators set marks.
func (w *simWorld) drawMarks(own *rand.Rand) {
	if own.Float64() < 0.3 {
		w.faults.marks = []time.Duration{w.nt / 40, w.nt / 8}[own.IntN(2)]
	}
}

// chooseMarked chooses the slots that operators mark.
func (w *simWorld) chooseMarked() {
	for _, slot := range w.hotSlots()[:simMarkedSlots] {
		if !w.ledger.many.Contains(slot) {
			w.marked = append(w.marked, slot)
			w.ledger.many.Add(slot)
		}
	}
}

// ---- drivers

// setMark is what a driver does when a mark of its node has changed.
func (n *simNode) setMark(t markTell) {
	was := n.marks[t.slot]
	delete(n.marks, t.slot)
	if t.mark != nil {
		n.marks[t.slot] = simMark{*t.mark, t.after}
	}
	if t.known {
		return
	}
	n.newMarks.Remove(t.slot)
	if !n.goal(&was.SlotMark).same(n.goal(t.mark)) {
		n.w.ledger.newSession(n.core.cluster, t.slot)
	}
	n.log(simEntry{kind: simMarked, slot: t.slot, mark: t.mark})
	n.goalLogged(t.slot)
	if _, some := n.store.values[t.slot]; some && t.mark != nil && t.mark.Importing && !t.stale {
		n.imports(t.slot)
	}
	if t.stale && n.store.imported[t.slot] <= n.core.table.slots.at(t.slot).move && !n.core.isReplica(n.core.self) {
		n.log(simEntry{kind: simDrop, slot: t.slot})
	}
}

// keysGoTo is the node to which keys of the slot go that are not here; zero: to none.
func (m simMark) keysGoTo() NodeID {
	if m.Importing {
		return NodeID{}
	}
	return m.Node
}

// simGoal is where keys of a slot with a mark go: to a node, whose shard may get another
// primary. The zero value is to none.
type simGoal struct {
	node  NodeID
	shard ShardID
	since time.Duration // at the earliest
}

func (g simGoal) same(o simGoal) bool {
	return g.node == o.node || g.shard == o.shard && !g.shard.IsZero()
}

func (n *simNode) goal(m *SlotMark) simGoal {
	if m == nil || m.Importing {
		return simGoal{}
	}
	p := n.core.peers.get(m.Node)
	if p == nil {
		return simGoal{}
	}
	return simGoal{m.Node, p.Shard, n.w.now}
}

// noteMark notes, before the driver hears of it, that the core has changed a mark: from
// here on a crash may make it so.
func (n *simNode) noteMark(t markTell) {
	was, used := n.marks[t.slot]
	if t.known || t.mark == nil && !used { // one that an heir does not go on with: see heirMarks
		return
	}
	is := n.goal(t.mark)
	is.since = n.w.now
	if !n.goal(&was.SlotMark).same(is) {
		n.newMarks.Add(t.slot)
		n.w.ledger.newSession(n.core.cluster, t.slot)
	}
	if k, own := n.goalKey(t.slot); own {
		n.w.ledger.goals[k] = append(n.w.ledger.goalsOf(k), is)
	}
}

// goalNow is where keys of a slot go by what its core knows.
func (n *simNode) goalNow(slot Slot) simGoal {
	if m, marked := n.core.marks[slot]; marked {
		return n.goal(&m)
	}
	return simGoal{since: n.w.now}
}

// goalsOf are those of which a successor may know: the last one that every member of the
// shard had, and what has come since.
func (l *simLedger) goalsOf(k simSlotMoveKey) []simGoal {
	if goals := l.goals[k]; len(goals) > 0 {
		return goals
	}
	return []simGoal{{}}
}

type simSlotMoveKey struct {
	cluster ClusterID
	simSlotMove
}

// goalKey names a slot, as long as it has one owner; own: that is this node's shard.
func (n *simNode) goalKey(slot Slot) (k simSlotMoveKey, own bool) {
	e := n.core.table.slots.at(slot)
	return simSlotMoveKey{n.core.cluster, simSlotMove{slot, e.move}}, e.shard == n.core.self.Shard
}

// goalLogged is for a change of a mark that is in the log: once every member has that, this
// node on its disk, whoever leads next sends clients there, or where they are sent later.
// Before that nobody has been sent anywhere by it.
func (n *simNode) goalLogged(slot Slot) {
	k, own := n.goalKey(slot)
	if !own || n.replica.log.epoch == (Epoch{}) {
		return
	}
	l, now, run := &n.w.ledger, n.w.now, n.run
	n.onceCommitted(n.replica.log.end, func() {
		n.onceMarkSaved(slot, run, func() {
			goals := l.goalsOf(k)
			for len(goals) > 1 && goals[1].since <= now {
				goals = goals[1:]
			}
			l.goals[k] = goals
		})
	})
}

// onceMarkSaved calls do once the mark of a slot is on disk.
func (n *simNode) onceMarkSaved(slot Slot, run int32, do func()) {
	switch {
	case !n.up || n.run != run:
	case n.markSaved(slot):
		do()
	default:
		n.w.after(n.w.nt/100, func() { n.onceMarkSaved(slot, run, do) })
	}
}

// heirMarks looks at the marks of a primary that has taken a shard over: it goes on with
// those of the one before. Where it may have lost some, keys are looked for elsewhere from
// now on.
func (w *simWorld) heirMarks(n *simNode, allowed bool) {
	l := &w.ledger
	for _, slot := range w.marked {
		k, own := n.goalKey(slot)
		if !own {
			continue
		}
		is := n.goalNow(slot)
		goals := l.goalsOf(k)
		switch {
		case goals[len(goals)-1].same(is):
		case allowed || len(l.goals[k]) == 0 || slices.ContainsFunc(goals, is.same): // or it was set at an earlier move
			l.newSession(n.core.cluster, slot)
		case is.node == (NodeID{}) && slices.ContainsFunc(goals, n.isGone): // keys go nowhere where that is no member
			l.newSession(n.core.cluster, slot)
		default:
			w.checkRP12(n, slot, is, goals)
		}
		if is.node != (NodeID{}) {
			l.reach("a mark inherited")
		}
		l.goals[k] = []simGoal{is}
	}
}

// isGone reports whether keys went to a node that is no member any more.
func (n *simNode) isGone(g simGoal) bool {
	p := n.core.peers.get(g.node)
	return g.node != NodeID{} && (p == nil || p.State == forgotten)
}

// checkRP12: RP12, who wins a strict shard sends clients for keys that have gone to where its
// primary has sent them.
func (w *simWorld) checkRP12(n *simNode, slot Slot, is simGoal, goals []simGoal) {
	var were []string
	for _, g := range goals {
		were = append(were, g.node.short())
	}
	w.fail("RP12", "%s leads %s under %v, and keys of slot %d go to %s, they went to %v", n.name(), n.core.self.Shard.short(), n.core.lead.epoch, slot, is.node.short(), were)
}

// marksLoaded is for a process that starts: marks that were being changed when the one
// before ended are there, or not. Those that were not must be there still.
func (n *simNode) marksLoaded() {
	for slot := range n.newMarks.All() {
		n.w.ledger.newSession(n.core.cluster, slot)
		if k, own := n.goalKey(slot); own {
			n.w.ledger.goals[k] = append(n.w.ledger.goalsOf(k), n.goalNow(slot))
		}
	}
	n.marks, n.newMarks, n.moving, n.view = map[Slot]simMark{}, SlotSet{}, map[simSlotKey]*simMigrate{}, nil
	for _, m := range n.core.usedMarks() {
		n.marks[m.Slot] = simMark{m, math.MaxUint64} // not before it is told
	}
	if !maps.Equal(n.core.marks, n.store.marks) { // the log's end, if it ended with its process, is known to nobody
		n.store.marks = maps.Clone(n.core.marks)
		n.replica.forgetLog()
	}
}

// newSession notes that keys of a slot are looked for elsewhere from now on.
func (l *simLedger) newSession(c ClusterID, slot Slot) {
	if l.many.Contains(slot) {
		l.sessions[simSlotKey{c, slot, 0}]++
	}
}

// sessionAt is the session in which a node answers where keys of a slot are. One that has
// been replaced as its owner, and has not heard of it, sends after its own mark, which
// is of none that lasts.
func (l *simLedger) sessionAt(n *simNode, slot Slot) uint32 {
	if lead := n.core.lead; lead != nil && lead.epoch.less(l.wonLast[simGiverKey{n.core.cluster, n.core.self.Shard}]) {
		return math.MaxUint32
	}
	return l.sessions[simSlotKey{n.core.cluster, slot, 0}]
}

// markSaved reports whether the mark of a slot is on disk.
func (n *simNode) markSaved(slot Slot) bool { return n.marks[slot].after <= n.core.savedSeq }

// imports notes, before a key is written to a slot that is not this node's, under which
// move it is right.
func (n *simNode) imports(slot Slot) {
	if move := n.core.table.slots.at(slot).move + 1; n.store.imported[slot] != move {
		n.log(simEntry{kind: simImport, slot: slot, move: move})
	}
}

// published is this node's table as its driver sees it.
func (n *simNode) published() *view {
	if c := n.core; n.view == nil || c.viewDirty || c.majorityHeard() != n.view.heard {
		n.view, c.viewDirty = c.publish(), false
	}
	return n.view
}

// ---- clients

// simRequest is what a client asks of a slot with marks: for one key, or several.
type simRequest struct {
	slot    Slot
	keys    [2]uint8
	several bool
	write   bool
	asking  bool
	session uint32 // in which it was sent here
	sent    uint64 // move of the slot then
	tries   int
}

const simTries = 6 // hops and waits of a client

// markedOp is a request for a slot with marks, to whatever node.
func (w *simWorld) markedOp(n *simNode, slot Slot) {
	r := simRequest{slot: slot, keys: [2]uint8{uint8(w.r.IntN(simKeys)), uint8(w.r.IntN(simKeys))}, tries: simTries}
	if r.write = w.chance(0.4); !r.write {
		r.several = r.keys[0] != r.keys[1] && w.chance(0.2)
	}
	w.request(n, r)
}

// request is a client's request at a node, where it goes from there included.
func (w *simWorld) request(n *simNode, r simRequest) {
	if n == nil || !n.up || n.paused > w.now || r.tries == 0 {
		return
	}
	r.tries--
	if !r.asking {
		r.session, r.sent = w.ledger.sessionAt(n, r.slot), n.core.table.slots.at(r.slot).move
	}
	q, d := n.decide(&r)
	switch wait := n.core.serve.hold.Contains(r.slot) || needsMark(&q, &d) && !n.markSaved(r.slot); {
	case wait, d.action == routeTryAgain:
		w.after(w.between(time.Millisecond, 50*time.Millisecond), func() { w.request(n, r) })
	case d.action == routeAsk:
		w.ledger.reach("asked")
		w.sendAsking(n, d.node.ID, r)
	case d.action == routeMoved:
		w.sendOn(d.node.ID, r, false)
	case d.action == routeServe && q.leased && (q.serves || !n.core.cluster.IsZero()):
		w.runKey(n, &r, r.keys[0], !q.serves)
		if r.several {
			w.runKey(n, &r, r.keys[1], !q.serves)
		}
	}
}

// needsMark is usesMark, where there may be no mark.
func needsMark(q *question, d *decision) bool { return q.mark != nil && usesMark(q, d) }

// sendOn has a client go where it was sent. It may take its time.
func (w *simWorld) sendOn(to NodeID, r simRequest, asking bool) {
	r.asking = asking
	d := w.between(100*time.Microsecond, time.Millisecond)
	if w.chance(0.05) {
		d = w.between(0, w.nt/2)
	}
	w.after(d, func() { w.request(w.nodeOf(to), r) })
}

// sendAsking sends a client on by ASK, from a strict shard once its replicas know what has
// gone.
func (w *simWorld) sendAsking(n *simNode, to NodeID, r simRequest) {
	if w.ack == 0 || mutated(mutAskEarly) {
		w.sendOn(to, r, true)
		return
	}
	reign := n.core.serve.reign
	n.onceCommitted(n.seen(r.slot), func() {
		if n.core.mayReply(reign, n.local()) {
			w.sendOn(to, r, true)
		}
	})
}

// decide is what the core's rules say to a request.
func (n *simNode) decide(r *simRequest) (question, decision) {
	q := question{serves: n.core.serve.slots.Contains(r.slot), leased: n.local() < n.core.servesUntil(),
		readOnly: !r.write, asking: r.asking, several: r.several}
	if m, marked := n.marks[r.slot]; marked {
		q.mark = &m.SlotMark
		keys := r.keys[:1]
		if r.several {
			keys = r.keys[:]
		}
		for _, key := range keys {
			if n.store.values[r.slot][key] != nil {
				q.present++
			} else {
				q.missing++
			}
		}
	}
	return q, n.published().route(r.slot, q)
}

// ---- MIGRATE

// simMigrate is a MIGRATE of one key.
type simMigrate struct {
	key   simSlotKey
	value *simWrite
	run   int32
	to    NodeID
	shard ShardID // of the target when it took the value
	epoch Epoch   // and its epoch then
}

// migrate moves a key as the front's MIGRATE does: writes wait, the target stores what is
// here, and what it has confirmed goes from here. Whoever hears nothing tries again.
func (w *simWorld) migrate(n *simNode, slot Slot, key uint8, to NodeID, replace bool) {
	k := simSlotKey{n.core.cluster, slot, key}
	q, _ := n.decide(&simRequest{slot: slot, keys: [2]uint8{key}})
	v := n.store.values[slot][key]
	if !q.serves || !q.leased || v == nil || n.moving[k] != nil || !n.markSaved(slot) || k.cluster.IsZero() {
		return
	}
	w.logf("%s: MIGRATE %v to %s, replace %v", n.name(), k, to.short(), replace)
	m := &simMigrate{key: k, value: v, run: n.run, to: to}
	n.moving[k] = m
	w.after(w.nt/2, func() { // what has not been answered by then is not known
		if n.up && n.run == m.run && n.moving[k] == m {
			delete(n.moving, k)
		}
	})
	n.onceCommitted(n.seen(slot), func() {
		ours := n.sentKeys[k]
		w.carryKey(n, w.nodeOf(to), func(t *simNode) {
			if t.restore(m, replace, ours) {
				t.onceCommitted(t.replica.log.end, func() {
					if l := t.core.lead; l != nil && l.epoch == m.epoch && t.core.leaseHeld() {
						w.carryKey(t, n, func(n *simNode) { n.migrated(m) })
					}
				})
			}
		})
	})
}

// carryKey brings part of a MIGRATE from a node to another.
func (w *simWorld) carryKey(from, to *simNode, do func(to *simNode)) {
	if to == nil {
		return
	}
	run := to.run
	w.after(w.between(100*time.Microsecond, 3*time.Millisecond), func() {
		if to.up && to.run == run && to.paused <= w.now && !w.isCut(from, to) && !w.isCut(to, from) && !w.chance(0.05) {
			do(to)
		}
	})
}

// restore stores a value that MIGRATE brings, as RESTORE-ASKING does; ours is what an
// earlier attempt may have left here.
func (n *simNode) restore(m *simMigrate, replace bool, ours *simWrite) bool {
	r := simRequest{slot: m.key.slot, keys: [2]uint8{m.key.key}, write: true, asking: true}
	q, d := n.decide(&r)
	have := n.store.values[r.slot][m.key.key]
	busy := have != nil && have != ours && !replace
	if n.core.cluster != m.key.cluster || d.action != routeServe || q.serves || !q.leased || busy || !n.markSaved(r.slot) ||
		n.core.serve.hold.Contains(r.slot) || !n.mayWrite(0) {
		return false
	}
	m.shard, m.epoch = n.core.self.Shard, n.core.lead.epoch
	n.imports(r.slot)
	n.log(simEntry{kind: simRestore, slot: r.slot, key: m.key.key, value: m.value})
	return true
}

// migrated deletes what the target has confirmed.
func (n *simNode) migrated(m *simMigrate) {
	w, l, k := n.w, &n.w.ledger, m.key
	if n.run != m.run {
		return
	}
	q, _ := n.decide(&simRequest{slot: k.slot, keys: [2]uint8{k.key}})
	if n.moving[k] != m || !q.serves || !q.leased || n.core.serve.hold.Contains(k.slot) || n.store.values[k.slot][k.key] != m.value {
		n.sentKeys[k] = m.value // it is perhaps at both
		return
	}
	delete(n.moving, k)
	delete(n.sentKeys, k)
	n.log(simEntry{kind: simMigrated, slot: k.slot, key: k.key})
	l.reach("a key moved")
	first := simSlotKey{k.cluster, k.slot, 0}
	if p, seen := l.places[k]; seen && l.follow(n, k, p, n.core.table.slots.at(k.slot).move).shard != n.core.self.Shard && l.committed[k] != nil {
		l.reach("hidden by an operator")
		l.loosen(k) // what has moved is not what clients know
	}
	is := simPlace{m.shard, n.core.table.slots.at(k.slot).move, l.sessions[first], w.now}
	if w.ack == 0 {
		l.places[k] = is
	} else { // until the replicas know nobody is sent after it, and it may be at both
		l.leaving[k] = is
		n.onceCommitted(n.replica.log.end, func() {
			l.places[k] = is
			delete(l.leaving, k)
		})
	}
	if mark := n.marks[k.slot]; n.goal(&mark.SlotMark).shard != m.shard {
		l.newSession(k.cluster, k.slot) // nobody is sent after it
	}
	if t := w.leaderOf(k.cluster, m.shard); w.ack == 0 && t != nil && t.core.lead.epoch != m.epoch && !descends(t.store.values[k.slot][k.key], m.value) {
		l.loosen(k) // the target has been replaced meanwhile
	}
}

// leaderOf is the node that leads a shard now, or nil.
func (w *simWorld) leaderOf(c ClusterID, shard ShardID) *simNode {
	i := slices.IndexFunc(w.nodes, func(n *simNode) bool {
		return n.up && n.core.cluster == c && n.core.self.Shard == shard && n.core.lead != nil && n.core.lead.opened
	})
	if i < 0 {
		return nil
	}
	return w.nodes[i]
}

// ---- operators

// someMark is an operator who moves a slot key by key, or takes himself for one who does.
func (w *simWorld) someMark() {
	slot := w.marked[w.r.IntN(len(w.marked))]
	i := slices.IndexFunc(w.nodes, func(n *simNode) bool { return n.up && n.core.serve.slots.Contains(slot) && !n.core.cluster.IsZero() })
	if i < 0 {
		return
	}
	owner := w.nodes[i]
	to := w.keysGoTo(owner, slot)
	switch k := w.r.IntN(40); {
	case to == nil && k < 24:
		w.mark(owner, w.otherPrimary(owner), slot)
	case to == nil || k < 2: // sense or not
		if o := w.otherPrimary(owner); o != nil {
			w.nonsense(owner, o, slot)
		}
	case k < 6: // again, as who has seen that its other end has been replaced
		w.mark(owner, to, slot)
	case k < 28:
		w.migrate(owner, slot, uint8(w.r.IntN(simKeys)), to.core.id, w.chance(0.5))
	case k < 35:
		by := []*simNode{to, owner, w.liveNode()}[w.r.IntN(3)]
		w.setSlot(by, slotSet(slot), to.core.id)
		if w.chance(0.2) {
			w.setSlot(w.liveNode(), slotSet(slot), to.core.id)
		}
	case k < 37:
		w.stable([]*simNode{to, owner}[w.r.IntN(2)], slot)
	case w.faults.crash > 0: // one of the two fails in the midst of it
		w.ledger.reach("crashed half way")
		n := []*simNode{to, owner}[w.r.IntN(2)]
		n.crash(w.faults.crashUnsaved)
		w.after(w.between(w.nt/20, 4*w.nt), n.restart)
	}
}

// keysGoTo is the primary now of the shard to which a mark of the owner sends keys; nil:
// there is no mark, or nobody leads that.
func (w *simWorld) keysGoTo(owner *simNode, slot Slot) *simNode {
	p := owner.core.peers.get(owner.marks[slot].keysGoTo())
	if p == nil {
		return nil
	}
	return w.leaderOf(owner.core.cluster, p.Shard)
}

// otherPrimary is some primary of another shard; nil: there is none.
func (w *simWorld) otherPrimary(n *simNode) *simNode {
	return w.somePrimary(func(o *simNode) bool { return o != n && o.core.cluster == n.core.cluster })
}

// mark puts the marks of a move on a slot, mostly both, in one order or the other.
func (w *simWorld) mark(from, to *simNode, slot Slot) {
	if to == nil || to == from {
		return
	}
	importing, migrating := func() { w.importing(to, from.core.id, slot) }, func() { w.migrating(from, to.core.id, slot) }
	switch w.r.IntN(10) {
	case 0:
		importing()
	case 1:
		migrating()
	case 2, 3:
		migrating()
		importing()
	default:
		importing()
		migrating()
	}
}

// nonsense does something about a slot that no move is made of.
func (w *simWorld) nonsense(owner, o *simNode, slot Slot) {
	switch w.r.IntN(6) {
	case 0:
		w.importing(o, owner.core.id, slot)
	case 1:
		w.migrating(owner, o.core.id, slot) // perhaps to a second target
	case 2:
		w.migrate(owner, slot, uint8(w.r.IntN(simKeys)), o.core.id, w.chance(0.5))
	case 3:
		w.stable(o, slot)
	case 4:
		w.setSlot(w.liveNode(), slotSet(slot), o.core.id)
	default:
		w.importing(owner, o.core.id, slot)
	}
}

func (w *simWorld) importing(n *simNode, from NodeID, slot Slot) {
	if n.up {
		w.logf("%s: SETSLOT %d IMPORTING %s", n.name(), slot, from.short())
		n.command(func(s *state, now time.Duration, id uint64) output { return s.setSlotImporting(now, id, slot, from) }, w.logged(n, "SETSLOT IMPORTING"))
	}
}

func (w *simWorld) migrating(n *simNode, to NodeID, slot Slot) {
	if n.up {
		w.logf("%s: SETSLOT %d MIGRATING %s", n.name(), slot, to.short())
		n.command(func(s *state, now time.Duration, id uint64) output { return s.setSlotMigrating(now, id, slot, to) }, w.logged(n, "SETSLOT MIGRATING"))
	}
}

func (w *simWorld) stable(n *simNode, slot Slot) {
	if n.up {
		w.logf("%s: SETSLOT %d STABLE", n.name(), slot)
		n.command(func(s *state, now time.Duration, id uint64) output { return s.setSlotStable(now, id, slot) }, w.logged(n, "SETSLOT STABLE"))
	}
}

// ---- what must hold

// checkOW1Key: OW1, no two nodes acknowledge for one key at one moment: while nobody changes
// where the owner of a slot looks for its keys, a key that has gone does not come back, and
// none is acknowledged where it has not come yet. It reports whether what is acknowledged
// is to be held against what was.
//
// What an operator has hidden himself, by a mark that he takes off, sets anew or gives to
// another node, or by a slot that he gives to a third one, is lost to clients until the
// mark is back. A successor has the marks of the one before.
func (w *simWorld) checkOW1Key(n *simNode, op *simPending) bool {
	l, k := &w.ledger, simSlotKey{n.core.cluster, op.slot, op.key}
	if op.resets != l.resets[k] {
		return false // its key has been hidden since it ran, or what was acknowledged is lost
	}
	if op.asked && op.session == math.MaxUint32 {
		return false // it was sent there by an owner that had been replaced
	}
	here := simPlace{n.core.self.Shard, op.move, op.session, op.until - 2*w.nt}
	p, seen := l.places[k]
	p = l.follow(n, k, p, op.move)
	switch {
	case seen && l.loose[k] && here.since < p.since:
		return false // what counts comes later
	case !seen || l.loose[k]:
	case p.shard == here.shard && here.move == p.move && here.session < p.session && here.since < p.since:
		l.reach("late where a mark was")
		return false // MIGRATE has put in its place what clients know
	case p.shard == here.shard:
		here.since = p.since
	case here.move == p.move && here.session < p.session || op.asked && op.sent < p.move:
		l.reach("late where a mark was")
		return false // it was sent there before an operator has taken that back
	case here.since < p.since:
		return true // it ran while the key was there, or is late
	case p.move == here.move && p.session == here.session:
		w.fail("OW1", "%v: %s acknowledges %v at move %d, and the key is at shard %s since %v", k, n.name(), op.value.short(), op.move, p.shard.short(), p.since)
		return false
	case l.committed[k] != nil:
		l.reach("hidden by an operator")
		l.loosen(k)
	}
	l.places[k] = here
	return true
}

// follow is where a key is at a move of its slot: what is at the owner goes with it.
func (l *simLedger) follow(n *simNode, k simSlotKey, p simPlace, move uint64) simPlace {
	if p.move < move && p.shard == l.ownerAt(n, k.slot, p.move) {
		if owner := l.ownerAt(n, k.slot, move); !owner.IsZero() {
			p.shard, p.move = owner, move
		}
	}
	return p
}

// gone reports whether a key of a slot of n's shard was at another one when it was
// acknowledged last. A primary that has just won must not have it: where a key has gone,
// and others have been sent after it, stays gone in a strict shard.
// What comes back there in another is looked for there from now on, and not in the session
// before.
func (w *simWorld) gone(n *simNode, k simSlotKey, has *simWrite, session uint32, allowed bool) bool {
	l := &w.ledger
	if is, leaving := l.leaving[k]; leaving && has == nil {
		l.places[k] = is // the one before had deleted it, as this one knows
	}
	delete(l.leaving, k)
	p, seen := l.places[k]
	p = l.follow(n, k, p, n.core.table.slots.at(k.slot).move)
	if !seen || l.loose[k] || p.shard == n.core.self.Shard {
		return false
	}
	if has != nil && p.session == session && p.move == n.core.table.slots.at(k.slot).move {
		if !allowed {
			w.checkRP1Gone(n, k, has, p.shard)
		}
		l.loosen(k)
		if l.sessions[k.first()] == session {
			l.newSession(n.core.cluster, k.slot)
		}
	}
	return true
}

// checkRP1Gone: RP1, who wins a strict shard has nothing of a key that has gone to another.
func (w *simWorld) checkRP1Gone(n *simNode, k simSlotKey, has *simWrite, to ShardID) {
	w.fail("RP1", "%s leads %s under %v, and has %v of %v, which has gone to shard %s", n.name(), n.core.self.Shard.short(), n.core.lead.epoch, has.short(), k, to.short())
}

// noteImported looks at what has come key by key and is acknowledged: it outlives the
// primary that has imported it, and a loss is explained like any other.
func (w *simWorld) noteImported(n *simNode, allowed bool) {
	l, c := &w.ledger, n.core
	for _, slot := range w.marked {
		e := c.table.slots.at(slot)
		for key := range simKeys {
			k := simSlotKey{c.cluster, slot, uint8(key)}
			p, was, has := l.places[k], l.committed[k], n.store.values[slot][key]
			if e.shard == c.self.Shard || p.shard != c.self.Shard || p.move > e.move || l.loose[k] || descends(has, was) {
				continue
			}
			if p.move < e.move {
				l.reach("hidden by an operator")
				l.loosen(k) // the slot has gone to a third one since
				continue
			}
			if !allowed {
				w.noteLacks(n, k, was, has)
				return
			}
			l.reach("imported, and lost for lag")
			l.loosen(k)
		}
	}
}

// lostWith notes that a node is about to lose what it has of slots of others: an operator
// has it reset, or has a hand-over with data of such a slot begin.
func (n *simNode) lostWith(slot Slot, c ClusterID) {
	if _, imported := n.store.imported[slot]; imported {
		for key := range n.w.keysOf(slot) {
			n.w.ledger.loosen(simSlotKey{c, slot, uint8(key)})
		}
	}
}

// isAt reports whether a key was at a shard when it was acknowledged last, of a slot that
// is that shard's, in n's eyes, or not.
func (w *simWorld) isAt(n *simNode, k simSlotKey, shard ShardID, own bool) bool {
	if !w.ledger.many.Contains(k.slot) {
		return own
	}
	p, seen := w.ledger.places[k]
	p = w.ledger.follow(n, k, p, n.core.table.slots.at(k.slot).move)
	return seen && p.shard == shard && p.move == n.core.table.slots.at(k.slot).move
}
