package slotmesh_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/slotmesh/slotmesh"
	"github.com/slotmesh/slotmesh/internal/loopback"
	"github.com/slotmesh/slotmesh/transport"
)

// keysOf returns n keys of 16 bytes.
func keysOf(n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("user:%011d", i)
	}
	return keys
}

// BenchmarkGet compares Client.Get of a local slot with the least that a cache
// with slots could do: KeySlot and a map under one RWMutex.
func BenchmarkGet(b *testing.B) {
	for _, n := range []int{256, 100_000} {
		keys := keysOf(n)
		b.Run(fmt.Sprintf("map/keys=%d", n), func(b *testing.B) {
			var mu sync.RWMutex
			m := map[string][]byte{}
			for _, k := range keys {
				m[k] = []byte(k)
			}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				k := keys[i]
				if slotmesh.KeySlot(k) >= slotmesh.NumSlots {
					b.Fatal("no slot")
				}
				mu.RLock()
				v := m[k]
				mu.RUnlock()
				if len(v) != 16 {
					b.Fatal("lost")
				}
				if i++; i == n {
					i = 0
				}
			}
		})
		b.Run(fmt.Sprintf("local/keys=%d", n), func(b *testing.B) {
			node, err := slotmesh.Start(b.Context(), slotmesh.Config{})
			if err != nil {
				b.Fatal(err)
			}
			defer node.Close()
			benchmarkGet(b, node, keys)
		})
	}
}

func benchmarkGet(b *testing.B, node slotmesh.Node, keys []string) {
	ctx := context.Background()
	c := node.Client()
	if err := node.Ready(ctx); err != nil {
		b.Fatal(err)
	}
	for _, k := range keys {
		if err := c.Set(ctx, k, []byte(k)); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		v, err := c.Get(ctx, keys[i])
		if err != nil || len(v) != 16 {
			b.Fatal(err)
		}
		if i++; i == len(keys) {
			i = 0
		}
	}
}

// mesh starts nodes that form a cluster.
func mesh(b *testing.B, t slotmesh.Transport, seeds []string) []slotmesh.Node {
	var nodes []slotmesh.Node
	for _, addr := range seeds {
		n, err := slotmesh.Start(b.Context(), slotmesh.Config{Addr: addr, Transport: t, Seeds: seeds, Primaries: len(seeds), NodeTimeout: time.Second})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { n.Close() })
		nodes = append(nodes, n)
	}
	for _, n := range nodes {
		if err := n.Ready(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	return nodes
}

// keysAt returns n keys whose slot a node owns.
func keysAt(node slotmesh.Node, n int) (keys []string) {
	for i := 0; len(keys) < n; i++ {
		k := fmt.Sprintf("user:%011d", i)
		if owner, _ := node.Table().Owner(slotmesh.KeySlot(k)); owner.ID == node.ID() {
			keys = append(keys, k)
		}
	}
	return keys
}

// BenchmarkGetInCluster is Client.Get in a cluster of three: at the owner, whose
// every reply asks the clock whether the lease is held, and from another node.
func BenchmarkGetInCluster(b *testing.B) {
	networks := map[string]func() (slotmesh.Transport, []string){
		"memory": func() (slotmesh.Transport, []string) { return transport.NewMemory(), []string{"a:1", "b:1", "c:1"} },
		"tcp": func() (slotmesh.Transport, []string) {
			addrs, err := loopback.FreeAddrs(3)
			if err != nil {
				b.Fatal(err)
			}
			return transport.TCP{}, addrs
		},
	}
	for _, name := range []string{"memory", "tcp"} {
		t, seeds := networks[name]()
		nodes := mesh(b, t, seeds)
		keys := keysAt(nodes[0], 256)
		b.Run(name+"/local", func(b *testing.B) { benchmarkGet(b, nodes[0], keys) })
		b.Run(name+"/remote", func(b *testing.B) { benchmarkGet(b, nodes[1], keys) })
		b.Run(name+"/remote-parallel", func(b *testing.B) {
			c := nodes[1].Client()
			b.ReportAllocs()
			b.SetParallelism(32)
			b.RunParallel(func(pb *testing.PB) {
				for i := 0; pb.Next(); i++ {
					if _, err := c.Get(context.Background(), keys[i%len(keys)]); err != nil {
						b.Error(err)
					}
				}
			})
		})
	}
}

// BenchmarkExecute is a read and a write of one key under the lock of its slot.
func BenchmarkExecute(b *testing.B) {
	node, err := slotmesh.Start(b.Context(), slotmesh.Config{})
	if err != nil {
		b.Fatal(err)
	}
	defer node.Close()
	ctx := context.Background()
	value := []byte("0123456789abcdef")
	for _, readOnly := range []bool{true, false} {
		r := slotmesh.Request{Keys: []string{"user:1000"}, ReadOnly: readOnly}
		b.Run(fmt.Sprintf("readonly=%v", readOnly), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				err := node.Execute(ctx, r, func(tx *slotmesh.Tx) error {
					if _, _, err := tx.Get("user:1000"); err != nil || readOnly {
						return err
					}
					return tx.Put("user:1000", value)
				})
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkSession is BenchmarkExecute in a session.
func BenchmarkSession(b *testing.B) {
	node, err := slotmesh.Start(b.Context(), slotmesh.Config{})
	if err != nil {
		b.Fatal(err)
	}
	defer node.Close()
	ctx := context.Background()
	value := []byte("0123456789abcdef")
	r := &slotmesh.Request{Keys: []string{"user:1000"}}
	for _, row := range []struct {
		name string
		f    func(*slotmesh.Tx) error
	}{
		{"get", func(tx *slotmesh.Tx) error { _, _, err := tx.Get("user:1000"); return err }},
		{"put", func(tx *slotmesh.Tx) error { return tx.Put("user:1000", value) }},
		{"putfield", func(tx *slotmesh.Tx) error { return tx.PutField("user:1000", "field", value) }},
	} {
		b.Run(row.name, func(b *testing.B) {
			s := node.Session()
			r.ReadOnly = row.name == "get"
			b.ReportAllocs()
			for b.Loop() {
				if err := s.Execute(ctx, r, row.f); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkSet is Client.Set of a local slot.
func BenchmarkSet(b *testing.B) {
	node, err := slotmesh.Start(b.Context(), slotmesh.Config{})
	if err != nil {
		b.Fatal(err)
	}
	defer node.Close()
	ctx := context.Background()
	c := node.Client()
	value := []byte("0123456789abcdef")
	keys := keysOf(256)
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		if err := c.Set(ctx, keys[i&255], value); err != nil {
			b.Fatal(err)
		}
		i++
	}
}
