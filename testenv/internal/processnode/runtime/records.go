package runtime

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// killedCode is the exit code of a container that died with the node.
const killedCode = 137

// sandboxRecord is what is known of a sandbox, also after the node was restarted.
type sandboxRecord struct {
	ID      string
	Config  json.RawMessage
	Created time.Time
	Address netip.Addr
}

// containerRecord is what is known of a container, also after the node was restarted.
type containerRecord struct {
	ID, Sandbox, Image         string
	Config                     json.RawMessage
	Created, Started, Finished time.Time
	Code                       int
	Reason, Message            string
}

// records stores what was reported to the kubelet in files: without them, a restarted node would run finished containers again.
type records struct{ dir string }

func (r records) path(kind, id string) string { return filepath.Join(r.dir, kind, id+".json") }

func (r records) write(kind, id string, record any) error {
	text, err := json.Marshal(record)
	if err != nil {
		return fmt.Errorf("encode the record of the %s %s: %w", kind, id, err)
	}
	path := r.path(kind, id)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	// A rename leaves no half of a record behind.
	if err := os.WriteFile(path+".new", text, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

func (r records) remove(kind, id string) error { return os.RemoveAll(r.path(kind, id)) }

// read decodes all records of a kind.
func read[T any](r records, kind string) ([]*T, error) {
	paths, err := filepath.Glob(r.path(kind, "*"))
	if err != nil {
		return nil, err
	}
	var found []*T
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		record := new(T)
		if err := json.Unmarshal(text, record); err != nil {
			return nil, fmt.Errorf("decode the record %s: %w", path, err)
		}
		found = append(found, record)
	}
	return found, nil
}

// load takes over what an earlier node left: its pods have no network any more, and its containers were killed.
func (s *Service) load() error {
	sandboxes, err := read[sandboxRecord](s.records, "sandbox")
	if err != nil {
		return err
	}
	for _, record := range sandboxes {
		config := &runtimeapi.PodSandboxConfig{}
		if err := protojson.Unmarshal(record.Config, config); err != nil {
			return fmt.Errorf("decode the sandbox %s: %w", record.ID, err)
		}
		s.sandboxes[record.ID] = &podSandbox{record: *record, config: config}
	}
	containers, err := read[containerRecord](s.records, "container")
	if err != nil {
		return err
	}
	for _, record := range containers {
		config := &runtimeapi.ContainerConfig{}
		if err := protojson.Unmarshal(record.Config, config); err != nil {
			return fmt.Errorf("decode the container %s: %w", record.ID, err)
		}
		if record.Finished.IsZero() {
			record.Finished, record.Code = time.Now(), killedCode
			record.Reason, record.Message = "NodeStopped", "the process node ended, and its containers with it"
		}
		s.containers[record.ID] = &podContainer{record: *record, config: config}
		if err := s.records.write("container", record.ID, record); err != nil {
			return err
		}
	}
	return nil
}
