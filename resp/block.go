package resp

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/slotmesh/slotmesh"
)

// waitList is who waits for which keys. A command of a client that changes such a
// key serves them in its own Tx, before anybody else sees the key: those who wait
// longest first. Where a key changes otherwise (by a call of the application) the
// one who waits longest for it is woken, and serves them all.
type waitList struct {
	watch *slotmesh.Watch
	n     atomic.Int64 // who waits: commands look no further where it is 0

	mu    sync.Mutex
	free  *sync.Cond           // of mu: a waiter is not claimed any more
	byKey map[string][]*waiter // guarded by mu, first come first
}

// waiter is a blocking command that has found nothing.
type waiter struct {
	conn    *Conn
	command *Command
	args    [][]byte
	keys    []string // each once: it stands once in each list
	asking  bool
	wait    *waitFor

	changed chan struct{} // one of its keys has changed, or gone
	end     chan error    // CLIENT UNBLOCK: nil as if the time were over
	served  chan struct{} // holds one token: reply or err is there
	since   time.Time

	claimed bool   // guarded by mu of the list: somebody is about to serve it
	done    bool   // guarded by mu of the list: it stands in no list
	reply   []byte // what it has been served
	err     error
}

func (l *waitList) init(node slotmesh.Node) {
	l.byKey = map[string][]*waiter{}
	l.free = sync.NewCond(&l.mu)
	l.watch = node.Watch(l.note)
}

// note is called under the lock of the key's slot.
func (l *waitList) note(key string, gone bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, w := range l.byKey[key] {
		if w.claimed && !gone {
			continue // it is its own change
		}
		w.wake()
		if !gone {
			return // one is enough: it serves the others
		}
	}
}

func (w *waiter) wake() {
	select {
	case w.changed <- struct{}{}:
	default: // knows already
	}
}

// add puts w behind the others. The caller has not looked for what it wants yet:
// no change is missed.
func (l *waitList) add(w *waiter) {
	l.n.Add(1)
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, k := range w.keys {
		l.byKey[k] = append(l.byKey[k], w)
	}
	l.watch.Add(w.keys...)
}

// waiting is the number of those who wait.
func (l *waitList) waiting() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := map[*waiter]struct{}{}
	for _, ws := range l.byKey {
		for _, w := range ws {
			all[w] = struct{}{}
		}
	}
	return len(all)
}

// leave takes w away, unless it has been served. Who is about to serve it is
// waited for. The next of each key looks: it may be what w was woken for.
func (l *waitList) leave(w *waiter) (served bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for w.claimed {
		l.free.Wait()
	}
	if w.done {
		return true
	}
	l.drop(w)
	for _, k := range w.keys {
		if rest := l.byKey[k]; len(rest) > 0 {
			rest[0].wake()
		}
	}
	return false
}

// drop takes w out of the lists, under mu.
func (l *waitList) drop(w *waiter) {
	w.done = true
	l.n.Add(-1)
	for _, key := range w.keys {
		rest := slices.DeleteFunc(slices.Clone(l.byKey[key]), func(x *waiter) bool { return x == w })
		if len(rest) == 0 {
			delete(l.byKey, key)
			l.watch.Remove(key)
		} else {
			l.byKey[key] = rest
		}
	}
}

// claim is who waits for a key, in order, as the next to be served after a
// waiter; nil: nobody.
func (l *waitList) claim(key string, after *waiter) *waiter {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := l.byKey[key]
	for _, w := range all[slices.Index(all, after)+1:] {
		if !w.claimed && !w.done {
			w.claimed = true
			return w
		}
	}
	return nil
}

func (l *waitList) release(w *waiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w.claimed = false
	l.free.Broadcast()
}

// serving is who is served in one Tx. What they get is theirs once it has ended.
type serving struct {
	list *waitList
	own  *Conn // whose Tx it is
	all  []*waiter
}

// serve serves who waits for keys that a Tx has changed, and who waits for what
// those who are served have put elsewhere. It is called in the Tx.
func (s *serving) serve(tx *slotmesh.Tx, keys []string) error {
	for i := 0; i < len(keys); i++ {
		more, err := s.serveKey(tx, keys[i])
		if err != nil {
			return err
		}
		keys = append(slices.Clip(keys), more...)
	}
	return nil
}

// serveBlocked serves who waits for keys that a command has changed, and those that its
// scripts have.
func (c *Conn) serveBlocked(tx *slotmesh.Tx, keys []string) error {
	if c.server.blocked.n.Load() == 0 {
		return nil
	}
	return c.serving.serve(tx, slices.Concat(keys, c.touched))
}

// serveKey serves who waits for a key as long as there is something, and returns
// the keys that they have changed.
func (s *serving) serveKey(tx *slotmesh.Tx, key string) (changed []string, err error) {
	for w := s.list.claim(key, nil); w != nil; w = s.list.claim(key, w) {
		key := w.own(key) // the other one is memory of the connection that has changed it
		head, found, err := tx.Entry(key)
		if err != nil || !found || head.Kind != w.wait.kind {
			s.list.release(w)
			if err != nil || !found {
				return changed, err
			}
			continue // a key of another kind is one more reason to wait
		}
		s.all = append(s.all, w)
		moved, err := w.run(tx, key)
		if err != nil {
			return changed, err
		}
		if t := s.own.tracking; t != nil {
			t.othersToo(key)
			t.othersToo(moved)
		}
		if moved != "" {
			changed = append(changed, moved)
		}
	}
	return changed, nil
}

// own is a key that w waits for, in memory of its own.
func (w *waiter) own(key string) string { return w.keys[slices.Index(w.keys, key)] }

// run runs what waits, for one key that is there. moved is the key that it has
// changed beside. Its error is its own affair, unless nothing of the Tx can be.
func (w *waiter) run(tx *slotmesh.Tx, key string) (moved string, err error) {
	var reply Reply
	reply.setProto(int(w.conn.proto.Load()))
	reply.bound(w.conn.server.cfg.Limits.Output)
	call := Call{Tx: tx, Args: w.args, Reply: &reply, command: w.command, conn: w.conn}
	w.err = call.whole(func() (err error) {
		moved, err = w.wait.serve(&call, key)
		return err
	})
	if half := new(halfDone); errors.As(w.err, &half) {
		return "", w.err
	}
	if w.err != nil {
		return "", nil
	}
	w.reply = reply.bytes()
	if reply.over() {
		w.reply = nil
		w.conn.cut()
	}
	return moved, nil
}

// end hands out what has been served, once the Tx has ended with err: all or
// nothing of it has happened, or nobody knows.
func (s *serving) end(err error) {
	if len(s.all) == 0 {
		return
	}
	l := s.list
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, w := range s.all {
		w.claimed = false
		switch {
		case err == nil:
		case outcomeUnknown(err):
			w.reply, w.err = nil, err
		default: // nothing has happened: it goes on to wait
			w.reply, w.err = nil, nil
			w.wake()
			continue
		}
		l.drop(w)
		w.served <- struct{}{}
	}
	l.free.Broadcast()
	s.all = s.all[:0]
}

// blockedLook is how often a command that waits asks whether its slot is still
// served: a cluster that is down does not change keys, and its clients are told.
const blockedLook = time.Second

// runBlocking runs a command. Where it finds nothing it waits, until it is
// served, its time is over, or the client goes.
func (c *Conn) runBlocking(command *Command, args [][]byte, asking bool) error {
	began := c.reply.size() - c.began
	wait, err := c.execute(command, args, asking)
	if err != nil || wait == nil {
		return err
	}
	if c.settle(); c.unsettled != nil {
		return c.unsettled // that there is nothing may not be said: it does not wait
	}
	w := &waiter{conn: c, command: command, args: cloneArgs(args), asking: asking, wait: wait, // the connection reads on meanwhile
		changed: make(chan struct{}, 1), end: make(chan error, 1), served: make(chan struct{}, 1), since: time.Now()}
	w.keys = distinct(wait.keys)
	wait.keys = nil
	c.server.blocked.add(w)
	w.wake() // it has not looked since it stands in the list
	c.reply.truncate(c.began + began)
	if err := c.flush(); err != nil {
		c.server.blocked.leave(w)
		c.quit = true // it has been cut
		return nil
	}
	c.blocked.Store(w)
	defer c.blocked.Store(nil)
	stop := c.socket.readAhead(c.cancel)
	err = c.await(w)
	stop()
	c.beginBatch()
	return err
}

// distinct is keys in their order, each once, as strings.
func distinct(keys [][]byte) []string {
	seen := make(map[string]struct{}, len(keys))
	var all []string
	for _, k := range keys {
		key := string(k)
		if _, again := seen[key]; !again {
			seen[key] = struct{}{}
			all = append(all, key)
		}
	}
	return all
}

// await waits until w is served, or will not be, and writes its reply.
func (c *Conn) await(w *waiter) error {
	var over <-chan time.Time
	if w.wait.timeout > 0 {
		t := time.NewTimer(w.wait.timeout)
		defer t.Stop()
		over = t.C
	}
	look := time.NewTicker(blockedLook)
	defer look.Stop()
	var held <-chan time.Time    // a pause that it waits for
	var heldOver <-chan struct{} // is over early
	for {
		var end func() error // what it ends with, unless it has been served
		none := func() error {
			w.wait.none(&c.reply)
			return nil
		}
		select {
		case <-w.served:
			return c.takeServed(w)
		case <-look.C:
		case <-w.changed:
			if p := c.server.pause.p.Load(); p.holds() {
				held, heldOver = time.After(time.Until(p.until)), p.over
				continue
			}
		case <-held:
			held, heldOver = nil, nil
			w.wake()
			continue
		case <-heldOver:
			held, heldOver = nil, nil
			w.wake()
			continue
		case <-over:
			end = none
		case err := <-w.end:
			if end = none; err != nil {
				end = func() error { return err }
			}
		case <-c.ctx.Done():
			end = func() error {
				c.quit = true
				return nil
			}
		}
		if end == nil {
			err := c.serveWaiters(w)
			if err == nil {
				continue
			}
			end = func() error { return err }
		}
		if c.server.blocked.leave(w) {
			<-w.served
			return c.takeServed(w)
		}
		c.beginBatch()
		return end()
	}
}

// takeServed is the end of a wait: somebody has run the command.
func (c *Conn) takeServed(w *waiter) error {
	c.beginBatch()
	if w.err == nil {
		c.reply.raw(w.reply)
	}
	return w.err
}

// serveWaiters serves all who wait for the keys of w, among them w, if there is
// something.
func (c *Conn) serveWaiters(w *waiter) error {
	r := slotmesh.Request{Name: w.command.Name, Keys: w.keys, Asking: w.asking, AckReplicas: c.server.ackReplicas(false)}
	if err := c.beforeSlot(&r); err != nil {
		return err
	}
	err := c.session.Execute(c.ctx, &r, func(tx *slotmesh.Tx) error {
		if c.server.pause.p.Load().holds() {
			return nil // it is seen all the same that the slot is served
		}
		return c.serving.serve(tx, w.keys)
	})
	c.serving.end(err)
	return err
}
