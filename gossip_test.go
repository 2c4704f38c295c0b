package slotmesh

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slotmesh/slotmesh/internal/racing"
	"github.com/stretchr/testify/require"
)

// ---- pushing

// A change is pushed once, by the node that made it, to all.
func TestChangeIsPushedOnceToAll(t *testing.T) {
	w := newRules(t)
	ns := w.cluster(1, 4)
	a, d := ns[0], ns[3]
	var pushed []ruleMail
	w.seen = func(m ruleMail) {
		if u, ok := m.msg.(*updateMsg); ok && len(u.Slots.Runs) > 0 {
			pushed = append(pushed, m)
		}
	}
	a.handOff(1, "5-9", d.shard())
	a.freezes(false)
	toldOf[stageTell](d)
	d.stageHeld(1, 1)
	w.deliver()
	require.Equal(t, "d", a.owns(5))
	require.Len(t, pushed, 3, "to b, c and d")
	for _, m := range pushed {
		require.Equal(t, a, m.from)
		require.Equal(t, a.shard(), m.msg.(*updateMsg).Giver)
		require.Equal(t, slotRuns{Shards: []ShardID{d.shard()}, Runs: []slotRun{{5, 9, 0, 2}}}, m.msg.(*updateMsg).Slots)
	}
	w.run(3 * ruleNT)
	require.Len(t, pushed, 3, "what all know is not told again")
}

// A shard's entry goes with its first slots, so that the owner is known.
func TestPushedSlotsComeWithTheirShard(t *testing.T) {
	w := newRules(t)
	ns := w.cluster(2, 3)
	us := ns[0].core.slotUpdates(slotsOf(t, "0-9 9000"), ShardID{})
	require.Len(t, us, 1)
	require.ElementsMatch(t, []shardRow{{ns[0].shard(), ns[0].epoch()}, {ns[1].shard(), ns[1].epoch()}}, us[0].Shards)
}

// The reply to a command waits until every live member has acknowledged the
// pushed change, one NodeTimeout at most.
func TestReplyWaitsUntilEveryLiveMemberKnows(t *testing.T) {
	for _, row := range []struct {
		name string
		loss func(w *ruleWorld, ns []*ruleNode)
		when time.Duration // from that on there is a reply
	}{
		{"nothing is lost", func(*ruleWorld, []*ruleNode) {}, 0},
		{"a member is dead already", func(w *ruleWorld, ns []*ruleNode) { ns[2].crash(); w.run(ruleNT + ruleNT/20) }, 0},
		{"a member has just fallen silent", func(w *ruleWorld, ns []*ruleNode) { ns[2].cut = true }, ruleNT},
		{"a member has been forgotten", func(w *ruleWorld, ns []*ruleNode) { ns[0].forget(ns[2].core.id, false); w.deliver(); ns[2].cut = true }, 0},
		{"one push is lost, and repeated", func(w *ruleWorld, ns []*ruleNode) {
			lost := false
			w.lose = func(m ruleMail) bool {
				u, ok := m.msg.(*updateMsg)
				first := ok && u.Seq != 0 && m.to == ns[2] && !lost
				lost = lost || first
				return first
			}
		}, ruleNT / 8},
		{"acknowledgements are lost", func(w *ruleWorld, ns []*ruleNode) { w.lose = kindsOf(msgUpdated) }, ruleNT},
	} {
		w := newRules(t)
		ns := w.group(3)
		row.loss(w, ns)
		r := ns[0].addSlots("5")
		w.run(0)
		if row.when > 0 {
			w.run(row.when - ruleNT/100)
			require.Equal(t, "no reply", r.String(), row.name)
			w.run(ruleNT / 10)
		}
		require.Equal(t, "OK", r.String(), row.name)
	}
}

// ---- digests

// A digest that differs twice in a row starts an exchange; once may be a push on
// its way.
func TestDigestThatDiffersTwiceInARowStartsAnExchange(t *testing.T) {
	for _, row := range []struct {
		name  string
		beats string // s: same, d: other table, p: other membership, n: it has just joined
		asks  bool
	}{
		{"same", "ss", false},
		{"once, and not like anybody since it joined", "nd", true},
		{"once more after that", "nsd", false},
		{"once", "d", false},
		{"once more, not in a row", "dsd", false},
		{"twice in a row", "dd", true},
		{"twice in a row, the membership", "pp", true},
		{"one after the other", "dp", true},
	} {
		w := newRules(t)
		ns := w.cluster(1, 2)
		a, b := ns[0], ns[1]
		asked := false
		stamp := b.core.stamp()
		for _, x := range row.beats {
			if x == 'n' {
				a.core.synced = false
				continue
			}
			stamp++
			m := &heartbeat{Table: a.core.table.sum, Peers: a.core.peers.sum, Sent: stamp}
			switch x {
			case 'd':
				m.Table++
			case 'p':
				m.Peers++
			}
			for _, answer := range a.gets(b, m) {
				asked = asked || answer.kind() == msgDigest
			}
		}
		if asked != row.asks {
			t.Errorf("%s: asks %v, want %v", row.name, asked, row.asks)
		}
	}
}

// What a push has missed is repaired: whatever kind of entry it was.
func TestLostPushIsRepaired(t *testing.T) {
	for _, row := range []struct {
		name   string
		change func(w *ruleWorld, ns []*ruleNode)
		known  func(ns []*ruleNode) bool // at c
	}{
		{"a slot", func(w *ruleWorld, ns []*ruleNode) { ns[0].delSlots("5"); ns[0].freezes(false) },
			func(ns []*ruleNode) bool { return ns[2].owns(5) == "-" }},
		{"a shard", func(w *ruleWorld, ns []*ruleNode) {
			ns[1].command(func(s *state, now time.Duration, id uint64) output { return s.bumpEpoch(now, id) })
			w.run(ruleNT / 10)
		}, func(ns []*ruleNode) bool { return ns[2].core.table.shards[ns[1].shard()].Number == 3 }},
		{"a peer", func(w *ruleWorld, ns []*ruleNode) { ns[0].forget(ns[3].core.id, false); w.deliver() },
			func(ns []*ruleNode) bool { return ns[2].knows(ns[3]).State == forgotten }},
		{"a list of the silent", func(w *ruleWorld, ns []*ruleNode) { ns[3].crash(); w.run(ruleNT + ruleNT/10) },
			func(ns []*ruleNode) bool { return ns[2].knows(ns[0]).silent.lists(ns[3].core.id) }},
	} {
		w := newRules(t)
		ns := w.cluster(2, 4)
		w.lose = func(m ruleMail) bool {
			return m.to == ns[2] && (m.msg.kind() == msgUpdate || m.msg.kind() == msgFail)
		}
		row.change(w, ns)
		require.False(t, row.known(ns), row.name)
		w.lose = nil
		w.run(ruleNT)
		require.True(t, row.known(ns), "%s\n%s", row.name, w.dump())
		for _, n := range ns {
			if !n.down {
				require.Equal(t, ns[0].core.table.sum, n.core.table.sum, row.name)
				require.Equal(t, ns[0].core.peers.sum, n.core.peers.sum, row.name)
			}
		}
	}
}

// Voters that were missed are repaired too.
func TestLostVotersAreRepaired(t *testing.T) {
	w := newRules(t)
	ns := w.cluster(1, 4)
	d := ns[3]
	w.lose = func(m ruleMail) bool { u, ok := m.msg.(*updateMsg); return m.to == d && ok && len(u.Voters) > 0 }
	ns[0].forget(ns[1].core.id, false)
	w.until("voters change", func() bool { return ns[0].voters() == "acd" })
	require.Equal(t, "abc", d.voters())
	w.lose = nil
	w.run(ruleNT)
	require.Equal(t, "acd", d.voters())
	require.True(t, d.core.active())
}

// An exchange sends the entries of the differing buckets, both ways, and no
// others.
func TestExchangeSendsTheBucketsThatDiffer(t *testing.T) {
	w := newRules(t)
	ns := w.cluster(2, 2)
	a, b := ns[0], ns[1]
	b.core.begin(w.now)
	b.core.setSlot(300, slotEntry{b.shard(), 7}, pushNothing)
	b.core.setSlot(16000, slotEntry{b.shard(), 7}, pushNothing)
	var runs []slotRun
	w.seen = func(m ruleMail) {
		if u, ok := m.msg.(*updateMsg); ok {
			runs = append(runs, u.Slots.Runs...)
			require.Empty(t, u.Peers)
			require.Empty(t, u.Voters)
		}
	}
	b.step(func(s *state, now time.Duration) output {
		s.begin(now)
		s.exchange(s.peers.get(a.core.id))
		return s.end()
	})
	w.deliver()
	require.Equal(t, []slotRun{
		{256, 511, 0, 1}, {15872, 16127, 1, 1}, // a has in those pages
		{256, 299, 0, 1}, {300, 300, 1, 7}, {301, 511, 0, 1}, {15872, 15999, 1, 1}, {16000, 16000, 1, 7}, {16001, 16127, 1, 1}, // and b
	}, runs)
	require.Equal(t, uint64(7), a.core.table.slots.at(16000).move)
}

// One exchange per peer and four per node at a time.
func TestExchangesAreBounded(t *testing.T) {
	w := newRules(t)
	ns := w.cluster(1, 7)
	a := ns[0]
	asks := func() (letters string) {
		w.seen = func(m ruleMail) {
			if m.msg.kind() == msgDigest {
				letters += m.to.name
			}
		}
		a.step(func(s *state, now time.Duration) output {
			s.begin(now)
			for _, p := range s.peers.ordered[1:] {
				s.exchange(p)
				s.exchange(p)
			}
			return s.end()
		})
		w.mail = nil
		return letters
	}
	require.Equal(t, "bcde", asks())
	require.Equal(t, "", asks(), "four are under way")
	w.now += ruleNT / 2
	require.Equal(t, "bcde", asks(), "they have not been answered: again")
	a.gets(ns[2], &digestMsg{Answer: true})
	require.Equal(t, "c", asks(), "one is over")
}

// Frames of an exchange have at most 32 KB, whatever the entries are.
func TestFramesOfEntriesAreBounded(t *testing.T) {
	w := newRules(t)
	a := w.boot()
	text := strings.Repeat("x", textLimit)
	var ids []NodeID
	var shards []ShardID
	for i := range 600 {
		id := NodeID{byte(i), byte(i >> 8), 1}
		a.core.peers.insert(&peer{peerEntry: peerEntry{ID: id, Key: ^uint64(0), State: forgotten, Version: ^uint64(0), Starts: ^uint64(0),
			Facts: ^uint64(0), Addr: text, ClientAddr: text, Host: text, Shard: ShardID(id)}})
		ids = append(ids, id)
		shards = append(shards, ShardID(id))
		a.core.table.setShard(ShardID(id), Epoch{^uint64(0), true, id})
	}
	var all SlotSet
	for i := range NumSlots {
		a.core.table.setSlot(Slot(i), slotEntry{shards[i%len(shards)], ^uint64(0) - uint64(i)})
		all.Add(Slot(i))
	}
	msgs := slices.Concat(a.core.peerUpdates(ids), a.core.slotUpdates(all, ShardID{9}), a.core.shardUpdates(shards))
	peers, slots, rows := map[NodeID]bool{}, 0, map[ShardID]bool{}
	for _, m := range msgs {
		frame, err := appendFrame(nil, m)
		require.NoError(t, err)
		require.LessOrEqual(t, len(frame), 32<<10, "%d peers, %d runs, %d shards", len(m.Peers), len(m.Slots.Runs), len(m.Shards))
		for _, e := range m.Peers {
			peers[e.ID] = true
		}
		m.Slots.each(func(Slot, slotEntry) { slots++ })
		for _, r := range m.Shards {
			rows[r.ID] = true
		}
	}
	require.Len(t, peers, 600)
	require.Len(t, rows, 600)
	require.Equal(t, NumSlots, slots)
}

// ---- numbers

// Numbers from one peer may rise by 1,000 per frame and 10,000 per minute beyond
// the highest seen; more is taken only when a majority of the voters shows the
// same number on its own connections.
func TestNumbersRiseInBounds(t *testing.T) {
	racing.OneGoroutine(t)
	type frame struct {
		from  int // node
		after time.Duration
		move  uint64
		want  uint64 // the move of slot 5 then
	}
	const d, e = 3, 4 // no voters
	for _, row := range []struct {
		name   string
		frames []frame
	}{
		{"by 1,000 in a frame", []frame{{d, 0, 1001, 1001}}},
		{"by more in a frame", []frame{{d, 0, 1002, 1}}},
		{"by 10,000 in a minute", []frame{{d, 0, 1001, 1001}, {d, 0, 2001, 2001}, {d, 0, 3001, 3001}, {d, 0, 4001, 4001}, {d, 0, 5001, 5001},
			{d, 0, 6001, 6001}, {d, 0, 7001, 7001}, {d, 0, 8001, 8001}, {d, 0, 9001, 9001}, {d, 0, 10001, 10001}, {d, 0, 10003, 10001},
			{d, time.Minute + 1, 10003, 10003}}},
		{"another peer has a budget of its own", []frame{{d, 0, 1001, 1001}, {e, 0, 2001, 2001}}},
		{"the next number costs nothing", []frame{{d, 0, 1002, 1}, {d, 0, 2, 2}, {d, 0, 3, 3}}},
		{"one voter shows it", []frame{{0, 0, 1 << 60, 1}}},
		{"one voter shows it twice", []frame{{0, 0, 1 << 60, 1}, {0, 0, 1 << 60, 1}}},
		{"two of three voters show it", []frame{{0, 0, 1 << 60, 1}, {1, 0, 1 << 60, 1 << 60}}},
		{"a voter and others show it", []frame{{0, 0, 1 << 60, 1}, {d, 0, 1 << 60, 1}, {e, 0, 1 << 60, 1}}},
		{"two voters show two numbers", []frame{{0, 0, 1 << 60, 1}, {1, 0, 1<<60 + 1, 1}}},
	} {
		w := newRules(t)
		ns := w.cluster(1, 6)
		require.Equal(t, "abcde", ns[0].voters())
		// Three voters, so that two are a majority and d and e are none.
		f := ns[5]
		f.core.table.setVoters(voterSet{f.core.table.voters.Version, f.core.table.voters.ID, f.core.table.voters.Members[:3]})
		for i, x := range row.frames {
			w.now += x.after
			f.gets(ns[x.from], &updateMsg{Slots: slotRuns{Shards: []ShardID{ns[1].shard()}, Runs: []slotRun{{5, 5, 0, x.move}}}})
			if got := f.core.table.slots.at(5).move; got != x.want {
				t.Errorf("%s, frame %d: move %d, want %d", row.name, i, got, x.want)
			}
		}
	}
}

// The bound holds for every kind of number that a peer can show.
func TestEveryNumberIsBounded(t *testing.T) {
	const high = 1 << 60
	for _, row := range []struct {
		name   string
		m      func(f, d *ruleNode) message
		number func(f, d *ruleNode) uint64
	}{
		{"a move", func(f, d *ruleNode) message {
			return &updateMsg{Slots: slotRuns{Shards: []ShardID{d.shard()}, Runs: []slotRun{{5, 5, 0, high}}}}
		}, func(f, d *ruleNode) uint64 { return f.core.table.slots.at(5).move }},
		{"an epoch", func(f, d *ruleNode) message {
			return &updateMsg{Shards: []shardRow{{d.shard(), Epoch{high, false, d.core.id}}}}
		}, func(f, d *ruleNode) uint64 { return f.core.table.shards[d.shard()].Number }},
		{"a version of a member", func(f, d *ruleNode) message {
			e := d.core.self.peerEntry
			e.Version = high
			return &updateMsg{Peers: []peerEntry{e}}
		}, func(f, d *ruleNode) uint64 { return f.knows(d).Version }},
		{"a version of this node itself", func(f, d *ruleNode) message {
			e := f.core.self.peerEntry
			e.Version, e.State = high, forgotten
			return &updateMsg{Peers: []peerEntry{e}}
		}, func(f, d *ruleNode) uint64 { return f.core.self.Version }},
		{"a version of the voters", func(f, d *ruleNode) message {
			return &updateMsg{Voters: []voterSet{{voterVersion{Number: high}, 5, []member{d.member()}}}}
		}, func(f, d *ruleNode) uint64 { return f.core.table.voters.Version.Number }},
		{"a count of imposed voters", func(f, d *ruleNode) message {
			return &updateMsg{Voters: []voterSet{{voterVersion{high, 2, d.core.id}, 5, []member{d.member()}}}}
		}, func(f, d *ruleNode) uint64 { return f.core.table.voters.Version.Forced }},
		{"an epoch asked for", func(f, d *ruleNode) message {
			return &voteMsg{Voters: f.core.table.voters.Version, Shard: d.shard(), Epoch: Epoch{high, false, d.core.id}, Incarnation: d.cfg.incarnation}
		}, func(f, d *ruleNode) uint64 { return f.core.epochHigh }},
		{"an epoch of a record", func(f, d *ruleNode) message {
			return &recordMsg{Voters: f.core.table.voters.Version, Record: record{Shard: d.shard(), Epoch: Epoch{high, false, d.core.id}}}
		}, func(f, d *ruleNode) uint64 { return f.core.epochHigh }},
		{"an epoch promised, in a refusal", func(f, d *ruleNode) message {
			return &refuseMsg{Voters: f.core.table.voters.Version, Shard: f.shard(), Epoch: f.epoch(), Why: refusePromised, Promised: Epoch{Number: high}}
		}, func(f, d *ruleNode) uint64 { return f.core.epochHigh }},
		{"an epoch promised, in a heartbeat", func(f, d *ruleNode) message {
			return &heartbeat{Start: f.core.table.voters.ID, Sent: d.core.stamp() + 1, Flags: beatAnswers, Answers: f.core.stamp(), Promised: high}
		}, func(f, d *ruleNode) uint64 { return f.core.epochHigh }},
		{"a move to be accepted", func(f, d *ruleNode) message {
			m := &moveMsg{Voters: f.core.table.voters.Version, Shard: d.shard(), Epoch: d.epoch(), Ballot: 1}
			m.Slots.add(5, accepted{f.shard(), high, d.epoch()})
			return m
		}, func(f, d *ruleNode) uint64 { return f.core.vote.accepted.at(5).move }},
		{"a version of a member that is not known here", func(f, d *ruleNode) message {
			return &updateMsg{Peers: []peerEntry{{ID: NodeID{99}, Key: 1, State: forgotten, Version: high}}}
		}, func(f, d *ruleNode) uint64 { return uint64(f.core.tombstones()) * high }},
		{"a ballot of STOP", func(f, d *ruleNode) message {
			return &stopMsg{f.core.table.voters.Version, ballot{high, d.core.id}, f.core.table.voters.Members}
		}, func(f, d *ruleNode) uint64 { return f.core.vote.stop.Number }},
		{"a ballot of START", func(f, d *ruleNode) message {
			return &startMsg{Voters: f.core.table.voters.Version, Ballot: ballot{high, d.core.id}, Value: nextStart(f)}
		}, func(f, d *ruleNode) uint64 { return f.core.vote.stop.Number }},
		{"a version in START", func(f, d *ruleNode) message {
			v := nextStart(f)
			v.Version.Number = high
			return &startMsg{Voters: f.core.table.voters.Version, Ballot: ballot{1, d.core.id}, Value: v}
		}, func(f, d *ruleNode) uint64 { return startOf(f).Version.Number }},
		{"an epoch promised, in START", func(f, d *ruleNode) message {
			v := nextStart(f)
			v.Votes.Promises = []promiseRow{{Shard: d.shard(), Epoch: Epoch{high, false, d.core.id}}}
			return &startMsg{Voters: f.core.table.voters.Version, Ballot: ballot{1, d.core.id}, Value: v}
		}, func(f, d *ruleNode) uint64 { return uint64(len(startOf(f).Votes.Promises)) * high }},
		{"a move accepted, in START", func(f, d *ruleNode) message {
			v := nextStart(f)
			v.Votes.Accepted.add(5, accepted{f.shard(), high, d.epoch()})
			return &startMsg{Voters: f.core.table.voters.Version, Ballot: ballot{1, d.core.id}, Value: v}
		}, func(f, d *ruleNode) uint64 { return uint64(len(startOf(f).Votes.Accepted.Runs)) * high }},
	} {
		w := newRules(t)
		ns := w.cluster(3, 3)
		f, d := ns[0], ns[1]
		if f.core.voter(f.knows(d)) == false {
			t.Fatal("both vote")
		}
		f.gets(d, row.m(f, d))
		if n := row.number(f, d); n > 1000 {
			t.Errorf("%s rises to %d", row.name, n)
		}
		if events := f.eventsOf(EventNumberRefused); len(events) != 1 || events[0].Node != d.core.id || events[0].Number != high {
			t.Errorf("%s: %d events of refused numbers, want one of %s", row.name, len(events), d.name)
		}
	}
}

// nextStart is a START of the version after the one in force at n.
func nextStart(n *ruleNode) startValue {
	v := n.core.table.voters
	v.Version.Number++
	return startValue{ID: 77, Cluster: n.core.cluster, Version: v.Version, Members: v.Members}
}

// startOf is the START that n has saved for the next version, if any.
func startOf(n *ruleNode) startValue {
	if v := n.core.vote.startValue; v != nil {
		return *v
	}
	return startValue{}
}

// Nor may a node of this cluster that is not known here raise them; all of those
// together are believed no more than one that is.
func TestStrangerMayNotRaiseNumbers(t *testing.T) {
	w := newRules(t)
	ns := w.cluster(3, 3)
	a, b := ns[0], ns[1]
	for _, version := range []uint64{1 << 60, 5} {
		e := b.core.self.peerEntry
		e.State, e.Version = leaving, version
		a.getsAs(stranger(a.core.cluster), &updateMsg{Peers: []peerEntry{e}})
	}
	require.Equal(t, uint64(5), a.knows(b).Version)
	for i := range 11 {
		who := stranger(a.core.cluster)
		who.ID[1] = byte(i)
		e := b.core.self.peerEntry
		e.State, e.Version = leaving, 1005+1000*uint64(i)
		a.getsAs(who, &updateMsg{Peers: []peerEntry{e}})
	}
	require.Less(t, a.knows(b).Version, uint64(10_100))
}

// A number that is far ahead is believed once it has been shown for so long that it
// could have risen to there step by step: who was away for long comes back.
func TestNumberFarAheadIsBelievedOnceItHasBeenShownForLong(t *testing.T) {
	w := newRules(t)
	ns := w.cluster(2, 2)
	a, b := ns[0], ns[1]
	a.restart()
	show := func(move uint64) {
		a.gets(b, &updateMsg{Slots: slotRuns{Shards: []ShardID{b.shard()}, Runs: []slotRun{{5, 5, 0, move}}}})
	}
	for range 2 {
		show(3001)
		require.Equal(t, uint64(1), a.core.table.slots.at(5).move)
	}
	show(3001)
	require.Equal(t, uint64(3001), a.core.table.slots.at(5).move)
	for range 7 {
		show(1 << 60)
	}
	show(10_002)
	require.Equal(t, uint64(3001), a.core.table.slots.at(5).move, "a minute's rise is used up")
	w.now += time.Minute + 1
	show(10_002)
	require.Equal(t, uint64(10_002), a.core.table.slots.at(5).move)
}

// Who has just started, or joined, believes one member no more than others do: what
// it believed it would show to them as its own word.
func TestWhoHasJustStartedOrJoinedIsNotGullible(t *testing.T) {
	const high = 1 << 40
	ghost := NodeID{99}
	for _, row := range []struct {
		name string
		lie  func(u *updateMsg, liar, victim *ruleNode)
	}{
		{"a move", func(u *updateMsg, liar, _ *ruleNode) {
			u.Slots = slotRuns{Shards: []ShardID{liar.shard()}, Runs: []slotRun{{5, 5, 0, high}}}
		}},
		{"an epoch", func(u *updateMsg, liar, victim *ruleNode) {
			u.Shards = []shardRow{{victim.shard(), Epoch{high, false, liar.core.id}}}
		}},
		{"a member that it knows", func(u *updateMsg, _, victim *ruleNode) {
			e := victim.core.self.peerEntry
			e.State, e.Version = forgotten, high
			u.Peers = []peerEntry{e}
		}},
		{"a member that nobody knows", func(u *updateMsg, _, _ *ruleNode) {
			u.Peers = []peerEntry{{ID: ghost, Key: 1, State: forgotten, Version: high}}
		}},
		{"voters", func(u *updateMsg, liar, _ *ruleNode) {
			u.Voters = []voterSet{{voterVersion{Number: high}, 5, []member{liar.member()}}}
		}},
	} {
		for _, begins := range []string{"started", "joined"} {
			w := newRules(t)
			ns := w.cluster(3, 4)
			liar, victim, f := ns[1], ns[2], ns[3]
			// All it hears at first is the lie.
			if begins == "started" {
				f.restart()
				f.lie(liar, victim, row.lie)
			} else {
				f = w.boot()
				w.lose = func(m ruleMail) bool { return m.to == f && m.from != ns[0] || m.msg.kind() == msgDigest }
				f.meet(ns[0])
				w.until("it has joined", func() bool { return !f.core.cluster.IsZero() })
				f.lie(liar, victim, row.lie)
				w.lose = nil
			}
			for range 3 {
				f.lie(liar, victim, row.lie)
			}
			w.until("all know the same", func() bool {
				return f.core.synced && !slices.ContainsFunc(w.nodes, func(n *ruleNode) bool {
					return n.core.table.sum != liar.core.table.sum || n.core.peers.sum != liar.core.peers.sum
				})
			})
			require.NotEqual(t, uint64(5), f.core.table.voters.ID, "%s, %s", row.name, begins)
			require.Less(t, f.core.table.slots.at(5).move, uint64(1000), "%s, %s", row.name, begins)
			require.Less(t, f.core.epochHigh, uint64(1000), "%s, %s", row.name, begins)
			require.Equal(t, present, f.knows(victim).State)
			require.Nil(t, f.core.peers.get(ghost))
		}
	}
}

// lie lets n hear from liar what is not so of victim.
func (n *ruleNode) lie(liar, victim *ruleNode, lie func(u *updateMsg, liar, victim *ruleNode)) {
	u := &updateMsg{}
	lie(u, liar, victim)
	n.gets(liar, u)
}

// A newcomer learns a table whose numbers are all beyond what it believes of one
// member, from a majority of the voters that it has been told when it was invited.
func TestNewcomerLearnsHighNumbersFromAMajorityOfTheVoters(t *testing.T) {
	const high = 1 << 40
	w := newRules(t)
	ns := w.cluster(3, 4)
	for _, n := range ns {
		n.step(func(s *state, now time.Duration) output {
			s.begin(now)
			for i := range NumSlots {
				s.setSlot(Slot(i), slotEntry{s.table.slots.at(Slot(i)).shard, high + uint64(i%3)}, pushNothing)
			}
			v := s.table.voters
			v.Version.Number = high
			s.table.setVoters(v)
			s.setShard(ns[3].shard(), Epoch{high, false, ns[3].core.id}, pushNothing)
			s.setPeer(s.peers.get(ns[2].core.id), pushNothing, func(e *peerEntry) { e.Version = high })
			return s.end()
		})
	}
	f := w.boot()
	f.meet(ns[3])
	w.until("it knows what all know", func() bool { return f.core.synced })
	require.Equal(t, ns[3].core.table.sum, f.core.table.sum)
	require.Equal(t, uint64(high+1), f.core.table.slots.at(1).move)
	require.Equal(t, uint64(high), f.knows(ns[2]).Version)
	require.Empty(t, f.eventsOf(EventNumberRefused))
}

// Who is not told the voters could not tell whom to believe: it does not join by that.
func TestInvitationNamesTheVoters(t *testing.T) {
	w := newRules(t)
	ns := w.cluster(1, 1)
	a, f := ns[0], w.boot()
	u := &updateMsg{Peers: []peerEntry{f.core.self.peerEntry, a.core.self.peerEntry}}
	f.gets(a, u)
	require.True(t, f.core.cluster.IsZero())
	u.Voters = []voterSet{a.core.table.voters}
	f.gets(a, u)
	require.Equal(t, a.core.cluster, f.core.cluster)
	require.Equal(t, "a", f.voters())
}

// ---- what others say of this node

func TestWhatOthersSayOfThisNode(t *testing.T) {
	for _, row := range []struct {
		name  string
		entry func(self peerEntry) peerEntry
		state memberState
		rise  uint64
	}{
		{"a newer state", func(e peerEntry) peerEntry { e.State, e.Version = leaving, e.Version+1; return e }, leaving, 1},
		{"an older one", func(e peerEntry) peerEntry { e.State, e.Version = forgotten, e.Version-1; return e }, present, 0},
		{"other facts, which only it can change", func(e peerEntry) peerEntry { e.Addr, e.Starts = "elsewhere", e.Starts+1; return e }, present, 0},
		{"a newer state of a key that it has no more: it rises above", func(e peerEntry) peerEntry {
			e.Key, e.State, e.Version = e.Key+1, forgotten, e.Version+1
			return e
		}, present, 2},
	} {
		w := newRules(t)
		ns := w.cluster(1, 2)
		a, b := ns[0], ns[1]
		was := a.core.self.peerEntry
		a.gets(b, &updateMsg{Peers: []peerEntry{row.entry(was)}})
		e := a.core.self.peerEntry
		if e.State != row.state || e.Version != was.Version+row.rise || e.Key != was.Key || e.Addr != was.Addr || e.Starts != was.Starts {
			t.Errorf("%s: %+v, was %+v", row.name, e, was)
		}
	}
}

// A group whose slots lie scattered is shown in several frames.
func TestMeetOfAGroupWithScatteredSlots(t *testing.T) {
	w := newRules(t)
	a, b := w.boot(), w.boot()
	var odd SlotSet
	for i := 1; i < NumSlots; i += 2 {
		odd.Add(Slot(i))
	}
	a.command(func(s *state, now time.Duration, id uint64) output { return s.addSlots(now, id, odd) })
	b.meet(a)
	w.run(ruleNT / 20)
	require.Equal(t, "a", b.owns(16383))
	require.Equal(t, "-", b.owns(16382))
	require.Empty(t, b.core.meetings)
}

func TestListOfTheSilentIsBounded(t *testing.T) {
	racing.OneGoroutine(t)
	w := newRules(t)
	a := w.boot(func(c *coreConfig) { c.alone = true })
	w.run(ruleNT)
	for i := range 3 * silentMax {
		id := NodeID{2, byte(i >> 8), byte(i)}
		a.core.mergePeer(&peer{}, &peerEntry{ID: id, Version: 1})
		a.core.peers.get(id).firstSeen = 0
	}
	a.tick()
	require.Len(t, a.core.self.silent.Nodes, silentMax)
	_, err := appendFrame(nil, &failMsg{a.core.self.silent})
	require.NoError(t, err)
}

// What a majority has on disk is told beside this node's own save; the epochs that
// go with it are not.
func TestDecidedSlotsWaitForTheEpochsThatGoWithThem(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name  string
		edit  func(s *state)
		waits bool
	}{
		{"a slot alone has changed", func(*state) {}, false},
		{"a higher number is heard of", func(s *state) { s.heardEpoch(s.self.Shard, s.epochHigh+7) }, true},
		{"another epoch of a shard is heard of", func(s *state) {
			s.setShard(ShardID{9}, Epoch{Number: 1, Node: NodeID{9}}, pushNothing)
		}, true},
	} {
		w := newRules(t)
		a := w.cluster(2, 3)[0]
		w.run(2 * ruleNT)
		a.step(func(s *state, now time.Duration) output {
			s.begin(now)
			row.edit(s)
			s.mark(cellKey{kind: cellSlots})
			s.pending.given = append(s.pending.given, givenSlots{s.self.Shard, oneSlot(5)})
			out := s.end()
			require.Equal(t, s.saveSeq, s.unsaved(), row.name)
			told := 0
			for _, m := range out.sends {
				if u, ok := m.msg.(*updateMsg); ok && !u.Giver.IsZero() {
					told++
					require.Equal(t, row.waits, m.after == s.saveSeq, row.name)
				}
			}
			require.Equal(t, 2, told, row.name)
			return out
		})
	}
}

// A node that can save nothing any more is dead to the others, and still learns what it
// has missed, so that it can send clients on: it asks for it, and nobody takes that for
// a sign of life.
func TestANodeWithoutADiskAsksForWhatItHasMissed(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	a, b, c, _, _ := w.replicated()
	a.step(func(s *state, now time.Duration) output { return s.saveFailed(now, errDiskFailed) })
	w.lose = func(m ruleMail) bool { return m.to == a && m.msg.kind() == msgUpdate }
	asked := 0
	w.seen = func(m ruleMail) {
		if m.from == a {
			q, ok := m.msg.(*digestMsg)
			require.True(t, ok && q.Mute && !q.Answer, "%v", m.msg.kind())
			asked++
		}
	}
	leads := func(n *ruleNode) bool { return n.core.lead != nil && n.core.lead.opened }
	w.until("another leads", func() bool { return leads(b) || leads(c) })
	w.run(2 * ruleNT)
	require.Equal(t, a.core.id, a.core.table.primary(a.shard()), "nobody has told it")
	w.lose, asked = nil, 0
	w.run(ruleNT)
	require.NotEqual(t, a.core.id, a.core.table.primary(a.shard()), "it has asked")
	require.Equal(t, b.core.table.primary(a.shard()), a.core.table.primary(a.shard()))
	require.LessOrEqual(t, asked, 3)
	for _, n := range []*ruleNode{b, c} {
		require.True(t, n.core.silentHere(n.core.peers.get(a.core.id)), "it counts as silent")
	}
}
