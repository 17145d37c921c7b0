//! Jobs and pods in all states that the policies distinguish. No manager runs, so they do not
//! change.

use kube::api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use sluice_testkit::TestEnv;
use sluice_testkit::objects::NAMESPACE;

/// Returns the labels with a queue name.
pub(super) fn queue_label(name: &str) -> Value {
    json!({"kueue.x-k8s.io/queue-name": name})
}

/// Returns the API of a kind in the test namespace.
pub(crate) fn api_of(client: &Client, kind: &str) -> Api<DynamicObject> {
    let group = match kind {
        "Pod" => "",
        "Job" => "batch",
        _ => "ray.io",
    };
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1", kind));
    Api::namespaced_with(client.clone(), NAMESPACE, &resource)
}

fn template() -> Value {
    json!({"spec": {"containers": [{"name": "ray", "image": "rayproject/ray:2.52.0"}]}})
}

fn cluster_spec(suspend: bool) -> Value {
    json!({"suspend": suspend, "headGroupSpec": {"rayStartParams": {}, "template": template()}})
}

/// Returns a RayCluster with these labels.
pub(super) fn cluster(name: &str, labels: Value, suspend: bool) -> Value {
    json!({
        "apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": name, "labels": labels},
        "spec": cluster_spec(suspend),
    })
}

/// Returns a RayService with these labels.
pub(super) fn service(name: &str, labels: Value) -> Value {
    json!({
        "apiVersion": "ray.io/v1", "kind": "RayService", "metadata": {"name": name, "labels": labels},
        "spec": {"rayClusterConfig": cluster_spec(true)},
    })
}

/// Returns owner references with `owner` as the controller.
pub(super) fn controlled_by(owner: &DynamicObject) -> Value {
    let types = owner.types.clone().expect("its type");
    json!([{
        "apiVersion": types.api_version, "kind": types.kind, "name": owner.metadata.name, "uid": owner.metadata.uid,
        "controller": true, "blockOwnerDeletion": true,
    }])
}

/// Returns a RayCluster of a service as the Ray operator creates it.
pub(super) fn service_cluster(name: &str, service: &DynamicObject, queue: &str) -> Value {
    let labels = json!({
        "kueue.x-k8s.io/queue-name": queue,
        "ray.io/originated-from-cr-name": service.metadata.name,
        "ray.io/originated-from-crd": "RayService",
    });
    let mut child = cluster(name, labels, true);
    child["metadata"]["ownerReferences"] = controlled_by(service);
    child
}

/// Returns a batch/v1 Job with these labels that no controller reconciles.
fn job(name: &str, labels: Value, suspend: bool) -> Value {
    let mut template = template();
    template["spec"]["restartPolicy"] = "Never".into();
    template["spec"]["schedulingGates"] = json!([{"name": "kueue.x-k8s.io/elastic-job"}]);
    json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "labels": labels},
        "spec": {"suspend": suspend, "managedBy": "test.sluice.dev/none", "template": template},
    })
}

/// Returns a pod of a Job: gated, or ungated with the labels of its quota.
fn job_pod(name: &str, job: &DynamicObject, gated: bool) -> Value {
    let mut pod = pod(name, job, gated);
    let mut labels = json!({"batch.kubernetes.io/job-name": job.metadata.name});
    if !gated {
        labels["kueue.x-k8s.io/podset"] = "main".into();
        labels["sluice.dev/shape"] = "0123456789".into();
    }
    pod["metadata"]["labels"] = labels;
    pod
}

/// Returns a pod of a RayCluster, gated or not.
pub(super) fn pod(name: &str, cluster: &DynamicObject, gated: bool) -> Value {
    let labels = json!({
        "ray.io/cluster": cluster.metadata.name, "ray.io/group": "headgroup", "ray.io/node-type": "head",
        "kueue.x-k8s.io/podset": "head", "sluice.dev/shape": "0123456789",
    });
    let mut pod = template();
    pod["apiVersion"] = "v1".into();
    pod["kind"] = "Pod".into();
    pod["metadata"] = json!({"name": name, "labels": labels, "ownerReferences": controlled_by(cluster)});
    pod["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "100m"}});
    if gated {
        pod["spec"]["schedulingGates"] = json!([{"name": "kueue.x-k8s.io/elastic-job"}]);
    }
    pod
}

/// Creates an object (no dry run).
pub(crate) async fn create(client: &Client, object: Value) -> Result<DynamicObject, kube::Error> {
    let object: DynamicObject = serde_json::from_value(object).expect("an object");
    let kind = object.types.clone().expect("its type").kind;
    api_of(client, &kind).create(&PostParams::default(), &object).await
}

/// Changes the status of an object.
pub(super) async fn set_status(client: &Client, kind: &str, name: &str, status: Value) -> Result<(), kube::Error> {
    let patch = Patch::Merge(json!({"status": status}));
    api_of(client, kind).patch_status(name, &PatchParams::default(), &patch).await.map(drop)
}

/// Returns a RayService status that reports quota as held or not.
pub(super) fn quota_status(held: bool) -> Value {
    json!({"conditions": [{
        "type": "sluice.dev/QuotaReserved", "status": if held { "True" } else { "False" }, "reason": "Test",
        "message": "Slice s-1 holds quota in ClusterQueue team-a for c", "lastTransitionTime": "2026-01-01T00:00:00Z",
    }]})
}

/// Creates the jobs and pods that the policies apply to.
pub(super) async fn create_fixtures(env: &TestEnv) {
    let client = &env.client;
    let made = async |object: Value| create(client, object).await.expect("an object");
    // RayClusters without a service.
    let waiting = made(cluster("waiting", queue_label("a"), true)).await;
    let running = made(cluster("running", queue_label("a"), false)).await;
    made(cluster("free", json!({"team": "a"}), false)).await;
    // Pods.
    made(pod("gated", &waiting, true)).await;
    made(pod("counted", &running, false)).await;
    // Jobs, and pods of them.
    let waiting_job = made(job("waiting-job", queue_label("a"), true)).await;
    let running_job = made(job("running-job", queue_label("a"), false)).await;
    made(job("free-job", json!({"team": "a"}), false)).await;
    made(job_pod("gated-of-job", &waiting_job, true)).await;
    made(job_pod("counted-of-job", &running_job, false)).await;
    // A service that holds quota, and its clusters.
    let serving = made(service("serving", queue_label("a"))).await;
    set_status(client, "RayService", "serving", quota_status(true)).await.expect("a status");
    made(service_cluster("child", &serving, "a")).await;
    let mut open_child = service_cluster("open-child", &serving, "a");
    open_child["spec"]["suspend"] = false.into();
    made(open_child).await;
    // A pending service, one without a queue, and a running one without a queue.
    made(service("new", queue_label("a"))).await;
    set_status(client, "RayService", "new", quota_status(false)).await.expect("a status");
    made(service("unborn", json!({"team": "a"}))).await;
    made(service("unqueued", json!({"team": "a"}))).await;
    let active = json!({"activeServiceStatus": {"rayClusterName": "unqueued-x"}});
    set_status(client, "RayService", "unqueued", active).await.expect("a status");
}
