package resp

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/slotmesh/slotmesh"
	"github.com/slotmesh/slotmesh/resp/rdb"
)

// SYNC and PSYNC, for tools that save what a node has: redis-cli --rdb, redis-cli
// --cluster backup. They get an RDB file, and the connection ends: replicas follow
// their primary over the bus, and there is no stream of changes behind the file.

// replConf takes what tools say of themselves before they ask for the file.
func replConf(c *Conn, args [][]byte) error {
	if len(args)%2 == 0 {
		return errSyntax
	}
	for i := 1; i < len(args); i += 2 {
		switch value := args[i+1]; {
		case equalFold(args[i], "ack"), equalFold(args[i], "getack"):
			return nil // has no reply, as in Redis
		case equalFold(args[i], "capa"), equalFold(args[i], "ip-address"):
		case equalFold(args[i], "listening-port"), equalFold(args[i], "rdb-only"):
			if _, ok := parseInt(value); !ok {
				return errNotInteger
			}
		case equalFold(args[i], "rdb-filter-only"):
			if len(value) > 0 && !equalFold(value, "functions") {
				return Error(fmt.Sprintf("ERR Unsupported rdb-filter-only option: %s", cText(value)))
			}
			c.noKeys = len(value) > 0
		default:
			return Error(fmt.Sprintf("ERR Unrecognized REPLCONF option: %s", cText(args[i])))
		}
	}
	return c.ok(nil)
}

func pSync(c *Conn, args [][]byte) error {
	if _, ok := parseInt(args[2]); !ok {
		return errNotInteger
	}
	st := c.server.node.Status().Replication
	c.reply.Simple(fmt.Sprintf("FULLRESYNC %s %d", c.server.replicationID(&st), st.Offset))
	return c.sendData(&st)
}

func syncData(c *Conn, args [][]byte) error {
	st := c.server.node.Status().Replication
	return c.sendData(&st)
}

// sendData sends all keys of this node as a file that ends with a mark, for how
// long it will be nobody knows: it is written while it is read. Each key is as it
// was at one moment, which is another one for each. Where something fails the
// connection ends without the mark.
func (c *Conn) sendData(st *slotmesh.Replication) error {
	mark := randomID()
	c.reply.raw([]byte("$EOF:" + mark + "\r\n"))
	c.quit = true
	if c.flush() != nil {
		return nil
	}
	c.beginBatch()
	file := rdb.NewFile(writerFunc(c.write), rdb.Aux{Name: "redis-ver", Value: Version}, rdb.Aux{Name: "redis-bits", Value: strconv.Itoa(32 << (^uint(0) >> 63))},
		rdb.Aux{Name: "ctime", Value: strconv.FormatInt(time.Now().Unix(), 10)},
		rdb.Aux{Name: "repl-id", Value: c.server.replicationID(st)}, rdb.Aux{Name: "repl-offset", Value: strconv.FormatUint(st.Offset, 10)})
	err := c.writeKeys(file)
	if err == nil {
		err = file.Close()
	}
	if err == nil {
		err = c.write([]byte(mark))
	}
	if err != nil {
		c.server.log.Warn("a copy of all keys could not be sent", "client", c.net.RemoteAddr(), "error", err)
		c.cut()
	}
	return nil
}

// writerFunc is a function as an io.Writer.
type writerFunc func([]byte) error

// Write implements io.Writer.
func (f writerFunc) Write(b []byte) (int, error) {
	if err := f(b); err != nil {
		return 0, err
	}
	return len(b), nil
}

var _ io.Writer = writerFunc(nil)

// writeKeys writes the keys of the slots of this node, or of its primary, slot by
// slot. A slot that leaves meanwhile is an error: its keys are in no other file, or
// in another one too.
func (c *Conn) writeKeys(file *rdb.File) error {
	if c.noKeys {
		return nil
	}
	s := c.server
	self := s.self()
	owner := self.ID
	if !self.primary.IsZero() {
		owner = self.primary
	}
	slots := s.node.Table().Slots(owner)
	for slot := range slots.All() {
		if err := c.writeSlot(file, slot); err != nil {
			return err
		}
	}
	return nil
}

func (c *Conn) writeSlot(file *rdb.File, slot slotmesh.Slot) error {
	seen := map[string]bool{} // a walk of several pages may show a key twice
	for cursor := uint64(0); ; {
		items, next, err := c.server.node.ScanSlot(slot, cursor, keysPage)
		if err != nil {
			return err
		}
		for i := range items {
			key := items[i].Key
			if seen[key] {
				continue
			}
			if cursor != 0 || next != 0 {
				seen[key] = true
			}
			if err := c.writeKey(file, key); err != nil {
				return err
			}
		}
		if cursor = next; cursor == 0 {
			return nil
		}
	}
}

// writeKey writes a key that is still there.
func (c *Conn) writeKey(file *rdb.File, key string) error {
	var v rdb.Value
	var expireAt int64
	found := false
	r := slotmesh.Request{Keys: []string{key}, ReadOnly: true, Name: "sync", Asking: true, Anyway: true, FromReplica: true}
	err := c.session.Execute(c.ctx, &r, func(tx *slotmesh.Tx) (err error) {
		v, expireAt, found, err = exportValue(tx, key)
		return err
	})
	var foreign Error
	switch {
	case errors.As(err, &foreign):
		c.server.log.Warn("a key is left out of a copy", "key", key, "error", err)
		return nil // the application's own kind, which no RDB file has
	case err != nil || !found:
		return err
	}
	return file.Key(key, &v, expireAt)
}
