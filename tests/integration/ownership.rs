//! Jobs that other objects own, lose their owner, or leave their owner's queue.

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use sluice_api::condition;
use sluice_api::kueue::Workload;
use sluice_api::ray::RayCluster;

use sluice_testkit::history::Recorder;
use sluice_testkit::invariants::{holds_quota, is_finished};
use sluice_testkit::objects::NAMESPACE;
use sluice_testkit::quotas::{cpu_and_memory_quota, local_queue, resource_flavor};
use sluice_testkit::{TestEnv, eventually, eventually_or_err, invariants};

const QUEUE: &str = "owned";

async fn queue(env: &TestEnv, cpu: &str) {
    env.apply_object(resource_flavor()).await;
    env.apply_queue(QUEUE, None, cpu_and_memory_quota(cpu), json!({})).await;
}

async fn resize(env: &TestEnv, cpu: &str) {
    env.patch_queue(QUEUE, json!({"resourceGroups": cpu_and_memory_quota(cpu)})).await;
}

/// Returns a queued RayCluster: a head of 1 CPU, and this many workers of 1 CPU.
fn cluster(name: &str, workers: u32) -> RayCluster {
    let template = |name: &str| {
        let resources = json!({"requests": {"cpu": "1"}, "limits": {"cpu": "1"}});
        json!({"spec": {"containers": [{"name": name, "image": "ray", "resources": resources}]}})
    };
    let worker = json!({
        "groupName": "w", "replicas": workers, "minReplicas": 0, "maxReplicas": 20, "rayStartParams": {},
        "template": template("ray-worker"),
    });
    let head = json!({"rayStartParams": {}, "template": template("ray-head")});
    let spec = json!({"rayVersion": "2.52.0", "headGroupSpec": head, "workerGroupSpecs": [worker]});
    let metadata = json!({"name": name, "labels": {"kueue.x-k8s.io/queue-name": QUEUE}});
    serde_json::from_value(json!({"metadata": metadata, "spec": spec})).expect("a RayCluster")
}

/// Returns a queued Job of two pods of 1 CPU each.
fn job(name: &str) -> Job {
    let container = json!({"name": "work", "image": "work", "resources": {"requests": {"cpu": "1"}}});
    let template = json!({"spec": {"restartPolicy": "Never", "containers": [container]}});
    let spec = json!({"suspend": true, "parallelism": 2, "completions": 200, "template": template});
    let metadata = json!({"name": name, "labels": {"kueue.x-k8s.io/queue-name": QUEUE}});
    serde_json::from_value(json!({"metadata": metadata, "spec": spec})).expect("a Job")
}

async fn create_cluster(env: &TestEnv, cluster: &RayCluster) {
    env.ray_clusters().create(&PostParams::default(), cluster).await.expect("a RayCluster");
}

async fn create_job(env: &TestEnv, job: &Job) {
    env.jobs().create(&PostParams::default(), job).await.expect("a Job");
}

async fn workloads(env: &TestEnv) -> Vec<Workload> {
    env.workloads().list(&ListParams::default()).await.expect("the Workloads").items
}

/// Waits until a Job or RayCluster has exactly this many pods, and all of them run.
async fn wait_for_running_pods(env: &TestEnv, job: &str, count: usize) {
    let is_of = |pod: &Pod| {
        ["batch.kubernetes.io/job-name", "ray.io/cluster"]
            .iter()
            .any(|label| pod.labels().get(*label).is_some_and(|name| name == job))
    };
    eventually_or_err(&format!("{count} pods of {job} run"), async || {
        let pods = env.pods().list(&ListParams::default()).await.expect("the pods").items;
        let phases: Vec<_> = pods
            .iter()
            .filter(|pod| is_of(pod))
            .map(|pod| pod.status.as_ref().and_then(|status| status.phase.clone()))
            .collect();
        let is_running = |phase: &Option<String>| phase.as_deref() == Some("Running");
        if phases.len() == count && phases.iter().all(is_running) { Ok(()) } else { Err(format!("{phases:?}")) }
    })
    .await;
}

/// Deletes the pods of a job one by one.
async fn delete_pods(env: &TestEnv, label: &str) {
    let pods = env.pods().list(&ListParams::default().labels(label)).await.expect("the pods").items;
    for pod in pods {
        env.pods().delete(&pod.name_any(), &DeleteParams::background()).await.expect("a deletion");
    }
}

#[tokio::test]
async fn cluster_that_a_stranger_owns_is_queued_by_its_own_label() {
    // Given 1 CPU of quota, and an object that owns a RayCluster of 9,
    let env = TestEnv::start().await;
    let recorder = Recorder::start(env.client.clone(), None).await;
    let _manager = env.manager().await;
    queue(&env, "1").await;
    let owners: Api<ConfigMap> = Api::namespaced(env.client.clone(), NAMESPACE);
    let pipeline = serde_json::from_value(json!({"metadata": {"name": "pipeline-run"}})).expect("a ConfigMap");
    let pipeline = owners.create(&PostParams::default(), &pipeline).await.expect("an owner");
    let mut owned = cluster("made-by-pipeline", 8);
    let reference = json!([{
        "apiVersion": "v1", "kind": "ConfigMap", "name": "pipeline-run", "uid": pipeline.uid(), "controller": true,
    }]);
    owned.metadata.owner_references = serde_json::from_value(reference).expect("an owner reference");
    create_cluster(&env, &owned).await;

    // then it waits with a Workload of its own, without a pod;
    let workload = eventually("the cluster has a pending Workload", async || {
        let [workload] = workloads(&env).await.try_into().ok()?;
        let pending = workload
            .status
            .as_ref()?
            .conditions
            .iter()
            .any(|found| found.type_ == "QuotaReserved" && found.status == "False");
        pending.then_some(workload)
    })
    .await;
    assert_eq!(workload.owner_references()[0].kind, "RayCluster");
    let held = env.ray_clusters().get("made-by-pipeline").await.expect("the cluster");
    assert_eq!(held.spec.suspend, Some(true));
    assert!(env.pods().list(&ListParams::default()).await.expect("the pods").items.is_empty());

    // with quota it runs;
    resize(&env, "9").await;
    wait_for_running_pods(&env, "made-by-pipeline", 9).await;
    env.wait_for_reserved_cpu_in(QUEUE, "9").await;

    // and it goes with its owner.
    owners.delete("pipeline-run", &DeleteParams::background()).await.expect("a deletion");
    eventually("nothing is left", async || {
        let clusters = env.ray_clusters().list(&ListParams::default()).await.expect("the clusters").items;
        (clusters.is_empty() && workloads(&env).await.is_empty()).then_some(())
    })
    .await;
    env.wait_for_reserved_cpu_in(QUEUE, "0").await;
    let breaches = invariants::violations(&recorder.history().await);
    assert!(breaches.is_empty(), "{breaches:#?}");
}

#[tokio::test]
async fn orphaned_pods_hold_their_quota_until_the_last_one_is_gone() {
    // Given a Job that uses all quota, and one that waits,
    let env = TestEnv::start().await;
    let recorder = Recorder::start(env.client.clone(), None).await;
    let _manager = env.manager().await;
    queue(&env, "2").await;
    create_job(&env, &job("left")).await;
    wait_for_running_pods(&env, "left", 2).await;
    create_job(&env, &job("next")).await;

    // when the first one is deleted without its pods, then they run on, charged,
    env.jobs().delete("left", &DeleteParams::orphan()).await.expect("a deletion");
    eventually("the Job is gone", async || {
        env.jobs().get_opt("left").await.expect("an answer").is_none().then_some(())
    })
    .await;
    eventually("its Workload is orphaned", async || {
        let orphaned = workloads(&env).await.into_iter().find(|workload| workload.owner_references().is_empty())?;
        (holds_quota(&orphaned) && !is_finished(&orphaned)).then_some(())
    })
    .await;
    wait_for_running_pods(&env, "left", 2).await;
    wait_for_running_pods(&env, "next", 0).await;

    // and the other one runs once they are gone.
    delete_pods(&env, "batch.kubernetes.io/job-name=left").await;
    wait_for_running_pods(&env, "next", 2).await;
    let left: Vec<Workload> =
        workloads(&env).await.into_iter().filter(|workload| workload.owner_references().is_empty()).collect();
    assert!(left.iter().all(is_finished), "{left:#?}");
    env.wait_for_reserved_cpu_in(QUEUE, "2").await;

    // A Job of the same name is another one, and waits.
    create_job(&env, &job("left")).await;
    let again = env.jobs().get("left").await.expect("the Job").uid();
    eventually("it has a Workload of its own", async || {
        workloads(&env)
            .await
            .into_iter()
            .find(|workload| workload.owner_references().iter().any(|owner| Some(&owner.uid) == again.as_ref()))
    })
    .await;
    wait_for_running_pods(&env, "left", 0).await;
    for name in ["left", "next"] {
        env.jobs().delete(name, &DeleteParams::background()).await.expect("a deletion");
    }
    env.wait_for_reserved_cpu_in(QUEUE, "0").await;

    // The same holds for a RayCluster.
    create_cluster(&env, &cluster("island", 1)).await;
    wait_for_running_pods(&env, "island", 2).await;
    env.ray_clusters().delete("island", &DeleteParams::orphan()).await.expect("a deletion");
    eventually("the cluster is gone", async || {
        env.ray_clusters().get_opt("island").await.expect("an answer").is_none().then_some(())
    })
    .await;
    wait_for_running_pods(&env, "island", 2).await;
    env.wait_for_reserved_cpu_in(QUEUE, "2").await;
    delete_pods(&env, "ray.io/cluster=island").await;
    env.wait_for_reserved_cpu_in(QUEUE, "0").await;
    let breaches = invariants::violations(&recorder.history().await);
    assert!(breaches.is_empty(), "{breaches:#?}");
}

#[tokio::test]
async fn job_stays_in_its_queue_where_there_is_a_default_queue() {
    // Given a namespace with a default LocalQueue, and jobs without a label that wait in it,
    let env = TestEnv::start().await;
    let _manager = env.manager().await;
    queue(&env, "1").await;
    let mut default = local_queue(QUEUE);
    default["metadata"]["name"] = json!("default");
    env.apply_object(default).await;
    let (mut sneaky_cluster, mut sneaky_job) = (cluster("sneaky", 2), job("sneaky-job"));
    sneaky_cluster.metadata.labels = None;
    sneaky_job.metadata.labels = None;
    eventually("the manager has observed the default queue", async || {
        let queue = env.local_queues().get("default").await.expect("the queue");
        queue.status.is_some().then_some(())
    })
    .await;
    create_cluster(&env, &sneaky_cluster).await;
    create_job(&env, &sneaky_job).await;
    eventually("both wait in the default queue", async || {
        let workloads = workloads(&env).await;
        (workloads.len() == 2
            && workloads.iter().all(|workload| workload.spec.queue_name.as_deref() == Some("default")))
        .then_some(())
    })
    .await;

    // when a user takes the label off, or opens the gate, then the API server refuses both;
    let unlabel = json!({"metadata": {"labels": {"kueue.x-k8s.io/queue-name": null}}});
    let unsuspend = json!({"spec": {"suspend": false}});
    for (kind, refused) in
        [("RayCluster", &unlabel), ("Job", &unlabel), ("RayCluster", &unsuspend), ("Job", &unsuspend)]
    {
        let message = eventually(&format!("{refused} of the {kind} is refused"), async || {
            patch(&env, kind, refused, true).await.err()
        })
        .await;
        let expected =
            if std::ptr::eq(refused, &unlabel) { "the namespace has the LocalQueue default" } else { "by hand" };
        assert!(message.contains(expected), "{message}");
    }

    // without the policies the label comes back and the gate is closed again, without a pod of the cluster.
    for policy in ["sluice-default-queue", "sluice-queue-names", "sluice-gate", "sluice-job-gate"] {
        env.delete_policy(policy).await;
    }
    for kind in ["RayCluster", "Job"] {
        eventually("the policies are gone", async || patch(&env, kind, &unlabel, true).await.ok()).await;
        patch(&env, kind, &unlabel, false).await.expect("no policy");
        patch(&env, kind, &unsuspend, false).await.expect("no policy");
    }
    eventually("both are in the default queue and suspended", async || {
        let cluster = env.ray_clusters().get("sneaky").await.expect("the cluster");
        let job = env.jobs().get("sneaky-job").await.expect("the Job");
        let is_default = |labels: &std::collections::BTreeMap<String, String>| {
            labels.get("kueue.x-k8s.io/queue-name").is_some_and(|queue| queue == "default")
        };
        let suspended = cluster.spec.suspend == Some(true) && job.spec.as_ref()?.suspend == Some(true);
        (suspended && is_default(cluster.labels()) && is_default(job.labels())).then_some(())
    })
    .await;
    assert!(env.pods_of("sneaky").await.is_empty());
    wait_for_running_pods(&env, "sneaky-job", 0).await;
    env.wait_for_reserved_cpu_in(QUEUE, "0").await;
}

#[tokio::test]
async fn cluster_whose_pods_would_be_refused_holds_no_quota() {
    // Given quota for one of two clusters, and the first one with a label that no pod may have,
    let env = TestEnv::start().await;
    let _manager = env.manager().await;
    queue(&env, "3").await;
    let mut typo = cluster("typo", 2);
    let labels = |value: &str| json!({"labels": {"cost-center": value}});
    typo.spec.worker_group_specs[0].template.0["metadata"] = labels("R&D / vision");
    create_cluster(&env, &typo).await;
    let why = eventually("the cluster is rejected", async || {
        let conditions =
            env.ray_clusters().get("typo").await.expect("the cluster").status.unwrap_or_default().conditions;
        condition::get_true(&conditions, "sluice.dev/SpecRejected").map(|found| found.message.clone())
    })
    .await;
    let field = "spec.workerGroupSpecs[0].template.metadata.labels[cost-center]: \"R&D / vision\" is not a valid value";
    assert!(why.contains(field), "{why}");

    // then the other one runs,
    create_cluster(&env, &cluster("fine", 2)).await;
    wait_for_running_pods(&env, "fine", 3).await;
    env.wait_for_reserved_cpu_in(QUEUE, "3").await;

    // and once it is mended, the first one waits, and runs after the other.
    let mended =
        json!([{"op": "replace", "path": "/spec/workerGroupSpecs/0/template/metadata", "value": labels("vision")}]);
    let mended = Patch::Json::<()>(serde_json::from_value(mended).expect("a JSON patch"));
    env.ray_clusters().patch("typo", &PatchParams::default(), &mended).await.expect("a valid label");
    eventually("it has a Workload", async || {
        workloads(&env)
            .await
            .into_iter()
            .find(|workload| workload.owner_references().iter().any(|owner| owner.name == "typo"))
    })
    .await;
    env.ray_clusters().delete("fine", &DeleteParams::background()).await.expect("a deletion");
    wait_for_running_pods(&env, "typo", 3).await;
    env.wait_for_reserved_cpu_in(QUEUE, "3").await;
}

#[tokio::test]
async fn jobs_whose_pods_the_namespace_forbids_hold_no_quota() {
    // Given quota, and a namespace that enforces a Pod Security Standard,
    let env = TestEnv::start().await;
    let _manager = env.manager().await;
    queue(&env, "5").await;
    let enforce = async |level: Value| {
        let labels = json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": level}}});
        let namespaces: Api<Namespace> = Api::all(env.client.clone());
        namespaces.patch(NAMESPACE, &PatchParams::default(), &Patch::Merge(labels)).await.expect("a namespace");
    };
    enforce(json!("baseline")).await;

    // when a Job and a cluster ask for host ports, then both say why they wait, and request nothing;
    let ports = json!([{"containerPort": 80, "hostPort": 80}]);
    let mut privileged_job = serde_json::to_value(job("train")).expect("JSON");
    privileged_job["spec"]["template"]["spec"]["containers"][0]["ports"] = ports.clone();
    create_job(&env, &serde_json::from_value(privileged_job).expect("a Job")).await;
    let mut privileged = serde_json::to_value(cluster("ray", 2)).expect("JSON");
    privileged["spec"]["workerGroupSpecs"][0]["template"]["spec"]["containers"][0]["ports"] = ports;
    create_cluster(&env, &serde_json::from_value(privileged).expect("a RayCluster")).await;
    let rejection = "the API server rejects its pods, so no quota is requested: pods";
    eventually_or_err("both are misconfigured", async || {
        let cluster = env.ray_clusters().get("ray").await.expect("the cluster").status.unwrap_or_default();
        let of_cluster = condition::get_false(&cluster.conditions, "sluice.dev/Admitted").map(|found| &*found.message);
        let job = env.jobs().get("train").await.expect("the Job").status.unwrap_or_default();
        let mut of_job = job.conditions.iter().flatten().filter(|found| found.type_ == "sluice.dev/Admitted");
        let of_job = of_job.find_map(|found| found.message.as_deref());
        let says = |text: Option<&str>| text.is_some_and(|text| text.contains(rejection) && text.contains("hostPort"));
        if says(of_cluster) && says(of_job) { Ok(()) } else { Err(format!("{of_cluster:?} {of_job:?}")) }
    })
    .await;
    assert!(workloads(&env).await.is_empty());
    env.wait_for_reserved_cpu_in(QUEUE, "0").await;

    // and once the namespace allows such pods, both run.
    enforce(Value::Null).await;
    wait_for_running_pods(&env, "train", 2).await;
    wait_for_running_pods(&env, "ray", 3).await;
    env.wait_for_reserved_cpu_in(QUEUE, "5").await;
}

/// Patches the RayCluster or Job of a user.
async fn patch(env: &TestEnv, kind: &str, patch: &Value, dry_run: bool) -> Result<(), String> {
    let (params, patch) = (PatchParams { dry_run, ..PatchParams::default() }, Patch::Merge(patch));
    let result = match kind {
        "Job" => env.jobs().patch("sneaky-job", &params, &patch).await.map(drop),
        _ => env.ray_clusters().patch("sneaky", &params, &patch).await.map(drop),
    };
    result.map_err(|error| error.to_string())
}
