//! Flavor assignment. B4–B6, B40, and cases of Kueue's tables on scheduling and flavor assignment
//! (`pkg/scheduler/scheduler_test.go`, `pkg/scheduler/flavorassigner/flavorassigner_test.go`).

use rstest::rstest;
use serde_json::json;

use super::scene::{CycleDecisions, QueueOrCohort, Scene, cohort, queue, three_teams};
use sluice_api::kueue::names;

/// Integration "Should try next flavor instead of borrowing".
#[test]
fn b04_next_flavor_is_preferred_to_borrowing_in_the_first() {
    let dev = queue("dev").within_cohort("all").quota("on-demand", "cpu=10+10").quota("spot", "cpu=11");
    let mut scene = Scene::new()
        .queues([queue("prod").within_cohort("all").quota("on-demand", "cpu=10+10")])
        .queues([dev.flavor_fungibility("TryNextFlavor", "TryNextFlavor")])
        .pending("prod", "w1 cpu=9");
    scene.run_until_stable();

    scene.submit_to("dev", "w2 cpu=11");

    assert_eq!(scene.decide().admitted, ["w2@spot"]);
}

/// One resource has to be reclaimed, which the policy prefers to borrowing the other, but a
/// borrower may not reclaim.
#[test]
fn workload_is_not_admitted_until_all_its_resources_fit() {
    let a = queue("a").within_cohort("all").quota("spot", "cpu=2 memory=1").reclaims("Any");
    let mut scene = Scene::new()
        .queues([a.prefers_preemption_over_borrowing("TryNextFlavor", "TryNextFlavor")])
        .queues([queue("b").within_cohort("all").quota("spot", "cpu=2 memory=4")])
        .admitted("a", "mine cpu=1@spot memory=1@spot")
        .admitted("b", "theirs cpu=3@spot memory=1@spot")
        .pending("a", "w cpu=1 memory=1");

    assert_eq!(
        scene.decide(),
        CycleDecisions::default(),
        "a workload that borrows one resource may not reclaim the other"
    );
}

/// Integration "Should preempt before try next flavor".
#[test]
fn b05_reclaiming_in_first_flavor_is_preferred_to_the_next() {
    let prod = queue("prod").within_cohort("all").quota("on-demand", "cpu=10+10").quota("spot", "cpu=11");
    let mut scene = Scene::new()
        .queues([prod.reclaims("Any").flavor_fungibility("MayStopSearch", "MayStopSearch")])
        .queues([queue("dev").within_cohort("all").quota("on-demand", "cpu=10+10")])
        .pending("dev", "w1 cpu=9; w2 cpu=9 p=1");
    scene.run_until_stable();
    scene.submit_to("prod", "w3 cpu=5");

    assert_eq!(scene.decide().evicted, ["w1 InCohortReclamation"]);
    assert_eq!(scene.run_with_evictions(), ["w3"]);
    assert_eq!(scene.flavors_of("w3"), "on-demand");
}

/// Integration "Should try next flavor if can't preempt on first".
#[test]
fn b06_next_flavor_is_used_if_the_first_has_no_preemption_candidates() {
    let queue = queue("q").quota("on-demand", "cpu=2").quota("spot", "cpu=2").preempts_within("LowerPriority").strict();
    let mut scene = Scene::new()
        .queues([queue.flavor_fungibility("MayStopSearch", "MayStopSearch")])
        .pending("q", "w1 cpu=1; w2 cpu=1; w3 cpu=1 t=1001");

    assert_eq!(scene.decide().admitted, ["w1@on-demand", "w2@on-demand", "w3@spot"]);
}

/// Integration "finds correct flavor by discarding the first one in which preemption is not
/// possible".
#[test]
fn b06_evicted_workload_moves_to_the_flavor_where_it_can_preempt() {
    let member = |name: &str, first: &str, second: &str| {
        let queue = queue(name).within_cohort("c").quota("f1", first).quota("f2", second);
        let queue = queue.preempts_within("LowerPriority").reclaims("Any").preempts_while_borrowing(None);
        queue.flavor_fungibility("TryNextFlavor", "TryNextFlavor")
    };
    let mut scene = Scene::new()
        .queues([member("q1", "cpu=0", "cpu=1"), member("q2", "cpu=1", "cpu=0")])
        .pending("q1", "low cpu=1");
    assert_eq!(scene.decide().admitted, ["low@f2"]);
    scene.run_until_stable();
    scene.submit_to("q1", "high cpu=1 p=9999");
    assert_eq!(scene.decide().admitted, ["high@f1"]);
    scene.run_until_stable();

    scene.submit_to("q2", "middle cpu=1 p=105");
    assert_eq!(scene.decide().evicted, ["high InCohortReclamation"]);
    scene.run_until_stable();
    scene.release_quota("high");
    assert_eq!(scene.decide().evicted, ["low InClusterQueue"]);
    assert_eq!(scene.run_with_evictions(), ["middle", "high"]);

    assert_eq!((scene.flavors_of("middle").as_str(), scene.flavors_of("high").as_str()), ("f1", "f2"));
}

fn two_flavors_with_policy(policy: impl Fn(QueueOrCohort) -> QueueOrCohort) -> Scene {
    let borrower = queue("q").within_cohort("c").quota("on-demand", "cpu=5+0").quota("spot", "cpu=0+5");
    Scene::new()
        .queues([policy(borrower.preempts_within("LowerPriority"))])
        .queues([queue("lender").within_cohort("c").quota("on-demand", "cpu=0").quota("spot", "cpu=5")])
}

fn preempt_over_borrowing(queue: QueueOrCohort) -> QueueOrCohort {
    queue.prefers_preemption_over_borrowing("TryNextFlavor", "TryNextFlavor")
}

fn borrow_over_preemption(queue: QueueOrCohort) -> QueueOrCohort {
    queue.flavor_fungibility("TryNextFlavor", "TryNextFlavor")
}

/// Returns a queue in a cohort whose parent has the quota of the second flavor.
fn with_an_idle_sibling() -> Scene {
    let q = queue("q")
        .within_cohort("mid")
        .quota("on-demand", "cpu=5+0")
        .quota("spot", "cpu=0")
        .preempts_within("LowerPriority");
    Scene::new()
        .cohorts([cohort("root").quota("on-demand", "cpu=0").quota("spot", "cpu=5"), cohort("mid").with_parent("root")])
        .queues([preempt_over_borrowing(q)])
        .queues([queue("sibling").within_cohort("mid").quota("on-demand", "cpu=5").quota("spot", "cpu=0")])
}

/// Returns two queues with two flavors of GPU; `beta` has no quota and borrows.
fn two_gpu_flavors(beta: impl Fn(QueueOrCohort) -> QueueOrCohort) -> Scene {
    let member = |name: &str, gpus: &str| queue(name).within_cohort("c").quota("on-demand", gpus).quota("spot", gpus);
    Scene::new().queues([
        member("alpha", "gpu=10").preempts_within("LowerPriority").reclaims("LowerPriority"),
        beta(member("beta", "gpu=0")),
    ])
}

fn single_queue_with_two_flavors(first: &str, second: &str, when_can_preempt: &str) -> Scene {
    let queue = queue("q").quota("on-demand", first).quota("spot", second).preempts_within("LowerPriority");
    Scene::new().queues([queue.flavor_fungibility("MayStopSearch", when_can_preempt)])
}

fn borrower_of_two_flavors() -> Scene {
    let q = queue("q").within_cohort("c").quota("on-demand", "cpu=0+1").quota("spot", "cpu=0+1");
    let q = q
        .preempts_within("LowerPriority")
        .reclaims("Any")
        .preempts_while_borrowing(None)
        .flavor_fungibility("MayStopSearch", "MayStopSearch");
    Scene::new().queues([q, queue("lender").within_cohort("c").quota("on-demand", "cpu=1").quota("spot", "cpu=1")])
}

#[rstest]
// "PreemptionOverBorrowing preference: preempt in first flavor instead of borrowing in second".
#[case::b40_preempts_in_first(
    two_flavors_with_policy(preempt_over_borrowing).admitted("q", "low cpu=5@on-demand p=-1").pending("q", "high cpu=5"), &[], &["low InClusterQueue"])]
// "BorrowingOverPreemption preference: borrow in second flavor instead of preempting in first".
#[case::b40_borrows_in_second(
    two_flavors_with_policy(borrow_over_preemption).admitted("q", "low cpu=5@on-demand p=-1").pending("q", "high cpu=5"), &["high@spot"], &[])]
// "PreemptionOverBorrowing preference: select fitting second flavor over first flavor with no
// preemption candidates".
#[case::b40_fitting_flavor_is_preferred_to_one_without_candidates(
    with_an_idle_sibling().admitted("q", "held cpu=5@on-demand").pending("q", "in cpu=5"), &["in@spot"], &[])]
// "prefer reclamation over cq priority based preemption".
#[case::reclaiming_is_preferred_to_preempting_within_queue(
    two_gpu_flavors(|beta| beta.preempts_within("LowerPriority").reclaims("LowerPriority"))
        .admitted("alpha", "a1 gpu=5@on-demand p=50").admitted("beta", "b1 gpu=5@spot p=50").pending("alpha", "in gpu=6 p=100"),
    &[], &["b1 InCohortReclamation"])]
// "prefer first preemption flavor when second flavor requires both reclaim and cq priority
// preemption".
#[case::first_if_both_preempt_within_queue(
    two_gpu_flavors(|beta| beta).admitted("alpha", "a1 gpu=5@on-demand p=50; a2 gpu=5@spot p=50").admitted("beta", "b1 gpu=5@spot p=50")
        .pending("alpha", "in gpu=6 p=100"),
    &[], &["a1 InClusterQueue"])]
// "prefer first preemption flavor when second flavor also requires cq preemption".
#[case::first_if_borrower_of_second_has_higher_priority(
    two_gpu_flavors(|beta| beta).admitted("alpha", "a1 gpu=6@on-demand p=50; a2 gpu=5@spot p=50").admitted("beta", "b1 gpu=5@spot p=9001")
        .pending("alpha", "in gpu=5 p=100"),
    &[], &["a1 InClusterQueue"])]
// "use second flavor when the first has no preemption candidates; WhenCanPreempt: MayStopSearch".
#[case::second_if_first_has_no_candidates(
    single_queue_with_two_flavors("cpu=50", "cpu=100", "MayStopSearch").admitted("q", "held cpu=50@on-demand").pending("q", "in cpu=20"), &["in@spot"], &[])]
// "admit to second flavor when first needs preemption; WhenCanPreempt: TryNextFlavor".
#[case::second_is_preferred_to_preempting_in_first(
    single_queue_with_two_flavors("cpu=1", "cpu=1", "TryNextFlavor").admitted("q", "held cpu=1@on-demand p=50").pending("q", "in cpu=1 p=100"), &["in@spot"], &[])]
#[case::preempts_in_first_if_search_may_stop(
    single_queue_with_two_flavors("cpu=1", "cpu=1", "MayStopSearch").admitted("q", "held cpu=1@on-demand p=50").pending("q", "in cpu=1 p=100"),
    &[], &["held InClusterQueue"])]
// "not enough resources to borrow, fallback to next flavor; WhenCanPreempt: TryNextFlavor".
#[case::second_if_first_lacks_quota_to_borrow(
    three_teams().admitted("beta", "held n=45 cpu=1@on-demand").pending("alpha", "in n=60 cpu=1"), &["in@spot"], &[])]
// "don't assign flavor if there are no candidates for preemption".
#[case::flavor_used_by_its_owner_is_skipped(
    borrower_of_two_flavors().admitted("lender", "held cpu=1@on-demand").pending("q", "in cpu=1 p=100"), &["in@spot"], &[])]
// "assign multiple resources and flavors".
#[case::pod_sets_and_resource_groups_get_different_flavors(
    three_teams().pending("beta", "in +one n=10 cpu=6 gpu=1 +two n=40 cpu=1"), &["in@cpu=on-demand,gpu=model-a|spot"], &[])]
// "pending admission check with nofit and fit flavors", without the check.
#[case::second_if_request_exceeds_first(three_teams().pending("beta", "in cpu=80"), &["in@spot"], &[])]
fn b40_flavor_fungibility_selects_expected_flavor(
    #[case] mut scene: Scene,
    #[case] admitted: &[&str],
    #[case] evicted: &[&str],
) {
    let decided = scene.decide();

    assert_eq!(decided.admitted, admitted);
    assert_eq!(decided.evicted, evicted);
}

/// Returns a queue with a flavor of CPUs and one of GPUs in each of two zones; `None` for no flavor.
fn two_zones(cpu: [Option<&str>; 2], gpu: [Option<&str>; 2]) -> Scene {
    let mut scene = Scene::new();
    let mut node = queue("q").preempts_within("LowerPriority");
    for (kind, quotas) in [("cpu", cpu), ("gpu", gpu)] {
        for (zone, quota) in ["east", "west"].into_iter().zip(quotas) {
            let flavor = format!("{kind}-{zone}");
            scene.put_flavor_with(&flavor, json!({"nodeLabels": {"zone": zone}}));
            if let Some(quota) = quota {
                node = node.quota(&flavor, quota);
            }
        }
        node = if kind == "cpu" { node.next_group() } else { node };
    }
    scene.queues([node])
}

const CPUS: [Option<&str>; 2] = [Some("cpu=8"), Some("cpu=8")];

/// kubernetes-sigs/kueue#14409: the pods would fit on no node.
#[rstest]
#[case::first_zone(two_zones(CPUS, [Some("gpu=2"), Some("gpu=2")]).pending("q", "in cpu=1 gpu=1"), &["in@cpu=cpu-east,gpu=gpu-east"], &[])]
#[case::zone_with_gpus(two_zones(CPUS, [None, Some("gpu=2")]).pending("q", "in cpu=1 gpu=1"), &["in@cpu=cpu-west,gpu=gpu-west"], &[])]
#[case::zone_with_enough_quota(
    two_zones(CPUS, [Some("gpu=1"), Some("gpu=2")]).pending("q", "in cpu=1 gpu=2"), &["in@cpu=cpu-west,gpu=gpu-west"], &[])]
#[case::zone_with_unused_quota(
    two_zones(CPUS, [Some("gpu=2"), Some("gpu=2")]).admitted("q", "held gpu=2@gpu-east").pending("q", "in cpu=1 gpu=1"),
    &["in@cpu=cpu-west,gpu=gpu-west"], &[])]
#[case::zone_with_preemption_candidates(
    two_zones(CPUS, [Some("gpu=2"), Some("gpu=2")]).admitted("q", "held gpu=2@gpu-east p=5; low gpu=2@gpu-west p=1").pending("q", "in cpu=1 gpu=1 p=2"),
    &[], &["low InClusterQueue"])]
#[case::no_common_zone(two_zones([Some("cpu=8"), None], [None, Some("gpu=2")]).pending("q", "in cpu=1 gpu=1"), &[], &[])]
#[case::pod_sets_in_different_zones(
    two_zones([Some("cpu=8"), None], [None, Some("gpu=2")]).pending("q", "in +one cpu=1 +two gpu=1"), &["in@cpu-east|gpu-west"], &[])]
fn flavors_of_one_pod_set_do_not_contradict_each_other(
    #[case] mut scene: Scene,
    #[case] admitted: &[&str],
    #[case] evicted: &[&str],
) {
    let decided = scene.decide();

    assert_eq!(decided.admitted, admitted);
    assert_eq!(decided.evicted, evicted);
}

#[rstest]
#[case::other_resource_has_no_flavor_there(
    two_zones([Some("cpu=8"), None], [None, Some("gpu=2")]), "NoMatchingFlavor",
    "flavor cpu-east does not match: no flavor for gpu is compatible with its node label zone=east")]
#[case::other_resource_is_used_there(
    two_zones(CPUS, [None, Some("gpu=2")]).admitted("q", "held gpu=2@gpu-west"), "WaitingForQuota", "gpu-west")]
#[case::other_resource_is_never_enough(
    two_zones(CPUS, [Some("gpu=0"), None]), "ExceedsMaxQuota", "gpu-east")]
fn reason_names_what_contradicts_or_is_short(#[case] scene: Scene, #[case] reason: &str, #[case] message: &str) {
    let mut scene = scene.pending("q", "in cpu=1 gpu=1");
    scene.run_until_stable();

    let condition = scene.reason_and_message("in", names::QUOTA_RESERVED);

    assert_eq!(condition.0, reason);
    assert!(condition.1.contains(message), "{}", condition.1);
}

/// Returns a queue with these quotas of the flavors `one` and `two`.
fn queue_with_two_flavors(one: &str, two: &str) -> QueueOrCohort {
    queue("q").within_cohort("c").quota("one", one).quota("two", two)
}

fn with_lender(q: QueueOrCohort) -> Scene {
    Scene::new().queues([q, queue("lender").within_cohort("c").quota("one", "cpu=1")]).admitted("q", "held cpu=2@one")
}

/// Returns a queue with quota of `two`, and a pool of `one` from which another queue borrows.
fn with_borrower(scene: Scene, q: impl Fn(QueueOrCohort) -> QueueOrCohort) -> Scene {
    let others = |name: &str, quota: &str| queue(name).within_cohort("c").quota("one", quota);
    scene
        .queues([q(queue("q").within_cohort("c").quota("one", "cpu=0").quota("two", "cpu=12"))])
        .queues([others("pool", "cpu=12"), others("borrower", "cpu=0")])
        .admitted("borrower", "b1 cpu=5@one p=-1; b2 cpu=5@one p=-2")
}

fn reclaim_lower_priority_while_borrowing(queue: QueueOrCohort) -> QueueOrCohort {
    queue.reclaims("LowerPriority").preempts_while_borrowing(None)
}

/// Returns a queue below three nested cohorts, each with 4 CPUs of a different flavor, and another
/// queue in the middle one.
fn three_nested_cohorts(q: impl Fn(QueueOrCohort) -> QueueOrCohort) -> Scene {
    let flavors = |name: &str, cohort: &str, one: &str| {
        queue(name).within_cohort(cohort).quota("one", one).quota("two", "cpu=0").quota("three", "cpu=0")
    };
    Scene::new()
        .cohorts([cohort("c3").quota("three", "cpu=4"), cohort("c2").with_parent("c3").quota("two", "cpu=4")])
        .cohorts([cohort("c1").with_parent("c2").quota("one", "cpu=4")])
        .queues([q(flavors("q", "c1", "cpu=0").preempts_within("LowerPriority").reclaims("LowerPriority"))])
        .queues([flavors("other", "c2", "cpu=0")])
}

fn try_next_instead_of_preempting(queue: QueueOrCohort) -> QueueOrCohort {
    queue.flavor_fungibility("MayStopSearch", "TryNextFlavor")
}

#[rstest]
// "borrow try next flavor, found the first flavor", "… the second flavor", "borrow before try next
// flavor".
#[case::borrows_in_first_if_second_is_too_small(
    with_lender(borrow_over_preemption(queue_with_two_flavors("cpu=10+1", "cpu=1"))).pending("q", "in cpu=9"), &["in@one"], &[])]
#[case::second_is_preferred_to_borrowing(
    with_lender(borrow_over_preemption(queue_with_two_flavors("cpu=10+1", "cpu=10"))).pending("q", "in cpu=9"), &["in@two"], &[])]
#[case::borrows_in_first_if_search_may_stop(
    with_lender(queue_with_two_flavors("cpu=10+1", "cpu=10")).pending("q", "in cpu=9"), &["in@one"], &[])]
// "lend try next flavor, found the second flavor", "… the first flavor".
#[case::second_is_preferred_to_borrowing_with_lending_limits(
    with_lender(borrow_over_preemption(queue_with_two_flavors("cpu=10-1", "cpu=10-0"))).pending("q", "in cpu=9"), &["in@two"], &[])]
#[case::borrows_within_lending_limit_if_second_is_too_small(
    with_lender(borrow_over_preemption(queue_with_two_flavors("cpu=10-1", "cpu=1-0"))).pending("q", "in cpu=9"), &["in@one"], &[])]
// "when borrowing while preemption is needed for flavor one", by policy; in Kueue without a target.
#[case::preempts_while_borrowing_if_search_may_stop(
    with_borrower(Scene::new(), |q| reclaim_lower_priority_while_borrowing(q).flavor_fungibility("MayStopSearch", "MayStopSearch")).pending("q", "in cpu=12"),
    &[], &["b1 InCohortReclaimWhileBorrowing", "b2 InCohortReclaimWhileBorrowing"])]
#[case::second_is_preferred_to_preempting_while_borrowing(
    with_borrower(Scene::new(), |q| reclaim_lower_priority_while_borrowing(q).flavor_fungibility("TryNextFlavor", "MayStopSearch")).pending("q", "in cpu=12"),
    &["in@two"], &[])]
#[case::second_if_preempting_while_borrowing_is_forbidden(
    with_borrower(Scene::new(), |q| q.reclaims("Any").flavor_fungibility("MayStopSearch", "MayStopSearch")).pending("q", "in cpu=12"),
    &["in@two"], &[])]
// The same with "fair sharing enabled, reclaimWithinCohort=Any", "… Never".
#[case::fair_share_in_first(
    with_borrower(Scene::fair_sharing(), |q| q.reclaims("Any").flavor_fungibility("MayStopSearch", "MayStopSearch")).pending("q", "in cpu=4"),
    &[], &["b2 InCohortFairSharing"])]
#[case::second_if_reclaiming_is_forbidden(
    with_borrower(Scene::fair_sharing(), |q| q.reclaims("Never").flavor_fungibility("MayStopSearch", "MayStopSearch")).pending("q", "in cpu=4"),
    &["in@two"], &[])]
// "multiple resource groups, one could fit with preemption, other doesn't fit".
#[case::no_preemption_if_another_resource_does_not_fit(
    Scene::new().queues([queue("q").quota("one", "cpu=3").next_group().quota("two", "memory=1Mi").preempts_within("LowerPriority")])
        .admitted("q", "held cpu=1@one p=-1").pending("q", "in cpu=3 memory=10Mi"),
    &[], &[])]
// "multi-podset, one fits and another fails".
#[case::no_admission_if_one_pod_set_does_not_fit(
    single_queue_with_two_flavors("cpu=3", "cpu=1", "MayStopSearch").pending("q", "in +one cpu=2 +two cpu=4"), &[], &[])]
// TestHierarchical, all cases.
#[case::flavor_of_the_root_cohort(
    three_nested_cohorts(try_next_instead_of_preempting).admitted("q", "own cpu=4@one").admitted("other", "held cpu=4@two").pending("q", "in cpu=4"),
    &["in@three"], &[])]
#[case::first_flavor_that_fits(
    three_nested_cohorts(try_next_instead_of_preempting).admitted("q", "own cpu=4@one").pending("q", "in cpu=4"), &["in@two"], &[])]
#[case::farther_flavor_that_fits_is_preferred_to_one_without_candidates(
    three_nested_cohorts(preempt_over_borrowing).queues([preempt_over_borrowing(queue("q").within_cohort("c1").quota("one", "cpu=4+0").quota("two", "cpu=0").quota("three", "cpu=0"))
        .preempts_within("LowerPriority").reclaims("LowerPriority")]).admitted("q", "own cpu=4@one").pending("q", "in cpu=4"),
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
