//! Fixture for changes of pod resources, with our Ray operator or with another one, and the
//! manifests it uses.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::{Value, json};
use sluice_api::condition;
use sluice_api::kueue::scheduling_gate::is_gated;

use crate::admission_policies::webhook;
use crate::rayclusters::cluster_manifest;
use sluice_testkit::fake_kuberay::FakeKubeRay;
use sluice_testkit::history::{Change, Object, Recorder};
use sluice_testkit::objects::{QUEUE, QUEUE_SAMPLE, SERVICE_SAMPLE, reserved_amount};
use sluice_testkit::{Manager, TestEnv, eventually_or_err, invariants};

/// Resource name of GPUs.
pub(crate) const GPU: &str = "nvidia.com/gpu";

/// The Ray operator that creates the pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RayOperatorKind {
    /// Sluice's own operator.
    Ours,
    /// The fake KubeRay.
    Another,
}

/// A control plane with a queue, a manager, and a recorder of its complete history.
pub(crate) struct Fixture {
    pub(crate) env: TestEnv,
    recorder: Recorder,
    _manager: Manager,
    _operator: Option<FakeKubeRay>,
}

impl Fixture {
    pub(crate) async fn start(operator: RayOperatorKind) -> Self {
        Self::start_in(TestEnv::start().await, operator).await
    }

    /// Starts the operators in a control plane.
    pub(crate) async fn start_in(env: TestEnv, operator: RayOperatorKind) -> Self {
        let recorder = Recorder::start(env.client.clone(), None).await;
        env.apply(QUEUE_SAMPLE).await.expect("the queue");
        let (manager, operator) = match operator {
            RayOperatorKind::Ours => (env.manager().await, None),
            RayOperatorKind::Another => {
                let (manager, _) = webhook::start_manager_and_wait_for_webhook(&env, &["--ray-operator=false"]).await;
                (manager, Some(FakeKubeRay::start(&env).await))
            }
        };
        Self { env, recorder, _manager: manager, _operator: operator }
    }

    /// Waits until exactly this amount of a resource is reserved in the ClusterQueue.
    pub(crate) async fn wait_for_reserved(&self, resource: &str, amount: &str) {
        eventually_or_err(&format!("the queue reserves {amount} of {resource}"), async || {
            let actual = reserved_amount(&self.env.cluster_queues().get(QUEUE).await.expect("the queue"), resource);
            if actual == amount { Ok(()) } else { Err(format!("but {actual}")) }
        })
        .await;
    }

    /// Waits until a cluster has this many gated and ungated pods. Returns its pods.
    pub(crate) async fn wait_for_pods(&self, cluster: &str, waiting: usize, running: usize) -> Vec<Pod> {
        eventually_or_err(&format!("{cluster} has {waiting} gated and {running} ungated pods"), async || {
            let pods = self.env.pods_of(cluster).await;
            let gated = pods.iter().filter(|pod| is_gated(pod)).count();
            let actual = (gated, pods.len() - gated);
            if actual == (waiting, running) { Ok(pods) } else { Err(format!("but {actual:?}")) }
        })
        .await
    }

    /// Checks the end of a scenario: the reserved quota equals the requests of the pods, no
    /// invariant was violated, no Workload was evicted, and no running cluster was suspended.
    /// Returns the history.
    pub(crate) async fn check_history(&self) -> Vec<Change> {
        let history = self.check_history_with_evictions().await;
        for change in &history {
            if let Object::Workload(slice) = &change.object {
                let conditions = slice.status.clone().unwrap_or_default().conditions;
                assert!(!condition::is_true(&conditions, "Evicted"), "{} was evicted", slice.name_any());
            }
        }
        let mut opened = BTreeMap::new();
        for change in &history {
            let Object::RayCluster(cluster) = &change.object else { continue };
            let (name, suspended) = (cluster.name_any(), cluster.spec.suspend == Some(true));
            let (was_suspended, was_opened) = opened.get(&name).copied().unwrap_or((false, false));
            assert!(!(suspended && was_opened), "{name} was suspended again");
            opened.insert(name, (suspended, was_opened || was_suspended && !suspended));
        }
        history
    }

    /// Like [`Self::ends`], for scenarios with evictions: allows evicted Workloads and suspended
    /// clusters.
    pub(crate) async fn check_history_with_evictions(&self) -> Vec<Change> {
        let history = eventually_or_err("the reserved quota equals the requests of the pods", async || {
            let history = self.recorder.history().await;
            let inexact = invariants::reservation_mismatches(&history);
            if inexact.is_empty() { Ok(history) } else { Err(inexact.join("\n")) }
        })
        .await;
        let breaches = invariants::violations(&history);
        assert!(breaches.is_empty(), "{}", breaches.join("\n"));
        history
    }
}

/// Sets the quota of the sample's flavor.
pub(crate) async fn set_quota(fixture: &Fixture, cpu: &str, memory: &str, gpus: &str) {
    let quota = [("cpu", cpu), ("memory", memory), (GPU, gpus)];
    let resources = quota.map(|(name, quota)| json!({"name": name, "nominalQuota": quota}));
    let flavor = json!({"name": "default-flavor", "resources": resources});
    let group = json!({"coveredResources": ["cpu", "memory", GPU], "flavors": [flavor]});
    fixture.env.patch_queue(QUEUE, json!({"resourceGroups": [group]})).await;
}

/// Returns a worker group.
pub(crate) fn worker_group(name: &str, replicas: u32, requests: Value) -> Value {
    let resources = json!({"requests": requests, "limits": requests});
    let container = json!({"name": "ray-worker", "image": "rayproject/ray:2.52.0", "resources": resources});
    json!({
        "groupName": name, "replicas": replicas, "minReplicas": 0, "maxReplicas": 9, "rayStartParams": {},
        "template": {"spec": {"containers": [container]}},
    })
}

/// Returns a worker group whose workers request `cpu` milli-CPU and 1 GiB each.
pub(crate) fn worker_group_of_cpu(name: &str, replicas: u32, cpu: u32) -> Value {
    worker_group(name, replicas, json!({"cpu": format!("{cpu}m"), "memory": "1Gi"}))
}

/// Returns the sample RayService with this Ray version and these worker groups.
pub(crate) fn sample_service(version: &str, groups: &[Value]) -> Value {
    let mut service: Value = serde_saphyr::from_str(SERVICE_SAMPLE).expect("YAML");
    service["spec"]["rayClusterConfig"]["rayVersion"] = version.into();
    service["spec"]["rayClusterConfig"]["workerGroupSpecs"] = groups.into();
    service
}

/// Returns a standalone RayCluster with these worker groups.
pub(crate) fn standalone_cluster(groups: &[Value]) -> Value {
    let mut cluster: Value = serde_saphyr::from_str(&cluster_manifest()).expect("YAML");
    cluster["spec"]["workerGroupSpecs"] = groups.into();
    cluster
}

/// Returns the names of all PodSets in a history.
pub(crate) fn pod_sets(history: &[Change]) -> BTreeSet<String> {
    let slices = history.iter().filter_map(|change| match &change.object {
        Object::Workload(slice) => Some(slice),
        _ => None,
    });
    slices.flat_map(|slice| slice.spec.pod_sets.iter().map(|set| set.name.clone())).collect()
}
