package slotmesh_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/slotmesh/slotmesh"
	"github.com/slotmesh/slotmesh/transport"
	"github.com/stretchr/testify/require"
)

// What a node sees of the others is as of the call, also in an old table.
func TestNodesSayWhenTheyWereHeard(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		faults := transport.NewFaults(transport.NewMemory(), 1)
		defer faults.Close()
		seeds := []string{"a:1", "b:1", "c:1"}
		var nodes []slotmesh.Node
		for i, name := range []string{"a", "b", "c"} {
			n, err := slotmesh.Start(t.Context(), slotmesh.Config{Addr: seeds[i], Seeds: seeds, Primaries: 3, NodeTimeout: nt, Transport: faults.Node(name)})
			require.NoError(t, err)
			defer n.Close()
			nodes = append(nodes, n)
		}
		for _, n := range nodes {
			require.NoError(t, n.Ready(t.Context()))
		}
		time.Sleep(2 * nt)
		table := nodes[0].Table()
		of := func(n slotmesh.Node) slotmesh.NodeInfo {
			for _, x := range table.Nodes() {
				if x.ID == n.ID() {
					return x
				}
			}
			t.Fatal("no member")
			return slotmesh.NodeInfo{}
		}
		for _, n := range nodes {
			x := of(n)
			require.True(t, x.Connected)
			require.True(t, x.PingSent.IsZero())
			require.Equal(t, n.Status().MyEpoch, x.Epoch)
			require.Positive(t, x.Epoch)
			if n == nodes[0] {
				require.True(t, x.Self && x.PongReceived.IsZero())
				continue
			}
			require.LessOrEqual(t, time.Since(x.PongReceived), nt/2)
		}
		at := nodes[1].Status().Replication.Offset
		key := keyAt(nodes[1])
		require.NoError(t, nodes[0].Client().Set(t.Context(), key, nil))
		for _, table = range []slotmesh.SlotTable{nodes[1].Table(), nodes[2].Table(), nodes[0].Table()} {
			eventually(t, nt, "where its log ends is not known", func() bool { return of(nodes[1]).Offset == at+1 })
		}
		heard := of(nodes[1]).PongReceived

		faults.SetBoth("a", "b", transport.Link{Stall: true})
		stalled := time.Now()
		time.Sleep(nt)
		x := of(nodes[1])
		require.LessOrEqual(t, x.PongReceived.Sub(heard), nt/2)
		require.False(t, x.PingSent.IsZero())
		require.WithinDuration(t, stalled, x.PingSent, nt/2)
		require.True(t, of(nodes[2]).PingSent.IsZero())

		faults.Partition([]string{"a", "c"}, []string{"b"})
		faults.Reset("a", "b")
		eventually(t, nt, "the link still counts", func() bool { return !of(nodes[1]).Connected })
		require.True(t, of(nodes[2]).Connected)
		faults.Heal()
		eventually(t, 4*nt, "the link is not back", func() bool {
			x := of(nodes[1])
			return x.Connected && x.PingSent.IsZero() && time.Since(x.PongReceived) < nt/2
		})
		owner, _ := table.Owner(0)
		require.False(t, owner.Connected, "an owner says nothing of it")
	})
}

func TestStatusCountsMessages(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		nodes := form(t, transport.NewMemory(), 3, slotmesh.Config{NodeTimeout: nt})
		defer closeAll(nodes...)
		_, err := nodes[0].Publish(t.Context(), "news", []byte("x"))
		require.NoError(t, err)
		before := nodes[0].Status()
		time.Sleep(10 * nt)
		after := nodes[0].Status()
		for name, counts := range map[string][2]map[string]uint64{"sent": {before.Sent, after.Sent}, "received": {before.Received, after.Received}} {
			require.Positive(t, counts[0]["START"]+counts[0]["STARTED"], name)
			beats := counts[1]["HEARTBEAT"] - counts[0]["HEARTBEAT"]
			require.GreaterOrEqual(t, beats, uint64(2*20), name) // two others, twice in a NodeTimeout at least
			require.LessOrEqual(t, beats, uint64(2*60), name)    // three, and a lease that runs short asks in between
			require.NotContains(t, counts[1], "TAKEOVER", name)
		}
		require.EqualValues(t, 2, after.Sent["PUBLISH"])
		require.EqualValues(t, 1, nodes[1].Status().Received["PUBLISH"])
		require.Zero(t, after.Dropped)
	})
}
