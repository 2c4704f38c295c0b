package resp

import (
	"fmt"
	"maps"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/slotmesh/slotmesh"
)

// tracking is what a client caches, as far as the server knows: it is told once
// when one of the keys that it has read changes.
//
// The key is noted under the lock of its slot, together with the read, and what
// is pushed comes after the reply: so no change between the two is missed.
type tracking struct {
	conn     *Conn
	watch    *slotmesh.Watch
	redirect int64 // client that is told; 0: this one
	bcast    bool
	prefixes []string
	optIn    bool
	optOut   bool
	noLoop   bool
	caching  cachingMode

	mu     sync.Mutex
	noted  map[string]struct{} // guarded by mu: read and not changed since; nil: tracking has ended
	told   []string            // guarded by mu: changed since, and still watched
	own    map[string]struct{} // guarded by mu: keys that this connection is writing
	broken bool                // guarded by mu: the client that is told has gone
}

// cachingMode is what CLIENT CACHING has said of the next command.
type cachingMode uint8

const (
	cachingDefault cachingMode = iota
	cachingYes
	cachingNo
)

// track notes what a command reads. It is called in its Tx.
func (c *Conn) track(tx *slotmesh.Tx, command *Command, keys []string) {
	t := c.tracking
	if t == nil {
		return
	}
	if command.has(Write) {
		t.writes(tx, keys)
		return
	}
	if t.bcast || !t.wants() {
		return
	}
	t.note(keys)
}

// trackArgs is track for a command inside of another.
func (c *Conn) trackArgs(tx *slotmesh.Tx, command *Command, args [][]byte) {
	if c.tracking == nil {
		return
	}
	at, err := command.keys(nil, args)
	if err != nil {
		return
	}
	keys := make([]string, len(at))
	for i, a := range at {
		keys[i] = view(args[a])
	}
	c.track(tx, command, keys)
}

// wants reports whether what is read now is to be noted.
func (t *tracking) wants() bool {
	switch {
	case t.optIn:
		return t.caching == cachingYes
	case t.optOut:
		return t.caching != cachingNo
	}
	return true
}

func (t *tracking) note(keys []string) {
	l := &t.conn.server.trackers
	t.mu.Lock()
	t.forgetTold()
	for _, k := range keys {
		if _, there := t.noted[k]; !there {
			k = strings.Clone(k)
			t.noted[k] = struct{}{}
			t.watch.Add(k)
			l.items.Add(1)
		}
	}
	t.mu.Unlock()
	l.bound(t.conn.server.settings.trackMax.Load())
}

// forgetTold ends the watch of keys that have changed and have not been read
// again, under mu.
func (t *tracking) forgetTold() {
	for _, k := range t.told {
		if _, again := t.noted[k]; !again {
			t.watch.Remove(k)
		}
	}
	t.conn.server.trackers.items.Add(-int64(len(t.told)))
	t.told = nil
}

// writes notes the keys of a write of this connection, of which NOLOOP wants to
// hear nothing. They are its own until the Tx has ended, under the lock of the
// slot: what others change before and after is told of.
func (t *tracking) writes(tx *slotmesh.Tx, keys []string) {
	if !t.noLoop {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.own == nil {
		t.own = map[string]struct{}{}
		tx.After(func() {
			t.mu.Lock()
			defer t.mu.Unlock()
			t.own = nil
		})
	}
	for _, k := range keys {
		t.own[strings.Clone(k)] = struct{}{}
	}
}

// othersToo notes that somebody else has changed a key in the same Tx.
func (t *tracking) othersToo(key string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.own, key)
}

// ranTracked ends what CACHING has said: it lasts for one command.
func (c *Conn) ranTracked(command *Command) {
	if t := c.tracking; t != nil && !command.isCaching() && !c.tx.open {
		t.caching = cachingDefault
	}
}

func (c *Command) isCaching() bool { return c.parent != nil && c.Name == "caching" }

// changed is told of a key under the lock of its slot. A slot that has gone
// takes its keys along: what is cached of them will not be told of here.
func (t *tracking) changed(key string, gone bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !gone && t.conn.server.trackers.flushing.Load() > 0 {
		if _, noted := t.noted[key]; noted {
			delete(t.noted, key)
			t.told = append(t.told, key)
		}
		return // it is told of all keys, once they are gone
	}
	if _, own := t.own[key]; own {
		if _, noted := t.noted[key]; noted {
			delete(t.noted, key)
			t.told = append(t.told, key)
		}
		return
	}
	if t.bcast {
		if t.matches(key) {
			t.invalidate(key)
		}
		return
	}
	if _, noted := t.noted[key]; !noted {
		return
	}
	delete(t.noted, key)
	t.told = append(t.told, key)
	t.invalidate(key)
}

func (t *tracking) matches(key string) bool {
	for _, p := range t.prefixes {
		if strings.HasPrefix(key, p) {
			return true
		}
	}
	return len(t.prefixes) == 0
}

// trackers are who tracks keys, to be told when all are removed.
type trackers struct {
	flushing atomic.Int32 // removals of all keys that are under way
	items    atomic.Int64 // keys that clients cache: one that two cache counts twice

	mu  sync.Mutex
	all map[*tracking]struct{} // guarded by mu
}

func (l *trackers) add(t *tracking) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.all == nil {
		l.all = map[*tracking]struct{}{}
	}
	l.all[t] = struct{}{}
}

func (l *trackers) remove(t *tracking) {
	l.mu.Lock()
	delete(l.all, t)
	l.mu.Unlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	l.items.Add(-int64(len(t.noted) + len(t.told)))
	t.noted, t.told = nil, nil
}

// bound has clients forget keys while they cache more than most, Redis's
// tracking-table-max-keys; 0: as many as they like. Each is told that such a key
// has changed.
func (l *trackers) bound(most int64) {
	for most > 0 && l.items.Load() > most {
		if !l.evict() {
			return
		}
	}
}

const evictLooks = 8 // clients of which the one that caches most forgets a key

// evict has one client forget a key, or what it has been told of already, and
// reports whether there was something.
func (l *trackers) evict() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	var most *tracking
	size, looks := 0, 0
	for t := range l.all { // in an order by chance
		t.mu.Lock()
		told := len(t.told)
		t.forgetTold()
		n := len(t.noted)
		t.mu.Unlock()
		if told > 0 {
			return true
		}
		if n > size {
			most, size = t, n
		}
		if looks++; looks >= evictLooks && most != nil {
			break
		}
	}
	if most == nil {
		return false
	}
	most.forgetOne()
	return true
}

// forgetOne tells of a key as if it had changed.
func (t *tracking) forgetOne() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for k := range t.noted {
		delete(t.noted, k)
		t.watch.Remove(k)
		t.conn.server.trackers.items.Add(-1)
		t.invalidate(k)
		return
	}
}

// flush runs f, which removes all keys, and tells every client that tracks some,
// once. Who reads a key while f runs is told more than it needs.
func (l *trackers) flush(f func() error) error {
	l.flushing.Add(1)
	err := f()
	l.flushing.Add(-1) // before they are told: what it has kept back is told of, too
	l.mu.Lock()
	defer l.mu.Unlock()
	for t := range l.all {
		t.mu.Lock()
		t.tell(func(r *Reply) { r.Null() })
		t.mu.Unlock()
	}
	return err
}

// invalidate tells of a key.
func (t *tracking) invalidate(key string) {
	t.tell(func(r *Reply) {
		r.Array(1)
		r.BulkString(key)
	})
}

// tell tells the client, or the one that it has named, what it must forget.
func (t *tracking) tell(what func(*Reply)) {
	to := t.conn
	if t.redirect != 0 {
		if to = t.conn.server.client(t.redirect); to == nil {
			t.breakRedirect()
			return
		}
	}
	var r Reply
	switch proto := int(to.proto.Load()); {
	case proto == 3:
		r.setProto(3)
		r.Push(2)
		r.BulkString("invalidate")
	case t.redirect != 0 && to.inPubSub():
		r.setProto(2)
		r.Array(3)
		r.BulkString("message")
		r.BulkString("__redis__:invalidate")
	default:
		return // RESP2 has no way to tell who does not listen
	}
	what(&r)
	to.push(r.bytes())
}

// breakRedirect tells the client that nobody hears its invalidations any more.
func (t *tracking) breakRedirect() {
	if t.broken || t.conn.proto.Load() != 3 {
		return
	}
	t.broken = true
	var r Reply
	r.setProto(3)
	r.Push(2)
	r.BulkString("tracking-redir-broken")
	r.Int(t.redirect)
	t.conn.push(r.bytes())
}

// leaveTracking ends tracking.
func (c *Conn) leaveTracking() {
	if c.tracking != nil {
		c.tracking.watch.Close()
		c.server.trackers.remove(c.tracking)
		c.tracking = nil
		c.tracks.Store(false)
	}
}

// client is a connection by its id, or nil.
func (s *Server) client(id int64) *Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conns[id]
}

// trackingOptions are what CLIENT TRACKING ON was given.
func trackingOptions(c *Conn, args [][]byte) (*tracking, error) {
	t := &tracking{conn: c, noted: map[string]struct{}{}}
	for i := 0; i < len(args); i++ {
		more := i+1 < len(args)
		switch {
		case equalFold(args[i], "redirect") && more:
			i++
			if t.redirect != 0 {
				return nil, Error("ERR A client can only redirect to a single other client")
			}
			id, ok := parseInt(args[i])
			if !ok {
				return nil, errNotInteger
			}
			if c.server.client(id) == nil {
				return nil, Error("ERR The client ID you want redirect to does not exist")
			}
			t.redirect = id
		case equalFold(args[i], "bcast"):
			t.bcast = true
		case equalFold(args[i], "optin"):
			t.optIn = true
		case equalFold(args[i], "optout"):
			t.optOut = true
		case equalFold(args[i], "noloop"):
			t.noLoop = true
		case equalFold(args[i], "prefix") && more:
			i++
			t.prefixes = append(t.prefixes, string(args[i]))
		default:
			return nil, errSyntax
		}
	}
	return t, nil
}

func (t *tracking) validate() error {
	was := t.conn.tracking
	switch {
	case len(t.prefixes) > 0 && !t.bcast:
		return Error("ERR PREFIX option requires BCAST mode to be enabled")
	case was != nil && was.bcast != t.bcast:
		return Error("ERR You can't switch BCAST mode on/off before disabling tracking for this client, and then re-enabling it with a different mode.")
	case t.bcast && (t.optIn || t.optOut):
		return Error("ERR OPTIN and OPTOUT are not compatible with BCAST")
	case t.optIn && t.optOut:
		return Error("ERR You can't use both OPTIN and OPTOUT")
	case was != nil && (was.optIn && t.optOut || was.optOut && t.optIn):
		return Error("ERR You can't switch OPTIN/OPTOUT mode before disabling tracking for this client, and then re-enabling it with a different mode.")
	}
	for i, p := range t.prefixes {
		for _, q := range t.prefixes[:i] {
			if strings.HasPrefix(p, q) || strings.HasPrefix(q, p) {
				return Error(fmt.Sprintf("ERR Prefix '%s' overlaps with an existing prefix '%s'. Prefixes for a single client must not overlap.", p, q))
			}
		}
	}
	return nil
}

// clientTracking is CLIENT TRACKING ON|OFF.
func clientTracking(c *Conn, args [][]byte) error {
	t, err := trackingOptions(c, args[3:])
	switch {
	case err != nil:
		return err
	case equalFold(args[2], "on"):
		if err := t.validate(); err != nil {
			return err
		}
		c.startTracking(t)
	case equalFold(args[2], "off"):
		c.leaveTracking()
	default:
		return errSyntax
	}
	c.reply.Simple("OK")
	return nil
}

// startTracking begins to track, or goes on with other options.
func (c *Conn) startTracking(t *tracking) {
	if was := c.tracking; was != nil {
		if t.bcast {
			t.prefixes = append(t.prefixes, was.prefixes...)
		}
		was.mu.Lock()
		t.noted = maps.Clone(was.noted)
		was.mu.Unlock()
		c.server.trackers.items.Add(int64(len(t.noted)))
	}
	c.startPushing()
	if to := c.server.client(t.redirect); to != nil {
		to.startPushing()
	}
	t.watch = c.server.node.Watch(t.changed)
	if t.bcast {
		t.watch.All()
	}
	for k := range t.noted {
		t.watch.Add(k)
	}
	c.leaveTracking()
	c.server.trackers.add(t)
	c.tracking = t
	c.tracks.Store(true)
}

// clientCaching is CLIENT CACHING YES|NO.
func clientCaching(c *Conn, args [][]byte) error {
	t := c.tracking
	if t == nil {
		return Error("ERR CLIENT CACHING can be called only when the client is in tracking mode with OPTIN or OPTOUT mode enabled")
	}
	switch {
	case equalFold(args[2], "yes"):
		if !t.optIn {
			return Error("ERR CLIENT CACHING YES is only valid when tracking is enabled in OPTIN mode.")
		}
		t.caching = cachingYes
	case equalFold(args[2], "no"):
		if !t.optOut {
			return Error("ERR CLIENT CACHING NO is only valid when tracking is enabled in OPTOUT mode.")
		}
		t.caching = cachingNo
	default:
		return errSyntax
	}
	c.reply.Simple("OK")
	return nil
}

// clientGetRedir is CLIENT GETREDIR.
func clientGetRedir(c *Conn, args [][]byte) error {
	switch t := c.tracking; {
	case t == nil:
		c.reply.Int(-1)
	default:
		c.reply.Int(t.redirect)
	}
	return nil
}

// clientTrackingInfo is CLIENT TRACKINGINFO.
func clientTrackingInfo(c *Conn, args [][]byte) error {
	t := c.tracking
	var flags, prefixes []string
	redirect := int64(-1)
	if t == nil {
		flags = append(flags, "off")
	} else {
		flags, prefixes, redirect = t.flags(), t.prefixes, t.redirect
	}
	c.reply.Map(3)
	c.reply.BulkString("flags")
	c.reply.Set(len(flags))
	for _, f := range flags {
		c.reply.BulkString(f)
	}
	c.reply.BulkString("redirect")
	c.reply.Int(redirect)
	c.reply.BulkString("prefixes")
	c.reply.Array(len(prefixes))
	for _, p := range prefixes {
		c.reply.BulkString(p)
	}
	return nil
}

func (t *tracking) flags() []string {
	flags := []string{"on"}
	add := func(yes bool, name string) {
		if yes {
			flags = append(flags, name)
		}
	}
	add(t.bcast, "bcast")
	add(t.optIn, "optin")
	add(t.optIn && t.caching == cachingYes, "caching-yes")
	add(t.optOut, "optout")
	add(t.optOut && t.caching == cachingNo, "caching-no")
	add(t.noLoop, "noloop")
	t.mu.Lock()
	broken := t.broken || t.redirect != 0 && t.conn.server.client(t.redirect) == nil
	t.mu.Unlock()
	add(broken, "broken_redirect")
	return flags
}
