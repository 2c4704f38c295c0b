package storetest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/slotmesh/slotmesh/store"
)

// A broken store is right but for the calls that it replaces.
type broken struct {
	store.Store
	get    func(s store.Store, slot uint16, key, field string) (store.Entry, bool, error)
	ranged func(s store.Store, slot uint16, key, from string, limit int) ([]store.Item, bool, error)
	apply  func(s store.Store, slot uint16, ops []store.Op) error
	len    func(s store.Store, slot uint16) (int, error)
	scan   func(s store.Store, slot uint16, cursor uint64, limit int) ([]store.Item, uint64, error)
	drop   func(s store.Store, slot uint16) error
	close  func(s store.Store) error
}

func (b broken) Get(slot uint16, key, field string) (store.Entry, bool, error) {
	if b.get == nil {
		return b.Store.Get(slot, key, field)
	}
	return b.get(b.Store, slot, key, field)
}

func (b broken) Range(slot uint16, key, from string, limit int) ([]store.Item, bool, error) {
	if b.ranged == nil {
		return b.Store.Range(slot, key, from, limit)
	}
	return b.ranged(b.Store, slot, key, from, limit)
}

func (b broken) Apply(slot uint16, ops []store.Op) error {
	if b.apply == nil {
		return b.Store.Apply(slot, ops)
	}
	return b.apply(b.Store, slot, ops)
}

func (b broken) Len(slot uint16) (int, error) {
	if b.len == nil {
		return b.Store.Len(slot)
	}
	return b.len(b.Store, slot)
}

func (b broken) Scan(slot uint16, cursor uint64, limit int) ([]store.Item, uint64, error) {
	if b.scan == nil {
		return b.Store.Scan(slot, cursor, limit)
	}
	return b.scan(b.Store, slot, cursor, limit)
}

func (b broken) Drop(slot uint16) error {
	if b.drop == nil {
		return b.Store.Drop(slot)
	}
	return b.drop(b.Store, slot)
}

func (b broken) Close() error {
	if b.close == nil {
		return b.Store.Close()
	}
	return b.close(b.Store)
}

// each applies the ops that change returns for each op, with one Apply per op.
func each(change func(op store.Op) store.Op) func(s store.Store, slot uint16, ops []store.Op) error {
	return func(s store.Store, slot uint16, ops []store.Op) error {
		changed := make([]store.Op, len(ops))
		for i, op := range ops {
			changed[i] = change(op)
		}
		return s.Apply(slot, changed)
	}
}

func TestASuiteFailsOnAStoreThatBreaksTheContract(t *testing.T) {
	for _, c := range []struct {
		bug    string
		broken broken
		check  string // one that must find it
	}{
		{"an expired entry is hidden", broken{get: func(s store.Store, slot uint16, key, field string) (store.Entry, bool, error) {
			e, found, err := s.Get(slot, key, field)
			if e.ExpireAt == 1 {
				return store.Entry{}, false, nil
			}
			return e, found, err
		}}, "what is put is what is got"},
		{"the kind is lost", broken{apply: each(func(op store.Op) store.Op {
			if op.Code == store.OpPut && op.Field == "" {
				op.Kind = 0
			}
			return op
		})}, "what is put is what is got"},
		{"two slots share a table", broken{apply: func(s store.Store, slot uint16, ops []store.Op) error {
			return s.Apply(slot&^1, ops)
		}}, "a slot sees nothing of another"},
		{"deleting the head deletes the key", broken{apply: each(func(op store.Op) store.Op {
			if op.Code == store.OpDelete && op.Field == "" {
				op.Code = store.OpDeleteKey
			}
			return op
		})}, "a key lives from its first entry to its last"},
		{"range leaves the head out", broken{ranged: func(s store.Store, slot uint16, key, from string, limit int) ([]store.Item, bool, error) {
			return s.Range(slot, key, max(from, store.FirstField), limit)
		}}, "range goes through the fields in byte order"},
		{"range returns the fields backwards", broken{ranged: func(s store.Store, slot uint16, key, from string, limit int) ([]store.Item, bool, error) {
			items, more, err := s.Range(slot, key, from, limit)
			slices.Reverse(items)
			return items, more, err
		}}, "range goes through the fields in byte order"},
		{"range never says more", broken{ranged: func(s store.Store, slot uint16, key, from string, limit int) ([]store.Item, bool, error) {
			items, _, err := s.Range(slot, key, from, limit)
			return items, false, err
		}}, "range goes on where it stopped"},
		{"range returns the caller's view of the key", broken{ranged: func(s store.Store, slot uint16, key, from string, limit int) ([]store.Item, bool, error) {
			items, more, err := s.Range(slot, key, from, limit)
			for i := range items {
				items[i].Key = key
			}
			return items, more, err
		}}, "values are nobody's to change"},
		{"a batch is applied backwards", broken{apply: func(s store.Store, slot uint16, ops []store.Op) error {
			ops = slices.Clone(ops)
			slices.Reverse(ops)
			return s.Apply(slot, ops)
		}}, "a batch is applied in order"},
		{"a batch stops at its bad op", broken{apply: func(s store.Store, slot uint16, ops []store.Op) error {
			if err := s.Apply(slot, nil); err != nil {
				return err
			}
			for i := range ops {
				if err := s.Apply(slot, ops[i:i+1]); err != nil {
					return store.CheckOps(ops)
				}
			}
			return nil
		}}, "a batch with a bad op changes nothing"},
		{"a put appends", broken{apply: func(s store.Store, slot uint16, ops []store.Op) error {
			ops = slices.Clone(ops)
			for i, op := range ops {
				if e, _, _ := s.Get(slot, op.Key, op.Field); op.Code == store.OpPut {
					ops[i].Value = append(slices.Clone(e.Value), op.Value...)
				}
			}
			return s.Apply(slot, ops)
		}}, "a batch applied twice is applied once"},
		{"a slot out of range wraps", broken{len: func(s store.Store, slot uint16) (int, error) {
			return s.Len(slot % store.NumSlots)
		}}, "a bad slot or limit is named"},
		{"a negative limit is taken for none", broken{scan: func(s store.Store, slot uint16, cursor uint64, limit int) ([]store.Item, uint64, error) {
			return s.Scan(slot, cursor, max(limit, 0))
		}}, "a bad slot or limit is named"},
		{"a value is overwritten in place", broken{apply: func(s store.Store, slot uint16, ops []store.Op) error {
			for _, op := range ops {
				if e, _, _ := s.Get(slot, op.Key, op.Field); op.Code == store.OpPut && len(e.Value) == len(op.Value) {
					copy(e.Value, op.Value)
				}
			}
			return s.Apply(slot, ops)
		}}, "values are nobody's to change"},
		{"a value is handed out with room behind it", broken{get: roomBehind()}, "values are nobody's to change"},
		{"len counts entries", broken{len: func(s store.Store, slot uint16) (int, error) {
			items, _, err := s.Scan(slot, 0, math.MaxInt)
			n := 0
			for _, it := range items {
				all, _, _ := s.Range(slot, it.Key, "", math.MaxInt)
				n += len(all)
			}
			return n, err
		}}, "len counts keys and not entries"},
		{"scan leaves out keys without a head", broken{scan: func(s store.Store, slot uint16, cursor uint64, limit int) ([]store.Item, uint64, error) {
			items, next, err := s.Scan(slot, cursor, limit)
			return slices.DeleteFunc(items, func(it store.Item) bool { return it.Field != "" }), next, err
		}}, "scan returns every key"},
		{"scan walks an array upwards whose holes are filled from the end", broken{scan: func(s store.Store, slot uint16, cursor uint64, limit int) ([]store.Item, uint64, error) {
			items, _, err := s.Scan(slot, 0, math.MaxInt)
			slices.Reverse(items)
			start := min(cursor, uint64(len(items)))
			end := min(start+uint64(limit), uint64(len(items)))
			if int(end) == len(items) {
				return items[start:], 0, err
			}
			return items[start:end], end, err
		}}, "scan misses no key that stays while others come and go"},
		{"scan refuses a cursor that it does not know", broken{scan: func(s store.Store, slot uint16, cursor uint64, limit int) ([]store.Item, uint64, error) {
			if n, err := s.Len(slot); err == nil && cursor > uint64(n) {
				return nil, 0, fmt.Errorf("no cursor %d", cursor)
			}
			return s.Scan(slot, cursor, limit)
		}}, "scan takes any cursor"},
		{"drop does nothing", broken{drop: func(s store.Store, slot uint16) error {
			return s.Apply(slot, nil)
		}}, "drop empties a slot and no other"},
		{"drop takes the next slot along", broken{drop: func(s store.Store, slot uint16) error {
			_ = s.Drop(slot + 1)
			return s.Drop(slot)
		}}, "drop empties a slot and no other"},
		{"drop leaves the rest for later", broken{drop: func(s store.Store, slot uint16) error {
			items, _, err := s.Scan(slot, 0, 1000)
			for _, it := range items {
				err = errors.Join(err, s.Apply(slot, []store.Op{{Code: store.OpDeleteKey, Key: it.Key}}))
			}
			return err
		}}, "drop detaches at once"},
		{"what is dropped is removed later, by its name", removedLater(), "drop detaches at once"},
		{"a long value is cut", broken{apply: each(func(op store.Op) store.Op {
			op.Value = op.Value[:min(len(op.Value), 1<<20)]
			return op
		})}, "big values and many keys"},
		{"a rare field is lost", broken{apply: each(func(op store.Op) store.Op {
			if op.Code == store.OpPut && op.Field == "\x99f" {
				op.Field = "\x88f"
			}
			return op
		})}, "random changes agree with a plain map"},
		{"a reader sees half a batch", broken{get: func(s store.Store, slot uint16, key, field string) (store.Entry, bool, error) {
			e, found, err := s.Get(slot, key, field)
			if key == "h" && len(e.Value) > 1 {
				e.Value = e.Value[:len(e.Value)-1]
			}
			return e, found, err
		}}, "slots are used side by side"},
		{"close does nothing", broken{close: func(store.Store) error { return nil }}, "a closed store says so"},
		{"the second close fails", broken{close: func(s store.Store) error {
			if _, err := s.Len(0); err != nil {
				return err
			}
			return s.Close()
		}}, "a closed store says so"},
	} {
		t.Run(c.bug, func(t *testing.T) {
			inner := store.NewMemory()
			defer inner.Close()
			c.broken.Store = inner
			if !fails(t, c.check, c.broken) {
				t.Errorf("%q passes", c.check)
			}
		})
	}
}

// removedLater returns a store that forgets dropped keys at once and frees them with
// the changes that follow, one with each: by then the name may be another one's.
func removedLater() broken {
	var later []string
	drop := func(s store.Store, slot uint16) error {
		items, _, err := s.Scan(slot, 0, 0)
		for _, it := range items {
			later = append(later, it.Key)
		}
		return errors.Join(err, s.Drop(slot))
	}
	return broken{drop: drop, apply: func(s store.Store, slot uint16, ops []store.Op) error {
		if err := s.Apply(slot, ops); err != nil || len(later) == 0 {
			return err
		}
		key := later[0]
		later = later[1:]
		return s.Apply(slot, []store.Op{{Code: store.OpDeleteKey, Key: key}})
	}}
}

// roomBehind returns a Get that hands every value out of one array, so that an
// append to one value changes the next.
func roomBehind() func(s store.Store, slot uint16, key, field string) (store.Entry, bool, error) {
	arena, at := make([]byte, 64), map[string]int{}
	return func(s store.Store, slot uint16, key, field string) (store.Entry, bool, error) {
		e, found, err := s.Get(slot, key, field)
		start, ok := at[string(e.Value)]
		if !ok {
			start = len(at) * 5
			at[string(e.Value)] = start
			copy(arena[start:], e.Value)
		}
		e.Value = arena[start : start+len(e.Value)]
		return e, found, err
	}
}

// A durable is a Durable store whose disk is always there at once, but for
// what the bug says.
type durable struct {
	store.Store
	bug string

	mu        sync.Mutex
	positions map[uint16]uint64
	closed    chan struct{}
}

func newDurable(bug string) *durable {
	return &durable{Store: store.NewMemory(), bug: bug, positions: map[uint16]uint64{}, closed: make(chan struct{})}
}

func (d *durable) Apply(slot uint16, ops []store.Op) error {
	d.step(slot)
	return d.Store.Apply(slot, ops)
}

func (d *durable) Drop(slot uint16) error {
	d.step(slot)
	if d.bug == "a drop starts over" {
		d.mu.Lock()
		delete(d.positions, slot)
		d.mu.Unlock()
	}
	return d.Store.Drop(slot)
}

func (d *durable) step(slot uint16) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.bug != "the position stands still" {
		d.positions[slot]++
	}
}

func (d *durable) Position(slot uint16) uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.positions[slot]
}

func (d *durable) Wait(ctx context.Context, slot uint16, position uint64) error {
	if position <= d.Position(slot) || d.bug == "wait does not wait" {
		return nil
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-d.closed:
		return store.ErrClosed
	}
}

func (d *durable) Close() error {
	select {
	case <-d.closed:
	default:
		close(d.closed)
	}
	return d.Store.Close()
}

func TestASuiteChecksDurableStores(t *testing.T) {
	if fails(t, "a durable store waits", newDurable("")) {
		t.Error("a store that keeps the contract does not pass")
	}
	for _, bug := range []string{"the position stands still", "a drop starts over", "wait does not wait"} {
		if !fails(t, "a durable store waits", newDurable(bug)) {
			t.Errorf("a store passes though %s", bug)
		}
	}
}

// A recorder stands in for a test that is expected to fail.
type recorder struct {
	testing.TB // nil: a check uses nothing else

	mu       sync.Mutex
	failures []string
}

func (r *recorder) Helper() {}

func (r *recorder) Errorf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures = append(r.failures, fmt.Sprintf(format, args...))
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	runtime.Goexit()
}

// fails reports whether the named check fails on the store.
func fails(t *testing.T, name string, s store.Store) bool {
	t.Helper()
	i := slices.IndexFunc(checks, func(c check) bool { return c.name == name })
	if i < 0 {
		t.Fatalf("no check is called %q", name)
	}
	var r recorder
	var wg sync.WaitGroup
	wg.Go(func() { checks[i].run(&r, s) }) // of its own, for Fatalf ends it
	wg.Wait()
	if len(r.failures) > 0 {
		first, _, _ := strings.Cut(r.failures[0], "\n")
		t.Logf("%s: %.200s", name, first)
	}
	return len(r.failures) > 0
}
