package slotmesh

import (
	"context"
	"slices"
	"sync"
	"time"
)

// saveIdle is how long a save that nobody waits for stays, to share the sync of
// the next one.
const saveIdle = 5 * time.Millisecond

// saver writes what the core asks to be saved, beside it: while one batch is on
// its way to the disk the next gathers, so that many saves share one sync. What
// gathers is bounded by the number of cells, for a newer value of a cell takes
// the place of the older one; and with gatheringMax of them, be they of members and
// shards that have gone meanwhile, the node takes in nothing that changes more.
type saver struct {
	meta *meta
	kept *kept         // its cells that may be saved later go along
	wake chan struct{} // a token: there is something to save
	need chan struct{} // a token: somebody waits for it
	done chan struct{} // a token: completed has news

	mu      sync.Mutex // guards what follows
	cells   map[cellKey][]byte
	last    uint64 // save that cells go up to
	hurried uint64 // save that somebody waits for
	written uint64
	err     error
}

func newSaver(m *meta, k *kept) *saver {
	return &saver{meta: m, kept: k, wake: make(chan struct{}, 1), need: make(chan struct{}, 1), done: make(chan struct{}, 1), cells: map[cellKey][]byte{}}
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

// gathering is how many cells wait for the next batch.
func (v *saver) gathering() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return len(v.cells)
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

// later sees to it that what is kept is saved some time.
func (v *saver) later() { signal(v.wake) }

// hurry says that somebody waits for the saves up to n.
func (v *saver) hurry(n uint64) {
	v.mu.Lock()
	v.hurried = max(v.hurried, n)
	v.mu.Unlock()
	signal(v.need)
}

// run writes batches until the node ends, with what has gathered by then, or the
// disk fails.
func (v *saver) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
		case <-v.wake:
			v.gather(ctx)
		}
		ended := ctx.Err() != nil
		if v.write() != nil || ended {
			return
		}
	}
}

// gather returns once somebody waits for a save, or nobody has for a while.
func (v *saver) gather(ctx context.Context) {
	idle := time.NewTimer(saveIdle)
	defer idle.Stop()
	for !v.awaited() {
		select {
		case <-v.need: // it may be one that has been written
		case <-idle.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

func (v *saver) awaited() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.hurried > v.written
}

// write writes what has gathered.
func (v *saver) write() error {
	v.mu.Lock()
	batch, last := v.cells, v.last
	v.cells = map[cellKey][]byte{}
	v.mu.Unlock()
	cells := make([]cell, 0, len(batch))
	for _, k := range cellKeys(batch) {
		cells = append(cells, cell{k, batch[k]})
	}
	err := v.kept.saveWith(cells)
	v.mu.Lock()
	if v.err = err; err == nil {
		v.written = last
	}
	v.mu.Unlock()
	signal(v.done)
	return err
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
