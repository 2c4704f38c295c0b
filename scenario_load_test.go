package slotmesh_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slotmesh/slotmesh"
	"github.com/slotmesh/slotmesh/internal/racing"
	"github.com/stretchr/testify/require"
)

// ledger is the load of a scenario, and what it has been told: each writer writes one
// key after the other, all in one slot, so that whatever is gone shows.
type ledger struct {
	s      *scenario
	cancel context.CancelFunc
	wg     sync.WaitGroup
	acked  atomic.Int64
	seen   int64

	mu   sync.Mutex
	acks map[string][]ack         // guarded by mu: by writer, in order
	last map[string]time.Time     // guarded by mu: when each writer was answered last
	gaps map[string]time.Duration // guarded by mu: the longest time that each has waited
}

// ack is a key that has been acknowledged.
type ack struct {
	key string
	at  time.Time
	by  string // the side of the node that ran it
}

// writeCommand is what the load calls: a write whose reply says which node has run it,
// for a loss is explained by what has happened to that one.
func writeCommand(side string) slotmesh.Command {
	return slotmesh.Command{Name: "write", Run: func(tx *slotmesh.Tx, args [][]byte) ([]byte, error) {
		return []byte(side), tx.Put(string(args[0]), args[0])
	}}
}

func (s *scenario) startLoad(args []string) (string, error) {
	writers, err := strconv.Atoi(args[0])
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithCancel(s.t.Context())
	s.load = &ledger{s: s, cancel: cancel, acks: map[string][]ack{}}
	s.load.gapsFrom(time.Now())
	for i := range writers {
		s.load.wg.Go(func() { s.load.write(ctx, i, fmt.Sprintf("{load%d}", i)) })
		if len(args) > 1 {
			s.load.wg.Go(func() { s.load.expire(ctx, i) })
		}
	}
	return "", nil
}

func (l *ledger) end() {
	l.cancel()
	l.wg.Wait()
}

// write writes keys until ctx is over. What was not acknowledged is not repeated.
func (l *ledger) write(ctx context.Context, i int, writer string) {
	for n := 1; ctx.Err() == nil; n++ {
		call, cancel := context.WithTimeout(ctx, scenarioNT/2)
		key := fmt.Sprint(writer, n)
		if c := l.s.client(i); c != nil {
			if by, err := c.Do(call, "write", []byte(key)); err == nil {
				l.note(writer, key, string(by))
			}
		}
		cancel()
		time.Sleep(time.Duration(racing.Fewer(2, 8)) * time.Millisecond)
	}
}

func (l *ledger) note(writer, key, by string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	l.acks[writer] = append(l.acks[writer], ack{key, now, by})
	if last, ok := l.last[writer]; ok {
		l.gaps[writer] = max(l.gaps[writer], now.Sub(last))
	}
	l.last[writer] = now
	l.acked.Add(1)
}

// expire writes keys that expire, and come again.
func (l *ledger) expire(ctx context.Context, i int) {
	for j := 0; ctx.Err() == nil; j++ {
		if c := l.s.client(i); c != nil {
			call, cancel := context.WithTimeout(ctx, scenarioNT/2)
			_ = c.SetFor(call, fmt.Sprint("short", i, j%20), []byte("v"), time.Duration(1+j%30)*time.Millisecond) // whatever comes of it
			cancel()
		}
		time.Sleep(time.Millisecond)
	}
}

// gapsFrom begins to count how long writers wait.
func (l *ledger) gapsFrom(at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.gaps, l.last = map[string]time.Duration{}, map[string]time.Time{}
	for writer := range l.acks {
		l.last[writer] = at
	}
}

func (s *scenario) pauseUnder(args []string) (string, error) {
	limit, err := time.ParseDuration(args[0])
	if err != nil {
		return "", err
	}
	l := s.load
	l.mu.Lock()
	defer l.mu.Unlock()
	longest := time.Duration(0)
	for writer, gap := range l.gaps {
		longest = max(longest, gap, time.Since(l.last[writer]))
	}
	s.t.Logf("the longest that a writer has waited since clock: %v", longest)
	if longest > limit {
		return "", fmt.Errorf("a writer has waited %v", longest)
	}
	return "", nil
}

func (s *scenario) acks(args []string) (string, error) {
	n := s.load.acked.Load()
	more := n - s.load.seen
	s.load.seen = n
	if (more > 0) != (args[0] == "more") {
		return "", fmt.Errorf("%d writes have been acknowledged", more)
	}
	return "", nil
}

// lagMost is how long a write may take to reach the replicas of a healthy shard.
const lagMost = 20 * time.Millisecond

// lost reads back what the load has written, and explains each acknowledged write that
// is gone: "none" may be; "lag" explains those of a shard which waits for no replicas,
// from just before the node that acknowledged them was hit until its lease was over;
// "unclean" those that an event has warned of: somebody has taken this shard from that
// node without a majority. Either way what is gone is an end: nothing that the node
// acknowledged later in that reign is there.
func (s *scenario) lost(args []string) (string, error) {
	s.load.mu.Lock()
	defer s.load.mu.Unlock()
	gone := 0
	for _, acks := range s.load.acks {
		n, err := s.lostOf(acks, args[0])
		if err != nil {
			return "", err
		}
		gone += n
	}
	return strconv.Itoa(gone), nil
}

// lostOf is lost, of one writer.
func (s *scenario) lostOf(acks []ack, cause string) (gone int, err error) {
	there := make([]bool, len(acks))
	for i, a := range acks {
		if there[i], err = s.there(a.key); err != nil {
			return 0, fmt.Errorf("reading %s back: %w", a.key, err)
		}
	}
	for i, a := range acks {
		if there[i] {
			continue
		}
		gone++
		until, why := s.explain(a, cause)
		if why != "" {
			return 0, fmt.Errorf("%s, acknowledged by %s after %v, is gone: %s", a.key, a.by, a.at.Sub(s.began), why)
		}
		for k, b := range acks[i+1:] {
			if b.by == a.by && b.at.Before(until) && there[i+1+k] {
				return 0, fmt.Errorf("%s, acknowledged by %s after %v, is gone, and %s, which it acknowledged later, is not", a.key, a.by, a.at.Sub(s.began), b.key)
			}
		}
	}
	return gone, nil
}

func (s *scenario) there(key string) (bool, error) {
	ctx, cancel := context.WithTimeout(s.t.Context(), 4*scenarioNT)
	defer cancel()
	c := s.client(0)
	if c == nil {
		return false, errors.New("no node is up")
	}
	_, err := c.Get(ctx, key)
	if errors.Is(err, slotmesh.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// explain says until when a write that a node acknowledged may be lost by the cause that
// has taken this one, or why it is not explained.
func (s *scenario) explain(a ack, cause string) (until time.Time, why string) {
	switch cause {
	case "unclean":
		return s.explainUnclean(a)
	case "lag":
		return s.explainLag(a)
	}
	return until, "nothing may be"
}

// shardOf is the shard of a key, in the eyes of some node that is up. No script that
// has a load moves slots.
func (s *scenario) shardOf(key string) slotmesh.ShardID {
	for _, name := range s.names() {
		if m := s.members[name]; m.node != nil {
			owner, _ := m.node.Table().Owner(slotmesh.KeySlot(key))
			return owner.Shard
		}
	}
	return slotmesh.ShardID{}
}

func (s *scenario) explainUnclean(a ack) (until time.Time, why string) {
	shard := s.shardOf(a.key)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.events {
		if e.Kind == slotmesh.EventUnclean && e.Shard == shard && e.at.After(a.at) && s.sideOf(e.From) == a.by {
			return e.at, ""
		}
	}
	return until, "no event has warned of that"
}

func (s *scenario) explainLag(a ack) (until time.Time, why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cfg.AckReplicas > 0 {
		return until, "its shard waits for replicas"
	}
	var all []string
	for _, f := range s.faulty {
		if until = f.at.Add(scenarioNT); f.by == a.by && a.at.After(f.at.Add(-lagMost)) && a.at.Before(until) {
			return until, ""
		}
		all = append(all, fmt.Sprint(f.what, " at ", f.at.Sub(s.began)))
	}
	return until, "it was hit at no time near: " + strings.Join(all, ", ")
}

// An acknowledged write that is gone and that nothing explains fails a script, whatever
// it expects: what has happened to another node or shard explains nothing, nor is a loss
// explained after which the same reign has kept something.
func TestAnUnexplainedLossFailsAScript(t *testing.T) {
	t.Parallel()
	unclean := func(s *scenario, shard slotmesh.ShardID, from string) {
		s.events = append(s.events, scenarioEvent{time.Now(), "A1", slotmesh.Event{Kind: slotmesh.EventUnclean, Shard: shard, From: s.members[from].id}})
	}
	const last, middle = -1, 2 // which key is gone
	i := 0
	for name, c := range map[string]struct {
		gone      int
		happens   func(s *scenario)
		explained string // by which cause; "": by none
	}{
		"nothing has happened":                 {last, func(*scenario) {}, ""},
		"a replica was hit":                    {last, func(s *scenario) { s.hit("A1", "kill") }, ""},
		"the primary was hit":                  {last, func(s *scenario) { s.hit("A", "kill") }, "lag"},
		"the primary was hit, a hole":          {middle, func(s *scenario) { s.hit("A", "kill") }, ""},
		"its shard was taken over":             {last, func(s *scenario) { unclean(s, s.shardOf("{load0}"), "A") }, "unclean"},
		"its shard was taken over, a hole":     {middle, func(s *scenario) { unclean(s, s.shardOf("{load0}"), "A") }, ""},
		"its shard was taken over from others": {last, func(s *scenario) { unclean(s, s.shardOf("{load0}"), "A1") }, ""},
		"another shard was taken over":         {last, func(s *scenario) { unclean(s, slotmesh.ShardID{1}, "A") }, ""},
		"it cannot be read":                    {last, func(s *scenario) { s.kill("A"); s.kill("A1") }, ""},
	} {
		i++
		t.Run(name, func(t *testing.T) {
			racing.OneOf(t, i, 3)
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newScenario(t)
				for _, line := range []string{"cluster 1x1", "until 2s insync A A1", "load 1", "wait 100ms", "quiet", "lost none => 0"} {
					require.NoError(t, s.line(line))
				}
				acks := s.load.acks["{load0}"]
				require.Greater(t, len(acks), middle+2)
				acks = acks[len(acks)-middle-2:] // as late as what a hit may explain
				s.load.acks["{load0}"] = acks
				_, err := s.client(0).Delete(t.Context(), acks[(c.gone+len(acks))%len(acks)].key)
				require.NoError(t, err)
				time.Sleep(time.Millisecond)
				c.happens(s)
				for _, cause := range []string{"none", "lag", "unclean"} {
					if cause == c.explained {
						require.NoError(t, s.line("lost "+cause+" => 1"))
						continue
					}
					require.Error(t, s.line("lost "+cause+" => .*"), cause)
					require.Error(t, s.line("! lost "+cause), cause)
				}
			})
		})
	}
}
