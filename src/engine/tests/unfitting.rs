//! Upgrades that can never be admitted beside what serves, and those that wait for too long.

use serde_json::{Value, json};

use super::control_plane::ControlPlane;
use super::jobs::{control_plane, put_cluster, put_service, set_quota};
use sluice_api::condition;
use sluice_api::ray::upgrade_choices::{GIVEN_UP_ANNOTATION, TIMEOUT_ANNOTATION, WHEN_EXCEEDS_ANNOTATION};
use sluice_jobframework::fitting::UPGRADE_ADMISSIBLE;
use sluice_queue::Settings;
use sluice_rayservice::status::UPGRADE_HELD;

/// A service of a head and a worker that serves, alone in a queue of so many CPUs, with this annotation.
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

/// Status, reason and message of a condition of the service; none if it isn't there.
fn says(plane: &ControlPlane, kind: &str) -> Option<(String, String, String)> {
    let conditions = plane.service("chat").status.unwrap_or_default().conditions;
    condition::get(&conditions, kind).map(|it| (it.status.clone(), it.reason.clone(), it.message.clone()))
}

fn reason(plane: &ControlPlane, kind: &str) -> Option<String> {
    says(plane, kind).map(|(_, reason, _)| reason)
}

fn given_up(plane: &ControlPlane) -> bool {
    plane.service("chat").metadata.annotations.is_some_and(|all| all.contains_key(GIVEN_UP_ANNOTATION))
}

/// The cluster that requests are sent to.
fn routed(plane: &ControlPlane) -> String {
    let service = plane.object("Service", "chat-serve-svc");
    service["spec"]["selector"]["ray.io/cluster"].as_str().expect("a selector").to_owned()
}

#[test]
fn an_upgrade_that_can_never_fit_is_told_at_once_and_follows_the_quota() {
    // Given a service of 2 CPU in a queue of 3,
    let (mut plane, old) = serving("3", WHEN_EXCEEDS_ANNOTATION, "Wait");
    assert_eq!(says(&plane, UPGRADE_ADMISSIBLE), None, "there is no upgrade");

    // when it is upgraded, then what is missing is said at once, and what would help;
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
    assert_eq!(plane.told("RayService", "ExceedsMaxQuota"), 2, "once for what is short, once for what would help");

    // what serves is left alone;
    plane.play(600);
    assert_eq!((plane.pods(&old), plane.pods(&new), routed(&plane)), (2, 0, old.clone()));

    // more quota that others have is something to wait for,
    put_cluster(&mut plane, "other", "low", 0);
    plane.play(5);
    set_quota(&mut plane, "4");
    plane.play(1);
    assert_eq!(reason(&plane, UPGRADE_ADMISSIBLE).as_deref(), Some("Fits"));

    // and once it is free the upgrade goes through, and no more is said of it.
    plane.delete("RayCluster", "other");
    plane.play(1);
    assert_eq!(reason(&plane, UPGRADE_ADMISSIBLE).as_deref(), Some("Admitted"));
    plane.play(200);
    assert_eq!((plane.children("chat"), plane.pods(&new), routed(&plane)), (vec![new.clone()], 2, new));
    assert_eq!(says(&plane, UPGRADE_ADMISSIBLE), None);
}

#[test]
fn a_choice_that_is_none_is_named_and_waits() {
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
fn a_service_is_made_anew_where_there_is_no_room_for_two() {
    // Given a service that fills its queue and may be made anew,
    let (mut plane, old) = serving("2", WHEN_EXCEEDS_ANNOTATION, "Recreate");
    plane.linger = true;

    // when it is upgraded, then the new cluster has quota before the old one stops, and no pod while the old one has any;
    let new = upgrade(&mut plane, "2.54.0");
    plane.play(30);
    assert_eq!((plane.pods(&old), plane.pods(&new)), (2, 0));
    let slices = plane.workloads("chat");
    let holds = |slice: &&sluice_api::kueue::Workload| {
        let conditions = slice.status.clone().unwrap_or_default().conditions;
        condition::is_true(&conditions, "QuotaReserved") && !condition::is_true(&conditions, "Finished")
    };
    assert_eq!(slices.iter().filter(holds).count(), 2, "the old pods are paid for by the old slice");
    assert_eq!(plane.object("RayCluster", &old)["spec"]["suspend"], true);
    assert_eq!(plane.object("RayCluster", &new)["spec"]["suspend"], true);
    let told = plane.notes.iter().find(|note| note.reason == "GateClosed").expect("an event");
    assert!(told.message.contains(&format!("RayCluster {new} replaces it, and requests fail")), "{told:?}");
    let (_, _, progress) = says(&plane, "UpgradeInProgress").expect("a condition");
    assert!(progress.contains(&format!("RayCluster {old} is active but suspended, so requests fail")), "{progress}");

    // and it serves in the end, on one slice.
    plane.linger = false;
    plane.play(200);
    assert_eq!((plane.children("chat"), plane.pods(&new), routed(&plane)), (vec![new.clone()], 2, new));
    plane.workload("chat");
    assert_eq!(says(&plane, UPGRADE_ADMISSIBLE), None);
}

#[test]
fn a_service_is_not_stopped_while_there_is_no_quota_for_the_next() {
    // Given a service whose next cluster is larger than what is free,
    let (mut plane, old) = serving("4", WHEN_EXCEEDS_ANNOTATION, "Recreate");
    put_cluster(&mut plane, "other", "low", 1);
    plane.play(30);
    let grow = |plane: &mut ControlPlane, cpu: &str| {
        let mut spec = plane.object("RayService", "chat")["spec"].clone();
        let container = &mut spec["rayClusterConfig"]["workerGroupSpecs"][0]["template"]["spec"]["containers"][0];
        container["resources"] = json!({"requests": {"cpu": cpu}, "limits": {"cpu": cpu}});
        plane.apply("RayService", json!({"metadata": {"name": "chat"}, "spec": spec}));
    };

    // when it is upgraded, then it waits for that, and what serves goes on;
    grow(&mut plane, "2");
    plane.play(60);
    assert_eq!(reason(&plane, UPGRADE_ADMISSIBLE).as_deref(), Some("Recreate"));
    assert_eq!(plane.told("RayService", "Recreate"), 1);
    assert_eq!((plane.pods(&old), routed(&plane)), (2, old.clone()));

    // taken back, it has left no trace;
    grow(&mut plane, "1");
    plane.play(60);
    assert_eq!((plane.children("chat"), plane.pods(&old)), (vec![old.clone()], 2));
    plane.workload("chat");
    assert_eq!(plane.told("RayService", "GateClosed"), 0);

    // asked for again, it goes through once there is quota.
    grow(&mut plane, "2");
    plane.play(5);
    plane.delete("RayCluster", "other");
    plane.play(200);
    let children = plane.children("chat");
    assert_ne!(children, vec![old]);
    assert_eq!((children.len(), plane.pods(&children[0]), routed(&plane)), (1, 2, children[0].clone()));
}

#[test]
fn what_stops_for_the_next_comes_back_if_the_spec_does() {
    // Given an old cluster whose last pods are going for the next one,
    let (mut plane, old) = serving("2", WHEN_EXCEEDS_ANNOTATION, "Recreate");
    plane.linger = true;
    let new = upgrade(&mut plane, "2.54.0");
    plane.play(10);
    assert_eq!(plane.object("RayCluster", &old)["spec"]["suspend"], true);

    // when the spec is put back, then it is the old one that goes on.
    put_service(&mut plane, "chat", "low", "2.53.0");
    plane.play(10);
    plane.linger = false;
    plane.play(200);

    assert_eq!((plane.children("chat"), plane.pods(&old), routed(&plane)), (vec![old.clone()], 2, old));
    assert!(!plane.has("RayCluster", &new));
    plane.workload("chat");
}

#[test]
fn what_is_to_be_next_may_change_while_the_old_one_stops() {
    // Given an old cluster whose last pods are going for the next one,
    let (mut plane, old) = serving("2", WHEN_EXCEEDS_ANNOTATION, "Recreate");
    plane.linger = true;
    upgrade(&mut plane, "2.54.0");
    plane.play(10);

    // when yet another is wanted, then it starts when they are gone.
    let next = upgrade(&mut plane, "2.55.0");
    plane.play(30);
    assert_eq!((plane.pods(&old), plane.pods(&next)), (2, 0));
    plane.linger = false;
    plane.play(300);
    assert_eq!((plane.children("chat"), plane.pods(&next), routed(&plane)), (vec![next.clone()], 2, next));
    plane.workload("chat");
}

#[test]
fn what_stopped_for_the_next_comes_back_if_another_is_wanted_that_never_fits() {
    // Given a cluster that has stopped for the next one, which does not get ready,
    let (mut plane, old) = serving("2", WHEN_EXCEEDS_ANNOTATION, "Recreate");
    let new = upgrade(&mut plane, "2.54.0");
    plane.ailing.insert(new.clone());
    plane.play(30);
    assert_eq!((plane.pods(&old), plane.pods(&new)), (0, 2));

    // when something is wanted instead that is larger than all there is, then the old one serves again.
    let mut spec = plane.object("RayService", "chat")["spec"].clone();
    spec["rayClusterConfig"]["workerGroupSpecs"][0]["template"]["spec"]["containers"][0]["resources"] =
        json!({"requests": {"cpu": "2"}, "limits": {"cpu": "2"}});
    plane.apply("RayService", json!({"metadata": {"name": "chat"}, "spec": spec}));
    plane.play(60);

    assert_eq!((plane.pods(&old), routed(&plane), plane.has("RayCluster", &new)), (2, old, false));
    assert_eq!(reason(&plane, UPGRADE_ADMISSIBLE).as_deref(), Some("ExceedsMaxQuota"));
}

#[test]
fn what_stopped_for_what_serves_now_may_be_wanted_next() {
    // Given a service that was made anew, and whose former cluster is still there,
    let (mut plane, old) = serving("2", WHEN_EXCEEDS_ANNOTATION, "Recreate");
    plane.apply("RayService", json!({"metadata": {"name": "chat"}, "spec": {"rayClusterDeletionDelaySeconds": 3600}}));
    let new = upgrade(&mut plane, "2.54.0");
    plane.play(200);
    assert_eq!((routed(&plane), plane.children("chat").len()), (new.clone(), 2));

    // when the spec is put back, then the former takes the place of the latter in turn.
    put_service(&mut plane, "chat", "low", "2.53.0");
    plane.play(200);

    assert_eq!((routed(&plane), plane.pods(&old), plane.pods(&new)), (old, 2, 0));
}

#[test]
fn what_is_evicted_while_it_is_made_anew_comes_back_as_the_next() {
    // Given a service that is being made anew,
    let (mut plane, old) = serving("2", WHEN_EXCEEDS_ANNOTATION, "Recreate");
    plane.linger = true;
    let new = upgrade(&mut plane, "2.54.0");
    plane.play(10);

    // when something more important takes all its quota, then that starts when the old pods are gone,
    put_cluster(&mut plane, "proud", "high", 1);
    plane.play(30);
    assert_eq!((plane.pods(&old), plane.pods(&new), plane.pods("proud")), (2, 0, 0));
    plane.linger = false;
    plane.play(30);
    assert_eq!((plane.pods(&old), plane.pods(&new), plane.pods("proud")), (0, 0, 2));

    // and the next cluster when that is gone.
    plane.delete("RayCluster", "proud");
    plane.play(300);
    assert_eq!((plane.children("chat"), plane.pods(&new), routed(&plane)), (vec![new.clone()], 2, new));
}

#[test]
fn what_is_evicted_under_a_hopeless_upgrade_comes_back() {
    let (mut plane, old) = serving("3", WHEN_EXCEEDS_ANNOTATION, "Wait");
    let new = upgrade(&mut plane, "2.54.0");
    put_cluster(&mut plane, "proud", "high", 2);
    plane.play(60);
    assert_eq!((plane.pods(&old), plane.pods("proud")), (0, 3));

    plane.delete("RayCluster", "proud");
    plane.play(60);

    assert_eq!((plane.pods(&old), plane.pods(&new)), (2, 0), "it does not wait for what never fits beside it");
    assert_eq!(reason(&plane, UPGRADE_ADMISSIBLE).as_deref(), Some("ExceedsMaxQuota"));
}

#[test]
fn what_is_evicted_under_an_upgrade_comes_back_before_there_is_room_for_that() {
    let (mut plane, old) = serving("4", WHEN_EXCEEDS_ANNOTATION, "Wait");
    put_cluster(&mut plane, "proud", "high", 2);
    let new = upgrade(&mut plane, "2.54.0");
    plane.play(60);
    assert_eq!((plane.pods(&old), plane.pods("proud")), (0, 3));

    put_cluster(&mut plane, "proud", "high", 1);
    plane.play(60);

    assert_eq!((plane.pods(&old), plane.pods(&new)), (2, 0), "the upgrade waits, not what serves");
    assert_eq!(reason(&plane, UPGRADE_ADMISSIBLE).as_deref(), Some("Fits"));
}

#[test]
fn an_upgrade_that_waits_for_too_long_is_given_up_until_another_is_wanted() {
    // Given an upgrade that waits for what others have,
    let (mut plane, old) = serving("4", TIMEOUT_ANNOTATION, "1m30s");
    put_cluster(&mut plane, "other", "low", 1);
    plane.play(30);
    let new = upgrade(&mut plane, "2.54.0");
    plane.play(88);
    assert!(plane.has("RayCluster", &new) && !given_up(&plane));

    // when its time is over, then it is taken back, and it is said why;
    plane.play(2);
    assert_eq!((plane.children("chat"), plane.pods(&old)), (vec![old.clone()], 2));
    assert!(given_up(&plane));
    let told = plane.notes.iter().find(|note| note.reason == "UpgradeAdmissionTimedOut").expect("an event");
    let why = format!(
        "RayCluster {new} was not admitted within 1m 30s (annotation {TIMEOUT_ANNOTATION}) and is deleted. "
    );
    assert!(told.message.starts_with(&why) && told.message.contains("cpu"), "{}", told.message);
    assert_eq!(reason(&plane, UPGRADE_HELD).as_deref(), Some("UpgradeAdmissionTimedOut"));
    assert_eq!(says(&plane, UPGRADE_ADMISSIBLE), None);

    // it isn't made again, though there be room for it,
    plane.delete("RayCluster", "other");
    plane.play(300);
    assert_eq!(plane.children("chat"), std::slice::from_ref(&old));
    assert_eq!(plane.told("RayService", "UpgradeAdmissionTimedOut"), 1);

    // but another is, and so is that one after it.
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
fn an_upgrade_that_was_given_up_is_tried_again_when_its_note_is_removed() {
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
fn nothing_is_noted_of_an_upgrade_that_was_given_up_once_the_spec_is_put_back() {
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
fn a_time_that_can_not_be_read_is_named_and_is_no_limit() {
    let (mut plane, _) = serving("3", TIMEOUT_ANNOTATION, "soon");
    let new = upgrade(&mut plane, "2.54.0");
    plane.play(100_000);
    assert!(plane.has("RayCluster", &new));
    let (_, _, message) = says(&plane, condition::UNSUPPORTED).expect("a warning");
    assert!(message.contains(TIMEOUT_ANNOTATION) && message.contains("\"soon\""), "{message}");
}
