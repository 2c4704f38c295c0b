package slotmesh

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slotmesh/slotmesh/transport"
	"github.com/stretchr/testify/require"
)

// heard collects what a watch is told.
type heard struct {
	mu   sync.Mutex
	what []string
}

func (h *heard) note(key string, gone bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if gone {
		key += " gone"
	}
	h.what = append(h.what, key)
}

func (h *heard) take() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	what := h.what
	h.what = nil
	return what
}

func TestWatchTellsOfChangesOnce(t *testing.T) {
	n, err := Start(t.Context(), Config{})
	require.NoError(t, err)
	defer n.Close()
	var h, all heard
	w, every := n.Watch(h.note), n.Watch(all.note)
	defer w.Close()
	every.All()
	c, ctx := n.Client(), t.Context()
	run := func(key string, f func(*Tx) error) {
		t.Helper()
		require.NoError(t, n.Execute(ctx, Request{Keys: []string{key}}, f))
	}
	w.Add("a", "b", "a")
	for _, row := range []struct {
		name string
		do   func()
		want []string
		all  []string
	}{
		{"a write", func() { require.NoError(t, c.Set(ctx, "a", []byte("v"))) }, []string{"a"}, []string{"a"}},
		{"a read", func() { c.Get(ctx, "a") }, nil, nil},
		{"another key", func() { require.NoError(t, c.Set(ctx, "other", nil)) }, nil, []string{"other"}},
		{"a delete of what is not there", func() { c.Delete(ctx, "nosuch") }, nil, nil},
		{"several changes of one key", func() {
			run("b", func(tx *Tx) error {
				for i := range 3 {
					if err := tx.PutField("b", fmt.Sprint("f", i), nil); err != nil {
						return err
					}
				}
				return nil
			})
		}, []string{"b"}, []string{"b"}},
		{"one that is rolled back", func() {
			n.Execute(ctx, Request{Keys: []string{"a"}}, func(tx *Tx) error {
				tx.Put("a", nil)
				return context.Canceled
			})
		}, nil, nil},
		{"a slot that is emptied", func() { require.NoError(t, n.FlushSlot(ctx, KeySlot("a"))) }, []string{"a"}, nil},
		{"after Remove", func() { w.Remove("a"); c.Set(ctx, "a", nil) }, nil, []string{"a"}},
		{"after Close", func() { w.Close(); every.Close(); c.Set(ctx, "b", nil); w.Add("b"); c.Set(ctx, "b", nil) }, nil, nil},
	} {
		row.do()
		if got := h.take(); fmt.Sprint(got) != fmt.Sprint(row.want) {
			t.Errorf("%s: told %v, want %v", row.name, got, row.want)
		}
		if got := all.take(); row.name != "a slot that is emptied" && row.name != "a delete of what is not there" && fmt.Sprint(got) != fmt.Sprint(row.all) {
			t.Errorf("%s: told of all %v, want %v", row.name, got, row.all)
		}
	}
	require.Zero(t, n.(*node).engine.watches.keys.Load())
}

func TestWatchTellsOfTimeAndOfSlotsThatGo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mem := transport.NewMemory()
		var nodes []Node
		for _, addr := range []string{"a", "b"} {
			n, err := Start(t.Context(), Config{Addr: addr, Transport: mem, Seeds: []string{"a", "b"}, Primaries: 2})
			require.NoError(t, err)
			defer n.Close()
			nodes = append(nodes, n)
		}
		for _, n := range nodes {
			require.NoError(t, n.Ready(t.Context()))
		}
		key := ""
		for i := 0; key == ""; i++ {
			if o, _ := nodes[0].Table().Owner(KeySlot(fmt.Sprint(i))); o.ID == nodes[0].ID() {
				key = fmt.Sprint(i)
			}
		}
		var h heard
		w := nodes[0].Watch(h.note)
		defer w.Close()
		w.Add(key)
		require.NoError(t, nodes[0].Client().SetFor(t.Context(), key, nil, time.Second))
		require.Equal(t, []string{key}, h.take())
		time.Sleep(time.Minute)
		require.Equal(t, []string{key}, h.take()) // swept
		var s SlotSet
		s.Add(KeySlot(key))
		require.NoError(t, nodes[0].Admin().MoveSlots(t.Context(), s, nodes[1].ID()))
		synctest.Wait()
		require.Equal(t, []string{key + " gone"}, h.take())
	})
}

// What a command begins to watch while its slot goes is told of, though nothing
// was watched when the slot went.
func TestWatchAddedWhileTheSlotGoesIsTold(t *testing.T) {
	n, err := Start(t.Context(), Config{})
	require.NoError(t, err)
	defer n.Close()
	x := n.(*node)
	told := make(chan string, 1)
	w := n.Watch(func(key string, gone bool) { told <- fmt.Sprint(key, gone) })
	defer w.Close()
	inside, goOn := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		_ = n.Execute(context.Background(), Request{Keys: []string{"k"}, ReadOnly: true}, func(*Tx) error {
			close(inside)
			<-goOn
			w.Add("k")
			return nil
		})
	})
	<-inside
	x.tellGone(oneSlotSet(KeySlot("k")))
	close(goOn)
	wg.Wait()
	require.Equal(t, "ktrue", <-told)
}

// A watch that is added inside a Tx hears of the next change, whoever makes it.
func TestWatchAddedInsideATxMissesNothing(t *testing.T) {
	n, err := Start(t.Context(), Config{})
	require.NoError(t, err)
	defer n.Close()
	var wg sync.WaitGroup
	defer wg.Wait()
	stop := make(chan struct{})
	defer close(stop)
	wg.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				n.Client().Set(context.Background(), "k", fmt.Append(nil, i))
			}
		}
	})
	for range 300 {
		told := make(chan struct{}, 1)
		w := n.Watch(func(string, bool) {
			select {
			case told <- struct{}{}:
			default:
			}
		})
		require.NoError(t, n.Execute(t.Context(), Request{Keys: []string{"k"}, ReadOnly: true}, func(*Tx) error {
			w.Add("k")
			return nil
		}))
		<-told
		w.Close()
	}
}

func BenchmarkWriteThatNobodyWatches(b *testing.B) {
	for _, watched := range []bool{false, true} {
		b.Run(fmt.Sprintf("others=%v", watched), func(b *testing.B) {
			n, err := Start(b.Context(), Config{})
			require.NoError(b, err)
			defer n.Close()
			if watched {
				w := n.Watch(func(string, bool) {})
				defer w.Close()
				w.Add("other")
			}
			s := n.Session()
			r := Request{Keys: []string{"k"}}
			value := make([]byte, 32)
			b.ReportAllocs()
			for b.Loop() {
				s.Execute(b.Context(), &r, func(tx *Tx) error { return tx.Put("k", value) })
			}
		})
	}
}

// At a replica a watch tells of what comes from its primary, and of slots that leave
// its shard; not of another primary.
func TestWatchAtAReplica(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		nodes, faults := formShardOn(t, 2, Config{})
		apart := startNode(t, Config{Addr: "z:1", Transport: faults.Node("z"), Join: true, NodeTimeout: driverNT})
		require.NoError(t, nodes[0].Admin().Meet(t.Context(), "z:1"))
		until(t, 10*driverNT, "it joins", func() bool {
			_, known := apart.Table().Owner(0)
			return known && len(nodes[0].Table().Nodes()) == 3
		})
		var h heard
		w := nodes[1].Watch(h.note)
		defer w.Close()
		w.Add("k", "{k}other")
		tells := func(of string, what ...string) {
			t.Helper()
			var got []string
			until(t, driverNT, of, func() bool {
				got = append(got, h.take()...)
				return len(got) >= len(what)
			})
			slices.Sort(got)
			require.Equal(t, what, got, of)
		}
		require.NoError(t, nodes[0].Client().Set(t.Context(), "k", []byte("v")))
		tells("of a write", "k")
		require.NoError(t, nodes[0].Client().SetFor(t.Context(), "k", []byte("v"), driverNT/10))
		tells("of a write with a time", "k")
		tells("that its time is over", "k")
		require.NoError(t, nodes[0].Client().Set(t.Context(), "{k}other", nil))
		tells("of another key", "{k}other")
		require.NoError(t, nodes[0].FlushSlot(t.Context(), KeySlot("k")))
		tells("that the slot is empty", "k", "{k}other")

		var set SlotSet
		set.Add(KeySlot("k"))
		require.NoError(t, nodes[0].Admin().MoveSlots(t.Context(), set, apart.ID()))
		until(t, driverNT, "that the slot has gone", func() bool { return slices.Contains(h.take(), "k gone") })
		require.NoError(t, nodes[1].Admin().Failover(t.Context(), FailoverPlain))
		w.Add("x")
		until(t, 2*driverNT, "it leads", func() bool { return nodes[1].Client().Set(t.Context(), "x", nil) == nil })
		require.Equal(t, []string{"x"}, h.take())
	})
}
