package slotmesh

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/slotmesh/slotmesh/store"
)

// The data of a hand-over. The giver sends the taker, over a connection of its
// own, everything that its slots hold, and while that is on its way every effect
// on them; both enter one queue under the lock of the slot, so that their order
// there is the order in which they happened. The taker applies them to its own
// store, in slots that it does not serve: nobody sees them. When little is left
// to send the giver freezes the slots, sends the rest and what it all adds up
// to, and lets the core go on: STAGE, MOVE (job.go). Until MOVE is out, anything
// that goes wrong thaws the slots, and the taker drops what it has.

const (
	moveGroupMax  = 64                     // slots that move together
	outgoingMax   = 4 << 20                // bytes of effects that wait; at the bound writes to the slots wait
	outgoingLow   = 64 << 10               // with less waiting than that, or after so many
	copyRounds    = 16                     // rounds, the slots are frozen
	freezeFirst   = 50 * time.Millisecond  // from the freeze until the taker has all; over it, thaw, and the next may last twice as long
	freezeLimit   = 500 * time.Millisecond // at most, and until the taker's core says so
	moveTries     = 20                     // of a group, before a move is given up
	incomingMax   = 1024                   // hand-overs that a taker holds, or whose beginning waits for its disk; at the bound one more is refused
	opsOverhead   = 16
	pieceBytes    = 1 << 20 // of one piece, unless a single op has more
	moveRetryWait = 20 * time.Millisecond
)

// jobs are the hand-overs of a node, in both directions.
type jobs struct {
	n        *node
	position atomic.Uint64
	saving   savingMarks

	mu      sync.Mutex // guards what follows
	refuses bool       // whatever is to come: the node is being reset
	begins  int        // that wait for the disk, each with the reader of its connection
	out     map[uint64]*outgoing
	in      map[uint64]*incoming
	kept    *kept
}

func newJobs(n *node) *jobs {
	return &jobs{n: n, saving: savingMarks{}, out: map[uint64]*outgoing{}, in: map[uint64]*incoming{}, kept: n.kept}
}

// ---- the giver

// outgoing is a hand-over that this node gives.
type outgoing struct {
	job    uint64
	slots  SlotSet
	freeze atomic.Pointer[freeze] // the newest
	fate   atomic.Uint32          // who decides: see fate
	sums   map[Slot]uint64        // the sender's alone, as are page and budget
	page   int                    // entries to read at a time
	budget time.Duration          // that the next freeze may last

	mu     sync.Mutex // guards what follows
	pieces []piece
	bytes  int
	most   int           // of bytes, before writes to the slots wait
	room   chan struct{} // closed when there is room again; nil: there is
}

// freeze is one attempt to end a hand-over: the core's word on it comes once.
type freeze struct {
	frozen chan struct{} // closed when nobody runs in the slots
	result chan jobResult
}

func newFreeze() *freeze {
	return &freeze{frozen: make(chan struct{}), result: make(chan jobResult, 1)}
}

// jobResult is how a hand-over has ended.
type jobResult uint8

const (
	jobUndone jobResult = iota // nothing has changed
	jobDone
	jobUnsure // its MOVE is out, and somebody else leads the shard now
)

// The fate of a hand-over: either the core may send MOVE, or its caller has gone
// and knows that it never will.
const (
	fateOpen uint32 = iota
	fateCore
	fateGivenUp
)

// piece is effects of one slot that wait to be sent.
type piece struct {
	slot  Slot
	ops   []store.Op
	bytes int
}

func newOutgoing(slots SlotSet) *outgoing {
	o := &outgoing{job: random64() | 1, slots: slots, sums: map[Slot]uint64{}, page: pageFirst, budget: freezeFirst, most: outgoingMax}
	o.freeze.Store(newFreeze())
	return o
}

// effects queues what has been applied to a slot, under its lock, in pieces that
// fit into frames, and returns its bytes. The slice stays the caller's.
func (o *outgoing) effects(slot Slot, ops []store.Op) (total int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(ops) > 0 {
		n, bytes := pieceOf(ops)
		o.pieces = append(o.pieces, piece{slot, slices.Clone(ops[:n]), bytes})
		ops = ops[n:]
		total += bytes
	}
	if o.bytes += total; o.bytes > o.most && o.room == nil {
		o.room = make(chan struct{})
	}
	return total
}

// narrow halves what may wait to be sent: where writes come faster than they can
// be sent they have to wait, or there would be no end.
func (o *outgoing) narrow() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.most = max(o.most/2, outgoingLow/2)
}

// pieceOf is how many of the ops go into one piece, at least one, and their
// bytes.
func pieceOf(ops []store.Op) (n, bytes int) {
	for n < len(ops) && n < pieceOpsMax {
		op := &ops[n]
		size := opsOverhead + len(op.Key) + len(op.Field) + len(op.Value)
		if n > 0 && bytes+size > pieceBytes {
			break
		}
		n, bytes = n+1, bytes+size
	}
	return n, bytes
}

// full returns nil if there is room for more, or else what to wait for.
func (o *outgoing) full() chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.room
}

// take returns what waits to be sent, and how much is left after it: nothing.
func (o *outgoing) take() []piece {
	o.mu.Lock()
	defer o.mu.Unlock()
	p := o.pieces
	o.pieces, o.bytes = nil, 0
	if o.room != nil {
		close(o.room)
		o.room = nil
	}
	return p
}

// putBack returns to the queue what could not be sent.
func (o *outgoing) putBack(pieces []piece) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.pieces = append(slices.Clone(pieces), o.pieces...)
	for i := range pieces {
		o.bytes += pieces[i].bytes
	}
	if o.bytes > o.most && o.room == nil {
		o.room = make(chan struct{})
	}
}

func (o *outgoing) waiting() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.bytes
}

// moveSlots hands slots that this node serves over to another node, and waits
// until every live member knows.
func (n *node) moveSlots(ctx context.Context, slots SlotSet, to NodeID) error {
	err := n.moveGroups(ctx, slots, to)
	known := n.do(ctx, func(s *state, now time.Duration, id uint64) output { return s.announce(now, id, slots) })
	if err == nil {
		err = known
	}
	moved := n.engine.view.Load().Slots(to)
	moved.Intersect(&slots)
	return partly(err, !moved.Empty())
}

// partly is an error of which it is not true that nothing has changed, where some of
// what was asked for has happened.
func partly(err error, some bool) error {
	var a *AdminError
	if !some || !errors.As(err, &a) || a.Outcome != NotExecuted {
		return err
	}
	return &AdminError{Text: a.Text, Outcome: Unknown, Err: a.Err}
}

// moveGroups moves group by group. Groups that have moved stay moved when a
// later one fails.
func (n *node) moveGroups(ctx context.Context, slots SlotSet, to NodeID) error {
	var group SlotSet
	flush := func() error {
		if group.Empty() {
			return nil
		}
		err := n.moveGroup(ctx, group, to)
		group = SlotSet{}
		return err
	}
	for slot := range slots.All() {
		group.Add(slot)
		if group.Len() == moveGroupMax {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	return flush()
}

// moveGroup moves a group, trying again where something came between.
func (n *node) moveGroup(ctx context.Context, group SlotSet, to NodeID) error {
	failed := &AdminError{Err: ErrTryAgain}
	budget := freezeFirst
	for range moveTries {
		v := n.engine.view.Load()
		target, left, err := v.moveTarget(group, to)
		if err != nil {
			return err
		}
		if left.Empty() {
			return nil
		}
		o, needed, err := n.jobs.give(ctx, left, target, budget)
		if err == nil {
			return nil
		}
		budget = needed
		failed.Text, failed.Outcome = fmt.Sprintf("slots %s to node %s: %s", group.String(), to.short(), words(err)), o
		if n.ctx.Err() != nil {
			failed.Err = ErrClosed
			return failed
		}
		select {
		case <-time.After(moveRetryWait):
		case <-ctx.Done():
			failed.Err = ctx.Err()
			return failed
		case <-n.ctx.Done():
		}
	}
	return failed
}

// give hands a group over, once, beside its caller, who may go at any time. It
// begins with freezes of a budget, and returns that of the last one.
func (j *jobs) give(ctx context.Context, slots SlotSet, target NodeInfo, budget time.Duration) (Outcome, time.Duration, error) {
	o := newOutgoing(slots)
	o.budget = budget
	jobCtx, cancel := context.WithCancel(j.n.ctx)
	type ending struct {
		o      Outcome
		budget time.Duration
		err    error
	}
	ended := make(chan ending, 1)
	started := j.n.goes(func() {
		defer cancel()
		outcome, err := j.move(jobCtx, o, target)
		ended <- ending{outcome, o.budget, err}
	})
	if !started {
		cancel()
		return NotExecuted, budget, ErrClosed
	}
	select {
	case e := <-ended:
		return e.o, e.budget, e.err
	case <-ctx.Done():
		cancel()
		if o.fate.CompareAndSwap(fateOpen, fateGivenUp) {
			return NotExecuted, budget, ctx.Err()
		}
		return Unknown, budget, fmt.Errorf("%w; it may still happen", ctx.Err())
	}
}

// moveTarget is where slots are to go, and which of them are still here.
func (v *view) moveTarget(group SlotSet, to NodeID) (target NodeInfo, left SlotSet, err error) {
	for _, x := range v.nodes {
		if x.ID == to {
			target = x
		}
	}
	if target.ID.IsZero() {
		return target, left, invalid("Unknown node %s", to).public()
	}
	if v.leaders[target.Shard].epoch.Node != to {
		return target, left, invalid("Target node is not a master").public()
	}
	for slot := range group.All() {
		switch owner, ok := v.Owner(slot); {
		case ok && owner.ID == to:
		case !ok || !owner.Self:
			return target, left, invalid("slot %d is not owned by this node", slot).public()
		case v.marked(slot) != nil:
			return target, left, v.marked(slot).forbidsHandOver().public()
		default:
			left.Add(slot)
		}
	}
	return target, left, nil
}

// move is the giver's side of a hand-over.
func (j *jobs) move(ctx context.Context, o *outgoing, target NodeInfo) (Outcome, error) {
	conn, err := j.n.data.open(target)
	if err != nil {
		return NotExecuted, err
	}
	defer conn.end(errors.New("slotmesh: the hand-over has ended"))
	if err := j.begin(o); err != nil {
		return NotExecuted, err
	}
	defer j.finish(o)
	v := j.n.engine.view.Load()
	begin := dataBegin{job: o.job, order: jobOrder{v.leaders[v.self.Shard].epoch.Number, j.position.Add(1)}, slots: o.slots}
	if err := conn.send(ctx, frameDataBegin, 64, begin.append); err != nil {
		return NotExecuted, err
	}
	if err := j.copyAll(ctx, o, conn); err != nil {
		return NotExecuted, err
	}
	return j.handOver(ctx, o, conn, target)
}

// begin makes every effect on the slots of a hand-over enter its queue.
func (j *jobs) begin(o *outgoing) error {
	j.mu.Lock()
	j.out[o.job] = o
	j.mu.Unlock()
	var taken SlotSet
	for slot := range o.slots.All() {
		c := j.n.engine.cell(slot)
		if c == nil {
			j.release(o, taken)
			return tryAgain("slot %d is not served here now", slot)
		}
		c.mu.Lock()
		ok, _ := c.enter()
		if ok = ok && c.copying == nil && c.mark.Load() == nil; ok {
			c.copying = o
		}
		c.mu.Unlock()
		if !ok {
			j.release(o, taken)
			return tryAgain("slot %d is not served here now, is marked, or is being handed over already", slot)
		}
		taken.Add(slot)
	}
	return nil
}

// finish ends a hand-over, whatever has become of it.
func (j *jobs) finish(o *outgoing) { j.release(o, o.slots) }

func (j *jobs) release(o *outgoing, slots SlotSet) {
	for slot := range slots.All() {
		c := j.n.engine.cell(slot)
		c.mu.Lock()
		if c.copying == o {
			c.copying = nil
		}
		c.mu.Unlock()
	}
	o.take() // whoever waits for room goes on
	j.mu.Lock()
	delete(j.out, o.job)
	j.mu.Unlock()
}

// copyAll sends what the slots hold, and the effects meanwhile, until little is
// left.
func (j *jobs) copyAll(ctx context.Context, o *outgoing, conn *dataConn) error {
	for slot := range o.slots.All() {
		w := slotWalk{from: j.n.cfg.Store, slot: slot, lock: j.n.engine.cell(slot).mu.RLocker(), page: &o.page,
			take: func(ops []store.Op) error {
				o.page = adaptPage(o.page, o.effects(slot, ops))
				return nil
			},
			after: func() error {
				if err := o.drain(ctx, conn); err != nil {
					return err
				}
				return ctx.Err()
			}}
		if err := w.run(); err != nil {
			return err
		}
	}
	return o.catchUp(ctx, conn)
}

// catchUp sends the effects of meanwhile, until little is left.
func (o *outgoing) catchUp(ctx context.Context, conn *dataConn) error {
	for range copyRounds {
		if err := conn.pass(ctx); err != nil {
			return err
		}
		if o.waiting() <= outgoingLow {
			break
		}
		if err := o.drain(ctx, conn); err != nil {
			return err
		}
		o.narrow()
	}
	return nil
}

// drain sends what waits. What it has not sent when ctx is over waits on.
func (o *outgoing) drain(ctx context.Context, conn *dataConn) error {
	pieces := o.take()
	for i, p := range pieces {
		err := conn.send(ctx, frameData, p.bytes, func(b []byte) []byte { return appendPiece(b, o.job, p.slot, p.ops) })
		if err != nil {
			o.putBack(pieces[i:])
			return err
		}
		o.sums[p.slot] = sumOps(o.sums[p.slot], p.ops)
	}
	return nil
}

// sumOps adds ops to the running sum of a slot: both sides reckon it over what
// they have sent or applied, in order.
func sumOps(sum uint64, ops []store.Op) uint64 {
	for i := range ops {
		op := &ops[i]
		sum = hashUint(sum, uint64(op.Code)<<8|uint64(op.Kind))
		sum = hashText(sum, op.Key)
		sum = hashText(sum, op.Field)
		sum = hashText(sum, op.Value)
		sum = hashUint(sum, uint64(op.ExpireAt))
	}
	return sum
}

// freezeOver says that a freeze has lasted longer than it may: the slots are
// thawed, and nothing has changed.
type freezeOver struct{ text string }

func (e *freezeOver) Error() string { return e.text }

// handOver freezes the slots, sends the rest, and waits for the decision. A
// freeze that takes too long is thawed, what has been written meanwhile is sent,
// and the next may take twice as long: so writers wait no longer than the network
// needs, and it ends.
func (j *jobs) handOver(ctx context.Context, o *outgoing, conn *dataConn, target NodeInfo) (Outcome, error) {
	for {
		began, f := time.Now(), o.freeze.Load()
		position, err := j.freezeAndSend(ctx, o, f, conn, target)
		if err == nil {
			return j.decide(ctx, o, f, position, freezeLimit-time.Since(began))
		}
		var over *freezeOver
		if !errors.As(err, &over) || o.budget >= freezeLimit {
			return NotExecuted, err
		}
		o.budget = min(2*o.budget, freezeLimit)
		if err := o.catchUp(ctx, conn); err != nil {
			return NotExecuted, err
		}
		o.freeze.Store(newFreeze())
	}
}

// freezeAndSend freezes the slots and returns the position up to which the taker
// has their data then. On an error they are thawed.
func (j *jobs) freezeAndSend(ctx context.Context, o *outgoing, f *freeze, conn *dataConn, target NodeInfo) (position uint64, err error) {
	err = j.n.begin(ctx, func(s *state, now time.Duration) output {
		return s.handOff(now, o.job, o.slots, target.Shard)
	})
	if err != nil {
		return 0, err
	}
	within, cancel := context.WithTimeout(ctx, o.budget)
	defer cancel()
	select {
	case <-f.frozen:
		position = j.position.Add(1)
		err = j.sendRest(within, o, conn, position)
	case r := <-f.result:
		_, err = handedOver(r, nil)
		return 0, err
	case <-within.Done():
		err = &freezeOver{fmt.Sprintf("a command has held its slot for %v", o.budget)}
	}
	switch {
	case ctx.Err() != nil:
		err = ctx.Err()
	case err != nil && within.Err() != nil:
		var over *freezeOver
		if !errors.As(err, &over) {
			err = &freezeOver{fmt.Sprintf("the target has not taken the data within %v", o.budget)}
		}
	case err == nil && !o.fate.CompareAndSwap(fateOpen, fateCore):
		err = context.Canceled // its caller has just gone
	}
	if err != nil {
		return 0, j.thawed(ctx, o, f, err)
	}
	return position, nil
}

// thawed gives a freeze up because of err, and returns it once the core has said
// its last word on it.
func (j *jobs) thawed(ctx context.Context, o *outgoing, f *freeze, err error) error {
	j.thaw(o)
	limit := time.NewTimer(j.n.cfg.NodeTimeout)
	defer limit.Stop()
	select {
	case <-f.result:
		return err
	case <-limit.C:
		return tryAgain("%v; and this node's disk is slow", err)
	case <-ctx.Done():
		return ctx.Err()
	case <-j.n.ctx.Done():
		return ErrClosed
	}
}

// decide lets the core go on, and waits for its word.
func (j *jobs) decide(ctx context.Context, o *outgoing, f *freeze, position uint64, within time.Duration) (Outcome, error) {
	limit := time.NewTimer(within)
	defer limit.Stop()
	if err := j.n.post(j.n.ctx, func(s *state, now time.Duration) output { return s.frozen(now, o.job, position, false) }); err != nil {
		return NotExecuted, err
	}
	return j.awaitDecision(ctx, o, f, limit.C)
}

// thaw gives a hand-over up, if its MOVE is not out yet. It reports whether the
// core still knows of it.
func (j *jobs) thaw(o *outgoing) bool {
	goesOn := make(chan bool, 1)
	_ = j.n.post(j.n.ctx, func(s *state, now time.Duration) output {
		out := s.thaw(now, o.job)
		goesOn <- s.giveByJob(o.job) != nil
		return out
	})
	select {
	case on := <-goesOn:
		return on
	case <-j.n.ctx.Done():
		return false
	}
}

func handedOver(r jobResult, cause error) (Outcome, error) {
	switch {
	case r == jobDone:
		return Executed, nil
	case r == jobUnsure:
		return Unknown, tryAgain("another node leads the shard now, and may complete the hand-over")
	case cause != nil:
		return NotExecuted, cause
	}
	return NotExecuted, tryAgain("the hand-over did not come to a decision, nothing has changed")
}

// awaitDecision waits for the core's word. Once MOVE is out there is no other
// way to know.
func (j *jobs) awaitDecision(ctx context.Context, o *outgoing, f *freeze, limit <-chan time.Time) (Outcome, error) {
	var cause error
	given := ctx.Done()
	look := time.NewTicker(max(j.n.cfg.NodeTimeout, 2*freezeLimit))
	defer look.Stop()
	for lost := false; ; {
		select {
		case r := <-f.result:
			return handedOver(r, cause)
		case <-limit:
			cause = tryAgain("the target has not said within %v that it holds the data", freezeLimit)
			j.thaw(o) // without effect if MOVE is out
		case <-given:
			given, cause = nil, ctx.Err()
			j.thaw(o)
		case <-look.C:
			if lost {
				return Unknown, tryAgain("nothing is known of the hand-over any more")
			}
			lost = !j.thaw(o) // its word is on its way, or never comes
		case <-j.n.ctx.Done():
			return Unknown, ErrClosed
		}
	}
}

// sendRest sends what is left, and what it all adds up to, and waits until the
// taker has it.
func (j *jobs) sendRest(ctx context.Context, o *outgoing, conn *dataConn, position uint64) error {
	if err := o.drain(ctx, conn); err != nil {
		return err
	}
	end := dataEnd{job: o.job, position: position}
	for slot := range o.slots.All() {
		keys, err := j.n.engine.countKeys(slot)
		if err != nil {
			return err
		}
		end.sums = append(end.sums, slotSum{slot, uint64(keys), o.sums[slot]})
	}
	answer, err := conn.sendEnd(ctx, &end)
	if err != nil {
		return err
	}
	defer conn.forgetEnd(position)
	select {
	case d := <-answer:
		switch {
		case d == nil:
			return errHungUp
		case d.text != "":
			return tryAgain("the target refuses the data: %s", d.text)
		}
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// sendEnd sends the end of a hand-over's data; the answer comes on the channel.
func (c *dataConn) sendEnd(ctx context.Context, end *dataEnd) (<-chan *dataDone, error) {
	answer := make(chan *dataDone, 1)
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return nil, errNotSent
	}
	if c.ends == nil {
		c.ends = map[uint64]chan *dataDone{}
	}
	c.ends[end.position] = answer
	c.mu.Unlock()
	err := c.send(ctx, frameDataEnd, 32*len(end.sums)+64, end.append)
	if err != nil {
		c.forgetEnd(end.position)
	}
	return answer, err
}

// forgetEnd waits for an answer no more.
func (c *dataConn) forgetEnd(position uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.ends, position)
}

// freeze is called by the run loop when no request can get into the slots of a
// job any more. The hand-over goes on once nobody runs in them. In place, with no
// data to send, they have to be empty.
func (j *jobs) freeze(t freezeTell) {
	j.mu.Lock()
	o := j.out[t.job]
	j.mu.Unlock()
	slots := t.slots
	if o != nil {
		f := o.freeze.Load()
		j.n.tidy(&slots, func(Slot, *slotCell) {}, func() { j.onceReplied(func() { close(f.frozen) }) })
		return
	}
	var keys atomic.Bool
	j.n.tidy(&slots, func(slot Slot, _ *slotCell) {
		if t.inPlace && j.n.engine.holdsLive(slot) {
			keys.Store(true)
		}
	}, func() {
		j.onceReplied(func() {
			position := j.position.Add(1)
			j.n.later(func(s *state, now time.Duration) output {
				return s.frozen(now, t.job, position, keys.Load())
			})
		})
	})
}

// onceReplied calls f once every reply is out or failed that waits for replicas.
func (j *jobs) onceReplied(f func()) {
	if !j.n.repl.strict() {
		f()
		return
	}
	j.n.repl.onceCommitted(j.n.repl.end(), f)
}

// holdsLive reports whether a slot has a key whose time has not come. One whose
// time has come would keep an operator waiting for the sweeper.
func (e *engine) holdsLive(slot Slot) bool {
	now := time.Now().UnixMilli()
	for cursor, first := uint64(0), true; first || cursor != 0; first = false {
		items, next, err := e.store.Scan(uint16(slot), cursor, pageMost)
		if err != nil {
			return true
		}
		for i := range items {
			if at := items[i].ExpireAt; at == 0 || at > now {
				return true
			}
		}
		cursor = next
	}
	return false
}

// gives reports whether a job is one of this driver, whose caller waits.
func (j *jobs) gives(job uint64) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.out[job] != nil
}

// ended is called by the run loop when a job of the core has ended.
func (j *jobs) ended(job uint64, r jobResult) {
	j.mu.Lock()
	o := j.out[job]
	j.mu.Unlock()
	if o == nil {
		return
	}
	select {
	case o.freeze.Load().result <- r:
	default: // its first word counts
	}
}

// ---- the taker

// incoming is a hand-over that this node takes. What the jobs' lock does not
// guard is of the reader of its connection alone.
type incoming struct {
	job      uint64
	from     *dataServer
	order    jobOrder // of its beginning, then of its end; guarded by the lock of jobs
	slots    SlotSet
	sums     map[Slot]uint64
	complete bool       // guarded by the lock of jobs
	stage    *heldStage // what the core waits for, nil: not yet; guarded by the lock of jobs
	moves    moveRuns   // of the stage; the same
	text     string     // why it is refused
}

// jobOrder orders the hand-overs of a giver: positions grow while it runs, and
// when it starts anew it needs a higher epoch before it gives anything.
type jobOrder struct {
	epoch    uint64
	position uint64
}

func (o jobOrder) less(p jobOrder) bool {
	return o.epoch < p.epoch || o.epoch == p.epoch && o.position < p.position
}

// receiveBegin begins to take slots. What this node still has of them is of no
// use any more, unless this beginning has come late, over a connection that has
// been given up.
func (j *jobs) receiveBegin(s *dataServer, b *dataBegin) {
	in := &incoming{job: b.job, from: s, order: b.order, slots: b.slots, sums: map[Slot]uint64{}}
	stale := j.admit(in)
	if in.text != "" {
		return
	}
	err := j.forgetStaged(&in.slots)
	j.mu.Lock()
	j.begins--
	j.mu.Unlock()
	if err != nil {
		in.refuse("%v", err)
		return
	}
	for _, old := range stale {
		j.unstage(old)
		j.n.later(func(s *state, now time.Duration) output { return s.stageLost(now, old.job) })
	}
	v := j.n.engine.view.Load()
	for slot := range in.slots.All() {
		owner, ok := v.Owner(slot)
		if !ok || owner.ID != s.from.ID {
			in.refuse("slot %d does not belong to the node that gives it", slot)
			break
		}
		if !j.n.engine.stageSlot(slot, b.job) {
			in.refuse("slot %d is served here, or marked IMPORTING", slot)
			break
		}
	}
}

// admit enters a hand-over, unless it is refused, and returns those whose slots
// begin to come anew with it: they have been given up.
func (j *jobs) admit(in *incoming) (stale []*incoming) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.refuses || len(j.in) >= incomingMax || j.begins >= incomingMax || j.in[in.job] != nil {
		in.refuse("no hand-over is taken now, there are %d already, or this one has begun", incomingMax)
		return nil // its sender hears so at its end
	}
	for _, old := range j.in {
		both := old.slots
		if both.Intersect(&in.slots); both.Empty() {
			continue
		}
		if old.from.from.ID == in.from.from.ID && !old.order.less(in.order) {
			in.refuse("slots %s are coming by a later hand-over", both.String())
			return nil
		}
		stale = append(stale, old)
	}
	for _, old := range stale {
		delete(j.in, old.job)
	}
	j.in[in.job] = in
	j.begins++
	return stale
}

func (in *incoming) refuse(format string, args ...any) {
	if in.text == "" {
		in.text = fmt.Sprintf(format, args...)
	}
}

// stageSlot makes a slot that is not served here empty, and ready for a job. What
// was imported key by key is not to be lost by that.
func (e *engine) stageSlot(slot Slot, job uint64) bool {
	c := e.makeCell(slot)
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed() || c.mark.Load() != nil || e.repl.follows.Load() {
		return false
	}
	c.staging, c.imported = job, false
	if e.store.Drop(uint16(slot)) != nil {
		return false
	}
	e.repl.became(entryDrop, slot, c, 0)
	e.repl.n.kept.set(cellOwned, slot, 0)
	return true
}

// imports notes that a key is written to a slot that an operator's mark brings here key
// by key. What is here of it is right under the move that is to come, whoever leads then:
// the replicas hear so before the key.
func (e *engine) imports(slot Slot, c *slotCell) {
	c.imported = true
	k := e.repl.n.kept
	if move := e.view.Load().entry(slot).move + 1; k.at(cellStaged, slot) != move {
		k.set(cellStaged, slot, move)
		e.repl.became(entryImport, slot, c, move)
		k.saveLater()
	}
}

// receive applies a piece of data.
func (j *jobs) receive(s *dataServer, p *dataPiece) {
	in := j.incomingOf(s, p.job)
	if in == nil || in.text != "" || len(p.ops) == 0 {
		return
	}
	c := j.n.engine.cell(p.slot)
	if c == nil || !in.slots.Contains(p.slot) {
		in.refuse("slot %d is not of this hand-over", p.slot)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.staging != p.job || j.n.repl.follows.Load() {
		in.refuse("slot %d is not staged for this hand-over any more", p.slot)
		return
	}
	in.sums[p.slot] = sumOps(in.sums[p.slot], p.ops)
	j.n.engine.sweeper.noteOps(p.slot, p.ops)
	if err := j.n.cfg.Store.Apply(uint16(p.slot), p.ops); err != nil {
		in.refuse("slot %d: %v", p.slot, err)
		return
	}
	j.n.repl.effects(p.slot, c, p.ops)
}

func (j *jobs) refuseAll(refuse bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.refuses = refuse
}

// taking reports whether data is coming in, or has come for a move to come.
func (j *jobs) taking() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.in) > 0
}

// refuse refuses the rest of a hand-over.
func (j *jobs) refuse(s *dataServer, job uint64, err error) {
	if in := j.incomingOf(s, job); in != nil {
		in.refuse("%v", err)
	}
}

// incomingOf is a job that comes over a connection.
func (j *jobs) incomingOf(s *dataServer, job uint64) *incoming {
	j.mu.Lock()
	defer j.mu.Unlock()
	if in := j.in[job]; in != nil && in.from == s {
		return in
	}
	return nil
}

// receiveEnd compares what has come with what was sent, and answers.
func (j *jobs) receiveEnd(s *dataServer, d *dataEnd) {
	text := ""
	in := j.incomingOf(s, d.job)
	switch {
	case in == nil:
		text = fmt.Sprintf("no such hand-over: it has been given up, a later one of its slots has begun, there are %d already, or the node is being reset", incomingMax)
	case in.text != "":
		text = in.text
	default:
		text = j.compare(in, d)
	}
	done := dataDone{job: d.job, position: d.position, text: text}
	s.write(frameDataDone, done.append)
	if text != "" || in == nil {
		return
	}
	j.mu.Lock()
	in.complete, in.order.position = true, d.position
	wanted, moves := in.stage != nil, in.moves
	j.mu.Unlock()
	if wanted {
		j.held(moves, d.job, d.position)
	}
}

func (j *jobs) compare(in *incoming, d *dataEnd) string {
	if len(d.sums) != in.slots.Len() {
		return fmt.Sprintf("sums of %d slots, expected %d", len(d.sums), in.slots.Len())
	}
	for _, s := range d.sums {
		keys, err := j.n.engine.countKeys(s.slot)
		switch {
		case err != nil:
			return fmt.Sprintf("slot %d: %v", s.slot, err)
		case !in.slots.Contains(s.slot) || in.sums[s.slot] != s.sum || uint64(keys) != s.keys:
			return fmt.Sprintf("slot %d has %d keys here, expected %d, or its sum differs", s.slot, keys, s.keys)
		}
	}
	return ""
}

// stage is called by the run loop: the core wants to know when the data of a
// stage is here.
func (j *jobs) stage(h *heldStage) {
	if h.InPlace {
		j.stageInPlace(h.Job, h.Position, slices.Clone(h.Slots))
		return
	}
	j.mu.Lock()
	in := j.in[h.Job]
	if in != nil {
		in.stage, in.moves = h, slices.Clone(h.Slots)
	}
	ready := in != nil && in.complete && in.order.position == h.Position
	j.mu.Unlock()
	if ready {
		moves, job, position := in.moves, h.Job, h.Position
		j.n.wg.Go(func() { j.held(moves, job, position) })
	}
}

// stageInPlace tells the core that slots may come without data, once every replica
// knows what stays when they do: what has come key by key.
func (j *jobs) stageInPlace(job, position uint64, moves moveRuns) {
	slots, to := moves.slots(), moves.bySlot()
	j.n.tidy(&slots, func(slot Slot, c *slotCell) {
		if m := c.mark.Load(); m != nil && m.Importing {
			j.n.repl.became(entryImport, slot, c, to[slot])
		}
	}, func() {
		held := func() {
			j.n.later(func(s *state, now time.Duration) output { return s.stageHeld(now, job, position) })
		}
		if mutated(mutInPlaceAlone) {
			held()
			return
		}
		j.n.repl.onceCommitted(j.n.repl.end(), held)
	})
}

// held tells the core that the data of a job is here, once that is remembered, and
// every replica has it.
func (j *jobs) held(moves moveRuns, job, position uint64) {
	gone := false
	moves.each(func(slot Slot, move uint64) {
		c := j.n.engine.makeCell(slot)
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.staging != job || j.n.repl.follows.Load() {
			gone = true
			return
		}
		j.kept.set(cellStaged, slot, move)
		j.n.repl.became(entryStaged, slot, c, move)
	})
	if gone {
		return // given up meanwhile
	}
	if err := j.kept.save(); err != nil {
		return // the node serves no more
	}
	if !mutated(mutHeldAlone) && !j.n.repl.awaitHeld(j.n.ctx, j.n.repl.end(), 0, 0, freezeLimit) {
		return
	}
	_ = j.n.post(j.n.ctx, func(s *state, now time.Duration) output { return s.stageHeld(now, job, position) })
}

// forgetStaged is for slots whose staged data is about to go.
func (j *jobs) forgetStaged(slots *SlotSet) error {
	for slot := range slots.All() {
		j.kept.set(cellStaged, slot, 0)
	}
	return j.kept.save()
}

// hungUp drops what has come over a connection that has ended, unless the core
// has been asked for it: then the core says when.
func (j *jobs) hungUp(s *dataServer) {
	j.mu.Lock()
	var gone []*incoming
	for _, in := range j.in {
		if in.from == s && (!in.complete || in.stage == nil) {
			delete(j.in, in.job)
			gone = append(gone, in)
		}
	}
	j.mu.Unlock()
	for _, in := range gone {
		j.unstage(in)
	}
}

// stageEnded is called by the run loop when the core holds a stage no more: it
// was cancelled, or its slots are here.
func (j *jobs) stageEnded(job uint64) {
	j.mu.Lock()
	in := j.in[job]
	delete(j.in, job)
	j.mu.Unlock()
	if in != nil {
		j.unstage(in)
	}
}

// unstage drops the data of a job that has not become live.
func (j *jobs) unstage(in *incoming) {
	j.n.tidy(&in.slots, func(slot Slot, c *slotCell) {
		if c.staging == in.job && c.adopting.Load() == nil {
			c.staging = 0
			j.letGo(slot, c)
		}
	}, j.kept.saveLater)
}

// adopt is called by the run loop before slots that have come are served: what
// was staged for that very move becomes live, what was written here under a mark
// of an operator stays, anything else goes.
func (j *jobs) adopt(t adoptTell) {
	runs, kept := t.slots, t.kept
	slots := runs.slots()
	back := j.servedBefore(runs, &t.back)
	jobs, before := j.stagedFor(runs)
	pending := &hold{over: make(chan struct{}), limit: j.n.cfg.NodeTimeout}
	to := runs.bySlot()
	turns := map[Slot]uint32{} // of the kept ones
	for slot := range slots.All() {
		c := j.n.engine.makeCell(slot)
		if kept.Contains(slot) && c.adopting.Load() == nil {
			turns[slot] = c.turn.Load()
			continue // it may be served at once, and what runs there may be acknowledged
		}
		kept.Remove(slot)
		c.turn.Add(1)
		c.adopting.Store(pending)
	}
	j.n.tidy(&slots, func(slot Slot, c *slotCell) {
		if kept.Contains(slot) && c.turn.Load() != turns[slot] || !kept.Contains(slot) && c.adopting.Load() != pending {
			return // it has gone, and come again, before anybody could look
		}
		staged := c.staging != 0 && c.staging == jobs[slot] || c.staging == 0 && before.Contains(slot)
		stays := staged || back.Contains(slot) || kept.Contains(slot) || c.imported
		c.staging, c.imported = 0, false
		j.own(slot, c, to[slot], stays)
		c.adopting.CompareAndSwap(pending, nil)
	}, func() {
		close(pending.over)
		j.kept.saveLater()
	})
}

func (r moveRuns) bySlot() map[Slot]uint64 {
	moves := map[Slot]uint64{}
	r.each(func(slot Slot, move uint64) { moves[slot] = move })
	return moves
}

// mark is called by the run loop when the mark of a slot has changed. An old copy
// goes before the mark lets anybody see it.
func (j *jobs) mark(t markTell) {
	c := j.n.engine.makeCell(t.slot)
	if t.mark != nil && t.mark.Importing && c.mark.Load() == nil {
		c.turn.Add(1) // so that no drop of what was here before comes late
	}
	j.saving.set(c, t.after, j.n.cfg.NodeTimeout)
	if was := c.mark.Load(); was != nil && was.Importing && t.mark == nil && c.closed() && !j.n.core.table.slotIsOf(t.slot, j.n.core.self.Shard) {
		defer j.n.tellGone(oneSlotSet(t.slot)) // what waits here for keys waits at the wrong node
	}
	if t.known {
		c.mark.Store(t.mark)
		if t.mark != nil && t.mark.Importing {
			j.keepImported(t.slot, true)
		}
		return
	}
	if !t.stale || j.kept.at(cellStaged, t.slot) > j.n.core.table.slots.at(t.slot).move { // or it has been imported, by another member
		j.n.repl.marked(t.slot, c, t.mark)
		if t.mark != nil && t.mark.Importing {
			j.keepImported(t.slot, false)
		}
		return
	}
	pending := &hold{over: make(chan struct{}), limit: j.n.cfg.NodeTimeout}
	c.adopting.Store(pending)
	j.n.repl.marked(t.slot, c, t.mark)
	slots := oneSlotSet(t.slot)
	j.n.tidy(&slots, func(slot Slot, c *slotCell) {
		if c.adopting.Load() == pending {
			j.letGo(slot, c)
			c.imported = false
			c.adopting.Store(nil)
		}
	}, func() { close(pending.over) })
}

// keepImported notes that what is here already of a slot that is IMPORTING from now on, by an
// earlier mark, or because nobody had the slot, is shown, and so stays when the slot comes.
// known: the log has it.
func (j *jobs) keepImported(slot Slot, known bool) {
	slots := oneSlotSet(slot)
	j.n.tidy(&slots, func(slot Slot, c *slotCell) {
		m := c.mark.Load()
		switch keys, err := j.n.cfg.Store.Len(uint16(slot)); {
		case err != nil || keys == 0 || m == nil || !m.Importing || !c.closed() || j.n.repl.follows.Load():
		case known:
			c.imported = true
		default:
			j.n.engine.imports(slot, c)
		}
	}, func() {})
}

// savingMarks are the slots whose marks are not on disk yet. The run loop's alone.
type savingMarks map[*slotCell]savingMark

type savingMark struct {
	hold *hold  // what requests wait for that need the mark
	save uint64 // that has it
}

// set notes that a mark is in a save; 0: in none, there is nothing to wait for.
func (m savingMarks) set(c *slotCell, save uint64, limit time.Duration) {
	was, saving := m[c]
	switch {
	case save == 0:
		m.end(c)
	case saving: // another mark of the slot takes its place
		m[c] = savingMark{was.hold, save}
	default:
		h := &hold{over: make(chan struct{}), limit: limit}
		m[c] = savingMark{h, save}
		c.marking.Store(h)
	}
}

// savedUpTo lets requests go on whose marks are saved.
func (m savingMarks) savedUpTo(n uint64) {
	for c, s := range m {
		if s.save <= n {
			m.end(c)
		}
	}
}

func (m savingMarks) end(c *slotCell) {
	if s, saving := m[c]; saving {
		c.marking.Store(nil)
		close(s.hold.over)
		delete(m, c)
	}
}

// stagedFor is the jobs with which all data of slots has come, for these moves,
// and the slots whose data had come before this start.
func (j *jobs) stagedFor(runs moveRuns) (jobs map[Slot]uint64, before SlotSet) {
	j.mu.Lock()
	defer j.mu.Unlock()
	jobs = map[Slot]uint64{}
	runs.each(func(slot Slot, move uint64) {
		for id, in := range j.in {
			if in.complete && in.stage != nil && in.stage.names(slot, move) {
				jobs[slot] = id
			}
		}
		if j.kept.at(cellStaged, slot) == move {
			before.Add(slot)
		}
	})
	return jobs, before
}

// servedBefore is the slots whose data is still that of when they were served
// here last. Those that have come from nobody are fromNobody.
func (j *jobs) servedBefore(runs moveRuns, fromNobody *SlotSet) (back SlotSet) {
	runs.each(func(slot Slot, move uint64) {
		if j.kept.back(slot, move, fromNobody.Contains(slot)) {
			back.Add(slot)
		}
	})
	return back
}

// own makes what is here of a slot what is served under a move, or nothing. While
// another node leads, its log says what becomes of the slot. The caller holds the
// slot's lock, here and in letGo.
func (j *jobs) own(slot Slot, c *slotCell, move uint64, stays bool) {
	if j.n.repl.follows.Load() {
		return
	}
	kind := entryOwn
	if !stays {
		kind = entryFresh
		j.dropData(slot)
	}
	j.n.repl.became(kind, slot, c, move)
	j.kept.set(cellOwned, slot, move)
	j.kept.set(cellStaged, slot, 0)
}

// letGo drops what is here of a slot, here and at the replicas: nothing here is right under
// any move then.
func (j *jobs) letGo(slot Slot, c *slotCell) {
	if j.n.repl.follows.Load() {
		return
	}
	j.dropData(slot)
	j.n.repl.became(entryDrop, slot, c, 0)
	j.kept.set(cellOwned, slot, 0)
	j.kept.set(cellStaged, slot, 0)
}

// dropData drops what the store holds of a slot.
func (j *jobs) dropData(slot Slot) {
	if err := j.n.cfg.Store.Drop(uint16(slot)); err != nil && !errors.Is(err, store.ErrClosed) {
		j.n.cfg.Logger.Error("the store does not drop a slot", "slot", slot, "error", err)
	}
}

// drop is called by the run loop when slots that have gone are served elsewhere. What has
// come since, for a move that is to bring them back, is not what has gone.
func (j *jobs) drop(runs moveRuns) {
	var slots SlotSet
	turns := map[Slot]uint32{}
	runs.each(func(slot Slot, move uint64) {
		if c := j.n.engine.cell(slot); c != nil && !j.n.core.table.slotIsOf(slot, j.n.core.self.Shard) && j.kept.at(cellStaged, slot) <= move {
			slots.Add(slot)
			turns[slot] = c.turn.Load()
		}
	})
	j.n.tidy(&slots, func(slot Slot, c *slotCell) {
		if c.closed() && c.staging == 0 && c.turn.Load() == turns[slot] {
			j.letGo(slot, c)
		}
	}, func() {})
}

// handOffAsked carries out another node's request to give slots away: which, to
// whom, and for how many milliseconds (0: until the connection ends).
func (n *node) handOffAsked(ctx context.Context, q *request) error {
	if len(q.args) != 3 || len(q.args[1]) != len(NodeID{}) {
		return errArgs
	}
	slots, err := ParseSlotSet(string(q.args[0]))
	if err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	ms, err := strconv.ParseInt(string(q.args[2]), 10, 64)
	if err != nil || ms < 0 {
		return fmt.Errorf("%w: time for a hand-over %.20q, expected milliseconds", ErrInvalid, q.args[2])
	}
	if ms > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(ms)*time.Millisecond)
		defer cancel()
	}
	return n.moveSlots(ctx, slots, NodeID(q.args[1]))
}
