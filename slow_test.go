package slotmesh

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slotmesh/slotmesh/transport"
	"github.com/stretchr/testify/require"
)

// A replica whose way carries less than is written gets on all the time, and lags more
// and more: a strict shard that has another one in sync goes on without it.
func TestASlowReplicaIsNotWaitedForWithoutEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes, f := formShardOn(t, 3, Config{AckReplicas: 1})
		a, b := nodes[0], nodes[1]
		f.Set(a.addr[:1], b.addr[:1], transport.Link{BytesPerSecond: 15 << 10})
		value := strings.Repeat("x", 800)
		var acknowledged atomic.Int64
		written := time.Now().Add(4 * driverNT)
		done := make(chan struct{})
		for w := range 20 {
			go func() {
				defer func() { done <- struct{}{} }()
				for time.Now().Before(written) {
					if put(a, fmt.Sprint("key", w), value) == nil {
						acknowledged.Add(1)
					}
					time.Sleep(driverNT / 100)
				}
			}()
		}
		time.Sleep(2 * driverNT)
		acknowledged.Store(0)
		for range 20 {
			<-done
		}
		require.Greater(t, acknowledged.Load(), int64(1000), "of 4,000 that were asked for while the replica lagged")
		require.Len(t, a.Status().Replication.InSync, 2)
		f.Set(a.addr[:1], b.addr[:1], transport.Link{})
		until(t, 10*driverNT, "the replica is in sync again", func() bool { return len(a.Status().Replication.InSync) == 3 })
	})
}
