//go:build processnode

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// processesWith counts the processes of the machine that have a text in their command line.
func processesWith(t *testing.T, text string) int {
	t.Helper()
	paths, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for _, path := range paths {
		// A process that has ended meanwhile is not there.
		line, _ := os.ReadFile(path)
		if strings.Contains(string(line), text) {
			count++
		}
	}
	return count
}

// tree is a pod whose processes leave their parents and sessions.
func tree(mark string) string {
	return fmt.Sprintf(`
containers:
- name: main
  command: [sh, -c, 'setsid sleep %s & (setsid sh -c "trap \"\" TERM HUP; sleep %s" &) ; exec sleep %s']
`, mark, mark, mark)
}

func TestAProcessTreeGoesWithItsPod(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	mark := fmt.Sprintf("86400.%d", time.Now().UnixNano())
	createPod(t, namespace, "tree", tree(mark))
	awaitPod(t, namespace, "tree", "ready", isReady)
	await(t, "the processes of the pod", func() bool { return processesWith(t, mark) >= 3 })
	deletePod(t, namespace, "tree")
	if left := processesWith(t, mark); left != 0 {
		t.Errorf("%d processes are left", left)
	}
}

// It is not parallel: the others begin after it.
func TestPodsOutliveTheNodesProgramHonestly(t *testing.T) {
	namespace := newNamespace(t)
	mark := fmt.Sprintf("86400.%d", time.Now().UnixNano())
	createPod(t, namespace, "always", tree(mark))
	createPod(t, namespace, "never", "{restartPolicy: Never, containers: [{name: main, command: [sleep, '1000']}]}")
	createPod(t, namespace, "over", "{restartPolicy: Never, containers: [{name: main, command: [echo, done]}]}")
	for _, name := range []string{"always", "never"} {
		awaitPod(t, namespace, name, "ready", isReady)
	}
	awaitPod(t, namespace, "over", "over", isOver)
	address := awaitPod(t, namespace, "always", "ready", isReady).Status.PodIP

	for i, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		stage.node.stop(signal)
		await(t, "the end of the pod's processes", func() bool { return processesWith(t, mark) == 0 })
		var err error
		if stage.node, err = startNode(); err != nil {
			t.Fatal(err)
		}
		restarted := awaitPod(t, namespace, "always", "restarted", func(pod *corev1.Pod) bool {
			return isReady(pod) && pod.Status.ContainerStatuses[0].RestartCount > int32(i)
		})
		if last := restarted.Status.ContainerStatuses[0].LastTerminationState.Terminated; last == nil || last.ExitCode != 137 {
			t.Errorf("after %s the last run ended as %+v", signal, last)
		}
		if restarted.Status.PodIP == address {
			t.Errorf("after %s the pod has its old address %s again", signal, address)
		}
		address = restarted.Status.PodIP
		never := awaitPod(t, namespace, "never", "over", isOver)
		if never.Status.Phase != corev1.PodFailed || never.Status.ContainerStatuses[0].State.Terminated.ExitCode != 137 {
			t.Errorf("after %s what runs once is %s: %+v", signal, never.Status.Phase, never.Status.ContainerStatuses[0].State)
		}
		if over := awaitPod(t, namespace, "over", "over", isOver); over.Status.Phase != corev1.PodSucceeded {
			t.Errorf("after %s what had succeeded is %s", signal, over.Status.Phase)
		}
	}
}
