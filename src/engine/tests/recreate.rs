//! Clusters whose pods are recreated when their spec changes (`upgradeStrategy: Recreate`).

use rstest::rstest;
use serde_json::{Value, json};

use super::control_plane::ControlPlane;
use super::fixtures::{cluster_spec, control_plane, job_metadata, put_cluster, scale_cluster};
use sluice_api::ray::names;
use sluice_jobframework::upgrade_feasibility::UPGRADE_ADMISSIBLE;
use sluice_queue::Settings;

/// Creates or changes a cluster with `workers` workers of `cpu` CPUs each; `version` changes the
/// pods but not their requests.
fn put_recreated_cluster(plane: &mut ControlPlane, workers: u32, cpu: &str, version: &str) {
    plane.apply("RayCluster", json!({"metadata": job_metadata("chat", "low"), "spec": spec(workers, cpu, version)}));
}

fn spec(workers: u32, cpu: &str, version: &str) -> Value {
    let mut spec = cluster_spec(workers, version);
    spec["upgradeStrategy"] = json!({"type": "Recreate"});
    let container = &mut spec["workerGroupSpecs"][0]["template"]["spec"]["containers"][0];
    container["resources"] = json!({"requests": {"cpu": cpu}, "limits": {"cpu": cpu}});
    spec
}

/// Returns the distinct descriptions of the running pods.
fn running_pod_kinds(plane: &ControlPlane) -> Vec<String> {
    let mut kinds: Vec<String> = plane.ungated_pods("chat").map(description).collect();
    kinds.sort();
    kinds.dedup();
    kinds
}

fn description(pod: &Value) -> String {
    let cpu = &pod["spec"]["containers"][0]["resources"]["requests"]["cpu"];
    match pod["metadata"]["labels"]["ray.io/node-type"].as_str() {
        Some("worker") => format!("worker of {}", cpu.as_str().unwrap_or_default()),
        _ => "head".to_owned(),
    }
}

fn cluster_condition(plane: &ControlPlane, kind: &str) -> Option<(String, String)> {
    let conditions = plane.object("RayCluster", "chat")["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let found = conditions.into_iter().find(|condition| condition["type"] == kind)?;
    let text = |field: &str| found[field].as_str().unwrap_or_default().to_owned();
    Some((text("status"), text("reason")))
}

#[test]
fn pods_are_recreated_once_the_last_old_pod_is_gone() {
    // Given a running cluster with pods that terminate slowly,
    let mut plane = control_plane(Settings::default(), "5");
    put_recreated_cluster(&mut plane, 2, "1", "2.53.0");
    plane.advance(60);
    assert_eq!(plane.ungated_pod_count("chat"), 3);
    plane.pods_linger = true;

    // when its workers get larger, then all old pods are deleted, and no new pod exists before the
    // last of them is gone;
    put_recreated_cluster(&mut plane, 2, "2", "2.53.0");
    plane.advance(60);
    assert_eq!(running_pod_kinds(&plane), ["head", "worker of 1"]);
    assert_eq!((plane.ungated_pod_count("chat"), plane.workloads("chat").len()), (3, 2));

    // and then those of the new spec start, on a new slice.
    plane.pods_linger = false;
    plane.advance(60);
    assert_eq!(running_pod_kinds(&plane), ["head", "worker of 2"]);
    assert_eq!((plane.ungated_pod_count("chat"), plane.workloads("chat").len()), (3, 1));
    assert_eq!(plane.pending_message("RayCluster", "chat"), "");
    assert_eq!(cluster_condition(&plane, UPGRADE_ADMISSIBLE), None);
}

#[test]
fn ended_old_pod_blocks_the_recreation_until_it_is_gone() {
    // Given a cluster that is recreated, and pods that have ended but still exist, as the kubelet
    // leaves them,
    let mut plane = control_plane(Settings::default(), "5");
    put_recreated_cluster(&mut plane, 2, "1", "2.53.0");
    plane.advance(60);
    plane.pods_linger = true;
    put_recreated_cluster(&mut plane, 2, "2", "2.53.0");
    plane.advance(60);
    for name in plane.names("Pod") {
        plane.apply("Pod", json!({"metadata": {"name": name}, "status": {"phase": "Failed"}}));
    }
    plane.advance(60);

    // then no new pod exists yet,
    assert_eq!(
        (running_pod_kinds(&plane), plane.ungated_pod_count("chat")),
        (vec!["head".to_owned(), "worker of 1".to_owned()], 3)
    );

    // and those of the new spec start once the old ones are gone.
    plane.pods_linger = false;
    plane.advance(60);
    assert_eq!(
        (running_pod_kinds(&plane), plane.ungated_pod_count("chat")),
        (vec!["head".to_owned(), "worker of 2".to_owned()], 3)
    );
}

#[test]
fn running_pods_are_reconciled_by_the_old_spec_until_the_new_one_has_quota() {
    // Given a cluster whose pods get larger, while another cluster holds the quota for that,
    let mut plane = control_plane(Settings::default(), "7");
    put_recreated_cluster(&mut plane, 2, "1", "2.53.0");
    put_cluster(&mut plane, "other", "low", 3);
    plane.advance(60);
    put_recreated_cluster(&mut plane, 2, "3", "2.53.0");
    plane.advance(60);
    assert_eq!(
        (running_pod_kinds(&plane), plane.ungated_pod_count("chat")),
        (vec!["head".to_owned(), "worker of 1".to_owned()], 3)
    );
    assert_eq!(cluster_condition(&plane, UPGRADE_ADMISSIBLE), Some(("True".to_owned(), "Recreate".to_owned())));
    assert!(plane.pending_message("RayCluster", "chat").contains("new spec of chat is pending in LocalQueue lq"));

    // when a pod fails, then one of the old spec replaces it, and the cluster can be scaled,
    let worker = plane.ungated_pods("chat").find(|pod| description(pod) == "worker of 1").expect("a worker");
    let name = worker["metadata"]["name"].as_str().expect("a name").to_owned();
    plane.delete("Pod", &name);
    plane.advance(60);
    assert_eq!(
        (running_pod_kinds(&plane), plane.ungated_pod_count("chat")),
        (vec!["head".to_owned(), "worker of 1".to_owned()], 3)
    );
    scale_cluster(&mut plane, "chat", 1);
    plane.advance(60);
    assert_eq!(
        (running_pod_kinds(&plane), plane.ungated_pod_count("chat")),
        (vec!["head".to_owned(), "worker of 1".to_owned()], 2)
    );

    // until the other cluster is gone.
    scale_cluster(&mut plane, "chat", 2);
    plane.delete("RayCluster", "other");
    plane.advance(60);
    assert_eq!(
        (running_pod_kinds(&plane), plane.ungated_pod_count("chat")),
        (vec!["head".to_owned(), "worker of 3".to_owned()], 3)
    );
}

#[test]
fn spec_exceeding_the_maximum_quota_stops_no_pods() {
    let mut plane = control_plane(Settings::default(), "5");
    put_recreated_cluster(&mut plane, 2, "1", "2.53.0");
    plane.advance(60);

    put_recreated_cluster(&mut plane, 2, "3", "2.53.0");
    plane.advance(60);

    assert_eq!(
        (running_pod_kinds(&plane), plane.ungated_pod_count("chat")),
        (vec!["head".to_owned(), "worker of 1".to_owned()], 3)
    );
    assert_eq!(cluster_condition(&plane, UPGRADE_ADMISSIBLE), Some(("False".to_owned(), "ExceedsMaxQuota".to_owned())));

    // And it can be reverted.
    put_recreated_cluster(&mut plane, 2, "1", "2.53.0");
    plane.advance(60);
    assert_eq!((plane.ungated_pod_count("chat"), plane.workloads("chat").len()), (3, 1));
    assert_eq!(
        (plane.pending_message("RayCluster", "chat").as_str(), cluster_condition(&plane, UPGRADE_ADMISSIBLE)),
        ("", None)
    );
}

#[test]
fn spec_reverted_while_old_pods_terminate_restarts_them() {
    let mut plane = control_plane(Settings::default(), "5");
    put_recreated_cluster(&mut plane, 2, "1", "2.53.0");
    plane.advance(60);
    plane.pods_linger = true;
    put_recreated_cluster(&mut plane, 2, "2", "2.53.0");
    plane.advance(10);

    put_recreated_cluster(&mut plane, 2, "1", "2.53.0");
    plane.advance(10);
    plane.pods_linger = false;
    plane.advance(60);

    assert_eq!(
        (running_pod_kinds(&plane), plane.ungated_pod_count("chat")),
        (vec!["head".to_owned(), "worker of 1".to_owned()], 3)
    );
    assert_eq!(plane.workloads("chat").len(), 1);
}

/// An edit with the same requests reuses the quota that the cluster holds.
#[test]
fn recreated_pods_of_the_same_size_use_the_same_quota() {
    let mut plane = control_plane(Settings::default(), "3");
    put_recreated_cluster(&mut plane, 2, "1", "2.53.0");
    plane.advance(60);
    let before = plane.pod_uids("chat");

    put_recreated_cluster(&mut plane, 2, "1", "2.54.0");
    plane.advance(60);

    assert_eq!(plane.ungated_pod_count("chat"), 3);
    assert!(plane.pod_uids("chat").is_disjoint(&before), "every pod is recreated");
}

#[rstest]
#[case::scaling(|spec: &mut Value| spec["workerGroupSpecs"][0]["replicas"] = json!(1))]
#[case::service_type(|spec: &mut Value| spec["headGroupSpec"]["serviceType"] = json!("NodePort"))]
#[case::equivalent_quantities(|spec: &mut Value| {
    spec["workerGroupSpecs"][0]["template"]["spec"]["containers"][0]["resources"] =
        json!({"requests": {"cpu": "1000m"}, "limits": {"cpu": 1}});
})]
#[case::tolerations_of_another_controller(|spec: &mut Value| {
    spec["headGroupSpec"]["template"]["spec"]["tolerations"] = json!([{"operator": "Exists"}]);
})]
#[case::additional_group(|spec: &mut Value| {
    let mut group = spec["workerGroupSpecs"][0].clone();
    (group["groupName"], group["replicas"]) = (json!("more"), json!(1));
    spec["workerGroupSpecs"].as_array_mut().expect("groups").push(group);
})]
fn edit_that_does_not_affect_pods_keeps_them(#[case] edit: fn(&mut Value)) {
    let mut plane = control_plane(Settings::default(), "9");
    put_recreated_cluster(&mut plane, 1, "1", "2.53.0");
    plane.advance(60);
    let before = plane.pod_uids("chat");

    let mut edited = spec(1, "1", "2.53.0");
    edit(&mut edited);
    plane.apply("RayCluster", json!({"metadata": job_metadata("chat", "low"), "spec": edited}));
    plane.advance(60);

    assert!(plane.pod_uids("chat").is_superset(&before));
}

#[test]
fn edit_made_before_the_strategy_was_set_counts() {
    // Given a cluster whose template was changed under the strategy None,
    let mut plane = control_plane(Settings::default(), "9");
    let never = |mut spec: Value| {
        spec["upgradeStrategy"] = json!({"type": "None"});
        spec
    };
    plane.apply("RayCluster", json!({"metadata": job_metadata("chat", "low"), "spec": never(spec(1, "1", "2.53.0"))}));
    plane.advance(60);
    let before = plane.pod_uids("chat");
    plane.apply("RayCluster", json!({"metadata": job_metadata("chat", "low"), "spec": never(spec(1, "2", "2.53.0"))}));
    plane.advance(60);
    assert_eq!(plane.pod_uids("chat"), before);

    // when the strategy is set to Recreate, then its pods are recreated.
    put_recreated_cluster(&mut plane, 1, "2", "2.53.0");
    plane.advance(60);
    assert!(plane.pod_uids("chat").is_disjoint(&before));
    assert_eq!(running_pod_kinds(&plane), ["head", "worker of 2"]);
}

#[test]
fn pods_survive_the_deletion_of_their_controller_revision() {
    let mut plane = control_plane(Settings::default(), "9");
    put_recreated_cluster(&mut plane, 1, "1", "2.53.0");
    plane.advance(60);
    put_recreated_cluster(&mut plane, 1, "2", "2.53.0");
    plane.advance(60);
    let before = plane.pod_uids("chat");

    plane.names("ControllerRevision").iter().for_each(|name| plane.delete("ControllerRevision", name));
    plane.advance(60);

    assert_eq!(plane.pod_uids("chat"), before);
    assert_eq!((plane.names("ControllerRevision").len(), plane.workloads("chat").len()), (1, 1));
}

/// KubeRay 1.7 annotates the head with a hash of the spec, which Sluice does not use, and the
/// workers with nothing.
#[test]
fn pods_created_by_kuberay_are_adopted_and_recreated_with_the_next_edit() {
    // Given a cluster with pods as KubeRay leaves them,
    let mut plane = control_plane(Settings::default(), "0");
    let unqueued = |spec: Value| json!({"metadata": {"name": "chat"}, "spec": spec});
    plane.apply("RayCluster", unqueued(spec(1, "1", "2.53.0")));
    let owner = json!({"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": "chat", "controller": true,
        "uid": plane.object("RayCluster", "chat")["metadata"]["uid"]});
    for (name, group, kind) in
        [("chat-head-abcde", "headgroup", "head"), ("chat-small-worker-fghij", "small", "worker")]
    {
        let labels = json!({"ray.io/cluster": "chat", "ray.io/group": group, "ray.io/node-type": kind});
        let annotations = json!({"ray.io/upgrade-strategy-recreate-hash": "1A2B", "ray.io/kuberay-version": "v1.7.0"});
        let resources = json!({"requests": {"cpu": "1"}, "limits": {"cpu": "1"}});
        plane.apply(
            "Pod",
            json!({
                "metadata": {"name": name, "labels": labels, "annotations": annotations, "ownerReferences": [owner]},
                "spec": {"containers": [{"name": "ray", "resources": resources}]},
            }),
        );
    }
    let before = plane.pod_uids("chat");

    // when Sluice adopts the cluster, then they stay until the spec changes.
    plane.advance(60);
    assert_eq!(plane.pod_uids("chat"), before);
    plane.apply("RayCluster", unqueued(spec(1, "2", "2.53.0")));
    plane.advance(60);
    assert!(plane.pod_uids("chat").is_disjoint(&before));
    assert_eq!(running_pod_kinds(&plane), ["head", "worker of 2"]);
}

#[test]
fn unmanaged_cluster_is_recreated_immediately() {
    let mut plane = control_plane(Settings::default(), "0");
    let unqueued = |spec: Value| json!({"metadata": {"name": "chat"}, "spec": spec});
    plane.apply("RayCluster", unqueued(spec(1, "1", "2.53.0")));
    plane.advance(60);
    assert_eq!(running_pod_kinds(&plane), ["head", "worker of 1"]);

    plane.apply("RayCluster", unqueued(spec(1, "2", "2.53.0")));
    plane.advance(60);

    assert_eq!(
        (running_pod_kinds(&plane), plane.ungated_pod_count("chat")),
        (vec!["head".to_owned(), "worker of 2".to_owned()], 2)
    );
}

#[test]
fn edit_without_a_stored_revision_creates_no_pods() {
    // Given a cluster that is edited and scaled up at the same time, while its revision cannot be
    // stored,
    let mut plane = control_plane(Settings::default(), "9");
    put_recreated_cluster(&mut plane, 2, "1", "2.53.0");
    plane.advance(60);
    plane.delayed_kind = Some("ControllerRevision");

    // when that write is delayed, then it scales up by the old spec,
    put_recreated_cluster(&mut plane, 3, "2", "2.53.0");
    plane.advance(60);
    assert_eq!(
        (running_pod_kinds(&plane), plane.ungated_pod_count("chat")),
        (vec!["head".to_owned(), "worker of 1".to_owned()], 4)
    );

    // and is recreated after that.
    plane.delayed_kind = None;
    plane.deliver_delayed_writes();
    plane.advance(60);
    assert_eq!(
        (running_pod_kinds(&plane), plane.ungated_pod_count("chat")),
        (vec!["head".to_owned(), "worker of 2".to_owned()], 4)
    );
}

#[test]
fn late_pod_of_an_old_revision_is_deleted_alone() {
    // Given a cluster whose pods were recreated,
    let mut plane = control_plane(Settings::default(), "5");
    put_recreated_cluster(&mut plane, 2, "1", "2.53.0");
    plane.advance(60);
    let old = plane.ungated_pods("chat").find(|pod| description(pod) == "worker of 1").expect("a worker").clone();
    put_recreated_cluster(&mut plane, 2, "2", "2.53.0");
    plane.advance(60);
    let names =
        |plane: &ControlPlane| plane.ungated_pods("chat").map(|pod| pod["metadata"]["uid"].clone()).collect::<Vec<_>>();
    let new = names(&plane);

    // when a pod of the old revision appears, as if a previous process had created it,
    let mut late = old;
    late["metadata"] = json!({
        "name": "late", "namespace": "default", "labels": late["metadata"]["labels"],
        "ownerReferences": late["metadata"]["ownerReferences"],
    });
    plane.apply("Pod", late);
    plane.advance(60);

    // then it is deleted, and no other.
    assert_eq!(names(&plane), new);
    assert_eq!(running_pod_kinds(&plane), ["head", "worker of 2"]);
}

#[test]
fn invalid_spec_stops_no_pods() {
    // Given a running cluster whose spec becomes invalid,
    let mut plane = control_plane(Settings::default(), "5");
    put_recreated_cluster(&mut plane, 2, "1", "2.53.0");
    plane.advance(60);
    let mut invalid = spec(2, "2", "2.53.0");
    invalid["headGroupSpec"]["rayStartParams"] = json!({"redis-username": "me"});
    plane.apply("RayCluster", json!({"metadata": job_metadata("chat", "low"), "spec": invalid}));
    plane.advance(60);
    assert_eq!(cluster_condition(&plane, names::SPEC_REJECTED), Some(("True".to_owned(), "InvalidSpec".to_owned())));

    // when a pod fails, then one of the last valid spec replaces it,
    let worker = plane.ungated_pods("chat").find(|pod| description(pod) == "worker of 1").expect("a worker");
    let name = worker["metadata"]["name"].as_str().expect("a name").to_owned();
    plane.delete("Pod", &name);
    plane.advance(60);
    assert_eq!(
        (running_pod_kinds(&plane), plane.ungated_pod_count("chat")),
        (vec!["head".to_owned(), "worker of 1".to_owned()], 3)
    );

    // and once the spec is valid, its pods are recreated by it.
    plane.apply(
        "RayCluster",
        json!({"metadata": {"name": "chat"}, "spec": {"headGroupSpec": {"rayStartParams": null}}}),
    );
    plane.advance(60);
    assert_eq!(cluster_condition(&plane, names::SPEC_REJECTED), None);
    assert_eq!(
        (running_pod_kinds(&plane), plane.ungated_pod_count("chat")),
        (vec!["head".to_owned(), "worker of 2".to_owned()], 3)
    );
}
