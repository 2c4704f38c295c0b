package resp

import (
	"errors"
	"fmt"
	"reflect"
	"strings"

	lua "github.com/yuin/gopher-lua"
	"github.com/yuin/gopher-lua/ast"
	"github.com/yuin/gopher-lua/parse"
)

// The compiler goes through what it has parsed by calling itself. Text that is
// nested deep enough would use up the stack of its goroutine, which ends the
// process and cannot be recovered from: so how deep it is, is looked at first.
const (
	luaTextMax   = 1 << 20 // bytes of a script; a longer one is refused
	luaNestedMax = 1000    // parts of a script within each other; one with more is refused, as Lua does at 200 in most places
)

// compileLua compiles a text. name stands in its errors.
func compileLua(text, name string) (*lua.FunctionProto, error) {
	if len(text) > luaTextMax {
		return nil, fmt.Errorf("%s: a script of %d bytes, expected at most %d", name, len(text), luaTextMax)
	}
	chunk, err := parse.Parse(strings.NewReader(text), name)
	if err != nil {
		return nil, err
	}
	if len(text) > luaNestedMax && !nestedWithin(chunk, luaNestedMax) {
		return nil, errors.New(name + ":1: chunk has too many syntax levels")
	}
	callHidden(reflect.ValueOf(chunk))
	proto, err := lua.Compile(chunk, name)
	if err == nil {
		setHidden(proto)
	}
	return proto, err
}

// nestedWithin reports whether no part of a chunk lies within more than most
// others.
func nestedWithin(chunk []ast.Stmt, most int) bool {
	type part struct {
		value reflect.Value
		depth int
	}
	todo := []part{{reflect.ValueOf(chunk), 0}}
	for len(todo) > 0 {
		p := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		switch v := p.value; v.Kind() {
		case reflect.Interface, reflect.Pointer:
			if !v.IsNil() {
				todo = append(todo, part{v.Elem(), p.depth})
			}
		case reflect.Slice:
			for i := range v.Len() {
				todo = append(todo, part{v.Index(i), p.depth})
			}
		case reflect.Struct:
			if p.depth > most {
				return false
			}
			for i := range v.NumField() {
				todo = append(todo, part{v.Field(i), p.depth + 1})
			}
		}
	}
	return true
}

// openLoad replaces loadstring and load: what they compile is bounded as a
// script is, and sees the same globals.
func (vm *interpreter) openLoad() {
	L := vm.state
	L.G.Global.RawSetString("loadstring", L.NewFunction(func(L *lua.LState) int {
		return vm.load(L, luaStringArg(L, 1), L.OptString(2, "<string>"))
	}))
	L.G.Global.RawSetString("load", L.NewFunction(func(L *lua.LState) int {
		read, name := L.CheckFunction(1), L.OptString(2, "?")
		var text strings.Builder
		for text.Len() <= luaTextMax {
			L.Push(read)
			L.Call(0, 1)
			piece := L.Get(-1)
			L.Pop(1)
			if piece != lua.LNil && !lua.LVCanConvToString(piece) {
				return luaNoFunction(L, "reader function must return a string")
			}
			if piece == lua.LNil || lua.LVAsString(piece) == "" {
				break
			}
			text.WriteString(lua.LVAsString(piece))
		}
		return vm.load(L, text.String(), name)
	}))
}

// load pushes the function of a text, or nil and what is wrong with it.
func (vm *interpreter) load(L *lua.LState, text, name string) int {
	proto, err := compileLua(text, name)
	if err != nil {
		return luaNoFunction(L, err.Error())
	}
	f := L.NewFunctionFromProto(proto)
	f.Env = vm.env
	L.Push(f)
	return 1
}

func luaNoFunction(L *lua.LState, why string) int {
	L.Push(lua.LNil)
	L.Push(lua.LString(why))
	return 2
}
