package resp

import (
	"bytes"
	"io"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slotmesh/slotmesh"
	"github.com/stretchr/testify/require"
)

// With timeout a client that does nothing is closed; one that listens, waits, or is
// sending something is not, as in Redis.
func TestIdleClientsAreClosed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFronts(t)
		f.start(slotmesh.Config{})
		require.NoError(t, f.nodes[0].Ready(t.Context()))
		idle, listens, waits, sends, works := f.dial(0), f.dial(0), f.dial(0), f.dial(0), f.dial(0)
		never := f.dial(0) // has not even said PING
		works.check([2]string{"CONFIG SET timeout 5", "OK"})
		idle.check([2]string{"PING", "PONG"})
		listens.check([2]string{"SUBSCRIBE news", "[subscribe news 1]"})
		waits.send("BLPOP q 0")
		send := func(b string) {
			_, err := io.WriteString(sends.nc, b)
			require.NoError(t, err)
		}
		send("*2\r\n$4\r\nECHO\r\n$20\r\n")
		for range 20 {
			time.Sleep(time.Second)
			works.check([2]string{"PING", "PONG"})
			send("x")
		}
		send("\r\n")
		require.Equal(t, "xxxxxxxxxxxxxxxxxxxx", sends.read())
		require.True(t, idle.closed())
		require.True(t, never.closed())
		works.check([][2]string{{"PUBLISH news x", "1"}, {"RPUSH q v", "1"}}...)
		require.Equal(t, "[message news x]", listens.read())
		require.Equal(t, "[q v]", waits.read())

		works.check([2]string{"CONFIG SET timeout 0", "OK"})
		time.Sleep(time.Minute)
		works.check([2]string{"PING", "PONG"})
		require.Len(t, f.servers[0].clients(), 4, "those that were there still")
	})
}

// Who logs out by RESET has as long to log in again as at first.
func TestResetLeavesNobodyThere(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFronts(t)
		f.start(slotmesh.Config{})
		require.NoError(t, f.nodes[0].Ready(t.Context()))
		stays, goes := f.dial(0), f.dial(0)
		stays.check([2]string{"CONFIG SET requirepass secret", "OK"})
		time.Sleep(time.Minute)
		goes.check([][2]string{{"RESET", "RESET"}, {"PING", string(errNoAuth)}}...)
		stays.check([][2]string{{"RESET", "RESET"}, {"AUTH secret", "OK"}}...)
		began := time.Now()
		_, err := goes.r.ReadByte()
		require.ErrorIs(t, err, io.EOF)
		require.Equal(t, Limits{}.withDefaults().PreAuthTime, time.Since(began))
		time.Sleep(time.Minute)
		stays.check([2]string{"PING", "PONG"})
	})
}

// lockedLog is what has been logged.
type lockedLog struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lockedLog) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// What has no effect is named as a warning, at the start and by CONFIG SET; what has
// one, or is as it would be anyway, is not.
func TestSettingsWithoutEffectAreWarnedOf(t *testing.T) {
	log := &lockedLog{}
	s := startServer(t, func(cfg *Config) {
		cfg.Logger = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelWarn}))
		cfg.Settings = map[string]string{"maxmemory": "1048576", "notify-keyspace-events": "KEA", "hz": "10", "save": "", "timeout": "60", "port": "7000"}
	})
	require.Contains(t, log.text(), `level=WARN msg="settings are kept and shown, and have no effect here" names="maxmemory notify-keyspace-events"`)
	c := dial(t, s)
	c.check([][2]string{{"CONFIG SET client-output-buffer-limit normal", "OK"}, {"CONFIG SET tcp-keepalive 10", "OK"}}...)
	require.Contains(t, log.text(), "no effect here\" name=client-output-buffer-limit")
	require.NotContains(t, log.text(), "tcp-keepalive")
}
