package slotmesh

import (
	"context"
	"math"
	"sync/atomic"
	"time"

	"github.com/slotmesh/slotmesh/store"
)

// A read hides a key whose time has come and leaves it where it is; the sweeper
// removes it. Each slot notes the earliest time of expiry that has been stored in
// it, each run of 64 slots the earliest of theirs. So the sweeper sleeps until
// something is due, and walks the slots alone in which it is; on its way it finds
// out what is due there next. It walks some keys at a time, and goes on at once
// while a good part of what it sees has expired.

const (
	sweepEvery = 100 * time.Millisecond
	sweepLater = time.Second // looks again at what it could not remove
	sweepSleep = time.Minute // at most, as the time of day may be set
	sweepKeys  = 1024        // looked at each time, about
	sweepPage  = 128
	sweepDense = 4 // with one expired key in so many the next look follows at once
)

// sweeper removes expired keys.
type sweeper struct {
	e     *engine
	pages [NumSlots / cellPageSlots]dueTime // per page of cells, the earliest of its slots
	next  atomic.Int64                      // when it looks next
	wake  chan struct{}                     // holds one token: something is due before that

	// Its own: the slot that it is in.
	inside bool
	slot   Slot
	cursor uint64
}

// dueTime is a time of expiry, in Unix ms, that is not after any of those it
// stands for; 0 is never.
type dueTime struct{ ms atomic.Int64 }

// atMost makes the time no later than at, and reports whether it was.
func (d *dueTime) atMost(at int64) bool {
	for {
		was := d.ms.Load()
		if was != 0 && was <= at {
			return false
		}
		if d.ms.CompareAndSwap(was, at) {
			return true
		}
	}
}

func (d *dueTime) due(now int64) bool {
	at := d.ms.Load()
	return at != 0 && at <= now
}

func (w *sweeper) init(e *engine) {
	w.e, w.wake = e, make(chan struct{}, 1)
	w.next.Store(math.MaxInt64)
}

// noteSlots notes slots of which nobody knows what is in them.
func (w *sweeper) noteSlots(slots *SlotSet) {
	for slot := range slots.All() {
		w.note(slot, 1)
	}
}

// noteOps notes the times of expiry that have been stored in a slot.
func (w *sweeper) noteOps(slot Slot, ops []store.Op) {
	for i := range ops {
		if at := ops[i].ExpireAt; at != 0 {
			w.note(slot, at)
		}
	}
}

// note notes that something in a slot may be due at a time.
func (w *sweeper) note(slot Slot, at int64) {
	if w.e.makeCell(slot).due.atMost(at) && w.pages[slot/cellPageSlots].atMost(at) && at < w.next.Load() {
		signal(w.wake)
	}
}

func (w *sweeper) run(ctx context.Context) {
	at := time.Now().Add(w.sleep())
	timer := time.NewTimer(time.Until(at))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.wake:
			if earlier := time.Now().Add(w.sleep()); earlier.Before(at) {
				at = earlier
			}
		case <-timer.C:
			for w.look(ctx) && ctx.Err() == nil {
			}
			at = time.Now().Add(w.sleep())
		}
		timer.Reset(time.Until(at))
	}
}

// sleep is how long there is nothing to do.
func (w *sweeper) sleep() time.Duration {
	if w.inside {
		return sweepEvery
	}
	at := int64(math.MaxInt64)
	w.next.Store(at)
	for i := range w.pages {
		if t := w.pages[i].ms.Load(); t != 0 {
			at = min(at, t)
		}
	}
	w.next.Store(at) // what was noted before is counted, what is noted after wakes
	wait := time.Duration(min(at-time.Now().UnixMilli(), sweepSleep.Milliseconds())) * time.Millisecond
	return max(sweepEvery, wait)
}

// look walks on by some keys, and reports whether many of them had expired.
func (w *sweeper) look(ctx context.Context) bool {
	seen, gone := 0, 0
	for pages := 0; seen < sweepKeys && pages < NumSlots && (w.inside || w.enter(time.Now().UnixMilli())); pages++ {
		keys, expired := w.page()
		seen += keys
		for _, key := range expired {
			if w.remove(ctx, key) {
				gone++
			} else {
				w.note(w.slot, time.Now().Add(sweepLater).UnixMilli())
			}
		}
		if w.inside = w.cursor != 0; !w.inside {
			w.settle(int(w.slot) / cellPageSlots)
		}
	}
	return gone > 0 && gone*sweepDense > seen
}

// enter finds a slot in which something is due, and begins to walk it.
func (w *sweeper) enter(now int64) bool {
	for i := range w.pages {
		if !w.pages[i].due(now) {
			continue
		}
		for s := range cellPageSlots {
			slot := Slot(i*cellPageSlots + s)
			if c := w.e.cell(slot); c != nil && c.due.due(now) {
				c.due.ms.Store(0) // what is noted from here on is found by this walk, or counts
				w.inside, w.slot, w.cursor = true, slot, 0
				return true
			}
		}
		w.settle(i)
	}
	return false
}

// settle works out what is due next in a page of slots.
func (w *sweeper) settle(page int) {
	w.pages[page].ms.Store(0)
	for s := range cellPageSlots {
		if c := w.e.cell(Slot(page*cellPageSlots + s)); c != nil {
			if at := c.due.ms.Load(); at != 0 {
				w.pages[page].atMost(at)
			}
		}
	}
}

// page looks at a page of the slot that it is in.
func (w *sweeper) page() (keys int, expired []string) {
	c := w.e.cell(w.slot)
	now := time.Now()
	if ok, _ := c.enter(); !ok && c.mark.Load() == nil || !c.mu.TryRLock() {
		w.cursor = 0
		w.note(w.slot, now.Add(sweepLater).UnixMilli()) // not served, or somebody holds it for long
		return 0, nil
	}
	items, next, err := w.e.store.Scan(uint16(w.slot), w.cursor, sweepPage)
	c.mu.RUnlock()
	if w.cursor = next; err != nil {
		w.cursor = 0
		w.note(w.slot, now.Add(sweepLater).UnixMilli())
	}
	for i := range items {
		switch at := items[i].ExpireAt; {
		case at == 0:
		case at <= now.UnixMilli():
			expired = append(expired, items[i].Key)
		default:
			w.note(w.slot, at)
		}
	}
	return len(items), expired
}

// remove deletes a key if its time has really come, as any other write.
func (w *sweeper) remove(ctx context.Context, key string) (done bool) {
	r := Request{Keys: []string{key}, Name: "expire", Anyway: true, unwatched: true}
	_, err := w.e.execute(ctx, new(Tx), &r, func(tx *Tx) error {
		e, found, err := w.e.store.Get(uint16(tx.slot), key, "")
		if err != nil || !found || e.ExpireAt == 0 {
			return err
		}
		if !tx.expired(&e) {
			w.note(tx.slot, e.ExpireAt)
			return nil
		}
		tx.add(store.Op{Code: store.OpDeleteKey, Key: key})
		return nil
	}, waitNot)
	return err == nil
}
