package runtime

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"sluice.dev/testenv/internal/processnode/sandbox"
)

// podSandbox is a pod, as far as the runtime knows it.
type podSandbox struct {
	record sandboxRecord
	config *runtimeapi.PodSandboxConfig
	// network is nil once the sandbox was stopped.
	network *sandbox.Sandbox
}

func newID() string {
	id := make([]byte, 16)
	// It never fails.
	_, _ = rand.Read(id)
	return hex.EncodeToString(id)
}

func notFound(kind, id string) error {
	return status.Errorf(codes.NotFound, "no %s is called %s", kind, id)
}

func (s *Service) sandboxDir(id string) string { return filepath.Join(s.dir, "sandboxes", id) }

func (s *Service) RunPodSandbox(_ context.Context, config *runtimeapi.PodSandboxConfig, handler string) (string, error) {
	if handler != "" {
		return "", unsupported(fmt.Sprintf("the handler %q of spec.runtimeClassName", handler))
	}
	encoded, err := protojson.Marshal(config)
	if err != nil {
		return "", fmt.Errorf("encode the sandbox: %w", err)
	}
	network, err := s.network.Add()
	if err != nil {
		return "", err
	}
	made := &podSandbox{
		record:  sandboxRecord{ID: newID(), Config: encoded, Created: time.Now(), Address: network.Address},
		config:  config,
		network: network,
	}
	if err := s.writeSandbox(made); err != nil {
		return "", errors.Join(fmt.Errorf("write the files of a sandbox: %w", err), network.Close())
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.sandboxes[made.record.ID] = made
	return made.record.ID, nil
}

func (s *Service) writeSandbox(made *podSandbox) error {
	dir := s.sandboxDir(made.record.ID)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(filepath.Join(dir, "resolv.conf"), []byte(resolvConf(made.config.GetDnsConfig())), 0o644),
		os.WriteFile(filepath.Join(dir, "hostname"), []byte(made.config.GetHostname()+"\n"), 0o644),
		s.records.write("sandbox", made.record.ID, made.record),
	)
}

func resolvConf(config *runtimeapi.DNSConfig) string {
	var text strings.Builder
	if searches := config.GetSearches(); len(searches) > 0 {
		fmt.Fprintf(&text, "search %s\n", strings.Join(searches, " "))
	}
	for _, server := range config.GetServers() {
		fmt.Fprintf(&text, "nameserver %s\n", server)
	}
	if options := config.GetOptions(); len(options) > 0 {
		fmt.Fprintf(&text, "options %s\n", strings.Join(options, " "))
	}
	return text.String()
}

// StopPodSandbox ends all that is in a pod. It may be called again, and for a pod that is gone.
func (s *Service) StopPodSandbox(ctx context.Context, id string) error {
	s.mutex.Lock()
	known, found := s.sandboxes[id]
	if !found {
		s.mutex.Unlock()
		return nil
	}
	network := known.network
	known.network = nil
	inside := s.containersOf(id)
	s.mutex.Unlock()
	var failed error
	for _, member := range inside {
		failed = errors.Join(failed, s.StopContainer(ctx, member, 0))
	}
	if network != nil {
		failed = errors.Join(failed, network.Close())
	}
	return failed
}

// containersOf are the containers of a sandbox. The lock is held.
func (s *Service) containersOf(sandboxID string) []string {
	var inside []string
	for id, known := range s.containers {
		if known.record.Sandbox == sandboxID {
			inside = append(inside, id)
		}
	}
	return inside
}

func (s *Service) RemovePodSandbox(ctx context.Context, id string) error {
	if err := s.StopPodSandbox(ctx, id); err != nil {
		return err
	}
	s.mutex.Lock()
	inside := s.containersOf(id)
	s.mutex.Unlock()
	for _, member := range inside {
		if err := s.RemoveContainer(ctx, member); err != nil {
			return err
		}
	}
	s.mutex.Lock()
	delete(s.sandboxes, id)
	s.mutex.Unlock()
	return errors.Join(s.records.remove("sandbox", id), os.RemoveAll(s.sandboxDir(id)))
}

func (p *podSandbox) state() runtimeapi.PodSandboxState {
	if p.network == nil {
		return runtimeapi.PodSandboxState_SANDBOX_NOTREADY
	}
	return runtimeapi.PodSandboxState_SANDBOX_READY
}

func (s *Service) PodSandboxStatus(_ context.Context, id string, _ bool) (*runtimeapi.PodSandboxStatusResponse, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	known, found := s.sandboxes[id]
	if !found {
		return nil, notFound("sandbox", id)
	}
	return &runtimeapi.PodSandboxStatusResponse{Status: &runtimeapi.PodSandboxStatus{
		Id: id, Metadata: known.config.Metadata, State: known.state(), CreatedAt: known.record.Created.UnixNano(),
		Network: &runtimeapi.PodSandboxNetworkStatus{Ip: known.record.Address.String()},
		Linux:   &runtimeapi.LinuxPodSandboxStatus{Namespaces: &runtimeapi.Namespace{Options: known.config.GetLinux().GetSecurityContext().GetNamespaceOptions()}},
		Labels:  known.config.Labels, Annotations: known.config.Annotations,
	}}, nil
}

func (s *Service) ListPodSandbox(_ context.Context, filter *runtimeapi.PodSandboxFilter) ([]*runtimeapi.PodSandbox, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	var found []*runtimeapi.PodSandbox
	for id, known := range s.sandboxes {
		if filter.GetId() != "" && filter.GetId() != id || filter.GetState() != nil && filter.GetState().GetState() != known.state() ||
			!selected(filter.GetLabelSelector(), known.config.Labels) {
			continue
		}
		found = append(found, &runtimeapi.PodSandbox{
			Id: id, Metadata: known.config.Metadata, State: known.state(), CreatedAt: known.record.Created.UnixNano(),
			Labels: known.config.Labels, Annotations: known.config.Annotations,
		})
	}
	return found, nil
}

// selected reports whether labels have all that a selector asks for.
func selected(selector, labels map[string]string) bool {
	for key, value := range selector {
		if labels[key] != value {
			return false
		}
	}
	return true
}
