package proxy

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"sluice.dev/testenv/internal/apiclient"
)

// heads finds the pod behind a target. It reads from the API server's cache (resourceVersion=0), as the real proxy does.
type heads struct {
	client *apiclient.Client
}

type serviceObject struct {
	Spec struct {
		Ports []struct {
			Name string `json:"name"`
			Port int    `json:"port"`
		} `json:"ports"`
	} `json:"spec"`
}

type endpointSlices struct {
	Items []struct {
		Ports []struct {
			Name *string `json:"name"`
		} `json:"ports"`
		Endpoints []struct {
			Conditions struct {
				Ready *bool `json:"ready"`
			} `json:"conditions"`
			TargetRef *struct {
				Kind string `json:"kind"`
				Name string `json:"name"`
				UID  string `json:"uid"`
			} `json:"targetRef"`
		} `json:"endpoints"`
	} `json:"items"`
}

type podObject struct {
	Metadata struct {
		UID string `json:"uid"`
	} `json:"metadata"`
	Status struct {
		Conditions []struct {
			Type   string `json:"type"`
			Status string `json:"status"`
		} `json:"conditions"`
	} `json:"status"`
}

// head is a pod that serves as one.
type head struct {
	name, uid string
}

// ofService is the ready pod that serves the service's port.
func (h *heads) ofService(ctx context.Context, t target) (head, *failure) {
	base := "/namespaces/" + url.PathEscape(t.namespace)
	var service serviceObject
	path := "/api/v1" + base + "/services/" + url.PathEscape(t.name) + "?resourceVersion=0"
	if err := h.client.Do(ctx, http.MethodGet, path, nil, &service); err != nil {
		return head{}, failureOf(err)
	}
	port, found := service.portName(t.port)
	if !found {
		return head{}, unavailable(fmt.Sprintf("no service port %q found for service %q", t.port, t.name))
	}
	query := url.Values{"resourceVersion": {"0"}, "labelSelector": {"kubernetes.io/service-name=" + t.name}}
	var slices endpointSlices
	path = "/apis/discovery.k8s.io/v1" + base + "/endpointslices?" + query.Encode()
	if err := h.client.Do(ctx, http.MethodGet, path, nil, &slices); err != nil {
		return head{}, failureOf(err)
	}
	if pod := slices.readyPod(port); pod.uid != "" {
		return pod, nil
	}
	return head{}, unavailable(fmt.Sprintf("no endpoints available for service %q", t.segment))
}

// portName is the name of the service's port that is asked for by name or number, or not at all if there is but one.
func (s *serviceObject) portName(asked string) (string, bool) {
	for _, port := range s.Spec.Ports {
		if asked == port.Name || asked == strconv.Itoa(port.Port) || asked == "" && len(s.Spec.Ports) == 1 {
			return port.Name, true
		}
	}
	return "", false
}

// readyPod is the ready pod of a port with the least UID, so that equal states give equal answers; empty if there is none.
func (s *endpointSlices) readyPod(port string) head {
	var least head
	for _, slice := range s.Items {
		serves := false
		for _, p := range slice.Ports {
			serves = serves || p.Name == nil && port == "" || p.Name != nil && *p.Name == port
		}
		if !serves {
			continue
		}
		for _, endpoint := range slice.Endpoints {
			ready := endpoint.Conditions.Ready == nil || *endpoint.Conditions.Ready
			if ref := endpoint.TargetRef; ready && ref != nil && ref.Kind == "Pod" && (least.uid == "" || ref.UID < least.uid) {
				least = head{name: ref.Name, uid: ref.UID}
			}
		}
	}
	return least
}

// requireReadyPod returns nil if the target is a pod that is ready.
func (h *heads) requireReadyPod(ctx context.Context, t target) *failure {
	var pod podObject
	path := "/api/v1/namespaces/" + url.PathEscape(t.namespace) + "/pods/" + url.PathEscape(t.name) + "?resourceVersion=0"
	if err := h.client.Do(ctx, http.MethodGet, path, nil, &pod); err != nil {
		return failureOf(err)
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == "Ready" && condition.Status == "True" {
			return nil
		}
	}
	return unavailable(fmt.Sprintf("error trying to reach service: pod %q is not ready", t.name))
}
