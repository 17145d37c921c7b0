//go:build processnode

package main

import (
	"fmt"
	"net"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

func TestReadinessProbes(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	for name, probe := range map[string]string{
		"http": "httpGet: {path: /ready, port: 8000}",
		"tcp":  "tcpSocket: {port: 8000}",
		"exec": "exec: {command: [test, -e, /www/ready]}",
	} {
		createPod(t, namespace, name, fmt.Sprintf(`
containers:
- name: main
  command: [sh, -c, 'mkdir /www; cd /www; until test -e /hold/on; do sleep 0.1; done; echo yes > ready; exec python3 -m http.server 8000']
  readinessProbe: {%s, periodSeconds: 1}
  volumeMounts: [{name: hold, mountPath: /hold}]
- name: holder
  command: [sh, -c, 'python3 -c "import socket; socket.create_server((\"\", 9000)).accept()"; touch /hold/on; exec sleep 1000']
  volumeMounts: [{name: hold, mountPath: /hold}]
volumes: [{name: hold, emptyDir: {}}]
`, probe))
	}
	for _, name := range []string{"http", "tcp", "exec"} {
		pod := awaitPod(t, namespace, name, "running, but not ready", func(pod *corev1.Pod) bool {
			if isReady(pod) {
				t.Fatalf("%s was ready before its probe could succeed", name)
			}
			return isRunning(pod)
		})
		await(t, "the pod "+name+" to accept a connection", func() bool {
			connection, err := net.Dial("tcp", net.JoinHostPort(pod.Status.PodIP, "9000"))
			if err == nil {
				connection.Close()
			}
			return err == nil
		})
	}
	for _, name := range []string{"http", "tcp", "exec"} {
		awaitPod(t, namespace, name, "ready", isReady)
	}
}

func TestALivenessProbeRestartsAContainer(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	createPod(t, namespace, "hung", `
containers:
- name: main
  command: [sh, -c, 'trap "exit 7" TERM; while :; do sleep 0.1; done']
  livenessProbe: {exec: {command: [sh, -c, 'exit 1']}, periodSeconds: 1, failureThreshold: 1}
`)
	pod := awaitPod(t, namespace, "hung", "restarted", func(pod *corev1.Pod) bool {
		return len(pod.Status.ContainerStatuses) == 1 && pod.Status.ContainerStatuses[0].RestartCount > 0
	})
	if last := pod.Status.ContainerStatuses[0].LastTerminationState.Terminated; last == nil || last.ExitCode != 7 {
		t.Errorf("the last run ended as %+v", last)
	}
}

func TestAnExecProbeTimesOut(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	createPod(t, namespace, "slow", `
containers:
- name: main
  command: [sleep, '1000']
  livenessProbe: {exec: {command: [sleep, '1000']}, periodSeconds: 1, failureThreshold: 1, timeoutSeconds: 1}
`)
	awaitPod(t, namespace, "slow", "restarted", func(pod *corev1.Pod) bool {
		return len(pod.Status.ContainerStatuses) == 1 && pod.Status.ContainerStatuses[0].RestartCount > 0
	})
}

func TestRestartPolicies(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	pod := func(name, policy string, code int) {
		createPod(t, namespace, name, fmt.Sprintf("{restartPolicy: %s, containers: [{name: main, command: [sh, -c, 'exit %d']}]}", policy, code))
	}
	pod("always", "Always", 0)
	pod("on-failure", "OnFailure", 4)
	pod("success", "OnFailure", 0)
	pod("never", "Never", 5)
	for name, code := range map[string]int32{"always": 0, "on-failure": 4} {
		restarted := awaitPod(t, namespace, name, "restarted", func(pod *corev1.Pod) bool {
			return len(pod.Status.ContainerStatuses) == 1 && pod.Status.ContainerStatuses[0].RestartCount > 0 &&
				pod.Status.ContainerStatuses[0].LastTerminationState.Terminated != nil
		})
		if got := restarted.Status.ContainerStatuses[0].LastTerminationState.Terminated.ExitCode; got != code {
			t.Errorf("%s ended with %d, not %d", name, got, code)
		}
	}
	if over := awaitPod(t, namespace, "success", "over", isOver); over.Status.Phase != corev1.PodSucceeded {
		t.Errorf("the phase of a success is %s", over.Status.Phase)
	}
	over := awaitPod(t, namespace, "never", "over", isOver)
	if ended := over.Status.ContainerStatuses[0].State.Terminated; over.Status.Phase != corev1.PodFailed || ended.ExitCode != 5 {
		t.Errorf("the phase of a failure is %s, with %+v", over.Status.Phase, ended)
	}
}

func TestTerminationIsGraceful(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	const ready = "readinessProbe: {exec: {command: [test, -e, /tmp/up]}, periodSeconds: 1}"
	createPod(t, namespace, "finishes", `
terminationGracePeriodSeconds: 60
containers:
- {name: main, command: [sh, -c, 'trap "sleep 2; echo finished; exit 0" TERM; touch /tmp/up; while :; do sleep 0.1; done'], `+ready+`}
`)
	createPod(t, namespace, "ignores", `
terminationGracePeriodSeconds: 3
containers: [{name: main, command: [sh, -c, 'trap "" TERM; touch /tmp/up; while :; do sleep 0.1; done'], `+ready+`}]
`)
	createPod(t, namespace, "hooked", `
terminationGracePeriodSeconds: 60
containers:
- name: main
  command: [sh, -c, 'trap "exit 0" TERM; touch /tmp/up; while :; do sleep 0.1; done']
  readinessProbe: {exec: {command: [test, -e, /tmp/up]}, periodSeconds: 1}
  lifecycle: {preStop: {exec: {command: [sh, -c, 'sleep 2']}}}
`)
	for _, name := range []string{"finishes", "ignores", "hooked"} {
		awaitPod(t, namespace, name, "ready", isReady)
	}
	for name, bounds := range map[string][2]time.Duration{
		"finishes": {2 * time.Second, 30 * time.Second},
		"ignores":  {3 * time.Second, 30 * time.Second},
		"hooked":   {2 * time.Second, 30 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if took := deletePod(t, namespace, name); took < bounds[0] || took > bounds[1] {
				t.Errorf("%s took %s to end, not between %s and %s", name, took, bounds[0], bounds[1])
			}
		})
	}
}
