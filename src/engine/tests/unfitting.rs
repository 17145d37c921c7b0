//! Upgrades that exceed the maximum quota together with the active cluster, and upgrades that time
//! out before admission.

use serde_json::{Value, json};

use super::control_plane::ControlPlane;
use super::jobs::{control_plane, put_cluster, put_service, set_quota};
use sluice_api::condition;
use sluice_api::ray::upgrade_choices::{GIVEN_UP_ANNOTATION, TIMEOUT_ANNOTATION, WHEN_EXCEEDS_ANNOTATION};
use sluice_jobframework::fitting::UPGRADE_ADMISSIBLE;
use sluice_queue::Settings;
use sluice_rayservice::status::UPGRADE_HELD;

/// Returns a control plane with `cpu` quota, a serving service of a head and a worker with this
/// annotation, and the name of its active cluster.
fn serving(cpu: &str, annotation: &str, value: &str) -> (ControlPlane, String) {
    let mut plane = control_plane(Settings::default(), cpu);
    put_service(&mut plane, "chat", "low", "2.53.0");
    annotate(&mut plane, annotation, json!(value));
    plane.play(60);
    let old = plane.children("chat").remove(0);
    assert_eq!(plane.pods(&old), 2);
    (plane, old)
}

fn annotate(plane: &mut ControlPlane, annotation: &str, value: Value) {
    plane.apply("RayService", json!({"metadata": {"name": "chat", "annotations": {(annotation): value}}}));
}

/// Upgrades the service; returns the new cluster.
fn upgrade(plane: &mut ControlPlane, version: &str) -> String {
    let before = plane.children("chat");
    put_service(plane, "chat", "low", version);
    plane.play(1);
    plane.children("chat").into_iter().find(|child| !before.contains(child)).expect("a pending cluster")
}

/// Returns status, reason and message of a condition of the service; `None` if it has none.
fn says(plane: &ControlPlane, kind: &str) -> Option<(String, String, String)> {
    let conditions = plane.service("chat").status.unwrap_or_default().conditions;
    let found = condition::get(&conditions, kind)?;
    Some((found.status.clone(), found.reason.clone(), found.message.clone()))
}

fn reason(plane: &ControlPlane, kind: &str) -> Option<String> {
    says(plane, kind).map(|(_, reason, _)| reason)
}

fn given_up(plane: &ControlPlane) -> bool {
    plane.service("chat").metadata.annotations.is_some_and(|all| all.contains_key(GIVEN_UP_ANNOTATION))
}

/// Returns the name of the cluster that the serve Service selects.
fn routed(plane: &ControlPlane) -> String {
    let service = plane.object("Service", "chat-serve-svc");
    service["spec"]["selector"]["ray.io/cluster"].as_str().expect("a selector").to_owned()
}

#[test]
fn upgrade_exceeding_the_maximum_quota_is_reported_immediately_and_follows_quota_changes() {
    // Given a service of 2 CPU in a queue of 3,
    let (mut plane, old) = serving("3", WHEN_EXCEEDS_ANNOTATION, "Wait");
    assert_eq!(says(&plane, UPGRADE_ADMISSIBLE), None, "there is no upgrade");

    // when it is upgraded, then the shortfall and the remedies are reported immediately;
    let new = upgrade(&mut plane, "2.54.0");
    let (status, why, message) = says(&plane, UPGRADE_ADMISSIBLE).expect("an answer");
    assert_eq!((status.as_str(), why.as_str()), ("False", "ExceedsMaxQuota"));
    let expected = format!(
        "Active RayCluster {old} and pending RayCluster {new} never fit together: cpu in flavor default: 4 needed, maximum \
         capacity 3, 1 short, limited by the nominalQuota of ClusterQueue cq. To admit the upgrade, raise the nominalQuota of cpu \
         in flavor default of ClusterQueue cq to at least 4; or set annotation sluice.dev/when-upgrade-exceeds-quota: Recreate, \
         so that RayCluster {old} stops before RayCluster {new} starts"
    );
    assert_eq!(message, expected);
    assert_eq!(plane.told("RayService", "ExceedsMaxQuota"), 2, "one Event for the shortfall, one for the remedies");

    // the active cluster keeps serving;
    plane.play(600);
    assert_eq!((plane.pods(&old), plane.pods(&new), routed(&plane)), (2, 0, old.clone()));

    // with more quota, held by another cluster, the upgrade is pending,
    put_cluster(&mut plane, "other", "low", 0);
    plane.play(5);
    set_quota(&mut plane, "4");
    plane.play(1);
    assert_eq!(reason(&plane, UPGRADE_ADMISSIBLE).as_deref(), Some("Fits"));

    // and once that quota is released, the upgrade completes and its condition is removed.
    plane.delete("RayCluster", "other");
    plane.play(1);
    assert_eq!(reason(&plane, UPGRADE_ADMISSIBLE).as_deref(), Some("Admitted"));
    plane.play(200);
    assert_eq!((plane.children("chat"), plane.pods(&new), routed(&plane)), (vec![new.clone()], 2, new));
    assert_eq!(says(&plane, UPGRADE_ADMISSIBLE), None);
}

#[test]
fn invalid_annotation_value_is_reported_and_means_wait() {
    let (mut plane, old) = serving("3", WHEN_EXCEEDS_ANNOTATION, "recreate");
    assert_eq!(plane.told("RayService", "InvalidAnnotation"), 1);
    let (_, _, message) = says(&plane, condition::UNSUPPORTED).expect("a warning");
    assert!(message.contains("\"recreate\" is neither Wait nor Recreate"), "{message}");

    upgrade(&mut plane, "2.54.0");
    plane.play(60);

    assert_eq!(reason(&plane, UPGRADE_ADMISSIBLE).as_deref(), Some("ExceedsMaxQuota"));
    let (_, _, message) = says(&plane, UPGRADE_ADMISSIBLE).expect("an answer");
    assert!(message.ends_with("\"recreate\" is neither Wait nor Recreate; Wait is used)"), "{message}");
    assert_eq!(plane.pods(&old), 2);
}

#[test]
fn service_is_recreated_where_two_clusters_exceed_the_quota() {
    // Given a service that fills its queue and may be recreated,
    let (mut plane, old) = serving("2", WHEN_EXCEEDS_ANNOTATION, "Recreate");
    plane.linger = true;

    // when it is upgraded, then the new cluster is admitted before the old one stops, and has no
    // pods while the old one has any;
    let new = upgrade(&mut plane, "2.54.0");
    plane.play(30);
    assert_eq!((plane.pods(&old), plane.pods(&new)), (2, 0));
    let slices = plane.workloads("chat");
    let holds_quota = |slice: &&sluice_api::kueue::Workload| {
        let conditions = slice.status.clone().unwrap_or_default().conditions;
        condition::is_true(&conditions, "QuotaReserved") && !condition::is_true(&conditions, "Finished")
    };
    assert_eq!(slices.iter().filter(holds_quota).count(), 2, "the old slice covers the old pods");
    assert_eq!(plane.object("RayCluster", &old)["spec"]["suspend"], true);
    assert_eq!(plane.object("RayCluster", &new)["spec"]["suspend"], true);
    let event = plane.notes.iter().find(|note| note.reason == "GateClosed").expect("an event");
    assert!(event.message.contains(&format!("RayCluster {new} replaces it, and requests fail")), "{event:?}");
    let (_, _, progress) = says(&plane, "UpgradeInProgress").expect("a condition");
    assert!(progress.contains(&format!("RayCluster {old} is active but suspended, so requests fail")), "{progress}");

    // and it serves in the end, with one slice.
    plane.linger = false;
    plane.play(200);
    assert_eq!((plane.children("chat"), plane.pods(&new), routed(&plane)), (vec![new.clone()], 2, new));
    plane.workload("chat");
    assert_eq!(says(&plane, UPGRADE_ADMISSIBLE), None);
}

#[test]
fn service_keeps_serving_until_its_next_cluster_has_quota() {
    // Given a service whose next cluster is larger than the unused quota,
    let (mut plane, old) = serving("4", WHEN_EXCEEDS_ANNOTATION, "Recreate");
    put_cluster(&mut plane, "other", "low", 1);
    plane.play(30);
    let grow = |plane: &mut ControlPlane, cpu: &str| {
        let mut spec = plane.object("RayService", "chat")["spec"].clone();
        let container = &mut spec["rayClusterConfig"]["workerGroupSpecs"][0]["template"]["spec"]["containers"][0];
        container["resources"] = json!({"requests": {"cpu": cpu}, "limits": {"cpu": cpu}});
        plane.apply("RayService", json!({"metadata": {"name": "chat"}, "spec": spec}));
    };

    // when it is upgraded, then the upgrade is pending and the active cluster keeps serving;
    grow(&mut plane, "2");
    plane.play(60);
    assert_eq!(reason(&plane, UPGRADE_ADMISSIBLE).as_deref(), Some("Recreate"));
    assert_eq!(plane.told("RayService", "Recreate"), 1);
    assert_eq!((plane.pods(&old), routed(&plane)), (2, old.clone()));

    // rolled back, it leaves no trace;
    grow(&mut plane, "1");
    plane.play(60);
    assert_eq!((plane.children("chat"), plane.pods(&old)), (vec![old.clone()], 2));
    plane.workload("chat");
    assert_eq!(plane.told("RayService", "GateClosed"), 0);

    // upgraded again, it completes once there is quota.
    grow(&mut plane, "2");
    plane.play(5);
    plane.delete("RayCluster", "other");
    plane.play(200);
    let children = plane.children("chat");
    assert_ne!(children, vec![old]);
    assert_eq!((children.len(), plane.pods(&children[0]), routed(&plane)), (1, 2, children[0].clone()));
}

#[test]
fn stopping_cluster_is_restored_when_the_spec_is_reverted() {
    // Given an old cluster whose last pods terminate for the next one,
    let (mut plane, old) = serving("2", WHEN_EXCEEDS_ANNOTATION, "Recreate");
    plane.linger = true;
    let new = upgrade(&mut plane, "2.54.0");
    plane.play(10);
    assert_eq!(plane.object("RayCluster", &old)["spec"]["suspend"], true);

    // when the spec is reverted, then the old cluster serves again.
    put_service(&mut plane, "chat", "low", "2.53.0");
    plane.play(10);
    plane.linger = false;
    plane.play(200);

    assert_eq!((plane.children("chat"), plane.pods(&old), routed(&plane)), (vec![old.clone()], 2, old));
    assert!(!plane.has("RayCluster", &new));
    plane.workload("chat");
}

#[test]
fn next_cluster_may_change_while_the_old_one_stops() {
    // Given an old cluster whose last pods terminate for the next one,
    let (mut plane, old) = serving("2", WHEN_EXCEEDS_ANNOTATION, "Recreate");
    plane.linger = true;
    upgrade(&mut plane, "2.54.0");
    plane.play(10);

    // when the spec changes again, then that cluster starts when the pods are gone.
    let next = upgrade(&mut plane, "2.55.0");
    plane.play(30);
    assert_eq!((plane.pods(&old), plane.pods(&next)), (2, 0));
    plane.linger = false;
    plane.play(300);
    assert_eq!((plane.children("chat"), plane.pods(&next), routed(&plane)), (vec![next.clone()], 2, next));
    plane.workload("chat");
}

#[test]
fn stopped_cluster_is_restored_when_the_next_spec_exceeds_the_maximum_quota() {
    // Given a cluster that has stopped for the next one, which does not become ready,
    let (mut plane, old) = serving("2", WHEN_EXCEEDS_ANNOTATION, "Recreate");
    let new = upgrade(&mut plane, "2.54.0");
    plane.ailing.insert(new.clone());
    plane.play(30);
    assert_eq!((plane.pods(&old), plane.pods(&new)), (0, 2));

    // when the spec changes to one that exceeds the maximum quota, then the old cluster serves
    // again.
    let mut spec = plane.object("RayService", "chat")["spec"].clone();
    spec["rayClusterConfig"]["workerGroupSpecs"][0]["template"]["spec"]["containers"][0]["resources"] =
        json!({"requests": {"cpu": "2"}, "limits": {"cpu": "2"}});
    plane.apply("RayService", json!({"metadata": {"name": "chat"}, "spec": spec}));
    plane.play(60);

    assert_eq!((plane.pods(&old), routed(&plane), plane.has("RayCluster", &new)), (2, old, false));
    assert_eq!(reason(&plane, UPGRADE_ADMISSIBLE).as_deref(), Some("ExceedsMaxQuota"));
}

#[test]
fn stopped_cluster_may_replace_its_replacement() {
    // Given a service that was recreated, and whose former cluster still exists,
    let (mut plane, old) = serving("2", WHEN_EXCEEDS_ANNOTATION, "Recreate");
    plane.apply("RayService", json!({"metadata": {"name": "chat"}, "spec": {"rayClusterDeletionDelaySeconds": 3600}}));
    let new = upgrade(&mut plane, "2.54.0");
    plane.play(200);
    assert_eq!((routed(&plane), plane.children("chat").len()), (new.clone(), 2));

    // when the spec is reverted, then the former cluster replaces the new one.
    put_service(&mut plane, "chat", "low", "2.53.0");
    plane.play(200);

    assert_eq!((routed(&plane), plane.pods(&old), plane.pods(&new)), (old, 2, 0));
}

#[test]
fn service_evicted_during_its_recreation_resumes_as_the_next_cluster() {
    // Given a service that is being recreated,
    let (mut plane, old) = serving("2", WHEN_EXCEEDS_ANNOTATION, "Recreate");
    plane.linger = true;
    let new = upgrade(&mut plane, "2.54.0");
    plane.play(10);

    // when a workload of higher priority preempts it, then that starts when the old pods are gone,
    put_cluster(&mut plane, "proud", "high", 1);
    plane.play(30);
    assert_eq!((plane.pods(&old), plane.pods(&new), plane.pods("proud")), (2, 0, 0));
    plane.linger = false;
    plane.play(30);
    assert_eq!((plane.pods(&old), plane.pods(&new), plane.pods("proud")), (0, 0, 2));

    // and the next cluster starts when the preemptor is gone.
    plane.delete("RayCluster", "proud");
    plane.play(300);
    assert_eq!((plane.children("chat"), plane.pods(&new), routed(&plane)), (vec![new.clone()], 2, new));
}

#[test]
fn active_cluster_evicted_during_an_upgrade_exceeding_the_maximum_quota_is_readmitted() {
    let (mut plane, old) = serving("3", WHEN_EXCEEDS_ANNOTATION, "Wait");
    let new = upgrade(&mut plane, "2.54.0");
    put_cluster(&mut plane, "proud", "high", 2);
    plane.play(60);
    assert_eq!((plane.pods(&old), plane.pods("proud")), (0, 3));

    plane.delete("RayCluster", "proud");
    plane.play(60);

    assert_eq!((plane.pods(&old), plane.pods(&new)), (2, 0), "it does not wait for the upgrade that never fits");
    assert_eq!(reason(&plane, UPGRADE_ADMISSIBLE).as_deref(), Some("ExceedsMaxQuota"));
}

#[test]
fn active_cluster_evicted_during_an_upgrade_is_readmitted_before_the_upgrade() {
    let (mut plane, old) = serving("4", WHEN_EXCEEDS_ANNOTATION, "Wait");
    put_cluster(&mut plane, "proud", "high", 2);
    let new = upgrade(&mut plane, "2.54.0");
    plane.play(60);
    assert_eq!((plane.pods(&old), plane.pods("proud")), (0, 3));

    put_cluster(&mut plane, "proud", "high", 1);
    plane.play(60);

    assert_eq!((plane.pods(&old), plane.pods(&new)), (2, 0), "the upgrade is pending, not the active cluster");
    assert_eq!(reason(&plane, UPGRADE_ADMISSIBLE).as_deref(), Some("Fits"));
}

#[test]
fn upgrade_that_times_out_is_rolled_back_until_the_spec_changes() {
    // Given an upgrade that is pending for quota of another cluster,
    let (mut plane, old) = serving("4", TIMEOUT_ANNOTATION, "1m30s");
    put_cluster(&mut plane, "other", "low", 1);
    plane.play(30);
    let new = upgrade(&mut plane, "2.54.0");
    plane.play(88);
    assert!(plane.has("RayCluster", &new) && !given_up(&plane));

    // when it times out, then it is rolled back and the reason is reported;
    plane.play(2);
    assert_eq!((plane.children("chat"), plane.pods(&old)), (vec![old.clone()], 2));
    assert!(given_up(&plane));
    let event = plane.notes.iter().find(|note| note.reason == "UpgradeAdmissionTimedOut").expect("an event");
    let why =
        format!("RayCluster {new} was not admitted within 1m 30s (annotation {TIMEOUT_ANNOTATION}) and is deleted. ");
    assert!(event.message.starts_with(&why) && event.message.contains("cpu"), "{}", event.message);
    assert_eq!(reason(&plane, UPGRADE_HELD).as_deref(), Some("UpgradeAdmissionTimedOut"));
    assert_eq!(says(&plane, UPGRADE_ADMISSIBLE), None);

    // it is not retried even when there is quota,
    plane.delete("RayCluster", "other");
    plane.play(300);
    assert_eq!(plane.children("chat"), std::slice::from_ref(&old));
    assert_eq!(plane.told("RayService", "UpgradeAdmissionTimedOut"), 1);

    // but an upgrade to another spec starts, and so does one to the first spec after that.
    put_cluster(&mut plane, "other", "low", 1);
    plane.play(10);
    let other = upgrade(&mut plane, "2.55.0");
    assert!(!given_up(&plane));
    assert_eq!(reason(&plane, UPGRADE_HELD), None);
    upgrade(&mut plane, "2.54.0");
    plane.play(10);
    assert_eq!(plane.children("chat").len(), 2);
    assert!(!plane.has("RayCluster", &other));
}

#[test]
fn timed_out_upgrade_is_retried_when_its_annotation_is_removed() {
    let (mut plane, old) = serving("3", TIMEOUT_ANNOTATION, "60s");
    upgrade(&mut plane, "2.54.0");
    plane.play(70);
    assert!(given_up(&plane));
    assert_eq!(plane.children("chat"), [old]);

    set_quota(&mut plane, "4");
    annotate(&mut plane, GIVEN_UP_ANNOTATION, Value::Null);
    plane.play(200);

    let children = plane.children("chat");
    assert_eq!((children.len(), routed(&plane)), (1, children[0].clone()));
    assert_eq!(plane.clusters()[0].spec.ray_version.as_deref(), Some("2.54.0"));
}

#[test]
fn annotation_of_timed_out_upgrade_is_removed_when_the_spec_is_reverted() {
    let (mut plane, old) = serving("3", TIMEOUT_ANNOTATION, "60s");
    upgrade(&mut plane, "2.54.0");
    plane.play(70);
    assert!(given_up(&plane));

    put_service(&mut plane, "chat", "low", "2.53.0");
    plane.play(10);

    assert!(!given_up(&plane));
    assert_eq!((plane.children("chat"), reason(&plane, UPGRADE_HELD)), (vec![old], None));
}

#[test]
fn invalid_timeout_is_reported_and_means_no_limit() {
    let (mut plane, _) = serving("3", TIMEOUT_ANNOTATION, "soon");
    let new = upgrade(&mut plane, "2.54.0");
    plane.play(100_000);
    assert!(plane.has("RayCluster", &new));
    let (_, _, message) = says(&plane, condition::UNSUPPORTED).expect("a warning");
    assert!(message.contains(TIMEOUT_ANNOTATION) && message.contains("\"soon\""), "{message}");
}
