//! Scheduling order and convergence of shares under fair sharing. B45–B48, and the cases of Kueue's
//! table on scheduling with fair sharing (`pkg/scheduler/scheduler_fs_test.go`) and of its
//! integration tests.

use rstest::rstest;

use super::scene::{CycleDecisions, QueueOrCohort, Scene, cohort, queue, three_teams};
use crate::Settings;
use crate::settings::FairSharing;

fn member(name: &str, cohort: &str, quota: &str) -> QueueOrCohort {
    queue(name).within_cohort(cohort).has(quota)
}

fn preempting_member(name: &str, cohort: &str, quota: &str) -> QueueOrCohort {
    member(name, cohort, quota).preempts_within("LowerPriority").reclaims("Any")
}

fn fair_company() -> Scene {
    three_teams().with_settings(Settings { fair_sharing: Some(FairSharing::default()), ..Settings::default() })
}

/// Returns a queue that borrows much of the second flavor, and one that borrows little of the
/// first.
fn two_queues_with_two_flavors() -> Scene {
    let a = queue("a").within_cohort("c").quota("on-demand", "cpu=50+0").quota("spot", "cpu=50+50");
    let b = queue("b").within_cohort("c").quota("on-demand", "cpu=10+50").quota("spot", "cpu=0+0");
    Scene::fair_sharing().queues([a, b, queue("c").within_cohort("c").quota("spot", "cpu=50")])
}

fn borrowing_and_idle_subtrees(a: [QueueOrCohort; 2], others: impl IntoIterator<Item = QueueOrCohort>) -> Scene {
    let [cohort_a, a] = a;
    Scene::fair_sharing()
        .cohorts([cohort("root"), cohort_a, cohort("cb").with_parent("root")])
        .queues([a, member("b", "cb", "cpu=5"), member("c", "cb", "cpu=0")])
        .queues(others)
        .admitted("c", "c0 cpu=10")
}

fn quota_at_queues_and_cohorts() -> Scene {
    Scene::fair_sharing()
        .cohorts([
            cohort("root"),
            cohort("ca").with_parent("root").has("cpu=10"),
            cohort("cb").with_parent("root").has("cpu=10"),
        ])
        .queues([
            member("a1", "ca", "cpu=5"),
            member("a2", "ca", "cpu=3"),
            member("b", "cb", "cpu=5"),
            member("c", "cb", "cpu=3"),
        ])
        .admitted("a2", "held-a cpu=6")
        .admitted("c", "held-c cpu=20")
}

/// Returns two cohorts that borrow different flavors.
fn cohorts_borrowing_different_flavors() -> Scene {
    let two = |name: &str, cohort: &str, on_demand: &str| {
        queue(name).within_cohort(cohort).quota("on-demand", on_demand).quota("spot", "cpu=0+0")
    };
    Scene::fair_sharing()
        .cohorts([cohort("root"), cohort("ca").with_parent("root").quota("on-demand", "cpu=10")])
        .cohorts([cohort("cb").with_parent("root").quota("spot", "cpu=10")])
        .queues([queue("a").within_cohort("ca").quota("on-demand", "cpu=0").quota("spot", "cpu=0")])
        .queues([two("b", "cb", "cpu=5")])
        .admitted("a", "held-a cpu=5@spot")
        .admitted("b", "held-b cpu=8@on-demand")
}

/// Returns the tree `a{b{d, e}, c{f, g}}` with 200 CPUs at the root.
fn two_level_tree() -> Scene {
    Scene::fair_sharing()
        .cohorts([cohort("a").has("cpu=200"), cohort("b").with_parent("a"), cohort("c").with_parent("a")])
        .queues([("d", "b"), ("e", "b"), ("f", "c"), ("g", "c")].map(|(name, cohort)| member(name, cohort, "cpu=0")))
        .admitted("d", "d0 cpu=10")
        .admitted("e", "e0 cpu=20")
        .admitted("g", "g0 cpu=100")
}

/// Returns the tree `root{left{a, c}, right{y}}` with 6 CPUs at the root; by weight `a` always
/// precedes `c`.
fn weighted_left_and_right() -> Scene {
    Scene::fair_sharing()
        .cohorts([cohort("root").has("cpu=6"), cohort("left").with_parent("root"), cohort("right").with_parent("root")])
        .queues([
            member("a", "left", "cpu=0").weight("10"),
            member("c", "left", "cpu=0"),
            member("y", "right", "cpu=0"),
        ])
}

fn two_borrowers(quota: &str, weight: &str) -> Scene {
    let borrower = |name: &str| member(name, "a", "cpu=0").reclaims("Any").weight(weight);
    Scene::fair_sharing().cohorts([cohort("a").has(quota)]).queues([borrower("b"), borrower("c")])
}

#[rstest]
// "with fair sharing: schedule workload with lowest share first": the older one gets the other
// flavor, in Kueue one cycle later.
#[case::smaller_share(
    fair_company().queues([queue("shared").within_cohort("eng").quota("on-demand", "cpu=10+0")])
        .admitted("alpha", "nominal n=50 cpu=1@on-demand").admitted("beta", "borrowing n=55 cpu=1@on-demand")
        .pending("beta", "older cpu=1 t=940").pending("alpha", "new n=5 cpu=1"),
    &["new@on-demand", "older@spot"])]
// "with fair sharing: nominal-first ordering admits workload fitting within nominal despite higher
// CQ DRS".
#[case::within_nominal_quota_of_the_flavor(
    two_queues_with_two_flavors().admitted("a", "heavy n=80 cpu=1@spot").admitted("b", "light n=5 cpu=1@on-demand")
        .pending("b", "borrows n=15 cpu=1 t=940").pending("a", "nominal n=45 cpu=1"),
    &["nominal@on-demand"])]
// "with fair sharing: hierarchical nominal-first prefers non-borrowing subtree".
#[case::non_borrowing_subtree(
    borrowing_and_idle_subtrees([cohort("ca").with_parent("root").has("cpu=10"), member("a", "ca", "cpu=0")], []).pending("a", "wa cpu=5").pending("b", "wb cpu=5"),
    &["wa@default"])]
// "with fair sharing: hierarchical nominal-first with deeper nesting".
#[case::deeper_non_borrowing_subtree(
    borrowing_and_idle_subtrees([cohort("ca").with_parent("root"), member("a", "sub", "cpu=0")], []).cohorts([cohort("sub").with_parent("ca").has("cpu=10")])
        .pending("a", "wa cpu=5").pending("b", "wb cpu=5"),
    &["wa@default"])]
// "with fair sharing: hierarchical nominal-first with mixed CQ and cohort quotas".
#[case::mixed_quota_of_queues_and_cohorts(quota_at_queues_and_cohorts().pending("a1", "wa cpu=7").pending("b", "wb cpu=4"), &["wa@default"])]
// "with fair sharing: hierarchical nominal-first per-flavor ignores cross-flavor borrowing".
#[case::borrowing_is_compared_by_flavor(cohorts_borrowing_different_flavors().pending("a", "wa cpu=4").pending("b", "wb cpu=4"), &["wa@on-demand"])]
// "hierarchical fair sharing schedule workload which wins tournament".
#[case::winner_of_the_tournament(
    two_level_tree().pending("d", "d1 cpu=70").pending("e", "e1 cpu=61").pending("f", "f1 cpu=1").pending("g", "g1 cpu=1"), &["d1@default"])]
// The first turn takes the quota that the winner of `left` requests: then the other workload of
// `left` competes with `right`.
#[case::runner_up_of_a_cohort_whose_winner_no_longer_fits(
    weighted_left_and_right().pending("a", "big cpu=5").pending("c", "small cpu=3").pending("y", "y1 cpu=2; y2 cpu=2"),
    &["y1@default", "small@default"])]
// "fair sharing schedule workload with lowest drf after admission".
#[case::smaller_share_after_admission(
    two_borrowers("cpu=100", "1").admitted("b", "b0 cpu=10").pending("b", "b1 cpu=50").pending("c", "c1 cpu=75"), &["b1@default"])]
// "fair sharing two queues with weight 0 …", "… with high weight schedules workload which borrows
// less".
#[case::b48_smaller_borrower_with_zero_weight(
    two_borrowers("cpu=8", "0").admitted("b", "b0 cpu=4").pending("b", "b1 cpu=4 p=9001").pending("c", "c1 cpu=4"), &["c1@default"])]
#[case::smaller_borrower_with_large_weight(
    two_borrowers("cpu=8", "123456789").admitted("b", "b0 cpu=4").pending("b", "b1 cpu=4 p=9001").pending("c", "c1 cpu=4"), &["c1@default"])]
// "fair sharing schedule singleton cqs and cq without cohort".
#[case::independent_queues(
    Scene::fair_sharing().cohorts([cohort("ca").has("cpu=10"), cohort("cb")])
        .queues([member("a", "ca", "cpu=0"), member("b", "cb", "cpu=10"), queue("c").has("cpu=10")])
        .pending("a", "wa cpu=10").pending("b", "wb cpu=10").pending("c", "wc cpu=10"),
    &["wa@default", "wb@default", "wc@default"])]
// "fair sharing schedule highest priority first", "… earliest timestamp first".
#[case::higher_priority_of_equal_shares(
    two_borrowers("cpu=10", "1").pending("b", "b1 cpu=10 p=99").pending("c", "c1 cpu=10 p=101"), &["c1@default"])]
#[case::older_of_equal_shares(
    two_borrowers("cpu=10", "1").pending("b", "b1 cpu=10 p=101 t=1001").pending("c", "c1 cpu=10 p=101 t=1000"), &["c1@default"])]
// "prefer flavor with most local capacity".
#[case::flavor_with_nearer_quota(flavors_at_different_distance(Scene::fair_sharing()), &["in@spot"])]
#[case::flavor_with_nearer_quota_without_fair_sharing(flavors_at_different_distance(Scene::new()), &["in@spot"])]
fn b45_smaller_share_is_scheduled_first(#[case] mut scene: Scene, #[case] admitted: &[&str]) {
    let decided = scene.decide();

    let mut found = decided.admitted;
    // Independent trees are scheduled one after the other, in no particular order.
    if found.len() == 3 {
        found.sort();
    }
    assert_eq!(found, admitted);
    assert_eq!(decided.evicted, [""; 0]);
}

fn flavors_at_different_distance(scene: Scene) -> Scene {
    let q = queue("q").within_cohort("child").quota("on-demand", "gpu=3").quota("spot", "gpu=3");
    scene
        .cohorts([cohort("root").quota("on-demand", "gpu=2").quota("spot", "gpu=0")])
        .cohorts([cohort("child").with_parent("root").quota("on-demand", "gpu=5").quota("spot", "gpu=7")])
        .queues([q
            .preempts_within("LowerPriority")
            .reclaims("Any")
            .flavor_fungibility("TryNextFlavor", "TryNextFlavor")])
        .admitted("q", "a1 gpu=8@on-demand; a2 gpu=3@spot")
        .pending("q", "in gpu=1")
}

fn three_queues_with_bank(reclaim: &str) -> Scene {
    let own = |name: &str| member(name, "other", "cpu=2").preempts_within("LowerPriority").reclaims(reclaim);
    Scene::fair_sharing()
        .queues([own("alpha"), own("beta"), own("gamma"), member("bank", "other", "cpu=3")])
        .admitted("alpha", "a1 cpu=3")
        .admitted("beta", "b1 cpu=3")
        .admitted("gamma", "c1 cpu=3")
}

/// Returns a queue that uses all the CPU that two others need in addition to another resource.
fn overlapping_targets() -> Scene {
    Scene::fair_sharing()
        .queues([
            preempting_member("alpha", "other", "cpu=0 ra=1"),
            preempting_member("beta", "other", "cpu=0 rb=1"),
            preempting_member("gamma", "other", "cpu=0 rc=1"),
        ])
        .queues([member("bank", "other", "cpu=9")])
        .admitted("alpha", "a1 ra=1")
        .admitted("beta", "b1 rb=1")
        .admitted("gamma", "c1 cpu=9")
}

fn two_gpu_flavors() -> Scene {
    let two = |name: &str, gpus: &str| queue(name).within_cohort("other").quota("on-demand", gpus).quota("spot", gpus);
    Scene::fair_sharing().queues([
        two("alpha", "gpu=7").preempts_within("LowerPriority").reclaims("LowerPriority"),
        two("beta", "gpu=3"),
    ])
}

fn preferring_preemption_over_borrowing() -> Scene {
    let q = queue("q")
        .within_cohort("c")
        .quota("on-demand", "cpu=5+0")
        .quota("spot", "cpu=0+5")
        .preempts_within("LowerPriority");
    let lender = queue("lender").within_cohort("c").quota("on-demand", "cpu=0").quota("spot", "cpu=5");
    Scene::fair_sharing()
        .queues([q.prefers_preemption_over_borrowing("TryNextFlavor", "TryNextFlavor").weight("1"), lender.weight("1")])
}

fn best_effort_borrowers() -> Scene {
    Scene::fair_sharing()
        .queues([
            member("a", "all", "cpu=0"),
            member("b", "all", "cpu=0"),
            member("guaranteed", "all", "cpu=8").reclaims("Any"),
        ])
        .admitted("a", "wa cpu=4 p=2")
        .admitted("b", "wb cpu=4 p=1")
}

#[rstest]
// "with fair sharing: preempt workload from CQ with the highest share".
#[case::one_target_from_each_large_share(
    fair_company().queues([queue("gamma").within_cohort("eng").quota("on-demand", "cpu=50+0")])
        .admitted("alpha", "spot cpu=100@spot; a1 cpu=20@on-demand; a2 cpu=20@on-demand; a3 cpu=20@on-demand; a4 cpu=20@on-demand")
        .admitted("gamma", "g1 cpu=10@on-demand; g2 cpu=20@on-demand; g3 cpu=20@on-demand; g4 cpu=20@on-demand").pending("beta", "in cpu=30"),
    &["a1 InCohortReclamation", "g1 InCohortReclamation"])]
// "multiple preemptions within cq when fair sharing": there reclaimWithinCohort is unset, which the
// API defaults. With Never, a borrower preempts no workload; with LowerPriority the targets are
// those of the smallest share, here each queue's own workload.
#[case::borrower_with_reclaim_never_preempts_none(
    three_queues_with_bank("Never").pending("alpha", "pa cpu=3 p=100").pending("beta", "pb cpu=3 p=100").pending("gamma", "pc cpu=3 p=100"), &[])]
#[case::each_queue_preempts_within_itself(
    three_queues_with_bank("LowerPriority").pending("alpha", "pa cpu=3 p=100").pending("beta", "pb cpu=3 p=100").pending("gamma", "pc cpu=3 p=100"),
    &["a1 InClusterQueue", "b1 InClusterQueue", "c1 InClusterQueue"])]
// "multiple preemptions skip overlapping preemption targets": in Kueue the second waits for another
// cycle; here it counts the quota that the large workload releases, and preempts within its queue
// for the rest.
#[case::b26_two_preemptors_share_a_target(
    overlapping_targets().pending("alpha", "pa cpu=3 ra=1 p=100").pending("beta", "pb cpu=3 rb=1 p=99"),
    &["a1 InClusterQueue", "b1 InClusterQueue", "c1 InCohortFairSharing"])]
// "with fair sharing: prefer reclamation over cq priority based preemption; with preemption while
// borrowing".
#[case::other_queue_is_preferred_to_own(
    two_gpu_flavors().admitted("alpha", "a1 gpu=5@on-demand p=50").admitted("beta", "b1 gpu=5@spot p=50").pending("alpha", "in gpu=8 p=100"),
    &["b1 InCohortFairSharing"])]
// "PreemptionOverBorrowing with fair sharing: preempt in first flavor instead of borrowing in
// second".
#[case::b40_preempts_in_first_flavor(
    preferring_preemption_over_borrowing().admitted("q", "low cpu=5@on-demand p=-1").pending("q", "high cpu=5"), &["low InClusterQueue"])]
// Integration "Guaranteed workloads cause preemption of a single best effort workload".
#[case::lower_priority_of_equal_shares(best_effort_borrowers().pending("guaranteed", "in cpu=4"), &["wb InCohortReclamation"])]
fn b46_queues_with_largest_share_are_preempted_first(#[case] mut scene: Scene, #[case] evicted: &[&str]) {
    let decided = scene.decide();

    assert_eq!(decided.evicted, evicted);
    assert_eq!(decided.admitted, [""; 0]);
    scene.run_with_evictions();
    assert_eq!(scene.decide(), CycleDecisions::default(), "the cluster has converged");
}

/// Integration "should not cause an infinite preemption cycle".
#[test]
fn b48_zero_weight_queues_converge() {
    let mut scene =
        two_borrowers("cpu=8", "0").admitted("b", "a1 cpu=4 p=9001; a2 cpu=4 p=100").pending("c", "b1 cpu=4 p=100");
    assert_eq!(scene.decide().evicted, ["a2 InCohortFairSharing"]);

    assert_eq!(scene.run_with_evictions(), ["b1"]);

    assert_eq!(scene.holders(), ["a1", "b1"]);
}

/// kubernetes-sigs/kueue#6929: the preemptor gets the quota of its targets, although another
/// workload that is queued before it fits as well: that one would have a larger share than the
/// targets' queue, which could preempt it in return.
#[test]
fn b34_quota_of_targets_goes_to_preemptor_before_earlier_queued_workloads() {
    let poor = |name: &str| preempting_member(name, "all", "cpu=8").weight("1");
    let holds = |name: &str, count: usize| {
        let units: Vec<String> = (0..count).map(|number| format!("{name}{number} cpu=2")).collect();
        units.join("; ")
    };
    let mut scene = Scene::fair_sharing()
        .queues([poor("a"), poor("b"), preempting_member("rich", "all", "cpu=8").weight("3")])
        .admitted("a", &holds("a", 3))
        .admitted("b", &holds("b", 3))
        .admitted("rich", &holds("rich", 6))
        .pending("rich", "r1 cpu=2; r2 cpu=2; r3 cpu=2")
        .pending("a", "wide-a cpu=4 t=900; narrow-a cpu=2 t=901")
        .pending("b", "wide-b cpu=4 t=900; narrow-b cpu=2 t=901");

    assert_eq!(scene.decide().evicted.len(), 2);
    let mut admitted = scene.run_with_evictions();

    admitted.sort();
    assert_eq!(admitted, ["narrow-a", "narrow-b"]);
    assert_eq!(scene.decide(), CycleDecisions::default(), "the cluster has converged");
}

/// Integration "Queue can reclaim its nominal quota", with large quotas and weights.
#[test]
fn large_quotas_and_weights_are_shared_fairly() {
    let units: Vec<String> = (0..10).map(|number| format!("a{number} cpu=100")).collect();
    let heavy = |name: &str| preempting_member(name, "all", "cpu=600").weight("300");
    let mut scene = Scene::fair_sharing()
        .queues([heavy("a"), heavy("b")])
        .admitted("a", &units.join("; "))
        .pending("b", "b cpu=500");

    assert_eq!(scene.decide().evicted.len(), 3);
    assert_eq!(scene.run_with_evictions(), ["b"]);
}

/// Returns two queues that share 9 CPUs, of which the first uses 8 in four workloads.
fn two_borrowers_of_nine() -> Scene {
    let borrower = |name: &str| {
        preempting_member(name, "ca", "cpu=0").weight("1").flavor_fungibility("TryNextFlavor", "TryNextFlavor")
    };
    Scene::fair_sharing()
        .cohorts([cohort("ca").with_parent("root").has("cpu=9").weight("1")])
        .queues([borrower("p1"), borrower("p2")])
        .admitted("p1", "a1 cpu=2; a2 cpu=2; a3 cpu=2; a4 cpu=2")
}

/// Integration "ClusterQueue head is ineligible for admission due to DominantResourceShare", all
/// cases.
#[rstest]
#[case::five_cpus("w5 cpu=5", Some("w5"))]
#[case::six_cpus("w6 cpu=6", None)]
#[case::five_behind_six("w6 cpu=6 p=999; w5 cpu=5", Some("w5"))]
#[case::four_behind_six("w6 cpu=6 p=999; w4 cpu=4", Some("w4"))]
#[case::five_behind_seven_and_six("w7 cpu=7 p=999; w6 cpu=6 p=999; w5 cpu=5", Some("w5"))]
fn b46_head_exceeding_its_fair_share_is_skipped(#[case] waiting: &str, #[case] admitted: Option<&str>) {
    let mut scene = two_borrowers_of_nine().pending("p2", waiting);

    assert_eq!(scene.decide().evicted.len(), if admitted.is_some() { 2 } else { 0 });
    assert_eq!(scene.run_with_evictions(), admitted.into_iter().collect::<Vec<_>>());
}

fn borrowers_of_three(waiting: &str) -> Scene {
    let borrower = |name: &str, cohort: &str| {
        preempting_member(name, cohort, "cpu=0").weight("1").flavor_fungibility("TryNextFlavor", "TryNextFlavor")
    };
    Scene::fair_sharing()
        .cohorts([cohort("ca").with_parent("root").has("cpu=3").weight("1")])
        .queues([borrower("q1", "ca"), borrower("q2", "root")])
        .admitted("q2", "b1 cpu=1; b2 cpu=1")
        .pending("q1", waiting)
}

/// Integration "workload which fits behind ClusterQueue head is able to admit".
#[test]
fn head_that_never_fits_does_not_block_a_reclaiming_workload() {
    let mut scene = borrowers_of_three("w4 cpu=4 p=999; w3 cpu=3");

    assert_eq!(scene.decide().evicted.len(), 2);
    assert_eq!(scene.run_with_evictions(), ["w3"]);
}

/// Integration "sticky workload becomes inadmissible. next workload admits".
#[test]
fn reservation_of_inadmissible_preemptor_goes_to_next_workload() {
    let mut scene = borrowers_of_three("w3 cpu=3 p=99");
    assert_eq!(scene.decide().evicted.len(), 2);
    scene.run_until_stable();
    scene.submit_to("q1", "w2 cpu=2 p=9");
    assert_eq!(scene.run_until_stable(), [""; 0]);

    scene.put_cohort_node(cohort("ca").with_parent("root").has("cpu=2").weight("1"));
    scene.run_until_stable();
    assert_eq!(scene.reason_and_message("w3", "QuotaReserved").0, "ExceedsMaxQuota");

    assert_eq!(scene.run_with_evictions(), ["w2"]);
}

/// Integration "sticky workload deleted, next workload can admit".
#[test]
fn reservation_of_deleted_preemptor_goes_to_next_workload_instead_of_evicted_ones() {
    let mut scene = borrowers_of_three("w3 cpu=3 p=99");
    assert_eq!(scene.decide().evicted.len(), 2);
    scene.run_until_stable();
    scene.submit_to("q1", "next cpu=3");

    scene.delete("w3");

    assert_eq!(scene.run_with_evictions(), ["next"]);
    assert_eq!(scene.holders(), ["next"]);
}

/// Integration "Should prevent other workloads from stealing quota when preemptor is waiting for
/// multiple evictions".
#[test]
fn b34_partially_released_quota_stays_reserved_for_preemptor_regardless_of_share() {
    let member = |name: &str, quota: &str| queue(name).within_cohort("c").has(quota).reclaims("Any");
    let mut scene = Scene::fair_sharing()
        .queues([member("q1", "cpu=10 memory=0"), member("q2", "cpu=0 memory=10")])
        .pending("q2", "wa cpu=1 memory=0 p=100; wb cpu=1 memory=0 p=100");
    scene.run_until_stable();
    scene.submit_to("q1", "preemptor cpu=10 memory=10");
    assert_eq!(scene.decide().evicted, ["wa InCohortReclamation", "wb InCohortReclamation"]);
    scene.run_until_stable();

    scene.release_quota("wa");
    assert_eq!(scene.run_until_stable(), [""; 0]);
    scene.release_quota("wb");
    assert_eq!(scene.run_until_stable(), ["preemptor"]);
}

/// The same when all evictions finish simultaneously, and the evicted workloads would borrow from a
/// nearer Cohort.
#[rstest]
#[case::smaller_share(
    Scene::fair_sharing().queues([preempting_member("q1", "c", "cpu=10 memory=0"), preempting_member("q2", "c", "cpu=0 memory=10")])
        .admitted("q2", "wa cpu=1 p=100; wb cpu=1 p=100").pending("q1", "preemptor cpu=10 memory=10"))]
#[case::preemptor_is_head_of_a_strict_queue(
    Scene::fair_sharing().queues([preempting_member("q1", "c", "cpu=10 memory=0").strict(), preempting_member("q2", "c", "cpu=0 memory=10")])
        .admitted("q2", "wa cpu=1 p=100; wb cpu=1 p=100").pending("q1", "preemptor cpu=10 memory=10"))]
#[case::evicted_workloads_borrow_from_nearer_cohort(
    Scene::new().cohorts([cohort("root").has("cpu=2"), cohort("near").with_parent("root").has("cpu=2")])
        .queues([member("q1", "near", "cpu=0").reclaims("LowerPriority").preempts_while_borrowing(None), member("q2", "near", "cpu=0")])
        .admitted("q2", "wa cpu=1 p=-1; wb cpu=1 p=-1").pending("q1", "preemptor cpu=4"))]
fn b34_evicted_workload_is_not_readmitted_before_the_preemptor(#[case] mut scene: Scene) {
    assert_eq!(scene.decide().evicted.len(), 2);

    assert_eq!(scene.run_with_evictions(), ["preemptor"]);
    assert_eq!(scene.holders(), ["preemptor"]);
}

/// Integration "preempts workloads to enforce fair share": 12 CPUs, of which the first two queues
/// use 6 each.
#[test]
fn b46_four_subtrees_get_shares_by_weight() {
    let unit = |name: &str, cohort: &str| queue(name).within_cohort(cohort).has("cpu=0");
    let six = |name: &str, priority: i32| {
        let units: Vec<String> = (0..6).map(|number| format!("{name}{number} cpu=1 p={priority}")).collect();
        units.join("; ")
    };
    let mut scene = Scene::fair_sharing()
        .cohorts([cohort("root").has("cpu=12"), cohort("research").with_parent("root")])
        .cohorts([
            cohort("rest").with_parent("root").weight("0.5"),
            cohort("llm-c").with_parent("research").weight("2"),
        ])
        .cohorts([cohort("chemistry-c").with_parent("research"), cohort("physics-c").with_parent("research")])
        .queues(["llm", "chemistry", "physics"].map(|name| unit(name, &format!("{name}-c")).reclaims("LowerPriority")))
        .queues([unit("best-effort", "rest")])
        .pending("best-effort", &six("old-best-effort", -1))
        .pending("physics", &six("old-physics", -1));
    scene.run_until_stable();
    assert_eq!(scene.holders().len(), 12);

    for name in ["best-effort", "physics", "llm", "chemistry"] {
        scene.submit_to(name, &six(&format!("new-{name}"), 100));
    }
    scene.run_with_evictions();

    let count = |name: &str| scene.holders().iter().filter(|holder| holder.contains(name)).count();
    assert_eq!(["best-effort", "physics", "llm", "chemistry"].map(count), [4, 2, 4, 2]);
}

/// Integration "hero workload sticks to preferred flavor if overlap resolved".
#[test]
fn b26_two_preemptors_share_quota_released_by_one_eviction() {
    let two = |name: &str, quota: &str| {
        queue(name)
            .within_cohort("ca")
            .quota("f1", quota)
            .quota("f2", quota)
            .preempts_within("LowerPriority")
            .reclaims("Any")
    };
    let mut scene = Scene::fair_sharing()
        .queues([two("hero", "cpu=100"), two("tiny", "cpu=50"), two("rest", "cpu=0")])
        .admitted("rest", "wa cpu=150@f1 p=10; wb cpu=150@f2 p=10")
        .pending("hero", "h cpu=100 p=100")
        .pending("tiny", "t cpu=50 p=50");

    assert_eq!(scene.decide().evicted, ["wa InCohortReclamation"]);
    let mut admitted = scene.run_with_evictions();
    admitted.sort();
    assert_eq!(admitted, ["h", "t"]);
    assert_eq!((scene.flavors_of("h").as_str(), scene.flavors_of("t").as_str()), ("f1", "f1"));
}

/// Integration "admits workloads respecting fair share" and its weighted shares.
#[test]
fn weighted_share_is_reported_in_thousandths_of_lendable_quota() {
    let mut scene = two_borrowers("cpu=8", "2").admitted("b", "b0 cpu=4");
    scene.run_until_stable();

    let share = |scene: &Scene, name: &str| {
        let status = scene.cluster_queues[name].status.clone().unwrap_or_default();
        status.fair_sharing.map(|sharing| sharing.weighted_share)
    };
    assert_eq!((share(&scene, "b"), share(&scene, "c")), (Some(250), Some(0)));
}
