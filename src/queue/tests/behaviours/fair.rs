//! Who has to go under fair sharing: the situations of Kueue's table (`pkg/scheduler/preemption/preemption_fair_test.go`),
//! asked of the whole engine. B45–B47.

use rstest::rstest;

use super::scene::{Node, Scene, cohort, queue};
use crate::settings::PreemptionStrategy;

const OWN: &str = "InClusterQueue";
const RECLAIMED: &str = "InCohortReclamation";
const FAIR: &str = "InCohortFairSharing";

fn member(name: &str, of: &str, quota: &str) -> Node {
    queue(name).within_cohort(of).has(quota)
}

fn taking(name: &str, of: &str, quota: &str) -> Node {
    member(name, of, quota).reclaim("Any")
}

fn three_in(scene: Scene) -> Scene {
    let equal = |name: &str| taking(name, "all", "cpu=3").within("LowerPriority").while_borrowing(Some(-3));
    scene.queues([equal("a"), equal("b"), equal("c"), member("preemptible", "all", "cpu=0")])
}

/// Three queues of 3 each in one cohort, and one with nothing of its own.
fn three() -> Scene {
    three_in(Scene::fair())
}

/// Three queues of 3 each in one cohort, the second with another weight.
fn weighing(of_a: &str, of_b: &str) -> Scene {
    let plain = |name: &str| taking(name, "all", "cpu=3").within("LowerPriority");
    Scene::fair().queues([plain("a").weight(of_a), plain("b").weight(of_b), plain("c")])
}

/// Units `b1 … bN`.
fn units(prefix: &str, count: usize) -> String {
    let units: Vec<String> = (1..=count).map(|number| format!("{prefix}{number} cpu=1")).collect();
    units.join("; ")
}

fn rising(prefix: &str) -> String {
    let units: Vec<String> = (1..=5).map(|number| format!("{prefix}{number} cpu=1 p={number}")).collect();
    units.join("; ")
}

/// Cohorts with 5 each, queues with 1 each: root{left{a, b}, c, right{d, e}}, all held by others than `a`.
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

/// A queue of its own quota and weight beside a cohort with this quota and a queue that has none.
fn beside_a_cohort(reclaim: &str, quota: &str) -> Scene {
    let a = member("a", "root", "cpu=5").weight("10").within("LowerPriority").reclaim(reclaim);
    Scene::fair()
        .cohorts([cohort("root"), cohort("right").under("root").has(quota).weight("0.1")])
        .queues([a, member("b", "right", "cpu=0").weight("0.1")])
}

/// Queues at the ends of two long branches, quota at the end of a third.
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
#[case::b45_nominal_quota_from_who_borrows_most(
    three().holds("a", &units("a", 3)).holds("b", &units("b", 5)).holds("c", "c1 cpu=1").waits("c", "in cpu=1"),
    &[("b1", RECLAIMED)])]
#[case::from_who_borrows_less_if_the_last_of_who_borrows_most_is_not_enough(
    three().holds("a", "a1 cpu=3; a2 cpu=1").holds("b", "b1 cpu=2; b2 cpu=3").waits("c", "in cpu=3"),
    &[("a1", RECLAIMED)])]
#[case::b45_borrowed_quota_from_who_borrows_most(
    three().holds("a", &units("a", 3)).holds("b", &units("b", 5)).holds("c", "c1 cpu=1").waits("a", "in cpu=1"),
    &[("b1", FAIR)])]
#[case::one_of_each_that_borrows(
    three().holds("a", "a1 cpu=0.5; a2 cpu=0.5; a3 cpu=3").holds("b", "b1 cpu=0.5; b2 cpu=0.5; b3 cpu=3").waits("c", "in cpu=2"),
    &[("a1", RECLAIMED), ("b1", RECLAIMED)])]
#[case::nobody_if_nobody_borrows(
    three().holds("a", &units("a", 3)).holds("b", &units("b", 3)).holds("c", &units("c", 3)).waits("c", "in cpu=1"), &[])]
#[case::b45_nobody_if_the_imbalance_would_change_sides(
    three().holds("a", &units("a", 3)).holds("b", &units("b", 5)).waits("a", "in cpu=2"), &[])]
#[case::own_ones_of_lower_priority(
    three().holds("a", "a1 cpu=1 p=-1; a2 cpu=1 p=-1; a3 cpu=1; a4 cpu=1").holds("b", &units("b", 5)).waits("a", "in cpu=2"),
    &[("a1", OWN), ("a2", OWN)])]
#[case::own_ones_and_those_of_who_borrows_most(
    three().holds("a", "a1 cpu=1 p=-1; a2 cpu=1; a3 cpu=1").holds("b", &units("b", 6)).waits("a", "in cpu=2"),
    &[("a1", OWN), ("b1", FAIR)])]
#[case::a_huge_one_if_there_is_no_other(
    three().holds("b", "b1 cpu=9").waits("a", "in cpu=2"), &[("b1", RECLAIMED)])]
#[case::no_huge_one_for_a_huge_one(
    three().holds("a", "a1 cpu=2").holds("b", "b1 cpu=7").waits("a", "in cpu=5"), &[])]
#[case::not_two_small_ones_for_a_huge_one(
    three().holds("b", "b1 cpu=2; b2 cpu=2; b3 cpu=3").waits("a", "in cpu=6"), &[])]
#[case::own_ones_and_others_when_it_borrows_itself(
    three().holds("a", "a1 cpu=2 p=-1; a2 cpu=1 p=-1").holds("b", "b1 cpu=3; b2 cpu=3").waits("a", "in cpu=4"),
    &[("a1", OWN), ("b1", FAIR)])]
#[case::b46_rather_those_that_leave_it_the_smaller_share(
    three().holds("b", "b1 cpu=2; b2 cpu=1; b3 cpu=2").holds("c", "c1 cpu=1").waits("a", "in cpu=3.5"), &[("b2", FAIR)])]
#[case::b46_of_several_queues_if_that_makes_the_largest_share_smaller(
    three().holds("b", "b1 cpu=2; b2 cpu=2.5").holds("c", "c1 cpu=2; c2 cpu=2.5").waits("a", "in cpu=3.5"),
    &[("b1", FAIR), ("c1", FAIR)])]
#[case::b46_and_not_back_again(
    three().holds("a", "a1 cpu=3.5").holds("b", "b2 cpu=2.5").holds("c", "c2 cpu=2.5").waits("b", "in cpu=2"), &[])]
#[case::nobody_without_whom_a_queue_has_less_than_its_own(
    three().holds("b", "b1 cpu=3; b2 cpu=3").holds("c", "c1 cpu=3").waits("a", "in cpu=4"), &[])]
#[case::a_priority_threshold_does_not_count_here(
    three().holds("a", &units("a", 3)).holds("b", &units("b", 3)).holds("preemptible", "p1 cpu=1 p=-3; p2 cpu=1 p=-3; p3 cpu=1 p=-3")
        .waits("a", "in cpu=2"),
    &[])]
#[case::the_lower_priority_first_even_if_it_is_large(
    three_in(Scene::fair_by(PreemptionStrategy::LessThanInitialShare))
        .holds("a", "a1 cpu=3").holds("b", "low cpu=5; high cpu=1 p=1").waits("a", "in cpu=1"),
    &[("low", FAIR)])]
#[case::even_a_higher_priority_if_that_leaves_the_balance(
    three_in(Scene::fair_by(PreemptionStrategy::LessThanOrEqualToFinalShare))
        .holds("a", "a1 cpu=3").holds("b", "low cpu=5; high cpu=1 p=1").waits("a", "in cpu=1"),
    &[("high", FAIR)])]
#[case::more_weight_gets_more(
    weighing("2", "1").holds("a", &units("a", 3)).holds("b", &units("b", 6)).waits("a", "in cpu=2"), &[("b1", FAIR), ("b2", FAIR)])]
#[case::b47_all_that_is_borrowed_without_weight(
    weighing("1", "0").holds("a", &units("a", 3)).holds("b", &units("b", 6)).waits("a", "in cpu=3"),
    &[("b1", FAIR), ("b2", FAIR), ("b3", FAIR)])]
#[case::b47_not_the_nominal_quota_of_a_queue_without_weight(
    two(taking("a", "all", "cpu=3").within("LowerPriority"), taking("b", "all", "cpu=3").within("LowerPriority").weight("0"))
        .holds("a", &units("a", 3)).holds("b", &units("b", 3)).waits("a", "in cpu=1"),
    &[])]
#[case::b47_nor_that_of_a_cohort_without_weight(
    Scene::fair().cohorts([cohort("right").under("root").has("cpu=1").weight("0")])
        .queues([taking("left", "root", "cpu=0"), taking("r", "right", "cpu=0").weight("0")])
        .holds("r", "r1 cpu=1").waits("left", "in cpu=1"),
    &[])]
#[case::own_ones_without_a_cohort(
    Scene::fair().queues([queue("a").has("cpu=1").within("LowerPriority")]).holds("a", "a1 cpu=1").waits("a", "in cpu=1 p=1000"),
    &[("a1", OWN)])]
#[case::across_a_tree(
    five_queues().waits("a", "in cpu=5"), &[("b1", FAIR), ("b2", FAIR), ("c1", FAIR), ("c2", FAIR), ("e1", FAIR)])]
#[case::a_borrower_in_a_cohort_that_does_not_borrow_is_left_alone(
    beside_a_cohort("Any", "cpu=1").holds("a", "a1 cpu=1 p=-1; a2 cpu=1 p=-1; a3 cpu=1 p=-1").holds("b", "b1 cpu=1 p=-1").waits("a", "in cpu=5"),
    &[("a1", OWN), ("a2", OWN), ("a3", OWN)])]
#[case::own_ones_if_the_borrower_is_too_important(
    beside_a_cohort("LowerPriority", "cpu=3").holds("a", "a1 cpu=1 p=-1; a2 cpu=1 p=-1; a3 cpu=1 p=-1").holds("b", "b1 cpu=4 p=100")
        .waits("a", "in cpu=4"),
    &[("a1", OWN), ("a2", OWN), ("a3", OWN)])]
#[case::far_apart_by_the_weight_of_the_branches(
    long_branches().holds("b", "b1 cpu=1").waits("a", "in cpu=1"), &[("b1", FAIR)])]
#[case::nominal_quota_comes_back_to_a_queue_without_weight(
    two(taking("a", "root", "cpu=1").weight("0"), member("b", "root", "cpu=0").weight("1")).holds("b", "b1 cpu=1").waits("a", "in cpu=1"),
    &[("b1", RECLAIMED)])]
#[case::and_to_a_cohort_without_weight(
    two(taking("a", "ac", "cpu=0").weight("0"), member("b", "root", "cpu=0").weight("1"))
        .cohorts([cohort("ac").under("root").has("cpu=1").weight("0")]).holds("b", "b1 cpu=1").waits("a", "in cpu=1"),
    &[("b1", FAIR)])]
#[case::within_nominal_quota_of_a_flavor_whatever_is_borrowed_of_others(
    premium_and_cheap()
        .holds("a", "p1 cpu=1@premium; p2 cpu=1@premium; c1 cpu=1@cheap; c2 cpu=1@cheap; c3 cpu=1@cheap; c4 cpu=1@cheap; c5 cpu=1@cheap")
        .holds("b", "bp cpu=1@premium").waits("a", "in cpu=1"),
    &[("bp", RECLAIMED)])]
#[case::b47_a_borrower_without_weight_takes_from_nobody_with_weight(
    two(taking("a", "all", "cpu=1").weight("0"), member("b", "all", "cpu=1").weight("1"))
        .holds("a", "a1 cpu=1").holds("b", "b1 cpu=1; b2 cpu=1").waits("a", "in cpu=1"),
    &[])]
#[case::b47_but_from_another_without_weight(
    two(taking("a", "all", "cpu=1").weight("0"), member("b", "all", "cpu=0").weight("0"))
        .cohorts([cohort("all").has("cpu=3")]).holds("b", "b1 cpu=1; b2 cpu=1; b3 cpu=1").waits("a", "in cpu=2"),
    &[("b1", FAIR)])]
#[case::the_same_with_weight_on_both_sides(
    two(taking("a", "all", "cpu=1").weight("1"), member("b", "all", "cpu=0").weight("1"))
        .cohorts([cohort("all").has("cpu=3")]).holds("b", "b1 cpu=1; b2 cpu=1; b3 cpu=1").waits("a", "in cpu=2"),
    &[("b1", FAIR)])]
#[case::those_that_the_first_rule_spared_by_the_second(
    Scene::fair().cohorts([cohort("ac").under("root").has("cpu=1").weight("0")])
        .queues([taking("p", "ac", "cpu=2"), member("y", "ac", "cpu=2"), member("x", "root", "cpu=1")])
        .holds("p", "p1 cpu=2").holds("y", "y1 cpu=2; y2 cpu=2").holds("x", "x1 cpu=1; x2 cpu=1").waits("p", "in cpu=1"),
    &[("x1", FAIR), ("y1", FAIR)])]
fn those_go_whose_queue_has_the_larger_share(#[case] mut scene: Scene, #[case] expected: &[(&str, &str)]) {
    let decided = scene.decide();

    let expected: Vec<String> = expected.iter().map(|(name, right)| format!("{name} {right}")).collect();
    assert_eq!(decided.evicted, expected);
    assert_eq!(decided.admitted, [""; 0], "nobody is admitted before they have gone");
}

#[test]
fn nobody_goes_for_a_borrower_who_would_have_to_give_it_back() {
    // Given a ClusterQueue without weight that borrows 3; one of its workloads fits into its own quota.
    let member = |name: &str, nominal: &str| queue(name).within_cohort("c").has(nominal);
    let mut scene = Scene::fair()
        .queues([
            member("team", "cpu=3").weight("0").reclaim("Any"),
            member("batch", "cpu=3").reclaim("LowerPriority"),
            member("spare", "cpu=6"),
        ])
        .holds("team", "own cpu=2 p=-1; more cpu=4 p=-1");

    // When another wants to borrow what only both of them together could give.
    scene.submit_to("batch", "large cpu=11");

    // Then it waits: the first would come back for its own, the second would borrow again, and so on without end.
    assert_eq!(scene.settle(), [""; 0]);
    assert_eq!(scene.holders(), ["more", "own"]);

    // And what is borrowed alone is given when that is enough.
    scene.submit_to("batch", "smaller cpu=10 p=1");
    assert_eq!(scene.settle(), ["smaller"]);
    assert_eq!(scene.holders(), ["own", "smaller"]);
}

#[test]
fn nobody_goes_for_a_borrower_from_whom_someone_who_waits_would_reclaim() {
    // Given a ClusterQueue that borrows, and one behind who would fit into its own quota.
    let mut scene = Scene::fair()
        .queues([taking("team", "all", "cpu=2").within("LowerPriority").weight("0"), taking("batch", "all", "cpu=1")])
        .holds("team", "tall cpu=3 p=1")
        .waits("team", "small cpu=1");

    // When another would have all of it.
    scene.submit_to("batch", "wide cpu=3");

    // Then it waits: the small one would reclaim its part, the tall one would take its place, and so on without end.
    assert_eq!(scene.settle(), [""; 0]);
    assert_eq!(scene.holders(), ["tall"]);
}

#[test]
fn who_takes_from_others_by_right_does_not_borrow_in_the_end() {
    // Given one of a ClusterQueue's own and a borrower of another, who both have to go for what is older.
    let mut scene = Scene::fair()
        .cohorts([cohort("all").has("cpu=1")])
        .queues([
            taking("team", "all", "cpu=2").within("LowerOrNewerEqualPriority").weight("0"),
            member("batch", "all", "cpu=1").reclaim("LowerPriority"),
        ])
        .holds("team", "newer cpu=1")
        .holds("batch", "wide cpu=3 p=1");

    // When it comes.
    scene.submit_to("team", "older cpu=2 t=940");

    // Then both go: if its own stayed, it would borrow what the other gave, and give it back, and so on without end.
    assert_eq!(scene.decide().evicted, [format!("newer {OWN}"), format!("wide {FAIR}")]);
}
