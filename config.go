package slotmesh

import (
	"errors"
	"fmt"
	"log/slog"
	"math/bits"
	"slices"
	"strings"
	"time"

	"github.com/slotmesh/slotmesh/transport"
)

// Limits and defaults of a Config.
const (
	minNodeTimeout     = 250 * time.Millisecond
	defaultNodeTimeout = 5 * time.Second
	maxNodeTimeout     = time.Hour
	defaultMaxKey      = 64 << 10
	defaultMaxValue    = 64 << 20
	maxMaxKey          = 1 << 20
	maxMaxValue        = 512 << 20
	maxLabel           = 253
	maxPrimaries       = 1000
	maxReplicas        = 100
	defaultBacklog     = 64 << 20
	maxSeeds           = 1000
)

// Config is what a node is started with. The zero value is a node of its own:
// it owns every slot, keeps them in memory, and opens no port.
type Config struct {
	// Addr is where the bus listens, "host:port"; an empty host is every
	// interface, port 0 any that is free. "" opens no port: the node is alone
	// for good.
	Addr string

	// AdvertiseAddr is where other nodes reach the bus, if that is not where it
	// listens: behind address translation, or in a container. "" is the address
	// of the listener; for one on every interface, a private address of this
	// host. Nodes in one process need none.
	AdvertiseAddr string

	// ClientAddr is the address that redirects name for this node, where a front
	// of its own serves clients: that of package resp, with a host that clients
	// reach. "" is none: redirects then name the bus, where no client is served.
	ClientAddr string

	// Hostname is a name of the host in ClientAddr, which all members hear and which a
	// front may show to clients: Redis's cluster-announce-hostname. It is never
	// resolved here. Letters, digits, '.' and '-', 255 at most; "" is none.
	Hostname string

	// Transport carries the bus. nil is TCP in the clear.
	Transport Transport

	// Insecure allows a bus in the clear on an address that other hosts reach.
	// Whoever reaches such a bus can take the cluster over.
	Insecure bool

	// Seeds are addresses of the bus of other nodes of the same cluster, this
	// node's own among them or not. Names are resolved at each attempt. A node
	// with seeds looks for its cluster until every seed is a live member, for
	// ever.
	Seeds []string

	// Primaries is the number of nodes that form a cluster by themselves: give
	// the same Seeds and Primaries to as many nodes, start them in any order, and
	// they form exactly one cluster, with equal shares of the slots. Nodes with
	// others are not counted; Status.Problems and an EventDiffers name them. 0
	// forms none, 1000 are the most.
	Primaries int

	// Replicas is how many copies of each primary's data nodes that form by
	// number keep on other nodes: Primaries x (1 + Replicas) nodes form the cluster,
	// and those that get no slots follow a primary, one on another host if there is
	// one. Where a primary fails, a replica of it takes over. 0, the default, keeps
	// none; 100 are the most.
	Replicas int

	// AckReplicas makes this node's shard strict while it leads: a write, and a read
	// of what was written last, is answered once every member in sync has it, and a
	// write is refused (ErrNoReplicas) where fewer than so many besides the primary
	// are in sync; one that has run by then is answered with an Unknown outcome, a
	// NodeTimeout after it began to wait. Then no single failure loses what was
	// acknowledged. It costs each write a way to the replicas and back. 0, the
	// default, answers at once: what a primary has acknowledged in the moment before
	// it dies may be lost. All nodes of a shard should have the same.
	AckReplicas int

	// ReplicaStaleness bounds how old what a replica shows may be: a request that is
	// FromReplica is answered by a replica which has, for sure, all that its primary
	// had so long ago, and sent to the primary by one that has not. The way from the
	// replica to the primary and back counts, for a message may be late. Default one
	// NodeTimeout, at least three tenths of it: a primary that has nothing to tell
	// says so each tenth.
	ReplicaStaleness time.Duration

	// Backlog bounds the bytes of changes that a node remembers for replicas that
	// were away for a while, default 64 MiB. A replica that lacks more copies
	// everything.
	Backlog int

	// Policy is what the node does by itself. The zero value does all that is safe.
	Policy Policy

	// Join starts a node without slots, to be met by a cluster (by its Seeds, or
	// by Admin.Meet) or to be given slots with Admin.AddSlots. Seeds without
	// Primaries do the same. Without Join, Seeds and Primaries a new node owns
	// every slot.
	Join bool

	// Dir is the folder in which the node keeps who it is, what it knows of the
	// cluster and what it has promised; keys are in the Store and not here. One
	// node uses it at a time. A process that starts again with its Dir is the same
	// node: it serves its slots again, empty where the store was in memory. ""
	// keeps nothing: each start is a new node, and in a cluster the slots of the
	// one before wait for an operator (Admin.SetSlots). A Start that fails leaves
	// what the folder says as it was, and makes none where the address is taken. The
	// file "lock" in it stays for good, and means nothing where nobody has it locked:
	// were it removed, another process that is just opening it could hold a lock on a
	// file that is not the folder's any more.
	Dir string

	// Host is a label of what fails together: nodes of one label have one vote.
	// "" is a label of this start alone, drawn at random, which is right for one
	// node per machine only: two nodes of one machine that are given none count as
	// two hosts, and may have two of three votes there. Give all nodes of a machine
	// (or of a rack, or of a zone) the same. Letters, digits, '.', '_' and '-', 253
	// at most.
	Host string

	// NodeTimeout is the silence after which a node counts as failed, and the
	// length of a primary's lease. A short one replaces a dead primary sooner and
	// takes a slow one for dead. 250 ms to 1 h, default 5 s. It should be the same
	// at all nodes of a cluster: nothing is lost where it is not, for a voter
	// leases for its own, but a node with a short one takes those with a long one
	// for dead. Status.Problems and an EventDiffers name such nodes.
	NodeTimeout time.Duration

	// MaxVoters bounds how many nodes vote, at most one per host. Odd, 1 to 63,
	// default 9. More voters survive more losses at once and cost more messages
	// per decision.
	MaxVoters int

	// Store keeps the node's data. nil is store.NewMemory. A replica that copies
	// everything from its primary needs memory for all of it once more while it does,
	// also where its store is on disk: nothing that it has is touched before the copy
	// is whole. The node closes a store that it made, and leaves one that it was given
	// open. A store that outlives the process needs a Dir beside it: without one the
	// next start is a new node, which shows what the store still has of the slots that
	// it gets by forming, whoever had them meanwhile.
	Store Store

	// Commands is the application's own code that runs at the primary of a slot,
	// called with Client.Do. All nodes of a cluster should have the same: the one
	// that calls asks the command which arguments are keys, the primary runs it.
	Commands []Command

	// MaxKey bounds the bytes of a key, default 64 KiB, at most 1 MiB.
	MaxKey int

	// MaxValue bounds the bytes of a value, of the name of a field, of an argument
	// of a command and of its reply, default 64 MiB, at most 512 MiB. All
	// arguments of a call together, and all that one command writes, may have
	// twice as much.
	MaxValue int

	// Logger gets what an operator should see, a few lines a day. nil is silent.
	Logger *slog.Logger
}

// withDefaults fills in the defaults.
func (c Config) withDefaults() Config {
	if c.NodeTimeout == 0 {
		c.NodeTimeout = defaultNodeTimeout
	}
	if c.MaxVoters == 0 {
		c.MaxVoters = maxVotersDefault
	}
	if c.MaxKey == 0 {
		c.MaxKey = defaultMaxKey
	}
	if c.MaxValue == 0 {
		c.MaxValue = defaultMaxValue
	}
	if c.ReplicaStaleness == 0 {
		c.ReplicaStaleness = c.NodeTimeout
	}
	if c.Backlog == 0 {
		c.Backlog = defaultBacklog
	}
	if c.Transport == nil {
		c.Transport = transport.TCP{}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// alone reports whether a new node takes every slot.
func (c *Config) alone() bool { return !c.Join && len(c.Seeds) == 0 && c.Primaries == 0 }

// validate returns every problem of the config, joined: each names the field,
// its value and what was expected.
func (c *Config) validate() error {
	var errs []error
	bad := func(field string, value any, expected string, args ...any) {
		errs = append(errs, fmt.Errorf("slotmesh: Config.%s is %v, expected %s", field, value, fmt.Sprintf(expected, args...)))
	}
	if c.NodeTimeout < minNodeTimeout || c.NodeTimeout > maxNodeTimeout {
		bad("NodeTimeout", c.NodeTimeout, "%v to %v", minNodeTimeout, maxNodeTimeout)
	}
	if c.MaxVoters < 1 || c.MaxVoters > maxVotersLimit || c.MaxVoters%2 == 0 {
		bad("MaxVoters", c.MaxVoters, "an odd number, 1 to %d", maxVotersLimit)
	}
	if c.MaxKey < 1 || c.MaxKey > maxMaxKey {
		bad("MaxKey", c.MaxKey, "1 to %d bytes", maxMaxKey)
	}
	if c.MaxValue < 1 || c.MaxValue > maxMaxValue {
		bad("MaxValue", c.MaxValue, "1 to %d bytes", maxMaxValue)
	}
	if !validHostname(c.Hostname) {
		bad("Hostname", fmt.Sprintf("%q", c.Hostname), "letters, digits, '.' and '-', %d at most", maxHostname)
	}
	if !validLabel(c.Host) {
		bad("Host", fmt.Sprintf("%q", c.Host), "letters, digits, '.', '_' and '-', %d at most", maxLabel)
	}
	if c.Primaries < 0 || c.Primaries > maxPrimaries {
		bad("Primaries", c.Primaries, "0 to %d", maxPrimaries)
	}
	if c.Replicas < 0 || c.Replicas > maxReplicas {
		bad("Replicas", c.Replicas, "0 to %d", maxReplicas)
	}
	if c.Replicas > 0 && c.Primaries == 0 {
		bad("Replicas", c.Replicas, "0 where Primaries is 0: replicas are then made with Admin.Replicate")
	}
	if c.AckReplicas < 0 || c.AckReplicas > maxReplicas {
		bad("AckReplicas", c.AckReplicas, "0 to %d", maxReplicas)
	}
	if c.ReplicaStaleness < 3*c.NodeTimeout/10 {
		bad("ReplicaStaleness", c.ReplicaStaleness, "at least %v, three tenths of NodeTimeout", 3*c.NodeTimeout/10)
	}
	if c.Primaries > 0 && c.AckReplicas > c.Replicas {
		bad("AckReplicas", c.AckReplicas, "at most Replicas, which is %d: no write would ever be taken", c.Replicas)
	}
	c.Policy.problems(func(field string, value any, expected string, args ...any) {
		bad("Policy."+field, value, expected, args...)
	})
	if c.Backlog < 0 {
		bad("Backlog", c.Backlog, "bytes, or 0 for %d", defaultBacklog)
	}
	if c.Primaries > 0 && len(c.Seeds) == 0 && c.Primaries*(1+c.Replicas) > 1 {
		bad("Seeds", "empty", "addresses of the other nodes, since Primaries is %d and Replicas %d", c.Primaries, c.Replicas)
	}
	if c.Primaries > 0 && c.Join {
		bad("Join", c.Join, "false where Primaries is set: a node either forms by number or is joined by hand")
	}
	if len(c.Seeds) > maxSeeds {
		bad("Seeds", fmt.Sprint(len(c.Seeds), " addresses"), "at most %d", maxSeeds)
	}
	errs = append(errs, c.validateAddrs(bad)...)
	errs = append(errs, validateCommands(c.Commands)...)
	return errors.Join(errs...)
}

func (c *Config) validateAddrs(bad func(field string, value any, expected string, args ...any)) (errs []error) {
	tcp := isTCP(c.Transport)
	check := func(field, addr string, check func(string) error) {
		if err := check(addr); err != nil && tcp {
			errs = append(errs, fmt.Errorf("slotmesh: Config.%s: %w", field, err))
		}
	}
	if c.Addr == "" {
		if len(c.Seeds) > 0 || c.Primaries*(1+c.Replicas) > 1 || c.Join || c.AdvertiseAddr != "" {
			bad("Addr", `""`, "an address to listen at, since the node is to have company")
		}
		return errs
	}
	check("Addr", c.Addr, transport.CheckAddr)
	if c.AdvertiseAddr != "" {
		check("AdvertiseAddr", c.AdvertiseAddr, transport.CheckDialAddr)
	}
	if c.ClientAddr != "" {
		if err := transport.CheckDialAddr(c.ClientAddr); err != nil {
			errs = append(errs, fmt.Errorf("slotmesh: Config.ClientAddr: %w", err))
		}
	}
	for i, s := range c.Seeds {
		if s == "" {
			bad(fmt.Sprintf("Seeds[%d]", i), `""`, "the address of a node")
			continue
		}
		check("Seeds", s, transport.CheckDialAddr)
	}
	if tcp && !c.Insecure && !transport.IsLoopback(c.Addr) && !transport.Secure(c.Transport) {
		bad("Addr", c.Addr, "a loopback address, a Transport with TLS, or Insecure: other hosts could take the cluster over")
	}
	return errs
}

func validLabel(s string) bool {
	if len(s) > maxLabel {
		return false
	}
	return strings.IndexFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '.' && r != '_' && r != '-'
	}) < 0
}

// formNumbers is what nodes that form by number must agree on.
func (c *Config) formNumbers() formNumbers {
	if c.Primaries == 0 {
		return formNumbers{}
	}
	h := uint64(0)
	for _, s := range slices.Sorted(slices.Values(c.Seeds)) {
		for i := range len(s) {
			h = hashUint(h, uint64(s[i]))
		}
		h = bits.RotateLeft64(hashEnd(h), 1)
	}
	return formNumbers{Seeds: h, Primaries: uint16(c.Primaries), Replicas: uint16(c.Replicas)}
}
