package slotmesh

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slotmesh/slotmesh/internal/racing"
	"github.com/slotmesh/slotmesh/transport"
	"github.com/stretchr/testify/require"
)

func put(n *node, key, value string) error {
	return n.Execute(context.Background(), Request{Keys: []string{key}}, func(tx *Tx) error { return tx.Put(key, []byte(value)) })
}

func TestAWriteIsRefusedWhereTooFewReplicasAreInSync(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		nodes := formShard(t, 3, Config{AckReplicas: 2})
		a := nodes[0]
		require.NoError(t, put(a, "x", "1"))
		nodes[2].Close()
		began := time.Now()
		err := put(a, "x", "2")
		var op *OpError
		require.ErrorAs(t, err, &op)
		require.Equal(t, Unknown, op.Outcome, "it has run, and one replica is less than were asked for")
		require.LessOrEqual(t, time.Since(began), driverNT)
		err = put(a, "x", "3")
		require.ErrorAs(t, err, &op)
		require.ErrorIs(t, err, ErrNoReplicas)
		require.Equal(t, NotExecuted, op.Outcome)
		require.ErrorIs(t, nodes[1].Client().Set(t.Context(), "x", nil), ErrNoReplicas, "of another node, too")
		v, err := a.Client().Get(t.Context(), "x")
		require.NoError(t, err)
		require.Equal(t, "2", string(v))
		until(t, driverNT, "its status", func() bool { return !a.Status().Ready })
	})
}

// What only the primary has is shown to nobody: it may be gone a moment later.
func TestAReadWaitsUntilTheReplicasHaveWhatItShows(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		nodes, f := formShardOn(t, 3, Config{AckReplicas: 1})
		a, b := nodes[0], nodes[1]
		require.NoError(t, put(a, "x", "1"))
		until(t, driverNT, "all in sync", func() bool { return len(a.Status().Replication.InSync) == 3 })
		f.Partition([]string{b.addr[:1]}, []string{a.addr[:1], nodes[2].addr[:1]})
		var wg sync.WaitGroup
		defer wg.Wait()
		began := time.Now()
		for name, call := range map[string]func() error{
			"the write": func() error { return put(a, "x", "2") },
			"get": func() error {
				time.Sleep(time.Millisecond)
				_, _, err := a.engine.runOp(t.Context(), &request{op: opGet, args: [][]byte{[]byte("x")}}, waitHold)
				return err
			},
			"execute": func() error {
				time.Sleep(time.Millisecond)
				return a.Execute(t.Context(), Request{Keys: []string{"x"}, ReadOnly: true}, func(*Tx) error { return nil })
			},
			"a get that may not wait": func() error {
				time.Sleep(time.Millisecond)
				_, _, err := a.engine.runOp(t.Context(), &request{op: opGet, args: [][]byte{[]byte("x")}}, waitNot)
				if err != errWouldWait {
					t.Errorf("%v, expected that it would wait", err)
				}
				time.Sleep(driverNT / 2)
				return nil
			},
		} {
			wg.Go(func() {
				if err := call(); err != nil {
					t.Errorf("%s: %v", name, err)
				}
				if d := time.Since(began); d < driverNT/4 {
					t.Errorf("%s has waited %v, expected until the replica is out of the set", name, d)
				}
			})
		}
	})
}

// What a winner has inherited its replicas have already, and say so at once.
func TestAWinnerShowsWhatItHasInheritedAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		nodes := formShard(t, 3, Config{AckReplicas: 1})
		require.NoError(t, put(nodes[0], "x", "1"))
		until(t, 2*driverNT, "all in sync", func() bool { return len(nodes[0].Status().Replication.InSync) == 3 })
		for i := range 4 {
			b := nodes[1+i%2]
			require.NoError(t, b.Admin().Failover(t.Context(), FailoverPlain))
			began := time.Now()
			v, err := b.Client().Get(t.Context(), "x")
			require.NoError(t, err)
			require.Equal(t, "1", string(v))
			require.Less(t, time.Since(began), driverNT/20)
			until(t, 2*driverNT, "all in sync", func() bool { return len(b.Status().Replication.InSync) == 3 })
		}
	})
}

func TestACallMayAskForReplicas(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		nodes, f := formShardOn(t, 3, Config{})
		a := nodes[0]
		until(t, driverNT, "all in sync", func() bool { return len(a.Status().Replication.InSync) == 3 })
		s := a.Session()
		write := func(n int) error {
			return s.Execute(t.Context(), &Request{Keys: []string{"x"}, AckReplicas: n}, func(tx *Tx) error { return tx.Put("x", nil) })
		}
		require.NoError(t, write(2))
		require.Equal(t, 2, s.Wait(t.Context(), 0))
		require.ErrorIs(t, write(3), ErrNoReplicas)
		require.NoError(t, write(0))
		require.Equal(t, 2, s.Wait(t.Context(), 2))
		f.Partition([]string{nodes[1].addr[:1]}, []string{a.addr[:1], nodes[2].addr[:1]})
		require.NoError(t, write(1))
		ctx, cancel := context.WithTimeout(t.Context(), driverNT/8)
		defer cancel()
		require.Equal(t, 1, s.Wait(ctx, 2))
		f.Heal()
		require.Equal(t, 2, s.Wait(t.Context(), 2))
	})
}

func TestAReplicaAnswersWhoAsksForIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		nodes, f := formShardOn(t, 3, Config{})
		a, b := nodes[0], nodes[1]
		require.NoError(t, put(a, "x", "1"))
		level(t, driverNT, a, b)
		get := func(r Request) (string, error) {
			var v []byte
			r.Keys = []string{"x"}
			err := b.Execute(t.Context(), r, func(tx *Tx) (err error) { v, _, err = tx.Get("x"); return err })
			return string(v), err
		}
		v, err := get(Request{ReadOnly: true, FromReplica: true})
		require.NoError(t, err)
		require.Equal(t, "1", v)
		for _, r := range []Request{{ReadOnly: true}, {FromReplica: true}, {}} {
			var moved *MovedError
			_, err = get(r)
			require.ErrorAs(t, err, &moved, "%+v", r)
			require.Equal(t, a.ID(), moved.Node)
		}
		f.Cut(a.addr[:1], b.addr[:1]) // the third still hears both
		time.Sleep(driverNT / 4)
		require.NoError(t, a.Execute(t.Context(), Request{Keys: []string{"x"}}, func(tx *Tx) error { return tx.Put("x", []byte("2")) }))
		v, err = get(Request{ReadOnly: true, FromReplica: true})
		require.NoError(t, err, "as old as that it may be")
		require.Equal(t, "1", v)
		until(t, driverNT, "and no older", func() bool {
			_, err = get(Request{ReadOnly: true, FromReplica: true})
			return err != nil
		})
		var moved *MovedError
		require.ErrorAs(t, err, &moved, "it says who has newer")
		require.Equal(t, MovedError{Slot: KeySlot("x"), Node: a.ID(), Addr: a.addr}, *moved)
	})
}

// A message that says that a replica has all may have been on its way for long: by
// then the primary has more.
func TestAReplicaCountsTheTimeThatMessagesTake(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		nodes, f := formShardOn(t, 3, Config{ReplicaStaleness: 3 * driverNT / 10})
		a, b := nodes[0], nodes[1]
		r := Request{Keys: []string{"x"}, ReadOnly: true, FromReplica: true}
		shows := func() bool { return b.Execute(t.Context(), r, func(*Tx) error { return nil }) == nil }
		until(t, driverNT, "it shows what it has", shows)
		for range 1000 { // also where nothing happens
			require.True(t, shows())
			time.Sleep(time.Millisecond)
		}
		f.Set(a.addr[:1], b.addr[:1], transport.Link{Delay: driverNT / 2})
		until(t, driverNT, "it cannot know whether that is old", func() bool { return !shows() })
		for range 2000 {
			require.False(t, shows(), "what comes is half a NodeTimeout old")
			time.Sleep(time.Millisecond)
		}
		f.Set(a.addr[:1], b.addr[:1], transport.Link{Delay: driverNT / 20})
		until(t, driverNT, "it shows what it has again", shows)
	})
}

// Data that is on its way to a shard goes to its replicas, so that whoever leads it
// when the slots have come has it.
func TestSlotsMoveToAShardThatFailsOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFaults(t)
		nodes := formNodes(t, f, 4, Config{Primaries: 2, Replicas: 1})
		shardOf := func(i int) (primary, replica *node) {
			until(t, driverNT, "both shards", func() bool { return len(nodes[0].Table().Shards()) == 2 })
			x := nodes[0].Table().Shards()[i]
			for _, n := range nodes {
				switch n.ID() {
				case x.Primary:
					primary = n
				case x.Replicas[0]:
					replica = n
				}
			}
			return primary, replica
		}
		from, _ := shardOf(0)
		counts := make([]int64, racing.Fewer(64, 24))
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		defer wg.Wait()
		defer stop()
		for i := range counts {
			wg.Go(func() {
				for ctx.Err() == nil {
					v, err := from.Client().Incr(t.Context(), fmt.Sprint("key", i), 1)
					if counts[i]++; err != nil || v != counts[i] {
						t.Errorf("key%d is %d, expected %d: %v", i, v, counts[i], err)
						return
					}
					time.Sleep(time.Millisecond)
				}
			})
		}
		slots := from.Table().Slots(from.ID())
		slots.Remove(0)
		slots.Remove(NumSlots - 1) // so that no shard is without one
		for round := range racing.Fewer(4, 2) {
			to, replica := shardOf(1 - round%2)
			require.NoError(t, from.Admin().MoveSlots(t.Context(), slots, to.ID()), "round %d", round)
			until(t, 4*driverNT, "the failover", func() bool {
				err := replica.Admin().Failover(t.Context(), FailoverPlain)
				if err != nil {
					t.Log(err)
				}
				return err == nil
			})
		}
		stop()
		wg.Wait()
		for i := range 2 {
			p, r := shardOf(i)
			level(t, 2*driverNT, p, r)
		}
	})
}

// Many requests that are answered together wait once.
func TestASessionSettlesManyRequestsTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		nodes, f := formShardOn(t, 3, Config{AckReplicas: 1})
		a := nodes[0]
		until(t, driverNT, "all in sync", func() bool { return len(a.Status().Replication.InSync) == 3 })
		for _, b := range nodes[1:] {
			f.SetBoth(a.addr[:1], b.addr[:1], transport.Link{Delay: 10 * time.Millisecond})
		}
		s := a.Session()
		began := time.Now()
		for i := range 200 {
			key := fmt.Sprint("key", i)
			require.NoError(t, s.Execute(t.Context(), &Request{Keys: []string{key}, Later: true}, func(tx *Tx) error { return tx.Put(key, nil) }))
		}
		require.Equal(t, 200, s.Owed())
		require.Zero(t, time.Since(began))
		require.NoError(t, s.Settle(t.Context(), nil))
		require.Zero(t, s.Owed())
		require.Less(t, time.Since(began), 100*time.Millisecond)

		require.NoError(t, s.Execute(t.Context(), &Request{Keys: []string{"x"}, Later: true}, func(tx *Tx) error { return tx.Put("x", nil) }))
		require.NoError(t, s.Settle(t.Context(), nil))
		f.Partition([]string{a.addr[:1]}, []string{nodes[1].addr[:1], nodes[2].addr[:1]})
		require.NoError(t, s.Execute(t.Context(), &Request{Keys: []string{"y"}, Later: true}, func(tx *Tx) error { return tx.Put("y", nil) }))
		require.NoError(t, s.Execute(t.Context(), &Request{Keys: []string{"y"}, ReadOnly: true, Later: true}, func(tx *Tx) error { return nil }))
		require.NoError(t, s.Execute(t.Context(), &Request{Keys: []string{"z"}, Later: true}, func(tx *Tx) error { return tx.Put("z", nil) }))
		began = time.Now()
		outcomes := map[int]Outcome{}
		err := s.Settle(t.Context(), func(i int, err error) {
			var op *OpError
			require.ErrorAs(t, err, &op)
			require.ErrorIs(t, err, ErrClusterDown)
			outcomes[i] = op.Outcome
		})
		require.LessOrEqual(t, time.Since(began), driverNT, "for all of them together")
		require.Equal(t, map[int]Outcome{0: Unknown, 1: NotExecuted, 2: Unknown}, outcomes, "each of them")
		var op *OpError
		require.ErrorAs(t, err, &op)
		require.Equal(t, Unknown, op.Outcome, "the first")
		require.Zero(t, s.Owed())
	})
}

// What has run is not acknowledged once the lease is over, also where nobody waits for
// replicas: somebody else may lead by then.
func TestASessionSettlesNothingWithoutALease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		nodes, f := formShardOn(t, 3, Config{})
		a := nodes[0]
		s := a.Session()
		run := func() {
			for _, r := range []Request{{}, {ReadOnly: true}, {ReadOnly: true, Stale: true}} {
				r.Keys, r.Later = []string{"x"}, true
				require.NoError(t, s.Execute(t.Context(), &r, func(tx *Tx) error {
					if r.ReadOnly {
						return nil
					}
					return tx.Put("x", nil)
				}))
			}
			require.Equal(t, 2, s.Owed(), "who takes old data may have it")
		}
		run()
		time.Sleep(4 * driverNT) // the lease goes on
		require.NoError(t, s.Settle(t.Context(), nil))
		run()
		f.Partition([]string{a.addr[:1]}, []string{nodes[1].addr[:1], nodes[2].addr[:1]})
		time.Sleep(2 * driverNT)
		began := time.Now()
		var outcomes []Outcome
		require.ErrorIs(t, s.Settle(t.Context(), func(_ int, err error) {
			var op *OpError
			require.ErrorAs(t, err, &op)
			outcomes = append(outcomes, op.Outcome)
		}), ErrClusterDown)
		require.Equal(t, []Outcome{Unknown, NotExecuted}, outcomes)
		require.Zero(t, time.Since(began))
		f.Heal()
		leaderOf(t, 4*driverNT, nodes...)
		require.NoError(t, s.Settle(t.Context(), nil), "nothing is owed any more")
	})
}

// Requests that came together wait at slots on hold as long as one of them may, and what
// has run before may be answered first.
func TestRequestsThatCameTogetherWaitTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := formShard(t, 3, Config{})[0]
		slot := KeySlot("x")
		h := &hold{over: make(chan struct{}), limit: driverNT}
		held := oneSlotSet(slot)
		s, waits := a.Session(), 0
		s.OnWait(func() {
			waits++
			require.NoError(t, s.Settle(t.Context(), nil))
		})
		run := func(later bool) error {
			return s.Execute(t.Context(), &Request{Keys: []string{"x"}, Later: later}, func(tx *Tx) error { return tx.Put("x", nil) })
		}
		require.NoError(t, run(true))
		a.engine.setGate(&held, &gate{h})
		began := time.Now()
		for i := range 20 {
			require.ErrorIs(t, run(i%3 > 0), ErrClusterDown)
		}
		require.Equal(t, driverNT, time.Since(began))
		require.Equal(t, 1, waits)
		require.Zero(t, s.Owed(), "of what has run before")
		require.NoError(t, s.Settle(t.Context(), nil))
		began = time.Now()
		for range 2 {
			require.ErrorIs(t, run(false), ErrClusterDown)
		}
		require.Equal(t, 2*driverNT, time.Since(began), "those did not come together")
		require.Equal(t, 3, waits)
		time.AfterFunc(driverNT/2, func() {
			a.engine.setGate(&held, openGate)
			close(h.over)
		})
		require.NoError(t, run(true))
	})
}
