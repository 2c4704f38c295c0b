// Package racing tells tests whether the race detector is on, where everything takes
// ten times as long, so that they do there what may race.
package racing

import (
	"flag"
	"math/rand/v2"
	"testing"
)

var all = flag.Bool("racing.all", false, "the tests of pure code and all rows of long tables, also where the race detector is on")

// turn is which rows of long tables this process runs.
var turn = rand.IntN(1 << 16)

// Fewer is how much a test does by default: less where the race detector is on.
func Fewer(n, whenOn int) int {
	if On {
		return whenOn
	}
	return n
}

// OneGoroutine leaves a test out where the race detector is on.
func OneGoroutine(t *testing.T) {
	t.Helper()
	if On {
		t.Skip("a single goroutine runs here: there is nothing to race")
	}
}

// Pure leaves a test of pure code out where the race detector is on: a single goroutine
// calls it, as the driver does.
func Pure(t testing.TB) {
	t.Helper()
	if On && !*all {
		t.Skip("pure code, and a single goroutine: there is nothing to race")
	}
}

// OneOf leaves row i of a long table out where the race detector is on, unless it is its
// turn: one of so many rows has it in each run, by chance.
func OneOf(t *testing.T, i, rows int) {
	t.Helper()
	if On && !*all && (i+turn)%rows != 0 {
		t.Skip("other rows of the table run this time")
	}
}
