package resp

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/slotmesh/slotmesh"
	lua "github.com/yuin/gopher-lua"
)

// scripts are those that clients have sent, by the SHA-1 of their text, and the
// interpreters that run them.
type scripts struct {
	mu      sync.Mutex
	bySHA   map[string]*script          // guarded by mu
	order   []string                    // guarded by mu: oldest first
	bytes   int                         // guarded by mu: of all texts, compiled
	running map[*runningScript]struct{} // guarded by mu
	idle    []*interpreter              // guarded by mu: at most idleMax
	memory  scriptMemory
}

const (
	scriptsMax    = 10_000          // scripts kept; at the bound the oldest is forgotten, and EVALSHA of it answers NOSCRIPT
	scriptBytes   = 256 << 20       // of all scripts, as text and compiled; the same
	idleMax       = 16              // interpreters kept for the next scripts
	scriptTimeMax = 5 * time.Second // a script that takes longer is stopped, and nothing of it has happened
)

// script is a compiled script.
type script struct {
	sha       string
	text      string
	proto     *lua.FunctionProto
	size      int  // bytes of text and proto
	flagged   bool // its first line is #!lua
	readOnly  bool // flags=no-writes
	noCluster bool // flags=no-cluster
	crosses   bool // flags=allow-cross-slot-keys
}

// runningScript is a script that runs now, for SCRIPT KILL.
type runningScript struct {
	stop  context.CancelFunc
	meter *scriptMeter
}

const flushSummary = `Flush the Lua scripts cache. Very dangerous on replicas.
When called without the optional mode argument, the behavior is determined by the
lazyfree-lazy-user-flush configuration directive. Valid modes are:
* ASYNC: Asynchronously flush the scripts cache.
* SYNC: Synchronously flush the scripts cache.`

func scriptCommands() []Command {
	const eval = NoScript | Stale | SkipMonitor | MayReplicate | NoMandatoryKeys | MovableKeys
	const readOnly = NoScript | Stale | SkipMonitor | ReadOnly | NoMandatoryKeys | MovableKeys
	return []Command{
		{Name: "eval", scripted: true, compiles: true, Arity: -3, Flags: eval, Run: evalAtSlot, Conn: evalAnywhere, Keys: scriptKeys, Group: "scripting", Since: "2.6.0", Summary: "Execute a Lua script server side", Complexity: "Depends on the script that is executed."},
		{Name: "evalsha", scripted: true, Arity: -3, Flags: eval, Run: evalAtSlot, Conn: evalAnywhere, Keys: scriptKeys, Group: "scripting", Since: "2.6.0", Summary: "Execute a Lua script server side", Complexity: "Depends on the script that is executed."},
		{Name: "eval_ro", scripted: true, compiles: true, Arity: -3, Flags: readOnly, Run: evalAtSlot, Conn: evalAnywhere, Keys: scriptKeys, Group: "scripting", Since: "7.0.0", Summary: "Execute a read-only Lua script server side", Complexity: "Depends on the script that is executed."},
		{Name: "evalsha_ro", scripted: true, Arity: -3, Flags: readOnly, Run: evalAtSlot, Conn: evalAnywhere, Keys: scriptKeys, Group: "scripting", Since: "7.0.0", Summary: "Execute a read-only Lua script server side", Complexity: "Depends on the script that is executed."},
		{Name: "script", Arity: -2, Group: "scripting", Since: "2.6.0", Summary: "A container for Lua scripts management commands", Complexity: "Depends on subcommand.", Sub: []Command{
			{Name: "debug", Arity: 3, Usage: "(YES|SYNC|NO)", Summary: "Set the debug mode for subsequent scripts executed.", Flags: NoScript, Conn: scriptDebug},
			{Name: "exists", placed: true, Arity: -3, Usage: "<sha1> [<sha1> ...]", Summary: "Return information about the existence of the scripts in the script cache.", Flags: NoScript, Conn: scriptExists},
			{Name: "flush", placed: true, Arity: -2, Usage: "[ASYNC|SYNC]", Summary: flushSummary, Flags: NoScript, Conn: scriptFlush},
			{Name: "kill", Arity: 2, Summary: "Kill the currently executing Lua script.", Flags: NoScript | AllowBusy, Conn: scriptKill},
			{Name: "load", placed: true, Arity: 3, Usage: "<script>", Summary: "Load a script into the scripts cache without executing it.", Flags: NoScript | Stale, Conn: scriptLoad},
		}},
	}
}

// scriptKeys are the positions of the keys of EVAL: their number is the second
// argument.
func scriptKeys(args [][]byte) ([]int, error) {
	n := keyCount(args[2], len(args)-3)
	if n == 0 {
		if err := checkScriptKeys(args); err != nil {
			return nil, err
		}
	}
	at := make([]int, n)
	for i := range at {
		at[i] = 3 + i
	}
	return at, nil
}

// checkScriptKeys is what is wrong with the number of keys.
func checkScriptKeys(args [][]byte) error {
	n, ok := parseInt(args[2])
	switch {
	case !ok:
		return errNotInteger
	case n > int64(len(args)-3):
		return Error("ERR Number of keys can't be greater than number of args")
	case n < 0:
		return Error("ERR Number of keys can't be negative")
	}
	return nil
}

const errNoScript Error = "NOSCRIPT No matching script. Please use EVAL."

func shaOf(text []byte) string {
	sum := sha1.Sum(text)
	return hex.EncodeToString(sum[:])
}

// compile compiles a script, unless it is there already. It is kept when its call
// runs.
func (s *scripts) compile(text []byte) (*script, error) {
	sha := shaOf(text)
	if found := s.find(sha); found != nil {
		return found, nil
	}
	return compileScript(sha, string(text))
}

// keep remembers a script.
func (s *scripts) keep(compiled *script) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sha := compiled.sha; s.bySHA[sha] == nil {
		s.bySHA[sha] = compiled
		s.order = append(s.order, sha)
		s.bytes += compiled.size
	}
	for len(s.order) > scriptsMax || s.bytes > scriptBytes && len(s.order) > 1 {
		oldest := s.order[0]
		s.bytes -= s.bySHA[oldest].size
		delete(s.bySHA, oldest)
		s.order = s.order[1:]
	}
}

func (s *scripts) find(sha string) *script {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bySHA[sha]
}

func compileScript(sha, text string) (*script, error) {
	out := &script{sha: sha, text: text}
	code := text
	if strings.HasPrefix(text, "#!") {
		line, _, found := strings.Cut(text, "\n")
		if !found {
			return nil, Error("ERR Invalid script shebang")
		}
		if err := out.shebang(line); err != nil {
			return nil, err
		}
		code = text[len(line):] // the line break stays: lines keep their numbers
	}
	var err error
	if out.proto, err = compileLua(code, "user_script"); err != nil {
		return nil, Error("ERR Error compiling script (new function): " + oneLine(err.Error()))
	}
	out.size = len(text) + protoSize(out.proto)
	return out, nil
}

// shebang reads "#!lua flags=no-writes,allow-oom".
func (s *script) shebang(line string) error {
	words := strings.Fields(strings.TrimSuffix(line, "\r"))
	if words[0] != "#!lua" {
		return Error(fmt.Sprintf("ERR Unexpected engine in script shebang: %s", cText([]byte(words[0]))))
	}
	s.flagged = true
	for _, w := range words[1:] {
		flags, ok := strings.CutPrefix(w, "flags=")
		if !ok {
			return Error(fmt.Sprintf("ERR Unknown lua shebang option: %s", w))
		}
		for _, f := range strings.Split(flags, ",") {
			switch f {
			case "no-writes":
				s.readOnly = true
			case "no-cluster":
				s.noCluster = true
			case "allow-cross-slot-keys":
				s.crosses = true
			case "", "allow-oom", "allow-stale":
			default:
				return Error(fmt.Sprintf("ERR Unexpected flag in script shebang: %s", f))
			}
		}
	}
	return nil
}

// oneLine has spaces for line breaks.
func oneLine(s string) string {
	return strings.NewReplacer("\n", " ", "\r", " ").Replace(s)
}

// compiled is the script of a call, or why there is none.
type compiled struct {
	script  *script
	err     error
	replica bool // it runs at a replica, for a client that reads there: what it writes is refused

	begun *scriptRun // without a slot, before it needed one
}

// scriptSource is where a call finds its script.
type scriptSource interface {
	compile(text []byte) (*script, error)
	find(sha string) *script
}

// compile finds the script that a call names by its text or by its SHA-1, before
// the call takes the lock of its slot: to compile one may take long. What is wrong
// with it is said in its turn. nil: the command runs no script.
func (c *Conn) compile(command *Command, args [][]byte) *compiled {
	return c.compileFrom(&c.server.scripts, command, args)
}

func (c *Conn) compileFrom(from scriptSource, command *Command, args [][]byte) *compiled {
	if !command.scripted {
		return nil
	}
	out := &compiled{replica: c.readOnly && c.server.isReplica()}
	if command.compiles {
		out.script, out.err = from.compile(args[1])
	} else if out.script = from.find(string(appendLower(nil, args[1]))); out.script == nil {
		out.err = errNoScript
	}
	return out
}

// glimpse is compile for a call that is only queued: the script is not kept, and of
// one that is not there already its first line alone is read.
func (c *Conn) glimpse(command *Command, args [][]byte) *compiled {
	if !command.compiles {
		return c.compile(command, args)
	}
	out := &compiled{script: &script{}, replica: c.readOnly && c.server.isReplica()}
	if line, _, found := strings.Cut(view(args[1]), "\n"); found && strings.HasPrefix(line, "#!") && out.script.shebang(line) != nil {
		out.script = nil // whoever runs it hears what is wrong
	}
	return out
}

// declares reports whether the script says itself whether it writes.
func (c *compiled) declares() bool { return c != nil && c.script != nil && c.script.flagged }

// mayWrite reports whether a call may write. A script says so in its first line;
// one that says nothing may, but not for a client that reads at a replica: there it
// runs, and what it writes is refused, as in Redis.
func (c *Command) mayWrite(runs *compiled) bool {
	switch {
	case runs.declares():
		return !runs.script.readOnly
	case !c.writes():
		return false
	case runs == nil:
		return true
	}
	return !runs.replica
}

// newRun reads the arguments of EVAL.
func (c *Conn) newRun(command *Command, args [][]byte, runs *compiled) (*scriptRun, error) {
	if runs.begun != nil {
		return runs.begun, nil
	}
	if !command.compiles && len(args[1]) != 2*sha1.Size {
		return nil, errNoScript // said before anything else
	}
	if err := checkScriptKeys(args); err != nil {
		return nil, err
	}
	at, err := scriptKeys(args)
	if err != nil {
		return nil, err
	}
	s := runs.script
	if s != nil && command.compiles {
		c.server.scripts.keep(s)
	}
	switch {
	case runs.err != nil:
		return nil, runs.err
	case s.noCluster && !c.server.cfg.Standalone:
		return nil, Error("ERR Can not run script on cluster, 'no-cluster' flag is set.")
	case command.has(ReadOnly) && s.flagged && !s.readOnly:
		return nil, Error("ERR Can not execute a script with write flag using *_ro command.")
	}
	r := &scriptRun{conn: c, script: s, readOnly: s.readOnly || command.has(ReadOnly), replica: runs.replica}
	for _, i := range at {
		r.keys = append(r.keys, string(args[i]))
	}
	for _, a := range args[3+len(at):] {
		r.argv = append(r.argv, string(a))
	}
	return r, nil
}

// evalAtSlot runs a script that has named its keys.
func evalAtSlot(c *Call) error {
	r, err := c.conn.newRun(c.command, c.Args, c.compiled)
	if err != nil {
		return err
	}
	return r.atSlot(c.Tx, c.Reply)
}

// atSlot runs a script in a Tx. What it has done before it fails stays, as in
// Redis: its error is a reply like another. A script that is stopped has done
// nothing.
func (r *scriptRun) atSlot(tx *slotmesh.Tx, reply *Reply) error {
	began := reply.size()
	err := r.in(tx, reply)
	var stopped *stoppedScript
	if err == nil || errors.As(err, &stopped) {
		return err
	}
	reply.truncate(began)
	r.conn.server.stats.errors.Add(1)
	reply.Error(r.conn.server.errorText(err))
	return nil
}

// scriptRestarts bounds how often a script is begun anew because it touches a key.
const scriptRestarts = 16

// evalAnywhere runs a script that names no key. Where it touches one all the
// same it begins anew at the slot of that key: so far it has changed nothing. If
// this node does not serve that slot, the call that touches it fails.
func evalAnywhere(c *Conn, args [][]byte) error {
	command, err := c.server.table.lookup(args)
	if err != nil {
		return err
	}
	runs := c.glimpse(command, args)
	if err := c.mayRunHere(command, runs); err != nil {
		return err
	}
	if checkScriptKeys(args) == nil { // else it is not needed
		runs = c.compile(command, args)
	}
	r, err := c.newRun(command, args, runs)
	if err != nil {
		return err
	}
	began := c.reply.size() - c.began
	for range scriptRestarts {
		err = r.in(nil, &c.reply)
		var need *needSlot
		if !errors.As(err, &need) {
			return err
		}
		c.reply.truncate(c.began + began)
		var ran bool
		ran, err = c.evalAt(command, runs, r, need.key)
		if ran || !r.refuse(need.key, err) {
			return err
		}
	}
	return err
}

// evalAt runs a script that names no key at the slot of one, and reports whether
// it did.
func (c *Conn) evalAt(command *Command, runs *compiled, r *scriptRun, key string) (ran bool, err error) {
	q := slotmesh.Request{Name: command.Name, Keys: []string{key}, ReadOnly: !command.mayWrite(runs), Asking: c.wasAsking, FromReplica: c.readOnly}
	q.AckReplicas = c.server.ackReplicas(q.ReadOnly)
	if err := c.beforeSlot(&q); err != nil {
		return false, err
	}
	var failed error
	c.touched = c.touched[:0]
	err = c.runLater(&q, func(tx *slotmesh.Tx) error {
		ran = true
		if failed = r.atSlot(tx, &c.reply); failed != nil || q.ReadOnly {
			return failed
		}
		return c.serveBlocked(tx, nil)
	})
	if failed != nil {
		return ran, failed
	}
	return ran, err
}

// mayRunHere refuses a script without keys that says that it writes, at a replica.
func (c *Conn) mayRunHere(command *Command, runs *compiled) error {
	if runs.declares() && command.mayWrite(runs) && c.server.isReplica() {
		return errReadOnly
	}
	return nil
}

// What a script hears where it touches a key that it cannot have.
const (
	errScriptNotLocal Error = "ERR Script attempted to access a non local key in a cluster node"
	errScriptSlots    Error = "ERR Script attempted to access keys that do not hash to the same slot"
	errScriptDown     Error = "ERR Script attempted to execute a command while the cluster is down"
)

// otherSlot is what a script hears that runs in one slot and touches a key of another. Redis
// lets one without a first line that says something go on where it serves both; here
// it is a step under the lock of one slot, and the error says so.
func (r *scriptRun) otherSlot(slot slotmesh.Slot) Error {
	server := r.conn.server
	switch owner, found := server.node.Table().Owner(slot); {
	case !found || owner.ID != server.node.ID():
		return errScriptNotLocal
	case r.script.flagged && !r.script.crosses:
		return errScriptSlots
	}
	return errScriptSlots + Error(fmt.Sprintf(": it is one step under the lock of slot %d, with the transaction that it is in, and the key is in slot %d", r.tx.Slot(), slot))
}

// refuse notes, of a script that is begun anew without a slot, that this node does
// not serve the one of a key, as err says. False: err says something else.
func (r *scriptRun) refuse(key string, err error) bool {
	var moved *slotmesh.MovedError
	var ask *slotmesh.AskError
	var text Error
	switch {
	case err == nil || outcomeUnknown(err):
		return false
	case errors.As(err, &moved), errors.As(err, &ask):
		text = errScriptNotLocal
	case errors.Is(err, slotmesh.ErrClusterDown):
		text = errScriptDown
	default:
		return false
	}
	if r.refused == nil {
		r.refused = map[slotmesh.Slot]Error{}
	}
	r.refused[slotmesh.KeySlot(key)] = text
	return true
}

// needSlot: a script without keys wants to touch one.
type needSlot struct{ key string }

func (e *needSlot) Error() string { return "the script touches key " + strconv.Quote(e.key) }

// stoppedScript: a script took too long, SCRIPT KILL was given, or a call of it has failed
// half way.
type stoppedScript struct{ text string }

func (e *stoppedScript) Error() string { return e.text }

// scriptRun is one run of a script.
type scriptRun struct {
	conn     *Conn
	script   *script
	keys     []string
	argv     []string
	readOnly bool // it says so, or it is a command for such scripts
	replica  bool // of compiled
	tx       *slotmesh.Tx
	wants    string                  // key for which it needs a slot
	refused  map[slotmesh.Slot]Error // what it hears of slots that are not served here
	stop     context.CancelFunc
	half     error // of a call that has failed half way
	proto    int   // of the replies to its calls

	// Messages that it has published before it needed a slot. Begun anew, it
	// publishes those a second time for itself alone.
	published []published
	replayed  int
}

// published is a call of PUBLISH and its reply.
type published struct {
	args  [][]byte
	reply []byte
}

// in runs the script in a Tx, or without one as long as it touches no key.
func (r *scriptRun) in(tx *slotmesh.Tx, reply *Reply) error {
	r.tx, r.proto, r.wants, r.replayed = tx, 2, "", 0
	all := &r.conn.server.scripts
	vm := all.interpreter()
	ctx, cancel := context.WithTimeout(r.conn.ctx, scriptTimeMax)
	defer cancel()
	r.stop = cancel
	meter := all.memory.meter(ctx, cancel, r, vm)
	defer meter.end()
	defer all.begin(&runningScript{cancel, meter})()
	value, err := vm.run(meter, r)
	switch {
	case r.wants != "":
		return &needSlot{r.wants}
	case r.half != nil:
		return Error(r.conn.server.errorText(r.half) + "; nothing of the script has happened").stopped()
	case meter.over:
		return Error(fmt.Sprintf("ERR script %s held more memory than scripts may, %d bytes, and was stopped; nothing of it has happened", r.script.sha, all.memory.limit)).stopped()
	case ctx.Err() != nil:
		// Stopped in the middle of something: not to be used again.
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return Error(fmt.Sprintf("ERR script %s took more than %v and was stopped; nothing of it has happened", r.script.sha, scriptTimeMax)).stopped()
		}
		return Error("ERR Error running script: Script killed by user with SCRIPT KILL...").stopped()
	case err != nil:
		all.giveBack(vm)
		return err
	}
	writeLua(reply, value, r.proto, 0)
	all.giveBack(vm)
	return nil
}

// stopped is an error of a script that did not end by itself.
func (e Error) stopped() error { return errors.Join(e, &stoppedScript{string(e)}) }

// interpreter takes one that is idle, or makes one.
func (s *scripts) interpreter() *interpreter {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.idle); n > 0 {
		vm := s.idle[n-1]
		s.idle = s.idle[:n-1]
		return vm
	}
	return newInterpreter()
}

func (s *scripts) giveBack(vm *interpreter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.idle) < idleMax && stackSize(vm.state) <= luaKeepStack {
		s.idle = append(s.idle, vm)
		return
	}
	vm.close()
}

// begin notes that a script runs. The function it returns notes the end.
func (s *scripts) begin(r *runningScript) func() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running[r] = struct{}{}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.running, r)
	}
}

func (s *scripts) init(limit int) {
	s.bySHA, s.running = map[string]*script{}, map[*runningScript]struct{}{}
	s.memory.limit, s.memory.wake = int64(limit), make(chan struct{}, 1)
}

func (s *scripts) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, vm := range s.idle {
		vm.close()
	}
	s.idle = nil
}

func scriptLoad(c *Conn, args [][]byte) error {
	s, err := c.server.scripts.compile(args[2])
	if err != nil {
		return err
	}
	c.server.scripts.keep(s)
	c.reply.BulkString(s.sha)
	return nil
}

func scriptExists(c *Conn, args [][]byte) error {
	c.reply.Array(len(args) - 2)
	for _, a := range args[2:] {
		n := int64(0)
		if c.server.scripts.find(string(appendLower(nil, a))) != nil {
			n = 1
		}
		c.reply.Int(n)
	}
	return nil
}

// checkFlush is what is wrong with the arguments of SCRIPT FLUSH.
func checkFlush(args [][]byte) error {
	if len(args) > 3 || len(args) == 3 && !equalFold(args[2], "sync") && !equalFold(args[2], "async") {
		return Error("ERR SCRIPT FLUSH only support SYNC|ASYNC option")
	}
	return nil
}

func scriptFlush(c *Conn, args [][]byte) error {
	if err := checkFlush(args); err != nil {
		return err
	}
	s := &c.server.scripts
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bySHA, s.order, s.bytes = map[string]*script{}, nil, 0
	c.reply.Simple("OK")
	return nil
}

// scriptKill stops every script that runs. What they have written is undone, so
// none is unkillable.
func scriptKill(c *Conn, args [][]byte) error {
	s := &c.server.scripts
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.running) == 0 {
		return Error("NOTBUSY No scripts in execution right now.")
	}
	for r := range s.running {
		r.stop()
	}
	c.reply.Simple("OK")
	return nil
}

func scriptDebug(c *Conn, args [][]byte) error {
	if equalFold(args[2], "no") {
		c.reply.Simple("OK")
		return nil
	}
	return Error("ERR Use SCRIPT DEBUG YES/SYNC/NO")
}
