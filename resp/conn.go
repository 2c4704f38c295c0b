package resp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	runtimedebug "runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/slotmesh/slotmesh"
)

// Conn is a client's connection. One goroutine reads its commands, runs them and
// writes the replies, as many as there are before it writes to the network. What
// comes unasked (messages, invalidations) is queued by others, and written by a
// second goroutine, which only connections that want such things have.
type Conn struct {
	server  *Server
	id      int64
	net     net.Conn
	socket  *socket
	reader  *reader
	reply   Reply
	session *slotmesh.Session
	ctx     context.Context
	cancel  context.CancelFunc
	born    time.Time
	idle    idle

	// The goroutine's alone.
	authed    bool
	asking    bool // the next command comes after ASKING
	wasAsking bool // this command does
	readOnly  bool // READONLY was given
	noKeys    bool // REPLCONF rdb-filter-only wants none of the keys
	quit      bool // ends once the replies are written
	tx        transaction
	call      Call
	request   slotmesh.Request
	keyAt     []int
	run       func(*slotmesh.Tx) error // runs call; made once
	runErr    error
	owed      []owedReply // of finished commands, in order
	unsettled error       // why the running command may not be answered as it says
	noReply   replyMode
	began     int  // where in reply the running command's begins
	inExec    bool // a command of EXEC runs: it does not wait
	prepared  prepared
	now       time.Time // when the last command ended, or the batch began
	started   time.Time // when the running command began, or went on after a wait
	tally     tally
	tracking  *tracking // nil: CLIENT TRACKING is off
	serving   serving   // who is served by what this command changes
	touched   []string  // keys that scripts of this command have changed

	// What CLIENT LIST shows, read by others.
	name    atomic.Pointer[string]
	lib     atomic.Pointer[[2]string] // name and version of the client's library
	last    atomic.Pointer[Command]
	lastAt  atomic.Int64 // Unix milliseconds of the last command
	proto   atomic.Int32
	blocked atomic.Pointer[waiter] // what it waits for; nil: it does not
	inMulti atomic.Int32           // commands between MULTI and EXEC, and 1; 0: no MULTI
	tracks  atomic.Bool            // CLIENT TRACKING is on

	// writeMu is held by the goroutine from the first command of a batch until the
	// replies are written: what comes unasked comes between batches, and never
	// overtakes the reply that it is about.
	writeMu sync.Mutex
	writing bool // the goroutine's alone: it holds writeMu
	pushes  pushQueue
	subs    subscriptions
}

// owedReply is where in reply a command's is that may leave only once the session has
// settled what it ran.
type owedReply struct{ from, to, owed int } // owed: how many requests the session owed with this one

// owedMost is how many requests may wait for their replies to leave, whatever more has
// come.
const owedMost = 4096

// replyMode is what CLIENT REPLY has chosen.
type replyMode uint8

const (
	replyOn replyMode = iota
	replyOff
	replySkipNext
	replySkip
)

const flushAt = 64 << 10 // bytes of replies that are written at once, though more commands have come

func newConn(s *Server, nc net.Conn, id int64) *Conn {
	c := &Conn{server: s, id: id, net: nc, born: time.Now(), authed: *s.settings.password.Load() == ""}
	c.ctx, c.cancel = context.WithCancel(s.ctx)
	c.socket = &socket{conn: nc, count: &s.stats.netIn}
	c.reader = newReader(c.socket, s.cfg.Limits, c.authed)
	c.session = s.node.Session()
	c.session.OnWait(c.answerBeforeWait)
	c.setProto(2)
	c.reply.bound(s.cfg.Limits.Output)
	c.serving.list, c.serving.own = &s.blocked, c
	c.run = func(tx *slotmesh.Tx) error {
		c.call.Tx = tx
		c.track(tx, c.call.command, c.request.Keys)
		if c.runErr = c.call.run(); c.runErr != nil || c.request.ReadOnly {
			return c.runErr
		}
		return c.serveBlocked(tx, c.request.Keys)
	}
	c.lastAt.Store(c.born.UnixMilli())
	return c
}

// Reply takes the reply of the command that runs, for Command.Conn: exactly one,
// unless the function returns an error. It is for the goroutine that runs the
// command, until the command returns.
func (c *Conn) Reply() *Reply { return &c.reply }

// ID is the number of the connection, as CLIENT ID says it: that of no other
// connection of this server. It may be called from any goroutine.
func (c *Conn) ID() int64 { return c.id }

// Context is done when the connection ends, or the server. It may be called from
// any goroutine.
func (c *Conn) Context() context.Context { return c.ctx }

func (c *Conn) setProto(proto int) {
	c.proto.Store(int32(proto))
	c.reply.setProto(proto)
}

// cut ends the connection from any goroutine.
func (c *Conn) cut() {
	c.cancel()
	c.net.Close()
}

// close gives back what the connection holds. Its goroutine calls it.
func (c *Conn) close() {
	c.cut()
	c.discard()
	c.leavePubSub()
	c.leaveTracking()
	c.pushes.close()
}

// serve reads commands until the client goes, or does what is not allowed.
func (c *Conn) serve() {
	if !c.authed {
		c.awaitLogin(c.born)
	}
	for !c.quit {
		if !c.reader.buffered() && c.flush() != nil {
			return
		}
		args, err := c.reader.next()
		c.beginBatch()
		if err != nil {
			c.refuse(err)
			return
		}
		c.handle(args)
		if (c.reply.size() >= c.flushSize() || c.session.Owed() >= owedMost) && c.flush() != nil {
			return
		}
	}
	c.flush()
}

// awaitLogin ends the connection unless its client logs in: who does not is not kept
// for long.
func (c *Conn) awaitLogin(from time.Time) {
	c.net.SetReadDeadline(from.Add(c.server.cfg.Limits.PreAuthTime))
}

// flushSize is how many bytes of replies are held while more commands are there.
func (c *Conn) flushSize() int {
	if c.authed {
		return flushAt
	}
	return min(flushAt, c.server.cfg.Limits.PreAuthOutput)
}

// refuse tells the client what is wrong with its bytes, unless that is something
// that ends the connection with nothing said.
func (c *Conn) refuse(err error) {
	var p *protocolError
	switch {
	case errors.As(err, &p):
		c.reply.Error("ERR " + p.Error())
	case errors.Is(err, errCrossProtocol), errors.Is(err, errCommandTooLong):
		c.forgetReplies()
	}
	c.flush()
}

// forgetReplies leaves what has run without an answer.
func (c *Conn) forgetReplies() {
	c.reply.clear()
	c.owed = c.owed[:0]
}

// beginBatch keeps others from writing until the replies to what has come are
// written. What was pushed before it came goes first: a client that was told of a
// key by another hears of its change before the reply to what it asks then.
func (c *Conn) beginBatch() {
	if !c.writing {
		c.writeMu.Lock()
		c.writing = true
		c.now = time.Now()
		c.started = c.now
		if c.pushes.started {
			c.write(c.pushes.take()) // if it fails, the client is cut
		}
	}
}

// flush writes the replies that there are, and lets others write.
func (c *Conn) flush() error {
	if !c.writing {
		return nil
	}
	err := c.answer()
	c.writing = false
	c.writeMu.Unlock()
	return err
}

// answer writes the replies that there are.
func (c *Conn) answer() error {
	c.settle()
	c.settleTally() // who has a reply finds it counted
	err := c.write(c.reply.bytes())
	c.reply.clear()
	c.began = 0
	return err
}

// answerBeforeWait answers what has run before a command waits for its slot: that may
// take long, and the lease be over then.
func (c *Conn) answerBeforeWait() {
	if c.writing && c.reply.size() > 0 && c.reply.size() == c.began {
		_ = c.answer() // where it fails the client has been cut, which ends the wait
	}
}

// settle waits until what has run may be answered, once for all commands that came
// together. The replies of those that may not be are errors then, which say what has
// become of them; that of the running command is so once it has ended.
func (c *Conn) settle() {
	ended := 0 // requests of commands that have
	if n := len(c.owed); n > 0 {
		ended = c.owed[n-1].owed
	}
	var failed []error // of the commands that have ended, by their place
	_ = c.session.Settle(c.ctx, func(i int, err error) {
		if i >= ended {
			c.unsettled = worse(c.unsettled, err)
			return
		}
		if failed == nil {
			failed = make([]error, len(c.owed))
		}
		at, _ := slices.BinarySearchFunc(c.owed, i, func(o owedReply, i int) int { return cmp.Compare(o.owed, i+1) })
		failed[at] = worse(failed[at], err)
	})
	if failed != nil {
		c.replaceReplies(failed)
	}
	c.owed = c.owed[:0]
}

// worse is the error that says more of what may have happened.
func worse(a, b error) error {
	if a == nil || !outcomeUnknown(a) && outcomeUnknown(b) {
		return b
	}
	return a
}

// replaceReplies puts errors in the place of replies, where there are any.
func (c *Conn) replaceReplies(failed []error) {
	first := slices.IndexFunc(failed, func(err error) bool { return err != nil })
	from := c.owed[first].from
	was := slices.Clone(c.reply.bytes()[from:])
	c.reply.truncate(from)
	at := 0
	keep := func(to int) {
		c.reply.whole(was[at : to-from])
		at = to - from
	}
	for i, o := range c.owed[first:] {
		err := failed[first+i]
		if err == nil || o.from == o.to { // CLIENT REPLY wants none
			continue
		}
		keep(o.from)
		at = o.to - from
		c.fail(err)
	}
	ended := c.began - from - at
	c.began = c.reply.size() + ended
	keep(from + len(was))
}

// write writes to the client, under writeMu. One that does not read for too long
// is cut.
func (c *Conn) write(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	c.net.SetWriteDeadline(time.Now().Add(c.server.cfg.Limits.WriteTime))
	n, err := c.net.Write(b)
	c.server.stats.netOut.Add(int64(n))
	if err != nil {
		c.cut()
	}
	return err
}

// handle runs one command and puts its reply behind the others.
func (c *Conn) handle(args [][]byte) {
	c.began = c.reply.size()
	c.started = c.now
	command, err := c.server.table.lookup(args)
	if command != nil {
		c.last.Store(command)
	}
	if err == nil {
		err = c.mayRun(command)
	}
	rejected := err != nil
	if err == nil && c.server.pause.p.Load() != nil {
		c.awaitPause(command)
	}
	switch {
	case err != nil:
		err = c.rejected(command, err)
	case c.tx.open && !command.has(NoMulti) && !command.has(AtOnce):
		err = c.enqueue(command, args)
	default:
		err = c.dispatch(command, args)
		if err == nil && c.reply.size() == c.began && !command.has(Silent) && !c.reply.over() && !c.quit {
			err = noReply(command)
		}
	}
	if c.unsettled != nil {
		err, c.unsettled = c.unsettled, nil
	}
	if err != nil {
		c.reply.truncate(c.began)
		c.fail(err)
	}
	c.mute(c.began)
	if n := c.session.Owed(); n > 0 && (len(c.owed) == 0 || n > c.owed[len(c.owed)-1].owed) {
		c.owed = append(c.owed, owedReply{c.began, c.reply.size(), n})
	}
	if c.reply.over() {
		c.server.log.Warn("a client is disconnected: it asks for more than may be held for it", "client", c.net.RemoteAddr(), "bytes", c.server.cfg.Limits.Output)
		c.forgetReplies()
		c.quit = true
	}
	if command != nil {
		c.ranTracked(command)
	}
	c.clock(command, args, rejected, err != nil)
}

// noReply takes the place of a reply that an application's command has not
// written: its client would take the next one for it.
func noReply(command *Command) error {
	return Error(fmt.Sprintf("ERR the command '%s' has written no reply", command.fullName()))
}

// rejected notes that a command was refused before it ran: the transaction it
// was to be part of fails, and one that it was to end is over.
func (c *Conn) rejected(command *Command, err error) error {
	c.tx.fail()
	if command == nil || command.Name != "exec" {
		return err
	}
	c.discard()
	return Error("EXECABORT Transaction discarded because of: " + strings.TrimPrefix(c.server.errorText(err), "ERR "))
}

// clock counts a command and the time that it took, waits left out.
func (c *Conn) clock(command *Command, args [][]byte, rejected, failed bool) {
	c.now = time.Now()
	c.lastAt.Store(c.now.UnixMilli())
	if command == nil || rejected {
		c.server.stats.commands.Add(1)
		if command != nil {
			command.stats.rejected.Add(1)
		}
		return
	}
	took := c.now.Sub(c.started)
	if c.tally.command != command {
		c.settleTally()
		c.tally.command = command
	}
	c.tally.calls++
	c.tally.took += took
	if failed {
		command.stats.failed.Add(1)
	}
	if slow := c.server.settings.slowerThan.Load(); slow >= 0 && took >= time.Duration(slow)*time.Microsecond && !command.has(SkipSlowlog) {
		c.server.slow.add(c, args, took, c.server.settings.slowMax.Load())
	}
}

// tally counts the commands of one kind in a row: what all connections count
// together is touched once for a pipeline of them.
type tally struct {
	command *Command
	calls   int64
	took    time.Duration
}

func (c *Conn) settleTally() {
	if t := &c.tally; t.command != nil {
		c.server.stats.commands.Add(t.calls)
		t.command.stats.calls.Add(t.calls)
		t.command.stats.nanos.Add(int64(t.took))
		*t = tally{}
	}
}

// mute drops a reply where CLIENT REPLY wants none.
func (c *Conn) mute(began int) {
	switch c.noReply {
	case replyOff:
		c.reply.truncate(began)
	case replySkip:
		c.reply.truncate(began)
		c.noReply = replyOn
	case replySkipNext:
		c.reply.truncate(began)
		c.noReply = replySkip
	}
}

// fail puts an error in the place of a reply, and counts it.
func (c *Conn) fail(err error) {
	text := c.server.errorText(err)
	code, _, _ := strings.Cut(text, " ")
	c.server.stats.errors.Add(1)
	c.server.stats.byCode.add(code)
	c.reply.Error(text)
}

// mayRun is what a connection's state does not allow.
func (c *Conn) mayRun(command *Command) error {
	switch {
	case !c.authed && !command.has(NoAuth):
		return errNoAuth
	case c.inPubSub() && c.proto.Load() == 2 && !command.has(InPubSub):
		return Error(fmt.Sprintf("ERR Can't execute '%s': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context", command.fullName()))
	case c.tx.open && command.has(NoMulti):
		return Error("ERR Command not allowed inside a transaction")
	}
	return nil
}

// dispatch runs a command outside of MULTI.
func (c *Conn) dispatch(command *Command, args [][]byte) error {
	asking := c.asking
	c.wasAsking, c.asking = asking, false
	if command.Run == nil {
		return c.runConn(command, args)
	}
	if command.has(Blocking) {
		return c.runBlocking(command, args, asking)
	}
	_, err := c.execute(command, args, asking)
	return err
}

// runConn runs a command that touches no key. A panic in it is its error: the
// application may have brought it, and others are served by the same process.
func (c *Conn) runConn(command *Command, args [][]byte) (err error) {
	defer func() {
		if p := recover(); p != nil {
			c.server.log.Error("command panicked", "command", command.fullName(), "panic", p, "stack", string(runtimedebug.Stack()))
			err = Error(fmt.Sprintf("ERR the command panicked: %v", p))
		}
	}()
	return command.Conn(c, args)
}

// execute runs a command with keys at their slot.
func (c *Conn) execute(command *Command, args [][]byte, asking bool) (*waitFor, error) {
	var err error
	if c.keyAt, err = command.keys(c.keyAt[:0], args); err != nil && command.Conn == nil {
		return nil, err
	}
	if (len(c.keyAt) == 0 || err != nil) && command.Conn != nil {
		return nil, c.runConn(command, args)
	}
	if len(c.keyAt) == 0 {
		return nil, errNoKeys
	}
	c.touched = c.touched[:0]
	r := &c.request
	r.Keys = r.Keys[:0]
	for _, i := range c.keyAt {
		r.Keys = append(r.Keys, view(args[i]))
	}
	runs := c.compile(command, args)
	r.Name, r.ReadOnly, r.Asking = command.Name, !command.mayWrite(runs), asking || command.has(Asking)
	r.AckReplicas = c.server.ackReplicas(r.ReadOnly)
	if err := c.beforeSlot(r); err != nil {
		return nil, err
	}
	c.call = Call{Args: args, Reply: &c.reply, command: command, conn: c, compiled: runs}
	began := c.reply.size() - c.began
	r.FromReplica = c.readOnly
	if err = c.runLater(r, c.run); err != nil {
		c.reply.truncate(c.began + began)
	}
	wait := c.call.wait
	if c.runErr != nil && err != nil {
		err, c.runErr = c.runErr, nil
	}
	c.call = Call{}
	clear(r.Keys)
	return wait, err
}

// runLater runs a request whose reply leaves with the others. Who is served by what it
// has changed hears of that on a connection of its own, so it is settled at once.
func (c *Conn) runLater(r *slotmesh.Request, f func(*slotmesh.Tx) error) error {
	r.Later = true
	err := c.session.Execute(c.ctx, r, f)
	if err == nil && len(c.serving.all) > 0 {
		c.settle()
		err = c.unsettled
	}
	c.serving.end(err)
	return err
}

// beforeSlot puts the settings of the server into a request, and is what it waits for
// before it takes the lock of its slot.
func (c *Conn) beforeSlot(r *slotmesh.Request) error {
	c.server.limits(r)
	if !r.ReadOnly && c.server.moving.n.Load() > 0 {
		return c.server.moving.wait(c.ctx, r.Keys)
	}
	return nil
}

// errorText is the reply for an error: a command's own as it is, the library's
// in the words of Redis.
func (s *Server) errorText(err error) string {
	var own Error
	if errors.As(err, &own) {
		return string(own)
	}
	var moved *slotmesh.MovedError
	var ask *slotmesh.AskError
	var op *slotmesh.OpError
	var admin *slotmesh.AdminError
	var command *slotmesh.CommandError
	switch {
	case outcomeUnknown(err) && errors.As(err, &op):
		// Not CLUSTERDOWN or TRYAGAIN: clients repeat those by themselves, and
		// this one may have happened.
		return "ERR the command may have happened: " + op.Err.Error()
	case errors.As(err, &moved):
		return s.redirect("MOVED", moved.Slot, moved.Node, moved.Addr)
	case errors.As(err, &ask):
		return s.redirect("ASK", ask.Slot, ask.Node, ask.Addr)
	case errors.Is(err, slotmesh.ErrCrossSlot):
		return string(s.crossSlot())
	case errors.As(err, &admin):
		return adminText(admin)
	case errors.As(err, &command):
		return command.Error()
	case errors.Is(err, slotmesh.ErrNoReplicas):
		return string(errNoReplicas)
	case errors.Is(err, slotmesh.ErrTryAgain):
		return "TRYAGAIN " + cause(err, slotmesh.ErrTryAgain)
	case errors.Is(err, slotmesh.ErrClusterDown):
		return "CLUSTERDOWN " + cause(err, slotmesh.ErrClusterDown)
	case errors.Is(err, slotmesh.ErrTooLarge):
		return "ERR " + cause(err, slotmesh.ErrTooLarge)
	case errors.Is(err, context.Canceled), errors.Is(err, slotmesh.ErrClosed):
		return "ERR the server is closing"
	}
	return "ERR " + err.Error()
}

func (s *Server) crossSlot() Error {
	if s.cfg.Standalone {
		return errCrossSlotAlone
	}
	return errCrossSlot
}

// outcomeUnknown reports whether a request may have happened although it failed.
func outcomeUnknown(err error) bool {
	var op *slotmesh.OpError
	return errors.As(err, &op) && op.Outcome == slotmesh.Unknown
}

// adminText is the refusal of an operator's command, with the code that Redis
// gives it.
func adminText(err *slotmesh.AdminError) string {
	switch {
	case err.Outcome == slotmesh.Unknown:
		return "CLUSTERDOWN " + err.Text // which says that it may still happen
	case errors.Is(err, slotmesh.ErrClusterDown):
		return "CLUSTERDOWN " + err.Text
	case errors.Is(err, slotmesh.ErrTryAgain):
		return "TRYAGAIN " + err.Text
	default:
		return "ERR " + err.Text
	}
}

// cause is the text behind a sentinel: "slotmesh: cluster down: why" is "why".
func cause(err error, sentinel error) string {
	var op *slotmesh.OpError
	if errors.As(err, &op) {
		err = op.Err
	}
	text := strings.TrimPrefix(err.Error(), sentinel.Error())
	if text = strings.TrimPrefix(text, ": "); text == "" {
		text = strings.TrimPrefix(sentinel.Error(), "slotmesh: ")
	}
	return text
}

// cloneArgs are arguments that may be kept.
func cloneArgs(args [][]byte) [][]byte {
	size := 0
	for _, a := range args {
		size += len(a)
	}
	buf := make([]byte, 0, size)
	out := make([][]byte, len(args))
	for i, a := range args {
		buf = append(buf, a...)
		out[i] = buf[len(buf)-len(a) : len(buf) : len(buf)]
	}
	return out
}
