package slotmesh

import (
	"cmp"
	"flag"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/slotmesh/slotmesh/internal/racing"
)

var (
	simSeeds    = flag.Int("sim.seeds", racing.Fewer(20, 5), "seeds that TestSim runs")
	simFirst    = flag.Uint64("sim.seed", 1, "the first of them")
	simDuration = flag.Duration("sim.duration", time.Minute, "simulated time of a seed")
	simNodes    = flag.Int("sim.nodes", 6, "nodes of a seed")
	simMany     = flag.Uint64("sim.many", 1, "seeds of the tests in which half of the primaries of 200 nodes die")
	simTail     = flag.Int("sim.tail", 400, "lines of the trace that a failing seed prints")
)

// simCalmFor is how long a world is left alone in the end, in NodeTimeouts.
const simCalmFor = 12

// simRun runs one seed and returns what it has violated.
func simRun(seed uint64, nodes int, duration time.Duration, trace *simTrace) *simWorld {
	w := newSimWorld(seed)
	w.trace, w.stopAt = trace, true
	w.scenario(nodes, duration)
	return w
}

// scenario is the life of one world: it forms, lives through faults, and is
// left alone in the end.
func (w *simWorld) scenario(nodes int, duration time.Duration) {
	var ns []*simNode
	if w.chance(0.2) {
		w.clocks = 0.09 // the rules allow for less than a tenth
	}
	for range nodes {
		ns = append(ns, w.addNode())
	}
	w.drawFaults()
	chaos := w.faults
	w.drawn = chaos
	w.faults = simFaults{opsEvery: chaos.opsEvery, replyBy: chaos.replyBy}
	prims := func() int { // shards that are to fall need members
		if k := 1 + w.r.IntN(nodes); chaos.falls == 0 {
			return k
		}
		return 1 + w.r.IntN(2)
	}
	switch k := w.r.IntN(4); {
	case k == 0:
		w.byNumber(ns, prims())
	case k == 1:
		w.byOne(ns)
	default:
		w.byHand(ns, prims())
	}
	if w.chance(0.5) {
		w.faults = chaos // it has to form in the middle of it
	}
	if w.chance(0.7) {
		w.addReplicas(ns)
	}
	if chaos.foreign {
		w.addForeign()
	}
	if w.aside.Float64() < 0.1 {
		w.addRivals()
	}
	w.checkOW1Overlap()
	w.run(5 * w.nt)
	w.faults = chaos
	w.unleash()
	end := max(duration-simCalmFor*w.nt, duration/2)
	w.run(end)
	w.calmDown()
	w.settle(duration)
	if len(w.fails) == 0 {
		w.takeOverInCalm()
	}
}

// takeOverInCalm has a primary of a settled world die, and come back.
func (w *simWorld) takeOverInCalm() {
	for _, g := range w.groups() {
		for _, p := range g.nodes {
			l := p.core.lead
			if l == nil || !l.opened || !p.core.leaseHeld() || !p.core.ownsSlots() || w.ledger.imposed {
				continue
			}
			rest := simGroup{g.id, slices.DeleteFunc(slices.Clone(g.nodes), func(n *simNode) bool { return n == p })}
			heir := slices.ContainsFunc(rest.nodes, func(n *simNode) bool { return slices.Contains(l.inSync, n.core.member()) })
			busy := slices.ContainsFunc(rest.nodes, func(n *simNode) bool { return n.core.savedSeq < n.core.saveSeq }) // a disk may take long from before
			if heir && !busy && rest.mayDecide() {
				w.replaceInCalm(&rest, p)
				return
			}
		}
	}
}

// roundsMost is in how many rounds one of the members of a shard wins: LV2.
const roundsMost = 3

// replaceInCalm is the death of p, which has a member in sync; rest are the others of
// its cluster.
func (w *simWorld) replaceInCalm(rest *simGroup, p *simNode) {
	w.logf("%s dies in the calm", p.name())
	shard, members := p.core.self.Shard, len(p.core.lead.inSync)
	slots := p.core.serve.slots
	rounds := map[Epoch]bool{}
	w.onSend = func(_ *simNode, m message) {
		if v, ok := m.(*voteMsg); ok && v.Shard == shard {
			rounds[v.Epoch] = true
		}
	}
	was := p.core.lead.epoch
	goes, comes, gone := func() { p.crash(false) }, p.restart, func() bool { return !p.up }
	if w.aside.Float64() < 0.4 && w.needsOthers(p) {
		goes, comes, gone = func() { w.cutFromVoters(p) }, func() { w.cut = nil }, func() bool { return true }
	}
	forget := func() {}
	check := w.checkLV1Heir
	if behind := rest.nodes[w.r.IntN(len(rest.nodes))]; w.chance(0.5) && !behind.core.isReplica(behind.core.self) {
		forget = w.lose(func(f *simFlight, to *simNode) bool { return to == behind && w.sentBy(f, p) })
		w.bump(p)
		w.run(w.now + w.nt/8)
		check = w.checkLV7
	}
	goes()
	forget()
	var next *simNode
	check(p, func() bool {
		for _, n := range rest.nodes {
			if n.up && n.core.self.Shard == shard && n.core.leaseHeld() && n.servesAll(slots) && was.less(n.core.lead.epoch) {
				next = n
			}
		}
		return next != nil || !gone()
	})
	w.onSend = nil
	if next == nil {
		return // it was to come back just now, from a crash before
	}
	w.checkLV2(members, len(rounds))
	comes()
	w.checkLV5Return(p, next, shard)
	w.ledger.reach("replaced in the calm")
}

// needsOthers reports whether a primary has no majority of the voters among its shard.
func (w *simWorld) needsOthers(p *simNode) bool {
	k := 0
	for _, n := range w.nodes {
		if n.up && n.core.self.Shard == p.core.self.Shard && p.core.table.voters.hasMember(member{n.core.id, n.core.key}) {
			k++
		}
	}
	return k <= len(p.core.table.voters.Members)/2
}

// cutFromVoters cuts a primary off from all but the members of its shard, which hear it.
func (w *simWorld) cutFromVoters(p *simNode) {
	w.logf("%s is cut off from all but its replicas", p.name())
	shard := p.core.self.Shard
	near := map[*simNode]bool{}
	for _, n := range w.nodes {
		near[n] = n.up && n.core.self.Shard == shard
	}
	w.cut = func(from, to *simNode) bool { return from == p && !near[to] || to == p && !near[from] }
}

// checkLV1Heir: LV1, a member in sync takes the place of a primary that has died, or has
// lost its lease.
func (w *simWorld) checkLV1Heir(p *simNode, taken func() bool) {
	w.within("LV1", "a member in sync takes the place of "+p.name(), 3*w.nt, taken)
}

// checkLV7: LV7, also where a voter has missed what the primary said last.
func (w *simWorld) checkLV7(p *simNode, taken func() bool) {
	w.within("LV7", "a member in sync takes the place of "+p.name()+", whose last word a voter has missed", 3*w.nt, taken)
}

// checkLV2: LV2, somebody wins after few rounds of votes.
func (w *simWorld) checkLV2(members, rounds int) {
	if rounds > roundsMost*members {
		w.fail("LV2", "%d members have asked for votes under %d epochs", members, rounds)
	}
}

// checkLV5Return: LV5, a primary that comes back is in sync with its successor, if it is
// of that shard yet.
func (w *simWorld) checkLV5Return(p, next *simNode, shard ShardID) {
	w.within("LV5", p.name()+" is in sync with its successor, or elsewhere", 10*w.nt, func() bool {
		l := next.core.lead
		return p.up && (p.core.self.Shard != shard || l != nil && slices.Contains(l.inSync, p.core.member()) && p.core.role.primary == next.core.id || next.core.isReplica(next.core.self))
	})
}

// addReplicas has nodes without slots follow others, early.
func (w *simWorld) addReplicas(ns []*simNode) {
	for _, n := range ns {
		for range 3 {
			w.after(w.between(0, 4*w.nt), func() {
				if n.up && !n.core.ownsSlots() && !n.core.isReplica(n.core.self) {
					w.replicate(n, w.somePeer(n))
				}
			})
		}
	}
}

// addForeign adds two clusters of one node, which take addresses of others when
// they are free.
func (w *simWorld) addForeign() {
	for range 2 {
		n := w.addNode()
		n.alone = true
		n.boot(w.newAddr())
		w.every(6*w.nt, func() {
			n.crash(false)
			if free := w.freeAddr(); free != "" {
				n.boot(free)
			} else {
				n.boot(w.newAddr())
			}
		})
	}
}

// rivalSlot is what two rivals claim.
const rivalSlot Slot = 5

// addRivals adds two nodes of no cluster that claim one slot, and are made to meet.
func (w *simWorld) addRivals() {
	a, b := w.addNode(), w.addNode()
	w.rivals = map[*simNode]bool{a: true, b: true}
	a.boot(w.newAddr())
	b.boot(w.newAddr())
	a.addSlots(slotSet(rivalSlot, rivalSlot+1))
	b.addSlots(slotSet(rivalSlot-1, rivalSlot))
	w.every(2*w.nt, func() {
		if a.up && b.up {
			w.logf("%s: MEET %s, its rival", a.name(), b.name())
			a.meet(b.addr)
		}
	})
}

// freeAddr is an address that a node has had and nobody has now.
func (w *simWorld) freeAddr() string {
	for range 4 {
		if a := fmt.Sprint("addr", 1+w.r.IntN(w.addrs)); w.at[a] == nil {
			return a
		}
	}
	return ""
}

// calmDown ends all faults and brings everybody back.
func (w *simWorld) calmDown() {
	w.calm = true
	w.logf("calm")
	w.cut, w.hung, w.severed, w.losses = nil, nil, nil, nil
	w.noteIsolation(nil)
	w.faults = simFaults{opsEvery: w.faults.opsEvery, replyBy: time.Millisecond}
	for _, n := range w.nodes {
		if n.paused > w.now {
			n.paused, n.stopEnd = 0, w.now
			if w.drawn.sleep > 0 { // its timer may be far off
				w.schedule(simEvent{at: w.now, kind: simTick, node: int32(n.index), run: n.run})
			}
		}
		if n.up && !n.lives() && w.chance(0.5) {
			n.crash(true) // or it runs on without a disk, and the others do without it
		}
		n.unblockDisk()
		n.restart()
	}
	w.introduce()
}

// introduce is what an operator has to do for members that have all moved to new
// addresses since they heard each other last, and have no seed in common: a MEET.
func (w *simWorld) introduce() {
	for _, g := range w.groups() {
		found := []*simNode{g.nodes[0]}
		for i := 0; i < len(found); i++ {
			for _, n := range g.nodes {
				if !slices.Contains(found, n) && (n.findsAt(found[i].addr) || found[i].findsAt(n.addr)) {
					found = append(found, n)
				}
			}
			for _, n := range g.nodes {
				if i == len(found)-1 && !slices.Contains(found, n) {
					w.ledger.reach("introduced")
					w.logf("%s: MEET %s, who has lost touch", n.name(), found[0].name())
					n.meet(found[0].addr)
					found = append(found, n)
				}
			}
		}
	}
}

// findsAt reports whether n looks for members of its cluster at an address.
func (n *simNode) findsAt(addr string) bool {
	return slices.ContainsFunc(n.core.seeds, func(s seed) bool { return s.name == addr }) ||
		slices.ContainsFunc(n.core.peers.ordered, func(p *peer) bool { return p != n.core.self && p.State != forgotten && p.Addr == addr })
}

// settle waits until nothing is left to do, and fails if that takes too long.
func (w *simWorld) settle(until time.Duration) {
	last := ""
	for w.now < until && len(w.fails) == 0 {
		w.run(min(w.now+w.nt/4, until))
		if last = w.unsettled(); last == "" {
			w.ledger.reach("settled")
			facts := w.facts()
			w.run(w.now + w.nt)
			if again := cmp.Or(w.unsettled(), w.checkMB7(facts)); again != "" {
				last = again
				continue
			}
			for _, n := range w.nodes {
				n.lookAnew()
			}
			w.checkAll()
			return
		}
	}
	if len(w.fails) == 0 {
		w.fail("LV", "not settled after %d NodeTimeouts of calm: %s", simCalmFor, last)
	}
}

// checkMB7: MB7, what nodes know of each other and of who owns what stays as it is where
// nobody does anything.
func (w *simWorld) checkMB7(facts string) string {
	if facts != w.facts() {
		return "MB7: what nodes know of each other goes on changing"
	}
	return ""
}

// facts is all that nodes know of each other and of who owns what.
func (w *simWorld) facts() string {
	s := ""
	for _, n := range w.nodes {
		if n.up && n.core.self.State == present {
			s += fmt.Sprintf("%s %x %x ", n.name(), n.core.peers.sum, n.core.table.sum)
		}
	}
	return s
}

// TestSim runs seeds of the simulator. A failing one prints the command that
// replays it, and the end of its trace.
func TestSim(t *testing.T) {
	type result struct {
		seed uint64
		w    *simWorld
	}
	var (
		mu      sync.Mutex
		next    = *simFirst
		last    = *simFirst + uint64(*simSeeds) - 1
		failed  []result
		acks    uint64
		reached = map[string]int{}
		wg      sync.WaitGroup
	)
	began := time.Now()
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for {
				mu.Lock()
				seed := next
				next++
				stop := seed > last || len(failed) >= 3
				mu.Unlock()
				if stop {
					return
				}
				w := simRun(seed, *simNodes, *simDuration, nil)
				mu.Lock()
				acks += w.ledger.acks
				for k, v := range w.ledger.reached {
					reached[k] += v
				}
				if len(w.fails) > 0 {
					failed = append(failed, result{seed, w})
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	for _, f := range failed {
		t.Errorf("seed %d: %s\n%s", f.seed, f.w.fails[0], replay(f.seed, *simNodes, *simDuration))
	}
	simulated := time.Duration(*simSeeds) * *simDuration
	t.Logf("%d seeds, %v simulated, %.0f simulated seconds a second, %d acknowledgements, reached %v",
		*simSeeds, simulated, simulated.Seconds()/time.Since(began).Seconds(), acks, reached)
}

// replay runs a failing seed again, with its trace.
func replay(seed uint64, nodes int, duration time.Duration) string {
	tr := &simTrace{max: *simTail}
	w := simRun(seed, nodes, duration, tr)
	return fmt.Sprintf("replay: go test -run 'TestSim$' -sim.seed=%d -sim.seeds=1 -sim.nodes=%d -sim.duration=%v -sim.tail=2000\nfaults %+v\n%s\n%s%v",
		seed, nodes, duration, w.drawn, tr, w.dump(), w.fails)
}

// TestSimReplaysExactly runs seeds twice: the same seed gives the same trace, to every
// byte of what nodes say to each other, and leaves them in the same state.
func TestSimReplaysExactly(t *testing.T) {
	racing.OneGoroutine(t)
	t.Parallel()
	for seed := range uint64(6) {
		a, b := simRunExactly(seed), simRunExactly(seed)
		if a.hash != b.hash || a.steps != b.steps {
			t.Errorf("seed %d: trace %x of %d steps, then %x of %d", seed, a.hash, a.steps, b.hash, b.steps)
		}
		if x, y := a.dump(), b.dump(); x != y {
			t.Errorf("seed %d: ends as\n%s\nthen as\n%s", seed, x, y)
		}
	}
}

func simRunExactly(seed uint64) *simWorld {
	w := newSimWorld(seed)
	w.exact, w.stopAt = newValueWriter(), true
	w.scenario(6, 30*time.Second)
	return w
}

// dump is the state of every node, for the end of a trace.
func (w *simWorld) dump() string {
	s := ""
	for _, n := range w.nodes {
		if !n.up {
			s += fmt.Sprintf("%s down\n", n.name())
			continue
		}
		c := n.core
		s += fmt.Sprintf("%s %s at %s cluster %s starts %d shard %s self %v voters %s active %v stop %v lead %v stand %v serve %d lease %v table %x peers %x\n", n.name(), c.id.short(), n.addr, c.cluster.String()[:6], c.starts,
			c.self.Shard.short(), c.self.State, describeVoters(&c.table.voters), c.active(), c.vote.stop.Number, c.lead != nil, c.stand != nil, c.serve.slots.Len(), c.servesUntil()-n.local(), c.table.sum, c.peers.sum)
		for _, p := range c.peers.ordered {
			s += fmt.Sprintf("    %s %v v%d key %x starts %d facts %d at %s shard %s heard %v silent %d/%d\n", p.ID.short(), p.State, p.Version, p.Key&0xffff, p.Starts, p.peerEntry.Facts, p.Addr, p.Shard.short(), c.timeSince(p.heardAt), p.silent.Starts, p.silent.Counter)
		}
	}
	return s
}
