package compat

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A primary is killed in the middle of a move by redis-cli's own steps, the owner of the
// slot or the target: whoever takes its place knows the marks, every acknowledged write is
// found, where it was left and where it had gone, and fix ends the move.
func TestPrimaryIsKilledInTheMiddleOfAMove(t *testing.T) {
	t.Parallel()
	bin := buildServer(t)
	for _, dies := range []string{"the owner", "the target"} {
		t.Run(dies, func(t *testing.T) {
			t.Parallel()
			all := replicatedCluster(t, bin, "--min-replicas-to-write", "1")
			owner := ownerOf(t, all, fooKey)
			replicas := map[string]*process{} // by the port of the primary
			var target *process
			for _, p := range all {
				switch {
				case p.info("role") == "slave":
					replicas[p.info("master_port")] = p
				case p != owner:
					target = p
				}
			}
			for _, p := range []*process{owner, target} { // its replica is in sync
				require.Eventually(t, func() bool { return !p.do("SET", keyAt(t, p), "v").isError() }, 10*time.Second, 10*time.Millisecond)
			}
			var keys []string
			for i := range 40 {
				keys = append(keys, fmt.Sprintf("{foo}%d", i))
				owner.must("SET", keys[i], "first")
			}
			target.must("CLUSTER", "SETSLOT", fooSlot, "IMPORTING", owner.id())
			owner.must("CLUSTER", "SETSLOT", fooSlot, "MIGRATING", target.id())
			owner.must(append([]string{"MIGRATE", "127.0.0.1", target.port, "", "0", "5000", "KEYS"}, keys[:20]...)...)
			w := newFollower(t, all)
			for _, k := range append(keys, "{foo}new") {
				got, err := w.follow("SET", k, "second")
				require.NoError(t, err)
				require.Equal(t, "OK", got.text, k)
			}

			dead, heir := owner, replicas[owner.port]
			if dies == "the target" {
				dead, heir = target, replicas[target.port]
			}
			dead.kill()
			rest := make([]*process, 0, len(all))
			for _, p := range all {
				if p != dead {
					rest = append(rest, p)
				}
			}
			require.Eventually(t, func() bool {
				return heir.info("role") == "master" && strings.Contains(heir.do("CLUSTER", "INFO").text, "cluster_state:ok")
			}, 30*time.Second, 5*time.Millisecond)
			mark := map[string]string{"the owner": "[" + fooSlot + "->-", "the target": "[" + fooSlot + "-<-"}[dies]
			require.Contains(t, heir.must("CLUSTER", "NODES").text, mark)
			for _, k := range append(keys, "{foo}new") {
				require.Eventually(t, func() bool { // a redirect may lead to the dead node for as long as it is not known
					got, err := newFollower(t, rest).follow("GET", k)
					return err == nil && got.text == "second"
				}, 10*time.Second, 10*time.Millisecond, k)
			}
			dead.log = lockedBuffer{}
			dead.start() // else its successor has no replica, and takes no write
			require.Eventually(t, func() bool { return dead.info("role") == "slave" }, 30*time.Second, 20*time.Millisecond)
			dead.linkUp()
			require.Eventually(t, func() bool { return !heir.do("SET", keyAt(t, heir), "v").isError() }, 10*time.Second, 10*time.Millisecond)
			out := cli(t, "--cluster", "fix", rest[0].addr())
			now := ownerOf(t, rest, fooKey)
			for _, k := range append(keys, "{foo}new") {
				require.Equal(t, "second", now.must("GET", k).text, "%s; %s", k, out)
			}
			require.Equal(t, fmt.Sprint(len(keys)+1), now.must("CLUSTER", "COUNTKEYSINSLOT", fooSlot).text)
			require.NotContains(t, now.must("CLUSTER", "NODES").text, "["+fooSlot)
		})
	}
}
