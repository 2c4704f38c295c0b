package resp

import (
	"context"
	"net"
	"time"
)

// Clients that do nothing for longer than the setting timeout allows are closed,
// and the network looks after those whose machine has gone without a word:
// tcp-keepalive.

const idleLook = time.Second // between two looks at all clients, while there is a timeout

// idle is what is known of a connection's idleness, by closeIdle alone.
type idle struct {
	read  int64     // bytes that had come from the client at the last look
	since time.Time // when more had come, seen at a look
}

// closeIdle closes idle clients until ctx is over. While there is no timeout it
// sleeps. A look costs a few words per client.
func (s *Server) closeIdle(ctx context.Context) {
	looks := time.NewTicker(idleLook)
	defer looks.Stop()
	for {
		if s.settings.timeout.Load() == 0 {
			looks.Stop()
		} else {
			looks.Reset(idleLook)
		}
		select {
		case <-s.settings.timeoutSet:
			continue
		case <-looks.C:
		case <-ctx.Done():
			return
		}
		timeout, now := time.Duration(s.settings.timeout.Load())*time.Second, time.Now()
		for _, c := range s.clients() {
			if timeout > 0 && c.idleFor(now) > timeout {
				s.log.Info("Closing idle client", "client", c.net.RemoteAddr())
				c.cut()
			}
		}
	}
}

// idleFor is for how long a client has neither sent anything nor been answered: 0
// for one that may be silent, since it listens or waits, or for which something runs.
func (c *Conn) idleFor(now time.Time) time.Duration {
	if read := c.socket.read.Load(); read != c.idle.read || c.idle.since.IsZero() {
		c.idle.read, c.idle.since = read, now
	}
	if c.inPubSub() || c.blocked.Load() != nil || !c.writeMu.TryLock() {
		return 0
	}
	c.writeMu.Unlock()
	since := c.idle.since
	if last := time.UnixMilli(c.lastAt.Load()); last.After(since) {
		since = last
	}
	return now.Sub(since)
}

// keepAlive has the network ask a client that is silent for so many seconds whether
// it is there, as redis-server sets it: three times, a third of it apart. 0: never.
func keepAlive(nc net.Conn, seconds int64) {
	if wrapped, ok := nc.(interface{ NetConn() net.Conn }); ok {
		nc = wrapped.NetConn() // of TLS
	}
	if tcp, ok := nc.(*net.TCPConn); ok {
		tcp.SetKeepAliveConfig(net.KeepAliveConfig{
			Enable: seconds > 0, Idle: time.Duration(seconds) * time.Second,
			Interval: time.Duration(max(seconds/3, 1)) * time.Second, Count: 3,
		})
	}
}
