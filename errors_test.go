package slotmesh

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The text of an error says each thing once, and names a slot only where one is
// meant.
func TestTextsOfErrors(t *testing.T) {
	node := NodeID{0xab, 0xcd, 0xef, 1}
	inner := &OpError{Op: "get", Slot: 7, Node: node, Err: ErrTryAgain}
	for _, row := range []struct {
		err  error
		want string
	}{
		{&OpError{Op: "get", Slot: 0, Err: ErrTryAgain}, "slotmesh: get, slot 0: try again (not executed)"},
		{&OpError{Op: "get", Slot: NumSlots, Err: ErrTryAgain}, "slotmesh: get: try again (not executed)"},
		{inner, "slotmesh: get, slot 7 at abcdef01: try again (not executed)"},
		{&OpError{Op: "copy", Slot: 9, Err: inner}, "slotmesh: copy, slot 9: get, slot 7 at abcdef01: try again (not executed)"},
		{&OpError{Op: "copy", Slot: 9, Outcome: Unknown, Err: inner}, "slotmesh: copy, slot 9: get, slot 7 at abcdef01: try again (not executed) (unknown)"},
		{&OpError{Op: "copy", Slot: 9, Err: asCommandError(inner)}, "slotmesh: copy, slot 9: ERR get, slot 7 at abcdef01: try again (not executed)"},
		{&AdminError{Text: "slotmesh: closed", Err: ErrTryAgain}, "slotmesh: try again: closed"},
		{&UnservedError{Slot: 3, Reason: "Hash slot not served", Err: ErrClusterDown}, "slotmesh: cluster down: Hash slot not served"},
	} {
		require.EqualError(t, row.err, row.want)
	}
}

// Calls that have no slot, or keys of several, name none.
func TestACallWithoutASlotNamesNone(t *testing.T) {
	n := startNode(t, Config{Commands: []Command{{Name: "echo", Run: func(_ *Tx, args [][]byte) ([]byte, error) { return nil, nil }}}})
	ctx := context.Background()
	ok := func(*Tx) error { return nil }
	_, unknown := n.Client().Do(ctx, "none")
	_, noKey := n.Client().Do(ctx, "echo")
	for name, err := range map[string]error{
		"no keys":           n.Execute(ctx, Request{}, ok),
		"several slots":     n.Session().Execute(ctx, &Request{Keys: []string{"a", "b"}}, ok),
		"no such slot":      n.FlushSlot(ctx, NumSlots+5),
		"unknown command":   unknown,
		"command of no key": noKey,
	} {
		var op *OpError
		require.ErrorAs(t, err, &op, name)
		require.Equal(t, Slot(NumSlots), op.Slot, name)
		require.NotContains(t, err.Error(), "slot 0", name)
	}
}

// A nil function is refused where it is handed over, not where it is called.
func TestANilFunctionIsRefused(t *testing.T) {
	n := startNode(t, Config{})
	for _, err := range []error{
		n.Execute(t.Context(), Request{Keys: []string{"k"}}, nil),
		n.Session().Execute(t.Context(), &Request{Keys: []string{"k"}}, nil),
	} {
		require.ErrorIs(t, err, ErrInvalid)
		require.ErrorContains(t, err, "nil function")
	}
	require.PanicsWithValue(t, "slotmesh: Node.Watch: nil function, expected one to call at each change", func() { n.Watch(nil) })
	require.PanicsWithValue(t, "slotmesh: Node.SubscribeSharded: nil function, expected one to call for each message", func() { n.SubscribeSharded(nil) })
	require.PanicsWithValue(t, "slotmesh: Node.Subscribe: nil function, expected one to call for each message", func() { n.Subscribe(nil) })
}

// A command of an operator that waits when the node closes hears so, and that it
// may still happen.
func TestACommandThatWaitsWhileTheNodeClosesIsUnknown(t *testing.T) {
	n := startNode(t, Config{})
	waits := make(chan error, 1)
	begun := make(chan struct{})
	go func() {
		waits <- n.do(t.Context(), func(s *state, now time.Duration, id uint64) output {
			close(begun)
			s.begin(now)
			return s.end() // nobody answers
		})
	}()
	<-begun
	require.NoError(t, n.Close())
	err := <-waits
	var a *AdminError
	require.True(t, errors.As(err, &a) && errors.Is(err, ErrClosed) && a.Outcome == Unknown, fmt.Sprint(err))
}
