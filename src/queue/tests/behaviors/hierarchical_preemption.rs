//! Preemption targets in a tree of cohorts: the cases of Kueue's table on hierarchical preemption
//! (`pkg/scheduler/preemption/preemption_hierarchical_test.go`), run on the whole scheduler. B44.

use rstest::rstest;

use super::scene::{QueueOrCohort, Scene, cohort, queue};

const IN_CLUSTER_QUEUE: &str = "InClusterQueue";
const RECLAMATION: &str = "InCohortReclamation";
const RECLAIM_WHILE_BORROWING: &str = "InCohortReclaimWhileBorrowing";

/// Returns a queue in a cohort that preempts its lower priorities and reclaims from any priority.
fn member(name: &str, cohort: &str, quota: &str) -> QueueOrCohort {
    queue(name).within_cohort(cohort).has(quota).preempts_within("LowerPriority").reclaims("Any")
}

/// Returns the root `r`, its child cohort `c` with this quota, and the queue `q` in `c`.
fn tree(quota_of_c: &str, others: impl IntoIterator<Item = QueueOrCohort>) -> Scene {
    tree_with(member("q", "c", "cpu=0"), "cpu=0", quota_of_c, others)
}

fn tree_with(
    q: QueueOrCohort,
    quota_of_r: &str,
    quota_of_c: &str,
    others: impl IntoIterator<Item = QueueOrCohort>,
) -> Scene {
    let cohorts = [cohort("r").has(quota_of_r), cohort("c").with_parent("r").has(quota_of_c)];
    Scene::new().cohorts(cohorts).queues([q]).queues(others)
}

fn borrower() -> QueueOrCohort {
    member("borrower", "r", "cpu=0")
}

fn sibling() -> QueueOrCohort {
    member("sibling", "c", "cpu=0")
}

fn queue_with_quota() -> QueueOrCohort {
    member("nominal", "r", "cpu=2")
}

fn with_priority_threshold(q: QueueOrCohort) -> QueueOrCohort {
    q.preempts_while_borrowing(Some(0))
}

fn deep_tree() -> Scene {
    let with_quota = |name: &str, parent: &str| cohort(name).with_parent(parent).has("cpu=4");
    Scene::new()
        .cohorts([cohort("r"), with_quota("c11", "r"), with_quota("c12", "r"), with_quota("c21", "c11")])
        .cohorts([
            with_quota("c22", "c11"),
            with_quota("c23", "c11"),
            with_quota("c31", "c21"),
            with_quota("c32", "c21"),
        ])
        .queues(
            [("q1", "c12"), ("q2", "c23"), ("q3", "c22"), ("q4", "c32"), ("q5", "c31")]
                .map(|(q, c)| member(q, c, "cpu=0")),
        )
}

#[rstest]
#[case::quota_of_cohort_is_reclaimed(
    tree("cpu=2", [borrower()]).admitted("borrower", "b cpu=2").pending("q", "in cpu=2"), &[("b", RECLAMATION)])]
#[case::queue_within_nominal_quota_is_not_preempted(
    tree("cpu=2", [borrower(), queue_with_quota()]).admitted("nominal", "n cpu=2 p=-10").admitted("borrower", "b cpu=2").pending("q", "in cpu=2"),
    &[("b", RECLAMATION)])]
#[case::reclaims_regardless_of_priority(
    tree("cpu=2", [borrower()]).admitted("borrower", "b1 cpu=1 p=1; b2 cpu=1 p=2").pending("q", "in cpu=2"),
    &[("b1", RECLAMATION), ("b2", RECLAMATION)])]
#[case::within_queue_and_siblings_below_threshold(
    tree_with(with_priority_threshold(member("q", "c", "cpu=0")), "cpu=0", "cpu=3", [sibling()])
        .admitted("sibling", "above cpu=1 p=1; below cpu=1").admitted("q", "own cpu=1 p=-1").pending("q", "in cpu=2 p=1"),
    &[("below", RECLAIM_WHILE_BORROWING), ("own", IN_CLUSTER_QUEUE)])]
#[case::reclaiming_precedes_preempting_within_queue(
    tree("cpu=2", [borrower()]).admitted("borrower", "b cpu=1 p=1").admitted("q", "own cpu=1 p=-2").pending("q", "in cpu=1"),
    &[("b", RECLAMATION)])]
#[case::by_priority_if_nothing_can_be_reclaimed(
    tree_with(with_priority_threshold(member("q", "c", "cpu=0")), "cpu=0", "cpu=2", [queue_with_quota(), sibling()])
        .admitted("nominal", "n cpu=2 p=-10").admitted("sibling", "s cpu=2 p=-1").pending("q", "in cpu=2"),
    &[("s", RECLAIM_WHILE_BORROWING)])]
#[case::nominal_quota_is_reclaimed_from_the_whole_tree(
    tree_with(member("q", "c", "cpu=4"), "cpu=0", "cpu=2", [borrower(), sibling()])
        .admitted("borrower", "b cpu=3 p=10").admitted("sibling", "s cpu=3 p=10").pending("q", "in cpu=4"),
    &[("b", RECLAMATION), ("s", RECLAMATION)])]
#[case::reclaiming_and_by_priority(
    tree_with(with_priority_threshold(member("q", "c", "cpu=0")).reclaims("LowerPriority"), "cpu=1", "cpu=4", [borrower(), sibling()])
        .admitted("borrower", "b cpu=2 p=-1; b-high cpu=2 p=1").admitted("sibling", "s cpu=1 p=-1").pending("q", "in cpu=3"),
    &[("b", RECLAMATION), ("s", RECLAIM_WHILE_BORROWING)])]
#[case::reclaiming_and_within_queue(
    tree_with(with_priority_threshold(member("q", "c", "cpu=0")).reclaims("LowerPriority"), "cpu=1", "cpu=4", [borrower(), sibling()])
        .admitted("borrower", "b cpu=2 p=-1; b-high cpu=2 p=1").admitted("q", "own cpu=1 p=-1").pending("q", "in cpu=3"),
    &[("b", RECLAMATION), ("own", IN_CLUSTER_QUEUE)])]
#[case::lowest_priority_of_borrowers(
    tree("cpu=3", [borrower(), queue_with_quota()])
        .admitted("borrower", "b8 cpu=1 p=8; b9 cpu=1 p=9; b10 cpu=1 p=9").admitted("nominal", "n cpu=2 p=-2").pending("q", "in cpu=1"),
    &[("b8", RECLAMATION)])]
#[case::none_in_a_cohort_within_its_quota(
    tree("cpu=2", [sibling(), member("other", "c_other", "cpu=0")]).cohorts([cohort("c_other").with_parent("r").has("cpu=2")])
        .admitted("other", "o1 cpu=1 p=-10; o2 cpu=1 p=-10").admitted("sibling", "s cpu=2").pending("q", "in cpu=2"),
    &[])]
#[case::shortage_of_each_resource_in_the_tree(
    tree_with(member("q", "c", "cpu=0 memory=0"), "cpu=3 memory=0", "cpu=4 memory=4Gi",
        [member("borrower", "r", "cpu=0 memory=0"), member("sibling", "c", "cpu=0 memory=0")])
        .admitted("borrower", "b cpu=3 memory=1Gi").admitted("sibling", "s cpu=1 memory=3Gi p=-2").pending("q", "in cpu=2 memory=1Gi p=-2"),
    &[("b", RECLAMATION)])]
#[case::lending_limit_excludes_quota_from_the_cohort(
    tree_with(member("q", "c", "cpu=3-2"), "cpu=0", "cpu=2", [borrower()]).admitted("borrower", "b cpu=4").pending("q", "in cpu=5 p=-2"),
    &[("b", RECLAMATION)])]
#[case::cohort_is_preempted_only_down_to_its_quota(
    deep_tree().admitted("q1", "b1 cpu=4 p=-6; b2 cpu=4 p=-5").admitted("q2", "b3 cpu=4 p=-9; b4 cpu=4 p=-10").admitted("q3", "b5 cpu=4 p=-4; b6 cpu=3 p=-3")
        .admitted("q4", "b7 cpu=2 p=4; b8 cpu=3 p=2").pending("q5", "in cpu=7 p=-2"),
    &[("b1", RECLAMATION), ("b4", RECLAMATION)])]
fn b44_hierarchical_preemption_selects_expected_targets(#[case] mut scene: Scene, #[case] expected: &[(&str, &str)]) {
    let decided = scene.decide();

    let expected: Vec<String> = expected.iter().map(|(name, reason)| format!("{name} {reason}")).collect();
    assert_eq!(decided.evicted, expected);
    assert_eq!(decided.admitted, [""; 0], "no workload is admitted before the evictions finish");
}

/// Kueue selects the evicted workload as a target again; Sluice's planned usage excludes it, so the
/// new workload waits for its quota.
#[test]
fn preemptor_waits_for_ongoing_eviction_without_further_targets() {
    let mut scene =
        tree_with(with_priority_threshold(member("q", "c", "cpu=0")), "cpu=0", "cpu=2", [borrower(), sibling()])
            .admitted("borrower", "b cpu=1 p=-10")
            .admitted("sibling", "evicted cpu=1 p=-1");
    scene.update("evicted", |workload| workload.spec.active = Some(false));
    scene.run_until_stable();
    let mut scene = scene.pending("q", "in cpu=1");

    assert_eq!(scene.decide().evicted, [""; 0]);
    assert_eq!(scene.run_until_stable(), [""; 0]);
    scene.release_quota("evicted");
    assert_eq!(scene.run_until_stable(), ["in"]);
}
