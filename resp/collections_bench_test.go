package resp

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/slotmesh/slotmesh"
	"github.com/stretchr/testify/require"
)

// BenchmarkCollections runs commands on collections of a thousand members and of
// a million: they should cost about the same, in time but for what a tree a thousand
// times as large costs in steps and cache misses, and in effects, which are what
// goes to replicas, to who takes over a slot, and to a disk.
func BenchmarkCollections(b *testing.B) {
	for _, n := range []int{1000, 1_000_000} {
		b.Run(fmt.Sprintf("members=%d", n), func(b *testing.B) {
			e := &effects{bench: newBench(b)}
			name := func(i int) string { return fmt.Sprintf("member:%07d", i) }
			e.fill([]string{"HSET", "h"}, n, func(i int) []string { return []string{name(i), "value"} })
			e.fill([]string{"SADD", "s"}, n, func(i int) []string { return []string{name(i)} })
			e.fill([]string{"ZADD", "z"}, n, func(i int) []string { return []string{strconv.Itoa(i), name(i)} })
			e.fill([]string{"RPUSH", "l"}, n, func(i int) []string { return []string{name(i)} })
			some := func() string { return name(rand.IntN(n)) }
			place := func() string { return strconv.Itoa(rand.IntN(n)) }
			for _, c := range []struct {
				name string
				run  func()
			}{
				{"HSET", func() { e.quick("HSET", "h", some(), "other") }},
				{"HSETandHDEL", func() { e.quick("HSET", "h", "new", "x"); e.quick("HDEL", "h", "new") }},
				{"HGET", func() { e.quick("HGET", "h", some()) }},
				{"HSCAN", func() { e.quick("HSCAN", "h", strconv.FormatUint(uint64(rand.Uint32()), 10), "COUNT", "10") }},
				{"SADDandSREM", func() { e.quick("SADD", "s", "new"); e.quick("SREM", "s", "new") }},
				{"SRANDMEMBER", func() { e.quick("SRANDMEMBER", "s") }},
				{"SPOPandSADD", func() { e.quick("SPOP", "s"); e.quick("SADD", "s", some()) }},
				{"ZADD", func() { e.quick("ZADD", "z", place(), some()) }},
				{"ZRANK", func() { e.quick("ZRANK", "z", some()) }},
				{"ZRANGE10", func() { i := rand.IntN(n - 10); e.quick("ZRANGE", "z", strconv.Itoa(i), strconv.Itoa(i+9)) }},
				{"ZRANGEBYSCORE10", func() { e.quick("ZRANGEBYSCORE", "z", place(), "+inf", "LIMIT", "0", "10") }},
				{"ZCOUNT", func() { e.quick("ZCOUNT", "z", place(), "+inf") }},
				{"ZPOPMINandZADD", func() { e.quick("ZPOPMIN", "z"); e.quick("ZADD", "z", place(), some()) }},
				{"LPUSHandRPOP", func() { e.quick("LPUSH", "l", "new"); e.quick("RPOP", "l") }},
				{"LINDEX", func() { e.quick("LINDEX", "l", place()) }},
				{"LRANGE10", func() { i := rand.IntN(n - 10); e.quick("LRANGE", "l", strconv.Itoa(i), strconv.Itoa(i+9)) }},
			} {
				b.Run(c.name, func(b *testing.B) {
					b.ReportAllocs()
					e.ops, e.bytes = 0, 0
					for b.Loop() {
						c.run()
					}
					b.ReportMetric(float64(e.ops)/float64(b.N), "changes/op")
					b.ReportMetric(float64(e.bytes)/float64(b.N), "changed-B/op")
				})
			}
		})
	}
}

// effects counts what commands change.
type effects struct {
	*bench
	ops, bytes int
}

// quick is run without a look at the reply.
func (b *effects) quick(words ...string) {
	var args [8][]byte
	for i, w := range words {
		args[i] = []byte(w)
	}
	command, err := b.table.lookup(args[:len(words)])
	if err == nil {
		var reply Reply
		r := slotmesh.Request{Name: command.Name, ReadOnly: command.has(ReadOnly), Keys: []string{words[1]}}
		err = b.node.Execute(context.Background(), r, func(tx *slotmesh.Tx) error {
			ops, bytes := tx.Room()
			err := command.Run(&Call{Tx: tx, Args: args[:len(words)], Reply: &reply, command: command})
			opsLeft, bytesLeft := tx.Room()
			b.ops, b.bytes = b.ops+ops-opsLeft, b.bytes+bytes-bytesLeft
			return err
		})
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

// BenchmarkMoveOfACollection moves a slot that has one collection: with all of its
// data at once, and key by key as MIGRATE does it, which leaves the key for the next
// round.
func BenchmarkMoveOfACollection(b *testing.B) {
	for _, n := range []int{1000, 1_000_000} {
		b.Run(fmt.Sprintf("members=%d", n), func(b *testing.B) {
			for _, kind := range []struct {
				name string
				fill []string
				one  func(i int) []string
			}{
				{"hash", []string{"HSET"}, func(i int) []string { return []string{fmt.Sprintf("member:%07d", i), "value"} }},
				{"zset", []string{"ZADD"}, func(i int) []string { return []string{strconv.Itoa(i), fmt.Sprintf("member:%07d", i)} }},
				{"list", []string{"RPUSH"}, func(i int) []string { return []string{fmt.Sprintf("member:%07d", i)} }},
			} {
				b.Run(kind.name, func(b *testing.B) {
					p := newPairWithin(b, 15*time.Second) // two nodes and the client share what there is of the machine
					e := &bench{t: b, node: p.a.node, table: p.a.table, proto: 2}
					e.fill(append(kind.fill, p.key), n, kind.one)
					var slot slotmesh.SlotSet
					slot.Add(slotmesh.KeySlot(p.key))
					b.Run("native", func(b *testing.B) {
						at, other := p.a.node, p.b.node
						for b.Loop() {
							if err := at.Admin().MoveSlots(b.Context(), slot, other.ID()); err != nil {
								b.Fatal(err)
							}
							at, other = other, at
						}
						b.StopTimer()
						if at != p.a.node {
							require.NoError(b, at.Admin().MoveSlots(b.Context(), slot, other.ID()))
						}
					})
					// The slot is where it was, and what the last hand-over has left is gone.
					require.Eventually(b, func() bool {
						return p.b.node.Admin().SetSlotImporting(b.Context(), slotmesh.KeySlot(p.key), p.a.node.ID()) == nil &&
							p.a.node.Admin().SetSlotMigrating(b.Context(), slotmesh.KeySlot(p.key), p.b.node.ID()) == nil
					}, time.Minute, time.Millisecond)
					b.Run("MIGRATE", func(b *testing.B) {
						c := dial(b, p.a)
						c.nc.SetDeadline(time.Time{})
						migrate := p.migrate("COPY", "REPLACE", "KEYS", p.key)
						migrate[5] = "60000"
						for b.Loop() {
							if got := c.do(migrate...); got != "OK" {
								b.Fatal(got)
							}
						}
					})
				})
			}
		})
	}
}
