package compat

import (
	"context"
	"net"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/slotmesh/slotmesh"
	"github.com/slotmesh/slotmesh/resp"
)

// startRedis starts Debian's redis-server as a cluster of one that serves every
// slot, and returns its address. The process ends with the test.
func startRedis(t testing.TB, flags ...string) string {
	t.Helper()
	return launchRedis(t, func(l *link) bool {
		l.do("CLUSTER", "ADDSLOTSRANGE", "0", "16383") // refused once it has them
		info, err := l.do("CLUSTER", "INFO")
		return err == nil && len(info.items) == 0 && len(info.text) > 16 && info.text[:16] == "cluster_state:ok"
	}, append([]string{"--cluster-enabled", "yes"}, flags...)...)
}

// startRedisAlone starts one that is no cluster.
func startRedisAlone(t testing.TB) string {
	t.Helper()
	return launchRedis(t, func(l *link) bool {
		pong, err := l.do("PING")
		return err == nil && pong.text == "PONG"
	}, "--cluster-enabled", "no")
}

func launchRedis(t testing.TB, up func(l *link) bool, flags ...string) string {
	t.Helper()
	path, err := exec.LookPath("redis-server")
	require.NoError(t, err, "redis-server 7.0 is what slotmesh is compared with: apt-get install redis-server")
	port := freePort(t)
	cmd := exec.Command(path, append([]string{"--port", port, "--bind", "127.0.0.1", "--dir", t.TempDir(),
		"--save", "", "--appendonly", "no", "--daemonize", "no", "--loglevel", "warning"}, flags...)...)
	cmd.Env = append(os.Environ(), "LC_ALL=C") // SORT ALPHA compares by locale
	cmd.SysProcAttr = endWithParent()
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	addr := net.JoinHostPort("127.0.0.1", port)
	require.Eventually(t, func() bool {
		l, err := dial(addr)
		if err != nil {
			return false
		}
		defer l.close()
		return up(l)
	}, 20*time.Second, 10*time.Millisecond, "redis-server at %s did not come up", addr)
	return addr
}

// startOurs starts a node that owns every slot with the Redis protocol in front,
// in this process, and returns its address.
func startOurs(t testing.TB, limits ...resp.Limits) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	node, err := slotmesh.Start(context.Background(), slotmesh.Config{Addr: "127.0.0.1:0", ClientAddr: l.Addr().String()})
	require.NoError(t, err)
	t.Cleanup(func() { node.Close() })
	cfg := resp.Config{Node: node, Listener: l}
	for _, x := range limits {
		cfg.Limits = x
	}
	s, err := resp.Start(context.Background(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	return s.Addr().String()
}
