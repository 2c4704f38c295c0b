package resp

import (
	"slices"
	"strconv"
	"strings"
)

// COMMAND: the table of commands, for clients that route by it.

func commandCommand() Command {
	const flags = Loading | Stale
	return Command{Name: "command", Arity: -1, Flags: flags, Conn: commandAll, Group: "server", Since: "2.8.13", Summary: "Tell about the commands", Complexity: "O(N) where N is the total number of commands", Sub: []Command{
		{Name: "count", Arity: 2, Summary: "How many commands there are.", Flags: flags, Conn: commandCount},
		{Name: "docs", Arity: -2, Usage: "[<command> ...]", Summary: "What commands are for.", Flags: flags, Conn: commandDocs},
		{Name: "getkeys", Arity: -4, Usage: "<command> [<arg> ...]", Summary: "The keys of a call.", Flags: flags, Conn: commandGetKeys},
		{Name: "getkeysandflags", Arity: -4, Usage: "<command> [<arg> ...]", Summary: "The same, and what is done with each.", Flags: flags, Conn: commandGetKeysAndFlags},
		{Name: "info", Arity: -2, Usage: "[<command> ...]", Summary: "Arity, flags, places of the keys.", Flags: flags, Conn: commandInfo},
		{Name: "list", Arity: -2, Usage: "[FILTERBY (ACLCAT <category>|PATTERN <pattern>|MODULE <name>)]", Summary: "Names of commands.", Flags: flags, Conn: commandList},
	}}
}

func commandCount(c *Conn, args [][]byte) error {
	c.reply.Int(int64(len(c.server.table.all)))
	return nil
}

// commandAll is COMMAND alone.
func commandAll(c *Conn, args [][]byte) error {
	c.reply.Array(len(c.server.table.all))
	for _, command := range c.server.table.all {
		command.info(&c.reply)
	}
	return nil
}

func commandInfo(c *Conn, args [][]byte) error {
	if len(args) == 2 {
		return commandAll(c, args[:1])
	}
	c.reply.Array(len(args) - 2)
	for _, name := range args[2:] {
		if command := c.server.table.named(name); command != nil {
			command.info(&c.reply)
		} else {
			c.reply.Null()
		}
	}
	return nil
}

// named finds a command by its full name, as "get" or "config|get".
func (t *commandTable) named(name []byte) *Command {
	first, second, isSub := strings.Cut(strings.ToLower(string(name)), "|")
	c := t.byName[first]
	if c == nil || !isSub {
		return c
	}
	for i := range c.Sub {
		if c.Sub[i].Name == second {
			return &c.Sub[i]
		}
	}
	return nil
}

// flagNames are in the order in which COMMAND tells them. Redis keeps
// MayReplicate to itself.
var flagNames = [...]struct {
	flag Flags
	name string
}{
	{Write, "write"}, {ReadOnly, "readonly"}, {DenyOOM, "denyoom"}, {AdminFlag, "admin"}, {PubSub, "pubsub"}, {NoScript, "noscript"},
	{Blocking, "blocking"}, {Loading, "loading"}, {Stale, "stale"}, {SkipMonitor, "skip_monitor"}, {SkipSlowlog, "skip_slowlog"},
	{Asking, "asking"}, {Fast, "fast"}, {NoAuth, "no_auth"}, {NoMandatoryKeys, "no_mandatory_keys"},
	{NoAsyncLoading, "no_async_loading"}, {NoMulti, "no_multi"}, {MovableKeys, "movablekeys"}, {AllowBusy, "allow_busy"},
}

// info is a command as COMMAND INFO tells it.
func (c *Command) info(r *Reply) {
	specs := c.specs()
	var flags []string
	for _, f := range flagNames {
		if c.has(f.flag) {
			flags = append(flags, f.name)
		}
	}
	r.Array(10)
	r.BulkString(c.fullName())
	r.Int(int64(c.Arity))
	r.statuses(flags, "")
	r.Int(int64(c.First))
	r.Int(int64(c.Last))
	r.Int(int64(c.Step))
	r.statuses(c.categories(), "@")
	r.Set(len(c.Tips))
	for _, t := range c.Tips {
		r.BulkString(t)
	}
	r.Set(len(specs))
	for i := range specs {
		specs[i].reply(r)
	}
	if len(c.Sub) == 0 {
		r.Set(0)
		return
	}
	r.Array(len(c.Sub))
	for i := range c.Sub {
		c.Sub[i].info(r)
	}
}

// statuses is a set of statuses.
func (r *Reply) statuses(words []string, prefix string) {
	r.Set(len(words))
	for _, w := range words {
		r.Simple(prefix + w)
	}
}

// ---- categories, specifications of keys

// aclCategories are in the order in which they are told.
func aclCategories() []string {
	return []string{"keyspace", "read", "write", "set", "sortedset", "list", "hash", "string", "bitmap", "hyperloglog", "geo", "stream",
		"pubsub", "admin", "fast", "slow", "blocking", "dangerous", "connection", "transaction", "scripting"}
}

// categories are the categories of a command, in order.
func (c *Command) categories() []string {
	explicit := c.Categories
	if explicit == nil {
		explicit = []string{c.root().Group}
	}
	return c.withImplied(explicit)
}

// specs are the key specifications of a command.
func (c *Command) specs() []KeySpec {
	if c.KeySpecs == nil && c.First > 0 {
		return []KeySpec{c.plainSpec()}
	}
	return c.KeySpecs
}

// withFacts are commands of Redis's, with what commandFacts tells of them.
func withFacts(commands []Command) []Command {
	all := commandFacts()
	for i := range commands {
		c := &commands[i]
		c.Sub = c.withHelp()
		c.takeFacts(all[c.Name])
		for j := range c.Sub {
			c.Sub[j].takeFacts(all[c.Name+"|"+c.Sub[j].Name])
		}
	}
	return commands
}

// takeFacts reads a row of commandFacts; "" is none.
func (c *Command) takeFacts(text string) {
	if text == "" {
		return
	}
	part := strings.SplitN(text, "|", 3)
	c.Categories, c.Tips, c.KeySpecs = strings.Fields(part[0]), strings.Fields(part[1]), []KeySpec{}
	for _, spec := range strings.Fields(part[2]) {
		c.KeySpecs = append(c.KeySpecs, parseKeySpec(spec))
	}
}

// withImplied adds the categories that follow from flags, and puts all in order.
func (c *Command) withImplied(explicit []string) []string {
	has := map[string]bool{"write": c.has(Write), "admin": c.has(AdminFlag), "pubsub": c.has(PubSub), "fast": c.has(Fast), "slow": !c.has(Fast),
		"blocking": c.has(Blocking), "dangerous": c.has(AdminFlag), "read": c.has(ReadOnly) && !slices.Contains(explicit, "scripting")}
	for _, name := range explicit {
		has[name] = true
	}
	var out []string
	for _, name := range aclCategories() {
		if has[name] {
			out = append(out, name)
		}
	}
	return out
}

// inCategory are the commands of a category.
func (t *commandTable) inCategory(category string) []string {
	return t.names(func(c *Command) bool { return slices.Contains(c.categories(), category) })
}

// names are those of the commands and subcommands that keep wants.
func (t *commandTable) names(keep func(*Command) bool) []string {
	var out []string
	for _, c := range t.all {
		if keep(c) {
			out = append(out, c.fullName())
		}
		for i := range c.Sub {
			if keep(&c.Sub[i]) {
				out = append(out, c.Sub[i].fullName())
			}
		}
	}
	return out
}

// KeySpec says how keys are found in a call, and what is done with them, as COMMAND
// INFO tells it.
type KeySpec struct {
	// Flags are Redis's: RO, RW, OW or RM, then access, update, insert, delete.
	Flags []string

	// Index is the argument with which the keys begin. 0: they begin behind Keyword,
	// which is looked for from argument From on, or from the end where it is negative.
	Index   int
	Keyword string
	From    int

	// Last is the last key, counted from the first: 0 is one key, -1 means up to the
	// last argument. Step is from key to key, 0 as 1. Limit, unless it is 0 or 1, is the
	// part of the arguments that are left to which Last, being -1, applies.
	Last, Step, Limit int

	// Counted says that the number of keys is among the arguments: Count positions
	// behind the beginning, with the first key FirstKey positions behind it.
	Counted         bool
	Count, FirstKey int

	// Unknown says that the keys are found by the command's Keys alone.
	Unknown bool
}

// parseKeySpec reads the notation of commandFacts.
func parseKeySpec(text string) (s KeySpec) {
	flags, rest, _ := strings.Cut(text, "@")
	begin, find, _ := strings.Cut(rest, ">")
	s.Flags = strings.Split(flags, ",")
	if s.Unknown = find == "?"; s.Unknown {
		return s
	}
	if word, from, isKeyword := strings.Cut(begin, "/"); isKeyword {
		s.Keyword = word
		s.From, _ = strconv.Atoi(from)
	} else {
		s.Index, _ = strconv.Atoi(begin)
	}
	var n [3]int
	for i, text := range strings.Split(find[1:], "/") {
		n[i], _ = strconv.Atoi(text)
	}
	if s.Counted = find[0] == 'n'; s.Counted {
		s.Count, s.FirstKey, s.Step = n[0], n[1], n[2]
	} else {
		s.Last, s.Step, s.Limit = n[0], n[1], n[2]
	}
	return s
}

// plainSpec is that of a command that says First, Last and Step.
func (c *Command) plainSpec() KeySpec {
	s := KeySpec{Index: c.First, Flags: []string{"RW", "access", "update"}, Last: c.Last, Step: max(1, c.Step)}
	if c.has(ReadOnly) {
		s.Flags = []string{"RO", "access"}
	}
	if c.Last > 0 {
		s.Last = c.Last - c.First
	}
	return s
}

func (s *KeySpec) reply(r *Reply) {
	r.Map(3)
	r.BulkString("flags")
	r.statuses(s.Flags, "")
	r.BulkString("begin_search")
	switch {
	case s.Unknown:
		r.specPart("unknown", nil, nil)
	case s.Keyword != "":
		r.Map(2)
		r.BulkString("type")
		r.BulkString("keyword")
		r.BulkString("spec")
		r.Map(2)
		r.BulkString("keyword")
		r.BulkString(s.Keyword)
		r.BulkString("startfrom")
		r.Int(int64(s.From))
	default:
		r.specPart("index", []string{"index"}, []int{s.Index})
	}
	r.BulkString("find_keys")
	switch step := max(1, s.Step); {
	case s.Unknown:
		r.specPart("unknown", nil, nil)
	case s.Counted:
		r.specPart("keynum", []string{"keynumidx", "firstkey", "keystep"}, []int{s.Count, s.FirstKey, step})
	default:
		r.specPart("range", []string{"lastkey", "keystep", "limit"}, []int{s.Last, step, s.Limit})
	}
}

// specPart is one half of a key specification.
func (r *Reply) specPart(kind string, names []string, values []int) {
	r.Map(2)
	r.BulkString("type")
	r.BulkString(kind)
	r.BulkString("spec")
	r.Map(len(names))
	for i, n := range names {
		r.BulkString(n)
		r.Int(int64(values[i]))
	}
}

// covers reports whether a specification finds the key at a position of a call.
func (s *KeySpec) covers(args [][]byte, at int) bool {
	begin, step := s.Index, max(1, s.Step)
	if s.Keyword != "" {
		for i := max(0, s.From); i < len(args); i++ {
			if equalFold(args[i], strings.ToLower(s.Keyword)) {
				begin = i + 1
				break
			}
		}
	}
	if s.Unknown || begin <= 0 {
		return false
	}
	if s.Counted {
		if begin+s.Count < 0 || begin+s.Count >= len(args) {
			return false
		}
		n, ok := parseInt(args[begin+s.Count])
		first := begin + s.FirstKey
		return ok && at >= first && at < first+int(min(n, int64(len(args))))*step && (at-first)%step == 0
	}
	last := begin + s.Last
	if s.Last < 0 {
		last = len(args) + s.Last
	}
	return at >= begin && at <= last && (at-begin)%step == 0
}

// ---- LIST and DOCS

func commandList(c *Conn, args [][]byte) error {
	keep := func(*Command) bool { return true }
	switch {
	case len(args) == 2:
	case len(args) != 5 || !equalFold(args[2], "filterby"):
		return errSyntax
	case equalFold(args[3], "aclcat"):
		want := strings.ToLower(string(args[4]))
		keep = func(x *Command) bool { return slices.Contains(x.categories(), want) }
	case equalFold(args[3], "pattern"):
		pattern := strings.ToLower(string(args[4]))
		keep = func(x *Command) bool { return globMatch(pattern, x.fullName()) }
	case equalFold(args[3], "module"):
		keep = func(*Command) bool { return false }
	default:
		return errSyntax
	}
	names := c.server.table.names(keep)
	c.reply.Array(len(names))
	for _, n := range names {
		c.reply.BulkString(n)
	}
	return nil
}

func commandDocs(c *Conn, args [][]byte) error {
	all := c.server.table.all
	if len(args) > 2 {
		all = nil
		for _, name := range args[2:] {
			if x := c.server.table.named(name); x != nil {
				all = append(all, x)
			}
		}
	}
	c.reply.Map(len(all))
	for _, x := range all {
		c.reply.BulkString(x.fullName())
		x.docs(&c.reply)
	}
	return nil
}

func (c *Command) docs(r *Reply) {
	pairs := [][2]string{{"summary", oneLine(c.Summary)}, {"since", c.Since}, {"group", c.root().Group}, {"complexity", c.Complexity}}
	pairs = slices.DeleteFunc(pairs, func(p [2]string) bool { return p[1] == "" })
	n := len(pairs)
	if len(c.Sub) > 0 {
		n++
	}
	r.Map(n)
	for _, p := range pairs {
		r.BulkString(p[0])
		r.BulkString(p[1])
	}
	if len(c.Sub) == 0 {
		return
	}
	r.BulkString("subcommands")
	r.Map(len(c.Sub))
	for i := range c.Sub {
		r.BulkString(c.Sub[i].fullName())
		c.Sub[i].docs(r)
	}
}

// ---- GETKEYS

// keysOfCall finds the command of a call that is given as arguments, and its
// keys.
func (c *Conn) keysOfCall(args [][]byte) (*Command, []int, error) {
	x := c.server.table.named(args[0])
	if x != nil && len(x.Sub) > 0 && len(args) > 1 {
		if x = c.server.table.named(slices.Concat(args[0], []byte("|"), args[1])); x == nil {
			return nil, nil, Error("ERR Invalid command specified")
		}
	}
	switch {
	case x == nil:
		return nil, nil, Error("ERR Invalid command specified")
	case x.First == 0 && x.Keys == nil:
		return nil, nil, Error("ERR The command has no key arguments")
	case !x.arityOK(len(args)):
		return nil, nil, Error("ERR Invalid number of arguments specified for command")
	}
	at, err := x.keys(nil, args)
	switch {
	case (err != nil || len(at) == 0) && x.has(NoMandatoryKeys):
		return x, nil, nil
	case err != nil:
		return nil, nil, Error("ERR Invalid arguments specified for command")
	case len(at) == 0:
		return nil, nil, Error("ERR Invalid arguments specified for command")
	}
	return x, at, nil
}

func commandGetKeys(c *Conn, args [][]byte) error {
	_, at, err := c.keysOfCall(args[2:])
	if err != nil {
		return err
	}
	c.reply.Array(len(at))
	for _, i := range at {
		c.reply.Bulk(args[2+i])
	}
	return nil
}

func commandGetKeysAndFlags(c *Conn, args [][]byte) error {
	x, at, err := c.keysOfCall(args[2:])
	if err != nil {
		return err
	}
	specs := x.specs()
	c.reply.Array(len(at))
	for _, i := range at {
		c.reply.Array(2)
		c.reply.Bulk(args[2+i])
		c.reply.statuses(flagsOfKey(specs, args[2:], i), "")
	}
	return nil
}

// flagsOfKey says what a call does with a key of its.
func flagsOfKey(specs []KeySpec, args [][]byte, at int) []string {
	i := slices.IndexFunc(specs, func(s KeySpec) bool { return s.covers(args, at) })
	if i < 0 {
		return nil
	}
	flags := specs[i].Flags
	if !slices.Contains(flags, "variable_flags") {
		return slices.DeleteFunc(slices.Clone(flags), func(f string) bool { return f == "incomplete" })
	}
	// SET reads the old value for GET alone, and BITFIELD may only read.
	has := func(words ...string) bool {
		return slices.ContainsFunc(args[2:], func(a []byte) bool { return slices.Contains(words, strings.ToLower(string(a))) })
	}
	switch set := equalFold(args[0], "set"); {
	case set && !has("get"):
		return []string{"OW", "update"}
	case !set && !has("set", "incrby"):
		return []string{"RO", "access"}
	}
	return []string{"RW", "access", "update"}
}
