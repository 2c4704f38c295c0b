package resp

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/slotmesh/slotmesh"
)

// transaction is what MULTI and WATCH have begun on a connection.
type transaction struct {
	open   bool
	failed bool // a command was refused: EXEC does nothing
	asking bool // MULTI came after ASKING, which holds until EXEC
	queue  []queued
	bytes  int // of the queued arguments

	watch    *slotmesh.Watch
	dirty    *atomic.Bool // a watched key has changed
	expireAt int64        // Unix milliseconds: the first of the watched keys that were there is gone; 0: never
}

type queued struct {
	command *Command
	args    [][]byte
	keyed   bool // runs in the Tx of its keys
	placed  bool // names no key, and keeps its place among those that do: a script, and SCRIPT LOAD
	script  *compiled
}

// ordered reports whether a command runs in its place.
func (q *queued) ordered() bool { return q.keyed || q.placed }

// Overhead of a queued command beside the bytes of its arguments.
const queuedOverhead = 64

// fail makes EXEC do nothing, if MULTI has been given.
func (t *transaction) fail() {
	if t.open {
		t.failed = true
	}
}

func transactionCommands() []Command {
	const flags = NoScript | Loading | Stale | Fast
	return []Command{
		{Name: "multi", Arity: 1, Flags: flags | AllowBusy | AtOnce, Conn: multi, Group: "transactions", Since: "1.2.0", Summary: "Mark the start of a transaction block", Complexity: "O(1)"},
		{Name: "exec", Arity: 1, Flags: NoScript | Loading | Stale | SkipSlowlog | AtOnce, Conn: exec, Group: "transactions", Since: "1.2.0", Summary: "Execute all commands issued after MULTI", Complexity: "Depends on commands in the transaction"},
		{Name: "discard", Arity: 1, Flags: flags | AllowBusy | AtOnce, Conn: discard, Group: "transactions", Since: "2.0.0", Summary: "Discard all commands issued after MULTI", Complexity: "O(N), when N is the number of queued commands"},
		{Name: "watch", Arity: -2, Flags: flags | AllowBusy | AtOnce, First: 1, Last: -1, Step: 1, Conn: watch, Group: "transactions", Since: "2.2.0", Summary: "Watch the given keys to determine execution of the MULTI/EXEC block", Complexity: "O(1) for every key."},
		{Name: "unwatch", Arity: 1, Flags: flags | AllowBusy, Conn: unwatch, Group: "transactions", Since: "2.2.0", Summary: "Forget about all watched keys", Complexity: "O(1)"},
	}
}

func multi(c *Conn, args [][]byte) error {
	if c.tx.open {
		return Error("ERR MULTI calls can not be nested")
	}
	c.tx.open, c.tx.failed, c.tx.asking = true, false, c.wasAsking
	c.inMulti.Store(1)
	c.reply.Simple("OK")
	return nil
}

func discard(c *Conn, args [][]byte) error {
	if !c.tx.open {
		return Error("ERR DISCARD without MULTI")
	}
	c.discard()
	c.reply.Simple("OK")
	return nil
}

// discard ends MULTI and WATCH.
func (c *Conn) discard() {
	c.unwatch()
	c.tx = transaction{}
	c.inMulti.Store(0)
}

func unwatch(c *Conn, args [][]byte) error {
	c.unwatch()
	c.reply.Simple("OK")
	return nil
}

func (c *Conn) unwatch() {
	if c.tx.watch != nil {
		c.tx.watch.Close()
	}
	c.tx.watch, c.tx.dirty, c.tx.expireAt = nil, nil, 0
}

// watch notes the keys, and the earliest time at which one that is there now will
// be gone: a key whose time comes changes without a write.
func watch(c *Conn, args [][]byte) error {
	if c.tx.open {
		return Error("ERR WATCH inside MULTI is not allowed")
	}
	r := slotmesh.Request{Name: "watch", ReadOnly: true, Asking: c.wasAsking, FromReplica: c.readOnly}
	c.server.limits(&r)
	for _, a := range args[1:] {
		r.Keys = append(r.Keys, string(a))
	}
	expireAt := c.tx.expireAt
	if c.tx.watch == nil {
		dirty := &atomic.Bool{}
		c.tx.dirty = dirty
		c.tx.watch = c.server.node.Watch(func(string, bool) { dirty.Store(true) })
	}
	err := c.session.Execute(c.ctx, &r, func(tx *slotmesh.Tx) error {
		c.tx.watch.Add(r.Keys...)
		for _, k := range r.Keys {
			e, _, err := tx.Entry(k)
			if err != nil {
				return err
			}
			if e.ExpireAt != 0 && (expireAt == 0 || e.ExpireAt < expireAt) {
				expireAt = e.ExpireAt
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	c.tx.expireAt = expireAt
	c.reply.Simple("OK")
	return nil
}

// enqueue keeps a command for EXEC. Where its keys would be refused here now,
// the client hears so at once. A call whose keys cannot be found (their number is
// none) has none as yet: EXEC says what is wrong with it, as in Redis.
func (c *Conn) enqueue(command *Command, args [][]byte) (err error) {
	defer func() {
		if err != nil {
			c.tx.fail()
		}
	}()
	if c.keyAt, err = command.keys(c.keyAt[:0], args); err != nil {
		c.keyAt = c.keyAt[:0]
	}
	placed := command.placed || command.scripted && err == nil && len(c.keyAt) == 0
	if len(c.keyAt) > 0 {
		if err := c.probe(command, args); err != nil {
			return err
		}
	}
	if c.tx.failed || c.tx.dirty != nil && c.tx.dirty.Load() {
		c.reply.Simple("QUEUED") // EXEC will do nothing: it need not be kept
		return nil
	}
	size := queuedOverhead
	for _, a := range args {
		size += len(a) + queuedOverhead/2
	}
	if c.tx.bytes+size > c.server.cfg.Limits.Queue {
		return Error("ERR too many or too large commands in a transaction")
	}
	c.tx.bytes += size
	c.tx.queue = append(c.tx.queue, queued{command: command, args: cloneArgs(args), keyed: command.Run != nil && len(c.keyAt) > 0, placed: placed})
	c.inMulti.Add(1)
	c.reply.Simple("QUEUED")
	return nil
}

// probe asks whether the keys of a command are served here.
func (c *Conn) probe(command *Command, args [][]byte) error {
	reads := !command.mayWrite(c.glimpse(command, args))
	r := slotmesh.Request{Name: command.Name, ReadOnly: reads, Asking: c.tx.asking || command.has(Asking), FromReplica: c.readOnly && reads}
	for _, i := range c.keyAt {
		r.Keys = append(r.Keys, string(args[i]))
	}
	if len(r.Keys) == 0 {
		return nil
	}
	c.server.limits(&r)
	return c.session.Execute(c.ctx, &r, func(*slotmesh.Tx) error { return nil })
}

// exec runs what was queued: the commands with keys, and the scripts, in one Tx of
// their slot, the others after it, in order. All replies come in the order of the
// commands. A command without keys that changes keys of all slots (FLUSHALL) keeps
// its place too: what comes after it runs after it, in a Tx of its own.
func exec(c *Conn, args [][]byte) error {
	if !c.tx.open {
		return Error("ERR EXEC without MULTI")
	}
	t := c.tx
	c.tx = transaction{watch: t.watch, dirty: t.dirty} // so that nothing of what runs is queued
	defer c.discard()
	switch {
	case !t.oneSlot():
		return c.server.crossSlot()
	case t.failed:
		return errExecAbort
	case t.changed(time.Now()):
		c.reply.NullArray()
		return nil
	}
	end := partEnd(t.queue, 0)
	replies := make([][]byte, len(t.queue))
	switch err := c.execPart(&t, t.queue[:end], replies); {
	case errors.Is(err, errDirty):
		c.reply.NullArray()
		return nil
	case err != nil:
		return err
	}
	t.dirty = nil // the first part has changed what was watched
	c.inExec = true
	defer func() { c.inExec, c.asking = false, false }() // an ASKING in there is over with EXEC
	c.reply.Array(len(t.queue))
	var failed error // what kept the running part from running
	for i, q := range t.queue {
		if i == end {
			end = partEnd(t.queue, i)
			failed = c.execPart(&t, t.queue[i:end], replies[i:end])
		}
		if q.ordered() && failed == nil {
			c.reply.raw(replies[i])
			continue
		}
		began, err := c.reply.size()-c.began, failed
		if !q.ordered() {
			err = c.runKeyless(q)
		}
		if err != nil {
			c.reply.truncate(c.began + began)
			c.fail(err)
		}
	}
	return nil
}

// partEnd is where the part of a queue ends that runs in one Tx: behind the first
// command that changes keys of all slots.
func partEnd(queue []queued, from int) int {
	for i := from; i < len(queue); i++ {
		if !queue[i].ordered() && queue[i].command.has(Write) {
			return i + 1
		}
	}
	return len(queue)
}

// oneSlot reports whether all queued keys are of one slot. It is asked before
// anything else, as in Redis.
func (t *transaction) oneSlot() bool {
	slot, some := slotmesh.Slot(0), false
	for _, q := range t.queue {
		at, _ := q.command.keys(nil, q.args) // those of what runs elsewhere too: SPUBLISH
		for _, i := range at {
			s := slotmesh.KeySlotBytes(q.args[i])
			if some && s != slot {
				return false
			}
			slot, some = s, true
		}
	}
	return true
}

// runKeyless runs a queued command that names no keys.
func (c *Conn) runKeyless(q queued) error {
	if q.command.Conn != nil {
		began := c.reply.size()
		err := c.runConn(q.command, q.args)
		if err == nil && c.reply.size() == began && !q.command.has(Silent) && !c.reply.over() {
			err = noReply(q.command)
		}
		return err
	}
	if _, err := q.command.keys(nil, q.args); err != nil {
		return err
	}
	return errNoKeys
}

const errDirty Error = "ERR a watched key has changed"

// execPart runs what keeps its place in a part of the queue, all or none. Where no
// command names a key, scripts run without a slot until one touches a key: what is
// left runs in the Tx of that key. So far nothing has changed any.
func (c *Conn) execPart(t *transaction, part []queued, replies [][]byte) error {
	r, err := c.partRequest(t, part)
	if err != nil {
		return err
	}
	if len(r.Keys) > 0 {
		_, err := c.execAt(t, &r, part, replies)
		return err
	}
	from := 0
	for range scriptRestarts {
		var need *needSlot
		if from, err = c.runInPlace(nil, part, replies, from); !errors.As(err, &need) {
			return err
		}
		r.Keys = []string{need.key}
		var ran bool
		ran, err = c.execAt(t, &r, part[from:], replies[from:])
		if ran || !part[from].script.begun.refuse(need.key, err) {
			return err
		}
	}
	return err
}

// partRequest is what a part asks for: its keys, and whether it only reads. It finds
// the scripts of the part.
func (c *Conn) partRequest(t *transaction, part []queued) (slotmesh.Request, error) {
	r := slotmesh.Request{Name: "exec", ReadOnly: true, Asking: t.asking, FromReplica: c.readOnly}
	view := scriptView{all: &c.server.scripts, loaded: map[string]*script{}}
	for i := range part {
		q := &part[i]
		if !q.ordered() {
			continue
		}
		c.foresee(&view, q)
		if q.command.Run == nil {
			continue // SCRIPT LOAD and the like
		}
		at, err := q.command.keys(nil, q.args)
		if err != nil {
			return r, err
		}
		for _, i := range at {
			r.Keys = append(r.Keys, string(q.args[i]))
		}
		r.ReadOnly = r.ReadOnly && !q.command.mayWrite(q.script)
	}
	r.AckReplicas = c.server.ackReplicas(r.ReadOnly)
	return r, nil
}

// scriptView is which scripts there will be at a place of a queue: none has run, and
// nothing of what they load is kept yet.
type scriptView struct {
	all     *scripts
	flushed bool
	loaded  map[string]*script
}

func (v *scriptView) find(sha string) *script {
	if s := v.loaded[sha]; s != nil || v.flushed {
		return s
	}
	return v.all.find(sha)
}

func (v *scriptView) compile(text []byte) (*script, error) {
	sha := shaOf(text)
	s := v.find(sha)
	if s == nil {
		var err error
		if s, err = compileScript(sha, string(text)); err != nil {
			return nil, err
		}
	}
	v.loaded[sha] = s
	return s, nil
}

// foresee finds the script of a queued command: to compile one may take long, which
// is not to be done under the lock of a slot.
func (c *Conn) foresee(view *scriptView, q *queued) {
	switch q.script = c.compileFrom(view, q.command, q.args); q.command.fullName() {
	case "script|load":
		q.script = &compiled{}
		q.script.script, q.script.err = view.compile(q.args[2])
	case "script|flush":
		if checkFlush(q.args) == nil {
			view.flushed, view.loaded = true, map[string]*script{}
		}
	}
}

// execAt runs what keeps its place in one Tx, and reports whether it came to that.
func (c *Conn) execAt(t *transaction, r *slotmesh.Request, part []queued, replies [][]byte) (ran bool, err error) {
	if err := c.beforeSlot(r); err != nil {
		return false, err
	}
	c.touched = c.touched[:0]
	err = c.runLater(r, func(tx *slotmesh.Tx) error {
		ran = true
		if t.changed(tx.Now()) {
			return errDirty
		}
		if _, err := c.runInPlace(tx, part, replies, 0); err != nil || r.ReadOnly {
			return err
		}
		return c.serveBlocked(tx, r.Keys)
	})
	return ran, err
}

// runInPlace runs what keeps its place from a place on, in a Tx or without, and
// returns where it ended.
func (c *Conn) runInPlace(tx *slotmesh.Tx, part []queued, replies [][]byte, from int) (int, error) {
	left := c.server.cfg.Limits.Output
	for i := range part {
		q := &part[i]
		if i >= from && q.ordered() {
			reply, err := c.runIn(tx, q, left)
			if err != nil {
				return i, err
			}
			replies[i] = reply
		}
		left -= len(replies[i])
	}
	return len(part), nil
}

// changed reports whether a watched key has changed, or gone by its time, be it
// of another slot.
func (t *transaction) changed(now time.Time) bool {
	if t.dirty == nil {
		return false
	}
	return t.dirty.Load() || t.expireAt != 0 && t.expireAt <= now.UnixMilli()
}

// runIn runs a command inside a Tx that others share, or a script without one as
// long as it touches no key, and returns its reply. Its error is a reply like any
// other: what ran before it stays. A script that is stopped is the end of them all,
// for none of it may have happened; so is a command that fails half way.
func (c *Conn) runIn(tx *slotmesh.Tx, q *queued, most int) ([]byte, error) {
	var reply Reply
	reply.bound(most)
	reply.setProto(c.reply.Proto())
	call := Call{Tx: tx, Args: q.args, Reply: &reply, command: q.command, conn: c, compiled: q.script}
	err := c.runQueued(tx, q, &call)
	var stopped *stoppedScript
	var need *needSlot
	var half *halfDone
	switch {
	case errors.As(err, &stopped), errors.As(err, &need):
		return nil, err
	case errors.As(err, &half):
		return nil, Error(c.server.errorText(err) + "; nothing of the transaction has happened")
	case err != nil:
		reply.clear()
		text := c.server.errorText(err)
		c.server.stats.errors.Add(1)
		reply.Error(text)
	case call.wait != nil:
		call.wait.refuse(&reply) // nobody waits in a transaction
	}
	if reply.over() {
		c.reply.giveUp()
	}
	return reply.bytes(), nil
}

// runQueued runs a command in its place.
func (c *Conn) runQueued(tx *slotmesh.Tx, q *queued, call *Call) error {
	loads := q.command.Run == nil && q.script != nil // SCRIPT LOAD, whose text has been compiled
	switch {
	case loads && q.script.err != nil:
		return q.script.err
	case loads:
		c.server.scripts.keep(q.script.script)
		call.Reply.BulkString(q.script.script.sha)
		return nil
	case q.command.Run == nil:
		return c.apart(call.Reply, func() error { return c.runConn(q.command, q.args) })
	case tx != nil:
		c.trackArgs(tx, q.command, q.args)
		return call.run()
	}
	if err := c.mayRunHere(q.command, q.script); err != nil {
		return err
	}
	r, err := c.newRun(q.command, q.args, q.script)
	if err != nil {
		return err
	}
	q.script.begun = r
	return r.in(nil, call.Reply)
}

// apart has what f answers go to a reply of its own.
func (c *Conn) apart(reply *Reply, f func() error) error {
	outer := c.reply
	c.reply = *reply
	defer func() { *reply, c.reply = c.reply, outer }()
	return f()
}
