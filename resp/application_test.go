package resp

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// applicationCommands are commands that say all that a row of the table can say.
func applicationCommands() []Command {
	answer := func(text string) func(*Conn, [][]byte) error {
		return func(c *Conn, args [][]byte) error {
			c.Reply().Simple(text)
			return nil
		}
	}
	return []Command{
		{Name: "app.move", Arity: -4, Flags: Write, First: 1, Last: 2, Step: 1, Group: "list", Since: "1.0.0", Summary: "Move some", Complexity: "O(N)",
			Categories: []string{"list", "keyspace"}, Tips: []string{"nondeterministic_output"},
			KeySpecs: []KeySpec{{Flags: []string{"RW", "access", "delete"}, Index: 1}, {Flags: []string{"OW", "insert"}, Keyword: "TO", From: 1, Step: 2}},
			Run:      func(c *Call) error { c.Reply.Int(1); return nil }},
		{Name: "app.peek", Arity: 2, Flags: ReadOnly | Fast, First: 1, Last: 1, Run: func(c *Call) error { c.Reply.Int(2); return nil }},
		{Name: "app.now", Arity: 1, Flags: Fast | AtOnce | InPubSub | InScript, Conn: answer("now")},
		{Name: "app.later", Arity: 1, Conn: answer("later")},
		{Name: "app.mute", Arity: 1, Flags: Silent, Conn: func(*Conn, [][]byte) error { return nil }},
		{Name: "app.dumb", Arity: 1, Conn: func(*Conn, [][]byte) error { return nil }},
		{Name: "app", Arity: -2, Group: "connection", Sub: []Command{
			{Name: "zoom", Arity: -2, Usage: "<factor>\nOUT", Summary: "Look closer.", Conn: answer("zoom")},
			{Name: "about", Arity: 2, Summary: "Who this is.", Conn: answer("about")},
			{Name: "secret", Arity: 2, Conn: answer("secret")},
		}},
	}
}

// What an application says of its commands is told as Redis's own are, and holds.
func TestWhatAnApplicationSaysOfItsCommands(t *testing.T) {
	s := startServer(t, func(cfg *Config) { cfg.Commands = applicationCommands() })
	c := dial(t, s)
	c.check([][2]string{
		{"COMMAND INFO app.move", "[[app.move -4 [write] 1 2 1 [@keyspace @write @list @slow] [nondeterministic_output] " +
			"[[flags [RW access delete] begin_search [type index spec [index 1]] find_keys [type range spec [lastkey 0 keystep 1 limit 0]]] " +
			"[flags [OW insert] begin_search [type keyword spec [keyword TO startfrom 1]] find_keys [type range spec [lastkey 0 keystep 2 limit 0]]]] []]]"},
		{"COMMAND INFO app.peek", "[[app.peek 2 [readonly fast] 1 1 0 [@read @fast] [] " +
			"[[flags [RO access] begin_search [type index spec [index 1]] find_keys [type range spec [lastkey 0 keystep 1 limit 0]]]] []]]"},
		{"COMMAND INFO app.now", "[[app.now 1 [fast] 0 0 0 [@fast] [] [] []]]"},
		{"COMMAND DOCS app.move", "[app.move [summary Move some since 1.0.0 group list complexity O(N)]]"},
		{"COMMAND GETKEYS app.move a b x", "[a b]"},
	}...)
	require.Contains(t, c.do("COMMAND LIST FILTERBY ACLCAT keyspace"), "app.move")
	c.check([][2]string{
		{"COMMAND GETKEYSANDFLAGS app.move a b x", "[[a [RW access delete]] [b []]]"},
		{"APP HELP", "[APP <subcommand> [<arg> [value] [opt] ...]. Subcommands are: ZOOM <factor> ZOOM OUT     Look closer. ABOUT     Who this is. HELP     Prints this help.]"},
		{"COMMAND INFO app|help", "[[app|help 2 [loading stale] 0 0 0 [@slow @connection] [] [] []]]"},
		{"APP SECRET", "secret"},
		{"APP.DUMB", "ERR the command 'app.dumb' has written no reply"},
		// MULTI
		{"MULTI", "OK"}, {"APP.LATER", "QUEUED"}, {"APP.NOW", "now"}, {"EXEC", "[later]"},
		// scripts
		{"EVAL return(redis.call('app.now').ok) 0", "now"},
	}...)
	require.Contains(t, c.do("EVAL return(redis.call('app.later').ok) 0"), "This Redis command is not allowed from script")
	// No reply is no error where the row says so: the next one is that of the next command.
	c.send("APP.MUTE")
	c.check([2]string{"PING", "PONG"})
	// Pub/sub mode of RESP2
	c.check([][2]string{{"SUBSCRIBE news", "[subscribe news 1]"}, {"APP.NOW", "now"}}...)
	require.Contains(t, c.do("APP.LATER"), "ERR Can't execute 'app.later'")
}

func TestRowsThatContradictThemselves(t *testing.T) {
	run := func(*Call) error { return nil }
	for _, flags := range []Flags{AtOnce, InScript} {
		_, err := newTable([]Command{{Name: "x", Arity: 2, Flags: Write | flags, First: 1, Last: 1, Run: run}})
		require.ErrorContains(t, err, "which are for Conn alone")
	}
}

// Every subcommand that HELP is to tell of is told of, in the words of its row.
func TestHelpComesFromTheTable(t *testing.T) {
	s := startServer(t)
	c := dial(t, s)
	for _, command := range s.table.all {
		if len(command.Sub) == 0 {
			continue
		}
		help := c.do(command.Name + " HELP")
		told := 0
		for i := range command.Sub {
			if sub := &command.Sub[i]; sub.Summary != "" {
				require.Contains(t, help, strings.ToUpper(sub.Name), command.Name)
				require.Contains(t, strings.Join(strings.Fields(help), " "), strings.Join(strings.Fields(sub.Summary), " "), command.Name)
				told++
			}
		}
		require.Positive(t, told, command.Name)
	}
}
