//! Borrowing and lending, also when the tree changes. B1–B12, and the cases on borrowing of Kueue's
//! table on scheduling (`pkg/scheduler/scheduler_test.go`, `TestSchedule`).

use rstest::rstest;
use serde_json::json;

use super::scene::{Scene, cohort, queue, three_teams};

/// Integration "Should admit workloads using borrowed ClusterQueue".
#[test]
fn b01_new_queue_in_cohort_lends_missing_quota() {
    let prod = queue("prod").within_cohort("all").quota("spot", "cpu=5+0").quota("on-demand", "cpu=5");
    let mut scene = Scene::new().queues([prod]).pending("prod", "wl cpu=10");
    assert_eq!(scene.run_until_stable(), [""; 0]);

    scene.put_queue(queue("fallback").within_cohort("all").quota("spot", "cpu=5").quota("on-demand", "cpu=5"));

    assert_eq!(scene.run_until_stable(), ["wl"]);
    assert_eq!(scene.flavors_of("wl"), "on-demand", "the borrowingLimit excludes spot");
}

/// Integration "Should schedule workloads borrowing quota from ClusterQueues in the same Cohort".
#[test]
fn b02_two_queues_borrow_from_a_third_simultaneously() {
    let member = |name: &str| queue(name).within_cohort("all").has("cpu=5+10");
    let mut scene =
        Scene::new().queues([member("prod"), member("dev")]).pending("prod", "w1 cpu=11").pending("dev", "w2 cpu=11");
    assert_eq!(scene.run_until_stable(), [""; 0]);

    scene.put_queue(queue("lender").within_cohort("all").has("cpu=15+0"));

    let mut admitted = scene.run_until_stable();
    admitted.sort();
    assert_eq!(admitted, ["w1", "w2"]);
}

/// Integration "Should start workloads that are under min quota before borrowing".
#[test]
fn b03_workload_within_nominal_quota_precedes_an_older_borrower() {
    let member = |name: &str, quota: &str| queue(name).within_cohort("all").has(quota).strict();
    let mut scene = Scene::new().queues([member("prod", "cpu=2"), member("dev", "cpu=0")]).pending("prod", "p1 cpu=2");
    assert_eq!(scene.run_until_stable(), ["p1"]);
    let mut scene = scene.pending("dev", "d1 cpu=1 t=1100").pending("prod", "p2 cpu=2 t=1200");
    assert_eq!(scene.run_until_stable(), [""; 0]);

    scene.finish("p1");
    assert_eq!(scene.run_until_stable(), ["p2"]);
    scene.finish("p2");
    assert_eq!(scene.run_until_stable(), ["d1"]);
}

/// Integration "Should admit workloads after updating lending limit", and the case before it.
#[test]
fn b07_raised_lending_limit_admits_borrower() {
    let member = |name: &str, quota: &str| queue(name).within_cohort("all").has(quota);
    let queues = [member("prod", "cpu=5-0"), member("dev", "cpu=5-0")];
    let mut scene = Scene::new().queues(queues).pending("prod", "w1 cpu=5; w2 cpu=5 t=1001");
    assert_eq!(scene.run_until_stable(), ["w1"]);

    scene.put_queue(member("dev", "cpu=5-5"));

    assert_eq!(scene.run_until_stable(), ["w2"]);
}

#[test]
fn queue_uses_quota_above_its_lending_limit_and_borrowed_quota() {
    let member = |name: &str, quota: &str| queue(name).within_cohort("all").has(quota);
    let mut scene = Scene::new().queues([member("prod", "cpu=5-1")]).pending("prod", "wl cpu=9");
    assert_eq!(scene.run_until_stable(), [""; 0]);

    scene.put_queue(member("dev", "cpu=5-4"));

    assert_eq!(scene.run_until_stable(), ["wl"]);
}

/// Integration "Should admit only up to the lendingLimit of sibling cohort".
#[test]
fn b08_sibling_cohort_lends_up_to_its_limit() {
    let mut scene = Scene::new()
        .cohorts([
            cohort("root").has("cpu=0"),
            cohort("lender").with_parent("root").has("cpu=1-500m"),
            cohort("borrower").with_parent("root"),
        ])
        .queues([queue("l").within_cohort("lender").has("cpu=1"), queue("b").within_cohort("borrower").has("cpu=0")])
        .pending("b", "w1 cpu=500m; w2 cpu=500m t=1001");

    assert_eq!(scene.run_until_stable(), ["w1"]);
}

/// Integration "should allow production to borrow but block research from borrowing".
#[rstest]
#[case::production("production", &["w1", "w2", "w3"])]
#[case::research("research", &["w1", "w2"])]
fn b09_cohort_with_zero_borrowing_limit_stays_within_its_quota(#[case] queue_name: &str, #[case] admitted: &[&str]) {
    let mut scene = Scene::new()
        .cohorts([cohort("root").has("cpu=0"), cohort("research-c").with_parent("root").has("cpu=0+0")])
        .cohorts([cohort("production-c").with_parent("root").has("cpu=0")])
        .queues(["research", "production"].map(|name| queue(name).within_cohort(&format!("{name}-c")).has("cpu=1")))
        .pending(queue_name, "w1 cpu=500m t=1; w2 cpu=500m t=2; w3 cpu=500m t=3");

    assert_eq!(scene.run_until_stable(), admitted);
}

/// Integration "should allow burst queue to borrow idle capacity while orgs stay isolated".
#[test]
fn b09_queue_borrows_idle_quota_of_isolated_sibling_cohorts() {
    let isolated = |name: &str| cohort(name).with_parent("root").has("cpu=0+0");
    let mut scene = Scene::new()
        .cohorts([cohort("root").has("cpu=0"), isolated("org-a"), isolated("org-b")])
        .queues([queue("a").within_cohort("org-a").has("cpu=1"), queue("b").within_cohort("org-b").has("cpu=1")])
        .queues([queue("burst").within_cohort("root").has("cpu=0")])
        .pending("a", "a1 cpu=500m t=1; a2 cpu=500m t=2; over cpu=500m t=3");
    assert_eq!(scene.run_until_stable(), ["a1", "a2"]);

    scene.submit_to("burst", "x1 cpu=500m; x2 cpu=500m");

    assert_eq!(scene.run_until_stable(), ["x1", "x2"]);
}

/// Integration "Long distance resource allows workload to be scheduled".
#[test]
fn b10_quota_of_a_distant_cohort_can_be_borrowed() {
    let mut scene = Scene::new()
        .cohorts([cohort("left").with_parent("root"), cohort("right").with_parent("root")])
        .queues([queue("cq").within_cohort("left").has("cpu=0")])
        .pending("cq", "wl cpu=10");
    assert_eq!(scene.run_until_stable(), [""; 0]);

    scene.put_cohort_node(cohort("bank").with_parent("right").has("cpu=10"));

    assert_eq!(scene.run_until_stable(), ["wl"]);
}

/// Integration "Should admit overflow workload after reparenting child cohort to a larger root".
#[test]
fn b11_cohort_moved_below_a_larger_root_admits_pending_workload() {
    let mut scene = Scene::new()
        .cohorts([cohort("root-a").has("cpu=1"), cohort("root-b").has("cpu=2"), cohort("child").with_parent("root-a")])
        .queues([queue("cq").within_cohort("child").has("cpu=0")])
        .pending("cq", "w1 cpu=500m t=1; w2 cpu=500m t=2; over cpu=500m t=3");
    assert_eq!(scene.run_until_stable(), ["w1", "w2"]);

    scene.put_cohort_node(cohort("child").with_parent("root-b"));

    assert_eq!(scene.run_until_stable(), ["over"]);
}

/// Integration "Should not admit from stale subtree quota after deleting sibling cohort".
#[test]
fn b12_quota_below_a_deleted_cohort_is_not_lent() {
    let mut scene = Scene::new()
        .cohorts([
            cohort("root"),
            cohort("left").with_parent("root").has("cpu=0"),
            cohort("right").with_parent("root").has("cpu=5"),
        ])
        .queues([queue("a").within_cohort("left").has("cpu=10"), queue("b").within_cohort("right").has("cpu=7")])
        .pending("a", "base cpu=10");
    assert_eq!(scene.run_until_stable(), ["base"]);

    scene.delete_cohort("right");
    scene.submit_to("a", "more cpu=8");

    assert_eq!(scene.run_until_stable(), [""; 0]);
    assert_eq!(scene.reason_and_message("more", "QuotaReserved").0, "WaitingForQuota");
}

/// Integration "Should not allow borrowing through deleted mid-tree cohort".
#[test]
fn b12_deleted_cohort_stops_borrowing_but_not_running_workloads() {
    let mut scene = Scene::new()
        .cohorts([cohort("root").has("cpu=2"), cohort("mid").with_parent("root").has("cpu=2")])
        .queues([queue("cq").within_cohort("mid").has("cpu=1")])
        .pending("cq", "base cpu=1");
    assert_eq!(scene.run_until_stable(), ["base"]);

    scene.delete_cohort("mid");
    scene.submit_to("cq", "more cpu=2");

    assert_eq!(scene.run_until_stable(), [""; 0]);
    assert!(scene.is_true("base", "Admitted") && !scene.is_true("base", "Evicted"));
}

/// Integration "Should prevent incorrect admission through borrowing after ClusterQueue deletion".
#[test]
fn b12_deleted_cluster_queue_lends_nothing() {
    let member = |name: &str, quota: &str| queue(name).within_cohort("all").has(quota);
    let mut scene = Scene::new().queues([member("lender", "cpu=8"), member("borrower", "cpu=0")]);
    scene.delete_queue("lender");
    scene.submit_to("borrower", "wl cpu=8 p=1000");

    assert_eq!(scene.run_until_stable(), [""; 0]);
}

/// Integration "Should admit workload using resources borrowed from cohort".
#[test]
fn cohort_lends_its_own_quota() {
    let queue = queue("cq").within_cohort("c").quota("on-demand", "cpu=0");
    let mut scene = Scene::new().queues([queue]).pending("cq", "wl cpu=10");
    assert_eq!(scene.run_until_stable(), [""; 0]);
    scene.put_cohort_node(cohort("c").quota("on-demand", "cpu=5"));
    assert_eq!(scene.run_until_stable(), [""; 0]);

    scene.put_cohort_node(cohort("c").quota("on-demand", "cpu=10"));

    assert_eq!(scene.run_until_stable(), ["wl"]);
}

/// Integration "Should admit workload when cq switches into cohort with capacity".
#[test]
fn queue_moved_to_a_larger_cohort_admits_pending_workload() {
    let cq = |cohort: &str| queue("cq").within_cohort(cohort).has("cpu=0");
    let mut scene =
        Scene::new().queues([cq("poor")]).cohorts([cohort("rich").has("cpu=10")]).pending("cq", "wl cpu=10");
    assert_eq!(scene.run_until_stable(), [""; 0]);

    scene.put_queue(cq("rich"));

    assert_eq!(scene.run_until_stable(), ["wl"]);
}

/// A cycle of Cohorts makes the queues below it inactive; admitted workloads keep running.
#[test]
fn cohort_cycle_admits_nothing_until_it_is_broken() {
    let mut scene = Scene::new()
        .cohorts([cohort("one").with_parent("two").has("cpu=4"), cohort("two").with_parent("one")])
        .queues([queue("cq").within_cohort("one").has("cpu=1")])
        .pending("cq", "wl cpu=3");
    assert_eq!(scene.run_until_stable(), [""; 0]);
    assert_eq!(scene.reason_and_message("wl", "QuotaReserved").0, "Suspended");

    scene.put_cohort("two", json!({}));

    assert_eq!(scene.run_until_stable(), ["wl"]);
}

fn two_with_lending_limits(quota_of_a: &str) -> Scene {
    let member = |name: &str, quota: &str| queue(name).within_cohort("lend").has(quota);
    Scene::new().queues([member("a", quota_of_a), member("b", "cpu=2-2")])
}

fn lender_and_borrower_below_root(lender: &str) -> Scene {
    Scene::new().cohorts([cohort("root"), cohort("child").with_parent("root")]).queues([
        queue("lender").within_cohort("child").has(lender),
        queue("borrower").within_cohort("child").has("cpu=5+10"),
    ])
}

fn three_with_two_resources() -> Scene {
    let member = |name: &str| {
        queue(name).within_cohort("co").has("r1=10+10 r2=10+10").preempts_within("LowerPriority").reclaims("Any")
    };
    Scene::new().queues(["q1", "q2", "q3"].map(member))
}

#[rstest]
// "admit in different cohorts".
#[case::separate_cohorts(three_teams().pending("sales", "s cpu=1").pending("alpha", "a n=51 cpu=1"), &["s@default", "a@on-demand"])]
// "admit in same cohort with no borrowing".
#[case::no_borrowing(
    three_teams().pending("alpha", "a n=40 cpu=1").pending("beta", "b n=40 cpu=1"), &["a@on-demand", "b@on-demand"])]
// "can borrow if cohort was assigned and will not result in overadmission".
#[case::borrows_all_available_quota(three_teams().pending("alpha", "a n=45 cpu=1").pending("beta", "b n=55 cpu=1"), &["a@on-demand", "b@on-demand"])]
// "cannot borrow if cohort was assigned and would result in overadmission": in Kueue the second is
// skipped and gets another flavor in the next cycle; here in the same one.
#[case::b39_available_quota_is_not_enough(
    three_teams().pending("alpha", "a n=45 cpu=1").pending("beta", "b n=56 cpu=1"), &["a@on-demand", "b@spot"])]
// "can borrow if needs reclaim from cohort in different flavor".
#[case::another_waits_to_reclaim_a_different_flavor(
    three_teams().admitted("beta", "od cpu=50@on-demand; sp cpu=1@spot").pending("alpha", "large cpu=100").pending("beta", "small cpu=1"),
    &["small@on-demand"])]
// "workload exceeds lending limit when borrow in cohort".
#[case::lending_limit_is_respected(two_with_lending_limits("cpu=3-2").admitted("b", "held cpu=2").pending("b", "more cpu=3"), &[])]
// "hierarchical cohort respects lending limit when borrowing", "… allows borrowing up to lending
// limit".
#[case::lending_limit_is_respected_below_a_root(lender_and_borrower_below_root("cpu=10-3").admitted("borrower", "held cpu=5").pending("borrower", "more cpu=4"), &[])]
#[case::borrows_up_to_lending_limit_below_a_root(
    lender_and_borrower_below_root("cpu=10-5").admitted("borrower", "held cpu=5").pending("borrower", "more cpu=5"), &["more@default"])]
// "two workloads can borrow …" twice, "only one workload can borrow …".
#[case::b39_two_borrow_different_resources(
    three_with_two_resources().pending("q1", "w1 r1=16 p=-1").pending("q2", "w2 r2=16 p=-2"), &["w1@default", "w2@default"])]
#[case::b39_two_borrow_the_same_resource(
    three_with_two_resources().pending("q1", "w1 r1=16 p=-1").pending("q2", "w2 r1=14 p=-2"), &["w1@default", "w2@default"])]
#[case::b39_only_one_borrows_if_quota_is_exhausted(
    three_with_two_resources().pending("q1", "w1 r1=16 p=-1").pending("q2", "w2 r1=16 p=-2"), &["w1@default"])]
// "cannot borrow resource not listed in clusterQueue".
#[case::uncovered_resource_is_not_borrowed(three_teams().pending("alpha", "a gpu=1"), &[])]
// "not enough resources".
#[case::request_exceeds_quota(three_teams().pending("sales", "s cpu=100"), &[])]
fn b39_available_quota_is_assigned_once(#[case] mut scene: Scene, #[case] admitted: &[&str]) {
    let decided = scene.decide();

    assert_eq!(decided.admitted, admitted);
    assert_eq!(decided.evicted, [""; 0]);
}

/// "no overadmission while borrowing".
#[test]
fn queue_at_its_borrowing_limit_waits_while_others_borrow() {
    let gamma = queue("gamma").within_cohort("eng").quota("on-demand", "cpu=50+10").quota("spot", "cpu=0+100");
    let mut scene = three_teams()
        .queues([gamma.preempts_within("LowerPriority").reclaims("Any")])
        .admitted("gamma", "held +one n=51 cpu=1@on-demand +two n=100 cpu=1@spot")
        .pending("beta", "b n=50 cpu=1 t=998")
        .pending("alpha", "a cpu=1 t=999")
        .pending("gamma", "g n=50 cpu=1 t=1000");

    let decided = scene.decide();

    assert_eq!(decided.admitted, ["b@on-demand", "a@on-demand"]);
    assert_eq!(decided.evicted, [""; 0]);
}

/// B22: integration "shouldn't admit second workload on over admission".
#[test]
fn b22_overcommitted_queue_lends_no_quota() {
    let first = |quota: &str| queue("q1").within_cohort("c").has(quota);
    let mut scene = Scene::new()
        .queues([first("cpu=1 memory=1Gi"), queue("q2").within_cohort("c").has("cpu=2 memory=1Gi")])
        .pending("q1", "w1 cpu=2 memory=2Gi");
    assert_eq!(scene.run_until_stable(), ["w1"]);
    scene.submit_to("q2", "w2 cpu=1 memory=1Gi");
    assert_eq!(scene.run_until_stable(), [""; 0]);

    scene.put_queue(first("cpu=1"));

    assert_eq!(scene.run_until_stable(), [""; 0]);
    scene.finish("w1");
    assert_eq!(scene.run_until_stable(), ["w2"]);
}
