package resp

import "sync"

// pushQueue is what goes to a client unasked: messages and invalidations. It is
// bounded in bytes; a client that does not read them is cut, as in Redis, for
// what it misses it would miss without knowing.
type pushQueue struct {
	mu      sync.Mutex
	buf     []byte
	started bool // written by the connection's own goroutine alone, which may read it without mu
	closed  bool
	wake    chan struct{}
	done    chan struct{}
}

// startPushing starts the goroutine that writes what is pushed. The connection's
// own goroutine calls it, before anything is pushed.
func (c *Conn) startPushing() {
	q := &c.pushes
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.started || q.closed {
		return
	}
	q.started = true
	q.wake, q.done = make(chan struct{}, 1), make(chan struct{})
	go c.writePushes()
}

// push queues bytes for the client. It never waits and may be called from any
// goroutine.
func (c *Conn) push(b []byte) {
	q := &c.pushes
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.started || q.closed {
		return
	}
	if len(q.buf)+len(b) > c.server.cfg.Limits.Push {
		q.closed, q.buf = true, nil
		c.cut()
	}
	if !q.closed {
		q.buf = append(q.buf, b...)
	}
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// waiting is the number of bytes that are queued.
func (q *pushQueue) waiting() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.buf)
}

// take removes what is queued, to be written.
func (q *pushQueue) take() []byte {
	q.mu.Lock()
	defer q.mu.Unlock()
	b := q.buf
	q.buf = nil
	return b
}

func (c *Conn) writePushes() {
	q := &c.pushes
	defer close(q.done)
	for {
		select {
		case <-q.wake:
		case <-c.ctx.Done():
			return
		}
		c.writeMu.Lock()
		err := c.write(q.take())
		c.writeMu.Unlock()
		if err != nil {
			return
		}
	}
}

// close ends the goroutine and waits for it. The connection has been cut.
func (q *pushQueue) close() {
	q.mu.Lock()
	q.closed = true
	started := q.started
	q.mu.Unlock()
	if started {
		<-q.done
	}
}
