package resp

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/slotmesh/slotmesh/store"
)

// Unions, intersections and differences of sorted sets. A set counts as a sorted
// set whose scores are 1.

func runZUnion(c *Call) error      { return combineCommand(c, combineUnion, false) }
func runZInter(c *Call) error      { return combineCommand(c, combineInter, false) }
func runZDiff(c *Call) error       { return combineCommand(c, combineDiff, false) }
func runZUnionStore(c *Call) error { return combineCommand(c, combineUnion, true) }
func runZInterStore(c *Call) error { return combineCommand(c, combineInter, true) }
func runZDiffStore(c *Call) error  { return combineCommand(c, combineDiff, true) }

type combineKind uint8

const (
	combineUnion combineKind = iota
	combineInter
	combineDiff
)

// source is a set or a sorted set, and what its scores are multiplied with.
type source struct {
	collection
	weight float64
}

// score is that of a member of the source, as it counts.
func (s *source) score(value []byte) float64 {
	if s.kind == kindSet {
		return s.weight
	}
	return s.weight * scoreOf(value)
}

// combination is a command of the family, read.
type combination struct {
	kind    combineKind
	sources []source
	join    func(a, b float64) float64
	scores  bool // WITHSCORES
	limit   int64
	to      *gathering // where the result is put, if anywhere
}

// combineCount reads the number of keys, at args[at].
func combineCount(args [][]byte, at int) (int, error) {
	n, ok := parseInt(args[at])
	switch {
	case !ok:
		return 0, errNotInteger
	case n < 1:
		return 0, Error(fmt.Sprintf("ERR at least 1 input key is needed for '%s' command", appendLower(nil, args[0])))
	case n > int64(len(args)-at-1):
		return 0, errSyntax
	}
	return int(n), nil
}

// combination reads the keys and what follows them. The number of keys is at
// Args[at]; card is ZINTERCARD.
func (c *Call) combination(kind combineKind, at int, card bool) (*combination, error) {
	n, err := combineCount(c.Args, at)
	if err != nil {
		return nil, err
	}
	m := &combination{kind: kind, join: sumScores, limit: math.MaxInt64}
	for i := at + 1; i <= at+n; i++ {
		s, err := c.source(c.Key(i))
		if err != nil {
			return nil, err
		}
		m.sources = append(m.sources, s)
	}
	for rest := c.Args[at+1+n:]; len(rest) > 0; {
		used, err := m.option(rest, at == 2, card)
		if err != nil {
			return nil, err
		}
		rest = rest[used:]
	}
	return m, nil
}

// source opens a set or a sorted set.
func (c *Call) source(key string) (source, error) {
	e, found, err := c.Tx.Entry(key)
	if err != nil || !found {
		return source{collection{c: c, key: key}, 1}, err
	}
	if e.Kind != kindSet && e.Kind != kindSortedSet {
		return source{}, errWrongType
	}
	n := int(countOf(&e))
	return source{collection{c: c, key: key, kind: e.Kind, head: e, count: n, saved: n}, 1}, nil
}

// option reads one option, and returns how many arguments it takes.
func (m *combination) option(rest [][]byte, store, card bool) (int, error) {
	combines := m.kind != combineDiff && !card
	switch name := rest[0]; {
	case combines && len(rest) > len(m.sources) && equalFold(name, "weights"):
		return m.weights(rest)
	case combines && len(rest) > 1 && equalFold(name, "aggregate"):
		return 2, m.aggregate(rest[1])
	case !store && !card && equalFold(name, "withscores"):
		m.scores = true
		return 1, nil
	case card && len(rest) > 1 && equalFold(name, "limit"):
		var err error
		if m.limit, err = intBetween(rest[1], 0, math.MaxInt64, errNegativeLimit); m.limit == 0 {
			m.limit = math.MaxInt64
		}
		return 2, err
	}
	return 0, errSyntax
}

func (m *combination) weights(rest [][]byte) (int, error) {
	for i := range m.sources {
		f, ok := parseFloat(rest[1+i])
		if !ok {
			return 0, errWeight
		}
		m.sources[i].weight = f
	}
	return 1 + len(m.sources), nil
}

func (m *combination) aggregate(name []byte) error {
	switch {
	case equalFold(name, "sum"):
		m.join = sumScores
	case equalFold(name, "min"):
		m.join = lesser
	case equalFold(name, "max"):
		m.join = greater
	default:
		return errSyntax
	}
	return nil
}

// sumScores takes infinities of both signs for 0, as Redis does.
func sumScores(a, b float64) float64 { return orZero(a + b) }

// lesser and greater leave a as it is where b is no number.
func lesser(a, b float64) float64 {
	if b < a {
		return b
	}
	return a
}

func greater(a, b float64) float64 {
	if b > a {
		return b
	}
	return a
}

func orZero(f float64) float64 {
	if math.IsNaN(f) {
		return 0
	}
	return f
}

func combineCommand(c *Call, kind combineKind, store bool) error {
	at := 1
	if store {
		at = 2
	}
	m, err := c.combination(kind, at, false)
	if err != nil {
		return err
	}
	if store {
		m.to = &gathering{c: c, key: c.Key(1)}
	}
	members, err := m.result()
	if err != nil {
		return err
	}
	slices.SortFunc(members, scored.compare)
	if store {
		return c.storeScored(1, members)
	}
	c.replyScored(members, m.scores)
	return nil
}

func runZInterCard(c *Call) error {
	m, err := c.combination(combineInter, 1, true)
	if err != nil {
		return err
	}
	members, err := m.result()
	if err != nil {
		return err
	}
	c.Reply.Int(int64(len(members)))
	return nil
}

// result is the members of the combination, in no order. Sums are taken from the
// smallest source to the largest, as in Redis: the order decides how they are
// rounded.
func (m *combination) result() ([]scored, error) {
	if m.kind != combineDiff {
		slices.SortStableFunc(m.sources, func(a, b source) int { return a.count - b.count })
	}
	switch m.kind {
	case combineUnion:
		return m.union()
	case combineInter:
		return m.inter()
	default:
		return m.diff()
	}
}

func (m *combination) union() (members []scored, err error) {
	at := map[string]int{}
	for i := range m.sources {
		s := &m.sources[i]
		walkErr := s.each(func(it *store.Item) bool {
			name, score := memberOf(it.Field), orZero(s.score(it.Value))
			if j, found := at[name]; found {
				members[j].score = m.join(members[j].score, score)
			} else {
				at[name] = len(members)
				members = append(members, scored{name, score})
				err = m.to.addScored(name)
			}
			return err == nil
		})
		if err = cmp.Or(err, walkErr); err != nil {
			return nil, err
		}
	}
	return members, nil
}

func (m *combination) inter() (members []scored, err error) {
	first := &m.sources[0]
	walkErr := first.each(func(it *store.Item) bool {
		r := scored{memberOf(it.Field), orZero(first.score(it.Value))}
		var all bool
		if all, err = m.joinOthers(&r); all {
			members = append(members, r)
			err = m.to.addScored(r.name)
		}
		return err == nil && int64(len(members)) < m.limit
	})
	return members, cmp.Or(err, walkErr)
}

// joinOthers joins the scores that a member has in the other sources, and reports
// whether it is in all of them.
func (m *combination) joinOthers(r *scored) (bool, error) {
	for i := range m.sources[1:] {
		s := &m.sources[1+i]
		value, found, err := s.get(s.field(viewBytes(r.name)))
		if err != nil || !found {
			return false, err
		}
		r.score = m.join(r.score, s.score(value))
	}
	return true, nil
}

func (m *combination) diff() (members []scored, err error) {
	first := &m.sources[0]
	walkErr := first.each(func(it *store.Item) bool {
		name := memberOf(it.Field)
		var found bool
		if found, err = m.inOthers(name); err == nil && !found {
			members = append(members, scored{name, first.score(it.Value)})
			err = m.to.addScored(name)
		}
		return err == nil
	})
	return members, cmp.Or(err, walkErr)
}

func (m *combination) inOthers(name string) (bool, error) {
	for i := range m.sources[1:] {
		s := &m.sources[1+i]
		if _, found, err := s.get(s.field(viewBytes(name))); err != nil || found {
			return found, err
		}
	}
	return false, nil
}
