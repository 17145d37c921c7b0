// Package forward brings connections to the API server, which listens where pods don't reach it.
package forward

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
)

// Forwarder passes the connections of one address on to another.
type Forwarder struct {
	listener net.Listener
	target   string
}

// Start begins to pass connections on.
func Start(address, target string) (*Forwarder, error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("forward to %s: %w", target, err)
	}
	f := &Forwarder{listener: listener, target: target}
	go f.accept()
	return f, nil
}

// Close takes no more connections.
func (f *Forwarder) Close() error { return f.listener.Close() }

func (f *Forwarder) accept() {
	for {
		connection, err := f.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			go f.pass(connection)
		}
	}
}

func (f *Forwarder) pass(near net.Conn) {
	defer near.Close()
	far, err := net.Dial("tcp", f.target)
	if err != nil {
		slog.Error("a connection could not be passed on", "target", f.target, "error", err)
		return
	}
	defer far.Close()
	ended := make(chan struct{}, 2)
	passOn := func(to, from net.Conn) {
		// Either end may break a connection at any time; the other then gets to know.
		_, _ = io.Copy(to, from)
		if half, can := to.(*net.TCPConn); can {
			_ = half.CloseWrite()
		}
		ended <- struct{}{}
	}
	go passOn(far, near)
	go passOn(near, far)
	<-ended
	<-ended
}
