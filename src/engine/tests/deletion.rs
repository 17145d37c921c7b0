//! Deletion of jobs.

use rstest::rstest;
use serde_json::{Value, json};

use super::control_plane::ControlPlane;
use super::fixtures::{cluster_spec, control_plane, job_metadata, put_cluster, put_service, scale_cluster, set_quota};
use sluice_api::kueue::names as kueue_names;
use sluice_api::ray::names;
use sluice_queue::Settings;
use sluice_queue::partial_admission::SLICE_ANNOTATION;

/// Foreground deletion deletes all dependents of a job simultaneously: its slices and its clusters.
/// The slices hold their quota until the last pod is gone, and the job stays until the slices are
/// gone.
#[rstest]
#[case::service("RayService")]
#[case::cluster("RayCluster")]
fn job_deleted_in_the_foreground_is_gone_after_its_pods(#[case] kind: &str) {
    let mut plane = control_plane(Settings::default(), "2");
    if kind == "RayService" {
        put_service(&mut plane, "chat", "low", "2.53.0");
    } else {
        put_cluster(&mut plane, "chat", "low", 1);
    }
    plane.advance(60);
    plane.pods_linger = true;
    assert!(plane.has(kind, "chat") && plane.workloads("chat").len() == 1);

    plane.delete_in_foreground(kind, "chat");
    plane.advance(5);
    assert_eq!(plane.workloads("chat").len(), 1, "pods still run on its quota");

    plane.pods_linger = false;
    plane.advance(5);
    assert!(plane.workloads("chat").is_empty());
    assert!(!plane.has(kind, "chat"));
}

/// Kueue stops a job whose Workload is deleted (kueue v0.19.2
/// `pkg/controller/jobframework/reconciler.go`, `StopReasonWorkloadDeleted`).
#[rstest]
#[case::cluster("RayCluster", |plane: &mut ControlPlane| put_cluster(plane, "chat", "low", 1))]
#[case::service("RayService", |plane: &mut ControlPlane| put_service(plane, "chat", "low", "2.53.0"))]
#[case::job("Job", |plane: &mut ControlPlane| put_job(plane, "Job", "chat"))]
fn job_goes_on_running_when_its_slice_is_deleted_by_hand(#[case] kind: &str, #[case] put: fn(&mut ControlPlane)) {
    // Given a job that uses the whole quota, and a cluster that waits for it,
    let mut plane = control_plane(Settings::default(), "2");
    put(&mut plane);
    plane.advance(20);
    put_cluster(&mut plane, "waiting", "low", 1);
    plane.advance(20);
    let (first, pods) = (plane.workload("chat").metadata, plane.live_pod_names());
    assert_eq!(pods.len(), 2, "{pods:?}");

    // when the slice of the job is deleted,
    plane.delete("Workload", first.name.as_deref().unwrap_or_default());
    plane.advance(4);
    assert_eq!(plane.workload("chat").metadata.uid, first.uid, "the garbage collector may have deleted it");
    plane.advance(60);

    // then another slice covers the same pods, and the cluster still waits.
    let slice = plane.workload("chat");
    assert_ne!(slice.metadata.uid, first.uid);
    assert!(slice.metadata.deletion_timestamp.is_none());
    assert_eq!(plane.live_pod_names(), pods);
    assert!(plane.has(kind, "chat"));
}

#[test]
fn job_that_grows_goes_on_running_when_its_slice_is_deleted_by_hand() {
    // Given a cluster that waits for quota to grow,
    let mut plane = control_plane(Settings::default(), "3");
    put_cluster(&mut plane, "chat", "low", 1);
    plane.advance(20);
    put_cluster(&mut plane, "chat", "low", 8);
    plane.advance(20);
    let running = plane.live_pod_names();
    let held = plane.workloads("chat").remove(0).metadata;

    // when the slice that it runs on is deleted, then its pods stay.
    plane.delete("Workload", held.name.as_deref().unwrap_or_default());
    plane.advance(60);
    assert!(plane.workloads("chat").iter().all(|slice| slice.metadata.uid != held.uid));
    assert_eq!(plane.live_pod_names(), running);
}

#[test]
fn slice_deleted_by_hand_gives_back_the_quota_of_pods_that_are_gone() {
    // Given a cluster of four pods in a queue whose quota was reduced to one, so that no successor fits,
    let mut plane = control_plane(Settings::default(), "4");
    put_cluster(&mut plane, "chat", "low", 3);
    plane.advance(20);
    set_quota(&mut plane, "1");
    let held = plane.workload("chat").metadata.uid;

    // when its slice is deleted and the cluster shrinks to two pods,
    plane.delete("Workload", &plane.workload("chat").metadata.name.unwrap_or_default());
    scale_cluster(&mut plane, "chat", 1);
    plane.advance(60);

    // then these go on running, and the slice holds quota for no more.
    let slices = plane.workloads("chat");
    let slice = slices.iter().find(|slice| slice.metadata.uid == held).expect("two pods run on it");
    assert_eq!(slice.spec.pod_sets.iter().map(|set| set.count).sum::<i32>(), 2);
    assert_eq!(plane.live_pod_names().len(), 2);
}

#[test]
fn slice_deleted_by_hand_can_be_preempted_before_it_has_a_successor() {
    // Given a cluster whose slice was just deleted,
    let mut plane = control_plane(Settings::default(), "2");
    put_cluster(&mut plane, "chat", "low", 1);
    plane.advance(20);
    plane.delete("Workload", &plane.workload("chat").metadata.name.unwrap_or_default());
    plane.advance(1);

    // when a cluster of a higher priority needs its quota, then that one runs.
    put_cluster(&mut plane, "urgent", "high", 1);
    plane.advance(60);
    assert_eq!((plane.ungated_pod_count("urgent"), plane.ungated_pod_count("chat")), (2, 0));
}

#[test]
fn deletion_is_learned_from_a_not_found_response() {
    let mut plane = control_plane(Settings::default(), "8");
    put_cluster(&mut plane, "chat", "low", 1);
    plane.advance(10);

    // The watch of the cluster is behind: the deletion of the pods is the first sign of its
    // deletion.
    plane.lost_deletions = Some("RayCluster");
    plane.delete("RayCluster", "chat");
    plane.advance(60);

    assert!(plane.workloads("chat").is_empty(), "the deleted cluster requests no quota");
    assert_eq!(plane.ungated_pod_count("chat"), 0);
}

#[test]
fn pods_of_a_deleted_cluster_do_not_belong_to_its_successor_of_the_same_name() {
    let mut plane = control_plane(Settings::default(), "8");
    put_cluster(&mut plane, "chat", "low", 1);
    plane.advance(10);
    let old = plane.workload("chat").metadata;
    plane.pods_linger = true;

    plane.delete("RayCluster", "chat");
    put_cluster(&mut plane, "chat", "low", 1);
    plane.advance(10);
    assert_eq!(
        (plane.workloads("chat").len(), plane.ungated_pod_count("chat")),
        (2, 4),
        "each slice covers its own pods"
    );

    plane.pods_linger = false;
    plane.advance(10);
    assert_ne!(plane.workload("chat").metadata.uid, old.uid);
    assert_eq!(
        (plane.workloads("chat").len(), plane.ungated_pod_count("chat")),
        (1, 2),
        "the quota of the old cluster is released"
    );
}

#[test]
fn quota_of_pods_in_creation_is_held_after_their_cluster_is_deleted() {
    let mut plane = control_plane(Settings::default(), "8");
    plane.delayed_kind = Some("Pod");
    put_cluster(&mut plane, "chat", "low", 1);
    plane.advance(10);

    plane.delete("RayCluster", "chat");
    plane.advance(10);
    assert_eq!(
        (plane.workloads("chat").len(), plane.ungated_pod_count("chat")),
        (1, 0),
        "no pod exists yet; all may appear"
    );

    plane.pods_linger = true;
    plane.deliver_delayed_writes();
    plane.advance(10);
    assert_eq!(
        (plane.workloads("chat").len(), plane.ungated_pod_count("chat")),
        (1, 2),
        "they run until garbage-collected"
    );

    plane.pods_linger = false;
    plane.advance(10);
    assert_eq!((plane.workloads("chat").len(), plane.ungated_pod_count("chat")), (0, 0));
}

#[test]
fn deleted_slice_holds_its_quota_while_its_cluster_may_be_unsuspended() {
    // Given a cluster that is being unsuspended on its slice,
    let mut plane = control_plane(Settings::default(), "8");
    let mut spec = cluster_spec(1, "2.53.0");
    spec["suspend"] = json!(true);
    plane.apply("RayCluster", json!({"metadata": job_metadata("chat", "low"), "spec": spec}));
    plane.delayed_kind = Some("RayCluster");
    plane.advance(10);
    plane.delayed_kind = None;
    let first = plane.workload("chat").metadata;

    // when the slice is deleted, then it stays until the outcome of that write is known.
    plane.delete("Workload", first.name.as_deref().unwrap_or_default());
    plane.advance(10);
    assert!(plane.workloads("chat").iter().any(|slice| slice.metadata.uid == first.uid));
    plane.deliver_delayed_writes();
    plane.advance(60);
    assert_ne!(plane.workload("chat").metadata.uid, first.uid);
    assert_eq!(plane.ungated_pod_count("chat"), 2);
}

#[test]
fn service_exceeding_its_initializing_timeout_releases_its_quota() {
    // Given an admitted service that never serves, and a cluster that is pending for its quota,
    let mut plane = control_plane(Settings::default(), "2");
    plane.unready_pods.insert("chat".into());
    put_service(&mut plane, "chat", "low", "2.53.0");
    let limit = json!({(names::INITIALIZING_TIMEOUT_ANNOTATION): "60"});
    plane.apply("RayService", json!({"metadata": {"name": "chat", "annotations": limit}}));
    plane.advance(10);
    put_cluster(&mut plane, "other", "low", 1);
    plane.advance(30);
    assert_eq!(plane.ungated_pod_count("other"), 0);

    // when the timeout expires, then its pods are deleted, and only then the other cluster starts.
    plane.advance(60);
    assert_eq!(plane.ungated_pod_count("other"), 2);
}

/// Creates a job with pods of 2 CPUs in all.
fn put_job(plane: &mut ControlPlane, kind: &str, name: &str) {
    if kind == "RayCluster" {
        return put_cluster(plane, name, "low", 1);
    }
    let container = json!({"name": "work", "resources": {"requests": {"cpu": "1"}}});
    let spec = json!({
        "parallelism": 2, "completions": 200,
        "template": {"spec": {"restartPolicy": "Never", "containers": [container]}},
    });
    plane.apply("Job", json!({"metadata": job_metadata(name, "low"), "spec": spec}));
}

fn runs(plane: &ControlPlane, kind: &str, name: &str) -> usize {
    if kind == "Job" { plane.running_and_gated(name).0 } else { plane.ungated_pod_count(name) }
}

fn finished_reasons(plane: &ControlPlane) -> Vec<String> {
    let workloads = plane.names("Workload").into_iter().map(|name| plane.object("Workload", &name).clone());
    let conditions =
        workloads.flat_map(|workload| workload["status"]["conditions"].as_array().cloned().unwrap_or_default());
    let finished = conditions.filter(|found| found["type"] == "Finished" && found["status"] == "True");
    finished.map(|found| found["reason"].as_str().unwrap_or_default().to_owned()).collect()
}

#[rstest]
fn orphaned_pods_keep_their_quota_until_the_last_one_is_gone(
    #[values("Job", "RayCluster")] kind: &str,
    #[values("Pod", "Workload")] first_orphaned: &str,
) {
    // Given quota for one job, and another that waits,
    let mut plane = control_plane(Settings::default(), "2");
    put_job(&mut plane, kind, "left");
    plane.advance(10);
    put_job(&mut plane, kind, "next");
    plane.advance(10);
    assert_eq!((runs(&plane, kind, "left"), runs(&plane, kind, "next")), (2, 0));

    // when the first one is deleted without its pods, then they run on and the other one waits,
    plane.delete_orphaning(kind, "left", first_orphaned);
    plane.advance(60);
    assert!(!plane.has(kind, "left"));
    assert_eq!((runs(&plane, kind, "left"), runs(&plane, kind, "next")), (2, 0));

    // also while one of them is left,
    let pods: Vec<String> = plane.names("Pod");
    plane.delete("Pod", &pods[0]);
    plane.advance(60);
    assert_eq!((runs(&plane, kind, "left"), runs(&plane, kind, "next")), (1, 0));

    // and once they are gone, it runs.
    plane.delete("Pod", &pods[1]);
    plane.advance(10);
    assert_eq!((runs(&plane, kind, "left"), runs(&plane, kind, "next")), (0, 2));
    assert_eq!(finished_reasons(&plane), ["OwnerNotFound"]);

    // A job of the same name is another one.
    put_job(&mut plane, kind, "left");
    plane.advance(10);
    assert_eq!((plane.workloads("left").len(), runs(&plane, kind, "left")), (1, 0));
}

#[rstest]
#[case::job("Job")]
#[case::cluster("RayCluster")]
fn orphaned_job_that_waits_requests_nothing(#[case] kind: &str) {
    let mut plane = control_plane(Settings::default(), "0");
    put_job(&mut plane, kind, "left");
    plane.advance(10);
    plane.delete_orphaning(kind, "left", "Pod");
    plane.advance(10);
    assert_eq!(plane.names("Workload"), [""; 0]);
    assert!(!plane.has(kind, "left"));
}

/// Creates a control plane with orphaned pods of a Job; returns it and the name of their slice.
fn with_orphaned_pods() -> (ControlPlane, String) {
    let mut plane = control_plane(Settings::default(), "4");
    put_job(&mut plane, "Job", "left");
    plane.advance(10);
    plane.delete_orphaning("Job", "left", "Workload");
    plane.advance(10);
    let slice = plane.names("Workload").remove(0);
    (plane, slice)
}

/// Returns a copy of a slice without owner, under the name `second`, that replaces it.
fn orphaned_successor(plane: &ControlPlane, slice: &str) -> Value {
    let mut second = plane.object("Workload", slice).clone();
    let metadata = &second["metadata"];
    let annotations = json!({
        SLICE_ANNOTATION: metadata["annotations"][SLICE_ANNOTATION],
        kueue_names::SLICE_REPLACEMENT_FOR_ANNOTATION: format!("default/{slice}"),
    });
    second["metadata"] = json!({"name": "second", "labels": metadata["labels"], "annotations": annotations});
    second
}

fn lost_its_owner(plane: &ControlPlane, slice: &str) -> bool {
    plane.object("Workload", slice)["status"]["conditions"].to_string().contains("OwnerNotFound")
}

/// Two slices of an orphaned job remain if Sluice did not run when it was deleted.
#[rstest]
#[case::first_is_replaced(true)]
#[case::second_waits(false)]
fn one_slice_of_an_orphaned_job_holds_its_quota(#[case] is_second_admitted: bool) {
    // Given orphaned pods of a job,
    let (mut plane, first) = with_orphaned_pods();

    // when there is another slice that replaces the one that covers them,
    let mut second = orphaned_successor(&plane, &first);
    if !is_second_admitted {
        second["status"] = json!({});
    }
    plane.apply("Workload", second);
    plane.advance(10);

    // then one of them finishes, and the other one holds the quota of the pods.
    let finished = [first.as_str(), "second"].map(|slice| lost_its_owner(&plane, slice));
    assert_eq!(finished, [is_second_admitted, !is_second_admitted]);
    put_job(&mut plane, "Job", "next");
    plane.advance(10);
    put_job(&mut plane, "Job", "last");
    plane.advance(10);
    assert_eq!(["left", "next", "last"].map(|name| runs(&plane, "Job", name)), [2, 2, 0]);
}

#[test]
fn orphaned_pods_of_an_older_shape_keep_the_quota_of_their_slice() {
    // Given orphaned pods of a job,
    let (mut plane, first) = with_orphaned_pods();

    // when an admitted slice that replaces theirs covers pods of another shape,
    let mut second = orphaned_successor(&plane, &first);
    let mut record = slice_record(&second);
    record["members"][0]["pods"][0]["shape"] = json!("other");
    second["metadata"]["annotations"][SLICE_ANNOTATION] = json!(record.to_string());
    plane.apply("Workload", second);
    plane.advance(10);

    // then both hold quota, as both shapes may run.
    assert_eq!([first.as_str(), "second"].map(|slice| lost_its_owner(&plane, slice)), [false, false]);
}

/// The watch of RayClusters can be behind that of pods, after a restart too.
#[test]
fn orphaned_pods_keep_their_quota_while_the_deletion_of_their_cluster_is_not_observed() {
    // Given a running cluster whose template of workers has changed,
    let mut plane = control_plane(Settings::default(), "4");
    put_job(&mut plane, "RayCluster", "left");
    plane.advance(10);
    let mut cluster = plane.object("RayCluster", "left").clone();
    cluster["spec"]["workerGroupSpecs"][0]["template"]["spec"]["containers"][0]["resources"] =
        json!({"requests": {"cpu": "1500m"}});
    plane.apply("RayCluster", cluster);
    plane.advance(10);
    let covered = covered_pods(&plane);
    assert_eq!(covered.len(), 2, "{covered:?}");

    // when its pods lose their owner, and it looks unchanged,
    for pod in plane.names("Pod") {
        let mut orphaned = plane.object("Pod", &pod).clone();
        orphaned["metadata"]["ownerReferences"] = json!([]);
        plane.apply("Pod", orphaned);
        plane.advance(1);
    }
    plane.advance(60);

    // then the quota of both stays reserved.
    let still_covered = covered_pods(&plane);
    assert!(covered.iter().all(|pod| still_covered.contains(pod)), "{still_covered:?}");
}

/// Returns the group and shape of all pods that the slices with quota cover.
fn covered_pods(plane: &ControlPlane) -> Vec<String> {
    let slices = plane.names("Workload").into_iter().map(|name| plane.object("Workload", &name).clone());
    let admitted = slices.filter(|slice| !slice["status"]["admission"].is_null());
    let pods = admitted.filter_map(|slice| slice_record(&slice)["members"][0]["pods"].as_array().cloned());
    pods.flatten().map(|pod| format!("{} {}", pod["group"], pod["shape"])).collect()
}

fn slice_record(slice: &Value) -> Value {
    let record = slice["metadata"]["annotations"][SLICE_ANNOTATION].as_str().expect("a slice has a record");
    serde_json::from_str(record).expect("a record is JSON")
}

#[rstest]
#[case::job("Job")]
#[case::cluster("RayCluster")]
fn slice_that_the_garbage_collector_takes_first_holds_its_quota_while_orphaned_pods_run(#[case] kind: &str) {
    // Given a running job,
    let mut plane = control_plane(Settings::default(), "2");
    put_job(&mut plane, kind, "left");
    plane.advance(10);
    let slice = plane.names("Workload").remove(0);

    // when its slice is deleted, and then the job without its pods,
    plane.pods_linger = true;
    plane.delete("Workload", &slice);
    plane.delete_orphaning(kind, "left", "Pod");
    plane.advance(60);

    // then the slice stays as long as they do.
    assert_eq!((plane.has("Workload", &slice), runs(&plane, kind, "left")), (true, 2));
    plane.pods_linger = false;
    plane.names("Pod").iter().for_each(|pod| plane.delete("Pod", pod));
    plane.advance(10);
    assert!(!plane.has("Workload", &slice));
}

#[rstest]
#[case::job("Job")]
#[case::cluster("RayCluster")]
fn slice_of_a_deleted_job_ends_by_itself_after_the_last_pod(#[case] kind: &str) {
    // Given a running job, another one that waits for its quota, and no garbage collector,
    let mut plane = control_plane(Settings::default(), "2");
    put_job(&mut plane, kind, "left");
    plane.advance(10);
    put_job(&mut plane, kind, "next");
    plane.advance(10);
    plane.collects_garbage = false;

    // when the first one is deleted, then its pods keep their quota,
    plane.delete(kind, "left");
    plane.advance(120);
    assert!(!plane.has(kind, "left"));
    assert_eq!((runs(&plane, kind, "left"), runs(&plane, kind, "next")), (2, 0));

    // and once they are gone, it is released.
    let pods: Vec<String> = plane.names("Pod").into_iter().filter(|pod| pod.starts_with("left")).collect();
    pods.iter().for_each(|pod| plane.delete("Pod", pod));
    plane.advance(70);
    assert_eq!((runs(&plane, kind, "left"), runs(&plane, kind, "next")), (0, 2));
    assert_eq!(finished_reasons(&plane), ["OwnerNotFound"]);
}

#[test]
fn slice_that_lost_its_owner_is_adopted_by_its_job() {
    for kind in ["Job", "RayCluster"] {
        let mut plane = control_plane(Settings::default(), "2");
        put_job(&mut plane, kind, "kept");
        plane.advance(10);
        let slice = plane.names("Workload").remove(0);

        plane.apply("Workload", json!({"metadata": {"name": slice, "ownerReferences": null}}));
        plane.advance(10);

        let uid = &plane.object(kind, "kept")["metadata"]["uid"];
        assert_eq!(plane.object("Workload", &slice)["metadata"]["ownerReferences"][0]["uid"], *uid);
        assert_eq!((plane.names("Workload").len(), runs(&plane, kind, "kept")), (1, 2));
    }
}

#[test]
fn workload_without_owner_that_no_job_made_is_left_alone() {
    let mut plane = control_plane(Settings::default(), "2");
    let template = json!({"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}});
    let spec = json!({"queueName": "lq", "podSets": [{"name": "main", "count": 1, "template": template}]});
    plane.apply("Workload", json!({"metadata": {"name": "by-hand"}, "spec": spec}));
    plane.advance(60);
    let conditions = plane.object("Workload", "by-hand")["status"]["conditions"].to_string();
    assert!(conditions.contains("Admitted") && !conditions.contains("Finished"), "{conditions}");
}
