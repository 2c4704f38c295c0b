package compat

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

var (
	commandCount = flag.Int("compat.commands", 100_000, "random `commands` to send to redis-server and to slotmesh")
	firstSeed    = flag.Uint64("compat.seed", 1, "`seed` of the random commands")
	onlyEpisode  = flag.Int("compat.episode", -1, "the only `episode` to play, as a difference names it")
	mostShown    = flag.Int("compat.differences", 5, "`differences` to show before the test ends")
)

// startCompared starts a redis-server to compare with: one that looks at waiting
// clients often, and has slotmesh's defaults where those are not Redis's.
func startCompared(t testing.TB) string {
	t.Helper()
	return startRedis(t, "--hz", "500", "--enable-debug-command", "yes", "--proto-max-bulk-len", "64mb")
}

// episodeLength is the number of steps before everything begins anew: long
// enough for values to grow, short enough to be shortened quickly.
const episodeLength = 200

// TestDifferenceIsFoundAndShortened plays against a second redis-server that is
// told other things now and then.
func TestDifferenceIsFoundAndShortened(t *testing.T) {
	redis, other := startCompared(t), startCompared(t)
	for name, tamper := range map[string]func(args []string) []string{
		"APPEND": func(args []string) []string { return []string{args[0], args[1], args[2] + "x"} },
		"LPUSH":  func(args []string) []string { return append([]string{"RPUSH"}, args[1:]...) },
		"EXPIRE": func(args []string) []string { return []string{"TTL", args[1]} },
	} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t, redis, other)
			p.ours.tamper = func(args []string) []string {
				if args[0] == name && len(args) == 3 && !strings.Contains(args[1], "none") {
					return tamper(args)
				}
				return args
			}
			text := ""
			p.compare(newGenerator(t, 1), 20_000, 1, func(d *difference) { text = d.String() })
			if lines := strings.Count(text, "\n  "); !strings.Contains(text, name) || lines > 6 {
				t.Errorf("%d lines, expected the few that it takes and %s among them:\n%s", lines, name, text)
			}
		})
	}
}

// TestRedisAnswersAsItself finds what in the test itself, or in Redis, depends on
// time or chance.
func TestRedisAnswersAsItself(t *testing.T) {
	p := newPair(t, startCompared(t), startCompared(t))
	p.compare(newGenerator(t, *firstSeed), min(*commandCount, 20_000), *mostShown, func(d *difference) { t.Errorf("%s", d) })
}

// side is one of the two servers.
type side struct {
	name, addr string
	links      [connCount]*link
	blockedID  string
	tamper     func(args []string) []string // changes what is sent, nil: nothing
}

// pair is both servers, and what was sent to them alike.
type pair struct {
	redis, ours *side
	comparison  *comparison

	conn    int       // of what is pending
	pending []pending // sent or to be sent, without replies yet
	bytes   int
	queues  [connCount]queue

	commands int
	outcomes map[string]*outcome // by command
}

type pending struct {
	at   int // step
	args []string
}

// queue is what is between MULTI and EXEC.
type queue struct {
	open     bool
	commands [][]string
}

// outcome counts the replies of a command.
type outcome struct {
	good, errors int
	unknown      int // errors of redis-server, which has no such command
}

// difference is where replies differ.
type difference struct {
	at          int // step
	args        []string
	redis, ours reply
	note        string
	silent      bool // there was no reply in time

	seed    uint64
	episode int
	proto   string
	steps   []step
	port    string
}

func newPair(t testing.TB, redis, ours string) *pair {
	p := &pair{redis: &side{name: "redis-server", addr: redis}, ours: &side{name: "slotmesh", addr: ours}, comparison: newComparison(), outcomes: map[string]*outcome{}}
	t.Cleanup(p.hangUp)
	return p
}

func (p *pair) hangUp() {
	for _, s := range []*side{p.redis, p.ours} {
		for i, l := range s.links {
			if l != nil {
				l.close()
			}
			s.links[i] = nil
		}
	}
	p.pending, p.bytes, p.queues = nil, 0, [connCount]queue{}
}

// compare plays episodes with n commands in all, and tells up to most differences.
// The protocols of episodes take turns.
func (p *pair) compare(g *generator, n, most int, tell func(*difference)) {
	found := 0
	seen := map[string]bool{}
	for episode := 0; p.commands < n && found < most; episode++ {
		if *onlyEpisode >= 0 {
			episode, n = *onlyEpisode, 0
		}
		g.reseed(*firstSeed, uint64(episode))
		steps := g.steps(episodeLength)
		proto := []string{"2", "3"}[episode%2]
		d := p.play(steps, proto)
		if d == nil {
			continue
		}
		p.hangUp()
		if seen[d.kind()] && !d.silent { // to wait as long for ever more of them is no use
			continue
		}
		seen[d.kind()] = true
		if !d.silent { // each attempt would wait as long
			d = p.shorten(d, steps, proto)
		} else {
			d.steps = steps[:d.at+1]
		}
		d.seed, d.episode, d.proto = *firstSeed, episode, proto
		_, d.port, _ = strings.Cut(p.ours.addr, ":")
		found++
		tell(d)
	}
}

// play does steps on servers without data. It returns the first difference.
func (p *pair) play(steps []step, proto string) *difference {
	for _, s := range []*side{p.redis, p.ours} {
		if err := s.begin(proto); err != nil {
			return p.broken(0, nil, s, err)
		}
	}
	p.queues, p.comparison.apart = [connCount]queue{}, false
	for at, s := range steps {
		if p.comparison.apart {
			break
		}
		var d *difference
		switch s.kind {
		case stepPlain, stepTransaction:
			for _, args := range s.commands {
				if d = p.send(at, s.conn, args); d != nil {
					break
				}
			}
		default:
			if d = p.settle(); d == nil && !p.comparison.apart {
				p.commands += len(s.commands)
				d = p.perform(at, s)
			}
		}
		if d != nil {
			return d
		}
	}
	return p.settle()
}

// begin leaves a server as if it had just been started.
func (s *side) begin(proto string) error {
	for i := range s.links {
		if s.links[i] == nil {
			l, err := dial(s.addr)
			if err != nil {
				return err
			}
			s.links[i] = l
		}
		for _, args := range [][]string{{"RESET"}, {"HELLO", proto}} {
			if r, err := s.links[i].do(args...); err != nil || r.isError() {
				return fmt.Errorf("%s: %s, %w", commandLine(args), r, err)
			}
		}
	}
	for _, args := range [][]string{{"FLUSHALL"}, {"SCRIPT", "FLUSH"}} {
		if r, err := s.links[connMain].do(args...); err != nil || !r.is("OK") {
			return fmt.Errorf("%s: %s, %w", commandLine(args), r, err)
		}
	}
	id, err := s.links[connBlocked].do("CLIENT", "ID")
	s.blockedID = id.text
	return err
}

// send puts a command behind others, many of which go out at once.
func (p *pair) send(at, conn int, args []string) *difference {
	const mostPending, mostBytes = 64, 32 << 10 // fewer bytes than the network holds: nobody waits for the other to read
	if conn != p.conn || len(p.pending) >= mostPending || p.bytes > mostBytes {
		if d := p.settle(); d != nil {
			return d
		}
	}
	p.conn = conn
	p.pending = append(p.pending, pending{at, args})
	p.redis.links[conn].add(p.redis.tampered(args))
	p.ours.links[conn].add(p.ours.tampered(args))
	for _, a := range args {
		p.bytes += len(a)
	}
	p.commands++
	return nil
}

func (s *side) tampered(args []string) []string {
	if s.tamper == nil {
		return args
	}
	return s.tamper(args)
}

// settle reads the replies of all that is pending.
func (p *pair) settle() *difference {
	if len(p.pending) == 0 {
		return nil
	}
	for _, s := range []*side{p.redis, p.ours} {
		if err := s.links[p.conn].flush(); err != nil {
			return p.broken(p.pending[0].at, p.pending[0].args, s, err)
		}
	}
	for _, c := range p.pending {
		redis, errRedis := p.redis.links[p.conn].read()
		ours, errOurs := p.ours.links[p.conn].read()
		switch {
		case errRedis != nil:
			return p.broken(c.at, c.args, p.redis, errRedis)
		case errOurs != nil:
			d := p.broken(c.at, c.args, p.ours, errOurs)
			d.redis = redis
			return d
		case !p.comparison.apart && !p.sameReply(c.args, redis, ours):
			return &difference{at: c.at, args: c.args, redis: redis, ours: ours}
		}
	}
	p.pending, p.bytes = p.pending[:0], 0
	return nil
}

// sameReply compares, and follows MULTI and EXEC.
func (p *pair) sameReply(args []string, redis, ours reply) bool {
	name := strings.ToLower(args[0])
	o := p.outcomes[name]
	if o == nil {
		o = &outcome{}
		p.outcomes[name] = o
	}
	switch {
	case strings.HasPrefix(redis.text, "ERR unknown command") && redis.isError():
		o.unknown++
		o.errors++
	case redis.isError():
		o.errors++
	default:
		o.good++
	}
	q := &p.queues[p.conn]
	if q.open && redis.is("QUEUED") {
		q.commands = append(q.commands, args)
		return redis.equal(ours)
	}
	queued := q.commands
	switch {
	case name == "multi" && redis.is("OK"):
		*q = queue{open: true}
	case name == "exec", name == "discard" && redis.is("OK"), name == "reset" && redis.is("RESET"):
		*q = queue{}
		if name == "exec" {
			return p.comparison.equalTransaction(queued, redis, ours)
		}
	}
	return p.comparison.equal(args, redis, ours)
}

// both sends a command alone and reads what both answer.
func (p *pair) both(at, conn int, args []string) (redis, ours reply, d *difference) {
	var replies [2]reply
	for _, s := range []*side{p.redis, p.ours} {
		s.links[conn].add(s.tampered(args))
		if err := s.links[conn].flush(); err != nil {
			return redis, ours, p.broken(at, args, s, err)
		}
	}
	for i, s := range []*side{p.redis, p.ours} {
		r, err := s.links[conn].read()
		if err != nil {
			return redis, ours, p.broken(at, args, s, err)
		}
		replies[i] = r
	}
	return replies[0], replies[1], nil
}

// broken is a connection that gives no reply.
func (p *pair) broken(at int, args []string, s *side, err error) *difference {
	silent := errors.Is(err, os.ErrDeadlineExceeded)
	if silent {
		err = fmt.Errorf("nothing within %v", replyTime)
	}
	return &difference{at: at, args: args, silent: silent, note: fmt.Sprintf("no reply from %s: %v", s.name, err)}
}

// readable reports whether a reply has come, without waiting for one.
func (l *link) readable() bool {
	l.nc.SetReadDeadline(time.Now().Add(time.Millisecond))
	_, err := l.r.Peek(1)
	return err == nil
}

// ---- Shortening

// shorten drops what the difference does not need, steps first and then commands
// within a transaction, while replies to the same command still differ.
func (p *pair) shorten(d *difference, steps []step, proto string) *difference {
	steps = steps[:d.at+1]
	try := func(candidate []step) bool {
		found := p.play(candidate, proto)
		if found == nil {
			return false
		}
		p.hangUp()
		if found.kind() != d.kind() {
			return false
		}
		d, steps = found, candidate[:found.at+1]
		return true
	}
	try(steps)
	for size := max(1, len(steps)/2); ; size /= 2 {
		for from := len(steps) - 1 - size; from >= 0; from -= size {
			if from+size <= len(steps)-1 {
				try(slices.Delete(slices.Clone(steps), from, from+size))
			}
		}
		if size <= 1 {
			break
		}
	}
	for i := range steps {
		for c := len(steps[min(i, len(steps)-1)].commands) - 2; c > 0 && i < len(steps); c-- {
			if c > len(steps[i].commands)-2 {
				continue
			}
			candidate := slices.Clone(steps)
			candidate[i].commands = slices.Delete(slices.Clone(candidate[i].commands), c, c+1)
			try(candidate)
		}
	}
	d.steps = steps
	return d
}

// kind tells differences apart: by command, and how the replies begin.
func (d *difference) kind() string {
	name := ""
	if len(d.args) > 0 {
		name = strings.ToLower(d.args[0])
		if inner := scripted(d.args); inner != nil {
			name += " " + strings.ToLower(inner[0])
		} else if strings.HasPrefix(name, "eval") && len(d.args) > 1 {
			name += " " + d.args[1]
		}
	}
	form := func(r reply) string {
		if r.isError() {
			code, _, _ := strings.Cut(r.text, " ")
			return string(r.kind) + code
		}
		return string(r.kind)
	}
	return name + form(d.redis) + form(d.ours)
}

func (d *difference) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "a reply differs (-compat.seed=%d -compat.episode=%d, RESP%s). From nothing, redis-cli -%s -p PORT:\n", d.seed, d.episode, d.proto, d.proto)
	for _, s := range d.steps {
		for i, args := range s.commands {
			who := ""
			switch {
			case s.kind == stepBlocked && i == 0:
				who = "waiting client: "
			case s.conn == connOther:
				who = "other client: "
			case s.kind == stepPop:
				who = "(random) "
			case s.kind == stepScan:
				who = "(to the end) "
			case s.kind == stepRestore:
				who = "(and RESTORE on the other side) "
			}
			fmt.Fprintf(&b, "  %s%s\n", who, commandLine(args))
		}
	}
	fmt.Fprintf(&b, "command:      %s\n", commandLine(d.args))
	at := differAt(d.redis.wire(), d.ours.wire())
	fmt.Fprintf(&b, "redis-server: %s\nslotmesh:     %s\n", d.redis.from(at), d.ours.from(at))
	if d.note != "" {
		fmt.Fprintf(&b, "%s\n", d.note)
	}
	return b.String()
}

// commandLine is a command as redis-cli reads it.
func commandLine(args []string) string {
	const most = 500
	words := make([]string, len(args))
	for i, a := range args {
		words[i] = cliWord(a)
	}
	line := strings.Join(words, " ")
	if len(line) > most {
		line = fmt.Sprintf("%s… (%d bytes)", line[:most], len(line))
	}
	return line
}

func cliWord(a string) string {
	plain := a != ""
	for i := range len(a) {
		plain = plain && a[i] > ' ' && a[i] < 0x7f && a[i] != '"' && a[i] != '\'' && a[i] != '\\'
	}
	if plain {
		return a
	}
	b := []byte{'"'}
	for i := range len(a) {
		switch c := a[i]; {
		case c == '"', c == '\\':
			b = append(b, '\\', c)
		case c == '\n':
			b = append(b, '\\', 'n')
		case c < ' ' || c >= 0x7f:
			b = append(b, '\\', 'x', "0123456789abcdef"[c>>4], "0123456789abcdef"[c&15])
		default:
			b = append(b, c)
		}
	}
	return string(append(b, '"'))
}

// report tells how much was compared. A command that never did anything but fail
// has not been tested.
func (p *pair) report(t *testing.T) {
	t.Helper()
	const enough = 50_000 // commands: each has had its chance
	good, bad := 0, 0
	var never []string
	for name, o := range p.outcomes {
		good, bad = good+o.good, bad+o.errors
		if o.good == 0 && o.unknown < o.errors {
			never = append(never, fmt.Sprintf("%s (%d times)", name, o.errors))
		}
	}
	slices.Sort(never)
	t.Logf("%d commands, %s%% of the replies errors", p.commands, strconv.Itoa(100*bad/max(1, good+bad)))
	if p.commands >= enough && len(never) > 0 {
		t.Errorf("only errors from %s", never)
	}
}
