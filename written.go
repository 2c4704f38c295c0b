package slotmesh

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"sync"
	"time"
)

// A Client remembers how far the log of each primary has to be had for what it has
// written there, so that it can ask each of them how many members are so far. An
// answer to a write names that point. It names the primary's reign, too: of what was
// written in one that is over nobody knows who has it.

// errReignOver: who has acknowledged a write does not lead any more.
var errReignOver = fmt.Errorf("%w: a primary that has acknowledged writes of this client leads no more, and whether its successor has them nobody knows", ErrNoReplicas)

// written is what a Client has written.
type written struct {
	mu   sync.Mutex
	at   map[NodeID]logPoint // guarded by mu
	lost bool                // guarded by mu: in a reign that is over, of which Wait has not told yet
}

const writtenMax = contactsMax // primaries; at the bound one of them counts as one that leads no more

// note notes what a node has answered to a write.
func (w *written) note(node NodeID, p logPoint) {
	if p == (logPoint{}) {
		return // nothing was written, or in a group that has not formed
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	was, known := w.at[node]
	switch {
	case w.at == nil:
		w.at = map[NodeID]logPoint{}
	case !known && len(w.at) >= writtenMax:
		for other := range w.at {
			delete(w.at, other)
			break
		}
		w.lost = true
	case known && was.reign > p.reign:
		w.lost = true // it is late
		return
	case known && was.reign < p.reign:
		w.lost = true
	}
	p.offset = max(p.offset, was.offset)
	w.at[node] = p
}

// take returns what is to be waited for.
func (w *written) take() (at map[NodeID]logPoint, lost bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	at = make(map[NodeID]logPoint, len(w.at))
	for node, p := range w.at {
		at[node] = p
	}
	lost, w.lost = w.lost, false
	return at, lost
}

// forget forgets a point, of which Wait has told.
func (w *written) forget(node NodeID, p logPoint) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.at[node].reign == p.reign {
		delete(w.at, node)
	}
}

// WithAckReplicas returns a client of the same node whose writes are answered once so
// many members besides the primary have them, and are refused with ErrNoReplicas,
// before they run, where fewer are in sync. It is to c what Request.AckReplicas is to
// a Request: 0 leaves it to Config.AckReplicas, and that so many have a write now is
// no promise that one of them will lead next. Reads, and commands that are ReadOnly,
// are as of c. The new client has Stats of its own, and its Wait is about its own
// writes.
func (c *Client) WithAckReplicas(n int) *Client {
	return &Client{n: c.n, acks: min(max(n, 0), requestAcksMax)}
}

// Wait waits until so many members besides the primary have what this client has
// written, wherever in the cluster, and returns how many have all of it: of several
// shards the least. Writes that are under way count once they have been answered; a
// client that has written nothing has nothing to wait for, and gets replicas.
//
// The error is nil where they are enough, and else an *OpError: that of the context
// where it was over before, ErrNoReplicas where a primary that has acknowledged
// writes of this client leads no more. Then nobody knows whether its successor has
// them; that is told once, and the next call is about what was written since.
//
// That members have a write is no promise that one of them will lead next: see
// Config.AckReplicas for that. It is cheaper than WithAckReplicas where many writes
// are waited for together.
func (c *Client) Wait(ctx context.Context, replicas int) (have int, err error) {
	if err := c.n.engine.mayCall(ctx); err != nil {
		return 0, waitFailed(NodeID{}, NotExecuted, err)
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, defaultLimit*c.n.cfg.NodeTimeout)
		defer cancel()
	}
	at, lost := c.written.take()
	answers := make(chan waitAnswer, len(at))
	for node, p := range at {
		if !c.n.goes(func() { answers <- c.waitAt(ctx, node, p, replicas) }) {
			answers <- waitAnswer{node: node, err: ErrClosed}
		}
	}
	least := waitAnswer{have: replicas}
	switch {
	case lost:
		least = waitAnswer{err: errReignOver}
	case len(at) > 0:
		least.have = math.MaxInt
	}
	for range at {
		a := <-answers
		if errors.Is(a.err, errReignOver) {
			c.written.forget(a.node, at[a.node])
		}
		least = least.worse(a)
	}
	if least.err != nil {
		return least.have, waitFailed(least.node, Unknown, least.err)
	}
	return least.have, nil
}

func waitFailed(node NodeID, o Outcome, err error) error {
	return &OpError{Op: opWait.String(), Slot: NumSlots, Node: node, Outcome: o, Err: err}
}

// waitAnswer is what has become of a Wait at one primary.
type waitAnswer struct {
	node NodeID
	have int
	err  error
}

// worse is the answer that counts of two.
func (a waitAnswer) worse(b waitAnswer) waitAnswer {
	switch {
	case errors.Is(a.err, errReignOver), a.err != nil && b.err == nil:
		a.have = min(a.have, b.have)
		return a
	case b.err != nil:
		b.have = min(a.have, b.have)
		return b
	case b.have < a.have:
		return b
	}
	return a
}

// waitAt waits until enough members have the log of a primary up to a point.
func (c *Client) waitAt(ctx context.Context, node NodeID, p logPoint, replicas int) waitAnswer {
	a := attempt{c: c, backoff: backoffFirst}
	last := 0
	for {
		have, err := c.askWho(ctx, node, p, replicas)
		if err == nil {
			last = have
		}
		switch {
		case err == nil && have >= replicas:
			return waitAnswer{node, have, nil}
		case ctx.Err() != nil:
			return waitAnswer{node, last, ctx.Err()}
		case errors.Is(err, errReignOver), errors.Is(err, ErrClosed):
			return waitAnswer{node, 0, err}
		}
		_ = a.pause(ctx, err)
	}
}

// waitSlack is how long before the end of its time another node is to answer.
const waitSlack = 50 * time.Millisecond

// askWho asks a primary how many members have its log up to a point, once they are
// enough or time is over.
func (c *Client) askWho(ctx context.Context, node NodeID, p logPoint, replicas int) (have int, err error) {
	if node == c.n.ID() {
		return c.n.whoHas(ctx, p, replicas)
	}
	v := c.n.engine.view.Load()
	i := slices.IndexFunc(v.nodes, func(n NodeInfo) bool { return n.ID == node })
	if i < 0 {
		return 0, errReignOver
	}
	conn, err := c.n.data.get(ctx, v.nodes[i])
	if err != nil {
		return 0, c.orReplaced(&v.nodes[i], p, err)
	}
	until, _ := ctx.Deadline()
	left := time.Until(until)
	ms := (left - min(waitSlack, left/4)).Milliseconds()
	c.stats.remote.Add(1)
	r, err := conn.call(ctx, &request{op: opWait, args: decimals(uint64(max(replicas, 0)), uint64(max(ms, 0)), p.reign, p.offset)}, time.Time{})
	switch {
	case err != nil:
		return 0, c.orReplaced(&v.nodes[i], p, err)
	case r.status == statusNoReplicas:
		return 0, errReignOver
	case r.status != statusOK:
		return 0, &remoteError{r.text, ErrTryAgain}
	}
	return strconv.Atoi(string(r.value))
}

// orReplaced is err of a node that does not answer, unless another one leads its
// shard by now.
func (c *Client) orReplaced(n *NodeInfo, p logPoint, err error) error {
	if l, ok := c.n.engine.view.Load().leaders[n.Shard]; ok && l.epoch.Node != n.ID && reignOf(l.epoch) > p.reign {
		return errReignOver
	}
	return err
}

func decimals(numbers ...uint64) (args [][]byte) {
	for _, n := range numbers {
		args = append(args, strconv.AppendUint(nil, n, 10))
	}
	return args
}

// waitAsked answers another node's opWait: how many members, for how many
// milliseconds at most, in which reign, up to where.
func (n *node) waitAsked(ctx context.Context, q *request) ([]byte, error) {
	if len(q.args) != 4 {
		return nil, errArgs
	}
	var args [4]uint64
	for i := range args {
		var err error
		if args[i], err = strconv.ParseUint(string(q.args[i]), 10, 64); err != nil {
			return nil, errArgs
		}
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(min(args[1], uint64(defaultWaitMax.Milliseconds())))*time.Millisecond)
	defer cancel()
	have, err := n.whoHas(ctx, logPoint{args[2], args[3]}, int(min(args[0], requestAcksMax)))
	if err != nil {
		return nil, err
	}
	return strconv.AppendInt(nil, int64(have), 10), nil
}

// defaultWaitMax bounds how long another node may have this one wait at a time: it
// asks again.
const defaultWaitMax = time.Hour

// whoHas waits until so many members have this node's log up to a point, or the
// context is over, and returns how many have.
func (n *node) whoHas(ctx context.Context, p logPoint, replicas int) (have int, err error) {
	m, ok := n.repl.markOf(p)
	if ok {
		have, ok = n.repl.wait(ctx, m, replicas)
	}
	if !ok {
		return 0, errReignOver
	}
	return have, nil
}
