package resp

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Replies of redis-server 7.0.
func TestPatternsOfScripts(t *testing.T) {
	c := dial(t, startServer(t))
	for _, row := range [][2]string{
		{`return {string.find("abc","b",10), 1}`, "[]"},
		{`return {string.find("abc","",4)}`, "[4 3]"},
		{`return {string.find("a.c",".",1,true)}`, "[2 2]"},
		{`return {string.find("a\0c","%z")}`, "[2 2]"},
		{`return {string.find("abc","()b()")}`, "[2 2 2 3]"},
		{`return {string.find("abcabc","c",-2)}`, "[6 6]"},
		{`return {string.find("abc","[a-]",2)}`, "[]"},
		{`return {string.find("a]c","[]]")}`, "[2 2]"},
		{`return {string.find("a^c","[b^]")}`, "[2 2]"},
		{`return {string.find("abc","[^%a]")}`, "[]"},
		{`return string.match("key = val","(%w+) = (%w+)")`, "key"},
		{`return {string.match("key=val","^(%w+)=(%w*)$")}`, "[key val]"},
		{`return {string.match("  x ","^%s*(.-)%s*$")}`, "[x]"},
		{`return string.match("f(a(b)c)d","%b()")`, "(a(b)c)"},
		{`return {string.gsub("THE (quick) fox","%f[%a]%a+","w")}`, "[w (w) w 3]"},
		{`return string.match([[x='it"s' y]],"(['\"])(.-)%1")`, "'"},
		{`return {string.gsub("hello world","o","0",1)}`, "[hell0 world 1]"},
		{`return {string.gsub("abc","","-")}`, "[-a-b-c- 4]"},
		{`return {string.gsub("hello world","(%w+) (%w+)","%2 %1")}`, "[world hello 1]"},
		{`return {string.gsub("abc","()b","%1")}`, "[a2c 1]"},
		{`return {string.gsub("abc","%w","%0%0")}`, "[aabbcc 3]"},
		{`return {string.gsub("abc","^a","%%")}`, "[%bc 1]"},
		{`return {string.gsub("abc","b","%x")}`, "[axc 1]"},
		{`return {string.gsub("$a $b $c","%$(%w)",{a="1",b=2,c=false})}`, "[1 2 $c 3]"},
		{`return {string.gsub("abc","%w",function(x) if x=="b" then return "B" end end)}`, "[aBc 3]"},
		{`local r={} for k,v in string.gmatch("a=1,b=2","(%w)=(%w)") do r[#r+1]=k..v end return r`, "[a1 b2]"},
		{`local r={} for w in string.gmatch("ab","%w*") do r[#r+1]="<"..w..">" end return r`, "[<ab> <>]"},
		{`local r={} for w in string.gmatch("abc","^.") do r[#r+1]=w end return r`, "[]"},
		{`return ("x"):rep(3):gsub("x","y")`, "yyy"},
		{`return string.gfind`, "(nil)"},
		{`return {string.gsub("abc","b","%9")}`, "ERR user_script:1: invalid capture index"},
		{`return string.match("abc","(b")`, "ERR user_script:1: unfinished capture"},
		{`return {string.gsub("abc","b)","x")}`, "ERR user_script:1: invalid pattern capture"},
		{`return {string.find("abc","[b")}`, "ERR user_script:1: malformed pattern (missing ']')"},
		{`return {string.find("abc","[%")}`, "ERR user_script:1: malformed pattern (missing ']')"},
		{`return {string.find("abc","%")}`, "ERR user_script:1: malformed pattern (ends with '%')"},
		{`return {string.find("abc","%f")}`, "ERR user_script:1: missing '[' after '%f' in pattern"},
		{`return {string.find("abc","%b")}`, "ERR user_script:1: unbalanced pattern"},
		{`return {string.find("abc","%1")}`, "ERR user_script:1: invalid capture index"},
		{`return {string.find(("a"):rep(40),("(a)"):rep(33))}`, "ERR user_script:1: too many captures"},
		{`return {string.gsub("abc","b",{b=true})}`, "ERR user_script:1: invalid replacement value (a boolean)"},
		{`return {string.gsub("abc","b",true)}`, "ERR user_script:1: bad argument #3 to 'gsub' (string/function/table expected)"},
	} {
		got := c.do("EVAL", row[0], "0")
		if got, _, _ = strings.Cut(got, " script: "); got != row[1] {
			t.Errorf("%s:\n got %q\nwant %q", row[0], got, row[1])
		}
	}
}

// A pattern with many ways to match would keep its slot for years.
func TestPatternsOfAScriptThatIsStoppedEnd(t *testing.T) {
	s := startServer(t)
	c, other := dial(t, s), dial(t, s)
	for _, call := range []string{
		`string.find(("a"):rep(40).."b", ("a*"):rep(20).."c")`,
		`string.gsub(("a"):rep(1000000), ".-b", "")`,
		`string.match(("("):rep(1000000), "%b()")`,
	} {
		c.send("EVAL", "pcall(function() "+call+" end) while true do end", "1", "k")
		require.Eventually(t, func() bool { return other.do("SCRIPT KILL") == "OK" }, 5*time.Second, time.Millisecond)
		require.Equal(t, "ERR Error running script: Script killed by user with SCRIPT KILL...", c.read(), call)
		require.Equal(t, "(nil)", c.do("GET k"))
	}
}

func TestPatternsAreNotNestedWithoutBounds(t *testing.T) {
	c := dial(t, startServer(t))
	got := c.do("EVAL", `return string.find(("a"):rep(100000), ("a?"):rep(100000))`, "0")
	require.Contains(t, got, "ERR user_script:1: pattern too complex")
}
