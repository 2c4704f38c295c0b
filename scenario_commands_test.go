package slotmesh_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/slotmesh/slotmesh"
	"github.com/slotmesh/slotmesh/resp"
	"github.com/slotmesh/slotmesh/store"
	"github.com/slotmesh/slotmesh/transport"
)

// command is one word of the language of scenarios.
type command struct {
	least int // words that it needs
	usage string
	run   func(s *scenario, args []string) (answer string, err error)
}

// finding is an error that no script excuses, by "!" or by a pattern: what must never
// be has been found, or could not be looked for.
type finding struct{ error }

const scenarioNT = 2 * time.Second

// scenario is a cluster that a script drives.
type scenario struct {
	t       *testing.T
	net     *transport.Memory
	faults  *transport.Faults
	cfg     slotmesh.Config // of every node
	words   map[string]command
	members map[string]*scenarioNode // changed under mu: the load reads it
	vars    map[string]string        // $name stands for a key, or for a node by its role
	redis   map[string]*redisClient
	load    *ledger
	copies  map[string]uint64
	clock   time.Time
	apart   map[string]bool

	mu     sync.Mutex
	began  time.Time
	log    []string         // guarded by mu
	events []scenarioEvent  // guarded by mu
	faulty []scenarioMoment // guarded by mu: when a primary has been hit
}

// scenarioNode is a node under a name; node is nil while it is down.
type scenarioNode struct {
	node   slotmesh.Node
	front  *resp.Server
	cfg    slotmesh.Config
	id     slotmesh.NodeID
	side   string // of the network
	goOn   func() // while it is paused
	cancel context.CancelFunc
}

type scenarioEvent struct {
	at time.Time
	by string
	slotmesh.Event
}

// scenarioMoment is when something was done that may lose what a node alone has.
type scenarioMoment struct {
	at   time.Time
	by   string // the side of that node
	what string
}

func newScenario(t *testing.T) *scenario {
	s := &scenario{t: t, net: transport.NewMemory(), words: commandsOfScenarios(), members: map[string]*scenarioNode{}, vars: map[string]string{}, redis: map[string]*redisClient{},
		copies: map[string]uint64{}, apart: map[string]bool{}, began: time.Now(), clock: time.Now()}
	s.faults = transport.NewFaults(s.net, 1)
	t.Cleanup(s.end)
	return s
}

func (s *scenario) end() {
	if s.load != nil {
		s.load.end()
	}
	for _, c := range s.redis {
		c.nc.Close()
	}
	for _, name := range s.names() {
		s.resume(name)
	}
	for _, name := range s.names() {
		s.kill(name)
	}
	s.faults.Close()
}

// ---- nodes

func (s *scenario) names() []string { return slices.Sorted(maps.Keys(s.members)) }

// at is a node that is up.
func (s *scenario) at(name string) (*scenarioNode, error) {
	m := s.members[name]
	switch {
	case m == nil:
		return nil, fmt.Errorf("there is no node %q", name)
	case m.node == nil:
		return nil, fmt.Errorf("node %s is down", name)
	}
	return m, nil
}

func (s *scenario) nameOf(id slotmesh.NodeID) string {
	for name, m := range s.members {
		if m.id == id {
			return name
		}
	}
	if id.IsZero() {
		return "nobody"
	}
	return id.String()
}

func (s *scenario) namesOf(ids []slotmesh.NodeID) string {
	var names []string
	for _, id := range ids {
		names = append(names, s.nameOf(id))
	}
	slices.Sort(names)
	return strings.Join(names, ",")
}

// start starts a node at an address on its side of the network.
func (s *scenario) start(m *scenarioNode) error {
	m.cfg.Commands = []slotmesh.Command{writeCommand(m.side)}
	m.cfg.Transport, m.cfg.ClientAddr = s.faults.Node(m.side), strings.Split(m.cfg.Addr, ":")[0]+":6379"
	n, err := slotmesh.Start(s.t.Context(), m.cfg)
	if err != nil {
		return err
	}
	s.change(func() { m.node, m.id = n, n.ID() })
	l, err := s.net.Listen(m.cfg.ClientAddr)
	if err != nil {
		return err
	}
	m.front, err = resp.Start(s.t.Context(), resp.Config{Node: n, Listener: l})
	return err
}

// watch collects the events of a node.
func (s *scenario) watch(name string) {
	m := s.members[name]
	ctx, cancel := context.WithCancel(s.t.Context())
	m.cancel = cancel
	events := m.node.Events(ctx, 10_000)
	go func() {
		for e := range events {
			s.trace("%s: %v node %s from %s epoch %v number %d %s", name, e.Kind, e.Node.String()[:6], e.From.String()[:6], e.Epoch, e.Number, e.Text)
			s.mu.Lock()
			s.events = append(s.events, scenarioEvent{time.Now(), name, e})
			s.mu.Unlock()
		}
	}()
}

func (s *scenario) kill(name string) {
	if m := s.members[name]; m.node != nil {
		m.cancel()
		n := m.node
		s.change(func() { m.node = nil })
		if m.front != nil {
			m.front.Close()
		}
		n.Close()
	}
}

// change changes what the load looks at.
func (s *scenario) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// pause makes a node stand still: nothing comes or goes, and its run loop does not run.
func (s *scenario) pause(name string) error {
	m, err := s.at(name)
	if err != nil {
		return err
	}
	s.apart[m.side] = true
	s.partition()
	goOn := slotmesh.StallForTest(s.t, m.node)
	s.change(func() { m.goOn = goOn })
	return nil
}

// resume lets a node go on, with all that has come for it meanwhile.
func (s *scenario) resume(name string) {
	m := s.members[name]
	if m.goOn == nil {
		return
	}
	delete(s.apart, m.side)
	s.partition()
	time.Sleep(time.Millisecond)
	m.goOn()
	s.change(func() { m.goOn = nil })
}

// partition cuts off each node that is apart.
func (s *scenario) partition() {
	var groups [][]string
	for side := range s.apart {
		groups = append(groups, []string{side})
	}
	s.faults.Partition(groups...)
}

// hit notes that a node has been hit by something which may lose what it alone has.
func (s *scenario) hit(name, what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faulty = append(s.faulty, scenarioMoment{time.Now(), s.members[name].side, what + " " + name})
}

// sideOf is the side of the network on which a node is.
func (s *scenario) sideOf(id slotmesh.NodeID) string {
	if m := s.members[s.nameOf(id)]; m != nil {
		return m.side
	}
	return ""
}

// client is that of some node which is up and not paused.
func (s *scenario) client(i int) *slotmesh.Client {
	s.mu.Lock()
	defer s.mu.Unlock()
	names := s.names()
	for k := range names {
		if m := s.members[names[(i+k)%len(names)]]; m.node != nil && m.goOn == nil {
			return m.node.Client()
		}
	}
	return nil
}

// ---- what scripts can say

// commandsOfScenarios are the words of the language.
func commandsOfScenarios() map[string]command {
	return map[string]command{
		"cluster":    {1, "PRIMARIESxREPLICAS [ack=N] [voters=N] [backlog=BYTES] [stale=DURATION]", (*scenario).cluster},
		"spare":      {1, "NAME: a node more, configured as the others", func(s *scenario, a []string) (string, error) { return "", s.add(a[0], s.cfg) }},
		"joiner":     {1, "NAME: a node more, that does nothing by itself", func(s *scenario, a []string) (string, error) { return "", s.addJoiner(a[0]) }},
		"kill":       {1, "NODE...", eachHit("kill", func(s *scenario, name string) error { s.kill(name); return nil })},
		"pause":      {1, "NODE...", eachHit("pause", (*scenario).pause)},
		"resume":     {1, "NODE...", each(func(s *scenario, name string) error { s.resume(name); return nil })},
		"restart":    {1, "NODE... (its memory is gone)", each(func(s *scenario, name string) error { return s.restart(name, "") })},
		"restart-at": {2, "NODE ADDRESS", func(s *scenario, a []string) (string, error) { return "", s.restart(a[0], a[1]) }},
		"isolate":    {1, "NODE... (each on its own)", eachHit("isolate", func(s *scenario, name string) error { s.apart[s.members[name].side] = true; s.partition(); return nil })},
		"heal":       {0, "", func(s *scenario, _ []string) (string, error) { clear(s.apart); s.partition(); return "", nil }},
		"link":       {3, "NODE NODE BYTES-PER-SECOND (0: no limit)", (*scenario).link},
		"delay":      {1, "DURATION: on every way, from now on", (*scenario).delay},
		"wait":       {1, "DURATION", func(s *scenario, a []string) (string, error) { return "", s.wait(a[0]) }},
		"failover":   {2, "NODE plain|force|takeover", (*scenario).failover},
		"force":      {2, "NODE VOTER...", (*scenario).forceVoters},
		"replicate":  {2, "NODE PRIMARY", (*scenario).replicate},
		"move":       {3, "SLOTS FROM TO", (*scenario).move},
		"reset": {1, "NODE", func(s *scenario, a []string) (string, error) {
			return s.admin(a[0], func(x slotmesh.Admin) error { return x.Reset(s.t.Context(), false) })
		}},
		"key":    {2, "NAME NODE: from now on $NAME is a key whose slot the node owns", (*scenario).key},
		"leader": {2, "NAME NODE...: from now on $NAME is the one of them that leads", (*scenario).leader},
		"set":    {3, "NODE KEY VALUE [ack=N]", (*scenario).set},
		"get":    {2, "NODE KEY", (*scenario).get},
		"read":   {2, "NODE KEY: from what the node itself has, replica or not", (*scenario).read},
		"fill":   {2, "NODE KEYS: keys of every kind, with fields and times of expiry", (*scenario).fill},
		"load":   {1, "WRITERS [expiring]", (*scenario).startLoad},
		"quiet":  {0, ": the load ends", func(s *scenario, _ []string) (string, error) { s.load.end(); return "", nil }},
		"acks":   {1, "more|none: since the last look", (*scenario).acks},
		"clock": {0, ": what pause-under and within count begins", func(s *scenario, _ []string) (string, error) {
			s.clock = time.Now()
			if s.load != nil {
				s.load.gapsFrom(s.clock)
			}
			return "", nil
		}},
		"within": {1, "DURATION: no more time has passed since clock", func(s *scenario, a []string) (string, error) {
			limit, err := time.ParseDuration(a[0])
			if took := time.Since(s.clock); err == nil && took > limit {
				err = fmt.Errorf("%v have passed", took)
			}
			return "", err
		}},
		"pause-under": {1, "DURATION: no writer has waited longer since clock", (*scenario).pauseUnder},
		"lost":        {1, "none|lag|unclean: which acknowledged writes of the load are gone, and why", found((*scenario).lost)},
		"leads":       {1, "NODE: it serves its slots under its lease", (*scenario).leads},
		"follows":     {2, "NODE PRIMARY: attached and up to date", (*scenario).follows},
		"insync":      {2, "PRIMARY NODE...: these are its members in sync, with itself", (*scenario).insync},
		"in-sync": {1, "PRIMARY: its members in sync", func(s *scenario, a []string) (string, error) {
			return s.status(a[0], func(st slotmesh.Status) string { return s.namesOf(st.Replication.InSync) })
		}},
		"syncing": {1, "NODE: it copies everything", (*scenario).syncing},
		"moveslot": {3, "KEY FROM TO: the slot of the key", func(s *scenario, a []string) (string, error) {
			return s.move([]string{strconv.Itoa(int(slotmesh.KeySlot(a[0]))), a[1], a[2]})
		}},
		"ok":    {1, "NODE...: the cluster is ok in its eyes", each((*scenario).ok)},
		"down":  {1, "NODE: the reason why it is not", (*scenario).down},
		"ready": {1, "NODE...", each((*scenario).ready)},
		"voters": {1, "NODE: who votes", func(s *scenario, a []string) (string, error) {
			return s.status(a[0], func(st slotmesh.Status) string { return s.namesOf(st.Voters) })
		}},
		"members": {1, "NODE: how many it knows", func(s *scenario, a []string) (string, error) {
			return s.status(a[0], func(st slotmesh.Status) string { return strconv.Itoa(st.Members) })
		}},
		"addr": {2, "NODE OF: the address that it knows", (*scenario).addrOf},
		"copy": {1, "NODE: its store is noted", func(s *scenario, a []string) (string, error) {
			s.copies[a[0]] = slotmesh.CopyForTest(s.members[a[0]].node)
			return "", nil
		}},
		"same-copy": {1, "NODE: as when it was noted", (*scenario).sameCopy},
		"holds":     {2, "NODE N: its store has at least so many keys", (*scenario).holds},
		"level":     {2, "NODE NODE...: one log, and the same data", (*scenario).level},
		"event":     {2, "NODE KIND [node=NODE] [from=NODE]: how many it has told of, and what the last one says", (*scenario).event},
		"redis":     {2, "CLIENT@NODE COMMAND...: the reply", (*scenario).redisDo},
		"send":      {2, "CLIENT@NODE COMMAND...: and does not wait for the reply", (*scenario).redisSend},
		"reply":     {1, "CLIENT@NODE: the next one", (*scenario).redisReply},
	}
}

// found is a command whose failure is a finding.
func found(f func(*scenario, []string) (string, error)) func(*scenario, []string) (string, error) {
	return func(s *scenario, args []string) (string, error) {
		answer, err := f(s, args)
		if err != nil {
			err = finding{err}
		}
		return answer, err
	}
}

func matches(answer, pattern string) error {
	re, err := regexp.Compile("^(?s:" + pattern + ")$")
	if err != nil {
		return err
	}
	if !re.MatchString(answer) {
		return fmt.Errorf("%q, expected %q", answer, pattern)
	}
	return nil
}

func each(f func(s *scenario, name string) error) func(*scenario, []string) (string, error) {
	return func(s *scenario, args []string) (string, error) {
		for _, name := range args {
			if s.members[name] == nil {
				return "", fmt.Errorf("there is no node %q", name)
			}
			if err := f(s, name); err != nil {
				return "", err
			}
		}
		return "", nil
	}
}

// eachHit is each, of something that may lose what a node alone has.
func eachHit(what string, f func(s *scenario, name string) error) func(*scenario, []string) (string, error) {
	return each(func(s *scenario, name string) error {
		s.hit(name, what)
		return f(s, name)
	})
}

// options are the words NAME=VALUE; the others are returned.
func options(args []string) (words []string, opts map[string]string) {
	opts = map[string]string{}
	for _, a := range args {
		if name, value, ok := strings.Cut(a, "="); ok {
			opts[name] = value
		} else {
			words = append(words, a)
		}
	}
	return words, opts
}

func (s *scenario) cluster(args []string) (string, error) {
	words, opts := options(args)
	var primaries, replicas int
	if _, err := fmt.Sscanf(words[0], "%dx%d", &primaries, &replicas); err != nil {
		return "", err
	}
	s.cfg = slotmesh.Config{Primaries: primaries, Replicas: replicas, NodeTimeout: scenarioNT}
	s.cfg.AckReplicas, _ = strconv.Atoi(opts["ack"])
	s.cfg.MaxVoters, _ = strconv.Atoi(opts["voters"])
	s.cfg.Backlog, _ = strconv.Atoi(opts["backlog"])
	if stale := opts["stale"]; stale != "" {
		d, err := time.ParseDuration(stale)
		if err != nil {
			return "", err
		}
		s.cfg.ReplicaStaleness = d
	}
	count := primaries * (1 + replicas)
	for i := range count {
		s.cfg.Seeds = append(s.cfg.Seeds, fmt.Sprintf("n%d:1", i))
	}
	var all []*scenarioNode
	for i := range count {
		m := &scenarioNode{cfg: s.cfg, side: fmt.Sprint("n", i)}
		m.cfg.Addr, m.cfg.Dir = s.cfg.Seeds[i], s.t.TempDir()
		if err := s.start(m); err != nil {
			return "", err
		}
		all = append(all, m)
	}
	for _, m := range all {
		ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
		err := m.node.Ready(ctx)
		cancel()
		if err != nil {
			return "", err
		}
	}
	return "", s.christen(all)
}

// membersOf is how many members of shards a node knows.
func membersOf(n slotmesh.Node) (count int) {
	for _, shard := range n.Table().Shards() {
		count += 1 + len(shard.Replicas)
	}
	return count
}

// christen gives the nodes of a new cluster their names.
func (s *scenario) christen(all []*scenarioNode) error {
	byID := map[slotmesh.NodeID]*scenarioNode{}
	for _, m := range all {
		byID[m.id] = m
	}
	for end := time.Now().Add(4 * scenarioNT); membersOf(all[0].node) < len(all) && time.Now().Before(end); {
		time.Sleep(scenarioNT / 100) // it has not heard of all yet
	}
	for i, shard := range all[0].node.Table().Shards() {
		name := string(rune('A' + i))
		s.change(func() {
			s.members[name] = byID[shard.Primary]
			for k, id := range shard.Replicas {
				s.members[fmt.Sprint(name, 1+k)] = byID[id]
			}
		})
	}
	if len(s.members) != len(all) {
		return fmt.Errorf("%d members of shards, %d nodes", len(s.members), len(all))
	}
	for _, name := range s.names() {
		s.watch(name)
	}
	return nil
}

// add adds a node to the cluster.
func (s *scenario) add(name string, cfg slotmesh.Config) error {
	m := &scenarioNode{cfg: cfg, side: "more" + name}
	m.cfg.Addr, m.cfg.Dir = m.side+":1", s.t.TempDir()
	if err := s.start(m); err != nil {
		return err
	}
	s.change(func() { s.members[name] = m })
	s.watch(name)
	return nil
}

func (s *scenario) addJoiner(name string) error {
	cfg := s.cfg
	cfg.Primaries, cfg.Replicas, cfg.Join = 0, 0, true
	return s.add(name, cfg)
}

func (s *scenario) restart(name, addr string) error {
	m := s.members[name]
	if m.node != nil {
		return fmt.Errorf("node %s is up", name)
	}
	if addr != "" {
		m.cfg.Addr = addr
	}
	if err := s.start(m); err != nil {
		return err
	}
	s.watch(name)
	return nil
}

func (s *scenario) link(args []string) (string, error) {
	rate, err := strconv.Atoi(args[2])
	if err == nil {
		s.faults.SetBoth(s.members[args[0]].side, s.members[args[1]].side, transport.Link{BytesPerSecond: rate})
	}
	if rate > 0 {
		s.hit(args[0], "slow line") // what it acknowledges from here on may not get to the other
	}
	return "", err
}

func (s *scenario) delay(args []string) (string, error) {
	d, err := time.ParseDuration(args[0])
	for _, a := range s.members {
		for _, b := range s.members {
			if a != b && err == nil {
				l := s.faults.Link(a.side, b.side)
				l.Delay = d
				s.faults.Set(a.side, b.side, l)
			}
		}
	}
	return "", err
}

func (s *scenario) wait(text string) error {
	d, err := time.ParseDuration(text)
	time.Sleep(d)
	return err
}

// ---- operators

func (s *scenario) admin(name string, f func(slotmesh.Admin) error) (string, error) {
	m, err := s.at(name)
	if err != nil {
		return "", err
	}
	return "", f(m.node.Admin())
}

func (s *scenario) failover(args []string) (string, error) {
	return s.admin(args[0], func(a slotmesh.Admin) error {
		switch args[1] {
		case "plain":
			return a.Failover(s.t.Context(), slotmesh.FailoverPlain)
		case "force":
			s.hit(s.nameOf(s.members[args[0]].node.Status().Replication.Primary), "force by "+args[0]+" of")
			return a.Failover(s.t.Context(), slotmesh.FailoverForce)
		case "takeover":
			return a.Takeover(s.t.Context())
		}
		return fmt.Errorf("there is no failover %q", args[1])
	})
}

func (s *scenario) forceVoters(args []string) (string, error) {
	var ids []slotmesh.NodeID
	for _, name := range args[1:] {
		ids = append(ids, s.members[name].id)
	}
	return s.admin(args[0], func(a slotmesh.Admin) error { return a.ForceVoters(s.t.Context(), ids) })
}

func (s *scenario) replicate(args []string) (string, error) {
	return s.admin(args[0], func(a slotmesh.Admin) error { return a.Replicate(s.t.Context(), s.members[args[1]].id) })
}

func (s *scenario) move(args []string) (string, error) {
	slots, err := slotmesh.ParseSlotSet(args[0])
	if err != nil {
		return "", err
	}
	return s.admin(args[1], func(a slotmesh.Admin) error { return a.MoveSlots(s.t.Context(), slots, s.members[args[2]].id) })
}

// ---- data

// keyIn is the i-th key in a set of slots.
func keyIn(slots slotmesh.SlotSet, i int) (string, bool) {
	if slots.Empty() {
		return "", false
	}
	for k := 0; k < 1<<20; k++ {
		key := fmt.Sprint("k", k)
		if slots.Contains(slotmesh.KeySlot(key)) {
			if i--; i < 0 {
				return key, true
			}
		}
	}
	return "", false
}

func (s *scenario) key(args []string) (string, error) {
	m, err := s.at(args[1])
	if err != nil {
		return "", err
	}
	key, ok := keyIn(m.node.Table().Slots(m.id), len(s.vars))
	if !ok {
		return "", fmt.Errorf("node %s owns no slot", args[1])
	}
	s.vars[args[0]] = key
	return "", nil
}

func (s *scenario) leader(args []string) (string, error) {
	for _, name := range args[1:] {
		if _, err := s.leads([]string{name}); err == nil {
			s.vars[args[0]] = name
			return "", nil
		}
	}
	return "", errors.New("none of them leads")
}

func (s *scenario) set(args []string) (string, error) {
	m, err := s.at(args[0])
	if err != nil {
		return "", err
	}
	words, opts := options(args)
	key, value := words[1], []byte(words[2])
	ctx, cancel := context.WithTimeout(s.t.Context(), 2*scenarioNT)
	defer cancel()
	if ack := opts["ack"]; ack != "" {
		n, _ := strconv.Atoi(ack)
		return "", m.node.Execute(ctx, slotmesh.Request{Keys: []string{key}, AckReplicas: n}, func(tx *slotmesh.Tx) error { return tx.Put(key, value) })
	}
	return "", m.node.Client().Set(ctx, key, value)
}

func (s *scenario) get(args []string) (string, error) {
	m, err := s.at(args[0])
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(s.t.Context(), 2*scenarioNT)
	defer cancel()
	v, err := m.node.Client().Get(ctx, args[1])
	return string(v), err
}

func (s *scenario) read(args []string) (string, error) {
	m, err := s.at(args[0])
	if err != nil {
		return "", err
	}
	key := args[1]
	var v []byte
	err = m.node.Execute(s.t.Context(), slotmesh.Request{Keys: []string{key}, ReadOnly: true, FromReplica: true}, func(tx *slotmesh.Tx) (err error) {
		v, _, err = tx.Get(key)
		return err
	})
	return string(v), s.redirect(err)
}

// redirect names whom an error refers to, if the address in it is that one's.
func (s *scenario) redirect(err error) error {
	var moved *slotmesh.MovedError
	if !errors.As(err, &moved) {
		return err
	}
	name := s.nameOf(moved.Node)
	if m := s.members[name]; m == nil || m.cfg.ClientAddr != moved.Addr {
		return err
	}
	return fmt.Errorf("moved to %s", name)
}

// fill writes at a primary what a store can hold: plain values, fields, times of
// expiry, what is deleted again and what expires at once.
func (s *scenario) fill(args []string) (string, error) {
	m, err := s.at(args[0])
	if err != nil {
		return "", err
	}
	n, err := strconv.Atoi(args[1])
	if err != nil {
		return "", err
	}
	slots := m.node.Table().Slots(m.id)
	for i := range n {
		key := fmt.Sprint("fill", i)
		if !slots.Contains(slotmesh.KeySlot(key)) {
			continue
		}
		err := m.node.Execute(s.t.Context(), slotmesh.Request{Keys: []string{key}}, func(tx *slotmesh.Tx) error { return fillOne(tx, i, key) })
		if err != nil {
			return "", err
		}
	}
	return "", nil
}

func fillOne(tx *slotmesh.Tx, i int, key string) error {
	value := []byte(fmt.Sprint("value ", i, " ", tx.Now().UnixNano()))
	if i%5 < 2 {
		if err := tx.PutEntry(key, store.Entry{Kind: 1, Value: []byte("head")}); err != nil {
			return err
		}
		return errors.Join(tx.PutField(key, fmt.Sprint("field", i%3), value), tx.PutField(key, "last", value))
	}
	if err := tx.Put(key, value); err != nil {
		return err
	}
	switch i % 5 {
	case 2:
		_, err := tx.Expire(key, tx.Now().Add(time.Hour))
		return err
	case 3:
		_, err := tx.Expire(key, tx.Now().Add(10*time.Millisecond))
		return err
	}
	return nil
}

// ---- what is

func (s *scenario) status(name string, f func(slotmesh.Status) string) (string, error) {
	m, err := s.at(name)
	if err != nil {
		return "", err
	}
	return f(m.node.Status()), nil
}

func (s *scenario) leads(args []string) (string, error) {
	m, err := s.at(args[0])
	if err != nil {
		return "", err
	}
	key, ok := keyIn(m.node.Table().Slots(m.id), 0)
	if !ok {
		return "", fmt.Errorf("node %s owns no slot", args[0])
	}
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Millisecond)
	defer cancel()
	return "", m.node.Execute(ctx, slotmesh.Request{Keys: []string{key}, ReadOnly: true}, func(*slotmesh.Tx) error { return nil })
}

func (s *scenario) follows(args []string) (string, error) {
	m, err := s.at(args[0])
	if err != nil {
		return "", err
	}
	p := s.members[args[1]]
	own := m.node.Table().Slots(m.id)
	switch r := m.node.Status().Replication; {
	case r.Leads || r.Primary != p.id:
		return "", fmt.Errorf("%s follows %s", args[0], s.nameOf(r.Primary))
	case r.Link != slotmesh.LinkUp:
		return "", fmt.Errorf("its link is %v", r.Link)
	case !own.Empty():
		return "", fmt.Errorf("%s owns slots", args[0])
	}
	return "", nil
}

func (s *scenario) insync(args []string) (string, error) {
	m, err := s.at(args[0])
	if err != nil {
		return "", err
	}
	want := slices.Compact(slices.Sorted(slices.Values(args)))
	if have := s.namesOf(m.node.Status().Replication.InSync); have != strings.Join(want, ",") {
		return "", fmt.Errorf("in sync are %s", have)
	}
	return "", nil
}

func (s *scenario) syncing(args []string) (string, error) {
	m, err := s.at(args[0])
	if err == nil && m.node.Status().Replication.Link != slotmesh.LinkSync {
		err = fmt.Errorf("its link is %v", m.node.Status().Replication.Link)
	}
	return "", err
}

func (s *scenario) ok(name string) error {
	m, err := s.at(name)
	if err != nil {
		return err
	}
	if st := m.node.Status(); !st.OK || st.Assigned != slotmesh.NumSlots || st.Failed > 0 {
		return fmt.Errorf("%s: ok %v (%s), %d slots assigned, %d failed", name, st.OK, st.Reason, st.Assigned, st.Failed)
	}
	return nil
}

func (s *scenario) down(args []string) (string, error) {
	m, err := s.at(args[0])
	if err != nil {
		return "", err
	}
	st := m.node.Status()
	if st.OK {
		return "", fmt.Errorf("%s is ok", args[0])
	}
	return st.Reason, nil
}

func (s *scenario) ready(name string) error {
	m, err := s.at(name)
	if err != nil {
		return err
	}
	if st := m.node.Status(); !st.Ready {
		return errors.New(st.Unready)
	}
	return nil
}

func (s *scenario) addrOf(args []string) (string, error) {
	m, err := s.at(args[0])
	if err != nil {
		return "", err
	}
	for _, n := range m.node.Table().Nodes() {
		if n.ID == s.members[args[1]].id {
			return n.Addr, nil
		}
	}
	return "", fmt.Errorf("%s does not know %s", args[0], args[1])
}

func (s *scenario) sameCopy(args []string) (string, error) {
	m, err := s.at(args[0])
	if err == nil && slotmesh.CopyForTest(m.node) != s.copies[args[0]] {
		err = fmt.Errorf("it has copied everything anew")
	}
	return "", err
}

func (s *scenario) holds(args []string) (string, error) {
	m, err := s.at(args[0])
	if err != nil {
		return "", err
	}
	n, err := strconv.Atoi(args[1])
	have := 0
	for slot := range slotmesh.Slot(slotmesh.NumSlots) {
		k, err := m.node.CountKeys(slot)
		if err != nil {
			return "", err
		}
		have += k
	}
	if err == nil && have < n {
		err = fmt.Errorf("%d keys", have)
	}
	return "", err
}

func (s *scenario) level(args []string) (string, error) {
	first, err := s.at(args[0])
	if err != nil {
		return "", err
	}
	for _, name := range args[1:] {
		m, err := s.at(name)
		if err != nil {
			return "", err
		}
		if a, b := slotmesh.LogForTest(first.node), slotmesh.LogForTest(m.node); a != b {
			return "", fmt.Errorf("%s is at %v, %s at %v", args[0], a, name, b)
		}
		if a, b := slotmesh.ContentsForTest(s.t, first.node), slotmesh.ContentsForTest(s.t, m.node); !maps.Equal(a, b) {
			return "", fmt.Errorf("%s and %s differ: %d and %d entries", args[0], name, len(a), len(b))
		}
	}
	return "", nil
}

func (s *scenario) event(args []string) (string, error) {
	words, opts := options(args)
	s.mu.Lock()
	defer s.mu.Unlock()
	n, text := 0, ""
	for _, e := range s.events {
		if e.by != words[0] || e.Kind.String() != strings.Join(words[1:], " ") {
			continue
		}
		if node := opts["node"]; node != "" && e.Node != s.members[node].id {
			continue
		}
		if from := opts["from"]; from != "" && e.From != s.members[from].id {
			continue
		}
		n++
		text = fmt.Sprintf("number %d %s", e.Number, e.Text)
	}
	return strings.TrimSpace(fmt.Sprint(n, ": ", text)), nil
}

// ---- the Redis front

// redisClient is one connection of a client to the front of a node.
type redisClient struct {
	nc net.Conn
	r  *bufio.Reader
}

// redisTo is the client CLIENT@NODE, connected at its first use.
func (s *scenario) redisTo(name string) (*redisClient, error) {
	if c := s.redis[name]; c != nil {
		return c, nil
	}
	_, node, ok := strings.Cut(name, "@")
	if !ok {
		return nil, fmt.Errorf("%q is no CLIENT@NODE", name)
	}
	m, err := s.at(node)
	if err != nil {
		return nil, err
	}
	nc, err := s.net.Dial(s.t.Context(), m.cfg.ClientAddr)
	if err != nil {
		return nil, err
	}
	c := &redisClient{nc, bufio.NewReader(nc)}
	s.redis[name] = c
	return c, nil
}

func (s *scenario) redisSend(args []string) (string, error) {
	c, err := s.redisTo(args[0])
	if err != nil {
		return "", err
	}
	text := fmt.Sprintf("*%d\r\n", len(args)-1)
	for _, w := range args[1:] {
		if name, ok := strings.CutPrefix(w, "id:"); ok {
			if w = name; s.members[name] != nil {
				w = s.members[name].id.String()
			}
		}
		text += fmt.Sprintf("$%d\r\n%s\r\n", len(w), w)
	}
	_, err = c.nc.Write([]byte(text))
	return "", err
}

func (s *scenario) redisReply(args []string) (string, error) {
	c, err := s.redisTo(args[0])
	if err != nil {
		return "", err
	}
	c.nc.SetReadDeadline(time.Now().Add(4 * scenarioNT))
	return c.reply()
}

func (s *scenario) redisDo(args []string) (string, error) {
	if _, err := s.redisSend(args); err != nil {
		return "", err
	}
	return s.redisReply(args[:1])
}

// reply reads one reply: an error and a text as they are, an aggregate in brackets,
// with ids and addresses as names where they are known.
func (c *redisClient) reply() (string, error) {
	line, err := c.r.ReadString('\n')
	if err != nil {
		return "", err
	}
	kind, text := line[0], strings.TrimSpace(line[1:])
	switch kind {
	case '$':
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			return "(nil)", err
		}
		b := make([]byte, n+2)
		for have := 0; have < len(b); {
			k, err := c.r.Read(b[have:])
			if err != nil {
				return "", err
			}
			have += k
		}
		return string(b[:n]), nil
	case '*':
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			return "(nil)", err
		}
		var items []string
		for range n {
			item, err := c.reply()
			if err != nil {
				return "", err
			}
			items = append(items, item)
		}
		return "[" + strings.Join(items, " ") + "]", nil
	}
	return text, nil
}
