package resp

import (
	"fmt"
	"net"
	"sync/atomic"

	"github.com/slotmesh/slotmesh"
)

// endpoint is what clients are told a node is called: the setting
// cluster-preferred-endpoint-type.
type endpoint uint8

const (
	endpointIP       endpoint = iota // the host of its ClientAddr
	endpointHostname                 // the name that it announces
	endpointUnknown                  // nothing: clients go on with the host that they have reached
)

// endpointOf is the endpoint that a setting names.
func endpointOf(value string) endpoint {
	switch value {
	case "hostname":
		return endpointHostname
	case "unknown-endpoint":
		return endpointUnknown
	}
	return endpointIP
}

// of is what a node with a host and a name is called: ? where the name that is
// wanted is not there, as in Redis.
func (e endpoint) of(host, name string) string {
	switch {
	case e == endpointUnknown:
		return ""
	case e == endpointHostname && name == "":
		return "?"
	case e == endpointHostname:
		return name
	}
	return host
}

// endpointSetting is the endpoint that is wanted now.
type endpointSetting struct{ value atomic.Uint32 }

func (s *endpointSetting) Store(e endpoint) { s.value.Store(uint32(e)) }
func (s *endpointSetting) Load() endpoint   { return endpoint(s.value.Load()) }

// redirect is the reply that sends a client to the node of a MOVED or an ASK. As in
// Redis an IPv6 address has no brackets there: clients split at the last colon.
func (s *Server) redirect(word string, slot slotmesh.Slot, node slotmesh.NodeID, addr string) string {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Sprintf("%s %d %s", word, slot, addr) // no address of a network
	}
	kind, name := s.settings.endpoint.Load(), ""
	if kind == endpointHostname {
		name = s.hostname(node)
	}
	return fmt.Sprintf("%s %d %s:%s", word, slot, kind.of(host, name), port)
}

// hostname is the name that a node announces.
func (s *Server) hostname(id slotmesh.NodeID) string {
	for _, n := range s.node.Table().Nodes() {
		if n.ID == id {
			return n.Hostname
		}
	}
	return ""
}
