package compat

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What is no command, or only a part of one, as bytes on a socket: redis-server
// and slotmesh give the same bytes back, run the same, and end the connection at
// the same place.

var fragmentCount = flag.Int("compat.fragments", 2_000, "random `fragments` to send to redis-server and to slotmesh")

// fragments are what is known to go wrong somewhere.
func fragments() []string {
	bulk := func(args ...string) string {
		l := &link{}
		l.add(args)
		return string(l.w)
	}
	ping, set := bulk("PING"), bulk("SET", "x", "1")
	list := []string{
		// Counts.
		"*0\r\n", "*-1\r\n", "*-2147483649\r\n", "*\r\n", "*a\r\n", "*1a\r\n", "* 1\r\n", "*+1\r\n", "*01\r\n", "*-0\r\n", "*1 \r\n", "*1\x00\r\n", "**1\r\n",
		"*2147483648\r\n", "*4294967297\r\n", "*9223372036854775807\r\n", "*9223372036854775808\r\n", "*18446744073709551617\r\n", "*" + strings.Repeat("1", 70_000),
		"*1\n$4\nPING\n", "*1\r\r$4\r\r", "*1\rx$4\rxPINGxx", "*1\n\r\n", "*1048576\r\n", "*1024\r\n$4\r\nPING\r\n",
		// Lengths.
		"*1\r\n$\r\n", "*1\r\n$a\r\n", "*1\r\n$-1\r\n", "*1\r\n$-0\r\n", "*1\r\n$+4\r\nPING\r\n", "*1\r\n$04\r\nPING\r\n", "*1\r\n$ 4\r\nPING\r\n", "*1\r\n$4 \r\nPING\r\n", "*1\r\n$4\nPING\r\n",
		"*1\r\n$0\r\n\r\n", "*2\r\n$0\r\n\r\n$1\r\nx\r\n", "*1\r\n$67108865\r\n", "*1\r\n$536870913\r\n", "*1\r\n$4294967300\r\n", "*1\r\n$9223372036854775808\r\n", "*1\r\n$" + strings.Repeat("1", 70_000),
		"*1\r\n$4\r\nPINGxx", "*1\r\n$4\r\nPING\n\n", "*1\r\n$4\r\nPIN\r\n", "*1\r\n$3\r\nPING\r\n", "*1\r\n$5\r\nPING\r\n", "*2\r\n$4\r\nECHO\r\n$67108864\r\nx", "*1\r\n$4\r\nPING",
		// Other types, nested ones among them.
		"*1\r\n+PING\r\n", "*1\r\n:4\r\n", "*1\r\n-ERR x\r\n", "*1\r\n*1\r\n" + ping, "*2\r\n" + ping, "*1\r\nPING\r\n", "*1\r\n\r\n$4\r\nPING\r\n", "*1\r\n\n", "*1\r\n\x00$4\r\n", "*1\r\n\x80\r\n",
		"+OK\r\n", "-ERR x\r\n", ":1\r\n", "$4\r\nPING\r\n", "%1\r\n+a\r\n+b\r\n", "~1\r\n+a\r\n", ">1\r\n+a\r\n", "_\r\n", "#t\r\n", ",1.5\r\n", "(123\r\n", "|1\r\n+a\r\n+b\r\n",
		// Lines.
		"PING\r\n", "PING\n", "ping\r\r\n", " PING \r\n", "\tPING\t\n", "\vPING\f\r\n", "\r\n\r\n\n\nPING\r\n", "   \r\nPING\r\n", "PING", "PING\r", "PING\rPING\n",
		"ECHO \"a b\"\r\n", "ECHO 'a b'\r\n", "ECHO \"\\x41\\x4g\\n\\r\\t\\b\\a\\\\\\\"\\q\"\r\n", "ECHO 'a\\'b\\n\"'\r\n", "ECHO a\"b c\"\r\n", "ECHO \"a\"b\r\n", "ECHO 'a'b\r\n", "ECHO 'a''b'\r\n", "ECHO \"\"\r\n", "ECHO ''\r\n",
		"ECHO \"a\r\n", "ECHO 'a\r\n", "ECHO a\"b\r\n", "ECHO a'b\r\n", "ECHO \"a\\\"\r\n", "ECHO \"\\x4\"\r\n", "ECHO \"\\\r\n", "\"PING\"\r\n", "'PI'NG\r\n", "\"\"\r\n", "\"\" x\r\n",
		"ECHO \xff\xfe\r\n", "NOSUCH \x01\x02\r\n", "ECHO " + strings.Repeat("x", 60_000) + "\r\n", strings.Repeat("x", 70_000), "ECHO " + strings.Repeat("a ", 200) + "\r\n",
		// Other protocols.
		"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "POST / HTTP/1.1\r\nHost: x\r\n\r\n", "post x\r\n", "HEAD / HTTP/1.1\r\n", "PUT / HTTP/1.1\r\nHost: x\r\n", "OPTIONS * HTTP/1.1\r\nhost: x\r\n", "DELETE /x HTTP/1.1\r\n\r\n",
		"CONNECT x:1 HTTP/1.1\r\n\r\n", "TRACE / HTTP/1.1\r\n\r\n", "PATCH / HTTP/1.1\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "Host: x\r\n", "Host:x\r\n", "POSTS\r\n", "SSH-2.0-x\r\n", "stats\r\n", "\x16\x03\x01\x02\x01\x01\xfc\x03\x03\r\n",
		bulk("POST", "/"), bulk("Host:"), bulk("host:", "x"),
		// Commands that are whole.
		bulk(""), bulk("", ""), bulk("PING", "\x00\r\n\xff"), bulk("NOSUCH", "a\r\nb\x00c"), bulk("no\r\nsuch"), bulk("CLUSTER"), bulk("CLUSTER", "no\r\nsuch"), bulk("GET"), bulk("QUIT"), "QUIT\r\n", bulk("GET", strings.Repeat("k", 5000)),
		strings.Repeat(ping, 300), set + "SET x 2\r\n" + bulk("GET", "x"),
	}
	return list
}

// A fragment is sent twice: with what follows, which must not run where the bytes
// before it have ended the connection, and without.
func TestFragmentsAreAnsweredAsByRedis(t *testing.T) {
	const follows = "\r\nSET x 1\r\n*3\r\n$3\r\nSET\r\n$1\r\ny\r\n$1\r\n1\r\n"
	for _, password := range []bool{false, true} {
		p := newFragmentPair(t, password)
		for _, f := range fragments() {
			p.compare(f)
			p.compare(f + follows)
		}
	}
}

func TestRandomFragmentsAreAnsweredAsByRedis(t *testing.T) {
	for _, password := range []bool{false, true} {
		p := newFragmentPair(t, password)
		first := max(0, *onlyEpisode)
		for i := first; i < first+*fragmentCount; i++ {
			p.name = fmt.Sprintf("-compat.seed=%d -compat.episode=%d -compat.fragments=1: ", *firstSeed, i)
			p.compare(randomFragment(rand.New(rand.NewPCG(*firstSeed, uint64(i)))))
			if t.Failed() {
				return
			}
		}
	}
}

// randomFragment is some of the known ones behind each other, with bytes that
// were changed, added, lost or doubled.
func randomFragment(rnd *rand.Rand) string {
	const most = 16 << 10 // bytes: all of it is with the server before it answers
	known := fragments()
	var b []byte
	for range 1 + rnd.IntN(5) {
		if f := known[rnd.IntN(len(known))]; len(b)+len(f) < most {
			b = append(b, f...)
		}
	}
	const signs = "*$+-:%~>_#,(|0123456789\r\n\r\n\r\n \"'\\x\x01\xffaPING"
	for range rnd.IntN(6) {
		at := rnd.IntN(len(b) + 1)
		to := min(len(b), at+1+rnd.IntN(4))
		switch sign := signs[rnd.IntN(len(signs))]; rnd.IntN(5) {
		case 0:
			b = append(b[:at:at], b[to:]...)
		case 1:
			b = append(b[:to:to], b[at:]...)
		case 2:
			b = b[:at]
		case 3:
			b = append(append(b[:at:at], sign), b[at:]...)
		case 4:
			if at < len(b) {
				b[at] = sign
			}
		}
	}
	return string(b)
}

// fragmentPair is both servers, with or without a password.
type fragmentPair struct {
	t              *testing.T
	redis, ours    string
	control, other *link // to redis-server and to slotmesh
	name           string
	password       bool
	excused        map[string]int // how often answers differed, by the reason
}

func newFragmentPair(t *testing.T, password bool) *fragmentPair {
	p := &fragmentPair{t: t, redis: startCompared(t), ours: startOurs(t), password: password, excused: map[string]int{}}
	t.Cleanup(func() { t.Logf("password %v, excused: %v", password, p.excused) })
	p.control, p.other = connect(t, p.redis, "2"), connect(t, p.ours, "2")
	if password {
		for _, l := range []*link{p.control, p.other} {
			for _, args := range [][]string{{"CONFIG", "SET", "requirepass", "secret"}, {"AUTH", "secret"}} {
				r, err := l.do(args...)
				require.NoError(t, err)
				require.True(t, r.is("OK"), "%q: %s", args, r)
			}
		}
	}
	return p
}

// compare sends a fragment to both.
func (p *fragmentPair) compare(fragment string) {
	p.t.Helper()
	want, ends := p.send(p.redis, fragment, nil)
	got, ended := p.send(p.ours, fragment, &ends)
	if ended && !ends && want == got {
		want, ends = p.send(p.redis, fragment, &ended) // it was slow to end, or it does not
	}
	shown := fragment
	if len(shown) > 400 {
		shown = fmt.Sprintf("%s… (%d bytes) …%s", shown[:200], len(fragment), shown[len(shown)-200:])
	}
	same := want == got && ends == ended
	if !same && !p.excuse(&fragmentAnswers{fragment, want, got, ends, ended, p.password}) {
		p.t.Errorf("%s%q, password %v: redis-server answers %.300q, ends %v; slotmesh %.300q, %v", p.name, shown, p.password, want, ends, got, ended)
	}
	a, err := p.control.do("KEYS", "*")
	require.NoError(p.t, err)
	b, err := p.other.do("KEYS", "*")
	require.NoError(p.t, err)
	if same && !a.sorted(1).equal(b.sorted(1)) {
		p.t.Errorf("%s%q: redis-server has %s after it, slotmesh %s", p.name, shown, a, b)
	}
	if len(a.items)+len(b.items) > 0 {
		for _, l := range []*link{p.control, p.other} {
			r, err := l.do("FLUSHALL")
			require.NoError(p.t, err)
			require.True(p.t, r.is("OK"))
		}
	}
}

// excuse reports whether answers may differ, and counts why.
func (p *fragmentPair) excuse(a *fragmentAnswers) bool {
	for _, u := range unequalFragments() {
		if u.fits(a) {
			if p.excused[u.reason]++; p.excused[u.reason] <= 2 && testing.Verbose() {
				p.t.Logf("%sexcused, %s:\n%.200q\nredis-server %.300q, ends %v\nslotmesh %.300q, ends %v", p.name, u.reason, a.sent, a.redis, a.ends, a.ours, a.ended)
			}
			return true
		}
	}
	return false
}

// send sends a fragment and nothing more, and returns what comes back, and
// whether the server ended the connection before this side did. redis-server has
// answered when it has answered another connection a few times; slotmesh is given time
// where it should end the connection, which is what ends tells.
func (p *fragmentPair) send(addr, fragment string, ends *bool) (all string, ended bool) {
	p.t.Helper()
	nc, err := net.Dial("tcp", addr)
	require.NoError(p.t, err)
	defer nc.Close()
	_, err = io.WriteString(nc, fragment)
	require.NoError(p.t, err)
	patience := 2 * time.Millisecond
	if ends == nil {
		for range 5 { // takes the connection, reads, answers, ends it
			r, err := p.control.do("PING")
			require.NoError(p.t, err)
			require.True(p.t, r.is("PONG"))
		}
	} else if *ends {
		patience = replyTime
	}
	require.NoError(p.t, nc.SetReadDeadline(time.Now().Add(patience)))
	before, err := io.ReadAll(nc)
	if ended = !errors.Is(err, os.ErrDeadlineExceeded); ended {
		return string(before), true // a connection that was reset has ended too
	}
	if err := nc.(*net.TCPConn).CloseWrite(); errors.Is(err, syscall.ENOTCONN) {
		return string(before), true // it has been reset since
	} else {
		require.NoError(p.t, err)
	}
	require.NoError(p.t, nc.SetReadDeadline(time.Now().Add(replyTime)))
	rest, err := io.ReadAll(nc)
	require.False(p.t, errors.Is(err, os.ErrDeadlineExceeded), "%q: the connection is closed on one side, and stays open", fragment)
	return string(before) + string(rest), false
}
