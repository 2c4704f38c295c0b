package resp

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slotmesh/slotmesh"
	"github.com/slotmesh/slotmesh/transport"
	"github.com/stretchr/testify/require"
)

// Bugs that users of other projects have reported in public, as tests of what
// must hold instead. Each names the report.

const frontNT = 2 * time.Second

// fronts are nodes of one cluster with a server each, on a network in memory: in
// a bubble of fake time.
type fronts struct {
	t       *testing.T
	net     *transport.Memory
	faults  *transport.Faults // of the bus alone
	nodes   []slotmesh.Node
	servers []*Server
}

// newFronts begins a cluster. Nodes are added by start.
func newFronts(t *testing.T) *fronts {
	net := transport.NewMemory()
	f := &fronts{t: t, net: net, faults: transport.NewFaults(net, 1)}
	t.Cleanup(func() { f.faults.Close() })
	return f
}

// threeFronts are three nodes that have formed a cluster, each with a third of
// the slots.
func threeFronts(t *testing.T) *fronts {
	t.Helper()
	f := newFronts(t)
	seeds := []string{"a:1", "b:1", "c:1"}
	for range 3 {
		f.start(slotmesh.Config{Seeds: seeds, Primaries: 3})
	}
	for _, n := range f.nodes {
		require.NoError(t, n.Ready(t.Context()))
	}
	return f
}

// start adds a node, and returns its number.
func (f *fronts) start(cfg slotmesh.Config) int {
	f.t.Helper()
	i := len(f.nodes)
	name := string(rune('a' + i))
	cfg.Addr, cfg.ClientAddr, cfg.Transport, cfg.NodeTimeout = name+":1", name+":6379", f.faults.Node(name), frontNT
	if cfg.Store == nil {
		cfg.Store = storeOf(f.t)
	}
	l, err := f.net.Listen(cfg.ClientAddr)
	require.NoError(f.t, err)
	node, err := slotmesh.Start(f.t.Context(), cfg)
	require.NoError(f.t, err)
	s, err := Start(f.t.Context(), Config{Node: node, Listener: l})
	require.NoError(f.t, err)
	f.nodes, f.servers = append(f.nodes, node), append(f.servers, s)
	f.t.Cleanup(func() { f.kill(i) })
	return i
}

func (f *fronts) kill(i int) {
	f.servers[i].Close()
	f.nodes[i].Close()
}

// dial connects to the front of node i.
func (f *fronts) dial(i int) *testClient {
	f.t.Helper()
	nc, err := f.net.Dial(f.t.Context(), f.addr(i))
	require.NoError(f.t, err)
	f.t.Cleanup(func() { nc.Close() })
	nc.SetDeadline(time.Now().Add(10 * time.Minute)) // of fake time
	return &testClient{f.t, nc, bufio.NewReader(nc)}
}

func (f *fronts) dialAll() (all []*testClient) {
	for i := range f.nodes {
		all = append(all, f.dial(i))
	}
	return all
}

func (f *fronts) addr(i int) string { return string(rune('a'+i)) + ":6379" }
func (f *fronts) id(i int) string   { return f.nodes[i].ID().String() }

// keys are n keys of different slots that node i owns.
func (f *fronts) keys(i, n int) (keys []string) {
	slots := map[slotmesh.Slot]bool{}
	for k := 0; len(keys) < n; k++ {
		key := fmt.Sprint("k", k)
		slot := slotmesh.KeySlot(key)
		if o, ok := f.nodes[i].Table().Owner(slot); ok && o.ID == f.nodes[i].ID() && !slots[slot] {
			slots[slot] = true
			keys = append(keys, key)
		}
	}
	return keys
}

func (f *fronts) key(i int) string { return f.keys(i, 1)[0] }

// move gives the slots of keys to node i, with their data.
func (f *fronts) move(i int, keys ...string) {
	f.t.Helper()
	var set slotmesh.SlotSet
	for _, k := range keys {
		set.Add(slotmesh.KeySlot(k))
	}
	require.NoError(f.t, f.nodes[i].Admin().MoveSlots(f.t.Context(), set, f.nodes[i].ID()))
}

// moved is the redirect to node i.
func (f *fronts) moved(key string, i int) string {
	return fmt.Sprintf("MOVED %d %s", slotmesh.KeySlot(key), f.addr(i))
}

func slotText(key string) string { return strconv.Itoa(int(slotmesh.KeySlot(key))) }

// within waits for a condition while fake time goes by.
func (f *fronts) within(d time.Duration, what string, cond func() bool) {
	f.t.Helper()
	for end := time.Now().Add(d); !cond(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			f.t.Fatalf("not within %v: %s", d, what)
		}
	}
}

// waiting waits until so many commands wait for keys of node i.
func (f *fronts) waiting(i, n int) {
	f.t.Helper()
	f.within(frontNT, "commands that wait", func() bool { return f.servers[i].blocked.waiting() == n })
}

// raw sends bytes and returns all that comes until the server ends the
// connection.
func (c *testClient) raw(b string) string {
	c.t.Helper()
	go io.WriteString(c.nc, b) // the server may end before it has read all
	all, _ := io.ReadAll(c.r)
	return string(all)
}

// ---- hashing

func TestHashTags(t *testing.T) {
	c := dial(t, startServer(t))
	for _, row := range []struct {
		bug, key, slot string
	}{
		{"O1, Kong/resty-redis-cluster#35: } before { begins no tag", "A}B{C", "7939"},
		{"O1, Kong/resty-redis-cluster#35: a tag behind a }", "}{a}", "15495"},
		{"O1, Kong/resty-redis-cluster#35: the slot of that tag", "a", "15495"},
		{"O2, redis/redis#6027: nested braces end at the first }", "a{'1':{'i32':1}}", "5540"},
		{"O2, redis/redis#6027: a { within the tag is part of it", "foo{{bar}}zap", "4015"},
		{"O2, redis/redis#6027: the slot of that tag", "{bar", "4015"},
		{"O3, cabol/nebulex_redis_adapter#64: a tag at the end", "foo{bar}", "5061"},
		{"O3, cabol/nebulex_redis_adapter#64: the same without a tag", "bar", "5061"},
		{"O3, redis/redis#13620: the first tag counts", "foo{bar}{zap}", "5061"},
		{"an empty tag is none", "foo{}{bar}", "8363"},
		{"O4, OpenSIPS/opensips#3815: CRC16 modulo 16384", "foo", "12182"},
		{"O4, OpenSIPS/opensips#3815: CRC16 of the standard's text is 0x31C3", "123456789", "12739"},
	} {
		if got := c.do("CLUSTER", "KEYSLOT", row.key); got != row.slot {
			t.Errorf("%s: KEYSLOT %q is %s, want %s", row.bug, row.key, got, row.slot)
		}
	}
}

// O4, OpenSIPS/opensips#3815: the slot of a key does not depend on how many slots are
// assigned.
func TestSlotOfAKeyWhereFewSlotsAreAssigned(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFronts(t)
		f.start(slotmesh.Config{Join: true})
		c := f.dial(0)
		c.check([2]string{"CLUSTER ADDSLOTS 1 2 3", "OK"}, [2]string{"CLUSTER KEYSLOT foo", "12182"}, [2]string{"CLUSTER KEYSLOT 123456789", "12739"},
			[2]string{"SET foo v", "CLUSTERDOWN Hash slot not served"})
		require.Contains(t, c.do("CLUSTER INFO"), "cluster_slots_assigned:3\r\n")
	})
}

// ---- the slot table and CLUSTER

// O5, redis/redis#1426: DELSLOTS of a slot out of range hung or crashed.
func TestSlotsOutOfRangeAreRefused(t *testing.T) {
	c := dial(t, startServer(t))
	const text = "ERR Invalid or out of range slot"
	for _, command := range []string{"DELSLOTS %s", "ADDSLOTS %s", "DELSLOTS 1 %s", "DELSLOTSRANGE 1 %s", "ADDSLOTSRANGE %s 5", "SETSLOT %s STABLE"} {
		for _, slot := range []string{"16384", "-1", "99999999999", "18446744073709551615", "abc", "1.5", "0x1"} {
			c.check([2]string{"CLUSTER " + fmt.Sprintf(command, slot), text}, [2]string{"PING", "PONG"})
		}
	}
	c.check([2]string{"CLUSTER COUNTKEYSINSLOT 16384", "ERR Invalid slot"}, [2]string{"CLUSTER COUNTKEYSINSLOT -1", "ERR Invalid slot"},
		[2]string{"CLUSTER GETKEYSINSLOT 16384 1", "ERR Invalid slot or number of keys"}, [2]string{"CLUSTER GETKEYSINSLOT -1 1", "ERR Invalid slot or number of keys"})
	require.Contains(t, c.do("CLUSTER INFO"), "cluster_slots_assigned:16384\r\n", "nothing has changed")
}

// O6, redis/redis#12717, valkey-io/valkey#4020: a replica took slots, and asserted
// later. No node with slots becomes a replica, and one that was refused owns what
// it owned before.
func TestNoNodeIsReplicaAndOwner(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := threeFronts(t)
		f.start(slotmesh.Config{Seeds: []string{"a:1"}})
		require.NoError(t, f.nodes[3].Ready(t.Context()))
		owner, empty := f.dial(0), f.dial(3)
		before := owner.do("CLUSTER SLOTS")
		require.Contains(t, owner.do("CLUSTER REPLICATE "+f.id(1)), "ERR To set a master the node must be empty")
		slot := slotText(f.key(0))
		for _, command := range []string{"ADDSLOTS " + slot, "ADDSLOTSRANGE " + slot + " " + slot} {
			require.Equal(t, "ERR Slot "+slot+" is already busy", empty.do("CLUSTER "+command))
		}
		for _, c := range f.dialAll() {
			require.Equal(t, before, c.do("CLUSTER SLOTS"))
			require.NotContains(t, c.do("CLUSTER NODES"), "slave")
		}

		// It takes a slot, and is no replica then either.
		owner.check([2]string{"CLUSTER DELSLOTS " + slot, "OK"})
		empty.check([2]string{"CLUSTER ADDSLOTS " + slot, "OK"})
		require.Contains(t, empty.do("CLUSTER REPLICATE "+f.id(1)), "ERR To set a master the node must be empty")
		empty.check([2]string{"CLUSTER FLUSHSLOTS", "OK"}, [2]string{"PING", "PONG"})
		f.within(2*frontNT, "it follows", func() bool { return empty.do("CLUSTER REPLICATE "+f.id(1)) == "OK" })
		require.Contains(t, empty.do("CLUSTER ADDSLOTS "+slot), "ERR this node is a replica")
	})
}

// O7, redis/redis#10346: SETSLOT NODE without IMPORTING before it left the rest of
// the cluster with the old owner.
func TestSetSlotNodeWithoutMarksReachesAll(t *testing.T) {
	t.Parallel()
	for _, at := range [][]int{{0}, {1}, {2}, {0, 1}, {1, 0}} {
		t.Run(fmt.Sprint("at ", at), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := threeFronts(t)
				key := f.key(0)
				setSlot := "CLUSTER SETSLOT " + slotText(key) + " NODE " + f.id(1)
				all := f.dialAll()
				all[0].check([2]string{"SET " + key + " v", "OK"})
				for i := range all {
					require.Equal(t, "ERR Can't assign hashslot "+slotText(key)+" to a different node while I still hold keys for this hash slot.", all[i].do(setSlot), "at %d", i)
				}
				all[0].check([2]string{"DEL " + key, "1"})
				for _, i := range at {
					all[i].check([2]string{setSlot, "OK"})
				}
				// OK has waited until all know.
				all[0].check([2]string{"GET " + key, f.moved(key, 1)})
				all[1].check([2]string{"SET " + key + " w", "OK"})
				all[2].check([2]string{"GET " + key, f.moved(key, 1)})
			})
		})
	}
}

// O8, redis/redis#3776, #2969, #2407: after many moves, and moves that were given up,
// nodes had different slot maps for ever.
func TestSlotMapsAgreeAfterManyMoves(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := threeFronts(t)
		var wg sync.WaitGroup
		for who := range 3 {
			c := f.dial(who)
			rnd := rand.New(rand.NewPCG(1, uint64(who)))
			wg.Go(func() {
				for range 60 {
					slot, to := strconv.Itoa(5400+rnd.IntN(120)), f.id(rnd.IntN(3)) // around a border of two shares
					commands := []string{"SETSLOT " + slot + " NODE " + to}
					switch rnd.IntN(4) {
					case 0: // begun and given up
						commands = []string{"SETSLOT " + slot + " IMPORTING " + to, "SETSLOT " + slot + " MIGRATING " + to, "SETSLOT " + slot + " STABLE"}
					case 1:
						commands = append(commands, "BUMPEPOCH")
					}
					for _, command := range commands {
						c.do("CLUSTER " + command) // TRYAGAIN, or refused: another one was faster
					}
				}
			})
		}
		wg.Wait()
		all := f.dialAll()
		f.within(10*frontNT, "equal maps", func() bool {
			want := all[0].do("CLUSTER SLOTS")
			return all[1].do("CLUSTER SLOTS") == want && all[2].do("CLUSTER SLOTS") == want
		})
		for _, c := range all {
			require.Contains(t, c.do("CLUSTER INFO"), "cluster_state:ok\r\ncluster_slots_assigned:16384\r\ncluster_slots_ok:16384\r\n")
			require.NotContains(t, c.do("CLUSTER NODES"), "[")
		}
		for i := range f.nodes { // and each serves what the map says
			key := f.key(i)
			all[i].check([2]string{"SET " + key + " v", "OK"})
			require.Equal(t, f.moved(key, i), all[(i+1)%3].do("GET "+key))
		}
	})
}

var shardSlots = regexp.MustCompile(`\[slots \[([^\]]*)\] nodes \[\[id ([0-9a-f]{40}) .*?health (\w+)\]`)

// O9, redis/redis#13414, valkey-io/valkey#784: once the slots of a dead node had a new
// owner, CLUSTER SHARDS showed no slots for it.
func TestClusterShardsShowsSlotsWithTheirNewOwner(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := threeFronts(t)
		dead := f.nodes[2].Table().Slots(f.nodes[2].ID())
		first, last := dead.Ranges()[0].First, dead.Ranges()[0].Last
		f.kill(2)
		a, b := f.dial(0), f.dial(1)
		f.within(10*frontNT, "both see the loss", func() bool {
			return strings.Contains(a.do("CLUSTER NODES"), "master,fail ") && strings.Contains(b.do("CLUSTER NODES"), "master,fail ")
		})
		a.check([2]string{fmt.Sprintf("CLUSTER DELSLOTSRANGE %d %d", first, last), "OK"}, [2]string{fmt.Sprintf("CLUSTER ADDSLOTSRANGE %d %d", first, last), "OK"})

		shown := map[string]string{}
		for _, m := range shardSlots.FindAllStringSubmatch(b.do("CLUSTER SHARDS"), -1) {
			shown[m[2]] = m[1] + " " + m[3]
		}
		own := f.nodes[0].Table().Slots(f.nodes[0].ID())
		var runs []string
		for _, r := range own.Ranges() {
			runs = append(runs, fmt.Sprint(r.First, " ", r.Last))
		}
		other := f.nodes[1].Table().Slots(f.nodes[1].ID())
		require.Equal(t, map[string]string{
			f.id(0): strings.Join(runs, " ") + " online",
			f.id(1): fmt.Sprintf("%d %d online", other.Ranges()[0].First, other.Ranges()[0].Last),
			f.id(2): " fail",
		}, shown)
		require.Equal(t, slotmesh.NumSlots, own.Len()+other.Len())
	})
}

// O10, redis/redis#3138: a primary in a minority looked healthy. Its CLUSTER SLOTS
// still names it, for it may only be this node that is cut off: CLUSTER INFO and
// every request say that it serves nothing.
func TestNodeInAMinoritySaysThatItDoesNotServe(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := threeFronts(t)
		key := f.key(0)
		a := f.dial(0)
		a.check([2]string{"SET " + key + " v", "OK"})
		b, other := f.dial(1), f.key(1)
		b.check([2]string{"CONFIG SET cluster-require-full-coverage no", "OK"})
		f.faults.Partition([]string{"a"}, []string{"b", "c"})
		f.within(2*frontNT, "the state is fail", func() bool { return strings.Contains(a.do("CLUSTER INFO"), "cluster_state:fail\r\n") })
		for _, command := range []string{"GET " + key, "SET " + key + " w"} {
			require.Contains(t, a.do(command), "CLUSTERDOWN ", command)
		}
		foreign := "GET " + other // MOVED is right as long as the owner may be there
		f.within(2*frontNT, "nothing is moved any more", func() bool { return strings.HasPrefix(a.do(foreign), "CLUSTERDOWN ") })
		require.Contains(t, a.do("CLUSTER NODES"), "fail?")
		b.check([2]string{"SET " + other + " v", "OK"}) // the majority goes on
		f.faults.Heal()
		f.within(10*frontNT, "it serves again", func() bool { return a.do("GET "+key) == "v" })
	})
}

// O11, redis/redis#12228: what asks about sharded channels took channels of different
// slots, what listens did not. Listening and publishing need one slot, which must
// be served here; PUBSUB SHARDNUMSUB counts who listens at this server, whatever
// the slots, and says so by 0 for others.
func TestShardedChannelsOfSeveralSlots(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := threeFronts(t)
		mine, foreign := f.keys(0, 2), f.key(1)
		sub, pub := f.dial(0), f.dial(0)
		sub.check([2]string{"SSUBSCRIBE " + mine[0] + " " + mine[1], string(errCrossSlot)},
			[2]string{"SSUBSCRIBE " + foreign, f.moved(foreign, 1)},
			[2]string{"SSUBSCRIBE " + mine[0], "[ssubscribe " + mine[0] + " 1]"},
			[2]string{"SSUBSCRIBE " + mine[1], "[ssubscribe " + mine[1] + " 2]"})
		pub.check([2]string{"SPUBLISH " + foreign + " x", f.moved(foreign, 1)},
			[2]string{"PUBSUB SHARDNUMSUB " + mine[0] + " " + mine[1] + " " + foreign, "[" + mine[0] + " 1 " + mine[1] + " 1 " + foreign + " 0]"},
			[2]string{"SPUBLISH " + mine[1] + " x", "1"})
		require.Equal(t, "[smessage "+mine[1]+" x]", sub.read())

		f.move(1, mine[0])
		require.Equal(t, "[sunsubscribe "+mine[0]+" 1]", sub.read())
		pub.check([2]string{"PUBSUB SHARDNUMSUB " + mine[0] + " " + mine[1], "[" + mine[0] + " 0 " + mine[1] + " 1]"})
	})
}

// O12, redis/redis#1580, #1645: SORT stored into another slot. redis/redis#13607: then
// GET # was refused, which names no key.
func TestSortStaysInItsSlot(t *testing.T) {
	c := dial(t, startServer(t))
	c.check([][2]string{
		{"RPUSH l 3 1 2", "3"},
		{"SORT l STORE other", string(errCrossSlot)},
		{"EXISTS other", "0"},
		{"SORT l GET #", "[1 2 3]"},
		{"SORT_RO l GET #", "[1 2 3]"},
		{"SORT l GET # GET # DESC LIMIT 0 2", "[3 3 2 2]"},
		{"SORT l GET # STORE {l}s", "3"},
		{"LRANGE {l}s 0 -1", "[1 2 3]"},
		{"SORT l GET w_*", string(errSortGet)},
		{"SORT l GET ##", string(errSortGet)},
		{"SORT l BY w_*", string(errSortBy)},
	}...)
}

// O13, redis/redis#10503, #12906: a script touched keys of other slots than those it
// had named, or ran in a slot that belonged to the call before.
func TestScriptsStayInTheirSlot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := threeFronts(t)
		mine, foreign := f.keys(0, 3), f.key(1)
		c := f.dial(0)
		const two = "redis.call('set', ARGV[1], '1') return redis.call('set', ARGV[2], '1')"
		for _, row := range [][]string{
			{two, "0", mine[0], mine[1]},
			{two, "1", mine[0], mine[0], mine[1]},
			{"#!lua\n" + two, "0", mine[0], mine[1]},
			{two, "1", mine[0], mine[0], foreign},
		} {
			require.Regexp(t, "^ERR Script attempted to access (keys that do not hash to the same slot|a non local key in a cluster node)", c.do(append([]string{"EVAL"}, row...)...), "%q", row)
			last := row[len(row)-1]
			require.Contains(t, []string{"0", f.moved(last, 1)}, c.do("EXISTS "+last))
		}
		sha := c.do("SCRIPT", "LOAD", "return redis.call('incr', ARGV[1])")
		for _, k := range []string{mine[1], mine[2], mine[1]} { // each in its own slot, with keys named or not
			require.Equal(t, "1", c.do("EVALSHA", sha, "0", k))
			require.Equal(t, "2", c.do("EVALSHA", sha, "1", k, k))
			c.do("DEL", k)
		}
		notLocal := "ERR Script attempted to access a non local key in a cluster node script: " + sha + ", on @user_script:1."
		require.Equal(t, notLocal, c.do("EVALSHA", sha, "0", foreign))
		require.Equal(t, f.moved(foreign, 1), c.do("EVALSHA", sha, "1", foreign, foreign))

		// The call fails, not the script, which may go on with what is here.
		caught := "redis.call('publish', 'ch', '1') local r = redis.pcall('get', ARGV[1]) return {r.err, redis.call('incr', ARGV[2])}"
		const text = "ERR Script attempted to access a non local key in a cluster node"
		c.do("DEL " + mine[0])
		require.Equal(t, "["+text+" 1]", c.do("EVAL", caught, "0", foreign, mine[0]))
		require.Equal(t, text+" script: "+sha+", on @user_script:1.", c.do("EVALSHA", sha, "0", f.key(2)))
		for _, call := range [][]string{{"MULTI"}, {"EVAL", caught, "0", foreign, mine[0]}, {"EVALSHA", sha, "0", foreign}, {"EVALSHA", sha, "0", mine[0]}} {
			c.do(call...)
		}
		require.Equal(t, "[["+text+" 2] "+notLocal+" 3]", c.do("EXEC"))
		require.Equal(t, "3", c.do("GET "+mine[0]))
	})
}

// ---- routing

// leaves are the ways in which the slot of a key can leave node 0, and what a
// client hears there afterwards.
func leaves() map[string]func(f *fronts, key string) (reply string) {
	command := func(f *fronts, at int, text string) {
		f.t.Helper()
		require.Equal(f.t, "OK", f.dial(at).do("CLUSTER "+text))
	}
	return map[string]func(f *fronts, key string) string{
		"moved with its data": func(f *fronts, key string) string {
			f.move(1, key)
			return f.moved(key, 1)
		},
		"given away here": func(f *fronts, key string) string {
			command(f, 0, "SETSLOT "+slotText(key)+" NODE "+f.id(1))
			return f.moved(key, 1)
		},
		"given away by another": func(f *fronts, key string) string {
			command(f, 2, "SETSLOT "+slotText(key)+" NODE "+f.id(1))
			return f.moved(key, 1)
		},
		"marked and given away": func(f *fronts, key string) string {
			command(f, 1, "SETSLOT "+slotText(key)+" IMPORTING "+f.id(0))
			command(f, 0, "SETSLOT "+slotText(key)+" MIGRATING "+f.id(1))
			command(f, 1, "SETSLOT "+slotText(key)+" NODE "+f.id(1))
			return f.moved(key, 1)
		},
		"nobody's": func(f *fronts, key string) string {
			command(f, 2, "DELSLOTS "+slotText(key))
			return "CLUSTERDOWN Hash slot not served"
		},
	}
}

// O14, redis/redis#2515: EXEC ran though the slot had left.
func TestExecAfterTheSlotHasLeftDoesNothing(t *testing.T) {
	t.Parallel()
	for name, leave := range leaves() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := threeFronts(t)
				key := f.key(0)
				c, watcher := f.dial(0), f.dial(0)
				watcher.check([2]string{"WATCH " + key, "OK"}, [2]string{"MULTI", "OK"}, [2]string{"SET " + key + " w", "QUEUED"})
				c.check([2]string{"MULTI", "OK"}, [2]string{"SET " + key + " v", "QUEUED"}, [2]string{"GET " + key, "QUEUED"})
				gone := leave(f, key)
				require.Equal(t, gone, c.do("EXEC"))
				require.Contains(t, []string{"(nil)", gone}, watcher.do("EXEC"))
				c.check([2]string{"EXEC", "ERR EXEC without MULTI"}, [2]string{"GET " + key, gone})
				if strings.HasPrefix(gone, "MOVED") {
					f.dial(1).check([2]string{"EXISTS " + key, "0"})
				}
				n, err := f.nodes[0].CountKeys(slotmesh.KeySlot(key))
				require.NoError(t, err)
				require.Zero(t, n)
			})
		})
	}
}

// O15, redis/redis#3682: EXEC took keys of two slots of one node.
func TestTransactionsStayInOneSlot(t *testing.T) {
	c := dial(t, startServer(t))
	c.check([][2]string{
		{"CLUSTER KEYSLOT test", "6918"},
		{"CLUSTER KEYSLOT ltest", "2545"},
		{"MULTI", "OK"},
		{"SET test 1", "QUEUED"},
		{"SET ltest 1", "QUEUED"},
		{"EXEC", string(errCrossSlot)},
		{"EXISTS test", "0"},
		{"EXISTS ltest", "0"},
		{"MULTI", "OK"},
		{"MSET test 1 ltest 1", string(errCrossSlot)},
		{"EXEC", string(errExecAbort)},
		{"EXISTS test", "0"},
	}...)
}

// O16, redis/redis#11946: a client that does nothing but transactions never learned of
// a move, for EXECABORT hid it. The command that is queued says where the slot
// is, and EXEC says so where it left after that.
func TestClientsThatOnlyDoTransactionsLearnOfMoves(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := threeFronts(t)
		key := f.key(1)
		c := f.dial(0)
		c.check([2]string{"MULTI", "OK"}, [2]string{"SET " + key + " v", f.moved(key, 1)}, [2]string{"GET " + key, f.moved(key, 1)},
			[2]string{"EXEC", string(errExecAbort)}, [2]string{"WATCH " + key, f.moved(key, 1)})
		mine := f.key(0)
		c.check([2]string{"MULTI", "OK"}, [2]string{"SET " + mine + " v", "QUEUED"})
		f.move(2, mine)
		c.check([2]string{"EXEC", f.moved(mine, 2)})
	})
}

// O17, redis/redis#3203: ASKING is for one command, the next of a pipeline is moved.
func TestAskingIsForOneCommand(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := threeFronts(t)
		key := f.key(0)
		from, to := f.dial(0), f.dial(1)
		to.check([2]string{"CLUSTER SETSLOT " + slotText(key) + " IMPORTING " + f.id(0), "OK"})
		from.check([2]string{"CLUSTER SETSLOT " + slotText(key) + " MIGRATING " + f.id(1), "OK"},
			[2]string{"SADD " + key + " v", fmt.Sprintf("ASK %s %s", slotText(key), f.addr(1))})
		io.WriteString(to.nc, "ASKING\r\nSADD "+key+" v\r\nSCARD "+key+"\r\nASKING\r\nPING\r\nSCARD "+key+"\r\nASKING\r\nSCARD "+key+"\r\n")
		for _, want := range []string{"OK", "1", f.moved(key, 0), "OK", "PONG", f.moved(key, 0), "OK", "1"} {
			require.Equal(t, want, to.read())
		}
		// Over MULTI it lasts until EXEC.
		to.check([2]string{"ASKING", "OK"}, [2]string{"MULTI", "OK"}, [2]string{"SADD " + key + " w", "QUEUED"}, [2]string{"SCARD " + key, "QUEUED"},
			[2]string{"EXEC", "[1 2]"}, [2]string{"SCARD " + key, f.moved(key, 0)})
	})
}

// O18, redis/redis#2379: BLPOP slept for ever after the slot had left.
func TestBlockedClientHearsThatTheSlotHasLeft(t *testing.T) {
	t.Parallel()
	commands := []string{"BLPOP %s 0", "BRPOP %s 100000", "BLMOVE %[1]s %[1]s LEFT RIGHT 0", "BRPOPLPUSH %[1]s %[1]s 0", "BLMPOP 0 1 %s LEFT", "BZPOPMIN %s 0", "BZPOPMAX %s 0", "BZMPOP 0 1 %s MIN"}
	for name, leave := range leaves() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := threeFronts(t)
				key := f.key(0)
				var blocked []*testClient
				for _, command := range commands {
					c := f.dial(0)
					c.send(fmt.Sprintf(command, key))
					c.send("PING")
					blocked = append(blocked, c)
				}
				f.waiting(0, len(commands))
				began := time.Now()
				gone := leave(f, key)
				for i, c := range blocked {
					require.Equal(t, gone, c.read(), commands[i])
					require.Equal(t, "PONG", c.read(), "one reply, and the connection lives")
				}
				require.Less(t, time.Since(began), frontNT)
				f.waiting(0, 0)
			})
		})
	}
}

// O18, redis/redis#2379: the same where it is not the slot that leaves but the node
// that is cut off.
func TestBlockedClientHearsThatTheNodeIsCutOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := threeFronts(t)
		c := f.dial(0)
		c.send("BLPOP " + f.key(0) + " 0")
		f.waiting(0, 1)
		f.faults.Partition([]string{"a"}, []string{"b", "c"})
		began := time.Now()
		require.Contains(t, c.read(), "CLUSTERDOWN ")
		require.Less(t, time.Since(began), 3*frontNT)
		c.check([2]string{"PING", "PONG"})
	})
}

// O20, dragonflydb/dragonfly#2168: slots were taken away by a new configuration while
// clients waited for keys of them.
func TestAllBlockedClientsHearOfANewSlotMap(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := threeFronts(t)
		keys := f.keys(0, 8)
		var set slotmesh.SlotSet
		blocked := map[string][]*testClient{}
		for _, k := range keys {
			set.Add(slotmesh.KeySlot(k))
			for range 4 {
				c := f.dial(0)
				c.send("BLPOP " + k + " 0")
				blocked[k] = append(blocked[k], c)
			}
		}
		stays := f.dial(0)
		rest := f.keys(0, 9)[8]
		stays.send("BLPOP " + rest + " 0")
		f.waiting(0, 4*len(keys)+1)
		require.NoError(t, f.nodes[2].Admin().SetSlots(t.Context(), set, f.nodes[1].ID()))
		for _, k := range slices.Sorted(maps.Keys(blocked)) {
			for _, c := range blocked[k] {
				require.Equal(t, f.moved(k, 1), c.read())
			}
		}
		f.waiting(0, 1)
		f.dial(0).check([2]string{"RPUSH " + rest + " v", "1"})
		require.Equal(t, "["+rest+" v]", stays.read())
	})
}

// O19, valkey-io/valkey#2991: SCAN and other commands without a key answered from old
// data. All of them show the keys of slots that this node owns by its table, and
// no others; a node that is cut off still shows them, READONLY or not.
func TestCommandsWithoutKeysShowOwnSlotsOnly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := threeFronts(t)
		keys := f.keys(0, 2)
		shown := func(c *testClient) []string {
			_, scanned, _ := strings.Cut(c.do("SCAN 0 COUNT 100000"), " ")
			return []string{c.do("DBSIZE"), scanned, c.do("KEYS *"), c.do("RANDOMKEY")}
		}
		c, reader := f.dial(0), f.dial(0)
		reader.check([2]string{"READONLY", "OK"})
		c.check([2]string{"SET " + keys[0] + " v", "OK"})
		one := []string{"1", "[" + keys[0] + "]]", "[" + keys[0] + "]", keys[0]}
		require.Equal(t, one, shown(c))
		require.Equal(t, one, shown(reader))
		f.move(1, keys...)
		none := []string{"0", "[]]", "[]", "(nil)"}
		require.Equal(t, none, shown(c))
		require.Equal(t, none, shown(reader))
		reader.check([2]string{"GET " + keys[0], f.moved(keys[0], 1)})
		other := f.dial(1)
		require.Equal(t, one, shown(other))
		f.faults.Partition([]string{"b"}, []string{"a", "c"})
		f.within(2*frontNT, "it is cut off", func() bool { return strings.HasPrefix(other.do("GET "+keys[0]), "CLUSTERDOWN ") })
		require.Equal(t, one, shown(other))
	})
}

// ---- the protocol

// setKey is SET x 1 behind something wrong: it must not run.
const setKey = "\r\nSET x 1\r\n*3\r\n$3\r\nSET\r\n$1\r\nx\r\n$1\r\n1\r\n"

func TestWhatIsNoCommandRunsNothing(t *testing.T) {
	s := startServer(t)
	for _, row := range []struct {
		bug, bytes, reply string
	}{
		{"O70, redis/redis#1451: a quote that does not end", "SET \"a b", "-ERR Protocol error: unbalanced quotes in request\r\n"},
		{"O70, redis/redis#2995: a single quote that does not end", "SET 'a b", "-ERR Protocol error: unbalanced quotes in request\r\n"},
		{"O70, redis/redis#2995: text behind a closing quote", "SET \"a\"b c", "-ERR Protocol error: unbalanced quotes in request\r\n"},
		{"O70, redis/redis#1451: what came before is answered", "PING\r\nSET 'a", "+PONG\r\n-ERR Protocol error: unbalanced quotes in request\r\n"},
		{"O71, redis/redis#3500: HTTP", "POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n", ""},
		{"O71, redis/redis#3500: HTTP with another verb", "PUT / HTTP/1.1\r\nHost: 127.0.0.1\r\n", ""},
		{"O71, redis/redis#3500: HTTP/1.0, without Host", "PUT /x HTTP/1.0\r\n\r\nSET x 1\r\n", ""},
		{"O71, apache/kvrocks#2765: HTTP in other letters", "post / HTTP/1.1\r\nhost: 127.0.0.1\r\n", ""},
		{"O71, redis/redis#3500: Host as an array", "*2\r\n$5\r\nHost:\r\n$1\r\nx\r\n", ""},
		{"O72, redis/redis#9590: an argument longer than any may be", "*2\r\n$4\r\nECHO\r\n$536870913\r\n", "-ERR Protocol error: invalid bulk length\r\n"},
		{"O72, redis/redis#9590: more arguments than any may have", "*2147483648\r\n", "-ERR Protocol error: invalid multibulk length\r\n"},
		{"O72, redis/redis#15187: a length that is small modulo 2^32", "*2\r\n$4\r\nECHO\r\n$4294967297\r\nx", "-ERR Protocol error: invalid bulk length\r\n"},
		{"O72, redis/redis#15187: a count that is small modulo 2^32", "*4294967297\r\n$4\r\nPING\r\n", "-ERR Protocol error: invalid multibulk length\r\n"},
		{"O72, redis/redis#15187: a length that is small modulo 2^64", "*2\r\n$4\r\nECHO\r\n$18446744073709551617\r\nx", "-ERR Protocol error: invalid bulk length\r\n"},
		{"O72, redis/redis#9590: a negative length", "*2\r\n$4\r\nECHO\r\n$-1\r\n", "-ERR Protocol error: invalid bulk length\r\n"},
	} {
		c := dial(t, s)
		if got := c.raw(row.bytes + setKey); got != row.reply {
			t.Errorf("%s: %q is answered %q, want %q", row.bug, row.bytes, got, row.reply)
		}
		dial(t, s).check([2]string{"EXISTS x", "0"})
	}
}

// O72, redis/redis#9590 (CVE-2021-32672), redis/redis#15187: lengths within a value
// were believed, alone or added up in 32 bits.
func TestLengthsWithinAValueAreNotBelieved(t *testing.T) {
	// Behind the value the version of RDB, and a checksum of 0: it is not looked at.
	payload := func(kind byte, body string) string {
		return string(kind) + body + "\x0a\x00" + strings.Repeat("\x00", 8)
	}
	const large, half = "\x80\xff\xff\xff\xff", "\x80\x80\x00\x00\x00" // 2^32-1 and 2^31, as lengths are written
	c := dial(t, startServer(t))
	require.Equal(t, "OK", c.do("RESTORE", "good", "0", payload(0, "\x03abc")), "the payloads are well made")
	for name, p := range map[string]string{
		"a string of 2^32-1 bytes":            payload(0, large+"abc"),
		"a string of 2^64-1 bytes":            payload(0, "\x81\xff\xff\xff\xff\xff\xff\xff\xffabc"),
		"a list of 2^32-1 items":              payload(1, large+"\x01a"),
		"two strings of 2^31 bytes":           payload(1, "\x02"+half+"a"+half+"b"),
		"a hash of 2^31 fields":               payload(4, half+"\x01a\x01b"),
		"a hash whose lengths add up to 2^32": payload(4, "\x01"+half+"a"+half+"b"),
		"packed into 2^32-1 bytes":            payload(0, "\xc3\x03"+large+"abc"),
	} {
		if got := c.do("RESTORE", "k", "0", p); got != "ERR Bad data format" {
			t.Errorf("%s: %q", name, got)
		}
	}
	c.check([2]string{"EXISTS k", "0"}, [2]string{"GET good", "abc"})
}

// O73, redis/redis#15672: a node that was told by the bus to forget the sender, or
// itself, used memory that it had freed.
func TestNodesThatForgetEachOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := threeFronts(t)
		for range 2 {
			f.start(slotmesh.Config{Seeds: []string{"a:1"}})
		}
		for _, n := range f.nodes {
			require.NoError(t, n.Ready(t.Context()))
		}
		all := f.dialAll()
		require.Equal(t, "ERR I tried hard but I can't forget myself...", all[0].do("CLUSTER FORGET "+f.id(0)))
		var wg sync.WaitGroup
		for _, pair := range [][2]int{{3, 4}, {4, 3}, {0, 3}, {3, 0}} {
			c, id := f.dial(pair[0]), f.id(pair[1])
			wg.Go(func() { c.do("CLUSTER FORGET " + id) }) // who is faster is not said
		}
		wg.Wait()
		f.within(10*frontNT, "all agree on who is there", func() bool {
			want := ""
			for i := range 3 {
				ids := memberIDs(all[i])
				if i > 0 && ids != want || !strings.Contains(ids, f.id(0)) {
					return false
				}
				want = ids
			}
			return true
		})
		for i, c := range all {
			require.Equal(t, "PONG", c.do("PING"))
			require.Contains(t, c.do("CLUSTER NODES"), f.id(i)+" "+f.addr(i)+"@1 myself,", "each knows itself")
		}
		for i := range 3 {
			all[i].check([2]string{"SET " + f.key(i) + " v", "OK"})
		}
	})
}

// memberIDs are the ids in CLUSTER NODES.
func memberIDs(c *testClient) string {
	var ids []string
	for line := range strings.Lines(c.do("CLUSTER NODES")) {
		ids = append(ids, line[:40])
	}
	return strings.Join(ids, " ")
}

// Clients that wait for keys of a slot that moves away hear so, each once.
func TestWaitersAreSentAfterTheirSlot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := threeFronts(t)
		key := "{" + f.key(0) + "}q"
		var waiters []*testClient
		for i, command := range []string{"BLPOP K 0", "BLPOP K 100", "BLMOVE K K2 LEFT LEFT 0", "BZPOPMIN K 0", "BLMPOP 0 1 K LEFT"} {
			c := f.dial(0)
			c.send(strings.ReplaceAll(command, "K", key))
			f.waiting(0, i+1)
			waiters = append(waiters, c)
		}
		f.move(1, key)
		for _, c := range waiters {
			require.Equal(t, f.moved(key, 1), c.read())
			require.Equal(t, "PONG", c.do("PING"))
		}
		f.waiting(0, 0)
	})
}

// Connections between nodes have a time at which they were made.
func TestLinksHaveATime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now().UnixMilli()
		f := threeFronts(t)
		time.Sleep(time.Second)
		times := regexp.MustCompile(`create-time (\d+)`).FindAllStringSubmatch(f.dial(0).do("CLUSTER LINKS"), -1)
		require.Len(t, times, 4)
		for _, m := range times {
			at, err := strconv.ParseInt(m[1], 10, 64)
			require.NoError(t, err)
			require.GreaterOrEqual(t, at, began)
			require.Less(t, at, time.Now().UnixMilli())
		}
	})
}
