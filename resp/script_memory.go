package resp

import (
	"context"
	"reflect"
	"runtime/metrics"
	"strings"
	"sync/atomic"
	"time"
	"unsafe"

	lua "github.com/yuin/gopher-lua"
)

// What a script holds is bounded. The interpreter counts nothing, so what can be
// reached from a script is measured, and not often: when the functions that make
// texts have made much, or the whole process has allocated much, since the last
// time. What one step of a script can make is bounded by itself: a text by
// luaStringMax, an array that is mostly holes by luaArrayMax.

const (
	luaArrayMax   = 1 << 23              // places of the array of a table; what has a higher index is kept as what has a name, and the length does not count it
	luaLookParts  = 8                    // a script is measured when so large a part of the bound has been allocated since
	luaWatchEvery = 2 * time.Millisecond // between looks at what the process has allocated, while scripts run
	luaKeepStack  = 1 << 14              // values of the stack of an interpreter that is kept for the next script
)

// An index of 2^26 would make one step of a script fill a gigabyte. The bound is
// a variable of the interpreter, for all who use it in this process.
func init() { lua.MaxArrayIndex = luaArrayMax }

// scriptMemory is what the scripts that run hold together.
type scriptMemory struct {
	limit   int64
	held    atomic.Int64  // as last measured
	running atomic.Int64  // scripts
	sampled atomic.Uint64 // what the process had allocated when last looked
	wake    chan struct{} // holds one token: a script has begun
}

// heapAllocs is what the process has allocated so far, in bytes.
func heapAllocs() uint64 {
	sample := [1]metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(sample[:])
	return sample[0].Value.Uint64()
}

// watch looks, while scripts run, how much the process allocates, and has those
// measured that may have made too much of it.
func (s *scripts) watch(ctx context.Context) {
	t := time.NewTicker(luaWatchEvery)
	defer t.Stop()
	for {
		t.Stop()
		select {
		case <-s.memory.wake:
		case <-ctx.Done():
			return
		}
		t.Reset(luaWatchEvery)
		for s.memory.running.Load() > 0 {
			s.lookAll()
			select {
			case <-t.C:
			case <-ctx.Done():
				return
			}
		}
	}
}

func (s *scripts) lookAll() {
	now := heapAllocs()
	s.memory.sampled.Store(now)
	s.mu.Lock()
	defer s.mu.Unlock()
	for r := range s.running {
		if seen := r.meter.seen.Load(); now > seen && now-seen >= r.meter.step.Load() {
			r.meter.look.Store(true)
		}
	}
}

// scriptMeter is the context of a running script, and bounds what it holds. The
// interpreter asks for Done before each instruction.
type scriptMeter struct {
	context.Context
	done   <-chan struct{}
	stop   context.CancelFunc
	memory *scriptMemory
	run    *scriptRun
	vm     *interpreter

	look atomic.Bool   // to be measured
	seen atomic.Uint64 // what the process had allocated when it was measured
	step atomic.Uint64 // what it may allocate until it is measured again

	// The script's goroutine's alone.
	made int64 // bytes that functions have made since
	held int64 // as last measured
	over bool  // it holds too much, and is stopped
}

func (m *scriptMemory) meter(ctx context.Context, stop context.CancelFunc, r *scriptRun, vm *interpreter) *scriptMeter {
	meter := &scriptMeter{Context: ctx, done: ctx.Done(), stop: stop, memory: m, run: r, vm: vm}
	meter.seen.Store(m.sampled.Load())
	meter.step.Store(uint64(m.limit / luaLookParts))
	m.running.Add(1)
	select {
	case m.wake <- struct{}{}:
	default:
	}
	return meter
}

// end gives back what the script holds.
func (m *scriptMeter) end() {
	m.memory.held.Add(-m.held)
	m.memory.running.Add(-1)
}

// Done implements context.Context. Only the goroutine of the script calls it.
func (m *scriptMeter) Done() <-chan struct{} {
	if m.look.Load() {
		m.measure()
	}
	return m.done
}

// madeIn notes bytes that a function has made for a script, and ends the script
// where it has been stopped: functions that call each other pass no instruction.
func madeIn(L *lua.LState, bytes int) {
	m, ok := L.Context().(*scriptMeter)
	if !ok {
		return
	}
	if m.made += int64(bytes); m.made >= m.memory.limit/luaLookParts || m.look.Load() {
		m.measure()
	}
	if err := m.Err(); err != nil {
		L.RaiseError("%s", err.Error())
	}
}

// roomIn is how much one call of a function may make for a script.
func roomIn(L *lua.LState) int64 {
	if m, ok := L.Context().(*scriptMeter); ok {
		return m.memory.limit
	}
	return luaStringMax
}

// measure finds out what the script holds. Where all scripts hold too much, those
// are stopped that hold more than the others.
func (m *scriptMeter) measure() {
	given := m.run.given() + m.vm.own
	held := reachable(m.vm.state, m.memory.limit+given)
	for _, p := range m.run.published {
		held += int64(len(p.reply))
		for _, a := range p.args {
			held += int64(len(a))
		}
	}
	held = max(0, held-given)
	all := m.memory.held.Add(held - m.held)
	m.held = held
	if all > m.memory.limit && held >= all/max(1, m.memory.running.Load()) {
		m.over = true
		m.stop()
	}
	m.made = 0
	m.seen.Store(heapAllocs()) // what measuring takes up itself does not count
	m.look.Store(false)
	least := m.memory.limit / luaLookParts / 2
	m.step.Store(uint64(max(least, min((m.memory.limit-all)/2, m.memory.limit/luaLookParts))))
}

// given is what the client has sent: the bound of a command is for that.
func (r *scriptRun) given() (bytes int64) {
	for _, all := range [][]string{r.keys, r.argv} {
		for _, s := range all {
			bytes += luaTextSize + int64(len(s))
		}
	}
	return bytes
}

// What parts of a script take up, about.
const (
	luaValueSize    = 16
	luaNumberSize   = 8
	luaTextSize     = 16
	luaTableSize    = 96
	luaEntrySize    = 64  // of a table, beside key and value; and as much for the order of the keys
	luaFirstItems   = 512 // what a table takes up with its first member
	luaFunctionSize = 96
	luaUpvalueSize  = 64
	luaThreadSize   = 4096
	luaCodeSize     = 16 // per instruction, with its line
	luaSharedText   = 64 // bytes from which on a text is counted once, however often it is there
)

// Fields of the interpreter that it does not show.
var (
	luaTableType    = reflect.TypeFor[lua.LTable]()
	luaArrayField   = luaField(luaTableType, "array")
	luaDictField    = luaField(luaTableType, "dict")
	luaStrDictField = luaField(luaTableType, "strdict")
	luaKeysField    = luaField(luaTableType, "keys")
	luaRegField     = luaField(reflect.TypeFor[lua.LState](), "reg")
	luaRegistry     = reflect.TypeFor[lua.LState]().Field(luaRegField).Type.Elem()
	luaSlotsField   = luaField(luaRegistry, "array")
	luaTopField     = luaField(luaRegistry, "top")
)

// luaField is the position of a field. A test finds out whether the interpreter
// still has it.
func luaField(of reflect.Type, name string) int {
	f, ok := of.FieldByName(name)
	if !ok {
		panic("resp: the Lua interpreter has no " + of.Name() + "." + name)
	}
	return f.Index[0]
}

// luaWalk adds up what can be reached from a script, until it is more than most.
type luaWalk struct {
	bytes, most int64
	seen        map[unsafe.Pointer]struct{}
	todo        []lua.LValue // tables, functions and threads that have been seen and not been looked into
}

// reachable is what can be reached in an interpreter, in bytes; where that is more
// than most, so many or more.
func reachable(L *lua.LState, most int64) int64 {
	w := luaWalk{most: most, seen: map[unsafe.Pointer]struct{}{}}
	w.value(L)
	w.value(L.G.Global)
	w.value(L.G.Registry)
	for at := L.G.CurrentThread; at != nil; at = at.Parent {
		w.value(at)
	}
	for len(w.todo) > 0 && w.bytes <= w.most {
		v := w.todo[len(w.todo)-1]
		w.todo = w.todo[:len(w.todo)-1]
		switch v := v.(type) {
		case *lua.LTable:
			w.table(v)
		case *lua.LFunction:
			w.function(v)
		case *lua.LState:
			w.thread(v)
		}
	}
	return w.bytes
}

// first reports whether something is met for the first time.
func (w *luaWalk) first(p unsafe.Pointer) bool {
	if _, seen := w.seen[p]; seen || p == nil {
		return false
	}
	w.seen[p] = struct{}{}
	return true
}

func (w *luaWalk) value(v lua.LValue) {
	switch v := v.(type) {
	case lua.LString:
		w.text(string(v))
	case lua.LNumber:
		w.bytes += luaNumberSize
	case *lua.LTable:
		w.later(v, unsafe.Pointer(v))
	case *lua.LFunction:
		w.later(v, unsafe.Pointer(v))
	case *lua.LState:
		w.later(v, unsafe.Pointer(v))
	}
}

func (w *luaWalk) later(v lua.LValue, p unsafe.Pointer) {
	if w.first(p) {
		w.todo = append(w.todo, v)
	}
}

func (w *luaWalk) text(s string) {
	w.bytes += luaTextSize
	if len(s) < luaSharedText || w.first(unsafe.Pointer(unsafe.StringData(s))) {
		w.bytes += int64(len(s))
	}
}

func (w *luaWalk) table(t *lua.LTable) {
	v := reflect.ValueOf(t).Elem()
	keys := v.Field(luaKeysField)
	entries := v.Field(luaDictField).Len() + v.Field(luaStrDictField).Len()
	w.bytes += luaTableSize + int64(v.Field(luaArrayField).Cap())*luaValueSize + int64(entries+keys.Len())*luaEntrySize
	if t.Metatable != nil {
		w.value(t.Metatable)
	}
	t.ForEach(func(k, v lua.LValue) {
		w.value(k)
		w.value(v)
	})
	if keys.Len() > entries { // those of deleted entries stay
		for i := range keys.Len() {
			w.hidden(keys.Index(i).Elem())
		}
	}
}

func (w *luaWalk) function(f *lua.LFunction) {
	w.bytes += luaFunctionSize + int64(len(f.Upvalues))*luaUpvalueSize
	for _, u := range f.Upvalues {
		if u != nil {
			w.value(u.Value())
		}
	}
	if f.Env != nil {
		w.value(f.Env)
	}
	if f.Proto != nil {
		w.proto(f.Proto)
	}
}

func (w *luaWalk) proto(p *lua.FunctionProto) {
	if !w.first(unsafe.Pointer(p)) {
		return
	}
	w.bytes += luaFunctionSize + int64(len(p.Code))*luaCodeSize
	for _, k := range p.Constants {
		w.bytes += luaValueSize
		w.value(k)
	}
	for _, inner := range p.FunctionPrototypes {
		w.proto(inner)
	}
}

func (w *luaWalk) thread(L *lua.LState) {
	stack := reflect.ValueOf(L).Elem().Field(luaRegField).Elem()
	slots := stack.Field(luaSlotsField)
	w.bytes += luaThreadSize + int64(slots.Cap())*luaValueSize
	for i := range stack.Field(luaTopField).Int() {
		w.hidden(slots.Index(int(i)).Elem())
	}
}

// stackSize is how many values the stack of an interpreter has room for.
func stackSize(L *lua.LState) int {
	return reflect.ValueOf(L).Elem().Field(luaRegField).Elem().Field(luaSlotsField).Cap()
}

// hidden is value for one in a field that the interpreter does not show.
func (w *luaWalk) hidden(v reflect.Value) {
	switch {
	case !v.IsValid():
	case v.Kind() == reflect.String:
		w.text(v.String())
	case v.Kind() == reflect.Float64:
		w.bytes += luaNumberSize
	case v.Kind() != reflect.Pointer:
	case v.Type().Elem() == luaTableType:
		t := (*lua.LTable)(v.UnsafePointer())
		w.later(t, unsafe.Pointer(t))
	case v.Type() == reflect.TypeFor[*lua.LFunction]():
		f := (*lua.LFunction)(v.UnsafePointer())
		w.later(f, unsafe.Pointer(f))
	case v.Type() == reflect.TypeFor[*lua.LState]():
		l := (*lua.LState)(v.UnsafePointer())
		w.later(l, unsafe.Pointer(l))
	}
}

// protoSize is what a compiled script takes up.
func protoSize(p *lua.FunctionProto) int {
	w := luaWalk{seen: map[unsafe.Pointer]struct{}{}}
	w.proto(p)
	return int(w.bytes)
}

// luaPiece is a part of a text that a script gets. A small one is a copy: it
// would keep the whole text alive.
func luaPiece(text, piece string) lua.LString {
	if len(piece) < len(text)/2 {
		piece = strings.Clone(piece)
	}
	return lua.LString(piece)
}

// meterCoroutines has coroutines run under the same meter. Those of the
// interpreter would have a context of their own each, kept until the script ends.
func (vm *interpreter) meterCoroutines() {
	L := vm.state
	lib := L.G.Global.RawGetString(lua.CoroutineLibName).(*lua.LTable)
	meter := func(name string, thread func(made lua.LValue) *lua.LState) {
		create := lib.RawGetString(name).(*lua.LFunction).GFunction
		lib.RawSetString(name, L.NewFunction(func(L *lua.LState) int {
			L.CheckFunction(1)
			madeIn(L, luaThreadSize+L.Options.RegistrySize*luaValueSize)
			ctx := L.Context()
			if ctx == nil {
				return create(L)
			}
			L.RemoveContext()
			n := create(L)
			L.SetContext(ctx)
			thread(L.Get(-1)).SetContext(ctx)
			return n
		}))
	}
	meter("create", func(made lua.LValue) *lua.LState { return made.(*lua.LState) })
	meter("wrap", func(made lua.LValue) *lua.LState { return made.(*lua.LFunction).Upvalues[0].Value().(*lua.LState) })
}
