package sandbox

import (
	"fmt"
	"net/netip"
	"sync"
)

// Pool gives out addresses of a prefix. It goes round: an address that was given back is not given out again soon, so that
// whoever still knows it doesn't take another pod for the one that is gone.
type Pool struct {
	mutex  sync.Mutex
	prefix netip.Prefix
	next   netip.Addr
	used   map[netip.Addr]bool
}

// NewPool makes a pool that begins after an address, which need not be of the prefix.
func NewPool(prefix netip.Prefix, after netip.Addr) *Pool {
	pool := &Pool{prefix: prefix.Masked(), used: map[netip.Addr]bool{}}
	pool.next = pool.following(after)
	return pool
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
			p.used[address] = true
			return address, nil
		}
		if p.next == first {
			return netip.Addr{}, fmt.Errorf("all addresses of %s are in use", p.prefix)
		}
	}
}

// Return takes an address back.
func (p *Pool) Return(address netip.Addr) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	delete(p.used, address)
}
