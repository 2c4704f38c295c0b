package rdb

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
)

// The type bytes of RDB.
const (
	typeString         = 0
	typeList           = 1
	typeSet            = 2
	typeZset           = 3 // scores as text
	typeHash           = 4
	typeZset2          = 5 // scores as binary doubles
	typeModulePreGA    = 6
	typeModule         = 7
	typeHashZipmap     = 9
	typeListZiplist    = 10
	typeSetIntset      = 11
	typeZsetZiplist    = 12
	typeHashZiplist    = 13
	typeListQuicklist  = 14 // nodes are ziplists
	typeStream         = 15
	typeHashListpack   = 16
	typeZsetListpack   = 17
	typeListQuicklist2 = 18 // nodes are listpacks or single elements
	typeStream2        = 19
	typeSetListpack    = 20
	typeStream3        = 21
)

// The first byte of a length: two bits say how it goes on.
const (
	len6    = 0x00 // six bits here
	len14   = 0x40 // six bits here, eight in the next byte
	len32   = 0x80 // four bytes, big endian
	len64   = 0x81 // eight bytes, big endian
	lenCode = 0xC0 // no length: six bits name the encoding of a string

	lenBits = 0xC0 // masks those two bits
)

// Append appends the payload of v to dst and returns the extended slice. It
// keeps nothing of v. It panics if v.Kind is none of the kinds of this package;
// what else it does not check is told at Value.
func Append(dst []byte, v *Value) []byte {
	start := len(dst)
	dst = slices.Grow(dst, payloadLen(v))
	dst = appendObject(append(dst, typeOf(v)), v)
	dst = binary.LittleEndian.AppendUint16(dst, versionWritten)
	return binary.LittleEndian.AppendUint64(dst, checksum(dst[start:]))
}

// typeOf is the type byte of v.
func typeOf(v *Value) byte {
	switch v.Kind {
	case String:
		return typeString
	case List:
		return typeList
	case Set:
		return typeSet
	case Hash:
		return typeHash
	case SortedSet:
		return typeZset2
	default:
		panic(fmt.Sprintf("rdb: Append of a value of kind %d", v.Kind))
	}
}

// appendObject appends what follows the type byte of v.
func appendObject(dst []byte, v *Value) []byte {
	switch v.Kind {
	case String:
		dst = appendString(dst, v.String)
	case List:
		dst = appendStrings(dst, v.List)
	case Set:
		dst = appendStrings(dst, v.Set)
	case Hash:
		dst = appendLen(dst, len(v.Hash))
		for _, pair := range v.Hash {
			dst = appendString(appendString(dst, pair.Field), pair.Value)
		}
	case SortedSet:
		dst = appendLen(dst, len(v.SortedSet))
		for _, s := range v.SortedSet {
			dst = binary.LittleEndian.AppendUint64(appendString(dst, s.Member), math.Float64bits(s.Score))
		}
	}
	return dst
}

// payloadLen returns how many bytes Append writes, so that dst grows once.
func payloadLen(v *Value) int {
	n := 1 + footerLen
	switch v.Kind {
	case String:
		n += stringLen(v.String)
	case List:
		n += stringsLen(v.List)
	case Set:
		n += stringsLen(v.Set)
	case Hash:
		n += lenLen(len(v.Hash))
		for _, pair := range v.Hash {
			n += stringLen(pair.Field) + stringLen(pair.Value)
		}
	case SortedSet:
		n += lenLen(len(v.SortedSet))
		for _, s := range v.SortedSet {
			n += stringLen(s.Member) + 8
		}
	}
	return n
}

func appendStrings(dst []byte, list [][]byte) []byte {
	dst = appendLen(dst, len(list))
	for _, s := range list {
		dst = appendString(dst, s)
	}
	return dst
}

func stringsLen(list [][]byte) int {
	n := lenLen(len(list))
	for _, s := range list {
		n += stringLen(s)
	}
	return n
}

func appendString(dst, s []byte) []byte {
	return append(appendLen(dst, len(s)), s...)
}

func stringLen(s []byte) int { return lenLen(len(s)) + len(s) }

func appendLen(dst []byte, n int) []byte {
	switch {
	case n < 1<<6:
		return append(dst, len6|byte(n))
	case n < 1<<14:
		return append(dst, len14|byte(n>>8), byte(n))
	case uint64(n) <= math.MaxUint32:
		return binary.BigEndian.AppendUint32(append(dst, len32), uint32(n))
	default:
		return binary.BigEndian.AppendUint64(append(dst, len64), uint64(n))
	}
}

func lenLen(n int) int {
	switch {
	case n < 1<<6:
		return 1
	case n < 1<<14:
		return 2
	case uint64(n) <= math.MaxUint32:
		return 5
	default:
		return 9
	}
}
