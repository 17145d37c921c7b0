package supervisor

import (
	"fmt"
	"net"
)

// loopback is the loopback address that belongs to the supervisor with this process id: one of 127.64.0.0/10, which has
// as many addresses as Linux has process ids. Environments side by side so never compete for a port, nor does a
// connection that takes a port of 127.0.0.1.
func loopback(pid int) net.IP {
	const addresses = 1 << 22
	n := pid % addresses
	return net.IPv4(127, byte(64+n>>16), byte(n>>8), byte(n))
}

// freePorts finds ports of the address that nothing listens on.
func freePorts(address net.IP, count int) ([]int, error) {
	ports := make([]int, 0, count)
	for range count {
		listener, err := net.Listen("tcp", net.JoinHostPort(address.String(), "0"))
		if err != nil {
			return nil, fmt.Errorf("find a free port: %w", err)
		}
		// Kept open until all are found: a closed one could be given out again.
		defer listener.Close()
		ports = append(ports, listener.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}
