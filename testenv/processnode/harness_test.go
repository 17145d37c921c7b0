//go:build processnode

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"
)

const (
	// patience is how long a condition may take to come true, on a machine that is busy.
	patience  = 2 * time.Minute
	pollEvery = 50 * time.Millisecond
)

// stage is the control plane and the node that all tests share.
var stage struct {
	dir, bin, kubeconfig string
	client               *kubernetes.Clientset
	plane, node          *program
}

// TestMain runs the tests on a control plane with one process node. If that is impossible it fails, so that skipped tests are
// not mistaken for passed ones.
func TestMain(m *testing.M) {
	code, err := runOnStage(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "the tests of process nodes could not run:", err)
		code = 1
	}
	os.Exit(code)
}

func runOnStage(m *testing.M) (code int, err error) {
	if stage.bin = os.Getenv("SLUICE_BIN"); stage.bin == "" {
		return 1, fmt.Errorf("SLUICE_BIN doesn't name the directory of the programs; make processnode-test sets it")
	}
	if stage.dir, err = os.MkdirTemp("", "processnode-test-"); err != nil {
		return 1, err
	}
	defer os.RemoveAll(stage.dir)
	if err := writeImages(); err != nil {
		return 1, err
	}
	stage.plane, err = startProgram("testenv", "run", "--dir", filepath.Join(stage.dir, "plane"), "--nodes", "0")
	if err != nil {
		return 1, err
	}
	defer stage.plane.stop(syscall.SIGTERM)
	stage.kubeconfig = stage.plane.ready["adminKubeconfig"]
	config, err := clientcmd.BuildConfigFromFlags("", stage.kubeconfig)
	if err != nil {
		return 1, err
	}
	config.QPS, config.Burst = 500, 1000
	if stage.client, err = kubernetes.NewForConfig(config); err != nil {
		return 1, err
	}
	if stage.node, err = startNode(); err != nil {
		return 1, err
	}
	defer func() { stage.node.stop(syscall.SIGTERM) }()
	return m.Run(), nil
}

func startNode() (*program, error) {
	return startProgram("processnode", "run", "--dir", filepath.Join(stage.dir, "node"), "--kubeconfig", stage.kubeconfig,
		"--images", filepath.Join(stage.dir, "images.yaml"), "--cpu", "4", "--memory", "8Gi", "--gpu", "2")
}

// writeImages makes two environments: each has python3, and a program that says which one it is.
func writeImages() error {
	python, err := exec.Command("python3", "-c", "import sys; print(sys.executable)").Output()
	if err != nil {
		return fmt.Errorf("find python3, which the pods of the tests run: %w", err)
	}
	images := map[string]any{}
	for _, version := range []string{"1", "2"} {
		path := filepath.Join(stage.dir, "environment-"+version)
		bin := filepath.Join(path, "bin")
		if err := os.MkdirAll(bin, 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(bin, "which-one"), []byte("#!/bin/sh\necho version "+version+" $OF\n"), 0o755); err != nil {
			return err
		}
		if err := os.Symlink(strings.TrimSpace(string(python)), filepath.Join(bin, "python3")); err != nil {
			return err
		}
		images["tiny:"+version] = map[string]any{
			"path": path, "command": []string{"which-one"}, "env": map[string]string{"OF": "tiny" + version},
		}
	}
	text, err := json.Marshal(images)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(stage.dir, "images.yaml"), text, 0o600)
}

// program is a program of ours that runs until its standard input closes.
type program struct {
	cmd *exec.Cmd
	// ready is the line of JSON that it prints when it is ready.
	ready map[string]string
}

func startProgram(name string, args ...string) (*program, error) {
	log, err := os.OpenFile(filepath.Join(stage.dir, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(filepath.Join(stage.bin, name), args...)
	cmd.Stderr = log
	// It is open for as long as the program is known here.
	if _, err := cmd.StdinPipe(); err != nil {
		return nil, err
	}
	output, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &program{cmd: cmd}
	line, err := bufio.NewReader(output).ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &p.ready)
	}
	if err != nil {
		p.stop(syscall.SIGKILL)
		said, _ := os.ReadFile(log.Name())
		return nil, fmt.Errorf("%s did not become ready (%w): ...%s", name, err, said[max(0, len(said)-2000):])
	}
	return p, nil
}

// stop ends a program, and waits for it.
func (p *program) stop(signal syscall.Signal) {
	_ = p.cmd.Process.Signal(signal)
	_ = p.cmd.Wait()
}

// newNamespace makes a namespace for a test, which takes its pods along when the test ends.
func newNamespace(t *testing.T) string {
	t.Helper()
	made, err := stage.client.CoreV1().Namespaces().Create(
		t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		zero := int64(0)
		for _, err := range []error{
			stage.client.CoreV1().Pods(made.Name).DeleteCollection(
				context.Background(), metav1.DeleteOptions{GracePeriodSeconds: &zero}, metav1.ListOptions{}),
			stage.client.CoreV1().Namespaces().Delete(context.Background(), made.Name, metav1.DeleteOptions{}),
		} {
			if err != nil {
				t.Error(err)
			}
		}
	})
	await(t, "the service account of "+made.Name, func() bool {
		_, err := stage.client.CoreV1().ServiceAccounts(made.Name).Get(t.Context(), "default", metav1.GetOptions{})
		return err == nil
	})
	return made.Name
}

// await waits until something is so.
func await(t *testing.T, what string, so func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !so(); time.Sleep(pollEvery) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// decode reads YAML into an object.
func decode[T any](t *testing.T, text string) *T {
	t.Helper()
	object := new(T)
	if err := yaml.UnmarshalStrict([]byte(text), object); err != nil {
		t.Fatalf("%v in:\n%s", err, text)
	}
	return object
}

// createPod makes a pod of its spec in YAML; the image is tiny:1 where none is given, and the grace time 2 s.
func createPod(t *testing.T, namespace, name, spec string) {
	t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}, Annotations: map[string]string{"note": "of " + name}},
		Spec:       *decode[corev1.PodSpec](t, spec),
	}
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			if containers[i].Image == "" {
				containers[i].Image = "tiny:1"
			}
		}
	}
	if pod.Spec.TerminationGracePeriodSeconds == nil {
		two := int64(2)
		pod.Spec.TerminationGracePeriodSeconds = &two
	}
	if _, err := stage.client.CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// awaitPod waits until a pod is as it should be, and returns it.
func awaitPod(t *testing.T, namespace, name, what string, so func(*corev1.Pod) bool) *corev1.Pod {
	t.Helper()
	var pod *corev1.Pod
	for deadline := time.Now().Add(patience); ; time.Sleep(pollEvery) {
		var err error
		pod, err = stage.client.CoreV1().Pods(namespace).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if so(pod) {
			return pod
		}
		if time.Now().After(deadline) {
			break
		}
	}
	status, _ := yaml.Marshal(pod.Status)
	events, _ := stage.client.CoreV1().Events(namespace).List(t.Context(), metav1.ListOptions{})
	for _, event := range events.Items {
		t.Logf("%s %s: %s", event.InvolvedObject.Name, event.Reason, event.Message)
	}
	t.Fatalf("the pod %s was not %s in time:\n%s", name, what, status)
	return nil
}

func isReady(pod *corev1.Pod) bool {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

func isRunning(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodRunning }

func isOver(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// logsOf are the logs of a pod's container, through the API server.
func logsOf(t *testing.T, namespace, name string, options corev1.PodLogOptions) string {
	t.Helper()
	text, err := stage.client.CoreV1().Pods(namespace).GetLogs(name, &options).DoRaw(t.Context())
	if err != nil {
		t.Fatalf("the logs of %s: %v", name, err)
	}
	return string(text)
}

// outputOf runs a shell script as a pod, and returns its logs; it must succeed.
func outputOf(t *testing.T, namespace, name, script string) string {
	t.Helper()
	text, err := json.Marshal(map[string]any{
		"restartPolicy": "Never", "containers": []any{map[string]any{"name": "main", "command": []string{"sh", "-ec", script}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	createPod(t, namespace, name, string(text))
	if pod := awaitPod(t, namespace, name, "over", isOver); pod.Status.Phase != corev1.PodSucceeded {
		t.Fatalf("%s failed: %s", name, logsOf(t, namespace, name, corev1.PodLogOptions{}))
	}
	return logsOf(t, namespace, name, corev1.PodLogOptions{})
}

// deletePod deletes a pod, and returns how long that took.
func deletePod(t *testing.T, namespace, name string) time.Duration {
	t.Helper()
	began := time.Now()
	if err := stage.client.CoreV1().Pods(namespace).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, "the end of "+name, func() bool {
		_, err := stage.client.CoreV1().Pods(namespace).Get(t.Context(), name, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
	return time.Since(began)
}
