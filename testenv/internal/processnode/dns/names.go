package dns

import (
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
)

// Domain is the cluster's.
const Domain = "cluster.local"

// serviceName is what a name asks for: a Service, or one host behind it.
type serviceName struct {
	host, service, namespace string
}

// parseName reads NAME.NAMESPACE.svc and HOST.NAME.NAMESPACE.svc, with the cluster's domain behind it.
func parseName(name string) (serviceName, bool) {
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	name, ours := strings.CutSuffix(name, ".svc."+Domain)
	if !ours {
		// Without a search list (dig, or a name that ends in a dot).
		if name, ours = strings.CutSuffix(name, ".svc"); !ours {
			return serviceName{}, false
		}
	}
	switch parts := strings.Split(name, "."); len(parts) {
	case 2:
		return serviceName{service: parts[0], namespace: parts[1]}, true
	case 3:
		return serviceName{host: parts[0], service: parts[1], namespace: parts[2]}, true
	default:
		return serviceName{}, false
	}
}

// Records know the addresses behind names.
type Records struct {
	Services corelisters.ServiceLister
	Slices   discoverylisters.EndpointSliceLister
}

// Lookup returns the IPv4 addresses of the ready endpoints behind a name, and whether there is such a name.
func (r Records) Lookup(name string) (addresses []string, known bool, err error) {
	asked, ours := parseName(name)
	if !ours {
		return nil, false, nil
	}
	if _, err := r.Services.Services(asked.namespace).Get(asked.service); err != nil {
		// A cache has no other error than that there is none.
		return nil, false, nil
	}
	selector := labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: asked.service})
	slices, err := r.Slices.EndpointSlices(asked.namespace).List(selector)
	if err != nil {
		return nil, false, err
	}
	// A host is known only as long as it is an endpoint.
	known = asked.host == ""
	seen := map[string]bool{}
	for _, slice := range slices {
		if slice.AddressType != discoveryv1.AddressTypeIPv4 {
			continue
		}
		for _, endpoint := range slice.Endpoints {
			if asked.host != "" && (endpoint.Hostname == nil || *endpoint.Hostname != asked.host) {
				continue
			}
			known = true
			// Ready includes the wish to be known before that (publishNotReadyAddresses).
			if endpoint.Conditions.Ready != nil && !*endpoint.Conditions.Ready {
				continue
			}
			for _, address := range endpoint.Addresses {
				if !seen[address] {
					seen[address] = true
					addresses = append(addresses, address)
				}
			}
		}
	}
	return addresses, known, nil
}
