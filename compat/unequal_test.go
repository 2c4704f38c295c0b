package compat

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// unequal is what may differ between redis-server and slotmesh, and why.
type unequal struct {
	commands string // names of commands, as "get" or "config|get"
	reason   string
	equal    func(args []string, redis, ours reply) bool // is what has to be the same the same?
}

// countsExpired reports whether a reply counts keys whose time is over until the
// server gets to them: it is asked for until it is the same.
func countsExpired(args []string) bool {
	switch len(args) {
	case 1:
		return strings.EqualFold(args[0], "dbsize")
	case 3:
		return strings.EqualFold(args[0], "cluster") && strings.EqualFold(args[1], "countkeysinslot")
	}
	return false
}

// unequals is the whole list. What a command answers that is not here, errors
// included, is equal byte for byte. Random answers (SPOP, SRANDMEMBER, HRANDFIELD,
// ZRANDMEMBER, RANDOMKEY), whole scans, and DUMP with RESTORE have steps of their
// own, see steps_test.go: there what was drawn must be among what is there, all
// pages of a scan together must be the same, and a payload must be restored to
// the same value by the other side.
func unequals() []unequal {
	return []unequal{
		{"smembers sinter sunion sdiff", "Redis keeps a set in the order of a hash table, slotmesh in that of the members", sameSorted(1)},
		{"hkeys hvals", "Redis keeps a hash in the order of a hash table or of insertion, slotmesh in that of the fields", sameSorted(1)},
		{"hgetall", "see HKEYS", sameSorted(2)},
		{"keys", "Redis answers in the order of a hash table", sameSorted(1)},
		{"cluster|getkeysinslot", "which keys come first follows from the order of a hash table", sameShape},
		{"zrange zrevrange zrangebyscore zrevrangebyscore zscore zmscore zincrby zadd zpopmin zpopmax zmpop bzpopmin bzpopmax bzmpop zunion zinter zdiff eval eval_ro evalsha evalsha_ro",
			"a score of -0 is 0; Redis keeps its sign in one of its encodings", sameButZeroSign},
		{"scan hscan sscan zscan", "a cursor is a place in a hash table; whole scans are compared elsewhere", sameShape},
		{"sort sort_ro", "where BY names no pattern, a set is sorted in the order of its hash table; for ALPHA, strings end at a zero byte, and those that are then equal have no order", sameWithoutOrder},
		{"slowlog|get slowlog|len", "what takes long is chance", sameKind},
		{"ttl expiretime", "the servers read the clock one after the other", within(2)},
		{"pttl pexpiretime", "the servers read the clock one after the other", within(3000)},
		{"time lastsave", "the clock", sameShape},
		{"hello", "names the id of the connection", sameBut("id")},
		{"client|id client|list client|info", "names the connection", sameShape},
		{"command command|count command|list command|docs", "slotmesh has fewer commands and its own words; those it has are compared elsewhere", sameKind},
		{"object|encoding object|freq object|idletime object|refcount", "names internals of Redis", sameShape},
	}
}

// notSent is what the generator leaves out, and why.
func notSent() []unequal {
	return []unequal{
		{commands: "fcall function pfadd geoadd xadd monitor psync", reason: "slotmesh has no functions, HyperLogLogs, places, streams, and no such replicas: it does not know the commands"},
		{commands: "script with cmsgpack", reason: "slotmesh has no such library"},
		{commands: "script with math.random and no seed", reason: "goes on from where other scripts have left it"},
		{commands: "script with error({})", reason: "ends redis-server 7.0.15"},
		{commands: "script with numbers from 1e15 on joined to strings by ..", reason: "the interpreter writes all digits of whole numbers where Lua writes 14; tostring and string.format are as in Lua"},
		{commands: "sort with GET #", reason: "Redis 7.0 refuses it in a cluster, later ones and slotmesh do not"},
		{commands: "acl|getuser and others of ACL that change users", reason: "slotmesh has one user"},
		{commands: "hello in a transaction", reason: "commands without keys run behind those with keys, which are one step under the lock of their slot"},
		{commands: "script that touches keys of a second slot, its own or that of the transaction that it is in", reason: "a script and a transaction are one step under the lock of one slot: the call fails, and says so. Redis lets a script without #!lua go on where it serves both slots, see TestScriptsOfTwoSlots"},
		{commands: "*bylex of members with different scores", reason: "is not defined: in Redis it follows from levels drawn by chance"},
		{commands: "keys of more than 64 KiB", reason: "slotmesh's default bound is lower"},
		{commands: "cluster|meet with a name", reason: "slotmesh takes names of hosts, Redis only addresses"},
		{commands: "set of more than 64 MiB", reason: "slotmesh's default bound is lower; redis-server is started with the same"},
		{commands: "what follows a push at once while others wait for the key", reason: "Redis serves who waits before it reads the next command; slotmesh wakes them, and the next command may be faster. What both see in the end is the same"},
		{commands: "client|pause client|kill shutdown debug|sleep cluster|reset", reason: "act on the connections of the test itself: tested elsewhere"},
	}
}

// behindKeys are commands that answer something else in a transaction, where they
// run behind all that name keys: those are one step under the lock of their slot.
func behindKeys() []string {
	return []string{"dbsize", "keys", "cluster"}
}

// unequalErrors are errors in other words, on either side or of slotmesh alone.
func unequalErrors() []unequalError {
	const evals = "eval eval_ro evalsha evalsha_ro"
	stores := func(args []string) bool {
		return slices.ContainsFunc(args, func(a string) bool { return strings.EqualFold(a, "store") })
	}
	anything := func([]string) bool { return true }
	return []unequalError{
		{evals + " script", both(`-ERR Error compiling script \(new function\): `), nil, "Lua's compiler is another one and has its own words"},
		{evals + " script", func(_ []string, redis, _ string) bool {
			return strings.HasPrefix(redis, "-ERR Error compiling script ") && strings.Contains(redis, "unexpected symbol near ';'")
		}, anything, "the interpreter takes an empty statement, as Lua does from 5.2 on"},
		{evals, both(`-ERR user_script:\d+: (attempt to|bad argument|cannot perform|__\w+ undefined|\w+ expected|invalid format|unfinished string|data string).*( script: \w+, on @user_script:\d+\.\r\n)`), nil, "so are Lua's errors at run time; script and line are the same"},
		{evals, func(args []string, _, ours string) bool {
			return strings.HasPrefix(ours, "-ERR This Redis command is not allowed from script") && notFromScript.MatchString(sourceOf(args))
		}, nil, "a script holds the lock of one slot: commands that look at others are refused in it"},
		{"sort sort_ro", func(_ []string, redis, _ string) bool {
			return strings.HasPrefix(redis, "-ERR One or more scores can't be converted into double")
		}, stores, "SORT of Redis 7.0 takes an error for its own that another command has left in errno"},
		{"config", func(args []string, redis, _ string) bool {
			return strings.HasPrefix(redis, "-ERR The server is running without a config file") && len(args) == 2 && strings.EqualFold(args[1], "rewrite")
		}, nil, "slotmesh leaves CONFIG REWRITE to whoever has started it"},
		{evals, func(args []string, _, ours string) bool {
			return strings.HasPrefix(ours, "-ERR Script attempted to access keys that do not hash to the same slot: it is one step under the lock of slot ") && strings.Contains(sourceOf(args), "'{t}none'")
		}, nil, "a script holds the lock of one slot: keys of others are refused in it"},
		{evals, func(_ []string, _, ours string) bool {
			return strings.HasPrefix(ours, "-ERR Script attempted to access keys that do not hash to the same slot: it is one step under the lock of slot ") && strings.Contains(ours, ", with the transaction that it is in, and the key is in slot ")
		}, anything, "a transaction holds the lock of one slot: scripts that it runs, and that name no keys, are refused those of others"},
	}
}

// notFromScript are calls, in scripts of the generator, of what looks at all slots.
var notFromScript = regexp.MustCompile(`redis\.call\('(dbsize|command|config|cluster)'`)

// unequalFragments are bytes that are no command, or a part of one, and that are
// answered otherwise.
func unequalFragments() []unequalFragment {
	count := regexp.MustCompile(`\*(\d{7,10})\r`)
	http := regexp.MustCompile(`(?i)post|host:`)
	request := regexp.MustCompile(`(?i)(^|[\r\n])[\t\v\f\r ]*[^\s*]\S*[\t\v\f\r ]+\S+[\t\v\f\r ]+["']?HTTP/`)
	// What slotmesh has answered before it ends a connection is what Redis has.
	refused := func(f *fragmentAnswers, texts ...string) bool {
		return slices.ContainsFunc(texts, func(text string) bool {
			before, found := strings.CutSuffix(f.ours, "-ERR Protocol error: "+text+"\r\n")
			return found && strings.HasPrefix(f.redis, before)
		})
	}
	long := func(f *fragmentAnswers) bool {
		return slices.ContainsFunc(strings.SplitAfter(f.sent, "\n"), func(line string) bool { return len(line) > 16<<10 || len(strings.Fields(line)) > 10 })
	}
	onlyErrors := regexp.MustCompile(`^(?:-[^\r\n]*\r\n)+$`) // nobody is told more who has not authenticated
	tooBig := []string{"too big inline request", "too big mbulk count string", "too big bulk count string"}
	return []unequalFragment{
		{func(f *fragmentAnswers) bool {
			return count.MatchString(f.sent) && refused(f, "invalid multibulk length")
		}, "slotmesh's default bound of arguments is lower: Redis 7.0 waits for up to 2^31-1 of them"},
		{func(f *fragmentAnswers) bool {
			return strings.Contains(f.sent, "\x00") && refused(f, tooBig...)
		}, "Redis sees nothing behind a zero byte in a line, and says that the line is too big once 64 KiB have come; slotmesh says so at once"},
		{func(f *fragmentAnswers) bool {
			return len(f.sent) > 64<<10 && strings.Contains(f.sent, "\n") && refused(f, tooBig...)
		}, "whether Redis takes a line of more than 64 KiB depends on how its bytes come in; slotmesh takes none"},
		{func(f *fragmentAnswers) bool {
			return http.MatchString(f.sent) && f.ends && f.ended && strings.HasPrefix(f.ours, f.redis)
		}, "a line of an HTTP request ends the connection, and replies that were not written yet with it: which those are depends on how the bytes come in"},
		{func(f *fragmentAnswers) bool {
			return request.MatchString(f.sent) && strings.HasPrefix(f.redis, f.ours)
		}, "slotmesh ends a connection at the first line of an HTTP request, whatever the verb; Redis at POST alone, or at Host:, and runs what a request without either brings"},
		{func(f *fragmentAnswers) bool {
			return f.password && f.ends && f.redis == "" && len(f.ours) > 1<<10 && onlyErrors.MatchString(f.ours)
		}, "Redis ends a client that has not authenticated and is to be told more than its reply buffer takes at once, which depends on how its bytes come in; slotmesh has 64 KiB for it, and bounds how long it may take"},
		{func(f *fragmentAnswers) bool {
			return f.password && long(f) && (refused(f, tooBig[0], "unauthenticated multibulk length") || f.ended && f.ours == "")
		}, "until a client has authenticated slotmesh bounds a line as Redis bounds an array: 10 arguments of 16 KiB; what it has not read then resets the connection, and the reply may go with it"},
	}
}

// unequalFragment is a kind of fragments and of what both sides answer.
type unequalFragment struct {
	fits   func(*fragmentAnswers) bool
	reason string
}

// fragmentAnswers are bytes that were sent, and what came back.
type fragmentAnswers struct {
	sent, redis, ours string
	ends, ended       bool // redis-server, slotmesh ended the connection
	password          bool // is wanted, and was not given
}

// unequalError is a form of errors of some commands, be they called by a script that
// only hands them on.
type unequalError struct {
	commands string
	fits     func(args []string, redis, ours string) bool
	parts    func(args []string) bool // the one side may have done what the other has not; nil: never
	reason   string
}

func (e *unequalError) covers(args []string, redis, ours string) bool {
	named := strings.Fields(e.commands)
	if inner := scripted(args); inner != nil && slices.Contains(named, strings.ToLower(inner[0])) {
		return e.fits(inner, redis, ours)
	}
	return slices.Contains(named, strings.ToLower(args[0])) && e.fits(args, redis, ours)
}

// both have a form; what is in its last group, where it has more than one, is equal.
func both(form string) func(args []string, redis, ours string) bool {
	re := regexp.MustCompile("^" + form)
	return func(_ []string, redis, ours string) bool {
		a, b := re.FindStringSubmatch(redis), re.FindStringSubmatch(ours)
		return a != nil && b != nil && (len(a) < 2 || a[len(a)-1] == b[len(b)-1])
	}
}

// comparison is the list, by command.
type comparison struct {
	byCommand map[string]unequal
	errors    []unequalError
	apart     bool // what may differ has left other data: nothing that follows is compared
}

func newComparison() *comparison {
	c := &comparison{byCommand: map[string]unequal{}, errors: unequalErrors()}
	for _, u := range unequals() {
		for name := range strings.FieldsSeq(u.commands) {
			c.byCommand[name] = u
		}
	}
	return c
}

func (c *comparison) equal(args []string, redis, ours reply) bool {
	if redis.equal(ours) {
		return true
	}
	if redis.isError() || ours.isError() {
		return slices.ContainsFunc(c.errors, func(e unequalError) bool {
			covers := e.covers(args, redis.wire(), ours.wire())
			c.apart = c.apart || covers && e.parts != nil && e.parts(args)
			return covers
		})
	}
	if wrapped := scripted(args); wrapped != nil {
		return c.equal(wrapped, redis, ours)
	}
	name := strings.ToLower(args[0])
	u, listed := c.byCommand[name]
	if !listed && len(args) > 1 {
		u, listed = c.byCommand[name+"|"+strings.ToLower(args[1])]
	}
	return listed && u.equal(args, redis, ours)
}

// equalTransaction compares the replies of EXEC, each as that of its command.
func (c *comparison) equalTransaction(queue [][]string, redis, ours reply) bool {
	if redis.equal(ours) {
		return true
	}
	if redis.null || ours.null || redis.kind != ours.kind || len(redis.items) != len(queue) || len(ours.items) != len(queue) {
		return false
	}
	for i, args := range queue {
		if !c.equal(args, redis.items[i], ours.items[i]) && !c.lateInTransaction(args, redis.items[i], ours.items[i]) {
			return false
		}
	}
	return true
}

// lateInTransaction reports whether a reply may differ for its command ran behind
// those that name keys.
func (c *comparison) lateInTransaction(args []string, redis, ours reply) bool {
	return slices.Contains(behindKeys(), strings.ToLower(args[0])) && sameKind(args, redis, ours)
}

func sameSorted(width int) func([]string, reply, reply) bool {
	return func(_ []string, redis, ours reply) bool { return redis.sorted(width).equal(ours.sorted(width)) }
}

// sameShape compares kinds, and lengths where the items are of a fixed number.
func sameShape(args []string, redis, ours reply) bool {
	return redis.kind == ours.kind && redis.null == ours.null && len(redis.items) == len(ours.items)
}

func sameKind(args []string, redis, ours reply) bool {
	return redis.kind == ours.kind && redis.null == ours.null
}

func sameWithoutOrder(args []string, redis, ours reply) bool {
	says := func(word string) bool {
		return slices.ContainsFunc(args, func(a string) bool { return strings.EqualFold(a, word) })
	}
	if !says("by") && !(says("alpha") && strings.Contains(redis.wire(), "\x00")) {
		return false
	}
	if says("limit") {
		return sameShape(args, redis, ours)
	}
	return redis.sorted(1).equal(ours.sorted(1))
}

func sameButZeroSign(_ []string, redis, ours reply) bool {
	return redis.withoutZeroSign().equal(ours.withoutZeroSign())
}

// withoutZeroSign has 0 for -0.
func (r reply) withoutZeroSign() reply {
	if r.text == "-0" {
		r.text = "0"
	}
	if r.aggregate() {
		r.items = slices.Clone(r.items)
		for i := range r.items {
			r.items[i] = r.items[i].withoutZeroSign()
		}
	}
	return r
}

func within(tolerance int64) func([]string, reply, reply) bool {
	return func(_ []string, redis, ours reply) bool {
		a, errA := strconv.ParseInt(redis.text, 10, 64)
		b, errB := strconv.ParseInt(ours.text, 10, 64)
		return redis.kind == ':' && ours.kind == ':' && errA == nil && errB == nil && a > 0 && b > 0 && max(a-b, b-a) <= tolerance
	}
}

// sameBut compares maps of names and values but for some values.
func sameBut(names ...string) func([]string, reply, reply) bool {
	return func(_ []string, redis, ours reply) bool {
		if !sameShape(nil, redis, ours) || !redis.aggregate() {
			return false
		}
		for i := range redis.items {
			if !redis.items[i].equal(ours.items[i]) && (i == 0 || !slices.Contains(names, redis.items[i-1].text)) {
				return false
			}
		}
		return true
	}
}
