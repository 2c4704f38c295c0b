package resp

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"
)

// stream is what a reader made of one.
type stream struct {
	commands [][]string
	err      string
}

// readStream reads until an error, and between any two commands asks what is
// buffered: that must not change anything.
func readStream(r *reader) (s stream) {
	for {
		before := r.buffered()
		args, err := r.next()
		if err != nil {
			s.err = err.Error()
			return s
		}
		command := make([]string, len(args))
		for i, a := range args {
			command[i] = string(a)
		}
		r.buffered()
		for i, a := range args {
			if string(a) != command[i] {
				s.err = fmt.Sprintf("argument %q became %q when buffered was called", command[i], a)
				return s
			}
		}
		if before && len(args) == 0 {
			s.err = "a command without a name"
			return s
		}
		s.commands = append(s.commands, command)
	}
}

// pieces gives a stream in pieces of given sizes, over and over.
type pieces struct {
	b     []byte
	sizes []byte
	next  int
}

func (p *pieces) Read(b []byte) (int, error) {
	if len(p.b) == 0 {
		return 0, io.EOF
	}
	n := len(p.b)
	if len(p.sizes) > 0 {
		n = min(n, int(p.sizes[p.next%len(p.sizes)])+1)
		p.next++
	}
	n = copy(b, p.b[:n])
	p.b = p.b[n:]
	return n, nil
}

// wantStream reads a stream whole, byte by byte, and cut in two at each place.
func wantStream(t *testing.T, limits Limits, authenticated bool, in string, want stream) {
	t.Helper()
	check := func(how string, src io.Reader) {
		t.Helper()
		if got := readStream(newReader(src, limits, authenticated)); !reflect.DeepEqual(got, want) {
			t.Errorf("%.60q %s: %.300q, want %.300q", in, how, got, want)
		}
	}
	check("whole", strings.NewReader(in))
	check("with EOF at once", iotest.DataErrReader(strings.NewReader(in)))
	check("byte by byte", iotest.OneByteReader(strings.NewReader(in)))
	for cut := range min(len(in), 200) {
		check(fmt.Sprintf("cut at %d", cut), io.MultiReader(strings.NewReader(in[:cut]), strings.NewReader(in[cut:])))
	}
}

func TestCommandsAreReadAsRedisReadsThem(t *testing.T) {
	pings := [][]string{{"PING"}}
	for _, c := range []struct {
		in   string
		want [][]string
	}{
		{"", nil},
		{"*1\r\n$4\r\nPING\r\n", pings},
		{"*2\r\n$4\r\nECHO\r\n$0\r\n\r\n", [][]string{{"ECHO", ""}}},
		{"*2\r\n$4\r\nECHO\r\n$6\r\n\r\n\x00*1\n\r\n", [][]string{{"ECHO", "\r\n\x00*1\n"}}},
		{"*1\r\n$4\r\nPING\r\n*2\r\n$3\r\nGET\r\n$1\r\nk\r\nPING\r\n", [][]string{{"PING"}, {"GET", "k"}, {"PING"}}},

		// Nothing at all is stepped over.
		{"*0\r\nPING\r\n", pings},
		{"*-1\r\nPING\r\n", pings},
		{"*-9223372036854775808\r\n*1\r\n$4\r\nPING\r\n", pings},
		{"\r\n\r\n\n  \r\n\t\v\f\nPING\r\n", pings},

		// Nobody looks at the \n of a line, nor at what ends an argument.
		{"*1\rX$4\rYPINGab", pings},
		{"*1\r\n$4\r\nPINGxxPING\r\n", [][]string{{"PING"}, {"PING"}}},

		// Lines.
		{"PING\n", pings},
		{"  set   k\tv \r\n", [][]string{{"set", "k", "v"}}},
		{`"" a` + "\r\n", [][]string{{"", "a"}}},
		{`ECHO "a\x41\n\r\t\b\a\q\"\\"` + "\r\n", [][]string{{"ECHO", "aA\n\r\t\b\aq\"\\"}}},
		{`ECHO "\xfF\x0g\xg0\x4" x` + "\r\n", [][]string{{"ECHO", "\xffx0gxg0x4", "x"}}},
		{`ECHO 'a\'b\n"\x41\\ ' x` + "\r\n", [][]string{{"ECHO", `a'b\n"\x41\\ `, "x"}}},
		{`ECHO foo"bar"` + "\r\n", [][]string{{"ECHO", "foobar"}}},
		{`ECHO it's' "it's" 'say "x"'` + "\r\n", [][]string{{"ECHO", "its", "it's", `say "x"`}}},
		{`ECHO \x41 \"a"` + "\r\n", [][]string{{"ECHO", `\x41`, `\a`}}},
		{"ECHO a\vb \"a\"\v'b'\f\r\n", [][]string{{"ECHO", "a\vb", "a", "b"}}},
		{"\vPING\f\r\n", [][]string{{"PING\f"}}},
		{"ECHO a\rb \"a\rb\"\r\r\n", [][]string{{"ECHO", "a", "b", "a\rb"}}},
		{"a*1 $4\r\n", [][]string{{"a*1", "$4"}}},
		{"$4\r\n", [][]string{{"$4"}}},
	} {
		wantStream(t, Limits{}, true, c.in, stream{c.want, "EOF"})
	}
}

func TestAProtocolErrorIsInTheWordsOfRedis(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"*\r\n", "invalid multibulk length"},
		{"*+1\r\n", "invalid multibulk length"},
		{"*01\r\n", "invalid multibulk length"},
		{"*-0\r\n", "invalid multibulk length"},
		{"*-\r\n", "invalid multibulk length"},
		{"*x\r\n", "invalid multibulk length"},
		{"* 1\r\n", "invalid multibulk length"},
		{"*1 \r\n", "invalid multibulk length"},
		{"*2147483648\r\n", "invalid multibulk length"},
		{"*9223372036854775808\r\n", "invalid multibulk length"},
		{"*-9223372036854775809\r\n", "invalid multibulk length"},
		{"*99999999999999999999\r\n", "invalid multibulk length"},
		{"*1\r\nPING\r\n", "expected '$', got 'P'"},
		{"*1\r\n*1\r\n", "expected '$', got '*'"},
		{"*1\r\n\xff1\r\n", "expected '$', got '\xff'"},
		{"*1\r\n\r\n", "expected '$', got ' '"},
		{"*1\r\n\n\r\n", "expected '$', got ' '"},
		{"*2\r\n$4\r\nPING\r\n:1\r\n", "expected '$', got ':'"},
		{"*1\r\n$\r\n", "invalid bulk length"},
		{"*1\r\n$-1\r\n", "invalid bulk length"},
		{"*1\r\n$04\r\nPING\r\n", "invalid bulk length"},
		{"*1\r\n$4x\r\nPING\r\n", "invalid bulk length"},
		{"*1\r\n$18446744073709551620\r\nPING\r\n", "invalid bulk length"},
		{`ECHO "a"b` + "\r\n", "unbalanced quotes in request"},
		{`ECHO "a` + "\r\n", "unbalanced quotes in request"},
		{`ECHO 'a` + "\r\n", "unbalanced quotes in request"},
		{`ECHO "a\` + "\r\n", "unbalanced quotes in request"},
		{`ECHO 'a\'` + "\r\n", "unbalanced quotes in request"},
		{`ECHO 'a\\'` + "\r\n", "unbalanced quotes in request"},
		{`ECHO "a\"` + "\r\n", "unbalanced quotes in request"},
		{`ECHO foo"bar"'x'` + "\r\n", "unbalanced quotes in request"},
		{"PING\x00\r\n", "too big inline request"},
		{"\x16\x03\x01\x00\xa5", "too big inline request"},
		{"*1\x00\r\n", "too big mbulk count string"},
		{"*1\r\n$4\x00\r\n", "too big bulk count string"},
	} {
		// What follows is not run, what came before is.
		wantStream(t, Limits{}, true, "*1\r\n$3\r\nTOP\r\n"+c.in+"PING\r\n", stream{[][]string{{"TOP"}}, "Protocol error: " + c.want})
	}
}

func TestAProtocolErrorStays(t *testing.T) {
	r := newReader(strings.NewReader("*x\r\nPING\r\n"), Limits{}, true)
	for range 3 {
		_, err := r.next()
		if bad := new(protocolError); !errors.As(err, &bad) {
			t.Errorf("error %v, want a *protocolError", err)
		}
		if !r.buffered() {
			t.Error("not buffered, though next would not read")
		}
	}
}

// What DUMP has written of any value that may be kept must be able to come back.
func TestAValueMayBeLongerThanAnArgument(t *testing.T) {
	limits := Limits{Bulk: 10, Command: 100, PreAuthBulk: 20}
	long := strings.Repeat("v", 40)
	array := func(args ...string) string {
		b := fmt.Sprintf("*%d\r\n", len(args))
		for _, a := range args {
			b += fmt.Sprintf("$%d\r\n%s\r\n", len(a), a)
		}
		return b
	}
	invalid := stream{err: (&protocolError{"invalid bulk length"}).Error()}
	for _, name := range []string{"restore", "RESTORE", "Restore-Asking", prepareName} {
		limits.Bulk = max(10, len(name))
		in := array(name, "k", "0", long)
		wantStream(t, limits, true, in+in, stream{commands: [][]string{{name, "k", "0", long}, {name, "k", "0", long}}, err: "EOF"})
		wantStream(t, limits, true, array(name, "k", "0", long+long), stream{err: errCommandTooLong.Error()})
		wantStream(t, limits, false, in, invalid)
	}
	limits.Bulk = 10
	for _, name := range []string{"set", "restor", "restorex", "dump", "getset"} {
		wantStream(t, limits, true, array(name, "k", "0", long), invalid)
	}
	wantStream(t, limits, true, array(long, "restore"), invalid)
}

func TestALineOfHTTPEndsTheConnection(t *testing.T) {
	for _, c := range []struct {
		in     string
		before int // commands
	}{
		{"POST / HTTP/1.1\r\nHost: a\r\n\r\nSET x 1\r\n", 0},
		{"GET / HTTP/1.1\r\nhOST: a\r\n\r\nSET x 1\r\n", 0},
		{"GET /\r\nhOST: a\r\n\r\nSET x 1\r\n", 1},
		{"*1\r\n$4\r\npost\r\nPING\r\n", 0},
		{`"POST" x` + "\r\n", 0},
		{"PUT /x HTTP/1.0\r\n\r\nSET x 1\r\n", 0},
		{"PING\r\nget  / http/1.1\r\n\r\nSET x 1\r\n", 1},
		{"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 0},
	} {
		s := readStream(newReader(strings.NewReader(c.in), Limits{}, false))
		if s.err != errCrossProtocol.Error() || len(s.commands) != c.before {
			t.Errorf("%q: %q, want %d commands and %v", c.in, s, c.before, errCrossProtocol)
		}
	}
	s := readStream(newReader(strings.NewReader("POSTS\r\nHOST\r\nhost;\r\nGET POST\r\nSET HTTP/1.1 x\r\nSET x HTTP\r\n*3\r\n$3\r\nSET\r\n$1\r\nx\r\n$8\r\nHTTP/1.1\r\n"), Limits{}, true))
	if s.err != "EOF" || len(s.commands) != 7 {
		t.Errorf("%q, want seven commands", s)
	}
}

func TestAStreamThatEndsWithinACommandSaysSo(t *testing.T) {
	for _, in := range []string{"*1\r\n$4\r\nPING\r\n", `SET k "v w"` + "\r\n", "*2\r\n$1\r\na\r\n$0\r\n\r\n"} {
		for cut := 1; cut < len(in); cut++ {
			s := readStream(newReader(strings.NewReader("\r\n"+in[:cut]), Limits{}, true))
			if s.err != io.ErrUnexpectedEOF.Error() || len(s.commands) > 0 {
				t.Errorf("%q: %q, want %v", in[:cut], s, io.ErrUnexpectedEOF)
			}
		}
	}
}

func arrayOf(args ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(args))
	for _, a := range args {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(a), a)
	}
	return b.String()
}

func TestWhatAClientSendsIsBounded(t *testing.T) {
	args := func(n int) string { return arrayOf(strings.Split(strings.Repeat("x", n), "")...) }
	bulk := func(n int) string { return arrayOf("ECHO", strings.Repeat("x", n)) }
	line := func(n int) string { return "ECHO " + strings.Repeat("x", n-len("ECHO ")) + "\n" }
	announced := func(format string) func(int) string { return func(n int) string { return fmt.Sprintf(format, n) } }
	words := func(n int) string { return strings.Repeat("x ", n) + "\r\n" }
	count := func(n int) string { return "*" + strings.Repeat("1", n-1) + "\r\n" }
	length := func(n int) string { return "*1\r\n$" + strings.Repeat("1", n-1) + "\r\n" }
	sized := func(n int) string { return bulk(n - len("*2\r\n$4\r\nECHO\r\n$100\r\n\r\n")) } // 100 to 999
	for _, c := range []struct {
		name   string
		limits Limits
		known  bool // has authenticated
		limit  int
		in     func(n int) string
		below  string // the error at and below the limit
		above  string
	}{
		{"args", Limits{}, true, 1 << 20, announced("*%d\r\n"), "unexpected EOF", "Protocol error: invalid multibulk length"},
		{"args, set", Limits{Args: 3}, true, 3, args, "EOF", "Protocol error: invalid multibulk length"},
		{"args, before authentication", Limits{}, false, 10, args, "EOF", "Protocol error: unauthenticated multibulk length"},
		{"args, before authentication, set", Limits{PreAuthArgs: 3}, false, 3, args, "EOF", "Protocol error: unauthenticated multibulk length"},
		{"bulk", Limits{}, true, 64 << 20, announced("*1\r\n$%d\r\n"), "unexpected EOF", "Protocol error: invalid bulk length"},
		{"bulk, set", Limits{Bulk: 20}, true, 20, bulk, "EOF", "Protocol error: invalid bulk length"},
		{"bulk, before authentication", Limits{}, false, 16 << 10, bulk, "EOF", "Protocol error: unauthenticated bulk length"},
		{"bulk, before authentication, set", Limits{PreAuthBulk: 20}, false, 20, bulk, "EOF", "Protocol error: unauthenticated bulk length"},
		{"bulk of none", Limits{Bulk: 20}, false, 20, bulk, "EOF", "Protocol error: invalid bulk length"},
		{"line", Limits{}, true, 64 << 10, line, "EOF", "Protocol error: too big inline request"},
		{"line, set", Limits{Inline: 20}, true, 20, line, "EOF", "Protocol error: too big inline request"},
		{"line, before authentication", Limits{}, false, 16 << 10, line, "EOF", "Protocol error: too big inline request"},
		{"words", Limits{Args: 3}, true, 3, words, "EOF", "Protocol error: invalid multibulk length"},
		{"words, before authentication", Limits{}, false, 10, words, "EOF", "Protocol error: unauthenticated multibulk length"},
		{"line of a count", Limits{}, true, 64 << 10, count, "Protocol error: invalid multibulk length", "Protocol error: too big mbulk count string"},
		{"line of a count, set", Limits{Inline: 20}, true, 20, count, "Protocol error: invalid multibulk length", "Protocol error: too big mbulk count string"},
		{"line of a length", Limits{}, true, 64 << 10, length, "Protocol error: invalid bulk length", "Protocol error: too big bulk count string"},
		{"line of a length, set", Limits{Inline: 20}, true, 20, length, "Protocol error: invalid bulk length", "Protocol error: too big bulk count string"},
		{"command", Limits{Command: 300}, true, 300, sized, "EOF", errCommandTooLong.Error()},
		{"command, by default", Limits{Bulk: 200}, false, 800, func(n int) string {
			return arrayOf("ECHO", strings.Repeat("x", 200), strings.Repeat("x", 200), strings.Repeat("x", 200),
				strings.Repeat("x", n-len("*5\r\n$4\r\nECHO\r\n$200\r\n\r\n$200\r\n\r\n$200\r\n\r\n$100\r\n\r\n")-600))
		}, "EOF", errCommandTooLong.Error()},
	} {
		for _, n := range []int{c.limit - 1, c.limit, c.limit + 1} {
			want := c.below
			if n > c.limit {
				want = c.above
			}
			in := c.in(n)
			if s := readStream(newReader(strings.NewReader(in), c.limits, c.known)); s.err != want || (len(s.commands) == 1) != (want == "EOF") {
				t.Errorf("%s: %d: %d commands and %q, want %q", c.name, n, len(s.commands), s.err, want)
			}
			if s := readStream(newReader(iotest.OneByteReader(strings.NewReader(in)), c.limits, c.known)); s.err != want {
				t.Errorf("%s: %d, byte by byte: %q, want %q", c.name, n, s.err, want)
			}
		}
	}
}

// offers notes how many bytes each read asks for.
type offers struct {
	io.Reader
	most int
}

func (o *offers) Read(b []byte) (int, error) {
	o.most = max(o.most, len(b))
	return o.Reader.Read(b)
}

func TestNoMoreThanAPipelineIsReadAtATime(t *testing.T) {
	for _, c := range []struct{ limit, most int }{
		{0, readBufferFast},
		{readBufferFast - 1, readBufferFast - 1},
		{readBufferFast, readBufferFast},
		{readBufferFast + 1, readBufferFast},
		{50, 50},
	} {
		src := &offers{Reader: strings.NewReader(strings.Repeat("PING\r\n", 100_000))}
		s := readStream(newReader(src, Limits{Pipeline: c.limit}, true))
		if s.err != "EOF" || len(s.commands) != 100_000 || src.most != c.most {
			t.Errorf("Pipeline %d: %d commands, %s, %d bytes at a time; want %d", c.limit, len(s.commands), s.err, src.most, c.most)
		}
	}
}

func TestAuthenticationLiftsTheLimitsForWhatFollows(t *testing.T) {
	wide := arrayOf(strings.Split(strings.Repeat("x", 11), "")...)
	for _, early := range []bool{false, true} {
		r := newReader(strings.NewReader("AUTH x\r\n"+wide), Limits{}, false)
		args, err := r.next()
		require.NoError(t, err)
		if early && !r.buffered() { // sees that the next one is refused, for now
			t.Error("the refusal is not buffered")
		}
		require.Equal(t, "AUTH", string(args[0]))
		r.setAuthenticated(true)
		args, err = r.next()
		require.NoError(t, err)
		require.Len(t, args, 11)
	}
	r := newReader(strings.NewReader("RESET\r\n"+wide), Limits{}, true)
	_, err := r.next()
	require.NoError(t, err)
	r.setAuthenticated(false)
	_, err = r.next()
	require.EqualError(t, err, "Protocol error: unauthenticated multibulk length")
}

func TestAPipelineIsReadInOneGo(t *testing.T) {
	src := &countedReads{Reader: strings.NewReader(strings.Repeat("*1\r\n$4\r\nPING\r\n", 16) + "*1\r\n$4\r\nPI")}
	r := newReader(src, Limits{}, true)
	if r.buffered() {
		t.Error("buffered before anything was read")
	}
	for i := range 16 {
		args, err := r.next()
		require.NoError(t, err)
		require.Equal(t, "PING", string(args[0]))
		if got, want := r.buffered(), i < 15; got != want {
			t.Errorf("buffered after %d commands is %v, want %v", i+1, got, want)
		}
	}
	if src.n != 1 {
		t.Errorf("%d reads, want 1", src.n)
	}
}

type countedReads struct {
	io.Reader
	n int
}

func (c *countedReads) Read(b []byte) (int, error) {
	c.n++
	return c.Reader.Read(b)
}

func TestArgumentsDoNotRunIntoEachOther(t *testing.T) {
	for _, in := range []string{arrayOf("a", "b", "c"), "a b c\r\n", `"a" 'b' c` + "\r\n"} {
		r := newReader(strings.NewReader(in+"PING\r\n"), Limits{}, true)
		args, err := r.next()
		require.NoError(t, err)
		_ = append(args[0], "xxxxxxxx"...)
		_ = append(args[1], "xxxxxxxx"...)
		if got := string(bytes.Join(args, []byte(","))); got != "a,b,c" {
			t.Errorf("%q: %s after appending to arguments", in, got)
		}
		args, err = r.next()
		if err != nil || string(args[0]) != "PING" {
			t.Errorf("%q: then %q, error %v", in, args, err)
		}
	}
}

func TestAfterATimeoutReadingGoesOn(t *testing.T) {
	timeout := errors.New("timeout")
	r := newReader(io.MultiReader(
		strings.NewReader("*1\r\n$4\r\nPI"), iotest.ErrReader(timeout)), Limits{}, true)
	_, err := r.next()
	require.ErrorIs(t, err, timeout)
	r.src = strings.NewReader("NG\r\nPING\r\n")
	s := readStream(r)
	require.Equal(t, stream{[][]string{{"PING"}, {"PING"}}, "EOF"}, s)
}

// lastWords returns bytes together with an error.
type lastWords struct {
	b   string
	err error
}

func (l *lastWords) Read(b []byte) (int, error) {
	n := copy(b, l.b)
	l.b = l.b[n:]
	return n, l.err
}

func TestBytesThatComeWithAnErrorAreUsedFirst(t *testing.T) {
	reset := errors.New("connection reset")
	s := readStream(newReader(&lastWords{"PING\r\nPING\r\nPI", reset}, Limits{}, true))
	require.Equal(t, stream{[][]string{{"PING"}, {"PING"}}, reset.Error()}, s)
}

func TestAStreamThatGivesNothingIsGivenUp(t *testing.T) {
	_, err := newReader(&lastWords{}, Limits{}, true).next()
	require.ErrorIs(t, err, io.ErrNoProgress)
}

// heldBy counts the bytes that a reader has allocated and not let go of.
func heldBy(r *reader) int {
	return cap(r.buf) + cap(r.args)*int(reflect.TypeFor[[]byte]().Size())
}

func TestMemoryGrowsWithWhatCameIn(t *testing.T) {
	for _, c := range []struct {
		in   string
		most int
	}{
		{"*1\r\n$67108864\r\nabc", readBufferMin},
		{"*1048576\r\n", readBufferMin},
		{"*1048576\r\n$67108864\r\n", readBufferMin},
		{"*1\r\n$67108864\r\n" + strings.Repeat("x", 100_000), 4 * 100_000},
		{"*1048576\r\n" + strings.Repeat("$0\r\n\r\n", 100_000), 4 * 6 * 100_000},
		{strings.Repeat("\r\n", 100_000), readBufferFast},
		{strings.Repeat("x", 60_000), 4 * 60_000},
	} {
		r := newReader(strings.NewReader(c.in), Limits{}, true)
		_, err := r.next()
		require.Error(t, err)
		if heldBy(r) > c.most {
			t.Errorf("%.30q and so on: %d bytes held for %d, want at most %d", c.in, heldBy(r), len(c.in), c.most)
		}
	}
}

func TestMemoryOfALargeCommandIsGivenBack(t *testing.T) {
	for name, large := range map[string]string{
		"one argument":   arrayOf("SET", "k", strings.Repeat("x", 1<<20)),
		"many arguments": arrayOf(strings.Split(strings.Repeat("x", 100_000), "")...),
	} {
		r := newReader(io.MultiReader(strings.NewReader(large), strings.NewReader("PING\r\n")), Limits{}, true)
		_, err := r.next()
		require.NoError(t, err)
		if heldBy(r) < len(large) {
			t.Errorf("%s: %d bytes held for a command of %d", name, heldBy(r), len(large))
		}
		_, err = r.next()
		require.NoError(t, err)
		if most := 2*readBufferMin + 24*argsKeep; heldBy(r) > most {
			t.Errorf("%s: %d bytes held afterwards, want at most %d", name, heldBy(r), most)
		}
	}
}

func TestABufferThatIsTooLargeForLongShrinks(t *testing.T) {
	src := &refill{}
	r := newReader(src, Limits{}, true)
	read := func(in string) {
		t.Helper()
		src.b = []byte(in)
		_, err := r.next()
		require.NoError(t, err)
	}
	read(arrayOf("SET", "k", strings.Repeat("x", 64<<10)))
	size := len(r.buf)
	for range calmReads - 1 {
		read("PING\r\n")
		require.Len(t, r.buf, size)
	}
	for range calmReads + 1 {
		read("PING\r\n")
	}
	require.Len(t, r.buf, readBufferMin)
}

type refill struct{ b []byte }

func (f *refill) Read(b []byte) (int, error) {
	n := copy(b, f.b)
	f.b = f.b[n:]
	return n, nil
}

// A client that sends large arguments again and again has shown that it does
// send what it announces.
func TestTheSecondLargeArgumentIsReadToWhereItStays(t *testing.T) {
	large := arrayOf("SET", "k", strings.Repeat("x", 4<<20))
	src := &countedReads{Reader: strings.NewReader(large + large)}
	r := newReader(src, Limits{}, true)
	_, err := r.next()
	require.NoError(t, err)
	first := src.n
	_, err = r.next()
	require.NoError(t, err)
	require.Len(t, r.buf, len(large))
	if second := src.n - first; second > 3 {
		t.Errorf("%d reads for the second command, the first took %d", second, first)
	}
}

// allocated returns the bytes that f allocates. Others allocate meanwhile, so it
// tries again as long as that is more than is allowed.
func allocated(most uint64, f func()) uint64 {
	least := uint64(math.MaxUint64)
	for range 5 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		f()
		runtime.ReadMemStats(&after)
		if least = min(least, after.TotalAlloc-before.TotalAlloc); least <= most {
			break
		}
	}
	return least
}

// Whatever is written comes out, as an array and as a line, however it is cut.
func TestRandomCommandsSurviveAnyCut(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 0))
		var in strings.Builder
		want := stream{err: "EOF"}
		for range 1 + rng.IntN(20) {
			command := someCommand(rng)
			want.commands = append(want.commands, command)
			if rng.IntN(2) == 0 {
				in.WriteString(arrayOf(command...))
			} else {
				in.WriteString(lineOf(rng, command))
			}
			in.WriteString([]string{"", "", "\r\n", "*0\r\n", "*-1\r\n", " \n"}[rng.IntN(6)])
		}
		sizes := make([]byte, 1+rng.IntN(8))
		for i := range sizes {
			sizes[i] = byte(rng.IntN(1 << rng.IntN(9)))
		}
		got := readStream(newReader(&pieces{b: []byte(in.String()), sizes: sizes}, Limits{}, true))
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("seed %d: %q\ncut by %v: %q\nwant %q", seed, in.String(), sizes, got, want)
		}
	}
}

func someCommand(rng *rand.Rand) []string {
	command := make([]string, 1+rng.IntN(5))
	for i := range command {
		arg := make([]byte, rng.IntN(1<<rng.IntN(9)))
		for j := range arg {
			arg[j] = byte(rng.IntN(256))
		}
		command[i] = string(arg)
	}
	return command
}

// lineOf writes a command as a line, each argument in one of the forms that can
// hold it.
func lineOf(rng *rand.Rand, command []string) string {
	words := make([]string, len(command))
	for i, arg := range command {
		switch plain := !strings.ContainsAny(arg, "\x00\n\r\t '\"\\") && arg != ""; {
		case plain && arg[0] != '\v' && arg[0] != '\f' && arg[0] != '*' && rng.IntN(2) == 0:
			words[i] = arg
		case !strings.ContainsAny(arg, "\x00\n\\") && rng.IntN(2) == 0:
			words[i] = "'" + strings.ReplaceAll(arg, "'", `\'`) + "'"
		default:
			words[i] = quoted(rng, arg)
		}
	}
	return strings.Join(words, []string{" ", "\t", "  "}[rng.IntN(3)]) + []string{"\n", "\r\n"}[rng.IntN(2)]
}

func quoted(rng *rand.Rand, arg string) string {
	b := []byte{'"'}
	for _, c := range []byte(arg) {
		switch {
		case c == 0 || c == '\n' || rng.IntN(4) == 0:
			b = fmt.Appendf(b, []string{`\x%02x`, `\x%02X`}[rng.IntN(2)], c)
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		default:
			b = append(b, c)
		}
	}
	return string(append(b, '"'))
}

func TestLengthsAreTheNumbersThatRedisReads(t *testing.T) {
	for _, n := range []int64{0, 1, 9, 10, 123456789, math.MaxInt64, math.MaxInt64 - 1, -1, -10, math.MinInt64, math.MinInt64 + 1} {
		if got, ok := parseLength(strconv.AppendInt(nil, n, 10)); !ok || got != n {
			t.Errorf("%d: %d, %v", n, got, ok)
		}
	}
	for _, s := range []string{"", "-", "-0", "00", "01", "-01", "+1", " 1", "1 ", "1.0", "0x1", "1_0", "9223372036854775808",
		"-9223372036854775809", "18446744073709551617", "10000000000000000000", "99999999999999999999999999"} {
		if got, ok := parseLength([]byte(s)); ok {
			t.Errorf("%q: %d, want none", s, got)
		}
	}
}

func TestLimitsSayWhatIsWrong(t *testing.T) {
	require.NoError(t, Limits{}.validate())
	require.NoError(t, Limits{}.withDefaults().validate())
	require.Equal(t, Limits{Bulk: 5}.withDefaults().Command, 20)
	require.Positive(t, Limits{Bulk: math.MaxInt}.withDefaults().Command)
	err := Limits{Bulk: -1, PreAuthTime: -2}.validate()
	require.EqualError(t, err, "resp: Limits.Bulk is -1, expected a positive number, or 0 for the default\n"+
		"resp: Limits.PreAuthTime is -2ns, expected a positive duration, or 0 for the default")
	fields := reflect.TypeFor[Limits]()
	for i := range fields.NumField() {
		var l Limits
		reflect.ValueOf(&l).Elem().Field(i).SetInt(-1)
		require.ErrorContains(t, l.validate(), "Limits."+fields.Field(i).Name+" is ")
	}
}

func TestLimitsMayBeAsLargeAsNumbersAre(t *testing.T) {
	const most = math.MaxInt
	s := readStream(newReader(strings.NewReader(pingArray+"PING\r\n"), Limits{Args: most, Bulk: most, Inline: most, Command: most, Pipeline: most}, true))
	require.Equal(t, stream{[][]string{{"PING"}, {"PING"}}, "EOF"}, s)
}

func TestReadingAPipelineAllocatesNothing(t *testing.T) {
	r, commands := pipelineOfGets()
	if n := testing.AllocsPerRun(100, func() { readCommands(t, r, commands) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// loop gives the same bytes over and over, from the start in each read that has
// used them up.
type loop struct {
	b  []byte
	at int
}

func (l *loop) Read(b []byte) (int, error) {
	n := copy(b, l.b[l.at:])
	l.at = (l.at + n) % len(l.b)
	return n, nil
}

func pipelineOfGets() (r *reader, commands int) {
	return newReader(&loop{b: []byte(strings.Repeat(arrayOf("GET", "key:000000000042"), 16))}, Limits{}, true), 16
}

func readCommands(tb testing.TB, r *reader, commands int) {
	for range commands {
		if _, err := r.next(); err != nil {
			tb.Fatal(err)
		}
		r.buffered()
	}
}

func BenchmarkReadPipelineOf16Gets(b *testing.B) {
	r, commands := pipelineOfGets()
	b.ReportAllocs()
	for b.Loop() {
		readCommands(b, r, commands)
	}
}

func BenchmarkReadLine(b *testing.B) {
	r := newReader(&loop{b: []byte(`SET key:000000000042 "a value\n"` + "\r\n")}, Limits{}, true)
	b.ReportAllocs()
	for b.Loop() {
		readCommands(b, r, 1)
	}
}

func BenchmarkReadSet(b *testing.B) {
	for _, size := range []int{64, 64 << 10, 1 << 20} {
		b.Run(fmt.Sprintf("bytes=%d", size), func(b *testing.B) {
			in := []byte(arrayOf("SET", "key:000000000042", strings.Repeat("x", size)))
			r := newReader(&loop{b: in}, Limits{}, true)
			b.SetBytes(int64(len(in)))
			b.ReportAllocs()
			for b.Loop() {
				readCommands(b, r, 1)
			}
		})
	}
}
