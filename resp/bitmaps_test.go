package resp

import (
	"math/big"
	"math/rand/v2"
	"testing"
)

func TestSingleBits(t *testing.T) {
	b := newBench(t)
	b.replies(
		[2]string{`SETBIT a 7 1`, ":0\r\n"},
		[2]string{`GETBIT a 7`, ":1\r\n"},
		[2]string{`GETBIT a 6`, ":0\r\n"},
		[2]string{`GETBIT a 100000`, ":0\r\n"},
		[2]string{`GET a`, "$1\r\n\x01\r\n"},
		[2]string{`SETBIT a 7 0`, ":1\r\n"},
		[2]string{`GET a`, "$1\r\n\x00\r\n"},
		[2]string{`SETBIT a 15 0`, ":0\r\n"},
		[2]string{`STRLEN a`, ":2\r\n"},
		[2]string{`SETBIT a x 1`, "-ERR bit offset is not an integer or out of range\r\n"},
		[2]string{`SETBIT a -1 1`, "-ERR bit offset is not an integer or out of range\r\n"},
		[2]string{`SETBIT a 536870912 1`, "-ERR bit offset is not an integer or out of range\r\n"},
		[2]string{`SETBIT a 4294967296 1`, "-ERR bit offset is not an integer or out of range\r\n"},
		[2]string{`SETBIT a 1 2`, "-ERR bit is not an integer or out of range\r\n"},
		[2]string{`SETBIT a 1 x`, "-ERR bit is not an integer or out of range\r\n"},
		[2]string{`SETBIT a 1 -1`, "-ERR bit is not an integer or out of range\r\n"},
		[2]string{`GETBIT a x`, "-ERR bit offset is not an integer or out of range\r\n"},
		[2]string{`GETBIT a -1`, "-ERR bit offset is not an integer or out of range\r\n"},
		[2]string{`GETBIT a 536870912`, "-ERR bit offset is not an integer or out of range\r\n"},
		[2]string{`GETBIT nothing 5`, ":0\r\n"},
		[2]string{`SET a v EX 100`, "+OK\r\n"},
		[2]string{`SETBIT a 1 1`, ":1\r\n"},
		[2]string{`TTL a`, ":100\r\n"},
		[2]string{`RPUSH list x`, ":1\r\n"},
		[2]string{`SETBIT list 1 1`, "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"},
		[2]string{`SETBIT list x 1`, "-ERR bit offset is not an integer or out of range\r\n"},
		[2]string{`GETBIT list 1`, "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"},
	)
}

func TestBitcount(t *testing.T) {
	b := newBench(t)
	b.replies(
		[2]string{`SET a foobar`, "+OK\r\n"},
		[2]string{`BITCOUNT a`, ":26\r\n"},
		[2]string{`BITCOUNT a 0 0`, ":4\r\n"},
		[2]string{`BITCOUNT a 1 1`, ":6\r\n"},
		[2]string{`BITCOUNT a 0 -1`, ":26\r\n"},
		[2]string{`BITCOUNT a -2 -1`, ":7\r\n"},
		[2]string{`BITCOUNT a 5 30 BIT`, ":17\r\n"},
		[2]string{`BITCOUNT a 1 1 byte`, ":6\r\n"},
		[2]string{`BITCOUNT a -100 100`, ":26\r\n"},
		[2]string{`BITCOUNT a 3 1`, ":0\r\n"},
		[2]string{`BITCOUNT a -1 -3`, ":0\r\n"},
		[2]string{`BITCOUNT a -3 -900 wrong`, ":0\r\n"},
		[2]string{`BITCOUNT a 0 -900 wrong`, "-ERR syntax error\r\n"},
		[2]string{`BITCOUNT a -200 -100`, ":4\r\n"},
		[2]string{`BITCOUNT a 0 -100 BIT`, ":0\r\n"},
		[2]string{`BITCOUNT a 0 1 wrong`, "-ERR syntax error\r\n"},
		[2]string{`BITCOUNT a 0`, "-ERR syntax error\r\n"},
		[2]string{`BITCOUNT a 0 1 BIT x`, "-ERR syntax error\r\n"},
		[2]string{`BITCOUNT a x 1`, "-ERR value is not an integer or out of range\r\n"},
		[2]string{`BITCOUNT a 1 x`, "-ERR value is not an integer or out of range\r\n"},
		[2]string{`BITCOUNT a 9223372036854775807 9223372036854775807 BYTE`, ":0\r\n"},
		[2]string{`BITCOUNT nothing`, ":0\r\n"},
		[2]string{`BITCOUNT nothing x y`, ":0\r\n"},
		[2]string{`BITCOUNT nothing 1`, ":0\r\n"},
		[2]string{`SET b "\x00\xff\x00\xff\x00\xff\x00\xff\x00\xff\x00\xff\x00\xff\x00\xff\x01"`, "+OK\r\n"},
		[2]string{`BITCOUNT b`, ":65\r\n"},
		[2]string{`BITCOUNT b 9 127 BIT`, ":63\r\n"},
		[2]string{`BITCOUNT b 12 131 BIT`, ":60\r\n"},
		[2]string{`BITCOUNT b 12 13 BIT`, ":2\r\n"},
		[2]string{`SET e ""`, "+OK\r\n"},
		[2]string{`BITCOUNT e`, ":0\r\n"},
		[2]string{`BITCOUNT e 0 -1`, ":0\r\n"},
		[2]string{`RPUSH list x`, ":1\r\n"},
		[2]string{`BITCOUNT list`, "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"},
		[2]string{`BITCOUNT list x y`, "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"},
	)
}

func TestBitpos(t *testing.T) {
	b := newBench(t)
	b.replies(
		[2]string{`SET a "\xff\xf0\x00"`, "+OK\r\n"},
		[2]string{`BITPOS a 0`, ":12\r\n"},
		[2]string{`BITPOS a 1`, ":0\r\n"},
		[2]string{`BITPOS a 1 2`, ":-1\r\n"},
		[2]string{`BITPOS a 0 0 0`, ":-1\r\n"},
		[2]string{`BITPOS a 0 0`, ":12\r\n"},
		[2]string{`BITPOS a 0 -1`, ":16\r\n"},
		[2]string{`SET b "\xff\xff\xff"`, "+OK\r\n"},
		[2]string{`BITPOS b 0`, ":24\r\n"},
		[2]string{`BITPOS b 0 1`, ":24\r\n"},
		[2]string{`BITPOS b 0 0 -1`, ":-1\r\n"},
		[2]string{`BITPOS b 0 3`, ":-1\r\n"},
		[2]string{`BITPOS b 0 0 -1 BIT`, ":-1\r\n"},
		[2]string{`SET c "\x00\xff\xf0"`, "+OK\r\n"},
		[2]string{`BITPOS c 1`, ":8\r\n"},
		[2]string{`BITPOS c 1 1`, ":8\r\n"},
		[2]string{`BITPOS c 1 7 15 BIT`, ":8\r\n"},
		[2]string{`BITPOS c 1 7 7 BIT`, ":-1\r\n"},
		[2]string{`BITPOS c 0 8 19 BIT`, ":-1\r\n"},
		[2]string{`BITPOS c 0 8 20 BIT`, ":20\r\n"},
		[2]string{`BITPOS c 0 8 -1 BIT`, ":20\r\n"},
		[2]string{`BITPOS c 1 -1 -1 BIT`, ":-1\r\n"},
		[2]string{`BITPOS c 1 3 1`, ":-1\r\n"},
		[2]string{`BITPOS c 1 0 1 wrong`, "-ERR syntax error\r\n"},
		[2]string{`BITPOS c 1 0 x BIT`, "-ERR value is not an integer or out of range\r\n"},
		[2]string{`BITPOS c 1 x`, "-ERR value is not an integer or out of range\r\n"},
		[2]string{`BITPOS c 2`, "-ERR The bit argument must be 1 or 0.\r\n"},
		[2]string{`BITPOS c x`, "-ERR value is not an integer or out of range\r\n"},
		[2]string{`BITPOS c 1 0 1 BIT x`, "-ERR syntax error\r\n"},
		[2]string{`BITPOS nothing 0`, ":0\r\n"},
		[2]string{`BITPOS nothing 1`, ":-1\r\n"},
		[2]string{`BITPOS nothing 1 x`, ":-1\r\n"},
		[2]string{`SET d "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"`, "+OK\r\n"},
		[2]string{`BITPOS d 1`, ":-1\r\n"},
		[2]string{`BITPOS d 1 0 -1`, ":-1\r\n"},
		[2]string{`SETBIT d 80 1`, ":0\r\n"},
		[2]string{`BITPOS d 1`, ":80\r\n"},
		[2]string{`SET e ""`, "+OK\r\n"},
		[2]string{`BITPOS e 0`, ":-1\r\n"},
		[2]string{`BITPOS e 1`, ":-1\r\n"},
		[2]string{`RPUSH list x`, ":1\r\n"},
		[2]string{`BITPOS list 1`, "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"},
		[2]string{`BITPOS list 2`, "-ERR The bit argument must be 1 or 0.\r\n"},
	)
}

func TestBitop(t *testing.T) {
	b := newBench(t)
	b.replies(
		[2]string{`MSET {t}a foobar {t}b abcdef {t}s "\xff"`, "+OK\r\n"},
		[2]string{`BITOP AND {t}d {t}a {t}b`, ":6\r\n"},
		[2]string{`GET {t}d`, "$6\r\n`bc`ab\r\n"},
		[2]string{`BITOP or {t}d {t}a {t}b`, ":6\r\n"},
		[2]string{`GET {t}d`, "$6\r\ngoofev\r\n"},
		[2]string{`BITOP XOR {t}d {t}a {t}b`, ":6\r\n"},
		[2]string{`GET {t}d`, "$6\r\n\x07\r\x0c\x06\x04\x14\r\n"},
		[2]string{`BITOP NOT {t}d {t}a`, ":6\r\n"},
		[2]string{`GET {t}d`, "$6\r\n\x99\x90\x90\x9d\x9e\x8d\r\n"},
		[2]string{`BITOP AND {t}d {t}a {t}s`, ":6\r\n"},
		[2]string{`GET {t}d`, "$6\r\nf\x00\x00\x00\x00\x00\r\n"},
		[2]string{`BITOP OR {t}d {t}s {t}a`, ":6\r\n"},
		[2]string{`GET {t}d`, "$6\r\n\xffoobar\r\n"},
		[2]string{`BITOP XOR {t}d {t}a {t}nothing`, ":6\r\n"},
		[2]string{`GET {t}d`, "$6\r\nfoobar\r\n"},
		[2]string{`BITOP AND {t}d {t}a {t}nothing`, ":6\r\n"},
		[2]string{`GET {t}d`, "$6\r\n\x00\x00\x00\x00\x00\x00\r\n"},
		[2]string{`BITOP NOT {t}d {t}a {t}b`, "-ERR BITOP NOT must be called with a single source key.\r\n"},
		[2]string{`BITOP wrong {t}d {t}a`, "-ERR syntax error\r\n"},
		[2]string{`SET {t}d v EX 100`, "+OK\r\n"},
		[2]string{`BITOP OR {t}d {t}a {t}b {t}s`, ":6\r\n"},
		[2]string{`TTL {t}d`, ":-1\r\n"},
		[2]string{`BITOP OR {t}d {t}nothing`, ":0\r\n"},
		[2]string{`EXISTS {t}d`, ":0\r\n"},
		[2]string{`RPUSH {t}list x`, ":1\r\n"},
		[2]string{`BITOP OR {t}d {t}a {t}list`, "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"},
		[2]string{`BITOP OR {t}list {t}a`, ":6\r\n"},
		[2]string{`TYPE {t}list`, "+string\r\n"},
		[2]string{`BITOP OR {t}d`, "-ERR wrong number of arguments for 'bitop' command\r\n"},
	)
}

func TestBitfield(t *testing.T) {
	b := newBench(t)
	b.replies(
		[2]string{`BITFIELD a INCRBY i5 100 1 GET u4 0`, "*2\r\n:1\r\n:0\r\n"},
		[2]string{`BITFIELD a SET u8 0 255 GET u8 0 GET i8 0`, "*3\r\n:0\r\n:255\r\n:-1\r\n"},
		[2]string{`BITFIELD a SET u8 #1 65 GET u8 8`, "*2\r\n:0\r\n:65\r\n"},
		[2]string{`GET a`, "$14\r\n\xffA\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x80\r\n"},
		[2]string{`BITFIELD a OVERFLOW SAT INCRBY u8 0 10 OVERFLOW FAIL INCRBY u8 0 1 OVERFLOW WRAP INCRBY u8 0 1`, "*3\r\n:255\r\n$-1\r\n:0\r\n"},
		[2]string{`BITFIELD a OVERFLOW SAT INCRBY u8 0 -10`, "*1\r\n:0\r\n"},
		[2]string{`BITFIELD a OVERFLOW FAIL INCRBY u8 0 -1 INCRBY u8 8 1`, "*2\r\n$-1\r\n:66\r\n"},
		[2]string{`BITFIELD a INCRBY u8 0 -1`, "*1\r\n:255\r\n"},
		[2]string{`BITFIELD b SET i8 0 127`, "*1\r\n:0\r\n"},
		[2]string{`BITFIELD b INCRBY i8 0 1`, "*1\r\n:-128\r\n"},
		[2]string{`BITFIELD b INCRBY i8 0 -1`, "*1\r\n:127\r\n"},
		[2]string{`BITFIELD b OVERFLOW SAT INCRBY i8 0 100`, "*1\r\n:127\r\n"},
		[2]string{`BITFIELD b OVERFLOW SAT SET i8 0 -200 GET i8 0`, "*2\r\n:127\r\n:-128\r\n"},
		[2]string{`BITFIELD b OVERFLOW SAT SET u8 0 -1 GET u8 0`, "*2\r\n:128\r\n:255\r\n"},
		[2]string{`BITFIELD b OVERFLOW FAIL SET u8 0 256 GET u8 0`, "*2\r\n$-1\r\n:255\r\n"},
		[2]string{`BITFIELD b SET i8 0 300 GET i8 0`, "*2\r\n:-1\r\n:44\r\n"},
		[2]string{`BITFIELD c SET i64 3 -9223372036854775808 GET i64 3 INCRBY i64 3 -1`, "*3\r\n:0\r\n:-9223372036854775808\r\n:9223372036854775807\r\n"},
		[2]string{`BITFIELD c OVERFLOW SAT INCRBY i64 3 1 GET u63 3`, "*2\r\n:9223372036854775807\r\n:4611686018427387903\r\n"},
		[2]string{`BITFIELD c SET u63 0 9223372036854775807 INCRBY u63 0 1`, "*2\r\n:576460752303423487\r\n:0\r\n"},
		[2]string{`BITFIELD c SET u1 1 1 GET u1 1 INCRBY u1 1 1 GET i1 1`, "*4\r\n:0\r\n:1\r\n:0\r\n:0\r\n"},
		[2]string{`BITFIELD c OVERFLOW SAT SET i13 0 -9223372036854775808 GET i13 0`, "*2\r\n:0\r\n:4095\r\n"},
		[2]string{`BITFIELD d OVERFLOW FAIL INCRBY u2 100 4`, "*1\r\n$-1\r\n"},
		[2]string{`STRLEN d`, ":13\r\n"},
		[2]string{`BITFIELD a`, "*0\r\n"},
		[2]string{`BITFIELD nothing GET u8 0`, "*1\r\n:0\r\n"},
		[2]string{`EXISTS nothing`, ":0\r\n"},
		[2]string{`BITFIELD a GET u64 0`, "-ERR Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported but i64 is.\r\n"},
		[2]string{`BITFIELD a GET i65 0`, "-ERR Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported but i64 is.\r\n"},
		[2]string{`BITFIELD a GET u0 0`, "-ERR Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported but i64 is.\r\n"},
		[2]string{`BITFIELD a GET x8 0`, "-ERR Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported but i64 is.\r\n"},
		[2]string{`BITFIELD a GET u 0`, "-ERR Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported but i64 is.\r\n"},
		[2]string{`BITFIELD a GET U8 0`, "-ERR Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported but i64 is.\r\n"},
		[2]string{`BITFIELD a GET u8 -1`, "-ERR bit offset is not an integer or out of range\r\n"},
		[2]string{`BITFIELD a GET u8 #-1`, "-ERR bit offset is not an integer or out of range\r\n"},
		[2]string{`BITFIELD a GET u8 x`, "-ERR bit offset is not an integer or out of range\r\n"},
		[2]string{`BITFIELD a GET u8 536870912`, "-ERR bit offset is not an integer or out of range\r\n"},
		[2]string{`BITFIELD a GET u8 #67108864`, "-ERR bit offset is not an integer or out of range\r\n"},
		[2]string{`BITFIELD a GET u8 #2305843009213693952`, "*1\r\n:255\r\n"},
		[2]string{`BITFIELD a SET u8 0 x`, "-ERR value is not an integer or out of range\r\n"},
		[2]string{`BITFIELD a INCRBY u8 0`, "-ERR syntax error\r\n"},
		[2]string{`BITFIELD a GET u8`, "-ERR syntax error\r\n"},
		[2]string{`BITFIELD a OVERFLOW wrong`, "-ERR Invalid OVERFLOW type specified\r\n"},
		[2]string{`BITFIELD a OVERFLOW`, "-ERR syntax error\r\n"},
		[2]string{`BITFIELD a wrong`, "-ERR syntax error\r\n"},
		[2]string{`BITFIELD_RO a GET u8 0`, "*1\r\n:255\r\n"},
		[2]string{`BITFIELD_RO a SET u8 0 1`, "-ERR BITFIELD_RO only supports the GET subcommand\r\n"},
		[2]string{`BITFIELD_RO a OVERFLOW WRAP GET u8 0`, "*1\r\n:255\r\n"},
		[2]string{`BITFIELD_RO a SET x8 0 1`, "-ERR Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported but i64 is.\r\n"},
		[2]string{`SET e v EX 100`, "+OK\r\n"},
		[2]string{`BITFIELD e SET u8 0 1`, "*1\r\n:118\r\n"},
		[2]string{`TTL e`, ":100\r\n"},
		[2]string{`RPUSH list x`, ":1\r\n"},
		[2]string{`BITFIELD list GET u8 0`, "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"},
		[2]string{`BITFIELD list SET u8 0 1`, "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"},
		[2]string{`BITFIELD list`, "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"},
		[2]string{`BITFIELD_RO list SET u8 0 1`, "-ERR BITFIELD_RO only supports the GET subcommand\r\n"},
	)
}

func TestBitfieldFailsWithNullInRESP3(t *testing.T) {
	b := newBench(t)
	b.proto = 3
	b.replies(
		[2]string{`BITFIELD a OVERFLOW FAIL SET u2 0 4 GET u2 0`, "*2\r\n_\r\n:0\r\n"},
	)
}

func TestRangesOfBitsAgreeWithOneBitAtATime(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 3000 {
		value := make([]byte, r.IntN(40))
		for i := range value {
			value[i] = []byte{0, 0, 0xFF, byte(r.Uint32())}[r.IntN(4)]
		}
		n := int64(len(value)) * 8
		start, end := r.Int64N(n+1), r.Int64N(n+1)-1
		ones, first := int64(0), [2]int64{-1, -1}
		for i := start; i <= end; i++ {
			bit := bitAt(value, i)
			ones += int64(bit)
			if first[bit] < 0 {
				first[bit] = i
			}
		}
		span := bitRange{start, end}
		if got := countBits(value, span); got != ones {
			t.Errorf("countBits(%x, %v) = %d, want %d", value, span, got, ones)
		}
		for bit := range first {
			got, found := findBit(value, byte(bit), span)
			if found != (first[bit] >= 0) || found && got != first[bit] {
				t.Errorf("findBit(%x, %d, %v) = %d, %v, want %d", value, bit, span, got, found, first[bit])
			}
		}
	}
}

// A number is read back as it was written, and nothing around it changes.
func TestBitfieldsKeepToTheirBits(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 3000 {
		o := bitfieldOp{signed: r.IntN(2) == 0, at: r.Int64N(70)}
		o.bits = 1 + r.Int64N(63)
		value := make([]byte, 20)
		for i := range value {
			value[i] = byte(r.Uint32())
		}
		before, n := append([]byte(nil), value...), o.cut(int64(r.Uint64()))
		o.write(value, n)
		if got := o.read(value); got != n {
			t.Errorf("%+v: read %d, wrote %d", o, got, n)
		}
		for i := range int64(len(value)) * 8 {
			if (i < o.at || i >= o.at+o.bits) && bitAt(value, i) != bitAt(before, i) {
				t.Errorf("%+v: bit %d has changed", o, i)
			}
		}
	}
}

func TestBitfieldSumsWrapOrStopAtTheBounds(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 20000 {
		o := bitfieldOp{signed: r.IntN(2) == 0, bits: 1 + r.Int64N(63)}
		if o.signed && r.IntN(4) == 0 {
			o.bits = 64
		}
		old, by := o.cut(int64(r.Uint64())), int64(r.Uint64()>>r.IntN(64))*(1-2*r.Int64N(2))
		least, most := o.bounds()
		exact := new(big.Int).Add(big.NewInt(old), big.NewInt(by))
		inside := exact.Cmp(big.NewInt(least)) >= 0 && exact.Cmp(big.NewInt(most)) <= 0

		sum, fits := o.add(old, by)
		if fits != inside || fits && sum != exact.Int64() {
			t.Errorf("%+v: %d + %d = %d, fits %v, want %v", o, old, by, sum, fits, exact)
		}
		o.overflow = overflowSat
		if sum, _ := o.add(old, by); !inside && sum != least && sum != most || !inside && (sum == most) != (exact.Sign() > 0) && least != most {
			t.Errorf("%+v: %d + %d saturates at %d", o, old, by, sum)
		}
	}
}
