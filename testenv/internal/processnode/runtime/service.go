// Package runtime is the container runtime that the kubelet uses: its containers are processes (package container) in the
// network namespaces of their pods (package sandbox).
package runtime

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"sluice.dev/testenv/internal/processnode/container"
	"sluice.dev/testenv/internal/processnode/images"
	"sluice.dev/testenv/internal/processnode/sandbox"
)

const (
	runtimeName    = "processnode"
	runtimeVersion = "1.0.0"
	// interfaceVersion is what the kubelet wants to hear, and apiVersion that of the interface's messages.
	interfaceVersion = "0.1.0"
	apiVersion       = "v1"
)

// Service is the runtime. Its state is behind one lock, which is not held while processes start and stop.
type Service struct {
	dir     string
	hidden  string
	images  images.Table
	network *sandbox.Network
	starter *container.Starter
	records records

	mutex      sync.Mutex
	sandboxes  map[string]*podSandbox
	containers map[string]*podContainer
}

var _ cri.RuntimeService = &Service{}

// Open makes a runtime with its files below dir, and takes over what an earlier one recorded there. Containers don't see the
// directory hidden. The pods' addresses go on from those that were used.
func Open(dir, hidden string, table images.Table) (*Service, error) {
	s := &Service{
		dir: dir, hidden: hidden, images: table, starter: container.NewStarter(), records: records{filepath.Join(dir, "records")},
		sandboxes: map[string]*podSandbox{}, containers: map[string]*podContainer{},
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if err := s.load(); err != nil {
		return nil, fmt.Errorf("take over the pods of an earlier node: %w", err)
	}
	var err error
	s.network, err = sandbox.Setup(filepath.Join(dir, "last-address"))
	return s, err
}

// Network is the pods' network.
func (s *Service) Network() *sandbox.Network { return s.network }

// Stop kills all containers, and takes the network away. The records stay.
func (s *Service) Stop() error {
	s.mutex.Lock()
	var running []*container.Process
	for _, known := range s.containers {
		if known.process != nil {
			running = append(running, known.process)
		}
	}
	s.mutex.Unlock()
	var stopping sync.WaitGroup
	for _, process := range running {
		stopping.Go(func() { process.Stop(0, 0) })
	}
	stopping.Wait()
	return s.network.Close()
}

func (s *Service) Version(context.Context, string) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{
		Version: interfaceVersion, RuntimeName: runtimeName, RuntimeVersion: runtimeVersion, RuntimeApiVersion: apiVersion,
	}, nil
}

func (s *Service) Status(context.Context, bool) (*runtimeapi.StatusResponse, error) {
	return &runtimeapi.StatusResponse{Status: &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{
		{Type: runtimeapi.RuntimeReady, Status: true}, {Type: runtimeapi.NetworkReady, Status: true},
	}}}, nil
}

func (s *Service) RuntimeConfig(context.Context) (*runtimeapi.RuntimeConfigResponse, error) {
	return &runtimeapi.RuntimeConfigResponse{}, nil
}

func (s *Service) UpdateRuntimeConfig(context.Context, *runtimeapi.RuntimeConfig) error { return nil }

func (s *Service) Close(context.Context) error { return nil }
