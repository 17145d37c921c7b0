package runtime

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"sluice.dev/testenv/internal/processnode/container"
	"sluice.dev/testenv/internal/processnode/images"
)

// defaultPath is the PATH of a container whose pod says nothing of it.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// specOf makes what is to be run out of what the kubelet asks for.
func (s *Service) specOf(
	id, sandboxID string, config *runtimeapi.ContainerConfig, pod *runtimeapi.PodSandboxConfig, image images.Environment,
) (*container.Spec, error) {
	security := config.GetLinux().GetSecurityContext()
	if err := refuse(config, security); err != nil {
		return nil, err
	}
	command := append(slices.Clone(config.Command), config.Args...)
	if len(config.Command) == 0 {
		if len(image.Command) == 0 {
			return nil, fmt.Errorf("the container %q has no command, and its image has none either", config.GetMetadata().GetName())
		}
		command = append(slices.Clone(image.Command), config.Args...)
	}
	dir := s.sandboxDir(sandboxID)
	mounts := []container.Mount{
		{Source: filepath.Join(dir, "resolv.conf"), Target: "/etc/resolv.conf"},
		{Source: filepath.Join(dir, "hostname"), Target: "/etc/hostname"},
		// It may be on another file system than the machine's root, and is not the container's to change.
		{Source: image.Path, Target: image.Path, ReadOnly: true},
	}
	for _, mount := range config.Mounts {
		source, err := filepath.EvalSymlinks(mount.HostPath)
		if err != nil {
			return nil, fmt.Errorf("find the volume for %s: %w", mount.ContainerPath, err)
		}
		mounts = append(mounts, container.Mount{Source: source, Target: mount.ContainerPath, ReadOnly: mount.Readonly})
	}
	return &container.Spec{
		Dir: s.containerDir(id), Hidden: s.hidden, Hostname: pod.GetHostname(), Mounts: mounts,
		Command: command, Env: environmentOf(config, pod, image), WorkingDir: config.WorkingDir, User: userOf(security),
		NoNewPrivileges: security.GetNoNewPrivs(), ReadOnlyRoot: security.GetReadonlyRootfs(),
	}, nil
}

// refuse rejects what can still reach the runtime: ephemeral containers are added after the pod's admission.
func refuse(config *runtimeapi.ContainerConfig, security *runtimeapi.LinuxContainerSecurityContext) error {
	switch options := security.GetNamespaceOptions(); {
	case security.GetPrivileged():
		return unsupported("securityContext.privileged: true")
	case len(config.Devices) > 0 || len(config.CDIDevices) > 0:
		return unsupported("a device")
	case options.GetPid() != runtimeapi.NamespaceMode_CONTAINER:
		return unsupported("a PID namespace that is shared with another container")
	case options.GetNetwork() == runtimeapi.NamespaceMode_NODE || options.GetIpc() == runtimeapi.NamespaceMode_NODE:
		return unsupported("a namespace of the node")
	case config.Stdin || config.Tty:
		return unsupported("stdin or a tty")
	}
	for _, mount := range config.Mounts {
		if mount.GetImage().GetImage() != "" {
			return unsupported("a volume from an image")
		}
	}
	return nil
}

// environmentOf is the image's environment below what the pod says, with the image's programs first in PATH.
func environmentOf(config *runtimeapi.ContainerConfig, pod *runtimeapi.PodSandboxConfig, image images.Environment) []string {
	values := map[string]string{"PATH": defaultPath, "HOME": "/root", "HOSTNAME": pod.GetHostname()}
	maps.Copy(values, image.Env)
	for _, variable := range config.Envs {
		values[variable.Key] = string(variable.Value)
	}
	if bin := filepath.Join(image.Path, "bin"); !slices.Contains(strings.Split(values["PATH"], ":"), bin) {
		values["PATH"] = bin + ":" + values["PATH"]
	}
	variables := make([]string, 0, len(values))
	for _, key := range slices.Sorted(maps.Keys(values)) {
		variables = append(variables, key+"="+values[key])
	}
	return variables
}

func userOf(security *runtimeapi.LinuxContainerSecurityContext) container.User {
	user := container.User{
		ID: int(security.GetRunAsUser().GetValue()), Group: int(security.GetRunAsGroup().GetValue()), Groups: []int{},
	}
	for _, group := range security.GetSupplementalGroups() {
		user.Groups = append(user.Groups, int(group))
	}
	return user
}
