package slotmesh_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/slotmesh/slotmesh"
	"github.com/slotmesh/slotmesh/internal/racing"
	"github.com/slotmesh/slotmesh/store"
	"github.com/stretchr/testify/require"
)

// runAt returns a function that runs f at the slot of "k" of a node alone.
func runAt(t *testing.T, cfg slotmesh.Config) func(f func(tx *slotmesh.Tx) error) error {
	t.Helper()
	n, err := slotmesh.Start(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { n.Close() })
	return func(f func(tx *slotmesh.Tx) error) error {
		return n.Execute(t.Context(), slotmesh.Request{Keys: []string{"k"}}, f)
	}
}

// A command may go on where a write of it was refused: then nothing of that
// write may show, neither to the command nor afterwards.
func TestAWriteThatIsRefusedChangesNothing(t *testing.T) {
	run := runAt(t, slotmesh.Config{MaxKey: 16, MaxValue: 100})
	require.NoError(t, run(func(tx *slotmesh.Tx) error {
		if err := tx.PutEntry("k", store.Entry{Kind: 1, Value: []byte("header")}); err != nil {
			return err
		}
		return tx.PutField("k", "member", []byte("v"))
	}))
	look := func(when string) func(tx *slotmesh.Tx) error {
		return func(tx *slotmesh.Tx) error {
			e, found, err := tx.Entry("k")
			require.NoError(t, err)
			require.True(t, found, when)
			require.Equal(t, store.Entry{Kind: 1, Value: []byte("header")}, e, when)
			items, more, err := tx.Range("k", "", 0)
			require.NoError(t, err)
			require.False(t, more, when)
			require.Equal(t, []store.Item{{Key: "k", Field: "member", Entry: store.Entry{Value: []byte("v")}}}, items, when)
			return nil
		}
	}
	long, big := strings.Repeat("f", 101), make([]byte, 101)
	for what, write := range map[string]func(tx *slotmesh.Tx) error{
		"value of 101 bytes, expected at most 100": func(tx *slotmesh.Tx) error { return tx.Put("k", big) },
		"value of 101 bytes":                       func(tx *slotmesh.Tx) error { return tx.PutField("k", "member", big) },
		"time of expiry -1, expected Unix":         func(tx *slotmesh.Tx) error { return tx.PutEntry("k", store.Entry{ExpireAt: -1}) },
		"field of 101 bytes, expected at most 100": func(tx *slotmesh.Tx) error { return tx.PutField("k", long, nil) },
		"field of 101 bytes":                       func(tx *slotmesh.Tx) error { return tx.DeleteField("k", long) },
		"field of 101 bytes, expected":             func(tx *slotmesh.Tx) error { _, _, err := tx.GetField("k", long); return err },
		`key "x" is in slot`:                       func(tx *slotmesh.Tx) error { return tx.Put("x", nil) },
	} {
		require.NoError(t, run(func(tx *slotmesh.Tx) error {
			require.ErrorContains(t, write(tx), what)
			return look("in the command: " + what)(tx)
		}))
		require.NoError(t, run(look("after: "+what)))
	}
}

func TestACommandThatWritesTooMuchIsRefusedAndHasChangedNothing(t *testing.T) {
	racing.OneGoroutine(t)
	run := runAt(t, slotmesh.Config{MaxValue: 1 << 20})
	value := make([]byte, 1<<20)
	err := run(func(tx *slotmesh.Tx) error {
		for i := range 3 {
			if err := tx.PutField("k", fmt.Sprint(i), value); err != nil {
				return err
			}
		}
		return nil
	})
	require.ErrorIs(t, err, slotmesh.ErrTooLarge)
	require.ErrorContains(t, err, "a command writes 3145734 bytes, expected at most 2162688")
	err = run(func(tx *slotmesh.Tx) error {
		for range 1 << 22 {
			if err := tx.DeleteField("k", ""); err != nil {
				return err
			}
		}
		return nil
	})
	require.ErrorContains(t, err, "a command writes")
	require.NoError(t, run(func(tx *slotmesh.Tx) error {
		items, _, err := tx.Range("k", "", 0)
		require.Empty(t, items)
		return err
	}))
}

// What Room says there is, there is: neither less nor more.
func TestRoomIsWhatACommandMayWrite(t *testing.T) {
	run := runAt(t, slotmesh.Config{MaxKey: 16, MaxValue: 1 << 20})
	require.NoError(t, run(func(tx *slotmesh.Tx) error {
		calls, bytes := tx.Room()
		require.Equal(t, 2<<20+16, bytes)
		require.Greater(t, calls, 2_000_000)
		if err := tx.PutField("k", "f", make([]byte, 1<<20)); err != nil {
			return err
		}
		after, left := tx.Room()
		require.Equal(t, calls-1, after)
		require.Equal(t, bytes-len("k")-len("f")-1<<20, left)
		if err := tx.PutField("k", "g", make([]byte, 1<<19)); err != nil {
			return err
		}
		_, left = tx.Room()
		require.ErrorIs(t, tx.PutField("k", "h", make([]byte, left-1)), slotmesh.ErrTooLarge)
		return tx.PutField("k", "h", make([]byte, left-2))
	}))
}

func TestATxOutlivesItsCommandAsAnErrorOnly(t *testing.T) {
	run := runAt(t, slotmesh.Config{})
	var kept *slotmesh.Tx
	require.NoError(t, run(func(tx *slotmesh.Tx) error {
		kept = tx
		return tx.Put("k", []byte("v"))
	}))
	_, _, err := kept.Get("k")
	require.ErrorIs(t, err, slotmesh.ErrInvalid)
	require.ErrorContains(t, err, "after its command has returned")
	require.ErrorIs(t, kept.Put("k", []byte("late")), slotmesh.ErrInvalid)
	_, err = kept.Delete("k")
	require.ErrorIs(t, err, slotmesh.ErrInvalid)
	require.NoError(t, run(func(tx *slotmesh.Tx) error {
		v, _, err := tx.Get("k")
		require.Equal(t, "v", string(v))
		return err
	}))
}

// What is to be done after a command sees what it has done, under the lock of its
// slot, whether it failed or not.
func TestTxAfter(t *testing.T) {
	n, err := slotmesh.Start(t.Context(), slotmesh.Config{})
	require.NoError(t, err)
	defer n.Close()
	var seen []string
	w := n.Watch(func(key string, _ bool) { seen = append(seen, "told of "+key) })
	defer w.Close()
	w.Add("a")
	run := func(key string, fails error) error {
		return n.Execute(t.Context(), slotmesh.Request{Keys: []string{key}}, func(tx *slotmesh.Tx) error {
			tx.After(func() { seen = append(seen, "after") })
			tx.After(func() { seen = append(seen, "after that") })
			return errors.Join(tx.Put(key, []byte("v")), fails)
		})
	}
	require.NoError(t, run("a", nil))
	require.Error(t, run("a", errors.New("no")))
	require.NoError(t, n.Execute(t.Context(), slotmesh.Request{Keys: []string{"a"}}, func(tx *slotmesh.Tx) error { return tx.Put("a", nil) }))
	require.Equal(t, []string{"told of a", "after", "after that", "after", "after that", "told of a"}, seen)
}
