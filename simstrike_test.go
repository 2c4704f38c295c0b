package slotmesh

import (
	"slices"
	"time"
)

// Faults that chance alone brings about too seldom: they strike in the middle of a round
// of messages, which is over in a few milliseconds, or one after the other where the
// first has left somebody behind. When, whom and how hard is drawn from the seed.

// simRound is a round of messages in the middle of which faults strike.
type simRound uint8

const (
	roundNone   simRound = iota
	roundMoves           // of a hand-over
	roundVoters          // of a change of the voters
	roundVotes           // of an election
)

// of reports whether a message belongs to the round.
func (r simRound) of(m message) bool {
	switch m := m.(type) {
	case *stageMsg, *stagedMsg, *moveMsg:
		return r == roundMoves
	case *acceptMsg:
		return r == roundMoves && m.Ballot != 0
	case *updateMsg:
		return r == roundMoves && !m.Giver.IsZero()
	case *stopMsg, *stoppedMsg, *startMsg, *startedMsg:
		return r == roundVoters
	case *voteMsg, *grantMsg:
		return r == roundVotes
	}
	return false
}

// kinds are those of its messages.
func (r simRound) kinds() []msgKind {
	switch r {
	case roundVoters:
		return []msgKind{msgStop, msgStopped, msgStart, msgStarted}
	case roundVotes:
		return []msgKind{msgVote, msgGrant}
	}
	return []msgKind{msgStage, msgStaged, msgMove, msgAccept, msgUpdate}
}

// simLoss is messages that are lost for a while.
type simLoss struct {
	from, to *simNode // nil: any
	match    func(m message) bool
	share    float64
	until    time.Duration
}

// simSevered is a node that is cut off, one way or both, until a time.
type simSevered struct{ in, out time.Duration }

// isCut reports whether nothing gets from one node to another.
func (w *simWorld) isCut(from, to *simNode) bool {
	return from != to && (w.cut != nil && w.cut(from, to) || w.severed[from].out > w.now || w.severed[to].in > w.now)
}

// struck may strike at a message that is about to leave, and reports whether it is lost.
func (w *simWorld) struck(n *simNode, f *simFlight) bool {
	if w.faults.strikes == roundNone {
		return false
	}
	if !w.calm && w.now >= w.nextStrike && f.msg.kind() == w.strikeAt && w.faults.strikes.of(f.msg) && w.chance(0.5) {
		w.aimStrike()
		w.strike(n, w.at[f.addr])
	}
	to := w.at[f.addr]
	w.losses = slices.DeleteFunc(w.losses, func(l simLoss) bool { return l.until <= w.now })
	return slices.ContainsFunc(w.losses, func(l simLoss) bool {
		return (l.from == nil || l.from == n) && (l.to == nil || l.to == to) && l.match(f.msg) && w.chance(l.share)
	})
}

// aimStrike draws when to strike next, and at a message of which kind: each has its turn,
// for the first of a round would take nearly all.
func (w *simWorld) aimStrike() {
	kinds := w.faults.strikes.kinds()
	w.nextStrike, w.strikeAt = w.now+w.mean(w.nt), kinds[w.r.IntN(len(kinds))]
}

// strike lets some of what may go wrong go wrong at once, around a message of n to o.
func (w *simWorld) strike(n, o *simNode) {
	w.ledger.reach("struck")
	w.logf("a strike at %s", n.name())
	who := n
	if o != nil && w.chance(0.4) {
		who = o
	}
	news, voting := who, w.faults.strikes == roundVoters
	if !voting && w.chance(0.5) {
		news = w.mateOf(n)
	}
	effects := []func(){
		func() { w.lateCrash(who) },
		func() { w.sever(who) },
		func() { w.loseFor(n, nil, w.faults.strikes.of, w.between(0, w.nt)) },
		func() { w.loseFor(nil, n, w.faults.strikes.of, w.between(0, w.nt)) },
		func() { w.loseFor(nil, news, tellsNews, w.between(0, 3*w.nt)) },
	}
	switch w.faults.strikes {
	case roundVoters:
		effects = append(effects,
			func() { w.loseFor(nil, who, isStart, w.between(0, 3*w.nt)) },
			func() { w.after(w.between(0, 5*time.Millisecond), w.someChange) })
	case roundVotes:
		effects = append(effects, func() { w.after(w.between(0, 5*time.Millisecond), who.breakStore) })
	default:
		effects = append(effects,
			func() { w.after(w.between(0, 5*time.Millisecond), func() { w.bump(n) }) },
			func() { w.fallAhead(who) })
	}
	first := w.r.IntN(len(effects))
	for i, effect := range effects {
		if i == first || w.chance(0.35) {
			effect()
		}
	}
}

// tellsNews matches what shows a node what others know.
func tellsNews(m message) bool { return m.kind() == msgUpdate || m.kind() == msgDigest }

func isStart(m message) bool { return m.kind() == msgStart }

// mateOf is another member of a node's shard, or else any node.
func (w *simWorld) mateOf(n *simNode) *simNode {
	first := w.r.IntN(len(w.nodes))
	for i := range w.nodes {
		o := w.nodes[(first+i)%len(w.nodes)]
		if o != n && o.up && n.up && o.core.self.Shard == n.core.self.Shard {
			return o
		}
	}
	return w.nodes[first]
}

// lateCrash ends a process in a moment, or a little later.
func (w *simWorld) lateCrash(n *simNode) {
	d := time.Millisecond
	if w.chance(0.3) {
		d = w.nt / 2
	}
	w.after(w.between(0, d), func() {
		if n.up && !w.calm {
			n.crash(w.chance(0.7))
			w.after(w.between(w.nt/20, 3*w.nt), n.restart)
		}
	})
}

// fallAhead ends a primary whose replicas have not got the end of its log.
func (w *simWorld) fallAhead(p *simNode) {
	for _, r := range w.nodes {
		if r.up && p.up && r.core.role.primary == p.core.id {
			w.hang(r, p, hangBoth, w.between(w.nt/4, w.nt))
		}
	}
	w.lateCrash(p)
}

// breakStore is a replica's store that does not take what the log brings: what it held is
// lost, and its driver says so.
func (n *simNode) breakStore() {
	if n.up && !n.w.calm && n.core.isReplica(n.core.self) && n.replica.copying == nil {
		n.w.logf("%s: its store breaks", n.name())
		n.w.ledger.reach("a store broke")
		n.wipeStore()
		n.do(func(s *state, now time.Duration) output { return s.storeIs(now, s.newStore(), false) })
	}
}

// sever cuts a node off, one way or both.
func (w *simWorld) sever(n *simNode) {
	if w.severed == nil {
		w.severed = map[*simNode]simSevered{}
	}
	end, way := w.now+w.between(w.nt/4, 4*w.nt), w.r.IntN(6)
	s := w.severed[n]
	if way > 0 {
		s.out = end
	}
	if way == 0 || way > 2 {
		s.in = end
	}
	w.severed[n] = s
	w.logf("%s is cut off, in until %v, out until %v", n.name(), s.in, s.out)
}

// loseFor has messages be lost for a while, all of them or half.
func (w *simWorld) loseFor(from, to *simNode, match func(message) bool, d time.Duration) {
	share := 1.0
	if w.chance(0.5) {
		share = 0.5
	}
	w.losses = append(w.losses, simLoss{from, to, match, share, w.now + d})
}

// someChange has a voter change the voters to a set that nobody wants: one fewer, or one
// more.
func (w *simWorld) someChange() {
	n := w.liveNode()
	if n == nil || !n.core.active() || !n.lives() {
		return
	}
	c := n.core
	var set, others []*simNode
	for _, o := range w.nodes {
		switch {
		case !o.up || o.core.cluster != c.cluster || !c.aliveID(o.core.id) || c.peers.get(o.core.id).State != present || c.peers.get(o.core.id).Key != o.core.key:
		case c.table.voters.hasMember(member{o.core.id, o.core.key}):
			set = append(set, o)
		default:
			others = append(others, o)
		}
	}
	switch {
	case len(others) > 0 && (len(set) < 3 || w.chance(0.5)):
		set = append(set, others[w.r.IntN(len(others))])
	case len(set) > 1:
		i := w.r.IntN(len(set))
		set = slices.Delete(set, i, i+1)
	default:
		return
	}
	w.logf("%s begins a change to %d voters", n.name(), len(set))
	n.begins(set...)
}

// someFall is two primaries of a shard that die one after the other, while what the log
// brings to one of its members hangs. Where no shard has as many members those that are free
// join one.
func (w *simWorld) someFall() {
	p := w.somePrimary(func(n *simNode) bool { return len(n.core.lead.inSync) > 2 })
	if p == nil {
		w.gather()
		return
	}
	w.ledger.reach("a shard falls twice")
	x := w.mateOf(p)
	d := w.between(w.nt/2, 3*w.nt)
	for _, o := range w.nodes {
		if o != x {
			w.hang(x, o, hangBoth, d)
		}
	}
	w.after(w.between(0, w.nt/2), func() {
		if !w.calm && p.up {
			w.fall(p, true)
		}
	})
}

// gather has the nodes without slots follow one primary.
func (w *simWorld) gather() {
	p := w.somePrimary(func(n *simNode) bool { return n.core.ownsSlots() })
	for _, r := range w.nodes {
		if p != nil && r.up && p.up && r.core.self.Shard != p.core.self.Shard && r.core.cluster == p.core.cluster && !r.core.ownsSlots() {
			w.replicate(r, p.core.id)
		}
	}
}

// fall ends a primary, and in a while whoever leads its shard next.
func (w *simWorld) fall(p *simNode, again bool) {
	shard, was := p.core.self.Shard, p.core.table.shards[p.core.self.Shard]
	p.crash(w.chance(0.5))
	w.after(w.between(w.nt, 6*w.nt), p.restart)
	var look func()
	look = func() {
		next := w.somePrimary(func(n *simNode) bool { return n.core.self.Shard == shard && was.less(n.core.lead.epoch) })
		switch {
		case w.calm:
		case next == nil:
			w.after(w.nt/100, look)
		default:
			w.after(w.between(0, w.nt/2), func() {
				if !w.calm && next.up {
					w.fall(next, false)
				}
			})
		}
	}
	if again {
		look()
	}
}

// somePrimary is a node that leads its shard, and of which match holds; nil: none.
func (w *simWorld) somePrimary(match func(n *simNode) bool) *simNode {
	first := w.r.IntN(len(w.nodes))
	for i := range w.nodes {
		n := w.nodes[(first+i)%len(w.nodes)]
		if n.up && n.core.lead != nil && n.core.lead.opened && match(n) {
			return n
		}
	}
	return nil
}

// someImpose is an operator who imposes voters on the smaller side of a partition while
// the other side lives on.
func (w *simWorld) someImpose() {
	few := map[*simNode]bool{}
	for _, i := range w.r.Perm(len(w.nodes))[:1+w.r.IntN(max(1, len(w.nodes)/2))] {
		few[w.nodes[i]] = true
	}
	w.cut = func(from, to *simNode) bool { return few[from] != few[to] }
	w.noteIsolation(few)
	w.logf("partition of %d nodes, on which voters are to be imposed", len(few))
	w.after(w.between(2*w.nt, 8*w.nt), func() {
		if !w.calm {
			w.cut = nil
			w.noteIsolation(nil)
			w.logf("healed")
		}
	})
	w.after(w.between(0, w.nt), func() {
		for _, n := range w.nodes {
			if few[n] && n.up && !w.calm && !n.core.cluster.IsZero() {
				w.impose(n, n)
				return
			}
		}
	})
}
