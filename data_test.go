package slotmesh

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slotmesh/slotmesh/store"
	"github.com/slotmesh/slotmesh/transport"
	"github.com/stretchr/testify/require"
)

// forgetful is a network whose firewall can forget the connections that are
// there: they carry nothing any more, and nobody is told. New ones work.
type forgetful struct {
	*transport.Memory
	mu    sync.Mutex
	conns []*forgettable
}

type forgettable struct {
	net.Conn
	forgotten atomic.Bool
	closed    chan struct{}
	once      sync.Once
}

func (f *forgetful) Dial(ctx context.Context, addr string) (net.Conn, error) {
	conn, err := f.Memory.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	c := &forgettable{Conn: conn, closed: make(chan struct{})}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.conns = append(f.conns, c)
	return c, nil
}

func (f *forgetful) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.conns {
		c.forgotten.Store(true)
	}
}

func (c *forgettable) Write(b []byte) (int, error) {
	if c.forgotten.Load() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

func (c *forgettable) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.forgotten.Load() {
		<-c.closed
		return 0, net.ErrClosed
	}
	return n, err
}

func (c *forgettable) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

func TestAConnectionThatCarriesNothingAnyMoreIsMadeAnew(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		net := &forgetful{Memory: transport.NewMemory()}
		seeds := []string{"a:1", "b:1", "c:1"}
		var nodes []*node
		for _, s := range seeds {
			nodes = append(nodes, startNode(t, Config{Addr: s, Seeds: seeds, Primaries: 3, Transport: net, NodeTimeout: driverNT}))
		}
		for _, n := range nodes {
			isReady(t, n)
		}
		key := keyOf(nodes[1], 0)
		c := nodes[0].Client()
		require.NoError(t, c.Set(t.Context(), key, []byte("v")))
		net.forget()
		lost := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err := c.Set(ctx, key, []byte("w"))
		var op *OpError
		require.ErrorAs(t, err, &op)
		require.Equal(t, Unknown, op.Outcome, "nobody knows whether it has arrived")
		require.ErrorContains(t, err, "ended before the answer came")
		v, err := c.Get(ctx, key)
		require.NoError(t, err)
		require.Equal(t, "v", string(v))
		require.LessOrEqual(t, time.Since(lost), 2*nodes[0].silence())
	})
}

// A command that takes long shows that it lives: its connection is left alone.
func TestACallMayTakeLongerThanASilenceMay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		wait := Command{Name: "wait", Run: func(tx *Tx, _ [][]byte) ([]byte, error) {
			time.Sleep(5 * time.Minute)
			return []byte("done"), nil
		}}
		nodes := formNodes(t, newFaults(t), 3, Config{Commands: []Command{wait}})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		v, err := nodes[0].Client().Do(ctx, "wait", []byte(keyOf(nodes[1], 0)))
		require.NoError(t, err)
		require.Equal(t, "done", string(v))
	})
}

// One connection carries the calls of all slots of a pair of nodes.
func TestASlowCommandHoldsBackNoCallOnAnotherSlot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		running, release := make(chan struct{}), make(chan struct{})
		slow := Command{Name: "slow", Run: func(*Tx, [][]byte) ([]byte, error) {
			close(running)
			<-release
			return nil, nil
		}}
		nodes := formNodes(t, newFaults(t), 2, Config{Commands: []Command{slow}})
		c, key := nodes[0].Client(), keyOf(nodes[1], 0)
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := c.Do(t.Context(), "slow", []byte(key)); err != nil {
				t.Error(err)
			}
		})
		<-running
		for range 3 { // these wait for the slot, wherever they wait
			wg.Go(func() {
				if err := c.Set(t.Context(), key, nil); err != nil {
					t.Error(err)
				}
			})
			wg.Go(func() {
				if _, err := c.Get(t.Context(), key); err != nil && !errors.Is(err, ErrNotFound) {
					t.Error(err)
				}
			})
		}
		for i := range 20 {
			require.NoError(t, c.Set(t.Context(), keyOf(nodes[1], i+1), nil))
		}
		close(release)
		wg.Wait()
	})
}

func TestLimitsMayDifferFromNodeToNode(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ran := 0
		big := Command{Name: "big", Run: func(tx *Tx, args [][]byte) ([]byte, error) {
			ran++
			return make([]byte, 200_000), tx.Put(string(args[0]), []byte("v"))
		}}
		look := big
		look.Name, look.ReadOnly = "look", true
		look.Run = func(*Tx, [][]byte) ([]byte, error) { return make([]byte, 200_000), nil }
		f, seeds := newFaults(t), []string{"a:1", "b:1"}
		var nodes []*node
		for i, limit := range []int{0, 1000} {
			nodes = append(nodes, startNode(t, Config{Addr: seeds[i], Transport: f.Node(seeds[i][:1]), Seeds: seeds, Primaries: 2, NodeTimeout: driverNT,
				MaxValue: limit, Commands: []Command{big, look}}))
		}
		for _, n := range nodes {
			isReady(t, n)
		}
		large, small, ctx := nodes[0], nodes[1], t.Context()
		atLarge, atSmall := keyOf(large, 0), keyOf(small, 0)
		require.NoError(t, large.Client().Set(ctx, atSmall, nil)) // the connection
		conn := large.data.conns[small.ID()]

		refused := func(err error, o Outcome, text string) {
			t.Helper()
			var op *OpError
			require.ErrorAs(t, err, &op)
			require.ErrorIs(t, err, ErrTooLarge)
			require.ErrorContains(t, err, text)
			require.Equal(t, o, op.Outcome)
		}
		refused(large.Client().Set(ctx, atSmall, make([]byte, 8<<20)), NotExecuted, "frame of 83")
		refused(large.Client().Set(ctx, atSmall, make([]byte, 2000)), NotExecuted, "value of 2000 bytes, expected at most 1000")
		require.False(t, conn.ended(), "the others' calls go on")

		require.NoError(t, large.Client().Set(ctx, atLarge, make([]byte, 300_000)))
		_, err := small.Client().Get(ctx, atLarge)
		refused(err, NotExecuted, "reply of 3000")
		_, err = small.Client().Do(ctx, "look", []byte(atLarge))
		refused(err, NotExecuted, "reply of 2000")
		require.Zero(t, ran)
		_, err = small.Client().Do(ctx, "big", []byte(atLarge))
		refused(err, Executed, "reply of 2000")
		require.Equal(t, 1, ran)
		v, err := small.Client().Get(ctx, atLarge)
		require.NoError(t, err)
		require.Equal(t, "v", string(v))

		require.NoError(t, large.Client().Set(ctx, atLarge, make([]byte, 8<<20)))
		err = large.Admin().MoveSlots(ctx, slotOf(atLarge), small.ID())
		require.ErrorIs(t, err, ErrTryAgain)
		require.ErrorContains(t, err, "too large")
		require.NoError(t, large.Client().Set(ctx, atLarge, make([]byte, 900)))
		require.NoError(t, large.Admin().MoveSlots(ctx, slotOf(atLarge), small.ID()))
	})
}

// A connection may outlive what its sides were when it began.
func TestWhatAnotherClusterAsksIsNotRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		nodes := formNodes(t, newFaults(t), 3, Config{})
		key := keyOf(nodes[1], 0)
		_, err := nodes[0].Client().Delete(t.Context(), key) // opens the connection
		require.NoError(t, err)
		conn := nodes[0].data.conns[nodes[1].ID()]
		stranger := ClusterID{1}
		for name, who := range map[string]*sender{"another cluster": {Cluster: stranger}, "none": {}} {
			q := &request{id: 77, op: opSet, cluster: clusterTag(who), slot: KeySlot(key), args: [][]byte{[]byte(key), []byte("x"), []byte("0")}}
			call, _ := nodes[0].data.newCall(time.Time{})
			conn.mu.Lock()
			conn.calls[77] = call
			conn.buf = appendFrameOf(conn.buf, frameRequest, q.append)
			conn.mu.Unlock()
			signal(conn.wake)
			require.True(t, <-call.done)
			p := nodes[0].data.finish(call)
			require.Equal(t, statusTryAgain, p.status, name)
			require.Equal(t, NotExecuted, p.outcome, name)
		}
		_, err = nodes[1].Client().Get(t.Context(), key)
		require.ErrorIs(t, err, ErrNotFound)
	})
}

// A call without a deadline ends after 10 NodeTimeouts. What it waited with serves the
// next call, but not before its answer has come: that is nobody else's.
func TestACallThatIsGivenUpLeavesItsAnswerToNobody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		goOn := make(chan struct{})
		run := func(_ *Tx, args [][]byte) ([]byte, error) { <-goOn; return args[0], nil }
		nodes := formNodes(t, newFaults(t), 2, Config{Commands: []Command{{Name: "write", Run: run}, {Name: "read", ReadOnly: true, Run: run}}})
		c, quick := nodes[0].Client(), keyOf(nodes[1], 2)
		require.NoError(t, c.Set(t.Context(), quick, []byte("quick")))
		for i, row := range []struct {
			command string
			outcome Outcome
		}{
			{"write", Unknown},
			{"read", NotExecuted},
		} {
			began := time.Now()
			_, err := c.Do(t.Context(), row.command, []byte(keyOf(nodes[1], i)))
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.Equal(t, defaultLimit*driverNT, time.Since(began))
			var op *OpError
			require.ErrorAs(t, err, &op)
			require.Equal(t, row.outcome, op.Outcome)
		}
		close(goOn)
		for range 5 {
			v, err := c.Get(t.Context(), quick)
			require.NoError(t, err)
			require.Equal(t, "quick", string(v))
			synctest.Wait() // a late answer may have come
		}
	})
}

// In a bubble of fake time nobody who waits may be busy: Wait would not return.
func TestCallsThatWaitForABufferWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFaults(t)
		nodes := formNodes(t, f, 2, Config{MaxValue: 8 << 20})
		c, key := nodes[0].Client(), keyOf(nodes[1], 0)
		require.NoError(t, c.Set(t.Context(), key, nil))
		f.Set("a", "b", transport.Link{Stall: true})
		var wg sync.WaitGroup
		for range 6 {
			wg.Go(func() {
				if err := c.Set(t.Context(), key, make([]byte, 3<<20)); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		err := c.Set(ctx, key, make([]byte, 3<<20))
		var op *OpError
		require.ErrorAs(t, err, &op)
		require.Equal(t, NotExecuted, op.Outcome, "it has not left: %v", err)
		f.Heal()
		wg.Wait()
	})
}

func TestRequestsOfAConnectionWaitWithinBounds(t *testing.T) {
	var s dataServer
	for range dataWaitingMax {
		require.True(t, s.startWaiting(1))
	}
	require.False(t, s.startWaiting(1), "too many")
	for range dataWaitingMax {
		s.endWaiting(1)
	}
	require.True(t, s.startWaiting(2*dataWaitingBytes), "one alone may be of any size")
	require.False(t, s.startWaiting(1), "too many bytes")
	s.endWaiting(2 * dataWaitingBytes)
	require.True(t, s.startWaiting(dataWaitingBytes))
	s.endWaiting(dataWaitingBytes)
	require.Zero(t, s.waiting)
	require.Zero(t, s.bytes)
}

// shake opens a connection to a node as one of its peers would, and shakes hands.
func shake(t *testing.T, n, as *node, role linkRole) (net.Conn, *sender) {
	t.Helper()
	conn, err := n.cfg.Transport.Dial(t.Context(), n.Addr())
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	who := as.who.Load()
	_, err = handshake(conn, true, role, who, wanted{ID: n.ID()})
	require.NoError(t, err)
	return conn, who
}

func TestAPeerThatReadsNoRepliesIsHungUpOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		nodes := formNodes(t, newFaults(t), 2, Config{})
		key := keyOf(nodes[0], 0)
		require.NoError(t, nodes[0].Client().Set(t.Context(), key, make([]byte, 1<<20)))
		conn, who := shake(t, nodes[0], nodes[1], roleData)
		wrote := make(chan error, 1)
		go func() {
			for id := uint64(1); ; id++ {
				q := request{id: id, op: opGet, cluster: clusterTag(who), slot: KeySlot(key), args: [][]byte{[]byte(key)}}
				if _, err := conn.Write(appendFrameOf(nil, frameRequest, q.append)); err != nil {
					wrote <- err
					return
				}
			}
		}()
		began := time.Now()
		require.Error(t, <-wrote)
		require.LessOrEqual(t, time.Since(began), 2*dataWriteLimit)
		until(t, time.Second, "the node still holds the connection", func() bool {
			_, err := conn.Read(make([]byte, 1<<20))
			return err != nil
		})
	})
}

// A reply waits to be sent with the next one, of which half has come: once the lease is
// over it is not given, for another node may lead.
func TestAReplyThatIsNotOutIsNotGivenWithoutALease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, cut := range []bool{false, true} {
			nodes, f := formShardOn(t, 3, Config{})
			a := nodes[0]
			conn, who := shake(t, a, nodes[1], roleData)
			frames := []byte(nil)
			for id := range uint64(2) {
				q := request{id: id, op: opSet, cluster: clusterTag(who), slot: KeySlot("x"), args: [][]byte{[]byte("x"), {byte('0' + id)}, {'0'}}}
				frames = appendFrameOf(frames, frameRequest, q.append)
			}
			half := len(frames) * 3 / 4
			_, err := conn.Write(frames[:half])
			require.NoError(t, err)
			until(t, time.Second, "the first has run", func() bool {
				v, err := a.Client().Get(t.Context(), "x")
				return err == nil && string(v) == "0"
			})
			if cut {
				f.Partition([]string{a.addr[:1]}, []string{nodes[1].addr[:1], nodes[2].addr[:1]})
			}
			time.Sleep(2 * driverNT)
			_, err = conn.Write(frames[half:])
			require.NoError(t, err)
			for id := range uint64(2) {
				kind, payload, err := readFrame(conn, a.replyLimits, nil)
				if cut {
					require.ErrorIs(t, err, io.EOF)
					break
				}
				require.NoError(t, err)
				require.Equal(t, frameReply, kind)
				p, err := decodeResponse(payload)
				require.NoError(t, err)
				require.Equal(t, response{id: id, value: []byte{}, wrote: p.wrote}, p)
			}
		}
	})
}

func TestADataConnectionThatSendsNothingForLongIsClosed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		nodes := formNodes(t, newFaults(t), 2, Config{})
		conn, _ := shake(t, nodes[0], nodes[1], roleData)
		began := time.Now()
		_, err := conn.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF)
		require.InDelta(t, 2*dataIdle, time.Since(began), float64(dataIdle/2))
	})
}

// What no node sends ends the connection, and nothing else.
func TestADataConnectionWithNonsenseIsClosed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		nodes := formNodes(t, newFaults(t), 2, Config{})
		piece := dataPiece{job: 7, slot: 3}
		for name, frame := range map[string][]byte{
			"length 0":            {0, 0, 0, 0, frameRequest},
			"larger than any":     {0xff, 0xff, 0xff, 0xff, frameRequest},
			"a message":           {0, 0, 0, 1, byte(msgHeartbeat)},
			"a reply":             {0, 0, 0, 1, frameReply},
			"unknown kind":        {0, 0, 0, 1, 255},
			"cut short":           {0, 0, 0, 2, frameRequest, 1},
			"an op that is none":  appendFrameOf(nil, frameRequest, (&request{id: 1, op: 99}).append),
			"a ping with payload": {0, 0, 0, 2, framePing, 0},
			"slots in disorder":   appendFrameOf(nil, frameDataBegin, func(b []byte) []byte { return appendText(append(b, 7), "5 4") }),
			"an unknown job":      nil,
		} {
			conn, _ := shake(t, nodes[0], nodes[1], roleData)
			if frame == nil { // is no nonsense: it is answered
				frame = appendFrameOf(nil, frameData, func(b []byte) []byte { return appendPiece(b, piece.job, piece.slot, nil) })
				frame = appendFrameOf(frame, framePing, appendNothing)
				_, err := conn.Write(frame)
				require.NoError(t, err, name)
				kind, _, err := readFrame(bufio.NewReader(conn), nodes[0].replyLimits, nil)
				require.NoError(t, err, name)
				require.Equal(t, framePong, kind, name)
				conn.Close()
				continue
			}
			_, err := conn.Write(frame)
			require.NoError(t, err, name)
			_, err = io.Copy(io.Discard, conn)
			if err != nil && !errors.Is(err, net.ErrClosed) {
				t.Errorf("%s: %v, want the end of the connection", name, err)
			}
		}
		require.NoError(t, nodes[1].Client().Set(t.Context(), keyOf(nodes[0], 0), nil))
	})
}

// While a cluster forms one node has and another has not yet: a call between
// them has not happened, and that is known.
func TestNoCallIsUnknownBecauseTheClusterForms(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, seeds := newFaults(t), []string{"a:1", "b:1", "c:1"}
		sides := []Transport{f.Node("a"), f.Node("b"), f.Node("c")}
		for _, side := range []string{"a", "b"} {
			f.SetBoth(side, "c", transport.Link{Delay: 200 * time.Millisecond})
		}
		var nodes []*node
		for i, addr := range seeds {
			nodes = append(nodes, startNode(t, Config{Addr: addr, Seeds: seeds, Primaries: 3, Transport: sides[i], NodeTimeout: driverNT}))
		}
		for i := range 60 {
			ctx, cancel := context.WithTimeout(t.Context(), 20*driverNT)
			require.NoError(t, nodes[i%3].Client().Set(ctx, fmt.Sprint("k", i), nil))
			cancel()
			time.Sleep(10 * time.Millisecond)
		}
	})
}

// A ping that waits behind much on a slow way has not left yet: its answer is not
// due.
func TestAPingIsDueOnceItHasLeft(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFaults(t)
		nodes := formNodes(t, f, 2, Config{})
		f.Set("a", "b", transport.Link{BytesPerSecond: 200 << 10})
		target, _ := nodes[0].Table().Owner(KeySlot(keyOf(nodes[1], 0)))
		c, err := nodes[0].data.open(target)
		require.NoError(t, err)
		defer c.end(ErrClosed)
		much := []store.Op{{Code: store.OpPut, Key: "k", Value: make([]byte, 1<<20)}}
		send := func() {
			for range 3 { // 15 seconds, longer than a silence may last
				require.NoError(t, c.send(t.Context(), frameData, 1<<20, func(b []byte) []byte { return appendPiece(b, 1, 0, much) }))
			}
		}
		send()
		synctest.Wait() // that is being written
		send()
		require.NoError(t, c.pass(t.Context()))
		require.Greater(t, 15*time.Second, nodes[0].silence())
	})
}
