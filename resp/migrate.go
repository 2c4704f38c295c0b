package resp

import (
	"crypto/sha1"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/slotmesh/slotmesh"
)

// MIGRATE moves keys to another server. Its outcome is plain: whatever happens on
// the way, each key is at one of the two servers.
//
//	1 no write of a client touches the keys meanwhile: it waits (moving.go)
//	2 the values are read under the lock of their slot
//	3 they are sent; nothing is locked, and reads go on
//	4 what the target has confirmed is deleted under the lock, unless it has
//	  changed since 2: then it is sent again
//
// A member of the cluster first gets all values (PREPARE) and shows them only
// when it is told to (COMMIT): one that stood still for a while shows nothing
// that was given up. Where the answer to COMMIT is lost, the target is asked what
// it has.

func migrateCommands() []Command {
	return []Command{
		{Name: "migrate", Arity: -6, Flags: Write | MovableKeys, First: 3, Last: 3, Step: 1, Keys: migrateKeys, Conn: migrate, Group: "generic", Since: "2.6.0", Summary: "Move keys to another server", Complexity: "O(N) where N is the size of the values"},
		{Name: prepareName, Arity: -5, Flags: DenyOOM | NoMulti | NoScript, Conn: prepare, Group: "cluster", Summary: "Take a value, to be shown at COMMIT: from member to member"},
		{Name: commitName, Arity: 2, Flags: NoMulti | NoScript, Conn: commit, Group: "cluster", Summary: "Show what was prepared: from member to member"},
	}
}

const errMigrateKeys Error = "ERR When using MIGRATE KEYS option, the key argument must be set to the empty string"

// migrateKeys are the key in its place, or those behind KEYS; none where both are
// given, which is for the command to refuse.
func migrateKeys(args [][]byte) ([]int, error) {
	for i := 6; i < len(args); i++ {
		switch {
		case equalFold(args[i], "auth"):
			i++ // the password may be KEYS
		case equalFold(args[i], "auth2"):
			i += 2
		case equalFold(args[i], "keys") && len(args[3]) > 0:
			return nil, nil
		case equalFold(args[i], "keys"):
			var at []int
			for j := i + 1; j < len(args); j++ {
				at = append(at, j)
			}
			return withoutFiller(args, at), nil
		}
	}
	return []int{3}, nil
}

// withoutFiller leaves out an empty name at the end, unless it may be meant: in
// one slot with the other keys. With --user and without a password redis-cli
// adds one to every MIGRATE, and could not move a slot otherwise.
func withoutFiller(args [][]byte, at []int) []int {
	last := len(at) - 1
	if last > 0 && len(args[at[last]]) == 0 && slotmesh.KeySlot(view(args[at[0]])) != slotmesh.KeySlot("") {
		return at[:last]
	}
	return at
}

// migration is one MIGRATE.
type migration struct {
	conn     *Conn
	addr     string // of the target
	member   bool   // the target is one of this cluster, and knows COMMIT
	db       int64
	timeout  time.Duration // of each wait for the network
	copy     bool
	replace  bool
	user     string
	password string
	keys     []string
}

// sending is a value on its way.
type sending struct {
	key     string
	payload []byte
	ttl     int64 // milliseconds, 0: for ever
	replace bool
	state   sendState
	busy    bool // refused because there is such a key
}

type sendState uint8

const (
	notSent sendState = iota
	unknown           // it was sent, and no answer has come
	stored            // the target has it
	refused
)

func migrate(c *Conn, args [][]byte) error {
	at, err := migrateKeys(args)
	if err != nil {
		return err
	}
	keys := make([]string, 0, len(at))
	seen := map[string]bool{}
	for _, i := range at {
		if k := string(args[i]); !seen[k] {
			seen[k] = true
			keys = append(keys, k)
		}
	}
	if len(keys) > 0 {
		// As in Redis a redirect comes before what is wrong with the arguments.
		if err := c.session.Execute(c.ctx, &slotmesh.Request{Keys: keys, ReadOnly: true, Anyway: true, Name: "migrate"}, func(*slotmesh.Tx) error { return nil }); err != nil {
			return err
		}
	}
	m, err := parseMigrate(c, args)
	if err != nil {
		return err
	}
	m.keys = keys
	moved, err := m.run()
	var lost *ioError
	switch {
	case errors.As(err, &lost):
		return Error(lost.Error())
	case err != nil:
		return err
	case moved == 0:
		c.reply.Simple("NOKEY")
	default:
		c.reply.Simple("OK")
	}
	return nil
}

func parseMigrate(c *Conn, args [][]byte) (*migration, error) {
	port, _ := strconv.Atoi(string(args[2])) // as in Redis: one that is none fails to connect
	m := &migration{conn: c, addr: net.JoinHostPort(string(args[1]), strconv.Itoa(port))}
	for i := 6; i < len(args); i++ {
		switch rest := len(args) - 1 - i; {
		case equalFold(args[i], "copy"):
			m.copy = true
		case equalFold(args[i], "replace"):
			m.replace = true
		case equalFold(args[i], "auth") && rest > 0:
			m.password = string(args[i+1])
			i++
		case equalFold(args[i], "auth2") && rest > 1:
			m.user, m.password = string(args[i+1]), string(args[i+2])
			i += 2
		case equalFold(args[i], "keys"):
			if len(args[3]) > 0 {
				return nil, errMigrateKeys
			}
			i = len(args)
		default:
			return nil, errSyntax
		}
	}
	timeout, ok := parseInt(args[5])
	db, ok2 := parseInt(args[4])
	if !ok || !ok2 {
		return nil, errNotInteger
	}
	if m.db = db; timeout <= 0 {
		timeout = 1000
	}
	m.timeout = time.Duration(min(timeout, 1<<40)) * time.Millisecond
	for _, n := range c.server.node.Table().Nodes() {
		m.member = m.member || !n.Self && n.ClientAddr == m.addr
	}
	return m, nil
}

// migrateRounds bounds how often a key that changes on the way is sent again.
// Clients' writes wait; what changes it nevertheless was under way already, or
// is the application's own.
const migrateRounds = 16

// run moves the keys, and returns how many there were.
func (m *migration) run() (moved int, err error) {
	s := m.conn.server
	if err := s.moving.begin(m.conn.ctx, m.keys); err != nil {
		return 0, err
	}
	defer s.moving.end(m.keys)
	todo := m.keys
	again := false
	for range migrateRounds {
		if len(todo) == 0 {
			return moved, nil
		}
		values, err := m.read(todo)
		if err != nil {
			return moved, err
		}
		moved = max(moved, len(values))
		if len(values) == 0 {
			return moved, nil
		}
		for i := range values {
			values[i].replace = m.replace || again
		}
		sendErr := m.send(values)
		if todo, err = m.settle(values); err != nil {
			m.doubt(values)
			return moved, err
		}
		if sendErr != nil {
			return moved, sendErr
		}
		again = true
	}
	return moved, Error(fmt.Sprintf("TRYAGAIN key %.64q changes while it is being sent", todo[0]))
}

// read dumps the keys that are there.
func (m *migration) read(keys []string) (values []sending, err error) {
	r := slotmesh.Request{Keys: keys, ReadOnly: true, Anyway: true, Name: "migrate"}
	err = m.conn.session.Execute(m.conn.ctx, &r, func(tx *slotmesh.Tx) error {
		values = values[:0]
		m.conn.server.moving.unchanged(keys)
		for _, k := range keys {
			e, found, err := tx.Entry(k)
			if err != nil {
				return err
			}
			if !found {
				continue
			}
			v := sending{key: k}
			if e.ExpireAt != 0 {
				v.ttl = max(1, e.ExpireAt-tx.Now().UnixMilli())
			}
			if v.payload, err = dumpKey(tx, k); err != nil {
				return err
			}
			values = append(values, v)
		}
		return nil
	})
	return values, err
}

// settle deletes what the target has, and returns the keys that have changed
// since they were read.
func (m *migration) settle(values []sending) (changed []string, err error) {
	var there []string
	for _, v := range values {
		if v.state == stored {
			there = append(there, v.key)
		}
	}
	if m.copy || len(there) == 0 {
		return nil, nil
	}
	var gone []string // deleted here meanwhile: the target must not bring them back
	r := slotmesh.Request{Keys: there, Anyway: true, Name: "migrate"}
	err = m.conn.session.Execute(m.conn.ctx, &r, func(tx *slotmesh.Tx) error {
		changed, gone = nil, nil
		for _, k := range there {
			_, found, err := tx.Entry(k)
			switch {
			case err != nil:
				return err
			case !found:
				gone = append(gone, k)
			case m.conn.server.moving.changed(k):
				changed = append(changed, k)
			default:
				if _, err := tx.Delete(k); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err == nil && len(gone) > 0 {
		err = m.withdraw(gone)
	}
	return changed, err
}

// doubt remembers values that the target has, and that are perhaps still here:
// the next MIGRATE of such a key must not be told that it is in its own way.
func (m *migration) doubt(values []sending) {
	for i := range values {
		if v := &values[i]; v.state == stored {
			m.conn.server.sockets.remember(m.addr, v.key, sha1.Sum(v.payload))
		}
	}
}

// ---- the wire

// targetError is what the target has refused.
func targetError(text string) error {
	return Error("ERR Target instance replied with error: " + strings.TrimPrefix(text, "-"))
}

// send sends values to the target, and notes what became of each.
func (m *migration) send(values []sending) error {
	t := m.conn.server.sockets.hold(m.addr)
	defer m.conn.server.sockets.release(t)
	err := m.exchange(t, values)
	if lost := new(ioError); errors.As(err, &lost) {
		if !m.resolve(t, values) {
			return m.tooLong(t, values, err)
		}
		return nil
	}
	// What an earlier attempt has left there is in the way, and ours.
	var again []sending
	var at []int
	for i := range values {
		if v := &values[i]; v.state == refused && v.busy && m.isOurs(t, v.key) {
			v.replace = true
			again, at = append(again, *v), append(at, i)
		}
	}
	if len(again) == 0 {
		return err
	}
	err = m.exchange(t, again)
	for i, v := range again {
		values[at[i]] = v
	}
	return err
}

// exchange sends values and reads what became of them. A connection that was
// kept and is found dead is replaced once, as in Redis.
func (m *migration) exchange(t *target, values []sending) error {
	kept := t.conn != nil
	err := m.exchangeOnce(t, values)
	var lost *ioError
	if !errors.As(err, &lost) {
		return err
	}
	t.hangUp()
	if !kept || lost.timeout {
		return err
	}
	// What may have arrived is known as ours, should it be in the way.
	for _, v := range values {
		if v.state == unknown {
			m.conn.server.sockets.remember(m.addr, v.key, sha1.Sum(v.payload))
		}
	}
	if err = m.exchangeOnce(t, values); errors.As(err, &lost) {
		t.hangUp()
	}
	return err
}

func (m *migration) exchangeOnce(t *target, values []sending) error {
	for i := range values {
		values[i].state, values[i].busy = notSent, false
	}
	if err := t.connect(m); err != nil {
		return err
	}
	if m.member {
		return m.commitValues(t, values)
	}
	return m.restoreValues(t, values)
}

// restoreValues restores each value at once, as every Redis can.
func (m *migration) restoreValues(t *target, values []sending) error {
	restore := "RESTORE-ASKING"
	if m.conn.server.cfg.Standalone {
		restore = "RESTORE"
	}
	for i := range values {
		values[i].state = unknown
		if err := t.write(m.timeout, values[i].args(restore)...); err != nil {
			return err
		}
	}
	if err := t.flush(m.timeout); err != nil {
		return err
	}
	var first error
	for i := range values {
		reply, err := t.line(m.timeout)
		if err != nil {
			return err
		}
		if err := m.answered(&values[i], reply); err != nil && first == nil {
			first = err
		}
	}
	return first
}

// commitValues hands over all values, and then lets the target show them.
func (m *migration) commitValues(t *target, values []sending) error {
	self := m.conn.server.node.ID().String()
	for i := range values {
		if err := t.write(m.timeout, values[i].args(prepareName, self)...); err != nil {
			return err
		}
	}
	if err := t.flush(m.timeout); err != nil {
		return err
	}
	var refusal error
	for range values {
		reply, err := t.line(m.timeout)
		if err != nil {
			return err
		}
		if strings.HasPrefix(reply, "-") && refusal == nil {
			refusal = targetError(reply)
		}
	}
	if refusal != nil {
		t.hangUp() // with what it has prepared
		return refusal
	}
	for i := range values {
		values[i].state = unknown
	}
	replies, err := t.commit(self, m.timeout)
	if err != nil {
		return err
	}
	if len(replies) != len(values) {
		t.hangUp()
		return targetError(strings.Join(replies, " "))
	}
	var first error
	for i, reply := range replies {
		if err := m.answered(&values[i], reply); err != nil && first == nil {
			first = err
		}
	}
	return first
}

// args are the arguments of the command that restores a value.
func (v *sending) args(name ...string) []string {
	args := append(name, v.key, strconv.FormatInt(v.ttl, 10), view(v.payload))
	if v.replace {
		args = append(args, "REPLACE")
	}
	return args
}

// answered notes the reply for a value.
func (m *migration) answered(v *sending, reply string) error {
	if !strings.HasPrefix(reply, "-") {
		v.state = stored
		m.conn.server.sockets.forget(m.addr, v.key)
		return nil
	}
	v.state, v.busy = refused, strings.HasPrefix(reply, "-BUSYKEY")
	return targetError(reply)
}

// resolve asks a target that has not answered what it has, over a connection of
// its own: what comes late over the old one is not taken any more. It reports
// whether every value is there. What stays unknown is remembered, for the next
// MIGRATE to find out.
func (m *migration) resolve(t *target, values []sending) bool {
	all := true
	reachable := true
	for i := range values {
		v := &values[i]
		if v.state != unknown {
			all = all && v.state == stored
			continue
		}
		m.conn.server.sockets.remember(m.addr, v.key, sha1.Sum(v.payload))
		if reachable {
			reachable = t.connect(m) == nil && (!m.member || t.takeOver(m))
		}
		if reachable && m.isOurs(t, v.key) {
			m.answered(v, "+OK")
			continue
		}
		all = false
	}
	return all
}

// tooLong finds out whether a target has ended the connection because a value is
// longer than what it takes: a Redis says so and hangs up, which is seen as a
// connection that was lost, err.
func (m *migration) tooLong(t *target, values []sending, err error) error {
	const leastLimit = 1 << 20 // that a Redis can be given
	var largest *sending
	for i := range values {
		if v := &values[i]; v.state != stored && (largest == nil || len(v.payload) > len(largest.payload)) {
			largest = v
		}
	}
	if largest == nil || len(largest.payload) <= leastLimit || t.connect(m) != nil {
		return err
	}
	limit, found, asked := t.bulkLimit(m.timeout)
	if asked != nil {
		t.hangUp()
		return err
	}
	if !found || int64(len(largest.payload)) <= limit {
		return err
	}
	return Error(fmt.Sprintf("ERR key '%.64s': its value has %d bytes as DUMP writes it, more than the %d (proto-max-bulk-len) that the target takes", largest.key, len(largest.payload), limit))
}

// isOurs reports whether the target has what this server has sent and never
// learned the outcome of.
func (m *migration) isOurs(t *target, key string) bool {
	sum, sent := m.conn.server.sockets.sum(m.addr, key)
	if !sent {
		return false
	}
	payload, found, err := t.dump(key, m.timeout)
	if err != nil {
		t.hangUp()
	}
	return err == nil && found && sha1.Sum(payload) == sum
}

// withdraw takes back what the target has been given, and has been deleted here
// meanwhile.
func (m *migration) withdraw(keys []string) error {
	t := m.conn.server.sockets.hold(m.addr)
	defer m.conn.server.sockets.release(t)
	if err := t.connect(m); err != nil {
		return err
	}
	for _, k := range keys {
		if err := t.delete(k, m.timeout); err != nil {
			t.hangUp()
			return err
		}
	}
	return nil
}

// ---- the target's side

const (
	prepareName = "slotmesh.prepare"
	commitName  = "slotmesh.commit"
)

// importers are the connections over which other members hand over values: one
// per member, the newest. What an older one still says is not taken: it was given
// up.
type importers struct {
	mu sync.Mutex
	by map[string]*importer // guarded by mu, by the id of the member
}

type importer struct {
	mu   sync.Mutex
	conn *Conn // guarded by mu
}

const importersMax = 4096 // members that there have been; more are refused

// importer is that of a member, by its id.
func (s *Server) importer(id string) (*importer, error) {
	l := &s.importers
	l.mu.Lock()
	defer l.mu.Unlock()
	if x := l.by[id]; x != nil {
		return x, nil
	}
	member := func(n slotmesh.NodeInfo) bool { return !n.Self && n.ID.String() == id }
	if !slices.ContainsFunc(s.node.Table().Nodes(), member) {
		return nil, Error(fmt.Sprintf("ERR %.40q is not the id of another member of this cluster", id))
	}
	if len(l.by) >= importersMax {
		return nil, Error("ERR too many members hand over values")
	}
	if l.by == nil {
		l.by = map[string]*importer{}
	}
	x := &importer{}
	l.by[id] = x
	return x, nil
}

// prepared are values that wait for COMMIT: the arguments of a RESTORE-ASKING each.
type prepared struct {
	values [][][]byte
	bytes  int // of all of them
}

// add keeps a value, where there is room.
func (p *prepared) add(args [][]byte, most int) error {
	size := queuedOverhead
	for _, a := range args {
		size += len(a)
	}
	if size > most-p.bytes {
		return Error(fmt.Sprintf("ERR key '%.64s': a value of %d bytes and the %d before it are more than the %d that wait for a commit", args[1], size, p.bytes, most))
	}
	args = cloneArgs(args)
	args[0] = []byte("restore-asking")
	p.values, p.bytes = append(p.values, args), p.bytes+size
	return nil
}

// prepare keeps a value until COMMIT. The connection that brings the first one
// takes the place of the one before.
func prepare(c *Conn, args [][]byte) error {
	x, err := c.server.importer(string(args[1]))
	if err != nil {
		return err
	}
	x.mu.Lock()
	x.conn = c
	x.mu.Unlock()
	if err := c.prepared.add(args[1:], c.server.cfg.Limits.Queue); err != nil {
		return err
	}
	c.reply.Simple("QUEUED")
	return nil
}

// commit shows what was prepared, unless another connection has taken over. It
// answers for each value as RESTORE does.
func commit(c *Conn, args [][]byte) error {
	x, err := c.server.importer(string(args[1]))
	if err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	values := c.prepared.values
	c.prepared = prepared{}
	if len(values) > 0 && x.conn != c {
		return Error("ERR another connection of this member has taken over")
	}
	x.conn = c
	restore := c.server.table.byName["restore-asking"]
	c.reply.Array(len(values))
	for _, v := range values {
		began := c.reply.size() - c.began
		if _, err := c.execute(restore, v, true); err != nil {
			c.reply.truncate(c.began + began)
			c.fail(err)
		}
	}
	return nil
}
