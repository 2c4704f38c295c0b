package transport

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/hashicorp/go-sockaddr"
)

// CheckAddr returns an error that says what is wrong with a TCP address to
// listen at, or nil. It wants "host:port": a name, an IP address (IPv6 in
// brackets) or nothing for every interface, and a port from 0 to 65535 in digits.
func CheckAddr(addr string) error {
	_, _, err := splitAddr(addr, 0)
	return err
}

// CheckDialAddr is CheckAddr for an address to dial: it must name a host, and
// the port is not 0.
func CheckDialAddr(addr string) error {
	host, _, err := splitAddr(addr, 1)
	if err == nil && host == "" {
		return fmt.Errorf("transport: address %.300q names no host, want host:port", addr)
	}
	return err
}

// splitAddr splits host:port and checks both.
func splitAddr(addr string, minPort int) (host, port string, err error) {
	host, port, err = net.SplitHostPort(addr)
	if err != nil {
		return "", "", fmt.Errorf("transport: address %.300q, want host:port (IPv6 as [host]:port)", addr)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || int(n) < minPort {
		return "", "", fmt.Errorf("transport: address %.300q has port %.64q, want a number from %d to 65535", addr, port, minPort)
	}
	if bad := badHost(host); bad != "" {
		return "", "", fmt.Errorf("transport: address %.300q has %s in its host, want a name or an IP address", addr, bad)
	}
	return host, port, nil
}

// badHost says what is in a host that neither a name nor an IP address has. A
// resolver would be asked for it otherwise, and addresses come from peers too.
func badHost(host string) string {
	if len(host) > 253 {
		return fmt.Sprintf("%d bytes (at most 253)", len(host))
	}
	if i := strings.IndexFunc(host, func(r rune) bool { return r <= ' ' || r == 0x7f || strings.ContainsRune("@/\\?#\"'<>,;", r) }); i >= 0 {
		return strconv.Quote(host[i : i+1])
	}
	if strings.Contains(host, ":") {
		if _, err := netip.ParseAddr(host); err != nil {
			return "a colon"
		}
	}
	return ""
}

// IsLoopback reports whether a TCP address can be reached from this machine
// alone: a host of 127.0.0.0/8, ::1 or localhost. No host, 0.0.0.0 and [::] are
// every interface, so they are not.
func IsLoopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		host = addr
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

// AdvertiseAddr returns the address under which others reach a TCP listener
// whose address is addr. That is addr itself unless it means every interface;
// then it is this machine's first private address, else its first public one,
// IPv4 before IPv6, and only on a machine without a network its loopback.
func AdvertiseAddr(addr string) (string, error) {
	host, port, err := splitAddr(addr, 1)
	if err != nil {
		return "", err
	}
	ip, err := netip.ParseAddr(host)
	if host != "" && (err != nil || !ip.IsUnspecified()) {
		return addr, nil
	}
	// The package's GetPrivateIP would also ask for the default route, for which
	// it runs a program; a library does not do that.
	interfaces, err := sockaddr.GetAllInterfaces()
	if err != nil {
		return "", fmt.Errorf("transport: no address to advertise for %q: %w", addr, err)
	}
	best := advertised(interfaces, ip.Is4())
	if best == "" {
		return "", fmt.Errorf("transport: no address to advertise for %q: no interface that is up has one", addr)
	}
	return net.JoinHostPort(best, port), nil
}

// advertised returns the best address among those of interfaces that are up, or
// "". Among equals the first wins, as systems list the real ones first.
func advertised(interfaces sockaddr.IfAddrs, only4 bool) string {
	best, bestRank := "", len(ranks)
	for _, it := range interfaces {
		ip := sockaddr.ToIPAddr(it.SockAddr)
		if ip == nil || it.Flags&net.FlagUp == 0 || only4 && (*ip).Type() != sockaddr.TypeIPv4 {
			continue
		}
		if r := rank(*ip); r < bestRank {
			best, bestRank = (*ip).NetIP().String(), r
		}
	}
	return best
}

// ranks says which addresses others can reach, the likeliest first.
var ranks = []func(ip sockaddr.IPAddr) bool{
	func(ip sockaddr.IPAddr) bool { return isPrivate(ip) && ip.Type() == sockaddr.TypeIPv4 },
	func(ip sockaddr.IPAddr) bool { return isGlobal(ip) && ip.Type() == sockaddr.TypeIPv4 },
	isPrivate,
	isGlobal,
	func(ip sockaddr.IPAddr) bool { return ip.NetIP().IsLoopback() && ip.Type() == sockaddr.TypeIPv4 },
	func(ip sockaddr.IPAddr) bool { return ip.NetIP().IsLoopback() },
}

// rank returns the position in ranks, or its length for an address that nobody
// else can use, such as a link-local one.
func rank(ip sockaddr.IPAddr) int {
	for i, matches := range ranks {
		if matches(ip) {
			return i
		}
	}
	return len(ranks)
}

// isPrivate: RFC 1918 and the unique local addresses of RFC 4193.
func isPrivate(ip sockaddr.IPAddr) bool { return ip.NetIP().IsPrivate() }

// isGlobal leaves out what routers do not forward: loopback, link-local,
// documentation, multicast.
func isGlobal(ip sockaddr.IPAddr) bool {
	return ip.NetIP().IsGlobalUnicast() && !sockaddr.IsRFC(sockaddr.ForwardingBlacklist, ip)
}
