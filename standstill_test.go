package slotmesh

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// hangingNet is a node's transport on which one connection for data may hang, and
// whatever is dialed for data as long as it does; all others go on.
type hangingNet struct {
	Transport
	mu    sync.Mutex
	hangs [2]*hang // of what the node dials meanwhile: what it reads, what it writes
}

// hang is a time in which nothing gets through one way; nil: there is none.
type hang struct{ over chan struct{} }

// hangingConn is a connection that was dialed over a hangingNet.
type hangingConn struct {
	net.Conn
	mu       sync.Mutex
	ways     [2]*hang
	shaken   bool      // its role is known
	deadline time.Time // for reads
	closed   chan struct{}
	once     sync.Once
}

const (
	wayIn = iota
	wayOut
)

func (h *hangingNet) Dial(ctx context.Context, addr string) (net.Conn, error) {
	conn, err := h.Transport.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return &hangingConn{Conn: conn, ways: h.hangs, closed: make(chan struct{})}, nil
}

// hang makes the ways of the connection on which a replica follows its primary hang,
// and those of its next ones, until end is called.
func (h *hangingNet) hang(replica *node, ways ...int) (end func()) {
	var all [2]*hang
	for _, way := range ways {
		all[way] = &hang{make(chan struct{})}
	}
	h.mu.Lock()
	h.hangs = all
	h.mu.Unlock()
	replica.repl.mu.Lock()
	f := replica.repl.following
	replica.repl.mu.Unlock()
	f.mu.Lock()
	conn := f.conn.(*hangingConn)
	f.mu.Unlock()
	conn.mu.Lock()
	conn.ways = all
	conn.mu.Unlock()
	return func() {
		h.mu.Lock()
		h.hangs = [2]*hang{}
		h.mu.Unlock()
		for _, way := range ways {
			close(all[way].over)
		}
	}
}

// pass waits until a way is open, and fails where the connection is closed, or a
// read has waited for long enough.
func (c *hangingConn) pass(way int) error {
	c.mu.Lock()
	h, until := c.ways[way], c.deadline
	c.mu.Unlock()
	if h == nil {
		return nil
	}
	var late <-chan time.Time
	if way == wayIn && !until.IsZero() {
		t := time.NewTimer(time.Until(until))
		defer t.Stop()
		late = t.C
	}
	select {
	case <-h.over:
		return nil
	case <-c.closed:
		return net.ErrClosed
	case <-late:
		return os.ErrDeadlineExceeded
	}
}

func (c *hangingConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if late := c.pass(wayIn); late != nil {
		return 0, late
	}
	return n, err
}

func (c *hangingConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	if !c.shaken {
		c.shaken = true
		if h, err := readHello(bytes.NewReader(p)); err != nil || linkRole(h.Role) != roleData {
			c.ways = [2]*hang{}
		}
	}
	c.mu.Unlock()
	if err := c.pass(wayOut); err != nil {
		return 0, err
	}
	return c.Conn.Write(p)
}

func (c *hangingConn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	c.deadline = t
	c.mu.Unlock()
	return c.Conn.SetReadDeadline(t)
}

func (c *hangingConn) SetDeadline(t time.Time) error {
	c.mu.Lock()
	c.deadline = t
	c.mu.Unlock()
	return c.Conn.SetDeadline(t)
}

func (c *hangingConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// formHanging is formShard on a network on which the connections of one replica,
// which is returned second, may hang.
func formHanging(t *testing.T, count int, cfg Config) ([]*node, *hangingNet) {
	t.Helper()
	f := newFaults(t)
	var seeds []string
	for i := range count {
		seeds = append(seeds, fmt.Sprintf("%c:1", 'a'+i))
	}
	var nodes []*node
	nets := map[*node]*hangingNet{}
	for i := range count {
		c, h := cfg, &hangingNet{Transport: f.Node(seeds[i][:1])}
		c.Addr, c.Transport, c.Seeds, c.Primaries, c.Replicas, c.NodeTimeout = seeds[i], h, seeds, 1, count-1, driverNT
		n := startNode(t, c)
		nodes, nets[n] = append(nodes, n), h
	}
	for _, n := range nodes {
		isReady(t, n)
	}
	for i, n := range nodes {
		if own := n.Table().Slots(n.ID()); !own.Empty() {
			nodes[0], nodes[i] = nodes[i], nodes[0]
		}
	}
	until(t, 2*driverNT, "all in sync", func() bool { return len(nodes[0].Status().Replication.InSync) == count })
	return nodes, nets[nodes[1]]
}

var hangs = []struct {
	name string
	ways []int
}{{"what the primary sends", []int{wayIn}}, {"what the replica acknowledges", []int{wayOut}}, {"both", []int{wayIn, wayOut}}}

// A replica that is heard, and whose connection for the log hangs, holds nobody
// up for long, and is back once it has caught up.
func TestAReplicaWhoseLogHangsIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	for _, row := range hangs {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				nodes, h := formHanging(t, 3, Config{AckReplicas: 1})
				a, b := nodes[0], nodes[1]
				require.NoError(t, put(a, "x", "1"))
				end := h.hang(b, row.ways...)
				began := time.Now()
				require.NoError(t, put(a, "x", "2"), "with the other replica")
				require.GreaterOrEqual(t, time.Since(began), driverNT*4/10, "it was not waited for at all")
				require.Less(t, time.Since(began), driverNT*7/10)
				for i := range 300 {
					began := time.Now()
					require.NoError(t, put(a, fmt.Sprint("key", i), "v"))
					require.Less(t, time.Since(began), driverNT/20)
					require.NotContains(t, a.Status().Replication.InSync, b.ID())
					time.Sleep(driverNT / 100)
				}
				for _, n := range a.Table().Nodes() {
					require.False(t, n.Silent, "its heartbeats come")
				}
				end()
				until(t, 2*driverNT, "it is in sync again", func() bool { return len(a.Status().Replication.InSync) == 3 })
				level(t, driverNT, nodes...)
			})
		})
	}
}

// A strict write that has run when the replicas that it needs are lost is not
// acknowledged; the next ones are refused.
func TestAStrictWriteIsNotAcknowledgedWithoutItsReplicas(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		nodes, h := formHanging(t, 2, Config{AckReplicas: 1})
		a, b := nodes[0], nodes[1]
		require.NoError(t, put(a, "x", "1"))
		end := h.hang(b, wayIn, wayOut)
		began := time.Now()
		var op *OpError
		require.ErrorAs(t, put(a, "x", "2"), &op)
		require.Equal(t, Unknown, op.Outcome)
		require.LessOrEqual(t, time.Since(began), driverNT)
		require.ErrorAs(t, put(a, "x", "3"), &op)
		require.ErrorIs(t, op, ErrNoReplicas)
		require.Equal(t, NotExecuted, op.Outcome)
		end()
		until(t, 2*driverNT, "writes go on", func() bool { return put(a, "x", "4") == nil })
		level(t, driverNT, nodes...)
	})
}

// formTwoHanging makes two shards of two: a primary and its replica, with the network of
// that one, and the primary of the other shard.
func formTwoHanging(t *testing.T, cfg Config) (p, r, other *node, net *hangingNet) {
	t.Helper()
	f := newFaults(t)
	seeds := []string{"a:1", "b:1", "c:1", "d:1"}
	nodes, nets := map[NodeID]*node{}, map[NodeID]*hangingNet{}
	for _, at := range seeds {
		h := &hangingNet{Transport: f.Node(at[:1])}
		c := cfg
		c.Addr, c.Transport, c.Seeds, c.Primaries, c.Replicas, c.NodeTimeout = at, h, seeds, 2, 1, driverNT
		p = startNode(t, c)
		nodes[p.ID()], nets[p.ID()] = p, h
	}
	for _, n := range nodes {
		isReady(t, n)
	}
	shards := p.Table().Shards()
	r = nodes[shards[0].Replicas[0]]
	return nodes[shards[0].Primary], r, nodes[shards[1].Primary], nets[r.ID()]
}

// What is written by ASKING to a slot that a primary imports is in its shard's log: a
// plain failover loses none of it.
func TestAPlainFailoverLosesNothingOfWhatIsImported(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, r, other, net := formTwoHanging(t, Config{})
		until(t, driverNT, "its replica is in sync", func() bool { return len(p.Status().Replication.InSync) == 2 })
		key := keyOf(other, 0)
		require.NoError(t, p.Admin().SetSlotImporting(t.Context(), KeySlot(key), other.ID()))
		ask := func(value string) error {
			return p.Execute(t.Context(), Request{Keys: []string{key}, Asking: true}, func(tx *Tx) error { return tx.Put(key, []byte(value)) })
		}
		pausing := func() bool {
			p.repl.mu.Lock()
			defer p.repl.mu.Unlock()
			return len(p.repl.waiters) > 0
		}

		for _, gone := range []bool{false, true} {
			require.NoError(t, ask("before"))
			level(t, driverNT, p, r)
			acks := net.hang(r, wayOut)
			require.NoError(t, ask("first"))
			until(t, driverNT/10, "the replica has it", func() bool { return r.repl.position() == p.repl.position() })
			var wg sync.WaitGroup
			wg.Go(func() {
				if err := r.Admin().Failover(t.Context(), FailoverPlain); (err == nil) != gone {
					t.Errorf("failover: %v", err)
				}
			})
			until(t, driverNT/4, "it waits for what there is", pausing)
			entries := net.hang(r, wayIn)
			began := time.Now()
			late := make(chan error)
			wg.Go(func() { late <- ask("second") })
			synctest.Wait()
			if gone {
				acks()
				var moved *MovedError
				require.ErrorAs(t, <-late, &moved, "the replica leads, and lacks it")
				require.Equal(t, other.ID(), moved.Node)
			} else {
				require.NoError(t, <-late, "once the failover has been given up")
				require.GreaterOrEqual(t, time.Since(began), driverNT*4/10)
				acks()
			}
			wg.Wait()
			entries()
			if !gone {
				until(t, 2*driverNT, "its replica is in sync", func() bool { return len(p.Status().Replication.InSync) == 2 })
			}
		}
		e, found, err := r.cfg.Store.Get(uint16(KeySlot(key)), key, "")
		require.NoError(t, err)
		require.True(t, found)
		require.Equal(t, "first", string(e.Value))
	})
}

// Where a key has gone to another node, a strict shard sends nobody after it before its
// replicas know that it has gone: one that leads next would serve it again, and hide what
// has been written where it is.
func TestAnAskFromAStrictShardWaitsForItsReplicas(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, r, other, net := formTwoHanging(t, Config{AckReplicas: 1})
		key := keyOf(p, 0)
		require.NoError(t, put(p, key, "v"))
		require.NoError(t, p.Admin().SetSlotMigrating(t.Context(), KeySlot(key), other.ID()))
		entries := net.hang(r, wayIn)
		began := time.Now()
		var wg sync.WaitGroup
		defer wg.Wait()
		wg.Go(func() { // as MIGRATE does once the target has it
			gone := Request{Keys: []string{key}, Anyway: true}
			_ = p.Execute(t.Context(), gone, func(tx *Tx) error { _, err := tx.Delete(key); return err })
		})
		synctest.Wait()
		wg.Go(func() {
			time.Sleep(driverNT / 10)
			entries()
		})
		err := p.Execute(t.Context(), Request{Keys: []string{key}, ReadOnly: true}, func(*Tx) error { return nil })
		var ask *AskError
		require.ErrorAs(t, err, &ask)
		require.Equal(t, other.ID(), ask.Node)
		require.GreaterOrEqual(t, time.Since(began), driverNT/10, "the replica has the key still")
	})
}

// A key that was never there is looked for where the mark says. The replicas know of the
// mark before anybody is sent there: one that leads next would not send clients after what
// they have written.
func TestAnAskFromAStrictShardWaitsUntilItsReplicasKnowTheMark(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, r, other, net := formTwoHanging(t, Config{AckReplicas: 1})
		key := keyOf(p, 0)
		entries := net.hang(r, wayIn)
		began := time.Now()
		require.NoError(t, p.Admin().SetSlotMigrating(t.Context(), KeySlot(key), other.ID()))
		var wg sync.WaitGroup
		defer wg.Wait()
		wg.Go(func() {
			time.Sleep(driverNT / 10)
			entries()
		})
		err := p.Execute(t.Context(), Request{Keys: []string{key}, ReadOnly: true}, func(*Tx) error { return nil })
		var sent *AskError
		require.ErrorAs(t, err, &sent)
		require.GreaterOrEqual(t, time.Since(began), driverNT/10, "the replica does not know of the mark")
		require.Len(t, ask(t, r, (*state).sortedMarks), 1)
	})
}
