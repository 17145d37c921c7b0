//go:build processnode

package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/testenv/internal/processnode/sandbox"
)

// server is a pod that serves its own name at a port, and is ready once a file is there.
const server = `
containers:
- name: main
  command: [sh, -c, 'mkdir /www; cd /www; hostname > name; touch /tmp/ready; exec python3 -m http.server 8000']
  readinessProbe: {exec: {command: [test, -e, /tmp/ready]}, periodSeconds: 1}
`

// resolve prints the addresses of a name, or "none" or "unknown".
const resolve = `
import socket, sys
try:
    print(*sorted({a[4][0] for a in socket.getaddrinfo(sys.argv[1], None, socket.AF_INET)}))
except socket.gaierror as e:
    print({socket.EAI_NONAME: "unknown", socket.EAI_NODATA: "none"}.get(e.errno, e))
`

func createService(t *testing.T, namespace, name, spec string) {
	t.Helper()
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: *decode[corev1.ServiceSpec](t, spec)}
	if _, err := stage.client.CoreV1().Services(namespace).Create(t.Context(), service, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func TestTwoPodsServeTheSamePort(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	createPod(t, namespace, "one", server)
	createPod(t, namespace, "two", server)
	one := awaitPod(t, namespace, "one", "ready", isReady).Status.PodIP
	two := awaitPod(t, namespace, "two", "ready", isReady).Status.PodIP
	if one == two {
		t.Fatalf("both have the address %s", one)
	}
	got := outputOf(t, namespace, "client", `
cat > /tmp/get.py <<'END'
import sys, time, urllib.request
for address in sys.argv[1:]:
    for attempt in range(100):
        try:
            print(urllib.request.urlopen(f"http://{address}:8000/name", timeout=5).read().decode().strip())
            break
        except OSError:
            time.sleep(0.1)
END
python3 /tmp/get.py `+one+" "+two)
	if got != "one\ntwo\n" {
		t.Errorf("got %q", got)
	}
}

func TestAPodReachesNothingOutside(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	got := outputOf(t, namespace, "client", `python3 -c '
import socket, time
began = time.time()
try:
    socket.create_connection(("192.0.2.1", 80), 60)
except OSError as e:
    print(time.time() - began < 30, e)
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.connect(("192.0.2.1", 80))
print(udp.getsockname()[0] == socket.gethostbyname(socket.gethostname()))
'`)
	if !strings.HasPrefix(got, "True ") || !strings.Contains(got, "unreachable") || !strings.HasSuffix(got, "\nTrue\n") {
		t.Errorf("got %q", got)
	}
}

func TestNamesOfServicesAreTheirReadyEndpoints(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	createService(t, namespace, "all", "{selector: {kind: server}, clusterIP: None, ports: [{port: 8000}]}")
	createService(t, namespace, "early", "{selector: {kind: server}, publishNotReadyAddresses: true, ports: [{port: 8000}]}")
	createService(t, namespace, "empty", "{selector: {kind: other}, ports: [{port: 8000}]}")
	for _, name := range []string{"ready", "unready"} {
		createPod(t, namespace, name, strings.ReplaceAll(server, "touch /tmp/ready", "test $HOSTNAME = unready || touch /tmp/ready"))
		patch := []byte(`{"metadata":{"labels":{"kind":"server"}}}`)
		if _, err := stage.client.CoreV1().Pods(namespace).Patch(
			t.Context(), name, "application/merge-patch+json", patch, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	ready := awaitPod(t, namespace, "ready", "ready", isReady).Status.PodIP
	unready := awaitPod(t, namespace, "unready", "running", isRunning).Status.PodIP
	both := ready + " " + unready
	if unready < ready {
		both = unready + " " + ready
	}
	script := "cat > /tmp/resolve.py <<'END'" + resolve + `END
for asked in "all ` + ready + `" "all.` + namespace + ` ` + ready + `" "all.` + namespace + `.svc.cluster.local ` + ready + `" \
  "early ` + both + `" "empty none" "missing unknown" "example.com unknown"; do
  set -- $asked; name=$1; shift
  for attempt in $(seq 300); do
    got=$(python3 /tmp/resolve.py $name); test "$got" = "$*" && break; sleep 0.1
  done
  echo "$name $got"
done`
	got := outputOf(t, namespace, "client", script)
	want := strings.Join([]string{
		"all " + ready, "all." + namespace + " " + ready, "all." + namespace + ".svc.cluster.local " + ready,
		"early " + both, "empty none", "missing unknown", "example.com unknown", "",
	}, "\n")
	if got != want {
		t.Errorf("got:\n%snot:\n%s", got, want)
	}
}

func TestAPodReachesTheAPIServer(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	got := outputOf(t, namespace, "client", `
cat > /tmp/ask.py <<'END'
import os, ssl, urllib.request
account = "/var/run/secrets/kubernetes.io/serviceaccount/"
trust = ssl.create_default_context(cafile=account + "ca.crt")
for host in os.environ["KUBERNETES_SERVICE_HOST"], "kubernetes.default", "kubernetes.default.svc.cluster.local":
    request = urllib.request.Request(f"https://{host}:{os.environ['KUBERNETES_SERVICE_PORT']}/api/v1/namespaces/default")
    request.add_header("Authorization", "Bearer " + open(account + "token").read())
    try:
        urllib.request.urlopen(request, context=trust, timeout=30)
    except urllib.error.HTTPError as e:
        print(e.code, "system:serviceaccount:" in e.read().decode())
END
python3 /tmp/ask.py`)
	// It is known there as the pod's service account, which may do nothing.
	if got != strings.Repeat("403 True\n", 3) {
		t.Errorf("got %q", got)
	}
}

func TestTheNodesLinkAddressStaysAsPodsComeAndGo(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	for _, name := range []string{"first", "second"} {
		outputOf(t, namespace, name, "true")
		bridge, err := netlink.LinkByName("processnode")
		if err != nil {
			t.Fatal(err)
		}
		if got := bridge.Attrs().HardwareAddr; !bytes.Equal(got, sandbox.LinkAddress) {
			t.Errorf("after the %s pod: %s, not %s", name, got, sandbox.LinkAddress)
		}
	}
}
