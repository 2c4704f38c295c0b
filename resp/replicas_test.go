package resp

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slotmesh/slotmesh"
	"github.com/slotmesh/slotmesh/resp/rdb"
	"github.com/slotmesh/slotmesh/transport"
	"github.com/stretchr/testify/require"
)

// replicated are nodes that have formed a cluster of shards with a replica each.
func replicated(t *testing.T, shards int, cfg slotmesh.Config) *fronts {
	t.Helper()
	f := newFronts(t)
	for i := range 2 * shards {
		cfg.Seeds = append(cfg.Seeds, string(rune('a'+i))+":1")
	}
	cfg.Primaries, cfg.Replicas = shards, 1
	for range 2 * shards {
		f.start(cfg)
	}
	for _, n := range f.nodes {
		require.NoError(t, n.Ready(t.Context()))
	}
	f.within(4*frontNT, "all see who follows whom, and are in sync", func() bool {
		for _, n := range f.nodes {
			r := n.Status().Replication
			if len(f.pairs(n)) != shards || r.Leads && len(r.InSync) != 2 {
				return false
			}
		}
		return true
	})
	time.Sleep(frontNT / 4) // until each replica knows that its primary has the same table
	return f
}

// pairs are the replicas that a node sees, by their number, with their primaries.
func (f *fronts) pairs(by slotmesh.Node) map[int]int {
	at := map[slotmesh.NodeID]int{}
	for i, n := range f.nodes {
		at[n.ID()] = i
	}
	all := map[int]int{}
	for _, m := range by.Table().Nodes() {
		if !m.Primary.IsZero() {
			all[at[m.ID]] = at[m.Primary]
		}
	}
	return all
}

// pair is a replica, and the primary that it follows.
func (f *fronts) pair() (replica, primary int) {
	for r, p := range f.pairs(f.nodes[0]) {
		return r, p
	}
	f.t.Fatal("there is no replica")
	return 0, 0
}

// otherPrimary is a primary that is not p.
func (f *fronts) otherPrimary(p int) int {
	for _, other := range f.pairs(f.nodes[0]) {
		if other != p {
			return other
		}
	}
	f.t.Fatal("there is one primary")
	return 0
}

// field is a line of INFO replication.
func (c *testClient) field(name string) string {
	for line := range strings.Lines(c.do("INFO replication")) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), name+":"); ok {
			return value
		}
	}
	return "(no " + name + ")"
}

func TestReplicasAreShown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := replicated(t, 2, slotmesh.Config{})
		r, p := f.pair()
		replica, primary := f.dial(r), f.dial(p)
		key := f.key(p)
		require.Equal(t, "OK", primary.do("SET", key, "v"))
		require.Equal(t, "1", primary.do("WAIT 1 0"))
		offset := primary.field("master_repl_offset")
		require.NotEqual(t, "0", offset)

		require.Equal(t, fmt.Sprintf("[master %s [[%s 6379 %s]]]", offset, string(rune('a'+r)), offset), primary.do("ROLE"))
		require.Equal(t, fmt.Sprintf("[slave %s 6379 connected %s]", string(rune('a'+p)), offset), replica.do("ROLE"))
		for name, want := range map[string]string{"role": "slave", "master_host": string(rune('a' + p)), "master_port": "6379", "master_link_status": "up",
			"master_sync_in_progress": "0", "slave_read_repl_offset": offset, "connected_slaves": "0", "master_replid": primary.field("master_replid")} {
			require.Equal(t, want, replica.field(name), name)
		}
		require.Equal(t, "1", primary.field("connected_slaves"))
		require.Equal(t, fmt.Sprintf("ip=%s,port=6379,state=online,offset=%s,lag=0", string(rune('a'+r)), offset), primary.field("slave0"))
		require.Contains(t, replica.do("HELLO 2"), "role replica")
		require.Equal(t, "1", replica.do("DBSIZE"), "keys of its primary are its keys")

		for _, n := range f.dialAll() {
			nodes := n.do("CLUSTER NODES")
			require.Regexp(t, f.id(r)+" "+f.addr(r)+`@1 (myself,)?slave `+f.id(p)+` `, nodes)
			lines := n.do("CLUSTER REPLICAS " + f.id(p))
			require.Equal(t, lines, n.do("CLUSTER SLAVES "+f.id(p)))
			require.Contains(t, lines, f.id(r))
			require.Equal(t, "ERR The specified node is not a master", n.do("CLUSTER REPLICAS "+f.id(r)))
			require.Equal(t, "ERR Unknown node x", n.do("CLUSTER REPLICAS x"))
			for r, p := range f.pairs(f.nodes[0]) { // once a heartbeat has come, also of the shard to which nothing has been written
				f.within(2*frontNT, "it is shown", func() bool {
					return strings.Contains(n.do("CLUSTER SLOTS"), fmt.Sprintf("[%s 6379 %s []] [%s 6379 %s []]]", string(rune('a'+p)), f.id(p), string(rune('a'+r)), f.id(r)))
				})
			}
			require.Regexp(t, "id "+f.id(r)+" .* role replica replication-offset [0-9]+ health online", n.do("CLUSTER SHARDS"))
			require.Equal(t, "0", n.do("CLUSTER COUNT-FAILURE-REPORTS "+f.id(r)))
		}
		require.Contains(t, primary.do("CLUSTER INFO"), "cluster_size:2")
		for _, n := range f.dialAll() { // of another shard, too: heartbeats say it
			for id, role := range map[string]string{f.id(r): "replica", f.id(p): "master"} {
				shown := regexp.MustCompile(`id ` + id + ` port \d+ ip \S+ endpoint \S+ role ` + role + ` replication-offset ` + offset + ` health online`)
				f.within(frontNT, "all see how far its log is", func() bool { return shown.MatchString(n.do("CLUSTER SHARDS")) })
			}
		}
	})
}

func TestReadsOfAReplica(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := replicated(t, 2, slotmesh.Config{})
		r, p := f.pair()
		replica, primary := f.dial(r), f.dial(p)
		elsewhere := f.otherPrimary(p)
		key, other := f.key(p), f.key(elsewhere)
		require.Equal(t, "OK", primary.do("SET", key, "v"))
		require.Equal(t, "1", primary.do("WAIT 1 0"))
		moved := f.moved(key, p)
		for _, row := range [][2]string{
			{"GET " + key, moved},
			{"READONLY", "OK"},
			{"GET " + key, "v"},
			{"SET " + key + " x", moved},
			{"EVAL_RO return(redis.call('GET',KEYS[1])) 1 " + key, "v"},
			{"WATCH " + key, "OK"},
			{"MULTI", "OK"},
			{"GET " + key, "QUEUED"},
			{"STRLEN " + key, "QUEUED"},
			{"EXEC", "[v 1]"},
			{"MULTI", "OK"},
			{"GET " + key, "QUEUED"},
			{"SET " + key + " x", moved},
			{"EXEC", "EXECABORT Transaction discarded because of previous errors."},
			{"BLPOP " + key + " 1", moved},
			{"FLUSHALL", "READONLY You can't write against a read only replica."},
			{"GET " + other, f.moved(other, elsewhere)},
			{"READWRITE", "OK"},
			{"GET " + key, moved},
			{"READONLY", "OK"},
			{"RESET", "RESET"},
			{"GET " + key, moved},
		} {
			require.Equal(t, row[1], replica.do(row[0]), row[0])
		}
		// One that has lost its primary does not show what it has for long.
		require.Equal(t, "OK", replica.do("READONLY"))
		f.faults.Cut(string(rune('a'+r)), string(rune('a'+p)))
		f.within(2*frontNT, "the replica refers to its primary", func() bool {
			answer := replica.do("GET", key)
			require.Contains(t, []string{"v", moved}, answer)
			return answer == moved
		})
	})
}

func TestReplicateByHand(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := threeFronts(t)
		fresh := f.start(slotmesh.Config{Join: true})
		a, n := f.dial(0), f.dial(fresh)
		key := f.key(0)
		require.Equal(t, "OK", a.do("SET", key, "v"))
		require.Equal(t, "ERR Unknown node "+f.id(0), n.do("CLUSTER REPLICATE "+f.id(0)))
		require.NoError(t, f.nodes[fresh].Admin().Meet(t.Context(), "a:1"))
		f.within(5*frontNT, "it joins", func() bool {
			return strings.Count(a.do("CLUSTER NODES"), "\n") == 4 && strings.Count(n.do("CLUSTER NODES"), "\n") == 4
		})
		for _, row := range [][3]string{
			{"ERR Unknown node nobody", "CLUSTER REPLICATE", "nobody"},
			{"ERR Unknown node " + strings.Repeat("0", 40), "CLUSTER REPLICATE", strings.Repeat("0", 40)},
			{"ERR Can't replicate myself", "CLUSTER REPLICATE", f.id(fresh)},
			{"ERR You should send CLUSTER FAILOVER to a replica", "CLUSTER FAILOVER", "FORCE"},
			{"OK", "CLUSTER REPLICATE", f.id(0)},
			{"OK", "CLUSTER REPLICATE", f.id(0)},
		} {
			require.Equal(t, row[0], n.do(row[1]+" "+row[2]), row)
		}
		b := f.dial(1)
		require.Equal(t, "ERR To set a master the node must be empty and without assigned slots.", b.do("CLUSTER REPLICATE "+f.id(0)))
		require.Equal(t, "ERR I can only replicate a master, not a replica.", b.do("CLUSTER REPLICATE "+f.id(fresh)))
		f.within(2*frontNT, "it has the copy", func() bool { return n.field("master_link_status") == "up" && n.do("DBSIZE") == "1" })
		for want, words := range map[string]string{
			"ERR Can't forget my master!":                                                     "CLUSTER FORGET " + f.id(0),
			"ERR Please use SETSLOT only with masters.":                                       "CLUSTER SETSLOT 1 STABLE",
			"ERR Target node is not a master":                                                 "",
			"ERR REPLICAOF not allowed in cluster mode.":                                      "REPLICAOF NO ONE",
			"ERR FAILOVER not allowed in cluster mode. Use CLUSTER FAILOVER command instead.": "FAILOVER",
		} {
			if words == "" {
				require.Equal(t, want, a.do("CLUSTER SETSLOT "+slotText(key)+" MIGRATING "+f.id(fresh)))
				continue
			}
			require.Equal(t, want, n.do(words))
		}
		// It may follow another one, whose data it then has, and leave altogether.
		require.Equal(t, "OK", n.do("CLUSTER REPLICATE "+f.id(1)))
		f.within(5*frontNT, "it follows another one", func() bool {
			return n.field("master_host") == "b" && n.field("master_link_status") == "up" && n.do("DBSIZE") == "0"
		})
		require.Equal(t, "OK", n.do("CLUSTER REPLICATE "+f.id(0)))
		f.within(5*frontNT, "and the first again", func() bool { return n.do("DBSIZE") == "1" && n.field("master_link_status") == "up" })
		require.Equal(t, "OK", n.do("CLUSTER RESET"))
		require.Equal(t, "0", n.do("DBSIZE"))
		require.Equal(t, "master", n.field("role"))
		require.NotContains(t, n.do("CLUSTER NODES"), f.id(0))
	})
}

// An operator's failover, forth and back: whoever is asked twice does it once, and
// clients that wait get exactly one reply.
func TestFailoverByHand(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := replicated(t, 1, slotmesh.Config{})
		r, p := f.pair()
		for range 3 {
			replica, primary := f.dial(r), f.dial(p)
			blocked, waits := f.dial(p), f.dial(p)
			require.Equal(t, "ERR You should send CLUSTER FAILOVER to a replica", primary.do("CLUSTER FAILOVER"))
			require.Equal(t, "ERR syntax error", replica.do("CLUSTER FAILOVER SOON"))
			blocked.send("BLPOP list 0")
			f.waiting(p, 1)
			require.Equal(t, "OK", waits.do("SET", "k", fmt.Sprint(r)))
			waits.send("WAIT 2 0")
			f.within(frontNT, "WAIT waits", func() bool { return strings.Contains(primary.do("CLIENT LIST"), "cmd=wait") })
			synctest.Wait()

			began := time.Now()
			require.Equal(t, "OK", replica.do("CLUSTER FAILOVER"))
			for range 2 { // the first one may be over by then
				require.Contains(t, []string{"OK", string(errNoMaster)}, replica.do("CLUSTER FAILOVER"))
			}
			f.within(frontNT, "it leads", func() bool { return strings.HasPrefix(replica.do("ROLE"), "[master") })
			t.Logf("after %v", time.Since(began))
			require.Equal(t, f.moved("list", r), blocked.read())
			require.Equal(t, "PONG", blocked.do("PING"), "no second reply")
			require.Equal(t, "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)", waits.read())
			require.Equal(t, "PONG", waits.do("PING"), "no second reply")
			f.within(frontNT, "it serves", func() bool { return replica.do("GET k") == fmt.Sprint(r) })
			f.within(2*frontNT, "the old one follows", func() bool { return primary.field("master_link_status") == "up" })
			r, p = p, r
		}
	})
}

// O51, valkey-io/valkey#3996: a FORCE while another failover runs began the election
// anew, and again.
func TestFailoverForceWhileAnotherRuns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := replicated(t, 2, slotmesh.Config{})
		r, _ := f.pair()
		replica := f.dial(r)
		epoch := f.nodes[r].Status().Epoch
		for _, mode := range []string{"", " FORCE", "", " FORCE", " FORCE"} {
			got := replica.do("CLUSTER FAILOVER" + mode)
			require.Contains(t, []string{"OK", string(errNoMaster)}, got)
		}
		f.within(2*frontNT, "it leads", func() bool { return replica.field("role") == "master" && replica.do("SET", f.key(r), "v") == "OK" })
		time.Sleep(5 * frontNT)
		require.Equal(t, "master", replica.field("role"))
		require.LessOrEqual(t, f.nodes[r].Status().Epoch, epoch+2)
	})
}

// O69, redis/redis#12439, valkey-io/valkey#743: WAIT counts what its own connection has
// written, and tells how many have it, however few.
func TestWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := replicated(t, 1, slotmesh.Config{})
		r, p := f.pair()
		c, idle := f.dial(p), f.dial(p)
		require.Equal(t, "ERR WAIT cannot be used with replica instances. Please also note that since Redis 4.0 if a replica is configured to be writable (which is not the default) writes to replicas are just local and are not propagated.",
			f.dial(r).do("WAIT 0 0"))
		c.check([][2]string{
			{"WAIT x 0", "ERR value is not an integer or out of range"},
			{"WAIT 1 -1", "ERR timeout is negative"},
			{"SET k v", "OK"},
			{"WAIT 1 0", "1"},
			{"WAIT -1 0", "1"},
			{"MULTI", "OK"}, {"SET k w", "QUEUED"}, {"WAIT 5 0", "QUEUED"},
		}...)
		require.Contains(t, []string{"[OK 0]", "[OK 1]"}, c.do("EXEC"), "nobody waits in a transaction")
		began := time.Now()
		require.Equal(t, "1", c.do("WAIT 2 700"))
		require.InDelta(t, 700, time.Since(began).Milliseconds(), 20)

		// Replies keep their order, and a client that goes ends its wait.
		f.faults.Cut(string(rune('a'+r)), string(rune('a'+p)))
		c.send("SET k x")
		c.send("WAIT 1 300")
		c.send("GET k")
		require.Equal(t, []string{"OK", "0", "x"}, []string{c.read(), c.read(), c.read()})
		gone := f.dial(p)
		require.Equal(t, "OK", gone.do("SET k y"))
		gone.send("WAIT 1 0")
		synctest.Wait()
		gone.nc.Close()
		require.Contains(t, []string{"0", "1"}, idle.do("WAIT 1 1"), "what others write is not waited for")
	})
}

func TestWritesWithTooFewReplicas(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := replicated(t, 1, slotmesh.Config{})
		_, p := f.pair()
		c := f.dial(p)
		f.within(frontNT, "the replica is in sync", func() bool { return len(f.nodes[p].Status().Replication.InSync) == 2 })
		c.check([][2]string{
			{"CONFIG SET min-replicas-to-write 2", "OK"},
			{"SET k v", "NOREPLICAS Not enough good replicas to write."},
			{"MULTI", "OK"}, {"SET k v", "QUEUED"}, {"EXEC", "NOREPLICAS Not enough good replicas to write."},
			{"GET k", "(nil)"},
			{"CONFIG SET min-replicas-to-write 1", "OK"},
			{"SET k v", "OK"},
			{"GET k", "v"},
		}...)
		require.Equal(t, "1", c.field("min_slaves_good_slaves"))
	})
}

// A step that holds the lock of its slot for several NodeTimeouts, and is a log
// entry of many frames, costs nobody the shard: heartbeats, leases and
// acknowledgements wait for no lock of a slot.
func TestAStepThatTakesLongIsAcknowledged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := replicated(t, 1, slotmesh.Config{AckReplicas: 1})
		r, p := f.pair()
		f.within(frontNT, "the replica is in sync", func() bool { return len(f.nodes[p].Status().Replication.InSync) == 2 })
		was, _ := f.nodes[p].Table().Owner(0)
		const n = 10_000
		member := strings.Repeat("m", 200)
		require.NoError(t, f.nodes[p].Execute(t.Context(), slotmesh.Request{Keys: []string{"{t}wide"}}, func(tx *slotmesh.Tx) error {
			time.Sleep(4 * frontNT)
			var all [][]byte
			for i := range n {
				all = append(all, fmt.Append([]byte(member), i))
			}
			return importValue(tx, "{t}wide", &rdb.Value{Kind: rdb.Set, Set: all}, 0)
		}))
		c, d := f.dial(p), f.dial(r)
		c.check([2]string{"RENAME {t}wide {t}k", "OK"}, [2]string{"SCARD {t}k", fmt.Sprint(n)})
		d.check([2]string{"READONLY", "OK"}, [2]string{"SCARD {t}k", fmt.Sprint(n)}, [2]string{"EXISTS {t}wide", "0"})
		require.Equal(t, map[int]int{r: p}, f.pairs(f.nodes[r]))
		is, _ := f.nodes[p].Table().Owner(0)
		require.Equal(t, was.Epoch, is.Epoch)
	})
}

// One may listen to a sharded channel at any member of its shard, and publish at any:
// messages reach all of them. A failover does not end that; that the slot leaves the
// shard does, and is told at each.
func TestShardedChannelsOfAShard(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := replicated(t, 2, slotmesh.Config{})
		r, p := f.pair()
		elsewhere := f.otherPrimary(p)
		key, other := f.key(p), f.key(elsewhere)
		at := []*testClient{f.dial(p), f.dial(r)}
		at[0].check([][2]string{{"SET " + key + " v", "OK"}, {"WAIT 1 0", "1"}}...)
		for _, c := range at {
			c.do("HELLO 3")
			require.Equal(t, ">[ssubscribe "+key+" 1]", c.do("SSUBSCRIBE "+key))
			require.Equal(t, f.moved(other, elsewhere), c.do("SSUBSCRIBE "+other))
		}
		heard := func(text string) {
			t.Helper()
			for i, c := range at {
				require.Equal(t, ">[smessage "+key+" "+text+"]", c.read(), "at %d", i)
			}
		}
		require.Equal(t, "1", f.dial(p).do("SPUBLISH "+key+" one"))
		heard("one")
		require.Equal(t, "1", f.dial(r).do("SPUBLISH "+key+" two"))
		heard("two")
		require.Equal(t, f.moved(key, p), f.dial(elsewhere).do("SPUBLISH "+key+" lost"))

		require.Equal(t, "OK", f.dial(r).do("CLUSTER FAILOVER"))
		f.within(2*frontNT, "it leads", func() bool { return f.dial(r).do("SET "+key+" v") == "OK" })
		f.within(2*frontNT, "the other follows", func() bool { return f.dial(p).field("master_link_status") == "up" })
		require.Equal(t, "1", f.dial(r).do("SPUBLISH "+key+" three"))
		heard("three")

		f.move(elsewhere, key)
		for i, c := range at {
			require.Equal(t, ">[sunsubscribe "+key+" 0]", c.read(), "at %d", i)
			require.Equal(t, "PONG", c.do("PING"))
		}
		require.Equal(t, "0", f.dial(elsewhere).do("SPUBLISH "+key+" four"))
	})
}

// Who caches what a replica has shown, or watches it, hears of what the primary
// writes.
func TestChangesAreToldAtAReplica(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := replicated(t, 2, slotmesh.Config{})
		r, p := f.pair()
		replica, primary := f.dial(r), f.dial(p)
		keys := f.keys(p, 2)
		key := keys[0]
		primary.check([][2]string{{"SET " + key + " u", "OK"}, {"WAIT 1 0", "1"}}...)
		replica.do("HELLO 3")
		replica.check([][2]string{{"READONLY", "OK"}, {"CLIENT TRACKING ON", "OK"}, {"GET " + key, "u"}, {"WATCH " + key, "OK"}}...)
		primary.check([][2]string{{"SET " + key + " v", "OK"}, {"WAIT 1 0", "1"}}...)
		require.Equal(t, ">[invalidate ["+key+"]]", replica.read())
		replica.check([][2]string{{"MULTI", "OK"}, {"GET " + key, "QUEUED"}, {"EXEC", "(nil)"}, {"GET " + key, "v"}}...)
		primary.check([][2]string{{"PEXPIRE " + key + " 50", "1"}, {"WAIT 1 0", "1"}}...)
		require.Equal(t, ">[invalidate ["+key+"]]", replica.read())
		require.Equal(t, "v", replica.do("GET "+key))
		time.Sleep(frontNT)
		require.Equal(t, ">[invalidate ["+key+"]]", replica.read(), "its time was over")

		// Of what was written while the replica was away, and of a slot that goes.
		require.Equal(t, "(nil)", replica.do("GET "+key))
		elsewhere := f.otherPrimary(p)
		f.move(elsewhere, key)
		require.Equal(t, ">[invalidate ["+key+"]]", replica.read())
		require.Equal(t, f.moved(key, elsewhere), replica.do("GET "+key))
	})
}

// Settings of redis.conf about what a node does by itself are its policy, and hold at
// once; CLUSTER NODES shows at every node which replicas wait for an operator.
func TestSettingsAreThePolicyOfTheNode(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := replicated(t, 2, slotmesh.Config{Policy: slotmesh.Policy{MigrationBarrier: 3}})
		r, p := f.pair()
		replica := f.dial(r)
		replica.check([][2]string{
			{"CONFIG GET cluster-migration-barrier", "[cluster-migration-barrier 3]"},
			{"CONFIG GET cluster-replica-validity-factor", "[cluster-replica-validity-factor 0]"}, // as its application has it
			{"CONFIG SET cluster-replica-no-failover yes cluster-replica-validity-factor x", "ERR CONFIG SET failed (possibly related to argument 'cluster-replica-validity-factor') - argument couldn't be parsed into an integer"},
			{"CONFIG GET cluster-replica-no-failover", "[cluster-replica-no-failover no]"},
			{"CONFIG SET cluster-replica-no-failover yes cluster-replica-validity-factor 7 cluster-allow-replica-migration no cluster-require-full-coverage no", "OK"},
		}...)
		require.Equal(t, slotmesh.Policy{NoFailover: true, DataAge: 7, NoMigration: true, MigrationBarrier: 3, Partial: true}, f.nodes[r].Status().Policy)
		f.within(2*frontNT, "all see it", func() bool {
			for _, c := range f.dialAll() {
				if !strings.Contains(c.do("CLUSTER NODES"), "slave,nofailover ") {
					return false
				}
			}
			return true
		})
		key := f.key(p)
		f.within(2*frontNT, "the replica is in sync", func() bool { return len(f.nodes[p].Status().Replication.InSync) == 2 })
		f.kill(p)
		time.Sleep(6 * frontNT)
		require.Equal(t, "slave", replica.field("role"))
		require.Contains(t, replica.do("CLUSTER INFO"), "cluster_state:ok", "without full coverage")
		require.Equal(t, "OK", replica.do("CONFIG SET cluster-replica-no-failover no"))
		f.within(2*frontNT, "it leads", func() bool { return replica.do("SET "+key+" v") == "OK" })
		require.NotContains(t, replica.do("CLUSTER NODES"), "nofailover")
	})
	require.Equal(t, slotmesh.Policy{DataAge: 10, MigrationBarrier: 1}, Policy(nil), "as redis-server begins")
	require.Equal(t, slotmesh.Policy{NoFailover: true, NoMigration: true, MigrationBarrier: 2, Partial: true}, Policy(map[string]string{
		"cluster-replica-no-failover": "yes", "cluster-replica-validity-factor": "0", "cluster-allow-replica-migration": "no",
		"cluster-migration-barrier": "2", "cluster-require-full-coverage": "no", "port": "7000"}))
}

// With cluster-allow-reads-when-down what is here is read although nobody knows
// whether it is the newest, and nothing is written.
func TestReadsWhileTheClusterIsDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := replicated(t, 2, slotmesh.Config{})
		r, p := f.pair()
		primary, replica := f.dial(p), f.dial(r)
		key := f.key(p)
		primary.check([][2]string{{"SET " + key + " v", "OK"}, {"WAIT 1 0", "1"}}...)
		replica.check([2]string{"READONLY", "OK"}, [2]string{"GET " + key, "v"})
		// Each of the two hears nobody any more.
		for _, i := range []int{p, r} {
			for other := range f.nodes {
				if other != i {
					f.faults.Cut(string(rune('a'+i)), string(rune('a'+other)))
				}
			}
		}
		down := func(c *testClient, command string) {
			t.Helper()
			f.within(3*frontNT, "it is down", func() bool { return strings.HasPrefix(c.do(command), "CLUSTERDOWN ") })
		}
		down(primary, "GET "+key)
		down(replica, "GET "+key)
		down(primary, "SET "+key+" x")
		for _, c := range []*testClient{primary, replica} {
			c.check([][2]string{{"CONFIG SET cluster-allow-reads-when-down yes", "OK"},
				{"GET " + key, "v"},
				{"MULTI", "OK"}, {"GET " + key, "QUEUED"}, {"EXEC", "[v]"},
				{"EVAL_RO return(redis.call('GET',KEYS[1])) 1 " + key, "v"},
				{"EVAL_RO return(redis.call('GET','" + key + "')) 0", "v"}}...)
			require.Contains(t, c.do("SET "+key+" x"), "CLUSTERDOWN ")
			require.Contains(t, c.do("CLUSTER INFO"), "cluster_state:fail")
			c.check([][2]string{{"CONFIG SET cluster-allow-reads-when-down no", "OK"}}...)
			require.Contains(t, c.do("GET "+key), "CLUSTERDOWN ")
		}
	})
}

// Where it is only that a slot is nobody's, the others are read, or served altogether.
func TestReadsWhileASlotIsMissing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := threeFronts(t)
		const p = 0
		primary, key := f.dial(p), f.key(p)
		primary.check([2]string{"SET " + key + " v", "OK"})
		var set slotmesh.SlotSet
		other := f.keys(p, 2)[1]
		set.Add(slotmesh.KeySlot(other))
		require.NoError(t, f.nodes[p].Admin().DelSlots(t.Context(), set))
		primary.check([][2]string{
			{"GET " + key, "CLUSTERDOWN The cluster is down"},
			{"CONFIG SET cluster-allow-reads-when-down yes", "OK"},
			{"GET " + key, "v"},
			{"SET " + key + " w", "CLUSTERDOWN The cluster is down and only accepts read commands"},
			{"GET " + other, "CLUSTERDOWN Hash slot not served"},
			{"MULTI", "OK"}, {"SET " + key + " w", "CLUSTERDOWN The cluster is down and only accepts read commands"}, {"DISCARD", "OK"},
			{"CONFIG SET cluster-require-full-coverage no", "OK"},
			{"SET " + key + " w", "OK"},
			{"GET " + other, "CLUSTERDOWN Hash slot not served"},
		}...)
		require.Contains(t, primary.do("CLUSTER INFO"), "cluster_state:ok")
	})
}

// COUNT-FAILURE-REPORTS tells which other voters do not hear a node, as long as they
// say so.
func TestFailureReportsAreThoseOfTheOtherVoters(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := replicated(t, 2, slotmesh.Config{})
		r, _ := f.pair()
		dead := f.id(r)
		count := func(i int) string { return f.dial(i).do("CLUSTER COUNT-FAILURE-REPORTS " + dead) }
		want := func(i int) string {
			others := 0
			for _, v := range f.nodes[i].Status().Voters {
				if v != f.nodes[i].ID() && v != f.nodes[r].ID() {
					others++
				}
			}
			return fmt.Sprint(others)
		}
		all := func(ok func(i int) bool) func() bool {
			return func() bool {
				for i := range f.nodes {
					if i != r && !ok(i) {
						return false
					}
				}
				return true
			}
		}
		require.True(t, all(func(i int) bool { return count(i) == "0" })())
		for i := range f.nodes {
			if i != r {
				f.faults.Cut(string(rune('a'+r)), string(rune('a'+i)))
			}
		}
		f.within(3*frontNT, "all others report it", all(func(i int) bool { return want(i) != "0" && count(i) == want(i) }))
		require.Equal(t, "ERR Unknown node x", f.dial(0).do("CLUSTER COUNT-FAILURE-REPORTS x"))
		f.faults.Heal()
		f.within(3*frontNT, "nobody does any more", all(func(i int) bool { return count(i) == "0" }))
	})
}

// A replica that is reset, either way, is a node of its own without data, and its
// primary goes on. Neither has seeds, by which they would find each other again.
func TestResetOfAReplica(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, how := range []string{"SOFT", "HARD"} {
			f := newFronts(t)
			p, r := f.start(slotmesh.Config{}), f.start(slotmesh.Config{Join: true})
			require.NoError(t, f.nodes[p].Ready(t.Context()))
			require.NoError(t, f.nodes[p].Admin().Meet(t.Context(), "b:1"))
			replica, primary, reader := f.dial(r), f.dial(p), f.dial(r)
			key := f.key(p)
			f.within(5*frontNT, "it follows", func() bool { return replica.do("CLUSTER REPLICATE "+f.id(p)) == "OK" })
			primary.check([][2]string{{"SET " + key + " v", "OK"}, {"WAIT 1 0", "1"}}...)
			f.within(2*frontNT, "it can be read there", func() bool { return reader.do("READONLY") == "OK" && reader.do("GET "+key) == "v" })
			reader.do("HELLO 3")
			reader.check([][2]string{{"READONLY", "OK"}, {"CLIENT TRACKING ON", "OK"}, {"GET " + key, "v"}}...)
			require.Equal(t, ">[ssubscribe "+key+" 1]", reader.do("SSUBSCRIBE "+key))
			id := f.id(r)
			require.Equal(t, "OK", replica.do("CLUSTER RESET "+how))
			require.Equal(t, how == "SOFT", f.id(r) == id)
			require.Equal(t, "master", replica.field("role"))
			require.Equal(t, "0", replica.do("DBSIZE"))
			require.Equal(t, 1, strings.Count(replica.do("CLUSTER NODES"), "\n"))
			told := []string{reader.read(), reader.read()}
			slices.Sort(told)
			require.Equal(t, []string{">[invalidate [" + key + "]]", ">[sunsubscribe " + key + " 0]"}, told)
			require.Equal(t, "CLUSTERDOWN Hash slot not served", reader.do("GET "+key))
			primary.check([2]string{"GET " + key, "v"}, [2]string{"SET " + key + " w", "OK"})
			f.within(5*frontNT, "it is forgotten", func() bool { return strings.Count(primary.do("CLUSTER NODES"), "\n") == 1 })
		}
	})
}

// A replica that has no copy yet is not among those of CLUSTER SLOTS: readers are
// sent there. All nodes hide it, and show it once it has one.
func TestReplicaWithoutACopyIsNoPlaceToRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFronts(t)
		seeds := []string{"a:1", "b:1"}
		f.start(slotmesh.Config{Seeds: seeds, Primaries: 2})
		f.start(slotmesh.Config{Seeds: seeds, Primaries: 2})
		for _, n := range f.nodes {
			require.NoError(t, n.Ready(t.Context()))
		}
		primary := f.dial(0)
		for _, key := range f.keys(0, 64) {
			primary.check([2]string{"SET " + key + " " + strings.Repeat("v", 16<<10), "OK"})
		}
		f.start(slotmesh.Config{Seeds: seeds[:1]})
		require.NoError(t, f.nodes[2].Ready(t.Context()))
		all := f.dialAll()
		f.faults.Set("a", "c", transport.Link{BytesPerSecond: 32 << 10})
		f.within(2*frontNT, "it follows", func() bool { return all[2].do("CLUSTER REPLICATE "+f.id(0)) == "OK" })
		shown := func(what string) (n int) {
			for _, c := range all {
				n += strings.Count(c.do(what), f.id(2))
			}
			return n
		}
		whole := func() bool { return f.nodes[2].Status().Replication.HoldsCopy }
		hidden := 0
		for ; !whole(); hidden++ {
			if n := shown("CLUSTER SLOTS"); n > 0 && !whole() {
				t.Fatalf("shown %d times", n)
			}
			time.Sleep(frontNT / 10)
		}
		require.Greater(t, hidden, 10, "the copy takes its time")
		f.within(2*frontNT, "all show it", func() bool { return shown("CLUSTER SLOTS") == 3 })
	})
}

// cutOff cuts a node off from the others: clients reach it still.
func (f *fronts) cutOff(i int) {
	var others []string
	for j := range f.nodes {
		if j != i {
			others = append(others, string(rune('a'+j)))
		}
	}
	f.faults.Partition([]string{string(rune('a' + i))}, others)
}

const mayHaveHappened = "ERR the command may have happened: slotmesh: cluster down: "

// Commands that came together wait for the replicas together, and each that they do not
// acknowledge has an error for a reply. The connection goes on.
func TestPipelineAtAStrictPrimaryThatIsCutOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := replicated(t, 2, slotmesh.Config{AckReplicas: 1})
		_, p := f.pair()
		tag := "{" + f.key(p) + "}"
		c, m := f.dial(p), f.dial(p)
		require.Equal(t, []string{"OK", "a", "PONG", "OK"}, c.pipeline("SET "+tag+" a", "GET "+tag, "PING", "SET "+tag+"l b"))
		f.cutOff(p)
		began := time.Now()
		commands := []string{"ECHO first", "SET " + tag + " 1", "CLIENT REPLY SKIP", "SET " + tag + " 2", "GET " + tag, "PING", "LPUSH " + tag + " x", "GET " + tag + "other"}
		for i := range 20 {
			commands = append(commands, fmt.Sprint("SET ", tag, " ", i))
		}
		_, err := c.nc.Write([]byte(strings.Join(commands, "\r\n") + "\r\n"))
		require.NoError(t, err)
		require.Equal(t, "first", c.read())
		require.Contains(t, c.read(), mayHaveHappened)
		require.LessOrEqual(t, time.Since(began), frontNT)
		require.Contains(t, c.read(), "CLUSTERDOWN ", "what it would show is not acknowledged")
		require.Equal(t, "PONG", c.read())
		require.Contains(t, c.read(), "CLUSTERDOWN ", "so is what is wrong with it")
		require.Contains(t, c.read(), "CLUSTERDOWN ", "the lease is over")
		for range 20 {
			require.Contains(t, c.read(), mayHaveHappened)
		}
		for i := range 20 {
			_, err := fmt.Fprintf(m.nc, "MULTI\r\nSET %s %d\r\nEXEC\r\n", tag, i)
			require.NoError(t, err)
		}
		for range 20 {
			require.Equal(t, "OK", m.read())
			require.Contains(t, m.read(), "CLUSTERDOWN ")
			require.Contains(t, m.read(), "EXECABORT ")
		}
		require.LessOrEqual(t, time.Since(began), frontNT)
		c.check([2]string{"PING", "PONG"})
		require.Contains(t, c.do("SET", tag, "x"), "CLUSTERDOWN ")
	})
}

// A transaction is answered as a whole, with the commands around it.
func TestTransactionsAtAStrictPrimaryThatIsCutOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := replicated(t, 2, slotmesh.Config{AckReplicas: 1})
		_, p := f.pair()
		tag := "{" + f.key(p) + "}"
		c := f.dial(p)
		transaction := []string{"MULTI", "SET " + tag + " a", "PING", "SET " + tag + " b", "EXEC", "EVAL return(redis.call(ARGV[1],ARGV[2])) 0 incr " + tag + "n", "PING"}
		require.Equal(t, []string{"OK", "QUEUED", "QUEUED", "QUEUED", "[OK PONG OK]", "1", "PONG"}, c.pipeline(transaction...))
		f.cutOff(p)
		began := time.Now()
		got := c.pipeline(transaction...)
		require.LessOrEqual(t, time.Since(began), frontNT)
		require.Equal(t, []string{"OK", "QUEUED", "QUEUED", "QUEUED"}, got[:4])
		require.Contains(t, got[4], mayHaveHappened)
		require.Contains(t, got[5], mayHaveHappened)
		require.Equal(t, "PONG", got[6])
	})
}

// Who waits for a key hears of what another client has put there once that may be
// acknowledged.
func TestWhoIsServedHearsOfWhatIsAcknowledged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := replicated(t, 2, slotmesh.Config{AckReplicas: 1})
		_, p := f.pair()
		tag := "{" + f.key(p) + "}"
		for _, push := range [][]string{{"RPUSH " + tag + " x", "PING"}, {"MULTI", "RPUSH " + tag + " x", "EXEC"}, {"EVAL return(redis.call(ARGV[1],ARGV[2],ARGV[3])) 0 rpush " + tag + " x"}} {
			waits, c := f.dial(p), f.dial(p)
			waits.send("BLPOP", tag, "0")
			f.waiting(p, 1)
			c.pipeline(push...)
			require.Equal(t, "["+tag+" x]", waits.read())
		}
		waits, c := f.dial(p), f.dial(p)
		waits.send("BLPOP", tag, "0")
		f.waiting(p, 1)
		f.cutOff(p)
		began := time.Now()
		got := c.pipeline("SET "+tag+"k 1", "RPUSH "+tag+" x", "PING")
		require.LessOrEqual(t, time.Since(began), frontNT)
		require.Contains(t, got[0], mayHaveHappened)
		require.Contains(t, got[1], mayHaveHappened)
		require.Equal(t, "PONG", got[2])
		require.Contains(t, waits.read(), mayHaveHappened)
	})
}

// Who finds nothing to take, at a primary that cannot say so, hears that at once, and of
// nothing later.
func TestWhoWouldWaitAtAPrimaryThatIsCutOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := replicated(t, 2, slotmesh.Config{AckReplicas: 1})
		_, p := f.pair()
		tag := "{" + f.key(p) + "}"
		c, waits := f.dial(p), f.dial(p)
		f.cutOff(p)
		began := time.Now()
		_, err := fmt.Fprintf(c.nc, "RPUSH %s x\r\nLPOP %s\r\n", tag, tag)
		require.NoError(t, err)
		time.Sleep(time.Millisecond)
		waits.send("BLPOP", tag, "0")
		require.Contains(t, waits.read(), "CLUSTERDOWN ")
		require.Contains(t, c.read(), mayHaveHappened)
		require.Contains(t, c.read(), mayHaveHappened)
		require.LessOrEqual(t, time.Since(began), frontNT+time.Millisecond)
		f.waiting(p, 0)
		waits.check([2]string{"PING", "PONG"})
	})
}

// What has run is answered before a command that came with it waits for its slot, which
// is about to go: the lease might be over by then.
func TestPipelineIsAnsweredAsFarAsItHasRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := threeFronts(t)
		c, stays, goes := f.dial(0), "{"+f.key(0)+"}", ""
		for i := 0; goes == ""; i++ {
			if k := fmt.Sprint("other", i); c.do("SET", k, "v") == "OK" && slotText(k) != slotText(stays) {
				goes = k
			}
		}
		f.faults.SetBoth("a", "b", transport.Link{Delay: 10 * time.Millisecond})
		moved := make(chan error, 1)
		var slots slotmesh.SlotSet
		slots.Add(slotmesh.KeySlot(goes))
		go func() { moved <- f.nodes[0].Admin().MoveSlots(t.Context(), slots, f.nodes[1].ID()) }()
		var ran, waited time.Duration // the longest
		for got := "v"; got == "v"; time.Sleep(time.Millisecond) {
			began := time.Now()
			_, err := fmt.Fprintf(c.nc, "SET %s x\r\nGET %s\r\nGET %s\r\n", stays, goes, stays)
			require.NoError(t, err)
			require.Equal(t, "OK", c.read())
			ran = max(ran, time.Since(began))
			if got = c.read(); got != "v" {
				require.Equal(t, f.moved(goes, 1), got)
			}
			waited = max(waited, time.Since(began))
			require.Equal(t, "x", c.read())
		}
		require.NoError(t, <-moved)
		require.Zero(t, ran)
		require.GreaterOrEqual(t, waited, 10*time.Millisecond)
	})
}
