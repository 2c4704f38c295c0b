//go:build race

package slotmesh

// raced says that the race detector is on: everything takes ten times as long.
const raced = true
