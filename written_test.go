package slotmesh

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slotmesh/slotmesh/internal/racing"
	"github.com/slotmesh/slotmesh/transport"
	"github.com/stretchr/testify/require"
)

// waits calls Wait for as long as d, and returns what it says.
func waits(t *testing.T, c *Client, replicas int, d time.Duration) (int, error) {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	return c.Wait(ctx, replicas)
}

func TestAClientWaitsUntilReplicasHaveWhatItHasWritten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		nodes, f := formShardOn(t, 3, Config{})
		a := nodes[0]
		until(t, driverNT, "all in sync", func() bool { return len(a.Status().Replication.InSync) == 3 })
		for name, n := range map[string]*node{"at the primary": a, "at a replica": nodes[1]} {
			c := n.Client().WithAckReplicas(0)
			have, err := waits(t, c, 7, driverNT)
			require.NoError(t, err, name)
			require.Equal(t, 7, have, "it has written nothing")
			require.NoError(t, c.Set(t.Context(), "x", []byte("1")))
			for _, want := range []int{0, 1, 2} {
				have, err = waits(t, c, want, driverNT)
				require.NoError(t, err, name)
				require.GreaterOrEqual(t, have, want)
			}
			began := time.Now()
			have, err = waits(t, c, 3, driverNT/2)
			var op *OpError
			require.ErrorAs(t, err, &op, name)
			require.ErrorIs(t, err, context.DeadlineExceeded, name)
			require.Equal(t, 2, have, name)
			require.LessOrEqual(t, time.Since(began), driverNT/2)

			f.Partition([]string{nodes[2].addr[:1]}, []string{a.addr[:1], nodes[1].addr[:1]})
			_, err = c.Delete(t.Context(), "x")
			require.NoError(t, err)
			have, err = waits(t, c, 2, driverNT/4)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.Equal(t, 1, have, name)
			f.Heal()
			have, err = waits(t, c, 2, 4*driverNT)
			require.NoError(t, err, name)
			require.Equal(t, 2, have)
			until(t, 4*driverNT, "all in sync", func() bool { return len(a.Status().Replication.InSync) == 3 })
		}
	})
}

// Reads write nothing, and neither does what is refused.
func TestAClientWaitsForItsWritesAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := startNode(t, Config{})
		c := a.Client()
		_, err := c.Get(t.Context(), "x")
		require.ErrorIs(t, err, ErrNotFound)
		require.ErrorIs(t, c.CompareAndSwap(t.Context(), "x", []byte("1"), nil), ErrConflict)
		have, err := c.Wait(t.Context(), 1)
		require.NoError(t, err)
		require.Equal(t, 1, have)
		require.NoError(t, c.WithAckReplicas(0).Set(t.Context(), "x", nil))
		_, err = c.Wait(t.Context(), 1)
		require.NoError(t, err, "another client has written it")
		require.NoError(t, c.Set(t.Context(), "x", nil))
		have, err = waits(t, c, 1, time.Second)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Zero(t, have)

		require.NoError(t, a.Execute(t.Context(), Request{Keys: []string{"x"}}, func(tx *Tx) error {
			_, err := c.Wait(tx.Context(), 1)
			require.ErrorIs(t, err, ErrInTx)
			return nil
		}))
		over, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = c.Wait(over, 1)
		require.ErrorIs(t, err, context.Canceled)
		a.Close()
		_, err = c.Wait(t.Context(), 1)
		require.ErrorIs(t, err, ErrClosed)
	})
}

// Nobody knows whether a new primary has what was written at the old one.
func TestAClientSaysThatItsWritesMayBeLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		nodes := formShard(t, 3, Config{})
		local, remote := nodes[1].Client(), nodes[2].Client()
		for _, c := range []*Client{local, remote} {
			require.NoError(t, c.Set(t.Context(), "x", []byte("1")))
		}
		nodes[0].Close()
		p := leaderOf(t, 3*driverNT, nodes[1:]...)
		for name, c := range map[string]*Client{"local": local, "remote": remote} {
			_, err := waits(t, c, 1, driverNT)
			require.ErrorIs(t, err, ErrNoReplicas, name)
			var op *OpError
			require.True(t, errors.As(err, &op))
			require.Equal(t, Unknown, op.Outcome)
			_, err = waits(t, c, 1, driverNT)
			require.NoError(t, err, "it is told once")
			require.NoError(t, c.Set(t.Context(), "x", []byte("2")))
			have, err := waits(t, c, 1, driverNT)
			require.NoError(t, err, name)
			require.Equal(t, 1, have)
		}
		// Another reign of the same node is another reign.
		for _, c := range []*Client{local, remote} {
			require.NoError(t, c.Set(t.Context(), "x", []byte("3")))
		}
		require.NoError(t, p.Admin().BumpEpoch(t.Context()))
		for name, c := range map[string]*Client{"local": local, "remote": remote} {
			if name == "local" {
				require.NoError(t, c.Set(t.Context(), "x", []byte("4")), "an answer of the new reign does not hide the old one")
			}
			_, err := waits(t, c, 1, driverNT)
			require.ErrorIs(t, err, ErrNoReplicas, name)
		}
	})
}

// Of several shards the one with the fewest counts.
func TestAClientWaitsForAllShardsThatItHasWrittenTo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFaults(t)
		nodes := formNodes(t, f, 4, Config{Primaries: 2, Replicas: 1})
		c := nodes[0].Client()
		for i := range 200 {
			require.NoError(t, c.Set(t.Context(), fmt.Sprint("key", i), nil))
		}
		have, err := waits(t, c, 1, driverNT)
		require.NoError(t, err)
		require.Equal(t, 1, have)
		lost := nodes[0].Table().Shards()[1].Replicas[0]
		for i, n := range nodes {
			if n.ID() == lost {
				c = nodes[(i+1)%4].Client()
				n.Close()
			}
		}
		for i := range 200 {
			require.NoError(t, c.Set(t.Context(), fmt.Sprint("key", i), nil))
		}
		have, err = waits(t, c, 1, driverNT/2)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Zero(t, have)
	})
}

func TestAClientMayWantReplicasForItsWrites(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		upper := Command{Name: "touch", Run: func(tx *Tx, args [][]byte) ([]byte, error) { return nil, tx.Put(string(args[0]), nil) }}
		look := Command{Name: "look", ReadOnly: true, Run: func(tx *Tx, args [][]byte) ([]byte, error) {
			v, _, err := tx.Get(string(args[0]))
			return v, err
		}}
		nodes, f := formShardOn(t, 3, Config{Commands: []Command{upper, look}})
		a := nodes[0]
		until(t, driverNT, "all in sync", func() bool { return len(a.Status().Replication.InSync) == 3 })
		for name, n := range map[string]*node{"at the primary": a, "at a replica": nodes[1]} {
			c := n.Client().WithAckReplicas(2)
			calls := map[string]func(c *Client) error{
				"set":     func(c *Client) error { return c.Set(t.Context(), "x", []byte("1")) },
				"expire":  func(c *Client) error { _, err := c.Expire(t.Context(), "x", time.Hour); return err },
				"incr":    func(c *Client) error { _, err := c.Incr(t.Context(), "x", 1); return err },
				"delete":  func(c *Client) error { _, err := c.Delete(t.Context(), "x"); return err },
				"swap":    func(c *Client) error { return c.CompareAndSwap(t.Context(), "x", nil, []byte("2")) },
				"command": func(c *Client) error { _, err := c.Do(t.Context(), "touch", []byte("x")); return err },
			}
			for _, call := range []string{"set", "incr", "expire", "delete", "swap", "command"} {
				before := a.repl.position().Offset
				require.NoError(t, calls[call](c), "%s %s", call, name)
				a.repl.mu.Lock()
				require.Equal(t, 2, a.repl.have(before+1), "%s %s: they have it when the call returns", call, name)
				a.repl.mu.Unlock()
				more := n.Client().WithAckReplicas(3)
				err := calls[call](more)
				require.ErrorIs(t, err, ErrNoReplicas, "%s %s", call, name)
				var op *OpError
				require.ErrorAs(t, err, &op)
				require.Equal(t, NotExecuted, op.Outcome)
			}
			_, err := n.Client().WithAckReplicas(3).Get(t.Context(), "x")
			require.NoError(t, err, "reads are as ever")
			_, err = n.Client().WithAckReplicas(3).Do(t.Context(), "look", []byte("x"))
			require.NoError(t, err)
			require.NoError(t, n.Client().WithAckReplicas(-1).Set(t.Context(), "x", nil))
			require.ErrorIs(t, n.Client().WithAckReplicas(1<<30).Set(t.Context(), "x", nil), ErrNoReplicas)
		}
		f.Partition([]string{nodes[1].addr[:1], nodes[2].addr[:1]}, []string{a.addr[:1]})
		ctx, cancel := context.WithTimeout(t.Context(), driverNT/4)
		defer cancel()
		err := a.Client().WithAckReplicas(1).Set(ctx, "x", nil)
		var op *OpError
		require.ErrorAs(t, err, &op, "nobody has it: %v", err)
		require.Equal(t, Unknown, op.Outcome)
	})
}

// holders counts the nodes whose stores have a key.
func holders(t *testing.T, key string, nodes ...*node) (k int) {
	t.Helper()
	for _, n := range nodes {
		c := n.engine.makeCell(KeySlot(key))
		c.mu.RLock()
		_, found, err := n.cfg.Store.Get(uint16(KeySlot(key)), key, "")
		c.mu.RUnlock()
		require.NoError(t, err)
		if found {
			k++
		}
	}
	return k
}

// The rule which replicas are counted is the driver's: those that are attached and have
// acknowledged, in this reign. So it is put under faults here: whatever connections do,
// no more are counted than have what was written, and what is acknowledged to a call that
// wants replicas, so many have.
func TestNoMoreReplicasAreCountedThanHaveWhatWasWritten(t *testing.T) {
	t.Parallel()
	for seed := range uint64(racing.Fewer(4, 1)) {
		synctest.Test(t, func(t *testing.T) {
			nodes, f := formShardOn(t, 3, Config{Backlog: 2000})
			a, replicas := nodes[0], nodes[1:]
			until(t, driverNT, "all in sync", func() bool { return len(a.Status().Replication.InSync) == 3 })
			rnd := rand.New(rand.NewPCG(seed, 12))
			counted, refused, late, asked := 0, 0, 0, 0
			for i := range racing.Fewer(300, 100) {
				r := replicas[rnd.IntN(len(replicas))]
				from, to := a.addr[:1], r.addr[:1]
				if rnd.IntN(2) == 0 {
					from, to = to, from
				}
				switch rnd.IntN(8) {
				case 0:
					f.Set(from, to, transport.Link{Stall: true})
				case 1:
					f.Set(from, to, transport.Link{Delay: time.Duration(rnd.Int64N(int64(driverNT / 4)))})
				case 2:
					f.Reset(from, to)
				case 3:
					f.Cut(from, to)
				case 4:
					f.Heal()
				}
				key, value := fmt.Sprint("key", i), make([]byte, rnd.IntN(200))
				want := 1 + rnd.IntN(2)
				c := a.Client()
				if rnd.IntN(2) == 0 {
					c = c.WithAckReplicas(want)
					asked++
				}
				ctx, cancel := context.WithTimeout(t.Context(), driverNT/8)
				err := c.Set(ctx, key, value)
				have, waited := 0, error(nil)
				if err == nil && c.acks == 0 {
					have, waited = c.Wait(ctx, want)
				}
				cancel()
				is := holders(t, key, nodes...) - 1 // besides who leads, whoever that is by now
				switch {
				case errors.Is(err, ErrNoReplicas):
					refused++
					require.Equal(t, -1, is, "%s was refused", key)
				case err != nil:
					late++
				case c.acks > 0:
					require.GreaterOrEqual(t, is, want, "%s was acknowledged to who wants so many", key)
				default:
					require.LessOrEqual(t, have, is, "%s: so many are said to have it", key)
					if waited == nil {
						require.GreaterOrEqual(t, have, want, key)
						counted++
					}
				}
				time.Sleep(time.Duration(rnd.Int64N(int64(driverNT / 20))))
			}
			t.Logf("seed %d: %d waits told, %d of %d calls that want replicas refused, %d not answered in time", seed, counted, refused, asked, late)
			require.Positive(t, counted)
			require.Positive(t, late)
			f.Heal()
		})
	}
}
