package resp

import (
	"bytes"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/slotmesh/slotmesh"
	"github.com/slotmesh/slotmesh/store"
)

// ownedStore is a store of which a test finds out whether what is put into it is its
// own: not memory of a connection, which the next command of a client overwrites, while
// the store, the log and a hand-over still read it. All servers of these tests have one.
type ownedStore struct {
	*store.Memory
	t    testing.TB
	mu   sync.Mutex
	kept []keptOp
}

type keptOp struct{ given, was store.Op }

// keptMost is how many changes are looked at again at a time; older ones are looked at once.
const keptMost = 1 << 12

// storeOf is the store of a server; nil, for its own one, in benchmarks.
func storeOf(t testing.TB) slotmesh.Store {
	if _, ok := t.(*testing.B); ok {
		return nil
	}
	s := &ownedStore{Memory: store.NewMemory(), t: t}
	t.Cleanup(s.look)
	return s
}

func (s *ownedStore) Apply(slot uint16, ops []store.Op) error {
	s.mu.Lock()
	for _, op := range ops {
		was := op
		was.Key, was.Field, was.Value = strings.Clone(op.Key), strings.Clone(op.Field), bytes.Clone(op.Value)
		s.kept = append(s.kept, keptOp{op, was})
	}
	full := len(s.kept) > keptMost
	s.mu.Unlock()
	if full {
		s.look()
	}
	return s.Memory.Apply(slot, ops)
}

func (s *ownedStore) look() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range s.kept {
		if k.given.Key != k.was.Key || k.given.Field != k.was.Field || !bytes.Equal(k.given.Value, k.was.Value) {
			s.t.Errorf("a change of %q %q to %q has become one of %q %q to %q", k.was.Key, k.was.Field, k.was.Value, k.given.Key, k.given.Field, k.given.Value)
		}
	}
	s.kept = nil
}

// Who is served by the command of another client is so within that one's request: what
// is written for him must not be in the memory of the other connection.
func TestWhatIsServedToOthersIsWrittenUnderAKeyOfItsOwn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFronts(t)
		f.start(slotmesh.Config{})
		require.NoError(t, f.nodes[0].Ready(t.Context()))
		pusher := f.dial(0)
		for _, row := range [][2]string{
			{"BLPOP a-list 0", "RPUSH a-list v"},
			{"BRPOP a-list 0", "RPUSH a-list v w"},
			{"BLMOVE a-list {a-list}2 LEFT RIGHT 0", "RPUSH a-list v"},
			{"BRPOPLPUSH a-list {a-list}2 0", "RPUSH a-list v"},
			{"BLMPOP 0 1 a-list LEFT COUNT 2", "RPUSH a-list v"},
			{"BZPOPMIN a-set 0", "ZADD a-set 1 v"},
			{"BZPOPMAX a-set 0", "ZADD a-set 1 v 2 w"},
			{"BZMPOP 0 1 a-set MIN", "ZADD a-set 1 v"},
		} {
			pusher.do("FLUSHALL")
			waiter := f.dial(0)
			waiter.send(strings.Fields(row[0])...)
			f.waiting(0, 1)
			pusher.do(row[1])
			waiter.read()
			pusher.do("ECHO " + strings.Repeat("x", 4096))
		}
	})
}
