package supervisor

import (
	"errors"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"

	"sluice.dev/testenv/internal/dashboard"
	"sluice.dev/testenv/internal/proxy"
)

// front is what the supervisor serves itself: the proxy before the API server, and the steering of the dashboards.
type front struct {
	log     *os.File
	servers []*http.Server
}

// startFront starts to serve, and returns the URLs of the proxy and of the steering.
func (e *Environment) startFront() (proxyURL, steerURL string, err error) {
	file, err := os.Create(filepath.Join(e.layout.logs(), "proxy.log"))
	if err != nil {
		return "", "", err
	}
	e.front.log = file
	logger := log.New(file, "", log.LstdFlags|log.Lmicroseconds)
	boards := dashboard.New()
	handler, err := proxy.New(e.client, boards, logger)
	if err != nil {
		return "", "", err
	}
	// With TLS, because kubectl keeps its token to itself on a connection without.
	proxyAddress, err := e.front.listen(e.plane.address, handler, logger, func(server *http.Server, l net.Listener) error {
		return server.ServeTLS(l, e.plane.certs.certFile, e.plane.certs.keyFile)
	})
	if err != nil {
		return "", "", err
	}
	steering := http.NewServeMux()
	steering.Handle("/", proxy.Steer(boards))
	steering.HandleFunc("POST /etcd/backup", answer(e.backUpEtcd))
	steering.HandleFunc("POST /etcd/restore", answer(e.restoreEtcd))
	steerAddress, err := e.front.listen(e.plane.address, steering, logger, (*http.Server).Serve)
	return "https://" + proxyAddress, "http://" + steerAddress, err
}

// listen serves a handler on a free port and returns where.
func (f *front) listen(
	address net.IP, handler http.Handler, logger *log.Logger, serve func(*http.Server, net.Listener) error,
) (string, error) {
	listener, err := net.Listen("tcp", net.JoinHostPort(address.String(), "0"))
	if err != nil {
		return "", err
	}
	server := &http.Server{Handler: handler, ErrorLog: logger}
	f.servers = append(f.servers, server)
	go func() {
		if err := serve(server, listener); !errors.Is(err, http.ErrServerClosed) {
			logger.Printf("stopped to serve %s: %v", listener.Addr(), err)
		}
	}()
	return listener.Addr().String(), nil
}

// stop cuts all connections.
func (f *front) stop() error {
	var failed error
	for _, server := range f.servers {
		failed = errors.Join(failed, server.Close())
	}
	if f.log != nil {
		failed = errors.Join(failed, f.log.Close())
	}
	return failed
}
