package slotmesh

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"sync"
	"time"
)

// Connections between nodes. The heartbeats of a pair of nodes have a connection of
// their own, its control messages another, requests and data others again: what is
// long starves no heartbeat, and none waits behind what a busy reader leaves. A
// connection begins with a handshake that names both sides; what a node is afterwards
// cannot be said over it any more, so a node that changes makes its connections anew.

const (
	helloKind        = 250
	helloMagic       = 0x736c6d31 // "slm1"
	protocolVersion  = 1
	helloLimit       = 4 << 10
	handshakeTimeout = 5 * time.Second
	handshakesMax    = 64   // pending; at the bound a connection is closed at once
	connsMax         = 8192 // accepted; the same
	linkQueueMax     = 1024 // messages waiting for a link; at the bound one more is lost, as any message may be
	dialQueueMax     = 64   // messages waiting for a dial; the same
	dialPauseMax     = 2 * time.Second
	acceptPause      = 10 * time.Millisecond // after a failure, so that a listener that always fails costs little
	linkIdle         = 10                    // NodeTimeouts without a frame after which a link is closed, but as mayIdle says
)

// linkRole says what a connection is for.
type linkRole uint8

const (
	roleControl linkRole = iota + 1
	roleData
	roleBeat
)

// roleOf is the role of the connection over which a message goes.
func roleOf(m message) linkRole {
	if _, ok := m.(*heartbeat); ok {
		return roleBeat
	}
	return roleControl
}

// hello is the first frame on a connection, from each side.
type hello struct {
	Magic    uint32
	Version  uint16
	Features uint64
	Role     uint8
	From     sender
	To       wanted
}

// handshake exchanges hellos. The dialer speaks first.
func handshake(conn net.Conn, dialed bool, role linkRole, who *sender, to wanted) (theirs hello, err error) {
	if err := conn.SetDeadline(time.Now().Add(handshakeTimeout)); err != nil {
		return hello{}, err
	}
	mine := hello{Magic: helloMagic, Version: protocolVersion, Role: uint8(role), From: *who, To: to}
	if dialed {
		if err := writeHello(conn, &mine); err != nil {
			return hello{}, err
		}
	}
	if theirs, err = readHello(conn); err != nil {
		return hello{}, err
	}
	if dialed && theirs.Role != mine.Role {
		return hello{}, fmt.Errorf("slotmesh: handshake: the other side answers role %d, expected %d", theirs.Role, mine.Role)
	}
	if !dialed {
		mine.Role = theirs.Role
		mine.To = wanted{theirs.From.ID, theirs.From.Key, theirs.From.Incarnation}
		if err := writeHello(conn, &mine); err != nil {
			return hello{}, err
		}
	}
	return theirs, conn.SetDeadline(time.Time{})
}

func writeHello(w io.Writer, h *hello) error {
	payload, err := encodeValue(h)
	if err != nil {
		return err
	}
	_, err = w.Write(appendBulk(nil, helloKind, payload))
	return err
}

func readHello(r io.Reader) (hello, error) {
	kind, payload, err := readFrame(r, func(kind byte) int {
		if kind == helloKind {
			return helloLimit
		}
		return 0
	}, nil)
	if err != nil {
		return hello{}, err
	}
	var h hello
	if err := decodeValue(payload, &h); err != nil {
		return hello{}, err
	}
	switch {
	case kind != helloKind || h.Magic != helloMagic:
		return hello{}, errors.New("slotmesh: handshake: the other side does not speak this protocol")
	case h.Version != protocolVersion:
		return hello{}, fmt.Errorf("slotmesh: handshake: the other side speaks version %d of the protocol, expected %d", h.Version, protocolVersion)
	case h.Role < uint8(roleControl) || h.Role > uint8(roleBeat):
		return hello{}, fmt.Errorf("slotmesh: handshake: role %d, expected %d to %d", h.Role, roleControl, roleBeat)
	}
	return h, nil
}

// link is a connection for heartbeats or for control messages to one node.
type link struct {
	conn   net.Conn
	role   linkRole
	said   *sender // what this node was when it shook hands
	peer   sender  // what the other side said it is
	to     wanted  // whom the other side wants: what it says is for this one
	dialed bool
	since  time.Time

	traffic *traffic // of the node; set before the link is used, as is contact
	contact *contact // with the other node

	mu    sync.Mutex
	queue []message // guarded by mu
	dead  bool
	wake  chan struct{} // of the writer; holds one token
}

func newLink(conn net.Conn, said *sender, theirs *hello, dialed bool) *link {
	return &link{conn: conn, role: linkRole(theirs.Role), said: said, peer: theirs.From, to: theirs.To, dialed: dialed, since: time.Now(), wake: make(chan struct{}, 1)}
}

// send queues a message. Of heartbeats only the newest is kept.
func (l *link) send(m message) {
	l.mu.Lock()
	if l.role == roleBeat {
		l.queue = append(l.queue[:0], m)
	} else if len(l.queue) < linkQueueMax {
		l.queue = append(l.queue, m)
	}
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// take returns what is queued.
func (l *link) take(buf []message) []message {
	l.mu.Lock()
	defer l.mu.Unlock()
	buf = append(buf, l.queue...)
	clear(l.queue)
	l.queue = l.queue[:0]
	return buf
}

func (l *link) close() {
	l.mu.Lock()
	l.dead = true
	l.mu.Unlock()
	l.conn.Close()
}

func (l *link) isDead() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dead
}

// write sends what is queued until the connection or the node ends.
func (l *link) write(ctx context.Context, timeout time.Duration) {
	defer l.close()
	var msgs []message
	var buf []byte
	w := newValueWriter()
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.wake:
		}
		if l.isDead() {
			return
		}
		msgs = l.take(msgs[:0])
		buf = buf[:0]
		for _, m := range msgs {
			buf, _ = w.appendFrame(buf, m) // one that is over its limit is lost, like any message may be
		}
		if len(buf) == 0 {
			continue
		}
		if l.conn.SetWriteDeadline(time.Now().Add(timeout)) != nil {
			return
		}
		if _, err := l.conn.Write(buf); err != nil {
			return
		}
		for _, m := range msgs {
			l.traffic.noteSent(l.contact, m.kind())
		}
		clear(msgs)
		if cap(buf) > 1<<20 {
			buf = nil
		}
	}
}

// counter counts the bytes that are read of a frame.
type counter struct {
	io.Reader
	n int
}

func (c *counter) Read(b []byte) (int, error) {
	n, err := c.Reader.Read(b)
	c.n += n
	return n, err
}

// read hands on what comes until the connection or the node ends, or nothing has
// come for idle and keep does not say that it may be so.
func (l *link) read(ctx context.Context, idle time.Duration, keep func() bool, inbox chan<- delivery) error {
	var buf []byte
	r, in := newValueReader(), &counter{Reader: l.conn}
	for {
		if err := l.conn.SetReadDeadline(time.Now().Add(idle)); err != nil {
			return err
		}
		in.n = 0
		kind, payload, err := readFrame(in, controlLimits, buf)
		if errors.Is(err, os.ErrDeadlineExceeded) && in.n == 0 && keep() {
			continue
		}
		if err != nil {
			return err
		}
		m, err := r.decodeFrame(msgKind(kind), payload)
		if err != nil {
			return err
		}
		l.traffic.noteReceived(l.contact, &l.peer.Shard, m)
		select {
		case inbox <- delivery{l.peer, l.to, m}:
		case <-ctx.Done():
			return ctx.Err()
		}
		if buf = payload[:0]; cap(buf) > 1<<20 {
			buf = nil
		}
	}
}

// controlLimits are those of a control connection: no bulk.
func controlLimits(kind byte) int {
	if kind >= firstBulkKind {
		return 0
	}
	return busLimits(kind)
}

// delivery is a message on its way into the core.
type delivery struct {
	from sender
	to   wanted
	msg  message
}

// ---- all links of a node

// links are the connections of a node for heartbeats and control messages.
type links struct {
	node *node
	ctx  context.Context

	traffic traffic

	mu       sync.Mutex // guards all below
	contacts map[NodeID]*contact
	live     map[linkKey]*link
	dials    map[dialKey]*dialState
	pending  int // handshakes of accepted connections
	conns    map[net.Conn]struct{}
	closed   bool
}

type linkKey struct {
	id   NodeID
	role linkRole
}

type dialKey struct {
	addr string
	role linkRole
}

// dialState is an address that is being dialed, or that is not to be for a while.
type dialState struct {
	running bool
	queue   []send
	pause   time.Duration
	until   time.Time
}

func newLinks(n *node, ctx context.Context) *links {
	return &links{node: n, ctx: ctx, contacts: map[NodeID]*contact{}, live: map[linkKey]*link{}, dials: map[dialKey]*dialState{}, conns: map[net.Conn]struct{}{}}
}

// send sends a message over the link to its node, dialing if there is none.
func (ls *links) send(m send) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ls.closed || m.from != ls.node.who.Load() {
		return // it was said by what this node is no more
	}
	if !m.to.ID.IsZero() {
		if l := ls.liveLink(m.to.ID, roleOf(m.msg)); l != nil && l.said == m.from && l.leadsTo(m.to.wanted) {
			l.send(m.msg)
			return
		}
	}
	ls.dial(m)
}

func (ls *links) liveLink(id NodeID, role linkRole) *link {
	if l := ls.live[linkKey{id, role}]; l != nil && !l.isDead() {
		return l
	}
	return nil
}

// is reports whether a node is the one that is wanted, in whichever process, or
// anybody is.
func (s *sender) is(to wanted) bool {
	return to.ID.IsZero() || s.ID == to.ID && s.Key == to.Key
}

// leadsTo reports whether the other side is the one that is wanted.
func (l *link) leadsTo(to wanted) bool {
	return l.peer.Key == to.Key && (to.Incarnation == 0 || to.Incarnation == l.peer.Incarnation)
}

// dial queues a message for an address and dials it, if it may.
func (ls *links) dial(m send) {
	if m.to.addr == "" {
		return
	}
	key := dialKey{m.to.addr, roleOf(m.msg)}
	d := ls.dials[key]
	if d == nil {
		if len(ls.dials) >= connsMax {
			ls.forgetDials()
		}
		if len(ls.dials) >= connsMax {
			return
		}
		d = &dialState{}
		ls.dials[key] = d
	}
	if !d.running && time.Now().Before(d.until) {
		return
	}
	if len(d.queue) >= dialQueueMax {
		d.queue = d.queue[1:]
	}
	d.queue = append(d.queue, m)
	if !d.running {
		d.running = true
		ls.node.wg.Go(func() { ls.connect(m.to, key.role, m.from, d) })
	}
}

// forgetDials drops the addresses that failed, and might be dialed again by now.
func (ls *links) forgetDials() {
	now := time.Now()
	maps.DeleteFunc(ls.dials, func(_ dialKey, d *dialState) bool { return !d.running && !now.Before(d.until) })
}

// connect dials an address and sends what waits for it.
func (ls *links) connect(to dest, role linkRole, who *sender, d *dialState) {
	l, err := ls.open(to, role, who)
	ls.mu.Lock()
	queue := d.queue
	d.queue, d.running = nil, false
	if err != nil {
		d.pause = min(max(2*d.pause, ls.node.cfg.NodeTimeout/50), dialPauseMax)
		d.until = time.Now().Add(d.pause)
		ls.mu.Unlock()
		return
	}
	delete(ls.dials, dialKey{to.addr, role})
	if !l.peer.is(to.wanted) {
		// Somebody else lives there now. What is said over this connection is for
		// who was wanted: it must not take the place of a link to who is there.
		ls.mu.Unlock()
		ls.node.hangUp(l.conn)
		return
	}
	l = ls.adopt(l)
	ls.mu.Unlock()
	for _, m := range queue {
		if l != nil && m.from == l.said && (m.to.ID.IsZero() || m.to.ID == l.peer.ID && l.leadsTo(m.to.wanted)) {
			l.send(m.msg)
		}
	}
}

// open dials and shakes hands.
func (ls *links) open(to dest, role linkRole, who *sender) (*link, error) {
	conn, theirs, err := ls.node.dialNode(ls.ctx, to, who, role)
	if err != nil {
		return nil, err
	}
	if theirs.From.ID == who.ID {
		ls.node.metSelf(to.addr)
	}
	return newLink(conn, who, &theirs, true), nil
}

// adopt makes l the link to its node, unless a better one is there: of two that
// the nodes have dialed to each other, the one of the smaller id stays. It
// returns the link to use; nil where this node is closing.
func (ls *links) adopt(l *link) *link {
	if ls.closed {
		l.close()
		delete(ls.conns, l.conn)
		return nil
	}
	if old := ls.liveLink(l.peer.ID, l.role); old != nil {
		same := old.said == l.said && old.peer == l.peer
		if same && preferred(old) && !preferred(l) {
			l.close()
			delete(ls.conns, l.conn)
			return old
		}
		old.close()
	}
	ls.live[linkKey{l.peer.ID, l.role}] = l
	l.traffic, l.contact = &ls.traffic, ls.contactWith(l.peer.ID, l.peer.Shard)
	n := ls.node
	n.wg.Go(func() { l.write(ls.ctx, max(n.cfg.NodeTimeout, 2*time.Second)) })
	n.wg.Go(func() { ls.run(l) })
	return l
}

func preferred(l *link) bool {
	smaller := l.said.ID.compare(l.peer.ID) < 0
	return l.dialed == smaller
}

// run reads a link until it ends.
func (ls *links) run(l *link) {
	n := ls.node
	err := l.read(ls.ctx, linkIdle*n.cfg.NodeTimeout, func() bool { return ls.mayIdle(l) }, n.inbox)
	l.close()
	ls.forget(l.conn)
	select {
	case l.wake <- struct{}{}: // the writer ends too
	default:
	}
	var bad *malformed
	if errors.As(err, &bad) {
		n.cfg.Logger.Warn("a peer sent what no node sends", "peer", l.peer.ID, "addr", l.peer.Addr, "error", err)
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if key := (linkKey{l.peer.ID, l.role}); ls.live[key] == l {
		delete(ls.live, key)
	}
}

// mayIdle reports whether a link may stand by without a frame: control messages come
// when there is something to say, so theirs may while heartbeats come.
func (ls *links) mayIdle(l *link) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return l.role == roleControl && ls.liveLink(l.peer.ID, roleBeat) != nil
}

// renew closes every link: this node is not what it said when it made them.
func (ls *links) renew() {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, l := range ls.live {
		l.close()
	}
	clear(ls.dials)
}

// track remembers a connection, to close it when the node closes; false means
// that it is closing, or that there are too many.
func (ls *links) track(conn net.Conn) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ls.closed || len(ls.conns) >= connsMax {
		return false
	}
	ls.conns[conn] = struct{}{}
	return true
}

func (ls *links) forget(conn net.Conn) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	delete(ls.conns, conn)
}

// close closes every connection.
func (ls *links) close() {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.closed = true
	for c := range ls.conns {
		c.Close()
	}
}

// begin counts an accepted connection whose handshake begins.
func (ls *links) begin() bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ls.closed || ls.pending >= handshakesMax {
		return false
	}
	ls.pending++
	return true
}

func (ls *links) end() {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.pending--
}

// accept takes connections until the listener is closed.
func (ls *links) accept(l net.Listener) {
	failing := false
	for {
		conn, err := l.Accept()
		if err == nil && conn == nil {
			err = errors.New("slotmesh: Config.Transport: Accept returned no connection and no error")
		}
		if err != nil {
			if ls.ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			if !failing {
				ls.node.cfg.Logger.Error("no connection of another node is taken at the moment", "addr", ls.node.addr, "error", err)
			}
			failing = true
			select { // out of file descriptors, most likely: it passes
			case <-ls.ctx.Done():
				return
			case <-time.After(acceptPause):
			}
			continue
		}
		failing = false
		if !ls.track(conn) {
			conn.Close()
			continue
		}
		if !ls.begin() {
			conn.Close()
			ls.forget(conn)
			continue
		}
		ls.node.wg.Go(func() { ls.serve(conn) })
	}
}

// errNotSaved: this start of the node is not saved yet, and nobody is to hear of it.
var errNotSaved = errors.New("slotmesh: this start of the node is not saved yet")

// serve shakes hands with whoever has connected.
func (ls *links) serve(conn net.Conn) {
	n := ls.node
	who := n.who.Load()
	var theirs hello
	err := errNotSaved
	if who != nil {
		theirs, err = handshake(conn, false, 0, who, wanted{})
	}
	ls.end()
	if err != nil {
		conn.Close()
		ls.forget(conn)
		return
	}
	if linkRole(theirs.Role) == roleData {
		n.serveData(conn, who, &theirs)
		conn.Close()
		ls.forget(conn)
		return
	}
	if !who.is(theirs.To) {
		conn.Close() // it has heard who lives here
		ls.forget(conn)
		return
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.adopt(newLink(conn, who, &theirs, false))
}

// appendBulk appends a frame of bulk data.
func appendBulk(dst []byte, kind byte, payload []byte) []byte {
	n := len(payload) + 1
	dst = append(dst, byte(n>>24), byte(n>>16), byte(n>>8), byte(n), kind)
	return append(dst, payload...)
}
