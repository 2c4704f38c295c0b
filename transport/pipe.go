package transport

import (
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// bufferSize bounds the bytes that are under way in one direction of a
// connection in memory. At the bound the writer waits for the reader, for its
// deadline or for the end of the connection.
const bufferSize = 256 << 10

// A conn is one end of a connection in memory: the reading end of one half and
// the writing end of the other.
type conn struct {
	in, out       *half
	local, remote net.Addr
}

// newPipe returns the two ends of a connection.
func newPipe(a, b net.Addr) (*conn, *conn) {
	ab, ba := newHalf(nil), newHalf(nil)
	return &conn{in: ba, out: ab, local: a, remote: b}, &conn{in: ab, out: ba, local: b, remote: a}
}

func (c *conn) Read(p []byte) (int, error) {
	n, err := c.in.read(p)
	if err == io.EOF {
		return n, io.EOF // callers compare it, so it is not wrapped
	}
	return n, c.wrap("read", err)
}

func (c *conn) Write(p []byte) (int, error) {
	n, err := c.out.write(p)
	return n, c.wrap("write", err)
}

// Close ends both directions. What was written before still arrives. It is
// idempotent.
func (c *conn) Close() error {
	c.in.closeReader()
	c.out.closeWriter(net.ErrClosed, io.EOF)
	return nil
}

// CloseWrite ends the direction away from here, as that of a net.TCPConn.
func (c *conn) CloseWrite() error {
	c.out.closeWriter(syscall.EPIPE, io.EOF)
	return nil
}

// abort ends both directions at once and tells both sides that the connection
// was reset; what is under way is lost.
func (c *conn) abort() {
	c.in.fail(syscall.ECONNRESET)
	c.out.fail(syscall.ECONNRESET)
	_ = c.Close()
}

func (c *conn) LocalAddr() net.Addr  { return c.local }
func (c *conn) RemoteAddr() net.Addr { return c.remote }

func (c *conn) SetDeadline(t time.Time) error {
	if err := c.SetReadDeadline(t); err != nil {
		return err
	}
	return c.SetWriteDeadline(t)
}

func (c *conn) SetReadDeadline(t time.Time) error {
	return c.wrap("set", c.in.setDeadline(&c.in.reader, t))
}

func (c *conn) SetWriteDeadline(t time.Time) error {
	return c.wrap("set", c.out.setDeadline(&c.out.writer, t))
}

// wrap puts an error into the form in which package net returns it.
func (c *conn) wrap(op string, err error) error {
	if err == nil {
		return nil
	}
	return &net.OpError{Op: op, Net: c.local.Network(), Source: c.local, Addr: c.remote, Err: err}
}

// A half is one direction of a connection: a bounded buffer between a writing
// and a reading end.
//
// All waiting is on one sync.Cond, which counts as blocked in a synctest bubble;
// mu is never held across a wait. Nothing here starts a goroutine: deadlines
// are timers, and they are stopped when their end is closed.
type half struct {
	mu      sync.Mutex
	changed sync.Cond // on mu; broadcast when anything below has changed

	buf     ring  // guarded by mu, as all below
	line    *line // when bytes may be read; nil: at once
	busy    bool  // a write is under way; the next waits, so that writes do not mix
	reader  end
	writer  end
	lastErr error // what the reader gets behind the last byte, once the writer has closed: io.EOF or worse
	failed  error // what both ends get from now on, in place of what was under way
}

// An end is the state of one end of a half.
type end struct {
	closed   error // what its own calls return after it was closed
	expired  bool  // its deadline has passed
	deadline time.Time
	timer    *time.Timer // to look at the deadline; nil: never
	looks    time.Time   // when it does
}

func newHalf(l *line) *half {
	h := &half{line: l}
	h.changed.L = &h.mu
	return h
}

// wake lets all that wait look again.
func (h *half) wake() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.changed.Broadcast()
}

// read waits until a byte is there and reads what is there.
func (h *half) read(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for {
		switch {
		case h.reader.closed != nil:
			return 0, h.reader.closed
		case h.failed != nil:
			return 0, h.failed
		case h.reader.expired:
			return 0, os.ErrDeadlineExceeded
		case len(p) == 0:
			return 0, nil
		}
		n, ended, wait := h.ready()
		switch {
		case n > 0:
			return h.take(p[:min(n, len(p))]), nil
		case ended:
			return 0, h.lastErr
		}
		h.wait(wait)
	}
}

// ready returns how many bytes may be read now, whether there are no more to
// come, and if neither, for how long that will stay so: 0 until something changes.
func (h *half) ready() (n int, ended bool, wait time.Duration) {
	ended = h.buf.n == 0 && h.lastErr != nil
	if h.line == nil {
		return h.buf.n, ended, 0
	}
	n, wait = h.line.ready(time.Now())
	return n, ended && wait == 0, max(wait, 0)
}

func (h *half) take(p []byte) int {
	h.buf.read(p)
	if h.line != nil {
		h.line.take(len(p))
	}
	h.changed.Broadcast()
	return len(p)
}

// wait waits for a change, or for a time if it is not 0.
func (h *half) wait(d time.Duration) {
	if d > 0 {
		defer time.AfterFunc(d, h.wake).Stop()
	}
	h.changed.Wait()
}

// write waits until all of p is in the buffer.
func (h *half) write(p []byte) (written int, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for h.busy && h.writeErr() == nil {
		h.changed.Wait()
	}
	if err := h.writeErr(); err != nil {
		return 0, err
	}
	h.busy = true
	defer func() {
		h.busy = false
		h.changed.Broadcast()
	}()
	for {
		if err := h.writeErr(); err != nil {
			return written, err
		}
		if n := min(len(p)-written, bufferSize-h.buf.n); n > 0 {
			h.put(p[written : written+n])
			written += n
		}
		if written == len(p) {
			return written, nil
		}
		h.changed.Wait()
	}
}

func (h *half) writeErr() error {
	switch {
	case h.writer.closed != nil:
		return h.writer.closed
	case h.failed != nil:
		return h.failed
	case h.reader.closed != nil:
		return syscall.EPIPE // nobody will read it
	case h.writer.expired:
		return os.ErrDeadlineExceeded
	}
	return nil
}

func (h *half) put(p []byte) {
	h.buf.write(p)
	if h.line != nil {
		h.line.put(h.buf.last(len(p)), time.Now())
	}
	h.changed.Broadcast()
}

// closeWriter ends the writing end: its own later calls return mine, the reader
// gets theirs after the last byte.
func (h *half) closeWriter(mine, theirs error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.writer.stop(mine)
	if h.lastErr == nil {
		h.lastErr = theirs
		if h.line != nil {
			h.line.end(time.Now())
		}
	}
	h.changed.Broadcast()
}

// closeReader ends the reading end. What is in the buffer is dropped.
func (h *half) closeReader() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.reader.stop(net.ErrClosed)
	h.drop()
}

// fail ends both ends at once.
func (h *half) fail(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.failed == nil {
		h.failed = err
	}
	h.drop()
}

func (h *half) drop() {
	h.buf = ring{}
	if h.line != nil {
		h.line.drop()
	}
	h.changed.Broadcast()
}

// setDeadline sets the deadline of one of the two ends. Most are put off before they
// come, at each frame: the timer stays as it is then, and goes on when it has fired.
func (h *half) setDeadline(e *end, t time.Time) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if e.closed != nil {
		return e.closed
	}
	e.deadline = t
	left := time.Until(t)
	e.expired = !t.IsZero() && left <= 0
	switch {
	case e.expired:
		h.changed.Broadcast()
	case t.IsZero() || e.timer != nil && !e.looks.After(t):
	case e.timer != nil:
		e.looks = t
		e.timer.Reset(left)
	default:
		e.looks = t
		e.timer = time.AfterFunc(left, func() { h.look(e) })
	}
	return nil
}

// look ends what waits at an end whose deadline has come, or looks again then.
func (h *half) look(e *end) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch left := time.Until(e.deadline); {
	case e.timer == nil: // it has been closed
	case e.deadline.IsZero() || e.expired:
		e.timer = nil
	case left > 0:
		e.looks = e.deadline
		e.timer.Reset(left)
	default:
		e.timer, e.expired = nil, true
		h.changed.Broadcast()
	}
}

// stop stops the end's timer and closes it. The first error stays, but a close after a
// CloseWrite says so.
func (e *end) stop(err error) {
	if e.timer != nil {
		e.timer.Stop()
		e.timer = nil
	}
	if e.closed != net.ErrClosed {
		e.closed = err
	}
}

// A ring is a queue of bytes that grows to what is put in. It never gets larger
// than bufferSize, as its half puts no more into it.
type ring struct {
	data  []byte // its length is a power of two, or 0
	start int
	n     int
	peak  int // the largest n since the ring was last empty
}

func (r *ring) write(p []byte) {
	if len(p) == 0 {
		return
	}
	if r.n+len(p) > len(r.data) {
		r.grow(r.n + len(p))
	}
	at := (r.start + r.n) % len(r.data)
	copied := copy(r.data[at:], p)
	copy(r.data, p[copied:])
	r.n += len(p)
	r.peak = max(r.peak, r.n)
}

func (r *ring) grow(need int) {
	size := max(2*len(r.data), 512)
	for size < need {
		size *= 2
	}
	data := make([]byte, size)
	n := copy(data, r.data[r.start:min(r.start+r.n, len(r.data))])
	copy(data[n:], r.data[:r.n-n])
	r.data, r.start = data, 0
}

// read fills p, which is not longer than the queue.
func (r *ring) read(p []byte) {
	if len(p) == 0 {
		return
	}
	copied := copy(p, r.data[r.start:])
	copy(p[copied:], r.data)
	r.start = (r.start + len(p)) % len(r.data)
	r.n -= len(p)
	if r.n == 0 {
		r.rest()
	}
}

// rest looks at an empty ring: one that has become much too large gives its
// memory back. So a connection for bulk keeps its buffer, and one that carried
// bulk once does not, in a process that may hold thousands.
func (r *ring) rest() {
	if r.peak < len(r.data)/4 && len(r.data) > ringSmall {
		*r = ring{}
	}
	r.peak = 0
}

// ringSmall is a size that any connection may keep.
const ringSmall = 4 << 10

// last returns the last n bytes, in up to two pieces.
func (r *ring) last(n int) [2][]byte {
	if n == 0 {
		return [2][]byte{}
	}
	from, to := (r.start+r.n-n)%len(r.data), (r.start+r.n-1)%len(r.data)+1
	if from < to {
		return [2][]byte{r.data[from:to]}
	}
	return [2][]byte{r.data[from:], r.data[:to]}
}
