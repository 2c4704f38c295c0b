package compat

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// keyType says which keys an argument most likely is.
type keyType int

const (
	stringType keyType = iota
	hashType
	listType
	setType
	sortedSetType
	anyType
)

var keyTypeNames = [...]string{"str", "hash", "list", "set", "zset"}

// generator makes commands. Equal seeds make equal commands.
type generator struct {
	rnd    *rand.Rand
	tables []parsedTable
	weight int

	keys  []string // of the command that is being made
	count int      // of its last numkeys
}

type parsedTable struct {
	commandTable
	parsed []rule
}

func newGenerator(t testing.TB, seed uint64) *generator {
	t.Helper()
	g := &generator{rnd: rand.New(rand.NewPCG(seed, 0))}
	for _, table := range commandTables() {
		rules, err := parseRules(table.rules)
		if err != nil {
			t.Fatal(err)
		}
		g.tables = append(g.tables, parsedTable{table, rules})
		g.weight += table.weight
	}
	return g
}

func (g *generator) reseed(seed, episode uint64) { g.rnd = rand.New(rand.NewPCG(seed, episode)) }

func (g *generator) chance(p float64) bool { return g.rnd.Float64() < p }

func pick[T any](g *generator, from []T) T { return from[g.rnd.IntN(len(from))] }

// command makes one, most often a right one.
func (g *generator) command() []string {
	w := g.rnd.IntN(g.weight)
	for _, table := range g.tables {
		if w -= table.weight; w < 0 {
			args := g.right(table.parsed)
			if !table.exact && g.chance(0.08) {
				if spoilt := g.mutate(args); !ends(spoilt) {
					args = spoilt
				}
			}
			return args
		}
	}
	panic("weights do not add up")
}

// commandOf makes a command of one table.
func (g *generator) commandOf(name string) []string {
	for _, table := range g.tables {
		if table.name == name {
			return g.right(table.parsed)
		}
	}
	panic("no table " + name)
}

// keyed makes a right command with keys, all of which are in the slot of most.
func (g *generator) keyed() []string {
	for {
		args := g.commandOf(pick(g, []string{"string", "bitmap", "hash", "list", "set", "sortedset", "key", "waiting"}))
		if len(g.keys) > 0 && !slices.ContainsFunc(g.keys, func(k string) bool { return !strings.HasPrefix(k, "{t}") }) {
			return args
		}
	}
}

func (g *generator) right(rules []rule) []string {
	g.keys, g.count = g.keys[:0], 0
	return g.say(pick(g, rules), nil)
}

// key is one of few, so that commands meet. All are in one slot but some.
func (g *generator) key(kind keyType) string {
	switch {
	case g.chance(0.015):
		return pick(g, []string{"{u}str1", "other", "{u}list1", "", "{t", "{}t", "\x00\xff"})
	case g.chance(0.03):
		return pick(g, []string{"{t}none", "{t}copy", "{t}\x00\r\n\xff", "{t}", "t", "{t}" + strings.Repeat("long", 300)})
	case kind == anyType || g.chance(0.06):
		kind = keyType(g.rnd.IntN(len(keyTypeNames)))
	}
	return "{t}" + keyTypeNames[kind] + strconv.Itoa(1+g.rnd.IntN(4))
}

var (
	oddNumbers = []string{
		"", " ", "-", "+1", "01", "-0", "1.0", "1e3", "0x10", " 1", "1 ", "1\x00", "nan", "-nan", "inf", "-inf", "+inf", "Infinity", "1,5", "abc",
		"9223372036854775807", "9223372036854775808", "-9223372036854775808", "-9223372036854775809", "18446744073709551615", "18446744073709551616",
		"4294967295", "4294967296", "2147483647", "2147483648", "-2147483648", "-2147483649", "9007199254740993", "1e308", "1e309", "-1e400", "5e-324", "1e-400",
		"9223372036854775", "-9223372036854775", "9223372036854776", "0", "-1", "1", "99999999999999999999999999999999", "0.1", ".5", "5.", "1e", "1_000",
	}
	optionWords = []string{
		"NX", "XX", "GT", "LT", "CH", "INCR", "GET", "EX", "PX", "KEEPTTL", "PERSIST", "WITHSCORES", "WITHVALUES", "LIMIT", "BYSCORE", "BYLEX", "REV",
		"COUNT", "MATCH", "TYPE", "LEFT", "RIGHT", "MIN", "MAX", "WEIGHTS", "AGGREGATE", "SUM", "BEFORE", "AFTER", "REPLACE", "STORE", "ALPHA", "DESC",
		"BY", "ABSTTL", "IDLETIME", "FREQ", "BYTE", "BIT", "AND", "NOT", "OVERFLOW", "SAT", "FAIL", "RANK", "MAXLEN", "DB", "nosuch",
	}
	floats = []string{
		"0", "1", "-1", "1.5", "-2.25", "3.14159265358979", "0.1", "0.2", "1e10", "1e17", "1e20", "123456789012345678", "1e-5", "5e-324", "1.7976931348623157e308",
		"inf", "-inf", "+inf", "-0", "1e21", "0.30000000000000004", "99999999999999.99", "3", "2", "10", "4.0", "1e100", "2.5e-10", "1234567.891",
	}
	patterns = []string{
		"*", "{t}*", "*1", "{t}str[12]", "*[^1-3]", "?t?str?", "\\{t\\}set1", "m*", "m1?", "[a-", "*\\", "[", "**1**", "*l*t*", "", "m[0-5]", "[^m]*", "m[5-0]", "f?", "\\m1",
	}
)

func (g *generator) value() string {
	switch p := g.rnd.IntN(1000); {
	case p < 380:
		return strconv.Itoa(g.rnd.IntN(25) - 5)
	case p < 600:
		return pick(g, []string{"a", "b", "c", "hello", "foobar", "Hello World", "xyzzy", "m1", "x"})
	case p < 700:
		return pick(g, floats)
	case p < 770:
		return pick(g, oddNumbers)
	case p < 800:
		return ""
	case p < 900:
		return g.bytes(g.rnd.IntN(13))
	case p < 960:
		return strings.Repeat("v", 40+g.rnd.IntN(30)) // around the bounds of embstr and listpack
	case p < 997:
		return g.bytes(g.rnd.IntN(2000))
	}
	return strings.Repeat(g.bytes(10), g.rnd.IntN(6000))
}

func (g *generator) bytes(n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(g.rnd.Uint32())
	}
	return string(b)
}

func (g *generator) small(low, high int) string { return strconv.Itoa(low + g.rnd.IntN(high-low+1)) }

// argument appends an argument of the kind. A list of kinds.
func (g *generator) argument(kind string, args []string) []string {
	switch kind {
	case "str":
		return g.keyArgument(stringType, args)
	case "hash":
		return g.keyArgument(hashType, args)
	case "list":
		return g.keyArgument(listType, args)
	case "set":
		return g.keyArgument(setType, args)
	case "zset":
		return g.keyArgument(sortedSetType, args)
	case "lex":
		return g.lexKey(args)
	case "any":
		return g.keyArgument(anyType, args)
	case "lists", "zsets", "sets", "zorsets":
		return g.numKeys(kind, args)
	case "weights":
		for range g.count {
			args = append(args, g.float())
		}
		return args
	case "field":
		return append(args, g.fieldName())
	case "member":
		return append(args, g.memberName())
	case "value":
		return append(args, g.value())
	case "int":
		return append(args, g.integer())
	case "float":
		return append(args, g.float())
	case "index":
		return append(args, g.odd(0.03, g.small(-12, 12)))
	case "offset":
		return append(args, g.odd(0.03, pick(g, []string{g.small(0, 20), g.small(0, 300)})))
	case "count":
		return append(args, g.odd(0.03, g.small(0, 6)))
	case "anycount":
		return append(args, g.odd(0.03, g.small(-4, 6)))
	case "scorebound":
		return append(args, g.scoreBound())
	case "lexbound":
		return append(args, g.lexBound())
	case "ttl", "pttl":
		return append(args, g.timeToLive(kind == "pttl"))
	case "at", "pat":
		return append(args, g.instant(kind == "pat"))
	case "pattern":
		return append(args, pick(g, patterns))
	case "bit":
		return append(args, g.odd(0.03, g.small(0, 1)))
	case "bits":
		return append(args, g.odd(0.03, pick(g, []string{"i", "u"})+g.small(1, 64)))
	case "bitplace":
		return append(args, g.odd(0.03, pick(g, []string{g.small(0, 100), "#" + g.small(0, 8)})))
	case "cursor":
		return append(args, g.odd(0.2, "0"))
	case "slot":
		return append(args, g.odd(0.1, pick(g, []string{"15891", "16383", "0", "16384"})))
	case "channel":
		return append(args, pick(g, []string{"news", "{t}ch", "", "\x00"}))
	case "type":
		return append(args, pick(g, []string{"string", "hash", "list", "set", "zset", "stream", "nosuch"}))
	}
	panic(fmt.Sprintf("no kind of argument %q", kind))
}

func (g *generator) keyArgument(kind keyType, args []string) []string {
	k := g.key(kind)
	g.keys = append(g.keys, k)
	return append(args, k)
}

// lexKey is mostly a sorted set whose members all have one score: what is between
// two members is not defined for others.
func (g *generator) lexKey(args []string) []string {
	if g.chance(0.06) {
		return g.keyArgument(pick(g, []keyType{stringType, hashType, listType, setType}), args)
	}
	g.keys = append(g.keys, "{t}lex"+g.small(1, 3))
	return append(args, g.keys[len(g.keys)-1])
}

// numKeys is the number of keys and the keys.
func (g *generator) numKeys(kind string, args []string) []string {
	g.count = 1 + g.rnd.IntN(3)
	args = append(args, g.odd(0.04, strconv.Itoa(g.count)))
	for range g.count {
		switch {
		case kind == "lists":
			args = g.keyArgument(listType, args)
		case kind == "sets", kind == "zorsets" && g.chance(0.3):
			args = g.keyArgument(setType, args)
		default:
			args = g.keyArgument(sortedSetType, args)
		}
	}
	return args
}

// odd is mostly the given text.
func (g *generator) odd(p float64, text string) string {
	if g.chance(p) {
		return pick(g, oddNumbers)
	}
	return text
}

func (g *generator) integer() string {
	return g.odd(0.06, pick(g, []string{g.small(-5, 20), g.small(-1000, 1000), strconv.FormatInt(g.rnd.Int64(), 10)}))
}

func (g *generator) float() string {
	return g.odd(0.03, pick(g, []string{g.small(-5, 20), pick(g, floats)}))
}

func (g *generator) fieldName() string {
	if g.chance(0.9) {
		return "f" + g.small(1, 8)
	}
	return g.value()
}

func (g *generator) memberName() string {
	switch {
	case g.chance(0.7):
		return "m" + g.small(1, 12)
	case g.chance(0.5):
		return g.small(-3, 12) // sets of integers have an encoding of their own
	}
	return g.value()
}

func (g *generator) scoreBound() string {
	f := pick(g, []string{"-inf", "+inf", "inf", g.small(-5, 20), pick(g, floats)})
	if g.chance(0.25) {
		f = "(" + f
	}
	return g.odd(0.03, f)
}

func (g *generator) lexBound() string {
	return g.odd(0.03, pick(g, []string{"-", "+", "[" + g.memberName(), "(" + g.memberName(), "[m", "(m5", "["}))
}

// timeToLive is so long that nothing expires in a test, and so random that two
// are never nearly equal.
func (g *generator) timeToLive(millis bool) string {
	if g.chance(0.1) {
		return pick(g, []string{"0", "-1", "-100", "9223372036854775807", "9223372036854775", "9223372036854776", "-9223372036854775808", "abc", "", "1.5"})
	}
	n := 1000 + g.rnd.Int64N(1_000_000_000)
	if millis {
		n *= 1000
	}
	return strconv.FormatInt(n, 10)
}

// instant is far away, or in the past. Equal ones are frequent.
func (g *generator) instant(millis bool) string {
	if g.chance(0.1) {
		return pick(g, []string{"1", "0", "-1", "1000000000", "9223372036854775807", "9223372036854775", "9223372036854776", "-9223372036854775808", "abc", ""})
	}
	n := 5_000_000_000 + 100_000_000*g.rnd.Int64N(5)
	if millis {
		n *= 1000
	}
	return strconv.FormatInt(n, 10)
}
