//! Preemption targets by priority, and by borrowing in one cohort: the cases of Kueue's table
//! (`pkg/scheduler/preemption/preemption_test.go`, `TestPreemption`), run on the whole scheduler.

use rstest::rstest;

use super::scene::{Node, Scene, queue};

/// Returns a queue with CPU in one flavor and memory in two that preempts its lower priorities.
fn standalone() -> Scene {
    let alone = queue("standalone").has("cpu=6").and_group().quota("alpha", "memory=3Gi").quota("beta", "memory=3Gi");
    Scene::new().queues([alone.within("LowerPriority")])
}

fn pair(names: [&str; 2], quota: &str) -> Scene {
    let member = |name: &str| queue(name).within_cohort("cohort").has(quota);
    Scene::new().queues([
        member(names[0]).within("LowerPriority").reclaim("LowerPriority"),
        member(names[1]).within("Never").reclaim("Any"),
    ])
}

/// Returns two queues with borrowing limits equal to their quotas; the second never preempts within
/// itself.
fn limited() -> Scene {
    pair(["c1", "c2"], "cpu=6+6 memory=3Gi+3Gi")
}

fn unlimited() -> Scene {
    pair(["d1", "d2"], "cpu=6 memory=3Gi")
}

fn alone_in_its_cohort() -> Scene {
    let member = queue("l1").within_cohort("legion").has("cpu=6+12 memory=3Gi+6Gi");
    Scene::new().queues([member.within("LowerPriority").reclaim("LowerPriority")])
}

fn newest_first() -> Scene {
    Scene::new().queues([queue("q").has("cpu=6").within("LowerOrNewerEqualPriority")])
}

/// Returns four queues that borrow from a large shared quota and preempt each other up to priority
/// 0 while borrowing.
fn shared() -> Scene {
    let member = |name: &str, quota: &str| queue(name).within_cohort("shared").has(quota).while_borrowing(Some(0));
    let reclaiming = |node: Node| node.within("Never").reclaim("LowerPriority");
    Scene::new().queues([
        reclaiming(member("a_standard", "cpu=1+12")),
        member("b_standard", "cpu=1+12").within("LowerPriority").reclaim("Any"),
        reclaiming(member("a_best_effort", "cpu=1+12")),
        reclaiming(member("b_best_effort", "cpu=0+13")),
        queue("pool").within_cohort("shared").has("cpu=10"),
    ])
}

fn lending() -> Scene {
    let member = |name: &str, quota: &str| {
        queue(name).within_cohort("lend").has(quota).within("LowerPriority").reclaim("LowerPriority")
    };
    Scene::new().queues([member("lend1", "cpu=6-4"), member("lend2", "cpu=6-2")])
}

fn three() -> Scene {
    let member = |name: &str| queue(name).within_cohort("three").has("cpu=2 memory=2");
    Scene::new().queues([member("a").within("LowerPriority").reclaim("Any"), member("b"), member("c")])
}

fn far_apart() -> Scene {
    use super::scene::cohort;
    Scene::new().cohorts([cohort("left").under("root"), cohort("right").under("root")]).queues([
        queue("cq-left").within_cohort("left").has("cpu=10").reclaim("Any"),
        queue("cq-right").within_cohort("right").has("cpu=0"),
    ])
}

const OWN: &str = "InClusterQueue";
const RECLAIMED: &str = "InCohortReclamation";
const BORROWING: &str = "InCohortReclaimWhileBorrowing";

#[rstest]
#[case::lowest_priority_is_preempted(
    standalone().holds("standalone", "low cpu=2 p=-1; mid cpu=2; high cpu=2 p=1").waits("standalone", "in cpu=2 p=1"),
    &[("low", OWN)])]
#[case::several_are_preempted_if_required(
    standalone().holds("standalone", "low cpu=2 p=-1; mid cpu=2; high cpu=2 p=1").waits("standalone", "in cpu=3 p=1"),
    &[("low", OWN), ("mid", OWN)])]
#[case::lowest_priority_preempts_none(
    standalone().holds("standalone", "low cpu=3 p=-1; mid cpu=3").waits("standalone", "in cpu=1 p=-1"), &[])]
#[case::none_if_targets_are_not_enough(
    standalone().holds("standalone", "low cpu=3 p=-1; mid cpu=3").waits("standalone", "in cpu=4"), &[])]
#[case::available_quota_is_used_first(
    standalone().holds("standalone", "low cpu=1 p=-1; mid cpu=1; high cpu=3 p=1").waits("standalone", "in cpu=2 p=1"),
    &[("low", OWN)])]
#[case::b42_unnecessary_target_is_filled_back(
    standalone().holds("standalone", "low cpu=1 p=-1; mid cpu=2; high cpu=3 p=1").waits("standalone", "in cpu=2 p=1"),
    &[("mid", OWN)])]
#[case::quota_is_reclaimed_from_borrower(
    limited().holds("c1", "c1-low cpu=3 p=-1").holds("c2", "c2-mid cpu=3; c2-high cpu=6 p=1").waits("c1", "in cpu=3 p=1"),
    &[("c2-mid", RECLAIMED)])]
#[case::exhausted_resource_with_zero_request_is_ignored(
    limited().holds("c1", "c1-low cpu=3 memory=3Gi p=-1").holds("c2", "c2-mid cpu=3; c2-high cpu=6 p=1")
        .waits("c1", "in cpu=3 memory=0 p=1"),
    &[("c2-mid", RECLAIMED)])]
#[case::queue_within_nominal_quota_is_not_preempted(
    limited().holds("c1", "c1-high cpu=4 p=1").holds("c2", "c2-low cpu=6 p=-1").waits("c1", "in cpu=4 p=1"), &[])]
#[case::borrowed_quota_is_not_enough(
    limited().holds("c1", "c1-high cpu=4 p=1").holds("c2", "c2-low-1 cpu=4 p=-1; c2-low-2 cpu=4 p=-1").waits("c1", "in cpu=4 p=1"),
    &[])]
#[case::within_queue_while_borrowing_another_resource(
    limited().holds("c1", "c1-low cpu=4 p=-1").holds("c2", "c2-low cpu=4 p=-1; c2-high cpu=4 p=1")
        .waits("c1", "in cpu=4 memory=5Gi p=1"),
    &[("c1-low", OWN)])]
#[case::within_queue_while_borrowing_the_same_resource(
    limited().holds("c1", "c1-med cpu=4; c1-low cpu=4 p=-1").holds("c2", "c2-low cpu=4 p=-1").waits("c1", "in cpu=4 p=1"),
    &[("c1-low", OWN)])]
#[case::within_queue_without_borrowing_limits(
    unlimited().holds("d1", "d1-med cpu=4; d1-low cpu=4 p=-1").holds("d2", "d2-low cpu=4 p=-1").waits("d1", "in cpu=4 p=1"),
    &[("d1-low", OWN)])]
#[case::preemptor_borrowing_another_resource_does_not_reclaim(
    limited().holds("c1", "c1-med cpu=4").holds("c2", "c2-low-1 cpu=5 p=-1; c2-low-2 cpu=1 p=-1; c2-low-3 cpu=1 p=-1")
        .waits("c1", "in cpu=2 memory=5Gi p=1"),
    &[("c1-med", OWN)])]
#[case::single_queue_in_cohort_acts_as_without_cohort(
    alone_in_its_cohort().holds("l1", "l1-med cpu=4; l1-low cpu=2 p=-1").waits("l1", "in cpu=4 p=1"),
    &[("l1-med", OWN)])]
#[case::equal_priority_is_not_preempted(
    limited().holds("c1", "c1 cpu=2").holds("c2", "c2-1 cpu=4; c2-2 cpu=4").waits("c1", "in cpu=4"), &[])]
#[case::reclaim_any_ignores_priority(
    limited().holds("c1", "c1-1 cpu=4; c1-2 cpu=4 p=1").holds("c2", "c2 cpu=2").waits("c2", "in cpu=4"),
    &[("c1-1", RECLAIMED)])]
#[case::within_queue_and_from_borrower(
    limited().holds("c1", "c1-low cpu=3 p=-1; c1-mid cpu=2").holds("c2", "c2-low cpu=3 p=-1; c2-mid cpu=4").waits("c1", "in cpu=4"),
    &[("c1-low", OWN), ("c2-low", RECLAIMED)])]
#[case::within_queue_never(
    limited().holds("c2", "c2-low cpu=3 p=-1").holds("c1", "c1 cpu=6").waits("c2", "in cpu=4 p=1"), &[])]
#[case::newest_of_equal_priority_is_preempted(
    newest_first().holds("q", "wl1 cpu=2 p=2; wl2 cpu=2 p=1 t=1000 r=1001; wl3 cpu=2 p=1").waits("q", "in cpu=2 p=1 t=985"),
    &[("wl2", OWN)])]
#[case::b43_borrower_preempts_lower_priority_below_threshold(
    shared().holds("a_best_effort", "a_low cpu=10 p=-1").holds("b_best_effort", "b_low cpu=1 p=-1").waits("a_standard", "in cpu=10"),
    &[("a_low", BORROWING)])]
#[case::b43_none_above_threshold_while_borrowing(
    shared().holds("b_standard", "b cpu=10 p=1").waits("a_standard", "in cpu=10 p=2"), &[])]
#[case::b43_above_threshold_without_borrowing(
    shared().holds("b_standard", "b cpu=13 p=1").waits("a_standard", "in cpu=1 p=2"),
    &[("b", RECLAIMED)])]
#[case::b43_none_within_queue_if_policy_is_never(
    shared().holds("a_standard", "a cpu=13 p=1").waits("a_standard", "in cpu=1 p=2"), &[])]
#[case::b43_within_queue_if_all_others_are_above_threshold(
    shared().holds("a_standard", "a1 cpu=10 p=1; a2 cpu=1 p=1").holds("b_standard", "b1 cpu=1 p=1; b2 cpu=1 p=2")
        .waits("b_standard", "in cpu=1 p=3"),
    &[("b1", OWN)])]
#[case::b43_within_queue_and_others_below_threshold(
    shared().holds("b_standard", "b_high cpu=10 p=2; b_mid cpu=1 p=1").holds("a_best_effort", "a_low cpu=1 p=-1; a_lower cpu=1 p=-2")
        .waits("b_standard", "in cpu=2 p=2"),
    &[("a_lower", BORROWING), ("b_mid", OWN)])]
#[case::lent_quota_is_reclaimed(
    lending().holds("lend1", "l1-low cpu=3 p=-1").holds("lend2", "l2-mid cpu=3; l2-high cpu=4 p=1").waits("lend1", "in cpu=3 p=1"),
    &[("l2-mid", RECLAIMED)])]
#[case::within_queue_and_reclaiming_lent_quota(
    lending().holds("lend1", "l1-low cpu=3 p=-1; l1-mid cpu=2").holds("lend2", "l2-low cpu=3 p=-1; l2-mid cpu=4")
        .waits("lend1", "in cpu=4"),
    &[("l1-low", OWN), ("l2-low", RECLAIMED)])]
#[case::request_above_lendable_quota_preempts_none(
    lending().holds("lend2", "l2-low cpu=10 p=-1").waits("lend1", "in cpu=9"), &[])]
#[case::queue_at_nominal_quota_preempts_within_itself(
    three().holds("a", "a1 cpu=1 p=-2; a2 cpu=1 p=-2; a3 cpu=1 p=-1").holds("b", "b1 cpu=1; b2 cpu=1; b3 cpu=1").waits("a", "in cpu=2"),
    &[("a1", OWN), ("a2", OWN)])]
#[case::queue_at_nominal_quota_of_two_resources(
    three().holds("a", "a1 cpu=1 memory=1 p=-2; a2 cpu=1 memory=1 p=-2; a3 cpu=1 memory=1 p=-1")
        .holds("b", "b1 cpu=1 memory=1; b2 cpu=1 memory=1; b3 cpu=1 memory=1").waits("a", "in cpu=2 memory=2"),
    &[("a1", OWN), ("a2", OWN)])]
#[case::queue_at_nominal_quota_of_one_of_two_resources(
    three().holds("a", "a1 cpu=1 p=-2; a2 cpu=1 p=-2; a3 cpu=1 p=-1").holds("b", "b1 cpu=1; b2 cpu=1; b3 cpu=1")
        .waits("a", "in cpu=2 memory=2"),
    &[("a1", OWN), ("a2", OWN)])]
#[case::queue_below_nominal_quota_also_reclaims(
    three().holds("a", "a1 cpu=1 p=-1").holds("b", "b1 cpu=1; b2 cpu=1; b3 cpu=1; b4 cpu=1; b5 cpu=1 p=-1").waits("a", "in cpu=2"),
    &[("a1", OWN), ("b5", RECLAIMED)])]
#[case::borrower_in_another_subtree(
    far_apart().holds("cq-right", "far cpu=5").waits("cq-left", "in cpu=8"),
    &[("far", RECLAIMED)])]
fn preemption_selects_expected_targets(#[case] mut scene: Scene, #[case] expected: &[(&str, &str)]) {
    let decided = scene.decide();

    let expected: Vec<String> = expected.iter().map(|(name, reason)| format!("{name} {reason}")).collect();
    assert_eq!(decided.evicted, expected);
    assert_eq!(decided.admitted, [""; 0], "no workload is admitted before the evictions finish");
}

/// Kueue's case has a predefined flavor; here only the second flavor has enough memory.
#[test]
fn only_workloads_in_the_assigned_flavor_are_preempted() {
    let queue = queue("q").has("cpu=6").and_group().quota("alpha", "memory=1Gi").quota("beta", "memory=3Gi");
    let mut scene = Scene::new()
        .queues([queue.within("LowerPriority")])
        .holds("q", "low memory=1Gi@alpha p=-1; mid memory=2Gi@beta; high memory=1Gi@beta p=1")
        .waits("q", "in cpu=1 memory=2Gi p=1");

    assert_eq!(scene.decide().evicted, ["mid InClusterQueue"]);
}

/// Two pod sets: the second preempts in the flavor that the first does not use.
#[test]
fn each_pod_set_can_preempt_in_a_different_flavor() {
    let mut scene = standalone()
        .holds("standalone", "low-alpha memory=2Gi@alpha p=-1; low-beta memory=2Gi@beta p=-1")
        .waits("standalone", "in +launcher memory=2Gi +workers n=2 memory=1Gi");

    assert_eq!(scene.decide().evicted, ["low-alpha InClusterQueue", "low-beta InClusterQueue"]);
    assert_eq!(scene.settle(), ["in"]);
    assert_eq!(scene.place_of("in"), "alpha|beta");
}
