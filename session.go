package slotmesh

import "context"

// Session runs requests one after the other, as [Node.Execute] does, in memory
// that it uses again: a request that is served costs no allocation of its own.
// It is for a front that answers a connection; make one per connection. It needs
// no closing.
//
// A Session is used by one goroutine at a time.
type Session struct {
	n    *node
	tx   Tx
	busy bool
	last logMark // after the last request that has written
	owes []owed  // by requests that were run with Later
}

const sessionOwesMax = 4096 // requests with Later; at the bound one more waits by itself

// Session implements Node.
func (n *node) Session() *Session { return &Session{n: n} }

// Execute is [Node.Execute]. The request is read during the call only; its Name
// may be empty. The Tx is valid until f returns, and used again for the next
// request. From inside f it returns ErrInTx.
func (s *Session) Execute(ctx context.Context, r *Request, f func(*Tx) error) error {
	if s.busy {
		return s.n.opError(r, false, ErrInTx)
	}
	s.busy = true
	var ran bool
	var err error
	if r.Later && len(s.owes) < sessionOwesMax {
		ran, err = s.runLater(ctx, r, f)
	} else {
		ran, err = s.n.engine.execute(ctx, &s.tx, r, f, waitHold)
	}
	s.busy = false
	if ran && !r.ReadOnly && s.n.repl.keeping.Load() {
		s.last = s.n.repl.end()
	}
	if err != nil {
		return s.n.opError(r, ran, err)
	}
	return nil
}

func (s *Session) runLater(ctx context.Context, r *Request, f func(*Tx) error) (ran bool, err error) {
	slot, err := r.slot(s.n.engine.maxKey)
	if err != nil {
		return false, err
	}
	var o owed
	if ran, err = s.n.engine.runAt(ctx, slot, &s.tx, r, f, waitHold, &o); o.cell != nil {
		s.owes = append(s.owes, o)
	}
	return ran, err
}

// Owed is how many requests with Later wait for Settle: those of a node whose
// replies wait for replicas, and since the last Settle.
func (s *Session) Owed() int { return len(s.owes) }

// Settle waits until the replicas have what the requests with Later have written,
// and seen. It returns how many of the Owed ones, in their order, may be answered
// as their calls have returned; err says why the next one may not, nor any after
// it: it is an *OpError, with Outcome Unknown where the request has written. Then
// nothing is owed any more.
func (s *Session) Settle(ctx context.Context) (settled int, err error) {
	for i := range s.owes {
		o := &s.owes[i]
		if err = s.n.engine.settleOwed(ctx, o.slot, o, waitHold); err != nil {
			err = &OpError{Op: "settle", Slot: o.slot, Node: s.n.ID(), Outcome: outcomeOf(o.ran), Err: err}
			break
		}
		settled++
	}
	clear(s.owes)
	s.owes = s.owes[:0]
	return settled, err
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
