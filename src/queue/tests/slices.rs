//! Workload slices: a replacement takes over the quota of its predecessor.

use rstest::rstest;
use serde_json::json;

use super::fixture::{Cluster, group, object_key, replacing};
use crate::{Decision, Input, PendingCause};
use sluice_api::kueue::{Workload, names};

fn slice(cluster: &Cluster, name: &str, workers: i32) -> Workload {
    cluster.workload(name, &[("head", 1, json!({"cpu": "1"})), ("worker", workers, json!({"cpu": "2"}))])
}

/// Returns a cluster with `a1` admitted: 1 head and 2 workers, 5 CPUs in total.
fn cluster_with_slice(cpu: &str) -> Cluster {
    let mut cluster = Cluster::with_cpu(cpu);
    let first = slice(&cluster, "a1", 2);
    cluster.put(first);
    assert_eq!(cluster.run_until_stable(), ["a1"]);
    cluster
}

fn submit_replacement(cluster: &mut Cluster, name: &str, workers: i32, predecessor: &str) {
    let next = replacing(slice(cluster, name, workers), predecessor);
    cluster.put(next);
}

#[test]
fn only_the_difference_of_a_replacement_slice_has_to_fit() {
    let mut cluster = cluster_with_slice("9");
    submit_replacement(&mut cluster, "a2", 4, "a1");

    assert_eq!(cluster.run_until_stable(), ["a2"]);

    assert_eq!(cluster.reserved_quantity("default", "cpu"), "9");
    assert_eq!(cluster.reason_and_message("a1", names::FINISHED).0, "WorkloadSliceReplaced");
    assert!(!cluster.is_true("a2", names::FINISHED));
}

#[test]
fn predecessor_keeps_running_while_replacement_does_not_fit() {
    let mut cluster = cluster_with_slice("8");
    submit_replacement(&mut cluster, "a2", 4, "a1");

    assert_eq!(cluster.run_until_stable(), [""; 0]);

    assert!(cluster.is_true("a1", names::ADMITTED) && !cluster.is_true("a1", names::FINISHED));
    assert_eq!(cluster.reserved_quantity("default", "cpu"), "5");
    let (reason, message) = cluster.reason_and_message("a2", names::QUOTA_RESERVED);
    assert_eq!(reason, "ExceedsMaxQuota", "{message}");

    cluster.patch_cluster_queue(json!({"resourceGroups": [group(&["cpu"], &[("default", &["10"])])]}));
    assert_eq!(cluster.run_until_stable(), ["a2"]);
}

#[test]
fn pending_slice_reports_its_difference_and_other_holders() {
    let mut cluster = cluster_with_slice("12");
    cluster.submit("other", "6");
    cluster.run_until_stable();
    submit_replacement(&mut cluster, "a2", 4, "a1");
    cluster.run_until_stable();

    let (reason, message) = cluster.reason_and_message("a2", names::QUOTA_RESERVED);
    assert_eq!(reason, "WaitingForQuota");
    assert_eq!(
        message,
        "couldn't assign flavors to pod set worker: insufficient unused quota for cpu in flavor default, 3 more needed \
         (requests 8 plus 1 for earlier pod sets, of which the replaced slice holds 5, 6 of 12 used: \
         team/other holds 6; fits once 3 is released or nominalQuota is 15)"
    );
}

/// Returns a cluster with two flavors of these quotas, `a1` with 5 CPUs in the first, and a pending
/// replacement with four workers.
fn cluster_with_two_flavors(first: &str, second: &str) -> Cluster {
    let mut cluster = Cluster::with_cpu(first);
    cluster.put_flavor("spot");
    let flavors: [(&str, &[&str]); 2] = [("default", &[first]), ("spot", &[second])];
    cluster.patch_cluster_queue(json!({"resourceGroups": [group(&["cpu"], &flavors)]}));
    let slice = slice(&cluster, "a1", 2);
    cluster.put(slice);
    assert_eq!(cluster.run_until_stable(), ["a1"]);
    submit_replacement(&mut cluster, "a2", 4, "a1");
    cluster.run_until_stable();
    cluster
}

#[rstest]
#[case::other_flavor_has_enough_quota("8", "4", &["worker"])]
#[case::other_flavor_is_too_small("5", "1", &["worker"])]
#[case::other_flavor_has_no_quota("8", "0", &[])]
#[case::same_flavor_fits("9", "4", &[])]
fn pod_sets_that_fit_only_in_another_flavor_are_pinned(
    #[case] first: &str,
    #[case] second: &str,
    #[case] expected: &[&str],
) {
    let cluster = cluster_with_two_flavors(first, second);
    assert_eq!(
        cluster.scheduler.pinned_pod_sets(&object_key("a2")).iter().map(String::as_str).collect::<Vec<_>>(),
        expected
    );
    assert!(cluster.scheduler.pinned_pod_sets(&object_key("a1")).is_empty());
}

#[test]
fn quota_moves_from_predecessor_to_replacement_atomically() {
    let mut cluster = cluster_with_slice("9");
    submit_replacement(&mut cluster, "a2", 4, "a1");
    cluster.submit("thief", "4");

    let effects = cluster.cycle();

    let admitted: Vec<_> = effects
        .iter()
        .filter_map(|effect| match effect {
            Decision::Admit { workload, replaces, .. } => Some((workload.clone(), replaces.clone())),
            _ => None,
        })
        .collect();
    assert_eq!(admitted, [(object_key("a2"), Some(object_key("a1")))]);
    assert_eq!(
        cluster.scheduler.recomputed_usage("cq").len(),
        1,
        "exactly one of the two slices is accounted at any time"
    );
    let finished_early = effects.iter().any(|effect| matches!(effect, Decision::FinishReplaced { .. }));
    assert!(!finished_early, "the predecessor is finished only once the admission is observed");

    cluster.scheduler.observe(super::fixture::timestamp(50), &Input::AdmissionRejected(&object_key("a2")));
    assert_eq!(
        cluster.scheduler.recomputed_usage("cq")[0].0,
        object_key("a1"),
        "the predecessor gets its quota back when the admission is rejected"
    );
    assert_eq!(cluster.run_until_stable(), ["thief"]);
}

#[test]
fn replaced_slice_is_finished_after_a_restart() {
    let mut cluster = cluster_with_slice("9");
    submit_replacement(&mut cluster, "a2", 4, "a1");
    let effects = cluster.cycle();
    effects
        .iter()
        .filter(|effect| matches!(effect, Decision::Admit { .. }))
        .for_each(|effect| cluster.apply_decision(effect));
    assert_eq!(cluster.holders(), ["a1", "a2"]);

    cluster.restart();

    assert_eq!(cluster.scheduler.recomputed_usage("cq").len(), 1);
    let effects = cluster.cycle();
    let Some(Decision::FinishReplaced { workload, replacement: by }) = effects.first() else { panic!("{effects:?}") };
    assert_eq!((workload, &by.workload, by.uid.as_str()), (&object_key("a1"), &object_key("a2"), "uid-a2"));
    assert_eq!(cluster.run_until_stable(), [""; 0]);
    assert_eq!(cluster.holders(), ["a2"]);
    assert_eq!(cluster.reserved_quantity("default", "cpu"), "9");
}

#[test]
fn slice_shrunk_in_place_releases_quota() {
    let mut cluster = cluster_with_slice("5");
    cluster.submit("next", "4");
    cluster.run_until_stable();

    cluster.update("a1", |workload| workload.spec.pod_sets[1].count = 0);

    assert_eq!(cluster.run_until_stable(), ["next"]);
    let status = cluster.workloads[&object_key("a1")].status.clone().unwrap_or_default();
    let worker = status.admission.map(|admission| admission.pod_set_assignments[1].clone()).unwrap_or_default();
    assert_eq!(worker.count, Some(0));
    assert_eq!(worker.resource_usage["cpu"].0, "0");
    assert!(cluster.is_true("a1", names::ADMITTED));
}

#[test]
fn pod_set_removed_in_place_releases_quota() {
    let mut cluster = cluster_with_slice("5");
    cluster.update("a1", |workload| drop(workload.spec.pod_sets.pop()));
    cluster.run_until_stable();

    assert_eq!(cluster.reserved_quantity("default", "cpu"), "1");
    let admission = cluster.workloads[&object_key("a1")].status.clone().and_then(|status| status.admission);
    assert_eq!(admission.map(|admission| admission.pod_set_assignments.len()), Some(1));
}

#[test]
fn slice_grown_in_place_keeps_its_admitted_quota() {
    let mut cluster = cluster_with_slice("9");
    cluster.update("a1", |workload| workload.spec.pod_sets[1].count = 4);
    cluster.run_until_stable();

    assert_eq!(cluster.reserved_quantity("default", "cpu"), "5");
}

#[test]
fn running_pods_keep_their_flavor_and_new_pod_sets_get_any() {
    let spec = |first: &str| json!({"namespaceSelector": {}, "resourceGroups": [group(&["cpu"], &[("first", &[first]), ("second", &["20"])])]});
    let mut cluster = Cluster::with(spec("0"));
    let old = slice(&cluster, "a1", 2);
    cluster.put(old);
    cluster.run_until_stable();
    assert_eq!(cluster.reserved_quantity("second", "cpu"), "5");
    cluster.put_cluster_queue("cq", spec("20"));

    let mut next = replacing(slice(&cluster, "a2", 3), "a1");
    next.spec.pod_sets.push(super::fixture::pod_set("worker-new", 1, &json!({"cpu": "3"})));
    cluster.put(next);

    assert_eq!(cluster.run_until_stable(), ["a2"]);
    assert_eq!(cluster.reserved_quantity("second", "cpu"), "7", "head and workers stay in their flavor");
    assert_eq!(cluster.reserved_quantity("first", "cpu"), "3");
}

#[rstest]
#[case::another_namespace(|claim: &mut Workload| {
    let other_namespace = (names::SLICE_REPLACEMENT_FOR_ANNOTATION.to_owned(), "elsewhere/a1".to_owned());
    claim.metadata.annotations.get_or_insert_default().extend([other_namespace]);
})]
#[case::another_job(|claim: &mut Workload| {
    let owner = json!([{"apiVersion": "ray.io/v1", "kind": "RayService", "name": "x", "uid": "other", "controller": true}]);
    claim.metadata.owner_references = serde_json::from_value(owner).ok();
})]
fn slice_of_another_owner_cannot_be_replaced(#[case] forge: fn(&mut Workload)) {
    let mut cluster = cluster_with_slice("9");
    let mut claim = replacing(slice(&cluster, "b", 4), "a1");
    forge(&mut claim);
    cluster.put(claim);

    assert_eq!(cluster.run_until_stable(), [""; 0], "without a valid claim the whole workload has to fit");
    assert!(!cluster.is_true("a1", names::FINISHED));
}

#[test]
fn first_admitted_of_two_replacements_takes_over_the_quota() {
    let mut cluster = cluster_with_slice("10");
    submit_replacement(&mut cluster, "a2", 3, "a1");
    cluster.now = 20;
    submit_replacement(&mut cluster, "a3", 3, "a1");

    assert_eq!(cluster.run_until_stable(), ["a2"]);
    assert_eq!(cluster.reserved_quantity("default", "cpu"), "7");
    assert!(matches!(cluster.pending_cause("a3"), Some(PendingCause::Quota(_))));
}

#[test]
fn slices_that_replace_each_other_both_use_quota() {
    let mut cluster = Cluster::with_cpu("20");
    let first = replacing(slice(&cluster, "a1", 2), "a2");
    let second = replacing(slice(&cluster, "a2", 2), "a1");
    cluster.put(first);
    cluster.put(second);
    cluster.run_until_stable();

    assert_eq!(cluster.reserved_quantity("default", "cpu"), "10");
}

#[test]
fn replacement_waits_while_predecessor_is_being_evicted() {
    let mut cluster = cluster_with_slice("9");
    cluster.update("a1", |workload| workload.spec.active = Some(false));
    cluster.run_until_stable();
    submit_replacement(&mut cluster, "a2", 2, "a1");

    assert_eq!(cluster.run_until_stable(), [""; 0]);
    assert_eq!(cluster.pending_cause("a2"), Some(PendingCause::PredecessorEvicted(object_key("a1"))));
    cluster.release_quota("a1");
    assert_eq!(cluster.run_until_stable(), ["a2"]);
}

#[test]
fn replacement_of_a_deleted_slice_has_to_fit_as_a_whole() {
    let mut cluster = cluster_with_slice("9");
    cluster.delete("a1");
    submit_replacement(&mut cluster, "a2", 4, "a1");
    cluster.submit("small", "1");

    assert_eq!(cluster.run_until_stable(), ["a2"]);
    assert_eq!(cluster.reserved_quantity("default", "cpu"), "9");
}

#[test]
fn replacement_of_a_pending_slice_takes_over_the_admitted_one() {
    let mut cluster = cluster_with_slice("9");
    submit_replacement(&mut cluster, "a2", 9, "a1");
    cluster.run_until_stable();
    submit_replacement(&mut cluster, "a3", 4, "a2");

    assert_eq!(cluster.run_until_stable(), ["a3"]);
    assert!(cluster.is_true("a1", names::FINISHED) && cluster.is_true("a2", names::FINISHED));
    assert_eq!(cluster.reserved_quantity("default", "cpu"), "9");
}

#[test]
fn accounting_does_not_depend_on_workload_names() {
    for (first, second) in [("a", "b"), ("b", "a")] {
        let mut cluster = Cluster::with_cpu("9");
        let older = slice(&cluster, first, 2);
        cluster.put(older);
        cluster.run_until_stable();
        submit_replacement(&mut cluster, second, 4, first);
        assert_eq!(cluster.run_until_stable(), [second]);
        assert_eq!(cluster.reserved_quantity("default", "cpu"), "9");
    }
}
