package slotmesh

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/slotmesh/slotmesh/internal/linear"
)

// What the simulator puts around a core: a store, clients, hand-overs of data,
// operators and faults.

// simWrite is a write to a key; the value of a key is its last write. Stores
// are durable: what has run survives a crash.
type simWrite struct {
	n    uint32
	node int32
	prev *simWrite
	at   time.Duration // when it was made
	log  simEntryKey   // where it was appended; of no epoch where there was no log
	// acked is when the first has heard of it who has heard of it as the newest; 0: nobody.
	acked      time.Duration
	everywhere bool // all members of its shard had it when it was acknowledged
}

// simKeys is how many keys a slot has at most. All but those that operators mark have
// one: the first.
const simKeys = 3

// simData is what a node has of a slot, by key.
type simData [simKeys]*simWrite

// simStore is the data of one node.
type simStore struct {
	values map[Slot]simData // of slots that have any
	moves  map[Slot]uint64  // move under which the slot was last owned here
	staged map[simSlotMove]simStaged
	// imported is the move that is to bring a slot of which keys have come one by one.
	imported map[Slot]uint64
	marks    map[Slot]SlotMark // those of the log
	staging  map[uint64]bool   // jobs whose data has come here, and not by a log
}

// simStaged is staged data, as of a position of the giver.
type simStaged struct {
	data     simData
	epoch    Epoch
	position uint64
	job      uint64
}

type simSlotMove struct {
	slot Slot
	move uint64
}

func newSimStore() simStore {
	return simStore{values: map[Slot]simData{}, moves: map[Slot]uint64{}, staged: map[simSlotMove]simStaged{}, imported: map[Slot]uint64{}, marks: map[Slot]SlotMark{}, staging: map[uint64]bool{}}
}

// simPending is a request that has run and waits for its reply.
type simPending struct {
	id       uint64
	slot     Slot
	key      uint8
	reign    uint64
	move     uint64
	epoch    Epoch
	value    *simWrite
	inv      *simWrite // acknowledged when the request came
	resets   int32     // of the key, then
	session  uint32    // of the slot, when it was asked for
	sent     uint64    // move of the slot when its client was sent by ASK
	unformed bool
	asked    bool // after ASKING, of a slot of another node
	may      bool
	offset   uint64 // of the log, that every member must have first
	wrote    bool
	want     int // replicas that the client wants for it
	until    time.Duration
	call     *linear.Op // where calls are recorded
}

// hotSlots are those that clients use; in the others hand-overs in place find
// no keys.
func (w *simWorld) hotSlots() []Slot {
	if w.ledger.hot == nil {
		for range 48 {
			w.ledger.hot = append(w.ledger.hot, Slot(w.r.IntN(NumSlots)))
		}
	}
	return w.ledger.hot
}

// hopsFrom is from how many nodes clients are sent on to an owner: in a large world that has
// one all of them would make thousands of entries between two looks of its replicas.
const hopsFrom = 8

// clientOp is one request of a client of a node. It runs there, as its driver would
// run it, or else where that node sends it, one hop and no further.
func (w *simWorld) clientOp(n *simNode) {
	if len(w.marked) > 0 && w.chance(0.25) {
		w.markedOp(n, w.marked[w.r.IntN(len(w.marked))])
		return
	}
	c := n.core
	hot := w.hotSlots()
	first := w.r.IntN(len(hot))
	slot := hot[first]
	if w.r.IntN(8) > 0 {
		for i := range hot {
			if s := hot[(first+i)%len(hot)]; c.serve.slots.Contains(s) {
				slot = s
				break
			}
		}
	}
	if !c.serve.slots.Contains(slot) {
		if len(w.nodes) > hopsFrom && w.r.IntN(len(w.nodes)) >= hopsFrom {
			return
		}
		if n = w.nodeOf(c.table.owner(slot)); n == nil || n.paused > w.now {
			return
		}
	}
	w.runOp(n, slot)
}

// runOp runs a request at a node that may serve its slot.
func (w *simWorld) runOp(n *simNode, slot Slot) {
	c := n.core
	now := n.local()
	if !c.serve.slots.Contains(slot) || now >= c.servesUntil() && w.wrong != wrongLease {
		return
	}
	if w.calls != nil && c.cluster.IsZero() {
		return // Redis's own rules promise too little
	}
	if w.ledger.many.Contains(slot) {
		w.markedOp(n, slot)
		return
	}
	w.runKey(n, &simRequest{slot: slot, write: w.chance(0.4)}, 0, false)
}

// runKey runs a request for a key at a node that serves it; asked: after ASKING, of a slot
// of another node.
func (w *simWorld) runKey(n *simNode, r *simRequest, key uint8, asked bool) {
	c, slot := n.core, r.slot
	now := n.local()
	n.nextCmd++
	k := simSlotKey{c.cluster, slot, key}
	op := simPending{id: n.nextCmd, slot: slot, key: key, reign: c.serve.reign, move: c.table.slots.at(slot).move, epoch: c.reignEpoch,
		unformed: c.cluster.IsZero(), session: r.session, sent: r.sent, asked: asked,
		inv: w.ledger.committed[k], resets: w.ledger.resets[k]}
	if r.write {
		op.want = w.wants(n)
	}
	if op.wrote = r.write && n.mayWrite(op.want) && n.moving[k] == nil; op.wrote {
		if asked {
			n.imports(slot)
		}
		prev := n.store.values[slot][key]
		v := &simWrite{n: 1, node: int32(n.index), prev: prev, at: w.now}
		if prev != nil {
			v.n = prev.n + 1
		}
		n.log(simEntry{kind: simPut, slot: slot, key: key, value: v})
	} else {
		op.want = 0
	}
	op.value = n.store.values[slot][key]
	op.call = w.calls.begin(n, op)
	op.offset, op.until = n.seen(slot), w.now+2*w.nt
	op.may = c.mayReply(op.reign, now)
	n.pending = append(n.pending, op)
	d := w.between(0, w.faults.replyBy)
	if w.chance(w.faults.slowReply) {
		d = w.between(0, 2*w.nt)
	}
	w.schedule(simEvent{at: w.now + d, kind: simReply, node: int32(n.index), run: n.run, op: op})
}

// pendingAt is where a request is among those that wait for their replies, or -1. A
// request is copied nowhere for it: many wait.
func (n *simNode) pendingAt(id uint64) int {
	for i := range n.pending {
		if n.pending[i].id == id {
			return i
		}
	}
	return -1
}

// clientReply acknowledges a request, if that is still allowed.
func (w *simWorld) clientReply(n *simNode, op simPending) {
	i := n.pendingAt(op.id)
	if i < 0 {
		return // failed meanwhile
	}
	last := len(n.pending) - 1
	n.pending[i], n.pending[last] = n.pending[last], simPending{} // in no order
	n.pending = n.pending[:last]
	may := n.core.mayReply(op.reign, n.local())
	if mutated(mutReplyLease) {
		may = op.may && n.core.serve.reign == op.reign
	}
	may = may || w.wrong == wrongLease
	if may && n.owes(&op) {
		if w.now < op.until { // nobody hears of it before the others have it
			n.pending = append(n.pending, op)
			w.schedule(simEvent{at: w.now + w.between(time.Millisecond, 4*time.Millisecond), kind: simReply, node: int32(n.index), run: n.run, op: op})
		}
		return
	}
	if may {
		if op.wrote {
			w.ledger.writes++
			w.waitFor(n, &op)
		}
		if op.want > 0 && !op.unformed {
			w.checkRP10Asked(n, &op)
		}
		w.calls.end(op)
		w.checkAck(n, op)
	}
}

// tell carries out what a core tells its driver.
func (n *simNode) tell(what any) {
	w := n.w
	if w.tap != nil {
		w.tap(n, what)
	}
	switch t := what.(type) {
	case replyTell:
		done := n.replies[t.id]
		delete(n.replies, t.id)
		if done != nil {
			done(t.err)
		}
	case freezeTell:
		run := n.run
		w.after(w.between(w.freezeFor, w.freezeFor+2*time.Millisecond), func() {
			if n.up && n.run == run {
				n.frozen(t)
			}
		})
	case stageTell:
		run := n.run
		h := *t.stage
		w.after(w.between(0, 4*time.Millisecond), func() {
			if n.up && n.run == run {
				n.takeStage(&h)
			}
		})
	case stageEndTell:
		n.dropStage(t.job)
	case pauseTell:
		n.pause(t)
	case adoptTell:
		n.adopt(t)
	case markTell:
		n.setMark(t)
	case dropTell:
		n.drop(t.slots)
	case eventTell:
		n.storeEvent(t.event)
	}
}

// storeEvent keeps the store in step with what the node is a member of.
func (n *simNode) storeEvent(e Event) {
	switch e.Kind {
	case EventReset:
		for slot := range n.store.imported {
			n.lostWith(slot, n.was.cluster)
		}
		n.wipeStore()
	case EventJoined:
		if !n.core.ownsSlots() {
			n.wipeStore()
		}
	}
}

// frozen fails what is pending in the slots, and says so.
func (n *simNode) frozen(t freezeTell) {
	n.pending = slices.DeleteFunc(n.pending, func(p simPending) bool { return t.slots.Contains(p.slot) })
	n.w.ledger.position++
	pos := n.w.ledger.position
	data := map[Slot]simData{}
	for slot := range t.slots.All() {
		if d, some := n.store.values[slot]; some {
			data[slot] = d
		}
	}
	keys := len(data) > 0
	n.w.ledger.transfers[pos] = data
	n.do(func(s *state, now time.Duration) output { return s.frozen(now, t.job, pos, keys) })
}

// takeStage is the copy of a hand-over's data to the target.
func (n *simNode) takeStage(h *heldStage) {
	data := n.w.ledger.transfers[h.Position]
	if slots := h.Slots.slots(); !h.InPlace && slices.ContainsFunc(n.w.marked, func(slot Slot) bool { return slots.Contains(slot) && n.marks[slot].Importing }) {
		return // refused
	}
	h.Slots.each(func(slot Slot, move uint64) {
		k := simSlotMove{slot, move}
		have := n.store.staged[k]
		if h.InPlace && n.marks[slot].Importing && n.store.imported[slot] != move {
			n.log(simEntry{kind: simImport, slot: slot, move: move})
		}
		if !h.InPlace && (have.epoch.less(h.Epoch) || have.epoch == h.Epoch && have.position < h.Position) {
			n.lostWith(slot, n.core.cluster)
			n.store.staging[h.Job] = true
			n.log(simEntry{kind: simStage, slot: slot, move: move, staged: &simStaged{data[slot], h.Epoch, h.Position, h.Job}})
		}
	})
	held := func() {
		n.do(func(s *state, now time.Duration) output { return s.stageHeld(now, h.Job, h.Position) })
	}
	if mutated(mutStageAlone) {
		n.w.after(0, held)
		return
	}
	n.onceCommitted(n.replica.log.end, held)
}

// dropStage drops the data of a stage that is not needed any more. What a store has by a
// primary's log, or by a copy, is that one's to drop.
func (n *simNode) dropStage(job uint64) {
	own := n.store.staging[job]
	delete(n.store.staging, job)
	if own && n.core.role.primary.IsZero() {
		n.log(simEntry{kind: simUnstage, job: job})
	}
}

// adopt makes the staged data of slots live.
func (n *simNode) adopt(t adoptTell) {
	t.slots.each(func(slot Slot, move uint64) {
		was, owned := n.store.moves[slot]
		if owned && was >= move {
			return
		}
		stays := t.kept.Contains(slot) || n.store.imported[slot] == move // what has come key by key
		if !stays && n.w.ledger.many.Contains(slot) {
			n.pending = slices.DeleteFunc(n.pending, func(p simPending) bool { return p.slot == slot })
		}
		e := simEntry{kind: simOwn, slot: slot, move: move, data: n.store.values[slot]}
		if v, ok := n.store.staged[simSlotMove{slot, move}]; ok {
			e.data = v.data
		} else if !stays && (!owned || was+2 != move || !n.w.ledger.ownerAt(n, slot, was+1).IsZero()) {
			e.data = simData{} // what another shard has served since is not here
		}
		n.log(e)
	})
}

// reconcile adopts, after a start, what the table says is this node's.
func (n *simNode) reconcile() {
	if n.core == nil || n.core.cluster.IsZero() || n.core.isReplica(n.core.self) {
		return
	}
	var slots moveRuns
	own := n.core.table.slotsOf(n.core.self.Shard)
	for slot := range own.All() {
		slots.add(slot, n.core.table.slots.at(slot).move)
	}
	n.adopt(adoptTell{slots: slots})
}

// formedStore notes under which moves a node owns its slots when it forms.
func (n *simNode) formedStore() {
	own := n.core.table.slotsOf(n.core.self.Shard)
	for slot := range own.All() {
		n.log(simEntry{kind: simOwn, slot: slot, move: n.core.table.slots.at(slot).move, data: n.store.values[slot]})
	}
}

// drop lets go of the data of slots that have gone.
func (n *simNode) drop(slots moveRuns) {
	slots.each(func(slot Slot, move uint64) {
		if n.store.moves[slot] < move && n.store.imported[slot] <= move {
			n.log(simEntry{kind: simDrop, slot: slot})
		}
	})
}

// ---- making clusters

// simAnswer notes the answer to a command, for the trace.
func (w *simWorld) logged(n *simNode, what string) func(*commandError) {
	w.ledger.asked++
	return func(err *commandError) {
		w.ledger.answered++
		if err != nil {
			w.logf("%s: %s: -%s", n.name(), what, err.Text)
		} else {
			w.logf("%s: %s: +OK", n.name(), what)
		}
	}
}

// slotsCommand runs an operator's command on slots, of which all who live know once it
// is answered.
func (n *simNode) slotsCommand(what string, set SlotSet, to ShardID, step func(s *state, now time.Duration, id uint64) output, then func(*commandError)) {
	asked, answered := n.w.now, n.w.logged(n, what)
	n.command(step, func(err *commandError) {
		answered(err)
		if err == nil {
			n.w.checkR9(n, &set, to, asked)
		}
		if then != nil {
			then(err)
		}
	})
}

func (n *simNode) addSlots(set SlotSet) {
	if !n.up {
		return
	}
	n.slotsCommand("ADDSLOTS", set, n.core.self.Shard, func(s *state, now time.Duration, id uint64) output { return s.addSlots(now, id, set) }, nil)
}

func (n *simNode) delSlots(set SlotSet, then func(*commandError)) {
	n.slotsCommand("DELSLOTS", set, ShardID{}, func(s *state, now time.Duration, id uint64) output { return s.delSlots(now, id, set) }, then)
}

func (n *simNode) meet(addr string) {
	n.command(func(s *state, now time.Duration, id uint64) output { return s.meet(now, id, addr) }, n.w.logged(n, "MEET "+addr))
}

// byHand makes the first prims of ns a cluster as redis-cli does, and meets the
// rest.
func (w *simWorld) byHand(ns []*simNode, prims int) {
	for i, n := range ns {
		n.boot(w.newAddr())
		if i < prims {
			var set SlotSet
			set.AddRange(SlotRange{Slot(i * NumSlots / prims), Slot((i+1)*NumSlots/prims - 1)})
			n.addSlots(set)
			w.ledger.highest = max(w.ledger.highest, uint64(i+1))
			n.command(func(s *state, now time.Duration, id uint64) output { return s.setConfigEpoch(now, id, uint64(i+1)) }, w.logged(n, "SET-CONFIG-EPOCH"))
		}
	}
	for _, i := range w.r.Perm(len(ns)) {
		if i > 0 {
			w.after(w.between(0, 50*time.Millisecond), func() { ns[i].meet(ns[0].addr) })
		}
	}
}

// byNumber boots nodes that form by themselves.
func (w *simWorld) byNumber(ns []*simNode, prims int) {
	var seeds []string
	for range ns {
		seeds = append(seeds, w.newAddr())
	}
	for i, n := range ns {
		n.form = formNumbers{Seeds: 7, Primaries: uint16(prims), Replicas: uint16(len(ns)/prims - 1)}
		n.seeds = seeds[:1+w.r.IntN(len(seeds))]
		w.after(w.between(0, w.nt), func() {
			switch {
			case n.up:
			case w.at[seeds[i]] == nil:
				n.boot(seeds[i])
			default:
				n.boot(w.newAddr()) // somebody else has taken it
			}
		})
	}
}

// byOne boots one node that has every slot, and meets the rest.
func (w *simWorld) byOne(ns []*simNode) {
	ns[0].alone = true
	for _, n := range ns {
		n.boot(w.newAddr())
	}
	for _, n := range ns[1:] {
		n.meet(ns[0].addr)
	}
}

// ---- faults

// drawFaults draws which faults a seed has, and how strong.
func (w *simWorld) drawFaults() {
	f := &w.faults
	if w.chance(0.5) {
		f.loss = []float64{0.01, 0.05, 0.3}[w.r.IntN(3)]
	}
	if w.chance(0.4) {
		f.dup = []float64{0.02, 0.2}[w.r.IntN(2)]
	}
	if w.chance(0.5) {
		f.slow, f.slowBy = []float64{0.05, 0.3}[w.r.IntN(2)], []time.Duration{20 * time.Millisecond, w.nt / 4}[w.r.IntN(2)]
	}
	if w.chance(0.3) {
		f.outlier = 0.01
	}
	if w.chance(0.4) {
		f.diskSlow, f.diskBy = 0.1, []time.Duration{20 * time.Millisecond, w.nt, 10 * w.nt}[w.r.IntN(3)]
	}
	if w.chance(0.2) {
		f.diskFail = 0.01
	}
	if w.chance(0.6) {
		f.crash, f.crashUnsaved = []time.Duration{10 * w.nt, 30 * w.nt}[w.r.IntN(2)], w.chance(0.7)
	}
	if w.chance(0.4) {
		f.pause = 20 * w.nt
	}
	if w.chance(0.5) {
		f.partition, f.oneWay = []time.Duration{4 * w.nt, 15 * w.nt}[w.r.IntN(2)], w.chance(0.5)
	}
	if w.chance(0.5) {
		f.operators = []time.Duration{w.nt / 4, 3 * w.nt}[w.r.IntN(2)]
		f.unclean = w.chance(0.2)
	}
	if w.chance(0.7) {
		f.moves = []time.Duration{w.nt / 10, w.nt}[w.r.IntN(2)]
	}
	f.backlog = []int{8, 100, 2000}[w.r.IntN(3)]
	w.ack, w.volatile = w.r.IntN(2), w.chance(0.5)
	f.newAddress, f.foreign, f.lateTicks = w.chance(0.3), w.chance(0.3), w.chance(0.3)
	f.replyBy = []time.Duration{time.Millisecond, 50 * time.Millisecond}[w.r.IntN(2)]
	if w.chance(0.4) {
		f.slowReply = 0.05
	}
	own := rand.New(rand.NewPCG(w.seed, 0x4a6)) // so that the seeds without it are what they were before there was any
	if own.Float64() < 0.4 {
		f.hang = []time.Duration{3 * w.nt, 10 * w.nt}[own.IntN(2)]
	}
	if own.Float64() < 0.15 {
		f.lies = w.nt / 2
	}
	if own.Float64() < 0.15 {
		f.diskHangs = 15 * w.nt
	}
	w.drawStrikes(rand.New(rand.NewPCG(w.seed, 0x4a8)))
	w.drawReads()
	w.drawAsks()
	w.drawToAndFro()
	w.drawMarks(rand.New(rand.NewPCG(w.seed, 0x4a9)))
	w.sleeps = rand.New(rand.NewPCG(w.seed, 0x4aa))
	if w.sleeps.Float64() < 0.15 {
		f.sleep = []time.Duration{w.nt, 4 * w.nt}[w.sleeps.IntN(2)]
	}
}

// drawStrikes draws what strikes where chance alone hardly ever does, in a third of the
// seeds.
func (w *simWorld) drawStrikes(own *rand.Rand) {
	f := &w.faults
	switch k := own.IntN(20); {
	case k < 2:
		f.strikes, f.moves = roundMoves, []time.Duration{w.nt / 10, w.nt / 2}[own.IntN(2)]
	case k < 5:
		f.strikes, f.changes = roundVoters, []time.Duration{w.nt, 3 * w.nt}[own.IntN(2)]
	case k < 6:
		f.falls, w.ack = 2*w.nt, 1
	case k < 7:
		f.imposes, f.changes = 8*w.nt, 2*w.nt
	case k < 8:
		f.strikes, f.falls, w.ack = roundVotes, 3*w.nt, 1
	}
}

// unleash starts the faults; they end when the world is calm.
func (w *simWorld) unleash() {
	f := &w.faults
	w.every(f.moves, w.someMove)
	w.every(f.operators, w.someCommand)
	w.every(f.partition, w.somePartition)
	w.every(f.hang, w.someHang)
	w.every(f.lies, w.someLie)
	w.every(f.diskHangs, w.someDiskHangs)
	if f.strikes != roundNone {
		w.aimStrike()
	}
	w.every(f.changes, w.someChange)
	w.every(f.falls, w.someFall)
	w.every(f.imposes, w.someImpose)
	if f.marks > 0 {
		w.chooseMarked()
		w.every(f.marks, w.someMark)
	}
	if w.toAndFro != nil {
		w.everyBy(w.toAndFro, f.toAndFro, w.someToAndFro)
	}
	w.someSleep()
	for _, n := range w.nodes {
		w.every(f.crash, func() { w.someCrash(n) })
		w.every(f.pause, func() { w.somePause(n) })
	}
}

func (w *simWorld) every(mean time.Duration, fn func()) { w.everyBy(w.r, mean, fn) }

// everyBy is every by another stream of chance.
func (w *simWorld) everyBy(r *rand.Rand, mean time.Duration, fn func()) {
	if mean == 0 {
		return
	}
	w.after(time.Duration(r.ExpFloat64()*float64(mean)), func() {
		if w.calm {
			return
		}
		fn()
		w.everyBy(r, mean, fn)
	})
}

func (w *simWorld) someCrash(n *simNode) {
	if !n.up {
		return
	}
	n.crash(w.faults.crashUnsaved)
	down := w.between(w.nt/20, 4*w.nt)
	if w.chance(0.3) {
		down = w.between(0, w.nt/10)
	}
	w.after(down, n.restart)
}

func (w *simWorld) somePause(n *simNode) {
	if n.up {
		n.stop(w.between(w.nt/10, 3*w.nt))
		w.logf("%s is paused until %v", n.name(), n.paused)
	}
}

// stop keeps a node from running for a while: its process is stopped, or its machine
// sleeps, for which its clock jumps forward when it runs again.
func (n *simNode) stop(d time.Duration) {
	w := n.w
	if w.now > n.stopEnd {
		n.stopBefore, n.stopAt = n.stopEnd, w.now
	}
	n.stopEnd = max(n.stopEnd, w.now+d)
	n.paused = n.stopEnd
	if w.wrong == wrongClock {
		n.asleep += time.Duration(float64(d) * n.rate)
	}
}

// someSleep puts the machine of a node to sleep, again and again, by a stream of chance
// of its own.
func (w *simWorld) someSleep() {
	if w.faults.sleep == 0 {
		return
	}
	w.after(time.Duration(w.sleeps.ExpFloat64()*float64(w.faults.sleep)), func() {
		if w.calm {
			return
		}
		if n := w.nodes[w.sleeps.IntN(len(w.nodes))]; n.up && n.paused <= w.now {
			n.sleep(w.nt/10 + time.Duration(w.sleeps.Int64N(int64(3*w.nt))))
		}
		w.someSleep()
	})
}

// sleep is a machine that sleeps for a while. The node's clock jumps by that when the
// machine wakes up: CLOCK_BOOTTIME is what clock.go reads, and nothing else makes it jump.
// Timers do not know of the sleep, and what they had left to run they run then. So
// whatever comes first finds the clock far beyond what was due, and the tick may come
// long after that, unless something else wakes the run loop, which sets its timer anew.
func (n *simNode) sleep(d time.Duration) {
	w := n.w
	n.stop(d)
	n.deadTick = w.seq
	if n.tickAt != never {
		n.tickAt = max(n.tickAt, w.now) + d
		w.schedule(simEvent{at: n.tickAt, kind: simTick, node: int32(n.index), run: n.run})
	}
	w.ledger.reach("slept")
	w.logf("the machine of %s sleeps until %v, its tick comes at %v", n.name(), n.paused, n.tickAt)
}

func (w *simWorld) somePartition() {
	side := map[*simNode]bool{}
	if w.chance(0.5) {
		side[w.nodes[w.r.IntN(len(w.nodes))]] = true
	} else {
		for _, n := range w.nodes {
			if w.chance(0.5) {
				side[n] = true
			}
		}
	}
	oneWay := w.faults.oneWay && w.chance(0.5)
	w.cut = func(from, to *simNode) bool {
		if oneWay {
			return side[from] && !side[to]
		}
		return side[from] != side[to]
	}
	w.noteIsolation(side)
	w.logf("partition of %d nodes, one way %v", len(side), oneWay)
	end := w.now + w.between(w.nt/4, 6*w.nt)
	w.after(end-w.now, func() {
		if w.calm {
			return // it has been healed
		}
		w.cut = nil
		w.noteIsolation(nil)
		w.logf("healed")
	})
}

// someDiskHangs makes the disk of a node hang, until somebody kills its process.
func (w *simWorld) someDiskHangs() {
	n := w.liveNode()
	if n == nil || n.stuck {
		return
	}
	n.hangDisk()
	w.ledger.reach("a disk hung")
	run := n.run
	w.after(w.between(w.nt, 20*w.nt), func() {
		if !w.calm && n.run == run {
			n.crash(true)
			n.restart()
		}
	})
}

// someHang makes what the log of a shard carries between a replica and its primary
// wait, one way or both, while heartbeats come and go.
func (w *simWorld) someHang() {
	first := w.r.IntN(len(w.nodes))
	for i := range w.nodes {
		r := w.nodes[(first+i)%len(w.nodes)]
		if !r.up || r.core.role.primary.IsZero() {
			continue
		}
		if p := w.nodeOf(r.core.role.primary); p != nil {
			w.hang(r, p, w.r.IntN(3), w.between(w.nt/4, 6*w.nt))
			return
		}
	}
}

// The ways that may hang between a replica and its primary.
const (
	hangBoth    = iota
	hangAcks    // what the replica asks and acknowledges
	hangEntries // what the primary sends
)

func (w *simWorld) hang(r, p *simNode, way int, d time.Duration) {
	if w.hung == nil {
		w.hung = map[[2]*simNode]time.Duration{}
	}
	if way != hangEntries {
		w.hung[[2]*simNode{r, p}] = w.now + d
	}
	if way != hangAcks {
		w.hung[[2]*simNode{p, r}] = w.now + d
	}
	w.logf("the log between %s and its primary %s hangs for %v, way %d", r.name(), p.name(), d, way)
}

// someLie has a member say, in one frame, a number far above all that have been used:
// an epoch, a move, that another member or one that nobody knows is forgotten, of voters
// or their ballots, or what it asks votes under. Nobody believes it, also who has just
// started or joined. It is always the same one, and heard by nobody to whom it is all the
// voters: liars who are their majority are believed.
func (w *simWorld) someLie() {
	n := w.nodes[w.seed%uint64(min(3, len(w.nodes)))]
	if !n.up || n.core.cluster.IsZero() || n.core.self.State != present || !n.lives() {
		return
	}
	c := n.core
	to, victim := c.peers.ordered[w.aside.IntN(len(c.peers.ordered))], c.peers.ordered[w.aside.IntN(len(c.peers.ordered))]
	shard, far := w.someShard(n), 1<<32+w.aside.Uint64N(1<<20)
	if to == c.self || shard.IsZero() {
		return
	}
	m := c.lie(w.aside.IntN(7), shard, victim, far, w.ledger.highest)
	w.ledger.reach("lied")
	if w.lies == nil {
		w.lies = map[message]bool{}
	}
	w.lies[m] = true
	w.logf("%s lies to %s: %s", n.name(), to.ID.short(), describe(m))
	n.do(func(s *state, now time.Duration) output {
		s.begin(now)
		s.post(to, m)
		return s.end()
	})
}

// lie is the k-th kind of a lie, of a number that is by far above the highest used.
func (s *state) lie(k int, shard ShardID, victim *peer, far, highest uint64) message {
	number := Epoch{Number: highest + far, Node: s.id}
	voters := s.table.voters
	switch k {
	case 0:
		return s.newUpdate(func(u *updateMsg) { u.Shards = []shardRow{{shard, number}} })
	case 1:
		slot := Slot(far % NumSlots)
		return s.newUpdate(func(u *updateMsg) { u.Slots.add(slot, slotEntry{s.self.Shard, s.table.slots.at(slot).move + far}) })
	case 2:
		e := victim.peerEntry
		e.State, e.Version = forgotten, e.Version+far
		return s.newUpdate(func(u *updateMsg) { u.Peers = []peerEntry{e} })
	case 3:
		return s.newUpdate(func(u *updateMsg) {
			u.Peers = []peerEntry{{ID: NodeID(shard), Key: far, State: forgotten, Version: far}}
		})
	case 4:
		voters.Version.Number += far
		voters.ID, voters.Members = far, []member{{s.id, s.key}}
		return s.newUpdate(func(u *updateMsg) { u.Voters = []voterSet{voters} })
	case 5:
		return &stopMsg{voters.Version, ballot{far, s.id}, voters.Members}
	default:
		return &voteMsg{Voters: voters.Version, Shard: shard, Epoch: number, Incarnation: s.self.Store}
	}
}

func (w *simWorld) liveNode() *simNode {
	first := w.r.IntN(len(w.nodes))
	for i := range w.nodes {
		if n := w.nodes[(first+i)%len(w.nodes)]; n.up {
			return n
		}
	}
	return nil
}

// someMove hands over some slots that a node serves.
func (w *simWorld) someMove() {
	n := w.liveNode()
	if n == nil || n.core.cluster.IsZero() || n.core.serve.slots.Empty() {
		return
	}
	var set SlotSet
	hot := w.hotSlots()
	for range 1 + w.r.IntN(4) {
		if s := hot[w.r.IntN(len(hot))]; n.core.serve.slots.Contains(s) {
			set.Add(s)
		}
	}
	if w.chance(0.2) {
		for _, r := range n.core.serve.slots.Ranges()[:1] {
			set.AddRange(SlotRange{r.First, min(r.Last, r.First+Slot(w.r.IntN(300)))})
		}
	}
	to := w.someShard(n)
	if set.Empty() || to.IsZero() || to == n.core.self.Shard {
		return
	}
	job := w.r.Uint64() | 1
	w.logf("%s hands %s to %s, job %x", n.name(), set.String(), to.short(), job&0xffff)
	n.do(func(s *state, now time.Duration) output { return s.handOff(now, job, set, to) })
	if w.chance(0.2) {
		w.after(w.between(0, 5*time.Millisecond), func() {
			n.do(func(s *state, now time.Duration) output { return s.thaw(now, job) })
		})
	} else {
		w.after(w.nt, func() {
			n.do(func(s *state, now time.Duration) output { return s.thaw(now, job) })
		})
	}
}

func (w *simWorld) someShard(n *simNode) ShardID {
	ids := n.core.table.order
	if len(ids) == 0 {
		return ShardID{}
	}
	return ids[w.r.IntN(len(ids))]
}

func (w *simWorld) somePeer(n *simNode) NodeID {
	ps := n.core.peers.ordered
	return ps[w.r.IntN(len(ps))].ID
}

// someSlots is mostly slots without keys.
func (w *simWorld) someSlots() SlotSet {
	var set SlotSet
	first := Slot(w.r.IntN(NumSlots))
	set.AddRange(SlotRange{first, min(first+Slot(w.r.IntN(20)), NumSlots-1)})
	if w.chance(0.3) {
		set.Add(w.hotSlots()[w.r.IntN(48)])
	}
	return set
}

// someCommand is an operator who does something, sense or not.
func (w *simWorld) someCommand() {
	n := w.liveNode()
	if n == nil {
		return
	}
	switch {
	case w.chance(0.25):
		w.mend(n)
	case w.chance(0.1):
		w.forgetAndMend(n)
	case w.chance(0.1):
		w.forgetAndMeet(n)
	case w.chance(0.2):
		w.failOver(n)
	case w.chance(0.1):
		w.replicate(n, w.somePeer(n))
	default:
		w.command(n, w.r.IntN(20), w.someSlots())
	}
}

// failOver hands a shard over to a replica.
func (w *simWorld) failOver(n *simNode) {
	for _, i := range w.r.Perm(len(w.nodes)) {
		if o := w.nodes[i]; o.up && o.core.isReplica(o.core.self) {
			n = o
		}
	}
	mode := FailoverPlain
	if w.chance(0.3) {
		mode = FailoverForce
	}
	w.logf("%s: FAILOVER %d", n.name(), mode)
	n.command(func(s *state, now time.Duration, cmd uint64) output { return s.failoverTo(now, cmd, mode) }, w.logged(n, "FAILOVER"))
}

func (w *simWorld) replicate(n *simNode, id NodeID) {
	w.logf("%s: REPLICATE %s", n.name(), id.short())
	keys := len(n.store.values) > 0
	n.command(func(s *state, now time.Duration, cmd uint64) output { return s.replicate(now, cmd, id, keys) }, w.logged(n, "REPLICATE"))
}

// mend gives slots of a primary that has failed to another, as an operator does
// who has waited for long enough.
func (w *simWorld) mend(n *simNode) {
	c := n.core
	if c.cluster.IsZero() {
		return
	}
	for _, i := range w.r.Perm(len(c.peers.ordered)) {
		if p := c.peers.ordered[i]; c.leadsSlots(p) && (p.State == forgotten || c.failed(p)) {
			w.giveSome(n, p)
			return
		}
	}
}

// giveSome gives some slots of p to a primary that lives. Two operators may do
// so at once.
func (w *simWorld) giveSome(n *simNode, p *peer) {
	var set SlotSet
	for _, slot := range w.hotSlots() {
		if n.core.table.slots.at(slot).shard == p.Shard && w.chance(0.5) {
			set.Add(slot)
		}
	}
	for range 1 + w.r.IntN(2) {
		if to := w.liveNode(); to != nil && !set.Empty() {
			w.setSlot(n, set, to.core.id)
		}
		if n = w.liveNode(); n == nil {
			return
		}
	}
}

func (w *simWorld) setSlot(n *simNode, set SlotSet, to NodeID) {
	w.logf("%s: SETSLOT %s NODE %s", n.name(), set.String(), to.short())
	var shard ShardID
	if !n.up {
		return
	}
	if p := n.core.peers.get(to); p != nil {
		shard = p.Shard
	}
	n.slotsCommand("SETSLOT NODE", set, shard, func(s *state, now time.Duration, cmd uint64) output { return s.setSlots(now, cmd, set, to) }, nil)
}

// forgetAndMend forgets a primary by force, whether it lives or not, and gives
// its slots away at once.
func (w *simWorld) forgetAndMend(n *simNode) {
	p := n.core.peers.get(w.somePeer(n))
	if n.core.cluster.IsZero() || p == n.core.self || !n.core.leadsSlots(p) {
		return
	}
	w.forget(n, p.ID, true)
	if n.up {
		w.giveSome(n, p)
	}
}

// forgetAndMeet forgets a node here, and meets it again elsewhere.
func (w *simWorld) forgetAndMeet(n *simNode) {
	id := w.somePeer(n)
	w.forget(n, id, false)
	for _, o := range w.nodes {
		if o.up && o.core.id == id {
			if m := w.liveNode(); m != nil {
				w.logf("%s: MEET %s", m.name(), o.name())
				w.after(w.between(0, w.nt/10), func() { m.meet(o.addr) })
			}
		}
	}
}

func (w *simWorld) forget(n *simNode, id NodeID, force bool) {
	w.logf("%s: FORGET %s %v", n.name(), id.short(), force)
	n.command(func(s *state, now time.Duration, cmd uint64) output { return s.forget(now, cmd, id, force) }, w.logged(n, "FORGET"))
}

// command is the k-th of an operator's commands, at n.
func (w *simWorld) command(n *simNode, k int, set SlotSet) {
	other := w.nodes[w.r.IntN(len(w.nodes))]
	switch {
	case k < 3:
		w.logf("%s: ADDSLOTS %s", n.name(), set.String())
		n.addSlots(set)
		if o := w.liveNode(); w.chance(0.3) && o != nil {
			o.addSlots(set) // another operator, at once
		}
	case k < 5:
		w.logf("%s: DELSLOTS %s", n.name(), set.String())
		n.delSlots(set, nil)
	case k < 6: // what fix does
		w.logf("%s: DELSLOTS, ADDSLOTS %s", n.name(), set.String())
		n.delSlots(set, func(*commandError) { n.addSlots(set) })
	case k < 11:
		w.setSlot(n, set, w.somePeer(n))
	case k < 13:
		n.command(func(s *state, now time.Duration, id uint64) output { return s.bumpEpoch(now, id) }, w.logged(n, "BUMPEPOCH"))
	case k < 15:
		if other.addr != "" {
			w.logf("%s: MEET %s", n.name(), other.name())
			n.meet(other.addr)
		}
	case k < 16:
		w.forget(n, w.somePeer(n), w.chance(0.1))
	case k < 17:
		hard, keys := w.chance(0.5), len(n.store.values) > 0 && w.chance(0.9)
		w.logf("%s: RESET %v", n.name(), hard)
		n.command(func(s *state, now time.Duration, id uint64) output { return s.reset(now, id, hard, keys) }, w.logged(n, "RESET"))
	case k < 18:
		w.logf("%s: leave", n.name())
		n.command(func(s *state, now time.Duration, id uint64) output { return s.depart(now, id) }, w.logged(n, "leave"))
	case k < 19 && w.faults.unclean:
		w.logf("%s: TAKEOVER", n.name())
		n.command(func(s *state, now time.Duration, id uint64) output { return s.takeover(now, id) }, w.logged(n, "TAKEOVER"))
	case w.faults.unclean:
		set := []NodeID{w.somePeer(n)}
		w.logf("%s: imposes voter %s", n.name(), set[0].short())
		w.ledger.imposed = true
		n.command(func(s *state, now time.Duration, id uint64) output { return s.forceVoters(now, id, set) }, w.logged(n, "ForceVoters"))
	}
}
