package slotmesh

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/slotmesh/slotmesh/store"
)

// engine routes and runs requests. Whether this node serves a slot is decided
// under the lock of the slot, and the request runs under the same lock. The lock
// is held for computation only; whatever waits (a freeze, the network) waits
// outside, on a channel. The run loop closes the gate of a slot without the
// lock, for a command may hold it for seconds; what has to know that nobody runs
// any more, as a hand-over does, takes the lock after the gate has closed.
//
// A reply is decided under the lock too, after the run: it may leave only if
// the lease is still held, in the reign in which the request ran, and the slot
// has not gone meanwhile.
type engine struct {
	store    Store
	ranked   store.Ranked // of the store
	heads    heads        // of the store
	clock    *clock
	log      *slog.Logger
	commands map[string]*Command
	maxKey   int
	maxValue int
	timeout  time.Duration // NodeTimeout

	lease   atomic.Pointer[leaseView]
	view    atomic.Pointer[view]
	closed  atomic.Bool
	cells   [NumSlots / cellPageSlots]atomic.Pointer[cellPage]
	waiters atomic.Int64
	repl    *replication
	wrote   atomic.Bool // something has been written since the run loop last looked; see noteKeys
	sweeper sweeper
	watches watches
	events  func(Event)
	goes    func(func()) bool // starts a goroutine that the node waits for
}

const (
	cellPageSlots = 64
	waitersMax    = 1 << 16                // requests that wait at a time; at the bound one more is told to try again
	runBudget     = 100 * time.Millisecond // a command that takes longer is reported
)

type cellPage [cellPageSlots]slotCell

// slotCell is what requests know of a slot. The run loop alone changes gate,
// turn and mark.
type slotCell struct {
	gate     atomic.Pointer[gate]
	turn     atomic.Uint32        // raised when the slot goes, and when it comes by a move
	adopting atomic.Pointer[hold] // what has come by a move is being made live, or an old copy dropped; nil: is not
	mark     atomic.Pointer[SlotMark]
	marking  atomic.Pointer[hold] // until the mark is saved; nil: it is
	marked   logMark              // where the shard's log says so; guarded by mu of replication
	due      dueTime              // the earliest time of expiry that is stored

	mu       sync.RWMutex // guards what follows, and the slot's data
	copying  *outgoing    // the hand-over that takes a copy of each effect; nil: none
	wrote    logMark      // the last entry of the shard's log that is about it
	staging  uint64       // job whose data comes in here; 0: none
	imported bool         // keys have been written here while the slot was IMPORTING: see imports
}

// gate is who gets into a slot: everybody, or nobody until hold is over. A slot
// without a gate is not served here.
type gate struct {
	hold *hold // nil: everybody
}

var openGate = &gate{}

// enter reports whether a request may run now; if not, h may be waited for.
func (c *slotCell) enter() (ok bool, h *hold) {
	g := c.gate.Load()
	switch a := c.adopting.Load(); {
	case g == nil:
		return false, nil
	case g.hold != nil:
		return false, g.hold
	case a != nil:
		return false, a
	}
	return true, nil
}

// closed reports whether nothing is served here, nor will be without a move.
func (c *slotCell) closed() bool { return c.gate.Load() == nil && c.adopting.Load() == nil }

// hold is what requests wait for: the end of a freeze or of an opening, or room
// for more effects. One hold may follow another: limit is for a request's wait
// in all.
type hold struct {
	over  chan struct{}
	limit time.Duration
}

// patience is what a request waits for.
type patience uint8

const (
	waitNot  patience = iota // not even for a command that holds the slot's lock
	waitLock                 // for the lock
	waitHold                 // for the end of a hold, too
)

// errWouldWait: the request needs more patience than it may have.
var errWouldWait = errors.New("slotmesh: would wait")

// stay is the wait at holds, in all, of a request, or of requests that came together.
type stay struct {
	patience
	waited time.Duration
	begins func() // called before each wait; nil: nobody wants to know
}

// left is how much longer it may wait at a hold.
func (s *stay) left(limit time.Duration) time.Duration { return limit - s.waited }

// leaseView is the lease as requests see it.
type leaseView struct {
	reign uint64
	until time.Duration
}

// cell is the lock of a slot, or nil where this node has never served it.
func (e *engine) cell(slot Slot) *slotCell {
	if p := e.cells[slot/cellPageSlots].Load(); p != nil {
		return &p[slot%cellPageSlots]
	}
	return nil
}

// makeCell is cell; it makes what is missing.
func (e *engine) makeCell(slot Slot) *slotCell {
	if at := &e.cells[slot/cellPageSlots]; at.Load() == nil {
		at.CompareAndSwap(nil, new(cellPage))
	}
	return e.cell(slot)
}

// keys is the number of keys in a slot, whoever serves it. A store that cannot
// say counts as not empty.
func (e *engine) keys(slot Slot) int {
	n, err := e.countKeys(slot)
	if err != nil {
		return 1
	}
	return n
}

func (e *engine) countKeys(slot Slot) (int, error) {
	c := e.makeCell(slot)
	c.mu.RLock()
	defer c.mu.RUnlock()
	return e.store.Len(uint16(slot))
}

// now is the node's clock.
func (e *engine) now() time.Duration { return e.clock.now() }

// held reports whether what runs in the reign of l may be acknowledged now.
func (e *engine) held(l *leaseView) bool {
	now := e.lease.Load()
	if now.reign != l.reign {
		return false
	}
	return now.until == forever || e.now() < now.until
}

// ---- routing

// Request says which slot a call is for, and what it may do there.
type Request struct {
	// Keys are the keys that the call touches, all in one slot. At least one.
	Keys []string
	// ReadOnly calls of one slot run beside each other and write nothing.
	ReadOnly bool
	// Name is what errors call it; "execute" by default.
	Name string
	// Asking says that the client has been sent here by ASK, for this once: a
	// slot that is marked IMPORTING here serves it.
	Asking bool
	// Anyway is for what moves keys, one by one: a slot that is marked serves it
	// whatever keys are here.
	Anyway bool
	// FromReplica lets a replica answer a request that is ReadOnly, with what it has:
	// writes that were acknowledged before may be missing, those of the last
	// Config.ReplicaStaleness alone.
	FromReplica bool
	// Stale lets a request that is ReadOnly be answered by a node that cannot know
	// whether it still has the newest: by a primary whose lease is over, as long as it
	// has heard of no other, and, with FromReplica, by a replica however long ago it
	// has heard its primary.
	Stale bool
	// Whole refuses the request while some slot of the cluster, any slot, has no owner
	// or a failed one, as Redis does by default. What is read with Stale passes, and
	// what is served to Asking or Anyway: so a cluster that lacks slots is mended.
	Whole bool
	// AckReplicas is how many members besides the primary must have what the call
	// writes before it returns; where fewer are in sync it is refused, with
	// ErrNoReplicas, before it runs. 0 leaves it to Config.AckReplicas. That so many
	// have it now is no promise that one of them will lead next.
	AckReplicas int
	// Later is for a Session, which answers many requests at once: the call returns
	// when the request has run, without waiting for replicas, and what it returns is
	// told to nobody before Session.Settle has waited for all of them together, and
	// looked whether this node may still acknowledge them.
	Later bool

	unwatched bool     // nobody waits for the reply: it need not be acknowledged by anybody
	wrote     *logMark // is to be what the call has written; nil: nobody wants to know
}

// needsLease reports whether the answer may be given under a lease alone.
func (r *Request) needsLease() bool { return !r.Stale || !r.ReadOnly }

// question is what a request says of itself.
func (r *Request) question() question {
	return question{readOnly: r.ReadOnly, stale: r.Stale, whole: r.Whole, asking: r.Asking, anyway: r.Anyway}
}

func (r *Request) name() string {
	if r.Name == "" {
		return "execute"
	}
	return r.Name
}

// slot is the slot of all keys.
func (r *Request) slot(maxKey int) (Slot, error) {
	if len(r.Keys) == 0 {
		return 0, fmt.Errorf("%w: a request without keys, expected at least one", ErrInvalid)
	}
	slot := KeySlot(r.Keys[0])
	for i, k := range r.Keys {
		if len(k) > maxKey {
			return 0, fmt.Errorf("%w: key of %d bytes, expected at most %d", ErrTooLarge, len(k), maxKey)
		}
		if i == 0 {
			continue
		}
		if s := KeySlot(k); s != slot {
			return 0, fmt.Errorf("%w: key %.64q is in slot %d, key %.64q in slot %d", ErrCrossSlot, r.Keys[0], slot, k, s)
		}
	}
	return slot, nil
}

// elsewhere says where a request for a slot that is not served here is served.
func (e *engine) elsewhere(slot Slot, r *Request) error {
	return answer(slot, e.view.Load().route(slot, r.question()))
}

// answer is a decision as the caller sees it; nil: it is served here.
func answer(slot Slot, d decision) error {
	switch d.action {
	case routeServe:
		return nil
	case routeMoved:
		return &MovedError{Slot: slot, Node: d.node.ID, Addr: d.node.clientAddr()}
	case routeAsk:
		return &AskError{Slot: slot, Node: d.node.ID, Addr: d.node.clientAddr()}
	case routeTryAgain:
		return &UnservedError{Slot: slot, Reason: d.reason, Err: ErrTryAgain}
	default:
		return &UnservedError{Slot: slot, Reason: d.reason, Err: ErrClusterDown}
	}
}

// clientAddr is where redirects send clients.
func (n *NodeInfo) clientAddr() string {
	if n.ClientAddr != "" {
		return n.ClientAddr
	}
	return n.Addr
}

// decides reports whether the gate of a slot alone does not say what becomes of a
// request: the slot has a mark, or the request wants more than its slot to be served.
func (e *engine) decides(m *SlotMark, serves bool, r *Request) bool {
	return m != nil || serves && r.Whole && !e.view.Load().covered
}

// decide decides about such a request, under the lock of the slot. serves is what its
// gate says. A hold is to be waited for.
func (e *engine) decide(c *slotCell, slot Slot, m *SlotMark, l *leaseView, serves bool, r *Request) (*hold, error) {
	if m != nil && m.Importing && !serves {
		if h := c.adopting.Load(); h != nil && (r.Asking || r.Anyway) {
			return h, nil
		}
		if c.staging != 0 {
			return nil, e.elsewhere(slot, r)
		}
	}
	q := r.question()
	q.serves, q.leased, q.mark = serves, e.held(l), m
	if m != nil {
		if err := e.presence(slot, r, &q); err != nil {
			return nil, err
		}
	}
	d := e.view.Load().route(slot, q)
	if h := c.marking.Load(); m != nil && h != nil && usesMark(&q, &d) {
		return h, nil // a crash might undo the mark, but not what depends on it
	}
	return nil, answer(slot, d)
}

// asks reports whether a request is sent on by ASK and that waits for the replicas: who
// is told that a key has gone writes it where it is now. A successor that had it still
// would serve it.
func (e *engine) asks(r *Request, err error) bool {
	var ask *AskError
	return e.repl.needs(r) > 0 && errors.As(err, &ask) && !mutated(mutAskEarly)
}

// usesMark reports whether a decision would not be the same without the mark, or
// lets somebody take keys away under it.
func usesMark(q *question, d *decision) bool {
	switch d.action {
	case routeServe:
		return q.anyway || q.mark.Importing
	default:
		return d.action == routeAsk
	}
}

// presence looks which keys of a request are here, and touches none: a key whose
// time has come is not there, and stays where it is.
func (e *engine) presence(slot Slot, r *Request, q *question) error {
	now := time.Now().UnixMilli()
	for _, key := range r.Keys {
		head, found, err := e.store.Get(uint16(slot), key, "")
		if err == nil && !found {
			_, found, err = e.ranked.At(uint16(slot), key, 0)
		}
		if err != nil {
			return err
		}
		if found && (head.ExpireAt == 0 || head.ExpireAt > now) {
			q.present++
		} else {
			q.missing++
		}
		q.several = q.several || key != r.Keys[0]
	}
	return nil
}

// await waits until a slot is not on hold any more.
func (e *engine) await(ctx context.Context, slot Slot, h *hold, s *stay) error {
	if e.waiters.Add(1) > waitersMax {
		e.waiters.Add(-1)
		return fmt.Errorf("%w: %d requests wait already", ErrTryAgain, waitersMax)
	}
	defer e.waiters.Add(-1)
	left := s.left(h.limit)
	if s.begins != nil && left > 0 {
		s.begins()
	}
	began := time.Now()
	defer func() { s.waited += time.Since(began) }()
	t := time.NewTimer(left)
	defer t.Stop()
	select {
	case <-h.over:
		return ctx.Err()
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return fmt.Errorf("%w: slot %d has been on hold for %v", ErrClusterDown, slot, h.limit)
	}
}

// notServed is what to do with a request whose slot was not served when it
// looked: wait and look again (nil), or an error that says where to go.
func (e *engine) notServed(ctx context.Context, slot Slot, r *Request, h *hold, s *stay) error {
	switch {
	case e.closed.Load():
		return ErrClosed
	case h == nil:
		return e.elsewhere(slot, r)
	case s.patience < waitHold:
		return errWouldWait
	default:
		return e.await(ctx, slot, h, s)
	}
}

// ---- reads without a Tx

// get reads a plain key. It is the path of a local Client.Get: no closure, no
// Tx, nothing deferred, nothing allocated. served is false where the slot is not
// served here now, and h may be waited for, or where it has a mark.
func (e *engine) get(ctx context.Context, slot Slot, key string, wait patience) (value []byte, found, served bool, h *hold, err error) {
	l := e.lease.Load()
	c := e.cell(slot)
	if c == nil {
		return nil, false, false, nil, nil
	}
	if !c.mu.TryRLock() {
		if err := e.waitLock(ctx, c, true, wait); err != nil {
			return nil, false, true, nil, err
		}
	}
	turn := c.turn.Load()
	if ok, h := c.enter(); !ok || c.mark.Load() != nil {
		c.mu.RUnlock()
		return nil, false, false, h, nil
	}
	value, kind, expireAt, found, err := e.heads.Head(uint16(slot), key)
	if found && expireAt != 0 && expireAt <= time.Now().UnixMilli() {
		value, kind, found = nil, 0, false
	}
	switch {
	case err == nil && (!e.held(l) || c.turn.Load() != turn):
		err = leaseOver(slot)
	case kind != 0:
		value, err = nil, errWrongKind
	}
	if e.repl.ask > 0 && err == nil {
		o := owed{cell: c, turn: turn, lease: l, mark: e.repl.seen(c)}
		c.mu.RUnlock()
		if err = e.settleOwed(ctx, slot, &o, wait); err != nil {
			return nil, false, true, nil, err
		}
		return value, found, true, nil, nil
	}
	c.mu.RUnlock()
	return value, found, true, nil, err
}

// owed is what a reply waits for once its request has run, outside the lock of the
// slot: members that must have what it has written, or seen.
type owed struct {
	cell  *slotCell // nil: it waits for nobody
	turn  uint32
	lease *leaseView // under which it ran; nil: it needs none
	mark  logMark
	n     int // members that must have it besides those in sync
	slot  Slot
	ran   bool
}

// settleOwed waits until a reply may leave: it is decided then whether it may.
func (e *engine) settleOwed(ctx context.Context, slot Slot, o *owed, wait patience) error {
	return e.settleWithin(ctx, slot, o, wait, e.timeout)
}

// settleWithin is settleOwed with a limit. At the end of that it is seen once more
// whether nothing is to be waited for.
func (e *engine) settleWithin(ctx context.Context, slot Slot, o *owed, wait patience, limit time.Duration) error {
	if wait == waitNot {
		limit = 0
	}
	inSync := 0
	if o.ran {
		inSync = e.repl.ask // as many have it as the shard promises: some may have been lost since it ran
	}
	if !e.repl.awaitHeld(ctx, o.mark, o.n, inSync, limit) {
		if wait == waitNot {
			return errWouldWait
		}
		return &UnservedError{Slot: slot, Reason: "the replicas have not acknowledged it", Err: ErrClusterDown}
	}
	if !e.held(o.lease) || o.cell.turn.Load() != o.turn {
		return leaseOver(slot)
	}
	return nil
}

// leaseOver says that what has run may not be acknowledged.
func leaseOver(slot Slot) error {
	return &UnservedError{Slot: slot, Reason: "this node's lease is over, or its rule over the shard has ended", Err: ErrClusterDown}
}

// ---- execute

// execute runs f at the slot of the request, or says where to go. ran reports
// whether it may have had effects although err is not nil. It returns
// errWouldWait where it would have to wait for more than it may. The Tx is one
// that nobody uses.
func (e *engine) execute(ctx context.Context, tx *Tx, r *Request, f func(*Tx) error, wait patience) (ran bool, err error) {
	slot, err := r.slot(e.maxKey)
	if err != nil {
		return false, err
	}
	return e.executeAt(ctx, slot, tx, r, f, wait)
}

// mayCall refuses what no call on keys can do.
func (e *engine) mayCall(ctx context.Context) error {
	switch {
	case e.closed.Load():
		return ErrClosed
	case ctx.Err() != nil:
		return ctx.Err()
	case inTx(ctx):
		return ErrInTx
	}
	return nil
}

// executeAt is execute for a request whose slot is known.
func (e *engine) executeAt(ctx context.Context, slot Slot, tx *Tx, r *Request, f func(*Tx) error, wait patience) (ran bool, err error) {
	var o owed
	s := stay{patience: wait}
	if ran, err = e.runAt(ctx, slot, tx, r, f, &s, &o); o.cell != nil {
		if late := e.settleOwed(ctx, slot, &o, wait); late != nil {
			return o.ran, late
		}
	}
	return ran, err
}

// runAt is executeAt, but for what the reply waits for then.
func (e *engine) runAt(ctx context.Context, slot Slot, tx *Tx, r *Request, f func(*Tx) error, s *stay, o *owed) (ran bool, err error) {
	if err := e.mayCall(ctx); err != nil {
		return false, err
	}
	if f == nil {
		return false, fmt.Errorf("%w: a nil function, expected one to run at the slot", ErrInvalid)
	}
	if s.patience == waitNot && e.repl.needs(r) > 0 {
		return false, errWouldWait // for the replicas, once it has run
	}
	for {
		var h *hold
		if c := e.cell(slot); c != nil {
			var done bool
			if done, ran, h, err = e.try(ctx, c, slot, tx, r, f, s.patience, o); done {
				return ran, err
			}
			if h == nil && e.fromReplica(slot, r) {
				if done, err = e.tryReplica(ctx, c, slot, tx, r, f, s.patience); done {
					return err == nil, err
				}
			}
		}
		if err := e.notServed(ctx, slot, r, h, s); err != nil {
			return false, err
		}
	}
}

// try runs f if the slot is served now.
func (e *engine) try(ctx context.Context, c *slotCell, slot Slot, tx *Tx, r *Request, f func(*Tx) error, wait patience, o *owed) (done, ran bool, h *hold, err error) {
	l := e.lease.Load()
	if ok, _ := c.enter(); ok && r.needsLease() && !e.held(l) {
		return true, false, nil, e.notServedOr(leaseOver(slot), slot, r)
	}
	if !c.tryLock(r.ReadOnly) {
		if err := e.waitLock(ctx, c, r.ReadOnly, wait); err != nil {
			return true, false, nil, err
		}
	}
	defer tx.end() // outside the lock: it may have much to let go of
	defer c.unlock(r.ReadOnly)
	turn := c.turn.Load()
	ok, h := c.enter()
	if m := c.mark.Load(); h == nil && e.decides(m, ok, r) {
		if h, err := e.decide(c, slot, m, l, ok, r); h != nil || err != nil {
			if e.asks(r, err) {
				*o = owed{cell: c, turn: turn, lease: l, mark: e.repl.seen(c), n: r.AckReplicas, slot: slot}
			}
			return err != nil, false, h, err
		}
	} else if !ok {
		return false, false, h, nil
	}
	if c.copying != nil && !r.ReadOnly {
		if full := c.copying.full(); full != nil {
			return false, false, &hold{full, e.timeout}, nil // the copy has to catch up first
		}
	}
	needs := e.repl.needs(r)
	if peers := int(e.repl.peers.Load()); peers < needs && !r.ReadOnly {
		return true, false, nil, fmt.Errorf("%w: %d are, expected at least %d", ErrNoReplicas, peers, needs)
	}
	tx.begin(ctx, e, slot, r)
	err = e.run(tx, r, f)
	if err == nil && len(tx.ops) > 0 && e.lease.Load().reign != l.reign {
		err = leaseOver(slot) // another node may lead already: what it has sent here comes next
	}
	if err == nil && len(tx.ops) > 0 {
		if !e.wrote.Load() {
			e.wrote.Store(true)
		}
		if err = e.store.Apply(uint16(slot), tx.ops); err != nil {
			if ran = mayHaveApplied(err); ran {
				e.repl.unsure(c)
			}
		} else {
			ran = true
			if !ok {
				e.imports(slot, c)
			}
			e.repl.effects(slot, c, tx.ops)
			if r.wrote != nil {
				*r.wrote = c.wrote
			}
			e.sweeper.noteOps(slot, tx.ops)
			e.watches.changed(slot, tx.ops)
			if c.copying != nil {
				c.copying.effects(slot, tx.ops)
			}
		}
	}
	for _, f := range tx.after {
		f()
	}
	if r.needsLease() && !e.held(l) || c.turn.Load() != turn {
		return true, ran, nil, leaseOver(slot) // an error, too, tells of what another node may have changed
	}
	switch {
	case !r.needsLease():
	case needs > 0:
		*o = owed{cell: c, turn: turn, lease: l, mark: e.repl.seen(c), n: r.AckReplicas, slot: slot, ran: ran}
	case r.Later:
		*o = owed{lease: l, slot: slot, ran: ran}
	}
	return true, ran || err == nil, nil, err
}

// fromReplica reports whether a request for a slot that is not served here is one for
// what this node has of it as a replica.
func (e *engine) fromReplica(slot Slot, r *Request) bool {
	if !r.FromReplica || !r.ReadOnly {
		return false
	}
	q := r.question()
	q.shows = e.repl.shows(slot, r.Stale)
	return e.view.Load().route(slot, q).action == routeServe
}

// tryReplica runs f on what this node, a replica, has of the slot.
func (e *engine) tryReplica(ctx context.Context, c *slotCell, slot Slot, tx *Tx, r *Request, f func(*Tx) error, wait patience) (done bool, err error) {
	if !c.tryLock(true) {
		if err := e.waitLock(ctx, c, true, wait); err != nil {
			return true, err
		}
	}
	defer tx.end()
	defer c.unlock(true)
	if !e.fromReplica(slot, r) {
		return false, nil // everything is being copied anew
	}
	tx.begin(ctx, e, slot, r)
	return true, e.run(tx, r, f)
}

func (c *slotCell) tryLock(shared bool) bool {
	if shared {
		return c.mu.TryRLock()
	}
	return c.mu.TryLock()
}

func (c *slotCell) lock(shared bool) {
	if shared {
		c.mu.RLock()
	} else {
		c.mu.Lock()
	}
}

const lockSpins = 8 // looks at a lock that is held, before a caller who may not wait for ever goes about it more slowly

// waitLock takes the lock of a slot in which somebody runs, as long as the
// context allows: a command may hold it for seconds. Where that fails a goroutine
// takes the lock in the end and lets it go.
func (e *engine) waitLock(ctx context.Context, c *slotCell, shared bool, wait patience) error {
	switch {
	case wait == waitNot:
		return errWouldWait
	case ctx.Done() == nil:
		c.lock(shared)
		return nil
	}
	for range lockSpins {
		runtime.Gosched()
		if c.tryLock(shared) {
			return nil
		}
	}
	if e.waiters.Add(1) > waitersMax {
		e.waiters.Add(-1)
		return fmt.Errorf("%w: %d requests wait already", ErrTryAgain, waitersMax)
	}
	locked := make(chan struct{})
	started := e.goes(func() {
		defer e.waiters.Add(-1)
		c.lock(shared)
		select {
		case locked <- struct{}{}:
		case <-ctx.Done():
			c.unlock(shared)
		}
	})
	if !started {
		e.waiters.Add(-1)
		return ErrClosed
	}
	select {
	case <-locked:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *slotCell) unlock(shared bool) {
	if shared {
		c.mu.RUnlock()
	} else {
		c.mu.Unlock()
	}
}

// notServedOr is where to go, unless the answer would be here.
func (e *engine) notServedOr(err error, slot Slot, r *Request) error {
	if v := e.view.Load(); v.owns(slot) {
		return err
	}
	return e.elsewhere(slot, r)
}

// run calls f. A panic in it is caught, its effects discarded with it.
func (e *engine) run(tx *Tx, r *Request, f func(*Tx) error) (err error) {
	began := time.Now()
	tx.at = began
	defer func() {
		if p := recover(); p != nil {
			e.log.Error("command panicked", "command", r.name(), "slot", tx.slot, "panic", p, "stack", string(debug.Stack()))
			err = &CommandError{Code: "ERR", Text: fmt.Sprintf("the command panicked: %v", p)}
		}
		if d := time.Since(began); d > runBudget {
			e.events(Event{Kind: EventSlow, Slots: oneSlotSet(tx.slot), Text: fmt.Sprintf("%s held its slot for %v", r.name(), d)})
		}
	}()
	return f(tx)
}

func oneSlotSet(slot Slot) SlotSet {
	var set SlotSet
	set.Add(slot)
	return set
}

// ---- what the run loop changes

// setLease publishes the lease. A new reign fails every request that has not
// been answered yet.
func (e *engine) setLease(reign uint64, until time.Duration) {
	if l := e.lease.Load(); l == nil || l.reign != reign || l.until != until {
		e.lease.Store(&leaseView{reign, until})
	}
}

// setGate lets requests into slots, or makes them wait.
func (e *engine) setGate(slots *SlotSet, g *gate) {
	for slot := range slots.All() {
		e.makeCell(slot).gate.Store(g)
	}
}

// shut keeps requests out of slots. What runs there is not acknowledged.
func (e *engine) shut(slots *SlotSet) {
	for slot := range slots.All() {
		c := e.makeCell(slot)
		c.turn.Add(1)
		c.gate.Store(nil)
	}
}

// close ends what the run loop has begun, once it is over: nobody gets in any
// more, and who is in a slot is waited for.
func (e *engine) close() {
	for i := range e.cells {
		p := e.cells[i].Load()
		if p == nil {
			continue
		}
		for j := range p {
			c := &p[j]
			c.gate.Store(nil)
			c.mu.Lock()
			c.copying = nil
			c.mu.Unlock()
		}
	}
}

// tidy runs f under the lock of each slot: at once where nobody holds it, for
// the rest in a goroutine, so that the run loop does not wait for a command. It
// calls done at the end.
func (n *node) tidy(slots *SlotSet, f func(Slot, *slotCell), done func()) {
	var busy SlotSet
	for slot := range slots.All() {
		c := n.engine.makeCell(slot)
		if !c.mu.TryLock() {
			busy.Add(slot)
			continue
		}
		f(slot, c)
		c.mu.Unlock()
	}
	if busy.Empty() {
		done()
		return
	}
	n.wg.Go(func() {
		for slot := range busy.All() {
			c := n.engine.cell(slot)
			c.mu.Lock()
			f(slot, c)
			c.mu.Unlock()
		}
		done()
	})
}
