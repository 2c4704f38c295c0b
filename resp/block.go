package resp

import (
	"slices"
	"sync"
	"time"

	"github.com/slotmesh/slotmesh"
)

// waitList is who waits for which keys. Whoever waits longest for a key is woken
// first when it changes; having taken what it wanted, it wakes the next.
type waitList struct {
	watch *slotmesh.Watch

	mu    sync.Mutex
	byKey map[string][]*waiter // guarded by mu, first come first
}

// waiter is a blocking command that has found nothing.
type waiter struct {
	keys    []string
	changed chan struct{} // one of its keys has changed, or gone
	end     chan error    // CLIENT UNBLOCK: nil as if the time were over
	since   time.Time
}

func (l *waitList) init(node slotmesh.Node) {
	l.byKey = map[string][]*waiter{}
	l.watch = node.Watch(l.note)
}

// note is called under the lock of the key's slot.
func (l *waitList) note(key string, gone bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, w := range l.byKey[key] {
		select {
		case w.changed <- struct{}{}:
		default: // knows already
		}
		if !gone {
			return // one is enough: having looked, it wakes the next
		}
	}
}

// add puts w behind the others. The caller has not looked for what it wants yet:
// no change is missed.
func (l *waitList) add(w *waiter) {
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

// pass wakes who waits behind w for one of its keys: what has changed was nothing
// for w, and may be something for them.
func (l *waitList) pass(w *waiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, k := range w.keys {
		all := l.byKey[k]
		if i := slices.Index(all, w) + 1; i > 0 && i < len(all) {
			select {
			case all[i].changed <- struct{}{}:
			default:
			}
		}
	}
}

// remove takes w away and lets the next of each key look: there may be more than
// w has taken.
func (l *waitList) remove(w *waiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, k := range w.keys {
		l.take(k, w)
	}
}

func (l *waitList) take(key string, w *waiter) {
	rest := l.byKey[key]
	for i, x := range rest {
		if x == w {
			rest = append(rest[:i:i], rest[i+1:]...)
			break
		}
	}
	if len(rest) == 0 {
		delete(l.byKey, key)
		l.watch.Remove(key)
		return
	}
	l.byKey[key] = rest
	select {
	case rest[0].changed <- struct{}{}:
	default:
	}
}

// blockedLook is how often a command that waits asks whether its slot is still
// served: a cluster that is down does not change keys, and its clients are told.
const blockedLook = time.Second

// runBlocking runs a command again and again until it finds something, its time
// is over, or the client goes.
func (c *Conn) runBlocking(command *Command, args [][]byte, asking bool) error {
	began := c.reply.size()
	wait, err := c.execute(command, args, asking)
	if err != nil || wait == nil {
		return err
	}
	args = cloneArgs(args) // the connection reads on meanwhile
	w := &waiter{changed: make(chan struct{}, 1), end: make(chan error, 1), since: time.Now()}
	for _, key := range wait.keys {
		w.keys = append(w.keys, string(key))
	}
	c.server.blocked.add(w)
	defer c.server.blocked.remove(w)
	// It has not looked since it stands in the list.
	if wait, err = c.execute(command, args, asking); err != nil || wait == nil {
		return err
	}
	c.reply.truncate(began)
	if err := c.flush(); err != nil {
		return nil // cut
	}
	c.blocked.Store(w)
	defer c.blocked.Store(nil)
	return c.waitAndRun(command, args, asking, wait, w)
}

func (c *Conn) waitAndRun(command *Command, args [][]byte, asking bool, wait *waitFor, w *waiter) error {
	stop := c.socket.readAhead(c.cancel)
	defer stop()
	defer c.beginBatch()
	var over <-chan time.Time
	if wait.timeout > 0 {
		t := time.NewTimer(wait.timeout)
		defer t.Stop()
		over = t.C
	}
	look := time.NewTicker(blockedLook)
	defer look.Stop()
	for {
		select {
		case <-look.C:
			c.beginBatch()
			if again, err := c.execute(command, args, asking); err != nil || again == nil {
				return err
			}
			c.flush()
		case <-w.changed:
			c.beginBatch()
			again, err := c.execute(command, args, asking)
			if err != nil || again == nil {
				return err
			}
			c.server.blocked.pass(w)
			c.flush()
		case <-over:
			wait.none(&c.reply)
			return nil
		case err := <-w.end:
			if err == nil {
				wait.none(&c.reply)
			}
			return err
		case <-c.ctx.Done():
			c.quit = true
			return nil
		}
	}
}
