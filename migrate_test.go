package slotmesh

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slotmesh/slotmesh/internal/racing"
	"github.com/slotmesh/slotmesh/store"
	"github.com/slotmesh/slotmesh/transport"
	"github.com/stretchr/testify/require"
)

// coming is the number of hand-overs that a node holds.
func (j *jobs) coming() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.in)
}

// giving returns a hand-over that a node gives, or nil.
func (j *jobs) giving() *outgoing {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, o := range j.out {
		return o
	}
	return nil
}

// moveIsOut reports whether a MOVE of the node is out, undecided.
func moveIsOut(t *testing.T, n *node) bool {
	return ask(t, n, func(s *state) bool {
		for _, g := range s.lead.gives {
			if g.phase == giveMoving {
				return true
			}
		}
		return false
	})
}

func TestAHandOverThatIsGivenUpLeavesNothingAtTheTaker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFaults(t)
		nodes := formNodes(t, f, 3, Config{})
		key := keyOf(nodes[0], 0)
		require.NoError(t, nodes[0].Client().Set(t.Context(), key, []byte("v")))
		f.SetBoth("a", "b", transport.Link{Delay: 280 * time.Millisecond}) // there and back takes longer than a freeze may
		err := nodes[0].Admin().MoveSlots(t.Context(), slotOf(key), nodes[1].ID())
		require.ErrorIs(t, err, ErrTryAgain)
		require.ErrorContains(t, err, "500ms")
		until(t, driverNT, "the taker holds something", func() bool {
			return nodes[1].jobs.coming() == 0 && nodes[1].engine.keys(KeySlot(key)) == 0
		})
		f.Heal()
		require.NoError(t, nodes[0].Admin().MoveSlots(t.Context(), slotOf(key), nodes[1].ID()))
		v, err := nodes[2].Client().Get(t.Context(), key)
		require.NoError(t, err)
		require.Equal(t, "v", string(v))
		until(t, driverNT, "the taker holds something", func() bool { return nodes[1].jobs.coming() == 0 })
	})
}

// However large a collection, and however many keys: what waits to be sent is
// bounded.
func TestWhatAHandOverHasReadAndNotSentIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFaults(t)
		nodes := formNodes(t, f, 2, Config{})
		n, key := nodes[0], keyOf(nodes[0], 0)
		value := make([]byte, 16<<10)
		parts := racing.Fewer(20, 8)
		for i := range parts {
			require.NoError(t, n.Execute(t.Context(), Request{Keys: []string{key}}, func(tx *Tx) error {
				for j := range 100 {
					if err := tx.PutField(key, fmt.Sprintf("%06d", i*100+j), value); err != nil {
						return err
					}
					if err := tx.Put(fmt.Sprintf("{%s}%d", key, i*100+j), value); err != nil {
						return err
					}
				}
				return nil
			}))
		}
		f.Set("a", "b", transport.Link{Stall: true})
		ctx, cancel := context.WithCancel(t.Context())
		result := make(chan error, 1)
		go func() { result <- n.Admin().MoveSlots(ctx, slotOf(key), nodes[1].ID()) }()
		synctest.Wait()
		f.Heal()
		most := 0
		var err error
		for moved := false; !moved; {
			select {
			case err = <-result:
				moved = true
			case <-time.After(time.Microsecond):
				if o := n.jobs.giving(); o != nil {
					most = max(most, o.waiting())
				}
			}
		}
		cancel()
		require.NoError(t, err)
		require.LessOrEqual(t, most, outgoingMax)
		require.NoError(t, nodes[1].Execute(t.Context(), Request{Keys: []string{key}}, func(tx *Tx) error {
			items, _, err := tx.Range(key, "", 4000)
			require.Len(t, items, 100*parts)
			return err
		}))
		require.Equal(t, 100*parts+1, nodes[1].engine.keys(KeySlot(key)))
	})
}

func TestPagesOfACopyAdaptToTheSizeOfWhatIsRead(t *testing.T) {
	o := newOutgoing(SlotSet{})
	for range 20 {
		o.page = adaptPage(o.page, 100)
	}
	require.Equal(t, pageMost, o.page)
	for range 20 {
		o.page = adaptPage(o.page, 64<<20)
	}
	require.Equal(t, 1, o.page)
	o.page = adaptPage(o.page, pageBytes)
	require.Equal(t, 1, o.page)
}

// Where writes come faster than they can be sent, they wait: a move comes to its
// end.
func TestAMoveEndsUnderWritesThatNeverEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFaults(t)
		nodes := formNodes(t, f, 3, Config{})
		n, key := nodes[0], keyOf(nodes[0], 0)
		f.SetBoth("a", "b", transport.Link{Delay: 10 * time.Millisecond, BytesPerSecond: 20 << 20})
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		written := make([]int, 8)
		value := func(n int) string { return fmt.Sprintf("%0*d", racing.Fewer(256<<10, 64<<10), n) }
		for i := range written {
			wg.Go(func() {
				for ctx.Err() == nil {
					if err := n.Client().Set(t.Context(), fmt.Sprintf("{%s}%d", key, i), []byte(value(written[i]+1))); err != nil {
						t.Error(err)
						return
					}
					written[i]++
					time.Sleep(time.Millisecond)
				}
			})
		}
		time.Sleep(20 * time.Millisecond)
		require.NoError(t, n.Admin().MoveSlots(t.Context(), slotOf(key), nodes[1].ID()))
		stop()
		wg.Wait()
		for i := range written {
			v, err := nodes[2].Client().Get(t.Context(), fmt.Sprintf("{%s}%d", key, i))
			require.NoError(t, err)
			require.Equal(t, value(written[i]), string(v))
		}
	})
}

// MoveSlots returns when its context is over, and says whether it may happen
// yet.
func TestAMoveThatIsNotWaitedForAnyMore(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name    string
		hinder  func(f *transport.Faults)
		outcome Outcome
		out     bool // MOVE is out
	}{
		{"while it copies", func(f *transport.Faults) { f.Set("a", "b", transport.Link{Stall: true}) }, NotExecuted, false},
		{"with its MOVE out", nil, Unknown, true},
	} {
		for _, asked := range []int{0, 2} {
			synctest.Test(t, func(t *testing.T) {
				f := newFaults(t)
				nodes := formNodes(t, f, 3, Config{})
				n, key := nodes[0], keyOf(nodes[0], 0)
				require.NoError(t, n.Client().Set(t.Context(), key, []byte("v")))
				_, err := nodes[asked].Client().Delete(t.Context(), "{"+key+"}2") // opens the connection, if there is to be one
				require.NoError(t, err)
				f.SetBoth("a", "b", transport.Link{Delay: 20 * time.Millisecond})
				f.SetBoth("a", "c", transport.Link{Delay: 20 * time.Millisecond}) // so that there is a while with MOVE out
				if row.hinder != nil {
					row.hinder(f)
				}
				ctx, cancel := context.WithTimeout(t.Context(), driverNT)
				defer cancel()
				result, began := make(chan error, 1), time.Now()
				go func() { result <- nodes[asked].Admin().MoveSlots(ctx, slotOf(key), nodes[1].ID()) }()
				if row.out {
					until(t, driverNT, "MOVE is not out", func() bool { return moveIsOut(t, n) })
					f.Set("b", "a", transport.Link{Stall: true})
					f.Set("c", "a", transport.Link{Stall: true})
				}
				err = <-result
				var a *AdminError
				require.ErrorAs(t, err, &a, row.name)
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.InDelta(t, driverNT, time.Since(began), float64(driverNT/20), row.name)
				if asked == 0 {
					require.Equal(t, row.outcome, a.Outcome, "%s: %v", row.name, err)
				} else {
					require.Equal(t, Unknown, a.Outcome, "who asks another node does not know")
				}
				f.Heal()
				until(t, 4*driverNT, "it has not ended", func() bool { return n.jobs.giving() == nil && nodes[1].jobs.coming() == 0 })
				until(t, driverNT, "the slot is not served", func() bool {
					v, err := nodes[2].Client().Get(t.Context(), key)
					return err == nil && string(v) == "v"
				})
				if owner, _ := nodes[2].Table().Owner(KeySlot(key)); row.outcome == NotExecuted && asked == 0 {
					require.Equal(t, n.ID(), owner.ID, row.name)
				}
				require.NoError(t, n.Client().Set(t.Context(), key, nil))
			})
		}
	}
}

func TestAMoveReturnsWhenItsNodeCloses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFaults(t)
		nodes := formNodes(t, f, 3, Config{})
		n := nodes[0]
		f.SetBoth("a", "b", transport.Link{Delay: 20 * time.Millisecond})
		f.SetBoth("a", "c", transport.Link{Delay: 20 * time.Millisecond}) // so that there is a while with MOVE out
		result := make(chan error, 1)
		go func() { result <- n.Admin().MoveSlots(context.Background(), slotOf(keyOf(n, 0)), nodes[1].ID()) }()
		until(t, driverNT, "MOVE is not out", func() bool { return moveIsOut(t, n) })
		f.Partition([]string{"a"}, []string{"b", "c"})
		time.Sleep(driverNT)
		require.NoError(t, n.Close())
		err := <-result
		var a *AdminError
		require.ErrorAs(t, err, &a)
		require.ErrorIs(t, err, ErrClosed)
		require.Equal(t, Unknown, a.Outcome)
		require.ErrorIs(t, n.Admin().MoveSlots(t.Context(), slotOf(keyOf(n, 0)), nodes[1].ID()), ErrClosed)
	})
}

// Whoever is asked: the error is an AdminError, and says how much has happened.
func TestAMoveThatFailsSaysHowMuchHasMoved(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFaults(t)
		nodes := formNodes(t, f, 3, Config{})
		giver, taker := nodes[1], nodes[2]
		refuse := func() { f.Set("b", "c", transport.Link{Refuse: true}); f.Reset("b", "c") }
		var some SlotSet
		own := giver.Table().Slots(giver.ID())
		for slot := range own.All() {
			if some.Add(slot); some.Len() == 4*moveGroupMax {
				break
			}
		}
		for _, asked := range nodes[:2] {
			refuse()
			err := asked.Admin().MoveSlots(t.Context(), some, taker.ID())
			var a *AdminError
			require.ErrorAs(t, err, &a)
			require.ErrorIs(t, err, ErrTryAgain)
			require.Contains(t, a.Text, "connection refused")
			require.Equal(t, NotExecuted, a.Outcome)
			f.Heal()
		}
		for _, asked := range nodes[:2] {
			f.SetBoth("b", "c", transport.Link{Delay: time.Millisecond})
			result := make(chan error, 1)
			go func() { result <- asked.Admin().MoveSlots(t.Context(), some, taker.ID()) }()
			until(t, driverNT, "no group has moved", func() bool {
				left := giver.Table().Slots(giver.ID())
				left.Intersect(&some)
				return left.Len() < some.Len()
			})
			refuse()
			err := <-result
			var a *AdminError
			require.ErrorAs(t, err, &a)
			require.Equal(t, Unknown, a.Outcome)
			moved := taker.Table().Slots(taker.ID())
			moved.Intersect(&some)
			require.Contains(t, a.Text, fmt.Sprintf("%d of %d slots have moved", moved.Len(), some.Len()))
			f.Heal()
			require.NoError(t, taker.Admin().MoveSlots(t.Context(), some, giver.ID()))
		}
		_, err := giver.Client().Get(t.Context(), keyOf(giver, 0))
		require.ErrorIs(t, err, ErrNotFound)
	})
}

// A connection that has been given up may be read late: what it brings is not to
// take the place of what came after it.
func TestALateBeginningOfAHandOverIsRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		nodes := formNodes(t, newFaults(t), 2, Config{})
		giver, taker := nodes[0], nodes[1]
		key := keyOf(giver, 0)
		from := func() *dataServer { return &dataServer{n: taker, from: *giver.who.Load()} }
		begin := func(s *dataServer, job, epoch, position uint64) *incoming {
			taker.jobs.receiveBegin(s, &dataBegin{job: job, order: jobOrder{epoch, position}, slots: slotOf(key)})
			taker.jobs.receive(s, &dataPiece{job: job, slot: KeySlot(key), ops: []store.Op{{Code: store.OpPut, Key: key, Value: fmt.Append(nil, job)}}})
			return taker.jobs.incomingOf(s, job)
		}
		holds := func() string {
			e, _, err := taker.cfg.Store.Get(uint16(KeySlot(key)), key, "")
			require.NoError(t, err)
			return string(e.Value)
		}
		second := from()
		in := begin(second, 2, 5, 7)
		require.NotNil(t, in)
		require.Equal(t, "2", holds())
		for name, late := range map[string][2]uint64{"position": {5, 6}, "the same": {5, 7}, "epoch": {4, 100}} {
			s := from()
			require.Nil(t, begin(s, 1, late[0], late[1]), name)
			taker.jobs.hungUp(s)
			require.Equal(t, "2", holds(), name)
			require.Equal(t, 1, taker.jobs.coming(), name)
		}
		require.Equal(t, in, begin(second, 2, 6, 9), "it has begun already")
		for job, later := range map[uint64][2]uint64{3: {5, 8}, 4: {6, 1}} {
			if job == 4 {
				break
			}
			require.NotNil(t, begin(from(), job, later[0], later[1]))
			require.Equal(t, fmt.Sprint(job), holds())
			require.Equal(t, 1, taker.jobs.coming(), "the one before has been given up")
		}
		last := from()
		require.NotNil(t, begin(last, 4, 6, 1))
		taker.jobs.hungUp(second)
		require.Equal(t, "4", holds())
		taker.jobs.hungUp(last)
		require.Empty(t, holds())
		require.Zero(t, taker.jobs.coming())
	})
}

// Nobody can make a taker hold more than it may.
func TestATakerHoldsABoundedNumberOfHandOvers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		nodes := formNodes(t, newFaults(t), 2, Config{})
		s := &dataServer{n: nodes[1], from: *nodes[0].who.Load()}
		for job := range uint64(2 * incomingMax) {
			nodes[1].jobs.receiveBegin(s, &dataBegin{job: job + 1})
		}
		require.Equal(t, incomingMax, nodes[1].jobs.coming())
		nodes[1].jobs.hungUp(s)
		require.Zero(t, nodes[1].jobs.coming())
	})
}

// A command that computes for long does not keep the other slots of its group
// waiting for as long. Real time: who waits for a lock is not asleep.
func TestAFreezeIsBounded(t *testing.T) {
	nodes := formNodes(t, newFaults(t), 2, Config{})
	n, key := nodes[0], keyOf(nodes[0], 0)
	o := newOutgoing(slotOf(key))
	require.NoError(t, n.jobs.begin(o))
	target := *n.engine.view.Load().member(nodes[1].ID())
	conn, err := n.data.open(target)
	require.NoError(t, err)
	defer conn.end(ErrClosed)
	c := n.engine.cell(KeySlot(key))
	c.mu.RLock() // somebody is in the slot
	outcome, err := n.jobs.handOver(t.Context(), o, conn, target)
	require.ErrorContains(t, err, "held its slot for 500ms")
	require.Equal(t, NotExecuted, outcome)
	until(t, time.Second, "the slot is not served", func() bool { return n.engine.cell(KeySlot(key)).gate.Load() == openGate })
	c.mu.RUnlock()
	require.NoError(t, n.Client().Set(t.Context(), key, nil))
	n.jobs.finish(o)
}

// Over a slow link the first freezes are too short: each thaws in time, so that
// writers never wait longer than its budget, and the next may last twice as long.
// What is written in between is not lost.
func TestAFreezeThatTakesTooLongThawsAndTheNextMayLastLonger(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFaults(t)
		nodes := formNodes(t, f, 3, Config{})
		n, key := nodes[0], keyOf(nodes[0], 0)
		require.NoError(t, n.Client().Set(t.Context(), key, []byte("0")))
		f.SetBoth("a", "b", transport.Link{Delay: 60 * time.Millisecond}) // there and back: 50 ms is too short, and so is 100 ms
		moved := make(chan error, 1)
		go func() { moved <- n.Admin().MoveSlots(t.Context(), slotOf(key), nodes[1].ID()) }()
		var waits []time.Duration
		written := int64(0)
		var err error
		for done := false; !done; {
			select {
			case err = <-moved:
				done = true
			default:
				began := time.Now()
				sum, err := n.Client().Incr(t.Context(), key, 1)
				require.NoError(t, err)
				written++
				require.Equal(t, written, sum)
				if d := time.Since(began); d > 20*time.Millisecond {
					waits = append(waits, d)
				}
				time.Sleep(time.Millisecond)
			}
		}
		require.NoError(t, err)
		require.GreaterOrEqual(t, len(waits), 3, "%v", waits)
		require.InDelta(t, freezeFirst, waits[0], float64(5*time.Millisecond), "%v", waits)
		require.InDelta(t, 2*freezeFirst, waits[1], float64(5*time.Millisecond), "%v", waits)
		v, err := nodes[2].Client().Get(t.Context(), key)
		require.NoError(t, err)
		require.Equal(t, fmt.Sprint(written), string(v))
		require.Equal(t, nodes[1].ID(), ownerOf(nodes[2], key))
	})
}

// What could not be sent before a freeze was over is sent after it: also where
// the link is so slow that a freeze ends in the middle of it.
func TestWhatAFreezeCouldNotSendIsSentLater(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFaults(t)
		nodes := formNodes(t, f, 2, Config{})
		n, key := nodes[0], keyOf(nodes[0], 0)
		f.Set("a", "b", transport.Link{BytesPerSecond: 200 << 10})
		ctx, stop := context.WithCancel(t.Context())
		var writer sync.WaitGroup
		want := map[string]string{}
		writer.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				k, v := fmt.Sprintf("{%s}%d", key, i%50), fmt.Sprintf("%d %s", i, strings.Repeat("x", 4000))
				if n.Client().Set(t.Context(), k, []byte(v)) == nil {
					want[k] = v
				}
				time.Sleep(time.Millisecond)
			}
		})
		time.Sleep(50 * time.Millisecond)
		err := n.Admin().MoveSlots(t.Context(), slotOf(key), nodes[1].ID())
		f.Heal()
		stop()
		writer.Wait()
		require.NoError(t, err)
		for k, v := range want {
			got, err := nodes[1].Client().Get(t.Context(), k)
			require.NoError(t, err)
			require.Equal(t, v, string(got), k)
		}
	})
}

// The queue of a hand-over keeps its order when a part of it could not be sent.
func TestWhatIsPutBackComesFirst(t *testing.T) {
	o := newOutgoing(SlotSet{})
	for _, k := range []string{"a", "b"} {
		o.effects(1, []store.Op{{Code: store.OpPut, Key: k}})
	}
	pieces := o.take()
	require.Zero(t, o.waiting())
	o.effects(1, []store.Op{{Code: store.OpPut, Key: "c"}})
	one := o.waiting()
	o.putBack(pieces[1:])
	require.Equal(t, 2*one, o.waiting())
	var keys string
	for _, p := range o.take() {
		keys += p.ops[0].Key
	}
	require.Equal(t, "bc", keys)
	o.most = one
	o.putBack(pieces)
	require.NotNil(t, o.full(), "writers wait for room")
}

func ownerOf(n *node, key string) NodeID {
	owner, _ := n.Table().Owner(KeySlot(key))
	return owner.ID
}
