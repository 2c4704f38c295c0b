package resp

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/slotmesh/slotmesh"
	"github.com/stretchr/testify/require"
)

// replyTest is commands in order and their replies: first in RESP2, then in
// RESP3.
type replyTest struct {
	name         string
	resp2, resp3 [][2]string
}

func checkReplies(t *testing.T, tests []replyTest) {
	t.Helper()
	b := newBench(t)
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			b.t, b.proto = t, 2
			b.check(test.resp2...)
			b.proto = 3
			b.check(test.resp3...)
			b.deleteKeys(append(test.resp2, test.resp3...))
		})
	}
	b.t = t
}

// deleteKeys removes every key that commands have named.
func (b *bench) deleteKeys(rows [][2]string) {
	b.t.Helper()
	for _, row := range rows {
		var args [][]byte
		for _, w := range strings.Fields(row[0]) {
			args = append(args, []byte(w))
		}
		command, err := b.table.lookup(args)
		if err != nil {
			continue
		}
		at, err := command.keys(nil, args)
		if err != nil {
			continue
		}
		for _, i := range at {
			_, err := b.node.Client().Delete(context.Background(), string(args[i]))
			require.NoError(b.t, err)
		}
	}
}

// elements parses an array, a set or a map of strings, or of arrays of strings,
// and returns all its strings.
func elements(t testing.TB, reply string) []string {
	t.Helper()
	var all []string
	for rest := reply; rest != ""; {
		line, after, found := strings.Cut(rest, "\r\n")
		require.True(t, found, "%q", reply)
		rest = after
		switch line[0] {
		case '*', '~', '%':
		case '$':
			n, err := strconv.Atoi(line[1:])
			require.NoError(t, err)
			all = append(all, rest[:n])
			rest = rest[n+2:]
		default:
			require.Fail(t, "an element is no string", "%q in %q", line, reply)
		}
	}
	return all
}

// fill gives a key n members, named by f.
func (b *bench) fill(words []string, n int, f func(i int) []string) {
	b.t.Helper()
	const batch = 1000
	for i := 0; i < n; i += batch {
		all := slices.Clone(words)
		for j := i; j < min(i+batch, n); j++ {
			all = append(all, f(j)...)
		}
		reply := b.run(all...)
		require.False(b.t, strings.HasPrefix(reply, "-"), reply)
	}
}

// scanAll walks over a collection, and calls between before each page but the
// first. It returns the names in the order in which they came.
func (b *bench) scanAll(command, key, count string, step int, between func()) (names []string, pages int) {
	b.t.Helper()
	for cursor := ""; cursor != "0"; pages++ {
		if cursor == "" {
			cursor = "0"
		} else {
			between()
		}
		reply := elements(b.t, b.run(command, key, cursor, "COUNT", count))
		cursor = reply[0]
		for i := 1; i < len(reply); i += step {
			names = append(names, reply[i])
		}
		require.Less(b.t, pages, 1<<20, "the walk does not end")
	}
	return names, pages
}

var scans = []struct {
	command, add, remove string
	member               func(name string) []string
	step                 int
}{
	{"HSCAN", "HSET", "HDEL", func(n string) []string { return []string{n, "v"} }, 2},
	{"SSCAN", "SADD", "SREM", func(n string) []string { return []string{n} }, 1},
	{"ZSCAN", "ZADD", "ZREM", func(n string) []string { return []string{"1", n} }, 2},
}

func TestScanReturnsEachMemberOnceWhereNothingChanges(t *testing.T) {
	for _, s := range scans {
		t.Run(s.command, func(t *testing.T) {
			b := newBench(t)
			for _, n := range []int{1, 127, 128, 129, 5000} {
				key := fmt.Sprintf("k%d", n)
				b.fill([]string{s.add, key}, n, func(i int) []string {
					return s.member(fmt.Sprintf("a-long-common-prefix:%06d", i))
				})
				names, pages := b.scanAll(s.command, key, "100", s.step, func() {})
				slices.Sort(names)
				require.Len(t, slices.Compact(names), n)
				if n <= onePage {
					require.Equal(t, 1, pages, "a small collection comes in one page")
				} else {
					require.Equal(t, (n+99)/100, pages)
				}
			}
		})
	}
}

// TestScanMissesNoMemberThatStays adds and removes others between all pages: at
// the front, at the end, and what has just been returned.
func TestScanMissesNoMemberThatStays(t *testing.T) {
	for _, s := range scans {
		t.Run(s.command, func(t *testing.T) {
			b := newBench(t)
			b.fill([]string{s.add, "k"}, 3000, func(i int) []string { return s.member(fmt.Sprintf("stays%d", i)) })
			b.fill([]string{s.add, "k"}, 3000, func(i int) []string { return s.member(fmt.Sprintf("goes%d", i)) })
			round := 0
			names, _ := b.scanAll(s.command, "k", "50", s.step, func() {
				gone := []string{s.remove, "k"}
				came := []string{s.add, "k"}
				for i := range 60 {
					gone = append(gone, fmt.Sprintf("goes%d", round*60+i))
					came = append(came, s.member(fmt.Sprintf("comes%d", round*10+i%10))...)
				}
				b.run(gone...)
				b.run(came...)
				round++
			})
			seen := map[string]bool{}
			for _, n := range names {
				seen[n] = true
			}
			for i := range 3000 {
				if name := fmt.Sprintf("stays%d", i); !seen[name] {
					t.Errorf("%s was missed", name)
				}
			}
		})
	}
}

// Names of one sum share a place in the order of a scan: they come in one page,
// and the walk goes on behind them.
func TestScanGetsPastMembersOfOneSum(t *testing.T) {
	b := newBench(t)
	b.fill([]string{"SADD", "k"}, 500, func(i int) []string { return []string{strconv.Itoa(i)} })
	same := sameSums()
	b.run(append([]string{"SADD", "k"}, same...)...)
	names, pages := b.scanAll("SSCAN", "k", "1", 1, func() {})
	slices.Sort(names)
	require.Len(t, slices.Compact(names), 500+len(same))
	require.Greater(t, pages, 400)
}

// sameSums is 256 names of one sum. Two of them are found by chance; what stands
// before or behind two such names changes their sums alike.
func sameSums() []string {
	seen := map[uint32]string{}
	var a, b string
	for i := 0; a == ""; i++ {
		b = fmt.Sprintf("%08x", uint64(i)*2654435761)
		sum := sumOf(field([]byte(b)))
		a = seen[sum]
		seen[sum] = b
	}
	names := []string{""}
	for range 8 {
		var longer []string
		for _, n := range names {
			longer = append(longer, n+a, n+b)
		}
		names = longer
	}
	return names
}

func TestRandomMembersAreDrawnWithoutPreference(t *testing.T) {
	b := newBench(t)
	b.run("SADD a 0 1 2 3 4 5 6 7 8 9")
	for _, count := range []string{"2", "5", "-5"} {
		seen := map[string]int{}
		drawn := 0
		for range 4000 {
			names := elements(t, b.run("SRANDMEMBER", "a", count))
			if count[0] != '-' {
				require.Len(t, slices.Compact(slices.Sorted(slices.Values(names))), len(names), "drawn twice")
			}
			for _, n := range names {
				seen[n]++
				drawn++
			}
		}
		for i := range 10 {
			// 800 to 2000 are expected: 4 of their standard deviations are below 180.
			if got := seen[strconv.Itoa(i)]; got < drawn/10-180 || got > drawn/10+180 {
				t.Errorf("SRANDMEMBER a %s: %d came %d times, want about %d", count, i, got, drawn/10)
			}
		}
	}
}

// The three ways to draw a number of members, and what is left of a set from
// which they were taken.
func TestSPopTakesAwayWhatItReturns(t *testing.T) {
	for _, count := range []int{1, 10, 124, 126, 500, 999} {
		b := newBench(t)
		b.fill([]string{"SADD", "s"}, 1000, func(i int) []string { return []string{strconv.Itoa(i)} })
		popped := elements(t, b.run("SPOP", "s", strconv.Itoa(count)))
		left := elements(t, b.run("SMEMBERS s"))
		require.Len(t, popped, count)
		all := append(popped, left...)
		slices.Sort(all)
		require.Len(t, slices.Compact(all), 1000)
		require.Equal(t, fmt.Sprintf(":%d\r\n", 1000-count), b.run("SCARD s"))
	}
}

// Commands that come after others in one Tx see what those have done.
func TestCommandsOfOneTxSeeEachOther(t *testing.T) {
	b := newBench(t)
	b.run("ZADD z 1 a 2 b 3 c 4 d")
	b.run("RPUSH {z}l a b c")
	b.run("SADD {z}s a b")
	got := b.together([][]string{
		{"ZADD", "z", "2.5", "x"}, {"ZREM", "z", "a"}, {"ZRANK", "z", "x"}, {"ZRANGE", "z", "0", "-1"},
		{"ZREVRANGE", "z", "0", "1"}, {"ZPOPMIN", "z"}, {"ZCOUNT", "z", "-inf", "3"},
		{"RPOPLPUSH", "{z}l", "{z}l"}, {"LTRIM", "{z}l", "1", "-1"}, {"LPUSH", "{z}l", "y"}, {"LRANGE", "{z}l", "0", "-1"}, {"LPOS", "{z}l", "b", "RANK", "-1"},
		{"SADD", "{z}s", "c"}, {"SREM", "{z}s", "a", "b"}, {"SPOP", "{z}s"}, {"SCARD", "{z}s"},
	})
	require.Equal(t, []string{
		":1\r\n", ":1\r\n", ":1\r\n", "*4\r\n$1\r\nb\r\n$1\r\nx\r\n$1\r\nc\r\n$1\r\nd\r\n",
		"*2\r\n$1\r\nd\r\n$1\r\nc\r\n", "*2\r\n$1\r\nb\r\n$1\r\n2\r\n", ":2\r\n",
		"$1\r\nc\r\n", "+OK\r\n", ":3\r\n", "*3\r\n$1\r\ny\r\n$1\r\na\r\n$1\r\nb\r\n", ":2\r\n",
		":1\r\n", ":2\r\n", "$1\r\nc\r\n", ":0\r\n",
	}, got)
	require.Equal(t, "*3\r\n$1\r\nx\r\n$1\r\nc\r\n$1\r\nd\r\n", b.run("ZRANGE z 0 -1"))
}

// together runs commands in one Tx, as EXEC does.
func (b *bench) together(commands [][]string) (replies []string) {
	b.t.Helper()
	r := slotmesh.Request{Name: "exec", Keys: []string{commands[0][1]}}
	err := b.node.Execute(context.Background(), r, func(tx *slotmesh.Tx) error {
		for _, words := range commands {
			args := make([][]byte, len(words))
			for i, w := range words {
				args[i] = []byte(w)
			}
			command, err := b.table.lookup(args)
			if err != nil {
				return err
			}
			var reply Reply
			reply.reset(b.proto)
			c := Call{Tx: tx, Args: args, Reply: &reply, command: command}
			if err := command.Run(&c); err != nil {
				return err
			}
			if c.wait != nil {
				c.wait.refuse(&reply)
			}
			replies = append(replies, string(reply.bytes()))
		}
		return nil
	})
	require.NoError(b.t, err)
	return replies
}

// A command that finds nothing where it may not wait answers as in redis-server
// 7.0: BLMOVE and BRPOPLPUSH with another reply than when their time is over.
func TestBlockingCommandsDoNotWaitInATransaction(t *testing.T) {
	commands := [][]string{
		{"BLMOVE", "{t}l", "{t}m", "LEFT", "RIGHT", "0"}, {"BRPOPLPUSH", "{t}l", "{t}m", "0"}, {"BLPOP", "{t}l", "0"}, {"BRPOP", "{t}l", "0"},
		{"BLMPOP", "0", "1", "{t}l", "LEFT"}, {"BZPOPMIN", "{t}l", "0"}, {"BZPOPMAX", "{t}l", "0"}, {"BZMPOP", "0", "1", "{t}l", "MIN"},
	}
	b := newBench(t)
	require.Equal(t, []string{"$-1\r\n", "$-1\r\n", "*-1\r\n", "*-1\r\n", "*-1\r\n", "*-1\r\n", "*-1\r\n", "*-1\r\n"}, b.together(commands))
}

// A command that waits goes on to wait where a key of another kind has come.
func TestBlockingCommandsOverlookOtherKindsWhileTheyWait(t *testing.T) {
	s := startServer(t)
	for _, words := range []string{"BLPOP {t}q 0", "BLMOVE {t}q {t}m LEFT LEFT 0", "BLMPOP 0 1 {t}q LEFT", "BZPOPMIN {t}q 0", "BZMPOP 0 1 {t}q MIN"} {
		c, other := dial(t, s), dial(t, s)
		id := c.do("CLIENT ID")
		c.blocked(s, 1, words)
		other.check([2]string{"SADD {t}q a", "1"}, [2]string{"SADD {t}q b", "1"}, [2]string{"CLIENT UNBLOCK " + id, "1"}, [2]string{"DEL {t}q", "1"})
		require.Equal(t, "(nil)", c.read(), words)
	}
}
