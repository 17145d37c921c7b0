package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"sync"
)

// Pool allocates addresses of a prefix in a circle, also across restarts: a released address is not reused soon, so that a
// client that still knows it doesn't mistake another pod for the deleted one.
type Pool struct {
	mutex  sync.Mutex
	prefix netip.Prefix
	next   netip.Addr
	used   map[netip.Addr]bool
	// path is the file that holds the address which was given out last.
	path string
}

// OpenPool makes a pool that goes on after the address that a file holds, which need not be of the prefix, or from the first
// one if there is no such file.
func OpenPool(prefix netip.Prefix, path string) (*Pool, error) {
	pool := &Pool{prefix: prefix.Masked(), used: map[netip.Addr]bool{}, path: path}
	last := netip.Addr{}
	text, err := os.ReadFile(path)
	if err == nil {
		last, err = netip.ParseAddr(string(text))
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read the address that was given out last from %s: %w", path, err)
	}
	pool.next = pool.following(last)
	return pool, nil
}

// following is the address after this one, and the first one after the last. The first and the last of the prefix are left out.
func (p *Pool) following(address netip.Addr) netip.Addr {
	next := address.Next()
	if !p.prefix.Contains(address) || !p.prefix.Contains(next) || !p.prefix.Contains(next.Next()) {
		return p.prefix.Addr().Next()
	}
	return next
}

// Take gives out the next address that is free.
func (p *Pool) Take() (netip.Addr, error) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	first := p.next
	for {
		address := p.next
		p.next = p.following(address)
		if !p.used[address] {
			if err := p.keep(address); err != nil {
				return netip.Addr{}, fmt.Errorf("keep the address that was given out last: %w", err)
			}
			p.used[address] = true
			return address, nil
		}
		if p.next == first {
			return netip.Addr{}, fmt.Errorf("all addresses of %s are in use", p.prefix)
		}
	}
}

// keep writes which address was given out last, whole or not at all.
func (p *Pool) keep(address netip.Addr) error {
	if err := os.WriteFile(p.path+".new", []byte(address.String()), 0o600); err != nil {
		return err
	}
	return os.Rename(p.path+".new", p.path)
}

// Return takes an address back.
func (p *Pool) Return(address netip.Addr) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	delete(p.used, address)
}
