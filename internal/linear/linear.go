// Package linear records what clients call and what they hear, and says which
// answers a store could have given that has one copy of each key. Tests hand both to
// a checker of linearizability: the package itself knows none.
package linear

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
)

// Kind is what a call does.
type Kind uint8

// Kinds of calls. A key is either set and swapped, with values that no other call
// sets, or added to.
const (
	Get  Kind = iota // answers the value
	Set              // sets Value, and answers nothing
	Swap             // sets Value, and answers what was there before
	Add              // adds Delta to a number, and answers the sum
)

// Op is one call of a client. An absent key has the value "".
type Op struct {
	Client int
	Kind   Kind
	Key    string
	Value  string // that is set
	Delta  int64

	Answer  string
	Unknown bool // nobody has heard what has become of it: it happens once, at any time later, or never

	// Began and Ended are moments of one clock which never shows a moment twice.
	// What nobody has heard of never ends.
	Began, Ended int64

	undone bool
}

// History is calls in the order in which they began. Its zero value is empty. Its
// methods may be called at once.
type History struct {
	clock atomic.Int64
	mu    sync.Mutex
	ops   []*Op // guarded by mu, and so is what is in them
}

// Begin notes that a call has begun. Until it is ended its outcome is unknown.
func (h *History) Begin(op Op) *Op {
	h.mu.Lock()
	defer h.mu.Unlock()
	op.Began, op.Ended, op.Unknown = h.clock.Add(1), math.MaxInt64, true
	h.ops = append(h.ops, &op)
	return &op
}

// End notes what a client has heard.
func (h *History) End(op *Op, answer string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	op.Answer, op.Unknown, op.Ended = answer, false, h.clock.Add(1)
}

// Undone notes that a client has heard that nothing has happened and nothing will.
func (h *History) Undone(op *Op) {
	h.mu.Lock()
	defer h.mu.Unlock()
	op.undone = true
}

// Keys returns the history of each key, without the calls that say nothing: reads
// that were not answered, and values of unknown outcome that nobody has seen. Each of
// the latter doubles what a checker has to look at, and it may as well not have
// happened.
func (h *History) Keys() map[string][]Op {
	h.mu.Lock()
	defer h.mu.Unlock()
	seen := map[[2]string]bool{}
	for _, op := range h.ops {
		if !op.Unknown && (op.Kind == Get || op.Kind == Swap) {
			seen[[2]string{op.Key, op.Answer}] = true
		}
	}
	keys := map[string][]Op{}
	for _, op := range h.ops {
		says := op.Kind == Add || op.Kind != Get && seen[[2]string{op.Key, op.Value}]
		if !op.undone && (!op.Unknown || says) {
			keys[op.Key] = append(keys[op.Key], *op)
		}
	}
	for _, ops := range keys {
		slices.SortFunc(ops, func(a, b Op) int { return cmp.Compare(a.Began, b.Began) })
	}
	return keys
}

// Step reports whether a key that has a value could answer a call as it did, and
// which value it has then.
func Step(value string, op Op) (next string, ok bool) {
	switch op.Kind {
	case Set:
		return op.Value, true
	case Swap:
		return op.Value, op.Unknown || op.Answer == value
	case Add:
		n, err := strconv.ParseInt(cmp.Or(value, "0"), 10, 64)
		next = strconv.FormatInt(n+op.Delta, 10)
		return next, err == nil && (op.Unknown || op.Answer == next)
	default:
		return value, op.Unknown || op.Answer == value
	}
}
