package store

import (
	"encoding/binary"
	"hash/maphash"
	"math"
	"math/bits"
	"sort"
	"unsafe"

	"github.com/tidwall/btree"
)

// A table holds the keys of one slot: a hash table whose entries stand in an
// array, in the order in which they came, with the buckets' chains threaded
// through it.
//
//	heads   [ 0 | 3 | 1 | 0 ]          a bucket: 1 + the position of its first entry, 0 for none
//	              │   └───────┐
//	entries [ a next=0 | b next=0 | c next=2 ]
//	                      ▲            │
//	                      └────────────┘
//
// A removed entry's place is taken by the last one. That keeps the array dense,
// which gives Len and Scan for nothing. A Go map per slot would need the order
// kept beside it: 176 bytes a key where this takes 105, with a million keys of
// 16 bytes and values of 32, both counted
// (go test -run xxx -bench MemoryPerKey -benchtime 1x ./store).
//
// Growing has two parts, both without a long pause: entries are kept in chunks,
// so none is copied in a large table, and while chains move to a new set of
// heads, each change to the table moves a few of them.
//
// Most slots hold a few keys. Up to smallTable of them there are no buckets, and
// a key is looked for along the array: that is one place in memory less to visit.
type table struct {
	// What a lookup needs comes first: 64 bytes, a cache line.
	tags  [smallTable]uint8 // the smallTag of the entries of a small table, so that one look finds the right one
	heads []uint32          // a power of two of buckets, nil in a small table
	first []entry           // the first chunk, as long as it has to be
	len   int

	seed  maphash.Seed
	rest  []*[chunkSize]entry // the other chunks
	old   []uint32            // the former heads, until every chain has moved to heads; else nil
	moved int                 // buckets of old, from its start, that have moved

	expiring int // keys with a time of expiry
}

const (
	smallTable = 8                  // the most keys that are looked for without buckets
	minHeads   = 2 * smallTable     // the fewest buckets
	chunkSize  = 512                // 20 KiB of entries
	maxKeys    = math.MaxUint32 - 1 // positions are 32 bits, and 0 is taken
	moveStep   = 4                  // buckets moved by a change; 1 would do, as a table doubles at one key a bucket
)

// An entry is one key with its head and fields. Pointers and lengths are kept
// apart, not as strings and slices, so that it fits into 40 bytes. That is sound
// as neither keys nor values are modified after they were handed in.
type entry struct {
	key       *byte
	value     unsafe.Pointer // *byte: the head's value; *collection where hasFields
	expireAt  int64          // of the head
	keyLen    uint32
	valueLen  uint32 // of the head's value
	next      uint32 // the next entry of the bucket's chain, as in heads
	tag       uint8  // bits of the hash that choose no bucket: unequal tags spare a look at the key
	kind      byte   // of the head
	hasHead   bool
	hasFields bool
}

// A collection is the part of an entry that only keys with fields pay for.
type collection struct {
	head   *byte // the head's value
	fields btree.Map[string, string]
}

func newTable(seed maphash.Seed) *table {
	return &table{seed: seed}
}

// large reports whether the table is worth giving back once it is empty.
func (t *table) large() bool { return t.heads != nil }

func (t *table) hash(key string) uint64 { return maphash.String(t.seed, key) }

// find returns the entry of a key, or nil. It is valid until the next change.
func (t *table) find(key string) *entry {
	if t.heads == nil {
		_, e := t.lookAlong(key)
		return e
	}
	_, e := t.lookup(key, t.hash(key))
	return e
}

// collectionOf returns the entry of a key that has fields, or nil.
func (t *table) collectionOf(key string) *entry {
	if t == nil {
		return nil
	}
	if e := t.find(key); e != nil && e.hasFields {
		return e
	}
	return nil
}

// lookup returns the entry of a key and its position, or nil.
func (t *table) lookup(key string, hash uint64) (int, *entry) {
	if t.heads == nil {
		return t.lookAlong(key)
	}
	i, e := t.lookInChain(t.heads, key, hash)
	if e == nil && t.old != nil {
		i, e = t.lookInChain(t.old, key, hash)
	}
	return i, e
}

func (t *table) lookAlong(key string) (int, *entry) {
	tag := smallTag(key)
	for i := range t.first {
		if t.tags[i&(smallTable-1)] == tag && t.first[i].name() == key {
			return i, &t.first[i]
		}
	}
	return 0, nil
}

func (t *table) lookInChain(heads []uint32, key string, hash uint64) (int, *entry) {
	for ref := heads[hash&uint64(len(heads)-1)]; ref != 0; {
		i := int(ref - 1)
		e := t.at(i)
		if e.is(key, hash) {
			return i, e
		}
		ref = e.next
	}
	return 0, nil
}

// at returns the entry at a position, 0 to len-1.
func (t *table) at(i int) *entry {
	if i < chunkSize {
		return &t.first[i]
	}
	return &t.rest[i/chunkSize-1][i%chunkSize]
}

// put obeys an OpPut.
func (t *table) put(op *Op) {
	hash := t.hash(op.Key)
	_, e := t.lookup(op.Key, hash)
	if e == nil {
		e = t.insert(op.Key, hash)
	}
	if op.Field == "" {
		t.expiring += expires(op.ExpireAt) - expires(e.expireAt)
		e.setHead(op.Value, op.Kind, op.ExpireAt)
	} else {
		e.setField(op.Field, op.Value)
	}
}

// expires is 1 where there is a time of expiry, to be counted.
func expires(at int64) int {
	if at != 0 {
		return 1
	}
	return 0
}

// removeField obeys an OpDelete. The key goes with its last entry.
func (t *table) removeField(key, field string) {
	_, e := t.lookup(key, t.hash(key))
	switch {
	case e == nil:
		return
	case field == "":
		t.expiring -= expires(e.expireAt)
		e.clearHead()
	default:
		e.clearField(field)
	}
	if !e.hasHead && !e.hasFields {
		t.remove(key)
	}
}

// insert adds an entry without head and fields.
func (t *table) insert(key string, hash uint64) *entry {
	if t.len >= max(len(t.heads), smallTable) {
		t.resize(2 * t.len)
	}
	t.move(moveStep)
	i := t.extend()
	e := t.at(i)
	e.key, e.keyLen, e.tag = unsafe.StringData(key), uint32(len(key)), tagOf(hash)
	t.link(i, hash)
	return e
}

// remove removes a key with all its entries.
func (t *table) remove(key string) {
	hash := t.hash(key)
	i, e := t.lookup(key, hash)
	if e == nil {
		return
	}
	t.expiring -= expires(e.expireAt)
	last := t.len - 1
	if t.heads == nil {
		t.tags[i] = t.tags[last]
	} else {
		*t.linkTo(i, hash) = e.next
		if i != last {
			*t.linkTo(last, t.hash(t.at(last).name())) = uint32(i + 1)
		}
	}
	*e = *t.at(last)
	t.shorten()
	if len(t.heads) > minHeads && t.len < len(t.heads)/8 {
		t.resize(len(t.heads) / 4)
	}
	t.move(moveStep)
}

// link puts the entry at position i, whose key has this hash, into its chain.
func (t *table) link(i int, hash uint64) {
	if t.heads == nil {
		t.tags[i] = smallTag(t.at(i).name())
		return
	}
	head := &t.heads[hash&uint64(len(t.heads)-1)]
	t.at(i).next = *head
	*head = uint32(i + 1)
}

// linkTo returns the place that refers to the entry at position i, whose key
// has this hash: a head, or the next of another entry.
func (t *table) linkTo(i int, hash uint64) *uint32 {
	for _, heads := range [2][]uint32{t.heads, t.old} {
		if heads == nil {
			continue
		}
		for ref := &heads[hash&uint64(len(heads)-1)]; *ref != 0; ref = &t.at(int(*ref - 1)).next {
			if *ref == uint32(i+1) {
				return ref
			}
		}
	}
	panic("store: an entry is in no chain")
}

// resize begins to move the chains to another number of buckets, at least n.
// Where a move is under way it does nothing, and chains are longer for a while.
func (t *table) resize(n int) {
	if t.old != nil {
		return
	}
	small := t.heads == nil
	t.old, t.moved, t.heads = t.heads, 0, make([]uint32, 1<<bits.Len(uint(max(n, minHeads)-1)))
	if small {
		for i := range t.first {
			t.link(i, t.hash(t.first[i].name()))
		}
	}
	if len(t.old) <= chunkSize {
		t.move(len(t.old)) // so few that it is over before anybody waits
	}
}

// move moves the chains of up to n buckets to the new heads.
func (t *table) move(n int) {
	if t.old == nil {
		return
	}
	for end := min(t.moved+n, len(t.old)); t.moved < end; t.moved++ {
		ref := t.old[t.moved]
		t.old[t.moved] = 0
		for ref != 0 {
			i := int(ref - 1)
			e := t.at(i)
			ref = e.next
			t.link(i, t.hash(e.name()))
		}
	}
	if t.moved == len(t.old) {
		t.old = nil
	}
}

// extend adds an empty entry at the end of the array and returns its position.
func (t *table) extend() int {
	i := t.len
	switch {
	case i < chunkSize:
		if i == cap(t.first) {
			t.first = resized(t.first, min(i+i/4+2, chunkSize)) // little slack: there may be 16384 tables
		}
		t.first = t.first[:i+1]
	case i/chunkSize > len(t.rest):
		t.rest = append(t.rest, new([chunkSize]entry))
	}
	t.len++
	return i
}

// shorten takes the last entry off the array. An empty chunk is kept until half
// of the one before is empty too, for lengths that go up and down around a full one.
func (t *table) shorten() {
	t.len--
	*t.at(t.len) = entry{}
	if t.len < chunkSize {
		t.first = t.first[:t.len]
		if t.len > smallTable && t.len < cap(t.first)/4 {
			t.first = resized(t.first, cap(t.first)/2)
		}
	}
	if keep := (t.len + chunkSize/2) / chunkSize; len(t.rest) > keep {
		t.rest[keep] = nil
		t.rest = t.rest[:keep]
	}
}

// resized returns a copy of the entries in an array of another size.
func resized(entries []entry, size int) []entry {
	return append(make([]entry, 0, size), entries...)
}

// is reports whether the entry is the one of a key.
func (e *entry) is(key string, hash uint64) bool {
	return e.tag == tagOf(hash) && e.name() == key
}

// smallTag is the tag of a key in a small table. It costs less than a hash, and looks at
// the end of the key alone: anybody may choose keys that share it, of which there are
// eight at most, to be compared one after the other.
func smallTag(key string) uint8 {
	var w uint64
	if n := len(key); n >= 8 {
		w = binary.LittleEndian.Uint64(unsafe.Slice(unsafe.StringData(key[n-8:]), 8))
	} else {
		for i := range n {
			w = w<<8 | uint64(key[i])
		}
	}
	return uint8(w * 0x9E3779B97F4A7C15 >> 56) // the upper bits of the product depend on all bytes
}

func tagOf(hash uint64) uint8 { return uint8(hash >> 56) }

// name returns the key.
func (e *entry) name() string { return unsafe.String(e.key, e.keyLen) }

// head returns the head, where hasHead says that there is one.
func (e *entry) head() Entry {
	value, kind, at := e.headParts()
	return Entry{Value: value, Kind: kind, ExpireAt: at}
}

// headParts is head in parts.
func (e *entry) headParts() (value []byte, kind byte, expireAt int64) {
	return unsafe.Slice(e.headValue(), e.valueLen), e.kind, e.expireAt
}

func (e *entry) headValue() *byte {
	if e.hasFields {
		return e.collection().head
	}
	return (*byte)(e.value)
}

// collection returns what value points to where hasFields is set.
func (e *entry) collection() *collection { return (*collection)(e.value) }

func (e *entry) setHead(value []byte, kind byte, expireAt int64) {
	e.hasHead, e.kind, e.expireAt, e.valueLen = true, kind, expireAt, uint32(len(value))
	if e.hasFields {
		e.collection().head = dataOf(value)
	} else {
		e.value = unsafe.Pointer(dataOf(value))
	}
}

func (e *entry) clearHead() {
	e.setHead(nil, 0, 0)
	e.hasHead = false
}

// field returns the value of a field that is not the head.
func (e *entry) field(name string) ([]byte, bool) {
	if !e.hasFields {
		return nil, false
	}
	value, ok := e.collection().fields.Get(name)
	return bytesOf(value), ok
}

func (e *entry) setField(name string, value []byte) {
	if !e.hasFields {
		e.value, e.hasFields = unsafe.Pointer(&collection{head: (*byte)(e.value)}), true
	}
	e.collection().fields.Set(name, unsafe.String(dataOf(value), len(value)))
}

// clearField removes a field. With its last field a key becomes plain again.
func (e *entry) clearField(name string) {
	if !e.hasFields {
		return
	}
	c := e.collection()
	c.fields.Delete(name)
	if c.fields.Len() == 0 {
		e.value, e.hasFields = unsafe.Pointer(c.head), false
	}
}

// first returns the head, or the smallest field of a key without one.
func (e *entry) first() Item {
	if e.hasHead {
		return Item{Key: e.name(), Entry: e.head()}
	}
	field, value, _ := e.collection().fields.Min()
	return Item{Key: e.name(), Field: field, Entry: Entry{Value: bytesOf(value)}}
}

// items returns up to limit items of the key, from a field on, and whether
// there are more.
func (e *entry) items(from string, limit int) (items []Item, more bool) {
	items = make([]Item, 0, min(limit, e.len(), pageSize))
	if from == "" && e.hasHead {
		items = append(items, e.first())
	}
	if !e.hasFields {
		return items, false
	}
	e.collection().fields.Ascend(from, func(field, value string) bool {
		if more = len(items) == limit; more {
			return false
		}
		items = append(items, Item{Key: e.name(), Field: field, Entry: Entry{Value: bytesOf(value)}})
		return true
	})
	return items, more
}

// itemsBack returns up to limit fields of the key that come before one, in
// descending order, and whether there are more.
func (e *entry) itemsBack(before string, limit int) (items []Item, more bool) {
	items = make([]Item, 0, min(limit, e.len(), pageSize))
	take := func(field, value string) bool {
		if before != "" && field >= before {
			return true
		}
		if more = len(items) == limit; more {
			return false
		}
		items = append(items, Item{Key: e.name(), Field: field, Entry: Entry{Value: bytesOf(value)}})
		return true
	}
	if before == "" {
		e.collection().fields.Reverse(take)
	} else {
		e.collection().fields.Descend(before, take)
	}
	return items, more
}

// rank returns how many fields come before one. The tree finds the field at a
// place and not the place of a field: so it is looked for between places.
func (c *collection) rank(field string) int {
	return sort.Search(c.fields.Len(), func(i int) bool {
		at, _, _ := c.fields.GetAt(i)
		return at >= field
	})
}

// len returns the number of entries of the key.
func (e *entry) len() int {
	n := 0
	if e.hasHead {
		n++
	}
	if e.hasFields {
		n += e.collection().fields.Len()
	}
	return n
}

// bytesOf returns the bytes that were stored as a string: 8 bytes less per
// field, and sound as nobody modifies a value.
func bytesOf(value string) []byte {
	return unsafe.Slice(unsafe.StringData(value), len(value))
}

// dataOf returns where a value is, nil for an empty one: a slice of length 0
// may still keep a large array alive.
func dataOf(value []byte) *byte {
	if len(value) == 0 {
		return nil
	}
	return unsafe.SliceData(value)
}
