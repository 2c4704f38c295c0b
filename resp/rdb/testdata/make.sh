#!/bin/sh
# Writes the payloads of this folder, one NAME.hex per key NAME, as a real Redis
# 7.0 dumps them. What the keys hold stands in vectors_test.go a second time.
#
# usage: redis-server --port PORT --save '' --enable-debug-command yes
#        ./make.sh PORT
#
# It flushes the server. The order of large sets and hashes depends on a seed of
# the server's own, so that files made anew may differ.
set -eu
cd "$(dirname "$0")"
port=$1

r() { redis-cli -p "$port" "$@" >/dev/null; }
lua() { r EVAL "$1" 0; }
dump() {
	for key in "$@"; do
		redis-cli -p "$port" --raw DUMP "$key" | head -c -1 | od -An -v -tx1 -w32 | tr -d ' ' >"$key.hex"
	done
}

r FLUSHALL

# Strings: as they are, as integers of each width, in LZF; lengths of 6, 14 and
# 32 bits.
r SET string-empty ''
r SET string-plain hello
r SET string-int8 -5
r SET string-int16 -12345
r SET string-int32 123456789
r SET string-int64 12345678901
lua 'local b={} for i=0,255 do b[#b+1]=string.char(i) end redis.call("SET","string-14bit",table.concat(b))'
lua 'redis.call("SET","string-lzf",string.rep("ab",500))'
lua 'local b={} for i=1,200 do b[#b+1]="line "..i.." of a text that repeats itself\n" end redis.call("SET","string-lzf-text",table.concat(b))'
dump string-empty string-plain string-int8 string-int16 string-int32 string-int64 string-14bit string-lzf string-lzf-text
r CONFIG SET rdbcompression no
lua 'redis.call("SET","string-32bit",string.rep("0123456789abcdef",1025))'
dump string-32bit

# Every encoding of an entry of a listpack.
entries='0 127 128 -1 4095 -4096 4096 32767 -32768 32768 8388607 -8388608 8388608 2147483647 -2147483648 2147483648 9223372036854775807 -9223372036854775808 00 9223372036854775808'
r RPUSH list-listpack '' a $entries
lua 'for _,n in ipairs({63,64,4095,4096,16380,16381}) do redis.call("RPUSH","list-listpack-long",string.rep("x",n)) end'
r CONFIG SET list-max-listpack-size 5
lua 'for i=1,23 do redis.call("RPUSH","list-nodes","element "..i) end'
r CONFIG SET list-max-listpack-size -2
r DEBUG QUICKLIST-PACKED-THRESHOLD 100b
lua 'for i=1,3 do redis.call("RPUSH","list-plain-nodes","small "..i,string.rep(tostring(i),150)) end'
r DEBUG QUICKLIST-PACKED-THRESHOLD 0
dump list-listpack list-nodes list-plain-nodes
r CONFIG SET rdbcompression yes
dump list-listpack-long
r CONFIG SET list-max-listpack-size 20
lua 'for i=1,100 do redis.call("RPUSH","list-lzf-nodes","a value that compresses "..i) end'
r CONFIG SET list-max-listpack-size -2
dump list-lzf-nodes

r SADD set-intset16 5 -3 32767 -32768
r SADD set-intset32 5 -3 2147483647 -2147483648
r SADD set-intset64 5 -3 9223372036854775807 -9223372036854775808
r SADD set-strings '' a b 1 -1 100000
lua 'for i=1,300 do redis.call("SADD","set-large","member:"..i) end'
lua 'for i=1,600 do redis.call("SADD","set-large-ints",i*1000) end'
dump set-intset16 set-intset32 set-intset64 set-strings set-large set-large-ints

r HSET hash-listpack '' empty name '' age 42 big -9000000000 zero 0
lua 'for i=1,60 do redis.call("HSET","hash-listpack-lzf","field:"..i,"value:"..i) end'
lua 'for i=1,600 do redis.call("HSET","hash-large","field:"..i,i) end'
lua 'redis.call("HSET","hash-long-value","short",string.rep("long ",50),"1","2")'
dump hash-listpack hash-listpack-lzf hash-large hash-long-value

scores='1 one 1.5 half -2 minus 0 zero inf top -inf bottom 1e20 huge 5e-324 tiny 3.14159265358979312 pi 9007199254740993 odd'
r ZADD zset-listpack $scores
r CONFIG SET zset-max-listpack-entries 0
r ZADD zset-skiplist $scores
lua 'for i=1,200 do redis.call("ZADD","zset-large",i/8,"member:"..i) end'
r CONFIG SET zset-max-listpack-entries 128
dump zset-listpack zset-skiplist zset-large

# What is not supported.
r XADD stream 1-1 field value
dump stream
