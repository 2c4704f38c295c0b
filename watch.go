package slotmesh

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/slotmesh/slotmesh/store"
)

// Watch tells of changes of keys that this node serves. Node.Watch makes one.
// Its methods may be called from any goroutine, also from inside a Tx: a key
// that is added there is watched from before the Tx on.
type Watch struct {
	all *watches
	f   func(key string, gone bool)

	mu     sync.Mutex
	keys   map[string]struct{} // guarded by mu
	every  bool                // guarded by mu
	closed bool                // guarded by mu
}

// Watch implements Node.
func (n *node) Watch(f func(key string, gone bool)) *Watch {
	if f == nil {
		panic("slotmesh: Node.Watch: nil function, expected one to call at each change")
	}
	return &Watch{all: &n.engine.watches, f: f, keys: map[string]struct{}{}}
}

// Add watches keys, until they are removed. Their number is not bounded here.
func (w *Watch) Add(keys ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, k := range keys {
		if _, there := w.keys[k]; there || w.closed {
			continue
		}
		w.keys[k] = struct{}{}
		w.all.add(k, w)
	}
}

// Remove watches keys no longer. A call of the function that has begun may still
// be running.
func (w *Watch) Remove(keys ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, k := range keys {
		if _, there := w.keys[k]; there {
			delete(w.keys, k)
			w.all.remove(k, w)
		}
	}
}

// All watches every key that is served here. Of slots that go it hears nothing.
func (w *Watch) All() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.every && !w.closed {
		w.every = true
		w.all.addEvery(w)
	}
}

// Close ends the watch. It is idempotent. A call of the function that has begun
// may still be running.
func (w *Watch) Close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for k := range w.keys {
		w.all.remove(k, w)
	}
	if w.every {
		w.all.removeEvery(w)
	}
	w.keys, w.every, w.closed = nil, false, true
}

const watchShards = 64

// watches is who watches which key. Writers look in under the lock of their
// slot, so it must be quick where nobody watches anything.
type watches struct {
	keys   atomic.Int64 // watched
	every  atomic.Pointer[[]*Watch]
	mu     sync.Mutex // of those who change every
	shards [watchShards]watchShard
}

type watchShard struct {
	mu    sync.Mutex
	slots map[Slot]map[string][]*Watch // guarded by mu
}

func (a *watches) shard(slot Slot) *watchShard { return &a.shards[slot%watchShards] }

func (a *watches) add(key string, w *Watch) {
	slot := KeySlot(key)
	s := a.shard(slot)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.slots == nil {
		s.slots = map[Slot]map[string][]*Watch{}
	}
	if s.slots[slot] == nil {
		s.slots[slot] = map[string][]*Watch{}
	}
	s.slots[slot][key] = append(s.slots[slot][key], w)
	a.keys.Add(1)
}

func (a *watches) remove(key string, w *Watch) {
	slot := KeySlot(key)
	s := a.shard(slot)
	s.mu.Lock()
	defer s.mu.Unlock()
	keys := s.slots[slot]
	rest := slices.DeleteFunc(slices.Clone(keys[key]), func(x *Watch) bool { return x == w })
	a.keys.Add(int64(len(rest) - len(keys[key])))
	if keys[key] = rest; len(rest) > 0 {
		return
	}
	if delete(keys, key); len(keys) == 0 {
		delete(s.slots, slot)
	}
}

func (a *watches) addEvery(w *Watch) {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := append(slices.Clone(a.everyone()), w)
	a.every.Store(&all)
}

func (a *watches) removeEvery(w *Watch) {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := slices.DeleteFunc(slices.Clone(a.everyone()), func(x *Watch) bool { return x == w })
	a.every.Store(&all)
}

func (a *watches) everyone() []*Watch {
	if p := a.every.Load(); p != nil {
		return *p
	}
	return nil
}

// changed tells of what has been applied to a slot, under the slot's lock.
func (a *watches) changed(slot Slot, ops []store.Op) {
	every := a.everyone()
	if a.keys.Load() == 0 && len(every) == 0 {
		return
	}
	for i := range ops {
		switch {
		case ops[i].Code == store.OpDropSlot:
			a.tellSlot(slot, false)
		case i == 0 || ops[i].Key != ops[i-1].Key:
			for _, w := range every {
				w.f(ops[i].Key, false)
			}
			for _, w := range a.of(slot, ops[i].Key) {
				w.f(ops[i].Key, false)
			}
		}
	}
}

// of is who watches a key. The slice is never changed, only replaced.
func (a *watches) of(slot Slot, key string) []*Watch {
	s := a.shard(slot)
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clip(s.slots[slot][key])
}

// tellSlot tells of every watched key of a slot, under the slot's lock: all have
// gone, or the slot has.
func (a *watches) tellSlot(slot Slot, gone bool) {
	if a.keys.Load() == 0 {
		return
	}
	s := a.shard(slot)
	s.mu.Lock()
	keys := map[string][]*Watch{}
	for k, ws := range s.slots[slot] {
		keys[k] = slices.Clip(ws)
	}
	s.mu.Unlock()
	for k, ws := range keys {
		for _, w := range ws {
			w.f(k, gone)
		}
	}
}
