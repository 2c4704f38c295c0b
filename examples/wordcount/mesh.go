package main

import (
	"context"
	"errors"
	"net"
	"strconv"
	"time"

	"github.com/slotmesh/slotmesh"
	"github.com/slotmesh/slotmesh/transport"
)

const nodeTimeout = time.Second

// startLimit is how long a cluster of n nodes may take to form, and the last of them to
// join. On few processors that many nodes share them.
func startLimit(n int) time.Duration { return time.Minute + time.Duration(n)*5*time.Second }

// add is the command that counts: it runs at the primary of its word's slot.
var add = slotmesh.Command{
	Name: "add",
	Run: func(tx *slotmesh.Tx, args [][]byte) ([]byte, error) {
		word := string(args[0])
		v, _, err := tx.Get(word)
		if err != nil {
			return nil, err
		}
		n, _ := strconv.Atoi(string(v)) // "" is 0
		return nil, tx.Put(word, strconv.AppendInt(nil, int64(n)+1, 10))
	},
}

// mesh is the cluster.
type mesh struct {
	config  slotmesh.Config
	via     func(addr string) slotmesh.Transport // the transport of the node at an address
	network *loopback                            // nil unless the nodes speak TCP
	nodes   []slotmesh.Node
}

// newMesh chooses the transport, and the addresses of the first n nodes.
func newMesh(n int, tcp bool) (*mesh, error) {
	m := &mesh{config: slotmesh.Config{NodeTimeout: nodeTimeout, Commands: []slotmesh.Command{add}}}
	if !tcp {
		memory := transport.NewMemory()
		m.via = func(string) slotmesh.Transport { return memory }
		for i := range n {
			m.config.Seeds = append(m.config.Seeds, nodeName(i))
		}
		return m, nil
	}
	m.network = &loopback{open: make(map[string]net.Listener)}
	m.via = func(string) slotmesh.Transport { return m.network }
	for range n {
		addr, err := m.network.reserve()
		if err != nil {
			return nil, errors.Join(err, m.close())
		}
		m.config.Seeds = append(m.config.Seeds, addr)
	}
	return m, nil
}

// nodeName is the address of a node that is not reached over TCP.
func nodeName(i int) string { return "node-" + strconv.Itoa(i+1) }

// form starts the nodes, which form one cluster, and waits until they serve.
func (m *mesh) form(ctx context.Context) error {
	n := len(m.config.Seeds)
	for _, addr := range m.config.Seeds {
		c := m.config
		c.Addr, c.Primaries = addr, n
		if err := m.start(ctx, c); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit(n))
	defer cancel()
	for _, node := range m.nodes {
		if err := node.Ready(ctx); err != nil {
			return err
		}
	}
	return nil
}

// loopback is TCP whose addresses are known before a node listens at them: they
// are listened at from the start, so that nobody else takes them meanwhile.
type loopback struct {
	transport.TCP
	open map[string]net.Listener // that no node has asked for yet
}

func (l *loopback) reserve() (string, error) {
	at, err := l.TCP.Listen("127.0.0.1:0")
	if err != nil {
		return "", err
	}
	l.open[at.Addr().String()] = at
	return at.Addr().String(), nil
}

func (l *loopback) Listen(addr string) (net.Listener, error) {
	if at, ok := l.open[addr]; ok {
		delete(l.open, addr)
		return at, nil
	}
	return l.TCP.Listen(addr)
}

func (l *loopback) close() error {
	var errs []error
	for _, at := range l.open {
		errs = append(errs, at.Close())
	}
	clear(l.open)
	return errors.Join(errs...)
}

func (m *mesh) start(ctx context.Context, c slotmesh.Config) error {
	c.Transport = m.via(c.Addr)
	node, err := slotmesh.Start(ctx, c)
	if err == nil {
		m.nodes = append(m.nodes, node)
	}
	return err
}

// grow starts one more node and gives it its share of the slots, the same
// number from each of the others.
func (m *mesh) grow(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit(len(m.nodes)+1))
	defer cancel()
	c := m.config
	c.Join = true
	if c.Addr = nodeName(len(m.nodes)); m.network != nil {
		c.Addr = "127.0.0.1:0"
	}
	givers := m.nodes
	if err := m.start(ctx, c); err != nil {
		return err
	}
	joined := m.nodes[len(m.nodes)-1]
	if err := joined.Ready(ctx); err != nil {
		return err
	}
	share := slotmesh.NumSlots / (len(givers) + 1)
	for i, giver := range givers {
		part := share*(i+1)/len(givers) - share*i/len(givers)
		if err := giver.Admin().MoveSlots(ctx, lastSlots(giver, part), joined.ID()); err != nil {
			return err
		}
	}
	return nil
}

// lastSlots is the last n slots of a node.
func lastSlots(node slotmesh.Node, n int) (set slotmesh.SlotSet) {
	own := node.Table().Slots(node.ID())
	skip := own.Len() - n
	for slot := range own.All() {
		if skip--; skip < 0 {
			set.Add(slot)
		}
	}
	return set
}

func (m *mesh) close() error {
	var errs []error
	for _, n := range m.nodes {
		errs = append(errs, n.Close())
	}
	if m.network != nil {
		errs = append(errs, m.network.close())
	}
	return errors.Join(errs...)
}
