package resp

import (
	"fmt"
	"slices"
	"strings"
)

// Everybody is the one user that there is.

func aclCommand() Command {
	const flags = NoScript | Loading | Stale
	return Command{Name: "acl", Arity: -2, Group: "server", Since: "6.0.0", Summary: "There is one user, default, who may do everything", Complexity: "Depends on subcommand.", Sub: []Command{
		{Name: "cat", Arity: -2, Usage: "[<category>]", Summary: "The categories, or the commands of one.", Flags: flags, Conn: aclCat},
		{Name: "list", Arity: 2, Summary: "The user.", Flags: AdminFlag | flags, Conn: func(c *Conn, args [][]byte) error {
			pass := "nopass"
			if *c.server.settings.password.Load() != "" {
				pass = "#*"
			}
			c.reply.Array(1)
			c.reply.BulkString("user default on " + pass + " ~* &* +@all")
			return nil
		}},
		{Name: "users", Arity: 2, Summary: "The name of the user.", Flags: AdminFlag | flags, Conn: func(c *Conn, args [][]byte) error {
			c.reply.Array(1)
			c.reply.BulkString("default")
			return nil
		}},
		{Name: "whoami", Arity: 2, Summary: "The user of this connection.", Flags: flags, Conn: func(c *Conn, args [][]byte) error {
			c.reply.BulkString("default")
			return nil
		}},
	}}
}

func aclCat(c *Conn, args [][]byte) error {
	if len(args) > 3 {
		return wrongSubcommand("ACL", string(args[1]))
	}
	names := aclCategories()
	if len(args) == 3 {
		want := strings.ToLower(string(args[2]))
		if !slices.Contains(names, want) {
			return Error(fmt.Sprintf("ERR Unknown category '%s'", cut(args[2], 128)))
		}
		names = c.server.table.inCategory(want)
	}
	c.reply.Array(len(names))
	for _, n := range names {
		c.reply.BulkString(n)
	}
	return nil
}
