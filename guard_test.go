package slotmesh

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slotmesh/slotmesh/store"
	"github.com/slotmesh/slotmesh/transport"
	"github.com/stretchr/testify/require"
)

// badStore misbehaves in one call, as long as it is told to.
type badStore struct {
	*store.Memory
	bad *atomic.Pointer[string]
}

var errStore = errors.New("the disk is on fire")

func (s badStore) does(what string) bool { b := s.bad.Load(); return b != nil && *b == what }

func (s badStore) fail(call string) error {
	if s.does(call + " panics") {
		panic("out of cheese")
	}
	if s.does(call + " fails") {
		return errStore
	}
	return nil
}

func (s badStore) Apply(slot uint16, ops []store.Op) error {
	if err := s.fail("Apply"); err != nil {
		return err
	}
	return s.Memory.Apply(slot, ops)
}

func (s badStore) Get(slot uint16, key, field string) (store.Entry, bool, error) {
	if err := s.fail("Get"); err != nil {
		return store.Entry{}, false, err
	}
	return s.Memory.Get(slot, key, field)
}

func (s badStore) Scan(slot uint16, cursor uint64, limit int) ([]store.Item, uint64, error) {
	if err := s.fail("Scan"); err != nil {
		return nil, 0, err
	}
	return s.Memory.Scan(slot, cursor, limit)
}

func (s badStore) Len(slot uint16) (int, error) {
	if s.does("Len is negative") {
		return -3, nil
	}
	if err := s.fail("Len"); err != nil {
		return 0, err
	}
	return s.Memory.Len(slot)
}

func (s badStore) Drop(slot uint16) error {
	if err := s.fail("Drop"); err != nil {
		return err
	}
	return s.Memory.Drop(slot)
}

// A store that fails or panics makes the call fail that needed it, with its words
// and the outcome, and nothing else: the slot serves on, and the node closes.
func TestAStoreThatMisbehaves(t *testing.T) {
	set := func(n *node) error { return n.Client().Set(t.Context(), "k", []byte("w")) }
	get := func(n *node) error { _, err := n.Client().Get(t.Context(), "k"); return err }
	incr := func(n *node) error { _, err := n.Client().Incr(t.Context(), "n", 1); return err }
	execute := func(n *node) error {
		return n.Execute(t.Context(), Request{Keys: []string{"k"}}, func(tx *Tx) error { _, _, err := tx.Get("k"); return err })
	}
	count := func(n *node) error { _, err := n.CountKeys(KeySlot("k")); return err }
	scan := func(n *node) error { _, _, err := n.ScanSlot(KeySlot("k"), 0, 0); return err }
	flush := func(n *node) error { return n.FlushSlot(t.Context(), KeySlot("k")) }
	for _, row := range []struct {
		bad     string
		call    func(n *node) error
		want    string
		outcome Outcome
	}{
		{"Apply fails", set, "the disk is on fire (not executed)", NotExecuted},
		{"Apply panics", set, "Apply panicked: out of cheese (unknown)", Unknown},
		{"Apply panics", incr, "Apply panicked: out of cheese (unknown)", Unknown},
		{"Apply panics", flush, "Apply panicked: out of cheese (unknown)", Unknown},
		{"Get fails", get, "the disk is on fire (not executed)", NotExecuted},
		{"Get panics", get, "Get panicked: out of cheese (not executed)", NotExecuted},
		{"Get panics", execute, "Get panicked: out of cheese (not executed)", NotExecuted},
		{"Get panics", incr, "Get panicked: out of cheese (not executed)", NotExecuted},
		{"Len is negative", count, "Len of slot 7629 is -3, expected 0 or more", NotExecuted},
		{"Len is negative", flush, "Len of slot 7629 is -3, expected 0 or more (not executed)", NotExecuted},
		{"Len panics", count, "Len panicked: out of cheese", NotExecuted},
		{"Scan panics", scan, "Scan panicked: out of cheese", NotExecuted},
		{"Scan fails", scan, "the disk is on fire", NotExecuted},
	} {
		t.Run(row.bad, func(t *testing.T) {
			st := badStore{store.NewMemory(), new(atomic.Pointer[string])}
			n := startNode(t, Config{Store: st})
			isReady(t, n)
			require.NoError(t, n.Client().Set(t.Context(), "k", []byte("v")))
			st.bad.Store(&row.bad)
			err := row.call(n)
			require.ErrorContains(t, err, row.want)
			var op *OpError
			if errors.As(err, &op) {
				require.Equal(t, row.outcome, op.Outcome)
			}
			st.bad.Store(nil)
			require.NoError(t, n.Client().Set(t.Context(), "k", []byte("x")), "the slot is not left locked")
			v, err := n.Client().Get(t.Context(), "k")
			require.NoError(t, err)
			require.Equal(t, "x", string(v))
			require.NoError(t, n.Close())
		})
	}
}

// Neither does a store bring a hand-over to hang, on whichever side, nor the
// sweeper; and what it has not taken is not moved.
func TestAHandOverMeetsAStoreThatMisbehaves(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"Apply fails", "Apply panics", "Len is negative", "Len panics", "Scan fails", "Scan panics", "Drop fails", "Drop panics"} {
		for side, name := range []string{"giver", "taker"} {
			if call, _, _ := strings.Cut(bad, " "); call != "Len" && (call == "Scan") != (name == "giver") {
				continue // it is not called on that side
			}
			synctest.Test(t, func(t *testing.T) {
				f, seeds := newFaults(t), []string{"a:1", "b:1"}
				var nodes []*node
				stores := make([]badStore, 2)
				for i := range seeds {
					stores[i] = badStore{store.NewMemory(), new(atomic.Pointer[string])}
					nodes = append(nodes, startNode(t, Config{Addr: seeds[i], Seeds: seeds, Primaries: 2, NodeTimeout: driverNT,
						Transport: f.Node(seeds[i][:1]), Store: stores[i]}))
				}
				for _, n := range nodes {
					isReady(t, n)
				}
				key := keyOf(nodes[0], 0)
				require.NoError(t, nodes[0].Client().SetFor(t.Context(), key, []byte("v"), time.Hour))
				stores[side].bad.Store(&bad)
				err := nodes[0].Admin().MoveSlots(t.Context(), slotOf(key), nodes[1].ID())
				require.ErrorIs(t, err, ErrTryAgain, "%s at the %s", bad, name)
				require.Equal(t, nodes[0].ID(), ownerOf(nodes[0], key), "%s at the %s", bad, name)
				stores[side].bad.Store(nil)
				require.NoError(t, nodes[0].Admin().MoveSlots(t.Context(), slotOf(key), nodes[1].ID()), "%s at the %s", bad, name)
				v, err := nodes[0].Client().Get(t.Context(), key)
				require.NoError(t, err)
				require.Equal(t, "v", string(v))
			})
		}
	}
}

// badTransport misbehaves in one call.
type badTransport struct {
	Transport
	dialsNothing, listensNothing, namesNothing bool
	accept                                     func(net.Listener) (net.Conn, error)
	accepts                                    atomic.Int64
}

func (b *badTransport) Dial(ctx context.Context, addr string) (net.Conn, error) {
	if b.dialsNothing {
		return nil, nil
	}
	return b.Transport.Dial(ctx, addr)
}

func (b *badTransport) Listen(addr string) (net.Listener, error) {
	if b.listensNothing {
		return nil, nil
	}
	l, err := b.Transport.Listen(addr)
	return &badListener{l, b}, err
}

type badListener struct {
	net.Listener
	b *badTransport
}

func (l *badListener) Addr() net.Addr {
	if l.b.namesNothing {
		return nil
	}
	return l.Listener.Addr()
}

func (l *badListener) Accept() (net.Conn, error) {
	l.b.accepts.Add(1)
	if l.b.accept != nil {
		return l.b.accept(l.Listener)
	}
	return l.Listener.Accept()
}

func TestATransportThatListensToNothingIsRefused(t *testing.T) {
	for _, b := range []*badTransport{{listensNothing: true}, {namesNothing: true}} {
		b.Transport = transport.NewMemory()
		_, err := Start(t.Context(), Config{Addr: "a:1", Transport: b, Join: true})
		require.ErrorContains(t, err, "listen at a:1: Config.Transport returned no listener, or one without an address, and no error")
	}
}

// A node whose transport misbehaves is alone, at no great cost, and closes.
func TestATransportThatMisbehaves(t *testing.T) {
	t.Parallel()
	nothing := func(net.Listener) (net.Conn, error) { return nil, nil }
	storm := func(net.Listener) (net.Conn, error) { return nil, errors.New("too many open files") }
	for name, make := range map[string]func(Transport) *badTransport{
		"Dial returns nothing":    func(tr Transport) *badTransport { return &badTransport{Transport: tr, dialsNothing: true} },
		"Accept returns nothing":  func(tr Transport) *badTransport { return &badTransport{Transport: tr, accept: nothing} },
		"Accept fails for ever":   func(tr Transport) *badTransport { return &badTransport{Transport: tr, accept: storm} },
		"Accept fails, at times":  func(tr Transport) *badTransport { return flaky(tr) },
		"nothing, a good network": func(tr Transport) *badTransport { return &badTransport{Transport: tr} },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, seeds := newFaults(t), []string{"a:1", "b:1"}
				bad := make(f.Node("a"))
				a := startNode(t, Config{Addr: "a:1", Seeds: seeds, Primaries: 2, NodeTimeout: driverNT, Transport: bad})
				b := startNode(t, Config{Addr: "b:1", Seeds: seeds, Primaries: 2, NodeTimeout: driverNT, Transport: f.Node("b")})
				time.Sleep(5 * driverNT)
				require.LessOrEqual(t, bad.accepts.Load(), int64(5*driverNT/acceptPause)+100, "it does not spin")
				switch name {
				case "Accept returns nothing", "Accept fails for ever":
					require.Positive(t, bad.accepts.Load())
				default:
					isReady(t, b)
				}
				ctx, cancel := context.WithTimeout(t.Context(), driverNT)
				defer cancel()
				if err := a.Ready(ctx); err != nil {
					require.ErrorIs(t, err, context.DeadlineExceeded)
				}
				require.NoError(t, a.Close())
				require.NoError(t, b.Close())
			})
		})
	}
}

// flaky fails every other time.
func flaky(tr Transport) *badTransport {
	n := 0
	return &badTransport{Transport: tr, accept: func(l net.Listener) (net.Conn, error) {
		if n++; n%2 == 0 {
			return nil, errors.New("too many open files")
		}
		return l.Accept()
	}}
}

// A store that panics may have made the change or not: the replicas must have what
// it has.
type panicking struct {
	*store.Memory
	at *atomic.Int32 // 1: before the change, 2: after it
}

func (s panicking) Apply(slot uint16, ops []store.Op) error {
	switch s.at.Swap(0) {
	case 1:
		panic("before")
	case 2:
		if err := s.Memory.Apply(slot, ops); err != nil {
			return err
		}
		panic("after")
	}
	return s.Memory.Apply(slot, ops)
}

func TestReplicasHaveWhatAStoreHasThatPanicked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		at := new(atomic.Int32)
		var nodes []*node
		f := newFaults(t)
		for _, on := range []string{"a", "b"} {
			nodes = append(nodes, startNode(t, Config{Addr: on + ":1", Seeds: []string{"a:1", "b:1"}, Primaries: 1, Replicas: 1, NodeTimeout: driverNT,
				Transport: f.Node(on), Store: panicking{store.NewMemory(), at}}))
		}
		for _, n := range nodes {
			isReady(t, n)
		}
		if own := nodes[0].Table().Slots(nodes[0].ID()); own.Empty() {
			nodes[0], nodes[1] = nodes[1], nodes[0]
		}
		require.NoError(t, put(nodes[0], "x", "1"))
		level(t, driverNT, nodes...)
		for i := range int32(2) {
			at.Store(1 + i)
			var op *OpError
			require.ErrorAs(t, put(nodes[0], "x", fmt.Sprint("2", i)), &op)
			require.Equal(t, Unknown, op.Outcome)
			level(t, 2*driverNT, nodes...)
			require.NoError(t, put(nodes[0], "y", fmt.Sprint(i)))
			level(t, driverNT, nodes...)
		}
	})
}
