//go:build processnode && ray

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const rayApplication = `
data:
  fruit.py: |
    import socket
    from ray import serve

    @serve.deployment(num_replicas=2, max_replicas_per_node=1, ray_actor_options={"num_cpus": 0.5})
    class Fruit:
        def __call__(self, request):
            return socket.gethostname()

    app = Fruit.bind()
metadata: {name: fruit}
`

const rayConfig = `{"applications": [{"name": "fruit", "import_path": "fruit:app", "route_prefix": "/"}], "http_options": {"host": "0.0.0.0"}}`

// rayPod is a pod of a Ray cluster, which runs until it is told to end.
func rayPod(start, probe string) string {
	return fmt.Sprintf(`
terminationGracePeriodSeconds: 10
volumes: [{name: code, configMap: {name: fruit}}]
containers:
- name: ray
  image: ray
  command: [sh, -c, 'exec ray start %s --num-cpus 1 --memory 1000000000 --object-store-memory 100000000 --disable-usage-stats --block']
  env: [{name: PYTHONPATH, value: /code}, {name: RAY_GRAFANA_HOST, value: ''}]
  volumeMounts: [{name: code, mountPath: /code}]
  resources: {requests: {cpu: '1', memory: 1Gi}}
  readinessProbe: {%s, periodSeconds: 2, timeoutSeconds: 5, failureThreshold: 100}
`, start, probe)
}

func fetch(method, url, body string) (int, string, error) {
	request, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := (&http.Client{Timeout: 30 * time.Second}).Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return response.StatusCode, string(text), err
}

func TestARealRayClusterServes(t *testing.T) {
	namespace := newNamespace(t)
	if _, err := stage.client.CoreV1().ConfigMaps(namespace).Create(
		t.Context(), decode[corev1.ConfigMap](t, rayApplication), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	createService(t, namespace, "head", "{selector: {app: head-0}, clusterIP: None, publishNotReadyAddresses: true, ports: [{port: 6379}]}")
	createPod(t, namespace, "head-0", rayPod("--head --port 6379 --dashboard-host 0.0.0.0", "httpGet: {path: /api/version, port: 8265}"))
	createPod(t, namespace, "worker-0", rayPod("--address head:6379", "tcpSocket: {port: 52365}"))
	head := awaitPod(t, namespace, "head-0", "ready", isReady).Status.PodIP
	awaitPod(t, namespace, "worker-0", "ready", isReady)
	dashboard := "http://" + head + ":8265"
	code, said, err := fetch(http.MethodPut, dashboard+"/api/serve/applications/", rayConfig)
	if err != nil || code != http.StatusOK {
		t.Fatalf("the configuration was not taken: %d %s %v", code, said, err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the dashboard says: %s (%v)", said, err)
		}
	})
	await(t, "the application to run", func() bool {
		var details struct {
			Applications map[string]struct{ Status string }
		}
		if _, said, err = fetch(http.MethodGet, dashboard+"/api/serve/applications/", ""); err != nil {
			return false
		}
		err = json.Unmarshal([]byte(said), &details)
		return err == nil && details.Applications["fruit"].Status == "RUNNING"
	})
	answered := map[string]bool{}
	await(t, "both pods to answer", func() bool {
		if code, said, err := fetch(http.MethodGet, "http://"+head+":8000/", ""); err == nil && code == http.StatusOK {
			answered[said] = true
		}
		return answered["head-0"] && answered["worker-0"]
	})
}
