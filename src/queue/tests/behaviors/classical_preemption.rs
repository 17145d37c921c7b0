//! Preemption targets by priority, and by borrowing in one cohort: the cases of Kueue's table
//! (`pkg/scheduler/preemption/preemption_test.go`, `TestPreemption`), run on the whole scheduler.

use rstest::rstest;

use super::scene::{QueueOrCohort, Scene, queue};

/// Returns a queue with CPU in one flavor and memory in two that preempts its lower priorities.
fn standalone() -> Scene {
    let alone = queue("standalone").has("cpu=6").next_group().quota("alpha", "memory=3Gi").quota("beta", "memory=3Gi");
    Scene::new().queues([alone.preempts_within("LowerPriority")])
}

fn two_queues(names: [&str; 2], quota: &str) -> Scene {
    let member = |name: &str| queue(name).within_cohort("cohort").has(quota);
    Scene::new().queues([
        member(names[0]).preempts_within("LowerPriority").reclaims("LowerPriority"),
        member(names[1]).preempts_within("Never").reclaims("Any"),
    ])
}

/// Returns two queues with borrowing limits equal to their quotas; the second never preempts within
/// itself.
fn two_with_borrowing_limits() -> Scene {
    two_queues(["c1", "c2"], "cpu=6+6 memory=3Gi+3Gi")
}

fn two_without_borrowing_limits() -> Scene {
    two_queues(["d1", "d2"], "cpu=6 memory=3Gi")
}

fn single_queue_in_cohort() -> Scene {
    let member = queue("l1").within_cohort("legion").has("cpu=6+12 memory=3Gi+6Gi");
    Scene::new().queues([member.preempts_within("LowerPriority").reclaims("LowerPriority")])
}

fn preempting_newer_equal_priority() -> Scene {
    Scene::new().queues([queue("q").has("cpu=6").preempts_within("LowerOrNewerEqualPriority")])
}

/// Returns four queues that borrow from a large shared quota and preempt each other up to priority
/// 0 while borrowing.
fn borrowers_of_a_shared_quota() -> Scene {
    let member =
        |name: &str, quota: &str| queue(name).within_cohort("shared").has(quota).preempts_while_borrowing(Some(0));
    let reclaiming = |node: QueueOrCohort| node.preempts_within("Never").reclaims("LowerPriority");
    Scene::new().queues([
        reclaiming(member("a_standard", "cpu=1+12")),
        member("b_standard", "cpu=1+12").preempts_within("LowerPriority").reclaims("Any"),
        reclaiming(member("a_best_effort", "cpu=1+12")),
        reclaiming(member("b_best_effort", "cpu=0+13")),
        queue("pool").within_cohort("shared").has("cpu=10"),
    ])
}

fn with_lending_limits() -> Scene {
    let member = |name: &str, quota: &str| {
        queue(name).within_cohort("lend").has(quota).preempts_within("LowerPriority").reclaims("LowerPriority")
    };
    Scene::new().queues([member("lend1", "cpu=6-4"), member("lend2", "cpu=6-2")])
}

fn three_queues() -> Scene {
    let member = |name: &str| queue(name).within_cohort("three").has("cpu=2 memory=2");
    Scene::new().queues([member("a").preempts_within("LowerPriority").reclaims("Any"), member("b"), member("c")])
}

fn queues_in_separate_subtrees() -> Scene {
    use super::scene::cohort;
    Scene::new().cohorts([cohort("left").with_parent("root"), cohort("right").with_parent("root")]).queues([
        queue("cq-left").within_cohort("left").has("cpu=10").reclaims("Any"),
        queue("cq-right").within_cohort("right").has("cpu=0"),
    ])
}

const IN_CLUSTER_QUEUE: &str = "InClusterQueue";
const RECLAMATION: &str = "InCohortReclamation";
const RECLAIM_WHILE_BORROWING: &str = "InCohortReclaimWhileBorrowing";

#[rstest]
#[case::lowest_priority_is_preempted(
    standalone().admitted("standalone", "low cpu=2 p=-1; mid cpu=2; high cpu=2 p=1").pending("standalone", "in cpu=2 p=1"),
    &[("low", IN_CLUSTER_QUEUE)])]
#[case::several_are_preempted_if_required(
    standalone().admitted("standalone", "low cpu=2 p=-1; mid cpu=2; high cpu=2 p=1").pending("standalone", "in cpu=3 p=1"),
    &[("low", IN_CLUSTER_QUEUE), ("mid", IN_CLUSTER_QUEUE)])]
#[case::lowest_priority_preempts_none(
    standalone().admitted("standalone", "low cpu=3 p=-1; mid cpu=3").pending("standalone", "in cpu=1 p=-1"), &[])]
#[case::none_if_targets_are_not_enough(
    standalone().admitted("standalone", "low cpu=3 p=-1; mid cpu=3").pending("standalone", "in cpu=4"), &[])]
#[case::available_quota_is_used_first(
    standalone().admitted("standalone", "low cpu=1 p=-1; mid cpu=1; high cpu=3 p=1").pending("standalone", "in cpu=2 p=1"),
    &[("low", IN_CLUSTER_QUEUE)])]
#[case::b42_unnecessary_target_is_filled_back(
    standalone().admitted("standalone", "low cpu=1 p=-1; mid cpu=2; high cpu=3 p=1").pending("standalone", "in cpu=2 p=1"),
    &[("mid", IN_CLUSTER_QUEUE)])]
#[case::quota_is_reclaimed_from_borrower(
    two_with_borrowing_limits().admitted("c1", "c1-low cpu=3 p=-1").admitted("c2", "c2-mid cpu=3; c2-high cpu=6 p=1").pending("c1", "in cpu=3 p=1"),
    &[("c2-mid", RECLAMATION)])]
#[case::exhausted_resource_with_zero_request_is_ignored(
    two_with_borrowing_limits().admitted("c1", "c1-low cpu=3 memory=3Gi p=-1").admitted("c2", "c2-mid cpu=3; c2-high cpu=6 p=1")
        .pending("c1", "in cpu=3 memory=0 p=1"),
    &[("c2-mid", RECLAMATION)])]
#[case::queue_within_nominal_quota_is_not_preempted(
    two_with_borrowing_limits().admitted("c1", "c1-high cpu=4 p=1").admitted("c2", "c2-low cpu=6 p=-1").pending("c1", "in cpu=4 p=1"), &[])]
#[case::borrowed_quota_is_not_enough(
    two_with_borrowing_limits().admitted("c1", "c1-high cpu=4 p=1").admitted("c2", "c2-low-1 cpu=4 p=-1; c2-low-2 cpu=4 p=-1").pending("c1", "in cpu=4 p=1"),
    &[])]
#[case::within_queue_while_borrowing_another_resource(
    two_with_borrowing_limits().admitted("c1", "c1-low cpu=4 p=-1").admitted("c2", "c2-low cpu=4 p=-1; c2-high cpu=4 p=1")
        .pending("c1", "in cpu=4 memory=5Gi p=1"),
    &[("c1-low", IN_CLUSTER_QUEUE)])]
#[case::within_queue_while_borrowing_the_same_resource(
    two_with_borrowing_limits().admitted("c1", "c1-med cpu=4; c1-low cpu=4 p=-1").admitted("c2", "c2-low cpu=4 p=-1").pending("c1", "in cpu=4 p=1"),
    &[("c1-low", IN_CLUSTER_QUEUE)])]
#[case::within_queue_without_borrowing_limits(
    two_without_borrowing_limits().admitted("d1", "d1-med cpu=4; d1-low cpu=4 p=-1").admitted("d2", "d2-low cpu=4 p=-1").pending("d1", "in cpu=4 p=1"),
    &[("d1-low", IN_CLUSTER_QUEUE)])]
#[case::preemptor_borrowing_another_resource_does_not_reclaim(
    two_with_borrowing_limits().admitted("c1", "c1-med cpu=4").admitted("c2", "c2-low-1 cpu=5 p=-1; c2-low-2 cpu=1 p=-1; c2-low-3 cpu=1 p=-1")
        .pending("c1", "in cpu=2 memory=5Gi p=1"),
    &[("c1-med", IN_CLUSTER_QUEUE)])]
#[case::single_queue_in_cohort_acts_as_without_cohort(
    single_queue_in_cohort().admitted("l1", "l1-med cpu=4; l1-low cpu=2 p=-1").pending("l1", "in cpu=4 p=1"),
    &[("l1-med", IN_CLUSTER_QUEUE)])]
#[case::equal_priority_is_not_preempted(
    two_with_borrowing_limits().admitted("c1", "c1 cpu=2").admitted("c2", "c2-1 cpu=4; c2-2 cpu=4").pending("c1", "in cpu=4"), &[])]
#[case::reclaim_any_ignores_priority(
    two_with_borrowing_limits().admitted("c1", "c1-1 cpu=4; c1-2 cpu=4 p=1").admitted("c2", "c2 cpu=2").pending("c2", "in cpu=4"),
    &[("c1-1", RECLAMATION)])]
#[case::within_queue_and_from_borrower(
    two_with_borrowing_limits().admitted("c1", "c1-low cpu=3 p=-1; c1-mid cpu=2").admitted("c2", "c2-low cpu=3 p=-1; c2-mid cpu=4").pending("c1", "in cpu=4"),
    &[("c1-low", IN_CLUSTER_QUEUE), ("c2-low", RECLAMATION)])]
#[case::within_queue_never(
    two_with_borrowing_limits().admitted("c2", "c2-low cpu=3 p=-1").admitted("c1", "c1 cpu=6").pending("c2", "in cpu=4 p=1"), &[])]
#[case::newest_of_equal_priority_is_preempted(
    preempting_newer_equal_priority().admitted("q", "wl1 cpu=2 p=2; wl2 cpu=2 p=1 t=1000 r=1001; wl3 cpu=2 p=1").pending("q", "in cpu=2 p=1 t=985"),
    &[("wl2", IN_CLUSTER_QUEUE)])]
#[case::b43_borrower_preempts_lower_priority_below_threshold(
    borrowers_of_a_shared_quota().admitted("a_best_effort", "a_low cpu=10 p=-1").admitted("b_best_effort", "b_low cpu=1 p=-1").pending("a_standard", "in cpu=10"),
    &[("a_low", RECLAIM_WHILE_BORROWING)])]
#[case::b43_none_above_threshold_while_borrowing(
    borrowers_of_a_shared_quota().admitted("b_standard", "b cpu=10 p=1").pending("a_standard", "in cpu=10 p=2"), &[])]
#[case::b43_above_threshold_without_borrowing(
    borrowers_of_a_shared_quota().admitted("b_standard", "b cpu=13 p=1").pending("a_standard", "in cpu=1 p=2"),
    &[("b", RECLAMATION)])]
#[case::b43_none_within_queue_if_policy_is_never(
    borrowers_of_a_shared_quota().admitted("a_standard", "a cpu=13 p=1").pending("a_standard", "in cpu=1 p=2"), &[])]
#[case::b43_within_queue_if_all_others_are_above_threshold(
    borrowers_of_a_shared_quota().admitted("a_standard", "a1 cpu=10 p=1; a2 cpu=1 p=1").admitted("b_standard", "b1 cpu=1 p=1; b2 cpu=1 p=2")
        .pending("b_standard", "in cpu=1 p=3"),
    &[("b1", IN_CLUSTER_QUEUE)])]
#[case::b43_within_queue_and_others_below_threshold(
    borrowers_of_a_shared_quota().admitted("b_standard", "b_high cpu=10 p=2; b_mid cpu=1 p=1").admitted("a_best_effort", "a_low cpu=1 p=-1; a_lower cpu=1 p=-2")
        .pending("b_standard", "in cpu=2 p=2"),
    &[("a_lower", RECLAIM_WHILE_BORROWING), ("b_mid", IN_CLUSTER_QUEUE)])]
#[case::lent_quota_is_reclaimed(
    with_lending_limits().admitted("lend1", "l1-low cpu=3 p=-1").admitted("lend2", "l2-mid cpu=3; l2-high cpu=4 p=1").pending("lend1", "in cpu=3 p=1"),
    &[("l2-mid", RECLAMATION)])]
#[case::within_queue_and_reclaiming_lent_quota(
    with_lending_limits().admitted("lend1", "l1-low cpu=3 p=-1; l1-mid cpu=2").admitted("lend2", "l2-low cpu=3 p=-1; l2-mid cpu=4")
        .pending("lend1", "in cpu=4"),
    &[("l1-low", IN_CLUSTER_QUEUE), ("l2-low", RECLAMATION)])]
#[case::request_above_lendable_quota_preempts_none(
    with_lending_limits().admitted("lend2", "l2-low cpu=10 p=-1").pending("lend1", "in cpu=9"), &[])]
#[case::queue_at_nominal_quota_preempts_within_itself(
    three_queues().admitted("a", "a1 cpu=1 p=-2; a2 cpu=1 p=-2; a3 cpu=1 p=-1").admitted("b", "b1 cpu=1; b2 cpu=1; b3 cpu=1").pending("a", "in cpu=2"),
    &[("a1", IN_CLUSTER_QUEUE), ("a2", IN_CLUSTER_QUEUE)])]
#[case::queue_at_nominal_quota_of_two_resources(
    three_queues().admitted("a", "a1 cpu=1 memory=1 p=-2; a2 cpu=1 memory=1 p=-2; a3 cpu=1 memory=1 p=-1")
        .admitted("b", "b1 cpu=1 memory=1; b2 cpu=1 memory=1; b3 cpu=1 memory=1").pending("a", "in cpu=2 memory=2"),
    &[("a1", IN_CLUSTER_QUEUE), ("a2", IN_CLUSTER_QUEUE)])]
#[case::queue_at_nominal_quota_of_one_of_two_resources(
    three_queues().admitted("a", "a1 cpu=1 p=-2; a2 cpu=1 p=-2; a3 cpu=1 p=-1").admitted("b", "b1 cpu=1; b2 cpu=1; b3 cpu=1")
        .pending("a", "in cpu=2 memory=2"),
    &[("a1", IN_CLUSTER_QUEUE), ("a2", IN_CLUSTER_QUEUE)])]
#[case::queue_below_nominal_quota_also_reclaims(
    three_queues().admitted("a", "a1 cpu=1 p=-1").admitted("b", "b1 cpu=1; b2 cpu=1; b3 cpu=1; b4 cpu=1; b5 cpu=1 p=-1").pending("a", "in cpu=2"),
    &[("a1", IN_CLUSTER_QUEUE), ("b5", RECLAMATION)])]
#[case::borrower_in_another_subtree(
    queues_in_separate_subtrees().admitted("cq-right", "far cpu=5").pending("cq-left", "in cpu=8"),
    &[("far", RECLAMATION)])]
fn preemption_selects_expected_targets(#[case] mut scene: Scene, #[case] expected: &[(&str, &str)]) {
    let decided = scene.decide();

    let expected: Vec<String> = expected.iter().map(|(name, reason)| format!("{name} {reason}")).collect();
    assert_eq!(decided.evicted, expected);
    assert_eq!(decided.admitted, [""; 0], "no workload is admitted before the evictions finish");
}

/// Kueue's case has a predefined flavor; here only the second flavor has enough memory.
#[test]
fn only_workloads_in_the_assigned_flavor_are_preempted() {
    let queue = queue("q").has("cpu=6").next_group().quota("alpha", "memory=1Gi").quota("beta", "memory=3Gi");
    let mut scene = Scene::new()
        .queues([queue.preempts_within("LowerPriority")])
        .admitted("q", "low memory=1Gi@alpha p=-1; mid memory=2Gi@beta; high memory=1Gi@beta p=1")
        .pending("q", "in cpu=1 memory=2Gi p=1");

    assert_eq!(scene.decide().evicted, ["mid InClusterQueue"]);
}

/// Two pod sets: the second preempts in the flavor that the first does not use.
#[test]
fn each_pod_set_can_preempt_in_a_different_flavor() {
    let mut scene = standalone()
        .admitted("standalone", "low-alpha memory=2Gi@alpha p=-1; low-beta memory=2Gi@beta p=-1")
        .pending("standalone", "in +launcher memory=2Gi +workers n=2 memory=1Gi");

    assert_eq!(scene.decide().evicted, ["low-alpha InClusterQueue", "low-beta InClusterQueue"]);
    assert_eq!(scene.run_with_evictions(), ["in"]);
    assert_eq!(scene.flavors_of("in"), "alpha|beta");
}
