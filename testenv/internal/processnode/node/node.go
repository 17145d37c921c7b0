// Package node is a Kubernetes node that runs pods as local processes: the real kubelet, with a container runtime of ours.
package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"sluice.dev/testenv/internal/processnode/dns"
	"sluice.dev/testenv/internal/processnode/forward"
	"sluice.dev/testenv/internal/processnode/images"
	"sluice.dev/testenv/internal/processnode/runtime"
	"sluice.dev/testenv/internal/processnode/sandbox"
)

const (
	// readyWithin is how long the node may take to become ready.
	readyWithin = 2 * time.Minute
	pollEvery   = 100 * time.Millisecond
	// apiPort is where clients in pods expect the API server.
	apiPort = "443"
)

// Options say what node to run.
type Options struct {
	// Name is the Node's.
	Name string
	// Dir holds all files of the node.
	Dir string
	// Kubeconfig leads to the API server.
	Kubeconfig string
	Images     images.Table
	// CPUs, Memory and GPUs are what the Node has for pods.
	CPUs   int
	Memory resource.Quantity
	GPUs   int64
}

// Node is a process node that runs.
type Node struct {
	service *runtime.Service
	closers []func() error
}

// Start starts a node, and returns once it is ready.
func Start(ctx context.Context, options *Options) (*Node, error) {
	if err := prepare(options); err != nil {
		return nil, err
	}
	config, err := clientcmd.BuildConfigFromFlags("", options.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig %s: %w", options.Kubeconfig, err)
	}
	config.QPS, config.Burst = 200, 400
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client of the API server: %w", err)
	}
	service, err := runtime.Open(filepath.Join(options.Dir, "runtime"), options.Dir, options.Images)
	if err != nil {
		return nil, err
	}
	n := &Node{service: service, closers: []func() error{service.Stop}}
	err = n.serve(ctx, config, client)
	if err == nil {
		err = startKubelet(ctx, options, config, service)
	}
	if err == nil {
		err = awaitReady(ctx, client, options.Name)
	}
	if err != nil {
		return nil, errors.Join(err, n.Stop())
	}
	return n, nil
}

// Stop kills all that runs on the node, and takes its network away.
func (n *Node) Stop() error {
	var failed error
	for i := len(n.closers) - 1; i >= 0; i-- {
		failed = errors.Join(failed, n.closers[i]())
	}
	return failed
}

// prepare creates the directory, with a path that can be passed to the kernel.
func prepare(options *Options) error {
	if err := os.MkdirAll(options.Dir, 0o700); err != nil {
		return err
	}
	dir, err := filepath.EvalSymlinks(options.Dir)
	if err == nil {
		dir, err = filepath.Abs(dir)
	}
	if err != nil {
		return err
	}
	if strings.ContainsAny(dir, ",:\\") {
		return fmt.Errorf("the directory %q can't hold a writable layer: its name must be without commas, colons and backslashes", dir)
	}
	options.Dir = dir
	for _, reference := range options.Images.References() {
		path := options.Images[reference].Path
		if inside, err := filepath.Rel(dir, path); err == nil && filepath.IsLocal(inside) {
			return fmt.Errorf("the environment %s of the image %q is in the node's directory, which containers don't see", path, reference)
		}
	}
	return nil
}

// serve answers names, and brings pods to the API server.
func (n *Node) serve(ctx context.Context, config *rest.Config, client kubernetes.Interface) error {
	factory := informers.NewSharedInformerFactory(client, 0)
	records := dns.Records{Services: factory.Core().V1().Services().Lister(), Slices: factory.Discovery().V1().EndpointSlices().Lister()}
	factory.Start(ctx.Done())
	for kind, synced := range factory.WaitForCacheSync(ctx.Done()) {
		if !synced {
			return fmt.Errorf("list %s for the names of Services: %w", kind, context.Cause(ctx))
		}
	}
	server, err := dns.Serve(net.JoinHostPort(sandbox.NodeAddress.String(), "53"), records.Lookup)
	if err != nil {
		return err
	}
	n.closers = append(n.closers, server.Close)
	return n.forwardToAPI(ctx, config, client)
}

// forwardToAPI makes the API server reachable for pods: at the address of its Service, and, because names resolve to
// endpoints, at the address that it advertises.
func (n *Node) forwardToAPI(ctx context.Context, config *rest.Config, client kubernetes.Interface) error {
	server, err := url.Parse(config.Host)
	if err != nil {
		return fmt.Errorf("read the API server's address: %w", err)
	}
	service, err := client.CoreV1().Services(metav1.NamespaceDefault).Get(ctx, "kubernetes", metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("get the Service of the API server: %w", err)
	}
	address, err := netip.ParseAddr(service.Spec.ClusterIP)
	if err != nil {
		return fmt.Errorf("read the address of the API server's Service: %w", err)
	}
	if err := n.service.Network().AddService(address); err != nil {
		return err
	}
	for _, near := range []netip.Addr{address, sandbox.NodeAddress} {
		forwarder, err := forward.Start(net.JoinHostPort(near.String(), apiPort), server.Host)
		if err != nil {
			return err
		}
		n.closers = append(n.closers, forwarder.Close)
	}
	return nil
}

// awaitReady waits until the kubelet has made the Node, and says that it is ready.
func awaitReady(ctx context.Context, client kubernetes.Interface, name string) error {
	// A Node that is there already may be an earlier node's, which was ready too.
	started := metav1.NewTime(time.Now().Truncate(time.Second))
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	for {
		node, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err == nil {
			for _, condition := range node.Status.Conditions {
				if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue && !condition.LastHeartbeatTime.Before(&started) {
					return nil
				}
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the node %s to be ready: %w; last answer: %v", name, context.Cause(ctx), err)
		case <-time.After(pollEvery):
		}
	}
}
