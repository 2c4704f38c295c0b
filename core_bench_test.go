package slotmesh

import (
	"fmt"
	"testing"
)

// The work of the core outside of requests, on the calm cluster of the rules'
// tests.

// BenchmarkRoute decides where a request goes whose slot another node serves.
func BenchmarkRoute(b *testing.B) {
	v := newRules(b).cluster(6, 6)[0].core.publish()
	b.ReportAllocs()
	slot := Slot(NumSlots / 2)
	for b.Loop() {
		if d := v.route(slot, question{}); d.action != routeMoved {
			b.Fatalf("%+v", d)
		}
	}
}

// BenchmarkOwner is the same for whoever asks the table.
func BenchmarkOwner(b *testing.B) {
	v := newRules(b).cluster(6, 6)[0].core.publish()
	b.ReportAllocs()
	for b.Loop() {
		if _, ok := v.Owner(NumSlots / 2); !ok {
			b.Fatal("no owner")
		}
	}
}

// BenchmarkPublish makes the table that requests read, after one slot of it has
// changed.
func BenchmarkPublish(b *testing.B) {
	for _, nodes := range []int{6, 26} {
		b.Run(fmt.Sprintf("nodes=%d", nodes), func(b *testing.B) {
			s := newRules(b).cluster(nodes, nodes)[0].core
			b.ReportAllocs()
			for b.Loop() {
				e := s.table.slots.at(0)
				e.move++
				s.table.setSlot(0, e)
				if v := s.publish(); v.entry(0) != e {
					b.Fatal("the table does not show the slot")
				}
			}
		})
	}
}

// BenchmarkDigestExchange is what two nodes do whose tables differ in some of
// their 64 buckets: one asks with its digests, the other answers with the entries
// of the buckets that differ, the first takes them and sends its own.
func BenchmarkDigestExchange(b *testing.B) {
	for _, slots := range []string{"whole ranges", "every slot another owner"} {
		for _, buckets := range []int{0, 1, numBuckets} {
			b.Run(fmt.Sprintf("%s/buckets=%d", slots, buckets), func(b *testing.B) {
				w := newRules(b)
				nodes := w.cluster(6, 6)
				one, other := nodes[0], nodes[1]
				if slots != "whole ranges" {
					scatter(one.core, other.core)
				}
				b.ReportAllocs()
				for b.Loop() {
					ask := one.core.digestAsk()
					for i := range buckets {
						ask.Table[i]++
					}
					exchangeWith(one, other, ask)
				}
			})
		}
	}
}

// scatter gives every slot another owner than the one before it has, at each of
// the cores.
func scatter(cores ...*state) {
	for _, s := range cores {
		for i := range Slot(NumSlots) {
			s.table.setSlot(i, slotEntry{shard: s.table.order[int(i)%len(s.table.order)], move: 2})
		}
	}
}

// exchangeWith carries the messages of an exchange until both have said all.
func exchangeWith(one, other *ruleNode, ask message) {
	at, from := other, one
	for msgs := []message{ask}; len(msgs) > 0; at, from = from, at {
		var back []message
		for _, m := range msgs {
			s := at.core
			s.begin(s.now)
			s.dispatch(s.peers.get(from.core.id), from.core.who, m)
			out := s.end()
			for i := range out.sends {
				back = append(back, out.sends[i].msg)
			}
		}
		msgs = back
	}
}
