// Package transport carries bytes between nodes.
//
//   - [TCP] is the network, with or without TLS.
//   - [Memory] is a network inside one process. It runs in a testing/synctest
//     bubble, where minutes of timeouts pass in no time.
//   - [Faults] puts partitions, delays and broken connections on top of either.
//
// Which of them a node uses is decided by the type in the program: no address
// in a configuration leads from one to another. Package transporttest holds the
// conformance suite for transports of your own.
package transport

import (
	"context"
	"net"
)

// A Transport listens and dials. Its methods may be called at any time by any
// number of goroutines. Connections and listeners keep the rules of package net:
//
//   - Reads and writes of one connection may run beside each other. A deadline
//     may be set while they are blocked, and may be in the past; the error then
//     matches os.ErrDeadlineExceeded.
//   - Close unblocks what is blocked; the error then matches net.ErrClosed. What
//     was written before it still arrives, and io.EOF after it.
//   - The address of a listener, as text, can be dialed.
type Transport interface {
	// Listen returns a listener at an address. Port 0, or an empty address,
	// stands for a free one. An address that is taken gives an error that
	// matches syscall.EADDRINUSE.
	Listen(addr string) (net.Listener, error)

	// Dial returns a connection to the listener at an address, or an error once
	// ctx is over; ctx does not bear on the connection afterwards. Where nobody
	// listens the error matches syscall.ECONNREFUSED.
	Dial(ctx context.Context, addr string) (net.Conn, error)
}

// Secure reports whether nobody outside can read or change what a transport
// carries: TLS on both sides, or no network at all. A transport says so by a
// method Secure() bool; one without it is taken to be open.
func Secure(t Transport) bool {
	s, ok := t.(interface{ Secure() bool })
	return ok && s.Secure()
}
