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
	script  *compiled
}

// Overhead of a queued command beside the bytes of its arguments.
const queuedOverhead = 64

// fail makes EXEC do nothing, if MULTI has been given.
func (t *transaction) fail() {
	if t.open {
		t.failed = true
	}
}

func (c *Command) controlsTransaction() bool {
	switch c.fullName() {
	case "exec", "discard", "multi", "watch", "quit", "reset":
		return true
	}
	return false
}

func transactionCommands() []Command {
	const flags = NoScript | Loading | Stale | Fast
	return []Command{
		{Name: "multi", Arity: 1, Flags: flags | AllowBusy, Conn: multi, Group: "transactions", Since: "1.2.0", Summary: "Mark the start of a transaction block", Complexity: "O(1)"},
		{Name: "exec", Arity: 1, Flags: NoScript | Loading | Stale | SkipSlowlog, Conn: exec, Group: "transactions", Since: "1.2.0", Summary: "Execute all commands issued after MULTI", Complexity: "Depends on commands in the transaction"},
		{Name: "discard", Arity: 1, Flags: flags | AllowBusy, Conn: discard, Group: "transactions", Since: "2.0.0", Summary: "Discard all commands issued after MULTI", Complexity: "O(N), when N is the number of queued commands"},
		{Name: "watch", Arity: -2, Flags: flags | AllowBusy, First: 1, Last: -1, Step: 1, Conn: watch, Group: "transactions", Since: "2.2.0", Summary: "Watch the given keys to determine execution of the MULTI/EXEC block", Complexity: "O(1) for every key."},
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
	r := slotmesh.Request{Name: "watch", ReadOnly: true, Asking: c.wasAsking, FromReplica: c.readOnly, Stale: c.server.settings.downReads.Load()}
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
	c.tx.queue = append(c.tx.queue, queued{command: command, args: cloneArgs(args), keyed: command.Run != nil && len(c.keyAt) > 0})
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
	if err := c.server.mayServe(&r); err != nil {
		return err
	}
	r.Stale = reads && c.server.settings.downReads.Load()
	r.ReadOnly = true // of the probe itself
	return c.session.Execute(c.ctx, &r, func(*slotmesh.Tx) error { return nil })
}

// exec runs what was queued: the commands with keys in one Tx of their slot, the
// others after it, in order. All replies come in the order of the commands. A
// command without keys that changes keys all the same (FLUSHALL) keeps its place:
// what comes after it runs after it, in a Tx of its own.
func exec(c *Conn, args [][]byte) error {
	if !c.tx.open {
		return Error("ERR EXEC without MULTI")
	}
	t := c.tx
	c.tx = transaction{watch: t.watch, dirty: t.dirty} // so that nothing of what runs is queued
	defer c.discard()
	switch {
	case !t.oneSlot():
		return errCrossSlot
	case t.failed:
		return errExecAbort
	case t.changed(time.Now()):
		c.reply.NullArray()
		return nil
	}
	end := partEnd(t.queue, 0)
	replies := make([][]byte, len(t.queue))
	switch err := c.execKeyed(&t, t.queue[:end], replies); {
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
			failed = c.execKeyed(&t, t.queue[i:end], replies[i:end])
		}
		if q.keyed && failed == nil {
			c.reply.raw(replies[i])
			continue
		}
		began, err := c.reply.size(), failed
		if !q.keyed {
			err = c.runKeyless(q)
		}
		if err != nil {
			c.reply.truncate(began)
			c.fail(err)
		}
	}
	return nil
}

// partEnd is where the part of a queue ends that runs in one Tx: behind the first
// command that changes keys without naming them.
func partEnd(queue []queued, from int) int {
	for i := from; i < len(queue); i++ {
		if !queue[i].keyed && queue[i].command.has(Write) {
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
		if err == nil && c.reply.size() == began && !q.command.mayBeSilent() && !c.reply.over() {
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

// execKeyed runs the commands with keys of a part of the queue, all or none.
func (c *Conn) execKeyed(t *transaction, part []queued, replies [][]byte) error {
	r := slotmesh.Request{Name: "exec", ReadOnly: true, Asking: t.asking, FromReplica: c.readOnly, Stale: c.server.settings.downReads.Load()}
	for i := range part {
		q := &part[i]
		if !q.keyed {
			continue
		}
		q.script = c.compile(q.command, q.args)
		at, err := q.command.keys(nil, q.args)
		if err != nil {
			return err
		}
		for _, i := range at {
			r.Keys = append(r.Keys, view(q.args[i]))
		}
		r.ReadOnly = r.ReadOnly && !q.command.mayWrite(q.script)
	}
	if len(r.Keys) == 0 {
		return nil
	}
	r.AckReplicas = c.server.ackReplicas(r.ReadOnly)
	if err := c.beforeSlot(&r); err != nil {
		return err
	}
	c.touched = c.touched[:0]
	err := c.session.Execute(c.ctx, &r, func(tx *slotmesh.Tx) error {
		if t.changed(tx.Now()) {
			return errDirty
		}
		left := c.server.cfg.Limits.Output
		for i, q := range part {
			if q.keyed {
				c.trackArgs(tx, q.command, q.args)
				reply, err := c.runIn(tx, &q, left)
				if err != nil {
					return err
				}
				replies[i] = reply
				left -= len(reply)
			}
		}
		if r.ReadOnly {
			return nil
		}
		return c.serveBlocked(tx, r.Keys)
	})
	c.serving.end(err)
	return err
}

// changed reports whether a watched key has changed, or gone by its time, be it
// of another slot.
func (t *transaction) changed(now time.Time) bool {
	if t.dirty == nil {
		return false
	}
	return t.dirty.Load() || t.expireAt != 0 && t.expireAt <= now.UnixMilli()
}

// runIn runs a command inside a Tx that others share, and returns its reply. Its
// error is a reply like any other: what ran before it stays. A script that is
// stopped is the end of them all, for none of it may have happened.
func (c *Conn) runIn(tx *slotmesh.Tx, q *queued, most int) ([]byte, error) {
	var reply Reply
	reply.bound(most)
	reply.setProto(c.reply.Proto())
	call := Call{Tx: tx, Args: q.args, Reply: &reply, command: q.command, conn: c, compiled: q.script}
	err := call.run()
	var stopped *stoppedScript
	switch {
	case errors.As(err, &stopped):
		return nil, err
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
