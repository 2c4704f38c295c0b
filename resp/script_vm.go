package resp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/slotmesh/slotmesh"
	lua "github.com/yuin/gopher-lua"
)

// interpreter is a Lua state in which scripts run one after the other. What a
// script could change for the next one, the globals and the libraries, is behind
// tables that cannot be written.
type interpreter struct {
	state   *lua.LState
	env     *lua.LTable   // what scripts see as their globals
	globals *lua.LTable   // what is behind it
	sealed  []*lua.LTable // stand in front of what scripts cannot write: empty themselves
	handler *lua.LFunction
	current *scriptRun // runs now
	own     int64      // bytes that it takes up before any script
	random  drand48
}

const (
	luaStackMax    = 1 << 20 // values of one script; more is an error of the script
	luaCallsMax    = 200     // calls within each other, as many as Lua allows C functions
	luaStringMax   = 64 << 20
	luaReplyNested = 128 // tables within each other in a reply
)

func newInterpreter() *interpreter {
	vm := &interpreter{}
	L := lua.NewState(lua.Options{SkipOpenLibs: true, CallStackSize: 16 * luaCallsMax, RegistrySize: 1 << 10, RegistryMaxSize: luaStackMax, RegistryGrowStep: 1 << 10, MinimizeStackMemory: true})
	vm.state = L
	for name, open := range map[string]lua.LGFunction{lua.BaseLibName: lua.OpenBase, lua.TabLibName: lua.OpenTable, lua.StringLibName: lua.OpenString, lua.MathLibName: lua.OpenMath, lua.CoroutineLibName: lua.OpenCoroutine} {
		L.Push(L.NewFunction(open))
		L.Push(lua.LString(name))
		L.Call(1, 0)
	}
	g := L.G.Global
	for _, name := range []string{"dofile", "loadfile", "print", "module", "require", "getfenv", "setfenv", "newproxy", "_printregs", "_GOPHER_LUA_VERSION"} {
		g.RawSetString(name, lua.LNil)
	}
	g.RawSetString("_VERSION", lua.LString("Lua 5.1"))
	vm.openBase()
	vm.openMath()
	vm.openString()
	g.RawSetString("cjson", newCJSON(L))
	g.RawSetString("bit", newBit(L))
	g.RawSetString("struct", newStruct(L))
	g.RawSetString("redis", vm.newRedis())
	vm.boundConcat()
	vm.meterCoroutines()
	vm.guardRaw()
	vm.seal()
	vm.handler = L.NewFunction(vm.onError)
	vm.own = reachable(L, math.MaxInt64)
	return vm
}

func (vm *interpreter) close() { vm.state.Close() }

// seal puts the libraries and the globals behind tables that cannot be written.
func (vm *interpreter) seal() {
	L := vm.state
	g := L.G.Global
	vm.globals = g
	readOnly := func(behind *lua.LTable, index lua.LValue) *lua.LTable {
		front, meta := L.NewTable(), L.NewTable()
		meta.RawSetString("__index", index)
		meta.RawSetString("__newindex", L.NewFunction(func(L *lua.LState) int {
			L.RaiseError("Attempt to modify a readonly table")
			return 0
		}))
		meta.RawSetString("__metatable", lua.LFalse)
		front.Metatable = meta
		vm.sealed = append(vm.sealed, front)
		return front
	}
	g.ForEach(func(k, v lua.LValue) {
		if t, ok := v.(*lua.LTable); ok && k.String() != "_G" {
			g.RawSet(k, readOnly(t, t))
		}
	})
	if meta, ok := L.GetMetatable(lua.LString("")).(*lua.LTable); ok {
		meta.RawSetString("__metatable", lua.LFalse)
	}
	missing := L.NewFunction(func(L *lua.LState) int {
		name := L.Get(2)
		if v := g.RawGet(name); v != lua.LNil {
			L.Push(v)
			return 1
		}
		L.RaiseError("Script attempted to access nonexistent global variable '%s'", name.String())
		return 0
	})
	vm.env = readOnly(g, missing)
	g.RawSetString("_G", vm.env)
	vm.openLoad()
}

// guardRaw keeps the functions that write past metatables away from what cannot
// be written.
func (vm *interpreter) guardRaw() {
	L := vm.state
	guard := func(in *lua.LTable, name string) {
		write := in.RawGetString(name).(*lua.LFunction).GFunction
		in.RawSetString(name, L.NewFunction(func(L *lua.LState) int {
			if slices.Contains(vm.sealed, L.CheckTable(1)) {
				return libraryError(L, "Attempt to modify a readonly table")
			}
			return write(L)
		}))
	}
	guard(L.G.Global, "rawset")
	table := L.G.Global.RawGetString(lua.TabLibName).(*lua.LTable)
	guard(table, "insert")
	guard(table, "remove")
}

// boundConcat bounds what table.concat makes of a table that has one long text
// many times.
func (vm *interpreter) boundConcat() {
	table := vm.state.G.Global.RawGetString(lua.TabLibName).(*lua.LTable)
	concat := table.RawGetString("concat").(*lua.LFunction).GFunction
	table.RawSetString("concat", vm.state.NewFunction(func(L *lua.LState) int {
		t, between := L.CheckTable(1), len(L.OptString(2, ""))
		total := 0
		for i, last := L.OptInt(3, 1), L.OptInt(4, t.Len()); i <= last; i++ {
			item := t.RawGetInt(i)
			if !lua.LVCanConvToString(item) {
				break // which concat says
			}
			if total += between + len(lua.LVAsString(item)); total > luaStringMax {
				L.RaiseError("resulting string too large")
			}
		}
		madeIn(L, total)
		return concat(L)
	}))
}

// openString bounds what one call can make of nothing, and has numbers printed as
// C does.
func (vm *interpreter) openString() {
	L := vm.state
	s := L.G.Global.RawGetString("string").(*lua.LTable)
	s.RawSetString("dump", lua.LNil)
	s.RawSetString("format", L.NewFunction(luaFormat))
	vm.openPatterns()
	text := L.G.Global.RawGetString("tostring")
	L.G.Global.RawSetString("tostring", L.NewFunction(func(L *lua.LState) int {
		if n, ok := L.Get(1).(lua.LNumber); ok {
			L.Push(lua.LString(luaText(float64(n))))
			return 1
		}
		top := L.GetTop()
		L.Push(text)
		for i := 1; i <= top; i++ {
			L.Push(L.Get(i))
		}
		L.Call(top, 1)
		return 1
	}))
	sub := s.RawGetString("sub").(*lua.LFunction).GFunction
	s.RawSetString("sub", L.NewFunction(func(L *lua.LState) int {
		text := L.CheckString(1)
		n := sub(L)
		if piece, ok := L.Get(-1).(lua.LString); ok {
			madeIn(L, len(piece))
			L.Pop(1)
			L.Push(luaPiece(text, string(piece)))
		}
		return n
	}))
	for name, change := range map[string]func(byte) byte{"lower": lowerByte, "upper": upperByte} {
		s.RawSetString(name, L.NewFunction(func(L *lua.LState) int {
			out := []byte(L.CheckString(1))
			madeIn(L, len(out))
			for i, b := range out {
				out[i] = change(b)
			}
			L.Push(lua.LString(out))
			return 1
		}))
	}
	s.RawSetString("rep", L.NewFunction(func(L *lua.LState) int {
		text, n := L.CheckString(1), max(0, L.CheckInt(2))
		if len(text) > 0 && n > luaStringMax/len(text) {
			L.RaiseError("resulting string too large")
		}
		madeIn(L, n*len(text))
		L.Push(lua.LString(strings.Repeat(text, n)))
		return 1
	}))
}

func lowerByte(b byte) byte {
	if 'A' <= b && b <= 'Z' {
		b += 'a' - 'A'
	}
	return b
}

func upperByte(b byte) byte {
	if 'a' <= b && b <= 'z' {
		b -= 'a' - 'A'
	}
	return b
}

// scriptError is an error that a script has raised, as a table: err is the text,
// where is where it came from.
func (vm *interpreter) onError(L *lua.LState) int {
	err := L.Get(1)
	t, ok := err.(*lua.LTable)
	if !ok {
		t = L.NewTable()
		t.RawSetString("err", lua.LString("ERR "+err.String()))
	}
	for level := 1; ; level++ {
		d, ok := L.GetStack(level)
		if !ok {
			break
		}
		if _, e := L.GetInfo("Sl", d, lua.LNil); e == nil && d.What != "G" && d.CurrentLine > 0 {
			t.RawSetString("line", lua.LNumber(d.CurrentLine))
			break
		}
	}
	L.Push(t)
	return 1
}

// run runs a script and returns its value.
func (vm *interpreter) run(ctx context.Context, r *scriptRun) (lua.LValue, error) {
	L := vm.state
	vm.current = r
	vm.globals.RawSetString("KEYS", stringTable(L, r.keys))
	vm.globals.RawSetString("ARGV", stringTable(L, r.argv))
	L.SetContext(ctx)
	defer L.RemoveContext()
	defer vm.forget()
	f := L.NewFunctionFromProto(r.script.proto)
	f.Env = vm.env
	L.Push(f)
	if err := L.PCall(0, 1, vm.handler); err != nil {
		return nil, r.failed(err)
	}
	return L.Get(-1), nil
}

// forget lets go of what the script was given and has left.
func (vm *interpreter) forget() {
	vm.state.SetTop(0)
	vm.globals.RawSetString("KEYS", lua.LNil)
	vm.globals.RawSetString("ARGV", lua.LNil)
}

func stringTable(L *lua.LState, items []string) *lua.LTable {
	t := L.CreateTable(len(items), 0)
	for _, s := range items {
		t.Append(lua.LString(s))
	}
	return t
}

// failed is the reply for an error of a script: its text, the script, the line.
func (r *scriptRun) failed(err error) error {
	var api *lua.ApiError
	if !errors.As(err, &api) {
		return Error("ERR " + oneLine(err.Error()))
	}
	t, ok := api.Object.(*lua.LTable)
	if !ok {
		return Error("ERR " + oneLine(api.Object.String()))
	}
	text := lua.LVAsString(t.RawGetString("err"))
	if text == "" {
		text = "ERR unknown error"
	}
	if line, ok := t.RawGetString("line").(lua.LNumber); ok {
		text = fmt.Sprintf("%s script: %s, on @user_script:%d.", text, r.script.sha, int(line))
	}
	return Error(oneLine(text))
}

// newRedis is the library "redis".
func (vm *interpreter) newRedis() *lua.LTable {
	L := vm.state
	t := L.NewTable()
	function := func(name string, f lua.LGFunction) { t.RawSetString(name, L.NewFunction(f)) }
	function("call", func(L *lua.LState) int { return vm.redisCall(L, true) })
	function("pcall", func(L *lua.LState) int { return vm.redisCall(L, false) })
	function("sha1hex", func(L *lua.LState) int {
		if L.GetTop() != 1 {
			return libraryError(L, "wrong number of arguments")
		}
		text := "" // of what is no text, the sum is that of none
		switch L.Get(1).(type) {
		case lua.LString, lua.LNumber:
			text = luaStringArg(L, 1)
		}
		L.Push(lua.LString(shaOf([]byte(text))))
		return 1
	})
	reply := func(field string, text func(string) string) lua.LGFunction {
		return func(L *lua.LState) int {
			s, ok := L.Get(1).(lua.LString)
			if !ok || L.GetTop() != 1 {
				L.Push(singleField(L, "err", "ERR wrong number or type of arguments"))
				return 1
			}
			L.Push(singleField(L, field, text(string(s))))
			return 1
		}
	}
	function("error_reply", reply("err", errorReplyText))
	function("status_reply", reply("ok", func(s string) string { return s }))
	function("setresp", func(L *lua.LState) int {
		if L.GetTop() != 1 {
			return libraryError(L, "redis.setresp() requires one argument.")
		}
		n := luaInt(float64(lua.LVAsNumber(L.Get(1))))
		if n != 2 && n != 3 {
			return libraryError(L, "RESP version must be 2 or 3.")
		}
		vm.current.proto = int(n)
		return 0
	})
	function("log", func(L *lua.LState) int {
		if L.GetTop() < 2 {
			return libraryError(L, "redis.log() requires two arguments or more.")
		}
		level, ok := L.Get(1).(lua.LNumber)
		if !ok {
			return libraryError(L, "First argument must be a number (log level).")
		}
		if level < 0 || level >= 4 {
			return libraryError(L, "Invalid debug level.")
		}
		var words []string
		for i := 2; i <= L.GetTop(); i++ {
			words = append(words, lua.LVAsString(L.Get(i)))
		}
		vm.current.conn.server.log.Info("script", "text", strings.Join(words, " "))
		return 0
	})
	function("set_repl", func(L *lua.LState) int {
		if L.GetTop() != 1 {
			return libraryError(L, "redis.set_repl() requires two arguments.")
		}
		if n := luaInt(float64(lua.LVAsNumber(L.Get(1)))); n&^3 != 0 {
			return libraryError(L, "Invalid replication flags. Use REPL_AOF, REPL_REPLICA, REPL_ALL or REPL_NONE.")
		}
		return 0 // effects go where they have to go
	})
	function("breakpoint", func(L *lua.LState) int {
		L.Push(lua.LFalse) // nobody debugs
		return 1
	})
	function("debug", func(L *lua.LState) int { return 0 })
	function("replicate_commands", func(L *lua.LState) int {
		L.Push(lua.LTrue)
		return 1
	})
	function("acl_check_cmd", func(L *lua.LState) int {
		args, bad := callArgs(L)
		if bad != "" {
			return vm.callFailed(L, true, bad)
		}
		if vm.current.conn.server.table.byName[string(appendLower(nil, args[0]))] == nil {
			return libraryError(L, "Invalid command passed to redis.acl_check_cmd()")
		}
		L.Push(lua.LTrue)
		return 1
	})
	for name, n := range map[string]int{"LOG_DEBUG": 0, "LOG_VERBOSE": 1, "LOG_NOTICE": 2, "LOG_WARNING": 3, "REPL_NONE": 0, "REPL_AOF": 1, "REPL_SLAVE": 2, "REPL_REPLICA": 2, "REPL_ALL": 3, "REDIS_VERSION_NUM": versionNumber} {
		t.RawSetString(name, lua.LNumber(n))
	}
	t.RawSetString("REDIS_VERSION", lua.LString(versionText))
	return t
}

// What the server says that it is.
const (
	versionText   = "7.0.15"
	versionNumber = 7<<16 | 0<<8 | 15
)

// libraryError raises an error that does not name the line: Redis's library says
// none.
func libraryError(L *lua.LState, text string) int {
	L.Error(singleField(L, "err", "ERR "+text), 0)
	return 0
}

// errorReplyText is what redis.error_reply makes of its argument: a leading '-'
// is dropped, and a text of one word gets a code.
func errorReplyText(s string) string {
	if s = strings.TrimPrefix(s, "-"); !strings.Contains(s, " ") {
		s = "ERR " + s
	}
	return s
}

func singleField(L *lua.LState, name, value string) *lua.LTable {
	t := L.NewTable()
	t.RawSetString(name, lua.LString(value))
	return t
}

// redisCall is redis.call and redis.pcall.
func (vm *interpreter) redisCall(L *lua.LState, raise bool) int {
	args, bad := callArgs(L)
	if bad != "" {
		return vm.callFailed(L, raise, bad)
	}
	reply, err := vm.current.command(args)
	if err != nil {
		if vm.current.wants != "" {
			vm.current.stop() // pcall does not stop it from unwinding
			L.RaiseError("needs a slot")
		}
		return vm.callFailed(L, raise, vm.current.conn.server.errorText(err))
	}
	value, rest, ok := readLua(L, reply)
	if !ok {
		return vm.callFailed(L, raise, string(errReplyForScript))
	}
	if len(rest) > 0 {
		return vm.callFailed(L, raise, "ERR a command has more than one reply")
	}
	if t, ok := value.(*lua.LTable); ok && raise {
		if text, ok := t.RawGetString("err").(lua.LString); ok && len(reply) > 0 && reply[0] == '-' {
			return vm.callFailed(L, true, string(text))
		}
	}
	L.Push(value)
	return 1
}

// callArgs are the arguments of a call as those of a command, or what is wrong
// with them.
func callArgs(L *lua.LState) (args [][]byte, bad string) {
	args = make([][]byte, L.GetTop())
	for i := range args {
		switch v := L.Get(i + 1).(type) {
		case lua.LString:
			args[i] = []byte(v)
		case lua.LNumber:
			args[i] = []byte(luaNumberText(float64(v)))
		default:
			return nil, "ERR Lua redis lib command arguments must be strings or integers"
		}
	}
	if len(args) == 0 {
		return nil, "ERR Please specify at least one argument for this redis lib call"
	}
	return args, ""
}

func (vm *interpreter) callFailed(L *lua.LState, raise bool, text string) int {
	t := singleField(L, "err", text)
	if raise {
		L.Error(t, 0)
	}
	L.Push(t)
	return 1
}

// luaNumberText is how a number travels as an argument: whole ones without a
// fraction.
func luaNumberText(f float64) string {
	if f == math.Trunc(f) && math.Abs(f) < 1e17 && (f != 0 || !math.Signbit(f)) {
		return strconv.FormatInt(int64(f), 10)
	}
	return formatG(f, 17)
}

// command runs a command of a script, and returns its reply in the protocol that
// the script has chosen.
func (r *scriptRun) command(args [][]byte) ([]byte, error) {
	c := r.conn
	command := c.server.table.byName[string(appendLower(nil, args[0]))]
	if command == nil {
		return nil, Error("ERR Unknown Redis command called from script")
	}
	command, err := c.server.table.lookup(args)
	switch {
	case err != nil && strings.HasPrefix(err.Error(), "ERR wrong number"):
		return nil, Error("ERR Wrong number of args calling Redis command from script")
	case command == nil: // a subcommand that there is not
		return nil, Error("ERR Unknown Redis command called from script")
	case err != nil:
		return nil, err
	case command.has(NoScript) || command.Run == nil && !command.has(InScript):
		return nil, Error("ERR This Redis command is not allowed from script")
	case r.readOnly && command.Flags&(Write|MayReplicate) != 0:
		return nil, Error("ERR Write commands are not allowed from read-only scripts.")
	case r.replica && command.has(Write):
		return nil, errReadOnly
	case command.Name == "publish":
		return r.publish(command, args)
	case command.Run == nil:
		return r.keyless(command, args)
	}
	at, err := command.keys(nil, args)
	if err != nil {
		return nil, err
	}
	for _, i := range at {
		slot := slotmesh.KeySlotBytes(args[i])
		switch text, refused := r.refused[slot]; {
		case r.tx == nil && refused:
			return nil, text
		case r.tx == nil:
			r.wants = string(args[i])
			return nil, errNoSuchKey
		case slot != slotmesh.KeySlotBytes(args[at[0]]):
			return nil, errScriptNotLocal // Redis's word for a command whose own keys are apart
		case slot != r.tx.Slot():
			return nil, r.otherSlot(slot)
		}
	}
	c.trackArgs(r.tx, command, args)
	if command.has(Write) && c.server.blocked.n.Load() > 0 {
		for _, i := range at {
			c.touched = append(c.touched, string(args[i]))
		}
	}
	var reply Reply
	reply.setProto(r.proto)
	reply.bound(c.server.cfg.Limits.Output)
	call := Call{Tx: r.tx, Args: args, Reply: &reply, command: command, conn: c}
	if err := call.run(); err != nil {
		if half := new(halfDone); errors.As(err, &half) {
			r.half = err
			r.stop() // a pcall must not go on with it
		}
		return nil, err
	}
	if call.wait != nil {
		call.wait.refuse(&reply)
	}
	if reply.over() {
		return nil, errReplyForScript
	}
	return reply.bytes(), nil
}

const errReplyForScript Error = "ERR the reply of a command is too large for a script"

// publish publishes a message, unless this run repeats one that has done so.
func (r *scriptRun) publish(command *Command, args [][]byte) ([]byte, error) {
	if r.replayed < len(r.published) && slices.EqualFunc(r.published[r.replayed].args, args, bytes.Equal) {
		r.replayed++
		return r.published[r.replayed-1].reply, nil
	}
	reply, err := r.keyless(command, args)
	if err == nil && r.tx == nil {
		r.published = append(r.published, published{args, reply})
		r.replayed = len(r.published)
	}
	return reply, err
}

// keyless runs a command of the connection, with its reply set apart.
func (r *scriptRun) keyless(command *Command, args [][]byte) ([]byte, error) {
	c := r.conn
	outer := c.reply
	c.reply = Reply{}
	c.reply.setProto(r.proto)
	defer func() { c.reply = outer }()
	if err := command.Conn(c, args); err != nil {
		return nil, err
	}
	if c.reply.size() == 0 {
		return nil, noReply(command)
	}
	return c.reply.bytes(), nil
}
