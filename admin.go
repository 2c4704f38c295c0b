package slotmesh

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/slotmesh/slotmesh/transport"
)

// Admin is what operators do. Commands may be given to any node unless they say
// otherwise. They wait for the decision of the cluster, and then until every
// member that lives knows of it, one NodeTimeout at most. Errors are
// *AdminError and match ErrRefused (the arguments, or the state of the cluster,
// do not allow it: nothing has changed), ErrTryAgain (something else is under
// way), ErrClusterDown (no majority has decided), ErrClosed, ErrInTx, or the error
// of the context. Where Outcome is Unknown, it may still happen, or a part of it has.
type Admin interface {
	// Meet makes whoever lives at addr a member of this node's cluster, or this
	// node one of its. It returns at once; an event tells what came of it.
	Meet(ctx context.Context, addr string) error
	// Forget removes a node for good: only Meet brings it back. A primary with
	// slots needs force, and its slots wait for it, or for a fix.
	Forget(ctx context.Context, node NodeID, force bool) error
	// AddSlots assigns slots that nobody has to this node, all or none.
	AddSlots(ctx context.Context, slots SlotSet) error
	// DelSlots takes slots from whoever has them. Their keys stay where they are
	// until somebody else serves the slots.
	DelSlots(ctx context.Context, slots SlotSet) error
	// SetSlots gives slots to a node without their data: those of a living
	// primary must be empty. For slots of a failed one this is how they are
	// served again.
	SetSlots(ctx context.Context, slots SlotSet, node NodeID) error
	// MoveSlots gives slots to a node with their data, while they are used.
	// Clients see a pause of milliseconds and one MOVED. Where it fails half
	// way, some slots have moved and the others have not; none is in between. The
	// error says how many, and its Outcome is Unknown.
	MoveSlots(ctx context.Context, slots SlotSet, node NodeID) error
	// SetSlotMigrating marks a slot of this node: its keys go to another node, one
	// by one. What is here is served; what is not gets *AskError, and a request
	// with some of both ErrTryAgain. The mark survives a restart, and a failover: the
	// shard's log has it. It ends with SetSlotStable, and when the slot changes hands.
	SetSlotMigrating(ctx context.Context, slot Slot, to NodeID) error
	// SetSlotImporting marks a slot of another node, from which keys come here.
	// Requests that are Asking are served, under this node's lease. What they
	// write stays when the slot comes by SetSlots.
	SetSlotImporting(ctx context.Context, slot Slot, from NodeID) error
	// SetSlotStable takes the mark off a slot of this node. Keys stay where they
	// are.
	SetSlotStable(ctx context.Context, slot Slot) error
	// BumpEpoch makes this node win its shard anew, under a higher epoch.
	BumpEpoch(ctx context.Context) error
	// SetConfigEpoch gives an epoch to a node that knows no other.
	SetConfigEpoch(ctx context.Context, epoch uint64) error
	// Takeover makes this node lead its shard without a vote. It serves once a
	// majority of the voters that live agrees; where a majority of the voters
	// has failed, those that live become the voters first. Writes that others
	// have acknowledged meanwhile may be lost: an EventUnclean says so. Asked again
	// it goes on with what it has begun, and where this node leads by then it
	// changes nothing.
	Takeover(ctx context.Context) error
	// Replicate makes this node, which has no slots and no keys, a replica of a
	// primary: it copies its data, follows it, and may be elected when it fails. It
	// returns once the members know; Ready waits for the copy. Of a replica it
	// changes the primary.
	Replicate(ctx context.Context, primary NodeID) error
	// Failover makes this node, a replica, lead its shard. In a plain one the
	// primary agrees: its requests wait while this node catches up, and nothing is
	// lost. It returns once this node leads, or says why not; asked again
	// afterwards it is refused, for this node is no replica any more. Where the
	// outcome is Unknown it may still happen. FailoverTakeover is as Takeover.
	Failover(ctx context.Context, mode FailoverMode) error
	// SetPolicy changes what this node does by itself, as long as it runs.
	SetPolicy(ctx context.Context, p Policy) error
	// ForceVoters makes these nodes, an odd number, the voters: the way out when
	// a majority of the voters is gone for good. What those had decided and
	// nobody left knows of is lost: an EventUnclean says so.
	ForceVoters(ctx context.Context, nodes []NodeID) error
	// Reset makes this node leave its cluster and be a new one, hard with a new
	// id. A primary refuses while it holds keys; what another node holds of slots
	// that it has no more is dropped. Requests wait meanwhile.
	Reset(ctx context.Context, hard bool) error
}

// Admin implements Node.
func (n *node) Admin() Admin { return (*admin)(n) }

type admin node

func (a *admin) do(ctx context.Context, f func(s *state, now time.Duration, id uint64) output) error {
	return (*node)(a).do(ctx, f)
}

func (a *admin) Meet(ctx context.Context, addr string) error {
	if err := (*node)(a).mayCommand(ctx); err != nil {
		return err
	}
	if err := a.checkMeet(addr); err != nil {
		return err.public()
	}
	if a.cfg.Addr == "" {
		return invalid("this node opens no port: it cannot meet others").public()
	}
	return a.do(ctx, func(s *state, now time.Duration, id uint64) output { return s.meet(now, id, addr) })
}

// checkMeet says what is wrong with an address to dial, as far as the transport
// lets it: where it is not TCP an address may be any name.
func (a *admin) checkMeet(addr string) *commandError {
	err := transport.CheckDialAddr(addr)
	if addr == "" || err != nil && isTCP(a.cfg.Transport) {
		return invalid("Invalid node address specified: %v", err)
	}
	return nil
}

func (a *admin) Forget(ctx context.Context, node NodeID, force bool) error {
	return a.do(ctx, func(s *state, now time.Duration, id uint64) output { return s.forget(now, id, node, force) })
}

func (a *admin) AddSlots(ctx context.Context, slots SlotSet) error {
	return a.do(ctx, func(s *state, now time.Duration, id uint64) output { return s.addSlots(now, id, slots) })
}

func (a *admin) DelSlots(ctx context.Context, slots SlotSet) error {
	return a.do(ctx, func(s *state, now time.Duration, id uint64) output { return s.delSlots(now, id, slots) })
}

func (a *admin) SetSlots(ctx context.Context, slots SlotSet, to NodeID) error {
	n := (*node)(a)
	if err := n.mayCommand(ctx); err != nil {
		return err
	}
	v := n.engine.view.Load()
	if err := n.stillHolds(v, slots, to); err != nil {
		return err.public()
	}
	err := a.do(ctx, func(s *state, now time.Duration, id uint64) output { return s.setSlots(now, id, slots, to) })
	if err != nil || to != n.ID() {
		return err
	}
	// To whom it belongs already: that ends MIGRATING where no key is left.
	for _, m := range v.marks {
		if slots.Contains(m.Slot) && !m.Importing && v.owns(m.Slot) && !n.holdsLive(m.Slot) {
			err = errors.Join(err, a.SetSlotStable(ctx, m.Slot))
		}
	}
	return err
}

// stillHolds refuses to give slots with keys away in a group that has not formed:
// there a slot changes hands at once. In a cluster the freeze of the slots tells.
func (n *node) stillHolds(v *view, slots SlotSet, to NodeID) *commandError {
	target := slices.IndexFunc(v.nodes, func(x NodeInfo) bool { return x.ID == to })
	if !v.cluster.IsZero() || target < 0 || v.nodes[target].Self || v.leaders[v.nodes[target].Shard].epoch.Node != to {
		return nil
	}
	for slot := range slots.All() {
		if v.owns(slot) && n.holdsLive(slot) {
			return stillHoldKeys(slot)
		}
	}
	return nil
}

func (n *node) holdsLive(slot Slot) bool {
	c, err := n.lookInto(slot)
	if err != nil {
		return true // nobody asks any more
	}
	defer c.mu.RUnlock()
	return n.engine.holdsLive(slot)
}

func (a *admin) SetSlotMigrating(ctx context.Context, slot Slot, to NodeID) error {
	return a.do(ctx, func(s *state, now time.Duration, id uint64) output { return s.setSlotMigrating(now, id, slot, to) })
}

func (a *admin) SetSlotImporting(ctx context.Context, slot Slot, from NodeID) error {
	return a.do(ctx, func(s *state, now time.Duration, id uint64) output { return s.setSlotImporting(now, id, slot, from) })
}

func (a *admin) SetSlotStable(ctx context.Context, slot Slot) error {
	return a.do(ctx, func(s *state, now time.Duration, id uint64) output { return s.setSlotStable(now, id, slot) })
}

func (a *admin) BumpEpoch(ctx context.Context) error {
	return a.do(ctx, (*state).bumpEpoch)
}

func (a *admin) SetConfigEpoch(ctx context.Context, epoch uint64) error {
	return a.do(ctx, func(s *state, now time.Duration, id uint64) output { return s.setConfigEpoch(now, id, epoch) })
}

func (a *admin) Takeover(ctx context.Context) error {
	return a.do(ctx, func(s *state, now time.Duration, id uint64) output { return s.takeover(now, id) })
}

func (a *admin) Replicate(ctx context.Context, primary NodeID) error {
	n := (*node)(a)
	if err := n.mayCommand(ctx); err != nil {
		return err
	}
	keys := n.holdsKeys()
	return a.do(ctx, func(s *state, now time.Duration, id uint64) output { return s.replicate(now, id, primary, keys) })
}

func (a *admin) Failover(ctx context.Context, mode FailoverMode) error {
	if mode == FailoverTakeover {
		return a.Takeover(ctx)
	}
	if mode > FailoverTakeover {
		return invalid("failover mode %d, expected 0 to %d", mode, FailoverTakeover).public()
	}
	return a.do(ctx, func(s *state, now time.Duration, id uint64) output { return s.failoverTo(now, id, mode) })
}

func (a *admin) SetPolicy(ctx context.Context, p Policy) (err error) {
	p.problems(func(field string, value any, expected string, args ...any) {
		err = invalid("Policy.%s is %v, expected %s", field, value, fmt.Sprintf(expected, args...)).public()
	})
	if err != nil {
		return err
	}
	return a.do(ctx, func(s *state, now time.Duration, id uint64) output { return s.setPolicy(now, id, p) })
}

func (a *admin) ForceVoters(ctx context.Context, nodes []NodeID) error {
	return a.do(ctx, func(s *state, now time.Duration, id uint64) output { return s.forceVoters(now, id, nodes) })
}

func (a *admin) Reset(ctx context.Context, hard bool) error { return (*node)(a).reset(ctx, hard) }

// MoveSlots asks each owner to give its part.
func (a *admin) MoveSlots(ctx context.Context, slots SlotSet, to NodeID) error {
	n := (*node)(a)
	if err := n.mayCommand(ctx); err != nil {
		return err
	}
	v := n.engine.view.Load()
	if v.member(to) == nil {
		return invalid("Unknown node %s", to).public()
	}
	byOwner := map[NodeID]*SlotSet{}
	for slot := range slots.All() {
		owner, ok := v.Owner(slot)
		if !ok {
			return invalid("slot %d has no owner: assign it with AddSlots", slot).public()
		}
		if byOwner[owner.ID] == nil {
			byOwner[owner.ID] = &SlotSet{}
		}
		byOwner[owner.ID].Add(slot)
	}
	var there SlotSet
	if s := byOwner[to]; s != nil {
		there = *s
	}
	delete(byOwner, to)
	for _, owner := range sortedNodes(byOwner) {
		if err := n.moveFrom(ctx, owner, *byOwner[owner], to); err != nil {
			slots.Subtract(&there)
			return n.halfMoved(slots, to, err)
		}
	}
	return nil
}

// halfMoved says how much of a move has happened that has failed.
func (n *node) halfMoved(slots SlotSet, to NodeID, err error) error {
	var a *AdminError
	if !errors.As(err, &a) {
		a = &AdminError{Text: err.Error(), Err: ErrTryAgain}
		if errors.Is(err, ErrClosed) {
			a.Err = ErrClosed
		}
	}
	all, moved := slots.Len(), n.engine.view.Load().Slots(to)
	if moved.Intersect(&slots); moved.Empty() {
		return a
	}
	return &AdminError{Text: fmt.Sprintf("%d of %d slots have moved; %s", moved.Len(), all, a.Text), Outcome: Unknown, Err: a.Err}
}

// member is a member of the cluster, or nil.
func (v *view) member(id NodeID) *NodeInfo {
	for i := range v.nodes {
		if v.nodes[i].ID == id {
			return &v.nodes[i]
		}
	}
	return nil
}

// moveFrom makes one owner give slots away.
func (n *node) moveFrom(ctx context.Context, owner NodeID, slots SlotSet, to NodeID) error {
	if owner == n.ID() {
		return n.moveSlots(ctx, slots, to)
	}
	info := n.engine.view.Load().member(owner)
	if info == nil {
		return invalid("Unknown node %s", owner).public()
	}
	failed := func(o Outcome, err error) error {
		a := &AdminError{Text: fmt.Sprintf("node %s: %s", owner.short(), words(err)), Outcome: o, Err: ErrTryAgain}
		if ctx.Err() != nil {
			a.Err = ctx.Err()
		}
		return a
	}
	conn, err := n.data.get(ctx, *info)
	if err != nil {
		return failed(NotExecuted, err)
	}
	ms := int64(0)
	if end, ok := ctx.Deadline(); ok {
		ms = max(1, time.Until(end).Milliseconds())
	}
	p, err := conn.call(ctx, &request{op: opHandOff, args: [][]byte{[]byte(slots.String()), to[:], strconv.AppendInt(nil, ms, 10)}}, time.Time{})
	switch {
	case errors.Is(err, errNotSent):
		return failed(NotExecuted, err)
	case err != nil:
		return failed(Unknown, err)
	case p.status == statusOK:
		return nil
	}
	is := statusErrors[p.status]
	if is == nil || is == ErrClosed {
		is = ErrTryAgain
	}
	return &AdminError{Text: p.text, Outcome: p.outcome, Err: is}
}
