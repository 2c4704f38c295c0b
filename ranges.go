package slotmesh

import (
	"fmt"

	"github.com/slotmesh/slotmesh/store"
	"github.com/tidwall/btree"
)

// The fields of a key in order, as a command sees them: what is stored and what
// the command itself has written, side by side.

const rangePage = 1024 // items of a Range whose caller leaves it open

// Range returns at most limit fields of a key whose name is from or comes after
// it, in ascending order of their bytes; the head is none of them. limit 0 is
// 1024. more says that others follow: go on from the last name + "\x00".
func (t *Tx) Range(key, from string, limit int) (items []store.Item, more bool, err error) {
	return t.rangeOf(key, max(from, store.FirstField), limit, false)
}

// RangeBack returns at most limit fields of a key whose name comes before the
// given one, in descending order of their bytes; the head is none of them. ""
// stands behind the last field; to begin with a field that may be there, add
// "\x00" to its name. limit 0 is 1024. more says that others follow: go on with
// the last name returned.
func (t *Tx) RangeBack(key, before string, limit int) (items []store.Item, more bool, err error) {
	return t.rangeOf(key, before, limit, true)
}

func (t *Tx) rangeOf(key, from string, limit int, back bool) ([]store.Item, bool, error) {
	if err := t.check(key); err != nil {
		return nil, false, err
	}
	if limit < 0 {
		return nil, false, fmt.Errorf("%w: limit %d of a range, expected 0 or more", ErrInvalid, limit)
	}
	if limit == 0 {
		limit = rangePage
	}
	if gone, err := t.gone(key); err != nil || gone {
		return nil, false, err
	}
	k := t.written(key)
	if k == nil || k.fields.Len() == 0 && !k.erased {
		return t.storedPage(key, from, limit, back)
	}
	return t.merged(key, k, from, limit, back)
}

func (t *Tx) storedPage(key, from string, limit int, back bool) ([]store.Item, bool, error) {
	if back {
		return t.e.ranked.RangeBack(uint16(t.slot), key, from, limit)
	}
	return t.e.store.Range(uint16(t.slot), key, from, limit)
}

// merged is a range over a key that the command has written.
func (t *Tx) merged(key string, k *txKey, from string, limit int, back bool) (out []store.Item, more bool, err error) {
	w := k.walk(from, back)
	for stored := !k.erased; stored && len(out) <= limit; {
		var items []store.Item
		if items, stored, err = t.storedPage(key, from, limit+1, back); err != nil {
			return nil, false, err
		}
		for i := range items {
			out = append(w.until(items[i].Field, key, out), items[i])
			if w.at(items[i].Field) {
				out = w.take(key, out[:len(out)-1])
			}
		}
		if n := len(items); n > 0 {
			if from = items[n-1].Field; !back {
				from += "\x00"
			}
		}
	}
	for w.more && len(out) <= limit {
		out = w.take(key, out)
	}
	if len(out) > limit {
		return out[:limit], true, nil
	}
	return out, false, nil
}

// writtenWalk walks over the fields that a command has put or deleted.
type writtenWalk struct {
	it   btree.MapIter[string, txField]
	back bool
	more bool
}

func (k *txKey) walk(from string, back bool) *writtenWalk {
	w := &writtenWalk{it: k.fields.Iter(), back: back}
	switch {
	case !back:
		w.more = w.it.Seek(from)
	case from != "" && w.it.Seek(from):
		w.more = w.it.Prev()
	default:
		w.more = w.it.Last()
	}
	return w
}

// at reports whether the walk is at a field.
func (w *writtenWalk) at(field string) bool { return w.more && w.it.Key() == field }

// until appends the fields that come before one, in the order of the walk.
func (w *writtenWalk) until(field, key string, out []store.Item) []store.Item {
	for w.more && w.it.Key() != field && (w.it.Key() > field) == w.back {
		out = w.take(key, out)
	}
	return out
}

// take appends the field that the walk is at, if it has been put, and goes on.
func (w *writtenWalk) take(key string, out []store.Item) []store.Item {
	if f := w.it.Value(); !f.deleted {
		out = append(out, store.Item{Key: key, Field: w.it.Key(), Entry: store.Entry{Value: f.value}})
	}
	if w.back {
		w.more = w.it.Prev()
	} else {
		w.more = w.it.Next()
	}
	return out
}

// Rank returns how many fields of a key come before the given one, whether that
// is there or not, the head not counted. So the difference of two ranks is the
// number of fields between. Its time grows with the square of the logarithm of
// their number, and with the number of fields of the key that the command has
// written.
func (t *Tx) Rank(key, field string) (int, error) {
	if err := t.check(key); err != nil {
		return 0, err
	}
	if gone, err := t.gone(key); err != nil || gone {
		return 0, err
	}
	k := t.written(key)
	n := 0
	if k == nil || !k.erased {
		var err error
		if n, err = t.e.ranked.Rank(uint16(t.slot), key, field); err != nil || k == nil {
			return n, err
		}
	}
	if err := t.learn(key, k); err != nil {
		return 0, err
	}
	k.fields.Scan(func(name string, f txField) bool {
		if name >= field {
			return false
		}
		n += f.adds()
		return true
	})
	return n, nil
}

// At returns the i-th field of a key in ascending order, from 0, the head not
// counted, and whether there are so many. Its time is that of Rank.
func (t *Tx) At(key string, i int) (item store.Item, found bool, err error) {
	if err := t.check(key); err != nil {
		return store.Item{}, false, err
	}
	if gone, err := t.gone(key); err != nil || gone || i < 0 {
		return store.Item{}, false, err
	}
	k := t.written(key)
	if k == nil {
		return t.e.ranked.At(uint16(t.slot), key, i)
	}
	if err := t.learn(key, k); err != nil {
		return store.Item{}, false, err
	}
	added := 0 // by what has been written up to here
	k.fields.Scan(func(name string, f txField) bool {
		place := f.rank + added
		if place > i {
			return false
		}
		if found = place == i && !f.deleted; found {
			item = store.Item{Key: key, Field: name, Entry: store.Entry{Value: f.value}}
		}
		added += f.adds()
		return !found
	})
	if found || k.erased {
		return item, found, nil
	}
	return t.e.ranked.At(uint16(t.slot), key, i-added)
}

// adds is by how much a written field changes the number of fields.
func (f *txField) adds() int {
	switch {
	case f.stored && f.deleted:
		return -1
	case !f.stored && !f.deleted:
		return 1
	default:
		return 0
	}
}

// learn looks up what is stored where a command has written. Nothing of it
// changes while the command runs.
func (t *Tx) learn(key string, k *txKey) error {
	if k.unseen == 0 {
		return nil
	}
	var names []string
	k.fields.Scan(func(name string, f txField) bool {
		if !f.seen {
			names = append(names, name)
		}
		return true
	})
	for _, name := range names {
		f, _ := k.fields.Get(name)
		f.seen = true
		if !k.erased {
			var err error
			if _, f.stored, err = t.e.store.Get(uint16(t.slot), key, name); err == nil {
				f.rank, err = t.e.ranked.Rank(uint16(t.slot), key, name)
			}
			if err != nil {
				return err
			}
		}
		k.fields.Set(name, f)
	}
	k.unseen = 0
	return nil
}
