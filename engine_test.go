package slotmesh

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slotmesh/slotmesh/store"
	"github.com/slotmesh/slotmesh/transport"
	"github.com/stretchr/testify/require"
)

// One hold may follow another, as it does while other slots come and go: what a
// request waits in all is bounded.
func TestARequestWaitsForASlotOnHoldForOneNodeTimeoutInAll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		nodes := formNodes(t, newFaults(t), 3, Config{})
		n, key := nodes[0], keyOf(nodes[0], 0)
		o := newOutgoing(slotOf(key)) // a hand-over whose driver never answers the freeze
		require.NoError(t, n.jobs.begin(o))
		target := nodes[1].core.self.Shard
		require.NoError(t, n.post(t.Context(), func(s *state, now time.Duration) output { return s.handOff(now, o.job, o.slots, target) }))
		<-o.freeze.Load().frozen
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			for i := 1; ctx.Err() == nil; i++ {
				_ = n.Admin().MoveSlots(ctx, slotOf(keyOf(n, i)), nodes[1].ID())
				time.Sleep(driverNT / 4)
			}
		})
		began := time.Now()
		for name, call := range map[string]func() error{
			"execute": func() error { return n.Execute(ctx, Request{Keys: []string{key}}, func(*Tx) error { return nil }) },
			"get": func() error {
				_, _, err := n.engine.runOp(ctx, &request{op: opGet, args: [][]byte{[]byte(key)}}, waitHold)
				return err
			},
		} {
			wg.Go(func() {
				err := call()
				if !errors.Is(err, ErrClusterDown) || !strings.Contains(err.Error(), "on hold") {
					t.Errorf("%s: %v, want that the slot is on hold", name, err)
				}
				if d := time.Since(began); d > driverNT+driverNT/10 {
					t.Errorf("%s: waited %v, want %v", name, d, driverNT)
				}
			})
		}
		time.Sleep(2 * driverNT)
		stop()
		wg.Wait()
		n.jobs.finish(o)
	})
}

// What a command returns tells what it has seen, also where it is an error.
func TestNothingThatACommandSawIsToldOnceTheLeaseIsOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFaults(t)
		nodes := formNodes(t, f, 3, Config{})
		key := keyOf(nodes[0], 0)
		for _, result := range []error{nil, ErrConflict, &CommandError{Code: "WRONG", Text: "the value is x"}} {
			for _, readOnly := range []bool{true, false} {
				isReady(t, nodes[0])
				err := nodes[0].Execute(t.Context(), Request{Keys: []string{key}, ReadOnly: readOnly}, func(*Tx) error {
					f.Partition([]string{"a"}, []string{"b", "c"})
					time.Sleep(2 * driverNT) // the process stands still
					return result
				})
				var op *OpError
				require.ErrorAs(t, err, &op)
				require.ErrorIs(t, err, ErrClusterDown, "%v", result)
				require.Equal(t, NotExecuted, op.Outcome, "it has written nothing")
				f.Heal()
			}
		}
	})
}

// closingStore notes what is done to it after it was given back.
type closingStore struct {
	*store.Memory
	back *bool // guarded by the order that Close promises
	late *int
}

func (s closingStore) Apply(slot uint16, ops []store.Op) error {
	if *s.back {
		*s.late++
	}
	return s.Memory.Apply(slot, ops)
}

func TestNoCommandTouchesTheStoreAfterClose(t *testing.T) {
	for range 5 {
		var back bool
		var late int
		n := startNode(t, Config{Store: closingStore{store.NewMemory(), &back, &late}})
		isReady(t, n)
		var wg sync.WaitGroup
		running := make(chan struct{}, 4)
		for i := range 4 {
			wg.Go(func() {
				for {
					err := n.Execute(t.Context(), Request{Keys: []string{fmt.Sprint(i)}}, func(tx *Tx) error {
						select {
						case running <- struct{}{}:
						default:
						}
						return tx.Put(fmt.Sprint(i), nil)
					})
					if errors.Is(err, ErrClosed) {
						return
					}
				}
			})
		}
		<-running
		require.NoError(t, n.Close())
		back = true // a race, if anybody still looks
		wg.Wait()
		require.Zero(t, late)
	}
}

// That another node closes is no reason to say that this one has.
func TestACallWaitsWhileTheOwnerOfItsSlotRestarts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mem, seeds := transport.NewMemory(), []string{"a:1", "b:1", "c:1"}
		var nodes []*node
		config := func(i int) Config {
			return Config{Addr: seeds[i], Seeds: seeds, Primaries: 3, Transport: mem, NodeTimeout: driverNT, Dir: fmt.Sprint(t.TempDir(), i)}
		}
		cfgs := []Config{config(0), config(1), config(2)}
		for _, c := range cfgs {
			nodes = append(nodes, startNode(t, c))
		}
		for _, n := range nodes {
			isReady(t, n)
		}
		key := keyOf(nodes[1], 0)
		require.NoError(t, nodes[0].Client().Set(t.Context(), key, nil))
		nodes[1].engine.closed.Store(true) // as Close does first
		slots := slotOf(key)
		nodes[1].engine.shut(&slots)
		result := make(chan error, 1)
		go func() { result <- nodes[0].Client().Set(t.Context(), key, []byte("v")) }()
		time.Sleep(driverNT / 10)
		nodes[1].Close()
		nodes[1] = startNode(t, cfgs[1])
		require.NoError(t, <-result)
	})
}

func TestAContextThatIsOverStopsACommandOfAnOperator(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		nodes := formNodes(t, newFaults(t), 3, Config{})
		over, cancel := context.WithCancel(t.Context())
		cancel()
		n := nodes[0]
		own := n.Table().Slots(n.ID())
		for range 20 { // chance may let it pass
			for name, call := range map[string]func() error{
				"leave": func() error { _, err := n.Leave(over); return err },
				"bump":  func() error { return n.Admin().BumpEpoch(over) },
				"del":   func() error { return n.Admin().DelSlots(over, own) },
				"move":  func() error { return n.Admin().MoveSlots(over, own, nodes[1].ID()) },
				"reset": func() error { return n.Admin().Reset(over, true) },
			} {
				err := call()
				var a *AdminError
				if !errors.As(err, &a) || !errors.Is(err, context.Canceled) || a.Outcome != NotExecuted {
					t.Fatalf("%s: %v, want an AdminError that was not executed", name, err)
				}
			}
		}
		time.Sleep(driverNT)
		require.Equal(t, own, nodes[1].Table().Slots(n.ID()))
	})
}

// What a command hears from other nodes is not an answer of this one.
func TestAnErrorThatACommandPassesOnIsItsOwn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		fail := Command{Name: "fail", Run: func(_ *Tx, args [][]byte) ([]byte, error) {
			calls++
			return nil, map[string]error{
				"down":  &OpError{Op: "get", Err: ErrClusterDown},
				"again": ErrTryAgain,
				"moved": &MovedError{Slot: 3, Addr: "x:1"},
				"none":  ErrNotFound,
				"long":  errors.New(strings.Repeat("x", 1<<20)),
				"code":  &CommandError{Code: strings.Repeat("C", 1000), Text: strings.Repeat("é", 1<<20)},
			}[string(args[1])]
		}}
		nodes := formNodes(t, newFaults(t), 2, Config{MaxValue: 1000, Commands: []Command{fail}})
		for _, n := range nodes {
			for _, what := range []string{"down", "again", "moved", "none", "long", "code"} {
				calls = 0
				_, err := n.Client().Do(t.Context(), "fail", []byte(keyOf(nodes[1], 0)), []byte(what))
				var op *OpError
				require.ErrorAs(t, err, &op, what)
				require.Equal(t, NotExecuted, op.Outcome, what)
				require.Equal(t, 1, calls, "%s: %v", what, err)
				require.Less(t, len(err.Error()), 17<<10, what)
				var cmd *CommandError
				require.Equal(t, what != "none", errors.As(err, &cmd), "%s: %v", what, err)
				require.Equal(t, what == "none", errors.Is(err, ErrNotFound))
			}
		}
	})
}

// Calls for plain values do not show what a collection has in its header.
func TestCallsForPlainValuesRefuseCollections(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		nodes := formNodes(t, newFaults(t), 2, Config{})
		key := keyOf(nodes[0], 0)
		require.NoError(t, nodes[0].Execute(t.Context(), Request{Keys: []string{key}}, func(tx *Tx) error {
			return tx.PutEntry(key, store.Entry{Kind: 2, Value: []byte("7")})
		}))
		for _, n := range nodes {
			c := n.Client()
			_, get := c.Get(t.Context(), key)
			_, incr := c.Incr(t.Context(), key, 1)
			for name, err := range map[string]error{"get": get, "incr": incr, "compare-and-swap": c.CompareAndSwap(t.Context(), key, []byte("7"), nil)} {
				var op *OpError
				var cmd *CommandError
				if !errors.As(err, &op) || op.Outcome != NotExecuted || !errors.As(err, &cmd) || cmd.Code != "WRONGTYPE" {
					t.Errorf("%s: %v, want WRONGTYPE, not executed", name, err)
				}
			}
		}
		found, err := nodes[1].Client().Delete(t.Context(), key)
		require.NoError(t, err)
		require.True(t, found, "it is still there")
	})
}

// A command may hold its slot for long: whoever waits for it has a context.
func TestACallWaitsForACommandAsLongAsItsContextAllows(t *testing.T) {
	nodes := formNodes(t, newFaults(t), 2, Config{})
	n, key := nodes[0], keyOf(nodes[0], 0)
	running, release := make(chan struct{}), make(chan struct{})
	ran := make(chan error, 1)
	go func() {
		ran <- n.Execute(t.Context(), Request{Keys: []string{key}}, func(*Tx) error {
			close(running)
			<-release
			return nil
		})
	}()
	<-running
	for _, at := range nodes {
		c := at.Client()
		for name, call := range map[string]func(ctx context.Context) error{
			"get":  func(ctx context.Context) error { _, err := c.Get(ctx, key); return err },
			"set":  func(ctx context.Context) error { return c.Set(ctx, key, []byte("late")) },
			"incr": func(ctx context.Context) error { _, err := c.Incr(ctx, key, 1); return err },
		} {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			err := call(ctx)
			cancel()
			var op *OpError
			require.ErrorAs(t, err, &op, name)
			require.ErrorIs(t, err, context.DeadlineExceeded, name)
			if at == n {
				require.Equal(t, NotExecuted, op.Outcome, "%s: %v", name, err)
			}
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, n.Session().Execute(ctx, &Request{Keys: []string{key}}, func(*Tx) error { return nil }), context.DeadlineExceeded)
	waits := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		waits <- n.Client().Set(ctx, "{"+key+"}2", nil)
	}()
	until(t, time.Second, "nobody waits", func() bool { return n.engine.waiters.Load() > 0 })
	close(release)
	require.NoError(t, <-ran)
	require.NoError(t, <-waits)
	until(t, time.Second, "somebody waits yet", func() bool { return n.engine.waiters.Load() == 0 })
}
