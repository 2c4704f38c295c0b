//go:build !mutants

package slotmesh

// mutated reports whether the bug m is planted. Bugs are planted on purpose, to
// measure the tests, and only under the build tag "mutants": here the compiler
// removes them.
func mutated(mutant) bool { return false }
