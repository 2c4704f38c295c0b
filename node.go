package slotmesh

import (
	"context"
	crand "crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/slotmesh/slotmesh/store"
	"github.com/slotmesh/slotmesh/transport"
)

// Node is one member of a cluster, in this process. [Start] makes one. Its
// methods may be called from any goroutine. The interface may grow in minor
// versions: embed it in fakes.
type Node interface {
	// ID names the node for as long as its Dir lives, or until it is reset.
	ID() NodeID
	// Addr is where other nodes reach it; "" where it opens no port.
	Addr() string
	// Table is who owns which slot, as this node knows it now.
	Table() SlotTable
	// Client calls any key of the cluster: in process where this node owns the
	// slot. It lives as long as the node.
	Client() *Client
	// Execute runs f at the slot of the request if this node serves it, under the
	// slot's lock, or returns where the slot is served: *MovedError, or an
	// error that matches ErrTryAgain, ErrClusterDown, ErrCrossSlot. Any error of
	// f discards its effects. A slot that is on hold is waited for, one
	// NodeTimeout at most. Errors are *OpError.
	Execute(ctx context.Context, r Request, f func(*Tx) error) error
	// Session is Execute for many requests one after the other, without an
	// allocation for each.
	Session() *Session
	// CountKeys is the number of keys that this node's store has in a slot,
	// whoever owns the slot, those whose time has come included. It takes the
	// same short time whatever the number.
	CountKeys(slot Slot) (int, error)
	// CountExpiring is the number of those keys that have a time of expiry; 0
	// where the store cannot tell, which is no [store.Expiring].
	CountExpiring(slot Slot) (int, error)
	// ScanSlot walks the keys that this node's store has in a slot, whoever owns
	// the slot, a page of at most limit keys a call (0 leaves it to the store).
	// Cursor 0 begins, next 0 is the end. Per key it returns the head, or the
	// smallest field of a key without one; those whose time has come too. Every
	// key that stays during the walk is returned at least once. The items must
	// not be changed.
	ScanSlot(slot Slot, cursor uint64, limit int) (items []store.Item, next uint64, err error)
	// Publish hands a message to those who listen to the channel, at every node,
	// and returns how many do at this one. It does not wait for other nodes: one
	// that is down or slow misses the message. A channel is at most as long as a
	// key, the payload as a value; it must not be changed afterwards.
	Publish(ctx context.Context, channel string, payload []byte) (receivers int, err error)
	// Subscribe calls f for each message that any node publishes, until stop is
	// called; a call that has begun may still be running then. f returns how many
	// receive it. It must not wait for long: the messages behind it wait too. The
	// payload must not be changed. A nil f panics.
	Subscribe(f func(channel string, payload []byte) (receivers int)) (stop func())
	// PublishSharded is Publish for sharded channels: such a one belongs to the slot
	// of its name, as a key does, and its messages go to the members of the shard
	// that has the slot, whoever leads it. Where this node is none of them nobody
	// receives it here. Sharded channels and others have nothing to do with each
	// other, whatever their names.
	PublishSharded(ctx context.Context, channel string, payload []byte) (receivers int, err error)
	// SubscribeSharded is Subscribe for the messages of sharded channels.
	SubscribeSharded(f func(channel string, payload []byte) (receivers int)) (stop func())
	// Watch returns a Watch that calls f when a key that it has been given
	// changes, or expires, or when its slot is served here no more (gone); at a
	// replica, when what it holds of the key changes, or its slot is of its shard no
	// more. f is called under the lock of the slot, after the change: it must not
	// wait, nor call the node, but may ask its Table for a slot. Close the Watch when
	// it is not needed any more. A nil f panics.
	Watch(f func(key string, gone bool)) *Watch
	// FlushSlot deletes every key of a slot that this node serves, at once. The
	// error is one of Execute.
	FlushSlot(ctx context.Context, slot Slot) error
	// Admin is what operators do.
	Admin() Admin
	// Events returns what happens from now on. The channel is closed when ctx is
	// over or the node closes. What does not fit into the buffer (at least 1, at
	// most 65,536) is dropped, and counted in an EventLost before the next one.
	Events(ctx context.Context, buffer int) <-chan Event
	// Ready waits until the node serves, and a majority of the right voters
	// votes. The error says what was missing when ctx was over; where ctx is over
	// already, it is the error of a node that is ready, too. A replica is ready while
	// its primary leads and counts it among those in sync, as far as it has heard: so
	// that nothing is lost if it takes over.
	Ready(ctx context.Context) error
	// Status is the state of the cluster as this node sees it; of one that is
	// closed, as it was last seen.
	Status() Status
	// Leave makes a node without slots leave its cluster: it is forgotten
	// by the others, once none of them needs its vote. Close it afterwards. A
	// node with slots gives them away first, with Admin.MoveSlots.
	Leave(ctx context.Context) (LeaveReport, error)
	// Close ends the node at once. It returns when every goroutine, connection
	// and file of it is done with, and no command of it touches its store any
	// more; a command must not call it. It is idempotent.
	Close() error
}

// LeaveReport says what a node that has left has given up.
type LeaveReport struct {
	Voted bool // it was a voter; others vote in its place now
	Took  time.Duration
}

// node is the driver of a core: it owns it in one goroutine, saves what it asks
// to save, sends what it asks to send, and lets requests into the slots that it
// says are served.
type node struct {
	cfg         Config
	id          atomic.Pointer[NodeID]
	addr        string
	clock       *clock
	core        *state // run's alone
	engine      engine
	client      Client
	links       *links
	data        *dataConns
	jobs        *jobs
	kept        *kept
	repl        *replication
	pubSub      pubSub
	saver       *saver
	listener    net.Listener
	meta        *meta
	ownStore    bool
	outlives    store.Persistent // the store, where it outlives the process and there is a Dir; else nil
	incarnation uint64           // of it, at the start
	resume      *logCell         // where the log of the copy in it ended; nil: that is not known

	clogged atomic.Bool // so much waits for the disk that nothing new is taken in; the run loop's to set

	who     atomic.Pointer[sender]
	inbox   chan delivery
	calls   chan func(s *state, now time.Duration) output
	changed notifier // of the published view

	// run's alone.
	held     []send
	told     tellQueue
	applied  serving
	backed   SlotSet // of the shard that this node follows as a replica
	holding  *hold   // of the slots that are on hold; nil: none are
	seen     SlotSet // served since the start, and so known to the sweeper; of a store that was given
	paused   *gate   // of the slots that are served, while the node is being reset; nil: it is not
	ended    []*hold // to be ended
	replies  map[uint64]chan *commandError
	answers  []func() // of commands, to be given
	nextCall uint64
	savings  []saving // who waits for a save

	laterMu sync.Mutex
	next    []func(s *state, now time.Duration) output // guarded by laterMu: steps that a tell has led to
	wake    chan struct{}                              // there are some

	eventsMu sync.Mutex
	watchers map[*watcher]struct{} // guarded by eventsMu

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	goMu   sync.Mutex
	ending bool // guarded by goMu: Close waits for the goroutines that are there
	once   sync.Once
	closed chan struct{}
}

const inboxMax = 1024 // messages read and not handled; at the bound connections are read no further

// Start starts a node. ctx bounds the start alone: opening the Dir and the
// listener. Start does not wait for other nodes; see Node.Ready.
func Start(ctx context.Context, cfg Config) (Node, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("slotmesh: start: %w", err)
	}
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	n := &node{cfg: cfg, clock: newClock(sleptSinceBoot), inbox: make(chan delivery, inboxMax), calls: make(chan func(*state, time.Duration) output),
		replies: map[uint64]chan *commandError{}, watchers: map[*watcher]struct{}{}, closed: make(chan struct{}), wake: make(chan struct{}, 1)}
	n.changed.init()
	n.ctx, n.cancel = context.WithCancel(context.Background())
	if err := n.open(); err != nil {
		n.cancel()
		return nil, errors.Join(err, n.release())
	}
	n.start()
	return n, nil
}

// open opens the listener and the folder, and makes the core. What is most likely to
// fail comes first, and what cannot be undone last: a start that fails leaves the
// folder as it was, and makes none where the address is taken.
func (n *node) open() error {
	if err := n.listen(); err != nil {
		return err
	}
	var cells []cell
	if n.cfg.Dir != "" {
		m, saved, err := openMeta(osFS{}, n.cfg.Dir)
		if err != nil {
			return err
		}
		n.meta, cells = m, saved
		if m.cut > 0 {
			n.cfg.Logger.Warn("a write was cut short when the node last ended: its end has been dropped", "dir", n.cfg.Dir, "bytes", m.cut)
		}
	}
	if n.cfg.Store == nil {
		n.cfg.Store, n.ownStore = store.NewMemory(), true
	} else {
		if p, ok := n.cfg.Store.(store.Persistent); ok && n.meta != nil {
			n.outlives, n.incarnation = p, p.Incarnation()
		}
		n.cfg.Store = guard(n.cfg.Store)
	}
	if n.cfg.Host == "" {
		var b [8]byte
		crand.Read(b[:])
		n.cfg.Host = hex.EncodeToString(b[:])
	}
	var err error
	n.kept = newKept(n)
	if cells, err = n.kept.load(cells); err != nil {
		return fmt.Errorf("%w (in %s)", err, n.cfg.Dir)
	}
	core, err := newState(coreConfig{nodeTimeout: n.cfg.NodeTimeout, maxVoters: n.cfg.MaxVoters, incarnation: random64() | 1,
		host: n.cfg.Host, addr: n.addr, clientAddr: n.cfg.ClientAddr, hostname: n.cfg.Hostname, form: n.cfg.formNumbers(), alone: n.cfg.alone(),
		ackReplicas: n.cfg.AckReplicas, policy: n.cfg.Policy, volatile: n.meta == nil, random: random64}, cells)
	if err != nil {
		return fmt.Errorf("%w (in %s)", err, n.cfg.Dir)
	}
	n.core = core
	if err := n.checkCompany(); err != nil {
		return err
	}
	if n.holdsCopy() {
		n.core.cfg.store, n.core.holdsCopy = n.kept.copy.Store, true
	}
	n.kept.begin(core)
	n.resume, err = n.kept.takeLog()
	return err
}

// holdsCopy reports, at the start, whether the store still holds what this node had
// acknowledged.
func (n *node) holdsCopy() bool {
	return n.outlives != nil && n.kept.copy == copyCell{n.core.self.Shard, n.core.self.Store, n.incarnation}
}

// checkCompany refuses a node without a port whose Dir says that it has company:
// nobody would reach it.
func (n *node) checkCompany() error {
	others := 0
	for _, p := range n.core.peers.ordered {
		if p != n.core.self && p.State != forgotten {
			others++
		}
	}
	if n.cfg.Addr != "" || others == 0 {
		return nil
	}
	return fmt.Errorf("slotmesh: Config.Addr is \"\", expected an address to listen at: the node in %s has %d other members in its cluster", n.cfg.Dir, others)
}

func (n *node) listen() error {
	if n.cfg.Addr == "" {
		return nil
	}
	l, err := n.cfg.Transport.Listen(n.cfg.Addr)
	if err != nil {
		return fmt.Errorf("slotmesh: listen at %s: %w", n.cfg.Addr, err)
	}
	if l == nil || l.Addr() == nil {
		return fmt.Errorf("slotmesh: listen at %s: Config.Transport returned no listener, or one without an address, and no error", n.cfg.Addr)
	}
	n.listener = l
	if n.addr = n.cfg.AdvertiseAddr; n.addr != "" {
		return nil
	}
	if n.addr = l.Addr().String(); isTCP(n.cfg.Transport) {
		if n.addr, err = transport.AdvertiseAddr(n.addr); err != nil {
			return fmt.Errorf("slotmesh: no address to advertise for %s, expected Config.AdvertiseAddr: %w", l.Addr(), err)
		}
	}
	return nil
}

func isTCP(t Transport) bool {
	switch t.(type) {
	case transport.TCP, *transport.TCP:
		return true
	}
	return false
}

func random64() uint64 {
	var b [8]byte
	crand.Read(b[:])
	return binary.LittleEndian.Uint64(b[:])
}

// start launches the goroutines of the node. All of them end before Close
// returns.
func (n *node) start() {
	n.engine = engine{store: n.cfg.Store, ranked: store.RankedOf(n.cfg.Store), heads: headsOf(n.cfg.Store), clock: n.clock,
		log: n.cfg.Logger, commands: map[string]*Command{}, maxKey: n.cfg.MaxKey, maxValue: n.cfg.MaxValue, timeout: n.cfg.NodeTimeout, events: n.emit, goes: n.goes}
	for i := range n.cfg.Commands {
		c := &n.cfg.Commands[i]
		n.engine.commands[c.Name] = c
	}
	n.engine.sweeper.init(&n.engine)
	n.engine.setLease(0, never)
	n.engine.wrote.Store(!n.ownStore) // who knows what is in it
	n.client = Client{n: n}
	n.links = newLinks(n, n.ctx)
	n.data = newDataConns(n)
	n.jobs = newJobs(n)
	n.repl = newReplication(n)
	n.engine.repl = n.repl
	n.pubSub.init(n)
	n.core.setSeeds(n.cfg.Seeds)
	n.who.Store(n.core.who)
	n.publish()
	if n.meta != nil {
		n.saver = newSaver(n.meta, n.kept)
		n.wg.Go(func() { n.saver.run(n.ctx) })
	}
	booted := make(chan struct{})
	n.wg.Go(func() { n.run(booted) })
	<-booted
	if n.listener != nil {
		n.wg.Go(func() { n.links.accept(n.listener) })
	}
	n.wg.Go(func() { n.engine.sweeper.run(n.ctx) })
}

// run is the only goroutine that touches the core.
func (n *node) run(booted chan struct{}) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	n.apply(n.core.boot(n.now()))
	n.apply(n.core.tick(n.now())) // a node alone without a Dir serves from here on
	close(booted)
	var saved <-chan struct{}
	if n.saver != nil {
		saved = n.saver.done
	}
	for {
		timer.Reset(max(0, n.core.wake-n.now()))
		n.core.logAt = n.repl.position()
		select {
		case d := <-n.inbox:
			if n.refusesMessage(d.msg) {
				continue
			}
			n.core.holdsKeys = n.engine.wrote.Load()
			n.apply(n.core.receive(n.now(), d.from, d.to, d.msg))
		case call := <-n.calls:
			n.apply(call(n.core, n.now()))
		case <-saved:
			n.applySaved()
		case <-n.wake:
			for _, step := range n.takeNext() {
				n.apply(step(n.core, n.now()))
			}
		case <-timer.C:
			n.noteKeys()
			n.core.holdsKeys = n.engine.wrote.Load()
			n.core.logHas = n.repl.progress()
			n.apply(n.core.tick(n.now()))
			n.refreshView()
		case <-n.ctx.Done():
			n.failReplies()
			return
		}
	}
}

// goes starts a goroutine that Close waits for, unless the node is closing.
func (n *node) goes(f func()) bool {
	n.goMu.Lock()
	defer n.goMu.Unlock()
	if n.ending {
		return false
	}
	n.wg.Go(f)
	return true
}

func (n *node) now() time.Duration { return n.engine.now() }

// later hands a step to the run loop, which may be the caller. Jobs do, once or
// twice each, and replicas each NodeTimeout/20, so what waits is bounded by their
// number: the run loop waits for nobody, no disk either.
func (n *node) later(step func(s *state, now time.Duration) output) {
	n.laterMu.Lock()
	n.next = append(n.next, step)
	n.laterMu.Unlock()
	signal(n.wake)
}

func (n *node) takeNext() []func(s *state, now time.Duration) output {
	n.laterMu.Lock()
	defer n.laterMu.Unlock()
	steps := n.next
	n.next = nil
	return steps
}

// applySaved goes on after saves have completed, or failed for good.
func (n *node) applySaved() {
	upTo, err := n.saver.completed()
	if err != nil {
		n.cfg.Logger.Error("the node's state cannot be saved: it serves no more", "dir", n.cfg.Dir, "error", err)
		out := n.core.saveFailed(n.now(), err)
		n.held = nil
		n.told.abandon(n.core.abandoned)
		n.apply(out)
		n.endSavings(err)
		return
	}
	n.apply(n.core.saved(n.now(), upTo))
}

// apply carries out what a step asks: persist, then send, then tell.
func (n *node) apply(out output) {
	for _, s := range out.saves {
		n.saver.save(s)
	}
	n.repl.noteFacts(n.core)
	if n.core.identity <= n.core.savedSeq {
		n.who.Store(n.core.who) // not before it is saved
	}
	on, gone := n.stopServing()
	n.repl.carryOut(n.core)
	published := n.core.viewDirty
	if published {
		// Before a slot that has gone is closed, and anybody is woken: who finds it
		// closed looks here for its new owner. Who comes for one that is about to be served waits.
		n.holdUntilServed(&on)
		n.core.viewDirty = false
		n.publish()
		id := n.core.id
		n.id.Store(&id)
	}
	n.engine.shut(&gone)
	n.tellGone(gone)
	if published {
		n.tellGone(n.backsNoMore())
	}
	n.held = n.sendReady(append(n.held, out.sends...))
	for _, t := range out.tells {
		n.told.add(t)
	}
	n.told.take(n.core.savedSeq, n.tell)
	n.noteClogged()
	if n.core.savedSeq < n.core.saveSeq && n.awaitsSave(out.tells) {
		n.saver.hurry(n.core.saveSeq)
	}
	n.jobs.saving.savedUpTo(n.core.savedSeq)
	n.startServing(on)
	if published {
		n.changed.notify()
	}
	for _, answer := range n.answers {
		answer() // whoever gave the command finds it done in the table
	}
	n.answers = n.answers[:0]
	n.endSaved()
}

// refreshView publishes what time alone has changed, or a heartbeat: who is
// heard, who votes.
func (n *node) refreshView() {
	v := n.engine.view.Load()
	ok, reason := n.core.clusterState()
	if ok != v.ok || reason != v.reason || n.core.unready() != v.unready || n.core.majorityHeard() != v.heard || n.core.table.sum != v.sum {
		n.core.viewDirty = true
		n.apply(output{})
	}
}

func (n *node) publish() {
	n.kept.saveLater() // the cluster may be another one
	v := n.core.publish()
	v.look, v.found = n.links.look, sync.OnceValue(v.findRuns)
	n.engine.view.Store(v)
}

func (n *node) tell(what any) {
	switch t := what.(type) {
	case replyTell:
		if c := n.replies[t.id]; c != nil {
			delete(n.replies, t.id)
			n.answers = append(n.answers, func() { c <- t.err })
		}
	case identityTell:
		n.links.renew()
	case freezeTell:
		n.jobs.freeze(t)
	case jobTell:
		r := jobUndone
		if t.done {
			r = jobDone
		}
		n.jobs.ended(t.job, r)
	case jobLostTell:
		n.jobs.ended(t.job, jobUnsure)
	case stageTell:
		n.jobs.stage(t.stage)
	case stageEndTell:
		n.jobs.stageEnded(t.job)
	case adoptTell:
		n.jobs.adopt(t)
	case markTell:
		n.jobs.mark(t)
	case dropTell:
		n.jobs.drop(t.slots)
	case pauseTell:
		n.repl.pause(t)
	case eventTell:
		n.emit(t.event)
	case *lostTell:
		n.emit(Event{Kind: EventLost, Number: t.number})
	}
}

// stopServing publishes the lease and makes requests for the slots that are on
// hold wait. It returns the slots that have gone, which are to be closed once the
// table says where they are, and those that are to be served, once the data that
// has come for them is live. The lease comes first: a request that
// began under the old one is not acknowledged.
func (n *node) stopServing() (on, gone SlotSet) {
	s := &n.core.serve
	n.engine.setLease(s.reign, n.core.servesUntil())
	if s.version == n.applied.version {
		return on, gone
	}
	gone = n.applied.slots
	gone.Union(&n.applied.hold)
	gone.Subtract(&s.slots)
	gone.Subtract(&s.hold)
	if n.holding != nil {
		n.ended = append(n.ended, n.holding)
	}
	if n.holding = nil; !s.hold.Empty() {
		n.holding = &hold{over: make(chan struct{}), limit: n.holdLimit()}
	}
	if n.holding != nil {
		n.engine.setGate(&s.hold, &gate{n.holding})
	}
	on = s.slots
	on.Subtract(&n.applied.slots)
	on.Union(n.reopened(s))
	n.applied = *s
	return on, gone
}

// tellGone tells of the watched keys of slots that have gone, once nobody runs
// there any more: what a command there has begun to watch is told of too.
func (n *node) tellGone(gone SlotSet) {
	if !gone.Empty() {
		n.tidy(&gone, func(slot Slot, _ *slotCell) { n.engine.watches.tellSlot(slot, true) }, func() {})
	}
}

// backsNoMore are the slots that the shard of this node, a replica, had and has no
// more. Those that it leads now are not among them.
func (n *node) backsNoMore() SlotSet {
	self := n.core.self
	var now SlotSet
	member := self.State != forgotten
	follows := member && n.core.table.primary(self.Shard) != self.ID
	if follows || member && !n.backed.Empty() {
		now = n.core.table.slotsOf(self.Shard)
	}
	gone := n.backed
	gone.Subtract(&now)
	if n.backed = (SlotSet{}); follows {
		n.backed = now
	}
	return gone
}

// holdLimit is how long requests wait for slots on hold: a quarter of a
// NodeTimeout while the shard is being opened, a whole one for a hand-over.
func (n *node) holdLimit() time.Duration {
	if l := n.core.lead; l != nil && !l.opened {
		return n.cfg.NodeTimeout / 4
	}
	return n.cfg.NodeTimeout
}

// reopened is the slots that were on hold and are served again.
func (n *node) reopened(s *serving) *SlotSet {
	back := n.applied.hold
	back.Intersect(&s.slots)
	return &back
}

// holdUntilServed makes requests for slots wait for startServing.
func (n *node) holdUntilServed(on *SlotSet) {
	if !on.Empty() {
		h := &hold{over: make(chan struct{}), limit: n.holdLimit()}
		n.ended = append(n.ended, h)
		n.engine.setGate(on, &gate{hold: h})
	}
}

// startServing lets requests into slots, and wakes those that waited.
func (n *node) startServing(on SlotSet) {
	if !on.Empty() {
		if !n.ownStore {
			first := on
			first.Subtract(&n.seen)
			n.seen.Union(&on)
			n.engine.sweeper.noteSlots(&first)
		}
		n.repl.served(n.kept.served(&on, &n.core.table))
		n.engine.setGate(&on, n.openGate())
	}
	for _, h := range n.ended {
		close(h.over) // whoever waited looks again
	}
	n.ended = n.ended[:0]
}

// ---- calls into the core

// do runs a command of the core and waits for its answer.
func (n *node) do(ctx context.Context, command func(s *state, now time.Duration, id uint64) output) error {
	if err := n.mayCommand(ctx); err != nil {
		return err
	}
	reply := make(chan *commandError, 1)
	call := func(s *state, now time.Duration) output {
		if err := n.refusesCommand(); err != nil {
			reply <- err
			return output{}
		}
		n.nextCall++
		n.replies[n.nextCall] = reply
		return command(s, now, n.nextCall)
	}
	if err := n.post(ctx, call); err != nil {
		return err
	}
	select {
	case err, open := <-reply:
		if !open {
			return &AdminError{Text: "this node has been closed before the answer came; it may still happen", Outcome: Unknown, Err: ErrClosed}
		}
		return err.public()
	case <-ctx.Done():
		return &AdminError{Text: "the context was over before the answer came; it may still happen", Outcome: Unknown, Err: ctx.Err()}
	}
}

// post hands a step to the run loop.
func (n *node) post(ctx context.Context, call func(s *state, now time.Duration) output) error {
	if err := ctx.Err(); err != nil {
		return contextOver(err)
	}
	select {
	case n.calls <- call:
		return nil
	case <-ctx.Done():
		return contextOver(ctx.Err())
	case <-n.ctx.Done():
		return nodeClosed()
	}
}

// mayCommand refuses what no command of an operator can do.
func (n *node) mayCommand(ctx context.Context) error {
	switch {
	case inTx(ctx):
		return &AdminError{Text: "an operator's command, which would wait for the slot that the caller holds", Err: ErrInTx}
	case n.engine.closed.Load():
		return nodeClosed()
	case ctx.Err() != nil:
		return contextOver(ctx.Err())
	}
	return nil
}

func nodeClosed() error { return &AdminError{Text: closedReason, Err: ErrClosed} }

func contextOver(err error) error {
	return &AdminError{Text: "the context was over before it began", Err: err}
}

// failReplies ends what waits for the run loop.
func (n *node) failReplies() {
	if n.holding != nil {
		close(n.holding.over)
	}
	if n.paused != nil {
		close(n.paused.hold.over)
	}
	n.jobs.saving.savedUpTo(math.MaxUint64) // who waits finds the node closed
	for id, c := range n.replies {
		delete(n.replies, id)
		close(c)
	}
}

// metSelf notes that this node lives at one of its seeds.
func (n *node) metSelf(addr string) {
	_ = n.post(n.ctx, func(s *state, now time.Duration) output {
		s.begin(now)
		s.seedIs(addr, s.cfg.addr)
		return s.end()
	})
}

// dialNode connects to a node, or to whoever lives at an address, and shakes
// hands.
func (n *node) dialNode(ctx context.Context, to dest, who *sender, role linkRole) (net.Conn, hello, error) {
	ctx, cancel := context.WithTimeout(ctx, min(n.cfg.NodeTimeout, handshakeTimeout))
	defer cancel()
	conn, err := n.cfg.Transport.Dial(ctx, to.addr)
	if err == nil && conn == nil {
		err = fmt.Errorf("slotmesh: Config.Transport: Dial of %s returned no connection and no error", to.addr)
	}
	if err != nil {
		return nil, hello{}, err
	}
	if !n.links.track(conn) {
		conn.Close()
		return nil, hello{}, ErrClosed
	}
	theirs, err := handshake(conn, true, role, who, to.wanted)
	if err != nil {
		n.hangUp(conn)
		return nil, hello{}, err
	}
	if to.ID.IsZero() && theirs.From.Addr != to.addr {
		_ = n.post(ctx, func(s *state, now time.Duration) output {
			s.begin(now)
			s.seedIs(to.addr, theirs.From.Addr)
			return s.end()
		})
	}
	return conn, theirs, nil
}

// closeBeside closes a connection for a caller who may not wait, such as the run loop,
// or one who holds a lock: TLS says goodbye, and may take seconds for it.
func (n *node) closeBeside(conn net.Conn) {
	if !n.goes(func() { conn.Close() }) {
		conn.Close()
	}
}

// hangUp closes a connection that was tracked.
func (n *node) hangUp(conn net.Conn) {
	conn.Close()
	n.links.forget(conn)
}

// ---- the public face

// ID implements Node.
func (n *node) ID() NodeID {
	if id := n.id.Load(); id != nil {
		return *id
	}
	return NodeID{}
}

// Addr implements Node.
func (n *node) Addr() string { return n.addr }

// Table implements Node.
func (n *node) Table() SlotTable { return n.engine.view.Load() }

// Client implements Node.
func (n *node) Client() *Client { return &n.client }

// Execute implements Node.
func (n *node) Execute(ctx context.Context, r Request, f func(*Tx) error) error {
	ran, err := n.engine.execute(ctx, new(Tx), &r, f, waitHold)
	if err == nil {
		return nil
	}
	return n.opError(&r, ran, err)
}

// Ready implements Node.
func (n *node) Ready(ctx context.Context) error {
	for {
		if n.engine.closed.Load() {
			return ErrClosed
		}
		changed := n.changed.wait()
		v := n.engine.view.Load()
		if v.ready {
			if err := ctx.Err(); err != nil { // as where it has to wait
				return fmt.Errorf("slotmesh: waiting until node %s is ready: %w", n.ID().short(), err)
			}
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("slotmesh: node %s is not ready: %s: %w", n.ID().short(), v.unready, ctx.Err())
		case <-n.ctx.Done():
			return ErrClosed
		}
	}
}

// Leave implements Node.
func (n *node) Leave(ctx context.Context) (LeaveReport, error) {
	began := time.Now()
	v := n.engine.view.Load()
	voted := v.voters.has(n.ID())
	err := n.do(ctx, func(s *state, now time.Duration, id uint64) output { return s.depart(now, id) })
	return LeaveReport{Voted: voted, Took: time.Since(began)}, err
}

// Close implements Node.
func (n *node) Close() error {
	var err error
	n.once.Do(func() {
		n.engine.closed.Store(true)
		n.goMu.Lock()
		n.ending = true
		n.goMu.Unlock()
		n.cancel()
		if n.listener != nil {
			n.listener.Close()
		}
		n.links.close()
		n.data.close()
		n.pubSub.close()
		n.wg.Wait()
		n.engine.close()
		n.saveEnd()
		close(n.closed)
		n.closeEvents()
		err = n.release()
	})
	<-n.closed
	return err
}

// saveEnd saves for the next start where this one has ended.
func (n *node) saveEnd() {
	if n.outlives == nil {
		return
	}
	var l *logCell
	if n.outlives.Incarnation() == n.incarnation {
		l = n.repl.endsAt()
	}
	if err := n.kept.close(l); err != nil {
		n.cfg.Logger.Warn("where the log has ended is not saved: the next start copies everything", "dir", n.cfg.Dir, "error", err)
	}
}

// release gives back what open has taken.
func (n *node) release() error {
	var errs []error
	if n.listener != nil {
		n.listener.Close()
	}
	if n.meta != nil {
		errs = append(errs, n.meta.Close())
	}
	if n.ownStore {
		errs = append(errs, n.cfg.Store.Close())
	}
	return errors.Join(errs...)
}

// notifier wakes whoever waits for a change.
type notifier struct {
	mu sync.Mutex
	c  chan struct{} // closed at the next change
}

func (t *notifier) init() { t.c = make(chan struct{}) }

func (t *notifier) wait() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.c
}

func (t *notifier) notify() {
	t.mu.Lock()
	defer t.mu.Unlock()
	close(t.c)
	t.c = make(chan struct{})
}

// ---- events

// watcher is one reader of events.
type watcher struct {
	c    chan Event
	lost uint64
}

const eventsBufferMax = 1 << 16

// Events implements Node.
func (n *node) Events(ctx context.Context, buffer int) <-chan Event {
	w := &watcher{c: make(chan Event, min(max(buffer, 1), eventsBufferMax))}
	n.eventsMu.Lock()
	defer n.eventsMu.Unlock()
	started := n.goes(func() {
		select {
		case <-ctx.Done():
			n.unwatch(w)
		case <-n.ctx.Done(): // Close closes the channel, after the last event
		}
	})
	if started {
		n.watchers[w] = struct{}{}
	} else {
		close(w.c)
	}
	return w.c
}

func (n *node) unwatch(w *watcher) {
	n.eventsMu.Lock()
	defer n.eventsMu.Unlock()
	if _, ok := n.watchers[w]; ok {
		delete(n.watchers, w)
		close(w.c)
	}
}

// emit hands an event to every watcher that has room for it.
func (n *node) emit(e Event) {
	n.logEvent(&e)
	n.eventsMu.Lock()
	defer n.eventsMu.Unlock()
	for w := range n.watchers {
		if w.lost > 0 {
			select {
			case w.c <- Event{Kind: EventLost, Number: w.lost}:
				w.lost = 0
			default:
			}
		}
		select {
		case w.c <- e:
		default:
			w.lost++
		}
	}
}

func (n *node) closeEvents() {
	n.eventsMu.Lock()
	defer n.eventsMu.Unlock()
	for w := range n.watchers {
		delete(n.watchers, w)
		close(w.c)
	}
}

// logEvent writes what an operator should see.
func (n *node) logEvent(e *Event) {
	switch e.Kind {
	case EventCut:
		n.cfg.Logger.Warn(e.Kind.String(), "node", e.Node, "shard", e.Shard, "number", e.Number, "text", e.Text)
	case EventUnclean, EventDuplicate, EventNumberRefused, EventRefused, EventFailed, EventDiffers:
		n.cfg.Logger.Warn(e.Kind.String(), "node", e.Node, "shard", e.Shard, "addr", e.Addr, "text", e.Text)
	case EventReplicas:
		log := n.cfg.Logger.Warn
		if e.Text == "" {
			log = n.cfg.Logger.Info // it has them again
		}
		log(e.Kind.String(), "node", e.Node, "shard", e.Shard, "number", e.Number, "text", e.Text)
	case EventFormed, EventJoined, EventForgotten, EventReset, EventPrimary, EventDeposed, EventHeard:
		n.cfg.Logger.Info(e.Kind.String(), "node", e.Node, "shard", e.Shard, "epoch", e.Epoch)
	}
}

// ---- status

// Status is what one node says of itself and its cluster.
type Status struct {
	Node       NodeID
	Cluster    ClusterID // zero: not formed
	OK         bool      // cluster_state
	Reason     string    // why it is not
	Ready      bool
	Unready    string // why not
	Assigned   int    // slots with an owner
	Failed     int    // slots whose owner has failed
	Members    int
	Shards     int    // with slots
	Epoch      uint64 // current epoch: the highest of any shard
	MyEpoch    uint64
	Voters     []NodeID
	Version    uint64 // of the voters
	Changing   bool   // the voters are being changed
	MustNotDie NodeID // the only voter of a cluster of several nodes: without it nothing is decided

	// Problems are what is wrong though it keeps nothing from being served, a
	// sentence each: members whose NodeTimeout, or Primaries, are not this node's;
	// shards that have lost replicas (EventReplicas); a disk that neither writes nor
	// fails, for which as much waits as may. The caller owns it.
	Problems []string

	Replication Replication // of this node's shard
	Policy      Policy      // what this node does by itself

	// Messages of the bus since this node started, by kind ("HEARTBEAT", "VOTE",
	// ..., "PUBLISH"); those that are zero are left out.
	Sent, Received map[string]uint64
	Dropped        uint64 // of Publish: messages that no longer fitted into the queue of a node, or found no way to it
}

const closedReason = "this node is closed"

// Status implements Node.
func (n *node) Status() Status {
	v := n.engine.view.Load()
	s := Status{Node: v.self.ID, Cluster: v.cluster, OK: v.ok, Reason: v.reason, Ready: v.ready, Unready: v.unready,
		Members: len(v.nodes), Epoch: v.epoch, MyEpoch: v.leaders[v.self.Shard].epoch.Number, Version: v.voters.Version.Number, Changing: v.stopped}
	s.Replication = n.repl.status()
	s.Sent, s.Received = n.counts()
	s.Dropped = n.pubSub.dropped.Load()
	if s.Problems = slices.Clone(v.trouble); n.clogged.Load() {
		s.Problems = append(s.Problems, diskHangs)
	}
	s.Policy = v.policy
	if n.engine.closed.Load() {
		s.OK, s.Reason, s.Ready, s.Unready = false, closedReason, false, closedReason
	}
	for _, m := range v.voters.Members {
		s.Voters = append(s.Voters, m.ID)
	}
	if len(s.Voters) == 1 && len(v.nodes) > 1 {
		s.MustNotDie = s.Voters[0]
	}
	for _, sh := range v.Shards() {
		s.Shards++
		s.Assigned += sh.Slots.Len()
		if sh.Failed {
			s.Failed += sh.Slots.Len()
		}
	}
	return s
}

// String is the status in one line.
func (s Status) String() string {
	state := "ok"
	if !s.OK {
		state = "fail: " + s.Reason
	}
	line := fmt.Sprintf("%s: %s, %d members, %d shards, %d slots assigned, %d voters", s.Node.short(), state, s.Members, s.Shards, s.Assigned, len(s.Voters))
	for _, p := range s.Problems {
		line += "; " + p
	}
	return line
}
