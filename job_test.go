package slotmesh

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// moving is a cluster in which a hands slot 5 over to d, who owns nothing yet.
// Its voters are a, b and c.
type moving struct {
	w          *ruleWorld
	a, b, c, d *ruleNode
}

func newMoving(t *testing.T) *moving {
	t.Helper()
	w := newRules(t)
	ns := w.cluster(1, 4)
	require.Equal(t, "abc", ns[0].voters())
	w.run(2 * ruleNT)
	return &moving{w, ns[0], ns[1], ns[2], ns[3]}
}

// stage goes on until the STAGE is out.
func (m *moving) stage() {
	m.a.handOff(1, "5", m.d.shard())
	m.a.frozen(1, 77, false)
	m.w.deliver()
}

// hold goes on until the target holds the data.
func (m *moving) hold() {
	m.stage()
	m.d.stageHeld(1, 77)
	m.w.deliver()
}

func (m *moving) phase() string {
	l := m.a.core.lead
	if l == nil || len(l.gives) == 0 {
		return "none"
	}
	return map[givePhase]string{giveFreezing: "freezing", giveStaging: "staging", giveMoving: "moving"}[l.gives[0].phase]
}

// ---- the giver

// Freeze, stage, move, tell.
func TestHandOverStepByStep(t *testing.T) {
	t.Parallel()
	m := newMoving(t)
	w, a, d := m.w, m.a, m.d
	a.handOff(1, "5-9", d.shard())
	require.False(t, a.serves(5))
	require.True(t, a.core.serve.hold.Contains(9), "requests wait")
	require.True(t, a.serves(10))
	f := toldOf[freezeTell](a)
	require.Len(t, f, 1)
	require.Equal(t, "5-9", f[0].slots.String())
	require.False(t, f[0].inPlace)

	a.frozen(1, 77, true)
	w.deliver()
	st := toldOf[stageTell](d)
	require.Len(t, st, 1)
	require.Equal(t, stageMsg{Job: 1, Giver: a.shard(), Epoch: a.epoch(), Position: 77, To: d.shard(), Slots: moveRuns{{5, 9, 2}}}, st[0].stage.stageMsg)
	w.run(ruleNT)
	require.Equal(t, "staging", m.phase())
	require.Empty(t, toldOf[stageTell](d), "the driver is asked once")
	require.Equal(t, "a", a.owns(5))

	d.slowDisk = true
	d.stageHeld(1, 77)
	d.flush()
	w.deliver()
	require.Equal(t, "d", a.owns(5))
	require.Equal(t, []jobTell{{1, true}}, toldOf[jobTell](a))
	require.Equal(t, "none", m.phase())
	require.Equal(t, uint64(2), m.b.core.table.slots.at(5).move)
	require.Equal(t, "5-9", a.eventsOf(EventMoved)[0].Slots.String())

	require.Equal(t, "d", d.owns(5))
	require.False(t, d.serves(5), "before the move is saved")
	require.Empty(t, toldOf[adoptTell](d))
	d.flush()
	d.slowDisk = false
	require.True(t, d.serves(5))
	require.Equal(t, []adoptTell{{slots: moveRuns{{5, 9, 2}}}}, toldOf[adoptTell](d), "the staged data becomes live")
	require.Empty(t, d.core.lead.late)

	require.Empty(t, toldOf[dropTell](a), "the new owner has not shown that it serves")
	w.run(ruleNT)
	require.Equal(t, []dropTell{{moveRuns{{5, 9, 2}}}}, toldOf[dropTell](a))
	require.Equal(t, []stageEndTell{{1}}, toldOf[stageEndTell](d))
}

// What has gone while a node led it drops as the primary alone: as a replica it has its
// primary's log, and would have to copy everything after a change of its own.
func TestAReplicaDropsNothingOnItsOwn(t *testing.T) {
	t.Parallel()
	for _, leads := range []bool{true, false} {
		w := newRules(t)
		a, b, _, d, _ := w.replicated()
		n := b
		if leads {
			n = a
		}
		n.step(func(s *state, now time.Duration) output {
			s.begin(now)
			s.setSlot(7, slotEntry{shard: d.shard(), move: 2}, pushNothing)
			s.gone[7] = goneSlot{move: 2, since: now, confirmed: true}
			return s.end()
		})
		w.run(ruleNT)
		require.Equal(t, leads, len(toldOf[dropTell](n)) > 0)
		_, waits := n.core.gone[7]
		require.Equal(t, !leads, waits, "it may lead again")
	}
}

func TestWhatCannotBeGiven(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name string
		give func(m *moving) *commandError
		want string
	}{
		{"slots that are served", func(m *moving) *commandError { return m.give("5", m.d.shard()) }, "OK"},
		{"to nobody", func(m *moving) *commandError { return m.give("5", ShardID{}) }, "OK"},
		{"to the own shard", func(m *moving) *commandError { return m.give("5-6", m.a.shard()) }, "ERR slots 5-6 already belong to this shard"},
		{"to a shard that nobody knows", func(m *moving) *commandError { return m.give("5", ShardID{0xee}) }, "ERR unknown shard ee00000000000000000000000000000000000000"},
		{"slots of others", func(m *moving) *commandError {
			m.a.core.lead.mine.Remove(6)
			return m.give("5-6", m.d.shard())
		}, "TRYAGAIN slot 6 is not served here now"},
		{"slots that are being given", func(m *moving) *commandError {
			m.a.handOff(1, "6", m.d.shard())
			return m.give("5-7", m.d.shard())
		}, "TRYAGAIN slot 6 is being handed over already"},
		{"while the shard is not open", func(m *moving) *commandError { m.a.core.lead.opened = false; return m.give("5", m.d.shard()) }, "CLUSTERDOWN this node's shard is not open"},
		{"by a node that leads nothing", func(m *moving) *commandError { m.a.core.lead = nil; return m.give("5", m.d.shard()) }, "CLUSTERDOWN this node's shard is not open"},
	} {
		m := newMoving(t)
		r := ruleReply{done: true, err: row.give(m)}
		if r.String() != row.want {
			t.Errorf("%s: %s, want %s", row.name, r.String(), row.want)
		}
	}
	m := newMoving(t)
	m.a.handOff(7, "5", ShardID{0xee})
	require.Equal(t, []jobTell{{7, false}}, toldOf[jobTell](m.a), "a job that cannot begin has ended")
}

func (m *moving) give(slots string, to ShardID) *commandError {
	return m.a.core.give(2, slotsOf(m.w.t, slots), to, false, nil)
}

// MOVE is sent only after the target's primary has acknowledged the stage at the
// final (epoch, position).
func TestMoveIsSentOnceTheTargetHoldsTheStage(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name string
		edit func(m *moving, s *stagedMsg) (from *ruleNode)
		want string
	}{
		{"held by the target's primary", func(m *moving, s *stagedMsg) *ruleNode { return m.d }, "moving"},
		{"said by another node", func(m *moving, s *stagedMsg) *ruleNode { return m.b }, "staging"},
		{"another position", func(m *moving, s *stagedMsg) *ruleNode { s.Position--; return m.d }, "staging"},
		{"another epoch", func(m *moving, s *stagedMsg) *ruleNode { s.Epoch.Number--; return m.d }, "staging"},
		{"another job", func(m *moving, s *stagedMsg) *ruleNode { s.Job++; return m.d }, "staging"},
		{"refused", func(m *moving, s *stagedMsg) *ruleNode { s.Error = "no room"; return m.d }, "none"},
	} {
		m := newMoving(t)
		m.w.lose = kindsOf(msgMove)
		m.a.core.vote.current.ID++ // its own vote is silent
		m.stage()
		s := &stagedMsg{Job: 1, Giver: m.a.shard(), Epoch: m.a.epoch(), Position: 77}
		from := row.edit(m, s)
		m.a.gets(from, s)
		if got := m.phase(); got != row.want {
			t.Errorf("%s: %s, want %s", row.name, got, row.want)
		}
	}
}

// A MOVE to shard 0 needs no stage.
func TestMoveToNobodyNeedsNoStage(t *testing.T) {
	t.Parallel()
	m := newMoving(t)
	m.w.lose = kindsOf(msgMove)
	m.a.handOff(1, "5", ShardID{})
	require.Equal(t, "freezing", m.phase())
	m.a.frozen(1, 77, true)
	require.Equal(t, "moving", m.phase())
}

// A primary that stands again sends its first MOVE once it has opened its new
// epoch: the opening names the frozen slots, and would overrule it.
func TestMoveWaitsUntilItsEpochIsOpen(t *testing.T) {
	t.Parallel()
	for _, cancelled := range []bool{false, true} {
		m := newMoving(t)
		m.a.handOff(1, "5", ShardID{})
		m.w.hold = kindsOf(msgAccept)
		m.a.core.vote.stop, m.a.core.vote.stoppedAt = ballot{1, m.b.core.id}, m.w.now+time.Hour // its own vote is silent
		m.a.command(func(s *state, now time.Duration, id uint64) output { return s.bumpEpoch(now, id) })
		m.w.until("won, not open", func() bool { return !m.a.core.lead.opened })
		sent := m.w.count(func() {
			m.a.frozen(1, 7, false)
			m.w.run(ruleNT / 5)
		}, kindsOf(msgMove))
		require.Zero(t, sent)
		require.Equal(t, giveReady, m.a.core.lead.gives[0].phase)
		require.False(t, m.a.serves(5))
		if cancelled {
			m.a.thaw(1)
		}
		m.w.releaseHeld()
		m.w.run(ruleNT / 10)
		require.Equal(t, cancelled, m.a.serves(5))
		require.Equal(t, []jobTell{{1, !cancelled}}, toldOf[jobTell](m.a))
	}
}

// Thaw is possible only before the first MOVE is sent.
func TestThawOnlyBeforeMove(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name   string
		go_    func(m *moving)
		serves bool
		jobs   []jobTell
	}{
		{"freezing", func(m *moving) { m.a.handOff(1, "5", m.d.shard()) }, true, []jobTell{{1, false}}},
		{"staging", func(m *moving) { m.stage() }, true, []jobTell{{1, false}}},
		{"moving", func(m *moving) { m.w.lose = kindsOf(msgMove); m.hold() }, false, nil},
	} {
		m := newMoving(t)
		row.go_(m)
		m.a.thaw(1)
		m.w.deliver()
		if got := m.a.serves(5); got != row.serves {
			t.Errorf("%s: serves again %v, want %v", row.name, got, row.serves)
		}
		require.Equal(t, row.jobs, toldOf[jobTell](m.a), row.name)
		if row.serves {
			require.Empty(t, m.d.core.stages, row.name)
		} else {
			m.w.run(ruleNT)
			require.False(t, m.a.serves(5), "%s: it only goes forward", row.name)
			m.w.lose = nil
			m.w.run(ruleNT / 5)
			require.Equal(t, "d", m.a.owns(5), row.name)
		}
	}
}

// STAGE and MOVE are repeated until they are answered.
func TestStageAndMoveAreRepeated(t *testing.T) {
	t.Parallel()
	m := newMoving(t)
	m.w.lose = kindsOf(msgStaged, msgMove, msgStage)
	m.hold()
	require.InDelta(t, 10, m.w.count(func() { m.w.run(ruleNT) }, kindsOf(msgStage)), 1)
	m.w.lose = kindsOf(msgMove)
	m.w.run(ruleNT / 5)
	m.d.stageHeld(1, 77)
	m.w.run(ruleNT / 5)
	require.Equal(t, "moving", m.phase())
	require.InDelta(t, 20, m.w.count(func() { m.w.run(ruleNT) }, kindsOf(msgMove)), 2, "to two voters")
	m.w.lose = func(x ruleMail) bool { return x.msg.kind() == msgMove && x.to == m.c }
	m.w.run(ruleNT / 5)
	require.Equal(t, "d", m.a.owns(5), "a majority is enough")
}

// Decided = a majority's answers of one version to one MOVE, counted by its
// sender.
func TestWhichAnswersDecideAMove(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name string
		edit func(m *moving, x *acceptMsg) (from *ruleNode)
		want bool
	}{
		{"of a voter", func(m *moving, x *acceptMsg) *ruleNode { return m.b }, true},
		{"of no voter", func(m *moving, x *acceptMsg) *ruleNode { return m.d }, false},
		{"to another MOVE", func(m *moving, x *acceptMsg) *ruleNode { x.Ballot++; return m.b }, false},
		{"of another version", func(m *moving, x *acceptMsg) *ruleNode { x.Voters.Number++; return m.b }, false},
	} {
		m := newMoving(t)
		m.w.lose = kindsOf(msgMove)
		m.hold() // its own vote is counted
		require.Equal(t, "moving", m.phase())
		b := m.a.core.lead.gives[0].ballot
		x := &acceptMsg{Voters: m.a.core.table.voters.Version, Shard: m.a.shard(), Epoch: m.a.epoch(), Ballot: b.id}
		m.a.gets(row.edit(m, x), x)
		if got := m.a.owns(5) == "d"; got != row.want {
			t.Errorf("%s: decided %v, want %v", row.name, got, row.want)
		}
	}
}

// Answers of two versions of the voters are not added up: the MOVE is sent again
// under the new one.
func TestMoveIsCountedAnewUnderNewVoters(t *testing.T) {
	t.Parallel()
	m := newMoving(t)
	m.w.lose = kindsOf(msgMove)
	m.hold()
	b := m.a.core.lead.gives[0].ballot
	require.Len(t, b.accepts, 1)
	next := voterSet{Version: voterVersion{Number: 2}, ID: 99, Members: m.a.core.table.voters.Members}
	m.a.gets(m.d, &updateMsg{Voters: []voterSet{next}})
	old := &acceptMsg{Voters: voterVersion{Number: 1}, Shard: m.a.shard(), Epoch: m.a.epoch(), Ballot: b.id}
	m.a.gets(m.b, old)
	require.Equal(t, "a", m.a.owns(5))
	m.a.tick()
	require.Empty(t, b.accepts)
	m.a.gets(m.b, &acceptMsg{Voters: next.Version, Shard: m.a.shard(), Epoch: m.a.epoch(), Ballot: b.id})
	require.Equal(t, "a", m.a.owns(5))
	m.a.gets(m.c, &acceptMsg{Voters: next.Version, Shard: m.a.shard(), Epoch: m.a.epoch(), Ballot: b.id})
	require.Equal(t, "d", m.a.owns(5))
}

// ---- when the giver is lost

// The crash table of a hand-over: the source restarts at each step.
func TestSourceIsLostDuringAHandOver(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name  string
		until func(m *moving)
		want  string // who owns slot 5 in the end
	}{
		{"while it freezes", func(m *moving) { m.a.handOff(1, "5", m.d.shard()) }, "a"},
		{"while it stages", func(m *moving) { m.stage() }, "a"},
		{"MOVE sent, nobody has accepted", func(m *moving) {
			m.w.lose = kindsOf(msgMove)
			m.a.core.vote.stop = ballot{1, m.b.core.id} // its own vote is silent, and answers again after the restart
			m.hold()
			m.a.core.vote.stop = ballot{}
		}, "a"},
		{"MOVE sent, one voter of those who are asked has accepted", func(m *moving) {
			m.w.lose = func(x ruleMail) bool { return x.msg.kind() == msgMove && x.to == m.b || x.msg.kind() == msgAccept }
			m.a.core.vote.stop = ballot{1, m.b.core.id}
			m.hold()
			m.a.core.vote.stop = ballot{}
		}, "d"},
		{"MOVE sent, a majority has accepted, it has not heard so", func(m *moving) { m.w.lose = kindsOf(msgAccept); m.hold() }, "d"},
		{"decided", func(m *moving) { m.hold() }, "d"},
	} {
		m := newMoving(t)
		row.until(m)
		m.a.restart()
		m.w.lose = nil
		m.w.until(row.name, func() bool { return m.w.calm() && m.a.core.lead.late.Empty() && m.d.core.lead.late.Empty() })
		m.w.run(ruleNT)
		for _, n := range m.w.nodes {
			if got := n.owns(5); got != row.want {
				t.Errorf("%s: %s owns the slot in the eyes of %s, want %s", row.name, got, n.name, row.want)
			}
		}
		if !m.w.nodes[map[string]int{"a": 0, "d": 3}[row.want]].serves(5) {
			t.Errorf("%s: %s does not serve the slot\n%s", row.name, row.want, m.w.dump())
		}
	}
}

// A half-accepted move at a voter that the successor did not ask can never pass
// later: the opening has overruled it.
func TestHalfAcceptedMoveIsOverruledByTheOpening(t *testing.T) {
	t.Parallel()
	m := newMoving(t)
	// Only c accepts, and c is cut off while a wins again.
	m.w.lose = func(x ruleMail) bool { return x.msg.kind() == msgMove && x.to != m.c || x.msg.kind() == msgAccept }
	m.a.core.vote.stop = ballot{1, m.b.core.id}
	m.hold()
	m.a.core.vote.stop = ballot{}
	require.Equal(t, uint64(2), m.c.core.vote.accepted.at(5).move)
	m.c.cut = true
	m.w.lose = nil
	m.a.restart()
	m.w.until("won again", func() bool { return m.a.serves(5) })
	m.c.cut = false
	m.w.until("calm", m.w.calm)
	m.a.restart() // and c is asked this time
	m.w.until("won once more", func() bool { return m.a.serves(5) })
	require.Equal(t, "a", m.b.owns(5))
}

// A refused MOVE says that another has been promised more: the giver wins its
// shard again, which completes or overrules it.
func TestRefusedMoveIsSettledByWinningAgain(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name     string
		accepted bool // by one of those who vote for it again
		want     string
		jobs     []jobTell
	}{
		{"half accepted: completed", true, "d", []jobTell{{1, true}}},
		{"accepted by nobody: overruled", false, "a", []jobTell{{1, false}}},
	} {
		m := newMoving(t)
		m.w.lose = kindsOf(msgMove)
		m.a.core.vote.current.ID++ // its own vote is silent
		m.hold()
		if row.accepted {
			m.c.core.setAccepted(5, accepted{m.d.shard(), 2, m.a.epoch()})
		}
		ballot := m.a.core.lead.gives[0].ballot.id
		m.a.gets(m.b, &refuseMsg{Voters: m.a.core.table.voters.Version, Shard: m.a.shard(), Epoch: m.a.epoch(), Ballot: ballot,
			Why: refusePromised, Promised: Epoch{m.a.epoch().Number + 4, false, NodeID{0xee}}})
		m.w.run(ruleNT)
		require.Equal(t, row.want, m.b.owns(5), row.name)
		require.Equal(t, row.jobs, toldOf[jobTell](m.a), row.name)
		require.Equal(t, row.want == "a", m.a.serves(5), row.name)
		require.Equal(t, row.want == "d", m.d.serves(5), row.name)
		require.Empty(t, m.d.core.stages, "%s: it is over by name", row.name)
	}
}

// A giver that is deposed leaves what is under way to its successor.
func TestDeposedGiverLetsGo(t *testing.T) {
	t.Parallel()
	m := newMoving(t)
	m.w.lose = kindsOf(msgMove)
	m.hold()
	m.a.gets(m.b, &updateMsg{Shards: []shardRow{{m.a.shard(), Epoch{99, false, NodeID{0xee}}}}})
	require.Equal(t, []jobTell{{1, false}}, toldOf[jobTell](m.a))
	require.Zero(t, m.w.count(func() { m.w.run(ruleNT / 4) }, kindsOf(msgMove)))
}

// ---- the target

func (m *moving) stageMsg() *stageMsg {
	return &stageMsg{Job: 1, Giver: m.a.shard(), Epoch: m.a.epoch(), Position: 77, To: m.d.shard(), Slots: moveRuns{{5, 9, 2}}}
}

func TestTargetAnswersAStage(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name  string
		edit  func(m *moving, s *stageMsg) (from *ruleNode)
		said  string
		asked bool // the driver, for the data
	}{
		{"of the giver's primary", func(m *moving, s *stageMsg) *ruleNode { return m.a }, "silence", true},
		{"in place: the data is here", func(m *moving, s *stageMsg) *ruleNode { s.InPlace = true; return m.a }, "STAGED", false},
		{"for another shard", func(m *moving, s *stageMsg) *ruleNode { s.To = m.b.shard(); return m.a }, "silence", false},
		{"of another node", func(m *moving, s *stageMsg) *ruleNode { return m.b }, "silence", false},
		{"of who has won the giver since, which is not known here yet", func(m *moving, s *stageMsg) *ruleNode {
			s.Epoch = Epoch{9, false, m.b.core.id}
			return m.b
		}, "silence", true},
		{"of slots that have moved on", func(m *moving, s *stageMsg) *ruleNode { s.Slots[0].Move = 1; return m.a }, "silence", false},
		{"while it leads nothing", func(m *moving, s *stageMsg) *ruleNode { m.d.core.lead = nil; return m.a }, "silence", false},
		{"while it is not open", func(m *moving, s *stageMsg) *ruleNode { m.d.core.lead.opened = false; return m.a }, "silence", false},
		{"while it is leaving", func(m *moving, s *stageMsg) *ruleNode {
			m.d.core.self.State = leaving
			return m.a
		}, "STAGED no: the target is leaving", false},
		{"beyond the bound", func(m *moving, s *stageMsg) *ruleNode {
			for i := range stagesMax {
				m.d.core.stages[uint64(i+100)] = &heldStage{stageMsg: stageMsg{Job: uint64(i + 100), Slots: moveRuns{{99, 99, 9}}}}
			}
			return m.a
		}, "STAGED no: the target holds 4096 stages already", false},
		{"again, while the data comes", func(m *moving, s *stageMsg) *ruleNode {
			m.d.gets(m.a, s)
			toldOf[stageTell](m.d)
			return m.a
		}, "silence", false},
		{"again, once the data is here", func(m *moving, s *stageMsg) *ruleNode {
			m.d.gets(m.a, s)
			toldOf[stageTell](m.d)
			m.d.stageHeld(1, 77)
			return m.a
		}, "STAGED", false},
		{"at a later position, once the data of the earlier is here", func(m *moving, s *stageMsg) *ruleNode {
			m.d.gets(m.a, m.stageMsg())
			m.d.stageHeld(1, 77)
			toldOf[stageTell](m.d)
			s.Position++
			return m.a
		}, "silence", true},
		{"at an earlier position, which comes late", func(m *moving, s *stageMsg) *ruleNode {
			m.d.gets(m.a, m.stageMsg())
			toldOf[stageTell](m.d)
			s.Position--
			return m.a
		}, "silence", false},
		{"of an earlier epoch, which comes late", func(m *moving, s *stageMsg) *ruleNode {
			m.d.gets(m.a, m.stageMsg())
			toldOf[stageTell](m.d)
			s.Epoch.Number--
			s.Position += 10
			return m.a
		}, "silence", false},
		{"of an earlier job for the same slots, which comes late", func(m *moving, s *stageMsg) *ruleNode {
			later := m.stageMsg()
			later.Job, later.Position = 2, 80
			m.d.gets(m.a, later)
			toldOf[stageTell](m.d)
			return m.a
		}, "silence", false},
	} {
		m := newMoving(t)
		m.w.lose = kindsOf(msgStaged)
		s := m.stageMsg()
		from := row.edit(m, s)
		got := said(m.d.gets(from, s))
		asked := len(toldOf[stageTell](m.d)) > 0
		if got != row.said || asked != row.asked {
			t.Errorf("%s: %s, driver asked %v, want %s, %v", row.name, got, asked, row.said, row.asked)
		}
	}
}

// What the driver says it holds counts only for the position that is wanted.
func TestStageIsHeldAtItsPosition(t *testing.T) {
	t.Parallel()
	m := newMoving(t)
	m.d.gets(m.a, m.stageMsg())
	for _, row := range []struct {
		job, position uint64
		want          int
	}{{1, 76, 0}, {2, 77, 0}, {1, 77, 1}} {
		got := m.w.count(func() { m.d.stageHeld(row.job, row.position) }, kindsOf(msgStaged))
		require.Equal(t, row.want, got, "job %d at %d", row.job, row.position)
	}
}

// T drops a stage only when the source's opened primary cancels the job by name,
// or a higher move of the slot is decided elsewhere.
func TestWhatDropsAStage(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name string
		do   func(m *moving)
		want bool
	}{
		{"nothing", func(m *moving) {}, false},
		{"cancelled by name", func(m *moving) { m.d.gets(m.a, &cancelStageMsg{1, m.a.shard(), m.a.epoch()}) }, true},
		{"another job cancelled", func(m *moving) { m.d.gets(m.a, &cancelStageMsg{2, m.a.shard(), m.a.epoch()}) }, false},
		{"cancelled by another node", func(m *moving) { m.d.gets(m.b, &cancelStageMsg{1, m.a.shard(), m.a.epoch()}) }, false},
		{"cancelled under an earlier epoch", func(m *moving) { m.d.gets(m.a, &cancelStageMsg{1, m.a.shard(), Epoch{0, false, m.a.core.id}}) }, false},
		{"a newer epoch of the source", func(m *moving) {
			m.a.command(func(s *state, now time.Duration, id uint64) output { return s.bumpEpoch(now, id) })
		}, false},
		{"a part of its slots has moved on", func(m *moving) { m.decidedElsewhere(5, 8) }, false},
		{"all of its slots have moved on", func(m *moving) { m.decidedElsewhere(5, 9) }, true},
		{"a later job of the source for the same slots", func(m *moving) {
			s := m.stageMsg()
			s.Job, s.Position, s.Slots = 2, 80, moveRuns{{9, 20, 2}}
			m.d.gets(m.a, s)
		}, true},
		{"a later job of the source for other slots", func(m *moving) {
			s := m.stageMsg()
			s.Job, s.Position, s.Slots = 2, 80, moveRuns{{10, 20, 2}}
			m.d.gets(m.a, s)
		}, false},
		{"a job of another shard for the same slots", func(m *moving) {
			s := m.stageMsg()
			s.Job, s.Giver, s.Epoch = 2, m.b.shard(), m.b.epoch()
			m.d.gets(m.b, s)
		}, false},
	} {
		m := newMoving(t)
		m.d.gets(m.a, m.stageMsg())
		row.do(m)
		m.w.run(ruleNT)
		if got := m.d.core.stages[1] == nil; got != row.want {
			t.Errorf("%s: dropped %v, want %v", row.name, got, row.want)
		}
		if ends := len(toldOf[stageEndTell](m.d)); row.want != (ends == 1) {
			t.Errorf("%s: the driver is told %d times", row.name, ends)
		}
	}
}

// Who can save nothing any more leaves its data as it is, though it hears that the slots
// of a stage have come to it: with a store that outlives it, it starts again without
// that news, and needs the stage.
func TestAStageOutlivesADiskThatFails(t *testing.T) {
	t.Parallel()
	m := newMoving(t)
	m.d.gets(m.a, m.stageMsg())
	m.d.stageHeld(1, 77)
	m.d.step(func(s *state, now time.Duration) output { return s.saveFailed(now, errDiskFailed) })
	m.d.gets(m.a, &updateMsg{Giver: m.a.shard(), Slots: slotRuns{Shards: []ShardID{m.d.shard()}, Runs: []slotRun{{5, 9, 0, 2}}}})
	m.w.run(ruleNT)
	require.Equal(t, "d", m.d.owns(5))
	require.Empty(t, toldOf[stageEndTell](m.d))
	require.Empty(t, toldOf[adoptTell](m.d))
}

// decidedElsewhere tells d that slots have gone to b.
func (m *moving) decidedElsewhere(first, last Slot) {
	m.d.gets(m.b, &updateMsg{Slots: slotRuns{Shards: []ShardID{m.b.shard()}, Runs: []slotRun{{first, last, 0, 2}}}})
}

// B's primary serves when it has saved the decided move, if it acknowledged the
// stage in its present epoch, or named the slot at that move in its VOTE;
// otherwise it first wins R3 and R4 again, naming it.
func TestWhenTheTargetServes(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name string
		edit func(m *moving)
		tell func(m *moving) (from *ruleNode, giver ShardID)
		at   bool // at once
	}{
		{"staged in its present epoch, told by who counted", nil, nil, true},
		{"staged in its present epoch, told by the giver's primary without its name", nil, func(m *moving) (*ruleNode, ShardID) { return m.a, ShardID{} }, true},
		{"staged in its present epoch, heard from another", nil, func(m *moving) (*ruleNode, ShardID) { return m.b, ShardID{} }, false},
		{"staged in its present epoch, told by another in the giver's name", nil, func(m *moving) (*ruleNode, ShardID) { return m.b, m.a.shard() }, false},
		{"not staged", func(m *moving) { m.d.core.stages = map[uint64]*heldStage{} }, nil, false},
		{"shown, and the data is not here", func(m *moving) { m.d.core.stages[1].ready = false }, nil, false},
		{"staged in an earlier epoch", func(m *moving) { m.d.core.lead.epoch.Number++ }, nil, false},
		{"staged at another move", func(m *moving) { m.d.core.stages[1].Slots[0].Move = 3 }, nil, false},
	} {
		m := newMoving(t)
		m.d.gets(m.a, m.stageMsg())
		m.d.stageHeld(1, 77)
		m.w.mail = nil
		if row.edit != nil {
			row.edit(m)
		}
		from, giver := m.a, m.a.shard()
		if row.tell != nil {
			from, giver = row.tell(m)
		}
		m.d.gets(from, &updateMsg{Giver: giver, Slots: slotRuns{Shards: []ShardID{m.d.shard()}, Runs: []slotRun{{5, 5, 0, 2}}}})
		require.Equal(t, "d", m.d.owns(5), "%s: redirects go there in any case", row.name)
		if got := m.d.serves(5); got != row.at {
			t.Errorf("%s: serves at once %v, want %v", row.name, got, row.at)
		}
		if late := m.d.core.lead.late.Contains(5); late == row.at {
			t.Errorf("%s: to be named first %v", row.name, late)
		}
	}
}

// Whatever is lost on the way, the target serves in the end.
func TestTargetThatHearsOfTheDecisionLateServesInTheEnd(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name string
		lose func(m *moving) func(ruleMail) bool
	}{
		{"the news from the giver is lost", func(m *moving) func(ruleMail) bool {
			return func(x ruleMail) bool { return x.from == m.a && x.to == m.d && x.msg.kind() == msgUpdate }
		}},
		{"the giver is lost at once", func(m *moving) func(ruleMail) bool {
			return func(x ruleMail) bool {
				u, ok := x.msg.(*updateMsg)
				if ok && x.from == m.a && len(u.Slots.Runs) > 0 {
					m.a.cut = true
					return x.to != m.b // b alone hears of it
				}
				return false
			}
		}},
	} {
		m := newMoving(t)
		m.w.lose = row.lose(m)
		m.hold()
		m.w.until(row.name, func() bool { return m.d.serves(5) })
		require.True(t, m.d.core.lead.mine.Contains(5))
	}
}

// A target that restarts between its answer and the decision names the slot
// when it wins again.
func TestTargetIsLostDuringAHandOver(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name  string
		until func(m *moving)
		moves bool // without another stage
	}{
		{"before it holds the stage", func(m *moving) { m.stage() }, false},
		{"after it has said that it does", func(m *moving) { m.w.lose = kindsOf(msgMove); m.hold() }, true},
		{"decided, and not heard", func(m *moving) {
			m.w.lose = func(x ruleMail) bool { return x.to == m.d && x.msg.kind() == msgUpdate }
			m.hold()
		}, true},
	} {
		m := newMoving(t)
		row.until(m)
		m.d.restart()
		m.w.lose = nil
		m.w.run(3 * ruleNT)
		if row.moves {
			require.True(t, m.d.serves(5), row.name)
			continue
		}
		require.Equal(t, "staging", m.phase(), row.name)
		require.NotEmpty(t, toldOf[stageTell](m.d), "%s: it is shown the stage again", row.name)
		m.d.stageHeld(1, 77)
		m.w.run(ruleNT / 5)
		require.True(t, m.d.serves(5), row.name)
	}
}

// ---- what has gone

// A node fences itself on hearsay, but drops data only after a majority has
// confirmed the move and the new owner serves.
func TestDataIsDroppedOnceAMajorityConfirmsTheMove(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name     string
		accepted string // voters that have accepted the move
		to       func(m *moving) *ruleNode
		later    bool
		want     bool
	}{
		{"hearsay alone", "", nil, false, false},
		{"one voter", "b", nil, false, false},
		{"a majority", "bc", nil, false, true},
		{"a majority, of a later move", "bc", nil, true, true},
		{"a majority, of a move to another", "bc", func(m *moving) *ruleNode { return m.c }, false, false},
	} {
		m := newMoving(t)
		m.w.run(2 * ruleNT)
		to := m.d
		if row.to != nil {
			to = row.to(m)
		}
		move := uint64(2)
		if row.later {
			move += 2
		}
		for _, n := range m.w.nodes {
			n.core.vote.accepted.set(5, accepted{})
			for _, letter := range row.accepted {
				if n.name == string(letter) {
					n.core.vote.accepted.set(5, accepted{to.shard(), move, m.a.epoch()})
				}
			}
		}
		m.w.lose = func(x ruleMail) bool { // nobody hears of it from a by way of digests
			u, ok := x.msg.(*updateMsg)
			return ok && len(u.Slots.Runs) > 0
		}
		hearsay := &updateMsg{Slots: slotRuns{Shards: []ShardID{m.d.shard()}, Runs: []slotRun{{5, 5, 0, 2}}}}
		for _, n := range m.w.nodes {
			n.gets(m.b, hearsay)
			if n == m.b {
				n.gets(m.c, hearsay)
			}
		}
		require.False(t, m.a.serves(5), row.name)
		m.w.run(4 * ruleNT)
		if got := len(toldOf[dropTell](m.a)) > 0; got != row.want {
			t.Errorf("%s: dropped %v, want %v", row.name, got, row.want)
		}
	}
}

// Nothing is dropped while the new owner does not show that it serves.
func TestDataIsKeptUntilTheNewOwnerServes(t *testing.T) {
	t.Parallel()
	m := newMoving(t)
	m.hold()
	require.Equal(t, "d", m.a.owns(5))
	m.d.crash()
	m.w.run(5 * ruleNT)
	require.Empty(t, toldOf[dropTell](m.a))
	m.d.restart()
	m.w.run(2 * ruleNT)
	require.Equal(t, []dropTell{{moveRuns{{5, 5, 2}}}}, toldOf[dropTell](m.a))
}

// Slots that come back before their data is dropped are not dropped.
func TestSlotThatComesBackIsNotDropped(t *testing.T) {
	t.Parallel()
	m := newMoving(t)
	m.w.lose = func(x ruleMail) bool { return x.from == m.d && x.to == m.a && x.msg.kind() == msgHeartbeat }
	m.hold()
	m.d.handOff(2, "5", m.a.shard())
	m.d.frozen(2, 9, false)
	m.w.deliver()
	m.a.stageHeld(2, 9)
	m.w.deliver()
	require.True(t, m.a.serves(5), "%v", fmt.Sprint(m.a.core.lead.late))
	m.w.lose = nil
	m.w.run(3 * ruleNT)
	require.Empty(t, toldOf[dropTell](m.a))
}

// A slot that is moved in place is on hold where it goes, from when its keys are
// there until it is served or the giver has given up: nobody is sent to and fro.
func TestWhoAsksForASlotThatIsComingWaits(t *testing.T) {
	t.Parallel()
	m := newMoving(t)
	w, a, d := m.w, m.a, m.d
	require.False(t, d.core.serve.hold.Contains(5))
	w.hold = kindsOf(msgMove)
	r := d.setSlots("5", d)
	w.deliver()
	a.freezes(false)
	require.Equal(t, "moving", m.phase())
	require.True(t, a.core.serve.hold.Contains(5), "it serves the slot no more")
	require.True(t, d.core.serve.hold.Contains(5), "its keys are here")
	d.slowDisk = true
	w.releaseHeld()
	require.Equal(t, "d", d.owns(5))
	require.True(t, d.core.serve.hold.Contains(5), "decided, and not saved yet")
	require.False(t, d.serves(5))
	d.flush()
	d.slowDisk = false
	require.True(t, d.serves(5))
	require.False(t, d.core.serve.hold.Contains(5))
	require.Equal(t, "OK", w.settle(r))

	w.lose = kindsOf(msgStaged, msgCancelStage)
	d.setSlots("6", d)
	w.deliver()
	a.freezes(false)
	require.True(t, d.core.serve.hold.Contains(6))
	w.run(ruleNT + ruleNT/2)
	require.Equal(t, "none", m.phase())
	require.False(t, d.core.serve.hold.Contains(6), "a giver that has given up may not be heard: for a NodeTimeout at most")
}

// The same holds where the keys come with the slot.
func TestWhoAsksForASlotThatComesWithItsKeysWaits(t *testing.T) {
	t.Parallel()
	m := newMoving(t)
	w, a, d := m.w, m.a, m.d
	w.hold = kindsOf(msgMove)
	m.stage()
	require.False(t, d.core.serve.hold.Contains(5), "its keys have not come yet")
	d.stageHeld(1, 77)
	w.deliver()
	require.Equal(t, "moving", m.phase())
	require.True(t, a.core.serve.hold.Contains(5), "it serves the slot no more")
	require.True(t, d.core.serve.hold.Contains(5))
	d.slowDisk = true
	w.releaseHeld()
	require.Equal(t, "d", a.owns(5), "it sends clients on")
	require.True(t, d.core.serve.hold.Contains(5), "decided, and not saved yet")
	d.flush()
	d.slowDisk = false
	require.True(t, d.serves(5))
	require.False(t, d.core.serve.hold.Contains(5))
}

// A slot that comes back from nobody has what this node served before, however
// long the disk takes: the core forgets meanwhile that the slot had gone.
func TestASlotComesBackFromNobodyOnASlowDisk(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	a := w.cluster(2, 4)[0]
	w.run(2 * ruleNT)
	require.Equal(t, "OK", w.settle(a.delSlots("5")))
	require.Contains(t, a.core.gone, Slot(5))
	a.told = nil
	a.slowDisk = true
	r := a.addSlots("5")
	for range 20 {
		if w.deliver(); a.owns(5) == "a" {
			break
		}
		a.flush()
	}
	require.Equal(t, "a", a.owns(5))
	require.Empty(t, toldOf[adoptTell](a), "before it is saved")
	w.run(ruleNT)
	require.NotContains(t, a.core.gone, Slot(5))
	a.flush()
	a.slowDisk = false
	told := toldOf[adoptTell](a)
	require.Len(t, told, 1)
	require.Equal(t, moveRuns{{5, 5, 3}}, told[0].slots)
	require.True(t, told[0].back.Contains(5))
	require.Equal(t, "OK", w.settle(r))

	// With an owner between it is another one's, and old.
	b := w.nodes[1]
	require.Equal(t, "OK", w.settle(a.setSlots("5", b)))
	a.told = nil
	require.Equal(t, "OK", w.settle(b.setSlots("5", a)))
	for _, x := range toldOf[adoptTell](a) {
		require.False(t, x.back.Contains(5))
	}
}

// What a node has of a slot that was released is the only copy, whoever serves the slot
// since: redis-cli --cluster fix gives it an owner first, and moves the keys then.
func TestDataOfAReleasedSlotStays(t *testing.T) {
	t.Parallel()
	w := newRules(t)
	a, b, _, d, _ := w.replicated()
	w.settle(a.delSlots("5"))
	w.settle(d.addSlots("5"))
	w.run(4 * ruleNT)
	require.Equal(t, "d", a.owns(5))
	for _, n := range []*ruleNode{a, b} {
		require.Empty(t, toldOf[dropTell](n))
	}
	require.NotZero(t, a.core.gone[5], "IMPORTING is to know that it is no old copy")
}
