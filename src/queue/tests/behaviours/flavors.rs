//! Flavor assignment. B4–B6, B40, and cases of Kueue's tables on scheduling and flavor assignment
//! (`pkg/scheduler/scheduler_test.go`, `pkg/scheduler/flavorassigner/flavorassigner_test.go`).

use rstest::rstest;

use super::scene::{Decided, Node, Scene, cohort, company, queue};

/// Integration "Should try next flavor instead of borrowing".
#[test]
fn b04_next_flavor_is_preferred_to_borrowing_in_the_first() {
    let dev = queue("dev").within_cohort("all").quota("on-demand", "cpu=10+10").quota("spot", "cpu=11");
    let mut scene = Scene::new()
        .queues([queue("prod").within_cohort("all").quota("on-demand", "cpu=10+10")])
        .queues([dev.fungible("TryNextFlavor", "TryNextFlavor")])
        .waits("prod", "w1 cpu=9");
    scene.run();

    scene.submit_to("dev", "w2 cpu=11");

    assert_eq!(scene.decide().admitted, ["w2@spot"]);
}

/// One resource has to be reclaimed, which the policy prefers to borrowing the other, but a
/// borrower may not reclaim.
#[test]
fn workload_is_not_admitted_until_all_its_resources_fit() {
    let a = queue("a").within_cohort("all").quota("spot", "cpu=2 memory=1").reclaim("Any");
    let mut scene = Scene::new()
        .queues([a.preempts_rather_than_borrows("TryNextFlavor", "TryNextFlavor")])
        .queues([queue("b").within_cohort("all").quota("spot", "cpu=2 memory=4")])
        .holds("a", "mine cpu=1@spot memory=1@spot")
        .holds("b", "theirs cpu=3@spot memory=1@spot")
        .waits("a", "w cpu=1 memory=1");

    assert_eq!(scene.decide(), Decided::default(), "a workload that borrows one resource may not reclaim the other");
}

/// Integration "Should preempt before try next flavor".
#[test]
fn b05_reclaiming_in_first_flavor_is_preferred_to_the_next() {
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
fn b06_next_flavor_is_used_if_the_first_has_no_preemption_candidates() {
    let queue = queue("q").quota("on-demand", "cpu=2").quota("spot", "cpu=2").within("LowerPriority").strict();
    let mut scene = Scene::new()
        .queues([queue.fungible("MayStopSearch", "MayStopSearch")])
        .waits("q", "w1 cpu=1; w2 cpu=1; w3 cpu=1 t=1001");

    assert_eq!(scene.decide().admitted, ["w1@on-demand", "w2@on-demand", "w3@spot"]);
}

/// Integration "finds correct flavor by discarding the first one in which preemption is not
/// possible".
#[test]
fn b06_evicted_workload_moves_to_the_flavor_where_it_can_preempt() {
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

fn preferring(policy: impl Fn(Node) -> Node) -> Scene {
    let borrower = queue("q").within_cohort("c").quota("on-demand", "cpu=5+0").quota("spot", "cpu=0+5");
    Scene::new()
        .queues([policy(borrower.within("LowerPriority"))])
        .queues([queue("lender").within_cohort("c").quota("on-demand", "cpu=0").quota("spot", "cpu=5")])
}

fn over_borrowing(queue: Node) -> Node {
    queue.preempts_rather_than_borrows("TryNextFlavor", "TryNextFlavor")
}

fn over_preemption(queue: Node) -> Node {
    queue.fungible("TryNextFlavor", "TryNextFlavor")
}

/// Returns a queue in a cohort whose parent has the quota of the second flavor.
fn with_an_idle_sibling() -> Scene {
    let q =
        queue("q").within_cohort("mid").quota("on-demand", "cpu=5+0").quota("spot", "cpu=0").within("LowerPriority");
    Scene::new()
        .cohorts([cohort("root").quota("on-demand", "cpu=0").quota("spot", "cpu=5"), cohort("mid").under("root")])
        .queues([over_borrowing(q)])
        .queues([queue("sibling").within_cohort("mid").quota("on-demand", "cpu=5").quota("spot", "cpu=0")])
}

/// Returns two queues with two flavors of GPU; `beta` has no quota and borrows.
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
#[case::b40_preempts_in_first(
    preferring(over_borrowing).holds("q", "low cpu=5@on-demand p=-1").waits("q", "high cpu=5"), &[], &["low InClusterQueue"])]
// "BorrowingOverPreemption preference: borrow in second flavor instead of preempting in first".
#[case::b40_borrows_in_second(
    preferring(over_preemption).holds("q", "low cpu=5@on-demand p=-1").waits("q", "high cpu=5"), &["high@spot"], &[])]
// "PreemptionOverBorrowing preference: select fitting second flavor over first flavor with no
// preemption candidates".
#[case::b40_fitting_flavor_is_preferred_to_one_without_candidates(
    with_an_idle_sibling().holds("q", "held cpu=5@on-demand").waits("q", "in cpu=5"), &["in@spot"], &[])]
// "prefer reclamation over cq priority based preemption".
#[case::reclaiming_is_preferred_to_preempting_within_queue(
    two_flavors(|beta| beta.within("LowerPriority").reclaim("LowerPriority"))
        .holds("alpha", "a1 gpu=5@on-demand p=50").holds("beta", "b1 gpu=5@spot p=50").waits("alpha", "in gpu=6 p=100"),
    &[], &["b1 InCohortReclamation"])]
// "prefer first preemption flavor when second flavor requires both reclaim and cq priority
// preemption".
#[case::first_if_both_preempt_within_queue(
    two_flavors(|beta| beta).holds("alpha", "a1 gpu=5@on-demand p=50; a2 gpu=5@spot p=50").holds("beta", "b1 gpu=5@spot p=50")
        .waits("alpha", "in gpu=6 p=100"),
    &[], &["a1 InClusterQueue"])]
// "prefer first preemption flavor when second flavor also requires cq preemption".
#[case::first_if_borrower_of_second_has_higher_priority(
    two_flavors(|beta| beta).holds("alpha", "a1 gpu=6@on-demand p=50; a2 gpu=5@spot p=50").holds("beta", "b1 gpu=5@spot p=9001")
        .waits("alpha", "in gpu=5 p=100"),
    &[], &["a1 InClusterQueue"])]
// "use second flavor when the first has no preemption candidates; WhenCanPreempt: MayStopSearch".
#[case::second_if_first_has_no_candidates(
    alone("cpu=50", "cpu=100", "MayStopSearch").holds("q", "held cpu=50@on-demand").waits("q", "in cpu=20"), &["in@spot"], &[])]
// "admit to second flavor when first needs preemption; WhenCanPreempt: TryNextFlavor".
#[case::second_is_preferred_to_preempting_in_first(
    alone("cpu=1", "cpu=1", "TryNextFlavor").holds("q", "held cpu=1@on-demand p=50").waits("q", "in cpu=1 p=100"), &["in@spot"], &[])]
#[case::preempts_in_first_if_search_may_stop(
    alone("cpu=1", "cpu=1", "MayStopSearch").holds("q", "held cpu=1@on-demand p=50").waits("q", "in cpu=1 p=100"),
    &[], &["held InClusterQueue"])]
// "not enough resources to borrow, fallback to next flavor; WhenCanPreempt: TryNextFlavor".
#[case::second_if_first_lacks_quota_to_borrow(
    company().holds("beta", "held n=45 cpu=1@on-demand").waits("alpha", "in n=60 cpu=1"), &["in@spot"], &[])]
// "don't assign flavor if there are no candidates for preemption".
#[case::flavor_used_by_its_owner_is_skipped(
    all_borrowed().holds("lender", "held cpu=1@on-demand").waits("q", "in cpu=1 p=100"), &["in@spot"], &[])]
// "assign multiple resources and flavors".
#[case::pod_sets_and_resource_groups_get_different_flavors(
    company().waits("beta", "in +one n=10 cpu=6 gpu=1 +two n=40 cpu=1"), &["in@cpu=on-demand,gpu=model-a|spot"], &[])]
// "pending admission check with nofit and fit flavors", without the check.
#[case::second_if_request_exceeds_first(company().waits("beta", "in cpu=80"), &["in@spot"], &[])]
fn b40_flavor_fungibility_selects_expected_flavor(
    #[case] mut scene: Scene,
    #[case] admitted: &[&str],
    #[case] evicted: &[&str],
) {
    let decided = scene.decide();

    assert_eq!(decided.admitted, admitted);
    assert_eq!(decided.evicted, evicted);
}

/// Returns a queue with these quotas of the flavors `one` and `two`.
fn lent(one: &str, two: &str) -> Node {
    queue("q").within_cohort("c").quota("one", one).quota("two", two)
}

fn beside_a_lender(q: Node) -> Scene {
    Scene::new().queues([q, queue("lender").within_cohort("c").quota("one", "cpu=1")]).holds("q", "held cpu=2@one")
}

/// Returns a queue with quota of `two`, and a pool of `one` from which another queue borrows.
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

/// Returns a queue below three nested cohorts, each with 4 CPUs of a different flavor, and another
/// queue in the middle one.
fn three_levels(q: impl Fn(Node) -> Node) -> Scene {
    let flavors = |name: &str, cohort: &str, one: &str| {
        queue(name).within_cohort(cohort).quota("one", one).quota("two", "cpu=0").quota("three", "cpu=0")
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
// "borrow try next flavor, found the first flavor", "… the second flavor", "borrow before try next
// flavor".
#[case::borrows_in_first_if_second_is_too_small(
    beside_a_lender(over_preemption(lent("cpu=10+1", "cpu=1"))).waits("q", "in cpu=9"), &["in@one"], &[])]
#[case::second_is_preferred_to_borrowing(
    beside_a_lender(over_preemption(lent("cpu=10+1", "cpu=10"))).waits("q", "in cpu=9"), &["in@two"], &[])]
#[case::borrows_in_first_if_search_may_stop(
    beside_a_lender(lent("cpu=10+1", "cpu=10")).waits("q", "in cpu=9"), &["in@one"], &[])]
// "lend try next flavor, found the second flavor", "… the first flavor".
#[case::second_is_preferred_to_borrowing_with_lending_limits(
    beside_a_lender(over_preemption(lent("cpu=10-1", "cpu=10-0"))).waits("q", "in cpu=9"), &["in@two"], &[])]
#[case::borrows_within_lending_limit_if_second_is_too_small(
    beside_a_lender(over_preemption(lent("cpu=10-1", "cpu=1-0"))).waits("q", "in cpu=9"), &["in@one"], &[])]
// "when borrowing while preemption is needed for flavor one", by policy; in Kueue without a target.
#[case::preempts_while_borrowing_if_search_may_stop(
    beside_a_borrower(Scene::new(), |q| lower_while_borrowing(q).fungible("MayStopSearch", "MayStopSearch")).waits("q", "in cpu=12"),
    &[], &["b1 InCohortReclaimWhileBorrowing", "b2 InCohortReclaimWhileBorrowing"])]
#[case::second_is_preferred_to_preempting_while_borrowing(
    beside_a_borrower(Scene::new(), |q| lower_while_borrowing(q).fungible("TryNextFlavor", "MayStopSearch")).waits("q", "in cpu=12"),
    &["in@two"], &[])]
#[case::second_if_preempting_while_borrowing_is_forbidden(
    beside_a_borrower(Scene::new(), |q| q.reclaim("Any").fungible("MayStopSearch", "MayStopSearch")).waits("q", "in cpu=12"),
    &["in@two"], &[])]
// The same with "fair sharing enabled, reclaimWithinCohort=Any", "… Never".
#[case::fair_share_in_first(
    beside_a_borrower(Scene::fair(), |q| q.reclaim("Any").fungible("MayStopSearch", "MayStopSearch")).waits("q", "in cpu=4"),
    &[], &["b2 InCohortFairSharing"])]
#[case::second_if_reclaiming_is_forbidden(
    beside_a_borrower(Scene::fair(), |q| q.reclaim("Never").fungible("MayStopSearch", "MayStopSearch")).waits("q", "in cpu=4"),
    &["in@two"], &[])]
// "multiple resource groups, one could fit with preemption, other doesn't fit".
#[case::no_preemption_if_another_resource_does_not_fit(
    Scene::new().queues([queue("q").quota("one", "cpu=3").and_group().quota("two", "memory=1Mi").within("LowerPriority")])
        .holds("q", "held cpu=1@one p=-1").waits("q", "in cpu=3 memory=10Mi"),
    &[], &[])]
// "multi-podset, one fits and another fails".
#[case::no_admission_if_one_pod_set_does_not_fit(
    alone("cpu=3", "cpu=1", "MayStopSearch").waits("q", "in +one cpu=2 +two cpu=4"), &[], &[])]
// TestHierarchical, all cases.
#[case::flavor_of_the_root_cohort(
    three_levels(next_if_it_would_preempt).holds("q", "own cpu=4@one").holds("other", "held cpu=4@two").waits("q", "in cpu=4"),
    &["in@three"], &[])]
#[case::first_flavor_that_fits(
    three_levels(next_if_it_would_preempt).holds("q", "own cpu=4@one").waits("q", "in cpu=4"), &["in@two"], &[])]
#[case::farther_flavor_that_fits_is_preferred_to_one_without_candidates(
    three_levels(over_borrowing).queues([over_borrowing(queue("q").within_cohort("c1").quota("one", "cpu=4+0").quota("two", "cpu=0").quota("three", "cpu=0"))
        .within("LowerPriority").reclaim("LowerPriority")]).holds("q", "own cpu=4@one").waits("q", "in cpu=4"),
    &["in@two"], &[])]
fn b04_flavor_fungibility_decides_whether_next_flavor_is_tried(
    #[case] mut scene: Scene,
    #[case] admitted: &[&str],
    #[case] evicted: &[&str],
) {
    let decided = scene.decide();

    assert_eq!(decided.admitted, admitted);
    assert_eq!(decided.evicted, evicted);
}
