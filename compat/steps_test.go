package compat

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A step is what is done at a time: a command, or several that belong together.
// It runs alone too, so that a sequence of steps can be shortened anywhere.
type step struct {
	kind     stepKind
	conn     int // which of the connections
	commands [][]string
	swap     bool // stepPop: ours draws
}

type stepKind byte

const (
	stepPlain       stepKind = iota // one command
	stepTransaction                 // MULTI, commands, EXEC or DISCARD
	stepPop                         // SPOP on one side; SREM tells the other what was drawn
	stepDraw                        // SRANDMEMBER and the like: what is drawn is there
	stepScan                        // a cursor to its end: the same items altogether
	stepRestore                     // DUMP on either side, RESTORE on the other
	stepBlocked                     // a client waits, another one brings it something
	stepCount                       // what counts keys whose time is over, too
)

// Connections of a side.
const (
	connMain    = iota
	connOther   // changes what the first one watches
	connBlocked // waits
	connCount
)

// steps makes what an episode consists of, about n commands.
func (g *generator) steps(n int) []step {
	var steps []step
	for len(steps) < n {
		switch p := g.rnd.IntN(1000); {
		case p < 20:
			steps = append(steps, g.transaction()...)
			n -= 5
		case p < 24:
			pop := []string{"SPOP", g.key(setType)}
			if g.chance(0.5) {
				pop = append(pop, g.odd(0.03, g.small(0, 5)))
			}
			steps = append(steps, step{kind: stepPop, commands: [][]string{pop}, swap: g.chance(0.5)})
		case p < 34:
			steps = append(steps, step{kind: stepDraw, commands: [][]string{g.draw()}})
		case p < 40:
			steps = append(steps, step{kind: stepScan, commands: [][]string{g.scan()}})
		case p < 50:
			steps = append(steps, step{kind: stepRestore, commands: [][]string{{"DUMP", g.key(anyType)}}})
		case p < 53:
			steps = append(steps, g.blocked())
		case p < 90:
			steps = append(steps, step{commands: [][]string{g.script()}})
		default:
			one := step{commands: [][]string{g.command()}}
			if countsExpired(one.commands[0]) {
				one.kind = stepCount
			}
			steps = append(steps, one)
		}
	}
	return steps
}

// transaction makes MULTI … EXEC, sometimes behind WATCH and a change.
func (g *generator) transaction() (steps []step) {
	if g.chance(0.3) {
		watch := []string{"WATCH"}
		for range 1 + g.rnd.IntN(3) {
			watch = append(watch, g.key(stringType))
		}
		steps = append(steps, step{commands: [][]string{watch}})
		for range g.rnd.IntN(4) {
			steps = append(steps, step{conn: g.rnd.IntN(2), commands: [][]string{g.commandOf(pick(g, []string{"string", "string", "key"}))}})
		}
		if g.chance(0.1) {
			steps = append(steps, step{commands: [][]string{{"UNWATCH"}}})
		}
	}
	s := step{kind: stepTransaction, commands: [][]string{{"MULTI"}}}
	for range g.rnd.IntN(8) {
		switch p := g.rnd.IntN(100); {
		case p < 5:
			s.commands = append(s.commands, pick(g, [][]string{{"MULTI"}, {"WATCH", "{t}str1"}, {"UNWATCH"}, {"MULTI", "x"}, {"NOSUCH"}, {"GET"}}))
		case p < 17:
			s.commands = append(s.commands, g.script())
		case p < 20:
			source := pick(g, handOn)
			s.commands = append(s.commands, pick(g, [][]string{{"SCRIPT", "LOAD", source}, {"SCRIPT", "EXISTS", sum(source), sum(pick(g, handOn))}, {"SCRIPT", "FLUSH"}}))
		case p < 35:
			s.commands = append(s.commands, g.wouldBlock())
		default:
			s.commands = append(s.commands, g.command())
		}
	}
	end := []string{"EXEC"}
	switch {
	case g.chance(0.1):
		end = []string{"DISCARD"}
	case g.chance(0.03):
		end = []string{"EXEC", "x"} // ends MULTI as well
	}
	// What ends MULTI, or the connection, would have the rest run outside; HELLO has its
	// place behind the commands with keys, see notSent for that and for scripts.
	foreign := slices.ContainsFunc(s.commands[1:], func(args []string) bool { return !inSlotOfMost(args) })
	s.commands = slices.DeleteFunc(s.commands, func(args []string) bool {
		return foreign && scripted(args) != nil && args[2] == "0" || slices.Contains([]string{"reset", "quit", "hello"}, strings.ToLower(args[0]))
	})
	s.commands = append(s.commands, end)
	return append(steps, s)
}

// inSlotOfMost reports whether the keys of a command are in the slot of most, or it
// is a script or SCRIPT and has none.
func inSlotOfMost(args []string) bool {
	there := func(a string) bool { return strings.HasPrefix(a, "{t}") }
	switch name := strings.ToLower(args[0]); {
	case name == "script":
		return true
	case strings.HasPrefix(name, "eval") && len(args) > 2:
		n, err := strconv.Atoi(args[2])
		return err == nil && n >= 0 && n <= len(args)-3 && !slices.ContainsFunc(args[3:3+n], func(a string) bool { return !there(a) })
	}
	return slices.ContainsFunc(args, there)
}

// wouldBlock makes a command that waits for ever, unless it is in a transaction.
func (g *generator) wouldBlock() []string {
	timeout := pick(g, []string{"0", "5", "0.0", "-0", "1000000"})
	list, zset := g.key(listType), g.key(sortedSetType)
	return pick(g, [][]string{
		{"BLPOP", list, timeout}, {"BRPOP", list, g.key(listType), timeout}, {"BLMOVE", list, g.key(listType), "LEFT", "RIGHT", timeout},
		{"BRPOPLPUSH", list, g.key(listType), timeout}, {"BLMPOP", timeout, "1", list, "RIGHT", "COUNT", "2"}, {"BZPOPMIN", zset, timeout},
		{"BZPOPMAX", zset, g.key(sortedSetType), timeout}, {"BZMPOP", timeout, "1", zset, "MAX"},
	})
}

// draw makes a command that answers by chance and changes nothing.
func (g *generator) draw() []string {
	var args []string
	switch g.rnd.IntN(7) {
	case 0:
		return []string{"RANDOMKEY"}
	case 1, 2:
		args = []string{"SRANDMEMBER", g.key(setType)}
	case 3, 4:
		args = []string{"HRANDFIELD", g.key(hashType)}
	default:
		args = []string{"ZRANDMEMBER", g.key(sortedSetType)}
	}
	if g.chance(0.7) {
		count := g.odd(0.03, g.small(-6, 6))
		if n, err := strconv.Atoi(count); err == nil && n < -1000 {
			count = "-1000" // so many are drawn
		}
		args = append(args, count)
		if args[0] != "SRANDMEMBER" && g.chance(0.5) {
			args = append(args, map[string]string{"H": "WITHVALUES", "Z": "WITHSCORES"}[args[0][:1]])
		}
	}
	return args
}

// scan makes the first call of a scan: its cursor is 0.
func (g *generator) scan() []string {
	args := []string{"SCAN", "0"}
	switch g.rnd.IntN(4) {
	case 0:
		args = []string{"HSCAN", g.key(hashType), "0"}
	case 1:
		args = []string{"SSCAN", g.key(setType), "0"}
	case 2:
		args = []string{"ZSCAN", g.key(sortedSetType), "0"}
	}
	if g.chance(0.5) {
		args = append(args, "COUNT", g.small(1, 20))
	}
	if g.chance(0.4) {
		args = append(args, "MATCH", pick(g, patterns))
	}
	if args[0] == "SCAN" && g.chance(0.4) {
		args = append(args, "TYPE", pick(g, []string{"string", "hash", "list", "set", "zset", "STRING", "stream"}))
	}
	return args
}

// blocked makes a client that waits, and what others do meanwhile.
func (g *generator) blocked() step {
	s := step{kind: stepBlocked, conn: connBlocked, commands: [][]string{g.wouldBlock()}}
	for range 1 + g.rnd.IntN(3) {
		switch p := g.rnd.IntN(100); {
		case p < 40:
			s.commands = append(s.commands, g.commandOf("list"))
		case p < 70:
			s.commands = append(s.commands, g.commandOf("sortedset"))
		case p < 85:
			s.commands = append(s.commands, g.commandOf("key"))
		default:
			s.commands = append(s.commands, []string{"EVAL", "redis.call('rpush', KEYS[1], 'a', 'b', 'c'); return redis.call('lpop', KEYS[1])", "1", g.key(listType)})
		}
	}
	return s
}

// perform does a step of several commands. Plain ones and transactions are sent
// by the caller, many at a time.
func (p *pair) perform(at int, s step) *difference {
	switch s.kind {
	case stepPop:
		return p.pop(at, s)
	case stepDraw:
		return p.draw(at, s)
	case stepScan:
		return p.wholeScan(at, s)
	case stepRestore:
		return p.restore(at, s)
	case stepBlocked:
		return p.block(at, s)
	case stepCount:
		return p.alike(at, s.conn, s.commands[0], "")
	}
	panic(fmt.Sprintf("no such kind of step: %d", s.kind))
}

// alike compares what both answer to one command; again where it counts what will be
// gone.
func (p *pair) alike(at, conn int, args []string, note string) *difference {
	for end := time.Now().Add(replyTime); ; {
		redis, ours, d := p.both(at, conn, args)
		if d != nil || p.comparison.equal(args, redis, ours) {
			return d
		}
		if !countsExpired(args) || redis.kind != ':' || ours.kind != ':' || time.Now().After(end) {
			return &difference{at: at, args: args, redis: redis, ours: ours, note: note}
		}
	}
}

func (p *pair) pop(at int, s step) *difference {
	args, first, second := s.commands[0], p.redis, p.ours
	if s.swap {
		first, second = second, first
	}
	drawn, err := first.links[s.conn].do(args...)
	if err != nil {
		return p.broken(at, args, first, err)
	}
	told := args
	if drawn.kind == '$' && !drawn.null {
		told = []string{"SREM", args[1], drawn.text}
	} else if len(drawn.items) > 0 {
		told = []string{"SREM", args[1]}
		for _, i := range drawn.items {
			told = append(told, i.text)
		}
	}
	answer, err := second.links[s.conn].do(told...)
	if err != nil {
		return p.broken(at, told, second, err)
	}
	if told[0] == "SREM" && answer.wire() == fmt.Sprintf(":%d\r\n", len(told)-2) || told[0] != "SREM" && answer.equal(drawn) {
		return nil
	}
	d := &difference{at: at, args: args, redis: drawn, ours: answer, note: fmt.Sprintf("%s answered %s, the other side was told %s", first.name, drawn, commandLine(told))}
	if s.swap {
		d.redis, d.ours = d.ours, d.redis
	}
	return d
}

func (p *pair) draw(at int, s step) *difference {
	args := s.commands[0]
	redis, ours, d := p.both(at, s.conn, args)
	if d != nil || redis.equal(ours) {
		return d
	}
	bad := &difference{at: at, args: args, redis: redis, ours: ours, note: "drawn by chance"}
	if redis.kind != ours.kind || redis.null != ours.null || len(redis.items) != len(ours.items) {
		return bad
	}
	width := 1
	if strings.HasPrefix(args[len(args)-1], "WITH") {
		width = 2
	}
	var all []string
	switch args[0] {
	case "RANDOMKEY":
		all = []string{"KEYS", "*"}
	case "SRANDMEMBER":
		all = []string{"SMEMBERS", args[1]}
	case "HRANDFIELD":
		all = [][]string{{"HKEYS", args[1]}, {"HGETALL", args[1]}}[width-1]
	default:
		all = [][]string{{"ZRANGE", args[1], "0", "-1"}, {"ZRANGE", args[1], "0", "-1", "WITHSCORES"}}[width-1]
	}
	there, err := p.redis.links[s.conn].do(all...)
	if err != nil {
		return p.broken(at, all, p.redis, err)
	}
	choices := map[string]bool{}
	for _, c := range slices.Collect(slices.Chunk(flatten(there.withoutZeroSign()), width)) {
		choices[fmt.Sprint(c)] = true
	}
	distinct := len(args) > 2 && args[2][0] != '-'
	drawn := flatten(ours.withoutZeroSign())
	if len(drawn) != len(flatten(redis)) {
		return bad
	}
	for c := range slices.Chunk(drawn, width) {
		name := fmt.Sprint(c)
		if !choices[name] {
			return bad
		}
		if distinct {
			delete(choices, name)
		}
	}
	return nil
}

// flatten are the items of a reply, and those of items.
func flatten(r reply) []reply {
	if !r.aggregate() {
		return []reply{r}
	}
	var all []reply
	for _, i := range r.items {
		all = append(all, flatten(i)...)
	}
	return all
}

func (p *pair) wholeScan(at int, s step) *difference {
	redis, err := scanAll(p.redis.links[s.conn], s.commands[0])
	if err != nil {
		return p.broken(at, s.commands[0], p.redis, err)
	}
	ours, err := scanAll(p.ours.links[s.conn], s.commands[0])
	if err != nil {
		return p.broken(at, s.commands[0], p.ours, err)
	}
	if redis.equal(ours) || s.commands[0][0] == "ZSCAN" && redis.withNumbers().equal(ours.withNumbers()) {
		return nil
	}
	return &difference{at: at, args: s.commands[0], redis: redis, ours: ours, note: "all pages of the scan together"}
}

// withNumbers has the scores of a ZSCAN in one form: Redis prints them in one that
// depends on how it keeps the set.
func (r reply) withNumbers() reply {
	r.items = slices.Clone(r.items)
	for i := 1; i < len(r.items); i += 2 {
		if f, err := strconv.ParseFloat(r.items[i].text, 64); err == nil {
			r.items[i].text = strconv.FormatFloat(f+0, 'g', -1, 64)
		}
	}
	return r.withoutZeroSign()
}

// scanAll follows a cursor to its end. Its reply has each item once, in order.
func scanAll(l *link, args []string) (reply, error) {
	width, cursor := 1, 1
	if args[0] != "SCAN" {
		cursor = 2
	}
	if args[0] == "HSCAN" || args[0] == "ZSCAN" {
		width = 2
	}
	args = slices.Clone(args)
	all := reply{kind: '*'}
	for range 100_000 {
		page, err := l.do(args...)
		if err != nil || page.isError() {
			return page, err
		}
		if len(page.items) != 2 || page.items[0].kind != '$' || page.items[1].kind != '*' || len(page.items[1].items)%width != 0 {
			return reply{}, fmt.Errorf("%s is no page of a scan", page)
		}
		all.items = append(all.items, page.items[1].items...)
		if args[cursor] = page.items[0].text; args[cursor] == "0" {
			all = all.sorted(width)
			groups := slices.Collect(slices.Chunk(all.items, width))
			groups = slices.CompactFunc(groups, func(a, b []reply) bool { return slices.EqualFunc(a, b, reply.equal) })
			all.items = slices.Concat(groups...)
			return all, nil
		}
	}
	return reply{}, fmt.Errorf("%s does not end", commandLine(args))
}

// restore exchanges the value of a key: either side restores, under another name,
// what the other has dumped, and reads it like the value itself.
func (p *pair) restore(at int, s step) *difference {
	args, key := s.commands[0], s.commands[0][1]
	redis, ours, d := p.both(at, s.conn, args)
	if d != nil {
		return d
	}
	if redis.kind != '$' || redis.null || ours.null {
		if redis.equal(ours) {
			return nil
		}
		return &difference{at: at, args: args, redis: redis, ours: ours}
	}
	const to = "{t}copy"
	back := []string{"RESTORE", to, "0", ours.text, "REPLACE"}
	there := []string{"RESTORE", to, "0", redis.text, "REPLACE"}
	if tag, _, _ := strings.Cut(key, "}"); tag != "{t" {
		return nil // another slot
	}
	a, err := p.redis.links[s.conn].do(back...)
	if err != nil {
		return p.broken(at, back, p.redis, err)
	}
	b, err := p.ours.links[s.conn].do(there...)
	if err != nil {
		return p.broken(at, there, p.ours, err)
	}
	if !a.is("OK") || !b.is("OK") {
		return &difference{at: at, args: args, redis: a, ours: b, note: fmt.Sprintf("RESTORE of what the other side has dumped: redis-server was given %q, ours %q", ours.text, redis.text)}
	}
	kind, _, d := p.both(at, s.conn, []string{"TYPE", to})
	if d != nil {
		return d
	}
	read := map[string][]string{"string": {"GET"}, "hash": {"HGETALL"}, "list": {"LRANGE", "0", "-1"}, "set": {"SMEMBERS"}, "zset": {"ZRANGE", "0", "-1", "WITHSCORES"}}[kind.text]
	if read == nil {
		return &difference{at: at, args: args, redis: kind, note: "a type that was not expected"}
	}
	for _, k := range []string{to, key} {
		line := slices.Insert(slices.Clone(read), 1, k)
		a, b, d := p.both(at, s.conn, line)
		if d != nil {
			return d
		}
		if !p.comparison.equal(line, a, b) {
			return &difference{at: at, args: line, redis: a, ours: b, note: "after RESTORE of what the other side has dumped"}
		}
	}
	return nil
}

// block lets a client wait while another one changes things, and ends its wait if
// nothing came of them.
func (p *pair) block(at int, s step) *difference {
	for _, side := range []*side{p.redis, p.ours} {
		l := side.links[connBlocked]
		l.add(s.commands[0])
		if err := l.flush(); err != nil {
			return p.broken(at, s.commands[0], side, err)
		}
		if err := side.settled(); err != nil {
			return p.broken(at, s.commands[0], side, err)
		}
	}
	for _, args := range s.commands[1:] {
		if d := p.alike(at, connMain, args, "while "+commandLine(s.commands[0])+" waits"); d != nil {
			return d
		}
	}
	var answers [2]reply
	for i, side := range []*side{p.redis, p.ours} {
		if _, err := side.links[connMain].do("CLIENT", "UNBLOCK", side.blockedID); err != nil {
			return p.broken(at, s.commands[0], side, err)
		}
		var err error
		if answers[i], err = side.links[connBlocked].read(); err != nil {
			return p.broken(at, s.commands[0], side, err)
		}
	}
	if !p.comparison.equal(s.commands[0], answers[0], answers[1]) {
		return &difference{at: at, args: s.commands[0], redis: answers[0], ours: answers[1], note: "the client that waited"}
	}
	return nil
}

// settled returns when the waiting client waits, or has its answer.
func (s *side) settled() error {
	l := s.links[connBlocked]
	for range 10_000 {
		info, err := s.links[connMain].do("INFO", "clients")
		if err != nil {
			return err
		}
		_, after, _ := strings.Cut(info.text, "blocked_clients:")
		if n, _, _ := strings.Cut(after, "\r\n"); n == "1" {
			return nil
		}
		// An answer that is there already: it is left in the buffer.
		if l.r.Buffered() > 0 || l.readable() {
			return nil
		}
	}
	return fmt.Errorf("%s neither waits nor answers", s.name)
}
