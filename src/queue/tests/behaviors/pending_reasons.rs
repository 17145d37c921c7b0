//! Pending reason of a workload: of several causes, the one that is most likely to be resolved.
//! B57.

use rstest::rstest;
use serde_json::json;

use super::scene::{Scene, queue};
use sluice_api::kueue::names;

/// Returns a strict queue with two flavors; a flavor named `tainted…` has a taint that no pod
/// tolerates.
fn queue_with_flavors(first: (&str, &str), second: (&str, &str)) -> Scene {
    let mut scene = Scene::new();
    for (flavor, _) in [first, second] {
        let taints = json!({"nodeTaints": [{"key": "spot", "value": "true", "effect": "NoSchedule"}]});
        scene.put_flavor_with(flavor, if flavor.starts_with("tainted") { taints } else { json!({}) });
    }
    scene.queues([queue("q").quota(first.0, first.1).quota(second.0, second.1).strict()])
}

/// Returns a queue that borrows from a sibling up to a limit; one of its two flavors is tainted.
fn queue_with_sibling(sibling: &str, limit: &str) -> Scene {
    let quota = format!("cpu=2+{limit}");
    let member = |name: &str, quota: &str| queue(name).within_cohort("c").quota("one", quota).quota("tainted", quota);
    let mut scene = Scene::new();
    let taints = json!({"nodeTaints": [{"key": "spot", "value": "true", "effect": "NoSchedule"}]});
    scene.put_flavor_with("tainted", taints);
    scene.queues([member("q", &quota), member("sibling", sibling)])
}

#[rstest]
// "insufficient capacity, cohort has available capacity (waiting for quota)", "exceeds cohort max
// capacity limits", "exceeds borrowing limit but cohort has capacity", of the flavor assigner's
// table.
#[case::borrowable_quota_is_used(
    queue_with_sibling("cpu=2", "2").admitted("sibling", "held cpu=2@one").pending("q", "in cpu=3"), "WaitingForQuota")]
#[case::request_exceeds_cohort_quota(queue_with_sibling("cpu=2", "2").pending("q", "in cpu=5"), "ExceedsMaxQuota")]
#[case::request_exceeds_borrowing_limit(queue_with_sibling("cpu=5", "1").pending("q", "in cpu=4"), "ExceedsMaxQuota")]
// "flavors with mixed misconfiguration and insufficient quota".
#[case::matching_flavor_is_used(
    queue_with_flavors(("tainted", "cpu=20"), ("on-demand", "cpu=15")).admitted("q", "held cpu=10@on-demand").pending("q", "in cpu=10"), "WaitingForQuota")]
// "flavors with mixed taint mismatch and exceeding limits".
#[case::request_exceeds_matching_flavor(queue_with_flavors(("tainted", "cpu=20"), ("on-demand", "cpu=5")).pending("q", "in cpu=10"), "ExceedsMaxQuota")]
// "flavors are structurally incompatible".
#[case::no_flavor_matches(queue_with_flavors(("tainted", "cpu=20"), ("tainted-2", "cpu=5")).pending("q", "in cpu=1"), "NoMatchingFlavor")]
// "cannot borrow resource not listed in clusterQueue".
#[case::resource_is_not_covered(queue_with_flavors(("one", "cpu=20"), ("two", "cpu=5")).pending("q", "in gpu=1"), "NoMatchingFlavor")]
#[case::first_flavor_is_used_and_second_too_small(
    queue_with_flavors(("one", "cpu=10"), ("two", "cpu=5")).admitted("q", "held cpu=10@one").pending("q", "in cpu=10"), "WaitingForQuota")]
#[case::evictions_are_in_progress(
    Scene::new().queues([queue("q").has("cpu=1").preempts_within("LowerPriority")]).admitted("q", "held cpu=1 p=-1").pending("q", "in cpu=1"),
    "WaitingForPreemptedWorkloads")]
fn b57_pending_reason_is_the_most_resolvable_cause(#[case] mut scene: Scene, #[case] reason: &str) {
    assert_eq!(scene.run_until_stable(), [""; 0]);

    assert_eq!(scene.reason_and_message("in", names::QUOTA_RESERVED).0, reason);
}

/// Two full strict queues, each with a pending head; a third queue may borrow and a fourth may not.
#[rstest]
#[case::borrower("borrower", "5 is reserved for team/w2 and 1 more;")]
#[case::head_of_second_queue("w2", "2 is reserved for team/w1;")]
#[case::head_of_first_queue("w1", "3 is reserved for team/w2;")]
fn pending_message_reports_quota_reserved_for_other_workloads(#[case] workload: &str, #[case] expected: &str) {
    let mut scene = two_heads_with_reservations();

    assert_eq!(scene.run_until_stable(), [""; 0]);

    let (_, message) = scene.reason_and_message(workload, names::QUOTA_RESERVED);
    assert!(message.contains(expected), "{message}");
}

#[test]
fn pending_message_omits_reservations_of_quota_it_cannot_borrow() {
    let mut scene = two_heads_with_reservations();

    assert_eq!(scene.run_until_stable(), [""; 0]);

    let (_, message) = scene.reason_and_message("limited", names::QUOTA_RESERVED);
    assert!(message.contains("limited by its borrowingLimit") && !message.contains("reserved"), "{message}");
}

fn two_heads_with_reservations() -> Scene {
    let member = |name: &str, quota: &str| queue(name).within_cohort("c").has(quota);
    let strict = |name: &str, quota: &str| member(name, quota).strict();
    Scene::new()
        .queues([strict("s1", "cpu=2"), strict("s2", "cpu=3"), member("b", "cpu=0"), member("l", "cpu=1+0")])
        .admitted("s1", "h1 cpu=2")
        .admitted("s2", "h2 cpu=3")
        .admitted("l", "h3 cpu=1")
        .pending("s1", "w1 cpu=2")
        .pending("s2", "w2 cpu=3")
        .pending("b", "borrower cpu=1")
        .pending("l", "limited cpu=1")
}

/// "workload should not fit in nonexistent clusterQueue", "… in clusterQueue with nonexistent
/// flavor".
#[test]
fn b57_missing_or_misconfigured_queue_is_the_pending_reason() {
    let mut scene = Scene::new().queues([queue("q").quota("gone", "cpu=50")]);
    scene.scheduler.observe(super::super::fixture::timestamp(1000), &crate::Input::ResourceFlavorDeleted("gone"));
    scene.put_local_queue("orphan", json!({"clusterQueue": "nowhere"}));
    scene.submit_to("q", "wrong cpu=1");
    scene.submit_to("orphan", "lost cpu=1");

    assert_eq!(scene.run_until_stable(), [""; 0]);

    assert_eq!(scene.reason_and_message("wrong", names::QUOTA_RESERVED).0, "Suspended");
    assert_eq!(scene.reason_and_message("lost", names::QUOTA_RESERVED).0, "Misconfigured");
}

/// Begins as Kueue's message, `… more needed. Pending the preemption of 1 workload(s)`.
#[test]
fn preemptor_says_what_is_short_and_which_workloads_hold_it() {
    let mut scene = Scene::new()
        .queues([queue("q").has("cpu=3").preempts_within("LowerPriority")])
        .admitted("q", "held cpu=2 p=-1")
        .pending("q", "in cpu=3");
    scene.run_until_stable();

    let (reason, message) = scene.reason_and_message("in", names::QUOTA_RESERVED);

    assert_eq!(reason, "WaitingForPreemptedWorkloads");
    assert_eq!(
        message,
        "couldn't assign flavors to pod set main: insufficient unused quota for cpu in flavor default, 2 more needed. \
         Pending the preemption of 1 workload(s), whose quota is reserved for it: team/held"
    );
}
