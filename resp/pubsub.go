package resp

import (
	"errors"
	"sync"
	"sync/atomic"

	"github.com/slotmesh/slotmesh"
)

// pubSub is who listens to which channels at this server. Plain channels reach
// the whole cluster. A sharded channel belongs to the slot of its name, and reaches
// the shard that has it: one may listen at its replicas, too. Whoever listens to one
// is told when the slot goes.
type pubSub struct {
	node  slotmesh.Node
	watch *slotmesh.Watch // of the sharded channels
	stops [2]func()

	mu       sync.Mutex
	channels topics
	patterns topics
	sharded  topics
}

// topics are the listeners of each channel or pattern.
type topics map[string]map[*Conn]struct{}

func (t topics) add(name string, c *Conn) {
	if t[name] == nil {
		t[name] = map[*Conn]struct{}{}
	}
	t[name][c] = struct{}{}
}

// remove reports whether the last listener has gone.
func (t topics) remove(name string, c *Conn) bool {
	delete(t[name], c)
	if len(t[name]) > 0 {
		return false
	}
	delete(t, name)
	return true
}

// subscriptions are what a connection listens to, guarded by the mutex of the
// server's pubSub.
type subscriptions struct {
	channels, patterns, sharded map[string]struct{}

	count atomic.Int32 // of all, for those who only ask whether there are any
}

func (p *pubSub) init(node slotmesh.Node) {
	p.node = node
	p.channels, p.patterns, p.sharded = topics{}, topics{}, topics{}
	p.watch = node.Watch(p.keyEvent)
	p.stops = [2]func(){node.Subscribe(p.deliver), node.SubscribeSharded(p.deliverSharded)}
}

func (p *pubSub) close() {
	for _, stop := range p.stops {
		stop()
	}
	p.watch.Close()
}

// deliver hands a message to those who listen here, and counts them.
func (p *pubSub) deliver(channel string, payload []byte) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	var m message
	for c := range p.channels[channel] {
		c.push(m.bytes(c, "message", channel, payload))
		n++
	}
	for pattern, listeners := range p.patterns {
		if !globMatch(pattern, channel) {
			continue
		}
		var m message
		for c := range listeners {
			c.push(m.bytes(c, "pmessage", pattern, []byte(channel), payload))
			n++
		}
	}
	return n
}

// deliverSharded is deliver for a sharded channel.
func (p *pubSub) deliverSharded(channel string, payload []byte) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	var m message
	for c := range p.sharded[channel] {
		c.push(m.bytes(c, "smessage", channel, payload))
	}
	return len(p.sharded[channel])
}

// keyEvent ends the subscriptions to a sharded channel whose slot has gone to
// another shard; where this one has another primary they go on. It is called under
// the lock of the slot; of changes of keys that have the name of a channel there is
// nothing to tell.
func (p *pubSub) keyEvent(channel string, gone bool) {
	if !gone || p.node.Table().Backs(slotmesh.KeySlot(channel)) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.sharded[channel] {
		delete(c.subs.sharded, channel)
		c.subs.count.Add(-1)
		var r Reply
		r.setProto(int(c.proto.Load()))
		r.Push(3)
		r.BulkString("sunsubscribe")
		r.BulkString(channel)
		r.Int(int64(len(c.subs.sharded)))
		c.push(r.bytes())
	}
	if p.sharded[channel] != nil {
		delete(p.sharded, channel)
		p.watch.Remove(channel)
	}
}

// message is a message in the forms of both protocols, each made once.
type message struct{ forms [2][]byte }

func (m *message) bytes(c *Conn, kind, name string, rest ...[]byte) []byte {
	proto := int(c.proto.Load())
	form := &m.forms[proto-2]
	if *form == nil {
		var r Reply
		r.setProto(proto)
		r.Push(2 + len(rest))
		r.BulkString(kind)
		r.BulkString(name)
		for _, b := range rest {
			r.Bulk(b)
		}
		*form = r.bytes()
	}
	return *form
}

func pubSubCommands() []Command {
	const flags = PubSub | Loading | Stale
	return []Command{
		{Name: "subscribe", Arity: -2, Flags: flags | NoScript | InPubSub, Conn: subscribe, Group: "pubsub", Since: "2.0.0", Summary: "Listen for messages published to the given channels", Complexity: "O(N) where N is the number of channels to subscribe to."},
		{Name: "unsubscribe", Arity: -1, Flags: flags | NoScript | InPubSub, Conn: unsubscribe, Group: "pubsub", Since: "2.0.0", Summary: "Stop listening for messages posted to the given channels", Complexity: "O(N) where N is the number of clients already subscribed to a channel."},
		{Name: "psubscribe", Arity: -2, Flags: flags | NoScript | InPubSub, Conn: psubscribe, Group: "pubsub", Since: "2.0.0", Summary: "Listen for messages published to channels matching the given patterns", Complexity: "O(N) where N is the number of patterns the client is already subscribed to."},
		{Name: "punsubscribe", Arity: -1, Flags: flags | NoScript | InPubSub, Conn: punsubscribe, Group: "pubsub", Since: "2.0.0", Summary: "Stop listening for messages posted to channels matching the given patterns", Complexity: "O(N+M) where N is the number of patterns the client is already subscribed and M is the number of total patterns subscribed in the system (by any client)."},
		{Name: "ssubscribe", Arity: -2, Flags: flags | NoScript | InPubSub, First: 1, Last: -1, Step: 1, Conn: ssubscribe, Group: "pubsub", Since: "7.0.0", Summary: "Listen for messages published to the given shard channels", Complexity: "O(N) where N is the number of shard channels to subscribe to."},
		{Name: "sunsubscribe", Arity: -1, Flags: flags | NoScript | InPubSub, First: 1, Last: -1, Step: 1, Conn: sunsubscribe, Group: "pubsub", Since: "7.0.0", Summary: "Stop listening for messages posted to the given shard channels", Complexity: "O(N) where N is the number of clients already subscribed to a shard channel."},
		{Name: "publish", Arity: 3, Flags: flags | Fast | MayReplicate | InScript, Conn: publish, Group: "pubsub", Since: "2.0.0", Summary: "Post a message to a channel", Complexity: "O(N+M) where N is the number of clients subscribed to the receiving channel and M is the total number of subscribed patterns (by any client)."},
		{Name: "spublish", Arity: 3, Flags: flags | Fast | MayReplicate, First: 1, Last: 1, Step: 1, Conn: spublish, Group: "pubsub", Since: "7.0.0", Summary: "Post a message to a shard channel", Complexity: "O(N) where N is the number of clients subscribed to the receiving shard channel."},
		{Name: "pubsub", Arity: -2, Group: "pubsub", Since: "2.8.0", Summary: "A container for Pub/Sub commands", Complexity: "Depends on subcommand.", Sub: []Command{
			{Name: "channels", Arity: -2, Usage: "[<pattern>]", Summary: "Return the currently active channels matching a <pattern> (default: '*').", Flags: flags, Conn: pubSubChannels},
			{Name: "numpat", Arity: 2, Summary: "Return number of subscriptions to patterns.", Flags: flags, Conn: pubSubNumPat},
			{Name: "numsub", Arity: -2, Usage: "[<channel> ...]", Summary: "Return the number of subscribers for the specified channels, excluding\npattern subscriptions(default: no channels).", Flags: flags, Conn: pubSubNumSub},
			{Name: "shardchannels", Arity: -2, Usage: "[<pattern>]", Summary: "Return the currently active shard level channels matching a <pattern> (default: '*').", Flags: flags, Conn: pubSubShardChannels},
			{Name: "shardnumsub", Arity: -2, Usage: "[<shardchannel> ...]", Summary: "Return the number of subscribers for the specified shard level channel(s)", Flags: flags, Conn: pubSubShardNumSub},
		}},
	}
}

// inPubSub reports whether a connection listens to something.
func (c *Conn) inPubSub() bool { return c.subs.count.Load() > 0 }

// leavePubSub ends every subscription without a word.
func (c *Conn) leavePubSub() {
	p := &c.server.pubSub
	p.mu.Lock()
	defer p.mu.Unlock()
	for name := range c.subs.channels {
		p.channels.remove(name, c)
	}
	for name := range c.subs.patterns {
		p.patterns.remove(name, c)
	}
	for name := range c.subs.sharded {
		if p.sharded.remove(name, c) {
			p.watch.Remove(name)
		}
	}
	c.subs.channels, c.subs.patterns, c.subs.sharded = nil, nil, nil
	c.subs.count.Store(0)
}

// listen adds the names of args to a set of the connection and to the server's.
// The mutex is held.
func (c *Conn) listen(kind string, args [][]byte, set *map[string]struct{}, all topics) {
	for _, a := range args {
		name := string(a)
		if *set == nil {
			*set = map[string]struct{}{}
		}
		if _, there := (*set)[name]; !there {
			(*set)[name] = struct{}{}
			all.add(name, c)
			c.subs.count.Add(1)
		}
		c.confirm(kind, a, set)
	}
}

// confirm tells how many subscriptions there are: sharded ones are counted by
// themselves.
func (c *Conn) confirm(kind string, name []byte, set *map[string]struct{}) {
	n := len(c.subs.channels) + len(c.subs.patterns)
	if set == &c.subs.sharded {
		n = len(c.subs.sharded)
	}
	c.reply.Push(3)
	c.reply.BulkString(kind)
	if name == nil {
		c.reply.Null()
	} else {
		c.reply.Bulk(name)
	}
	c.reply.Int(int64(n))
}

// unlisten is the reverse; without names it takes all.
func (c *Conn) unlisten(kind string, args [][]byte, set *map[string]struct{}, all topics) (last []string) {
	if len(args) == 0 {
		for name := range *set {
			args = append(args, []byte(name))
		}
		if len(args) == 0 {
			c.confirm(kind, nil, set)
			return nil
		}
	}
	for _, a := range args {
		name := string(a)
		if _, there := (*set)[name]; there {
			delete(*set, name)
			c.subs.count.Add(-1)
			if all.remove(name, c) {
				last = append(last, name)
			}
		}
		c.confirm(kind, a, set)
	}
	return last
}

func subscribe(c *Conn, args [][]byte) error {
	c.startPushing()
	p := &c.server.pubSub
	p.mu.Lock()
	defer p.mu.Unlock()
	c.listen("subscribe", args[1:], &c.subs.channels, p.channels)
	return nil
}

func psubscribe(c *Conn, args [][]byte) error {
	c.startPushing()
	p := &c.server.pubSub
	p.mu.Lock()
	defer p.mu.Unlock()
	c.listen("psubscribe", args[1:], &c.subs.patterns, p.patterns)
	return nil
}

func unsubscribe(c *Conn, args [][]byte) error {
	p := &c.server.pubSub
	p.mu.Lock()
	defer p.mu.Unlock()
	c.unlisten("unsubscribe", args[1:], &c.subs.channels, p.channels)
	return nil
}

func punsubscribe(c *Conn, args [][]byte) error {
	p := &c.server.pubSub
	p.mu.Lock()
	defer p.mu.Unlock()
	c.unlisten("punsubscribe", args[1:], &c.subs.patterns, p.patterns)
	return nil
}

// ssubscribe listens to channels of one slot, if this node serves it or is a
// replica of who does: decided under the slot's lock, so that no channel is added to
// a slot that has gone.
func ssubscribe(c *Conn, args [][]byte) error {
	c.startPushing()
	p := &c.server.pubSub
	var fresh [][]byte
	err := c.atSlot("ssubscribe", args[1:], func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, a := range args[1:] {
			p.watch.Add(string(a))
			if _, there := c.subs.sharded[string(a)]; !there {
				fresh = append(fresh, a)
			}
		}
		c.listen("ssubscribe", args[1:], &c.subs.sharded, p.sharded)
	})
	if err != nil && len(fresh) > 0 {
		c.unsubscribeSharded(fresh) // the slot went while it ran; who hears of an error does not listen
	}
	return err
}

func (c *Conn) unsubscribeSharded(channels [][]byte) {
	p := &c.server.pubSub
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, name := range c.unlisten("sunsubscribe", channels, &c.subs.sharded, p.sharded) {
		p.watch.Remove(name)
	}
}

func sunsubscribe(c *Conn, args [][]byte) error {
	c.unsubscribeSharded(args[1:])
	return nil
}

// atSlot runs f where the slot of channels is served, or at a replica, whether keys
// of their names are there or not: messages are not kept, so that it does not matter
// how new anything is.
func (c *Conn) atSlot(name string, channels [][]byte, f func()) error {
	r := slotmesh.Request{Name: name, ReadOnly: true, Asking: c.wasAsking, Anyway: true, FromReplica: true, Stale: true}
	for _, a := range channels {
		r.Keys = append(r.Keys, string(a))
	}
	return c.session.Execute(c.ctx, &r, func(*slotmesh.Tx) error {
		f()
		return nil
	})
}

func publish(c *Conn, args [][]byte) error {
	n, err := c.server.node.Publish(c.ctx, string(args[1]), append([]byte(nil), args[2]...))
	if err != nil {
		return err
	}
	c.reply.Int(int64(n))
	return nil
}

func spublish(c *Conn, args [][]byte) (err error) {
	var n int
	failed := c.atSlot("spublish", args[1:2], func() {
		n, err = c.server.node.PublishSharded(c.ctx, string(args[1]), append([]byte(nil), args[2]...))
	})
	if err = errors.Join(failed, err); err == nil {
		c.reply.Int(int64(n))
	}
	return err
}

func pubSubChannels(c *Conn, args [][]byte) error {
	return c.listTopics(c.server.pubSub.channels, args)
}

func pubSubShardChannels(c *Conn, args [][]byte) error {
	return c.listTopics(c.server.pubSub.sharded, args)
}

func (c *Conn) listTopics(t topics, args [][]byte) error {
	if len(args) > 3 {
		return wrongSubcommand("PUBSUB", string(args[1]))
	}
	p := &c.server.pubSub
	p.mu.Lock()
	defer p.mu.Unlock()
	var names []string
	for name := range t {
		if len(args) == 2 || globMatch(string(args[2]), name) {
			names = append(names, name)
		}
	}
	c.reply.Array(len(names))
	for _, name := range names {
		c.reply.BulkString(name)
	}
	return nil
}

func pubSubNumSub(c *Conn, args [][]byte) error {
	return c.countTopics(c.server.pubSub.channels, args)
}

func pubSubShardNumSub(c *Conn, args [][]byte) error {
	return c.countTopics(c.server.pubSub.sharded, args)
}

func (c *Conn) countTopics(t topics, args [][]byte) error {
	p := &c.server.pubSub
	p.mu.Lock()
	defer p.mu.Unlock()
	c.reply.Array(2 * (len(args) - 2))
	for _, a := range args[2:] {
		c.reply.Bulk(a)
		c.reply.Int(int64(len(t[string(a)])))
	}
	return nil
}

func pubSubNumPat(c *Conn, args [][]byte) error {
	p := &c.server.pubSub
	p.mu.Lock()
	defer p.mu.Unlock()
	c.reply.Int(int64(len(p.patterns)))
	return nil
}
