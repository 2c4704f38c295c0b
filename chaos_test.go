package slotmesh

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slotmesh/slotmesh/internal/racing"
	"github.com/slotmesh/slotmesh/transport"
	"github.com/stretchr/testify/require"
)

// tally is what a counter must show: every call that was acknowledged, and of
// those whose outcome is unknown any number.
type tally struct {
	mu             sync.Mutex
	acked, unknown int64
	highest        int64 // value that was returned
}

// count adds one by one until ctx is over.
func (c *tally) count(ctx context.Context, t *testing.T, client func() *Client, key string) {
	for ctx.Err() == nil {
		call, cancel := context.WithTimeout(ctx, driverNT/2)
		c.mu.Lock()
		before := c.highest
		c.mu.Unlock()
		v, err := client().Incr(call, key, 1)
		cancel()
		var op *OpError
		c.mu.Lock()
		switch {
		case err == nil:
			c.acked++
			if v <= before {
				t.Errorf("%s is %d, after it was %d", key, v, before)
			}
			c.highest = max(c.highest, v)
		case !errors.As(err, &op) || op.Outcome == Unknown:
			c.unknown++
		}
		c.mu.Unlock()
		time.Sleep(time.Duration(rand.IntN(20_000)) * time.Microsecond)
	}
}

// shards is nodes that fail, one after the other, under load.
type shards struct {
	t      *testing.T
	rnd    *rand.Rand
	faults *transport.Faults
	start  func(i int) *node
	mu     sync.Mutex
	nodes  []*node // guarded by mu
}

func newShards(t *testing.T, seed uint64, primaries, replicas int) *shards {
	s := &shards{t: t, rnd: rand.New(rand.NewPCG(seed, 11)), faults: newFaults(t)}
	dir := t.TempDir()
	var seeds []string
	for i := range primaries * (1 + replicas) {
		seeds = append(seeds, fmt.Sprintf("%c:1", 'a'+i))
	}
	s.start = func(i int) *node {
		return startNode(t, Config{Addr: seeds[i], Seeds: seeds, Primaries: primaries, Replicas: replicas, AckReplicas: 1, NodeTimeout: driverNT,
			Transport: s.faults.Node(seeds[i][:1]), Dir: fmt.Sprint(dir, "/", i)})
	}
	for i := range seeds {
		s.nodes = append(s.nodes, s.start(i))
	}
	return s
}

func (s *shards) at(i int) *node {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.nodes[i]
}

// allWell waits until every shard serves with all its members in sync.
func (s *shards) allWell(primaries, members int) {
	s.t.Helper()
	until(s.t, 30*driverNT, "all are in sync", func() bool {
		led := 0
		for i := range s.nodes {
			st := s.at(i).Status()
			if !st.OK || !st.Replication.Leads || len(st.Replication.InSync) != members {
				continue
			}
			if own := s.at(i).Table().Slots(st.Node); !own.Empty() { // the dear part, last
				led++
			}
		}
		return led == primaries
	})
}

// fail makes one node fail, for a while.
func (s *shards) fail() {
	i := s.rnd.IntN(len(s.nodes))
	time.Sleep(time.Duration(s.rnd.IntN(1000)) * time.Millisecond)
	switch s.rnd.IntN(4) {
	case 0:
		s.at(i).Close()
		time.Sleep(time.Duration(s.rnd.IntN(6000)) * time.Millisecond)
		n := s.start(i)
		s.mu.Lock()
		s.nodes[i] = n
		s.mu.Unlock()
	case 1:
		var rest []string
		for j := range s.nodes {
			if j != i {
				rest = append(rest, fmt.Sprintf("%c", 'a'+j))
			}
		}
		s.faults.Partition([]string{fmt.Sprintf("%c", 'a'+i)}, rest)
		time.Sleep(time.Duration(s.rnd.IntN(6000)) * time.Millisecond)
		s.faults.Heal()
	case 2:
		_ = s.at(i).Admin().Failover(s.t.Context(), FailoverPlain)
	default:
		_ = s.at(i).Admin().Failover(s.t.Context(), FailoverForce)
	}
}

// check reads the counters back, and returns how many calls were acknowledged.
func (s *shards) check(counters []tally) (total int64) {
	s.t.Helper()
	for i := range counters {
		c, key := &counters[i], fmt.Sprint("n", i)
		v, err := s.at(0).Client().Get(s.t.Context(), key)
		require.NoError(s.t, err)
		n, err := strconv.ParseInt(string(v), 10, 64)
		require.NoError(s.t, err)
		require.GreaterOrEqual(s.t, n, c.acked, "%s has lost what was acknowledged", key)
		require.LessOrEqual(s.t, n, c.acked+c.unknown, "%s was counted twice", key)
		total += c.acked
	}
	return total
}

// levelAll checks that the members of each shard have the same data.
func (s *shards) levelAll() {
	for _, x := range s.at(0).Table().Shards() {
		var members []*node
		for _, n := range s.nodes {
			if n.ID() == x.Primary {
				members = append([]*node{n}, members...)
			} else if n.Status().Replication.Shard == x.ID {
				members = append(members, n)
			}
		}
		level(s.t, 4*driverNT, members...)
	}
}

// With AckReplicas no single failure, one after the other, loses what was
// acknowledged: a crash with all memory, a node that is cut off, a failover that
// an operator asks for, by force too.
func TestAStrictShardLosesNothingInAnySingleFailure(t *testing.T) {
	t.Parallel()
	for seed := range uint64(racing.Fewer(3, 1)) {
		synctest.Test(t, func(t *testing.T) {
			s := newShards(t, seed, 1, 2)
			s.allWell(1, 3)
			counters := make([]tally, 12)
			ctx, stop := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			defer wg.Wait()
			defer stop()
			for i := range counters {
				wg.Go(func() { counters[i].count(ctx, t, func() *Client { return s.at(i % 3).Client() }, fmt.Sprint("n", i)) })
			}
			for range racing.Fewer(8, 5) {
				s.fail()
				s.allWell(1, 3)
			}
			stop()
			wg.Wait()
			require.Greater(t, s.check(counters), int64(200))
			s.levelAll()
		})
	}
}

// Nor while slots go from one shard to the other.
func TestStrictShardsLoseNothingWhileSlotsMove(t *testing.T) {
	t.Parallel()
	for seed := range uint64(racing.Fewer(3, 1)) {
		synctest.Test(t, func(t *testing.T) {
			s := newShards(t, seed, 2, 1)
			s.allWell(2, 2)
			counters := make([]tally, 12)
			var moving SlotSet
			for i := range counters {
				moving.Add(KeySlot(fmt.Sprint("n", i)))
			}
			ctx, stop := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			defer wg.Wait()
			defer stop()
			for i := range counters {
				wg.Go(func() { counters[i].count(ctx, t, func() *Client { return s.at(i % 4).Client() }, fmt.Sprint("n", i)) })
			}
			moves := 0
			wg.Go(func() {
				for i := 0; ctx.Err() == nil; i++ {
					n := s.at(i % 4)
					call, cancel := context.WithTimeout(ctx, driverNT)
					if x := n.Table().Shards(); len(x) == 2 && n.Admin().MoveSlots(call, moving, x[i%2].Primary) == nil {
						moves++
					}
					cancel()
					time.Sleep(50 * time.Millisecond)
				}
			})
			for range racing.Fewer(8, 5) {
				s.fail()
				s.allWell(2, 2)
			}
			stop()
			wg.Wait()
			require.Greater(t, moves, 10)
			require.Greater(t, s.check(counters), int64(200))
			s.levelAll()
		})
	}
}
