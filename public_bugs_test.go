package slotmesh

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slotmesh/slotmesh/internal/racing"
	"github.com/slotmesh/slotmesh/transport"
	"github.com/stretchr/testify/require"
)

// Bugs of replication and failover that users of other projects have reported in
// public, as tests of what must hold instead. Each names the report and its number here;
// those that are elsewhere:
//
//	O49  half of the primaries die at once     TestHalfOfThePrimariesDieAtOnce
//	O65  a primary is back at once, empty      TestAPrimaryThatComesBackEmptyWipesNobody
//	O68  a bad offset ends the server          resp: TestPSyncWithABadOffset
//	O69  WAIT is taken for more than it is     resp: TestWait
//
// Those of commands are beside package resp's.

// inSeeds runs a schedule of the simulator under some seeds.
func inSeeds(t *testing.T, run func(w *simWorld)) {
	t.Helper()
	for seed := range uint64(racing.Fewer(8, 2)) {
		s := schedule{name: t.Name(), run: run}
		if w := s.world(seed); len(w.fails) > 0 {
			tr := &simTrace{max: *simTail}
			w = s.traced(seed, tr)
			t.Fatalf("seed %d: %v\n%v\n%s", seed, w.fails, tr, w.dump())
		}
	}
}

// noneStands fails if one of ns asks for votes for a shard without a whole copy, or
// leads it.
func (w *simWorld) noneStands(shard ShardID, ns ...*simNode) {
	w.onSend = func(n *simNode, m message) {
		for _, o := range ns {
			switch m := m.(type) {
			case *voteMsg:
				if n == o && m.Shard == shard && !n.core.holdsCopy {
					w.fail("RP5", "%s stands, and has no copy", n.name())
				}
			case *recordMsg:
				if n == o && m.Record.Shard == shard {
					w.fail("RP5", "%s leads, and has not got everything", n.name())
				}
			}
		}
	}
}

// O43, valkey-io/valkey#885: a replica that was attached to another primary told voters
// the offset that it had in its old shard, which was the higher one, and won without any
// of the data.
func TestAReplicaOfAnotherShardBringsNoOffsetAlong(t *testing.T) {
	inSeeds(t, func(w *simWorld) {
		c, _, rs := w.shard(0, 3, 4, 1, 5, 6)
		r, q, x := rs[0], c.others[2], c.others[3]
		w.pass(w.nt)
		w.own(q, 9)
		w.follows(x, q)
		if r.replica.log.end <= q.replica.log.end {
			w.fail(notReached, "a replica with a higher offset: %d and %d", r.replica.log.end, q.replica.log.end)
		}
		w.loseLog(func(_, to *simNode, what any) bool { return to == r && copiesLog(what) })
		w.replicate(r, q.core.id)
		w.await("it follows the other primary", 2*w.nt, func() bool { return r.core.role.primary == q.core.id })
		w.noneStands(q.core.self.Shard, r)
		q.crash(false)
		w.serves(x, 9)
	})
}

// O44, valkey-io/valkey#4317, #4684: of three replicas two had just come and lacked
// writes; their requests reached the voters first, and one of them won.
func TestVotersRefuseAReplicaThatLacksWritesAndComesFirst(t *testing.T) {
	inSeeds(t, func(w *simWorld) {
		c, p, rs := w.shard(1, 3, 4, 1, 5, 6)
		r, fresh := rs[0], c.others[2:]
		w.loseLog(func(from, _ *simNode, what any) bool {
			return (from == fresh[0] || from == fresh[1]) && asksLog(what) && from.core.holdsCopy
		})
		for _, x := range fresh {
			w.replicate(x, p.core.id)
		}
		w.await("they have a copy each", 2*w.nt, func() bool {
			return fresh[0].core.holdsCopy && fresh[1].core.holdsCopy && fresh[0].core.role.primary == p.core.id && fresh[1].core.role.primary == p.core.id
		})
		w.pass(w.nt / 4) // writes that they lack
		held, release := w.hold(func(f *simFlight, _ *simNode) bool { return kindOf(f, msgVote) && w.sentBy(f, r) })
		w.noneStands(p.core.self.Shard, fresh...)
		p.crash(false)
		w.pass(2 * w.nt)
		if len(*held) == 0 {
			w.fail(notReached, "the good one asks")
		}
		release()
		w.serves(r, 5, 6)
	})
}

// O45, redis/redis#7211: the only replica of a primary that died during the first copy
// was empty, and won.
func TestTheOnlyReplicaDoesNotWinWhileItIsEmpty(t *testing.T) {
	inSeeds(t, func(w *simWorld) {
		w.volatile = false
		c, p, _ := w.shard(0, 3, 2, 0, 5, 6)
		w.ack = 1 // of x, and of p when it is back
		x := c.others[1]
		x.core.cfg.ackReplicas, p.core.cfg.ackReplicas = 1, 1
		w.bump(p) // so that the voters know that the shard is strict
		w.await("the voters know", 2*w.nt, func() bool {
			v := c.voters[0].core.vote.shards[p.core.self.Shard]
			return v != nil && v.record != nil && v.record.Strict
		})
		w.loseLog(func(_, to *simNode, what any) bool { return to == x && copiesLog(what) })
		w.replicate(x, p.core.id)
		w.await("it follows", 2*w.nt, func() bool { return x.core.role.primary == p.core.id })
		w.noneStands(p.core.self.Shard, x)
		p.crash(false)
		w.pass(6 * w.nt)
		p.restart()
		w.serves(p, 5, 6)
		w.onSend = nil
	})
}

// O46, valkey-io/valkey#974: a primary came back under the very epoch of the one that had
// been elected for it, had the smaller id, and took its slots back.
func TestAnOldPrimaryWithAnEqualEpochTakesNothingBack(t *testing.T) {
	smaller, larger := 0, 0
	inSeeds(t, func(w *simWorld) {
		c, p, rs := w.shard(0, 3, 2, 1, 5, 6)
		r := rs[0]
		w.apart([]*simNode{p}, c.all())
		w.serves(r, 5, 6)
		number := r.core.lead.epoch.Number
		w.await("it asks under the same number", 4*w.nt, func() bool { return p.core.stand != nil && p.core.stand.epoch.Number == number })
		if len(w.fails) > 0 {
			return
		}
		if p.core.id.compare(r.core.id) < 0 {
			smaller++
		} else {
			larger++
		}
		w.together([]*simNode{p}, c.all())
		w.within("EP6", "it follows the one that was elected", 3*w.nt, func() bool { return r.inSync(p) })
		if !r.servesAll(slotSet(5, 6)) || r.core.lead.epoch.Number != number {
			w.fail("EP6", "%s serves no more under %d what it has won", r.name(), number)
		}
	})
	if !racing.On {
		require.Positive(t, smaller, "old primaries with a smaller id")
		require.Positive(t, larger, "and with a larger one")
	}
}

// O47, valkey-io/valkey#2169: a primary took a higher epoch and died before its replica
// had heard of it; the replica's requests were refused for ever, as older than what the
// voters knew.
func TestAReplicaWinsThoughItHasNotHeardOfItsPrimarysEpoch(t *testing.T) {
	inSeeds(t, func(w *simWorld) {
		c, p, rs := w.shard(0, 3, 2, 1, 5, 6)
		r := rs[0]
		was := r.core.promise
		w.lose(func(f *simFlight, to *simNode) bool { return to == r && w.sentBy(f, p) })
		w.loseLog(func(from, to *simNode, _ any) bool { return from == p && to == r })
		w.bump(p)
		w.await("the voters have granted the next epoch", w.nt/2, func() bool {
			return was.less(c.voters[0].core.vote.shards[p.core.self.Shard].promised) && was.less(c.voters[1].core.vote.shards[p.core.self.Shard].promised)
		})
		w.pass(w.between(0, time.Millisecond))
		p.crash(false)
		w.serves(r, 5, 6)
	})
}

// O50, redis/redis#13018, #15472: a replica heard that its primary followed somebody
// before it heard that this one led: it followed its old primary, which followed the new
// one, and once they followed each other in a circle.
func TestNobodyFollowsAReplicaWhenNewsComeInTheWrongOrder(t *testing.T) {
	inSeeds(t, func(w *simWorld) {
		_, p, rs := w.shard(0, 3, 3, 2, 5, 6)
		r, x := rs[0], rs[1]
		late := func(f *simFlight, to *simNode) bool { return to == x && w.sentBy(f, r) }
		_, release := w.hold(late)
		w.failOverTo(r, FailoverPlain)
		w.await("it has taken over", w.nt, func() bool { return r.servesAll(slotSet(5, 6)) })
		ns := []*simNode{p, r, x}
		for range 200 {
			w.pass(5 * time.Millisecond)
			if n := circle(ns); n != nil {
				w.fail("RP11", "%s follows itself", n.name())
			}
		}
		release()
		w.within("RP11", "all follow the new primary", 3*w.nt, func() bool { return r.inSync(p) && r.inSync(x) })
	})
}

// circle is a node that follows itself, by way of others.
func circle(ns []*simNode) *simNode {
	for _, n := range ns {
		at := n
		for range ns {
			next := at.core.role.primary
			at = nil
			for _, o := range ns {
				if o.core.id == next {
					at = o
				}
			}
			if at == n {
				return n
			}
			if at == nil {
				break
			}
		}
	}
	return nil
}

// O48, redis/redis#4027: a failover by hand did not end while keys expired, for the
// replica waited for an offset that the deletions moved on.
func TestAFailoverByHandEndsWhileKeysExpire(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		nodes, f := formShardOn(t, 2, Config{})
		for i := range racing.Fewer(100_000, 5_000) {
			require.NoError(t, nodes[0].Client().SetFor(t.Context(), fmt.Sprint("key", i), []byte("v"), time.Duration(1000+i%4000)*time.Millisecond))
		}
		f.SetBoth(nodes[0].addr[:1], nodes[1].addr[:1], transport.Link{Delay: time.Millisecond})
		for i := range 4 { // all the while that they expire
			time.Sleep(900 * time.Millisecond)
			p, r := nodes[i%2], nodes[1-i%2]
			until(t, driverNT, "the replica is in sync", func() bool { return len(p.Status().Replication.InSync) == 2 })
			began := time.Now()
			require.NoError(t, r.Admin().Failover(t.Context(), FailoverPlain))
			require.Less(t, time.Since(began), driverNT/4)
		}
		level(t, 2*driverNT, nodes...)
	})
}

// O51, valkey-io/valkey#3996: two asked for a failover of one shard at once, and it stood
// still. One of them gets it, and all is well.
func TestTwoFailoversOfOneShardAtOnce(t *testing.T) {
	t.Parallel()
	for name, modes := range map[string][2]FailoverMode{
		"plain and plain": {FailoverPlain, FailoverPlain}, "plain and force": {FailoverPlain, FailoverForce}, "force and force": {FailoverForce, FailoverForce},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				nodes := formShard(t, 3, Config{})
				require.NoError(t, put(nodes[0], "x", "1"))
				until(t, driverNT, "all in sync", func() bool { return len(nodes[0].Status().Replication.InSync) == 3 })
				level(t, driverNT, nodes...) // by force what a replica lacks is lost
				epoch := nodes[0].Status().Epoch
				var wg sync.WaitGroup
				for i, mode := range modes {
					wg.Go(func() { _ = nodes[1+i].Admin().Failover(t.Context(), mode) }) // who gets it is not said
				}
				wg.Wait()
				p := leaderOf(t, 3*driverNT, nodes...)
				until(t, 3*driverNT, "all follow one", func() bool { return len(p.Status().Replication.InSync) == 3 })
				require.LessOrEqual(t, p.Status().Epoch, epoch+4)
				v, err := nodes[0].Client().Get(t.Context(), "x")
				require.NoError(t, err)
				require.Equal(t, "1", string(v))
				level(t, driverNT, nodes...)
			})
		})
	}
}

// O57, microsoft/garnet#640, redis/redis#4289: a node that came back at another address
// was told of under the old one.
func TestANodeThatComesBackElsewhereIsKnownThere(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, dir, seeds := newFaults(t), t.TempDir(), []string{"a:1", "b:1", "c:1"}
		start := func(i int, addr string) *node {
			return startNode(t, Config{Addr: addr, Seeds: seeds, Primaries: 3, NodeTimeout: driverNT, Transport: f.Node(seeds[i][:1]), Dir: fmt.Sprint(dir, "/", i)})
		}
		nodes := []*node{start(0, seeds[0]), start(1, seeds[1]), start(2, seeds[2])}
		for _, n := range nodes {
			isReady(t, n)
		}
		key := keyOf(nodes[1], 0)
		for _, addr := range []string{"b:2", "b:3", "b:1"} {
			nodes[1].Close()
			nodes[1] = start(1, addr)
			for _, n := range nodes {
				until(t, 2*driverNT, "all know it at "+addr, func() bool {
					for _, m := range n.Table().Nodes() {
						if m.ID == nodes[1].ID() && m.Addr != addr {
							return false
						}
					}
					return n.Status().Ready
				})
			}
			require.NoError(t, nodes[0].Client().Set(t.Context(), key, nil))
		}
	})
}

// O58, hashicorp/memberlist#345: after all nodes had been started anew at once some
// stayed dead in the eyes of others, whom no word of them reached.
func TestAllNodesStartAnewAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, dir := newFaults(t), t.TempDir()
		var seeds []string
		for i := range 8 {
			seeds = append(seeds, fmt.Sprintf("%c:1", 'a'+i))
		}
		nodes := make([]*node, len(seeds))
		for range racing.Fewer(3, 2) {
			for i, at := range seeds {
				if nodes[i] != nil {
					nodes[i].Close()
				}
				time.Sleep(time.Duration(rand.IntN(1000/len(seeds))) * time.Millisecond)
				nodes[i] = startNode(t, Config{Addr: at, Seeds: seeds[:2], Primaries: 8, NodeTimeout: driverNT, Transport: f.Node(at[:1]), Dir: fmt.Sprint(dir, "/", i)})
			}
			until(t, 4*driverNT, "all find all alive", func() bool {
				for _, n := range nodes {
					for _, m := range n.Table().Nodes() {
						if m.Silent || m.Failed || m.ID != n.ID() && !m.Connected {
							return false
						}
					}
					if s := n.Status(); !s.Ready || s.Members != len(nodes) {
						return false
					}
				}
				return true
			})
		}
	})
}

// O66, buraksezer/olric#225: with two copies of a key, the replica and then the owner
// were started anew, one soon after the other, and the key was gone. That both are ready
// is what says that the next one may go.
func TestNodesThatStartAnewOneAfterTheOtherLoseNothing(t *testing.T) {
	t.Parallel()
	for _, acks := range []int{0, 1} {
		t.Run(fmt.Sprint("AckReplicas ", acks), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, dir, seeds := newFaults(t), t.TempDir(), []string{"a:1", "b:1", "c:1"}
				start := func(i int) *node {
					cfg := Config{Addr: seeds[i], Seeds: seeds[:2], Primaries: 1, Replicas: 1, AckReplicas: acks, NodeTimeout: driverNT, Transport: f.Node(seeds[i][:1]), Dir: fmt.Sprint(dir, "/", i)}
					if i == 2 { // votes, and nothing else
						cfg.Primaries, cfg.Replicas, cfg.AckReplicas, cfg.Join = 0, 0, 0, true
					}
					return startNode(t, cfg)
				}
				nodes := []*node{start(0), start(1)}
				for _, n := range nodes {
					isReady(t, n)
				}
				nodes = append(nodes, start(2))
				until(t, 4*driverNT, "three voters", func() bool { return len(nodes[0].Status().Voters) == 3 && nodes[0].Status().Ready })
				until(t, driverNT, "the key is written", func() bool { return nodes[0].Client().Set(t.Context(), "x", []byte("1")) == nil })
				level(t, driverNT, nodes[0], nodes[1])
				for round := range racing.Fewer(6, 4) {
					i := round % 2
					nodes[i].Close()
					nodes[i] = start(i)
					isReady(t, nodes[i])
					until(t, 4*driverNT, "both are ready", func() bool { return nodes[0].Status().Ready && nodes[1].Status().Ready })
				}
				until(t, 2*driverNT, "it is served", func() bool {
					v, err := nodes[2].Client().Get(t.Context(), "x")
					require.NotErrorIs(t, err, ErrNotFound)
					return err == nil && string(v) == "1"
				})
			})
		})
	}
}

// O67, redis/redis#3899: a connection to a replica broke in the middle of a command, a
// part of it stayed in the backlog, and what came after it was read as something else.
func TestALogThatIsCutInTheMiddleOfAFrame(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		nodes, f := formShardOn(t, 3, Config{})
		a := nodes[0]
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		defer wg.Wait()
		defer stop()
		wg.Go(func() { churn(ctx, t, a, 200) })
		time.Sleep(100 * time.Millisecond)
		stores := []uint64{nodes[1].repl.facts.Load().store, nodes[2].repl.facts.Load().store}
		for range racing.Fewer(40, 20) {
			for _, r := range nodes[1:] {
				f.Set(a.addr[:1], r.addr[:1], transport.Link{ResetAfter: 1 + rand.Int64N(3000)})
			}
			time.Sleep(time.Duration(rand.IntN(100)) * time.Millisecond)
			for _, r := range nodes[1:] {
				f.Set(a.addr[:1], r.addr[:1], transport.Link{})
			}
			time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond)
		}
		stop()
		wg.Wait()
		level(t, 4*driverNT, nodes...)
		for i, r := range nodes[1:] {
			require.Equal(t, stores[i], r.repl.facts.Load().store, "it has copied everything anew")
		}
	})
}
