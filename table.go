package slotmesh

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"
)

// The table has two levels, and each entry the number that versions it:
//
//	slot  -> (shard, move)      move counts how often the slot has changed shard
//	shard -> epoch              whose node is the shard's primary
//
// In each entry alone the higher number wins, so merging any two tables in any
// order gives the same one. A failover changes one shard entry and no slot; a
// hand-over changes slots and no primary.

const (
	pageSlots  = 256 // slots of one page: what one publish copies at least
	numPages   = NumSlots / pageSlots
	numBuckets = 64 // of a digest; for slots, one per page
)

// slotMap maps every slot to a value; the zero value maps all to the zero V.
// Its pages can be shared with readers: set copies a shared page first.
type slotMap[V comparable] struct {
	pages  [numPages]*[pageSlots]V
	shared uint64 // bit i: page i is read by others too
}

func (m *slotMap[V]) at(s Slot) V {
	if p := m.pages[s/pageSlots]; p != nil {
		return p[s%pageSlots]
	}
	var zero V
	return zero
}

func (m *slotMap[V]) set(s Slot, v V) {
	i := s / pageSlots
	switch {
	case m.pages[i] == nil:
		m.pages[i] = new([pageSlots]V)
	case m.shared>>i&1 == 1:
		page := *m.pages[i]
		m.pages[i] = &page
		m.shared &^= 1 << i
	}
	m.pages[i][s%pageSlots] = v
}

// share hands out the pages for reading.
func (m *slotMap[V]) share() [numPages]*[pageSlots]V {
	m.shared = ^uint64(0)
	return m.pages
}

// slotEntry says to which shard a slot belongs, and by which move it came there.
type slotEntry struct {
	shard ShardID
	move  uint64
}

func (e slotEntry) less(o slotEntry) bool {
	if e.move != o.move {
		return e.move < o.move
	}
	// Two groups of unformed nodes may have given one slot away at once.
	return e.shard.compare(o.shard) < 0
}

func (e slotEntry) hash(salt uint64, s Slot) uint64 {
	if e == (slotEntry{}) {
		return 0
	}
	h := hashUint(salt, uint64(s))
	h = hashBytes(h, e.shard[:])
	return hashEnd(hashUint(h, e.move))
}

func shardHash(salt uint64, id ShardID, e Epoch) uint64 {
	h := hashBytes(salt^shardSalt, id[:])
	h = hashUint(h, e.Number)
	if e.Unclean {
		h = hashUint(h, 1)
	}
	return hashEnd(hashBytes(h, e.Node[:]))
}

func votersHash(salt uint64, v *voterSet) uint64 {
	if v.ID == 0 {
		return 0
	}
	h := hashUint(salt^votersSalt, v.Version.Forced)
	h = hashUint(h, v.Version.Number)
	return hashEnd(hashUint(h, v.ID))
}

// table is one node's copy of the shared table, with its digests.
type table struct {
	slots  slotMap[slotEntry]
	shards map[ShardID]Epoch
	order  []ShardID // of shards, ascending
	voters voterSet

	owned      map[ShardID]int // slots of each shard
	members    map[ShardID]int // nodes of each shard that are not forgotten
	unassigned int
	runs       *slotRuns // what assigned has returned, until a slot changes

	salt    uint64
	buckets [numBuckets]uint64
	sum     uint64
}

func newTable(salt uint64) table {
	return table{shards: map[ShardID]Epoch{}, owned: map[ShardID]int{}, members: map[ShardID]int{}, unassigned: NumSlots, salt: salt}
}

func (t *table) note(bucket int, was, is uint64) {
	t.buckets[bucket] += is - was
	t.sum += is - was
}

func (t *table) setSlot(s Slot, e slotEntry) {
	was := t.slots.at(s)
	t.slots.set(s, e)
	t.runs = nil
	t.note(int(s/pageSlots), was.hash(t.salt, s), e.hash(t.salt, s))
	if was.shard != e.shard {
		t.count(was.shard, -1)
		t.count(e.shard, 1)
	}
}

// count notes n more slots of a shard.
func (t *table) count(id ShardID, n int) {
	if id.IsZero() {
		t.unassigned += n
		return
	}
	if was := t.owned[id]; was > 0 && was+n > 0 {
		t.owned[id] = was + n // it stays useful
		return
	}
	t.recount(id, func() { addCount(t.owned, id, n) })
}

// member notes n more members of a shard.
func (t *table) member(id ShardID, n int) {
	t.recount(id, func() { addCount(t.members, id, n) })
}

func addCount(m map[ShardID]int, id ShardID, n int) {
	if m[id] += n; m[id] == 0 {
		delete(m, id)
	}
}

// useful reports whether a shard has a member or a slot. One without is on its
// way out everywhere: it is no part of the digest and is told to nobody.
func (t *table) useful(id ShardID) bool { return t.owned[id] > 0 || t.members[id] > 0 }

// recount applies f and keeps the digest right.
func (t *table) recount(id ShardID, f func()) {
	was := t.shardHash(id)
	f()
	t.note(idBucket(id[:]), was, t.shardHash(id))
}

// shardHash is a shard's part in the digest.
func (t *table) shardHash(id ShardID) uint64 {
	e, known := t.shards[id]
	if !known || !t.useful(id) {
		return 0
	}
	return shardHash(t.salt, id, e)
}

func (t *table) setShard(id ShardID, e Epoch) {
	t.recount(id, func() {
		if _, known := t.shards[id]; !known {
			i, _ := slices.BinarySearchFunc(t.order, id, ShardID.compare)
			t.order = slices.Insert(t.order, i, id)
		}
		t.shards[id] = e
	})
}

func (t *table) dropShard(id ShardID) {
	t.recount(id, func() {
		if i, found := slices.BinarySearchFunc(t.order, id, ShardID.compare); found {
			t.order = slices.Delete(t.order, i, i+1)
		}
		delete(t.shards, id)
	})
}

func (t *table) setVoters(v voterSet) {
	t.note(0, votersHash(t.salt, &t.voters), votersHash(t.salt, &v))
	t.voters = v
}

// primary is the node that leads a shard; zero where the shard is not known.
func (t *table) primary(id ShardID) NodeID { return t.shards[id].Node }

// owner is the node that leads the shard of a slot.
func (t *table) owner(s Slot) NodeID { return t.primary(t.slots.at(s).shard) }

// slotsOf is the set of a shard's slots.
func (t *table) slotsOf(id ShardID) SlotSet {
	var set SlotSet
	if t.owned[id] == 0 && !id.IsZero() {
		return set
	}
	for i, page := range t.slots.pages {
		if page == nil {
			if id.IsZero() {
				set.AddRange(SlotRange{Slot(i * pageSlots), Slot(i*pageSlots + pageSlots - 1)})
			}
			continue
		}
		for j := range page {
			if page[j].shard == id {
				set.Add(Slot(i*pageSlots + j))
			}
		}
	}
	return set
}

// assigned is the part of the table that belongs to somebody. Nobody changes what it
// returns: it may be returned again.
func (t *table) assigned() slotRuns {
	if t.runs != nil {
		return *t.runs
	}
	var r slotRuns
	for i, page := range t.slots.pages {
		if page == nil {
			continue
		}
		for j := range page {
			if e := &page[j]; !e.shard.IsZero() {
				r.add(Slot(i*pageSlots+j), *e)
			}
		}
	}
	t.runs = &r
	return r
}

func (t *table) slotIsOf(s Slot, id ShardID) bool { return t.slots.at(s).shard == id }

// resalt recomputes the digests for the salt of another cluster.
func (t *table) resalt(salt uint64) {
	t.salt, t.sum, t.buckets = salt, 0, [numBuckets]uint64{}
	for i, page := range t.slots.pages {
		if page == nil {
			continue
		}
		for j := range page {
			s := Slot(i*pageSlots + j)
			t.note(i, 0, page[j].hash(salt, s))
		}
	}
	for _, id := range t.order {
		t.note(idBucket(id[:]), 0, t.shardHash(id))
	}
	t.note(0, 0, votersHash(salt, &t.voters))
}

// clear forgets slots, shards and voters.
func (t *table) clear() {
	members := t.members
	*t = newTable(t.salt)
	t.members = members
}

// ---- runs: how ranges of slots travel and are saved

// slotRun is a range of slots with one owner; Shard indexes slotRuns.Shards.
type slotRun struct {
	First, Last Slot
	Shard       uint16
	Move        uint64
}

// slotRuns is a part of the table. Ids stand once in Shards, so that a run is a
// few bytes.
type slotRuns struct {
	Shards []ShardID
	Runs   []slotRun
}

func (r *slotRuns) add(s Slot, e slotEntry) {
	if n := len(r.Runs); n > 0 {
		last := &r.Runs[n-1]
		if last.Last+1 == s && last.Move == e.move && r.Shards[last.Shard] == e.shard {
			last.Last = s
			return
		}
	}
	r.Runs = append(r.Runs, slotRun{First: s, Last: s, Shard: paletteIndex(&r.Shards, e.shard), Move: e.move})
}

func (r *slotRuns) each(f func(Slot, slotEntry)) {
	for _, run := range r.Runs {
		e := slotEntry{r.Shards[run.Shard], run.Move}
		for s := run.First; ; s++ {
			f(s, e)
			if s == run.Last {
				break
			}
		}
	}
}

func (r *slotRuns) slots() SlotSet {
	var set SlotSet
	for _, run := range r.Runs {
		set.AddRange(SlotRange{run.First, run.Last})
	}
	return set
}

// check returns an error if the runs do not name slots in ascending order or
// point outside their palette.
func (r *slotRuns) check() error {
	next := 0
	for _, run := range r.Runs {
		if err := checkRun(run.First, run.Last, &next); err != nil {
			return err
		}
		if int(run.Shard) >= len(r.Shards) {
			return fmt.Errorf("run %d-%d names shard %d of %d", run.First, run.Last, run.Shard, len(r.Shards))
		}
	}
	return nil
}

func checkRun(first, last Slot, next *int) error {
	if int(first) < *next || last < first || last >= NumSlots {
		return fmt.Errorf("run %d-%d, expected ascending slots in %d-%d", first, last, *next, NumSlots-1)
	}
	*next = int(last) + 1
	return nil
}

// moveRun is a range of slots at one move.
type moveRun struct {
	First, Last Slot
	Move        uint64
}

type moveRuns []moveRun

func (r *moveRuns) add(s Slot, move uint64) {
	if n := len(*r); n > 0 {
		if last := &(*r)[n-1]; last.Last+1 == s && last.Move == move {
			last.Last = s
			return
		}
	}
	*r = append(*r, moveRun{First: s, Last: s, Move: move})
}

func (r moveRuns) each(f func(Slot, uint64)) {
	for _, run := range r {
		for s := run.First; ; s++ {
			f(s, run.Move)
			if s == run.Last {
				break
			}
		}
	}
}

func (r moveRuns) check() error {
	next := 0
	for _, run := range r {
		if err := checkRun(run.First, run.Last, &next); err != nil {
			return err
		}
	}
	return nil
}

func (r moveRuns) slots() SlotSet {
	var set SlotSet
	for _, run := range r {
		set.AddRange(SlotRange{run.First, run.Last})
	}
	return set
}

// accepted is a hand-over that a voter has accepted for a slot: to shard, as
// the slot's move-th, given in epoch. Accepted is not known: it is told in
// votes and never gossiped as ownership.
type accepted struct {
	shard ShardID
	move  uint64
	epoch Epoch // of the giver
}

func (a accepted) less(o accepted) bool {
	if a.move != o.move {
		return a.move < o.move
	}
	return a.epoch.less(o.epoch)
}

type acceptRun struct {
	First, Last  Slot
	Shard, Epoch uint16
	Move         uint64
}

type acceptRuns struct {
	Shards []ShardID
	Epochs []Epoch
	Runs   []acceptRun
}

func (r *acceptRuns) add(s Slot, a accepted) {
	if n := len(r.Runs); n > 0 {
		last := &r.Runs[n-1]
		if last.Last+1 == s && last.Move == a.move && r.Shards[last.Shard] == a.shard && r.Epochs[last.Epoch] == a.epoch {
			last.Last = s
			return
		}
	}
	r.Runs = append(r.Runs, acceptRun{First: s, Last: s, Move: a.move,
		Shard: paletteIndex(&r.Shards, a.shard), Epoch: paletteIndex(&r.Epochs, a.epoch)})
}

// addPage adds the values of a page that are not zero, run by run.
func addPage[V comparable](page *[pageSlots]V, first Slot, add func(Slot, V), extend func(Slot)) {
	if page == nil {
		return
	}
	var zero V
	for i := 0; i < pageSlots; {
		v := page[i]
		j := i + 1
		for j < pageSlots && page[j] == v {
			j++
		}
		if v != zero {
			add(first+Slot(i), v)
			if j > i+1 {
				extend(first + Slot(j-1))
			}
		}
		i = j
	}
}

func (r *acceptRuns) extend(last Slot) { r.Runs[len(r.Runs)-1].Last = last }

func (r *openRuns) extend(last Slot) { r.Runs[len(r.Runs)-1].Last = last }

func (r *slotRuns) extend(last Slot) { r.Runs[len(r.Runs)-1].Last = last }

func (r *acceptRuns) each(f func(Slot, accepted)) {
	for _, run := range r.Runs {
		a := accepted{r.Shards[run.Shard], run.Move, r.Epochs[run.Epoch]}
		for s := run.First; ; s++ {
			f(s, a)
			if s == run.Last {
				break
			}
		}
	}
}

func (r *acceptRuns) check() error {
	next := 0
	for _, run := range r.Runs {
		if err := checkRun(run.First, run.Last, &next); err != nil {
			return err
		}
		if int(run.Shard) >= len(r.Shards) || int(run.Epoch) >= len(r.Epochs) {
			return fmt.Errorf("run %d-%d names shard %d of %d and epoch %d of %d",
				run.First, run.Last, run.Shard, len(r.Shards), run.Epoch, len(r.Epochs))
		}
	}
	return nil
}

func (r *acceptRuns) slots() SlotSet {
	var set SlotSet
	for _, run := range r.Runs {
		set.AddRange(SlotRange{run.First, run.Last})
	}
	return set
}

// opening is the newest opening that named a slot: at move, under epoch. A
// later primary that opened the slot has overruled an older half-accepted move.
type opening struct {
	move  uint64
	epoch Epoch
}

func (o opening) less(p opening) bool {
	if o.move != p.move {
		return o.move < p.move
	}
	return o.epoch.less(p.epoch)
}

type openRun struct {
	First, Last Slot
	Epoch       uint16
	Move        uint64
}

type openRuns struct {
	Epochs []Epoch
	Runs   []openRun
}

func (r *openRuns) add(s Slot, o opening) {
	if n := len(r.Runs); n > 0 {
		last := &r.Runs[n-1]
		if last.Last+1 == s && last.Move == o.move && r.Epochs[last.Epoch] == o.epoch {
			last.Last = s
			return
		}
	}
	r.Runs = append(r.Runs, openRun{First: s, Last: s, Move: o.move, Epoch: paletteIndex(&r.Epochs, o.epoch)})
}

func (r *openRuns) each(f func(Slot, opening)) {
	for _, run := range r.Runs {
		o := opening{run.Move, r.Epochs[run.Epoch]}
		for s := run.First; ; s++ {
			f(s, o)
			if s == run.Last {
				break
			}
		}
	}
}

func (r *openRuns) check() error {
	next := 0
	for _, run := range r.Runs {
		if err := checkRun(run.First, run.Last, &next); err != nil {
			return err
		}
		if int(run.Epoch) >= len(r.Epochs) {
			return fmt.Errorf("run %d-%d names epoch %d of %d", run.First, run.Last, run.Epoch, len(r.Epochs))
		}
	}
	return nil
}

// paletteIndex finds v, or appends it. Runs come in the order of slots, whose
// values repeat, so the newest entries are looked at first. There are never
// more than 16384 entries, one per slot.
func paletteIndex[V comparable](palette *[]V, v V) uint16 {
	for i := len(*palette) - 1; i >= 0; i-- {
		if (*palette)[i] == v {
			return uint16(i)
		}
	}
	*palette = append(*palette, v)
	return uint16(len(*palette) - 1)
}

// ---- hashing of entries

// Digests are sums of the hashes of entries, so that one entry changes them in
// constant time. They are salted with the cluster's id.
const (
	shardSalt  = 0x8f1bbcdc4b7d2a31
	votersSalt = 0x3c6ef372fe94f82b
	silentSalt = 0xa54ff53a5f1d36f1
)

func hashUint(h, x uint64) uint64 {
	hi, lo := bits.Mul64(h^x^0x9e3779b97f4a7c15, 0xd6e8feb86659fd93)
	return hi ^ lo
}

// hashBytes mixes the 16 or 20 bytes of an id.
func hashBytes(h uint64, b []byte) uint64 {
	h = hashUint(h, binary.LittleEndian.Uint64(b))
	h = hashUint(h, binary.LittleEndian.Uint64(b[8:]))
	if len(b) == 20 {
		h = hashUint(h, uint64(binary.LittleEndian.Uint32(b[16:])))
	}
	return h
}

func hashEnd(h uint64) uint64 { return hashUint(h, 0xff51afd7ed558ccd) }

// idBucket spreads ids, which are random, over the buckets of a digest.
func idBucket(id []byte) int { return int(id[0]) % numBuckets }
