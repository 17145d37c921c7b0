package runtime

import (
	"context"
	"fmt"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// unsupported refuses what a process node can't do.
func unsupported(what string) error { return fmt.Errorf("%s can't be had on a process node", what) }

func (s *Service) Exec(context.Context, *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error) {
	return nil, unsupported("an exec with streams (kubectl exec)")
}

func (s *Service) Attach(context.Context, *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error) {
	return nil, unsupported("attach")
}

func (s *Service) PortForward(context.Context, *runtimeapi.PortForwardRequest) (*runtimeapi.PortForwardResponse, error) {
	return nil, unsupported("port-forward")
}

func (s *Service) CheckpointContainer(context.Context, *runtimeapi.CheckpointContainerRequest) error {
	return unsupported("a checkpoint")
}

func (s *Service) GetContainerEvents(context.Context, chan *runtimeapi.ContainerEventResponse, func(runtimeapi.RuntimeService_GetContainerEventsClient)) error {
	return unsupported("a stream of container events")
}

// UpdateContainerResources and UpdatePodSandboxResources have nothing to do: limits are not enforced.
func (s *Service) UpdateContainerResources(context.Context, string, *runtimeapi.ContainerResources) error {
	return nil
}

func (s *Service) UpdatePodSandboxResources(context.Context, *runtimeapi.UpdatePodSandboxResourcesRequest) (*runtimeapi.UpdatePodSandboxResourcesResponse, error) {
	return &runtimeapi.UpdatePodSandboxResourcesResponse{}, nil
}

// Nothing is measured: there are no cgroups.

func (s *Service) ContainerStats(context.Context, string) (*runtimeapi.ContainerStats, error) {
	return nil, unsupported("the use of resources")
}

func (s *Service) ListContainerStats(context.Context, *runtimeapi.ContainerStatsFilter) ([]*runtimeapi.ContainerStats, error) {
	return nil, nil
}

func (s *Service) PodSandboxStats(context.Context, string) (*runtimeapi.PodSandboxStats, error) {
	return nil, unsupported("the use of resources")
}

func (s *Service) ListPodSandboxStats(context.Context, *runtimeapi.PodSandboxStatsFilter) ([]*runtimeapi.PodSandboxStats, error) {
	return nil, nil
}

func (s *Service) ListMetricDescriptors(context.Context) ([]*runtimeapi.MetricDescriptor, error) {
	return nil, nil
}

func (s *Service) ListPodSandboxMetrics(context.Context) ([]*runtimeapi.PodSandboxMetrics, error) {
	return nil, nil
}
