package slotmesh

import (
	"sync/atomic"
	"time"
)

// What goes over the control connections, counted as it passes: for operators,
// and for nothing that decides.

// traffic counts messages by their kind.
type traffic struct {
	sent, received [numMsgKinds]atomic.Uint64
}

// contact is when this node has had to do with another one. Times are Unix
// milliseconds.
type contact struct {
	heard atomic.Int64 // its last heartbeat; 0: none yet
	asked atomic.Int64 // the first heartbeat to it since; 0: none

	shard  atomic.Pointer[ShardID] // of its newest link
	offset atomic.Uint64           // where its log ended, as its last heartbeat of that shard has said
}

const contactsMax = 2 * tombstonesMax // at the bound those without a link are forgotten

func (t *traffic) noteSent(c *contact, kind msgKind) {
	t.sent[kind].Add(1)
	if kind == msgHeartbeat {
		c.asked.CompareAndSwap(0, time.Now().UnixMilli())
	}
}

// noteReceived notes a message of a node that is of a shard, as its link has said.
func (t *traffic) noteReceived(c *contact, shard *ShardID, m message) {
	t.received[m.kind()].Add(1)
	if h, ok := m.(*heartbeat); ok {
		c.heard.Store(time.Now().UnixMilli())
		c.asked.Store(0)
		if *c.shard.Load() == *shard {
			c.offset.Store(h.Position)
		}
	}
}

// contactWith is that with a node of which a link begins, under ls.mu. Where its log
// ended in another shard says nothing.
func (ls *links) contactWith(id NodeID, shard ShardID) *contact {
	c := ls.contacts[id]
	if c == nil {
		if len(ls.contacts) >= contactsMax {
			for old := range ls.contacts {
				if ls.liveLink(old, roleBeat) == nil && ls.liveLink(old, roleControl) == nil {
					delete(ls.contacts, old)
				}
			}
		}
		c = &contact{}
		ls.contacts[id] = c
	}
	if was := c.shard.Swap(&shard); was == nil || *was != shard {
		c.offset.Store(0)
	}
	return c
}

// look fills in what this node sees of the others now.
func (ls *links) look(nodes []NodeInfo) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	late := time.Now().Add(-ls.node.cfg.NodeTimeout / 2).UnixMilli()
	for i := range nodes {
		n := &nodes[i]
		if n.Self {
			n.Connected, n.Offset = true, ls.node.repl.position().Offset
			continue
		}
		for _, role := range []linkRole{roleControl, roleBeat} {
			if l := ls.liveLink(n.ID, role); l != nil && (!n.Connected || l.since.Before(n.ConnectedAt)) {
				n.Connected, n.ConnectedAt = true, l.since
			}
		}
		c := ls.contacts[n.ID]
		if c == nil {
			continue
		}
		if at := c.heard.Load(); at != 0 {
			n.PongReceived = time.UnixMilli(at)
		}
		if *c.shard.Load() == n.Shard {
			n.Offset = c.offset.Load()
		}
		if at := c.asked.Load(); at != 0 && at <= late {
			n.PingSent = time.UnixMilli(at)
		}
	}
}

// counted is the counts that are not zero. Messages of applications go another
// way than those of the bus.
func counted(counts *[numMsgKinds]atomic.Uint64, published uint64) map[string]uint64 {
	byName := map[string]uint64{}
	if published > 0 {
		byName["PUBLISH"] = published
	}
	for k := range counts {
		if n := counts[k].Load(); n > 0 {
			byName[msgKind(k).String()] = n
		}
	}
	return byName
}

// counts is the traffic of a node, by the names of messages.
func (n *node) counts() (sent, received map[string]uint64) {
	t, p := &n.links.traffic, &n.pubSub
	return counted(&t.sent, p.sent.Load()), counted(&t.received, p.received.Load())
}
