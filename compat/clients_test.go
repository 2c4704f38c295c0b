package compat

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/slotmesh/slotmesh"
	"github.com/slotmesh/slotmesh/resp"
	"github.com/slotmesh/slotmesh/transport"
)

// Clients of other people against three nodes, while slots move from node to
// node under them. Each load keeps a model of what it has done, and ends with
// an error where a reply is not what it must be.

// inProcess is a cluster whose bus is in memory and whose clients come over
// loopback.
type inProcess struct {
	nodes []slotmesh.Node
	addrs []string
}

func startCluster(t testing.TB, n int) *inProcess {
	t.Helper()
	bus := transport.NewMemory()
	var seeds []string
	for i := range n {
		seeds = append(seeds, fmt.Sprintf("bus%d:1", i))
	}
	c := &inProcess{}
	for i := range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		c.addrs = append(c.addrs, l.Addr().String())
		node, err := slotmesh.Start(t.Context(), slotmesh.Config{Addr: seeds[i], ClientAddr: c.addrs[i], Seeds: seeds, Primaries: n, Transport: bus})
		require.NoError(t, err)
		t.Cleanup(func() { node.Close() })
		s, err := resp.Start(t.Context(), resp.Config{Node: node, Listener: l})
		require.NoError(t, err)
		t.Cleanup(func() { s.Close() })
		c.nodes = append(c.nodes, node)
	}
	for _, node := range c.nodes {
		require.NoError(t, node.Ready(t.Context()))
	}
	return c
}

// moves gives every slot to the next node, a part at a time, round after round.
func (c *inProcess) moves(ctx context.Context, rounds int) error {
	const parts = 4
	shares := make([][]slotmesh.SlotSet, len(c.nodes)) // of each node at the start
	for i, node := range c.nodes {
		owned := node.Table().Slots(node.ID())
		shares[i] = make([]slotmesh.SlotSet, parts)
		n := 0
		for slot := range owned.All() {
			shares[i][n*parts/owned.Len()].Add(slot)
			n++
		}
	}
	for round := range rounds {
		for part := range parts {
			for i, share := range shares {
				from, to := c.nodes[(i+round)%len(c.nodes)], c.nodes[(i+round+1)%len(c.nodes)]
				if err := from.Admin().MoveSlots(ctx, share[part], to.ID()); err != nil {
					return fmt.Errorf("round %d, part %d of node %d: %w", round, part, i, err)
				}
			}
		}
	}
	return nil
}

// load is what a client does until stop is closed, at least once.
type load struct {
	name string
	run  func(ctx context.Context, stop <-chan struct{}) error
}

func stopped(stop <-chan struct{}) bool {
	select {
	case <-stop:
		return true
	default:
		return false
	}
}

// underMoves runs loads while slots move, and until the last move is over.
func (c *inProcess) underMoves(t *testing.T, loads []load) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for _, l := range loads {
		wg.Go(func() {
			if err := l.run(ctx, stop); err != nil {
				t.Errorf("%s: %v", l.name, err)
			}
		})
	}
	err := c.moves(ctx, 2)
	close(stop)
	wg.Wait()
	require.NoError(t, err)
}

func expect(what string, got, want any) error {
	if g, w := fmt.Sprint(got), fmt.Sprint(want); g != w {
		return fmt.Errorf("%s is %.200q, want %.200q", what, g, w)
	}
	return nil
}

const slowReply = time.Minute // a reply that takes longer is missing; clients repeat what has no reply

// ---- go-redis

func TestGoRedisWhileSlotsMove(t *testing.T) {
	t.Parallel()
	for _, proto := range []int{2, 3} {
		t.Run(fmt.Sprint("RESP", proto), func(t *testing.T) {
			c := startCluster(t, 3)
			client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: c.addrs, Protocol: proto, ReadTimeout: slowReply, WriteTimeout: slowReply})
			defer client.Close()
			g := goRedis{client}
			loads := []load{{"values", g.values("values")}, {"pipelines", g.pipelines("pipelines")}, {"transactions", g.transactions("transactions")},
				{"scripts", g.scripts("scripts")}, {"blocking", g.blocking}, {"messages", g.messages}, {"sharded messages", g.shardedMessages}}
			c.underMoves(t, loads)
		})
	}
}

type goRedis struct{ c *redis.ClusterClient }

// keysOfLoad spreads the keys of a load over the slots.
const keysOfLoad = 40

// values sets and counts, and reads back.
func (g goRedis) values(prefix string) func(context.Context, <-chan struct{}) error {
	return func(ctx context.Context, stop <-chan struct{}) error {
		counts := make([]int64, keysOfLoad)
		for n := 0; n < keysOfLoad || !stopped(stop); n++ {
			i := n % keysOfLoad
			set, count := fmt.Sprint(prefix, ":set:", i), fmt.Sprint(prefix, ":count:", i)
			if err := g.c.Set(ctx, set, n, 0).Err(); err != nil {
				return err
			}
			got, err := g.c.Incr(ctx, count).Result()
			counts[i]++
			if err = errors.Join(err, expect(count, got, counts[i])); err != nil {
				return err
			}
			text, err := g.c.Get(ctx, set).Result()
			if err = errors.Join(err, expect(set, text, n)); err != nil {
				return err
			}
		}
		for i, want := range counts {
			count := fmt.Sprint(prefix, ":count:", i)
			got, err := g.c.Get(ctx, count).Int64()
			if err = errors.Join(err, expect(count, got, want)); err != nil {
				return err
			}
		}
		return nil
	}
}

// pipelines are of keys of many slots.
func (g goRedis) pipelines(prefix string) func(context.Context, <-chan struct{}) error {
	return func(ctx context.Context, stop <-chan struct{}) error {
		for n := int64(1); n == 1 || !stopped(stop); n++ {
			pipe := g.c.Pipeline()
			var counts []*redis.IntCmd
			var reads []*redis.StringCmd
			for i := range keysOfLoad {
				key := fmt.Sprint(prefix, i)
				counts = append(counts, pipe.Incr(ctx, key))
				reads = append(reads, pipe.Get(ctx, key))
			}
			if _, err := pipe.Exec(ctx); err != nil {
				return err
			}
			for i := range counts {
				if err := errors.Join(expect(fmt.Sprint("count ", i), counts[i].Val(), n), expect(fmt.Sprint("read ", i), reads[i].Val(), n)); err != nil {
					return err
				}
			}
		}
		return nil
	}
}

// transactions put an item into a list and count it, both or none, and watch.
func (g goRedis) transactions(prefix string) func(context.Context, <-chan struct{}) error {
	return func(ctx context.Context, stop <-chan struct{}) error {
		for n := int64(1); n == 1 || !stopped(stop); n++ {
			for i := range keysOfLoad / 4 {
				list, count := fmt.Sprintf("{%s%d}list", prefix, i), fmt.Sprintf("{%s%d}count", prefix, i)
				var length, counted *redis.IntCmd
				run := func(pipe redis.Pipeliner) error {
					length, counted = pipe.RPush(ctx, list, n), pipe.Incr(ctx, count)
					return nil
				}
				var err error
				if i%2 == 0 {
					_, err = g.c.TxPipelined(ctx, run)
				} else {
					err = g.watched(ctx, count, n-1, run)
				}
				if err != nil {
					return err
				}
				if err := errors.Join(expect(list, length.Val(), n), expect(count, counted.Val(), n)); err != nil {
					return err
				}
			}
		}
		return nil
	}
}

// watched runs a transaction that depends on a count. Where the slot leaves in the
// middle of it, go-redis hands on what the server says, and nothing has happened:
// it is tried again.
func (g goRedis) watched(ctx context.Context, count string, want int64, run func(redis.Pipeliner) error) error {
	for {
		err := g.c.Watch(ctx, func(tx *redis.Tx) error {
			got, err := tx.Get(ctx, count).Int64()
			if err != nil && err != redis.Nil {
				return err
			}
			if err := expect("watched "+count, got, want); err != nil {
				return err
			}
			_, err = tx.TxPipelined(ctx, run)
			return err
		}, count)
		if err != redis.TxFailedErr && !slotLeft(err) {
			return err
		}
	}
}

// slotLeft reports whether nothing was done since the slot of the keys has left.
func slotLeft(err error) bool {
	return err != nil && (strings.HasPrefix(err.Error(), "MOVED ") || strings.HasPrefix(err.Error(), "EXECABORT "))
}

// scripts count and keep what they have returned.
func (g goRedis) scripts(prefix string) func(context.Context, <-chan struct{}) error {
	script := redis.NewScript("local n = redis.call('incrby', KEYS[1], ARGV[1]) redis.call('rpush', KEYS[2], n) return {n, redis.call('llen', KEYS[2])}")
	return func(ctx context.Context, stop <-chan struct{}) error {
		for n := 1; n == 1 || !stopped(stop); n++ {
			for i := range keysOfLoad / 4 {
				tag := fmt.Sprintf("{%s%d}", prefix, i)
				got, err := script.Run(ctx, g.c, []string{tag + "n", tag + "list"}, 3).Int64Slice()
				if err = errors.Join(err, expect(tag, got, []int{3 * n, n})); err != nil {
					return err
				}
			}
		}
		return nil
	}
}

// blocking takes what another one pushes, each item once and in order.
func (g goRedis) blocking(ctx context.Context, stop <-chan struct{}) error {
	const queue, end = "queue", "end"
	pushed := make(chan error, 1)
	go func() {
		var err error
		for n := 0; err == nil && (n == 0 || !stopped(stop)); n++ {
			err = g.c.RPush(ctx, queue, n).Err()
			time.Sleep(time.Millisecond) // so that the taker waits now and then
		}
		pushed <- errors.Join(err, g.c.RPush(ctx, queue, end).Err())
	}()
	for n := 0; ; n++ {
		got, err := g.c.BLPop(ctx, 0, queue).Result()
		if err != nil {
			return errors.Join(err, <-pushed)
		}
		if got[1] == end {
			return <-pushed
		}
		if err := expect("an item", got[1], n); err != nil {
			return errors.Join(err, <-pushed)
		}
	}
}

// messages reach who listens, each once and in order, wherever they are
// published.
func (g goRedis) messages(ctx context.Context, stop <-chan struct{}) error {
	sub := g.c.Subscribe(ctx, "news")
	defer sub.Close()
	if _, err := sub.Receive(ctx); err != nil {
		return err
	}
	for n := 0; n == 0 || !stopped(stop); n++ {
		if err := g.c.Publish(ctx, "news", n).Err(); err != nil {
			return err
		}
		m, err := sub.ReceiveMessage(ctx)
		if err != nil {
			return err
		}
		if err := expect("a message", m.Payload, n); err != nil {
			return err
		}
	}
	return nil
}

// shardedMessages listens again whenever the slot of the channel has moved. What
// SPUBLISH says was received has been.
func (g goRedis) shardedMessages(ctx context.Context, stop <-chan struct{}) error {
	const channel = "{sharded}news"
	var sub *redis.PubSub
	listen := func() error {
		if sub != nil {
			sub.Close()
		}
		for {
			sub = g.c.SSubscribe(ctx, channel)
			_, err := sub.Receive(ctx)
			if err == nil || ctx.Err() != nil {
				return err
			}
			// Its table is old: a command with a key of the slot mends it.
			sub.Close()
			if err := g.c.Exists(ctx, "{sharded}").Err(); err != nil {
				return err
			}
		}
	}
	defer func() { sub.Close() }()
	if err := listen(); err != nil {
		return err
	}
	received, lost := 0, 0
	for n := 0; n == 0 || !stopped(stop); n++ {
		receivers, err := g.c.SPublish(ctx, channel, n).Result()
		if err != nil {
			return err
		}
		if receivers == 0 {
			lost++
			if err := awaitEnd(ctx, sub); err != nil {
				return fmt.Errorf("nobody listened to %d, but who does has not been told: %w", n, err)
			}
			if err := listen(); err != nil {
				return err
			}
			continue
		}
		got, err := sub.ReceiveMessage(ctx)
		if err = errors.Join(err, expect("receivers", receivers, 1)); err != nil {
			return err
		}
		if err := expect("a message", got.Payload, n); err != nil {
			return err
		}
		received++
	}
	if received == 0 || lost == 0 {
		return fmt.Errorf("%d messages were received, and %d came while nobody listened: some of both were wanted", received, lost)
	}
	return nil
}

// awaitEnd waits for the server to say that it serves the channel no more.
func awaitEnd(ctx context.Context, sub *redis.PubSub) error {
	got, err := sub.ReceiveTimeout(ctx, slowReply)
	if s, ok := got.(*redis.Subscription); err == nil && (!ok || s.Kind != "sunsubscribe") {
		return fmt.Errorf("got %v, want sunsubscribe", got)
	}
	return err
}

// ---- rueidis

func TestRueidisWhileSlotsMove(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3)
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: c.addrs, ConnWriteTimeout: slowReply})
	require.NoError(t, err)
	defer client.Close()
	r := &rueidisLoads{c: client}
	c.underMoves(t, []load{
		{"values", r.values}, {"pipelines", r.pipelines}, {"transactions", r.transactions}, {"scripts", r.scripts}, {"blocking", r.blocking},
		{"messages", r.messages("plain", func(ch string) rueidis.Completed { return client.B().Subscribe().Channel(ch).Build() }, func(ch, m string) rueidis.Completed {
			return client.B().Publish().Channel(ch).Message(m).Build()
		})},
		{"sharded messages", r.messages("sharded", func(ch string) rueidis.Completed { return client.B().Ssubscribe().Channel(ch).Build() }, func(ch, m string) rueidis.Completed {
			return client.B().Spublish().Channel(ch).Message(m).Build()
		})},
		{"client-side cache", r.cached(c)},
	})
	require.Positive(t, r.hits.Load(), "something was answered by the cache")
}

type rueidisLoads struct {
	c    rueidis.Client
	hits atomic.Int64 // answered by the client itself
}

func (r *rueidisLoads) values(ctx context.Context, stop <-chan struct{}) error {
	b := r.c.B
	for n := int64(1); n == 1 || !stopped(stop); n++ {
		for i := range keysOfLoad {
			key := fmt.Sprint("rueidis:", i)
			if err := r.c.Do(ctx, b().Hset().Key(key).FieldValue().FieldValue("n", strconv.FormatInt(n, 10)).Build()).Error(); err != nil {
				return err
			}
			count, err := r.c.Do(ctx, b().Hincrby().Key(key).Field("count").Increment(1).Build()).AsInt64()
			if err = errors.Join(err, expect(key+" count", count, n)); err != nil {
				return err
			}
			all, err := r.c.Do(ctx, b().Hgetall().Key(key).Build()).AsStrMap()
			if err = errors.Join(err, expect(key, all, map[string]int64{"count": n, "n": n})); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *rueidisLoads) pipelines(ctx context.Context, stop <-chan struct{}) error {
	for n := int64(1); n == 1 || !stopped(stop); n++ {
		var commands rueidis.Commands
		for i := range keysOfLoad {
			commands = append(commands, r.c.B().Incr().Key(fmt.Sprint("pipeline:", i)).Build())
		}
		for i, reply := range r.c.DoMulti(ctx, commands...) {
			got, err := reply.AsInt64()
			if err = errors.Join(err, expect(fmt.Sprint("pipeline:", i), got, n)); err != nil {
				return err
			}
		}
	}
	return nil
}

// transactions are tried again where they were sent to the wrong node: rueidis
// leaves that to its user.
func (r *rueidisLoads) transactions(ctx context.Context, stop <-chan struct{}) error {
	for n := int64(1); n == 1 || !stopped(stop); n++ {
		for i := range keysOfLoad / 4 {
			tag := fmt.Sprintf("{tx%d}", i)
			got, err := r.transaction(ctx, tag)
			if err = errors.Join(err, expect(tag, got, []int64{n, n})); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *rueidisLoads) transaction(ctx context.Context, tag string) (out []int64, err error) {
	for {
		err = r.c.Dedicated(func(d rueidis.DedicatedClient) error {
			b := d.B
			replies := d.DoMulti(ctx, b().Multi().Build(), b().Incr().Key(tag+"n").Build(), b().Rpush().Key(tag+"list").Element("x").Build(), b().Exec().Build())
			items, err := replies[3].ToArray()
			out = out[:0]
			for _, item := range items {
				n, err := item.AsInt64()
				if err != nil {
					return err
				}
				out = append(out, n)
			}
			return err
		})
		if !slotLeft(err) {
			return out, err
		}
		if err := r.c.Do(ctx, r.c.B().Exists().Key(tag).Build()).Error(); err != nil { // mends its table
			return nil, err
		}
	}
}

func (r *rueidisLoads) scripts(ctx context.Context, stop <-chan struct{}) error {
	script := rueidis.NewLuaScript("return redis.call('incr', KEYS[1])")
	for n := int64(1); n == 1 || !stopped(stop); n++ {
		for i := range keysOfLoad / 4 {
			key := fmt.Sprint("script:", i)
			got, err := script.Exec(ctx, r.c, []string{key}, nil).AsInt64()
			if err = errors.Join(err, expect(key, got, n)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *rueidisLoads) blocking(ctx context.Context, stop <-chan struct{}) error {
	const queue, end = "rueidis queue", "end"
	push := func(item string) error {
		return r.c.Do(ctx, r.c.B().Rpush().Key(queue).Element(item).Build()).Error()
	}
	pushed := make(chan error, 1)
	go func() {
		var err error
		for n := 0; err == nil && (n == 0 || !stopped(stop)); n++ {
			err = push(strconv.Itoa(n))
			time.Sleep(time.Millisecond) // so that the taker waits now and then
		}
		pushed <- errors.Join(err, push(end))
	}()
	for n := 0; ; n++ {
		got, err := r.c.Do(ctx, r.c.B().Blpop().Key(queue).Timeout(0).Build()).AsStrSlice()
		if err != nil {
			return errors.Join(err, <-pushed)
		}
		if got[1] == end {
			return <-pushed
		}
		if err := expect("an item", got[1], n); err != nil {
			return errors.Join(err, <-pushed)
		}
	}
}

// messages publishes numbers, and listens again where the subscription has ended.
// Nothing comes twice. In which order messages of several nodes come is not said.
func (r *rueidisLoads) messages(channel string, subscribe func(string) rueidis.Completed, publish func(ch, m string) rueidis.Completed) func(context.Context, <-chan struct{}) error {
	return func(ctx context.Context, stop <-chan struct{}) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		heard := newHeard()
		var listening sync.WaitGroup
		listening.Go(func() {
			for ctx.Err() == nil {
				r.c.Receive(ctx, subscribe(channel), func(m rueidis.PubSubMessage) { heard.add(m.Message) })
			}
		})
		defer func() { cancel(); listening.Wait() }()
		say := func(n int) error {
			return r.c.Do(ctx, publish(channel, strconv.Itoa(n))).Error()
		}
		n := 0
		for ; n == 0 || !stopped(stop); n++ {
			if err := say(n); err != nil {
				return err
			}
		}
		// Whoever listens hears what is published from now on.
		for end := time.Now().Add(slowReply); !heard.has(n - 1); n++ {
			if time.Now().After(end) {
				return fmt.Errorf("nothing was heard of %d messages at last", n)
			}
			if err := say(n); err != nil {
				return err
			}
			time.Sleep(10 * time.Millisecond)
		}
		return heard.wrong()
	}
}

// heard is the messages that have come.
type heard struct {
	mu  sync.Mutex
	n   map[string]int // guarded by mu: how often each came
	err error          // guarded by mu
}

func newHeard() *heard { return &heard{n: map[string]int{}} }

func (h *heard) add(message string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.n[message]++; h.n[message] > 1 {
		h.err = fmt.Errorf("message %s came twice", message)
	}
}

func (h *heard) has(n int) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.n[strconv.Itoa(n)] > 0
}

func (h *heard) wrong() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.err
}

// cached reads through the cache of the client what the application writes: a
// value is old for moments only, and never older than one seen before. The cache
// holds for an hour what nobody invalidates.
func (r *rueidisLoads) cached(c *inProcess) func(context.Context, <-chan struct{}) error {
	return func(ctx context.Context, stop <-chan struct{}) error {
		seen := make([]int64, keysOfLoad)
		read := func(i int) error {
			reply := r.c.DoCache(ctx, r.c.B().Get().Key(fmt.Sprint("cached:", i)).Cache(), time.Hour)
			n, err := reply.AsInt64()
			if err != nil {
				return err
			}
			if reply.IsCacheHit() {
				r.hits.Add(1)
			}
			if n < seen[i] {
				return fmt.Errorf("key %d is %d, and was %d before", i, n, seen[i])
			}
			seen[i] = n
			return nil
		}
		for n := int64(1); n == 1 || !stopped(stop); n++ {
			for i := range seen {
				if err := c.nodes[i%len(c.nodes)].Client().Set(ctx, fmt.Sprint("cached:", i), strconv.AppendInt(nil, n, 10)); err != nil {
					return err
				}
			}
			for i := range seen {
				for end := time.Now().Add(slowReply); seen[i] < n; {
					if err := read(i); err != nil {
						return err
					}
					if time.Now().After(end) {
						return fmt.Errorf("key %d is %d for a minute after it was set to %d", i, seen[i], n)
					}
				}
				if err := read(i); err != nil {
					return err
				}
			}
		}
		if !slices.Equal(seen, slices.Repeat(seen[:1], len(seen))) {
			return fmt.Errorf("in the end the keys are %v", seen)
		}
		return nil
	}
}
