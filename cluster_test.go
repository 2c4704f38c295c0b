package slotmesh_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slotmesh/slotmesh"
	"github.com/slotmesh/slotmesh/internal/loopback"
	"github.com/slotmesh/slotmesh/internal/racing"
	"github.com/slotmesh/slotmesh/store"
	"github.com/slotmesh/slotmesh/transport"
	"github.com/stretchr/testify/require"
)

const nt = 2 * time.Second

// closeAll ends the nodes before the bubble ends.
func closeAll(nodes ...slotmesh.Node) {
	for _, n := range nodes {
		n.Close()
	}
}

// keyAt returns a key whose slot a node owns.
func keyAt(n slotmesh.Node) string {
	for i := 0; ; i++ {
		k := fmt.Sprint("k", i)
		if o, ok := n.Table().Owner(slotmesh.KeySlot(k)); ok && o.ID == n.ID() {
			return k
		}
	}
}

// eventually waits for a condition, as fake time goes by.
func eventually(t *testing.T, within time.Duration, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(within); !cond(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", within, what)
		}
	}
}

func TestCallsAreCountedOnceWhileSlotsMoveBackAndForth(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		nodes := form(t, transport.NewMemory(), 3, slotmesh.Config{NodeTimeout: nt})
		defer closeAll(nodes...)
		ctx, stop := context.WithCancel(t.Context())
		keys := racing.Fewer(64, 24)
		var wg sync.WaitGroup
		counts := make([]int, keys)
		for i := range keys {
			wg.Go(func() {
				for ctx.Err() == nil {
					if _, err := nodes[i%3].Client().Incr(t.Context(), fmt.Sprint("key", i), 1); err != nil {
						t.Errorf("key%d: %v", i, err)
						return
					}
					counts[i]++
					time.Sleep(time.Millisecond)
				}
			})
		}
		first := nodes[0].Table().Slots(nodes[0].ID())
		for round := range 6 {
			to := nodes[(round+1)%3]
			require.NoError(t, nodes[round%3].Admin().MoveSlots(t.Context(), first, to.ID()), "round %d", round)
		}
		stop()
		wg.Wait()
		for i := range keys {
			v, err := nodes[2].Client().Get(t.Context(), fmt.Sprint("key", i))
			require.NoError(t, err)
			require.Equal(t, strconv.Itoa(counts[i]), string(v), "key%d", i)
		}
		require.Equal(t, first, nodes[1].Table().Slots(nodes[0].ID()), "six moves in a circle of three end where they began")
	})
}

func TestANodeCutOffFromTheMajorityStopsAnswering(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		faults := transport.NewFaults(transport.NewMemory(), 1)
		defer faults.Close()
		var nodes []slotmesh.Node
		seeds := []string{"a:1", "b:1", "c:1"}
		for i, name := range []string{"a", "b", "c"} {
			n, err := slotmesh.Start(t.Context(), slotmesh.Config{Addr: seeds[i], Seeds: seeds, Primaries: 3, NodeTimeout: nt, Transport: faults.Node(name)})
			require.NoError(t, err)
			defer n.Close()
			nodes = append(nodes, n)
		}
		for _, n := range nodes {
			require.NoError(t, n.Ready(t.Context()))
		}
		key := keyAt(nodes[0])
		require.NoError(t, nodes[0].Client().Set(t.Context(), key, []byte("v")))
		faults.Partition([]string{"a"}, []string{"b", "c"})
		cut := time.Now()
		eventually(t, 2*nt, "the node still answers", func() bool {
			err := nodes[0].Execute(t.Context(), slotmesh.Request{Keys: []string{key}, ReadOnly: true}, func(*slotmesh.Tx) error { return nil })
			return errors.Is(err, slotmesh.ErrClusterDown)
		})
		require.LessOrEqual(t, time.Since(cut), nt, "it stops within a NodeTimeout")
		eventually(t, nt/10, "the status says why", func() bool {
			s := nodes[0].Status()
			return !s.OK && strings.Contains(s.Reason, "lease")
		})
		other := keyAt(nodes[1])
		require.NoError(t, nodes[2].Client().Set(t.Context(), other, []byte("v")), "the majority goes on")
		faults.Heal()
		eventually(t, 4*nt, "the node does not serve again", func() bool {
			v, err := nodes[1].Client().Get(t.Context(), key)
			return err == nil && string(v) == "v"
		})
	})
}

func TestAnOutcomeThatIsUnknownIsSaid(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		faults := transport.NewFaults(transport.NewMemory(), 1)
		defer faults.Close()
		seeds := []string{"a:1", "b:1"}
		var nodes []slotmesh.Node
		entered, release := make(chan struct{}, 8), make(chan struct{})
		slow := slotmesh.Command{Name: "slow", Run: func(tx *slotmesh.Tx, args [][]byte) ([]byte, error) {
			entered <- struct{}{}
			<-release
			return nil, tx.Put(string(args[0]), []byte("done"))
		}}
		for i, name := range []string{"a", "b"} {
			n, err := slotmesh.Start(t.Context(), slotmesh.Config{Addr: seeds[i], Seeds: seeds, Primaries: 2, NodeTimeout: nt, Transport: faults.Node(name), Commands: []slotmesh.Command{slow}})
			require.NoError(t, err)
			defer n.Close()
			nodes = append(nodes, n)
		}
		for _, n := range nodes {
			require.NoError(t, n.Ready(t.Context()))
		}
		key := keyAt(nodes[1])
		got := make(chan error, 1)
		go func() {
			_, err := nodes[0].Client().Do(t.Context(), "slow", []byte(key))
			got <- err
		}()
		<-entered
		faults.Reset("a", "b")
		var op *slotmesh.OpError
		err := <-got
		require.True(t, errors.As(err, &op), "%v", err)
		require.Equal(t, slotmesh.Unknown, op.Outcome)
		require.Equal(t, nodes[1].ID(), op.Node)
		close(release)
		eventually(t, nt, "the command has not run", func() bool {
			v, err := nodes[0].Client().Get(t.Context(), key)
			return err == nil && string(v) == "done"
		})
		require.Empty(t, entered, "it has run once")
	})
}

func TestANodeThatRestartsIsTheSameOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mem := transport.NewMemory()
		seeds := []string{"a:1", "b:1", "c:1"}
		dir := t.TempDir()
		config := func(i int) slotmesh.Config {
			return slotmesh.Config{Addr: seeds[i], Seeds: seeds, Primaries: 3, NodeTimeout: nt, Transport: mem, Dir: fmt.Sprint(dir, "/", i)}
		}
		nodes := make([]slotmesh.Node, 3)
		for i := range nodes {
			n, err := slotmesh.Start(t.Context(), config(i))
			require.NoError(t, err)
			nodes[i] = n
		}
		for _, n := range nodes {
			require.NoError(t, n.Ready(t.Context()))
		}
		id, epoch := nodes[0].ID(), nodes[0].Status().MyEpoch
		slots := nodes[1].Table().Slots(id)

		_, err := slotmesh.Start(t.Context(), config(0))
		require.ErrorContains(t, err, "in use")

		key := keyAt(nodes[0])
		nodes[0].Close()
		deaf := config(0)
		deaf.Addr, deaf.Seeds, deaf.Primaries = "", nil, 0
		_, err = slotmesh.Start(t.Context(), deaf)
		require.ErrorContains(t, err, `Config.Addr is "", expected an address to listen at: the node in `+deaf.Dir+" has 2 other members")
		n, err := slotmesh.Start(t.Context(), config(0))
		require.NoError(t, err)
		nodes[0] = n
		defer closeAll(nodes...)
		require.Equal(t, id, n.ID())
		require.NoError(t, n.Ready(t.Context()))
		require.Greater(t, n.Status().MyEpoch, epoch, "it has won its shard anew")
		require.Equal(t, slots, nodes[1].Table().Slots(id))
		require.NoError(t, nodes[2].Client().Set(t.Context(), key, []byte("v")))
	})
}

func TestANodeJoinsTakesSlotsGivesThemBackAndLeaves(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mem := transport.NewMemory()
		nodes := form(t, mem, 3, slotmesh.Config{NodeTimeout: nt})
		defer closeAll(nodes...)
		ctx := t.Context()
		for i := range 300 {
			require.NoError(t, nodes[0].Client().Set(ctx, fmt.Sprint("key", i), []byte(fmt.Sprint(i))))
		}
		x, err := slotmesh.Start(ctx, slotmesh.Config{Addr: "x:1", Join: true, Seeds: []string{"seed-1:1"}, NodeTimeout: nt, Transport: mem})
		require.NoError(t, err)
		defer x.Close()
		require.NoError(t, x.Ready(ctx))
		var set slotmesh.SlotSet
		set.AddRange(slotmesh.SlotRange{First: 1000, Last: 1999})
		require.NoError(t, x.Admin().MoveSlots(ctx, set, x.ID()), "asked of the one that gets them")
		require.Equal(t, set, x.Table().Slots(x.ID()))

		_, err = x.Leave(ctx)
		require.ErrorIs(t, err, slotmesh.ErrRefused)
		require.ErrorContains(t, err, "1000 slots")

		require.NoError(t, nodes[1].Admin().MoveSlots(ctx, set, nodes[1].ID()))
		_, err = x.Leave(ctx)
		require.NoError(t, err)
		for _, n := range nodes {
			eventually(t, nt, "the node is still a member", func() bool { return len(n.Table().Nodes()) == 3 })
		}
		for i := range 300 {
			v, err := nodes[i%3].Client().Get(ctx, fmt.Sprint("key", i))
			require.NoError(t, err)
			require.Equal(t, fmt.Sprint(i), string(v))
		}
	})
}

func TestCollectionsAndTimesOfExpiryMoveToo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		nodes := form(t, transport.NewMemory(), 2, slotmesh.Config{NodeTimeout: nt})
		defer closeAll(nodes...)
		ctx := t.Context()
		key := keyAt(nodes[0])
		tag := "{" + key + "}"
		r := slotmesh.Request{Keys: []string{key, tag + "ttl"}}
		require.NoError(t, nodes[0].Execute(ctx, r, func(tx *slotmesh.Tx) error {
			if err := tx.PutEntry(key, store.Entry{Kind: 3, Value: []byte("header")}); err != nil {
				return err
			}
			for i := range 1000 {
				if err := tx.PutField(key, fmt.Sprintf("field%04d", i), []byte(fmt.Sprint(i))); err != nil {
					return err
				}
			}
			return tx.PutEntry(tag+"ttl", store.Entry{Value: []byte("soon gone"), ExpireAt: tx.Now().Add(time.Minute).UnixMilli()})
		}))
		set := nodes[0].Table().Slots(nodes[0].ID())
		require.NoError(t, nodes[0].Admin().MoveSlots(ctx, set, nodes[1].ID()))
		require.NoError(t, nodes[1].Execute(ctx, r, func(tx *slotmesh.Tx) error {
			e, found, err := tx.Entry(key)
			require.NoError(t, err)
			require.True(t, found)
			require.EqualValues(t, 3, e.Kind)
			items, more, err := tx.Range(key, "field0990", 0)
			require.NoError(t, err)
			require.Len(t, items, 10)
			require.False(t, more)
			_, found, err = tx.Get(tag + "ttl")
			require.True(t, found)
			return err
		}))
		time.Sleep(time.Minute)
		_, err := nodes[0].Client().Get(ctx, tag+"ttl")
		require.ErrorIs(t, err, slotmesh.ErrNotFound)
	})
}

func TestExpiredKeysAreSwept(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mem := store.NewMemory()
		n, err := slotmesh.Start(t.Context(), slotmesh.Config{Store: mem})
		require.NoError(t, err)
		defer n.Close()
		for i := range 5000 {
			require.NoError(t, n.Client().SetFor(t.Context(), fmt.Sprint("key", i), []byte("v"), time.Duration(i+1)*time.Millisecond))
		}
		require.NoError(t, n.Client().Set(t.Context(), "stays", []byte("v")))
		time.Sleep(10 * time.Second)
		n.Close()
		left := 0
		for s := range slotmesh.NumSlots {
			k, err := mem.Len(uint16(s))
			require.NoError(t, err)
			left += k
		}
		require.Equal(t, 1, left)
	})
}

func TestCommands(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var node slotmesh.Node
		commands := []slotmesh.Command{
			{Name: "append", Run: func(tx *slotmesh.Tx, args [][]byte) ([]byte, error) {
				v, _, err := tx.Get(string(args[0]))
				if err != nil {
					return nil, err
				}
				v = append(append([]byte(nil), v...), args[1]...)
				return v, tx.Put(string(args[0]), v)
			}},
			{Name: "fail", Run: func(tx *slotmesh.Tx, args [][]byte) ([]byte, error) {
				_ = tx.Put(string(args[0]), []byte("half done"))
				return nil, &slotmesh.CommandError{Code: "NOPE", Text: "not today"}
			}},
			{Name: "panic", Run: func(tx *slotmesh.Tx, args [][]byte) ([]byte, error) {
				_ = tx.Put(string(args[0]), []byte("half done"))
				panic("oops")
			}},
			{Name: "peek", ReadOnly: true, Run: func(tx *slotmesh.Tx, args [][]byte) ([]byte, error) {
				return nil, tx.Put(string(args[0]), nil)
			}},
			{Name: "nested", Run: func(tx *slotmesh.Tx, args [][]byte) ([]byte, error) {
				_, err := node.Client().Get(tx.Context(), "other")
				return nil, err
			}},
			{Name: "stray", Run: func(tx *slotmesh.Tx, args [][]byte) ([]byte, error) {
				return nil, tx.Put("elsewhere", nil)
			}},
			{Name: "two", Keys: func(args [][]byte) [][]byte { return args }, Run: func(tx *slotmesh.Tx, args [][]byte) ([]byte, error) {
				return []byte(strconv.Itoa(len(args))), nil
			}},
		}
		var err error
		node, err = slotmesh.Start(t.Context(), slotmesh.Config{Commands: commands})
		require.NoError(t, err)
		defer node.Close()
		c := node.Client()
		require.NoError(t, c.Set(t.Context(), "key", []byte("a")))
		v, err := c.Do(t.Context(), "append", []byte("key"), []byte("b"))
		require.NoError(t, err)
		require.Equal(t, "ab", string(v))

		for _, tc := range []struct {
			name string
			args []string
			is   error
			text string
		}{
			{"fail", []string{"key"}, nil, "NOPE not today"},
			{"panic", []string{"key"}, nil, "ERR the command panicked: oops"},
			{"peek", []string{"key"}, slotmesh.ErrReadOnly, ""},
			{"nested", []string{"key"}, slotmesh.ErrInTx, ""},
			{"stray", []string{"key"}, slotmesh.ErrCrossSlot, `key "elsewhere" is in slot`},
			{"two", []string{"foo", "bar"}, slotmesh.ErrCrossSlot, `key "foo" is in slot 12182, key "bar" in slot 5061`},
			{"two", nil, slotmesh.ErrInvalid, "without keys"},
			{"none", []string{"key"}, slotmesh.ErrUnknownCommand, `"none"`},
		} {
			var args [][]byte
			for _, a := range tc.args {
				args = append(args, []byte(a))
			}
			_, err := c.Do(t.Context(), tc.name, args...)
			var op *slotmesh.OpError
			if !errors.As(err, &op) || op.Outcome != slotmesh.NotExecuted {
				t.Errorf("%s: %v, want an OpError that was not executed", tc.name, err)
				continue
			}
			if tc.is != nil && !errors.Is(err, tc.is) || !strings.Contains(err.Error(), tc.text) {
				t.Errorf("%s: %v, want %v with %q", tc.name, err, tc.is, tc.text)
			}
			var cmd *slotmesh.CommandError
			if tc.is == nil && !errors.As(err, &cmd) {
				t.Errorf("%s: %v, want a CommandError", tc.name, err)
			}
		}
		v, err = c.Get(t.Context(), "key")
		require.NoError(t, err)
		require.Equal(t, "ab", string(v), "a command that fails leaves nothing behind")
	})
}

func TestACommandThatTheOwnerDoesNotKnow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mem := transport.NewMemory()
		seeds := []string{"a:1", "b:1"}
		cmd := slotmesh.Command{Name: "new", Run: func(*slotmesh.Tx, [][]byte) ([]byte, error) { return nil, nil }}
		var nodes []slotmesh.Node
		for i, addr := range seeds {
			c := slotmesh.Config{Addr: addr, Seeds: seeds, Primaries: 2, NodeTimeout: nt, Transport: mem}
			if i == 0 {
				c.Commands = []slotmesh.Command{cmd}
			}
			n, err := slotmesh.Start(t.Context(), c)
			require.NoError(t, err)
			defer n.Close()
			nodes = append(nodes, n)
		}
		require.NoError(t, nodes[0].Ready(t.Context()))
		require.NoError(t, nodes[1].Ready(t.Context()))
		_, err := nodes[0].Client().Do(t.Context(), "new", []byte(keyAt(nodes[1])))
		require.ErrorIs(t, err, slotmesh.ErrUnknownCommand)
		require.ErrorContains(t, err, `"new" at this node`)
	})
}

func TestCompareAndSwap(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n, err := slotmesh.Start(t.Context(), slotmesh.Config{})
		require.NoError(t, err)
		defer n.Close()
		c, ctx := n.Client(), t.Context()
		require.NoError(t, c.CompareAndSwap(ctx, "k", nil, []byte("1")))
		require.ErrorIs(t, c.CompareAndSwap(ctx, "k", nil, []byte("2")), slotmesh.ErrConflict)
		require.ErrorIs(t, c.CompareAndSwap(ctx, "k", []byte("0"), []byte("2")), slotmesh.ErrConflict)
		require.NoError(t, c.CompareAndSwap(ctx, "k", []byte("1"), []byte{}))
		require.NoError(t, c.CompareAndSwap(ctx, "k", []byte{}, []byte("3")))
		require.ErrorIs(t, c.CompareAndSwap(ctx, "none", []byte{}, []byte("3")), slotmesh.ErrConflict)
		found, err := c.Delete(ctx, "k")
		require.NoError(t, err)
		require.True(t, found)
		found, err = c.Delete(ctx, "k")
		require.NoError(t, err)
		require.False(t, found)
		_, err = c.Incr(ctx, "n", 1<<62)
		require.NoError(t, err)
		_, err = c.Incr(ctx, "n", 1<<62)
		require.ErrorContains(t, err, "overflow")
		require.NoError(t, c.Set(ctx, "s", []byte("seven")))
		_, err = c.Incr(ctx, "s", 1)
		require.ErrorContains(t, err, "not an integer")
	})
}

func do(ctx context.Context, c *slotmesh.Client, name string, args ...[]byte) error {
	_, err := c.Do(ctx, name, args...)
	return err
}

func TestCallsWithBadArguments(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		echo := slotmesh.Command{Name: "echo", Run: func(_ *slotmesh.Tx, args [][]byte) ([]byte, error) { return args[0], nil }}
		n, err := slotmesh.Start(t.Context(), slotmesh.Config{MaxKey: 16, MaxValue: 64, Commands: []slotmesh.Command{echo}})
		require.NoError(t, err)
		defer n.Close()
		c, ctx := n.Client(), t.Context()
		over, cancel := context.WithCancel(ctx)
		cancel()
		long := strings.Repeat("k", 17)
		for name, err := range map[string]error{
			"key of 17 bytes, expected at most 16":        c.Set(ctx, long, nil),
			"context canceled":                            c.Set(over, "k", nil),
			": value of 65 bytes, expected at most 64":    c.Set(ctx, "k", make([]byte, 65)),
			": value of 66 bytes, expected at most 64":    c.CompareAndSwap(ctx, "k", nil, make([]byte, 66)),
			"old value of 67 bytes, expected at most 64":  c.CompareAndSwap(ctx, "k", make([]byte, 67), nil),
			"argument 2 of 68 bytes, expected at most 64": do(ctx, c, "echo", []byte("k"), make([]byte, 68)),
			"time to live 0s, expected at least 1 ms":     c.SetFor(ctx, "k", nil, 0),
			"slot 16384, expected 0-16383":                n.Admin().SetSlotStable(ctx, slotmesh.NumSlots),
			"slot 16385, expected 0-16383":                n.Admin().SetSlotMigrating(ctx, slotmesh.NumSlots+1, n.ID()),
			"slot 16386, expected 0-16383":                n.Admin().SetSlotImporting(ctx, slotmesh.NumSlots+2, n.ID()),
		} {
			if err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("%v, want %q", err, name)
			}
		}
		_, err = c.Get(ctx, long)
		require.ErrorIs(t, err, slotmesh.ErrTooLarge)
		_, err = c.Get(ctx, "k")
		require.ErrorIs(t, err, slotmesh.ErrNotFound, "nothing half done")
		err = n.Execute(ctx, slotmesh.Request{Keys: []string{"k"}}, func(tx *slotmesh.Tx) error { return tx.Put("k", make([]byte, 65)) })
		require.ErrorIs(t, err, slotmesh.ErrTooLarge)
		_, err = slotmesh.Start(over, slotmesh.Config{})
		require.ErrorIs(t, err, context.Canceled)
	})
}

func TestEveryProblemOfAConfigIsNamed(t *testing.T) {
	run := func(*slotmesh.Tx, [][]byte) ([]byte, error) { return nil, nil }
	for _, tc := range []struct {
		name string
		c    slotmesh.Config
		want []string
	}{
		{"limits", slotmesh.Config{NodeTimeout: time.Millisecond, MaxVoters: 4, MaxKey: -1, MaxValue: 1<<31 - 1, Host: "a b"},
			[]string{"NodeTimeout is 1ms, expected 250ms", "MaxVoters is 4, expected an odd number", "MaxKey is -1", "MaxValue is 2147483647", `Host is "a b"`}},
		{"company without a port", slotmesh.Config{Join: true}, []string{`Addr is "", expected an address`}},
		{"address", slotmesh.Config{Addr: "nowhere"}, []string{`Config.Addr`, `"nowhere"`, "host:port"}},
		{"in the clear", slotmesh.Config{Addr: "10.1.2.3:7000"}, []string{"Insecure"}},
		{"seeds", slotmesh.Config{Addr: "127.0.0.1:0", Primaries: 3}, []string{"Seeds is empty"}},
		{"seed", slotmesh.Config{Addr: "127.0.0.1:0", Seeds: []string{"a:b:c"}}, []string{"Config.Seeds", "a:b:c"}},
		{"an empty seed", slotmesh.Config{Addr: "127.0.0.1:0", Seeds: []string{"127.0.0.1:1", ""}}, []string{`Config.Seeds[1] is "", expected the address of a node`}},
		{"an empty seed, no TCP", slotmesh.Config{Addr: "a", Seeds: []string{""}, Transport: transport.NewMemory()}, []string{`Config.Seeds[0] is "", expected the address of a node`}},
		{"number and hand", slotmesh.Config{Addr: "127.0.0.1:0", Primaries: 1, Join: true}, []string{"Join is true"}},
		{"replicas", slotmesh.Config{Replicas: 1, AckReplicas: 1, Backlog: -1, ReplicaStaleness: 1},
			[]string{"Replicas is 1, expected 0 where Primaries is 0", "Backlog is -1", "ReplicaStaleness is 1ns, expected at least 1.5s"}},
		{"too many acknowledgements", slotmesh.Config{Addr: "127.0.0.1:0", Primaries: 1, AckReplicas: 101}, []string{"AckReplicas is 101, expected 0 to 100", "at most Replicas"}},
		{"commands", slotmesh.Config{Commands: []slotmesh.Command{{Name: "x", Run: run}, {Name: "x", Run: run}, {Name: "y"}, {Run: run}, {Name: "a b", Run: run}}},
			[]string{`Commands[1].Name is "x", which is there already`, `Run of "y" is nil`, `Commands[3].Name is ""`, `Commands[4].Name is "a b"`}},
	} {
		_, err := slotmesh.Start(t.Context(), tc.c)
		for _, want := range tc.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", tc.name, err, want)
			}
		}
	}
}

func TestCommandsOfOperatorsThatAreRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mem := transport.NewMemory()
		nodes := form(t, mem, 3, slotmesh.Config{NodeTimeout: nt})
		defer closeAll(nodes...)
		ctx := t.Context()
		a := nodes[0].Admin()
		var one, none slotmesh.SlotSet
		one.Add(7)
		stranger := slotmesh.NodeID{1}
		require.NoError(t, nodes[0].Client().Set(ctx, keyAt(nodes[0]), []byte("v")))
		for name, err := range map[string]error{
			"Slot 7 is already busy":       a.AddSlots(ctx, one),
			"Unknown node 01":              a.SetSlots(ctx, one, stranger),
			"Unknown node 01 ":             a.MoveSlots(ctx, one, stranger),
			"I can't forget myself":        a.Forget(ctx, nodes[0].ID(), false),
			"owns 546":                     a.Forget(ctx, nodes[1].ID(), false),
			"does not know any other node": a.SetConfigEpoch(ctx, 3),
			"master nodes containing keys": a.Reset(ctx, false),
			"expected an odd number":       a.ForceVoters(ctx, nil),
			`transport: address ""`:        a.Meet(ctx, ""),
		} {
			if !errors.Is(err, slotmesh.ErrRefused) || !strings.Contains(err.Error(), strings.TrimSpace(name)) {
				t.Errorf("%v, want refused with %q", err, name)
			}
		}
		require.NoError(t, a.AddSlots(ctx, none), "no slots, nothing to do")
		require.NoError(t, a.DelSlots(ctx, one))
		require.ErrorContains(t, a.DelSlots(ctx, one), "Slot 7 is already unassigned")
		require.False(t, nodes[2].Status().OK)
		require.NoError(t, nodes[1].Admin().AddSlots(ctx, one))
		owner, ok := nodes[2].Table().Owner(7)
		require.True(t, ok)
		require.Equal(t, nodes[1].ID(), owner.ID, "the reply waits until every member knows")
		require.NoError(t, a.BumpEpoch(ctx))
	})
}

func TestAClusterMeetsAnotherAndNothingChanges(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mem := transport.NewMemory()
		nodes := form(t, mem, 2, slotmesh.Config{NodeTimeout: nt})
		defer closeAll(nodes...)
		other, err := slotmesh.Start(t.Context(), slotmesh.Config{Addr: "other:1", NodeTimeout: nt, Transport: mem})
		require.NoError(t, err)
		defer other.Close()
		require.NoError(t, other.Ready(t.Context()))
		events := nodes[0].Events(t.Context(), 16)
		require.NoError(t, nodes[0].Admin().Meet(t.Context(), "other:1"))
		for e := range events {
			if e.Kind == slotmesh.EventRefused {
				require.Equal(t, other.ID(), e.Node)
				require.Contains(t, e.Text, "another cluster")
				break
			}
		}
		require.Len(t, nodes[0].Table().Nodes(), 2)
		require.Len(t, other.Table().Nodes(), 1)
	})
}

func TestEventsThatDoNotFitAreCounted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		nodes := form(t, transport.NewMemory(), 2, slotmesh.Config{NodeTimeout: nt})
		defer closeAll(nodes...)
		ctx, cancel := context.WithCancel(t.Context())
		events := nodes[0].Events(ctx, 1)
		for range 5 {
			require.NoError(t, nodes[0].Admin().BumpEpoch(t.Context()))
		}
		require.Equal(t, slotmesh.EventPrimary, (<-events).Kind)
		require.NoError(t, nodes[0].Admin().BumpEpoch(t.Context()))
		lost := <-events
		require.Equal(t, slotmesh.EventLost, lost.Kind)
		require.EqualValues(t, 4, lost.Number)
		cancel()
		synctest.Wait()
		for range events {
		}
		closed := nodes[0].Events(t.Context(), 1)
		nodes[0].Close()
		for range closed {
		}
	})
}

func TestCloseMayBeCalledTwiceAndAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		nodes := form(t, transport.NewMemory(), 3, slotmesh.Config{NodeTimeout: nt})
		var wg sync.WaitGroup
		for _, n := range append(nodes, nodes...) {
			wg.Go(func() {
				for {
					if err := n.Client().Set(t.Context(), "k", nil); errors.Is(err, slotmesh.ErrClosed) {
						return
					}
				}
			})
			wg.Go(func() {
				if err := n.Close(); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		require.ErrorIs(t, nodes[0].Ready(t.Context()), slotmesh.ErrClosed)
		require.ErrorIs(t, nodes[0].Admin().BumpEpoch(t.Context()), slotmesh.ErrClosed)
	})
}

func TestThreeNodesOverTCP(t *testing.T) {
	seeds, err := loopback.FreeAddrs(3)
	require.NoError(t, err)
	var nodes []slotmesh.Node
	for _, addr := range seeds {
		n, err := slotmesh.Start(t.Context(), slotmesh.Config{Addr: addr, Seeds: seeds, Primaries: 3, NodeTimeout: time.Second})
		require.NoError(t, err)
		defer n.Close()
		nodes = append(nodes, n)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, n := range nodes {
		require.NoError(t, n.Ready(ctx))
	}
	_, err = slotmesh.Start(ctx, slotmesh.Config{Addr: seeds[0]})
	require.ErrorContains(t, err, seeds[0], "a taken address is named")
	for i := range 100 {
		key := fmt.Sprint("key", i)
		require.NoError(t, nodes[i%3].Client().Set(ctx, key, []byte(key)))
		v, err := nodes[(i+1)%3].Client().Get(ctx, key)
		require.NoError(t, err)
		require.Equal(t, key, string(v))
	}
	require.NoError(t, nodes[0].Admin().MoveSlots(ctx, nodes[0].Table().Slots(nodes[0].ID()), nodes[1].ID()))
	for i := range 100 {
		v, err := nodes[2].Client().Get(ctx, fmt.Sprint("key", i))
		require.NoError(t, err)
		require.Equal(t, fmt.Sprint("key", i), string(v))
	}
	big := make([]byte, 8<<20)
	require.NoError(t, nodes[2].Client().Set(ctx, keyAt(nodes[1]), big))
	v, err := nodes[2].Client().Get(ctx, keyAt(nodes[1]))
	require.NoError(t, err)
	require.Len(t, v, len(big))
}

// A command may compute for long, as a script does: its slot waits, the node does
// not. Real time: what waits for a lock does not count as asleep in fake time.
func TestASlowCommandStallsItsSlotAlone(t *testing.T) {
	nt := time.Duration(racing.Fewer(300, 1500)) * time.Millisecond // real time, of which the detector takes much
	nodes := form(t, transport.NewMemory(), 3, slotmesh.Config{NodeTimeout: nt})
	defer closeAll(nodes...)
	slow := keyAt(nodes[0])
	slot := slotmesh.KeySlot(slow)
	var other string
	for i := 0; other == ""; i++ {
		k := fmt.Sprint("other", i)
		if o, _ := nodes[0].Table().Owner(slotmesh.KeySlot(k)); o.ID == nodes[0].ID() && slotmesh.KeySlot(k) != slot {
			other = k
		}
	}
	running, released := make(chan struct{}), make(chan struct{})
	release := sync.OnceFunc(func() { close(released) })
	defer release() // the nodes close once it has ended
	result := make(chan error, 1)
	go func() {
		result <- nodes[0].Execute(t.Context(), slotmesh.Request{Keys: []string{slow}}, func(tx *slotmesh.Tx) error {
			close(running)
			<-released
			return tx.Put(slow, []byte("slow"))
		})
	}()
	<-running
	var set slotmesh.SlotSet
	set.Add(slot)
	moved := make(chan error, 1)
	go func() { moved <- nodes[0].Admin().MoveSlots(t.Context(), set, nodes[1].ID()) }()
	for end := time.Now().Add(4 * nt); time.Now().Before(end); time.Sleep(nt / 20) {
		require.NoError(t, nodes[2].Client().Set(t.Context(), other, []byte("v")))
		for _, n := range nodes {
			for _, info := range n.Table().Nodes() {
				require.False(t, info.Silent, "node %s, as %s sees it", info.ID, n.ID())
			}
		}
	}
	release()
	require.NoError(t, <-result)
	require.NoError(t, <-moved)
	v, err := nodes[2].Client().Get(t.Context(), slow)
	require.NoError(t, err)
	require.Equal(t, "slow", string(v))
	owner, _ := nodes[2].Table().Owner(slot)
	require.Equal(t, nodes[1].ID(), owner.ID)
}

// A node without a Dir is a new one when it starts again at its address, where
// others still look for the old one: what they say to that is not taken for the
// link to the new.
func TestANodeAtTheAddressOfAnotherHearsEverybody(t *testing.T) {
	t.Parallel()
	for round := range racing.Fewer(8, 2) {
		synctest.Test(t, func(t *testing.T) {
			mem := transport.NewMemory()
			nodes := form(t, mem, 3, slotmesh.Config{NodeTimeout: nt})
			defer closeAll(nodes[:2]...)
			old, addr := nodes[2].ID(), nodes[2].Addr()
			nodes[2].Close()
			time.Sleep(4 * nt)
			again, err := slotmesh.Start(t.Context(), slotmesh.Config{NodeTimeout: nt, Addr: addr, Transport: mem, Seeds: []string{nodes[0].Addr(), nodes[1].Addr(), addr}, Primaries: 3})
			require.NoError(t, err)
			defer again.Close()
			time.Sleep(20 * nt)
			for _, n := range append(nodes[:2:2], again) {
				for _, p := range n.Table().Nodes() {
					if p.ID != old && p.Silent {
						t.Errorf("round %d: %s finds %s silent", round, n.Addr(), p.Addr)
					}
				}
			}
		})
	}
}
