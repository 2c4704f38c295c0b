package slotmesh

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slotmesh/slotmesh/transport"
	"github.com/stretchr/testify/require"
)

func TestMessagesReachEveryNodeInOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mem := transport.NewMemory()
		seeds := []string{"a", "b", "c"}
		var nodes []Node
		var mu sync.Mutex
		got := map[int][]string{}
		for i, addr := range seeds {
			n, err := Start(t.Context(), Config{Addr: addr, Transport: mem, Seeds: seeds, Primaries: 3})
			require.NoError(t, err)
			defer n.Close()
			nodes = append(nodes, n)
			for range 2 {
				stop := n.Subscribe(func(channel string, payload []byte) int {
					mu.Lock()
					defer mu.Unlock()
					got[i] = append(got[i], channel+" "+string(payload))
					return 1
				})
				defer stop()
			}
		}
		for _, n := range nodes {
			require.NoError(t, n.Ready(t.Context()))
		}
		stop := nodes[1].Subscribe(func(string, []byte) int { t.Error("told after it has stopped"); return 0 })
		stop()
		var want []string
		for i := range 100 {
			receivers, err := nodes[0].Publish(t.Context(), "news", fmt.Append(nil, i))
			require.NoError(t, err)
			require.Equal(t, 2, receivers)
			m := fmt.Sprint("news ", i)
			want = append(want, m, m)
		}
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		for i := range nodes {
			require.Equal(t, want, got[i], "node %d", i)
		}
	})
}

// Who publishes is never held up by a member that is slow, nor keeps more for it
// than the bound.
func TestMessagesToASlowMemberAreDropped(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		faults := transport.NewFaults(transport.NewMemory(), 1)
		defer faults.Close()
		var nodes []Node
		for _, addr := range []string{"a", "b"} {
			n, err := Start(t.Context(), Config{Addr: addr, Transport: faults.Node(addr), Seeds: []string{"a", "b"}, Primaries: 2})
			require.NoError(t, err)
			defer n.Close()
			nodes = append(nodes, n)
		}
		for _, n := range nodes {
			require.NoError(t, n.Ready(t.Context()))
		}
		faults.SetBoth("a", "b", transport.Link{Stall: true})
		payload := make([]byte, 1<<20)
		for range 40 {
			_, err := nodes[0].Publish(t.Context(), "c", payload)
			require.NoError(t, err)
		}
		require.GreaterOrEqual(t, nodes[0].(*node).pubSub.dropped.Load(), uint64(20))
	})
}

// A member that is away misses what is published meanwhile, and hears what comes
// after it is back, at a new address too.
func TestAMemberThatIsAwayMissesMessages(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mem := transport.NewMemory()
		dir := t.TempDir()
		start := func(addr string, i int) Node {
			n, err := Start(t.Context(), Config{Addr: addr, Transport: mem, Seeds: []string{"a", "b"}, Primaries: 2, Dir: fmt.Sprint(dir, i)})
			require.NoError(t, err)
			return n
		}
		a, b := start("a", 0), start("b", 1)
		defer a.Close()
		for _, n := range []Node{a, b} {
			require.NoError(t, n.Ready(t.Context()))
		}
		publish := func(text string) {
			_, err := a.Publish(t.Context(), "c", []byte(text))
			require.NoError(t, err)
		}
		publish("before")
		synctest.Wait()
		b.Close()
		synctest.Wait() // a knows that the connection has ended
		for i := range 10 {
			publish(fmt.Sprint("lost ", i))
		}
		time.Sleep(time.Minute)
		b = start("elsewhere", 1)
		defer b.Close()
		require.NoError(t, b.Ready(t.Context()))
		require.Eventually(t, func() bool {
			for _, x := range a.Table().Nodes() {
				if x.Addr == "elsewhere" {
					return true
				}
			}
			return false
		}, time.Minute, time.Millisecond)
		var mu sync.Mutex
		var got []string
		defer b.Subscribe(func(_ string, payload []byte) int {
			mu.Lock()
			defer mu.Unlock()
			got = append(got, string(payload))
			return 1
		})()
		publish("after")
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		require.Equal(t, []string{"after"}, got)
		require.Equal(t, uint64(10), a.Status().Dropped)
	})
}

func TestPublishRefusesWhatIsTooLarge(t *testing.T) {
	n, err := Start(t.Context(), Config{MaxKey: 10, MaxValue: 10})
	require.NoError(t, err)
	_, err = n.Publish(t.Context(), "channel of 19 bytes", nil)
	require.ErrorIs(t, err, ErrTooLarge)
	_, err = n.Publish(t.Context(), "c", make([]byte, 11))
	require.ErrorIs(t, err, ErrTooLarge)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = n.Publish(ctx, "c", nil)
	require.ErrorIs(t, err, context.Canceled)
	n.Close()
	_, err = n.Publish(t.Context(), "c", nil)
	require.ErrorIs(t, err, ErrClosed)
}

// A message of a sharded channel reaches the members of the shard that has its slot,
// whoever of them publishes it, and nobody else; and channels of the other kind that
// have its name hear nothing of it.
func TestShardedMessagesReachTheirShard(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		nodes, faults := formShardOn(t, 2, Config{})
		apart := startNode(t, Config{Addr: "z:1", Transport: faults.Node("z"), Join: true, NodeTimeout: driverNT})
		require.NoError(t, nodes[0].Admin().Meet(t.Context(), "z:1"))
		until(t, 10*driverNT, "it joins", func() bool {
			_, known := apart.Table().Owner(0)
			return known && len(apart.Table().Nodes()) == 3
		})
		all := append(nodes, apart)
		got := make([]atomic.Int64, 3)
		for i, n := range all {
			defer n.Subscribe(func(string, []byte) int { t.Error("of the other kind"); return 1 })()
			defer n.SubscribeSharded(func(channel string, payload []byte) int {
				require.Equal(t, "news hello", channel+" "+string(payload))
				got[i].Add(1)
				return 1
			})()
		}
		for i, want := range []int{1, 1, 0} {
			receivers, err := all[i].PublishSharded(t.Context(), "news", []byte("hello"))
			require.NoError(t, err)
			require.Equal(t, want, receivers, "at node %d", i)
		}
		synctest.Wait()
		require.EqualValues(t, []int64{3, 3, 0}, []int64{got[0].Load(), got[1].Load(), got[2].Load()})
	})
}
