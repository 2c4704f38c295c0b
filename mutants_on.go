//go:build mutants

package slotmesh

// planted is the bug of this test run. Only the mutant tests set it, before
// they start anything.
var planted mutant

func mutated(m mutant) bool { return m == planted }
