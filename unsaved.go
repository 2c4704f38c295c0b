package slotmesh

import (
	"context"
	"math"
	"slices"
	"time"
)

// What waits for the disk. A save may take long, or hang: neither complete nor
// fail, for hours. Nothing that waits for one grows without bound meanwhile:
//
//	messages to others     the oldest is lost, as any message may be
//	messages to itself     the same: loopMax, in the core
//	events                 those that no longer fit are counted, in an EventLost in their place
//	tells other than those are not to be lost, nor are cells that gather in the saver: with
//	                       so many of either the node takes in nothing new (see clogged)
//	commands of operators  one more is told to try again; nobody who has gave one is without
//	                       an answer, and none has two
//	callers of settled     one more hears that the disk is slow
//
// A node that takes in nothing new loses the messages that come, as it may, but for
// heartbeats: by those it goes on to lead under its lease, serves, and is no stranger.
// Operators are told to try again, and so is who would begin a hand-over. What is
// under way already comes to its end, so what that adds is bounded by its number.
// When the disk goes on so does the node, and what it has missed comes by the repeats
// and digests of the others; its vote another one has by then (diskHangs).
const (
	heldMax      = 4096    // messages that wait for the disk; at the bound the oldest is lost
	toldMax      = 4096    // tells; at the bound the node is clogged
	toldEvents   = 1024    // of them events; at the bound one more is counted as lost
	savingsMax   = 1024    // callers of settled; at the bound one more is refused
	gatheringMax = 1 << 16 // cells that are to be saved; at the bound the node is clogged
)

// ---- tells

// tellQueue are the tells whose save has not completed, in order.
type tellQueue struct {
	waiting []tell
	events  int
	lost    *lostTell // the last of them, if nothing but events has been lost since
	saved   uint64    // when it was looked through last,
	looked  int       // and how many have waited on then: they do until saved is another
}

// lostTell stands in the place of events that there was no room for.
type lostTell struct{ number uint64 }

func (q *tellQueue) add(t tell) {
	switch _, event := t.what.(eventTell); {
	case !event:
	case q.events < toldEvents:
		q.events, q.lost = q.events+1, nil
	case q.lost != nil:
		q.lost.number++
		return
	default:
		q.lost = &lostTell{1}
		t.what = q.lost
	}
	q.waiting = append(q.waiting, t)
}

// take tells those whose save has completed, in order; but a mark and a reply wait
// for their own saves alone.
func (q *tellQueue) take(saved uint64, tell func(what any)) {
	if saved != q.saved {
		q.looked = 0
	}
	rest := q.waiting[:q.looked]
	for _, t := range q.waiting[q.looked:] {
		if t.after > saved || len(rest) > 0 && !overtakes(t.what) {
			rest = append(rest, t)
			continue
		}
		if _, event := t.what.(eventTell); event {
			q.events--
		}
		if t.what == any(q.lost) {
			q.lost = nil
		}
		tell(t.what)
	}
	clear(q.waiting[len(rest):])
	q.waiting, q.saved, q.looked = rest, saved, len(rest)
}

// abandon is for tells whose save will never complete: what becomes of each says f.
func (q *tellQueue) abandon(f func(what any) any) {
	for i, t := range q.waiting {
		q.waiting[i] = tell{what: f(t.what)}
	}
	q.events, q.lost, q.looked = 0, nil, 0
}

func overtakes(what any) bool {
	switch what.(type) {
	case replyTell, markTell:
		return true
	}
	return false
}

// ---- bounds

// noteClogged looks whether the node may take in anything new.
func (n *node) noteClogged() {
	was := n.clogged.Load()
	now := n.core.broken == nil && n.core.savedSeq < n.core.saveSeq &&
		(len(n.told.waiting) >= toldMax || n.saver.gathering() >= gatheringMax)
	if now == was {
		return
	}
	n.clogged.Store(now)
	if now {
		n.cfg.Logger.Error("the disk does not answer: until it does this node takes in nothing new", "dir", n.cfg.Dir)
	} else {
		n.cfg.Logger.Info("the disk answers again", "dir", n.cfg.Dir)
	}
}

// refusesMessage reports whether a message is lost here.
func (n *node) refusesMessage(m message) bool {
	_, beat := m.(*heartbeat)
	return !beat && n.clogged.Load()
}

// refusesNew is why nothing new is begun; nil: it is.
func (n *node) refusesNew() *commandError {
	if err := n.core.cannotSave(); err != nil || !n.clogged.Load() {
		return err
	}
	return tryAgain("%s; nothing has changed", diskHangs)
}

const diskHangs = "this node's disk does not answer, and as much waits for it as may"

// refusesCommand is why one more command of an operator is refused; nil: it is not.
// One whose caller has gone counts until it has its answer.
func (n *node) refusesCommand() *commandError {
	if err := n.refusesNew(); err != nil || len(n.replies) < commandsMax {
		return err
	}
	return tryAgain("%d commands are under way, which is the limit", commandsMax)
}

// begin hands a step to the run loop that begins something new, unless that is refused.
func (n *node) begin(ctx context.Context, step func(s *state, now time.Duration) output) error {
	refused := make(chan *commandError, 1)
	err := n.post(ctx, func(s *state, now time.Duration) output {
		err := n.refusesNew()
		if refused <- err; err != nil {
			return output{}
		}
		return step(s, now)
	})
	if err != nil {
		return err
	}
	return (<-refused).public()
}

// ---- callers

// saving is somebody who waits for a save.
type saving struct {
	after uint64
	done  chan error // has room for what is said
}

// settled hands a step to the run loop, and returns once all that it has changed
// is saved. Where too many wait for that the step is not taken.
func (n *node) settled(ctx context.Context, step func(s *state, now time.Duration) output) error {
	done := make(chan error, 1)
	err := n.post(ctx, func(s *state, now time.Duration) output {
		if len(n.savings) >= savingsMax {
			done <- tryAgain("%s; nothing has changed", diskHangs).public()
			return output{}
		}
		out := step(s, now)
		if s.broken != nil {
			done <- s.broken
			return out
		}
		n.savings = append(n.savings, saving{s.saveSeq, done})
		return out
	})
	if err != nil {
		return err
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-n.ctx.Done():
		return ErrClosed
	}
}

// endSaved lets those go on who have waited long enough.
func (n *node) endSaved() {
	n.savings = slices.DeleteFunc(n.savings, func(w saving) bool {
		if w.after <= n.core.savedSeq {
			w.done <- nil
		}
		return w.after <= n.core.savedSeq
	})
}

// endSavings ends what waits for saves that will never complete.
func (n *node) endSavings(err error) {
	for _, w := range n.savings {
		w.done <- err
	}
	n.savings = nil
	n.jobs.saving.savedUpTo(math.MaxUint64) // who waits finds the lease over
}

// ---- messages

// sendReady sends the messages whose save has completed, and returns the rest.
func (n *node) sendReady(msgs []send) []send {
	rest := msgs[:0]
	for _, m := range msgs {
		if m.after <= n.core.savedSeq {
			n.links.send(m)
		} else {
			rest = append(rest, m)
		}
	}
	clear(msgs[len(rest):])
	if len(rest) > heldMax {
		rest = rest[len(rest)-heldMax:]
	}
	return rest
}

// awaitsSave reports whether anybody waits for what is not saved yet. News and
// what may be dropped can wait.
func (n *node) awaitsSave(tells []tell) bool {
	if len(n.held) > 0 || len(n.savings) > 0 || n.core.awaitsSave() {
		return true
	}
	return slices.ContainsFunc(tells, func(t tell) bool {
		switch what := t.what.(type) {
		case eventTell, dropTell:
			return false
		case markTell:
			return what.after > n.core.savedSeq
		case jobTell:
			return t.after > n.core.savedSeq && n.jobs.gives(what.job)
		}
		return t.after > n.core.savedSeq
	})
}
