package resp

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"math"
	"time"
)

// Version is the version of Redis that the server announces: clients choose by
// it what they ask for.
const Version = "7.0.15"

const (
	errNotCluster Error = "ERR This instance has cluster support disabled"
	errWrongPass  Error = "WRONGPASS invalid username-password pair or user is disabled."
	errNoPassword Error = "ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?"
	errClientName Error = "ERR Client names cannot contain spaces, newlines or special characters."
)

func connectionCommands() []Command {
	const first = NoScript | Loading | Stale | Fast | NoAuth | AllowBusy
	return []Command{
		{Name: "ping", Arity: -1, Flags: Fast | InPubSub | InScript, Conn: ping, Group: "connection", Since: "1.0.0", Summary: "Answer, to show that the connection works", Complexity: "O(1)"},
		{Name: "echo", Arity: 2, Flags: Loading | Stale | Fast | InScript, Conn: echo, Group: "connection", Since: "1.0.0", Summary: "Return the given text", Complexity: "O(1)"},
		{Name: "select", Arity: 2, Flags: Loading | Stale | Fast | InScript, Conn: selectDB, Group: "connection", Since: "1.0.0", Summary: "Choose the database of the connection: there is only 0", Complexity: "O(1)"},
		{Name: "quit", Arity: -1, Flags: first | AtOnce | InPubSub, Conn: quit, Group: "connection", Since: "1.0.0", Summary: "Close the connection", Complexity: "O(1)"},
		{Name: "reset", Arity: 1, Flags: first | AtOnce | InPubSub, Conn: reset, Group: "connection", Since: "6.2.0", Summary: "Make the connection as it was when it began", Complexity: "O(1)"},
		{Name: "hello", Arity: -1, Flags: first, Conn: hello, Group: "connection", Since: "6.0.0", Summary: "Choose the protocol, log in, and learn about the server", Complexity: "O(1)"},
		{Name: "auth", Arity: -2, Flags: first, Conn: auth, Group: "connection", Since: "1.0.0", Summary: "Log in", Complexity: "O(1)"},
		clientCommand(),
		{Name: "asking", Arity: 1, Flags: Fast, Conn: asking, Group: "cluster", Since: "3.0.0", Summary: "Let the next command into a slot that is being imported: sent after an ASK", Complexity: "O(1)"},
		{Name: "readonly", Arity: 1, Flags: Loading | Stale | Fast, Conn: readOnly, Group: "cluster", Since: "3.0.0", Summary: "Allow reads at a replica", Complexity: "O(1)"},
		{Name: "readwrite", Arity: 1, Flags: Loading | Stale | Fast, Conn: readWrite, Group: "cluster", Since: "3.0.0", Summary: "End READONLY", Complexity: "O(1)"},
	}
}

func ping(c *Conn, args [][]byte) error {
	switch {
	case len(args) > 2:
		return Error("ERR wrong number of arguments for 'ping' command")
	case c.inPubSub() && c.proto.Load() == 2:
		// A subscribed client of RESP2 reads nothing but messages.
		c.reply.Array(2)
		c.reply.BulkString("pong")
		if len(args) == 2 {
			c.reply.Bulk(args[1])
		} else {
			c.reply.BulkString("")
		}
	case len(args) == 2:
		c.reply.Bulk(args[1])
	default:
		c.reply.Simple("PONG")
	}
	return nil
}

func echo(c *Conn, args [][]byte) error {
	c.reply.Bulk(args[1])
	return nil
}

// selectDB takes the one database that a cluster has.
func selectDB(c *Conn, args [][]byte) error {
	n, err := intBetween(args[1], math.MinInt32, math.MaxInt32, "")
	switch {
	case err != nil:
		return err
	case n != 0 && !c.server.cfg.Standalone:
		return Error("ERR SELECT is not allowed in cluster mode")
	case n != 0:
		return Error("ERR DB index is out of range")
	}
	c.reply.Simple("OK")
	return nil
}

func quit(c *Conn, args [][]byte) error {
	c.quit = true
	c.reply.Simple("OK")
	return nil
}

// reset makes the connection as it was when it began.
func reset(c *Conn, args [][]byte) error {
	c.discard()
	c.leavePubSub()
	c.leaveTracking()
	c.asking, c.readOnly, c.noReply = false, false, replyOn
	c.authed = *c.server.settings.password.Load() == ""
	c.reader.setAuthenticated(c.authed)
	if !c.authed {
		c.awaitLogin(time.Now())
	}
	c.name.Store(nil)
	c.setProto(2)
	c.reply.Simple("RESET")
	return nil
}

func asking(c *Conn, args [][]byte) error {
	if c.server.cfg.Standalone {
		return errNotCluster
	}
	c.asking = true
	c.reply.Simple("OK")
	return nil
}

func readOnly(c *Conn, args [][]byte) error { return c.setReadOnly(true) }

func readWrite(c *Conn, args [][]byte) error { return c.setReadOnly(false) }

func (c *Conn) setReadOnly(yes bool) error {
	if c.server.cfg.Standalone {
		return errNotCluster
	}
	c.readOnly = yes
	c.reply.Simple("OK")
	return nil
}

func auth(c *Conn, args [][]byte) error {
	user, password := []byte("default"), args[1]
	switch {
	case len(args) > 3:
		return errSyntax
	case len(args) == 3:
		user, password = args[1], args[2]
	case *c.server.settings.password.Load() == "":
		return errNoPassword
	}
	if err := c.logIn(user, password); err != nil {
		return err
	}
	c.reply.Simple("OK")
	return nil
}

// logIn checks user and password. Without a password everybody is the default
// user, whatever password is given.
func (c *Conn) logIn(user, password []byte) error {
	want := *c.server.settings.password.Load()
	if string(user) != "default" || want != "" && !samePassword(password, want) {
		return errWrongPass
	}
	if !c.authed {
		c.authed = true
		c.reader.setAuthenticated(true)
		c.net.SetReadDeadline(time.Time{})
	}
	return nil
}

// samePassword takes a time that says nothing of the password.
func samePassword(given []byte, want string) bool {
	a, b := sha256.Sum256(given), sha256.Sum256([]byte(want))
	return subtle.ConstantTimeCompare(a[:], b[:]) == 1
}

// hello obeys its options one after the other, so that those before a wrong one
// have been obeyed.
func hello(c *Conn, args [][]byte) error {
	proto := int(c.proto.Load())
	if len(args) > 1 {
		version, ok := parseInt(args[1])
		switch {
		case !ok:
			return Error("ERR Protocol version is not an integer or out of range")
		case version < 2 || version > 3:
			return Error("NOPROTO unsupported protocol version")
		}
		proto = int(version)
	}
	for i := 2; i < len(args); i++ {
		switch rest := len(args) - i - 1; {
		case equalFold(args[i], "auth") && rest >= 2:
			if err := c.logIn(args[i+1], args[i+2]); err != nil {
				return err
			}
			i += 2
		case equalFold(args[i], "setname") && rest >= 1:
			name := string(args[i+1])
			if !validName(name) {
				return errClientName
			}
			c.setName(name)
			i++
		default:
			return Error(fmt.Sprintf("ERR Syntax error in HELLO option '%s'", cText(args[i])))
		}
	}
	if !c.authed {
		return Error("NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol version at the same time")
	}
	c.setProto(proto)
	r := &c.reply
	r.Map(7)
	r.BulkString("server")
	r.BulkString("redis")
	r.BulkString("version")
	r.BulkString(Version)
	r.BulkString("proto")
	r.Int(int64(proto))
	r.BulkString("id")
	r.Int(c.id)
	r.BulkString("mode")
	r.BulkString(c.server.mode())
	r.BulkString("role")
	r.BulkString(c.server.role())
	r.BulkString("modules")
	r.Array(0)
	return nil
}

// mode is what INFO and HELLO call the server.
func (s *Server) mode() string {
	if s.cfg.Standalone {
		return "standalone"
	}
	return "cluster"
}

// validName reports whether a client may be called so: CLIENT LIST separates its
// fields by spaces.
func validName(name string) bool {
	for i := range len(name) {
		if name[i] < '!' || name[i] > '~' {
			return false
		}
	}
	return true
}

// setName names the connection; the empty name takes the name away.
func (c *Conn) setName(name string) {
	if name == "" {
		c.name.Store(nil)
		return
	}
	c.name.Store(&name)
}

// park waits without keeping others from writing to the client: until over
// delivers, until CLIENT UNBLOCK, for at most d (0: for ever), or until the
// client goes. The error is what UNBLOCK ERROR says. In EXEC nobody waits.
func (c *Conn) park(d time.Duration, over <-chan struct{}) error {
	if c.inExec || c.flush() != nil {
		return nil
	}
	w := &waiter{changed: make(chan struct{}, 1), end: make(chan error, 1), since: time.Now()}
	c.blocked.Store(w)
	defer c.blocked.Store(nil)
	stop := c.socket.readAhead(c.cancel)
	defer c.beginBatch()
	defer stop()
	var timeout <-chan time.Time
	if d > 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		timeout = t.C
	}
	select {
	case <-over:
	case <-timeout:
	case err := <-w.end:
		return err
	case <-c.ctx.Done():
		c.quit = true
	}
	return nil
}

// wrongSubcommand is what a subcommand answers that was given too much.
func wrongSubcommand(parent, name string) error {
	return Error(fmt.Sprintf("ERR unknown subcommand or wrong number of arguments for '%s'. Try %s HELP.", name, parent))
}
