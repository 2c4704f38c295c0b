package transport_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/slotmesh/slotmesh/internal/racing"
	"github.com/slotmesh/slotmesh/transport"
)

// bufferSize is what a connection in memory holds in each direction.
const bufferSize = 256 << 10

// pair returns both ends of a new connection to addr, which from dials; they
// are closed at the end of the test.
func pair(t *testing.T, from transport.Transport, l net.Listener) (dialed, accepted net.Conn) {
	t.Helper()
	dialed, err := from.Dial(t.Context(), l.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { _ = dialed.Close() })
	accepted, err = l.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { _ = accepted.Close() })
	return dialed, accepted
}

func listen(t *testing.T, tr transport.Transport, addr string) net.Listener {
	t.Helper()
	l, err := tr.Listen(addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func read(t *testing.T, c net.Conn, n int) []byte {
	t.Helper()
	p := make([]byte, n)
	_, err := io.ReadFull(c, p)
	require.NoError(t, err)
	return p
}

func write(t *testing.T, c net.Conn, p string) {
	t.Helper()
	_, err := c.Write([]byte(p))
	require.NoError(t, err)
}

func TestMemoryAddressesAreNames(t *testing.T) {
	m := transport.NewMemory()
	for _, c := range []struct{ addr, want string }{
		{"", "memory:1"},
		{":0", "memory:2"},
		{"memory:3", "memory:3"},
		{"", "memory:4"}, // 3 is taken
		{"host:0", "host:5"},
		{"a", "a"},
		{"127.0.0.1:7000", "127.0.0.1:7000"}, // no port is opened: it is a name like any other
	} {
		l := listen(t, m, c.addr)
		if l.Addr().String() != c.want || l.Addr().Network() != "memory" {
			t.Errorf("Listen(%q) is at %s %q, want memory %q", c.addr, l.Addr().Network(), l.Addr(), c.want)
		}
	}
	_, err := m.Listen("a")
	if !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), "listen at a: the address is taken, want a free one") {
		t.Errorf("Listen at a taken name = %v", err)
	}
}

func TestMemoryNetworksAreApart(t *testing.T) {
	m, other := transport.NewMemory(), transport.NewMemory()
	listen(t, m, "a")
	_, err := other.Dial(t.Context(), "a")
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	listen(t, other, "a") // free there
	assert.True(t, m.Secure())
}

func TestMemoryHasAsManyPortsAsATCPHost(t *testing.T) {
	racing.OneGoroutine(t)
	m := transport.NewMemory()
	for range 65535 {
		listen(t, m, "")
	}
	_, err := m.Listen("")
	require.ErrorIs(t, err, syscall.EADDRINUSE)
	require.ErrorContains(t, err, "all 65535 ports of memory are taken")
	listen(t, m, "another:0")
}

// A deadline counts as it was set last, whatever its timer was set to before.
func TestMemoryDeadlinesArePutOffAndBroughtForward(t *testing.T) {
	for name, after := range map[string][]time.Duration{ // deadlines set one after the other, 0: none; the last one counts
		"put off":                   {10 * time.Second, 20 * time.Second},
		"brought forward":           {20 * time.Second, 10 * time.Second},
		"put off, and back":         {10 * time.Second, 20 * time.Second, 5 * time.Second},
		"taken away, and set again": {10 * time.Second, 0, 15 * time.Second},
		"set again behind its time": {-time.Second, 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := transport.NewMemory()
				a, _ := pair(t, m, listen(t, m, "b"))
				began := time.Now()
				for _, d := range after {
					var at time.Time
					if d != 0 {
						at = began.Add(d)
					}
					require.NoError(t, a.SetReadDeadline(at))
				}
				for range 2 { // it has passed for good
					_, err := a.Read(make([]byte, 1))
					require.ErrorIs(t, err, os.ErrDeadlineExceeded)
					require.Equal(t, after[len(after)-1], time.Since(began))
				}
				require.NoError(t, a.SetReadDeadline(time.Now().Add(time.Second)))
				_, err := a.Read(make([]byte, 1))
				require.ErrorIs(t, err, os.ErrDeadlineExceeded)
				require.Equal(t, after[len(after)-1]+time.Second, time.Since(began))
			})
		})
	}
}

func TestMemoryWriterWaitsAtTheBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := transport.NewMemory()
		a, b := pair(t, m, listen(t, m, "b"))
		write(t, a, strings.Repeat("x", bufferSize)) // fits
		done := false
		go func() {
			write(t, a, "yz")
			done = true
		}()
		synctest.Wait()
		require.False(t, done, "a write beyond the bound does not wait")
		read(t, b, 1)
		synctest.Wait()
		require.False(t, done, "a write is over with half of it in the buffer")
		read(t, b, 1)
		synctest.Wait()
		require.True(t, done, "a write for which there is room still waits")
		assert.Equal(t, strings.Repeat("x", bufferSize-2)+"yz", string(read(t, b, bufferSize)))

		require.NoError(t, a.SetWriteDeadline(time.Now().Add(time.Second)))
		n, err := a.Write(make([]byte, bufferSize+1))
		assert.Equal(t, bufferSize, n, "a write says how much of it is under way")
		assert.ErrorIs(t, err, os.ErrDeadlineExceeded)
	})
}

func TestMemoryDeadlinesAreExact(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := transport.NewMemory()
		a, b := pair(t, m, listen(t, m, "b"))
		start := time.Now()
		require.NoError(t, a.SetReadDeadline(start.Add(30*time.Second)))
		_, err := a.Read(make([]byte, 1))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		assert.Equal(t, 30*time.Second, time.Since(start))

		// A deadline that is moved holds, the one before does not.
		require.NoError(t, a.SetReadDeadline(time.Now().Add(time.Second)))
		require.NoError(t, a.SetReadDeadline(time.Now().Add(time.Minute)))
		go func() {
			time.Sleep(50 * time.Second)
			write(t, b, "x")
		}()
		assert.Equal(t, "x", string(read(t, a, 1)))
		assert.Equal(t, 80*time.Second, time.Since(start))

		// One end's deadlines are nothing to the other.
		require.NoError(t, a.SetDeadline(time.Unix(1, 0)))
		write(t, b, "y")
		require.NoError(t, a.SetDeadline(time.Time{}))
		assert.Equal(t, "y", string(read(t, a, 1)))
	})
}

func TestMemoryErrorsAreThoseOfNet(t *testing.T) {
	m := transport.NewMemory()
	a, b := pair(t, m, listen(t, m, "b"))
	require.NoError(t, b.Close())
	_, err := a.Write([]byte("x"))
	assert.ErrorIs(t, err, syscall.EPIPE)
	assert.EqualError(t, err, "write memory dialer:1->b: broken pipe")
	_, err = a.Read(make([]byte, 1))
	assert.Equal(t, io.EOF, err)
	require.NoError(t, a.Close())
	require.NoError(t, a.Close(), "a second close is fine")
	_, err = a.Read(make([]byte, 1))
	assert.EqualError(t, err, "read memory dialer:1->b: use of closed network connection")
	assert.ErrorIs(t, a.SetReadDeadline(time.Now()), net.ErrClosed)
	assert.ErrorIs(t, a.SetWriteDeadline(time.Now()), net.ErrClosed)
	_, err = m.Dial(t.Context(), "nowhere")
	assert.EqualError(t, err, "dial memory nowhere: connect: connection refused")
}

func TestMemoryDialWaitsWhereTheBacklogIsFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := transport.NewMemory()
		l := listen(t, m, "b")
		for range 128 {
			c, err := m.Dial(t.Context(), "b")
			require.NoError(t, err)
			defer c.Close()
		}
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		_, err := m.Dial(ctx, "b")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Equal(t, 3*time.Second, time.Since(start))

		var wg sync.WaitGroup
		wg.Go(func() {
			c, err := m.Dial(t.Context(), "b")
			if err != nil {
				t.Errorf("a dial for which there is room again = %v", err)
				return
			}
			_ = c.Close()
		})
		synctest.Wait()
		_, err = l.Accept()
		require.NoError(t, err)
		wg.Wait()

		wg.Go(func() {
			c, err := m.Dial(t.Context(), "b") // fills the place that Accept has made
			if err == nil {
				c, err = m.Dial(t.Context(), "b")
			}
			if !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("a dial whose listener closes = %v, %v, want ECONNREFUSED", c, err)
			}
		})
		synctest.Wait()
		require.NoError(t, l.Close())
		wg.Wait()
	})
}

func TestMemoryResetsConnectionsThatNobodyAccepted(t *testing.T) {
	m := transport.NewMemory()
	l := listen(t, m, "b")
	c, err := m.Dial(t.Context(), "b")
	require.NoError(t, err)
	write(t, c, "x")
	require.NoError(t, l.Close())
	_, err = c.Read(make([]byte, 1))
	require.ErrorIs(t, err, syscall.ECONNRESET)
	_, err = c.Write([]byte("x"))
	require.ErrorIs(t, err, syscall.ECONNRESET)
}

// A dial beside a close must not end in a connection that nobody will ever
// accept or reset.
func TestMemoryDialBesideCloseLeavesNothing(t *testing.T) {
	m := transport.NewMemory()
	for i := range 300 {
		l := listen(t, m, fmt.Sprint(i))
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				c, err := m.Dial(t.Context(), l.Addr().String())
				if err != nil {
					return
				}
				defer c.Close()
				_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
				if _, err := c.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
					t.Error("a connection is left with nobody at the other end")
				}
			})
		}
		wg.Go(func() {
			if c, err := l.Accept(); err == nil {
				_ = c.Close()
			}
		})
		wg.Go(func() { _ = l.Close() })
		wg.Wait()
	}
}
