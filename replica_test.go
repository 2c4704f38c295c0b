package slotmesh

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// ---- clusters with replicas

func (n *ruleNode) replicate(of NodeID, keys bool) *ruleReply {
	n.w.t.Helper()
	return n.command(func(s *state, now time.Duration, id uint64) output { return s.replicate(now, id, of, keys) })
}

// nearly says to a primary that a member has nearly all of its log.
func (n *ruleNode) nearly(m incarnate) { n.nearlyAt(m, 0) }

func (n *ruleNode) nearlyAt(m incarnate, at uint64) {
	n.w.t.Helper()
	n.step(func(s *state, now time.Duration) output { return s.nearlyInSync(now, m, at) })
	n.w.deliver()
}

// caughtUp says to a primary that a member has all that it has to have.
func (n *ruleNode) caughtUp(e Epoch, m incarnate) {
	n.w.t.Helper()
	n.step(func(s *state, now time.Duration) output { return s.hasCaughtUp(now, e, m) })
	n.w.deliver()
}

// replicated is a cluster of five voters: a has all slots, b and c are its replicas
// and in sync, d and e lead shards without slots.
func (w *ruleWorld) replicated() (a, b, c, d, e *ruleNode) {
	w.t.Helper()
	ns := w.cluster(1, 5)
	a, b, c, d, e = ns[0], ns[1], ns[2], ns[3], ns[4]
	for _, x := range []*ruleNode{b, c} {
		r := x.replicate(a.core.id, false)
		w.until("replica", func() bool { return r.done && a.knows(x).Shard == a.shard() })
		require.NoError(w.t, errOf(r))
		w.run(ruleNT / 5)
		x.step(func(s *state, now time.Duration) output { return s.storeIs(now, x.core.self.Store, true) })
		w.deliver()
		a.nearly(x.core.member())
		a.caughtUp(a.epoch(), x.core.member())
	}
	require.Equal(w.t, "abc", a.inSync())
	w.run(2 * ruleNT)
	for _, x := range ns {
		x.told, x.events = nil, nil
	}
	return a, b, c, d, e
}

// A replica is ready while it could take its primary's place without a loss, and says
// what is missing. What its primary has told it and was lost it asks for.
func TestAReplicaIsReadyWhileItIsInSync(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name   string
		edit   func(a, b *state)
		want   string
		mended bool // by itself
	}{
		{"in sync", func(_, b *state) {}, "", true},
		{"without a whole copy", func(_, b *state) { b.holdsCopy = false }, "this node has not copied its primary's data yet", false},
		{"a primary that does not lead", func(_, b *state) { b.primary = b.now - ruleNT }, "this node's shard has no primary that leads", true},
		{"a word of the primary that was lost", func(_, b *state) { b.shardRecord = nil }, "this node is not in sync with its primary yet", true},
		{"a word of the primary before", func(_, b *state) {
			r := *b.shardRecord
			r.Epoch.Number--
			b.shardRecord = &r
		}, "this node is not in sync with its primary yet", true},
		{"another store", func(_, b *state) { b.self.Store++ }, "this node is not in sync with its primary yet", false},
		{"left out", func(a, b *state) {
			a.lead.n, a.lead.inSync = a.lead.n+1, a.lead.inSync[:1]
			b.shardRecord = &record{Shard: b.self.Shard, Epoch: a.lead.epoch, N: a.lead.n, InSync: a.lead.inSync}
		}, "this node is not in sync with its primary yet", false},
	} {
		w := newRules(t)
		a, b, _, _, _ := w.replicated()
		row.edit(a.core, b.core)
		require.Equal(t, row.want, b.core.unready(), row.name)
		w.run(ruleNT / 2)
		require.Equal(t, row.mended, b.core.unready() == "", "%s: %s", row.name, b.core.unready())
		asked := w.count(func() { w.run(ruleNT) }, func(m ruleMail) bool {
			q, ok := m.msg.(*inSyncMsg)
			return ok && m.from == b && q.Record.Epoch == (Epoch{})
		})
		require.Zero(t, asked, "%s: it knows", row.name)
	}
}

func errOf(r *ruleReply) error {
	if r.err == nil {
		return nil
	}
	return r.err
}

func (w *ruleWorld) members(ms []incarnate) string {
	s := ""
	for _, m := range ms {
		s += w.letter(m.Node)
	}
	return s
}

// inSync is the letters of the last accepted in-sync set of a primary.
func (n *ruleNode) inSync() string { return n.w.members(n.core.lead.inSync) }

// waits is the letters of whom a primary waits for.
func (n *ruleNode) waits() string { return n.w.members(n.core.role.waits) }

// proposes is the letters of the in-sync set that a primary proposes, or "".
func (n *ruleNode) proposes() string {
	if n.core.lead.recording == nil {
		return ""
	}
	return n.w.members(n.core.lead.recording.msg.Record.InSync)
}

// ---- R6: who is in sync

// The set that is waited for grows before the record and shrinks after it.
func TestWaitsGrowBeforeTheRecordAndShrinkAfterIt(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	a, b, c, d, _ := w.replicated()
	r := d.replicate(a.core.id, false)
	w.until("replica", func() bool { return r.done })
	m := d.core.member()
	w.run(ruleNT / 5)
	state := func() []string { return []string{a.waits(), a.proposes(), a.inSync()} }
	require.Equal(t, []string{"bc", "", "abc"}, state())

	w.hold = func(x ruleMail) bool { return x.from == a && x.msg.kind() == msgRecord }
	a.nearly(m)
	require.Equal(t, []string{"bcd", "", "abc"}, state(), "waited for, and not proposed: it lacks what was acknowledged without it")
	a.caughtUp(a.epoch(), m)
	require.Equal(t, []string{"bcd", "abcd", "abc"}, state(), "proposed")
	w.releaseHeld()
	require.Equal(t, []string{"bcd", "", "abcd"}, state(), "accepted")
	require.Equal(t, a.core.lead.inSync, b.voted(a).record.InSync)

	w.hold = func(x ruleMail) bool { return x.from == a && x.msg.kind() == msgRecord }
	c.cut = true
	w.run(ruleNT * 6 / 10)
	require.Equal(t, []string{"bcd", "abd", "abcd"}, state(), "lost, and waited for until a majority knows")
	w.releaseHeld()
	require.Equal(t, []string{"bd", "", "abd"}, state())
}

// One proposal at a time.
func TestOneInSyncSetIsProposedAtATime(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	a, b, _, d, e := w.replicated()
	for _, x := range []*ruleNode{d, e} {
		r := x.replicate(a.core.id, false)
		w.until("replica", func() bool { return r.done })
	}
	w.run(ruleNT / 5)
	w.hold = func(x ruleMail) bool { return x.from == a && x.msg.kind() == msgRecord }
	n := a.core.lead.n
	for _, x := range []*ruleNode{d, e} {
		a.nearly(x.core.member())
		a.caughtUp(a.epoch(), x.core.member())
	}
	require.Equal(t, "abcd", a.proposes())
	require.Equal(t, "bcde", a.waits(), "the second is waited for already")
	w.releaseHeld()
	w.run(ruleNT / 10)
	require.Equal(t, "abcde", a.inSync())
	require.Equal(t, n+2, a.core.lead.n)
	require.Equal(t, n+2, b.voted(a).record.N)
}

// A member is proposed once it has caught up and was heard within NodeTimeout/4,
// by the open primary.
func TestWhoIsProposed(t *testing.T) {
	t.Parallel()
	const nt = ruleNT
	for _, row := range []struct {
		name   string
		edit   func(a, d *ruleNode, m *incarnate, e *Epoch)
		nearly bool // it is waited for
		want   string
	}{
		{"caught up", func(a, d *ruleNode, m *incarnate, e *Epoch) {}, true, "abcd"},
		{"heard not quite NodeTimeout/4 ago", func(a, d *ruleNode, m *incarnate, e *Epoch) { a.knows(d).heardAt = a.w.now - nt/4 + 1 }, true, "abcd"},
		{"heard NodeTimeout/4 ago", func(a, d *ruleNode, m *incarnate, e *Epoch) { a.knows(d).heardAt = a.w.now - nt/4 }, true, ""},
		{"caught up under another epoch", func(a, d *ruleNode, m *incarnate, e *Epoch) { e.Number-- }, true, ""},
		{"caught up in another incarnation", func(a, d *ruleNode, m *incarnate, e *Epoch) { m.Incarnation++ }, true, ""},
		{"not waited for", func(a, d *ruleNode, m *incarnate, e *Epoch) {}, false, ""},
		{"this node leads no more", func(a, d *ruleNode, m *incarnate, e *Epoch) { a.core.lead.void = true }, true, ""},
	} {
		w := newRules(t)
		a, _, _, d, _ := w.replicated()
		r := d.replicate(a.core.id, false)
		w.until("replica", func() bool { return r.done })
		w.run(nt / 5)
		w.hold = kindsOf(msgRecord)
		m, e := d.core.member(), a.epoch()
		if row.nearly {
			a.nearly(m)
			require.Equal(t, "bcd", a.waits(), row.name)
		}
		row.edit(a, d, &m, &e)
		a.caughtUp(e, m)
		if got := a.proposes(); got != row.want {
			t.Errorf("%s: proposes %q, want %q", row.name, got, row.want)
		}
	}
}

// Who is waited for before it is proposed: a member of the shard that is heard.
func TestWhoBeginsToBeWaitedFor(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name string
		edit func(a, d *ruleNode, m *incarnate)
		want string
	}{
		{"a member that is heard", func(a, d *ruleNode, m *incarnate) {}, "bcd"},
		{"not heard for NodeTimeout/4", func(a, d *ruleNode, m *incarnate) { a.knows(d).heardAt = a.w.now - ruleNT/4 }, "bc"},
		{"another incarnation than it says itself", func(a, d *ruleNode, m *incarnate) { m.Incarnation++ }, "bc"},
		{"of another shard", func(a, d *ruleNode, m *incarnate) { *m = a.w.nodes[4].core.member() }, "bc"},
		{"unknown", func(a, d *ruleNode, m *incarnate) { m.Node = NodeID{0xee} }, "bc"},
		{"the primary is not open", func(a, d *ruleNode, m *incarnate) { a.core.lead.opened = false }, "bc"},
	} {
		w := newRules(t)
		a, _, _, d, _ := w.replicated()
		r := d.replicate(a.core.id, false)
		w.until("replica", func() bool { return r.done })
		w.run(ruleNT / 5)
		m := d.core.member()
		row.edit(a, d, &m)
		a.nearly(m)
		if got := a.waits(); got != row.want {
			t.Errorf("%s: waits for %q, want %q", row.name, got, row.want)
		}
	}
}

// Lost is who was not heard for NodeTimeout/2, or is another than it was.
func TestWhichMemberIsLost(t *testing.T) {
	t.Parallel()
	const nt = ruleNT
	for _, row := range []struct {
		name string
		edit func(s *state, p *peer)
		lost bool
	}{
		{"heard", func(s *state, p *peer) {}, false},
		{"heard not quite NodeTimeout/2 ago", func(s *state, p *peer) { p.heardAt = s.now - nt/2 + 1 }, false},
		{"heard NodeTimeout/2 ago", func(s *state, p *peer) { p.heardAt = s.now - nt/2 }, true},
		{"another incarnation of its store", func(s *state, p *peer) { p.Store++ }, true},
		{"of another shard", func(s *state, p *peer) { s.setPeer(p, pushNothing, func(e *peerEntry) { e.Shard = ShardID{9} }) }, true},
		{"leaving: a member yet", func(s *state, p *peer) { s.setPeer(p, pushNothing, func(e *peerEntry) { e.State = leaving }) }, false},
		{"forgotten", func(s *state, p *peer) { s.setPeer(p, pushNothing, func(e *peerEntry) { e.State = forgotten }) }, true},
		{"not known any more", func(s *state, p *peer) { s.peers.remove(p) }, true},
	} {
		w := newRules(t)
		a, b, _, _, _ := w.replicated()
		w.hold = kindsOf(msgRecord)
		a.core.begin(w.now)
		a.knows(b).heardAt = w.now
		row.edit(a.core, a.knows(b))
		require.Equal(t, row.lost, a.core.memberLost(b.core.member()), row.name)
		a.step(func(s *state, now time.Duration) output { s.begin(now); s.inSyncTick(s.lead); return s.end() })
		want := map[bool]string{true: "ac", false: ""}[row.lost]
		require.Equal(t, want, a.proposes(), row.name)
	}
}

// has says how far the members are that a primary waits for, in a log that ends at
// end: what its driver says before each tick.
func (n *ruleNode) has(end uint64, at map[*ruleNode]uint64) {
	p := logProgress{epoch: n.epoch(), end: end}
	for _, m := range n.core.role.waits {
		for x, offset := range at {
			if x.core.member() == m {
				p.members = append(p.members, memberAt{m, offset})
			}
		}
	}
	n.core.logHas = p
}

// Who is heard has to get on with the log, too: it is lost where it lacks entries
// and acknowledges none for NodeTimeout/2.
func TestWhoGetsNoFurtherWithTheLog(t *testing.T) {
	t.Parallel()
	const nt = ruleNT
	still := func(x *replicas, d time.Duration) {
		x.a.has(9, map[*ruleNode]uint64{x.b: 8, x.c: 9})
		x.w.run(nt / 10) // it is seen that it lacks an entry
		x.w.run(d)
	}
	for _, row := range []struct {
		name string
		run  func(x *replicas)
		want string // proposed
	}{
		{"it has everything", func(x *replicas) {
			x.a.has(9, map[*ruleNode]uint64{x.b: 9, x.c: 9})
			x.w.run(2 * nt)
		}, ""},
		{"the log is empty", func(x *replicas) {
			x.a.has(0, map[*ruleNode]uint64{x.b: 0, x.c: 0})
			x.w.run(2 * nt)
		}, ""},
		{"it has lacked an entry for less", func(x *replicas) { still(x, nt*35/100) }, ""},
		{"it has lacked one for so long", func(x *replicas) { still(x, nt/2) }, "ac"},
		{"it lacks more with time, and has acknowledged nothing more", func(x *replicas) {
			for i := range uint64(7) {
				x.a.has(9+i, map[*ruleNode]uint64{x.b: 8, x.c: 9 + i})
				x.w.run(nt / 10)
			}
		}, "ac"},
		{"it gets further in time, and lacks some all the time", func(x *replicas) {
			for i := range uint64(20) {
				x.a.has(30+i, map[*ruleNode]uint64{x.b: 29 + i, x.c: 30 + i})
				x.w.run(nt / 4)
			}
		}, ""},
		{"it gets further, and needs longer than that for what there is", func(x *replicas) {
			for i := range uint64(6) {
				x.a.has(30+i, map[*ruleNode]uint64{x.b: 8 + i, x.c: 30 + i})
				x.w.run(nt / 10)
			}
		}, "ac"},
		{"what it lacks now is younger than that", func(x *replicas) {
			for i := range uint64(7) {
				x.a.has(30+10*i, map[*ruleNode]uint64{x.b: 10 * i, x.c: 30 + 10*i})
				x.w.run(nt / 10)
			}
		}, ""},
		{"it has had everything meanwhile", func(x *replicas) {
			still(x, nt*3/10)
			x.a.has(9, map[*ruleNode]uint64{x.b: 9, x.c: 9})
			x.w.run(nt / 10)
			x.a.has(10, map[*ruleNode]uint64{x.b: 9, x.c: 10})
			x.w.run(nt * 4 / 10)
		}, ""},
		{"it has said nothing in this epoch", func(x *replicas) {
			x.a.has(9, map[*ruleNode]uint64{x.b: 0, x.c: 9})
			x.w.run(nt * 6 / 10)
		}, "ac"},
		{"all have", func(x *replicas) {
			x.a.has(9, map[*ruleNode]uint64{x.b: 8, x.c: 7})
			x.w.run(nt * 6 / 10)
		}, "a"},
		{"that was in another epoch", func(x *replicas) {
			x.a.has(9, map[*ruleNode]uint64{x.b: 8, x.c: 9})
			x.a.core.logHas.epoch.Number--
			x.w.run(2 * nt)
		}, ""},
		{"the primary itself has not run", func(x *replicas) {
			still(x, nt*3/10)
			x.a.asleep = true
			x.w.run(nt * 3 / 10)
			x.a.asleep = false
			x.w.run(nt / 20)
		}, ""},
	} {
		x := newReplicas(t)
		x.w.hold = kindsOf(msgRecord)
		row.run(x)
		if got := x.a.proposes(); got != row.want {
			t.Errorf("%s: proposes %q, want %q", row.name, got, row.want)
		}
		require.Equal(t, "bc", x.a.waits(), "%s: waited for until a majority has accepted the smaller set", row.name)
	}
}

// Who was to come in and gets no further is not waited for.
func TestWhoIsToComeInAndGetsNoFurther(t *testing.T) {
	t.Parallel()
	x := newReplicas(t)
	r := x.d.replicate(x.a.core.id, false)
	x.w.until("replica", func() bool { return r.done })
	x.w.run(ruleNT / 5)
	x.a.nearlyAt(x.d.core.member(), 5)
	require.Equal(t, "bcd", x.a.waits())
	x.a.has(9, map[*ruleNode]uint64{x.b: 9, x.c: 9, x.d: 5})
	x.w.run(ruleNT * 4 / 10)
	require.Equal(t, "bcd", x.a.waits())
	x.w.run(ruleNT * 2 / 10)
	require.Equal(t, []string{"bc", "", "abc"}, []string{x.a.waits(), x.a.proposes(), x.a.inSync()})
}

// Who has stood still is waited for again once it has what it lacked then.
func TestWhoHasStoodStillComesBack(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name string
		edit func(x *replicas, m *incarnate, at *uint64)
		want string
	}{
		{"it has got no further", func(x *replicas, m *incarnate, at *uint64) { *at = 8 }, "c"},
		{"it lacks one entry yet", func(x *replicas, m *incarnate, at *uint64) { *at = 19 }, "c"},
		{"it has what it lacked", func(x *replicas, m *incarnate, at *uint64) {}, "bc"},
		{"it is another member", func(x *replicas, m *incarnate, at *uint64) {
			x.b.step(func(s *state, now time.Duration) output { return s.storeIs(now, s.newStore(), true) })
			x.w.run(ruleNT / 5)
			*m, *at = x.b.core.member(), 0
		}, "bc"},
		{"it has not been heard for a while since", func(x *replicas, m *incarnate, at *uint64) {
			x.b.cut = true
			x.w.run(ruleNT)
			x.b.cut = false
			x.w.run(ruleNT / 5)
			*at = 19
		}, "c"},
	} {
		x := newReplicas(t)
		x.a.has(9, map[*ruleNode]uint64{x.b: 8, x.c: 9})
		x.w.run(ruleNT * 4 / 10)
		x.a.has(20, map[*ruleNode]uint64{x.b: 8, x.c: 20})
		x.w.run(ruleNT * 2 / 10)
		require.Equal(t, []string{"c", "", "ac"}, []string{x.a.waits(), x.a.proposes(), x.a.inSync()}, row.name)
		x.a.has(25, map[*ruleNode]uint64{x.c: 25})
		x.w.run(ruleNT / 5)
		m, at := x.b.core.member(), uint64(20)
		row.edit(x, &m, &at)
		x.w.until("it is heard", func() bool { return x.a.core.heardLately(m.Node) })
		x.a.nearlyAt(m, at)
		if got := x.a.waits(); got != row.want {
			t.Errorf("%s: waits for %q, want %q", row.name, got, row.want)
		}
	}
}

// So it is with one that was lost because it was not heard, and lacked some then: that it
// is heard again says nothing of the connection on which it gets the log.
func TestWhoWasNotHeardComesBack(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name       string
		lacked, at uint64 // what it had when it was cut off, and when it is back
		want       string
	}{
		{"it has got no further", 8, 8, "c"},
		{"it lacks an entry yet", 8, 11, "c"},
		{"it has what it lacked", 8, 12, "bc"},
		{"it lacked nothing", 9, 9, "bc"},
	} {
		x := newReplicas(t)
		x.a.has(9, map[*ruleNode]uint64{x.b: row.lacked, x.c: 9})
		x.w.run(ruleNT / 10)
		x.b.cut = true
		x.w.until("it is not waited for", func() bool {
			x.a.has(12, map[*ruleNode]uint64{x.b: row.lacked, x.c: 12})
			if row.lacked == 9 {
				x.a.has(9, map[*ruleNode]uint64{x.b: 9, x.c: 9})
			}
			return x.a.waits() == "c"
		})
		x.a.has(12, map[*ruleNode]uint64{x.c: 12})
		x.w.run(ruleNT / 10)
		x.b.cut = false
		x.w.until("it is heard", func() bool { return x.a.core.heardLately(x.b.core.id) })
		x.a.nearlyAt(x.b.core.member(), row.at)
		if got := x.a.waits(); got != row.want {
			t.Errorf("%s: waits for %q, want %q", row.name, got, row.want)
		}
	}
}

// A member that has lost its store is another member: the old one goes, the new
// one comes in when it has caught up.
func TestMemberWithANewStoreIsAnotherOne(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	a, b, _, _, _ := w.replicated()
	old := b.core.member()
	w.hold = func(x ruleMail) bool { return x.from == a && x.msg.kind() == msgRecord }
	b.step(func(s *state, now time.Duration) output { return s.storeIs(now, s.newStore(), false) })
	w.run(ruleNT / 5)
	is := b.core.member()
	require.NotEqual(t, old, is)
	require.Equal(t, "ac", a.proposes())
	require.Contains(t, a.core.role.waits, old, "until a majority has accepted the set without it")
	a.nearly(is)
	require.Equal(t, "bbc", a.waits())
	a.caughtUp(a.epoch(), is)
	w.releaseHeld()
	w.run(ruleNT / 10)
	require.Equal(t, "abc", a.inSync())
	require.Contains(t, a.core.lead.inSync, is)
	require.NotContains(t, a.core.role.waits, old)
}

// The winner opens with the members of the newest record that it hears, without
// the primary that it replaces, unless that one has consented.
func TestWithWhomAWinnerOpens(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name      string
		edit      func(b, c *ruleNode, rec *record)
		consented bool // the last primary
		want      string
	}{
		{"who was in sync and is heard, without the last primary", func(b, c *ruleNode, rec *record) {}, false, "bc"},
		{"the last primary is heard", func(b, c *ruleNode, rec *record) { b.w.nodes[0].knows(b).heardAt = b.w.now }, false, "bc"},
		{"the last primary has consented", func(b, c *ruleNode, rec *record) {}, true, "bac"},
		{"it has consented, and is not heard", func(b, c *ruleNode, rec *record) { b.knows(b.w.nodes[0]).heardAt = b.w.now - ruleNT/2 }, true, "bc"},
		{"it has consented, and has another store", func(b, c *ruleNode, rec *record) { b.knows(b.w.nodes[0]).Store++ }, true, "bc"},
		{"it has consented, and led again since", func(b, c *ruleNode, rec *record) { rec.Epoch.Number++ }, true, "bc"},
		{"one is not heard", func(b, c *ruleNode, rec *record) { b.knows(c).heardAt = b.w.now - ruleNT/2 }, false, "b"},
		{"one has another store", func(b, c *ruleNode, rec *record) { b.knows(c).Store++ }, false, "b"},
		{"the winner was not in sync itself: nobody is", func(b, c *ruleNode, rec *record) { b.core.self.Store++ }, true, "b"},
		{"the record was the winner's own", func(b, c *ruleNode, rec *record) { rec.Epoch.Node = b.core.id }, false, "bac"},
	} {
		w := newRules(t)
		a, b, c, _, _ := w.replicated()
		rec := *a.voted(a).record
		var consent Epoch
		if row.consented {
			consent = rec.Epoch
		}
		b.core.begin(w.now)
		b.knows(c).heardAt, b.knows(a).heardAt = w.now, w.now
		row.edit(b, c, &rec)
		if got := w.members(b.core.firstInSync(&rec, consent)); got != row.want {
			t.Errorf("%s: %s, want %s", row.name, got, row.want)
		}
	}
	w := newRules(t)
	_, b, _, _, _ := w.replicated()
	require.Equal(t, []incarnate{b.core.member()}, b.core.firstInSync(nil, Epoch{}), "no record")
}

// A primary that dies is replaced by a member that was in sync, which shows all
// that it has opened with.
func TestReplicaTakesOverFromADeadPrimary(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	a, b, c, d, _ := w.replicated()
	epoch := a.epoch()
	died := w.now
	a.crash()
	w.until("another leads", func() bool {
		return b.core.lead != nil && b.core.lead.opened || c.core.lead != nil && c.core.lead.opened
	})
	require.Less(t, w.now-died, ruleNT*13/10)
	require.NotNil(t, b.core.lead, "of two that have as much the smaller id")
	require.Equal(t, "bc", b.inSync())
	require.Greater(t, b.epoch().Number, epoch.Number)
	w.until("it serves", func() bool { return b.serves(5) })
	require.Len(t, b.eventsOf(EventPrimary), 1)
	require.Equal(t, a.core.id, b.eventsOf(EventPrimary)[0].From)
	require.Empty(t, b.eventsOf(EventUnclean))
	require.Equal(t, "b", d.owns(5))

	a.restart()
	w.run(2 * ruleNT)
	require.Equal(t, b.core.id, a.core.role.primary, "it follows who has replaced it")
	require.Nil(t, a.core.lead)
}

// ---- a member's promise

// A member that has taken an entry of an epoch acknowledges nothing older, and who
// leads takes nothing.
func TestWhichEntriesAMemberTakes(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name    string
		edit    func(s *state, shard *ShardID, e *Epoch)
		takes   bool
		raises  bool
		stands  bool // before
		standsN bool // after
	}{
		{"of the epoch that it has promised", func(s *state, shard *ShardID, e *Epoch) {}, true, false, false, false},
		{"of a newer one", func(s *state, shard *ShardID, e *Epoch) { e.Number++ }, true, true, false, false},
		{"of an older one", func(s *state, shard *ShardID, e *Epoch) { e.Number-- }, false, false, false, false},
		{"of the same number of a smaller node", func(s *state, shard *ShardID, e *Epoch) { e.Node = NodeID{} }, false, false, false, false},
		{"of the same number, taken over", func(s *state, shard *ShardID, e *Epoch) { e.Unclean = true }, true, true, false, false},
		{"of another shard", func(s *state, shard *ShardID, e *Epoch) { *shard = ShardID{9} }, false, false, false, false},
		{"it leads", func(s *state, shard *ShardID, e *Epoch) { s.lead = &leadership{}; e.Number += 9 }, false, false, false, false},
		{"it stands for a newer one: a stand is no promise", func(s *state, shard *ShardID, e *Epoch) {}, true, false, true, true},
		{"it stands, and a newer epoch has been won", func(s *state, shard *ShardID, e *Epoch) { e.Number += 9 }, true, true, true, false},
	} {
		w := newRules(t)
		a, b, _, _, _ := w.replicated()
		shard, e := a.shard(), a.epoch()
		takes := func() (ok bool) {
			b.step(func(s *state, now time.Duration) output {
				var out output
				out, ok = s.takes(now, shard, e)
				return out
			})
			return ok
		}
		require.Equal(t, Epoch{}, b.core.promise, "it has taken nothing yet")
		require.True(t, takes(), row.name)
		require.Equal(t, e, b.core.promise, row.name)
		if row.stands {
			w.lose = kindsOf(msgVote)
			b.step(func(s *state, now time.Duration) output { s.begin(now); s.standFor(whySilence); return s.end() })
		}
		row.edit(b.core, &shard, &e)
		took := takes()
		want := a.epoch()
		if row.raises {
			want = e
		}
		if took != row.takes || b.core.promise != want || (b.core.stand != nil) != row.standsN {
			t.Errorf("%s: takes %v, promise %v, stands %v", row.name, took, b.core.promise, b.core.stand != nil)
		}
		if row.raises {
			b.core.lead = nil
			b.restart()
			require.Equal(t, e, b.core.promise, "%s: saved", row.name)
			require.Equal(t, e.Number, b.core.currentEpoch(), "%s: it has heard of it", row.name)
			require.Equal(t, e.Number+1, b.core.nextEpoch(shard), "%s: it wins nothing below", row.name)
		}
	}
}

// The primary shows its members the record that names them: with it they stand.
func TestMembersAreShownTheRecord(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name  string
		edit  func(x *replicas, m *inSyncMsg, from **ruleNode)
		known bool
	}{
		{"of its primary", func(x *replicas, m *inSyncMsg, from **ruleNode) {}, true},
		{"told by another", func(x *replicas, m *inSyncMsg, from **ruleNode) { *from = x.c }, false},
		{"of another node's epoch", func(x *replicas, m *inSyncMsg, from **ruleNode) { m.Record.Epoch.Node = x.c.core.id }, false},
		{"of another shard", func(x *replicas, m *inSyncMsg, from **ruleNode) { m.Record.Shard = ShardID{9} }, false},
		{"told by a node of another shard", func(x *replicas, m *inSyncMsg, from **ruleNode) {
			*from, m.Record.Epoch.Node = x.d, x.d.core.id
		}, false},
		{"of an epoch that is too high to be true", func(x *replicas, m *inSyncMsg, from **ruleNode) { m.Record.Epoch.Number += 1 << 50 }, false},
		{"older than what it knows", func(x *replicas, m *inSyncMsg, from **ruleNode) { m.Record.N = 0 }, false},
		{"it is not named in it", func(x *replicas, m *inSyncMsg, from **ruleNode) { m.Record.InSync = m.Record.InSync[:1] }, false},
		{"it is named in another incarnation", func(x *replicas, m *inSyncMsg, from **ruleNode) { m.Record.InSync[1].Incarnation++ }, false},
	} {
		x := newReplicas(t)
		r := *x.b.core.knownRecord
		r.InSync = append([]incarnate(nil), r.InSync...)
		r.N += 5
		m, from := &inSyncMsg{r}, x.a
		row.edit(x, m, &from)
		x.b.gets(from, m)
		if got := x.b.core.knownRecord.N == r.N; got != row.known {
			t.Errorf("%s: known %v, want %v", row.name, got, row.known)
		}
	}
}

// replicas is the cluster of replicated.
type replicas struct {
	w             *ruleWorld
	a, b, c, d, e *ruleNode
}

func newReplicas(t *testing.T) *replicas {
	t.Helper()
	x := &replicas{w: newRules(t)}
	x.a, x.b, x.c, x.d, x.e = x.w.replicated()
	return x
}

// A strict shard says so in its record, and its role says how many members count.
func TestStrictShardSaysSo(t *testing.T) {
	t.Parallel()
	for _, acks := range []int{0, 1} {
		x := newReplicas(t)
		x.a.core.cfg.ackReplicas = acks
		require.Equal(t, 2, x.a.core.role.peers)
		x.c.cut = true
		x.w.until("one is lost", func() bool { return x.a.inSync() == "ab" })
		require.Equal(t, 1, x.a.core.role.peers)
		require.Equal(t, acks > 0, x.b.voted(x.a).record.Strict)
	}
}

// ---- roles

// What the driver is to do with the log follows from who leads.
func TestRoleOfAMember(t *testing.T) {
	t.Parallel()
	x := newReplicas(t)
	a, b := x.a, x.b
	require.Equal(t, a.epoch(), a.core.role.lead)
	require.True(t, a.core.role.primary.IsZero())
	require.Equal(t, "bc", a.waits())
	require.Equal(t, a.core.id, b.core.role.primary)
	require.Equal(t, Epoch{}, b.core.role.lead)
	require.Empty(t, b.core.role.waits)
	require.Equal(t, a.shard(), b.core.role.shard)

	version := a.core.role.version
	x.w.run(ruleNT)
	require.Equal(t, version, a.core.role.version, "nothing has changed")
	for _, row := range []struct {
		name string
		edit func(s *state, primary *peer)
	}{
		{"its primary has gone to another shard", func(s *state, p *peer) {
			s.setPeer(p, pushNothing, func(e *peerEntry) { e.Shard = ShardID{9} })
		}},
		{"its primary is forgotten", func(s *state, p *peer) { s.setPeer(p, pushNothing, func(e *peerEntry) { e.State = forgotten }) }},
		{"it is forgotten itself", func(s *state, p *peer) {
			s.setPeer(s.self, pushNothing, func(e *peerEntry) { e.State = forgotten })
		}},
		{"it has no cluster", func(s *state, p *peer) { s.cluster = ClusterID{} }},
	} {
		x := newReplicas(t)
		was := x.b.core.role.version
		x.b.step(func(s *state, now time.Duration) output { s.begin(now); row.edit(s, x.b.knows(x.a)); return s.end() })
		require.True(t, x.b.core.role.primary.IsZero(), row.name)
		require.Equal(t, was+1, x.b.core.role.version, row.name)
	}
}

// REPLICATE is refused in Redis's words, and in Redis's order.
func TestReplicateIsRefused(t *testing.T) {
	t.Parallel()
	const notEmpty = "ERR To set a master the node must be empty and without assigned slots."
	for _, row := range []struct {
		name string
		who  string
		of   string
		keys bool
		edit func(x *replicas, who *ruleNode)
		want string
	}{
		{"forgotten", "d", "?", false, func(x *replicas, who *ruleNode) {
			who.core.begin(x.w.now)
			who.core.setPeer(who.core.self, pushNothing, func(e *peerEntry) { e.State = forgotten })
		}, "CLUSTERDOWN this node has been forgotten by its cluster"},
		{"unknown", "d", "?", false, nil, "ERR Unknown node " + NodeID{0xee}.String()},
		{"forgotten node", "d", "a", false, func(x *replicas, who *ruleNode) {
			who.core.begin(x.w.now)
			who.core.setPeer(who.knows(x.a), pushNothing, func(e *peerEntry) { e.State = forgotten })
		}, "ERR Unknown node A"},
		{"itself", "d", "d", false, nil, "ERR Can't replicate myself"},
		{"itself, with slots", "a", "a", true, nil, "ERR Can't replicate myself"},
		{"a replica", "d", "b", false, nil, "ERR I can only replicate a master, not a replica."},
		{"a replica, by a primary with slots", "a", "b", true, nil, "ERR I can only replicate a master, not a replica."},
		{"with slots", "a", "d", false, nil, notEmpty},
		{"with keys", "d", "a", true, nil, notEmpty},
		{"a replica with keys: they are its primary's", "b", "d", true, nil, "OK"},
		{"its own primary", "b", "a", true, nil, "OK"},
		{"slots are on their way", "d", "a", false, func(x *replicas, who *ruleNode) { who.core.stages[7] = &heldStage{} },
			"TRYAGAIN slots are on their way to this node, or it is leaving"},
		{"leaving", "d", "a", false, func(x *replicas, who *ruleNode) { who.core.leave = &departure{until: x.w.now + ruleNT} },
			"TRYAGAIN slots are on their way to this node, or it is leaving"},
		{"an empty node", "d", "a", false, nil, "OK"},
	} {
		x := newReplicas(t)
		who := x.w.byName(row.who)
		of := NodeID{0xee}
		if row.of != "?" {
			of = x.w.byName(row.of).core.id
		}
		if row.edit != nil {
			row.edit(x, who)
		}
		r := who.replicate(of, row.keys)
		x.w.deliver()
		want := strings.ReplaceAll(row.want, "node A", "node "+x.a.core.id.String())
		if r.String() != want {
			t.Errorf("%s: %s, want %s", row.name, r, want)
		}
	}
}

// What a node holds is not that of the shard that it goes to: it is another member
// there than it ever was, and begins anew.
func TestWhoBecomesAReplicaBeginsAnew(t *testing.T) {
	t.Parallel()
	x := newReplicas(t)
	d := x.d
	was := d.core.member()
	old := d.shard()
	d.core.knownRecord = &record{Shard: old, Epoch: d.epoch(), InSync: []incarnate{was}}
	d.core.shardRecord = d.core.knownRecord
	require.NotNil(t, d.core.lead)
	require.Equal(t, "OK", x.w.settle(d.replicate(x.a.core.id, false)))
	s := d.core
	require.Equal(t, x.a.shard(), s.self.Shard)
	require.NotEqual(t, was.Incarnation, s.self.Store)
	require.Nil(t, s.lead)
	require.False(t, s.holdsCopy)
	require.Equal(t, Epoch{}, s.promise)
	require.Equal(t, NumSlots, s.followed.Len())
	require.False(t, s.knownRecord != nil && s.knownRecord.Shard == old)
	require.Equal(t, []Event{{Kind: EventReplica, Node: s.id, Shard: x.a.shard(), From: x.a.core.id}}, d.eventsOf(EventReplica))
	require.Len(t, d.eventsOf(EventDeposed), 1)
	require.Equal(t, s.self.Store, x.e.knows(d).Store, "all are told")
	require.NotEmpty(t, toldOf[identityTell](d), "handshakes name another shard")
	due, _ := s.standDue()
	require.False(t, due)
	d.restart()
	require.Equal(t, x.a.shard(), d.core.self.Shard, "saved")
}

// A store that is another one now is another member.
func TestStoreThatIsAnotherOne(t *testing.T) {
	t.Parallel()
	for _, whole := range []bool{true, false} {
		x := newReplicas(t)
		require.NotNil(t, x.b.core.knownRecord)
		x.b.step(func(s *state, now time.Duration) output { return s.storeIs(now, 4711, whole) })
		x.w.deliver()
		require.Equal(t, whole, x.b.core.holdsCopy)
		require.Equal(t, uint64(4711), x.b.core.self.Store)
		require.Nil(t, x.b.core.knownRecord, "no record names it")
		require.Equal(t, uint64(4711), x.a.knows(x.b).Store)
	}
}

// A replica of a shard without slots goes where its primary has gone; if that is
// nowhere, it leads a shard of its own. Where there are slots, it stands.
func TestReplicaFollowsAPrimaryThatHasGone(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name string
		edit func(s *state, x *replicas, primary *peer)
		want string // whose shard; "own": a new one of its own
	}{
		{"it is there", func(s *state, x *replicas, p *peer) {}, "d"},
		{"it has gone to another", func(s *state, x *replicas, p *peer) {
			s.setPeer(p, pushNothing, func(e *peerEntry) { e.Shard = x.a.shard() })
		}, "a"},
		{"it is forgotten", func(s *state, x *replicas, p *peer) {
			s.setPeer(p, pushNothing, func(e *peerEntry) { e.State = forgotten })
		}, "own"},
		{"it has gone to a shard that nobody knows", func(s *state, x *replicas, p *peer) {
			s.setPeer(p, pushNothing, func(e *peerEntry) { e.Shard = ShardID{0xee} })
		}, "own"},
		{"it is forgotten, and there are slots", func(s *state, x *replicas, p *peer) {
			s.setPeer(p, pushNothing, func(e *peerEntry) { e.State = forgotten })
			s.setSlot(5, slotEntry{p.Shard, 9}, pushNothing)
		}, "d"},
	} {
		x := newReplicas(t)
		require.Equal(t, "OK", x.w.settle(x.e.replicate(x.d.core.id, false)))
		was := x.e.core.self.Store
		d := x.d.shard()
		x.e.step(func(s *state, now time.Duration) output {
			s.begin(now)
			row.edit(s, x, x.e.knows(x.d))
			s.followTheGone()
			return s.end()
		})
		got := "own"
		switch x.e.shard() {
		case x.a.shard():
			got = "a"
		case d:
			got = "d"
		}
		require.Equal(t, row.want, got, row.name)
		require.Equal(t, row.want != "d", x.e.core.self.Store != was, "%s: another shard, another member", row.name)
		if row.want == "own" {
			require.Equal(t, x.e.core.id, x.e.core.table.primary(x.e.shard()), row.name)
		}
	}
}

// It does so while it stands, too, which it would go on with for ever: of the record's
// members nobody is left, and the shard is strict.
func TestReplicaFollowsAPrimaryThatHasGoneWhileItStands(t *testing.T) {
	t.Parallel()
	x := newReplicas(t)
	require.Equal(t, "OK", x.w.settle(x.e.replicate(x.d.core.id, false)))
	x.e.step(func(s *state, now time.Duration) output {
		s.begin(now)
		s.holdsCopy = true
		s.standFor(whySilence)
		s.setPeer(x.e.knows(x.d), pushNothing, func(e *peerEntry) { e.Shard = x.a.shard() })
		s.nextReplica = 0
		s.replicaTick()
		return s.end()
	})
	require.Equal(t, x.a.shard(), x.e.shard())
	require.Nil(t, x.e.core.stand)
}

// ---- who replicates whom

// shaped is a cluster of n nodes, of which the first prims own slots, as one of
// them sees it: each word of shape says which node is of whose shard.
func shaped(t *testing.T, prims, n int, self, shape string, edit func(s *state)) *ruleNode {
	t.Helper()
	w := newRules(t)
	ns := w.cluster(prims, n)
	x := w.byName(self)
	x.step(func(s *state, now time.Duration) output {
		s.begin(now)
		for _, word := range strings.Fields(shape) {
			p, shard := x.knows(w.byName(word[:1])), ns[word[1]-'A'].shard()
			if p == s.self {
				s.lead, s.stand = nil, nil
			}
			s.setPeer(p, pushNothing, func(e *peerEntry) { e.Shard = shard })
		}
		if edit != nil {
			edit(s)
		}
		return output{}
	})
	return x
}

// of is the letter of the primary of this node's shard, in capitals.
func (n *ruleNode) of() string { return strings.ToUpper(n.w.letter(n.core.table.primary(n.shard()))) }

// A primary that has lost its last replica gets one of those who have most of
// them: of these the one of the smallest id.
// inSyncOf is a record that names some of the nodes that this one knows.
func inSyncOf(s *state, peers ...int) *record {
	r := &record{Shard: s.self.Shard}
	for _, i := range peers {
		p := s.peers.ordered[i]
		r.InSync = append(r.InSync, incarnate{p.ID, p.Store})
	}
	return r
}

func TestReplicaGoesToAPrimaryThatHasLostItsLast(t *testing.T) {
	t.Parallel()
	lost := func(s *state) { hasLost(s, 2, 8) }
	for _, row := range []struct {
		name  string
		self  string
		shape string
		edit  func(s *state)
		want  string
	}{
		{"the smaller of two", "d", "dA eA fB", lost, "C"},
		{"the larger of two stays", "e", "dA eA fB", lost, "A"},
		{"one stays at its primary", "d", "dA eB", lost, "A"},
		{"of two shards that have as many, the smallest of all", "d", "dA eA fB gB", lost, "C"},
		{"of two shards that have as many, another's is smaller", "f", "dA eA fB gB", lost, "B"},
		{"another shard has more", "d", "dA eA fB gB hB", lost, "A"},
		{"its shard has more", "f", "dA eA fB gB hB", lost, "C"},
		{"it has one yet", "d", "dA eA fB gC", lost, "A"},
		{"it never had any", "d", "dA eA fB", nil, "A"},
		{"its one is silent", "d", "dA eA fB gC", func(s *state) { lost(s); silence(s, 6) }, "C"},
		{"one of the two is silent: the other stays", "d", "dA eA fB", func(s *state) { lost(s); silence(s, 4) }, "A"},
		{"the primary is silent", "d", "dA eA fB", func(s *state) { lost(s); silence(s, 2) }, "A"},
		{"the primary leaves", "d", "dA eA fB", func(s *state) {
			lost(s)
			s.setPeer(s.peers.ordered[2], pushNothing, func(e *peerEntry) { e.State = leaving })
		}, "A"},
		{"it is on the host of that primary", "d", "dA eA fB", func(s *state) { lost(s); s.self.Host = s.peers.ordered[2].Host }, "A"},
		{"that has no slots", "d", "dA eA fB", func(s *state) { hasLost(s, 7, 8) }, "A"},
		{"the one that it has lost was forgotten", "d", "dA eA fB", func(s *state) {
			lost(s)
			s.setPeer(s.peers.ordered[8], pushNothing, func(e *peerEntry) { e.State = forgotten })
		}, "A"},
		{"the first of two", "d", "dA eA", func(s *state) { lost(s); hasLost(s, 1, 9) }, "B"},
		{"the other of the two has just come", "d", "dA eA fB", func(s *state) { lost(s); s.shardRecord = inSyncOf(s, 0, 3) }, "A"},
		{"the other of the two has another store", "d", "dA eA fB", func(s *state) {
			lost(s)
			s.shardRecord = inSyncOf(s, 0, 3, 4)
			s.shardRecord.InSync[2].Incarnation++
		}, "A"},
		{"it has just come itself", "d", "dA eA fB", func(s *state) { lost(s); s.shardRecord = inSyncOf(s, 0, 4) }, "C"},
	} {
		x := shaped(t, 3, 10, row.self, row.shape, row.edit)
		x.step(func(s *state, now time.Duration) output {
			if s.shardRecord == nil || s.shardRecord.Shard != s.self.Shard {
				s.shardRecord = inSyncOf(s, 0, 1, 2, 3, 4, 5, 6, 7)
			}
			s.begin(now)
			s.migrateReplica(s.liveReplicas())
			return s.end()
		})
		if got := x.of(); got != row.want {
			t.Errorf("%s: replica of %s, want %s", row.name, got, row.want)
		}
	}
}

// primaryShard is the shard that the i-th node leads.
func primaryShard(s *state, i int) ShardID {
	for id, e := range s.table.shards {
		if e.Node == s.peers.ordered[i].ID {
			return id
		}
	}
	return ShardID{}
}

// hasLost makes a node a replica of another, and silent.
func hasLost(s *state, primary, replica int) {
	shard := primaryShard(s, primary)
	s.setPeer(s.peers.ordered[replica], pushNothing, func(e *peerEntry) { e.Shard = shard })
	silence(s, replica)
}

// silence makes the i-th node silent.
func silence(s *state, i int) {
	p := s.peers.ordered[i]
	p.heardAt, p.firstSeen = s.now-9*ruleNT, s.now-9*ruleNT
}

// Nodes to spare back up who lacks replicas, each another: whoever lacks most
// first, on another host if there is one.
func TestWhomASpareNodeBacksUp(t *testing.T) {
	t.Parallel()
	wants := func(n int) func(s *state) { return func(s *state) { s.cfg.form.Replicas = uint16(n) } }
	one, two := wants(1), wants(2)
	host := func(s *state, node, like int) {
		p := s.peers.ordered[node]
		s.setPeer(p, pushNothing, func(e *peerEntry) { e.Host = s.peers.ordered[like].Host })
	}
	for _, row := range []struct {
		name  string
		self  string
		shape string
		edit  func(s *state)
		want  string
	}{
		{"the first spare", "c", "", one, "A"},
		{"the second takes the other", "d", "", one, "B"},
		{"the third is not needed", "e", "", one, "E"},
		{"two each: the first", "c", "", two, "A"},
		{"two each: the second", "d", "", two, "B"},
		{"two each: the third", "e", "", two, "A"},
		{"two each: the fourth", "f", "", two, "B"},
		{"one has a replica: the other lacks more", "d", "cA", two, "B"},
		{"one has all that it wants", "d", "cA", one, "B"},
		{"both have", "e", "cA dB", one, "E"},
		{"a replica that is silent does not count", "d", "cA", func(s *state) { one(s); silence(s, 2) }, "A"},
		{"a spare node that is silent is passed over", "d", "", func(s *state) { one(s); silence(s, 2) }, "A"},
		{"a primary that is silent is not backed up", "c", "", func(s *state) { one(s); silence(s, 0) }, "B"},
		{"another host if there is one", "c", "", func(s *state) { one(s); host(s, 2, 0) }, "B"},
		{"the next one takes who is left", "d", "", func(s *state) { one(s); host(s, 2, 0) }, "A"},
		{"the same host rather than none", "c", "dB", func(s *state) { one(s); host(s, 2, 0) }, "A"},
		{"who lacks more goes before the host", "c", "dB", func(s *state) { two(s); host(s, 2, 0) }, "A"},
	} {
		x := shaped(t, 2, 6, row.self, row.shape, row.edit)
		x.step(func(s *state, now time.Duration) output {
			s.begin(now)
			s.backUp()
			return s.end()
		})
		if got := x.of(); got != row.want {
			t.Errorf("%s: %s, want %s", row.name, got, row.want)
		}
	}
}

// A node is to spare if its deployment wants replicas and it has nothing of its
// own; it looks for work twice in a NodeTimeout, while all is well.
func TestWhenANodeIsToSpare(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name string
		edit func(s *state)
		want string
	}{
		{"nothing of its own", func(s *state) {}, "A"},
		{"no replicas are wanted", func(s *state) { s.cfg.form.Replicas = 0 }, "C"},
		{"it holds keys", func(s *state) { s.holdsKeys = true }, "C"},
		{"slots are on their way", func(s *state) { s.stages[7] = &heldStage{} }, "C"},
		{"slots are nobody's", func(s *state) { s.setSlot(5, slotEntry{ShardID{}, 9}, pushNothing) }, "C"},
		{"it has slots", func(s *state) { s.setSlot(5, slotEntry{s.self.Shard, 9}, pushNothing) }, "C"},
		{"it leaves", func(s *state) { s.leave = &departure{until: s.now + ruleNT} }, "C"},
		{"it stands", func(s *state) { s.stand = &candidacy{} }, "C"},
		{"it has not seen yet what the others know", func(s *state) { s.synced = false }, "C"},
		{"it has looked a moment ago", func(s *state) { s.nextReplica = s.now + 1 }, "C"},
		{"a primary has failed", func(s *state) {
			silence(s, 1)
			for _, p := range s.peers.ordered {
				p.silent = silentEntry{Voter: p.ID, Counter: 1, Nodes: []NodeID{s.peers.ordered[1].ID}}
			}
		}, "C"},
	} {
		x := shaped(t, 2, 5, "c", "", func(s *state) {
			s.cfg.form.Replicas, s.nextReplica = 1, 0
			row.edit(s)
		})
		x.step(func(s *state, now time.Duration) output { s.begin(now); s.replicaTick(); return output{} })
		if got := x.of(); got != row.want {
			t.Errorf("%s: %s, want %s", row.name, got, row.want)
		}
	}
}

// The application is told of a shard that has lost a replica, of each change until it
// has as many as it should, and by Status meanwhile. Where nobody has said how many that
// is, one is. Who is cut off tells of nobody.
func TestEventsTellOfReplicasThatAreLost(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	a, b, c, d, e := w.replicated()
	a.core.cfg.form.Replicas = 2 // in the eyes of a alone
	w.run(ruleNT)
	told := func(n *ruleNode) string {
		text := ""
		for _, ev := range n.eventsOf(EventReplicas) {
			require.Equal(t, a.core.id, ev.Node)
			require.Equal(t, a.shard(), ev.Shard)
			text += fmt.Sprintf("%d %s; ", ev.Number, ev.Text)
		}
		n.events = nil
		return text
	}
	both := func(atA, atD string) {
		t.Helper()
		w.run(2 * ruleNT)
		require.Equal(t, atA, told(a))
		require.Equal(t, atD, told(d))
	}
	both("", "")
	require.Empty(t, a.core.problems())

	b.crash()
	both("1 replicas: 1 heard, expected 2; ", "")
	require.Equal(t, []string{"shard " + a.shard().short() + ": replicas: 1 heard, expected 2"}, a.core.problems())
	c.crash()
	both("0 replicas: 0 heard, expected 2; ", "0 replicas: 0 heard, expected 1; ")
	c.restart()
	both("1 replicas: 1 heard, expected 2; ", "1 ; ")
	b.restart()
	both("2 ; ", "")
	require.Empty(t, a.core.problems())

	r := e.replicate(a.core.id, false)
	w.until("a spare has come", func() bool { return r.done && a.knows(e).Shard == a.shard() })
	b.crash()
	both("", "") // its place is taken before anybody looks

	w.lose = func(m ruleMail) bool { return m.from == a || m.to == a }
	w.run(2 * ruleNT)
	require.Empty(t, told(a))
}
