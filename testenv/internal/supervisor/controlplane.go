package supervisor

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// advertised is the address that the API server gives in the endpoints of the service "kubernetes". Nothing but a process
// node listens there: EndpointSlices refuse loopback addresses, and a network namespace without a route has no other to offer.
const advertised = "198.18.0.1"

// The addresses of services, and the first of them, which is the service "kubernetes".
const (
	serviceCIDR = "10.96.0.0/16"
	apiService  = "10.96.0.1"
)

// controllers are those of kube-controller-manager that the environment runs.
var controllers = []string{
	"deployment-controller",
	"endpoints-controller",
	"endpointslice-controller",
	"garbage-collector-controller",
	"job-controller",
	"namespace-controller",
	"pod-garbage-collector-controller",
	"replicaset-controller",
	"resourcequota-controller",
	"root-ca-certificate-publisher-controller",
	"serviceaccount-controller",
}

// typeCheckController checks the types of expressions in admission policies, and reports its findings in their statuses. The API server
// compiles a policy again when its status has changed.
const typeCheckController = "validatingadmissionpolicy-status-controller"

// controlPlane holds what the command lines of the components are made of.
type controlPlane struct {
	layout  layout
	certs   *certificates
	address net.IP
	// assets is a directory with etcd and kube-… programs to prefer over the built-in ones; may be empty.
	assets string
	// typeCheckPolicies runs the typeCheckController.
	typeCheckPolicies bool
	// controllers tells if kube-controller-manager runs.
	controllers bool

	etcdPort, etcdPeerPort, apiserverPort, controllerManagerPort, schedulerPort int
}

func (c *controlPlane) url(scheme string, port int) string {
	return scheme + "://" + net.JoinHostPort(c.address.String(), strconv.Itoa(port))
}

func (c *controlPlane) apiserverURL() string { return c.url("https", c.apiserverPort) }

// program is the program and the leading arguments that run a component: a binary of the assets if it is there,
// otherwise this very program.
func (c *controlPlane) program(component string) (string, []string, error) {
	if c.assets != "" {
		path := filepath.Join(c.assets, component)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return path, nil, nil
		}
	}
	own, err := os.Executable()
	if err != nil {
		return "", nil, fmt.Errorf("find the program of %s: %w", component, err)
	}
	return own, []string{"component", component}, nil
}

func (c *controlPlane) etcdArgs() []string {
	client, peer := c.url("http", c.etcdPort), c.url("http", c.etcdPeerPort)
	return []string{
		"--data-dir=" + c.layout.etcd(),
		"--listen-client-urls=" + client,
		"--advertise-client-urls=" + client,
		"--listen-peer-urls=" + peer,
		"--initial-advertise-peer-urls=" + peer,
		"--initial-cluster=default=" + peer,
		"--unsafe-no-fsync=true",
	}
}

func (c *controlPlane) apiserverArgs() []string {
	// It taints new nodes, and the controller that would take the taint away wants kubelets.
	disabled := "TaintNodesByCondition"
	if !c.controllers {
		// It rejects pods without the service account that a controller creates in every namespace.
		disabled += ",ServiceAccount"
	}
	return []string{
		"--etcd-servers=" + c.url("http", c.etcdPort),
		"--bind-address=" + c.address.String(),
		"--advertise-address=" + advertised,
		"--secure-port=" + strconv.Itoa(c.apiserverPort),
		"--cert-dir=" + c.layout.certs(),
		"--tls-cert-file=" + c.certs.certFile,
		"--tls-private-key-file=" + c.certs.keyFile,
		"--token-auth-file=" + c.layout.tokens(),
		"--authorization-mode=RBAC",
		"--disable-admission-plugins=" + disabled,
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-signing-key-file=" + c.certs.serviceAccountKeyFile,
		"--service-account-key-file=" + c.certs.serviceAccountKeyFile,
		"--service-cluster-ip-range=" + serviceCIDR,
		"--allow-privileged=true",
		// By default a node's hostname goes first, which nothing resolves.
		"--kubelet-preferred-address-types=InternalIP",
		// Tests at scale must measure Sluice, not the API server's queues.
		"--max-requests-inflight=4000",
		"--max-mutating-requests-inflight=2000",
		// Nothing is worth waiting for when the environment stops.
		"--shutdown-delay-duration=0s",
	}
}

func (c *controlPlane) controllerManagerArgs() []string {
	enabled := controllers
	if c.typeCheckPolicies {
		enabled = append(slices.Clone(controllers), typeCheckController)
	}
	return []string{
		"--kubeconfig=" + c.layout.adminKubeconfig(),
		"--bind-address=" + c.address.String(),
		"--secure-port=" + strconv.Itoa(c.controllerManagerPort),
		"--tls-cert-file=" + c.certs.certFile,
		"--tls-private-key-file=" + c.certs.keyFile,
		"--leader-elect=false",
		// As kubeadm does it: policies tell the garbage collector from a person by its name.
		"--use-service-account-credentials=true",
		"--controllers=" + strings.Join(enabled, ","),
		"--root-ca-file=" + c.certs.caFile,
		"--service-account-private-key-file=" + c.certs.serviceAccountKeyFile,
		"--kube-api-qps=2000",
		"--kube-api-burst=4000",
		"--concurrent-gc-syncs=20",
		"--concurrent-service-endpoint-syncs=20",
		"--endpointslice-updates-batch-period=0s",
	}
}

func (c *controlPlane) schedulerArgs() []string {
	return []string{
		"--kubeconfig=" + c.layout.adminKubeconfig(),
		"--bind-address=" + c.address.String(),
		"--secure-port=" + strconv.Itoa(c.schedulerPort),
		"--tls-cert-file=" + c.certs.certFile,
		"--tls-private-key-file=" + c.certs.keyFile,
		"--leader-elect=false",
		"--kube-api-qps=2000",
		"--kube-api-burst=4000",
	}
}
