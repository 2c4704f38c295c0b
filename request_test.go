package slotmesh

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/slotmesh/slotmesh/store"
)

// bulkCodec is one kind of bulk frame: decode reads a payload, and encode writes
// what it has read.
type bulkCodec struct {
	name   string
	decode func(payload []byte) (any, error)
	encode func(v any) []byte
	seeds  []any
}

func bulkCodecs() []bulkCodec {
	text := strings.Repeat("x", 300)
	return []bulkCodec{
		{"request",
			func(b []byte) (any, error) { return decodeRequest(b) },
			func(v any) []byte { return v.(*request).append(nil) },
			[]any{
				&request{id: 1, op: opGet, cluster: 1<<63 + 5, slot: 5474, args: [][]byte{[]byte("key")}, shared: true},
				&request{id: 1 << 60, op: opDo, slot: NumSlots - 1, name: "add", args: [][]byte{[]byte("k"), {}, []byte(text)}, shared: true},
				&request{op: opHandOff, shared: true},
				&request{op: opWait, acks: requestAcksMax, shared: true},
			}},
		{"response",
			func(b []byte) (any, error) { p, err := decodeResponse(b); return &p, err },
			func(v any) []byte { return v.(*response).append(nil) },
			[]any{
				&response{id: 7, value: []byte("value"), wrote: logPoint{1<<41 + 1, 1 << 50}},
				&response{id: 1, status: statusMoved, outcome: NotExecuted, node: NodeID{1, 2}, addr: "127.0.0.1:7000", value: []byte{}},
				&response{id: 2, status: statusCommandError, outcome: Unknown, code: "WRONGTYPE", text: text, value: []byte{}},
			}},
		{"data begin",
			func(b []byte) (any, error) { return decodeDataBegin(b) },
			func(v any) []byte { return v.(*dataBegin).append(nil) },
			[]any{&dataBegin{job: 1}, &dataBegin{1 << 40, jobOrder{300, 1 << 50}, setOf(0, 1, 2, 7, NumSlots-1)}}},
		{"piece",
			func(b []byte) (any, error) { return decodePiece(b) },
			func(v any) []byte { p := v.(*dataPiece); return appendPiece(nil, p.job, p.slot, p.ops) },
			[]any{
				&dataPiece{job: 1, slot: 1, ops: []store.Op{}},
				&dataPiece{job: 9, slot: 16000, ops: []store.Op{
					{Code: store.OpPut, Kind: 3, Key: "k", ExpireAt: 1 << 40},
					{Code: store.OpPut, Key: text, Field: "\x00", Value: []byte("v")},
					{Code: store.OpDelete, Key: "k", Field: "f"},
					{Code: store.OpDeleteKey, Key: text},
				}},
			}},
		{"data end",
			func(b []byte) (any, error) { return decodeDataEnd(b) },
			func(v any) []byte { return v.(*dataEnd).append(nil) },
			[]any{&dataEnd{job: 1, position: 2, sums: []slotSum{}}, &dataEnd{job: 1, position: 300, sums: []slotSum{{5, 6, 7}, {16383, 1 << 50, 1 << 63}}}}},
		{"data done",
			func(b []byte) (any, error) { return decodeDataDone(b) },
			func(v any) []byte { return v.(*dataDone).append(nil) },
			[]any{&dataDone{}, &dataDone{job: 4, position: 1 << 33, text: text}}},
	}
}

func setOf(slots ...Slot) (s SlotSet) {
	for _, n := range slots {
		s.Add(n)
	}
	return s
}

// decodeBulk decodes and fails the test if that takes too much memory.
func decodeBulk(t testing.TB, c bulkCodec, payload []byte) (v any, err error) {
	t.Helper()
	most := 4*uint64(len(payload)) + 64<<10
	if n := allocated(most, func() { v, err = c.decode(payload) }); n > most {
		t.Errorf("%s: %d bytes allocated for a payload of %d, want at most %d", c.name, n, len(payload), most)
	}
	return v, err
}

func TestBulkFramesComeBackAsTheyWereSent(t *testing.T) {
	for _, c := range bulkCodecs() {
		for i, want := range c.seeds {
			payload := c.encode(want)
			got, err := decodeBulk(t, c, payload)
			require.NoError(t, err, "%s %d", c.name, i)
			require.Equal(t, want, got, "%s %d", c.name, i)
			for cut := range payload {
				_, err := decodeBulk(t, c, payload[:cut])
				require.Error(t, err, "%s %d, cut at byte %d of %d", c.name, i, cut, len(payload))
			}
			_, err = decodeBulk(t, c, append(bytes.Clone(payload), 0))
			require.Error(t, err, "%s %d with a byte too many", c.name, i)
		}
	}
}

func TestBulkFramesThatNoNodeWritesAreRefused(t *testing.T) {
	changed := func(change func(*request)) []byte {
		q := &request{id: 1, op: opGet, slot: 1, args: [][]byte{[]byte("key")}}
		change(q)
		return q.append(nil)
	}
	byName := map[string]bulkCodec{}
	for _, c := range bulkCodecs() {
		byName[c.name] = c
	}
	for _, c := range []struct {
		what, kind string
		payload    []byte
	}{
		{"an unknown kind of request", "request", changed(func(q *request) { q.op = requestOp(len(opNames)) + 1 })},
		{"a request of kind 0", "request", changed(func(q *request) { q.op = 0 })},
		{"a slot out of range", "request", changed(func(q *request) { q.slot = NumSlots })},
		{"a number longer than it needs to be", "request", append([]byte{0x81, 0x00}, changed(func(*request) {})[1:]...)},
		{"a number of ten bytes that overflows", "data done", append(bytes.Repeat([]byte{0xff}, 10), 0, 0)},
		{"padding that is not zero", "request", append(changed(func(q *request) { q.args[0] = []byte("k") })[:9], "\x01\x00"...)},
		{"more arguments than bytes", "request", []byte{1, byte(opGet), 1, 0, 0xff, 0xff, 3}},
		{"more arguments than any request has", "request", changed(func(q *request) { q.args = make([][]byte, requestArgsMax+1) })},
		{"a text longer than the frame", "request", []byte{1, byte(opGet), 1, 0xff, 0xff, 0xff, 0xff, 0x0f}},
		{"an unknown status", "response", (&response{status: numStatuses}).append(nil)},
		{"an unknown outcome", "response", (&response{outcome: Unknown + 1}).append(nil)},
		{"slots that are no slots", "data begin", appendText([]byte{1}, "0-16384")},
		{"slots as no node prints them", "data begin", appendText([]byte{1}, "2 1")},
		{"an op of no code", "piece", appendPiece(nil, 1, 1, []store.Op{{Key: "k"}})},
		{"more ops than a piece has", "piece", appendPiece(nil, 1, 1, make([]store.Op, pieceOpsMax+1))},
		{"more sums than slots", "data end", (&dataEnd{sums: make([]slotSum, NumSlots+1)}).append(nil)},
	} {
		_, err := decodeBulk(t, byName[c.kind], c.payload)
		require.Error(t, err, "%s", c.what)
	}
}

// What fills memory most for its size: many small arguments, many small ops.
func TestBulkFramesOfManySmallPartsStayWithinTheirMemory(t *testing.T) {
	args := make([][]byte, requestArgsMax)
	ops := make([]store.Op, pieceOpsMax)
	for i := range ops {
		ops[i] = store.Op{Code: store.OpPut, Key: fmt.Sprint(i), Field: "f", Value: []byte("v")}
	}
	sums := make([]slotSum, NumSlots)
	for _, c := range bulkCodecs() {
		var v any
		switch c.name {
		case "request":
			v = &request{op: opDo, args: args}
		case "piece":
			v = &dataPiece{ops: ops}
		case "data end":
			v = &dataEnd{sums: sums}
		default:
			continue
		}
		_, err := decodeBulk(t, c, c.encode(v))
		require.NoError(t, err, c.name)
	}
}

// An error that crosses the bus still matches what it matched.
func TestErrorsKeepTheirMeaningOverTheBus(t *testing.T) {
	for _, err := range statusErrors {
		if err == nil {
			continue
		}
		for _, sent := range []error{err, fmt.Errorf("slot 5: %w", err)} {
			var r response
			r.failed(sent, true)
			got := overTheBus(t, &r).error(5)
			require.ErrorIs(t, got, err)
			require.Equal(t, sent.Error(), got.Error())
		}
	}
	var r response
	r.failed(&OpError{Err: &MovedError{Slot: 5, Node: NodeID{9}, Addr: "a:1"}}, false)
	require.Equal(t, &MovedError{Slot: 5, Node: NodeID{9}, Addr: "a:1"}, overTheBus(t, &r).error(5))
	require.Equal(t, NotExecuted, overTheBus(t, &r).outcome)
	r = response{}
	r.failed(&CommandError{Code: "ERR", Text: "no"}, true)
	require.Equal(t, &CommandError{Code: "ERR", Text: "no"}, overTheBus(t, &r).error(5))
	r = response{}
	r.failed(errors.New("of the application"), true)
	require.EqualError(t, overTheBus(t, &r).error(5), "of the application")
}

func overTheBus(t *testing.T, r *response) *response {
	t.Helper()
	p, err := decodeResponse(r.append(nil))
	require.NoError(t, err)
	return &p
}

// Whatever the bytes are: no panic, memory within its bound, and what is decoded
// has these bytes as its only encoding.
func FuzzDecodeBulk(f *testing.F) {
	codecs := bulkCodecs()
	rng := rand.New(rand.NewPCG(1, 1))
	for i, c := range codecs {
		for _, v := range c.seeds {
			payload := c.encode(v)
			f.Add(byte(i), payload)
			f.Add(byte(i), payload[:rng.IntN(len(payload))])
		}
	}
	f.Fuzz(func(t *testing.T, kind byte, payload []byte) {
		c := codecs[int(kind)%len(codecs)]
		v, err := decodeBulk(t, c, payload)
		if err != nil {
			return
		}
		if again := c.encode(v); !bytes.Equal(again, payload) {
			t.Fatalf("%s: decoded %+v from %x, encoded %x", c.name, v, payload, again)
		}
		if again, err := c.decode(payload); err != nil || !reflect.DeepEqual(again, v) {
			t.Fatalf("%s: decoded %+v, then %+v, error %v", c.name, v, again, err)
		}
	})
}
