package resp

import (
	"slices"
	"strings"
)

// withHelp are the subcommands of a command, HELP among them: it tells the others, as
// their rows say.
func (c *Command) withHelp() []Command {
	sub := slices.Clone(c.Sub)
	if len(sub) == 0 || slices.ContainsFunc(sub, func(s Command) bool { return s.Name == "help" }) {
		return sub
	}
	lines := helpLines(sub)
	help := Command{Name: "help", Arity: 2, Flags: Loading | Stale, Conn: func(x *Conn, args [][]byte) error {
		x.reply.help(strings.ToUpper(c.Name), lines...)
		return nil
	}}
	at := slices.IndexFunc(sub, func(s Command) bool { return s.Name > help.Name })
	if at < 0 {
		at = len(sub)
	}
	return slices.Insert(sub, at, help)
}

// helpLines are what HELP says of subcommands: each with its arguments, and what it is
// for. Further ways to call one are further lines of its Usage.
func helpLines(sub []Command) []string {
	var lines []string
	for i := range sub {
		s := &sub[i]
		if s.Summary == "" {
			continue
		}
		for usage := range strings.Lines(s.Usage + "\n") {
			lines = append(lines, strings.TrimSpace(strings.ToUpper(s.Name)+" "+usage))
		}
		for text := range strings.Lines(s.Summary) {
			lines = append(lines, "    "+strings.TrimSpace(text))
		}
	}
	return lines
}
