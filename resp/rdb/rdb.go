// Package rdb reads and writes the payload of one key as Redis's DUMP returns
// it and RESTORE takes it: a type byte, the object in the encoding of RDB
// files, the RDB version in two bytes and a CRC64 in eight.
//
// [File] writes whole RDB files, for tools that ask a server for one.
//
// [Append] writes the plain encodings of RDB version 10, which every Redis
// since 7.0 restores; older ones refuse the version. [Parse] reads what any Redis up to 7.2 dumps: the plain
// encodings and the packed ones (ziplist, zipmap, intset, listpack, quicklist),
// integers, and LZF. It refuses what Redis refuses with sanitize-dump-payload yes,
// and some of what Redis takes but never writes: values that run into version and
// checksum or end before them, scores that are no number, packed collections
// whose heads or lengths are not as Redis leaves them.
//
// The package is pure: no goroutine, no state between calls. All functions may
// be called from several goroutines at once.
package rdb

import (
	"bytes"
	"encoding/binary"
	"hash/crc64"
)

// Kind is the type of a value, as the command TYPE tells it.
type Kind byte

// The kinds of values. Streams and values of modules are not among them.
const (
	String Kind = iota
	List
	Set
	Hash
	SortedSet
)

// String returns the name that the command TYPE answers with.
func (k Kind) String() string {
	switch k {
	case String:
		return "string"
	case List:
		return "list"
	case Set:
		return "set"
	case Hash:
		return "hash"
	case SortedSet:
		return "zset"
	default:
		return "unknown"
	}
}

// Value is the value of one key. Only the field that Kind names is used. The
// zero value is the empty string.
//
// Redis knows no empty list, set, hash or sorted set, no member or field twice
// and no score that is not a number: Append writes them as they are given, and
// both Parse and Redis refuse them.
type Value struct {
	Kind      Kind
	String    []byte
	List      [][]byte // from head to tail
	Set       [][]byte // in any order
	Hash      []Pair   // in any order
	SortedSet []Scored // in any order
}

// Pair is a field of a hash.
type Pair struct{ Field, Value []byte }

// Scored is a member of a sorted set.
type Scored struct {
	Member []byte
	Score  float64 // may be infinite
}

// The limits that hold where Limits has zero.
const (
	DefaultBytes    = 512 << 20 // as Redis's proto-max-bulk-len
	DefaultElements = 1 << 24
)

// Limits bounds what Parse makes of a payload. LZF can make 88 bytes of one,
// and a list of small integers in LZF a slice header of 24 bytes of less than
// a bit, so that the length of the payload is no bound by itself.
type Limits struct {
	// Bytes bounds the bytes of the elements of a value together (of fields and
	// values, of members), and by itself what LZF yields in one payload. Zero or
	// less: DefaultBytes.
	Bytes int
	// Elements bounds the elements of a list, the members of a set or a sorted
	// set, the fields of a hash. Zero or less: DefaultElements.
	Elements int
}

// withDefaults returns l with its defaults filled in.
func (l Limits) withDefaults() Limits {
	if l.Bytes <= 0 {
		l.Bytes = DefaultBytes
	}
	if l.Elements <= 0 {
		l.Elements = DefaultElements
	}
	l.Elements = min(l.Elements, maxSeen)
	return l
}

const (
	versionWritten = 10 // of Redis 7.0
	versionRead    = 11 // of Redis 7.2; Redis refuses what is newer than itself, too
	footerLen      = 2 + 8
)

// Parse reads a payload of DUMP. What it allocates grows with the bytes that are
// present and is bounded by limits; lengths that a payload merely declares cost
// nothing.
//
// The value owns its memory: payload may be reused at once. Its elements may
// share a block of memory, without overlapping, so that one of them kept keeps
// all; each has no spare capacity. Slices of length zero are not nil.
//
// A checksum of zero is not checked. So does Redis since it can migrate slots
// by itself; Redis 7 refuses it.
//
// The error is an [*Error] that matches [ErrFooter], [ErrFormat],
// [ErrUnsupported] or [ErrLimit]; the value is the zero value then.
func Parse(payload []byte, limits Limits) (Value, error) {
	body, err := checkFooter(payload)
	if err != nil {
		return Value{}, err
	}
	p := parser{limits: limits.withDefaults()}
	c := cursor{data: bytes.Clone(body)}
	if err := p.object(&c); err != nil {
		return Value{}, err
	}
	return p.value, nil
}

// checkFooter returns what stands before version and checksum.
func checkFooter(payload []byte) (body []byte, err error) {
	end := len(payload) - footerLen
	if end < 0 {
		return nil, failure(ErrFooter, 0, "a payload of %d bytes has no room for the %d of version and checksum", len(payload), footerLen)
	}
	footer := payload[end:]
	if v := binary.LittleEndian.Uint16(footer); v > versionRead {
		return nil, failure(ErrFooter, end, "RDB version %d, newer than %d", v, versionRead)
	}
	want := binary.LittleEndian.Uint64(footer[2:])
	if want == 0 {
		return payload[:end], nil
	}
	if got := checksum(payload[:end+2]); got != want {
		return nil, failure(ErrFooter, end+2, "checksum %016x, the bytes before it give %016x", want, got)
	}
	return payload[:end], nil
}

// jones is the table of the polynomial 0xAD93D23594C935A9, bits reflected; it
// is only read.
var jones = crc64.MakeTable(0x95AC9329AC4BC9B5)

// checksum returns the CRC64 of b as Redis computes it: it begins with zero and
// inverts nothing, while hash/crc64 inverts before and after.
func checksum(b []byte) uint64 {
	return ^crc64.Update(^uint64(0), jones, b)
}
