package resp

import (
	"bytes"
	"errors"
	"fmt"
	"io"
)

// A protocolError is a request that does not follow the protocol. The client is
// told, and the connection closed: where the next command begins is not known.
type protocolError struct{ text string }

// Error is what the client hears, after the code ERR, in the words of Redis.
func (e *protocolError) Error() string { return "Protocol error: " + e.text }

// Ends of a connection that the client is not told: as in Redis it is closed,
// and replies that wait are dropped.
var (
	errCommandTooLong = errors.New("resp: command is longer than Limits.Command")
	errCrossProtocol  = errors.New("resp: possible cross-protocol attack: a line of an HTTP request as a command")
)

const (
	readBufferMin  = 1 << 10   // of an idle connection
	readBufferFast = 64 << 10  // as far as it grows for a client that fills it
	readBufferKeep = 128 << 10 // what is larger does not outlive the command that needed it
	argsKeep       = 1 << 10   // the same for slots of arguments
	calmReads      = 64        // reads into an empty buffer after which it may be found too large
)

// reader takes the commands of a connection from a stream.
//
//	buf   [ the command that runs | commands that follow, the last one in part | free ]
//	                              ^ pos                                        ^ end
//
// It reads only when no whole command is buffered. A command is first scanned,
// as far as its bytes are there, and scan remembers where that stopped: a stream
// of single bytes is scanned no more often than one that comes whole. When the
// end is known, the arguments are set in one go: so neither the number of
// arguments nor the length of one that a client announces makes anything grow,
// only the bytes that came in do.
type reader struct {
	src    io.Reader
	all    Limits
	limits requestLimits

	buf      []byte
	pos, end int
	scan     scanned
	args     [][]byte // of the last command; aliases buf
	err      error    // of the protocol: it stays
	srcErr   error    // came with the last bytes; to be told when they are used up

	filled bool // the last read left no room: the client has more to say
	proven int  // bytes of a large command that came in lately
	reads  int  // into an empty buffer, since peak began
	peak   int  // the most bytes buffered since then
}

// scanned is how far the command at pos has been looked through.
type scanned struct {
	size  int // bytes that are known to belong to it, those of an argument to come among them
	line  int // bytes after size that do not end a line
	count int // arguments of an array; 0: its first line has not been seen, or it is a line
	left  int // arguments whose length has not been seen
	whole bool
}

// newReader reads from src, with the limits of a client that has authenticated
// or not.
func newReader(src io.Reader, limits Limits, authenticated bool) *reader {
	r := &reader{src: src, all: limits.withDefaults()}
	r.setAuthenticated(authenticated)
	return r
}

// setAuthenticated chooses the limits for what has not been scanned: that is all
// that follows the last command that next returned, unless buffered has looked
// at it already.
func (r *reader) setAuthenticated(yes bool) { r.limits = r.all.request(yes) }

// next returns the next command: its name and arguments, at least one, in memory
// of the reader that may be changed and is good until next is called again. It
// waits for the client only if no whole command is buffered.
//
// A *protocolError is to be told to the client, and ends the connection as
// errCommandTooLong and errCrossProtocol do; these come back from each call. Any
// other error is that of the stream: io.EOF between two commands,
// io.ErrUnexpectedEOF within one. After a timeout next may be called again, and
// goes on where it was.
func (r *reader) next() ([][]byte, error) {
	for r.err == nil {
		whole, err := r.scanCommand()
		switch {
		case err != nil:
			r.err = err
		case whole:
			if r.err = r.setArgs(); r.err == nil {
				return r.args, nil
			}
		default:
			if err := r.read(); err != nil {
				return nil, err
			}
		}
	}
	return nil, r.err
}

// buffered reports whether next would return without reading. It leaves the
// arguments of the last command as they are.
func (r *reader) buffered() bool {
	whole, err := r.scanCommand()
	return whole || err != nil || r.err != nil
}

// scanCommand goes on with the scan of the command at pos, and steps over empty
// ones. It reports whether the command is whole. An error leaves the scan where
// it is, and so comes again.
func (r *reader) scanCommand() (whole bool, err error) {
	s := &r.scan
	for !s.whole && r.pos+s.size < r.end {
		switch {
		case s.left > 0:
			whole, err = r.scanLength()
		case r.buf[r.pos] == '*':
			whole, err = r.scanCount()
		default:
			whole, err = r.scanLine()
		}
		if !whole {
			return false, err
		}
	}
	return s.whole && r.pos+s.size <= r.end, nil
}

// scanCount scans the first line of an array. It reports whether the line was
// whole.
func (r *reader) scanCount() (bool, error) {
	n, head, err := r.announced('*', "too big mbulk count string", "invalid multibulk length")
	switch {
	case head == 0:
		return false, err
	case n > int64(r.limits.args) && r.limits.preAuth && n <= maxCount:
		return false, &protocolError{"unauthenticated multibulk length"}
	case n > int64(r.limits.args):
		return false, &protocolError{"invalid multibulk length"}
	case n <= 0: // Redis takes any negative number for nothing at all
		r.skip(head)
		return true, nil
	}
	r.scan = scanned{size: head, count: int(n), left: int(n)}
	return true, nil
}

// maxCount is the number of arguments over which Redis finds the number itself
// invalid, whoever the client is.
const maxCount = 1<<31 - 1

// scanLength scans the line in front of an argument and steps over the argument.
// It reports whether the line was whole. As in Redis, nobody looks at the two
// bytes behind an argument, nor at the one behind the \r of a line.
func (r *reader) scanLength() (bool, error) {
	n, head, err := r.announced('$', "too big bulk count string", "invalid bulk length")
	switch {
	case head == 0:
		return false, err
	case n > int64(r.limits.bulk) && r.limits.preAuth && n <= int64(r.all.Bulk):
		return false, &protocolError{"unauthenticated bulk length"}
	case n < 0 || n > int64(r.limits.bulk) && !(n <= int64(r.limits.command) && r.carriesValue()):
		return false, &protocolError{"invalid bulk length"}
	}
	s := &r.scan
	if int(n) > r.limits.command-s.size-head-2 {
		return false, errCommandTooLong
	}
	s.size += head + int(n) + 2
	s.line = 0
	s.left--
	s.whole = s.left == 0
	return true, nil
}

// carriesValue reports whether the array at the scan is a command that has a whole
// value as an argument, as DUMP writes it: any that can be kept here must be able
// to come, and may be longer than an argument. The length of the command bounds it.
func (r *reader) carriesValue() bool {
	if r.limits.preAuth || r.scan.left == r.scan.count {
		return false
	}
	command := r.buf[r.pos:r.end]
	_, at := lengthAt(command, 0)
	n, start := lengthAt(command, at)
	switch n { // its bytes are there: the scan has stepped over them
	case len("restore"), len("restore-asking"), len(prepareName):
		name := command[start : start+n]
		return equalFold(name, "restore") || equalFold(name, "restore-asking") || equalFold(name, prepareName)
	}
	return false
}

// announced returns the number in the line at the scan, which begins with sign,
// and the bytes of the line with its end. 0 bytes and no error: the line is not
// whole yet.
func (r *reader) announced(sign byte, tooBig, invalid string) (n int64, size int, err error) {
	n, size = plainNumber(r.buf[r.pos+r.scan.size:r.end], sign)
	if size > 0 && size-2 <= r.limits.line {
		return n, size, nil
	}
	line, ok, err := r.header(tooBig)
	if !ok {
		return 0, 0, err
	}
	if len(line) == 0 || line[0] != sign {
		return 0, 0, &protocolError{fmt.Sprintf("expected '%c', got '%s'", sign, printable(line))}
	}
	if n, ok = parseLength(line[1:]); !ok {
		return 0, 0, &protocolError{invalid}
	}
	return n, len(line) + 2, nil
}

// plainNumber is announced for the lines that clients do send. 0 bytes: it is
// another kind of line, or not whole.
func plainNumber(b []byte, sign byte) (n int64, size int) {
	const digitsMax = 9
	if len(b) < 4 || b[0] != sign || b[1] == '0' && b[2] != '\r' {
		return 0, 0
	}
	for i := 1; i < min(len(b)-1, digitsMax+2); i++ {
		d := b[i] - '0'
		switch {
		case d <= 9:
			n = n*10 + int64(d)
		case b[i] == '\r' && i > 1:
			return n, i + 2
		default:
			return 0, 0
		}
	}
	return 0, 0
}

// printable is the byte that stands where '$' should, as the reply shows it.
func printable(line []byte) []byte {
	if len(line) == 0 || line[0] == '\n' {
		return []byte{' '} // the \r or \n itself, which would end the reply
	}
	return line[:1]
}

// scanLine scans a command that is typed as a line. It reports whether the line
// was whole.
func (r *reader) scanLine() (bool, error) {
	line, ok, err := r.line('\n', "too big inline request")
	if !ok {
		return false, err
	}
	if blank(line) {
		r.skip(len(line) + 1)
		return true, nil
	}
	r.scan = scanned{size: len(line) + 1, whole: true}
	return true, nil
}

// header returns the line at the scan up to its \r; the byte that follows is
// there too.
func (r *reader) header(tooBig string) (line []byte, ok bool, err error) {
	line, ok, err = r.line('\r', tooBig)
	if ok && r.pos+r.scan.size+len(line)+1 == r.end {
		r.scan.line = len(line)
		return nil, false, nil
	}
	return line, ok, err
}

// line returns the bytes at the scan up to an end, which is not among them. Not
// ok and no error: the end has not come yet.
//
// A NUL makes a line too big: Redis sees no byte behind it, finds no end and says
// so once enough has come in. Here it is said at once, which is the better answer
// to a client that speaks TLS.
func (r *reader) line(end byte, tooBig string) (line []byte, ok bool, err error) {
	s := &r.scan
	b := r.buf[r.pos+s.size : r.end]
	if len(b) > r.limits.line {
		b = b[:r.limits.line+1]
	}
	for i := s.line; i < len(b); i++ {
		switch b[i] {
		case end:
			return b[:i], true, nil
		case 0:
			return nil, false, &protocolError{tooBig}
		}
	}
	if len(b) > r.limits.line {
		return nil, false, &protocolError{tooBig}
	}
	s.line = len(b)
	return nil, false, nil
}

// skip steps over n bytes that are no command.
func (r *reader) skip(n int) {
	r.pos += n
	r.scan = scanned{}
}

// setArgs takes the command at pos, which is whole.
func (r *reader) setArgs() (err error) {
	command, count := r.buf[r.pos:r.pos+r.scan.size], r.scan.count
	if count > 0 {
		r.setArrayArgs(command, count)
	} else if err = r.setLineArgs(command); err != nil {
		return err
	}
	r.skip(len(command))
	r.proven = max(len(command), r.proven/2)
	if crossProtocol(r.args[0]) || count == 0 && requestLine(r.args) {
		return errCrossProtocol
	}
	return nil
}

// setArrayArgs sets the arguments of an array. The scan has checked it.
func (r *reader) setArrayArgs(command []byte, count int) {
	r.makeArgs(count)
	_, at := lengthAt(command, 0)
	for range count {
		n, start := lengthAt(command, at)
		r.args = append(r.args, command[start:start+n:start+n])
		at = start + n + 2
	}
}

// lengthAt reads a line of a sign and a number that has been checked, and
// returns the number and the index behind the line.
func lengthAt(b []byte, at int) (n, next int) {
	for at++; b[at] != '\r'; at++ {
		n = n*10 + int(b[at]-'0')
	}
	return n, at + 2
}

// setLineArgs sets the arguments of a line, without the quotes.
func (r *reader) setLineArgs(command []byte) error {
	line := bytes.TrimSuffix(command[:len(command)-1], []byte{'\r'})
	count, ok := countWords(line)
	switch {
	case !ok:
		return &protocolError{"unbalanced quotes in request"}
	case count > r.limits.args && r.limits.preAuth:
		return &protocolError{"unauthenticated multibulk length"}
	case count > r.limits.args:
		return &protocolError{"invalid multibulk length"}
	}
	r.makeArgs(count)
	at := 0
	for range count {
		start := skipSpace(line, at)
		at, _ = wordEnd(line, start)
		r.args = append(r.args, unquote(line[start:at:at]))
	}
	return nil
}

// makeArgs makes room for exactly so many arguments.
func (r *reader) makeArgs(count int) {
	if cap(r.args) < count {
		r.args = make([][]byte, 0, count)
	}
	r.args = r.args[:0]
}

// read waits for bytes. Arguments given out end here.
func (r *reader) read() error {
	if err := r.srcErr; err != nil {
		r.srcErr = nil
		return r.streamError(err)
	}
	r.dropArgs()
	r.makeRoom()
	free := r.buf[r.end:]
	free = free[:min(len(free), r.all.Pipeline)]
	n, err := r.readSome(free)
	r.end += n
	r.peak = max(r.peak, r.end-r.pos)
	r.filled = r.end == len(r.buf)
	if n > 0 {
		r.srcErr = err
		return nil
	}
	return r.streamError(err)
}

// emptyReads is how often in a row a stream may give neither bytes nor an error.
const emptyReads = 100

func (r *reader) readSome(free []byte) (n int, err error) {
	for range emptyReads {
		if n, err = r.src.Read(free); n > 0 || err != nil {
			return n, err
		}
	}
	return 0, io.ErrNoProgress
}

// streamError is err, unless the stream has ended within a command.
func (r *reader) streamError(err error) error {
	if err == io.EOF && r.pos < r.end {
		return io.ErrUnexpectedEOF
	}
	return err
}

// dropArgs lets go of the memory that arguments point at, and of many slots.
func (r *reader) dropArgs() {
	r.args = r.args[:cap(r.args)]
	clear(r.args)
	r.args = r.args[:0]
	if cap(r.args) > argsKeep {
		r.args = nil
	}
}

// makeRoom makes the buffer fit for the next read.
func (r *reader) makeRoom() {
	have := r.end - r.pos
	if have == 0 {
		r.pos, r.end = 0, 0
		r.shrink()
	}
	fits := r.scan.whole && r.scan.size <= len(r.buf)
	switch {
	case r.filled && len(r.buf) < readBufferFast:
		r.resize(r.grown())
	case r.pos > 0 && (fits || r.pos >= have): // moving costs no more than reading did
		copy(r.buf, r.buf[r.pos:r.end])
		r.pos, r.end = 0, have
	case r.end == len(r.buf):
		r.resize(r.grown())
	}
	r.filled = false
}

// grown is the next size of the buffer: twice as large. It is just as large as
// the command if all of that is known and fits into less, or if the client has
// sent one as large lately: then a large argument is read to where it stays.
func (r *reader) grown() int {
	size := max(readBufferMin, 2*len(r.buf))
	if r.scan.whole && r.scan.size > len(r.buf) {
		return min(r.scan.size, max(size, r.proven))
	}
	return size
}

// shrink gives up an empty buffer that was made for one large command, and one
// that has been much too large for a while.
func (r *reader) shrink() {
	r.reads++
	switch {
	case len(r.buf) > readBufferKeep:
		r.resize(readBufferMin)
	case r.reads < calmReads:
		return
	case r.peak < len(r.buf)/4 && len(r.buf) > readBufferMin:
		r.resize(max(readBufferMin, 2*r.peak))
	}
	r.reads, r.peak = 0, 0
}

// resize moves what is buffered to the start of a buffer of another size.
func (r *reader) resize(size int) {
	buf := make([]byte, size)
	r.end = copy(buf, r.buf[r.pos:r.end])
	r.pos = 0
	r.buf = buf
}

// crossProtocol reports whether a command is a line of an HTTP request: a page
// in somebody's browser may have sent it, with commands of its choice to follow.
// Redis runs none of them either.
func crossProtocol(name []byte) bool {
	switch len(name) {
	case len("post"):
		return bytes.EqualFold(name, []byte("post"))
	case len("host:"):
		return bytes.EqualFold(name, []byte("host:"))
	}
	return false
}

// requestLine reports whether a command that was typed as a line is the first one
// of an HTTP request, whatever its verb. Redis goes on with it, unless the verb is
// POST, and runs what a request without Host brings.
func requestLine(args [][]byte) bool {
	const version = "http/"
	return len(args) >= 3 && len(args[2]) >= len(version) && equalFold(args[2][:len(version)], version)
}

// parseLength reads a number as Redis does: digits without zeros in front, or a
// minus in front of them. What no int64 holds is none.
func parseLength(b []byte) (int64, bool) {
	const digitsMax = 19 // of the largest int64
	digits := b
	negative := len(b) > 0 && b[0] == '-'
	if negative {
		digits = b[1:]
	}
	if len(digits) == 0 || len(digits) > digitsMax || digits[0] == '0' && len(b) > 1 {
		return 0, false
	}
	var n uint64
	for _, d := range digits {
		if d < '0' || d > '9' {
			return 0, false
		}
		n = n*10 + uint64(d-'0')
	}
	switch {
	case negative && n <= 1<<63:
		return -int64(n), true
	case !negative && n < 1<<63:
		return int64(n), true
	}
	return 0, false
}

// isSpace is C's isspace.
func isSpace(b byte) bool { return b == ' ' || '\t' <= b && b <= '\r' }

func blank(line []byte) bool { return skipSpace(line, 0) == len(line) }

func skipSpace(line []byte, at int) int {
	for at < len(line) && isSpace(line[at]) {
		at++
	}
	return at
}

// countWords counts the words of a line. Not ok: quotes are unbalanced.
func countWords(line []byte) (count int, ok bool) {
	for at := skipSpace(line, 0); at < len(line); at = skipSpace(line, at) {
		if at, ok = wordEnd(line, at); !ok {
			return 0, false
		}
		count++
	}
	return count, true
}

// wordEnd returns the index behind the word that begins at line[at]. A quote may
// open within a word, and the one that closes it ends the word: not ok if it is
// missing, or if no space follows it. Vertical tabs and form feeds are space
// between words and after quotes, but end no word, as in Redis.
func wordEnd(line []byte, at int) (end int, ok bool) {
	for ; at < len(line); at++ {
		switch line[at] {
		case ' ', '\t', '\r', '\n':
			return at, true
		case '"', '\'':
			end, ok = quoteEnd(line, at)
			return end, ok && (end == len(line) || isSpace(line[end]))
		}
	}
	return at, true
}

// quoteEnd returns the index behind the quote that closes the one at line[at].
func quoteEnd(line []byte, at int) (end int, ok bool) {
	quote := line[at]
	for at++; at < len(line); at++ {
		switch {
		case line[at] == quote:
			return at + 1, true
		case line[at] == '\\' && (quote == '"' || at+1 < len(line) && line[at+1] == quote):
			at++ // what is escaped closes nothing
		}
	}
	return len(line), false
}

// unquote removes the quotes of a word and resolves what is escaped, in place:
// the result is never longer.
func unquote(word []byte) []byte {
	open := bytes.IndexAny(word, `"'`)
	if open < 0 {
		return word
	}
	quote, quoted := word[open], word[open+1:len(word)-1]
	out := word[:open]
	for len(quoted) > 0 {
		b, n := unescape(quoted, quote)
		out = append(out, b)
		quoted = quoted[n:]
	}
	return out
}

// escapes are letters behind a backslash in double quotes; any other stands for
// itself.
var escapes = [256]byte{'n': '\n', 'r': '\r', 't': '\t', 'b': '\b', 'a': '\a'}

// unescape returns the first byte of a quoted text and how many bytes wrote it.
func unescape(text []byte, quote byte) (b byte, n int) {
	switch {
	case text[0] != '\\' || len(text) == 1:
		return text[0], 1
	case quote == '\'':
		if text[1] == '\'' {
			return '\'', 2
		}
		return '\\', 1
	case text[1] == 'x' && len(text) >= 4 && hexDigit(text[2]) >= 0 && hexDigit(text[3]) >= 0:
		return byte(hexDigit(text[2])<<4 | hexDigit(text[3])), 4
	case escapes[text[1]] != 0:
		return escapes[text[1]], 2
	}
	return text[1], 2
}

// hexDigit is the value of a digit, or -1.
func hexDigit(b byte) int {
	switch {
	case '0' <= b && b <= '9':
		return int(b - '0')
	case 'a' <= b && b <= 'f':
		return int(b-'a') + 10
	case 'A' <= b && b <= 'F':
		return int(b-'A') + 10
	}
	return -1
}
