//! Upgrades that exceed the maximum quota together with the active cluster, and upgrades that time
//! out before admission.

use serde_json::{Value, json};

use super::control_plane::ControlPlane;
use super::fixtures::{control_plane, put_cluster, put_service, set_quota};
use sluice_api::condition;
use sluice_api::ray::admission_annotations::{
    ADMISSION_TIMEOUT_ANNOTATION, EXCEEDS_QUOTA_ANNOTATION, TIMED_OUT_ANNOTATION,
};
use sluice_jobframework::upgrade_feasibility::UPGRADE_ADMISSIBLE;
use sluice_queue::Settings;
use sluice_rayservice::status::UPGRADE_BLOCKED;

/// Returns a control plane with `cpu` quota, a serving service of a head and a worker with this
/// annotation, and the name of its active cluster.
fn serving(cpu: &str, annotation: &str, value: &str) -> (ControlPlane, String) {
    let mut plane = control_plane(Settings::default(), cpu);
    put_service(&mut plane, "chat", "low", "2.53.0");
    annotate(&mut plane, annotation, json!(value));
    plane.advance(60);
    let old = plane.clusters_of_service("chat").remove(0);
    assert_eq!(plane.ungated_pod_count(&old), 2);
    (plane, old)
}

fn annotate(plane: &mut ControlPlane, annotation: &str, value: Value) {
    plane.apply("RayService", json!({"metadata": {"name": "chat", "annotations": {(annotation): value}}}));
}

/// Upgrades the service; returns the new cluster.
fn upgrade(plane: &mut ControlPlane, version: &str) -> String {
    let before = plane.clusters_of_service("chat");
    put_service(plane, "chat", "low", version);
    plane.advance(1);
    plane.clusters_of_service("chat").into_iter().find(|child| !before.contains(child)).expect("a pending cluster")
}

/// Returns status, reason and message of a condition of the service; `None` if it has none.
fn service_condition(plane: &ControlPlane, kind: &str) -> Option<(String, String, String)> {
    let conditions = plane.service("chat").status.unwrap_or_default().conditions;
    let found = condition::get(&conditions, kind)?;
    Some((found.status.clone(), found.reason.clone(), found.message.clone()))
}

fn condition_reason(plane: &ControlPlane, kind: &str) -> Option<String> {
    service_condition(plane, kind).map(|(_, reason, _)| reason)
}

fn has_timed_out(plane: &ControlPlane) -> bool {
    plane.service("chat").metadata.annotations.is_some_and(|all| all.contains_key(TIMED_OUT_ANNOTATION))
}

/// Returns the name of the cluster that the serve Service selects.
fn routed_cluster(plane: &ControlPlane) -> String {
    let service = plane.object("Service", "chat-serve-svc");
    service["spec"]["selector"]["ray.io/cluster"].as_str().expect("a selector").to_owned()
}

#[test]
fn upgrade_exceeding_the_maximum_quota_is_reported_immediately_and_follows_quota_changes() {
    // Given a service of 2 CPU in a queue of 3,
    let (mut plane, old) = serving("3", EXCEEDS_QUOTA_ANNOTATION, "Wait");
    assert_eq!(service_condition(&plane, UPGRADE_ADMISSIBLE), None, "there is no upgrade");

    // when it is upgraded, then the shortfall and the remedies are reported immediately;
    let new = upgrade(&mut plane, "2.54.0");
    let (status, why, message) = service_condition(&plane, UPGRADE_ADMISSIBLE).expect("an answer");
    assert_eq!((status.as_str(), why.as_str()), ("False", "ExceedsMaxQuota"));
    let expected = format!(
        "Active RayCluster {old} and pending RayCluster {new} never fit together: cpu in flavor default: 4 needed, maximum \
         capacity 3, 1 short, limited by the nominalQuota of ClusterQueue cq. To admit the upgrade, raise the nominalQuota of cpu \
         in flavor default of ClusterQueue cq to at least 4; or set annotation sluice.dev/when-upgrade-exceeds-quota: Recreate, \
         so that RayCluster {old} stops before RayCluster {new} starts"
    );
    assert_eq!(message, expected);
    assert_eq!(
        plane.event_count("RayService", "ExceedsMaxQuota"),
        2,
        "one Event for the shortfall, one for the remedies"
    );

    // the active cluster keeps serving;
    plane.advance(600);
    assert_eq!(
        (plane.ungated_pod_count(&old), plane.ungated_pod_count(&new), routed_cluster(&plane)),
        (2, 0, old.clone())
    );

    // with more quota, held by another cluster, the upgrade is pending,
    put_cluster(&mut plane, "other", "low", 0);
    plane.advance(5);
    set_quota(&mut plane, "4");
    plane.advance(1);
    assert_eq!(condition_reason(&plane, UPGRADE_ADMISSIBLE).as_deref(), Some("Fits"));

    // and once that quota is released, the upgrade completes and its condition is removed.
    plane.delete("RayCluster", "other");
    plane.advance(1);
    assert_eq!(condition_reason(&plane, UPGRADE_ADMISSIBLE).as_deref(), Some("Admitted"));
    plane.advance(200);
    assert_eq!(
        (plane.clusters_of_service("chat"), plane.ungated_pod_count(&new), routed_cluster(&plane)),
        (vec![new.clone()], 2, new)
    );
    assert_eq!(service_condition(&plane, UPGRADE_ADMISSIBLE), None);
}

#[test]
fn invalid_annotation_value_is_reported_and_means_wait() {
    let (mut plane, old) = serving("3", EXCEEDS_QUOTA_ANNOTATION, "recreate");
    assert_eq!(plane.event_count("RayService", "InvalidAnnotation"), 1);
    let (_, _, message) = service_condition(&plane, condition::UNSUPPORTED).expect("a warning");
    assert!(message.contains("\"recreate\" is neither Wait nor Recreate"), "{message}");

    upgrade(&mut plane, "2.54.0");
    plane.advance(60);

    assert_eq!(condition_reason(&plane, UPGRADE_ADMISSIBLE).as_deref(), Some("ExceedsMaxQuota"));
    let (_, _, message) = service_condition(&plane, UPGRADE_ADMISSIBLE).expect("an answer");
    assert!(message.ends_with("\"recreate\" is neither Wait nor Recreate; Wait is used)"), "{message}");
    assert_eq!(plane.ungated_pod_count(&old), 2);
}

#[test]
fn service_is_recreated_where_two_clusters_exceed_the_quota() {
    // Given a service that fills its queue and may be recreated,
    let (mut plane, old) = serving("2", EXCEEDS_QUOTA_ANNOTATION, "Recreate");
    plane.pods_linger = true;

    // when it is upgraded, then the new cluster is admitted before the old one stops, and has no
    // pods while the old one has any;
    let new = upgrade(&mut plane, "2.54.0");
    plane.advance(30);
    assert_eq!((plane.ungated_pod_count(&old), plane.ungated_pod_count(&new)), (2, 0));
    let slices = plane.workloads("chat");
    let holds_quota = |slice: &&sluice_api::kueue::Workload| {
        let conditions = slice.status.clone().unwrap_or_default().conditions;
        condition::is_true(&conditions, "QuotaReserved") && !condition::is_true(&conditions, "Finished")
    };
    assert_eq!(slices.iter().filter(holds_quota).count(), 2, "the old slice covers the old pods");
    assert_eq!(plane.object("RayCluster", &old)["spec"]["suspend"], true);
    assert_eq!(plane.object("RayCluster", &new)["spec"]["suspend"], true);
    let event = plane.emitted_events.iter().find(|note| note.reason == "GateClosed").expect("an event");
    assert!(event.message.contains(&format!("RayCluster {new} replaces it, and requests fail")), "{event:?}");
    let (_, _, progress) = service_condition(&plane, "UpgradeInProgress").expect("a condition");
    assert!(progress.contains(&format!("RayCluster {old} is active but suspended, so requests fail")), "{progress}");

    // and it serves in the end, with one slice.
    plane.pods_linger = false;
    plane.advance(200);
    assert_eq!(
        (plane.clusters_of_service("chat"), plane.ungated_pod_count(&new), routed_cluster(&plane)),
        (vec![new.clone()], 2, new)
    );
    plane.workload("chat");
    assert_eq!(service_condition(&plane, UPGRADE_ADMISSIBLE), None);
}

#[test]
fn service_keeps_serving_until_its_next_cluster_has_quota() {
    // Given a service whose next cluster is larger than the unused quota,
    let (mut plane, old) = serving("4", EXCEEDS_QUOTA_ANNOTATION, "Recreate");
    put_cluster(&mut plane, "other", "low", 1);
    plane.advance(30);
    let grow = |plane: &mut ControlPlane, cpu: &str| {
        let mut spec = plane.object("RayService", "chat")["spec"].clone();
        let container = &mut spec["rayClusterConfig"]["workerGroupSpecs"][0]["template"]["spec"]["containers"][0];
        container["resources"] = json!({"requests": {"cpu": cpu}, "limits": {"cpu": cpu}});
        plane.apply("RayService", json!({"metadata": {"name": "chat"}, "spec": spec}));
    };

    // when it is upgraded, then the upgrade is pending and the active cluster keeps serving;
    grow(&mut plane, "2");
    plane.advance(60);
    assert_eq!(condition_reason(&plane, UPGRADE_ADMISSIBLE).as_deref(), Some("Recreate"));
    assert_eq!(plane.event_count("RayService", "Recreate"), 1);
    assert_eq!((plane.ungated_pod_count(&old), routed_cluster(&plane)), (2, old.clone()));

    // rolled back, it leaves no trace;
    grow(&mut plane, "1");
    plane.advance(60);
    assert_eq!((plane.clusters_of_service("chat"), plane.ungated_pod_count(&old)), (vec![old.clone()], 2));
    plane.workload("chat");
    assert_eq!(plane.event_count("RayService", "GateClosed"), 0);

    // upgraded again, it completes once there is quota.
    grow(&mut plane, "2");
    plane.advance(5);
    plane.delete("RayCluster", "other");
    plane.advance(200);
    let children = plane.clusters_of_service("chat");
    assert_ne!(children, vec![old]);
    assert_eq!(
        (children.len(), plane.ungated_pod_count(&children[0]), routed_cluster(&plane)),
        (1, 2, children[0].clone())
    );
}

#[test]
fn stopping_cluster_is_restored_when_the_spec_is_reverted() {
    // Given an old cluster whose last pods terminate for the next one,
    let (mut plane, old) = serving("2", EXCEEDS_QUOTA_ANNOTATION, "Recreate");
    plane.pods_linger = true;
    let new = upgrade(&mut plane, "2.54.0");
    plane.advance(10);
    assert_eq!(plane.object("RayCluster", &old)["spec"]["suspend"], true);

    // when the spec is reverted, then the old cluster serves again.
    put_service(&mut plane, "chat", "low", "2.53.0");
    plane.advance(10);
    plane.pods_linger = false;
    plane.advance(200);

    assert_eq!(
        (plane.clusters_of_service("chat"), plane.ungated_pod_count(&old), routed_cluster(&plane)),
        (vec![old.clone()], 2, old)
    );
    assert!(!plane.has("RayCluster", &new));
    plane.workload("chat");
}

#[test]
fn next_cluster_may_change_while_the_old_one_stops() {
    // Given an old cluster whose last pods terminate for the next one,
    let (mut plane, old) = serving("2", EXCEEDS_QUOTA_ANNOTATION, "Recreate");
    plane.pods_linger = true;
    upgrade(&mut plane, "2.54.0");
    plane.advance(10);

    // when the spec changes again, then that cluster starts when the pods are gone.
    let next = upgrade(&mut plane, "2.55.0");
    plane.advance(30);
    assert_eq!((plane.ungated_pod_count(&old), plane.ungated_pod_count(&next)), (2, 0));
    plane.pods_linger = false;
    plane.advance(300);
    assert_eq!(
        (plane.clusters_of_service("chat"), plane.ungated_pod_count(&next), routed_cluster(&plane)),
        (vec![next.clone()], 2, next)
    );
    plane.workload("chat");
}

#[test]
fn stopped_cluster_is_restored_when_the_next_spec_exceeds_the_maximum_quota() {
    // Given a cluster that has stopped for the next one, which does not become ready,
    let (mut plane, old) = serving("2", EXCEEDS_QUOTA_ANNOTATION, "Recreate");
    let new = upgrade(&mut plane, "2.54.0");
    plane.unready_pods.insert(new.clone());
    plane.advance(30);
    assert_eq!((plane.ungated_pod_count(&old), plane.ungated_pod_count(&new)), (0, 2));

    // when the spec changes to one that exceeds the maximum quota, then the old cluster serves
    // again.
    let mut spec = plane.object("RayService", "chat")["spec"].clone();
    spec["rayClusterConfig"]["workerGroupSpecs"][0]["template"]["spec"]["containers"][0]["resources"] =
        json!({"requests": {"cpu": "2"}, "limits": {"cpu": "2"}});
    plane.apply("RayService", json!({"metadata": {"name": "chat"}, "spec": spec}));
    plane.advance(60);

    assert_eq!((plane.ungated_pod_count(&old), routed_cluster(&plane), plane.has("RayCluster", &new)), (2, old, false));
    assert_eq!(condition_reason(&plane, UPGRADE_ADMISSIBLE).as_deref(), Some("ExceedsMaxQuota"));
}

#[test]
fn stopped_cluster_may_replace_its_replacement() {
    // Given a service that was recreated, and whose former cluster still exists,
    let (mut plane, old) = serving("2", EXCEEDS_QUOTA_ANNOTATION, "Recreate");
    plane.apply("RayService", json!({"metadata": {"name": "chat"}, "spec": {"rayClusterDeletionDelaySeconds": 3600}}));
    let new = upgrade(&mut plane, "2.54.0");
    plane.advance(200);
    assert_eq!((routed_cluster(&plane), plane.clusters_of_service("chat").len()), (new.clone(), 2));

    // when the spec is reverted, then the former cluster replaces the new one.
    put_service(&mut plane, "chat", "low", "2.53.0");
    plane.advance(200);

    assert_eq!((routed_cluster(&plane), plane.ungated_pod_count(&old), plane.ungated_pod_count(&new)), (old, 2, 0));
}

#[test]
fn service_evicted_during_its_recreation_resumes_as_the_next_cluster() {
    // Given a service that is being recreated,
    let (mut plane, old) = serving("2", EXCEEDS_QUOTA_ANNOTATION, "Recreate");
    plane.pods_linger = true;
    let new = upgrade(&mut plane, "2.54.0");
    plane.advance(10);

    // when a workload of higher priority preempts it, then that starts when the old pods are gone,
    put_cluster(&mut plane, "proud", "high", 1);
    plane.advance(30);
    assert_eq!(
        (plane.ungated_pod_count(&old), plane.ungated_pod_count(&new), plane.ungated_pod_count("proud")),
        (2, 0, 0)
    );
    plane.pods_linger = false;
    plane.advance(30);
    assert_eq!(
        (plane.ungated_pod_count(&old), plane.ungated_pod_count(&new), plane.ungated_pod_count("proud")),
        (0, 0, 2)
    );

    // and the next cluster starts when the preemptor is gone.
    plane.delete("RayCluster", "proud");
    plane.advance(300);
    assert_eq!(
        (plane.clusters_of_service("chat"), plane.ungated_pod_count(&new), routed_cluster(&plane)),
        (vec![new.clone()], 2, new)
    );
}

#[test]
fn active_cluster_evicted_during_an_upgrade_exceeding_the_maximum_quota_is_readmitted() {
    let (mut plane, old) = serving("3", EXCEEDS_QUOTA_ANNOTATION, "Wait");
    let new = upgrade(&mut plane, "2.54.0");
    put_cluster(&mut plane, "proud", "high", 2);
    plane.advance(60);
    assert_eq!((plane.ungated_pod_count(&old), plane.ungated_pod_count("proud")), (0, 3));

    plane.delete("RayCluster", "proud");
    plane.advance(60);

    assert_eq!(
        (plane.ungated_pod_count(&old), plane.ungated_pod_count(&new)),
        (2, 0),
        "it does not wait for the upgrade that never fits"
    );
    assert_eq!(condition_reason(&plane, UPGRADE_ADMISSIBLE).as_deref(), Some("ExceedsMaxQuota"));
}

#[test]
fn active_cluster_evicted_during_an_upgrade_is_readmitted_before_the_upgrade() {
    let (mut plane, old) = serving("4", EXCEEDS_QUOTA_ANNOTATION, "Wait");
    put_cluster(&mut plane, "proud", "high", 2);
    let new = upgrade(&mut plane, "2.54.0");
    plane.advance(60);
    assert_eq!((plane.ungated_pod_count(&old), plane.ungated_pod_count("proud")), (0, 3));

    put_cluster(&mut plane, "proud", "high", 1);
    plane.advance(60);

    assert_eq!(
        (plane.ungated_pod_count(&old), plane.ungated_pod_count(&new)),
        (2, 0),
        "the upgrade is pending, not the active cluster"
    );
    assert_eq!(condition_reason(&plane, UPGRADE_ADMISSIBLE).as_deref(), Some("Fits"));
}

#[test]
fn upgrade_that_times_out_is_rolled_back_until_the_spec_changes() {
    // Given an upgrade that is pending for quota of another cluster,
    let (mut plane, old) = serving("4", ADMISSION_TIMEOUT_ANNOTATION, "1m30s");
    put_cluster(&mut plane, "other", "low", 1);
    plane.advance(30);
    let new = upgrade(&mut plane, "2.54.0");
    plane.advance(88);
    assert!(plane.has("RayCluster", &new) && !has_timed_out(&plane));

    // when it times out, then it is rolled back and the reason is reported;
    plane.advance(3);
    assert_eq!((plane.clusters_of_service("chat"), plane.ungated_pod_count(&old)), (vec![old.clone()], 2));
    assert!(has_timed_out(&plane));
    let event = plane.emitted_events.iter().find(|note| note.reason == "UpgradeAdmissionTimedOut").expect("an event");
    let why = format!(
        "RayCluster {new} was not admitted within 1m 30s (annotation {ADMISSION_TIMEOUT_ANNOTATION}) and is deleted. "
    );
    assert!(event.message.starts_with(&why) && event.message.contains("cpu"), "{}", event.message);
    assert_eq!(condition_reason(&plane, UPGRADE_BLOCKED).as_deref(), Some("UpgradeAdmissionTimedOut"));
    assert_eq!(service_condition(&plane, UPGRADE_ADMISSIBLE), None);

    // it is not retried even when there is quota,
    plane.delete("RayCluster", "other");
    plane.advance(300);
    assert_eq!(plane.clusters_of_service("chat"), std::slice::from_ref(&old));
    assert_eq!(plane.event_count("RayService", "UpgradeAdmissionTimedOut"), 1);

    // but an upgrade to another spec starts, and so does one to the first spec after that.
    put_cluster(&mut plane, "other", "low", 1);
    plane.advance(10);
    let other = upgrade(&mut plane, "2.55.0");
    assert!(!has_timed_out(&plane));
    assert_eq!(condition_reason(&plane, UPGRADE_BLOCKED), None);
    upgrade(&mut plane, "2.54.0");
    plane.advance(10);
    assert_eq!(plane.clusters_of_service("chat").len(), 2);
    assert!(!plane.has("RayCluster", &other));
}

#[test]
fn timed_out_upgrade_is_retried_when_its_annotation_is_removed() {
    let (mut plane, old) = serving("3", ADMISSION_TIMEOUT_ANNOTATION, "60s");
    upgrade(&mut plane, "2.54.0");
    plane.advance(70);
    assert!(has_timed_out(&plane));
    assert_eq!(plane.clusters_of_service("chat"), [old]);

    set_quota(&mut plane, "4");
    annotate(&mut plane, TIMED_OUT_ANNOTATION, Value::Null);
    plane.advance(200);

    let children = plane.clusters_of_service("chat");
    assert_eq!((children.len(), routed_cluster(&plane)), (1, children[0].clone()));
    assert_eq!(plane.ray_clusters()[0].spec.ray_version.as_deref(), Some("2.54.0"));
}

#[test]
fn annotation_of_timed_out_upgrade_is_removed_when_the_spec_is_reverted() {
    let (mut plane, old) = serving("3", ADMISSION_TIMEOUT_ANNOTATION, "60s");
    upgrade(&mut plane, "2.54.0");
    plane.advance(70);
    assert!(has_timed_out(&plane));

    put_service(&mut plane, "chat", "low", "2.53.0");
    plane.advance(10);

    assert!(!has_timed_out(&plane));
    assert_eq!((plane.clusters_of_service("chat"), condition_reason(&plane, UPGRADE_BLOCKED)), (vec![old], None));
}

#[test]
fn invalid_timeout_is_reported_and_means_no_limit() {
    let (mut plane, _) = serving("3", ADMISSION_TIMEOUT_ANNOTATION, "soon");
    let new = upgrade(&mut plane, "2.54.0");
    plane.advance(100_000);
    assert!(plane.has("RayCluster", &new));
    let (_, _, message) = service_condition(&plane, condition::UNSUPPORTED).expect("a warning");
    assert!(message.contains(ADMISSION_TIMEOUT_ANNOTATION) && message.contains("\"soon\""), "{message}");
}
