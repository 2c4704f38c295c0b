package slotmesh

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/slotmesh/slotmesh/internal/racing"
	"github.com/stretchr/testify/require"
)

// lone is a core that knows nobody, as a member of a cluster.
func lone(t testing.TB, number int) *state {
	t.Helper()
	s, err := newState(coreConfig{nodeTimeout: ruleNT, maxVoters: maxVotersDefault, incarnation: 1, random: newRuleChance(number).next}, nil)
	require.NoError(t, err)
	s.cluster = ClusterID{1}
	s.boot(0)
	return s
}

// The higher number wins in each entry alone, so that tables merge in any order.
func TestMergingInAnyOrderGivesTheSameTable(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 1))
	var entries []updateMsg
	for range 40 {
		a, b := byte(1+r.IntN(4)), byte(1+r.IntN(4))
		entries = append(entries,
			updateMsg{Slots: slotRuns{Shards: []ShardID{{a}}, Runs: []slotRun{{Slot(r.IntN(4)), Slot(4 + r.IntN(4)), 0, uint64(r.IntN(4))}}}},
			updateMsg{Shards: []shardRow{{ShardID{a}, Epoch{uint64(r.IntN(4)), r.IntN(2) == 1, NodeID{b}}}}},
			updateMsg{Peers: []peerEntry{{ID: NodeID{10 + b}, State: memberState(r.IntN(3)), Version: uint64(1 + r.IntN(4)),
				Starts: uint64(r.IntN(2)), Shard: ShardID{10 + b}}}},
			updateMsg{Silent: []silentEntry{{NodeID{b}, uint64(r.IntN(2)), 1 + uint64(r.IntN(2)), nil}}},
			updateMsg{Voters: []voterSet{{voterVersion{uint64(r.IntN(2)), uint64(r.IntN(4)), NodeID{}}, uint64(a), nil}}},
		)
	}
	// What an entry says is a function of its numbers: nobody writes two things
	// under one number.
	for i := range entries {
		if v := entries[i].Voters; v != nil {
			v[0].ID = 1 + v[0].Version.Forced*10 + v[0].Version.Number
		}
		if p := entries[i].Peers; p != nil {
			p[0].Key = 1 + p[0].Version/3 // reset once
			p[0].Addr = string(rune('a' + p[0].Key*10 + p[0].Starts))
		}
	}
	var first *state
	for trial := range 30 {
		s := lone(t, 9)
		from := &peer{}
		// Shards are known once they have a member, so these are met first.
		for b := byte(1); b <= 4; b++ {
			s.mergePeer(from, &peerEntry{ID: NodeID{b}, Shard: ShardID{b}})
		}
		r.Shuffle(len(entries), func(i, j int) { entries[i], entries[j] = entries[j], entries[i] })
		for i := range entries {
			s.onUpdate(from, &entries[i])
			if r.IntN(3) == 0 {
				s.onUpdate(from, &entries[r.IntN(i+1)]) // twice, and late
			}
		}
		if first == nil {
			first = s
			continue
		}
		if s.table.sum != first.table.sum || s.table.buckets != first.table.buckets || s.table.voters.ID != first.table.voters.ID {
			t.Errorf("trial %d: table %x, was %x in another order", trial, s.table.sum, first.table.sum)
		}
		if s.peers.sum != first.peers.sum || s.peers.buckets != first.peers.buckets {
			t.Errorf("trial %d: membership %x, was %x in another order", trial, s.peers.sum, first.peers.sum)
		}
		for i := range Slot(8) {
			if s.table.slots.at(i) != first.table.slots.at(i) {
				t.Errorf("trial %d: slot %d is of %v, was of %v in another order", trial, i, s.table.slots.at(i), first.table.slots.at(i))
			}
		}
	}
}

func TestHigherMoveWinsASlot(t *testing.T) {
	t.Parallel()
	a, b := ShardID{1}, ShardID{2}
	for _, row := range []struct {
		name      string
		have, new slotEntry
		want      slotEntry
	}{
		{"a higher move of another shard", slotEntry{a, 3}, slotEntry{b, 4}, slotEntry{b, 4}},
		{"a higher move of nobody", slotEntry{a, 3}, slotEntry{ShardID{}, 4}, slotEntry{ShardID{}, 4}},
		{"a lower move", slotEntry{a, 3}, slotEntry{b, 2}, slotEntry{a, 3}},
		{"the same", slotEntry{a, 3}, slotEntry{a, 3}, slotEntry{a, 3}},
		{"the same move of a higher shard, which only unformed groups can give", slotEntry{a, 3}, slotEntry{b, 3}, slotEntry{b, 3}},
		{"the same move of a lower shard", slotEntry{b, 3}, slotEntry{a, 3}, slotEntry{b, 3}},
		{"the first one", slotEntry{}, slotEntry{a, 1}, slotEntry{a, 1}},
	} {
		s := lone(t, 9)
		s.setSlot(7, row.have, pushNothing)
		s.mergeSlot(&peer{}, 7, row.new, false)
		if got := s.table.slots.at(7); got != row.want {
			t.Errorf("%s: %v, want %v", row.name, got, row.want)
		}
	}
}

// Digests are kept up with every change; made anew they are the same.
func TestDigestsAreAsIfMadeAnew(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(2, 2))
	s := lone(t, 9)
	table, peers := &s.table, &s.peers
	check := func(what string) {
		t.Helper()
		wasT, wasP, wasSum, wasPeers := table.buckets, peers.buckets, table.sum, peers.sum
		table.resalt(table.salt)
		peers.resalt(peers.salt)
		require.Equal(t, wasT, table.buckets, what)
		require.Equal(t, wasSum, table.sum, what)
		require.Equal(t, wasP, peers.buckets, what)
		require.Equal(t, wasPeers, peers.sum, what)
		var sum, psum uint64
		for i := range numBuckets {
			sum += table.buckets[i]
			psum += peers.buckets[i]
		}
		require.Equal(t, table.sum, sum, what)
		require.Equal(t, peers.sum, psum, what)
	}
	for range 400 {
		id, node := ShardID{byte(r.IntN(6))}, NodeID{byte(1 + r.IntN(6))}
		switch r.IntN(7) {
		case 0:
			table.setSlot(Slot(r.IntN(NumSlots)), slotEntry{id, uint64(r.IntN(3))})
		case 1:
			table.setShard(id, Epoch{uint64(r.IntN(3)), false, node})
		case 2:
			table.dropShard(id)
		case 3:
			table.setVoters(voterSet{voterVersion{Number: uint64(r.IntN(3))}, uint64(r.IntN(3)), nil})
		case 4:
			if p := peers.get(node); p != nil {
				peers.change(p, func() { p.State, p.Shard, p.Version = memberState(r.IntN(3)), id, p.Version+1 })
			} else {
				peers.insert(&peer{peerEntry: peerEntry{ID: node, Shard: id}})
			}
		case 5:
			if p := peers.get(node); p != nil {
				peers.change(p, func() { p.silent = silentEntry{node, 1, uint64(r.IntN(3)), nil} })
			}
		case 6:
			if p := peers.get(node); p != nil && r.IntN(3) == 0 {
				peers.remove(p)
			}
		}
		check("after a change")
	}
}

// Each piece of an entry is part of a digest, so that no difference is missed.
func TestEveryFactChangesADigest(t *testing.T) {
	t.Parallel()
	shard, node := ShardID{5}, NodeID{5}
	for _, row := range []struct {
		name string
		edit func(s *state)
	}{
		{"the owner of a slot", func(s *state) { s.table.setSlot(3, slotEntry{shard, 0}) }},
		{"the move of a slot", func(s *state) { s.table.setSlot(3, slotEntry{s.self.Shard, 1}) }},
		{"a shard that has slots", func(s *state) { s.table.setSlot(3, slotEntry{shard, 0}); s.table.setShard(shard, Epoch{Node: node}) }},
		{"the number of an epoch", func(s *state) { s.table.setShard(s.self.Shard, Epoch{Number: 1, Node: s.id}) }},
		{"the mark of a takeover", func(s *state) { s.table.setShard(s.self.Shard, Epoch{Unclean: true, Node: s.id}) }},
		{"who leads", func(s *state) { s.table.setShard(s.self.Shard, Epoch{Node: node}) }},
		{"the version of the voters", func(s *state) { s.table.setVoters(voterSet{voterVersion{Number: 2}, 1, nil}) }},
		{"the count of imposed voters", func(s *state) { s.table.setVoters(voterSet{voterVersion{Forced: 1, Number: 1}, 1, nil}) }},
		{"the START of the voters", func(s *state) { s.table.setVoters(voterSet{voterVersion{Number: 1}, 2, nil}) }},
		{"a peer", func(s *state) { s.peers.insert(&peer{peerEntry: peerEntry{ID: node}}) }},
		{"a voter key", func(s *state) { s.peers.change(s.self, func() { s.self.Key++ }) }},
		{"a state", func(s *state) { s.peers.change(s.self, func() { s.self.State = leaving }) }},
		{"a version", func(s *state) { s.peers.change(s.self, func() { s.self.Version++ }) }},
		{"a start count", func(s *state) { s.peers.change(s.self, func() { s.self.Starts++ }) }},
		{"a change of facts", func(s *state) { s.peers.change(s.self, func() { s.self.peerEntry.Facts++ }) }},
		{"a list of the silent", func(s *state) { s.peers.change(s.self, func() { s.self.silent.Counter++ }) }},
		{"a list of another start", func(s *state) { s.peers.change(s.self, func() { s.self.silent = silentEntry{s.id, 2, 1, nil} }) }},
	} {
		s := lone(t, 9)
		s.table.setVoters(voterSet{voterVersion{Number: 1}, 1, nil})
		was := [2]uint64{s.table.sum, s.peers.sum}
		row.edit(s)
		if is := [2]uint64{s.table.sum, s.peers.sum}; is == was {
			t.Errorf("%s changes no digest", row.name)
		}
	}
}

// A shard without member and slot is on its way out everywhere: nobody need
// have it.
func TestShardWithoutMemberAndSlotIsNoPartOfTheDigest(t *testing.T) {
	t.Parallel()
	s := lone(t, 9)
	was := s.table.sum
	shard := ShardID{5}
	s.table.setShard(shard, Epoch{Number: 4})
	require.Equal(t, was, s.table.sum)
	require.False(t, s.table.useful(shard))

	s.table.setSlot(0, slotEntry{shard, 1})
	require.True(t, s.table.useful(shard))
	require.NotEqual(t, was, s.table.sum)
	s.table.setSlot(0, slotEntry{})
	require.Equal(t, was, s.table.sum)

	p := &peer{peerEntry: peerEntry{ID: NodeID{5}, Shard: shard}}
	s.peers.insert(p)
	require.True(t, s.table.useful(shard))
	s.peers.change(p, func() { p.State = forgotten })
	require.False(t, s.table.useful(shard))
	require.Equal(t, was, s.table.sum)
	s.peers.remove(p)
	require.Equal(t, was, s.table.sum)
}

func TestTableCountsTheSlotsOfEachShard(t *testing.T) {
	t.Parallel()
	a, b := ShardID{1}, ShardID{2}
	tab := newTable(0)
	require.Equal(t, NumSlots, tab.unassigned)
	for i := range Slot(10) {
		tab.setSlot(i, slotEntry{a, 1})
	}
	tab.setSlot(9, slotEntry{b, 2})
	tab.setSlot(300, slotEntry{b, 1})
	tab.setShard(a, Epoch{Node: NodeID{1}})
	tab.setShard(b, Epoch{Node: NodeID{2}})
	require.Equal(t, NumSlots-11, tab.unassigned)
	require.Equal(t, map[ShardID]int{a: 9, b: 2}, tab.owned)
	require.Equal(t, []ShardID{a, b}, tab.order)

	ofA, ofB, none, stranger := tab.slotsOf(a), tab.slotsOf(b), tab.slotsOf(ShardID{}), tab.slotsOf(ShardID{7})
	require.Equal(t, "0-8", ofA.String())
	require.Equal(t, "9 300", ofB.String())
	require.Equal(t, "10-299 301-16383", none.String())
	require.True(t, stranger.Empty())
	require.Equal(t, NodeID{2}, tab.owner(9))
	require.Equal(t, NodeID{}, tab.owner(10))

	tab.setSlot(9, slotEntry{ShardID{}, 3})
	tab.setSlot(300, slotEntry{ShardID{}, 3})
	require.Equal(t, map[ShardID]int{a: 9}, tab.owned)
	tab.dropShard(b)
	tab.dropShard(b)
	require.Equal(t, []ShardID{a}, tab.order)

	tab.clear()
	require.Equal(t, NumSlots, tab.unassigned)
	require.Zero(t, tab.sum)
	require.Empty(t, tab.order)
}

// What belongs to somebody is known without a look at every slot, until one changes.
func TestTableKnowsWhatIsAssigned(t *testing.T) {
	t.Parallel()
	a, b := ShardID{1}, ShardID{2}
	tab := newTable(0)
	want := func(r ...slotRun) {
		t.Helper()
		for range 2 { // the second time as it was kept
			is := tab.assigned()
			require.Equal(t, r, is.Runs)
		}
	}
	want()
	for _, s := range []Slot{7, 255, 256, 16383} {
		tab.setSlot(s, slotEntry{a, 1})
	}
	want(slotRun{7, 7, 0, 1}, slotRun{255, 256, 0, 1}, slotRun{16383, 16383, 0, 1})
	tab.setSlot(256, slotEntry{b, 2})
	want(slotRun{7, 7, 0, 1}, slotRun{255, 255, 0, 1}, slotRun{256, 256, 1, 2}, slotRun{16383, 16383, 0, 1})
	tab.setSlot(7, slotEntry{ShardID{}, 2})
	want(slotRun{255, 255, 0, 1}, slotRun{256, 256, 1, 2}, slotRun{16383, 16383, 0, 1})
	tab.clear()
	want()
}

// A page that readers hold is copied before it changes.
func TestSharedPagesDoNotChange(t *testing.T) {
	t.Parallel()
	var m slotMap[uint64]
	m.set(5, 1)
	shared := m.share()
	m.set(5, 2)
	m.set(6, 3)
	m.set(700, 4)
	require.Equal(t, uint64(1), shared[0][5])
	require.Equal(t, uint64(0), shared[0][6])
	require.Nil(t, shared[2])
	require.Equal(t, uint64(2), m.at(5))
	require.Equal(t, uint64(4), m.at(700))
	require.Equal(t, uint64(0), m.at(16383))

	mine := m.pages[0]
	m.set(7, 9)
	require.Same(t, mine, m.pages[0], "a page that nobody else holds is changed where it is")
}

// ---- runs

func TestRunsAreMaximalAndKeepEverySlot(t *testing.T) {
	racing.OneGoroutine(t)
	t.Parallel()
	r := rand.New(rand.NewPCG(3, 3))
	for range 5 {
		var slots, accepts, opens, moves = map[Slot]slotEntry{}, map[Slot]accepted{}, map[Slot]opening{}, map[Slot]uint64{}
		var sr slotRuns
		var ar acceptRuns
		var or openRuns
		var mr moveRuns
		shard, epoch, move := ShardID{1}, Epoch{Number: 1}, uint64(1)
		changes := 0
		last := Slot(NumSlots)
		for i := range NumSlots {
			slot := Slot(i)
			if r.IntN(100) == 0 {
				shard, epoch, move = ShardID{byte(r.IntN(3))}, Epoch{Number: uint64(r.IntN(3))}, uint64(r.IntN(3))
			}
			if r.IntN(50) == 0 {
				continue
			}
			e := accepted{shard, move, epoch}
			if last == NumSlots || last+1 != slot || accepts[last] != e {
				changes++
			}
			slots[slot], accepts[slot], opens[slot], moves[slot] = slotEntry{shard, move}, e, opening{move, epoch}, move
			sr.add(slot, slots[slot])
			ar.add(slot, e)
			or.add(slot, opens[slot])
			mr.add(slot, move)
			last = slot
		}
		require.NoError(t, sr.check())
		require.NoError(t, ar.check())
		require.NoError(t, or.check())
		require.NoError(t, mr.check())
		require.Len(t, ar.Runs, changes, "runs of all that differs")
		gotS, gotA, gotO, gotM := map[Slot]slotEntry{}, map[Slot]accepted{}, map[Slot]opening{}, map[Slot]uint64{}
		sr.each(func(s Slot, e slotEntry) { gotS[s] = e })
		ar.each(func(s Slot, a accepted) { gotA[s] = a })
		or.each(func(s Slot, o opening) { gotO[s] = o })
		mr.each(func(s Slot, m uint64) { gotM[s] = m })
		require.Equal(t, slots, gotS)
		require.Equal(t, accepts, gotA)
		require.Equal(t, opens, gotO)
		require.Equal(t, moves, gotM)
		as, ms := ar.slots(), mr.slots()
		require.Equal(t, len(accepts), as.Len())
		require.Equal(t, len(moves), ms.Len())
	}
}

func TestRunsReachTheLastSlot(t *testing.T) {
	t.Parallel()
	var r moveRuns
	r.add(16383, 1)
	n := 0
	r.each(func(s Slot, move uint64) { n++ })
	require.Equal(t, 1, n)
	require.Equal(t, moveRuns{{16383, 16383, 1}}, r)
}

// A page is turned into runs at once; slot by slot gives the same.
func TestPagesBecomeTheSameRunsAsTheirSlots(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(4, 4))
	for range 100 {
		var m slotMap[slotEntry]
		var want slotRuns
		for i := range Slot(pageSlots) {
			e := slotEntry{ShardID{byte(r.IntN(2))}, uint64(r.IntN(2))}
			if r.IntN(4) > 0 && i > 0 {
				e = m.at(512 + i - 1)
			}
			m.set(512+i, e)
			if e != (slotEntry{}) {
				want.add(512+i, e)
			}
		}
		var got slotRuns
		addPage(m.pages[2], 512, got.add, got.extend)
		require.Equal(t, want, got)
		require.NoError(t, got.check())
	}
	var none slotRuns
	addPage[slotEntry](nil, 0, none.add, none.extend)
	require.True(t, none.empty())
}

// ---- orders

func TestEpochsCompareByNumberUncleanAndNode(t *testing.T) {
	t.Parallel()
	a, b := NodeID{1}, NodeID{2}
	ascends := []Epoch{{}, {1, false, a}, {1, false, b}, {1, true, a}, {1, true, b}, {2, false, a}, {2, false, b}}
	for i, x := range ascends {
		for j, y := range ascends {
			want := 0
			if i != j {
				want = order(i < j)
			}
			if got := x.Compare(y); got != want {
				t.Errorf("%v compares with %v as %d, want %d", x, y, got, want)
			}
			if got := x.less(y); got != (i < j) {
				t.Errorf("%v before %v: %v", x, y, got)
			}
		}
	}
}

func TestRecordsCompareByEpochAndCount(t *testing.T) {
	t.Parallel()
	older := &record{Epoch: Epoch{Number: 2}, N: 9}
	newer := &record{Epoch: Epoch{Number: 3}, N: 0}
	again := &record{Epoch: Epoch{Number: 3}, N: 1}
	for _, row := range []struct {
		name string
		a, b *record
		want bool
	}{
		{"a newer epoch with a smaller count", newer, older, true},
		{"an older epoch with a larger count", older, newer, false},
		{"a larger count of one epoch", again, newer, true},
		{"a smaller count of one epoch", newer, again, false},
		{"itself", newer, newer, false},
	} {
		if got := row.a.newer(row.b); got != row.want {
			t.Errorf("%s: newer %v, want %v", row.name, got, row.want)
		}
	}
}

// Voters compare as (forced, version, proposer), so that an imposed set beats
// all that its old side decides meanwhile.
func TestVersionsOfVotersCompareByForcedNumberAndProposer(t *testing.T) {
	t.Parallel()
	ascends := []voterVersion{{}, {0, 1, NodeID{}}, {0, 9, NodeID{}}, {1, 2, NodeID{1}}, {1, 2, NodeID{2}}, {1, 3, NodeID{}}, {2, 1, NodeID{}}}
	for i, x := range ascends {
		for j, y := range ascends {
			if got := x.less(y); got != (i < j) {
				t.Errorf("%v before %v: %v", x, y, got)
			}
		}
	}
}

func TestMajorityIsMoreThanHalf(t *testing.T) {
	t.Parallel()
	for voters, want := range map[int]int{1: 1, 2: 2, 3: 2, 4: 3, 5: 3, 9: 5, 63: 32} {
		v := voterSet{Members: make([]member, voters)}
		if got := v.quorum(); got != want {
			t.Errorf("quorum of %d voters is %d, want %d", voters, got, want)
		}
	}
}

func TestAcceptedMovesCompareByMoveAndEpochOfTheGiver(t *testing.T) {
	t.Parallel()
	ascends := []accepted{{}, {move: 1}, {move: 1, epoch: Epoch{Number: 2}}, {move: 2}, {move: 2, epoch: Epoch{Number: 1}}}
	for i, x := range ascends {
		for j, y := range ascends {
			if x.less(y) != (i < j) {
				t.Errorf("%v before %v: %v", x, y, x.less(y))
			}
			if o, p := (opening{x.move, x.epoch}), (opening{y.move, y.epoch}); o.less(p) != (i < j) {
				t.Errorf("%v before %v: %v", o, p, o.less(p))
			}
		}
	}
}

func TestIDsPrintAndParse(t *testing.T) {
	t.Parallel()
	id := NodeID{0xab, 1}
	text := "ab01000000000000000000000000000000000000"
	require.Equal(t, text, id.String())
	got, err := ParseNodeID("AB01" + text[4:])
	require.NoError(t, err)
	require.Equal(t, id, got)
	require.Equal(t, text, ShardID(id).String())
	require.Equal(t, "ab010000", ShardID(id).short())
	require.Equal(t, text[:32], ClusterID{0xab, 1}.String())
	for _, bad := range []string{"", text[1:], text + "0", "x" + text[1:], text[:39] + "-"} {
		_, err := ParseNodeID(bad)
		require.ErrorContains(t, err, "hexadecimal", "of %q", bad)
	}
	ids := []NodeID{{2}, {1}, {}}
	slices.SortFunc(ids, NodeID.compare)
	require.Equal(t, []NodeID{{}, {1}, {2}}, ids)
	require.True(t, ids[0].IsZero())
}
