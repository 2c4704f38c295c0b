package rdb

import (
	"bytes"
	"encoding/binary"
	"math"
	"slices"
)

// This file builds payloads in the encodings that Append does not write.

// payload closes a body with the version and the checksum.
func payload(parts ...[]byte) []byte {
	return withFooter(versionRead, slices.Concat(parts...))
}

func withFooter(version uint16, body []byte) []byte {
	b := binary.LittleEndian.AppendUint16(slices.Clone(body), version)
	return binary.LittleEndian.AppendUint64(b, checksum(b))
}

// unchecked closes a body with the checksum that nobody checks.
func unchecked(body []byte) []byte {
	b := binary.LittleEndian.AppendUint16(slices.Clone(body), versionRead)
	return binary.LittleEndian.AppendUint64(b, 0)
}

func raw(b ...byte) []byte    { return b }
func length(n int) []byte     { return appendLen(nil, n) }
func rstr(s string) []byte    { return appendString(nil, []byte(s)) }
func rbytes(b []byte) []byte  { return appendString(nil, b) }
func double(f float64) []byte { return binary.LittleEndian.AppendUint64(nil, math.Float64bits(f)) }
func short(s string) []byte   { return append([]byte{byte(len(s))}, s...) }
func le16(n int) []byte       { return binary.LittleEndian.AppendUint16(nil, uint16(n)) }
func le32(n int) []byte       { return binary.LittleEndian.AppendUint32(nil, uint32(n)) }
func le64(n int64) []byte     { return binary.LittleEndian.AppendUint64(nil, uint64(n)) }
func lzfString(b []byte) []byte {
	c := compressLZF(b)
	return slices.Concat(raw(lenCode|codeLZF), length(len(c)), length(len(b)), c)
}

// pack closes entries as a listpack.
func pack(count int, entries ...[]byte) []byte {
	body := slices.Concat(entries...)
	return slices.Concat(le32(4+2+len(body)+1), le16(count), body, raw(packedEnd))
}

// lp returns the listpack of strings and integers.
func lp(entries ...any) []byte {
	packed := make([][]byte, len(entries))
	for i, e := range entries {
		packed[i] = lpEntryOf(e)
	}
	return pack(len(entries), packed...)
}

func lpEntryOf(e any) []byte {
	switch e := e.(type) {
	case int:
		return withBackLength(lpIntOf(int64(e)))
	case int64:
		return withBackLength(lpIntOf(e))
	case string:
		return withBackLength(slices.Concat(lpHeadOf(len(e)), []byte(e)))
	default:
		panic("a listpack holds strings and ints")
	}
}

func lpHeadOf(n int) []byte {
	switch {
	case n < 1<<6:
		return raw(lpStr6 | byte(n))
	case n < 1<<12:
		return raw(lpStr12|byte(n>>8), byte(n))
	default:
		return append(raw(lpStr32), le32(n)...)
	}
}

func lpIntOf(n int64) []byte {
	switch {
	case n >= 0 && n < 1<<7:
		return raw(byte(n))
	case fits(n, 13):
		return raw(lpInt13|byte(n>>8)&0x1F, byte(n))
	case fits(n, 16):
		return append(raw(lpInt16), le64(n)[:2]...)
	case fits(n, 24):
		return append(raw(lpInt24), le64(n)[:3]...)
	case fits(n, 32):
		return append(raw(lpInt32), le64(n)[:4]...)
	default:
		return append(raw(lpInt64), le64(n)...)
	}
}

func fits(n int64, bits int) bool { return n<<(64-bits)>>(64-bits) == n }

// withBackLength appends the length of an entry to it, from the last seven bits
// to the first.
func withBackLength(entry []byte) []byte {
	n := len(entry)
	back := make([]byte, backLengthLen(n))
	for i := range slices.Backward(back) {
		back[i] = byte(n)&0x7F | 0x80
		n >>= 7
	}
	back[0] &= 0x7F
	return append(entry, back...)
}

// zl returns the ziplist of strings and integers.
func zl(entries ...any) []byte {
	var body []byte
	last, prev := 10, 0
	for _, e := range entries {
		last = 10 + len(body)
		body = append(body, zlPrevOf(prev)...)
		body = append(body, zlEntryOf(e)...)
		prev = 10 + len(body) - last
	}
	return slices.Concat(le32(10+len(body)+1), le32(last), le16(min(len(entries), countUnknown)), body, raw(packedEnd))
}

func zlPrevOf(n int) []byte {
	if n < zlLongPrev {
		return raw(byte(n))
	}
	return append(raw(zlLongPrev), le32(n)...)
}

func zlEntryOf(e any) []byte {
	switch e := e.(type) {
	case int:
		return zlIntOf(int64(e))
	case int64:
		return zlIntOf(e)
	case string:
		return slices.Concat(zlHeadOf(len(e)), []byte(e))
	default:
		panic("a ziplist holds strings and ints")
	}
}

func zlHeadOf(n int) []byte {
	switch {
	case n < 1<<6:
		return raw(zlStr6 | byte(n))
	case n < 1<<14:
		return raw(zlStr14|byte(n>>8), byte(n))
	default:
		return binary.BigEndian.AppendUint32(raw(zlStr32), uint32(n))
	}
}

func zlIntOf(n int64) []byte {
	switch {
	case n >= 0 && n <= 12:
		return raw(zlUint4Min + byte(n))
	case fits(n, 8):
		return append(raw(zlInt8), byte(n))
	case fits(n, 16):
		return append(raw(zlInt16), le64(n)[:2]...)
	case fits(n, 24):
		return append(raw(zlInt24), le64(n)[:3]...)
	case fits(n, 32):
		return append(raw(zlInt32), le64(n)[:4]...)
	default:
		return append(raw(zlInt64), le64(n)...)
	}
}

// zm returns the zipmap of fields and values in turn. Every value has as many
// unused bytes behind it as its field is long.
func zm(fieldsAndValues ...string) []byte {
	b := raw(byte(min(len(fieldsAndValues)/2, zmMany)))
	for pair := range slices.Chunk(fieldsAndValues, 2) {
		free := len(pair[0])
		if free >= zmMany {
			free = 0
		}
		b = slices.Concat(b, zmLengthOf(len(pair[0])), []byte(pair[0]), zmLengthOf(len(pair[1])), raw(byte(free)), []byte(pair[1]), make([]byte, free))
	}
	return append(b, packedEnd)
}

func zmLengthOf(n int) []byte {
	if n < zmLong {
		return raw(byte(n))
	}
	return append(raw(zmLong), le32(n)...)
}

// is returns the intset of nums, each width bytes wide.
func is(width int, nums ...int64) []byte {
	b := slices.Concat(le32(width), le32(len(nums)))
	for _, n := range nums {
		b = append(b, le64(n)[:width]...)
	}
	return b
}

// compressLZF compresses b, so that long runs and far copies come about.
func compressLZF(b []byte) []byte {
	var out []byte
	seen := map[[3]byte]int{}
	literal := 0 // where the bytes begin that are not written yet
	flush := func(end int) {
		for run := range slices.Chunk(b[literal:end], lzfLiteral) {
			out = append(append(out, byte(len(run)-1)), run...)
		}
	}
	for i := 0; i+3 <= len(b); {
		key := [3]byte(b[i:])
		from, ok := seen[key]
		seen[key] = i
		if !ok || i-from > 1<<13 {
			i++
			continue
		}
		flush(i)
		n := commonPrefix(b[from:], b[i:])
		out = appendLZFCopy(out, i-from, n)
		i += n
		literal = i
	}
	flush(len(b))
	return out
}

func appendLZFCopy(out []byte, distance, n int) []byte {
	n -= lzfCopyMin
	distance--
	if n < lzfLong {
		return append(out, byte(n<<5|distance>>8), byte(distance))
	}
	return append(out, byte(lzfLong<<5|distance>>8), byte(n-lzfLong), byte(distance))
}

// commonPrefix returns how far a and b agree, as far as one copy reaches.
func commonPrefix(a, b []byte) int {
	n := 0
	for n < min(len(b), 264) && a[n] == b[n] {
		n++
	}
	return n
}

func repeat(n int, part ...byte) []byte { return bytes.Repeat(part, n) }
