package slotmesh

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slotmesh/slotmesh/internal/racing"
	"github.com/slotmesh/slotmesh/transport"
	"github.com/stretchr/testify/require"
)

// connect opens a connection to a node as a stranger does.
func connect(t *testing.T, n *node) net.Conn {
	t.Helper()
	conn, err := n.cfg.Transport.Dial(t.Context(), n.Addr())
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	return conn
}

// state is what the links of a node hold.
func (ls *links) held() (pending, conns int) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return ls.pending, len(ls.conns)
}

func helloFrame(t *testing.T, change func(h *hello)) []byte {
	t.Helper()
	h := hello{Magic: helloMagic, Version: protocolVersion, Role: uint8(roleControl), From: sender{ID: NodeID{9}, Key: 9, Addr: "x:1", Shard: ShardID{9}}}
	change(&h)
	var b bytes.Buffer
	require.NoError(t, writeHello(&b, &h))
	return b.Bytes()
}

func TestAHandshakeThatIsNoneEndsTheConnection(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		nodes := formNodes(t, newFaults(t), 2, Config{})
		n := nodes[0]
		_, before := n.links.held()
		for name, b := range map[string][]byte{
			"http":          []byte("GET / HTTP/1.1\r\n\r\n"),
			"tls":           {0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01, 0xfc},
			"another magic": helloFrame(t, func(h *hello) { h.Magic++ }),
			"a version":     helloFrame(t, func(h *hello) { h.Version++ }),
			"a role":        helloFrame(t, func(h *hello) { h.Role = 7 }),
			"giant":         {0x7f, 0xff, 0xff, 0xff, helloKind},
			"too large":     append([]byte{0, 0, 0x20, 0, helloKind}, make([]byte, 0x1fff)...),
			"a heartbeat":   {0, 0, 0, 1, byte(msgHeartbeat)},
			"nothing in it": {0, 0, 0, 1, helloKind},
			"length 0":      {0, 0, 0, 0, helloKind},
			"nested deep":   append([]byte{0, 0, 4, 1, helloKind}, bytes.Repeat([]byte{0x91}, 0x400)...),
			"a bomb":        {0, 0, 0, 6, helloKind, 0xdd, 0xff, 0xff, 0xff, 0xff},
		} {
			conn := connect(t, n)
			_, err := conn.Write(b)
			require.NoError(t, err, name)
			began := time.Now()
			got, _ := io.ReadAll(conn)
			require.Empty(t, got, name)
			require.Zero(t, time.Since(began), "%s: it is refused at once", name)
		}
		synctest.Wait()
		pending, conns := n.links.held()
		require.Zero(t, pending)
		require.Equal(t, before, conns)
		require.NoError(t, nodes[1].Client().Set(t.Context(), keyOf(n, 0), nil))
	})
}

// Whoever connects and says nothing, or half of something, has five seconds; and
// there is a bound on how many may.
func TestHalfOpenConnectionsAreBoundedInNumberAndTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		nodes := formNodes(t, newFaults(t), 2, Config{})
		n := nodes[0]
		whole := helloFrame(t, func(*hello) {})
		var conns []net.Conn
		for i := range 2 * handshakesMax {
			conn := connect(t, n)
			_, err := conn.Write(whole[:i%len(whole)])
			require.NoError(t, err)
			conns = append(conns, conn)
		}
		synctest.Wait()
		pending, _ := n.links.held()
		require.Equal(t, handshakesMax, pending)
		for _, conn := range conns[handshakesMax:] {
			_, err := conn.Read(make([]byte, 1))
			require.ErrorIs(t, err, io.EOF, "one too many is closed at once")
		}
		began := time.Now()
		for _, conn := range conns[:handshakesMax] {
			_, err := conn.Read(make([]byte, 1))
			require.ErrorIs(t, err, io.EOF)
		}
		require.LessOrEqual(t, time.Since(began), handshakeTimeout)
		synctest.Wait()
		pending, _ = n.links.held()
		require.Zero(t, pending)
		isReady(t, nodes[1])
	})
}

// After its handshake a stranger may say what it likes: it changes nothing.
func TestNonsenseOverAControlConnectionChangesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		nodes := formNodes(t, newFaults(t), 2, Config{})
		n := nodes[0]
		members := func() (ids []NodeID) {
			for _, info := range n.Table().Nodes() {
				ids = append(ids, info.ID)
			}
			return ids
		}
		before := members()
		own := n.Table().Slots(n.ID())
		rnd := rand.New(rand.NewPCG(1, 2))
		for i := range 300 {
			conn := connect(t, n)
			_, err := conn.Write(helloFrame(t, func(h *hello) { h.From.ID, h.From.Cluster = NodeID{byte(i), 1}, n.who.Load().Cluster }))
			require.NoError(t, err)
			_, err = readHello(conn)
			require.NoError(t, err)
			kind := byte(1 + i%int(numMsgKinds+3))
			payload := make([]byte, rnd.IntN(60))
			for j := range payload {
				payload[j] = byte(rnd.Uint32())
			}
			switch i % 3 {
			case 0: // a message that is none
				_, err = conn.Write(appendBulk(nil, kind, payload))
			case 1: // that is longer than any may be
				_, err = conn.Write([]byte{0xff, 0xff, 0xff, 0xff, kind})
			default: // that ends too soon
				_, err = conn.Write(appendBulk(nil, kind, payload)[:5+len(payload)/2])
				conn.Close()
			}
			require.NoError(t, err)
			if i%3 < 2 {
				_, _ = io.Copy(io.Discard, conn)
			}
		}
		time.Sleep(driverNT)
		require.Equal(t, before, members())
		require.Equal(t, own, nodes[1].Table().Slots(n.ID()))
		isReady(t, n)
		pending, _ := n.links.held()
		require.Zero(t, pending)
	})
}

// A peer that reads nothing costs a queue of bounded length, and its connection.
func TestAPeerThatReadsNoMessagesIsHungUpOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		nodes := formNodes(t, newFaults(t), 2, Config{})
		var l *link
		until(t, driverNT, "it is not the link of its node", func() bool {
			// Both may renew their links yet, for what they are has changed; in calm nobody dials.
			shake(t, nodes[0], nodes[1], roleControl)
			synctest.Wait()
			nodes[0].links.mu.Lock()
			defer nodes[0].links.mu.Unlock()
			l = nodes[0].links.liveLink(nodes[1].ID(), roleControl)
			return l != nil
		})
		large := &updateMsg{Peers: make([]peerEntry, 400)}
		began := time.Now()
		for !l.isDead() && time.Since(began) < time.Minute {
			for range 10 {
				l.send(large)
			}
			l.mu.Lock()
			queued := len(l.queue)
			l.mu.Unlock()
			require.LessOrEqual(t, queued, linkQueueMax)
			time.Sleep(driverNT / 20)
		}
		require.True(t, l.isDead())
		isReady(t, nodes[0])
		isReady(t, nodes[1])
	})
}

// Whatever a node is about, Close ends it: a bubble does not end before its last
// goroutine.
func TestCloseAtAnyMoment(t *testing.T) {
	t.Parallel()
	for seed := range uint64(racing.Fewer(40, 5)) {
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 3))
			f := newFaults(t)
			seeds := []string{"a:1", "b:1", "c:1"}
			var nodes []*node
			for i, addr := range seeds {
				c := Config{Addr: addr, Seeds: seeds, Primaries: 3, Transport: f.Node(addr[:1]), NodeTimeout: driverNT}
				if seed%2 == 0 {
					c.Dir = fmt.Sprint(t.TempDir(), i)
				}
				nodes = append(nodes, startNode(t, c))
			}
			f.SetBoth("a", "b", transport.Link{Delay: time.Duration(rnd.IntN(50)) * time.Millisecond})
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			var wg sync.WaitGroup
			for i, n := range nodes {
				wg.Go(func() { _ = n.Ready(ctx) })
				wg.Go(func() { // callers
					for j := 0; n.ctx.Err() == nil && ctx.Err() == nil; j++ {
						call, done := context.WithTimeout(ctx, driverNT)
						_, _ = n.Client().Incr(call, fmt.Sprint("k", j%50), 1)
						done()
						time.Sleep(5 * time.Millisecond)
					}
				})
				wg.Go(func() { // an operator
					_ = n.Ready(ctx)
					for j := 0; n.ctx.Err() == nil && ctx.Err() == nil; j++ {
						call, done := context.WithTimeout(ctx, driverNT)
						switch (j + i) % 5 {
						case 0:
							_ = n.Admin().MoveSlots(call, n.Table().Slots(n.ID()), nodes[(i+1)%3].ID())
						case 1:
							_ = n.Admin().Reset(call, j%2 == 0)
						case 2:
							_, _ = n.Leave(call)
						case 3:
							_ = n.Admin().BumpEpoch(call)
						default:
							_ = n.Admin().Meet(call, seeds[(i+1)%3])
						}
						done()
						time.Sleep(time.Millisecond)
					}
				})
				wg.Go(func() {
					for range n.Events(ctx, 1) {
					}
				})
			}
			for _, i := range rnd.Perm(3) {
				time.Sleep(time.Duration(rnd.IntN(3000)) * time.Millisecond)
				for range 2 {
					wg.Go(func() {
						if err := nodes[i].Close(); err != nil {
							t.Error(err)
						}
					})
				}
			}
			time.Sleep(driverNT)
			cancel()
			wg.Wait()
		})
	}
}

// A node that votes leaves once others do without it.
func TestAVoterLeaves(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		nodes := formNodes(t, newFaults(t), 4, Config{})
		var voter *node
		for _, n := range nodes {
			if info := n.engine.view.Load().self; info.Voter {
				voter = n
			}
		}
		rest := nodes[:0:0]
		for _, n := range nodes {
			if n != voter {
				rest = append(rest, n)
			}
		}
		key := keyOf(voter, 0)
		require.NoError(t, voter.Client().Set(t.Context(), key, []byte("v")))
		_, err := voter.Leave(t.Context())
		require.ErrorIs(t, err, ErrRefused)
		require.NoError(t, voter.Admin().MoveSlots(t.Context(), voter.Table().Slots(voter.ID()), rest[0].ID()))
		report, err := voter.Leave(t.Context())
		require.NoError(t, err)
		require.True(t, report.Voted)
		require.Positive(t, report.Took)
		for _, n := range rest {
			until(t, driverNT, "it has not left", func() bool { return len(n.Table().Nodes()) == 3 && n.Status().Ready })
			require.NotContains(t, n.Status().Voters, voter.ID())
			require.Len(t, n.Status().Voters, 3)
			v, err := n.Client().Get(t.Context(), key)
			require.NoError(t, err)
			require.Equal(t, "v", string(v))
		}
		require.NoError(t, voter.Close())
		require.NoError(t, rest[1].Client().Set(t.Context(), key, nil))
	})
}

// Until its start is saved nobody is to hear who a node is: it may have to be another
// start that says so.
func TestANodeWhoseStartIsNotSavedKeepsQuiet(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		nodes := formNodes(t, newFaults(t), 2, Config{})
		a, b := nodes[0], nodes[1]
		key := keyOf(b, 0)
		who := a.who.Swap(nil)
		ours, theirs := net.Pipe()
		defer theirs.Close()
		require.True(t, a.links.track(ours))
		require.True(t, a.links.begin())
		a.links.serve(ours)
		_, err := theirs.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF)
		_, err = a.data.open(b.Table().Nodes()[0])
		require.ErrorIs(t, err, errNotSaved)
		_, err = a.Publish(t.Context(), "news", nil)
		require.NoError(t, err)
		f := newFollowing(a.repl, &logRole{primary: b.ID()})
		require.ErrorIs(t, f.connect(), errNotSaved)
		a.who.Store(who)
		require.NoError(t, a.Client().Set(t.Context(), key, nil))
	})
}

// Addresses that nobody answers at do not keep the others from being dialed.
func TestAddressesThatFailedAreForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, Config{Addr: "a:1", Transport: transport.NewMemory()})
		ls := n.links
		ls.mu.Lock()
		defer ls.mu.Unlock()
		for i := range connsMax {
			ls.dials[dialKey{fmt.Sprint("gone:", i), roleBeat}] = &dialState{until: time.Now().Add(time.Duration(i) * time.Millisecond)}
		}
		ls.dials[dialKey{"gone:0", roleBeat}].running = true
		time.Sleep(time.Second)
		ls.forgetDials()
		require.Len(t, ls.dials, connsMax-1000, "those that might be dialed again, and are not just now")
		require.NotContains(t, ls.dials, dialKey{"gone:999", roleBeat})
		require.Contains(t, ls.dials, dialKey{"gone:0", roleBeat})
	})
}

// Heartbeats have a connection of their own: one for control messages that stands
// still holds none of them up, and one that has nothing to say stays.
func TestHeartbeatsHaveAConnectionOfTheirOwn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		nodes := formNodes(t, newFaults(t), 2, Config{})
		a, b := nodes[0], nodes[1]
		link := func(role linkRole) *link {
			a.links.mu.Lock()
			defer a.links.mu.Unlock()
			return a.links.liveLink(b.ID(), role)
		}
		require.NoError(t, a.Admin().BumpEpoch(t.Context()))
		control, beats := link(roleControl), link(roleBeat)
		require.NotNil(t, control)
		require.NotNil(t, beats)
		time.Sleep(2 * linkIdle * driverNT)
		require.Same(t, control, link(roleControl), "idle, and its node lives")
		require.Same(t, beats, link(roleBeat))

		control.mu.Lock() // its writer, its queue: all of it
		sent := a.links.traffic.sent[msgHeartbeat].Load()
		time.Sleep(10 * driverNT)
		require.Greater(t, a.links.traffic.sent[msgHeartbeat].Load(), sent+10)
		require.True(t, b.Status().OK)
		control.mu.Unlock()
	})
}

func TestAnIdleConnectionOfNobodyIsClosed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, Config{Addr: "a:1", Transport: transport.NewMemory(), NodeTimeout: driverNT})
		for _, role := range []linkRole{roleControl, roleBeat} {
			conn := connect(t, n)
			_, err := handshake(conn, true, role, &sender{ID: NodeID{9}, Key: 9, Addr: "x:1", Shard: ShardID{9}}, wanted{})
			require.NoError(t, err)
			began := time.Now()
			_, err = io.Copy(io.Discard, conn)
			require.NoError(t, err)
			require.LessOrEqual(t, time.Since(began), (linkIdle+1)*driverNT)
		}
	})
}
