package slotmesh

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/slotmesh/slotmesh/store"
)

// replication is this node's part in its shard's log (shardlog.go): whoever changes
// what the store keeps for the shard appends an entry here, while this node leads,
// and the replicas that are attached (feed.go) get it; while another one leads, what
// it sends is applied (follow.go). What the node does is the core's to say
// (logRole), and the run loop carries it out before slots begin or stop to be
// served.
//
// The lock of a slot comes before mu: an entry is appended under the lock under
// which its change has been made, so that the entries of a slot are in its order.
type replication struct {
	n       *node
	ask     int // Config.AckReplicas
	keeping atomic.Bool
	follows atomic.Bool  // another node's log: this one changes nothing by itself
	peers   atomic.Int32 // members in sync besides this node; those of a group that has not formed: enough
	facts   atomic.Pointer[coreFacts]
	version uint64 // of the role that is carried out; the run loop's alone

	mu        sync.Mutex // guards what follows
	shard     ShardID
	log       shardLog
	lost      logTail // the log of before it was forgotten, of which some may have to be told
	cut       logTail // the log of which the end was told last to be in no other
	back      backlog
	reign     uint64 // raised when this node begins or ends to lead
	waiters   []*logWaiter
	feeds     map[NodeID]*feed
	told      map[incarnate]bool // whom the core knows to have caught up, under this version of the role
	following *following
	inSync    []NodeID // this node first; replaced, never changed
}

// coreFacts is what the core says of this node as a member of its shard.
type coreFacts struct {
	promise Epoch
	store   uint64
	whole   bool // the store holds all data of the shard, as of some moment
}

// logTail is a log that this node has had of its shard, in an incarnation of its store.
type logTail struct {
	store uint64
	past  history
	end   uint64
}

// logMark is a point in the log of one reign. The zero mark is before all.
type logMark struct {
	reign  uint64
	offset uint64
}

const peersAny = 1 << 30

func newReplication(n *node) *replication {
	r := &replication{n: n, ask: n.cfg.AckReplicas, feeds: map[NodeID]*feed{}}
	r.back.limit = n.cfg.Backlog
	r.peers.Store(peersAny)
	r.facts.Store(&coreFacts{})
	if l := n.resume; l != nil {
		r.shard = l.Copy.Shard
		r.log.take(l.Past, l.End)
		r.back.reset(l.End)
	}
	return r
}

// endsAt is where the log ends of the copy that the store holds, once nothing
// changes the store any more; nil where the store may be at no point of the log.
func (r *replication) endsAt() *logCell {
	facts := r.facts.Load()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !facts.whole || len(r.log.past) == 0 {
		return nil
	}
	return &logCell{Copy: copyCell{r.shard, facts.store, r.n.incarnation}, End: r.log.end, Past: r.log.past}
}

// strict reports whether a reply waits for the members in sync.
func (r *replication) strict() bool { return r.ask > 0 }

// noteFacts shows what the core says. The run loop calls it after each step,
// before anything of the step leaves the node.
func (r *replication) noteFacts(s *state) {
	if f := r.facts.Load(); f.promise != s.promise || f.store != s.self.Store || f.whole != s.holdsCopy {
		r.facts.Store(&coreFacts{s.promise, s.self.Store, s.holdsCopy})
	}
	if r.n.outlives == nil {
		return
	}
	c := copyCell{s.self.Shard, s.self.Store, r.n.incarnation}
	if !s.holdsCopy {
		c = copyCell{}
	}
	if r.n.kept.holdsCopy(c) {
		r.n.kept.saveLater()
	}
}

// position is where the log ends.
func (r *replication) position() logPosition {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.log.position()
}

// progress is how far the members are that are waited for.
func (r *replication) progress() logProgress {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.log.progress()
}

// ---- the role

// carryOut does what the core says is to be done with the log. The run loop calls it.
func (r *replication) carryOut(s *state) {
	role := &s.role
	if role.version == r.version {
		return
	}
	r.version = role.version
	r.mu.Lock()
	if r.shard != role.shard {
		r.dropFeeds() // they are sent another shard's log
		r.shard, r.log, r.lost, r.cut = role.shard, shardLog{}, logTail{}, logTail{}
		r.back.reset(0)
		r.keeping.Store(false)
	}
	switch {
	case role.lead == (Epoch{}):
		if r.log.epoch != (Epoch{}) {
			r.log.follow()
			r.reign++
			r.dropFeeds()
		}
	case !r.log.leads(role.lead):
		r.log.lead(role.lead)
		r.reign++
		r.lost = logTail{} // it is the shard's
		r.unhear()
	}
	r.log.waitFor(role.waits)
	r.told = map[incarnate]bool{}
	r.peers.Store(peersOf(s))
	r.inSync = nil
	if s.lead != nil {
		for _, m := range s.lead.inSync {
			r.inSync = append(r.inSync, m.Node)
		}
	}
	r.follows.Store(!role.primary.IsZero())
	r.tellCaughtUp()
	r.settle()
	r.wakeFeeds()
	old := r.following
	if old.isOf(role) {
		r.mu.Unlock()
		return
	}
	f := newFollowing(r, role)
	r.following = f
	r.mu.Unlock()
	old.end()
	if f != nil {
		r.n.wg.Go(func() { f.run(old) })
	}
}

func peersOf(s *state) int32 {
	if s.cluster.IsZero() {
		return peersAny
	}
	return int32(s.role.peers)
}

// tellCaughtUp tells the core which members have all that was acknowledged before
// they were waited for. The caller holds mu.
func (r *replication) tellCaughtUp() {
	e := r.log.epoch
	for _, w := range r.log.waits {
		if m := w.incarnate; !r.told[m] && r.log.caughtUp(m) {
			r.told[m] = true
			r.n.later(func(s *state, now time.Duration) output { return s.hasCaughtUp(now, e, m) })
		}
	}
}

// ---- appending

// effects appends what has been applied to a slot. The slice stays the caller's.
func (r *replication) effects(slot Slot, c *slotCell, ops []store.Op) {
	var e logEntry
	if r.keeping.Load() {
		e = opsEntry(slot, ops)
	}
	c.wrote = r.append(e)
}

// unsure is for a slot of which nobody knows whether it has changed: what it holds
// now the replicas find out by copying everything.
func (r *replication) unsure(c *slotCell) { c.wrote = r.append(logEntry{}) }

// became appends what has become of a slot, before that is noted. A winner goes on
// with what it has followed: of most of its slots there is nothing new to say.
func (r *replication) became(kind entryKind, slot Slot, c *slotCell, move uint64) {
	if kind == entryOwn && r.n.kept.ownsAlready(slot, move) {
		return
	}
	var e logEntry
	if r.keeping.Load() {
		e = moveEntry(kind, slot, move)
	}
	c.wrote = r.append(e)
}

// marked puts a mark on a slot, or takes it off (nil), and appends that: whoever finds it
// there, or not, finds in seen that the replicas have to know.
func (r *replication) marked(slot Slot, c *slotCell, m *SlotMark) {
	var e logEntry
	if r.keeping.Load() {
		e = markEntry(slot, m)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	c.mark.Store(m) // before it is appended: a copy of everything has it, or its entry
	c.marked = r.appendLocked(e)
}

// append appends an entry, if this node leads. Without a part it is one that was
// made while nobody was there to be sent it.
func (r *replication) append(e logEntry) logMark {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.appendLocked(e)
}

// appendLocked is append for who holds mu.
func (r *replication) appendLocked(e logEntry) logMark {
	if r.log.epoch == (Epoch{}) {
		r.forget() // whoever follows this node has to copy what is there, and so has this node
		if r.following != nil {
			r.following.spoiled = true
			r.following.hangUp()
		}
		return logMark{}
	}
	m := logMark{r.reign, r.log.append()}
	if e.first == nil || !r.keeping.Load() {
		r.back.reset(m.offset)
	} else {
		r.back.add(e)
	}
	for _, f := range r.feeds {
		f.wakeIdle()
	}
	return m
}

// forget makes this node's log one that shares nothing with any other. The caller
// holds mu.
func (r *replication) forget() {
	if len(r.log.past) > 0 {
		r.lost = logTail{r.facts.Load().store, r.log.past, r.log.end}
	}
	r.log.past = nil
	r.back.reset(r.log.end)
}

// take makes this node's log what its primary has sent. The caller holds mu.
func (r *replication) take(past history, end uint64) {
	r.log.take(past, end)
	r.lost = logTail{}
}

// tail counts the entries that this node alone has, and drops for what its primary
// sends, whose log is l. It counts each once, however often the copy of everything is
// begun; those that it has forgotten itself, for a change that no log knows, too.
func (r *replication) tail(l *logFrom) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	had := r.lost
	if len(r.log.past) > 0 {
		had = logTail{r.facts.Load().store, r.log.past, r.log.end}
	}
	at, shared := l.past.shared(l.from, had.past, had.end)
	if !shared || !r.facts.Load().whole || had.store == r.cut.store && had.end == r.cut.end {
		return 0
	}
	r.cut = logTail{store: had.store, end: had.end}
	return had.end - at
}

// unhear forgets what replicas have said in an epoch that is over. The caller holds
// mu.
func (r *replication) unhear() {
	if mutated(mutHaveOld) {
		return
	}
	for _, f := range r.feeds {
		f.acked, f.has = 0, false
	}
}

// keep begins to keep entries. The caller holds mu.
func (r *replication) keep() {
	if !r.keeping.Load() {
		r.back.reset(r.log.end)
		r.keeping.Store(true)
	}
}

// ---- waiting

// logWaiter is somebody who waits until the log is so far, in one reign.
type logWaiter struct {
	reign uint64
	ready func(*replication) bool // called with mu held
	done  chan bool               // true: it is; false: the reign has ended before
}

const logWaitersMax = waitersMax // at the bound the outcome of one more is unknown at once

// settle wakes those who have waited long enough. The caller holds mu.
func (r *replication) settle() {
	rest := r.waiters[:0]
	for _, w := range r.waiters {
		switch {
		case w.reign != r.reign:
			w.done <- false
		case w.ready(r):
			w.done <- true
		default:
			rest = append(rest, w)
		}
	}
	clear(r.waiters[len(rest):])
	r.waiters = rest
}

// await waits until the log is so far; false means that it will not be in this
// reign, or not in time.
func (r *replication) await(ctx context.Context, reign uint64, limit time.Duration, ready func(*replication) bool) bool {
	r.mu.Lock()
	switch {
	case reign != r.reign || len(r.waiters) >= logWaitersMax:
		r.mu.Unlock()
		return false
	case ready(r):
		r.mu.Unlock()
		return true
	}
	w := &logWaiter{reign, ready, make(chan bool, 1)}
	r.waiters = append(r.waiters, w)
	r.mu.Unlock()
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case ok := <-w.done:
		return ok
	case <-t.C:
	case <-ctx.Done():
	case <-r.n.ctx.Done():
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiters = slices.DeleteFunc(r.waiters, func(x *logWaiter) bool { return x == w })
	return false
}

// end is where the log ends now, while this node leads.
func (r *replication) end() logMark {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.log.epoch == (Epoch{}) {
		return logMark{}
	}
	return logMark{r.reign, r.log.end}
}

// ---- acknowledgements

// acked notes what a replica says that it has.
func (r *replication) acked(f *feed, a *logAck) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f.heard, f.answers = r.n.now(), a.sent
	if r.log.epoch != a.epoch || r.log.epoch == (Epoch{}) || r.feeds[f.id] != f {
		return // a sign of life, or of an epoch that is over
	}
	m := incarnate{f.id, a.store}
	if f.member != m {
		delete(r.log.acks, f.member) // what it had before it copied everything is gone
	}
	r.log.acked(m, a.offset)
	f.member, f.acked, f.has = m, a.offset, true
	waited := slices.ContainsFunc(r.log.waits, func(w logWait) bool { return w.incarnate == m })
	if !waited && r.log.end-a.offset <= nearlyMax && f.heard >= f.offered {
		f.offered = f.heard + r.n.cfg.NodeTimeout/20
		at := a.offset
		r.n.later(func(s *state, now time.Duration) output { return s.nearlyInSync(now, m, at) })
	}
	r.tellCaughtUp()
	r.settle()
}

// nearlyMax is how many entries a replica may lack for the primary to begin to wait
// for it.
const nearlyMax = 1024

// ---- what replies wait for

// needs is how many members besides this node must have what a request writes.
func (r *replication) needs(q *Request) int {
	if q.unwatched {
		return 0
	}
	return max(r.ask, q.AckReplicas)
}

// seen is a mark after all that a request on a slot may have seen, and done. The
// caller holds the lock of the slot.
func (r *replication) seen(c *slotCell) logMark {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.log.epoch == (Epoch{}) {
		return logMark{}
	}
	seen := logMark{r.reign, r.log.inherited}
	if mutated(mutSeenAlone) {
		seen = logMark{}
	}
	marked := c.marked
	if mutated(mutMarkUnseen) {
		marked = logMark{}
	}
	for _, m := range [...]logMark{c.wrote, marked} {
		if m.reign == r.reign && m.offset > max(r.log.inherited, seen.offset) {
			seen = m
		}
	}
	return seen
}

// awaitHeld waits until every member that is waited for has the log up to a mark,
// in the reign of that mark, so have n of all members, and there are inSync members
// in sync besides this node. In a group that has not formed yet nobody is waited for.
func (r *replication) awaitHeld(ctx context.Context, m logMark, n, inSync int, limit time.Duration) bool {
	if m == (logMark{}) {
		return true
	}
	return r.await(ctx, m.reign, limit, func(r *replication) bool {
		have := 0
		if n > 0 {
			have = r.have(m.offset)
		}
		return r.log.enough(m.offset, r.strict(), n, have) && int(r.peers.Load()) >= inSync
	})
}

// have counts the replicas that are attached and have the log up to an offset, as they
// have said in this epoch. The caller holds mu.
func (r *replication) have(offset uint64) int {
	n := 0
	for _, f := range r.feeds {
		if f.has && f.acked >= offset {
			n++
		}
	}
	return n
}

// onceCommitted calls f once every member that is waited for has the log up to a
// mark: at once, or beside the caller. It never does where this node's rule ends
// before, or where it takes too long.
func (r *replication) onceCommitted(m logMark, f func()) {
	if r.awaitHeld(r.n.ctx, m, 0, 0, 0) {
		f()
		return
	}
	r.n.goes(func() {
		if r.awaitHeld(r.n.ctx, m, 0, 0, r.n.cfg.NodeTimeout) {
			f()
		}
	})
}

// shows reports whether this node, a replica, may show what it has of a slot; stale:
// however old that is.
func (r *replication) shows(slot Slot, stale bool) bool {
	if !r.follows.Load() {
		return false
	}
	r.mu.Lock()
	f := r.following
	r.mu.Unlock()
	if f == nil {
		return false
	}
	c := heldCopy{f.shard, time.Duration(f.caught.Load()), time.Duration(f.asOf.Load()), r.n.kept.at(cellOwned, slot)}
	return r.n.engine.view.Load().shows(slot, c, r.n.now(), r.n.cfg.ReplicaStaleness, stale)
}

// served appends under which moves slots are served here now.
func (r *replication) served(news moveRuns) {
	if len(news) > 0 && !r.keeping.Load() {
		r.append(logEntry{})
		return
	}
	news.each(func(slot Slot, move uint64) { r.append(moveEntry(entryOwn, slot, move)) })
}

// pause waits until nobody is in the slots that this shard's log is about, into which
// nobody gets any more, every reply is out or failed, and a replica has the whole
// log. The run loop calls it.
func (r *replication) pause(t pauseTell) {
	if t.node.Node.IsZero() {
		return // it is over: the core lets requests in again
	}
	slots := r.n.core.pausing()
	r.n.tidy(&slots, func(Slot, *slotCell) {}, func() {
		end := r.end()
		r.n.goes(func() {
			ok := r.await(r.n.ctx, end.reign, r.n.cfg.NodeTimeout/2, func(r *replication) bool {
				return r.log.acks[t.node] >= end.offset
			})
			if ok {
				_ = r.n.post(r.n.ctx, func(s *state, now time.Duration) output { return s.paused(now, t.epoch, t.node) })
			}
		})
	})
}

// wait waits until n members have the log up to a mark, and returns how many have;
// ok is false where the reign of the mark is over, so that nobody knows.
func (r *replication) wait(ctx context.Context, m logMark, n int) (have int, ok bool) {
	count := func(r *replication) bool {
		have = r.have(m.offset)
		return have >= n
	}
	if m == (logMark{}) {
		m.reign = r.end().reign // nothing was written: whoever is attached has it
	}
	if r.await(ctx, m.reign, forever, count) {
		return have, true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if m.reign != r.reign {
		return 0, false
	}
	count(r)
	return have, true
}

// pointOf is a mark as other nodes, and later times, know it.
func (r *replication) pointOf(m logMark) logPoint {
	if m == (logMark{}) {
		return logPoint{}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if m.reign != r.reign || r.log.epoch == (Epoch{}) {
		return logPoint{reignOver, m.offset}
	}
	return logPoint{reignOf(r.log.epoch), m.offset}
}

// markOf is the mark of a point of this node's log; ok is false where that is of a
// reign that is over.
func (r *replication) markOf(p logPoint) (m logMark, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return logMark{r.reign, p.offset}, r.log.epoch != (Epoch{}) && p.reign == reignOf(r.log.epoch)
}

// logPoint is a point in the log of one node's reign over a shard. The zero point is
// before all.
type logPoint struct {
	reign  uint64
	offset uint64
}

// reignOver is the reign of a point that is of none any more.
const reignOver = 1

// reignOf names a reign among all those of its node, for good.
func reignOf(e Epoch) uint64 { return e.Number<<1 | uint64(boolByte(e.Unclean)) }
