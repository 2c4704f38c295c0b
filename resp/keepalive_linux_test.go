package resp

import (
	"net"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// The network asks a silent client as tcp-keepalive says, from the next connection on.
func TestKeepAliveOfClients(t *testing.T) {
	s := startServer(t)
	operator := dial(t, s)
	for _, row := range []struct {
		seconds        string
		on, idle, each int
	}{{"300", 1, 300, 100}, {"2", 1, 2, 1}, {"0", 0, 0, 0}} {
		operator.check([2]string{"CONFIG SET tcp-keepalive " + row.seconds, "OK"})
		dial(t, s).check([2]string{"PING", "PONG"})
		var last *Conn
		for _, c := range s.clients() {
			if last == nil || c.id > last.id {
				last = c
			}
		}
		raw, err := last.net.(*net.TCPConn).SyscallConn()
		require.NoError(t, err)
		get := func(level, option int) (n int) {
			require.NoError(t, raw.Control(func(fd uintptr) {
				var err error
				n, err = syscall.GetsockoptInt(int(fd), level, option)
				require.NoError(t, err)
			}))
			return n
		}
		require.Equal(t, row.on, get(syscall.SOL_SOCKET, syscall.SO_KEEPALIVE), row.seconds)
		if row.on == 1 {
			require.Equal(t, row.idle, get(syscall.IPPROTO_TCP, syscall.TCP_KEEPIDLE))
			require.Equal(t, row.each, get(syscall.IPPROTO_TCP, syscall.TCP_KEEPINTVL))
		}
	}
}
