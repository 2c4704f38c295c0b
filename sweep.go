package slotmesh

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/slotmesh/slotmesh/store"
)

// A read hides a key whose time has come and leaves it where it is; the sweeper
// removes it. It walks the slots that are served or imported here, some keys at
// a time, and goes on at once while a good part of what it sees has expired. A
// node that has never stored a time of expiry does not walk at all.

const (
	sweepEvery = 100 * time.Millisecond
	sweepKeys  = 1024 // looked at each time, about
	sweepPage  = 128
	sweepDense = 4 // with one expired key in so many the next look follows at once
)

// sweeper removes expired keys.
type sweeper struct {
	e      *engine
	needed atomic.Bool   // some key has, or has had, a time of expiry
	begin  chan struct{} // closed then
	slot   Slot
	cursor uint64
}

// noteExpiry wakes the sweeper for good once a time of expiry is stored.
func (w *sweeper) noteExpiry(ops []store.Op) {
	if w.needed.Load() {
		return
	}
	for i := range ops {
		if ops[i].ExpireAt != 0 {
			if w.needed.CompareAndSwap(false, true) {
				close(w.begin)
			}
			return
		}
	}
}

func (w *sweeper) run(ctx context.Context) {
	select {
	case <-w.begin:
	case <-ctx.Done():
		return
	}
	t := time.NewTicker(sweepEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		for w.look(ctx) && ctx.Err() == nil {
		}
	}
}

// look walks on by some keys, and reports whether many of them had expired.
func (w *sweeper) look(ctx context.Context) bool {
	seen, gone := 0, 0
	for steps := 0; seen < sweepKeys && steps < NumSlots; steps++ {
		keys, expired := w.page()
		seen += keys
		for _, key := range expired {
			if w.remove(ctx, key) {
				gone++
			}
		}
	}
	return gone*sweepDense > seen
}

// page looks at a page of the slot that it is at, and moves on.
func (w *sweeper) page() (keys int, expired []string) {
	slot := w.slot
	c := w.e.cell(slot)
	if c == nil {
		// Nothing of the whole page of slots has ever been served.
		w.slot, w.cursor = (slot/cellPageSlots+1)*cellPageSlots%NumSlots, 0
		return 0, nil
	}
	c.mu.RLock()
	var items []store.Item
	var next uint64
	if ok, _ := c.enter(); ok || c.mark.Load() != nil {
		items, next, _ = w.e.store.Scan(uint16(slot), w.cursor, sweepPage)
	}
	c.mu.RUnlock()
	if w.cursor = next; next == 0 {
		w.slot = (slot + 1) % NumSlots
	}
	now := time.Now().UnixMilli()
	for i := range items {
		if at := items[i].ExpireAt; at != 0 && at <= now {
			expired = append(expired, items[i].Key)
		}
	}
	return len(items), expired
}

// remove deletes a key if its time has really come, as any other write.
func (w *sweeper) remove(ctx context.Context, key string) bool {
	removed := false
	r := Request{Keys: []string{key}, Name: "expire", Anyway: true}
	_, err := w.e.execute(ctx, new(Tx), &r, func(tx *Tx) error {
		e, found, err := w.e.store.Get(uint16(tx.slot), key, "")
		if err != nil || !found || !tx.expired(&e) {
			return err
		}
		removed = true
		tx.add(store.Op{Code: store.OpDeleteKey, Key: key})
		return nil
	}, waitNot)
	return removed && err == nil
}
