package resp

// Reply is where a command puts its reply, in the protocol that the client has
// chosen: what RESP2 has no form for takes the one that Redis gives it there.
type Reply struct{ w writer }

// Simple is a status, as "OK".
func (r *Reply) Simple(s string) { r.w.simple(s) }

// Error is an error: its code, a space and its text.
func (r *Reply) Error(s string) { r.w.err(s) }

// Bulk is a string of bytes.
func (r *Reply) Bulk(b []byte) { r.w.bulk(b) }

// BulkString is Bulk for a string.
func (r *Reply) BulkString(s string) { r.w.bulkString(s) }

// Null is the absence of a value.
func (r *Reply) Null() { r.w.null() }

// NullArray is the absence of an array.
func (r *Reply) NullArray() { r.w.nullArray() }

// Int is a whole number.
func (r *Reply) Int(n int64) { r.w.integer(n) }

// Array announces n replies that follow.
func (r *Reply) Array(n int) { r.w.array(n) }

// Map announces n pairs of replies that follow.
func (r *Reply) Map(n int) { r.w.mapHeader(n) }

// Set announces n replies that follow, in no order.
func (r *Reply) Set(n int) { r.w.setHeader(n) }

// Push announces n replies that follow and answer nothing.
func (r *Reply) Push(n int) { r.w.push(n) }

// Double is a number with a fraction.
func (r *Reply) Double(f float64) { r.w.double(f) }

// Bool is true or false.
func (r *Reply) Bool(b bool) { r.w.boolean(b) }

// Verbatim is text with the kind of it, three letters as "txt".
func (r *Reply) Verbatim(kind, text string) { r.w.verbatim(kind, text) }

// BigNumber is a whole number of any size, in decimal digits.
func (r *Reply) BigNumber(digits string) { r.w.bigNumber(digits) }

// Proto is the protocol, 2 or 3.
func (r *Reply) Proto() int { return r.w.proto }

// reset forgets what was written.
func (r *Reply) reset(proto int) {
	r.clear()
	r.setProto(proto)
}

func (r *Reply) setProto(proto int) { r.w.proto = proto }

// bound sets the number of bytes that may be written.
func (r *Reply) bound(n int) { r.w.limit = max(1, n) }

// giveUp makes it as if more was to be written than may be.
func (r *Reply) giveUp() { r.w.over = true }

// over reports whether more was to be written than may be.
func (r *Reply) over() bool { return r.w.over }

// clear forgets what was written, and keeps the buffer unless it is large.
func (r *Reply) clear() {
	if cap(r.w.buf) > replyKeep {
		r.w.buf = nil
	}
	r.w.buf, r.w.over = r.w.buf[:0], false
}

const replyKeep = 1 << 20 // bytes of a buffer that are kept for the next replies

// size is the number of bytes written.
func (r *Reply) size() int { return len(r.w.buf) }

// truncate forgets what was written after the first n bytes.
func (r *Reply) truncate(n int) { r.w.buf = r.w.buf[:n] }

// raw adds replies that are written already.
func (r *Reply) raw(b []byte) {
	if r.w.fits(len(b)) {
		r.w.buf = append(r.w.buf, b...)
	}
}

// whole adds replies that were counted against the bound already.
func (r *Reply) whole(b []byte) { r.w.buf = append(r.w.buf, b...) }

// bytes is what was written. It is valid until more is.
func (r *Reply) bytes() []byte { return r.w.buf }

// help is what HELP answers: a line per subcommand and per explanation.
func (r *Reply) help(command string, lines ...string) {
	r.Array(len(lines) + 3)
	r.Simple(command + " <subcommand> [<arg> [value] [opt] ...]. Subcommands are:")
	for _, l := range lines {
		r.Simple(l)
	}
	r.Simple("HELP")
	r.Simple("    Prints this help.")
}
