package store

// Ranked is what a [Store] adds when it can tell the place of a field among the
// fields of its key, and find the field at a place, without a walk over those
// before it: in a time that grows with the logarithm of their number, or its
// square. In all three the head counts for nothing and is never returned.
// [RankedOf] gives them for any store.
//
// They are called under the lock of the slot, shared or exclusive, and their
// strings are only read during the call.
type Ranked interface {
	// RangeBack is Range the other way: it returns the entries of a key whose
	// field comes before the given one, in descending order; "" stands behind
	// the last. To go on, call again with the last field returned; to begin with
	// a field that may be there, add "\x00" to it. limit and more are those of
	// Range.
	RangeBack(slot uint16, key, before string, limit int) (items []Item, more bool, err error)

	// Rank returns how many fields of a key come before the given one, whether
	// that is there or not. Of "" it is 0.
	Rank(slot uint16, key, field string) (int, error)

	// At returns the i-th field of a key in ascending order, from 0, and whether
	// there are so many. A negative i is none.
	At(slot uint16, key string, i int) (Item, bool, error)
}

// RankedOf returns s itself if it is [Ranked], else one that walks over the
// fields of s, for which At and Rank take a time that grows with the rank, and
// RangeBack one that grows with the number of fields before.
func RankedOf(s Store) Ranked {
	if r, ok := s.(Ranked); ok {
		return r
	}
	return walked{s}
}

// walked walks.
type walked struct{ s Store }

// each calls f with the fields of a key in ascending order, until it returns
// false. It asks for so many at a time.
func (w walked) each(slot uint16, key string, page int, f func(*Item) bool) error {
	for from, more := FirstField, true; more; {
		var items []Item
		var err error
		if items, more, err = w.s.Range(slot, key, from, page); err != nil {
			return err
		}
		for i := range items {
			if !f(&items[i]) {
				return nil
			}
		}
		if len(items) > 0 {
			from = items[len(items)-1].Field + "\x00"
		}
	}
	return nil
}

func (w walked) RangeBack(slot uint16, key, before string, limit int) ([]Item, bool, error) {
	if err := CheckLimit(limit); err != nil {
		return nil, false, err
	}
	if limit == 0 {
		limit = pageSize
	}
	var all []Item // the last of them, twice the limit at most
	more := false
	err := w.each(slot, key, 0, func(it *Item) bool {
		if before != "" && it.Field >= before {
			return false
		}
		if all = append(all, *it); len(all)/2 >= limit && len(all) > 1 {
			more = true
			all = append(all[:0], all[len(all)-limit:]...)
		}
		return true
	})
	if err != nil {
		return nil, false, err
	}
	more = more || len(all) > limit
	out := make([]Item, 0, min(limit, len(all)))
	for i := len(all) - 1; i >= 0 && len(out) < limit; i-- {
		out = append(out, all[i])
	}
	return out, more, nil
}

func (w walked) Rank(slot uint16, key, field string) (int, error) {
	n := 0
	err := w.each(slot, key, 0, func(it *Item) bool {
		if it.Field >= field {
			return false
		}
		n++
		return true
	})
	return n, err
}

func (w walked) At(slot uint16, key string, i int) (at Item, found bool, err error) {
	if i < 0 {
		return Item{}, false, nil
	}
	n := 0
	err = w.each(slot, key, min(i, pageSize-1)+1, func(it *Item) bool {
		if found = n == i; found {
			at = *it
		}
		n++
		return !found
	})
	return at, found, err
}
