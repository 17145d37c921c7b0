package runtime

import (
	"context"

	"k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"sluice.dev/testenv/internal/processnode/images"
)

// Images answers the kubelet's questions about images from a table: there is nothing to pull.
type Images struct{ Table images.Table }

var _ cri.ImageManagerService = Images{}

func described(reference string) *runtimeapi.Image {
	return &runtimeapi.Image{
		Id: reference, RepoTags: []string{reference}, Spec: &runtimeapi.ImageSpec{Image: reference},
		// The collection of unused images must leave it alone; and an image without a size is taken for a broken one.
		Pinned: true, Size: 1,
	}
}

func (i Images) ListImages(context.Context, *runtimeapi.ImageFilter) ([]*runtimeapi.Image, error) {
	var all []*runtimeapi.Image
	for _, reference := range i.Table.References() {
		all = append(all, described(reference))
	}
	return all, nil
}

// ImageStatus returns no image if it is unknown: the kubelet then pulls it, and reports on the pod why that fails.
func (i Images) ImageStatus(_ context.Context, image *runtimeapi.ImageSpec, _ bool) (*runtimeapi.ImageStatusResponse, error) {
	reference, _, err := i.Table.Find(image.GetImage())
	if err != nil {
		return &runtimeapi.ImageStatusResponse{}, nil
	}
	return &runtimeapi.ImageStatusResponse{Image: described(reference)}, nil
}

func (i Images) PullImage(
	_ context.Context, image *runtimeapi.ImageSpec, _ *runtimeapi.AuthConfig, _ *runtimeapi.PodSandboxConfig,
) (string, error) {
	reference, _, err := i.Table.Find(image.GetImage())
	return reference, err
}

func (i Images) RemoveImage(context.Context, *runtimeapi.ImageSpec) error {
	return unsupported("the removal of an image")
}

func (i Images) ImageFsInfo(context.Context) (*runtimeapi.ImageFsInfoResponse, error) {
	return &runtimeapi.ImageFsInfoResponse{}, nil
}

func (i Images) Close(context.Context) error { return nil }
