package slotmesh

import (
	"slices"
)

// The log of a shard is everything that has happened to its data, in order: what
// commands have changed, and which slots have come and gone. The primary appends,
// its replicas take the same entries in the same order. What is here is how far
// each of them is; the entries themselves are the driver's.
//
// An offset counts entries since the shard began. Two members may have other
// entries at one offset: a primary that is cut off appends what its successor
// never hears of. So a position is (epoch, offset), and each member keeps its
// history, which epoch has begun after which offset. Of one epoch there is one
// primary, so two histories that name an epoch with one beginning have the same
// entries up to there, and from there on as far as the shorter of them goes.

// epochStart says that the entries after an offset were appended in an epoch.
type epochStart struct {
	Epoch Epoch
	After uint64
}

// historyMax bounds how many epochs a member remembers. At the bound the oldest is
// forgotten: who was away for longer copies all data anew.
const historyMax = 256

// history is which epochs a member's log consists of, ascending.
type history []epochStart

func (h *history) begin(e Epoch, after uint64) {
	*h = append(*h, epochStart{e, after})
	if n := len(*h); n > historyMax {
		*h = slices.Delete(*h, 0, n-historyMax)
	}
}

// endOf is the offset of the last entry of the i-th epoch of a log that ends at
// end.
func (h history) endOf(i int, end uint64) uint64 {
	if i+1 < len(h) {
		return h[i+1].After
	}
	return end
}

// last is the newest epoch.
func (h history) last() Epoch {
	if len(h) == 0 {
		return Epoch{}
	}
	return h[len(h)-1].Epoch
}

// upTo is the epochs of a log that is cut off after an offset.
func (h history) upTo(end uint64) history {
	return slices.Clone(h[:h.countUpTo(end)])
}

// countUpTo is how many epochs have begun by an offset.
func (h history) countUpTo(end uint64) int {
	n := len(h)
	for n > 0 && h[n-1].After > end {
		n--
	}
	return n
}

// shared is up to which offset two logs have the same entries; ok is false where
// they have no epoch in common.
func (h history) shared(end uint64, theirs history, theirEnd uint64) (offset uint64, ok bool) {
	for i := len(theirs) - 1; i >= 0; i-- {
		j := slices.IndexFunc(h, func(s epochStart) bool { return s == theirs[i] })
		if j >= 0 {
			return min(theirs.endOf(i, theirEnd), h.endOf(j, end)), true
		}
	}
	return 0, false
}

// shardLog is how far one member is in its shard's log, and, while it leads, how
// far the others are. It is not safe for concurrent use.
type shardLog struct {
	past history
	end  uint64 // offset of the last entry

	// Leading.
	epoch     Epoch  // zero: this member does not lead
	inherited uint64 // what the log had when it began to
	waits     []logWait
	acks      map[incarnate]uint64
}

// logWait is a member that is waited for.
type logWait struct {
	incarnate
	from uint64 // the end of the log when it was begun to wait for it
}

// lead makes this member append in an epoch of its own. What it has inherited
// counts as not acknowledged until every member that is waited for has it.
func (l *shardLog) lead(e Epoch) {
	l.past.begin(e, l.end)
	l.epoch, l.inherited, l.waits, l.acks = e, l.end, nil, map[incarnate]uint64{}
	if mutated(mutInheritedShown) {
		l.inherited = 0
	}
}

// follow makes this member append nothing any more.
func (l *shardLog) follow() { l.epoch, l.waits, l.acks = Epoch{}, nil, nil }

// leads reports whether this member appends in an epoch.
func (l *shardLog) leads(e Epoch) bool { return l.epoch != (Epoch{}) && l.epoch == e }

// append counts one more entry, and returns its offset.
func (l *shardLog) append() uint64 {
	l.end++
	return l.end
}

// waitFor names the members that are waited for from now on.
func (l *shardLog) waitFor(members []incarnate) {
	var waits []logWait
	for _, m := range members {
		w := logWait{m, l.end}
		if i := slices.IndexFunc(l.waits, func(w logWait) bool { return w.incarnate == m }); i >= 0 {
			w = l.waits[i]
		}
		waits = append(waits, w)
	}
	l.waits = waits
}

// acked notes that a member has everything up to an offset. It says so in the
// epoch of this log: of an older one nothing is counted.
func (l *shardLog) acked(m incarnate, offset uint64) {
	if l.acks != nil && offset <= l.end {
		l.acks[m] = max(l.acks[m], offset)
	}
}

// caughtUp reports whether a member has everything that was acknowledged without
// it: what came before it was begun to wait for it.
func (l *shardLog) caughtUp(m incarnate) bool {
	i := slices.IndexFunc(l.waits, func(w logWait) bool { return w.incarnate == m })
	if i < 0 {
		return false
	}
	at, heard := l.acks[m]
	return heard && at >= l.waits[i].from
}

// committed is up to which offset every member that is waited for has the log.
func (l *shardLog) committed() uint64 {
	least := l.end
	for i := range l.waits {
		least = min(least, l.acks[l.waits[i].incarnate])
	}
	return least
}

// memberAt is how far a member is: it has everything up to an offset.
type memberAt struct {
	incarnate
	offset uint64
}

// logProgress is how far the members are that are waited for in an epoch, in a log
// that ends at end.
type logProgress struct {
	epoch   Epoch
	end     uint64
	members []memberAt
}

// progress is how far the members are that are waited for.
func (l *shardLog) progress() logProgress {
	p := logProgress{epoch: l.epoch, end: l.end}
	for _, w := range l.waits {
		p.members = append(p.members, memberAt{w.incarnate, l.acks[w.incarnate]})
	}
	return p
}

// resume is from which offset on a member with another log is to be sent entries,
// and how many of its own it has to drop first; ok is false where it has to copy
// everything.
func (l *shardLog) resume(theirs history, theirEnd uint64) (from, drop uint64, ok bool) {
	from, ok = l.past.shared(l.end, theirs, theirEnd)
	return from, theirEnd - from, ok
}

// take makes this member's log what its primary has sent it: the history, and
// entries up to end.
func (l *shardLog) take(past history, end uint64) {
	l.past, l.end = slices.Clone(past), end
}

// position is where the log ends.
func (l *shardLog) position() logPosition { return logPosition{l.past.last(), l.end} }

// logPosition is a point in a shard's log. Offsets compare within one epoch only.
type logPosition struct {
	Epoch  Epoch
	Offset uint64
}

func (p logPosition) less(o logPosition) bool {
	if c := p.Epoch.Compare(o.Epoch); c != 0 {
		return c < 0
	}
	return p.Offset < o.Offset
}
