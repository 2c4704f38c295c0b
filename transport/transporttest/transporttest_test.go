package transporttest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/slotmesh/slotmesh/transport"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A broken transport is a right one but for what it replaces.
type broken struct {
	transport.Transport
	listen   func(tr transport.Transport, addr string) (net.Listener, error)
	dial     func(tr transport.Transport, ctx context.Context, addr string) (net.Conn, error)
	conn     func(c net.Conn) net.Conn         // on both sides of each connection
	listener func(l net.Listener) net.Listener // around each listener
}

func (b broken) Listen(addr string) (net.Listener, error) {
	listen := b.listen
	if listen == nil {
		listen = transport.Transport.Listen
	}
	l, err := listen(b.Transport, addr)
	if err == nil && b.conn != nil {
		l = connListener{l, b.conn}
	}
	if err == nil && b.listener != nil {
		l = b.listener(l)
	}
	return l, err
}

func (b broken) Dial(ctx context.Context, addr string) (net.Conn, error) {
	dial := b.dial
	if dial == nil {
		dial = transport.Transport.Dial
	}
	c, err := dial(b.Transport, ctx, addr)
	if err == nil && b.conn != nil {
		c = b.conn(c)
	}
	return c, err
}

type connListener struct {
	net.Listener
	wrap func(c net.Conn) net.Conn
}

func (l connListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return l.wrap(c), nil
}

// A brokenConn is a right one but for what it replaces. It has no CloseWrite.
type brokenConn struct {
	net.Conn
	read     func(p []byte) (int, error)
	write    func(p []byte) (int, error)
	close    func() error
	deadline func(set func(time.Time) error, t time.Time) error
	remote   net.Addr
}

func (c brokenConn) Read(p []byte) (int, error) {
	if c.read == nil {
		return c.Conn.Read(p)
	}
	return c.read(p)
}

func (c brokenConn) Write(p []byte) (int, error) {
	if c.write == nil {
		return c.Conn.Write(p)
	}
	return c.write(p)
}

func (c brokenConn) Close() error {
	if c.close == nil {
		return c.Conn.Close()
	}
	return c.close()
}

func (c brokenConn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

func (c brokenConn) SetReadDeadline(t time.Time) error  { return c.set(c.Conn.SetReadDeadline, t) }
func (c brokenConn) SetWriteDeadline(t time.Time) error { return c.set(c.Conn.SetWriteDeadline, t) }

func (c brokenConn) set(set func(time.Time) error, t time.Time) error {
	if c.deadline == nil {
		return set(t)
	}
	return c.deadline(set, t)
}

func (c brokenConn) RemoteAddr() net.Addr {
	if c.remote == nil {
		return c.Conn.RemoteAddr()
	}
	return c.remote
}

type brokenListener struct {
	net.Listener
	accept func() (net.Conn, error)
	close  func() error
	addr   net.Addr
}

func (l brokenListener) Accept() (net.Conn, error) {
	if l.accept == nil {
		return l.Listener.Accept()
	}
	return l.accept()
}

func (l brokenListener) Close() error {
	if l.close == nil {
		return l.Listener.Close()
	}
	return l.close()
}

func (l brokenListener) Addr() net.Addr {
	if l.addr == nil {
		return l.Listener.Addr()
	}
	return l.addr
}

// wrong wraps connections.
func wrong(of func(c net.Conn) brokenConn) broken {
	return broken{conn: func(c net.Conn) net.Conn {
		b := of(c)
		b.Conn = c
		return b
	}}
}

func TestASuiteFailsOnATransportThatBreaksTheContract(t *testing.T) {
	for _, c := range []struct {
		bug    string
		broken broken
		check  string // one that must find it
	}{
		{"a byte is changed", wrong(func(c net.Conn) brokenConn {
			return brokenConn{write: func(p []byte) (int, error) {
				p = slices.Clone(p)
				if len(p) == 4096 {
					p[4095]++
				}
				return c.Write(p)
			}}
		}), "what is written is read"},
		{"a large read loses a byte", wrong(func(c net.Conn) brokenConn {
			return brokenConn{read: func(p []byte) (int, error) {
				n, err := c.Read(p)
				return n - n>>14, err
			}}
		}), "large transfers in both directions arrive whole"},
		{"connections share one buffer", func() broken {
			var mu sync.Mutex
			reads := byte(0)
			return wrong(func(c net.Conn) brokenConn {
				return brokenConn{read: func(p []byte) (int, error) {
					n, err := c.Read(p)
					mu.Lock()
					defer mu.Unlock()
					if n > 0 {
						reads = max(1, reads+1)
						p[0] ^= reads // what the others have left there
					}
					return n, err
				}}
			})
		}(), "many connections are apart"},
		{"large writes are cut into pieces", wrong(func(c net.Conn) brokenConn {
			var large atomic.Int32
			second := make(chan struct{}) // closed when a second large write has begun
			return brokenConn{write: func(p []byte) (n int, err error) {
				for n < len(p) && err == nil {
					var m int
					m, err = c.Write(p[n:min(n+1000, len(p))])
					if n += m; n == len(p) || n > 1000 {
						continue
					}
					switch large.Add(1) {
					case 1: // let another come between
						select {
						case <-second:
						case <-time.After(time.Second): // there is none
						}
					case 2:
						close(second)
					}
				}
				return n, err
			}}
		}), "concurrent writes do not mix"},
		{"deadlines are ignored", wrong(func(net.Conn) brokenConn {
			return brokenConn{deadline: func(func(time.Time) error, time.Time) error { return nil }}
		}), "a read ends at its deadline"},
		{"deadlines in the past are ignored", wrong(func(net.Conn) brokenConn {
			return brokenConn{deadline: func(set func(time.Time) error, t time.Time) error {
				if t.Before(time.Now()) {
					t = time.Time{}
				}
				return set(t)
			}}
		}), "a read ends at its deadline"},
		{"deadlines come too early", wrong(func(net.Conn) brokenConn {
			return brokenConn{deadline: func(set func(time.Time) error, t time.Time) error { return set(t.Add(-20 * time.Millisecond)) }}
		}), "a read ends at its deadline"},
		{"a timeout is an error like any other", wrong(func(c net.Conn) brokenConn {
			return brokenConn{write: func(p []byte) (int, error) {
				n, err := c.Write(p)
				if err != nil {
					err = errors.New("timeout")
				}
				return n, err
			}}
		}), "a write ends at its deadline when nobody reads"},
		{"writes have no bound", wrong(func(c net.Conn) brokenConn {
			return brokenConn{write: func(p []byte) (int, error) {
				_, err := c.Write(p)
				return len(p), err
			}}
		}), "a write ends at its deadline when nobody reads"},
		{"a deadline does not reach a call that is blocked", wrong(func(c net.Conn) brokenConn {
			return brokenConn{deadline: func(func(time.Time) error, time.Time) error { return nil }}
		}), "a deadline can be set while a call is blocked"},
		{"close drops what was written", func() broken {
			return wrong(func(c net.Conn) brokenConn {
				var mu sync.Mutex
				var held []byte
				return brokenConn{write: func(p []byte) (int, error) {
					mu.Lock()
					defer mu.Unlock()
					held = append(held, p...)
					if len(held) > 1 { // the last byte waits for the next write
						_, err := c.Write(held[:len(held)-1])
						held = held[len(held)-1:]
						return len(p), err
					}
					return len(p), nil
				}}
			})
		}(), "what was written before a close is read, then EOF"},
		{"the end is an unexpected one", wrong(func(c net.Conn) brokenConn {
			return brokenConn{read: func(p []byte) (int, error) {
				n, err := c.Read(p)
				if err == io.EOF {
					err = io.ErrUnexpectedEOF
				}
				return n, err
			}}
		}), "what was written before a close is read, then EOF"},
		{"close leaves reads blocked", wrong(func(c net.Conn) brokenConn {
			return brokenConn{close: func() error { return c.(interface{ CloseWrite() error }).CloseWrite() }}
		}), "close unblocks a read"},
		{"close gives EOF to the one who closed", wrong(func(c net.Conn) brokenConn {
			return brokenConn{read: func(p []byte) (int, error) {
				n, err := c.Read(p)
				if errors.Is(err, net.ErrClosed) {
					err = io.EOF
				}
				return n, err
			}}
		}), "close unblocks a read"},
		{"a write that close has ended seems to have worked", wrong(func(c net.Conn) brokenConn {
			return brokenConn{write: func(p []byte) (int, error) {
				_, _ = c.Write(p)
				return len(p), nil
			}}
		}), "close unblocks a write"},
		{"writes to a peer that has closed vanish", wrong(func(c net.Conn) brokenConn {
			return brokenConn{write: func(p []byte) (int, error) {
				_, err := c.Write(p)
				if errors.Is(err, syscall.EPIPE) {
					time.Sleep(time.Millisecond) // in a bubble, where time passes by sleeping
					return len(p), nil
				}
				return len(p), err
			}}
		}), "writes to a peer that has closed fail"},
		{"CloseWrite closes both halves", broken{conn: func(c net.Conn) net.Conn { return closesBoth{c} }}, "a half-closed connection still carries the other half"},
		{"the second close hangs", wrong(func(c net.Conn) brokenConn {
			var closes atomic.Int32
			return brokenConn{close: func() error {
				if closes.Add(1) > 1 {
					time.Sleep(time.Hour) // of the bubble's time
				}
				return c.Close()
			}}
		}), "a connection can be closed twice"},
		{"a dial where nobody listens waits for somebody", broken{dial: func(tr transport.Transport, ctx context.Context, addr string) (net.Conn, error) {
			c, err := tr.Dial(ctx, addr)
			if errors.Is(err, syscall.ECONNREFUSED) {
				err = errors.New("no route")
			}
			return c, err
		}}, "a dial where nobody listens is refused"},
		{"dial ignores its context", broken{dial: func(tr transport.Transport, _ context.Context, addr string) (net.Conn, error) {
			return tr.Dial(context.Background(), addr)
		}}, "a dial whose context is over fails"},
		{"the dial's context stays with the connection", broken{dial: func(tr transport.Transport, ctx context.Context, addr string) (net.Conn, error) {
			c, err := tr.Dial(ctx, addr)
			if err != nil {
				return nil, err
			}
			return brokenConn{Conn: c, write: func(p []byte) (int, error) {
				if err := ctx.Err(); err != nil {
					return 0, err
				}
				return c.Write(p)
			}}, nil
		}}, "a dial's context does not bear on the connection"},
		{"a second listener takes over", broken{listen: func(tr transport.Transport, addr string) (net.Listener, error) {
			l, err := tr.Listen(addr)
			if err != nil {
				return tr.Listen("")
			}
			return l, err
		}}, "an address in use is taken"},
		{"the error for a taken address does not name it", broken{listen: func(tr transport.Transport, addr string) (net.Listener, error) {
			l, err := tr.Listen(addr)
			if err != nil {
				return nil, syscall.EADDRINUSE
			}
			return l, err
		}}, "an address in use is taken"},
		{"an address stays taken", func() broken {
			used := map[string]bool{}
			return broken{listen: func(tr transport.Transport, addr string) (net.Listener, error) {
				if used[addr] {
					return nil, syscall.EADDRINUSE
				}
				l, err := tr.Listen(addr)
				if err == nil {
					used[l.Addr().String()] = true
				}
				return l, err
			}}
		}(), "an address is free again after close"},
		{"close leaves accept blocked", broken{listener: func(l net.Listener) net.Listener {
			return brokenListener{Listener: l, close: func() error { return nil }}
		}}, "closing a listener unblocks accept"},
		{"accept says EOF", broken{listener: func(l net.Listener) net.Listener {
			return brokenListener{Listener: l, accept: func() (net.Conn, error) {
				c, err := l.Accept()
				if err != nil {
					err = io.EOF
				}
				return c, err
			}}
		}}, "closing a listener unblocks accept"},
		{"a listener takes its connections along", broken{listener: func(l net.Listener) net.Listener {
			var mu sync.Mutex
			var conns []net.Conn
			return brokenListener{Listener: l, accept: func() (net.Conn, error) {
				c, err := l.Accept()
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					conns = append(conns, c)
				}
				return c, err
			}, close: func() error {
				mu.Lock()
				defer mu.Unlock()
				for _, c := range conns {
					_ = c.Close()
				}
				return l.Close()
			}}
		}}, "closing a listener leaves its connections alone"},
		{"connections that nobody accepts stay open", broken{listener: func(l net.Listener) net.Listener {
			return brokenListener{Listener: l, close: func() error { return nil }}
		}}, "closing a listener ends connections that nobody accepted"},
		{"a connection does not know its peer", wrong(func(net.Conn) brokenConn {
			return brokenConn{remote: &net.TCPAddr{}}
		}), "addresses are what was dialed"},
		{"a free address is what was asked for", broken{listener: func(l net.Listener) net.Listener {
			return brokenListener{Listener: l, addr: &net.TCPAddr{}} // ":0"
		}}, "free addresses differ"},
	} {
		t.Run(c.bug, func(t *testing.T) {
			if !fails(t, c.check, c.broken) {
				t.Errorf("%q passes", c.check)
			}
		})
	}
}

type closesBoth struct{ net.Conn }

func (c closesBoth) CloseWrite() error { return c.Close() }

// A recorder stands in for a test that is expected to fail.
type recorder struct {
	testing.TB // nil: a check uses nothing else

	mu       sync.Mutex
	failures []string
	cleanups []func()
}

func (r *recorder) Helper() {}

func (r *recorder) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }

func (r *recorder) Errorf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures = append(r.failures, fmt.Sprintf(format, args...))
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	runtime.Goexit()
}

// fails reports whether the named check fails on the transport. It runs in a
// bubble, where the suite's patience takes no time and calls that stay blocked
// end with the bubble.
func fails(t *testing.T, name string, b broken) bool {
	t.Helper()
	cases := Cases()
	i := slices.IndexFunc(cases, func(c Case) bool { return c.Name == name })
	if i < 0 {
		t.Fatalf("no case is called %q", name)
	}
	var r recorder
	synctest.Test(t, func(t *testing.T) {
		inner := &tracked{Transport: transport.NewMemory()}
		b.Transport = inner
		var wg sync.WaitGroup
		wg.Go(func() { cases[i].Check(&r, b, func() string { return "" }) }) // of its own, for Fatalf ends it
		wg.Wait()
		for _, f := range slices.Backward(r.cleanups) {
			f()
		}
		inner.closeAll()
	})
	if len(r.failures) > 0 {
		t.Logf("%s: %.200s", name, r.failures[0])
	}
	return len(r.failures) > 0
}

// tracked closes what a broken transport leaves open.
type tracked struct {
	transport.Transport
	mu   sync.Mutex
	open []io.Closer
}

func (tr *tracked) keep(c io.Closer) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.open = append(tr.open, c)
}

func (tr *tracked) Listen(addr string) (net.Listener, error) {
	l, err := tr.Transport.Listen(addr)
	if err == nil {
		tr.keep(l)
		l = connListener{l, func(c net.Conn) net.Conn { tr.keep(c); return c }}
	}
	return l, err
}

func (tr *tracked) Dial(ctx context.Context, addr string) (net.Conn, error) {
	c, err := tr.Transport.Dial(ctx, addr)
	if err == nil {
		tr.keep(c)
	}
	return c, err
}

func (tr *tracked) closeAll() {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	for _, c := range tr.open {
		_ = c.Close()
	}
}
