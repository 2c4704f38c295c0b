package rdb

import (
	"testing"
)

// benchValues are of the sizes that caches hold.
func benchValues() []struct {
	name  string
	value Value
} {
	return []struct {
		name  string
		value Value
	}{
		{"string/100B", text(xs(100))},
		{"string/1MB", text(xs(1 << 20))},
		{"list/1000", list(numbered(1000, "element:%d")...)},
		{"set/1000", set(numbered(1000, "member:%d")...)},
		{"hash/10", hash(interleave(numbered(10, "field:%d"), numbered(10, "value:%d"))...)},
		{"hash/1000", hash(interleave(numbered(1000, "field:%d"), numbered(1000, "value:%d"))...)},
		{"zset/1000", eighths(1000)},
	}
}

func BenchmarkAppend(b *testing.B) {
	for _, row := range benchValues() {
		b.Run(row.name, func(b *testing.B) {
			var buf []byte
			b.ReportAllocs()
			for b.Loop() {
				buf = Append(buf[:0], &row.value)
			}
			b.SetBytes(int64(len(buf)))
		})
	}
}

func BenchmarkParse(b *testing.B) {
	for _, row := range benchValues() {
		b.Run(row.name, func(b *testing.B) {
			benchParse(b, Append(nil, &row.value))
		})
	}
}

// BenchmarkParseOfRedis reads what a real Redis wrote.
func BenchmarkParseOfRedis(b *testing.B) {
	for _, name := range []string{"hash-listpack-lzf", "list-lzf-nodes", "set-intset64", "set-large", "zset-listpack", "hash-large"} {
		b.Run(name, func(b *testing.B) {
			benchParse(b, readVector(b, name))
		})
	}
}

func benchParse(b *testing.B, payload []byte) {
	b.Helper()
	b.SetBytes(int64(len(payload)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Parse(payload, Limits{}); err != nil {
			b.Fatal(err)
		}
	}
}
