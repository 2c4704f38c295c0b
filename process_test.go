//go:build unix

package slotmesh

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
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
	n := startNode(t, processConfig(config[0], config[1:]))
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

// processConfig is that of a node of one shard that the seeds are the members of.
func processConfig(addr string, seeds []string) Config {
	return Config{Addr: addr, Seeds: seeds, Primaries: 1, Replicas: len(seeds) - 1, NodeTimeout: processTimeout}
}

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

// queue is a connection to a node on which requests wait that nobody reads.
type queue struct {
	n    *node
	conn net.Conn
	sent int
}

func openQueue(t *testing.T, n *node, to NodeInfo) *queue {
	t.Helper()
	conn, _, err := n.dialNode(t.Context(), dest{wanted: wanted{ID: to.ID}, addr: to.Addr}, n.who.Load(), roleData)
	require.NoError(t, err)
	t.Cleanup(func() { n.hangUp(conn) })
	return &queue{n: n, conn: conn}
}

// add sends requests that add to a key, at once: more than the first are on their way
// when the first is read.
func (q *queue) add(t *testing.T, key string, requests int) {
	t.Helper()
	var b []byte
	for range requests {
		q.sent++
		r := request{id: uint64(q.sent), cluster: clusterTag(q.n.who.Load()), op: opIncr, slot: KeySlot(key), args: [][]byte{[]byte(key), []byte("1")}}
		b = appendFrameOf(b, frameRequest, r.append)
	}
	_, err := q.conn.Write(b)
	require.NoError(t, err)
}

// answers are what has been answered to each.
func (q *queue) answers(t *testing.T) (all []*response) {
	t.Helper()
	require.NoError(t, q.conn.SetReadDeadline(time.Now().Add(time.Minute)))
	for in := bufio.NewReader(q.conn); len(all) < q.sent; {
		kind, payload, _, err := nextFrame(in, q.n.replyLimits)
		require.NoError(t, err, "after %d of %d answers", len(all), q.sent)
		require.Equal(t, frameReply, kind)
		p, err := decodeResponse(payload)
		require.NoError(t, err)
		all = append(all, &p)
	}
	return all
}

// A primary that stands still past its lease, with requests waiting at its door,
// acknowledges none of them when it goes on: another one has led meanwhile. Calls of
// clients go on at that one, and none is done twice.
func TestAPrimaryThatWasStoppedAcknowledgesNothing(t *testing.T) {
	seeds := freeAddrs(t, 3)
	p := startProcess(t, seeds[0], seeds)
	var nodes []*node
	for _, at := range seeds[1:] {
		nodes = append(nodes, startNode(t, processConfig(at, seeds)))
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
	owner, _ := nodes[0].Table().Owner(KeySlot("queued"))
	require.Equal(t, p.id, owner.ID)
	var queues []*queue
	for _, n := range nodes {
		q := openQueue(t, n, owner)
		q.add(t, "open", 1) // it serves
		require.Equal(t, statusOK, q.answers(t)[0].status)
		queues = append(queues, q)
	}
	p.stop(t)
	for _, q := range queues {
		q.sent = 0
		q.add(t, "queued", 50)
	}

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
	said := map[string]int{}
	for _, q := range queues {
		for _, a := range q.answers(t) {
			require.NotEqual(t, statusOK, a.status, "acknowledged: %s", a.value)
			require.NotEqual(t, Executed, a.outcome, "%s", a.text)
			said[fmt.Sprintf("%v: %v", a.outcome, a.error(KeySlot("queued")))]++
		}
	}
	t.Logf("what was queued is answered: %v", said)
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
	_, err = leader.Client().Get(t.Context(), "queued")
	require.ErrorIs(t, err, ErrNotFound, "what it has not acknowledged is gone")
	v, err := leader.Client().Get(t.Context(), "n")
	require.NoError(t, err)
	n, err := strconv.Atoi(string(v))
	require.NoError(t, err)
	t.Logf("%d done, %d unknown, %d counted", done, unknown, n)
	require.GreaterOrEqual(t, n, done)
	require.LessOrEqual(t, n, done+unknown)
}

// leadsHere makes a node the primary of its cluster's one shard.
func leadsHere(t *testing.T, n *node) {
	t.Helper()
	until(t, time.Minute, "this node leads", func() bool {
		_ = n.Admin().Failover(t.Context(), FailoverPlain) // refused where it leads already
		return n.Status().Replication.Leads && n.Client().Set(t.Context(), "x", []byte("1")) == nil
	})
}

// A replica whose process is killed is rebuilt in the process of a spare node.
func TestALostProcessIsRebuiltFromASpare(t *testing.T) {
	addrs := freeAddrs(t, 3)
	seeds := addrs[:2]
	p := startProcess(t, seeds[1], seeds)
	n := startNode(t, processConfig(seeds[0], seeds))
	isReady(t, n)
	id, err := ParseNodeID(p.hear(t, "ready"))
	require.NoError(t, err)
	leadsHere(t, n)
	until(t, time.Minute, "the replica is in sync", func() bool { return slices.Contains(n.Status().Replication.InSync, id) })
	spare := startProcess(t, addrs[2], seeds)
	spare.id, err = ParseNodeID(spare.hear(t, "ready"))
	require.NoError(t, err)
	until(t, time.Minute, "three voters", func() bool { return len(n.Status().Voters) == 3 }) // so that one may be lost
	require.NoError(t, p.cmd.Process.Kill())
	until(t, time.Minute, "the spare is in sync", func() bool {
		in := n.Status().Replication.InSync
		return slices.Contains(in, spare.id) && !slices.Contains(in, id)
	})
}

// Two of three processes are killed, and with them the majority of the voters: the third
// one acknowledges nothing, and says why, until an operator imposes it as the only voter.
func TestForceVotersBringsBackAProcessThatIsAlone(t *testing.T) {
	seeds := freeAddrs(t, 3)
	others := []*process{startProcess(t, seeds[1], seeds), startProcess(t, seeds[2], seeds)}
	n := startNode(t, processConfig(seeds[0], seeds))
	isReady(t, n)
	for _, p := range others {
		p.hear(t, "ready")
	}
	leadsHere(t, n)
	until(t, time.Minute, "all vote, and are in sync", func() bool {
		s := n.Status()
		return len(s.Voters) == 3 && len(s.Replication.InSync) == 3
	})
	require.NoError(t, n.Client().WithAckReplicas(2).Set(t.Context(), "x", []byte("2")))
	for _, p := range others {
		require.NoError(t, p.cmd.Process.Kill())
	}
	until(t, time.Minute, "it says why nothing is served", func() bool {
		s := n.Status()
		return !s.OK && strings.Contains(s.Reason, "majority")
	})
	for limit := time.Now().Add(2 * processTimeout); time.Now().Before(limit); {
		ctx, cancel := context.WithTimeout(t.Context(), processTimeout/10)
		require.Error(t, n.Client().Set(ctx, "x", []byte("3")), "acknowledged without a majority")
		cancel()
	}
	events := n.Events(t.Context(), 1000)
	require.NoError(t, n.Admin().ForceVoters(t.Context(), []NodeID{n.ID()}))
	until(t, time.Minute, "it serves again", func() bool { return n.Client().Set(t.Context(), "y", []byte("1")) == nil })
	v, err := n.Client().Get(t.Context(), "x")
	require.NoError(t, err)
	require.Equal(t, "2", string(v))
	until(t, time.Minute, "it is told what that may lose", func() bool {
		select {
		case e := <-events:
			return e.Kind == EventUnclean
		default:
			return false
		}
	})
}
