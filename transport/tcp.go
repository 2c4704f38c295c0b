package transport

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"
)

// TCP is the [Transport] over TCP, with TLS where it is configured. The zero
// value is ready, in the clear. It must not be changed after its first use.
//
// Addresses are "host:port", see [CheckAddr]. Small writes leave at once (no
// Nagle's algorithm); the caller gathers what belongs together.
type TCP struct {
	// ServerTLS is what Listen serves with; nil is plain TCP. It needs a
	// certificate, and for a bus should ask for the peer's (ClientAuth). The
	// handshake runs in the first Read or Write of an accepted connection, so
	// one slow client holds up nobody's Accept; set a deadline before it.
	ServerTLS *tls.Config

	// ClientTLS is what Dial uses; nil is plain TCP. An empty ServerName stands
	// for the host that is dialed. The handshake is over when Dial returns.
	//
	// With one of the two set and the other not, the side without refuses to
	// work: bytes in the clear would be a surprise.
	ClientTLS *tls.Config

	// KeepAlive is the idle time after which TCP probes whether the peer is
	// there, and the time between two probes; three without an answer end the
	// connection. 0 is 15 s, negative is off. It finds dead peers of idle
	// connections only; heartbeats are faster.
	KeepAlive time.Duration
}

// keepAliveDefault is Go's own default.
const keepAliveDefault = 15 * time.Second

// Listen implements [Transport].
func (t TCP) Listen(addr string) (net.Listener, error) {
	if addr == "" {
		addr = ":0"
	}
	if err := CheckAddr(addr); err != nil {
		return nil, err
	}
	if err := t.checkServerTLS(); err != nil {
		return nil, err
	}
	config := net.ListenConfig{KeepAlive: t.KeepAlive, KeepAliveConfig: t.keepAlive()}
	l, err := config.Listen(context.Background(), "tcp", addr)
	if err != nil {
		return nil, explainListen(addr, err)
	}
	if t.ServerTLS != nil {
		return tls.NewListener(l, t.ServerTLS), nil
	}
	return l, nil
}

// Dial implements [Transport].
func (t TCP) Dial(ctx context.Context, addr string) (net.Conn, error) {
	if err := CheckDialAddr(addr); err != nil {
		return nil, err
	}
	dialer := &net.Dialer{KeepAlive: t.KeepAlive, KeepAliveConfig: t.keepAlive()}
	switch {
	case t.ClientTLS != nil:
		return (&tls.Dialer{NetDialer: dialer, Config: t.ClientTLS}).DialContext(ctx, "tcp", addr)
	case t.ServerTLS != nil:
		return nil, fmt.Errorf("transport: dial %s: ServerTLS is set and ClientTLS is not, want both or neither", addr)
	}
	return dialer.DialContext(ctx, "tcp", addr)
}

// Secure reports whether both sides use TLS.
func (t TCP) Secure() bool { return t.ServerTLS != nil && t.ClientTLS != nil }

// checkServerTLS finds at Listen what would otherwise fail each handshake.
func (t TCP) checkServerTLS() error {
	c := t.ServerTLS
	switch {
	case c == nil && t.ClientTLS != nil:
		return errors.New("transport: ClientTLS is set and ServerTLS is not, want both or neither where a node listens")
	case c != nil && len(c.Certificates) == 0 && c.GetCertificate == nil && c.GetConfigForClient == nil:
		return errors.New("transport: ServerTLS has no certificate, want Certificates, GetCertificate or GetConfigForClient")
	}
	return nil
}

// keepAlive returns the probes to use. With Enable false, the negative KeepAlive
// that is set beside it switches them off.
func (t TCP) keepAlive() net.KeepAliveConfig {
	every := t.KeepAlive
	if every == 0 {
		every = keepAliveDefault
	}
	return net.KeepAliveConfig{Enable: every > 0, Idle: every, Interval: every, Count: 3}
}

// explainListen says in words why an address could not be had.
func explainListen(addr string, err error) error {
	why := "want an address of this machine with a free port"
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		why = "the address is taken, want a free one"
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		why = "the host is not an address of this machine"
	case errors.Is(err, syscall.EACCES):
		why = "the port is not allowed to this process"
	}
	return fmt.Errorf("transport: listen at %s: %s: %w", addr, why, err)
}
