package resp

import (
	"bytes"
	"fmt"
	"strings"
	"sync/atomic"
)

// Flags say what a command is, in the words of COMMAND.
type Flags uint32

// Flags of a command.
const (
	Write           Flags = 1 << iota // changes keys
	ReadOnly                          // reads keys
	DenyOOM                           // may make the data grow
	AdminFlag                         // for operators
	PubSub                            // of publish and subscribe
	NoScript                          // not from a script
	Blocking                          // may wait
	Loading                           // allowed while data is loaded
	Stale                             // allowed on a replica without its primary
	SkipMonitor                       // not shown in MONITOR
	SkipSlowlog                       // not in the slow log
	Asking                            // runs as if ASKING came before it
	Fast                              // takes constant or logarithmic time
	NoAuth                            // allowed before authentication
	MayReplicate                      // may have effects although it is no write
	NoMulti                           // not inside MULTI
	MovableKeys                       // Keys finds its keys
	AllowBusy                         // allowed while a script runs
	NoAsyncLoading                    // not while data is replaced
	NoMandatoryKeys                   // its keys are optional

	// What COMMAND does not tell.
	Silent   // may have no reply
	AtOnce   // runs inside MULTI, too, and is not queued: of commands without Run
	InPubSub // a connection in RESP2 that listens to channels may call it
	InScript // a script may call it although it has no Run: it touches no key, and does not wait
)

// Command is a row of the table.
type Command struct {
	// Name in lower case, as in "get".
	Name string

	// Arity is the number of arguments, the name among them; a negative one is
	// the least number.
	Arity int

	// Flags say what it does. Write takes the slot's lock alone, ReadOnly shares
	// it.
	Flags Flags

	// First, Last and Step are the positions of the keys among the arguments: 1
	// is the first after the name. A negative Last counts from the end. First 0
	// is a command without keys.
	First, Last, Step int

	// Keys returns the positions of the keys where First, Last and Step do not
	// say it. An error is the reply.
	Keys func(args [][]byte) ([]int, error)

	// Run runs a command with keys, in the Tx of their slot. It computes and
	// does not wait. An error is the reply, and comes before the first write: in
	// MULTI and in scripts, what ran before stays.
	Run func(c *Call) error

	// Conn runs a command of the connection or of the server, which touches no
	// key. It writes one reply to c.Reply, or returns an error, which is the reply.
	// The arguments alias the connection's buffer. It may wait, for as long as
	// c.Context allows; meanwhile nothing is written to the client. A command that
	// has Run too comes here where a call names no keys.
	Conn func(c *Conn, args [][]byte) error

	// Sub is the table of its subcommands, as of CONFIG or CLUSTER. The second
	// argument names one.
	Sub []Command

	// Group, Since, Summary and Complexity are for COMMAND DOCS. The lines of a Summary
	// are lines of HELP, too.
	Group, Since, Summary, Complexity string

	// Usage is the arguments behind the name of a subcommand. HELP, which a command
	// with Sub has by itself, tells it with the Summary; a subcommand without a Summary
	// is left out there.
	Usage string

	// Categories are those of ACL CAT and COMMAND INFO beside the ones that follow from
	// Flags, without @. nil is the Group, if it is one of Redis's categories.
	Categories []string

	// Tips are for clients and proxies, as Redis has them: "nondeterministic_output",
	// "request_policy:all_shards".
	Tips []string

	// KeySpecs say for COMMAND INFO and GETKEYSANDFLAGS how keys are found and used. nil
	// is what follows from First, Last, Step and Flags.
	KeySpecs []KeySpec

	parent   *Command
	stats    *commandStats
	scripted bool // its first argument names a script
	compiles bool // by its text
	placed   bool // names no key, and keeps its place in a transaction among those that do
}

// commandStats count for INFO.
type commandStats struct {
	calls, nanos, rejected, failed atomic.Int64
}

func (s *commandStats) reset() {
	s.calls.Store(0)
	s.nanos.Store(0)
	s.rejected.Store(0)
	s.failed.Store(0)
}

// has reports whether all of f are set.
func (c *Command) has(f Flags) bool { return c.Flags&f == f }

// writes reports whether it may have effects: scripts do although they are no
// writes in the words of COMMAND.
func (c *Command) writes() bool { return c.Flags&(Write|MayReplicate) != 0 && c.Run != nil }

// fullName is "get", or "config|get" for a subcommand.
func (c *Command) fullName() string {
	if c.parent == nil {
		return c.Name
	}
	return c.parent.Name + "|" + c.Name
}

// root is the command itself, or the one that it is a subcommand of.
func (c *Command) root() *Command {
	if c.parent == nil {
		return c
	}
	return c.parent
}

// arityOK reports whether a command takes n arguments, its name among them.
func (c *Command) arityOK(n int) bool {
	if c.Arity < 0 {
		return n >= -c.Arity
	}
	return n == c.Arity
}

// keys appends the positions of the keys of a call to dst.
func (c *Command) keys(dst []int, args [][]byte) ([]int, error) {
	if c.Keys != nil {
		found, err := c.Keys(args)
		return append(dst, found...), err
	}
	if c.First == 0 {
		return dst, nil
	}
	last := c.Last
	if last < 0 {
		last += len(args)
	}
	for i := c.First; i <= last && i < len(args); i += max(1, c.Step) {
		dst = append(dst, i)
	}
	return dst, nil
}

// commandTable finds commands by name.
type commandTable struct {
	byName map[string]*Command // lower case
	all    []*Command          // in the order of the table
}

// newTable indexes commands. A later one takes the place of an earlier one of
// its name, so that an application may replace what the server knows.
func newTable(lists ...[]Command) (*commandTable, error) {
	t := &commandTable{byName: map[string]*Command{}}
	for _, list := range lists {
		seen := map[string]bool{}
		for i := range list {
			c := list[i]
			if err := c.validate(); err != nil {
				return nil, err
			}
			if seen[c.Name] {
				return nil, fmt.Errorf("resp: command %q is there twice, expected each name once", c.Name)
			}
			seen[c.Name] = true
			c.Sub = c.withHelp()
			c.stats = &commandStats{}
			for j := range c.Sub {
				c.Sub[j].parent, c.Sub[j].stats = &c, &commandStats{}
			}
			t.add(&c)
		}
	}
	return t, nil
}

func (t *commandTable) add(c *Command) {
	if old := t.byName[c.Name]; old != nil {
		for i := range t.all {
			if t.all[i] == old {
				t.all[i] = c
			}
		}
	} else {
		t.all = append(t.all, c)
	}
	t.byName[c.Name] = c
}

func (c *Command) validate() error {
	switch {
	case c.Name == "" || c.Name != strings.ToLower(c.Name) || strings.ContainsAny(c.Name, " \r\n|"):
		return fmt.Errorf("resp: command name %q, expected lower case without spaces", c.Name)
	case c.Arity == 0:
		return fmt.Errorf("resp: command %q has arity 0, expected the number of arguments with the name among them, or less than 0 for at least so many", c.Name)
	case c.Run == nil && c.Conn == nil && len(c.Sub) == 0:
		return fmt.Errorf("resp: command %q has neither Run nor Conn nor Sub", c.Name)
	case c.Run != nil && c.First == 0 && c.Keys == nil:
		return fmt.Errorf("resp: command %q has Run and no keys, expected First or Keys", c.Name)
	case c.Run != nil && c.Flags&(Write|ReadOnly|MayReplicate) == 0:
		return fmt.Errorf("resp: command %q has Run, expected one of the flags Write and ReadOnly", c.Name)
	case c.Run != nil && c.Flags&(AtOnce|InScript) != 0:
		return fmt.Errorf("resp: command %q has Run, and one of the flags AtOnce and InScript, which are for Conn alone", c.Name)
	}
	for i := range c.Sub {
		if err := c.Sub[i].validate(); err != nil {
			return fmt.Errorf("%w, as a subcommand of %q", err, c.Name)
		}
	}
	return nil
}

// lookup finds the command of a call, its subcommand where it has some. nil:
// unknown, with the error that says so. It comes with an error where the number
// of arguments is wrong.
func (t *commandTable) lookup(args [][]byte) (*Command, error) {
	c := t.byName[string(args[0])]
	if c == nil {
		var low [32]byte
		if len(args[0]) <= len(low) {
			c = t.byName[string(appendLower(low[:0], args[0]))]
		}
	}
	if c == nil {
		return nil, unknownCommand(args)
	}
	if len(c.Sub) > 0 && len(args) > 1 {
		return c.sub(args)
	}
	if !c.arityOK(len(args)) {
		return c, wrongArity(c)
	}
	return c, nil
}

func (c *Command) sub(args [][]byte) (*Command, error) {
	for i := range c.Sub {
		if s := &c.Sub[i]; equalFold(args[1], s.Name) {
			if !s.arityOK(len(args)) {
				return s, wrongArity(s)
			}
			return s, nil
		}
	}
	return nil, Error(fmt.Sprintf("ERR unknown subcommand '%s'. Try %s HELP.", cut(args[1], 128), strings.ToUpper(c.Name)))
}

func wrongArity(c *Command) error {
	return Error(fmt.Sprintf("ERR wrong number of arguments for '%s' command", c.fullName()))
}

// unknownCommand names the command and the first of its arguments, cut where
// they are long.
func unknownCommand(args [][]byte) error {
	var b strings.Builder
	for _, a := range args[1:] {
		if b.Len() >= 128 {
			break
		}
		fmt.Fprintf(&b, "'%s' ", cut(a, 128-b.Len()))
	}
	return Error(fmt.Sprintf("ERR unknown command '%s', with args beginning with: %s", cut(args[0], 128), b.String()))
}

// cText is an argument as an error quotes it: Redis's formats end at a zero byte.
func cText(arg []byte) []byte {
	text, _, _ := bytes.Cut(arg, []byte{0})
	return text
}

// cut is cText, of n bytes at most.
func cut(arg []byte, n int) []byte {
	text := cText(arg)
	return text[:min(len(text), n)]
}

// appendLower appends an ASCII word in lower case.
func appendLower(dst, word []byte) []byte {
	for _, b := range word {
		if 'A' <= b && b <= 'Z' {
			b += 'a' - 'A'
		}
		dst = append(dst, b)
	}
	return dst
}

// equalFold compares an argument with a word in lower case.
func equalFold(arg []byte, word string) bool {
	if len(arg) != len(word) {
		return false
	}
	for i, b := range arg {
		if 'A' <= b && b <= 'Z' {
			b += 'a' - 'A'
		}
		if b != word[i] {
			return false
		}
	}
	return true
}
