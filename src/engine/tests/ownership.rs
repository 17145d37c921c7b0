//! An object is covered by its own queue, or by an owner that is queued, exists and has the uid that
//! the owner reference names.

use rstest::rstest;
use serde_json::{Value, json};

use super::control_plane::ControlPlane;
use super::fixtures::{cluster_spec, control_plane, job_metadata, put_cluster, put_service, set_quota};
use sluice_api::kueue::names::QUEUE_NAME_LABEL;
use sluice_queue::Settings;

/// Owner reference of an object.
pub(super) struct Reference {
    api_version: &'static str,
    kind: &'static str,
    name: &'static str,
    /// True if the uid is that of the existing object with this kind and name.
    has_its_uid: bool,
    controller: bool,
}

const fn reference(api_version: &'static str, kind: &'static str, name: &'static str) -> Reference {
    Reference { api_version, kind, name, has_its_uid: true, controller: true }
}

const STRANGER: Reference = reference("v1", "ConfigMap", "pipeline");
const SERVICE: Reference = reference("ray.io/v1", "RayService", "chat");
const UNQUEUED_SERVICE: Reference = reference("ray.io/v1", "RayService", "free");
pub(super) const RAY_JOB: Reference = reference("ray.io/v1", "RayJob", "train");
const CLUSTER: Reference = reference("ray.io/v1", "RayCluster", "other");

/// Creates a control plane without quota, with the objects that references name.
fn plane_with_owners() -> ControlPlane {
    let mut plane = control_plane(Settings::default(), "0");
    plane.collects_garbage = false;
    plane.apply("ConfigMap", json!({"metadata": {"name": "pipeline"}}));
    put_service(&mut plane, "chat", "low", "2.53.0");
    put_cluster(&mut plane, "other", "low", 1);
    plane.apply(
        "RayJob",
        json!({"metadata": job_metadata("train", "low"), "spec": {"entrypoint": "true", "suspend": true}}),
    );
    plane
}

fn owner_references(plane: &ControlPlane, owner: Option<&Reference>) -> Value {
    let Some(owner) = owner else { return Value::Null };
    let exists = owner.has_its_uid && plane.has(owner.kind, owner.name);
    let uid = if exists { plane.object(owner.kind, owner.name)["metadata"]["uid"].clone() } else { json!("uid-0") };
    json!([{
        "apiVersion": owner.api_version, "kind": owner.kind, "name": owner.name, "uid": uid,
        "controller": owner.controller,
    }])
}

/// Creates an object in the queue, with an owner.
pub(super) fn put_owned(plane: &mut ControlPlane, kind: &str, name: &str, owner: Option<&Reference>) {
    let mut metadata = job_metadata(name, "low");
    metadata["ownerReferences"] = owner_references(plane, owner);
    let pod =
        json!({"restartPolicy": "Never", "containers": [{"name": "main", "resources": {"requests": {"cpu": "1"}}}]});
    let spec = match kind {
        "RayCluster" => cluster_spec(1, "2.53.0"),
        _ => json!({"parallelism": 2, "completions": 2, "template": {"spec": pod}}),
    };
    plane.apply(kind, json!({"metadata": metadata, "spec": spec}));
}

fn running(plane: &ControlPlane, kind: &str, name: &str) -> usize {
    if kind == "Job" { plane.running_and_gated(name).0 } else { plane.ungated_pod_count(name) }
}

#[rstest]
#[case::without_owner("RayCluster", None)]
#[case::of_a_stranger("RayCluster", Some(STRANGER))]
#[case::of_a_service_that_is_absent("RayCluster", Some(Reference { name: "gone", ..SERVICE }))]
#[case::of_a_service_with_another_uid("RayCluster", Some(Reference { has_its_uid: false, ..SERVICE }))]
#[case::of_a_service_of_another_group("RayCluster", Some(Reference { api_version: "example.com/v1", ..SERVICE }))]
#[case::of_a_service_that_does_not_control_it("RayCluster", Some(Reference { controller: false, ..SERVICE }))]
#[case::of_a_ray_job_that_this_operator_does_not_run("RayCluster", Some(RAY_JOB))]
#[case::of_a_ray_job_that_is_absent("RayCluster", Some(Reference { name: "gone", ..RAY_JOB }))]
#[case::of_another_cluster("RayCluster", Some(CLUSTER))]
#[case::job_without_owner("Job", None)]
#[case::job_of_a_stranger("Job", Some(STRANGER))]
#[case::job_of_a_ray_job_that_is_absent("Job", Some(Reference { name: "gone", ..RAY_JOB }))]
#[case::job_of_a_ray_job_with_another_uid("Job", Some(Reference { has_its_uid: false, ..RAY_JOB }))]
#[case::job_of_a_ray_job_that_it_does_not_submit("Job", Some(RAY_JOB))]
#[case::job_of_a_cluster("Job", Some(CLUSTER))]
#[case::job_of_a_cluster_that_is_absent("Job", Some(Reference { name: "gone", ..CLUSTER }))]
#[case::job_of_a_service("Job", Some(SERVICE))]
fn object_without_a_covering_owner_is_queued_by_its_own_label(#[case] kind: &str, #[case] owner: Option<Reference>) {
    // Given no quota,
    let mut plane = plane_with_owners();

    // when the object is created, then it has a Workload of its own and runs no pod.
    put_owned(&mut plane, kind, "own", owner.as_ref());
    plane.advance(60);
    plane.workload("own");
    assert_eq!(running(&plane, kind, "own"), 0);
    assert_eq!(plane.object(kind, "own")["spec"]["suspend"], true);
    // The Job controller may create pods before a Job is suspended, without the webhook.
    assert!(plane.most_running == 0 || kind == "Job");

    // With quota it runs.
    set_quota(&mut plane, "20");
    plane.advance(60);
    assert_eq!(running(&plane, kind, "own"), 2);
}

#[test]
fn cluster_of_a_queued_service_is_covered_by_the_service() {
    let mut plane = plane_with_owners();
    put_owned(&mut plane, "RayCluster", "own", Some(&SERVICE));
    plane.advance(0);
    assert!(plane.workloads("own").is_empty());
    assert_eq!(plane.ungated_pod_count("own"), 0);
}

#[test]
fn queue_name_that_the_queue_of_the_owner_overrides_is_reported() {
    // Given a cluster in the queue of its service,
    let mut plane = plane_with_owners();
    plane.advance(10);
    let child = plane.clusters_of_service("chat").remove(0);
    let ignored = |plane: &ControlPlane| {
        let conditions =
            plane.object("RayCluster", &child)["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.into_iter().find(|found| found["type"] == "sluice.dev/QueueNameIgnored")
    };
    assert_eq!(ignored(&plane), None);

    // when it names another queue, then it says that this has no effect, until it is undone.
    let label = |queue: &str| json!({"metadata": {"name": child, "labels": {(QUEUE_NAME_LABEL): queue}}});
    plane.apply("RayCluster", label("other"));
    plane.advance(10);
    let message = ignored(&plane).expect("a condition")["message"].to_string();
    assert!(message.contains("names LocalQueue other, and has no effect: RayService chat covers"), "{message}");
    plane.apply("RayCluster", label("lq"));
    plane.advance(10);
    assert_eq!(ignored(&plane), None);
    assert_eq!(plane.most_running, 0);
}

#[test]
fn cluster_of_an_unqueued_service_is_queued_by_its_own_label() {
    // Given a RayService outside of any queue,
    let mut plane = plane_with_owners();
    put_service(&mut plane, "free", "low", "2.53.0");
    plane.apply("RayService", json!({"metadata": {"name": "free", "labels": {(QUEUE_NAME_LABEL): null}}}));

    // when a cluster names it as its owner and a queue as its own,
    put_owned(&mut plane, "RayCluster", "own", Some(&UNQUEUED_SERVICE));
    plane.advance(0);

    // then it gets no pod without quota.
    let pods =
        plane.emitted_events.iter().filter(|event| event.reason == "CreatedHeadPod" && event.regarding.name == "own");
    assert_eq!(pods.count(), 0);
}

#[test]
fn cluster_is_queued_by_its_own_label_once_its_owner_leaves_the_queue() {
    // Given a service that waits for quota,
    let mut plane = plane_with_owners();
    plane.advance(10);
    let child = plane.clusters_of_service("chat").remove(0);
    assert_eq!((plane.workloads("chat").len(), plane.workloads(&child).len()), (1, 0));

    // when it leaves the queue, then its cluster, which still names the queue, waits for itself.
    plane.apply("RayService", json!({"metadata": {"name": "chat", "labels": {(QUEUE_NAME_LABEL): null}}}));
    plane.advance(10);
    assert_eq!((plane.workloads("chat").len(), plane.workloads(&child).len()), (0, 1));
    assert_eq!(plane.most_running, 0);

    // when it is back, then the service waits for both again.
    plane.apply("RayService", json!({"metadata": {"name": "chat", "labels": {(QUEUE_NAME_LABEL): "lq"}}}));
    plane.advance(10);
    assert_eq!((plane.workloads("chat").len(), plane.workloads(&child).len()), (1, 0));
    assert_eq!(plane.most_running, 0);
}

#[test]
fn running_cluster_is_charged_once_when_its_owner_leaves_the_queue() {
    // Given a service that runs in a queue,
    let mut plane = control_plane(Settings::default(), "8");
    put_service(&mut plane, "chat", "low", "2.53.0");
    plane.advance(60);
    let child = plane.clusters_of_service("chat").remove(0);
    let pods = plane.live_pod_names();
    assert_eq!(pods.len(), 2);

    // when it leaves the queue, then the slice of the service covers the pods as long as they run.
    plane.apply("RayService", json!({"metadata": {"name": "chat", "labels": {(QUEUE_NAME_LABEL): null}}}));
    plane.advance(60);
    assert_eq!((plane.workloads("chat").len(), plane.workloads(&child).len()), (1, 0));
    assert_eq!(plane.live_pod_names(), pods);
}

/// Creates a control plane with quota for the cluster of a RayJob, which KubeRay runs.
pub(super) fn plane_with_ray_job() -> ControlPlane {
    let mut plane = control_plane(Settings::default(), "3").with_external_ray_operator();
    let spec = json!({
        "entrypoint": "true", "shutdownAfterJobFinishes": true, "submissionMode": "HTTPMode", "suspend": true,
        "rayClusterSpec": cluster_spec(1, "2.53.0"),
    });
    plane.apply("RayJob", json!({"metadata": job_metadata("train", "low"), "spec": spec}));
    plane
}

fn is_suspended(plane: &ControlPlane, cluster: &str) -> bool {
    plane.object("RayCluster", cluster)["spec"]["suspend"] == true
}

#[test]
fn ray_job_covers_only_the_cluster_that_was_created_for_it() {
    // Given a RayJob that is admitted, and its cluster, which is observed before the status that names it,
    let mut plane = plane_with_ray_job();
    plane.advance(10);
    assert_eq!(plane.object("RayJob", "train")["spec"]["suspend"], false);
    put_owned(&mut plane, "RayCluster", "train-abcde", Some(&RAY_JOB));
    plane.advance(0);
    plane.apply("RayJob", json!({"metadata": {"name": "train"}, "status": {"rayClusterName": "train-abcde"}}));
    plane.advance(10);
    assert!(plane.workloads("train-abcde").is_empty() && !is_suspended(&plane, "train-abcde"));

    // when a user creates another one that names the RayJob as its owner, then it waits for itself;
    put_owned(&mut plane, "RayCluster", "forged", Some(&RAY_JOB));
    plane.advance(10);
    assert!(plane.workloads("forged").len() == 1 && is_suspended(&plane, "forged"));

    // and the next cluster of the RayJob, which is created after the first one is gone, does not.
    plane.delete("RayCluster", "train-abcde");
    plane.advance(0);
    put_owned(&mut plane, "RayCluster", "train-fghij", Some(&RAY_JOB));
    plane.advance(0);
    plane.apply("RayJob", json!({"metadata": {"name": "train"}, "status": {"rayClusterName": "train-fghij"}}));
    plane.advance(10);
    assert!(plane.workloads("train-fghij").is_empty() && !is_suspended(&plane, "train-fghij"));
}

#[test]
fn cluster_of_a_suspended_ray_job_is_queued_by_its_own_label() {
    // Given a RayJob that waits for quota,
    let mut plane = plane_with_ray_job();
    set_quota(&mut plane, "0");
    plane.advance(10);

    put_owned(&mut plane, "RayCluster", "forged", Some(&RAY_JOB));
    plane.advance(10);

    assert!(plane.workloads("forged").len() == 1 && is_suspended(&plane, "forged"));
}

/// Parts of a Workload that a user forges, for a cluster of two pods of 1 CPU.
#[derive(Debug, Clone, Copy)]
enum Forgery {
    /// PodSets that request nothing.
    Requests,
    /// A PodSet of fewer pods than the record covers.
    Count,
}

#[rstest]
#[case::pod_sets_that_request_nothing(Forgery::Requests)]
#[case::pod_sets_with_fewer_pods(Forgery::Count)]
fn workload_that_claims_more_than_it_requests_covers_nothing(#[case] forgery: Forgery) {
    // Given quota for one CPU, the Workload of one cluster as a model, and another cluster that waits,
    let mut plane = control_plane(Settings::default(), "1");
    put_cluster(&mut plane, "model", "low", 1);
    put_cluster(&mut plane, "own", "low", 1);
    plane.advance(10);
    let uid_of = |plane: &ControlPlane, name: &str| plane.object("RayCluster", name)["metadata"]["uid"].clone();
    let (model, own) = (uid_of(&plane, "model"), uid_of(&plane, "own"));

    // when a user creates a Workload for that one, which covers it and requests less,
    let mut forged = serde_json::to_value(plane.workload("model")).expect("JSON");
    let record = forged["metadata"]["annotations"]["sluice.dev/slice"].as_str().expect("a record");
    let record = record.replace(model.as_str().expect("a uid"), own.as_str().expect("a uid")).replace("model", "own");
    let owner =
        json!([{"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": "own", "uid": own, "controller": true}]);
    for pod_set in forged["spec"]["podSets"].as_array_mut().expect("PodSets") {
        match forgery {
            Forgery::Requests => pod_set["template"]["spec"]["containers"][0]["resources"] = json!({}),
            Forgery::Count => pod_set["count"] = json!(if pod_set["name"] == "head" { 1 } else { 0 }),
        }
    }
    let metadata = json!({"name": "forged", "annotations": {"sluice.dev/slice": record}, "ownerReferences": owner});
    forged["spec"]["priority"] = json!(1000);
    plane.apply("Workload", json!({"metadata": metadata, "spec": forged["spec"]}));
    plane.advance(60);

    // then no pod runs on it, and it is gone.
    assert_eq!((plane.most_running, plane.has("Workload", "forged")), (0, false));
}

/// ray-project/kuberay#3489: such a Service was overwritten.
#[rstest]
#[case::of_a_cluster("other-head-svc", "RayCluster")]
#[case::of_a_service("chat-serve-svc", "RayService")]
fn service_that_the_cluster_does_not_own_stays_unchanged(#[case] name: &str, #[case] kind: &str) {
    // Given a Service that belongs to something else, with the name that the operator uses,
    let mut plane = control_plane(Settings::default(), "20");
    let spec = json!({"selector": {"app": "shop"}, "ports": [{"port": 80}]});
    plane.apply("Service", json!({"metadata": {"name": name}, "spec": spec}));
    let before = plane.object("Service", name).clone();

    // when a cluster and a service need it, then it stays as it is, and an Event names it.
    put_cluster(&mut plane, "other", "low", 1);
    put_service(&mut plane, "chat", "low", "2.53.0");
    plane.advance(120);
    assert_eq!(*plane.object("Service", name), before);
    let events = plane.emitted_events.iter().filter(|event| event.regarding.kind == kind && event.warning);
    let named = events.filter(|event| event.message.contains(name)).count();
    assert!(named > 0, "{:?}", plane.emitted_events);
}
