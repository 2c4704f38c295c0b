package resp

import (
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
)

// writer appends replies to a buffer, in RESP2 or RESP3. What RESP2 has no form
// for takes the one that Redis gives it there. A writer does no I/O: the
// connection sends buf, and counts it against its limit.
type writer struct {
	buf   []byte
	proto int // 3, or else RESP2
	limit int // bytes that buf may have; 0: any number

	over bool // something has been left out for the limit: buf is no reply any more
}

// fits reports whether n bytes more may be written. From the first that may not
// on, nothing large is.
func (w *writer) fits(n int) bool {
	if w.limit > 0 && len(w.buf)+n > w.limit {
		w.over = true
	}
	return !w.over
}

// simple is a status, as "OK". A line ends the reply: line breaks in s become
// spaces.
func (w *writer) simple(s string) { w.text('+', s) }

// err is an error: its code, a space and its text. As in Redis, line breaks
// around s are dropped and those inside become spaces.
func (w *writer) err(s string) { w.text('-', strings.Trim(s, "\r\n")) }

// errorf is err of a format. It allocates: texts that never change go to err.
func (w *writer) errorf(format string, args ...any) { w.err(fmt.Sprintf(format, args...)) }

// bulk is a string of any bytes. nil is the empty string; null is another reply.
func (w *writer) bulk(b []byte) {
	if !w.fits(len(b)) {
		return
	}
	w.header('$', len(b))
	w.buf = append(w.buf, b...)
	w.endLine()
}

// bulkString is bulk for a string.
func (w *writer) bulkString(s string) {
	if !w.fits(len(s)) {
		return
	}
	w.header('$', len(s))
	w.buf = append(w.buf, s...)
	w.endLine()
}

// null is the absence of a value.
func (w *writer) null() {
	if w.proto == 3 {
		w.buf = append(w.buf, "_\r\n"...)
		return
	}
	w.buf = append(w.buf, "$-1\r\n"...)
}

// nullArray is the absence of an array; RESP3 has one null for all.
func (w *writer) nullArray() {
	if w.proto == 3 {
		w.null()
		return
	}
	w.buf = append(w.buf, "*-1\r\n"...)
}

// integer is a whole number.
func (w *writer) integer(n int64) {
	if !w.fits(0) {
		return
	}
	w.buf = append(w.buf, ':')
	w.buf = strconv.AppendInt(w.buf, n, 10)
	w.endLine()
}

// array announces n replies that follow.
func (w *writer) array(n int) { w.header('*', n) }

// mapHeader announces n pairs of replies that follow; in RESP2 an array of twice
// as many.
func (w *writer) mapHeader(n int) {
	if w.proto == 3 {
		w.header('%', n)
		return
	}
	w.array(2 * n)
}

// setHeader announces n replies that follow, in no order; in RESP2 an array.
func (w *writer) setHeader(n int) { w.aggregate('~', n) }

// push announces n replies that follow and answer no command; in RESP2 an array.
func (w *writer) push(n int) { w.aggregate('>', n) }

// boolean is true or false; in RESP2 the integers 1 and 0.
func (w *writer) boolean(b bool) {
	switch {
	case w.proto == 3 && b:
		w.buf = append(w.buf, "#t\r\n"...)
	case w.proto == 3:
		w.buf = append(w.buf, "#f\r\n"...)
	case b:
		w.integer(1)
	default:
		w.integer(0)
	}
}

// double is a number with a fraction, with the 17 digits of Redis before 7.2:
// 0.1 is 0.10000000000000001. In RESP2 it is a bulk string.
func (w *writer) double(f float64) {
	var digits [24]byte // -1.7976931348623157e+308
	text := appendDouble(digits[:0], f)
	if w.proto != 3 {
		w.bulk(text)
		return
	}
	w.buf = append(w.buf, ',')
	w.buf = append(w.buf, text...)
	w.endLine()
}

// bigNumber is a whole number of any size, in decimal digits that are written as
// they are; in RESP2 a bulk string.
func (w *writer) bigNumber(digits string) {
	if w.proto == 3 {
		w.text('(', digits)
		return
	}
	w.bulkString(digits)
}

// verbatim is text and its kind, as "txt" or "mkd"; in RESP2 a bulk string
// without the kind. RESP3 has three letters for the kind: a longer one is cut, a
// shorter one gets spaces, as in Redis.
func (w *writer) verbatim(kind, text string) {
	if w.proto != 3 {
		w.bulkString(text)
		return
	}
	w.header('=', len("txt:")+len(text))
	for i := range len("txt") {
		letter := byte(' ')
		if i < len(kind) {
			letter = kind[i]
		}
		w.buf = append(w.buf, letter)
	}
	w.buf = append(w.buf, ':')
	w.buf = append(w.buf, text...)
	w.endLine()
}

// aggregate announces n replies under a sign that RESP2 has not.
func (w *writer) aggregate(sign byte, n int) {
	if w.proto == 3 {
		w.header(sign, n)
		return
	}
	w.array(n)
}

// header is a line of a sign and a length.
func (w *writer) header(sign byte, n int) {
	if !w.fits(0) {
		return
	}
	w.buf = append(w.buf, sign)
	w.buf = strconv.AppendInt(w.buf, int64(n), 10)
	w.endLine()
}

// text is a line of a sign and a text that must not end the line early.
func (w *writer) text(sign byte, s string) {
	w.buf = append(w.buf, sign)
	start := len(w.buf)
	w.buf = append(w.buf, s...)
	if strings.ContainsAny(s, "\r\n") {
		for i, b := range w.buf[start:] {
			if b == '\r' || b == '\n' {
				w.buf[start+i] = ' '
			}
		}
	}
	w.endLine()
}

func (w *writer) endLine() { w.buf = append(w.buf, '\r', '\n') }

// appendDouble appends f as C's %.17g does. NaN is "nan" whatever its sign:
// RESP3 knows no other, though Redis 7.0 could let a "-nan" slip out.
func appendDouble(dst []byte, f float64) []byte {
	switch {
	case math.IsNaN(f):
		return append(dst, "nan"...)
	case math.IsInf(f, 1):
		return append(dst, "inf"...)
	case math.IsInf(f, -1):
		return append(dst, "-inf"...)
	}
	return strconv.AppendFloat(dst, f, 'g', 17, 64)
}

// longDoubleBits are the digits, in base 2, that a long double has on amd64.
// Sums of INCRBYFLOAT are those of Redis if they are computed with so many.
const longDoubleBits = 64

// appendLongDouble appends f as INCRBYFLOAT and HINCRBYFLOAT print their result,
// which is a bulk string in both protocols: 17 digits after the point and no
// exponent, then without the zeros at the end. -0 is 0.
func appendLongDouble(dst []byte, f *big.Float) []byte {
	start := len(dst)
	dst = f.Append(dst, 'f', 17)
	end := len(dst)
	for dst[end-1] == '0' {
		end--
	}
	if dst[end-1] == '.' {
		end--
	}
	dst = dst[:end]
	if string(dst[start:]) == "-0" {
		return append(dst[:start], '0')
	}
	return dst
}
