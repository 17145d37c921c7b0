//! Preemption targets under fair sharing: the cases of Kueue's table
//! (`pkg/scheduler/preemption/preemption_fair_test.go`), run on the whole scheduler. B45–B47.

use rstest::rstest;

use super::scene::{Node, Scene, cohort, queue};
use crate::settings::PreemptionStrategy;

const OWN: &str = "InClusterQueue";
const RECLAIMED: &str = "InCohortReclamation";
const FAIR: &str = "InCohortFairSharing";

fn member(name: &str, cohort: &str, quota: &str) -> Node {
    queue(name).within_cohort(cohort).has(quota)
}

fn taking(name: &str, cohort: &str, quota: &str) -> Node {
    member(name, cohort, quota).reclaim("Any")
}

fn three_in(scene: Scene) -> Scene {
    let equal = |name: &str| taking(name, "all", "cpu=3").within("LowerPriority").while_borrowing(Some(-3));
    scene.queues([equal("a"), equal("b"), equal("c"), member("preemptible", "all", "cpu=0")])
}

/// Returns three queues of 3 CPUs each in one cohort, and one without quota.
fn three() -> Scene {
    three_in(Scene::fair())
}

/// Returns three queues of 3 CPUs each in one cohort, the first two with these weights.
fn weighing(weight_a: &str, weight_b: &str) -> Scene {
    let plain = |name: &str| taking(name, "all", "cpu=3").within("LowerPriority");
    Scene::fair().queues([plain("a").weight(weight_a), plain("b").weight(weight_b), plain("c")])
}

/// Returns `count` workloads of 1 CPU, named `{prefix}1 … {prefix}N`.
fn units(prefix: &str, count: usize) -> String {
    let units: Vec<String> = (1..=count).map(|number| format!("{prefix}{number} cpu=1")).collect();
    units.join("; ")
}

fn rising(prefix: &str) -> String {
    let units: Vec<String> = (1..=5).map(|number| format!("{prefix}{number} cpu=1 p={number}")).collect();
    units.join("; ")
}

/// Returns Cohorts of 5 CPUs and queues of 1 each: root{left{a, b}, c, right{d, e}}; all quota is
/// used by queues other than `a`.
fn five_queues() -> Scene {
    Scene::fair()
        .cohorts([cohort("root").has("cpu=5"), cohort("left").under("root").has("cpu=5").weight("2")])
        .cohorts([cohort("right").under("root").has("cpu=5")])
        .queues([taking("a", "left", "cpu=1").weight("2"), member("b", "left", "cpu=1"), member("c", "root", "cpu=1")])
        .queues([member("d", "right", "cpu=1"), member("e", "right", "cpu=1").weight("0.99")])
        .holds("b", &rising("b"))
        .holds("c", &rising("c"))
        .holds("d", &rising("d"))
        .holds("e", &rising("e"))
}

/// Returns a queue with quota and weight, and a sibling Cohort of this quota with a queue without
/// quota.
fn beside_a_cohort(reclaim: &str, quota: &str) -> Scene {
    let a = member("a", "root", "cpu=5").weight("10").within("LowerPriority").reclaim(reclaim);
    Scene::fair()
        .cohorts([cohort("root"), cohort("right").under("root").has(quota).weight("0.1")])
        .queues([a, member("b", "right", "cpu=0").weight("0.1")])
}

/// Returns queues at the ends of two long subtrees, and quota at the end of a third.
fn long_branches() -> Scene {
    let branch = |names: [&'static str; 3], weight: &str| {
        let top = cohort(names[0]).under("root").weight(weight);
        [top, cohort(names[1]).under(names[0]), cohort(names[2]).under(names[1])]
    };
    Scene::fair()
        .cohorts([cohort("root")])
        .cohorts(branch(["a1c", "a2c", "a3c"], "1.01"))
        .cohorts(branch(["b1c", "b2c", "b3c"], "0.99"))
        .cohorts(branch(["c1c", "c2c", "c3c"], "1"))
        .cohorts([cohort("c4c").under("c3c").has("cpu=1")])
        .queues([taking("a", "a3c", "cpu=0"), member("b", "b3c", "cpu=0")])
}

fn two(a: Node, b: Node) -> Scene {
    Scene::fair().queues([a, b])
}

fn premium_and_cheap() -> Scene {
    let a = queue("a").within_cohort("all").quota("premium", "cpu=3").quota("cheap", "cpu=0");
    let b = queue("b").within_cohort("all").quota("premium", "cpu=0").quota("cheap", "cpu=6");
    Scene::fair().queues([a.reclaim("Any").fungible("MayStopSearch", "MayStopSearch"), b])
}

#[rstest]
#[case::b45_reclaims_nominal_quota_from_largest_borrower(
    three().holds("a", &units("a", 3)).holds("b", &units("b", 5)).holds("c", "c1 cpu=1").waits("c", "in cpu=1"),
    &[("b1", RECLAIMED)])]
#[case::smaller_borrower_if_largest_is_not_enough(
    three().holds("a", "a1 cpu=3; a2 cpu=1").holds("b", "b1 cpu=2; b2 cpu=3").waits("c", "in cpu=3"),
    &[("a1", RECLAIMED)])]
#[case::b45_borrows_from_largest_borrower(
    three().holds("a", &units("a", 3)).holds("b", &units("b", 5)).holds("c", "c1 cpu=1").waits("a", "in cpu=1"),
    &[("b1", FAIR)])]
#[case::one_target_from_each_borrower(
    three().holds("a", "a1 cpu=0.5; a2 cpu=0.5; a3 cpu=3").holds("b", "b1 cpu=0.5; b2 cpu=0.5; b3 cpu=3").waits("c", "in cpu=2"),
    &[("a1", RECLAIMED), ("b1", RECLAIMED)])]
#[case::none_if_no_queue_borrows(
    three().holds("a", &units("a", 3)).holds("b", &units("b", 3)).holds("c", &units("c", 3)).waits("c", "in cpu=1"), &[])]
#[case::b45_none_if_imbalance_would_be_inverted(
    three().holds("a", &units("a", 3)).holds("b", &units("b", 5)).waits("a", "in cpu=2"), &[])]
#[case::lower_priorities_within_queue(
    three().holds("a", "a1 cpu=1 p=-1; a2 cpu=1 p=-1; a3 cpu=1; a4 cpu=1").holds("b", &units("b", 5)).waits("a", "in cpu=2"),
    &[("a1", OWN), ("a2", OWN)])]
#[case::within_queue_and_from_largest_borrower(
    three().holds("a", "a1 cpu=1 p=-1; a2 cpu=1; a3 cpu=1").holds("b", &units("b", 6)).waits("a", "in cpu=2"),
    &[("a1", OWN), ("b1", FAIR)])]
#[case::huge_workload_if_it_is_the_only_one(
    three().holds("b", "b1 cpu=9").waits("a", "in cpu=2"), &[("b1", RECLAIMED)])]
#[case::huge_workload_does_not_preempt_huge_one(
    three().holds("a", "a1 cpu=2").holds("b", "b1 cpu=7").waits("a", "in cpu=5"), &[])]
#[case::huge_workload_does_not_preempt_small_ones(
    three().holds("b", "b1 cpu=2; b2 cpu=2; b3 cpu=3").waits("a", "in cpu=6"), &[])]
#[case::within_queue_and_others_while_borrowing(
    three().holds("a", "a1 cpu=2 p=-1; a2 cpu=1 p=-1").holds("b", "b1 cpu=3; b2 cpu=3").waits("a", "in cpu=4"),
    &[("a1", OWN), ("b1", FAIR)])]
#[case::b46_target_that_leaves_preemptor_the_smaller_share(
    three().holds("b", "b1 cpu=2; b2 cpu=1; b3 cpu=2").holds("c", "c1 cpu=1").waits("a", "in cpu=3.5"), &[("b2", FAIR)])]
#[case::b46_targets_of_several_queues_reduce_the_largest_share(
    three().holds("b", "b1 cpu=2; b2 cpu=2.5").holds("c", "c1 cpu=2; c2 cpu=2.5").waits("a", "in cpu=3.5"),
    &[("b1", FAIR), ("c1", FAIR)])]
#[case::b46_no_preemption_in_the_opposite_direction(
    three().holds("a", "a1 cpu=3.5").holds("b", "b2 cpu=2.5").holds("c", "c2 cpu=2.5").waits("b", "in cpu=2"), &[])]
#[case::none_that_leaves_a_queue_below_nominal_quota(
    three().holds("b", "b1 cpu=3; b2 cpu=3").holds("c", "c1 cpu=3").waits("a", "in cpu=4"), &[])]
#[case::priority_threshold_is_ignored(
    three().holds("a", &units("a", 3)).holds("b", &units("b", 3)).holds("preemptible", "p1 cpu=1 p=-3; p2 cpu=1 p=-3; p3 cpu=1 p=-3")
        .waits("a", "in cpu=2"),
    &[])]
#[case::initial_share_strategy_prefers_lower_priority(
    three_in(Scene::fair_by(PreemptionStrategy::LessThanInitialShare))
        .holds("a", "a1 cpu=3").holds("b", "low cpu=5; high cpu=1 p=1").waits("a", "in cpu=1"),
    &[("low", FAIR)])]
#[case::final_share_strategy_prefers_balance(
    three_in(Scene::fair_by(PreemptionStrategy::LessThanOrEqualToFinalShare))
        .holds("a", "a1 cpu=3").holds("b", "low cpu=5; high cpu=1 p=1").waits("a", "in cpu=1"),
    &[("high", FAIR)])]
#[case::larger_weight_gets_larger_share(
    weighing("2", "1").holds("a", &units("a", 3)).holds("b", &units("b", 6)).waits("a", "in cpu=2"), &[("b1", FAIR), ("b2", FAIR)])]
#[case::b47_all_borrowed_quota_of_zero_weight_queue(
    weighing("1", "0").holds("a", &units("a", 3)).holds("b", &units("b", 6)).waits("a", "in cpu=3"),
    &[("b1", FAIR), ("b2", FAIR), ("b3", FAIR)])]
#[case::b47_nominal_quota_of_zero_weight_queue_is_protected(
    two(taking("a", "all", "cpu=3").within("LowerPriority"), taking("b", "all", "cpu=3").within("LowerPriority").weight("0"))
        .holds("a", &units("a", 3)).holds("b", &units("b", 3)).waits("a", "in cpu=1"),
    &[])]
#[case::b47_quota_of_zero_weight_cohort_is_protected(
    Scene::fair().cohorts([cohort("right").under("root").has("cpu=1").weight("0")])
        .queues([taking("left", "root", "cpu=0"), taking("r", "right", "cpu=0").weight("0")])
        .holds("r", "r1 cpu=1").waits("left", "in cpu=1"),
    &[])]
#[case::within_queue_without_cohort(
    Scene::fair().queues([queue("a").has("cpu=1").within("LowerPriority")]).holds("a", "a1 cpu=1").waits("a", "in cpu=1 p=1000"),
    &[("a1", OWN)])]
#[case::targets_across_the_tree(
    five_queues().waits("a", "in cpu=5"), &[("b1", FAIR), ("b2", FAIR), ("c1", FAIR), ("c2", FAIR), ("e1", FAIR)])]
#[case::borrower_in_non_borrowing_cohort_is_protected(
    beside_a_cohort("Any", "cpu=1").holds("a", "a1 cpu=1 p=-1; a2 cpu=1 p=-1; a3 cpu=1 p=-1").holds("b", "b1 cpu=1 p=-1").waits("a", "in cpu=5"),
    &[("a1", OWN), ("a2", OWN), ("a3", OWN)])]
#[case::within_queue_if_borrower_has_higher_priority(
    beside_a_cohort("LowerPriority", "cpu=3").holds("a", "a1 cpu=1 p=-1; a2 cpu=1 p=-1; a3 cpu=1 p=-1").holds("b", "b1 cpu=4 p=100")
        .waits("a", "in cpu=4"),
    &[("a1", OWN), ("a2", OWN), ("a3", OWN)])]
#[case::distant_queues_compare_by_weight_of_subtrees(
    long_branches().holds("b", "b1 cpu=1").waits("a", "in cpu=1"), &[("b1", FAIR)])]
#[case::zero_weight_queue_reclaims_nominal_quota(
    two(taking("a", "root", "cpu=1").weight("0"), member("b", "root", "cpu=0").weight("1")).holds("b", "b1 cpu=1").waits("a", "in cpu=1"),
    &[("b1", RECLAIMED)])]
#[case::zero_weight_cohort_reclaims_its_quota(
    two(taking("a", "ac", "cpu=0").weight("0"), member("b", "root", "cpu=0").weight("1"))
        .cohorts([cohort("ac").under("root").has("cpu=1").weight("0")]).holds("b", "b1 cpu=1").waits("a", "in cpu=1"),
    &[("b1", FAIR)])]
#[case::nominal_quota_of_a_flavor_despite_borrowing_another(
    premium_and_cheap()
        .holds("a", "p1 cpu=1@premium; p2 cpu=1@premium; c1 cpu=1@cheap; c2 cpu=1@cheap; c3 cpu=1@cheap; c4 cpu=1@cheap; c5 cpu=1@cheap")
        .holds("b", "bp cpu=1@premium").waits("a", "in cpu=1"),
    &[("bp", RECLAIMED)])]
#[case::b47_zero_weight_borrower_preempts_none_with_weight(
    two(taking("a", "all", "cpu=1").weight("0"), member("b", "all", "cpu=1").weight("1"))
        .holds("a", "a1 cpu=1").holds("b", "b1 cpu=1; b2 cpu=1").waits("a", "in cpu=1"),
    &[])]
#[case::b47_zero_weight_borrower_preempts_another_with_zero_weight(
    two(taking("a", "all", "cpu=1").weight("0"), member("b", "all", "cpu=0").weight("0"))
        .cohorts([cohort("all").has("cpu=3")]).holds("b", "b1 cpu=1; b2 cpu=1; b3 cpu=1").waits("a", "in cpu=2"),
    &[("b1", FAIR)])]
#[case::weighted_borrower_preempts_another_with_weight(
    two(taking("a", "all", "cpu=1").weight("1"), member("b", "all", "cpu=0").weight("1"))
        .cohorts([cohort("all").has("cpu=3")]).holds("b", "b1 cpu=1; b2 cpu=1; b3 cpu=1").waits("a", "in cpu=2"),
    &[("b1", FAIR)])]
#[case::second_strategy_selects_candidates_kept_by_the_first(
    Scene::fair().cohorts([cohort("ac").under("root").has("cpu=1").weight("0")])
        .queues([taking("p", "ac", "cpu=2"), member("y", "ac", "cpu=2"), member("x", "root", "cpu=1")])
        .holds("p", "p1 cpu=2").holds("y", "y1 cpu=2; y2 cpu=2").holds("x", "x1 cpu=1; x2 cpu=1").waits("p", "in cpu=1"),
    &[("x1", FAIR), ("y1", FAIR)])]
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
    let mut scene = Scene::fair()
        .queues([
            member("team", "cpu=3").weight("0").reclaim("Any"),
            member("batch", "cpu=3").reclaim("LowerPriority"),
            member("spare", "cpu=6"),
        ])
        .holds("team", "own cpu=2 p=-1; more cpu=4 p=-1");

    // When another queue requests to borrow what only preempting both would free.
    scene.submit_to("batch", "large cpu=11");

    // Then it stays pending: the first would reclaim its quota, the second would borrow again, and
    // so on endlessly.
    assert_eq!(scene.settle(), [""; 0]);
    assert_eq!(scene.holders(), ["more", "own"]);

    // And the borrowed quota is preempted when that alone is enough.
    scene.submit_to("batch", "smaller cpu=10 p=1");
    assert_eq!(scene.settle(), ["smaller"]);
    assert_eq!(scene.holders(), ["own", "smaller"]);
}

#[test]
fn borrower_does_not_preempt_if_pending_workload_would_reclaim_back() {
    // Given a ClusterQueue that borrows, and a pending workload that would fit into its nominal
    // quota.
    let mut scene = Scene::fair()
        .queues([taking("team", "all", "cpu=2").within("LowerPriority").weight("0"), taking("batch", "all", "cpu=1")])
        .holds("team", "tall cpu=3 p=1")
        .waits("team", "small cpu=1");

    // When another queue requests all of the quota.
    scene.submit_to("batch", "wide cpu=3");

    // Then it stays pending: `small` would reclaim its part, `tall` would take its place, and so on
    // endlessly.
    assert_eq!(scene.settle(), [""; 0]);
    assert_eq!(scene.holders(), ["tall"]);
}

#[test]
fn preemptor_reclaiming_nominal_quota_does_not_end_up_borrowing() {
    // Given a workload in the same ClusterQueue and a borrower in another, both of which an older
    // workload has to preempt.
    let mut scene = Scene::fair()
        .cohorts([cohort("all").has("cpu=1")])
        .queues([
            taking("team", "all", "cpu=2").within("LowerOrNewerEqualPriority").weight("0"),
            member("batch", "all", "cpu=1").reclaim("LowerPriority"),
        ])
        .holds("team", "newer cpu=1")
        .holds("batch", "wide cpu=3 p=1");

    // When the older workload is created.
    scene.submit_to("team", "older cpu=2 t=940");

    // Then both are preempted: if `newer` stayed, `older` would borrow the quota of `wide`, lose it
    // again, and so on endlessly.
    assert_eq!(scene.decide().evicted, [format!("newer {OWN}"), format!("wide {FAIR}")]);
}
