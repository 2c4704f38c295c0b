package slotmesh

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// Connections that carry requests and the data of hand-overs. They are opened
// on demand and closed when they have been idle.

const (
	dataBufferMax  = 4 << 20          // bytes waiting for a connection; at the bound the next caller waits
	dataIdle       = time.Minute      // without a call after which a connection is closed
	dataWaitingMax = 512              // requests of one connection that wait at a time; at the bound it is read no further
	dataWriteLimit = 30 * time.Second // for one write to get through
)

// errNotSent: the request has not left this node.
var errNotSent = errors.New("slotmesh: not sent")

// errHungUp: the connection has ended with the request on its way.
var errHungUp = errors.New("slotmesh: the connection ended before the answer came")

// dataConns are a node's connections for requests, one per node asked.
type dataConns struct {
	n      *node
	mu     sync.Mutex // guards what follows
	conns  map[NodeID]*dataConn
	dials  map[NodeID]*dataDial
	closed bool
}

type dataDial struct {
	done chan struct{}
	conn *dataConn
	err  error
}

func newDataConns(n *node) *dataConns {
	return &dataConns{n: n, conns: map[NodeID]*dataConn{}, dials: map[NodeID]*dataDial{}}
}

func (d *dataConns) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
}

// get returns a connection to a node, dialing if there is none.
func (d *dataConns) get(ctx context.Context, to NodeInfo) (*dataConn, error) {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return nil, ErrClosed
	}
	if c := d.conns[to.ID]; c != nil && !c.ended() {
		d.mu.Unlock()
		return c, nil
	}
	dial := d.dials[to.ID]
	if dial == nil {
		dial = &dataDial{done: make(chan struct{})}
		d.dials[to.ID] = dial
		d.n.wg.Go(func() { d.dial(to, dial) })
	}
	d.mu.Unlock()
	select {
	case <-dial.done:
		return dial.conn, dial.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (d *dataConns) dial(to NodeInfo, dial *dataDial) {
	dial.conn, dial.err = d.open(to)
	d.mu.Lock()
	delete(d.dials, to.ID)
	if dial.err == nil {
		d.conns[to.ID] = dial.conn
	}
	d.mu.Unlock()
	close(dial.done)
}

// open makes a connection of its own to a node.
func (d *dataConns) open(to NodeInfo) (*dataConn, error) {
	conn, theirs, err := d.n.dialNode(d.n.ctx, dest{wanted: wanted{ID: to.ID}, addr: to.Addr}, d.n.who.Load(), roleData)
	if err != nil {
		return nil, err
	}
	if theirs.From.ID != to.ID {
		d.n.hangUp(conn)
		return nil, fmt.Errorf("slotmesh: at %s lives node %s, expected %s", to.Addr, theirs.From.ID.short(), to.ID.short())
	}
	c := &dataConn{n: d.n, conn: conn, peer: to.ID, calls: map[uint64]chan *response{}, wake: make(chan struct{}, 1), room: make(chan struct{}, 1), over: make(chan struct{})}
	d.n.wg.Go(c.write)
	d.n.wg.Go(c.read)
	return c, nil
}

// dataConn is the asking side of a connection.
type dataConn struct {
	n    *node
	conn net.Conn
	peer NodeID
	wake chan struct{} // of the writer
	room chan struct{} // of one who waits for the buffer
	over chan struct{} // closed when the connection has ended

	mu     sync.Mutex // guards what follows
	calls  map[uint64]chan *response
	nextID uint64
	buf    []byte
	err    error
	used   time.Time
	ends   map[uint64]chan *dataDone // hand-overs that wait for an answer, by job
}

func (c *dataConn) ended() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err != nil
}

// call sends a request and waits for its answer. The error says whether the
// request has left: errNotSent or not.
func (c *dataConn) call(ctx context.Context, q *request) (*response, error) {
	reply := make(chan *response, 1)
	if err := c.reserve(ctx, q.size()); err != nil {
		return nil, err
	}
	c.nextID++
	q.id = c.nextID
	c.calls[q.id] = reply
	c.used = time.Now()
	c.buf = appendFrameOf(c.buf, frameRequest, q.append)
	c.mu.Unlock()
	signal(c.wake)
	select {
	case r := <-reply:
		if r == nil {
			return nil, errHungUp
		}
		return r, nil
	case <-ctx.Done():
		c.mu.Lock()
		delete(c.calls, q.id)
		c.mu.Unlock()
		return nil, ctx.Err()
	}
}

// reserve waits for room in the buffer and returns with c.mu held, unless it
// fails.
func (c *dataConn) reserve(ctx context.Context, size int) error {
	for {
		c.mu.Lock()
		if c.err != nil {
			c.mu.Unlock()
			return errNotSent
		}
		if len(c.buf) == 0 || len(c.buf)+size <= dataBufferMax {
			return nil
		}
		c.mu.Unlock()
		select {
		case <-c.room:
			signal(c.room) // another one may be waiting too
			select {
			case <-c.over:
			case <-ctx.Done():
				return errors.Join(errNotSent, ctx.Err())
			default:
			}
		case <-c.over:
		case <-ctx.Done():
			return errors.Join(errNotSent, ctx.Err())
		}
	}
}

// send queues a frame of a hand-over.
func (c *dataConn) send(ctx context.Context, kind byte, size int, add func([]byte) []byte) error {
	if err := c.reserve(ctx, size); err != nil {
		return err
	}
	c.used = time.Now()
	c.buf = appendFrameOf(c.buf, kind, add)
	c.mu.Unlock()
	signal(c.wake)
	return nil
}

// appendFrameOf appends a frame whose payload add appends.
func appendFrameOf(b []byte, kind byte, add func([]byte) []byte) []byte {
	start := len(b)
	b = add(append(b, 0, 0, 0, 0, kind))
	n := len(b) - start - 4
	b[start], b[start+1], b[start+2], b[start+3] = byte(n>>24), byte(n>>16), byte(n>>8), byte(n)
	return b
}

func (c *dataConn) write() {
	var spare []byte
	idle := time.NewTimer(dataIdle)
	defer idle.Stop()
	for {
		select {
		case <-c.wake:
		case <-c.over:
			return
		case <-c.n.ctx.Done():
			c.end(ErrClosed)
			return
		case <-idle.C:
			if c.isIdle() {
				c.end(errors.New("slotmesh: idle"))
				return
			}
			idle.Reset(dataIdle)
			continue
		}
		c.mu.Lock()
		buf := c.buf
		c.buf = spare[:0]
		c.mu.Unlock()
		signal(c.room)
		if len(buf) > 0 {
			_ = c.conn.SetWriteDeadline(time.Now().Add(dataWriteLimit))
			if _, err := c.conn.Write(buf); err != nil {
				c.end(err)
				return
			}
		}
		if spare = buf; cap(spare) > 1<<20 {
			spare = nil
		}
	}
}

func (c *dataConn) isIdle() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.calls) == 0 && len(c.ends) == 0 && len(c.buf) == 0 && time.Since(c.used) >= dataIdle
}

func (c *dataConn) read() {
	r := bufio.NewReaderSize(c.conn, 64<<10)
	for {
		kind, payload, err := readFrame(r, c.n.replyLimits, nil)
		if err == nil {
			err = c.handle(kind, payload)
		}
		if err != nil {
			c.end(err)
			return
		}
	}
}

func (c *dataConn) handle(kind byte, payload []byte) error {
	switch kind {
	case frameReply:
		p, err := decodeResponse(payload)
		if err != nil {
			return err
		}
		c.mu.Lock()
		reply := c.calls[p.id]
		delete(c.calls, p.id)
		c.mu.Unlock()
		if reply != nil {
			reply <- p
		}
	case frameDataDone:
		d, err := decodeDataDone(payload)
		if err != nil {
			return err
		}
		c.mu.Lock()
		end := c.ends[d.job]
		delete(c.ends, d.job)
		c.mu.Unlock()
		if end != nil {
			end <- d
		}
	}
	return nil
}

// end ends the connection: every call on it hangs up.
func (c *dataConn) end(err error) {
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return
	}
	c.err = err
	calls, ends := c.calls, c.ends
	c.calls, c.ends = nil, nil
	c.mu.Unlock()
	close(c.over)
	c.n.hangUp(c.conn)
	for _, reply := range calls {
		reply <- nil
	}
	for _, end := range ends {
		end <- nil
	}
}

// ---- the answering side

// bulkOverhead is what the most arguments of a request, or the most ops of a
// piece, add to their bytes.
const bulkOverhead = 2 << 20

// requestLimits and replyLimits bound the frames of a data connection.
func (n *node) requestLimits(kind byte) int {
	switch kind {
	case frameRequest, frameData:
		return n.cfg.MaxKey + txBytesPer*n.cfg.MaxValue + bulkOverhead
	case frameDataBegin, frameDataEnd:
		return 1 << 20
	default:
		return 0
	}
}

func (n *node) replyLimits(kind byte) int {
	switch kind {
	case frameReply:
		return n.cfg.MaxValue + 64<<10
	case frameDataDone:
		return 64 << 10
	default:
		return 0
	}
}

// serveData answers requests and takes hand-overs on an accepted connection.
func (n *node) serveData(conn net.Conn, h *hello) {
	s := &dataServer{n: n, conn: conn, out: bufio.NewWriterSize(conn, 64<<10), waiting: make(chan struct{}, dataWaitingMax), from: h.From}
	defer s.wg.Wait()
	defer conn.Close()
	if v := n.engine.view.Load(); h.To.ID != n.ID() || v.cluster != h.From.Cluster {
		return // it looks for another node, or comes from another cluster
	}
	r := bufio.NewReaderSize(conn, 64<<10)
	for {
		kind, payload, err := readFrame(r, n.requestLimits, nil)
		if err == nil {
			err = s.handle(kind, payload)
		}
		if err == nil && r.Buffered() == 0 {
			err = s.flush()
		}
		if err != nil {
			n.jobs.hungUp(s)
			return
		}
	}
}

type dataServer struct {
	n       *node
	conn    net.Conn
	from    sender
	waiting chan struct{}
	wg      sync.WaitGroup

	mu  sync.Mutex // guards out
	out *bufio.Writer
	buf []byte
}

func (s *dataServer) handle(kind byte, payload []byte) error {
	switch kind {
	case frameRequest:
		q, err := decodeRequest(payload)
		if err != nil {
			return err
		}
		s.answer(q)
	case frameDataBegin:
		job, slots, err := decodeDataBegin(payload)
		if err != nil {
			return err
		}
		s.n.jobs.receiveBegin(s, job, slots)
	case frameData:
		p, err := decodePiece(payload)
		if err != nil {
			return err
		}
		s.n.jobs.receive(s, p)
	case frameDataEnd:
		d, err := decodeDataEnd(payload)
		if err != nil {
			return err
		}
		s.n.jobs.receiveEnd(s, d)
	}
	return nil
}

// answer runs a request at once, or in a goroutine of its own if it has to wait.
func (s *dataServer) answer(q *request) {
	if q.op == opPublish {
		if len(q.args) == 2 {
			s.n.pubSub.deliver(string(q.args[0]), q.args[1])
		}
		return
	}
	if q.op != opHandOff {
		value, ran, err := s.n.engine.runOp(s.n.ctx, q, waitNot)
		if !errors.Is(err, errWouldWait) {
			s.reply(q, value, ran, err)
			return
		}
	}
	select {
	case s.waiting <- struct{}{}:
	case <-s.n.ctx.Done():
		return
	}
	s.wg.Go(func() {
		defer func() { <-s.waiting }()
		var value []byte
		var ran bool
		var err error
		if q.op == opHandOff {
			err = s.n.handOffAsked(s.n.ctx, q)
		} else {
			value, ran, err = s.n.engine.runOp(s.n.ctx, q, waitHold)
		}
		s.reply(q, value, ran, err)
		_ = s.flush()
	})
}

func (s *dataServer) reply(q *request, value []byte, ran bool, err error) {
	p := response{id: q.id, value: value}
	if err != nil {
		p.failed(err, ran)
		p.value = nil
	}
	s.write(frameReply, p.append)
}

// write buffers a frame.
func (s *dataServer) write(kind byte, add func([]byte) []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.buf = appendFrameOf(s.buf[:0], kind, add)
	_ = s.conn.SetWriteDeadline(time.Now().Add(dataWriteLimit))
	_, _ = s.out.Write(s.buf) // a broken connection shows at the next read
	if cap(s.buf) > 1<<20 {
		s.buf = nil
	}
}

func (s *dataServer) flush() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.out.Flush()
}
