package resp

import (
	"crypto/sha1"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strconv"
	"time"

	"github.com/slotmesh/slotmesh"
	"github.com/slotmesh/slotmesh/resp/rdb"
	"github.com/slotmesh/slotmesh/store"
)

// What tools and tests use to look behind the scenes. None of it harms, so it
// needs no leave.

func debugCommand() Command {
	return Command{Name: "debug", Arity: -2, Flags: AdminFlag | NoScript | Loading | Stale, Conn: debug, Group: "server", Since: "1.0.0", Summary: "Look behind the scenes", Complexity: "Depends on subcommand."}
}

// debugSubcommands are rows of DEBUG alone: COMMAND tells of none of them, as in Redis.
func debugSubcommands() []Command {
	nothing := func(c *Conn, args [][]byte) error { return c.ok(nil) }
	all := Command{Name: "debug", Sub: []Command{
		{Name: "digest-value", Arity: -2, Usage: "<key> [<key> ...]", Summary: "Output a hex signature of the values of all the specified keys.", Conn: debugDigests},
		{Name: "jmap", Arity: -2, Summary: "Nothing.", Conn: nothing},
		{Name: "object", Arity: -3, Usage: "<key>", Summary: "Show low level info about `key` and associated value.", Conn: debugObject},
		{Name: "set-active-expire", Arity: 3, Usage: "<0|1>", Summary: "Accepted: expired keys are removed all the same, and never shown.", Conn: nothing},
		{Name: "sleep", Arity: 3, Usage: "<seconds>", Summary: "Let this connection sleep for <seconds>, the others go on. Decimals allowed.", Conn: debugSleep},
	}}
	return all.withHelp()
}

func debug(c *Conn, args [][]byte) error {
	for _, s := range debugSubcommands() {
		if equalFold(args[1], s.Name) && s.arityOK(len(args)) {
			return s.Conn(c, args)
		}
	}
	return wrongSubcommand("DEBUG", string(cut(args[1], 128)))
}

func debugSleep(c *Conn, args [][]byte) error {
	seconds, _ := strconv.ParseFloat(string(args[2]), 64)
	if seconds > 0 {
		if err := c.park(time.Duration(min(seconds, 1e9)*float64(time.Second)), nil); err != nil {
			return err
		}
	}
	return c.ok(nil)
}

func debugObject(c *Conn, args [][]byte) error {
	key := args[2]
	var head store.Entry
	var found bool
	var size int64
	err := c.peek(key, func(tx *slotmesh.Tx) (err error) {
		if head, found, err = tx.Entry(view(key)); err == nil && found {
			size, err = usage(tx, view(key), &head, usageSamples)
		}
		return err
	})
	switch {
	case err != nil:
		return err
	case !found:
		return errNoSuchKey
	}
	kind := "string"
	if int(head.Kind) < len(kindNames) {
		kind = kindNames[head.Kind]
	}
	c.reply.Simple(fmt.Sprintf("Value at:0x0 refcount:1 encoding:%s serializedlength:%d lru:0 lru_seconds_idle:0", kind, size))
	return nil
}

// debugDigests tells whether two nodes have the same values: redis-cli compares
// before it takes one for the other.
func debugDigests(c *Conn, args [][]byte) error {
	keys := args[2:]
	sums := make([]digest, len(keys))
	for i, k := range keys {
		err := c.peek(k, func(tx *slotmesh.Tx) error { return sums[i].addKey(tx, view(k)) })
		if err != nil {
			return err
		}
	}
	c.reply.Array(len(sums))
	for i := range sums {
		c.reply.Simple(hex.EncodeToString(sums[i][:]))
	}
	return nil
}

// digest is the sum over a value that Redis computes: what has an order is mixed
// in, what has none is added by XOR. A key that is not there has the sum zero.
type digest [sha1.Size]byte

// add adds what has no place among others.
func (d *digest) add(b []byte) {
	sum := sha1.Sum(b)
	for i := range d {
		d[i] ^= sum[i]
	}
}

// mix adds what follows upon what came before.
func (d *digest) mix(b []byte) {
	d.add(b)
	*d = sha1.Sum(d[:])
}

// redisTypes are the numbers of the types in Redis.
var redisTypes = [...]uint32{rdb.String: 0, rdb.List: 1, rdb.Set: 2, rdb.SortedSet: 3, rdb.Hash: 4}

func (d *digest) addKey(tx *slotmesh.Tx, key string) error {
	v, expireAt, found, err := exportValue(tx, key)
	if err != nil || !found {
		return err
	}
	d.mix(binary.BigEndian.AppendUint32(nil, redisTypes[v.Kind]))
	switch v.Kind {
	case rdb.String:
		d.mix(v.String)
	case rdb.List:
		for _, item := range v.List {
			d.mix(item)
		}
	case rdb.Set:
		for _, member := range v.Set {
			d.add(member)
		}
	case rdb.Hash:
		for _, p := range v.Hash {
			d.addPair(p.Field, p.Value)
		}
	case rdb.SortedSet:
		for _, m := range v.SortedSet {
			d.addPair(m.Member, appendDouble(nil, m.Score))
		}
	}
	if expireAt != 0 {
		d.add([]byte("!!expire!!"))
	}
	return nil
}

// addPair adds what has no place among others, and two parts.
func (d *digest) addPair(first, second []byte) {
	var e digest
	e.mix(first)
	e.mix(second)
	d.add(e[:])
}

// ---- MEMORY

func memoryCommand() Command {
	return Command{Name: "memory", Arity: -2, Group: "server", Since: "4.0.0", Summary: "Look at what memory is used for", Complexity: "Depends on subcommand.", Sub: []Command{
		{Name: "doctor", Arity: 2, Summary: "A word on the memory.", Conn: memoryDoctor},
		{Name: "malloc-stats", Arity: 2, Summary: "Nothing: Go allocates.", Conn: memoryMalloc},
		{Name: "purge", Arity: 2, Summary: "Accepted: Go gives memory back by itself.", Conn: memoryPurge},
		{Name: "stats", Arity: 2, Summary: "Figures of the memory.", Conn: memoryStats},
		{Name: "usage", Arity: -3, Usage: "<key> [SAMPLES <count>]", Summary: "About how many bytes a key takes up; of a collection so many members are looked at, 0: all.", Flags: ReadOnly, First: 2, Last: 2, Step: 1, Run: memoryUsage},
	}}
}

func memoryDoctor(c *Conn, args [][]byte) error {
	m := c.server.memory()
	c.reply.Verbatim("txt", fmt.Sprintf("Live objects take up %s, the process %s. Nothing else is watched here.\n", sizeText(m.used), sizeText(m.resident)))
	return nil
}

func memoryMalloc(c *Conn, args [][]byte) error {
	c.reply.Verbatim("txt", "Stats not supported for the current allocator")
	return nil
}

func memoryPurge(c *Conn, args [][]byte) error { return c.ok(nil) }

func memoryStats(c *Conn, args [][]byte) error {
	m := c.server.memory()
	n, err := c.server.countKeys()
	if err != nil {
		return err
	}
	r := &c.reply
	r.Map(5)
	r.BulkString("peak.allocated")
	r.Int(m.peak)
	r.BulkString("total.allocated")
	r.Int(m.used)
	r.BulkString("keys.count")
	r.Int(n)
	r.BulkString("keys.bytes-per-key")
	r.Int(m.used / max(1, n))
	r.BulkString("fragmentation")
	r.Double(float64(m.resident) / float64(max(1, m.used)))
	return nil
}

const (
	usageSamples = 5
	keyOverhead  = 64 // bytes that a key takes up beside its name and value, about
	itemOverhead = 96 // the same for a member of a collection
)

func memoryUsage(c *Call) error {
	samples := int64(usageSamples)
	for i := 3; i < len(c.Args); i++ {
		if !c.Is(i, "samples") || i+1 == len(c.Args) {
			return errSyntax
		}
		var err error
		if samples, err = c.Int(i + 1); err != nil {
			return err
		}
		if samples < 0 {
			return errSyntax
		}
		i++
	}
	key := c.Key(2)
	head, found, err := c.Tx.Entry(key)
	switch {
	case err != nil:
		return err
	case !found:
		c.Reply.Null()
		return nil
	}
	n, err := usage(c.Tx, key, &head, samples)
	if err != nil {
		return err
	}
	c.Reply.Int(n)
	return nil
}

// usage is about how many bytes a key takes up. Of a collection so many members
// are looked at, 0: all, and the others taken to be like them.
func usage(tx *slotmesh.Tx, key string, head *store.Entry, samples int64) (int64, error) {
	total := int64(keyOverhead + len(key) + len(head.Value))
	var members, n int64
	switch head.Kind {
	case kindString:
		return total, nil
	case kindList:
		if len(head.Value) == 16 {
			members = int64(binary.BigEndian.Uint64(head.Value[8:]) - binary.BigEndian.Uint64(head.Value) + 1)
		}
	default:
		members = int64(countOf(head))
	}
	bytes := int64(0)
	count := func(item *store.Item) {
		n++
		bytes += int64(itemOverhead + len(item.Field) + len(item.Value))
	}
	if samples == 0 {
		for item, err := range fieldsFrom(tx, key, "") {
			if err != nil {
				return 0, err
			}
			count(item)
		}
		return total + bytes, nil
	}
	items, _, err := tx.Range(key, "", int(min(samples, keysPage)))
	if err != nil || len(items) == 0 {
		return total, err
	}
	for i := range items {
		count(&items[i])
	}
	if head.Kind == kindSortedSet {
		members *= 2 // each is there by name and by score
	}
	return total + bytes*max(members, n)/n, nil
}
