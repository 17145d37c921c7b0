//! Preemption targets under fair sharing: the cases of Kueue's table
//! (`pkg/scheduler/preemption/preemption_fair_test.go`), run on the whole scheduler. B45–B47.

use rstest::rstest;

use super::scene::{QueueOrCohort, Scene, cohort, queue};
use crate::settings::PreemptionStrategy;

const IN_CLUSTER_QUEUE: &str = "InClusterQueue";
const RECLAMATION: &str = "InCohortReclamation";
const FAIR_SHARING: &str = "InCohortFairSharing";

fn member(name: &str, cohort: &str, quota: &str) -> QueueOrCohort {
    queue(name).within_cohort(cohort).has(quota)
}

fn reclaiming_member(name: &str, cohort: &str, quota: &str) -> QueueOrCohort {
    member(name, cohort, quota).reclaims("Any")
}

fn with_three_queues(scene: Scene) -> Scene {
    let equal = |name: &str| {
        reclaiming_member(name, "all", "cpu=3").preempts_within("LowerPriority").preempts_while_borrowing(Some(-3))
    };
    scene.queues([equal("a"), equal("b"), equal("c"), member("preemptible", "all", "cpu=0")])
}

/// Returns three queues of 3 CPUs each in one cohort, and one without quota.
fn three_queues() -> Scene {
    with_three_queues(Scene::fair_sharing())
}

/// Returns three queues of 3 CPUs each in one cohort, the first two with these weights.
fn three_weighted_queues(weight_a: &str, weight_b: &str) -> Scene {
    let plain = |name: &str| reclaiming_member(name, "all", "cpu=3").preempts_within("LowerPriority");
    Scene::fair_sharing().queues([plain("a").weight(weight_a), plain("b").weight(weight_b), plain("c")])
}

/// Returns `count` workloads of 1 CPU, named `{prefix}1 … {prefix}N`.
fn unit_workloads(prefix: &str, count: usize) -> String {
    let units: Vec<String> = (1..=count).map(|number| format!("{prefix}{number} cpu=1")).collect();
    units.join("; ")
}

fn workloads_of_rising_priority(prefix: &str) -> String {
    let units: Vec<String> = (1..=5).map(|number| format!("{prefix}{number} cpu=1 p={number}")).collect();
    units.join("; ")
}

/// Returns Cohorts of 5 CPUs and queues of 1 each: root{left{a, b}, c, right{d, e}}; all quota is
/// used by queues other than `a`.
fn tree_of_five_queues() -> Scene {
    Scene::fair_sharing()
        .cohorts([cohort("root").has("cpu=5"), cohort("left").with_parent("root").has("cpu=5").weight("2")])
        .cohorts([cohort("right").with_parent("root").has("cpu=5")])
        .queues([
            reclaiming_member("a", "left", "cpu=1").weight("2"),
            member("b", "left", "cpu=1"),
            member("c", "root", "cpu=1"),
        ])
        .queues([member("d", "right", "cpu=1"), member("e", "right", "cpu=1").weight("0.99")])
        .admitted("b", &workloads_of_rising_priority("b"))
        .admitted("c", &workloads_of_rising_priority("c"))
        .admitted("d", &workloads_of_rising_priority("d"))
        .admitted("e", &workloads_of_rising_priority("e"))
}

/// Returns a queue with quota and weight, and a sibling Cohort of this quota with a queue without
/// quota.
fn queue_with_sibling_cohort(reclaim: &str, quota: &str) -> Scene {
    let a = member("a", "root", "cpu=5").weight("10").preempts_within("LowerPriority").reclaims(reclaim);
    Scene::fair_sharing()
        .cohorts([cohort("root"), cohort("right").with_parent("root").has(quota).weight("0.1")])
        .queues([a, member("b", "right", "cpu=0").weight("0.1")])
}

/// Returns queues at the ends of two long subtrees, and quota at the end of a third.
fn long_subtrees() -> Scene {
    let branch = |names: [&'static str; 3], weight: &str| {
        let top = cohort(names[0]).with_parent("root").weight(weight);
        [top, cohort(names[1]).with_parent(names[0]), cohort(names[2]).with_parent(names[1])]
    };
    Scene::fair_sharing()
        .cohorts([cohort("root")])
        .cohorts(branch(["a1c", "a2c", "a3c"], "1.01"))
        .cohorts(branch(["b1c", "b2c", "b3c"], "0.99"))
        .cohorts(branch(["c1c", "c2c", "c3c"], "1"))
        .cohorts([cohort("c4c").with_parent("c3c").has("cpu=1")])
        .queues([reclaiming_member("a", "a3c", "cpu=0"), member("b", "b3c", "cpu=0")])
}

/// Returns two queues that share the 12 CPUs of their Cohort: `a` has used 2 of them, `b` 8, and a
/// workload of higher priority in `a` requests 5.
fn newcomer_above_its_share_with_own_workload(scene: Scene) -> Scene {
    let member = |name: &str| reclaiming_member(name, "all", "cpu=0").preempts_within("LowerPriority");
    scene
        .cohorts([cohort("all").has("cpu=12")])
        .queues([member("a"), member("b")])
        .admitted("a", "low cpu=2")
        .admitted("b", "b1 cpu=2; b2 cpu=2; b3 cpu=2; b4 cpu=2")
        .pending("a", "high cpu=5 p=100")
}

fn two_queues(a: QueueOrCohort, b: QueueOrCohort) -> Scene {
    Scene::fair_sharing().queues([a, b])
}

fn two_queues_with_two_flavors() -> Scene {
    let a = queue("a").within_cohort("all").quota("premium", "cpu=3").quota("cheap", "cpu=0");
    let b = queue("b").within_cohort("all").quota("premium", "cpu=0").quota("cheap", "cpu=6");
    Scene::fair_sharing().queues([a.reclaims("Any").flavor_fungibility("MayStopSearch", "MayStopSearch"), b])
}

#[rstest]
#[case::b45_reclaims_nominal_quota_from_largest_borrower(
    three_queues().admitted("a", &unit_workloads("a", 3)).admitted("b", &unit_workloads("b", 5)).admitted("c", "c1 cpu=1").pending("c", "in cpu=1"),
    &[("b1", RECLAMATION)])]
#[case::smaller_borrower_if_largest_is_not_enough(
    three_queues().admitted("a", "a1 cpu=3; a2 cpu=1").admitted("b", "b1 cpu=2; b2 cpu=3").pending("c", "in cpu=3"),
    &[("a1", RECLAMATION)])]
#[case::b45_borrows_from_largest_borrower(
    three_queues().admitted("a", &unit_workloads("a", 3)).admitted("b", &unit_workloads("b", 5)).admitted("c", "c1 cpu=1").pending("a", "in cpu=1"),
    &[("b1", FAIR_SHARING)])]
#[case::one_target_from_each_borrower(
    three_queues().admitted("a", "a1 cpu=0.5; a2 cpu=0.5; a3 cpu=3").admitted("b", "b1 cpu=0.5; b2 cpu=0.5; b3 cpu=3").pending("c", "in cpu=2"),
    &[("a1", RECLAMATION), ("b1", RECLAMATION)])]
#[case::none_if_no_queue_borrows(
    three_queues().admitted("a", &unit_workloads("a", 3)).admitted("b", &unit_workloads("b", 3)).admitted("c", &unit_workloads("c", 3)).pending("c", "in cpu=1"), &[])]
#[case::b45_none_if_imbalance_would_be_inverted(
    three_queues().admitted("a", &unit_workloads("a", 3)).admitted("b", &unit_workloads("b", 5)).pending("a", "in cpu=2"), &[])]
#[case::lower_priorities_within_queue(
    three_queues().admitted("a", "a1 cpu=1 p=-1; a2 cpu=1 p=-1; a3 cpu=1; a4 cpu=1").admitted("b", &unit_workloads("b", 5)).pending("a", "in cpu=2"),
    &[("a1", IN_CLUSTER_QUEUE), ("a2", IN_CLUSTER_QUEUE)])]
#[case::within_queue_and_from_largest_borrower(
    three_queues().admitted("a", "a1 cpu=1 p=-1; a2 cpu=1; a3 cpu=1").admitted("b", &unit_workloads("b", 6)).pending("a", "in cpu=2"),
    &[("a1", IN_CLUSTER_QUEUE), ("b1", FAIR_SHARING)])]
#[case::huge_workload_if_it_is_the_only_one(
    three_queues().admitted("b", "b1 cpu=9").pending("a", "in cpu=2"), &[("b1", RECLAMATION)])]
#[case::huge_workload_does_not_preempt_huge_one(
    three_queues().admitted("a", "a1 cpu=2").admitted("b", "b1 cpu=7").pending("a", "in cpu=5"), &[])]
#[case::huge_workload_does_not_preempt_small_ones(
    three_queues().admitted("b", "b1 cpu=2; b2 cpu=2; b3 cpu=3").pending("a", "in cpu=6"), &[])]
#[case::within_queue_and_others_while_borrowing(
    three_queues().admitted("a", "a1 cpu=2 p=-1; a2 cpu=1 p=-1").admitted("b", "b1 cpu=3; b2 cpu=3").pending("a", "in cpu=4"),
    &[("a1", IN_CLUSTER_QUEUE), ("b1", FAIR_SHARING)])]
#[case::b46_target_that_leaves_preemptor_the_smaller_share(
    three_queues().admitted("b", "b1 cpu=2; b2 cpu=1; b3 cpu=2").admitted("c", "c1 cpu=1").pending("a", "in cpu=3.5"), &[("b2", FAIR_SHARING)])]
#[case::b46_targets_of_several_queues_reduce_the_largest_share(
    three_queues().admitted("b", "b1 cpu=2; b2 cpu=2.5").admitted("c", "c1 cpu=2; c2 cpu=2.5").pending("a", "in cpu=3.5"),
    &[("b1", FAIR_SHARING), ("c1", FAIR_SHARING)])]
#[case::b46_no_preemption_in_the_opposite_direction(
    three_queues().admitted("a", "a1 cpu=3.5").admitted("b", "b2 cpu=2.5").admitted("c", "c2 cpu=2.5").pending("b", "in cpu=2"), &[])]
#[case::none_that_leaves_a_queue_below_nominal_quota(
    three_queues().admitted("b", "b1 cpu=3; b2 cpu=3").admitted("c", "c1 cpu=3").pending("a", "in cpu=4"), &[])]
#[case::priority_threshold_is_ignored(
    three_queues().admitted("a", &unit_workloads("a", 3)).admitted("b", &unit_workloads("b", 3)).admitted("preemptible", "p1 cpu=1 p=-3; p2 cpu=1 p=-3; p3 cpu=1 p=-3")
        .pending("a", "in cpu=2"),
    &[])]
#[case::initial_share_strategy_prefers_lower_priority(
    with_three_queues(Scene::fair_sharing_by(PreemptionStrategy::LessThanInitialShare))
        .admitted("a", "a1 cpu=3").admitted("b", "low cpu=5; high cpu=1 p=1").pending("a", "in cpu=1"),
    &[("low", FAIR_SHARING)])]
#[case::final_share_strategy_prefers_balance(
    with_three_queues(Scene::fair_sharing_by(PreemptionStrategy::LessThanOrEqualToFinalShare))
        .admitted("a", "a1 cpu=3").admitted("b", "low cpu=5; high cpu=1 p=1").pending("a", "in cpu=1"),
    &[("high", FAIR_SHARING)])]
#[case::larger_weight_gets_larger_share(
    three_weighted_queues("2", "1").admitted("a", &unit_workloads("a", 3)).admitted("b", &unit_workloads("b", 6)).pending("a", "in cpu=2"), &[("b1", FAIR_SHARING), ("b2", FAIR_SHARING)])]
#[case::b47_all_borrowed_quota_of_zero_weight_queue(
    three_weighted_queues("1", "0").admitted("a", &unit_workloads("a", 3)).admitted("b", &unit_workloads("b", 6)).pending("a", "in cpu=3"),
    &[("b1", FAIR_SHARING), ("b2", FAIR_SHARING), ("b3", FAIR_SHARING)])]
#[case::b47_nominal_quota_of_zero_weight_queue_is_protected(
    two_queues(reclaiming_member("a", "all", "cpu=3").preempts_within("LowerPriority"), reclaiming_member("b", "all", "cpu=3").preempts_within("LowerPriority").weight("0"))
        .admitted("a", &unit_workloads("a", 3)).admitted("b", &unit_workloads("b", 3)).pending("a", "in cpu=1"),
    &[])]
#[case::b47_quota_of_zero_weight_cohort_is_protected(
    Scene::fair_sharing().cohorts([cohort("right").with_parent("root").has("cpu=1").weight("0")])
        .queues([reclaiming_member("left", "root", "cpu=0"), reclaiming_member("r", "right", "cpu=0").weight("0")])
        .admitted("r", "r1 cpu=1").pending("left", "in cpu=1"),
    &[])]
#[case::within_queue_without_cohort(
    Scene::fair_sharing().queues([queue("a").has("cpu=1").preempts_within("LowerPriority")]).admitted("a", "a1 cpu=1").pending("a", "in cpu=1 p=1000"),
    &[("a1", IN_CLUSTER_QUEUE)])]
#[case::targets_across_the_tree(
    tree_of_five_queues().pending("a", "in cpu=5"), &[("b1", FAIR_SHARING), ("b2", FAIR_SHARING), ("c1", FAIR_SHARING), ("c2", FAIR_SHARING), ("e1", FAIR_SHARING)])]
#[case::borrower_in_non_borrowing_cohort_is_protected(
    queue_with_sibling_cohort("Any", "cpu=1").admitted("a", "a1 cpu=1 p=-1; a2 cpu=1 p=-1; a3 cpu=1 p=-1").admitted("b", "b1 cpu=1 p=-1").pending("a", "in cpu=5"),
    &[("a1", IN_CLUSTER_QUEUE), ("a2", IN_CLUSTER_QUEUE), ("a3", IN_CLUSTER_QUEUE)])]
#[case::within_queue_if_borrower_has_higher_priority(
    queue_with_sibling_cohort("LowerPriority", "cpu=3").admitted("a", "a1 cpu=1 p=-1; a2 cpu=1 p=-1; a3 cpu=1 p=-1").admitted("b", "b1 cpu=4 p=100")
        .pending("a", "in cpu=4"),
    &[("a1", IN_CLUSTER_QUEUE), ("a2", IN_CLUSTER_QUEUE), ("a3", IN_CLUSTER_QUEUE)])]
#[case::distant_queues_compare_by_weight_of_subtrees(
    long_subtrees().admitted("b", "b1 cpu=1").pending("a", "in cpu=1"), &[("b1", FAIR_SHARING)])]
#[case::zero_weight_queue_reclaims_nominal_quota(
    two_queues(reclaiming_member("a", "root", "cpu=1").weight("0"), member("b", "root", "cpu=0").weight("1")).admitted("b", "b1 cpu=1").pending("a", "in cpu=1"),
    &[("b1", RECLAMATION)])]
#[case::zero_weight_cohort_reclaims_its_quota(
    two_queues(reclaiming_member("a", "ac", "cpu=0").weight("0"), member("b", "root", "cpu=0").weight("1"))
        .cohorts([cohort("ac").with_parent("root").has("cpu=1").weight("0")]).admitted("b", "b1 cpu=1").pending("a", "in cpu=1"),
    &[("b1", FAIR_SHARING)])]
#[case::nominal_quota_of_a_flavor_despite_borrowing_another(
    two_queues_with_two_flavors()
        .admitted("a", "p1 cpu=1@premium; p2 cpu=1@premium; c1 cpu=1@cheap; c2 cpu=1@cheap; c3 cpu=1@cheap; c4 cpu=1@cheap; c5 cpu=1@cheap")
        .admitted("b", "bp cpu=1@premium").pending("a", "in cpu=1"),
    &[("bp", RECLAMATION)])]
#[case::b47_zero_weight_borrower_preempts_none_with_weight(
    two_queues(reclaiming_member("a", "all", "cpu=1").weight("0"), member("b", "all", "cpu=1").weight("1"))
        .admitted("a", "a1 cpu=1").admitted("b", "b1 cpu=1; b2 cpu=1").pending("a", "in cpu=1"),
    &[])]
#[case::b47_zero_weight_borrower_preempts_another_with_zero_weight(
    two_queues(reclaiming_member("a", "all", "cpu=1").weight("0"), member("b", "all", "cpu=0").weight("0"))
        .cohorts([cohort("all").has("cpu=3")]).admitted("b", "b1 cpu=1; b2 cpu=1; b3 cpu=1").pending("a", "in cpu=2"),
    &[("b1", FAIR_SHARING)])]
#[case::weighted_borrower_preempts_another_with_weight(
    two_queues(reclaiming_member("a", "all", "cpu=1").weight("1"), member("b", "all", "cpu=0").weight("1"))
        .cohorts([cohort("all").has("cpu=3")]).admitted("b", "b1 cpu=1; b2 cpu=1; b3 cpu=1").pending("a", "in cpu=2"),
    &[("b1", FAIR_SHARING)])]
#[case::second_strategy_selects_candidates_kept_by_the_first(
    Scene::fair_sharing().cohorts([cohort("ac").with_parent("root").has("cpu=1").weight("0")])
        .queues([reclaiming_member("p", "ac", "cpu=2"), member("y", "ac", "cpu=2"), member("x", "root", "cpu=1")])
        .admitted("p", "p1 cpu=2").admitted("y", "y1 cpu=2; y2 cpu=2").admitted("x", "x1 cpu=1; x2 cpu=1").pending("p", "in cpu=1"),
    &[("x1", FAIR_SHARING), ("y1", FAIR_SHARING)])]
#[case::own_workload_makes_way_for_the_final_share_strategy(
    newcomer_above_its_share_with_own_workload(Scene::fair_sharing_by(PreemptionStrategy::LessThanOrEqualToFinalShare)),
    &[("b1", FAIR_SHARING), ("low", IN_CLUSTER_QUEUE)])]
#[case::own_workload_makes_way_for_the_initial_share_strategy(
    newcomer_above_its_share_with_own_workload(Scene::fair_sharing_by(PreemptionStrategy::LessThanInitialShare)),
    &[("b1", FAIR_SHARING), ("low", IN_CLUSTER_QUEUE)])]
#[case::own_workload_makes_way_for_both_strategies(
    newcomer_above_its_share_with_own_workload(Scene::fair_sharing()),
    &[("b1", FAIR_SHARING), ("low", IN_CLUSTER_QUEUE)])]
fn fair_sharing_preempts_queues_with_larger_share(#[case] mut scene: Scene, #[case] expected: &[(&str, &str)]) {
    let decided = scene.decide();

    let expected: Vec<String> = expected.iter().map(|(name, reason)| format!("{name} {reason}")).collect();
    assert_eq!(decided.evicted, expected);
    assert_eq!(decided.admitted, [""; 0], "no workload is admitted before the evictions finish");
}

#[test]
fn borrower_does_not_preempt_workload_that_would_reclaim_back() {
    // Given a ClusterQueue of weight 0 that borrows 3; one of its workloads fits into its nominal
    // quota.
    let member = |name: &str, nominal: &str| queue(name).within_cohort("c").has(nominal);
    let mut scene = Scene::fair_sharing()
        .queues([
            member("team", "cpu=3").weight("0").reclaims("Any"),
            member("batch", "cpu=3").reclaims("LowerPriority"),
            member("spare", "cpu=6"),
        ])
        .admitted("team", "own cpu=2 p=-1; more cpu=4 p=-1");

    // When another queue requests to borrow what only preempting both would free.
    scene.submit_to("batch", "large cpu=11");

    // Then it stays pending: the first would reclaim its quota, the second would borrow again, and
    // so on endlessly.
    assert_eq!(scene.run_with_evictions(), [""; 0]);
    assert_eq!(scene.holders(), ["more", "own"]);

    // And the borrowed quota is preempted when that alone is enough.
    scene.submit_to("batch", "smaller cpu=10 p=1");
    assert_eq!(scene.run_with_evictions(), ["smaller"]);
    assert_eq!(scene.holders(), ["own", "smaller"]);
}

#[test]
fn borrower_does_not_preempt_if_pending_workload_would_reclaim_back() {
    // Given a ClusterQueue that borrows, and a pending workload that would fit into its nominal
    // quota.
    let mut scene = Scene::fair_sharing()
        .queues([
            reclaiming_member("team", "all", "cpu=2").preempts_within("LowerPriority").weight("0"),
            reclaiming_member("batch", "all", "cpu=1"),
        ])
        .admitted("team", "tall cpu=3 p=1")
        .pending("team", "small cpu=1");

    // When another queue requests all of the quota.
    scene.submit_to("batch", "wide cpu=3");

    // Then it stays pending: `small` would reclaim its part, `tall` would take its place, and so on
    // endlessly.
    assert_eq!(scene.run_with_evictions(), [""; 0]);
    assert_eq!(scene.holders(), ["tall"]);
}

#[test]
fn preemptor_reclaiming_nominal_quota_does_not_end_up_borrowing() {
    // Given a workload in the same ClusterQueue and a borrower in another, both of which an older
    // workload has to preempt.
    let mut scene = Scene::fair_sharing()
        .cohorts([cohort("all").has("cpu=1")])
        .queues([
            reclaiming_member("team", "all", "cpu=2").preempts_within("LowerOrNewerEqualPriority").weight("0"),
            member("batch", "all", "cpu=1").reclaims("LowerPriority"),
        ])
        .admitted("team", "newer cpu=1")
        .admitted("batch", "wide cpu=3 p=1");

    // When the older workload is created.
    scene.submit_to("team", "older cpu=2 t=940");

    // Then both are preempted: if `newer` stayed, `older` would borrow the quota of `wide`, lose it
    // again, and so on endlessly.
    assert_eq!(scene.decide().evicted, [format!("newer {IN_CLUSTER_QUEUE}"), format!("wide {FAIR_SHARING}")]);
}
