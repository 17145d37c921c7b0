//! Who has to go, by priority and by place in one cohort: the situations of Kueue's table on preemption
//! (`pkg/scheduler/preemption/preemption_test.go`, `TestPreemption`), asked of the whole engine.

use rstest::rstest;

use super::scene::{Node, Scene, queue};

/// Three flavors: CPU in one, memory in two; only lower priorities of the same queue.
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

/// Two that lend each other all, and borrow no more than they have; the second never preempts its own.
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

/// A large shared quota that four queues borrow from, taking it from priorities up to 0 of each other.
fn shared() -> Scene {
    let member = |name: &str, quota: &str| queue(name).within_cohort("shared").has(quota).while_borrowing(Some(0));
    let plain = |node: Node| node.within("Never").reclaim("LowerPriority");
    Scene::new().queues([
        plain(member("a_standard", "cpu=1+12")),
        member("b_standard", "cpu=1+12").within("LowerPriority").reclaim("Any"),
        plain(member("a_best_effort", "cpu=1+12")),
        plain(member("b_best_effort", "cpu=0+13")),
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
#[case::the_lowest_priority_goes(
    standalone().holds("standalone", "low cpu=2 p=-1; mid cpu=2; high cpu=2 p=1").waits("standalone", "in cpu=2 p=1"),
    &[("low", OWN)])]
#[case::several_go_if_need_be(
    standalone().holds("standalone", "low cpu=2 p=-1; mid cpu=2; high cpu=2 p=1").waits("standalone", "in cpu=3 p=1"),
    &[("low", OWN), ("mid", OWN)])]
#[case::the_lowest_priority_preempts_nobody(
    standalone().holds("standalone", "low cpu=3 p=-1; mid cpu=3").waits("standalone", "in cpu=1 p=-1"), &[])]
#[case::nobody_goes_if_that_is_not_enough(
    standalone().holds("standalone", "low cpu=3 p=-1; mid cpu=3").waits("standalone", "in cpu=4"), &[])]
#[case::what_is_free_is_used_first(
    standalone().holds("standalone", "low cpu=1 p=-1; mid cpu=1; high cpu=3 p=1").waits("standalone", "in cpu=2 p=1"),
    &[("low", OWN)])]
#[case::b42_who_is_not_needed_in_the_end_stays(
    standalone().holds("standalone", "low cpu=1 p=-1; mid cpu=2; high cpu=3 p=1").waits("standalone", "in cpu=2 p=1"),
    &[("mid", OWN)])]
#[case::quota_of_a_borrower_comes_back(
    limited().holds("c1", "c1-low cpu=3 p=-1").holds("c2", "c2-mid cpu=3; c2-high cpu=6 p=1").waits("c1", "in cpu=3 p=1"),
    &[("c2-mid", RECLAIMED)])]
#[case::a_resource_of_which_nothing_is_asked_may_be_used_up(
    limited().holds("c1", "c1-low cpu=3 memory=3Gi p=-1").holds("c2", "c2-mid cpu=3; c2-high cpu=6 p=1")
        .waits("c1", "in cpu=3 memory=0 p=1"),
    &[("c2-mid", RECLAIMED)])]
#[case::who_does_not_borrow_is_left_alone(
    limited().holds("c1", "c1-high cpu=4 p=1").holds("c2", "c2-low cpu=6 p=-1").waits("c1", "in cpu=4 p=1"), &[])]
#[case::what_is_borrowed_is_not_enough(
    limited().holds("c1", "c1-high cpu=4 p=1").holds("c2", "c2-low-1 cpu=4 p=-1; c2-low-2 cpu=4 p=-1").waits("c1", "in cpu=4 p=1"),
    &[])]
#[case::own_ones_go_while_another_resource_is_borrowed(
    limited().holds("c1", "c1-low cpu=4 p=-1").holds("c2", "c2-low cpu=4 p=-1; c2-high cpu=4 p=1")
        .waits("c1", "in cpu=4 memory=5Gi p=1"),
    &[("c1-low", OWN)])]
#[case::own_ones_go_while_the_same_resource_is_borrowed(
    limited().holds("c1", "c1-med cpu=4; c1-low cpu=4 p=-1").holds("c2", "c2-low cpu=4 p=-1").waits("c1", "in cpu=4 p=1"),
    &[("c1-low", OWN)])]
#[case::the_same_without_borrowing_limits(
    unlimited().holds("d1", "d1-med cpu=4; d1-low cpu=4 p=-1").holds("d2", "d2-low cpu=4 p=-1").waits("d1", "in cpu=4 p=1"),
    &[("d1-low", OWN)])]
#[case::who_borrows_another_resource_takes_from_no_one_else(
    limited().holds("c1", "c1-med cpu=4").holds("c2", "c2-low-1 cpu=5 p=-1; c2-low-2 cpu=1 p=-1; c2-low-3 cpu=1 p=-1")
        .waits("c1", "in cpu=2 memory=5Gi p=1"),
    &[("c1-med", OWN)])]
#[case::alone_in_a_cohort_is_as_in_none(
    alone_in_its_cohort().holds("l1", "l1-med cpu=4; l1-low cpu=2 p=-1").waits("l1", "in cpu=4 p=1"),
    &[("l1-med", OWN)])]
#[case::an_equal_priority_is_not_lower(
    limited().holds("c1", "c1 cpu=2").holds("c2", "c2-1 cpu=4; c2-2 cpu=4").waits("c1", "in cpu=4"), &[])]
#[case::any_priority_is_any(
    limited().holds("c1", "c1-1 cpu=4; c1-2 cpu=4 p=1").holds("c2", "c2 cpu=2").waits("c2", "in cpu=4"),
    &[("c1-1", RECLAIMED)])]
#[case::own_ones_and_borrowers_go_together(
    limited().holds("c1", "c1-low cpu=3 p=-1; c1-mid cpu=2").holds("c2", "c2-low cpu=3 p=-1; c2-mid cpu=4").waits("c1", "in cpu=4"),
    &[("c1-low", OWN), ("c2-low", RECLAIMED)])]
#[case::never_is_never(
    limited().holds("c2", "c2-low cpu=3 p=-1").holds("c1", "c1 cpu=6").waits("c2", "in cpu=4 p=1"), &[])]
#[case::the_newest_of_equal_priority_goes(
    newest_first().holds("q", "wl1 cpu=2 p=2; wl2 cpu=2 p=1 t=1000 r=1001; wl3 cpu=2 p=1").waits("q", "in cpu=2 p=1 t=985"),
    &[("wl2", OWN)])]
#[case::b43_a_borrower_takes_from_a_lower_priority_below_the_threshold(
    shared().holds("a_best_effort", "a_low cpu=10 p=-1").holds("b_best_effort", "b_low cpu=1 p=-1").waits("a_standard", "in cpu=10"),
    &[("a_low", BORROWING)])]
#[case::b43_not_from_one_above_the_threshold_if_it_goes_on_borrowing(
    shared().holds("b_standard", "b cpu=10 p=1").waits("a_standard", "in cpu=10 p=2"), &[])]
#[case::b43_from_one_above_the_threshold_if_it_then_borrows_nothing(
    shared().holds("b_standard", "b cpu=13 p=1").waits("a_standard", "in cpu=1 p=2"),
    &[("b", RECLAIMED)])]
#[case::b43_not_from_its_own_if_that_is_forbidden(
    shared().holds("a_standard", "a cpu=13 p=1").waits("a_standard", "in cpu=1 p=2"), &[])]
#[case::b43_only_from_its_own_if_all_others_are_above_the_threshold(
    shared().holds("a_standard", "a1 cpu=10 p=1; a2 cpu=1 p=1").holds("b_standard", "b1 cpu=1 p=1; b2 cpu=1 p=2")
        .waits("b_standard", "in cpu=1 p=3"),
    &[("b1", OWN)])]
#[case::b43_from_its_own_and_from_others_below_the_threshold(
    shared().holds("b_standard", "b_high cpu=10 p=2; b_mid cpu=1 p=1").holds("a_best_effort", "a_low cpu=1 p=-1; a_lower cpu=1 p=-2")
        .waits("b_standard", "in cpu=2 p=2"),
    &[("a_lower", BORROWING), ("b_mid", OWN)])]
#[case::quota_that_was_lent_comes_back(
    lending().holds("lend1", "l1-low cpu=3 p=-1").holds("lend2", "l2-mid cpu=3; l2-high cpu=4 p=1").waits("lend1", "in cpu=3 p=1"),
    &[("l2-mid", RECLAIMED)])]
#[case::from_all_that_lend(
    lending().holds("lend1", "l1-low cpu=3 p=-1; l1-mid cpu=2").holds("lend2", "l2-low cpu=3 p=-1; l2-mid cpu=4")
        .waits("lend1", "in cpu=4"),
    &[("l1-low", OWN), ("l2-low", RECLAIMED)])]
#[case::more_than_is_ever_lent_takes_from_no_one(
    lending().holds("lend2", "l2-low cpu=10 p=-1").waits("lend1", "in cpu=9"), &[])]
#[case::who_uses_its_quota_up_takes_from_its_own(
    three().holds("a", "a1 cpu=1 p=-2; a2 cpu=1 p=-2; a3 cpu=1 p=-1").holds("b", "b1 cpu=1; b2 cpu=1; b3 cpu=1").waits("a", "in cpu=2"),
    &[("a1", OWN), ("a2", OWN)])]
#[case::so_it_does_for_two_resources(
    three().holds("a", "a1 cpu=1 memory=1 p=-2; a2 cpu=1 memory=1 p=-2; a3 cpu=1 memory=1 p=-1")
        .holds("b", "b1 cpu=1 memory=1; b2 cpu=1 memory=1; b3 cpu=1 memory=1").waits("a", "in cpu=2 memory=2"),
    &[("a1", OWN), ("a2", OWN)])]
#[case::so_it_does_when_one_of_two_is_used_up(
    three().holds("a", "a1 cpu=1 p=-2; a2 cpu=1 p=-2; a3 cpu=1 p=-1").holds("b", "b1 cpu=1; b2 cpu=1; b3 cpu=1")
        .waits("a", "in cpu=2 memory=2"),
    &[("a1", OWN), ("a2", OWN)])]
#[case::who_has_quota_left_takes_from_borrowers_too(
    three().holds("a", "a1 cpu=1 p=-1").holds("b", "b1 cpu=1; b2 cpu=1; b3 cpu=1; b4 cpu=1; b5 cpu=1 p=-1").waits("a", "in cpu=2"),
    &[("a1", OWN), ("b5", RECLAIMED)])]
#[case::from_a_borrower_in_another_branch_of_the_tree(
    far_apart().holds("cq-right", "far cpu=5").waits("cq-left", "in cpu=8"),
    &[("far", RECLAIMED)])]
fn those_go_that_have_to(#[case] mut scene: Scene, #[case] expected: &[(&str, &str)]) {
    let decided = scene.decide();

    let expected: Vec<String> = expected.iter().map(|(name, right)| format!("{name} {right}")).collect();
    assert_eq!(decided.evicted, expected);
    assert_eq!(decided.admitted, [""; 0], "nobody is admitted before they have gone");
}

/// Kueue's case has the flavor decided on; here memory of the second flavor is what can be had.
#[test]
fn only_those_go_that_use_the_flavor_that_was_chosen() {
    let queue = queue("q").has("cpu=6").and_group().quota("alpha", "memory=1Gi").quota("beta", "memory=3Gi");
    let mut scene = Scene::new()
        .queues([queue.within("LowerPriority")])
        .holds("q", "low memory=1Gi@alpha p=-1; mid memory=2Gi@beta; high memory=1Gi@beta p=1")
        .waits("q", "in cpu=1 memory=2Gi p=1");

    assert_eq!(scene.decide().evicted, ["mid InClusterQueue"]);
}

/// Two pod sets: the second finds its room in the flavor that the first leaves.
#[test]
fn each_pod_set_can_preempt_in_a_flavor_of_its_own() {
    let mut scene = standalone()
        .holds("standalone", "low-alpha memory=2Gi@alpha p=-1; low-beta memory=2Gi@beta p=-1")
        .waits("standalone", "in +launcher memory=2Gi +workers n=2 memory=1Gi");

    assert_eq!(scene.decide().evicted, ["low-alpha InClusterQueue", "low-beta InClusterQueue"]);
    assert_eq!(scene.settle(), ["in"]);
    assert_eq!(scene.place_of("in"), "alpha|beta");
}
