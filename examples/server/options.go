package main

import (
	"bufio"
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
		byName         bool
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
		f, err := os.Open(o.file)
		if err != nil {
			return nil, fmt.Errorf("config file: %w", err)
		}
		lines, err := readConfig(f, o.file)
		f.Close()
		if err != nil {
			return nil, err
		}
		all, args = lines, args[1:]
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
	for _, d := range append(all, flags...) {
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

// readConfig reads lines "name value ...". A # begins a comment where it begins
// the line, as in redis.conf.
func readConfig(r io.Reader, name string) (out []directive, err error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for n := 1; lines.Scan(); n++ {
		where := fmt.Sprintf("%s line %d", name, n)
		text := strings.TrimSpace(lines.Text())
		if text == "" || text[0] == '#' {
			continue
		}
		words, err := splitWords(text)
		if err != nil {
			return nil, &configError{where, err.Error()}
		}
		out = append(out, directive{where: where, name: strings.ToLower(words[0]), args: words[1:]})
	}
	return out, lines.Err()
}

// splitWords splits a line at spaces, but for those in quotes: "..." knows \n,
// \r, \t, \", \\ and \xFF, and '...' knows \'.
func splitWords(text string) (words []string, err error) {
	for text = strings.TrimLeft(text, " \t"); text != ""; text = strings.TrimLeft(text, " \t") {
		var word string
		switch text[0] {
		case '"', '\'':
			if word, text, err = quoted(text); err != nil {
				return nil, err
			}
		default:
			end := strings.IndexAny(text, " \t")
			if end < 0 {
				end = len(text)
			}
			word, text = text[:end], text[end:]
		}
		words = append(words, word)
	}
	return words, nil
}

// quoted takes a word in quotes from the front of a text.
func quoted(text string) (word, rest string, err error) {
	quote := text[0]
	var b strings.Builder
	for i := 1; i < len(text); i++ {
		switch ch := text[i]; {
		case ch == quote && i+1 < len(text) && text[i+1] != ' ' && text[i+1] != '\t':
			return "", "", fmt.Errorf("%q follows a closing quote, expected a space", text[i+1])
		case ch == quote:
			return b.String(), text[i+1:], nil
		case ch == '\\' && i+1 < len(text):
			i++
			i += escape(&b, quote, text[i:])
		default:
			b.WriteByte(ch)
		}
	}
	return "", "", fmt.Errorf("a quote is not closed")
}

// escape writes what a backslash and the text behind it stand for, and returns
// how many bytes more than one it took.
func escape(b *strings.Builder, quote byte, text string) int {
	if quote == '\'' {
		if text[0] != '\'' {
			b.WriteByte('\\')
		}
		b.WriteByte(text[0])
		return 0
	}
	if text[0] == 'x' && len(text) > 2 {
		if n, err := strconv.ParseUint(text[1:3], 16, 8); err == nil {
			b.WriteByte(byte(n))
			return 2
		}
	}
	if i := strings.IndexByte("nrtba", text[0]); i >= 0 {
		b.WriteByte("\n\r\t\b\a"[i])
	} else {
		b.WriteByte(text[0])
	}
	return 0
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
	case "cluster-preferred-endpoint-type":
		o.announce.byName = kept == "hostname"
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
		if kept == "yes" {
			o.warn("daemonize yes: this server stays in the foreground")
		}
	case "include":
		return d.bad("include is not supported, expected one file")
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
	if o.announce.byName && o.announce.hostname != "" {
		host = o.announce.hostname
	}
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
