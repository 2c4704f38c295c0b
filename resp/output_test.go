package resp

import (
	"strings"
	"testing"
	"time"

	"github.com/slotmesh/slotmesh/internal/racing"
	"github.com/stretchr/testify/require"
	lua "github.com/yuin/gopher-lua"
)

// What is held for a client is bounded, whatever it asks for at a time; what it
// has changed stays.
func TestClientThatAsksForTooMuchIsCut(t *testing.T) {
	s := startServer(t, func(c *Config) { c.Limits.Output = 1 << 20 })
	other := dial(t, s)
	other.check([2]string{"SET a " + strings.Repeat("x", 100_000), "OK"})
	for range 20 {
		other.do("RPUSH", "{a}l", strings.Repeat("y", 100_000))
	}
	for name, commands := range map[string][]string{
		"one command":     {"LRANGE {a}l 0 -1"},
		"a transaction":   {"MULTI", "INCR {a}n", strings.Repeat("GET a\n", 20), "EXEC"},
		"keys and none":   {"MULTI", strings.Repeat("GET a\n", 6), strings.Repeat("ECHO "+strings.Repeat("z", 100_000)+"\n", 6), "EXEC"},
		"a script":        {"EVAL local\u00a0t={}\u00a0for\u00a0i=1,20\u00a0do\u00a0t[i]=ARGV[1]\u00a0end\u00a0return\u00a0t 0 " + strings.Repeat("x", 100_000)},
		"tables in knots": {"EVAL local\u00a0t={}\u00a0for\u00a0i=1,100\u00a0do\u00a0t={t,t}\u00a0end\u00a0return\u00a0t 0"},
	} {
		c := dial(t, s)
		for _, lines := range commands {
			for _, line := range strings.Split(strings.TrimSpace(lines), "\n") {
				words := strings.Split(line, " ")
				for i := range words {
					words[i] = strings.ReplaceAll(words[i], "\u00a0", " ")
				}
				c.send(words...)
			}
		}
		for {
			b, err := c.r.ReadByte()
			if err != nil {
				break
			}
			require.Contains(t, "+OKQUED\r\n", string(b), "%s: a reply that is none", name)
		}
	}
	require.Equal(t, "1", other.do("GET {a}n"))
	c := dial(t, s)
	for range 30 { // one after the other they may be as many as they like
		c.send("GET a")
	}
	for range 30 {
		require.Len(t, c.read(), 100_000)
	}
	require.Equal(t, "ERR the reply of a command is too large for a script", c.do("EVAL", "return redis.pcall('lrange', KEYS[1], 0, -1)", "1", "{a}l"))
}

func TestScriptsMakeNoEndlessTexts(t *testing.T) {
	racing.OneGoroutine(t)
	c := dial(t, startServer(t))
	for _, text := range []string{
		`local s, t = ("x"):rep(1e6), {} for i=1,1000 do t[i]=s end return table.concat(t)`,
		`return (("x"):rep(1e5):gsub("x", ("y"):rep(1e5)))`,
	} {
		require.Contains(t, c.do("EVAL", text, "0"), "resulting string too large", text)
	}
	var json jsonEncoder
	json.out.Write(make([]byte, luaStringMax))
	require.NoError(t, json.value(lua.LNumber(1), 0))
	require.EqualError(t, json.value(lua.LNumber(1), 0), "Cannot serialise: resulting string too large")
	require.Equal(t, "1,2", c.do("EVAL", `return table.concat({1, 2}, ",")`, "0"))
	require.Contains(t, c.do("EVAL", `return table.concat({1, {}}, ",")`, "0"), "ERR user_script:1: invalid value (table) at index 2 in table for concat")
}

// A script that is stopped has done nothing, in a transaction neither.
func TestScriptIsStoppedInTransaction(t *testing.T) {
	s := startServer(t)
	c, other := dial(t, s), dial(t, s)
	c.check([2]string{"MULTI", "OK"}, [2]string{"SET {a}b 1", "QUEUED"})
	require.Equal(t, "QUEUED", c.do("EVAL", "redis.call('set',KEYS[1],1) while true do end", "1", "a"))
	c.send("EXEC")
	require.Eventually(t, func() bool { return other.do("SCRIPT KILL") == "OK" }, 5*time.Second, time.Millisecond)
	require.Equal(t, "ERR Error running script: Script killed by user with SCRIPT KILL...", c.read())
	c.check([2]string{"GET a", "(nil)"}, [2]string{"GET {a}b", "(nil)"})
}

// A watched key whose time comes has changed, though nobody has written it.
func TestWatchedKeyThatExpiresAbortsExec(t *testing.T) {
	c := dial(t, startServer(t))
	c.check([2]string{"SET a 1 PX 20", "OK"}, [2]string{"WATCH a", "OK"})
	require.Eventually(t, func() bool { return c.do("EXISTS a") == "0" }, 5*time.Second, time.Millisecond)
	c.check([2]string{"MULTI", "OK"}, [2]string{"SET a 2", "QUEUED"}, [2]string{"EXEC", "(nil)"}, [2]string{"EXISTS a", "0"})
}

// EXEC looks at the time of every watched key, also of one in another slot, and
// where it has no keys itself. Replies of redis-server 7.0.
func TestWatchedKeyOfAnotherSlotThatExpiresAbortsExec(t *testing.T) {
	s := startServer(t)
	for _, queue := range [][]string{{"SET other 2"}, {"PING"}, {}, {"GET other"}} {
		c, other := dial(t, s), dial(t, s)
		c.check([2]string{"SET a 1 PX 30", "OK"}, [2]string{"WATCH a b", "CROSSSLOT Keys in request don't hash to the same slot"}, [2]string{"WATCH b", "OK"}, [2]string{"WATCH a", "OK"}, [2]string{"MULTI", "OK"})
		for _, command := range queue {
			c.check([2]string{command, "QUEUED"})
		}
		require.Eventually(t, func() bool { return other.do("EXISTS a") == "0" }, 5*time.Second, time.Millisecond)
		c.check([2]string{"EXEC", "(nil)"}, [2]string{"EXISTS other", "0"})
		c.check([2]string{"WATCH a", "OK"}, [2]string{"MULTI", "OK"}, [2]string{"PING", "QUEUED"}, [2]string{"EXEC", "[PONG]"}) // it was not there
	}
}
