//go:build processnode

package main

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestInitContainersRunInOrder(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	createPod(t, namespace, "ordered", `
restartPolicy: Never
volumes: [{name: shared, emptyDir: {}}]
initContainers:
- {name: first, command: [sh, -c, 'sleep 1; echo first >> /shared/order'], volumeMounts: [{name: shared, mountPath: /shared}]}
- {name: second, command: [sh, -c, 'echo second >> /shared/order'], volumeMounts: [{name: shared, mountPath: /shared}]}
containers:
- {name: main, command: [sh, -c, 'echo main >> /shared/order; cat /shared/order'], volumeMounts: [{name: shared, mountPath: /shared}]}
`)
	pod := awaitPod(t, namespace, "ordered", "over", isOver)
	if got := logsOf(t, namespace, "ordered", corev1.PodLogOptions{}); got != "first\nsecond\nmain\n" {
		t.Errorf("the order is %q", got)
	}
	if len(pod.Status.InitContainerStatuses) != 2 || pod.Status.InitContainerStatuses[0].State.Terminated == nil {
		t.Errorf("the status lacks the init containers: %+v", pod.Status.InitContainerStatuses)
	}
}

func TestTheEnvironmentIsThePodsOverTheImages(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	createConfig(t, namespace)
	createPod(t, namespace, "env", `
restartPolicy: Never
containers:
- name: main
  command: [sh, -c]
  args: ['echo "$LITERAL $NAME $IP $MAP $SECRET $(EXPANDED) $OF $HOSTNAME"; hostname; which-one']
  env:
  - {name: LITERAL, value: a literal}
  - {name: EXPANDED, value: 'not $(LITERAL)'}
  - {name: NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
  - {name: IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
  - {name: MAP, valueFrom: {configMapKeyRef: {name: config, key: key}}}
  - {name: SECRET, valueFrom: {secretKeyRef: {name: hidden, key: key}}}
  - {name: OF, value: pod}
`)
	pod := awaitPod(t, namespace, "env", "over", isOver)
	want := "a literal env " + pod.Status.PodIP + " of the map of the secret not a literal pod env\nenv\nversion 1 pod\n"
	if got := logsOf(t, namespace, "env", corev1.PodLogOptions{}); got != want {
		t.Errorf("got %q, not %q", got, want)
	}
}

func TestImagesOfTwoVersionsRunSideBySide(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	createPod(t, namespace, "both", `
restartPolicy: Never
containers: [{name: one, image: 'tiny:1'}, {name: two, image: 'tiny:2'}]
`)
	awaitPod(t, namespace, "both", "over", isOver)
	for container, want := range map[string]string{"one": "version 1 tiny1\n", "two": "version 2 tiny2\n"} {
		if got := logsOf(t, namespace, "both", corev1.PodLogOptions{Container: container}); got != want {
			t.Errorf("%s says %q, not %q", container, got, want)
		}
	}
}

func createConfig(t *testing.T, namespace string) {
	t.Helper()
	core := stage.client.CoreV1()
	_, err := core.ConfigMaps(namespace).Create(t.Context(), decode[corev1.ConfigMap](t, `
metadata: {name: config}
data: {key: of the map}
`), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = core.Secrets(namespace).Create(t.Context(), decode[corev1.Secret](t, `
metadata: {name: hidden}
stringData: {key: of the secret}
`), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

func TestVolumes(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	createConfig(t, namespace)
	createPod(t, namespace, "volumes", `
restartPolicy: Never
volumes:
- {name: shared, emptyDir: {}}
- {name: memory, emptyDir: {medium: Memory, sizeLimit: 1Mi}}
- {name: config, configMap: {name: config}}
- {name: hidden, secret: {secretName: hidden}}
- {name: down, downwardAPI: {items: [{path: note, fieldRef: {fieldPath: 'metadata.annotations[''note'']'}}]}}
containers:
- name: writer
  command: [sh, -ec, 'echo own > /tmp/own; echo own > /etc/own; echo shared > /deep/er/written; mv /deep/er/written /deep/er/file; cat /etc/own']
  volumeMounts: [{name: shared, mountPath: /deep/er}]
- name: reader
  command:
  - sh
  - -ec
  - |
    until test -e /in/file; do sleep 0.1; done
    cat /in/file /config/key; echo; cat /secret/key; echo; cat /down/note; echo
    grep -c ' /memory tmpfs rw' /proc/mounts
    (echo x > /config/key) 2>/dev/null || echo read-only
    test ! -e /tmp/own && test ! -e /etc/own && echo apart
  volumeMounts:
  - {name: shared, mountPath: /in}
  - {name: memory, mountPath: /memory}
  - {name: config, mountPath: /config, readOnly: true}
  - {name: hidden, mountPath: /secret}
  - {name: down, mountPath: /down}
`)
	awaitPod(t, namespace, "volumes", "over", isOver)
	want := "shared\nof the map\nof the secret\nof volumes\n1\nread-only\napart\n"
	if got := logsOf(t, namespace, "volumes", corev1.PodLogOptions{Container: "reader"}); !strings.HasPrefix(got, want) {
		t.Errorf("got %q, not %q", got, want)
	}
	if got := logsOf(t, namespace, "volumes", corev1.PodLogOptions{Container: "writer"}); got != "own\n" {
		t.Errorf("the writer has %q", got)
	}
}

func TestALogTellsBothStreamsAndEarlierRuns(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	createPod(t, namespace, "loud", `
containers:
- name: main
  command: [sh, -c, 'test -e /keep/again && echo again && exec sleep 1000; touch /keep/again; echo out; echo err >&2; exit 3']
  volumeMounts: [{name: keep, mountPath: /keep}]
volumes: [{name: keep, emptyDir: {}}]
`)
	pod := awaitPod(t, namespace, "loud", "restarted", func(pod *corev1.Pod) bool {
		return isReady(pod) && pod.Status.ContainerStatuses[0].RestartCount == 1
	})
	if last := pod.Status.ContainerStatuses[0].LastTerminationState.Terminated; last == nil || last.ExitCode != 3 || last.Reason != "Error" {
		t.Errorf("the last run ended as %+v", last)
	}
	previous := logsOf(t, namespace, "loud", corev1.PodLogOptions{Previous: true})
	if !strings.Contains(previous, "out\n") || !strings.Contains(previous, "err\n") {
		t.Errorf("the earlier run said %q", previous)
	}
	await(t, "the log of the second run", func() bool { return logsOf(t, namespace, "loud", corev1.PodLogOptions{}) == "again\n" })
}

func TestAPodSeesNeitherTheNodesFilesNorTheMachinesProcesses(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	got := outputOf(t, namespace, "inside", `ls `+stage.dir+`/node 2>&1 | wc -l; echo $$$$; ls -d /proc/[0-9]* | wc -l; id -u`)
	// The shell is process 1; ls and wc are the others.
	if lines := strings.Fields(got); len(lines) != 4 || lines[0] != "0" && lines[0] != "1" || lines[1] != "1" || lines[2] > "3" || lines[3] != "0" {
		t.Errorf("got %q", got)
	}
}

func TestAPodRunsAsTheUserThatItAsksFor(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	createPod(t, namespace, "user", `
restartPolicy: Never
securityContext: {runAsUser: 1234, runAsGroup: 2345, fsGroup: 3456}
volumes: [{name: data, emptyDir: {}}]
containers: [{name: main, command: [sh, -c, 'id -u; id -g; id -G; stat -c %g /data'], volumeMounts: [{name: data, mountPath: /data}]}]
`)
	awaitPod(t, namespace, "user", "over", isOver)
	if got := logsOf(t, namespace, "user", corev1.PodLogOptions{}); got != "1234\n2345\n2345 3456\n3456\n" {
		t.Errorf("got %q", got)
	}
}
