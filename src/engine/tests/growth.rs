//! Jobs that scale up and down; regressions of Kueue, by issue number.

use std::collections::BTreeSet;

use rstest::rstest;
use serde_json::json;

use super::control_plane::ControlPlane;
use super::fixtures::{cluster_spec, control_plane, job_metadata, put_cluster, put_service, scale_cluster, set_quota};
use sluice_api::condition;
use sluice_api::kueue::names;
use sluice_queue::Settings;

/// Counts the unfinished slices of a job.
fn unfinished_slices(plane: &ControlPlane, job: &str) -> usize {
    let slices = plane.workloads(job).into_iter();
    let is_finished = |conditions: &[_]| condition::is_true(conditions, names::FINISHED);
    slices.filter(|slice| !slice.status.as_ref().is_some_and(|status| is_finished(&status.conditions))).count()
}

/// kubernetes-sigs/kueue#11327: a job that was scaled faster than the scheduler decides was left
/// with several successor slices and pods that were never ungated.
#[test]
fn job_scaled_repeatedly_while_pending_reaches_its_last_size() {
    let mut plane = control_plane(Settings::default(), "4");
    put_cluster(&mut plane, "other", "low", 1);
    put_cluster(&mut plane, "restless", "low", 1);
    plane.advance(30);
    assert_eq!((plane.ungated_pod_count("other"), plane.ungated_pod_count("restless")), (2, 2));

    for workers in [3, 9, 4, 3] {
        put_cluster(&mut plane, "restless", "low", workers);
        plane.advance(1);
        assert_eq!(unfinished_slices(&plane, "restless"), 2, "the admitted slice and the pending one");
        assert_eq!(plane.ungated_pod_count("restless"), 2);
    }
    plane.delete("RayCluster", "other");
    plane.advance(30);

    assert_eq!(plane.ungated_pod_count("restless"), 4);
    assert_eq!(unfinished_slices(&plane, "restless"), 1);
}

#[test]
fn pending_slice_is_not_admitted_before_its_job_has_updated_it() {
    // Given a pending job that was scaled down, and whose next writes fail,
    let mut plane = control_plane(Settings::default(), "4");
    put_cluster(&mut plane, "other", "low", 1);
    plane.advance(30);
    put_cluster(&mut plane, "pending", "low", 3);
    plane.advance(30);
    plane.fail_next_write = BTreeSet::from(["Workload", "RayCluster"]);
    put_cluster(&mut plane, "pending", "low", 2);
    plane.advance(0);
    let is_reserved = |plane: &ControlPlane| {
        plane.slice_condition("pending", names::QUOTA_RESERVED).is_some_and(|(status, _)| status == "True")
    };

    let demand =
        |plane: &ControlPlane| plane.workload("pending").spec.pod_sets.iter().map(|set| set.count).sum::<i32>();
    assert_eq!(demand(&plane), 4, "{:#?}", plane.emitted_events);

    // when quota for the old demand is released before the retry,
    plane.delete("RayCluster", "other");
    plane.advance(0);

    // then it is not reserved, and the retry admits the new demand.
    assert_eq!((plane.ungated_pod_count("other"), is_reserved(&plane)), (0, false));
    plane.advance(1);
    assert!(is_reserved(&plane));
    assert_eq!(plane.ungated_pod_count("pending"), 3);
}

#[test]
fn slice_withheld_during_a_backoff_is_admitted_if_its_job_then_changes_nothing() {
    // Given a pending job one of whose writes fails, so that it is in backoff, and that was scaled down
    // since,
    let mut plane = control_plane(Settings::default(), "4");
    put_cluster(&mut plane, "other", "low", 1);
    plane.advance(30);
    put_cluster(&mut plane, "pending", "low", 3);
    plane.advance(0);
    plane.fail_next_write = BTreeSet::from(["RayCluster"]);
    plane.apply("RayCluster", json!({"metadata": {"name": "pending"}, "spec": {"suspend": false}}));
    plane.advance(0);
    put_cluster(&mut plane, "pending", "low", 2);

    // when there is quota for its slice, which is withheld because its demand is obsolete,
    plane.delete("RayCluster", "other");
    plane.advance(0);
    let reserved = |plane: &ControlPlane| plane.slice_condition("pending", names::QUOTA_RESERVED);
    assert!(reserved(&plane).is_none_or(|(status, _)| status == "False"));

    // and the job is scaled back up before the backoff ends, then the slice is admitted as it is.
    put_cluster(&mut plane, "pending", "low", 3);
    plane.advance(5);
    assert_eq!(plane.ungated_pod_count("pending"), 4);
}

/// A job that scales up gets as many whole replicas as fit, and the rest when there is quota.
#[rstest]
#[case::single_host(1, 8, [5, 6, 9])]
#[case::two_hosts(2, 4, [5, 5, 9])]
fn job_scales_up_as_far_as_whole_replicas_fit(#[case] hosts: u32, #[case] replicas: u32, #[case] pods: [usize; 3]) {
    // Given a head and two workers, another job, and quota for two more pods,
    let put = |plane: &mut ControlPlane, replicas: u32| {
        let mut spec = cluster_spec(replicas, "2.53.0");
        spec["workerGroupSpecs"][0]["numOfHosts"] = json!(hosts);
        plane.apply("RayCluster", json!({"metadata": job_metadata("eager", "low"), "spec": spec}));
    };
    let mut plane = control_plane(Settings::default(), "7");
    put_cluster(&mut plane, "other", "low", 1);
    put(&mut plane, 2 / hosts);
    plane.advance(30);
    assert_eq!((plane.ungated_pod_count("other"), plane.ungated_pod_count("eager")), (2, 3));

    // when it scales to eight workers, two start immediately, and it reports why the rest is
    // pending;
    put(&mut plane, replicas);
    plane.advance(5);
    assert_eq!((plane.ungated_pod_count("eager"), plane.gated_pod_count("eager")), (pods[0], 9 - pods[0]));
    assert_eq!(unfinished_slices(&plane, "eager"), 2, "the admitted slice and the pending one");
    let message = plane.pending_message("RayCluster", "eager");
    assert!(message.starts_with("scale-up of eager is pending in LocalQueue lq (eager keeps running): "), "{message}");

    // quota for one more pod is enough for a single-host replica,
    put_cluster(&mut plane, "other", "low", 0);
    plane.advance(5);
    assert_eq!((plane.ungated_pod_count("eager"), plane.gated_pod_count("eager")), (pods[1], 9 - pods[1]));

    // and the rest starts once there is quota for it.
    set_quota(&mut plane, "10");
    plane.advance(5);
    assert_eq!((plane.ungated_pod_count("eager"), plane.gated_pod_count("eager")), (pods[2], 0));
    assert_eq!(unfinished_slices(&plane, "eager"), 1);
}

/// A service is upgraded and scaled up simultaneously: the active cluster comes first, and the
/// upgrade is admitted as a whole.
#[test]
fn active_cluster_scales_up_before_its_upgrade_starts() {
    let mut plane = control_plane(Settings::default(), "4");
    put_service(&mut plane, "chat", "low", "2.53.0");
    plane.advance(60);
    let old = plane.clusters_of_service("chat").remove(0);
    set_quota(&mut plane, "3");
    put_service(&mut plane, "chat", "low", "2.54.0");
    plane.advance(5);
    let new = plane.clusters_of_service("chat").into_iter().find(|child| *child != old).expect("a pending cluster");
    assert_eq!((plane.ungated_pod_count(&old), plane.ungated_pod_count(&new)), (2, 0));

    scale_cluster(&mut plane, &old, 2);
    plane.advance(5);
    assert_eq!((plane.ungated_pod_count(&old), plane.ungated_pod_count(&new)), (3, 0));

    set_quota(&mut plane, "4");
    plane.advance(5);
    assert_eq!(
        (plane.ungated_pod_count(&old), plane.ungated_pod_count(&new)),
        (3, 0),
        "the upgrade is not admitted partially"
    );

    set_quota(&mut plane, "5");
    plane.advance(5);
    assert_eq!((plane.ungated_pod_count(&old), plane.ungated_pod_count(&new)), (3, 2));
}

/// kubernetes-sigs/kueue#14277 and #14703: after the slices of a service changed, its pods were
/// found minutes later or never; here nothing depends on a timer.
#[test]
fn pods_of_an_upgrade_start_and_its_quota_is_released_without_delay() {
    let mut plane = control_plane(Settings::default(), "4");
    put_service(&mut plane, "chat", "low", "2.53.0");
    plane.advance(60);
    let old = plane.clusters_of_service("chat").remove(0);

    put_service(&mut plane, "chat", "low", "2.54.0");
    plane.advance(1);
    let new = plane.clusters_of_service("chat").into_iter().find(|child| *child != old).expect("a pending cluster");
    plane.advance(1);
    assert_eq!((plane.ungated_pod_count(&old), plane.ungated_pod_count(&new)), (2, 2));
    put_cluster(&mut plane, "next", "low", 1);

    // The next cluster gets the quota of the old one as soon as its pods are gone.
    let mut seconds = 0;
    while plane.ungated_pod_count(&old) > 0 {
        assert_eq!(plane.ungated_pod_count("next"), 0);
        plane.advance(1);
        seconds += 1;
        assert!(seconds < 300, "the old cluster still has pods");
    }
    plane.advance(2);
    assert_eq!((plane.ungated_pod_count(&new), plane.ungated_pod_count("next")), (2, 2));
    assert_eq!(unfinished_slices(&plane, "chat"), 1);
}

#[test]
fn slice_with_nothing_left_to_cover_is_released_if_its_successor_waits() {
    // Given a service whose first cluster has not served, and a queue that admits nothing more,
    let mut plane = control_plane(Settings::default(), "2");
    plane.unready_pods.insert("-head-".to_owned());
    put_service(&mut plane, "chat", "low", "2.52.0");
    plane.advance(20);
    let first = plane.clusters_of_service("chat").remove(0);
    assert_eq!(plane.ungated_pod_count(&first), 2);
    plane.apply("ClusterQueue", json!({"metadata": {"name": "cq"}, "spec": {"stopPolicy": "Hold"}}));

    // when another cluster, of smaller pods, takes its place, then no quota is held for the one that is gone,
    let mut cluster = cluster_spec(1, "2.53.0");
    let smaller = json!({"requests": {"cpu": "500m"}, "limits": {"cpu": "500m"}});
    let containers =
        ["/headGroupSpec", "/workerGroupSpecs/0"].map(|group| format!("{group}/template/spec/containers/0"));
    containers.iter().for_each(|path| cluster.pointer_mut(path).expect("a container")["resources"] = smaller.clone());
    cluster["suspend"] = json!(true);
    plane.apply("RayService", json!({"metadata": {"name": "chat"}, "spec": {"rayClusterConfig": cluster}}));
    plane.advance(60);
    let second = plane.clusters_of_service("chat");
    assert!(second.len() == 1 && second[0] != first, "{second:?}");
    let holds_quota = |plane: &ControlPlane| {
        let slices = plane.workloads("chat").into_iter();
        let unfinished = slices.filter(|slice| !condition::is_true(slice.conditions(), names::FINISHED));
        unfinished.filter(|slice| condition::is_true(slice.conditions(), names::QUOTA_RESERVED)).count()
    };
    assert_eq!(holds_quota(&plane), 0);

    // and the new one runs once the queue admits again.
    plane.apply("ClusterQueue", json!({"metadata": {"name": "cq"}, "spec": {"stopPolicy": "None"}}));
    plane.advance(60);
    assert_eq!((holds_quota(&plane), plane.ungated_pod_count(&second[0])), (1, 2));
}
