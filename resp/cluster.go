package resp

import (
	"bytes"
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/slotmesh/slotmesh"
)

// CLUSTER: what the cluster looks like, and what operators do to it. What
// changes it waits for the decision of the cluster, and until the others know.

const (
	errSlot    Error = "ERR Invalid or out of range slot"
	errSetSlot Error = "ERR Invalid CLUSTER SETSLOT action or number of arguments. Try CLUSTER HELP"
)

// limits puts into a request what the settings say of a cluster that does not serve
// every slot: cluster-require-full-coverage and cluster-allow-reads-when-down.
func (s *Server) limits(r *slotmesh.Request) {
	r.Whole, r.Stale = s.settings.coverage.Load(), s.settings.downReads.Load()
}

// busOffset is how far the port of the bus lies above that of the clients, where
// nothing else is said.
const busOffset = 10000

func clusterCommands() []Command {
	const change = AdminFlag | Stale | NoAsyncLoading
	cluster := Command{Name: "cluster", Arity: -2, Group: "cluster", Since: "3.0.0", Summary: "Look at the cluster, and change it", Complexity: "Depends on subcommand.", Sub: []Command{
		{Name: "addslots", Arity: -3, Usage: "<slot> [<slot> ...]", Summary: "Give slots that nobody has to this node.", Flags: change, Conn: clusterAddSlots},
		{Name: "addslotsrange", Arity: -4, Usage: "<first> <last> [<first> <last> ...]", Summary: "The same for ranges.", Flags: change, Conn: clusterAddSlotsRange},
		{Name: "bumpepoch", Arity: 2, Summary: "Raise the epoch of this node, unless it is the highest.", Flags: change, Conn: clusterBumpEpoch},
		{Name: "count-failure-reports", Arity: 3, Usage: "<node-id>", Summary: "How many other voters do not hear a node.", Flags: AdminFlag | Stale, Conn: clusterFailureReports},
		{Name: "countkeysinslot", Arity: 3, Usage: "<slot>", Summary: "How many keys of a slot are here.", Flags: Stale, Conn: clusterCountKeys},
		{Name: "delslots", Arity: -3, Usage: "<slot> [<slot> ...]", Summary: "Take slots away from whoever has them.", Flags: change, Conn: clusterDelSlots},
		{Name: "delslotsrange", Arity: -4, Usage: "<first> <last> [<first> <last> ...]", Summary: "The same for ranges.", Flags: change, Conn: clusterDelSlotsRange},
		{Name: "failover", Arity: -2, Usage: "[FORCE|TAKEOVER]", Summary: "Make this replica a primary.", Flags: change, Conn: clusterFailover},
		{Name: "flushslots", Arity: 2, Summary: "Take all slots away from this node, which must be empty.", Flags: change, Conn: clusterFlushSlots},
		{Name: "forget", Arity: -3, Usage: "<node-id> [FORCE]", Summary: "Remove a node; FORCE: also one that has slots.", Flags: change, Conn: clusterForget},
		{Name: "getkeysinslot", Arity: 4, Usage: "<slot> <count>", Summary: "Names of keys of a slot that are here.", Flags: Stale, Conn: clusterGetKeys},
		{Name: "info", Arity: 2, Summary: "The state of the cluster.", Flags: Stale, Conn: clusterInfo},
		{Name: "keyslot", Arity: 3, Usage: "<key>", Summary: "The slot of a key.", Flags: Stale, Conn: clusterKeySlot},
		{Name: "links", Arity: 2, Summary: "The connections between this node and the others.", Flags: Stale, Conn: clusterLinks},
		{Name: "meet", Arity: -4, Usage: "<ip> <port> [<bus-port>]", Summary: "Take another node into the cluster, or join its.", Flags: change, Conn: clusterMeet},
		{Name: "myid", Arity: 2, Summary: "The id of this node.", Flags: Stale, Conn: clusterMyID},
		{Name: "myshardid", Arity: 2, Summary: "The id of the shard of this node.", Flags: Stale, Conn: clusterMyShardID},
		{Name: "nodes", Arity: 2, Summary: "All nodes, each in a line: <id> <ip:port@bus-port> <flags> <primary> <ping> <pong> <epoch> <link> <slot> ...", Flags: Stale, Conn: clusterNodes},
		{Name: "replicas", Arity: 3, Usage: "<node-id>", Summary: "The replicas of a node.", Flags: AdminFlag | Stale, Conn: clusterReplicas},
		{Name: "replicate", Arity: 3, Usage: "<node-id>", Summary: "Make this node a replica.", Flags: change, Conn: clusterReplicate},
		{Name: "reset", Arity: -2, Usage: "[HARD|SOFT]", Summary: "Make this node leave, and be a new one; HARD: with a new id.", Flags: AdminFlag | NoScript | Stale, Conn: clusterReset},
		{Name: "saveconfig", Arity: 2, Summary: "Save what this node knows of the cluster.", Flags: change, Conn: clusterSaveConfig},
		{Name: "set-config-epoch", Arity: 3, Usage: "<epoch>", Summary: "Set the epoch of a node that knows no other.", Flags: change, Conn: clusterSetConfigEpoch},
		{Name: "setslot", Arity: -4, Usage: "<slot> (IMPORTING <node-id>|MIGRATING <node-id>|STABLE|NODE <node-id>)", Summary: "Open a slot, close it, or give it to a node.", Flags: change, Conn: clusterSetSlot},
		{Name: "shards", Arity: 2, Summary: "The shards, their slots and nodes.", Flags: Stale, Conn: clusterShards},
		{Name: "slaves", Arity: 3, Flags: AdminFlag | Stale, Conn: clusterReplicas},
		{Name: "slots", Arity: 2, Summary: "The ranges of slots and who serves them.", Flags: Stale, Conn: clusterSlots},
	}}
	cluster.Sub = cluster.withHelp()
	for i := range cluster.Sub {
		cluster.Sub[i].Conn = inCluster(cluster.Sub[i].Conn)
	}
	return []Command{cluster}
}

// inCluster refuses a command where the server is no cluster.
func inCluster(run func(c *Conn, args [][]byte) error) func(c *Conn, args [][]byte) error {
	return func(c *Conn, args [][]byte) error {
		if c.server.cfg.Standalone {
			return errNotCluster
		}
		return run(c, args)
	}
}

// ---- what is there

func clusterMyID(c *Conn, args [][]byte) error {
	c.reply.BulkString(c.server.node.ID().String())
	return nil
}

// clusterMyShardID is of Redis 7.2. CLUSTER SHARDS does not show the id, for clients
// of 7.0, go-redis among them, took a field that they did not know for an error.
func clusterMyShardID(c *Conn, args [][]byte) error {
	c.reply.BulkString(c.server.node.Status().Replication.Shard.String())
	return nil
}

func clusterKeySlot(c *Conn, args [][]byte) error {
	c.reply.Int(int64(slotmesh.KeySlot(view(args[2]))))
	return nil
}

// member is a node as CLUSTER shows it.
type member struct {
	slotmesh.NodeInfo
	host    string // of its clients; "" where it has no front
	port    int
	busPort int
	primary slotmesh.NodeID // zero: it is one itself
	slots   *slotmesh.SlotSet
}

// owners is who has which slots by a table: worked out once per table, for
// clients ask for it again and again. It must not be changed.
type owners struct {
	table slotmesh.SlotTable
	slots map[slotmesh.NodeID]*slotmesh.SlotSet
}

func (s *Server) owners() *owners {
	table := s.node.Table()
	if kept := s.shown.Load(); kept != nil && kept.table == table {
		return kept
	}
	o := &owners{table, map[slotmesh.NodeID]*slotmesh.SlotSet{}}
	for _, shard := range table.Shards() {
		o.slots[shard.Primary] = &shard.Slots
	}
	s.shown.Store(o)
	return o
}

// members are the nodes of the cluster, ascending by id.
func (s *Server) members() []member {
	o := s.owners()
	infos := o.table.Nodes()
	out := make([]member, len(infos))
	for i, n := range infos {
		m := member{NodeInfo: n, primary: n.Primary, slots: o.slots[n.ID]}
		if m.slots == nil {
			m.slots = &slotmesh.SlotSet{}
		}
		s.locate(&m)
		out[i] = m
	}
	return out
}

// locate says where a node is. Of its own node the server knows the port even if
// the application has given no address for clients.
func (s *Server) locate(m *member) {
	m.host, m.port = splitAddr(m.ClientAddr)
	bus, busPort := splitAddr(m.Addr)
	m.busPort = busPort
	switch {
	case m.Self && m.port == 0:
		_, m.port = splitAddr(s.listener.Addr().String())
		if m.busPort == 0 {
			m.busPort = m.port + busOffset
		}
	case m.host == "":
		m.host = bus // somebody without a front of its own
	}
}

// splitAddr splits "host:port"; an address of another form has no port.
func splitAddr(addr string) (host string, port int) {
	host, text, err := net.SplitHostPort(addr)
	if err != nil {
		return addr, 0
	}
	port, _ = strconv.Atoi(text)
	return host, port
}

func clusterNodes(c *Conn, args [][]byte) error {
	var b []byte
	for _, m := range c.server.members() {
		b = c.server.appendNode(b, &m)
		b = append(b, '\n')
	}
	c.reply.Verbatim("txt", view(b))
	return nil
}

// appendNode appends a line of CLUSTER NODES.
func (s *Server) appendNode(b []byte, m *member) []byte {
	primary, link := "-", "connected"
	if !m.primary.IsZero() {
		primary = m.primary.String()
	}
	if !m.Self && !m.Connected {
		link = "disconnected"
	}
	b = fmt.Appendf(b, "%s %s:%d@%d", m.ID, m.host, m.port, m.busPort)
	if m.Hostname != "" {
		b = fmt.Appendf(b, ",%s", m.Hostname)
	}
	b = fmt.Appendf(b, " %s %s %d %d %d %s", m.flags(), primary, millis(m.PingSent), millis(m.PongReceived), m.Epoch, link)
	for r := range m.slots.AllRanges() {
		b = append(b, ' ')
		b = append(b, r.String()...)
	}
	if m.Self {
		for _, mark := range s.node.Table().Marks() {
			arrow := "->-"
			if mark.Importing {
				arrow = "-<-"
			}
			b = fmt.Appendf(b, " [%d%s%s]", mark.Slot, arrow, mark.Node)
		}
	}
	return b
}

// millis is a time as CLUSTER NODES prints it, 0 for none.
func millis(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

// flags are those of CLUSTER NODES, in the order that Redis has them.
func (m *member) flags() string {
	var f []string
	if m.Self {
		f = append(f, "myself")
	}
	if m.primary.IsZero() {
		f = append(f, "master")
	} else {
		f = append(f, "slave")
	}
	switch {
	case m.Self:
	case m.Failed:
		f = append(f, "fail")
	case m.Silent:
		f = append(f, "fail?")
	}
	if m.port == 0 {
		f = append(f, "noaddr")
	}
	if m.NoFailover {
		f = append(f, "nofailover")
	}
	return strings.Join(f, ",")
}

func clusterInfo(c *Conn, args [][]byte) error {
	st := c.server.node.Status()
	var pfail, fail int
	for _, m := range c.server.members() {
		switch {
		case m.Failed:
			fail += m.slots.Len()
		case m.Silent && !m.Self:
			pfail += m.slots.Len()
		}
	}
	state := "ok"
	if !st.OK {
		state = "fail"
	}
	var b strings.Builder
	line := func(name string, value any) { fmt.Fprintf(&b, "%s:%v\r\n", name, value) }
	line("cluster_state", state)
	line("cluster_slots_assigned", st.Assigned)
	line("cluster_slots_ok", st.Assigned-pfail-fail)
	line("cluster_slots_pfail", pfail)
	line("cluster_slots_fail", fail)
	line("cluster_known_nodes", st.Members)
	line("cluster_size", st.Shards)
	line("cluster_current_epoch", st.Epoch)
	line("cluster_my_epoch", st.MyEpoch)
	messageLines(&b, &st)
	line("total_cluster_links_buffer_limit_exceeded", 0)
	if !st.OK {
		line("cluster_state_reason", st.Reason) // Redis has it in its log only
	}
	c.reply.Verbatim("txt", b.String())
	return nil
}

// messageLines are the messages of the bus by kind, and their sums.
func messageLines(b *strings.Builder, st *slotmesh.Status) {
	for _, way := range []struct {
		name   string
		counts map[string]uint64
	}{{"sent", st.Sent}, {"received", st.Received}} {
		total := uint64(0)
		for _, kind := range sortedNames(way.counts) {
			fmt.Fprintf(b, "cluster_stats_messages_%s_%s:%d\r\n", strings.ToLower(kind), way.name, way.counts[kind])
			total += way.counts[kind]
		}
		fmt.Fprintf(b, "cluster_stats_messages_%s:%d\r\n", way.name, total)
	}
}

// hasData reports whether a replica has a copy, as far as this node knows: of one
// that is attached to it, and of itself, it knows that; of another, where its log
// ended at its last heartbeat, which is nowhere until it has everything.
func (m *member) hasData(seen map[slotmesh.NodeID]seenReplica) bool {
	if at, ours := seen[m.ID]; ours {
		return at.whole
	}
	return m.Offset > 0
}

// slotRange is a range of slots and who serves it.
type slotRange struct {
	slotmesh.SlotRange
	primary  *member
	replicas []*member
}

// ranges are the slots that are served, ascending, with the replicas that readers
// may be sent to: those that live and have something to show.
func ranges(all []member, seen map[slotmesh.NodeID]seenReplica) []slotRange {
	var out []slotRange
	for i := range all {
		m := &all[i]
		for r := range m.slots.AllRanges() {
			s := slotRange{SlotRange: r, primary: m}
			for j := range all {
				if x := &all[j]; x.primary == m.ID && !x.Failed && x.hasData(seen) {
					s.replicas = append(s.replicas, x)
				}
			}
			out = append(out, s)
		}
	}
	slices.SortFunc(out, func(a, b slotRange) int { return cmp.Compare(a.First, b.First) })
	return out
}

func clusterSlots(c *Conn, args [][]byte) error {
	all := ranges(c.server.members(), c.server.seen())
	r := &c.reply
	r.Array(len(all))
	for _, s := range all {
		r.Array(3 + len(s.replicas))
		r.Int(int64(s.First))
		r.Int(int64(s.Last))
		for _, m := range append([]*member{s.primary}, s.replicas...) {
			c.slotsNode(m)
		}
	}
	return nil
}

// count is how many of some things are so.
func count(so ...bool) (n int) {
	for _, s := range so {
		if s {
			n++
		}
	}
	return n
}

// slotsNode writes a node of CLUSTER SLOTS: where clients reach it, and what else is
// known of that.
func (c *Conn) slotsNode(m *member) {
	r, kind := &c.reply, c.server.settings.endpoint.Load()
	r.Array(4)
	if kind == endpointUnknown {
		r.Null()
	} else {
		r.BulkString(kind.of(m.host, m.Hostname))
	}
	r.Int(int64(m.port))
	r.BulkString(m.ID.String())
	ip, name := kind != endpointIP, kind != endpointHostname && m.Hostname != ""
	r.Map(count(ip, name))
	if ip {
		r.BulkString("ip")
		r.BulkString(m.host)
	}
	if name {
		r.BulkString("hostname")
		r.BulkString(m.Hostname)
	}
}

func clusterShards(c *Conn, args [][]byte) error {
	all := c.server.members()
	seen := c.server.seen()
	byShard := map[slotmesh.ShardID][]*member{}
	var order []slotmesh.ShardID
	for i := range all {
		id := all[i].Shard
		if byShard[id] == nil {
			order = append(order, id)
		}
		byShard[id] = append(byShard[id], &all[i])
	}
	c.reply.Array(len(order))
	for _, id := range order {
		nodes := byShard[id]
		// The primary comes first.
		slices.SortStableFunc(nodes, func(a, b *member) int { return bytes.Compare(a.primary[:], b.primary[:]) })
		c.shard(nodes, seen)
	}
	return nil
}

// shard writes an element of CLUSTER SHARDS.
func (c *Conn) shard(nodes []*member, seen map[slotmesh.NodeID]seenReplica) {
	r := &c.reply
	r.Map(2)
	r.BulkString("slots")
	runs := nodes[0].slots.Ranges()
	r.Array(2 * len(runs))
	for _, run := range runs {
		r.Int(int64(run.First))
		r.Int(int64(run.Last))
	}
	r.BulkString("nodes")
	r.Array(len(nodes))
	for _, m := range nodes {
		role, health := "master", "online"
		if !m.primary.IsZero() {
			role = "replica"
		}
		at, ours := seen[m.ID]
		if !ours {
			at.offset = m.Offset // of another shard: what its heartbeats say
		}
		switch {
		case m.Failed:
			health = "fail"
		case at.loading:
			health = "loading"
		}
		r.Map(7 + count(m.Hostname != ""))
		r.BulkString("id")
		r.BulkString(m.ID.String())
		r.BulkString("port")
		r.Int(int64(m.port))
		r.BulkString("ip")
		r.BulkString(m.host)
		r.BulkString("endpoint")
		r.BulkString(c.server.settings.endpoint.Load().of(m.host, m.Hostname))
		if m.Hostname != "" {
			r.BulkString("hostname")
			r.BulkString(m.Hostname)
		}
		r.BulkString("role")
		r.BulkString(role)
		r.BulkString("replication-offset")
		r.Int(int64(at.offset))
		r.BulkString("health")
		r.BulkString(health)
	}
}

// clusterLinks shows a link in each direction per node that is connected. The
// two share connections here, of which no sizes are kept.
func clusterLinks(c *Conn, args [][]byte) error {
	var linked []member
	for _, m := range c.server.members() {
		if !m.Self && m.Connected {
			linked = append(linked, m)
		}
	}
	r := &c.reply
	r.Array(2 * len(linked))
	for _, m := range linked {
		for _, direction := range []string{"to", "from"} {
			r.Map(6)
			r.BulkString("direction")
			r.BulkString(direction)
			r.BulkString("node")
			r.BulkString(m.ID.String())
			r.BulkString("create-time")
			r.Int(m.ConnectedAt.UnixMilli())
			r.BulkString("events")
			r.BulkString("r")
			r.BulkString("send-buffer-allocated")
			r.Int(0)
			r.BulkString("send-buffer-used")
			r.Int(0)
		}
	}
	return nil
}

// member finds a node by the text of its id.
func (c *Conn) member(arg []byte) (*member, error) {
	if id, err := slotmesh.ParseNodeID(string(arg)); err == nil {
		for _, m := range c.server.members() {
			if m.ID == id {
				return &m, nil
			}
		}
	}
	return nil, Error(fmt.Sprintf("ERR Unknown node %s", cText(arg)))
}

// clusterFailureReports says how many voters do not hear a node: as in Redis, which
// counts the other primaries, this node is not counted.
func clusterFailureReports(c *Conn, args [][]byte) error {
	m, err := c.member(args[2])
	if err != nil {
		return err
	}
	c.reply.Int(int64(m.Reports))
	return nil
}

// ---- keys

func clusterCountKeys(c *Conn, args [][]byte) error {
	n, ok := parseInt(args[2])
	switch {
	case !ok:
		return errNotInteger
	case n < 0 || n >= slotmesh.NumSlots:
		return Error("ERR Invalid slot")
	}
	count, err := c.server.node.CountKeys(slotmesh.Slot(n))
	if err != nil {
		return err
	}
	c.reply.Int(int64(count))
	return nil
}

func clusterGetKeys(c *Conn, args [][]byte) error {
	slot, ok := parseInt(args[2])
	count, ok2 := parseInt(args[3])
	switch {
	case !ok || !ok2:
		return errNotInteger
	case slot < 0 || slot >= slotmesh.NumSlots || count < 0:
		return Error("ERR Invalid slot or number of keys")
	}
	keys, err := c.server.keysIn(slotmesh.Slot(slot), int(min(count, 1<<30)))
	if err != nil {
		return err
	}
	c.reply.Array(len(keys))
	for _, k := range keys {
		c.reply.BulkString(k)
	}
	return nil
}

const keysPage = 1024 // keys that are read under a slot's lock at a time

// keysIn is at most limit keys of a slot that are here and have not expired.
func (s *Server) keysIn(slot slotmesh.Slot, limit int) ([]string, error) {
	var keys []string
	var seen map[string]bool // a walk of several pages may show a key twice
	now := time.Now().UnixMilli()
	for cursor := uint64(0); len(keys) < limit; {
		items, next, err := s.node.ScanSlot(slot, cursor, min(limit-len(keys), keysPage))
		if err != nil {
			return nil, err
		}
		if next != 0 && seen == nil {
			seen = map[string]bool{}
			for _, k := range keys {
				seen[k] = true
			}
		}
		for i := range items {
			if k := items[i].Key; !seen[k] && (items[i].ExpireAt == 0 || items[i].ExpireAt > now) {
				keys = append(keys, k)
				if seen != nil {
					seen[k] = true
				}
			}
		}
		if cursor = next; cursor == 0 {
			break
		}
	}
	return keys[:min(len(keys), limit)], nil
}

// ---- slots

func parseSlotArg(arg []byte) (slotmesh.Slot, error) {
	n, ok := parseInt(arg)
	if !ok || n < 0 || n >= slotmesh.NumSlots {
		return 0, errSlot
	}
	return slotmesh.Slot(n), nil
}

// slotArgs reads slots, each of which must be owned or not, and be named once.
func (c *Conn) slotArgs(args [][]byte, owned bool) (set slotmesh.SlotSet, err error) {
	slots := make([]slotmesh.SlotRange, len(args))
	for i, a := range args {
		slot, err := parseSlotArg(a)
		if err != nil {
			return set, err
		}
		slots[i] = slotmesh.SlotRange{First: slot, Last: slot}
	}
	return c.checkSlots(slots, owned)
}

// rangeArgs is slotArgs for pairs of a first and a last slot.
func (c *Conn) rangeArgs(command string, args [][]byte, owned bool) (set slotmesh.SlotSet, err error) {
	if len(args)%2 != 0 {
		return set, Error(fmt.Sprintf("ERR wrong number of arguments for 'cluster|%s' command", command))
	}
	var slots []slotmesh.SlotRange
	for i := 0; i < len(args); i += 2 {
		first, err := parseSlotArg(args[i])
		if err != nil {
			return set, err
		}
		last, err := parseSlotArg(args[i+1])
		if err != nil {
			return set, err
		}
		if first > last {
			return set, Error(fmt.Sprintf("ERR start slot number %d is greater than end slot number %d", first, last))
		}
		slots = append(slots, slotmesh.SlotRange{First: first, Last: last})
	}
	return c.checkSlots(slots, owned)
}

func (c *Conn) checkSlots(ranges []slotmesh.SlotRange, owned bool) (set slotmesh.SlotSet, err error) {
	table := c.server.node.Table()
	for _, r := range ranges {
		for slot := range r.All() {
			_, has := table.Owner(slot)
			switch {
			case has && !owned:
				return set, Error(fmt.Sprintf("ERR Slot %d is already busy", slot))
			case !has && owned:
				return set, Error(fmt.Sprintf("ERR Slot %d is already unassigned", slot))
			case set.Contains(slot):
				return set, Error(fmt.Sprintf("ERR Slot %d specified multiple times", slot))
			}
			set.Add(slot)
		}
	}
	return set, nil
}

// ok replies OK unless there is an error.
func (c *Conn) ok(err error) error {
	if err == nil {
		c.reply.Simple("OK")
	}
	return err
}

func clusterAddSlots(c *Conn, args [][]byte) error {
	set, err := c.slotArgs(args[2:], false)
	if err != nil {
		return err
	}
	return c.ok(c.server.node.Admin().AddSlots(c.ctx, set))
}

func clusterAddSlotsRange(c *Conn, args [][]byte) error {
	set, err := c.rangeArgs("addslotsrange", args[2:], false)
	if err != nil {
		return err
	}
	return c.ok(c.server.node.Admin().AddSlots(c.ctx, set))
}

func clusterDelSlots(c *Conn, args [][]byte) error {
	set, err := c.slotArgs(args[2:], true)
	if err != nil {
		return err
	}
	return c.ok(c.server.node.Admin().DelSlots(c.ctx, set))
}

func clusterDelSlotsRange(c *Conn, args [][]byte) error {
	set, err := c.rangeArgs("delslotsrange", args[2:], true)
	if err != nil {
		return err
	}
	return c.ok(c.server.node.Admin().DelSlots(c.ctx, set))
}

func clusterFlushSlots(c *Conn, args [][]byte) error {
	keys, err := c.server.countKeys()
	if err != nil {
		return err
	}
	if keys > 0 {
		return Error("ERR DB must be empty to perform CLUSTER FLUSHSLOTS.")
	}
	set := c.server.node.Table().Slots(c.server.node.ID())
	if set.Empty() {
		return c.ok(nil)
	}
	return c.ok(c.server.node.Admin().DelSlots(c.ctx, set))
}

// clusterSetSlot checks what concerns its arguments. What concerns the cluster
// is for the node, which has Redis's words for it.
func clusterSetSlot(c *Conn, args [][]byte) error {
	slot, err := parseSlotArg(args[2])
	if err != nil {
		return err
	}
	admin := c.server.node.Admin()
	switch action, n := args[3], len(args); {
	case equalFold(action, "migrating") && n == 5:
		if !c.server.owns(slot) {
			return Error(fmt.Sprintf("ERR I'm not the owner of hash slot %d", slot))
		}
		to, err := slotmesh.ParseNodeID(string(args[4]))
		if err != nil {
			return Error(fmt.Sprintf("ERR I don't know about node %s", cText(args[4])))
		}
		return c.ok(admin.SetSlotMigrating(c.ctx, slot, to))
	case equalFold(action, "importing") && n == 5:
		if c.server.owns(slot) {
			return Error(fmt.Sprintf("ERR I'm already the owner of hash slot %d", slot))
		}
		from, err := slotmesh.ParseNodeID(string(args[4]))
		if err != nil {
			return Error(fmt.Sprintf("ERR I don't know about node %s", cText(args[4])))
		}
		return c.ok(admin.SetSlotImporting(c.ctx, slot, from))
	case equalFold(action, "stable") && n == 4:
		return c.ok(admin.SetSlotStable(c.ctx, slot))
	case equalFold(action, "node") && n == 5:
		to, err := slotmesh.ParseNodeID(string(args[4]))
		if err != nil {
			return Error(fmt.Sprintf("ERR Unknown node %s", cText(args[4])))
		}
		var set slotmesh.SlotSet
		set.Add(slot)
		return c.ok(admin.SetSlots(c.ctx, set, to))
	}
	return errSetSlot
}

// owns reports whether a slot is this node's.
func (s *Server) owns(slot slotmesh.Slot) bool {
	owner, ok := s.node.Table().Owner(slot)
	return ok && owner.Self
}

// ---- members

func clusterMeet(c *Conn, args [][]byte) error {
	if len(args) > 5 {
		return wrongSubcommand("CLUSTER", string(args[1]))
	}
	host := string(cText(args[2]))
	port, ok := parseInt(args[3])
	if !ok {
		return Error(fmt.Sprintf("ERR Invalid TCP base port specified: %s", cText(args[3])))
	}
	bus := port + busOffset
	if len(args) == 5 {
		if bus, ok = parseInt(args[4]); !ok {
			return Error(fmt.Sprintf("ERR Invalid TCP bus port specified: %s", cText(args[4])))
		}
	}
	if !validHost(host) || port < 1 || port > 65535 || bus < 1 || bus > 65535 {
		return Error(fmt.Sprintf("ERR Invalid node address specified: %s:%s", host, cText(args[3])))
	}
	return c.ok(c.server.node.Admin().Meet(c.ctx, net.JoinHostPort(host, strconv.Itoa(int(bus)))))
}

// validHost takes an address, or a name with a dot or "localhost": Redis takes
// addresses alone, and what is no name must not be looked up for ever.
func validHost(host string) bool {
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	if host != "localhost" && !strings.Contains(host, ".") || len(host) > 253 {
		return false
	}
	for _, label := range strings.Split(host, ".") {
		if label == "" || strings.Trim(label, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-") != "" {
			return false
		}
	}
	// An address has a last part of digits, a name has not.
	return strings.Trim(host[strings.LastIndexByte(host, '.')+1:], "0123456789") != ""
}

func clusterForget(c *Conn, args [][]byte) error {
	force := len(args) == 4 && equalFold(args[3], "force")
	if len(args) > 3 && !force {
		return wrongSubcommand("CLUSTER", string(args[1]))
	}
	// Whoever has been forgotten is in no table any more: the core knows.
	id, err := slotmesh.ParseNodeID(string(args[2]))
	if err != nil {
		return Error(fmt.Sprintf("ERR Unknown node %s", cText(args[2])))
	}
	if self := c.server.self(); self.primary == id && !id.IsZero() {
		return errForgetMaster
	}
	return c.ok(c.server.node.Admin().Forget(c.ctx, id, force))
}

func clusterReset(c *Conn, args [][]byte) error {
	hard := false
	switch {
	case len(args) > 3:
		return wrongSubcommand("CLUSTER", string(args[1]))
	case len(args) == 3 && equalFold(args[2], "hard"):
		hard = true
	case len(args) == 3 && !equalFold(args[2], "soft"):
		return errSyntax
	}
	return c.ok(c.server.node.Admin().Reset(c.ctx, hard))
}

// clusterSaveConfig has nothing to do: a node saves what it knows before it acts
// on it.
func clusterSaveConfig(c *Conn, args [][]byte) error { return c.ok(nil) }

// ---- epochs

func clusterSetConfigEpoch(c *Conn, args [][]byte) error {
	n, ok := parseInt(args[2])
	switch {
	case !ok:
		return errNotInteger
	case n < 0:
		return Error(fmt.Sprintf("ERR Invalid config epoch specified: %s", cText(args[2])))
	}
	return c.ok(c.server.node.Admin().SetConfigEpoch(c.ctx, uint64(n)))
}

// clusterBumpEpoch raises this node's epoch, unless it alone has the highest.
func clusterBumpEpoch(c *Conn, args [][]byte) error {
	if epoch, alone := c.server.highestEpoch(); alone {
		c.reply.Simple(fmt.Sprintf("STILL %d", epoch))
		return nil
	}
	if err := c.server.node.Admin().BumpEpoch(c.ctx); err != nil {
		return err
	}
	c.reply.Simple(fmt.Sprintf("BUMPED %d", c.server.node.Status().MyEpoch))
	return nil
}

// highestEpoch is this node's epoch, and whether it is above that of all others.
func (s *Server) highestEpoch() (epoch uint64, alone bool) {
	st := s.node.Status()
	for _, n := range s.node.Table().Nodes() {
		if !n.Self && n.Epoch >= st.MyEpoch {
			return st.MyEpoch, false
		}
	}
	return st.MyEpoch, st.MyEpoch > 0 && st.MyEpoch >= st.Epoch
}
