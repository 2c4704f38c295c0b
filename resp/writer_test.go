package resp

import (
	"math"
	"math/big"
	"strconv"
	"strings"
	"testing"
)

func TestRepliesAreWrittenAsRedisWritesThem(t *testing.T) {
	for _, c := range []struct {
		name         string
		write        func(w *writer)
		resp2, resp3 string
	}{
		{"status", func(w *writer) { w.simple("OK") }, "+OK\r\n", "+OK\r\n"},
		{"status with line breaks", func(w *writer) { w.simple("\r\na\nb\r") }, "+  a b \r\n", "+  a b \r\n"},
		{"error", func(w *writer) { w.err("MOVED 3999 127.0.0.1:6381") }, "-MOVED 3999 127.0.0.1:6381\r\n", "-MOVED 3999 127.0.0.1:6381\r\n"},
		{"error with line breaks", func(w *writer) { w.err("\nERR a\r\nb\r\n") }, "-ERR a  b\r\n", "-ERR a  b\r\n"},
		{"error with a format", func(w *writer) { w.errorf("ERR %s and %d", "x\ny", 3) }, "-ERR x y and 3\r\n", "-ERR x y and 3\r\n"},
		{"bulk", func(w *writer) { w.bulk([]byte("a\r\n\x00")) }, "$4\r\na\r\n\x00\r\n", "$4\r\na\r\n\x00\r\n"},
		{"empty bulk", func(w *writer) { w.bulk([]byte{}) }, "$0\r\n\r\n", "$0\r\n\r\n"},
		{"bulk of nil", func(w *writer) { w.bulk(nil) }, "$0\r\n\r\n", "$0\r\n\r\n"},
		{"bulk of a string", func(w *writer) { w.bulkString("hello world") }, "$11\r\nhello world\r\n", "$11\r\nhello world\r\n"},
		{"null", func(w *writer) { w.null() }, "$-1\r\n", "_\r\n"},
		{"null array", func(w *writer) { w.nullArray() }, "*-1\r\n", "_\r\n"},
		{"integer", func(w *writer) { w.integer(12345) }, ":12345\r\n", ":12345\r\n"},
		{"least integer", func(w *writer) { w.integer(math.MinInt64) }, ":-9223372036854775808\r\n", ":-9223372036854775808\r\n"},
		{"array", func(w *writer) { w.array(3) }, "*3\r\n", "*3\r\n"},
		{"empty array", func(w *writer) { w.array(0) }, "*0\r\n", "*0\r\n"},
		{"map", func(w *writer) { w.mapHeader(3) }, "*6\r\n", "%3\r\n"},
		{"set", func(w *writer) { w.setHeader(3) }, "*3\r\n", "~3\r\n"},
		{"push", func(w *writer) { w.push(3) }, "*3\r\n", ">3\r\n"},
		{"true", func(w *writer) { w.boolean(true) }, ":1\r\n", "#t\r\n"},
		{"false", func(w *writer) { w.boolean(false) }, ":0\r\n", "#f\r\n"},
		{"double", func(w *writer) { w.double(1.5) }, "$3\r\n1.5\r\n", ",1.5\r\n"},
		{"infinity", func(w *writer) { w.double(math.Inf(-1)) }, "$4\r\n-inf\r\n", ",-inf\r\n"},
		{"longest double", func(w *writer) { w.double(-math.MaxFloat64) }, "$24\r\n-1.7976931348623157e+308\r\n", ",-1.7976931348623157e+308\r\n"},
		{"big number", func(w *writer) { w.bigNumber("1234567999999999999999999999999999999") },
			"$37\r\n1234567999999999999999999999999999999\r\n", "(1234567999999999999999999999999999999\r\n"},
		{"big number with a line break", func(w *writer) { w.bigNumber("12\r\n3") }, "$5\r\n12\r\n3\r\n", "(12  3\r\n"},
		{"verbatim", func(w *writer) { w.verbatim("txt", "a\nb") }, "$3\r\na\nb\r\n", "=7\r\ntxt:a\nb\r\n"},
		{"verbatim of a short kind", func(w *writer) { w.verbatim("mk", "x") }, "$1\r\nx\r\n", "=5\r\nmk :x\r\n"},
		{"verbatim of a long kind", func(w *writer) { w.verbatim("text", "") }, "$0\r\n\r\n", "=4\r\ntex:\r\n"},
		{"several", func(w *writer) { w.mapHeader(1); w.bulkString("k"); w.null() }, "*2\r\n$1\r\nk\r\n$-1\r\n", "%1\r\n$1\r\nk\r\n_\r\n"},
	} {
		for proto, want := range map[int]string{2: c.resp2, 3: c.resp3} {
			w := writer{proto: proto}
			if c.write(&w); string(w.buf) != want {
				t.Errorf("%s in RESP%d: %q, want %q", c.name, proto, w.buf, want)
			}
		}
	}
}

// The texts were taken from ZSCORE of redis-server 7.0.15, but for -0, which
// Redis makes 0 in a small sorted set, and for NaN.
func TestDoublesHaveTheTextThatRedisGivesThem(t *testing.T) {
	for _, c := range []struct {
		f    float64
		want string
	}{
		{3, "3"},
		{0, "0"},
		{math.Copysign(0, -1), "-0"},
		{100, "100"},
		{0.1, "0.10000000000000001"},
		{0.3, "0.29999999999999999"},
		{3.14159, "3.1415899999999999"},
		{12345.678, "12345.678"},
		{1e15, "1000000000000000"},
		{1e16, "10000000000000000"},
		{1e17, "1e+17"},
		{99999999999999999, "1e+17"},
		{123456789012345678, "1.2345678901234568e+17"},
		{9007199254740993, "9007199254740992"},
		{1e21, "1e+21"},
		{1e100, "1e+100"},
		{1e-4, "0.0001"},
		{1e-5, "1.0000000000000001e-05"},
		{0.00001234, "1.234e-05"},
		{-1e-7, "-9.9999999999999995e-08"},
		{5e-324, "4.9406564584124654e-324"},
		{2.2250738585072014e-308, "2.2250738585072014e-308"},
		{math.MaxFloat64, "1.7976931348623157e+308"},
		{math.Inf(1), "inf"},
		{math.Inf(-1), "-inf"},
		{math.NaN(), "nan"},
		{math.Copysign(math.NaN(), -1), "nan"},
	} {
		if got := string(appendDouble([]byte("x"), c.f)); got != "x"+c.want {
			t.Errorf("%v: %s, want x%s", c.f, got, c.want)
		}
		if back, err := strconv.ParseFloat(c.want, 64); err != nil || back != c.f && !math.IsNaN(c.f) {
			t.Errorf("%s reads as %v, error %v", c.want, back, err)
		}
	}
}

// The texts were taken from INCRBYFLOAT of redis-server 7.0.15 on amd64.
func TestLongDoublesHaveTheTextThatRedisGivesThem(t *testing.T) {
	for _, c := range []struct{ a, b, want string }{
		{"0.1", "0.2", "0.3"},
		{"0.1", "0", "0.1"},
		{"3.0", "0", "3"},
		{"10.5", "0.1", "10.6"},
		{"5.0e3", "2.0e2", "5200"},
		{"0", "-0.0", "0"},
		{"0", "-1e-20", "0"},
		{"0", "4e-18", "0"},
		{"0", "6e-18", "0.00000000000000001"},
		{"0", "1e-17", "0.00000000000000001"},
		{"0", "-0.00001", "-0.00001"},
		{"3", "1.000000000000000005", "4.00000000000000001"},
		{"1e17", "0.5", "100000000000000000.5"},
		{"1e21", "1", "1000000000000000000000"},
		{"123456789.123456789", "0.000000001", "123456789.12345678999554366"},
	} {
		sum := new(big.Float).SetPrec(longDoubleBits).Add(longDouble(t, c.a), longDouble(t, c.b))
		if got := string(appendLongDouble([]byte("0.x"), sum)); got != "0.x"+c.want {
			t.Errorf("%s + %s: %s, want 0.x%s", c.a, c.b, got, c.want)
		}
	}
	if got := appendLongDouble(nil, longDouble(t, "1e308")); len(got) != 309 && len(got) != 308 || strings.Contains(string(got), "e") {
		t.Errorf("1e308: %s", got)
	}
}

func longDouble(t *testing.T, s string) *big.Float {
	t.Helper()
	f, _, err := big.ParseFloat(s, 10, longDoubleBits, big.ToNearestEven)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func writeSome(w *writer) {
	w.buf = w.buf[:0]
	w.simple("OK")
	w.err("ERR no such key")
	w.array(4)
	w.bulk(someValue)
	w.bulkString("field")
	w.integer(1234567890123)
	w.null()
	w.double(0.1)
	w.mapHeader(0)
	w.boolean(true)
	w.verbatim("txt", "text")
}

var someValue = []byte(strings.Repeat("x", 64))

func TestWritingAllocatesNothing(t *testing.T) {
	for _, proto := range []int{2, 3} {
		w := writer{proto: proto}
		writeSome(&w)
		if n := testing.AllocsPerRun(100, func() { writeSome(&w) }); n > 0 {
			t.Errorf("RESP%d: %v allocations", proto, n)
		}
	}
}

func BenchmarkWrite(b *testing.B) {
	for _, c := range []struct {
		name  string
		write func(w *writer)
	}{
		{"bulk of 64 bytes", func(w *writer) { w.bulk(someValue) }},
		{"integer", func(w *writer) { w.integer(1234567890123) }},
		{"status", func(w *writer) { w.simple("OK") }},
		{"double", func(w *writer) { w.double(0.1) }},
		{"whole double", func(w *writer) { w.double(42) }},
		{"one of each", writeSome},
	} {
		b.Run(c.name, func(b *testing.B) {
			w := writer{proto: 3}
			b.ReportAllocs()
			for b.Loop() {
				w.buf = w.buf[:0]
				c.write(&w)
			}
		})
	}
}
