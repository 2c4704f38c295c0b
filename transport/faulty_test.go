package transport_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/slotmesh/slotmesh/transport"
)

// inFaultyBubble runs a test in a bubble, with a network in memory for three
// nodes, a, b and c, each with a listener under its own name.
func inFaultyBubble(t *testing.T, test func(t *testing.T, n *faultyNetwork)) {
	synctest.Test(t, func(t *testing.T) {
		faults := transport.NewFaults(transport.NewMemory(), 1)
		n := &faultyNetwork{Faults: faults, node: map[string]*transport.Faulty{}, listener: map[string]net.Listener{}}
		t.Cleanup(func() { require.NoError(t, faults.Close()) })
		for _, name := range []string{"a", "b", "c"} {
			n.node[name] = faults.Node(name)
			n.listener[name] = listen(t, n.node[name], name)
		}
		test(t, n)
	})
}

type faultyNetwork struct {
	*transport.Faults
	node     map[string]*transport.Faulty
	listener map[string]net.Listener
}

// connect returns both ends of a connection that one node has dialed.
func (n *faultyNetwork) connect(t *testing.T, from, to string) (dialed, accepted net.Conn) {
	t.Helper()
	return pair(t, n.node[from], n.listener[to])
}

// arrives reads a word and returns how long that took.
func arrives(t *testing.T, c net.Conn, want string) time.Duration {
	t.Helper()
	start := time.Now()
	assert.Equal(t, want, string(read(t, c, len(want))))
	return time.Since(start)
}

// silent checks that nothing arrives for a minute.
func silent(t *testing.T, c net.Conn) {
	t.Helper()
	require.NoError(t, c.SetReadDeadline(time.Now().Add(time.Minute)))
	n, err := c.Read(make([]byte, 1))
	if n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("Read over a link that loses everything = %d, %v", n, err)
	}
	require.NoError(t, c.SetReadDeadline(time.Time{}))
}

func TestAPartitionIsSilenceUntilItHeals(t *testing.T) {
	inFaultyBubble(t, func(t *testing.T, n *faultyNetwork) {
		a, b := n.connect(t, "a", "b")
		n.Partition([]string{"a"}, []string{"b", "c"})
		write(t, a, "from a") // nobody has told a
		write(t, b, "from b")
		silent(t, a)
		silent(t, b)
		assert.True(t, n.Link("a", "b").Stall && n.Link("c", "a").Stall && !n.Link("b", "c").Stall)
		bc, cb := n.connect(t, "b", "c")
		write(t, bc, "x")
		assert.Zero(t, arrives(t, cb, "x"), "inside a group nothing is lost")

		n.Heal()
		assert.Zero(t, arrives(t, a, "from b"))
		assert.Zero(t, arrives(t, b, "from a"))
	})
}

func TestNodesThatNoGroupNamesAreOneMore(t *testing.T) {
	inFaultyBubble(t, func(t *testing.T, n *faultyNetwork) {
		n.Set("b", "c", transport.Link{Delay: time.Second})
		n.Partition([]string{"a"})
		for pair, want := range map[[2]string]bool{{"a", "b"}: true, {"b", "a"}: true, {"c", "a"}: true, {"b", "c"}: false, {"a", "a"}: false} {
			if got := n.Link(pair[0], pair[1]).Stall; got != want {
				t.Errorf("%s to %s: Stall = %v, want %v", pair[0], pair[1], got, want)
			}
		}
		assert.Equal(t, time.Second, n.Link("b", "c").Delay, "a partition leaves the rest as it is")
		n.Partition([]string{"a", "b", "c"})
		assert.False(t, n.Link("a", "b").Stall, "a new partition replaces the one before")
	})
}

func TestADialIntoAPartitionWaits(t *testing.T) {
	inFaultyBubble(t, func(t *testing.T, n *faultyNetwork) {
		for _, way := range [][2]string{{"a", "b"}, {"b", "a"}} { // lost on its way there, or back
			n.Set(way[0], way[1], transport.Link{Stall: true})
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			start := time.Now()
			_, err := n.node["a"].Dial(ctx, "b")
			cancel()
			assert.ErrorIs(t, err, context.DeadlineExceeded)
			assert.Equal(t, 5*time.Second, time.Since(start))

			time.AfterFunc(7*time.Second, n.Heal)
			n.connect(t, "a", "b")
			assert.Equal(t, 12*time.Second, time.Since(start))
		}
	})
}

func TestADeadNodeBehindAPartitionDoesNotRefuse(t *testing.T) {
	inFaultyBubble(t, func(t *testing.T, n *faultyNetwork) {
		require.NoError(t, n.listener["b"].Close())
		n.Partition([]string{"a"}, []string{"b"})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := n.node["a"].Dial(ctx, "b")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		n.Heal()
		_, err = n.node["a"].Dial(t.Context(), "b")
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
	})
}

func TestOneDirectionCanBeLostAlone(t *testing.T) {
	inFaultyBubble(t, func(t *testing.T, n *faultyNetwork) {
		for _, dialer := range []string{"a", "b"} { // whoever dialed
			other := map[string]string{"a": "b", "b": "a"}[dialer]
			dialed, accepted := n.connect(t, dialer, other)
			a, b := dialed, accepted
			if dialer == "b" {
				a, b = accepted, dialed
			}
			n.Set("a", "b", transport.Link{Stall: true})
			write(t, a, "lost for now")
			silent(t, b)
			write(t, b, "heard")
			assert.Zero(t, arrives(t, a, "heard"))
			n.Set("a", "b", transport.Link{})
			assert.Zero(t, arrives(t, b, "lost for now"))
		}
	})
}

func TestAWriterIntoAStallIsHeldUp(t *testing.T) {
	inFaultyBubble(t, func(t *testing.T, n *faultyNetwork) {
		a, b := n.connect(t, "a", "b")
		n.Set("a", "b", transport.Link{Stall: true})
		require.NoError(t, a.SetWriteDeadline(time.Now().Add(time.Second)))
		sent, err := a.Write(make([]byte, 10<<20))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		assert.Equal(t, bufferSize, sent)
		n.Heal()
		read(t, b, sent)
	})
}

func TestTheEndOfAConnectionIsLostLikeItsBytes(t *testing.T) {
	inFaultyBubble(t, func(t *testing.T, n *faultyNetwork) {
		for _, closer := range []string{"dialer", "accepter"} {
			dialed, accepted := n.connect(t, "a", "b")
			mine, theirs := dialed, accepted
			if closer == "accepter" {
				mine, theirs = accepted, dialed
			}
			n.Partition([]string{"a"})
			write(t, mine, "last words")
			require.NoError(t, mine.Close())
			silent(t, theirs)
			n.Heal()
			assert.Zero(t, arrives(t, theirs, "last words"))
			_, err := theirs.Read(make([]byte, 1))
			assert.Equal(t, io.EOF, err, closer)
		}
	})
}

func TestAPeerThatClosesBehindAStallIsNotNoticed(t *testing.T) {
	inFaultyBubble(t, func(t *testing.T, n *faultyNetwork) {
		a, b := n.connect(t, "a", "b")
		n.Set("b", "a", transport.Link{Stall: true})
		require.NoError(t, b.Close())
		for range 10 { // they arrive and are answered by a reset, which is lost
			write(t, a, "anybody there?")
			time.Sleep(time.Second)
		}
		n.Heal()
		synctest.Wait()
		_, err := a.Write([]byte("?"))
		require.ErrorIs(t, err, syscall.EPIPE)
	})
}

func TestACutResetsAndRefuses(t *testing.T) {
	inFaultyBubble(t, func(t *testing.T, n *faultyNetwork) {
		a, b := n.connect(t, "a", "b")
		b2, a2 := n.connect(t, "b", "a")
		ac, ca := n.connect(t, "a", "c")
		write(t, a, "under way")
		n.Cut("b", "a")
		for name, c := range map[string]net.Conn{"a": a, "b": b, "b2": b2, "a2": a2} {
			_, err := io.ReadAll(c)
			assert.ErrorIs(t, err, syscall.ECONNRESET, name)
			_, err = c.Write([]byte("x"))
			assert.Error(t, err, name)
		}
		for _, way := range [][2]string{{"a", "b"}, {"b", "a"}} {
			_, err := n.node[way[0]].Dial(t.Context(), way[1])
			assert.ErrorIs(t, err, syscall.ECONNREFUSED)
		}
		write(t, ac, "others go on")
		arrives(t, ca, "others go on")
		n.Heal()
		n.connect(t, "a", "b")
	})
}

func TestARefusalLeavesConnectionsAlone(t *testing.T) {
	inFaultyBubble(t, func(t *testing.T, n *faultyNetwork) {
		a, b := n.connect(t, "a", "b")
		n.Set("a", "b", transport.Link{Refuse: true})
		write(t, a, "x")
		arrives(t, b, "x")
		_, err := n.node["a"].Dial(t.Context(), "b")
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
		n.connect(t, "b", "a") // the other direction is open
	})
}

func TestAResetLetsNewConnectionsIn(t *testing.T) {
	inFaultyBubble(t, func(t *testing.T, n *faultyNetwork) {
		a, _ := n.connect(t, "a", "b")
		n.Reset("b", "a")
		_, err := a.Read(make([]byte, 1))
		require.ErrorIs(t, err, syscall.ECONNRESET)
		a, b := n.connect(t, "a", "b")
		write(t, a, "x")
		arrives(t, b, "x")
	})
}

func TestBytesTakeTheDelayOfTheirLink(t *testing.T) {
	inFaultyBubble(t, func(t *testing.T, n *faultyNetwork) {
		n.Set("a", "b", transport.Link{Delay: 20 * time.Millisecond})
		n.Set("b", "a", transport.Link{Delay: 300 * time.Millisecond})
		start := time.Now()
		a, b := n.connect(t, "a", "b")
		assert.Equal(t, 320*time.Millisecond, time.Since(start), "a dial goes there and back")

		write(t, a, "there")
		assert.Equal(t, 20*time.Millisecond, arrives(t, b, "there"))
		write(t, b, "back")
		assert.Equal(t, 300*time.Millisecond, arrives(t, a, "back"))

		// A delay is no limit of throughput: what is written together arrives together.
		for range 1000 {
			write(t, a, "x")
		}
		assert.Equal(t, 20*time.Millisecond, arrives(t, b, strings.Repeat("x", 1000)))

		// Bytes under way keep their delay; none overtakes them.
		write(t, b, "slow")
		synctest.Wait()
		n.Heal()
		write(t, b, "fast")
		assert.Equal(t, 300*time.Millisecond, arrives(t, a, "slowfast"))
	})
}

func TestTheEndTakesTheDelayOfItsLink(t *testing.T) {
	inFaultyBubble(t, func(t *testing.T, n *faultyNetwork) {
		n.SetBoth("a", "b", transport.Link{Delay: time.Second})
		for _, byDialer := range []bool{true, false} {
			closer, other := n.connect(t, "a", "b")
			if !byDialer {
				closer, other = other, closer
			}
			start := time.Now()
			require.NoError(t, closer.Close())
			_, err := other.Read(make([]byte, 1))
			assert.Equal(t, io.EOF, err)
			assert.Equal(t, time.Second, time.Since(start))
		}
	})
}

func TestADialWhoseContextEndsOnTheWayFails(t *testing.T) {
	inFaultyBubble(t, func(t *testing.T, n *faultyNetwork) {
		n.SetBoth("a", "b", transport.Link{Delay: time.Second})
		ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
		defer cancel()
		_, err := n.node["a"].Dial(ctx, "b")
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
}

func TestJitterVariesDelayButNotOrder(t *testing.T) {
	inFaultyBubble(t, func(t *testing.T, n *faultyNetwork) {
		a, b := n.connect(t, "a", "b")
		n.Set("a", "b", transport.Link{Delay: 10 * time.Millisecond, Jitter: 10 * time.Millisecond})
		seen := map[time.Duration]bool{}
		for i := range 200 {
			write(t, a, fmt.Sprintf("%03d", i))
			d := arrives(t, b, fmt.Sprintf("%03d", i))
			if d < 10*time.Millisecond || d > 20*time.Millisecond {
				t.Errorf("a write took %v, want 10 to 20 ms", d)
			}
			seen[d] = true
		}
		if len(seen) < 100 {
			t.Errorf("200 writes took %d different times", len(seen))
		}
		var want strings.Builder
		for i := range 200 {
			write(t, a, fmt.Sprintf("%03d", i))
			fmt.Fprintf(&want, "%03d", i)
		}
		arrives(t, b, want.String())
	})
}

func TestThroughputIsLimitedAndTrickles(t *testing.T) {
	inFaultyBubble(t, func(t *testing.T, n *faultyNetwork) {
		a, b := n.connect(t, "a", "b")
		n.Set("a", "b", transport.Link{BytesPerSecond: 50_000, Delay: time.Second})
		write(t, a, strings.Repeat("x", 100_000))
		first := arrives(t, b, "x")
		assert.Equal(t, time.Second+1400*time.Second/50_000, first, "the first packet comes long before the last")
		rest := arrives(t, b, strings.Repeat("x", 99_999))
		assert.Equal(t, 3*time.Second, first+rest)

		// An idle link saves nothing up.
		time.Sleep(time.Hour)
		write(t, a, strings.Repeat("y", 50_000))
		assert.Equal(t, 2*time.Second, arrives(t, b, strings.Repeat("y", 50_000)))
	})
}

func TestAWriteIsCorruptedByOneBit(t *testing.T) {
	inFaultyBubble(t, func(t *testing.T, n *faultyNetwork) {
		a, b := n.connect(t, "a", "b")
		zeros := make([]byte, 1000)
		send := func(c, to net.Conn) (flipped int) {
			_, err := c.Write(zeros)
			require.NoError(t, err)
			for _, x := range read(t, to, len(zeros)) {
				flipped += bits.OnesCount8(x)
			}
			return flipped
		}
		assert.Equal(t, 0, send(a, b))
		n.CorruptNext("a", "b")
		assert.Equal(t, 0, send(b, a), "the other direction is not meant")
		assert.Equal(t, 1, send(a, b))
		assert.Equal(t, 0, send(a, b), "only the next write is meant")
		assert.Equal(t, make([]byte, 1000), zeros, "the writer's own bytes are left alone")

		n.Set("b", "a", transport.Link{Corrupt: 1})
		for range 10 {
			assert.Equal(t, 1, send(b, a))
		}
		n.Set("b", "a", transport.Link{Corrupt: 0.5})
		flipped := 0
		for range 1000 {
			flipped += send(b, a)
		}
		if flipped < 400 || flipped > 600 {
			t.Errorf("%d of 1000 writes were corrupted, want about half", flipped)
		}
		n.CorruptNext("a", "b")
		n.Heal()
		assert.Equal(t, 0, send(a, b)+send(b, a))
	})
}

func TestAConnectionCanBreakAfterSoManyBytes(t *testing.T) {
	inFaultyBubble(t, func(t *testing.T, n *faultyNetwork) {
		n.Set("a", "b", transport.Link{ResetAfter: 1000})
		for _, dialer := range []string{"a", "b"} {
			dialed, accepted := n.connect(t, dialer, map[string]string{"a": "b", "b": "a"}[dialer])
			a, b := dialed, accepted
			if dialer == "b" {
				a, b = accepted, dialed
			}
			write(t, a, strings.Repeat("x", 999))
			arrives(t, b, strings.Repeat("x", 999))
			write(t, b, "the other direction has no limit")
			arrives(t, a, "the other direction has no limit")
			write(t, a, "x")
			_, err := io.ReadAll(b)
			assert.ErrorIs(t, err, syscall.ECONNRESET, "dialed by %s", dialer)
			_, err = io.ReadAll(a)
			assert.ErrorIs(t, err, syscall.ECONNRESET, "dialed by %s", dialer)
		}
	})
}

func TestANodeIsFoundByItsAddresses(t *testing.T) {
	inFaultyBubble(t, func(t *testing.T, n *faultyNetwork) {
		// It starts again somewhere else, under its old name.
		moved := listen(t, n.Node("b"), "b's new place")
		n.SetBoth("a", "b", transport.Link{Delay: time.Second})
		start := time.Now()
		pair(t, n.node["a"], moved)
		assert.Equal(t, 2*time.Second, time.Since(start))

		// An address that belongs to nobody is not disturbed, until it is assigned.
		plain := listen(t, n.node["a"], "elsewhere")
		n.Assign("elsewhere", "c")
		n.Set("a", "c", transport.Link{Refuse: true})
		_, err := n.node["a"].Dial(t.Context(), plain.Addr().String())
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
		_, err = n.node["a"].Dial(t.Context(), "nobody")
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
		require.NotContains(t, err.Error(), "faulty", "a dial to nobody's address is answered below")
	})
}

func TestFaultsThatHitNobodyPanic(t *testing.T) {
	faults := transport.NewFaults(transport.NewMemory(), 1)
	faults.Node("a")
	faults.Node("b")
	for name, c := range map[string]struct {
		call func()
		want string
	}{
		"Set from nobody":    {func() { faults.Set("x", "a", transport.Link{}) }, `no node is called "x", want one of ["a" "b"]`},
		"Set to nobody":      {func() { faults.Set("a", "x", transport.Link{}) }, `no node is called "x"`},
		"SetBoth":            {func() { faults.SetBoth("a", "x", transport.Link{}) }, `no node is called "x"`},
		"Link":               {func() { faults.Link("a", "x") }, `no node is called "x"`},
		"Cut":                {func() { faults.Cut("x", "a") }, `no node is called "x"`},
		"Reset":              {func() { faults.Reset("a", "x") }, `no node is called "x"`},
		"Partition":          {func() { faults.Partition([]string{"a"}, []string{"x"}) }, `no node is called "x"`},
		"CorruptNext":        {func() { faults.CorruptNext("a", "x") }, `no node is called "x"`},
		"Assign":             {func() { faults.Assign("addr", "x") }, `no node is called "x"`},
		"Node without name":  {func() { faults.Node("") }, "needs a name"},
		"a negative delay":   {func() { faults.Set("a", "b", transport.Link{Delay: -1}) }, "Link.Delay -1ns, want 0 or more"},
		"a negative jitter":  {func() { faults.Set("a", "b", transport.Link{Jitter: -1}) }, "Link.Jitter"},
		"a negative rate":    {func() { faults.Set("a", "b", transport.Link{BytesPerSecond: -1}) }, "Link.BytesPerSecond"},
		"a probability of 2": {func() { faults.Set("a", "b", transport.Link{Corrupt: 2}) }, "Link.Corrupt 2, want 0 to 1"},
		"a negative number":  {func() { faults.Set("a", "b", transport.Link{ResetAfter: -1}) }, "Link.ResetAfter"},
	} {
		func() {
			defer func() {
				if got := fmt.Sprint(recover()); !strings.Contains(got, c.want) {
					t.Errorf("%s: panic %q, want one with %q", name, got, c.want)
				}
			}()
			c.call()
		}()
	}
	assert.Equal(t, transport.Link{}, faults.Link("a", "b"), "a fault that was refused changes nothing")
	require.NoError(t, faults.Close(), "and holds no lock")
}

func TestClosingFaultsEndsEverything(t *testing.T) {
	inFaultyBubble(t, func(t *testing.T, n *faultyNetwork) {
		a, b := n.connect(t, "a", "b")
		stalled, _ := n.connect(t, "a", "c")
		n.Partition([]string{"a"}, []string{"b"}, []string{"c"})
		write(t, stalled, "never to arrive")
		require.NoError(t, stalled.Close())

		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := n.node["a"].Dial(t.Context(), "b"); !errors.Is(err, net.ErrClosed) {
				t.Errorf("a dial that waits in a partition = %v, want net.ErrClosed", err)
			}
		})
		wg.Go(func() {
			if _, err := a.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("a read = %v, want ECONNRESET", err)
			}
		})
		synctest.Wait()
		for range 2 {
			require.NoError(t, n.Close())
		}
		wg.Wait()
		_, err := b.Read(make([]byte, 1))
		require.ErrorIs(t, err, syscall.ECONNRESET)
		_, err = n.node["a"].Dial(t.Context(), "a")
		require.ErrorIs(t, err, net.ErrClosed)
	})
}

func TestFaultsWorkOverRealTCP(t *testing.T) {
	for name, inner := range map[string]transport.Transport{"tcp": transport.TCP{}, "tls": newTLS(t)} {
		faults := transport.NewFaults(inner, 1)
		defer faults.Close()
		a, b := faults.Node("a"), faults.Node("b")
		assert.Equal(t, name == "tls", transport.Secure(a))
		l := listen(t, b, "127.0.0.1:0")
		accepted := make(chan net.Conn, 1)
		var wg sync.WaitGroup
		defer wg.Wait()
		wg.Go(func() {
			c, err := l.Accept()
			if err != nil {
				t.Errorf("Accept = %v", err)
			} else if _, err := c.Write([]byte("hello")); err != nil { // and the handshake
				t.Errorf("Write = %v", err)
			}
			accepted <- c
		})
		dialed, err := a.Dial(t.Context(), l.Addr().String())
		require.NoError(t, err)
		defer dialed.Close()
		arrives(t, dialed, "hello")
		server := <-accepted
		defer server.Close()

		faults.Set("a", "b", transport.Link{Stall: true})
		write(t, dialed, "later")
		require.NoError(t, server.SetReadDeadline(time.Now().Add(20*time.Millisecond)))
		_, err = server.Read(make([]byte, 1))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.NoError(t, server.SetReadDeadline(time.Now().Add(10*time.Second)))
		faults.Heal()
		arrives(t, server, "later")

		faults.Cut("a", "b")
		_, err = server.Read(make([]byte, 1))
		assert.ErrorIs(t, err, syscall.ECONNRESET, name)
		_, err = dialed.Read(make([]byte, 1))
		assert.ErrorIs(t, err, syscall.ECONNRESET, name)
	}
}

// Whatever happens to the links, a connection delivers what was written, in
// order and once, up to the moment when it breaks; and one that has not been
// reset delivers all of it.
func TestNoFaultLosesOrReordersBytesOfALiveConnection(t *testing.T) {
	for seed := range uint64(5) {
		inFaultyBubble(t, func(t *testing.T, n *faultyNetwork) {
			rnd := rand.New(rand.NewPCG(seed, 2))
			names := []string{"a", "b", "c"}
			var wg sync.WaitGroup
			var whole, broken int
			var mu sync.Mutex
			for _, from := range names {
				for _, to := range names {
					dialed, accepted := n.connect(t, from, to)
					for _, way := range [][2]net.Conn{{dialed, accepted}, {accepted, dialed}} {
						wg.Go(func() { sendNumbers(way[0]) })
						wg.Go(func() {
							complete := receiveNumbers(t, way[1])
							mu.Lock()
							defer mu.Unlock()
							if complete {
								whole++
							} else {
								broken++
							}
						})
					}
				}
			}
			resets := 0
			for range 60 {
				time.Sleep(time.Duration(rnd.IntN(500)) * time.Millisecond)
				x, y := names[rnd.IntN(3)], names[rnd.IntN(3)]
				switch rnd.IntN(8) {
				case 0:
					n.Partition([]string{x})
				case 1:
					n.Heal()
				case 2:
					if resets++; resets < 4 {
						n.Reset(x, y)
					}
				default:
					n.Set(x, y, transport.Link{
						Stall:          rnd.IntN(4) == 0,
						Refuse:         rnd.IntN(4) == 0,
						Delay:          time.Duration(rnd.IntN(100)) * time.Millisecond,
						Jitter:         time.Duration(rnd.IntN(100)) * time.Millisecond,
						BytesPerSecond: rnd.IntN(2) * (1 + rnd.IntN(100_000)),
					})
				}
			}
			n.Heal()
			wg.Wait()
			if whole+broken != 18 || resets == 0 && broken > 0 || whole == 0 && resets < 3 {
				t.Errorf("seed %d: %d streams are whole, %d broken, %d resets", seed, whole, broken, resets)
			}
		})
	}
}

const numbers = 2000

// sendNumbers writes 0, 1, 2 … at a pace that spreads over the test.
func sendNumbers(c net.Conn) {
	var p [8]byte
	for i := range uint64(numbers) {
		binary.BigEndian.PutUint64(p[:], i)
		if _, err := c.Write(p[:]); err != nil {
			return
		}
		time.Sleep(7 * time.Millisecond)
	}
}

// receiveNumbers reads until the last number or an error.
func receiveNumbers(t *testing.T, c net.Conn) (complete bool) {
	var p [8]byte
	for want := range uint64(numbers) {
		if _, err := io.ReadFull(c, p[:]); err != nil {
			return false
		}
		if got := binary.BigEndian.Uint64(p[:]); got != want {
			t.Errorf("%v to %v: read %d, want %d", c.RemoteAddr(), c.LocalAddr(), got, want)
			return false
		}
	}
	return true
}

// A hooked transport calls a function in the midst of each dial.
type hooked struct {
	transport.Transport
	dialed func()
}

func (h *hooked) Dial(ctx context.Context, addr string) (net.Conn, error) {
	c, err := h.Transport.Dial(ctx, addr)
	h.dialed()
	return c, err
}

func TestACutInTheMidstOfADialWins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := &hooked{Transport: transport.NewMemory()}
		faults := transport.NewFaults(inner, 1)
		defer faults.Close()
		a, b := faults.Node("a"), faults.Node("b")
		l := listen(t, b, "b")
		inner.dialed = func() { faults.Cut("a", "b") }
		_, err := a.Dial(t.Context(), "b")
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
		server, err := l.Accept()
		require.NoError(t, err)
		_, err = server.Read(make([]byte, 1))
		require.ErrorIs(t, err, syscall.ECONNRESET)

		faults.Heal()
		inner.dialed = func() { _ = faults.Close() }
		_, err = a.Dial(t.Context(), "b")
		require.ErrorIs(t, err, net.ErrClosed)
	})
}

// A node that tries an address again and again may reach it before the owner's
// Listen has returned.
func TestADialThatIsEarlierThanItsListenerIsKnownIsNotLeftOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := &hooked{Transport: transport.NewMemory()}
		faults := transport.NewFaults(inner, 1)
		defer faults.Close()
		a := faults.Node("a")
		faults.Node("b")
		below := listen(t, inner, "b") // is there for a before it is known to be b's
		inner.dialed = func() { faults.Assign("b", "b") }
		dialed, accepted := pair(t, a, below)
		faults.Set("a", "b", transport.Link{Delay: time.Second})
		write(t, dialed, "x")
		assert.Equal(t, time.Second, arrives(t, accepted, "x"))
	})
}
