//! Plans for the states of a cluster.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube_core::ResourceExt;
use rstest::rstest;
use serde_json::{Value, json};

use super::super::fixtures::{TestCluster, cluster, cluster_with_patch, cluster_with_workers, worker};
use super::super::{Grant, NodePlacement, PodSetInfo, pod_groups};
use super::{created, deleted, ready_cluster};
use sluice_api::condition;
use sluice_api::kueue::Workload;
use sluice_plan::{ObjectRef, Plan, WriteOp, WriteRank};
use sluice_queue::requests::pod_requests;

fn up_to(head: u32, small: u32) -> Grant {
    Grant::UpTo([("headgroup".to_owned(), head), ("small".to_owned(), small)].into())
}

#[test]
fn new_cluster_gets_head_service_head_and_workers() {
    let mut test_cluster = TestCluster::new(cluster_with_workers(3));

    let plan = test_cluster.reconcile_once();

    assert_eq!((created(&plan, "Service"), created(&plan, "Pod")), (1, 4));
    let reasons: BTreeSet<_> = plan.events.iter().map(|note| note.reason.as_str()).collect();
    assert_eq!(reasons, ["CreatedHeadPod", "CreatedService", "CreatedWorkerPod"].into());
    assert_eq!(test_cluster.condition("RayClusterProvisioned"), Some(("False", "RayClusterPodsProvisioning")));
    assert_eq!(test_cluster.condition("HeadPodReady"), Some(("False", "HeadPodNotFound")));
}

#[test]
fn ready_cluster_reports_ready_and_needs_no_more_writes() {
    let test_cluster = ready_cluster(3);

    let status = test_cluster.cluster.status.clone().expect("a status");
    assert_eq!(status.state.as_deref(), Some("ready"));
    assert_eq!(status.ready_worker_replicas, Some(3));
    assert_eq!(status.observed_generation, Some(1));
    assert_eq!(status.endpoints.and_then(|ports| ports.get("dashboard").cloned()).as_deref(), Some("8265"));
    let head = status.head.expect("there is a head");
    assert_eq!(head.service_name.as_deref(), Some("demo-head-svc"));
    assert_eq!((head.pod_ip.as_deref(), head.service_ip.as_deref()), (Some("198.18.0.1"), Some("198.18.0.1")));
    assert_eq!(test_cluster.condition("RayClusterProvisioned"), Some(("True", "AllPodRunningAndReadyFirstTime")));
    assert_eq!(test_cluster.condition("HeadPodReady"), Some(("True", "HeadPodRunningAndReady")));
    assert_eq!(test_cluster.plan(), Plan::default());
}

/// Returns the rank of the status write in a plan; `None` if there is none.
fn status_rank(plan: &Plan) -> Option<WriteRank> {
    plan.writes.iter().find(|write| matches!(write.op, WriteOp::PatchStatus(_))).map(|write| write.rank)
}

#[test]
fn first_status_of_a_cluster_that_is_created_suspended_is_progress() {
    let mut suspended = cluster_with_workers(2);
    suspended.spec.suspend = Some(true);
    let mut test_cluster = TestCluster::new(suspended);

    assert_eq!(status_rank(&test_cluster.reconcile_once()), Some(WriteRank::Progress));
}

#[rstest]
#[case::of_a_service(true, [WriteRank::Decision, WriteRank::Progress, WriteRank::Decision])]
#[case::of_no_service(false, [WriteRank::Progress, WriteRank::Progress, WriteRank::Decision])]
fn status_reports_progress_until_a_planner_acts_on_it_or_the_cluster_is_ready(
    #[case] has_owner: bool,
    #[case] ranks: [WriteRank; 3],
) {
    // Given a new cluster, and then its pods,
    let mut cluster = cluster_with_workers(2);
    let owner = OwnerReference { kind: "RayService".into(), controller: Some(true), ..OwnerReference::default() };
    cluster.metadata.owner_references = has_owner.then(|| vec![owner]);
    let mut test_cluster = TestCluster::new(cluster);
    assert_eq!(status_rank(&test_cluster.reconcile_once()), Some(WriteRank::Progress));
    assert_eq!(status_rank(&test_cluster.reconcile_once()), Some(WriteRank::Progress));

    // when they become ready one after the other, then a service acts on the first worker and on the head.
    let pods = [test_cluster.pod_names("small"), test_cluster.pod_names("headgroup")].concat();
    for (pod, rank) in pods.iter().zip(ranks) {
        test_cluster.set_phase(pod, "Running");
        assert_eq!(status_rank(&test_cluster.reconcile_once()), Some(rank), "{pod} is ready");
    }
}

#[test]
fn stale_cache_yields_the_same_pod_names() {
    let mut test_cluster = TestCluster::new(cluster_with_workers(5));
    let names =
        |plan: &Plan| -> BTreeSet<String> { plan.writes.iter().map(|write| write.target.name.clone()).collect() };
    let first = test_cluster.plan();
    test_cluster.reconcile_once();
    test_cluster.pods.pop_last();

    let second = test_cluster.plan();

    assert!(created(&second, "Pod") == 1 && names(&second).is_subset(&names(&first)));
}

#[rstest]
#[case::generation(3, json!({"managedBy": "kueue.x-k8s.io/multikueue"}))]
#[case::head_only(0, json!({"managedBy": "kueue.x-k8s.io/multikueue", "suspend": true}))]
fn cluster_managed_by_another_controller_stays_unchanged(#[case] workers: i32, #[case] spec: Value) {
    let mut cluster = cluster_with_patch(spec);
    cluster.spec.worker_group_specs = vec![worker("small", workers)];
    assert_eq!(TestCluster::new(cluster).plan(), Plan::default());
}

#[test]
fn terminating_cluster_gets_no_objects() {
    let mut test_cluster = ready_cluster(2);
    test_cluster.pods.clear();
    test_cluster.cluster.metadata.deletion_timestamp =
        serde_json::from_value(json!("2026-01-01T00:00:00Z")).expect("a time");
    assert_eq!(test_cluster.plan(), Plan::default());
}

#[test]
fn cluster_created_suspended_is_suspended_immediately_and_gets_only_its_head_service() {
    let mut cluster = cluster_with_workers(2);
    cluster.spec.suspend = Some(true);
    let mut test_cluster = TestCluster::new(cluster);

    let plan = test_cluster.reconcile_once();

    assert_eq!((plan.writes.len(), created(&plan, "Service")), (2, 1));
    assert_eq!(test_cluster.condition("RayClusterSuspended"), Some(("True", "RayClusterSuspended")));
    assert_eq!(test_cluster.cluster.status.as_ref().and_then(|status| status.state.as_deref()), Some("suspended"));
    test_cluster.reconcile_until_stable();
    assert_eq!((test_cluster.pods.len(), test_cluster.plan()), (0, Plan::default()));
}

#[test]
fn suspended_cluster_loses_its_pods_after_the_condition_is_written() {
    let mut test_cluster = ready_cluster(2);
    test_cluster.edit(|spec| spec.suspend = Some(true));

    let requested = test_cluster.reconcile_once();
    assert_eq!((requested.writes.len(), deleted(&requested).len()), (1, 0));
    assert_eq!(test_cluster.condition("RayClusterSuspending"), Some(("True", "RayClusterSuspending")));

    let suspending = test_cluster.reconcile_once();
    assert_eq!(deleted(&suspending).len(), 3);
    assert_eq!(deleted(&test_cluster.reconcile_once()).len(), 0, "a pod is deleted once");
    assert_eq!(test_cluster.condition("RayClusterSuspended"), Some(("False", "RayClusterSuspended")));

    test_cluster.remove_terminating_pods();
    test_cluster.reconcile_until_stable();
    assert_eq!(test_cluster.condition("RayClusterSuspending"), Some(("False", "RayClusterSuspending")));
    assert_eq!(test_cluster.condition("RayClusterSuspended"), Some(("True", "RayClusterSuspended")));
    assert_eq!(test_cluster.condition("RayClusterProvisioned"), Some(("False", "RayClusterPodsProvisioning")));
    assert_eq!(test_cluster.services.len(), 1, "the Service stays");
}

#[test]
fn b35_started_suspension_is_finished_before_the_cluster_resumes() {
    let mut test_cluster = ready_cluster(2);
    test_cluster.edit(|spec| spec.suspend = Some(true));
    test_cluster.reconcile_once();
    test_cluster.edit(|spec| spec.suspend = Some(false));

    assert_eq!(deleted(&test_cluster.reconcile_once()).len(), 3);
    assert_eq!(created(&test_cluster.reconcile_once(), "Pod"), 0, "not while pods are terminating");
    test_cluster.remove_terminating_pods();
    test_cluster.reconcile_until_stable();

    assert_eq!(test_cluster.pods.len(), 3);
    assert_eq!(test_cluster.condition("RayClusterSuspended"), Some(("False", "RayClusterSuspended")));
    assert_eq!(test_cluster.condition("RayClusterProvisioned"), Some(("False", "RayClusterPodsProvisioning")));
    test_cluster.make_all_ready();
    test_cluster.reconcile_until_stable();
    assert_eq!(test_cluster.condition("RayClusterProvisioned"), Some(("True", "AllPodRunningAndReadyFirstTime")));
}

#[rstest]
#[case::nothing_at_all(Grant::UpTo(BTreeMap::new()), 0, 0)]
#[case::workers_without_a_head(up_to(0, 3), 0, 0)]
#[case::only_the_head(up_to(1, 0), 1, 3)]
#[case::some_workers(up_to(1, 2), 3, 1)]
#[case::all(up_to(1, 3), 4, 0)]
#[case::more_than_wanted(up_to(2, 9), 4, 0)]
fn ungated_pods_do_not_exceed_the_grant(#[case] grant: Grant, #[case] run: usize, #[case] wait: usize) {
    let mut test_cluster = TestCluster::new(cluster_with_workers(3));
    test_cluster.grant = grant;
    test_cluster.reconcile_until_stable();
    assert_eq!((test_cluster.pods.len() - test_cluster.gated_pods(), test_cluster.gated_pods()), (run, wait));
    assert_eq!(test_cluster.services.len(), 1, "the head Service exists before any pod runs");
}

#[test]
fn ungated_pod_waits_for_writes_to_its_covering_slice_and_cluster() {
    let mut test_cluster = TestCluster::new(cluster_with_workers(2));
    let slice = ObjectRef::of(&Workload::default());
    (test_cluster.grant, test_cluster.covering_slice) = (up_to(1, 1), Some(slice.clone()));

    let plan = test_cluster.plan();

    let pods = plan.writes.iter().filter(|write| write.target.kind == "Pod");
    let blocked_by = pods.map(|write| {
        let WriteOp::Create(pod) = &write.op else { panic!("{write:?} creates no pod") };
        (pod.pointer("/spec/schedulingGates").is_some(), write.blocked_by.clone())
    });
    let mut blocked_by: Vec<_> = blocked_by.collect();
    blocked_by.sort();
    let slice_and_cluster = vec![slice, ObjectRef::of(&test_cluster.cluster)];
    assert_eq!(blocked_by, [(false, slice_and_cluster.clone()), (false, slice_and_cluster), (true, Vec::new())]);
}

#[test]
fn ungated_pod_has_pod_set_label_and_placement_and_gated_pod_only_its_shape() {
    let mut test_cluster = TestCluster::new(cluster_with_workers(2));
    test_cluster.grant = up_to(1, 1);
    let placement =
        NodePlacement { node_labels: [("pool".to_owned(), "a".to_owned())].into(), ..NodePlacement::default() };
    let mark = PodSetInfo { shape: "s".into(), pod_set: Some("small-s".into()), placement, earlier_pods: 0 };
    test_cluster.pod_set_infos.insert("small".into(), mark);
    test_cluster.reconcile_until_stable();

    let mut workers: Vec<_> = test_cluster
        .pod_names("small")
        .iter()
        .map(|name| {
            let pod = &test_cluster.pods[name];
            let label = |key: &str| pod.labels().get(key).map(String::as_str);
            let placed = pod.spec.as_ref().is_some_and(|spec| spec.node_selector.is_some());
            (label("sluice.dev/shape"), label("kueue.x-k8s.io/podset"), placed)
        })
        .collect();
    workers.sort_unstable();
    assert_eq!(workers, [(Some("s"), None, false), (Some("s"), Some("small-s"), true)]);
}

#[test]
fn without_head_and_quota_for_one_workers_are_deleted_but_not_created() {
    let mut test_cluster = ready_cluster(3);
    let head = test_cluster.pod_names("headgroup")[0].clone();
    test_cluster.pods.remove(&head);
    test_cluster.grant = up_to(0, 9);
    test_cluster.edit(|spec| spec.worker_group_specs[0].replicas = Some(2));
    assert_eq!(deleted(&test_cluster.reconcile_once()).len(), 1);
    test_cluster.remove_terminating_pods();
    test_cluster.edit(|spec| spec.worker_group_specs[0].replicas = Some(5));
    assert_eq!(created(&test_cluster.plan(), "Pod"), 0);
}

#[test]
fn partially_preempted_workers_are_deleted_and_recreated_gated() {
    let mut test_cluster = ready_cluster(3);
    test_cluster.grant = Grant::Reclaim([("headgroup".to_owned(), 1), ("small".to_owned(), 1)].into());
    let before = test_cluster.pod_names("small");

    assert_eq!(deleted(&test_cluster.reconcile_once()).len(), 2);

    test_cluster.remove_terminating_pods();
    test_cluster.reconcile_until_stable();
    assert_eq!((test_cluster.pods.len() - test_cluster.gated_pods(), test_cluster.gated_pods()), (2, 2));
    assert!(test_cluster.pod_names("small").contains(&before[0]), "the lowest slot stays");
}

#[test]
fn smaller_grant_deletes_no_pods_and_ungates_none() {
    let mut test_cluster = ready_cluster(3);
    test_cluster.grant = up_to(1, 2);
    test_cluster.edit(|spec| spec.worker_group_specs[0].replicas = Some(4));
    let plan = test_cluster.reconcile_once();
    assert_eq!((created(&plan, "Pod"), deleted(&plan).len()), (1, 0));
    assert_eq!(test_cluster.gated_pods(), 1, "the new pod is gated");
}

#[test]
fn cluster_short_of_quota_reports_the_admitted_pods() {
    let mut test_cluster = TestCluster::new(cluster_with_workers(3));
    test_cluster.grant = up_to(1, 1);
    test_cluster.reconcile_until_stable();
    let conditions = test_cluster.cluster.status.as_ref().map(|status| status.conditions.clone()).unwrap_or_default();
    let provisioned = condition::get(&conditions, "RayClusterProvisioned").expect("the condition is there");
    assert_eq!(provisioned.message, "0 of 4 Pods are ready; quota is admitted for 2 of them");
}

#[test]
fn terminating_pod_counts_against_quota_and_occupies_its_index() {
    let mut test_cluster = ready_cluster(3);
    test_cluster.grant = up_to(1, 3);
    let name = test_cluster.pod_names("small")[1].clone();
    test_cluster.pods.get_mut(&name).expect("a worker").metadata.deletion_timestamp =
        Some(serde_json::from_value(json!("2026-01-01T00:00:00Z")).expect("a time"));

    assert_eq!(created(&test_cluster.reconcile_once(), "Pod"), 0);
    test_cluster.remove_terminating_pods();
    test_cluster.reconcile_until_stable();

    assert_eq!(test_cluster.pod_names("small").len(), 3);
    assert!(test_cluster.pods.contains_key(&name), "same index, same name");
}

#[rstest]
#[case::worker("small", "Failed", "DeletedWorkerPod")]
#[case::worker_that_succeeded("small", "Succeeded", "DeletedWorkerPod")]
#[case::head("headgroup", "Failed", "DeletedHeadPod")]
fn b40_finished_pod_is_deleted_and_then_replaced(#[case] group: &str, #[case] phase: &str, #[case] event: &str) {
    let mut test_cluster = ready_cluster(2);
    let name = test_cluster.pod_names(group)[0].clone();
    test_cluster.set_phase(&name, phase);

    let plan = test_cluster.reconcile_once();

    assert_eq!((deleted(&plan), created(&plan, "Pod")), (vec![name.as_str()], 0));
    assert!(plan.events.iter().any(|note| note.reason == event), "{:?}", plan.events);
    test_cluster.remove_terminating_pods();
    test_cluster.reconcile_until_stable();
    assert_eq!(test_cluster.pods.len(), 3);
}

#[rstest]
#[case::restarts("Always", 0)]
#[case::restarts_on_failure("OnFailure", 0)]
#[case::never_restarts("Never", 1)]
fn b40_pod_with_terminated_ray_is_deleted_only_if_it_never_restarts(#[case] policy: &str, #[case] expected: usize) {
    let mut test_cluster = ready_cluster(1);
    let name = test_cluster.pod_names("small")[0].clone();
    let pod = test_cluster.pods.get_mut(&name).expect("a worker");
    pod.spec.get_or_insert_default().restart_policy = Some(policy.to_owned());
    let status = json!({"phase": "Running", "containerStatuses": [
        {"name": "ray-worker", "image": "", "imageID": "", "ready": false, "restartCount": 0,
         "state": {"terminated": {"exitCode": 1}}},
    ]});
    pod.status = serde_json::from_value(status).expect("a pod status");
    assert_eq!(deleted(&test_cluster.plan()).len(), expected);
}

#[test]
fn invalid_spec_is_reported_and_leaves_running_pods_unchanged() {
    let mut test_cluster = ready_cluster(2);
    test_cluster.edit(|spec| spec.worker_group_specs[0].min_replicas = Some(101));

    let plan = test_cluster.reconcile_once();

    assert!(deleted(&plan).is_empty() && created(&plan, "Pod") == 0);
    let note = plan.events.first().expect("a warning");
    assert!(
        note.warning && note.reason == "InvalidRayClusterSpec" && note.message.contains("minReplicas: 101"),
        "{note:?}"
    );
    assert_eq!(test_cluster.condition("sluice.dev/SpecRejected"), Some(("True", "InvalidSpec")));
    assert_eq!(test_cluster.cluster.status.as_ref().and_then(|status| status.observed_generation), Some(2));
    assert!(test_cluster.plan().writes.is_empty());

    test_cluster.edit(|spec| spec.worker_group_specs[0].min_replicas = Some(1));
    test_cluster.reconcile_until_stable();
    assert_eq!(test_cluster.condition("sluice.dev/SpecRejected"), None);
}

#[test]
fn cluster_with_invalid_spec_can_be_suspended() {
    let mut test_cluster = ready_cluster(2);
    test_cluster.edit(|spec| {
        spec.worker_group_specs[0].min_replicas = Some(101);
        spec.suspend = Some(true);
    });
    test_cluster.reconcile_once();
    assert_eq!(deleted(&test_cluster.reconcile_once()).len(), 3);
}

#[test]
fn unsupported_field_is_reported_in_a_condition() {
    let mut test_cluster = TestCluster::new(cluster_with_patch(json!({"historyServerOptions": {}})));
    test_cluster.reconcile_until_stable();
    assert_eq!(test_cluster.condition("sluice.dev/Unsupported"), Some(("True", "UnsupportedFields")));
    test_cluster.edit(|spec| spec.history_server_options = None);
    test_cluster.reconcile_until_stable();
    assert_eq!(test_cluster.condition("sluice.dev/Unsupported"), None);
}

#[test]
fn observed_generation_is_updated_even_if_nothing_else_changes() {
    let mut test_cluster = ready_cluster(1);
    let before = test_cluster.cluster.status.clone().expect("a status");
    test_cluster.edit(|spec| spec.head_service_annotations = Some([("a".to_owned(), "b".to_owned())].into()));
    test_cluster.reconcile_until_stable();
    let after = test_cluster.cluster.status.clone().expect("a status");
    assert_eq!(after.observed_generation, Some(2));
    assert_eq!(after.state_transition_times, before.state_transition_times);
    assert_eq!(after.conditions, before.conditions);
}

#[test]
fn desired_resources_are_the_requests_of_all_pods() {
    let mut cluster = cluster_with_patch(json!({"enableInTreeAutoscaling": true}));
    let mut gpus = worker("gpus", 2);
    gpus.template.0["spec"]["containers"][0]["resources"]["limits"] = json!({"nvidia.com/gpu": 4});
    cluster.spec.worker_group_specs = vec![gpus];
    let mut test_cluster = TestCluster::new(cluster);
    test_cluster.reconcile_until_stable();

    let mut milli_cpu = 0;
    for pod in test_cluster.pods.values() {
        milli_cpu += pod_requests(pod.spec.as_ref().expect("a spec")).expect("quantities").get("cpu").get();
    }

    let status = test_cluster.cluster.status.clone().expect("a status");
    assert_eq!(milli_cpu, 1000 + 500 + 2 * 500);
    assert_eq!(status.desired_cpu.map(|quantity| quantity.0).as_deref(), Some("2500m"));
    assert_eq!(status.desired_memory.map(|quantity| quantity.0).as_deref(), Some("4608Mi"));
    assert_eq!(status.desired_gpu.map(|quantity| quantity.0).as_deref(), Some("8"));
    assert_eq!(status.desired_tpu.map(|quantity| quantity.0).as_deref(), Some("0"));
}

#[test]
fn created_pods_match_the_pod_groups_that_the_queue_accounts_for() {
    let mut test_cluster = TestCluster::new(cluster_with_patch(json!({
        "enableInTreeAutoscaling": true,
        "workerGroupSpecs": [worker("small", 2), {"groupName": "wide", "replicas": 2, "numOfHosts": 3,
            "template": worker("wide", 0).template}],
    })));
    let groups = pod_groups(&test_cluster.cluster).expect("the spec is valid");
    test_cluster.reconcile_until_stable();
    for group in groups {
        let names = test_cluster.pod_names(&group.name);
        assert_eq!(names.len(), group.count as usize, "{}", group.name);
        assert!(names.iter().all(|name| test_cluster.pods[name].spec == group.template.spec), "{}", group.name);
    }
}

#[test]
fn pods_of_an_earlier_cluster_of_the_same_name_are_ignored() {
    let mut test_cluster = ready_cluster(1);
    let old = test_cluster.pods.clone();
    test_cluster.cluster.metadata.uid = Some("uid-2".to_owned());
    test_cluster.cluster.status = None;
    let plan = test_cluster.plan();
    assert_eq!((created(&plan, "Pod"), deleted(&plan).len()), (2, 0));
    assert!(plan.writes.iter().all(|write| !old.contains_key(&write.target.name)));
}

#[test]
fn large_group_is_created_in_batches() {
    let mut cluster = cluster();
    cluster.spec.worker_group_specs = vec![worker("small", i32::MAX)];
    cluster.spec.worker_group_specs[0].max_replicas = None;
    let mut test_cluster = TestCluster::new(cluster);
    assert_eq!(created(&test_cluster.reconcile_once(), "Pod"), 201);
    assert_eq!(created(&test_cluster.reconcile_once(), "Pod"), 200);
}

#[test]
fn head_with_disabled_restart_is_not_recreated() {
    let mut test_cluster = ready_cluster(1);
    let annotation = ("ray.io/disable-provisioned-head-restart".to_owned(), "true".to_owned());
    test_cluster.cluster.metadata.annotations = Some([annotation].into());
    let head = test_cluster.pod_names("headgroup")[0].clone();
    test_cluster.pods.remove(&head);
    assert_eq!(created(&test_cluster.plan(), "Pod"), 0);
}

#[test]
fn multiple_heads_are_reported_and_none_is_deleted() {
    let mut test_cluster = ready_cluster(0);
    let mut second = test_cluster.pods.values().next().expect("a head").clone();
    second.metadata.name = Some("demo-head-zzzzz".to_owned());
    test_cluster.pods.insert("demo-head-zzzzz".to_owned(), second);
    let plan = test_cluster.plan();
    assert!(deleted(&plan).is_empty() && plan.events.iter().any(|note| note.reason == "MultipleHeadPods"));
}

#[test]
fn replica_failure_stays_until_no_pod_is_left_to_create() {
    // Given a restarted operator, and a cluster with the condition ReplicaFailure,
    let mut test_cluster = TestCluster::new(cluster());
    let failure = json!({
        "type": "ReplicaFailure", "status": "True", "reason": "FailedCreateHeadPod", "message": "exceeded quota",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    });
    test_cluster.cluster.status = serde_json::from_value(json!({"conditions": [failure]})).expect("a status");

    // then the condition stays while a pod has to be created, and is removed afterwards.
    test_cluster.reconcile_once();
    assert_eq!(test_cluster.condition("ReplicaFailure"), Some(("True", "FailedCreateHeadPod")));
    test_cluster.reconcile_until_stable();
    assert_eq!(test_cluster.condition("ReplicaFailure"), None);
}
