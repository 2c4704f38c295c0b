package resp

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

func clientCommand() Command {
	const flags = NoScript | Loading | Stale
	const admin = AdminFlag | flags
	return Command{Name: "client", Arity: -2, Group: "connection", Since: "2.4.0", Summary: "Look at the connections of clients, and change them", Complexity: "Depends on subcommand.", Sub: []Command{
		{Name: "caching", Arity: 3, Usage: "(YES|NO)", Summary: "What OPTIN and OPTOUT are to do with the next command.", Flags: flags, Conn: clientCaching},
		{Name: "getname", Arity: 2, Summary: "The name of this connection.", Flags: flags, Conn: clientGetName},
		{Name: "getredir", Arity: 2, Summary: "Who is told of what this connection tracks.", Flags: flags, Conn: clientGetRedir},
		{Name: "id", Arity: 2, Summary: "The id of this connection.", Flags: flags, Conn: clientID},
		{Name: "info", Arity: 2, Summary: "This connection, as in LIST.", Flags: flags, Conn: clientInfo},
		{Name: "kill", Arity: -3, Usage: "<ip:port>\n<option> <value> [<option> <value> [...]]", Summary: "Close the connection from there, or every connection that all options fit: ADDR, LADDR, ID, TYPE, USER; and SKIPME.", Flags: admin, Conn: clientKill},
		{Name: "list", Arity: -2, Usage: "[TYPE (NORMAL|MASTER|REPLICA|PUBSUB)] [ID <id> [<id> ...]]", Summary: "All connections, one in a line.", Flags: admin, Conn: clientList},
		{Name: "no-evict", Arity: 3, Usage: "(ON|OFF)", Summary: "Accepted: no connection is evicted here.", Flags: admin, Conn: clientSwitch},
		{Name: "no-touch", Arity: 3, Usage: "(ON|OFF)", Summary: "Accepted: reads do not touch keys here.", Flags: flags, Conn: clientSwitch},
		{Name: "pause", Arity: -3, Usage: "<timeout> [WRITE|ALL]", Summary: "Let commands of all clients, or their writes, wait for so many milliseconds.", Flags: admin, Conn: clientPause},
		{Name: "reply", Arity: 3, Usage: "(ON|OFF|SKIP)", Summary: "Whether this connection gets replies.", Flags: flags | Silent, Conn: clientReply},
		{Name: "setinfo", Arity: 4, Usage: "(LIB-NAME|LIB-VER) <text>", Summary: "Say which library the client uses.", Flags: flags, Conn: clientSetInfo},
		{Name: "setname", Arity: 3, Usage: "<name>", Summary: "Name this connection.", Flags: flags, Conn: clientSetName},
		{Name: "tracking", Arity: -3, Usage: "(ON|OFF) [REDIRECT <id>] [BCAST] [PREFIX <prefix> [...]] [OPTIN] [OPTOUT] [NOLOOP]", Summary: "Be told when keys change that this connection has read.", Flags: flags, Conn: clientTracking},
		{Name: "trackinginfo", Arity: 2, Summary: "What this connection tracks.", Flags: flags, Conn: clientTrackingInfo},
		{Name: "unblock", Arity: -3, Usage: "<id> [TIMEOUT|ERROR]", Summary: "End the wait of a blocked connection.", Flags: admin, Conn: clientUnblock},
		{Name: "unpause", Arity: 2, Summary: "End PAUSE.", Flags: admin, Conn: clientUnpause},
	}}
}

func clientID(c *Conn, args [][]byte) error {
	c.reply.Int(c.id)
	return nil
}

func clientGetName(c *Conn, args [][]byte) error {
	if name := c.name.Load(); name != nil {
		c.reply.BulkString(*name)
	} else {
		c.reply.Null()
	}
	return nil
}

func clientSetName(c *Conn, args [][]byte) error {
	name := string(args[2])
	if !validName(name) {
		return errClientName
	}
	c.setName(name)
	c.reply.Simple("OK")
	return nil
}

// clientSetInfo is of a later Redis than the one that is announced: clients send
// it unasked, and it helps to find them.
func clientSetInfo(c *Conn, args [][]byte) error {
	lib := [2]string{}
	if old := c.lib.Load(); old != nil {
		lib = *old
	}
	value := string(args[3])
	option, at := "lib-name", 0
	switch {
	case equalFold(args[2], "lib-name"):
	case equalFold(args[2], "lib-ver"):
		option, at = "lib-ver", 1
	default:
		return Error(fmt.Sprintf("ERR Unrecognized option '%s'", cText(args[2])))
	}
	if !validName(value) {
		return Error("ERR " + option + " cannot contain spaces, newlines or special characters.")
	}
	lib[at] = value
	c.lib.Store(&lib)
	c.reply.Simple("OK")
	return nil
}

// clientSwitch takes ON and OFF for what has no effect here: no connection is
// evicted, and reads leave no trace at keys.
func clientSwitch(c *Conn, args [][]byte) error {
	if !equalFold(args[2], "on") && !equalFold(args[2], "off") {
		return errSyntax
	}
	c.reply.Simple("OK")
	return nil
}

func clientReply(c *Conn, args [][]byte) error {
	switch {
	case equalFold(args[2], "on"):
		c.noReply = replyOn
		c.reply.Simple("OK")
	case equalFold(args[2], "off"):
		c.noReply = replyOff
	case equalFold(args[2], "skip"):
		if c.noReply == replyOn {
			c.noReply = replySkipNext
		}
	default:
		return errSyntax
	}
	return nil
}

// ---- LIST

func clientInfo(c *Conn, args [][]byte) error {
	c.reply.Verbatim("txt", c.line(time.Now())+"\n")
	return nil
}

func clientList(c *Conn, args [][]byte) error {
	keep := func(*Conn) bool { return true }
	switch rest := args[2:]; {
	case len(rest) == 0:
	case len(rest) == 2 && equalFold(rest[0], "type"):
		kind, err := parseClientType(rest[1])
		if err != nil {
			return err
		}
		keep = kind.has
	case len(rest) > 1 && equalFold(rest[0], "id"):
		ids := map[int64]bool{}
		for _, a := range rest[1:] {
			id, ok := parseInt(a)
			if !ok {
				return Error("ERR Invalid client ID")
			}
			ids[id] = true
		}
		keep = func(x *Conn) bool { return ids[x.id] }
	default:
		return errSyntax
	}
	var b strings.Builder
	now := time.Now()
	for _, x := range c.server.sortedClients() {
		if keep(x) {
			b.WriteString(x.line(now))
			b.WriteByte('\n')
		}
	}
	c.reply.Verbatim("txt", b.String())
	return nil
}

func (s *Server) sortedClients() []*Conn {
	all := s.clients()
	slices.SortFunc(all, func(a, b *Conn) int { return cmp.Compare(a.id, b.id) })
	return all
}

// clientType is a group of clients in the words of CLIENT LIST and KILL.
type clientType uint8

const (
	clientNormal clientType = iota
	clientPubSub
	clientOther // masters and replicas, of which there are none
)

func parseClientType(arg []byte) (clientType, error) {
	switch {
	case equalFold(arg, "normal"):
		return clientNormal, nil
	case equalFold(arg, "pubsub"):
		return clientPubSub, nil
	case equalFold(arg, "master"), equalFold(arg, "replica"), equalFold(arg, "slave"):
		return clientOther, nil
	}
	return 0, Error(fmt.Sprintf("ERR Unknown client type '%s'", cText(arg)))
}

func (t clientType) has(c *Conn) bool {
	switch t {
	case clientNormal:
		return !c.inPubSub()
	case clientPubSub:
		return c.inPubSub()
	}
	return false
}

// line is the connection as CLIENT LIST shows it. It may be called from any
// goroutine. What has no meaning here (buffers of a fixed size, file
// descriptors) is shown as 0 or -1.
func (c *Conn) line(now time.Time) string {
	name, lib, command := "", [2]string{}, "NULL"
	if p := c.name.Load(); p != nil {
		name = *p
	}
	if p := c.lib.Load(); p != nil {
		lib = *p
	}
	if p := c.last.Load(); p != nil {
		command = p.fullName()
	}
	events := "r"
	if c.pushes.waiting() > 0 {
		events = "rw"
	}
	sub, psub, ssub := c.subscribed()
	idle := max(0, now.UnixMilli()-c.lastAt.Load()) / 1000
	return fmt.Sprintf("id=%d addr=%s laddr=%s fd=-1 name=%s age=%d idle=%d flags=%s db=0 sub=%d psub=%d ssub=%d multi=%d qbuf=0 qbuf-free=0 argv-mem=0 multi-mem=0 rbs=0 rbp=0 obl=0 oll=0 omem=%d tot-mem=%d events=%s cmd=%s user=default redir=-1 resp=%d lib-name=%s lib-ver=%s",
		c.id, c.net.RemoteAddr(), c.net.LocalAddr(), name, int64(now.Sub(c.born).Seconds()), idle, c.flags(), sub, psub, ssub,
		c.inMulti.Load()-1, c.pushes.waiting(), c.pushes.waiting(), events, command, c.proto.Load(), lib[0], lib[1])
}

// flags are the letters of CLIENT LIST.
func (c *Conn) flags() string {
	var b []byte
	if c.inPubSub() {
		b = append(b, 'P')
	}
	if c.inMulti.Load() > 0 {
		b = append(b, 'x')
	}
	if c.blocked.Load() != nil {
		b = append(b, 'b')
	}
	if len(b) == 0 {
		return "N"
	}
	return string(b)
}

// subscribed counts what the connection listens to.
func (c *Conn) subscribed() (channels, patterns, sharded int) {
	p := &c.server.pubSub
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(c.subs.channels), len(c.subs.patterns), len(c.subs.sharded)
}

// ---- KILL

// killFilter says which connections to close: those that all of it fits.
type killFilter struct {
	id          int64
	addr, laddr *string
	kind        *clientType
	user        string
	keepSelf    bool
}

func parseKill(args [][]byte) (f killFilter, err error) {
	f.keepSelf = true
	if len(args) == 3 {
		addr := string(args[2])
		return killFilter{addr: &addr}, nil
	}
	for i := 2; i < len(args); i += 2 {
		if i+1 == len(args) {
			return f, errSyntax
		}
		value, text := args[i+1], string(args[i+1])
		switch {
		case equalFold(args[i], "id"):
			id, ok := parseInt(value)
			if !ok || id < 1 {
				return f, Error("ERR client-id should be greater than 0")
			}
			f.id = id
		case equalFold(args[i], "addr"):
			f.addr = &text
		case equalFold(args[i], "laddr"):
			f.laddr = &text
		case equalFold(args[i], "type"):
			kind, err := parseClientType(value)
			if err != nil {
				return f, err
			}
			f.kind = &kind
		case equalFold(args[i], "user"):
			if f.user = string(value); f.user != "default" {
				return f, Error(fmt.Sprintf("ERR No such user '%s'", cText(value)))
			}
		case equalFold(args[i], "skipme") && equalFold(value, "yes"):
			f.keepSelf = true
		case equalFold(args[i], "skipme") && equalFold(value, "no"):
			f.keepSelf = false
		default:
			return f, errSyntax
		}
	}
	return f, nil
}

func (f *killFilter) fits(c *Conn) bool {
	switch {
	case f.id != 0 && f.id != c.id,
		f.addr != nil && *f.addr != c.net.RemoteAddr().String(),
		f.laddr != nil && *f.laddr != c.net.LocalAddr().String(),
		f.kind != nil && !f.kind.has(c):
		return false
	}
	return true
}

func clientKill(c *Conn, args [][]byte) error {
	f, err := parseKill(args)
	if err != nil {
		return err
	}
	killed := 0
	for _, x := range c.server.clients() {
		switch {
		case !f.fits(x), x == c && f.keepSelf:
			continue
		case x == c:
			c.quit = true // once it has heard
		default:
			x.cut()
		}
		killed++
	}
	switch {
	case len(args) > 3:
		c.reply.Int(int64(killed))
	case killed == 0:
		return Error("ERR No such client")
	default:
		c.reply.Simple("OK")
	}
	return nil
}

// ---- PAUSE and UNBLOCK

// pausing is a CLIENT PAUSE that holds.
type pausing struct {
	until time.Time
	all   bool          // not writes alone
	over  chan struct{} // closed by UNPAUSE
}

// pauseState is the pause of a server, nil where there is none.
type pauseState struct{ p atomic.Pointer[pausing] }

// holds reports whether a pause, which may be nil, holds up writes now.
func (p *pausing) holds() bool { return p != nil && time.Now().Before(p.until) }

// begin makes clients wait until a time; a pause that lasts longer, or holds
// more, stays.
func (s *pauseState) begin(until time.Time, all bool) {
	for {
		old := s.p.Load()
		p := &pausing{until: until, all: all, over: make(chan struct{})}
		if old != nil && time.Now().Before(old.until) {
			p.all = all || old.all
			if old.until.After(until) {
				p.until = old.until
			}
		}
		if s.p.CompareAndSwap(old, p) {
			if old != nil {
				close(old.over) // those who wait look again
			}
			return
		}
	}
}

func (s *pauseState) end() {
	if old := s.p.Swap(nil); old != nil {
		close(old.over)
	}
}

// awaitPause waits while a pause holds up a command. Those of operators on
// clients go on: one of them ends it.
func (c *Conn) awaitPause(command *Command) {
	for !c.quit {
		p := c.server.pause.p.Load()
		if p == nil || !p.all && !c.mayWrite(command) || command.root().Name == "client" {
			return
		}
		rest := time.Until(p.until)
		if rest <= 0 {
			return
		}
		_ = c.park(rest, p.over) // UNBLOCK ends no pause
	}
}

// mayWrite reports whether a command may change data.
func (c *Conn) mayWrite(command *Command) bool {
	if command.Name == "exec" {
		return slices.ContainsFunc(c.tx.queue, func(q queued) bool { return q.command.Flags&(Write|MayReplicate) != 0 })
	}
	return !c.tx.open && command.Flags&(Write|MayReplicate) != 0
}

func clientPause(c *Conn, args [][]byte) error {
	all := true
	switch {
	case len(args) > 4:
		return wrongSubcommand("CLIENT", string(args[1]))
	case len(args) < 4:
	case equalFold(args[3], "write"):
		all = false
	case !equalFold(args[3], "all"):
		return Error("ERR CLIENT PAUSE mode must be WRITE or ALL")
	}
	d, err := parseTimeout(args[2])
	if err != nil {
		return err
	}
	c.server.pause.begin(time.Now().Add(d), all)
	c.reply.Simple("OK")
	return nil
}

// parseTimeout reads milliseconds.
func parseTimeout(arg []byte) (time.Duration, error) {
	ms, ok := parseInt(arg)
	switch {
	case !ok || ms > math.MaxInt64/int64(time.Millisecond):
		return 0, Error("ERR timeout is not an integer or out of range")
	case ms < 0:
		return 0, Error("ERR timeout is negative")
	}
	return time.Duration(ms) * time.Millisecond, nil
}

func clientUnpause(c *Conn, args [][]byte) error {
	c.server.pause.end()
	c.reply.Simple("OK")
	return nil
}

func clientUnblock(c *Conn, args [][]byte) error {
	var end error
	switch {
	case len(args) > 4:
		return wrongSubcommand("CLIENT", string(args[1]))
	case len(args) < 4, equalFold(args[3], "timeout"):
	case equalFold(args[3], "error"):
		end = Error("UNBLOCKED client unblocked via CLIENT UNBLOCK")
	default:
		return Error("ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR")
	}
	id, ok := parseInt(args[2])
	if !ok {
		return errNotInteger
	}
	unblocked := int64(0)
	if x := c.server.client(id); x != nil {
		if w := x.blocked.Load(); w != nil {
			select {
			case w.end <- end:
				unblocked = 1
			default: // somebody else has
			}
		}
	}
	c.reply.Int(unblocked)
	return nil
}
