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
		time.Sleep(time.Duration(rand.IntN(4000)) * time.Microsecond)
	}
}

// With AckReplicas no single failure, one after the other, loses what was
// acknowledged: a crash with all memory, a node that is cut off, a failover that
// an operator asks for, by force too.
func TestAStrictShardLosesNothingInAnySingleFailure(t *testing.T) {
	for seed := range uint64(fewer(6, 2)) {
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 11))
			f, dir := newFaults(t), t.TempDir()
			seeds := []string{"a:1", "b:1", "c:1"}
			start := func(i int) *node {
				return startNode(t, Config{Addr: seeds[i], Seeds: seeds, Primaries: 1, Replicas: 2, AckReplicas: 1, NodeTimeout: driverNT,
					Transport: f.Node(seeds[i][:1]), Dir: fmt.Sprint(dir, "/", i)})
			}
			var mu sync.Mutex
			nodes := []*node{start(0), start(1), start(2)}
			at := func(i int) *node {
				mu.Lock()
				defer mu.Unlock()
				return nodes[i]
			}
			allWell := func() {
				t.Helper()
				until(t, 20*driverNT, fmt.Sprintf("seed %d: all in sync", seed), func() bool {
					for i := range nodes {
						if s := at(i).Status(); s.Replication.Leads && len(s.Replication.InSync) == 3 && s.OK {
							return true
						}
					}
					return false
				})
			}
			allWell()
			counters := make([]tally, 12)
			ctx, stop := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			defer wg.Wait()
			defer stop()
			for i := range counters {
				wg.Go(func() { counters[i].count(ctx, t, func() *Client { return at(i % 3).Client() }, fmt.Sprint("n", i)) })
			}
			for range 8 {
				i := rnd.IntN(3)
				time.Sleep(time.Duration(rnd.IntN(1000)) * time.Millisecond)
				switch rnd.IntN(4) {
				case 0:
					at(i).Close()
					time.Sleep(time.Duration(rnd.IntN(6000)) * time.Millisecond)
					n := start(i)
					mu.Lock()
					nodes[i] = n
					mu.Unlock()
				case 1:
					f.Partition([]string{seeds[i][:1]}, []string{seeds[(i+1)%3][:1], seeds[(i+2)%3][:1]})
					time.Sleep(time.Duration(rnd.IntN(6000)) * time.Millisecond)
					f.Heal()
				case 2:
					_ = at(i).Admin().Failover(ctx, FailoverPlain)
				default:
					_ = at(i).Admin().Failover(ctx, FailoverForce)
				}
				allWell()
			}
			stop()
			wg.Wait()
			leader := leaderOf(t, 4*driverNT, nodes...)
			total := int64(0)
			for i := range counters {
				c := &counters[i]
				v, err := leader.Client().Get(t.Context(), fmt.Sprint("n", i))
				require.NoError(t, err)
				n, err := strconv.ParseInt(string(v), 10, 64)
				require.NoError(t, err)
				require.GreaterOrEqual(t, n, c.acked, "seed %d: n%d has lost what was acknowledged", seed, i)
				require.LessOrEqual(t, n, c.acked+c.unknown, "seed %d: n%d was counted twice", seed, i)
				total += c.acked
			}
			require.Greater(t, total, int64(1000))
			level(t, 4*driverNT, append([]*node{leader}, nodes...)...)
		})
	}
}
