package compat

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Commands on connections, the server and the cluster whose replies depend on
// nothing but their arguments: they are equal byte for byte.
const adminCommands = `
PING
PING a
PING a b
ECHO
ECHO x
SELECT 0
SELECT 1
SELECT x
SELECT -1
HELLO 4
HELLO x
HELLO 3 FOO
HELLO 3 AUTH a
AUTH x
AUTH default x
AUTH nobody x
AUTH a b c
CLIENT
CLIENT FOO
CLIENT ID x
CLIENT GETNAME
CLIENT SETNAME 'a b'
CLIENT SETNAME ok
CLIENT GETNAME
CLIENT LIST ID 100000 200000
CLIENT LIST ID x
CLIENT LIST ID
CLIENT LIST TYPE foo
CLIENT LIST TYPE master
CLIENT LIST FOO
CLIENT KILL
CLIENT KILL 1.1.1.1:1
CLIENT KILL ID 100000
CLIENT KILL ID x
CLIENT KILL ID 0
CLIENT KILL TYPE foo
CLIENT KILL TYPE master SKIPME maybe
CLIENT KILL USER nobody
CLIENT KILL LADDR 1.1.1.1:3
CLIENT KILL ADDR 1.1.1.1:3
CLIENT KILL FOO bar
CLIENT KILL ID 1 ADDR
CLIENT REPLY
CLIENT REPLY FOO
CLIENT REPLY ON
CLIENT UNBLOCK 100000
CLIENT UNBLOCK x
CLIENT UNBLOCK 1 FOO
CLIENT UNBLOCK 1 ERROR x
CLIENT NO-EVICT on
CLIENT NO-EVICT x
CLIENT PAUSE x
CLIENT PAUSE -1
CLIENT PAUSE 1 FOO
CLIENT PAUSE 1 WRITE x
CLIENT PAUSE 1 WRITE
CLIENT PAUSE 1
CLIENT UNPAUSE
CLIENT TRACKINGINFO
CLIENT GETREDIR
ASKING
READONLY
READWRITE
CLUSTER
CLUSTER FOO
CLUSTER INFO x
CLUSTER KEYSLOT a
CLUSTER KEYSLOT
CLUSTER COUNTKEYSINSLOT x
CLUSTER COUNTKEYSINSLOT 16384
CLUSTER COUNTKEYSINSLOT 1
CLUSTER GETKEYSINSLOT 1 x
CLUSTER GETKEYSINSLOT x 1
CLUSTER GETKEYSINSLOT 1 -1
CLUSTER GETKEYSINSLOT 99999 1
CLUSTER GETKEYSINSLOT 1 1
CLUSTER ADDSLOTS
CLUSTER ADDSLOTS x
CLUSTER ADDSLOTS 16384
CLUSTER ADDSLOTS -1
CLUSTER ADDSLOTS 1
CLUSTER ADDSLOTS 1 1
CLUSTER DELSLOTS 1 1
CLUSTER DELSLOTS x
CLUSTER DELSLOTS 5
CLUSTER DELSLOTS 5
CLUSTER ADDSLOTS 5 5
CLUSTER ADDSLOTS 5 6
CLUSTER ADDSLOTS 5
CLUSTER ADDSLOTSRANGE 1
CLUSTER ADDSLOTSRANGE 5 1
CLUSTER ADDSLOTSRANGE 1 x
CLUSTER ADDSLOTSRANGE 1 5 3
CLUSTER ADDSLOTSRANGE 1 5
CLUSTER DELSLOTSRANGE 5 1
CLUSTER DELSLOTSRANGE 1 16384
CLUSTER DELSLOTSRANGE 1 5
CLUSTER DELSLOTSRANGE 1 5
CLUSTER ADDSLOTSRANGE 1 3 3 5
CLUSTER ADDSLOTSRANGE 1 5
CLUSTER SETSLOT
CLUSTER SETSLOT x STABLE
CLUSTER SETSLOT 16384 STABLE
CLUSTER SETSLOT 1 FOO
CLUSTER SETSLOT 1 STABLE x
CLUSTER SETSLOT 1 STABLE
CLUSTER SETSLOT 1 MIGRATING
CLUSTER SETSLOT 1 MIGRATING x
CLUSTER SETSLOT 1 IMPORTING x
CLUSTER SETSLOT 1 NODE x
CLUSTER SETSLOT 1 NODE
CLUSTER FORGET x
CLUSTER FORGET 0123456789012345678901234567890123456789
CLUSTER REPLICATE x
CLUSTER REPLICAS x
CLUSTER SLAVES x
CLUSTER COUNT-FAILURE-REPORTS x
CLUSTER FAILOVER
CLUSTER FAILOVER FORCE
CLUSTER FAILOVER BLA
CLUSTER FAILOVER FORCE x
CLUSTER SET-CONFIG-EPOCH x
CLUSTER SET-CONFIG-EPOCH -1
CLUSTER SAVECONFIG
CLUSTER MEET x
CLUSTER MEET x y
CLUSTER MEET x 1
CLUSTER MEET 127.0.0.1 x
CLUSTER MEET 127.0.0.1 99999
CLUSTER MEET 127.0.0.1 60000
CLUSTER MEET 127.0.0.1 1 x
CLUSTER MEET 127.0.0.1 1 1 y
CLUSTER FLUSHSLOTS x
CLUSTER RESET FOO
CLUSTER RESET SOFT x
MIGRATE 127.0.0.1 1 k 0
MIGRATE 127.0.0.1 1 k 0 x
MIGRATE 127.0.0.1 1 k x 1
MIGRATE 127.0.0.1 1 k 0 1 FOO
MIGRATE 127.0.0.1 1 k 0 1 AUTH
MIGRATE 127.0.0.1 1 k 0 1 AUTH2 x
MIGRATE 127.0.0.1 1 k 0 1 KEYS a b
MIGRATE 127.0.0.1 1 '' 0 1 KEYS a b
MIGRATE 127.0.0.1 1 '' 0 1 KEYS
MIGRATE 127.0.0.1 1 '' 0 1 KEYS {a}1 {a}2
MIGRATE 127.0.0.1 1 nokey 0 1
SET k v
MIGRATE 127.0.0.1 1 k 0 100
MIGRATE 127.0.0.1 x k 0 100
MIGRATE 127.0.0.1 1 '' 0 100 KEYS {k}1 k
DEL k
DBSIZE
DBSIZE x
SCAN
SCAN x
SCAN 0 FOO
SCAN 0 COUNT x
SCAN 0 COUNT 0
SCAN 0 COUNT
SCAN 0 TYPE foo
SCAN 0 TYPE string MATCH k*
SCAN 99999999999999999999
SCAN -1
SCAN +1
SCAN ' 1'
SCAN 18446744073709551615
KEYS
KEYS *
RANDOMKEY
FLUSHALL FOO
FLUSHALL SYNC ASYNC
FLUSHALL ASYNC
FLUSHDB FOO
TIME x
SAVE x
BGSAVE FOO
DEBUG
MEMORY
MEMORY FOO
MEMORY USAGE nokey
MEMORY USAGE k SAMPLES x
MEMORY USAGE k SAMPLES -1
MEMORY USAGE k SAMPLES
MEMORY USAGE k FOO 1
MEMORY PURGE
LATENCY
LATENCY FOO
LATENCY LATEST
LATENCY HISTORY foo
LATENCY RESET
LATENCY RESET foo
LATENCY GRAPH foo
SLOWLOG
SLOWLOG GET x
SLOWLOG GET -2
SLOWLOG GET 1 2
SLOWLOG RESET
SLOWLOG FOO
FUNCTION
FUNCTION FOO
FUNCTION DUMP
FUNCTION LIST
FUNCTION LIST WITHCODE
FUNCTION LIST FOO
FUNCTION LIST LIBRARYNAME
FUNCTION FLUSH
FUNCTION FLUSH FOO
FUNCTION FLUSH SYNC x
FUNCTION RESTORE x
FUNCTION RESTORE x FOO
FUNCTION STATS
FUNCTION KILL
FUNCTION DELETE x
ROLE x
WAIT 0 1
WAIT x 1
WAIT 1 x
WAIT 1 -1
WAIT 1 10
LOLWUT
LOLWUT VERSION x
ACL
ACL WHOAMI
ACL CAT
ACL CAT foo
ACL CAT a b
ACL LIST
ACL USERS
ACL FOO
SWAPDB 0 1
SWAPDB x 1
MOVE k 1
MOVE k x
SHUTDOWN FOO
SHUTDOWN ABORT
SHUTDOWN NOSAVE ABORT
CONFIG
CONFIG FOO
CONFIG GET
CONFIG GET foo
CONFIG GET save
CONFIG GET appendonly
CONFIG SET
CONFIG SET foo
CONFIG SET foo bar
CONFIG SET maxmemory
CONFIG SET maxmemory x
CONFIG SET maxmemory 1mb
CONFIG GET maxmemory
CONFIG SET maxmemory 0
CONFIG SET appendonly maybe
CONFIG SET maxmemory 0 maxmemory 1
CONFIG SET maxclients x
CONFIG SET cluster-node-timeout x
CONFIG SET cluster-node-timeout -1
CONFIG SET cluster-node-timeout 15000
CONFIG SET loglevel foo
CONFIG SET cluster-enabled no
CONFIG RESETSTAT
CONFIG RESETSTAT x
CONFIG SET slowlog-log-slower-than -5
CONFIG SET timeout -1
CONFIG SET save foo
CONFIG SET save '900 1 300 10'
CONFIG GET save
CONFIG SET save ''
CONFIG SET maxmemory-policy foo
CONFIG SET notify-keyspace-events Q
CONFIG SET hz 100 timeout x
CONFIG GET hz
CONFIG SET a b c
INFO foo
INFO cluster
MODULE LIST
MODULE
COMMAND x
COMMAND GETKEYS get
COMMAND GETKEYS ping
COMMAND GETKEYS nope x
COMMAND GETKEYS ping x
COMMAND GETKEYS get x y
COMMAND GETKEYS config get x
COMMAND GETKEYS config foo
COMMAND GETKEYS memory usage x
COMMAND GETKEYSANDFLAGS zunionstore d 2 a b
COMMAND GETKEYSANDFLAGS ping x
COMMAND GETKEYS zunionstore d x a b
COMMAND GETKEYSANDFLAGS mset a b c
COMMAND GETKEYSANDFLAGS mset a b c d
COMMAND GETKEYS eval x 0
COMMAND GETKEYS eval x 1 a
COMMAND GETKEYS eval x 3 a
COMMAND GETKEYSANDFLAGS set a b
COMMAND GETKEYSANDFLAGS set a b get
COMMAND GETKEYSANDFLAGS bitfield a get u8 0
COMMAND GETKEYSANDFLAGS bitfield a incrby u8 0 1
COMMAND GETKEYS lmpop 1 a left
COMMAND GETKEYSANDFLAGS lmpop 1 a left
COMMAND GETKEYSANDFLAGS migrate h 1 '' 0 1 KEYS a b
COMMAND GETKEYS migrate h 1 a 0 1
COMMAND DOCS nope
COMMAND INFO nope
COMMAND LIST FILTERBY
COMMAND LIST FOO a b
COMMAND LIST FILTERBY x x
COMMAND LIST FILTERBY MODULE x
MULTI
WAIT 1 0
SCAN 0 MATCH zz
DBSIZE
CLUSTER KEYSLOT x
CLUSTER COUNTKEYSINSLOT 5
CONFIG GET appendonly
PING
SELECT 0
EXEC
MULTI
SAVE
EXEC
RESET
`

func TestAdminCommandsAreAnsweredAsByRedis(t *testing.T) {
	theirs, ours := startRedis(t), startOurs(t)
	for _, proto := range []string{"2", "3"} {
		t.Run("RESP"+proto, func(t *testing.T) {
			a, b := connect(t, theirs, proto), connect(t, ours, proto)
			for line := range strings.Lines(adminCommands) {
				args := words(line)
				if len(args) == 0 {
					continue
				}
				want, err := a.do(args...)
				require.NoError(t, err, "redis-server: %q", args)
				got, err := b.do(args...)
				require.NoError(t, err, "ours: %q", args)
				if !got.equal(want) {
					t.Errorf("%s\n  redis %v\n  ours  %v", strings.TrimSpace(line), want, got)
				}
			}
		})
	}
}

// words splits a line at spaces, but for those in quotes.
func words(line string) (out []string) {
	for line = strings.TrimSpace(line); line != ""; line = strings.TrimSpace(line) {
		var word string
		if line[0] == '\'' {
			word, line, _ = strings.Cut(line[1:], "'")
		} else {
			word, line, _ = strings.Cut(line, " ")
		}
		out = append(out, word)
	}
	return out
}

// connect connects to a server and chooses the protocol. The connection ends
// with the test.
func connect(t testing.TB, addr, proto string) *link {
	t.Helper()
	l, err := dial(addr)
	require.NoError(t, err)
	t.Cleanup(l.close)
	if proto == "3" {
		_, err := l.do("HELLO", "3")
		require.NoError(t, err)
	}
	return l
}

// unlikeRedis are commands that redis-server 7.0 does not have, being of later
// versions or of this library, and FORGET, which takes FORCE here.
var unlikeRedis = []string{"client|setinfo", "client|no-touch", "cluster|myshardid", "slotmesh.prepare", "slotmesh.commit", "cluster|forget"}

func TestCommandInfoIsThatOfRedis(t *testing.T) {
	theirs, ours := startRedis(t), startOurs(t)
	for _, proto := range []string{"2", "3"} {
		a, b := connect(t, theirs, proto), connect(t, ours, proto)
		list, err := b.do("COMMAND", "LIST")
		require.NoError(t, err)
		require.Greater(t, len(list.items), 100)
		for _, item := range list.items {
			name := item.text
			if slices.Contains(unlikeRedis, name) {
				continue
			}
			want, err := a.do("COMMAND", "INFO", name)
			require.NoError(t, err)
			got, err := b.do("COMMAND", "INFO", name)
			require.NoError(t, err)
			if want, got = withoutNotes(want), withoutNotes(got); !got.equal(want) {
				t.Errorf("%s, RESP%s\n  redis %v\n  ours  %v", name, proto, want, got)
			}
		}
	}
}

// withoutNotes leaves out of COMMAND INFO what is prose (the notes of key
// specifications), and the subcommands, which are compared by themselves.
func withoutNotes(r reply) reply {
	if len(r.items) == 1 && len(r.items[0].items) == 10 {
		command := r.items[0]
		command.items = slices.Clone(command.items[:9])
		specs := command.items[8]
		specs.items = slices.Clone(specs.items)
		for i, s := range specs.items {
			if len(s.items) > 1 && s.items[0].text == "notes" {
				s.items = s.items[2:]
				specs.items[i] = s
			}
		}
		command.items[8] = specs
		r.items = []reply{command}
	}
	return r
}

// What HELP says of commands whose subcommands do what those of Redis do is what
// Redis says; of the others it has the same frame.
func TestHelpIsThatOfRedis(t *testing.T) {
	a, b := connect(t, startRedis(t, "--enable-debug-command", "yes"), "2"), connect(t, startOurs(t), "2")
	for _, command := range []string{"OBJECT", "SCRIPT", "PUBSUB", "DEBUG", "CLIENT", "CLUSTER", "CONFIG", "COMMAND", "MEMORY", "SLOWLOG", "LATENCY", "FUNCTION", "ACL", "MODULE"} {
		want, err := a.do(command, "HELP")
		require.NoError(t, err)
		got, err := b.do(command, "HELP")
		require.NoError(t, err)
		if slices.Contains([]string{"OBJECT", "SCRIPT", "PUBSUB"}, command) {
			require.Equal(t, want, got, command)
			continue
		}
		require.Greater(t, len(got.items), 3, command)
		ends := func(r reply) []reply { return append(r.items[:1:1], r.items[len(r.items)-2:]...) }
		require.Equal(t, ends(want), ends(got), command)
	}
	for _, wrong := range []string{"DEBUG nosuch", "DEBUG SLEEP", "DEBUG SLEEP 0 0", "DEBUG OBJECT", "DEBUG HELP x", "OBJECT HELP x", "SCRIPT HELP x"} {
		want, err := a.do(words(wrong)...)
		require.NoError(t, err)
		got, err := b.do(words(wrong)...)
		require.NoError(t, err)
		require.Equal(t, want, got, wrong)
	}
}
