package slotmesh

import (
	"fmt"
	"testing"
	"time"
)

// BenchmarkSimulatedBus is what a calm cluster says: every node is the primary
// of as many slots as the others, on a host of its own, and nothing happens.
// B/node/s and msgs/node/s are what a node sends, frames as they go over a
// connection, without what TCP and IP add; voters send more, and stand beside.
func BenchmarkSimulatedBus(b *testing.B) {
	for _, nodes := range []int{10, 100, 1000} {
		b.Run(fmt.Sprintf("nodes=%d", nodes), func(b *testing.B) {
			w := newSimWorld(1)
			w.nt, w.faults, w.unchecked = 5*time.Second, simFaults{}, true
			w.standing(nodes, 0)
			w.run(2 * w.nt)
			for _, n := range w.nodes {
				if !n.core.leaseHeld() {
					b.Fatalf("%s has no lease after %v", n.name(), w.now)
				}
			}
			w.bytes = true
			from := w.now
			for b.Loop() {
				w.run(w.now + w.nt)
			}
			seconds := (w.now - from).Seconds()
			var all, voters simSent
			votes := 0
			for _, n := range w.nodes {
				all.add(n.sent)
				if n.core.isVoter() {
					voters.add(n.sent)
					votes++
				}
			}
			report := func(s simSent, nodes int, who string) {
				b.ReportMetric(float64(s.bytes)/float64(nodes)/seconds, "B/"+who+"/s")
				b.ReportMetric(float64(s.frames)/float64(nodes)/seconds, "msgs/"+who+"/s")
			}
			report(all, nodes, "node")
			report(voters, votes, "voter")
			b.ReportMetric(0, "ns/op") // how long the simulator takes is of no interest
		})
	}
}

// standing boots a cluster that has stood for long, from disks on which it has
// been saved: to let so many nodes form would take minutes. The nodes are so many
// primaries, and behind them their replicas in the same order, round by round.
func (w *simWorld) standing(primaries, replicas int) {
	now := &startValue{ID: 1, Version: voterVersion{Number: 1}, Cluster: ClusterID{1}}
	var slots slotMap[slotEntry]
	var accepts slotMap[accepted]
	saved := map[cellKey][]byte{}
	put := func(disk map[cellKey][]byte, k cellKey, v any) {
		b, err := encodeValue(v)
		if err != nil {
			panic(err)
		}
		disk[k] = b
	}
	var cells []nodeCell
	for i := range primaries * (1 + replicas) {
		n := w.addNode()
		n.store, n.replica = newSimStore(), simReplica{inc: w.r.Uint64() | 1, copy: true}
		e := peerEntry{Key: w.r.Uint64(), Version: 1, Starts: 1, Facts: 1, Addr: w.newAddr(), Host: n.host, Store: n.replica.inc}
		n.addr = e.Addr
		fillRandom(e.ID[:], w.r.Uint64)
		of := i % primaries // whose shard it is
		if i < primaries {
			fillRandom(e.Shard[:], w.r.Uint64)
			epoch := Epoch{Number: uint64(i + 1), Node: e.ID}
			put(saved, cellKey{kind: cellShard, id: e.Shard}, &epoch)
			for s := i * NumSlots / primaries; s < (i+1)*NumSlots/primaries; s++ {
				slots.set(Slot(s), slotEntry{e.Shard, 1})
				accepts.set(Slot(s), accepted{e.Shard, 1, epoch})
			}
			if len(now.Members) < min(maxVotersDefault, primaries-1+primaries%2) {
				now.Members = append(now.Members, member{e.ID, e.Key})
			}
			now.Votes.Promises = append(now.Votes.Promises, promiseRow{Shard: e.Shard, Epoch: epoch})
			now.Votes.Records = append(now.Votes.Records, record{Shard: e.Shard, Epoch: epoch, Strict: w.ack > 0})
		}
		r := &now.Votes.Records[of]
		r.InSync = append(r.InSync, incarnate{e.ID, e.Store})
		e.Shard, n.replica.shard = r.Shard, r.Shard
		cells = append(cells, nodeCell{ID: e.ID, Key: e.Key, Cluster: now.Cluster, Starts: 1, Promise: r.Epoch})
		put(saved, cellKey{kind: cellPeer, id: e.ID}, &e)
	}
	sortMembers(now.Members)
	voters := now.voters()
	put(saved, cellKey{kind: cellVoters}, &voters)
	put(saved, cellKey{kind: cellEpoch}, &numberCell{uint64(primaries)})
	votes := map[cellKey][]byte{}
	for i := range uint8(numPages) {
		put(saved, cellKey{kind: cellSlots, page: i}, pageRuns[slotEntry, slotRuns](&slots, i))
		put(votes, cellKey{kind: cellAccepted, page: i}, pageRuns[accepted, acceptRuns](&accepts, i))
	}
	for i := range now.Votes.Records {
		r := now.Votes.Records[i]
		put(votes, cellKey{kind: cellVote, id: r.Shard}, &voteCell{Promised: r.Epoch, Records: []record{r}})
	}
	put(votes, cellKey{kind: cellCurrent}, now)
	for i, n := range w.nodes {
		for k, v := range saved {
			n.disk[k] = v
		}
		put(n.disk, cellKey{kind: cellNode}, &cells[i])
		if voters.has(cells[i].ID) {
			for k, v := range votes {
				n.disk[k] = v
			}
		}
		n.boot(n.addr)
	}
}
