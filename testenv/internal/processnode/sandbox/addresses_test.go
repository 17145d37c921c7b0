package sandbox

import (
	"net/netip"
	"testing"
)

func take(t *testing.T, pool *Pool) string {
	t.Helper()
	address, err := pool.Take()
	if err != nil {
		t.Fatal(err)
	}
	return address.String()
}

func TestAddressesGoRound(t *testing.T) {
	pool := NewPool(netip.MustParsePrefix("198.18.128.0/29"), netip.Addr{})
	if got := take(t, pool); got != "198.18.128.1" {
		t.Fatalf("the first is %s", got)
	}
	pool.Return(netip.MustParseAddr("198.18.128.1"))
	for _, want := range []string{"198.18.128.2", "198.18.128.3", "198.18.128.4", "198.18.128.5", "198.18.128.6", "198.18.128.1"} {
		if got := take(t, pool); got != want {
			t.Fatalf("got %s, not %s", got, want)
		}
	}
	if address, err := pool.Take(); err == nil {
		t.Fatalf("%s was given out twice", address)
	}
	pool.Return(netip.MustParseAddr("198.18.128.4"))
	if got := take(t, pool); got != "198.18.128.4" {
		t.Fatalf("got %s, not the only free one", got)
	}
}

func TestAPoolBeginsAfterAnAddress(t *testing.T) {
	prefix := netip.MustParsePrefix("198.18.128.0/29")
	for after, want := range map[string]string{"198.18.128.3": "198.18.128.4", "198.18.128.6": "198.18.128.1", "10.0.0.1": "198.18.128.1"} {
		if got := take(t, NewPool(prefix, netip.MustParseAddr(after))); got != want {
			t.Errorf("after %s comes %s, not %s", after, got, want)
		}
	}
}
