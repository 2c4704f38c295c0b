package slotmesh

import (
	"bytes"
	"cmp"
	"fmt"
)

// What a node must remember, as cells: each a key and a value, written anew when
// it changes. A driver keeps the newest value of every cell; a cell without a
// value is gone.

type cellKind uint8

const (
	cellNode     cellKind = iota + 1 // who this node is
	cellPeer                         // id: a member
	cellSlots                        // page: owners of 256 slots
	cellShard                        // id: its epoch
	cellVoters                       // the set of voters in force
	cellVote                         // id: promise and record of a shard
	cellAccepted                     // page
	cellOpened                       // page
	cellLease                        // longest lease ever given
	cellStop                         // ballot of the STOP answered
	cellStart                        // START saved and not decided
	cellCurrent                      // START in force
	cellUsed                         // id: highest number asked for, of a shard
	cellEpoch                        // highest number of all
	cellMarks                        // page: marks of an operator
)

type cellKey struct {
	kind cellKind
	page uint8
	id   [20]byte
}

func (k cellKey) compare(o cellKey) int {
	return cmp.Or(cmp.Compare(k.kind, o.kind), cmp.Compare(k.page, o.page), bytes.Compare(k.id[:], o.id[:]))
}

// The values of cells, where they are not types of the bus.
type (
	nodeCell struct {
		ID      NodeID
		Key     uint64
		Cluster ClusterID
		Starts  uint64
		Promise Epoch
	}
	voteCell struct {
		Promised    Epoch
		Incarnation uint64
		Records     []record // none or one
	}
	startCell struct {
		Ballot ballot
		Value  startValue
	}
	numberCell struct{ N uint64 }
)

// encodeCell is the value of a cell as the core is now; nil if it is to go.
func (s *state) encodeCell(k cellKey) []byte {
	v := s.cellValue(k)
	if v == nil {
		return nil
	}
	b, err := encodeValue(v)
	if err != nil {
		panic(fmt.Sprintf("slotmesh: encoding cell %d: %v", k.kind, err)) // the types of cells are all encodable
	}
	return b
}

func (s *state) cellValue(k cellKey) any {
	switch k.kind {
	case cellNode:
		return &nodeCell{s.id, s.key, s.cluster, s.starts, s.promise}
	case cellPeer:
		if p := s.peers.get(NodeID(k.id)); p != nil {
			return &p.peerEntry
		}
	case cellSlots:
		return nonEmpty(pageRuns[slotEntry, slotRuns](&s.table.slots, k.page))
	case cellShard:
		if e, ok := s.table.shards[ShardID(k.id)]; ok {
			return &e
		}
	case cellVoters:
		if s.table.voters.ID != 0 {
			return &s.table.voters
		}
	case cellVote:
		if v := s.vote.shards[ShardID(k.id)]; v != nil {
			c := &voteCell{Promised: v.promised, Incarnation: v.incarnation}
			if v.record != nil {
				c.Records = []record{*v.record}
			}
			return c
		}
	case cellAccepted:
		return nonEmpty(pageRuns[accepted, acceptRuns](&s.vote.accepted, k.page))
	case cellOpened:
		return nonEmpty(pageRuns[opening, openRuns](&s.vote.opened, k.page))
	case cellLease:
		return &numberCell{uint64(s.vote.maxLease)}
	case cellStop:
		return &s.vote.stop
	case cellStart:
		if v := s.savedStart(); v != nil {
			return &startCell{s.vote.startBallot, *v}
		}
	case cellCurrent:
		if s.vote.current != nil {
			return s.vote.current
		}
	case cellUsed:
		if n, ok := s.used[ShardID(k.id)]; ok {
			return &numberCell{n}
		}
	case cellEpoch:
		return &numberCell{s.epochHigh}
	case cellMarks:
		return nonEmpty(s.marksOf(k.page))
	}
	return nil
}

// pageRuns is the runs of a page; nil if every value of it is zero.
func pageRuns[V comparable, R any, P interface {
	*R
	add(Slot, V)
	extend(Slot)
	empty() bool
}](m *slotMap[V], page uint8) *R {
	r := P(new(R))
	addPage(m.pages[page], Slot(page)*pageSlots, r.add, r.extend)
	if r.empty() {
		return nil
	}
	return r
}

func (r *slotRuns) empty() bool   { return len(r.Runs) == 0 }
func (r *acceptRuns) empty() bool { return len(r.Runs) == 0 }
func (r *openRuns) empty() bool   { return len(r.Runs) == 0 }

// nonEmpty turns a nil pointer into a nil value.
func nonEmpty[R any](r *R) any {
	if r == nil {
		return nil
	}
	return r
}

// load makes the core what its cells say.
func (s *state) load(cells []cell) error {
	seen := map[cellKey]bool{}
	for _, c := range cells {
		if seen[c.key] {
			return fmt.Errorf("slotmesh: saved state has cell %d/%d/%x twice", c.key.kind, c.key.page, c.key.id)
		}
		seen[c.key] = true
		if err := s.loadCell(c); err != nil {
			return fmt.Errorf("slotmesh: saved state, cell %d/%d/%x: %w", c.key.kind, c.key.page, c.key.id, err)
		}
	}
	s.self = s.peers.get(s.id)
	if s.id.IsZero() || s.self == nil || s.self.Key != s.key {
		return fmt.Errorf("slotmesh: saved state does not say who the node is")
	}
	s.table.resalt(s.salt())
	s.peers.resalt(s.salt())
	return nil
}

func (s *state) loadCell(c cell) error {
	switch c.key.kind {
	case cellNode:
		return loadValue(c, func(v *nodeCell) {
			s.id, s.key, s.cluster, s.starts, s.promise = v.ID, v.Key, v.Cluster, v.Starts, v.Promise
		})
	case cellPeer:
		return s.loadPeer(c)
	case cellSlots:
		return loadChecked(c, func(v *slotRuns) { v.each(s.table.setSlot) })
	case cellShard:
		return loadValue(c, func(v *Epoch) { s.table.setShard(ShardID(c.key.id), *v) })
	case cellVoters:
		return loadChecked(c, func(v *voterSet) { s.table.setVoters(*v) })
	case cellVote:
		return loadChecked(c, func(v *voteCell) {
			sh := s.vote.shard(ShardID(c.key.id))
			sh.promised, sh.incarnation = v.Promised, v.Incarnation
			if len(v.Records) > 0 {
				sh.record = &v.Records[0]
			}
		})
	case cellAccepted:
		return loadChecked(c, func(v *acceptRuns) { v.each(s.vote.accepted.set) })
	case cellOpened:
		return loadChecked(c, func(v *openRuns) { v.each(s.vote.opened.set) })
	case cellLease:
		return loadValue(c, func(v *numberCell) { s.vote.maxLease = uint32(v.N) })
	case cellStop:
		return loadValue(c, func(v *ballot) { s.vote.stop = *v })
	case cellStart:
		return loadChecked(c, func(v *startCell) {
			s.vote.startBallot = v.Ballot
			if v.Value.forms() {
				s.form.value, s.form.savedAt = &v.Value, never
			} else {
				s.vote.startValue = &v.Value
			}
		})
	case cellCurrent:
		return loadChecked(c, func(v *startValue) { s.vote.current = v })
	case cellUsed:
		return loadValue(c, func(v *numberCell) { s.used[ShardID(c.key.id)] = v.N })
	case cellEpoch:
		return loadValue(c, func(v *numberCell) { s.epochHigh = v.N })
	case cellMarks:
		return loadChecked(c, func(v *marksCell) {
			for _, m := range v.Marks {
				s.marks[m.Slot] = m
			}
		})
	default:
		return fmt.Errorf("unknown kind, expected 1 to %d", cellMarks)
	}
}

func (s *state) loadPeer(c cell) error {
	var e peerEntry
	if err := loadChecked(c, func(v *peerEntry) { e = *v }); err != nil {
		return err
	}
	if e.ID != NodeID(c.key.id) {
		return fmt.Errorf("entry of node %s", e.ID)
	}
	s.peers.insert(&peer{peerEntry: e})
	return nil
}

func (c *startCell) check() error { return c.Value.check() }
func (c *voteCell) check() error  { return checkAtMostOne("records", len(c.Records)) }

func loadValue[T any](c cell, take func(*T)) error {
	v := new(T)
	if err := decodeValue(c.value, v); err != nil {
		return err
	}
	take(v)
	return nil
}

func loadChecked[T any, P interface {
	*T
	check() error
}](c cell, take func(P)) error {
	v := P(new(T))
	if err := decodeValue(c.value, v); err != nil {
		return err
	}
	if err := v.check(); err != nil {
		return err
	}
	take(v)
	return nil
}
