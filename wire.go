package slotmesh

import (
	"encoding/binary"
	"fmt"
	"io"
	"slices"
)

// A frame of the bus:
//
//	length   4 bytes, big-endian, of all that follows
//	kind     1 byte: a message below firstBulkKind, bulk data from there on
//	payload  of a message: its value, as codec.go writes it

const (
	firstBulkKind = 64
	frameHeader   = 5

	// What a frame may have, its header included.
	controlLimit = 64 << 10
	claimsLimit  = 1 << 20       // 0.7 MB if every slot goes to a shard of its own
	votesLimit   = 4 << 20       // several such tables
	bulkLimit    = 1<<20 + 1<<10 // a chunk of data and what says whose it is

	// A heartbeat has at most 64 bytes as long as Epoch and Promised are below
	// 2^32, N and Lease below 2^16 and Position below 2^40. One that has outgrown
	// them must still get through, or its sender falls silent: this is as large as
	// the types allow.
	beatLimit = 84
)

// frameLimits says how many bytes a frame of a kind has at most, its header
// included; 0: the kind is not expected.
type frameLimits func(kind byte) int

// busLimits are those of a connection whose handshake is over.
func busLimits(kind byte) int {
	if kind >= firstBulkKind {
		return bulkLimit
	}
	switch k := msgKind(kind); k {
	case msgHeartbeat:
		return beatLimit
	case msgMeet, msgSeed:
		return claimsLimit
	case msgVote, msgGrant, msgRefuse, msgRecord, msgMove, msgStopped, msgStart, msgRecords, msgForward, msgStage:
		return votesLimit
	default:
		if k == 0 || k >= numMsgKinds {
			return 0
		}
		return controlLimit
	}
}

// appendFrame appends the frame of m to dst. On an error, which a message over
// its limit gets, it returns dst as it was.
func (w *valueWriter) appendFrame(dst []byte, m message) ([]byte, error) {
	defer func() { w.out = nil }()
	kind, start := m.kind(), len(dst)
	w.out = append(dst, 0, 0, 0, 0, byte(kind))
	if err := w.message(m); err != nil {
		return dst, fmt.Errorf("slotmesh: %v: %w", kind, err)
	}
	frame := w.out[start:]
	if limit := busLimits(byte(kind)); len(frame) > limit {
		return dst, fmt.Errorf("slotmesh: %v: frame of %d bytes, expected at most %d", kind, len(frame), limit)
	}
	binary.BigEndian.PutUint32(frame, uint32(len(frame)-4))
	return w.out, nil
}

// decodeFrame returns the message of a payload; they share no memory. Whatever
// the payload says, at most four times its length and 64 KB are allocated. An
// error is a *malformed.
func (r *valueReader) decodeFrame(kind msgKind, payload []byte) (message, error) {
	defer r.in.Reset(nil)
	m, err := newMessage(kind)
	if err != nil {
		return nil, &malformed{What: kind.String(), Text: fmt.Sprintf("unknown kind, expected 1 to %d", numMsgKinds-1)}
	}
	if err := checkLimit(byte(kind), frameHeader+int64(len(payload)), busLimits); err != nil {
		return nil, err
	}
	if err := r.message(payload, m); err != nil {
		err.What = kind.String()
		return nil, err
	}
	if err := m.check(); err != nil {
		return nil, &malformed{What: kind.String(), Text: err.Error()}
	}
	return m, nil
}

// readFrame reads one frame and returns its kind and payload. The payload lies
// in buf if there is room and is good until buf is used again. io.EOF means that
// the stream has ended between two frames, a *malformed that the peer does not
// speak this protocol; a frame over its limit is refused after its header.
func readFrame(r io.Reader, limits frameLimits, buf []byte) (kind byte, payload []byte, err error) {
	header := slices.Grow(buf[:0], frameHeader)[:frameHeader]
	if _, err := io.ReadFull(r, header); err == io.EOF {
		return 0, nil, io.EOF
	} else if err != nil {
		return 0, nil, fmt.Errorf("slotmesh: header of a frame: %w", err)
	}
	length, kind := binary.BigEndian.Uint32(header), header[4]
	if payload, err = readPayload(r, kind, length, limits, header[:0]); err != nil {
		return 0, nil, err
	}
	return kind, payload, nil
}

// readPayload is readFrame once it has the header.
func readPayload(r io.Reader, kind byte, length uint32, limits frameLimits, buf []byte) ([]byte, error) {
	if length == 0 {
		return nil, &malformed{What: "frame", Text: "length 0, expected at least 1"}
	}
	if err := checkLimit(kind, int64(length)+4, limits); err != nil {
		return nil, err
	}
	payload, err := readGrowing(r, int(length)-1, buf)
	if err != nil {
		return nil, fmt.Errorf("slotmesh: %v: %d of %d bytes of the payload: %w", msgKind(kind), len(payload), length-1, err)
	}
	return payload, nil
}

func checkLimit(kind byte, size int64, limits frameLimits) error {
	switch limit := limits(kind); {
	case limit == 0:
		return &malformed{What: msgKind(kind).String(), Text: "this kind of frame is not expected here"}
	case size > int64(limit):
		return &malformed{What: msgKind(kind).String(), Text: fmt.Sprintf("frame of %d bytes, expected at most %d", size, limit)}
	default:
		return nil
	}
}

// readGrowing reads n bytes into buf, or into new memory. That grows with what
// has come in, not with what a header has promised: beyond 4 KB it is at most
// twice as much.
func readGrowing(r io.Reader, n int, buf []byte) ([]byte, error) {
	for len(buf) < n {
		have := len(buf)
		want := min(n, max(2*have, cap(buf), 4<<10))
		if want > cap(buf) {
			buf = append(make([]byte, 0, want), buf...)
		}
		got, err := io.ReadFull(r, buf[have:want])
		buf = buf[:have+got]
		if err == io.EOF {
			err = io.ErrUnexpectedEOF // the header has promised more
		}
		if err != nil {
			return buf, err
		}
	}
	return buf, nil
}

// wireBeat is a heartbeat on the wire. msgpack spends a byte on the type of each
// integer and nine on one beyond 2^32, so a busy heartbeat would have 70 bytes.
// What is random or large anyway is therefore packed into one field.
type wireBeat struct {
	Flags    beatFlags
	Packed   [36]byte // Table, Peers, Start, Sent, Answers, low half of Position
	Position uint32   // high half
	Epoch    uint64
	N        uint64
	Lease    uint32
	Promised uint64
}

func (w *wireBeat) pack(h *heartbeat) {
	b := w.Packed[:0]
	b = binary.BigEndian.AppendUint64(b, h.Table)
	b = binary.BigEndian.AppendUint64(b, h.Peers)
	b = binary.BigEndian.AppendUint64(b, h.Start)
	b = binary.BigEndian.AppendUint32(b, h.Sent)
	b = binary.BigEndian.AppendUint32(b, h.Answers)
	binary.BigEndian.AppendUint32(b, uint32(h.Position))
	w.Position = uint32(h.Position >> 32)
	w.Flags, w.Epoch, w.N, w.Lease, w.Promised = h.Flags, h.Epoch, h.N, h.Lease, h.Promised
}

func (w *wireBeat) unpack(h *heartbeat) {
	b := w.Packed[:]
	*h = heartbeat{
		Flags:    w.Flags,
		Table:    binary.BigEndian.Uint64(b),
		Peers:    binary.BigEndian.Uint64(b[8:]),
		Start:    binary.BigEndian.Uint64(b[16:]),
		Sent:     binary.BigEndian.Uint32(b[24:]),
		Answers:  binary.BigEndian.Uint32(b[28:]),
		Position: uint64(w.Position)<<32 | uint64(binary.BigEndian.Uint32(b[32:])),
		Epoch:    w.Epoch,
		N:        w.N,
		Lease:    w.Lease,
		Promised: w.Promised,
	}
}

// message appends the value of a message.
func (w *valueWriter) message(m message) error {
	if h, ok := m.(*heartbeat); ok {
		w.beat.pack(h)
		return w.encode(&w.beat)
	}
	return w.encode(m)
}

// message fills m from a payload.
func (r *valueReader) message(payload []byte, m message) *malformed {
	h, ok := m.(*heartbeat)
	if !ok {
		return r.decode(payload, m)
	}
	if err := r.decode(payload, &r.beat); err != nil {
		return err
	}
	r.beat.unpack(h)
	return nil
}
