package runtime

import (
	"context"
	"path/filepath"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func (c *podContainer) state() runtimeapi.ContainerState {
	switch {
	case !c.record.Finished.IsZero():
		return runtimeapi.ContainerState_CONTAINER_EXITED
	case !c.record.Started.IsZero():
		return runtimeapi.ContainerState_CONTAINER_RUNNING
	default:
		return runtimeapi.ContainerState_CONTAINER_CREATED
	}
}

func (s *Service) ListContainers(_ context.Context, filter *runtimeapi.ContainerFilter) ([]*runtimeapi.Container, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	var found []*runtimeapi.Container
	for id, known := range s.containers {
		if filter.GetId() != "" && filter.GetId() != id || filter.GetState() != nil && filter.GetState().GetState() != known.state() ||
			filter.GetPodSandboxId() != "" && filter.GetPodSandboxId() != known.record.Sandbox ||
			!selected(filter.GetLabelSelector(), known.config.Labels) {
			continue
		}
		found = append(found, &runtimeapi.Container{
			Id: id, PodSandboxId: known.record.Sandbox, Metadata: known.config.Metadata, Image: known.config.Image,
			ImageRef: known.record.Image, ImageId: known.record.Image, State: known.state(), CreatedAt: known.record.Created.UnixNano(),
			Labels: known.config.Labels, Annotations: known.config.Annotations,
		})
	}
	return found, nil
}

func (s *Service) ContainerStatus(_ context.Context, id string, _ bool) (*runtimeapi.ContainerStatusResponse, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	known, found := s.containers[id]
	if !found {
		return nil, notFound("container", id)
	}
	logPath := ""
	if pod, found := s.sandboxes[known.record.Sandbox]; found {
		logPath = filepath.Join(pod.config.LogDirectory, known.config.LogPath)
	}
	return &runtimeapi.ContainerStatusResponse{Status: &runtimeapi.ContainerStatus{
		Id: id, Metadata: known.config.Metadata, State: known.state(), Image: known.config.Image,
		ImageRef: known.record.Image, ImageId: known.record.Image,
		CreatedAt: nanoseconds(known.record.Created), StartedAt: nanoseconds(known.record.Started), FinishedAt: nanoseconds(known.record.Finished),
		ExitCode: int32(known.record.Code), Reason: known.record.Reason, Message: known.record.Message,
		Labels: known.config.Labels, Annotations: known.config.Annotations, Mounts: known.config.Mounts, LogPath: logPath,
	}}, nil
}

// nanoseconds is a time as the interface has it: 0 if it has not come.
func nanoseconds(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}
