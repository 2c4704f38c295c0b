package resp

import (
	"strings"
	"testing"
)

// What redis-server 7.0.15 finds with HSCAN key 0 MATCH pattern.
func TestGlobMatchesAsRedis(t *testing.T) {
	for _, test := range []struct {
		pattern, text string
		want          bool
	}{
		{"", "", true},
		{"", "a", false},
		{"*", "", false}, // but KEYS and SCAN take a lone '*' for no pattern at all
		{"**", "", false},
		{"*", "abc", true},
		{"a*", "a", true},
		{"a***", "a", true},
		{"a*c", "abbc", true},
		{"a*c", "abbcd", false},
		{"*b*", "abc", true},
		{"*ab", "aab", true},
		{"*ab*ba", "abba", true},
		{"*ab*ba", "aba", false},
		{"?", "a", true},
		{"?", "", false},
		{"a?c", "abc", true},
		{"a?", "a", false},
		{"[abc]", "b", true},
		{"[abc]", "d", false},
		{"[^abc]", "d", true},
		{"[^abc]", "a", false},
		{"[a-c]x", "bx", true},
		{"[c-a]x", "bx", true},
		{"[a-c]", "d", false},
		{"[^a-c]", "d", true},
		{"[a-]", "-", false}, // from 'a' to ']', without an end
		{"[a-]", "^", true},
		{"[a\\]]", "]", true},
		{"[\\^]", "^", true},
		{"[^]", "a", true},
		{"[^]b", "ab", true},
		{"[]", "a", false},
		{"[", "a", false},
		{"[a", "a", true},
		{"[a-", "-", true},
		{"[a-c", "b", true},
		{"[\\", "\\", true},
		{"[a-\xff]", "b", false}, // a byte above 127 is below 0
		{"[\x80-\xff]", "\x90", true},
		{"\\*", "*", true},
		{"\\*", "a", false},
		{"\\a", "a", true},
		{"\\", "\\", true},
		{"a\\", "a\\", true},
		{"\\\\", "\\", true},
		{"A", "a", false},
	} {
		if got := globMatch(test.pattern, test.text); got != test.want {
			t.Errorf("globMatch(%q, %q) = %v, want %v", test.pattern, test.text, got, test.want)
		}
	}
}

func TestGlobFoldsCase(t *testing.T) {
	for _, test := range []struct {
		pattern, text string
		want          bool
	}{
		{"MAX*", "maxmemory", true},
		{"max*", "MAXMEMORY", true},
		{"[A-C]", "b", true},
		{"[a-c]", "B", true},
		{"[ABC]", "b", true},
		{"[\\A]", "a", false},
		{"x", "y", false},
	} {
		if got := globMatchFold(test.pattern, test.text); got != test.want {
			t.Errorf("globMatchFold(%q, %q) = %v, want %v", test.pattern, test.text, got, test.want)
		}
	}
}

// A pattern of many stars, which takes a naive matcher a time that grows with a
// power of the text's length.
func TestGlobIsNotSlowOnManyStars(t *testing.T) {
	pattern := strings.Repeat("a*", 5000) + "b"
	if globMatch(pattern, strings.Repeat("a", 20000)) {
		t.Error("a text without b matches a pattern that ends with it")
	}
}

func lower(s string) string { return string(appendLower(nil, []byte(s))) }

// FuzzGlob compares with patterns whose meaning is plain.
func FuzzGlob(f *testing.F) {
	f.Add("a*[b-", "abc")
	f.Add("[^\\]*]", "x]")
	f.Add("\\", "")
	f.Fuzz(func(t *testing.T, pattern, text string) {
		if !strings.Contains(pattern, "[") {
			if got, want := globMatchFold(pattern, text), globMatch(lower(pattern), lower(text)); got != want {
				t.Errorf("globMatchFold(%q, %q) = %v, want %v", pattern, text, got, want)
			}
		}
		var quoted strings.Builder
		for i := range len(text) {
			quoted.WriteString("\\" + text[i:i+1])
		}
		if !globMatch(quoted.String(), text) {
			t.Errorf("%q does not match %q, itself", quoted.String(), text)
		}
		if text != "" && !globMatch("*"+quoted.String()+"*", text) {
			t.Errorf("%q is not found in itself", text)
		}
	})
}
