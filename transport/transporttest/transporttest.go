// Package transporttest checks that a transport keeps the contract of
// [transport.Transport], as far as the nodes of a cluster rely on it:
//
//	func TestQUICKeepsTheContract(t *testing.T) {
//		transporttest.Run(t, func(t *testing.T) (transport.Transport, func() string) {
//			return newQUIC(t), func() string { return "127.0.0.1:0" }
//		})
//	}
package transporttest

import (
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/slotmesh/slotmesh/transport"
)

// patience is how long the suite waits for what must happen soon. It is only
// ever waited out by a transport that breaks the contract.
const patience = 20 * time.Second

// Run runs every case as a subtest, each on a transport of its own, and checks
// that no goroutine outlives it; so do not run it beside parallel tests.
// newTransport returns a transport and a function that returns an address to
// listen at, which nobody else uses; it registers with t.Cleanup what has to be
// closed.
func Run(t *testing.T, newTransport func(t *testing.T) (transport.Transport, func() string)) {
	t.Helper()
	for _, c := range Cases() {
		t.Run(c.Name, func(t *testing.T) {
			before := goleak.IgnoreCurrent()
			t.Cleanup(func() { goleak.VerifyNone(t, before) }) // the first to be registered runs last
			tr, newAddr := newTransport(t)
			c.Check(t, tr, newAddr)
		})
	}
}

// A Case is one check of the suite, for those who want to run it in a place of
// their own, such as a synctest bubble.
type Case struct {
	Name string // a sentence

	// Check fails t where the transport breaks the contract. It closes all
	// that it opens, at the latest in t.Cleanup, and uses no more of t than
	// Helper, Cleanup, Errorf and Fatalf.
	Check func(t testing.TB, tr transport.Transport, newAddr func() string)
}

// Cases returns the checks that Run runs.
func Cases() []Case {
	return []Case{
		{"what is written is read", checkEcho},
		{"large transfers in both directions arrive whole", checkLarge},
		{"many connections are apart", checkMany},
		{"concurrent writes do not mix", checkWritesApart},
		{"a read ends at its deadline", checkReadDeadline},
		{"a write ends at its deadline when nobody reads", checkWriteDeadline},
		{"a deadline can be set while a call is blocked", checkDeadlineWhileBlocked},
		{"what was written before a close is read, then EOF", checkCloseThenEOF},
		{"close unblocks a read", checkCloseUnblocksRead},
		{"close unblocks a write", checkCloseUnblocksWrite},
		{"writes to a peer that has closed fail", checkWriteToClosedPeer},
		{"a half-closed connection still carries the other half", checkCloseWrite},
		{"a connection can be closed twice", checkCloseTwice},
		{"a dial where nobody listens is refused", checkRefused},
		{"a dial whose context is over fails", checkDialContextOver},
		{"a dial's context does not bear on the connection", checkDialContextEnds},
		{"an address in use is taken", checkTaken},
		{"an address is free again after close", checkFreeAgain},
		{"closing a listener unblocks accept", checkCloseUnblocksAccept},
		{"closing a listener leaves its connections alone", checkCloseListenerKeepsConns},
		{"closing a listener ends connections that nobody accepted", checkCloseListenerEndsPending},
		{"addresses are what was dialed", checkAddrs},
		{"free addresses differ", checkFreeAddrs},
	}
}

// listen listens and closes the listener at the end of the test.
func listen(t testing.TB, tr transport.Transport, addr string) net.Listener {
	t.Helper()
	l, err := tr.Listen(addr)
	if err != nil {
		t.Fatalf("Listen(%q) = %v", addr, err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// connect returns both ends of a new connection to l and closes them at the end
// of the test.
func connect(t testing.TB, tr transport.Transport, l net.Listener) (dialed, accepted net.Conn) {
	t.Helper()
	type result struct {
		c   net.Conn
		err error
	}
	results := make(chan result, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			err = handshake(c)
		}
		results <- result{c, err}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	dialed, err := tr.Dial(ctx, l.Addr().String())
	if err != nil {
		_ = l.Close() // ends the accept
		<-results
		t.Fatalf("Dial(%q) = %v", l.Addr(), err)
	}
	t.Cleanup(func() { _ = dialed.Close() })
	r := <-results
	if r.c != nil {
		t.Cleanup(func() { _ = r.c.Close() })
	}
	if r.err != nil {
		t.Fatalf("Accept() = %v", r.err)
	}
	return dialed, r.c
}

// handshake runs the handshake of an accepted TLS connection, which would
// otherwise wait for the first read while the dialer waits for it.
func handshake(c net.Conn) error {
	secure, ok := c.(interface {
		HandshakeContext(ctx context.Context) error
	})
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return secure.HandshakeContext(ctx)
}

// newPair returns both ends of a connection on a listener of its own.
func newPair(t testing.TB, tr transport.Transport, newAddr func() string) (dialed, accepted net.Conn) {
	t.Helper()
	return connect(t, tr, listen(t, tr, newAddr()))
}

// soon runs what must end soon, beside the test, and fails it if it does not.
func soon(t testing.TB, what string, run func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		run()
	}()
	wait(t, what, done)
}

func wait(t testing.TB, what string, done <-chan struct{}) {
	t.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
		t.Fatalf("%s has not ended after %v", what, patience)
	}
}

// mustWrite writes all of p, or fails the test.
func mustWrite(t testing.TB, c net.Conn, p []byte) {
	t.Helper()
	soon(t, "a write", func() {
		if n, err := c.Write(p); n != len(p) || err != nil {
			t.Errorf("Write of %d bytes = %d, %v", len(p), n, err)
		}
	})
}

// mustRead reads want, or fails the test.
func mustRead(t testing.TB, c net.Conn, want string) {
	t.Helper()
	soon(t, "a read", func() {
		got := make([]byte, len(want))
		if n, err := io.ReadFull(c, got); err != nil || string(got) != want {
			t.Errorf("read %q, %v, want %q", got[:n], err, want)
		}
	})
}

// pattern returns n bytes that differ from place to place.
func pattern(n int, seed byte) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(i) ^ byte(i>>8)*31 ^ byte(i>>16)*17 ^ seed
	}
	return p
}

func checkEcho(t testing.TB, tr transport.Transport, newAddr func() string) {
	a, b := newPair(t, tr, newAddr)
	for _, size := range []int{0, 1, 100, 4096, 100_000} {
		p := pattern(size, byte(size))
		mustWrite(t, a, p)
		mustRead(t, b, string(p))
		mustWrite(t, b, p)
		mustRead(t, a, string(p))
	}
	for _, word := range []string{"one", "", "two"} { // several writes may be one read
		mustWrite(t, a, []byte(word))
	}
	mustRead(t, b, "onetwo")
	soon(t, "a read into nothing", func() {
		if n, err := b.Read(nil); n != 0 || err != nil {
			t.Errorf("Read(nil) = %d, %v, want 0, nil", n, err)
		}
	})
}

func checkLarge(t testing.TB, tr transport.Transport, newAddr func() string) {
	a, b := newPair(t, tr, newAddr)
	const size = 8 << 20
	var wg sync.WaitGroup
	for i, way := range [][2]net.Conn{{a, b}, {b, a}} {
		sent := pattern(size, byte(i))
		wg.Go(func() {
			for at := 0; at < size; at += 70_000 { // no divisor of any buffer
				if _, err := way[0].Write(sent[at:min(at+70_000, size)]); err != nil {
					t.Errorf("Write at %d = %v", at, err)
					return
				}
			}
		})
		wg.Go(func() {
			sum := sha256.New()
			if n, err := io.CopyN(sum, way[1], size); err != nil {
				t.Errorf("read %d of %d bytes, then %v", n, size, err)
			} else if want := sha256.Sum256(sent); string(sum.Sum(nil)) != string(want[:]) {
				t.Errorf("%d bytes arrived, but not those that were written", size)
			}
		})
	}
	soon(t, "the transfer", wg.Wait)
}

func checkMany(t testing.TB, tr transport.Transport, newAddr func() string) {
	l := listen(t, tr, newAddr())
	var wg sync.WaitGroup
	for i := range 32 {
		a, b := connect(t, tr, l)
		wg.Go(func() { // echo until the dialer closes
			_, _ = io.Copy(b, b)
			_ = b.Close()
		})
		wg.Go(func() {
			defer a.Close()
			for n := range 20 {
				p := pattern(500+n, byte(i))
				if _, err := a.Write(p); err != nil {
					t.Errorf("connection %d: Write = %v", i, err)
					return
				}
				got := make([]byte, len(p))
				if _, err := io.ReadFull(a, got); err != nil || string(got) != string(p) {
					t.Errorf("connection %d: read what was not written, or %v", i, err)
					return
				}
			}
		})
	}
	soon(t, "the echoes", wg.Wait)
}

func checkWritesApart(t testing.TB, tr transport.Transport, newAddr func() string) {
	a, b := newPair(t, tr, newAddr)
	const writers, size = 4, 600_000 // more than buffers hold
	var wg sync.WaitGroup
	for i := range writers {
		wg.Go(func() {
			p := make([]byte, size)
			for j := range p {
				p[j] = byte(i)
			}
			if _, err := a.Write(p); err != nil {
				t.Errorf("Write = %v", err)
			}
		})
	}
	wg.Go(func() {
		seen := map[byte]bool{}
		p := make([]byte, size)
		for range writers {
			if _, err := io.ReadFull(b, p); err != nil {
				t.Errorf("read = %v", err)
				return
			}
			for _, c := range p {
				if c != p[0] {
					t.Errorf("a write of %ds has a %d in it", p[0], c)
					return
				}
			}
			seen[p[0]] = true
		}
		if len(seen) != writers {
			t.Errorf("%d of %d writes arrived", len(seen), writers)
		}
	})
	soon(t, "the writes", wg.Wait)
}

// wantTimeout checks the error of a call whose deadline has passed.
func wantTimeout(t testing.TB, call string, err error) {
	t.Helper()
	timeout, ok := errors.AsType[net.Error](err)
	if !errors.Is(err, os.ErrDeadlineExceeded) || !ok || !timeout.Timeout() {
		t.Errorf("%s after its deadline = %v, want an os.ErrDeadlineExceeded that is a net.Error with Timeout() true", call, err)
	}
}

func checkReadDeadline(t testing.TB, tr transport.Transport, newAddr func() string) {
	a, b := newPair(t, tr, newAddr)
	read := func(want string) {
		soon(t, "a read", func() {
			_, err := a.Read(make([]byte, 1))
			wantTimeout(t, want, err)
		})
	}
	for _, set := range []func(time.Time) error{a.SetReadDeadline, a.SetDeadline} {
		for _, d := range []time.Duration{30 * time.Millisecond, 0, -time.Hour} {
			start := time.Now()
			if err := set(start.Add(d)); err != nil {
				t.Fatalf("setting a deadline = %v", err)
			}
			read("Read")
			if early := d - time.Since(start); early > 0 {
				t.Errorf("Read ended %v before its deadline", early)
			}
			read("the next Read")
		}
	}
	// What arrives meanwhile is not lost, but it takes a new deadline to read it.
	mustWrite(t, b, []byte("late"))
	read("Read of bytes that are there")
	if err := a.SetReadDeadline(time.Now().Add(time.Hour)); err != nil {
		t.Fatalf("setting a deadline = %v", err)
	}
	mustRead(t, a, "la")
	if err := a.SetDeadline(time.Time{}); err != nil {
		t.Fatalf("taking a deadline off = %v", err)
	}
	mustRead(t, a, "te")
	mustWrite(t, a, []byte("still works"))
	mustRead(t, b, "still works")
}

// unread is more than a transport may buffer for a peer that does not read.
const unread = 64 << 20

func checkWriteDeadline(t testing.TB, tr transport.Transport, newAddr func() string) {
	a, _ := newPair(t, tr, newAddr)
	if err := a.SetWriteDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
		t.Fatalf("SetWriteDeadline = %v", err)
	}
	soon(t, "a write that nobody reads", func() {
		n, err := a.Write(make([]byte, unread))
		if n >= unread {
			t.Errorf("Write of %d bytes that nobody reads = %d, want the peer's pace to hold it up", unread, n)
		}
		wantTimeout(t, "Write", err)
	})
}

func checkDeadlineWhileBlocked(t testing.TB, tr transport.Transport, newAddr func() string) {
	for _, past := range []bool{false, true} {
		at := func() time.Time {
			if past {
				return time.Unix(1, 0)
			}
			return time.Now().Add(20 * time.Millisecond)
		}
		a, b := newPair(t, tr, newAddr)
		var wg sync.WaitGroup
		wg.Go(func() {
			_, err := a.Read(make([]byte, 1))
			wantTimeout(t, "Read", err)
		})
		// The write has begun when its first byte is here.
		wg.Go(func() {
			_, err := a.Write(make([]byte, unread))
			wantTimeout(t, "Write", err)
		})
		mustRead(t, b, "\x00")
		if err := errors.Join(a.SetReadDeadline(at()), a.SetWriteDeadline(at())); err != nil {
			t.Fatalf("setting deadlines = %v", err)
		}
		soon(t, "a call whose deadline was set while it was blocked", wg.Wait)
	}
}

func checkCloseThenEOF(t testing.TB, tr transport.Transport, newAddr func() string) {
	for _, size := range []int{0, 1, 50_000} {
		a, b := newPair(t, tr, newAddr)
		p := pattern(size, 1)
		mustWrite(t, a, p)
		if err := a.Close(); err != nil {
			t.Errorf("Close() = %v", err)
		}
		mustRead(t, b, string(p))
		for range 2 {
			soon(t, "a read after the end", func() {
				if n, err := b.Read(make([]byte, 1)); n != 0 || err != io.EOF {
					t.Errorf("Read after the end = %d, %v, want 0, io.EOF", n, err)
				}
			})
		}
	}
}

func checkCloseUnblocksRead(t testing.TB, tr transport.Transport, newAddr func() string) {
	a, b := newPair(t, tr, newAddr)
	var wg sync.WaitGroup
	reading := make(chan struct{})
	wg.Go(func() {
		p := make([]byte, 1)
		_, _ = a.Read(p)
		close(reading)
		if _, err := a.Read(p); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Read that Close has ended = %v, want net.ErrClosed", err)
		}
	})
	mustWrite(t, b, []byte("x"))
	wait(t, "the first read", reading)
	_ = a.Close()
	soon(t, "the read", wg.Wait)
	if _, err := a.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Read after Close = %v, want net.ErrClosed", err)
	}
	if _, err := a.Write([]byte("x")); err == nil {
		t.Error("Write after Close = nil, want an error")
	}
	if err := a.SetDeadline(time.Now()); err == nil {
		t.Error("SetDeadline after Close = nil, want an error")
	}
}

func checkCloseUnblocksWrite(t testing.TB, tr transport.Transport, newAddr func() string) {
	a, b := newPair(t, tr, newAddr)
	var wg sync.WaitGroup
	wg.Go(func() {
		if n, err := a.Write(make([]byte, unread)); n >= unread || err == nil {
			t.Errorf("Write that Close has ended = %d, %v, want an error", n, err)
		}
	})
	mustRead(t, b, "\x00")
	_ = a.Close()
	soon(t, "the write", wg.Wait)
}

func checkWriteToClosedPeer(t testing.TB, tr transport.Transport, newAddr func() string) {
	a, b := newPair(t, tr, newAddr)
	if err := b.Close(); err != nil {
		t.Errorf("Close() = %v", err)
	}
	soon(t, "writing to a peer that has closed", func() {
		// The first few may go into a buffer.
		for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
			if _, err := a.Write(make([]byte, 1<<16)); err != nil {
				return
			}
		}
		t.Errorf("writes to a peer that has closed still succeed after %v", patience)
	})
}

func checkCloseWrite(t testing.TB, tr transport.Transport, newAddr func() string) {
	a, b := newPair(t, tr, newAddr)
	half, ok := a.(interface{ CloseWrite() error })
	if !ok {
		return // it is not part of net.Conn
	}
	mustWrite(t, a, []byte("question"))
	if err := half.CloseWrite(); err != nil {
		t.Fatalf("CloseWrite() = %v", err)
	}
	soon(t, "reading to the end", func() {
		if got, err := io.ReadAll(b); string(got) != "question" || err != nil {
			t.Errorf("read %q, %v, want all that was written before CloseWrite", got, err)
		}
	})
	if _, err := a.Write([]byte("x")); err == nil {
		t.Error("Write after CloseWrite = nil, want an error")
	}
	mustWrite(t, b, []byte("answer"))
	mustRead(t, a, "answer")
}

func checkCloseTwice(t testing.TB, tr transport.Transport, newAddr func() string) {
	a, _ := newPair(t, tr, newAddr)
	var wg sync.WaitGroup
	for range 4 { // an error the second time is fine, as in package net
		wg.Go(func() { _ = a.Close() })
	}
	soon(t, "closing a connection", wg.Wait)
}

func checkRefused(t testing.TB, tr transport.Transport, newAddr func() string) {
	addr := unused(t, tr, newAddr)
	soon(t, "a dial", func() {
		c, err := tr.Dial(context.Background(), addr)
		if !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("Dial where nobody listens = %v, %v, want ECONNREFUSED", c, err)
		}
	})
}

// unused returns an address at which nobody listens.
func unused(t testing.TB, tr transport.Transport, newAddr func() string) string {
	t.Helper()
	l := listen(t, tr, newAddr())
	if err := l.Close(); err != nil {
		t.Fatalf("Close() of a listener = %v", err)
	}
	return l.Addr().String()
}

func checkDialContextOver(t testing.TB, tr transport.Transport, newAddr func() string) {
	l := listen(t, tr, newAddr())
	canceled, cancel := context.WithCancel(context.Background())
	cancel()
	late, cancel := context.WithDeadline(context.Background(), time.Now().Add(-time.Second))
	defer cancel()
	for ctx, want := range map[context.Context]error{canceled: context.Canceled, late: context.DeadlineExceeded} {
		soon(t, "a dial whose context is over", func() {
			if c, err := tr.Dial(ctx, l.Addr().String()); !errors.Is(err, want) {
				t.Errorf("Dial = %v, %v, want %v", c, err, want)
			}
		})
	}
}

func checkDialContextEnds(t testing.TB, tr transport.Transport, newAddr func() string) {
	ctx, cancel := context.WithCancel(context.Background())
	a, b := connect(t, withContext{tr, ctx}, listen(t, tr, newAddr()))
	cancel()
	mustWrite(t, a, []byte("x"))
	mustRead(t, b, "x")
	mustWrite(t, b, []byte("y"))
	mustRead(t, a, "y")
}

// withContext dials with a context of its own.
type withContext struct {
	transport.Transport
	ctx context.Context
}

func (w withContext) Dial(_ context.Context, addr string) (net.Conn, error) {
	return w.Transport.Dial(w.ctx, addr)
}

func checkTaken(t testing.TB, tr transport.Transport, newAddr func() string) {
	l := listen(t, tr, newAddr())
	second, err := tr.Listen(l.Addr().String())
	if err == nil {
		_ = second.Close()
	}
	if !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("Listen at an address in use = %v, want EADDRINUSE", err)
	} else if !strings.Contains(err.Error(), l.Addr().String()) {
		t.Errorf("Listen at an address in use = %q, want the address %s in it", err, l.Addr())
	}
	a, b := connect(t, tr, l) // the first is not disturbed
	mustWrite(t, a, []byte("x"))
	mustRead(t, b, "x")
}

func checkFreeAgain(t testing.TB, tr transport.Transport, newAddr func() string) {
	addr := unused(t, tr, newAddr)
	for range 3 {
		l := listen(t, tr, addr)
		a, b := connect(t, tr, l)
		mustWrite(t, a, []byte("x"))
		mustRead(t, b, "x")
		for _, c := range []io.Closer{a, b, l} {
			if err := c.Close(); err != nil {
				t.Errorf("Close() = %v", err)
			}
		}
	}
}

func checkCloseUnblocksAccept(t testing.TB, tr transport.Transport, newAddr func() string) {
	l := listen(t, tr, newAddr())
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			if c, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
				t.Errorf("Accept that Close has ended = %v, %v, want net.ErrClosed", c, err)
			}
		})
	}
	for range 2 { // the second may return an error, as in package net
		_ = l.Close()
	}
	soon(t, "accept", wg.Wait)
	if c, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept after Close = %v, %v, want net.ErrClosed", c, err)
	}
	soon(t, "a dial", func() {
		if c, err := tr.Dial(context.Background(), l.Addr().String()); err == nil {
			_ = c.Close()
			t.Error("Dial to a closed listener succeeds")
		}
	})
}

func checkCloseListenerKeepsConns(t testing.TB, tr transport.Transport, newAddr func() string) {
	l := listen(t, tr, newAddr())
	a, b := connect(t, tr, l)
	_ = l.Close()
	mustWrite(t, a, []byte("x"))
	mustRead(t, b, "x")
	mustWrite(t, b, []byte("y"))
	mustRead(t, a, "y")
}

func checkCloseListenerEndsPending(t testing.TB, tr transport.Transport, newAddr func() string) {
	l := listen(t, tr, newAddr())
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	ended := make(chan struct{})
	dialing := make(chan struct{})
	go func() {
		defer close(ended)
		close(dialing)
		c, err := tr.Dial(ctx, l.Addr().String())
		if err != nil {
			return
		}
		defer c.Close()
		if n, err := c.Read(make([]byte, 1)); err == nil {
			t.Errorf("Read from a connection that nobody accepted = %d bytes", n)
		}
	}()
	<-dialing
	_ = l.Close()
	wait(t, "a connection that nobody accepted", ended)
	if ctx.Err() != nil {
		t.Error("the dial was only ended by its context")
	}
}

func checkAddrs(t testing.TB, tr transport.Transport, newAddr func() string) {
	l := listen(t, tr, newAddr())
	a, b := connect(t, tr, l)
	for name, got := range map[string]net.Addr{"the dialer's RemoteAddr": a.RemoteAddr(), "the accepted LocalAddr": b.LocalAddr()} {
		if got.String() != l.Addr().String() || got.Network() != l.Addr().Network() {
			t.Errorf("%s = %s %q, want the listener's %s %q", name, got.Network(), got, l.Addr().Network(), l.Addr())
		}
	}
	if a.LocalAddr().String() != b.RemoteAddr().String() {
		t.Errorf("the dialer is %q to itself and %q to its peer", a.LocalAddr(), b.RemoteAddr())
	}
}

func checkFreeAddrs(t testing.TB, tr transport.Transport, _ func() string) {
	seen := map[string]bool{}
	for _, ask := range []string{"", ":0", "", ":0"} {
		addr := listen(t, tr, ask).Addr().String()
		if seen[addr] || addr == ask {
			t.Errorf("Listen(%q) is at %q, which was in use or is no address", ask, addr)
		}
		seen[addr] = true
	}
}
