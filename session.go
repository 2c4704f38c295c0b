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
	if err != nil {
		return s.n.opError(r, ran, err)
	}
	return nil
}

// opError is the error of a request that has not been served.
func (n *node) opError(r *Request, ran bool, err error) error {
	slot, wrong := r.slot(n.cfg.MaxKey)
	if wrong != nil {
		slot = NumSlots
	}
	return &OpError{Op: r.name(), Slot: slot, Node: n.ID(), Outcome: outcomeOf(ran), Err: err}
}
