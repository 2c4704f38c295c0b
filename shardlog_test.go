package slotmesh

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// logE is the epoch of a number, of a node of that number.
func logE(n uint64) Epoch { return Epoch{n, false, NodeID{byte(n)}} }

// hist is a history: pairs of an epoch's number and the offset after which it has
// begun.
func hist(pairs ...uint64) history {
	var h history
	for i := 0; i < len(pairs); i += 2 {
		h = append(h, epochStart{logE(pairs[i]), pairs[i+1]})
	}
	return h
}

// Two histories that name an epoch with one beginning have the same entries up to
// there, and from there on as far as the shorter of them goes.
func TestUpToWhereTwoLogsAreTheSame(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name   string
		a      history
		aEnd   uint64
		b      history
		bEnd   uint64
		offset uint64
		ok     bool
	}{
		{"both empty", nil, 0, nil, 0, 0, false},
		{"one is empty", hist(1, 0), 5, nil, 0, 0, false},
		{"one log", hist(1, 0), 5, hist(1, 0), 5, 5, true},
		{"nothing appended yet", hist(1, 0), 0, hist(1, 0), 0, 0, true},
		{"one is behind by an entry", hist(1, 0), 5, hist(1, 0), 4, 4, true},
		{"one has nothing of the epoch that it knows of", hist(1, 0), 5, hist(1, 0), 0, 0, true},
		{"no epoch in common", hist(1, 0), 5, hist(2, 0), 5, 0, false},
		{"no epoch in common, one beginning", hist(1, 3), 5, hist(2, 3), 5, 0, false},
		{"an epoch of one name with another beginning", hist(1, 3), 5, hist(1, 2), 5, 0, false},

		{"one has missed a whole epoch", hist(1, 0, 2, 5), 9, hist(1, 0), 5, 5, true},
		{"one has missed an epoch and the end of the one before", hist(1, 0, 2, 5), 9, hist(1, 0), 4, 4, true},
		{"one has more of the old epoch than its successor took over", hist(1, 0, 2, 5), 9, hist(1, 0), 7, 5, true},
		{"the new epoch has begun and has no entry", hist(1, 0, 2, 5), 5, hist(1, 0), 7, 5, true},
		{"one knows the new epoch and none of its entries", hist(1, 0, 2, 5), 9, hist(1, 0, 2, 5), 5, 5, true},
		{"both in the new epoch", hist(1, 0, 2, 5), 9, hist(1, 0, 2, 5), 8, 8, true},

		{"two have led after one: the shorter end of what they share", hist(1, 0, 2, 5), 9, hist(1, 0, 3, 4), 9, 4, true},
		{"two have led after one at one offset", hist(1, 0, 2, 5), 9, hist(1, 0, 3, 5), 6, 5, true},
		{"an epoch between that only one has", hist(1, 0, 2, 5, 4, 8), 9, hist(1, 0, 4, 8), 12, 9, true},
		{"an epoch that one has begun elsewhere does not count, the one before does", hist(1, 0, 2, 5), 9, hist(1, 0, 2, 6), 9, 5, true},
		{"an epoch of no entry between", hist(1, 0, 2, 5, 3, 5), 7, hist(1, 0, 2, 5), 6, 5, true},
		{"several epochs missed", hist(1, 0, 2, 5, 3, 7, 4, 9), 12, hist(1, 0, 2, 5), 6, 6, true},

		{"the oldest epochs are forgotten by one", hist(2, 5, 3, 7), 9, hist(1, 0, 2, 5), 6, 6, true},
		{"all that they share is forgotten by one", hist(3, 7, 4, 9), 12, hist(1, 0, 2, 5), 6, 0, false},
		{"a copy of everything begins where it was made", hist(2, 5), 9, hist(1, 0, 2, 5), 7, 7, true},
	} {
		for _, side := range []struct {
			name string
			f    func() (uint64, bool)
		}{
			{"", func() (uint64, bool) { return row.a.shared(row.aEnd, row.b, row.bEnd) }},
			{", the other way round", func() (uint64, bool) { return row.b.shared(row.bEnd, row.a, row.aEnd) }},
		} {
			if offset, ok := side.f(); offset != row.offset || ok != row.ok {
				t.Errorf("%s%s: %d %v, want %d %v", row.name, side.name, offset, ok, row.offset, row.ok)
			}
		}
	}
}

// What a member with another log is to be sent, and what it drops of its own
// first.
func TestWhereAMemberGoesOn(t *testing.T) {
	t.Parallel()
	l := shardLog{past: hist(1, 0, 2, 5), end: 9}
	for _, row := range []struct {
		name       string
		past       history
		end        uint64
		from, drop uint64
		ok         bool
	}{
		{"all of it", hist(1, 0, 2, 5), 9, 9, 0, true},
		{"some of it", hist(1, 0, 2, 5), 6, 6, 0, true},
		{"the old epoch only", hist(1, 0), 5, 5, 0, true},
		{"a tail that nobody else has", hist(1, 0), 8, 5, 3, true},
		{"more than the primary has: it was copied from one that had", hist(1, 0, 2, 5), 11, 9, 2, true},
	} {
		from, drop, ok := l.resume(row.past, row.end)
		require.Equal(t, []any{row.from, row.drop, row.ok}, []any{from, drop, ok}, row.name)
	}
	_, _, ok := l.resume(hist(7, 0), 3)
	require.False(t, ok, "a log of other epochs is copied anew")
	_, _, ok = l.resume(nil, 0)
	require.False(t, ok, "so is one that has never been any")
}

// At the bound the oldest epoch is forgotten.
func TestHistoryIsBounded(t *testing.T) {
	t.Parallel()
	var h history
	for i := range uint64(historyMax) {
		h.begin(Epoch{Number: i + 1}, 10*i)
	}
	require.Len(t, h, historyMax)
	require.Equal(t, uint64(1), h[0].Epoch.Number)
	old := history{h[0]}
	offset, ok := h.shared(9999, old, 7)
	require.True(t, ok)
	require.Equal(t, uint64(7), offset)

	h.begin(Epoch{Number: historyMax + 1}, 10*historyMax)
	require.Len(t, h, historyMax)
	require.Equal(t, uint64(2), h[0].Epoch.Number)
	require.Equal(t, uint64(historyMax+1), h.last().Number)
	_, ok = h.shared(9999, old, 7)
	require.False(t, ok)
	require.Equal(t, Epoch{}, history(nil).last())
}

// leadLog is a log of five inherited entries, led in epoch 2.
func leadLog(waits ...incarnate) *shardLog {
	l := &shardLog{}
	l.take(hist(1, 0), 5)
	l.lead(logE(2))
	l.waitFor(waits)
	return l
}

var logB, logC = incarnate{NodeID{0xb}, 1}, incarnate{NodeID{0xc}, 1}

// An entry is committed once every member that is waited for has it; what is
// inherited counts as not acknowledged until then.
func TestWhatIsCommitted(t *testing.T) {
	t.Parallel()
	other := incarnate{logB.Node, 2}
	for _, row := range []struct {
		name string
		l    func() *shardLog
		want uint64
	}{
		{"nobody is waited for", func() *shardLog { return leadLog() }, 5},
		{"nobody is waited for: what is appended, at once", func() *shardLog { l := leadLog(); l.append(); return l }, 6},
		{"one is waited for and has said nothing: not even what is inherited", func() *shardLog { return leadLog(logB) }, 0},
		{"it has what is inherited", func() *shardLog { l := leadLog(logB); l.acked(logB, 5); return l }, 5},
		{"it has not what has been appended", func() *shardLog { l := leadLog(logB); l.acked(logB, 5); l.append(); return l }, 5},
		{"it has what has been appended", func() *shardLog { l := leadLog(logB); l.append(); l.acked(logB, 6); return l }, 6},
		{"an older word comes late", func() *shardLog { l := leadLog(logB); l.acked(logB, 5); l.acked(logB, 3); return l }, 5},
		{"it has more than there is: not of this log", func() *shardLog { l := leadLog(logB); l.acked(logB, 6); return l }, 0},
		{"the slowest of two", func() *shardLog { l := leadLog(logB, logC); l.acked(logB, 5); l.acked(logC, 2); return l }, 2},
		{"one of two has said nothing", func() *shardLog { l := leadLog(logB, logC); l.acked(logB, 5); return l }, 0},
		{"another incarnation of it", func() *shardLog { l := leadLog(logB); l.acked(other, 5); return l }, 0},
		{"somebody who is not waited for", func() *shardLog { l := leadLog(); l.acked(logC, 2); return l }, 5},
		{"one is waited for no more", func() *shardLog {
			l := leadLog(logB, logC)
			l.acked(logB, 5)
			l.waitFor([]incarnate{logB})
			return l
		}, 5},
		{"one more is waited for", func() *shardLog {
			l := leadLog(logB)
			l.acked(logB, 5)
			l.waitFor([]incarnate{logB, logC})
			return l
		}, 0},
		{"it had said so before it was waited for", func() *shardLog {
			l := leadLog()
			l.acked(logB, 4)
			l.waitFor([]incarnate{logB})
			return l
		}, 4},
		{"what was said in an older epoch counts no more", func() *shardLog {
			l := leadLog(logB)
			l.acked(logB, 5)
			l.lead(logE(3))
			l.waitFor([]incarnate{logB})
			return l
		}, 0},
		{"nor does what is said to one that does not lead", func() *shardLog {
			l := leadLog(logB)
			l.follow()
			l.acked(logB, 5)
			l.lead(logE(3))
			l.waitFor([]incarnate{logB})
			return l
		}, 0},
	} {
		if got := row.l().committed(); got != row.want {
			t.Errorf("%s: %d, want %d", row.name, got, row.want)
		}
	}
}

// A member has caught up once it has everything that was acknowledged before it
// was waited for: what the log had then. What has been appended since waits for it
// anyway.
func TestWhoHasCaughtUp(t *testing.T) {
	t.Parallel()
	l := leadLog()
	require.False(t, l.caughtUp(logB), "it is not waited for")
	l.append()
	l.waitFor([]incarnate{logB})
	require.False(t, l.caughtUp(logB), "it has said nothing")
	l.append()
	l.acked(logB, 5)
	require.False(t, l.caughtUp(logB), "it lacks an entry of before")
	l.acked(incarnate{logB.Node, 2}, 7)
	require.False(t, l.caughtUp(logB), "another incarnation has it")
	l.acked(logB, 6)
	require.True(t, l.caughtUp(logB), "it has all of before")

	l.append()
	l.waitFor([]incarnate{logC, logB})
	require.True(t, l.caughtUp(logB), "that somebody else is waited for, too, does not begin it anew")
	require.False(t, l.caughtUp(logC))
	l.waitFor([]incarnate{logC})
	l.waitFor([]incarnate{logC, logB})
	require.False(t, l.caughtUp(logB), "that it was not waited for meanwhile does: writes were acknowledged without it")
	l.acked(logB, 8)
	require.True(t, l.caughtUp(logB))

	empty := &shardLog{}
	empty.lead(logE(1))
	empty.waitFor([]incarnate{logB})
	require.False(t, empty.caughtUp(logB), "of an empty log, too, it has to say that it takes part")
	empty.acked(logB, 0)
	require.True(t, empty.caughtUp(logB))
}

// How far those are that are waited for, whether they have said so or not.
func TestProgressOfALog(t *testing.T) {
	t.Parallel()
	l := leadLog(logB, logC)
	l.append()
	l.acked(logC, 6)
	l.acked(incarnate{NodeID{0xd}, 1}, 6)
	require.Equal(t, logProgress{epoch: logE(2), end: 6, members: []memberAt{{logB, 0}, {logC, 6}}}, l.progress())
	l.follow()
	require.Equal(t, logProgress{end: 6}, l.progress())
}

// What a command may show that has only read: everything that was inherited.
func TestWhatALogInherits(t *testing.T) {
	t.Parallel()
	l := leadLog(logB)
	require.Equal(t, uint64(5), l.inherited)
	require.Equal(t, hist(1, 0, 2, 5), l.past)
	require.Equal(t, uint64(6), l.append())
	require.Equal(t, uint64(5), l.inherited)
	require.True(t, l.leads(logE(2)))
	require.False(t, l.leads(logE(1)))
	l.lead(logE(4))
	require.Equal(t, uint64(6), l.inherited, "it wins again: what it had appended is inherited")
	require.Equal(t, hist(1, 0, 2, 5, 4, 6), l.past)
	l.follow()
	require.False(t, l.leads(logE(4)))
	require.False(t, l.leads(Epoch{}))
	require.Equal(t, logPosition{logE(4), 6}, l.position())
}

// A replica's log becomes what its primary has sent; it is a copy.
func TestLogTakesWhatItIsSent(t *testing.T) {
	t.Parallel()
	primary := leadLog()
	var l shardLog
	require.Equal(t, logPosition{}, l.position())
	l.take(primary.past, 5)
	primary.lead(logE(3))
	primary.past[0].After = 77
	require.Equal(t, hist(1, 0, 2, 5), l.past)
	require.Equal(t, logPosition{logE(2), 5}, l.position())
}

// Offsets compare within one epoch only.
func TestOrderOfPositions(t *testing.T) {
	t.Parallel()
	ascending := []logPosition{{}, {logE(1), 0}, {logE(1), 9}, {logE(2), 3}, {logE(2), 4}, {Epoch{2, true, NodeID{1}}, 0}}
	for i, a := range ascending {
		for j, b := range ascending {
			require.Equal(t, i < j, a.less(b), fmt.Sprint(a, b))
		}
	}
}
