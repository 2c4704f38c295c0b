package rdb

import (
	"encoding/hex"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// vectors are what the keys held whose payloads a real Redis 7.0 wrote to
// testdata (see make.sh there), with the type byte that it chose.
func vectors() map[string]struct {
	code byte
	want Value
} {
	type vector = struct {
		code byte
		want Value
	}
	scores := []Scored{
		{[]byte("bottom"), math.Inf(-1)}, {[]byte("minus"), -2}, {[]byte("zero"), 0}, {[]byte("tiny"), 5e-324},
		{[]byte("one"), 1}, {[]byte("half"), 1.5}, {[]byte("pi"), 3.14159265358979312},
		{[]byte("odd"), 9007199254740992}, {[]byte("huge"), 1e20}, {[]byte("top"), math.Inf(1)},
	}
	return map[string]vector{
		"string-empty":    {typeString, text("")},
		"string-plain":    {typeString, text("hello")},
		"string-int8":     {typeString, text("-5")},
		"string-int16":    {typeString, text("-12345")},
		"string-int32":    {typeString, text("123456789")},
		"string-int64":    {typeString, text("12345678901")},
		"string-14bit":    {typeString, text(allBytes())},
		"string-32bit":    {typeString, text(strings.Repeat("0123456789abcdef", 1025))},
		"string-lzf":      {typeString, text(strings.Repeat("ab", 500))},
		"string-lzf-text": {typeString, text(strings.Join(numbered(200, "line %d of a text that repeats itself\n"), ""))},

		"list-listpack": {typeListQuicklist2, list("", "a", "0", "127", "128", "-1", "4095", "-4096", "4096", "32767", "-32768", "32768",
			"8388607", "-8388608", "8388608", "2147483647", "-2147483648", "2147483648",
			"9223372036854775807", "-9223372036854775808", "00", "9223372036854775808")},
		"list-listpack-long": {typeListQuicklist2, list(xs(63), xs(64), xs(4095), xs(4096), xs(16380), xs(16381))},
		"list-nodes":         {typeListQuicklist2, list(numbered(23, "element %d")...)},
		"list-plain-nodes": {typeListQuicklist2, list("small 1", strings.Repeat("1", 150), "small 2", strings.Repeat("2", 150),
			"small 3", strings.Repeat("3", 150))},
		"list-lzf-nodes": {typeListQuicklist2, list(numbered(100, "a value that compresses %d")...)},

		"set-intset16":   {typeSetIntset, set("5", "-3", "32767", "-32768")},
		"set-intset32":   {typeSetIntset, set("5", "-3", "2147483647", "-2147483648")},
		"set-intset64":   {typeSetIntset, set("5", "-3", "9223372036854775807", "-9223372036854775808")},
		"set-strings":    {typeSet, set("", "a", "b", "1", "-1", "100000")},
		"set-large":      {typeSet, set(numbered(300, "member:%d")...)},
		"set-large-ints": {typeSet, set(numbered(600, "%d000")...)},

		"hash-listpack":     {typeHashListpack, hash("", "empty", "name", "", "age", "42", "big", "-9000000000", "zero", "0")},
		"hash-listpack-lzf": {typeHashListpack, hash(interleave(numbered(60, "field:%d"), numbered(60, "value:%d"))...)},
		"hash-large":        {typeHash, hash(interleave(numbered(600, "field:%d"), numbered(600, "%d"))...)},
		"hash-long-value":   {typeHash, hash("short", strings.Repeat("long ", 50), "1", "2")},

		"zset-listpack": {typeZsetListpack, Value{Kind: SortedSet, SortedSet: scores}},
		"zset-skiplist": {typeZset2, Value{Kind: SortedSet, SortedSet: scores}},
		"zset-large":    {typeZset2, eighths(200)},
	}
}

func TestPayloadsOfARealRedisAreReadAsWhatItHeld(t *testing.T) {
	for name, v := range vectors() {
		payload := readVector(t, name)
		if payload[0] != v.code {
			t.Errorf("%s: type %d, want %d", name, payload[0], v.code)
		}
		got, err := Parse(payload, Limits{})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if diff := difference(&got, &v.want); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestEveryPayloadOfTestdataIsRead(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("testdata", "*.hex"))
	require.NoError(t, err)
	known := vectors()
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".hex")
		if _, ok := known[name]; !ok && name != "stream" {
			t.Errorf("%s is read by no test", file)
		}
	}
	require.Len(t, files, len(known)+1)
}

func TestAStreamOfARealRedisIsUnsupported(t *testing.T) {
	_, err := Parse(readVector(t, "stream"), Limits{})
	require.ErrorIs(t, err, ErrUnsupported)
	require.ErrorContains(t, err, "type 19 is a stream")
}

// readVector returns a payload of testdata.
func readVector(tb testing.TB, name string) []byte {
	tb.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name+".hex"))
	require.NoError(tb, err)
	payload, err := hex.DecodeString(strings.Join(strings.Fields(string(data)), ""))
	require.NoError(tb, err)
	return payload
}

// difference tells how two values differ; where Redis keeps no order, none
// counts. It is empty where they are equal.
func difference(got, want *Value) string {
	if got.Kind != want.Kind {
		return fmt.Sprintf("got a %v, want a %v", got.Kind, want.Kind)
	}
	g, w := flatten(got), flatten(want)
	for i := range min(len(g), len(w)) {
		if g[i] != w[i] {
			return fmt.Sprintf("got %.200q, want %.200q", g[i], w[i])
		}
	}
	if len(g) != len(w) {
		return fmt.Sprintf("got %d elements, want %d", len(g), len(w))
	}
	return ""
}

// flatten returns one text per element, sorted unless the value is a list.
func flatten(v *Value) []string {
	var out []string
	switch v.Kind {
	case String:
		return []string{string(v.String)}
	case List:
		return texts(v.List)
	case Set:
		out = texts(v.Set)
	case Hash:
		for _, p := range v.Hash {
			out = append(out, fmt.Sprintf("%q=%q", p.Field, p.Value))
		}
	case SortedSet:
		for _, s := range v.SortedSet {
			out = append(out, fmt.Sprintf("%q %#x", s.Member, math.Float64bits(s.Score)))
		}
	}
	slices.Sort(out)
	return out
}

func texts(list [][]byte) []string {
	out := make([]string, len(list))
	for i, b := range list {
		out[i] = string(b)
	}
	return out
}

func byteSlices(list []string) [][]byte {
	out := make([][]byte, len(list))
	for i, s := range list {
		out[i] = []byte(s)
	}
	return out
}

func text(s string) Value           { return Value{Kind: String, String: []byte(s)} }
func list(elements ...string) Value { return Value{Kind: List, List: byteSlices(elements)} }
func set(members ...string) Value   { return Value{Kind: Set, Set: byteSlices(members)} }
func xs(n int) string               { return strings.Repeat("x", n) }
func interleave(a, b []string) []string {
	var out []string
	for i := range a {
		out = append(out, a[i], b[i])
	}
	return out
}

func hash(fieldsAndValues ...string) Value {
	v := Value{Kind: Hash}
	for pair := range slices.Chunk(fieldsAndValues, 2) {
		v.Hash = append(v.Hash, Pair{[]byte(pair[0]), []byte(pair[1])})
	}
	return v
}

// zset takes members and scores in turn.
func zset(membersAndScores ...any) Value {
	v := Value{Kind: SortedSet}
	for pair := range slices.Chunk(membersAndScores, 2) {
		v.SortedSet = append(v.SortedSet, Scored{[]byte(pair[0].(string)), pair[1].(float64)})
	}
	return v
}

// eighths returns a sorted set of n members with the scores 1/8, 2/8 and so on.
func eighths(n int) Value {
	v := Value{Kind: SortedSet}
	for i := range n {
		v.SortedSet = append(v.SortedSet, Scored{[]byte("member:" + strconv.Itoa(i+1)), float64(i+1) / 8})
	}
	return v
}

// numbered returns format with the numbers from 1 to n.
func numbered(n int, format string) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf(format, i+1)
	}
	return out
}

func allBytes() string {
	b := make([]byte, 256)
	for i := range b {
		b[i] = byte(i)
	}
	return string(b)
}
