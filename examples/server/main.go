// Server is a Redis Cluster node: it takes redis-server's flags and config file,
// so that whatever starts or talks to redis-server can be pointed at it.
//
//	go build -o slotmesh-server ./examples/server
//	for p in 7000 7001 7002; do mkdir -p $p; ./slotmesh-server --port $p --dir $p --cluster-enabled yes & done
//	redis-cli --cluster create 127.0.0.1:7000 127.0.0.1:7001 127.0.0.1:7002
//
// Clients connect to the port, other nodes to the port + 10000. The folder keeps
// who the node is and what it knows of the cluster; keys are in memory alone.
// Without --cluster-enabled yes it is a node that is alone and owns every slot, and
// answers as a redis-server that is no cluster; but the keys of a command, of a
// transaction or of a script have to be in one slot, and there is one database.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/slotmesh/slotmesh"
	"github.com/slotmesh/slotmesh/resp"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdin, os.Stdout)
	stop()
	var bad *configError
	switch {
	case errors.As(err, &bad):
		fmt.Fprintf(os.Stderr, "\n*** FATAL CONFIG FILE ERROR (slotmesh, as Redis %s) ***\n%v\n", resp.Version, err)
		os.Exit(1)
	case err != nil:
		fmt.Fprintln(os.Stderr, "server:", err)
		os.Exit(1)
	}
}

const usage = `Usage: server [/path/to/redis.conf] [--name value ...] [-]

Names are those of redis.conf: --port 7000 --dir /var/lib/x --cluster-enabled yes.
What redis.conf knows and this program does not is accepted with a warning.
Without --cluster-enabled yes this is one node that owns every slot. Beyond a redis-server
that is no cluster it refuses, with CROSSSLOT, commands, transactions and scripts whose
keys are not in one slot: keys that share a {tag} are.
- reads more of the config file from standard input.
`

const inputLimit = 1 << 20 // bytes of a configuration from standard input

// run is the program. It returns when ctx is over, or a client has said SHUTDOWN.
func run(ctx context.Context, args []string, stdin io.Reader, out io.Writer) (err error) {
	if len(args) == 1 {
		switch args[0] {
		case "-h", "--help":
			fmt.Fprint(out, usage)
			return nil
		case "-v", "--version":
			fmt.Fprintf(out, "Redis server v=%s (slotmesh)\n", resp.Version)
			return nil
		}
	}
	input := &bytes.Buffer{}
	o, err := parseOptions(args, io.TeeReader(io.LimitReader(stdin, inputLimit+1), input))
	if err != nil {
		return err
	}
	if input.Len() > inputLimit {
		return &configError{"standard input", fmt.Sprintf("more than %d bytes", inputLimit)}
	}
	if o.daemonize {
		if o.starter = detachedBy(); o.starter == nil {
			return startDetached(ctx, args, input.Bytes())
		}
		defer func() { o.starter.failed(err) }()
	}
	if o.logFile != "" {
		f, err := os.OpenFile(o.logFile, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
		if err != nil {
			return fmt.Errorf("log file: %w", err)
		}
		defer f.Close()
		out = f
	}
	return serve(ctx, o, slog.New(newLog(out, o.logLevel)))
}

// serve starts the node and its front, and ends them.
func serve(ctx context.Context, o *options, log *slog.Logger) error {
	ctx, shutdown := context.WithCancel(ctx)
	defer shutdown()
	log.Log(ctx, levelNotice, fmt.Sprintf("slotmesh is starting, as Redis version=%s, PID: %d", resp.Version, os.Getpid()))
	listener, err := o.listen() // which may have something to warn of
	for _, w := range o.warnings {
		log.Warn(w)
	}
	if err != nil {
		log.Warn(fmt.Sprintf("Failed listening on port %d, aborting.", o.port), "error", err)
		return err
	}
	defer listener.Close()
	node, err := startNode(ctx, o, log)
	if err != nil {
		return err
	}
	defer node.Close()
	server, err := resp.Start(ctx, resp.Config{
		Node: node, Listener: listener, Password: o.password, Standalone: !o.cluster,
		Limits:   resp.Limits{Clients: o.clients, Bulk: o.bulk},
		Settings: o.settings, ConfigFile: o.file, Rewrite: o.rewrite(), Shutdown: shutdown, Logger: log,
	})
	if err != nil {
		return err
	}
	defer server.Close()
	if o.pidFile != "" {
		defer writePIDFile(o.pidFile, log)()
	}
	mode := "cluster"
	if !o.cluster {
		mode = "standalone"
		log.Warn("cluster-enabled is no, but the keys of a command, of a transaction or of a script have to be in one slot all the same: keys that share a {tag} are.")
	}
	log.Log(ctx, levelNotice, fmt.Sprintf("Running mode=%s, port=%d.", mode, o.port))
	log.Log(ctx, levelNotice, "Server initialized")
	log.Log(ctx, levelNotice, "Ready to accept connections")
	o.starter.ready()
	<-ctx.Done()
	log.Warn("User requested shutdown...")
	err = errors.Join(server.Close(), node.Close())
	log.Warn("Redis is now ready to exit, bye bye...")
	return err
}

// startNode starts the member of the cluster, or a node that is alone.
func startNode(ctx context.Context, o *options, log *slog.Logger) (slotmesh.Node, error) {
	cfg := slotmesh.Config{MaxKey: 1 << 20, MaxValue: max(o.bulk, 1<<20), Logger: log}
	if !o.cluster {
		return slotmesh.Start(ctx, cfg)
	}
	cfg.Join = true
	cfg.Addr = net.JoinHostPort(o.bind[0], strconv.Itoa(o.busPort))
	cfg.AdvertiseAddr, cfg.ClientAddr = o.announced()
	cfg.Hostname = o.announce.hostname
	cfg.NodeTimeout = o.nodeTimeout
	cfg.AckReplicas, cfg.Backlog, cfg.Policy = o.minReplicas, o.backlog, resp.Policy(o.settings)
	cfg.Insecure = !o.protected // who says so lets other hosts in
	cfg.Dir = o.dir
	if o.clusterFile != defaultClusterFile {
		// Several nodes may share a folder as long as their files have other names.
		cfg.Dir = filepath.Join(o.dir, o.clusterFile+".slotmesh")
	}
	if err := os.MkdirAll(cfg.Dir, 0o755); err != nil {
		return nil, err
	}
	return slotmesh.Start(ctx, cfg)
}
