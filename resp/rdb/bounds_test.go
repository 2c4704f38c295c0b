package rdb

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// allocated returns the bytes that f allocates. The runtime may allocate beside
// it, so that the least of some runs counts.
func allocated(runs int, f func()) uint64 {
	least := uint64(math.MaxUint64)
	for range runs {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		f()
		runtime.ReadMemStats(&after)
		least = min(least, after.TotalAlloc-before.TotalAlloc)
	}
	return least
}

func TestDeclaredLengthsAllocateNothing(t *testing.T) {
	huge := raw(len64, 0, 0, 0, 0x10, 0, 0, 0, 0)
	rows := map[string][]byte{
		"string":           slices.Concat(raw(typeString), huge),
		"list":             slices.Concat(raw(typeList), huge, raw(0)),
		"set":              slices.Concat(raw(typeSet), huge, raw(0)),
		"hash":             slices.Concat(raw(typeHash), huge, raw(0, 0)),
		"zset":             slices.Concat(raw(typeZset2), huge, raw(0)),
		"zset of text":     slices.Concat(raw(typeZset), huge, raw(0)),
		"quicklist":        slices.Concat(raw(typeListQuicklist), huge, raw(0)),
		"quicklist 2":      slices.Concat(raw(typeListQuicklist2), huge, raw(1)),
		"LZF":              slices.Concat(raw(typeString, lenCode|codeLZF, 2), huge, raw(0, 'a')),
		"LZF of huge":      slices.Concat(raw(typeString, lenCode|codeLZF), huge, huge),
		"listpack count":   slices.Concat(raw(typeHashListpack), rbytes(pack(0xFFFE, lpEntryOf(1), lpEntryOf(2)))),
		"listpack string":  slices.Concat(raw(typeHashListpack), rbytes(pack(2, raw(lpStr32, 0xFF, 0xFF, 0xFF, 0xFF)))),
		"ziplist count":    slices.Concat(raw(typeHashZiplist), rbytes(patch(zl("a", "b"), 8, 0xFE, 0xFF))),
		"ziplist string":   slices.Concat(raw(typeHashZiplist), rbytes(patch(zl("aaaaaaa"), 11, zlStr32, 0xFF, 0xFF, 0xFF, 0xFF))),
		"intset":           slices.Concat(raw(typeSetIntset), rbytes(patch(is(8, 1), 4, 0xFF, 0xFF, 0xFF, 0xFF))),
		"zipmap count":     slices.Concat(raw(typeHashZipmap), rbytes(patch(zm("a", "b"), 0, 253))),
		"zipmap of a huge": slices.Concat(raw(typeHashZipmap), rbytes(slices.Concat(raw(1, zmLong), repeat(5, 0xFF)))),
	}
	for name, body := range rows {
		p := payload(body)
		var err error
		if got := allocated(3, func() { _, err = Parse(p, Limits{}) }); got > 4096 {
			t.Errorf("%s: %d bytes allocated for a payload of %d", name, got, len(p))
		}
		if !errors.Is(err, ErrFormat) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestLZFBeyondTheLimitIsNotUnpacked(t *testing.T) {
	p := payload(raw(typeString), lzfString(make([]byte, 1<<20)))
	require.Less(t, len(p), 1<<20/80)
	var err error
	got := allocated(3, func() { _, err = Parse(p, Limits{Bytes: 1<<20 - 1}) })
	require.ErrorIs(t, err, ErrLimit)
	require.Less(t, got, uint64(2*len(p)+4096))
}

// allocBound is what Parse may allocate: a copy of the payload, and for the
// limits given what LZF yields and the elements, their texts, and the table of
// members, while slices grow by doubling.
func allocBound(payload []byte, l Limits) uint64 {
	const (
		perElement = 4 * (48 + 32 + digitsMax) // Pair is the largest; the table
		perLZF     = 4
		fixed      = 16 << 10 // an error, blocks of digits, what runs beside
	)
	return uint64(4*len(payload) + perElement*l.Elements + perLZF*l.Bytes + fixed)
}

func TestAListOfManySmallElementsInLZFStaysWithinItsBound(t *testing.T) {
	node := lp(slices.Repeat([]any{1}, 30000)...)
	p := payload(raw(typeListQuicklist2), length(4), slices.Concat(slices.Repeat([][]byte{raw(nodePacked), lzfString(node)}, 4)...))
	limits := Limits{Elements: 120000, Bytes: 1 << 20}
	var v Value
	var err error
	got := allocated(3, func() { v, err = Parse(p, limits) })
	require.NoError(t, err)
	require.Len(t, v.List, 120000)
	require.Less(t, got, allocBound(p, limits))

	limits.Elements = 1000
	got = allocated(3, func() { _, err = Parse(p, limits) })
	require.ErrorIs(t, err, ErrLimit)
	require.Less(t, got, allocBound(p, limits))
}

func TestLZFRepeatsWhatItHasJustWritten(t *testing.T) {
	rows := []struct{ packed, want string }{
		{"", ""},
		{"\x00a", "a"},
		{"\x00a\x20\x00", "aaaa"},
		{"\x02abc\x40\x02", "abcabca"},
		{"\x02abc\xe0\x00\x02", "abcabcabcabc"},
		{"\x01ab\xe0\xff\x01", "ab" + string(bytes.Repeat([]byte("ab"), 132))},
		{"\x1f" + allBytes()[:32] + "\x20\x1f", allBytes()[:32] + "\x00\x01\x02"},
	}
	for _, row := range rows {
		n, _, what := lzfLen([]byte(row.packed))
		if n != int64(len(row.want)) {
			t.Errorf("%q yields %d bytes (%s), want %d", row.packed, n, what, len(row.want))
			continue
		}
		if got := unpackLZF([]byte(row.packed), int(n)); string(got) != row.want || cap(got) != len(got) {
			t.Errorf("%q: %q with capacity %d, want %q", row.packed, got, cap(got), row.want)
		}
	}
}

func TestLZFOfFarCopiesIsUnpacked(t *testing.T) {
	var b []byte
	for i := range uint32(3000) {
		b = binary.BigEndian.AppendUint32(b, i*2654435761)
	}
	b = append(b, b[len(b)-1<<13:]...)
	p := payload(raw(typeString), lzfString(b))
	v, err := Parse(p, Limits{})
	require.NoError(t, err)
	require.Equal(t, b, v.String)
}

func TestAMemberThatComesTwiceIsFoundWhereverItStands(t *testing.T) {
	for _, n := range []int{2, 7, 8, 9, 24, 25, 100, 1000} {
		for _, first := range []int{0, n / 2, n - 1} {
			members := numbered(n, "m%d")
			v := set(append(members, members[first])...)
			if _, err := Parse(Append(nil, &v), Limits{}); !errors.Is(err, ErrFormat) {
				t.Errorf("member %d of %d again: %v", first, n, err)
			}
		}
	}
}

// The table must do without the room that a parser reserves.
func TestTheTableOfMembersGrowsByItself(t *testing.T) {
	var s seen
	members := byteSlices(numbered(5000, "m%d"))
	at := func(i int) []byte { return members[i] }
	for i, m := range members {
		require.True(t, s.add(m, at), "member %d", i)
	}
	for i, m := range members {
		require.False(t, s.add(m, at), "member %d again", i)
	}
}

func FuzzParse(f *testing.F) {
	for name := range vectors() {
		p := readVector(f, name)
		f.Add(p[:len(p)-footerLen])
	}
	for _, row := range wellFormed() {
		f.Add(row.payload[:len(row.payload)-footerLen])
	}
	for _, row := range malformed() {
		f.Add(row.payload[:len(row.payload)-footerLen])
	}
	limits := Limits{Bytes: 64 << 10, Elements: 1 << 10}
	f.Fuzz(func(t *testing.T, body []byte) {
		p := unchecked(body)
		var v Value
		var err error
		if got, bound := allocated(1, func() { v, err = Parse(p, limits) }), allocBound(p, limits)+256<<10; got > bound {
			t.Errorf("%d bytes allocated, more than %d", got, bound)
		}
		if err != nil {
			requireError(t, err, len(p))
			return
		}
		requireWithin(t, &v, limits)
		again, err := Parse(Append(nil, &v), limits)
		require.NoError(t, err)
		require.Empty(t, difference(&again, &v))
	})
}

// requireError demands that err is an Error about a place in the payload.
func requireError(t *testing.T, err error, payloadLen int) {
	t.Helper()
	var e *Error
	require.ErrorAs(t, err, &e)
	require.GreaterOrEqual(t, e.Offset, 0)
	require.LessOrEqual(t, e.Offset, payloadLen)
	require.NotEmpty(t, e.Text)
	require.Contains(t, []error{ErrFormat, ErrLimit, ErrUnsupported}, e.Reason, "the footer is right")
}

// requireWithin demands what holds for every value.
func requireWithin(t *testing.T, v *Value, l Limits) {
	t.Helper()
	n := len(v.List) + len(v.Set) + len(v.Hash) + len(v.SortedSet)
	require.LessOrEqual(t, n, l.Elements)
	require.Equal(t, v.Kind == String, n == 0)
	size := 0
	for _, b := range slicesOf(v) {
		require.NotNil(t, b)
		size += len(b)
	}
	require.LessOrEqual(t, size, l.Bytes)
}

// FuzzRoundTrip makes a value of any kind from bytes.
func FuzzRoundTrip(f *testing.F) {
	f.Add(byte(String), []byte("a"))
	f.Add(byte(List), []byte("\x01a\x00\x02bc"))
	f.Add(byte(Set), []byte("\x01a\x01b\x00"))
	f.Add(byte(Hash), []byte("\x01a\x01b\x00\x01c"))
	f.Add(byte(SortedSet), []byte("\x01a\x081.5     \x00"))
	f.Fuzz(func(t *testing.T, kind byte, data []byte) {
		v := valueOf(Kind(kind%5), data)
		if v.Kind != String && len(slicesOf(&v)) == 0 {
			return
		}
		before := bytes.Clone(data)
		p := Append(nil, &v)
		got, err := Parse(p, Limits{})
		require.NoError(t, err)
		require.Empty(t, difference(&got, &v))
		require.Equal(t, p, Append(nil, &got), "the order is kept, too")
		require.Equal(t, before, data)
	})
}

// valueOf cuts data into elements, each behind a byte that is its length, and
// leaves out what would come twice.
func valueOf(kind Kind, data []byte) Value {
	v := Value{Kind: kind}
	if kind == String {
		v.String = data
		return v
	}
	var parts [][]byte
	for len(data) > 0 {
		n := min(int(data[0]), len(data)-1)
		parts = append(parts, data[1:1+n])
		data = data[1+n:]
	}
	known := map[string]bool{}
	for i, part := range parts {
		switch {
		case kind == List:
			v.List = append(v.List, part)
		case known[string(part)]:
		case kind == Set:
			v.Set = append(v.Set, part)
		case kind == Hash:
			v.Hash = append(v.Hash, Pair{part, parts[len(parts)-1-i]})
		default:
			v.SortedSet = append(v.SortedSet, Scored{part, float64(len(part)) - float64(i)/3})
		}
		known[string(part)] = true
	}
	return v
}
