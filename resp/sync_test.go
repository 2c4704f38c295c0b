package resp

import (
	"bufio"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// askForData sends a command that is answered with an RDB file, and returns the file
// and what came before it.
func askForData(t *testing.T, s *Server, commands ...string) (file []byte, before []string) {
	t.Helper()
	nc, err := net.Dial("tcp", s.Addr().String())
	require.NoError(t, err)
	defer nc.Close()
	nc.SetDeadline(time.Now().Add(30 * time.Second))
	_, err = io.WriteString(nc, strings.Join(commands, "\r\n")+"\r\n")
	require.NoError(t, err)
	all, err := io.ReadAll(bufio.NewReader(nc))
	require.NoError(t, err)
	text, rest, found := strings.Cut(string(all), "$EOF:")
	require.True(t, found, "%q", all)
	mark, body, _ := strings.Cut(rest, "\r\n")
	require.Len(t, mark, 40)
	body, ok := strings.CutSuffix(body, mark)
	require.True(t, ok, "the mark is at the end")
	return []byte(body), strings.Fields(text)
}

// O68, redis/redis#10243: an offset that is no number ended the server.
func TestPSyncWithABadOffset(t *testing.T) {
	s := startServer(t)
	c := dial(t, s)
	c.check([][2]string{
		{"PSYNC ? abc", "ERR value is not an integer or out of range"},
		{"PSYNC x 99999999999999999999", "ERR value is not an integer or out of range"},
		{"REPLCONF", "OK"},
		{"REPLCONF a", "ERR syntax error"},
		{"REPLCONF a b", "ERR Unrecognized REPLCONF option: a"},
		{"REPLCONF rdb-only x", "ERR value is not an integer or out of range"},
		{"REPLCONF rdb-filter-only keys", "ERR Unsupported rdb-filter-only option: keys"},
		{"REPLCONF listening-port 1 capa eof capa psync2", "OK"},
		{"MULTI", "OK"}, {"SYNC", "ERR Command not allowed inside a transaction"}, {"DISCARD", "OK"},
	}...)
	c.send("REPLCONF ACK 17") // no reply
	require.Equal(t, "PONG", c.do("PING"))
	_, before := askForData(t, s, "PING", "PSYNC ? -1")
	require.Len(t, before, 4)
	require.Equal(t, []string{"+PONG", "+FULLRESYNC"}, before[:2])
}
