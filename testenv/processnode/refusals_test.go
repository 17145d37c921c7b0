//go:build processnode

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestRequestsAboveTheAllocatableStayPending(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	for name, requests := range map[string]string{
		"cpu": "{cpu: '5'}", "memory": "{memory: 9Gi}", "nvidia.com/gpu": "{nvidia.com/gpu: '3'}",
	} {
		resource := name
		name = strings.ReplaceAll(name, "/", ".")
		createPod(t, namespace, name, "{containers: [{name: main, command: [sleep, '1000'], resources: {requests: "+requests+", limits: "+requests+"}}]}")
		awaitPod(t, namespace, name, "unschedulable", func(pod *corev1.Pod) bool {
			return len(pod.Status.Conditions) > 0 && pod.Status.Conditions[0].Reason == "Unschedulable" &&
				strings.Contains(pod.Status.Conditions[0].Message, "Insufficient "+resource) && pod.Status.Phase == corev1.PodPending
		})
	}
	createPod(t, namespace, "fits", "{containers: [{name: main, command: [sleep, '1000'], resources: {limits: {cpu: '1', memory: 1Gi, nvidia.com/gpu: '2'}}}]}")
	awaitPod(t, namespace, "fits", "ready", isReady)
}

func TestWhatANodeCannotDoIsRefusedInTheStatus(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	for name, refused := range map[string][2]string{
		"host-network": {"hostNetwork: true", "spec.hostNetwork: true can't be had on a process node"},
		"host-path": {"volumes: [{name: host, hostPath: {path: /}}]",
			"spec.volumes[0] (host), which is no emptyDir, configMap, secret, projected or downwardAPI can't be had on a process node"},
	} {
		createPod(t, namespace, name, refused[0]+"\ncontainers: [{name: main, command: [sleep, '1000']}]")
		pod := awaitPod(t, namespace, name, "refused", isOver)
		if pod.Status.Phase != corev1.PodFailed || pod.Status.Reason != "ProcessNodeRefused" || !strings.Contains(pod.Status.Message, refused[1]) {
			t.Errorf("%s is %s for %s: %s", name, pod.Status.Phase, pod.Status.Reason, pod.Status.Message)
		}
	}
}

// waiting is why the first container of a pod waits.
func waiting(pod *corev1.Pod) corev1.ContainerStateWaiting {
	if len(pod.Status.ContainerStatuses) == 1 && pod.Status.ContainerStatuses[0].State.Waiting != nil {
		return *pod.Status.ContainerStatuses[0].State.Waiting
	}
	return corev1.ContainerStateWaiting{}
}

func TestAnUnknownImageIsNotPulled(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	createPod(t, namespace, "unknown", "{containers: [{name: main, image: 'ray:9.9'}]}")
	awaitPod(t, namespace, "unknown", "waiting for an image", func(pod *corev1.Pod) bool {
		why := waiting(pod)
		return (why.Reason == "ErrImagePull" || why.Reason == "ImagePullBackOff") &&
			strings.Contains(why.Message, `"ray:9.9"`) && strings.Contains(why.Message, "tiny:1, tiny:2")
	})
}

func TestAProgramThatIsNotThereIsToldOf(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	createPod(t, namespace, "missing", "{restartPolicy: Never, containers: [{name: main, command: [no-such-program]}]}")
	pod := awaitPod(t, namespace, "missing", "over", isOver)
	ended := pod.Status.ContainerStatuses[0].State.Terminated
	if ended == nil || ended.ExitCode != 128 || ended.Reason != "StartError" || !strings.Contains(ended.Message, `"no-such-program"`) {
		t.Errorf("the container is %+v", pod.Status.ContainerStatuses[0].State)
	}
}

func TestTheNodeSaysWhatItNeeds(t *testing.T) {
	t.Parallel()
	arguments := []string{"run", "--dir", filepath.Join(t.TempDir(), "node"), "--kubeconfig", stage.kubeconfig, "--images", filepath.Join(stage.dir, "images.yaml")}
	program := filepath.Join(stage.bin, "processnode")

	routed := exec.Command("unshare", append([]string{"--net", "sh", "-c", "ip link set lo up && ip route add default dev lo && exec \"$@\"", "-", program}, arguments...)...)
	if said, err := routed.CombinedOutput(); err == nil || !strings.Contains(string(said), "there is a default route") {
		t.Errorf("with a default route: %v, %s", err, said)
	}
	if said, err := exec.Command(program, arguments...).CombinedOutput(); err == nil || !strings.Contains(string(said), "another process node runs") {
		t.Errorf("next to another node: %v, %s", err, said)
	}
	readable, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	// The test's directories are root's alone.
	file, err := os.CreateTemp("/tmp", "processnode-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.Remove(file.Name())
	if _, err := file.Write(readable); err != nil {
		t.Fatal(err)
	}
	if err := file.Chmod(0o755); err != nil {
		t.Fatal(err)
	}
	file.Close()
	images := filepath.Join("/tmp", filepath.Base(file.Name())+".yaml")
	if err := os.WriteFile(images, []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(images)
	unprivileged := exec.Command(file.Name(), "run", "--dir", "/tmp/none", "--kubeconfig", "none", "--images", images)
	unprivileged.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if said, err := unprivileged.CombinedOutput(); err == nil || !strings.Contains(string(said), "not root") {
		t.Errorf("without root: %v, %s", err, said)
	}
}
