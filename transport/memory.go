package transport

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// Memory is a network inside one process, for tests and for clusters that live
// in one program. Each [NewMemory] is a network of its own: who does not hold
// it cannot listen or dial there, and no address leads out of it.
//
// An address is any text. An empty one and a port 0 stand for a free address,
// as in "memory:1". A connection holds up to 256 KiB in each direction; a writer
// that is ahead of its reader by more waits. A listener holds up to 128
// connections that wait for Accept; further dials wait too, for ctx at most.
//
// It starts no goroutines and works in a testing/synctest bubble. Create it in
// the bubble that uses it.
type Memory struct {
	mu        sync.Mutex
	listeners map[string]*memoryListener // by address; guarded by mu
	lastPort  int                        // guarded by mu
	dials     int                        // guarded by mu
}

// backlog bounds the connections that a listener holds before Accept.
const backlog = 128

// NewMemory returns a network without listeners.
func NewMemory() *Memory {
	return &Memory{listeners: map[string]*memoryListener{}}
}

// Secure reports true: the bytes do not leave the process.
func (m *Memory) Secure() bool { return true }

// Listen implements [Transport].
func (m *Memory) Listen(addr string) (net.Listener, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	name, err := m.resolve(addr)
	if err != nil {
		return nil, err
	}
	l := &memoryListener{
		network: m,
		addr:    memoryAddr(name),
		pending: make(chan *conn, backlog),
		done:    make(chan struct{}),
	}
	m.listeners[name] = l
	return l, nil
}

// resolve returns the address to listen at: addr, or a free one where it asks
// for that. m.mu is held.
func (m *Memory) resolve(addr string) (string, error) {
	host, any := strings.CutSuffix(addr, ":0")
	if addr != "" && !any {
		if m.listeners[addr] != nil {
			return "", taken(addr, "the address is taken, want a free one")
		}
		return addr, nil
	}
	if host == "" {
		host = "memory"
	}
	const ports = 65535 // as many as elsewhere, for code that computes with them
	for range ports {
		m.lastPort = m.lastPort%ports + 1
		name := host + ":" + strconv.Itoa(m.lastPort)
		if m.listeners[name] == nil {
			return name, nil
		}
	}
	return "", taken(addr, fmt.Sprintf("all %d ports of %s are taken", ports, host))
}

func taken(addr, why string) error {
	err := &net.OpError{Op: "listen", Net: "memory", Addr: memoryAddr(addr), Err: os.NewSyscallError("bind", syscall.EADDRINUSE)}
	return fmt.Errorf("transport: listen at %.300s: %s: %w", addr, why, err)
}

// Dial implements [Transport]. It does not wait for Accept unless the listener
// holds as many connections as it can.
func (m *Memory) Dial(ctx context.Context, addr string) (net.Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, dialError("memory", addr, err)
	}
	l, local := m.find(addr)
	if l == nil {
		return nil, dialError("memory", addr, refused())
	}
	near, far := newPipe(local, l.addr)
	select {
	case l.pending <- far:
	case <-l.done:
		return nil, dialError("memory", addr, refused())
	case <-ctx.Done():
		return nil, dialError("memory", addr, ctx.Err())
	}
	// If the listener was closed meanwhile, its Close may have looked into
	// pending before far was there. One of the two sees the other.
	select {
	case <-l.done:
		l.rejectPending()
	default:
	}
	return near, nil
}

// find returns the listener at an address, or nil, and an address for the dialer.
func (m *Memory) find(addr string) (*memoryListener, memoryAddr) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dials++
	return m.listeners[addr], memoryAddr(fmt.Sprintf("dialer:%d", m.dials))
}

func (m *Memory) remove(l *memoryListener) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.listeners[string(l.addr)] == l {
		delete(m.listeners, string(l.addr))
	}
}

// dialError is what package net returns for a dial that failed.
func dialError(network, addr string, err error) error {
	return &net.OpError{Op: "dial", Net: network, Addr: memoryAddr(addr), Err: err}
}

func refused() error { return os.NewSyscallError("connect", syscall.ECONNREFUSED) }

// A memoryAddr is an address in a Memory, or one that only has to be shown.
type memoryAddr string

func (a memoryAddr) Network() string { return "memory" }
func (a memoryAddr) String() string  { return string(a) }

type memoryListener struct {
	network *Memory
	addr    memoryAddr
	pending chan *conn    // the far ends of dialed connections; at its bound dials wait
	done    chan struct{} // closed by Close
	once    sync.Once
}

func (l *memoryListener) Accept() (net.Conn, error) {
	select {
	case <-l.done: // even if connections wait: they are being reset
		return nil, l.closedError()
	default:
	}
	select {
	case c := <-l.pending:
		return c, nil
	case <-l.done:
		return nil, l.closedError()
	}
}

func (l *memoryListener) closedError() error {
	return &net.OpError{Op: "accept", Net: "memory", Addr: l.addr, Err: net.ErrClosed}
}

func (l *memoryListener) Addr() net.Addr { return l.addr }

// Close frees the address and resets the connections that wait for Accept;
// those accepted live on. It is idempotent.
func (l *memoryListener) Close() error {
	l.once.Do(func() {
		l.network.remove(l)
		close(l.done)
	})
	l.rejectPending()
	return nil
}

func (l *memoryListener) rejectPending() {
	for {
		select {
		case c := <-l.pending:
			c.abort()
		default:
			return
		}
	}
}
