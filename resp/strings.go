package resp

import (
	"bytes"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/slotmesh/slotmesh/store"
)

func stringCommands() []Command {
	return []Command{
		{
			Name: "get", Arity: 2, Flags: ReadOnly | Fast, First: 1, Last: 1, Step: 1,
			Run: runGet, Group: "string", Since: "1.0.0",
			Summary:    "Get the value of a key",
			Complexity: "O(1)",
		},
		{
			Name: "set", Arity: -3, Flags: Write | DenyOOM, First: 1, Last: 1, Step: 1,
			Run: runSet, Group: "string", Since: "1.0.0",
			Summary:    "Set the string value of a key",
			Complexity: "O(1)",
		},
		{
			Name: "setnx", Arity: 3, Flags: Write | DenyOOM | Fast, First: 1, Last: 1, Step: 1,
			Run: runSetNX, Group: "string", Since: "1.0.0",
			Summary:    "Set the value of a key, only if the key does not exist",
			Complexity: "O(1)",
		},
		{
			Name: "setex", Arity: 4, Flags: Write | DenyOOM, First: 1, Last: 1, Step: 1,
			Run: runSetEX, Group: "string", Since: "2.0.0",
			Summary:    "Set the value and expiration of a key",
			Complexity: "O(1)",
		},
		{
			Name: "psetex", Arity: 4, Flags: Write | DenyOOM, First: 1, Last: 1, Step: 1,
			Run: runPSetEX, Group: "string", Since: "2.6.0",
			Summary:    "Set the value and expiration in milliseconds of a key",
			Complexity: "O(1)",
		},
		{
			Name: "getset", Arity: 3, Flags: Write | DenyOOM | Fast, First: 1, Last: 1, Step: 1,
			Run: runGetSet, Group: "string", Since: "1.0.0",
			Summary:    "Set the string value of a key and return its old value",
			Complexity: "O(1)",
		},
		{
			Name: "getdel", Arity: 2, Flags: Write | Fast, First: 1, Last: 1, Step: 1,
			Run: runGetDel, Group: "string", Since: "6.2.0",
			Summary:    "Get the value of a key and delete the key",
			Complexity: "O(1)",
		},
		{
			Name: "getex", Arity: -2, Flags: Write | Fast, First: 1, Last: 1, Step: 1,
			Run: runGetEX, Group: "string", Since: "6.2.0",
			Summary:    "Get the value of a key and optionally set its expiration",
			Complexity: "O(1)",
		},
		{
			Name: "append", Arity: 3, Flags: Write | DenyOOM | Fast, First: 1, Last: 1, Step: 1,
			Run: runAppend, Group: "string", Since: "2.0.0",
			Summary:    "Append a value to a key",
			Complexity: "O(1). The amortized time complexity is O(1) assuming the appended value is small and the already present value is of any size, since the dynamic string library used by Redis will double the free space available on every reallocation.",
		},
		{
			Name: "strlen", Arity: 2, Flags: ReadOnly | Fast, First: 1, Last: 1, Step: 1,
			Run: runStrLen, Group: "string", Since: "2.2.0",
			Summary:    "Get the length of the value stored in a key",
			Complexity: "O(1)",
		},
		{
			Name: "setrange", Arity: 4, Flags: Write | DenyOOM, First: 1, Last: 1, Step: 1,
			Run: runSetRange, Group: "string", Since: "2.2.0",
			Summary:    "Overwrite part of a string at key starting at the specified offset",
			Complexity: "O(1), not counting the time taken to copy the new string in place. Usually, this string is very small so the amortized complexity is O(1). Otherwise, complexity is O(M) with M being the length of the value argument.",
		},
		{
			Name: "getrange", Arity: 4, Flags: ReadOnly, First: 1, Last: 1, Step: 1,
			Run: runGetRange, Group: "string", Since: "2.4.0",
			Summary:    "Get a substring of the string stored at a key",
			Complexity: "O(N) where N is the length of the returned string. The complexity is ultimately determined by the returned length, but because creating a substring from an existing string is very cheap, it can be considered O(1) for small strings.",
		},
		{
			Name: "substr", Arity: 4, Flags: ReadOnly, First: 1, Last: 1, Step: 1,
			Run: runGetRange, Group: "string", Since: "1.0.0",
			Summary:    "Get a substring of the string stored at a key",
			Complexity: "O(N) where N is the length of the returned string. The complexity is ultimately determined by the returned length, but because creating a substring from an existing string is very cheap, it can be considered O(1) for small strings.",
		},
		{
			Name: "incr", Arity: 2, Flags: Write | DenyOOM | Fast, First: 1, Last: 1, Step: 1,
			Run: runIncr, Group: "string", Since: "1.0.0",
			Summary:    "Increment the integer value of a key by one",
			Complexity: "O(1)",
		},
		{
			Name: "decr", Arity: 2, Flags: Write | DenyOOM | Fast, First: 1, Last: 1, Step: 1,
			Run: runDecr, Group: "string", Since: "1.0.0",
			Summary:    "Decrement the integer value of a key by one",
			Complexity: "O(1)",
		},
		{
			Name: "incrby", Arity: 3, Flags: Write | DenyOOM | Fast, First: 1, Last: 1, Step: 1,
			Run: runIncrBy, Group: "string", Since: "1.0.0",
			Summary:    "Increment the integer value of a key by the given amount",
			Complexity: "O(1)",
		},
		{
			Name: "decrby", Arity: 3, Flags: Write | DenyOOM | Fast, First: 1, Last: 1, Step: 1,
			Run: runDecrBy, Group: "string", Since: "1.0.0",
			Summary:    "Decrement the integer value of a key by the given number",
			Complexity: "O(1)",
		},
		{
			Name: "incrbyfloat", Arity: 3, Flags: Write | DenyOOM | Fast, First: 1, Last: 1, Step: 1,
			Run: runIncrByFloat, Group: "string", Since: "2.6.0",
			Summary:    "Increment the float value of a key by the given amount",
			Complexity: "O(1)",
		},
		{
			Name: "mget", Arity: -2, Flags: ReadOnly | Fast, First: 1, Last: -1, Step: 1,
			Run: runMGet, Group: "string", Since: "1.0.0",
			Summary:    "Get the values of all the given keys",
			Complexity: "O(N) where N is the number of keys to retrieve.",
		},
		{
			Name: "mset", Arity: -3, Flags: Write | DenyOOM, First: 1, Last: -1, Step: 2,
			Run: runMSet, Group: "string", Since: "1.0.1",
			Summary:    "Set multiple keys to multiple values",
			Complexity: "O(N) where N is the number of keys to set.",
		},
		{
			Name: "msetnx", Arity: -3, Flags: Write | DenyOOM, First: 1, Last: -1, Step: 2,
			Run: runMSetNX, Group: "string", Since: "1.0.1",
			Summary:    "Set multiple keys to multiple values, only if none of the keys exist",
			Complexity: "O(N) where N is the number of keys to set.",
		},
		{
			Name: "lcs", Arity: -3, Flags: ReadOnly, First: 1, Last: 2, Step: 1,
			Run: runLCS, Group: "string", Since: "7.0.0",
			Summary:    "Find longest common substring",
			Complexity: "O(N*M) where N and M are the lengths of s1 and s2, respectively",
		},
	}
}

// What string commands answer, in the words of Redis.
const (
	errDecrOverflow  Error = "ERR decrement would overflow"
	errOffset        Error = "ERR offset is out of range"
	errStringTooLong Error = "ERR string exceeds maximum allowed size (proto-max-bulk-len)"
)

// maxString is the length that no string may grow beyond.
func (c *Call) maxString() int64 {
	if c.conn == nil {
		return int64(Limits{}.withDefaults().Bulk)
	}
	return int64(c.conn.server.cfg.Limits.Bulk)
}

// mayGrow refuses a string of n bytes behind the first at.
func (c *Call) mayGrow(at int64, n int) error {
	if at > c.maxString()-int64(n) {
		return errStringTooLong
	}
	return nil
}

// exists reports whether a key of any kind is there.
func (c *Call) exists(key string) (bool, error) {
	_, found, err := c.Tx.Entry(key)
	return found, err
}

// putString stores a string under the key that is argument i, in place of all
// that was there. It keeps the value.
func (c *Call) putString(i int, value []byte, expireAt int64) error {
	return c.Tx.PutEntry(c.Own(i), store.Entry{Value: value, ExpireAt: expireAt})
}

func runGet(c *Call) error {
	e, found, err := c.head(c.Key(1), kindString)
	if err != nil {
		return err
	}
	c.bulkOrNull(e.Value, found)
	return nil
}

func runMGet(c *Call) error {
	c.Reply.Array(len(c.Args) - 1)
	for i := 1; i < len(c.Args); i++ {
		e, found, err := c.Tx.Entry(c.Key(i))
		if err != nil {
			return err
		}
		c.bulkOrNull(e.Value, found && e.Kind == kindString)
	}
	return nil
}

func runStrLen(c *Call) error {
	e, _, err := c.head(c.Key(1), kindString)
	if err != nil {
		return err
	}
	c.Reply.Int(int64(len(e.Value)))
	return nil
}

// ---- SET and what is like it

// stringOptions are the options of SET and of GETEX.
type stringOptions struct {
	nx, xx, get bool // SET
	keepTTL     bool // SET
	persist     bool // GETEX

	expiry expiry // zero: none was given
	at     int    // the argument that is its time
}

// expiry is how a command says when a key expires.
type expiry struct {
	option   string // as in SET
	unit     int64  // milliseconds
	absolute bool   // a Unix time, not one from now
}

var (
	expirySeconds = expiry{"ex", 1000, false}
	expiryMillis  = expiry{"px", 1, false}
)

// expiryOption is the option of SET and GETEX that argument i is.
func (c *Call) expiryOption(i int) (expiry, bool) {
	for _, e := range [...]expiry{expirySeconds, expiryMillis, {"exat", 1000, true}, {"pxat", 1, true}} {
		if c.Is(i, e.option) {
			return e, true
		}
	}
	return expiry{}, false
}

// stringOptions reads the options from argument i on. set tells SET from GETEX.
func (c *Call) stringOptions(i int, set bool) (o stringOptions, err error) {
	for ; i < len(c.Args); i++ {
		timed := o.expiry != expiry{}
		switch {
		case set && !o.xx && c.Is(i, "nx"):
			o.nx = true
		case set && !o.nx && c.Is(i, "xx"):
			o.xx = true
		case set && c.Is(i, "get"):
			o.get = true
		case set && !timed && c.Is(i, "keepttl"):
			o.keepTTL = true
		case !set && !timed && c.Is(i, "persist"):
			o.persist = true
		default:
			// The same option may come again, another one may not.
			e, ok := c.expiryOption(i)
			if !ok || o.keepTTL || o.persist || timed && e != o.expiry || i+1 == len(c.Args) {
				return o, errSyntax
			}
			i++
			o.expiry, o.at = e, i
		}
	}
	return o, nil
}

// deadline is when a key expires, in Unix milliseconds, by a time that argument
// i gives.
func (c *Call) deadline(e expiry, i int) (int64, error) {
	n, err := c.Int(i)
	if err != nil {
		return 0, err
	}
	if n <= 0 || n > math.MaxInt64/e.unit {
		return 0, c.badExpire()
	}
	n *= e.unit
	if e.absolute {
		return n, nil
	}
	now := c.Now()
	if n > math.MaxInt64-now {
		return 0, c.badExpire()
	}
	return n + now, nil
}

func (c *Call) badExpire() error {
	return Error(fmt.Sprintf(string(errBadExpire), c.command.fullName()))
}

func runSet(c *Call) error {
	if len(c.Args) > 3 {
		return c.setWithOptions()
	}
	if err := c.putString(1, bytes.Clone(c.Args[2]), 0); err != nil {
		return err
	}
	c.Reply.Simple("OK")
	return nil
}

func (c *Call) setWithOptions() error {
	o, err := c.stringOptions(3, true)
	if err != nil {
		return err
	}
	var expireAt int64
	if o.at > 0 {
		if expireAt, err = c.deadline(o.expiry, o.at); err != nil {
			return err
		}
	}
	old, found, err := c.Tx.Entry(c.Key(1))
	switch {
	case err != nil:
		return err
	case o.get && found && old.Kind != kindString:
		return errWrongType
	}
	if o.keepTTL {
		expireAt = old.ExpireAt
	}
	write := !(o.nx && found || o.xx && !found)
	if write {
		if err := c.putString(1, bytes.Clone(c.Args[2]), expireAt); err != nil {
			return err
		}
	}
	switch {
	case o.get:
		c.bulkOrNull(old.Value, found)
	case write:
		c.Reply.Simple("OK")
	default:
		c.Reply.Null()
	}
	return nil
}

func runSetEX(c *Call) error  { return c.setEX(expirySeconds) }
func runPSetEX(c *Call) error { return c.setEX(expiryMillis) }

func (c *Call) setEX(e expiry) error {
	expireAt, err := c.deadline(e, 2)
	if err != nil {
		return err
	}
	if err := c.putString(1, bytes.Clone(c.Args[3]), expireAt); err != nil {
		return err
	}
	c.Reply.Simple("OK")
	return nil
}

func runSetNX(c *Call) error {
	found, err := c.exists(c.Key(1))
	if err != nil {
		return err
	}
	if !found {
		if err := c.putString(1, bytes.Clone(c.Args[2]), 0); err != nil {
			return err
		}
	}
	c.replyBool(!found)
	return nil
}

func runGetSet(c *Call) error {
	old, found, err := c.head(c.Key(1), kindString)
	if err != nil {
		return err
	}
	if err := c.putString(1, bytes.Clone(c.Args[2]), 0); err != nil {
		return err
	}
	c.bulkOrNull(old.Value, found)
	return nil
}

func runGetDel(c *Call) error {
	old, found, err := c.head(c.Key(1), kindString)
	if err != nil {
		return err
	}
	if found {
		if _, err := c.Tx.Delete(c.Own(1)); err != nil {
			return err
		}
	}
	c.bulkOrNull(old.Value, found)
	return nil
}

// runGetEX looks for the key before it looks at the time, as Redis does: a time
// that is no number is no error where there is no key.
func runGetEX(c *Call) error {
	o, err := c.stringOptions(2, false)
	if err != nil {
		return err
	}
	e, found, err := c.head(c.Key(1), kindString)
	if err != nil {
		return err
	}
	if !found {
		c.Reply.Null()
		return nil
	}
	switch {
	case o.at > 0:
		expireAt, err := c.deadline(o.expiry, o.at)
		if err != nil {
			return err
		}
		if err := c.expireAt(1, expireAt); err != nil {
			return err
		}
	case o.persist && e.ExpireAt != 0:
		if _, err := c.Tx.Expire(c.Own(1), time.Time{}); err != nil {
			return err
		}
	}
	c.Reply.Bulk(e.Value)
	return nil
}

func runMSet(c *Call) error {
	if len(c.Args)%2 == 0 {
		return wrongArity(c.command)
	}
	if err := c.putPairs(); err != nil {
		return err
	}
	c.Reply.Simple("OK")
	return nil
}

func (c *Call) putPairs() error {
	for i := 1; i < len(c.Args); i += 2 {
		if err := c.putString(i, bytes.Clone(c.Args[i+1]), 0); err != nil {
			return err
		}
	}
	return nil
}

func runMSetNX(c *Call) error {
	if len(c.Args)%2 == 0 {
		return wrongArity(c.command)
	}
	for i := 1; i < len(c.Args); i += 2 {
		found, err := c.exists(c.Key(i))
		if err != nil {
			return err
		}
		if found {
			c.Reply.Int(0)
			return nil
		}
	}
	if err := c.putPairs(); err != nil {
		return err
	}
	c.Reply.Int(1)
	return nil
}

// ---- parts of a string

func runAppend(c *Call) error {
	e, found, err := c.head(c.Key(1), kindString)
	if err != nil {
		return err
	}
	more := c.Args[2]
	if found {
		if err := c.mayGrow(int64(len(e.Value)), len(more)); err != nil {
			return err
		}
	}
	value := make([]byte, len(e.Value)+len(more))
	copy(value[copy(value, e.Value):], more)
	if err := c.putString(1, value, e.ExpireAt); err != nil {
		return err
	}
	c.Reply.Int(int64(len(value)))
	return nil
}

func runSetRange(c *Call) error {
	at, err := c.Int(2)
	if err != nil {
		return err
	}
	if at < 0 {
		return errOffset
	}
	e, _, err := c.head(c.Key(1), kindString)
	if err != nil {
		return err
	}
	piece := c.Args[3]
	if len(piece) == 0 {
		c.Reply.Int(int64(len(e.Value)))
		return nil
	}
	if err := c.mayGrow(at, len(piece)); err != nil {
		return err
	}
	value := grown(e.Value, int(at)+len(piece))
	copy(value[at:], piece)
	if err := c.putString(1, value, e.ExpireAt); err != nil {
		return err
	}
	c.Reply.Int(int64(len(value)))
	return nil
}

// grown is a copy of a value that has at least n bytes, zeros behind the old
// ones.
func grown(value []byte, n int) []byte {
	longer := make([]byte, max(len(value), n))
	copy(longer, value)
	return longer
}

func runGetRange(c *Call) error {
	start, err := c.Int(2)
	if err != nil {
		return err
	}
	end, err := c.Int(3)
	if err != nil {
		return err
	}
	e, _, err := c.head(c.Key(1), kindString)
	if err != nil {
		return err
	}
	c.Reply.Bulk(slice(e.Value, start, end))
	return nil
}

// slice is the bytes from start to end, both among them; negative ones count
// from the end of the value.
func slice(value []byte, start, end int64) []byte {
	n := int64(len(value))
	if start < 0 && end < 0 && start > end {
		return nil
	}
	if start < 0 {
		start = max(0, start+n)
	}
	if end < 0 {
		end = max(0, end+n)
	}
	end = min(end, n-1)
	if start > end {
		return nil
	}
	return value[start : end+1]
}

// ---- numbers

func runIncr(c *Call) error { return c.incrBy(1) }
func runDecr(c *Call) error { return c.incrBy(-1) }

func runIncrBy(c *Call) error {
	by, err := c.Int(2)
	if err != nil {
		return err
	}
	return c.incrBy(by)
}

func runDecrBy(c *Call) error {
	by, err := c.Int(2)
	if err != nil {
		return err
	}
	if by == math.MinInt64 {
		return errDecrOverflow // it has no opposite
	}
	return c.incrBy(-by)
}

func (c *Call) incrBy(by int64) error {
	e, found, err := c.head(c.Key(1), kindString)
	if err != nil {
		return err
	}
	n := int64(0)
	if found {
		var ok bool
		if n, ok = parseInt(e.Value); !ok {
			return errNotInteger
		}
	}
	sum, ok := addInt(n, by)
	if !ok {
		return errOverflow
	}
	if err := c.putString(1, []byte(strconv.FormatInt(sum, 10)), e.ExpireAt); err != nil {
		return err
	}
	c.Reply.Int(sum)
	return nil
}

// addInt is a+b, and whether it fits.
func addInt(a, b int64) (int64, bool) {
	sum := a + b
	return sum, (b >= 0) == (sum >= a)
}

func runIncrByFloat(c *Call) error {
	e, found, err := c.head(c.Key(1), kindString)
	if err != nil {
		return err
	}
	old := e.Value
	if !found {
		old = []byte("0")
	}
	a, ok := parseLongDouble(old)
	if !ok {
		return errNotFloat
	}
	b, ok := parseLongDouble(c.Args[2])
	if !ok {
		return errNotFloat
	}
	sum, ok := addLongDouble(a, b)
	if !ok {
		return errBecomesNaN
	}
	value := appendLongDouble(nil, sum)
	if err := c.putString(1, value, e.ExpireAt); err != nil {
		return err
	}
	c.Reply.Bulk(value)
	return nil
}
