package node

import (
	"context"

	cadvisorapi "github.com/google/cadvisor/info/v1"
	cadvisorapiv2 "github.com/google/cadvisor/info/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/kubernetes/pkg/kubelet/cadvisor"
	"k8s.io/kubernetes/pkg/kubelet/cm"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
	"k8s.io/kubernetes/pkg/kubelet/lifecycle"
)

// gpuResource is the resource that GPUs are counted as.
const gpuResource = "nvidia.com/gpu"

// machine tells the kubelet of the machine that the flags describe. Nothing is measured: there are no cgroups.
type machine struct {
	name   string
	cpus   int
	memory uint64
}

var _ cadvisor.Interface = machine{}

func (m machine) MachineInfo() (*cadvisorapi.MachineInfo, error) {
	return &cadvisorapi.MachineInfo{
		MachineID: m.name, SystemUUID: m.name, BootID: m.name, NumCores: m.cpus, MemoryCapacity: m.memory,
	}, nil
}

func (machine) VersionInfo() (*cadvisorapi.VersionInfo, error) {
	return &cadvisorapi.VersionInfo{}, nil
}

func (machine) Start() error { return nil }

func (machine) ContainerInfoV2(string, cadvisorapiv2.RequestOptions) (map[string]cadvisorapiv2.ContainerInfo, error) {
	return map[string]cadvisorapiv2.ContainerInfo{}, nil
}

func (machine) GetRequestedContainersInfo(string, cadvisorapiv2.RequestOptions) (map[string]*cadvisorapi.ContainerInfo, error) {
	return map[string]*cadvisorapi.ContainerInfo{}, nil
}

func (machine) ImagesFsInfo(context.Context) (cadvisorapiv2.FsInfo, error) {
	return cadvisorapiv2.FsInfo{}, nil
}

func (machine) RootFsInfo() (cadvisorapiv2.FsInfo, error) { return cadvisorapiv2.FsInfo{}, nil }

func (machine) ContainerFsInfo(context.Context) (cadvisorapiv2.FsInfo, error) {
	return cadvisorapiv2.FsInfo{}, nil
}

func (machine) GetDirFsInfo(string) (cadvisorapiv2.FsInfo, error) { return cadvisorapiv2.FsInfo{}, nil }

// containerManager is the kubelet's stub, which makes no cgroups, with the refusals of admission.
type containerManager struct{ cm.ContainerManager }

func newContainerManager(gpus int64) containerManager {
	var devices corev1.ResourceList
	if gpus > 0 {
		devices = corev1.ResourceList{gpuResource: *resource.NewQuantity(gpus, resource.DecimalSI)}
	}
	return containerManager{cm.NewStubContainerManagerWithDevicePluginResource(devices)}
}

func (containerManager) GetAllocateResourcesPodAdmitHandler() lifecycle.PodAdmitHandler {
	return admission{}
}

// system is the operating system without the links that the kubelet makes for log collectors outside its directory.
type system struct{ kubecontainer.RealOS }

func (system) Symlink(string, string) error { return nil }
