package resp

import "fmt"

// No latency is measured, so LATENCY has nothing to tell.

func latencyCommand() Command {
	const flags = AdminFlag | NoScript | Loading | Stale
	empty := func(c *Conn, args [][]byte) error {
		c.reply.Array(0)
		return nil
	}
	return Command{Name: "latency", Arity: -2, Group: "server", Since: "2.8.13", Summary: "No latency is watched", Complexity: "Depends on subcommand.", Sub: []Command{
		{Name: "doctor", Arity: 2, Summary: "Where to look.", Flags: flags, Conn: func(c *Conn, args [][]byte) error {
			c.reply.Verbatim("txt", "No latency is watched here. SLOWLOG GET shows the commands that took long.\n")
			return nil
		}},
		{Name: "graph", Arity: 3, Usage: "<event>", Summary: "Nothing.", Flags: flags, Conn: func(c *Conn, args [][]byte) error {
			return Error(fmt.Sprintf("ERR No samples available for event '%s'", cText(args[2])))
		}},
		{Name: "histogram", Arity: -2, Usage: "[<command> ...]", Summary: "Nothing.", Flags: flags, Conn: func(c *Conn, args [][]byte) error {
			c.reply.Map(0)
			return nil
		}},
		{Name: "history", Arity: 3, Usage: "<event>", Summary: "Nothing.", Flags: flags, Conn: empty},
		{Name: "latest", Arity: 2, Summary: "Nothing.", Flags: flags, Conn: empty},
		{Name: "reset", Arity: -2, Usage: "[<event> ...]", Summary: "Nothing.", Flags: flags, Conn: func(c *Conn, args [][]byte) error {
			c.reply.Int(0)
			return nil
		}},
	}}
}
