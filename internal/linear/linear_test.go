package linear

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestStep(t *testing.T) {
	for _, row := range []struct {
		name, value string
		op          Op
		next        string
		ok          bool
	}{
		{"a read of what is there", "a", Op{Kind: Get, Answer: "a"}, "a", true},
		{"a read of something else", "a", Op{Kind: Get, Answer: "b"}, "a", false},
		{"a read of nothing", "", Op{Kind: Get}, "", true},
		{"a value is set, whatever was there", "a", Op{Kind: Set, Value: "b"}, "b", true},
		{"a swap shows what was there", "a", Op{Kind: Swap, Value: "b", Answer: "a"}, "b", true},
		{"a swap shows something else", "a", Op{Kind: Swap, Value: "b", Answer: "c"}, "b", false},
		{"a swap that nobody has heard of", "a", Op{Kind: Swap, Value: "b", Unknown: true}, "b", true},
		{"the first sum", "", Op{Kind: Add, Delta: 3, Answer: "3"}, "3", true},
		{"a sum", "39", Op{Kind: Add, Delta: 3, Answer: "42"}, "42", true},
		{"a sum of something else", "39", Op{Kind: Add, Delta: 3, Answer: "43"}, "42", false},
		{"a sum that nobody has heard of", "39", Op{Kind: Add, Delta: 3, Unknown: true}, "42", true},
		{"a sum with what is no number", "x", Op{Kind: Add, Delta: 3, Answer: "3"}, "3", false},
	} {
		next, ok := Step(row.value, row.op)
		require.Equal(t, row.ok, ok, row.name)
		if ok {
			require.Equal(t, row.next, next, row.name)
		}
	}
}

func TestKeysKeepWhatSaysSomething(t *testing.T) {
	var h History
	begin := func(k Kind, key, value string) *Op { return h.Begin(Op{Kind: k, Key: key, Value: value}) }
	lost, seen, replaced := begin(Set, "a", "lost"), begin(Set, "a", "seen"), begin(Set, "a", "replaced")
	elsewhere := begin(Set, "b", "seen")
	swap, get, unanswered := begin(Swap, "a", "swap"), begin(Get, "a", ""), begin(Get, "a", "")
	undone := begin(Set, "a", "undone")
	sum := begin(Add, "n", "")
	h.End(get, "seen")
	h.End(swap, "replaced")
	h.Undone(undone)

	keys := h.Keys()
	require.Len(t, keys, 2)
	require.Equal(t, []Op{*seen, *replaced, *swap, *get}, keys["a"])
	require.Equal(t, []Op{*sum}, keys["n"])
	for _, op := range []*Op{lost, seen, replaced, elsewhere, unanswered, sum} {
		require.True(t, op.Unknown)
		require.Equal(t, int64(math.MaxInt64), op.Ended)
	}
	require.False(t, get.Unknown)
	require.Less(t, get.Ended, swap.Ended)
	require.Less(t, unanswered.Began, get.Ended)
}
