package resp

import (
	"math"
	"math/rand/v2"

	"github.com/slotmesh/slotmesh/store"
)

// drawsMax bounds how many members may be drawn with repetition. Redis has no
// bound; it would have run out of memory before it had drawn as many as one can
// ask for.
const drawsMax = 1 << 24

// draw calls f with members chosen by chance: count different ones, or all where
// there are no more; -count where it is negative, in which one may come again.
func (k *collection) draw(count int, f func(*store.Item)) error {
	switch {
	case count < 0:
		return k.drawAgain(-count, f)
	case count >= k.count:
		return k.reply(f)
	case count > k.count/8:
		return k.drawAlong(count, f)
	default:
		return k.drawFew(count, f)
	}
}

func (k *collection) drawAgain(count int, f func(*store.Item)) error {
	for range count {
		it, err := k.at(rand.IntN(k.count))
		if err != nil {
			return err
		}
		f(&it)
	}
	return nil
}

// drawAlong walks over all members and takes each with the chance that leaves
// the right number in the end.
func (k *collection) drawAlong(count int, f func(*store.Item)) error {
	left := k.count
	err := k.each(func(it *store.Item) bool {
		if rand.IntN(left) < count {
			f(it)
			count--
		}
		left--
		return count > 0 && left > 0
	})
	if err == nil && count > 0 {
		return k.broken(k.count - left)
	}
	return err
}

// drawFew draws places that differ: for each of the last count places, one up to
// it, or the place itself where that one is taken (Floyd's way).
func (k *collection) drawFew(count int, f func(*store.Item)) error {
	taken := make(map[int]bool, count)
	for last := k.count - count; last < k.count; last++ {
		i := rand.IntN(last + 1)
		if taken[i] {
			i = last
		}
		taken[i] = true
		it, err := k.at(i)
		if err != nil {
			return err
		}
		f(&it)
	}
	return nil
}

// randomCommand is HRANDFIELD or ZRANDMEMBER: with is the option that asks for
// the value beside the name, which value writes.
func randomCommand(c *Call, kind byte, with string, value func(*store.Item)) error {
	if len(c.Args) == 2 {
		return randomOne(c, kind)
	}
	count, err := c.intBetween(2, -math.MaxInt64, math.MaxInt64, "")
	if err != nil {
		return err
	}
	pairs := len(c.Args) == 4
	switch {
	case len(c.Args) > 4 || pairs && !c.Is(3, with):
		return errSyntax
	case pairs && (count < -math.MaxInt64/2 || count > math.MaxInt64/2):
		return errRange
	}
	return randomMany(c, kind, count, func(n int) func(*store.Item) {
		if !pairs {
			c.Reply.Array(n)
			return func(it *store.Item) { c.Reply.BulkString(memberOf(it.Field)) }
		}
		c.pairs(n)
		return func(it *store.Item) {
			c.pair()
			c.Reply.BulkString(memberOf(it.Field))
			value(it)
		}
	})
}

// pairs announces n pairs: in RESP3 each is an array of its own, see pair.
func (c *Call) pairs(n int) {
	if c.Reply.Proto() == 3 {
		c.Reply.Array(n)
	} else {
		c.Reply.Array(2 * n)
	}
}

func (c *Call) pair() {
	if c.Reply.Proto() == 3 {
		c.Reply.Array(2)
	}
}

func randomOne(c *Call, kind byte) error {
	k, err := c.collection(c.Key(1), kind)
	if err != nil {
		return err
	}
	if k.count == 0 {
		c.Reply.Null()
		return nil
	}
	it, err := k.at(rand.IntN(k.count))
	if err != nil {
		return err
	}
	c.Reply.BulkString(memberOf(it.Field))
	return nil
}

// randomMany draws members; begin announces how many, and returns what writes
// one.
func randomMany(c *Call, kind byte, count int64, begin func(n int) func(*store.Item)) error {
	k, err := c.collection(c.Key(1), kind)
	if err != nil {
		return err
	}
	if k.count == 0 || count == 0 {
		c.Reply.Array(0)
		return nil
	}
	n := min(count, int64(k.count))
	if count < 0 {
		if n = -count; n > drawsMax {
			return errRange
		}
	}
	return k.draw(int(min(max(count, -drawsMax), int64(k.count))), begin(int(n)))
}
