package rdb

import (
	"encoding/binary"
	"fmt"
	"hash/crc64"
	"io"
)

// The bytes that begin what a file has besides values.
const (
	opAux      = 0xFA // a name and a value
	opExpireMS = 0xFC // Unix milliseconds, before the key that expires then
	opSelectDB = 0xFE
	opEnd      = 0xFF
)

const fileBuffer = 64 << 10 // bytes that are written at once, or those of one key if it has more

// File writes an RDB file of version 10, which Redis 7.0 and later load: the keys of
// database 0, one after the other. What it holds is the key that is being written. A
// File is used by one goroutine at a time.
type File struct {
	w   io.Writer
	buf []byte
	sum uint64 // state of the checksum over what has been written
	err error
}

// Aux is something that a file says of itself, as redis-ver.
type Aux struct{ Name, Value string }

// NewFile begins a file. Nothing is written before the first flush.
func NewFile(w io.Writer, about ...Aux) *File {
	f := &File{w: w, sum: ^uint64(0)}
	f.buf = fmt.Appendf(f.buf, "REDIS%04d", versionWritten)
	for _, a := range about {
		f.buf = appendString(appendString(append(f.buf, opAux), []byte(a.Name)), []byte(a.Value))
	}
	f.buf = appendLen(append(f.buf, opSelectDB), 0)
	return f
}

// Key writes a key, which must not have been written before. expireAt is in Unix
// milliseconds, 0 for never. It keeps nothing of v. An error of the writer ends the
// file: every call after it returns the same.
func (f *File) Key(key string, v *Value, expireAt int64) error {
	if f.err != nil {
		return f.err
	}
	if expireAt != 0 {
		f.buf = binary.LittleEndian.AppendUint64(append(f.buf, opExpireMS), uint64(expireAt))
	}
	f.buf = appendObject(appendString(append(f.buf, typeOf(v)), []byte(key)), v)
	if len(f.buf) >= fileBuffer {
		f.flush()
	}
	return f.err
}

// Close ends the file. It does not close the writer.
func (f *File) Close() error {
	if f.err != nil {
		return f.err
	}
	f.buf = append(f.buf, opEnd)
	f.flush()
	f.buf = binary.LittleEndian.AppendUint64(f.buf, ^f.sum)
	f.flush()
	return f.err
}

func (f *File) flush() {
	if f.err != nil {
		return
	}
	f.sum = crc64.Update(f.sum, jones, f.buf)
	_, f.err = f.w.Write(f.buf)
	if f.buf = f.buf[:0]; cap(f.buf) > 2*fileBuffer {
		f.buf = nil // of a large key
	}
}
