package slotmesh

import (
	"sync"

	"github.com/slotmesh/slotmesh/store"
)

// Bounds of what is read from a store at a time.
const (
	pageFirst = 16 // entries, at first
	pageMost  = 1024
	pageBytes = 256 << 10 // that they should have together
)

// slotWalk reads all that a store holds of a slot, a page at a time, so that
// nobody waits for long who wants the slot meanwhile.
type slotWalk struct {
	from  Store
	slot  Slot
	lock  sync.Locker                // of the slot, taken for each page; nil: the caller keeps others out
	page  *int                       // entries to read at a time
	take  func(ops []store.Op) error // a page, under the lock
	after func() error               // each page, without the lock; nil: there is nothing to do
}

// run reads the keys, and after each page of them their fields.
func (w *slotWalk) run() error {
	for cursor, first := uint64(0), true; first || cursor != 0; first = false {
		var items []store.Item
		err := w.read(func() (err error) {
			items, cursor, err = w.from.Scan(uint16(w.slot), cursor, *w.page)
			return w.taken(items, err)
		})
		for i := 0; i < len(items) && err == nil; i++ {
			err = w.fields(items[i].Key)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (w *slotWalk) fields(key string) error {
	for at, more := store.FirstField, true; more; {
		err := w.read(func() error {
			items, rest, err := w.from.Range(uint16(w.slot), key, at, *w.page)
			for i := range items {
				items[i].Key = key
			}
			if more = rest && len(items) > 0; more {
				at = items[len(items)-1].Field + "\x00"
			}
			return w.taken(items, err)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// read reads a page, and does what is to be done after it.
func (w *slotWalk) read(page func() error) error {
	if w.lock != nil {
		w.lock.Lock()
	}
	err := page()
	if w.lock != nil {
		w.lock.Unlock()
	}
	if err == nil && w.after != nil {
		err = w.after()
	}
	return err
}

func (w *slotWalk) taken(items []store.Item, err error) error {
	if err != nil || len(items) == 0 {
		return err
	}
	return w.take(putsOf(items))
}

// adaptPage chooses how many entries to read next, after a page of so many bytes.
func adaptPage(page, bytes int) int {
	switch {
	case bytes > pageBytes:
		return max(1, page/2)
	case bytes < pageBytes/4:
		return min(pageMost, 2*page)
	}
	return page
}

func putsOf(items []store.Item) []store.Op {
	ops := make([]store.Op, len(items))
	for i := range items {
		ops[i] = putOf(&items[i])
	}
	return ops
}

func putOf(it *store.Item) store.Op {
	return store.Op{Code: store.OpPut, Key: it.Key, Field: it.Field, Value: it.Value, ExpireAt: it.ExpireAt, Kind: it.Kind}
}
