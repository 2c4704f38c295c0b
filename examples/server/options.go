package main

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/slotmesh/slotmesh/resp"
	"github.com/slotmesh/slotmesh/transport"
)

const (
	defaultClusterFile = "nodes.conf"
	busOffset          = 10000
)

// options are what flags and the config file say.
type options struct {
	file        string // the config file; "": none
	port        int
	bind        []string
	dir         string
	logFile     string
	pidFile     string
	daemonize   bool
	starter     *starter // who waits for this process to take clients; nil: nobody
	logLevel    slog.Level
	password    string
	protected   bool
	clients     int
	bulk        int
	cluster     bool
	clusterFile string
	nodeTimeout time.Duration
	busPort     int
	minReplicas int // that must have a write before it is acknowledged
	backlog     int // bytes of changes that are kept for replicas; 0: the default
	announce    struct {
		host, hostname string
		port, busPort  int
	}
	settings map[string]string // as CONFIG GET shows them
	warnings []string
}

// configError is what is wrong with the options. It names the one.
type configError struct{ where, text string }

func (e *configError) Error() string { return e.where + ": " + e.text }

// directive is a line of the config file, or a flag with its values.
type directive struct {
	where string
	name  string
	args  []string
}

func (d *directive) bad(format string, args ...any) error {
	return &configError{d.where, fmt.Sprintf(format, args...)}
}

// parseOptions reads the config file if the first argument names one, then
// standard input if an argument is "-", and the flags, which win.
func parseOptions(args []string, stdin io.Reader) (*options, error) {
	o := &options{port: 6379, dir: ".", protected: true, bulk: 64 << 20, logLevel: levelNotice, clusterFile: defaultClusterFile,
		nodeTimeout: 15 * time.Second, settings: map[string]string{"save": "", "port": "6379", "cluster-config-file": defaultClusterFile}}
	var all []directive
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		o.file = args[0]
		all, args = append(all, directive{where: "argument 1", name: "include", args: []string{o.file}}), args[1:]
	}
	flags, more, err := parseFlags(args)
	if err != nil {
		return nil, err
	}
	if more {
		lines, err := readConfig(stdin, "standard input")
		if err != nil {
			return nil, err
		}
		all = append(all, lines...)
	}
	var files includes
	if all, err = files.expand(append(all, flags...), 0); err != nil {
		return nil, err
	}
	for _, d := range all {
		if err := o.take(&d); err != nil {
			return nil, err
		}
	}
	return o, o.complete()
}

// parseFlags gathers "--name value ...": the values go as far as the next name.
func parseFlags(args []string) (out []directive, stdin bool, err error) {
	for i, a := range args {
		switch {
		case a == "-":
			stdin = true
		case strings.HasPrefix(a, "--") && len(a) > 2:
			out = append(out, directive{where: "flag " + a, name: strings.ToLower(a[2:])})
		case len(out) == 0:
			return nil, false, &configError{fmt.Sprintf("argument %d", i+1), fmt.Sprintf("%q, expected --name", a)}
		default:
			d := &out[len(out)-1]
			d.args = append(d.args, a)
		}
	}
	return out, stdin, nil
}

// take takes one directive.
func (o *options) take(d *directive) (err error) {
	d.name = resp.SettingName(d.name)
	value := strings.Join(d.args, " ")
	kept, known, err := resp.CheckSetting(d.name, value)
	switch {
	case err != nil:
		return d.bad("%s %q: %v", d.name, value, err)
	case known:
		o.settings[d.name] = kept
	}
	number := func() int {
		n, _ := strconv.Atoi(kept)
		return n
	}
	switch d.name {
	case "port":
		o.port = number()
	case "bind":
		o.bind = d.args
	case "dir":
		o.dir = value
	case "logfile":
		o.logFile = value
	case "loglevel":
		o.logLevel = logLevels[kept]
	case "requirepass":
		o.password = value
	case "protected-mode":
		o.protected = kept == "yes"
	case "maxclients":
		o.clients = number()
	case "proto-max-bulk-len":
		o.bulk = number()
	case "cluster-enabled":
		o.cluster = kept == "yes"
	case "cluster-config-file":
		if o.clusterFile = value; value == "" || strings.ContainsAny(value, `/\`) {
			return d.bad("cluster-config-file %q, expected a name without a folder", value)
		}
	case "cluster-node-timeout":
		o.nodeTimeout = time.Duration(number()) * time.Millisecond
	case "cluster-port":
		o.busPort = number()
	case "min-replicas-to-write":
		o.minReplicas = number()
	case "repl-backlog-size":
		o.backlog = number()
	case "replicaof":
		if len(d.args) > 0 && !strings.EqualFold(value, "no one") {
			return d.bad("%s is not allowed: a replica is made with CLUSTER REPLICATE", d.name)
		}
	case "replica-read-only":
		if kept == "no" {
			o.warn("replica-read-only no: replicas take no writes but from their primary")
			o.settings["replica-read-only"] = "yes"
		}
	case "cluster-announce-ip":
		o.announce.host = value
	case "cluster-announce-hostname":
		o.announce.hostname = value
	case "cluster-announce-port":
		o.announce.port = number()
	case "cluster-announce-bus-port":
		o.announce.busPort = number()
	case "appendonly":
		if kept == "yes" {
			o.warn("appendonly yes: keys are in memory alone, they are gone when the server ends")
			o.settings["appendonly"] = "no"
		}
	case "save":
		if value != "" {
			o.warn("save %q: keys are in memory alone, they are gone when the server ends", value)
			o.settings["save"] = ""
		}
	case "daemonize":
		o.daemonize = kept == "yes"
	case "pidfile":
		o.pidFile = value
	default:
		if !known {
			o.warn("%s: %s is not known here, and ignored", d.where, d.name)
		}
	}
	return nil
}

func (o *options) warn(format string, args ...any) {
	o.warnings = append(o.warnings, fmt.Sprintf(format, args...))
}

// complete works out what follows from the rest, and checks what belongs
// together.
func (o *options) complete() error {
	if o.settings["dir"] == "" {
		o.settings["dir"], _ = os.Getwd()
	}
	o.expandBind()
	for _, host := range o.bind {
		if o.cluster && o.protected && !transport.IsLoopback(net.JoinHostPort(host, "0")) {
			return &configError{"bind " + host, "the port of the cluster bus would be open to other hosts, in the clear, and whoever reaches it can take the cluster over: expected a loopback address, or protected-mode no to allow it"}
		}
	}
	if o.busPort == 0 {
		o.busPort = o.port + busOffset
	}
	if o.cluster && o.busPort > 65535 {
		return &configError{fmt.Sprintf("port %d", o.port), fmt.Sprintf("the cluster bus would be at %d, expected a port up to %d, or cluster-port", o.busPort, 65535-busOffset)}
	}
	return nil
}

// expandBind resolves what redis.conf knows as addresses. Nothing said is every
// interface in Redis, whose protected mode then turns other hosts away; here it
// is loopback.
func (o *options) expandBind() {
	if len(o.bind) == 0 && o.protected {
		o.bind = []string{"127.0.0.1"}
		return
	}
	if len(o.bind) == 0 {
		o.bind = []string{"*"}
	}
	var out []string
	for _, b := range o.bind {
		b = strings.TrimPrefix(b, "-") // may be missing
		switch b {
		case "*":
			b = "0.0.0.0"
		case "::*":
			continue // of the default "* -::*"
		}
		out = append(out, b)
	}
	if len(out) == 0 {
		out = []string{"::"}
	}
	o.bind = out
}

// listen opens the port at every address.
func (o *options) listen() (net.Listener, error) {
	var all []net.Listener
	for i, host := range o.bind {
		l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(o.port)))
		if err != nil && i == 0 {
			return nil, err
		}
		if err != nil {
			o.warn("%s: %v", host, err)
			continue
		}
		all = append(all, l)
	}
	return joinListeners(all), nil
}

// announced is where others reach the bus and the clients' port; "" for the bus
// is where it listens.
func (o *options) announced() (bus, client string) {
	host := o.announce.host
	clientHost, port, busPort := host, o.port, o.busPort
	if o.announce.port != 0 {
		port = o.announce.port
	}
	if o.announce.busPort != 0 {
		busPort = o.announce.busPort
	}
	if host != "" || o.announce.busPort != 0 {
		if host == "" {
			host = o.bind[0]
		}
		bus = net.JoinHostPort(host, strconv.Itoa(busPort))
	}
	client = net.JoinHostPort(clientHost, strconv.Itoa(port))
	if clientHost == "" {
		client = net.JoinHostPort(o.bind[0], strconv.Itoa(port))
		if addr, err := transport.AdvertiseAddr(client); err == nil {
			client = addr
		}
	}
	return bus, client
}
