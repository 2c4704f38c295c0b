package slotmesh

import (
	"bytes"
	"fmt"
	"reflect"
	"strings"

	"github.com/vmihailenco/msgpack/v5"
)

// How values become bytes, for messages and for the node's own file: msgpack. A
// struct is an array of all its fields, a slice an array, [N]byte and []byte are
// bin; numbers and lengths have their shortest form; nil stands nowhere. So a
// value has exactly one encoding, but for empty slices: they come back as nil.
//
// A msgpack decoder believes the counts that it reads: five bytes make it
// allocate gigabytes, some megabytes of nested arrays overrun the stack, and
// neither can be recovered from. So bytes are first compared with the plan of
// the Go type that they are meant for, and decoded only when nothing in them
// can surprise the decoder.
//
// Nor is msgpack left to walk over Go values: it drops unexported fields in
// silence, takes a type that gets a MarshalText for text, and allocates a slice
// twice: for an UPDATE of 1,000 runs, 9.4 KB, it takes 58 KB and this walk 17
// (go test -run '^$' -bench Decode/UPDATE). It writes and reads the numbers,
// strings and lengths.

// encodeValue encodes a value, or what a pointer points at. It fails only for a
// type without a plan.
func encodeValue(v any) ([]byte, error) {
	w := newValueWriter()
	if rv := reflect.ValueOf(v); rv.Kind() != reflect.Pointer {
		p := reflect.New(rv.Type()) // the bytes of an array are at hand in a variable only
		p.Elem().Set(rv)
		v = p.Interface()
	}
	if err := w.encode(v); err != nil {
		return nil, fmt.Errorf("slotmesh: %w", err)
	}
	return w.out, nil
}

// decodeValue sets what v points at to a value that encodeValue has encoded; it
// shares no memory with b. At most four times the length of b and 64 KB are
// allocated. On an error, a *malformed, what v points at is as it was.
func decodeValue(b []byte, v any) error {
	if err := newValueReader().decode(b, v); err != nil {
		return err
	}
	return nil // not the nil pointer in err
}

// malformed is the error for bytes that no node of this version writes. For a
// connection it tells a peer that misbehaves from a network that broke.
type malformed struct {
	What string // message or Go type
	Path string // of the field; "": the whole
	Text string // what was found, and what was expected
}

func (e *malformed) Error() string {
	s := "slotmesh: " + e.What
	if e.Path != "" {
		s += ": " + strings.TrimPrefix(e.Path, ".")
	}
	return s + ": " + e.Text
}

func wrong(format string, args ...any) *malformed {
	return &malformed{Text: fmt.Sprintf(format, args...)}
}

// valueWriter appends encodings to out. A link keeps one, which saves heartbeats
// the allocations. It is used by one goroutine at a time, as is a valueReader.
type valueWriter struct {
	enc  *msgpack.Encoder // writes here
	out  []byte
	beat wireBeat
}

func newValueWriter() *valueWriter {
	w := new(valueWriter)
	w.enc = msgpack.NewEncoder(w)
	return w
}

func (w *valueWriter) Write(b []byte) (int, error) {
	w.out = append(w.out, b...)
	return len(b), nil
}

func (w *valueWriter) WriteByte(b byte) error {
	w.out = append(w.out, b)
	return nil
}

// encode appends what v points at.
func (w *valueWriter) encode(v any) error {
	rv := reflect.ValueOf(v).Elem()
	p, err := planOf(rv.Type())
	if err == nil {
		w.value(p, rv)
	}
	return err
}

// value appends v. The errors of the encoder are those of the writer under it,
// and appending has none.
func (w *valueWriter) value(p *plan, v reflect.Value) {
	switch p.kind {
	case planBool:
		w.enc.EncodeBool(v.Bool())
	case planUint:
		w.enc.EncodeUint(v.Uint())
	case planInt:
		w.enc.EncodeInt(v.Int())
	case planString:
		w.enc.EncodeString(v.String())
	case planBytes, planByteArray:
		w.enc.EncodeBytesLen(v.Len())
		w.out = append(w.out, v.Bytes()...)
	case planStruct:
		w.enc.EncodeArrayLen(p.count)
		for i := range p.fields {
			w.value(p.fields[i].plan, v.Field(i))
		}
	default:
		w.enc.EncodeArrayLen(v.Len())
		for i := range v.Len() {
			w.value(p.elem, v.Index(i))
		}
	}
}

const shortText = 256

// valueReader fills values from encodings.
type valueReader struct {
	dec  *msgpack.Decoder // reads from in
	in   bytes.Reader
	text [shortText]byte // where a short string is before it is one
	beat wireBeat
}

func newValueReader() *valueReader {
	r := new(valueReader)
	r.dec = msgpack.NewDecoder(&r.in)
	return r
}

// decode sets what v points at.
func (r *valueReader) decode(b []byte, v any) *malformed {
	rv := reflect.ValueOf(v).Elem()
	p, err := planOf(rv.Type())
	if err != nil {
		return &malformed{What: rv.Type().String(), Text: err.Error()}
	}
	if bad := p.check(b); bad != nil {
		bad.What = rv.Type().String()
		return bad
	}
	r.in.Reset(b)
	if err := r.value(p, rv); err != nil {
		// check has a hole. A peer can show it, so it must not end this process.
		return &malformed{What: rv.Type().String(), Text: "checked, but not decoded: " + err.Error()}
	}
	return nil
}

func (r *valueReader) value(p *plan, v reflect.Value) error {
	switch p.kind {
	case planBool:
		b, err := r.dec.DecodeBool()
		v.SetBool(b)
		return err
	case planUint:
		n, err := r.dec.DecodeUint64()
		v.SetUint(n)
		return err
	case planInt:
		n, err := r.dec.DecodeInt64()
		v.SetInt(n)
		return err
	case planString:
		s, err := r.string()
		v.SetString(s)
		return err
	case planBytes, planByteArray:
		n, err := r.dec.DecodeBytesLen()
		if err != nil {
			return err
		}
		if p.kind == planBytes {
			resize(v, n)
		}
		return r.dec.ReadFull(v.Bytes())
	case planStruct:
		if _, err := r.dec.DecodeArrayLen(); err != nil {
			return err
		}
		for i := range p.fields {
			if err := r.value(p.fields[i].plan, v.Field(i)); err != nil {
				return err
			}
		}
		return nil
	default:
		n, err := r.dec.DecodeArrayLen()
		if err != nil {
			return err
		}
		if p.kind == planSlice {
			resize(v, n)
		}
		for i := range n {
			if err := r.value(p.elem, v.Index(i)); err != nil {
				return err
			}
		}
		return nil
	}
}

// resize makes v a new slice of n; nil if n is 0.
func resize(v reflect.Value, n int) {
	v.SetZero()
	v.Grow(n)
	v.SetLen(n)
}

func (r *valueReader) string() (string, error) {
	n, err := r.dec.DecodeBytesLen()
	if err != nil {
		return "", err
	}
	b := r.text[:]
	if n > shortText {
		b = make([]byte, n)
	}
	err = r.dec.ReadFull(b[:n])
	return string(b[:n]), err
}
