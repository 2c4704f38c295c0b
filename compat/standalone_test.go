package compat

import (
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/slotmesh/slotmesh"
	"github.com/slotmesh/slotmesh/resp"
)

// What is of a cluster is refused in the words of a redis-server that is none. What
// needs several slots is refused too, which that redis-server does: see README.
func TestWithoutClusterItIsRefusedAsByRedis(t *testing.T) {
	theirs := startRedisAlone(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	node, err := slotmesh.Start(t.Context(), slotmesh.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { node.Close() })
	ours, err := resp.Start(t.Context(), resp.Config{Node: node, Listener: l, Standalone: true})
	require.NoError(t, err)
	t.Cleanup(func() { ours.Close() })
	a, b := connect(t, theirs, "2"), connect(t, ours.Addr().String(), "2")
	calls := []string{"CLUSTER", "CLUSTER nosuch", "CLUSTER HELP", "CLUSTER HELP x", "CLUSTER MEET x", "ASKING", "READONLY", "READWRITE",
		"CONFIG GET cluster-enabled", "SELECT 0", "GET k", "SPUBLISH ch m", "MULTI", "CLUSTER INFO", "CLUSTER HELP", "SET k v", "EXEC"}
	subcommands, err := b.do("COMMAND", "LIST", "FILTERBY", "PATTERN", "cluster|*")
	require.NoError(t, err)
	require.Greater(t, len(subcommands.items), 25)
	for _, s := range subcommands.items {
		call := strings.ReplaceAll(s.text, "|", " ")
		if !slices.Contains(unlikeRedis, s.text) {
			calls = append(calls, call, call+" 1", call+" 1 2", call+" 1 NODE x")
		}
	}
	for _, call := range calls {
		want, err := a.do(words(call)...)
		require.NoError(t, err)
		got, err := b.do(words(call)...)
		require.NoError(t, err)
		require.Equal(t, want, got, call)
	}
	got, err := b.do("MSET", "a", "1", "b", "2")
	require.NoError(t, err)
	require.Regexp(t, "^CROSSSLOT .* this server is no cluster", got.text)
}
