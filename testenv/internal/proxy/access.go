package proxy

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"sluice.dev/testenv/internal/apiclient"
)

// allowedFor is how long a permission is remembered; refusals are not.
const allowedFor = 10 * time.Second

// verbs are those that access rules know the methods by.
var verbs = map[string]string{
	http.MethodGet: "get", http.MethodHead: "get", http.MethodPut: "update", http.MethodPost: "create",
	http.MethodPatch: "patch", http.MethodDelete: "delete",
}

// access asks the API server what callers may do.
type access struct {
	client  *apiclient.Client
	mutex   sync.Mutex
	allowed map[question]time.Time
}

type question struct {
	authorization, verb, namespace, resource, name string
}

// check returns nil if the caller may send this request to the target, otherwise what to answer.
func (a *access) check(ctx context.Context, authorization, method string, t target) *failure {
	q := question{authorization, verbs[method], t.namespace, t.resource, t.segment}
	now := time.Now()
	a.mutex.Lock()
	known := now.Before(a.allowed[q])
	a.mutex.Unlock()
	if known {
		return nil
	}
	review := map[string]any{
		"apiVersion": "authorization.k8s.io/v1",
		"kind":       "SelfSubjectAccessReview",
		"spec": map[string]any{"resourceAttributes": map[string]string{
			"namespace": q.namespace, "verb": q.verb, "version": "v1", "resource": q.resource, "subresource": "proxy",
			"name": q.name,
		}},
	}
	var answer struct {
		Status struct {
			Allowed bool   `json:"allowed"`
			Reason  string `json:"reason"`
		} `json:"status"`
	}
	err := a.client.As(authorization).Do(
		ctx, http.MethodPost, "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review, &answer)
	if err != nil {
		return failureOf(err)
	}
	if !answer.Status.Allowed {
		return &failure{http.StatusForbidden, "Forbidden", fmt.Sprintf(
			"%s %q is forbidden: cannot %s resource \"%s/proxy\" in API group \"\" in the namespace %q %s",
			q.resource, q.name, q.verb, q.resource, q.namespace, answer.Status.Reason)}
	}
	a.mutex.Lock()
	a.allowed[q] = now.Add(allowedFor)
	a.mutex.Unlock()
	return nil
}
