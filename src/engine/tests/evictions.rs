//! Evictions: by preemption, by the PodsReady timeout, and by the maximum execution time.

use jiff::SignedDuration;
use rstest::rstest;
use serde_json::json;

use super::batch_jobs::put_job;
use super::control_plane::ControlPlane;
use super::fixtures::{cluster_spec, control_plane, job_metadata, put_cluster, put_service};
use sluice_api::condition;
use sluice_api::kueue::names;
use sluice_queue::Settings;
use sluice_queue::settings::{Requeuing, WaitForPodsReady};

pub(super) fn with_pods_ready_timeout(limit: Option<u32>) -> Settings {
    let requeuing = Requeuing { backoff_base_seconds: 10, backoff_limit_count: limit, ..Requeuing::default() };
    let rules = WaitForPodsReady {
        timeout: SignedDuration::from_secs(60),
        recovery_timeout: Some(SignedDuration::from_secs(30)),
        unscheduled_timeout: None,
        block_admission: false,
        requeuing,
    };
    Settings { wait_for_pods_ready: Some(rules), ..Settings::default() }
}

fn status_and_reason(status: &str, reason: &str) -> Option<(String, String)> {
    Some((status.to_owned(), reason.to_owned()))
}

fn is_serving(plane: &ControlPlane, name: &str) -> bool {
    plane.service(name).status.is_some_and(|status| condition::is_true(&status.conditions, "Ready"))
}

#[rstest]
#[case::cluster("RayCluster", |plane: &mut ControlPlane| put_cluster(plane, "humble", "low", 1))]
#[case::job("Job", |plane: &mut ControlPlane| put_job(plane, "humble", "low", json!({"suspend": true, "parallelism": 2})))]
fn job_is_not_evicted_while_it_is_being_unsuspended(#[case] kind: &'static str, #[case] put: fn(&mut ControlPlane)) {
    // Given a job that was just admitted, with the write that unsuspends it in flight,
    let mut plane = control_plane(Settings::default(), "2");
    put_cluster(&mut plane, "first", "low", 1);
    plane.advance(10);
    put(&mut plane);
    plane.advance(10);
    plane.delayed_kind = Some(kind);
    plane.delete("RayCluster", "first");
    plane.advance(10);
    assert_eq!(plane.slice_condition("humble", names::ADMITTED), status_and_reason("True", "Admitted"));

    // when a workload of higher priority arrives, the eviction waits for that write, which would
    // otherwise unsuspend an evicted job.
    let mut spec = cluster_spec(1, "2.53.0");
    spec["suspend"] = json!(true);
    plane.apply("RayCluster", json!({"metadata": job_metadata("proud", "high"), "spec": spec}));
    plane.advance(10);
    assert_eq!(plane.slice_condition("proud", names::QUOTA_RESERVED).map(|said| said.0), Some("False".to_owned()));
    assert_eq!(plane.slice_condition("humble", names::EVICTED), None);

    plane.delayed_kind = None;
    plane.deliver_delayed_writes();
    plane.advance(10);
    assert_eq!(plane.slice_condition("humble", names::EVICTED), status_and_reason("True", "Preempted"));
    assert_eq!((plane.ungated_pod_count("humble"), plane.ungated_pod_count("proud")), (0, 2));
}

#[rstest]
#[case::service("RayService")]
#[case::cluster("RayCluster")]
fn preempted_job_stops_is_requeued_by_its_age_and_readmitted(#[case] kind: &str) {
    // Given a job that fills its queue,
    let mut plane = control_plane(Settings::default(), "2");
    match kind {
        "RayService" => put_service(&mut plane, "humble", "low", "2.53.0"),
        _ => put_cluster(&mut plane, "humble", "low", 1),
    }
    plane.advance(60);
    let cluster =
        if kind == "RayService" { plane.clusters_of_service("humble").remove(0) } else { "humble".to_owned() };
    assert_eq!(plane.ungated_pod_count(&cluster), 2);
    assert!(kind == "RayCluster" || is_serving(&plane, "humble"));
    let slice = plane.workload("humble");
    put_cluster(&mut plane, "later", "low", 1);
    plane.advance(10);

    // when a workload of higher priority arrives, it is evicted, and holds its quota while its pods
    // exist.
    plane.pods_linger = true;
    put_cluster(&mut plane, "proud", "high", 1);
    plane.advance(30);
    assert_eq!(plane.slice_condition("humble", names::EVICTED), status_and_reason("True", "Preempted"));
    assert_eq!(plane.slice_condition("humble", names::PREEMPTED), status_and_reason("True", "InClusterQueue"));
    assert_eq!(plane.slice_condition("humble", names::QUOTA_RESERVED).map(|said| said.0), Some("True".to_owned()));
    assert_eq!((plane.ungated_pod_count(&cluster), plane.ungated_pod_count("proud")), (2, 0));
    let suspended = plane.ray_clusters().into_iter().find(|object| object.metadata.name.as_deref() == Some(&cluster));
    assert_eq!(suspended.expect("the cluster still exists").spec.suspend, Some(true));

    // Once they are gone, the preemptor starts, and the same slice is requeued with its creation
    // time.
    plane.pods_linger = false;
    plane.advance(30);
    assert_eq!((plane.ungated_pod_count(&cluster), plane.ungated_pod_count("proud")), (0, 2));
    assert_eq!(plane.slice_condition("humble", names::QUOTA_RESERVED).map(|said| said.0), Some("False".to_owned()));
    assert_eq!(plane.slice_condition("humble", names::REQUEUED), status_and_reason("True", "Preempted"));
    let waiting = plane.workload("humble");
    assert_eq!(waiting.metadata.uid, slice.metadata.uid);
    assert_eq!(
        (plane.event_count("Workload", "EvictedDueToPreempted"), plane.event_count("Workload", "Preempted")),
        (1, 1)
    );
    assert_eq!(plane.event_count("Workload", "PreemptedWorkload"), 1);
    assert_eq!(plane.event_count(kind, "Preempted"), 1, "the job has an Event too");

    // When there is quota, it is admitted before the later job, with the same cluster.
    plane.delete("RayCluster", "proud");
    plane.advance(60);
    assert_eq!((plane.ungated_pod_count(&cluster), plane.ungated_pod_count("later")), (2, 0));
    assert_eq!(plane.slice_condition("humble", names::EVICTED).map(|said| said.0), Some("False".to_owned()));
    assert!(kind == "RayCluster" || is_serving(&plane, "humble"));
}

#[test]
fn service_preempted_during_an_upgrade_stops_and_resumes_both_clusters() {
    let mut plane = control_plane(Settings::default(), "4");
    put_service(&mut plane, "humble", "low", "2.53.0");
    plane.advance(60);
    let old = plane.clusters_of_service("humble").remove(0);

    // Given an upgrade whose new cluster is admitted and does not become ready,
    let known = old.clone();
    put_service(&mut plane, "humble", "low", "2.54.0");
    plane.advance(1);
    let new = plane.clusters_of_service("humble").into_iter().find(|child| *child != known).expect("a pending cluster");
    plane.unready_pods.insert(new.clone());
    plane.advance(60);
    assert_eq!((plane.ungated_pod_count(&old), plane.ungated_pod_count(&new)), (2, 2));

    // when a workload of higher priority needs more than the upgrade holds, both clusters stop,
    put_cluster(&mut plane, "proud", "high", 2);
    plane.advance(60);
    assert_eq!(
        (plane.ungated_pod_count(&old), plane.ungated_pod_count(&new), plane.ungated_pod_count("proud")),
        (0, 0, 3)
    );

    // and when it is gone, both resume, and the upgrade completes.
    plane.delete("RayCluster", "proud");
    plane.advance(60);
    assert_eq!((plane.ungated_pod_count(&old), plane.ungated_pod_count(&new)), (2, 2));
    plane.unready_pods.clear();
    plane.advance(300);
    assert_eq!(plane.clusters_of_service("humble"), std::slice::from_ref(&new));
    assert_eq!(plane.ungated_pod_count(&new), 2);
}

#[test]
fn job_exceeding_the_pods_ready_timeout_backs_off_is_requeued_and_finally_deactivated() {
    // Given a job whose worker never becomes ready,
    let mut plane = control_plane(with_pods_ready_timeout(Some(1)), "2");
    plane.unready_pods.insert("humble-small".to_owned());
    put_cluster(&mut plane, "humble", "low", 1);
    plane.advance(59);
    assert_eq!(plane.slice_condition("humble", names::PODS_READY), status_and_reason("False", "WaitForStart"));
    assert_eq!(plane.ungated_pod_count("humble"), 2);

    // when it times out, it is evicted and backs off,
    plane.advance(4);
    assert_eq!(plane.slice_condition("humble", names::EVICTED), status_and_reason("True", "PodsReadyTimeout"));
    assert_eq!(plane.slice_condition("humble", names::REQUEUED), status_and_reason("False", "PodsReadyTimeout"));
    let state = plane.workload("humble").status.and_then(|status| status.requeue_state).expect("a requeue state");
    assert_eq!((state.count, state.requeue_at.is_some()), (Some(1), true));
    assert_eq!(plane.ungated_pod_count("humble"), 0);
    plane.advance(10);
    assert_eq!(plane.slice_condition("humble", names::REQUEUED), status_and_reason("True", "BackoffFinished"));
    assert_eq!(plane.ungated_pod_count("humble"), 2);

    // and after the second timeout it is deactivated, reports why, and releases its quota.
    plane.advance(70);
    assert_eq!(
        plane.slice_condition("humble", names::EVICTED),
        status_and_reason("True", "DeactivatedDueToRequeuingLimitExceeded")
    );
    assert_eq!(plane.slice_condition("humble", names::DEACTIVATION_TARGET), None);
    let slice = plane.workload("humble");
    assert_eq!((slice.spec.active, slice.status.and_then(|status| status.requeue_state)), (Some(false), None));
    assert_eq!(plane.ungated_pod_count("humble"), 0);
    assert_eq!(plane.event_count("Workload", "EvictedDueToDeactivatedDueToRequeuingLimitExceeded"), 1);
    put_cluster(&mut plane, "later", "low", 1);
    plane.advance(600);
    assert_eq!((plane.ungated_pod_count("humble"), plane.ungated_pod_count("later")), (0, 2), "it stays deactivated");

    // Reactivating the repaired job queues it again.
    plane.unready_pods.clear();
    let name = slice.metadata.name.expect("a name");
    plane.apply("Workload", json!({"metadata": {"name": name}, "spec": {"active": true}}));
    plane.delete("RayCluster", "later");
    plane.advance(60);
    assert_eq!(plane.slice_condition("humble", names::REQUEUED), status_and_reason("True", "Reactivated"));
    assert_eq!(plane.slice_condition("humble", names::PODS_READY), status_and_reason("True", "Started"));
    assert_eq!(plane.ungated_pod_count("humble"), 2);
}

#[test]
fn pods_without_nodes_release_their_quota_after_the_unscheduled_timeout() {
    // Given a job whose worker gets no node, and one whose worker needs longer to become ready,
    let mut settings = with_pods_ready_timeout(None);
    let rules = settings.wait_for_pods_ready.as_mut().expect("the section");
    rules.unscheduled_timeout = Some(SignedDuration::from_secs(20));
    let mut plane = control_plane(settings, "4");
    plane.unscheduled_pods.insert("humble-small".to_owned());
    plane.unready_pods.insert("modest-small".to_owned());
    put_cluster(&mut plane, "humble", "low", 1);
    put_cluster(&mut plane, "modest", "low", 1);
    plane.advance(19);
    assert_eq!(plane.slice_condition("humble", names::PODS_READY), status_and_reason("False", "WaitForScheduling"));
    assert_eq!(plane.slice_condition("modest", names::PODS_READY), status_and_reason("False", "WaitForStart"));

    // when the timeout ends, then only the job without a node is evicted and backs off,
    plane.advance(5);
    assert_eq!(plane.slice_condition("humble", names::EVICTED), status_and_reason("True", "PodsReadyTimeout"));
    let stats = plane.workload("humble").status.and_then(|status| status.scheduling_stats).expect("statistics");
    assert_eq!(stats.evictions[0].underlying_cause, "WaitForScheduling");
    assert_eq!((plane.ungated_pod_count("humble"), plane.ungated_pod_count("modest")), (0, 2));

    // and once nodes are there, it starts.
    plane.unscheduled_pods.clear();
    plane.advance(30);
    assert_eq!(plane.slice_condition("humble", names::PODS_READY), status_and_reason("True", "Started"));
}

#[test]
fn job_that_was_ready_is_evicted_only_if_it_does_not_recover_in_time() {
    let mut plane = control_plane(with_pods_ready_timeout(None), "2");
    put_cluster(&mut plane, "humble", "low", 1);
    plane.advance(30);
    assert_eq!(plane.slice_condition("humble", names::PODS_READY), status_and_reason("True", "Started"));

    plane.unready_pods.insert("humble-small".to_owned());
    plane.advance(20);
    assert_eq!(plane.slice_condition("humble", names::PODS_READY), status_and_reason("False", "WaitForRecovery"));
    plane.unready_pods.clear();
    plane.advance(20);
    assert_eq!(plane.slice_condition("humble", names::PODS_READY), status_and_reason("True", "Recovered"));
    assert_eq!(plane.slice_condition("humble", names::EVICTED), None);

    plane.unready_pods.insert("humble-small".to_owned());
    plane.advance(35);
    assert_eq!(plane.slice_condition("humble", names::EVICTED), status_and_reason("True", "PodsReadyTimeout"));
    let stats = plane.workload("humble").status.and_then(|status| status.scheduling_stats).expect("statistics");
    assert_eq!(stats.evictions[0].underlying_cause, "WaitForRecovery");
}

#[test]
fn upgrade_that_never_becomes_ready_does_not_stop_the_active_cluster() {
    let mut plane = control_plane(with_pods_ready_timeout(Some(0)), "4");
    put_service(&mut plane, "humble", "low", "2.53.0");
    plane.advance(60);
    let old = plane.clusters_of_service("humble").remove(0);
    put_service(&mut plane, "humble", "low", "2.54.0");
    plane.advance(1);
    let new = plane.clusters_of_service("humble").into_iter().find(|child| *child != old).expect("a pending cluster");

    // Given that the pods of the new cluster become unready and never recover,
    plane.unready_pods.insert(new.clone());
    plane.advance(3600);

    // then the old cluster keeps serving.
    assert_eq!((plane.ungated_pod_count(&old), plane.ungated_pod_count(&new)), (2, 2));
    assert!(is_serving(&plane, "humble"));
    assert_eq!(plane.slice_condition("humble", names::PODS_READY), status_and_reason("True", "Started"));
    assert_eq!(plane.workload("humble").spec.active, Some(true));
}

#[test]
fn job_exceeding_its_maximum_execution_time_is_deactivated_even_if_it_scaled_up() {
    // Given a job with two minutes to run,
    let mut plane = control_plane(Settings::default(), "3");
    let mut meta = job_metadata("brief", "low");
    meta["labels"][names::MAX_EXEC_TIME_LABEL] = json!("120");
    plane.apply("RayCluster", json!({"metadata": meta, "spec": cluster_spec(1, "2.53.0")}));
    plane.advance(60);
    assert_eq!(plane.ungated_pod_count("brief"), 2);

    // when it scales up after one minute, its second slice has one minute left,
    put_cluster(&mut plane, "brief", "low", 2);
    plane.advance(50);
    assert_eq!(plane.ungated_pod_count("brief"), 3);
    plane.advance(15);
    assert_eq!(
        plane.slice_condition("brief", names::EVICTED),
        status_and_reason("True", "DeactivatedDueToMaximumExecutionTimeExceeded")
    );
    assert_eq!(plane.ungated_pod_count("brief"), 0);
    assert_eq!(plane.event_count("Workload", "MaximumExecutionTimeExceeded"), 1);

    // and reactivating it resets its execution time.
    let name = plane.workload("brief").metadata.name.expect("a name");
    plane.apply("Workload", json!({"metadata": {"name": name}, "spec": {"active": true}}));
    plane.advance(110);
    assert_eq!(plane.ungated_pod_count("brief"), 3);
    plane.advance(20);
    assert_eq!(plane.ungated_pod_count("brief"), 0);
}
