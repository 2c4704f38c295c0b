package transport

import (
	"net"
	"strings"
	"testing"

	"github.com/hashicorp/go-sockaddr"
)

func TestAddressesAreChecked(t *testing.T) {
	long := strings.Repeat("a", 254)
	for _, c := range []struct {
		addr         string
		listen, dial string // what the error says; "" for none
	}{
		{"127.0.0.1:7000", "", ""},
		{"localhost:7000", "", ""},
		{"node-1.example.com:65535", "", ""},
		{"[::1]:7000", "", ""},
		{"[fe80::1%eth0]:7000", "", ""},
		{"127.0.0.1:0", "", `port "0", want a number from 1 to 65535`},
		{":7000", "", "names no host"},
		{"[::]:7000", "", ""},
		{"", "want host:port", "want host:port"},
		{"localhost", "want host:port", "want host:port"},
		{"::1:7000", "want host:port", "want host:port"},
		{"localhost:", `port "", want a number from 0 to 65535`, `port ""`},
		{"localhost:http", `port "http", want a number from 0`, `port "http"`},
		{"localhost:-1", `port "-1"`, `port "-1"`},
		{"localhost:65536", `port "65536"`, `port "65536"`},
		{"localhost:7000 ", `port "7000 "`, `port "7000 "`},
		{"user@host:7000", `"@" in its host`, `"@" in its host`},
		{"a b:7000", `" " in its host`, `" " in its host`},
		{"a\r\nb:7000", `"\r" in its host`, `"\r" in its host`},
		{"http://host:7000", "want host:port", "want host:port"},
		{"[x:y]:7000", "a colon in its host", "a colon in its host"},
		{long + ":7000", "254 bytes (at most 253) in its host", "254 bytes"},
		{long[1:] + ":7000", "", ""},
	} {
		for name, got := range map[string]error{"CheckAddr": CheckAddr(c.addr), "CheckDialAddr": CheckDialAddr(c.addr)} {
			want := c.listen
			if name == "CheckDialAddr" {
				want = c.dial
			}
			switch {
			case want == "" && got != nil:
				t.Errorf("%s(%q) = %v, want nil", name, c.addr, got)
			case want != "" && (got == nil || !strings.Contains(got.Error(), want)):
				t.Errorf("%s(%q) = %v, want an error with %q", name, c.addr, got, want)
			}
		}
	}
}

func FuzzCheckAddr(f *testing.F) {
	for _, seed := range []string{"127.0.0.1:7000", "[::1]:0", ":1", "a@b:1", "\x00:1", "[::1%25]:99999"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, addr string) {
		IsLoopback(addr)
		if CheckDialAddr(addr) == nil && CheckAddr(addr) != nil {
			t.Errorf("%q may be dialed but not listened at", addr)
		}
		if CheckAddr(addr) != nil {
			return
		}
		host, port, err := net.SplitHostPort(addr)
		if err != nil {
			t.Fatalf("%q passes, and net says %v", addr, err)
		}
		if again := net.JoinHostPort(host, port); CheckAddr(again) != nil {
			t.Errorf("%q passes and %q does not", addr, again)
		}
		if strings.ContainsAny(addr, "\r\n @") {
			t.Errorf("%q passes", addr)
		}
	})
}

func TestLoopbackAddressesAreKnown(t *testing.T) {
	for addr, want := range map[string]bool{
		"127.0.0.1:7000":          true,
		"127.255.0.3:1":           true,
		"[::1]:7000":              true,
		"[::ffff:127.0.0.1]:7000": true,
		"localhost:7000":          true,
		"LOCALHOST:7000":          true,
		"127.0.0.1":               true,
		"::1":                     true,
		"localhost":               true,
		"":                        false,
		":7000":                   false, // every interface
		"0.0.0.0:7000":            false,
		"[::]:7000":               false,
		"10.0.0.1:7000":           false,
		"localhost.example:7000":  false,
		"128.0.0.1:7000":          false,
		"[::2]:7000":              false,
	} {
		if got := IsLoopback(addr); got != want {
			t.Errorf("IsLoopback(%q) = %v, want %v", addr, got, want)
		}
	}
}

func TestTheBestAddressIsAdvertised(t *testing.T) {
	up, down := net.FlagUp, net.Flags(0)
	type addr struct {
		ip    string
		flags net.Flags
	}
	for _, c := range []struct {
		name  string
		addrs []addr
		only4 bool
		want  string
	}{
		{"private before public", []addr{{"127.0.0.1/8", up}, {"8.8.8.8/24", up}, {"10.1.2.3/8", up}}, false, "10.1.2.3"},
		{"the first of two", []addr{{"192.168.1.5/24", up}, {"172.17.0.1/16", up}}, false, "192.168.1.5"},
		{"only what is up", []addr{{"10.1.2.3/8", down}, {"192.168.0.7/24", up}}, false, "192.168.0.7"},
		{"public where nothing is private", []addr{{"127.0.0.1/8", up}, {"8.8.8.8/24", up}}, false, "8.8.8.8"},
		{"IPv4 before IPv6", []addr{{"fd00::5/64", up}, {"8.8.8.8/24", up}}, false, "8.8.8.8"},
		{"private IPv6 before public", []addr{{"2600::1/64", up}, {"fd00::5/64", up}}, false, "fd00::5"},
		{"no IPv6 for a listener on IPv4", []addr{{"fd00::5/64", up}, {"127.0.0.1/8", up}}, true, "127.0.0.1"},
		{"nothing that needs a zone", []addr{{"fe80::1/64", up}, {"169.254.1.1/16", up}, {"127.0.0.1/8", up}}, false, "127.0.0.1"},
		{"IPv6 alone", []addr{{"::1/128", up}}, false, "::1"},
		{"nothing at all", nil, false, ""},
	} {
		var interfaces sockaddr.IfAddrs
		for _, a := range c.addrs {
			interfaces = append(interfaces, sockaddr.IfAddr{SockAddr: sockaddr.MustIPAddr(a.ip), Interface: net.Interface{Flags: a.flags}})
		}
		if got := advertised(interfaces, c.only4); got != c.want {
			t.Errorf("%s: advertised = %q, want %q", c.name, got, c.want)
		}
	}
}

func TestAnAddressThatNamesAHostIsAdvertisedAsItIs(t *testing.T) {
	for _, addr := range []string{"10.0.0.1:7000", "example.com:7000", "[::1]:7000", "127.0.0.1:1"} {
		if got, err := AdvertiseAddr(addr); got != addr || err != nil {
			t.Errorf("AdvertiseAddr(%q) = %q, %v, want it back", addr, got, err)
		}
	}
	for _, addr := range []string{"", "nonsense", "10.0.0.1:0", ":0"} {
		if got, err := AdvertiseAddr(addr); err == nil {
			t.Errorf("AdvertiseAddr(%q) = %q, want an error", addr, got)
		}
	}
}

func TestAListenerOnEveryInterfaceCanBeReachedWhereItSays(t *testing.T) {
	for _, host := range []string{"", "0.0.0.0"} {
		l, err := TCP{}.Listen(net.JoinHostPort(host, "0"))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		addr, err := AdvertiseAddr(l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if at, _, _ := net.SplitHostPort(addr); net.ParseIP(at).IsUnspecified() {
			t.Errorf("AdvertiseAddr(%q) = %q, which is no address of one machine", l.Addr(), addr)
		}
		c, err := TCP{}.Dial(t.Context(), addr)
		if err != nil {
			t.Fatalf("a listener at %s cannot be reached at %s: %v", l.Addr(), addr, err)
		}
		_ = c.Close()
	}
}
