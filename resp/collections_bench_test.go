package resp

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/slotmesh/slotmesh"
)

// BenchmarkCollections runs commands on collections of a thousand members and of
// a million: they should cost about the same.
func BenchmarkCollections(b *testing.B) {
	for _, n := range []int{1000, 1_000_000} {
		b.Run(fmt.Sprintf("members=%d", n), func(b *testing.B) {
			e := newBench(b)
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
				{"HSCAN", func() { e.quick("HSCAN", "h", strconv.Itoa(rand.IntN(1<<32)), "COUNT", "10") }},
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
					for b.Loop() {
						c.run()
					}
				})
			}
		})
	}
}

// quick is run without a look at the reply.
func (b *bench) quick(words ...string) {
	var args [8][]byte
	for i, w := range words {
		args[i] = []byte(w)
	}
	command, err := b.table.lookup(args[:len(words)])
	if err == nil {
		var reply Reply
		r := slotmesh.Request{Name: command.Name, ReadOnly: command.has(ReadOnly), Keys: []string{words[1]}}
		err = b.node.Execute(context.Background(), r, func(tx *slotmesh.Tx) error {
			return command.Run(&Call{Tx: tx, Args: args[:len(words)], Reply: &reply, command: command})
		})
	}
	if err != nil {
		b.t.Fatal(err)
	}
}
