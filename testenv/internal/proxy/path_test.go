package proxy

import "testing"

func TestPathsOfTheProxySubresourceAreRead(t *testing.T) {
	for path, want := range map[string]target{
		"/api/v1/namespaces/ns/services/svc:dashboard/proxy/api/serve/applications/": {
			"ns", "services", "svc:dashboard", "svc", "dashboard", "/api/serve/applications/"},
		"/api/v1/namespaces/ns/services/http:svc:8265/proxy/api/serve/applications/": {
			"ns", "services", "http:svc:8265", "svc", "8265", "/api/serve/applications/"},
		"/api/v1/namespaces/ns/services/http:svc:/proxy/": {"ns", "services", "http:svc:", "svc", "", "/"},
		"/api/v1/namespaces/ns/services/svc/proxy":        {"ns", "services", "svc", "svc", "", "/"},
		"/api/v1/namespaces/ns/pods/head:8000/proxy/-/healthz": {
			"ns", "pods", "head:8000", "head", "8000", "/-/healthz"},
		"/api/v1/namespaces/proxy/pods/proxy/proxy/proxy": {"proxy", "pods", "proxy", "proxy", "", "/proxy"},
	} {
		if got, ok := parsePath(path); !ok || got != want {
			t.Errorf("%s: got %+v, %v", path, got, ok)
		}
	}
}

func TestOtherPathsAreLeftToTheAPIServer(t *testing.T) {
	for _, path := range []string{
		"/", "/api/v1/namespaces", "/api/v1/namespaces/ns/services/svc", "/api/v1/namespaces/ns/pods/head/log",
		"/api/v1/namespaces/ns/pods/head/status/proxy", "/api/v1/nodes/node-0/proxy/metrics",
		"/api/v1/namespaces/ns/configmaps/x/proxy", "/apis/ray.io/v1/namespaces/ns/services/x/proxy/",
		"/api/v1/namespaces/ns/services/a:b:c:d/proxy/", "/api/v1/namespaces/ns/services/ftp:svc:1/proxy/",
		"/api/v1/namespaces/ns/services/:8265/proxy/", "/api/v1/namespaces//services/svc/proxy/",
	} {
		if got, ok := parsePath(path); ok {
			t.Errorf("%s was taken for %+v", path, got)
		}
	}
}
