package resp

import (
	"net"
	"sync/atomic"
	"time"
)

// socket is the reading side of a connection. While a command waits it goes on
// reading, to learn that the client has gone.
type socket struct {
	conn  net.Conn
	count *atomic.Int64 // bytes read by all connections
	read  atomic.Int64  // by this one

	ahead    []byte // read while a command waited
	aheadErr error  // met while a command waited
}

const aheadMax = 64 << 10 // bytes read while a command waits; at the bound the client's going shows only afterwards

// Read implements io.Reader.
func (s *socket) Read(b []byte) (int, error) {
	if len(s.ahead) > 0 {
		n := copy(b, s.ahead)
		if s.ahead = s.ahead[n:]; len(s.ahead) == 0 {
			s.ahead = nil
		}
		return n, nil
	}
	if err := s.aheadErr; err != nil {
		return 0, err
	}
	n, err := s.conn.Read(b)
	s.came(n)
	return n, err
}

func (s *socket) came(n int) {
	s.count.Add(int64(n))
	s.read.Add(int64(n))
}

// readAhead reads in a goroutine, and calls gone if the client has gone. stop
// ends it and waits for it.
func (s *socket) readAhead(gone func()) (stop func()) {
	done := make(chan struct{})
	var stopping atomic.Bool
	go func() {
		defer close(done)
		buf := make([]byte, 4096)
		for len(s.ahead) < aheadMax && s.aheadErr == nil {
			n, err := s.conn.Read(buf)
			s.came(n)
			s.ahead = append(s.ahead, buf[:n]...)
			if err != nil && stopping.Load() {
				return // most likely the deadline; another error shows again
			}
			if err != nil {
				s.aheadErr = err
				gone()
			}
		}
	}()
	return func() {
		stopping.Store(true)
		s.conn.SetReadDeadline(time.Unix(1, 0))
		<-done
		s.conn.SetReadDeadline(time.Time{})
	}
}
