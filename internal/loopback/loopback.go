// Package loopback finds addresses for tests whose nodes must know each other's
// before the first of them listens.
package loopback

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
)

const host = "127.0.0.1"

// The ports tried lie below those that systems give to connections that go out
// and to listeners at port 0 (from 32768 on Linux, from 49152 by RFC 6335, 6): a
// port that is free now is not taken by chance before the test listens there.
// Those 10000 above do, too: Redis Cluster has its bus there.
const (
	lowest  = 11_000
	highest = 21_999
	apart   = 10_000
	tries   = 1_000
)

// FreeAddrs returns n different addresses, host:port, at which nobody listens.
func FreeAddrs(n int) ([]string, error) {
	var addrs []string
	taken := make(map[int]bool)
	for range tries {
		if len(addrs) == n {
			return addrs, nil
		}
		port := lowest + rand.IntN(highest-lowest+1)
		if taken[port] || !isFree(port) || !isFree(port+apart) {
			continue
		}
		taken[port] = true
		addrs = append(addrs, address(port))
	}
	return nil, errors.New("loopback: found no free port from " + strconv.Itoa(lowest) + " to " + strconv.Itoa(highest) + " whose port " + strconv.Itoa(apart) + " above is free, too")
}

func isFree(port int) bool {
	l, err := net.Listen("tcp", address(port))
	if err != nil {
		return false
	}
	return l.Close() == nil
}

func address(port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }
