package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/slotmesh/slotmesh"
)

const (
	workers = 16
	top     = 20 // words that the report shows
	letters = 40 // of a word, that are shown

	// pace is how long a word takes at least while a node joins: a short text would
	// be counted before the first slot has moved.
	pace = 2 * time.Millisecond
)

// counter counts words in the cluster and, beside it, in a plain map.
type counter struct {
	ctx      context.Context
	cancel   context.CancelCauseFunc
	mesh     *mesh
	clients  []*slotmesh.Client
	half     int64
	progress func(words int64)

	words  chan string
	plain  map[string]int
	total  int64
	counts atomic.Int64 // counted in the cluster so far
	grow   sync.Once
	grown  chan struct{} // closed once the next node has joined, or cannot
	beside int64         // words counted while it joined
	wg     sync.WaitGroup
}

// newCounter starts to count. After half bytes the cluster grows by a node.
func newCounter(ctx context.Context, m *mesh, half int64, progress func(int64)) *counter {
	c := &counter{mesh: m, half: half, progress: progress, words: make(chan string, 4*workers), plain: map[string]int{}, grown: make(chan struct{})}
	c.ctx, c.cancel = context.WithCancelCause(ctx)
	for _, n := range m.nodes {
		c.clients = append(c.clients, n.Client())
	}
	for i := range workers {
		c.wg.Go(func() { c.work(c.clients[i%len(c.clients)]) })
	}
	return c
}

// add counts a word. The bytes read so far tell when half of the text is over.
func (c *counter) add(word string, read int64) error {
	if read > c.half {
		c.growOnce()
		c.keepPace()
	}
	c.plain[word]++
	c.total++
	select {
	case c.words <- word:
		c.progress(c.total)
		return nil
	case <-c.ctx.Done():
		return context.Cause(c.ctx)
	}
}

// growOnce lets the next node join, while the counting goes on.
func (c *counter) growOnce() {
	c.grow.Do(func() {
		c.wg.Go(func() {
			defer close(c.grown)
			began := c.counts.Load()
			if err := c.mesh.grow(c.ctx); err != nil {
				c.cancel(fmt.Errorf("the next node: %w", err))
			}
			c.beside = c.counts.Load() - began
		})
	})
}

// keepPace holds up the next word while a node joins.
func (c *counter) keepPace() {
	select {
	case <-c.grown:
	case <-c.ctx.Done():
	case <-time.After(pace):
	}
}

// work counts words until there are no more. An error ends the program: a call
// whose outcome is unknown must not be repeated, for it would count twice.
func (c *counter) work(client *slotmesh.Client) {
	for word := range c.words {
		if c.ctx.Err() != nil {
			continue
		}
		if _, err := client.Do(c.ctx, "add", []byte(word)); err != nil {
			c.cancel(fmt.Errorf("counting %q: %w", shown(word), err))
			continue
		}
		c.counts.Add(1)
	}
}

// wait ends the counting. By now at the latest the next node joins.
func (c *counter) wait() error {
	if c.ctx.Err() == nil {
		c.growOnce()
		<-c.grown
	}
	close(c.words)
	c.wg.Wait()
	c.progress(-1)
	return context.Cause(c.ctx)
}

// abort ends the counting because of an error, which wait returns unless there was
// another one before.
func (c *counter) abort(err error) error {
	c.cancel(err)
	return c.wait()
}

// report prints what the cluster has counted, and compares.
func (c *counter) report(out io.Writer) error {
	words := slices.SortedFunc(mapsKeys(c.plain), func(a, b string) int {
		return cmp.Or(cmp.Compare(c.plain[b], c.plain[a]), cmp.Compare(a, b))
	})
	wrong := 0
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	for i, word := range words {
		n, err := c.counted(word)
		if err != nil {
			return err
		}
		if n != c.plain[word] {
			wrong++
		}
		if i < top {
			fmt.Fprintf(w, "%d\t%s\n", n, shown(word))
		}
	}
	if err := c.reportNodes(w); err != nil {
		return err
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if wrong > 0 || c.counts.Load() != c.total {
		return fmt.Errorf("%d words, %d distinct, %d wrong, %d counted", c.total, len(words), wrong, c.counts.Load())
	}
	_, err := fmt.Fprintf(out, "ok: %d words, %d distinct, %d wrong\n", c.total, len(words), wrong)
	return err
}

func mapsKeys(m map[string]int) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// counted is what the cluster holds for a word.
func (c *counter) counted(word string) (int, error) {
	v, err := c.clients[0].Get(c.ctx, word)
	if errors.Is(err, slotmesh.ErrNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("reading %q: %w", shown(word), err)
	}
	return strconv.Atoi(string(v))
}

func (c *counter) reportNodes(w io.Writer) error {
	fmt.Fprintf(w, "\nnode\tkeys\tslots\n")
	for i, n := range c.mesh.nodes {
		own := n.Table().Slots(n.ID())
		keys := 0
		for slot := range own.All() {
			k, err := n.CountKeys(slot)
			if err != nil {
				return fmt.Errorf("the keys of node %d: %w", i+1, err)
			}
			keys += k
		}
		fmt.Fprintf(w, "%d\t%d\t%d\n", i+1, keys, own.Len())
	}
	var sum slotmesh.ClientStats
	for _, client := range c.clients {
		s := client.Stats()
		sum.Calls, sum.Remote, sum.Moved = sum.Calls+s.Calls, sum.Remote+s.Remote, sum.Moved+s.Moved
	}
	fmt.Fprintf(w, "\nrequests\t%d, of them to other nodes %d, MOVED seen %d\n", sum.Calls, sum.Remote, sum.Moved)
	fmt.Fprintf(w, "\t%d words were counted while node %d joined\n", c.beside, len(c.mesh.nodes))
	return nil
}

// shown is a word as it is printed: of a long one the beginning, and how long it is,
// so that it does not look like another one.
func shown(word string) string {
	n := 0
	for i := range word {
		if n++; n > letters {
			return fmt.Sprintf("%s… (%d letters)", word[:i], utf8.RuneCountInString(word))
		}
	}
	return word
}

// isTerminal reports whether somebody watches what is written.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// progressTo shows the progress on a terminal, ten times a second, and nothing
// elsewhere. Less than no words end it.
func progressTo(diag io.Writer, isTerminal func(io.Writer) bool) func(int64) {
	if !isTerminal(diag) {
		return func(int64) {}
	}
	last := time.Now()
	return func(words int64) {
		if words < 0 {
			fmt.Fprint(diag, "\r\x1b[K")
			return
		}
		if now := time.Now(); now.Sub(last) > 100*time.Millisecond {
			last = now
			fmt.Fprintf(diag, "\r%d words", words)
		}
	}
}
