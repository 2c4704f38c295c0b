package transport_test

import (
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/slotmesh/slotmesh/transport"
)

func TestTCPSetsItsSocketOptionsOnBothSides(t *testing.T) {
	for _, c := range []struct {
		keepAlive time.Duration
		on, idle  int // idle in seconds
	}{{0, 1, 15}, {40 * time.Second, 1, 40}, {-1, 0, 0}} {
		tcp := transport.TCP{KeepAlive: c.keepAlive}
		l, err := tcp.Listen("127.0.0.1:0")
		require.NoError(t, err)
		defer l.Close()
		dialed, err := tcp.Dial(t.Context(), l.Addr().String())
		require.NoError(t, err)
		defer dialed.Close()
		accepted, err := l.Accept()
		require.NoError(t, err)
		defer accepted.Close()
		for _, conn := range []net.Conn{dialed, accepted} {
			for option, want := range map[[2]int]int{
				{syscall.IPPROTO_TCP, syscall.TCP_NODELAY}:  1,
				{syscall.SOL_SOCKET, syscall.SO_KEEPALIVE}:  c.on,
				{syscall.IPPROTO_TCP, syscall.TCP_KEEPIDLE}: c.idle,
			} {
				if got := socketOption(t, conn, option); got != want && (c.on == 1 || option[1] != syscall.TCP_KEEPIDLE) {
					t.Errorf("KeepAlive %v: option %v = %d, want %d", c.keepAlive, option, got, want)
				}
			}
		}
	}
}

func socketOption(t *testing.T, c net.Conn, option [2]int) (value int) {
	t.Helper()
	raw, err := c.(*net.TCPConn).SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Control(func(fd uintptr) {
		value, err = syscall.GetsockoptInt(int(fd), option[0], option[1])
	}))
	require.NoError(t, err)
	return value
}
