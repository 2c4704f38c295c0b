package resp

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/slotmesh/slotmesh"
)

// Settings are what CONFIG shows and takes. Few have an effect here: the others
// are kept and shown, for tools that set them and read them back, and the log
// says so, as a warning, when one is set, at the start or later.

// settingKind says what values a setting takes.
type settingKind uint8

const (
	settingText settingKind = iota
	settingBool
	settingNumber
	settingMemory // a number with a unit
	settingWord   // one of some words
	settingSave   // pairs of seconds and changes
	settingEvents // letters of classes of events
	settingHost   // a name of a host
)

// settingEffect says what comes of CONFIG SET.
type settingEffect uint8

const (
	settingShown  settingEffect = iota // it is kept and shown
	settingLive                        // it holds from now on
	settingPolicy                      // it is part of the node's policy, from now on
	settingNext                        // it holds from the next start on, if CONFIG REWRITE has saved it
	settingFixed                       // it is refused
)

// setting is a row of the table.
type setting struct {
	name   string
	value  string
	begin  string // the value at the start
	kind   settingKind
	effect settingEffect
	low    int64 // of a number
	high   int64
	words  []string
}

func number(name, value string, low, high int64, effect settingEffect) setting {
	return setting{name: name, value: value, kind: settingNumber, effect: effect, low: low, high: high}
}

func memorySize(name, value string, effect settingEffect) setting {
	return setting{name: name, value: value, kind: settingMemory, effect: effect, high: math.MaxInt64}
}

func yesNo(name, value string, effect settingEffect) setting {
	return setting{name: name, value: value, kind: settingBool, effect: effect}
}

func text(name, value string, effect settingEffect) setting {
	return setting{name: name, value: value, effect: effect}
}

func word(name, value string, effect settingEffect, words ...string) setting {
	return setting{name: name, value: value, kind: settingWord, effect: effect, words: words}
}

// settingsTable is every setting with the value that redis-server 7.0 begins
// with.
func settingsTable() []setting {
	const most = math.MaxInt64
	return []setting{
		yesNo("activerehashing", "yes", settingShown),
		yesNo("appendonly", "no", settingNext),
		word("appendfsync", "everysec", settingShown, "everysec", "always", "no"),
		text("bind", "* -::*", settingFixed),
		number("busy-reply-threshold", "5000", 0, most, settingShown),
		text("client-output-buffer-limit", "normal 0 0 0 slave 268435456 67108864 60 pubsub 33554432 8388608 60", settingShown),
		memorySize("client-query-buffer-limit", "1073741824", settingShown),
		number("cluster-announce-bus-port", "0", 0, 65535, settingFixed),
		{name: "cluster-announce-hostname", kind: settingHost, effect: settingFixed},
		text("cluster-announce-ip", "", settingFixed),
		number("cluster-announce-port", "0", 0, 65535, settingFixed),
		yesNo("cluster-allow-reads-when-down", "no", settingLive),
		yesNo("cluster-allow-replica-migration", "yes", settingPolicy),
		text("cluster-config-file", "nodes.conf", settingFixed),
		yesNo("cluster-enabled", "no", settingFixed),
		number("cluster-migration-barrier", "1", 0, math.MaxInt32, settingPolicy),
		number("cluster-node-timeout", "15000", 0, most, settingNext),
		number("cluster-port", "0", 0, 65535, settingFixed),
		word("cluster-preferred-endpoint-type", "ip", settingLive, "ip", "hostname", "unknown-endpoint"),
		yesNo("cluster-replica-no-failover", "no", settingPolicy),
		number("cluster-replica-validity-factor", "10", 0, math.MaxInt32, settingPolicy),
		yesNo("cluster-require-full-coverage", "yes", settingPolicy),
		yesNo("daemonize", "no", settingFixed),
		number("databases", "1", 1, math.MaxInt32, settingFixed),
		text("dbfilename", "dump.rdb", settingFixed),
		text("dir", "", settingFixed),
		word("enable-debug-command", "no", settingShown, "no", "yes", "local"),
		number("hash-max-listpack-entries", "512", 0, most, settingShown),
		memorySize("hash-max-listpack-value", "64", settingShown),
		number("hz", "10", 0, math.MaxInt32, settingShown),
		number("latency-monitor-threshold", "0", 0, most, settingShown),
		yesNo("lazyfree-lazy-user-del", "no", settingShown),
		number("list-max-listpack-size", "-2", math.MinInt32, math.MaxInt32, settingShown),
		text("logfile", "", settingFixed),
		word("loglevel", "notice", settingNext, "debug", "verbose", "notice", "warning"),
		number("lua-time-limit", "5000", 0, most, settingShown),
		number("maxclients", "10000", 1, math.MaxUint32, settingLive),
		memorySize("maxmemory", "0", settingShown),
		word("maxmemory-policy", "noeviction", settingShown, "volatile-lru", "volatile-lfu", "volatile-random", "volatile-ttl", "allkeys-lru", "allkeys-lfu", "allkeys-random", "noeviction"),
		number("maxmemory-samples", "5", 1, math.MaxInt32, settingShown),
		{name: "notify-keyspace-events", kind: settingEvents},
		text("pidfile", "", settingFixed),
		number("port", "6379", 0, 65535, settingFixed),
		memorySize("proto-max-bulk-len", "536870912", settingNext),
		yesNo("protected-mode", "yes", settingNext),
		number("min-replicas-max-lag", "10", 0, math.MaxInt32, settingShown),
		number("min-replicas-to-write", "0", 0, 100, settingLive),
		memorySize("repl-backlog-size", "1048576", settingNext),
		number("repl-backlog-ttl", "3600", 0, math.MaxInt32, settingShown),
		yesNo("repl-diskless-sync", "yes", settingShown),
		number("repl-diskless-sync-delay", "5", 0, math.MaxInt32, settingShown),
		number("repl-ping-replica-period", "10", 1, math.MaxInt32, settingShown),
		number("repl-timeout", "60", 1, math.MaxInt32, settingShown),
		number("replica-priority", "100", 0, math.MaxInt32, settingShown),
		yesNo("replica-read-only", "yes", settingShown),
		yesNo("replica-serve-stale-data", "yes", settingShown),
		text("replicaof", "", settingFixed),
		text("requirepass", "", settingLive),
		{name: "save", value: "3600 1 300 100 60 10000", kind: settingSave},
		number("set-max-intset-entries", "512", 0, most, settingShown),
		number("slowlog-log-slower-than", "10000", -1, most, settingLive),
		number("slowlog-max-len", "128", 0, most, settingLive),
		number("tcp-backlog", "511", 0, math.MaxInt32, settingFixed),
		number("tcp-keepalive", "300", 0, math.MaxInt32, settingLive),
		number("timeout", "0", 0, math.MaxInt32, settingLive),
		number("tls-port", "0", 0, 65535, settingFixed),
		number("tracking-table-max-keys", "1000000", 0, most, settingLive),
		number("zset-max-listpack-entries", "128", 0, most, settingShown),
		memorySize("zset-max-listpack-value", "64", settingShown),
	}
}

// oldSettings are what redis.conf called its settings before, and still takes.
func oldSettings() map[string]string {
	return map[string]string{
		"cluster-slave-no-failover": "cluster-replica-no-failover", "cluster-slave-validity-factor": "cluster-replica-validity-factor",
		"min-slaves-max-lag": "min-replicas-max-lag", "min-slaves-to-write": "min-replicas-to-write", "repl-ping-slave-period": "repl-ping-replica-period",
		"slave-priority": "replica-priority", "slave-read-only": "replica-read-only", "slave-serve-stale-data": "replica-serve-stale-data", "slaveof": "replicaof",
	}
}

// SettingName is what a setting is called now, where redis.conf has an older name for
// it; other names are as they are.
func SettingName(name string) string {
	if now, old := oldSettings()[name]; old {
		return now
	}
	return name
}

// settings are those of a server.
type settings struct {
	mu     sync.Mutex
	byName map[string]*setting // guarded by mu

	// Copies for those who read them at every command.
	slowerThan  atomic.Int64 // microseconds; below 0: nothing is slow
	slowMax     atomic.Int64
	maxClients  atomic.Int64
	timeout     atomic.Int64 // seconds that a client may do nothing; 0: as many as it likes
	keepAlive   atomic.Int64 // seconds of silence before the network asks a client; 0: never
	trackMax    atomic.Int64 // keys that clients cache; 0: as many as they like
	minReplicas atomic.Int64 // members that must have a write before it is acknowledged
	password    atomic.Pointer[string]
	coverage    atomic.Bool // nothing is served while a slot is not
	downReads   atomic.Bool // but for what only reads
	endpoint    endpointSetting

	timeoutSet chan struct{} // timeout is another one now; holds one
}

// init fills in what the application says. It returns the settings that are not as
// they would be otherwise, and do nothing here but be shown.
func (s *settings) init(cfg *Config) (shown []string) {
	s.byName, s.timeoutSet = map[string]*setting{}, make(chan struct{}, 1)
	for _, row := range settingsTable() {
		s.byName[row.name] = &row
	}
	put := func(name, value string) {
		if row := s.byName[name]; row != nil {
			row.value = value
		} else {
			s.byName[name] = &setting{name: name, value: value, effect: settingFixed}
		}
	}
	put("cluster-enabled", yesText(!cfg.Standalone))
	put("maxclients", strconv.Itoa(cfg.Limits.Clients))
	put("proto-max-bulk-len", strconv.Itoa(cfg.Limits.Bulk))
	put("client-query-buffer-limit", strconv.Itoa(cfg.Limits.Command))
	put("requirepass", cfg.Password)
	put("save", "")
	for name, value := range cfg.Settings {
		if row := s.byName[name]; row != nil && row.effect == settingShown && row.value != value {
			shown = append(shown, name)
		}
		put(name, value)
	}
	for name, value := range policySettings(cfg.Node.Status().Policy) {
		put(name, value)
	}
	for _, row := range s.byName {
		row.begin = row.value
		s.apply(row)
	}
	slices.Sort(shown)
	return shown
}

// CheckSetting reports whether CONFIG knows a setting, by the name that it has now,
// and what is wrong with the value. The value returned is as it is kept: "1mb" is
// "1048576".
func CheckSetting(name, value string) (kept string, known bool, err error) {
	for _, row := range settingsTable() {
		if row.name == name {
			kept, err = row.parse(value)
			return kept, true, err
		}
	}
	return value, false, nil
}

func yesText(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// apply makes a setting hold that others read without the lock.
func (s *settings) apply(row *setting) {
	n, _ := strconv.ParseInt(row.value, 10, 64)
	switch row.name {
	case "slowlog-log-slower-than":
		s.slowerThan.Store(n)
	case "slowlog-max-len":
		s.slowMax.Store(n)
	case "maxclients":
		s.maxClients.Store(n)
	case "cluster-preferred-endpoint-type":
		s.endpoint.Store(endpointOf(row.value))
	case "timeout":
		s.timeout.Store(n)
		select {
		case s.timeoutSet <- struct{}{}:
		default:
		}
	case "tcp-keepalive":
		s.keepAlive.Store(n)
	case "tracking-table-max-keys":
		s.trackMax.Store(n)
	case "min-replicas-to-write":
		s.minReplicas.Store(n)
	case "requirepass":
		password := row.value
		s.password.Store(&password)
	case "cluster-require-full-coverage":
		s.coverage.Store(row.value == "yes")
	case "cluster-allow-reads-when-down":
		s.downReads.Store(row.value == "yes")
	}
}

// parse returns a value as it is kept, or what is wrong with it.
func (row *setting) parse(value string) (string, error) {
	bad := func(format string, args ...any) (string, error) { return "", fmt.Errorf(format, args...) }
	switch row.kind {
	case settingBool:
		if v := strings.ToLower(value); v == "yes" || v == "no" {
			return v, nil
		}
		return bad("argument must be 'yes' or 'no'")
	case settingNumber:
		n, err := strconv.ParseInt(value, 10, 64)
		switch {
		case err != nil:
			return bad("argument couldn't be parsed into an integer")
		case n < row.low || n > row.high:
			return bad("argument must be between %d and %d inclusive", row.low, row.high)
		}
		return strconv.FormatInt(n, 10), nil
	case settingMemory:
		n, ok := parseMemory(value)
		if !ok {
			return bad("argument must be a memory value")
		}
		return strconv.FormatUint(n, 10), nil
	case settingWord:
		if v := strings.ToLower(value); slices.Contains(row.words, v) {
			return v, nil
		}
		return bad("argument(s) must be one of the following: %s", strings.Join(row.words, ", "))
	case settingSave:
		fields := strings.Fields(value)
		for i, f := range fields {
			if n, err := strconv.Atoi(f); err != nil || n < 0 || n == 0 && i%2 == 0 || len(fields)%2 != 0 {
				return bad("Invalid save parameters")
			}
		}
		return strings.Join(fields, " "), nil
	case settingHost:
		if len(value) > 255 {
			return bad("Hostnames must be less than 256 characters")
		}
		if strings.Trim(value, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-.") != "" {
			return bad("Hostnames may only contain alphanumeric characters, hyphens or dots")
		}
	case settingEvents:
		if strings.Trim(value, "Ag$lshzxeKEtmdn") != "" {
			return bad("Invalid event class character. Use 'Ag$lshzxeKEtmdn'.")
		}
	}
	return value, nil
}

// parseMemory reads a number of bytes with a unit, as in "64mb".
func parseMemory(text string) (uint64, bool) {
	digits := strings.TrimRight(strings.ToLower(text), "bkmg")
	unit, ok := map[string]uint64{"": 1, "b": 1, "k": 1000, "kb": 1 << 10, "m": 1000_000, "mb": 1 << 20, "g": 1000_000_000, "gb": 1 << 30}[strings.ToLower(text)[len(digits):]]
	n, err := strconv.ParseUint(digits, 10, 64)
	if !ok || err != nil || n > math.MaxUint64/unit {
		return 0, false
	}
	return n * unit, true
}

func configCommand() Command {
	const admin = AdminFlag | NoScript | Loading | Stale
	return Command{Name: "config", Arity: -2, Group: "server", Since: "2.0.0", Summary: "Look at settings, and change them", Complexity: "Depends on subcommand.", Sub: []Command{
		{Name: "get", Arity: -3, Usage: "<pattern> [<pattern> ...]", Summary: "The settings whose names a pattern fits.", Flags: admin, Conn: configGet},
		{Name: "resetstat", Arity: 2, Summary: "Begin to count anew for INFO.", Flags: admin, Conn: configResetStat},
		{Name: "rewrite", Arity: 2, Summary: "Write the settings to the config file, if there is one.", Flags: admin, Conn: configRewrite},
		{Name: "set", Arity: -4, Usage: "<name> <value> [<name> <value> ...]", Summary: "Change settings, all or none. Many are only kept and shown.", Flags: admin, Conn: configSet},
	}}
}

func configGet(c *Conn, args [][]byte) error {
	s := &c.server.settings
	s.mu.Lock()
	found := map[string]string{}
	for _, a := range args[2:] {
		pattern := strings.ToLower(string(a))
		for name, row := range s.byName {
			if globMatch(pattern, name) {
				found[name] = row.value
			}
		}
		for old, name := range oldSettings() {
			if globMatch(pattern, old) {
				found[old] = s.byName[name].value
			}
		}
	}
	s.mu.Unlock()
	c.reply.Map(len(found))
	for _, name := range sortedNames(found) {
		c.reply.BulkString(name)
		c.reply.BulkString(found[name])
	}
	return nil
}

func sortedNames[V any](m map[string]V) []string {
	names := make([]string, 0, len(m))
	for n := range m {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// configSet checks every pair before it changes any.
func configSet(c *Conn, args [][]byte) error {
	if len(args)%2 != 0 {
		return errSyntax
	}
	s := &c.server.settings
	s.mu.Lock()
	defer s.mu.Unlock()
	values, given := map[string]string{}, map[string]bool{}
	for i := 2; i < len(args); i += 2 {
		name := strings.ToLower(string(args[i]))
		row := s.byName[SettingName(name)]
		if row == nil {
			return Error(fmt.Sprintf("ERR Unknown option or number of arguments for CONFIG SET - '%s'", cText(args[i])))
		}
		failed := func(why string) error {
			return Error(fmt.Sprintf("ERR CONFIG SET failed (possibly related to argument '%s') - %s", name, why))
		}
		value, err := row.parse(string(args[i+1]))
		switch {
		case given[name]:
			return failed("duplicate parameter")
		case row.effect == settingFixed:
			return failed("can't set immutable config")
		case err != nil:
			return failed(err.Error())
		case name == "appendonly" && value == "yes":
			return failed("the keys of this server are in memory alone")
		}
		given[name], values[row.name] = true, value
	}
	if err := c.setPolicy(values); err != nil {
		return err
	}
	for _, name := range sortedNames(values) {
		c.server.set(s.byName[name], values[name])
	}
	return c.ok(nil)
}

// policySettings are the settings that show a node's policy.
func policySettings(p slotmesh.Policy) map[string]string {
	return map[string]string{
		"cluster-require-full-coverage":   yesText(!p.Partial),
		"cluster-replica-no-failover":     yesText(p.NoFailover),
		"cluster-replica-validity-factor": strconv.Itoa(p.DataAge),
		"cluster-allow-replica-migration": yesText(!p.NoMigration),
		"cluster-migration-barrier":       strconv.Itoa(max(p.MigrationBarrier, 1)),
	}
}

// Policy is the policy of a node whose redis.conf has these settings, as CheckSetting
// keeps them; what they do not name is as redis-server begins with it.
func Policy(settings map[string]string) slotmesh.Policy {
	table := settingsTable()
	return policyOf(func(name string) string {
		if value, ok := settings[name]; ok {
			return value
		}
		return table[slices.IndexFunc(table, func(row setting) bool { return row.name == name })].value
	})
}

// policyOf is the policy that settings make, by their names.
func policyOf(value func(name string) string) slotmesh.Policy {
	number := func(name string) int {
		n, _ := strconv.Atoi(value(name))
		return n
	}
	return slotmesh.Policy{
		Partial:          value("cluster-require-full-coverage") == "no",
		NoFailover:       value("cluster-replica-no-failover") == "yes",
		DataAge:          number("cluster-replica-validity-factor"),
		NoMigration:      value("cluster-allow-replica-migration") == "no",
		MigrationBarrier: number("cluster-migration-barrier"),
	}
}

// setPolicy gives the node the policy that it has once values are set, under the
// lock of the settings. Where it fails nothing is set.
func (c *Conn) setPolicy(values map[string]string) error {
	s := &c.server.settings
	changed := false
	for name := range values {
		changed = changed || s.byName[name].effect == settingPolicy
	}
	if !changed {
		return nil
	}
	return c.server.node.Admin().SetPolicy(c.ctx, policyOf(func(name string) string {
		if value, set := values[name]; set {
			return value
		}
		return s.byName[name].value
	}))
}

// set changes a setting, under the lock of the settings, and says what comes of
// it.
func (s *Server) set(row *setting, value string) {
	if row.value == value {
		return
	}
	row.value = value
	s.settings.apply(row)
	switch row.effect {
	case settingNext:
		s.log.Warn("a setting holds from the next start on, once CONFIG REWRITE has saved it", "name", row.name, "value", value)
	case settingShown:
		s.log.Warn("a setting is kept and shown, and has no effect here", "name", row.name, "value", value)
	}
}

// configRewrite saves what CONFIG SET has changed. Where the application has
// nowhere to save it, nothing is, and redis-cli, which counts a refusal as a
// failure, hears OK: the log tells.
func configRewrite(c *Conn, args [][]byte) error {
	s := c.server
	if s.cfg.Rewrite == nil {
		s.log.Warn("CONFIG REWRITE: there is no config file, the settings are gone when the server ends")
		return c.ok(nil)
	}
	changed := map[string]string{}
	s.settings.mu.Lock()
	for _, row := range s.settings.byName {
		if row.value != row.begin {
			changed[row.name] = row.value
		}
	}
	s.settings.mu.Unlock()
	if err := s.cfg.Rewrite(changed); err != nil {
		return Error("ERR Rewriting config file: " + oneLine(err.Error()))
	}
	return c.ok(nil)
}

func configResetStat(c *Conn, args [][]byte) error {
	s := c.server
	for _, n := range []*atomic.Int64{&s.stats.connections, &s.stats.rejected, &s.stats.commands, &s.stats.errors, &s.stats.netIn, &s.stats.netOut, &s.peak} {
		n.Store(0)
	}
	s.stats.byCode.reset()
	for _, command := range s.table.all {
		command.stats.reset()
		for i := range command.Sub {
			command.Sub[i].stats.reset()
		}
	}
	return c.ok(nil)
}
