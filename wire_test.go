package slotmesh

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/slotmesh/slotmesh/internal/racing"
	"github.com/stretchr/testify/require"
	"github.com/vmihailenco/msgpack/v5"
)

// ---- random messages

// filler fills values with random contents that check accepts.
type filler struct {
	*rand.Rand
	most int // elements of a slice
}

func newFiller(seed uint64, most int) *filler {
	return &filler{rand.New(rand.NewPCG(seed, 1)), most}
}

// message returns a message of a kind with random contents.
func (f *filler) message(k msgKind) message {
	m, err := newMessage(k)
	if err != nil {
		panic(err)
	}
	f.fill(reflect.ValueOf(m).Elem())
	switch m := m.(type) {
	case *heartbeat:
		m.Flags &= allBeatFlags
	case *digestMsg:
		m.Table, m.Peers = nil, nil
		if !m.Answer {
			m.Table, m.Peers = f.buckets(), f.buckets()
		}
	case *updateMsg:
		m.Voters = m.Voters[:min(1, len(m.Voters))]
	case *voteMsg:
		m.Records = m.Records[:min(1, len(m.Records))]
	case *grantMsg:
		m.Records = m.Records[:min(1, len(m.Records))]
	case *refuseMsg:
		m.Records = m.Records[:min(1, len(m.Records))]
	case *stoppedMsg:
		m.Starts = m.Starts[:min(1, len(m.Starts))]
	}
	return normal(m)
}

func (f *filler) buckets() []uint64 {
	b := make([]uint64, numBuckets)
	for i := range b {
		b[i] = f.Uint64()
	}
	return b
}

func (f *filler) fill(v reflect.Value) {
	switch p := v.Addr().Interface().(type) {
	case *Slot:
		*p = Slot(f.IntN(NumSlots))
	case *memberState:
		*p = memberState(f.IntN(int(forgotten) + 1))
	case *refusal:
		*p = refusedOther + refusal(f.IntN(int(refusedDuplicate)))
	case *why:
		*p = why(f.IntN(int(numWhys)))
	case *refuseWhy:
		*p = refusePromised + refuseWhy(f.IntN(int(refuseMoved)))
	case *commandCode:
		*p = codeInvalid + commandCode(f.IntN(int(codeTryAgain)))
	case *[]NodeID:
		f.plain(v)
		slices.SortFunc(*p, NodeID.compare)
	case *peerEntry:
		f.plain(v)
		for _, text := range []*string{&p.Addr, &p.ClientAddr, &p.Host} {
			*text = strings.ReplaceAll(*text, " ", "-")
		}
		p.Hostname = strings.Map(func(r rune) rune {
			if validHostname(string(r)) {
				return r
			}
			return '-'
		}, p.Hostname)
	case *[]member:
		f.plain(v)
		*p = append(*p, member{Key: f.number()}) // a set of voters is never empty
		sortMembers(*p)
	case *slotRuns:
		f.plain(v)
		p.Shards = append(p.Shards, ShardID{1})
		f.runs(len(p.Runs), func(i int, first, last Slot) {
			p.Runs[i].First, p.Runs[i].Last, p.Runs[i].Shard = first, last, f.index(len(p.Shards))
		})
	case *moveRuns:
		f.plain(v)
		f.runs(len(*p), func(i int, first, last Slot) { (*p)[i].First, (*p)[i].Last = first, last })
	case *acceptRuns:
		f.plain(v)
		p.Shards, p.Epochs = append(p.Shards, ShardID{1}), append(p.Epochs, Epoch{Number: 1})
		f.runs(len(p.Runs), func(i int, first, last Slot) {
			r := &p.Runs[i]
			r.First, r.Last, r.Shard, r.Epoch = first, last, f.index(len(p.Shards)), f.index(len(p.Epochs))
		})
	case *openRuns:
		f.plain(v)
		p.Epochs = append(p.Epochs, Epoch{Number: 1})
		f.runs(len(p.Runs), func(i int, first, last Slot) {
			p.Runs[i].First, p.Runs[i].Last, p.Runs[i].Epoch = first, last, f.index(len(p.Epochs))
		})
	default:
		f.plain(v)
	}
}

// plain fills a value by its Go type alone.
func (f *filler) plain(v reflect.Value) {
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(f.IntN(2) == 1)
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uint:
		v.SetUint(f.number() >> (64 - v.Type().Bits()))
	case reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Int:
		v.SetInt(int64(f.number()) >> (64 - v.Type().Bits()))
	case reflect.String:
		b := make([]byte, f.IntN(40))
		for i := range b {
			b[i] = byte(' ' + f.IntN(95))
		}
		v.SetString(string(b))
	case reflect.Struct:
		for i := range v.NumField() {
			f.fill(v.Field(i))
		}
	case reflect.Slice:
		n := f.IntN(f.most + 1)
		v.Set(reflect.MakeSlice(v.Type(), n, n))
		fallthrough
	case reflect.Array:
		for i := range v.Len() {
			f.fill(v.Index(i))
		}
	default:
		panic("no random " + v.Type().String())
	}
}

// number has any number of leading and of trailing zeros.
func (f *filler) number() uint64 { return f.Uint64() >> f.IntN(64) << f.IntN(64) }

func (f *filler) index(n int) uint16 { return uint16(f.IntN(n)) }

// runs cuts the slots into n runs with gaps.
func (f *filler) runs(n int, set func(i int, first, last Slot)) {
	cuts := f.Perm(NumSlots)[:2*n]
	slices.Sort(cuts)
	for i := range n {
		set(i, Slot(cuts[2*i]), Slot(cuts[2*i+1]))
	}
}

// normal sets the empty slices of what p points at to nil, as they come out of a
// decoder, and returns p.
func normal[P any](p P) P {
	normalize(reflect.ValueOf(p).Elem())
	return p
}

func normalize(v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			normalize(v.Field(i))
		}
	case reflect.Slice:
		if v.Len() == 0 {
			v.SetZero()
		}
		fallthrough
	case reflect.Array:
		for i := range v.Len() {
			normalize(v.Index(i))
		}
	}
}

func kinds(yield func(msgKind) bool) {
	for k := msgKind(1); k < numMsgKinds; k++ {
		if !yield(k) {
			return
		}
	}
}

func payloadOf(t testing.TB, m message) []byte {
	t.Helper()
	frame, err := appendFrame(nil, m)
	require.NoError(t, err)
	return frame[frameHeader:]
}

// allocated is how many bytes f allocates. The runtime and other tests may
// allocate at the same time, so the least of some tries counts, and f is run
// again only where one try does not tell.
func allocated(most uint64, f func()) uint64 {
	least := uint64(math.MaxUint64)
	for range 5 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		f()
		runtime.ReadMemStats(&after)
		if least = min(least, after.TotalAlloc-before.TotalAlloc); least <= most {
			break
		}
	}
	return least
}

// decodeBounded decodes and fails the test if that takes too much memory.
func decodeBounded(t testing.TB, k msgKind, payload []byte) (m message, err error) {
	t.Helper()
	most := 4*uint64(len(payload)) + 64<<10
	if n := allocated(most, func() { m, err = decodeFrame(k, payload) }); n > most {
		t.Errorf("%v: %d bytes allocated for a payload of %d, want at most %d", k, n, len(payload), most)
	}
	return m, err
}

func wantMalformed(t testing.TB, err error, what string, args ...any) {
	t.Helper()
	if _, ok := errors.AsType[*malformed](err); !ok {
		t.Errorf("%s: error %v, want a malformed message", fmt.Sprintf(what, args...), err)
	}
}

// ---- messages

func TestEveryMessageComesBackAsItWasSent(t *testing.T) {
	racing.OneGoroutine(t)
	for k := range kinds {
		for seed := range uint64(60) {
			m := newFiller(seed, int(seed%9)).message(k)
			require.NoError(t, m.check(), "%v, seed %d", k, seed)
			frame, err := appendFrame([]byte("before"), m)
			require.NoError(t, err)
			require.Equal(t, "before", string(frame[:6]))

			kind, payload, err := readFrame(bytes.NewReader(frame[6:]), busLimits, nil)
			require.NoError(t, err)
			require.Equal(t, k, msgKind(kind))
			got, err := decodeBounded(t, k, payload)
			require.NoError(t, err)
			if !reflect.DeepEqual(got, m) {
				t.Fatalf("%v, seed %d: sent %+v, got %+v", k, seed, m, got)
			}
		}
	}
}

// msgpack itself must understand what is sent: it is no format of our own.
func TestMsgpackReadsAndWritesTheSamePayloads(t *testing.T) {
	racing.OneGoroutine(t)
	for k := range kinds {
		if k == msgHeartbeat {
			continue // packed first; TestHeartbeatIsPackedMsgpack
		}
		for seed := range uint64(15) {
			m := newFiller(seed, 5).message(k)
			payload := payloadOf(t, m)

			theirs, err := newMessage(k)
			require.NoError(t, err)
			require.NoError(t, msgpack.Unmarshal(payload, theirs), "%v, seed %d", k, seed)
			require.Equal(t, m, normal(theirs), "%v, seed %d", k, seed)

			var buf bytes.Buffer
			require.NoError(t, arrayEncoder(&buf).Encode(theirs)) // whose slices normal has made nil
			require.Len(t, buf.Bytes(), len(payload), "%v, seed %d", k, seed)
			for i, b := range buf.Bytes() {
				if b != payload[i] && (b != 0xc0 || payload[i] != 0x90) { // nil for a slice without elements
					t.Fatalf("%v, seed %d, byte %d: msgpack writes %#x, we write %#x", k, seed, i, b, payload[i])
				}
			}
		}
	}
}

func TestHeartbeatIsPackedMsgpack(t *testing.T) {
	h := newFiller(1, 0).message(msgHeartbeat).(*heartbeat)
	var w wireBeat
	require.NoError(t, msgpack.Unmarshal(payloadOf(t, h), &w))
	var got heartbeat
	w.unpack(&got)
	require.Equal(t, h, &got)
}

func TestEmptySlicesComeBackAsNil(t *testing.T) {
	sent := &updateMsg{Peers: []peerEntry{}, Slots: slotRuns{Runs: []slotRun{}}, Silent: []silentEntry{{Nodes: []NodeID{}}}}
	got, err := decodeFrame(msgUpdate, payloadOf(t, sent))
	require.NoError(t, err)
	require.Equal(t, &updateMsg{Silent: []silentEntry{{}}}, got)
	require.Equal(t, payloadOf(t, &updateMsg{Silent: []silentEntry{{}}}), payloadOf(t, sent), "one encoding for both")
}

func TestDecodedMessageSharesNothingWithItsPayload(t *testing.T) {
	for k := range kinds {
		m := newFiller(3, 4).message(k)
		payload := payloadOf(t, m)
		got, err := decodeFrame(k, payload)
		require.NoError(t, err)
		for i := range payload {
			payload[i] = 0xff
		}
		require.Equal(t, m, got)
	}
}

func TestHeartbeatHasAtMost64Bytes(t *testing.T) {
	const all = math.MaxUint64
	busy := heartbeat{Flags: allBeatFlags &^ beatHangs, Table: all, Peers: all, Start: all, Epoch: 1<<32 - 1, N: 1<<16 - 1,
		Position: 1<<40 - 1, Sent: 1<<32 - 1, Answers: 1<<32 - 1, Lease: 1<<16 - 1, Promised: 1<<32 - 1}
	changed := func(f func(*heartbeat)) heartbeat { h := busy; f(&h); return h }
	rows := []struct {
		name string
		beat heartbeat
		size int
	}{
		{"nothing to say", heartbeat{}, 50},
		{"neither primary nor voter", heartbeat{Flags: beatActive, Table: all, Peers: all, Start: all, Sent: 1 << 30}, 50},
		{"primary, first year", heartbeat{Flags: beatActive | beatOpen | beatLeased, Table: all, Peers: all, Start: all,
			Epoch: 40, N: 200, Position: 1 << 34, Sent: 1 << 31}, 51},
		{"voter", heartbeat{Flags: beatActive | beatAnswers, Table: all, Peers: all, Start: all,
			Sent: 1 << 31, Answers: 1 << 31, Lease: 4500}, 52},
		{"primary and voter", heartbeat{Flags: beatActive | beatOpen | beatLeased | beatAnswers, Table: all, Peers: all,
			Start: all, Epoch: 40, N: 200, Position: 1 << 34, Sent: 1 << 31, Answers: 1 << 31, Lease: 4500, Promised: 41}, 53},
		{"busy", busy, 64},
		{"busy, and its disk hangs", changed(func(h *heartbeat) { h.Flags |= beatHangs }), 65},
		{"epoch of 33 bits", changed(func(h *heartbeat) { h.Epoch++ }), 68},
		{"65536th record", changed(func(h *heartbeat) { h.N++ }), 66},
		{"position of 41 bits", changed(func(h *heartbeat) { h.Position++ }), 65},
		{"lease of 66 seconds", changed(func(h *heartbeat) { h.Lease++ }), 66},
		{"all that the types allow", heartbeat{allBeatFlags, all, all, all, all, all, all, 1<<32 - 1, 1<<32 - 1, 1<<32 - 1, all}, 84},
	}
	for _, row := range rows {
		frame, err := appendFrame(nil, &row.beat)
		if err != nil || len(frame) != row.size {
			t.Errorf("%s: %d bytes, error %v, want %d", row.name, len(frame), err, row.size)
		}
	}
}

// ---- wrong messages

func TestTruncatedMessageIsRefused(t *testing.T) {
	for k := range kinds {
		for seed := range uint64(3) {
			payload := payloadOf(t, newFiller(seed, 3).message(k))
			for i := range payload {
				_, err := decodeFrame(k, payload[:i])
				wantMalformed(t, err, "%v cut to %d of %d bytes", k, i, len(payload))
			}
		}
	}
}

func TestBytesAfterAMessageAreRefused(t *testing.T) {
	for k := range kinds {
		payload := payloadOf(t, newFiller(1, 1).message(k))
		if len(payload)+1+frameHeader > busLimits(byte(k)) {
			continue
		}
		_, err := decodeFrame(k, append(payload, 0))
		wantMalformed(t, err, "%v and a byte", k)
		require.ErrorContains(t, err, k.String()+": 1 bytes more than the value has")
	}
}

// wrongBytes are the bytes that one wrong bit makes of b, and codes of msgpack:
// of each form the first and the last, and the long ones.
func wrongBytes(b byte) []byte {
	wrong := []byte("\x00\x7f\x80\x90\x9f\xa0\xbf\xc0\xc1\xc3\xc4\xc6\xc9\xcb\xcc\xcd\xce\xcf\xd0\xd3\xd9\xdb\xdc\xdd\xdf\xe0\xff")
	for bit := range 8 {
		wrong = append(wrong, b^1<<bit)
	}
	return wrong
}

// One wrong byte gives an error or another message, which has no other encoding.
func TestEveryCorruptedByteIsAnErrorOrAnotherMessage(t *testing.T) {
	racing.OneGoroutine(t)
	var frame []byte
	for k := range kinds {
		payload := payloadOf(t, newFiller(14, 1).message(k))
		for i, was := range payload {
			for _, b := range wrongBytes(was) {
				payload[i] = b
				m, err := decodeFrame(k, payload)
				if err == nil {
					frame, err = appendFrame(frame[:0], m)
					if err != nil || !bytes.Equal(frame[frameHeader:], payload) {
						t.Errorf("%v, byte %d is %#x: decoded, but encoded otherwise, error %v", k, i, b, err)
					}
				} else if _, ok := err.(*malformed); !ok {
					t.Errorf("%v, byte %d is %#x: error %v, want a malformed message", k, i, b, err)
				}
			}
			payload[i] = was
		}
	}
}

// The bombs stand at every byte of a message, so also where a slice begins.
func TestBombsAreRefusedWhereverTheyStand(t *testing.T) {
	racing.OneGoroutine(t)
	bombs := map[string]string{
		"array of 2^32-1":   "\xdd\xff\xff\xff\xff",
		"array of 2^31":     "\xdd\x80\x00\x00\x00",
		"array of 65535":    "\xdc\xff\xff",
		"map of 2^32-1":     "\xdf\xff\xff\xff\xff",
		"string of 2^32-1":  "\xdb\xff\xff\xff\xff",
		"bin of 2^32-1":     "\xc6\xff\xff\xff\xff",
		"extension of 4 GB": "\xc9\xff\xff\xff\xff\x01",
		"nested arrays":     strings.Repeat("\x91", 2000),
	}
	for k := range kinds {
		payload := payloadOf(t, newFiller(7, 1).message(k))
		for name, bomb := range bombs {
			for i := range payload {
				ends := slices.Concat(payload[:i], []byte(bomb))
				goesOn := slices.Concat(ends, payload[i:])
				if _, err := decodeBounded(t, k, ends); err == nil && len(bomb) > 1 && !fitsByChance(k, ends) {
					t.Errorf("%v, %s from byte %d to the end: decoded", k, name, i)
				}
				if _, err := decodeBounded(t, k, goesOn); err == nil && !fitsByChance(k, goesOn) {
					t.Errorf("%v, %s at byte %d: decoded", k, name, i)
				}
			}
		}
	}
}

func fitsByChance(k msgKind, payload []byte) bool {
	m, err := decodeFrame(k, payload)
	if err != nil {
		return false
	}
	frame, err := appendFrame(nil, m)
	return err == nil && bytes.Equal(frame[frameHeader:], payload)
}

func TestDeepNestingIsRefused(t *testing.T) {
	for _, code := range []string{"\x91", "\x81", "\xdc\x00\x01", "\xdd\x00\x00\x00\x01"} {
		bomb := bytes.Repeat([]byte(code), 4_500_000/len(code))
		for k := range kinds {
			_, err := decodeBounded(t, k, bomb)
			wantMalformed(t, err, "%v, %d bytes of %#x", k, len(bomb), code)

			// The limit of a frame is not what it dies of.
			m, _ := newMessage(k)
			wantMalformed(t, decodeValue(bomb, m), "%v, %#x", k, code)
		}
	}
}

func TestCountsAreComparedWithTheBytesAtHand(t *testing.T) {
	// A silentEntry has at least 1 + 22 + 1 + 1 + 1 bytes.
	update := func(count uint32, rest int) []byte {
		b := []byte{0x99, 0, 0, 0x93, 0, 0, 0, 0x90, 0xdd}
		return append(binary.BigEndian.AppendUint32(b, count), make([]byte, rest)...)
	}
	rows := []struct {
		count uint32
		rest  int
		want  string
	}{
		{1<<32 - 1, 0, "UPDATE: Silent: an array of 4294967295, expected at most 0: 0 bytes are left"},
		{1 << 31, 100, "UPDATE: Silent: an array of 2147483648, expected at most 3: 100 bytes are left"},
		{100001, 26 * 2000, "UPDATE: Silent: an array of 100001, expected at most 2000: 52000 bytes are left"},
		{65536, 26 * 100, "UPDATE: Silent: an array of 65536, expected at most 100: 2600 bytes are left"},
	}
	for _, row := range rows {
		_, err := decodeBounded(t, msgUpdate, update(row.count, row.rest))
		wantMalformed(t, err, "%d in %d bytes", row.count, row.rest)
		if err == nil || err.Error() != "slotmesh: "+row.want {
			t.Errorf("%d in %d bytes: %v, want %s", row.count, row.rest, err, row.want)
		}
	}
}

// Entries as short as they can be, as many as fit: here memory is largest beside
// the bytes. Whether it is decoded or refused, it stays within the bound.
func TestMemoryIsBoundedForTheShortestEntries(t *testing.T) {
	racing.OneGoroutine(t)
	w := newValueWriter()
	for k := range kinds {
		m, err := newMessage(k)
		require.NoError(t, err)
		size := min(busLimits(byte(k))-2000, 128<<10)
		eachSlice(reflect.ValueOf(m).Elem(), func(slice reflect.Value) {
			for _, inner := range []int{0, 1} {
				p, err := planOf(slice.Type().Elem())
				require.NoError(t, err)
				n := size / (p.least + 100*inner)
				slice.Set(reflect.MakeSlice(slice.Type(), n, n))
				for i := range n {
					eachSlice(slice.Index(i), func(v reflect.Value) { v.Set(reflect.MakeSlice(v.Type(), inner, inner)) })
				}
				w.out = w.out[:0]
				require.NoError(t, w.encode(m))
				if _, err := decodeBounded(t, k, w.out); err != nil {
					wantMalformed(t, err, "%v, %d times %v", k, n, slice.Type().Elem())
				}
			}
			slice.SetZero()
		})
	}
}

// eachSlice calls f for the slices in v. Where there is no element it makes one
// to look for slices in it.
func eachSlice(v reflect.Value, f func(reflect.Value)) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			eachSlice(v.Field(i), f)
		}
	case reflect.Slice:
		f(v)
		made := v.Len() == 0
		if made {
			v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		}
		for i := range v.Len() {
			eachSlice(v.Index(i), f)
		}
		if made {
			v.SetZero()
		}
	}
}

// A STOPPED carries one START, whose struct is far larger than its shortest
// encoding. A frame of thousands does not get the memory for them.
func TestManyLargeStructsInSmallBytesAreRefused(t *testing.T) {
	w := newValueWriter()
	for _, n := range []int{1, 100, 1000, 40000} {
		m := &stoppedMsg{Starts: make([]startValue, n)}
		for i := range m.Starts {
			m.Starts[i].Members = []member{{}}
		}
		w.out = w.out[:0]
		require.NoError(t, w.encode(m))
		_, err := decodeBounded(t, msgStopped, w.out)
		if n >= 1000 {
			wantMalformed(t, err, "%d STARTs", n)
			require.ErrorContains(t, err, "STOPPED: Starts: ")
			require.ErrorContains(t, err, "bytes of memory are needed")
		} else if n > 1 {
			wantMalformed(t, err, "%d STARTs", n)
			require.ErrorContains(t, err, "expected at most one")
		} else {
			require.NoError(t, err)
		}
	}
}

func TestErrorsNameFieldAndWhatWasExpected(t *testing.T) {
	node := "\xc4\x14" + strings.Repeat("n", 20)
	version := "\x93\x00\x01" + node
	rows := []struct {
		name    string
		kind    msgKind
		payload string
		want    string
	}{
		{"nothing", msgUpdated, "", "UPDATED: the end, expected a value"},
		{"not an array", msgUpdated, "\x07", "UPDATED: an integer, expected an array of 1 fields"},
		{"too few fields", msgUpdated, "\x90", "UPDATED: an array of 0, expected 1 fields"},
		{"too many fields", msgUpdated, "\x92\x01\x01", "UPDATED: an array of 2, expected 1 fields"},
		{"a map", msgUpdated, "\x81\xa3Seq\x01", "UPDATED: a map, expected an array of 1 fields"},
		{"nil", msgUpdated, "\xc0", "UPDATED: nil, expected an array of 1 fields"},
		{"nil for a number", msgUpdated, "\x91\xc0", "UPDATED: Seq: nil, expected an integer from 0 to 18446744073709551615"},
		{"negative", msgUpdated, "\x91\xff", "UPDATED: Seq: a negative integer, expected an integer from 0 to 18446744073709551615"},
		{"signed form", msgUpdated, "\x91\xd0\x05", "UPDATED: Seq: a positive integer in a signed form, expected its shortest"},
		{"float", msgUpdated, "\x91\xca\x00\x00\x00\x00", "UPDATED: Seq: a float, expected an integer from 0 to 18446744073709551615"},
		{"longer than needed", msgUpdated, "\x91\xcd\x00\x07", "UPDATED: Seq: an integer in 3 bytes, expected its shortest form"},
		{"longer than needed by one value", msgUpdated, "\x91\xcc\x7f", "UPDATED: Seq: an integer in 2 bytes, expected its shortest form"},
		{"cut in a number", msgUpdated, "\x91\xcf\x00", "UPDATED: Seq: the end, expected the 8 bytes of an integer"},
		{"code that does not exist", msgUpdated, "\x91\xc1", "UPDATED: Seq: an unused code, expected an integer from 0 to 18446744073709551615"},
		{"over its type", msgRefused, "\x93\xcd\x01\x00\x00\x00", "REFUSED: Why: 256, expected at most 255"},
		{"not a bool", msgDigest, "\x96\x01\xc2\x90\x90\x00\x00", "DIGEST: Answer: an integer, expected a bool"},
		{"nil for a slice", msgDigest, "\x96\xc3\xc2\xc0\x90\x00\x00", "DIGEST: Table: nil, expected an array"},
		{"long count of a short array", msgDigest, "\x96\xc3\xc2\xdc\x00\x01\x07\x90\x00\x00", "DIGEST: Table: an array in 3 bytes, expected its shortest form"},
		{"element of a slice", msgDigest, "\x96\xc3\xc2\x93\x01\x02\xc3\x90\x00\x00", "DIGEST: Table[2]: a bool, expected an integer from 0 to 18446744073709551615"},
		{"id too short", msgStop, "\x93\x93\x00\x01\xc4\x13" + strings.Repeat("n", 19), "STOP: Voters.Proposer: bin of 19, expected 20 bytes"},
		{"id as text", msgStop, "\x93\x93\x00\x01\xb4" + strings.Repeat("n", 20), "STOP: Voters.Proposer: a string, expected bin of 20 bytes"},
		{"id cut", msgStop, "\x93\x93\x00\x01\xc4\x14nnn", "STOP: Voters.Proposer: bin of 20, expected at most 3: 3 bytes are left"},
		{"extension", msgStop, "\x93" + version + "\xd4\x01\x01", "STOP: Ballot: an extension, expected an array of 2 fields"},
		{"text cut", msgForwarded, "\x92\x01\x93\x01\xa5abc", "FORWARDED: Error.Text: a string of 5, expected at most 3: 3 bytes are left"},
		{"bin for text", msgForwarded, "\x92\x01\x93\x01\xc4\x01a\xc2", "FORWARDED: Error.Text: bin, expected a string"},
		{"more than the message", msgUpdated, "\x91\x01\x01\x01", "UPDATED: 2 bytes more than the value has"},
		{"nothing that a node sends", msgHeartbeat, "", "HEARTBEAT: the end, expected a value"},
		{"indexes outside their palette", msgSeed, "\x92\x92\x90\x91\x94\x00\x00\x00\x01\x93\x00\x00\x00", "SEED: run 0-0 names shard 0 of 0"},
		{"unknown kind", numMsgKinds, "\x90", fmt.Sprintf("message(%d): unknown kind, expected 1 to %d", numMsgKinds, numMsgKinds-1)},
		{"no kind", 0, "\x90", fmt.Sprintf("message(0): unknown kind, expected 1 to %d", numMsgKinds-1)},
	}
	for _, row := range rows {
		_, err := decodeFrame(row.kind, []byte(row.payload))
		wantMalformed(t, err, "%s", row.name)
		if err == nil || err.Error() != "slotmesh: "+row.want {
			t.Errorf("%s: %v\nwant slotmesh: %s", row.name, err, row.want)
		}
	}
}

// ---- values

func TestValuesComeBackAsTheyWereSaved(t *testing.T) {
	racing.OneGoroutine(t)
	type cell struct {
		Small   int8
		Medium  int16
		Large   int32
		Huge    int64
		Plain   int
		Bytes   []byte
		Three   [3]uint16
		Names   []string
		Nested  [][]byte
		Windows [2][]slotRun
	}
	check := func(v any) { // a pointer
		t.Helper()
		b, err := encodeValue(v)
		require.NoError(t, err, "%T", v)
		got := reflect.New(reflect.TypeOf(v).Elem()).Interface()
		require.NoError(t, decodeValue(b, got), "%T", v)
		require.Equal(t, v, got)
		for i := 0; i < len(b); i += 1 + i/100 {
			wantMalformed(t, decodeValue(b[:i], got), "%T cut to %d bytes", v, i)
		}
	}
	for seed := range uint64(40) {
		f := newFiller(seed, 3)
		for _, v := range []any{new(cell), new(sender), new(wanted), new([]record), new(votes), new(startValue), new(ballot), new(NodeID), new(Slot)} {
			f.fill(reflect.ValueOf(v).Elem())
			check(normal(v))
		}
	}
	for _, v := range []any{new([15]uint16), new([16]uint64), new([255]byte), new([2048]byte), new([70_000]byte), new([70_000]bool)} {
		newFiller(1, 0).plain(reflect.ValueOf(v).Elem())
		check(v)
	}
	for _, n := range []int{0, 1, 31, 32, 255, 256, 257, 65535, 65536, 2_000_000} {
		text, bin := strings.Repeat("x", n), bytes.Repeat([]byte{1}, n)
		check(&text)
		check(normal(&bin))
	}
}

func TestIntegersKeepTheirValueAtEveryBorder(t *testing.T) {
	for shift := range 64 {
		for _, n := range []int64{1<<shift - 1, 1 << shift, -1 << shift, -1<<shift - 1, -1<<shift + 1} {
			b, err := encodeValue(n)
			require.NoError(t, err)
			var got int64
			require.NoError(t, decodeValue(b, &got), "%d", n)
			require.Equal(t, n, got)

			var small int16
			if err := decodeValue(b, &small); (err == nil) != (n == int64(int16(n))) {
				t.Errorf("%d into an int16: error %v", n, err)
			}
			var unsigned uint64
			if err := decodeValue(b, &unsigned); (err == nil) != (n >= 0) {
				t.Errorf("%d into a uint64: error %v", n, err)
			}
		}
	}
}

func TestIntegerErrorsNameTheRangeOfTheType(t *testing.T) {
	rows := []struct {
		into any
		code string
		want string
	}{
		{new(int8), "\xcc\x80", "int8: 128, expected at most 127"},
		{new(int8), "\xd1\xff\x7f", "int8: -129, expected at least -128"},
		{new(int8), "\xc0", "int8: nil, expected an integer from -128 to 127"},
		{new(int64), "\xcf\x80\x00\x00\x00\x00\x00\x00\x00", "int64: 9223372036854775808, expected at most 9223372036854775807"},
		{new(int64), "\xd3\xff\xff\xff\xff\x80\x00\x00\x00", "int64: a negative integer in 9 bytes, expected its shortest form"},
		{new(int64), "\xd2\xff\xff\x80\x00", "int64: a negative integer in 5 bytes, expected its shortest form"},
		{new(int64), "\xd1\xff\x80", "int64: a negative integer in 3 bytes, expected its shortest form"},
		{new(int64), "\xd0\xe0", "int64: a negative integer in 2 bytes, expected its shortest form"},
		{new(uint64), "\xcf\x00\x00\x00\x00\xff\xff\xff\xff", "uint64: an integer in 9 bytes, expected its shortest form"},
		{new(uint64), "\xce\x00\x00\xff\xff", "uint64: an integer in 5 bytes, expected its shortest form"},
		{new(uint64), "\xcd\x00\xff", "uint64: an integer in 3 bytes, expected its shortest form"},
		{new(string), "\xd9\x1f" + strings.Repeat("x", 31), "string: a string in 2 bytes, expected its shortest form"},
		{new([]byte), "\xc5\x00\xff" + strings.Repeat("x", 255), "[]uint8: bin in 3 bytes, expected its shortest form"},
		{new([2]int), "\x93\x00\x00\x00", "[2]int: an array of 3, expected 2 elements"},
	}
	for _, row := range rows {
		err := decodeValue([]byte(row.code), row.into)
		if err == nil || err.Error() != "slotmesh: "+row.want {
			t.Errorf("%x: %v, want slotmesh: %s", row.code, err, row.want)
		}
	}
}

func TestPointerAndValueAreEncodedAlike(t *testing.T) {
	v := wanted{ID: NodeID{1, 2}, Key: 3}
	a, err := encodeValue(v)
	require.NoError(t, err)
	b, err := encodeValue(&v)
	require.NoError(t, err)
	require.Equal(t, a, b)
}

func TestDecodingReplacesAllOfAValueOrNothing(t *testing.T) {
	b, err := encodeValue(record{N: 1})
	require.NoError(t, err)

	r := record{N: 5, Strict: true, InSync: []incarnate{{Incarnation: 7}}}
	kept := r.InSync
	require.Error(t, decodeValue(b[:len(b)-1], &r))
	require.Equal(t, record{N: 5, Strict: true, InSync: []incarnate{{Incarnation: 7}}}, r)

	require.NoError(t, decodeValue(b, &r))
	require.Equal(t, record{N: 1}, r)
	require.Equal(t, []incarnate{{Incarnation: 7}}, kept)
}

func TestTypesWithoutOneMeaningAreRefused(t *testing.T) {
	type tree struct{ Kids []tree }
	rows := []struct {
		v    any
		want string
	}{
		{map[string]int{}, "type map[string]int has no encoding"},
		{struct{ P *int }{}, "type *int has no encoding"},
		{struct{ V any }{}, "type interface {} has no encoding"},
		{[]float64{1}, "type float64 has no encoding"},
		{struct{ hidden int }{}, "field struct { hidden int }.hidden is not exported and would be lost"},
		{tree{}, "type slotmesh.tree contains itself"},
	}
	for _, row := range rows {
		if _, err := encodeValue(row.v); err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%T: encode: %v, want %s", row.v, err, row.want)
		}
		err := decodeValue([]byte{0x90}, reflect.New(reflect.TypeOf(row.v)).Interface())
		if err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%T: decode: %v, want %s", row.v, err, row.want)
		}
	}
}

// The memory that a payload may need is four times its length. This is why no
// message that a node sends is refused for it: no entry needs more, but for the
// START in a STOPPED, which is there once, and buckets, of which there are 64.
func TestEntriesNeedAtMostFourTimesTheirBytesInMemory(t *testing.T) {
	once := []string{"STOPPED.Starts", "DIGEST.Table", "DIGEST.Peers"}
	var worst float64
	var walk func(path string, p *plan)
	walk = func(path string, p *plan) {
		if p.kind == planSlice {
			ratio := float64(p.elem.size) / float64(p.elem.least)
			if ratio > 4 && !slices.Contains(once, path) {
				t.Errorf("%s: an element has %d bytes in memory and down to %d on the wire", path, p.elem.size, p.elem.least)
			}
			worst = max(worst, ratio)
		}
		if p.elem != nil {
			walk(path+"[]", p.elem)
		}
		for _, f := range p.fields {
			walk(path+"."+f.name, f.plan)
		}
	}
	for k := range kinds {
		m, err := newMessage(k)
		require.NoError(t, err)
		p, err := planOf(reflect.TypeOf(m).Elem())
		require.NoError(t, err)
		walk(k.String(), p)
	}
	require.Greater(t, worst, 4.0, "the walk has seen a STOPPED")
}

// ---- frames

// frameOf is a frame of size bytes in all, its payload zero.
func frameOf(kind byte, size int) []byte {
	b := make([]byte, size)
	binary.BigEndian.PutUint32(b, uint32(size-4))
	b[4] = kind
	return b
}

func TestReadFrameKeepsToTheLimitOfEachKind(t *testing.T) {
	racing.OneGoroutine(t)
	limits := map[byte]int{
		byte(msgHeartbeat): 84, byte(msgMeet): 1 << 20, byte(msgUpdate): 64 << 10, byte(msgFail): 64 << 10, byte(msgDigest): 64 << 10,
		byte(msgVote): 4 << 20, byte(msgGrant): 4 << 20, byte(msgRefuse): 4 << 20, byte(msgRecord): 4 << 20, byte(msgMove): 4 << 20,
		byte(msgAccept): 64 << 10, byte(msgStop): 64 << 10, byte(msgStopped): 4 << 20, byte(msgStart): 4 << 20, byte(msgStarted): 64 << 10,
		byte(msgForward): 4 << 20, byte(msgStage): 4 << 20, byte(msgRecords): 4 << 20,
		firstBulkKind: 1<<20 + 1<<10, 255: 1<<20 + 1<<10,
	}
	for kind, limit := range limits {
		for _, size := range []int{frameHeader, limit - 1, limit} {
			got, payload, err := readFrame(bytes.NewReader(frameOf(kind, size)), busLimits, nil)
			if err != nil || got != kind || len(payload) != size-frameHeader {
				t.Errorf("%v of %d bytes: kind %d, %d bytes, error %v", msgKind(kind), size, got, len(payload), err)
			}
		}
		for _, size := range []int64{int64(limit) + 1, 1 << 32} {
			in := bytes.NewReader(append(binary.BigEndian.AppendUint32(nil, uint32(size-4)), kind, 1, 2, 3))
			_, _, err := readFrame(in, busLimits, nil)
			wantMalformed(t, err, "%v of %d bytes", msgKind(kind), size)
			require.ErrorContains(t, err, fmt.Sprintf("%v: frame of %d bytes, expected at most %d", msgKind(kind), size, limit))
			require.Equal(t, 3, in.Len(), "nothing is read after the header")
		}
	}
}

func TestEveryKindHasALimitAndNoOtherHas(t *testing.T) {
	for kind := range 256 {
		known := kind > 0 && kind < int(numMsgKinds) || kind >= firstBulkKind
		if limit := busLimits(byte(kind)); (limit > 0) != known {
			t.Errorf("kind %d: limit %d", kind, limit)
		}
		_, _, err := readFrame(bytes.NewReader(frameOf(byte(kind), frameHeader)), busLimits, nil)
		if known != (err == nil) {
			t.Errorf("kind %d: error %v", kind, err)
		}
	}
	_, _, err := readFrame(bytes.NewReader(frameOf(byte(msgVote), frameHeader)), func(byte) int { return 0 }, nil)
	wantMalformed(t, err, "a kind that is not expected")
	require.EqualError(t, err, "slotmesh: VOTE: this kind of frame is not expected here")
}

// sizedEntries are entries with which a message has a payload of exactly size
// bytes. No text in them is longer than a message may carry.
func sizedEntries(t *testing.T, size int, with func([]peerEntry) message) message {
	t.Helper()
	text := strings.Repeat("x", textLimit)
	full := peerEntry{ID: NodeID{1}, Addr: text}
	short := len(sizeless(t, with(nil)))
	each := len(sizeless(t, with([]peerEntry{full, full}))) - len(sizeless(t, with([]peerEntry{full})))
	two := len(sizeless(t, with([]peerEntry{full, full})))
	entries := slices.Repeat([]peerEntry{full}, (size-short)/each-1)
	missing := size - len(sizeless(t, with(append(entries, full)))) // up to the size of an entry
	for i := range textLimit {
		last := full
		last.ClientAddr = text[:i]
		if len(sizeless(t, with([]peerEntry{full, last})))-two == missing {
			return with(append(entries, last))
		}
		for _, host := range []int{1, 2, textLimit / 2} { // where a length takes another byte
			last.Host = text[:host]
			if len(sizeless(t, with([]peerEntry{full, last})))-two == missing {
				return with(append(entries, last))
			}
		}
	}
	require.FailNow(t, "no entries have that size", "%d bytes", size)
	return nil
}

// sizeless is the payload of a message, whatever its size.
func sizeless(t *testing.T, m message) []byte {
	t.Helper()
	w := newValueWriter()
	require.NoError(t, w.encode(m))
	return slices.Clone(w.out)
}

func TestAppendFrameKeepsToTheLimit(t *testing.T) {
	racing.OneGoroutine(t)
	rows := []struct {
		kind msgKind
		with func([]peerEntry) message
	}{
		{msgUpdate, func(es []peerEntry) message { return &updateMsg{Peers: es} }},
		{msgStart, func(es []peerEntry) message {
			return &startMsg{Value: startValue{Members: []member{{}}, Entries: es}}
		}},
	}
	for _, row := range rows {
		limit := busLimits(byte(row.kind))
		for over := -1; over <= 1; over++ {
			m := sizedEntries(t, limit-frameHeader+over, row.with)
			frame, err := appendFrame([]byte("before"), m)
			if over == 1 {
				require.EqualError(t, err, fmt.Sprintf("slotmesh: %v: frame of %d bytes, expected at most %d", row.kind, limit+1, limit))
				require.Equal(t, "before", string(frame))

				_, err := decodeBounded(t, row.kind, sizeless(t, m))
				wantMalformed(t, err, "%v", row.kind)
				continue
			}
			require.NoError(t, err, "%v", row.kind)
			require.Len(t, frame, 6+limit+over)
			got, err := decodeBounded(t, row.kind, frame[6+frameHeader:])
			require.NoError(t, err)
			require.Equal(t, m, got)
		}
	}
}

// The largest table there can be: each slot a run, each of another shard.
func TestLargestTableFitsIntoItsFrames(t *testing.T) {
	racing.OneGoroutine(t)
	var claims slotRuns
	var kept acceptRuns
	var opened openRuns
	for s := range NumSlots {
		id := ShardID{byte(s >> 8), byte(s)}
		e := Epoch{Number: math.MaxUint64 - uint64(s), Node: NodeID(id)}
		claims.Shards = append(claims.Shards, id)
		claims.Runs = append(claims.Runs, slotRun{Slot(s), Slot(s), uint16(s), math.MaxUint64})
		kept.Shards, kept.Epochs = append(kept.Shards, id), append(kept.Epochs, e)
		kept.Runs = append(kept.Runs, acceptRun{Slot(s), Slot(s), uint16(s), uint16(s), math.MaxUint64})
		opened.Epochs = append(opened.Epochs, e)
		opened.Runs = append(opened.Runs, openRun{Slot(s), Slot(s), uint16(s), math.MaxUint64})
	}
	v := votes{Accepted: kept, Opened: opened}
	for _, m := range []message{
		&meetMsg{Claims: claims}, &seedMsg{Claims: claims}, &recordsMsg{Votes: v}, &stoppedMsg{Votes: v},
		&grantMsg{Accepted: kept, Opened: opened}, &moveMsg{Slots: kept},
		&startMsg{Value: startValue{Members: []member{{}}, Votes: v, Slots: claims}},
	} {
		got, err := decodeBounded(t, m.kind(), payloadOf(t, m))
		require.NoError(t, err)
		require.Equal(t, m, got)
	}
}

func TestFrameWithoutLengthIsRefused(t *testing.T) {
	_, _, err := readFrame(bytes.NewReader(make([]byte, 5)), busLimits, nil)
	wantMalformed(t, err, "length 0")
	require.EqualError(t, err, "slotmesh: frame: length 0, expected at least 1")
}

func TestReadFrameTellsTheEndFromACut(t *testing.T) {
	frame, err := appendFrame(nil, newFiller(1, 2).message(msgVote))
	require.NoError(t, err)
	for n := range frame {
		_, _, err := readFrame(bytes.NewReader(frame[:n]), busLimits, nil)
		want := io.ErrUnexpectedEOF
		if n == 0 {
			want = io.EOF
		}
		if !errors.Is(err, want) {
			t.Errorf("%d of %d bytes: error %v, want %v", n, len(frame), err, want)
		}
	}
	broken := errors.New("cable cut")
	_, _, err = readFrame(io.MultiReader(bytes.NewReader(frame[:20]), iotest.ErrReader(broken)), busLimits, nil)
	require.ErrorIs(t, err, broken)
	require.ErrorContains(t, err, "VOTE: 15 of ")
}

func TestMemoryGrowsWithBytesThatCome(t *testing.T) {
	header := frameOf(byte(msgStart), votesLimit)[:frameHeader]
	for _, come := range []int{0, 1, 1000, 5000, 100_000, 3_000_000} {
		in := slices.Concat(header, make([]byte, come))
		most := 4*uint64(come) + 8<<10
		n := allocated(most, func() {
			_, _, err := readFrame(bytes.NewReader(in), busLimits, nil)
			require.ErrorIs(t, err, io.ErrUnexpectedEOF)
		})
		if n > most {
			t.Errorf("%d bytes of 4 MB come: %d allocated, want at most %d", come, n, most)
		}
	}
}

func TestReadFrameUsesTheBufferOfItsCaller(t *testing.T) {
	buf := make([]byte, 0, 256)
	frame, err := appendFrame(nil, &heartbeat{Sent: 5})
	require.NoError(t, err)
	in := bytes.NewReader(frame)
	n := testing.AllocsPerRun(100, func() {
		in.Reset(frame)
		if _, payload, err := readFrame(in, busLimits, buf); err != nil || &payload[0] != &buf[:1][0] {
			t.Errorf("error %v, or the payload lies elsewhere", err)
		}
	})
	require.Zero(t, n)
}

// ---- speed

func benchHeartbeat() *heartbeat {
	return &heartbeat{Flags: beatActive | beatOpen | beatLeased | beatAnswers, Table: 1 << 60, Peers: 1 << 61, Start: 1 << 62,
		Epoch: 40, N: 200, Position: 1 << 34, Sent: 1 << 31, Answers: 1 << 31, Lease: 4500}
}

func benchUpdate() *updateMsg {
	m := newFiller(1, 0).message(msgUpdate).(*updateMsg)
	m.Slots = slotRuns{Shards: make([]ShardID, 16)}
	for i := range 1000 {
		m.Slots.Runs = append(m.Slots.Runs, slotRun{Slot(i * 16), Slot(i*16 + 15), uint16(i % 16), 7})
	}
	return m
}

// appendFrame and decodeFrame are what a link does, for one frame.
func appendFrame(dst []byte, m message) ([]byte, error) { return newValueWriter().appendFrame(dst, m) }

func decodeFrame(kind msgKind, payload []byte) (message, error) {
	return newValueReader().decodeFrame(kind, payload)
}

// The plans of all that the core sends and saves are made once.
func TestPlansOfAllThatTheCoreSendsAreThere(t *testing.T) {
	types := map[reflect.Type]bool{reflect.TypeFor[wireBeat](): true}
	for k := msgKind(1); k < numMsgKinds; k++ {
		m, err := newMessage(k)
		require.NoError(t, err)
		types[reflect.TypeOf(m).Elem()] = true
	}
	n := newRules(t).cluster(2, 3)[0]
	for k := range n.disk {
		if v := n.core.cellValue(k); v != nil {
			types[reflect.TypeOf(v).Elem()] = true
		}
	}
	for typ := range types {
		require.NotNil(t, plans[typ], "%v", typ)
	}
	for _, typ := range wireTypes() {
		require.NotNil(t, plans[typ], "%v", typ)
	}
}

func benchMessages() []message {
	return []message{benchHeartbeat(), newFiller(1, 0).message(msgDigest), benchUpdate()}
}

func BenchmarkEncode(b *testing.B) {
	for _, m := range benchMessages() {
		b.Run(m.kind().String(), func(b *testing.B) {
			b.ReportAllocs()
			var frame []byte
			w := newValueWriter()
			for b.Loop() {
				frame, _ = w.appendFrame(frame[:0], m)
			}
			b.ReportMetric(float64(len(frame)), "bytes")
		})
		b.Run(m.kind().String()+"/msgpack's own walk", func(b *testing.B) {
			b.ReportAllocs()
			var buf bytes.Buffer
			enc := arrayEncoder(&buf)
			for b.Loop() {
				buf.Reset()
				if err := enc.Encode(m); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(buf.Len()+frameHeader), "bytes")
		})
	}
}

func BenchmarkDecode(b *testing.B) {
	for _, m := range benchMessages() {
		b.Run(m.kind().String(), func(b *testing.B) {
			b.ReportAllocs()
			payload := payloadOf(b, m)
			r := newValueReader()
			for b.Loop() {
				if _, err := r.decodeFrame(m.kind(), payload); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(m.kind().String()+"/msgpack's own walk, unchecked", func(b *testing.B) {
			b.ReportAllocs()
			var buf bytes.Buffer
			require.NoError(b, arrayEncoder(&buf).Encode(m))
			in := bytes.NewReader(nil)
			dec := msgpack.NewDecoder(in)
			for b.Loop() {
				in.Reset(buf.Bytes())
				got, _ := newMessage(m.kind())
				if err := dec.Decode(got); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func arrayEncoder(w io.Writer) *msgpack.Encoder {
	enc := msgpack.NewEncoder(w)
	enc.UseArrayEncodedStructs(true)
	enc.UseCompactInts(true)
	return enc
}
