package slotmesh

import "time"

// What may be shown that the log of a shard has brought, or is about to bring, to its
// replicas: what a replica has to whoever takes old data, what a primary has written to
// whoever wants replicas for it. The drivers of the log say how far each member is, the
// rules are here.

// heldCopy is what a replica knows of its copy of a slot. Times are by its own clock; 0 is
// none.
type heldCopy struct {
	shard  ShardID       // whose log it follows
	caught time.Duration // it has all that its primary had then
	asOf   time.Duration // and all that anybody had acknowledged then: see logNews.asOf
	move   uint64        // under which its data of the slot is right
}

// logNews is what a frame of the log says of how new it is. The frame may have been on its
// way for long.
type logNews struct {
	end     uint64        // where the log has ended
	answers time.Duration // when the replica's newest word was sent that the primary had had, by the replica's clock; 0: it has had none
	table   uint64        // digest of the primary's table; 0: its lease is over
}

// isAll reports whether a replica that has the log up to an offset has all that its
// primary had when answers was sent: the frame was sent after that.
func (l *logNews) isAll(has uint64) bool { return has >= l.end && l.answers != 0 }

// asOf is of which time a replica has all that anybody had acknowledged of the slots that
// are its shard's by its own table, which has the digest table. was is what counts where
// the frame says nothing new. A primary that holds its lease has no successor that has
// acknowledged anything, and one with the same table has given none of those slots away: a
// replica that missed who leads its shard, or owns a slot, would go on showing what was
// there before, and the log of who is not asked any more does not tell it.
func (l *logNews) asOf(was time.Duration, has, table uint64) time.Duration {
	if !l.isAll(has) || (l.table == 0 || l.table != table) && !mutated(mutShowsReplaced) {
		return was
	}
	return l.answers
}

// shows reports whether a replica may show what it has of a slot, which is no older than
// bound; stale: however old that is.
func (v *view) shows(slot Slot, c heldCopy, now, bound time.Duration, stale bool) bool {
	recent := v.heard && c.asOf != 0 && (now-c.asOf <= bound || mutated(mutShowsOld))
	return c.caught != 0 && (recent || stale) && v.entry(slot).shard == c.shard && v.self.Shard == c.shard && c.move == v.Move(slot)
}

// enough reports whether what waits for replicas has waited long enough: every member that
// is waited for has the log up to an offset, unless the shard is not strict and the request
// itself says how many it wants; and so many have it.
func (l *shardLog) enough(offset uint64, strict bool, want, have int) bool {
	return (want > 0 && !strict || l.committed() >= offset) && (have >= want || mutated(mutWantsLess))
}
