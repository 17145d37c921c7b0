//! Queued RayJobs, run by the real KubeRay operator.

use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use sluice_api::condition;
use sluice_api::kueue::scheduling_gate::is_gated;

use crate::admission_policies::fixtures::{api_of, create};
use crate::admission_policies::webhook::{
    creates_suspended as webhook_answers, start_manager_and_wait_for_webhook, start_manager_with_webhook,
};
use sluice_testkit::fake_dashboards::set_dashboard_behavior;
use sluice_testkit::history::Recorder;
use sluice_testkit::objects::{NAMESPACE, reserved_amount};
use sluice_testkit::quotas::{FLAVOR, resource_flavor};
use sluice_testkit::real_kuberay::{RealKubeRay, start_control_plane};
use sluice_testkit::{Manager, TestEnv, eventually, eventually_or_err, invariants};

const QUEUE: &str = "jobs";
/// Annotation with the conditions of a RayJob.
const CONDITIONS: &str = "sluice.dev/conditions";

/// A control plane where KubeRay creates the pods and Sluice manages their quota, with a recorder
/// of its complete history.
struct Fixture {
    env: TestEnv,
    recorder: Recorder,
    port: u16,
    manager: Manager,
    _kuberay: RealKubeRay,
}

impl Fixture {
    async fn new() -> Self {
        let env = start_control_plane().await;
        let recorder = Recorder::start(env.client.clone(), None).await;
        let (manager, port) = start_manager_and_wait_for_webhook(&env, &["--ray-operator=false"]).await;
        let kuberay = RealKubeRay::start(&env);
        env.apply_object(resource_flavor()).await;
        Self { env, recorder, port, manager, _kuberay: kuberay }
    }

    /// Kills Sluice and restarts it.
    async fn restart(self) -> Self {
        let Self { env, recorder, port, manager, _kuberay } = self;
        manager.kill().await;
        let manager = start_manager_with_webhook(&env, port, &["--ray-operator=false"]).await;
        eventually("the webhook is called", async || webhook_answers(&env.client).await.then_some(())).await;
        Self { env, recorder, port, manager, _kuberay }
    }

    async fn queue(&self, nominal: &str) {
        let preemption = json!({"preemption": {"withinClusterQueue": "LowerPriority"}});
        self.env.apply_queue(QUEUE, None, quota(nominal), preemption).await;
    }

    async fn resize(&self, nominal: &str) {
        self.env.patch_queue(QUEUE, json!({"resourceGroups": quota(nominal)})).await;
    }

    /// Waits until this much CPU is reserved in the ClusterQueue.
    async fn wait_for_reserved_cpu(&self, amount: &str) {
        eventually_or_err(&format!("{amount} CPU is reserved"), async || {
            let queue = self.env.cluster_queues().get(QUEUE).await.expect("the queue");
            let actual = reserved_amount(&queue, "cpu");
            if actual == amount { Ok(()) } else { Err(format!("{actual} is")) }
        })
        .await;
    }

    async fn get(&self, kind: &str, name: &str) -> DynamicObject {
        api_of(&self.env.client, kind).get(name).await.unwrap_or_else(|error| panic!("{kind} {name}: {error}"))
    }

    async fn patch(&self, kind: &str, name: &str, patch: Value) -> Result<(), kube::Error> {
        api_of(&self.env.client, kind).patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.map(drop)
    }

    async fn list(&self, kind: &str) -> Vec<String> {
        let all = api_of(&self.env.client, kind).list(&ListParams::default()).await.expect("a list").items;
        all.iter().map(ResourceExt::name_any).collect()
    }

    async fn pods(&self) -> Vec<Pod> {
        let pods: Api<Pod> = Api::namespaced(self.env.client.clone(), NAMESPACE);
        pods.list(&ListParams::default()).await.expect("the pods").items
    }

    /// Waits until this many pods run and this many are gated.
    async fn wait_for_pods(&self, running: usize, waiting: usize) {
        eventually_or_err(&format!("{running} pods run and {waiting} are gated"), async || {
            let (gated, others): (Vec<_>, Vec<_>) =
                self.pods().await.into_iter().filter(|pod| phase(pod) != "Succeeded").partition(is_gated);
            let run = others.iter().filter(|pod| phase(pod) == "Running").count();
            match (run, others.len() - run, gated.len()) {
                (run, 0, gated) if run == running && gated == waiting => Ok(()),
                found => Err(format!("(running, starting, waiting) = {found:?}")),
            }
        })
        .await;
    }

    /// Waits until a RayJob has this `jobDeploymentStatus`.
    async fn wait_for_status(&self, name: &str, status: &str) {
        eventually_or_err(&format!("RayJob {name} is {status}"), async || {
            let actual = self.get("RayJob", name).await.data["status"]["jobDeploymentStatus"].clone();
            if actual == status { Ok(()) } else { Err(format!("it is {actual}")) }
        })
        .await;
    }

    /// Waits until a RayJob is pending with `why` in its message.
    async fn wait_until_pending(&self, name: &str, why: &str) {
        eventually_or_err(&format!("RayJob {name} is pending: {why}"), async || {
            let shown = self.get("RayJob", name).await.annotations().get(CONDITIONS).cloned().unwrap_or_default();
            let conditions: Vec<_> = serde_saphyr::from_str(&shown).unwrap_or_default();
            let admitted = condition::get(&conditions, "sluice.dev/Admitted");
            match admitted.filter(|found| found.status == "False" && found.message.contains(why)) {
                Some(_) => Ok(()),
                None => Err(shown),
            }
        })
        .await;
    }

    /// Completes the pods with this label.
    async fn complete_pods(&self, label: &str) {
        let pods: Api<Pod> = Api::namespaced(self.env.client.clone(), NAMESPACE);
        let done = Patch::Merge(json!({"metadata": {"annotations": {"testenv.sluice.dev/phase": "succeeded"}}}));
        for pod in pods.list(&ListParams::default().labels(label)).await.expect("pods") {
            pods.patch(&pod.name_any(), &PatchParams::default(), &done).await.expect("the pod is done");
        }
    }

    async fn check_invariants(&self) {
        let breaches = invariants::violations(&self.recorder.history().await);
        assert!(breaches.is_empty(), "{breaches:#?}");
    }
}

/// Returns this CPU quota and ample memory, which KubeRay's own containers request.
fn quota(cpu: &str) -> Value {
    let resources = json!([{"name": "cpu", "nominalQuota": cpu}, {"name": "memory", "nominalQuota": "1Ti"}]);
    json!([{"coveredResources": ["cpu", "memory"], "flavors": [{"name": FLAVOR, "resources": resources}]}])
}

fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

/// Returns a cluster of a head and this many workers, with 1 CPU each.
fn cluster(workers: u32) -> Value {
    let template = json!({"spec": {"containers": [
        {"name": "ray", "image": "rayproject/ray:2.52.0", "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "1"}}},
    ]}});
    let group = json!({
        "groupName": "small", "replicas": workers, "minReplicas": 0, "maxReplicas": 9, "rayStartParams": {},
        "template": template,
    });
    json!({"headGroupSpec": {"rayStartParams": {}, "template": template}, "workerGroupSpecs": [group]})
}

fn ray_job(name: &str, spec: Value) -> Value {
    let mut whole = json!({"entrypoint": "python -c 1", "submissionMode": "K8sJobMode"});
    whole.as_object_mut().expect("a spec").extend(spec.as_object().cloned().unwrap_or_default());
    let meta = json!({"name": name, "labels": {"kueue.x-k8s.io/queue-name": QUEUE}});
    json!({"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": meta, "spec": whole})
}

fn with_cluster(name: &str, workers: u32) -> Value {
    ray_job(name, json!({"rayClusterSpec": cluster(workers), "shutdownAfterJobFinishes": true}))
}

#[tokio::test]
async fn ray_job_stays_within_its_quota_over_its_lifecycle() {
    // Given too little quota, a RayJob is pending without a cluster and reports why; only Sluice
    // may start it;
    let fixture = Fixture::new().await;
    fixture.queue("2").await;
    create(&fixture.env.client, with_cluster("train", 1)).await.expect("a RayJob");
    fixture.wait_until_pending("train", "cpu").await;
    fixture.wait_for_status("train", "Suspended").await;
    assert!(fixture.list("RayCluster").await.is_empty());
    let opened = Patch::Merge(json!({"spec": {"suspend": false}}));
    let refusal = eventually("the policy is enforced", async || {
        let dry_run = PatchParams { dry_run: true, ..PatchParams::default() };
        api_of(&fixture.env.client, "RayJob").patch("train", &dry_run, &opened).await.err()
    })
    .await;
    assert!(
        refusal.to_string().contains("spec.suspend of a queued RayJob cannot be set to false by hand"),
        "{refusal}"
    );

    // with enough it runs: a head, a worker, and once those are ready the submitter pod;
    fixture.resize("2500m").await;
    fixture.wait_for_pods(3, 0).await;
    fixture.wait_for_status("train", "Running").await;
    fixture.wait_for_reserved_cpu("2500m").await;

    // workers added by its autoscaler wait for quota, pod by pod, and removed ones release it;
    let [cluster] = fixture.list("RayCluster").await.try_into().expect("one cluster");
    let scaled =
        |workers: u32| json!([{"op": "replace", "path": "/spec/workerGroupSpecs/0/replicas", "value": workers}]);
    let scale = async |workers| {
        let patch: json_patch::Patch = serde_json::from_value(scaled(workers)).expect("a patch");
        let patch = Patch::Json::<()>(patch);
        api_of(&fixture.env.client, "RayCluster")
            .patch(&cluster, &PatchParams::default(), &patch)
            .await
            .expect("scaled");
    };
    scale(3).await;
    fixture.wait_for_pods(3, 2).await;
    fixture.resize("3500m").await;
    fixture.wait_for_pods(4, 1).await;
    fixture.wait_for_reserved_cpu("3500m").await;
    scale(1).await;
    fixture.wait_for_pods(3, 0).await;
    fixture.wait_for_reserved_cpu("2500m").await;

    // it is preempted by a job of higher priority, and starts again with another cluster;
    fixture
        .env
        .apply_object(json!({
            "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "WorkloadPriorityClass", "metadata": {"name": "high"}, "value": 100,
        }))
        .await;
    let mut urgent = with_cluster("urgent", 0);
    urgent["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] = "high".into();
    create(&fixture.env.client, urgent).await.expect("a RayJob");
    fixture.wait_for_status("train", "Suspended").await;
    fixture.wait_for_status("urgent", "Running").await;
    fixture.wait_for_pods(2, 0).await;
    fixture.wait_for_reserved_cpu("1500m").await;

    // its quota is released once it is finished and its pods are gone,
    set_dashboard_behavior(&fixture.env, &json!({"jobStatus": "SUCCEEDED"})).await;
    fixture.complete_pods("batch.kubernetes.io/job-name=urgent").await;
    fixture.wait_for_status("urgent", "Complete").await;
    set_dashboard_behavior(&fixture.env, &json!({})).await;
    fixture.wait_for_status("train", "Running").await;
    fixture.wait_for_pods(3, 0).await;
    fixture.wait_for_reserved_cpu("2500m").await;

    // and nothing of it is left when it is deleted.
    for name in ["train", "urgent"] {
        api_of(&fixture.env.client, "RayJob").delete(name, &DeleteParams::background()).await.expect("a deletion");
    }
    eventually_or_err("nothing is left", async || {
        let left = (fixture.list("RayCluster").await, fixture.pods().await.len());
        let slices = fixture.env.workloads().list(&ListParams::default()).await.expect("the slices").items.len();
        if left.0.is_empty() && left.1 == 0 && slices == 0 { Ok(()) } else { Err(format!("{left:?}, {slices} slices")) }
    })
    .await;
    fixture.wait_for_reserved_cpu("0").await;
    fixture.check_invariants().await;
}

#[tokio::test]
async fn ray_job_on_an_existing_cluster_requests_quota_for_its_submitter_only() {
    // Given a queued cluster that uses all of the quota,
    let fixture = Fixture::new().await;
    fixture.queue("2").await;
    let meta = json!({"name": "shared", "labels": {"kueue.x-k8s.io/queue-name": QUEUE, "team": "a"}});
    let shared = json!({"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": meta, "spec": cluster(1)});
    create(&fixture.env.client, shared).await.expect("a cluster");
    fixture.wait_for_pods(2, 0).await;
    fixture.wait_for_reserved_cpu("2").await;

    // when a RayJob is submitted to it, then quota is requested only for its submitter, which is
    // pending;
    let submitted = json!({"clusterSelector": {"ray.io/cluster": "shared"}});
    create(&fixture.env.client, ray_job("ask", submitted)).await.expect("a RayJob");
    eventually_or_err("its submitter is pending", async || {
        let job = api_of(&fixture.env.client, "Job").get("ask").await.map_err(|error| error.to_string())?;
        let conditions = job.data["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let waits = |condition: &Value| condition["type"] == "sluice.dev/Admitted" && condition["status"] == "False";
        if conditions.iter().any(waits) { Ok(()) } else { Err(format!("{conditions:?}")) }
    })
    .await;
    fixture.wait_for_pods(2, 0).await;
    fixture.wait_for_reserved_cpu("2").await;

    // with quota for that it runs, and releases it when it is finished.
    fixture.resize("2500m").await;
    fixture.wait_for_pods(3, 0).await;
    fixture.wait_for_reserved_cpu("2500m").await;
    set_dashboard_behavior(&fixture.env, &json!({"jobStatus": "SUCCEEDED"})).await;
    fixture.complete_pods("batch.kubernetes.io/job-name=ask").await;
    fixture.wait_for_status("ask", "Complete").await;
    fixture.wait_for_pods(2, 0).await;
    fixture.wait_for_reserved_cpu("2").await;
    fixture.check_invariants().await;
}

#[tokio::test]
async fn ray_job_holds_quota_until_its_pods_are_gone_even_after_its_cluster() {
    // Given a running RayJob with a pod that terminates slowly;
    let fixture = Fixture::new().await;
    fixture.queue("2").await;
    let without_submitter = |name: &str| {
        let mut job = with_cluster(name, 1);
        job["spec"]["submissionMode"] = "HTTPMode".into();
        job
    };
    create(&fixture.env.client, without_submitter("train")).await.expect("a RayJob");
    fixture.wait_for_status("train", "Running").await;
    fixture.wait_for_pods(2, 0).await;
    let pods = fixture.pods().await;
    let worker = pods.iter().find(|pod| pod.labels().get("ray.io/node-type").is_some_and(|kind| kind == "worker"));
    let worker = worker.expect("a worker").name_any();
    let finalizers = |names: Value| json!({"metadata": {"finalizers": names}});
    fixture.patch("Pod", &worker, finalizers(json!(["test.sluice.dev/linger"]))).await.expect("a finalizer");

    // when it is preempted, then its cluster is deleted, and the quota of the remaining pod stays
    // reserved even if Sluice restarts;
    fixture
        .env
        .apply_object(json!({
            "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "WorkloadPriorityClass", "metadata": {"name": "high"}, "value": 100,
        }))
        .await;
    let mut urgent = without_submitter("urgent");
    urgent["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] = "high".into();
    create(&fixture.env.client, urgent).await.expect("a RayJob");
    fixture.wait_for_status("train", "Suspended").await;
    assert_eq!(fixture.list("RayCluster").await, Vec::<String>::new());
    let fixture = fixture.restart().await;
    fixture.wait_until_pending("urgent", "whose quota is reserved for it: default/rayjob-train").await;
    fixture.wait_for_status("urgent", "Suspended").await;
    fixture.wait_for_pods(1, 0).await;

    // and once that pod is gone the other job runs.
    fixture.patch("Pod", &worker, finalizers(Value::Null)).await.expect("it may go");
    fixture.wait_for_status("urgent", "Running").await;
    fixture.wait_for_pods(2, 0).await;
    fixture.wait_for_reserved_cpu("2").await;
    fixture.check_invariants().await;
}

#[tokio::test]
async fn ungateable_ray_job_is_rejected_and_so_is_opening_a_gate() {
    let env = start_control_plane().await;
    let made = async |object: Value| create(&env.client, object).await.map(drop).map_err(|error| error.to_string());
    let patched = async |name: &str, patch: Value| {
        let params = PatchParams { dry_run: true, ..PatchParams::default() };
        let answer = api_of(&env.client, "RayJob").patch(name, &params, &Patch::Merge(patch)).await;
        answer.map(drop).map_err(|error| error.to_string())
    };
    let mut waiting = with_cluster("waiting", 0);
    waiting["spec"]["suspend"] = true.into();
    let mut free = with_cluster("free", 0);
    free["metadata"]["labels"] = json!({});
    for job in [waiting, with_cluster("running", 0), free] {
        made(job).await.expect("a RayJob");
    }
    let keeps = ray_job("keeps", json!({"rayClusterSpec": cluster(0)}));
    let both = ray_job("both", json!({"rayClusterSpec": cluster(0), "clusterSelector": {"ray.io/cluster": "a"}}));
    let moved = json!({"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "b"}}});
    let opened = json!({"spec": {"suspend": false}});
    let keeps_cluster = json!({"spec": {"shutdownAfterJobFinishes": false}});
    eventually_or_err("the policies are enforced", async || {
        patched("waiting", opened.clone()).await.err().ok_or_else(String::new)?;
        patched("running", moved.clone()).await.err().ok_or_else(String::new)?;
        patched("running", keeps_cluster.clone()).await.err().map(drop).ok_or_else(String::new)
    })
    .await;

    let cases = [
        (
            "a job that keeps its cluster",
            made(keeps).await,
            "spec.shutdownAfterJobFinishes of a queued RayJob must be true",
        ),
        (
            "a job with a cluster spec and a selector",
            made(both).await,
            "spec.clusterSelector and spec.rayClusterSpec of a queued RayJob are mutually exclusive",
        ),
        (
            "the gate is opened",
            patched("waiting", opened.clone()).await,
            "spec.suspend of a queued RayJob cannot be set to false by hand",
        ),
        (
            "a running job is moved",
            patched("running", moved.clone()).await,
            "of a RayJob can change only while spec.suspend is true",
        ),
        ("a pending job is moved", patched("waiting", moved.clone()).await, ""),
        ("a running job is suspended", patched("running", json!({"spec": {"suspend": true}})).await, ""),
        ("an unqueued job keeps its cluster", patched("free", keeps_cluster).await, ""),
    ];
    for (what, answer, refusal) in cases {
        match answer {
            Ok(()) => assert_eq!(refusal, "", "{what}: accepted"),
            Err(message) => assert!(!refusal.is_empty() && message.contains(refusal), "{what}: {message}"),
        }
    }
}
