package resp

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/slotmesh/slotmesh"
)

// moving is the keys that MIGRATE is sending. Writes of clients to them wait, or
// a key that is written all the time would never arrive. What gets through, since
// it was under way or comes from the application itself, is noted.
type moving struct {
	watch *slotmesh.Watch
	n     atomic.Int32 // keys; whoever writes looks here first

	mu   sync.Mutex
	keys map[string]*movingKey // guarded by mu
}

type movingKey struct {
	changed bool
	over    chan struct{} // closed when it has moved, or has not
}

func (m *moving) init(node slotmesh.Node) {
	m.keys = map[string]*movingKey{}
	m.watch = node.Watch(m.note)
}

// note is called under the lock of the key's slot.
func (m *moving) note(key string, gone bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if k := m.keys[key]; k != nil {
		k.changed = true
	}
}

// begin waits until nobody else moves the keys, and takes them all.
func (m *moving) begin(ctx context.Context, keys []string) error {
	for {
		busy := m.take(keys)
		if busy == nil {
			m.watch.Add(keys...)
			return nil
		}
		select {
		case <-busy:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// take takes the keys, or returns what to wait for.
func (m *moving) take(keys []string) <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, k := range keys {
		if x := m.keys[k]; x != nil {
			return x.over
		}
	}
	for _, k := range keys {
		m.keys[k] = &movingKey{over: make(chan struct{})}
	}
	m.n.Add(int32(len(keys)))
	return nil
}

// end lets the keys go.
func (m *moving) end(keys []string) {
	m.watch.Remove(keys...)
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, k := range keys {
		close(m.keys[k].over)
		delete(m.keys, k)
	}
	m.n.Add(-int32(len(keys)))
}

// unchanged forgets what has happened to the keys so far. It is called under the
// lock of their slot, which is about to be read.
func (m *moving) unchanged(keys []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, k := range keys {
		m.keys[k].changed = false
	}
}

// changed reports whether a key has changed since.
func (m *moving) changed(key string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.keys[key].changed
}

// wait waits until none of the keys is on its way. A write calls it before it
// takes the lock of the slot.
func (m *moving) wait(ctx context.Context, keys []string) error {
	for m.n.Load() > 0 {
		busy := m.busy(keys)
		if busy == nil {
			return nil
		}
		select {
		case <-busy:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (m *moving) busy(keys []string) <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, k := range keys {
		if x := m.keys[k]; x != nil {
			return x.over
		}
	}
	return nil
}
