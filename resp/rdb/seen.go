package rdb

import (
	"bytes"
	"hash/maphash"
	"math"
)

// seen finds members that come twice. It keeps no copy of them: it holds, per
// member, 32 bits of its hash and its number in the slice that the parser
// builds, in an open table. The seed is random, so that nobody can choose
// members that collide.
//
// Up to seenScan members are compared one by one: most collections are small.
type seen struct {
	seed  maphash.Seed
	table []uint64 // hash<<32 | number+1; zero is free; a power of two long
	n     int      // members so far
}

const (
	seenScan = 8
	maxSeen  = math.MaxInt32 // numbers fit half a cell
)

// add adds key as member number s.n, unless it is there; at returns the members
// added before.
func (s *seen) add(key []byte, at func(int) []byte) bool {
	if s.n < seenScan && s.table == nil {
		for i := range s.n {
			if bytes.Equal(at(i), key) {
				return false
			}
		}
		s.n++
		return true
	}
	if s.table == nil {
		s.seed = maphash.MakeSeed()
		s.grow(s.n+1, at)
	} else if s.n >= len(s.table)/4*3 {
		s.grow(2*s.n, at)
	}
	return s.insert(key, at)
}

// reserve makes room for n members more, where they will need the table.
func (s *seen) reserve(n int, at func(int) []byte) {
	n += s.n
	if n <= seenScan || n <= len(s.table)/4*3 {
		return
	}
	if s.table == nil {
		s.seed = maphash.MakeSeed()
	}
	s.grow(n, at)
}

// grow makes a table for n members at least and fills it anew.
func (s *seen) grow(n int, at func(int) []byte) {
	size := 4 * seenScan
	for size/4*3 < n {
		size *= 2
	}
	old := s.table
	s.table = make([]uint64, size)
	if old == nil {
		members := s.n
		s.n = 0
		for i := range members {
			s.insert(at(i), at)
		}
		return
	}
	for _, cell := range old {
		if cell != 0 {
			s.table[s.free(uint32(cell>>32))] = cell
		}
	}
}

// free returns the first free cell for a hash.
func (s *seen) free(hash uint32) int {
	mask := len(s.table) - 1
	i := int(hash) & mask
	for s.table[i] != 0 {
		i = (i + 1) & mask
	}
	return i
}

func (s *seen) insert(key []byte, at func(int) []byte) bool {
	hash := uint32(maphash.Bytes(s.seed, key))
	mask := len(s.table) - 1
	i := int(hash) & mask
	for ; s.table[i] != 0; i = (i + 1) & mask {
		if uint32(s.table[i]>>32) == hash && bytes.Equal(at(int(uint32(s.table[i]))-1), key) {
			return false
		}
	}
	s.n++
	s.table[i] = uint64(hash)<<32 | uint64(s.n)
	return true
}
