package slotmesh

import (
	"strings"
	"testing"
)

// What a node never sends is refused where it is decoded, so that the core need
// not look at it again.
func TestMessagesThatNoNodeSendsAreRefused(t *testing.T) {
	t.Parallel()
	entry := func(edit func(*peerEntry)) peerEntry {
		e := peerEntry{ID: NodeID{1}, Addr: "10.0.0.1:7000", ClientAddr: "10.0.0.1:6000", Host: "rack-1"}
		edit(&e)
		return e
	}
	update := func(edit func(*peerEntry)) message { return &updateMsg{Peers: []peerEntry{entry(edit)}} }
	node := func(i byte) NodeID { return NodeID{i} }
	voter := func(i byte) member { return member{node(i), 1} }
	many := func(n int) []member {
		var ms []member
		for i := range n {
			ms = append(ms, voter(byte(i+1)))
		}
		return ms
	}
	voters := func(ms ...member) message { return &updateMsg{Voters: []voterSet{{Members: ms}}} }
	start := func(v startValue) message { return &startMsg{Value: v} }
	formers := func(ms ...member) message { return start(startValue{Members: many(1), Formers: ms}) }
	silent := func(ids ...NodeID) message { return &failMsg{silentEntry{Voter: node(1), Nodes: ids}} }
	run := func(first, last Slot, shard uint16) slotRuns {
		return slotRuns{Shards: []ShardID{{1}}, Runs: []slotRun{{First: first, Last: last, Shard: shard}}}
	}
	const good = ""

	for _, row := range []struct {
		name string
		m    message
		want string // part of the error
	}{
		{"an entry", update(func(*peerEntry) {}), good},
		{"a forgotten entry", update(func(e *peerEntry) { e.State = forgotten }), good},
		{"an entry in no state", update(func(e *peerEntry) { e.State = forgotten + 1 }), "state 3, expected an id and a state up to 2"},
		{"an entry of nobody", update(func(e *peerEntry) { e.ID = NodeID{} }), "expected an id"},
		{"a label as long as may be", update(func(e *peerEntry) { e.Host = strings.Repeat("x", 300) }), good},
		{"a label of two bytes a letter", update(func(e *peerEntry) { e.Host = strings.Repeat("ß", 150) }), good},
		{"a label that is too long", update(func(e *peerEntry) { e.Host = strings.Repeat("ß", 150) + "x" }), "host label of 301 bytes, expected 300 printable ones at most"},
		{"an address with a new line", update(func(e *peerEntry) { e.Addr = "a:1\nmyself" }), `address "a:1\nmyself"`},
		{"an address with a space", update(func(e *peerEntry) { e.Addr = "a:1 master" }), `address "a:1 master", expected one without spaces`},
		{"an address with a space of another script", update(func(e *peerEntry) { e.Addr = "a\u3000b" }), "without spaces"},
		{"a client address with an escape", update(func(e *peerEntry) { e.ClientAddr = "a\x1b[2J" }), "client address of 5 bytes"},
		{"an address that turns the line round", update(func(e *peerEntry) { e.Addr = "a\u202eb" }), "address of 5 bytes"},
		{"an address that is no text", update(func(e *peerEntry) { e.Addr = "a\xff" }), "address of 2 bytes"},
		{"an entry of START", start(startValue{Members: many(1), Entries: []peerEntry{entry(func(e *peerEntry) { e.Host = "a b" })}}), `host label "a b"`},

		{"a list of the silent", silent(node(1), node(2)), good},
		{"no silent nodes", silent(), good},
		{"the silent out of order", silent(node(2), node(1)), "2 silent nodes, expected each once in ascending order"},
		{"a silent node twice", silent(node(1), node(1)), "2 silent nodes"},
		{"the silent of an update", &updateMsg{Silent: []silentEntry{{Nodes: []NodeID{node(2), node(1)}}}}, "2 silent nodes"},

		{"63 voters", voters(many(63)...), good},
		{"two voters, for one may be lost", voters(many(2)...), good},
		{"no voters", voters(), "0 voters, expected 1 to 63"},
		{"64 voters", voters(many(64)...), "64 voters, expected 1 to 63"},
		{"voters out of order", voters(voter(2), voter(1)), "2 voters"},
		{"a voter twice, under two keys", voters(voter(1), member{node(1), 2}), "2 voters"},
		{"two sets of voters", &updateMsg{Voters: []voterSet{{Members: many(1)}, {Members: many(1)}}}, "2 sets of voters, expected at most one"},
		{"a START of no voters", start(startValue{}), "0 voters"},
		{"a START of 64 voters", start(startValue{Members: many(64)}), "64 voters"},
		{"many formers", formers(many(200)...), good},
		{"formers out of order", formers(voter(2), voter(1)), "2 formers, expected each once in ascending order"},
		{"a former twice", formers(voter(1), voter(1)), "2 formers"},

		{"one START in STOPPED", &stoppedMsg{Starts: []startValue{{Members: many(1)}}}, good},
		{"two STARTs in STOPPED", &stoppedMsg{Starts: []startValue{{Members: many(1)}, {Members: many(1)}}}, "2 STARTs, expected at most one"},
		{"a bad START in STOPPED", &stoppedMsg{Starts: []startValue{{}}}, "0 voters"},
		{"two records in VOTE", &voteMsg{Records: make([]record, 2)}, "2 records, expected at most one"},
		{"two records in GRANT", &grantMsg{Records: make([]record, 2)}, "2 records, expected at most one"},
		{"two records in REFUSE", &refuseMsg{Why: refuseInSync, Records: make([]record, 2)}, "2 records, expected at most one"},

		{"the last why of a VOTE", &voteMsg{Why: whyUnclean}, good},
		{"a VOTE for no reason", &voteMsg{Why: numWhys}, "why 5, expected below 5"},
		{"the last why of a REFUSE", &refuseMsg{Why: refuseMoved}, good},
		{"a REFUSE for no reason", &refuseMsg{}, "why 0, expected 1 to 6"},
		{"a REFUSE for a reason to come", &refuseMsg{Why: refuseMoved + 1}, "why 7, expected 1 to 6"},
		{"the last why of a REFUSED", &refusedMsg{Why: refusedDuplicate, Slot: NumSlots - 1}, good},
		{"a REFUSED for no reason", &refusedMsg{}, "why 0"},
		{"a REFUSED for a reason to come", &refusedMsg{Why: refusedDuplicate + 1}, "why 7"},
		{"a REFUSED slot that is none", &refusedMsg{Why: refusedSlot, Slot: NumSlots}, "slot 16384, expected 1 to 6 and a slot below 16384"},

		{"a FORWARDED without error", &forwardedMsg{}, good},
		{"a FORWARDED with a text", &forwardedMsg{Error: commandError{codeTryAgain, "slot 7 is not served here now", false}}, good},
		{"a FORWARDED of no kind", &forwardedMsg{Error: commandError{codeTryAgain + 1, "", false}}, "code 4, expected up to 3"},
		{"a FORWARDED that ends the line", &forwardedMsg{Error: commandError{codeInvalid, "no\r\n+OK", false}}, "text of 7 bytes"},
		{"a STAGED that ends the line", &stagedMsg{Error: "no\r\n+OK"}, "error of 7 bytes"},

		{"a flag of a heartbeat to come", &heartbeat{Flags: allBeatFlags + 1}, "flags 0x200"},
		{"a digest that asks with 63 buckets", &digestMsg{Table: make([]uint64, 63), Peers: make([]uint64, 64)}, "63 and 64 buckets, expected 64"},
		{"a digest that answers with buckets", &digestMsg{Answer: true, Table: make([]uint64, 64)}, "64 and 0 buckets, expected 0"},

		{"slots of a MEET", &meetMsg{Claims: run(5, 16383, 0)}, good},
		{"a slot that is none", &meetMsg{Claims: run(5, 16384, 0)}, "run 5-16384"},
		{"a run backwards", &seedMsg{Claims: run(5, 4, 0)}, "run 5-4"},
		{"a run of a shard that is not there", &updateMsg{Slots: run(5, 6, 1)}, "names shard 1 of 1"},
		{"runs that overlap", &voteMsg{Slots: moveRuns{{0, 5, 1}, {5, 6, 1}}}, "run 5-6, expected ascending slots in 6-16383"},
		{"runs of a STAGE that overlap", &stageMsg{Slots: moveRuns{{0, 5, 1}, {5, 6, 1}}}, "run 5-6"},
		{"runs of a FORWARD that overlap", &forwardMsg{Slots: moveRuns{{0, 5, 1}, {5, 6, 1}}}, "run 5-6"},
		{"openings of a RECORD that overlap", &recordMsg{Opened: moveRuns{{0, 5, 1}, {5, 6, 1}}}, "run 5-6"},
		{"an accepted move of no shard", &recordMsg{Kept: acceptRuns{Epochs: make([]Epoch, 1), Runs: []acceptRun{{}}}}, "names shard 0 of 0"},
		{"an accepted move of no epoch", &moveMsg{Slots: acceptRuns{Shards: make([]ShardID, 1), Runs: []acceptRun{{}}}}, "epoch 0 of 0"},
		{"an accepted move of a refusal", &refuseMsg{Why: refuseMoved, Accepted: acceptRuns{Runs: []acceptRun{{}}}}, "names shard 0 of 0"},
		{"an opening of no epoch", &recordsMsg{Votes: votes{Opened: openRuns{Runs: []openRun{{}}}}}, "names epoch 0 of 0"},
		{"an opening of a GRANT of no epoch", &grantMsg{Opened: openRuns{Runs: []openRun{{}}}}, "names epoch 0 of 0"},
		{"votes of START", start(startValue{Members: many(1), Votes: votes{Accepted: acceptRuns{Runs: []acceptRun{{}}}}}), "names shard 0 of 0"},
		{"slots of START", start(startValue{Members: many(1), Slots: run(5, 6, 1)}), "names shard 1 of 1"},
	} {
		_, err := decodeFrame(row.m.kind(), payloadOf(t, row.m))
		switch {
		case row.want == good && err != nil:
			t.Errorf("%s: error %v, want none", row.name, err)
		case row.want != good && (err == nil || !strings.Contains(err.Error(), row.want)):
			t.Errorf("%s: error %v, want one with %q", row.name, err, row.want)
		}
	}
}

func TestHandshakeThatSaysNoNodeIsRefused(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name string
		who  sender
		want string
	}{
		{"a node", sender{ID: NodeID{1}, Addr: "a:1", Host: "h"}, ""},
		{"nobody", sender{Addr: "a:1"}, "a sender without id"},
		{"a label with a space", sender{ID: NodeID{1}, Host: "a b"}, `host label "a b", expected one without spaces`},
		{"a client address that is too long", sender{ID: NodeID{1}, ClientAddr: strings.Repeat("x", 301)}, "client address of 301 bytes, expected 300 printable ones at most"},
	} {
		got := ""
		if err := row.who.check(); err != nil {
			got = err.Error()
		}
		if got != row.want {
			t.Errorf("%s: error %q, want %q", row.name, got, row.want)
		}
	}
}

// A text that another node has written is cut, not refused: the refusal must
// arrive.
func TestLongTextsAreCutBetweenLetters(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ name, text, want string }{
		{"short", "no", "no"},
		{"as long as may be", strings.Repeat("x", 300), strings.Repeat("x", 300)},
		{"longer", strings.Repeat("x", 301), strings.Repeat("x", 297) + "..."},
		{"of two bytes a letter", strings.Repeat("ß", 151), strings.Repeat("ß", 148) + "..."},
	} {
		if got := clipped(row.text); got != row.want {
			t.Errorf("%s: cut to %q, want %q", row.name, got, row.want)
		}
	}
}

func TestKindsPrintTheirNames(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ got, want string }{
		{msgGetRecords.String(), "GETRECORDS"},
		{numMsgKinds.String(), "message(32)"},
		{msgKind(0).String(), "message(0)"},
		{whySilence.String(), "silence"},
		{whyConsent.String(), "consent"},
		{whyForce.String(), "force"},
		{whyOperator.String(), "operator"},
		{whyUnclean.String(), "unclean"},
		{numWhys.String(), "why(5)"},
		{refuseMoved.String(), "moved"},
		{refuseWhy(0).String(), "refuseWhy(0)"},
		{refusedDuplicate.String(), "another live instance has the same node id"},
		{refusal(0).String(), "refusal(0)"},
		{forgotten.String(), "forgotten"},
		{memberState(3).String(), "memberState(3)"},
		{EventUnclean.String(), "unclean"},
		{EventKind(0).String(), "event(0)"},
		{voterVersion{Number: 4}.String(), "4"},
		{voterVersion{1, 4, NodeID{0xab}}.String(), "1.4@ab000000"},
		{Epoch{7, true, NodeID{0xab}}.String(), "7!@ab000000"},
		{Epoch{7, false, NodeID{0xab}}.String(), "7@ab000000"},
	} {
		if row.got != row.want {
			t.Errorf("printed %q, want %q", row.got, row.want)
		}
	}
	for k := msgKind(1); k < numMsgKinds; k++ {
		m, err := newMessage(k)
		if err != nil || m.kind() != k || msgNames[k] == "" {
			t.Errorf("kind %d: made %v, error %v, name %q", k, m, err, msgNames[k])
		}
	}
}
