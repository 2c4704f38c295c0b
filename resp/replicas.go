package resp

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/slotmesh/slotmesh"
)

// Replicas: who follows whom, failover by hand, ROLE, INFO replication, WAIT.
// Offsets count changes, where Redis counts bytes: they are good to be compared
// with each other.

const (
	errReplicaOf      Error = "ERR REPLICAOF not allowed in cluster mode."
	errReplicaOfAlone Error = "ERR a server that is no cluster keeps no replicas"
	errFailover       Error = "ERR FAILOVER not allowed in cluster mode. Use CLUSTER FAILOVER command instead."
	errFailoverAlone  Error = "ERR FAILOVER requires connected replicas."
	errNoMaster       Error = "ERR You should send CLUSTER FAILOVER to a replica"
	errMasterUnknown  Error = "ERR I'm a replica but my master is unknown to me"
	errMasterDown     Error = "ERR Master is down or failed, please use CLUSTER FAILOVER FORCE"
	errNoCopy         Error = "ERR This replica has no copy of its master's data yet"
	errForgetMaster   Error = "ERR Can't forget my master!"
	errReadOnly       Error = "READONLY You can't write against a read only replica."
	errWaitAtReplica  Error = "ERR WAIT cannot be used with replica instances. Please also note that since Redis 4.0 if a replica is configured to be writable (which is not the default) writes to replicas are just local and are not propagated."
	errUnblocked      Error = "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)"
	errNoReplicas     Error = "NOREPLICAS Not enough good replicas to write."
)

func replicationCommands() []Command {
	const admin = AdminFlag | NoScript | Stale
	return []Command{
		{Name: "replicaof", Arity: 3, Flags: admin | NoAsyncLoading, Conn: replicaOf, Group: "server", Since: "5.0.0", Summary: "Refused: CLUSTER REPLICATE takes its place", Complexity: "O(1)"},
		{Name: "slaveof", Arity: 3, Flags: admin | NoAsyncLoading, Conn: replicaOf, Group: "server", Since: "1.0.0", Summary: "Refused: CLUSTER REPLICATE takes its place", Complexity: "O(1)"},
		{Name: "failover", Arity: -1, Flags: admin, Conn: failover, Group: "server", Since: "6.2.0", Summary: "Refused: CLUSTER FAILOVER takes its place", Complexity: "O(1)"},
		{Name: "replconf", Arity: -1, Flags: admin | Loading | AllowBusy | Silent, Conn: replConf, Group: "server", Since: "3.0.0", Summary: "What a tool that is about to ask for all data can take", Complexity: "O(1)"},
		{Name: "sync", Arity: 1, Flags: AdminFlag | NoScript | NoAsyncLoading | NoMulti, Conn: syncData, Group: "server", Since: "1.0.0", Summary: "Send all keys of this node as an RDB file, and close the connection", Complexity: "O(N) where N is the number of keys"},
		{Name: "psync", Arity: -3, Flags: AdminFlag | NoScript | NoAsyncLoading | NoMulti, Conn: pSync, Group: "server", Since: "2.8.0", Summary: "Send all keys of this node as an RDB file, and close the connection", Complexity: "O(N) where N is the number of keys"},
		{Name: "wait", Arity: 3, Flags: NoScript, Conn: wait, Group: "generic", Since: "3.0.0", Summary: "Wait until replicas have what this connection has written", Complexity: "O(1)"},
		{Name: "role", Arity: 1, Flags: NoScript | Loading | Stale | Fast, Conn: role, Group: "server", Since: "2.8.12", Summary: "Return what the node is in replication", Complexity: "O(1)"},
	}
}

func replicaOf(c *Conn, args [][]byte) error {
	if c.server.cfg.Standalone {
		return errReplicaOfAlone
	}
	return errReplicaOf
}

func failover(c *Conn, args [][]byte) error {
	if c.server.cfg.Standalone {
		return errFailoverAlone
	}
	return errFailover
}

// ---- who follows whom

// self is this node as a member.
func (s *Server) self() member {
	for _, m := range s.members() {
		if m.Self {
			return m
		}
	}
	return member{slots: &slotmesh.SlotSet{}} // a node that has been forgotten, or closed
}

// isReplica reports whether this node follows another one.
func (s *Server) isReplica() bool {
	m := s.self()
	return !m.primary.IsZero()
}

// memberOf finds a node by its id.
func (s *Server) memberOf(id slotmesh.NodeID) (m member, ok bool) {
	for _, m := range s.members() {
		if m.ID == id {
			return m, true
		}
	}
	return member{}, false
}

func clusterReplicas(c *Conn, args [][]byte) error {
	m, err := c.member(args[2])
	switch {
	case err != nil:
		return err
	case !m.primary.IsZero():
		return Error("ERR The specified node is not a master")
	}
	var lines [][]byte
	for _, x := range c.server.members() {
		if x.primary == m.ID {
			lines = append(lines, c.server.appendNode(nil, &x))
		}
	}
	c.reply.Array(len(lines))
	for _, l := range lines {
		c.reply.Bulk(l)
	}
	return nil
}

// clusterReplicate leaves it to the node what it may follow: it has Redis's words
// for it.
func clusterReplicate(c *Conn, args [][]byte) error {
	id, err := slotmesh.ParseNodeID(string(args[2]))
	if err != nil {
		return Error(fmt.Sprintf("ERR Unknown node %s", cText(args[2])))
	}
	return c.ok(c.server.node.Admin().Replicate(c.ctx, id))
}

// ---- CLUSTER FAILOVER

// failovers is the failover to this node that is under way. There is one at most.
type failovers struct {
	mu      sync.Mutex
	running bool
	mode    slotmesh.FailoverMode // of the one that runs
	then    slotmesh.FailoverMode // to be tried when that has failed; none where it is not above mode
}

// clusterFailover is answered once it has been accepted, as in Redis: what becomes
// of it CLUSTER NODES tells, and the log where it fails.
func clusterFailover(c *Conn, args [][]byte) error {
	mode := slotmesh.FailoverPlain
	switch {
	case len(args) > 3:
		return wrongSubcommand("CLUSTER", string(args[1]))
	case len(args) == 3 && equalFold(args[2], "force"):
		mode = slotmesh.FailoverForce
	case len(args) == 3 && equalFold(args[2], "takeover"):
		mode = slotmesh.FailoverTakeover
	case len(args) == 3:
		return errSyntax
	}
	if err := c.server.mayFailOver(mode); err != nil {
		return err
	}
	c.server.beginFailover(mode)
	return c.ok(nil)
}

// mayFailOver refuses what cannot come to anything.
func (s *Server) mayFailOver(mode slotmesh.FailoverMode) error {
	self := s.self()
	if self.primary.IsZero() {
		return errNoMaster
	}
	primary, known := s.memberOf(self.primary)
	switch {
	case !known:
		return errMasterUnknown
	case mode == slotmesh.FailoverPlain && (primary.Failed || primary.Silent || !primary.Connected):
		return errMasterDown
	case mode != slotmesh.FailoverTakeover && !s.node.Status().Replication.HoldsCopy:
		return errNoCopy
	}
	return nil
}

// beginFailover begins a failover beside the caller. One that is asked for again is
// the one that runs; one that asks fewer nodes comes after it, if it is still wanted
// then.
func (s *Server) beginFailover(mode slotmesh.FailoverMode) {
	f := &s.failovers
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.running {
		f.then = max(f.then, mode)
		return
	}
	f.running, f.mode, f.then = true, mode, mode
	s.wg.Go(func() { s.failOver(mode) })
}

func (s *Server) failOver(mode slotmesh.FailoverMode) {
	for more := true; more; {
		if err := s.node.Admin().Failover(s.ctx, mode); err != nil && s.ctx.Err() == nil {
			s.log.Warn("a failover to this node has failed", "error", err)
		}
		mode, more = s.nextFailover()
	}
}

// nextFailover is what is to be tried after a failover that has ended.
func (s *Server) nextFailover() (mode slotmesh.FailoverMode, more bool) {
	wanted := s.isReplica() && s.ctx.Err() == nil
	f := &s.failovers
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.running = wanted && f.then > f.mode; f.running {
		f.mode = f.then
	}
	return f.mode, f.running
}

// ---- ROLE and INFO replication

func role(c *Conn, args [][]byte) error {
	st := c.server.node.Status().Replication
	self := c.server.self()
	if !self.primary.IsZero() {
		return c.roleOfReplica(&self, &st)
	}
	replicas := c.server.attached(&st)
	c.reply.Array(3)
	c.reply.BulkString("master")
	c.reply.Int(int64(st.Offset))
	c.reply.Array(len(replicas))
	for _, r := range replicas {
		c.reply.Array(3)
		c.reply.BulkString(r.host)
		c.reply.BulkString(strconv.Itoa(r.port))
		c.reply.BulkString(strconv.FormatUint(r.status.Offset, 10))
	}
	return nil
}

func (c *Conn) roleOfReplica(self *member, st *slotmesh.Replication) error {
	primary, _ := c.server.memberOf(self.primary)
	c.reply.Array(5)
	c.reply.BulkString("slave")
	c.reply.BulkString(primary.host)
	c.reply.Int(int64(primary.port))
	c.reply.BulkString(map[slotmesh.LinkState]string{slotmesh.LinkDown: "connect", slotmesh.LinkSync: "sync", slotmesh.LinkUp: "connected"}[st.Link])
	c.reply.Int(replicaOffset(st))
	return nil
}

// replicaOffset is how far a replica is; -1 where it has no copy of anything, as in
// Redis.
func replicaOffset(st *slotmesh.Replication) int64 {
	if !st.HoldsCopy {
		return -1
	}
	return int64(st.Offset)
}

// attachedReplica is a replica that is connected to this node, its primary.
type attachedReplica struct {
	member
	status slotmesh.ReplicaStatus
}

func (s *Server) attached(st *slotmesh.Replication) (all []attachedReplica) {
	for _, r := range st.Replicas {
		if m, known := s.memberOf(r.Node); known {
			all = append(all, attachedReplica{m, r})
		}
	}
	return all
}

func (s *Server) infoReplication(b *infoText) {
	st := s.node.Status().Replication
	self := s.self()
	if self.primary.IsZero() {
		b.line("role", "master")
	} else {
		s.infoReplica(b, &self, &st)
	}
	replicas := s.attached(&st)
	b.line("connected_slaves", len(replicas))
	if least := s.settings.minReplicas.Load(); least > 0 && self.primary.IsZero() {
		b.line("min_slaves_good_slaves", max(0, len(st.InSync)-1))
	}
	for i, r := range replicas {
		state := map[slotmesh.LinkState]string{slotmesh.LinkDown: "wait_bgsave", slotmesh.LinkSync: "send_bulk", slotmesh.LinkUp: "online"}[r.status.Link]
		b.line(fmt.Sprintf("slave%d", i), fmt.Sprintf("ip=%s,port=%d,state=%s,offset=%d,lag=%d", r.host, r.port, state, r.status.Offset, int64(r.status.Heard.Seconds())))
	}
	b.line("master_failover_state", "no-failover")
	b.line("master_replid", s.replicationID(&st))
	b.line("master_replid2", strings.Repeat("0", 40))
	b.line("master_repl_offset", st.Offset)
	b.line("second_repl_offset", -1)
	b.line("repl_backlog_active", boolDigit(st.Backlog.First <= st.Offset && st.Offset > 0))
	b.line("repl_backlog_size", st.Backlog.Limit)
	b.line("repl_backlog_first_byte_offset", st.Backlog.First)
	b.line("repl_backlog_histlen", st.Backlog.Bytes)
}

// replicationID names what is replicated: the shard, whose log goes on whoever
// leads it.
func (s *Server) replicationID(st *slotmesh.Replication) string {
	if st.Shard.IsZero() {
		return s.runID
	}
	return st.Shard.String()
}

// infoReplica is what only a replica shows.
func (s *Server) infoReplica(b *infoText, self *member, st *slotmesh.Replication) {
	primary, _ := s.memberOf(self.primary)
	link, seconds := "down", int64(-1)
	if st.Link == slotmesh.LinkUp {
		link, seconds = "up", int64(st.SilentFor.Seconds())
	}
	b.line("role", "slave")
	b.line("master_host", primary.host)
	b.line("master_port", primary.port)
	b.line("master_link_status", link)
	b.line("master_last_io_seconds_ago", seconds)
	b.line("master_sync_in_progress", boolDigit(st.Link == slotmesh.LinkSync))
	b.line("slave_read_repl_offset", st.Offset)
	b.line("slave_repl_offset", st.Offset)
	if st.Link != slotmesh.LinkUp {
		b.line("master_link_down_since_seconds", int64(st.SilentFor.Seconds()))
	}
	b.line("slave_priority", 100)
	b.line("slave_read_only", 1)
	b.line("replica_announced", 1)
}

// role is what HELLO calls the server.
func (s *Server) role() string {
	if s.isReplica() {
		return "replica"
	}
	return "master"
}

// ---- WAIT

// wait waits, for as long as it says and 0 for ever, until replicas have what this
// connection has written. It counts those that have it now, whether they are in sync
// or not: that one of them leads next is not promised.
func wait(c *Conn, args [][]byte) error {
	if c.server.isReplica() {
		return errWaitAtReplica
	}
	want, ok := parseInt(args[1])
	if !ok {
		return errNotInteger
	}
	d, err := parseTimeout(args[2])
	if err != nil {
		return err
	}
	have := c.session.Wait(c.ctx, 0)
	if int64(have) < want && !c.inExec {
		if have, err = c.awaitReplicas(d, int(min(want, 1<<30))); err != nil {
			return err
		}
	}
	c.reply.Int(int64(have))
	return nil
}

// awaitReplicas waits until so many replicas have what the session has written.
func (c *Conn) awaitReplicas(d time.Duration, want int) (have int, err error) {
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	over := make(chan struct{})
	c.server.wg.Go(func() {
		defer close(over)
		have = c.session.Wait(ctx, want)
	})
	err = c.park(d, over)
	cancel()
	<-over
	// The log ends before the table says who leads: it is the log that was waited for.
	if err == nil && have < want && !c.server.node.Status().Replication.Primary.IsZero() {
		err = errUnblocked
	}
	return have, err
}

// ackReplicas is how many members must have what a request writes before it is
// acknowledged, whatever the node itself wants.
func (s *Server) ackReplicas(readOnly bool) int {
	if readOnly {
		return 0
	}
	return int(s.settings.minReplicas.Load())
}

// seenReplica is what this node knows of the copy of a member of its shard.
type seenReplica struct {
	offset  uint64
	loading bool // it has not got everything yet
	whole   bool // it has everything, as of some moment
}

// seen is what this node knows of the copies in its shard, its own among them.
func (s *Server) seen() map[slotmesh.NodeID]seenReplica {
	st := s.node.Status().Replication
	all := map[slotmesh.NodeID]seenReplica{s.node.ID(): {st.Offset, !st.Primary.IsZero() && !st.HoldsCopy, st.HoldsCopy}}
	if !st.Primary.IsZero() {
		all[st.Primary] = seenReplica{offset: st.PrimaryEnd, whole: true}
	}
	for _, r := range st.Replicas {
		whole := r.Link != slotmesh.LinkSync && r.Offset > 0 // it acknowledges what it has in place
		all[r.Node] = seenReplica{r.Offset, r.Link == slotmesh.LinkSync, whole}
	}
	return all
}
