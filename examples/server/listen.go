package main

import (
	"net"
	"sync"
)

// listeners is several listeners as one.
type listeners struct {
	all   []net.Listener
	conns chan accepted
	done  chan struct{}
	once  sync.Once
	wg    sync.WaitGroup
}

type accepted struct {
	conn net.Conn
	err  error
}

// joinListeners makes one of several.
func joinListeners(all []net.Listener) net.Listener {
	if len(all) == 1 {
		return all[0]
	}
	l := &listeners{all: all, conns: make(chan accepted), done: make(chan struct{})}
	for _, x := range all {
		l.wg.Go(func() { l.accept(x) })
	}
	return l
}

func (l *listeners) accept(from net.Listener) {
	for {
		conn, err := from.Accept()
		select {
		case l.conns <- accepted{conn, err}:
		case <-l.done:
			if conn != nil {
				conn.Close()
			}
			return
		}
	}
}

// Accept implements net.Listener.
func (l *listeners) Accept() (net.Conn, error) {
	select {
	case a := <-l.conns:
		return a.conn, a.err
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *listeners) Close() (err error) {
	l.once.Do(func() {
		close(l.done)
		for _, x := range l.all {
			if e := x.Close(); e != nil {
				err = e
			}
		}
		l.wg.Wait()
	})
	return err
}

// Addr implements net.Listener: that of the first.
func (l *listeners) Addr() net.Addr { return l.all[0].Addr() }
