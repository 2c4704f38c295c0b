package resp

import (
	"context"
	"strings"
	"testing"

	"github.com/slotmesh/slotmesh"
	"github.com/stretchr/testify/require"
)

// bench is a node that owns every slot, and the table of commands, without a
// connection in between.
type bench struct {
	t     testing.TB
	node  slotmesh.Node
	table *commandTable
	proto int
}

func newBench(t testing.TB) *bench {
	t.Helper()
	node, err := slotmesh.Start(context.Background(), slotmesh.Config{Store: storeOf(t)})
	require.NoError(t, err)
	t.Cleanup(func() { node.Close() })
	table, err := newTable(Commands())
	require.NoError(t, err)
	return &bench{t: t, node: node, table: table, proto: 2}
}

// run runs a command that has keys and returns its reply as it goes over the
// wire. One argument may hold several words: "SET k v" is three.
func (b *bench) run(words ...string) string {
	b.t.Helper()
	if len(words) == 1 {
		words = strings.Fields(words[0])
	}
	args := make([][]byte, len(words))
	for i, w := range words {
		args[i] = []byte(w)
	}
	var reply Reply
	reply.reset(b.proto)
	command, err := b.table.lookup(args)
	if err == nil {
		err = b.call(command, args, &reply)
	}
	if err != nil {
		reply.reset(b.proto)
		reply.Error(err.Error())
	}
	out := string(reply.bytes())
	for _, a := range args {
		clear(a) // as the next command of a connection does
	}
	return out
}

func (b *bench) call(command *Command, args [][]byte, reply *Reply) error {
	at, err := command.keys(nil, args)
	if err != nil {
		return err
	}
	r := slotmesh.Request{Name: command.Name, ReadOnly: command.has(ReadOnly)}
	for _, i := range at {
		r.Keys = append(r.Keys, string(args[i]))
	}
	var failed error
	err = b.node.Execute(context.Background(), r, func(tx *slotmesh.Tx) error {
		c := Call{Tx: tx, Args: args, Reply: reply, command: command}
		if failed = command.Run(&c); failed == nil && c.wait != nil {
			c.wait.none(reply)
		}
		return failed
	})
	if failed != nil {
		return failed
	}
	return err
}

// check runs commands in order: each row is a command and the reply wanted.
func (b *bench) check(rows ...[2]string) {
	b.t.Helper()
	for _, row := range rows {
		if got := b.run(row[0]); got != row[1] {
			b.t.Errorf("%s: %q, want %q", row[0], got, row[1])
		}
	}
}
