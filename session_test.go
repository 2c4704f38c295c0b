package slotmesh_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slotmesh/slotmesh"
	"github.com/slotmesh/slotmesh/internal/racing"
	"github.com/slotmesh/slotmesh/store"
	"github.com/slotmesh/slotmesh/transport"
	"github.com/stretchr/testify/require"
)

// alone starts a node that serves every slot.
func alone(t testing.TB, s slotmesh.Store) slotmesh.Node {
	t.Helper()
	n, err := slotmesh.Start(t.Context(), slotmesh.Config{Store: s})
	require.NoError(t, err)
	t.Cleanup(func() { n.Close() })
	return n
}

func TestASessionKeepsNothingOfARequestForTheNext(t *testing.T) {
	n := alone(t, nil)
	s := n.Session()
	ctx := t.Context()
	r := &slotmesh.Request{Keys: []string{"{k}a", "{k}b"}}
	no := errors.New("no")
	err := s.Execute(ctx, r, func(tx *slotmesh.Tx) error {
		require.NoError(t, tx.Put("{k}a", []byte("lost")))
		require.NoError(t, tx.Put("{k}b", []byte("lost")))
		require.NoError(t, tx.PutField("{k}c", "f", []byte("lost")))
		return no
	})
	require.ErrorIs(t, err, no)
	for range 2 {
		require.NoError(t, s.Execute(ctx, r, func(tx *slotmesh.Tx) error {
			for _, key := range []string{"{k}a", "{k}b", "{k}c"} {
				_, found, err := tx.Get(key)
				require.NoError(t, err)
				require.False(t, found, key)
			}
			_, found, err := tx.GetField("{k}c", "f")
			require.NoError(t, err)
			require.False(t, found)
			return nil
		}))
	}
	require.NoError(t, s.Execute(ctx, r, func(tx *slotmesh.Tx) error { return tx.Put("{k}a", []byte("kept")) }))
	v, err := n.Client().Get(ctx, "{k}a")
	require.NoError(t, err)
	require.Equal(t, "kept", string(v))

	err = s.Execute(ctx, &slotmesh.Request{Keys: []string{"a", "b"}, Name: "MGET"}, func(*slotmesh.Tx) error { return nil })
	var op *slotmesh.OpError
	require.True(t, errors.As(err, &op))
	require.Equal(t, "MGET", op.Op)
	require.ErrorIs(t, err, slotmesh.ErrCrossSlot)

	require.NoError(t, s.Execute(ctx, r, func(*slotmesh.Tx) error {
		require.ErrorIs(t, s.Execute(ctx, r, func(*slotmesh.Tx) error { return nil }), slotmesh.ErrInTx)
		return nil
	}))
	require.ErrorContains(t, s.Execute(ctx, r, func(*slotmesh.Tx) error { panic("oops") }), "oops")
	require.NoError(t, s.Execute(ctx, r, func(*slotmesh.Tx) error { return nil }), "after a panic it goes on")
	require.NoError(t, n.Close())
	require.ErrorIs(t, s.Execute(ctx, r, func(*slotmesh.Tx) error { return nil }), slotmesh.ErrClosed)
}

func TestASessionAndALocalGetAllocateNothing(t *testing.T) {
	n := alone(t, nil)
	s := n.Session()
	ctx := context.Background()
	value := []byte("value")
	require.NoError(t, n.Client().Set(ctx, "key", value))
	if allocs := testing.AllocsPerRun(100, func() {
		if v, err := n.Client().Get(ctx, "key"); err != nil || !bytes.Equal(v, value) {
			t.Errorf("read %q, %v", v, err)
		}
	}); allocs > 0 {
		t.Errorf("Client.Get: %v allocations, want none", allocs)
	}
	for _, row := range []struct {
		name string
		r    slotmesh.Request
		f    func(*slotmesh.Tx) error
	}{
		{"a read", slotmesh.Request{Keys: []string{"key"}, ReadOnly: true}, func(tx *slotmesh.Tx) error {
			v, _, err := tx.Get("key")
			if !bytes.Equal(v, value) {
				t.Errorf("read %q", v)
			}
			return err
		}},
		{"a write", slotmesh.Request{Keys: []string{"key"}}, func(tx *slotmesh.Tx) error { return tx.Put("key", value) }},
		{"two writes", slotmesh.Request{Keys: []string{"key", "{key}2"}}, func(tx *slotmesh.Tx) error {
			return errors.Join(tx.Put("key", value), tx.Put("{key}2", value))
		}},
	} {
		if allocs := testing.AllocsPerRun(100, func() {
			if err := s.Execute(ctx, &row.r, row.f); err != nil {
				t.Error(err)
			}
		}); allocs > 0 {
			t.Errorf("%s: %v allocations, want none", row.name, allocs)
		}
	}
}

// walkedStore is a store that does no more than it has to.
type walkedStore struct{ slotmesh.Store }

// A command sees the fields of a key as they will be, whatever is stored.
func TestFieldsInOrderShowWhatTheCommandHasWritten(t *testing.T) {
	racing.OneGoroutine(t)
	for name, s := range map[string]slotmesh.Store{"ranked": store.NewMemory(), "walked": walkedStore{store.NewMemory()}} {
		n := alone(t, s)
		rng := rand.New(rand.NewPCG(1, 2))
		fields := map[string]string{} // as they should be
		for round := range 300 {
			err := n.Execute(t.Context(), slotmesh.Request{Keys: []string{"k"}}, func(tx *slotmesh.Tx) error {
				require.NoError(t, tx.PutEntry("k", store.Entry{Kind: 1, Value: []byte("head")}))
				for range rng.IntN(12) {
					f := fmt.Sprintf("f%02d", rng.IntN(40))
					switch {
					case rng.IntN(60) == 0:
						clear(fields)
						_, err := tx.Delete("k")
						require.NoError(t, err)
					case rng.IntN(3) == 0:
						delete(fields, f)
						require.NoError(t, tx.DeleteField("k", f))
					default:
						fields[f] = fmt.Sprint(round)
						require.NoError(t, tx.PutField("k", f, []byte(fields[f])))
					}
					if rng.IntN(4) == 0 {
						compareFields(t, tx, rng, fields)
					}
				}
				compareFields(t, tx, rng, fields)
				return nil
			})
			require.NoError(t, err, name)
			require.NoError(t, n.Execute(t.Context(), slotmesh.Request{Keys: []string{"k"}, ReadOnly: true}, func(tx *slotmesh.Tx) error {
				compareFields(t, tx, rng, fields)
				return nil
			}), name)
		}
	}
}

func compareFields(t *testing.T, tx *slotmesh.Tx, rng *rand.Rand, want map[string]string) {
	t.Helper()
	var names []string
	for f := range want {
		names = append(names, f)
	}
	slices.Sort(names)
	for i, f := range names {
		it, found, err := tx.At("k", i)
		require.NoError(t, err)
		require.True(t, found && it.Field == f && string(it.Value) == want[f] && it.Key == "k", "At(%d) = %q, want %q of %q", i, it.Field, f, names)
	}
	for _, i := range []int{-1, len(names), len(names) + 3} {
		_, found, err := tx.At("k", i)
		require.NoError(t, err)
		require.False(t, found, "At(%d) of %d", i, len(names))
	}
	for range 5 {
		from, limit := fmt.Sprintf("f%02d", rng.IntN(41)), rng.IntN(10)
		i, _ := slices.BinarySearch(names, from)
		n, err := tx.Rank("k", from)
		require.NoError(t, err)
		require.Equal(t, i, n, "Rank(%q) of %q", from, names)

		after, before := names[i:], slices.Clone(names[:i])
		slices.Reverse(before)
		items, more, err := tx.Range("k", from, limit)
		wantItems(t, want, after, limit, items, more, err)
		items, more, err = tx.RangeBack("k", from, limit)
		wantItems(t, want, before, limit, items, more, err)
	}
	items, more, err := tx.Range("k", "", 0)
	wantItems(t, want, names, 0, items, more, err)
	slices.Reverse(names)
	items, more, err = tx.RangeBack("k", "", 0)
	wantItems(t, want, names, 0, items, more, err)
}

func wantItems(t *testing.T, want map[string]string, names []string, limit int, items []store.Item, more bool, err error) {
	t.Helper()
	require.NoError(t, err)
	if limit == 0 {
		limit = 1024
	}
	require.Equal(t, len(names) > limit, more)
	names = names[:min(limit, len(names))]
	require.Len(t, items, len(names))
	for i, it := range items {
		require.True(t, it.Key == "k" && it.Field == names[i] && string(it.Value) == want[names[i]], "item %d is %q = %q, want %q", i, it.Field, it.Value, names[i])
	}
}

func TestRangesOfAnExpiredKeyAreEmpty(t *testing.T) {
	n := alone(t, nil)
	r := slotmesh.Request{Keys: []string{"k"}}
	require.NoError(t, n.Execute(t.Context(), r, func(tx *slotmesh.Tx) error {
		return errors.Join(tx.PutEntry("k", store.Entry{Kind: 1, ExpireAt: 1}), tx.PutField("k", "f", nil))
	}))
	require.NoError(t, n.Execute(t.Context(), r, func(tx *slotmesh.Tx) error {
		items, more, err := tx.RangeBack("k", "", 1)
		require.True(t, len(items) == 0 && !more && err == nil)
		rank, err := tx.Rank("k", "g")
		require.True(t, rank == 0 && err == nil)
		_, found, err := tx.At("k", 0)
		require.True(t, !found && err == nil)
		_, _, err = tx.RangeBack("k", "", -1)
		require.ErrorIs(t, err, slotmesh.ErrInvalid)
		_, err = tx.Rank("elsewhere", "")
		require.ErrorIs(t, err, slotmesh.ErrCrossSlot)
		_, _, err = tx.At("elsewhere", 0)
		require.ErrorIs(t, err, slotmesh.ErrCrossSlot)
		return nil
	}))
}

func TestKeysOfASlotAreCountedListedAndFlushed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		nodes := form(t, transport.NewMemory(), 2, slotmesh.Config{NodeTimeout: time.Second})
		defer closeAll(nodes...)
		ctx := t.Context()
		key := keyAt(nodes[0])
		slot := slotmesh.KeySlot(key)
		const keys = 300
		for i := range keys {
			require.NoError(t, nodes[1].Client().Set(ctx, fmt.Sprintf("{%s}%d", key, i), []byte("v")))
		}
		count := func(n slotmesh.Node) int {
			c, err := n.CountKeys(slot)
			require.NoError(t, err)
			return c
		}
		require.Equal(t, keys, count(nodes[0]))
		require.Zero(t, count(nodes[1]))
		seen := map[string]bool{}
		for cursor, first := uint64(0), true; first || cursor != 0; first = false {
			items, next, err := nodes[0].ScanSlot(slot, cursor, 7)
			require.NoError(t, err)
			require.LessOrEqual(t, len(items), 7)
			for _, it := range items {
				seen[it.Key] = true
			}
			cursor = next
		}
		require.Len(t, seen, keys)

		var moved *slotmesh.MovedError
		require.True(t, errors.As(nodes[1].FlushSlot(ctx, slot), &moved))
		require.Equal(t, keys, count(nodes[0]))
		require.NoError(t, nodes[0].FlushSlot(ctx, slot))
		require.Zero(t, count(nodes[0]))
		require.NoError(t, nodes[0].FlushSlot(ctx, slot), "of an empty slot")

		for _, err := range []error{
			func() error { _, err := nodes[0].CountKeys(slotmesh.NumSlots); return err }(),
			func() error { _, _, err := nodes[0].ScanSlot(slotmesh.NumSlots, 0, 0); return err }(),
			func() error { _, _, err := nodes[0].ScanSlot(0, 0, -1); return err }(),
			nodes[0].FlushSlot(ctx, slotmesh.NumSlots),
		} {
			require.ErrorIs(t, err, slotmesh.ErrInvalid)
		}
	})
}

// What one command changes is more than one frame of a hand-over holds.
func TestACommandThatDeletesManyFieldsWhileItsSlotMoves(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		nodes := form(t, transport.NewMemory(), 2, slotmesh.Config{NodeTimeout: nt})
		defer closeAll(nodes...)
		ctx := t.Context()
		key := keyAt(nodes[0])
		const fields = 100_000
		r := &slotmesh.Request{Keys: []string{key}}
		s := nodes[0].Session()
		require.NoError(t, s.Execute(ctx, r, func(tx *slotmesh.Tx) error {
			for i := range fields {
				if err := tx.PutField(key, fmt.Sprintf("field:%06d", i), []byte("v")); err != nil {
					return err
				}
			}
			return nil
		}))
		var set slotmesh.SlotSet
		set.Add(slotmesh.KeySlot(key))
		moved := make(chan error, 1)
		go func() { moved <- nodes[0].Admin().MoveSlots(ctx, set, nodes[1].ID()) }()
		deleted := 0
		for done := false; !done; {
			err := s.Execute(ctx, r, func(tx *slotmesh.Tx) error {
				var names []string
				for from, more := "", true; more; {
					items, rest, err := tx.Range(key, from, 0)
					if err != nil {
						return err
					}
					for _, it := range items {
						names = append(names, it.Field)
					}
					if more = rest; more {
						from = names[len(names)-1] + "\x00"
					}
				}
				deleted = len(names)
				for _, name := range names[:max(0, len(names)-10)] {
					if err := tx.DeleteField(key, name); err != nil {
						return err
					}
				}
				return tx.PutField(key, "last", []byte(fmt.Sprint(deleted)))
			})
			var to *slotmesh.MovedError
			done = errors.As(err, &to)
			require.True(t, done || err == nil, "%v", err)
			time.Sleep(time.Millisecond)
		}
		require.NoError(t, <-moved)
		require.NoError(t, nodes[1].Execute(ctx, *r, func(tx *slotmesh.Tx) error {
			items, _, err := tx.Range(key, "", 0)
			require.NoError(t, err)
			require.Len(t, items, 11)
			return nil
		}))
	})
}
