//! Upgrades and edits that change what pods ask for: each pod is charged as what it is, from its start to its end, and nothing
//! that serves is stopped. Most are told twice: with our own Ray operator, and with that half off beside [`KubeRay`].
//!
//! What the proof of concept and Kueue left open, and what tests it (in `tests/integration`, if no path is given):
//!
//! | limit or failure | test |
//! |---|---|
//! | proof of concept, 1: an upgrade to other resources is miscounted | `an_upgrade_to_more_gpus…` here; `upgrades::an_upgrade_to_bigger_pods_is_charged_for_what_it_is` |
//! | proof of concept, 2: who clears the template's gate gets pods without quota | `guard::tampering::a_template_that_is_opened_while_sluice_is_down…` |
//! | a) a change outside of the pods runs a second cluster unaccounted | `upgrades::an_upgrade_waits_for_quota_and_goes_through…` (only `rayVersion` changes) |
//! | b) a change of the pods stops the service | `an_upgrade_to_more_gpus…` and `groups_come…` here: what serves is never suspended |
//! | c) an elastic service of unchanged counts hangs in its upgrade | `an_elastic_service_of_unchanged_size…` here |
//! | d) a service that runs can't be evicted | `a_service_that_runs_is_drained…` here; `evictions`, `preemption` |
//! | kueue#9015, #11195: quota leaks, the old slice being over first | the watchdog (I4) beside every scenario; `src/queue/tests/slices.rs` |
//! | kueue#9322: PodSets that stay as they are are counted twice | `src/queue/tests/behaviours/slices.rs`, B24 |
//! | kueue#11327: two successors under rapid changes | `src/engine/tests/growth.rs`, `src/jobframework/tests/changes.rs` |
//! | kueue#11977, #12045: more pods are let go than are granted | the watchdog (I3, PodSet by PodSet); `src/jobframework/ungate.rs` |
//! | kueue#12931: slices of one second in the wrong order | `src/jobframework/tests/changes.rs`, `src/queue/tests/behaviours/slices.rs`, B55 |
//! | kueue#13071: a claim on another namespace's slice | `src/queue/tests/slices.rs`, `nobody_takes_over_what_is_not_theirs` |
//! | kueue#12670: a scale-down is refused, and its quota stays away | `src/queue/tests/behaviours/slices.rs` |
//! | kueue#14129, #14139: gated for ever, the first slice being gone | `src/jobframework/tests/changes.rs` |
//! | kueue#14277, #14703: pods and quota are found late | `src/engine/tests/growth.rs` |
//! | kueue#9879, #9986: pods that were started anew stay gated | `a_cluster_that_is_edited_in_place…` here: its pods are deleted one by one |
//! | kueue#10167: no gates at creation; the webhook in the way of finalizers | `guard::webhook`; pods are born gated in every scenario of [`KubeRay`] here |
//! | kueue#14792: another flavor once a count was 0 | `src/queue/tests/behaviours/slices.rs` |
//! | kueue#12350, #12403: no flavor labels on pods that were let go | `a_node_selector_that_changes…` here |
//! | kueue#13025: a group that is added | `groups_of_a_cluster_that_runs_come_go…` here |
//!
//! Not there: MultiKueue (#13489), topology (#15617), provisioning requests (#14316).

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use rstest::rstest;
use serde_json::{Value, json};
use sluice::api::condition;
use sluice::api::kueue::scheduling_gate::is_gated;

use crate::guard::webhook;
use crate::process::free_port;
use crate::rayclusters::{CLUSTER, manifest};
use crate::support::history::{Change, Object, Recorder};
use crate::support::kuberay::KubeRay;
use crate::support::objects::{QUEUE, QUEUE_SAMPLE, SERVICE_SAMPLE, reserved};
use crate::support::{Manager, TestEnv, eventually, eventually_or_tell, invariants};

const GPU: &str = "nvidia.com/gpu";

/// Who makes the pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operator {
    Ours,
    Another,
}

/// A control plane with a queue, watched from the beginning.
struct Stage {
    env: TestEnv,
    recorder: Recorder,
    _manager: Manager,
    _operator: Option<KubeRay>,
}

impl Stage {
    async fn with(operator: Operator) -> Self {
        let env = TestEnv::start().await;
        let recorder = Recorder::start(env.client.clone(), None).await;
        env.apply(QUEUE_SAMPLE).await.expect("the queue");
        let (manager, operator) = match operator {
            Operator::Ours => (env.manager().await, None),
            Operator::Another => {
                let port = free_port();
                webhook::configure(&env, port).await;
                let manager = webhook::manager_at(&env, port, &["--ray-operator=false"]).await;
                let called = async || webhook::is_gated(&env.client).await.then_some(());
                eventually("the webhook is called", called).await;
                (manager, Some(KubeRay::start(&env).await))
            }
        };
        Self { env, recorder, _manager: manager, _operator: operator }
    }

    /// Waits until the queue holds exactly this much of a resource.
    async fn reserves(&self, resource: &str, amount: &str) {
        eventually_or_tell(&format!("the queue reserves {amount} of {resource}"), async || {
            let is = reserved(&self.env.cluster_queues().get(QUEUE).await.expect("the queue"), resource);
            if is == amount { Ok(()) } else { Err(format!("but {is}")) }
        })
        .await;
    }

    /// Waits until a cluster has so many pods that wait for quota, and so many that don't.
    async fn has_pods(&self, cluster: &str, waiting: usize, running: usize) -> Vec<Pod> {
        eventually_or_tell(&format!("{cluster} has {waiting} pods that wait, and {running} others"), async || {
            let pods = self.env.pods_of(cluster).await;
            let gated = pods.iter().filter(|pod| is_gated(pod)).count();
            let is = (gated, pods.len() - gated);
            if is == (waiting, running) { Ok(pods) } else { Err(format!("but {is:?}")) }
        })
        .await
    }

    /// Ends a scenario: in the end exactly that is reserved which the pods request, nothing was broken on the way, and nothing
    /// that ran was stopped.
    async fn ends(&self) -> Vec<Change> {
        let history = self.ends_after_an_eviction().await;
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

    async fn ends_after_an_eviction(&self) -> Vec<Change> {
        let history = eventually_or_tell("what is reserved is what runs", async || {
            let history = self.recorder.history().await;
            let inexact = invariants::inexact(&history);
            if inexact.is_empty() { Ok(history) } else { Err(inexact.join("\n")) }
        })
        .await;
        let breaches = invariants::breaches(&history);
        assert!(breaches.is_empty(), "{}", breaches.join("\n"));
        history
    }
}

/// The quota of the sample's flavor.
async fn set_quota(stage: &Stage, cpu: &str, memory: &str, gpus: &str) {
    let quota = [("cpu", cpu), ("memory", memory), (GPU, gpus)];
    let resources = quota.map(|(name, quota)| json!({"name": name, "nominalQuota": quota}));
    let flavor = json!({"name": "default-flavor", "resources": resources});
    let group = json!({"coveredResources": ["cpu", "memory", GPU], "flavors": [flavor]});
    stage.env.change_queue(QUEUE, json!({"resourceGroups": [group]})).await;
}

/// A group of workers.
fn group(name: &str, replicas: u32, requests: Value) -> Value {
    let resources = json!({"requests": requests, "limits": requests});
    let container = json!({"name": "ray-worker", "image": "rayproject/ray:2.52.0", "resources": resources});
    json!({
        "groupName": name, "replicas": replicas, "minReplicas": 0, "maxReplicas": 9, "rayStartParams": {},
        "template": {"spec": {"containers": [container]}},
    })
}

/// Workers of this many milli-CPU and 1 GiB each.
fn workers(name: &str, replicas: u32, cpu: u32) -> Value {
    group(name, replicas, json!({"cpu": format!("{cpu}m"), "memory": "1Gi"}))
}

/// The sample's service, of this version and with these groups.
fn service(version: &str, groups: &[Value]) -> Value {
    let mut service: Value = serde_saphyr::from_str(SERVICE_SAMPLE).expect("YAML");
    service["spec"]["rayClusterConfig"]["rayVersion"] = version.into();
    service["spec"]["rayClusterConfig"]["workerGroupSpecs"] = groups.into();
    service
}

/// A cluster of its own, with these groups.
fn cluster(groups: &[Value]) -> Value {
    let mut cluster: Value = serde_saphyr::from_str(&manifest()).expect("YAML");
    cluster["spec"]["workerGroupSpecs"] = groups.into();
    cluster
}

/// The names of all PodSets that there ever were.
fn pod_sets(history: &[Change]) -> BTreeSet<String> {
    let slices = history.iter().filter_map(|change| match &change.object {
        Object::Workload(slice) => Some(slice),
        _ => None,
    });
    slices.flat_map(|slice| slice.spec.pod_sets.iter().map(|set| set.name.clone())).collect()
}

#[rstest]
#[case::our_operator(Operator::Ours)]
#[case::another_operator(Operator::Another)]
#[tokio::test]
async fn an_upgrade_to_more_gpus_a_worker_is_charged_for_both_as_they_are(#[case] operator: Operator) {
    let stage = Stage::with(operator).await;
    let gpus = |gpus: &str| group("small", 1, json!({"cpu": "500m", "memory": "1Gi", GPU: gpus}));
    set_quota(&stage, "4", "16Gi", "2").await;
    stage.env.put(service("2.52.0", &[gpus("1")])).await;
    stage.env.serves_from("2.52.0").await;
    stage.reserves(GPU, "1").await;

    // Given one GPU in use, and one that is free, when a worker is to have two, then the upgrade waits for a third,
    stage.env.put(service("2.53.0", &[gpus("2")])).await;
    let (pending, message) = stage.env.waits_for_quota().await;
    assert!(message.contains(GPU) && message.contains("nominalQuota is 3"), "{message}");
    assert!(stage.env.pods_of(&pending).await.is_empty());
    stage.reserves(GPU, "1").await;

    // and goes through when there is one; then it holds two.
    set_quota(&stage, "4", "16Gi", "3").await;
    assert_eq!(stage.env.serves_from("2.53.0").await, pending);
    stage.env.only_cluster(&pending).await;
    stage.reserves(GPU, "2").await;
    let names = pod_sets(&stage.ends().await);
    let others: Vec<&String> = names.iter().filter(|name| *name != "head" && *name != "small").collect();
    assert!(matches!(others.as_slice(), [other] if other.starts_with("small-")), "{names:?}");
}

#[rstest]
#[case::our_operator(Operator::Ours)]
#[case::another_operator(Operator::Another)]
#[tokio::test]
async fn groups_come_change_their_names_and_go_with_upgrades(#[case] operator: Operator) {
    let stage = Stage::with(operator).await;
    stage.env.set_quota("8", "32Gi").await;
    let upgrades = [
        ("2.52.0", vec![workers("small", 1, 500)], "1"),
        ("2.53.0", vec![workers("small", 1, 500), workers("large", 2, 1000)], "3"),
        ("2.54.0", vec![workers("tiny", 1, 500), workers("large", 2, 1000)], "3"),
        ("2.55.0", vec![workers("tiny", 1, 250)], "750m"),
    ];
    for (version, groups, cpu) in upgrades {
        stage.env.put(service(version, &groups)).await;
        let serving = stage.env.serves_from(version).await;
        stage.env.only_cluster(&serving).await;
        stage.reserves("cpu", cpu).await;
    }
    stage.ends().await;
}

#[rstest]
#[case::our_operator(Operator::Ours)]
#[case::another_operator(Operator::Another)]
#[tokio::test]
async fn a_node_selector_that_changes_is_charged_where_the_new_pods_run(#[case] operator: Operator) {
    let stage = Stage::with(operator).await;
    let nodes: Api<Node> = Api::all(stage.env.client.clone());
    for (number, node) in nodes.list(&ListParams::default()).await.expect("the nodes").into_iter().enumerate() {
        let labels = Patch::Merge(json!({"metadata": {"labels": {"pool": if number % 2 == 0 { "a" } else { "b" }}}}));
        nodes.patch(&node.name_any(), &PatchParams::default(), &labels).await.expect("the node has a pool");
    }
    let flavor = |pool: &str, cpu: &str, memory: &str| json!({"name": pool, "resources": [{"name": "cpu", "nominalQuota": cpu}, {"name": "memory", "nominalQuota": memory}]});
    for pool in ["a", "b"] {
        let spec = json!({"nodeLabels": {"pool": pool}});
        let kind =
            json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ResourceFlavor", "metadata": {"name": pool}});
        let mut object = kind;
        object["spec"] = spec;
        stage.env.put(object).await;
    }
    // Room for two heads and a worker in one, and for the other worker in the other.
    let flavors = [flavor("a", "1500m", "3Gi"), flavor("b", "500m", "1Gi")];
    let groups = json!([{"coveredResources": ["cpu", "memory"], "flavors": flavors}]);
    stage.env.change_queue(QUEUE, json!({"resourceGroups": groups})).await;
    let in_pool = |pool: &str| {
        let mut group = workers("small", 1, 500);
        group["template"]["spec"]["nodeSelector"] = json!({"pool": pool});
        group
    };
    let used = async || {
        let status = stage.env.cluster_queues().get(QUEUE).await.expect("the queue").status.unwrap_or_default();
        let flavors = status.flavors_reservation.iter().map(|flavor| {
            let cpu = flavor.resources.iter().find(|usage| usage.name == "cpu").and_then(|usage| usage.total.clone());
            cpu.map(|cpu| cpu.0).unwrap_or_default()
        });
        flavors.collect::<Vec<_>>()
    };

    for (version, pool, expected) in [("2.52.0", "a", ["1", "0"]), ("2.53.0", "b", ["500m", "500m"])] {
        stage.env.put(service(version, &[in_pool(pool)])).await;
        let serving = stage.env.serves_from(version).await;
        stage.env.only_cluster(&serving).await;
        eventually_or_tell(&format!("the flavors are used as {expected:?}"), async || {
            let used = used().await;
            if used == expected { Ok(()) } else { Err(format!("but {used:?}")) }
        })
        .await;
        // The head asks for no pool; its flavor says where it runs.
        for pod in stage.env.pods_of(&serving).await {
            let head = pod.labels().get("ray.io/node-type").is_some_and(|role| role == "head");
            let selector = pod.spec.and_then(|spec| spec.node_selector).unwrap_or_default();
            assert_eq!(selector.get("pool").map(String::as_str), Some(if head { "a" } else { pool }));
        }
    }
    stage.ends().await;
}

#[rstest]
#[case::our_operator(Operator::Ours)]
#[case::another_operator(Operator::Another)]
#[tokio::test]
async fn a_cluster_that_is_edited_in_place_pays_for_each_pod_as_it_was_made(#[case] operator: Operator) {
    let stage = Stage::with(operator).await;
    stage.env.set_quota("1500m", "3Gi").await;
    stage.env.put(cluster(&[workers("small", 2, 500)])).await;
    let pods = stage.has_pods(CLUSTER, 0, 3).await;
    stage.reserves("cpu", "1500m").await;
    let old: Vec<String> =
        pods.iter().filter(|pod| pod.labels()["ray.io/group"] == "small").map(ResourceExt::name_any).collect();

    // Given workers of half a CPU, when their template asks for a whole one, nothing happens to those that run.
    stage.env.put(cluster(&[workers("small", 2, 1000)])).await;

    // A worker that is lost gives back what it had; the one in its place asks for more, and waits for that.
    stage.env.pods().delete(&old[0], &DeleteParams::default()).await.expect("a worker is lost");
    stage.has_pods(CLUSTER, 1, 2).await;
    stage.reserves("cpu", "1").await;
    assert!(stage.env.pods().get_opt(&old[1]).await.expect("the other worker").is_some());
    stage.env.set_quota("1999m", "3Gi").await;
    stage.has_pods(CLUSTER, 1, 2).await;
    stage.env.set_quota("2", "3Gi").await;
    stage.has_pods(CLUSTER, 0, 3).await;
    stage.reserves("cpu", "2").await;

    // And so the other.
    stage.env.pods().delete(&old[1], &DeleteParams::default()).await.expect("a worker is lost");
    stage.has_pods(CLUSTER, 1, 2).await;
    stage.reserves("cpu", "1500m").await;
    stage.env.set_quota("2500m", "3Gi").await;
    stage.has_pods(CLUSTER, 0, 3).await;
    stage.reserves("cpu", "2500m").await;
    stage.ends().await;
}

#[rstest]
#[case::our_operator(Operator::Ours)]
#[case::another_operator(Operator::Another)]
#[tokio::test]
async fn groups_of_a_cluster_that_runs_come_go_and_change_their_names(#[case] operator: Operator) {
    let stage = Stage::with(operator).await;
    stage.env.set_quota("1", "4Gi").await;
    stage.env.put(cluster(&[workers("small", 1, 500)])).await;
    stage.has_pods(CLUSTER, 0, 2).await;

    // A group that comes waits for quota, as much as there is of it.
    stage.env.put(cluster(&[workers("small", 1, 500), workers("large", 2, 1000)])).await;
    stage.has_pods(CLUSTER, 2, 2).await;
    stage.env.set_quota("2", "4Gi").await;
    stage.has_pods(CLUSTER, 1, 3).await;
    stage.reserves("cpu", "2").await;
    stage.env.set_quota("3", "4Gi").await;
    stage.has_pods(CLUSTER, 0, 4).await;
    stage.reserves("cpu", "3").await;

    // One under another name is another one.
    stage.env.put(cluster(&[workers("tiny", 1, 500), workers("large", 2, 1000)])).await;
    eventually("the renamed group runs", async || {
        let pods = stage.env.pods_of(CLUSTER).await;
        let of =
            |group: &str| pods.iter().filter(|pod| pod.labels()["ray.io/group"] == group && !is_gated(pod)).count();
        (of("tiny") == 1 && of("small") == 0).then_some(())
    })
    .await;
    stage.reserves("cpu", "3").await;

    stage.env.put(cluster(&[workers("tiny", 1, 500)])).await;
    stage.has_pods(CLUSTER, 0, 2).await;
    stage.reserves("cpu", "1").await;
    stage.ends().await;
}

#[tokio::test]
async fn an_upgrade_of_more_kinds_of_pods_than_a_workload_holds_says_so_and_leaves_what_serves() {
    let stage = Stage::with(Operator::Ours).await;
    stage.env.set_quota("64", "256Gi").await;
    let all = |cpu: u32| (1..=9).map(|number| workers(&format!("group-{number}"), 1, cpu)).collect::<Vec<_>>();
    stage.env.put(service("2.52.0", &all(250))).await;
    let first = stage.env.serves_from("2.52.0").await;
    let pods = stage.has_pods(&first, 0, 10).await;
    let said = async |what: &str, is: &dyn Fn(&str, &str) -> bool| {
        eventually_or_tell(what, async || {
            let conditions = stage.env.service().await.status.unwrap_or_default().conditions;
            match condition::get(&conditions, "sluice.dev/Admitted") {
                Some(found) if is(&found.status, &found.message) => Ok(()),
                found => Err(format!("but {found:?}")),
            }
        })
        .await;
    };

    // Nine groups whose pods all change, beside a head that doesn't, are one PodSet too many.
    stage.env.put(service("2.53.0", &all(300))).await;
    said("it is said how many there are, and how many there may be", &|status, message| {
        let words = ["spec.workerGroupSpecs", "19 PodSets", "at most 18"];
        status == "False" && words.iter().all(|word| message.contains(word))
    })
    .await;
    let there = stage.env.pods_of(&first).await;
    assert_eq!(
        there.iter().map(ResourceExt::uid).collect::<Vec<_>>(),
        pods.iter().map(ResourceExt::uid).collect::<Vec<_>>()
    );

    // With one that stays as it is, they fit.
    let mut fewer = all(300);
    fewer[0] = workers("group-1", 1, 250);
    stage.env.put(service("2.54.0", &fewer)).await;
    let second = stage.env.serves_from("2.54.0").await;
    stage.env.only_cluster(&second).await;
    said("it is admitted", &|status, _| status == "True").await;
    stage.ends().await;
}

#[rstest]
#[case::our_operator(Operator::Ours)]
#[case::another_operator(Operator::Another)]
#[tokio::test]
async fn an_elastic_service_of_unchanged_size_is_upgraded_with_a_slice_of_its_own(#[case] operator: Operator) {
    let stage = Stage::with(operator).await;
    stage.env.set_quota("2", "4Gi").await;
    let elastic = |version: &str| {
        let mut service = service(version, &[workers("small", 1, 500)]);
        service["metadata"]["annotations"] = json!({"kueue.x-k8s.io/elastic-job": "true"});
        service
    };
    stage.env.put(elastic("2.52.0")).await;
    stage.env.serves_from("2.52.0").await;
    stage.reserves("cpu", "1").await;

    stage.env.put(elastic("2.53.0")).await;
    let second = stage.env.serves_from("2.53.0").await;
    stage.env.only_cluster(&second).await;
    stage.has_pods(&second, 0, 2).await;
    stage.reserves("cpu", "1").await;
    stage.ends().await;
}

#[rstest]
#[case::our_operator(Operator::Ours)]
#[case::another_operator(Operator::Another)]
#[tokio::test]
async fn a_service_that_runs_is_drained_and_comes_back(#[case] operator: Operator) {
    let stage = Stage::with(operator).await;
    stage.env.put(service("2.52.0", &[workers("small", 1, 500)])).await;
    let serving = stage.env.serves_from("2.52.0").await;
    stage.reserves("cpu", "1").await;

    stage.env.change_queue(QUEUE, json!({"stopPolicy": "HoldAndDrain"})).await;
    stage.has_pods(&serving, 0, 0).await;
    stage.reserves("cpu", "0").await;
    stage.env.change_queue(QUEUE, json!({"stopPolicy": "None"})).await;
    stage.has_pods(&serving, 0, 2).await;
    stage.reserves("cpu", "1").await;
    stage.ends_after_an_eviction().await;
}

#[tokio::test]
async fn pods_of_another_operator_are_born_gated_and_let_go_as_quota_comes() {
    let stage = Stage::with(Operator::Another).await;
    stage.env.put(cluster(&[workers("small", 1, 500)])).await;
    stage.has_pods(CLUSTER, 0, 2).await;
    stage.reserves("cpu", "1").await;

    stage.env.put(cluster(&[workers("small", 3, 500)])).await;
    stage.has_pods(CLUSTER, 2, 2).await;
    stage.env.set_quota("1500m", "4Gi").await;
    for pod in stage.has_pods(CLUSTER, 1, 3).await.iter().filter(|pod| !is_gated(pod)) {
        assert!(pod.labels().contains_key("kueue.x-k8s.io/podset"), "{} says what it is counted in", pod.name_any());
    }
    stage.env.set_quota("2", "4Gi").await;
    stage.has_pods(CLUSTER, 0, 4).await;
    stage.reserves("cpu", "2").await;
    stage.ends().await;
}
