package loopback

import (
	"net"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestFreeAddrsCanBeListenedAt(t *testing.T) {
	addrs, err := FreeAddrs(20)
	require.NoError(t, err)
	require.Len(t, addrs, 20)
	for _, addr := range addrs {
		l, err := net.Listen("tcp", addr)
		require.NoError(t, err, "each is there once, and free")
		defer l.Close()
		port := l.Addr().(*net.TCPAddr).Port
		require.Less(t, port+apart, 32_768, "%s and its bus are below the ports of outgoing connections", addr)
		require.False(t, isFree(port))
		require.NotContains(t, mustAddrs(t, 20), addr)
	}
}

func mustAddrs(t *testing.T, n int) []string {
	t.Helper()
	addrs, err := FreeAddrs(n)
	require.NoError(t, err)
	return addrs
}

func TestMoreAddrsThanThereAreIsAnError(t *testing.T) {
	_, err := FreeAddrs(tries + 1)
	require.ErrorContains(t, err, "found no free port from "+strconv.Itoa(lowest))
}
