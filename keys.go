package slotmesh

import (
	"context"
	"fmt"

	"github.com/slotmesh/slotmesh/store"
)

// What this node's store holds of a slot, whoever owns the slot: for operators
// and for fronts. The keys of a slot that is not served here may be on their way
// in or out.

func checkSlot(slot Slot) error {
	if slot >= NumSlots {
		return fmt.Errorf("%w: slot %d, expected 0 to %d", ErrInvalid, slot, NumSlots-1)
	}
	return nil
}

// CountKeys implements Node.
func (n *node) CountKeys(slot Slot) (int, error) {
	if err := checkSlot(slot); err != nil {
		return 0, err
	}
	c, err := n.lookInto(slot)
	if err != nil {
		return 0, err
	}
	defer c.mu.RUnlock()
	return n.cfg.Store.Len(uint16(slot))
}

// CountExpiring implements Node.
func (n *node) CountExpiring(slot Slot) (int, error) {
	if err := checkSlot(slot); err != nil {
		return 0, err
	}
	counts, ok := n.cfg.Store.(store.Expiring)
	if !ok {
		return 0, nil
	}
	c, err := n.lookInto(slot)
	if err != nil {
		return 0, err
	}
	defer c.mu.RUnlock()
	return counts.LenExpiring(uint16(slot))
}

// lookInto locks a slot for reading, unless the node is closed: Close waits for
// whoever is in a slot, and from then on nobody touches the store.
func (n *node) lookInto(slot Slot) (*slotCell, error) {
	c := n.engine.makeCell(slot)
	c.mu.RLock()
	if n.engine.closed.Load() {
		c.mu.RUnlock()
		return nil, ErrClosed
	}
	return c, nil
}

// ScanSlot implements Node.
func (n *node) ScanSlot(slot Slot, cursor uint64, limit int) ([]store.Item, uint64, error) {
	if err := checkSlot(slot); err != nil {
		return nil, 0, err
	}
	if limit < 0 {
		return nil, 0, fmt.Errorf("%w: limit %d of a scan, expected 0 or more", ErrInvalid, limit)
	}
	c, err := n.lookInto(slot)
	if err != nil {
		return nil, 0, err
	}
	defer c.mu.RUnlock()
	return n.cfg.Store.Scan(uint16(slot), cursor, limit)
}

// FlushSlot implements Node.
func (n *node) FlushSlot(ctx context.Context, slot Slot) error {
	r := Request{Name: "flush", Anyway: true}
	err := checkSlot(slot)
	ran := false
	if err == nil {
		ran, err = n.engine.executeAt(ctx, slot, new(Tx), &r, flush, waitHold)
	}
	if err == nil {
		return nil
	}
	return &OpError{Op: r.Name, Slot: min(slot, NumSlots), Node: n.ID(), Outcome: outcomeOf(ran), Err: err}
}

// flush is one effect, however many keys there are.
func flush(tx *Tx) error {
	if keys, err := tx.e.store.Len(uint16(tx.slot)); keys == 0 {
		return err
	}
	tx.add(store.Op{Code: store.OpDropSlot})
	return nil
}
