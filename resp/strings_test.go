package resp

import (
	"context"
	"fmt"
	"math/big"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/slotmesh/slotmesh"
	"github.com/stretchr/testify/require"
)

// The replies in the tables are those of redis-server 7.0.15 as a cluster of one
// node, with proto-max-bulk-len 64mb.

// replies runs commands in order. Words of a command that are in quotes are
// strings as Go writes them.
func (b *bench) replies(rows ...[2]string) {
	b.t.Helper()
	for _, row := range rows {
		if got := b.run(words(b.t, row[0])...); got != row[1] {
			b.t.Errorf("%s: %q, want %q", row[0], got, row[1])
		}
	}
}

func words(t testing.TB, line string) (out []string) {
	t.Helper()
	for line != "" {
		word, rest, _ := strings.Cut(line, " ")
		if line[0] == '"' {
			quoted, err := strconv.QuotedPrefix(line)
			require.NoError(t, err, line)
			rest = strings.TrimPrefix(line[len(quoted):], " ")
			word, err = strconv.Unquote(quoted)
			require.NoError(t, err, line)
		}
		out, line = append(out, word), rest
	}
	return out
}

func TestSetTakesItsOptions(t *testing.T) {
	b := newBench(t)
	b.replies(
		[2]string{`SET a v`, "+OK\r\n"},
		[2]string{`GET a`, "$1\r\nv\r\n"},
		[2]string{`GET nothing`, "$-1\r\n"},
		[2]string{`SET a w NX`, "$-1\r\n"},
		[2]string{`SET a w XX`, "+OK\r\n"},
		[2]string{`SET b w XX`, "$-1\r\n"},
		[2]string{`SET b w NX`, "+OK\r\n"},
		[2]string{`GET b`, "$1\r\nw\r\n"},
		[2]string{`SET a x GET`, "$1\r\nw\r\n"},
		[2]string{`SET c x GET`, "$-1\r\n"},
		[2]string{`SET c y NX GET`, "$1\r\nx\r\n"},
		[2]string{`SET d y NX GET`, "$-1\r\n"},
		[2]string{`GET d`, "$1\r\ny\r\n"},
		[2]string{`SET a v NX XX`, "-ERR syntax error\r\n"},
		[2]string{`SET a v XX NX`, "-ERR syntax error\r\n"},
		[2]string{`SET a v EX`, "-ERR syntax error\r\n"},
		[2]string{`SET a v EX 10 PX 10`, "-ERR syntax error\r\n"},
		[2]string{`SET a v EX 10 KEEPTTL`, "-ERR syntax error\r\n"},
		[2]string{`SET a v KEEPTTL EX 10`, "-ERR syntax error\r\n"},
		[2]string{`SET a v PERSIST`, "-ERR syntax error\r\n"},
		[2]string{`SET a v EX abc`, "-ERR value is not an integer or out of range\r\n"},
		[2]string{`SET a v EX 0`, "-ERR invalid expire time in 'set' command\r\n"},
		[2]string{`SET a v PX -1`, "-ERR invalid expire time in 'set' command\r\n"},
		[2]string{`SET a v EX 9223372036854775807`, "-ERR invalid expire time in 'set' command\r\n"},
		[2]string{`SET a v PX 9223372036854775807`, "-ERR invalid expire time in 'set' command\r\n"},
		[2]string{`SET a v PXAT 9223372036854775807`, "+OK\r\n"},
		[2]string{`PEXPIRETIME a`, ":9223372036854775807\r\n"},
		[2]string{`SET a v EXAT 9223372036854775807`, "-ERR invalid expire time in 'set' command\r\n"},
		[2]string{`SET a v ex 100 ex 200`, "+OK\r\n"},
		[2]string{`TTL a`, ":200\r\n"},
		[2]string{`SET a v exat 4000000000`, "+OK\r\n"},
		[2]string{`EXPIRETIME a`, ":4000000000\r\n"},
		[2]string{`SET a v2 KEEPTTL`, "+OK\r\n"},
		[2]string{`EXPIRETIME a`, ":4000000000\r\n"},
		[2]string{`SET a v`, "+OK\r\n"},
		[2]string{`TTL a`, ":-1\r\n"},
		[2]string{`SET a v PXAT 1`, "+OK\r\n"},
		[2]string{`GET a`, "$-1\r\n"},
		[2]string{`SET a v wrong`, "-ERR syntax error\r\n"},
		[2]string{`SET a`, "-ERR wrong number of arguments for 'set' command\r\n"},
		[2]string{`RPUSH list x`, ":1\r\n"},
		[2]string{`SET list v GET`, "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"},
		[2]string{`SET list v NX GET`, "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"},
		[2]string{`GET list`, "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"},
		[2]string{`SET list v`, "+OK\r\n"},
		[2]string{`GET list`, "$1\r\nv\r\n"},
		[2]string{`SET "" ""`, "+OK\r\n"},
		[2]string{`GET ""`, "$0\r\n\r\n"},
		[2]string{`SET a "a\x00\r\n b"`, "+OK\r\n"},
		[2]string{`GET a`, "$6\r\na\x00\r\n b\r\n"},
	)
}

func TestSetexAndOthersNameThemselvesInErrors(t *testing.T) {
	b := newBench(t)
	b.replies(
		[2]string{`SETEX {t}a 100 v`, "+OK\r\n"},
		[2]string{`TTL {t}a`, ":100\r\n"},
		[2]string{`SETEX {t}a 0 v`, "-ERR invalid expire time in 'setex' command\r\n"},
		[2]string{`SETEX {t}a -1 v`, "-ERR invalid expire time in 'setex' command\r\n"},
		[2]string{`SETEX {t}a x v`, "-ERR value is not an integer or out of range\r\n"},
		[2]string{`SETEX {t}a 9223372036854776 v`, "-ERR invalid expire time in 'setex' command\r\n"},
		[2]string{`PSETEX {t}a 100000 v`, "+OK\r\n"},
		[2]string{`TTL {t}a`, ":100\r\n"},
		[2]string{`PSETEX {t}a 0 v`, "-ERR invalid expire time in 'psetex' command\r\n"},
		[2]string{`SETNX {t}a w`, ":0\r\n"},
		[2]string{`SETNX {t}b w`, ":1\r\n"},
		[2]string{`GET {t}b`, "$1\r\nw\r\n"},
		[2]string{`GETSET {t}b x`, "$1\r\nw\r\n"},
		[2]string{`GET {t}b`, "$1\r\nx\r\n"},
		[2]string{`GETSET {t}c x`, "$-1\r\n"},
		[2]string{`GETDEL {t}c`, "$1\r\nx\r\n"},
		[2]string{`GETDEL {t}c`, "$-1\r\n"},
		[2]string{`MSET {t}a 1 {t}b 2 {t}a 3`, "+OK\r\n"},
		[2]string{`MGET {t}a {t}b {t}c`, "*3\r\n$1\r\n3\r\n$1\r\n2\r\n$-1\r\n"},
		[2]string{`MSET {t}a`, "-ERR wrong number of arguments for 'mset' command\r\n"},
		[2]string{`MSET {t}a 1 {t}b`, "-ERR wrong number of arguments for 'mset' command\r\n"},
		[2]string{`MSETNX {t}a 1 {t}z 2`, ":0\r\n"},
		[2]string{`EXISTS {t}z`, ":0\r\n"},
		[2]string{`MSETNX {t}y 1 {t}z 2 {t}y 3`, ":1\r\n"},
		[2]string{`MGET {t}y {t}z`, "*2\r\n$1\r\n3\r\n$1\r\n2\r\n"},
		[2]string{`MSETNX {t}y 1 {t}z`, "-ERR wrong number of arguments for 'msetnx' command\r\n"},
		[2]string{`RPUSH {t}list x`, ":1\r\n"},
		[2]string{`MGET {t}list {t}a`, "*2\r\n$-1\r\n$1\r\n3\r\n"},
		[2]string{`GETSET {t}list v`, "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"},
		[2]string{`GETDEL {t}list`, "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"},
		[2]string{`GET {t}list`, "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"},
		[2]string{`SETNX {t}list v`, ":0\r\n"},
		[2]string{`MGET`, "-ERR wrong number of arguments for 'mget' command\r\n"},
	)
}

func TestGetexSetsTheTime(t *testing.T) {
	b := newBench(t)
	b.replies(
		[2]string{`SET a v`, "+OK\r\n"},
		[2]string{`GETEX a`, "$1\r\nv\r\n"},
		[2]string{`TTL a`, ":-1\r\n"},
		[2]string{`GETEX a EX 100`, "$1\r\nv\r\n"},
		[2]string{`TTL a`, ":100\r\n"},
		[2]string{`GETEX a PX 200000`, "$1\r\nv\r\n"},
		[2]string{`TTL a`, ":200\r\n"},
		[2]string{`GETEX a PXAT 4000000000000`, "$1\r\nv\r\n"},
		[2]string{`PEXPIRETIME a`, ":4000000000000\r\n"},
		[2]string{`GETEX a PERSIST`, "$1\r\nv\r\n"},
		[2]string{`TTL a`, ":-1\r\n"},
		[2]string{`GETEX a EXAT 1`, "$1\r\nv\r\n"},
		[2]string{`EXISTS a`, ":0\r\n"},
		[2]string{`SET a v`, "+OK\r\n"},
		[2]string{`GETEX a EX 0`, "-ERR invalid expire time in 'getex' command\r\n"},
		[2]string{`GETEX a EX x`, "-ERR value is not an integer or out of range\r\n"},
		[2]string{`GETEX nothing EX x`, "$-1\r\n"},
		[2]string{`GETEX nothing EX 0`, "$-1\r\n"},
		[2]string{`GETEX a EX 10 PERSIST`, "-ERR syntax error\r\n"},
		[2]string{`GETEX a PERSIST EX 10`, "-ERR syntax error\r\n"},
		[2]string{`GETEX a KEEPTTL`, "-ERR syntax error\r\n"},
		[2]string{`GETEX a NX`, "-ERR syntax error\r\n"},
		[2]string{`GETEX a EX`, "-ERR syntax error\r\n"},
		[2]string{`RPUSH list x`, ":1\r\n"},
		[2]string{`GETEX list`, "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"},
		[2]string{`GETEX list EX x`, "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"},
	)
}

func TestPartsOfAString(t *testing.T) {
	b := newBench(t)
	b.replies(
		[2]string{`APPEND a Hello`, ":5\r\n"},
		[2]string{`APPEND a " World"`, ":11\r\n"},
		[2]string{`GET a`, "$11\r\nHello World\r\n"},
		[2]string{`STRLEN a`, ":11\r\n"},
		[2]string{`STRLEN nothing`, ":0\r\n"},
		[2]string{`SETRANGE a 6 Redis`, ":11\r\n"},
		[2]string{`GET a`, "$11\r\nHello Redis\r\n"},
		[2]string{`SETRANGE b 5 x`, ":6\r\n"},
		[2]string{`GET b`, "$6\r\n\x00\x00\x00\x00\x00x\r\n"},
		[2]string{`SETRANGE c 5 ""`, ":0\r\n"},
		[2]string{`EXISTS c`, ":0\r\n"},
		[2]string{`SETRANGE a 3 ""`, ":11\r\n"},
		[2]string{`SETRANGE a -1 x`, "-ERR offset is out of range\r\n"},
		[2]string{`SETRANGE a x x`, "-ERR value is not an integer or out of range\r\n"},
		[2]string{`SETRANGE a 67108863 xx`, "-ERR string exceeds maximum allowed size (proto-max-bulk-len)\r\n"},
		[2]string{`SETRANGE c 9223372036854775807 xx`, "-ERR string exceeds maximum allowed size (proto-max-bulk-len)\r\n"},
		[2]string{`SETRANGE c 67108864 ""`, ":0\r\n"},
		[2]string{`GETRANGE a 0 -1`, "$11\r\nHello Redis\r\n"},
		[2]string{`GETRANGE a 0 3`, "$4\r\nHell\r\n"},
		[2]string{`GETRANGE a -5 -1`, "$5\r\nRedis\r\n"},
		[2]string{`GETRANGE a -1 -5`, "$0\r\n\r\n"},
		[2]string{`GETRANGE a 5 3`, "$0\r\n\r\n"},
		[2]string{`GETRANGE a 0 100`, "$11\r\nHello Redis\r\n"},
		[2]string{`GETRANGE a -100 2`, "$3\r\nHel\r\n"},
		[2]string{`GETRANGE a -100 -90`, "$1\r\nH\r\n"},
		[2]string{`GETRANGE a 100 200`, "$0\r\n\r\n"},
		[2]string{`GETRANGE nothing 0 -1`, "$0\r\n\r\n"},
		[2]string{`GETRANGE a x 1`, "-ERR value is not an integer or out of range\r\n"},
		[2]string{`GETRANGE a 1 x`, "-ERR value is not an integer or out of range\r\n"},
		[2]string{`SUBSTR a 1 2`, "$2\r\nel\r\n"},
		[2]string{`SET a v EX 100`, "+OK\r\n"},
		[2]string{`APPEND a w`, ":2\r\n"},
		[2]string{`SETRANGE a 0 x`, ":2\r\n"},
		[2]string{`TTL a`, ":100\r\n"},
		[2]string{`RPUSH list x`, ":1\r\n"},
		[2]string{`APPEND list x`, "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"},
		[2]string{`STRLEN list`, "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"},
		[2]string{`SETRANGE list 0 x`, "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"},
		[2]string{`SETRANGE list 0 ""`, "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"},
		[2]string{`GETRANGE list 0 1`, "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"},
		[2]string{`SUBSTR list x 1`, "-ERR value is not an integer or out of range\r\n"},
	)
}

func TestWholeNumbers(t *testing.T) {
	b := newBench(t)
	b.replies(
		[2]string{`INCR a`, ":1\r\n"},
		[2]string{`INCRBY a 41`, ":42\r\n"},
		[2]string{`DECR a`, ":41\r\n"},
		[2]string{`DECRBY a 2`, ":39\r\n"},
		[2]string{`GET a`, "$2\r\n39\r\n"},
		[2]string{`INCRBY a x`, "-ERR value is not an integer or out of range\r\n"},
		[2]string{`INCRBY a 1.5`, "-ERR value is not an integer or out of range\r\n"},
		[2]string{`INCRBY a 9223372036854775807`, "-ERR increment or decrement would overflow\r\n"},
		[2]string{`DECRBY a -9223372036854775808`, "-ERR decrement would overflow\r\n"},
		[2]string{`INCRBY a " 1"`, "-ERR value is not an integer or out of range\r\n"},
		[2]string{`INCRBY a +1`, "-ERR value is not an integer or out of range\r\n"},
		[2]string{`INCRBY a 01`, "-ERR value is not an integer or out of range\r\n"},
		[2]string{`SET a 9223372036854775807`, "+OK\r\n"},
		[2]string{`INCR a`, "-ERR increment or decrement would overflow\r\n"},
		[2]string{`GET a`, "$19\r\n9223372036854775807\r\n"},
		[2]string{`SET a -9223372036854775808`, "+OK\r\n"},
		[2]string{`DECR a`, "-ERR increment or decrement would overflow\r\n"},
		[2]string{`SET a 1.5`, "+OK\r\n"},
		[2]string{`INCR a`, "-ERR value is not an integer or out of range\r\n"},
		[2]string{`SET a ""`, "+OK\r\n"},
		[2]string{`INCR a`, "-ERR value is not an integer or out of range\r\n"},
		[2]string{`SET a 007`, "+OK\r\n"},
		[2]string{`INCR a`, "-ERR value is not an integer or out of range\r\n"},
		[2]string{`SET a " 1"`, "+OK\r\n"},
		[2]string{`INCR a`, "-ERR value is not an integer or out of range\r\n"},
		[2]string{`SET a 10 EX 100`, "+OK\r\n"},
		[2]string{`INCR a`, ":11\r\n"},
		[2]string{`TTL a`, ":100\r\n"},
		[2]string{`RPUSH list x`, ":1\r\n"},
		[2]string{`INCR list`, "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"},
		[2]string{`INCRBY list x`, "-ERR value is not an integer or out of range\r\n"},
		[2]string{`DECRBY list -9223372036854775808`, "-ERR decrement would overflow\r\n"},
	)
}

func TestNumbersWithAFraction(t *testing.T) {
	b := newBench(t)
	b.replies(
		[2]string{`SET a 10.50`, "+OK\r\n"},
		[2]string{`INCRBYFLOAT a 0.1`, "$4\r\n10.6\r\n"},
		[2]string{`INCRBYFLOAT a -5`, "$3\r\n5.6\r\n"},
		[2]string{`SET a 5.0e3`, "+OK\r\n"},
		[2]string{`INCRBYFLOAT a 2.0e2`, "$4\r\n5200\r\n"},
		[2]string{`INCRBYFLOAT b 3`, "$1\r\n3\r\n"},
		[2]string{`INCRBYFLOAT b -3`, "$1\r\n0\r\n"},
		[2]string{`INCRBYFLOAT b 0.1`, "$3\r\n0.1\r\n"},
		[2]string{`INCRBYFLOAT b 0.2`, "$3\r\n0.3\r\n"},
		[2]string{`INCRBYFLOAT b 1e17`, "$25\r\n100000000000000000.296875\r\n"},
		[2]string{`INCRBYFLOAT b 1e-17`, "$25\r\n100000000000000000.296875\r\n"},
		[2]string{`INCRBYFLOAT b abc`, "-ERR value is not a valid float\r\n"},
		[2]string{`INCRBYFLOAT b ""`, "-ERR value is not a valid float\r\n"},
		[2]string{`INCRBYFLOAT b " 1"`, "-ERR value is not a valid float\r\n"},
		[2]string{`INCRBYFLOAT b "1 "`, "-ERR value is not a valid float\r\n"},
		[2]string{`INCRBYFLOAT b inf`, "-ERR increment would produce NaN or Infinity\r\n"},
		[2]string{`INCRBYFLOAT b -infinity`, "-ERR increment would produce NaN or Infinity\r\n"},
		[2]string{`INCRBYFLOAT b nan`, "-ERR value is not a valid float\r\n"},
		[2]string{`INCRBYFLOAT b 1e`, "-ERR value is not a valid float\r\n"},
		[2]string{`INCRBYFLOAT b .`, "-ERR value is not a valid float\r\n"},
		[2]string{`INCRBYFLOAT b 1_0`, "-ERR value is not a valid float\r\n"},
		[2]string{`INCRBYFLOAT b 0b1`, "-ERR value is not a valid float\r\n"},
		[2]string{`INCRBYFLOAT b 0x`, "-ERR value is not a valid float\r\n"},
		[2]string{`INCRBYFLOAT b 1e5000`, "-ERR value is not a valid float\r\n"},
		[2]string{`INCRBYFLOAT b 1e-5000`, "-ERR value is not a valid float\r\n"},
		[2]string{`INCRBYFLOAT b 1.2e4932`, "-ERR value is not a valid float\r\n"},
		[2]string{`INCRBYFLOAT b 0x1p16384`, "-ERR value is not a valid float\r\n"},
		[2]string{`SET c 0`, "+OK\r\n"},
		[2]string{`INCRBYFLOAT c 1e-18`, "$1\r\n0\r\n"},
		[2]string{`INCRBYFLOAT c -1e-19`, "$1\r\n0\r\n"},
		[2]string{`INCRBYFLOAT c 5e-18`, "$1\r\n0\r\n"},
		[2]string{`SET c 0`, "+OK\r\n"},
		[2]string{`INCRBYFLOAT c -1e-20`, "$1\r\n0\r\n"},
		[2]string{`INCRBYFLOAT c 0x10`, "$2\r\n16\r\n"},
		[2]string{`INCRBYFLOAT c 0x.8p1`, "$2\r\n17\r\n"},
		[2]string{`INCRBYFLOAT c +.5`, "$4\r\n17.5\r\n"},
		[2]string{`INCRBYFLOAT c 5.`, "$4\r\n22.5\r\n"},
		[2]string{`INCRBYFLOAT c 0e99999999999`, "$4\r\n22.5\r\n"},
		[2]string{`SET c 1e4000`, "+OK\r\n"},
		[2]string{`INCRBYFLOAT c -1e4000`, "$1\r\n0\r\n"},
		[2]string{`SET c 1e4932`, "+OK\r\n"},
		[2]string{`INCRBYFLOAT c 1.1e4932`, "-ERR increment would produce NaN or Infinity\r\n"},
		[2]string{`SET c 3.0e3`, "+OK\r\n"},
		[2]string{`INCRBYFLOAT c 1.11111111111111111111`, "$22\r\n3001.11111111111111116\r\n"},
		[2]string{`SET c 9007199254740993`, "+OK\r\n"},
		[2]string{`INCRBYFLOAT c 0.5`, "$18\r\n9007199254740993.5\r\n"},
		[2]string{`SET c 10 EX 100`, "+OK\r\n"},
		[2]string{`INCRBYFLOAT c 1`, "$2\r\n11\r\n"},
		[2]string{`TTL c`, ":100\r\n"},
		[2]string{`RPUSH list x`, ":1\r\n"},
		[2]string{`INCRBYFLOAT list x`, "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"},
		[2]string{`SET d x`, "+OK\r\n"},
		[2]string{`INCRBYFLOAT d y`, "-ERR value is not a valid float\r\n"},
	)
}

func TestLongestCommonSubsequence(t *testing.T) {
	b := newBench(t)
	b.replies(
		[2]string{`MSET {t}a ohmytext {t}b mynewtext`, "+OK\r\n"},
		[2]string{`LCS {t}a {t}b`, "$6\r\nmytext\r\n"},
		[2]string{`LCS {t}a {t}b LEN`, ":6\r\n"},
		[2]string{`LCS {t}a {t}b IDX`, "*4\r\n$7\r\nmatches\r\n*2\r\n*2\r\n*2\r\n:4\r\n:7\r\n*2\r\n:5\r\n:8\r\n*2\r\n*2\r\n:2\r\n:3\r\n*2\r\n:0\r\n:1\r\n$3\r\nlen\r\n:6\r\n"},
		[2]string{`LCS {t}a {t}b IDX MINMATCHLEN 4`, "*4\r\n$7\r\nmatches\r\n*1\r\n*2\r\n*2\r\n:4\r\n:7\r\n*2\r\n:5\r\n:8\r\n$3\r\nlen\r\n:6\r\n"},
		[2]string{`LCS {t}a {t}b IDX MINMATCHLEN 4 WITHMATCHLEN`, "*4\r\n$7\r\nmatches\r\n*1\r\n*3\r\n*2\r\n:4\r\n:7\r\n*2\r\n:5\r\n:8\r\n:4\r\n$3\r\nlen\r\n:6\r\n"},
		[2]string{`LCS {t}a {t}b IDX WITHMATCHLEN MINMATCHLEN -1`, "*4\r\n$7\r\nmatches\r\n*2\r\n*3\r\n*2\r\n:4\r\n:7\r\n*2\r\n:5\r\n:8\r\n:4\r\n*3\r\n*2\r\n:2\r\n:3\r\n*2\r\n:0\r\n:1\r\n:2\r\n$3\r\nlen\r\n:6\r\n"},
		[2]string{`LCS {t}a {t}b MINMATCHLEN 4`, "$6\r\nmytext\r\n"},
		[2]string{`LCS {t}a {t}b IDX LEN`, "-ERR If you want both the length and indexes, please just use IDX.\r\n"},
		[2]string{`LCS {t}a {t}b MINMATCHLEN x`, "-ERR value is not an integer or out of range\r\n"},
		[2]string{`LCS {t}a {t}b MINMATCHLEN`, "-ERR syntax error\r\n"},
		[2]string{`LCS {t}a {t}b wrong`, "-ERR syntax error\r\n"},
		[2]string{`LCS {t}a {t}nothing`, "$0\r\n\r\n"},
		[2]string{`LCS {t}a {t}nothing LEN`, ":0\r\n"},
		[2]string{`LCS {t}nothing {t}nothing IDX`, "*4\r\n$7\r\nmatches\r\n*0\r\n$3\r\nlen\r\n:0\r\n"},
		[2]string{`LCS {t}a {t}a IDX WITHMATCHLEN`, "*4\r\n$7\r\nmatches\r\n*1\r\n*3\r\n*2\r\n:0\r\n:7\r\n*2\r\n:0\r\n:7\r\n:8\r\n$3\r\nlen\r\n:8\r\n"},
		[2]string{`MSET {t}a ABCBDABXAB {t}b BDCABAYYAB`, "+OK\r\n"},
		[2]string{`LCS {t}a {t}b`, "$6\r\nBDABAB\r\n"},
		[2]string{`LCS {t}b {t}a`, "$6\r\nBCBAAB\r\n"},
		[2]string{`LCS {t}a {t}b IDX WITHMATCHLEN`, "*4\r\n$7\r\nmatches\r\n*3\r\n*3\r\n*2\r\n:8\r\n:9\r\n*2\r\n:8\r\n:9\r\n:2\r\n*3\r\n*2\r\n:5\r\n:6\r\n*2\r\n:3\r\n:4\r\n:2\r\n*3\r\n*2\r\n:3\r\n:4\r\n*2\r\n:0\r\n:1\r\n:2\r\n$3\r\nlen\r\n:6\r\n"},
		[2]string{`LCS {t}b {t}a IDX WITHMATCHLEN`, "*4\r\n$7\r\nmatches\r\n*5\r\n*3\r\n*2\r\n:8\r\n:9\r\n*2\r\n:8\r\n:9\r\n:2\r\n*3\r\n*2\r\n:5\r\n:5\r\n*2\r\n:5\r\n:5\r\n:1\r\n*3\r\n*2\r\n:4\r\n:4\r\n*2\r\n:3\r\n:3\r\n:1\r\n*3\r\n*2\r\n:2\r\n:2\r\n*2\r\n:2\r\n:2\r\n:1\r\n*3\r\n*2\r\n:0\r\n:0\r\n*2\r\n:1\r\n:1\r\n:1\r\n$3\r\nlen\r\n:6\r\n"},
		[2]string{`RPUSH {t}list x`, ":1\r\n"},
		[2]string{`LCS {t}a {t}list`, "-ERR The specified keys must contain string values\r\n"},
		[2]string{`LCS {t}list {t}b wrong`, "-ERR The specified keys must contain string values\r\n"},
		[2]string{`LCS {t}a`, "-ERR wrong number of arguments for 'lcs' command\r\n"},
		[2]string{`SETRANGE {t}z 5000 x`, ":5001\r\n"},
		[2]string{`SETRANGE {t}y 5000 x`, ":5001\r\n"},
		[2]string{`LCS {t}z {t}y LEN`, "-ERR Insufficient memory, transient memory for LCS exceeds proto-max-bulk-len\r\n"},
	)
}

func TestWrongNumbersOfArguments(t *testing.T) {
	b := newBench(t)
	b.replies(
		[2]string{`GET`, "-ERR wrong number of arguments for 'get' command\r\n"},
		[2]string{`GET a b`, "-ERR wrong number of arguments for 'get' command\r\n"},
		[2]string{`SET a`, "-ERR wrong number of arguments for 'set' command\r\n"},
		[2]string{`SETEX a 1`, "-ERR wrong number of arguments for 'setex' command\r\n"},
		[2]string{`STRLEN`, "-ERR wrong number of arguments for 'strlen' command\r\n"},
		[2]string{`INCR a b`, "-ERR wrong number of arguments for 'incr' command\r\n"},
		[2]string{`LCS a`, "-ERR wrong number of arguments for 'lcs' command\r\n"},
		[2]string{`MSETNX a`, "-ERR wrong number of arguments for 'msetnx' command\r\n"},
		[2]string{`INCRBYFLOAT a`, "-ERR wrong number of arguments for 'incrbyfloat' command\r\n"},
	)
}

func TestNothingIsNullInRESP3(t *testing.T) {
	b := newBench(t)
	b.proto = 3
	b.replies(
		[2]string{`GET {t}nothing`, "_\r\n"},
		[2]string{`MGET {t}nothing {t}nothing`, "*2\r\n_\r\n_\r\n"},
		[2]string{`SET {t}a v XX`, "_\r\n"},
		[2]string{`SET {t}a v GET`, "_\r\n"},
		[2]string{`GETDEL {t}nothing`, "_\r\n"},
		[2]string{`GETEX {t}nothing`, "_\r\n"},
		[2]string{`INCRBYFLOAT f 1.5`, "$3\r\n1.5\r\n"},
		[2]string{`MSET {t}a ohmytext {t}b mynewtext`, "+OK\r\n"},
		[2]string{`LCS {t}a {t}b IDX WITHMATCHLEN`, "%2\r\n$7\r\nmatches\r\n*2\r\n*3\r\n*2\r\n:4\r\n:7\r\n*2\r\n:5\r\n:8\r\n:4\r\n*3\r\n*2\r\n:2\r\n:3\r\n*2\r\n:0\r\n:1\r\n:2\r\n$3\r\nlen\r\n:6\r\n"},
	)
}

func TestLongDoublesAreReadToTheLastDigit(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"0.1", "0x.cccccccccccccccdp-3"},
		{"18446744073709551615", "0x.ffffffffffffffffp+64"},
		{"18446744073709551617", "0x.8p+65"}, // half way: to the even one
		{"9999999999999999999", "0x.8ac7230489e7ffffp+64"},
		{"0.9999999999999999999", "0x.fffffffffffffffep+0"},
		{"12.34", "0x.c570a3d70a3d70a4p+4"},
		{"-0x1.fp4", "-0x.f8p+5"},
		{"inf", "+Inf"},
	} {
		got, ok := parseLongDouble([]byte(c.text))
		if !ok || got.Text('p', 0) != c.want {
			t.Errorf("parseLongDouble(%q) = %s, %v, want %s", c.text, got.Text('p', 0), ok, c.want)
		}
	}
}

// Where a double holds a number, the long double of the same text is the same
// number or one that rounds to it or to its neighbour.
func FuzzParseLongDouble(f *testing.F) {
	for _, s := range []string{"1", "-0.1", "1e308", "0x1p-3", "inf", "nan", "1e99999999999999999999", ".", "0x", "+.5e-7"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		long, ok := parseLongDouble([]byte(s))
		if !ok {
			return
		}
		again, ok := parseLongDouble([]byte(long.Text('g', 25)))
		if !ok || again.Cmp(long) != 0 {
			t.Errorf("%q is %s, which reads as %v", s, long.Text('g', 25), again)
		}
		if double, err := strconv.ParseFloat(s, 64); err == nil && double != 0 && !long.IsInf() {
			off := new(big.Float).Sub(long, big.NewFloat(double))
			bound := new(big.Float).Abs(new(big.Float).Mul(big.NewFloat(double), big.NewFloat(0x1p-52)))
			bound.Add(bound, new(big.Float).SetMantExp(big.NewFloat(1), -1074))
			if off.Abs(off).Cmp(bound) > 0 {
				t.Errorf("%q is %s as a long double, %g as a double", s, long.Text('g', 25), double)
			}
		}
	})
}

// slowLCS is the length of the longest common subsequence by its definition.
func slowLCS(a, b string) int {
	switch {
	case a == "" || b == "":
		return 0
	case a[0] == b[0]:
		return 1 + slowLCS(a[1:], b[1:])
	}
	return max(slowLCS(a[1:], b), slowLCS(a, b[1:]))
}

func isSubsequence(short, long string) bool {
	for i := 0; i < len(long) && short != ""; i++ {
		if long[i] == short[0] {
			short = short[1:]
		}
	}
	return short == ""
}

func TestLCSIsASubsequenceOfBothAndNoneIsLonger(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	text := func() string {
		b := make([]byte, r.IntN(12))
		for i := range b {
			b[i] = "abc"[r.IntN(3)]
		}
		return string(b)
	}
	for range 500 {
		a, b := text(), text()
		table := newLCSTable([]byte(a), []byte(b), true)
		got := string(table.sequence())
		if len(got) != slowLCS(a, b) || !isSubsequence(got, a) || !isSubsequence(got, b) {
			t.Errorf("LCS of %q and %q is %q", a, b, got)
		}
		matched := 0
		for _, m := range table.ranges(0) {
			if a[m.a:m.a+m.length] != b[m.b:m.b+m.length] {
				t.Errorf("%q, %q: range %v has different bytes", a, b, m)
			}
			matched += m.length
		}
		if matched != len(got) {
			t.Errorf("%q, %q: ranges of %d bytes together, sequence of %d", a, b, matched, len(got))
		}
	}
}

// caller runs one command again and again the way a connection does.
type caller struct {
	session *slotmesh.Session
	request slotmesh.Request
	call    Call
	reply   Reply
	run     func(*slotmesh.Tx) error
}

func newCaller(b *bench, args ...string) *caller {
	c := &caller{session: b.node.Session()}
	c.call = Call{Reply: &c.reply}
	for _, a := range args {
		c.call.Args = append(c.call.Args, []byte(a))
	}
	command, err := b.table.lookup(c.call.Args)
	require.NoError(b.t, err)
	c.call.command = command
	c.request = slotmesh.Request{Name: command.Name, ReadOnly: !command.has(Write), Keys: []string{args[1]}}
	c.run = func(tx *slotmesh.Tx) error {
		c.call.Tx = tx
		return command.Run(&c.call)
	}
	return c
}

func (c *caller) do() error {
	c.reply.reset(2)
	return c.session.Execute(context.Background(), &c.request, c.run)
}

func BenchmarkStrings(b *testing.B) {
	for _, args := range [][]string{
		{"GET", "key"}, {"SET", "key", "value"}, {"SET", "key", "value", "PX", "100000"},
		{"INCR", "counter"}, {"INCRBYFLOAT", "number", "0.1"}, {"APPEND", "empty", ""}, {"SETBIT", "bits", "7", "1"},
	} {
		b.Run(fmt.Sprint(args[0], len(args)), func(b *testing.B) {
			bench := newBench(b)
			require.Equal(b, "+OK\r\n", bench.run("SET", "key", "value"))
			c := newCaller(bench, args...)
			b.ReportAllocs()
			for b.Loop() {
				if err := c.do(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
