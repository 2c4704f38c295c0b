package resp

import (
	"bytes"
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Errors of SORT.
const (
	errSortBy    Error = "ERR BY option of SORT denied in Cluster mode."
	errSortGet   Error = "ERR GET option of SORT denied in Cluster mode."
	errSortScore Error = "ERR One or more scores can't be converted into double"
)

// sortKeys finds the keys of a SORT: the one to sort, and the one to store to,
// the last where there are several.
func sortKeys(args [][]byte) ([]int, error) {
	at := []int{1}
	for i := 2; i < len(args); i++ {
		switch {
		case equalFold(args[i], "limit"):
			i += 2
		case equalFold(args[i], "get"), equalFold(args[i], "by"):
			i++
		case equalFold(args[i], "store") && i+1 < len(args):
			at = append(at[:1], i+1)
		}
	}
	return at, nil
}

// sortOptions are what SORT and SORT_RO take.
type sortOptions struct {
	descending, alpha bool
	natural           bool // BY a pattern without '*': in the order of the value
	start, count      int64
	itself            int // how often GET # asks for the element itself; 0: not at all, which is once
	store             int // the argument, 0: none
}

func runSort(c *Call) error   { return c.sort(false) }
func runSortRO(c *Call) error { return c.sort(true) }

func (c *Call) sort(readOnly bool) error {
	o, err := c.sortOptions(readOnly)
	if err != nil {
		return err
	}
	e, found, err := c.Tx.Entry(c.Key(1))
	if err != nil {
		return err
	}
	if found && e.Kind != kindList && e.Kind != kindSet && e.Kind != kindSortedSet {
		return errWrongType
	}
	elements, err := c.sortElements(e.Kind, found)
	if err != nil {
		return err
	}
	if elements, err = o.order(elements, e.Kind); err != nil {
		return err
	}
	times := max(1, o.itself)
	if o.store > 0 {
		return c.sortStore(o.store, elements, times)
	}
	c.Reply.Array(len(elements) * times)
	for _, el := range elements {
		for range times {
			if c.Reply.over() {
				return nil // however many GETs there are
			}
			c.Reply.BulkString(el)
		}
	}
	return nil
}

// sortOptions reads the options. They are looked at in order, and the first that
// is wrong is the error, though a later one may be more so.
func (c *Call) sortOptions(readOnly bool) (o sortOptions, err error) {
	o.count = -1
	for i := 2; i < len(c.Args); i++ {
		behind := len(c.Args) - i - 1
		switch {
		case c.Is(i, "asc"):
			o.descending = false
		case c.Is(i, "desc"):
			o.descending = true
		case c.Is(i, "alpha"):
			o.alpha = true
		case c.Is(i, "limit") && behind >= 2:
			if o.start, err = c.Int(i + 1); err != nil {
				return o, err
			}
			if o.count, err = c.Int(i + 2); err != nil {
				return o, err
			}
			i += 2
		case !readOnly && c.Is(i, "store") && behind >= 1:
			i++
			o.store = i
		case c.Is(i, "by") && behind >= 1:
			i++
			if bytes.IndexByte(cText(c.Args[i]), '*') >= 0 {
				return o, errSortBy // the keys that it names may be in any slot
			}
			o.natural = true
		case c.Is(i, "get") && behind >= 1:
			i++
			if string(c.Args[i]) != "#" {
				return o, errSortGet // as with BY; Redis 7.0 refuses #, too, which names no key
			}
			o.itself++
		default:
			return o, errSyntax
		}
	}
	return o, nil
}

// sortElements are the members of a collection: of a list from head to tail, of
// a set in no order, of a sorted set by score.
func (c *Call) sortElements(kind byte, found bool) (elements []string, err error) {
	if !found {
		return nil, nil
	}
	from := ""
	if kind == kindSortedSet {
		from = scoresBegin
	}
	for item, err := range fieldsFrom(c.Tx, c.Key(1), from) {
		if err != nil {
			return nil, err
		}
		switch kind {
		case kindList:
			elements = append(elements, view(item.Value))
		case kindSet:
			elements = append(elements, memberOf(item.Field))
		default:
			_, member := splitScoreField(item.Field)
			elements = append(elements, member)
		}
	}
	return elements, nil
}

// order sorts the elements and cuts out what LIMIT leaves.
func (o *sortOptions) order(elements []string, kind byte) ([]string, error) {
	alpha := o.alpha
	if o.natural && kind == kindSet && o.store > 0 {
		alpha = true // so that what is stored is the same everywhere
	} else if o.natural {
		if o.descending && kind != kindSet {
			slices.Reverse(elements)
		}
		return o.limit(elements), nil
	}
	compare := strings.Compare
	if alpha {
		slices.SortFunc(elements, o.direction(compare))
		return o.limit(elements), nil
	}
	elements, err := o.byNumber(elements)
	return o.limit(elements), err
}

func (o *sortOptions) direction(compare func(a, b string) int) func(a, b string) int {
	if o.descending {
		return func(a, b string) int { return compare(b, a) }
	}
	return compare
}

// byNumber sorts elements by the numbers that they are; the same number goes by
// the bytes.
func (o *sortOptions) byNumber(elements []string) ([]string, error) {
	type numbered struct {
		element string
		score   float64
	}
	all := make([]numbered, len(elements))
	for i, el := range elements {
		score, ok := sortScore(el)
		if !ok {
			return nil, errSortScore
		}
		all[i] = numbered{el, score}
	}
	slices.SortFunc(all, func(a, b numbered) int {
		if o.descending {
			a, b = b, a
		}
		return cmp.Or(cmp.Compare(a.score, b.score), strings.Compare(a.element, b.element))
	})
	for i := range all {
		elements[i] = all[i].element
	}
	return elements, nil
}

// sortScore reads a number as C's strtod does, which takes spaces in front, ends
// at a zero byte, and takes nothing for 0. What a double holds only in part is
// none.
func sortScore(s string) (float64, bool) {
	if s, _, _ = strings.Cut(s, "\x00"); s == "" {
		return 0, true
	}
	s = strings.TrimLeft(s, " \t\r\n\v\f")
	long, ok := parseLongDouble([]byte(s))
	if !ok {
		return 0, false
	}
	if long.Sign() == 0 || long.IsInf() {
		f, _ := long.Float64()
		return f, true
	}
	const smallest = 0x1p-1022 // below, a double has fewer digits
	f := nearestDouble(s)
	return f, !math.IsInf(f, 0) && math.Abs(f) >= smallest
}

// nearestDouble reads a text that is a number.
func nearestDouble(s string) float64 {
	if hex := strings.ToLower(s); strings.Contains(hex, "0x") && !strings.Contains(hex, "p") {
		s += "p0" // Go wants the exponent
	}
	f, _ := strconv.ParseFloat(s, 64)
	return f
}

// limit cuts out what LIMIT says.
func (o *sortOptions) limit(elements []string) []string {
	n := int64(len(elements))
	start := min(max(o.start, 0), n)
	end := n
	if o.count >= 0 {
		end = start + min(o.count, n-start)
	}
	return elements[start:end]
}

// sortStore puts the elements into a list, each so many times, in place of what is
// there.
func (c *Call) sortStore(i int, elements []string, times int) error {
	size := int64(0)
	for _, el := range elements {
		size += int64(times) * int64(len(indexField(0))+len(el))
	}
	n := len(elements) * times
	if err := c.mayCopy(c.Key(i), n, size); err != nil {
		return err
	}
	if _, err := c.remove(i); err != nil {
		return err
	}
	values := make([][]byte, 0, n)
	for _, el := range elements {
		value := []byte(el)
		for range times {
			values = append(values, value)
		}
	}
	if n > 0 {
		if err := putList(c.Tx, c.Own(i), values, 0); err != nil {
			return err
		}
	}
	c.Reply.Int(int64(n))
	return nil
}
