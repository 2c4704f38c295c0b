package slotmesh

import (
	"errors"
	"fmt"

	"github.com/slotmesh/slotmesh/store"
)

// guarded is a store of the application's. One that panics, or answers what no
// store may, must not take the process down or leave a slot locked: it is an
// error of the call. The node's own store needs no such care, and reads of it
// none of its cost.
type guarded struct {
	s store.Store
	r store.Ranked // of s
}

func guard(s Store) guarded { return guarded{s, store.RankedOf(s)} }

// heads reads the heads of keys, in parts: see [store.Memory.Head].
type heads interface {
	Head(slot uint16, key string) (value []byte, kind byte, expireAt int64, found bool, err error)
}

// headsOf is the heads of a store. Of one of the application's they come from its Get,
// also where it has a Head: that may be the one of a Memory inside it, behind the back
// of a Get that does more.
func headsOf(s Store) heads {
	if own, ok := s.(*store.Memory); ok {
		return own
	}
	return parted{s}
}

// parted takes apart what Get returns.
type parted struct{ s Store }

func (p parted) Head(slot uint16, key string) (value []byte, kind byte, expireAt int64, found bool, err error) {
	e, found, err := p.s.Get(slot, key, "")
	return e.Value, e.Kind, e.ExpireAt, found, err
}

// storePanic is a call of a store that has panicked. Where it was to write,
// nobody knows whether it has.
type storePanic struct {
	call  string
	value any
}

func (e *storePanic) Error() string {
	return fmt.Sprintf("slotmesh: Config.Store: %s panicked: %v", e.call, e.value)
}

func mayHaveApplied(err error) bool {
	var p *storePanic
	return errors.As(err, &p)
}

func caught(call string, err *error) {
	if v := recover(); v != nil {
		*err = &storePanic{call, v}
	}
}

func (g guarded) Get(slot uint16, key, field string) (e store.Entry, found bool, err error) {
	defer caught("Get", &err)
	return g.s.Get(slot, key, field)
}

func (g guarded) Range(slot uint16, key, from string, limit int) (items []store.Item, more bool, err error) {
	defer caught("Range", &err)
	return g.s.Range(slot, key, from, limit)
}

func (g guarded) Apply(slot uint16, ops []store.Op) (err error) {
	defer caught("Apply", &err)
	return g.s.Apply(slot, ops)
}

func (g guarded) Len(slot uint16) (n int, err error) {
	defer caught("Len", &err)
	if n, err = g.s.Len(slot); err == nil && n < 0 {
		return 0, fmt.Errorf("slotmesh: Config.Store: Len of slot %d is %d, expected 0 or more", slot, n)
	}
	return n, err
}

// LenExpiring implements store.Expiring: 0 where the store cannot tell.
func (g guarded) LenExpiring(slot uint16) (n int, err error) {
	defer caught("LenExpiring", &err)
	counts, ok := g.s.(store.Expiring)
	if !ok {
		return 0, nil
	}
	if n, err = counts.LenExpiring(slot); err == nil && n < 0 {
		return 0, fmt.Errorf("slotmesh: Config.Store: LenExpiring of slot %d is %d, expected 0 or more", slot, n)
	}
	return n, err
}

func (g guarded) Scan(slot uint16, cursor uint64, limit int) (items []store.Item, next uint64, err error) {
	defer caught("Scan", &err)
	return g.s.Scan(slot, cursor, limit)
}

func (g guarded) Drop(slot uint16) (err error) {
	defer caught("Drop", &err)
	return g.s.Drop(slot)
}

// Close is never called: the store is the application's.
func (g guarded) Close() (err error) {
	defer caught("Close", &err)
	return g.s.Close()
}

func (g guarded) RangeBack(slot uint16, key, before string, limit int) (items []store.Item, more bool, err error) {
	defer caught("RangeBack", &err)
	return g.r.RangeBack(slot, key, before, limit)
}

func (g guarded) Rank(slot uint16, key, field string) (n int, err error) {
	defer caught("Rank", &err)
	return g.r.Rank(slot, key, field)
}

func (g guarded) At(slot uint16, key string, i int) (it store.Item, found bool, err error) {
	defer caught("At", &err)
	return g.r.At(slot, key, i)
}
