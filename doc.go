// Package slotmesh puts the semantics of Redis Cluster inside a Go service:
// 16384 hash slots, a gossip bus, failure detection, elections by majority,
// online slot migration, MOVED and ASK.
package slotmesh
