//! Upgrades that exceed the quota while the active cluster runs, and upgrades whose admission times
//! out.

use std::collections::BTreeSet;

use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use sluice_api::condition;
use sluice_api::kueue::Workload;
use sluice_api::ray::RayCluster;
use sluice_api::ray::admission_annotations::{
    ADMISSION_TIMEOUT_ANNOTATION, EXCEEDS_QUOTA_ANNOTATION, TIMED_OUT_ANNOTATION,
};
use sluice_jobframework::slice_record::SliceRecord;
use sluice_jobframework::upgrade_feasibility::UPGRADE_ADMISSIBLE;
use tokio::sync::mpsc;

use crate::restarts::{KillPhase, run_with_kills};
use crate::upgrades::all_pod_names;
use sluice_testkit::history::{Change, Object, Recorder};
use sluice_testkit::objects::{SERVICE, cluster_name};
use sluice_testkit::{TestEnv, eventually, eventually_or_err, invariants};

/// Checks that no invariant was violated at any point. Returns the history.
async fn check_invariants(recorder: &Recorder) -> Vec<Change> {
    let history = recorder.history().await;
    let breaches = invariants::violations(&history);
    assert!(breaches.is_empty(), "{}", breaches.join("\n"));
    history
}

async fn annotate(env: &TestEnv, annotation: &str, value: Value) {
    let patch = json!({"metadata": {"annotations": {(annotation): value}}});
    env.ray_services().patch(SERVICE, &PatchParams::default(), &Patch::Merge(patch)).await.expect("it is annotated");
}

/// Waits until the condition of the upgrade has this reason. Returns its status and message.
async fn wait_for_upgrade_condition(env: &TestEnv, reason: &str) -> (String, String) {
    eventually_or_err(&format!("the upgrade has the reason {reason}"), async || {
        let conditions = env.get_service().await.status.unwrap_or_default().conditions;
        let found = condition::get(&conditions, UPGRADE_ADMISSIBLE).filter(|found| found.reason == reason);
        found.map(|found| (found.status.clone(), found.message.clone())).ok_or_else(|| format!("but {conditions:?}"))
    })
    .await
}

/// Waits until the service has no condition about an upgrade.
async fn wait_until_no_upgrade_condition(env: &TestEnv) {
    eventually("there is no condition about an upgrade", async || {
        let conditions = env.get_service().await.status.unwrap_or_default().conditions;
        condition::get(&conditions, UPGRADE_ADMISSIBLE).is_none().then_some(())
    })
    .await;
}

#[tokio::test]
async fn upgrade_exceeding_quota_reports_shortfall_and_completes_once_quota_is_raised() {
    let env = TestEnv::start().await;
    let recorder = Recorder::start(env.client.clone(), None).await;
    let _manager = env.manager().await;
    env.apply_samples().await;
    let first = env.wait_until_serving("2.52.0").await;
    let pods: Vec<String> = env.pods_of(&first).await.iter().map(ResourceExt::name_any).collect();

    // Given an upgrade that exceeds the quota, its service immediately reports the shortfall and
    // the remedies;
    env.set_ray_version("2.53.0").await;
    let (status, message) = wait_for_upgrade_condition(&env, "ExceedsMaxQuota").await;
    assert_eq!(status, "False");
    let words = [
        "cpu in flavor default-flavor: 2 needed, maximum capacity 1, 1 short, limited by the nominalQuota of ClusterQueue team-a",
        "memory in flavor default-flavor: 4Gi needed, maximum capacity 2Gi, 2Gi short",
        "raise the nominalQuota of cpu in flavor default-flavor of ClusterQueue team-a to at least 2 and raise the nominalQuota of memory",
        "annotation sluice.dev/when-upgrade-exceeds-quota: Recreate",
    ];
    words.iter().for_each(|words| assert!(message.contains(words), "{words} in {message}"));
    assert!(!message.contains("incremental"), "not even its head fits next to the active cluster: {message}");

    // the condition follows the quota,
    env.set_quota("1999m", "4Gi").await;
    eventually("the new quota shows", async || {
        let (_, message) = wait_for_upgrade_condition(&env, "ExceedsMaxQuota").await;
        (message.contains("1m short") && !message.contains("memory")).then_some(())
    })
    .await;
    let now: Vec<String> = env.pods_of(&first).await.iter().map(ResourceExt::name_any).collect();
    assert_eq!(now, pods, "the active cluster is unchanged");

    // and with enough quota the upgrade completes.
    env.set_quota("2", "4Gi").await;
    let second = env.wait_until_serving("2.53.0").await;
    env.wait_for_only_cluster(&second).await;
    env.wait_for_reserved_cpu("1").await;
    wait_until_no_upgrade_condition(&env).await;
    check_invariants(&recorder).await;
}

#[tokio::test]
async fn service_is_recreated_when_two_clusters_exceed_quota() {
    let env = TestEnv::start().await;
    let recorder = Recorder::start(env.client.clone(), None).await;
    let _manager = env.manager().await;
    env.apply_samples().await;
    annotate(&env, EXCEEDS_QUOTA_ANNOTATION, json!("Recreate")).await;
    let first = env.wait_until_serving("2.52.0").await;

    env.set_ray_version("2.53.0").await;
    let second = env.wait_until_serving("2.53.0").await;

    env.wait_for_only_cluster(&second).await;
    env.wait_for_reserved_cpu("1").await;
    env.wait_for_single_slice().await;
    wait_until_no_upgrade_condition(&env).await;
    let note = env.wait_for_event("RayService", "Recreate").await;
    assert!(note.contains(&format!("RayCluster {first} stops, and requests fail until {second} serves")), "{note}");
    // No pod of the new cluster was created before the last one of the old cluster was deleted.
    let history = check_invariants(&recorder).await;
    let is_pod_of = |change: &Change, cluster: &str| match &change.object {
        Object::Pod(pod) => pod.labels().get("ray.io/cluster").is_some_and(|name| name == cluster),
        _ => false,
    };
    let last = history.iter().rposition(|change| is_pod_of(change, &first)).expect("pods of the old cluster");
    let next = history.iter().position(|change| is_pod_of(change, &second)).expect("pods of the new cluster");
    assert!(history[last].deleted && last < next, "{last} and {next}");
}

#[tokio::test]
async fn service_is_not_recreated_when_the_new_cluster_exceeds_quota() {
    let env = TestEnv::start().await;
    let recorder = Recorder::start(env.client.clone(), None).await;
    let _manager = env.manager().await;
    env.apply_samples().await;
    annotate(&env, EXCEEDS_QUOTA_ANNOTATION, json!("Recreate")).await;
    let first = env.wait_until_serving("2.52.0").await;

    // Given an upgrade to a cluster that alone exceeds the quota,
    let groups = env.get_service().await.spec.ray_cluster_config.worker_group_specs;
    let mut groups = serde_json::to_value(groups).expect("JSON");
    let resources = json!({"cpu": "2", "memory": "1Gi"});
    groups[0]["template"]["spec"]["containers"][0]["resources"] = json!({"requests": resources, "limits": resources});
    let patch = json!({"spec": {"rayClusterConfig": {"workerGroupSpecs": groups}}});
    env.ray_services().patch(SERVICE, &PatchParams::default(), &Patch::Merge(patch)).await.expect("it is upgraded");

    // then a recreate is neither suggested nor done;
    let (status, message) = wait_for_upgrade_condition(&env, "ExceedsMaxQuota").await;
    assert_eq!(status, "False");
    assert!(!message.contains("Recreate"), "{message}");
    let pending = cluster_name(env.get_service().await.status.unwrap_or_default().pending_service_status.as_ref());
    let cluster = env.ray_clusters().get(&first).await.expect("the active cluster");
    assert_eq!((cluster.spec.suspend, env.pods_of(&first).await.len()), (Some(false), 2));

    // and with quota for the new cluster alone it completes.
    env.set_quota("2500m", "2Gi").await;
    let second = eventually("the service serves from another cluster", async || {
        let status = env.get_service().await.status.unwrap_or_default();
        let ready = condition::is_true(&status.conditions, "Ready");
        cluster_name(status.active_service_status.as_ref()).filter(|name| ready && *name != first)
    })
    .await;
    assert_eq!(Some(second.clone()), pending);
    env.wait_for_only_cluster(&second).await;
    env.wait_for_reserved_cpu("2500m").await;
    check_invariants(&recorder).await;
}

#[tokio::test]
async fn upgrade_times_out_and_is_not_retried_until_the_spec_changes() {
    let env = TestEnv::start().await;
    let recorder = Recorder::start(env.client.clone(), None).await;
    let _manager = env.manager().await;
    env.apply_samples().await;
    annotate(&env, ADMISSION_TIMEOUT_ANNOTATION, json!("8s")).await;
    let first = env.wait_until_serving("2.52.0").await;

    // Given an upgrade that is not admitted in time, its cluster is deleted and the reason
    // reported;
    env.set_ray_version("2.53.0").await;
    let (pending, _) = env.wait_for_pending_upgrade().await;
    let note = env.wait_for_event("RayService", "UpgradeAdmissionTimedOut").await;
    assert!(note.contains(&format!("RayCluster {pending} was not admitted within 8s")), "{note}");
    env.wait_for_only_cluster(&first).await;
    let timed_out = eventually("the service reports the timed out upgrade", async || {
        let service = env.get_service().await;
        let blocked =
            condition::get(&service.status.clone().unwrap_or_default().conditions, "sluice.dev/UpgradeBlocked")
                .is_some_and(|found| found.reason == "UpgradeAdmissionTimedOut");
        service.annotations().get(TIMED_OUT_ANNOTATION).cloned().filter(|_| blocked)
    })
    .await;

    // it is not retried even with enough quota;
    env.set_quota("2", "4Gi").await;
    env.wait_for_queue_observed().await;
    env.wait_for_only_cluster(&first).await;
    assert_eq!(env.get_service().await.annotations().get(TIMED_OUT_ANNOTATION), Some(&timed_out));

    // but another version is.
    env.set_ray_version("2.54.0").await;
    let second = env.wait_until_serving("2.54.0").await;
    env.wait_for_only_cluster(&second).await;
    assert_eq!(env.get_service().await.annotations().get(TIMED_OUT_ANNOTATION), None);
    let history = check_invariants(&recorder).await;
    assert!(all_pod_names(&history, &pending).is_empty(), "the timed out cluster never had a pod");
    let created = history.iter().filter_map(|change| match &change.object {
        Object::RayCluster(cluster) if cluster.spec.ray_version.as_deref() == Some("2.53.0") => cluster.uid(),
        _ => None,
    });
    assert_eq!(created.collect::<BTreeSet<_>>().len(), 1, "it was created only once");
}

fn displaces_another(slice: &Workload) -> bool {
    SliceRecord::from_workload(slice).is_some_and(|record| !record.displaces.is_empty())
}

fn holds_quota(slice: &Workload) -> bool {
    slice.status.as_ref().is_some_and(|status| condition::is_true(&status.conditions, "QuotaReserved"))
}

/// Phases of a recreate after which the manager is killed.
const KILL_PHASES: [KillPhase; 5] = [
    (
        "a slice requests to displace another",
        |change| matches!(&change.object, Object::Workload(slice) if displaces_another(slice) && !holds_quota(slice)),
    ),
    (
        "the displacing slice holds quota",
        |change| matches!(&change.object, Object::Workload(slice) if displaces_another(slice) && holds_quota(slice)),
    ),
    ("the old cluster is being stopped", |change| match &change.object {
        Object::RayCluster(cluster) => {
            cluster.spec.suspend == Some(true)
                && cluster.spec.ray_version.as_deref() == Some("2.52.0")
                && was_provisioned(cluster)
        }
        _ => false,
    }),
    (
        "an old pod terminates",
        |change| matches!(&change.object, Object::Pod(pod) if pod.metadata.deletion_timestamp.is_some()),
    ),
    ("the new cluster is unsuspended", |change| match &change.object {
        Object::RayCluster(cluster) => {
            cluster.spec.suspend == Some(false) && cluster.spec.ray_version.as_deref() == Some("2.53.0")
        }
        _ => false,
    }),
];

/// Reports whether a cluster once had all of its pods.
fn was_provisioned(cluster: &RayCluster) -> bool {
    let conditions = cluster.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    condition::is_true(conditions, "RayClusterProvisioned")
}

#[tokio::test]
async fn manager_killed_at_any_phase_of_a_recreate_converges_to_the_same_state() {
    let env = TestEnv::start().await;
    let (live, changes) = mpsc::unbounded_channel();
    let recorder = Recorder::start(env.client.clone(), Some(live)).await;

    let scenario = async {
        env.apply_samples().await;
        annotate(&env, EXCEEDS_QUOTA_ANNOTATION, json!("Recreate")).await;
        env.wait_until_serving("2.52.0").await;
        env.set_ray_version("2.53.0").await;
        let second = env.wait_until_serving("2.53.0").await;
        env.wait_for_only_cluster(&second).await;
        env.wait_for_reserved_cpu("1").await;
        env.wait_for_single_slice().await;
    };
    run_with_kills(&KILL_PHASES, (&env, &[]), changes, scenario).await;

    check_invariants(&recorder).await;
}
