package slotmesh

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// The simulator: N cores under one queue of events, with a clock of its own. All
// chance comes from the seed, so that the same seed gives the same trace.

const simNT = 2 * time.Second

type simEventKind uint8

const (
	simTick simEventKind = iota
	simDeliver
	simSaved
	simOp
	simReply
	simCall
)

// simEvent is due at a time; run tells whether its node is still the same
// process.
type simEvent struct {
	at     time.Duration
	seq    uint64
	kind   simEventKind
	node   int32
	run    int32
	flight *simFlight
	op     simPending
	fn     func()
}

// simFlight is a message on its way.
type simFlight struct {
	from sender
	node int32 // that sent it
	to   wanted
	addr string
	msg  message
}

// simQueue is a binary heap by (at, seq). Events are large: they are moved, not swapped.
type simQueue []simEvent

func (e *simEvent) before(o *simEvent) bool { return e.at < o.at || e.at == o.at && e.seq < o.seq }

func (q *simQueue) push(e simEvent) {
	*q = append(*q, e)
	h, i := *q, len(*q)-1
	for i > 0 {
		parent := (i - 1) / 2
		if !e.before(&h[parent]) {
			break
		}
		h[i] = h[parent]
		i = parent
	}
	h[i] = e
}

func (q *simQueue) pop() simEvent {
	h := *q
	top, last := h[0], len(h)-1
	e := h[last]
	h[last] = simEvent{}
	if h = h[:last]; last > 0 {
		h.sink(e)
	}
	*q = h
	return top
}

// sink puts e where the first event was, below all that are due earlier.
func (q simQueue) sink(e simEvent) {
	i := 0
	for {
		child := 2*i + 1
		if child >= len(q) {
			break
		}
		if child+1 < len(q) && q[child+1].before(&q[child]) {
			child++
		}
		if !q[child].before(&e) {
			break
		}
		q[i] = q[child]
		i = child
	}
	q[i] = e
}

// simFaults is what may happen to messages, disks and processes. Each seed draws
// a part of it: what always happens together hides what happens alone.
type simFaults struct {
	loss, dup    float64
	slow         float64 // share of messages that take up to slowBy
	slowBy       time.Duration
	outlier      float64 // share that take up to 60 s
	diskSlow     float64 // share of saves that take up to diskBy
	diskBy       time.Duration
	diskFail     float64       // share of saves that fail, for good: the process ends, or saves no more
	crash        time.Duration // mean time between crashes of a node; 0: none
	crashUnsaved bool          // what is not saved is lost
	pause        time.Duration // mean time between pauses
	partition    time.Duration // mean time between partitions
	oneWay       bool
	operators    time.Duration // mean time between senseless commands
	unclean      bool          // with TAKEOVER and imposed voters among them
	moves        time.Duration // mean time between hand-overs
	newAddress   bool          // a restart may come up at another address
	foreign      bool          // nodes of another cluster take addresses that are free
	lateTicks    bool
	opsEvery     time.Duration // per node
	replyBy      time.Duration // a reply takes up to that long
	slowReply    float64       // share of replies that take much longer
	backlog      int           // entries of a log that are kept
	hang         time.Duration // mean time between hangs of what a log goes over
	lies         time.Duration // mean time between frames with numbers that nobody has used
	diskHangs    time.Duration // mean time between disks that complete no save any more
	strikes      simRound      // in the middle of which more goes wrong
	changes      time.Duration // mean time between changes of the voters that nobody wants
	falls        time.Duration // mean time between two deaths of primaries of one shard
	sleep        time.Duration // mean time between machines that sleep
	imposes      time.Duration // mean time between voters that are imposed on one side of a partition
	marks        time.Duration // mean time between commands of who moves a slot key by key
	toAndFro     time.Duration // mean time between operators who fail a shard over to and fro
}

type simNode struct {
	w        *simWorld
	index    int
	core     *state
	up       bool
	run      int32
	addr     string
	host     string
	form     formNumbers
	seeds    []string
	alone    bool
	gone     bool    // for good
	rate     float64 // of its clock
	origin   time.Duration
	bootAt   time.Duration
	asleep   time.Duration // what its clock lacks of the time for which its machine slept: see wrongClock
	paused   time.Duration // until then nothing runs here
	disk     map[cellKey][]byte
	saving   []simSaving
	stuck    bool // no save completes
	held     []send
	toldHeld []tell
	tickAt   time.Duration
	deadTick uint64 // ticks scheduled up to this one do not come
	starts   int
	sent     simSent

	store   simStore
	replica simReplica
	pending []simPending // ran and not replied
	replies map[uint64]func(*commandError)
	nextCmd uint64

	marks            map[Slot]simMark           // as its driver knows them
	hungFrom, hungTo time.Duration              // when its disk hung last
	newMarks         SlotSet                    // of which that may change
	moving           map[simSlotKey]*simMigrate // keys whose writers wait
	sentKeys         map[simSlotKey]*simWrite   // what a MIGRATE that nobody has answered may have left at its target
	view             *view

	// What the checks remember of it.
	lastTable, lastPeers uint64
	lastBuckets          [numBuckets]uint64
	durableEpoch         uint64
	knownPeers           map[NodeID]simPeerSeen
	knownShards          map[ShardID]Epoch
	news                 bool                   // something of these two is not in the next two yet
	durablePeers         map[NodeID]simPeerSeen // what of them is on disk
	durableShards        map[ShardID]Epoch
	votes                map[ShardID]voteCell // of this node as a voter, that are on disk
	stoppedIn            uint64               // id of the START under which it was stopped after its last step
	isolatedAt           time.Duration
	isolatedIn           voterVersion
	forcedAt             time.Duration // when it has won by force
	forcedIn             Epoch
	wonIn                Epoch // the epoch that it has won last since it started, or that it has formed with
	heard                map[NodeID]time.Duration
	stopAt, stopEnd      time.Duration // of its last stop
	stopBefore           time.Duration // when the one before ended
	lastSilent           []NodeID
	alarmed              bool       // it has said that another node has its id
	was                  simWas     // after its last step
	wasReset             bool       // it is of no deployment any more
	led                  simLed     // what it led after its last step
	byConsent            Epoch      // for which it has stood because its primary had agreed
	stood                *candidacy // the stand that was looked at last: see checkRP5
	lastEpoch            uint64
	lastBallot           uint64
	jumps                map[NodeID]simJumps // EP7: by how much frames of others have raised numbers here
	servedUntil          time.Duration       // R13: until when it serves under a START that is not decided yet
	knownVoters          voterVersion        // MB6: the newest voters that it has known
	votersOf             ClusterID           // and of which cluster
	decided              []simDecided        // R9: the last moves that it has counted a majority for
}

// simDecided is a move that a node has counted a majority for on behalf of the one command
// that was under way there, and the members that it heard then.
type simDecided struct {
	at   time.Duration
	slot Slot
	to   ShardID
	move uint64
	near []simProcess
}

// simProcess is a node, until it ends.
type simProcess struct {
	*simNode
	run int32
}

// simJumps is by how much the frames of one member have raised numbers in a minute.
type simJumps struct {
	known  bool
	minute time.Duration // began then, by the clock of who was told
	sums   [numNumberKinds]uint64
	lies   uint64 // that it has told since the start
}

// simSaving is a save under way.
type simSaving struct {
	save
	due time.Duration
}

// simSent counts what a node sends.
type simSent struct{ frames, bytes uint64 }

func (s *simSent) add(o simSent) {
	s.frames += o.frames
	s.bytes += o.bytes
}

// simWas is what a node was.
type simWas struct {
	member  member
	cluster ClusterID
	voters  voterSet
	out     bool     // it has been forgotten
	others  []NodeID // that are members in its eyes
}

// alone reports whether it was the last of its cluster in its own eyes.
func (s *simWas) alone() bool { return s.out || len(s.others) == 0 }

type simPeerSeen struct {
	key           uint64
	state         memberState
	version       uint64
	starts, facts uint64
}

type simWorld struct {
	seed   uint64
	r      *rand.Rand
	aside  *rand.Rand // for what the seeds should not change by
	sleeps *rand.Rand // for the sleep of machines
	reads  *rand.Rand // for reads at replicas; nil: there are none
	asks   *rand.Rand // for writes that want replicas; nil: there are none
	// toAndFro is for operators who fail over to and fro; nil: nobody does.
	toAndFro *rand.Rand
	nt       time.Duration
	now      time.Duration
	seq      uint64
	queue    simQueue
	nodes    []*simNode
	at       map[string]*simNode // by address
	addrs    int
	cut      func(from, to *simNode) bool
	faults   simFaults
	drawn    simFaults // of the seed
	hash     uint64
	exact    *valueWriter // where the hash takes in all that frames say: encodes them
	frame    []byte
	steps    uint64
	bytes    bool // count the frames of each node, and their bytes

	ledger    simLedger
	fails     []string
	stopAt    bool // at the first violation
	unchecked bool // nothing is looked at
	trace     *simTrace
	calm      bool
	clocks    float64                              // by how much their rates may differ
	reading   NodeID                               // whose frame a node reads; zero: none
	filter    func(f *simFlight, to *simNode) bool // directed schedules: false drops
	filters   map[int]func(f *simFlight, to *simNode) bool
	filterSeq int
	// logFilters are asked about what the logs of shards carry: false drops it, or
	// keeps it back to call arrive later.
	logFilters map[int]func(from, to *simNode, what any, arrive func()) bool
	cuts       map[[2]*simNode]bool
	hung       map[[2]*simNode]time.Duration // until when what the log of a shard carries from one node to another waits
	severed    map[*simNode]simSevered       // by strikes
	losses     []simLoss
	nextStrike time.Duration
	strikeAt   msgKind
	maxVoters  int
	freezeFor  time.Duration     // that a freeze takes at least
	ack        int               // AckReplicas of every node
	volatile   bool              // stores are gone with their process
	lies       map[message]bool  // that have been told
	rivals     map[*simNode]bool // unformed nodes that claim one slot
	marked     []Slot            // that operators move key by key; empty: none
	calls      *simCalls         // of clients, where they are recorded
	wrong      simWrong          // what drivers do wrong, on purpose
	tap        func(n *simNode, what any)
	onSend     func(n *simNode, m message)
}

// simTrace keeps the last lines.
type simTrace struct {
	lines []string
	max   int
}

func (w *simWorld) logf(format string, args ...any) {
	if w.trace == nil {
		return
	}
	t := w.trace
	t.lines = append(t.lines, fmt.Sprintf("%12.3f ms  ", float64(w.now)/1e6)+fmt.Sprintf(format, args...))
	if len(t.lines) > 2*t.max {
		t.lines = slices.Clone(t.lines[len(t.lines)-t.max:])
	}
}

func (t *simTrace) String() string {
	return strings.Join(t.lines[max(0, len(t.lines)-t.max):], "\n")
}

// fail notes a violation; name is that of the invariant.
func (w *simWorld) fail(name, format string, args ...any) {
	s := name + ": " + fmt.Sprintf(format, args...)
	w.logf("VIOLATION %s", s)
	if len(w.fails) < 20 {
		w.fails = append(w.fails, fmt.Sprintf("%v %s", w.now, s))
	}
}

func newSimWorld(seed uint64) *simWorld {
	w := &simWorld{seed: seed, r: rand.New(rand.NewPCG(seed, 0x5107)), aside: rand.New(rand.NewPCG(seed, 0x4a7)), nt: simNT, at: map[string]*simNode{}, hash: 14695981039346656037}
	w.faults = simFaults{opsEvery: 10 * time.Millisecond, replyBy: time.Millisecond}
	w.clocks, w.maxVoters = 0.01, maxVotersDefault
	w.ledger.init()
	return w
}

func (w *simWorld) mixHash(x uint64) { w.hash = (w.hash ^ x) * 1099511628211 }

// mixFrame takes all that a frame says into the hash, and as whom.
func (w *simWorld) mixFrame(f *simFlight) {
	if w.exact == nil {
		return
	}
	b, err := w.exact.appendFrame(w.frame[:0], f.msg)
	if err != nil {
		w.fail("PR3", "%v does not encode: %v", f.msg.kind(), err)
	}
	b = append(append(b, f.from.Cluster[:]...), f.from.Shard[:]...)
	w.frame = b
	for _, x := range b {
		w.mixHash(uint64(x))
	}
	for _, x := range []uint64{f.from.Key, f.from.Incarnation, f.from.Starts, f.from.Facts, f.from.Store, f.to.Key, f.to.Incarnation} {
		w.mixHash(x)
	}
}

func (w *simWorld) schedule(e simEvent) {
	w.seq++
	e.seq = w.seq
	w.queue.push(e)
}

// after runs fn in d, whatever becomes of any node.
func (w *simWorld) after(d time.Duration, fn func()) {
	w.schedule(simEvent{at: w.now + d, kind: simCall, node: -1, fn: fn})
}

func (w *simWorld) between(lo, hi time.Duration) time.Duration {
	if hi <= lo {
		return lo
	}
	return lo + time.Duration(w.r.Int64N(int64(hi-lo)))
}

func (w *simWorld) chance(p float64) bool { return p > 0 && w.r.Float64() < p }

// mean draws from the exponential distribution.
func (w *simWorld) mean(d time.Duration) time.Duration {
	return time.Duration(w.r.ExpFloat64() * float64(d))
}

// ---- nodes

func (w *simWorld) addNode() *simNode {
	n := &simNode{w: w, index: len(w.nodes), host: fmt.Sprint("host", len(w.nodes)), rate: 1, disk: map[cellKey][]byte{},
		replies: map[uint64]func(*commandError){}, isolatedAt: never}
	n.rate = 1 + w.clocks*(w.r.Float64()-0.5)
	w.nodes = append(w.nodes, n)
	return n
}

func (w *simWorld) newAddr() string {
	w.addrs++
	return fmt.Sprint("addr", w.addrs)
}

func (n *simNode) name() string { return fmt.Sprint("n", n.index) }

// local is the node's own clock.
func (n *simNode) local() time.Duration {
	return n.origin + time.Duration(float64(n.w.now-n.bootAt)*n.rate) - n.asleep
}

// global is when the node's clock will show t.
func (n *simNode) global(t time.Duration) time.Duration {
	return n.bootAt + time.Duration(float64(t-n.origin+n.asleep)/n.rate) + 1
}

// boot starts the node from its disk, at addr.
func (n *simNode) boot(addr string) {
	w := n.w
	var cells []cell
	n.votes = map[ShardID]voteCell{}
	for _, k := range sortedCells(n.disk) {
		cells = append(cells, cell{k, n.disk[k]})
		n.noteVote(cells[len(cells)-1])
	}
	n.run++
	n.starts++
	n.up, n.addr, n.bootAt, n.paused = true, addr, w.now, 0
	n.origin, n.asleep = w.between(0, time.Hour), 0
	w.at[addr] = n
	seed := w.r.Uint64()
	r := rand.New(rand.NewPCG(seed, uint64(n.index)))
	n.bootReplica()
	core, err := newState(coreConfig{nodeTimeout: w.nt, maxVoters: w.maxVoters, incarnation: r.Uint64() | 1, host: n.host,
		store: n.replica.inc, holdsCopy: n.replica.copy, ackReplicas: w.ack,
		addr: addr, form: n.form, alone: n.alone, random: r.Uint64}, cells)
	if err != nil {
		w.fail("PS1", "%s does not load: %v", n.name(), err)
		n.up = false
		return
	}
	n.core = core
	if n.stuck {
		n.hungTo = w.now
	}
	n.saving, n.held, n.toldHeld, n.pending, n.stuck = nil, nil, nil, nil, false
	n.led = simLed{}
	n.marksLoaded()
	n.sentKeys = map[simSlotKey]*simWrite{}
	n.replies = map[uint64]func(*commandError){}
	n.knownPeers, n.knownShards, n.lastTable, n.lastPeers = copyOf(n.durablePeers), copyOf(n.durableShards), 0, 0
	n.lastBuckets = [numBuckets]uint64{}
	n.lastEpoch, n.lastBallot = core.epochHigh, core.vote.stop.Number
	n.tickAt = never
	n.isolatedAt, n.forcedAt, n.stopAt, n.stopEnd, n.stopBefore = never, never, never, never, never
	n.alarmed, n.jumps, n.votersOf, n.servedUntil = false, map[NodeID]simJumps{}, ClusterID{}, never
	n.decided, n.byConsent = nil, Epoch{}
	n.heard, n.lastSilent, n.forcedIn, n.wonIn = map[NodeID]time.Duration{}, nil, Epoch{}, Epoch{}
	if len(n.seeds) > 0 {
		core.setSeeds(n.seeds)
	}
	w.checkEP1Loaded(n)
	n.handle(core.boot(n.local()))
	n.reconcile()
	w.logf("%s boots as %s at %s, cluster %s", n.name(), core.id.short(), addr, core.cluster.String()[:6])
	if w.faults.opsEvery > 0 {
		w.schedule(simEvent{at: w.now + w.between(0, w.faults.opsEvery), kind: simOp, node: int32(n.index), run: n.run})
	}
}

func sortedCells(m map[cellKey][]byte) []cellKey {
	keys := make([]cellKey, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, cellKey.compare)
	return keys
}

// crash ends the process. Of the saves under way a prefix is on disk.
func (n *simNode) crash(loseUnsaved bool) {
	if !n.up {
		return
	}
	w := n.w
	w.logf("%s crashes", n.name())
	keep := len(n.saving)
	if loseUnsaved {
		keep = w.r.IntN(keep + 1)
	}
	for _, s := range n.saving[:keep] {
		n.apply(s.save)
	}
	n.up = false
	n.run++
	n.core = nil
	if w.at[n.addr] == n {
		delete(w.at, n.addr)
	}
}

func (n *simNode) apply(s save) {
	for _, c := range s.cells {
		n.noteVote(c)
		if c.value == nil {
			delete(n.disk, c.key)
		} else {
			n.disk[c.key] = c.value
		}
	}
}

// do runs one step of the core.
func (n *simNode) do(step func(s *state, now time.Duration) output) {
	if !n.up {
		return
	}
	n.core.logAt = n.replica.log.position()
	if len(n.w.marked) > 0 {
		n.core.holdsKeys = len(n.store.values) > 0
	}
	n.handle(step(n.core, n.local()))
}

// command runs an operator's command; done is called with its answer, unless
// the node ends before.
func (n *simNode) command(step func(s *state, now time.Duration, id uint64) output, done func(*commandError)) {
	if !n.up {
		return
	}
	if err := n.core.cannotSave(); err != nil {
		done(err)
		return
	}
	n.nextCmd++
	id := n.nextCmd
	n.replies[id] = done
	n.do(func(s *state, now time.Duration) output { return step(s, now, id) })
}

// handle carries out what a step asks.
func (n *simNode) handle(out output) {
	w := n.w
	for _, s := range out.saves {
		d := w.between(20*time.Microsecond, 300*time.Microsecond)
		if w.chance(w.faults.diskSlow) {
			d = w.between(0, w.faults.diskBy)
		}
		if n.stuck {
			d = simHangs
		}
		due := w.now + d
		if k := len(n.saving); k > 0 {
			due = max(due, n.saving[k-1].due) // one writer: a save follows the one before
		}
		n.saving = append(n.saving, simSaving{save{s.n, slices.Clone(s.cells)}, due})
		w.schedule(simEvent{at: due, kind: simSaved, node: int32(n.index), run: n.run})
	}
	w.checkAnswers(n, out.sends)
	for _, m := range out.sends {
		if m.after > n.core.savedSeq {
			n.held = append(n.held, m)
		} else {
			n.send(m)
		}
	}
	core := n.core
	tells := slices.Clone(out.tells)
	for _, t := range tells {
		switch t := t.what.(type) {
		case eventTell:
			w.checkEvent(n, t.event)
		case markTell:
			n.noteMark(t)
		}
	}
	w.checkStep(n)
	n.followRole()
	for _, t := range tells {
		if t.after > core.savedSeq {
			n.toldHeld = append(n.toldHeld, t)
		} else if n.core == core {
			n.tell(t.what)
		}
	}
	if n.core != core {
		return
	}
	if at := max(n.global(core.wake), w.now); n.tickAt == never || at < n.tickAt || n.tickAt < w.now {
		n.tickAt = at
		if w.faults.lateTicks && w.chance(0.02) {
			at += w.between(0, w.nt/5)
		}
		w.schedule(simEvent{at: at, kind: simTick, node: int32(n.index), run: n.run})
	}
}

const simHangs = time.Hour // how long a save takes that never completes

// hangDisk makes no save complete any more.
func (n *simNode) hangDisk() {
	n.w.logf("the disk of %s hangs", n.name())
	n.stuck, n.hungFrom, n.hungTo = true, n.w.now, forever
	for i := range n.saving {
		n.saving[i].due = n.w.now + simHangs
	}
}

// unblockDisk makes what is being saved complete soon.
func (n *simNode) unblockDisk() {
	w := n.w
	n.stuck = false
	for i := range n.saving {
		n.saving[i].due = w.now
		w.schedule(simEvent{at: w.now, kind: simSaved, node: int32(n.index), run: n.run})
	}
}

// savedOne completes the oldest save under way, if it is due.
func (n *simNode) savedOne() {
	w := n.w
	if len(n.saving) == 0 || n.saving[0].due > w.now {
		return
	}
	s := n.saving[0]
	if w.chance(w.faults.diskFail) {
		n.diskFails()
		return
	}
	n.saving = n.saving[1:]
	n.apply(s.save)
	n.do(func(c *state, now time.Duration) output { return c.saved(now, s.n) })
	if !n.up {
		return
	}
	n.say()
	core := n.core
	held := n.held
	n.held = nil
	for _, m := range held {
		if m.after > core.savedSeq {
			n.held = append(n.held, m)
		} else {
			n.send(m)
		}
	}
	told := n.toldHeld
	n.toldHeld = nil
	for _, t := range told {
		switch {
		case t.after > core.savedSeq:
			n.toldHeld = append(n.toldHeld, t)
		case n.core == core:
			n.tell(t.what)
		}
	}
}

// diskFails ends the process, or lets it run on without a disk until somebody kills
// it, or until the end.
func (n *simNode) diskFails() {
	w := n.w
	if w.chance(0.5) {
		n.crash(true)
		w.after(w.between(w.nt/4, 2*w.nt), n.restart)
		return
	}
	n.breakDisk()
	run := n.run
	w.after(w.between(w.nt/4, 20*w.nt), func() {
		if !w.calm && n.run == run {
			n.crash(true)
			n.restart()
		}
	})
}

// breakDisk makes every save fail from now on. The one under way may be on disk.
func (n *simNode) breakDisk() {
	w := n.w
	w.logf("%s cannot save", n.name())
	w.ledger.reach("a disk failed")
	if len(n.saving) > 0 && w.chance(0.5) {
		n.apply(n.saving[0].save)
	}
	told := n.toldHeld
	n.saving, n.held, n.toldHeld = nil, nil, nil
	n.do(func(s *state, now time.Duration) output { return s.saveFailed(now, errDiskFailed) })
	for _, t := range told {
		n.tell(n.core.abandoned(t.what))
	}
}

var errDiskFailed = errors.New("the disk has failed")

// lives reports whether a node is up and can save: to the others it is dead
// otherwise.
func (n *simNode) lives() bool { return n.up && n.core.broken == nil }

// restart boots a node that is down, where it was or elsewhere.
func (n *simNode) restart() {
	w := n.w
	if n.up || n.gone {
		return
	}
	addr := n.addr
	if addr == "" || w.at[addr] != nil || w.faults.newAddress && w.chance(0.3) && !w.calm {
		addr = w.newAddr()
	}
	n.boot(addr)
}

// ---- the network

func (n *simNode) send(m send) {
	w := n.w
	f := &simFlight{from: *m.from, node: int32(n.index), addr: m.to.addr, msg: m.msg, to: m.to.wanted}
	w.checkSend(n, m.from, m.msg)
	if w.onSend != nil {
		w.onSend(n, m.msg)
	}
	kind := m.msg.kind()
	if w.bytes {
		b, err := appendFrame(nil, m.msg)
		if err != nil {
			w.fail("PR3", "%v does not encode: %v", kind, err)
		}
		n.sent.add(simSent{1, uint64(len(b))})
	}
	if w.trace != nil && kind != msgHeartbeat {
		w.logf("%s -> %s %s", n.name(), w.nameAt(f.addr), describe(m.msg))
	}
	if w.struck(n, f) || w.chance(w.faults.loss) {
		return
	}
	copies := 1
	if w.chance(w.faults.dup) {
		copies = 2
	}
	for range copies {
		d := w.between(100*time.Microsecond, time.Millisecond)
		switch {
		case w.chance(w.faults.outlier):
			d = w.between(0, time.Minute)
		case w.chance(w.faults.slow):
			d = w.between(0, w.faults.slowBy)
		}
		w.schedule(simEvent{at: w.now + d, kind: simDeliver, node: -1, flight: f})
	}
}

func (w *simWorld) nameAt(addr string) string {
	if n := w.at[addr]; n != nil {
		return n.name()
	}
	return addr
}

func (w *simWorld) deliver(f *simFlight) {
	to := w.at[f.addr]
	if to == nil || !to.up {
		return
	}
	from := w.nodes[f.node]
	if w.isCut(from, to) {
		return
	}
	if w.filter != nil && !w.filter(f, to) {
		return
	}
	if to.paused > w.now {
		w.schedule(simEvent{at: to.paused, kind: simDeliver, node: -1, flight: f})
		return
	}
	if w.lies[f.msg] {
		if to.mustBelieve(f.from.ID) {
			return
		}
		to.noteLie(f.from.ID)
	}
	w.mixHash(uint64(f.node)<<32 | uint64(to.index)<<8 | uint64(f.msg.kind()))
	w.mixFrame(f)
	before := w.beforeForeign(f, to)
	heard := time.Duration(never)
	if !w.unchecked {
		heard = to.heardAt(f.from.ID)
	}
	w.reading = f.from.ID
	to.do(func(s *state, now time.Duration) output { return s.receive(now, f.from, f.to, f.msg) })
	w.reading = NodeID{}
	if !w.unchecked {
		to.noteHeard(f.from.ID, heard)
	}
	w.checkMB2(f, to, before)
}

// mustBelieve reports whether a member is all the voters that a node knows of, and so
// their majority.
func (n *simNode) mustBelieve(id NodeID) bool {
	v := n.core.table.voters.Members
	return len(v) == 1 && v[0].ID == id
}

// ---- running

// run goes on until a time, or the first violation.
func (w *simWorld) run(until time.Duration) {
	for len(w.queue) > 0 && w.queue[0].at <= until {
		if w.stopAt && len(w.fails) > 0 {
			return
		}
		e := w.queue.pop()
		w.now = e.at
		w.steps++
		w.mixHash(uint64(e.at))
		w.mixHash(uint64(e.kind))
		w.step(e)
		if w.steps%1000 == 0 && !w.unchecked {
			w.nodes[int(w.steps/1000)%len(w.nodes)].lookAnew()
			w.checkAll()
		}
	}
	w.now = max(w.now, until)
}

func (w *simWorld) step(e simEvent) {
	if e.kind == simCall {
		e.fn()
		return
	}
	if e.kind == simDeliver {
		w.deliver(e.flight)
		return
	}
	n := w.nodes[e.node]
	if !n.up || n.run != e.run {
		return
	}
	if e.kind == simTick && e.seq <= n.deadTick {
		return
	}
	if n.paused > w.now {
		e.at = n.paused
		w.schedule(e)
		return
	}
	switch e.kind {
	case simTick:
		if e.at >= n.tickAt {
			n.tickAt = never
		}
		if n.local() < n.core.wake {
			n.handle(output{}) // woken early: another tick is due later
			return
		}
		n.core.logHas = n.replica.log.progress()
		n.asleep = 0
		n.do((*state).tick)
	case simSaved:
		n.savedOne()
	case simOp:
		w.clientOp(n)
		if n.core != nil {
			w.replicaOp(n)
		}
		w.schedule(simEvent{at: w.now + w.faults.opsEvery, kind: simOp, node: e.node, run: e.run})
	case simReply:
		w.clientReply(n, e.op)
	}
}

// describe is a message for the trace.
func describe(m message) string {
	switch m := m.(type) {
	case *updateMsg:
		var b strings.Builder
		fmt.Fprintf(&b, "UPDATE seq %x", m.Seq&0xffff)
		for i := range m.Peers {
			e := &m.Peers[i]
			fmt.Fprintf(&b, " peer(%s %v v%d %s)", e.ID.short(), e.State, e.Version, e.Addr)
		}
		for _, r := range m.Shards {
			fmt.Fprintf(&b, " shard(%s %v)", r.ID.short(), r.Epoch)
		}
		for _, r := range m.Slots.Runs {
			fmt.Fprintf(&b, " %d-%d>%s.%d", r.First, r.Last, m.Slots.Shards[r.Shard].short(), r.Move)
			if b.Len() > 300 {
				b.WriteString(" ...")
				break
			}
		}
		for i := range m.Voters {
			fmt.Fprintf(&b, " voters %v", describeVoters(&m.Voters[i]))
		}
		return b.String()
	case *voteMsg:
		return fmt.Sprintf("VOTE v%v %s %v %v %v", m.Voters, m.Shard.short(), m.Epoch, m.Why, briefMoves(m.Slots))
	case *grantMsg:
		return fmt.Sprintf("GRANT v%v %s %v accepted %v", m.Voters, m.Shard.short(), m.Epoch, briefAccepts(&m.Accepted))
	case *refuseMsg:
		return fmt.Sprintf("REFUSE v%v %s %v: %v promised %v in %d ms", m.Voters, m.Shard.short(), m.Epoch, m.Why, m.Promised, m.RetryIn)
	case *recordMsg:
		return fmt.Sprintf("RECORD v%v %s %v n%d in sync %v kept %v opened %v", m.Voters, m.Record.Shard.short(), m.Record.Epoch, m.Record.N, briefMembers(m.Record.InSync), briefAccepts(&m.Kept), briefMoves(m.Opened))
	case *acceptMsg:
		return fmt.Sprintf("ACCEPT v%v %s %v ballot %x n%d lease %d", m.Voters, m.Shard.short(), m.Epoch, m.Ballot&0xffff, m.N, m.Lease)
	case *moveMsg:
		return fmt.Sprintf("MOVE v%v %s %v ballot %x %v", m.Voters, m.Shard.short(), m.Epoch, m.Ballot&0xffff, briefAccepts(&m.Slots))
	case *stopMsg:
		return fmt.Sprintf("STOP v%v ballot %d@%s", m.Voters, m.Ballot.Number, m.Ballot.Node.short())
	case *stoppedMsg:
		return fmt.Sprintf("STOPPED v%v ballot %d@%s starts %d", m.Voters, m.Ballot.Number, m.Ballot.Node.short(), len(m.Starts))
	case *startMsg:
		v := m.Value.voters()
		return fmt.Sprintf("START ends v%v ballot %d@%s pull %v id %x %v", m.Voters, m.Ballot.Number, m.Ballot.Node.short(), m.Pull, m.Value.ID&0xffff, describeVoters(&v))
	case *stageMsg:
		return fmt.Sprintf("STAGE job %x %v -> %s %v", m.Job&0xffff, m.Epoch, m.To.short(), briefMoves(m.Slots))
	case *stagedMsg:
		return fmt.Sprintf("STAGED job %x %v %s", m.Job&0xffff, m.Epoch, m.Error)
	case *failMsg:
		return fmt.Sprintf("FAIL %v", m.Silent.Nodes)
	case *refusedMsg:
		return fmt.Sprintf("REFUSED %v", m.Why)
	case *forwardMsg:
		return fmt.Sprintf("FORWARD %x %v %s -> %s", m.Request&0xffff, briefMoves(m.Slots), m.From.short(), m.To.short())
	case *forwardedMsg:
		return fmt.Sprintf("FORWARDED %x %v", m.Request&0xffff, m.Error.Text)
	default:
		return m.kind().String()
	}
}

func describeVoters(v *voterSet) string {
	var ids []string
	for _, m := range v.Members {
		ids = append(ids, m.ID.short())
	}
	return fmt.Sprintf("v%v id %x %v", v.Version, v.ID&0xffff, ids)
}

func briefMembers(ms []incarnate) (s []string) {
	for _, m := range ms {
		s = append(s, fmt.Sprintf("%s.%d", m.Node.short(), m.Incarnation%1000))
	}
	return s
}

func briefMoves(r moveRuns) string {
	if len(r) > 6 {
		return fmt.Sprintf("%d runs", len(r))
	}
	return fmt.Sprint([]moveRun(r))
}

func briefAccepts(r *acceptRuns) string {
	var b strings.Builder
	for i, run := range r.Runs {
		if i == 6 {
			fmt.Fprintf(&b, " +%d", len(r.Runs)-6)
			break
		}
		fmt.Fprintf(&b, "[%d-%d>%s.%d %v]", run.First, run.Last, r.Shards[run.Shard].short(), run.Move, r.Epochs[run.Epoch])
	}
	return b.String()
}
