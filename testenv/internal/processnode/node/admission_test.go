package node

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/kubelet/lifecycle"
)

func TestPodsThatAskForTooMuchAreRefusedByField(t *testing.T) {
	yes, no := true, false
	inContainer := func(container corev1.Container) corev1.PodSpec {
		return corev1.PodSpec{Containers: []corev1.Container{{}, container}}
	}
	secured := func(security corev1.SecurityContext) corev1.PodSpec {
		return inContainer(corev1.Container{SecurityContext: &security})
	}
	hostPath := corev1.Volume{Name: "host", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}}
	for want, spec := range map[string]corev1.PodSpec{
		"spec.hostNetwork: true":           {HostNetwork: true},
		"spec.hostPID: true":               {HostPID: true},
		"spec.hostIPC: true":               {HostIPC: true},
		"spec.shareProcessNamespace: true": {ShareProcessNamespace: &yes},
		"spec.hostUsers: false":            {HostUsers: &no},
		"spec.resourceClaims":              {ResourceClaims: []corev1.PodResourceClaim{{Name: "a"}}},
		"spec.volumes[0] (host), which is no emptyDir, configMap, secret, projected or downwardAPI": {Volumes: []corev1.Volume{hostPath}},
		"spec.initContainers[0].tty: true":                    {InitContainers: []corev1.Container{{TTY: true}}},
		"spec.containers[1].stdin: true":                      inContainer(corev1.Container{Stdin: true}),
		"spec.containers[1].volumeDevices":                    inContainer(corev1.Container{VolumeDevices: []corev1.VolumeDevice{{}}}),
		"spec.containers[1].ports[0].hostPort":                inContainer(corev1.Container{Ports: []corev1.ContainerPort{{HostPort: 80}}}),
		"spec.containers[1].securityContext.privileged: true": secured(corev1.SecurityContext{Privileged: &yes}),
		"spec.containers[1].securityContext.capabilities": secured(corev1.SecurityContext{
			Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"NET_ADMIN"}},
		}),
	} {
		got := admission{}.Admit(&lifecycle.PodAdmitAttributes{Pod: &corev1.Pod{Spec: spec}})
		if got.Admit || got.Reason != refusedReason || got.Message != want+" can't be had on a process node" {
			t.Errorf("%s: got %+v", want, got)
		}
	}
}

func TestAnOrdinaryPodIsAdmitted(t *testing.T) {
	user := int64(1000)
	spec := corev1.PodSpec{
		Volumes: []corev1.Volume{
			{VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}}},
			{VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{}}},
		},
		Containers: []corev1.Container{{
			Ports: []corev1.ContainerPort{{ContainerPort: 80}}, SecurityContext: &corev1.SecurityContext{RunAsUser: &user},
		}},
	}
	if got := (admission{}).Admit(&lifecycle.PodAdmitAttributes{Pod: &corev1.Pod{Spec: spec}}); !got.Admit {
		t.Errorf("got %+v", got)
	}
}
