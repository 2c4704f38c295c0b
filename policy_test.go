package slotmesh

import (
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func (n *ruleNode) setPolicy(p Policy) *ruleReply {
	return n.command(func(s *state, now time.Duration, id uint64) output { return s.setPolicy(now, id, p) })
}

// A replica that waits for an operator does not stand for its primary, everybody
// knows it, and nobody waits for it to go first; an operator's failover makes it
// lead, and then it is a primary like others.
func TestReplicaThatWaitsForAnOperator(t *testing.T) {
	t.Parallel()
	x := newReplicas(t)
	b, c := x.b.core, x.c.core
	require.Equal(t, "OK", x.w.settle(x.b.setPolicy(Policy{NoFailover: true})))
	x.w.run(ruleNT)
	for _, n := range []*ruleNode{x.a, x.c, x.d} {
		require.True(t, n.knows(x.b).NoFailover, n.name)
		require.False(t, n.knows(x.c).NoFailover, n.name)
	}
	b.primary, c.primary = x.w.now-9*ruleNT, x.w.now-9*ruleNT
	c.logAt = logPosition{Epoch: Epoch{Number: 1}}
	x.c.knows(x.b).log = logPosition{Epoch{Number: 9}, 9}
	require.Zero(t, c.rank(), "it is not waited for")
	stands := func(s *state) bool { due, _ := s.standDue(); return due }
	require.False(t, stands(b))
	require.True(t, stands(c))

	b.begin(x.w.now)
	b.cfg.policy.NoFailover = false
	require.True(t, stands(b))
	b.standFor(whySilence)
	require.Equal(t, "OK", x.w.settle(x.b.setPolicy(Policy{NoFailover: true})))
	require.Nil(t, b.stand, "it has been told while it stood")

	b.primary, c.primary = x.w.now, x.w.now
	x.b.restart()
	x.w.run(ruleNT)
	require.False(t, x.a.knows(x.b).NoFailover, "it begins with what it is started with")
}

// How old the data of a replica is, and whether it may stand with it: one in sync may
// always, for nothing that was acknowledged is newer.
func TestHowOldDataMayBe(t *testing.T) {
	t.Parallel()
	const nt = ruleNT
	for _, row := range []struct {
		name string
		edit func(x *replicas, s *state)
		want bool // it may stand
	}{
		{"within the bound", func(x *replicas, s *state) { s.fresh = s.now - 10*nt + 1 }, true},
		{"over the bound", func(x *replicas, s *state) { s.fresh = s.now - 10*nt }, false},
		{"over the bound, where there is none", func(x *replicas, s *state) { s.fresh, s.cfg.policy.DataAge = s.now-10*nt, 0 }, true},
		{"it has not followed since it started", func(x *replicas, s *state) { s.fresh = never }, false},
		{"it has no copy", func(x *replicas, s *state) { s.holdsCopy = false }, false},
		{"it has no copy, and there is no bound", func(x *replicas, s *state) { s.holdsCopy, s.cfg.policy.DataAge = false, 0 }, true},
		{"it was the primary itself", func(x *replicas, s *state) {
			s.fresh = never
			s.table.setShard(s.self.Shard, Epoch{Number: 9, Node: s.id})
		}, true},
	} {
		x := newReplicas(t)
		s := x.c.core
		s.begin(x.w.now)
		s.self.Store++ // it is another one than was in sync
		x.c.knows(x.a).heardAt, x.c.knows(x.b).heardAt = x.w.now-20*nt, x.w.now-20*nt
		s.primary, s.fresh, s.cfg.policy.DataAge = s.now-20*nt, s.now, 10
		row.edit(x, s)
		if got := s.nobodyInSync(); got != row.want {
			t.Errorf("%s: %v, want %v", row.name, got, row.want)
		}
		s.standFor(whyUnclean)
		s.standTick(s.stand)
		require.Equal(t, row.want, s.stand != nil, "%s: a stand that goes on", row.name)
	}

	x := newReplicas(t)
	x.c.core.cfg.policy.DataAge = 1
	x.c.core.fresh, x.c.core.primary = never, x.w.now-20*nt
	due, why := x.c.core.standDue()
	require.True(t, due, "one in sync")
	require.Equal(t, whySilence, why)
}

// The data of a replica is as new as the last heartbeat of its leased primary of
// which it has everything.
func TestHowNewDataIs(t *testing.T) {
	t.Parallel()
	at := func(epoch, offset uint64) logPosition { return logPosition{Epoch{Number: epoch}, offset} }
	for _, row := range []struct {
		name string
		edit func(s *state, m *heartbeat)
		want bool // as new as the heartbeat before
	}{
		{"it has all that was shown then", func(s *state, m *heartbeat) {}, true},
		{"it has more", func(s *state, m *heartbeat) { s.logAt = at(7, 6) }, true},
		{"it lacks some of it", func(s *state, m *heartbeat) { s.logAt = at(7, 4) }, false},
		{"it is in an older epoch", func(s *state, m *heartbeat) { s.logAt = at(6, 50) }, false},
		{"it has no copy", func(s *state, m *heartbeat) { s.holdsCopy = false }, false},
		{"the primary has no lease", func(s *state, m *heartbeat) { m.Flags &^= beatLeased }, false},
	} {
		x := newReplicas(t)
		s, p := x.b.core, x.b.knows(x.a)
		s.logAt, p.log = at(7, 5), at(7, 5)
		before := p.beatAt
		s.fresh = never
		x.w.now += ruleNT / 10
		m := &heartbeat{Flags: beatOpen | beatLeased, Sent: x.a.core.stamp() + 500, Epoch: 7, Position: 60}
		row.edit(s, m)
		x.b.getsAs(*x.a.core.who, m)
		require.Equal(t, row.want, s.fresh == before, row.name)
		if !row.want {
			require.Equal(t, time.Duration(never), s.fresh, row.name)
		}
	}
}

// Whether a replica goes to a primary that has lost its last is a matter of policy,
// as is how many its own keeps.
func TestPolicyOfReplicasThatGo(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name   string
		shape  string
		policy Policy
		want   string
	}{
		{"by default", "dA eA fB", Policy{}, "C"},
		{"not at all", "dA eA fB", Policy{NoMigration: true}, "A"},
		{"one stays", "dA eA fB", Policy{MigrationBarrier: 1}, "C"},
		{"two stay: there are two", "dA eA fB", Policy{MigrationBarrier: 2}, "A"},
		{"two stay: there are three", "dA eA gA fB", Policy{MigrationBarrier: 2}, "C"},
	} {
		x := shaped(t, 3, 9, "d", row.shape, func(s *state) {
			hasLost(s, 2, 8)
			s.shardRecord = inSyncOf(s, 0, 1, 2, 3, 4, 5, 6, 7)
			s.cfg.policy = row.policy
			s.nextReplica = 0
		})
		x.step(func(s *state, now time.Duration) output {
			s.begin(now)
			s.replicaTick()
			return s.end()
		})
		require.Equal(t, row.want, x.of(), row.name)
	}
}

// Where the policy says that slots may be missing the state is ok without them. A
// group that has not formed serves what it has then, while most owners are heard.
func TestStateWithSlotsMissing(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	ns := w.cluster(3, 3)
	w.settle(ns[0].delSlots("5"))
	state := func(n *ruleNode) string {
		ok, reason := n.core.clusterState()
		require.Equal(t, reason == "", ok)
		return reason
	}
	require.Equal(t, "1 slots have no owner", state(ns[1]))
	require.Equal(t, "OK", w.settle(ns[1].setPolicy(Policy{Partial: true})))
	require.Empty(t, state(ns[1]))
	ns[2].crash()
	w.run(3 * ruleNT)
	require.Empty(t, state(ns[1]))
	require.Contains(t, state(ns[0]), "slots have no owner")
	require.Equal(t, "OK", w.settle(ns[1].setPolicy(Policy{})))
	require.NotEmpty(t, state(ns[1]), "and back")
	ns[0].crash()
	require.Equal(t, "OK", w.settle(ns[1].setPolicy(Policy{Partial: true})))
	w.run(3 * ruleNT)
	require.Contains(t, state(ns[1]), "lease is over", "without a majority nothing is ok")
}

func TestUnformedGroupServesWhatItHas(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	a, b, c := w.boot(), w.boot(), w.boot()
	served := func(n *ruleNode) int { return n.core.serve.slots.Len() }
	a.meet(b)
	a.meet(c)
	w.run(2 * ruleNT)
	for i, n := range []*ruleNode{a, b, c} {
		require.Equal(t, "OK", w.settle(n.addSlots(strconv.Itoa(i))), n.name)
	}
	w.run(2 * ruleNT)
	require.Zero(t, served(a))
	for _, n := range []*ruleNode{a, b} {
		require.Equal(t, "OK", w.settle(n.setPolicy(Policy{Partial: true})))
		require.Equal(t, 1, served(n))
	}
	require.Zero(t, served(c), "it has another policy")
	c.crash()
	w.run(3 * ruleNT)
	require.Equal(t, 1, served(a), "two of three are heard")
	b.crash()
	w.run(3 * ruleNT)
	require.Zero(t, served(a))
	_, reason := a.core.clusterState()
	require.Equal(t, "this node hears 1 of 3 primaries with slots", reason)
}

// A policy is given at the start, and changed while the node runs; what is wrong with
// it is said, and changes nothing.
func TestPolicyOfANode(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := Policy{NoFailover: true, DataAge: 3, NoMigration: true, MigrationBarrier: 2, Partial: true}
		n := startNode(t, Config{Policy: p})
		require.Equal(t, p, n.Status().Policy)
		require.True(t, n.Table().Nodes()[0].NoFailover)
		for field, bad := range map[string]Policy{
			"Policy.DataAge is -1, expected 0 to 2147483647 NodeTimeouts": {DataAge: -1},
			"Policy.MigrationBarrier is -2, expected 0 to 2147483647":     {MigrationBarrier: -2},
		} {
			err := n.Admin().SetPolicy(t.Context(), bad)
			require.ErrorIs(t, err, ErrRefused)
			require.ErrorContains(t, err, field)
			_, err = Start(t.Context(), Config{Policy: bad})
			require.ErrorContains(t, err, field)
			require.Equal(t, p, n.Status().Policy)
		}
		require.NoError(t, n.Admin().SetPolicy(t.Context(), Policy{}))
		require.Zero(t, n.Status().Policy)
		require.False(t, n.Table().Nodes()[0].NoFailover)
	})
}
