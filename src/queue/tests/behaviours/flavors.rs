//! Which flavor a workload gets. B4–B6, B40, and cases of Kueue's tables on scheduling and flavor assignment
//! (`pkg/scheduler/scheduler_test.go`, `pkg/scheduler/flavorassigner/flavorassigner_test.go`).

use rstest::rstest;

use super::scene::{Decided, Node, Scene, cohort, company, queue};

/// Integration "Should try next flavor instead of borrowing".
#[test]
fn b04_the_next_flavor_is_tried_rather_than_borrowing_in_the_first() {
    let dev = queue("dev").within_cohort("all").quota("on-demand", "cpu=10+10").quota("spot", "cpu=11");
    let mut scene = Scene::new()
        .queues([queue("prod").within_cohort("all").quota("on-demand", "cpu=10+10")])
        .queues([dev.fungible("TryNextFlavor", "TryNextFlavor")])
        .waits("prod", "w1 cpu=9");
    scene.run();

    scene.submit_to("dev", "w2 cpu=11");

    assert_eq!(scene.decide().admitted, ["w2@spot"]);
}

/// What has to be reclaimed of one resource is not there, though it is liked better than borrowing the other.
#[test]
fn a_workload_is_not_admitted_before_all_of_its_resources_are_there() {
    let a = queue("a").within_cohort("all").quota("spot", "cpu=2 memory=1").reclaim("Any");
    let mut scene = Scene::new()
        .queues([a.preempts_rather_than_borrows("TryNextFlavor", "TryNextFlavor")])
        .queues([queue("b").within_cohort("all").quota("spot", "cpu=2 memory=4")])
        .holds("a", "mine cpu=1@spot memory=1@spot")
        .holds("b", "theirs cpu=3@spot memory=1@spot")
        .waits("a", "w cpu=1 memory=1");

    assert_eq!(scene.decide(), Decided::default(), "who borrows the one may not reclaim the other");
}

/// Integration "Should preempt before try next flavor".
#[test]
fn b05_a_borrower_is_evicted_rather_than_the_next_flavor_tried() {
    let prod = queue("prod").within_cohort("all").quota("on-demand", "cpu=10+10").quota("spot", "cpu=11");
    let mut scene = Scene::new()
        .queues([prod.reclaim("Any").fungible("MayStopSearch", "MayStopSearch")])
        .queues([queue("dev").within_cohort("all").quota("on-demand", "cpu=10+10")])
        .waits("dev", "w1 cpu=9; w2 cpu=9 p=1");
    scene.run();
    scene.submit_to("prod", "w3 cpu=5");

    assert_eq!(scene.decide().evicted, ["w1 InCohortReclamation"]);
    assert_eq!(scene.settle(), ["w3"]);
    assert_eq!(scene.place_of("w3"), "on-demand");
}

/// Integration "Should try next flavor if can't preempt on first".
#[test]
fn b06_the_next_flavor_is_tried_when_nobody_can_be_evicted_from_the_first() {
    let queue = queue("q").quota("on-demand", "cpu=2").quota("spot", "cpu=2").within("LowerPriority").strict();
    let mut scene = Scene::new()
        .queues([queue.fungible("MayStopSearch", "MayStopSearch")])
        .waits("q", "w1 cpu=1; w2 cpu=1; w3 cpu=1 t=1001");

    assert_eq!(scene.decide().admitted, ["w1@on-demand", "w2@on-demand", "w3@spot"]);
}

/// Integration "finds correct flavor by discarding the first one in which preemption is not possible".
#[test]
fn b06_who_is_evicted_comes_back_in_the_flavor_where_it_can_evict_in_turn() {
    let member = |name: &str, first: &str, second: &str| {
        let queue = queue(name).within_cohort("c").quota("f1", first).quota("f2", second);
        let queue = queue.within("LowerPriority").reclaim("Any").while_borrowing(None);
        queue.fungible("TryNextFlavor", "TryNextFlavor")
    };
    let mut scene =
        Scene::new().queues([member("q1", "cpu=0", "cpu=1"), member("q2", "cpu=1", "cpu=0")]).waits("q1", "low cpu=1");
    assert_eq!(scene.decide().admitted, ["low@f2"]);
    scene.run();
    scene.submit_to("q1", "high cpu=1 p=9999");
    assert_eq!(scene.decide().admitted, ["high@f1"]);
    scene.run();

    scene.submit_to("q2", "middle cpu=1 p=105");
    assert_eq!(scene.decide().evicted, ["high InCohortReclamation"]);
    scene.run();
    scene.release("high");
    assert_eq!(scene.decide().evicted, ["low InClusterQueue"]);
    assert_eq!(scene.settle(), ["middle", "high"]);

    assert_eq!((scene.place_of("middle").as_str(), scene.place_of("high").as_str()), ("f1", "f2"));
}

fn preferring(how: impl Fn(Node) -> Node) -> Scene {
    let borrower = queue("q").within_cohort("c").quota("on-demand", "cpu=5+0").quota("spot", "cpu=0+5");
    Scene::new()
        .queues([how(borrower.within("LowerPriority"))])
        .queues([queue("lender").within_cohort("c").quota("on-demand", "cpu=0").quota("spot", "cpu=5")])
}

fn over_borrowing(queue: Node) -> Node {
    queue.preempts_rather_than_borrows("TryNextFlavor", "TryNextFlavor")
}

fn over_preemption(queue: Node) -> Node {
    queue.fungible("TryNextFlavor", "TryNextFlavor")
}

/// A queue in a cohort below a root that has the quota of the second flavor.
fn with_an_idle_sibling() -> Scene {
    let q =
        queue("q").within_cohort("mid").quota("on-demand", "cpu=5+0").quota("spot", "cpu=0").within("LowerPriority");
    Scene::new()
        .cohorts([cohort("root").quota("on-demand", "cpu=0").quota("spot", "cpu=5"), cohort("mid").under("root")])
        .queues([over_borrowing(q)])
        .queues([queue("sibling").within_cohort("mid").quota("on-demand", "cpu=5").quota("spot", "cpu=0")])
}

/// Two flavors of GPU, of which `beta` has none and borrows.
fn two_flavors(beta: impl Fn(Node) -> Node) -> Scene {
    let member = |name: &str, gpus: &str| queue(name).within_cohort("c").quota("on-demand", gpus).quota("spot", gpus);
    Scene::new().queues([
        member("alpha", "gpu=10").within("LowerPriority").reclaim("LowerPriority"),
        beta(member("beta", "gpu=0")),
    ])
}

fn alone(first: &str, second: &str, when_can_preempt: &str) -> Scene {
    let queue = queue("q").quota("on-demand", first).quota("spot", second).within("LowerPriority");
    Scene::new().queues([queue.fungible("MayStopSearch", when_can_preempt)])
}

fn all_borrowed() -> Scene {
    let q = queue("q").within_cohort("c").quota("on-demand", "cpu=0+1").quota("spot", "cpu=0+1");
    let q = q.within("LowerPriority").reclaim("Any").while_borrowing(None).fungible("MayStopSearch", "MayStopSearch");
    Scene::new().queues([q, queue("lender").within_cohort("c").quota("on-demand", "cpu=1").quota("spot", "cpu=1")])
}

#[rstest]
// "PreemptionOverBorrowing preference: preempt in first flavor instead of borrowing in second".
#[case::b40_preempt_in_the_first(
    preferring(over_borrowing).holds("q", "low cpu=5@on-demand p=-1").waits("q", "high cpu=5"), &[], &["low InClusterQueue"])]
// "BorrowingOverPreemption preference: borrow in second flavor instead of preempting in first".
#[case::b40_borrow_in_the_second(
    preferring(over_preemption).holds("q", "low cpu=5@on-demand p=-1").waits("q", "high cpu=5"), &["high@spot"], &[])]
// "PreemptionOverBorrowing preference: select fitting second flavor over first flavor with no preemption candidates".
#[case::b40_what_fits_wins_over_what_cannot_preempt(
    with_an_idle_sibling().holds("q", "held cpu=5@on-demand").waits("q", "in cpu=5"), &["in@spot"], &[])]
// "prefer reclamation over cq priority based preemption".
#[case::reclaim_rather_than_preempt_own_ones(
    two_flavors(|beta| beta.within("LowerPriority").reclaim("LowerPriority"))
        .holds("alpha", "a1 gpu=5@on-demand p=50").holds("beta", "b1 gpu=5@spot p=50").waits("alpha", "in gpu=6 p=100"),
    &[], &["b1 InCohortReclamation"])]
// "prefer first preemption flavor when second flavor requires both reclaim and cq priority preemption".
#[case::the_first_of_two_that_take_own_ones(
    two_flavors(|beta| beta).holds("alpha", "a1 gpu=5@on-demand p=50; a2 gpu=5@spot p=50").holds("beta", "b1 gpu=5@spot p=50")
        .waits("alpha", "in gpu=6 p=100"),
    &[], &["a1 InClusterQueue"])]
// "prefer first preemption flavor when second flavor also requires cq preemption".
#[case::the_first_when_the_borrower_of_the_second_is_too_important(
    two_flavors(|beta| beta).holds("alpha", "a1 gpu=6@on-demand p=50; a2 gpu=5@spot p=50").holds("beta", "b1 gpu=5@spot p=9001")
        .waits("alpha", "in gpu=5 p=100"),
    &[], &["a1 InClusterQueue"])]
// "use second flavor when the first has no preemption candidates; WhenCanPreempt: MayStopSearch".
#[case::the_second_if_the_first_has_no_candidates(
    alone("cpu=50", "cpu=100", "MayStopSearch").holds("q", "held cpu=50@on-demand").waits("q", "in cpu=20"), &["in@spot"], &[])]
// "admit to second flavor when first needs preemption; WhenCanPreempt: TryNextFlavor".
#[case::the_second_rather_than_preempt_in_the_first(
    alone("cpu=1", "cpu=1", "TryNextFlavor").holds("q", "held cpu=1@on-demand p=50").waits("q", "in cpu=1 p=100"), &["in@spot"], &[])]
#[case::preempt_in_the_first_if_that_stops_the_search(
    alone("cpu=1", "cpu=1", "MayStopSearch").holds("q", "held cpu=1@on-demand p=50").waits("q", "in cpu=1 p=100"),
    &[], &["held InClusterQueue"])]
// "not enough resources to borrow, fallback to next flavor; WhenCanPreempt: TryNextFlavor".
#[case::the_second_if_the_first_has_too_little_to_borrow(
    company().holds("beta", "held n=45 cpu=1@on-demand").waits("alpha", "in n=60 cpu=1"), &["in@spot"], &[])]
// "don't assign flavor if there are no candidates for preemption".
#[case::a_flavor_that_its_owner_uses_is_passed_over(
    all_borrowed().holds("lender", "held cpu=1@on-demand").waits("q", "in cpu=1 p=100"), &["in@spot"], &[])]
// "assign multiple resources and flavors".
#[case::each_pod_set_and_group_its_own(
    company().waits("beta", "in +one n=10 cpu=6 gpu=1 +two n=40 cpu=1"), &["in@cpu=on-demand,gpu=model-a|spot"], &[])]
// "pending admission check with nofit and fit flavors", without the check.
#[case::what_the_first_could_never_give(company().waits("beta", "in cpu=80"), &["in@spot"], &[])]
fn b40_the_flavor_follows_the_policy(#[case] mut scene: Scene, #[case] admitted: &[&str], #[case] evicted: &[&str]) {
    let decided = scene.decide();

    assert_eq!(decided.admitted, admitted);
    assert_eq!(decided.evicted, evicted);
}

/// `one` may be borrowed from another queue, of which 2 are in use; `two` has this much.
fn lent(q: &str, two: &str) -> Node {
    queue("q").within_cohort("c").quota("one", q).quota("two", two)
}

fn beside_a_lender(q: Node) -> Scene {
    Scene::new().queues([q, queue("lender").within_cohort("c").quota("one", "cpu=1")]).holds("q", "held cpu=2@one")
}

/// A pool of `one` that somebody borrows from; `two` is the queue's own.
fn beside_a_borrower(scene: Scene, q: impl Fn(Node) -> Node) -> Scene {
    let others = |name: &str, quota: &str| queue(name).within_cohort("c").quota("one", quota);
    scene
        .queues([q(queue("q").within_cohort("c").quota("one", "cpu=0").quota("two", "cpu=12"))])
        .queues([others("pool", "cpu=12"), others("borrower", "cpu=0")])
        .holds("borrower", "b1 cpu=5@one p=-1; b2 cpu=5@one p=-2")
}

fn lower_while_borrowing(queue: Node) -> Node {
    queue.reclaim("LowerPriority").while_borrowing(None)
}

/// A queue at the bottom of three cohorts, each with 4 of a flavor of its own; another queue in the middle one.
fn three_levels(q: impl Fn(Node) -> Node) -> Scene {
    let flavors = |name: &str, of: &str, one: &str| {
        queue(name).within_cohort(of).quota("one", one).quota("two", "cpu=0").quota("three", "cpu=0")
    };
    Scene::new()
        .cohorts([cohort("c3").quota("three", "cpu=4"), cohort("c2").under("c3").quota("two", "cpu=4")])
        .cohorts([cohort("c1").under("c2").quota("one", "cpu=4")])
        .queues([q(flavors("q", "c1", "cpu=0").within("LowerPriority").reclaim("LowerPriority"))])
        .queues([flavors("other", "c2", "cpu=0")])
}

fn next_if_it_would_preempt(queue: Node) -> Node {
    queue.fungible("MayStopSearch", "TryNextFlavor")
}

#[rstest]
// "borrow try next flavor, found the first flavor", "… the second flavor", "borrow before try next flavor".
#[case::borrow_in_the_first_if_the_second_has_too_little(
    beside_a_lender(over_preemption(lent("cpu=10+1", "cpu=1"))).waits("q", "in cpu=9"), &["in@one"], &[])]
#[case::the_second_rather_than_borrow(
    beside_a_lender(over_preemption(lent("cpu=10+1", "cpu=10"))).waits("q", "in cpu=9"), &["in@two"], &[])]
#[case::borrow_in_the_first_if_that_stops_the_search(
    beside_a_lender(lent("cpu=10+1", "cpu=10")).waits("q", "in cpu=9"), &["in@one"], &[])]
// "lend try next flavor, found the second flavor", "… the first flavor".
#[case::the_second_rather_than_borrow_what_is_lent(
    beside_a_lender(over_preemption(lent("cpu=10-1", "cpu=10-0"))).waits("q", "in cpu=9"), &["in@two"], &[])]
#[case::borrow_what_is_lent_if_the_second_has_too_little(
    beside_a_lender(over_preemption(lent("cpu=10-1", "cpu=1-0"))).waits("q", "in cpu=9"), &["in@one"], &[])]
// "when borrowing while preemption is needed for flavor one", by policy; there without a victim.
#[case::preempt_while_borrowing_if_both_stop_the_search(
    beside_a_borrower(Scene::new(), |q| lower_while_borrowing(q).fungible("MayStopSearch", "MayStopSearch")).waits("q", "in cpu=12"),
    &[], &["b1 InCohortReclaimWhileBorrowing", "b2 InCohortReclaimWhileBorrowing"])]
#[case::the_second_rather_than_preempt_while_borrowing(
    beside_a_borrower(Scene::new(), |q| lower_while_borrowing(q).fungible("TryNextFlavor", "MayStopSearch")).waits("q", "in cpu=12"),
    &["in@two"], &[])]
#[case::the_second_if_it_may_not_preempt_while_borrowing(
    beside_a_borrower(Scene::new(), |q| q.reclaim("Any").fungible("MayStopSearch", "MayStopSearch")).waits("q", "in cpu=12"),
    &["in@two"], &[])]
// The same with "fair sharing enabled, reclaimWithinCohort=Any", "… Never".
#[case::a_fair_share_in_the_first(
    beside_a_borrower(Scene::fair(), |q| q.reclaim("Any").fungible("MayStopSearch", "MayStopSearch")).waits("q", "in cpu=4"),
    &[], &["b2 InCohortFairSharing"])]
#[case::the_second_if_it_may_not_take_its_fair_share(
    beside_a_borrower(Scene::fair(), |q| q.reclaim("Never").fungible("MayStopSearch", "MayStopSearch")).waits("q", "in cpu=4"),
    &["in@two"], &[])]
// "multiple resource groups, one could fit with preemption, other doesn't fit".
#[case::nobody_goes_for_half_of_what_is_asked(
    Scene::new().queues([queue("q").quota("one", "cpu=3").and_group().quota("two", "memory=1Mi").within("LowerPriority")])
        .holds("q", "held cpu=1@one p=-1").waits("q", "in cpu=3 memory=10Mi"),
    &[], &[])]
// "multi-podset, one fits and another fails".
#[case::nothing_for_one_of_two_pod_sets(
    alone("cpu=3", "cpu=1", "MayStopSearch").waits("q", "in +one cpu=2 +two cpu=4"), &[], &[])]
// TestHierarchical, all cases.
#[case::the_top_of_the_tree(
    three_levels(next_if_it_would_preempt).holds("q", "own cpu=4@one").holds("other", "held cpu=4@two").waits("q", "in cpu=4"),
    &["in@three"], &[])]
#[case::the_first_that_fits(
    three_levels(next_if_it_would_preempt).holds("q", "own cpu=4@one").waits("q", "in cpu=4"), &["in@two"], &[])]
#[case::one_that_is_farther_and_fits_rather_than_one_without_candidates(
    three_levels(over_borrowing).queues([over_borrowing(queue("q").within_cohort("c1").quota("one", "cpu=4+0").quota("two", "cpu=0").quota("three", "cpu=0"))
        .within("LowerPriority").reclaim("LowerPriority")]).holds("q", "own cpu=4@one").waits("q", "in cpu=4"),
    &["in@two"], &[])]
fn b04_the_next_flavor_is_tried_as_the_policy_says(
    #[case] mut scene: Scene,
    #[case] admitted: &[&str],
    #[case] evicted: &[&str],
) {
    let decided = scene.decide();

    assert_eq!(decided.admitted, admitted);
    assert_eq!(decided.evicted, evicted);
}
