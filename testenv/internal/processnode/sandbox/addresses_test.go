package sandbox

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
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

func open(t *testing.T, path string) *Pool {
	t.Helper()
	pool, err := OpenPool(netip.MustParsePrefix("198.18.128.0/29"), path)
	if err != nil {
		t.Fatal(err)
	}
	return pool
}

func TestAddressesGoRound(t *testing.T) {
	pool := open(t, filepath.Join(t.TempDir(), "last"))
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

func TestAPoolGoesOnAfterTheLastAddressOfTheOneBefore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "last")
	before := open(t, path)
	take(t, before)
	// It is given back at once: that it was given out counts.
	before.Return(netip.MustParseAddr(take(t, before)))
	if got := take(t, open(t, path)); got != "198.18.128.3" {
		t.Errorf("after 198.18.128.2 comes %s", got)
	}
}

func TestAPoolBeginsAfterAnAddress(t *testing.T) {
	for after, want := range map[string]string{"198.18.128.3": "198.18.128.4", "198.18.128.6": "198.18.128.1", "10.0.0.1": "198.18.128.1"} {
		if got := take(t, open(t, holding(t, after))); got != want {
			t.Errorf("after %s comes %s, not %s", after, got, want)
		}
	}
}

func TestAFileThatHoldsNoAddressIsNamed(t *testing.T) {
	path := holding(t, "198.18.128")
	if _, err := OpenPool(netip.MustParsePrefix("198.18.128.0/29"), path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("it says %v", err)
	}
}

// holding is a file with a text.
func holding(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "last")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
