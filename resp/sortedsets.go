package resp

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"math"
	"strconv"

	"github.com/slotmesh/slotmesh/store"
)

// A sorted set is a collection whose members have a score for their value, and
// a second field each that keeps them in order:
//
//	'm' sum name  →  score         as in summedField
//	's' score name  →  nothing     in the order of the scores, then of the names
//
// A score is 8 bytes whose order is that of the numbers, see scoreKey. All of the
// first kind come before all of the second; so with n members the one of rank r
// is the field at place n+r of the key.

func sortedSetCommands() []Command {
	return []Command{
		{
			Name: "zadd", Arity: -4, Flags: Write | DenyOOM | Fast, First: 1, Last: 1, Step: 1,
			Run: runZAdd, Group: "sorted-set", Since: "1.2.0",
			Summary:    "Add one or more members to a sorted set, or update its score if it already exists",
			Complexity: "O(log(N)) for each item added, where N is the number of elements in the sorted set.",
		},
		{
			Name: "zincrby", Arity: 4, Flags: Write | DenyOOM | Fast, First: 1, Last: 1, Step: 1,
			Run: runZIncrBy, Group: "sorted-set", Since: "1.2.0",
			Summary:    "Increment the score of a member in a sorted set",
			Complexity: "O(log(N)) where N is the number of elements in the sorted set.",
		},
		{
			Name: "zrem", Arity: -3, Flags: Write | Fast, First: 1, Last: 1, Step: 1,
			Run: runZRem, Group: "sorted-set", Since: "1.2.0",
			Summary:    "Remove one or more members from a sorted set",
			Complexity: "O(M*log(N)) with N being the number of elements in the sorted set and M the number of elements to be removed.",
		},
		{
			Name: "zscore", Arity: 3, Flags: ReadOnly | Fast, First: 1, Last: 1, Step: 1,
			Run: runZScore, Group: "sorted-set", Since: "1.2.0",
			Summary:    "Get the score associated with the given member in a sorted set",
			Complexity: "O(1)",
		},
		{
			Name: "zmscore", Arity: -3, Flags: ReadOnly | Fast, First: 1, Last: 1, Step: 1,
			Run: runZMScore, Group: "sorted-set", Since: "6.2.0",
			Summary:    "Get the score associated with the given members in a sorted set",
			Complexity: "O(N) where N is the number of members being requested.",
		},
		{
			Name: "zcard", Arity: 2, Flags: ReadOnly | Fast, First: 1, Last: 1, Step: 1,
			Run: runZCard, Group: "sorted-set", Since: "1.2.0",
			Summary:    "Get the number of members in a sorted set",
			Complexity: "O(1)",
		},
		{
			Name: "zcount", Arity: 4, Flags: ReadOnly | Fast, First: 1, Last: 1, Step: 1,
			Run: runZCount, Group: "sorted-set", Since: "2.0.0",
			Summary:    "Count the members in a sorted set with scores within the given values",
			Complexity: "O(log(N)) with N being the number of elements in the sorted set.",
		},
		{
			Name: "zlexcount", Arity: 4, Flags: ReadOnly | Fast, First: 1, Last: 1, Step: 1,
			Run: runZLexCount, Group: "sorted-set", Since: "2.8.9",
			Summary:    "Count the number of members in a sorted set between a given lexicographical range",
			Complexity: "O(log(N)) with N being the number of elements in the sorted set.",
		},
		{
			Name: "zrank", Arity: 3, Flags: ReadOnly | Fast, First: 1, Last: 1, Step: 1,
			Run: runZRank, Group: "sorted-set", Since: "2.0.0",
			Summary:    "Determine the index of a member in a sorted set",
			Complexity: "O(log(N))",
		},
		{
			Name: "zrevrank", Arity: 3, Flags: ReadOnly | Fast, First: 1, Last: 1, Step: 1,
			Run: runZRevRank, Group: "sorted-set", Since: "2.0.0",
			Summary:    "Determine the index of a member in a sorted set, with scores ordered from high to low",
			Complexity: "O(log(N))",
		},
		{
			Name: "zrange", Arity: -4, Flags: ReadOnly, First: 1, Last: 1, Step: 1,
			Run: runZRange, Group: "sorted-set", Since: "1.2.0",
			Summary:    "Return a range of members in a sorted set",
			Complexity: "O(log(N)+M) with N being the number of elements in the sorted set and M the number of elements returned.",
		},
		{
			Name: "zrangestore", Arity: -5, Flags: Write | DenyOOM, First: 1, Last: 2, Step: 1,
			Run: runZRangeStore, Group: "sorted-set", Since: "6.2.0",
			Summary:    "Store a range of members from sorted set into another key",
			Complexity: "O(log(N)+M) with N being the number of elements in the sorted set and M the number of elements stored into the destination key.",
		},
		{
			Name: "zrevrange", Arity: -4, Flags: ReadOnly, First: 1, Last: 1, Step: 1,
			Run: runZRevRange, Group: "sorted-set", Since: "1.2.0",
			Summary:    "Return a range of members in a sorted set, by index, with scores ordered from high to low",
			Complexity: "O(log(N)+M) with N being the number of elements in the sorted set and M the number of elements returned.",
		},
		{
			Name: "zrangebyscore", Arity: -4, Flags: ReadOnly, First: 1, Last: 1, Step: 1,
			Run: runZRangeByScore, Group: "sorted-set", Since: "1.0.5",
			Summary:    "Return a range of members in a sorted set, by score",
			Complexity: "O(log(N)+M) with N being the number of elements in the sorted set and M the number of elements being returned. If M is constant (e.g. always asking for the first 10 elements with LIMIT), you can consider it O(log(N)).",
		},
		{
			Name: "zrevrangebyscore", Arity: -4, Flags: ReadOnly, First: 1, Last: 1, Step: 1,
			Run: runZRevRangeByScore, Group: "sorted-set", Since: "2.2.0",
			Summary:    "Return a range of members in a sorted set, by score, with scores ordered from high to low",
			Complexity: "O(log(N)+M) with N being the number of elements in the sorted set and M the number of elements being returned. If M is constant (e.g. always asking for the first 10 elements with LIMIT), you can consider it O(log(N)).",
		},
		{
			Name: "zrangebylex", Arity: -4, Flags: ReadOnly, First: 1, Last: 1, Step: 1,
			Run: runZRangeByLex, Group: "sorted-set", Since: "2.8.9",
			Summary:    "Return a range of members in a sorted set, by lexicographical range",
			Complexity: "O(log(N)+M) with N being the number of elements in the sorted set and M the number of elements being returned. If M is constant (e.g. always asking for the first 10 elements with LIMIT), you can consider it O(log(N)).",
		},
		{
			Name: "zrevrangebylex", Arity: -4, Flags: ReadOnly, First: 1, Last: 1, Step: 1,
			Run: runZRevRangeByLex, Group: "sorted-set", Since: "2.8.9",
			Summary:    "Return a range of members in a sorted set, by lexicographical range, ordered from higher to lower strings.",
			Complexity: "O(log(N)+M) with N being the number of elements in the sorted set and M the number of elements being returned. If M is constant (e.g. always asking for the first 10 elements with LIMIT), you can consider it O(log(N)).",
		},
		{
			Name: "zremrangebyrank", Arity: 4, Flags: Write, First: 1, Last: 1, Step: 1,
			Run: runZRemRangeByRank, Group: "sorted-set", Since: "2.0.0",
			Summary:    "Remove all members in a sorted set within the given indexes",
			Complexity: "O(log(N)+M) with N being the number of elements in the sorted set and M the number of elements removed by the operation.",
		},
		{
			Name: "zremrangebyscore", Arity: 4, Flags: Write, First: 1, Last: 1, Step: 1,
			Run: runZRemRangeByScore, Group: "sorted-set", Since: "1.2.0",
			Summary:    "Remove all members in a sorted set within the given scores",
			Complexity: "O(log(N)+M) with N being the number of elements in the sorted set and M the number of elements removed by the operation.",
		},
		{
			Name: "zremrangebylex", Arity: 4, Flags: Write, First: 1, Last: 1, Step: 1,
			Run: runZRemRangeByLex, Group: "sorted-set", Since: "2.8.9",
			Summary:    "Remove all members in a sorted set between the given lexicographical range",
			Complexity: "O(log(N)+M) with N being the number of elements in the sorted set and M the number of elements removed by the operation.",
		},
		{
			Name: "zpopmin", Arity: -2, Flags: Write | Fast, First: 1, Last: 1, Step: 1,
			Run: runZPopMin, Group: "sorted-set", Since: "5.0.0",
			Summary:    "Remove and return members with the lowest scores in a sorted set",
			Complexity: "O(log(N)*M) with N being the number of elements in the sorted set, and M being the number of elements popped.",
		},
		{
			Name: "zpopmax", Arity: -2, Flags: Write | Fast, First: 1, Last: 1, Step: 1,
			Run: runZPopMax, Group: "sorted-set", Since: "5.0.0",
			Summary:    "Remove and return members with the highest scores in a sorted set",
			Complexity: "O(log(N)*M) with N being the number of elements in the sorted set, and M being the number of elements popped.",
		},
		{
			Name: "zmpop", Arity: -4, Flags: Write | MovableKeys, Keys: keysBehind(1, popCount),
			Run: runZMPop, Group: "sorted-set", Since: "7.0.0",
			Summary:    "Remove and return members with scores in a sorted set",
			Complexity: "O(K) + O(M*log(N)) where K is the number of provided keys, N being the number of elements in the sorted set, and M being the number of elements popped.",
		},
		{
			Name: "zrandmember", Arity: -2, Flags: ReadOnly, First: 1, Last: 1, Step: 1,
			Run: runZRandMember, Group: "sorted-set", Since: "6.2.0",
			Summary:    "Get one or multiple random elements from a sorted set",
			Complexity: "O(N) where N is the number of elements returned",
		},
		{
			Name: "zunion", Arity: -3, Flags: ReadOnly | MovableKeys, Keys: keysBehind(1, combineCount),
			Run: runZUnion, Group: "sorted-set", Since: "6.2.0",
			Summary:    "Add multiple sorted sets",
			Complexity: "O(N)+O(M*log(M)) with N being the sum of the sizes of the input sorted sets, and M being the number of elements in the resulting sorted set.",
		},
		{
			Name: "zinter", Arity: -3, Flags: ReadOnly | MovableKeys, Keys: keysBehind(1, combineCount),
			Run: runZInter, Group: "sorted-set", Since: "6.2.0",
			Summary:    "Intersect multiple sorted sets",
			Complexity: "O(N*K)+O(M*log(M)) worst case with N being the smallest input sorted set, K being the number of input sorted sets and M being the number of elements in the resulting sorted set.",
		},
		{
			Name: "zdiff", Arity: -3, Flags: ReadOnly | MovableKeys, Keys: keysBehind(1, combineCount),
			Run: runZDiff, Group: "sorted-set", Since: "6.2.0",
			Summary:    "Subtract multiple sorted sets",
			Complexity: "O(L + (N-K)log(N)) worst case where L is the total number of elements in all the sets, N is the size of the first set, and K is the size of the result set.",
		},
		{
			Name: "zunionstore", Arity: -4, Flags: Write | DenyOOM | MovableKeys, First: 1, Last: 1, Step: 1, Keys: keysBehind(2, combineCount, 1),
			Run: runZUnionStore, Group: "sorted-set", Since: "2.0.0",
			Summary:    "Add multiple sorted sets and store the resulting sorted set in a new key",
			Complexity: "O(N)+O(M log(M)) with N being the sum of the sizes of the input sorted sets, and M being the number of elements in the resulting sorted set.",
		},
		{
			Name: "zinterstore", Arity: -4, Flags: Write | DenyOOM | MovableKeys, First: 1, Last: 1, Step: 1, Keys: keysBehind(2, combineCount, 1),
			Run: runZInterStore, Group: "sorted-set", Since: "2.0.0",
			Summary:    "Intersect multiple sorted sets and store the resulting sorted set in a new key",
			Complexity: "O(N*K)+O(M*log(M)) worst case with N being the smallest input sorted set, K being the number of input sorted sets and M being the number of elements in the resulting sorted set.",
		},
		{
			Name: "zdiffstore", Arity: -4, Flags: Write | DenyOOM | MovableKeys, First: 1, Last: 1, Step: 1, Keys: keysBehind(2, combineCount, 1),
			Run: runZDiffStore, Group: "sorted-set", Since: "6.2.0",
			Summary:    "Subtract multiple sorted sets and store the resulting sorted set in a new key",
			Complexity: "O(L + (N-K)log(N)) worst case where L is the total number of elements in all the sets, N is the size of the first set, and K is the size of the result set.",
		},
		{
			Name: "zintercard", Arity: -3, Flags: ReadOnly | MovableKeys, Keys: keysBehind(1, combineCount),
			Run: runZInterCard, Group: "sorted-set", Since: "7.0.0",
			Summary:    "Intersect multiple sorted sets and return the cardinality of the result",
			Complexity: "O(N*K) worst case with N being the smallest input sorted set, K being the number of input sorted sets.",
		},
		{
			Name: "zscan", Arity: -3, Flags: ReadOnly, First: 1, Last: 1, Step: 1,
			Run: runZScan, Group: "sorted-set", Since: "2.8.0",
			Summary:    "Incrementally iterate sorted sets elements and associated scores",
			Complexity: "O(1) for every call. O(N) for a complete iteration, including enough command calls for the cursor to return back to 0. N is the number of elements inside the collection..",
		},
		{
			Name: "bzpopmin", Arity: -3, Flags: Write | NoScript | Blocking | Fast, First: 1, Last: -2, Step: 1,
			Run: runBZPopMin, Group: "sorted-set", Since: "5.0.0",
			Summary:    "Remove and return the member with the lowest score from one or more sorted sets, or block until one is available",
			Complexity: "O(log(N)) with N being the number of elements in the sorted set.",
		},
		{
			Name: "bzpopmax", Arity: -3, Flags: Write | NoScript | Blocking | Fast, First: 1, Last: -2, Step: 1,
			Run: runBZPopMax, Group: "sorted-set", Since: "5.0.0",
			Summary:    "Remove and return the member with the highest score from one or more sorted sets, or block until one is available",
			Complexity: "O(log(N)) with N being the number of elements in the sorted set.",
		},
		{
			Name: "bzmpop", Arity: -5, Flags: Write | Blocking | MovableKeys, Keys: keysBehind(2, popCount),
			Run: runBZMPop, Group: "sorted-set", Since: "7.0.0",
			Summary:    "Remove and return members with scores in a sorted set or block until one is available",
			Complexity: "O(K) + O(M*log(N)) where K is the number of provided keys, N being the number of elements in the sorted set, and M being the number of elements popped.",
		},
	}
}

const (
	errScoreNaN    Error = "ERR resulting score is not a number (NaN)"
	errNXAndXX     Error = "ERR XX and NX options at the same time are not compatible"
	errGTLTAndNX   Error = "ERR GT, LT, and/or NX options at the same time are not compatible"
	errOneIncr     Error = "ERR INCR option supports a single increment-element pair"
	errScoreRange  Error = "ERR min or max is not a float"
	errLexRange    Error = "ERR min or max not valid string range item"
	errLimitByRank Error = "ERR syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX"
	errScoresByLex Error = "ERR syntax error, WITHSCORES not supported in combination with BYLEX"
	errWeight      Error = "ERR weight value is not a float"
)

const (
	sortedSetScore = 's' // what the fields of the second kind begin with
	scoredName     = 9   // where the name begins in them
	scoreBytes     = 8   // of a score as a value
)

// sortedSet is a sorted set as its head tells of it.
type sortedSet struct{ collection }

// sortedSet opens a key. A command that writes hands in a key of its own.
func (c *Call) sortedSet(key string) (sortedSet, error) {
	k, err := c.collection(key, kindSortedSet)
	return sortedSet{k}, err
}

// scored is a member and its score.
type scored struct {
	name  string
	score float64
}

// before is the order of a sorted set.
func (a scored) compare(b scored) int {
	return cmp.Or(cmp.Compare(a.score, b.score), cmp.Compare(a.name, b.name))
}

// scoreKey makes a number of a score whose order is the same: the sign comes
// first, and what is below 0 is turned over. -0 is 0.
func scoreKey(score float64) uint64 {
	if score == 0 {
		score = 0
	}
	b := math.Float64bits(score)
	if b>>63 != 0 {
		return ^b
	}
	return b | 1<<63
}

// keyScore is the score behind a number of scoreKey.
func keyScore(key uint64) float64 {
	if key>>63 != 0 {
		return math.Float64frombits(key &^ (1 << 63))
	}
	return math.Float64frombits(^key)
}

// memberField is a field of the first kind, scoreValue what is stored under it,
// and scoreOf the score in that.
func memberField(name []byte) string { return summedField(scoredPrefix, name) }

func scoreValue(score float64) []byte {
	return binary.BigEndian.AppendUint64(nil, scoreKey(score))
}

func scoreOf(value []byte) float64 { return keyScore(binary.BigEndian.Uint64(value)) }

// scoreField is a field of the second kind.
func scoreField(score float64, name []byte) string { return scorePlace(scoreKey(score), view(name)) }

// scorePlace is the place of a name among those of a score; with no name, where
// they begin.
func scorePlace(key uint64, name string) string {
	b := make([]byte, 0, scoredName+len(name))
	b = binary.BigEndian.AppendUint64(append(b, sortedSetScore), key)
	return view(append(b, name...))
}

// splitScoreField is the score and the name in a field of the second kind.
func splitScoreField(field string) (float64, string) {
	return scoreOf(viewBytes(field)[1:]), field[scoredName:]
}

func scoredOf(field string) scored {
	score, name := splitScoreField(field)
	return scored{name, score}
}

// score returns the score of a member.
func (z *sortedSet) score(name []byte) (float64, bool, error) {
	value, found, err := z.get(z.field(name))
	if err != nil || !found {
		return 0, false, err
	}
	return scoreOf(value), true, nil
}

// add adds a member that is not there.
func (z *sortedSet) add(name []byte, score float64) error {
	if err := z.put(z.field(name), scoreValue(score), true); err != nil {
		return err
	}
	return z.c.Tx.PutField(z.key, scoreField(score, name), nil)
}

// change gives a member another score.
func (z *sortedSet) change(name []byte, from, to float64) error {
	if err := z.c.Tx.DeleteField(z.key, scoreField(from, name)); err != nil {
		return err
	}
	z.count--
	return z.add(name, to)
}

// remove removes a member that is there.
func (z *sortedSet) remove(name []byte, score float64) error {
	if err := z.collection.remove(z.field(name)); err != nil {
		return err
	}
	return z.c.Tx.DeleteField(z.key, scoreField(score, name))
}

// rank is how many members come before a field of the second kind, whether that
// is there or not.
func (z *sortedSet) rank(field string) (int, error) {
	if z.count == 0 {
		return 0, nil
	}
	n, err := z.c.Tx.Rank(z.key, field)
	return max(0, min(n-z.count, z.count)), err
}

// window is the members of ranks from to from+n-1.
type window struct{ from, n int }

// part is a part of a window.
func (w window) part(p part) window {
	if p.offset < 0 || p.offset >= int64(w.n) {
		return window{}
	}
	n := int64(w.n) - p.offset
	if p.limit >= 0 {
		n = min(n, p.limit)
	}
	if p.back {
		return window{w.from + w.n - int(p.offset) - int(n), int(n)}
	}
	return window{w.from + int(p.offset), int(n)}
}

// each calls f with the members of a window, in order or the other way, until it
// returns false.
func (z *sortedSet) each(w window, back bool, f func(scored) bool) error {
	if w.n <= 0 {
		return nil
	}
	left := w.n
	visit := func(it *store.Item) bool {
		left--
		return it.Field[0] == sortedSetScore && f(scoredOf(it.Field)) && left > 0
	}
	if back {
		end, err := z.place(w.from + w.n)
		if err != nil {
			return err
		}
		return z.c.walkBack(z.key, end, w.n, visit)
	}
	start, err := z.place(w.from)
	if err != nil {
		return err
	}
	return z.c.walk(z.key, start, w.n, visit)
}

// place is the field of a rank, "" behind the last.
func (z *sortedSet) place(rank int) (string, error) {
	switch rank {
	case 0:
		return string(rune(sortedSetScore)), nil
	case z.count:
		return "", nil
	}
	it, err := z.at(z.count + rank)
	return it.Field, err
}

// members returns the members of a window, in order or the other way.
func (z *sortedSet) members(w window, back bool) ([]scored, error) {
	all := make([]scored, 0, w.n)
	err := z.each(w, back, func(m scored) bool {
		all = append(all, m)
		return true
	})
	return all, err
}

// cut removes the members of a window. It takes as many changes as members go,
// or as members stay where those are fewer.
func (z *sortedSet) cut(w window) error {
	if w.n == z.count {
		z.count = 0 // the key goes, and its members with it
		return nil
	}
	if w.n <= z.count/2 {
		gone, err := z.members(w, false)
		if err != nil {
			return err
		}
		for _, m := range gone {
			if err := z.remove(viewBytes(m.name), m.score); err != nil {
				return err
			}
		}
		return nil
	}
	stay, err := z.members(window{0, w.from}, false)
	if err != nil {
		return err
	}
	end := w.from + w.n
	behind, err := z.members(window{end, z.count - end}, false)
	if err != nil {
		return err
	}
	if _, err := z.c.Tx.Delete(z.key); err != nil {
		return err
	}
	z.count, z.saved = 0, 0
	return z.addAll(append(stay, behind...))
}

func (z *sortedSet) addAll(members []scored) error {
	for _, m := range members {
		if err := z.add(viewBytes(m.name), m.score); err != nil {
			return err
		}
	}
	return nil
}

// storeScored puts a sorted set in place of whatever was under the key of
// argument i, and answers with its size.
func (c *Call) storeScored(i int, members []scored) error {
	k, err := c.created(c.Own(i), kindSortedSet)
	if err != nil {
		return err
	}
	z := sortedSet{k}
	if err := z.addAll(members); err != nil {
		return err
	}
	if err := z.save(); err != nil {
		return err
	}
	c.Reply.Int(int64(z.count))
	return nil
}

// replyScored writes members, with their scores if asked for: as pairs, which in
// RESP2 are no arrays of their own.
func (c *Call) replyScored(members []scored, scores bool) {
	if !scores {
		c.Reply.Array(len(members))
	} else {
		c.pairs(len(members))
	}
	for _, m := range members {
		if scores {
			c.pair()
		}
		c.Reply.BulkString(m.name)
		if scores {
			c.Reply.Double(m.score)
		}
	}
}

// ---- one member

// addOptions are those of ZADD.
type addOptions struct {
	nx, xx, gt, lt, changed, incr bool
	pairs                         [][]byte
	scores                        []float64
}

func parseAdd(args [][]byte) (addOptions, error) {
	var o addOptions
	rest := args[2:]
options:
	for ; len(rest) > 0; rest = rest[1:] {
		switch a := rest[0]; {
		case equalFold(a, "nx"):
			o.nx = true
		case equalFold(a, "xx"):
			o.xx = true
		case equalFold(a, "ch"):
			o.changed = true
		case equalFold(a, "incr"):
			o.incr = true
		case equalFold(a, "gt"):
			o.gt = true
		case equalFold(a, "lt"):
			o.lt = true
		default:
			break options
		}
	}
	o.pairs = rest
	switch {
	case len(rest) == 0 || len(rest)%2 != 0:
		return o, errSyntax
	case o.nx && o.xx:
		return o, errNXAndXX
	case o.gt && o.nx || o.lt && o.nx || o.gt && o.lt:
		return o, errGTLTAndNX
	case o.incr && len(rest) > 2:
		return o, errOneIncr
	}
	for i := 0; i < len(rest); i += 2 {
		f, ok := parseFloat(rest[i])
		if !ok {
			return o, errNotFloat
		}
		o.scores = append(o.scores, f)
	}
	return o, nil
}

func runZAdd(c *Call) error {
	o, err := parseAdd(c.Args)
	if err != nil {
		return err
	}
	return addScored(c, &o)
}

func runZIncrBy(c *Call) error {
	if isAddOption(c.Args[2]) {
		return errSyntax // an option of ZADD, behind which pairs would have to come
	}
	by, ok := parseFloat(c.Args[2])
	if !ok {
		return errNotFloat
	}
	return addScored(c, &addOptions{incr: true, pairs: c.Args[2:], scores: []float64{by}})
}

func isAddOption(arg []byte) bool {
	for _, option := range []string{"nx", "xx", "gt", "lt", "ch", "incr"} {
		if equalFold(arg, option) {
			return true
		}
	}
	return false
}

// addScored is ZADD or ZINCRBY.
func addScored(c *Call, o *addOptions) error {
	z, err := c.sortedSet(c.Own(1))
	if err != nil {
		return err
	}
	had, changed := z.count, 0
	var score float64
	var done bool
	for i, by := range o.scores {
		var was bool
		if score, was, done, err = z.apply(o, o.pairs[2*i+1], by); err != nil {
			return err
		}
		if was {
			changed++
		}
	}
	if err := z.save(); err != nil {
		return err
	}
	switch added := z.count - had; {
	case o.incr && !done:
		c.Reply.Null()
	case o.incr:
		c.Reply.Double(score)
	case o.changed:
		c.Reply.Int(int64(added + changed))
	default:
		c.Reply.Int(int64(added))
	}
	return nil
}

// apply gives one member its score, as the options say. It returns that score,
// whether another one was changed to it, and whether the options let it be.
func (z *sortedSet) apply(o *addOptions, name []byte, by float64) (score float64, changed, done bool, err error) {
	old, found, err := z.score(name)
	if err != nil {
		return 0, false, false, err
	}
	score = by
	if !found {
		if o.xx {
			return 0, false, false, nil
		}
		return score, false, true, z.add(name, score)
	}
	if o.nx {
		return 0, false, false, nil
	}
	if o.incr {
		if score = old + by; math.IsNaN(score) {
			return 0, false, false, errScoreNaN
		}
	}
	switch {
	case o.lt && score >= old, o.gt && score <= old:
		return 0, false, false, nil
	case score == old:
		return score, false, true, nil
	}
	return score, true, true, z.change(name, old, score)
}

func runZRem(c *Call) error {
	z, err := c.sortedSet(c.Own(1))
	if err != nil {
		return err
	}
	had := z.count
	for _, name := range c.Args[2:] {
		score, found, err := z.score(name)
		if err == nil && found {
			err = z.remove(name, score)
		}
		if err != nil {
			return err
		}
	}
	if err := z.save(); err != nil {
		return err
	}
	c.Reply.Int(int64(had - z.count))
	return nil
}

func runZScore(c *Call) error { return replyScores(c, c.Args[2:3]) }

func runZMScore(c *Call) error { return replyScores(c, c.Args[2:]) }

// replyScores is ZMSCORE, or ZSCORE, which wants one and no array.
func replyScores(c *Call, names [][]byte) error {
	z, err := c.sortedSet(c.Key(1))
	if err != nil {
		return err
	}
	if c.command.Name == "zmscore" {
		c.Reply.Array(len(names))
	}
	for _, name := range names {
		score, found, err := z.score(name)
		if err != nil {
			return err
		}
		if found {
			c.Reply.Double(score)
		} else {
			c.Reply.Null()
		}
	}
	return nil
}

func runZCard(c *Call) error { return replyCount(c, kindSortedSet) }

func runZRank(c *Call) error    { return replyRank(c, false) }
func runZRevRank(c *Call) error { return replyRank(c, true) }

func replyRank(c *Call, back bool) error {
	z, err := c.sortedSet(c.Key(1))
	if err != nil {
		return err
	}
	score, found, err := z.score(c.Args[2])
	if err != nil {
		return err
	}
	if !found {
		c.Reply.Null()
		return nil
	}
	rank, err := z.rank(scoreField(score, c.Args[2]))
	if err != nil {
		return err
	}
	if back {
		rank = z.count - 1 - rank
	}
	c.Reply.Int(int64(rank))
	return nil
}

// ---- ranges

// rangeKind is what the ends of a range are.
type rangeKind uint8

const (
	kindUnsaid rangeKind = iota
	byRank
	byScore
	byLex
)

// part is what is wanted of a range: from which end, and after how many members
// how many others. A limit below 0 is none.
type part struct {
	back          bool
	offset, limit int64
}

// found is a part of a range: a window, or where low is set a part of the fields
// of the second kind from low up to high. Their ranks cost more to learn than to
// walk over a few of them.
type found struct {
	window
	low, high string
	part      part
}

// spanOf finds the members of a part of a range.
type spanOf func(z *sortedSet, p part) (found, error)

// parseSpan reads the two ends of a range.
func parseSpan(by rangeKind, low, high []byte) (spanOf, error) {
	switch by {
	case byScore:
		return scoreSpan(low, high)
	case byLex:
		return lexSpan(low, high)
	default:
		return rankSpan(low, high)
	}
}

// rankSpan reads ranks, which count from the end where they are negative.
func rankSpan(low, high []byte) (spanOf, error) {
	start, ok := parseInt(low)
	if !ok {
		return nil, errNotInteger
	}
	stop, ok := parseInt(high)
	if !ok {
		return nil, errNotInteger
	}
	return func(z *sortedSet, p part) (found, error) {
		from, n := span(start, stop, z.count)
		if p.back {
			from = z.count - from - n
		}
		return found{window: window{from, n}, part: p}, nil
	}, nil
}

// scoreSpan reads the ends of a range of scores.
func scoreSpan(low, high []byte) (spanOf, error) {
	lowest, above, ok := parseScoreEnd(low)
	if !ok {
		return nil, errScoreRange
	}
	highest, below, ok := parseScoreEnd(high)
	if !ok {
		return nil, errScoreRange
	}
	from, to := scoreKey(lowest), scoreKey(highest)
	if above {
		from++
	}
	if !below {
		to++
	}
	return func(z *sortedSet, p part) (found, error) {
		if z.count == 0 || from >= to {
			return found{}, nil
		}
		return found{low: scorePlace(from, ""), high: scorePlace(to, ""), part: p}, nil
	}, nil
}

// window learns the ranks of what was found.
func (z *sortedSet) window(f found) (window, error) {
	if f.low == "" {
		return f.window, nil
	}
	first, err := z.rank(f.low)
	if err != nil {
		return window{}, err
	}
	end, err := z.rank(f.high)
	if err != nil {
		return window{}, err
	}
	return window{first, max(0, end-first)}.part(f.part), nil
}

// all is the ranks of a whole range.
func (z *sortedSet) all(find spanOf) (window, error) {
	f, err := find(z, part{limit: -1})
	if err != nil {
		return window{}, err
	}
	return z.window(f)
}

// found returns the members that were found, in order or the other way.
func (z *sortedSet) found(f found) ([]scored, error) {
	if f.low == "" || f.part.offset != 0 {
		w, err := z.window(f)
		if err != nil {
			return nil, err
		}
		return z.members(w, f.part.back)
	}
	if f.part.limit == 0 {
		return nil, nil
	}
	var all []scored
	visit := func(it *store.Item) bool {
		if it.Field < f.low || it.Field >= f.high {
			return false
		}
		all = append(all, scoredOf(it.Field))
		return int64(len(all)) != f.part.limit
	}
	expected := unknownSize
	if limit := f.part.limit; limit > 0 {
		expected = int(min(limit, walkPage))
	}
	var err error
	if f.part.back {
		err = z.c.walkBack(z.key, f.high, expected, visit)
	} else {
		err = z.c.walk(z.key, f.low, expected, visit)
	}
	return all, err
}

// parseScoreEnd reads an end of a range of scores; '(' leaves that score out. As
// in Redis the text ends with its first zero byte, and an empty one is 0.
func parseScoreEnd(arg []byte) (score float64, open, ok bool) {
	if i := bytes.IndexByte(arg, 0); i >= 0 {
		arg = arg[:i]
	}
	if open = len(arg) > 0 && arg[0] == '('; open {
		arg = arg[1:]
	}
	if len(arg) == 0 {
		return 0, open, true
	}
	score, ok = strtod(bytes.TrimLeft(arg, " \t\n\v\f\r"))
	return score, open, ok
}

// lexEnd is an end of a range of names.
type lexEnd struct {
	name     string
	open     bool // the name itself is left out
	infinity int  // -1 and 1 are before and behind all names
}

func parseLexEnd(arg []byte) (lexEnd, bool) {
	if len(arg) == 0 {
		return lexEnd{}, false
	}
	alone := len(arg) == 1 || arg[1] == 0
	switch arg[0] {
	case '-':
		return lexEnd{infinity: -1, open: true}, alone
	case '+':
		return lexEnd{infinity: 1, open: true}, alone
	case '(', '[':
		return lexEnd{name: string(arg[1:]), open: arg[0] == '('}, true
	}
	return lexEnd{}, false
}

// compare compares a name with an end.
func (e *lexEnd) compare(name string) int {
	if e.infinity != 0 {
		return -e.infinity
	}
	return cmp.Compare(name, e.name)
}

// lexRange is a range of names.
type lexRange struct{ low, high lexEnd }

func (r *lexRange) aboveLow(name string) bool {
	c := r.low.compare(name)
	return c > 0 || c == 0 && !r.low.open
}

func (r *lexRange) belowHigh(name string) bool {
	c := r.high.compare(name)
	return c < 0 || c == 0 && !r.high.open
}

// empty reports whether no name can be in the range.
func (r *lexRange) empty() bool {
	if r.low.infinity != 0 || r.high.infinity != 0 {
		return r.low.infinity >= r.high.infinity
	}
	c := cmp.Compare(r.low.name, r.high.name)
	return c > 0 || c == 0 && (r.low.open || r.high.open)
}

// lexSpan reads the ends of a range of names, which is meant for members of one
// score.
func lexSpan(low, high []byte) (spanOf, error) {
	var r lexRange
	var ok bool
	if r.low, ok = parseLexEnd(low); !ok {
		return nil, errLexRange
	}
	if r.high, ok = parseLexEnd(high); !ok {
		return nil, errLexRange
	}
	return r.find, nil
}

func (r *lexRange) find(z *sortedSet, p part) (found, error) {
	if z.count == 0 || r.empty() {
		return found{}, nil
	}
	first, err := z.member(0)
	if err != nil {
		return found{}, err
	}
	last, err := z.member(z.count - 1)
	if err != nil {
		return found{}, err
	}
	if key := scoreKey(first.score); key == scoreKey(last.score) {
		return found{low: r.low.from(key), high: r.high.to(key), part: p}, nil
	}
	if !r.aboveLow(last.name) || !r.belowHigh(first.name) {
		return found{}, nil
	}
	w, err := r.walk(z, p)
	return found{window: w, part: p}, err
}

// from is where a range that begins here begins among the members of a score.
func (e *lexEnd) from(key uint64) string {
	if e.infinity < 0 {
		return scorePlace(key, "")
	}
	return e.place(key, e.open)
}

// to is where a range that ends here ends among them.
func (e *lexEnd) to(key uint64) string {
	if e.infinity > 0 {
		return scorePlace(key+1, "")
	}
	return e.place(key, !e.open)
}

// place is the place of a name, or the one behind it.
func (e *lexEnd) place(key uint64, behind bool) string {
	name := e.name
	if behind {
		name += "\x00"
	}
	return scorePlace(key, name)
}

// member returns the member of a rank.
func (z *sortedSet) member(rank int) (scored, error) {
	it, err := z.at(z.count + rank)
	if err != nil {
		return scored{}, err
	}
	return scoredOf(it.Field), nil
}

// walk finds a range of names among members of different scores, which are in no
// order of names. Redis goes to the first one in the range, or the last, from
// there on by the offset, and then as far as members are in the range.
func (r *lexRange) walk(z *sortedSet, p part) (window, error) {
	enter, stay := r.aboveLow, r.belowHigh
	if p.back {
		enter, stay = stay, enter
	}
	skipped, offset, n := 0, p.offset, 0
	entered := false
	err := z.each(window{0, z.count}, p.back, func(m scored) bool {
		switch {
		case !entered && !enter(m.name):
			skipped++
			return true
		case !entered && !stay(m.name):
			return false
		}
		entered = true
		switch {
		case offset != 0:
			offset--
			skipped++
			return true
		case int64(n) == p.limit || !stay(m.name):
			return false
		}
		n++
		return true
	})
	if p.back {
		return window{z.count - skipped - n, n}, err
	}
	return window{skipped, n}, err
}

// rangeOptions are what a command of the ZRANGE family wants.
type rangeOptions struct {
	by rangeKind
	part
	turned bool // the way is said
	scores bool
}

// runZRange is ZRANGE; ZRANGESTORE has its destination in front.
func runZRange(c *Call) error      { return rangeCommand(c, 1, rangeOptions{}) }
func runZRangeStore(c *Call) error { return rangeCommand(c, 2, rangeOptions{}) }

func runZRevRange(c *Call) error {
	return rangeCommand(c, 1, rangeOptions{by: byRank, turned: true, part: part{back: true}})
}

func runZRangeByScore(c *Call) error {
	return rangeCommand(c, 1, rangeOptions{by: byScore, turned: true})
}

func runZRevRangeByScore(c *Call) error {
	return rangeCommand(c, 1, rangeOptions{by: byScore, turned: true, part: part{back: true}})
}

func runZRangeByLex(c *Call) error {
	return rangeCommand(c, 1, rangeOptions{by: byLex, turned: true})
}

func runZRevRangeByLex(c *Call) error {
	return rangeCommand(c, 1, rangeOptions{by: byLex, turned: true, part: part{back: true}})
}

// parse reads the options behind the ends of a range; store leaves no choice of
// scores.
func (o *rangeOptions) parse(rest [][]byte, store bool) (err error) {
	for o.limit = -1; len(rest) > 0; rest = rest[1:] {
		switch a := rest[0]; {
		case !store && equalFold(a, "withscores"):
			o.scores = true
		case len(rest) > 2 && equalFold(a, "limit"):
			if o.offset, err = parseLong(rest[1]); err != nil {
				return err
			}
			if o.limit, err = parseLong(rest[2]); err != nil {
				return err
			}
			rest = rest[2:]
		case !o.turned && equalFold(a, "rev"):
			o.turned, o.back = true, true
		case o.by == kindUnsaid && equalFold(a, "bylex"):
			o.by = byLex
		case o.by == kindUnsaid && equalFold(a, "byscore"):
			o.by = byScore
		default:
			return errSyntax
		}
	}
	if o.by == kindUnsaid {
		o.by = byRank
	}
	switch {
	case o.limit != -1 && o.by == byRank:
		return errLimitByRank
	case o.scores && o.by == byLex:
		return errScoresByLex
	}
	return nil
}

func parseLong(arg []byte) (int64, error) {
	n, ok := parseInt(arg)
	if !ok {
		return 0, errNotInteger
	}
	return n, nil
}

// rangeCommand is a command whose sorted set is argument source, with the ends
// of the range behind it: the higher one first where scores or names are wanted
// backwards.
func rangeCommand(c *Call, source int, o rangeOptions) error {
	store := source == 2
	if err := o.parse(c.Args[source+3:], store); err != nil {
		return err
	}
	low, high := c.Args[source+1], c.Args[source+2]
	if o.back && o.by != byRank {
		low, high = high, low
	}
	find, err := parseSpan(o.by, low, high)
	if err != nil {
		return err
	}
	z, err := c.sortedSet(c.Key(source))
	if err != nil {
		return err
	}
	f, err := find(&z, o.part)
	if err != nil {
		return err
	}
	members, err := z.found(f)
	switch {
	case err != nil:
		return err
	case store:
		to := gathering{c: c, key: c.Key(1)}
		for _, m := range members {
			if err := to.addScored(m.name); err != nil {
				return err
			}
		}
		return c.storeScored(1, members)
	}
	c.replyScored(members, o.scores)
	return nil
}

func runZCount(c *Call) error    { return countRange(c, byScore) }
func runZLexCount(c *Call) error { return countRange(c, byLex) }

func countRange(c *Call, by rangeKind) error {
	find, err := parseSpan(by, c.Args[2], c.Args[3])
	if err != nil {
		return err
	}
	z, err := c.sortedSet(c.Key(1))
	if err != nil {
		return err
	}
	w, err := z.all(find)
	if err != nil {
		return err
	}
	c.Reply.Int(int64(w.n))
	return nil
}

func runZRemRangeByRank(c *Call) error  { return removeRange(c, byRank) }
func runZRemRangeByScore(c *Call) error { return removeRange(c, byScore) }
func runZRemRangeByLex(c *Call) error   { return removeRange(c, byLex) }

func removeRange(c *Call, by rangeKind) error {
	find, err := parseSpan(by, c.Args[2], c.Args[3])
	if err != nil {
		return err
	}
	z, err := c.sortedSet(c.Own(1))
	if err != nil {
		return err
	}
	w, err := z.all(find)
	if err != nil {
		return err
	}
	if w.n > 0 {
		if err := z.cut(w); err != nil {
			return err
		}
		if err := z.save(); err != nil {
			return err
		}
	}
	c.Reply.Int(int64(w.n))
	return nil
}

// ---- the lowest and the highest

func runZPopMin(c *Call) error { return popScored(c, true) }
func runZPopMax(c *Call) error { return popScored(c, false) }

func popScored(c *Call, low bool) error {
	if len(c.Args) > 3 {
		return errSyntax
	}
	count := int64(1)
	if len(c.Args) == 3 {
		var err error
		if count, err = c.intBetween(2, 0, math.MaxInt64, errNotPositive); err != nil {
			return err
		}
	}
	z, err := c.sortedSet(c.Own(1))
	if err != nil {
		return err
	}
	members, err := z.pop(low, count)
	if err != nil {
		return err
	}
	if len(c.Args) == 2 && len(members) == 1 {
		c.Reply.Array(2) // no pair of its own where no count is given
		c.Reply.BulkString(members[0].name)
		c.Reply.Double(members[0].score)
		return nil
	}
	c.replyScored(members, true)
	return nil
}

// pop takes up to count members from an end.
func (z *sortedSet) pop(low bool, count int64) ([]scored, error) {
	n := int(min(count, int64(z.count)))
	if n == 0 {
		return nil, nil
	}
	w := window{0, n}
	if !low {
		w.from = z.count - n
	}
	members, err := z.members(w, !low)
	if err != nil {
		return nil, err
	}
	if err := z.cut(w); err != nil {
		return nil, err
	}
	return members, z.save()
}

func runZMPop(c *Call) error  { return popFirstScored(c, 1) }
func runBZMPop(c *Call) error { return popFirstScored(c, 2) }

// popFirstScored pops from the first sorted set that has members. The number of
// keys is at args[at].
func popFirstScored(c *Call, at int) error {
	o, err := parsePop(c.Args, at, "min", "max")
	if err != nil {
		return err
	}
	for _, key := range o.keys {
		if found, err := o.popScoredFrom(c, string(key)); found || err != nil {
			return err
		}
	}
	if o.wait == nil {
		c.Reply.NullArray()
		return nil
	}
	c.wait = o.wait
	c.wait.kind = kindSortedSet
	c.wait.serve = func(c *Call, key string) (string, error) {
		_, err := o.popScoredFrom(c, key)
		return "", err
	}
	return nil
}

// popScoredFrom pops from a sorted set, if it is there.
func (o *popOptions) popScoredFrom(c *Call, key string) (found bool, err error) {
	members, err := c.popScored(key, o.low, int64(o.count))
	if err != nil || len(members) == 0 {
		return false, err
	}
	c.Reply.Array(2)
	c.Reply.BulkString(key)
	c.Reply.Array(len(members))
	for _, m := range members {
		c.Reply.Array(2)
		c.Reply.BulkString(m.name)
		c.Reply.Double(m.score)
	}
	return true, nil
}

// popScored pops from a sorted set, if it is there.
func (c *Call) popScored(key string, low bool, count int64) ([]scored, error) {
	z, err := c.sortedSet(key)
	if err != nil || z.count == 0 {
		return nil, err
	}
	return z.pop(low, count)
}

func runBZPopMin(c *Call) error { return blockingPopScored(c, true) }
func runBZPopMax(c *Call) error { return blockingPopScored(c, false) }

func blockingPopScored(c *Call, low bool) error {
	last := len(c.Args) - 1
	timeout, err := blockTimeout(c.Args[last])
	if err != nil {
		return err
	}
	for _, key := range c.Args[1:last] {
		if found, err := popOneScored(c, string(key), low); found || err != nil {
			return err
		}
	}
	c.wait = waiting(timeout, c.Args[1:last]...)
	c.wait.kind = kindSortedSet
	c.wait.serve = func(c *Call, key string) (string, error) {
		_, err := popOneScored(c, key, low)
		return "", err
	}
	return nil
}

// popOneScored pops a member from a sorted set, if it is there.
func popOneScored(c *Call, key string, low bool) (found bool, err error) {
	members, err := c.popScored(key, low, 1)
	if err != nil || len(members) == 0 {
		return false, err
	}
	c.Reply.Array(3)
	c.Reply.BulkString(key)
	c.Reply.BulkString(members[0].name)
	c.Reply.Double(members[0].score)
	return true, nil
}

// ---- chance and scans

func runZRandMember(c *Call) error {
	return randomCommand(c, kindSortedSet, "withscores", func(it *store.Item) { c.Reply.Double(scoreOf(it.Value)) })
}

func runZScan(c *Call) error {
	return scanCommand(c, kindSortedSet, 2, func(z *collection, r *Reply, it *store.Item) {
		r.BulkString(memberOf(it.Field))
		r.Bulk(scanScore(scoreOf(it.Value), z.count))
	})
}

// scanScore is how ZSCAN shows a score. In small sets Redis keeps whole numbers
// as such, and shows them with all their digits.
func scanScore(score float64, count int) []byte {
	const whole = 1 << 62
	if count <= onePage && math.Abs(score) < whole && score == math.Trunc(score) {
		return strconv.AppendInt(nil, int64(score), 10)
	}
	return appendDouble(nil, score)
}
