package slotmesh

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"time"
	"unsafe"
)

// Client calls keys of the cluster from a member of it: in process where the
// member owns the slot, over the bus where another node does. It follows MOVED
// and ASK, and waits, as long as the context allows, while a slot changes hands or a
// primary is being replaced. A call that may have happened is never repeated:
// its error is an *OpError with Outcome Unknown.
//
// Its methods may be called from any goroutine. Values that it returns must not
// be changed; values that are handed to it must not be changed afterwards.
//
// A context without a deadline gives a call 10 NodeTimeouts. A call of a slot
// that is served in process waits for the commands of that slot that run before
// it, also beyond its context: they are short.
type Client struct {
	n       *node
	acks    int // as Request.AckReplicas, of its writes
	stats   clientStats
	written written
}

type clientStats struct {
	calls, remote, moved, asked, retries atomic.Uint64
}

// ClientStats counts what a Client has done.
type ClientStats struct {
	Calls   uint64 // all but reads that were answered in process
	Remote  uint64 // requests sent to other nodes
	Moved   uint64 // MOVED that other nodes have answered
	Asked   uint64 // ASK that were followed
	Retries uint64 // attempts after TRYAGAIN, CLUSTERDOWN or a broken connection
}

// Stats returns what the client has counted so far.
func (c *Client) Stats() ClientStats {
	return ClientStats{c.stats.calls.Load(), c.stats.remote.Load(), c.stats.moved.Load(), c.stats.asked.Load(), c.stats.retries.Load()}
}

const (
	redirectsMax = 16 // in a row, before a call backs off
	backoffFirst = time.Millisecond
	backoffLast  = 100 * time.Millisecond
	defaultLimit = 10 // NodeTimeouts
)

// Get returns the value of a plain key, or ErrNotFound. A key that is a
// collection of the application's is a *CommandError with code WRONGTYPE, here
// and wherever a plain value is read.
func (c *Client) Get(ctx context.Context, key string) ([]byte, error) {
	e := &c.n.engine
	if len(key) <= e.maxKey && !e.closed.Load() && ctx.Err() == nil && !inTx(ctx) {
		value, found, served, _, err := e.get(ctx, KeySlot(key), key, waitLock)
		if served && err == nil {
			if !found {
				return nil, ErrNotFound
			}
			return value, nil
		}
	}
	return c.call(ctx, newOneArg(opGet, unsafe.Slice(unsafe.StringData(key), len(key))), key) // nobody changes an argument
}

// Set stores a plain value under a key, in place of what was there, for good.
func (c *Client) Set(ctx context.Context, key string, value []byte) error {
	return c.set(ctx, key, value, 0)
}

// SetFor is Set for a time to live, which is rounded down to milliseconds. It
// must be at least one.
func (c *Client) SetFor(ctx context.Context, key string, value []byte, ttl time.Duration) error {
	if ttl < time.Millisecond {
		return &OpError{Op: "set", Slot: KeySlot(key), Err: fmt.Errorf("%w: time to live %v, expected at least 1 ms", ErrInvalid, ttl)}
	}
	return c.set(ctx, key, value, time.Now().Add(ttl).UnixMilli())
}

func (c *Client) set(ctx context.Context, key string, value []byte, at int64) error {
	_, err := c.call(ctx, &request{op: opSet, args: [][]byte{[]byte(key), value, strconv.AppendInt(nil, at, 10)}}, key)
	return err
}

// Delete removes a key, and reports whether it was there.
func (c *Client) Delete(ctx context.Context, key string) (bool, error) {
	v, err := c.call(ctx, &request{op: opDelete, args: [][]byte{[]byte(key)}}, key)
	return string(v) == "1", err
}

// Expire lets a key live for ttl from now on; one of zero or less removes it. It
// reports whether the key is there.
func (c *Client) Expire(ctx context.Context, key string, ttl time.Duration) (bool, error) {
	v, err := c.call(ctx, &request{op: opExpire, args: [][]byte{[]byte(key), strconv.AppendInt(nil, ttl.Milliseconds(), 10)}}, key)
	return string(v) == "1", err
}

// Incr adds delta to the decimal number under a key, 0 where there is none, and
// returns the sum. A value that is no number, or a sum beyond 64 bits, is a
// *CommandError.
func (c *Client) Incr(ctx context.Context, key string, delta int64) (int64, error) {
	v, err := c.call(ctx, &request{op: opIncr, args: [][]byte{[]byte(key), strconv.AppendInt(nil, delta, 10)}}, key)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(string(v), 10, 64)
}

// CompareAndSwap stores value if the key holds old, or if old is nil and the key
// is not there; else it returns ErrConflict. An old that is empty and not nil
// wants the key to be there and empty.
func (c *Client) CompareAndSwap(ctx context.Context, key string, old, value []byte) error {
	want := []byte("0")
	if old != nil {
		want = []byte("1")
	}
	_, err := c.call(ctx, &request{op: opCompareAndSwap, args: [][]byte{[]byte(key), want, old, value}}, key)
	return err
}

// Do runs a command of the application at the primary of its keys' slot, and
// returns its reply. Which arguments are keys the command says: the node that
// calls must know it, too.
func (c *Client) Do(ctx context.Context, name string, args ...[]byte) ([]byte, error) {
	if err := c.n.engine.mayCall(ctx); err != nil {
		return nil, &OpError{Op: name, Slot: NumSlots, Err: err}
	}
	cmd := c.n.engine.commands[name]
	if cmd == nil {
		return nil, &OpError{Op: name, Slot: NumSlots, Err: fmt.Errorf("%w %q: expected one of Config.Commands", ErrUnknownCommand, name)}
	}
	keys, err := cmd.keysOf(args)
	if err == nil {
		r := Request{Keys: keys}
		_, err = r.slot(c.n.cfg.MaxKey)
	}
	if err == nil && len(args) > requestArgsMax {
		err = fmt.Errorf("%w: %d arguments, expected at most %d", ErrTooLarge, len(args), requestArgsMax)
	}
	if err != nil {
		return nil, &OpError{Op: name, Slot: NumSlots, Err: err}
	}
	return c.call(ctx, &request{op: opDo, name: name, args: args}, keys[0])
}

// call runs a request wherever its slot is served.
func (c *Client) call(ctx context.Context, q *request, key string) ([]byte, error) {
	n := c.n
	c.stats.calls.Add(1)
	q.slot, q.acks = KeySlot(key), c.acks
	if err := c.check(ctx, q, key); err != nil {
		return nil, q.failed(NodeID{}, NotExecuted, err)
	}
	a := attempt{c: c, q: q, backoff: backoffFirst}
	if value, done, err := a.here(ctx); done {
		return value, err
	}
	if _, ok := ctx.Deadline(); !ok {
		a.until = time.Now().Add(defaultLimit * n.cfg.NodeTimeout)
		defer a.release()
	}
	for {
		value, again, err := a.once(ctx)
		if !again {
			return value, err
		}
		if n.engine.closed.Load() {
			return nil, q.failed(a.node, NotExecuted, ErrClosed)
		}
		if err := a.over(ctx); err != nil {
			return nil, q.failed(a.node, NotExecuted, err)
		}
	}
}

// check refuses what no node takes.
func (c *Client) check(ctx context.Context, q *request, key string) error {
	e := &c.n.engine
	if err := e.mayCall(ctx); err != nil {
		return err
	}
	if len(key) > e.maxKey {
		return tooLong("key", len(key), e.maxKey)
	}
	total := 0
	for i, a := range q.args {
		total += len(a)
		if len(a) > e.maxValue && len(a) > e.maxKey {
			return tooLong(q.argName(i), len(a), e.maxValue)
		}
	}
	if limit := e.bytesMax(); total > limit {
		return tooLong("arguments", total, limit)
	}
	return nil
}

// argName is what the caller knows argument i as.
func (q *request) argName(i int) string {
	switch {
	case q.op == opDo:
		return fmt.Sprintf("argument %d", i+1)
	case q.op == opCompareAndSwap && i == 2:
		return "old value"
	}
	return "value"
}

func (q *request) failed(node NodeID, o Outcome, err error) error {
	op := q.op.String()
	if q.op == opDo {
		op = q.name
	}
	return &OpError{Op: op, Slot: q.slot, Node: node, Outcome: o, Err: err}
}

// repeatable reports whether a request may be run twice without a difference.
func (q *request) repeatable(e *engine) bool {
	if q.op == opDo {
		return e.commands[q.name].ReadOnly
	}
	return q.op == opGet
}

// attempt is a call on its way through the cluster.
type attempt struct {
	c         *Client
	q         *request
	node      NodeID // asked last
	to        NodeID // where a redirect has sent it; zero: look into the table
	asking    bool   // the redirect was ASK: for this once
	redirects int
	backoff   time.Duration
	last      error

	until   time.Time       // when it is given up; zero: when its context says
	limited context.Context // its context until then; nil: nothing has asked for it
	cancel  context.CancelFunc
}

// limit is the context of a call, with the limit of one that came without. Most calls
// end without it: it takes a timer, and six allocations.
func (a *attempt) limit(ctx context.Context) context.Context {
	if a.until.IsZero() {
		return ctx
	}
	if a.limited == nil {
		a.limited, a.cancel = context.WithDeadline(ctx, a.until)
	}
	return a.limited
}

// release lets go of what limit has made.
func (a *attempt) release() {
	if a.cancel != nil {
		a.cancel()
	}
}

// here is the usual case, without a timer: the slot is served in this process.
func (a *attempt) here(ctx context.Context) (value []byte, done bool, err error) {
	n := a.c.n
	if c := n.engine.cell(a.q.slot); c == nil || c.closed() && c.mark.Load() == nil {
		return nil, false, nil
	}
	value, ran, err := n.engine.runOp(ctx, a.q, waitLock)
	if err != nil && !ran && (errors.Is(err, errWouldWait) || elsewhere(err)) {
		return nil, false, nil
	}
	a.node = n.ID()
	a.c.wrote(a.q)
	value, again, err := a.judge(ctx, value, outcomeOf(ran), err)
	return value, !again, err
}

// elsewhere reports whether err says that another node, or a later attempt, may
// do better.
func elsewhere(err error) bool {
	_, moved := errors.AsType[*MovedError](err)
	_, ask := errors.AsType[*AskError](err)
	return moved || ask || errors.Is(err, ErrTryAgain) || errors.Is(err, ErrClusterDown)
}

// outcomeOf is the outcome of a call that has failed.
func outcomeOf(ran bool) Outcome {
	if ran {
		return Unknown
	}
	return NotExecuted
}

// once tries once. again says that the call has not happened, and may be tried
// again.
func (a *attempt) once(ctx context.Context) (value []byte, again bool, err error) {
	n := a.c.n
	owner, self := a.target()
	a.node = owner.ID
	a.q.asking, a.asking = a.asking, false
	var o Outcome
	if self {
		var ran bool
		value, ran, err = n.engine.runOp(a.limit(ctx), a.q, waitHold)
		o = outcomeOf(ran)
		a.c.wrote(a.q)
	} else {
		value, o, err = a.remote(ctx, owner)
	}
	return a.judge(ctx, value, o, err)
}

// wrote notes what a request that has been run here has written.
func (c *Client) wrote(q *request) { c.written.note(c.n.ID(), c.n.repl.pointOf(q.wrote)) }

// target is the node to ask: this one, too, where it is to say why not.
func (a *attempt) target() (owner NodeInfo, self bool) {
	v := a.c.n.engine.view.Load()
	if !a.to.IsZero() {
		for i := range v.nodes {
			if v.nodes[i].ID == a.to {
				return v.nodes[i], v.nodes[i].Self
			}
		}
	}
	if d := v.route(a.q.slot, question{}); d.action == routeMoved {
		return *d.node, false
	}
	return v.self, true
}

// remote sends the request to another node.
func (a *attempt) remote(ctx context.Context, owner NodeInfo) (value []byte, o Outcome, err error) {
	a.c.stats.remote.Add(1)
	conn := a.c.n.data.ready(owner.ID)
	if conn == nil {
		if conn, err = a.c.n.data.get(a.limit(ctx), owner); err != nil {
			return nil, NotExecuted, &remoteError{err.Error(), ErrTryAgain}
		}
	}
	p, err := conn.call(ctx, a.q, a.until)
	switch {
	case errors.Is(err, errNotSent):
		return nil, NotExecuted, &remoteError{"the connection to " + owner.ID.short() + " has ended", ErrTryAgain}
	case err != nil && a.q.repeatable(&a.c.n.engine):
		return nil, NotExecuted, &remoteError{err.Error(), ErrTryAgain} // whatever it has read, nobody has seen it
	case err != nil:
		return nil, Unknown, err
	case p.status == statusClosed:
		return nil, p.outcome, &remoteError{"node " + owner.ID.short() + " is closing", ErrTryAgain}
	}
	a.c.written.note(owner.ID, p.wrote)
	return p.value, p.outcome, p.error(a.q.slot)
}

// judge says what an answer means for the call.
func (a *attempt) judge(ctx context.Context, value []byte, o Outcome, err error) ([]byte, bool, error) {
	if err == nil {
		return value, false, nil
	}
	moved, isMoved := errors.AsType[*MovedError](err)
	ask, isAsk := errors.AsType[*AskError](err)
	switch {
	case a.q.op == opGet && errors.Is(err, ErrNotFound):
		return nil, false, ErrNotFound
	case o != NotExecuted && !a.q.repeatable(&a.c.n.engine):
		return nil, false, a.q.failed(a.node, o, err)
	case isMoved:
		if a.node != a.c.n.ID() {
			a.c.stats.moved.Add(1)
		}
		if a.redirects++; a.redirects%redirectsMax != 0 && moved.Node != a.node {
			a.to = moved.Node
			return nil, true, nil
		}
		return nil, true, a.pause(ctx, err)
	case isAsk:
		a.c.stats.asked.Add(1)
		if a.redirects++; a.redirects%redirectsMax != 0 {
			a.to, a.asking = ask.Node, true
			return nil, true, nil
		}
		return nil, true, a.pause(ctx, err)
	case errors.Is(err, ErrTryAgain) || errors.Is(err, ErrClusterDown):
		return nil, true, a.pause(ctx, err)
	}
	return nil, false, a.q.failed(a.node, NotExecuted, err)
}

// over is the error of a call whose time is over before it has happened, or nil.
func (a *attempt) over(ctx context.Context) error {
	err := ctx.Err()
	if err == nil && !a.until.IsZero() && !time.Now().Before(a.until) {
		err = context.DeadlineExceeded
	}
	if err == nil || a.last == nil {
		return err
	}
	return fmt.Errorf("%w, after: %w", err, a.last)
}

// pause waits a while before the next attempt: longer each time, and at random,
// so that callers do not come back together.
func (a *attempt) pause(ctx context.Context, err error) error {
	a.last, a.to = err, NodeID{}
	a.c.stats.retries.Add(1)
	d := a.backoff/2 + rand.N(a.backoff)
	a.backoff = min(2*a.backoff, backoffLast)
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-a.limit(ctx).Done():
	case <-a.c.n.ctx.Done():
	}
	return nil
}
