//! Preemption targets in a tree of cohorts: the cases of Kueue's table on hierarchical preemption
//! (`pkg/scheduler/preemption/preemption_hierarchical_test.go`), run on the whole scheduler. B44.

use rstest::rstest;

use super::scene::{Node, Scene, cohort, queue};

const OWN: &str = "InClusterQueue";
const RECLAIMED: &str = "InCohortReclamation";
const BORROWING: &str = "InCohortReclaimWhileBorrowing";

/// Returns a queue in a cohort that preempts its lower priorities and reclaims from any priority.
fn member(name: &str, cohort: &str, quota: &str) -> Node {
    queue(name).within_cohort(cohort).has(quota).within("LowerPriority").reclaim("Any")
}

/// Returns the root `r`, its child cohort `c` with this quota, and the queue `q` in `c`.
fn tree(quota_of_c: &str, others: impl IntoIterator<Item = Node>) -> Scene {
    tree_with(member("q", "c", "cpu=0"), "cpu=0", quota_of_c, others)
}

fn tree_with(q: Node, quota_of_r: &str, quota_of_c: &str, others: impl IntoIterator<Item = Node>) -> Scene {
    let cohorts = [cohort("r").has(quota_of_r), cohort("c").under("r").has(quota_of_c)];
    Scene::new().cohorts(cohorts).queues([q]).queues(others)
}

fn borrower() -> Node {
    member("borrower", "r", "cpu=0")
}

fn sibling() -> Node {
    member("sibling", "c", "cpu=0")
}

fn nominal() -> Node {
    member("nominal", "r", "cpu=2")
}

fn threshold(q: Node) -> Node {
    q.while_borrowing(Some(0))
}

fn deep() -> Scene {
    let with_quota = |name: &str, parent: &str| cohort(name).under(parent).has("cpu=4");
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
    tree("cpu=2", [borrower()]).holds("borrower", "b cpu=2").waits("q", "in cpu=2"), &[("b", RECLAIMED)])]
#[case::queue_within_nominal_quota_is_not_preempted(
    tree("cpu=2", [borrower(), nominal()]).holds("nominal", "n cpu=2 p=-10").holds("borrower", "b cpu=2").waits("q", "in cpu=2"),
    &[("b", RECLAIMED)])]
#[case::reclaims_regardless_of_priority(
    tree("cpu=2", [borrower()]).holds("borrower", "b1 cpu=1 p=1; b2 cpu=1 p=2").waits("q", "in cpu=2"),
    &[("b1", RECLAIMED), ("b2", RECLAIMED)])]
#[case::within_queue_and_siblings_below_threshold(
    tree_with(threshold(member("q", "c", "cpu=0")), "cpu=0", "cpu=3", [sibling()])
        .holds("sibling", "above cpu=1 p=1; below cpu=1").holds("q", "own cpu=1 p=-1").waits("q", "in cpu=2 p=1"),
    &[("below", BORROWING), ("own", OWN)])]
#[case::reclaiming_precedes_preempting_within_queue(
    tree("cpu=2", [borrower()]).holds("borrower", "b cpu=1 p=1").holds("q", "own cpu=1 p=-2").waits("q", "in cpu=1"),
    &[("b", RECLAIMED)])]
#[case::by_priority_if_nothing_can_be_reclaimed(
    tree_with(threshold(member("q", "c", "cpu=0")), "cpu=0", "cpu=2", [nominal(), sibling()])
        .holds("nominal", "n cpu=2 p=-10").holds("sibling", "s cpu=2 p=-1").waits("q", "in cpu=2"),
    &[("s", BORROWING)])]
#[case::nominal_quota_is_reclaimed_from_the_whole_tree(
    tree_with(member("q", "c", "cpu=4"), "cpu=0", "cpu=2", [borrower(), sibling()])
        .holds("borrower", "b cpu=3 p=10").holds("sibling", "s cpu=3 p=10").waits("q", "in cpu=4"),
    &[("b", RECLAIMED), ("s", RECLAIMED)])]
#[case::reclaiming_and_by_priority(
    tree_with(threshold(member("q", "c", "cpu=0")).reclaim("LowerPriority"), "cpu=1", "cpu=4", [borrower(), sibling()])
        .holds("borrower", "b cpu=2 p=-1; b-high cpu=2 p=1").holds("sibling", "s cpu=1 p=-1").waits("q", "in cpu=3"),
    &[("b", RECLAIMED), ("s", BORROWING)])]
#[case::reclaiming_and_within_queue(
    tree_with(threshold(member("q", "c", "cpu=0")).reclaim("LowerPriority"), "cpu=1", "cpu=4", [borrower(), sibling()])
        .holds("borrower", "b cpu=2 p=-1; b-high cpu=2 p=1").holds("q", "own cpu=1 p=-1").waits("q", "in cpu=3"),
    &[("b", RECLAIMED), ("own", OWN)])]
#[case::lowest_priority_of_borrowers(
    tree("cpu=3", [borrower(), nominal()])
        .holds("borrower", "b8 cpu=1 p=8; b9 cpu=1 p=9; b10 cpu=1 p=9").holds("nominal", "n cpu=2 p=-2").waits("q", "in cpu=1"),
    &[("b8", RECLAIMED)])]
#[case::none_in_a_cohort_within_its_quota(
    tree("cpu=2", [sibling(), member("other", "c_other", "cpu=0")]).cohorts([cohort("c_other").under("r").has("cpu=2")])
        .holds("other", "o1 cpu=1 p=-10; o2 cpu=1 p=-10").holds("sibling", "s cpu=2").waits("q", "in cpu=2"),
    &[])]
#[case::shortage_of_each_resource_in_the_tree(
    tree_with(member("q", "c", "cpu=0 memory=0"), "cpu=3 memory=0", "cpu=4 memory=4Gi",
        [member("borrower", "r", "cpu=0 memory=0"), member("sibling", "c", "cpu=0 memory=0")])
        .holds("borrower", "b cpu=3 memory=1Gi").holds("sibling", "s cpu=1 memory=3Gi p=-2").waits("q", "in cpu=2 memory=1Gi p=-2"),
    &[("b", RECLAIMED)])]
#[case::lending_limit_excludes_quota_from_the_cohort(
    tree_with(member("q", "c", "cpu=3-2"), "cpu=0", "cpu=2", [borrower()]).holds("borrower", "b cpu=4").waits("q", "in cpu=5 p=-2"),
    &[("b", RECLAIMED)])]
#[case::cohort_is_preempted_only_down_to_its_quota(
    deep().holds("q1", "b1 cpu=4 p=-6; b2 cpu=4 p=-5").holds("q2", "b3 cpu=4 p=-9; b4 cpu=4 p=-10").holds("q3", "b5 cpu=4 p=-4; b6 cpu=3 p=-3")
        .holds("q4", "b7 cpu=2 p=4; b8 cpu=3 p=2").waits("q5", "in cpu=7 p=-2"),
    &[("b1", RECLAIMED), ("b4", RECLAIMED)])]
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
    let mut scene = tree_with(threshold(member("q", "c", "cpu=0")), "cpu=0", "cpu=2", [borrower(), sibling()])
        .holds("borrower", "b cpu=1 p=-10")
        .holds("sibling", "evicted cpu=1 p=-1");
    scene.change("evicted", |workload| workload.spec.active = Some(false));
    scene.run();
    let mut scene = scene.waits("q", "in cpu=1");

    assert_eq!(scene.decide().evicted, [""; 0]);
    assert_eq!(scene.run(), [""; 0]);
    scene.release("evicted");
    assert_eq!(scene.run(), ["in"]);
}
