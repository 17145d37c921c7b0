package supervisor

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// stages say how fake nodes and pods live.
//
//go:embed stages.yaml
var stages []byte

// podCIDR is the range of the addresses of fake pods: one half of 198.18.0.0/15, which is reserved for tests. The other half
// contains the nodes and the API server's advertised address.
const podCIDR = "198.19.0.0/16"

// processNodeLabel is on nodes that run their pods themselves (see internal/processnode/node): kwok leaves them alone.
const processNodeLabel = "testenv.sluice.dev/process-node"

// NodeCapacity is what every fake node has, as Kubernetes quantities.
type NodeCapacity struct {
	CPU, Memory, GPU string
}

func (c NodeCapacity) resources() map[string]string {
	return map[string]string{"cpu": c.CPU, "memory": c.Memory, "nvidia.com/gpu": c.GPU, "pods": "500"}
}

// createNodes creates the fake nodes.
func (e *Environment) createNodes(ctx context.Context) error {
	for i := range e.options.Nodes {
		if err := e.client.Do(ctx, "POST", "/api/v1/nodes", fakeNode(i, e.options.NodeCapacity.resources()), nil); err != nil {
			return fmt.Errorf("create a fake node: %w", err)
		}
	}
	return nil
}

// startNodes starts kwok, and waits until it has made the fake nodes ready.
func (e *Environment) startNodes(ctx context.Context) error {
	own, err := os.Executable()
	if err != nil {
		return err
	}
	program := filepath.Join(filepath.Dir(own), "kwok")
	if _, err := os.Stat(program); err != nil {
		return fmt.Errorf("kwok must be next to testenv (make testenv installs both): %w", err)
	}
	if err := os.WriteFile(e.layout.stages(), stages, 0o600); err != nil {
		return err
	}
	kwok, err := e.runProgram("kwok", program, []string{
		"--kubeconfig=" + e.layout.adminKubeconfig(),
		"--config=" + e.layout.stages(),
		"--manage-nodes-with-label-selector=!" + processNodeLabel,
		"--cidr=" + podCIDR,
	})
	if err != nil {
		return err
	}
	return e.await(ctx, kwok, e.nodesReady)
}

// fakeNode is the node of this number, from 0.
func fakeNode(number int, capacity map[string]string) map[string]any {
	name := fmt.Sprintf("node-%d", number)
	return map[string]any{
		"apiVersion": "v1",
		"kind":       "Node",
		"metadata": map[string]any{
			"name": name,
			"labels": map[string]string{
				"kubernetes.io/hostname": name,
				"kubernetes.io/os":       "linux",
				"kubernetes.io/arch":     "amd64",
			},
		},
		"status": map[string]any{
			"capacity":    capacity,
			"allocatable": capacity,
			"addresses": []map[string]string{
				{"type": "InternalIP", "address": fmt.Sprintf("198.18.%d.%d", 1+number/250, 1+number%250)},
				{"type": "Hostname", "address": name},
			},
		},
	}
}

// nodesReady reports whether all fake nodes are ready.
func (e *Environment) nodesReady(ctx context.Context) (bool, error) {
	var nodes struct {
		Items []struct {
			Status struct {
				Conditions []condition `json:"conditions"`
			} `json:"status"`
		} `json:"items"`
	}
	if err := e.client.Do(ctx, "GET", "/api/v1/nodes", nil, &nodes); err != nil {
		return false, err
	}
	ready := 0
	for _, node := range nodes.Items {
		if slices.Contains(node.Status.Conditions, condition{Type: "Ready", Status: "True"}) {
			ready++
		}
	}
	return ready >= e.options.Nodes, fmt.Errorf("%d of %d nodes are ready", ready, e.options.Nodes)
}
