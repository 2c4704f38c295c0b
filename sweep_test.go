package slotmesh

import (
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slotmesh/slotmesh/store"
	"github.com/stretchr/testify/require"
)

// keysIn is the number of keys that a node's store has.
func keysIn(n *node) (keys int) {
	for slot := range Slot(NumSlots) {
		keys += n.engine.keys(slot)
	}
	return keys
}

// A node with nothing to expire, or nothing soon, does not look.
func TestTheSweeperSleepsUntilSomethingIsDue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, Config{})
		isReady(t, n)
		// next is how long the sweeper has nothing to do; it sleeps when it is asked.
		next := func() time.Duration {
			synctest.Wait()
			at := n.engine.sweeper.next.Load()
			if at == math.MaxInt64 {
				return never
			}
			return time.Until(time.UnixMilli(at))
		}
		require.NoError(t, n.Client().Set(t.Context(), "plain", nil))
		require.Equal(t, time.Duration(never), next())
		require.NoError(t, n.Client().SetFor(t.Context(), "far", nil, time.Hour))
		require.InDelta(t, time.Hour, next(), float64(time.Millisecond))
		require.NoError(t, n.Client().SetFor(t.Context(), "near", nil, 5*time.Second))
		require.InDelta(t, 5*time.Second, next(), float64(time.Millisecond))
		time.Sleep(5*time.Second - time.Millisecond)
		require.Equal(t, 3, keysIn(n))
		time.Sleep(sweepEvery + time.Millisecond)
		require.Equal(t, 2, keysIn(n))
		time.Sleep(time.Hour)
		require.Equal(t, 1, keysIn(n))
		require.Equal(t, time.Duration(never), next())
	})
}

// Of a slot with many keys, one that expires later is found on the way.
func TestOneSlotIsSweptAgainAndAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, Config{})
		isReady(t, n)
		const keys = 3 * sweepKeys
		for i := range keys {
			require.NoError(t, n.Client().SetFor(t.Context(), fmt.Sprintf("{k}%d", i), nil, time.Duration(1+i%3)*time.Minute))
			require.NoError(t, n.Client().Set(t.Context(), fmt.Sprintf("{k}stays%d", i), nil))
		}
		time.Sleep(2 * time.Second)
		for minute := range 3 {
			time.Sleep(time.Minute - 4*time.Second)
			require.Equal(t, keys+keys*(3-minute)/3, keysIn(n), "minute %d", minute)
			time.Sleep(4 * time.Second)
			require.Equal(t, keys+keys*(2-minute)/3, keysIn(n), "minute %d", minute)
		}
		require.NoError(t, n.Client().SetFor(t.Context(), "{k}stays0", nil, time.Hour))
		_, err := n.Client().Expire(t.Context(), "{k}stays1", time.Minute)
		require.NoError(t, err)
		time.Sleep(time.Minute + time.Second)
		require.Equal(t, keys-1, keysIn(n))
	})
}

// A store may hold keys from before.
func TestKeysOfAStoreFromBeforeAreSweptToo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := store.NewMemory()
		at := time.Now().Add(10 * time.Second).UnixMilli()
		for i, expires := range []int64{0, 1, at} {
			key := fmt.Sprint("k", i)
			require.NoError(t, s.Apply(uint16(KeySlot(key)), []store.Op{{Code: store.OpPut, Key: key, ExpireAt: expires}}))
		}
		n := startNode(t, Config{Store: s})
		isReady(t, n)
		time.Sleep(time.Second)
		require.Equal(t, 2, keysIn(n))
		time.Sleep(12 * time.Second)
		require.Equal(t, 1, keysIn(n))
	})
}

// What cannot be removed now is looked at again: a slot that is on hold, a node
// without a lease, a slot that has come by a hand-over.
func TestWhatCannotBeSweptNowIsSweptLater(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFaults(t)
		nodes := formNodes(t, f, 3, Config{})
		n, key := nodes[0], keyOf(nodes[0], 0)
		require.NoError(t, n.Client().SetFor(t.Context(), key, nil, driverNT))
		require.NoError(t, n.Client().SetFor(t.Context(), "{"+key+"}later", nil, 5*time.Minute))
		f.Partition([]string{"a"}, []string{"b", "c"})
		time.Sleep(5 * driverNT)
		require.Equal(t, 2, keysIn(n))
		f.Heal()
		isReady(t, n)
		time.Sleep(2 * sweepLater)
		require.Equal(t, 1, keysIn(n))
		require.NoError(t, n.Admin().MoveSlots(t.Context(), slotOf(key), nodes[1].ID()))
		time.Sleep(time.Minute)
		require.Equal(t, 1, keysIn(nodes[1]))
		time.Sleep(5 * time.Minute)
		require.Zero(t, keysIn(nodes[1]))
		require.Zero(t, keysIn(n))
	})
}
