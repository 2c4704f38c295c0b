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
// as they were. The stream is a head, and a body times over: so a short input
// makes a long stream, which the fuzzer alone finds too slow to shrink.
func FuzzReader(f *testing.F) {
	for _, c := range []struct {
		head, body string
		times      uint16
	}{
		{"", pingArray, 2},
		{pingArray, "SET k \"a\\x41'\" 'b\\''\r\n", 1},
		{"*0\r\n\r\n*-1\r\n", pingArray, 1},
		{"*1\r\n$536870912\r\n", "abc", 1},
		{"POST / HTTP/1.1\r\n", "Host: x\r\n\r\n", 1},
		{"\x16\x03\x01\x00\xa5\x01", "", 0},
		{"*2\r\n$16384\r\n", "0123456789abcdef", 1 << 10},
		{"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$100000\r\n", "0123456789", 20_000},
		{"*9000\r\n", "$0\r\n\r\n", 9001},
		{"*1048576\r\n", "$1\r\nx\r\n", 30_000},
		{"", "a ", 20_000},
		{"", "a \n", 20_000},
		{"", pingArray, 3000},
		{"", "x", 65_535},
		{"*", "1", 65_535},
		{"*1\r\n$", "1", 65_535},
	} {
		f.Add([]byte(c.head), []byte(c.body), c.times, []byte{0}, true, false)
		f.Add([]byte(c.head), []byte(c.body), c.times, []byte{2, 0, 255, 30}, false, false)
		f.Add([]byte(c.head), []byte(c.body), c.times, []byte{200, 1}, true, true)
	}
	f.Fuzz(func(t *testing.T, head, body []byte, times uint16, sizes []byte, authenticated, small bool) {
		const most = 256 << 10
		in := append(bytes.Clone(head), bytes.Repeat(body, min(int(times), most/max(1, len(body))))...)
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

const pingArray = "*1\r\n$4\r\nPING\r\n"

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
