package slotmesh

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Connections that carry requests and the data of hand-overs. They are opened
// on demand and closed when they have been idle.

const (
	dataBufferMax    = 4 << 20               // bytes waiting for a connection; at the bound the next caller waits
	dataIdle         = time.Minute           // without a call after which a connection is closed
	dataWaitingMax   = 4096                  // requests of one connection that run or wait beside it; at the bound one more is told to try again
	dataWaitingBytes = 64 << 20              // of all of them together; the same
	dataChunk        = 256 << 10             // bytes that have to get through
	dataWriteLimit   = 30 * time.Second      // within this time
	dataSilenceMin   = 5 * time.Second       // see silence
	dataDialPause    = 20 * time.Millisecond // after a dial that has failed: until then it fails at once
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
	waits  sync.Pool            // of *dataCall, of calls that have been answered
	dials  map[NodeID]*dataDial // under way, or failed just now
	closed bool
}

type dataDial struct {
	done  chan struct{}
	conn  *dataConn
	err   error
	until time.Time // guarded by the lock of dataConns: what has failed counts until then
}

func newDataConns(n *node) *dataConns {
	return &dataConns{n: n, conns: map[NodeID]*dataConn{}, dials: map[NodeID]*dataDial{}}
}

// silence is how long a node may answer nothing at all, a ping neither, before
// its connection counts as dead: a firewall may have forgotten it, which nobody
// tells.
func (n *node) silence() time.Duration { return max(2*n.cfg.NodeTimeout, dataSilenceMin) }

func (d *dataConns) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
}

// ready returns the connection to a node, or nil where get would have to dial.
func (d *dataConns) ready(to NodeID) *dataConn {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c := d.conns[to]; c != nil && !d.closed && !c.ended() {
		return c
	}
	return nil
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
	if dial == nil || !dial.until.IsZero() && time.Now().After(dial.until) {
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
	if dial.err == nil {
		delete(d.dials, to.ID)
		d.conns[to.ID] = dial.conn
	} else {
		d.trim()
		dial.until = time.Now().Add(dataDialPause)
	}
	d.mu.Unlock()
	close(dial.done)
}

// clusterTag says in each request which cluster it comes from: a connection may
// outlive what its two sides were when it began.
func clusterTag(who *sender) uint64 { return binary.LittleEndian.Uint64(who.Cluster[:]) }

// trim forgets the dials that have failed for nodes that nobody asks any more.
func (d *dataConns) trim() {
	for id, dial := range d.dials {
		if !dial.until.IsZero() && time.Since(dial.until) > dataIdle {
			delete(d.dials, id)
		}
	}
}

// forget removes a connection that has ended.
func (d *dataConns) forget(c *dataConn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.conns[c.peer] == c {
		delete(d.conns, c.peer)
	}
}

// open makes a connection of its own to a node.
func (d *dataConns) open(to NodeInfo) (*dataConn, error) {
	who := d.n.who.Load()
	if who == nil {
		return nil, errNotSaved
	}
	conn, theirs, err := d.n.dialNode(d.n.ctx, dest{wanted: wanted{ID: to.ID}, addr: to.Addr}, who, roleData)
	if err != nil {
		return nil, err
	}
	switch {
	case theirs.From.ID != to.ID:
		err = fmt.Errorf("slotmesh: at %s lives node %s, expected %s", to.Addr, theirs.From.ID.short(), to.ID.short())
	case theirs.From.Cluster != who.Cluster:
		err = fmt.Errorf("slotmesh: node %s at %s is not in this cluster, or not yet", to.ID.short(), to.Addr)
	}
	if err != nil {
		d.n.hangUp(conn)
		return nil, err
	}
	c := &dataConn{n: d.n, conn: &steadyConn{Conn: conn}, tracked: conn, peer: to.ID, calls: map[uint64]*dataCall{}, wake: make(chan struct{}, 1),
		over: make(chan struct{}), used: time.Now()}
	c.conn.heard.Store(time.Now().UnixNano())
	d.n.wg.Go(c.write)
	d.n.wg.Go(c.read)
	return c, nil
}

// steadyConn is a connection that is given time as long as bytes get through.
type steadyConn struct {
	net.Conn
	idle  time.Duration // without a byte after which a read gives up; 0: never
	set   time.Time     // when the limit of reads was set; the reader's alone
	heard atomic.Int64  // Unix time in ns at which bytes came in last
}

func (c *steadyConn) Read(b []byte) (int, error) {
	if now := time.Now(); c.idle > 0 && now.Sub(c.set) > c.idle/8 {
		c.set = now
		if err := c.SetReadDeadline(now.Add(c.idle)); err != nil {
			return 0, err
		}
	}
	n, err := c.Conn.Read(b)
	c.heard.Store(time.Now().UnixNano())
	return n, err
}

func (c *steadyConn) Write(b []byte) (n int, err error) {
	for first := true; first || n < len(b); first = false {
		if err := c.SetWriteDeadline(time.Now().Add(dataWriteLimit)); err != nil {
			return n, err
		}
		wrote, err := c.Conn.Write(b[n:min(len(b), n+dataChunk)])
		if n += wrote; err != nil {
			return n, err
		}
	}
	return n, nil
}

// dataConn is the asking side of a connection.
type dataConn struct {
	n       *node
	conn    *steadyConn
	tracked net.Conn // conn, as the node knows it
	peer    NodeID
	wake    chan struct{} // of the writer
	over    chan struct{} // closed when the connection has ended

	mu     sync.Mutex // guards what follows
	calls  map[uint64]*dataCall
	nextID uint64
	buf    []byte
	room   chan struct{} // closed when the buffer is empty; nil: nobody waits for it
	err    error
	used   time.Time
	ends   map[uint64]chan *dataDone // of hand-overs that wait for an answer, by position
	ping   bool                      // one is on its way, or will be, and has not been answered
	pinged time.Time                 // when it had been written; zero: it has not
	pings  uint64                    // sent, or about to be
	pongs  uint64                    // that have come, in the same order
	passed map[uint64]chan struct{}  // who waits for a pong, by its number
}

func (c *dataConn) ended() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err != nil
}

// dataCall is a call that waits for its answer. Once it has it, nobody else knows of it:
// the next call takes it up again. One that is given up, or hangs up, is not used again,
// for its answer may still come.
type dataCall struct {
	done   chan bool // true: answer is there; false: the connection has ended. Room for one, so that nobody waits for the caller
	answer response
	timer  *time.Timer // of a call with a limit of its own; nil: there was none yet
}

// newCall returns a call that nobody knows of, and what tells that its limit is over:
// nothing, where that is zero.
func (d *dataConns) newCall(until time.Time) (*dataCall, <-chan time.Time) {
	call, _ := d.waits.Get().(*dataCall)
	if call == nil {
		call = &dataCall{done: make(chan bool, 1)}
	}
	if until.IsZero() {
		return call, nil
	}
	if left := time.Until(until); call.timer == nil {
		call.timer = time.NewTimer(left)
	} else {
		call.timer.Reset(left)
	}
	return call, call.timer.C
}

// finish takes the answer of a call, which the next one may take up then.
func (d *dataConns) finish(call *dataCall) response {
	p := call.answer
	call.answer = response{}
	call.stop()
	d.waits.Put(call)
	return p
}

func (call *dataCall) stop() {
	if call.timer != nil {
		call.timer.Stop()
	}
}

// call sends a request and waits for its answer, until a time if that is not zero. The
// error says whether the request has left: errNotSent or not.
func (c *dataConn) call(ctx context.Context, q *request, until time.Time) (response, error) {
	if err := c.reserve(ctx, q.size(), until); err != nil {
		return response{}, err
	}
	call, over := c.n.data.newCall(until)
	c.nextID++
	q.id, q.cluster = c.nextID, clusterTag(c.n.who.Load())
	c.calls[q.id] = call
	c.used = time.Now()
	c.buf = appendFrameOf(c.buf, frameRequest, q.append)
	c.mu.Unlock()
	signal(c.wake)
	var err error
	select {
	case answered := <-call.done:
		if answered {
			return c.n.data.finish(call), nil
		}
		err = errHungUp
	case <-ctx.Done():
		err = ctx.Err()
	case <-over:
		err = context.DeadlineExceeded
	}
	call.stop()
	c.mu.Lock()
	delete(c.calls, q.id)
	c.mu.Unlock()
	return response{}, err
}

// reserve waits for room in the buffer, until a time if that is not zero, and returns
// with c.mu held, unless it fails.
func (c *dataConn) reserve(ctx context.Context, size int, until time.Time) error {
	for {
		c.mu.Lock()
		if c.err != nil {
			c.mu.Unlock()
			return errNotSent
		}
		if len(c.buf) == 0 || len(c.buf)+size <= dataBufferMax {
			return nil
		}
		if c.room == nil {
			c.room = make(chan struct{})
		}
		room := c.room
		c.mu.Unlock()
		if !until.IsZero() {
			var cancel context.CancelFunc
			ctx, cancel = context.WithDeadline(ctx, until)
			defer cancel() // once: the limit is in ctx from here on
			until = time.Time{}
		}
		select {
		case <-room:
		case <-c.over:
		case <-ctx.Done():
			return errors.Join(errNotSent, ctx.Err())
		}
	}
}

// send queues a frame of a hand-over.
func (c *dataConn) send(ctx context.Context, kind byte, size int, add func([]byte) []byte) error {
	if err := c.reserve(ctx, size, time.Time{}); err != nil {
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

// write sends what is queued, and looks from time to time whether the other side
// is still there.
func (c *dataConn) write() {
	var spare []byte
	look := time.NewTicker(c.n.silence() / 4)
	defer look.Stop()
	for {
		select {
		case <-c.wake:
		case <-c.over:
			return
		case <-c.n.ctx.Done():
			c.end(ErrClosed)
			return
		case <-look.C:
			if err := c.lookAlive(time.Now()); err != nil {
				c.end(err)
				return
			}
		}
		buf, pings := c.takeBuffer(spare)
		if len(buf) > 0 {
			if _, err := c.conn.Write(buf); err != nil {
				c.end(err)
				return
			}
		}
		if pings {
			c.wrotePing(time.Now())
		}
		if spare = buf; cap(spare) > 1<<20 {
			spare = nil
		}
	}
}

// takeBuffer returns what is to be written, and whether a ping is in it.
func (c *dataConn) takeBuffer(spare []byte) (buf []byte, pings bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	buf, pings = c.buf, c.ping && c.pinged.IsZero()
	c.buf = spare[:0]
	if c.room != nil {
		close(c.room)
		c.room = nil
	}
	return buf, pings
}

// wrotePing notes when a ping has left: what was queued before it may have taken
// its time.
func (c *dataConn) wrotePing(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ping && c.pinged.IsZero() {
		c.pinged = now
	}
}

// lookAlive asks the other side for a sign of life where an answer is due and
// nothing comes, and returns an error if there was none, or if nobody has used
// the connection for long.
func (c *dataConn) lookAlive(now time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	quiet := now.Sub(time.Unix(0, c.conn.heard.Load()))
	switch {
	case len(c.calls) == 0 && len(c.ends) == 0 && len(c.passed) == 0 && len(c.buf) == 0:
		c.ping, c.pinged = false, time.Time{}
		if now.Sub(c.used) >= dataIdle {
			return errors.New("slotmesh: idle")
		}
	case quiet < c.n.silence()/4:
		c.ping, c.pinged = false, time.Time{}
	case !c.ping:
		c.addPing()
	case !c.pinged.IsZero() && now.Sub(c.pinged) >= c.n.silence() && quiet >= c.n.silence():
		return fmt.Errorf("slotmesh: node %s has been silent for %v", c.peer.short(), quiet.Round(time.Millisecond))
	}
	return nil
}

func appendNothing(b []byte) []byte { return b }

func (c *dataConn) addPing() {
	c.ping = true
	c.pings++
	c.buf = appendFrameOf(c.buf, framePing, appendNothing)
}

// pass waits until the other side has read all that was sent so far.
func (c *dataConn) pass(ctx context.Context) error {
	if err := c.reserve(ctx, frameHeader, time.Time{}); err != nil {
		return err
	}
	c.used = time.Now()
	c.addPing()
	passed := make(chan struct{})
	if c.passed == nil {
		c.passed = map[uint64]chan struct{}{}
	}
	number := c.pings
	c.passed[number] = passed
	c.mu.Unlock()
	signal(c.wake)
	select {
	case <-passed:
		return nil
	case <-c.over:
		return errHungUp
	case <-ctx.Done():
		c.mu.Lock()
		delete(c.passed, number)
		c.mu.Unlock()
		return ctx.Err()
	}
}

// ponged notes a pong.
func (c *dataConn) ponged() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ping, c.pinged = false, time.Time{}
	c.pongs++
	if passed := c.passed[c.pongs]; passed != nil {
		close(passed)
		delete(c.passed, c.pongs)
	}
}

func (c *dataConn) read() {
	r := bufio.NewReaderSize(c.conn, 64<<10)
	for {
		kind, payload, size, err := nextFrame(r, c.n.replyLimits)
		switch {
		case err != nil:
		case size > 0:
			err = c.tooLarge(kind, payload, size)
		default:
			err = c.handle(kind, payload)
		}
		if err != nil {
			c.end(err)
			return
		}
	}
}

// tooLarge is the end of a call whose reply this node does not take.
func (c *dataConn) tooLarge(kind byte, beginning []byte, size int) error {
	r := bulkReader{b: beginning}
	p := response{id: r.uint(), status: status(r.byte()), outcome: Outcome(r.byte())}
	if kind != frameReply || r.err != nil || p.outcome > Unknown {
		return errBulk
	}
	if p.status == statusOK {
		p.outcome = Executed
	}
	p.status, p.text = statusTooLarge, tooLong("reply", size, c.n.replyLimits(kind)).Error()
	c.answered(&p)
	return nil
}

func (c *dataConn) answered(p *response) {
	c.mu.Lock()
	call := c.calls[p.id]
	delete(c.calls, p.id)
	c.mu.Unlock()
	if call != nil {
		call.answer = *p
		call.done <- true
	}
}

func (c *dataConn) handle(kind byte, payload []byte) error {
	switch kind {
	case frameReply:
		p, err := decodeResponse(payload)
		if err != nil {
			return err
		}
		c.answered(&p)
	case framePong:
		c.ponged()
	case frameDataDone:
		d, err := decodeDataDone(payload)
		if err != nil {
			return err
		}
		c.mu.Lock()
		end := c.ends[d.position]
		delete(c.ends, d.position)
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
	c.n.hangUp(c.tracked)
	c.n.data.forget(c)
	for _, call := range calls {
		call.done <- false
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
		return n.engine.bytesMax() + bulkOverhead
	case frameDataBegin, frameDataEnd:
		return 1 << 20
	case framePing:
		return frameHeader
	case frameSync:
		return syncLimits(kind)
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
	case framePong:
		return frameHeader
	default:
		return 0
	}
}

// frameLargest is the most that a node may be configured to send: one whose
// limits are higher than this one's is answered, not hung up on.
const frameLargest = maxMaxKey + txBytesPer*maxMaxValue + bulkOverhead

// nextFrame is readFrame. Of a frame that is larger than this node takes it
// returns the beginning alone, which says whose it is, and its size.
func nextFrame(r *bufio.Reader, limits frameLimits) (kind byte, payload []byte, size int, err error) {
	header, err := r.Peek(frameHeader)
	if err != nil {
		return 0, nil, 0, err
	}
	length := int64(binary.BigEndian.Uint32(header))
	kind = header[4]
	_, _ = r.Discard(frameHeader)
	if limit := int64(limits(kind)); limit == 0 || length+4 <= limit || length+4 > frameLargest {
		payload, err = readPayload(r, kind, uint32(length), limits, nil)
		return kind, payload, 0, err
	}
	payload = make([]byte, min(length-1, frameBeginning))
	if _, err = io.ReadFull(r, payload); err == nil {
		_, err = r.Discard(int(length) - 1 - len(payload))
	}
	return kind, payload, int(length) + 4, err
}

const frameBeginning = 32 // bytes: more than a number, a status and an outcome

// serveData answers requests and takes hand-overs on an accepted connection. who
// is what this node has said that it is.
func (n *node) serveData(conn net.Conn, who *sender, h *hello) {
	if h.To.ID != who.ID || h.From.Cluster != who.Cluster {
		return // it looks for another node, or comes from another cluster
	}
	ctx, cancel := context.WithCancel(n.ctx)
	steady := &steadyConn{Conn: conn, idle: 2 * dataIdle}
	s := &dataServer{n: n, ctx: ctx, conn: steady, out: bufio.NewWriterSize(steady, 64<<10), from: h.From}
	defer s.wg.Wait()
	defer conn.Close()
	defer cancel()
	r := bufio.NewReaderSize(steady, 64<<10)
	for {
		kind, payload, size, err := nextFrame(r, n.requestLimits)
		switch {
		case err != nil:
		case size > 0:
			err = s.tooLarge(kind, payload, size)
		case kind == frameSync:
			err = n.serveSync(ctx, conn, r, &h.From, payload)
		default:
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

// dataServer is the answering side of a connection. Its reader answers at once
// what it can answer at once; what may take its time runs beside it, so that a
// command that computes for long holds back no call on another slot.
type dataServer struct {
	n    *node
	ctx  context.Context // over when the connection is
	conn net.Conn
	from sender
	wg   sync.WaitGroup

	waitMu  sync.Mutex // guards what follows
	waiting int        // requests that run or wait beside the reader
	bytes   int        // of them all

	mu    sync.Mutex // guards what follows
	out   *bufio.Writer
	buf   []byte
	under *leaseView // of the first reply in out that is given under one; nil: none is
}

func (s *dataServer) handle(kind byte, payload []byte) error {
	switch kind {
	case frameRequest:
		q, err := decodeRequest(payload)
		if err != nil {
			return err
		}
		s.answer(q, len(payload))
	case framePing:
		s.write(framePong, appendNothing)
	case frameDataBegin:
		b, err := decodeDataBegin(payload)
		if err != nil {
			return err
		}
		s.n.jobs.receiveBegin(s, b)
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

// tooLarge refuses what this node does not take.
func (s *dataServer) tooLarge(kind byte, beginning []byte, size int) error {
	r := bulkReader{b: beginning}
	id, err := r.uint(), tooLong("frame", size, s.n.requestLimits(kind))
	switch {
	case r.err != nil:
		return r.err
	case kind == frameRequest:
		s.reply(&request{id: id}, nil, false, err)
	case kind == frameData:
		s.n.jobs.refuse(s, id, err)
	default:
		return err
	}
	return nil
}

// answer runs a request, beside the reader if it may take its time.
func (s *dataServer) answer(q *request, bytes int) {
	if q.cluster != clusterTag(s.n.who.Load()) {
		s.reply(q, nil, false, fmt.Errorf("%w: this node is not in the cluster of the one that asks, or not yet", ErrTryAgain))
		return
	}
	if q.op == opPublish || q.op == opPublishSharded {
		if len(q.args) == 2 {
			s.n.pubSub.received.Add(1)
			s.n.pubSub.deliver(q.op, string(q.args[0]), q.args[1])
		}
		return
	}
	if q.op != opHandOff && q.op != opDo && q.op != opWait {
		value, ran, err := s.n.engine.runOp(s.ctx, q, waitNot)
		if !errors.Is(err, errWouldWait) {
			s.reply(q, value, ran, err)
			return
		}
	}
	if !s.startWaiting(bytes) {
		s.reply(q, nil, false, fmt.Errorf("%w: %d requests of this connection wait already", ErrTryAgain, dataWaitingMax))
		return
	}
	s.wg.Go(func() {
		defer s.endWaiting(bytes)
		var value []byte
		var ran bool
		var err error
		switch q.op {
		case opHandOff:
			err = s.n.handOffAsked(s.ctx, q)
		case opWait:
			value, err = s.n.waitAsked(s.ctx, q)
		default:
			value, ran, err = s.n.engine.runOp(s.ctx, q, waitHold)
		}
		s.reply(q, value, ran, err)
		_ = s.flush()
	})
}

// startWaiting counts a request that is to run beside the reader, if it may.
func (s *dataServer) startWaiting(bytes int) bool {
	s.waitMu.Lock()
	defer s.waitMu.Unlock()
	if s.waiting >= dataWaitingMax || s.waiting > 0 && s.bytes+bytes > dataWaitingBytes {
		return false
	}
	s.waiting++
	s.bytes += bytes
	return true
}

func (s *dataServer) endWaiting(bytes int) {
	s.waitMu.Lock()
	defer s.waitMu.Unlock()
	s.waiting--
	s.bytes -= bytes
}

func (s *dataServer) reply(q *request, value []byte, ran bool, err error) {
	p := response{id: q.id, value: value, wrote: s.n.repl.pointOf(q.wrote)}
	if err != nil {
		p.failed(err, ran)
		p.value = nil
	}
	var under *leaseView
	if err == nil && q.op >= opGet && q.op <= opDo {
		under = s.n.engine.lease.Load()
	}
	s.writeUnder(under, frameReply, p.append)
}

// write buffers a frame.
func (s *dataServer) write(kind byte, add func([]byte) []byte) { s.writeUnder(nil, kind, add) }

// writeUnder is write for what is given under a lease; nil: it needs none.
func (s *dataServer) writeUnder(under *leaseView, kind byte, add func([]byte) []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.buf = appendFrameOf(s.buf[:0], kind, add)
	if len(s.buf) > s.out.Available() && s.flushHeld() != nil {
		return
	}
	if s.under == nil {
		s.under = under
	}
	if _, err := s.out.Write(s.buf); err != nil {
		s.conn.Close() // the reader ends
	}
	if cap(s.buf) > 1<<20 {
		s.buf = nil
	}
}

func (s *dataServer) flush() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.flushHeld()
}

var errLateReplies = errors.New("slotmesh: the lease under which replies were to be given is over")

// flushHeld is flush under mu. Replies that were right when they were made, and are not
// out when the lease is over, are not given: who asked hears nothing, and takes the
// outcome for unknown.
func (s *dataServer) flushHeld() error {
	if s.under != nil && !s.n.engine.held(s.under) {
		s.conn.Close()
		return errLateReplies
	}
	s.under = nil
	err := s.out.Flush()
	if err != nil {
		s.conn.Close()
	}
	return err
}
