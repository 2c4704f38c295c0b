package resp

import "fmt"

// There are no functions, and tools that carry them over find none.

// noFunctions is what FUNCTION DUMP answers where there are none: the version of
// the format and a checksum, around nothing.
const noFunctions = "\n\x00]\x9b\\@\x0f\x7f\xa2\xda"

func functionCommand() Command {
	const write = Write | NoScript
	return Command{Name: "function", Arity: -2, Group: "scripting", Since: "7.0.0", Summary: "There are no functions: scripts are sent with EVAL", Complexity: "Depends on subcommand.", Sub: []Command{
		{Name: "delete", Arity: 3, Usage: "<library>", Summary: "Refused.", Flags: write, Conn: func(c *Conn, args [][]byte) error { return Error("ERR Library not found") }},
		{Name: "dump", Arity: 2, Summary: "A payload without functions.", Flags: NoScript, Conn: func(c *Conn, args [][]byte) error {
			c.reply.BulkString(noFunctions)
			return nil
		}},
		{Name: "flush", Arity: -2, Usage: "[ASYNC|SYNC]", Summary: "Accepted.", Flags: write, Conn: functionFlush},
		{Name: "kill", Arity: 2, Summary: "Refused.", Flags: NoScript | AllowBusy, Conn: func(c *Conn, args [][]byte) error {
			return Error("NOTBUSY No scripts in execution right now.")
		}},
		{Name: "list", Arity: -2, Usage: "[LIBRARYNAME <pattern>] [WITHCODE]", Summary: "None.", Flags: NoScript, Conn: functionList},
		{Name: "load", Arity: -3, Usage: "[REPLACE] <code>", Summary: "Refused.", Flags: write | DenyOOM, Conn: func(c *Conn, args [][]byte) error { return errNoFunctions }},
		{Name: "restore", Arity: -3, Usage: "<payload> [FLUSH|APPEND|REPLACE]", Summary: "Takes a payload without functions.", Flags: write | DenyOOM, Conn: functionRestore},
		{Name: "stats", Arity: 2, Summary: "None.", Flags: NoScript | AllowBusy, Conn: functionStats},
	}}
}

const errNoFunctions Error = "ERR This server has no functions: send scripts with EVAL"

func functionFlush(c *Conn, args [][]byte) error {
	if len(args) > 3 {
		return wrongSubcommand("FUNCTION", string(args[1]))
	}
	if len(args) == 3 && !equalFold(args[2], "sync") && !equalFold(args[2], "async") {
		return Error("ERR FUNCTION FLUSH only supports SYNC|ASYNC option")
	}
	return c.ok(nil)
}

func functionList(c *Conn, args [][]byte) error {
	for i := 2; i < len(args); i++ {
		switch {
		case equalFold(args[i], "withcode"):
		case equalFold(args[i], "libraryname") && i+1 < len(args):
			i++
		case equalFold(args[i], "libraryname"):
			return Error("ERR library name argument was not given")
		default:
			return Error(fmt.Sprintf("ERR Unknown argument %s", args[i]))
		}
	}
	c.reply.Array(0)
	return nil
}

// functionRestore takes a payload without functions, of any version: redis-cli
// hands a new node those of the cluster.
func functionRestore(c *Conn, args [][]byte) error {
	if len(args) > 4 {
		return wrongSubcommand("FUNCTION", string(args[1]))
	}
	if len(args) == 4 && !equalFold(args[3], "flush") && !equalFold(args[3], "append") && !equalFold(args[3], "replace") {
		return Error("ERR Wrong restore policy given, value should be either FLUSH, APPEND or REPLACE.")
	}
	switch payload := string(args[2]); {
	case len(payload) < 10:
		return Error("ERR DUMP payload version or checksum are wrong")
	case payload != noFunctions && len(payload) > 10:
		return errNoFunctions
	}
	return c.ok(nil)
}

func functionStats(c *Conn, args [][]byte) error {
	r := &c.reply
	r.Map(2)
	r.BulkString("running_script")
	r.Null()
	r.BulkString("engines")
	r.Map(1)
	r.BulkString("LUA")
	r.Map(2)
	r.BulkString("libraries_count")
	r.Int(0)
	r.BulkString("functions_count")
	r.Int(0)
	return nil
}
