package slotmesh

import (
	"context"
	"time"
)

// RESET and joining throw away what a node has. The core refuses where that is
// keys, and the driver knows whether it is. To know it for good a RESET lets
// nobody into a slot from before it looks until the node has become another one:
// what is acknowledged meanwhile would go with it.

// reset makes this node another one. Once the core has been asked it goes on,
// whether its caller waits or not.
func (n *node) reset(ctx context.Context, hard bool) error {
	if err := n.mayCommand(ctx); err != nil {
		return err
	}
	paused := make(chan *commandError, 1)
	err := n.post(ctx, func(s *state, now time.Duration) output {
		paused <- n.pause()
		s.begin(now)
		return s.end()
	})
	if err != nil {
		return err
	}
	if err := <-paused; err != nil {
		return err.public()
	}
	done := make(chan error, 1)
	if !n.goes(func() { done <- n.resetPaused(ctx, hard) }) {
		return nodeClosed()
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return &AdminError{Text: "the context was over before the answer came; it may still happen", Outcome: Unknown, Err: ctx.Err()}
	}
}

func (n *node) resetPaused(ctx context.Context, hard bool) error {
	defer n.post(n.ctx, func(s *state, now time.Duration) output {
		n.unpause()
		s.begin(now)
		return s.end()
	})
	keys := n.holdsKeys()
	if err := ctx.Err(); err != nil {
		return contextOver(err)
	}
	err := n.do(n.ctx, func(s *state, now time.Duration, id uint64) output {
		if n.jobs.taking() {
			s.begin(now)
			s.reply(id, tryAgain("slots are on their way to this node"))
			return s.end()
		}
		return s.reset(now, id, hard, keys)
	})
	if err == nil {
		n.dropAll() // of slots that it no longer had
		err = n.kept.clear()
	}
	return err
}

// pause keeps requests out of every slot, and hand-overs away. The run loop
// calls it.
func (n *node) pause() *commandError {
	if n.paused != nil {
		return tryAgain("this node is being reset already")
	}
	n.paused = &gate{&hold{over: make(chan struct{}), limit: n.cfg.NodeTimeout}}
	n.engine.setGate(&n.applied.slots, n.paused)
	n.jobs.refuseAll(true)
	return nil
}

// unpause ends a pause. The run loop calls it.
func (n *node) unpause() {
	n.engine.setGate(&n.applied.slots, openGate)
	close(n.paused.hold.over)
	n.paused = nil
	n.jobs.refuseAll(false)
}

// open is the gate of a slot that is served.
func (n *node) openGate() *gate {
	if n.paused != nil {
		return n.paused
	}
	return openGate
}

// holdsKeys reports whether the store has any key. It waits for whoever is in a
// slot.
func (n *node) holdsKeys() bool {
	for slot := range NumSlots {
		if n.engine.keys(Slot(slot)) > 0 {
			return true
		}
	}
	return false
}

// dropAll drops whatever the store has.
func (n *node) dropAll() {
	for slot := range NumSlots {
		c := n.engine.makeCell(Slot(slot))
		c.mu.Lock()
		if keys, err := n.cfg.Store.Len(uint16(slot)); keys > 0 || err != nil {
			n.jobs.letGo(Slot(slot), c)
		}
		c.mu.Unlock()
	}
}

// noteKeys tells the core whether there are keys that it would give up: by joining
// another cluster, or by following a primary, as a node without slots may. The run
// loop calls it at each tick; a write since then counts as a key.
func (n *node) noteKeys() {
	var slots SlotSet
	switch {
	case n.core.cluster.IsZero() && n.core.table.owned[n.core.self.Shard] > 0:
		slots = n.core.table.slotsOf(n.core.self.Shard)
	case n.cfg.Replicas > 0 && n.core.spareNode(n.core.self):
		slots.AddRange(SlotRange{0, NumSlots - 1})
	default:
		return
	}
	if n.engine.wrote.Swap(false) && n.mayHoldKeys(&slots) {
		n.engine.wrote.Store(true)
	}
}

// mayHoldKeys is holdsKeys without a wait: a slot in which somebody runs counts
// as one with keys.
func (n *node) mayHoldKeys(slots *SlotSet) bool {
	for slot := range slots.All() {
		c := n.engine.makeCell(slot)
		if !c.mu.TryRLock() {
			return true
		}
		keys, err := n.cfg.Store.Len(uint16(slot))
		c.mu.RUnlock()
		if keys > 0 || err != nil {
			return true
		}
	}
	return false
}
