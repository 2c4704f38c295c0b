package transport_test

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/slotmesh/slotmesh/transport"
)

func TestTCPSaysWhatIsWrongWithAnAddress(t *testing.T) {
	l, err := transport.TCP{}.Listen("127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	for _, c := range []struct {
		addr string
		want string
		is   error
	}{
		{"nonsense", `address "nonsense", want host:port`, nil},
		{"127.0.0.1:bus", `port "bus", want a number from 0 to 65535`, nil},
		{l.Addr().String(), l.Addr().String() + ": the address is taken, want a free one", syscall.EADDRINUSE},
		{"192.0.2.1:0", "192.0.2.1:0: the host is not an address of this machine", syscall.EADDRNOTAVAIL},
	} {
		got, err := transport.TCP{}.Listen(c.addr)
		if err == nil {
			_ = got.Close()
		}
		if err == nil || !strings.Contains(err.Error(), c.want) || c.is != nil && !errors.Is(err, c.is) {
			t.Errorf("Listen(%q) = %v, want an error with %q that is %v", c.addr, err, c.want, c.is)
		}
	}
	for addr, want := range map[string]string{
		"nonsense":    `address "nonsense", want host:port`,
		":7000":       "names no host",
		"127.0.0.1:0": "want a number from 1 to 65535",
	} {
		if _, err := (transport.TCP{}).Dial(t.Context(), addr); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Dial(%q) = %v, want an error with %q", addr, err, want)
		}
	}
}

func TestTCPWithHalfOfItsTLSRefusesToSpeakInTheClear(t *testing.T) {
	full := newTLS(t)
	if full.Secure() != true || (transport.TCP{}).Secure() || (transport.TCP{ClientTLS: full.ClientTLS}).Secure() {
		t.Error("Secure is not whether both sides use TLS")
	}
	for _, c := range []struct {
		name         string
		tcp          transport.TCP
		listen, dial string
	}{
		{"client only", transport.TCP{ClientTLS: full.ClientTLS}, "ClientTLS is set and ServerTLS is not", ""},
		{"server only", transport.TCP{ServerTLS: full.ServerTLS}, "", "ServerTLS is set and ClientTLS is not"},
		{"no certificate", transport.TCP{ServerTLS: &tls.Config{}}, "ServerTLS has no certificate", "ServerTLS is set and ClientTLS is not"},
	} {
		l, err := c.tcp.Listen("127.0.0.1:0")
		if err == nil {
			defer l.Close()
		}
		if (err == nil) != (c.listen == "") || err != nil && !strings.Contains(err.Error(), c.listen) {
			t.Errorf("%s: Listen = %v, want %q", c.name, err, c.listen)
		}
		if c.dial != "" {
			if _, err := c.tcp.Dial(t.Context(), "127.0.0.1:1"); err == nil || !strings.Contains(err.Error(), c.dial) {
				t.Errorf("%s: Dial = %v, want %q", c.name, err, c.dial)
			}
		}
	}
}

// A mix-up of certificates or of TLS and plain TCP must end in an error on both
// sides, and soon.
func TestTLSMixUpsEndInErrors(t *testing.T) {
	ours, theirs, plain := newTLS(t), newTLS(t), transport.TCP{}
	noClientCert := transport.TCP{ServerTLS: ours.ServerTLS, ClientTLS: &tls.Config{RootCAs: ours.ClientTLS.RootCAs}}
	oldVersion := transport.TCP{ServerTLS: ours.ServerTLS, ClientTLS: &tls.Config{RootCAs: ours.ClientTLS.RootCAs, MaxVersion: tls.VersionTLS12, Certificates: ours.ClientTLS.Certificates}}
	for _, c := range []struct {
		name           string
		server, client transport.TCP
	}{
		{"a certificate that the client does not trust", theirs, ours},
		{"no client certificate", ours, noClientCert},
		{"a version that is too old", ours, oldVersion},
		{"TLS to plain", plain, ours},
		{"plain to TLS", ours, plain},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, err := c.server.Listen("127.0.0.1:0")
			require.NoError(t, err)
			defer l.Close()
			var wg sync.WaitGroup
			defer wg.Wait()
			wg.Go(func() {
				if err := readOne(l.Accept()); err == nil {
					t.Error("the server read a byte")
				}
			})
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			client, err := c.client.Dial(ctx, l.Addr().String())
			if err == nil {
				_, _ = client.Write([]byte("no TLS hello\r\n"))
			}
			if err := readOne(client, err); err == nil {
				t.Error("the client read a byte")
			}
			if ctx.Err() != nil {
				t.Error("it took the context to end it")
			}
		})
	}
}

// readOne reads a byte that makes sense under a deadline, and closes.
func readOne(c net.Conn, err error) error {
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return err
	}
	p := make([]byte, 1)
	if _, err := c.Read(p); err != nil {
		return err
	}
	if p[0] == 22 || p[0] == 21 {
		return errors.New("a TLS record in the clear")
	}
	return nil
}

func TestTLSDialEndsWithItsContextWhenTheServerIsSilent(t *testing.T) {
	l, err := transport.TCP{}.Listen("127.0.0.1:0") // accepts, and never says a word
	require.NoError(t, err)
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = newTLS(t).Dial(ctx, l.Addr().String())
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

func TestTLSAcceptIsNotHeldUpByASilentClient(t *testing.T) {
	secure := newTLS(t)
	l, err := secure.Listen("127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	silent, err := transport.TCP{}.Dial(t.Context(), l.Addr().String())
	require.NoError(t, err)
	defer silent.Close()
	first, err := l.Accept()
	require.NoError(t, err)
	defer first.Close()

	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		c, err := secure.Dial(t.Context(), l.Addr().String())
		if err != nil {
			t.Errorf("Dial = %v", err)
			return
		}
		defer c.Close()
		if _, err := c.Write([]byte("x")); err != nil {
			t.Errorf("Write = %v", err)
		}
	})
	require.NoError(t, readOne(l.Accept()))
}
