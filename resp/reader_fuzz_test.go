package resp

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
)

// narrow are limits that a short stream can reach.
var narrow = Limits{Args: 5, Bulk: 24, Inline: 40, Command: 90, Pipeline: 7, PreAuthArgs: 2, PreAuthBulk: 12}

// However a stream is cut the same commands come out of it, and the same error;
// no more memory is taken than came in, and these commands written anew are read
// as they were.
func FuzzReader(f *testing.F) {
	ping := "*1\r\n$4\r\nPING\r\n"
	for _, in := range []string{
		ping + ping, ping + "SET k \"a\\x41'\" 'b\\''\r\n", "*0\r\n\r\n" + ping, "*-1\r\n*x\r\n",
		"*1\r\n$536870912\r\nabc", "*1048576\r\n$0\r\n\r\n", "POST / HTTP/1.1\r\nHost: x\r\n\r\n",
		"*2\r\n$16384\r\n" + strings.Repeat("x", 16384) + "\r\n$1\r\nx\r\n",
		"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$100000\r\n" + strings.Repeat("x", 100_000) + "\r\n" + ping,
		"*9000\r\n" + strings.Repeat("$0\r\n\r\n", 9000), strings.Repeat("a ", 20_000) + "\r\n", strings.Repeat(ping, 3000),
		strings.Repeat("x", 65_537), "*" + strings.Repeat("1", 65_537), "*1\r\n$" + strings.Repeat("1", 65_537),
		"\x16\x03\x01\x00\xa5\x01",
	} {
		f.Add([]byte(in), []byte{0}, true, false)
		f.Add([]byte(in), []byte{2, 0, 255, 30}, false, false)
		f.Add([]byte(in), []byte{5, 1}, true, true)
	}
	f.Fuzz(func(t *testing.T, in, sizes []byte, authenticated, small bool) {
		limits := Limits{}
		if small {
			limits = narrow
		}
		read := func(sizes []byte) *reader {
			return newReader(&pieces{b: in, sizes: sizes}, limits, authenticated)
		}
		was := bytes.Clone(in)
		whole := readStream(read(nil))
		if cut := readStream(read(sizes)); !reflect.DeepEqual(cut, whole) {
			t.Fatalf("whole: %q\ncut by %v: %q", whole, sizes, cut)
		}
		if !bytes.Equal(in, was) {
			t.Fatal("the stream was changed")
		}
		checkMemory(t, len(in), whole, func() *reader { return read(sizes) })
		checkAgain(t, whole)
	})
}

// checkMemory reads a stream and counts what that allocates: the slice of each
// argument, which is what next returns, and at most four times what came in.
func checkMemory(t *testing.T, size int, s stream, open func() *reader) {
	t.Helper()
	args := 0
	for _, c := range s.commands {
		args += len(c)
	}
	most := uint64(4*size + 24*args + 64<<10)
	if n := allocated(most, func() { drain(open()) }); n > most {
		t.Errorf("%d bytes allocated for a stream of %d with %d arguments, want at most %d", n, size, args, most)
	}
}

func drain(r *reader) {
	for {
		if _, err := r.next(); err != nil {
			return
		}
	}
}

func checkAgain(t *testing.T, s stream) {
	t.Helper()
	var again strings.Builder
	for _, c := range s.commands {
		again.WriteString(arrayOf(c...))
	}
	got := readStream(newReader(strings.NewReader(again.String()), Limits{}, true))
	if got.err != "EOF" || !reflect.DeepEqual(got.commands, s.commands) {
		t.Fatalf("read %q, and after writing them anew %q", s.commands, got)
	}
}
