package rdb

import (
	"bytes"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAppendWritesThePlainEncodings(t *testing.T) {
	rows := []struct {
		value Value
		body  []byte
	}{
		{Value{}, raw(typeString, 0)},
		{text("hello"), raw(typeString, 5, 'h', 'e', 'l', 'l', 'o')},
		{text("12"), raw(typeString, 2, '1', '2')},
		{list("a", "", "a"), raw(typeList, 3, 1, 'a', 0, 1, 'a')},
		{set("b", "a"), raw(typeSet, 2, 1, 'b', 1, 'a')},
		{hash("f", "v", "g", ""), raw(typeHash, 2, 1, 'f', 1, 'v', 1, 'g', 0)},
		{zset("m", 1.5), raw(typeZset2, 1, 1, 'm', 0, 0, 0, 0, 0, 0, 0xF8, 0x3F)},
		{zset("m", math.Inf(-1)), raw(typeZset2, 1, 1, 'm', 0, 0, 0, 0, 0, 0, 0xF0, 0xFF)},
	}
	for _, row := range rows {
		if got, want := Append(nil, &row.value), withFooter(versionWritten, row.body); !bytes.Equal(got, want) {
			t.Errorf("%v: % x\nwant % x", row.value, got, want)
		}
	}
}

func TestAppendWritesWhatARealRedisWrites(t *testing.T) {
	// Where Redis takes a plain encoding itself, not one byte differs.
	for _, name := range []string{"string-empty", "string-plain", "string-int64", "string-14bit", "string-32bit"} {
		v := vectors()[name].want
		if got, want := Append(nil, &v), readVector(t, name); !bytes.Equal(got, want) {
			t.Errorf("%s: % x\nwant % x", name, got, want)
		}
	}
}

func TestAppendKeepsWhatStandsBefore(t *testing.T) {
	v := hash("f", "v")
	got := Append([]byte("before"), &v)
	require.Equal(t, "before", string(got[:6]))
	require.Equal(t, Append(nil, &v), got[6:])
}

func TestAppendGrowsOnce(t *testing.T) {
	for name, v := range manyValues() {
		if allocs := testing.AllocsPerRun(10, func() { Append(nil, &v) }); allocs > 2 {
			t.Errorf("%s: %v allocations, want one, and one of the checksum", name, allocs)
		}
	}
}

func TestAppendPanicsForAKindThatIsNone(t *testing.T) {
	require.PanicsWithValue(t, "rdb: Append of a value of kind 9", func() { Append(nil, &Value{Kind: 9}) })
}

// manyValues are values of every kind and at the edges of the lengths.
func manyValues() map[string]Value {
	return map[string]Value{
		"zero":              {},
		"string of 63":      text(xs(63)),
		"string of 64":      text(xs(64)),
		"string of 16383":   text(xs(1<<14 - 1)),
		"string of 16384":   text(xs(1 << 14)),
		"string of a MB":    text(xs(1 << 20)),
		"all bytes":         text(allBytes()),
		"list":              list("", "a", "a", "", xs(100)),
		"list of 70000":     list(numbered(70000, "%d")...),
		"set":               set("", "a", "-1", xs(100)),
		"set of 8":          set(numbered(8, "%d")...),
		"set of 9":          set(numbered(9, "%d")...),
		"set of 1000":       set(numbered(1000, "m%d")...),
		"hash":              hash("", "", "f", "v"),
		"hash of 1000":      hash(interleave(numbered(1000, "f%d"), numbered(1000, "v%d"))...),
		"zset":              zset("", 0.0, "z", math.Copysign(0, -1), "a", math.Inf(1), "b", math.Inf(-1), "c", 5e-324, "d", math.MaxFloat64),
		"zset of 1000":      eighths(1000),
		"elements that are": list(strings.Repeat("\xff", 300), "\x00", "\xc3\x01\x01"),
	}
}

func TestWhatAppendWritesIsReadAgain(t *testing.T) {
	for name, v := range manyValues() {
		got, err := Parse(Append(nil, &v), Limits{})
		require.NoError(t, err, name)
		if diff := difference(&got, &v); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestKindsAreNamedAsTheCommandTypeNamesThem(t *testing.T) {
	for kind, want := range map[Kind]string{String: "string", List: "list", Set: "set", Hash: "hash", SortedSet: "zset", 9: "unknown"} {
		if got := kind.String(); got != want {
			t.Errorf("kind %d is %q, want %q", kind, got, want)
		}
	}
}
