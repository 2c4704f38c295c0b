package resp

import (
	"fmt"
	"os"
	"runtime"
	"runtime/metrics"
	"slices"
	"strings"
	"time"
)

// infoSection is a part of INFO. An optional one is shown only to who asks for
// it, or for everything.
type infoSection struct {
	name     string
	title    string
	optional bool
	write    func(s *Server, b *infoText)
}

// infoText is text of lines "name:value".
type infoText struct{ strings.Builder }

func (b *infoText) line(name string, value any) { fmt.Fprintf(b, "%s:%v\r\n", name, value) }

// infoSections are in the order of INFO.
func infoSections() []infoSection {
	return []infoSection{
		{name: "server", title: "Server", write: (*Server).infoServer},
		{name: "clients", title: "Clients", write: (*Server).infoClients},
		{name: "memory", title: "Memory", write: (*Server).infoMemory},
		{name: "persistence", title: "Persistence", write: (*Server).infoPersistence},
		{name: "stats", title: "Stats", write: (*Server).infoStats},
		{name: "replication", title: "Replication", write: (*Server).infoReplication},
		{name: "cpu", title: "CPU", write: (*Server).infoCPU},
		{name: "modules", title: "Modules", write: func(*Server, *infoText) {}},
		{name: "commandstats", title: "Commandstats", optional: true, write: (*Server).infoCommands},
		{name: "errorstats", title: "Errorstats", write: (*Server).infoErrors},
		{name: "cluster", title: "Cluster", write: (*Server).infoCluster},
		{name: "keyspace", title: "Keyspace", write: (*Server).infoKeyspace},
	}
}

func infoCommand() Command {
	return Command{Name: "info", Arity: -1, Flags: Loading | Stale, Conn: info, Group: "server", Since: "1.0.0", Summary: "Tell about the server, in sections", Complexity: "O(1)"}
}

func info(c *Conn, args [][]byte) error {
	var b infoText
	for _, s := range infoSections() {
		if !s.wanted(args[1:]) {
			continue
		}
		if b.Len() > 0 {
			b.WriteString("\r\n")
		}
		b.WriteString("# " + s.title + "\r\n")
		s.write(c.server, &b)
	}
	c.reply.Verbatim("txt", b.String())
	return nil
}

// wanted reports whether a section is among those asked for.
func (s *infoSection) wanted(names [][]byte) bool {
	return len(names) == 0 && !s.optional || slices.ContainsFunc(names, func(name []byte) bool {
		return equalFold(name, s.name) || equalFold(name, "all") || equalFold(name, "everything") || equalFold(name, "default") && !s.optional
	})
}

func (s *Server) infoServer(b *infoText) {
	up := int64(time.Since(s.started).Seconds())
	_, port := splitAddr(s.listener.Addr().String())
	executable, _ := os.Executable()
	b.line("redis_version", Version)
	b.line("redis_git_sha1", "00000000")
	b.line("redis_git_dirty", 0)
	b.line("redis_build_id", "slotmesh")
	b.line("redis_mode", s.mode())
	b.line("os", runtime.GOOS+" "+runtime.GOARCH)
	b.line("arch_bits", 32<<(^uint(0)>>63))
	b.line("process_id", os.Getpid())
	b.line("run_id", s.runID)
	b.line("tcp_port", port)
	b.line("server_time_usec", time.Now().UnixMicro())
	b.line("uptime_in_seconds", up)
	b.line("uptime_in_days", up/86400)
	b.line("hz", 10)
	b.line("configured_hz", 10)
	b.line("executable", executable)
	b.line("config_file", s.cfg.ConfigFile)
}

func (s *Server) infoClients(b *infoText) {
	all := s.clients()
	blocked, tracking := 0, 0
	for _, c := range all {
		if c.blocked.Load() != nil {
			blocked++
		}
		if c.tracks.Load() {
			tracking++
		}
	}
	b.line("connected_clients", len(all))
	b.line("cluster_connections", 2*max(0, len(s.node.Table().Nodes())-1))
	b.line("maxclients", s.settings.maxClients.Load())
	b.line("blocked_clients", blocked)
	b.line("tracking_clients", tracking)
}

// memory is what the process takes up, in bytes.
type memory struct {
	used     int64 // by live objects
	resident int64 // by the process
	peak     int64 // of used, as far as somebody looked
}

func (s *Server) memory() memory {
	samples := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(samples)
	m := memory{used: int64(samples[0].Value.Uint64()), resident: int64(samples[1].Value.Uint64() - samples[2].Value.Uint64())}
	if rss, ok := residentBytes(); ok {
		m.resident = rss
	}
	for {
		m.peak = s.peak.Load()
		if m.used <= m.peak || s.peak.CompareAndSwap(m.peak, m.used) {
			m.peak = max(m.peak, m.used)
			return m
		}
	}
}

func (s *Server) infoMemory(b *infoText) {
	m := s.memory()
	b.line("used_memory", m.used)
	b.line("used_memory_human", sizeText(m.used))
	b.line("used_memory_rss", m.resident)
	b.line("used_memory_rss_human", sizeText(m.resident))
	b.line("used_memory_peak", m.peak)
	b.line("used_memory_peak_human", sizeText(m.peak))
	b.line("maxmemory", 0)
	b.line("maxmemory_human", "0B")
	b.line("maxmemory_policy", "noeviction")
	b.line("mem_fragmentation_ratio", fmt.Sprintf("%.2f", float64(m.resident)/float64(max(1, m.used))))
	b.line("mem_allocator", runtime.Version())
}

// infoPersistence says that nothing is loading: clients wait for that.
func (s *Server) infoPersistence(b *infoText) {
	b.line("loading", 0)
	b.line("async_loading", 0)
	b.line("rdb_changes_since_last_save", 0)
	b.line("rdb_bgsave_in_progress", boolDigit(s.saving.Load()))
	b.line("rdb_last_save_time", s.lastSave.Load())
	b.line("rdb_last_bgsave_status", "ok")
	b.line("aof_enabled", 0)
	b.line("aof_rewrite_in_progress", 0)
	b.line("aof_last_bgrewrite_status", "ok")
	b.line("aof_last_write_status", "ok")
}

func boolDigit(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (s *Server) infoStats(b *infoText) {
	channels, patterns, sharded := s.pubSub.counts()
	b.line("total_connections_received", s.stats.connections.Load())
	b.line("total_commands_processed", s.stats.commands.Load())
	b.line("total_net_input_bytes", s.stats.netIn.Load())
	b.line("total_net_output_bytes", s.stats.netOut.Load())
	b.line("rejected_connections", s.stats.rejected.Load())
	b.line("pubsub_channels", channels)
	b.line("pubsub_patterns", patterns)
	b.line("pubsubshard_channels", sharded)
	b.line("tracking_total_items", s.trackers.items.Load())
	b.line("migrate_cached_sockets", s.sockets.count())
	b.line("total_error_replies", s.stats.errors.Load())
}

// counts is the number of channels and patterns that somebody listens to.
func (p *pubSub) counts() (channels, patterns, sharded int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.channels), len(p.patterns), len(p.sharded)
}

func (s *Server) infoCPU(b *infoText) {
	if system, user, ok := cpuTime(); ok {
		b.line("used_cpu_sys", fmt.Sprintf("%.6f", system.Seconds()))
		b.line("used_cpu_user", fmt.Sprintf("%.6f", user.Seconds()))
	}
}

func (s *Server) infoCommands(b *infoText) {
	for _, c := range s.table.all {
		b.commandStats(c)
		for i := range c.Sub {
			b.commandStats(&c.Sub[i])
		}
	}
}

func (b *infoText) commandStats(c *Command) {
	calls, rejected := c.stats.calls.Load(), c.stats.rejected.Load()
	if calls == 0 && rejected == 0 {
		return
	}
	usec := c.stats.nanos.Load() / 1000
	b.line("cmdstat_"+c.fullName(), fmt.Sprintf("calls=%d,usec=%d,usec_per_call=%.2f,rejected_calls=%d,failed_calls=%d",
		calls, usec, float64(usec)/float64(max(1, calls)), rejected, c.stats.failed.Load()))
}

func (s *Server) infoErrors(b *infoText) {
	for _, c := range s.stats.byCode.sorted() {
		b.line("errorstat_"+c.name, fmt.Sprintf("count=%d", c.n))
	}
}

func (s *Server) infoCluster(b *infoText) { b.line("cluster_enabled", boolDigit(!s.cfg.Standalone)) }

// infoKeyspace leaves an empty database out, as Redis does: redis-cli takes a
// line for keys. How long the keys will be there on average nobody counts.
func (s *Server) infoKeyspace(b *infoText) {
	n, err := s.countKeys()
	expires, err2 := s.count(s.node.CountExpiring)
	if err == nil && err2 == nil && n > 0 {
		b.line("db0", fmt.Sprintf("keys=%d,expires=%d,avg_ttl=0", n, expires))
	}
}
