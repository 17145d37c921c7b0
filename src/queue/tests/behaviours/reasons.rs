//! The reason of waiting that a workload is told: of all that stands in its way, what leaves the most hope. B57.

use rstest::rstest;
use serde_json::json;

use super::scene::{Scene, queue};
use sluice_api::kueue::names;

/// Flavors whose nodes no pod of these tests tolerates begin with `tainted`.
fn flavors(first: (&str, &str), second: (&str, &str)) -> Scene {
    let mut scene = Scene::new();
    for (flavor, _) in [first, second] {
        let taints = json!({"nodeTaints": [{"key": "spot", "value": "true", "effect": "NoSchedule"}]});
        scene.put_flavor_with(flavor, if flavor.starts_with("tainted") { taints } else { json!({}) });
    }
    scene.queues([queue("q").quota(first.0, first.1).quota(second.0, second.1).strict()])
}

/// Half of the flavors are tainted; what a sibling has can be borrowed up to a limit.
fn beside(sibling: &str, limit: &str) -> Scene {
    let quota = format!("cpu=2+{limit}");
    let member = |name: &str, quota: &str| queue(name).within_cohort("c").quota("one", quota).quota("tainted", quota);
    let mut scene = Scene::new();
    let taints = json!({"nodeTaints": [{"key": "spot", "value": "true", "effect": "NoSchedule"}]});
    scene.put_flavor_with("tainted", taints);
    scene.queues([member("q", &quota), member("sibling", sibling)])
}

#[rstest]
// "insufficient capacity, cohort has available capacity (waiting for quota)", "exceeds cohort max capacity limits",
// "exceeds borrowing limit but cohort has capacity", of the flavor assigner's table.
#[case::others_hold_what_it_could_borrow(
    beside("cpu=2", "2").holds("sibling", "held cpu=2@one").waits("q", "in cpu=3"), "WaitingForQuota")]
#[case::the_cohort_has_not_that_much(beside("cpu=2", "2").waits("q", "in cpu=5"), "ExceedsMaxQuota")]
#[case::the_limit_of_borrowing_is_lower(beside("cpu=5", "1").waits("q", "in cpu=4"), "ExceedsMaxQuota")]
// "flavors with mixed misconfiguration and insufficient quota".
#[case::others_hold_what_it_could_have(
    flavors(("tainted", "cpu=20"), ("on-demand", "cpu=15")).holds("q", "held cpu=10@on-demand").waits("q", "in cpu=10"), "WaitingForQuota")]
// "flavors with mixed taint mismatch and exceeding limits".
#[case::there_is_not_that_much(flavors(("tainted", "cpu=20"), ("on-demand", "cpu=5")).waits("q", "in cpu=10"), "ExceedsMaxQuota")]
// "flavors are structurally incompatible".
#[case::no_flavor_is_for_it(flavors(("tainted", "cpu=20"), ("tainted-2", "cpu=5")).waits("q", "in cpu=1"), "NoMatchingFlavor")]
// "cannot borrow resource not listed in clusterQueue".
#[case::no_flavor_has_the_resource(flavors(("one", "cpu=20"), ("two", "cpu=5")).waits("q", "in gpu=1"), "NoMatchingFlavor")]
#[case::the_first_could_be_had_and_the_second_never(
    flavors(("one", "cpu=10"), ("two", "cpu=5")).holds("q", "held cpu=10@one").waits("q", "in cpu=10"), "WaitingForQuota")]
#[case::it_waits_for_an_eviction(
    Scene::new().queues([queue("q").has("cpu=1").within("LowerPriority")]).holds("q", "held cpu=1 p=-1").waits("q", "in cpu=1"),
    "WaitingForPreemptedWorkloads")]
fn b57_of_several_obstacles_the_most_hopeful_is_the_reason(#[case] mut scene: Scene, #[case] reason: &str) {
    assert_eq!(scene.run(), [""; 0]);

    assert_eq!(scene.says("in", names::QUOTA_RESERVED).0, reason);
}

/// Two strict queues are full, and the first of each waits; another borrows, and a fourth may not.
#[rstest]
#[case::of_others("borrower", "5 is reserved for team/w2 and 1 more;")]
#[case::but_not_of_its_own("w2", "2 is reserved for team/w1;")]
#[case::of_its_own_but_not("w1", "3 is reserved for team/w2;")]
fn who_waits_is_told_of_what_is_kept_for_others(#[case] who: &str, #[case] expected: &str) {
    let mut scene = kept_for_two();

    assert_eq!(scene.run(), [""; 0]);

    let (_, why) = scene.says(who, names::QUOTA_RESERVED);
    assert!(why.contains(expected), "{why}");
}

#[test]
fn what_is_kept_where_it_could_not_borrow_anyway_is_nothing_to_it() {
    let mut scene = kept_for_two();

    assert_eq!(scene.run(), [""; 0]);

    let (_, why) = scene.says("limited", names::QUOTA_RESERVED);
    assert!(why.contains("limited by its borrowingLimit") && !why.contains("reserved"), "{why}");
}

fn kept_for_two() -> Scene {
    let member = |name: &str, quota: &str| queue(name).within_cohort("c").has(quota);
    let strict = |name: &str, quota: &str| member(name, quota).strict();
    Scene::new()
        .queues([strict("s1", "cpu=2"), strict("s2", "cpu=3"), member("b", "cpu=0"), member("l", "cpu=1+0")])
        .holds("s1", "h1 cpu=2")
        .holds("s2", "h2 cpu=3")
        .holds("l", "h3 cpu=1")
        .waits("s1", "w1 cpu=2")
        .waits("s2", "w2 cpu=3")
        .waits("b", "borrower cpu=1")
        .waits("l", "limited cpu=1")
}

/// "workload should not fit in nonexistent clusterQueue", "… in clusterQueue with nonexistent flavor".
#[test]
fn b57_a_queue_that_is_missing_or_wrong_is_the_reason() {
    let mut scene = Scene::new().queues([queue("q").quota("gone", "cpu=50")]);
    scene.engine.observe(super::super::fixture::at(1000), &crate::Input::ResourceFlavorDeleted("gone"));
    scene.put_local_queue("orphan", json!({"clusterQueue": "nowhere"}));
    scene.submit_to("q", "wrong cpu=1");
    scene.submit_to("orphan", "lost cpu=1");

    assert_eq!(scene.run(), [""; 0]);

    assert_eq!(scene.says("wrong", names::QUOTA_RESERVED).0, "Misconfigured");
    assert_eq!(scene.says("lost", names::QUOTA_RESERVED).0, "Misconfigured");
}
