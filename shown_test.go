package slotmesh

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Which word of a frame counts for how new a replica's data is.
func TestOfWhichTimeAReplicaHasEverything(t *testing.T) {
	t.Parallel()
	const was, sent, ours = time.Second, 2 * time.Second, 77
	for _, row := range []struct {
		name   string
		news   logNews
		has    uint64
		caught bool          // it has all that its primary had
		want   time.Duration // of which time it has all that anybody had acknowledged
	}{
		{"it has all, of a primary under its lease that knows the same table", logNews{9, sent, ours}, 9, true, sent},
		{"the primary's log has more", logNews{10, sent, ours}, 9, false, was},
		{"the primary has had no word of it yet", logNews{9, 0, ours}, 9, false, was},
		{"the primary holds no lease: another one may have acknowledged more", logNews{9, sent, 0}, 9, true, was},
		{"the primary knows another table: it may have given slots away", logNews{9, sent, 78}, 9, true, was},
		{"neither has a table", logNews{9, sent, 0}, 9, true, was},
	} {
		require.Equal(t, row.caught, row.news.isAll(row.has), row.name)
		require.Equal(t, row.want, row.news.asOf(was, row.has, ours), row.name)
	}
	require.Equal(t, was, (&logNews{9, sent, 0}).asOf(was, 9, 0), "no lease, and a table of the digest 0")
}

// What a replica may show of a slot.
func TestWhatAReplicaShows(t *testing.T) {
	t.Parallel()
	const now, bound = 10 * time.Second, time.Second
	shard, other := ShardID{1}, ShardID{2}
	for _, row := range []struct {
		name         string
		edit         func(v *view, c *heldCopy)
		fresh, stale bool
	}{
		{"as old as it may be", func(*view, *heldCopy) {}, true, true},
		{"older", func(_ *view, c *heldCopy) { c.asOf-- }, false, true},
		{"all that its primary had, and of nobody knows which time", func(_ *view, c *heldCopy) { c.asOf = 0 }, false, true},
		{"it never had all", func(_ *view, c *heldCopy) { c.caught, c.asOf = 0, 0 }, false, false},
		{"it hears no majority", func(v *view, _ *heldCopy) { v.heard = false }, false, true},
		{"the slot is another shard's", func(v *view, _ *heldCopy) { v.pages[0][5].shard = other }, false, false},
		{"the slot has come under another move", func(v *view, _ *heldCopy) { v.pages[0][5].move++ }, false, false},
		{"its data was dropped", func(_ *view, c *heldCopy) { c.move = 0 }, false, false},
		{"this node is of another shard by now", func(v *view, _ *heldCopy) { v.self.Shard = other }, false, false},
		{"it follows another shard", func(_ *view, c *heldCopy) { c.shard = other }, false, false},
	} {
		v := &view{heard: true, self: NodeInfo{Shard: shard}}
		v.pages[0] = &[pageSlots]slotEntry{5: {shard, 3}}
		c := heldCopy{shard: shard, caught: now, asOf: now - bound, move: 3}
		row.edit(v, &c)
		require.Equal(t, row.fresh, v.shows(5, c, now, bound, false), row.name)
		require.Equal(t, row.stale, v.shows(5, c, now, bound, true), "%s, whatever is old", row.name)
	}
}

// How many replicas a reply waits for.
func TestWhatIsEnoughForAReply(t *testing.T) {
	t.Parallel()
	a, b := incarnate{NodeID{1}, 1}, incarnate{NodeID{2}, 1}
	for _, row := range []struct {
		name       string
		strict     bool
		acks       [2]uint64 // of the members that are waited for
		want, have int
		enough     bool
	}{
		{"nobody asks, all have it", false, [2]uint64{5, 5}, 0, 0, true},
		{"nobody asks, one lacks it", false, [2]uint64{5, 4}, 0, 0, false},
		{"one is asked for and has it, the other one may lack it", false, [2]uint64{5, 4}, 1, 1, true},
		{"one is asked for, and nobody has it", false, [2]uint64{4, 4}, 1, 0, false},
		{"two are asked for, and one has it", false, [2]uint64{5, 4}, 2, 1, false},
		{"in a strict shard all who are waited for count, whatever is asked for", true, [2]uint64{5, 4}, 1, 1, false},
		{"and as many as are asked for", true, [2]uint64{5, 5}, 3, 2, false},
		{"they have it", true, [2]uint64{5, 5}, 2, 2, true},
	} {
		l := shardLog{end: 5}
		l.lead(Epoch{Number: 1})
		l.waitFor([]incarnate{a, b})
		l.acked(a, row.acks[0])
		l.acked(b, row.acks[1])
		require.Equal(t, row.enough, l.enough(5, row.strict, row.want, row.have), row.name)
	}
}
