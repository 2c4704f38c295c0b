package slotmesh

import (
	"context"
	"net"

	"github.com/slotmesh/slotmesh/store"
)

// Transport carries the connections between nodes. Package transport has two:
// TCP, with TLS if wanted, for production, and Memory, a network inside one
// process, for tests and for examples; Faults breaks either on purpose.
//
// Both methods are called from several goroutines at once. A node closes every
// connection and listener that it was given.
type Transport interface {
	// Listen opens a listener at addr. An empty host or port means any; the
	// listener's Addr().String() can be dialed, or names all interfaces.
	Listen(addr string) (net.Listener, error)

	// Dial connects to addr. It gives up when ctx is over.
	Dial(ctx context.Context, addr string) (net.Conn, error)
}

// Store keeps the data of a node. See package store, which has the contract and
// the default, and storetest, which has the tests that every store must pass.
type Store = store.Store
