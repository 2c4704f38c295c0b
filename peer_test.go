package slotmesh

import (
	"testing"
)

// The higher version wins; of equal ones the later state.
func TestNewerEntryOfTheMembershipWins(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name      string
		have, new peerEntry
		want      bool
	}{
		{"a higher version", peerEntry{Version: 3}, peerEntry{Version: 4}, true},
		{"a higher version of an earlier state: MEET lifts a tombstone", peerEntry{Version: 3, State: forgotten}, peerEntry{Version: 4}, true},
		{"a lower version of a later state", peerEntry{Version: 3}, peerEntry{Version: 2, State: forgotten}, false},
		{"leaving beats present", peerEntry{Version: 3}, peerEntry{Version: 3, State: leaving}, true},
		{"forgotten beats leaving", peerEntry{Version: 3, State: leaving}, peerEntry{Version: 3, State: forgotten}, true},
		{"present does not beat forgotten", peerEntry{Version: 3, State: forgotten}, peerEntry{Version: 3}, false},
		{"the same", peerEntry{Version: 3, Key: 5}, peerEntry{Version: 3, Key: 5}, false},
		{"newer facts are nothing newer about membership", peerEntry{Version: 3, Starts: 1}, peerEntry{Version: 3, Starts: 2}, false},
		{"of two keys at one version any fixed order will do", peerEntry{Version: 3, Key: 5}, peerEntry{Version: 3, Key: 6}, true},
	} {
		if got := row.new.newerState(&row.have); got != row.want {
			t.Errorf("%s: newer %v, want %v", row.name, got, row.want)
		}
		if row.want && row.have.newerState(&row.new) {
			t.Errorf("%s: newer both ways", row.name)
		}
	}
}

// Address (with the owner's start count), host and shard are the owner's facts
// under its own counters.
func TestFactsAreUnderTheCountersOfTheirOwner(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name      string
		have, new peerEntry
		wantAddr  string
		wantState memberState
	}{
		{"a later start", peerEntry{Version: 1, Starts: 1, Facts: 9, Addr: "old"}, peerEntry{Version: 1, Starts: 2, Facts: 1, Addr: "new"}, "new", present},
		{"an earlier start under a higher version", peerEntry{Version: 1, Starts: 2, Addr: "new"},
			peerEntry{Version: 2, State: leaving, Starts: 1, Addr: "old"}, "new", leaving},
		{"more changes of one start", peerEntry{Version: 1, Starts: 1, Facts: 1, Addr: "old"}, peerEntry{Version: 1, Starts: 1, Facts: 2, Addr: "new"}, "new", present},
		{"fewer changes of one start", peerEntry{Version: 1, Starts: 1, Facts: 2, Addr: "new"}, peerEntry{Version: 1, Starts: 1, Facts: 1, Addr: "old"}, "new", present},
		{"newer facts under an older version", peerEntry{Version: 2, State: leaving, Starts: 1, Addr: "old"},
			peerEntry{Version: 1, Starts: 2, Addr: "new"}, "new", leaving},
		{"facts of a key that it has no more", peerEntry{Version: 2, Key: 5, Starts: 1, Addr: "new"},
			peerEntry{Version: 1, Key: 4, Starts: 9, Addr: "old"}, "new", present},
		{"another key brings its own facts, whatever their counters", peerEntry{Version: 1, Key: 4, Starts: 9, Addr: "old"},
			peerEntry{Version: 2, Key: 5, Starts: 1, Addr: "new"}, "new", present},
	} {
		s := lone(t, 9)
		row.have.ID, row.new.ID = NodeID{1}, NodeID{1}
		if row.have.Key == 0 {
			row.have.Key, row.new.Key = 4, 4
		}
		s.mergePeer(&peer{}, &row.have)
		s.mergePeer(&peer{}, &row.new)
		if p := s.peers.get(NodeID{1}); p.Addr != row.wantAddr || p.State != row.wantState {
			t.Errorf("%s: %s at %s, want %s at %s", row.name, p.State, p.Addr, row.wantState, row.wantAddr)
		}
	}
}

func TestNewerListOfTheSilentWins(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name      string
		have, new silentEntry
		want      uint64
	}{
		{"a higher counter", silentEntry{Starts: 1, Counter: 2}, silentEntry{Starts: 1, Counter: 3}, 3},
		{"a lower counter", silentEntry{Starts: 1, Counter: 2}, silentEntry{Starts: 1, Counter: 1}, 2},
		{"a lower counter of a later start", silentEntry{Starts: 1, Counter: 2}, silentEntry{Starts: 2, Counter: 1}, 1},
		{"a higher counter of an earlier start", silentEntry{Starts: 2, Counter: 2}, silentEntry{Starts: 1, Counter: 9}, 2},
		{"no list at all", silentEntry{Starts: 1, Counter: 2}, silentEntry{Starts: 2}, 2},
	} {
		s := lone(t, 9)
		s.mergePeer(&peer{}, &peerEntry{ID: NodeID{1}})
		row.have.Voter, row.new.Voter = NodeID{1}, NodeID{1}
		s.mergeSilent(&row.have)
		s.mergeSilent(&row.new)
		if got := s.peers.get(NodeID{1}).silent.Counter; got != row.want {
			t.Errorf("%s: list %d, want %d", row.name, got, row.want)
		}
	}
}
