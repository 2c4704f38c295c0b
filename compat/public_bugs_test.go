package compat

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/slotmesh/slotmesh"
)

// Bugs that users of other projects have reported in public and that take a tool
// or a process of Redis to show; the others are tests of package resp. What
// O75, redis/redis#5270, reports of fix is TestRedisCliFixesHalfOpenSlots.

// O74, redis/redis#15261, #6135: with a user and without a password redis-cli sends a
// key without a name, which is of another slot: nothing could be moved.
func TestRedisCliRebalancesAsAUser(t *testing.T) {
	t.Parallel()
	bin := buildServer(t)
	for _, row := range []struct {
		name           string
		server, client []string
	}{
		{"without a password", nil, []string{"--user", "default"}},
		{"with a password", []string{"--requirepass", "secret"}, []string{"--user", "default", "--pass", "secret", "--no-auth-warning"}},
		{"with a password alone", []string{"--requirepass", "secret"}, []string{"--pass", "secret", "--no-auth-warning"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			create := append(row.client[:len(row.client):len(row.client)], "--cluster", "create", "--cluster-yes")
			var first *process
			for range 3 {
				p := startProcess(t, bin, append([]string{"--cluster-enabled", "yes", "--cluster-node-timeout", "2000"}, row.server...)...)
				create = append(create, p.addr())
				if first == nil {
					first = p
				}
			}
			cli(t, create...)
			run := func(args ...string) string {
				return cli(t, append(row.client[:len(row.client):len(row.client)], args...)...)
			}
			// The first slots of the other two nodes go to this one, and have keys.
			keys := []string{keyOf(5461), keyOf(10923)}
			for _, k := range keys {
				require.Equal(t, "OK\n", run("-c", "-p", first.port, "SET", k, "v"))
			}
			id := run("-p", first.port, "CLUSTER", "MYID")[:40]
			out := run("--cluster", "rebalance", first.addr(), "--cluster-weight", id+"=1.03", "--cluster-threshold", "1")
			require.NotContains(t, out, "ERR")
			require.NotContains(t, out, "CROSSSLOT")
			require.Contains(t, run("--cluster", "check", first.addr()), "[OK] All 16384 slots covered.")
			for _, k := range keys {
				require.Equal(t, "v\n", run("-p", first.port, "GET", k), "it has come with its slot")
			}
		})
	}
}

// keyOf is a key of a slot.
func keyOf(slot slotmesh.Slot) string {
	for i := 0; ; i++ {
		if k := strconv.Itoa(i); slotmesh.KeySlot(k) == slot {
			return k
		}
	}
}
