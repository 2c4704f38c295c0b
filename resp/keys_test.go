package resp

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/slotmesh/slotmesh"
	"github.com/slotmesh/slotmesh/internal/racing"
	"github.com/stretchr/testify/require"
)

func TestDeleteAndExists(t *testing.T) {
	b := newBench(t)
	b.replies(
		[2]string{`MSET {t}a 1 {t}b 2`, "+OK\r\n"},
		[2]string{`EXISTS {t}a {t}a {t}b {t}nothing`, ":3\r\n"},
		[2]string{`TOUCH {t}a {t}a {t}nothing`, ":2\r\n"},
		[2]string{`DEL {t}a {t}a {t}nothing`, ":1\r\n"},
		[2]string{`UNLINK {t}b {t}b`, ":1\r\n"},
		[2]string{`EXISTS {t}a {t}b`, ":0\r\n"},
		[2]string{`DEL`, "-ERR wrong number of arguments for 'del' command\r\n"},
		[2]string{`EXISTS`, "-ERR wrong number of arguments for 'exists' command\r\n"},
		[2]string{`TOUCH`, "-ERR wrong number of arguments for 'touch' command\r\n"},
		[2]string{`SET {t}a 1`, "+OK\r\n"},
		[2]string{`RPUSH {t}list x`, ":1\r\n"},
		[2]string{`SADD {t}set x`, ":1\r\n"},
		[2]string{`HSET {t}hash f v`, ":1\r\n"},
		[2]string{`ZADD {t}zset 1 m`, ":1\r\n"},
		[2]string{`TYPE {t}a`, "+string\r\n"},
		[2]string{`TYPE {t}list`, "+list\r\n"},
		[2]string{`TYPE {t}set`, "+set\r\n"},
		[2]string{`TYPE {t}hash`, "+hash\r\n"},
		[2]string{`TYPE {t}zset`, "+zset\r\n"},
		[2]string{`TYPE {t}nothing`, "+none\r\n"},
		[2]string{`DEL {t}list {t}set {t}hash {t}zset`, ":4\r\n"},
		[2]string{`EXISTS {t}list {t}set {t}hash {t}zset`, ":0\r\n"},
		[2]string{`MOVE {t}a 1`, "-ERR MOVE is not allowed in cluster mode\r\n"},
		[2]string{`MOVE {t}nothing x`, "-ERR MOVE is not allowed in cluster mode\r\n"},
	)
}

func TestExpireTakesItsConditions(t *testing.T) {
	b := newBench(t)
	b.replies(
		[2]string{`SET a v`, "+OK\r\n"},
		[2]string{`EXPIRE a 100`, ":1\r\n"},
		[2]string{`TTL a`, ":100\r\n"},
		[2]string{`EXPIRE nothing 100`, ":0\r\n"},
		[2]string{`PEXPIRE a 200000`, ":1\r\n"},
		[2]string{`TTL a`, ":200\r\n"},
		[2]string{`EXPIREAT a 4000000000`, ":1\r\n"},
		[2]string{`EXPIRETIME a`, ":4000000000\r\n"},
		[2]string{`PEXPIRETIME a`, ":4000000000000\r\n"},
		[2]string{`PEXPIREAT a 4000000000500`, ":1\r\n"},
		[2]string{`EXPIRETIME a`, ":4000000001\r\n"},
		[2]string{`PEXPIRETIME a`, ":4000000000500\r\n"},
		[2]string{`EXPIREAT a 4000000000 NX`, ":0\r\n"},
		[2]string{`EXPIREAT a 4000000000 GT`, ":0\r\n"},
		[2]string{`EXPIREAT a 4000000001 GT`, ":1\r\n"},
		[2]string{`EXPIREAT a 4000000002 LT`, ":0\r\n"},
		[2]string{`EXPIREAT a 4000000000 LT`, ":1\r\n"},
		[2]string{`EXPIREAT a 4000000000 LT XX`, ":0\r\n"},
		[2]string{`EXPIREAT a 4000000005 XX GT`, ":1\r\n"},
		[2]string{`EXPIRETIME a`, ":4000000005\r\n"},
		[2]string{`PERSIST a`, ":1\r\n"},
		[2]string{`PERSIST a`, ":0\r\n"},
		[2]string{`PERSIST nothing`, ":0\r\n"},
		[2]string{`TTL a`, ":-1\r\n"},
		[2]string{`PTTL a`, ":-1\r\n"},
		[2]string{`EXPIRETIME a`, ":-1\r\n"},
		[2]string{`PEXPIRETIME a`, ":-1\r\n"},
		[2]string{`TTL nothing`, ":-2\r\n"},
		[2]string{`PTTL nothing`, ":-2\r\n"},
		[2]string{`EXPIRETIME nothing`, ":-2\r\n"},
		[2]string{`PEXPIRETIME nothing`, ":-2\r\n"},
		[2]string{`EXPIREAT a 4000000000 XX`, ":0\r\n"},
		[2]string{`EXPIREAT a 4000000000 GT`, ":0\r\n"},
		[2]string{`EXPIREAT a 4000000000 LT`, ":1\r\n"},
		[2]string{`PERSIST a`, ":1\r\n"},
		[2]string{`EXPIREAT a 4000000000 nx nx`, ":1\r\n"},
		[2]string{`EXPIRE a 1 NX XX`, "-ERR NX and XX, GT or LT options at the same time are not compatible\r\n"},
		[2]string{`EXPIRE a 1 NX GT`, "-ERR NX and XX, GT or LT options at the same time are not compatible\r\n"},
		[2]string{`EXPIRE a 1 LT NX`, "-ERR NX and XX, GT or LT options at the same time are not compatible\r\n"},
		[2]string{`EXPIRE a 1 GT LT`, "-ERR GT and LT options at the same time are not compatible\r\n"},
		[2]string{`EXPIRE a x wrong`, "-ERR Unsupported option wrong\r\n"},
		[2]string{`EXPIRE a x GT LT`, "-ERR GT and LT options at the same time are not compatible\r\n"},
		[2]string{`EXPIRE a x`, "-ERR value is not an integer or out of range\r\n"},
		[2]string{`EXPIRE a 9223372036854775807`, "-ERR invalid expire time in 'expire' command\r\n"},
		[2]string{`EXPIRE a 9223372036854775`, "-ERR invalid expire time in 'expire' command\r\n"},
		[2]string{`EXPIRE a -9223372036854775808`, "-ERR invalid expire time in 'expire' command\r\n"},
		[2]string{`EXPIREAT a 9223372036854776`, "-ERR invalid expire time in 'expireat' command\r\n"},
		[2]string{`PEXPIRE a 9223372036854775807`, "-ERR invalid expire time in 'pexpire' command\r\n"},
		[2]string{`PEXPIREAT a 9223372036854775807`, ":1\r\n"},
		[2]string{`EXPIRETIME a`, ":9223372036854776\r\n"},
		[2]string{`PEXPIRETIME a`, ":9223372036854775807\r\n"},
		[2]string{`EXPIRE nothing 9223372036854775807`, "-ERR invalid expire time in 'expire' command\r\n"},
		[2]string{`EXPIRE a -1`, ":1\r\n"},
		[2]string{`EXISTS a`, ":0\r\n"},
		[2]string{`SET a v`, "+OK\r\n"},
		[2]string{`PEXPIREAT a 1`, ":1\r\n"},
		[2]string{`EXISTS a`, ":0\r\n"},
		[2]string{`SET a v`, "+OK\r\n"},
		[2]string{`EXPIREAT a 0`, ":1\r\n"},
		[2]string{`EXISTS a`, ":0\r\n"},
		[2]string{`RPUSH list x y`, ":2\r\n"},
		[2]string{`EXPIRE list 100`, ":1\r\n"},
		[2]string{`RPUSH list z`, ":3\r\n"},
		[2]string{`TTL list`, ":100\r\n"},
		[2]string{`EXPIRE list 0`, ":1\r\n"},
		[2]string{`EXISTS list`, ":0\r\n"},
		[2]string{`EXPIRE a`, "-ERR wrong number of arguments for 'expire' command\r\n"},
	)
}

func TestRenameAndCopy(t *testing.T) {
	b := newBench(t)
	b.replies(
		[2]string{`SET {t}a v PXAT 4000000000000`, "+OK\r\n"},
		[2]string{`RENAME {t}a {t}b`, "+OK\r\n"},
		[2]string{`PEXPIRETIME {t}b`, ":4000000000000\r\n"},
		[2]string{`EXISTS {t}a`, ":0\r\n"},
		[2]string{`RENAME {t}a {t}b`, "-ERR no such key\r\n"},
		[2]string{`RENAMENX {t}a {t}b`, "-ERR no such key\r\n"},
		[2]string{`RENAME {t}a {t}a`, "-ERR no such key\r\n"},
		[2]string{`RENAME {t}b {t}b`, "+OK\r\n"},
		[2]string{`RENAMENX {t}b {t}b`, ":0\r\n"},
		[2]string{`SET {t}c w`, "+OK\r\n"},
		[2]string{`RENAMENX {t}b {t}c`, ":0\r\n"},
		[2]string{`RENAMENX {t}b {t}d`, ":1\r\n"},
		[2]string{`RENAME {t}c {t}d`, "+OK\r\n"},
		[2]string{`GET {t}d`, "$1\r\nw\r\n"},
		[2]string{`TTL {t}d`, ":-1\r\n"},
		[2]string{`RPUSH {t}list a b c`, ":3\r\n"},
		[2]string{`PEXPIREAT {t}list 4000000000000`, ":1\r\n"},
		[2]string{`COPY {t}list {t}copy`, ":1\r\n"},
		[2]string{`LRANGE {t}copy 0 -1`, "*3\r\n$1\r\na\r\n$1\r\nb\r\n$1\r\nc\r\n"},
		[2]string{`PEXPIRETIME {t}copy`, ":4000000000000\r\n"},
		[2]string{`LPUSH {t}copy z`, ":4\r\n"},
		[2]string{`LRANGE {t}copy 0 -1`, "*4\r\n$1\r\nz\r\n$1\r\na\r\n$1\r\nb\r\n$1\r\nc\r\n"},
		[2]string{`LRANGE {t}list 0 -1`, "*3\r\n$1\r\na\r\n$1\r\nb\r\n$1\r\nc\r\n"},
		[2]string{`COPY {t}list {t}copy`, ":0\r\n"},
		[2]string{`COPY {t}list {t}copy REPLACE`, ":1\r\n"},
		[2]string{`LRANGE {t}copy 0 -1`, "*3\r\n$1\r\na\r\n$1\r\nb\r\n$1\r\nc\r\n"},
		[2]string{`RENAME {t}list {t}copy`, "+OK\r\n"},
		[2]string{`LRANGE {t}copy 0 -1`, "*3\r\n$1\r\na\r\n$1\r\nb\r\n$1\r\nc\r\n"},
		[2]string{`EXISTS {t}list`, ":0\r\n"},
		[2]string{`HSET {t}hash a 1 b 2`, ":2\r\n"},
		[2]string{`RENAME {t}hash {t}copy`, "+OK\r\n"},
		[2]string{`HLEN {t}copy`, ":2\r\n"},
		[2]string{`HGET {t}copy b`, "$1\r\n2\r\n"},
		[2]string{`ZADD {t}zset 2 b 1 a -inf c`, ":3\r\n"},
		[2]string{`COPY {t}zset {t}copy REPLACE`, ":1\r\n"},
		[2]string{`ZRANGE {t}copy 0 -1 WITHSCORES`, "*6\r\n$1\r\nc\r\n$4\r\n-inf\r\n$1\r\na\r\n$1\r\n1\r\n$1\r\nb\r\n$1\r\n2\r\n"},
		[2]string{`ZSCORE {t}copy a`, "$1\r\n1\r\n"},
		[2]string{`SADD {t}set a`, ":1\r\n"},
		[2]string{`COPY {t}set {t}copy replace`, ":1\r\n"},
		[2]string{`SISMEMBER {t}copy a`, ":1\r\n"},
		[2]string{`RENAME {t}d {t}copy`, "+OK\r\n"},
		[2]string{`GET {t}copy`, "$1\r\nw\r\n"},
		[2]string{`SISMEMBER {t}copy a`, "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"},
		[2]string{`COPY {t}nothing {t}copy`, ":0\r\n"},
		[2]string{`COPY {t}nothing {t}nothing`, "-ERR source and destination objects are the same\r\n"},
		[2]string{`COPY {t}d {t}copy DB 0`, ":0\r\n"},
		[2]string{`COPY {t}d {t}copy DB 1`, "-ERR Copying to another database is not allowed in cluster mode\r\n"},
		[2]string{`COPY {t}d {t}copy DB 15`, "-ERR Copying to another database is not allowed in cluster mode\r\n"},
		[2]string{`COPY {t}d {t}copy DB 16`, "-ERR DB index is out of range\r\n"},
		[2]string{`COPY {t}d {t}copy DB -1`, "-ERR DB index is out of range\r\n"},
		[2]string{`COPY {t}d {t}copy DB x`, "-ERR value is not an integer or out of range\r\n"},
		[2]string{`COPY {t}d {t}copy DB 99999999999`, "-ERR value is out of range, value must between -2147483648 and 2147483647\r\n"},
		[2]string{`COPY {t}d {t}copy DB`, "-ERR syntax error\r\n"},
		[2]string{`COPY {t}d {t}copy wrong`, "-ERR syntax error\r\n"},
		[2]string{`COPY {t}d`, "-ERR wrong number of arguments for 'copy' command\r\n"},
	)
}

func TestSort(t *testing.T) {
	b := newBench(t)
	b.replies(
		[2]string{`RPUSH {t}l 3 1 10 2 ""`, ":5\r\n"},
		[2]string{`SORT {t}l`, "*5\r\n$0\r\n\r\n$1\r\n1\r\n$1\r\n2\r\n$1\r\n3\r\n$2\r\n10\r\n"},
		[2]string{`SORT {t}l DESC`, "*5\r\n$2\r\n10\r\n$1\r\n3\r\n$1\r\n2\r\n$1\r\n1\r\n$0\r\n\r\n"},
		[2]string{`SORT {t}l ALPHA`, "*5\r\n$0\r\n\r\n$1\r\n1\r\n$2\r\n10\r\n$1\r\n2\r\n$1\r\n3\r\n"},
		[2]string{`SORT {t}l ALPHA DESC`, "*5\r\n$1\r\n3\r\n$1\r\n2\r\n$2\r\n10\r\n$1\r\n1\r\n$0\r\n\r\n"},
		[2]string{`SORT {t}l asc desc LIMIT 1 2`, "*2\r\n$1\r\n3\r\n$1\r\n2\r\n"},
		[2]string{`SORT {t}l LIMIT -5 2`, "*2\r\n$0\r\n\r\n$1\r\n1\r\n"},
		[2]string{`SORT {t}l LIMIT 3 -1`, "*2\r\n$1\r\n3\r\n$2\r\n10\r\n"},
		[2]string{`SORT {t}l LIMIT 100 2`, "*0\r\n"},
		[2]string{`SORT {t}l LIMIT 0 0`, "*0\r\n"},
		[2]string{`SORT {t}l LIMIT 9223372036854775807 9223372036854775807`, "*0\r\n"},
		[2]string{`SORT {t}l BY nosort`, "*5\r\n$1\r\n3\r\n$1\r\n1\r\n$2\r\n10\r\n$1\r\n2\r\n$0\r\n\r\n"},
		[2]string{`SORT {t}l BY nosort DESC LIMIT 1 2`, "*2\r\n$1\r\n2\r\n$2\r\n10\r\n"},
		[2]string{`SORT {t}l BY nosort LIMIT 1 2`, "*2\r\n$1\r\n1\r\n$2\r\n10\r\n"},
		[2]string{`SORT {t}l BY w_*`, "-ERR BY option of SORT denied in Cluster mode.\r\n"},
		[2]string{`SORT {t}l GET x`, "-ERR GET option of SORT denied in Cluster mode.\r\n"},
		[2]string{`SORT {t}l GET w_* BY w_*`, "-ERR GET option of SORT denied in Cluster mode.\r\n"},
		[2]string{`SORT {t}l BY w_* wrong`, "-ERR BY option of SORT denied in Cluster mode.\r\n"},
		[2]string{`SORT {t}l wrong BY w_*`, "-ERR syntax error\r\n"},
		[2]string{`SORT {t}l LIMIT x 1`, "-ERR value is not an integer or out of range\r\n"},
		[2]string{`SORT {t}l LIMIT 1 x`, "-ERR value is not an integer or out of range\r\n"},
		[2]string{`SORT {t}l LIMIT 1`, "-ERR syntax error\r\n"},
		[2]string{`SORT {t}l STORE {t}s`, ":5\r\n"},
		[2]string{`LRANGE {t}s 0 -1`, "*5\r\n$0\r\n\r\n$1\r\n1\r\n$1\r\n2\r\n$1\r\n3\r\n$2\r\n10\r\n"},
		[2]string{`SORT {t}l STORE {t}l LIMIT 0 2`, ":2\r\n"},
		[2]string{`LRANGE {t}l 0 -1`, "*2\r\n$0\r\n\r\n$1\r\n1\r\n"},
		[2]string{`LPUSH {t}l 7`, ":3\r\n"},
		[2]string{`SORT {t}nothing`, "*0\r\n"},
		[2]string{`SORT {t}nothing STORE {t}s`, ":0\r\n"},
		[2]string{`EXISTS {t}s`, ":0\r\n"},
		[2]string{`RPUSH {t}l x`, ":4\r\n"},
		[2]string{`SORT {t}l`, "-ERR One or more scores can't be converted into double\r\n"},
		[2]string{`SORT {t}l STORE {t}s`, "-ERR One or more scores can't be converted into double\r\n"},
		[2]string{`SORT {t}l ALPHA STORE {t}s STORE {t}r`, ":4\r\n"},
		[2]string{`EXISTS {t}s {t}r`, ":1\r\n"},
		[2]string{`SORT_RO {t}l ALPHA`, "*4\r\n$0\r\n\r\n$1\r\n1\r\n$1\r\n7\r\n$1\r\nx\r\n"},
		[2]string{`SORT_RO {t}l STORE {t}s`, "-ERR syntax error\r\n"},
		[2]string{`RPUSH {t}f 1.5 " 2" 0x10 inf -inf 1e3 -0 +3`, ":8\r\n"},
		[2]string{`SORT {t}f`, "*8\r\n$4\r\n-inf\r\n$2\r\n-0\r\n$3\r\n1.5\r\n$2\r\n 2\r\n$2\r\n+3\r\n$4\r\n0x10\r\n$3\r\n1e3\r\n$3\r\ninf\r\n"},
		[2]string{`RPUSH {t}g "2 "`, ":1\r\n"},
		[2]string{`SORT {t}g`, "-ERR One or more scores can't be converted into double\r\n"},
		[2]string{`RPUSH {t}h nan`, ":1\r\n"},
		[2]string{`SORT {t}h`, "-ERR One or more scores can't be converted into double\r\n"},
		[2]string{`SADD {t}set 3 1 2`, ":3\r\n"},
		[2]string{`SORT {t}set`, "*3\r\n$1\r\n1\r\n$1\r\n2\r\n$1\r\n3\r\n"},
		[2]string{`SORT {t}set BY nosort STORE {t}s`, ":3\r\n"},
		[2]string{`LRANGE {t}s 0 -1`, "*3\r\n$1\r\n1\r\n$1\r\n2\r\n$1\r\n3\r\n"},
		[2]string{`ZADD {t}z 1 30 2 20 3 10`, ":3\r\n"},
		[2]string{`SORT {t}z`, "*3\r\n$2\r\n10\r\n$2\r\n20\r\n$2\r\n30\r\n"},
		[2]string{`SORT {t}z BY nosort`, "*3\r\n$2\r\n30\r\n$2\r\n20\r\n$2\r\n10\r\n"},
		[2]string{`SORT {t}z BY nosort DESC LIMIT 0 2`, "*2\r\n$2\r\n10\r\n$2\r\n20\r\n"},
		[2]string{`HSET {t}hash a 1`, ":1\r\n"},
		[2]string{`SORT {t}hash`, "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"},
		[2]string{`SORT {t}hash wrong`, "-ERR syntax error\r\n"},
		[2]string{`SET {t}str v`, "+OK\r\n"},
		[2]string{`SORT {t}str`, "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"},
		[2]string{`SORT`, "-ERR wrong number of arguments for 'sort' command\r\n"},
		[2]string{`RPUSH {t}nul "2\x00b" "1\x00x" "\x00"`, ":3\r\n"},
		[2]string{`SORT {t}nul`, "*3\r\n$1\r\n\x00\r\n$3\r\n1\x00x\r\n$3\r\n2\x00b\r\n"}, // a number of C ends there
		[2]string{`RPUSH {t}i 1e400`, ":1\r\n"},
		[2]string{`SORT {t}i`, "-ERR One or more scores can't be converted into double\r\n"},
	)
}

func TestObject(t *testing.T) {
	b := newBench(t)
	b.replies(
		[2]string{`SET a 12345`, "+OK\r\n"},
		[2]string{`OBJECT ENCODING a`, "$3\r\nint\r\n"},
		[2]string{`SET a short`, "+OK\r\n"},
		[2]string{`OBJECT ENCODING a`, "$6\r\nembstr\r\n"},
		[2]string{`SET a 01234567890123456789012345678901234567890123`, "+OK\r\n"},
		[2]string{`OBJECT ENCODING a`, "$6\r\nembstr\r\n"},
		[2]string{`SET a 012345678901234567890123456789012345678901234`, "+OK\r\n"},
		[2]string{`OBJECT ENCODING a`, "$3\r\nraw\r\n"},
		[2]string{`SET a 9223372036854775808`, "+OK\r\n"},
		[2]string{`OBJECT ENCODING a`, "$6\r\nembstr\r\n"},
		[2]string{`RPUSH l x`, ":1\r\n"},
		[2]string{`OBJECT ENCODING l`, "$9\r\nquicklist\r\n"},
		[2]string{`SADD s 1 2`, ":2\r\n"},
		[2]string{`OBJECT ENCODING s`, "$6\r\nintset\r\n"},
		[2]string{`SADD s x`, ":1\r\n"},
		[2]string{`OBJECT ENCODING s`, "$9\r\nhashtable\r\n"},
		[2]string{`HSET h f v`, ":1\r\n"},
		[2]string{`OBJECT ENCODING h`, "$8\r\nlistpack\r\n"},
		[2]string{`HSET h f 01234567890123456789012345678901234567890123456789012345678901234`, ":0\r\n"},
		[2]string{`OBJECT ENCODING h`, "$9\r\nhashtable\r\n"},
		[2]string{`ZADD z 1 a`, ":1\r\n"},
		[2]string{`OBJECT ENCODING z`, "$8\r\nlistpack\r\n"},
		[2]string{`ZADD z 1 01234567890123456789012345678901234567890123456789012345678901234`, ":1\r\n"},
		[2]string{`OBJECT ENCODING z`, "$8\r\nskiplist\r\n"},
		[2]string{`OBJECT ENCODING nothing`, "$-1\r\n"},
		[2]string{`OBJECT REFCOUNT a`, ":1\r\n"},
		[2]string{`OBJECT REFCOUNT nothing`, "$-1\r\n"},
		[2]string{`OBJECT IDLETIME a`, ":0\r\n"},
		[2]string{`OBJECT IDLETIME nothing`, "$-1\r\n"},
		[2]string{`OBJECT FREQ a`, "-ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that when switching between policies at runtime LRU and LFU data will take some time to adjust.\r\n"},
		[2]string{`OBJECT FREQ nothing`, "$-1\r\n"},
		[2]string{`OBJECT ENCODING`, "-ERR wrong number of arguments for 'object|encoding' command\r\n"},
		[2]string{`OBJECT ENCODING a b`, "-ERR wrong number of arguments for 'object|encoding' command\r\n"},
		[2]string{`OBJECT wrong a`, "-ERR unknown subcommand 'wrong'. Try OBJECT HELP.\r\n"},
		[2]string{`OBJECT`, "-ERR wrong number of arguments for 'object' command\r\n"},
	)
}

func TestDumpAndRestore(t *testing.T) {
	b := newBench(t)
	b.replies(
		[2]string{`DUMP nothing`, "$-1\r\n"},
		[2]string{`SET a v`, "+OK\r\n"},
		[2]string{`DUMP a`, "$13\r\n\x00\x01v\n\x00\x91\x08\xce\xb2\x198\x8a\xce\r\n"},
		[2]string{`SET a 1`, "+OK\r\n"},
		[2]string{`RPUSH l a b`, ":2\r\n"},
		[2]string{`RESTORE a 0 "\x00\x01v\x0a\x00\x73\x43\x53\x1f\x54\x2f\xb2\x90"`, "-BUSYKEY Target key name already exists.\r\n"},
		[2]string{`RESTORE a 0 x`, "-BUSYKEY Target key name already exists.\r\n"},
		[2]string{`RESTORE a 0 x REPLACE`, "-ERR DUMP payload version or checksum are wrong\r\n"},
		[2]string{`RESTORE b 0 ""`, "-ERR DUMP payload version or checksum are wrong\r\n"},
		[2]string{`RESTORE b -1 x`, "-ERR Invalid TTL value, must be >= 0\r\n"},
		[2]string{`RESTORE b x x`, "-ERR value is not an integer or out of range\r\n"},
		[2]string{`RESTORE b 0 x wrong`, "-ERR syntax error\r\n"},
		[2]string{`RESTORE b 0 x IDLETIME -1`, "-ERR Invalid IDLETIME value, must be >= 0\r\n"},
		[2]string{`RESTORE b 0 x IDLETIME x`, "-ERR value is not an integer or out of range\r\n"},
		[2]string{`RESTORE b 0 x IDLETIME 1 FREQ 1`, "-ERR syntax error\r\n"},
		[2]string{`RESTORE b 0 x FREQ 1 IDLETIME 1`, "-ERR syntax error\r\n"},
		[2]string{`RESTORE b 0 x FREQ 256`, "-ERR Invalid FREQ value, must be >= 0 and <= 255\r\n"},
		[2]string{`RESTORE b 0 x FREQ`, "-ERR syntax error\r\n"},
		[2]string{`RESTORE b 0`, "-ERR wrong number of arguments for 'restore' command\r\n"},
		[2]string{`RESTORE-ASKING b 0 x`, "-ERR DUMP payload version or checksum are wrong\r\n"},
		[2]string{`SET n 12`, "+OK\r\n"},
		[2]string{`RESTORE c 0 "\x00\xc0\x0c\n\x00<*\xf8Q\\\x04\xbc\xd5"`, "+OK\r\n"},
		[2]string{`GET c`, "$2\r\n12\r\n"},
		[2]string{`RESTORE c 4000000000000 "\x12\x01\x02\r\r\x00\x00\x00\x02\x00\x81a\x02\x81b\x02\xff\n\x00h\xeb\n\x89\x13A\xbb\xb1" REPLACE ABSTTL`, "+OK\r\n"},
		[2]string{`PEXPIRETIME c`, ":4000000000000\r\n"},
		[2]string{`LRANGE c 0 -1`, "*2\r\n$1\r\na\r\n$1\r\nb\r\n"},
		[2]string{`RESTORE c 1 "\x00\xc0\x0c\n\x00<*\xf8Q\\\x04\xbc\xd5" REPLACE ABSTTL FREQ 255`, "+OK\r\n"},
		[2]string{`EXISTS c`, ":0\r\n"},
		[2]string{`RESTORE c 1 "\x00\xc0\x0c\n\x00<*\xf8Q\\\x04\xbc\xd5" ABSTTL IDLETIME 5`, "+OK\r\n"},
		[2]string{`EXISTS c`, ":0\r\n"},
		[2]string{`RESTORE c 100000 "\x12\x01\x02\r\r\x00\x00\x00\x02\x00\x81a\x02\x81b\x02\xff\n\x00h\xeb\n\x89\x13A\xbb\xb1"`, "+OK\r\n"},
		[2]string{`TTL c`, ":100\r\n"},
		[2]string{`RESTORE c 9223372036854775807 "\x00\xc0\x0c\n\x00<*\xf8Q\\\x04\xbc\xd5" REPLACE`, "+OK\r\n"},
		[2]string{`EXISTS c`, ":0\r\n"},
		[2]string{`SADD i 1 -2 300000`, ":3\r\n"},
		[2]string{`RESTORE c 0 "\x0b\x14\x04\x00\x00\x00\x03\x00\x00\x00\xfe\xff\xff\xff\x01\x00\x00\x00\xe0\x93\x04\x00\n\x00\xc1\xa8\x8f\xb6\xdf@\xa5W"`, "+OK\r\n"},
		[2]string{`SCARD c`, ":3\r\n"},
		[2]string{`SISMEMBER c -2`, ":1\r\n"},
		[2]string{`HSET h a 1 b 02`, ":2\r\n"},
		[2]string{`RESTORE c 0 "\x10\x13\x13\x00\x00\x00\x04\x00\x81a\x02\x01\x01\x81b\x02\x8202\x03\xff\n\x00\xe3na\xack\x17\x1f\xde" REPLACE`, "+OK\r\n"},
		[2]string{`HGET c a`, "$1\r\n1\r\n"},
		[2]string{`HGET c b`, "$2\r\n02\r\n"},
		[2]string{`HLEN c`, ":2\r\n"},
		[2]string{`ZADD z 1.5 a -inf b`, ":2\r\n"},
		[2]string{`RESTORE c 0 "\x11\x18\x18\x00\x00\x00\x04\x00\x81b\x02\x84-inf\x05\x81a\x02\x831.5\x04\xff\n\x00b\x83\xbcb{\xc9G\x81" REPLACE`, "+OK\r\n"},
		[2]string{`ZRANGE c 0 -1 WITHSCORES`, "*4\r\n$1\r\nb\r\n$4\r\n-inf\r\n$1\r\na\r\n$3\r\n1.5\r\n"},
	)
}

func TestSortFindsTheKeyThatItStoresTo(t *testing.T) {
	for _, c := range []struct {
		line string
		want string
	}{
		{"SORT a", "[1]"},
		{"SORT a STORE b", "[1 3]"},
		{"SORT a store b STORE c", "[1 5]"},
		{"SORT a STORE", "[1]"},
		{"SORT a BY store STORE b", "[1 5]"},
		{"SORT a GET store", "[1]"},
		{"SORT a LIMIT store store b", "[1]"},
		{"SORT a STORE by b", "[1 3]"},
	} {
		var args [][]byte
		for _, w := range words(t, c.line) {
			args = append(args, []byte(w))
		}
		at, err := sortKeys(args)
		if got := fmt.Sprint(at); got != c.want || err != nil {
			t.Errorf("%s: keys at %s, %v, want %s", c.line, got, err, c.want)
		}
	}
}

// payload is what DUMP returns, without the protocol around it.
func (b *bench) payload(key string) string {
	b.t.Helper()
	reply := b.run("DUMP", key)
	_, body, found := strings.Cut(reply, "\r\n")
	require.True(b.t, found && reply[0] == '$', reply)
	return strings.TrimSuffix(body, "\r\n")
}

func TestDumpedValuesOfEveryKindComeBack(t *testing.T) {
	b := newBench(t)
	for _, c := range []struct{ kind, write, read string }{
		{"string", `SET k "a\x00b"`, `GET k`},
		{"empty string", `SET k ""`, `GET k`},
		{"list", `RPUSH k a "" b "\xff" a`, `LRANGE k 0 -1`},
		{"set", `SADD k a "" b 17`, `SORT k ALPHA`},
		{"hash", `HSET k a 1 "" "" "\x00" x`, `HMGET k a "" "\x00" b`},
		{"sorted set", `ZADD k 1.5 a -inf b inf c 0 "" -0 d 1e-300 e -7 f`, `ZRANGE k 0 -1 WITHSCORES`},
	} {
		t.Run(c.kind, func(t *testing.T) {
			b.run("DEL", "k")
			b.run(words(t, c.write)...)
			want, kind := b.run(words(t, c.read)...), b.run("TYPE", "k")
			payload := b.payload("k")
			require.Equal(t, "-BUSYKEY Target key name already exists.\r\n", b.run("RESTORE", "k", "0", payload))
			require.Equal(t, ":1\r\n", b.run("DEL", "k"))
			require.Equal(t, "+OK\r\n", b.run("RESTORE", "k", "4000000000000", payload, "ABSTTL"))
			require.Equal(t, want, b.run(words(t, c.read)...))
			require.Equal(t, kind, b.run("TYPE", "k"))
			require.Equal(t, ":4000000000000\r\n", b.run("PEXPIRETIME", "k"))
			require.Equal(t, "+OK\r\n", b.run("RESTORE", "k", "0", payload, "REPLACE"))
			require.Equal(t, ":-1\r\n", b.run("PTTL", "k"))
		})
	}
}

// A restored collection is one like any other: it grows and shrinks at its ends,
// and the last member takes it along.
func TestRestoredCollectionsGoOn(t *testing.T) {
	b := newBench(t)
	b.run("RPUSH l b c")
	require.Equal(t, "+OK\r\n", b.run("RESTORE", "copy", "0", b.payload("l")))
	b.replies(
		[2]string{`LPUSH copy a`, ":3\r\n"},
		[2]string{`RPUSH copy d`, ":4\r\n"},
		[2]string{`LRANGE copy 0 -1`, "*4\r\n$1\r\na\r\n$1\r\nb\r\n$1\r\nc\r\n$1\r\nd\r\n"},
		[2]string{`LRANGE l 0 -1`, "*2\r\n$1\r\nb\r\n$1\r\nc\r\n"},
		[2]string{`LPOP copy 4`, "*4\r\n$1\r\na\r\n$1\r\nb\r\n$1\r\nc\r\n$1\r\nd\r\n"},
		[2]string{`EXISTS copy`, ":0\r\n"},
	)
	b.run("ZADD z 1 a 2 b")
	require.Equal(t, "+OK\r\n", b.run("RESTORE", "copy", "0", b.payload("z")))
	b.replies(
		[2]string{`ZINCRBY copy 5 a`, "$1\r\n6\r\n"},
		[2]string{`ZRANGE copy 0 -1`, "*2\r\n$1\r\nb\r\n$1\r\na\r\n"},
		[2]string{`ZCARD copy`, ":2\r\n"},
		[2]string{`ZREM copy a b`, ":2\r\n"},
		[2]string{`EXISTS copy`, ":0\r\n"},
	)
}

// wideKeys makes a collection of each kind, with n members, and returns their
// names.
func (b *bench) wideKeys(n int) []string {
	b.t.Helper()
	name := func(i int) string { return fmt.Sprintf("member:%07d", i) }
	b.fill([]string{"SADD", "{t}set"}, n, func(i int) []string { return []string{name(i)} })
	b.fill([]string{"HSET", "{t}hash"}, n, func(i int) []string { return []string{name(i), "v"} })
	b.fill([]string{"ZADD", "{t}zset"}, n, func(i int) []string { return []string{strconv.Itoa(i), name(i)} })
	b.fill([]string{"RPUSH", "{t}list"}, n, func(i int) []string { return []string{name(i)} })
	return []string{"{t}set", "{t}hash", "{t}zset", "{t}list"}
}

func TestWideKeysAreCopiedWhole(t *testing.T) {
	racing.OneGoroutine(t)
	b := newBench(t)
	const n = 70_000
	for _, key := range b.wideKeys(n) {
		t.Run(key, func(t *testing.T) {
			payload := b.payload(key)
			require.Equal(t, "+OK\r\n", b.run("RENAME", key, "{t}k"))
			require.Equal(t, ":0\r\n", b.run("EXISTS", key))
			require.Equal(t, payload, b.payload("{t}k"))
			require.Equal(t, ":1\r\n", b.run("COPY", "{t}k", key))
			require.Equal(t, payload, b.payload(key))
			require.Equal(t, "+OK\r\n", b.run("RESTORE", "{t}k", "0", payload, "REPLACE"))
			require.Equal(t, payload, b.payload("{t}k"))
		})
	}
	b.replies([2]string{`SORT {t}list ALPHA DESC STORE {t}k`, fmt.Sprintf(":%d\r\n", n)}, [2]string{`LINDEX {t}k -1`, "$14\r\nmember:0000000\r\n"})
}

// What one command cannot write is refused before anything is written.
func TestTooWideKeysAreNotCopied(t *testing.T) {
	racing.OneGoroutine(t)
	from := newBench(t)
	keys := from.wideKeys(50_000) // 1.2 MB and more each
	small, err := slotmesh.Start(t.Context(), slotmesh.Config{MaxValue: 16 << 10})
	require.NoError(t, err)
	t.Cleanup(func() { small.Close() })
	to := &bench{t: t, node: small, table: from.table, proto: 2}
	to.wideKeys(25_000)
	const room = 64<<10 + 1<<20 // of Config.MaxKey, and what a Tx may write at least
	refused := fmt.Sprintf("-ERR the value has more than %d bytes, too many to be written in one step\r\n", room)
	to.run("SET {t}k v")
	for _, key := range keys {
		t.Run(key, func(t *testing.T) {
			long := "{t}" + strings.Repeat("k", 100)
			to.run("SET", long, "v")
			require.Equal(t, refused, to.run("RENAME", key, long), "under a long name")
			require.Equal(t, refused, to.run("COPY", key, long, "REPLACE"))
			got := to.run("RESTORE", "{t}k", "0", from.payload(key), "REPLACE")
			if got != refused && !strings.HasPrefix(got, "-ERR Bad data format: key '{t}k': ") {
				t.Errorf("RESTORE of 50,000: %q", got)
			}
			to.replies([2]string{`GET {t}k`, "$1\r\nv\r\n"}, [2]string{`GET ` + long, "$1\r\nv\r\n"}, [2]string{`EXISTS ` + key, ":1\r\n"})
		})
	}
	to.replies([2]string{`SORT {t}list ALPHA STORE {t}sorted`, ":25000\r\n"})
	to.run("APPEND {t}k 2")
	to.fill([]string{"RPUSH", "{t}list"}, 25_000, func(i int) []string { return []string{fmt.Sprintf("%032d", i)} })
	to.replies([2]string{`SORT {t}list ALPHA STORE {t}k`, refused}, [2]string{`GET {t}k`, "$2\r\nv2\r\n"})
}

func TestExpiredKeysAreNotThere(t *testing.T) {
	b := newBench(t)
	b.run("SADD {t}s a b")
	b.run("PEXPIREAT {t}s 1")
	b.run("SET {t}k v PXAT 1")
	b.replies(
		[2]string{`EXISTS {t}k {t}s`, ":0\r\n"},
		[2]string{`DEL {t}k`, ":0\r\n"},
		[2]string{`RENAME {t}k {t}l`, "-ERR no such key\r\n"},
		[2]string{`TYPE {t}k`, "+none\r\n"},
		[2]string{`APPEND {t}k w`, ":1\r\n"},
		[2]string{`TTL {t}k`, ":-1\r\n"},
		[2]string{`SADD {t}s c`, ":1\r\n"},
		[2]string{`SCARD {t}s`, ":1\r\n"},
	)
}
