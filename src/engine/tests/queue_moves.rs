//! Jobs that move to another queue.

use rstest::rstest;
use serde_json::{Value, json};

use super::batch_jobs::put_job;
use super::control_plane::ControlPlane;
use super::fixtures::{control_plane, put_cluster, put_service};
use sluice_api::kueue::names;
use sluice_api::ray::names::TEMPLATE_SUSPENDED_ANNOTATION;
use sluice_queue::Settings;

/// Adds a second queue, `other`, with quota for two pods.
fn put_other_queue(plane: &mut ControlPlane) {
    let mut queue = plane.object("ClusterQueue", "cq").clone();
    queue["metadata"] = json!({"name": "other"});
    plane.apply("ClusterQueue", json!({"metadata": {"name": "other"}, "spec": queue["spec"]}));
    plane.apply("LocalQueue", json!({"metadata": {"name": "other"}, "spec": {"clusterQueue": "other"}}));
}

#[rstest]
#[case::job(
    "Job",
    |plane: &mut ControlPlane| put_job(plane, "mover", "low", json!({"suspend": true, "parallelism": 2, "completions": 8})),
    |plane: &ControlPlane| plane.running_and_gated("mover").0,
)]
#[case::cluster(
    "RayCluster",
    |plane: &mut ControlPlane| put_cluster(plane, "mover", "low", 1),
    |plane: &ControlPlane| plane.ungated_pod_count("mover")
)]
fn job_that_is_suspended_into_another_queue_runs_on_the_quota_of_that_queue(
    #[case] kind: &str,
    #[case] put: fn(&mut ControlPlane),
    #[case] running: fn(&ControlPlane) -> usize,
    #[values(false, true)] pods_linger: bool,
) {
    // Given a job that runs in one queue, and a cluster that waits there,
    let mut plane = control_plane(Settings::default(), "2");
    put_other_queue(&mut plane);
    put(&mut plane);
    plane.advance(20);
    assert_eq!(running(&plane), 2);
    put_cluster(&mut plane, "waiting", "low", 1);
    plane.advance(20);
    assert_eq!(plane.ungated_pod_count("waiting"), 0);

    // when it is suspended into another queue, then the cluster does not start before its pods are gone,
    plane.pods_linger = pods_linger;
    let labels = json!({(names::QUEUE_NAME_LABEL): "other"});
    plane.apply(kind, json!({"metadata": {"name": "mover", "labels": labels}, "spec": {"suspend": true}}));
    if pods_linger {
        plane.advance(20);
        assert_eq!(plane.ungated_pod_count("waiting"), 0);
        plane.pods_linger = false;
    }
    plane.advance(60);

    // and both run, each on the quota of its queue.
    assert_eq!((running(&plane), plane.ungated_pod_count("waiting")), (2, 2));
    let slice = plane.workload("mover");
    let queue = slice.status.and_then(|status| status.admission).map(|admission| admission.cluster_queue);
    assert_eq!((slice.spec.queue_name.as_deref(), queue.as_deref()), (Some("other"), Some("other")));
}

/// The admission policies allow a RayService to change its queue this way. Its cluster may be created
/// before the template is changed.
#[rstest]
#[case::at_once(0)]
#[case::later(10)]
fn service_that_leaves_its_queue_while_suspended_runs_without_quota_once_it_is_resumed(#[case] seconds: i64) {
    // Given a service that runs in a queue and is suspended,
    let mut plane = control_plane(Settings::default(), "4");
    put_service(&mut plane, "chat", "low", "2.53.0");
    plane.advance(60);
    assert_eq!(plane.most_running, 2);
    plane.apply("RayService", json!({"metadata": {"name": "chat"}, "spec": {"suspend": true}}));
    plane.advance(60);

    // when it leaves the queue and is resumed,
    let labels = json!({(names::QUEUE_NAME_LABEL): null});
    plane.delayed_kind = Some("RayService").filter(|_| seconds == 0);
    plane.apply("RayService", json!({"metadata": {"name": "chat", "labels": labels}}));
    plane.advance(seconds);
    plane.apply("RayService", json!({"metadata": {"name": "chat"}, "spec": {"suspend": false}}));
    plane.advance(seconds);
    plane.delayed_kind = None;
    plane.deliver_delayed_writes();
    plane.advance(60);

    // then its new cluster starts, and nothing of the queue is left.
    let child = plane.clusters_of_service("chat").remove(0);
    assert_eq!(plane.ungated_pod_count(&child), 2);
    assert!(plane.workloads("chat").is_empty());
    let service = plane.object("RayService", "chat").to_string();
    assert!(!service.contains("sluice.dev/QuotaReserved") && !service.contains("sluice.dev/Admitted"), "{service}");
}

/// The webhook suspends the template of a service, which may leave its queue before it has a condition.
#[rstest]
#[case::by_sluice(json!({(TEMPLATE_SUSPENDED_ANNOTATION): "true"}), 2)]
#[case::by_its_owner(json!({}), 0)]
fn template_that_sluice_suspended_is_opened_in_a_service_without_queue(
    #[case] annotations: Value,
    #[case] expected: usize,
) {
    // Given a service without a queue, with a suspended template,
    let mut plane = control_plane(Settings::default(), "4");
    put_service(&mut plane, "other", "low", "2.53.0");
    let mut spec = plane.object("RayService", "other")["spec"].clone();
    spec["rayClusterConfig"]["suspend"] = json!(true);

    // when it is created,
    plane.apply("RayService", json!({"metadata": {"name": "chat", "annotations": annotations}, "spec": spec}));
    plane.advance(60);

    // then its cluster runs only if Sluice suspended the template.
    let child = plane.clusters_of_service("chat").remove(0);
    assert_eq!(plane.ungated_pod_count(&child), expected);
    let service = plane.object("RayService", "chat");
    assert!(!service.to_string().contains(TEMPLATE_SUSPENDED_ANNOTATION), "{service}");
}

#[test]
fn cluster_of_a_service_that_left_its_queue_stops_when_the_queue_is_drained() {
    // Given a service that leaves its queue while it runs, past the admission policies,
    let mut plane = control_plane(Settings::default(), "2");
    put_service(&mut plane, "chat", "low", "2.53.0");
    plane.advance(60);
    let child = plane.clusters_of_service("chat").remove(0);
    plane.apply("RayService", json!({"metadata": {"name": "chat", "labels": {(names::QUEUE_NAME_LABEL): null}}}));
    plane.advance(20);
    assert_eq!(plane.ungated_pod_count(&child), 2);

    // when the queue, which its cluster still names, is drained,
    plane.apply("LocalQueue", json!({"metadata": {"name": "lq"}, "spec": {"stopPolicy": "HoldAndDrain"}}));
    plane.advance(60);

    // then the cluster stops, and waits with a slice of its own.
    assert_eq!(plane.ungated_pod_count(&child), 0);
    assert!(plane.workloads("chat").is_empty());
    assert_eq!(plane.workloads(&child).len(), 1);
}

#[rstest]
#[case::immediately("4", 0)]
#[case::after_it_stopped_for_lack_of_quota("2", 60)]
fn slice_of_a_cluster_is_released_once_that_of_its_service_covers_it(#[case] quota: &str, #[case] seconds: i64) {
    // Given a cluster with a slice of its own, because its service left the queue,
    let mut plane = control_plane(Settings::default(), quota);
    put_service(&mut plane, "chat", "low", "2.53.0");
    plane.advance(60);
    let child = plane.clusters_of_service("chat").remove(0);
    plane.apply("RayService", json!({"metadata": {"name": "chat", "labels": {(names::QUEUE_NAME_LABEL): null}}}));
    plane.apply("LocalQueue", json!({"metadata": {"name": "lq"}, "spec": {"stopPolicy": "HoldAndDrain"}}));
    plane.advance(60);
    plane.apply("LocalQueue", json!({"metadata": {"name": "lq"}, "spec": {"stopPolicy": "None"}}));
    plane.advance(60);
    assert_eq!((plane.ungated_pod_count(&child), plane.workloads(&child).len()), (2, 1));

    // when the service is queued again,
    plane.apply("RayService", json!({"metadata": {"name": "chat", "labels": {(names::QUEUE_NAME_LABEL): "lq"}}}));
    plane.advance(seconds);

    // then its slice alone covers the cluster.
    assert_eq!(plane.ungated_pod_count(&child), 2);
    assert_eq!((plane.workloads("chat").len(), plane.workloads(&child).len()), (1, 0));
}

#[test]
fn pods_ungated_because_their_cluster_left_its_queue_use_no_quota() {
    // Given a cluster that runs, and has gated pods which wait for quota,
    let mut plane = control_plane(Settings::default(), "2");
    put_cluster(&mut plane, "mover", "low", 1);
    plane.advance(20);
    put_cluster(&mut plane, "mover", "low", 3);
    plane.advance(20);
    let holders: Vec<String> =
        plane.ungated_pods("mover").filter_map(|pod| pod["metadata"]["name"].as_str().map(str::to_owned)).collect();
    assert_eq!((holders.len(), plane.gated_pod_count("mover")), (2, 2));

    // when it leaves its queue, then its pods run, and those that started in the queue hold its quota
    plane.apply("RayCluster", json!({"metadata": {"name": "mover", "labels": {(names::QUEUE_NAME_LABEL): null}}}));
    plane.advance(20);
    assert_eq!((plane.ungated_pod_count("mover"), plane.workloads("mover").len()), (4, 1));

    // until they are gone.
    holders.iter().for_each(|pod| plane.delete("Pod", pod));
    plane.advance(20);
    assert_eq!((plane.ungated_pod_count("mover"), plane.workloads("mover").len()), (4, 0));
}

#[test]
fn pods_created_after_a_cluster_left_its_queue_use_no_quota() {
    // Given a cluster that leaves its queue suspended, and whose slice is deleted late,
    let mut plane = control_plane(Settings::default(), "2");
    put_cluster(&mut plane, "mover", "low", 1);
    plane.advance(20);
    plane.delayed_kind = Some("Workload");
    let labels = json!({(names::QUEUE_NAME_LABEL): null});
    plane.apply("RayCluster", json!({"metadata": {"name": "mover", "labels": labels}, "spec": {"suspend": true}}));
    plane.advance(20);
    assert_eq!(plane.ungated_pod_count("mover"), 0);

    // when it runs again before its slice is deleted,
    plane.apply("RayCluster", json!({"metadata": {"name": "mover"}, "spec": {"suspend": false}}));
    plane.advance(20);
    assert_eq!((plane.ungated_pod_count("mover"), plane.workloads("mover").len()), (2, 1));
    plane.delayed_kind = None;
    plane.deliver_delayed_writes();
    plane.advance(20);

    // then the slice is gone, although pods run.
    assert_eq!((plane.ungated_pod_count("mover"), plane.workloads("mover").len()), (2, 0));
}
