//! Who has to go in a tree of cohorts: the situations of Kueue's table on hierarchical preemption
//! (`pkg/scheduler/preemption/preemption_hierarchical_test.go`), asked of the whole engine. B44.

use rstest::rstest;

use super::scene::{Node, Scene, cohort, queue};

const OWN: &str = "InClusterQueue";
const RECLAIMED: &str = "InCohortReclamation";
const BORROWING: &str = "InCohortReclaimWhileBorrowing";

/// In a cohort; takes from its own of lower priority, and what is its own from anybody.
fn member(name: &str, of: &str, quota: &str) -> Node {
    queue(name).within_cohort(of).has(quota).within("LowerPriority").reclaim("Any")
}

/// The root `r`, and in it the cohort `c` with this quota and the queue `q` in `c`.
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
    let with_quota = |name: &str, above: &str| cohort(name).under(above).has("cpu=4");
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
#[case::quota_of_its_cohort_comes_back(
    tree("cpu=2", [borrower()]).holds("borrower", "b cpu=2").waits("q", "in cpu=2"), &[("b", RECLAIMED)])]
#[case::who_is_within_its_quota_is_left_alone(
    tree("cpu=2", [borrower(), nominal()]).holds("nominal", "n cpu=2 p=-10").holds("borrower", "b cpu=2").waits("q", "in cpu=2"),
    &[("b", RECLAIMED)])]
#[case::whatever_their_priority(
    tree("cpu=2", [borrower()]).holds("borrower", "b1 cpu=1 p=1; b2 cpu=1 p=2").waits("q", "in cpu=2"),
    &[("b1", RECLAIMED), ("b2", RECLAIMED)])]
#[case::own_ones_and_siblings_below_the_threshold(
    tree_with(threshold(member("q", "c", "cpu=0")), "cpu=0", "cpu=3", [sibling()])
        .holds("sibling", "above cpu=1 p=1; below cpu=1").holds("q", "own cpu=1 p=-1").waits("q", "in cpu=2 p=1"),
    &[("below", BORROWING), ("own", OWN)])]
#[case::by_right_before_own_ones(
    tree("cpu=2", [borrower()]).holds("borrower", "b cpu=1 p=1").holds("q", "own cpu=1 p=-2").waits("q", "in cpu=1"),
    &[("b", RECLAIMED)])]
#[case::by_priority_if_there_is_no_right(
    tree_with(threshold(member("q", "c", "cpu=0")), "cpu=0", "cpu=2", [nominal(), sibling()])
        .holds("nominal", "n cpu=2 p=-10").holds("sibling", "s cpu=2 p=-1").waits("q", "in cpu=2"),
    &[("s", BORROWING)])]
#[case::nominal_quota_is_had_from_everywhere(
    tree_with(member("q", "c", "cpu=4"), "cpu=0", "cpu=2", [borrower(), sibling()])
        .holds("borrower", "b cpu=3 p=10").holds("sibling", "s cpu=3 p=10").waits("q", "in cpu=4"),
    &[("b", RECLAIMED), ("s", RECLAIMED)])]
#[case::by_right_and_by_priority(
    tree_with(threshold(member("q", "c", "cpu=0")).reclaim("LowerPriority"), "cpu=1", "cpu=4", [borrower(), sibling()])
        .holds("borrower", "b cpu=2 p=-1; b-high cpu=2 p=1").holds("sibling", "s cpu=1 p=-1").waits("q", "in cpu=3"),
    &[("b", RECLAIMED), ("s", BORROWING)])]
#[case::by_right_and_own_ones(
    tree_with(threshold(member("q", "c", "cpu=0")).reclaim("LowerPriority"), "cpu=1", "cpu=4", [borrower(), sibling()])
        .holds("borrower", "b cpu=2 p=-1; b-high cpu=2 p=1").holds("q", "own cpu=1 p=-1").waits("q", "in cpu=3"),
    &[("b", RECLAIMED), ("own", OWN)])]
#[case::the_lowest_priority_of_those_that_borrow(
    tree("cpu=3", [borrower(), nominal()])
        .holds("borrower", "b8 cpu=1 p=8; b9 cpu=1 p=9; b10 cpu=1 p=9").holds("nominal", "n cpu=2 p=-2").waits("q", "in cpu=1"),
    &[("b8", RECLAIMED)])]
#[case::nobody_in_a_cohort_within_its_quota(
    tree("cpu=2", [sibling(), member("other", "c_other", "cpu=0")]).cohorts([cohort("c_other").under("r").has("cpu=2")])
        .holds("other", "o1 cpu=1 p=-10; o2 cpu=1 p=-10").holds("sibling", "s cpu=2").waits("q", "in cpu=2"),
    &[])]
#[case::by_what_the_tree_lacks_of_each_resource(
    tree_with(member("q", "c", "cpu=0 memory=0"), "cpu=3 memory=0", "cpu=4 memory=4Gi",
        [member("borrower", "r", "cpu=0 memory=0"), member("sibling", "c", "cpu=0 memory=0")])
        .holds("borrower", "b cpu=3 memory=1Gi").holds("sibling", "s cpu=1 memory=3Gi p=-2").waits("q", "in cpu=2 memory=1Gi p=-2"),
    &[("b", RECLAIMED)])]
#[case::what_is_not_lent_is_not_counted_as_lent(
    tree_with(member("q", "c", "cpu=3-2"), "cpu=0", "cpu=2", [borrower()]).holds("borrower", "b cpu=4").waits("q", "in cpu=5 p=-2"),
    &[("b", RECLAIMED)])]
#[case::no_more_of_a_cohort_than_puts_it_back_within_its_quota(
    deep().holds("q1", "b1 cpu=4 p=-6; b2 cpu=4 p=-5").holds("q2", "b3 cpu=4 p=-9; b4 cpu=4 p=-10").holds("q3", "b5 cpu=4 p=-4; b6 cpu=3 p=-3")
        .holds("q4", "b7 cpu=2 p=4; b8 cpu=3 p=2").waits("q5", "in cpu=7 p=-2"),
    &[("b1", RECLAIMED), ("b4", RECLAIMED)])]
fn b44_those_go_over_whom_the_tree_gives_a_right(#[case] mut scene: Scene, #[case] expected: &[(&str, &str)]) {
    let decided = scene.decide();

    let expected: Vec<String> = expected.iter().map(|(name, right)| format!("{name} {right}")).collect();
    assert_eq!(decided.evicted, expected);
    assert_eq!(decided.admitted, [""; 0], "nobody is admitted before they have gone");
}

/// Kueue takes the evicted one as its victim again; to us it is gone in the plan, and the workload waits for what comes back.
#[test]
fn who_is_going_already_is_waited_for_and_nobody_else_has_to_go() {
    let mut scene = tree_with(threshold(member("q", "c", "cpu=0")), "cpu=0", "cpu=2", [borrower(), sibling()])
        .holds("borrower", "b cpu=1 p=-10")
        .holds("sibling", "going cpu=1 p=-1");
    scene.change("going", |workload| workload.spec.active = Some(false));
    scene.run();
    let mut scene = scene.waits("q", "in cpu=1");

    assert_eq!(scene.decide().evicted, [""; 0]);
    assert_eq!(scene.run(), [""; 0]);
    scene.release("going");
    assert_eq!(scene.run(), ["in"]);
}
