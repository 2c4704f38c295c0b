package slotmesh

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slotmesh/slotmesh/store"
	"github.com/slotmesh/slotmesh/transport"
	"github.com/stretchr/testify/require"
)

// lifeCall is a public method that may fail, with arguments that are right.
type lifeCall struct {
	name   string
	call   func(ctx context.Context, n *node) error
	kind   lifeKind
	before error // what it says of a node that is not ready yet; nil: nothing
}

type lifeKind uint8

const (
	plainError lifeKind = iota
	opError
	adminError
)

// lifeCalls are all of them: a test below fails where one is missing.
func lifeCalls() []lifeCall {
	key, value := "k", []byte("v")
	request := Request{Keys: []string{key}}
	nothing := func(*Tx) error { return nil }
	slots := oneSlotSet(7)
	over := context.DeadlineExceeded
	return []lifeCall{
		{"Node.Execute", func(ctx context.Context, n *node) error { return n.Execute(ctx, request, nothing) }, opError, ErrClusterDown},
		{"Session.Execute", func(ctx context.Context, n *node) error { return n.Session().Execute(ctx, &request, nothing) }, opError, ErrClusterDown},
		{"Session.Settle", func(ctx context.Context, n *node) error {
			s := n.Session()
			if err := s.Execute(ctx, &Request{Keys: []string{key}, Later: true}, nothing); err != nil {
				return err
			}
			return s.Settle(ctx, nil)
		}, opError, ErrClusterDown},
		{"Node.CountKeys", func(_ context.Context, n *node) error { _, err := n.CountKeys(7); return err }, plainError, nil},
		{"Node.CountExpiring", func(_ context.Context, n *node) error { _, err := n.CountExpiring(7); return err }, plainError, nil},
		{"Node.ScanSlot", func(_ context.Context, n *node) error { _, _, err := n.ScanSlot(7, 0, 0); return err }, plainError, nil},
		{"Node.FlushSlot", func(ctx context.Context, n *node) error { return n.FlushSlot(ctx, 7) }, opError, ErrClusterDown},
		{"Node.Publish", func(ctx context.Context, n *node) error { _, err := n.Publish(ctx, "c", value); return err }, plainError, nil},
		{"Node.PublishSharded", func(ctx context.Context, n *node) error { _, err := n.PublishSharded(ctx, "c", value); return err }, plainError, nil},
		{"Node.Ready", func(ctx context.Context, n *node) error { return n.Ready(ctx) }, plainError, over},
		{"Node.Leave", func(ctx context.Context, n *node) error { _, err := n.Leave(ctx); return err }, adminError, nil},
		{"Client.Get", func(ctx context.Context, n *node) error { _, err := n.Client().Get(ctx, key); return err }, opError, over},
		{"Client.Set", func(ctx context.Context, n *node) error { return n.Client().Set(ctx, key, value) }, opError, over},
		{"Client.SetFor", func(ctx context.Context, n *node) error { return n.Client().SetFor(ctx, key, value, time.Hour) }, opError, over},
		{"Client.Delete", func(ctx context.Context, n *node) error { _, err := n.Client().Delete(ctx, key); return err }, opError, over},
		{"Client.Expire", func(ctx context.Context, n *node) error { _, err := n.Client().Expire(ctx, key, time.Hour); return err }, opError, over},
		{"Client.Incr", func(ctx context.Context, n *node) error { _, err := n.Client().Incr(ctx, key, 1); return err }, opError, over},
		{"Client.CompareAndSwap", func(ctx context.Context, n *node) error { return n.Client().CompareAndSwap(ctx, key, nil, value) }, opError, over},
		{"Client.Do", func(ctx context.Context, n *node) error {
			_, err := n.Client().Do(ctx, "echo", []byte(key))
			return err
		}, opError, over},
		{"Client.Do of no command", func(ctx context.Context, n *node) error { _, err := n.Client().Do(ctx, "none"); return err }, opError, ErrUnknownCommand},
		{"Client.Wait", func(ctx context.Context, n *node) error { _, err := n.Client().Wait(ctx, 1); return err }, opError, nil},
		{"Admin.Meet", func(ctx context.Context, n *node) error { return n.Admin().Meet(ctx, "b:1") }, adminError, nil},
		{"Admin.Forget", func(ctx context.Context, n *node) error { return n.Admin().Forget(ctx, NodeID{9}, false) }, adminError, ErrRefused},
		{"Admin.AddSlots", func(ctx context.Context, n *node) error { return n.Admin().AddSlots(ctx, slots) }, adminError, nil},
		{"Admin.DelSlots", func(ctx context.Context, n *node) error { return n.Admin().DelSlots(ctx, slots) }, adminError, ErrRefused},
		{"Admin.SetSlots", func(ctx context.Context, n *node) error { return n.Admin().SetSlots(ctx, slots, n.ID()) }, adminError, nil},
		{"Admin.MoveSlots", func(ctx context.Context, n *node) error { return n.Admin().MoveSlots(ctx, slots, n.ID()) }, adminError, ErrRefused},
		{"Admin.SetSlotMigrating", func(ctx context.Context, n *node) error { return n.Admin().SetSlotMigrating(ctx, 7, NodeID{9}) }, adminError, ErrRefused},
		{"Admin.SetSlotImporting", func(ctx context.Context, n *node) error { return n.Admin().SetSlotImporting(ctx, 7, NodeID{9}) }, adminError, ErrRefused},
		{"Admin.SetSlotStable", func(ctx context.Context, n *node) error { return n.Admin().SetSlotStable(ctx, 7) }, adminError, nil},
		{"Admin.BumpEpoch", func(ctx context.Context, n *node) error { return n.Admin().BumpEpoch(ctx) }, adminError, nil},
		{"Admin.SetConfigEpoch", func(ctx context.Context, n *node) error { return n.Admin().SetConfigEpoch(ctx, 3) }, adminError, nil},
		{"Admin.Takeover", func(ctx context.Context, n *node) error { return n.Admin().Takeover(ctx) }, adminError, ErrRefused},
		{"Admin.Replicate", func(ctx context.Context, n *node) error { return n.Admin().Replicate(ctx, n.ID()) }, adminError, ErrRefused},
		{"Admin.Failover", func(ctx context.Context, n *node) error { return n.Admin().Failover(ctx, FailoverPlain) }, adminError, ErrRefused},
		{"Admin.SetPolicy", func(ctx context.Context, n *node) error { return n.Admin().SetPolicy(ctx, Policy{}) }, adminError, nil},
		{"Admin.ForceVoters", func(ctx context.Context, n *node) error { return n.Admin().ForceVoters(ctx, []NodeID{n.ID()}) }, adminError, ErrRefused},
		{"Admin.Reset", func(ctx context.Context, n *node) error { return n.Admin().Reset(ctx, false) }, adminError, nil},
	}
}

// withoutError are the methods that cannot fail; their own test lines are in
// TestEveryMethodSaysThatTheNodeIsClosed.
const withoutError = "Node.ID Node.Addr Node.Table Node.Client Node.Session Node.Subscribe Node.SubscribeSharded Node.Watch Node.Admin Node.Events " +
	"Node.Status Node.Close Client.Stats Client.WithAckReplicas Session.Wait Session.Owed Session.OnWait"

func TestEveryMethodIsAmongThoseThatAreTestedHere(t *testing.T) {
	tested := strings.Fields(withoutError)
	for _, c := range lifeCalls() {
		tested = append(tested, c.name)
	}
	for name, typ := range map[string]reflect.Type{"Node": reflect.TypeFor[Node](), "Client": reflect.TypeFor[*Client](),
		"Admin": reflect.TypeFor[Admin](), "Session": reflect.TypeFor[*Session]()} {
		for m := range typ.Methods() {
			require.Contains(t, tested, name+"."+m.Name)
		}
	}
}

func lifeConfig(st Store) Config {
	echo := Command{Name: "echo", Run: func(_ *Tx, args [][]byte) ([]byte, error) { return args[0], nil }}
	return Config{Addr: "a:1", Transport: transport.NewMemory(), NodeTimeout: driverNT, Join: true, Commands: []Command{echo}, Store: st}
}

// isOf checks the type that the documentation promises.
func (c *lifeCall) isOf(t *testing.T, err error) {
	t.Helper()
	var op *OpError
	var admin *AdminError
	switch c.kind {
	case opError:
		require.ErrorAs(t, err, &op, c.name)
		require.Equal(t, NotExecuted, op.Outcome, c.name)
	case adminError:
		require.ErrorAs(t, err, &admin, c.name)
		require.Equal(t, NotExecuted, admin.Outcome, c.name)
	}
}

// Every public method says of a closed node that it is closed, at once.
func TestEveryMethodSaysThatTheNodeIsClosed(t *testing.T) {
	t.Parallel()
	for _, given := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			var st Store
			if given {
				st = store.NewMemory() // one that the node leaves open
			}
			n := startNode(t, lifeConfig(st))
			id, addr := n.ID(), n.Addr()
			require.NoError(t, n.Close())
			began := time.Now()
			for _, c := range lifeCalls() {
				err := c.call(t.Context(), n)
				require.ErrorIs(t, err, ErrClosed, c.name)
				c.isOf(t, err)
			}
			require.Zero(t, time.Since(began), "nothing waits")
			s := n.Status()
			require.False(t, s.OK)
			require.False(t, s.Ready)
			require.Equal(t, "this node is closed", s.Reason)
			require.Equal(t, "this node is closed", s.Unready)
			require.Contains(t, s.String(), "this node is closed")
			_, open := <-n.Events(t.Context(), 1)
			require.False(t, open)
			require.Equal(t, id, n.ID())
			require.Equal(t, addr, n.Addr())
			require.NotNil(t, n.Table(), "it stays as it was")
			require.Len(t, n.Table().Nodes(), 1)
			n.Subscribe(func(string, []byte) int { return 1 })()
			n.SubscribeSharded(func(string, []byte) int { return 1 })()
			w := n.Watch(func(string, bool) {})
			w.Add("k")
			w.All()
			w.Close()
			n.Client().Stats()
			require.NoError(t, n.Close())
		})
	}
}

// countingContext counts what hangs on it.
type countingContext struct {
	context.Context
	hanging *atomic.Int64
}

func (countingContext) Value(any) any { return nil } // what it is a child of stays hidden

// AfterFunc is what context.AfterFunc calls where a context has it.
func (c countingContext) AfterFunc(f func()) (stop func() bool) {
	c.hanging.Add(1)
	stopInner := context.AfterFunc(c.Context, f)
	return func() bool {
		c.hanging.Add(-1)
		return stopInner()
	}
}

// Whoever reads events with a context that is never over leaves nothing behind
// in it, or beside it.
func TestCloseLetsGoOfTheContextsOfEvents(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, Config{})
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		c := countingContext{ctx, new(atomic.Int64)}
		kept := n.Events(c, 1)
		over, end := context.WithCancel(context.Background())
		ended := n.Events(over, 1)
		end()
		synctest.Wait()
		_, open := <-ended
		require.False(t, open)
		n.Events(context.Background(), 1)
		require.NoError(t, n.Close())
		for range kept {
		}
		require.Zero(t, c.hanging.Load())
	})
}

// Before a node is ready every method answers within its context, and says what
// is missing.
func TestEveryMethodAnswersBeforeTheNodeIsReady(t *testing.T) {
	t.Parallel()
	for _, c := range lifeCalls() {
		synctest.Test(t, func(t *testing.T) {
			n := startNode(t, lifeConfig(nil))
			ctx, cancel := context.WithTimeout(t.Context(), driverNT/2)
			defer cancel()
			err := c.call(ctx, n)
			if c.before == nil {
				require.NoError(t, err, c.name)
				return
			}
			require.ErrorIs(t, err, c.before, c.name)
			c.isOf(t, err)
			if errors.Is(err, context.DeadlineExceeded) {
				require.ErrorContains(t, err, "slot", "%s: what is missing", c.name)
			}
		})
	}
}

// A context that is over is an error of a node that is ready, too.
func TestReadyWithAContextThatIsOver(t *testing.T) {
	n := startNode(t, Config{})
	require.NoError(t, n.Ready(t.Context()))
	over, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, n.Ready(over), context.Canceled)
	late, cancel := context.WithDeadline(t.Context(), time.Unix(1, 0))
	defer cancel()
	require.ErrorIs(t, n.Ready(late), context.DeadlineExceeded)
}

// A node whose folder is refused lets go of its address, and leaves everything in the
// folder as it was, what a rewrite has left there that was cut off too.
func TestARefusedStartChangesNothing(t *testing.T) {
	for _, row := range []struct {
		name, want string
		refuse     func(t *testing.T, m *meta, file string)
	}{
		{"in use", "in use by another node", func(t *testing.T, m *meta, _ string) {}},
		{"of a newer format", "has format 2, written by a newer version; this one reads format 1", func(t *testing.T, m *meta, file string) {
			require.NoError(t, m.Close())
			b, err := os.ReadFile(file)
			require.NoError(t, err)
			binary.BigEndian.PutUint32(b[len(metaMagic):], metaFormat+1)
			binary.BigEndian.PutUint32(b[len(metaMagic)+4:], checksum(0, b[:len(metaMagic)+4]))
			require.NoError(t, os.WriteFile(file, b, metaFilePerm))
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			dir, mem := t.TempDir(), transport.NewMemory()
			m, _, err := openMeta(osFS{}, dir)
			require.NoError(t, err)
			defer m.Close()
			require.NoError(t, m.save([]cell{testCell(1, 0, "node")}))
			require.NoError(t, os.WriteFile(filepath.Join(dir, metaTemp), []byte("cut off"), metaFilePerm))
			row.refuse(t, m, filepath.Join(dir, metaName))
			before := filesIn(t, dir)
			for range 2 {
				n, err := Start(t.Context(), Config{Addr: "a:1", Transport: mem, Dir: dir})
				require.ErrorContains(t, err, row.want)
				require.ErrorContains(t, err, dir)
				require.Nil(t, n)
			}
			require.Equal(t, before, filesIn(t, dir))
			l, err := mem.Listen("a:1")
			require.NoError(t, err)
			require.NoError(t, l.Close())
		})
	}
}

// filesIn is what the files of a folder say, by name.
func filesIn(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	files := map[string]string{}
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		require.NoError(t, err)
		files[e.Name()] = string(b)
	}
	return files
}
