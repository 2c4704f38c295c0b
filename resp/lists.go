package resp

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/slotmesh/slotmesh/store"
)

// A list's items are fields of 8 bytes, their index in big-endian, so that the
// store keeps them in the order of the list. The head says the first index and
// the last, 8 bytes each. There are no gaps: an item at a place is found without
// a walk. A list begins in the middle of the indexes and grows to both sides,
// and would have to grow by one every nanosecond for 292 years to come to an end.

func listCommands() []Command {
	return []Command{
		{
			Name: "lpush", Arity: -3, Flags: Write | DenyOOM | Fast, First: 1, Last: 1, Step: 1,
			Run: runLPush, Group: "list", Since: "1.0.0",
			Summary:    "Prepend one or multiple elements to a list",
			Complexity: "O(1) for each element added, so O(N) to add N elements when the command is called with multiple arguments.",
		},
		{
			Name: "rpush", Arity: -3, Flags: Write | DenyOOM | Fast, First: 1, Last: 1, Step: 1,
			Run: runRPush, Group: "list", Since: "1.0.0",
			Summary:    "Append one or multiple elements to a list",
			Complexity: "O(1) for each element added, so O(N) to add N elements when the command is called with multiple arguments.",
		},
		{
			Name: "lpushx", Arity: -3, Flags: Write | DenyOOM | Fast, First: 1, Last: 1, Step: 1,
			Run: runLPushX, Group: "list", Since: "2.2.0",
			Summary:    "Prepend an element to a list, only if the list exists",
			Complexity: "O(1) for each element added, so O(N) to add N elements when the command is called with multiple arguments.",
		},
		{
			Name: "rpushx", Arity: -3, Flags: Write | DenyOOM | Fast, First: 1, Last: 1, Step: 1,
			Run: runRPushX, Group: "list", Since: "2.2.0",
			Summary:    "Append an element to a list, only if the list exists",
			Complexity: "O(1) for each element added, so O(N) to add N elements when the command is called with multiple arguments.",
		},
		{
			Name: "lpop", Arity: -2, Flags: Write | Fast, First: 1, Last: 1, Step: 1,
			Run: runLPop, Group: "list", Since: "1.0.0",
			Summary:    "Remove and get the first elements in a list",
			Complexity: "O(N) where N is the number of elements returned",
		},
		{
			Name: "rpop", Arity: -2, Flags: Write | Fast, First: 1, Last: 1, Step: 1,
			Run: runRPop, Group: "list", Since: "1.0.0",
			Summary:    "Remove and get the last elements in a list",
			Complexity: "O(N) where N is the number of elements returned",
		},
		{
			Name: "llen", Arity: 2, Flags: ReadOnly | Fast, First: 1, Last: 1, Step: 1,
			Run: runLLen, Group: "list", Since: "1.0.0",
			Summary:    "Get the length of a list",
			Complexity: "O(1)",
		},
		{
			Name: "lindex", Arity: 3, Flags: ReadOnly, First: 1, Last: 1, Step: 1,
			Run: runLIndex, Group: "list", Since: "1.0.0",
			Summary:    "Get an element from a list by its index",
			Complexity: "O(N) where N is the number of elements to traverse to get to the element at index. This makes asking for the first or the last element of the list O(1).",
		},
		{
			Name: "lset", Arity: 4, Flags: Write | DenyOOM, First: 1, Last: 1, Step: 1,
			Run: runLSet, Group: "list", Since: "1.0.0",
			Summary:    "Set the value of an element in a list by its index",
			Complexity: "O(N) where N is the length of the list. Setting either the first or the last element of the list is O(1).",
		},
		{
			Name: "lrange", Arity: 4, Flags: ReadOnly, First: 1, Last: 1, Step: 1,
			Run: runLRange, Group: "list", Since: "1.0.0",
			Summary:    "Get a range of elements from a list",
			Complexity: "O(S+N) where S is the distance of start offset from HEAD for small lists, from nearest end (HEAD or TAIL) for large lists; and N is the number of elements in the specified range.",
		},
		{
			Name: "ltrim", Arity: 4, Flags: Write, First: 1, Last: 1, Step: 1,
			Run: runLTrim, Group: "list", Since: "1.0.0",
			Summary:    "Trim a list to the specified range",
			Complexity: "O(N) where N is the number of elements to be removed by the operation.",
		},
		{
			Name: "linsert", Arity: 5, Flags: Write | DenyOOM, First: 1, Last: 1, Step: 1,
			Run: runLInsert, Group: "list", Since: "2.2.0",
			Summary:    "Insert an element before or after another element in a list",
			Complexity: "O(N) where N is the number of elements to traverse before seeing the value pivot. This means that inserting somewhere on the left end on the list (head) can be considered O(1) and inserting somewhere on the right end (tail) is O(N).",
		},
		{
			Name: "lrem", Arity: 4, Flags: Write, First: 1, Last: 1, Step: 1,
			Run: runLRem, Group: "list", Since: "1.0.0",
			Summary:    "Remove elements from a list",
			Complexity: "O(N+M) where N is the length of the list and M is the number of elements removed.",
		},
		{
			Name: "lpos", Arity: -3, Flags: ReadOnly, First: 1, Last: 1, Step: 1,
			Run: runLPos, Group: "list", Since: "6.0.6",
			Summary:    "Return the index of matching elements on a list",
			Complexity: "O(N) where N is the number of elements in the list, for the average case. When searching for elements near the head or the tail of the list, or when the MAXLEN option is provided, the command may run in constant time.",
		},
		{
			Name: "lmove", Arity: 5, Flags: Write | DenyOOM, First: 1, Last: 2, Step: 1,
			Run: runLMove, Group: "list", Since: "6.2.0",
			Summary:    "Pop an element from a list, push it to another list and return it",
			Complexity: "O(1)",
		},
		{
			Name: "rpoplpush", Arity: 3, Flags: Write | DenyOOM, First: 1, Last: 2, Step: 1,
			Run: runRPopLPush, Group: "list", Since: "1.2.0",
			Summary:    "Remove the last element in a list, prepend it to another list and return it",
			Complexity: "O(1)",
		},
		{
			Name: "lmpop", Arity: -4, Flags: Write | MovableKeys, Keys: keysBehind(1, popCount),
			Run: runLMPop, Group: "list", Since: "7.0.0",
			Summary:    "Pop elements from a list",
			Complexity: "O(N+M) where N is the number of provided keys and M is the number of elements returned.",
		},
		{
			Name: "blpop", Arity: -3, Flags: Write | NoScript | Blocking, First: 1, Last: -2, Step: 1,
			Run: runBLPop, Group: "list", Since: "2.0.0",
			Summary:    "Remove and get the first element in a list, or block until one is available",
			Complexity: "O(N) where N is the number of provided keys.",
		},
		{
			Name: "brpop", Arity: -3, Flags: Write | NoScript | Blocking, First: 1, Last: -2, Step: 1,
			Run: runBRPop, Group: "list", Since: "2.0.0",
			Summary:    "Remove and get the last element in a list, or block until one is available",
			Complexity: "O(N) where N is the number of provided keys.",
		},
		{
			Name: "blmove", Arity: 6, Flags: Write | DenyOOM | NoScript | Blocking, First: 1, Last: 2, Step: 1,
			Run: runBLMove, Group: "list", Since: "6.2.0",
			Summary:    "Pop an element from a list, push it to another list and return it; or block until one is available",
			Complexity: "O(1)",
		},
		{
			Name: "brpoplpush", Arity: 4, Flags: Write | DenyOOM | NoScript | Blocking, First: 1, Last: 2, Step: 1,
			Run: runBRPopLPush, Group: "list", Since: "2.2.0",
			Summary:    "Pop an element from a list, push it to another list and return it; or block until one is available",
			Complexity: "O(1)",
		},
		{
			Name: "blmpop", Arity: -5, Flags: Write | Blocking | MovableKeys, Keys: keysBehind(2, popCount),
			Run: runBLMPop, Group: "list", Since: "7.0.0",
			Summary:    "Pop elements from a list, or block until one is available",
			Complexity: "O(N+M) where N is the number of provided keys and M is the number of elements returned.",
		},
	}
}

const (
	errRankZero      Error = "ERR RANK can't be zero: use 1 to start from the first match, 2 from the second ... or use negative to start from the end of the list"
	errNegativeCount Error = "ERR COUNT can't be negative"
	errNegativeMax   Error = "ERR MAXLEN can't be negative"
	errCountZero     Error = "ERR count should be greater than 0"
)

// list is a list as its head tells of it. A key that is not there is one without
// items.
type list struct {
	c           *Call
	key         string
	head        store.Entry
	found       bool
	first, next uint64 // the index of the first item, and the one behind the last
}

const listMiddle = 1 << 63

// list opens a key. A command that writes hands in a key of its own.
func (c *Call) list(key string) (list, error) {
	e, found, err := c.head(key, kindList)
	l := list{c: c, key: key, head: e, found: found, first: listMiddle, next: listMiddle}
	if found && len(e.Value) == 16 {
		l.first = binary.BigEndian.Uint64(e.Value)
		l.next = binary.BigEndian.Uint64(e.Value[8:]) + 1
	}
	return l, err
}

// indexField is the field of the item of an index.
func indexField(index uint64) string {
	return view(binary.BigEndian.AppendUint64(make([]byte, 0, 8), index))
}

func (l *list) len() int { return int(l.next - l.first) }

// at returns the item at a place, from 0.
func (l *list) at(i int) ([]byte, error) {
	v, _, err := l.c.Tx.GetField(l.key, indexField(l.first+uint64(i)))
	return v, err
}

// each calls f with the items from a place on, n of them, until it returns false.
func (l *list) each(from, n int, f func(i int, value []byte) bool) error {
	if n <= 0 {
		return nil
	}
	i, end := from, from+n
	return l.c.walk(l.key, indexField(l.first+uint64(from)), n, func(it *store.Item) bool {
		ok := f(i, it.Value)
		i++
		return ok && i < end
	})
}

// eachBack calls f with the items from a place down, n of them, until it returns
// false.
func (l *list) eachBack(from, n int, f func(i int, value []byte) bool) error {
	if n <= 0 {
		return nil
	}
	i, end := from, from-n
	return l.c.walkBack(l.key, indexField(l.first+uint64(from)+1), n, func(it *store.Item) bool {
		ok := f(i, it.Value)
		i--
		return ok && i > end
	})
}

// values returns n items from a place on.
func (l *list) values(from, n int) ([][]byte, error) {
	values := make([][]byte, 0, max(n, 0))
	err := l.each(from, n, func(_ int, v []byte) bool {
		values = append(values, v)
		return true
	})
	return values, err
}

// set stores the item at a place that the list has.
func (l *list) set(i int, value []byte) error {
	return l.c.Tx.PutField(l.key, indexField(l.first+uint64(i)), value)
}

// push adds an item at an end.
func (l *list) push(left bool, value []byte) error {
	if left {
		l.first--
		return l.set(0, value)
	}
	l.next++
	return l.set(l.len()-1, value)
}

// save makes the head say where the list begins and ends. One without items has
// gone already, see keep.
func (l *list) save() error {
	if l.len() == 0 {
		return nil
	}
	value := binary.BigEndian.AppendUint64(make([]byte, 0, 16), l.first)
	value = binary.BigEndian.AppendUint64(value, l.next-1)
	return l.c.Tx.PutEntry(l.key, store.Entry{Kind: kindList, ExpireAt: l.head.ExpireAt, Value: value})
}

// pop takes the item at an end away from a list that has some.
func (l *list) pop(left bool) ([]byte, error) {
	values, err := l.popN(left, 1)
	if err != nil || len(values) == 0 {
		return nil, err
	}
	return values[0], nil
}

// popN takes up to n items away, the one at the end first.
func (l *list) popN(left bool, n int) ([][]byte, error) {
	n = min(n, l.len())
	from, rest := 0, n
	if !left {
		from, rest = l.len()-n, 0
	}
	values, err := l.values(from, n)
	if err != nil {
		return nil, err
	}
	if !left {
		slices.Reverse(values)
	}
	return values, l.keep(rest, l.len()-n)
}

// keep removes all but n items from a place on. It takes as many changes as
// items go, or as items stay where those are fewer.
func (l *list) keep(from, n int) error {
	switch gone := l.len() - n; {
	case n == 0:
		l.first, l.next = listMiddle, listMiddle
		_, err := l.c.Tx.Delete(l.key)
		return err
	case gone > n:
		return l.rewrite(from, n)
	}
	old := *l
	l.first += uint64(from)
	l.next = l.first + uint64(n)
	if err := old.deleteFields(old.first, l.first); err != nil {
		return err
	}
	return old.deleteFields(l.next, old.next)
}

// deleteFields removes the fields of the indexes from one up to another.
func (l *list) deleteFields(from, to uint64) error {
	for i := from; i < to; i++ {
		if err := l.c.Tx.DeleteField(l.key, indexField(i)); err != nil {
			return err
		}
	}
	return nil
}

// rewrite removes the key and stores the items that stay anew.
func (l *list) rewrite(from, n int) error {
	values, err := l.values(from, n)
	if err != nil {
		return err
	}
	if _, err := l.c.Tx.Delete(l.key); err != nil {
		return err
	}
	l.first += uint64(from)
	l.next = l.first + uint64(n)
	return l.setAll(0, values)
}

// setAll stores items from a place on.
func (l *list) setAll(from int, values [][]byte) error {
	for i, v := range values {
		if err := l.set(from+i, v); err != nil {
			return err
		}
	}
	return nil
}

// insert adds an item at a place. The shorter side makes room.
func (l *list) insert(at int, value []byte) error {
	if at <= l.len()/2 {
		left, err := l.values(0, at)
		if err != nil {
			return err
		}
		l.first--
		return l.setAll(0, append(left, value))
	}
	right, err := l.values(at, l.len()-at)
	if err != nil {
		return err
	}
	l.next++
	return l.setAll(at, append([][]byte{value}, right...))
}

// removeAt removes the items at some places, in ascending order. The longest run
// of items between two of them stays where it is, and the others close up to it.
func (l *list) removeAt(places []int) error {
	if len(places) == l.len() {
		return l.keep(0, 0)
	}
	from, n := longestRun(places, l.len())
	left, err := l.valuesWithout(0, from, places)
	if err != nil {
		return err
	}
	right, err := l.valuesWithout(from+n, l.len()-from-n, places)
	if err != nil {
		return err
	}
	if err := l.setAll(from-len(left), left); err != nil {
		return err
	}
	if err := l.setAll(from+n, right); err != nil {
		return err
	}
	return l.keep(from-len(left), len(left)+n+len(right))
}

// longestRun is where the longest run of places below end begins that has none
// of the given ones in it, and its length.
func longestRun(places []int, end int) (from, n int) {
	start := 0
	for i := 0; i <= len(places); i++ {
		stop := end
		if i < len(places) {
			stop = places[i]
		}
		if stop-start > n {
			from, n = start, stop-start
		}
		start = stop + 1
	}
	return from, n
}

// valuesWithout is values without those at some places.
func (l *list) valuesWithout(from, n int, places []int) ([][]byte, error) {
	var values [][]byte
	next, _ := slices.BinarySearch(places, from)
	err := l.each(from, n, func(i int, v []byte) bool {
		if next < len(places) && places[next] == i {
			next++
		} else {
			values = append(values, v)
		}
		return true
	})
	return values, err
}

// span is the part of n items that start and stop name, which count from the end
// where they are negative: its first place and its length, 0 where there is none.
func span(start, stop int64, n int) (from, length int) {
	size := int64(n)
	if start < 0 {
		start = max(0, start+size)
	}
	if stop < 0 {
		stop += size
	}
	stop = min(stop, size-1)
	if start > stop {
		return 0, 0
	}
	return int(start), int(stop - start + 1)
}

// place is the place of an index that counts from the end where it is negative.
func (l *list) place(index int64) (int, bool) {
	if index < 0 {
		index += int64(l.len())
	}
	return int(index), index >= 0 && index < int64(l.len())
}

func runLPush(c *Call) error  { return pushItems(c, true, true) }
func runRPush(c *Call) error  { return pushItems(c, false, true) }
func runLPushX(c *Call) error { return pushItems(c, true, false) }
func runRPushX(c *Call) error { return pushItems(c, false, false) }

// pushItems adds items at an end; create says whether a list that is not there is
// made.
func pushItems(c *Call, left, create bool) error {
	l, err := c.list(c.Own(1))
	if err != nil {
		return err
	}
	if !l.found && !create {
		c.Reply.Int(0)
		return nil
	}
	for _, v := range c.Args[2:] {
		if err := l.push(left, bytes.Clone(v)); err != nil {
			return err
		}
	}
	if err := l.save(); err != nil {
		return err
	}
	c.Reply.Int(int64(l.len()))
	return nil
}

func runLPop(c *Call) error { return popItems(c, true) }
func runRPop(c *Call) error { return popItems(c, false) }

func popItems(c *Call, left bool) error {
	if len(c.Args) > 3 {
		return wrongArity(c.command)
	}
	if len(c.Args) == 3 {
		return popCounted(c, left)
	}
	l, err := c.list(c.Own(1))
	if err != nil {
		return err
	}
	if !l.found {
		c.Reply.Null()
		return nil
	}
	value, err := l.pop(left)
	if err != nil {
		return err
	}
	if err := l.save(); err != nil {
		return err
	}
	c.Reply.Bulk(value)
	return nil
}

func popCounted(c *Call, left bool) error {
	count, err := c.intBetween(2, 0, math.MaxInt64, errNotPositive)
	if err != nil {
		return err
	}
	l, err := c.list(c.Own(1))
	switch {
	case err != nil:
		return err
	case !l.found:
		c.Reply.NullArray()
		return nil
	case count == 0:
		c.Reply.Array(0)
		return nil
	}
	values, err := l.popN(left, int(min(count, int64(l.len()))))
	if err != nil {
		return err
	}
	if err := l.save(); err != nil {
		return err
	}
	c.bulks(values)
	return nil
}

func (c *Call) bulks(values [][]byte) {
	c.Reply.Array(len(values))
	for _, v := range values {
		c.Reply.Bulk(v)
	}
}

func runLLen(c *Call) error {
	l, err := c.list(c.Key(1))
	if err != nil {
		return err
	}
	c.Reply.Int(int64(l.len()))
	return nil
}

func runLIndex(c *Call) error {
	l, err := c.list(c.Key(1))
	if err != nil {
		return err
	}
	if !l.found {
		c.Reply.Null()
		return nil
	}
	index, err := c.Int(2)
	if err != nil {
		return err
	}
	i, ok := l.place(index)
	if !ok {
		c.Reply.Null()
		return nil
	}
	value, err := l.at(i)
	if err != nil {
		return err
	}
	c.Reply.Bulk(value)
	return nil
}

func runLSet(c *Call) error {
	l, err := c.list(c.Own(1))
	if err != nil {
		return err
	}
	if !l.found {
		return errNoSuchKey
	}
	index, err := c.Int(2)
	if err != nil {
		return err
	}
	i, ok := l.place(index)
	if !ok {
		return errOutOfRange
	}
	if err := l.set(i, bytes.Clone(c.Args[3])); err != nil {
		return err
	}
	c.Reply.Simple("OK")
	return nil
}

// bounds are arguments i and i+1, the ends of a range.
func (c *Call) bounds(i int) (start, stop int64, err error) {
	if start, err = c.Int(i); err != nil {
		return 0, 0, err
	}
	stop, err = c.Int(i + 1)
	return start, stop, err
}

func runLRange(c *Call) error {
	start, stop, err := c.bounds(2)
	if err != nil {
		return err
	}
	l, err := c.list(c.Key(1))
	if err != nil {
		return err
	}
	from, n := span(start, stop, l.len())
	c.Reply.Array(n)
	err = l.each(from, n, func(_ int, v []byte) bool {
		c.Reply.Bulk(v)
		n--
		return true
	})
	if err == nil && n != 0 {
		return fmt.Errorf("list %.64q lacks %d of the items that its head tells of", l.key, n)
	}
	return err
}

func runLTrim(c *Call) error {
	start, stop, err := c.bounds(2)
	if err != nil {
		return err
	}
	l, err := c.list(c.Own(1))
	if err != nil {
		return err
	}
	if from, n := span(start, stop, l.len()); n < l.len() {
		if err := l.keep(from, n); err != nil {
			return err
		}
		if err := l.save(); err != nil {
			return err
		}
	}
	c.Reply.Simple("OK")
	return nil
}

func runLInsert(c *Call) error {
	behind := c.Is(2, "after")
	if !behind && !c.Is(2, "before") {
		return errSyntax
	}
	l, err := c.list(c.Own(1))
	if err != nil {
		return err
	}
	if !l.found {
		c.Reply.Int(0)
		return nil
	}
	at, err := l.find(c.Args[3])
	if err != nil {
		return err
	}
	if at < 0 {
		c.Reply.Int(-1)
		return nil
	}
	if behind {
		at++
	}
	if err := l.insert(at, bytes.Clone(c.Args[4])); err != nil {
		return err
	}
	if err := l.save(); err != nil {
		return err
	}
	c.Reply.Int(int64(l.len()))
	return nil
}

// find is the first place of a value, -1 where there is none.
func (l *list) find(value []byte) (int, error) {
	at := -1
	err := l.each(0, l.len(), func(i int, v []byte) bool {
		if bytes.Equal(v, value) {
			at = i
		}
		return at < 0
	})
	return at, err
}

func runLRem(c *Call) error {
	count, err := c.Int(2)
	if err != nil {
		return err
	}
	l, err := c.list(c.Own(1))
	if err != nil {
		return err
	}
	places, err := l.findAll(c.Args[3], count)
	if err != nil {
		return err
	}
	if len(places) > 0 {
		if err := l.removeAt(places); err != nil {
			return err
		}
		if err := l.save(); err != nil {
			return err
		}
	}
	c.Reply.Int(int64(len(places)))
	return nil
}

// findAll is the places of a value in ascending order: the first count ones, the
// last -count ones, or all for 0.
func (l *list) findAll(value []byte, count int64) (places []int, err error) {
	note := func(i int, v []byte) bool {
		if bytes.Equal(v, value) {
			places = append(places, i)
		}
		return count == 0 || int64(len(places)) < max(count, -count) || count == math.MinInt64
	}
	if count >= 0 {
		err = l.each(0, l.len(), note)
		return places, err
	}
	err = l.eachBack(l.len()-1, l.len(), note)
	slices.Reverse(places)
	return places, err
}

// posOptions are those of LPOS.
type posOptions struct {
	rank  int64
	count int64 // -1: one, and not in an array
	max   int64 // comparisons; 0: all
}

func parsePos(args [][]byte) (posOptions, error) {
	o := posOptions{rank: 1, count: -1}
	for i := 3; i < len(args); i += 2 {
		if i+1 == len(args) {
			return o, errSyntax
		}
		var err error
		switch value := args[i+1]; {
		case equalFold(args[i], "rank"):
			if o.rank, err = parseLong(value); err == nil && o.rank == 0 {
				err = errRankZero
			}
		case equalFold(args[i], "count"):
			o.count, err = intBetween(value, 0, math.MaxInt64, errNegativeCount)
		case equalFold(args[i], "maxlen"):
			o.max, err = intBetween(value, 0, math.MaxInt64, errNegativeMax)
		default:
			err = errSyntax
		}
		if err != nil {
			return o, err
		}
	}
	return o, nil
}

func runLPos(c *Call) error {
	o, err := parsePos(c.Args)
	if err != nil {
		return err
	}
	l, err := c.list(c.Key(1))
	if err != nil {
		return err
	}
	places, err := l.positions(c.Args[2], o)
	switch {
	case err != nil:
		return err
	case o.count >= 0:
		c.Reply.Array(len(places))
		for _, p := range places {
			c.Reply.Int(int64(p))
		}
	case len(places) > 0:
		c.Reply.Int(int64(places[0]))
	default:
		c.Reply.Null()
	}
	return nil
}

// positions is the places of a value in the order in which LPOS looks.
func (l *list) positions(value []byte, o posOptions) (places []int, err error) {
	n := l.len()
	if o.max > 0 {
		n = int(min(o.max, int64(n)))
	}
	wanted, matches := o.count, int64(0)
	switch {
	case wanted < 0:
		wanted = 1
	case o.rank == math.MinInt64:
		wanted = 0 // there is no such positive number; Redis counts wrong and takes all
	}
	note := func(i int, v []byte) bool {
		if bytes.Equal(v, value) {
			if matches++; matches >= max(o.rank, -o.rank) {
				places = append(places, i)
			}
		}
		return wanted == 0 || int64(len(places)) < wanted
	}
	if o.rank > 0 {
		err = l.each(0, n, note)
	} else {
		err = l.eachBack(l.len()-1, n, note)
	}
	return places, err
}

// ---- from one list to another

// end reads LEFT or RIGHT.
func (c *Call) end(i int) (left bool, err error) {
	if left = c.Is(i, "left"); !left && !c.Is(i, "right") {
		return false, errSyntax
	}
	return left, nil
}

// ends are arguments i and i+1, each LEFT or RIGHT.
func (c *Call) ends(i int) (from, to bool, err error) {
	if from, err = c.end(i); err != nil {
		return false, false, err
	}
	to, err = c.end(i + 1)
	return from, to, err
}

func runLMove(c *Call) error {
	from, to, err := c.ends(3)
	if err != nil {
		return err
	}
	return moveItem(c, from, to, nil)
}

func runRPopLPush(c *Call) error { return moveItem(c, false, true, nil) }

// moveItem takes an item from the list of argument 1 to that of argument 2. wait is
// what is waited for where there is none.
func moveItem(c *Call, fromLeft, toLeft bool, wait *waitFor) error {
	src, err := c.list(c.Own(1))
	if err != nil {
		return err
	}
	if !src.found {
		if c.wait = wait; wait == nil {
			c.Reply.Null()
		}
		return nil
	}
	dst, err := c.list(c.Own(2))
	if err != nil {
		return err
	}
	to := &dst
	if src.key == dst.key {
		to = &src
	}
	value, err := src.pop(fromLeft)
	if err != nil {
		return err
	}
	if err := to.push(toLeft, value); err != nil {
		return err
	}
	if err := to.save(); err != nil {
		return err
	}
	if to != &src {
		if err := src.save(); err != nil {
			return err
		}
	}
	c.Reply.Bulk(value)
	return nil
}

// popOptions are what LMPOP, ZMPOP, and the two that wait, are told.
type popOptions struct {
	keys  [][]byte
	low   bool // LEFT or MIN
	count int
	wait  *waitFor // nil: it does not wait
}

// popCount reads the number of keys, at args[at].
func popCount(args [][]byte, at int) (int, error) {
	n, err := intBetween(args[at], 1, math.MaxInt64, errNumkeys)
	if err != nil {
		return 0, err
	}
	if n > int64(len(args)-at-2) {
		return 0, errSyntax
	}
	return int(n), nil
}

// parsePop reads the number of keys at args[at] and all that follows, then the
// time, where one comes before; low and high name the two ends.
func parsePop(args [][]byte, at int, low, high string) (popOptions, error) {
	n, err := popCount(args, at)
	if err != nil {
		return popOptions{}, err
	}
	end := at + 1 + n
	o := popOptions{keys: args[at+1 : end], low: equalFold(args[end], low), count: 1}
	if !o.low && !equalFold(args[end], high) {
		return o, errSyntax
	}
	if rest := args[end+1:]; len(rest) > 0 {
		if err := o.parseCount(rest); err != nil {
			return o, err
		}
	}
	if at == 1 {
		return o, nil
	}
	timeout, err := blockTimeout(args[1])
	o.wait = waiting(timeout, o.keys...)
	return o, err
}

func (o *popOptions) parseCount(rest [][]byte) error {
	if len(rest) < 2 || !equalFold(rest[0], "count") {
		return errSyntax
	}
	count, err := intBetween(rest[1], 1, math.MaxInt64, errCountZero)
	if err == nil && len(rest) > 2 {
		err = errSyntax
	}
	o.count = int(count)
	return err
}

func runLMPop(c *Call) error  { return popFirst(c, 1) }
func runBLMPop(c *Call) error { return popFirst(c, 2) }

// popFirst pops from the first list that has items. The number of keys is at
// args[at].
func popFirst(c *Call, at int) error {
	o, err := parsePop(c.Args, at, "left", "right")
	if err != nil {
		return err
	}
	for _, key := range o.keys {
		if found, err := o.popFrom(c, string(key)); found || err != nil {
			return err
		}
	}
	if o.wait != nil {
		o.wait.kind = kindList
		o.wait.serve = func(c *Call, key string) (string, error) {
			_, err := o.popFrom(c, key)
			return "", err
		}
	}
	if c.wait = o.wait; c.wait == nil {
		c.Reply.NullArray()
	}
	return nil
}

// popFrom pops from a list, if it is there.
func (o *popOptions) popFrom(c *Call, key string) (found bool, err error) {
	l, err := c.list(key)
	if err != nil || !l.found {
		return false, err
	}
	values, err := l.popN(o.low, o.count)
	if err != nil {
		return true, err
	}
	if err := l.save(); err != nil {
		return true, err
	}
	c.Reply.Array(2)
	c.Reply.BulkString(key)
	c.bulks(values)
	return true, nil
}

// ---- commands that wait

const (
	errTimeout         Error = "ERR timeout is not a float or out of range"
	errNegativeTimeout Error = "ERR timeout is negative"
)

// blockTimeout reads seconds. What is too long for Redis's 64 bits of
// milliseconds is negative to it.
func blockTimeout(arg []byte) (time.Duration, error) {
	f, ok := parseLongDouble(arg)
	if !ok {
		return 0, errTimeout
	}
	seconds, _ := f.Float64()
	ms := math.Ceil(seconds * 1000)
	if ms < 0 || ms >= math.MaxInt64 {
		return 0, errNegativeTimeout
	}
	return time.Duration(min(ms, float64(math.MaxInt64/time.Millisecond))) * time.Millisecond, nil
}

// waiting is what a command waits for. Redis answers BLMOVE and BRPOPLPUSH with
// no array when their time is over, and with no value where they may not wait.
func waiting(timeout time.Duration, keys ...[]byte) *waitFor {
	return &waitFor{keys: keys, timeout: timeout, none: (*Reply).NullArray}
}

func runBLPop(c *Call) error { return blockingPop(c, true) }
func runBRPop(c *Call) error { return blockingPop(c, false) }

func blockingPop(c *Call, left bool) error {
	last := len(c.Args) - 1
	timeout, err := blockTimeout(c.Args[last])
	if err != nil {
		return err
	}
	for _, key := range c.Args[1:last] {
		if found, err := popItem(c, string(key), left); found || err != nil {
			return err
		}
	}
	c.wait = waiting(timeout, c.Args[1:last]...)
	c.wait.kind = kindList
	c.wait.serve = func(c *Call, key string) (string, error) {
		_, err := popItem(c, key, left)
		return "", err
	}
	return nil
}

// popItem pops an item from a list, if it is there.
func popItem(c *Call, key string, left bool) (found bool, err error) {
	l, err := c.list(key)
	if err != nil || !l.found {
		return false, err
	}
	value, err := l.pop(left)
	if err != nil {
		return true, err
	}
	if err := l.save(); err != nil {
		return true, err
	}
	c.Reply.Array(2)
	c.Reply.BulkString(key)
	c.Reply.Bulk(value)
	return true, nil
}

func runBLMove(c *Call) error {
	from, to, err := c.ends(3)
	if err != nil {
		return err
	}
	return blockingMove(c, from, to, 5)
}

func runBRPopLPush(c *Call) error { return blockingMove(c, false, true, 3) }

// blockingMove waits for the source alone. The time is at Args[at].
func blockingMove(c *Call, fromLeft, toLeft bool, at int) error {
	timeout, err := blockTimeout(c.Args[at])
	if err != nil {
		return err
	}
	wait := waiting(timeout, c.Args[1])
	wait.refused = (*Reply).Null
	wait.kind = kindList
	wait.serve = func(c *Call, key string) (string, error) {
		return c.Own(2), moveItem(c, fromLeft, toLeft, nil)
	}
	return moveItem(c, fromLeft, toLeft, wait)
}
