package slotmesh

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/slotmesh/slotmesh/internal/racing"
	"github.com/stretchr/testify/require"
)

// The tests of the rules move a handful of cores by hand. There is no chance in
// them: one clock for all, a message arrives at the moment it is sent unless it
// is held or lost, a save completes at once unless the disk is slow. Nodes are
// a, b, c, ... in the order of their ids, their shards A, B, C, ...

// ruleNT is a NodeTimeout.
const ruleNT = time.Second

type ruleWorld struct {
	t     testing.TB
	now   time.Duration
	nodes []*ruleNode
	mail  []ruleMail // sent and not delivered yet, in order
	held  []ruleMail
	hold  func(m ruleMail) bool // what waits for release
	lose  func(m ruleMail) bool
	seen  func(m ruleMail) // every message that leaves

	catchAt string // what goes to this address is caught
	caught  []message
}

// ruleMail is a message on its way.
type ruleMail struct {
	from *ruleNode
	to   *ruleNode // nil: nobody lives at the address
	who  sender
	dest dest
	msg  message
}

type ruleNode struct {
	w        *ruleWorld
	name     string
	cfg      coreConfig
	chance   *ruleChance
	core     *state
	down     bool
	cut      bool // hears nobody, and nobody hears it
	asleep   bool // does not tick
	slowDisk bool // saves wait for flush
	disk     map[cellKey][]byte
	saving   []save
	sends    []send
	tells    []tell
	told     []any // to the driver, in order
	events   []Event
	replies  map[uint64]*ruleReply
	commands uint64
}

// ruleReply is the answer to an operator's command.
type ruleReply struct {
	done bool
	err  *commandError
}

func (r *ruleReply) String() string {
	switch {
	case !r.done:
		return "no reply"
	case r.err == nil:
		return "OK"
	default:
		return map[commandCode]string{codeInvalid: "ERR ", codeClusterDown: "CLUSTERDOWN ", codeTryAgain: "TRYAGAIN "}[r.err.Code] + r.err.Text
	}
}

const ruleStart = time.Hour // what the clock shows at first

func newRules(t testing.TB) *ruleWorld {
	t.Helper()
	racing.Pure(t)
	return &ruleWorld{t: t, now: ruleStart}
}

// ruleChance is chance without surprise: the first byte of the node's id, and
// that of its first shard, are its number.
type ruleChance struct {
	pcg    rand.PCG
	number int
	draws  int
}

func newRuleChance(number int) *ruleChance {
	return &ruleChance{pcg: *rand.NewPCG(uint64(number), 1), number: number}
}

func (c *ruleChance) next() uint64 {
	x := c.pcg.Uint64()
	if c.draws++; c.draws == 1 || c.draws == 5 {
		x = x&^0xff | uint64(c.number)
	}
	return x
}

// boot starts the next node, on a host of its own.
func (w *ruleWorld) boot(edit ...func(*coreConfig)) *ruleNode {
	number := len(w.nodes) + 1
	name := string(rune('a' + number - 1))
	n := &ruleNode{w: w, name: name, chance: newRuleChance(number), disk: map[cellKey][]byte{}, replies: map[uint64]*ruleReply{}}
	n.cfg = coreConfig{nodeTimeout: ruleNT, maxVoters: maxVotersDefault, incarnation: uint64(number), store: uint64(number), host: "host-" + name,
		addr: "addr-" + name, clientAddr: "client-" + name, random: n.chance.next}
	for _, f := range edit {
		f(&n.cfg)
	}
	w.nodes = append(w.nodes, n)
	n.load()
	return n
}

// load makes a core from the disk and boots it.
func (n *ruleNode) load() {
	var cells []cell
	for k, v := range n.disk {
		cells = append(cells, cell{k, v})
	}
	slices.SortFunc(cells, func(a, b cell) int { return a.key.compare(b.key) })
	core, err := newState(n.cfg, cells)
	require.NoError(n.w.t, err)
	n.core, n.down = core, false
	n.step(func(s *state, now time.Duration) output { return s.boot(now) })
	n.w.deliver()
}

// crash ends the process; what is not saved is lost.
func (n *ruleNode) crash() {
	n.down = true
	n.saving, n.sends, n.tells, n.told = nil, nil, nil, nil
	n.replies = map[uint64]*ruleReply{}
}

// restart begins another process on the same disk.
func (n *ruleNode) restart() {
	n.crash()
	n.cfg.incarnation += 100
	n.load()
}

// step runs one step of the core and carries out what it asks.
func (n *ruleNode) step(f func(s *state, now time.Duration) output) {
	n.w.t.Helper()
	if n.down {
		return
	}
	out := f(n.core, n.w.now)
	for _, s := range out.saves {
		n.saving = append(n.saving, save{s.n, slices.Clone(s.cells)})
	}
	n.sends = append(n.sends, slices.Clone(out.sends)...)
	n.tells = append(n.tells, slices.Clone(out.tells)...)
	n.release()
	if !n.slowDisk {
		n.flush()
	}
}

// release sends and tells what waits for no save any more.
func (n *ruleNode) release() {
	saved := n.core.savedSeq
	n.sends = slices.DeleteFunc(n.sends, func(s send) bool {
		if s.after > saved {
			return false
		}
		n.w.post(ruleMail{from: n, who: *s.from, dest: s.to, msg: s.msg})
		return true
	})
	n.tells = slices.DeleteFunc(n.tells, func(t tell) bool {
		if t.after > saved {
			return false
		}
		n.hear(t.what)
		return true
	})
}

func (n *ruleNode) hear(what any) {
	switch t := what.(type) {
	case replyTell:
		if r := n.replies[t.id]; r != nil {
			require.False(n.w.t, r.done, "command %d is answered twice", t.id)
			r.done, r.err = true, t.err
		}
	case eventTell:
		n.events = append(n.events, t.event)
	default:
		n.told = append(n.told, what)
	}
}

// flush completes all saves.
func (n *ruleNode) flush() {
	for len(n.saving) > 0 {
		s := n.saving[0]
		n.saving = n.saving[1:]
		for _, c := range s.cells {
			if c.value == nil {
				delete(n.disk, c.key)
			} else {
				n.disk[c.key] = c.value
			}
		}
		slow := n.slowDisk
		n.slowDisk = true // what this step saves comes after
		n.step(func(c *state, now time.Duration) output { return c.saved(now, s.n) })
		n.slowDisk = slow
	}
}

// ---- messages

func (w *ruleWorld) at(addr string) *ruleNode {
	for _, n := range w.nodes {
		if n.cfg.addr == addr {
			return n
		}
	}
	return nil
}

func (w *ruleWorld) post(m ruleMail) {
	m.to = w.at(m.dest.addr)
	if w.seen != nil {
		w.seen(m)
	}
	_, err := appendFrame(nil, m.msg)
	require.NoError(w.t, err)
	require.NoError(w.t, m.msg.check())
	switch {
	case w.catchAt != "" && m.dest.addr == w.catchAt:
		w.caught = append(w.caught, m.msg)
	case m.from.cut || m.to == nil || m.to.cut || w.lose != nil && w.lose(m):
	case w.hold != nil && w.hold(m):
		w.held = append(w.held, m)
	default:
		w.mail = append(w.mail, m)
	}
}

// deliver hands over messages until there are none.
func (w *ruleWorld) deliver() {
	w.t.Helper()
	for i := 0; len(w.mail) > 0; i++ {
		require.Less(w.t, i, 200_000, "messages without end")
		m := w.mail[0]
		w.mail = w.mail[1:]
		w.arrive(m)
	}
}

func (w *ruleWorld) arrive(m ruleMail) {
	m.to.step(func(s *state, now time.Duration) output { return s.receive(now, m.who, m.dest.wanted, m.msg) })
}

// releaseHeld delivers what was held, and holds nothing more.
func (w *ruleWorld) releaseHeld() {
	w.t.Helper()
	w.hold = nil
	w.mail, w.held = append(w.mail, w.held...), nil
	w.deliver()
}

// kinds says whether a message is of one of some kinds.
func kindsOf(kinds ...msgKind) func(ruleMail) bool {
	return func(m ruleMail) bool { return slices.Contains(kinds, m.msg.kind()) }
}

// gets lets n receive a message of another node, and returns what n sends back
// to it, once that is saved. What n sends to others goes its way.
func (n *ruleNode) gets(from *ruleNode, m message) []message {
	n.w.t.Helper()
	return n.getsAs(*from.core.who, m)
}

// getsAs is gets with a handshake of its own.
func (n *ruleNode) getsAs(who sender, m message) []message {
	n.w.t.Helper()
	return n.getsFor(who, wanted{ID: n.core.id, Key: n.core.key, Incarnation: n.cfg.incarnation}, m)
}

func (n *ruleNode) getsFor(who sender, to wanted, m message) []message {
	n.w.t.Helper()
	w := n.w
	w.catchAt, w.caught = who.Addr, nil
	n.step(func(s *state, now time.Duration) output { return s.receive(now, who, to, m) })
	w.catchAt = ""
	return w.caught
}

// ---- time

// tick moves nothing but one node's clock work.
func (n *ruleNode) tick() {
	n.w.t.Helper()
	n.step((*state).tick)
}

// run lets time pass: every node ticks when it is due.
func (w *ruleWorld) run(d time.Duration) {
	w.t.Helper()
	end := w.now + d
	w.deliver()
	for same := 0; ; {
		next := end + 1
		for _, n := range w.nodes {
			if !n.down && !n.asleep {
				next = min(next, max(n.core.wake, w.now))
			}
		}
		if next > end {
			break
		}
		if same++; next > w.now {
			same = 0
		}
		require.Less(w.t, same, 1000, "ticks without end")
		w.now = next
		for _, n := range w.nodes {
			if !n.down && !n.asleep && n.core.wake <= w.now {
				n.tick()
			}
		}
		w.deliver()
	}
	w.now = end
}

// until runs until a condition holds, twenty NodeTimeouts at most.
func (w *ruleWorld) until(what string, cond func() bool) {
	w.t.Helper()
	w.deliver()
	for range 2000 {
		if cond() {
			return
		}
		w.run(ruleNT / 100)
	}
	require.FailNow(w.t, "it never came to be", "%s\n%s", what, w.dump())
}

func (w *ruleWorld) dump() string {
	var b strings.Builder
	for _, n := range w.nodes {
		if n.down {
			fmt.Fprintf(&b, "%s is down\n", n.name)
			continue
		}
		ok, reason := n.core.clusterState()
		fmt.Fprintf(&b, "%s cluster %.6s voters %v of %d, active %v, leads %v, stands %v, ok %v %s\n", n.name, n.core.cluster,
			n.core.table.voters.Version, len(n.core.table.voters.Members), n.core.active(), n.core.lead != nil, n.core.stand != nil, ok, reason)
	}
	return b.String()
}

// ---- commands

// command gives an operator's command.
func (n *ruleNode) command(f func(s *state, now time.Duration, id uint64) output) *ruleReply {
	n.w.t.Helper()
	n.commands++
	id := n.commands
	r := &ruleReply{}
	n.replies[id] = r
	n.step(func(s *state, now time.Duration) output { return f(s, now, id) })
	return r
}

func (n *ruleNode) addSlots(slots string) *ruleReply {
	n.w.t.Helper()
	return n.command(func(s *state, now time.Duration, id uint64) output { return s.addSlots(now, id, slotsOf(n.w.t, slots)) })
}

func (n *ruleNode) delSlots(slots string) *ruleReply {
	n.w.t.Helper()
	return n.command(func(s *state, now time.Duration, id uint64) output { return s.delSlots(now, id, slotsOf(n.w.t, slots)) })
}

func (n *ruleNode) setSlots(slots string, to *ruleNode) *ruleReply {
	n.w.t.Helper()
	return n.command(func(s *state, now time.Duration, id uint64) output {
		return s.setSlots(now, id, slotsOf(n.w.t, slots), to.core.id)
	})
}

func (n *ruleNode) meet(other *ruleNode) *ruleReply {
	n.w.t.Helper()
	return n.command(func(s *state, now time.Duration, id uint64) output { return s.meet(now, id, other.cfg.addr) })
}

func (n *ruleNode) forget(id NodeID, force bool) *ruleReply {
	n.w.t.Helper()
	return n.command(func(s *state, now time.Duration, cmd uint64) output { return s.forget(now, cmd, id, force) })
}

func (n *ruleNode) reset(hard, keys bool) *ruleReply {
	n.w.t.Helper()
	return n.command(func(s *state, now time.Duration, id uint64) output { return s.reset(now, id, hard, keys) })
}

// unleased makes a primary lose its lease: nothing reaches it for that long.
func (n *ruleNode) unleased() {
	n.w.lose = func(m ruleMail) bool { return m.to == n }
	n.w.run(n.core.leaseUntil() - n.w.now + ruleNT/10)
	n.w.lose = nil
}

func (n *ruleNode) takeover() *ruleReply {
	n.w.t.Helper()
	return n.command(func(s *state, now time.Duration, id uint64) output { return s.takeover(now, id) })
}

func (n *ruleNode) forceVoters(nodes ...*ruleNode) *ruleReply {
	n.w.t.Helper()
	var ids []NodeID
	for _, m := range nodes {
		ids = append(ids, m.core.id)
	}
	return n.command(func(s *state, now time.Duration, id uint64) output { return s.forceVoters(now, id, ids) })
}

// handOff begins a job: the driver has copied the data of slots to a shard.
func (n *ruleNode) handOff(job uint64, slots string, to ShardID) {
	n.w.t.Helper()
	n.step(func(s *state, now time.Duration) output { return s.handOff(now, job, slotsOf(n.w.t, slots), to) })
}

// frozen says that the slots of a job are frozen.
func (n *ruleNode) frozen(job, position uint64, keysLeft bool) {
	n.w.t.Helper()
	n.step(func(s *state, now time.Duration) output { return s.frozen(now, job, position, keysLeft) })
}

func (n *ruleNode) thaw(job uint64) {
	n.w.t.Helper()
	n.step(func(s *state, now time.Duration) output { return s.thaw(now, job) })
}

func (n *ruleNode) stageHeld(job, position uint64) {
	n.w.t.Helper()
	n.step(func(s *state, now time.Duration) output { return s.stageHeld(now, job, position) })
}

// freezes plays the driver's part of every hand-over that n gives: no request
// is left in the slots, and keysLeft says whether keys are.
func (n *ruleNode) freezes(keysLeft bool) {
	n.w.t.Helper()
	for _, f := range toldOf[freezeTell](n) {
		n.frozen(f.job, 1, keysLeft)
	}
	n.w.deliver()
}

// ---- what a node has and says

func (n *ruleNode) shard() ShardID { return n.core.self.Shard }

func (n *ruleNode) member() member { return member{n.core.id, n.core.key} }

func (n *ruleNode) epoch() Epoch { return n.core.table.shards[n.shard()] }

// voted is what n keeps as a voter of the shard of another node.
func (n *ruleNode) voted(of *ruleNode) *voterShard { return n.core.vote.shard(of.shard()) }

// knows is n's entry of another node.
func (n *ruleNode) knows(other *ruleNode) *peer { return n.core.peers.get(other.core.id) }

// owns is whom n's table names as the owner of a slot: a letter, or "-".
func (n *ruleNode) owns(slot Slot) string { return n.w.letter(n.core.table.owner(slot)) }

// serves reports whether n serves a slot now, lease included.
func (n *ruleNode) serves(slot Slot) bool {
	return n.core.serve.slots.Contains(slot) && n.w.now < n.core.servesUntil()
}

func (w *ruleWorld) letter(id NodeID) string {
	for _, n := range w.nodes {
		if n.core.id == id {
			return n.name
		}
	}
	return "-"
}

// voters are the letters of the voters in force at n.
func (n *ruleNode) voters() string { return n.w.letters(n.core.table.voters.Members) }

func (w *ruleWorld) letters(ms []member) string {
	s := ""
	for _, m := range ms {
		s += w.letter(m.ID)
	}
	return s
}

// toldOf takes what n has told its driver of one type.
func toldOf[T any](n *ruleNode) []T {
	var found []T
	n.told = slices.DeleteFunc(n.told, func(x any) bool {
		t, ok := x.(T)
		if ok {
			found = append(found, t)
		}
		return ok
	})
	return found
}

// eventsOf are the events of one kind that n has told.
func (n *ruleNode) eventsOf(k EventKind) []Event {
	return slices.DeleteFunc(slices.Clone(n.events), func(e Event) bool { return e.Kind != k })
}

// count counts the messages of one kind that leave while f runs.
func (w *ruleWorld) count(f func(), match func(ruleMail) bool) int {
	n := 0
	was := w.seen
	w.seen = func(m ruleMail) {
		if match(m) {
			n++
		}
		if was != nil {
			was(m)
		}
	}
	f()
	w.seen = was
	return n
}

func slotsOf(t testing.TB, text string) SlotSet {
	t.Helper()
	var set SlotSet
	for _, part := range strings.Fields(text) {
		r, err := ParseSlotRange(part)
		require.NoError(t, err)
		set.AddRange(r)
	}
	return set
}

// ---- making clusters

// group boots nodes that have met and have not formed: no slots are assigned.
func (w *ruleWorld) group(n int) []*ruleNode {
	w.t.Helper()
	for range n {
		w.boot()
	}
	for _, x := range w.nodes[1:] {
		x.meet(w.nodes[0])
	}
	w.until("all have met", func() bool {
		return !slices.ContainsFunc(w.nodes, func(x *ruleNode) bool { return len(x.core.peers.ordered) != len(w.nodes) })
	})
	return w.nodes
}

// cluster makes a cluster of n nodes, of which the first prims share all slots
// evenly. It has formed once, in a world that is like this one as long as nothing
// has happened here: hundreds of rows want one, and each gets a copy.
func (w *ruleWorld) cluster(prims, n int) []*ruleNode {
	w.t.Helper()
	if w.untouched() {
		w.copyOf(formedRules(w.t, prims, n))
	} else {
		w.form(prims, n)
	}
	return w.nodes
}

func (w *ruleWorld) form(prims, n int) {
	w.t.Helper()
	for i := range n {
		x := w.boot()
		if i < prims {
			x.addSlots(SlotRange{Slot(i * NumSlots / prims), Slot((i+1)*NumSlots/prims - 1)}.String())
			x.command(func(s *state, now time.Duration, id uint64) output { return s.setConfigEpoch(now, id, uint64(i+1)) })
		}
	}
	for _, x := range w.nodes[1:] {
		x.meet(w.nodes[0])
	}
	w.until("the cluster has formed and is calm", w.calm)
	for _, x := range w.nodes {
		x.told, x.events = nil, nil
	}
}

// untouched reports whether nothing has happened in this world, and nobody
// watches what will.
func (w *ruleWorld) untouched() bool {
	return w.now == ruleStart && len(w.nodes) == 0 && w.hold == nil && w.lose == nil && w.seen == nil && w.catchAt == ""
}

// formedWorlds are the worlds of formedRules, by primaries and nodes.
var formedWorlds = struct {
	sync.Mutex
	of map[[2]int]*ruleWorld
}{of: map[[2]int]*ruleWorld{}}

// formedRules is a world in which a cluster has formed, to be copied and left as
// it is.
func formedRules(t testing.TB, prims, n int) *ruleWorld {
	t.Helper()
	formedWorlds.Lock()
	defer formedWorlds.Unlock()
	key := [2]int{prims, n}
	w := formedWorlds.of[key]
	if w == nil {
		w = newRules(t)
		w.form(prims, n)
		require.Empty(t, w.mail)
		for _, x := range w.nodes {
			x.core.out = output{} // valid until the next step
		}
		formedWorlds.of[key] = w
	}
	return w
}

// copyOf makes this world, in which nothing has happened, one like another.
func (w *ruleWorld) copyOf(o *ruleWorld) {
	w.now = o.now
	c := newCopier()
	c.instead(o, w)
	deepCopy(c, &w.nodes, &o.nodes)
	for _, n := range w.nodes {
		n.cfg.random = n.chance.next
		n.core.cfg.random = n.chance.next
	}
}

// calm reports whether all that live are of one cluster, show one table, and
// lead their shards under a lease.
func (w *ruleWorld) calm() bool {
	var first *ruleNode
	for _, n := range w.nodes {
		if n.down || n.cut {
			continue
		}
		if first == nil {
			first = n
		}
		c := n.core
		if c.cluster.IsZero() || c.cluster != first.core.cluster || c.table.sum != first.core.table.sum || c.peers.sum != first.core.peers.sum ||
			c.stand != nil || c.lead == nil || !c.lead.opened || !c.leaseHeld() || c.isVoter() && !c.active() || !c.vote.stop.isZero() ||
			!sameMembers(c.wantedVoters(), c.table.voters.Members) {
			return false
		}
		for _, p := range c.peers.ordered {
			if p != c.self && c.alive(p) && p.State == present && (p.beatAt == never || p.differs > 0) {
				return false // it has not seen yet that all show one table
			}
		}
	}
	return true
}

// ---- messages as text

// said is a list of messages as the tables of the tests write them.
func said(ms []message) string {
	var parts []string
	for _, m := range ms {
		parts = append(parts, saying(m))
	}
	if parts == nil {
		return "silence"
	}
	return strings.Join(parts, ", ")
}

func saying(m message) string {
	switch m := m.(type) {
	case *grantMsg:
		return fmt.Sprintf("GRANT %d", m.Epoch.Number)
	case *refuseMsg:
		s := "REFUSE " + m.Why.String()
		if m.Why == refusePromised {
			s += fmt.Sprint(" ", m.Promised.Number)
		}
		if m.RetryIn > 0 {
			s += fmt.Sprintf(", again in %d ms", m.RetryIn)
		}
		return s
	case *acceptMsg:
		s := fmt.Sprintf("ACCEPT %d.%d", m.Epoch.Number, m.N)
		if m.Ballot != 0 {
			s = "ACCEPT MOVE"
		}
		if m.Lease > 0 {
			s += fmt.Sprintf(" lease %d ms", m.Lease)
		}
		return s
	case *updateMsg:
		switch {
		case len(m.Voters) > 0:
			return "UPDATE voters " + m.Voters[0].Version.String()
		case len(m.Peers) > 0:
			return fmt.Sprintf("UPDATE %d peers", len(m.Peers))
		}
		return "UPDATE"
	case *refusedMsg:
		return "REFUSED " + m.Why.String()
	case *stagedMsg:
		if m.Error != "" {
			return "STAGED no: " + m.Error
		}
		return "STAGED"
	default:
		return m.kind().String()
	}
}
