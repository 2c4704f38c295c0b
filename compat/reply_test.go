package compat

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"
)

// reply is one reply in RESP2 or RESP3.
type reply struct {
	kind  byte    // as on the wire: + - : $ * _ # , ( = ~ % >
	text  string  // of what is no aggregate
	null  bool    // $-1 or *-1
	items []reply // of an aggregate; of a map, names and values in turns
}

func (r reply) aggregate() bool {
	switch r.kind {
	case '*', '~', '%', '>', '|':
		return true
	}
	return false
}

func (r reply) isError() bool { return r.kind == '-' || r.kind == '!' }

// is reports whether r is a simple string or an error with the text.
func (r reply) is(text string) bool { return !r.aggregate() && r.text == text }

// wire is the reply as it came.
func (r reply) wire() string { return string(r.append(nil)) }

func (r reply) append(b []byte) []byte {
	b = append(b, r.kind)
	switch {
	case r.null:
		b = append(b, "-1\r\n"...)
	case r.aggregate():
		n := len(r.items)
		if r.kind == '%' || r.kind == '|' {
			n /= 2
		}
		b = append(strconv.AppendInt(b, int64(n), 10), "\r\n"...)
		for _, i := range r.items {
			b = i.append(b)
		}
	case r.kind == '$', r.kind == '=', r.kind == '!':
		b = append(strconv.AppendInt(b, int64(len(r.text)), 10), "\r\n"...)
		b = append(append(b, r.text...), "\r\n"...)
	default:
		b = append(append(b, r.text...), "\r\n"...)
	}
	return b
}

// equal reports whether both are the same bytes.
func (r reply) equal(o reply) bool {
	return r.kind == o.kind && r.null == o.null && r.text == o.text && slices.EqualFunc(r.items, o.items, reply.equal)
}

func (r reply) compare(o reply) int { return strings.Compare(r.wire(), o.wire()) }

// sorted has the items of an aggregate in the order of their bytes, each with the
// width-1 that follow it.
func (r reply) sorted(width int) reply {
	if !r.aggregate() || len(r.items)%width != 0 {
		return r
	}
	groups := slices.Collect(slices.Chunk(r.items, width))
	slices.SortStableFunc(groups, func(a, b []reply) int { return slices.CompareFunc(a, b, reply.compare) })
	r.items = slices.Concat(groups...)
	return r
}

// String shows a reply in one line.
func (r reply) String() string { return r.from(0) }

// from shows a reply from a byte on, long ones cut.
func (r reply) from(at int) string {
	const most = 600
	s := r.wire()
	shown, before, behind := s[at:], "", ""
	if at > 0 {
		before = fmt.Sprintf("(%d bytes) …", at)
	}
	if len(shown) > most {
		shown, behind = shown[:most], fmt.Sprintf("… (%d bytes)", len(shown)-most)
	}
	return before + strconv.Quote(shown) + behind
}

// differAt is shortly before the first byte that differs.
func differAt(a, b string) int {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	if n < 100 {
		return 0
	}
	return n - 50
}

// link is a connection to a server.
type link struct {
	nc net.Conn
	r  *bufio.Reader
	w  []byte // commands that were not sent yet

	patience time.Duration // for a reply; 0: replyTime
}

// A reply that takes longer is missing.
const replyTime = 10 * time.Second

func dial(addr string) (*link, error) {
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	return &link{nc: nc, r: bufio.NewReaderSize(nc, 64<<10)}, nil
}

func (l *link) close() { l.nc.Close() }

// add puts a command behind those to send.
func (l *link) add(args []string) {
	l.w = append(strconv.AppendInt(append(l.w, '*'), int64(len(args)), 10), "\r\n"...)
	for _, a := range args {
		l.w = append(strconv.AppendInt(append(l.w, '$'), int64(len(a)), 10), "\r\n"...)
		l.w = append(append(l.w, a...), "\r\n"...)
	}
}

func (l *link) flush() error {
	_, err := l.nc.Write(l.w)
	l.w = l.w[:0]
	return err
}

func (l *link) do(args ...string) (reply, error) {
	l.add(args)
	if err := l.flush(); err != nil {
		return reply{}, err
	}
	return l.read()
}

// read reads one reply.
func (l *link) read() (reply, error) {
	if err := l.nc.SetReadDeadline(time.Now().Add(cmp.Or(l.patience, replyTime))); err != nil {
		return reply{}, err
	}
	return readReply(l.r)
}

func readReply(r *bufio.Reader) (reply, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return reply{}, fmt.Errorf("after %q: %w", line, err)
	}
	if len(line) < 3 || line[len(line)-2] != '\r' {
		return reply{}, fmt.Errorf("%q is not a line of a reply", line)
	}
	p := reply{kind: line[0], text: line[1 : len(line)-2]}
	switch p.kind {
	case '+', '-', ':', '_', '#', ',', '(':
		return p, nil
	case '$', '=', '!', '*', '~', '%', '>', '|':
	default:
		return reply{}, fmt.Errorf("%q begins no reply", line)
	}
	n, err := strconv.Atoi(p.text)
	if err != nil || n < -1 || n > 1<<30 {
		return reply{}, fmt.Errorf("%q has no length", line)
	}
	p.text = ""
	switch {
	case n < 0:
		p.null = true
		return p, nil
	case !p.aggregate():
		b := make([]byte, n+2)
		if _, err := io.ReadFull(r, b); err != nil {
			return reply{}, err
		}
		p.text = string(b[:n])
		return p, nil
	case p.kind == '%' || p.kind == '|':
		n *= 2
	}
	for range n {
		item, err := readReply(r)
		if err != nil {
			return reply{}, err
		}
		p.items = append(p.items, item)
	}
	return p, nil
}
