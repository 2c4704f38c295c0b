package transport_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	"github.com/slotmesh/slotmesh"
	"github.com/slotmesh/slotmesh/transport"
)

// A partition is silence, as when packets are lost; what was written meanwhile
// arrives when it is over.
func ExampleFaults() {
	faults := transport.NewFaults(transport.NewMemory(), 1)
	defer faults.Close()
	a, b := faults.Node("a"), faults.Node("b") // nodes take these as Config.Transport
	l, err := b.Listen("b")
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	from, err := a.Dial(context.Background(), "b")
	if err != nil {
		log.Fatal(err)
	}
	defer from.Close()
	to, err := l.Accept()
	if err != nil {
		log.Fatal(err)
	}
	defer to.Close()

	faults.Partition([]string{"a"}, []string{"b"})
	if _, err := io.WriteString(from, "hello"); err != nil {
		log.Fatal(err)
	}
	buf := make([]byte, 5)
	if err := to.SetReadDeadline(time.Now().Add(10 * time.Millisecond)); err != nil {
		log.Fatal(err)
	}
	_, err = io.ReadFull(to, buf)
	fmt.Println(errors.Is(err, os.ErrDeadlineExceeded))

	faults.Heal()
	if err := to.SetReadDeadline(time.Time{}); err != nil {
		log.Fatal(err)
	}
	_, err = io.ReadFull(to, buf)
	fmt.Println(string(buf), err)
	// Output:
	// true
	// hello <nil>
}

// A bus with TLS on both sides: a node shows its certificate to whoever dials it
// and to whom it dials, and takes those of one authority alone. The certificate
// names the host under which others reach the node.
func ExampleTCP() {
	cert, err := tls.LoadX509KeyPair("node.crt", "node.key")
	if err != nil {
		log.Fatal(err)
	}
	authority, err := os.ReadFile("authority.crt")
	if err != nil {
		log.Fatal(err)
	}
	nodes := x509.NewCertPool()
	if !nodes.AppendCertsFromPEM(authority) {
		log.Fatal("no certificate in authority.crt")
	}
	certs := []tls.Certificate{cert}
	node, err := slotmesh.Start(context.Background(), slotmesh.Config{
		Addr: ":7946", Seeds: []string{"a:7946", "b:7946", "c:7946"}, Primaries: 3, AdvertiseAddr: "a:7946",
		Transport: transport.TCP{
			ServerTLS: &tls.Config{Certificates: certs, ClientCAs: nodes, ClientAuth: tls.RequireAndVerifyClientCert},
			ClientTLS: &tls.Config{Certificates: certs, RootCAs: nodes},
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer node.Close()
}
