package slotmesh_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/slotmesh/slotmesh"
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
		if c := l.s.client(i); c != nil && c.Set(call, key, []byte("v")) == nil {
			l.note(writer, key)
		}
		cancel()
		time.Sleep(time.Duration(slotmesh.Fewer(2, 8)) * time.Millisecond)
	}
}

func (l *ledger) note(writer, key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	l.acks[writer] = append(l.acks[writer], ack{key, now})
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
// from just before its primary was hit until its lease was over; "unclean" those that an
// event has warned of, too.
func (s *scenario) lost(args []string) (string, error) {
	s.load.mu.Lock()
	defer s.load.mu.Unlock()
	gone := 0
	for _, acks := range s.load.acks {
		for _, a := range acks {
			there, err := s.there(a.key)
			if err != nil {
				return "", err
			}
			if there {
				continue
			}
			gone++
			if why := s.explain(a, args[0]); why != "" {
				return "", fmt.Errorf("%s, acknowledged after %v, is gone: %s", a.key, a.at.Sub(s.began), why)
			}
		}
	}
	return strconv.Itoa(gone), nil
}

func (s *scenario) there(key string) (bool, error) {
	ctx, cancel := context.WithTimeout(s.t.Context(), 4*scenarioNT)
	defer cancel()
	_, err := s.client(0).Get(ctx, key)
	if errors.Is(err, slotmesh.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// explain says why a lost write is not explained by a cause, or "".
func (s *scenario) explain(a ack, cause string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch cause {
	case "unclean":
		for _, e := range s.events {
			if e.Kind == slotmesh.EventUnclean && e.at.After(a.at) {
				return ""
			}
		}
		return "no event has warned of that"
	case "lag":
		if s.cfg.AckReplicas > 0 {
			return "its shard waits for replicas"
		}
		for _, f := range s.faulty {
			if a.at.After(f.at.Add(-lagMost)) && a.at.Before(f.at.Add(scenarioNT)) {
				return ""
			}
		}
		var all []string
		for _, f := range s.faulty {
			all = append(all, fmt.Sprint(f.what, " at ", f.at.Sub(s.began)))
		}
		return "its primary was hit at no time near: " + strings.Join(all, ", ")
	}
	return "nothing may be"
}
