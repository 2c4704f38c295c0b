package slotmesh

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/slotmesh/slotmesh/store"
)

// The replica's side: it dials its primary, says what it has, and applies what it
// is sent, under the locks of the slots, in slots that it does not serve. It
// acknowledges as it goes, beside that, so that one acknowledgement stands for all
// that has come meanwhile. Where it lacks too much, or has what nobody else has, it
// copies everything beside what it holds; that takes the place of the old only when
// it is whole.

const (
	followPauseMin = 10 * time.Millisecond // between two attempts; each that fails at once doubles it
	logEntryMax    = frameLargest          // bytes of the parts of one entry; one with more ends the connection
)

var (
	errNotFollowing = errors.New("slotmesh: this node does not follow that primary any more")
	errOldEpoch     = errors.New("slotmesh: the primary's epoch is over")
)

// following is a time of following one primary.
type following struct {
	r          *replication
	primary    NodeID
	shard      ShardID
	ctx        context.Context
	cancel     context.CancelFunc
	done       chan struct{}
	caught     atomic.Int64  // as heldCopy.caught
	asOf       atomic.Int64  // as heldCopy.asOf
	link       atomic.Uint32 // a LinkState
	primaryEnd atomic.Uint64 // where the primary's log ends, as it has said last

	mu   sync.Mutex
	conn net.Conn // guarded by mu

	// Guarded by mu of replication: the store has been changed by this node itself, so
	// that its log is none any more. Until the next question nothing is applied.
	spoiled bool

	// Its goroutine's alone.
	epoch   Epoch // of the primary, as it has said last
	past    history
	partial []entryPart // of an entry of which more is to come
	raw     logEntry    // the same as it travels
	bytes   int
	side    *sideCopy // everything that is being copied; nil: entries alone

	// What is to be acknowledged, and by whom.
	ackMu sync.Mutex
	ack   logAck // guarded by ackMu
	wake  chan struct{}
}

// newFollowing is nil where nobody is to be followed.
func newFollowing(r *replication, role *logRole) *following {
	if role.primary.IsZero() {
		return nil
	}
	f := &following{r: r, primary: role.primary, shard: role.shard, done: make(chan struct{}), wake: make(chan struct{}, 1)}
	f.ctx, f.cancel = context.WithCancel(r.n.ctx)
	return f
}

// isOf reports whether f is what a role asks for.
func (f *following) isOf(role *logRole) bool {
	if f == nil {
		return role.primary.IsZero()
	}
	return f.primary == role.primary && f.shard == role.shard
}

// end makes it stop; what it has not applied by then it never does.
func (f *following) end() {
	if f != nil {
		f.cancel()
		f.hangUp()
	}
}

// hangUp makes it ask its primary anew.
func (f *following) hangUp() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.conn != nil {
		f.r.n.closeBeside(f.conn)
	}
}

// run follows until it is ended, once its predecessor has.
func (f *following) run(before *following) {
	defer close(f.done)
	if before != nil {
		<-before.done
	}
	n, pause := f.r.n, followPauseMin
	for f.ctx.Err() == nil {
		began := time.Now()
		err := f.connect()
		f.link.Store(uint32(LinkDown))
		n.cfg.Logger.Debug("the primary's log has ended", "primary", f.primary, "error", err)
		if time.Since(began) > n.cfg.NodeTimeout/10 {
			pause = followPauseMin
		}
		select {
		case <-f.ctx.Done():
		case <-time.After(pause):
		}
		pause = min(2*pause, max(followPauseMin, n.cfg.NodeTimeout/40))
	}
}

// connect follows over one connection.
func (f *following) connect() error {
	n := f.r.n
	to, who := n.engine.view.Load().member(f.primary), n.who.Load()
	switch {
	case to == nil:
		return errNotFollowing
	case who == nil:
		return errNotSaved
	}
	conn, _, err := n.dialNode(f.ctx, dest{wanted: wanted{ID: to.ID}, addr: to.Addr}, who, roleData)
	if err != nil {
		return err
	}
	defer n.hangUp(conn)
	f.mu.Lock()
	f.conn = conn
	f.mu.Unlock()
	if f.ctx.Err() != nil {
		return f.ctx.Err() // before it could be hung up
	}
	ctx, cancel := context.WithCancel(f.ctx)
	steady := &steadyConn{Conn: conn, idle: n.cfg.NodeTimeout}
	f.side, f.partial, f.raw, f.bytes = nil, nil, logEntry{}, 0
	f.setAck(Epoch{}, 0)
	q := f.question(clusterTag(who))
	if _, err := steady.Write(appendFrameOf(nil, frameSync, q.append)); err != nil {
		cancel()
		return err
	}
	acking := make(chan struct{})
	if !n.goes(func() {
		defer close(acking)
		f.acknowledge(ctx, steady)
		conn.Close()
	}) {
		close(acking)
	}
	err = f.read(bufio.NewReaderSize(steady, 64<<10))
	cancel()
	conn.Close()
	<-acking
	return err
}

// question is what this node has.
func (f *following) question(cluster uint64) *syncAsk {
	facts := f.r.facts.Load()
	f.r.mu.Lock()
	defer f.r.mu.Unlock()
	f.spoiled = false
	return &syncAsk{cluster: cluster, shard: f.shard, store: facts.store, whole: facts.whole, end: f.r.log.end, past: slices.Clone(f.r.log.past)}
}

// read applies what comes. A primary of which no byte comes for a NodeTimeout, or an
// eighth less, has gone: see steadyConn.
func (f *following) read(in *bufio.Reader) error {
	for {
		kind, payload, err := readFrame(in, feedLimits, nil)
		if err == nil {
			err = f.handle(kind, payload)
		}
		if err != nil {
			return err
		}
	}
}

func (f *following) handle(kind byte, payload []byte) error {
	if f.side != nil && kind != frameSyncEnd {
		f.side.read.add(kind, payload)
	}
	switch kind {
	case frameLogFrom:
		l, err := decodeLogFrom(payload)
		if err != nil {
			return err
		}
		return f.begin(l)
	case frameLog:
		l, err := decodeLogFrame(payload)
		if err != nil {
			return err
		}
		return f.takeFrame(l)
	case frameSyncSlot:
		s, err := decodeSyncSlot(payload)
		if err != nil || f.side == nil {
			return errors.Join(err, errUnasked(f.side))
		}
		f.side.know(s)
	case frameSyncData:
		p, err := decodePiece(payload)
		if err != nil || f.side == nil {
			return errors.Join(err, errUnasked(f.side))
		}
		return f.side.store.Apply(uint16(p.slot), p.ops)
	case frameSyncEnd:
		e, err := decodeSyncEnd(payload)
		if err != nil || f.side == nil {
			return errors.Join(err, errUnasked(f.side))
		}
		if err := f.side.matches(e); (err != nil || len(f.partial) > 0) && !mutated(mutEndUnchecked) {
			return errors.Join(err, errBulk)
		}
		return f.replace()
	}
	return nil
}

func errUnasked(s *sideCopy) error {
	if s == nil {
		return errBulk
	}
	return nil
}

// begin takes an epoch of the primary: the core promises to take nothing older,
// and nothing is acknowledged before that is saved.
func (f *following) begin(l *logFrom) error {
	taken := false
	err := f.r.n.settled(f.ctx, func(s *state, now time.Duration) (out output) {
		out, taken = s.takes(now, f.shard, l.epoch)
		return out
	})
	switch {
	case err != nil:
		return err
	case !taken:
		return errOldEpoch
	}
	f.epoch, f.past = l.epoch, l.past
	switch {
	case l.all && f.side == nil:
		if n := f.r.tail(l); n > 0 {
			f.r.n.emit(Event{Kind: EventCut, Node: f.r.n.ID(), From: f.primary, Shard: f.shard, Number: n,
				Text: "writes that no other member has are dropped: this node has led on its own"})
		}
		f.link.Store(uint32(LinkSync))
		f.side = &sideCopy{store: store.NewMemory(), end: l.from, slots: map[Slot]*syncSlot{}}
		return nil
	case f.side != nil:
		return nil
	}
	if err := f.resume(l); err != nil {
		return err
	}
	f.link.Store(uint32(LinkUp))
	return f.ackUpTo(l.from) // the primary may have nothing more to say
}

// resume goes on with the log as it is here: it is the beginning of the primary's.
func (f *following) resume(l *logFrom) error {
	f.r.mu.Lock()
	defer f.r.mu.Unlock()
	at, shared := l.past.shared(l.from, f.r.log.past, f.r.log.end)
	if f.r.following != f || f.spoiled || !shared || at != l.from || f.r.log.end != l.from {
		return errNotFollowing // what it has is not what it has asked with
	}
	f.r.keep()
	f.r.take(l.past.upTo(l.from), l.from)
	return nil
}

// takeFrame applies entries, and acknowledges them.
func (f *following) takeFrame(l *logFrame) error {
	if at := f.at(); l.first != at+1 {
		return fmt.Errorf("slotmesh: the primary has sent the entry at offset %d, expected %d", l.first, at+1)
	}
	for _, part := range l.parts {
		if err := f.takePart(part); err != nil {
			return err
		}
	}
	if f.side != nil {
		f.setAck(Epoch{}, 0)
		return nil
	}
	end := f.at()
	f.primaryEnd.Store(l.end)
	f.noteNews(end, &logNews{l.end, time.Duration(l.answers) * time.Millisecond, l.table})
	return f.ackUpTo(end)
}

// noteNews notes how new what this node has is, now that it has the log up to an offset.
func (f *following) noteNews(has uint64, l *logNews) {
	if l.isAll(has) {
		f.caught.Store(int64(l.answers))
	}
	f.asOf.Store(int64(l.asOf(time.Duration(f.asOf.Load()), has, f.r.n.engine.view.Load().sum)))
}

// ackUpTo acknowledges what has been applied, once it is remembered under which
// moves that is right.
func (f *following) ackUpTo(end uint64) error {
	if err := f.r.n.kept.saveMoves(); err != nil {
		return err // the node serves no more
	}
	f.setAck(f.epoch, end)
	return nil
}

// at is the offset of the last entry that has come.
func (f *following) at() uint64 {
	if f.side != nil {
		return f.side.end
	}
	return f.r.position().Offset
}

// takePart applies an entry once all its parts are here.
func (f *following) takePart(b []byte) error {
	p, err := decodePart(b)
	if err != nil {
		return err
	}
	if f.bytes += len(b); f.bytes > logEntryMax {
		return fmt.Errorf("slotmesh: an entry of more than %d bytes", logEntryMax)
	}
	f.partial = append(f.partial, p)
	if f.raw.first == nil {
		f.raw.first = b
	} else {
		f.raw.rest = append(f.raw.rest, b)
	}
	if p.more {
		return nil
	}
	e := whole(f.partial)
	raw := f.raw
	f.partial, f.raw, f.bytes = f.partial[:0], logEntry{}, 0
	if f.side != nil {
		return f.side.apply(e)
	}
	return f.apply(e, raw)
}

// whole is the entry that parts make up.
func whole(parts []entryPart) entryPart {
	e := parts[0]
	for _, p := range parts[1:] {
		e.ops = append(e.ops, p.ops...)
	}
	return e
}

// apply makes the store what the primary's is after an entry. The entry counts as
// part of this node's log from before on, so that one who begins to lead meanwhile
// has it: whoever wants the slot waits for its lock.
func (f *following) apply(e entryPart, raw logEntry) error {
	if e.kind == entryMark || e.kind == entryUnmark {
		return f.mark(e, raw)
	}
	c := f.r.n.engine.makeCell(e.slot)
	c.mu.Lock()
	defer c.mu.Unlock()
	if !f.enter(raw) {
		return errNotFollowing
	}
	if err := f.r.n.change(e.slot, c, &e); err != nil {
		f.broken(err)
		return err
	}
	return nil
}

// mark is apply for a mark, which the core keeps. The entry becomes part of the log in the
// same step, so that whoever leads from some step on knows the marks that its log has. A
// node whose store outlives it may lead after a crash, and has them then.
func (f *following) mark(e entryPart, raw logEntry) error {
	entered := make(chan bool, 1)
	step := func(s *state, now time.Duration) output {
		ok := f.enter(raw)
		if entered <- ok; !ok {
			return output{}
		}
		return s.followMark(now, e.slot, e.mark)
	}
	hand := f.r.n.post
	if f.r.n.outlives != nil {
		hand = f.r.n.settled
	}
	if err := hand(f.ctx, step); err != nil {
		return err
	}
	select {
	case ok := <-entered:
		if !ok {
			return errNotFollowing
		}
		return nil
	case <-f.ctx.Done():
		return errNotFollowing
	case <-f.r.n.ctx.Done():
		return ErrClosed
	}
}

// enter adds an entry to this node's log, if it still follows.
func (f *following) enter(raw logEntry) bool {
	r := f.r
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.following != f || f.spoiled || f.epoch.less(r.facts.Load().promise) {
		return false
	}
	r.log.end++
	if n := f.past.countUpTo(r.log.end); n != len(r.log.past) || n > 0 && r.log.past[n-1] != f.past[n-1] {
		r.log.take(f.past[:n], r.log.end)
	}
	r.back.add(raw)
	return true
}

// broken is for a store that has not taken an entry: it is a copy no more.
func (f *following) broken(err error) {
	f.r.n.cfg.Logger.Error("the store does not take what the primary has sent: everything is copied anew", "error", err)
	f.r.mu.Lock()
	f.r.forget() // it counts the entry
	f.r.lost = logTail{}
	f.r.mu.Unlock()
	_ = f.r.n.settled(f.ctx, func(s *state, now time.Duration) output { return s.storeIs(now, s.newStore(), false) })
}

// change does to the store, and to what is known of the slot, what an entry says.
// The caller holds the lock of the slot.
func (n *node) change(slot Slot, c *slotCell, e *entryPart) error {
	switch e.kind {
	case entryOps:
		n.engine.sweeper.noteOps(slot, e.ops)
		if err := n.cfg.Store.Apply(uint16(slot), e.ops); err != nil {
			return err
		}
		n.engine.watches.changed(slot, e.ops)
		return nil
	case entryStaged, entryImport:
		n.kept.set(cellStaged, slot, e.move)
	case entryOwn, entryFresh:
		n.kept.set(cellOwned, slot, e.move)
		n.kept.set(cellStaged, slot, 0)
	case entryDrop:
		n.kept.set(cellOwned, slot, 0)
		n.kept.set(cellStaged, slot, 0)
	}
	c.staging, c.imported = 0, e.kind == entryImport
	if e.kind == entryDrop || e.kind == entryFresh {
		defer n.engine.watches.tellSlot(slot, false)
		return n.cfg.Store.Drop(uint16(slot))
	}
	return nil
}

// ---- acknowledging

// setAck says what is to be acknowledged from now on: nothing where the epoch is
// zero.
func (f *following) setAck(e Epoch, offset uint64) {
	f.ackMu.Lock()
	f.ack = logAck{epoch: e, store: f.r.facts.Load().store, offset: offset}
	f.ackMu.Unlock()
	signal(f.wake)
}

// acknowledge says what this replica has, at each change and from time to time.
func (f *following) acknowledge(ctx context.Context, conn net.Conn) {
	beat := time.NewTicker(f.r.n.cfg.NodeTimeout / 10)
	defer beat.Stop()
	var buf []byte
	for {
		select {
		case <-f.wake:
		case <-beat.C:
		case <-ctx.Done():
			return
		}
		f.ackMu.Lock()
		a := f.ack
		f.ackMu.Unlock()
		if a.epoch != (Epoch{}) && a.epoch.less(f.r.facts.Load().promise) {
			return // it has promised itself to another primary
		}
		a.sent = uint64(f.r.n.now() / time.Millisecond)
		buf = appendFrameOf(buf[:0], frameAck, a.append)
		if _, err := conn.Write(buf); err != nil {
			return
		}
	}
}

// ---- everything

// sideCopy is a copy of everything that is not whole yet.
type sideCopy struct {
	store *store.Memory
	slots map[Slot]*syncSlot
	end   uint64 // offset of the last entry
	read  copySum
}

// matches reports why a copy is not what its sender has sent; nil: it is.
func (s *sideCopy) matches(e *syncEnd) error {
	if e.end != s.end || e.copySum != s.read {
		return fmt.Errorf("slotmesh: a copy up to offset %d, of %d frames that add up to %x, expected offset %d, %d frames and %x",
			s.end, s.read.frames, s.read.sum, e.end, e.frames, e.sum)
	}
	return nil
}

func (s *sideCopy) know(k *syncSlot) { s.slots[k.slot] = k }

func (s *sideCopy) marks() map[Slot]SlotMark {
	marks := map[Slot]SlotMark{}
	for slot, k := range s.slots {
		if k.mark != nil {
			marks[slot] = *k.mark
		}
	}
	return marks
}

func (s *sideCopy) slot(slot Slot) *syncSlot {
	k := s.slots[slot]
	if k == nil {
		k = &syncSlot{slot: slot}
		s.slots[slot] = k
	}
	return k
}

// apply takes an entry, as change does.
func (s *sideCopy) apply(e entryPart) error {
	s.end++
	k := s.slot(e.slot)
	switch e.kind {
	case entryOps:
		return s.store.Apply(uint16(e.slot), e.ops)
	case entryStaged, entryImport:
		k.staged, k.imported = e.move, e.kind == entryImport
		return nil
	case entryOwn, entryFresh:
		k.owned, k.staged, k.imported = e.move, 0, false
	case entryDrop:
		k.owned, k.staged, k.imported = 0, 0, false
	case entryMark, entryUnmark:
		k.mark = e.mark
	}
	if e.kind == entryDrop || e.kind == entryFresh {
		return s.store.Drop(uint16(e.slot))
	}
	return nil
}

// replace puts the copy in place of what this node holds. From before the first
// slot on this is another member than it was, and only after the last one a whole
// copy.
func (f *following) replace() error {
	n, side := f.r.n, f.side
	f.side = nil
	inc, err := f.disown()
	if err != nil {
		return err
	}
	f.caught.Store(0)
	f.asOf.Store(0)
	for slot := range Slot(NumSlots) {
		if err := f.replaceSlot(slot, side); err != nil {
			return err
		}
	}
	if err := n.kept.saveMoves(); err != nil {
		return err
	}
	f.r.mu.Lock()
	ours := f.r.following == f && !f.spoiled
	if ours {
		f.r.keep()
		f.r.take(f.past.upTo(side.end), side.end)
		f.r.back.reset(side.end)
	}
	f.r.mu.Unlock()
	if !ours {
		return errNotFollowing
	}
	whole := false
	err = n.settled(f.ctx, func(s *state, now time.Duration) (out output) {
		out, whole = s.hasReplaced(now, inc, side.marks())
		return out
	})
	switch {
	case err != nil:
		return err
	case !whole:
		return errNotFollowing
	}
	f.link.Store(uint32(LinkUp))
	f.setAck(f.epoch, side.end)
	return nil
}

// disown makes what this node holds no copy of anything, and of no log: half of it is
// another one's before long. Whoever leads with that has to be copied.
func (f *following) disown() (inc uint64, err error) {
	if !f.current() {
		return 0, errNotFollowing
	}
	begun := false
	err = f.r.n.settled(f.ctx, func(s *state, now time.Duration) (out output) {
		out, inc, begun = s.replaces(now, f.shard, f.epoch)
		return out
	})
	switch {
	case err != nil:
		return 0, err
	case !begun:
		return 0, errOldEpoch
	case !f.forget():
		return 0, errNotFollowing
	}
	return inc, f.r.n.kept.saveMoves() // the next start must not take what is left by then for a copy
}

// forget makes this node's log one that shares nothing with any other, if it still
// follows.
func (f *following) forget() bool {
	r := f.r
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.following != f {
		return false
	}
	if !mutated(mutPastKept) {
		r.forget()
		r.lost = logTail{} // that has been told when the copy began
	}
	return true
}

func (f *following) replaceSlot(slot Slot, side *sideCopy) error {
	n := f.r.n
	c := n.engine.cell(slot)
	k := side.slots[slot]
	if k == nil {
		k = &syncSlot{slot: slot}
	}
	if c == nil && n.ownStore && *k == (syncSlot{slot: slot}) {
		if !f.current() {
			return errNotFollowing
		}
		n.kept.set(cellOwned, slot, 0)
		n.kept.set(cellStaged, slot, 0) // a process before this one may have noted something
		return nil
	}
	c = n.engine.makeCell(slot)
	c.mu.Lock()
	defer c.mu.Unlock()
	if !f.current() {
		return errNotFollowing
	}
	defer n.engine.watches.tellSlot(slot, false)
	if err := n.cfg.Store.Drop(uint16(slot)); err != nil {
		return err
	}
	c.staging, c.imported = 0, k.imported
	n.kept.set(cellOwned, slot, k.owned)
	n.kept.set(cellStaged, slot, k.staged)
	if keys, err := side.store.Len(uint16(slot)); keys == 0 && err == nil {
		return nil
	}
	page := pageMost
	w := slotWalk{from: side.store, slot: slot, page: &page, take: func(ops []store.Op) error {
		n.engine.sweeper.noteOps(slot, ops)
		return n.cfg.Store.Apply(uint16(slot), ops)
	}}
	if err := w.run(); err != nil {
		return err
	}
	return side.store.Drop(uint16(slot))
}

func (f *following) current() bool {
	f.r.mu.Lock()
	defer f.r.mu.Unlock()
	return f.r.following == f
}
