package resp

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/slotmesh/slotmesh"
)

// Config is what a server is started with.
type Config struct {
	// Node is the member of the cluster behind the server. It must outlive the
	// server, which does not close it. Where it is not alone, its ClientAddr is the
	// address of this server: MOVED and ASK name it.
	Node slotmesh.Node

	// Addr is where clients connect, "host:port"; an empty host is every
	// interface, port 0 any that is free. Whoever reaches it reads and writes, and
	// is an operator of the cluster: use loopback, or a Password. A Listener, with
	// TLS for one, takes its place.
	Addr string

	// Listener accepts the clients. The server closes it.
	Listener net.Listener

	// Password, unless it is empty, is what clients must give to AUTH or HELLO
	// before anything else.
	Password string

	// Standalone makes the server answer as a redis-server that is no cluster:
	// cluster_enabled is 0, and CLUSTER is refused. For a node that is alone. Beyond
	// that redis-server it refuses, as in a cluster, what needs more than one slot:
	// the keys of a command, of a transaction or of a script have to be in one, and
	// SORT takes no patterns.
	Standalone bool

	// Limits bound what clients may take up. The zero value has defaults.
	Limits Limits

	// Commands are the application's own. One with the name of a command that the
	// server knows takes its place. Those of slotmesh.Config are for Client.Do
	// alone: no client of this server can call them.
	Commands []Command

	// Settings are what CONFIG GET shows beside what the server itself knows, by
	// name in lower case.
	Settings map[string]string

	// ConfigFile is what INFO shows as the config file.
	ConfigFile string

	// Rewrite saves the settings that CONFIG SET has changed, by name, for CONFIG
	// REWRITE. nil: nothing is saved, and the log says so.
	Rewrite func(settings map[string]string) error

	// Save saves the data, for SAVE and BGSAVE, which are refused without it.
	Save func(ctx context.Context) error

	// Shutdown begins to end the program, for SHUTDOWN, which is refused without
	// it. It must not wait for the server, which calls it.
	Shutdown func()

	// Logger gets what an operator should see. nil is silent.
	Logger *slog.Logger
}

// Server serves clients. [Start] makes one.
type Server struct {
	cfg       Config
	node      slotmesh.Node
	table     *commandTable
	listener  net.Listener
	log       *slog.Logger
	started   time.Time
	stats     stats
	blocked   waitList
	pause     pauseState
	pubSub    pubSub
	trackers  trackers
	scripts   scripts
	moving    moving
	sockets   sockets
	settings  settings
	slow      slowLog
	runID     string
	lastSave  atomic.Int64 // Unix seconds; the start counts as one, as in Redis
	saving    atomic.Bool  // by BGSAVE
	failovers failovers
	peak      atomic.Int64 // bytes of memory used, at most, when somebody looked

	importers importers
	shown     atomic.Pointer[owners]

	mu     sync.Mutex
	conns  map[int64]*Conn // guarded by mu, by their id
	nextID int64           // guarded by mu

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	once   sync.Once
}

// stats count for INFO.
type stats struct {
	connections, rejected, commands atomic.Int64
	errors                          atomic.Int64
	netIn, netOut                   atomic.Int64
	byCode                          counters // error replies by their code
}

// counters are counters by name, a bounded number of them.
type counters struct {
	mu sync.Mutex
	n  map[string]int64
}

// counter is one of counters.
type counter struct {
	name string
	n    int64
}

// sorted are the counters by name.
func (c *counters) sorted() []counter {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make([]counter, 0, len(c.n))
	for _, name := range sortedNames(c.n) {
		all = append(all, counter{name, c.n[name]})
	}
	return all
}

func (c *counters) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n = nil
}

const countersMax = 128 // names; at the bound others are counted nowhere, as in Redis

func (c *counters) add(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = map[string]int64{}
	}
	if _, known := c.n[name]; known || len(c.n) < countersMax {
		c.n[name]++
	}
}

// Start begins to serve clients. ctx bounds the start alone.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	if cfg.Node == nil {
		return nil, errors.New("resp: Config.Node is nil, expected a node that has been started")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if err := cfg.Limits.validate(); err != nil {
		return nil, err
	}
	cfg.Limits = cfg.Limits.withDefaults()
	table, err := newTable(Commands(), cfg.Commands)
	if err != nil {
		return nil, err
	}
	l := cfg.Listener
	if l == nil {
		if cfg.Addr == "" {
			return nil, errors.New("resp: Config.Addr is empty and Config.Listener nil, expected \"host:port\" or a listener")
		}
		var lc net.ListenConfig
		if l, err = lc.Listen(ctx, "tcp", cfg.Addr); err != nil {
			return nil, fmt.Errorf("resp: listen for clients: %w", err)
		}
	}
	s := &Server{cfg: cfg, node: cfg.Node, table: table, listener: l, log: cfg.Logger, started: time.Now(), conns: map[int64]*Conn{}}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	if names := s.settings.init(&cfg); len(names) > 0 {
		s.log.Warn("settings are kept and shown, and have no effect here", "names", strings.Join(names, " "))
	}
	s.runID = randomID()
	s.lastSave.Store(s.started.Unix())
	s.blocked.init(cfg.Node)
	s.moving.init(cfg.Node)
	s.pubSub.init(cfg.Node)
	s.scripts.init(cfg.Limits.Scripts)
	s.wg.Go(s.accept)
	s.wg.Go(func() { s.scripts.watch(s.ctx) })
	s.wg.Go(func() { s.closeIdle(s.ctx) })
	return s, nil
}

// randomID is 40 hexadecimal digits.
func randomID() string {
	var b [20]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// Addr is where the server listens.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// Close ends the server and every connection. It returns when their goroutines
// have ended. It is idempotent.
func (s *Server) Close() error {
	s.once.Do(func() {
		s.cancel()
		s.listener.Close()
		s.mu.Lock()
		for _, c := range s.conns {
			c.cut()
		}
		s.mu.Unlock()
	})
	s.wg.Wait()
	s.blocked.watch.Close()
	s.moving.watch.Close()
	s.sockets.close()
	s.pubSub.close()
	s.scripts.close()
	return nil
}

// accept serves each client in a goroutine of its own.
func (s *Server) accept() {
	for {
		nc, err := s.listener.Accept()
		switch {
		case s.ctx.Err() != nil:
			if err == nil {
				nc.Close()
			}
			return
		case err != nil:
			// Out of files, most likely: clients that go make room.
			s.log.Warn("a client could not be accepted", "error", err)
			if sleep(s.ctx, 50*time.Millisecond) != nil {
				return
			}
			continue
		}
		c := s.admit(nc)
		if c == nil {
			s.wg.Go(func() { turnAway(nc) })
			continue
		}
		s.wg.Go(func() {
			defer s.forget(c)
			c.serve()
		})
	}
}

// turnAway tells a client that there are too many. It is given a second.
func turnAway(nc net.Conn) {
	nc.SetDeadline(time.Now().Add(time.Second))
	nc.Write([]byte("-ERR max number of clients reached\r\n"))
	nc.Close()
}

// admit makes a connection of what was accepted. nil: there are too many.
func (s *Server) admit(nc net.Conn) *Conn {
	keepAlive(nc, s.settings.keepAlive.Load()) // system calls: not under the lock
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stats.connections.Add(1)
	if int64(len(s.conns)) >= s.settings.maxClients.Load() {
		s.stats.rejected.Add(1)
		return nil
	}
	s.nextID++
	c := newConn(s, nc, s.nextID)
	s.conns[c.id] = c
	if s.ctx.Err() != nil {
		c.cut()
	}
	return c
}

func (s *Server) forget(c *Conn) {
	c.close()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c.id)
}

// clients are the connections that there are.
func (s *Server) clients() []*Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*Conn, 0, len(s.conns))
	for _, c := range s.conns {
		all = append(all, c)
	}
	return all
}

// sleep waits, or returns early with the error of ctx.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
