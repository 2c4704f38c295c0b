package slotmesh

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// The core of a node is a value: no goroutine, lock, clock, source of chance or
// I/O of its own. Time and messages are handed in; what is to be saved, sent
// and told comes out. One goroutine owns it, in tests a simulator.
//
//	tick, receive, saved, commands ──► state ──► output{saves, sends, tells}
//
// Saving runs beside the core, so what it holds in memory may be ahead of the
// disk. Each send and tell names the save that it has to wait for. Heartbeats
// wait for none but the node's identity: a slow disk must not silence a node,
// so they claim and grant only what has been saved already. What says only that
// which a majority of the voters has on disk waits for the numbers in it alone.

// output is what one step of the core asks of its driver. It is valid until the
// next step.
type output struct {
	saves []save
	sends []send
	tells []tell
}

// save is a batch of cells to be written at once, as the n-th. Saves complete
// in order; the driver then calls saved(n).
type save struct {
	n     uint64
	cells []cell
}

// cell is a piece of what a node must remember; a nil value deletes it.
type cell struct {
	key   cellKey
	value []byte
}

// send is a message for one node, said as from: what this node was when it said
// it, which is what the connection must have named. A driver holds it back until
// save after has completed; 0 waits for none. It may be lost.
type send struct {
	from  *sender
	to    dest
	msg   message
	after uint64
}

// dest is where a message goes: a node, or whoever lives at an address. A
// process of the node that is not the one named refuses it.
type dest struct {
	wanted
	addr string
}

// tell is something for the driver itself, in order, each after its save.
type tell struct {
	what  any
	after uint64
}

type (
	// replyTell answers a command, exactly once. A nil error means done.
	replyTell struct {
		id     uint64
		err    *commandError
		beside bool // it need not wait for what is being saved, but for the numbers of epochs
	}
	// identityTell says that what handshakes name has changed: connections are
	// to be made anew.
	identityTell struct{}
	// freezeTell asks to let no new request into the slots, to wait until every
	// reply of theirs is out or failed, and then to call frozen.
	freezeTell struct {
		job     uint64
		slots   SlotSet
		inPlace bool // frozen needs to say whether keys are left
	}
	// jobTell says how a hand-over that this node gives has ended.
	jobTell struct {
		job  uint64
		done bool // decided; else the slots are served here again, or nobody knows yet
	}
	// jobLostTell says, before the jobTell, that a hand-over's MOVE is out and that
	// this node is not the one to count its majority any more.
	jobLostTell struct{ job uint64 }
	// stageTell asks to make ready the data of a stage, and to call stageHeld.
	stageTell struct{ stage *heldStage }
	// stageEndTell says that a stage is not needed any more: it has been
	// cancelled, or its slots have moved on.
	stageEndTell struct{ job uint64 }
	// adoptTell says that slots have come to this node's shard: staged data of
	// these moves becomes live before the slots are served, and what this node
	// has of the kept ones stays as it is, as does what it served before of those
	// that have only been nobody's since.
	adoptTell struct {
		slots moveRuns
		kept  SlotSet
		back  SlotSet
	}
	// dropTell says that slots have gone and their new owner serves: their data
	// is not needed here any more.
	dropTell struct{ slots moveRuns }
	// eventTell is an event for the application.
	eventTell struct{ event Event }
)

// coreConfig is what a core is made with.
type coreConfig struct {
	nodeTimeout time.Duration
	maxVoters   int // odd
	incarnation uint64
	store       uint64 // incarnation of the store; 0: that of the process, for what it holds does not outlive it
	holdsCopy   bool   // the store holds all data of this node's shard, as of some moment
	ackReplicas int    // members besides this node that must have a write before it is acknowledged
	host        string // label; nodes of one label fail together
	addr        string // of the bus
	clientAddr  string
	hostname    string
	form        formNumbers // zero: by hand
	alone       bool        // a new node takes every slot and forms at once
	volatile    bool        // nothing is saved: saves complete at once
	policy      Policy
	random      func() uint64
}

// state is the core of one node. What is marked saved survives a restart.
type state struct {
	cfg coreConfig
	now time.Duration
	out output

	// Who this node is. Saved.
	id      NodeID
	key     uint64
	starts  uint64
	cluster ClusterID // zero: unformed
	who     *sender   // all of it, as handshakes say it; replaced, never changed

	// What it knows of the others. Saved.
	peers peerSet
	self  *peer // in peers
	table table

	// Membership.
	meetings   map[uint64]*meeting // by nonce
	seeds      []seed
	nextSeed   time.Duration
	strangerAt time.Duration // last time that an unknown member was asked who it is
	refusedAt  time.Duration // last time that an event told of somebody refused
	leave      *departure
	shardless  map[ShardID]time.Duration // since when a shard has neither member nor slot
	nextTrim   time.Duration
	holdsKeys  bool   // the store has keys, as the driver last said
	stateSave  uint64 // the save that holds the newest change of a member's state

	// Heartbeats and failure.
	beatLoad float64       // heartbeats a second, unstretched
	silent   []NodeID      // whom this node has not heard for a NodeTimeout
	grace    time.Duration // budget of late ticks left in this NodeTimeout
	graceAt  time.Duration
	broken   error // why nothing can be saved any more

	// Gossip.
	synced    bool   // once a member's digests have equalled ours
	frames    uint64 // received, for the bounds on numbers
	strangers jumps  // of all nodes of this cluster that are not known here
	pending   pendingPush
	waits     []*pushWait

	// Voting.
	vote       voterState
	change     *change // of the voters, proposed by this node
	form       formation
	forcing    *forcing    // voters being imposed by this node
	forced     *startValue // and handed out
	nextForced time.Duration
	nextPull   time.Duration
	wantedAt   time.Duration // since when the voters are not the wanted ones
	votersAt   time.Duration // since when the set in force is known

	// Leading a shard.
	lead        *leadership
	unnamed     string             // what may have been lost by a win that has not opened the shard yet: the next may look clean
	stand       *candidacy         // for this node's own shard
	nextRun     time.Duration      // no stand before
	used        map[ShardID]uint64 // highest number asked for. Saved before it is asked for
	heard       map[ShardID]uint64 // highest number heard
	epochHigh   uint64             // highest number of all. Saved
	promise     Epoch              // of this member to a primary of its shard. Saved
	knownRecord *record            // newest of this shard that names this node
	shardRecord *record            // newest of this shard that is known at all
	failing     *failover          // a failover to this node that an operator has asked for
	logAt       logPosition        // where this node's log ends, as the driver last said
	logHas      logProgress        // how far others are in it while this node leads, as the driver said before the last tick
	fresh       time.Duration      // when this node, a replica, last had all that its primary had; never: not since it started
	holdsCopy   bool               // the store holds all data of the shard, as of some moment
	followed    SlotSet            // slots of which this node has followed its primary's log, and not led since
	role        logRole
	backed      map[ShardID]backing // shards with slots
	nextReplica time.Duration
	primary     time.Duration // last heartbeat of this shard's leased primary
	bumps       []bump
	stages      map[uint64]*heldStage // by job
	arrived     moveRuns              // slots that have come in this step
	kept        SlotSet               // those of them that were marked IMPORTING
	back        SlotSet               // those of them that had left for nobody
	gone        map[Slot]goneSlot
	nextGone    time.Duration
	confirm     confirming
	nextConfirm time.Duration
	counting    bool // what changes now has been counted here
	wasLeased   bool

	// Operators' commands.
	marks     map[Slot]SlotMark // Saved
	ops       []*operation
	forwards  map[uint64]*forwarding   // asked of others
	forwarded map[forwardKey]*slotPart // asked by others

	serve        serving
	reignEpoch   Epoch
	reignCluster ClusterID
	viewDirty    bool // the published view may have changed
	reassess     bool // serving may have changed

	// Saving.
	wake        time.Duration // when the next tick is due
	dirty       map[cellKey]struct{}
	marked      cellKey // last
	saveSeq     uint64
	needSeq     uint64 // the newest save that what leaves this node waits for
	unmarkSave  uint64 // the save that takes off the mark that an operator took off last
	epochSave   uint64 // the save that holds the newest change of an epoch
	unmarked    bool   // a mark has been taken off since the newest save
	savedSeq    uint64
	savingSince time.Duration // while a save is under way: when the last one completed, or the first of them began
	identity    uint64        // the save that holds this node's identity
	loop        []looped
}

// loopMax is how many messages of a node to itself may wait for the disk, which a
// save that hangs makes many: what is repeated is repeated to itself too. At the bound
// the oldest is lost, as any message may be.
const loopMax = 1024

// looped is a message of this node to itself.
type looped struct {
	msg   message
	after uint64
}

// meeting is a MEET under way: not saved.
type meeting struct {
	nonce uint64
	addr  string
	until time.Duration
	next  time.Duration
}

// newState makes a core from what was saved, or a new node from nothing.
// The first step is boot.
func newState(cfg coreConfig, saved []cell) (*state, error) {
	s := &state{
		cfg:       cfg,
		meetings:  map[uint64]*meeting{},
		shardless: map[ShardID]time.Duration{},
		backed:    map[ShardID]backing{},
		used:      map[ShardID]uint64{},
		heard:     map[ShardID]uint64{},
		stages:    map[uint64]*heldStage{},
		gone:      map[Slot]goneSlot{},
		marks:     map[Slot]SlotMark{},
		forwards:  map[uint64]*forwarding{},
		forwarded: map[forwardKey]*slotPart{},
		dirty:     map[cellKey]struct{}{},
		table:     newTable(0),
		holdsCopy: cfg.holdsCopy,
	}
	if s.cfg.store == 0 {
		s.cfg.store = cfg.incarnation
	}
	s.peers = newPeerSet(&s.table, 0)
	s.vote.init()
	if len(saved) == 0 {
		s.drawIdentity()
		return s, nil
	}
	if err := s.load(saved); err != nil {
		return nil, err
	}
	return s, nil
}

// drawIdentity makes this node a new one.
func (s *state) drawIdentity() {
	fillRandom(s.id[:], s.cfg.random)
	s.key = s.cfg.random()
	s.makeSelf()
}

// makeSelf enters this node into its own membership, in a shard of its own.
func (s *state) makeSelf() {
	s.self = &peer{peerEntry: peerEntry{ID: s.id, Key: s.key, Version: 1, Starts: s.starts}}
	s.peers.insert(s.self)
	s.joinNewShard()
}

// joinNewShard makes this node the only member of a fresh shard. Shard ids are
// random and never come back.
func (s *state) joinNewShard() {
	var id ShardID
	fillRandom(id[:], s.cfg.random)
	s.changeFacts(func(e *peerEntry) { e.Shard = id })
	s.setShard(id, Epoch{Node: s.id}, pushNothing)
	s.promise = Epoch{}
	s.mark(cellKey{kind: cellNode})
}

func fillRandom(b []byte, random func() uint64) {
	for i := 0; i < len(b); i += 8 {
		x := random()
		for j := i; j < min(i+8, len(b)); j++ {
			b[j] = byte(x)
			x >>= 8
		}
	}
}

// boot is the first step: a new start of this node. Nothing leaves before it
// is saved.
func (s *state) boot(now time.Duration) output {
	s.begin(now)
	s.starts++
	s.self.incarnation = s.cfg.incarnation
	s.changeFacts(func(e *peerEntry) {
		e.Starts = s.starts
		e.Addr, e.ClientAddr, e.Hostname, e.Host = s.cfg.addr, s.cfg.clientAddr, s.cfg.hostname, s.cfg.host
		e.Store, e.NoFailover = s.cfg.store, s.cfg.policy.NoFailover
	})
	s.mark(cellKey{kind: cellNode})
	s.vote.startedAt, s.vote.activeAt = s.now, never // the wait after a start covers both
	s.votersAt, s.wantedAt, s.strangerAt, s.refusedAt = s.now, never, never, never
	s.primary, s.graceAt, s.grace = s.now, s.now, s.cfg.nodeTimeout/2
	s.fresh = never
	s.stopWaits()
	for _, p := range s.peers.ordered {
		p.resetVolatile(s.now)
		p.nextBeat = s.now + s.jitter(s.beatPeriod(p))
	}
	s.self.heardAt = s.now
	if s.table.primary(s.self.Shard) != s.id {
		s.followed.AddRange(SlotRange{0, NumSlots - 1})
	}
	if s.cfg.alone && s.cluster.IsZero() && s.table.unassigned == NumSlots && len(s.peers.ordered) == 1 {
		s.assignAll()
	}
	for _, m := range s.usedMarks() {
		s.tell(markTell{slot: m.Slot, mark: &m, known: true})
	}
	s.identitySaved()
	s.reassess = true
	s.wake = s.now
	return s.end()
}

func (p *peer) resetVolatile(now time.Duration) {
	p.heardAt, p.beatAt, p.invitedAt, p.toldAt, p.twinAt, p.exchangeAt, p.sameSince = never, never, never, never, never, never, never
	p.firstSeen, p.toldHealth = now, heardWell
}

// jitter is a random part of d, so that nodes that start together do not beat
// together.
func (s *state) jitter(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return time.Duration(s.cfg.random() % uint64(d))
}

func (s *state) assignAll() {
	for i := range NumSlots {
		s.setSlot(Slot(i), slotEntry{s.self.Shard, 1}, pushNothing)
	}
}

// ---- one step

func (s *state) begin(now time.Duration) {
	s.now = max(s.now, now)
	s.out.saves, s.out.sends, s.out.tells = s.out.saves[:0], s.out.sends[:0], s.out.tells[:0]
}

// end turns what the step has changed into output: pushes, saves, and this
// node's messages to itself, which wait for their save like any other.
func (s *state) end() output {
	if s.broken != nil && !mutated(mutBrokenSpeaks) {
		return s.endSilent()
	}
	sends, tells := 0, 0
	for {
		s.push()
		s.saveDirty()
		s.assess()
		s.assessLog()
		after := s.unsaved()
		for ; sends < len(s.out.sends); sends++ {
			m := &s.out.sends[sends]
			switch m.msg.(type) {
			case *heartbeat:
				m.after = s.unsavedSince(s.identity)
			case *updateMsg, *updatedMsg, *forwardedMsg:
				if m.after = after; isDecided(m.msg) {
					m.after = s.unsavedSince(max(s.identity, s.epochSave))
				}
			default:
				m.after = after
				if answersUnsaved(m.msg) {
					m.after = 0
				}
			}
		}
		for ; tells < len(s.out.tells); tells++ {
			t := &s.out.tells[tells]
			t.after = after
			switch m := t.what.(type) {
			case markTell:
				if m.mark != nil && !m.known {
					m.after = s.unsavedSince(s.saveSeq)
					t.what = m
				}
				if m.mark != nil || m.settled {
					t.after = s.unsavedSince(s.unmarkSave)
				}
				if m.known {
					t.after = 0 // before anybody is served, or not any more
				}
			case replyTell:
				if m.beside {
					t.after = s.unsavedSince(max(s.identity, s.epochSave, s.unmarkSave))
				}
			}
		}
		if !s.deliverLoop(after) {
			return s.out
		}
	}
}

// answersUnsaved reports whether a bug is planted by which a voter answers before what
// it answers is saved.
func answersUnsaved(m message) bool {
	switch m.(type) {
	case *grantMsg:
		return mutated(mutGrantUnsaved)
	case *acceptMsg:
		return mutated(mutAcceptUnsaved)
	case *stoppedMsg:
		return mutated(mutStoppedUnsaved)
	case *startedMsg:
		return mutated(mutStartedUnsaved)
	}
	return false
}

// endSilent is the end of a step of a node that can save nothing: it saves nothing, sends
// nothing, not even to itself, but the question what it has missed, and what it tells
// its driver waits for no save. Of its data it changes nothing any more: when it starts
// again with a store that has outlived it, what has come meanwhile was never noted.
func (s *state) endSilent() output {
	s.pending = pendingPush{}
	clear(s.dirty)
	s.loop = nil
	s.assess()
	s.assessLog()
	s.out.saves = s.out.saves[:0]
	s.out.sends = slices.DeleteFunc(s.out.sends, func(m send) bool {
		q, ok := m.msg.(*digestMsg)
		return !ok || q.Answer || s.identity > s.savedSeq
	})
	s.out.tells = slices.DeleteFunc(s.out.tells, func(t tell) bool { return changesData(t.what) })
	return s.out
}

// changesData reports whether what a driver is told changes what is in its store.
func changesData(what any) bool {
	switch what.(type) {
	case stageTell, stageEndTell, adoptTell, markTell, dropTell:
		return true
	}
	return false
}

// isDecided reports whether a message says only what others have on disk: that a
// majority of the voters has accepted a move of slots, or that this node has heard
// of a change. It need not wait for this node's own save of it: were that lost, this
// node would find the same in the grants of its next vote, or in the digests of
// others. For the numbers of epochs that go with the slots it waits.
func isDecided(m message) bool {
	switch m := m.(type) {
	case *updateMsg:
		return !m.Giver.IsZero()
	case *updatedMsg:
		return true
	case *forwardedMsg:
		return m.Error.Code == 0
	}
	return false
}

// unsaved is the newest save that has not completed, or 0. Saves of new marks do
// not count.
func (s *state) unsaved() uint64 { return s.unsavedSince(s.needSeq) }

func (s *state) unsavedSince(n uint64) uint64 {
	if n > s.savedSeq {
		return n
	}
	return 0
}

// awaitsSave reports whether this node itself waits for a save: to be what it says
// that it is, to serve slots that have come, to read what it has sent to itself.
func (s *state) awaitsSave() bool {
	return s.identity > s.savedSeq || len(s.loop) > 0 || s.lead != nil && len(s.lead.fresh) > 0
}

// deliverLoop delivers what this node has sent to itself and may read by now.
func (s *state) deliverLoop(after uint64) bool {
	for i := range s.loop {
		if s.loop[i].after == loopNew {
			s.loop[i].after = after
		}
	}
	ready := 0
	for ready < len(s.loop) && s.loop[ready].after <= s.savedSeq {
		ready++
	}
	if ready == 0 {
		return false
	}
	batch := slices.Clone(s.loop[:ready])
	s.loop = slices.Delete(s.loop, 0, ready)
	for _, l := range batch {
		s.dispatch(s.self, s.who, l.msg)
	}
	return true
}

const loopNew = ^uint64(0)

// saveDirty emits the cells that the step has changed.
func (s *state) saveDirty() {
	if len(s.dirty) == 0 {
		return
	}
	if s.saveSeq++; s.saveSeq == s.savedSeq+1 {
		s.savingSince = s.now
	}
	if !s.savesNewMarks() {
		s.needSeq = s.saveSeq
	}
	s.unmarked = false
	if s.cfg.volatile {
		clear(s.dirty)
		s.savedUpTo(s.saveSeq)
		return
	}
	keys := make([]cellKey, 0, len(s.dirty))
	for k := range s.dirty {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, cellKey.compare)
	cells := make([]cell, len(keys))
	for i, k := range keys {
		cells[i] = cell{k, s.encodeCell(k)}
	}
	clear(s.dirty)
	s.out.saves = append(s.out.saves, save{s.saveSeq, cells})
}

// mark notes that a cell has changed. Slots change by the run, so that the same
// cell is often marked again at once.
func (s *state) mark(k cellKey) {
	if k == s.marked && len(s.dirty) > 0 {
		return
	}
	s.marked = k
	s.dirty[k] = struct{}{}
}

// identitySaved holds every frame, heartbeats too, back until this node's
// identity is on disk.
func (s *state) identitySaved() {
	s.mark(cellKey{kind: cellNode})
	s.identity = s.saveSeq + 1
	s.sayWho()
}

// saved says that all saves up to n have completed.
func (s *state) saved(now time.Duration, n uint64) output {
	s.begin(now)
	if n > s.savedSeq {
		s.savedUpTo(n)
	}
	return s.end()
}

// saveFailed says that nothing can be saved any more, for good. To the others this
// node is dead from then on, though its process lives: it sends nothing that says that
// it lives, so that it claims nothing, votes for nobody and counts as silent, and
// whoever can takes the place of it as a primary and as a voter. It goes on listening,
// and hears so where to send clients; where the digests in what it hears say that it
// has missed something it asks, mute, one member in NodeTimeout/2.
func (s *state) saveFailed(now time.Duration, err error) output {
	s.begin(now)
	s.broken = err
	s.reassess, s.viewDirty = true, true
	if mutated(mutBrokenSpeaks) {
		return s.end()
	}
	s.stand, s.change, s.forcing, s.forced = nil, nil, nil, nil
	if s.lead != nil {
		s.stepDown()
	}
	s.dropFailover(s.cannotSave().Text)
	s.abandon(s.cannotSave())
	return s.end()
}

// diskHangs reports whether this node's disk has neither completed a save nor failed
// for a NodeTimeout, though there is one to make.
func (s *state) diskHangs() bool {
	return s.savedSeq < s.saveSeq && s.now-s.savingSince > s.cfg.nodeTimeout
}

// cannotSave is what a command of an operator is answered once nothing can be saved
// any more; nil before.
func (s *state) cannotSave() *commandError {
	if s.broken == nil {
		return nil
	}
	return clusterDown("%s", s.brokenReason())
}

func (s *state) brokenReason() string {
	return fmt.Sprintf("this node cannot save its state: %v", s.broken)
}

// abandoned is what becomes of a tell that waits for a save which never completes:
// whoever waits for an answer gets one, and the rest is not told.
func (s *state) abandoned(what any) any {
	switch t := what.(type) {
	case replyTell:
		if t.err == nil {
			t.err = mayHappen("%s", s.brokenReason())
		}
		return t
	case jobTell:
		return jobLostTell{t.job}
	}
	return nil
}

func (s *state) savedUpTo(n uint64) {
	s.savedSeq, s.savingSince = n, s.now
	s.reassess = true // slots that waited for their save may be served now
}

// tick moves time. It is called when s.wake is due; the driver may call it
// earlier. A late call says that this node itself has not run.
func (s *state) tick(now time.Duration) output {
	s.begin(now)
	s.allowForLateness()
	s.wake = s.now + s.cfg.nodeTimeout/20
	s.membershipTick()
	s.failureTick()
	if s.broken != nil && !mutated(mutBrokenSpeaks) {
		s.operationsTick() // what others have asked of it comes to its end
		return s.end()
	}
	if s.cluster.IsZero() {
		s.formationTick()
	} else {
		s.votersTick()
		s.electionTick()
		s.leadTick()
		s.failoverTick()
		s.replicaTick()
		s.forcedTick()
	}
	s.changeTick()
	s.operationsTick()
	s.beatTick()
	return s.end()
}

// wakeBy makes the next tick come no later than t.
func (s *state) wakeBy(t time.Duration) {
	if t < s.wake {
		s.wake = max(t, s.now)
	}
}

// receive takes a message that came over a connection whose handshake has named
// both sides.
func (s *state) receive(now time.Duration, from sender, to wanted, m message) output {
	s.begin(now)
	s.frames++
	if p := s.admit(&from, to, m); p != nil {
		s.dispatch(p, &from, m)
	}
	return s.end()
}

// dispatch hands an admitted message to its chapter.
func (s *state) dispatch(p *peer, from *sender, m message) {
	switch m := m.(type) {
	case *meetMsg:
		s.onMeet(p, m)
	case *seedMsg:
		s.onSeed(p, m)
	case *heartbeat:
		s.onHeartbeat(p, from, m)
	case *failMsg:
		s.mergeSilent(&m.Silent)
	case *updateMsg:
		s.onUpdate(p, m)
	case *updatedMsg:
		s.onUpdated(p, m)
	case *digestMsg:
		s.onDigest(p, m)
	case *voteMsg:
		s.onVote(p, m)
	case *recordMsg:
		s.onRecord(p, m)
	case *moveMsg:
		s.onMove(p, m)
	case *grantMsg:
		s.onGrant(p, m)
	case *refuseMsg:
		s.onRefuse(p, m)
	case *acceptMsg:
		s.onAccept(p, m)
	case *stopMsg:
		s.onStop(p, m)
	case *stoppedMsg:
		s.onStopped(p, m)
	case *startMsg:
		s.onStart(p, m)
	case *startedMsg:
		s.onStarted(p, m)
	case *getStartMsg:
		s.onGetStart(p, m)
	case *askStartMsg:
		s.onAskStart(p, m)
	case *noStartMsg:
		s.onNoStart(p, m)
	case *forwardMsg:
		s.onForward(p, m)
	case *forwardedMsg:
		s.onForwarded(p, m)
	case *stageMsg:
		s.onStage(p, m)
	case *stagedMsg:
		s.onStaged(p, m)
	case *cancelStageMsg:
		s.onCancelStage(p, m)
	case *getRecordsMsg:
		s.onGetRecords(p, m)
	case *recordsMsg:
		s.onRecords(p, m)
	case *inSyncMsg:
		s.onInSync(p, m)
	case *failoverMsg:
		s.onFailover(p, m)
	case *consentMsg:
		s.onConsent(p, m)
	}
}

// ---- sending and telling

// sayWho renews what this node's side of a handshake says.
func (s *state) sayWho() {
	e := &s.self.peerEntry
	who := sender{ID: s.id, Key: s.key, Cluster: s.cluster, Incarnation: s.cfg.incarnation,
		Starts: e.Starts, Facts: e.Facts, Addr: e.Addr, ClientAddr: e.ClientAddr, Hostname: e.Hostname, Host: e.Host, Shard: e.Shard, Store: e.Store, NoFailover: e.NoFailover,
		Timeout: milliseconds(s.cfg.nodeTimeout)}
	if s.who == nil || *s.who != who {
		s.who = &who
	}
}

// post sends m to a peer, or to this node itself.
func (s *state) post(p *peer, m message) {
	if p == s.self {
		if len(s.loop) >= loopMax {
			s.loop = slices.Delete(s.loop, 0, 1)
		}
		s.loop = append(s.loop, looped{m, loopNew})
		return
	}
	s.out.sends = append(s.out.sends, send{from: s.who, to: dest{wanted{p.ID, p.Key, p.incarnation}, p.Addr}, msg: m})
}

func (s *state) postTo(id NodeID, m message) {
	if p := s.peers.get(id); p != nil && p.State != forgotten {
		s.post(p, m)
	}
}

// postAddr sends m to whoever lives at an address.
func (s *state) postAddr(addr string, m message) {
	s.out.sends = append(s.out.sends, send{from: s.who, to: dest{addr: addr}, msg: m})
}

// answer sends m back to a sender, who need not be a member.
func (s *state) answer(from *sender, m message) {
	s.out.sends = append(s.out.sends, send{from: s.who, to: dest{wanted{from.ID, from.Key, from.Incarnation}, from.Addr}, msg: m})
}

func (s *state) postVoters(m message) {
	for _, v := range s.table.voters.Members {
		s.postTo(v.ID, m)
	}
}

func (s *state) tell(what any) { s.out.tells = append(s.out.tells, tell{what: what}) }

func (s *state) reply(id uint64, err *commandError) {
	if id != 0 {
		s.tell(replyTell{id: id, err: err})
	}
}

func (s *state) event(e Event) { s.tell(eventTell{e}) }

// isVoter reports whether this node is of the newest set of voters it knows.
func (s *state) isVoter() bool { return s.table.voters.hasMember(member{s.id, s.key}) }

// voterPeer returns the peer of an answer if it counts: a voter of the set in
// force under its key.
func (s *state) voter(p *peer) bool { return s.table.voters.hasMember(member{p.ID, p.Key}) }

// byNodeID orders for loops over maps.
func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K {
	keys := make([]K, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
