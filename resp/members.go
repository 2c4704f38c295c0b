package resp

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"strconv"
	"unsafe"

	"github.com/slotmesh/slotmesh/store"
)

// Members of a hash, a set or a sorted set are fields of their key:
//
//	prefix  1 byte   1; 'm' in a sorted set
//	sum     4 bytes  CRC-32 (IEEE) of the name, big-endian
//	name
//
// The store keeps fields in the order of their bytes, so the sum spreads the
// members: whatever their names have in common, a number of 32 bits is a place
// in that order with hardly ever two members beside each other. That is the
// cursor of HSCAN, SSCAN and ZSCAN, and it stays good whatever comes or goes.
// The layout is stored and moves between nodes: it cannot be changed.
const (
	memberPrefix = 1
	scoredPrefix = 'm' // before sortedSetScore, see sortedSet
	namePosition = 5
)

// summedField is the field of a member.
func summedField(prefix byte, name []byte) string {
	b := make([]byte, namePosition+len(name))
	b[0] = prefix
	binary.BigEndian.PutUint32(b[1:], crc32.ChecksumIEEE(name))
	copy(b[namePosition:], name)
	return view(b)
}

// sumOf is the place of a member in the order of a scan.
func sumOf(field string) uint32 {
	return uint32(field[1])<<24 | uint32(field[2])<<16 | uint32(field[3])<<8 | uint32(field[4])
}

// viewBytes is a string as bytes, without a copy. They must not be changed.
func viewBytes(s string) []byte { return unsafe.Slice(unsafe.StringData(s), len(s)) }

// collection is a hash, a set or a sorted set, as its head tells of it. A key
// that is not there is one without members.
type collection struct {
	c     *Call
	key   string
	kind  byte
	head  store.Entry
	count int // members
	saved int // what the head says
}

// collection opens a key. A command that writes hands in a key of its own.
func (c *Call) collection(key string, kind byte) (collection, error) {
	e, found, err := c.head(key, kind)
	k := collection{c: c, key: key, kind: kind, head: e}
	if found {
		k.count = int(countOf(&e))
		k.saved = k.count
	}
	return k, err
}

// created is a collection in place of whatever was under the key.
func (c *Call) created(key string, kind byte) (collection, error) {
	_, found, err := c.Tx.Entry(key)
	if err == nil && found {
		_, err = c.Tx.Delete(key)
	}
	return collection{c: c, key: key, kind: kind}, err
}

func (k *collection) prefix() byte {
	if k.kind == kindSortedSet {
		return scoredPrefix
	}
	return memberPrefix
}

func (k *collection) field(name []byte) string { return summedField(k.prefix(), name) }

// get returns the value of a field.
func (k *collection) get(field string) ([]byte, bool, error) {
	if k.saved == 0 && k.count == 0 {
		return nil, false, nil
	}
	return k.c.Tx.GetField(k.key, field)
}

// put stores the value of a field, and counts it where it is new.
func (k *collection) put(field string, value []byte, isNew bool) error {
	if isNew {
		k.count++
	}
	return k.c.Tx.PutField(k.key, field, value)
}

// remove removes a field that is there.
func (k *collection) remove(field string) error {
	k.count--
	return k.c.Tx.DeleteField(k.key, field)
}

// save makes the head say how many members there are. With the last member the
// key goes.
func (k *collection) save() error {
	if k.count == k.saved {
		return nil
	}
	k.saved = k.count
	return k.c.setCount(k.key, k.kind, &k.head, uint64(k.count))
}

// each calls f with the members until it returns false.
func (k *collection) each(f func(*store.Item) bool) error {
	if k.count == 0 {
		return nil
	}
	return k.eachFrom(string([]byte{k.prefix()}), k.count, f)
}

func (k *collection) eachFrom(from string, expected int, f func(*store.Item) bool) error {
	prefix := k.prefix()
	return k.c.walk(k.key, from, expected, func(it *store.Item) bool {
		return it.Field[0] == prefix && f(it)
	})
}

// reply writes a part of every member, after the header has said how many there
// are.
func (k *collection) reply(f func(*store.Item)) error {
	n := 0
	err := k.each(func(it *store.Item) bool {
		f(it)
		n++
		return n <= k.count // more would run into the next reply
	})
	if err == nil && n != k.count {
		return k.broken(n)
	}
	return err
}

// broken is the error where members and their number do not agree, as after
// changes by other means than commands.
func (k *collection) broken(n int) error {
	return fmt.Errorf("key %.64q has %d members, its head says %d", k.key, n, k.count)
}

// at returns the i-th member in the order of the store.
func (k *collection) at(i int) (store.Item, error) {
	it, found, err := k.c.Tx.At(k.key, i)
	if err == nil && !found {
		err = k.broken(i)
	}
	return it, err
}

const (
	walkPage    = 1024 // fields that are read at a time, at most
	unknownSize = 32   // fields that are read at first where nothing is known of their number
)

// walk calls f with the fields of a key from one on, in order, until it returns
// false. expected is about how many there will be: pages grow where there are
// more.
func (c *Call) walk(key, from string, expected int, f func(*store.Item) bool) error {
	for limit := max(1, min(expected, walkPage)); ; limit = min(4*limit, walkPage) {
		items, more, err := c.Tx.Range(key, from, limit)
		if err != nil {
			return err
		}
		for i := range items {
			if !f(&items[i]) {
				return nil
			}
		}
		if !more {
			return nil
		}
		from = items[len(items)-1].Field + "\x00"
	}
}

// walkBack calls f with the fields of a key before one, the last of them first,
// until it returns false.
func (c *Call) walkBack(key, before string, expected int, f func(*store.Item) bool) error {
	for limit := max(1, min(expected, walkPage)); ; limit = min(4*limit, walkPage) {
		items, more, err := c.Tx.RangeBack(key, before, limit)
		if err != nil {
			return err
		}
		for i := range items {
			if !f(&items[i]) {
				return nil
			}
		}
		if !more {
			return nil
		}
		before = items[len(items)-1].Field
	}
}

// keysBehind finds the keys of a command that says how many there are: in
// argument at, with the keys behind it. Where it does not say it well, they are
// those of the number that it begins with, as for Redis; where there is none,
// count tells what is wrong. The fixed positions are keys too.
func keysBehind(at int, count func(args [][]byte, at int) (int, error), fixed ...int) func([][]byte) ([]int, error) {
	return func(args [][]byte) ([]int, error) {
		if at >= len(args) {
			return nil, errSyntax
		}
		n := keyCount(args[at], len(args)-at-1)
		if n == 0 {
			if _, err := count(args, at); err != nil {
				return nil, err
			}
			return nil, errSyntax
		}
		keys := append(make([]int, 0, n+len(fixed)), fixed...)
		for i := range n {
			keys = append(keys, at+1+i)
		}
		return keys, nil
	}
}

// keyCount is the number of keys that an argument says, up to most; 0: it says
// none. For Redis it need only begin with a number, which C's atoi reads: the
// command refuses it, but after its keys were looked at.
func keyCount(arg []byte, most int) int {
	n := atoi(arg)
	if n < 1 || n > int64(most) {
		return 0
	}
	return int(n)
}

// atoi reads the number with which a text begins, 0 where there is none.
func atoi(text []byte) int64 {
	text = bytes.TrimLeft(text, " \t\n\v\f\r")
	end := 0
	for end < len(text) && (end == 0 && (text[0] == '-' || text[0] == '+') || '0' <= text[end] && text[end] <= '9') {
		end++
	}
	n, _ := strconv.ParseInt(string(text[:end]), 10, 64) // the nearest, where it is too large
	return int64(int32(n))                               // what C's int holds of it
}

// intBetween is argument i as a number within bounds; text is the error where it
// is none, "" the usual one.
func (c *Call) intBetween(i int, low, high int64, text Error) (int64, error) {
	return intBetween(c.Args[i], low, high, text)
}

func intBetween(arg []byte, low, high int64, text Error) (int64, error) {
	n, ok := parseInt(arg)
	switch {
	case text != "" && (!ok || n < low || n > high):
		return 0, text
	case !ok:
		return 0, errNotInteger
	case n < low || n > high:
		return 0, Error(fmt.Sprintf("ERR value is out of range, value must between %d and %d", low, high))
	}
	return n, nil
}
