package slotmesh

import (
	"fmt"
	"reflect"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// copier copies values and all that they point to, unexported fields too. What
// is reached twice is copied once, and a pointer into a struct becomes one into
// its copy. A func is not copied: the copies share it.
type copier struct {
	copies map[copied]unsafe.Pointer
	flat   map[reflect.Type]bool // of which an assignment is a copy
}

type copied struct {
	at  unsafe.Pointer
	typ reflect.Type
}

func newCopier() *copier {
	return &copier{copies: map[copied]unsafe.Pointer{}, flat: map[reflect.Type]bool{}}
}

// instead makes pointers to from become pointers to to, which is left as it is.
func (c *copier) instead(from, to any) {
	f, t := reflect.ValueOf(from), reflect.ValueOf(to)
	c.copies[copied{f.UnsafePointer(), f.Type().Elem()}] = t.UnsafePointer()
}

// deepCopy makes to a copy of from.
func deepCopy[T any](c *copier, to, from *T) {
	t, f := reflect.ValueOf(to), reflect.ValueOf(from)
	c.note(f.UnsafePointer(), t.UnsafePointer(), f.Type().Elem())
	c.copy(t.Elem(), f.Elem())
}

// note remembers where the copy of a value is, and of the structs within.
func (c *copier) note(from, to unsafe.Pointer, typ reflect.Type) {
	c.copies[copied{from, typ}] = to
	if typ.Kind() != reflect.Struct {
		return
	}
	for i := range typ.NumField() {
		if f := typ.Field(i); f.Type.Kind() == reflect.Struct {
			c.note(unsafe.Add(from, f.Offset), unsafe.Add(to, f.Offset), f.Type)
		}
	}
}

// copy needs values that have an address.
func (c *copier) copy(to, from reflect.Value) {
	typ := from.Type()
	if c.isFlat(typ) {
		to.Set(from)
		return
	}
	switch typ.Kind() {
	case reflect.Struct:
		for i := range typ.NumField() {
			c.copy(fieldOf(to, i), fieldOf(from, i))
		}
	case reflect.Array:
		for i := range typ.Len() {
			c.copy(to.Index(i), from.Index(i))
		}
	case reflect.Func:
		to.Set(from)
	case reflect.Pointer, reflect.Slice, reflect.Map, reflect.Interface:
		if from.IsNil() {
			to.SetZero()
			return
		}
		to.Set(c.copyOf(from))
	default:
		panic(fmt.Sprintf("a %v cannot be copied", typ))
	}
}

// copyOf is the copy of a pointer, slice, map or interface that is not nil.
func (c *copier) copyOf(from reflect.Value) reflect.Value {
	typ := from.Type()
	switch typ.Kind() {
	case reflect.Pointer:
		if at, known := c.copies[copied{from.UnsafePointer(), typ.Elem()}]; known {
			return reflect.NewAt(typ.Elem(), at)
		}
		to := reflect.New(typ.Elem())
		c.note(from.UnsafePointer(), to.UnsafePointer(), typ.Elem())
		c.copy(to.Elem(), from.Elem())
		return to
	case reflect.Slice:
		to := reflect.MakeSlice(typ, from.Len(), from.Len())
		if c.isFlat(typ.Elem()) {
			reflect.Copy(to, from)
			return to
		}
		for i := range from.Len() {
			c.copy(to.Index(i), from.Index(i))
		}
		return to
	case reflect.Map:
		to := reflect.MakeMapWithSize(typ, from.Len())
		for it := from.MapRange(); it.Next(); {
			to.SetMapIndex(it.Key(), c.copyValue(it.Value()))
		}
		return to
	default:
		return c.copyValue(from.Elem())
	}
}

// copyValue copies a value that has no address.
func (c *copier) copyValue(v reflect.Value) reflect.Value {
	from, to := reflect.New(v.Type()).Elem(), reflect.New(v.Type()).Elem()
	from.Set(v)
	c.copy(to, from)
	return to
}

// fieldOf is a field that may be set, whatever its name.
func fieldOf(v reflect.Value, i int) reflect.Value {
	f := v.Field(i)
	return reflect.NewAt(f.Type(), unsafe.Pointer(f.UnsafeAddr())).Elem()
}

func (c *copier) isFlat(typ reflect.Type) bool {
	flat, known := c.flat[typ]
	if known {
		return flat
	}
	switch typ.Kind() {
	case reflect.Struct:
		flat = true
		for i := range typ.NumField() {
			flat = flat && c.isFlat(typ.Field(i).Type)
		}
	case reflect.Array:
		flat = c.isFlat(typ.Elem())
	case reflect.Pointer, reflect.Slice, reflect.Map, reflect.Interface, reflect.Func, reflect.Chan, reflect.UnsafePointer:
	default:
		flat = true
	}
	c.flat[typ] = flat
	return flat
}

// A copy of a world goes on as the world itself does, and leaves it as it is.
func TestACopyOfAClusterIsAClusterOfItsOwn(t *testing.T) {
	t.Parallel()
	formed := newRules(t)
	formed.form(2, 4)
	first, second := newRules(t), newRules(t)
	first.copyOf(formed)
	live := func(w *ruleWorld) string {
		var said []string
		w.seen = func(m ruleMail) {
			said = append(said, fmt.Sprintf("%v %s>%s %s %+v", w.now, m.from.name, m.dest.addr, saying(m.msg), m.msg))
		}
		w.run(ruleNT)
		a, c := w.nodes[0], w.nodes[2]
		require.Same(t, a.core.self, a.core.peers.get(a.core.id))
		require.Same(t, w, a.w)
		a.delSlots("5-7")
		a.freezes(false)
		w.run(ruleNT)
		c.addSlots("5")
		w.run(ruleNT)
		w.nodes[1].restart()
		c.forget(w.nodes[3].core.id, false)
		w.run(5 * ruleNT)
		require.Equal(t, "c", a.owns(5))
		require.Equal(t, "-", a.owns(6))
		said = append(said, w.dump())
		for _, n := range w.nodes {
			said = append(said, fmt.Sprintf("%x %x %v %d", n.core.table.sum, n.core.peers.sum, n.events, len(n.disk)))
		}
		return fmt.Sprint(said)
	}
	of := live(first)
	second.copyOf(formed)
	require.Equal(t, of, live(second), "what has become of the first copy is its own")
	require.Equal(t, of, live(formed), "the copies are like what they are of")
}
