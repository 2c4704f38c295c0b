package compat

import (
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
		{"scan hscan sscan zscan", "a cursor is a place in a hash table; whole scans are compared elsewhere", sameShape},
		{"sort sort_ro", "where BY names no pattern, a set is sorted in the order of its hash table", sameWithoutOrder},
		{"ttl expiretime", "the servers read the clock one after the other", within(2)},
		{"pttl pexpiretime", "the servers read the clock one after the other", within(3000)},
		{"time lastsave", "the clock", sameShape},
		{"hello", "names the id of the connection", sameBut("id")},
		{"client|id client|list client|info", "names the connection", sameShape},
		{"command command|count command|list command|docs", "slotmesh has fewer commands and its own words; those it has are compared elsewhere", sameKind},
		{"object|encoding object|freq object|idletime object|refcount", "names internals of Redis", sameShape},
	}
}

// unequalErrors are error replies that begin alike and go on in other words.
func unequalErrors() []unequalError {
	return []unequalError{
		{"-ERR Error compiling script (new function): ", "Lua's compiler is another one and has its own words"},
	}
}

type unequalError struct{ start, reason string }

// comparison is the list, by command.
type comparison struct {
	byCommand map[string]unequal
	errors    []unequalError
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
			return strings.HasPrefix(redis.wire(), e.start) && strings.HasPrefix(ours.wire(), e.start)
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
		if !c.equal(args, redis.items[i], ours.items[i]) {
			return false
		}
	}
	return true
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
	if !slices.ContainsFunc(args, func(a string) bool { return strings.EqualFold(a, "by") }) {
		return false
	}
	if slices.ContainsFunc(args, func(a string) bool { return strings.EqualFold(a, "limit") }) {
		return sameShape(args, redis, ours)
	}
	return redis.sorted(1).equal(ours.sorted(1))
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
