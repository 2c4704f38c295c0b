// Package store holds what a node keeps for its slots: the contract that every
// store obeys ([Store]), the checks that all of them share, and [Memory], the
// default.
//
// A slot holds keys. A key holds entries, each under a field. The empty field
// is the key's head: it alone carries a kind and a time of expiry, and its
// value is either the whole value (kind 0, a plain key) or a small header of a
// collection whose members are the other entries. So a change to one member of
// a hash is one entry, whatever the size of the hash.
//
//	s := store.NewMemory()
//	defer s.Close()
//	err := s.Apply(1649, []store.Op{{Code: store.OpPut, Key: "user:1000", Value: []byte("alice")}})
//	e, found, err := s.Get(1649, "user:1000", "")
//
// A store knows nothing of commands, clocks, owners or routing. Package
// storetest holds the conformance suite for stores of your own.
package store

import (
	"context"
	"errors"
	"fmt"
)

// NumSlots is the number of slots; a slot is 0 to NumSlots-1.
const NumSlots = 16384

// FirstField is the smallest field that is not the head: Range from here sees
// the members of a collection and not its header.
const FirstField = "\x00"

// MaxCursor is the largest cursor that [Store.Scan] returns: 48 bits leave
// room for a slot beside it in one 64-bit number.
const MaxCursor = 1<<48 - 1

var (
	// ErrClosed is returned by every call on a store after Close.
	ErrClosed = errors.New("store: closed")

	// ErrInvalid is matched by the error for an argument that no store takes: a
	// slot out of range, an op that is not well formed. The text says which.
	ErrInvalid = errors.New("store: invalid argument")
)

// An Entry is what a store keeps under one slot, key and field.
type Entry struct {
	Value    []byte // may be nil where it is empty
	ExpireAt int64  // Unix time in milliseconds, 0 for never; always 0 where the field is not the head
	Kind     byte   // what the key is, 0 for plain; always 0 where the field is not the head
}

// An Item is an Entry with its address inside a slot.
type Item struct {
	Key   string
	Field string // "" is the key's head
	Entry
}

// An OpCode says what an [Op] does. The zero OpCode is not valid.
type OpCode byte

const (
	// OpPut stores Value under Key and Field, in place of what was there. With
	// an empty Field it also sets the key's Kind and ExpireAt; with any other
	// field those two must be 0. A field may be put before the head is, and the
	// key exists from its first entry on: changes arrive in pieces where a slot
	// moves or a replica catches up, and a store refuses none of them.
	OpPut OpCode = iota + 1

	// OpDelete removes the entry under Key and Field and nothing else: the key
	// lives while it has an entry. So deleting the head leaves the other fields
	// in place, and deleting the last of the other fields leaves the head.
	OpDelete

	// OpDeleteKey removes Key with all its entries.
	OpDeleteKey

	// OpDropSlot removes every key of the slot. Ops before it in the same batch
	// are undone by it, ops after it start from the empty slot.
	OpDropSlot
)

// String returns the name of the code, as in "Put".
func (c OpCode) String() string {
	switch c {
	case OpPut:
		return "Put"
	case OpDelete:
		return "Delete"
	case OpDeleteKey:
		return "DeleteKey"
	case OpDropSlot:
		return "DropSlot"
	default:
		return fmt.Sprintf("OpCode(%d)", byte(c))
	}
}

// An Op is one absolute and idempotent change to a slot: applying it twice in a
// row is the same as applying it once, and what is not there can be deleted.
// What a code does not use must be zero; see [CheckOps].
type Op struct {
	Key      string
	Field    string
	Value    []byte
	ExpireAt int64 // as in Entry
	Code     OpCode
	Kind     byte // as in Entry
}

// Persistent is a [Store] that outlives the process that has it open. A replica, or
// a primary, that starts again with such a store is the member that it was; where its
// node was closed before, and nothing else has changed the store since, it need not
// copy everything either.
//
// A replica that does have to copy everything gathers it in memory first, whatever the
// store, for what the store holds is not touched before the copy is whole: for that time
// its process needs room in memory for all data of its shard, though the store keeps it
// on disk.
type Persistent interface {
	Store

	// Incarnation is the same number, and not 0, as long as the store holds every
	// change that Apply and Drop have made visible, over restarts and crashes: it is
	// another one once some of them are missing, the store is restored from a copy,
	// or is a copy itself. Random numbers do.
	Incarnation() uint64
}

// A Store keeps the entries of a node.
//
// # Concurrency
//
// The caller holds the lock of the slot that it names: Get, Range, Len and Scan
// of one slot may run beside each other, Apply and Drop of a slot run alone
// there. A store may rely on it and need not lock within a slot. Calls for
// different slots run at any time beside each other. Close may be called at any
// time.
//
// # Ownership
//
// A value that was handed in or out is never modified afterwards, by either
// side; both may keep it for ever. Hand in slices of their own: a store that
// keeps a piece of a network buffer keeps the whole buffer alive. The same holds
// for the strings in an Op. Key and field of Get and Range, by contrast, are
// only read during the call, so those two may be views of a buffer that is
// used again afterwards. The slices of ops and of items belong to the caller.
//
// # Errors
//
// A store that is closed returns ErrClosed, a call that is not well formed an
// error that matches ErrInvalid, a key that is not there no error at all.
// Anything else is a failure of the medium below. After a failed Apply the slot
// is as it was before.
type Store interface {
	// Get returns the entry under a key and a field, "" for the key's head, and
	// whether there is one. An entry whose time has come is returned like any
	// other: a store has no clock, and hiding it is up to the caller.
	Get(slot uint16, key, field string) (Entry, bool, error)

	// Range returns the entries of a key whose field is from or comes after it,
	// in ascending order of the fields' bytes. From "" the head comes first,
	// where there is one; from FirstField it is left out. It returns at most
	// limit entries; limit 0 leaves the number to the store. It may stop early
	// to bound the bytes of one answer, but not before the first entry. more
	// says that there are others behind the last one: to go on, call again from
	// its field + "\x00". A negative limit is ErrInvalid.
	Range(slot uint16, key, from string, limit int) (items []Item, more bool, err error)

	// Apply makes the changes in order, all or none. It returns when they are
	// visible to every later call and their order is settled; whether they are
	// on disk by then is the business of Durable. No ops, no change. It is the
	// only way in.
	Apply(slot uint16, ops []Op) error

	// Len returns the number of keys of a slot, those with a past ExpireAt
	// included. It takes the same short time whatever the number.
	Len(slot uint16) (int, error)

	// Scan walks the keys of a slot, a page a call, in no particular order.
	// Cursor 0 starts; go on with the cursor returned; a returned 0 ends the
	// walk. Per key it returns the first entry in the order of Range: the head,
	// which shows the kind and the time of expiry, or for a key without a head
	// its smallest field.
	//
	// Keys may come and go between two calls. Every key that is there during
	// the whole walk is returned at least once; a key may be returned twice,
	// and one that was added or removed meanwhile may be returned or not. The
	// work of a call is bounded: at most limit keys, limit 0 leaves the number
	// to the store, a negative one is ErrInvalid. A page may be empty before
	// the walk has ended. Any cursor is accepted, also one from before a Drop;
	// the promise holds for those that this slot has returned.
	Scan(slot uint16, cursor uint64, limit int) (items []Item, next uint64, err error)

	// Drop removes every key of a slot, as an OpDropSlot alone would. It
	// detaches them at once, in a time that does not depend on their number; what
	// they occupied is freed later.
	Drop(slot uint16) error

	// Close gives back what the store holds. It is idempotent, and every call
	// that begins after it has returned gives ErrClosed.
	Close() error
}

// Durable is what a [Store] adds when its changes reach the disk after Apply
// has returned. The caller notes the position under the slot's lock, lets go of
// the lock, and waits; many waits share one sync.
type Durable interface {
	// Position returns the position of the last change to the slot. It grows
	// with each Apply and Drop that changes the slot, and never falls, also not
	// by a drop. Called under the slot's lock, shared or exclusive.
	Position(slot uint16) uint64

	// Wait returns nil once every change to the slot up to the position is on
	// disk, ErrClosed where the store was closed before, or the context's error
	// when the context is over first. Any other error is final: the changes may
	// or may not be on disk, and every later Apply fails. Called without a lock.
	Wait(ctx context.Context, slot uint16, position uint64) error
}

// Expiring is what a [Store] adds that can tell how many keys expire.
type Expiring interface {
	// LenExpiring returns the number of keys of a slot whose head has an ExpireAt,
	// a past one included. It takes the same short time whatever the number.
	LenExpiring(slot uint16) (int, error)
}

// CheckSlot returns an error that matches ErrInvalid unless slot is one.
func CheckSlot(slot uint16) error {
	if slot >= NumSlots {
		return fmt.Errorf("%w: slot %d, want 0 to %d", ErrInvalid, slot, NumSlots-1)
	}
	return nil
}

// CheckLimit returns an error that matches ErrInvalid if limit is negative.
func CheckLimit(limit int) error {
	if limit < 0 {
		return fmt.Errorf("%w: limit %d, want 0 or more", ErrInvalid, limit)
	}
	return nil
}

// CheckOps returns an error that matches ErrInvalid if an op is not well formed.
// It names the first such op, what is wrong with it and what was expected. A
// store calls it before it changes anything.
func CheckOps(ops []Op) error {
	for i := range ops {
		if problem := ops[i].problem(); problem != "" {
			return fmt.Errorf("%w: op %d, %v: %s", ErrInvalid, i, ops[i].Code, problem)
		}
	}
	return nil
}

// problem says what is wrong with the op, or nothing. What a code does not use
// is refused rather than ignored: a DeleteKey with a field was most likely
// meant to be a Delete, and obeying it would lose the rest of the key.
func (o *Op) problem() string {
	switch o.Code {
	case OpPut:
		return o.putProblem()
	case OpDelete, OpDeleteKey, OpDropSlot:
	default:
		return "unknown code, want Put, Delete, DeleteKey or DropSlot"
	}
	switch {
	case len(o.Value) > 0:
		return fmt.Sprintf("a value of %d bytes, want none", len(o.Value))
	case o.ExpireAt != 0:
		return fmt.Sprintf("ExpireAt %d, want 0", o.ExpireAt)
	case o.Kind != 0:
		return fmt.Sprintf("Kind %d, want 0", o.Kind)
	case o.Field != "" && o.Code != OpDelete:
		return fmt.Sprintf("field %.64q, want none", o.Field)
	case o.Key != "" && o.Code == OpDropSlot:
		return fmt.Sprintf("key %.64q, want none", o.Key)
	}
	return ""
}

func (o *Op) putProblem() string {
	switch {
	case o.ExpireAt < 0:
		return fmt.Sprintf("ExpireAt %d, want Unix milliseconds or 0 for never", o.ExpireAt)
	case o.Field != "" && o.ExpireAt != 0:
		return fmt.Sprintf("ExpireAt %d at field %.64q, want 0: only the head expires", o.ExpireAt, o.Field)
	case o.Field != "" && o.Kind != 0:
		return fmt.Sprintf("Kind %d at field %.64q, want 0: only the head has a kind", o.Kind, o.Field)
	}
	return ""
}
