package slotmesh

import (
	"context"
	"slices"
	"sync"
)

// saver writes what the core asks to be saved, beside it: while one batch is on
// its way to the disk the next gathers, so that many saves share one sync. What
// gathers is bounded by the number of cells, for a newer value of a cell takes
// the place of the older one.
type saver struct {
	meta *meta
	wake chan struct{}
	done chan struct{} // a token: completed has news

	mu      sync.Mutex // guards what follows
	cells   map[cellKey][]byte
	last    uint64 // save that cells go up to
	written uint64
	err     error
}

func newSaver(m *meta) *saver {
	return &saver{meta: m, wake: make(chan struct{}, 1), done: make(chan struct{}, 1), cells: map[cellKey][]byte{}}
}

// save adds a save to the next batch.
func (v *saver) save(s save) {
	v.mu.Lock()
	for _, c := range s.cells {
		v.cells[c.key] = c.value
	}
	v.last = s.n
	v.mu.Unlock()
	signal(v.wake)
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// completed returns the newest save that is on disk, or the error that has ended
// saving for good.
func (v *saver) completed() (uint64, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.written, v.err
}

// run writes batches until the node ends or the disk fails.
func (v *saver) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-v.wake:
		}
		v.mu.Lock()
		batch, last := v.cells, v.last
		v.cells = map[cellKey][]byte{}
		v.mu.Unlock()
		cells := make([]cell, 0, len(batch))
		for _, k := range cellKeys(batch) {
			cells = append(cells, cell{k, batch[k]})
		}
		err := v.meta.save(cells)
		v.mu.Lock()
		if v.err = err; err == nil {
			v.written = last
		}
		v.mu.Unlock()
		signal(v.done)
		if err != nil {
			return
		}
	}
}

// cellKeys is the keys of a batch, in order.
func cellKeys(m map[cellKey][]byte) []cellKey {
	keys := make([]cellKey, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, cellKey.compare)
	return keys
}
