package slotmesh

import (
	"context"
	"time"
)

// Session runs requests one after the other, as [Node.Execute] does, in memory
// that it uses again: a request that is served costs no allocation of its own.
// It is for a front that answers a connection; make one per connection. It needs
// no closing.
//
// Requests with Later belong together until the next Settle: what one of them waits at
// slots that are on hold the others, and what else the session runs between them, wait
// less. So requests that came together are answered as soon as one alone may be.
//
// A Session is used by one goroutine at a time.
type Session struct {
	n     *node
	tx    Tx
	busy  bool
	last  logMark       // after the last request that has written
	owes  []owed        // by requests that were run with Later
	batch bool          // one has been, since the last Settle
	stay  stay          // of the requests of the batch
	late  time.Duration // that others of the batch have waited for replicas
}

const sessionOwesMax = 8192 // requests with Later; at the bound one more waits by itself

// Session implements Node.
func (n *node) Session() *Session { return &Session{n: n, stay: stay{patience: waitHold}} }

// OnWait has f called before a request waits at a slot that is on hold, by the
// goroutine that runs it: f may call Settle, and answer what has run before.
func (s *Session) OnWait(f func()) { s.stay.begins = f }

// Execute is [Node.Execute]. The request is read during the call only; its Name
// may be empty. The Tx is valid until f returns, and used again for the next
// request. From inside f it returns ErrInTx.
func (s *Session) Execute(ctx context.Context, r *Request, f func(*Tx) error) error {
	if s.busy {
		return s.n.opError(r, false, ErrInTx)
	}
	s.busy = true
	ran, err := s.run(ctx, r, f)
	s.busy = false
	if ran && !r.ReadOnly && s.n.repl.keeping.Load() {
		s.last = s.n.repl.end()
	}
	if err != nil {
		return s.n.opError(r, ran, err)
	}
	return nil
}

func (s *Session) run(ctx context.Context, r *Request, f func(*Tx) error) (ran bool, err error) {
	e := &s.n.engine
	slot, err := r.slot(e.maxKey)
	if err != nil {
		return false, err
	}
	later := r.Later && len(s.owes) < sessionOwesMax
	if !s.batch {
		s.batch, s.stay.waited, s.late = later, 0, 0
	}
	var o owed
	ran, err = e.runAt(ctx, slot, &s.tx, r, f, &s.stay, &o)
	switch {
	case later && o.lease != nil:
		s.owes = append(s.owes, o)
	case o.cell != nil:
		began := time.Now()
		late := e.settleWithin(ctx, slot, &o, waitHold, e.timeout-s.late)
		if s.late += time.Since(began); late != nil {
			return o.ran, late
		}
	}
	return ran, err
}

// Owed is how many requests with Later have run since the last Settle, but for those
// that may be answered by whoever is asked, as a replica.
func (s *Session) Owed() int { return len(s.owes) }

// Settle decides which of the Owed requests may be answered as their calls have
// returned. Where replies wait for replicas these must have what the request has written,
// and seen; and this node must hold its lease still, in the reign in which it ran. It
// waits a NodeTimeout at most, for all together.
//
// For each that may not be answered so failed is called, unless it is nil, with its place
// among them, in their order, and with what is to be answered: an *OpError, with Outcome
// Unknown where the request has written. Settle returns the first of these errors. Then
// nothing is owed any more.
func (s *Session) Settle(ctx context.Context, failed func(i int, err error)) (first error) {
	var until time.Time
	var held *leaseView // has been looked at, and nobody was waited for since
	for i := range s.owes {
		o := &s.owes[i]
		if o.cell == nil && o.lease == held {
			continue
		}
		err := s.settleOne(ctx, o, &until)
		if held = nil; err == nil {
			if o.cell == nil {
				held = o.lease
			}
			continue
		}
		err = &OpError{Op: "settle", Slot: o.slot, Node: s.n.ID(), Outcome: outcomeOf(o.ran), Err: err}
		if first == nil {
			first = err
		}
		if failed != nil {
			failed(i, err)
		}
	}
	clear(s.owes)
	s.owes = s.owes[:0]
	if !s.busy {
		s.batch, s.stay.waited, s.late = false, 0, 0
	}
	return first
}

// settleOne is Settle for one request. until is the end of the time for all of them,
// which begins with the first that may have to wait.
func (s *Session) settleOne(ctx context.Context, o *owed, until *time.Time) error {
	if o.cell == nil {
		if !s.n.engine.held(o.lease) {
			return leaseOver(o.slot)
		}
		return nil
	}
	now := time.Now()
	if until.IsZero() {
		*until = now.Add(s.n.cfg.NodeTimeout)
	}
	return s.n.engine.settleWithin(ctx, o.slot, o, waitHold, until.Sub(now))
}

// Wait waits until so many members besides the primary have all that this session
// has written, or the context is over, and returns how many have it. It counts
// what has been written at this node, in this node's present reign: of what was
// written before, nobody is known to have it. That a member has it is no promise
// that it will lead next: see Config.AckReplicas for that. From inside a request it
// returns 0.
func (s *Session) Wait(ctx context.Context, replicas int) int {
	if s.busy {
		return 0
	}
	have, _ := s.n.repl.wait(ctx, s.last, replicas)
	return have
}

// opError is the error of a request that has not been served.
func (n *node) opError(r *Request, ran bool, err error) error {
	slot, wrong := r.slot(n.cfg.MaxKey)
	if wrong != nil {
		slot = NumSlots
	}
	return &OpError{Op: r.name(), Slot: slot, Node: n.ID(), Outcome: outcomeOf(ran), Err: err}
}
