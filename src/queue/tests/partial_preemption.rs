//! Partial preemption: the surge of an upgrade is preempted before a whole workload.

use rstest::rstest;
use serde_json::json;

use super::fixture::{Cluster, replacing};
use crate::partial_admission::SLICE_ANNOTATION;
use crate::partial_preemption::{PARTIALLY_PREEMPTED, PreemptiblePart};
use crate::{Decision, PendingCause};
use sluice_api::kueue::{Workload, names};

/// Returns a ClusterQueue of 10 CPUs that preempts lower priorities.
fn preempting_cluster() -> Cluster {
    let mut cluster = Cluster::with_cpu("10");
    cluster.patch_cluster_queue(json!({"preemption": {"withinClusterQueue": "LowerPriority"}}));
    cluster
}

/// Returns a workload of `pods` pods of 1 CPU, of which `surge` are the surge.
fn workload_with_surge(cluster: &Cluster, name: &str, priority: i32, pods: i32, surge: i32) -> Workload {
    let mut workload = cluster.workload(name, &[("worker", pods, json!({"cpu": "1"}))]);
    workload.spec.priority = Some(priority);
    declare_surge(&mut workload, surge);
    workload
}

fn declare_surge(workload: &mut Workload, surge: i32) {
    let parts = if surge > 0 { json!([{"part": "Surge", "pods": {"worker": surge}}]) } else { json!([]) };
    let record = (SLICE_ANNOTATION.to_owned(), json!({ "parts": parts }).to_string());
    workload.metadata.annotations.get_or_insert_default().extend([record]);
}

/// Returns a cluster in which `a` runs `pods` pods, `surge` of them as surge, and the
/// higher-priority `urgent` requests `wanted` pods.
fn cluster_with_preemptor(pods: i32, surge: i32, wanted: i32) -> Cluster {
    let mut cluster = preempting_cluster();
    let upgrading = workload_with_surge(&cluster, "a", 0, pods, surge);
    cluster.put(upgrading);
    cluster.run_until_stable();
    let preemptor = workload_with_surge(&cluster, "urgent", 10, wanted, 0);
    cluster.put(preemptor);
    cluster
}

/// Removes the surge of a workload, leaving `pods` pods.
fn stop_surge(cluster: &mut Cluster, name: &str, pods: i32) {
    cluster.update(name, |workload| {
        workload.spec.pod_sets[0].count = pods;
        declare_surge(workload, 0);
    });
}

/// Returns the workloads that lose only their surge, and those that are evicted.
fn preempted_workloads(cluster: &Cluster) -> (Vec<&str>, Vec<&str>) {
    let workloads_with = |condition: &str| {
        let names = cluster.workloads.keys().map(|key| key.name.as_str());
        names.filter(|name| cluster.is_true(name, condition)).collect()
    };
    (workloads_with(PARTIALLY_PREEMPTED), workloads_with(names::EVICTED))
}

#[rstest]
#[case::surge_is_enough(&[("a", 0, 8, 4)], 4, &["a"], &[])]
#[case::surge_is_not_enough(&[("a", 0, 8, 4)], 7, &[], &["a"])]
#[case::workload_has_no_surge(&[("a", 0, 8, 0)], 4, &[], &["a"])]
#[case::two_surges_go_before_a_whole_workload(&[("a", 0, 5, 2), ("b", 0, 5, 2)], 4, &["a", "b"], &[])]
#[case::only_required_surges_go(&[("a", 0, 5, 2), ("b", 0, 5, 2)], 2, &["b"], &[])]
#[case::lower_priority_goes_before_a_surge(&[("a", 0, 5, 0), ("b", 1, 5, 3)], 3, &[], &["a"])]
#[case::all_surges_go_before_a_whole_workload(&[("a", 0, 5, 2), ("b", 0, 5, 2)], 6, &["a"], &["b"])]
#[case::higher_priority_stays(&[("a", 20, 8, 4)], 4, &[], &[])]
fn surge_is_preempted_before_whole_workload(
    #[case] running: &[(&str, i32, i32, i32)],
    #[case] wanted: i32,
    #[case] surges: &[&str],
    #[case] whole: &[&str],
) {
    let mut cluster = preempting_cluster();
    for (name, priority, pods, surge) in running {
        let service = workload_with_surge(&cluster, name, *priority, *pods, *surge);
        cluster.put(service);
        cluster.run_until_stable();
        cluster.now += 1;
    }

    let preemptor = workload_with_surge(&cluster, "urgent", 10, wanted, 0);
    cluster.put(preemptor);
    cluster.run_until_stable();

    assert_eq!(preempted_workloads(&cluster), (surges.to_vec(), whole.to_vec()));
}

#[test]
fn preemptor_is_admitted_once_surge_pods_are_gone() {
    let mut cluster = cluster_with_preemptor(8, 4, 5);
    assert_eq!(cluster.run_until_stable(), [""; 0], "the surge is still running");
    let (reason, message) = cluster.reason_and_message("a", PARTIALLY_PREEMPTED);
    assert_eq!(reason, "Surge");
    assert!(message.starts_with("For workload team/urgent: Preempted to accommodate a workload"), "{message}");
    assert!(
        matches!(cluster.pending_cause("urgent"), Some(PendingCause::PreemptionInProgress { evicting, .. }) if evicting.len() == 1)
    );

    cluster.restart();
    assert_eq!(cluster.run_until_stable(), [""; 0]);
    assert_eq!(preempted_workloads(&cluster), (vec!["a"], vec![]), "a restarted process preempts nothing more");

    stop_surge(&mut cluster, "a", 4);
    assert_eq!(cluster.run_until_stable(), ["urgent"]);
    assert_eq!(cluster.reason_and_message("a", PARTIALLY_PREEMPTED).0, "Released");
    assert_eq!(cluster.reserved_quantity("default", "cpu"), "9");
}

#[test]
fn workload_releasing_its_surge_can_be_evicted_as_a_whole() {
    let mut cluster = cluster_with_preemptor(10, 4, 4);
    cluster.run_until_stable();

    let more = workload_with_surge(&cluster, "more", 10, 6, 0);
    cluster.put(more);
    cluster.run_until_stable();

    assert!(cluster.is_true("a", names::EVICTED));
}

#[test]
fn new_surge_request_waits_until_preempted_surge_is_released() {
    let mut cluster = cluster_with_preemptor(8, 4, 3);
    cluster.run_until_stable();

    let again = replacing(workload_with_surge(&cluster, "a2", 0, 8, 4), "a");
    cluster.put(again);
    cluster.run_until_stable();
    assert!(matches!(cluster.pending_cause("a2"), Some(PendingCause::PredecessorEvicted(_))));

    stop_surge(&mut cluster, "a", 4);
    assert_eq!(cluster.run_until_stable(), ["urgent"]);
    assert!(
        matches!(cluster.pending_cause("a2"), Some(PendingCause::Quota(_))),
        "it is pending for the quota that urgent holds"
    );
}

#[test]
fn promoted_surge_is_not_preempted_as_surge() {
    let mut cluster = cluster_with_preemptor(8, 4, 3);
    let decided = cluster.cycle();
    assert!(decided.iter().any(|effect| matches!(effect, Decision::PreemptPart { part: PreemptiblePart::Surge, .. })));

    cluster.update("a", |workload| declare_surge(workload, 0));
    cluster.run_until_stable();

    assert_eq!(
        preempted_workloads(&cluster),
        (vec![], vec!["a"]),
        "without a surge only the whole workload can be preempted"
    );
}
