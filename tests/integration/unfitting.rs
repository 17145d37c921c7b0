//! Upgrades that can never be admitted beside what serves, and those that wait for too long.

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

use crate::restarts::{Moment, killed_at};
use crate::upgrades::pods_ever;
use sluice_testkit::history::{Change, Object, Recorder};
use sluice_testkit::objects::{SERVICE, cluster_name};
use sluice_testkit::{TestEnv, eventually, eventually_or_tell, invariants};

/// Ends a scenario: nothing was broken at any moment of it.
async fn intact(recorder: &Recorder) -> Vec<Change> {
    let history = recorder.history().await;
    let breaches = invariants::breaches(&history);
    assert!(breaches.is_empty(), "{}", breaches.join("\n"));
    history
}

async fn annotate(env: &TestEnv, annotation: &str, value: Value) {
    let patch = json!({"metadata": {"annotations": {(annotation): value}}});
    env.ray_services().patch(SERVICE, &PatchParams::default(), &Patch::Merge(patch)).await.expect("it is annotated");
}

/// Waits until the condition about the upgrade gives this reason; returns its status and message.
async fn answers(env: &TestEnv, reason: &str) -> (String, String) {
    eventually_or_tell(&format!("the upgrade is said to be {reason}"), async || {
        let conditions = env.service().await.status.unwrap_or_default().conditions;
        let found = condition::get(&conditions, UPGRADE_ADMISSIBLE).filter(|found| found.reason == reason);
        found.map(|found| (found.status.clone(), found.message.clone())).ok_or_else(|| format!("but {conditions:?}"))
    })
    .await
}

/// Waits until there is nothing to say of an upgrade.
async fn is_settled(env: &TestEnv) {
    eventually("nothing is said of an upgrade", async || {
        let conditions = env.service().await.status.unwrap_or_default().conditions;
        condition::get(&conditions, UPGRADE_ADMISSIBLE).is_none().then_some(())
    })
    .await;
}

#[tokio::test]
async fn an_upgrade_that_can_never_fit_is_told_in_numbers_and_goes_through_once_it_can() {
    let env = TestEnv::start().await;
    let recorder = Recorder::start(env.client.clone(), None).await;
    let _manager = env.manager().await;
    env.apply_samples().await;
    let first = env.serves_from("2.52.0").await;
    let pods: Vec<String> = env.pods_of(&first).await.iter().map(ResourceExt::name_any).collect();

    // Given an upgrade for which there is no room, its service says at once what is missing, and what would help;
    env.set_ray_version("2.53.0").await;
    let (status, message) = answers(&env, "ExceedsMaxQuota").await;
    assert_eq!(status, "False");
    let words = [
        "cpu in flavor default-flavor: 2 needed, maximum capacity 1, 1 short, limited by the nominalQuota of ClusterQueue team-a",
        "memory in flavor default-flavor: 4Gi needed, maximum capacity 2Gi, 2Gi short",
        "raise the nominalQuota of cpu in flavor default-flavor of ClusterQueue team-a to at least 2 and raise the nominalQuota of memory",
        "annotation sluice.dev/when-upgrade-exceeds-quota: Recreate",
    ];
    words.iter().for_each(|words| assert!(message.contains(words), "{words} in {message}"));
    assert!(!message.contains("incremental"), "not even its head fits beside what serves: {message}");

    // what it says follows the quota,
    env.set_quota("1999m", "4Gi").await;
    eventually("the new quota shows", async || {
        let (_, message) = answers(&env, "ExceedsMaxQuota").await;
        (message.contains("1m short") && !message.contains("memory")).then_some(())
    })
    .await;
    let now: Vec<String> = env.pods_of(&first).await.iter().map(ResourceExt::name_any).collect();
    assert_eq!(now, pods, "what serves is left alone");

    // and with enough the upgrade goes through.
    env.set_quota("2", "4Gi").await;
    let second = env.serves_from("2.53.0").await;
    env.only_cluster(&second).await;
    env.reserves_cpu("1").await;
    is_settled(&env).await;
    intact(&recorder).await;
}

#[tokio::test]
async fn a_service_is_made_anew_where_there_is_no_room_for_two() {
    let env = TestEnv::start().await;
    let recorder = Recorder::start(env.client.clone(), None).await;
    let _manager = env.manager().await;
    env.apply_samples().await;
    annotate(&env, EXCEEDS_QUOTA_ANNOTATION, json!("Recreate")).await;
    let first = env.serves_from("2.52.0").await;

    env.set_ray_version("2.53.0").await;
    let second = env.serves_from("2.53.0").await;

    env.only_cluster(&second).await;
    env.reserves_cpu("1").await;
    env.one_slice_is_left().await;
    is_settled(&env).await;
    let told = env.event_about("RayService", "Recreate").await;
    assert!(told.contains(&format!("RayCluster {first} stops, and requests fail until {second} serves")), "{told}");
    // No pod of the new cluster came before the last one of the old was gone.
    let history = intact(&recorder).await;
    let of = |change: &Change, cluster: &str| match &change.object {
        Object::Pod(pod) => pod.labels().get("ray.io/cluster").is_some_and(|name| name == cluster),
        _ => false,
    };
    let last = history.iter().rposition(|change| of(change, &first)).expect("pods of the old cluster");
    let next = history.iter().position(|change| of(change, &second)).expect("pods of the new cluster");
    assert!(history[last].gone && last < next, "{last} and {next}");
}

#[tokio::test]
async fn a_service_that_can_not_be_made_anew_is_left_alone() {
    let env = TestEnv::start().await;
    let recorder = Recorder::start(env.client.clone(), None).await;
    let _manager = env.manager().await;
    env.apply_samples().await;
    annotate(&env, EXCEEDS_QUOTA_ANNOTATION, json!("Recreate")).await;
    let first = env.serves_from("2.52.0").await;

    // Given a next cluster that is larger than all there is,
    let groups = env.service().await.spec.ray_cluster_config.worker_group_specs;
    let mut groups = serde_json::to_value(groups).expect("JSON");
    let resources = json!({"cpu": "2", "memory": "1Gi"});
    groups[0]["template"]["spec"]["containers"][0]["resources"] = json!({"requests": resources, "limits": resources});
    let patch = json!({"spec": {"rayClusterConfig": {"workerGroupSpecs": groups}}});
    env.ray_services().patch(SERVICE, &PatchParams::default(), &Patch::Merge(patch)).await.expect("it is upgraded");

    // then it is not offered, nor done;
    let (status, message) = answers(&env, "ExceedsMaxQuota").await;
    assert_eq!(status, "False");
    assert!(!message.contains("Recreate"), "{message}");
    let pending = cluster_name(env.service().await.status.unwrap_or_default().pending_service_status.as_ref());
    let cluster = env.ray_clusters().get(&first).await.expect("what serves");
    assert_eq!((cluster.spec.suspend, env.pods_of(&first).await.len()), (Some(false), 2));

    // and with quota for it alone it goes through.
    env.set_quota("2500m", "2Gi").await;
    let second = eventually("the service serves from another cluster", async || {
        let status = env.service().await.status.unwrap_or_default();
        let ready = condition::is_true(&status.conditions, "Ready");
        cluster_name(status.active_service_status.as_ref()).filter(|name| ready && *name != first)
    })
    .await;
    assert_eq!(Some(second.clone()), pending);
    env.only_cluster(&second).await;
    env.reserves_cpu("2500m").await;
    intact(&recorder).await;
}

#[tokio::test]
async fn an_upgrade_that_waits_for_too_long_is_given_up_until_another_is_wanted() {
    let env = TestEnv::start().await;
    let recorder = Recorder::start(env.client.clone(), None).await;
    let _manager = env.manager().await;
    env.apply_samples().await;
    annotate(&env, ADMISSION_TIMEOUT_ANNOTATION, json!("8s")).await;
    let first = env.serves_from("2.52.0").await;

    // Given an upgrade that finds no room in time, it is taken back, and it is said why;
    env.set_ray_version("2.53.0").await;
    let (pending, _) = env.waits_for_quota().await;
    let told = env.event_about("RayService", "UpgradeAdmissionTimedOut").await;
    assert!(told.contains(&format!("RayCluster {pending} was not admitted within 8s")), "{told}");
    env.only_cluster(&first).await;
    let given_up = eventually("the service says what was given up", async || {
        let service = env.service().await;
        let held = condition::get(&service.status.clone().unwrap_or_default().conditions, "sluice.dev/UpgradeBlocked")
            .is_some_and(|held| held.reason == "UpgradeAdmissionTimedOut");
        service.annotations().get(TIMED_OUT_ANNOTATION).cloned().filter(|_| held)
    })
    .await;

    // it is not made again, though there is room now;
    env.set_quota("2", "4Gi").await;
    env.queue_is_seen().await;
    env.only_cluster(&first).await;
    assert_eq!(env.service().await.annotations().get(TIMED_OUT_ANNOTATION), Some(&given_up));

    // but another is.
    env.set_ray_version("2.54.0").await;
    let second = env.serves_from("2.54.0").await;
    env.only_cluster(&second).await;
    assert_eq!(env.service().await.annotations().get(TIMED_OUT_ANNOTATION), None);
    let history = intact(&recorder).await;
    assert!(pods_ever(&history, &pending).is_empty(), "what was given up never had a pod");
    let given_up = history.iter().filter_map(|change| match &change.object {
        Object::RayCluster(cluster) if cluster.spec.ray_version.as_deref() == Some("2.53.0") => cluster.uid(),
        _ => None,
    });
    assert_eq!(given_up.collect::<BTreeSet<_>>().len(), 1, "it was not made again");
}

fn takes_a_place(slice: &Workload) -> bool {
    SliceRecord::from_workload(slice).is_some_and(|record| !record.displaces.is_empty())
}

fn holds(slice: &Workload) -> bool {
    slice.status.as_ref().is_some_and(|status| condition::is_true(&status.conditions, "QuotaReserved"))
}

/// The moments of making a service anew at which the manager is killed.
const MOMENTS: [Moment; 5] = [
    (
        "a slice asks for the place of another",
        |change| matches!(&change.object, Object::Workload(slice) if takes_a_place(slice) && !holds(slice)),
    ),
    ("it has it", |change| matches!(&change.object, Object::Workload(slice) if takes_a_place(slice) && holds(slice))),
    ("the old cluster is being stopped", |change| match &change.object {
        Object::RayCluster(cluster) => {
            cluster.spec.suspend == Some(true) && cluster.spec.ray_version.as_deref() == Some("2.52.0") && ran(cluster)
        }
        _ => false,
    }),
    (
        "an old pod goes",
        |change| matches!(&change.object, Object::Pod(pod) if pod.metadata.deletion_timestamp.is_some()),
    ),
    ("the new cluster may start", |change| match &change.object {
        Object::RayCluster(cluster) => {
            cluster.spec.suspend == Some(false) && cluster.spec.ray_version.as_deref() == Some("2.53.0")
        }
        _ => false,
    }),
];

/// Whether a cluster has had all of its pods.
fn ran(cluster: &RayCluster) -> bool {
    let conditions = cluster.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    condition::is_true(conditions, "RayClusterProvisioned")
}

#[tokio::test]
async fn a_manager_killed_at_any_moment_of_making_a_service_anew_changes_nothing_in_the_end() {
    let env = TestEnv::start().await;
    let (live, changes) = mpsc::unbounded_channel();
    let recorder = Recorder::start(env.client.clone(), Some(live)).await;

    let scenario = async {
        env.apply_samples().await;
        annotate(&env, EXCEEDS_QUOTA_ANNOTATION, json!("Recreate")).await;
        env.serves_from("2.52.0").await;
        env.set_ray_version("2.53.0").await;
        let second = env.serves_from("2.53.0").await;
        env.only_cluster(&second).await;
        env.reserves_cpu("1").await;
        env.one_slice_is_left().await;
    };
    killed_at(&MOMENTS, (&env, &[]), changes, scenario).await;

    intact(&recorder).await;
}
