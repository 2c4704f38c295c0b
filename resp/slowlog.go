package resp

import (
	"fmt"
	"sync"
	"time"
)

// slowLog is the commands that took long, the newest first to be told. It holds
// slowlog-max-len of them; at the bound the oldest is dropped.
type slowLog struct {
	mu      sync.Mutex
	entries []slowEntry // guarded by mu: the oldest first
	next    int64       // guarded by mu: id of the next one
}

type slowEntry struct {
	id   int64
	at   time.Time
	took time.Duration
	args []string
	addr string
	name string
}

const (
	slowArgs     = 32  // arguments that are kept; of more the last one tells how many
	slowArgBytes = 128 // of each
)

// add keeps a command. The arguments are copied, as far as they are kept.
func (l *slowLog) add(c *Conn, args [][]byte, took time.Duration, most int64) {
	e := slowEntry{at: time.Now(), took: took, addr: c.net.RemoteAddr().String()}
	if name := c.name.Load(); name != nil {
		e.name = *name
	}
	for i, a := range args {
		if i == slowArgs-1 && len(args) > slowArgs {
			e.args = append(e.args, fmt.Sprintf("... (%d more arguments)", len(args)-i))
			break
		}
		text := string(a[:min(len(a), slowArgBytes)])
		if len(a) > slowArgBytes {
			text += fmt.Sprintf("... (%d more bytes)", len(a)-slowArgBytes)
		}
		e.args = append(e.args, text)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	e.id = l.next
	l.next++
	l.entries = append(l.entries, e)
	if over := len(l.entries) - int(min(most, 1<<20)); over > 0 {
		l.entries = append([]slowEntry(nil), l.entries[over:]...)
	}
}

// newest are at most n entries, the newest first; n below 0: all.
func (l *slowLog) newest(n int) []slowEntry {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n < 0 || n > len(l.entries) {
		n = len(l.entries)
	}
	out := make([]slowEntry, n)
	for i := range out {
		out[i] = l.entries[len(l.entries)-1-i]
	}
	return out
}

func slowLogCommand() Command {
	const flags = AdminFlag | Loading | Stale
	return Command{Name: "slowlog", Arity: -2, Group: "server", Since: "2.2.12", Summary: "Look at the commands that took long", Complexity: "Depends on subcommand.", Sub: []Command{
		{Name: "get", Arity: -2, Usage: "[<count>]", Summary: "The newest commands that took long: id, time, microseconds, arguments, address and name of the client.", Flags: flags, Conn: slowLogGet},
		{Name: "len", Arity: 2, Summary: "How many are kept.", Flags: flags, Conn: slowLogLen},
		{Name: "reset", Arity: 2, Summary: "Forget them.", Flags: flags, Conn: slowLogReset},
	}}
}

func slowLogGet(c *Conn, args [][]byte) error {
	n := int64(10)
	if len(args) > 3 {
		return wrongSubcommand("SLOWLOG", string(args[1]))
	}
	if len(args) == 3 {
		var ok bool
		if n, ok = parseInt(args[2]); !ok || n < -1 {
			return Error("ERR count should be greater than or equal to -1")
		}
	}
	entries := c.server.slow.newest(int(min(n, 1<<30)))
	r := &c.reply
	r.Array(len(entries))
	for _, e := range entries {
		r.Array(6)
		r.Int(e.id)
		r.Int(e.at.Unix())
		r.Int(e.took.Microseconds())
		r.Array(len(e.args))
		for _, a := range e.args {
			r.BulkString(a)
		}
		r.BulkString(e.addr)
		r.BulkString(e.name)
	}
	return nil
}

func slowLogLen(c *Conn, args [][]byte) error {
	c.reply.Int(int64(len(c.server.slow.newest(-1))))
	return nil
}

func slowLogReset(c *Conn, args [][]byte) error {
	c.server.slow.mu.Lock()
	c.server.slow.entries = nil
	c.server.slow.mu.Unlock()
	return c.ok(nil)
}
