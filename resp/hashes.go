package resp

import (
	"bytes"
	"math"
	"strconv"

	"github.com/slotmesh/slotmesh/store"
)

// A hash is a collection whose members are the names of its fields.

func hashCommands() []Command {
	return []Command{
		{
			Name: "hset", Arity: -4, Flags: Write | DenyOOM | Fast, First: 1, Last: 1, Step: 1,
			Run: runHSet, Group: "hash", Since: "2.0.0",
			Summary:    "Set the string value of a hash field",
			Complexity: "O(1) for each field/value pair added, so O(N) to add N field/value pairs when the command is called with multiple field/value pairs.",
		},
		{
			Name: "hsetnx", Arity: 4, Flags: Write | DenyOOM | Fast, First: 1, Last: 1, Step: 1,
			Run: runHSetNX, Group: "hash", Since: "2.0.0",
			Summary:    "Set the value of a hash field, only if the field does not exist",
			Complexity: "O(1)",
		},
		{
			Name: "hmset", Arity: -4, Flags: Write | DenyOOM | Fast, First: 1, Last: 1, Step: 1,
			Run: runHSet, Group: "hash", Since: "2.0.0",
			Summary:    "Set multiple hash fields to multiple values",
			Complexity: "O(N) where N is the number of fields being set.",
		},
		{
			Name: "hget", Arity: 3, Flags: ReadOnly | Fast, First: 1, Last: 1, Step: 1,
			Run: runHGet, Group: "hash", Since: "2.0.0",
			Summary:    "Get the value of a hash field",
			Complexity: "O(1)",
		},
		{
			Name: "hmget", Arity: -3, Flags: ReadOnly | Fast, First: 1, Last: 1, Step: 1,
			Run: runHMGet, Group: "hash", Since: "2.0.0",
			Summary:    "Get the values of all the given hash fields",
			Complexity: "O(N) where N is the number of fields being requested.",
		},
		{
			Name: "hgetall", Arity: 2, Flags: ReadOnly, First: 1, Last: 1, Step: 1,
			Run: runHGetAll, Group: "hash", Since: "2.0.0",
			Summary:    "Get all the fields and values in a hash",
			Complexity: "O(N) where N is the size of the hash.",
		},
		{
			Name: "hkeys", Arity: 2, Flags: ReadOnly, First: 1, Last: 1, Step: 1,
			Run: runHKeys, Group: "hash", Since: "2.0.0",
			Summary:    "Get all the fields in a hash",
			Complexity: "O(N) where N is the size of the hash.",
		},
		{
			Name: "hvals", Arity: 2, Flags: ReadOnly, First: 1, Last: 1, Step: 1,
			Run: runHVals, Group: "hash", Since: "2.0.0",
			Summary:    "Get all the values in a hash",
			Complexity: "O(N) where N is the size of the hash.",
		},
		{
			Name: "hlen", Arity: 2, Flags: ReadOnly | Fast, First: 1, Last: 1, Step: 1,
			Run: runHLen, Group: "hash", Since: "2.0.0",
			Summary:    "Get the number of fields in a hash",
			Complexity: "O(1)",
		},
		{
			Name: "hstrlen", Arity: 3, Flags: ReadOnly | Fast, First: 1, Last: 1, Step: 1,
			Run: runHStrLen, Group: "hash", Since: "3.2.0",
			Summary:    "Get the length of the value of a hash field",
			Complexity: "O(1)",
		},
		{
			Name: "hexists", Arity: 3, Flags: ReadOnly | Fast, First: 1, Last: 1, Step: 1,
			Run: runHExists, Group: "hash", Since: "2.0.0",
			Summary:    "Determine if a hash field exists",
			Complexity: "O(1)",
		},
		{
			Name: "hdel", Arity: -3, Flags: Write | Fast, First: 1, Last: 1, Step: 1,
			Run: runHDel, Group: "hash", Since: "2.0.0",
			Summary:    "Delete one or more hash fields",
			Complexity: "O(N) where N is the number of fields to be removed.",
		},
		{
			Name: "hincrby", Arity: 4, Flags: Write | DenyOOM | Fast, First: 1, Last: 1, Step: 1,
			Run: runHIncrBy, Group: "hash", Since: "2.0.0",
			Summary:    "Increment the integer value of a hash field by the given number",
			Complexity: "O(1)",
		},
		{
			Name: "hincrbyfloat", Arity: 4, Flags: Write | DenyOOM | Fast, First: 1, Last: 1, Step: 1,
			Run: runHIncrByFloat, Group: "hash", Since: "2.6.0",
			Summary:    "Increment the float value of a hash field by the given amount",
			Complexity: "O(1)",
		},
		{
			Name: "hrandfield", Arity: -2, Flags: ReadOnly, First: 1, Last: 1, Step: 1,
			Run: runHRandField, Group: "hash", Since: "6.2.0",
			Summary:    "Get one or multiple random fields from a hash",
			Complexity: "O(N) where N is the number of fields returned",
		},
		{
			Name: "hscan", Arity: -3, Flags: ReadOnly, First: 1, Last: 1, Step: 1,
			Run: runHScan, Group: "hash", Since: "2.8.0",
			Summary:    "Incrementally iterate hash fields and associated values",
			Complexity: "O(1) for every call. O(N) for a complete iteration, including enough command calls for the cursor to return back to 0. N is the number of elements inside the collection..",
		},
	}
}

const (
	errHashInteger Error = "ERR hash value is not an integer"
	errHashFloat   Error = "ERR hash value is not a float"
	errOverflow    Error = "ERR increment or decrement would overflow"
	errNaN         Error = "ERR value is NaN or Infinity"
	errBecomesNaN  Error = "ERR increment would produce NaN or Infinity"
	errRange       Error = "ERR value is out of range"
)

// runHSet is HSET, which tells how many fields are new, and HMSET.
func runHSet(c *Call) error {
	if len(c.Args)%2 != 0 {
		return wrongArity(c.command)
	}
	h, err := c.collection(c.Own(1), kindHash)
	if err != nil {
		return err
	}
	had := h.count
	for i := 2; i < len(c.Args); i += 2 {
		if err := h.set(c.Args[i], bytes.Clone(c.Args[i+1])); err != nil {
			return err
		}
	}
	if err := h.save(); err != nil {
		return err
	}
	if c.command.Name == "hmset" {
		c.Reply.Simple("OK")
	} else {
		c.Reply.Int(int64(h.count - had))
	}
	return nil
}

// set stores a field, whether it was there or not.
func (k *collection) set(name, value []byte) error {
	field := k.field(name)
	_, found, err := k.get(field)
	if err != nil {
		return err
	}
	return k.put(field, value, !found)
}

func runHSetNX(c *Call) error {
	h, err := c.collection(c.Own(1), kindHash)
	if err != nil {
		return err
	}
	field := h.field(c.Args[2])
	_, found, err := h.get(field)
	if err != nil {
		return err
	}
	if found {
		c.Reply.Int(0)
		return nil
	}
	if err := h.put(field, bytes.Clone(c.Args[3]), true); err != nil {
		return err
	}
	if err := h.save(); err != nil {
		return err
	}
	c.Reply.Int(1)
	return nil
}

// hashValue is a field of a hash for commands that look at one.
func hashValue(c *Call) ([]byte, bool, error) {
	h, err := c.collection(c.Key(1), kindHash)
	if err != nil {
		return nil, false, err
	}
	return h.get(h.field(c.Args[2]))
}

func runHGet(c *Call) error {
	value, found, err := hashValue(c)
	if err != nil {
		return err
	}
	c.bulkOrNull(value, found)
	return nil
}

func (c *Call) bulkOrNull(value []byte, found bool) {
	if found {
		c.Reply.Bulk(value)
	} else {
		c.Reply.Null()
	}
}

func runHMGet(c *Call) error {
	h, err := c.collection(c.Key(1), kindHash)
	if err != nil {
		return err
	}
	c.Reply.Array(len(c.Args) - 2)
	for _, name := range c.Args[2:] {
		value, found, err := h.get(h.field(name))
		if err != nil {
			return err
		}
		c.bulkOrNull(value, found)
	}
	return nil
}

func runHGetAll(c *Call) error {
	h, err := c.collection(c.Key(1), kindHash)
	if err != nil {
		return err
	}
	c.Reply.Map(h.count)
	return h.reply(func(it *store.Item) {
		c.Reply.BulkString(memberOf(it.Field))
		c.Reply.Bulk(it.Value)
	})
}

func runHKeys(c *Call) error {
	h, err := c.collection(c.Key(1), kindHash)
	if err != nil {
		return err
	}
	c.Reply.Array(h.count)
	return h.reply(func(it *store.Item) { c.Reply.BulkString(memberOf(it.Field)) })
}

func runHVals(c *Call) error {
	h, err := c.collection(c.Key(1), kindHash)
	if err != nil {
		return err
	}
	c.Reply.Array(h.count)
	return h.reply(func(it *store.Item) { c.Reply.Bulk(it.Value) })
}

func runHLen(c *Call) error { return replyCount(c, kindHash) }

// replyCount answers with the number of members.
func replyCount(c *Call, kind byte) error {
	k, err := c.collection(c.Key(1), kind)
	if err != nil {
		return err
	}
	c.Reply.Int(int64(k.count))
	return nil
}

func runHStrLen(c *Call) error {
	value, _, err := hashValue(c)
	if err != nil {
		return err
	}
	c.Reply.Int(int64(len(value)))
	return nil
}

func runHExists(c *Call) error {
	_, found, err := hashValue(c)
	if err != nil {
		return err
	}
	c.replyBool(found)
	return nil
}

// replyBool is 1 or 0, in both protocols.
func (c *Call) replyBool(yes bool) {
	if yes {
		c.Reply.Int(1)
	} else {
		c.Reply.Int(0)
	}
}

func runHDel(c *Call) error { return removeMembers(c, kindHash) }

// removeMembers is HDEL or SREM.
func removeMembers(c *Call, kind byte) error {
	k, err := c.collection(c.Own(1), kind)
	if err != nil {
		return err
	}
	had := k.count
	for _, name := range c.Args[2:] {
		if err := k.removeIfThere(k.field(name)); err != nil {
			return err
		}
	}
	if err := k.save(); err != nil {
		return err
	}
	c.Reply.Int(int64(had - k.count))
	return nil
}

func (k *collection) removeIfThere(field string) error {
	_, found, err := k.get(field)
	if err != nil || !found {
		return err
	}
	return k.remove(field)
}

func runHIncrBy(c *Call) error {
	by, err := c.Int(3)
	if err != nil {
		return err
	}
	h, err := c.collection(c.Own(1), kindHash)
	if err != nil {
		return err
	}
	field := h.field(c.Args[2])
	old, found, err := h.get(field)
	if err != nil {
		return err
	}
	n := int64(0)
	if found {
		var ok bool
		if n, ok = parseInt(old); !ok {
			return errHashInteger
		}
	}
	if by > 0 && n > math.MaxInt64-by || by < 0 && n < math.MinInt64-by {
		return errOverflow
	}
	n += by
	if err := h.put(field, strconv.AppendInt(nil, n, 10), !found); err != nil {
		return err
	}
	if err := h.save(); err != nil {
		return err
	}
	c.Reply.Int(n)
	return nil
}

func runHIncrByFloat(c *Call) error {
	by, ok := parseLongDouble(c.Args[3])
	if !ok {
		return errNotFloat
	}
	if by.IsInf() {
		return errNaN
	}
	h, err := c.collection(c.Own(1), kindHash)
	if err != nil {
		return err
	}
	field := h.field(c.Args[2])
	old, found, err := h.get(field)
	if err != nil {
		return err
	}
	n := newLongDouble()
	if found {
		if n, ok = parseLongDouble(old); !ok {
			return errHashFloat
		}
	}
	if n, ok = addLongDouble(n, by); !ok {
		return errBecomesNaN
	}
	value := appendLongDouble(nil, n)
	if err := h.put(field, value, !found); err != nil {
		return err
	}
	if err := h.save(); err != nil {
		return err
	}
	c.Reply.Bulk(value)
	return nil
}

// runHRandField is HRANDFIELD.
func runHRandField(c *Call) error {
	return randomCommand(c, kindHash, "withvalues", func(it *store.Item) { c.Reply.Bulk(it.Value) })
}

func runHScan(c *Call) error {
	return scanCommand(c, kindHash, 2, func(_ *collection, r *Reply, it *store.Item) {
		r.BulkString(memberOf(it.Field))
		r.Bulk(it.Value)
	})
}
