// Package proxy stands in front of the API server. It hands everything on as it came, but answers the proxy subresource
// of services and pods itself, as Ray heads would: the pods are fake and serve nothing.
package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"time"

	"sluice.dev/testenv/internal/apiclient"
	"sluice.dev/testenv/internal/dashboard"
)

const (
	applicationsPath = "/api/serve/applications/"
	jobsPath         = "/api/jobs/"
	healthPath       = "/-/healthz"
	// largestBody bounds a Serve configuration, in bytes.
	largestBody = 16 << 20
)

// Proxy is the handler in front of the API server.
type Proxy struct {
	onward *httputil.ReverseProxy
	access access
	heads  heads
	boards *dashboard.Boards
}

// New makes a proxy to the client's API server, which looks objects up with the client's own credentials.
func New(client *apiclient.Client, boards *dashboard.Boards, logger *log.Logger) (*Proxy, error) {
	server, err := url.Parse(client.Server)
	if err != nil {
		return nil, fmt.Errorf("the API server's URL: %w", err)
	}
	return &Proxy{
		onward: &httputil.ReverseProxy{
			Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(server) },
			Transport: client.Transport,
			// Watch events must not wait for a buffer to fill.
			FlushInterval: -1,
			ErrorLog:      logger,
		},
		access: access{client: client, allowed: map[question]time.Time{}},
		heads:  heads{client},
		boards: boards,
	}, nil
}

func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	t, ours := parsePath(r.URL.Path)
	if !ours {
		p.onward.ServeHTTP(w, r)
		return
	}
	if failed := p.access.check(r.Context(), r.Header.Get("Authorization"), r.Method, t); failed != nil {
		failed.write(w)
		return
	}
	if t.resource == "pods" {
		p.servePod(w, r, t)
		return
	}
	p.serveDashboard(w, r, t)
}

// servePod answers as the Serve proxy of a Ray pod.
func (p *Proxy) servePod(w http.ResponseWriter, r *http.Request, t target) {
	if failed := p.heads.requireReadyPod(r.Context(), t); failed != nil {
		failed.write(w)
		return
	}
	if t.path != healthPath || r.Method != http.MethodGet {
		http.NotFound(w, r)
		return
	}
	// The caller may have disconnected.
	_, _ = io.WriteString(w, "success")
}

// serveDashboard answers as the dashboard of a Ray head.
func (p *Proxy) serveDashboard(w http.ResponseWriter, r *http.Request, t target) {
	service := dashboard.Service{Namespace: t.namespace, Name: t.name}
	if !wait(r.Context(), p.boards.SteeringOf(service).Hang()) {
		return
	}
	head, failed := p.heads.ofService(r.Context(), t)
	if failed != nil {
		failed.write(w)
		return
	}
	if failed := p.heads.requireToken(r.Context(), t.namespace, head.name, r.Header); failed != nil {
		failed.write(w)
		return
	}
	if id, found := strings.CutPrefix(t.path, jobsPath); found && id != "" && r.Method == http.MethodGet {
		p.serveJob(w, service, head.uid, id)
		return
	}
	if t.path != applicationsPath {
		http.NotFound(w, r)
		return
	}
	switch r.Method {
	case http.MethodGet:
		details, err := p.boards.Get(time.Now(), service, head.uid)
		if err != nil {
			http.Error(w, err.Error(), codeOf(err))
			return
		}
		writeJSON(w, http.StatusOK, details)
	case http.MethodPut:
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, largestBody))
		if err == nil {
			err = p.boards.Put(time.Now(), service, head.uid, body)
		}
		if err != nil {
			http.Error(w, err.Error(), codeOf(err))
		}
	default:
		http.Error(w, "only GET and PUT", http.StatusMethodNotAllowed)
	}
}

// serveJob tells how a job gets on.
func (p *Proxy) serveJob(w http.ResponseWriter, service dashboard.Service, head, id string) {
	job, err := p.boards.Job(time.Now(), service, head, id)
	if err != nil {
		http.Error(w, err.Error(), codeOf(err))
		return
	}
	writeJSON(w, http.StatusOK, job)
}

// codeOf is the HTTP status of a dashboard's error: what a test asked for, otherwise the caller's request is wrong.
func codeOf(err error) int {
	var steered *dashboard.SteeredError
	if errors.As(err, &steered) {
		return steered.Code
	}
	return http.StatusBadRequest
}

// wait waits, and reports false if the caller left meanwhile.
func wait(ctx context.Context, duration time.Duration) bool {
	if duration == 0 {
		return true
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(duration):
		return true
	}
}
