package slotmesh

import (
	"math/rand/v2"
	"time"
)

// What replicas are good for beside taking over, in the simulator: clients that read at
// them, whatever is old there up to a bound; writes that are answered once so many have
// them; clients that ask how many have what they wrote. And operators who fail a shard
// over to and fro. Each draws from a stream of its own, so that what a seed does without
// it stays what it was.

// simReplicaReads is in which share of its rounds a client of a replica's node reads there.
const simReplicaReads = 0.3

// drawReads draws how old what replicas show may be, in some of the seeds.
func (w *simWorld) drawReads() {
	own := rand.New(rand.NewPCG(w.seed, 0x4ab))
	if own.Float64() < 0.5 {
		w.reads = own
	}
}

// drawAsks draws whether clients want replicas for single writes.
func (w *simWorld) drawAsks() {
	own := rand.New(rand.NewPCG(w.seed, 0x4ac))
	if own.Float64() < 0.25 {
		w.asks = own
	}
}

// drawToAndFro draws whether operators fail shards over to and fro.
func (w *simWorld) drawToAndFro() {
	own := rand.New(rand.NewPCG(w.seed, 0x4ad))
	if own.Float64() < 0.12 {
		w.toAndFro, w.faults.toAndFro = own, []time.Duration{w.nt, 3 * w.nt}[own.IntN(2)]
	}
}

// ---- reads at replicas

// simFollows is whom a replica follows.
type simFollows struct {
	shard   ShardID
	primary NodeID
}

// bound is how old what this node shows as a replica may be: Config.ReplicaStaleness.
func (n *simNode) bound() time.Duration {
	return n.w.nt * []time.Duration{3, 5, 10, 20}[(n.w.seed+uint64(n.index))%4] / 10
}

// newsFor is what a primary says of how new its answer to a replica is.
func (n *simNode) newsFor(q *simPull) logNews {
	l := logNews{end: n.replica.log.end, answers: q.sent}
	if n.local() < n.core.servesUntil() {
		l.table = n.core.table.sum
	}
	return l
}

// noteNews notes how new what a replica has is, now that it has the log up to an offset.
func (n *simNode) noteNews(has uint64, l *logNews) {
	r := &n.replica
	if l.isAll(has) {
		r.caught = l.answers
	}
	r.asOf = l.asOf(r.asOf, has, n.core.table.sum)
}

// replicaOp is a client of a node who has said READONLY.
func (w *simWorld) replicaOp(n *simNode) {
	if w.reads == nil || n.core.role.primary.IsZero() || len(w.ledger.hot) == 0 || w.reads.Float64() >= simReplicaReads {
		return
	}
	hot := w.ledger.hot
	first, slot := w.reads.IntN(len(hot)), Slot(0)
	for i := range hot { // one of its shard, mostly
		if slot = hot[(first+i)%len(hot)]; n.core.table.slots.at(slot).shard == n.replica.follows.shard {
			break
		}
	}
	w.readAtReplica(n, slot)
}

// readAtReplica is what a driver does with a read for which old data will do: the core's
// rules say whether it is served here.
func (w *simWorld) readAtReplica(n *simNode, slot Slot) {
	c, r, v := n.core, &n.replica, n.published()
	if c.serve.slots.Contains(slot) || c.serve.hold.Contains(slot) {
		return // it leads by now
	}
	follows := !c.role.primary.IsZero()
	shows := follows && v.shows(slot, heldCopy{r.follows.shard, r.caught, r.asOf, n.store.moves[slot]}, n.local(), n.bound(), false)
	if d := v.route(slot, question{readOnly: true, shows: shows}); d.action == routeServe {
		w.ledger.reach("read at a replica")
		w.checkRP13(n, slot)
	} else {
		w.ledger.reach("sent to the primary")
		w.checkRP13Redirect(n, v, slot, &d)
	}
}

// checkRP13: RP13, what a replica shows has everything that had been acknowledged as long
// ago as its bound says, by whomever: writes younger than that may be missing.
func (w *simWorld) checkRP13(n *simNode, slot Slot) {
	l, k := &w.ledger, simSlotKey{n.core.cluster, slot, 0}
	if n.core.cluster.IsZero() || l.imposed || l.loose[k] || l.many.Contains(slot) {
		return // nothing counts as acknowledged, or an operator decides where it is looked for
	}
	has := n.store.values[slot][0]
	before := w.now - time.Duration(float64(n.bound())/n.rate)
	for was := l.committed[k]; was != nil && !descends(has, was); was = was.prev {
		if was.acked > 0 && was.acked < before {
			w.fail("RP13", "%s shows %v of %v, and %v was acknowledged %v ago, its bound is %v", n.name(), has.short(), k, was.short(), w.now-was.acked, n.bound())
			return
		}
	}
}

// checkRP13Redirect: RP13, who asks a replica that may not show what it has is sent to the
// primary, or hears that the replica knows of none that lives.
func (w *simWorld) checkRP13Redirect(n *simNode, v *view, slot Slot, d *decision) {
	l, known := v.leaders[v.entry(slot).shard]
	lives := v.heard && known && l.node >= 0 && !l.failed && l.epoch.Node != n.core.id
	switch {
	case d.action == routeMoved && lives && d.node.ID == l.epoch.Node:
	case d.action == routeDown && !lives:
	default:
		w.fail("RP13", "%s is asked for slot %d of %s, as a replica, and answers %d %s", n.name(), slot, l.epoch.Node.short(), d.action, d.reason)
	}
}

// ---- writes that want replicas, and waits

// simHeard is what a replica has said last, in this reign of its primary.
type simHeard struct {
	member incarnate
	offset uint64
	at     time.Duration // when it has said so
}

// simHad is how much of the log of an epoch a member has had.
type simHad struct {
	offset uint64
	at     time.Duration // the last time
}

type simHadKey struct {
	simEpochKey
	node int32
}

// noteHeard notes an acknowledgement as a driver does for whoever wants replicas.
func (r *simReplica) noteHeard(s *simSay, now time.Duration, nt time.Duration) {
	if now-s.at > nt {
		return // its connection has been given up
	}
	if r.heardIn != r.log.epoch {
		r.heard, r.heardIn = map[NodeID]simHeard{}, r.log.epoch
	}
	r.heard[s.member.Node] = simHeard{s.member, s.end, s.at}
}

// noteHad notes that a replica has its primary's log up to an offset, whatever becomes of
// what it says of that.
func (w *simWorld) noteHad(n *simNode, shard ShardID, e Epoch, offset uint64) {
	if w.asks != nil {
		w.ledger.had[simHadKey{simEpochKey{n.core.cluster, shard, e}, int32(n.index)}] = simHad{offset, w.now}
	}
}

// have counts the replicas that have the log up to an offset, as they have said not long
// ago: what a driver tells whoever waits for them.
func (n *simNode) have(offset uint64) int {
	r, k := &n.replica, 0
	if r.heardIn != r.log.epoch {
		return 0
	}
	for _, h := range r.heard {
		if h.offset >= offset && n.w.now-h.at <= n.w.nt {
			k++
		}
	}
	return k
}

// haveFor is what have says where somebody wants any.
func (n *simNode) haveFor(offset uint64, want int) int {
	if want == 0 {
		return 0
	}
	return n.have(offset)
}

// wants is how many replicas a client wants for a write.
func (w *simWorld) wants(n *simNode) int {
	if w.asks == nil || n.core.cluster.IsZero() || w.asks.Float64() < 0.7 {
		return 0
	}
	return 1 + w.asks.IntN(2)
}

// waitFor is a client that asks how many replicas have what it has written, once so many
// have or it has waited for long enough.
func (w *simWorld) waitFor(n *simNode, op *simPending) {
	if w.asks == nil || op.unformed || w.asks.Float64() >= 0.1 {
		return
	}
	epoch, offset, run := n.replica.log.epoch, op.offset, n.run
	want, until := 1+w.asks.IntN(3), w.now+w.nt/20+time.Duration(w.asks.Int64N(int64(w.nt)))
	var look func()
	look = func() {
		switch {
		case !n.up || n.run != run || !n.replica.log.leads(epoch):
			w.ledger.reach("waited in vain")
		case n.paused > w.now, n.have(offset) < want && w.now < until:
			w.after(time.Millisecond+time.Duration(w.asks.Int64N(int64(10*time.Millisecond))), look)
		default:
			w.ledger.reach("waited")
			w.checkRP10Wait(n, offset, n.have(offset))
		}
	}
	w.after(time.Millisecond, look)
}

// trueHave counts the members besides n that have its log up to an offset, or have had it
// not long ago: what one says is true when it says so.
func (w *simWorld) trueHave(n *simNode, offset uint64) int {
	k := 0
	for _, o := range w.nodes {
		if had, ok := w.ledger.had[simHadKey{simEpochKey{n.core.cluster, n.core.self.Shard, n.replica.log.epoch}, int32(o.index)}]; ok && had.offset >= offset && w.now-had.at <= 3*w.nt {
			k++
		}
	}
	return k
}

// checkRP10Wait: RP10, no more replicas are said to have what a client has written than
// have it.
func (w *simWorld) checkRP10Wait(n *simNode, offset uint64, said int) {
	if is := w.trueHave(n, offset); said > is {
		w.fail("RP10", "%s says that %d replicas have its log up to %d of %v, and %d have", n.name(), said, offset, n.replica.log.epoch, is)
	}
}

// checkRP10Asked: RP10, what is acknowledged to somebody who wanted replicas for it so many
// have. Which of them leads next nobody has promised; but if all members of the shard have
// it, each that is elected has it.
func (w *simWorld) checkRP10Asked(n *simNode, op *simPending) {
	is := w.trueHave(n, op.offset)
	if is < op.want {
		w.fail("RP10", "%s acknowledges %v of slot %d, which wants %d replicas, and %d have it", n.name(), op.value.short(), op.slot, op.want, is)
	}
	members := 0
	for _, p := range n.core.peers.ordered {
		if p != n.core.self && p.State != forgotten && p.Shard == n.core.self.Shard {
			members++
		}
	}
	w.ledger.reach("as many have it as were asked for")
	if op.value.everywhere = is >= members; op.value.everywhere {
		w.ledger.reach("all have what was asked for")
	}
}

// checkRP1Asked: RP1, no single failure loses a write of a shard that is not strict either
// that every member had when it was acknowledged: nobody lags behind it.
func (w *simWorld) checkRP1Asked(n *simNode, k simSlotKey, was, has *simWrite) {
	for at := was; at != nil && !descends(has, at); at = at.prev {
		if at.everywhere {
			w.fail("RP1", "%s leads %s under %v: of %v it has %v, and all members had %v when it was acknowledged", n.name(), n.core.self.Shard.short(), n.core.lead.epoch, k, has.short(), at.short())
			return
		}
	}
}

// ---- to and fro

// someToAndFro is an operator who hands a shard over to a replica, back, to it again and
// back again, as fast as he is answered.
func (w *simWorld) someToAndFro() {
	own := w.toAndFro
	for _, i := range own.Perm(len(w.nodes)) {
		b := w.nodes[i]
		if !b.up || !b.core.isReplica(b.core.self) {
			continue
		}
		if a := w.nodeOf(b.core.table.primary(b.core.self.Shard)); a != nil && a != b {
			w.handTo([]*simNode{b, a, b, a}, w.now+2*w.nt)
			return
		}
	}
}

// handTo fails a shard over to one member after the other, until it is late. Whoever is
// told that it does not go yet says it again.
func (w *simWorld) handTo(to []*simNode, until time.Duration) {
	own, n := w.toAndFro, to[0]
	again := func(to []*simNode) {
		w.after(time.Duration(own.Int64N(int64(w.nt/20))), func() { w.handTo(to, until) })
	}
	if !n.up || w.now >= until || w.calm {
		return
	}
	w.logf("%s: FAILOVER, to and fro, %d to go", n.name(), len(to))
	n.command(func(s *state, now time.Duration, cmd uint64) output { return s.failoverTo(now, cmd, FailoverPlain) }, func(err *commandError) {
		switch {
		case w.now >= until:
		case err != nil:
			again(to)
		case len(to) > 1:
			w.ledger.reach("handed to and fro")
			again(to[1:])
		default:
			w.ledger.reach("handed to and fro, twice in time")
		}
	})
}
