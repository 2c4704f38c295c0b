package slotmesh

import (
	"testing"
	"time"
)

// What tests from outside need of the inside.

// StallForTest keeps a node's run loop from running, as a process that is stopped,
// until the function that it returns is called. What needs no run loop goes on.
func StallForTest(t *testing.T, n Node) (goOn func()) {
	t.Helper()
	stalled, over := make(chan struct{}), make(chan struct{})
	go func() {
		_ = n.(*node).post(t.Context(), func(s *state, now time.Duration) output {
			close(stalled)
			<-over
			s.begin(now)
			return s.end()
		})
	}()
	<-stalled
	return func() { close(over) }
}

// ContentsForTest is all that a node's store holds, and LogForTest where its log ends.
func ContentsForTest(t *testing.T, n Node) map[string]string { return contents(t, n.(*node)) }

// LogForTest is where the log of a node ends.
func LogForTest(n Node) any { return n.(*node).repl.position() }

// CopyForTest names the store of a node: another name, another copy.
func CopyForTest(n Node) uint64 { return n.(*node).repl.facts.Load().store }
