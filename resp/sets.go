package resp

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/slotmesh/slotmesh/store"
)

// A set is a collection whose members have no value.

func setCommands() []Command {
	return []Command{
		{
			Name: "sadd", Arity: -3, Flags: Write | DenyOOM | Fast, First: 1, Last: 1, Step: 1,
			Run: runSAdd, Group: "set", Since: "1.0.0",
			Summary:    "Add one or more members to a set",
			Complexity: "O(1) for each element added, so O(N) to add N elements when the command is called with multiple arguments.",
		},
		{
			Name: "srem", Arity: -3, Flags: Write | Fast, First: 1, Last: 1, Step: 1,
			Run: runSRem, Group: "set", Since: "1.0.0",
			Summary:    "Remove one or more members from a set",
			Complexity: "O(N) where N is the number of members to be removed.",
		},
		{
			Name: "smembers", Arity: 2, Flags: ReadOnly, First: 1, Last: 1, Step: 1,
			Run: runSMembers, Group: "set", Since: "1.0.0",
			Summary:    "Get all the members in a set",
			Complexity: "O(N) where N is the set cardinality.",
		},
		{
			Name: "sismember", Arity: 3, Flags: ReadOnly | Fast, First: 1, Last: 1, Step: 1,
			Run: runSIsMember, Group: "set", Since: "1.0.0",
			Summary:    "Determine if a given value is a member of a set",
			Complexity: "O(1)",
		},
		{
			Name: "smismember", Arity: -3, Flags: ReadOnly | Fast, First: 1, Last: 1, Step: 1,
			Run: runSMIsMember, Group: "set", Since: "6.2.0",
			Summary:    "Returns the membership associated with the given elements for a set",
			Complexity: "O(N) where N is the number of elements being checked for membership",
		},
		{
			Name: "scard", Arity: 2, Flags: ReadOnly | Fast, First: 1, Last: 1, Step: 1,
			Run: runSCard, Group: "set", Since: "1.0.0",
			Summary:    "Get the number of members in a set",
			Complexity: "O(1)",
		},
		{
			Name: "spop", Arity: -2, Flags: Write | Fast, First: 1, Last: 1, Step: 1,
			Run: runSPop, Group: "set", Since: "1.0.0",
			Summary:    "Remove and return one or multiple random members from a set",
			Complexity: "Without the count argument O(1), otherwise O(N) where N is the value of the passed count.",
		},
		{
			Name: "srandmember", Arity: -2, Flags: ReadOnly, First: 1, Last: 1, Step: 1,
			Run: runSRandMember, Group: "set", Since: "1.0.0",
			Summary:    "Get one or multiple random members from a set",
			Complexity: "Without the count argument O(1), otherwise O(N) where N is the absolute value of the passed count.",
		},
		{
			Name: "smove", Arity: 4, Flags: Write | Fast, First: 1, Last: 2, Step: 1,
			Run: runSMove, Group: "set", Since: "1.0.0",
			Summary:    "Move a member from one set to another",
			Complexity: "O(1)",
		},
		{
			Name: "sinter", Arity: -2, Flags: ReadOnly, First: 1, Last: -1, Step: 1,
			Run: runSInter, Group: "set", Since: "1.0.0",
			Summary:    "Intersect multiple sets",
			Complexity: "O(N*M) worst case where N is the cardinality of the smallest set and M is the number of sets.",
		},
		{
			Name: "sinterstore", Arity: -3, Flags: Write | DenyOOM, First: 1, Last: -1, Step: 1,
			Run: runSInterStore, Group: "set", Since: "1.0.0",
			Summary:    "Intersect multiple sets and store the resulting set in a key",
			Complexity: "O(N*M) worst case where N is the cardinality of the smallest set and M is the number of sets.",
		},
		{
			Name: "sintercard", Arity: -3, Flags: ReadOnly | MovableKeys, Keys: keysBehind(1, interCardCount),
			Run: runSInterCard, Group: "set", Since: "7.0.0",
			Summary:    "Intersect multiple sets and return the cardinality of the result",
			Complexity: "O(N*M) worst case where N is the cardinality of the smallest set and M is the number of sets.",
		},
		{
			Name: "sunion", Arity: -2, Flags: ReadOnly, First: 1, Last: -1, Step: 1,
			Run: runSUnion, Group: "set", Since: "1.0.0",
			Summary:    "Add multiple sets",
			Complexity: "O(N) where N is the total number of elements in all given sets.",
		},
		{
			Name: "sunionstore", Arity: -3, Flags: Write | DenyOOM, First: 1, Last: -1, Step: 1,
			Run: runSUnionStore, Group: "set", Since: "1.0.0",
			Summary:    "Add multiple sets and store the resulting set in a key",
			Complexity: "O(N) where N is the total number of elements in all given sets.",
		},
		{
			Name: "sdiff", Arity: -2, Flags: ReadOnly, First: 1, Last: -1, Step: 1,
			Run: runSDiff, Group: "set", Since: "1.0.0",
			Summary:    "Subtract multiple sets",
			Complexity: "O(N) where N is the total number of elements in all given sets.",
		},
		{
			Name: "sdiffstore", Arity: -3, Flags: Write | DenyOOM, First: 1, Last: -1, Step: 1,
			Run: runSDiffStore, Group: "set", Since: "1.0.0",
			Summary:    "Subtract multiple sets and store the resulting set in a key",
			Complexity: "O(N) where N is the total number of elements in all given sets.",
		},
		{
			Name: "sscan", Arity: -3, Flags: ReadOnly, First: 1, Last: 1, Step: 1,
			Run: runSScan, Group: "set", Since: "2.8.0",
			Summary:    "Incrementally iterate Set elements",
			Complexity: "O(1) for every call. O(N) for a complete iteration, including enough command calls for the cursor to return back to 0. N is the number of elements inside the collection..",
		},
	}
}

const (
	errNumkeys        Error = "ERR numkeys should be greater than 0"
	errNumkeysTooMany Error = "ERR Number of keys can't be greater than number of args"
	errNegativeLimit  Error = "ERR LIMIT can't be negative"
)

func runSAdd(c *Call) error {
	s, err := c.collection(c.Own(1), kindSet)
	if err != nil {
		return err
	}
	had := s.count
	for _, name := range c.Args[2:] {
		if err := s.add(s.field(name)); err != nil {
			return err
		}
	}
	if err := s.save(); err != nil {
		return err
	}
	c.Reply.Int(int64(s.count - had))
	return nil
}

// add adds a member that may be there.
func (k *collection) add(field string) error {
	_, found, err := k.get(field)
	if err != nil || found {
		return err
	}
	return k.put(field, nil, true)
}

func runSRem(c *Call) error { return removeMembers(c, kindSet) }

func runSMembers(c *Call) error {
	s, err := c.collection(c.Key(1), kindSet)
	if err != nil {
		return err
	}
	c.Reply.Set(s.count)
	return s.reply(func(it *store.Item) { c.Reply.BulkString(memberOf(it.Field)) })
}

func runSIsMember(c *Call) error {
	s, err := c.collection(c.Key(1), kindSet)
	if err != nil {
		return err
	}
	_, found, err := s.get(s.field(c.Args[2]))
	if err != nil {
		return err
	}
	c.replyBool(found)
	return nil
}

func runSMIsMember(c *Call) error {
	s, err := c.collection(c.Key(1), kindSet)
	if err != nil {
		return err
	}
	c.Reply.Array(len(c.Args) - 2)
	for _, name := range c.Args[2:] {
		_, found, err := s.get(s.field(name))
		if err != nil {
			return err
		}
		c.replyBool(found)
	}
	return nil
}

func runSCard(c *Call) error { return replyCount(c, kindSet) }

func runSPop(c *Call) error {
	switch len(c.Args) {
	case 2:
		return popOne(c)
	case 3:
		return popMany(c)
	default:
		return errSyntax
	}
}

func popOne(c *Call) error {
	s, err := c.collection(c.Own(1), kindSet)
	if err != nil {
		return err
	}
	if s.count == 0 {
		c.Reply.Null()
		return nil
	}
	it, err := s.at(rand.IntN(s.count))
	if err != nil {
		return err
	}
	if err := s.remove(it.Field); err != nil {
		return err
	}
	if err := s.save(); err != nil {
		return err
	}
	c.Reply.BulkString(memberOf(it.Field))
	return nil
}

func popMany(c *Call) error {
	count, err := c.intBetween(2, 0, math.MaxInt64, errNotPositive)
	if err != nil {
		return err
	}
	s, err := c.collection(c.Own(1), kindSet)
	if err != nil {
		return err
	}
	n := int(min(count, int64(s.count)))
	drawn := make([]string, 0, n)
	if n > 0 {
		if err := s.draw(n, func(it *store.Item) { drawn = append(drawn, it.Field) }); err != nil {
			return err
		}
	}
	if n == s.count {
		s.count = 0 // the key goes, and its members with it
	} else {
		for _, field := range drawn {
			if err := s.remove(field); err != nil {
				return err
			}
		}
	}
	if err := s.save(); err != nil {
		return err
	}
	c.replySet(drawn)
	return nil
}

func runSRandMember(c *Call) error {
	switch len(c.Args) {
	case 2:
		return randomOne(c, kindSet)
	case 3:
	default:
		return errSyntax
	}
	count, err := c.intBetween(2, -math.MaxInt64, math.MaxInt64, "")
	if err != nil {
		return err
	}
	return randomMany(c, kindSet, count, func(n int) func(*store.Item) {
		c.Reply.Array(n)
		return func(it *store.Item) { c.Reply.BulkString(memberOf(it.Field)) }
	})
}

func runSMove(c *Call) error {
	from, err := c.collection(c.Own(1), kindSet)
	if err != nil {
		return err
	}
	if from.count == 0 {
		c.Reply.Int(0)
		return nil
	}
	to, err := c.collection(c.Own(2), kindSet)
	if err != nil {
		return err
	}
	field := from.field(c.Args[3])
	_, found, err := from.get(field)
	if err != nil {
		return err
	}
	if found && from.key != to.key {
		if err := moveMember(&from, &to, field); err != nil {
			return err
		}
	}
	c.replyBool(found)
	return nil
}

func moveMember(from, to *collection, field string) error {
	if err := from.remove(field); err != nil {
		return err
	}
	if err := to.add(field); err != nil {
		return err
	}
	if err := from.save(); err != nil {
		return err
	}
	return to.save()
}

// ---- algebra

// setOperation computes the fields of a result from sets, in which each field
// stands once. to is where they are put, if anywhere.
type setOperation func(sets []collection, to *gathering) ([]string, error)

func runSInter(c *Call) error      { return replyOperation(c, setIntersection) }
func runSUnion(c *Call) error      { return replyOperation(c, setUnion) }
func runSDiff(c *Call) error       { return replyOperation(c, setDifference) }
func runSInterStore(c *Call) error { return storeOperation(c, setIntersection) }
func runSUnionStore(c *Call) error { return storeOperation(c, setUnion) }
func runSDiffStore(c *Call) error  { return storeOperation(c, setDifference) }

// sets opens the sets of arguments from up to to.
func (c *Call) sets(from, to int) ([]collection, error) {
	sets := make([]collection, 0, to-from)
	for i := from; i < to; i++ {
		s, err := c.collection(c.Key(i), kindSet)
		if err != nil {
			return nil, err
		}
		sets = append(sets, s)
	}
	return sets, nil
}

func replyOperation(c *Call, op setOperation) error {
	sets, err := c.sets(1, len(c.Args))
	if err != nil {
		return err
	}
	fields, err := op(sets, nil)
	if err != nil {
		return err
	}
	c.replySet(fields)
	return nil
}

func (c *Call) replySet(fields []string) {
	c.Reply.Set(len(fields))
	for _, f := range fields {
		c.Reply.BulkString(memberOf(f))
	}
}

func storeOperation(c *Call, op setOperation) error {
	sets, err := c.sets(2, len(c.Args))
	if err != nil {
		return err
	}
	fields, err := op(sets, &gathering{c: c, key: c.Key(1)})
	if err != nil {
		return err
	}
	to, err := c.created(c.Own(1), kindSet)
	if err != nil {
		return err
	}
	for _, f := range fields {
		if err := to.put(f, nil, true); err != nil {
			return err
		}
	}
	if err := to.save(); err != nil {
		return err
	}
	c.Reply.Int(int64(to.count))
	return nil
}

func setIntersection(sets []collection, to *gathering) ([]string, error) {
	return intersectionUpTo(sets, math.MaxInt, to)
}

// intersectionUpTo walks over the smallest set and asks the others. It ends when
// it has found limit members.
func intersectionUpTo(sets []collection, limit int, to *gathering) (fields []string, err error) {
	sets = slices.Clone(sets)
	slices.SortStableFunc(sets, func(a, b collection) int { return a.count - b.count })
	walkErr := sets[0].each(func(it *store.Item) bool {
		var all bool
		if all, err = inAll(sets[1:], it.Field); err != nil {
			return false
		}
		if all {
			fields = append(fields, it.Field)
			err = to.add(1, len(it.Field))
		}
		return err == nil && len(fields) < limit
	})
	if err == nil {
		err = walkErr
	}
	return fields, err
}

func inAll(sets []collection, field string) (bool, error) {
	for i := range sets {
		if _, found, err := sets[i].get(field); err != nil || !found {
			return false, err
		}
	}
	return true, nil
}

func inAny(sets []collection, field string) (bool, error) {
	for i := range sets {
		if _, found, err := sets[i].get(field); err != nil || found {
			return found, err
		}
	}
	return false, nil
}

func setUnion(sets []collection, to *gathering) (fields []string, err error) {
	seen := map[string]bool{}
	for i := range sets {
		walkErr := sets[i].each(func(it *store.Item) bool {
			if !seen[it.Field] {
				seen[it.Field] = true
				fields = append(fields, it.Field)
				err = to.add(1, len(it.Field))
			}
			return err == nil
		})
		if err = cmp.Or(err, walkErr); err != nil {
			return nil, err
		}
	}
	return fields, nil
}

func setDifference(sets []collection, to *gathering) (fields []string, err error) {
	walkErr := sets[0].each(func(it *store.Item) bool {
		var any bool
		if any, err = inAny(sets[1:], it.Field); err == nil && !any {
			fields = append(fields, it.Field)
			err = to.add(1, len(it.Field))
		}
		return err == nil
	})
	if err == nil {
		err = walkErr
	}
	return fields, err
}

// interCardCount reads the number of keys of SINTERCARD.
func interCardCount(args [][]byte, at int) (int, error) {
	n, err := intBetween(args[at], 1, math.MaxInt64, errNumkeys)
	if err != nil {
		return 0, err
	}
	if n > int64(len(args)-at-1) {
		return 0, errNumkeysTooMany
	}
	return int(n), nil
}

func runSInterCard(c *Call) error {
	n, err := interCardCount(c.Args, 1)
	if err != nil {
		return err
	}
	limit := int64(0)
	for i := 2 + n; i < len(c.Args); i += 2 {
		if !c.Is(i, "limit") || i+1 == len(c.Args) {
			return errSyntax
		}
		if limit, err = c.intBetween(i+1, 0, math.MaxInt64, errNegativeLimit); err != nil {
			return err
		}
	}
	if limit == 0 {
		limit = math.MaxInt64
	}
	sets, err := c.sets(2, 2+n)
	if err != nil {
		return err
	}
	fields, err := intersectionUpTo(sets, int(limit), nil)
	if err != nil {
		return err
	}
	c.Reply.Int(int64(len(fields)))
	return nil
}

func runSScan(c *Call) error {
	return scanCommand(c, kindSet, 1, func(_ *collection, r *Reply, it *store.Item) {
		r.BulkString(memberOf(it.Field))
	})
}
