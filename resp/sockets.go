package resp

import (
	"bufio"
	"bytes"
	"crypto/sha1"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// sockets are the connections of MIGRATE to other servers: one per server, kept
// for a while.
type sockets struct {
	mu     sync.Mutex
	by     map[string]*target // guarded by mu, by address
	closed bool               // guarded by mu: no connection outlives its use
	doubts map[doubtKey][sha1.Size]byte
	order  []doubtKey // guarded by mu: oldest first
}

const (
	socketsMax    = 64               // as in Redis; at the bound the one that was used longest ago is closed
	socketIdle    = 10 * time.Second // as in Redis
	doubtsMax     = 1 << 16          // keys whose fate is unknown; at the bound the oldest is forgotten, and its next MIGRATE may hear BUSYKEY
	migrateChunk  = 64 << 10         // bytes that are written at a time, each within the timeout
	targetReplies = 1 << 20          // elements of a reply that are believed
)

// doubtKey is a key that was sent to a server which never answered.
type doubtKey struct{ addr, key string }

// target is another server. Its methods are for who holds it.
type target struct {
	addr  string
	users int // guarded by mu of the sockets: those who hold it, or are about to

	mu    sync.Mutex
	conn  net.Conn
	in    *bufio.Reader
	out   []byte
	db    int64
	login string // what was given to AUTH
	used  time.Time
}

// hold is the server at an address, for the caller alone until release. Connections
// that have not been used for a while are closed on this occasion.
func (s *sockets) hold(addr string) *target {
	t := s.target(addr)
	t.mu.Lock()
	return t
}

// release ends hold. What was closed meanwhile stays closed.
func (s *sockets) release(t *target) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.users--; s.closed && t.users == 0 {
		t.hangUp()
	}
	t.mu.Unlock()
}

// target is one that nobody closes until release.
func (s *sockets) target(addr string) *target {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.closeIdle(addr, now)
	t := s.by[addr]
	if t == nil {
		if s.by == nil {
			s.by = map[string]*target{}
		}
		t = &target{addr: addr, used: now}
		s.by[addr] = t
	}
	t.users++
	return t
}

// closeIdle closes what has not been used for a while, and at the bound what was
// used longest ago; not what is at work, and not the target at an address that is
// about to be.
func (s *sockets) closeIdle(but string, now time.Time) {
	var oldest *target
	var used time.Time
	for _, t := range s.by {
		if t.addr == but || t.users > 0 {
			continue
		}
		if now.Sub(t.used) > socketIdle {
			t.hangUp()
			delete(s.by, t.addr)
		} else if oldest == nil || t.used.Before(used) {
			oldest, used = t, t.used
		}
	}
	if oldest != nil && s.by[but] == nil && len(s.by) >= socketsMax {
		oldest.hangUp()
		delete(s.by, oldest.addr)
	}
}

// count is the number of servers that connections are kept to.
func (s *sockets) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.by)
}

// close closes what is kept; what somebody holds is closed when it is released.
func (s *sockets) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, t := range s.by {
		if t.users == 0 {
			t.hangUp()
		}
	}
	s.by = nil
}

// remember notes a value whose fate is unknown.
func (s *sockets) remember(addr, key string, sum [sha1.Size]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.doubts == nil {
		s.doubts = map[doubtKey][sha1.Size]byte{}
	}
	d := doubtKey{addr, key}
	if _, there := s.doubts[d]; !there {
		s.order = append(s.order, d)
	}
	s.doubts[d] = sum
	for len(s.doubts) > doubtsMax || len(s.order) > 2*doubtsMax {
		delete(s.doubts, s.order[0])
		s.order = s.order[1:]
	}
}

// forget drops the note: the fate is known.
func (s *sockets) forget(addr, key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.doubts, doubtKey{addr, key})
}

// sum is that of a value whose fate is unknown.
func (s *sockets) sum(addr, key string) ([sha1.Size]byte, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sum, ok := s.doubts[doubtKey{addr, key}]
	return sum, ok
}

// ioError is a target that does not answer, in the words of Redis.
type ioError struct {
	doing   string // "writing", "reading"
	timeout bool
}

func (e *ioError) Error() string {
	if e.doing == "connecting" {
		return "IOERR error or timeout connecting to the client"
	}
	return "IOERR error or timeout " + e.doing + " to target instance"
}

func ioFailed(doing string, err error) error {
	return &ioError{doing: doing, timeout: errors.Is(err, os.ErrDeadlineExceeded)}
}

// connect makes a connection if there is none, with the login and the database
// of a migration.
func (t *target) connect(m *migration) error {
	t.used = time.Now()
	if t.conn == nil {
		d := net.Dialer{Timeout: m.timeout}
		conn, err := d.DialContext(m.conn.ctx, "tcp", t.addr)
		if err != nil {
			if dns := new(net.DNSError); errors.As(err, &dns) {
				return ioFailed("connecting", err)
			}
			return ioFailed("writing", err)
		}
		t.conn, t.in, t.out, t.db, t.login = conn, bufio.NewReaderSize(conn, 4096), nil, -1, ""
	}
	var setUp [][]string
	login := m.user + "\x00" + m.password
	if m.password != "" && t.login != login {
		if m.user == "" {
			setUp = append(setUp, []string{"AUTH", m.password})
		} else {
			setUp = append(setUp, []string{"AUTH", m.user, m.password})
		}
	}
	if t.db != m.db {
		setUp = append(setUp, []string{"SELECT", strconv.FormatInt(m.db, 10)})
	}
	for _, args := range setUp {
		if err := t.write(m.timeout, args...); err != nil {
			return err
		}
	}
	if err := t.flush(m.timeout); err != nil {
		return err
	}
	var refusal error
	for range setUp {
		reply, err := t.line(m.timeout)
		if err != nil {
			return err
		}
		if strings.HasPrefix(reply, "-") && refusal == nil {
			refusal = targetError(reply)
		}
	}
	if refusal != nil {
		t.hangUp()
		return refusal
	}
	t.db = m.db
	if m.password != "" {
		t.login = login
	}
	return nil
}

func (t *target) hangUp() {
	if t.conn != nil {
		t.conn.Close()
		t.conn = nil
	}
	t.out = nil
}

// write adds a command, and writes while there is much.
func (t *target) write(timeout time.Duration, args ...string) error {
	t.out = fmt.Appendf(t.out, "*%d\r\n", len(args))
	for _, a := range args {
		t.out = fmt.Appendf(t.out, "$%d\r\n", len(a))
		t.out = append(t.out, a...)
		t.out = append(t.out, '\r', '\n')
	}
	if len(t.out) >= migrateChunk {
		return t.flush(timeout)
	}
	return nil
}

// flush writes what there is, each piece within the timeout.
func (t *target) flush(timeout time.Duration) error {
	for len(t.out) > 0 {
		n := min(len(t.out), migrateChunk)
		t.conn.SetWriteDeadline(time.Now().Add(timeout))
		if _, err := t.conn.Write(t.out[:n]); err != nil {
			return ioFailed("writing", err)
		}
		t.out = t.out[n:]
	}
	t.out = nil
	return nil
}

// line reads a line of a reply, with its sign.
func (t *target) line(timeout time.Duration) (string, error) {
	t.conn.SetReadDeadline(time.Now().Add(timeout))
	line, err := t.in.ReadSlice('\n')
	if err != nil {
		return "", ioFailed("reading", err)
	}
	if line = bytes.TrimRight(line, "\r\n"); len(line) == 0 {
		return "", ioFailed("reading", io.ErrUnexpectedEOF)
	}
	return string(line), nil
}

// commit lets a member show what was prepared, and returns a line per value. An
// error of the whole is one line.
func (t *target) commit(self string, timeout time.Duration) ([]string, error) {
	if err := t.write(timeout, commitName, self); err != nil {
		return nil, err
	}
	if err := t.flush(timeout); err != nil {
		return nil, err
	}
	head, err := t.line(timeout)
	if err != nil || head[0] != '*' {
		return []string{head}, err
	}
	n, err := strconv.Atoi(head[1:])
	if err != nil || n < 0 || n > targetReplies {
		return nil, ioFailed("reading", io.ErrUnexpectedEOF)
	}
	var lines []string
	for range n {
		l, err := t.line(timeout)
		if err != nil {
			return nil, err
		}
		lines = append(lines, l)
	}
	return lines, nil
}

// takeOver makes this connection the one whose word counts with a member.
func (t *target) takeOver(m *migration) bool {
	_, err := t.commit(m.conn.server.node.ID().String(), m.timeout)
	if err != nil {
		t.hangUp()
	}
	return err == nil
}

// dump reads the value of a key at the target.
func (t *target) dump(key string, timeout time.Duration) (payload []byte, found bool, err error) {
	head, err := t.ask(timeout, "DUMP", key)
	if err != nil || head[0] != '$' {
		return nil, false, err
	}
	n, err := strconv.Atoi(head[1:])
	if err != nil || n < 0 {
		return nil, false, nil
	}
	var b bytes.Buffer // grows with what comes, not with what is announced
	t.conn.SetReadDeadline(time.Now().Add(timeout))
	if _, err := io.CopyN(&b, t.in, int64(n)+2); err != nil {
		return nil, false, ioFailed("reading", err)
	}
	return b.Bytes()[:n], true, nil
}

// bulkLimit is the length of an argument that the target takes at most; not found:
// it does not say.
func (t *target) bulkLimit(timeout time.Duration) (limit int64, found bool, err error) {
	if err := t.write(timeout, "CONFIG", "GET", "proto-max-bulk-len"); err != nil {
		return 0, false, err
	}
	if err := t.flush(timeout); err != nil {
		return 0, false, err
	}
	head, err := t.line(timeout)
	if err != nil || head != "*2" {
		return 0, false, err
	}
	var last string
	for range 4 { // a length and a text, of the name and of the value
		if last, err = t.line(timeout); err != nil {
			return 0, false, err
		}
	}
	limit, found = parseInt([]byte(last))
	return limit, found, nil
}

// delete deletes a key at the target.
func (t *target) delete(key string, timeout time.Duration) error {
	_, err := t.ask(timeout, "DEL", key)
	return err
}

// ask sends a command into a slot that is being imported, and returns the first
// line of its reply.
func (t *target) ask(timeout time.Duration, args ...string) (string, error) {
	if err := t.write(timeout, "ASKING"); err != nil {
		return "", err
	}
	if err := t.write(timeout, args...); err != nil {
		return "", err
	}
	if err := t.flush(timeout); err != nil {
		return "", err
	}
	if _, err := t.line(timeout); err != nil { // of ASKING: a server that is no cluster refuses it
		return "", err
	}
	return t.line(timeout)
}
