package slotmesh

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/slotmesh/slotmesh/store"
)

// The primary's side of a replica's connection: it sends the entries that the
// replica lacks, as they come, or first everything that the slots hold. Writers do
// not wait for it: a replica that is slower than they are falls behind, up to what
// the backlog keeps; then its connection is cut, and it copies everything.

const (
	feedsMax  = 64       // replicas that are attached; at the bound one more is refused, and tries again
	feedBytes = 1 << 20  // of entries that are taken from the backlog at a time
	copyChunk = 64 << 10 // of a copy that are sent at a time: most of its frames have a few bytes
)

var (
	errNotLeading = errors.New("slotmesh: this node does not lead the shard")
	errBehind     = errors.New("slotmesh: the replica is further behind than the backlog keeps")
)

// feed is a replica that is attached. What mu of replication does not guard is of
// its sender alone.
type feed struct {
	r    *replication
	id   NodeID
	addr string
	conn net.Conn
	wake chan struct{} // holds one token
	buf  []byte        // frames that are not sent yet
	last time.Time     // when some were

	chunk int // bytes of a copy that are sent at a time; 0: each frame alone

	epoch  Epoch    // as the replica was told last
	sent   uint64   // offset of the last entry that was sent
	copied *copySum // of what was sent of a copy that is not whole yet

	idle    bool          // guarded by mu of replication: the sender waits for an entry
	state   LinkState     // guarded by mu of replication, as is what follows
	member  incarnate     // as it has said last
	acked   uint64        // the same
	has     bool          // it has acknowledged anything over this connection
	heard   time.Duration // when
	offered time.Duration // when it may be offered to the core as a member in sync
	answers uint64        // sent of its last word
}

// serveSync feeds a replica until its connection, its need or this node's rule
// ends.
func (n *node) serveSync(ctx context.Context, conn net.Conn, in *bufio.Reader, from *sender, payload []byte) error {
	q, err := decodeSyncAsk(payload)
	if err != nil {
		return err
	}
	f := &feed{r: n.repl, id: from.ID, addr: from.Addr, conn: &steadyConn{Conn: conn}, wake: make(chan struct{}, 1), chunk: copyChunk}
	start, err := n.repl.attach(f, q, clusterTag(n.who.Load()))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	started := n.goes(func() {
		defer close(ended)
		defer cancel()
		_ = f.listen(in)
		conn.Close() // the sender may be in the middle of a frame
	})
	if !started {
		cancel()
		close(ended)
	}
	err = f.send(ctx, start)
	cancel()
	conn.Close()
	<-ended
	n.repl.detach(f)
	n.cfg.Logger.Debug("a replica has gone", "node", f.id, "error", err)
	return err
}

// attach takes a replica in, and says from where on it gets entries. An older
// connection of the same node ends.
func (r *replication) attach(f *feed, q *syncAsk, cluster uint64) (*logFrom, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.log.epoch == (Epoch{}) || r.shard != q.shard || q.cluster != cluster {
		return nil, errNotLeading
	}
	if old := r.feeds[f.id]; old != nil {
		r.n.closeBeside(old.conn)
	} else if len(r.feeds) >= feedsMax {
		return nil, fmt.Errorf("slotmesh: %d replicas are attached already", feedsMax)
	}
	r.feeds[f.id] = f
	r.keep()
	l := &logFrom{epoch: r.log.epoch, past: append(history(nil), r.log.past...)}
	from, drop, shared := r.log.resume(q.past, q.end)
	if l.all = !q.whole || !shared || drop > 0 && !mutated(mutTailKept) || from < r.back.base; l.all {
		from = r.log.end
	}
	l.from, f.sent, f.epoch = from, from, l.epoch
	f.member, f.heard = incarnate{f.id, q.store}, r.n.now()
	f.state = LinkUp
	if l.all {
		f.state = LinkSync
	}
	return l, nil
}

func (r *replication) detach(f *feed) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.feeds[f.id] == f {
		delete(r.feeds, f.id)
	}
}

// dropFeeds ends every feed: when this node leads again its log may be another one.
// The caller holds mu.
func (r *replication) dropFeeds() {
	for id, f := range r.feeds {
		r.n.closeBeside(f.conn)
		delete(r.feeds, id)
	}
}

// wakeFeeds makes every sender look again. The caller holds mu.
func (r *replication) wakeFeeds() {
	for _, f := range r.feeds {
		f.idle = false
		signal(f.wake)
	}
}

// wakeIdle is called with mu of replication held.
func (f *feed) wakeIdle() {
	if f.idle {
		f.idle = false
		signal(f.wake)
	}
}

// listen reads what the replica acknowledges. One that says nothing for a
// NodeTimeout has gone.
func (f *feed) listen(in *bufio.Reader) error {
	var buf []byte
	for {
		if err := f.conn.SetReadDeadline(time.Now().Add(f.r.n.cfg.NodeTimeout)); err != nil {
			return err
		}
		kind, payload, err := readFrame(in, syncLimits, buf)
		if err != nil {
			return err
		}
		if kind != frameAck {
			return errBulk
		}
		a, err := decodeLogAck(payload)
		if err != nil {
			return err
		}
		f.r.acked(f, a)
		buf = payload[:0]
	}
}

// send sends what the replica lacks.
func (f *feed) send(ctx context.Context, start *logFrom) error {
	if err := f.write(frameLogFrom, start.append); err != nil {
		return err
	}
	if start.all {
		if err := f.copyAll(ctx); err != nil {
			return err
		}
	}
	beat := time.NewTicker(f.r.n.cfg.NodeTimeout / 10)
	defer beat.Stop()
	for {
		some, err := f.sendSome()
		if err != nil {
			return err
		}
		if some {
			continue
		}
		select {
		case <-f.wake:
		case <-beat.C:
			if err := f.beat(); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// attached reports whether this node leads the log still that the replica is sent:
// whose reign is over goes on with another one, and says nothing of this one. The
// caller holds mu.
func (f *feed) attached() bool { return f.r.feeds[f.id] == f && f.r.log.epoch != (Epoch{}) }

// frame is one without entries yet. The caller holds mu: so what it says of the lease and
// the table is of the reign of the log.
func (f *feed) frame() logFrame {
	l := logFrame{first: f.sent + 1, end: f.r.log.end, answers: f.answers}
	if e := &f.r.n.engine; e.held(e.lease.Load()) {
		l.table = e.view.Load().sum
	}
	return l
}

// beat says that there is nothing new.
func (f *feed) beat() error {
	f.r.mu.Lock()
	attached := f.attached()
	frame := f.frame()
	f.r.mu.Unlock()
	if !attached {
		return errNotLeading
	}
	return f.write(frameLog, frame.append)
}

// sendSome sends entries that the replica has not got yet, and reports whether
// there were any; if not, the next one wakes the sender.
func (f *feed) sendSome() (some bool, err error) {
	r := f.r
	r.mu.Lock()
	var news *logFrom
	switch {
	case !f.attached():
		r.mu.Unlock()
		return false, errNotLeading
	case r.log.epoch != f.epoch:
		f.epoch = r.log.epoch
		news = &logFrom{epoch: f.epoch, from: f.sent, past: append(history(nil), r.log.past...)}
	}
	entries, ok := r.back.from(f.sent, feedBytes)
	frame := f.frame()
	f.idle = ok && len(entries) == 0
	r.mu.Unlock()
	if news != nil {
		if err := f.write(frameLogFrom, news.append); err != nil {
			return false, err
		}
	}
	if !ok {
		return false, errBehind
	}
	return len(entries) > 0, f.sendEntries(entries, frame)
}

// sendEntries sends entries in frames of a good size, which are like frame.
func (f *feed) sendEntries(entries []logEntry, frame logFrame) error {
	bytes := 0
	flush := func(next uint64) error {
		if len(frame.parts) == 0 {
			return nil
		}
		err := f.write(frameLog, frame.append)
		frame.first, frame.parts, bytes = next, frame.parts[:0], 0
		return err
	}
	add := func(part []byte) error {
		if bytes > 0 && bytes+len(part) > logFrameBytes {
			if err := flush(f.sent + 1); err != nil {
				return err
			}
		}
		frame.parts = append(frame.parts, part)
		bytes += len(part)
		return nil
	}
	for i := range entries {
		if err := add(entries[i].first); err != nil {
			return err
		}
		for _, part := range entries[i].rest {
			if err := add(part); err != nil {
				return err
			}
		}
		f.sent++
	}
	return flush(0)
}

// write sends a frame; those of a copy wait for each other, but not for so long that
// the replica would give this node up.
func (f *feed) write(kind byte, add func([]byte) []byte) error {
	from := len(f.buf)
	f.buf = appendFrameOf(f.buf, kind, add)
	if f.copied != nil {
		f.copied.add(kind, f.buf[from+frameHeader:])
		if len(f.buf) < f.chunk && time.Since(f.last) < f.r.n.cfg.NodeTimeout/10 {
			return nil
		}
	}
	_, err := f.conn.Write(f.buf)
	f.buf, f.last = f.buf[:0], time.Now()
	if cap(f.buf) > 4*logFrameBytes {
		f.buf = nil
	}
	return err
}

// ---- everything

// copyAll sends what every slot holds, with the entries that come meanwhile among
// it. What a page shows is at least as new as the entries that were sent before it,
// and is made whole by those that are sent after it: ops are absolute.
func (f *feed) copyAll(ctx context.Context) error {
	n := f.r.n
	f.copied = &copySum{}
	for slot := range Slot(NumSlots) {
		if n.engine.cell(slot) == nil && n.ownStore {
			continue // nothing has ever been here
		}
		if err := f.copySlot(ctx, slot); err != nil {
			return fmt.Errorf("slotmesh: slot %d: %w", slot, err)
		}
	}
	if err := f.sendUpToNow(ctx); err != nil {
		return err
	}
	f.r.mu.Lock()
	f.state = LinkUp
	f.r.mu.Unlock()
	end := syncEnd{f.sent, *f.copied}
	f.copied = nil
	return f.write(frameSyncEnd, end.append)
}

// sendUpToNow sends the entries up to where the log ends now, at least. What was
// read of the store before then has none that the replica has not been sent by the
// time that it returns, if it returns no error: so it fails where this node's reign
// has ended, after which nobody says what the store has.
func (f *feed) sendUpToNow(ctx context.Context) error {
	f.r.mu.Lock()
	attached, end := f.attached(), f.r.log.end
	f.r.mu.Unlock()
	switch {
	case attached:
	case mutated(mutCopyDeposed):
		return nil
	default:
		return errNotLeading
	}
	for f.sent < end {
		if err := ctx.Err(); err != nil {
			return err
		}
		if some, err := f.sendSome(); err != nil || !some {
			return err
		}
	}
	return nil
}

func (f *feed) copySlot(ctx context.Context, slot Slot) error {
	n := f.r.n
	c := n.engine.makeCell(slot)
	c.mu.RLock()
	head := syncSlot{slot, n.kept.at(cellOwned, slot), n.kept.at(cellStaged, slot), c.imported, c.mark.Load()}
	keys, err := n.cfg.Store.Len(uint16(slot))
	c.mu.RUnlock()
	if mutated(mutCopyUnstaged) {
		head.staged = 0
	}
	if mutated(mutCopyUnmarked) {
		head.mark = nil
	}
	if err != nil || keys == 0 && head.owned == 0 && head.staged == 0 && head.mark == nil {
		return err
	}
	if err := f.write(frameSyncSlot, head.append); err != nil || keys == 0 {
		return err
	}
	page := pageFirst
	var ops []store.Op
	w := slotWalk{from: n.cfg.Store, slot: slot, lock: c.mu.RLocker(), page: &page,
		take: func(read []store.Op) error {
			ops = read
			return nil
		},
		after: func() error {
			bytes, err := f.sendPage(ctx, slot, ops)
			page, ops = adaptPage(page, bytes), nil
			return err
		}}
	return w.run()
}

// sendPage sends a page, and the entries that have come meanwhile, and returns how
// many bytes the page has had.
func (f *feed) sendPage(ctx context.Context, slot Slot, ops []store.Op) (total int, err error) {
	for len(ops) > 0 {
		n, bytes := pieceOf(ops)
		if err := f.write(frameSyncData, func(b []byte) []byte { return appendPiece(b, 0, slot, ops[:n]) }); err != nil {
			return total, err
		}
		ops = ops[n:]
		total += bytes
	}
	return total, f.sendUpToNow(ctx)
}
