package transport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"
)

// Faults breaks the network between named nodes, for tests. It stands on top of
// another [Transport] and gives each node its own view of it:
//
//	faults := transport.NewFaults(transport.NewMemory(), 1)
//	defer faults.Close()
//	a, b := faults.Node("a"), faults.Node("b")       // hand these to the nodes
//	faults.Partition([]string{"a"}, []string{"b"})   // silence, as when packets are lost
//	faults.Heal()                                    // what was written meanwhile arrives
//	faults.Set("a", "b", transport.Link{Delay: 20 * time.Millisecond})
//
// Faults are set per direction. They apply to the connections that exist as well
// as to new ones, from the return of the call on. A node is found by the address
// at which it listens, also when it does so no more; [Faults.Assign] names other
// addresses. Dials to an address that belongs to no node are not disturbed.
//
// The methods may be called at any time by any number of goroutines. Those that
// take names panic on a name that no call of Node has made known: a fault that
// hits nobody would make a test pass that should not.
//
// In a synctest bubble, create it there and close it before the bubble ends.
type Faults struct {
	inner  Transport
	closed chan struct{}
	wg     sync.WaitGroup // the goroutines of the connections; added to under mu, while closed is open

	mu      sync.RWMutex
	links   map[pair]Link            // guarded by mu, as all below; a pair without one is perfect
	spoil   map[pair]int             // chunks to corrupt, by CorruptNext
	nodes   map[string]bool          // the names that are known
	owner   map[string]string        // address → node; grows with the addresses used
	conns   map[*faultyConn]struct{} // those that still have goroutines
	changed chan struct{}            // closed and replaced at each change of links
	rnd     *rand.Rand
}

// A pair names one direction of traffic.
type pair struct{ from, to string }

func (p pair) reversed() pair { return pair{p.to, p.from} }

// A Link is the state of the network from one node to another. The zero Link
// is perfect.
type Link struct {
	// Refuse makes dials in this direction fail at once, as if nobody listened.
	// Connections that exist are left alone; see Reset and Cut.
	Refuse bool

	// Stall loses every packet in this direction. As TCP repeats what is lost,
	// what is written waits and arrives when the stall ends; so does the end of
	// a connection. A writer that is 256 KiB ahead waits too. A dial needs
	// both directions and waits for its ctx.
	Stall bool

	// Delay is the time from the write of a byte to its arrival. A dial takes
	// the delays of both directions.
	Delay time.Duration

	// Jitter is the largest time that is added to Delay, at random, for each
	// write. Bytes never overtake each other.
	Jitter time.Duration

	// BytesPerSecond is the throughput of one connection; 0 is no limit.
	BytesPerSecond int

	// Corrupt is the probability, 0 to 1, that one bit of a write is flipped.
	Corrupt float64

	// ResetAfter resets a connection as soon as this many bytes were written in
	// this direction, in the midst of a frame as like as not; 0 is never. The
	// last of them may be lost.
	ResetAfter int64
}

// problem says what is wrong with the link, or nothing.
func (l Link) problem() string {
	switch {
	case l.Delay < 0:
		return fmt.Sprintf("Delay %v, want 0 or more", l.Delay)
	case l.Jitter < 0:
		return fmt.Sprintf("Jitter %v, want 0 or more", l.Jitter)
	case l.BytesPerSecond < 0:
		return fmt.Sprintf("BytesPerSecond %d, want 0 or more", l.BytesPerSecond)
	case !(l.Corrupt >= 0 && l.Corrupt <= 1):
		return fmt.Sprintf("Corrupt %v, want 0 to 1", l.Corrupt)
	case l.ResetAfter < 0:
		return fmt.Sprintf("ResetAfter %d, want 0 or more", l.ResetAfter)
	}
	return ""
}

// NewFaults returns a perfect network on top of inner. The seed decides what is
// drawn at random; which connection draws when is up to the scheduler, so it
// does not replay a run.
func NewFaults(inner Transport, seed uint64) *Faults {
	return &Faults{
		inner:   inner,
		closed:  make(chan struct{}),
		links:   map[pair]Link{},
		spoil:   map[pair]int{},
		nodes:   map[string]bool{},
		owner:   map[string]string{},
		conns:   map[*faultyConn]struct{}{},
		changed: make(chan struct{}),
		rnd:     rand.New(rand.NewPCG(seed, seed)),
	}
}

// Node returns the transport of the node with a name. Views of one name are
// the same node: a node that starts again may use either.
func (f *Faults) Node(name string) *Faulty {
	if name == "" {
		panic("transport: Faults.Node needs a name that is not empty")
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.nodes[name] = true
	return &Faulty{faults: f, name: name}
}

// Assign says that an address leads to a node. It is needed where others dial
// an address that the node's listener does not show, such as a public one.
func (f *Faults) Assign(addr, node string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mustKnow(node)
	f.owner[addr] = node
}

// Set sets the link from one node to another. It panics on values out of range.
func (f *Faults) Set(from, to string, l Link) {
	if problem := l.problem(); problem != "" {
		panic("transport: Link." + problem)
	}
	f.change(func() {
		f.mustKnow(from, to)
		f.links[pair{from, to}] = l
	})
}

// SetBoth sets the links between two nodes, in both directions.
func (f *Faults) SetBoth(a, b string, l Link) {
	f.Set(a, b, l)
	f.Set(b, a, l)
}

// Link returns the link from one node to another.
func (f *Faults) Link(from, to string) Link {
	f.mu.RLock()
	defer f.mu.RUnlock()
	f.mustKnow(from, to)
	return f.links[pair{from, to}]
}

// Cut refuses dials between two nodes, in both directions, and resets their
// connections: none exists when it returns, until Heal or Set.
func (f *Faults) Cut(a, b string) {
	f.change(func() {
		f.mustKnow(a, b)
		for _, p := range []pair{{a, b}, {b, a}} {
			l := f.links[p]
			l.Refuse = true
			f.links[p] = l
		}
	})
	f.Reset(a, b)
}

// Reset resets the connections between two nodes, whoever dialed. New ones can
// be made at once.
func (f *Faults) Reset(a, b string) {
	for _, c := range f.between(a, b) {
		c.reset()
	}
}

// between returns the connections between two nodes.
func (f *Faults) between(a, b string) []*faultyConn {
	f.mu.RLock()
	defer f.mu.RUnlock()
	f.mustKnow(a, b)
	return slices.DeleteFunc(slices.Collect(maps.Keys(f.conns)), func(c *faultyConn) bool {
		return c.way != pair{a, b} && c.way != pair{b, a}
	})
}

// Partition splits the nodes into groups that hear nothing of each other: links
// between groups stall, links within one do not, whatever else holds for them.
// Nodes that are not named form one more group.
func (f *Faults) Partition(groups ...[]string) {
	f.change(func() {
		group := map[string]int{}
		for i, names := range groups {
			f.mustKnow(names...)
			for _, name := range names {
				group[name] = i + 1
			}
		}
		for a := range f.nodes {
			for b := range f.nodes {
				l := f.links[pair{a, b}]
				l.Stall = group[a] != group[b]
				f.links[pair{a, b}] = l
			}
		}
	})
}

// Heal makes every link perfect. Connections that were not reset go on.
func (f *Faults) Heal() {
	f.change(func() {
		clear(f.links)
		clear(f.spoil)
	})
}

// CorruptNext flips one bit in the next write from one node to another.
func (f *Faults) CorruptNext(from, to string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mustKnow(from, to)
	f.spoil[pair{from, to}]++
}

// Close resets every connection and returns when their goroutines have ended.
// Later dials fail with net.ErrClosed; listeners are their owners' to close. It
// is idempotent.
func (f *Faults) Close() error {
	f.mu.Lock()
	select {
	case <-f.closed:
	default:
		close(f.closed)
	}
	conns := slices.Collect(maps.Keys(f.conns))
	f.mu.Unlock()
	for _, c := range conns {
		c.reset()
	}
	f.wg.Wait()
	return nil
}

// mustKnow panics on a name that is not known. f.mu is held.
func (f *Faults) mustKnow(names ...string) {
	for _, name := range names {
		if !f.nodes[name] {
			panic(fmt.Sprintf("transport: no node is called %q, want one of %q", name, slices.Sorted(maps.Keys(f.nodes))))
		}
	}
}

// change changes links and wakes whoever waits for one to change.
func (f *Faults) change(what func()) {
	for _, c := range f.changeLocked(what) {
		c.in.wake()
		c.out.wake()
	}
}

// changeLocked makes a change and returns the connections that are to look at
// it, which they do under their own locks and therefore not under mu.
func (f *Faults) changeLocked(what func()) []*faultyConn {
	f.mu.Lock()
	defer f.mu.Unlock()
	what()
	close(f.changed)
	f.changed = make(chan struct{})
	return slices.Collect(maps.Keys(f.conns))
}

// link returns the state of a direction, and a channel that is closed at the
// next change of any.
func (f *Faults) link(p pair) (Link, <-chan struct{}) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.links[p], f.changed
}

// delay draws the time that a write takes over a link.
func (f *Faults) delay(l Link) time.Duration {
	if l.Jitter == 0 {
		return l.Delay
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return l.Delay + time.Duration(f.rnd.Int64N(int64(l.Jitter)+1))
}

// spoils draws whether a write over a link is to be corrupted, and where: a
// number from 0 to 1.
func (f *Faults) spoils(p pair, l Link) (where float64, yes bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.spoil[p] > 0:
		f.spoil[p]--
	case l.Corrupt == 0 || f.rnd.Float64() >= l.Corrupt:
		return 0, false
	}
	return f.rnd.Float64(), true
}

// nodeAt returns the node that an address leads to, "" for none.
func (f *Faults) nodeAt(addr string) string {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.owner[addr]
}

// add starts a connection, unless it has been cut off since it was dialed.
func (f *Faults) add(c *faultyConn) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	select {
	case <-f.closed:
		return net.ErrClosed
	default:
	}
	if f.links[c.way].Refuse {
		return refused()
	}
	f.conns[c] = struct{}{}
	f.wg.Go(c.run)
	return nil
}

func (f *Faults) remove(c *faultyConn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.conns, c)
}

// pass waits until packets pass in all the directions, or until ctx is over or
// stop is closed.
func (f *Faults) pass(ctx context.Context, stop <-chan struct{}, ways ...pair) error {
	for _, way := range ways {
		for l, changed := f.link(way); l.Stall; l, changed = f.link(way) {
			select {
			case <-changed:
			case <-stop:
				return net.ErrClosed
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	return nil
}

// Faulty is the view that one node has of a network with [Faults]. It is a
// [Transport].
type Faulty struct {
	faults *Faults
	name   string
}

// Secure reports what the transport below does.
func (n *Faulty) Secure() bool { return Secure(n.faults.inner) }

// Listen implements [Transport].
func (n *Faulty) Listen(addr string) (net.Listener, error) {
	// Under the lock, so that whoever has dialed the listener learns whose it is.
	n.faults.mu.Lock()
	defer n.faults.mu.Unlock()
	l, err := n.faults.inner.Listen(addr)
	if err == nil {
		n.faults.owner[l.Addr().String()] = n.name
	}
	return l, err
}

// Dial implements [Transport]. The connection that it returns carries the faults
// of both directions, so that the side that accepts needs no part in it. It has
// two goroutines, which end some time after Close: when what was written has
// been handed on. Where a link is stalled that may take until it is healed, or
// until Faults.Close.
func (n *Faulty) Dial(ctx context.Context, addr string) (net.Conn, error) {
	f, way := n.faults, pair{n.name, n.faults.nodeAt(addr)}
	if err := f.dialable(ctx, way); err != nil {
		return nil, dialError("faulty", addr, err)
	}
	inner, err := f.inner.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	way.to = f.nodeAt(addr) // again: the node may have begun to listen since
	c := newFaultyConn(f, way, inner)
	if err := f.add(c); err != nil {
		abort(inner)
		return nil, dialError("faulty", addr, err)
	}
	return c, nil
}

// dialable waits as long as the way there and back takes, and fails where the
// link refuses.
func (f *Faults) dialable(ctx context.Context, way pair) error {
	if l, _ := f.link(way); l.Refuse {
		return refused()
	}
	if err := f.pass(ctx, f.closed, way, way.reversed()); err != nil {
		return err
	}
	there, _ := f.link(way)
	back, _ := f.link(way.reversed())
	select {
	case <-f.closed:
		return net.ErrClosed
	default:
	}
	trip := f.delay(there) + f.delay(back)
	if trip == 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(trip)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-f.closed:
		return net.ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

// A faultyConn is the dialer's end of a connection. It is one end of a
// connection in memory whose two halves have lines; two goroutines carry bytes
// between their other ends and the connection below.
//
//	user ── out: line there ── carryOut ──▶ inner ──▶ peer
//	user ◀── in: line back ─── carryIn ◀─── inner ◀── peer
type faultyConn struct {
	conn
	faults *Faults
	way    pair // from the dialer to the listener
	inner  net.Conn

	closeOnce, resetOnce sync.Once
	closed               chan struct{} // closed by Close
	broken               chan struct{} // closed by reset
}

func newFaultyConn(f *Faults, way pair, inner net.Conn) *faultyConn {
	c := &faultyConn{faults: f, way: way, inner: inner, closed: make(chan struct{}), broken: make(chan struct{})}
	c.conn = conn{
		in:     newHalf(&line{faults: f, way: way.reversed()}),
		out:    newHalf(&line{faults: f, way: way}),
		local:  inner.LocalAddr(),
		remote: inner.RemoteAddr(),
	}
	return c
}

// Write is that of conn, and the place where the user finds out that the line
// has had enough.
func (c *faultyConn) Write(p []byte) (int, error) {
	n, err := c.conn.Write(p)
	c.resetIfWorn(c.out)
	return n, err
}

// Close lets what was written go on to the peer, and then ends the connection.
func (c *faultyConn) Close() error {
	_ = c.conn.Close()
	c.closeOnce.Do(func() { close(c.closed) })
	return nil
}

// reset breaks the connection for both sides.
func (c *faultyConn) reset() {
	c.resetOnce.Do(func() {
		c.in.fail(syscall.ECONNRESET)
		c.out.fail(syscall.ECONNRESET)
		close(c.broken)
		abort(c.inner)
	})
}

// abort is what a Faults on top of this one calls.
func (c *faultyConn) abort() {
	c.reset()
	_ = c.Close()
}

func (c *faultyConn) resetIfWorn(h *half) {
	if h.worn() {
		c.reset()
	}
}

// run carries bytes until the connection has ended for both sides.
func (c *faultyConn) run() {
	defer c.faults.remove(c)
	var in sync.WaitGroup
	in.Go(c.carryIn)
	c.carryOut()
	in.Wait()
}

// carrySize is the most that is carried at a time.
const carrySize = 16 << 10

// carryOut takes what has arrived at the end of the line and writes it to the
// peer. It closes the connection below when the user is done with it.
func (c *faultyConn) carryOut() {
	err := carry(c.inner.Write, c.out.read)
	switch {
	case err == io.EOF: // the user has closed, or closed its writing side
		closeWrite(c.inner)
	default: // the peer has closed; the user knows once a packet could tell
		if c.faults.pass(context.Background(), c.broken, c.way.reversed()) == nil {
			c.out.closeReader()
		}
	}
	select {
	case <-c.closed:
		_ = c.inner.Close()
	case <-c.broken:
	}
}

// carryIn reads what the peer sends and puts it on the line.
func (c *faultyConn) carryIn() {
	err := carry(func(p []byte) (int, error) {
		n, err := c.in.write(p)
		c.resetIfWorn(c.in)
		return n, err
	}, c.inner.Read)
	c.in.closeWriter(net.ErrClosed, bare(err))
}

// carry copies from read to write until one of them fails.
func carry(write, read func(p []byte) (int, error)) error {
	buf := make([]byte, carrySize)
	for {
		n, err := read(buf)
		if n > 0 {
			if _, err := write(buf[:n]); err != nil {
				return err
			}
		}
		if err != nil {
			return err
		}
	}
}

// bare takes off what package net has put around an error, as it is put around
// it again.
func bare(err error) error {
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return op.Err
	}
	return err
}

// closeWrite ends the writing side of a connection, where it has one.
func closeWrite(c net.Conn) {
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
}

// abort closes a connection so that its peer sees a reset, where it can.
func abort(c net.Conn) {
	raw := c
	if t, ok := c.(interface{ NetConn() net.Conn }); ok {
		raw = t.NetConn() // under TLS, whose Close would say goodbye first
	}
	switch r := raw.(type) {
	case interface{ abort() }:
		r.abort()
	case interface{ SetLinger(sec int) error }:
		_ = r.SetLinger(0)
	}
	_ = raw.Close()
	_ = c.Close()
}

// A line says when the bytes in a half arrive. It is guarded by the half's mu.
type line struct {
	faults  *Faults
	way     pair
	marks   []mark    // the bytes in the buffer, in order; at most one per byte, so bounded as the buffer is
	free    time.Time // when the last byte has left, where throughput is limited
	last    time.Time // when the last byte arrives
	written int64
	worn    bool // ResetAfter was reached
}

// A mark says when the next so many bytes arrive.
type mark struct {
	bytes int
	at    time.Time
}

// packetSize is the most that arrives at one moment where throughput is
// limited: a large write trickles in.
const packetSize = 1400

// put takes on what was just written, in up to two pieces, and may corrupt it.
func (l *line) put(pieces [2][]byte, now time.Time) {
	link, _ := l.faults.link(l.way)
	size := len(pieces[0]) + len(pieces[1])
	if where, yes := l.faults.spoils(l.way, link); yes {
		flip(pieces, int(where*float64(8*size)))
	}
	l.written += int64(size)
	l.worn = l.worn || link.ResetAfter > 0 && l.written >= link.ResetAfter
	delay := l.faults.delay(link)
	if link.BytesPerSecond == 0 {
		l.mark(size, now.Add(delay), now)
		return
	}
	l.free = latest(l.free, now)
	for size > 0 {
		n := min(size, packetSize)
		l.free = l.free.Add(time.Duration(n) * time.Second / time.Duration(link.BytesPerSecond))
		l.mark(n, l.free.Add(delay), now)
		size -= n
	}
}

// mark notes when bytes arrive: not before those in front of them.
func (l *line) mark(n int, at, now time.Time) {
	l.last = latest(l.last, at)
	if end := len(l.marks) - 1; end >= 0 && (l.marks[end].at.Equal(l.last) || !l.last.After(now)) {
		l.marks[end] = mark{l.marks[end].bytes + n, l.last} // both at once, or both there
		return
	}
	l.marks = append(l.marks, mark{n, l.last})
}

// end notes that the writer has closed: the reader hears of it a delay later.
func (l *line) end(now time.Time) {
	link, _ := l.faults.link(l.way)
	l.last = latest(l.last, now.Add(l.faults.delay(link)))
}

// ready returns how many bytes have arrived. If none has, it returns the time
// until some do or the end does, negative where only a change of the link helps,
// and 0 where nothing is on the line.
func (l *line) ready(now time.Time) (n int, wait time.Duration) {
	if link, _ := l.faults.link(l.way); link.Stall {
		return 0, -1
	}
	for _, m := range l.marks {
		if m.at.After(now) {
			if n == 0 {
				wait = m.at.Sub(now)
			}
			return n, wait
		}
		n += m.bytes
	}
	if n == 0 {
		wait = max(l.last.Sub(now), 0)
	}
	return n, wait
}

// take notes that bytes were read.
func (l *line) take(n int) {
	for n > 0 {
		taken := min(n, l.marks[0].bytes)
		n -= taken
		l.marks[0].bytes -= taken
		if l.marks[0].bytes == 0 {
			l.marks = l.marks[1:]
		}
	}
}

// drop forgets what is on the line.
func (l *line) drop() { l.marks = nil }

// worn reports whether the line has carried as much as it should.
func (h *half) worn() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.line.worn
}

// flip flips one bit of the pieces.
func flip(pieces [2][]byte, bit int) {
	piece, i := pieces[0], bit/8
	if i >= len(piece) {
		piece, i = pieces[1], i-len(piece)
	}
	piece[i] ^= 1 << (bit % 8)
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
