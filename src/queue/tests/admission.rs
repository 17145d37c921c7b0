//! Admission: which workloads, into which flavors, in which order.

use rstest::rstest;
use serde_json::{Value, json};

use super::fixture::{Cluster, edit_pod_spec, group, object_key, timestamp};
use crate::{Decision, DecisionTarget, Input, PendingCause, PendingReason};
use sluice_api::kueue::names;

/// Returns resource and flavor of each assignment of an admitted pod set.
fn assigned_flavors(cluster: &Cluster, workload: &str, pod_set: usize) -> Vec<(String, String)> {
    let admission = cluster.workloads[&object_key(workload)].status.clone().and_then(|status| status.admission);
    let assignments = admission.map(|admission| admission.pod_set_assignments).unwrap_or_default();
    assignments.get(pod_set).map(|a| a.flavors.clone().into_iter().collect()).unwrap_or_default()
}

#[test]
fn workloads_that_fit_are_admitted_and_others_stay_pending() {
    let mut cluster = Cluster::with_cpu("4");
    cluster.submit("a", "3");
    cluster.submit("b", "2");
    cluster.submit("c", "1");

    assert_eq!(cluster.run_until_stable(), ["a", "c"]);

    assert!(cluster.is_true("a", names::ADMITTED));
    assert!(!cluster.is_true("b", names::QUOTA_RESERVED));
    assert_eq!(cluster.reserved_quantity("default", "cpu"), "4");
}

#[test]
fn released_quota_admits_pending_workload_in_the_same_cycle() {
    let mut cluster = Cluster::with_cpu("4");
    cluster.submit("a", "4");
    cluster.submit("b", "4");
    cluster.run_until_stable();

    cluster.finish("a");

    let effects = cluster.cycle();
    assert!(matches!(&effects[0], Decision::Admit { workload, .. } if *workload == object_key("b")));
}

#[rstest]
#[case::workload_is_deleted(|cluster: &mut Cluster| cluster.delete("a"))]
#[case::quota_is_raised(|cluster: &mut Cluster| cluster.patch_cluster_queue(json!({"resourceGroups": [group(&["cpu"], &[("default", &["8"])])]})))]
#[case::workload_shrinks(|cluster: &mut Cluster| cluster.update("a", |workload| workload.spec.pod_sets.clear()))]
#[case::pods_are_reclaimable(|cluster: &mut Cluster| cluster.update("a", |workload| {
    let done = sluice_api::kueue::workload_status::ReclaimablePod { name: "main".into(), count: 1 };
    workload.status.get_or_insert_default().reclaimable_pods = vec![done];
}))]
fn freed_quota_admits_pending_workload(#[case] make_room: fn(&mut Cluster)) {
    let mut cluster = Cluster::with_cpu("4");
    cluster.submit("a", "4");
    cluster.submit("b", "4");
    cluster.run_until_stable();

    make_room(&mut cluster);

    assert_eq!(cluster.run_until_stable(), ["b"]);
}

#[test]
fn workloads_are_ordered_by_priority_then_age_then_uid() {
    let mut cluster = Cluster::with_cpu("1");
    cluster.submit("blocker", "1");
    cluster.run_until_stable();
    for (name, priority, created) in [("d", 0, 20), ("c", 0, 10), ("b", 5, 30), ("z-older", 5, 25), ("b2", 5, 30)] {
        let mut workload = cluster.workload(name, &[("main", 1, json!({"cpu": "1"}))]);
        workload.spec.priority = Some(priority);
        workload.metadata.creation_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(timestamp(created)));
        cluster.put(workload);
    }

    let mut order = Vec::new();
    let mut last = "blocker".to_owned();
    for _ in 0..5 {
        cluster.finish(&last);
        order.extend(cluster.run_until_stable());
        last = order.last().cloned().unwrap_or_default();
    }

    assert_eq!(order, ["z-older", "b", "b2", "c", "d"]);
}

#[rstest]
#[case::strict_fifo("StrictFIFO", &[])]
#[case::best_effort("BestEffortFIFO", &["small"])]
fn head_blocks_only_a_strict_queue(#[case] strategy: &str, #[case] admitted: &[&str]) {
    let mut cluster = Cluster::with_cpu("4");
    cluster.patch_cluster_queue(json!({"queueingStrategy": strategy}));
    cluster.submit("running", "2");
    cluster.run_until_stable();
    cluster.now = 50;
    cluster.submit("large", "3");
    cluster.now = 60;
    cluster.submit("small", "1");

    assert_eq!(cluster.run_until_stable(), admitted);
    if admitted.is_empty() {
        let why = cluster.pending_cause("small");
        assert_eq!(why, Some(PendingCause::BehindHead { head: object_key("large"), cluster_queue: "cq".into() }));
    }
    cluster.finish("running");
    assert!(cluster.run_until_stable().contains(&"large".to_owned()));
}

#[test]
fn workload_of_unselected_namespace_does_not_block_the_queue() {
    let mut cluster = Cluster::with_cpu("4");
    cluster.patch_cluster_queue(
        json!({"queueingStrategy": "StrictFIFO", "namespaceSelector": {"matchLabels": {"team": "a"}}}),
    );
    cluster.submit("a", "1");
    assert_eq!(cluster.run_until_stable(), [""; 0]);
    assert_eq!(cluster.reason_and_message("a", names::QUOTA_RESERVED).0, "Misconfigured");

    cluster.label_namespace("team", "a");

    assert_eq!(cluster.run_until_stable(), ["a"]);
}

#[test]
fn pod_set_gets_first_flavor_that_fits_after_earlier_pod_sets() {
    let mut cluster = Cluster::with(json!({
        "namespaceSelector": {},
        "resourceGroups": [
            group(&["cpu", "memory"], &[("on-demand", &["4", "8Gi"]), ("spot", &["8", "8Gi"])]),
            group(&["nvidia.com/gpu"], &[("a100", &["2"]), ("t4", &["4"])]),
        ],
    }));
    let pod = |cpu: &str, gpu: &str| json!({"cpu": cpu, "memory": "1Gi", "nvidia.com/gpu": gpu});
    let workload = cluster
        .workload("a", &[("head", 1, json!({"cpu": "3"})), ("worker", 2, pod("1", "1")), ("late", 1, pod("1", "1"))]);
    cluster.put(workload);

    assert_eq!(cluster.run_until_stable(), ["a"]);

    let expected =
        |pairs: &[(&str, &str)]| pairs.iter().map(|(r, f)| ((*r).to_owned(), (*f).to_owned())).collect::<Vec<_>>();
    assert_eq!(assigned_flavors(&cluster, "a", 0), expected(&[("cpu", "on-demand")]));
    assert_eq!(
        assigned_flavors(&cluster, "a", 1),
        expected(&[("cpu", "spot"), ("memory", "spot"), ("nvidia.com/gpu", "a100")])
    );
    assert_eq!(
        assigned_flavors(&cluster, "a", 2),
        expected(&[("cpu", "on-demand"), ("memory", "on-demand"), ("nvidia.com/gpu", "t4")])
    );
    assert_eq!(cluster.reserved_quantity("spot", "memory"), "2Gi");
}

#[test]
fn untolerated_taint_excludes_flavor_until_it_is_removed() {
    let mut cluster = Cluster::with(json!({
        "namespaceSelector": {},
        "resourceGroups": [group(&["cpu"], &[("tainted", &["8"]), ("small", &["2"])])],
    }));
    cluster.put_flavor_with("tainted", json!({"nodeTaints": [{"key": "gpu", "effect": "NoSchedule"}]}));
    cluster.submit("a", "2");
    cluster.submit("b", "4");

    assert_eq!(cluster.run_until_stable(), ["a"]);
    assert_eq!(assigned_flavors(&cluster, "a", 0), [("cpu".to_owned(), "small".to_owned())]);
    let (reason, message) = cluster.reason_and_message("b", names::QUOTA_RESERVED);
    assert_eq!(reason, "ExceedsMaxQuota");
    assert!(
        message.contains("flavor tainted does not match: untolerated taint gpu:NoSchedule; insufficient quota"),
        "{message}"
    );

    cluster.put_flavor("tainted");
    assert_eq!(cluster.run_until_stable(), ["b"]);
}

#[rstest]
#[case::labels(json!({"nodeLabels": {"pool": "a100"}}), json!({"nodeLabels": {"pool": "h100"}}))]
#[case::tolerations(
    json!({"nodeTaints": [{"key": "gpu", "effect": "NoSchedule"}]}),
    json!({"nodeTaints": [{"key": "gpu", "effect": "NoSchedule"}], "tolerations": [{"key": "gpu", "operator": "Exists"}]})
)]
fn workload_that_matched_no_flavor_is_retried_when_its_flavor_changes(#[case] before: Value, #[case] after: Value) {
    // Given a workload that the only flavor doesn't match,
    let mut cluster = Cluster::with_cpu("4");
    cluster.put_flavor_with("default", before);
    let mut workload = cluster.workload("a", &[("main", 1, json!({"cpu": "2"}))]);
    edit_pod_spec(&mut workload.spec.pod_sets[0], |spec| spec["nodeSelector"] = json!({"pool": "h100"}));
    cluster.put(workload);
    assert!(cluster.run_until_stable().is_empty());

    // when the flavor is edited and matches, then it is admitted.
    cluster.put_flavor_with("default", after);
    assert_eq!(cluster.run_until_stable(), ["a"]);
}

#[test]
fn pods_are_counted_if_cluster_queue_covers_them() {
    let mut cluster = Cluster::with(json!({
        "namespaceSelector": {},
        "resourceGroups": [group(&["cpu", "pods"], &[("default", &["100", "5"])])],
    }));
    for name in ["a", "b"] {
        let workload = cluster.workload(name, &[("main", 3, json!({"cpu": "1"}))]);
        cluster.put(workload);
    }

    assert_eq!(cluster.run_until_stable(), ["a"]);
    assert_eq!(cluster.reserved_quantity("default", "pods"), "3");
}

#[rstest]
#[case::quota_is_used(json!({"cpu": "3"}), PendingReason::WaitingForQuota,
    "couldn't assign flavors to pod set main: insufficient unused quota for cpu in flavor default, 1 more needed \
     (requests 3, 2 of 4 used: team/other holds 2; fits once 1 is released or nominalQuota is 5)")]
#[case::request_exceeds_quota(json!({"cpu": "4500m"}), PendingReason::ExceedsMaxQuota,
    "couldn't assign flavors to pod set main: insufficient quota for cpu in flavor default, previously considered \
     podsets requests (0) + current podset request (4500m) > maximum capacity (4) (fits only once nominalQuota is 4500m)")]
#[case::resource_is_not_covered(json!({"cpu": "1", "nvidia.com/gpu": "1"}), PendingReason::NoMatchingFlavor,
    "couldn't assign flavors to pod set main: resource nvidia.com/gpu unavailable in ClusterQueue")]
#[case::quantity_is_negative(json!({"cpu": "-1"}), PendingReason::Misconfigured,
    "resources validation failed: pod set main: container \"c\": invalid quantity of cpu: \"-1\" is negative; only \
     zero or more is allowed")]
#[case::quantity_overflows(json!({"cpu": "1e400"}), PendingReason::ExceedsMaxQuota,
    "couldn't assign flavors to pod set main: insufficient quota for cpu in flavor default, previously considered \
     podsets requests (0) + current podset request (9223372036854775807m) > maximum capacity (4) (fits only once nominalQuota is 9223372036854775807m)")]
fn pending_condition_reports_reason_and_numbers(
    #[case] requests: Value,
    #[case] reason: PendingReason,
    #[case] message: &str,
) {
    let mut cluster = Cluster::with_cpu("4");
    cluster.submit("other", "2");
    cluster.run_until_stable();
    let workload = cluster.workload("a", &[("main", 1, requests)]);
    cluster.put(workload);

    assert_eq!(cluster.run_until_stable(), [""; 0]);

    assert_eq!(
        cluster.reason_and_message("a", names::QUOTA_RESERVED),
        (reason.as_str().to_owned(), message.to_owned())
    );
}

#[test]
fn quota_lowered_below_usage_admits_nothing_until_enough_is_released() {
    let mut cluster = Cluster::with_cpu("4");
    cluster.submit("a", "3");
    cluster.submit("b", "1");
    cluster.run_until_stable();
    cluster.patch_cluster_queue(json!({"resourceGroups": [group(&["cpu"], &[("default", &["2"])])]}));
    cluster.submit("c", "1");
    assert_eq!(cluster.run_until_stable(), [""; 0]);
    assert!(cluster.is_true("a", names::ADMITTED) && cluster.is_true("b", names::ADMITTED));

    cluster.finish("b");
    assert_eq!(cluster.run_until_stable(), [""; 0]);
    cluster.finish("a");
    assert_eq!(cluster.run_until_stable(), ["c"]);
}

#[test]
fn terminating_workload_holds_its_quota_and_is_never_admitted() {
    let mut cluster = Cluster::with_cpu("2");
    cluster.submit("a", "2");
    cluster.run_until_stable();
    cluster.submit("b", "1");
    let deleted_at = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(timestamp(5)));
    cluster.update("a", |workload| workload.metadata.deletion_timestamp = deleted_at.clone());
    cluster.update("b", |workload| workload.metadata.deletion_timestamp = deleted_at);
    cluster.submit("c", "1");

    assert_eq!(cluster.run_until_stable(), [""; 0]);
    cluster.delete("a");
    assert_eq!(cluster.run_until_stable(), ["c"]);
}

#[test]
fn rejected_admission_releases_quota_until_workload_changes() {
    let mut cluster = Cluster::with_cpu("2");
    cluster.submit("a", "2");
    cluster.now = 10;
    cluster.submit("b", "2");
    cluster.cycle();

    cluster.scheduler.observe(timestamp(20), &Input::AdmissionRejected(&object_key("a")));

    assert_eq!(cluster.run_until_stable(), ["b"]);
    cluster.finish("b");
    assert_eq!(cluster.run_until_stable(), [""; 0]);
    cluster.update("a", |workload| workload.spec.priority = Some(1));
    assert_eq!(cluster.run_until_stable(), ["a"]);
}

#[test]
fn unobserved_admission_uses_quota_and_stays_pending() {
    let mut cluster = Cluster::with_cpu("2");
    cluster.submit("a", "2");
    let first = cluster.cycle();
    cluster.submit("b", "1");

    let second = cluster.cycle();

    assert!(!second.iter().any(|effect| matches!(effect, Decision::Admit { .. })));
    assert_eq!(cluster.scheduler.decision_for(&first[0].target()).as_ref(), Some(&first[0]));
}

#[test]
fn admission_is_dropped_when_workload_requests_change_before_it_is_observed() {
    let mut cluster = Cluster::with_cpu("2");
    cluster.submit("a", "2");
    cluster.cycle();
    cluster.update("a", |workload| workload.spec.pod_sets[0].count = 2);

    assert_eq!(cluster.run_until_stable(), [""; 0]);
    assert_eq!(cluster.reserved_quantity("default", "cpu"), "0");
}

#[test]
fn converged_cluster_gets_no_decisions() {
    let mut cluster = Cluster::with_cpu("2");
    for name in ["a", "b", "c"] {
        cluster.submit(name, "1");
    }
    cluster.run_until_stable();
    for workload in cluster.workloads.clone().into_values() {
        cluster.put(workload);
    }

    assert_eq!(cluster.cycle(), []);
    cluster.restart();
    assert_eq!(cluster.cycle(), []);
}

#[test]
fn evicted_workload_is_requeued_at_its_requeue_time() {
    let mut cluster = Cluster::with_cpu("2");
    let mut workload = cluster.workload("a", &[("main", 1, json!({"cpu": "1"}))]);
    let state = json!({"requeueState": {"count": 1, "requeueAt": "1970-01-01T00:01:40Z"}});
    workload.status = serde_json::from_value(state).expect("a status");
    cluster.put(workload);

    assert_eq!(cluster.run_until_stable(), [""; 0]);
    assert!(cluster.scheduler.next_deadline().is_some_and(|wake| wake <= timestamp(100)));
    cluster.now = 99;
    assert_eq!(cluster.run_until_stable(), ["a"]);

    // Its backoff is over, and it is still known how often it was requeued.
    let status = cluster.workloads[&object_key("a")].status.as_ref().expect("a status");
    let state = status.requeue_state.as_ref().expect("the state");
    assert_eq!((state.count, state.requeue_at.as_ref()), (Some(1), None));
}

#[test]
fn admission_does_not_rewrite_workloads_pending_for_the_same_reason() {
    let mut cluster = Cluster::with_cpu("1");
    cluster.submit("runs", "1");
    for number in 0..500 {
        cluster.submit(&format!("w{number:03}"), "1");
    }
    cluster.run_until_stable();
    cluster.decisions.clear();
    cluster.finish("runs");

    cluster.run_until_stable();

    let targets_workload = |effect: &&Decision| matches!(effect.target(), DecisionTarget::Workload(_));
    assert_eq!(cluster.decisions.iter().filter(targets_workload).count(), 1);
}

#[test]
fn numbers_of_the_first_pending_workload_are_refreshed_after_a_delay() {
    // Given two pending workloads, when usage changes,
    let mut cluster = Cluster::with_cpu("3");
    cluster.submit("a", "1");
    cluster.submit("b", "2");
    cluster.submit("first", "3");
    cluster.submit("second", "3");
    cluster.run_until_stable();
    cluster.finish("a");
    cluster.run_until_stable();
    let message = |cluster: &Cluster, name: &str| cluster.reason_and_message(name, names::QUOTA_RESERVED).1;
    assert!(message(&cluster, "first").contains("3 more needed"), "the message is not refreshed yet");

    cluster.now = 61;
    cluster.run_until_stable();

    // then the first one gets new numbers after the delay, and the second one keeps its own.
    assert!(message(&cluster, "first").contains("2 more needed"));
    assert!(message(&cluster, "second").contains("3 more needed"));
}

#[test]
fn numbers_of_all_pending_workloads_are_refreshed_after_a_change_of_quota() {
    let mut cluster = Cluster::with_cpu("3");
    cluster.submit("a", "3");
    cluster.submit("first", "3");
    cluster.submit("second", "3");
    cluster.run_until_stable();

    let quota = group(&["cpu"], &[("default", &["4"])]);
    cluster.put_cluster_queue("cq", json!({"resourceGroups": [quota], "namespaceSelector": {}}));
    cluster.run_until_stable();

    for name in ["first", "second"] {
        let (_, message) = cluster.reason_and_message(name, names::QUOTA_RESERVED);
        assert!(message.contains("2 more needed"), "{name}: {message}");
    }
}

#[rstest]
#[case::container_of_kuberay("wait-gcs-ready", json!({"cpu": "200m", "memory": "256Mi"}), true)]
#[case::own_container("fetch-model", json!({"cpu": "200m", "memory": "256Mi"}), false)]
#[case::larger_container_of_that_name("wait-gcs-ready", json!({"memory": "8Gi"}), false)]
#[case::other_resource_of_that_name("wait-gcs-ready", json!({"nvidia.com/gpu": "1"}), false)]
fn resource_that_only_kuberay_requests_need_not_be_covered(
    #[case] name: &str,
    #[case] requests: Value,
    #[case] is_admitted: bool,
) {
    // Given quota of CPUs alone,
    let mut cluster = Cluster::with_cpu("1");

    // when pods request CPUs, and an init container that runs before requests something else,
    let mut workload = cluster.workload("w", &[("main", 1, json!({"cpu": "1"}))]);
    let container = json!({"name": name, "resources": {"requests": requests}});
    edit_pod_spec(&mut workload.spec.pod_sets[0], |spec| spec["initContainers"] = json!([container]));
    cluster.put(workload);

    // then they are admitted if it is not their owner's.
    assert_eq!(cluster.run_until_stable(), Vec::from_iter(is_admitted.then_some("w")));
}

#[test]
fn resource_that_only_kuberay_requests_is_charged_if_it_is_covered() {
    let groups = json!([group(&["cpu", "memory"], &[("default", &["1", "1Gi"])])]);
    let mut cluster = Cluster::with(json!({"namespaceSelector": {}, "resourceGroups": groups}));
    let mut workload = cluster.workload("w", &[("main", 1, json!({"cpu": "1"}))]);
    let container = json!({"name": "wait-gcs-ready", "resources": {"requests": {"cpu": "200m", "memory": "256Mi"}}});
    edit_pod_spec(&mut workload.spec.pod_sets[0], |spec| spec["initContainers"] = json!([container]));
    cluster.put(workload);

    assert_eq!(cluster.run_until_stable(), ["w"]);

    assert_eq!(cluster.reserved_quantity("default", "memory"), "256Mi");
    assert_eq!(cluster.reserved_quantity("default", "cpu"), "1");
}
