package slotmesh

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/slotmesh/slotmesh/store"
)

// Requests between nodes, and the data of hand-overs: frames of bulk data,
// length-prefixed binary. Numbers are unsigned varints of the fewest bytes,
// texts and values a length and their bytes. What becomes a Go value of a fixed
// size, as an argument or an op does, is padded with zeros to a quarter of that
// size: so no frame makes its reader allocate more than four times what came in.

const (
	frameRequest byte = firstBulkKind + iota
	frameReply
	frameDataBegin // a hand-over begins: which slots
	frameData      // a piece of a hand-over: ops of one slot
	frameDataEnd   // the end of a hand-over's data: what it should add up to
	frameDataDone  // answer to frameDataEnd
	framePing      // a sign of life is asked for
	framePong      // and given
	frameSync      // a replica asks its primary for the log; this and the next ones: logwire.go
	frameLogFrom   // the primary's log, from where on, under which epoch
	frameLog       // entries of it
	frameSyncSlot  // everything is copied: what is known of a slot
	frameSyncData  // what it holds
	frameSyncEnd   // and that is all
	frameAck       // a replica has the log up to an offset
)

type requestOp byte

const (
	opGet requestOp = iota + 1
	opSet
	opDelete
	opExpire
	opIncr
	opCompareAndSwap
	opDo
	opHandOff // an operator: give slots to a node, with their data
	opPublish // a message for who listens at a node; not answered
	opWait    // how many members have the log up to a point, once they are enough, or after a while
	opPublishSharded
)

var opNames = map[requestOp]string{opGet: "get", opSet: "set", opDelete: "delete", opExpire: "expire", opIncr: "incr",
	opCompareAndSwap: "compare-and-swap", opDo: "do", opHandOff: "hand-off", opPublish: "publish", opWait: "wait", opPublishSharded: "publish sharded"}

func (o requestOp) String() string {
	if n, ok := opNames[o]; ok {
		return n
	}
	return fmt.Sprintf("op(%d)", byte(o))
}

// request is a call to be run at the primary of a slot.
type request struct {
	id      uint64
	cluster uint64 // tag of the cluster of who asks: a node may have left it meanwhile
	op      requestOp
	slot    Slot
	name    string   // of opDo
	args    [][]byte // key first

	asking bool // sent here by ASK
	acks   int  // members besides the primary that must have what it writes

	wrote logMark // what it has written, where it was run

	shared bool // the arguments share the memory of a frame
}

// oneArg is a request with its only argument, in one piece of memory.
type oneArg struct {
	request
	arg [1][]byte
}

func newOneArg(op requestOp, arg []byte) *request {
	q := &oneArg{request: request{op: op}, arg: [1][]byte{arg}}
	q.args = q.arg[:]
	return &q.request
}

const (
	requestAsking  = 1       // flag
	requestArgsMax = 1 << 16 // arguments of a request; one with more is refused
	requestAcksMax = 1 << 16 // members that a request may want
	argBytesMin    = 6       // an argument on the wire: a slice header is 24 bytes
)

func (r *request) append(b []byte) []byte {
	b = binary.AppendUvarint(b, r.id)
	b = binary.LittleEndian.AppendUint64(b, r.cluster)
	flags := byte(0)
	if r.asking {
		flags = requestAsking
	}
	b = append(b, byte(r.op), flags)
	b = binary.AppendUvarint(b, uint64(r.acks))
	b = binary.AppendUvarint(b, uint64(r.slot))
	b = appendText(b, r.name)
	b = binary.AppendUvarint(b, uint64(len(r.args)))
	for _, a := range r.args {
		start := len(b)
		b = pad(appendText(b, a), start, argBytesMin)
	}
	return b
}

// size is about the bytes that append adds.
func (r *request) size() int {
	n := 32 + len(r.name)
	for _, a := range r.args {
		n += len(a) + argBytesMin
	}
	return n
}

func appendText[T string | []byte](b []byte, text T) []byte {
	b = binary.AppendUvarint(b, uint64(len(text)))
	return append(b, text...)
}

// pad appends zeros to what began at start, until it has size bytes.
func pad(b []byte, start, size int) []byte {
	for len(b)-start < size {
		b = append(b, 0)
	}
	return b
}

// bulkReader reads the fields of a bulk frame. The first error sticks.
type bulkReader struct {
	b   []byte
	err error
}

var errBulk = errors.New("slotmesh: bulk frame is cut short, or not as nodes write it")

func (r *bulkReader) uint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 || n > 1 && r.b[n-1] == 0 {
		r.fail()
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *bulkReader) byte() byte {
	if len(r.b) == 0 {
		r.fail()
		return 0
	}
	v := r.b[0]
	r.b = r.b[1:]
	return v
}

// bytes returns the bytes of a text; they belong to the frame.
func (r *bulkReader) bytes() []byte {
	n := r.uint()
	if n > uint64(len(r.b)) {
		r.fail()
		return nil
	}
	v := r.b[:n:n]
	r.b = r.b[n:]
	return v
}

// unpad skips what pad appended to what began with rest left to read.
func (r *bulkReader) unpad(rest, size int) {
	for r.err == nil && rest-len(r.b) < size {
		if r.byte() != 0 {
			r.fail()
		}
	}
}

func (r *bulkReader) fixed() uint64 {
	if len(r.b) < 8 {
		r.fail()
		return 0
	}
	v := binary.LittleEndian.Uint64(r.b)
	r.b = r.b[8:]
	return v
}

func (r *bulkReader) fail() {
	if r.err == nil {
		r.err = errBulk
	}
	r.b = nil
}

// count reads a count of items that take at least min bytes each.
func (r *bulkReader) count(minBytes, limit int) int {
	n := r.uint()
	if n > uint64(limit) || n*uint64(minBytes) > uint64(len(r.b)) {
		r.fail()
		return 0
	}
	return int(n)
}

func (r *bulkReader) slot() Slot {
	n := r.uint()
	if n >= NumSlots {
		r.fail()
		return 0
	}
	return Slot(n)
}

func (r *bulkReader) done() error {
	if r.err == nil && len(r.b) > 0 {
		return fmt.Errorf("slotmesh: bulk frame has %d bytes too many", len(r.b))
	}
	return r.err
}

// decodeRequest reads a request. Its arguments share the payload's memory.
func decodeRequest(payload []byte) (*request, error) {
	r := bulkReader{b: payload}
	one := &oneArg{request: request{shared: true, id: r.uint(), cluster: r.fixed(), op: requestOp(r.byte())}}
	q := &one.request
	flags := r.byte()
	q.asking = flags == requestAsking
	acks := r.uint()
	if q.acks = int(min(acks, requestAcksMax)); acks > requestAcksMax {
		r.fail()
	}
	q.slot, q.name = r.slot(), string(r.bytes())
	switch n := r.count(argBytesMin, requestArgsMax); n {
	case 0:
	case 1:
		q.args = one.arg[:]
	default:
		q.args = make([][]byte, n)
	}
	for i := range q.args {
		rest := len(r.b)
		q.args[i] = r.bytes()
		r.unpad(rest, argBytesMin)
	}
	if err := r.done(); err != nil {
		return nil, err
	}
	if flags > requestAsking {
		return nil, fmt.Errorf("slotmesh: request with flags %d, expected at most %d", flags, requestAsking)
	}
	if _, known := opNames[q.op]; !known {
		return nil, fmt.Errorf("slotmesh: request of kind %d, expected 1 to %d", byte(q.op), len(opNames))
	}
	return q, nil
}

// status says how a request has ended.
type status byte

const (
	statusOK status = iota
	statusNotFound
	statusMoved
	statusAsk
	statusTryAgain
	statusDown
	statusCommandError
	statusUnknownCommand
	statusTooLarge
	statusCrossSlot
	statusReadOnly
	statusConflict
	statusInvalid
	statusRefused
	statusClosed
	statusInTx
	statusNoReplicas
	statusOther
	numStatuses
)

// statusErrors are the sentinels behind the statuses that have one.
var statusErrors = [numStatuses]error{statusNotFound: ErrNotFound, statusTryAgain: ErrTryAgain, statusDown: ErrClusterDown,
	statusUnknownCommand: ErrUnknownCommand, statusTooLarge: ErrTooLarge, statusCrossSlot: ErrCrossSlot, statusReadOnly: ErrReadOnly,
	statusConflict: ErrConflict, statusInvalid: ErrInvalid, statusRefused: ErrRefused, statusClosed: ErrClosed, statusInTx: ErrInTx, statusNoReplicas: ErrNoReplicas}

// response is the answer to a request.
type response struct {
	id      uint64
	status  status
	outcome Outcome
	node    NodeID // of statusMoved and statusAsk
	addr    string
	code    string // of statusCommandError
	text    string
	value   []byte
	wrote   logPoint // how far the log of who answers has to be had for what the request has written
}

func (r *response) append(b []byte) []byte {
	b = binary.AppendUvarint(b, r.id)
	b = append(b, byte(r.status), byte(r.outcome))
	b = append(b, r.node[:]...)
	b = appendText(b, r.addr)
	b = appendText(b, r.code)
	b = appendText(b, r.text)
	return r.wrote.append(appendText(b, r.value))
}

// decodeResponse reads a response. Its value shares the payload's memory.
func decodeResponse(payload []byte) (p response, err error) {
	r := bulkReader{b: payload}
	p = response{id: r.uint(), status: status(r.byte()), outcome: Outcome(r.byte())}
	for i := range p.node {
		p.node[i] = r.byte()
	}
	p.addr, p.code, p.text = string(r.bytes()), string(r.bytes()), string(r.bytes())
	p.value, p.wrote = r.bytes(), r.point()
	if err := r.done(); err != nil {
		return response{}, err
	}
	if p.status >= numStatuses || p.outcome > Unknown {
		return response{}, fmt.Errorf("slotmesh: response of status %d, outcome %d: expected below %d and %d", p.status, p.outcome, numStatuses, Unknown+1)
	}
	return p, nil
}

// failed fills in how a request has failed.
func (r *response) failed(err error, ran bool) {
	r.outcome = outcomeOf(ran)
	r.text = cut(err.Error(), errorTextMax)
	moved, isMoved := errors.AsType[*MovedError](err)
	ask, isAsk := errors.AsType[*AskError](err)
	cmd, isCmd := errors.AsType[*CommandError](err)
	switch {
	case isMoved:
		r.status, r.node, r.addr, r.text = statusMoved, moved.Node, moved.Addr, ""
	case isAsk:
		r.status, r.node, r.addr, r.text = statusAsk, ask.Node, ask.Addr, ""
	case isCmd:
		r.status, r.code, r.text = statusCommandError, cut(cmd.Code, commandCodeMax), cut(cmd.Text, errorTextMax)
	default:
		if admin, ok := errors.AsType[*AdminError](err); ok {
			r.outcome, r.text = admin.Outcome, cut(admin.Text, errorTextMax)
		}
		r.status = statusOther
		for s, sentinel := range statusErrors {
			if sentinel != nil && errors.Is(err, sentinel) {
				r.status = status(s)
				break
			}
		}
	}
}

// remoteError is an error of another node, with its words.
type remoteError struct {
	text string
	is   error
}

func (e *remoteError) Error() string { return e.text }
func (e *remoteError) Unwrap() error { return e.is }

// error is the error that a response stands for; nil if it is none.
func (r *response) error(slot Slot) error {
	switch r.status {
	case statusOK:
		return nil
	case statusMoved:
		return &MovedError{Slot: slot, Node: r.node, Addr: r.addr}
	case statusAsk:
		return &AskError{Slot: slot, Node: r.node, Addr: r.addr}
	case statusCommandError:
		return &CommandError{Code: r.code, Text: r.text}
	}
	is := statusErrors[r.status]
	if is != nil && r.text == is.Error() {
		return is
	}
	return &remoteError{r.text, is}
}

// ---- data of hand-overs

// dataBegin says which slots a hand-over is about to bring.
type dataBegin struct {
	job   uint64
	order jobOrder
	slots SlotSet
}

func (d *dataBegin) append(b []byte) []byte {
	b = binary.AppendUvarint(b, d.job)
	b = binary.AppendUvarint(b, d.order.epoch)
	b = binary.AppendUvarint(b, d.order.position)
	return appendText(b, d.slots.String())
}

func decodeDataBegin(payload []byte) (*dataBegin, error) {
	r := bulkReader{b: payload}
	d := &dataBegin{job: r.uint(), order: jobOrder{r.uint(), r.uint()}}
	text := string(r.bytes())
	if err := r.done(); err != nil {
		return nil, err
	}
	var err error
	if d.slots, err = ParseSlotSet(text); err == nil && d.slots.String() != text {
		err = fmt.Errorf("slotmesh: slots %q, expected %q", text, d.slots.String())
	}
	return d, err
}

// hashText mixes a text into a sum.
func hashText[T string | []byte](h uint64, text T) uint64 {
	h = hashUint(h, uint64(len(text)))
	for len(text) >= 8 {
		h = hashUint(h, uint64(text[0])|uint64(text[1])<<8|uint64(text[2])<<16|uint64(text[3])<<24|
			uint64(text[4])<<32|uint64(text[5])<<40|uint64(text[6])<<48|uint64(text[7])<<56)
		text = text[8:]
	}
	last := uint64(0)
	for i := range len(text) {
		last |= uint64(text[i]) << (8 * i)
	}
	return hashUint(h, last)
}

// dataPiece is a piece of a hand-over: effects of one slot, in order.
type dataPiece struct {
	job  uint64
	slot Slot
	ops  []store.Op
}

func appendPiece(b []byte, job uint64, slot Slot, ops []store.Op) []byte {
	b = binary.AppendUvarint(b, job)
	b = binary.AppendUvarint(b, uint64(slot))
	return appendOps(b, ops)
}

func appendOps(b []byte, ops []store.Op) []byte {
	b = binary.AppendUvarint(b, uint64(len(ops)))
	for i := range ops {
		o, start := &ops[i], len(b)
		b = append(b, byte(o.Code), o.Kind)
		b = appendText(b, o.Key)
		b = appendText(b, o.Field)
		b = appendText(b, o.Value)
		b = binary.LittleEndian.AppendUint64(b, uint64(o.ExpireAt))
		b = pad(b, start, opBytesMin)
	}
	return b
}

const (
	pieceOpsMax = 1 << 14 // ops of a piece; one with more is refused
	opBytesMin  = 32      // an op on the wire: in memory it is 72 bytes and three texts
)

// decodePiece reads a piece. Its texts and values are copies: the store keeps
// them.
func decodePiece(payload []byte) (*dataPiece, error) {
	r := bulkReader{b: payload}
	p := &dataPiece{job: r.uint(), slot: r.slot(), ops: r.ops()}
	if err := r.done(); err != nil {
		return nil, err
	}
	return p, store.CheckOps(p.ops)
}

// ops reads what appendOps has written. Texts and values are copies.
func (r *bulkReader) ops() []store.Op {
	n := r.count(opBytesMin, pieceOpsMax)
	ops := make([]store.Op, 0, n)
	for range n {
		rest := len(r.b)
		o := store.Op{Code: store.OpCode(r.byte()), Kind: r.byte(), Key: string(r.bytes()), Field: string(r.bytes())}
		if v := r.bytes(); len(v) > 0 {
			o.Value = append(make([]byte, 0, len(v)), v...)
		}
		o.ExpireAt = int64(r.fixed())
		r.unpad(rest, opBytesMin)
		if r.err != nil {
			break
		}
		ops = append(ops, o)
	}
	return ops
}

// dataEnd says what the data of a hand-over adds up to, as of a position of the
// giver: per slot the number of keys and a sum over its entries.
type dataEnd struct {
	job      uint64
	position uint64
	sums     []slotSum
}

type slotSum struct {
	slot Slot
	keys uint64
	sum  uint64
}

func (d *dataEnd) append(b []byte) []byte {
	b = binary.AppendUvarint(b, d.job)
	b = binary.AppendUvarint(b, d.position)
	b = binary.AppendUvarint(b, uint64(len(d.sums)))
	for _, s := range d.sums {
		b = binary.AppendUvarint(b, uint64(s.slot))
		b = binary.AppendUvarint(b, s.keys)
		b = binary.LittleEndian.AppendUint64(b, s.sum)
	}
	return b
}

func decodeDataEnd(payload []byte) (*dataEnd, error) {
	r := bulkReader{b: payload}
	d := &dataEnd{job: r.uint(), position: r.uint()}
	n := r.count(10, NumSlots)
	d.sums = make([]slotSum, n)
	for i := range d.sums {
		d.sums[i] = slotSum{slot: r.slot(), keys: r.uint(), sum: r.fixed()}
	}
	return d, r.done()
}

// dataDone answers dataEnd; text says what is wrong, "" nothing.
type dataDone struct {
	job      uint64
	position uint64
	text     string
}

func (d *dataDone) append(b []byte) []byte {
	b = binary.AppendUvarint(b, d.job)
	b = binary.AppendUvarint(b, d.position)
	return appendText(b, d.text)
}

func decodeDataDone(payload []byte) (*dataDone, error) {
	r := bulkReader{b: payload}
	d := &dataDone{job: r.uint(), position: r.uint(), text: string(r.bytes())}
	return d, r.done()
}
