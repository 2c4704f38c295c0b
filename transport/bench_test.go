package transport_test

import (
	"io"
	"net"
	"sync"
	"testing"

	"github.com/slotmesh/slotmesh/transport"
)

// transports are the ones that the benchmarks compare.
func transports(b *testing.B) map[string]transport.Transport {
	return map[string]transport.Transport{
		"memory": transport.NewMemory(),
		"faults": newFaulty(b, transport.NewMemory()),
		"tcp":    transport.TCP{},
	}
}

// withEcho connects to a peer that sends back what it gets, and runs the
// benchmark on the connection.
func withEcho(b *testing.B, tr transport.Transport, run func(c net.Conn)) {
	l, err := tr.Listen("")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	c, err := tr.Dial(b.Context(), l.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	peer, err := l.Accept()
	if err != nil {
		b.Fatal(err)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer c.Close()
	wg.Go(func() {
		defer peer.Close()
		buf := make([]byte, 64<<10)
		_, _ = io.CopyBuffer(struct{ io.Writer }{peer}, struct{ io.Reader }{peer}, buf)
	})
	run(c)
}

// BenchmarkRoundTrip sends 64 bytes there and back, as a heartbeat does.
func BenchmarkRoundTrip(b *testing.B) {
	for name, tr := range transports(b) {
		b.Run(name, func(b *testing.B) {
			withEcho(b, tr, func(c net.Conn) {
				p := make([]byte, 64)
				b.ReportAllocs()
				for b.Loop() {
					if _, err := c.Write(p); err != nil {
						b.Fatal(err)
					}
					if _, err := io.ReadFull(c, p); err != nil {
						b.Fatal(err)
					}
				}
			})
		})
	}
}

// BenchmarkBulk sends frames of 64 KiB and reads their echo beside it.
func BenchmarkBulk(b *testing.B) {
	for name, tr := range transports(b) {
		b.Run(name, func(b *testing.B) {
			withEcho(b, tr, func(c net.Conn) {
				p := make([]byte, 64<<10)
				b.SetBytes(int64(len(p)))
				b.ReportAllocs()
				var wg sync.WaitGroup
				sent := 0
				for b.Loop() {
					if sent++; sent == 1 {
						wg.Go(func() { _, _ = io.Copy(io.Discard, struct{ io.Reader }{c}) })
					}
					if _, err := c.Write(p); err != nil {
						b.Fatal(err)
					}
				}
				_ = c.Close()
				wg.Wait()
			})
		})
	}
}
