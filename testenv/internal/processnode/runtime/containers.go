package runtime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protojson"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	remote "k8s.io/cri-client/pkg"
	"k8s.io/utils/exec"

	"sluice.dev/testenv/internal/processnode/container"
	"sluice.dev/testenv/internal/processnode/sandbox"
)

// podContainer is a container, as far as the runtime knows it.
type podContainer struct {
	record containerRecord
	config *runtimeapi.ContainerConfig
	spec   *container.Spec
	// log and process are there from the start of the container on.
	log     *container.Log
	process *container.Process
}

func (s *Service) containerDir(id string) string { return filepath.Join(s.dir, "containers", id) }

func (s *Service) CreateContainer(
	_ context.Context, sandboxID string, config *runtimeapi.ContainerConfig, pod *runtimeapi.PodSandboxConfig,
) (string, error) {
	reference, environment, err := s.images.Find(config.GetImage().GetImage())
	if err != nil {
		return "", err
	}
	id := newID()
	spec, err := s.specOf(id, sandboxID, config, pod, environment)
	if err != nil {
		return "", err
	}
	encoded, err := protojson.Marshal(config)
	if err != nil {
		return "", fmt.Errorf("encode the container: %w", err)
	}
	made := &podContainer{
		record: containerRecord{ID: id, Sandbox: sandboxID, Image: reference, Config: encoded, Created: time.Now()},
		config: config, spec: spec,
	}
	if err := s.records.write("container", id, made.record); err != nil {
		return "", err
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.containers[id] = made
	return id, nil
}

// find returns a container, and its process if it was started.
func (s *Service) find(id string) (*podContainer, *container.Process, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	known, found := s.containers[id]
	if !found {
		return nil, nil, notFound("container", id)
	}
	return known, known.process, nil
}

// place returns the sandbox of a container, and its network.
func (s *Service) place(known *podContainer) (*podSandbox, *sandbox.Sandbox, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	pod, found := s.sandboxes[known.record.Sandbox]
	if !found || pod.network == nil || known.spec == nil {
		return nil, nil, fmt.Errorf("the sandbox of the container %s was stopped", known.record.ID)
	}
	return pod, pod.network, nil
}

func (s *Service) StartContainer(_ context.Context, id string) error {
	known, _, err := s.find(id)
	if err != nil {
		return err
	}
	pod, network, err := s.place(known)
	if err != nil {
		return err
	}
	log, err := container.OpenLog(filepath.Join(pod.config.LogDirectory, known.config.LogPath))
	if err != nil {
		return err
	}
	started := time.Now()
	process, err := s.starter.Start(known.spec, network.Namespace, log)
	if err != nil {
		s.mutex.Lock()
		defer s.mutex.Unlock()
		known.record.Started, known.record.Finished, known.record.Code = started, time.Now(), startFailedCode
		known.record.Reason, known.record.Message = "StartError", err.Error()
		return errors.Join(err, s.records.write("container", id, known.record))
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	known.record.Started, known.log, known.process = started, log, process
	go s.await(known, process)
	return s.records.write("container", id, known.record)
}

// startFailedCode is the exit code of a container whose command could not be run, as other runtimes have it.
const startFailedCode = 128

// await records the end of a container.
func (s *Service) await(known *podContainer, process *container.Process) {
	<-process.Exited
	s.mutex.Lock()
	defer s.mutex.Unlock()
	known.record.Finished, known.record.Code, known.record.Reason = time.Now(), process.Code, "Completed"
	if process.Code != 0 {
		known.record.Reason = "Error"
	}
	if s.containers[known.record.ID] == known {
		// What can't be recorded is found killed by the next node, which is as near as it gets.
		_ = s.records.write("container", known.record.ID, known.record)
	}
}

// StopContainer may be called again, and for a container that is gone.
func (s *Service) StopContainer(_ context.Context, id string, graceSeconds int64) error {
	known, process, err := s.find(id)
	if err != nil || process == nil {
		return nil
	}
	process.Stop(stopSignal(known.config.GetStopSignal()), time.Duration(graceSeconds)*time.Second)
	return nil
}

func stopSignal(signal runtimeapi.Signal) syscall.Signal {
	if number := unix.SignalNum(signal.String()); number != 0 {
		return number
	}
	return syscall.SIGTERM
}

func (s *Service) RemoveContainer(ctx context.Context, id string) error {
	if err := s.StopContainer(ctx, id, 0); err != nil {
		return err
	}
	s.mutex.Lock()
	delete(s.containers, id)
	s.mutex.Unlock()
	return errors.Join(s.records.remove("container", id), os.RemoveAll(s.containerDir(id)))
}

func (s *Service) ReopenContainerLog(_ context.Context, id string) error {
	known, process, err := s.find(id)
	if err != nil {
		return err
	}
	if process == nil {
		return fmt.Errorf("the container %s doesn't run", id)
	}
	return known.log.Reopen()
}

func (s *Service) ExecSync(ctx context.Context, id string, command []string, timeout time.Duration) (stdout, stderr []byte, err error) {
	known, process, err := s.find(id)
	if err != nil {
		return nil, nil, err
	}
	if process == nil {
		return nil, nil, fmt.Errorf("the container %s doesn't run", id)
	}
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	said := strings.Join(command, " ")
	stdout, stderr, code, err := process.Exec(ctx, known.spec, command)
	if errors.Is(err, context.DeadlineExceeded) {
		return nil, nil, fmt.Errorf("%w: %q timed out after %s", remote.ErrCommandTimedOut, said, timeout)
	}
	if err == nil && code != 0 {
		err = exec.CodeExitError{Err: fmt.Errorf("command '%s' exited with %d: %s", said, code, stderr), Code: code}
	}
	return stdout, stderr, err
}
