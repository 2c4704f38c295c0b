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
			w.standing(nodes)
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
// been saved: to let so many nodes form would take minutes.
func (w *simWorld) standing(nodes int) {
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
	for i := range nodes {
		n := w.addNode()
		e := peerEntry{Key: w.r.Uint64(), Version: 1, Starts: 1, Facts: 1, Addr: w.newAddr(), Host: n.host}
		n.addr = e.Addr
		fillRandom(e.ID[:], w.r.Uint64)
		fillRandom(e.Shard[:], w.r.Uint64)
		epoch := Epoch{Number: uint64(i + 1), Node: e.ID}
		cells = append(cells, nodeCell{ID: e.ID, Key: e.Key, Cluster: now.Cluster, Starts: 1, Promise: epoch})
		put(saved, cellKey{kind: cellPeer, id: e.ID}, &e)
		put(saved, cellKey{kind: cellShard, id: e.Shard}, &epoch)
		for s := i * NumSlots / nodes; s < (i+1)*NumSlots/nodes; s++ {
			slots.set(Slot(s), slotEntry{e.Shard, 1})
			accepts.set(Slot(s), accepted{e.Shard, 1, epoch})
		}
		if len(now.Members) < min(maxVotersDefault, nodes-1+nodes%2) {
			now.Members = append(now.Members, member{e.ID, e.Key})
		}
		r := record{Shard: e.Shard, Epoch: epoch, InSync: []incarnate{{Node: e.ID}}}
		now.Votes.Promises = append(now.Votes.Promises, promiseRow{Shard: e.Shard, Epoch: epoch})
		now.Votes.Records = append(now.Votes.Records, r)
	}
	sortMembers(now.Members)
	voters := now.voters()
	put(saved, cellKey{kind: cellVoters}, &voters)
	put(saved, cellKey{kind: cellEpoch}, &numberCell{uint64(nodes)})
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
