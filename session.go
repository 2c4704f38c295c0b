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
}

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
	ran, err := s.n.engine.execute(ctx, &s.tx, r, f, waitHold)
	s.busy = false
	if !r.ReadOnly && s.n.repl.keeping.Load() {
		s.last = s.n.repl.end()
	}
	if err != nil {
		return s.n.opError(r, ran, err)
	}
	return nil
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
	return s.n.repl.wait(ctx, s.last, replicas)
}

// opError is the error of a request that has not been served.
func (n *node) opError(r *Request, ran bool, err error) error {
	slot, wrong := r.slot(n.cfg.MaxKey)
	if wrong != nil {
		slot = NumSlots
	}
	return &OpError{Op: r.name(), Slot: slot, Node: n.ID(), Outcome: outcomeOf(ran), Err: err}
}
