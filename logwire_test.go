package slotmesh

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/slotmesh/slotmesh/internal/racing"
	"github.com/slotmesh/slotmesh/store"
	"github.com/stretchr/testify/require"
)

func someHistory() history {
	return history{{Epoch{1, false, NodeID{1}}, 0}, {Epoch{7, true, NodeID{2}}, 300}, {Epoch{8, false, NodeID{1}}, 300}}
}

func TestFramesOfTheLogComeBackAsTheyWere(t *testing.T) {
	ask := &syncAsk{cluster: 1, shard: ShardID{2}, store: 3, whole: true, end: 400, past: someHistory()}
	gotAsk, err := decodeSyncAsk(ask.append(nil))
	require.NoError(t, err)
	require.Equal(t, ask, gotAsk)

	from := &logFrom{epoch: Epoch{9, true, NodeID{4}}, all: true, from: 1 << 40, past: someHistory()}
	gotFrom, err := decodeLogFrom(from.append(nil))
	require.NoError(t, err)
	require.Equal(t, from, gotFrom)

	drop, own := moveEntry(entryDrop, 16383, 0), moveEntry(entryOwn, 0, 1<<60)
	frame := &logFrame{first: 7, end: 9, answers: 1 << 40, table: 1 << 60, parts: [][]byte{drop.first, own.first}}
	gotFrame, err := decodeLogFrame(frame.append(nil))
	require.NoError(t, err)
	require.Equal(t, frame, gotFrame)
	p, err := decodePart(own.first)
	require.NoError(t, err)
	require.Equal(t, entryPart{kind: entryOwn, slot: 0, move: 1 << 60}, p)

	mark := &SlotMark{Slot: 5, Node: NodeID{1, 2}, Importing: true}
	p, err = decodePart(markEntry(5, mark).first)
	require.NoError(t, err)
	require.Equal(t, entryPart{kind: entryMark, slot: 5, mark: mark}, p)
	p, err = decodePart(markEntry(5, nil).first)
	require.NoError(t, err)
	require.Equal(t, entryPart{kind: entryUnmark, slot: 5}, p)

	slot := &syncSlot{7, 8, 9, true, &SlotMark{Slot: 7, Node: NodeID{3}}}
	gotSlot, err := decodeSyncSlot(slot.append(nil))
	require.NoError(t, err)
	require.Equal(t, slot, gotSlot)

	end := &syncEnd{1 << 40, copySum{7, 1 << 31}}
	gotEnd, err := decodeSyncEnd(end.append(nil))
	require.NoError(t, err)
	require.Equal(t, end, gotEnd)

	ack := &logAck{Epoch{1, false, NodeID{2}}, 3, 4, 1 << 40}
	gotAck, err := decodeLogAck(ack.append(nil))
	require.NoError(t, err)
	require.Equal(t, ack, gotAck)
}

// An entry has as many parts as its ops need, and they make it up again.
func TestAnEntryOfManyOpsHasParts(t *testing.T) {
	var ops []store.Op
	for i := range 3*pieceOpsMax + 1 {
		ops = append(ops, store.Op{Code: store.OpPut, Key: "k", Field: fmt.Sprint("f", i), Value: []byte{byte(i)}})
	}
	e := opsEntry(5, ops)
	require.Len(t, e.rest, 3)
	var parts []entryPart
	for i, b := range append([][]byte{e.first}, e.rest...) {
		p, err := decodePart(b)
		require.NoError(t, err)
		require.Equal(t, i < 3, p.more)
		parts = append(parts, p)
	}
	require.Equal(t, ops, whole(parts).ops)
}

func TestABacklogIsBoundedInBytes(t *testing.T) {
	b := backlog{limit: 10 * (entryOverhead + 100)}
	b.reset(50)
	for i := range 1000 {
		b.add(logEntry{first: make([]byte, 100)})
		require.LessOrEqual(t, b.bytes, b.limit)
		require.LessOrEqual(t, len(b.entries), 200, "what has gone takes no room for long")
		require.Equal(t, uint64(50+max(0, i+1-10)), b.base)
	}
	last := b.base + 10
	for offset, want := range map[uint64]int{b.base - 1: -1, b.base: 10, b.base + 1: 9, last - 1: 1, last: 0, last + 1: 0} {
		entries, ok := b.from(offset, 1<<20)
		require.Equal(t, want >= 0, ok, offset)
		require.Len(t, entries, max(0, want), offset)
	}
	few, ok := b.from(b.base, 1)
	require.True(t, ok)
	require.Len(t, few, 1, "at least one")
	b.add(logEntry{first: make([]byte, 1<<20)})
	require.Equal(t, last, b.base, "the newest stays, whatever its size")
}

// A command takes effect as a whole at a replica, too, however much it writes.
func TestACommandOfManyFramesIsOneEntry(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		nodes := formShard(t, 2, Config{AckReplicas: 1})
		a, b := nodes[0], nodes[1]
		before := a.Status().Replication.Offset
		value := []byte(strings.Repeat("v", racing.Fewer(1000, 100)))
		require.NoError(t, a.Execute(t.Context(), Request{Keys: []string{"k"}}, func(tx *Tx) error {
			if err := tx.PutEntry("k", store.Entry{Kind: 2, Value: []byte("head")}); err != nil {
				return err
			}
			for i := range 2 * pieceOpsMax {
				if err := tx.PutField("k", fmt.Sprint("f", i), value); err != nil {
					return err
				}
			}
			return nil
		}))
		require.Equal(t, before+1, a.Status().Replication.Offset)
		level(t, driverNT, a, b)
	})
}

func FuzzLogFrames(f *testing.F) {
	ask, from := &syncAsk{past: someHistory()}, &logFrom{past: someHistory()}
	own := moveEntry(entryOwn, 3, 4)
	ops := opsEntry(3, []store.Op{{Code: store.OpPut, Key: "k", Field: "f", Value: []byte("v")}, {Code: store.OpDeleteKey, Key: "k"}})
	f.Add(byte(0), ask.append(nil))
	f.Add(byte(1), from.append(nil))
	f.Add(byte(2), (&logFrame{1, 2, 3, 4, [][]byte{own.first, ops.first}}).append(nil))
	f.Add(byte(3), (&syncSlot{1, 2, 3, false, &SlotMark{Slot: 1}}).append(nil))
	f.Add(byte(4), (&logAck{offset: 1}).append(nil))
	f.Add(byte(5), (&syncEnd{1, copySum{2, 3}}).append(nil))
	f.Add(byte(6), ops.first)
	f.Add(byte(6), markEntry(3, &SlotMark{Slot: 3, Node: NodeID{4}}).first)
	f.Add(byte(6), markEntry(3, nil).first)
	f.Add(byte(6), []byte("\x010\x00")) // of no changes: nobody writes it
	f.Fuzz(func(t *testing.T, kind byte, b []byte) {
		type frame interface{ append([]byte) []byte }
		again := func(v frame, err error) {
			if err == nil && string(v.append(nil)) != string(b) {
				t.Errorf("%v of %x is written as %x", reflect.TypeOf(v), b, v.append(nil))
			}
		}
		switch kind % 7 {
		case 0:
			v, err := decodeSyncAsk(b)
			again(v, err)
		case 1:
			v, err := decodeLogFrom(b)
			again(v, err)
		case 2:
			v, err := decodeLogFrame(b)
			again(v, err)
		case 3:
			v, err := decodeSyncSlot(b)
			again(v, err)
		case 4:
			v, err := decodeLogAck(b)
			again(v, err)
		case 5:
			v, err := decodeSyncEnd(b)
			again(v, err)
		default:
			p, err := decodePart(b)
			if err == nil && p.kind == entryOps {
				again := opsEntry(p.slot, p.ops)
				if q, err := decodePart(again.first); err != nil || len(again.rest) == 0 && !reflect.DeepEqual(q.ops, p.ops) {
					t.Errorf("%x: %v, %v", b, q, err)
				}
			}
		}
	})
}
