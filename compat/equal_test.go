package compat

import "testing"

// TestCommandsAreAnsweredAsByRedis sends the same random commands to redis-server
// and to slotmesh. Where replies differ it shows the shortest sequence that it can
// find, as lines for redis-cli.
func TestCommandsAreAnsweredAsByRedis(t *testing.T) {
	p := newPair(t, startCompared(t), startOurs(t))
	p.compare(newGenerator(t, *firstSeed), *commandCount, *mostShown, func(d *difference) { t.Errorf("%s", d) })
	p.report(t)
}
