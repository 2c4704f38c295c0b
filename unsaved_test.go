package slotmesh

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// hangingFile is a file whose disk answers a sync when it likes.
type hangingFile struct {
	metaFile
	answers chan struct{}
}

func (f *hangingFile) Sync() error {
	<-f.answers
	return f.metaFile.Sync()
}

// hangDisk makes the saves of a node hang until goOn is called, or the test ends.
func hangDisk(t *testing.T, n *node) (goOn func()) {
	f := &hangingFile{answers: make(chan struct{})}
	n.meta.mu.Lock()
	n.meta.limits.journal = 8 << 20 // the next save appends
	f.metaFile, n.meta.file = n.meta.file, f
	n.meta.mu.Unlock()
	goOn = sync.OnceFunc(func() { close(f.answers) })
	t.Cleanup(goOn)
	return goOn
}

// waitingFor is how much of a node waits for its disk.
type waitingFor struct{ messages, own, tells, callers, commands, cells int }

func waitsFor(t *testing.T, n *node) (w waitingFor) {
	return ask(t, n, func(s *state) waitingFor {
		return waitingFor{len(n.held), len(s.loop), len(n.told.waiting), len(n.savings), len(n.replies), n.saver.gathering()}
	})
}

// hangLoad is what others do to a node whose disk hangs, and what they hear.
type hangLoad struct {
	t       *testing.T
	n       *node
	wg      sync.WaitGroup
	mu      sync.Mutex
	answers map[string]int
}

// asks asks for something, beside the others, and notes the answer.
func (l *hangLoad) asks(what string, ask func() error) {
	l.wg.Go(func() {
		err := ask()
		l.mu.Lock()
		defer l.mu.Unlock()
		switch {
		case err == nil:
			l.answers[what+" done"]++
		case errors.Is(err, ErrTryAgain):
			require.Equal(l.t, NotExecuted, saidOutcome(err), err.Error())
			l.answers[what+" refused"]++
		default:
			l.answers[what+" failed"]++
		}
	})
}

func saidOutcome(err error) Outcome {
	var a *AdminError
	if errors.As(err, &a) {
		return a.Outcome
	}
	return NotExecuted
}

// aroundADisk is a node with a file in a cluster of three, and another of its nodes.
func aroundADisk(t *testing.T) (n, other *node) {
	f, seeds := newFaults(t), []string{"a:1", "b:1", "c:1"}
	var nodes []*node
	for i, addr := range seeds {
		cfg := Config{Addr: addr, Seeds: seeds, Primaries: 3, NodeTimeout: driverNT, Transport: f.Node(addr[:1])}
		if i == 0 {
			cfg.Dir = t.TempDir()
		}
		nodes = append(nodes, startNode(t, cfg))
	}
	for _, n := range nodes {
		isReady(t, n)
	}
	return nodes[0], nodes[1]
}

// stages is a member that asks again and again to stage slots, each time anew.
func stages(from, to *node, count int) {
	v := from.Table()
	giver, _ := v.Owner(KeySlot(keyOf(from, 0)))
	taker, _ := v.Owner(KeySlot(keyOf(to, 0)))
	first := KeySlot(keyOf(from, 0))
	for i := range count {
		m := &stageMsg{Job: 1, Giver: giver.Shard, Epoch: Epoch{1 << 8, false, from.ID()}, Position: uint64(i + 1), To: taker.Shard, Slots: moveRuns{{First: first, Last: first, Move: v.Move(first) + 1}}}
		to.inbox <- delivery{*from.who.Load(), wanted{}, m}
	}
}

// A disk that hangs, that neither writes nor fails, lets nothing grow without bound,
// whatever comes; the node serves on, every command gets one answer, and all goes on
// when the disk does.
func TestWhileTheDiskHangsNothingGrowsWithoutBound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n, other := aroundADisk(t)
		key := keyOf(n, 0)
		events := n.Events(t.Context(), eventsBufferMax)
		goOn := hangDisk(t, n)
		l := &hangLoad{t: t, n: n, answers: map[string]int{}}

		const many = commandsMax + 100
		for range many {
			l.asks("epoch", func() error { return n.Admin().BumpEpoch(t.Context()) })
		}
		synctest.Wait()
		for range many {
			ctx, cancel := context.WithCancel(t.Context())
			l.asks("saved", func() error {
				return n.settled(ctx, func(s *state, now time.Duration) output { s.begin(now); return s.end() })
			})
			l.wg.Go(cancel) // whoever waited does so no more
		}
		const news = 3 * toldEvents
		for i := range news {
			ask(t, n, func(s *state) error { s.event(Event{Kind: EventSlow, Number: uint64(i)}); return nil })
		}
		stages(other, n, toldMax+100)
		slots := slotOf(keyOf(n, 1))
		l.asks("move", func() error { return n.Admin().MoveSlots(t.Context(), slots, other.ID()) })
		time.Sleep(10 * driverNT)

		w := waitsFor(t, n)
		require.LessOrEqual(t, w.messages, heldMax)
		require.LessOrEqual(t, w.own, loopMax)
		require.LessOrEqual(t, w.tells, toldMax+commandsMax+8, "and what was under way")
		require.LessOrEqual(t, w.callers, savingsMax)
		require.LessOrEqual(t, w.commands, commandsMax)
		require.Less(t, w.cells, 64)
		require.NoError(t, n.Client().Set(t.Context(), key, []byte("served")), "data needs no such disk")
		require.Equal(t, []string{diskHangs}, n.Status().Problems)
		require.ErrorContains(t, n.Admin().SetSlotStable(t.Context(), KeySlot(key)), "this node's disk does not answer")

		goOn()
		l.wg.Wait()
		require.Equal(t, many-commandsMax, l.answers["epoch refused"], "%v", l.answers)
		require.Equal(t, many, l.answers["epoch refused"]+l.answers["epoch failed"]+l.answers["epoch done"])
		require.Equal(t, 1, l.answers["move refused"])
		require.NoError(t, n.Admin().BumpEpoch(t.Context()))
		require.NoError(t, n.Admin().MoveSlots(t.Context(), slots, other.ID()))
		require.Zero(t, waitsFor(t, n).tells)
		require.Empty(t, n.Status().Problems)
		told, lost := 0, uint64(0)
		for len(events) > 0 {
			switch e := <-events; e.Kind {
			case EventSlow:
				told++
			case EventLost:
				lost += e.Number
			}
		}
		require.Less(t, told, toldEvents+1)
		require.GreaterOrEqual(t, told+int(lost), news)
	})
}

// What waits for its save is told in order; events that no longer fit are counted in
// their place, everything else stays.
func TestWhatIsToldWaitsForItsSave(t *testing.T) {
	t.Parallel()
	event := func(i int) tell { return tell{eventTell{Event{Number: uint64(i)}}, 1 + uint64(i)/1000} }
	say := func(what any) string {
		switch w := what.(type) {
		case eventTell:
			return fmt.Sprint("event ", w.event.Number)
		case *lostTell:
			return fmt.Sprint("lost ", w.number)
		}
		return fmt.Sprintf("%T", what)
	}
	var q tellQueue
	heard := func(saved uint64) (said []string) {
		q.take(saved, func(what any) { said = append(said, say(what)) })
		return said
	}
	for i := range toldEvents + 3 {
		q.add(event(i))
	}
	q.add(tell{jobTell{job: 1}, 2})
	q.add(event(toldEvents + 3))
	q.add(tell{replyTell{id: 1}, 1})
	require.Len(t, q.waiting, toldEvents+3)
	first := heard(1)
	require.Len(t, first, 1001, "those of the first save, and the reply")
	require.Equal(t, []string{"event 0", "slotmesh.replyTell"}, []string{first[0], first[1000]})
	q.add(event(2000))
	second := heard(2)
	require.Equal(t, []string{"event 1000", "event 1023", "lost 4", "slotmesh.jobTell"}, []string{second[0], second[23], second[24], second[25]})
	require.Equal(t, []string{"event 2000"}, heard(3))
	require.Empty(t, q.waiting)
	require.Zero(t, q.events)
	require.Nil(t, q.lost)
}

// Where a queue of a driver is full, what it ends says what has become of it.
func TestTheOutcomeWhereAQueueIsFull(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := formShard(t, 2, Config{AckReplicas: 1})[0]
		key := keyOf(n, 0)
		write := func(ctx context.Context) error {
			return n.Execute(ctx, Request{Keys: []string{key}}, func(tx *Tx) error { return tx.Put(key, []byte("written")) })
		}
		read := func(ctx context.Context) error {
			return n.Execute(ctx, Request{Keys: []string{key}, ReadOnly: true}, func(tx *Tx) error { _, _, err := tx.Get(key); return err })
		}
		bump := func(ctx context.Context) error { return n.Admin().BumpEpoch(ctx) }
		step := func(f func()) {
			ask(t, n, func(*state) error { f(); return nil })
		}
		fullLog := func(full bool) {
			n.repl.mu.Lock()
			defer n.repl.mu.Unlock()
			n.repl.waiters = nil
			if full {
				w := &logWaiter{n.repl.reign, func(*replication) bool { return false }, make(chan bool, 1)}
				n.repl.waiters = slices.Repeat([]*logWaiter{w}, logWaitersMax)
			}
		}
		waiting := func(full bool) {
			n.engine.waiters.Store(0)
			if full {
				n.engine.waiters.Store(waitersMax)
			}
		}
		c := n.engine.cell(KeySlot(key))
		for _, row := range []struct {
			name string
			full func(full bool)
			do   func(ctx context.Context) error
			is   error
			want Outcome
		}{
			{"a write, the slot is on hold", func(full bool) {
				waiting(full)
				if full {
					step(func() { require.Nil(t, n.pause()) })
				} else {
					step(n.unpause)
				}
			}, write, ErrTryAgain, NotExecuted},
			{"a write, somebody runs in the slot", func(full bool) {
				waiting(full)
				if full {
					c.mu.Lock()
				} else {
					c.mu.Unlock()
				}
			}, write, ErrTryAgain, NotExecuted},
			{"a write, its reply waits for replicas", fullLog, write, ErrClusterDown, Unknown},
			{"a read, its reply waits for replicas", fullLog, read, ErrClusterDown, NotExecuted},
			{"a command of an operator", func(full bool) {
				step(func() {
					for i := range uint64(commandsMax) {
						if full {
							n.replies[1<<32+i] = make(chan *commandError, 1)
						} else {
							delete(n.replies, 1<<32+i)
						}
					}
				})
			}, bump, ErrTryAgain, NotExecuted},
		} {
			ctx, cancel := context.WithTimeout(t.Context(), driverNT)
			row.full(true)
			err := row.do(ctx)
			row.full(false)
			cancel()
			require.ErrorIs(t, err, row.is, row.name)
			var op *OpError
			var admin *AdminError
			switch {
			case errors.As(err, &op):
				require.Equal(t, row.want, op.Outcome, row.name)
			case errors.As(err, &admin):
				require.Equal(t, row.want, admin.Outcome, row.name)
			default:
				t.Fatalf("%s: %v", row.name, err)
			}
			require.NoError(t, write(t.Context()), row.name)
		}
	})
}
