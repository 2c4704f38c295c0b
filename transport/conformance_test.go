package transport_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/slotmesh/slotmesh/transport"
	"github.com/slotmesh/slotmesh/transport/transporttest"
)

func free() string     { return "" }
func loopback() string { return "127.0.0.1:0" }

func TestTransportsKeepTheContract(t *testing.T) {
	for _, c := range []struct {
		name    string
		newAddr func() string
		new     func(t testing.TB) transport.Transport
	}{
		{"tcp", loopback, func(testing.TB) transport.Transport { return transport.TCP{} }},
		{"tls", loopback, func(t testing.TB) transport.Transport { return newTLS(t) }},
		{"memory", free, func(testing.TB) transport.Transport { return transport.NewMemory() }},
		{"faults over memory", free, func(t testing.TB) transport.Transport { return newFaulty(t, transport.NewMemory()) }},
		{"faults over tcp", loopback, func(t testing.TB) transport.Transport { return newFaulty(t, transport.TCP{}) }},
		{"faults over tls", loopback, func(t testing.TB) transport.Transport { return newFaulty(t, newTLS(t)) }},
		{"faults over faults", free, func(t testing.TB) transport.Transport { return newFaulty(t, newFaulty(t, transport.NewMemory())) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			transporttest.Run(t, func(t *testing.T) (transport.Transport, func() string) { return c.new(t), c.newAddr })
		})
	}
}

// In a bubble a wait that is not durable hangs, and a goroutine that is left
// over panics.
func TestTransportsKeepTheContractInABubble(t *testing.T) {
	for _, c := range []struct {
		name string
		new  func(t testing.TB) transport.Transport
	}{
		{"memory", func(testing.TB) transport.Transport { return transport.NewMemory() }},
		{"faults", func(t testing.TB) transport.Transport { return newFaulty(t, transport.NewMemory()) }},
		{"slow faults", func(t testing.TB) transport.Transport {
			faults := transport.NewFaults(transport.NewMemory(), 1)
			t.Cleanup(func() { require.NoError(t, faults.Close()) })
			node := faults.Node("a") // a slow link to itself, both ways
			faults.Set("a", "a", transport.Link{Delay: 5 * time.Millisecond, Jitter: 5 * time.Millisecond, BytesPerSecond: 5 << 20})
			return node
		}},
	} {
		for _, check := range transporttest.Cases() {
			t.Run(c.name+"/"+check.Name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { check.Check(t, c.new(t), free) })
			})
		}
	}
}

// newFaulty returns the view of one node that talks to itself.
func newFaulty(t testing.TB, inner transport.Transport) transport.Transport {
	faults := transport.NewFaults(inner, 1)
	t.Cleanup(func() { require.NoError(t, faults.Close()) })
	return faults.Node("a")
}

// newTLS returns TCP with a certificate for loopback that both sides trust.
func newTLS(t testing.TB) transport.TCP {
	t.Helper()
	certificate, pool := selfSigned(t)
	return transport.TCP{
		ServerTLS: &tls.Config{Certificates: []tls.Certificate{certificate}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS13},
		ClientTLS: &tls.Config{Certificates: []tls.Certificate{certificate}, RootCAs: pool, MinVersion: tls.VersionTLS13},
	}
}

func selfSigned(t testing.TB) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "test"},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(time.Hour),
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
		IsCA:                  true,
		IPAddresses:           []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
		DNSNames:              []string{"localhost"},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	parsed, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	pool := x509.NewCertPool()
	pool.AddCert(parsed)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}
