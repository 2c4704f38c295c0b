//go:build unix

package slotmesh

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What happens to a process as a whole, as a signal does it, needs one.

const processNode = "SLOTMESH_TEST_NODE" // the config of a node that this process is to be

// TestProcessNode is no test: it is a node in a process of its own, which ends with
// its standard input. "failover" there makes it a primary.
func TestProcessNode(t *testing.T) {
	config := strings.Fields(os.Getenv(processNode))
	if len(config) == 0 {
		t.Skip("the other tests of this file run it in processes of their own, which " + processNode + " makes nodes")
	}
	n := startNode(t, Config{Addr: config[0], Seeds: config[1:], Primaries: 1, Replicas: len(config) - 2, NodeTimeout: processTimeout})
	isReady(t, n)
	fmt.Println("ready", n.ID())
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		if in.Text() == "failover" {
			fmt.Println("failover", n.Admin().Failover(t.Context(), FailoverPlain))
		}
	}
}

const processTimeout = time.Second

// process is a node in a process of its own.
type process struct {
	cmd *exec.Cmd
	id  NodeID
	say func(line string)
	out *bufio.Scanner
}

func startProcess(t *testing.T, addr string, seeds []string) *process {
	cmd := exec.Command(os.Args[0], "-test.run=^TestProcessNode$")
	cmd.Env = append(os.Environ(), processNode+"="+strings.Join(append([]string{addr}, seeds...), " "))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	p := &process{cmd: cmd, out: bufio.NewScanner(out), say: func(line string) { fmt.Fprintln(in, line) }}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGCONT)
		in.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return p
}

// stop returns once no thread of the process runs any more: it may answer until then.
func (p *process) stop(t *testing.T) {
	t.Helper()
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGSTOP))
	for {
		var status syscall.WaitStatus
		_, err := syscall.Wait4(p.cmd.Process.Pid, &status, syscall.WUNTRACED, nil)
		if err == syscall.EINTR {
			continue
		}
		require.NoError(t, err)
		require.True(t, status.Stopped(), "the process has ended")
		return
	}
}

// hear waits for a line that begins with a word, and returns the rest.
func (p *process) hear(t *testing.T, word string) string {
	t.Helper()
	for p.out.Scan() {
		if rest, ok := strings.CutPrefix(p.out.Text(), word+" "); ok {
			return rest
		}
	}
	t.Fatalf("the process has ended before it said %q", word)
	return ""
}

// A primary that stands still past its lease, with requests waiting at its door,
// acknowledges none of them when it goes on: another one has led meanwhile.
func TestAPrimaryThatWasStoppedAcknowledgesNothing(t *testing.T) {
	seeds := freeAddrs(t, 3)
	p := startProcess(t, seeds[0], seeds)
	var nodes []*node
	for _, at := range seeds[1:] {
		nodes = append(nodes, startNode(t, Config{Addr: at, Seeds: seeds, Primaries: 1, Replicas: 2, NodeTimeout: processTimeout}))
	}
	for _, n := range nodes {
		isReady(t, n)
	}
	var err error
	p.id, err = ParseNodeID(p.hear(t, "ready"))
	require.NoError(t, err)
	until(t, time.Minute, "the process leads", func() bool {
		p.say("failover")
		t.Log("failover:", p.hear(t, "failover"))
		return nodes[0].Table().Slots(p.id) != (SlotSet{})
	})
	c := nodes[0].Client()
	until(t, time.Minute, "the first write", func() bool { return c.Set(t.Context(), "n", []byte("0")) == nil })
	p.stop(t)

	const calls = 50
	var wg sync.WaitGroup
	var mu sync.Mutex
	done, unknown := 0, 0
	for range calls {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			_, err := c.Incr(ctx, "n", 1)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				done++
			} else {
				unknown++
			}
		})
	}
	leaderOf(t, time.Minute, nodes...)
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGCONT))
	wg.Wait()
	leader := leaderOf(t, time.Minute, nodes...)
	until(t, time.Minute, "the one that was stopped follows", func() bool {
		for _, r := range leader.Status().Replication.Replicas {
			if r.Node == p.id && r.Link == LinkUp {
				return true
			}
		}
		return false
	})
	v, err := leader.Client().Get(t.Context(), "n")
	require.NoError(t, err)
	n, err := strconv.Atoi(string(v))
	require.NoError(t, err)
	t.Logf("%d done, %d unknown, %d counted", done, unknown, n)
	require.GreaterOrEqual(t, n, done)
	require.LessOrEqual(t, n, done+unknown)
}
