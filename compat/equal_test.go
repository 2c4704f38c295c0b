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

// What is never sent has its reason, like every answer that may differ.
func TestEveryDifferenceHasItsReason(t *testing.T) {
	for _, u := range append(unequals(), notSent()...) {
		if u.commands == "" || u.reason == "" {
			t.Errorf("%q: reason %q, want one", u.commands, u.reason)
		}
		t.Logf("%s: %s", u.commands, u.reason)
	}
	for _, u := range unequalFragments() {
		if u.reason == "" {
			t.Error("a kind of fragments without a reason")
		}
		t.Logf("fragments: %s", u.reason)
	}
}
