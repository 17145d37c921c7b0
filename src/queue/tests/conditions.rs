//! Conditions and status of queues and workloads, including stopped, missing and misconfigured
//! queues.

use rstest::rstest;
use serde_json::{Value, json};

use super::fixture::{Cluster, group, object_key};
use crate::Input;
use sluice_api::condition;
use sluice_api::kueue::names;

fn active_condition(
    conditions: &[k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition],
) -> (String, String, String) {
    let active = condition::get(conditions, names::ACTIVE).cloned();
    active.map(|active| (active.status, active.reason, active.message)).unwrap_or_default()
}

fn cluster_queue_active(cluster: &Cluster) -> (String, String, String) {
    active_condition(&cluster.cluster_queues["cq"].status.clone().unwrap_or_default().conditions)
}

fn status_reason_message(status: &str, reason: &str, message: &str) -> (String, String, String) {
    (status.to_owned(), reason.to_owned(), message.to_owned())
}

#[test]
fn active_queues_report_conditions_and_counts() {
    let mut cluster = Cluster::with_cpu("2");
    cluster.submit("a", "1500m");
    cluster.submit("b", "1");
    cluster.run_until_stable();

    assert_eq!(cluster_queue_active(&cluster), status_reason_message("True", "Ready", "Can admit new workloads"));
    let status = serde_json::to_value(&cluster.cluster_queues["cq"].status).expect("JSON");
    assert_eq!(status["pendingWorkloads"], 1);
    assert_eq!(status["reservingWorkloads"], 1);
    assert_eq!(status["admittedWorkloads"], 1);
    let usage = json!([{"name": "default", "resources": [{"name": "cpu", "total": "1500m", "borrowed": "0"}]}]);
    assert_eq!(status["flavorsReservation"], usage);
    assert_eq!(status["flavorsUsage"], usage);
    let local = cluster.local_queues[&object_key("lq")].status.clone().unwrap_or_default();
    assert_eq!(
        active_condition(&local.conditions),
        status_reason_message("True", "Ready", "Can submit new workloads to localQueue")
    );
    assert_eq!((local.pending_workloads, local.reserving_workloads, local.admitted_workloads), (1, 1, 1));
    let local = serde_json::to_value(&local).expect("JSON");
    assert_eq!(local["flavorsUsage"], json!([{"name": "default", "resources": [{"name": "cpu", "total": "1500m"}]}]));
}

#[test]
fn cluster_queue_is_inactive_until_its_flavor_exists() {
    let mut cluster = Cluster::with_cpu("2");
    cluster.scheduler.observe(super::fixture::timestamp(1), &Input::ResourceFlavorDeleted("default"));
    cluster.submit("a", "1");
    assert_eq!(cluster.run_until_stable(), [""; 0]);

    let message = "Can't admit new workloads: references missing ResourceFlavor(s): default.";
    assert_eq!(cluster_queue_active(&cluster), status_reason_message("False", "FlavorNotFound", message));
    let (reason, message) = cluster.reason_and_message("a", names::QUOTA_RESERVED);
    assert_eq!(reason, "Suspended");
    assert_eq!(message, "ClusterQueue cq is inactive: references missing ResourceFlavor(s): default");
    let local = cluster.local_queues[&object_key("lq")].status.clone().unwrap_or_default();
    assert_eq!(active_condition(&local.conditions).1, "ClusterQueueIsInactive");

    cluster.put_flavor("default");
    assert_eq!(cluster.run_until_stable(), ["a"]);
    assert_eq!(cluster_queue_active(&cluster).1, "Ready");
}

#[rstest]
#[case::admission_check_is_missing(
    json!({"admissionChecksStrategy": {"admissionChecks": [{"name": "prov"}]}}),
    "AdmissionCheckNotFound",
    "references missing AdmissionCheck(s): prov; Sluice does not support AdmissionChecks"
)]
#[case::resource_is_covered_twice(
    json!({"resourceGroups": [group(&["cpu"], &[("default", &["1"])]), group(&["cpu"], &[("other", &["1"])])]}),
    "FlavorNotFound",
    "references missing ResourceFlavor(s): other, resource cpu is covered more than once"
)]
#[case::flavor_is_in_two_groups(
    json!({"resourceGroups": [group(&["cpu"], &[("default", &["1"])]), group(&["memory"], &[("default", &["1"])])]}),
    "Misconfigured",
    "flavor default is listed more than once"
)]
#[case::quota_is_negative(
    json!({"resourceGroups": [group(&["cpu"], &[("default", &["-1"])])]}),
    "Misconfigured",
    "nominalQuota of cpu in flavor default: \"-1\" is negative; only zero or more is allowed"
)]
#[case::selector_operator_is_unknown(
    json!({"namespaceSelector": {"matchExpressions": [{"key": "a", "operator": "Like"}]}}),
    "Misconfigured",
    "namespaceSelector: operator \"Like\" is not one of In, NotIn, Exists and DoesNotExist"
)]
fn misconfigured_cluster_queue_admits_nothing(#[case] patch: Value, #[case] reason: &str, #[case] problem: &str) {
    let mut cluster = Cluster::with_cpu("2");
    cluster.patch_cluster_queue(patch);
    cluster.submit("a", "1");

    assert_eq!(cluster.run_until_stable(), [""; 0]);
    let message = format!("Can't admit new workloads: {problem}.");
    assert_eq!(cluster_queue_active(&cluster), status_reason_message("False", reason, &message));
}

#[test]
fn unsupported_fields_of_cluster_queue_are_reported() {
    let mut cluster = Cluster::with_cpu("2");
    cluster.patch_cluster_queue(json!({
        "admissionScope": {"admissionMode": "UsageBasedAdmissionFairSharing"},
        "flavorFungibility": {"whenCanBorrow": "MayStopSearch", "whenCanPreempt": "TryNextFlavor"},
    }));
    cluster.submit("a", "2");
    cluster.submit("b", "1");

    assert_eq!(cluster.run_until_stable(), ["a"]);
    let conditions = cluster.cluster_queues["cq"].status.clone().unwrap_or_default().conditions;
    let message = condition::get(&conditions, names::UNSUPPORTED).map(|condition| condition.message.as_str());
    assert_eq!(message, Some("Sluice does not support spec.admissionScope yet"));

    cluster.patch_cluster_queue(json!({"admissionScope": null}));
    cluster.run_until_stable();
    let conditions = cluster.cluster_queues["cq"].status.clone().unwrap_or_default().conditions;
    assert_eq!(condition::get(&conditions, names::UNSUPPORTED), None);
}

/// B35 covers preemption gates, which are alpha in Kueue 0.19: they are ignored, and a condition
/// reports that.
#[test]
fn unsupported_preemption_gate_of_workload_is_reported() {
    let mut cluster = Cluster::with_cpu("1");
    cluster.patch_cluster_queue(json!({"preemption": {"withinClusterQueue": "LowerPriority"}}));
    cluster.submit("low", "1");
    cluster.run_until_stable();
    let mut gated = cluster.workload("gated", &[("main", 1, json!({"cpu": "1"}))]);
    gated.spec.priority = Some(1);
    gated.spec.preemption_gates = serde_json::from_value(json!([{"name": "gate"}])).expect("a gate");
    cluster.put(gated);

    cluster.run_until_stable();

    assert!(cluster.is_true("low", names::EVICTED));
    assert_eq!(
        cluster.reason_and_message("gated", names::UNSUPPORTED).1,
        "Sluice does not support spec.preemptionGates yet"
    );
    assert_eq!(cluster.reason_and_message("low", names::UNSUPPORTED).1, "");
}

#[rstest]
#[case::queue_name_is_missing(|w: &mut sluice_api::kueue::Workload| w.spec.queue_name = None, "Misconfigured",
    "no LocalQueue is named; set spec.queueName")]
#[case::local_queue_does_not_exist(|w: &mut sluice_api::kueue::Workload| w.spec.queue_name = Some("x".into()), "Misconfigured",
    "LocalQueue x doesn't exist")]
#[case::cluster_queue_does_not_exist(|w: &mut sluice_api::kueue::Workload| w.spec.queue_name = Some("orphan".into()), "Misconfigured",
    "ClusterQueue gone doesn't exist")]
#[case::admission_is_gated(|w: &mut sluice_api::kueue::Workload| {
    let gate = (names::ADMISSION_GATED_BY_ANNOTATION.to_owned(), "example.com/budget".to_owned());
    w.metadata.annotations.get_or_insert_default().extend([gate]);
}, "AdmissionGated", "Admission is gated by: example.com/budget")]
#[case::topology_is_required(|w: &mut sluice_api::kueue::Workload| {
    let request = json!({"required": "rack"});
    w.spec.pod_sets[0].topology_request = serde_json::from_value(request).ok();
}, "Misconfigured", "pod set main requires a topology, which Sluice does not support yet")]
fn pending_reason_names_why_workload_is_not_queued(
    #[case] change: fn(&mut sluice_api::kueue::Workload),
    #[case] reason: &str,
    #[case] message: &str,
) {
    let mut cluster = Cluster::with_cpu("2");
    cluster.put_local_queue("orphan", json!({"clusterQueue": "gone"}));
    let mut workload = cluster.workload("a", &[("main", 1, json!({"cpu": "1"}))]);
    change(&mut workload);
    cluster.put(workload);

    assert_eq!(cluster.run_until_stable(), [""; 0]);
    assert_eq!(cluster.reason_and_message("a", names::QUOTA_RESERVED), (reason.to_owned(), message.to_owned()));
    let orphan = cluster.local_queues[&object_key("orphan")].status.clone().unwrap_or_default();
    assert_eq!(active_condition(&orphan.conditions).1, "ClusterQueueDoesNotExist");
}

#[rstest]
#[case::cluster_queue(
    "cq",
    "ClusterQueueStopped",
    "ClusterQueue cq is inactive: it is stopped by its stopPolicy",
    "ClusterQueueRestarted"
)]
#[case::local_queue(
    "lq",
    "LocalQueueStopped",
    "LocalQueue lq is inactive: it is stopped by its stopPolicy",
    "LocalQueueRestarted"
)]
fn drained_queue_evicts_workloads_and_readmits_them_after_restart(
    #[case] queue: &str,
    #[case] evicted: &str,
    #[case] stopped: &str,
    #[case] restarted: &str,
) {
    let set = |cluster: &mut Cluster, policy: &str| match queue {
        "cq" => cluster.patch_cluster_queue(json!({"stopPolicy": policy})),
        _ => cluster.put_local_queue("lq", json!({"clusterQueue": "cq", "stopPolicy": policy})),
    };
    let mut cluster = Cluster::with_cpu("2");
    cluster.submit("runs", "1");
    cluster.run_until_stable();

    set(&mut cluster, "Hold");
    cluster.submit("waits", "1");
    assert_eq!(cluster.run_until_stable(), [""; 0]);
    assert!(!cluster.is_true("runs", names::EVICTED), "Hold does not evict");
    assert_eq!(
        cluster.reason_and_message("waits", names::QUOTA_RESERVED),
        ("Suspended".to_owned(), stopped.to_owned())
    );

    set(&mut cluster, "HoldAndDrain");
    cluster.run_until_stable();
    assert_eq!(cluster.reason_and_message("runs", names::EVICTED).0, evicted);
    assert_eq!(
        cluster.reserved_quantity("default", "cpu"),
        "1",
        "an evicted workload holds its quota until its job has stopped"
    );
    cluster.release_quota("runs");
    cluster.run_until_stable();
    assert_eq!(cluster.reserved_quantity("default", "cpu"), "0");
    assert_eq!(cluster.reason_and_message("runs", names::QUOTA_RESERVED).0, "Suspended");
    assert_eq!(cluster.reason_and_message("runs", names::REQUEUED).0, evicted);

    set(&mut cluster, "None");
    assert_eq!(cluster.run_until_stable(), ["runs", "waits"]);
    assert_eq!(cluster.reason_and_message("runs", names::REQUEUED).0, restarted);
    assert!(!cluster.is_true("runs", names::EVICTED));
}

#[test]
fn deactivated_workload_is_evicted_and_readmitted_when_reactivated() {
    let mut cluster = Cluster::with_cpu("1");
    cluster.submit("a", "1");
    cluster.run_until_stable();
    cluster.update("a", |workload| workload.spec.active = Some(false));
    cluster.run_until_stable();
    let evicted = cluster.reason_and_message("a", names::EVICTED);
    assert_eq!(evicted, ("Deactivated".to_owned(), "The workload is deactivated".to_owned()));
    cluster.submit("b", "1");
    assert_eq!(cluster.run_until_stable(), [""; 0]);

    cluster.release_quota("a");
    assert_eq!(cluster.run_until_stable(), ["b"]);
    assert!(!cluster.is_true("a", names::ADMITTED));
    assert_eq!(cluster.reason_and_message("a", names::QUOTA_RESERVED).0, "PendingEvaluation");
    cluster.update("a", |workload| workload.spec.active = Some(true));
    cluster.finish("b");
    assert_eq!(cluster.run_until_stable(), ["a"]);
    assert_eq!(cluster.reason_and_message("a", names::REQUEUED).0, "Reactivated");
}

#[test]
fn deactivated_pending_workload_reports_eviction_and_is_not_admitted() {
    let mut cluster = Cluster::with_cpu("1");
    cluster.submit("a", "1");
    cluster.update("a", |workload| workload.spec.active = Some(false));

    assert_eq!(cluster.run_until_stable(), [""; 0]);
    assert_eq!(cluster.reason_and_message("a", names::EVICTED).0, "Deactivated");
    assert_eq!(cluster.reason_and_message("a", names::QUOTA_RESERVED).0, "Deactivated");
    assert_eq!(cluster.reason_and_message("a", names::ADMITTED).0, "NoReservation");
    assert!(!cluster.is_true("a", names::REQUEUED));
}

#[test]
fn admission_replaces_pending_reason_with_cluster_queue_name() {
    let mut cluster = Cluster::with_cpu("1");
    cluster.submit("b", "1");
    cluster.run_until_stable();
    cluster.now = 5;
    cluster.submit("a", "1");
    cluster.run_until_stable();
    cluster.finish("b");
    cluster.run_until_stable();

    let reserved = cluster.reason_and_message("a", names::QUOTA_RESERVED);
    assert_eq!(reserved, ("QuotaReserved".to_owned(), "Quota reserved in ClusterQueue cq".to_owned()));
    assert_eq!(cluster.reason_and_message("a", names::ADMITTED).0, "Admitted");
}
