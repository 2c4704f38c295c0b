package slotmesh

import (
	"strings"
	"testing"
)

func FuzzKeySlotFollowsTheRule(f *testing.F) {
	for _, key := range []string{"", "foo", "123456789", "{}", "{a}", "foo{}{bar}", "foo{{bar}}zap", "A}B{C", "}{a}",
		"a{'1':{'i32':1}}", "\x00\x00{\x00}", "zzzzzzz{bar}", "{zzzzzzzzzzzzzzzz}x", "0123456789abcdef{g}"} {
		f.Add([]byte(key))
	}
	f.Fuzz(func(t *testing.T, key []byte) {
		want := plainKeySlot(string(key))
		if got := KeySlot(string(key)); got != want {
			t.Errorf("KeySlot(%q) = %d, want %d", key, got, want)
		}
		if got := KeySlotBytes(key); got != want {
			t.Errorf("KeySlotBytes(%q) = %d, want %d", key, got, want)
		}
	})
}

func FuzzParseSlotRangeReadsWhatItPrints(f *testing.F) {
	for _, text := range []string{"", "0", "8000", "0-5460", "16383-16384", "5-3", "-1", "1-2-3", "+1", "00"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := ParseSlotRange(text)
		if err != nil {
			return
		}
		if err := r.Validate(); err != nil {
			t.Errorf("ParseSlotRange(%q) = %v: %v", text, r, err)
		}
		// Only x-x has a second spelling, x.
		if first, last, two := strings.Cut(text, "-"); r.String() != text && (!two || first != last) {
			t.Errorf("ParseSlotRange(%q) prints %q", text, r)
		}
		if again, err := ParseSlotRange(r.String()); err != nil || again != r {
			t.Errorf("%q prints %q, read back as %v, %v", text, r, again, err)
		}
	})
}

func FuzzParseSlotSetReadsWhatItPrints(f *testing.F) {
	for _, text := range []string{"", " ", "0-5460 8000", "8000 0-5460", "0-5 3-9 16383", "0-5,7", "1\t2\n3", "0-16383"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := ParseSlotSet(text)
		if err != nil {
			return
		}
		for field := range strings.FieldsSeq(text) {
			r, err := ParseSlotRange(field)
			if err != nil {
				t.Fatalf("ParseSlotSet(%q) took %q: %v", text, field, err)
			}
			for slot := range r.All() {
				if !s.Contains(slot) {
					t.Fatalf("ParseSlotSet(%q) lacks %d", text, slot)
				}
			}
		}
		if again, err := ParseSlotSet(s.String()); err != nil || again != s {
			t.Errorf("%q prints %q, read back as %q, %v", text, s, again, err)
		}
	})
}

func FuzzSlotSetBitmapIsReadAsItIsWritten(f *testing.F) {
	f.Add([]byte{}, 0)
	f.Add([]byte{1, 2, 0x80}, 2045)
	f.Fuzz(func(t *testing.T, some []byte, at int) {
		bitmap := make([]byte, 2048)
		if at >= 0 && at < len(bitmap) {
			copy(bitmap[at:], some)
		}
		var s SlotSet
		if err := s.UnmarshalBinary(bitmap); err != nil {
			t.Fatal(err)
		}
		out, _ := s.AppendBinary(nil)
		if string(out) != string(bitmap) {
			t.Error("the bitmap changes on the way")
		}
		if again, err := ParseSlotSet(s.String()); err != nil || again != s {
			t.Errorf("%q read back as %q, %v", s, again, err)
		}
	})
}
