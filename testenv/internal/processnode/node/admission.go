package node

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/kubelet/lifecycle"
)

// refusedReason is the reason in the status of a pod that asks for what a process node doesn't have.
const refusedReason = "ProcessNodeRefused"

// admission refuses pods that ask for what a process node doesn't have: they fail before any of it is started.
type admission struct{}

func (admission) Admit(attributes *lifecycle.PodAdmitAttributes) lifecycle.PodAdmitResult {
	if field := refusedField(&attributes.Pod.Spec); field != "" {
		return lifecycle.PodAdmitResult{Reason: refusedReason, Message: field + " can't be had on a process node"}
	}
	return lifecycle.PodAdmitResult{Admit: true}
}

// refusedField names the first field that asks for too much.
func refusedField(spec *corev1.PodSpec) string {
	switch {
	case spec.HostNetwork:
		return "spec.hostNetwork: true"
	case spec.HostPID:
		return "spec.hostPID: true"
	case spec.HostIPC:
		return "spec.hostIPC: true"
	case isTrue(spec.ShareProcessNamespace):
		return "spec.shareProcessNamespace: true"
	case spec.HostUsers != nil && !*spec.HostUsers:
		return "spec.hostUsers: false"
	case spec.RuntimeClassName != nil && *spec.RuntimeClassName != "":
		return "spec.runtimeClassName"
	case len(spec.ResourceClaims) > 0:
		return "spec.resourceClaims"
	case spec.SecurityContext != nil && len(spec.SecurityContext.Sysctls) > 0:
		return "spec.securityContext.sysctls"
	}
	for i, volume := range spec.Volumes {
		if source := volume.VolumeSource; source.EmptyDir == nil && source.ConfigMap == nil && source.Secret == nil &&
			source.Projected == nil && source.DownwardAPI == nil {
			return fmt.Sprintf("spec.volumes[%d] (%s), which is no emptyDir, configMap, secret, projected or downwardAPI", i, volume.Name)
		}
	}
	if field := refusedOfContainers("initContainers", spec.InitContainers); field != "" {
		return field
	}
	return refusedOfContainers("containers", spec.Containers)
}

func refusedOfContainers(kind string, containers []corev1.Container) string {
	for i := range containers {
		if field := refusedOfContainer(&containers[i]); field != "" {
			return fmt.Sprintf("spec.%s[%d].%s", kind, i, field)
		}
	}
	return ""
}

func refusedOfContainer(container *corev1.Container) string {
	switch {
	case len(container.VolumeDevices) > 0:
		return "volumeDevices"
	case container.Stdin:
		return "stdin: true"
	case container.TTY:
		return "tty: true"
	}
	for i, port := range container.Ports {
		if port.HostPort != 0 {
			return fmt.Sprintf("ports[%d].hostPort", i)
		}
	}
	for i, mount := range container.VolumeMounts {
		if mount.MountPropagation != nil && *mount.MountPropagation != corev1.MountPropagationNone {
			return fmt.Sprintf("volumeMounts[%d].mountPropagation", i)
		}
	}
	security := container.SecurityContext
	switch {
	case security == nil:
		return ""
	case isTrue(security.Privileged):
		return "securityContext.privileged: true"
	case security.Capabilities != nil && len(security.Capabilities.Add)+len(security.Capabilities.Drop) > 0:
		return "securityContext.capabilities"
	case security.ProcMount != nil && *security.ProcMount != corev1.DefaultProcMount:
		return "securityContext.procMount"
	default:
		return ""
	}
}

func isTrue(value *bool) bool { return value != nil && *value }
