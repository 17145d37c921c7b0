// Package sandbox gives each pod a network namespace and an address of its own, on a bridge in the namespace that the node
// runs in.
package sandbox

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	bridgeName = "processnode"
	// linkPrefix begins the names of the bridge's ends of the pods' links.
	linkPrefix = "pn-"
	// claimName is a socket's, of the kind that belongs to a network namespace and goes with the process that holds it.
	claimName = "@processnode"
)

var (
	// NodeAddress is the bridge's: the node's own, which the API server advertises as its too (testenv's fake nodes have
	// others of the first half of this network).
	NodeAddress = netip.MustParseAddr("198.18.0.1")
	network     = netip.MustParsePrefix("198.18.0.0/16")
	pods        = netip.MustParsePrefix("198.18.128.0/17")
	// LinkAddress is the bridge's. Without it a bridge has the lowest address of its ports, which changes with the pods:
	// packets to the node are lost until its neighbors resolve the new one.
	LinkAddress = net.HardwareAddr{0x02, 0x00, 198, 18, 0, 1}
)

// Network is the bridge, with the pods' links.
type Network struct {
	bridge *netlink.Bridge
	pool   *Pool
	// claim tells other nodes that this namespace has one.
	claim net.Listener
}

// Setup makes the bridge, after it has removed what a node that was killed left. The pods' addresses go on after the one that a
// file holds, and it holds from now on which was given out last.
func Setup(lastAddress string) (*Network, error) {
	pool, err := OpenPool(pods, lastAddress)
	if err != nil {
		return nil, err
	}
	if err := checkIsolated(); err != nil {
		return nil, err
	}
	claim, err := net.Listen("unix", claimName)
	if err != nil {
		return nil, fmt.Errorf("another process node runs in this network namespace: %w", err)
	}
	if err := removeLinks(); err != nil {
		return nil, errors.Join(fmt.Errorf("remove the network that an earlier node left: %w", err), claim.Close())
	}
	attributes := netlink.NewLinkAttrs()
	attributes.Name, attributes.HardwareAddr = bridgeName, LinkAddress
	bridge := &netlink.Bridge{LinkAttrs: attributes}
	if err := netlink.LinkAdd(bridge); err != nil {
		return nil, errors.Join(fmt.Errorf("make the bridge %s: %w", bridgeName, err), claim.Close())
	}
	made := &Network{bridge: bridge, pool: pool, claim: claim}
	if err := made.bringUp(); err != nil {
		return nil, errors.Join(err, made.Close())
	}
	return made, nil
}

func (n *Network) bringUp() error {
	if err := n.addAddress(netip.PrefixFrom(NodeAddress, network.Bits())); err != nil {
		return err
	}
	if err := netlink.LinkSetUp(n.bridge); err != nil {
		return fmt.Errorf("bring the bridge %s up: %w", bridgeName, err)
	}
	// There is no way to forward to: what a pod sends elsewhere is so answered with "unreachable", not with silence.
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644); err != nil {
		return fmt.Errorf("have the namespace answer that addresses are unreachable: %w", err)
	}
	return nil
}

// AddService gives the bridge an address of a Service, at which the node itself listens.
func (n *Network) AddService(address netip.Addr) error {
	return n.addAddress(netip.PrefixFrom(address, address.BitLen()))
}

func (n *Network) addAddress(address netip.Prefix) error {
	if err := netlink.AddrAdd(n.bridge, linkAddress(address)); err != nil {
		return fmt.Errorf("give the bridge %s the address %s: %w", bridgeName, address, err)
	}
	return nil
}

// Close removes the bridge and the links.
func (n *Network) Close() error { return errors.Join(removeLinks(), n.claim.Close()) }

func linkAddress(address netip.Prefix) *netlink.Addr {
	return &netlink.Addr{IPNet: &net.IPNet{
		IP: address.Addr().AsSlice(), Mask: net.CIDRMask(address.Bits(), address.Addr().BitLen()),
	}}
}

// checkIsolated refuses a namespace with a way out: pods must reach nothing but each other and the control plane.
func checkIsolated() error {
	routes, err := netlink.RouteList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("list the routes: %w", err)
	}
	for _, route := range routes {
		everywhere := route.Dst == nil
		if route.Dst != nil {
			ones, _ := route.Dst.Mask.Size()
			everywhere = ones == 0
		}
		if everywhere && route.Type == unix.RTN_UNICAST {
			return errors.New("there is a default route: pods must not get out. Run it, and the control plane with it, in a network " +
				"namespace of their own: unshare --net sh -c 'ip link set lo up && exec ...'")
		}
	}
	return nil
}

func removeLinks() error {
	links, err := netlink.LinkList()
	if err != nil {
		return fmt.Errorf("list the network links: %w", err)
	}
	var failed error
	for _, link := range links {
		if name := link.Attrs().Name; name != bridgeName && !strings.HasPrefix(name, linkPrefix) {
			continue
		}
		if err := netlink.LinkDel(link); err != nil && !errors.As(err, &netlink.LinkNotFoundError{}) && !errors.Is(err, unix.ENODEV) {
			failed = errors.Join(failed, fmt.Errorf("remove the network link %s: %w", link.Attrs().Name, err))
		}
	}
	return failed
}

// newNamespace makes a network namespace, which is there for as long as the file is open or a process is in it.
func newNamespace() (*os.File, error) {
	type result struct {
		namespace *os.File
		err       error
	}
	made := make(chan result)
	go func() {
		// Never unlocked: the thread is in the new namespace, and ends with this function.
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			made <- result{err: fmt.Errorf("make a network namespace: %w", err)}
			return
		}
		namespace, err := os.Open("/proc/thread-self/ns/net")
		made <- result{namespace, err}
	}()
	got := <-made
	return got.namespace, got.err
}
