// Package resp puts the Redis protocol in front of a [slotmesh.Node]: tools and
// clients of Redis Cluster talk to it as they talk to redis-server.
//
//	node, err := slotmesh.Start(ctx, slotmesh.Config{Addr: "127.0.0.1:17000", ClientAddr: "127.0.0.1:7000"})
//	…
//	server, err := resp.Start(ctx, resp.Config{Node: node, Addr: "127.0.0.1:7000"})
//	…
//	defer server.Close()
//
// ClientAddr is what MOVED and ASK name. The bus is at the port + 10000, where
// redis-cli --cluster looks for it.
//
// Commands are a table of data: [Commands] is what the server knows by default,
// and an application adds its own. A command runs at the primary of its slot,
// under the slot's lock; where this node does not serve the slot the client
// hears MOVED or ASK, as from Redis.
//
// Texts of errors, shapes of replies and the order of checks are those of
// redis-server 7.0.
package resp
