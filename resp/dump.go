package resp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"strings"

	"github.com/slotmesh/slotmesh"
	"github.com/slotmesh/slotmesh/resp/rdb"
	"github.com/slotmesh/slotmesh/store"
)

// Errors of RESTORE.
const (
	errBusyKey     Error = "BUSYKEY Target key name already exists."
	errDumpFooter  Error = "ERR DUMP payload version or checksum are wrong"
	errDumpFormat  Error = "ERR Bad data format"
	errRestoreTTL  Error = "ERR Invalid TTL value, must be >= 0"
	errRestoreIdle Error = "ERR Invalid IDLETIME value, must be >= 0"
	errRestoreFreq Error = "ERR Invalid FREQ value, must be >= 0 and <= 255"
)

// fieldsFrom walks the entries of a collection in the order of their fields,
// from one on, the head not among them. It ends at the first error.
func fieldsFrom(tx *slotmesh.Tx, key, from string) iter.Seq2[*store.Item, error] {
	return func(yield func(*store.Item, error) bool) {
		for {
			items, more, err := tx.Range(key, from, 0)
			if err != nil {
				yield(nil, err)
				return
			}
			for i := range items {
				if !yield(&items[i], nil) {
					return
				}
			}
			if !more || len(items) == 0 {
				return
			}
			from = items[len(items)-1].Field + "\x00"
		}
	}
}

// scoresBegin is where the members of a sorted set begin in the order of their
// scores, which is behind those in the order of a scan.
const scoresBegin = string(rune(sortedSetScore))

func runDump(c *Call) error {
	found, err := c.exists(c.Key(1))
	if err != nil {
		return err
	}
	if !found {
		c.Reply.Null()
		return nil
	}
	payload, err := dumpKey(c.Tx, c.Key(1))
	if err != nil {
		return err
	}
	c.Reply.Bulk(payload)
	return nil
}

// dumpKey is the payload of a key that is there, as DUMP returns it.
func dumpKey(tx *slotmesh.Tx, key string) ([]byte, error) {
	v, _, found, err := exportValue(tx, key)
	if err == nil && !found {
		err = errNoSuchKey
	}
	if err != nil {
		return nil, err
	}
	return rdb.Append(nil, &v), nil
}

// exportValue is the value of a key, when it expires (Unix milliseconds, 0 for
// never), and whether it is there. What the value holds is the store's: it must
// not be changed.
func exportValue(tx *slotmesh.Tx, key string) (v rdb.Value, expireAt int64, found bool, err error) {
	e, found, err := tx.Entry(key)
	if err != nil || !found {
		return v, 0, false, err
	}
	switch e.Kind {
	case kindString:
		v = rdb.Value{Kind: rdb.String, String: e.Value}
	case kindList:
		v.Kind = rdb.List
		v.List, err = exportFields(tx, key, "", func(item *store.Item) []byte { return item.Value })
	case kindSet:
		v.Kind = rdb.Set
		v.Set, err = exportFields(tx, key, "", func(item *store.Item) []byte { return []byte(memberOf(item.Field)) })
	case kindHash:
		v.Kind = rdb.Hash
		v.Hash, err = exportFields(tx, key, "", func(item *store.Item) rdb.Pair {
			return rdb.Pair{Field: []byte(memberOf(item.Field)), Value: item.Value}
		})
	case kindSortedSet:
		v.Kind = rdb.SortedSet
		v.SortedSet, err = exportFields(tx, key, scoresBegin, func(item *store.Item) rdb.Scored {
			score, member := splitScoreField(item.Field)
			return rdb.Scored{Member: []byte(member), Score: score}
		})
	default:
		err = Error(fmt.Sprintf("ERR the value of key '%.64s' is of kind %d, which has no serialized form", key, e.Kind))
	}
	return v, e.ExpireAt, err == nil, err
}

func exportFields[T any](tx *slotmesh.Tx, key, from string, element func(*store.Item) T) ([]T, error) {
	var all []T
	for item, err := range fieldsFrom(tx, key, from) {
		if err != nil {
			return nil, err
		}
		all = append(all, element(item))
	}
	return all, nil
}

// valueSize is what a collection takes beside its head and without the name of its
// key: entries, and their bytes.
func valueSize(v *rdb.Value) (entries int, bytes int64) {
	for _, el := range v.List {
		bytes += int64(len(el) + len(indexField(0)))
	}
	for _, m := range v.Set {
		bytes += int64(namePosition + len(m))
	}
	for _, p := range v.Hash {
		bytes += int64(namePosition + len(p.Field) + len(p.Value))
	}
	for _, s := range v.SortedSet { // by member, with its score, and by score
		bytes += int64(namePosition + len(s.Member) + scoreBytes + scoredName + len(s.Member))
	}
	return len(v.List) + len(v.Set) + len(v.Hash) + 2*len(v.SortedSet), bytes
}

// importValue stores a value under a key that is not there. It keeps no bytes of
// v but those of a string.
func importValue(tx *slotmesh.Tx, key string, v *rdb.Value, expireAt int64) error {
	switch v.Kind {
	case rdb.String:
		return tx.PutEntry(key, store.Entry{ExpireAt: expireAt, Value: v.String})
	case rdb.List:
		values := make([][]byte, len(v.List))
		for i := range v.List {
			// Elements of one payload may share its memory, and leave one by one.
			values[i] = bytes.Clone(v.List[i])
		}
		return putList(tx, key, values, expireAt)
	case rdb.Set:
		return importMembers(tx, key, kindSet, expireAt, v.Set, func(m *[]byte) fieldValue {
			return fieldValue{name: field(*m)}
		})
	case rdb.Hash:
		return importMembers(tx, key, kindHash, expireAt, v.Hash, func(p *rdb.Pair) fieldValue {
			return fieldValue{field(p.Field), bytes.Clone(p.Value)}
		})
	case rdb.SortedSet:
		return importMembers(tx, key, kindSortedSet, expireAt, v.SortedSet, func(s *rdb.Scored) fieldValue {
			return fieldValue{memberField(s.Member), scoreValue(s.Score)}
		}, func(s *rdb.Scored) fieldValue {
			return fieldValue{name: scoreField(s.Score, s.Member)}
		})
	}
	return errDumpFormat
}

// fieldValue is a field that is to be stored.
type fieldValue struct {
	name  string
	value []byte
}

// importMembers stores the head of a collection and the entries of each member. Each kind
// of them goes in by itself and in the order of the fields, whatever the order of the
// payload is: in trees of many entries that finds the next place where the last one
// was, and fills nodes, where chance would look for each anew.
func importMembers[T any](tx *slotmesh.Tx, key string, kind byte, expireAt int64, members []T, entries ...func(*T) fieldValue) error {
	head := store.Entry{Kind: kind, ExpireAt: expireAt, Value: binary.AppendUvarint(nil, uint64(len(members)))}
	if err := tx.PutEntry(key, head); err != nil {
		return err
	}
	items := make([]fieldValue, len(members))
	for _, entry := range entries {
		for i := range members {
			items[i] = entry(&members[i])
		}
		slices.SortFunc(items, func(a, b fieldValue) int { return strings.Compare(a.name, b.name) })
		for i := range items {
			if err := tx.PutField(key, items[i].name, items[i].value); err != nil {
				return err
			}
		}
	}
	return nil
}

// putList stores a list under a key that is not there. It keeps the values.
func putList(tx *slotmesh.Tx, key string, values [][]byte, expireAt int64) error {
	head := binary.BigEndian.AppendUint64(nil, listMiddle)
	head = binary.BigEndian.AppendUint64(head, listMiddle+uint64(len(values))-1)
	if err := tx.PutEntry(key, store.Entry{Kind: kindList, ExpireAt: expireAt, Value: head}); err != nil {
		return err
	}
	for i, v := range values {
		if err := tx.PutField(key, indexField(listMiddle+uint64(i)), v); err != nil {
			return err
		}
	}
	return nil
}

// ---- RESTORE

func runRestore(c *Call) error {
	o, err := c.restoreOptions()
	if err != nil {
		return err
	}
	taken, err := c.exists(c.Key(1))
	if err != nil {
		return err
	}
	if taken && !o.replace {
		return errBusyKey
	}
	expireAt, err := c.restoreTime(o.absolute)
	if err != nil {
		return err
	}
	v, err := c.parseDump(3)
	if err != nil {
		return err
	}
	if taken {
		if _, err := c.Tx.Delete(c.Own(1)); err != nil {
			return err
		}
	}
	// What has expired on the way is not stored, and that is no error.
	if expireAt == 0 || expireAt > c.Now() {
		if err := importValue(c.Tx, c.Own(1), &v, expireAt); err != nil {
			return err
		}
	}
	c.Reply.Simple("OK")
	return nil
}

type restoreOptions struct{ replace, absolute bool }

// restoreOptions reads the options. How often and when a key was used is checked
// and not kept.
func (c *Call) restoreOptions() (o restoreOptions, err error) {
	idle, freq := false, false
	for i := 4; i < len(c.Args); i++ {
		more := i+1 < len(c.Args)
		switch {
		case c.Is(i, "replace"):
			o.replace = true
		case c.Is(i, "absttl"):
			o.absolute = true
		case c.Is(i, "idletime") && more && !freq:
			i, idle = i+1, true
			err = c.between(i, math.MaxInt64, errRestoreIdle)
		case c.Is(i, "freq") && more && !idle:
			i, freq = i+1, true
			err = c.between(i, 255, errRestoreFreq)
		default:
			err = errSyntax
		}
		if err != nil {
			return o, err
		}
	}
	return o, nil
}

// between checks that argument i is a number from 0 to most.
func (c *Call) between(i int, most int64, outside error) error {
	n, err := c.Int(i)
	if err == nil && (n < 0 || n > most) {
		return outside
	}
	return err
}

// restoreTime is when the key expires, in Unix milliseconds, 0 for never. As in
// Redis a sum beyond 64 bits wraps, and is in the past.
func (c *Call) restoreTime(absolute bool) (int64, error) {
	ttl, err := c.Int(2)
	switch {
	case err != nil:
		return 0, err
	case ttl < 0:
		return 0, errRestoreTTL
	case ttl == 0 || absolute:
		return ttl, nil
	}
	return ttl + c.Now(), nil
}

// parseDump reads a payload that can be stored in one step.
func (c *Call) parseDump(i int) (rdb.Value, error) {
	calls, room := c.Tx.Room()
	v, err := rdb.Parse(c.Args[i], rdb.Limits{Bytes: max(1, room), Elements: max(1, calls)})
	switch {
	case errors.Is(err, rdb.ErrFooter):
		err = errDumpFooter
	case errors.Is(err, rdb.ErrUnsupported), errors.Is(err, rdb.ErrLimit):
		err = Error(fmt.Sprintf("%s: key '%.64s': %v", errDumpFormat, c.Args[1], err))
	case err != nil:
		err = errDumpFormat
	case v.Kind != rdb.String:
		entries, bytes := valueSize(&v)
		err = c.mayCopy(c.Key(1), entries, bytes)
	}
	return v, err
}
