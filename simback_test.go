package slotmesh

import (
	"fmt"
	"slices"
)

// checkLV9: LV9, a primary that has lost its last replica has got another one, where some
// primary has more than it keeps or a node is to spare; so has any that has none, where a
// node is to spare. All agree on the table by now (LV3).
func (g *simGroup) checkLV9() string {
	for _, p := range g.nodes {
		l := p.core.lead
		if ok, _ := p.core.clusterState(); !ok || l == nil || !l.opened || p.core.table.owned[p.core.self.Shard] == 0 || len(g.replicasOf(p)) > 0 {
			continue
		}
		if n := g.toSpare(); n != nil {
			return fmt.Sprintf("LV9: %s has no replica, and %s is to spare", p.name(), n.name())
		}
		if n := g.mover(); n != nil && n.host != p.host && p.core.hasReplicas(p.core.self.Shard) {
			return fmt.Sprintf("LV9: %s has lost its replicas, and %s is one of several", p.name(), n.name())
		}
	}
	return ""
}

// replicasOf is the replicas of a primary that live.
func (g *simGroup) replicasOf(p *simNode) (rs []*simNode) {
	for _, n := range g.nodes {
		if n.core.isReplica(n.core.self) && n.core.self.Shard == p.core.self.Shard {
			rs = append(rs, n)
		}
	}
	return rs
}

// toSpare is a node that has nothing to do and would back others up; nil: there is none.
func (g *simGroup) toSpare() *simNode {
	i := slices.IndexFunc(g.nodes, func(n *simNode) bool { return n.core.spare() && n.core.stand == nil && n.core.leave == nil })
	if i < 0 {
		return nil
	}
	return g.nodes[i]
}

// mover is the replica that is to go where one is needed: of the primaries that have the
// most, the one with the smallest id. nil: nobody has two, of which all are in sync.
func (g *simGroup) mover() (who *simNode) {
	most := 1
	for _, p := range g.nodes {
		l, rs := p.core.lead, g.replicasOf(p)
		if l == nil || p.core.table.owned[p.core.self.Shard] == 0 || len(rs) < max(most, 2) {
			continue
		}
		if len(rs) > most {
			most, who = len(rs), nil
		}
		for _, n := range rs {
			if !l.opened || l.recording != nil || !slices.Contains(l.inSync, n.core.member()) || n.core.cfg.policy.NoMigration || n.core.cfg.policy.barrier() >= most {
				return nil // it may have to stay
			}
			if who == nil || n.core.id.compare(who.core.id) < 0 {
				who = n
			}
		}
	}
	return who
}
