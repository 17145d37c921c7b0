package sandbox

import (
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// podLink is the name of a pod's own end of its link.
const podLink = "eth0"

// Sandbox is the network of one pod.
type Sandbox struct {
	// Namespace is its network namespace.
	Namespace *os.File
	// Address is the pod's.
	Address netip.Addr

	network *Network
	link    *netlink.Veth
}

// Add makes the network of a pod.
func (n *Network) Add() (*Sandbox, error) {
	address, err := n.pool.Take()
	if err != nil {
		return nil, fmt.Errorf("give the pod an address: %w", err)
	}
	namespace, err := newNamespace()
	if err != nil {
		n.pool.Return(address)
		return nil, err
	}
	made := &Sandbox{Namespace: namespace, Address: address, network: n}
	if err := made.connect(); err != nil {
		return nil, errors.Join(fmt.Errorf("connect the pod with the address %s: %w", address, err), made.Close())
	}
	return made, nil
}

// connect links the namespace to the bridge.
func (s *Sandbox) connect() error {
	attributes := netlink.NewLinkAttrs()
	octets := s.Address.As4()
	// The address makes it unique, and fits into the 15 bytes that a name may have.
	attributes.Name = fmt.Sprintf("%s%x", linkPrefix, octets)
	attributes.MasterIndex = s.network.bridge.Attrs().Index
	link := &netlink.Veth{LinkAttrs: attributes, PeerName: podLink, PeerNamespace: netlink.NsFd(s.Namespace.Fd())}
	if err := netlink.LinkAdd(link); err != nil {
		return fmt.Errorf("add the link %s: %w", attributes.Name, err)
	}
	s.link = link
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("bring the link %s up: %w", attributes.Name, err)
	}
	inside, err := netlink.NewHandleAt(netns.NsHandle(s.Namespace.Fd()), unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("reach into the namespace: %w", err)
	}
	defer inside.Close()
	return s.configure(inside)
}

// configure sets up the links inside the namespace, and the route to the node.
func (s *Sandbox) configure(inside *netlink.Handle) error {
	loopback, err := inside.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find the loopback link: %w", err)
	}
	own, err := inside.LinkByName(podLink)
	if err != nil {
		return fmt.Errorf("find the link %s: %w", podLink, err)
	}
	if err := inside.AddrAdd(own, linkAddress(netip.PrefixFrom(s.Address, network.Bits()))); err != nil {
		return fmt.Errorf("give the link %s its address: %w", podLink, err)
	}
	for _, link := range []netlink.Link{loopback, own} {
		if err := inside.LinkSetUp(link); err != nil {
			return fmt.Errorf("bring the link %s up: %w", link.Attrs().Name, err)
		}
	}
	// Programs learn their own address from the route to some address outside.
	if err := inside.RouteAdd(&netlink.Route{LinkIndex: own.Attrs().Index, Gw: NodeAddress.AsSlice()}); err != nil {
		return fmt.Errorf("add the route to the node: %w", err)
	}
	return nil
}

// Close takes the pod's network away.
func (s *Sandbox) Close() error {
	var failed error
	if s.link != nil {
		if err := netlink.LinkDel(s.link); err != nil && !errors.Is(err, unix.ENODEV) {
			failed = fmt.Errorf("remove the link of %s: %w", s.Address, err)
		}
	}
	failed = errors.Join(failed, s.Namespace.Close())
	s.network.pool.Return(s.Address)
	return failed
}
