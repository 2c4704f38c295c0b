package slotmesh

import (
	"bytes"
	"encoding"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/slotmesh/slotmesh/internal/racing"
	"github.com/stretchr/testify/require"
)

// plainKeySlot is the rule of the Redis Cluster specification with no thought
// of speed: cut the tag, then CRC16/XMODEM bit by bit.
func plainKeySlot(key string) Slot {
	if _, rest, found := strings.Cut(key, "{"); found {
		if tag, _, closed := strings.Cut(rest, "}"); closed && tag != "" {
			key = tag
		}
	}
	return Slot(plainCRC16(key) % 16384)
}

func plainCRC16(s string) (crc uint16) {
	for i := range len(s) {
		crc ^= uint16(s[i]) << 8
		for range 8 {
			crc = crc<<1 ^ crc>>15*0x1021
		}
	}
	return crc
}

func TestKeySlotOfKnownKeys(t *testing.T) {
	for _, test := range []struct {
		name, key string
		want      Slot
	}{
		{"plain", "user:1000", 1649},
		{"plain", "user:1001", 5712},
		{"plain", "article:42", 5605},
		{"plain", "cart:9", 1156},
		{"tag in the middle", "order:{1000}:items", 11326},
		{"plain", "foo", 12182},
		{"empty key", "", 0},
		{"empty tag, so the whole key", "{}", 15257},
		{"the first tag is empty, so the whole key", "foo{}{bar}", 8363},
		{"the tag is {bar", "foo{{bar}}zap", 4015},
		{"the first tag counts", "foo{bar}{zap}", 5061},
		{"empty tag in the middle", "user:{}:profile", 139},
		{"O1: } before { opens no tag", "A}B{C", 7939},
		{"O1: } before a tag", "}{a}", 15495},
		{"O1: the same tag alone", "a", 15495},
		{"O2: from the first { to the first } after it", "a{'1':{'i32':1}}", 5540},
		{"O2: the same, doubled braces", "foo{{bar}}zap", 4015},
		{"O3: tag at the end", "foo{bar}", 5061},
		{"O3: the same tag alone", "bar", 5061},
		{"O3: two tags", "foo{bar}{zap}", 5061},
		{"O4: no other modulus than 16384", "foo", 12182},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := KeySlot(test.key); got != test.want {
				t.Errorf("KeySlot(%q) = %d, want %d", test.key, got, test.want)
			}
			if got := KeySlotBytes([]byte(test.key)); got != test.want {
				t.Errorf("KeySlotBytes(%q) = %d, want %d", test.key, got, test.want)
			}
			if got := plainKeySlot(test.key); got != test.want {
				t.Errorf("plainKeySlot(%q) = %d, want %d", test.key, got, test.want)
			}
		})
	}
}

func TestChecksumHasTheCheckValueOfXMODEM(t *testing.T) {
	const check = 0x31C3 // below 16384, so it is the slot as well
	if got := KeySlot("123456789"); got != check {
		t.Errorf("KeySlot(123456789) = %#x, want %#x", int(got), check)
	}
	if got := plainCRC16("123456789"); got != check {
		t.Errorf("plainCRC16(123456789) = %#x, want %#x", got, check)
	}
}

func TestKeySlotFollowsTheRuleForEveryShortKeyOfBraces(t *testing.T) {
	const alphabet = "{}a\xfb" // 0xfb is '{' with the high bit set
	key := make([]byte, 0, 9)
	var walk func()
	walk = func() {
		if got, want := KeySlotBytes(key), plainKeySlot(string(key)); got != want {
			t.Errorf("KeySlotBytes(%q) = %d, want %d", key, got, want)
		}
		if len(key) == cap(key) {
			return
		}
		for i := range len(alphabet) {
			key = append(key, alphabet[i])
			walk()
			key = key[:len(key)-1]
		}
	}
	walk()
}

// Every place of one pair of braces, in keys of every length to beyond four
// blocks, and random bytes around them.
func TestKeySlotFollowsTheRuleForEveryPlaceOfATag(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for n := range 40 {
		for open := range n {
			for end := range n {
				key := make([]byte, n)
				for i := range key {
					key[i] = byte(rnd.Uint32())
				}
				key[open], key[end] = '{', '}'
				if got, want := KeySlotBytes(key), plainKeySlot(string(key)); got != want {
					t.Errorf("KeySlotBytes(%q) = %d, want %d", key, got, want)
				}
			}
		}
	}
}

func TestKeySlotFollowsTheRuleForRandomKeysOfEveryLength(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	for n := range 600 {
		for range 20 {
			key := make([]byte, n)
			for i := range key {
				key[i] = byte(rnd.Uint32())
			}
			for range min(n, rnd.IntN(5)) {
				key[rnd.IntN(n)] = "{}{}z|"[rnd.IntN(6)] // z and | are the neighbours of {
			}
			if got, want := KeySlotBytes(key), plainKeySlot(string(key)); got != want {
				t.Errorf("KeySlotBytes(%q) = %d, want %d", key, got, want)
			}
		}
	}
}

func TestKeySlotDoesNotAllocate(t *testing.T) {
	for _, n := range []int{0, 1, 8, 12, 40, 1000} {
		for _, key := range []string{strings.Repeat("k", n), "{" + strings.Repeat("k", n) + "}x", "x{" + strings.Repeat("k", n) + "}"} {
			b := []byte(key)
			if a := testing.AllocsPerRun(100, func() { KeySlot(key); KeySlotBytes(b) }); a != 0 {
				t.Errorf("KeySlot of %q and its bytes allocate %v times, want 0", key, a)
			}
		}
	}
}

func TestParseSlotReadsWhatPrintsAndNothingElse(t *testing.T) {
	for s := range Slot(NumSlots) {
		got, err := ParseSlot(fmt.Sprint(s))
		require.NoError(t, err)
		require.Equal(t, s, got)
	}
	for _, text := range []string{
		"-1", "16384", "65536", "65535", "99999999999", "99999999999999999999999", "abc", "", "+5", " 5", "5 ", "5\n",
		"0x10", "1_0", "1.0", "1e3", "00", "007", "-0", "٣",
	} {
		s, err := ParseSlot(text)
		require.Errorf(t, err, "ParseSlot(%q)", text)
		if s != 0 {
			t.Errorf("ParseSlot(%q) = %d with an error, want 0", text, s)
		}
		for _, part := range []string{fmt.Sprintf("%q", text), "0-16383"} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("ParseSlot(%q): error %q does not name %s", text, err, part)
			}
		}
	}
}

func TestParseErrorsQuoteNoMoreThanAReaderNeeds(t *testing.T) {
	long := strings.Repeat("9", 1<<20)
	for name, parse := range map[string]func(string) error{
		"ParseSlot":      func(s string) error { _, err := ParseSlot(s); return err },
		"ParseSlotRange": func(s string) error { _, err := ParseSlotRange(s); return err },
		"ParseSlotSet":   func(s string) error { _, err := ParseSlotSet(s); return err },
	} {
		err := parse(long)
		require.Error(t, err, name)
		if len(err.Error()) > 300 || !strings.Contains(err.Error(), "1048576 bytes") {
			t.Errorf("%s of a megabyte: error of %d bytes, %.300s", name, len(err.Error()), err)
		}
	}
}

func TestSlotIsValidBelow16384(t *testing.T) {
	for s, want := range map[Slot]bool{0: true, 16383: true, 16384: false, 65535: false} {
		if got := s.Valid(); got != want {
			t.Errorf("Slot(%d).Valid() = %t, want %t", s, got, want)
		}
	}
}

func TestSlotRangeParsesPrintsAndCounts(t *testing.T) {
	for _, test := range []struct {
		text string
		want SlotRange
		len  int
	}{
		{"0", SlotRange{0, 0}, 1},
		{"8000", SlotRange{8000, 8000}, 1},
		{"16383", SlotRange{16383, 16383}, 1},
		{"0-5460", SlotRange{0, 5460}, 5461},
		{"0-16383", SlotRange{0, 16383}, 16384},
		{"16382-16383", SlotRange{16382, 16383}, 2},
	} {
		r, err := ParseSlotRange(test.text)
		require.NoError(t, err, test.text)
		if r != test.want || r.String() != test.text || r.Len() != test.len || r.Validate() != nil {
			t.Errorf("ParseSlotRange(%q) = %v of %d slots, Validate %v; want %v of %d", test.text, r, r.Len(), r.Validate(), test.want, test.len)
		}
		slots := slices.Collect(r.All())
		if len(slots) != test.len || slots[0] != r.First || slots[len(slots)-1] != r.Last || !slices.IsSorted(slots) {
			t.Errorf("%v.All() yields %d slots, want the %d of the range in order", r, len(slots), test.len)
		}
		for _, s := range []Slot{0, r.First - 1, r.First, r.Last, r.Last + 1, 16383} {
			if got, want := r.Contains(s), slices.Contains(slots, s); got != want {
				t.Errorf("%v.Contains(%d) = %t, want %t", r, s, got, want)
			}
		}
	}
	one, err := ParseSlotRange("7-7")
	require.NoError(t, err)
	require.Equal(t, "7", one.String(), "a range of one slot has one spelling")
}

func TestSlotRangeRefusesWhatIsNone(t *testing.T) {
	for _, text := range []string{
		"", "-", "-1", "1-", "--1", "1--2", "1-2-3", "5-3", "0-16384", "16384", "16384-16385", "0 - 5", " 0-5", "0-5 ", "0-05",
		"+0-5", "a-b", "0:5", "0,5", "0–5", "99999999999-99999999999",
	} {
		r, err := ParseSlotRange(text)
		require.Errorf(t, err, "ParseSlotRange(%q)", text)
		if r != (SlotRange{}) {
			t.Errorf("ParseSlotRange(%q) = %v with an error, want the zero range", text, r)
		}
		for _, part := range []string{fmt.Sprintf("%q", text), "0-16383"} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("ParseSlotRange(%q): error %q does not name %s", text, err, part)
			}
		}
	}
	for r, part := range map[SlotRange]string{
		{5, 3}:         "5-3: first is greater than last",
		{0, 16384}:     "0-16384: want slots in 0-16383",
		{65535, 65535}: "65535: want slots in 0-16383",
	} {
		require.ErrorContains(t, r.Validate(), part)
	}
}

func TestReversedSlotRangeIsEmpty(t *testing.T) {
	r := SlotRange{5, 3}
	if r.Len() != 0 || r.Contains(4) || r.Contains(5) || len(slices.Collect(r.All())) != 0 {
		t.Errorf("%v: Len %d, Contains(4) %t, All %v; want an empty range", r, r.Len(), r.Contains(4), slices.Collect(r.All()))
	}
	var s SlotSet
	s.AddRange(r)
	if !s.Empty() {
		t.Errorf("AddRange(%v) makes %v, want nothing", r, s)
	}
}

func TestSlotRangeAllStopsWithTheLoop(t *testing.T) {
	n := 0
	for range (SlotRange{0, 65535}).All() { // the widest range: no counter may wrap round
		if n++; n == 3 {
			break
		}
	}
	require.Equal(t, 3, n)
	require.Len(t, slices.Collect(SlotRange{65534, 65535}.All()), 2)
}

func mustParseSlotSet(t *testing.T, text string) SlotSet {
	t.Helper()
	s, err := ParseSlotSet(text)
	require.NoError(t, err)
	return s
}

func TestSlotSetPrintsMaximalAscendingRanges(t *testing.T) {
	for _, test := range []struct{ text, want string }{
		{"", ""},
		{" \t\n", ""},
		{"0", "0"},
		{"8000", "8000"},
		{"0-5460 8000", "0-5460 8000"},
		{"8000 0-5460", "0-5460 8000"},
		{"0-5 6-10", "0-10"},
		{"0-5 3-9", "0-9"},
		{"0-5 7-10", "0-5 7-10"},
		{"1 1 1", "1"},
		{"63 64", "63-64"},
		{"62-63 65", "62-63 65"},
		{"16383", "16383"},
		{"0-16383", "0-16383"},
		{"  0-1\t3\n16380-16383 ", "0-1 3 16380-16383"},
		{"0 2 4 6 8", "0 2 4 6 8"},
	} {
		s := mustParseSlotSet(t, test.text)
		if got := s.String(); got != test.want {
			t.Errorf("ParseSlotSet(%q) prints %q, want %q", test.text, got, test.want)
		}
		if again := mustParseSlotSet(t, s.String()); again != s {
			t.Errorf("%q read back is %q", s, again)
		}
	}
	require.Equal(t, "[0-5 7]", fmt.Sprint([]SlotSet{mustParseSlotSet(t, "0-5 7")}), "a set prints as text inside other values")
}

func TestParseSlotSetNamesTheRangeThatIsWrong(t *testing.T) {
	for text, bad := range map[string]string{"0-5 9-7 11": `"9-7"`, "0-5,7": `"0-5,7"`, "x": `"x"`, "0 16384": `"16384"`} {
		s, err := ParseSlotSet(text)
		require.ErrorContains(t, err, bad)
		require.ErrorContains(t, err, "0-16383")
		require.True(t, s.Empty(), "nothing half read")
	}
}

func TestZeroSlotSetIsEmpty(t *testing.T) {
	var s SlotSet
	if !s.Empty() || s.Len() != 0 || s.Contains(0) || s.Ranges() != nil || s.String() != "" || len(slices.Collect(s.All())) != 0 {
		t.Errorf("zero set: %d slots, %q", s.Len(), s)
	}
	s.Add(5)
	s.Remove(5)
	require.Equal(t, SlotSet{}, s, "a set that lost its slots equals one that never had any")
}

func TestFullSlotSetHoldsEverySlot(t *testing.T) {
	var s SlotSet
	s.AddRange(SlotRange{0, NumSlots - 1})
	require.Equal(t, NumSlots, s.Len())
	require.Equal(t, []SlotRange{{0, NumSlots - 1}}, s.Ranges())
	require.Len(t, slices.Collect(s.All()), NumSlots)
}

// naiveSet is a set of slots as anyone would write it.
type naiveSet map[Slot]bool

func (n naiveSet) slots() []Slot {
	var out []Slot
	for s := range Slot(NumSlots) {
		if n[s] {
			out = append(out, s)
		}
	}
	return out
}

func (n naiveSet) ranges() []SlotRange {
	var out []SlotRange
	for _, s := range n.slots() {
		if last := len(out) - 1; last >= 0 && out[last].Last+1 == s {
			out[last].Last = s
		} else {
			out = append(out, SlotRange{s, s})
		}
	}
	return out
}

func (n naiveSet) bitmap() []byte {
	out := make([]byte, 2048)
	for s := range n {
		out[s/8] |= 1 << (s % 8)
	}
	return out
}

// randomSets makes the same set twice. Ends of words and bytes come up often.
func randomSets(rnd *rand.Rand) (SlotSet, naiveSet) {
	var s SlotSet
	n := naiveSet{}
	slot := func() Slot {
		if rnd.IntN(2) == 0 {
			return min(NumSlots-1, Slot(rnd.IntN(NumSlots/64+1)*64-min(1, rnd.IntN(3)))%NumSlots)
		}
		return Slot(rnd.IntN(NumSlots))
	}
	for range rnd.IntN(40) {
		switch a := slot(); rnd.IntN(3) {
		case 0:
			s.Add(a)
			n[a] = true
		case 1:
			s.Remove(a)
			delete(n, a)
		case 2:
			r := SlotRange{a, min(NumSlots-1, a+Slot(rnd.IntN(300)))}
			s.AddRange(r)
			for slot := r.First; slot <= r.Last; slot++ {
				n[slot] = true
			}
		}
	}
	return s, n
}

func checkSameSet(t *testing.T, s SlotSet, n naiveSet) {
	t.Helper()
	require.Equal(t, n.slots(), slices.Collect(s.All()))
	require.Equal(t, len(n), s.Len())
	require.Equal(t, len(n) == 0, s.Empty())
	require.Equal(t, n.ranges(), s.Ranges())
	require.Equal(t, n.ranges(), slices.Collect(s.AllRanges()))
	for slot := range Slot(NumSlots) {
		if s.Contains(slot) != n[slot] {
			t.Fatalf("Contains(%d) = %t, want %t", slot, s.Contains(slot), n[slot])
		}
	}
	b, err := s.AppendBinary(nil)
	require.NoError(t, err)
	require.True(t, bytes.Equal(n.bitmap(), b), "bitmap differs")
}

func TestSlotSetDoesWhatANaiveSetDoes(t *testing.T) {
	racing.OneGoroutine(t)
	t.Parallel()
	rnd := rand.New(rand.NewPCG(5, 6))
	for range 60 {
		s, n := randomSets(rnd)
		checkSameSet(t, s, n)

		other, m := randomSets(rnd)
		union, less, both := s, s, s
		union.Union(&other)
		less.Subtract(&other)
		both.Intersect(&other)
		wantUnion, wantLess, wantBoth := naiveSet{}, naiveSet{}, naiveSet{}
		for slot := range Slot(NumSlots) {
			for _, op := range []struct {
				want naiveSet
				in   bool
			}{{wantUnion, n[slot] || m[slot]}, {wantLess, n[slot] && !m[slot]}, {wantBoth, n[slot] && m[slot]}} {
				if op.in {
					op.want[slot] = true
				}
			}
		}
		checkSameSet(t, union, wantUnion)
		checkSameSet(t, less, wantLess)
		checkSameSet(t, both, wantBoth)
		checkSameSet(t, s, n) // the operand of a copy is untouched
	}
}

func TestSlotSetCombinesWithItself(t *testing.T) {
	s := mustParseSlotSet(t, "1 3-5")
	s.Union(&s)
	s.Intersect(&s)
	require.Equal(t, "1 3-5", s.String())
	s.Subtract(&s)
	require.True(t, s.Empty())
}

func TestSlotSetIsRedisClustersBitmap(t *testing.T) {
	s := mustParseSlotSet(t, "0 9 8000 16383")
	b, err := s.AppendBinary([]byte("head"))
	require.NoError(t, err)
	require.Equal(t, "head", string(b[:4]), "AppendBinary appends")
	b = b[4:]
	require.Len(t, b, 2048)
	for i, got := range b {
		want := map[int]byte{0: 1, 1: 2, 1000: 1, 2047: 0x80}[i]
		if got != want {
			t.Errorf("byte %d = %#x, want %#x", i, got, want)
		}
	}
	m, err := s.MarshalBinary()
	require.NoError(t, err)
	require.Equal(t, b, m)

	var back SlotSet
	require.NoError(t, back.UnmarshalBinary(b))
	require.Equal(t, s, back)
	b[0] = 0xFF
	require.Equal(t, s, back, "the bytes are not kept")
}

func TestSlotSetRefusesABitmapOfAnotherLength(t *testing.T) {
	for _, n := range []int{0, 1, 2047, 2049, 4096} {
		s := mustParseSlotSet(t, "7")
		err := s.UnmarshalBinary(make([]byte, n))
		require.ErrorContains(t, err, fmt.Sprintf("%d bytes: want 2048", n))
		require.Equal(t, "7", s.String(), "the set is unchanged")
	}
}

func TestSlotSetPanicsForASlotThatDoesNotExist(t *testing.T) {
	for name, row := range map[string]struct {
		call func(*SlotSet)
		slot int
	}{
		"Add":      {func(s *SlotSet) { s.Add(NumSlots) }, 16384},
		"Remove":   {func(s *SlotSet) { s.Remove(NumSlots) }, 16384},
		"Contains": {func(s *SlotSet) { s.Contains(65535) }, 65535},
		"AddRange": {func(s *SlotSet) { s.AddRange(SlotRange{0, NumSlots + 1}) }, 16385},
	} {
		var s SlotSet
		require.PanicsWithError(t, fmt.Sprintf("slotmesh: slot %d, expected 0-16383", row.slot), func() { row.call(&s) }, name)
		require.True(t, s.Empty(), "%s leaves nothing half done", name)
	}
}

func TestSlotSetLoopsStopAndSeeChangesAhead(t *testing.T) {
	s := mustParseSlotSet(t, "1 5 9 11-12")
	var seen []Slot
	for slot := range s.All() {
		seen = append(seen, slot)
		switch slot {
		case 1:
			s.Remove(5)
			s.Add(0)
			s.Add(7)
		case 9:
			s.Remove(9)
		}
		if slot == 11 {
			break
		}
	}
	require.Equal(t, []Slot{1, 7, 9, 11}, seen)
	for r := range s.AllRanges() {
		require.Equal(t, SlotRange{0, 1}, r)
		break
	}
}

func TestSlotSetLoopsDoNotAllocate(t *testing.T) {
	s := mustParseSlotSet(t, "0-5460 8000 9000-9005 16383")
	n := 0
	if a := testing.AllocsPerRun(10, func() {
		for r := range s.AllRanges() {
			n += r.Len()
		}
		for range s.All() {
			n++
		}
	}); a != 0 {
		t.Errorf("loops over ranges and slots allocate %v times, want 0", a)
	}
}

var (
	_ encoding.BinaryAppender    = (*SlotSet)(nil)
	_ encoding.BinaryMarshaler   = (*SlotSet)(nil)
	_ encoding.BinaryUnmarshaler = (*SlotSet)(nil)
	_ fmt.Stringer               = SlotSet{}
	_ fmt.Stringer               = SlotRange{}
)

func BenchmarkKeySlot(b *testing.B) {
	for _, kind := range []struct {
		name string
		key  func(n int) string
	}{
		{"plain", func(n int) string { return strings.Repeat("k", n) }},
		{"tag", func(n int) string { return "{" + strings.Repeat("k", n-2) + "}" }},
	} {
		for _, n := range []int{8, 16, 32, 48, 64, 128, 256} {
			key := kind.key(n)
			b.Run(fmt.Sprintf("%s/%d", kind.name, n), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					KeySlot(key)
				}
			})
			bytes := []byte(key)
			b.Run(fmt.Sprintf("%s-bytes/%d", kind.name, n), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					KeySlotBytes(bytes)
				}
			})
		}
	}
}

func BenchmarkSlotSet(b *testing.B) {
	s, err := ParseSlotSet("0-5460 8000 9000-9005 16383")
	require.NoError(b, err)
	b.Run("AllRanges", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			for range s.AllRanges() {
			}
		}
	})
	b.Run("Len", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			s.Len()
		}
	})
	b.Run("String", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_ = s.String()
		}
	})
	b.Run("AppendBinary", func(b *testing.B) {
		b.ReportAllocs()
		buf := make([]byte, 0, 2048)
		for b.Loop() {
			_, _ = s.AppendBinary(buf)
		}
	})
}
