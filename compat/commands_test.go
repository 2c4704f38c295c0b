package compat

// commandTable are rules of commands of one kind; weight is how often they are
// drawn.
type commandTable struct {
	name   string
	weight int
	rules  string
	exact  bool // never spoilt: what comes of that would wait, or change the cluster
}

// commandTables is the grammar of what is compared. What takes more than one
// command (random answers, whole scans, DUMP and RESTORE, waiting clients,
// scripts) is in steps_test.go.
func commandTables() []commandTable {
	return []commandTable{
		{"string", 16, `
			SET str value
			SET str value { [NX|XX] [GET] [EX ttl|PX pttl|EXAT at|PXAT pat|KEEPTTL] }
			SET str int
			SETNX str value
			SETEX str ttl value
			PSETEX str pttl value
			MSET (str value)+
			MSETNX (str value)+
			GET str
			MGET str+
			GETSET str value
			GETDEL str
			GETEX str [EX ttl|PX pttl|EXAT at|PXAT pat|PERSIST]
			APPEND str value
			STRLEN str
			INCR str
			DECR str
			INCRBY str int
			DECRBY str int
			INCRBYFLOAT str float
			SETRANGE str offset value
			GETRANGE str index index
			SUBSTR str index index
			LCS str str { [LEN] [IDX] [MINMATCHLEN anycount] [WITHMATCHLEN] }
		`, false},
		{"bitmap", 7, `
			SETBIT str offset bit
			GETBIT str offset
			BITCOUNT str
			BITCOUNT str index index [BYTE|BIT]
			BITPOS str bit
			BITPOS str bit index [index [BYTE|BIT]]
			BITOP (AND|OR|XOR) str str+
			BITOP NOT str str
			BITFIELD str (GET bits bitplace | SET bits bitplace int | INCRBY bits bitplace int | OVERFLOW (WRAP|SAT|FAIL))+
			BITFIELD_RO str (GET bits bitplace)+
		`, false},
		{"hash", 14, `
			HSET hash (field value)++
			HSET hash (field value)+
			HSET hash field int
			HMSET hash (field value)+
			HSETNX hash field value
			HGET hash field
			HMGET hash field+
			HGETALL hash
			HKEYS hash
			HVALS hash
			HLEN hash
			HSTRLEN hash field
			HEXISTS hash field
			HDEL hash field+
			HINCRBY hash field int
			HINCRBYFLOAT hash field float
		`, false},
		{"list", 18, `
			LPUSH list value+
			RPUSH list value++
			RPUSH list value+
			LPUSHX list value+
			RPUSHX list value+
			LPOP list [anycount]
			RPOP list [anycount]
			LLEN list
			LRANGE list index index
			LRANGE list 0 -1
			LINDEX list index
			LSET list index value
			LINSERT list (BEFORE|AFTER) value value
			LREM list index value
			LTRIM list index index
			LPOS list value { [RANK index] [COUNT count] [MAXLEN count] }
			LMOVE list list (LEFT|RIGHT) (LEFT|RIGHT)
			RPOPLPUSH list list
			LMPOP lists (LEFT|RIGHT) [COUNT count]
		`, false},
		{"set", 14, `
			SADD set member++
			SADD set member+
			SREM set member+
			SCARD set
			SISMEMBER set member
			SMISMEMBER set member+
			SMEMBERS set
			SMOVE set set member
			SINTER set+
			SUNION set+
			SDIFF set+
			SINTERSTORE set set+
			SUNIONSTORE set set+
			SDIFFSTORE set set+
			SINTERCARD sets [LIMIT anycount]
		`, false},
		{"sortedset", 24, `
			ZADD zset { [NX|XX] [GT|LT] [CH] } (float member)+
			ZADD zset { [NX|XX] [GT|LT] [CH] INCR } float member
			ZADD zset (float member)++
			ZADD zset (float member)+
			ZADD lex [NX|XX] (0 member)+
			ZADD lex (0 member)++
			ZREM lex member+
			ZINCRBY zset float member
			ZREM zset member+
			ZCARD zset
			ZCOUNT zset scorebound scorebound
			ZLEXCOUNT lex lexbound lexbound
			ZSCORE zset member
			ZMSCORE zset member+
			ZRANK zset member
			ZREVRANK zset member
			ZRANGE zset index index { [REV] [WITHSCORES] }
			ZRANGE zset scorebound scorebound { BYSCORE [REV] [LIMIT index index] [WITHSCORES] }
			ZRANGE lex lexbound lexbound { BYLEX [REV] [LIMIT index index] }
			ZRANGE zset 0 -1 WITHSCORES
			ZRANGESTORE zset zset index index [REV]
			ZRANGESTORE zset zset scorebound scorebound { BYSCORE [REV] [LIMIT index index] }
			ZRANGESTORE zset lex lexbound lexbound { BYLEX [REV] [LIMIT index index] }
			ZREVRANGE zset index index [WITHSCORES]
			ZRANGEBYSCORE zset scorebound scorebound { [WITHSCORES] [LIMIT index index] }
			ZREVRANGEBYSCORE zset scorebound scorebound { [WITHSCORES] [LIMIT index index] }
			ZRANGEBYLEX lex lexbound lexbound [LIMIT index index]
			ZREVRANGEBYLEX lex lexbound lexbound [LIMIT index index]
			ZREMRANGEBYRANK zset index index
			ZREMRANGEBYSCORE zset scorebound scorebound
			ZREMRANGEBYLEX lex lexbound lexbound
			ZPOPMIN zset [anycount]
			ZPOPMAX zset [anycount]
			ZMPOP zsets (MIN|MAX) [COUNT count]
			ZUNION zorsets { [WEIGHTS weights] [AGGREGATE (SUM|MIN|MAX)] [WITHSCORES] }
			ZINTER zorsets { [WEIGHTS weights] [AGGREGATE (SUM|MIN|MAX)] [WITHSCORES] }
			ZDIFF zorsets [WITHSCORES]
			ZUNIONSTORE zset zorsets { [WEIGHTS weights] [AGGREGATE (SUM|MIN|MAX)] }
			ZINTERSTORE zset zorsets { [WEIGHTS weights] [AGGREGATE (SUM|MIN|MAX)] }
			ZDIFFSTORE zset zorsets
			ZINTERCARD zorsets [LIMIT anycount]
		`, false},
		{"key", 18, `
			DEL any+
			DEL lex
			UNLINK any+
			EXISTS any+
			TOUCH any+
			TYPE any
			RENAME any any
			RENAMENX any any
			COPY any any { [DB 0] [REPLACE] }
			COPY any any DB index
			EXPIRE any ttl [NX|XX|GT|LT]
			PEXPIRE any pttl [NX|XX|GT|LT]
			EXPIREAT any at [NX|XX|GT|LT]
			PEXPIREAT any pat [NX|XX|GT|LT]
			EXPIRE any ttl (NX|XX|GT|LT) (NX|XX|GT|LT)
			TTL any
			PTTL any
			EXPIRETIME any
			PEXPIRETIME any
			PERSIST any
			KEYS pattern
			DBSIZE
			SORT list { [ALPHA] [ASC|DESC] [LIMIT index index] }
			SORT set { [ALPHA] [ASC|DESC] [LIMIT index index] }
			SORT (list|set|zset) { ALPHA [ASC|DESC] [LIMIT index index] STORE list }
			SORT zset { [ALPHA] [ASC|DESC] [LIMIT index index] [BY value] }
			SORT list { [ALPHA] [BY NOSORT] [GET pattern] [LIMIT index index] [STORE list] }
			SORT_RO any { [ALPHA] [ASC|DESC] [LIMIT index index] }
			MOVE any index
			SWAPDB index index
			OBJECT (ENCODING|REFCOUNT|IDLETIME|FREQ) any
			OBJECT value any
			SCAN cursor { [MATCH pattern] [COUNT anycount] [TYPE type] }
			HSCAN hash cursor { [MATCH pattern] [COUNT anycount] }
			SSCAN set cursor { [MATCH pattern] [COUNT anycount] }
			ZSCAN zset cursor { [MATCH pattern] [COUNT anycount] }
			RESTORE any pttl value [REPLACE|ABSTTL|IDLETIME count|FREQ count]
		`, false},
		{"flush", 1, `
			FLUSHDB [ASYNC|SYNC]
			FLUSHALL [ASYNC|SYNC]
			FLUSHALL (value|NOSUCH)
		`, true},
		{"connection", 5, `
			PING
			PING value
			PING value value
			ECHO value
			SELECT index
			HELLO
			HELLO count
			HELLO 3 AUTH value value
			HELLO 2 SETNAME value
			CLIENT SETNAME (value|field)
			CLIENT GETNAME
			CLIENT NO-EVICT (ON|OFF|value)
			CLIENT UNBLOCK int [TIMEOUT|ERROR|value]
			CLIENT KILL (ID (0|-1|X|999999999)|value|ADDR value|LADDR value|TYPE value|USER value|NOSUCH value|SKIPME value)
			CLIENT LIST (TYPE value|ID value|value value)
			CLIENT REPLY value
			CLIENT CACHING (YES|NO|value)
			CLIENT GETREDIR
			CLIENT TRACKING (OFF|value)
			CLIENT TRACKINGINFO
			CLIENT UNPAUSE
			CLIENT value*
			AUTH value [value]
			READONLY
			READWRITE
			ASKING
			RESET
			TIME
			NOSUCH value*
			value value*
			LASTSAVE
		`, false},
		{"cluster", 2, `
			CLUSTER KEYSLOT value
			CLUSTER KEYSLOT any
			CLUSTER COUNTKEYSINSLOT slot
			CLUSTER GETKEYSINSLOT slot anycount
			CLUSTER value*
			CLUSTER (ADDSLOTS|DELSLOTS) (16384|-1|X|1X)
			CLUSTER (ADDSLOTSRANGE|DELSLOTSRANGE) (5 4|0 16384|-1 4|X 3|3 X|1 2 3)
			CLUSTER ADDSLOTS (3|3 3|0 1 2)
			CLUSTER ADDSLOTSRANGE (3 5|0 16383|3 5 4 6)
			CLUSTER SETSLOT slot (MIGRATING|IMPORTING|NODE|value) value
			CLUSTER SETSLOT slot STABLE
			CLUSTER SETSLOT slot (MIGRATING|IMPORTING|NODE|STABLE|value)
			CLUSTER (REPLICATE|FORGET|REPLICAS|SLAVES|COUNT-FAILURE-REPORTS) value
			CLUSTER SET-CONFIG-EPOCH (-1|X)
			CLUSTER MEET (NOWHERE|-1|256.0.0.1) value
			CLUSTER MEET 127.0.0.1 (0|65536|X|-1) [X]
			CLUSTER FAILOVER [value|FORCE|TAKEOVER]
			CLUSTER RESET value value
			CLUSTER RESET NOSUCH
			MIGRATE 127.0.0.1 1 any (0|X|1) (100|X) { [COPY] [REPLACE] [AUTH value] [AUTH2 value value] [value] }
			MIGRATE 127.0.0.1 1
		`, true},
		{"server", 2, `
			PUBLISH channel value
			SPUBLISH channel value
			PUBSUB (CHANNELS [pattern] | NUMPAT | NUMSUB channel* | SHARDCHANNELS | SHARDNUMSUB channel*)
			PUBSUB value*
			COMMAND (COUNT|LIST|INFO|DOCS) value
			COMMAND GETKEYS value*
			COMMAND GETKEYS (GET str | MSET (str value)+ | ZUNION zorsets | SET str value | EVAL value sets | LMPOP lists LEFT | SORT list STORE list | MIGRATE value count any 0 1 | BITOP AND str str | OBJECT ENCODING any | MEMORY USAGE any)
			COMMAND GETKEYSANDFLAGS (GET str | MSET (str value)+ | ZUNIONSTORE zset 1 zset | SET str value GET | LMPOP 2 list list LEFT | SMOVE set set member | BITFIELD str GET bits 0)
			CONFIG (GET|SET|REWRITE|RESETSTAT) value value value
			CONFIG value*
			SLOWLOG (RESET|LEN|value*)
			LATENCY (LATEST|RESET|value*)
			MEMORY (PURGE|value*)
			DEBUG value*
			OBJECT value*
			ACL (WHOAMI|CAT value|value)
		`, false},
		{"script", 3, `
			SCRIPT EXISTS value+
			SCRIPT EXISTS 4CA238F611C9D0AE4E9A75A5DBAC22AEDC1E0C71 1B936E3FE509BCBC9CD0664897BBE8FD0CAC101B
			SCRIPT LOAD (RETURN|1|value)
			SCRIPT FLUSH (ASYNC|SYNC|value)
			SCRIPT KILL
			SCRIPT value*
			EVALSHA value count any
			EVALSHA 1B936E3FE509BCBC9CD0664897BBE8FD0CAC101B 0
			EVAL value anycount any*
		`, false},
		{"waiting", 4, `
			BLPOP list+ 0.001
			BRPOP list+ 0.001
			BLMOVE list list (LEFT|RIGHT) (LEFT|RIGHT) 0.001
			BRPOPLPUSH list list 0.001
			BLMPOP 0.001 lists (LEFT|RIGHT) [COUNT count]
			BZPOPMIN zset+ 0.001
			BZPOPMAX zset+ 0.001
			BZMPOP 0.001 zsets (MIN|MAX) [COUNT count]
			(BLPOP|BRPOP|BZPOPMIN|BZPOPMAX) any+ (-1|X|1E400|NAN|1E19|-0.5)
			(BLMPOP|BZMPOP) (-1|X|1E400) 1 any LEFT
			BLMPOP 0.001 (0|-1|X|9) list LEFT
			BZMPOP 0.001 1 zset (LEFT|MIN COUNT|MIN COUNT 0|MIN COUNT X|MIN COUNT 1 COUNT 1)
			BLMPOP 0.001 1 list (MIN|LEFT COUNT|LEFT COUNT 0|LEFT COUNT X|LEFT COUNT 1 COUNT 1)
			(BLMOVE list list LEFT (UP|value) 0.001|BLMOVE list list LEFT RIGHT (X|-1)|BRPOPLPUSH list list (X|-1))
			(BLPOP|BLMOVE|BLMPOP|BZMPOP|BZPOPMIN|BRPOPLPUSH) any
			WAIT 0 (0|1|-1|X)
			WAIT (1|X|-1) (1|-1|X)
		`, true},
	}
}
