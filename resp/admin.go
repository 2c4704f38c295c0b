package resp

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/slotmesh/slotmesh"
)

// Commands on all keys of the node, and on the server. A node's keys are those
// of the slots that it, or the primary that it follows, owns, that it imports, and
// that nobody owns: what is staged for a hand-over is not there yet.

func serverCommands() []Command {
	const admin = AdminFlag | NoScript
	return []Command{
		{Name: "dbsize", Arity: 1, Flags: ReadOnly | Fast, Conn: dbSize, Group: "server", Since: "1.0.0", Summary: "Count the keys of this node", Complexity: "O(1)"},
		{Name: "scan", Arity: -2, Flags: ReadOnly, Conn: scan, Group: "generic", Since: "2.8.0", Summary: "Walk the keys of this node, some at a time", Complexity: "O(1) for every call. O(N) for a complete iteration."},
		{Name: "keys", Arity: 2, Flags: ReadOnly, Conn: keys, Group: "generic", Since: "1.0.0", Summary: "Find the keys of this node that a pattern fits", Complexity: "O(N) with N being the number of keys"},
		{Name: "randomkey", Arity: 1, Flags: ReadOnly, Conn: randomKey, Group: "generic", Since: "1.0.0", Summary: "Return any key of this node", Complexity: "O(1)"},
		{Name: "flushall", Arity: -1, Flags: Write, Conn: flushAll, Group: "server", Since: "1.0.0", Summary: "Remove all keys of this node", Complexity: "O(N) where N is the number of keys"},
		{Name: "flushdb", Arity: -1, Flags: Write, Conn: flushAll, Group: "server", Since: "1.0.0", Summary: "Remove all keys of this node", Complexity: "O(N) where N is the number of keys"},
		{Name: "swapdb", Arity: 3, Flags: Write | Fast, Conn: swapDB, Group: "server", Since: "4.0.0", Summary: "Refused: a cluster has one database", Complexity: "O(1)"},
		{Name: "time", Arity: 1, Flags: Loading | Stale | Fast | InScript, Conn: timeOfDay, Group: "server", Since: "2.6.0", Summary: "Return the time of the server", Complexity: "O(1)"},
		{Name: "lolwut", Arity: -1, Flags: ReadOnly | Fast | InScript, Conn: lolwut, Group: "server", Since: "5.0.0", Summary: "Show the version", Complexity: "O(1)"},
		{Name: "lastsave", Arity: 1, Flags: Loading | Stale | Fast, Conn: lastSave, Group: "server", Since: "1.0.0", Summary: "Return when the data was last saved", Complexity: "O(1)"},
		{Name: "save", Arity: 1, Flags: admin | NoAsyncLoading | NoMulti, Conn: save, Group: "server", Since: "1.0.0", Summary: "Save the data, where the application can", Complexity: "O(N) where N is the number of keys"},
		{Name: "bgsave", Arity: -1, Flags: admin | NoAsyncLoading, Conn: bgSave, Group: "server", Since: "1.0.0", Summary: "Save the data in the background, where the application can", Complexity: "O(1)"},
		{Name: "shutdown", Arity: -1, Flags: admin | Loading | Stale | NoMulti | AllowBusy, Conn: shutdown, Group: "server", Since: "1.0.0", Summary: "End the server", Complexity: "O(1)"},
		infoCommand(),
		configCommand(),
		debugCommand(),
		memoryCommand(),
		slowLogCommand(),
		latencyCommand(),
		functionCommand(),
		aclCommand(),
		moduleCommand(),
		commandCommand(),
	}
}

// visible are the slots whose keys here are this node's.
func (s *Server) visible() slotmesh.SlotSet {
	table, self := s.node.Table(), s.self()
	var others slotmesh.SlotSet
	for r, owner := range table.All() {
		if owner.ID != self.ID && owner.ID != self.primary {
			others.AddRange(r)
		}
	}
	for _, m := range table.Marks() {
		if m.Importing {
			others.Remove(m.Slot)
		}
	}
	var all slotmesh.SlotSet
	all.AddRange(slotmesh.SlotRange{First: 0, Last: slotmesh.NumSlots - 1})
	all.Subtract(&others)
	return all
}

// countKeys is the number of keys of this node.
func (s *Server) countKeys() (total int64, err error) { return s.count(s.node.CountKeys) }

// count adds up what there is in each slot.
func (s *Server) count(in func(slotmesh.Slot) (int, error)) (total int64, err error) {
	visible := s.visible()
	for slot := range visible.All() {
		n, err := in(slot)
		if err != nil {
			return 0, err
		}
		total += int64(n)
	}
	return total, nil
}

func dbSize(c *Conn, args [][]byte) error {
	n, err := c.server.countKeys()
	if err != nil {
		return err
	}
	c.reply.Int(n)
	return nil
}

// ---- SCAN

// A cursor of SCAN is a slot, and a cursor of the store inside of it: no state
// is kept, and slots may come and go meanwhile.
const scanSlotShift = 48

// keyScan is what SCAN looks for.
type keyScan struct {
	pattern string
	typed   bool   // TYPE was given
	kind    string // of TYPE
	count   int
}

func parseScan(args [][]byte) (o keyScan, err error) {
	o.pattern, o.count = "*", 10
	for i := 0; i < len(args); i += 2 {
		if i+1 == len(args) {
			return o, errSyntax
		}
		switch value := args[i+1]; {
		case equalFold(args[i], "count"):
			n, ok := parseInt(value)
			switch {
			case !ok:
				return o, errNotInteger
			case n < 1:
				return o, errSyntax
			}
			o.count = int(min(n, 1<<30))
		case equalFold(args[i], "match"):
			o.pattern = string(value)
		case equalFold(args[i], "type"):
			o.typed, o.kind = true, strings.ToLower(string(value))
		default:
			return o, errSyntax
		}
	}
	return o, nil
}

func scan(c *Conn, args [][]byte) error {
	cursor, err := parseCursor(args[1])
	if err != nil {
		return err
	}
	o, err := parseScan(args[2:])
	if err != nil {
		return err
	}
	found, next, err := c.server.scan(cursor, o)
	if err != nil {
		return err
	}
	c.reply.Array(2)
	c.reply.BulkString(strconv.FormatUint(next, 10))
	c.reply.Array(len(found))
	for _, k := range found {
		c.reply.BulkString(k)
	}
	return nil
}

// scan looks at o.count keys from a cursor on, or all that are left.
func (s *Server) scan(cursor uint64, o keyScan) (found []string, next uint64, err error) {
	visible := s.visible()
	now := time.Now().UnixMilli()
	at, within := cursor>>scanSlotShift, cursor&(1<<scanSlotShift-1)
	for looked := 0; at < slotmesh.NumSlots; {
		slot := slotmesh.Slot(at)
		if !visible.Contains(slot) {
			at, within = at+1, 0
			continue
		}
		if looked >= o.count {
			return found, at<<scanSlotShift | within, nil
		}
		items, more, err := s.node.ScanSlot(slot, within, min(o.count-looked, keysPage))
		if err != nil {
			return nil, 0, err
		}
		for i := range items {
			e := &items[i]
			if (e.ExpireAt == 0 || e.ExpireAt > now) && o.fits(e.Key, e.Kind) {
				found = append(found, e.Key)
			}
		}
		looked += len(items)
		if within = more; more == 0 {
			at++
		}
	}
	return found, 0, nil
}

func (o *keyScan) fits(key string, kind byte) bool {
	if o.typed && (int(kind) >= len(kindNames) || kindNames[kind] != o.kind) {
		return false
	}
	return o.pattern == "*" || globMatch(o.pattern, key)
}

func keys(c *Conn, args [][]byte) error {
	o := keyScan{pattern: string(args[1]), count: 1 << 30}
	seen := map[string]struct{}{}
	var found []string
	for cursor := uint64(0); ; {
		page, next, err := c.server.scan(cursor, o)
		if err != nil {
			return err
		}
		for _, k := range page {
			if _, twice := seen[k]; !twice {
				seen[k] = struct{}{}
				found = append(found, k)
			}
		}
		if cursor = next; cursor == 0 {
			break
		}
	}
	c.reply.Array(len(found))
	for _, k := range found {
		c.reply.BulkString(k)
	}
	return nil
}

const (
	randomSlots = 32  // slots that RANDOMKEY tries by chance, before it looks for one that has keys
	randomKeys  = 256 // keys of a slot among which it chooses
)

func randomKey(c *Conn, args [][]byte) error {
	visible := c.server.visible()
	slots := make([]slotmesh.Slot, 0, slotmesh.NumSlots)
	for slot := range visible.All() {
		slots = append(slots, slot)
	}
	if len(slots) == 0 {
		c.reply.Null()
		return nil
	}
	for range randomSlots {
		if key, ok, err := c.server.randomKeyOf(slots[rand.IntN(len(slots))]); ok || err != nil {
			return c.randomKeyReply(key, err)
		}
	}
	from := rand.IntN(len(slots))
	for i := range slots {
		if key, ok, err := c.server.randomKeyOf(slots[(from+i)%len(slots)]); ok || err != nil {
			return c.randomKeyReply(key, err)
		}
	}
	c.reply.Null()
	return nil
}

func (c *Conn) randomKeyReply(key string, err error) error {
	if err == nil {
		c.reply.BulkString(key)
	}
	return err
}

func (s *Server) randomKeyOf(slot slotmesh.Slot) (key string, ok bool, err error) {
	n, err := s.node.CountKeys(slot)
	if err != nil || n == 0 {
		return "", false, err
	}
	found, err := s.keysIn(slot, randomKeys)
	if err != nil || len(found) == 0 {
		return "", false, err
	}
	return found[rand.IntN(len(found))], true, nil
}

// ---- FLUSHALL

func flushAll(c *Conn, args [][]byte) error {
	if len(args) > 2 || len(args) == 2 && !equalFold(args[1], "sync") && !equalFold(args[1], "async") {
		return errSyntax
	}
	if c.server.isReplica() {
		return errReadOnly
	}
	return c.ok(c.server.trackers.flush(c.flushSlots))
}

// flushSlots removes all keys of this node.
func (c *Conn) flushSlots() error {
	visible := c.server.visible()
	for slot := range visible.All() {
		n, err := c.server.node.CountKeys(slot)
		if err != nil {
			return err
		}
		if n == 0 {
			continue
		}
		if err := c.server.node.FlushSlot(c.ctx, slot); err != nil {
			return err
		}
	}
	return nil
}

// ---- other databases, of which there are none

func swapDB(c *Conn, args [][]byte) error {
	if !c.server.cfg.Standalone {
		return Error("ERR SWAPDB is not allowed in cluster mode")
	}
	for i, which := range []string{"first", "second"} {
		if n, ok := parseInt(args[i+1]); !ok || int64(int32(n)) != n {
			return Error("ERR invalid " + which + " DB index")
		} else if n != 0 {
			return Error("ERR DB index is out of range")
		}
	}
	return c.ok(nil)
}

// ---- the server

func timeOfDay(c *Conn, args [][]byte) error {
	now := time.Now()
	c.reply.Array(2)
	c.reply.BulkString(strconv.FormatInt(now.Unix(), 10))
	c.reply.BulkString(strconv.Itoa(now.Nanosecond() / 1000))
	return nil
}

func lolwut(c *Conn, args [][]byte) error {
	if len(args) > 2 && equalFold(args[1], "version") {
		if n, ok := parseInt(args[2]); !ok || int64(int32(n)) != n {
			return errNotInteger
		}
	}
	c.reply.Verbatim("txt", "Redis ver. "+Version+"\n")
	return nil
}

const errNoSave Error = "ERR the keys of this server are in memory alone: there is nowhere to save them"

func lastSave(c *Conn, args [][]byte) error {
	c.reply.Int(c.server.lastSave.Load())
	return nil
}

func save(c *Conn, args [][]byte) error {
	if c.server.cfg.Save == nil {
		return errNoSave
	}
	if err := c.server.cfg.Save(c.ctx); err != nil {
		return Error("ERR " + oneLine(err.Error()))
	}
	c.server.lastSave.Store(time.Now().Unix())
	return c.ok(nil)
}

// bgSave saves while the connection goes on.
func bgSave(c *Conn, args [][]byte) error {
	s := c.server
	switch {
	case len(args) > 2 || len(args) == 2 && !equalFold(args[1], "schedule"):
		return errSyntax
	case s.cfg.Save == nil:
		return errNoSave
	case !s.saving.CompareAndSwap(false, true):
		return Error("ERR Background save already in progress")
	}
	s.wg.Go(func() {
		defer s.saving.Store(false)
		if err := s.cfg.Save(s.ctx); err != nil {
			s.log.Warn("saving has failed", "error", err)
			return
		}
		s.lastSave.Store(time.Now().Unix())
	})
	c.reply.Simple("Background saving started")
	return nil
}

func shutdown(c *Conn, args [][]byte) error {
	for _, a := range args[1:] {
		switch {
		case equalFold(a, "nosave"), equalFold(a, "save"), equalFold(a, "now"), equalFold(a, "force"):
		case equalFold(a, "abort") && len(args) == 2:
			return Error("ERR No shutdown in progress.")
		default:
			return errSyntax
		}
	}
	if c.server.cfg.Shutdown == nil {
		return Error("ERR Errors trying to SHUTDOWN. This server lives inside of another program.")
	}
	c.quit = true // as in Redis there is no reply
	c.server.cfg.Shutdown()
	return nil
}

func moduleCommand() Command {
	return Command{Name: "module", Arity: -2, Group: "server", Since: "4.0.0", Summary: "There are no modules", Complexity: "Depends on subcommand.", Sub: []Command{
		{Name: "list", Arity: 2, Summary: "No modules.", Flags: AdminFlag | NoScript, Conn: func(c *Conn, args [][]byte) error {
			c.reply.Array(0)
			return nil
		}},
	}}
}

// peek reads a key wherever it is at this node, served or not: for commands that
// look behind the scenes.
func (c *Conn) peek(key []byte, f func(tx *slotmesh.Tx) error) error {
	r := slotmesh.Request{Keys: []string{string(key)}, ReadOnly: true, Name: "debug", Asking: true, Anyway: true}
	return c.session.Execute(c.ctx, &r, f)
}

// sizeText is a number of bytes as INFO prints it for people.
func sizeText(n int64) string {
	f, unit := float64(n), "B"
	for _, u := range []string{"K", "M", "G", "T"} {
		if f < 1024 {
			break
		}
		f, unit = f/1024, u
	}
	if unit == "B" {
		return fmt.Sprintf("%dB", n)
	}
	return fmt.Sprintf("%.2f%s", f, unit)
}
