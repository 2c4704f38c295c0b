package resp

import (
	"bytes"
	"fmt"
	"math"
	"time"

	"github.com/slotmesh/slotmesh/store"
)

func keyCommands() []Command {
	return []Command{
		{
			Name: "del", Arity: -2, Flags: Write, First: 1, Last: -1, Step: 1,
			Run: runDel, Group: "generic", Since: "1.0.0",
			Summary:    "Delete a key",
			Complexity: "O(N) where N is the number of keys that will be removed. When a key to remove holds a value other than a string, the individual complexity for this key is O(M) where M is the number of elements in the list, set, sorted set or hash. Removing a single key that holds a string value is O(1).",
		},
		{
			Name: "unlink", Arity: -2, Flags: Write | Fast, First: 1, Last: -1, Step: 1,
			Run: runDel, Group: "generic", Since: "4.0.0",
			Summary:    "Delete a key asynchronously in another thread. Otherwise it is just as DEL, but non blocking.",
			Complexity: "O(1) for each key removed regardless of its size. Then the command does O(N) work in a different thread in order to reclaim memory, where N is the number of allocations the deleted objects where composed of.",
		},
		{
			Name: "exists", Arity: -2, Flags: ReadOnly | Fast, First: 1, Last: -1, Step: 1,
			Run: runExists, Group: "generic", Since: "1.0.0",
			Summary:    "Determine if a key exists",
			Complexity: "O(N) where N is the number of keys to check.",
		},
		{
			Name: "touch", Arity: -2, Flags: ReadOnly | Fast, First: 1, Last: -1, Step: 1,
			Run: runExists, Group: "generic", Since: "3.2.1",
			Summary:    "Alters the last access time of a key(s). Returns the number of existing keys specified.",
			Complexity: "O(N) where N is the number of keys that will be touched.",
		},
		{
			Name: "type", Arity: 2, Flags: ReadOnly | Fast, First: 1, Last: 1, Step: 1,
			Run: runType, Group: "generic", Since: "1.0.0",
			Summary:    "Determine the type stored at key",
			Complexity: "O(1)",
		},
		{
			Name: "expire", Arity: -3, Flags: Write | Fast, First: 1, Last: 1, Step: 1,
			Run: runExpire, Group: "generic", Since: "1.0.0",
			Summary:    "Set a key's time to live in seconds",
			Complexity: "O(1)",
		},
		{
			Name: "pexpire", Arity: -3, Flags: Write | Fast, First: 1, Last: 1, Step: 1,
			Run: runPExpire, Group: "generic", Since: "2.6.0",
			Summary:    "Set a key's time to live in milliseconds",
			Complexity: "O(1)",
		},
		{
			Name: "expireat", Arity: -3, Flags: Write | Fast, First: 1, Last: 1, Step: 1,
			Run: runExpireAt, Group: "generic", Since: "1.2.0",
			Summary:    "Set the expiration for a key as a UNIX timestamp",
			Complexity: "O(1)",
		},
		{
			Name: "pexpireat", Arity: -3, Flags: Write | Fast, First: 1, Last: 1, Step: 1,
			Run: runPExpireAt, Group: "generic", Since: "2.6.0",
			Summary:    "Set the expiration for a key as a UNIX timestamp specified in milliseconds",
			Complexity: "O(1)",
		},
		{
			Name: "expiretime", Arity: 2, Flags: ReadOnly | Fast, First: 1, Last: 1, Step: 1,
			Run: runExpireTime, Group: "generic", Since: "7.0.0",
			Summary:    "Get the expiration Unix timestamp for a key",
			Complexity: "O(1)",
		},
		{
			Name: "pexpiretime", Arity: 2, Flags: ReadOnly | Fast, First: 1, Last: 1, Step: 1,
			Run: runPExpireTime, Group: "generic", Since: "7.0.0",
			Summary:    "Get the expiration Unix timestamp for a key in milliseconds",
			Complexity: "O(1)",
		},
		{
			Name: "ttl", Arity: 2, Flags: ReadOnly | Fast, First: 1, Last: 1, Step: 1,
			Run: runTTL, Group: "generic", Since: "1.0.0",
			Summary:    "Get the time to live for a key in seconds",
			Complexity: "O(1)",
		},
		{
			Name: "pttl", Arity: 2, Flags: ReadOnly | Fast, First: 1, Last: 1, Step: 1,
			Run: runPTTL, Group: "generic", Since: "2.6.0",
			Summary:    "Get the time to live for a key in milliseconds",
			Complexity: "O(1)",
		},
		{
			Name: "persist", Arity: 2, Flags: Write | Fast, First: 1, Last: 1, Step: 1,
			Run: runPersist, Group: "generic", Since: "2.2.0",
			Summary:    "Remove the expiration from a key",
			Complexity: "O(1)",
		},
		{
			Name: "rename", Arity: 3, Flags: Write, First: 1, Last: 2, Step: 1,
			Run: runRename, Group: "generic", Since: "1.0.0",
			Summary:    "Rename a key",
			Complexity: "O(1)",
		},
		{
			Name: "renamenx", Arity: 3, Flags: Write | Fast, First: 1, Last: 2, Step: 1,
			Run: runRenameNX, Group: "generic", Since: "1.0.0",
			Summary:    "Rename a key, only if the new key does not exist",
			Complexity: "O(1)",
		},
		{
			Name: "copy", Arity: -3, Flags: Write | DenyOOM, First: 1, Last: 2, Step: 1,
			Run: runCopy, Group: "generic", Since: "6.2.0",
			Summary:    "Copy a key",
			Complexity: "O(N) worst case for collections, where N is the number of nested items. O(1) for string values.",
		},
		{
			Name: "move", Arity: 3, Flags: Write | Fast, First: 1, Last: 1, Step: 1,
			Run: runMove, Group: "generic", Since: "1.0.0",
			Summary:    "Move a key to another database",
			Complexity: "O(1)",
		},
		{
			Name: "object", Arity: -2,
			Group: "generic", Since: "2.2.3",
			Summary:    "A container for object introspection commands",
			Complexity: "Depends on subcommand.",
			Sub: []Command{
				{
					Name: "encoding", Arity: 3, Flags: ReadOnly, First: 2, Last: 2, Step: 1,
					Run: runObjectEncoding, Group: "generic", Since: "2.2.3",
					Usage: "<key>",
					Summary: "Return the kind of internal representation used in order to store the value\n" +
						"associated with a <key>.",
					Complexity: "O(1)",
				},
				{
					Name: "freq", Arity: 3, Flags: ReadOnly, First: 2, Last: 2, Step: 1,
					Run: runObjectFreq, Group: "generic", Since: "4.0.0",
					Usage: "<key>",
					Summary: "Return the access frequency index of the <key>. The returned integer is\n" +
						"proportional to the logarithm of the recent access frequency of the key.",
					Complexity: "O(1)",
				},
				{
					Name: "idletime", Arity: 3, Flags: ReadOnly, First: 2, Last: 2, Step: 1,
					Run: runObjectIdleTime, Group: "generic", Since: "2.2.3",
					Usage: "<key>",
					Summary: "Return the idle time of the <key>, that is the approximated number of\n" +
						"seconds elapsed since the last access to the key.",
					Complexity: "O(1)",
				},
				{
					Name: "refcount", Arity: 3, Flags: ReadOnly, First: 2, Last: 2, Step: 1,
					Run: runObjectRefCount, Group: "generic", Since: "2.2.3",
					Usage: "<key>",
					Summary: "Return the number of references of the value associated with the specified\n" +
						"<key>.",
					Complexity: "O(1)",
				},
			},
		},
		{
			Name: "sort", Arity: -2, Flags: Write | DenyOOM | MovableKeys, First: 1, Last: 1, Step: 1,
			Keys: sortKeys, Run: runSort, Group: "generic", Since: "1.0.0",
			Summary:    "Sort the elements in a list, set or sorted set",
			Complexity: "O(N+M*log(M)) where N is the number of elements in the list or set to sort, and M the number of returned elements. When the elements are not sorted, complexity is O(N).",
		},
		{
			Name: "sort_ro", Arity: -2, Flags: ReadOnly | MovableKeys, First: 1, Last: 1, Step: 1,
			Run: runSortRO, Group: "generic", Since: "7.0.0",
			Summary:    "Sort the elements in a list, set or sorted set. Read-only variant of SORT.",
			Complexity: "O(N+M*log(M)) where N is the number of elements in the list or set to sort, and M the number of returned elements. When the elements are not sorted, complexity is O(N).",
		},
		{
			Name: "dump", Arity: 2, Flags: ReadOnly, First: 1, Last: 1, Step: 1,
			Run: runDump, Group: "generic", Since: "2.6.0",
			Summary:    "Return a serialized version of the value stored at the specified key.",
			Complexity: "O(1) to access the key and additional O(N*M) to serialize it, where N is the number of Redis objects composing the value and M their average size. For small string values the time complexity is thus O(1)+O(1*M) where M is small, so simply O(1).",
		},
		{
			Name: "restore", Arity: -4, Flags: Write | DenyOOM, First: 1, Last: 1, Step: 1,
			Run: runRestore, Group: "generic", Since: "2.6.0",
			Summary:    "Create a key using the provided serialized value, previously obtained using DUMP.",
			Complexity: "O(1) to create the new key and additional O(N*M) to reconstruct the serialized value, where N is the number of Redis objects composing the value and M their average size. For small string values the time complexity is thus O(1)+O(1*M) where M is small, so simply O(1). However for sorted set values the complexity is O(N*M*log(N)) because inserting values into sorted sets is O(log(N)).",
		},
		{
			Name: "restore-asking", Arity: -4, Flags: Write | DenyOOM | Asking, First: 1, Last: 1, Step: 1,
			Run: runRestore, Group: "server", Since: "3.0.0",
			Summary:    "An internal command for migrating keys in a cluster",
			Complexity: "O(1) to create the new key and additional O(N*M) to reconstruct the serialized value, where N is the number of Redis objects composing the value and M their average size. For small string values the time complexity is thus O(1)+O(1*M) where M is small, so simply O(1). However for sorted set values the complexity is O(N*M*log(N)) because inserting values into sorted sets is O(log(N)).",
		},
	}
}

// What key commands answer, in the words of Redis.
const (
	errExpireNX   Error = "ERR NX and XX, GT or LT options at the same time are not compatible"
	errExpireGTLT Error = "ERR GT and LT options at the same time are not compatible"
	errSameObject Error = "ERR source and destination objects are the same"
	errCopyDB     Error = "ERR Copying to another database is not allowed in cluster mode"
	errNotInt32   Error = "ERR value is out of range, value must between -2147483648 and 2147483647"
	errDBIndex    Error = "ERR DB index is out of range"
	errMove       Error = "ERR MOVE is not allowed in cluster mode"
	errNoLFU      Error = "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that when switching between policies at runtime LRU and LFU data will take some time to adjust."
)

func runDel(c *Call) error {
	n := int64(0)
	for i := 1; i < len(c.Args); i++ {
		found, err := c.remove(i)
		if err != nil {
			return err
		}
		if found {
			n++
		}
	}
	c.Reply.Int(n)
	return nil
}

// remove deletes the key that is argument i, and reports whether it was there. A
// key that is not costs no change.
func (c *Call) remove(i int) (bool, error) {
	found, err := c.exists(c.Key(i))
	if err != nil || !found {
		return false, err
	}
	return c.Tx.Delete(c.Own(i))
}

func runExists(c *Call) error {
	n := int64(0)
	for i := 1; i < len(c.Args); i++ {
		found, err := c.exists(c.Key(i))
		if err != nil {
			return err
		}
		if found {
			n++
		}
	}
	c.Reply.Int(n)
	return nil
}

func runType(c *Call) error {
	e, found, err := c.Tx.Entry(c.Key(1))
	if err != nil {
		return err
	}
	c.Reply.Simple(kindName(e.Kind, found))
	return nil
}

func kindName(kind byte, found bool) string {
	switch {
	case !found:
		return "none"
	case int(kind) < len(kindNames):
		return kindNames[kind]
	default:
		return "unknown" // of an application's own commands
	}
}

// ---- time to live

func runExpire(c *Call) error    { return c.expire(1000, c.Now()) }
func runPExpire(c *Call) error   { return c.expire(1, c.Now()) }
func runExpireAt(c *Call) error  { return c.expire(1000, 0) }
func runPExpireAt(c *Call) error { return c.expire(1, 0) }

// expire is the four of them: a time in units of so many milliseconds, counted
// from base.
func (c *Call) expire(unit, base int64) error {
	when, err := c.expireCondition()
	if err != nil {
		return err
	}
	at, err := c.Int(2)
	if err != nil {
		return err
	}
	if at > math.MaxInt64/unit || at < math.MinInt64/unit || at*unit > math.MaxInt64-base {
		return c.badExpire()
	}
	at = at*unit + base
	e, found, err := c.Tx.Entry(c.Key(1))
	if err != nil {
		return err
	}
	set := found && when.allows(e.ExpireAt, at)
	if set {
		if err := c.expireAt(1, at); err != nil {
			return err
		}
	}
	c.replyBool(set)
	return nil
}

// expireCondition is which time an EXPIRE may take the place of.
type expireCondition struct{ nx, xx, gt, lt bool }

func (c *Call) expireCondition() (o expireCondition, err error) {
	for i := 3; i < len(c.Args); i++ {
		switch {
		case c.Is(i, "nx"):
			o.nx = true
		case c.Is(i, "xx"):
			o.xx = true
		case c.Is(i, "gt"):
			o.gt = true
		case c.Is(i, "lt"):
			o.lt = true
		default:
			option, _, _ := bytes.Cut(c.Args[i], []byte{0}) // where a string of C ends
			return o, Error(fmt.Sprintf("ERR Unsupported option %s", option))
		}
	}
	switch {
	case o.nx && (o.xx || o.gt || o.lt):
		return o, errExpireNX
	case o.gt && o.lt:
		return o, errExpireGTLT
	}
	return o, nil
}

// allows compares the time that a key has, 0 for never, with the one it would
// get. Never is later than any time.
func (o expireCondition) allows(old, at int64) bool {
	switch {
	case o.nx && old != 0, o.xx && old == 0:
		return false
	case o.gt:
		return old != 0 && at > old
	case o.lt:
		return old == 0 || at < old
	}
	return true
}

// expireAt sets when the key that is argument i expires. It is there; a time that
// has passed removes it.
func (c *Call) expireAt(i int, at int64) (err error) {
	if at <= c.Now() {
		_, err = c.Tx.Delete(c.Own(i))
	} else {
		_, err = c.Tx.Expire(c.Own(i), time.UnixMilli(at))
	}
	return err
}

func runTTL(c *Call) error         { return c.ttl(1000, c.Now()) }
func runPTTL(c *Call) error        { return c.ttl(1, c.Now()) }
func runExpireTime(c *Call) error  { return c.ttl(1000, 0) }
func runPExpireTime(c *Call) error { return c.ttl(1, 0) }

// ttl is when a key expires, in units of so many milliseconds from base on,
// rounded to the nearest.
func (c *Call) ttl(unit, base int64) error {
	e, found, err := c.Tx.Entry(c.Key(1))
	switch {
	case err != nil:
		return err
	case !found:
		c.Reply.Int(-2)
	case e.ExpireAt == 0:
		c.Reply.Int(-1)
	default:
		left := uint64(e.ExpireAt-base) + uint64(unit/2) // may be beyond an int64
		c.Reply.Int(int64(left / uint64(unit)))
	}
	return nil
}

func runPersist(c *Call) error {
	e, found, err := c.Tx.Entry(c.Key(1))
	if err != nil {
		return err
	}
	timed := found && e.ExpireAt != 0
	if timed {
		if _, err := c.Tx.Expire(c.Own(1), time.Time{}); err != nil {
			return err
		}
	}
	c.replyBool(timed)
	return nil
}

// ---- RENAME, COPY, MOVE

func runRename(c *Call) error {
	if _, err := c.rename(false); err != nil {
		return err
	}
	c.Reply.Simple("OK")
	return nil
}

func runRenameNX(c *Call) error {
	renamed, err := c.rename(true)
	if err != nil {
		return err
	}
	c.replyBool(renamed)
	return nil
}

// rename gives a key another name, and reports whether it did: with nx not where
// that name is taken, be it by the key itself.
func (c *Call) rename(nx bool) (bool, error) {
	from, found, err := c.Tx.Entry(c.Key(1))
	switch {
	case err != nil:
		return false, err
	case !found:
		return false, errNoSuchKey
	case c.Key(1) == c.Key(2):
		return !nx, nil
	}
	taken, err := c.exists(c.Key(2))
	if err != nil || taken && nx {
		return false, err
	}
	if err := c.copyKey(&from, taken); err != nil {
		return false, err
	}
	_, err = c.Tx.Delete(c.Own(1))
	return err == nil, err
}

func runCopy(c *Call) error {
	replace, err := c.copyOptions()
	if err != nil {
		return err
	}
	if c.Key(1) == c.Key(2) {
		return errSameObject
	}
	from, found, err := c.Tx.Entry(c.Key(1))
	if err != nil {
		return err
	}
	taken, err := c.exists(c.Key(2))
	if err != nil {
		return err
	}
	copied := found && (replace || !taken)
	if copied {
		if err := c.copyKey(&from, taken); err != nil {
			return err
		}
	}
	c.replyBool(copied)
	return nil
}

// copyOptions reads REPLACE and DB. There is one database; numbers that Redis
// has by default are told from those that it has not.
func (c *Call) copyOptions() (replace bool, err error) {
	const databases = 16
	elsewhere := false
	for i := 3; i < len(c.Args); i++ {
		switch {
		case c.Is(i, "replace"):
			replace = true
		case c.Is(i, "db") && i+1 < len(c.Args):
			i++
			n, err := c.Int(i)
			switch {
			case err != nil:
				return false, err
			case n < math.MinInt32 || n > math.MaxInt32:
				return false, errNotInt32
			case n < 0 || n >= databases:
				return false, errDBIndex
			}
			elsewhere = n != 0
		default:
			return false, errSyntax
		}
	}
	if elsewhere {
		return false, errCopyDB
	}
	return replace, nil
}

func runMove(*Call) error { return errMove }

// Beside its entries a copy writes a head, removes what is in its way and what it
// was copied from, each of which may have to make room first.
const (
	copyCalls = 9
	copyKeys  = 3
	copyHead  = 16 // bytes of a header at most
)

// gathering is a collection that a command is about to put under a key. What the rest of
// the Tx could not hold is refused before all of it has been gathered. nil: it is
// not to be put anywhere.
type gathering struct {
	c       *Call
	key     string
	entries int
	bytes   int64
}

// add counts entries, with so many bytes of fields and values.
func (g *gathering) add(entries, bytes int) error {
	if g == nil {
		return nil
	}
	g.entries, g.bytes = g.entries+entries, g.bytes+int64(bytes)
	return g.c.mayCopy(g.key, g.entries, g.bytes)
}

// addScored counts a member of a sorted set, which is there by name, with its score, and
// by score.
func (g *gathering) addScored(name string) error {
	return g.add(2, namePosition+scoreBytes+scoredName+2*len(name))
}

// mayCopy refuses what the rest of the Tx could not hold, before anything is
// written: in a transaction or a script half of a value would stay. The entries
// have so many bytes without the name of the key.
func (c *Call) mayCopy(key string, entries int, bytes int64) error {
	calls, room := c.Tx.Room()
	switch bytes += int64(entries+copyKeys)*int64(len(key)) + copyHead; {
	case entries > calls-copyCalls:
		return Error(fmt.Sprintf("ERR the value has more than %d entries, too many to be written in one step", max(0, calls-copyCalls)))
	case bytes > int64(room):
		return Error(fmt.Sprintf("ERR the value has more than %d bytes, too many to be written in one step", room))
	}
	return nil
}

// copyKey puts all of the key that is argument 1 under the one that is argument
// 2, in place of what is there if it is taken.
func (c *Call) copyKey(from *store.Entry, taken bool) error {
	if from.Kind == kindString {
		return c.putString(2, from.Value, from.ExpireAt)
	}
	items, err := c.allFields(c.Key(1), c.Key(2))
	if err != nil {
		return err
	}
	key := c.Own(2)
	if taken {
		if _, err := c.Tx.Delete(key); err != nil {
			return err
		}
	}
	if err := c.Tx.PutEntry(key, *from); err != nil {
		return err
	}
	for i := range items {
		if err := c.Tx.PutField(key, items[i].Field, items[i].Value); err != nil {
			return err
		}
	}
	return nil
}

// allFields are the entries of a collection, which may be copied to another key.
func (c *Call) allFields(key, to string) (items []store.Item, err error) {
	g := gathering{c: c, key: to, bytes: int64(len(key))} // which is removed by RENAME
	for item, err := range fieldsFrom(c.Tx, key, "") {
		if err != nil {
			return nil, err
		}
		items = append(items, *item)
		if err := g.add(1, len(item.Field)+len(item.Value)); err != nil {
			return nil, err
		}
	}
	return items, nil
}

// ---- OBJECT

func runObjectEncoding(c *Call) error {
	e, found, err := c.Tx.Entry(c.Key(2))
	if err != nil {
		return err
	}
	if !found {
		c.Reply.Null()
		return nil
	}
	name, err := c.encoding(c.Key(2), &e)
	if err != nil {
		return err
	}
	c.Reply.BulkString(name)
	return nil
}

// Redis's default bounds of its small encodings.
const (
	embstrMax      = 44  // bytes of a string
	listpackMax    = 128 // entries of a hash or a sorted set
	listpackString = 64  // bytes of each
	intsetMax      = 512 // members of a set
)

// encoding is how Redis would hold a value that has its size and never had
// another: a value that shrinks keeps its encoding in Redis. Here all values of a
// kind are held the same way.
func (c *Call) encoding(key string, e *store.Entry) (string, error) {
	switch e.Kind {
	case kindString:
		return stringEncoding(e.Value), nil
	case kindList:
		return "quicklist", nil
	case kindHash:
		return c.smallEncoding(key, e, listpackMax, fitsListpack, "listpack", "hashtable")
	case kindSet:
		return c.smallEncoding(key, e, intsetMax, fitsIntset, "intset", "hashtable")
	case kindSortedSet:
		return c.smallEncoding(key, e, listpackMax, fitsListpack, "listpack", "skiplist")
	}
	return "unknown", nil
}

func stringEncoding(value []byte) string {
	switch _, isInt := parseInt(value); {
	case isInt:
		return "int"
	case len(value) <= embstrMax:
		return "embstr"
	}
	return "raw"
}

// smallEncoding is small for a collection of at most so many members that all
// fit.
func (c *Call) smallEncoding(key string, e *store.Entry, most uint64, fits func(*store.Item) bool, small, large string) (string, error) {
	if countOf(e) > most {
		return large, nil
	}
	for item, err := range fieldsFrom(c.Tx, key, "") {
		if err != nil {
			return "", err
		}
		if !fits(item) {
			return large, nil
		}
	}
	return small, nil
}

// fitsListpack looks at an entry of a hash or of a sorted set. The second entry
// of a sorted set's member is longer than the member by its score.
func fitsListpack(item *store.Item) bool {
	return item.Field[0] == sortedSetScore || len(memberOf(item.Field)) <= listpackString && len(item.Value) <= listpackString
}

func fitsIntset(item *store.Item) bool {
	_, ok := parseInt([]byte(memberOf(item.Field)))
	return ok
}

// runObjectRefCount: Redis shares the numbers that it meets most.
func runObjectRefCount(c *Call) error {
	const shared, sharedCount = 10_000, math.MaxInt32
	e, found, err := c.Tx.Entry(c.Key(2))
	if err != nil {
		return err
	}
	n, isInt := parseInt(e.Value)
	switch {
	case !found:
		c.Reply.Null()
	case e.Kind == kindString && isInt && 0 <= n && n < shared:
		c.Reply.Int(sharedCount)
	default:
		c.Reply.Int(1)
	}
	return nil
}

// runObjectIdleTime: when a key was used is not kept.
func runObjectIdleTime(c *Call) error {
	found, err := c.exists(c.Key(2))
	if err != nil {
		return err
	}
	if found {
		c.Reply.Int(0)
	} else {
		c.Reply.Null()
	}
	return nil
}

func runObjectFreq(c *Call) error {
	found, err := c.exists(c.Key(2))
	if err != nil {
		return err
	}
	if found {
		return errNoLFU
	}
	c.Reply.Null()
	return nil
}
