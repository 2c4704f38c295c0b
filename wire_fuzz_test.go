package slotmesh

import (
	"bytes"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"
)

// Whatever the bytes are: no panic, memory within its bound, and what is decoded
// has these bytes as its only encoding.
func FuzzDecodeFrame(f *testing.F) {
	for k := range kinds {
		for seed := range uint64(3) {
			f.Add(byte(k), payloadOf(f, newFiller(seed, 2).message(k)))
		}
		f.Add(byte(k), []byte("\xdd\xff\xff\xff\xff"))
		f.Add(byte(k), bytes.Repeat([]byte{0x91}, 1000))
	}
	f.Add(byte(msgForwarded), []byte("\x92\x01\x93\x01\xdb\x00\x01\x00\x00"+strings.Repeat("x", 1<<16)+"\xc3"))
	f.Fuzz(func(t *testing.T, kind byte, payload []byte) {
		was := bytes.Clone(payload)
		m, err := decodeBounded(t, msgKind(kind), payload)
		if !bytes.Equal(payload, was) {
			t.Fatal("the payload was changed")
		}
		if err != nil {
			wantMalformed(t, err, "%v", msgKind(kind))
			return
		}
		frame, err := appendFrame(nil, m)
		if err != nil {
			t.Fatalf("decoded %+v, which cannot be encoded: %v", m, err)
		}
		if !bytes.Equal(frame[frameHeader:], payload) {
			t.Fatalf("decoded %+v from %x, encoded %x", m, payload, frame[frameHeader:])
		}
		again, err := decodeFrame(msgKind(kind), frame[frameHeader:])
		if err != nil || !reflect.DeepEqual(again, m) {
			t.Fatalf("decoded %+v, then %+v, error %v", m, again, err)
		}
	})
}

// The same for values of the node's file.
func FuzzDecodeValue(f *testing.F) {
	for seed := range uint64(5) {
		var v votes
		newFiller(seed, 2).fill(reflect.ValueOf(&v).Elem())
		b, err := encodeValue(&v)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, v := range []any{new(votes), new(sender), new([]record), new([]string), new([]byte), new(string), new(int32), new([3][]bool)} {
			most := 4*uint64(len(b)) + 64<<10
			var err error
			if n := allocated(most, func() { err = decodeValue(b, v) }); n > most {
				t.Errorf("%T: %d bytes allocated for %d, want at most %d", v, n, len(b), most)
			}
			if err != nil {
				continue
			}
			if again, err := encodeValue(v); err != nil || !bytes.Equal(again, b) {
				t.Errorf("%T: decoded from %x, encoded %x, error %v", v, b, again, err)
			}
		}
	})
}

// cutReader returns a stream in pieces of the sizes that cuts tells, over and
// over.
type cutReader struct {
	stream []byte
	cuts   []byte
	next   int
}

func (r *cutReader) Read(b []byte) (int, error) {
	if len(r.stream) == 0 {
		return 0, io.EOF
	}
	piece := len(r.stream)
	if len(r.cuts) > 0 {
		piece = min(piece, int(r.cuts[r.next%len(r.cuts)])+1)
		r.next++
	}
	n := copy(b, r.stream[:piece])
	r.stream = r.stream[n:]
	return n, nil
}

type readResult struct {
	kind    byte
	payload string
	err     string
}

// readAll reads frames until one fails. It keeps the payloads only for a caller
// who compares them.
func readAll(r io.Reader, keep bool) (results []readResult) {
	var buf []byte
	for {
		kind, payload, err := readFrame(r, busLimits, buf)
		if err != nil {
			return append(results, readResult{err: err.Error()})
		}
		if keep {
			results = append(results, readResult{kind: kind, payload: string(payload)})
		}
		buf = payload
	}
}

// However a stream is cut, the same frames come out of it, and memory grows with
// what comes in.
func FuzzReadFrame(f *testing.F) {
	var stream []byte
	for k := range kinds {
		stream, _ = appendFrame(stream, newFiller(1, 2).message(k))
		f.Add(frameOf(byte(k), frameHeader), []byte{})
	}
	f.Add(stream, []byte{0})
	f.Add(stream, []byte{3, 0, 7, 200})
	f.Add(stream[:len(stream)-1], []byte{4})
	f.Add(append(frameOf(firstBulkKind, 70000), stream...), []byte{255})
	f.Add([]byte("GET / HTTP/1.1\r\nHost: example.com\r\n\r\n"), []byte{9})
	f.Add([]byte("\x00\x3f\xff\xff\x11"), []byte{})
	f.Fuzz(func(t *testing.T, stream, cuts []byte) {
		whole := readAll(&cutReader{stream: stream}, true)
		if cut := readAll(&cutReader{stream: stream, cuts: cuts}, true); !reflect.DeepEqual(cut, whole) {
			t.Fatalf("whole: %q\ncut by %v: %q", whole, cuts, cut)
		}
		most := 4*uint64(len(stream)) + 64<<10
		if n := allocated(most, func() { readAll(&cutReader{stream: stream, cuts: cuts}, false) }); n > most {
			t.Errorf("%d bytes allocated for a stream of %d, want at most %d", n, len(stream), most)
		}
	})
}

func TestCutReaderGivesAllOfItsStream(t *testing.T) {
	b, err := io.ReadAll(&cutReader{stream: []byte("abcdefgh"), cuts: []byte{0, 2}})
	if string(b) != "abcdefgh" || errors.Is(err, io.EOF) {
		t.Errorf("%q, error %v", b, err)
	}
}
