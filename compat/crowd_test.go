package compat

import (
	"context"
	"flag"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/slotmesh/slotmesh"
	"github.com/slotmesh/slotmesh/resp"
	"github.com/slotmesh/slotmesh/transport"
	"github.com/stretchr/testify/require"
)

var crowdCommands = flag.Int("compat.crowd", 20_000, "random `commands` of many clients at once")

// Whatever many clients do at the same time with the same few keys, while others wait
// for them, each command has its answer: nobody hangs, and nothing falls over.
func TestManyClientsAtOnceAreAllAnswered(t *testing.T) {
	t.Parallel()
	manyClients(t, []string{startOurs(t)}, func(context.Context) {})
}

// So it is while the slot of these keys goes from one node to another and back: who
// waits for a key hears that it has left.
func TestManyClientsAtOnceAreAllAnsweredWhileTheirSlotMoves(t *testing.T) {
	t.Parallel()
	mem := transport.NewMemory()
	seeds := []string{"a:1", "b:1"}
	var addrs []string
	var nodes []slotmesh.Node
	for _, seed := range seeds {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		node, err := slotmesh.Start(t.Context(), slotmesh.Config{Addr: seed, Seeds: seeds, Primaries: 2, ClientAddr: l.Addr().String(), Transport: mem, NodeTimeout: time.Second})
		require.NoError(t, err)
		t.Cleanup(func() { node.Close() })
		s, err := resp.Start(t.Context(), resp.Config{Node: node, Listener: l})
		require.NoError(t, err)
		t.Cleanup(func() { s.Close() })
		nodes, addrs = append(nodes, node), append(addrs, l.Addr().String())
	}
	for _, n := range nodes {
		require.NoError(t, n.Ready(t.Context()))
	}
	var slots slotmesh.SlotSet
	slots.Add(slotmesh.KeySlot("t"))
	moves := 0
	manyClients(t, addrs, func(ctx context.Context) {
		for ctx.Err() == nil {
			for i, n := range nodes {
				call, cancel := context.WithTimeout(ctx, time.Second)
				if n.Admin().MoveSlots(call, slots, nodes[1-i].ID()) == nil {
					moves++
				}
				cancel()
			}
		}
	})
	require.NotZero(t, moves)
	t.Logf("%d moves", moves)
}

// manyClients lets clients of nodes send random commands, while something else goes on.
func manyClients(t *testing.T, addrs []string, meanwhile func(context.Context)) {
	const clients = 10
	dialOne := func(i int) *link {
		l := connect(t, addrs[i%len(addrs)], "3")
		l.patience = slowReply
		return l
	}
	var wakers []*link
	for i := range addrs {
		wakers = append(wakers, dialOne(i))
	}
	var ids []string
	var links []*link
	for i := range clients {
		l := dialOne(i)
		links, ids = append(links, l), append(ids, mustDo(t, l, "CLIENT", "ID").text)
	}
	var crowd, others sync.WaitGroup
	for i, l := range links {
		crowd.Go(func() { oneOfMany(t, l, i, *crowdCommands/clients) })
	}
	ctx, over := context.WithCancel(t.Context())
	others.Go(func() { meanwhile(ctx) })
	others.Go(func() { // who waits without a limit waits for this one
		for ctx.Err() == nil {
			for i, id := range ids {
				if _, err := wakers[i%len(wakers)].do("CLIENT", "UNBLOCK", id); err != nil {
					t.Errorf("CLIENT UNBLOCK: %v", err)
					return
				}
			}
			time.Sleep(time.Millisecond) // not a wait for anything: so often is often enough
		}
	})
	crowd.Wait()
	over()
	others.Wait()
	for i := range addrs {
		require.Equal(t, "PONG", mustDo(t, dialOne(i), "PING").text)
	}
}

// oneOfMany is one client, and about so many commands.
func oneOfMany(t *testing.T, l *link, i, commands int) {
	g := newGenerator(t, *firstSeed)
	g.reseed(*firstSeed, uint64(i))
	for sent := 0; sent < commands; {
		for _, s := range g.steps(20) {
			for _, args := range s.commands {
				if len(args) > 1 && strings.EqualFold(args[0], "client") && strings.EqualFold(args[1], "kill") {
					continue // it may be one of these
				}
				sent++
				if _, err := l.do(args...); err != nil {
					t.Errorf("client %d, seed %d, command %d, %s: %v", i, *firstSeed, sent, commandLine(args), err)
					return
				}
			}
		}
	}
}
