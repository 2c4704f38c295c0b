package compat

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/slotmesh/slotmesh/internal/linear"
	"github.com/stretchr/testify/require"
)

// What clients of processes hear over failovers, checked by porcupine: there is an
// order in which one copy of each key would have answered as it was answered. The
// clients follow MOVED and repeat nothing: libraries repeat what may have happened.

// callers are clients that call and record.
type callers struct {
	linear.History
	t    testing.TB
	all  []*process
	next atomic.Int64 // of values
	open [12]atomic.Int64
	made atomic.Int64
	wg   sync.WaitGroup
	stop atomic.Bool
}

const (
	callTime = time.Second // for a reply
	openMost = 8           // sums of a key of unknown outcome: each doubles what the check has to look at
)

func startCallers(t testing.TB, all []*process, clients int) *callers {
	c := &callers{t: t, all: all}
	for id := range clients {
		c.wg.Go(func() { c.work(id) })
	}
	t.Cleanup(c.end)
	return c
}

func (c *callers) end() {
	c.stop.Store(true)
	c.wg.Wait()
}

// goOn waits for more calls that are answered.
func (c *callers) goOn(more int64) {
	c.t.Helper()
	from := c.made.Load()
	require.Eventually(c.t, func() bool { return c.made.Load() >= from+more }, time.Minute, 5*time.Millisecond, "clients get nowhere")
}

// work calls until it is ended: one half of the keys is set and read, the other
// added to and read.
func (c *callers) work(id int) {
	links := map[string]*link{}
	defer func() {
		for _, l := range links {
			l.close()
		}
	}()
	at := make([]string, len(c.open)) // who has served each key last
	for !c.stop.Load() {
		k := rand.IntN(len(c.open))
		op := linear.Op{Client: id, Key: fmt.Sprint("n", k)}
		words := []string{"GET", op.Key}
		switch sums := k >= len(c.open)/2; {
		case rand.IntN(2) == 0:
		case !sums:
			op.Kind, op.Value = linear.Set, fmt.Sprint("v", c.next.Add(1))
			words = []string{"SET", op.Key, op.Value}
		case c.open[k].Load() < openMost:
			op.Kind, op.Delta = linear.Add, 1+rand.Int64N(9)
			words = []string{"INCRBY", op.Key, strconv.FormatInt(op.Delta, 10)}
		}
		if at[k] == "" {
			at[k] = c.all[rand.IntN(len(c.all))].addr()
		}
		call := c.Begin(op)
		r, by, err := follow(links, at[k], words)
		at[k] = by
		switch {
		case err == nil && !r.isError():
			c.made.Add(1)
			c.End(call, r.text)
		case err == nil && nothingDone(r.text):
			c.Undone(call)
		case op.Kind == linear.Add:
			c.open[k].Add(1)
		}
		if err != nil || r.isError() {
			at[k] = "" // perhaps another one knows more
			time.Sleep(20 * time.Millisecond)
		}
	}
}

// nothingDone reports whether an error says that a command has not happened, and will
// not.
func nothingDone(text string) bool {
	for _, code := range []string{"MOVED ", "CLUSTERDOWN ", "TRYAGAIN ", "NOREPLICAS ", "LOADING "} {
		if strings.HasPrefix(text, code) {
			return true
		}
	}
	return false
}

// follow sends a command to a server, and to whom that refers, and returns who has
// answered last.
func follow(links map[string]*link, addr string, words []string) (r reply, by string, err error) {
	for range 5 {
		l := links[addr]
		if l == nil {
			if l, err = dial(addr); err != nil {
				return reply{kind: '-', text: "CLUSTERDOWN nobody is there"}, addr, nil // nothing was sent
			}
			links[addr] = l
		}
		l.add(words)
		if err = l.flush(); err == nil {
			l.nc.SetReadDeadline(time.Now().Add(callTime))
			r, err = readReply(l.r)
		}
		if err != nil {
			l.close()
			delete(links, addr)
			return r, addr, err
		}
		moved, yes := strings.CutPrefix(r.text, "MOVED ")
		if !r.isError() || !yes {
			return r, addr, nil
		}
		_, addr, _ = strings.Cut(moved, " ")
	}
	return r, addr, nil
}

// check fails unless every key could be one copy.
func (c *callers) check() {
	c.t.Helper()
	model := porcupine.Model{
		Init: func() any { return "" },
		Step: func(state, input, _ any) (bool, any) {
			next, ok := linear.Step(state.(string), input.(linear.Op))
			return ok, next
		},
	}
	calls := 0
	for key, ops := range c.Keys() {
		calls += len(ops)
		var all []porcupine.Operation
		for _, op := range ops {
			all = append(all, porcupine.Operation{ClientId: op.Client, Input: op, Call: op.Began, Return: op.Ended})
		}
		require.Equal(c.t, porcupine.Ok, porcupine.CheckOperationsTimeout(model, all, time.Minute), "%s, %d calls", key, len(ops))
	}
	c.t.Logf("%d calls, %d answered", calls, c.made.Load())
}

// A strict shard whose primary is killed, whose next primary stands still for longer
// than its lease, and that is handed over by hand, in processes: what clients hear is
// what one copy would say.
func TestCallsOverFailoversAreLinearizable(t *testing.T) {
	all := replicatedCluster(t, buildServer(t), "--min-replicas-to-write", "1")
	c := startCallers(t, all, 6)
	primary, replica := shardOf(t, all)
	leads := func(p *process) {
		t.Helper()
		require.Eventually(t, func() bool { return p.info("role") == "master" }, 30*time.Second, 5*time.Millisecond)
		c.goOn(300)
	}
	c.goOn(500)
	primary.kill()
	leads(replica)
	primary.log = lockedBuffer{}
	primary.start()
	primary.linkUp()
	c.goOn(300)

	replica.pause()
	t.Cleanup(replica.resume)
	leads(primary)
	replica.resume()
	require.Eventually(t, func() bool { return replica.info("role") == "slave" }, 30*time.Second, 10*time.Millisecond)
	replica.linkUp()
	c.goOn(300)

	require.Equal(t, "OK", replica.do("CLUSTER", "FAILOVER").text)
	leads(replica)
	primary.linkUp()
	require.Equal(t, "OK", primary.do("CLUSTER", "FAILOVER", "FORCE").text)
	leads(primary)
	c.end()
	c.check()
}
