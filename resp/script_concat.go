package resp

import (
	"crypto/rand"
	"reflect"
	"strings"

	lua "github.com/yuin/gopher-lua"
	"github.com/yuin/gopher-lua/ast"
)

// The interpreter joins texts without a bound, and writes numbers otherwise than
// Lua does. So the compiler is given a call of luaConcat for each "..". It also
// compiles assignments wrongly: "s = (f(s))" where s is the last parameter, and
// "a, b = f(), g(a)", where a changes before g is called. There it is given one
// call on the right side, of luaFirst or luaAll. All are calls of a text that no
// script knows, in whose place the function is put afterwards.

var (
	concatFunction = newHidden(luaConcat)
	firstFunction  = newHidden(luaFirst)
	allFunction    = newHidden(luaAll)
)

// hiddenFunction is one that scripts call without knowing.
type hiddenFunction struct {
	name     string
	function *lua.LFunction
}

func newHidden(f lua.LGFunction) hiddenFunction {
	return hiddenFunction{rand.Text(), &lua.LFunction{IsG: true, GFunction: f}}
}

// call is a call of the function in the place of an expression.
func (f hiddenFunction) call(at ast.Expr, args ...ast.Expr) *ast.FuncCallExpr {
	name := &ast.StringExpr{Value: f.name}
	call := &ast.FuncCallExpr{Func: name, Args: args}
	for _, x := range []ast.Expr{name, call} {
		x.SetLine(at.Line())
		x.SetLastLine(at.LastLine())
	}
	return call
}

// callHidden puts the calls into a chunk.
func callHidden(v reflect.Value) {
	switch v.Kind() {
	case reflect.Interface:
		if v.IsNil() {
			return
		}
		switch e := v.Interface().(type) {
		case *ast.StringConcatOpExpr:
			v.Set(reflect.ValueOf(concatCall(e)))
		case *ast.AssignStmt:
			assignByCall(e)
		}
		callHidden(v.Elem())
	case reflect.Pointer:
		if !v.IsNil() {
			callHidden(v.Elem())
		}
	case reflect.Slice:
		for i := range v.Len() {
			callHidden(v.Index(i))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			callHidden(v.Field(i))
		}
	}
}

// assignByCall has the right side of an assignment evaluated before anything is
// assigned.
func assignByCall(e *ast.AssignStmt) {
	if len(e.Rhs) > 1 {
		e.Rhs = []ast.Expr{allFunction.call(e.Rhs[0], e.Rhs...)}
		return
	}
	if call, ok := e.Rhs[0].(*ast.FuncCallExpr); ok && call.AdjustRet {
		call.AdjustRet = false
		e.Rhs[0] = firstFunction.call(call, call)
	}
}

// concatCall is a call for a row of "a .. b .. c".
func concatCall(e *ast.StringConcatOpExpr) *ast.FuncCallExpr {
	args := []ast.Expr{oneValue(e.Lhs)}
	rest := e.Rhs
	for {
		more, ok := rest.(*ast.StringConcatOpExpr)
		if !ok {
			return concatFunction.call(e, append(args, oneValue(rest))...)
		}
		args = append(args, oneValue(more.Lhs))
		rest = more.Rhs
	}
}

// oneValue has an expression of many values stand for the first of them.
func oneValue(e ast.Expr) ast.Expr {
	switch e := e.(type) {
	case *ast.FuncCallExpr:
		e.AdjustRet = true
	case *ast.Comma3Expr:
		e.AdjustRet = true
	}
	return e
}

// setHidden puts the functions in the place of their names.
func setHidden(p *lua.FunctionProto) {
	for i, k := range p.Constants {
		for _, f := range []hiddenFunction{concatFunction, firstFunction, allFunction} {
			if k == lua.LString(f.name) {
				p.Constants[i] = f.function
			}
		}
	}
	for _, inner := range p.FunctionPrototypes {
		setHidden(inner)
	}
}

// luaFirst is its first argument.
func luaFirst(L *lua.LState) int {
	L.Push(L.Get(1))
	return 1
}

// luaAll is all its arguments.
func luaAll(L *lua.LState) int { return L.GetTop() }

// luaConcat joins its arguments, from the last to the first.
func luaConcat(L *lua.LState) int {
	right := L.Get(-1)
	for i := L.GetTop() - 1; i > 0; {
		if !lua.LVCanConvToString(right) || !lua.LVCanConvToString(L.Get(i)) {
			right = concatMeta(L, L.Get(i), right)
			i--
			continue
		}
		from := i
		for from > 1 && lua.LVCanConvToString(L.Get(from-1)) {
			from--
		}
		right = lua.LString(joinTexts(L, from, i, right))
		i = from - 1
	}
	L.Push(right)
	return 1
}

// joinTexts joins arguments and what comes behind them.
func joinTexts(L *lua.LState, from, to int, last lua.LValue) string {
	texts := make([]string, 0, to-from+2)
	size := 0
	for i := from; i <= to; i++ {
		texts = append(texts, textOf(L.Get(i)))
		size += len(texts[i-from])
	}
	texts = append(texts, textOf(last))
	if size += len(texts[len(texts)-1]); size > luaStringMax {
		L.RaiseError("resulting string too large")
	}
	madeIn(L, size)
	return strings.Join(texts, "")
}

// textOf is a text or a number as a text.
func textOf(v lua.LValue) string {
	if n, ok := v.(lua.LNumber); ok {
		return luaText(float64(n))
	}
	return lua.LVAsString(v)
}

// concatMeta joins two values with the function that one of them brings.
func concatMeta(L *lua.LState, left, right lua.LValue) lua.LValue {
	f := L.GetMetaField(left, "__concat")
	if f == lua.LNil {
		f = L.GetMetaField(right, "__concat")
	}
	if f.Type() != lua.LTFunction {
		bad := left
		if lua.LVCanConvToString(left) {
			bad = right
		}
		L.RaiseError("attempt to concatenate a %s value", bad.Type().String())
	}
	L.Push(f)
	L.Push(left)
	L.Push(right)
	L.Call(2, 1)
	v := L.Get(-1)
	L.Pop(1)
	return v
}
