package resp

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/slotmesh/slotmesh"
	"github.com/stretchr/testify/require"
)

// A name that one node announces all others show, and send clients to if that is
// wanted, as redis-server 7.0 does.
func TestHostnamesAndEndpoints(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFronts(t)
		seeds := []string{"a:1", "b:1"}
		f.start(slotmesh.Config{Seeds: seeds, Primaries: 2, Hostname: "one.example"})
		f.start(slotmesh.Config{Seeds: seeds, Primaries: 2})
		for _, n := range f.nodes {
			require.NoError(t, n.Ready(t.Context()))
		}
		keys := []string{f.key(0), f.key(1)}
		for i, c := range f.dialAll() {
			nodes := c.do("CLUSTER NODES")
			require.Contains(t, nodes, f.id(0)+" a:6379@1,one.example ")
			require.Contains(t, nodes, f.id(1)+" b:6379@1 ")
			for _, row := range []struct{ kind, a, b, moreA, moreB, endA, endB, toA, toB string }{
				{"ip", "a", "b", "[hostname one.example]", "[]", "a", "b", "a:6379", "b:6379"},
				{"hostname", "one.example", "?", "[ip a]", "[ip b]", "one.example", "?", "one.example:6379", "?:6379"},
				{"unknown-endpoint", "(nil)", "(nil)", "[ip a hostname one.example]", "[ip b]", "", "", ":6379", ":6379"},
			} {
				c.check([2]string{"CONFIG SET cluster-preferred-endpoint-type " + row.kind, "OK"})
				slots := c.do("CLUSTER SLOTS")
				require.Contains(t, slots, fmt.Sprintf("[%s 6379 %s %s]", row.a, f.id(0), row.moreA))
				require.Contains(t, slots, fmt.Sprintf("[%s 6379 %s %s]", row.b, f.id(1), row.moreB))
				shards := c.do("CLUSTER SHARDS")
				require.Contains(t, shards, fmt.Sprintf("[id %s port 6379 ip a endpoint %s hostname one.example role", f.id(0), row.endA))
				require.Contains(t, shards, fmt.Sprintf("[id %s port 6379 ip b endpoint %s role", f.id(1), row.endB))
				slot := c.do("CLUSTER KEYSLOT " + keys[1-i])
				require.Equal(t, fmt.Sprintf("MOVED %s %s", slot, []string{row.toA, row.toB}[1-i]), c.do("GET "+keys[1-i]))
			}
		}
	})
}

func TestHostnameAsASetting(t *testing.T) {
	for value, want := range map[string]string{
		"a-1.Example": "", "": "", strings.Repeat("a", 255): "",
		strings.Repeat("a", 256): "Hostnames must be less than 256 characters",
		"a b":                    "Hostnames may only contain alphanumeric characters, hyphens or dots",
		"a_b":                    "Hostnames may only contain alphanumeric characters, hyphens or dots",
	} {
		if _, _, err := CheckSetting("cluster-announce-hostname", value); want == "" && err != nil || want != "" && (err == nil || err.Error() != want) {
			t.Errorf("%.20q: %v, want %q", value, err, want)
		}
	}
}

// An IPv6 address has no brackets in a redirect: clients split at the last colon.
func TestRedirectToIPv6(t *testing.T) {
	s := startServer(t)
	require.Equal(t, "MOVED 5 ::1:7000", s.redirect("MOVED", 5, s.node.ID(), "[::1]:7000"))
}

// The id of a shard stays while its primary changes, and all members have the same.
func TestMyShardID(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := replicated(t, 2, slotmesh.Config{})
		ids := map[string]int{}
		for i, c := range f.dialAll() {
			id := c.do("CLUSTER MYSHARDID")
			require.Len(t, id, 40)
			ids[id]++
			for _, m := range f.nodes[i].Table().Nodes() {
				if m.Self {
					require.Equal(t, m.Shard.String(), id)
				}
			}
		}
		require.Len(t, ids, 2)
		r, p := f.pair()
		before := f.dial(r).do("CLUSTER MYSHARDID")
		f.within(10*frontNT, "it leads", func() bool { return f.dial(r).do("CLUSTER FAILOVER") != "" && f.dial(r).field("role") == "master" })
		require.Equal(t, before, f.dial(r).do("CLUSTER MYSHARDID"))
		require.Equal(t, before, f.dial(p).do("CLUSTER MYSHARDID"))
	})
}
