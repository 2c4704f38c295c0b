package slotmesh

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"
)

// pubSub carries messages to all nodes, or to those of a shard. A message is sent
// once, to the members that this node knows, and is not acknowledged: one that is down
// or slow misses it, as in Redis. What a node publishes arrives in the order in which
// it was published.
type pubSub struct {
	n       *node
	dropped atomic.Uint64 // messages that found the queue of a member full, or no way to it

	sent, received atomic.Uint64

	mu        sync.Mutex
	closed    bool                     // guarded by mu
	listeners map[*listener]struct{}   // guarded by mu, replaced at each change
	sharded   map[*listener]struct{}   // guarded by mu, replaced at each change
	out       map[NodeID]*messageQueue // guarded by mu
}

type listener struct {
	f func(channel string, payload []byte) int
}

// messageQueue is what waits to be sent to a member.
type messageQueue struct {
	mu    sync.Mutex
	to    NodeInfo   // guarded by mu: its address may change
	items []*request // guarded by mu
	bytes int        // guarded by mu
	ended bool       // guarded by mu
	wake  chan struct{}
}

const (
	publishQueueMax = 8 << 20 // bytes that wait for a member; at the bound new messages to it are dropped
	publishOverhead = 256     // bytes of a message that wait beside its own
)

func (p *pubSub) init(n *node) {
	p.n, p.listeners, p.sharded, p.out = n, map[*listener]struct{}{}, map[*listener]struct{}{}, map[NodeID]*messageQueue{}
}

// Subscribe implements Node.
func (n *node) Subscribe(f func(channel string, payload []byte) int) (stop func()) {
	if f == nil {
		panic("slotmesh: Node.Subscribe: nil function, expected one to call for each message")
	}
	return n.pubSub.listen(&n.pubSub.listeners, f)
}

// SubscribeSharded implements Node.
func (n *node) SubscribeSharded(f func(channel string, payload []byte) int) (stop func()) {
	if f == nil {
		panic("slotmesh: Node.SubscribeSharded: nil function, expected one to call for each message")
	}
	return n.pubSub.listen(&n.pubSub.sharded, f)
}

func (p *pubSub) listen(among *map[*listener]struct{}, f func(channel string, payload []byte) int) (stop func()) {
	l := &listener{f}
	p.change(among, func(all map[*listener]struct{}) { all[l] = struct{}{} })
	return func() { p.change(among, func(all map[*listener]struct{}) { delete(all, l) }) }
}

func (p *pubSub) change(among *map[*listener]struct{}, f func(map[*listener]struct{})) {
	p.mu.Lock()
	defer p.mu.Unlock()
	*among = maps.Clone(*among)
	f(*among)
}

// Publish implements Node.
func (n *node) Publish(ctx context.Context, channel string, payload []byte) (int, error) {
	return n.sendMessage(ctx, opPublish, channel, payload, n.engine.view.Load().nodes)
}

// PublishSharded implements Node.
func (n *node) PublishSharded(ctx context.Context, channel string, payload []byte) (int, error) {
	v := n.engine.view.Load()
	shard := v.entry(KeySlot(channel)).shard
	var members []NodeInfo
	for _, m := range v.nodes {
		if !shard.IsZero() && m.Shard == shard {
			members = append(members, m)
		}
	}
	return n.sendMessage(ctx, opPublishSharded, channel, payload, members)
}

// sendMessage hands a message to members, this node among them or not.
func (n *node) sendMessage(ctx context.Context, op requestOp, channel string, payload []byte, members []NodeInfo) (receivers int, err error) {
	switch {
	case n.engine.closed.Load():
		return 0, ErrClosed
	case ctx.Err() != nil:
		return 0, ctx.Err()
	case len(channel) > n.cfg.MaxKey:
		return 0, fmt.Errorf("%w: channel of %d bytes, expected at most %d", ErrTooLarge, len(channel), n.cfg.MaxKey)
	case len(payload) > n.cfg.MaxValue:
		return 0, fmt.Errorf("%w: message of %d bytes, expected at most %d", ErrTooLarge, len(payload), n.cfg.MaxValue)
	}
	var q *request // nil: nobody is to hear of this start yet
	if who := n.who.Load(); who != nil {
		q = &request{op: op, cluster: clusterTag(who), args: [][]byte{[]byte(channel), payload}}
	}
	for _, to := range members {
		switch {
		case to.Self:
			receivers = n.pubSub.deliver(op, channel, payload)
		case q != nil:
			n.pubSub.queue(to, q)
		}
	}
	return receivers, nil
}

// deliver hands a message to those who listen at this node.
func (p *pubSub) deliver(op requestOp, channel string, payload []byte) (receivers int) {
	p.mu.Lock()
	all := p.listeners
	if op == opPublishSharded {
		all = p.sharded
	}
	p.mu.Unlock()
	for l := range all {
		receivers += l.f(channel, payload)
	}
	return receivers
}

// queue puts a message behind the others for a member.
func (p *pubSub) queue(to NodeInfo, q *request) {
	for {
		m := p.queueOf(to)
		if m == nil || m.add(p, to, q) {
			return
		}
		// It has just ended, with nothing left to send: a new one takes its place.
	}
}

// queueOf is the queue of a member; nil: the node closes.
func (p *pubSub) queueOf(to NodeInfo) *messageQueue {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := p.out[to.ID]
	if m == nil && !p.closed {
		m = &messageQueue{wake: make(chan struct{}, 1)}
		p.out[to.ID] = m
		p.n.wg.Go(func() { p.send(to.ID, m) })
	}
	return m
}

// close lets no new goroutine begin.
func (p *pubSub) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
}

// add reports whether somebody will send what is in the queue.
func (m *messageQueue) add(p *pubSub, to NodeInfo, q *request) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ended {
		return p.n.ctx.Err() != nil
	}
	m.to = to
	if size := q.size() + publishOverhead; m.bytes > 0 && m.bytes+size > publishQueueMax {
		p.dropped.Add(1)
	} else {
		m.items, m.bytes = append(m.items, q), m.bytes+size
	}
	signal(m.wake)
	return true
}

func (m *messageQueue) take() (NodeInfo, []*request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	items := m.items
	m.items, m.bytes = nil, 0
	return m.to, items
}

// send sends what is in a queue, until there has been nothing for a while.
func (p *pubSub) send(id NodeID, m *messageQueue) {
	idle := time.NewTimer(dataIdle)
	defer idle.Stop()
	for {
		select {
		case <-m.wake:
			p.sendAll(m)
			idle.Reset(dataIdle)
		case <-idle.C:
			if p.end(id, m) {
				return
			}
			idle.Reset(dataIdle)
		case <-p.n.ctx.Done():
			m.mu.Lock()
			m.ended = true
			m.mu.Unlock()
			return
		}
	}
}

// end takes an empty queue away.
func (p *pubSub) end(id NodeID, m *messageQueue) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.items) > 0 {
		return false
	}
	m.ended = true
	delete(p.out, id)
	return true
}

// sendAll sends what waits. A member that cannot be reached misses all of it:
// nobody wants to be told much later.
func (p *pubSub) sendAll(m *messageQueue) {
	to, items := m.take()
	for i, q := range items {
		if err := p.sendOne(to, q); err != nil {
			_, more := m.take()
			p.dropped.Add(uint64(len(items) - i + len(more)))
			return
		}
		p.sent.Add(1)
	}
}

// sendOne tries twice: a connection that was idle may have ended just now.
func (p *pubSub) sendOne(to NodeInfo, q *request) error {
	ctx, cancel := context.WithTimeout(p.n.ctx, p.n.cfg.NodeTimeout)
	defer cancel()
	var err error
	for range 2 {
		var c *dataConn
		if c, err = p.n.data.get(ctx, to); err != nil {
			return err
		}
		if err = c.send(ctx, frameRequest, q.size(), q.append); err == nil {
			return nil
		}
	}
	return err
}
