package slotmesh

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// savings runs a saver on a folder, in a bubble.
type savings struct {
	*saver
	t    *testing.T
	n    uint64
	stop func() // ends it and waits for it
}

func newSavings(t *testing.T, dir string) *savings {
	m, _, err := openMeta(osFS{}, dir)
	require.NoError(t, err)
	n := &node{meta: m}
	n.kept = newKept(n)
	v := &savings{saver: newSaver(m, n.kept), t: t}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		v.run(ctx)
	}()
	v.stop = func() {
		cancel()
		<-ended
		require.NoError(t, m.Close())
	}
	return v
}

func (v *savings) add(values ...string) {
	v.n++
	s := save{n: v.n}
	for i, value := range values {
		s.cells = append(s.cells, cell{cellKey{kind: cellMarks, page: uint8(i)}, []byte(value)})
	}
	v.save(s)
}

// within says how long it takes until a save is on disk.
func (v *savings) within(n uint64) time.Duration {
	began := time.Now()
	for {
		written, err := v.completed()
		require.NoError(v.t, err)
		if written >= n {
			return time.Since(began)
		}
		<-v.done
	}
}

// A save for which somebody waits is made at once, and takes along what nobody has
// waited for; that alone waits a little for others, and no longer.
func TestASaveThatNobodyWaitsForSharesTheNextSync(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		v := newSavings(t, t.TempDir())
		defer v.stop()
		v.add("a")
		v.hurry(1)
		require.Zero(t, v.within(1))
		v.add("b")
		require.Equal(t, saveIdle, v.within(2), "nobody waits")

		v.add("c")
		time.Sleep(saveIdle / 2)
		v.add("d")
		synctest.Wait()
		written, _ := v.completed()
		require.Equal(t, uint64(2), written)
		v.hurry(4)
		require.Zero(t, v.within(4), "one sync for both")
		v.hurry(3)
		v.add("e")
		require.Equal(t, saveIdle, v.within(5), "what was waited for is on disk")
	})
}

// A node that ends leaves nothing unsaved that its disk would take.
func TestWhatNobodyWaitsForIsSavedAtTheEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		v := newSavings(t, dir)
		v.add("a", "b")
		v.hurry(1)
		v.within(1)
		v.add("c")
		v.stop()
		m, cells, err := openMeta(osFS{}, dir)
		require.NoError(t, err)
		defer m.Close()
		require.Equal(t, "c", string(cells[0].value))
		require.Equal(t, "b", string(cells[1].value))
	})
}
