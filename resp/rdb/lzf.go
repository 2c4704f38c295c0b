package rdb

// LZF is a run of two kinds of steps. A byte below 32 says that one more than
// as many bytes follow as they are. Another is a copy of what was made before:
// its upper three bits and two are the length, or where they are all ones, the
// next byte and nine; its lower five bits and the byte that follows, and one,
// are the distance.

const (
	lzfLiteral = 1 << 5
	lzfLong    = 7
	lzfCopyMin = 2
)

// lzfLen returns how many bytes src yields, without making them: who knows it
// allocates once and never by a length that was merely declared. It is -1 where
// src is malformed, of which bad says where; then what says how.
func lzfLen(src []byte) (n int64, bad int, what string) {
	for i := 0; i < len(src); {
		at := i
		ctrl := int(src[i])
		i++
		if ctrl < lzfLiteral {
			i += ctrl + 1
			if i > len(src) {
				return -1, at, "a literal run goes beyond the end"
			}
			n += int64(ctrl) + 1
			continue
		}
		length := ctrl >> 5
		if length == lzfLong {
			if i == len(src) {
				return -1, at, "the end cuts the length of a copy"
			}
			length += int(src[i])
			i++
		}
		if i == len(src) {
			return -1, at, "the end cuts the distance of a copy"
		}
		distance := int64(ctrl&(lzfLiteral-1))<<8 | int64(src[i]) + 1
		i++
		if distance > n {
			return -1, at, "a copy reaches back beyond the beginning"
		}
		n += int64(length) + lzfCopyMin
	}
	return n, 0, ""
}

// unpackLZF returns what src yields: n bytes, as lzfLen has told.
func unpackLZF(src []byte, n int) []byte {
	dst := make([]byte, 0, n)
	for i := 0; i < len(src); {
		ctrl := int(src[i])
		i++
		if ctrl < lzfLiteral {
			dst = append(dst, src[i:i+ctrl+1]...)
			i += ctrl + 1
			continue
		}
		length := ctrl >> 5
		if length == lzfLong {
			length += int(src[i])
			i++
		}
		distance := ctrl&(lzfLiteral-1)<<8 | int(src[i]) + 1
		i++
		dst = appendCopy(dst, distance, length+lzfCopyMin)
	}
	return dst
}

// appendCopy repeats length bytes from distance before the end of dst. Where
// they overlap what is being written, the run repeats itself: each round copies
// all that there is by then.
func appendCopy(dst []byte, distance, length int) []byte {
	from := len(dst) - distance
	for length > 0 {
		step := min(length, len(dst)-from)
		dst = append(dst, dst[from:from+step]...)
		length -= step
	}
	return dst
}
