//! Who comes first, within a queue and between queues. B13–B16, B41, B50, B51, and cases of Kueue's table on scheduling
//! (`pkg/scheduler/scheduler_test.go`, `TestSchedule`).

use rstest::rstest;
use serde_json::json;

use super::scene::{Decided, Scene, cohort, queue};
use crate::Decision;
use sluice_api::kueue::names;

/// Integration "Should schedule workloads by their priority strictly".
#[test]
fn b13_behind_the_head_of_a_strict_queue_nobody_is_admitted() {
    let mut scene = Scene::new()
        .queues([queue("q").has("cpu=5").strict()])
        .waits("q", "w1 cpu=2 p=100; w2 cpu=5 p=10; w3 cpu=1 p=1");

    assert_eq!(scene.run(), ["w1"]);
}

/// Integration "Workloads not matching namespaceSelector should not block others".
#[test]
fn b14_a_head_that_the_selector_leaves_out_blocks_nobody() {
    let mut scene = Scene::new().queues([queue("q").has("cpu=5").strict()]).waits("q", "w1 cpu=2 p=100; w3 cpu=1 p=1");
    let mut elsewhere = scene.workload("w2", &[("main", 1, json!({"cpu": "5"}))]);
    elsewhere.spec.queue_name = Some("q".into());
    elsewhere.spec.priority = Some(10);
    scene.label_namespace("dep", "eng");
    let strict = json!({"matchLabels": {"dep": "eng"}});
    let mut scene = scene.queues([queue("q").has("cpu=5").strict().selecting(strict)]);
    scene.put_elsewhere("another", elsewhere);

    assert_eq!(scene.run(), ["w1", "w3"]);
}

/// Integration "Pending workload with StrictFIFO doesn't block other CQ from borrowing from a third CQ".
#[test]
fn b15_a_strict_head_that_waits_keeps_what_is_its_own_and_no_more() {
    let team = queue("team").within_cohort("c").has("cpu=5");
    let mut scene = Scene::new()
        .queues([queue("strict").within_cohort("c").has("cpu=5+0").strict(), team.clone()])
        .queues([queue("shared").within_cohort("c").has("cpu=5")])
        .holds("strict", "held-1 cpu=3 p=10")
        .holds("team", "held-2 cpu=5 p=1")
        .waits("strict", "head cpu=3 p=99")
        .waits("team", "borrows cpu=5 p=11; blocked cpu=1 p=10");

    assert_eq!(scene.decide().admitted, ["borrows@default"]);
    assert_eq!(scene.run(), ["borrows"]);
}

/// `f1` runs, `f2` waits for all that its queue has, two that would borrow wait for what is left.
fn foundation(reclaim: &str) -> Scene {
    let mut scene = Scene::new()
        .queues([queue("foundation").within_cohort("c").has("cpu=2").reclaim(reclaim).strict()])
        .queues([queue("best-effort").within_cohort("c").has("cpu=0")])
        .waits("foundation", "f1 cpu=1 p=1000");
    assert_eq!(scene.run(), ["f1"]);
    scene.waits("foundation", "f2 cpu=2 p=1000").waits("best-effort", "b1 cpu=1 t=1002; b2 cpu=1 t=1003")
}

/// Integration "foundation-queue allows best-effort queue to use capacity until it is ready to admit next workload".
#[test]
fn b16_a_lender_that_can_take_anything_back_lets_others_use_it_meanwhile() {
    let mut scene = foundation("Any");
    assert_eq!(scene.run(), ["b1"]);

    scene.finish("f1");
    assert_eq!(scene.decide().evicted, ["b1 InCohortReclamation"]);
    assert_eq!(scene.run(), [""; 0]);
    scene.release("b1");

    assert_eq!(scene.run(), ["f2"]);
}

/// Integration "foundation-queue blocks capacity when it is not sure that it can reclaim".
#[test]
fn b16_a_lender_that_may_not_get_it_back_keeps_it() {
    let mut scene = foundation("LowerPriority");
    assert_eq!(scene.run(), [""; 0]);
    // One of two is held, one is asked for, and what is free is not to be had.
    let (_, why) = scene.says("b1", names::QUOTA_RESERVED);
    assert!(
        why.contains("limited by the quota of cohort c: team/f1 holds 1, 2 is reserved for team/f2; fits"),
        "{why}"
    );

    scene.finish("f1");

    assert_eq!(scene.run(), ["f2"]);
}

fn lender_and_borrower(reclaim: &str, strict: bool) -> Scene {
    let lender = queue("a").within_cohort("root").has("gpu=2").reclaim(reclaim);
    Scene::new()
        .queues([if strict { lender.strict() } else { lender }, queue("b").within_cohort("root").has("gpu=0")])
        .holds("a", "a1 gpu=1")
        .waits("a", "a2 gpu=2")
        .waits("b", "b1 gpu=1")
}

/// "capacity (not) blocked when lending clusterqueue …", three times. In Kueue the head of any queue keeps quota back, that of
/// a best-effort one for one cycle, after which it is parked and the borrower gets it; here only that of a strict queue does.
#[rstest]
#[case::any("Any", true, &["b1@default"])]
#[case::lower_priority("LowerPriority", true, &[])]
#[case::never("Never", true, &[])]
#[case::any_best_effort("Any", false, &["b1@default"])]
#[case::lower_priority_best_effort("LowerPriority", false, &["b1@default"])]
#[case::never_best_effort("Never", false, &["b1@default"])]
fn b16_who_keeps_quota_back(#[case] reclaim: &str, #[case] strict: bool, #[case] admitted: &[&str]) {
    let mut scene = lender_and_borrower(reclaim, strict);

    assert_eq!(scene.decide().admitted, admitted);
}

/// "in a hierarchical cohort, workload borrowing less is scheduled first".
#[test]
fn who_borrows_from_nearer_comes_before_who_borrows_from_farther() {
    let mut scene = Scene::new()
        .cohorts([cohort("root"), cohort("near").under("root").has("cpu=4")])
        .queues([
            queue("guaranteed").within_cohort("near").has("cpu=0"),
            queue("best-effort").within_cohort("root").has("cpu=0"),
        ])
        .waits("guaranteed", "g cpu=4")
        .waits("best-effort", "b cpu=4 p=3");

    assert_eq!(scene.decide().admitted, ["g@default"]);
}

/// "workload requiring reclaimation prioritized over wl in another full cq".
#[test]
fn who_reclaims_its_own_is_not_held_up_by_who_waits_for_more() {
    let member = |name: &str, quota: &str| queue(name).within_cohort("c").has(quota);
    let mut scene = Scene::new()
        .queues([member("q1", "gpu=10"), member("q2", "gpu=10").reclaim("Any"), member("q3", "gpu=0")])
        .holds("q1", "held-1 gpu=5")
        .holds("q3", "held-2 gpu=5; held-3 gpu=5 p=1")
        .waits("q1", "w1 gpu=10 t=1000")
        .waits("q2", "w2 gpu=10 t=1001");

    assert_eq!(scene.decide().evicted, ["held-2 InCohortReclamation"]);
    assert_eq!(scene.settle(), ["w2"]);
}

/// "preemption while borrowing, workload waiting for preemption should not block a borrowing workload in another CQ".
#[test]
fn who_waits_and_can_evict_nobody_does_not_hold_up_a_borrower_of_another_queue() {
    let member = |name: &str, quota: &str| {
        queue(name).within_cohort("c").has(quota).reclaim("LowerPriority").while_borrowing(None)
    };
    let mut scene = Scene::new()
        .queues([queue("shared").within_cohort("c").has("cpu=4+0"), member("a", "cpu=0+3"), member("b", "cpu=0")])
        .holds("a", "held cpu=2")
        .waits("a", "wa cpu=3 t=1001")
        .waits("b", "wb cpu=1 t=1002");

    assert_eq!(scene.decide().admitted, ["wb@default"]);
}

/// "prevent integer overflow …", twice, and with the sum of several pods.
#[rstest]
#[case::over_pod_sets("in +one cpu=1000000m +two cpu=9223372036854775000m")]
#[case::in_milli_units("in cpu=9223372036854776")]
#[case::over_pods("in n=2147483647 cpu=9223372036854775000m")]
#[case::by_exponent("in cpu=1e30")]
fn b41_a_request_beyond_all_numbers_never_fits(#[case] workload: &str) {
    let mut scene = Scene::new().queues([queue("q").has("cpu=10000")]).waits("q", workload);

    assert_eq!(scene.run(), [""; 0]);
    assert_eq!(scene.says("in", "QuotaReserved").0, "ExceedsMaxQuota");
}

/// Integration "Should admit a fitting workload behind identical no-fit workloads": nine of the ten are not even tried.
#[test]
fn b50_of_many_alike_one_is_tried_and_who_fits_behind_them_is_admitted() {
    let alike: Vec<String> = (0..10).map(|number| format!("large{number} cpu=10 t={number}")).collect();
    let mut scene =
        Scene::new().queues([queue("q").has("cpu=2")]).waits("q", &alike.join("; ")).waits("q", "small cpu=1 t=11");

    assert_eq!(scene.decide().admitted, ["small@default"]);
    assert!(scene.engine.decision_count() <= 3, "{} decisions", scene.engine.decision_count());
}

/// Integration "Should bulk-move equivalent workloads that need preemption but have no candidates".
#[test]
fn b50_of_many_alike_that_can_evict_nobody_one_is_tried_and_who_can_does() {
    let alike: Vec<String> = (0..10).map(|number| format!("alike{number} cpu=1 t={number}")).collect();
    let mut scene = Scene::new()
        .queues([queue("q").has("cpu=2").within("LowerPriority")])
        .holds("q", "held cpu=2")
        .waits("q", &alike.join("; "));

    assert_eq!(scene.decide(), Decided::default());
    assert!(scene.engine.decision_count() <= 2, "{} decisions", scene.engine.decision_count());
    scene.submit_to("q", "important cpu=1 p=1");
    assert_eq!(scene.decide().evicted, ["held InClusterQueue"]);
    assert_eq!(scene.settle(), ["important", "alike0"]);
}

/// Integration "Should collapse requeue requests to ClusterQueue", "… to Cohort": what happened between two cycles is looked
/// at once.
#[rstest]
#[case::of_the_queue(|scene: &mut Scene, quota: String| scene.put_queue(queue("q").within_cohort("c").has(&quota)))]
#[case::of_its_cohort(|scene: &mut Scene, quota: String| scene.put_group(cohort("c").has(&quota)))]
fn b51_a_burst_of_quota_updates_costs_one_look(#[case] update: fn(&mut Scene, String)) {
    let mut scene = Scene::new().queues([queue("q").within_cohort("c").has("cpu=1")]).waits("q", "wl cpu=100");
    scene.run();
    let before = scene.engine.decision_count();

    for quota in 2..12 {
        update(&mut scene, format!("cpu={quota}"));
    }
    scene.run();

    let looks = scene.engine.decision_count() - before;
    assert!((1..=5).contains(&looks), "{looks} decisions");
    update(&mut scene, "cpu=100".to_owned());
    assert_eq!(scene.run(), ["wl"]);
}

/// Best effort and strict may be exchanged at any time: integration "Should allow mutating the requeueingStrategy".
#[test]
fn a_queue_that_is_no_longer_strict_admits_who_fits_behind_the_head() {
    let q = || queue("q").has("cpu=5");
    let mut scene = Scene::new().queues([q().strict()]).waits("q", "w1 cpu=4 p=3; w2 cpu=3 p=2; w3 cpu=1 p=1");
    assert_eq!(scene.run(), ["w1"]);

    scene.put_queue(q());

    assert_eq!(scene.run(), ["w3"]);
}

/// Integration "Should admit two small workloads after a big one finishes".
#[test]
fn two_small_ones_follow_a_large_one_in_one_cycle() {
    let mut scene = Scene::new()
        .queues([queue("q").has("cpu=5")])
        .waits("q", "large cpu=5 t=1; s1 cpu=2500m t=2; s2 cpu=2500m t=3");
    assert_eq!(scene.run(), ["large"]);

    scene.finish("large");

    let effects = scene.cycle();
    assert_eq!(effects.iter().filter(|effect| matches!(effect, Decision::Admit { .. })).count(), 2);
}

#[test]
fn among_those_for_whom_others_went_priority_decides_however_their_queues_line_up() {
    // Given two for whom room was made, one of them first of a strict ClusterQueue.
    let preempting = |name: &str| queue(name).within_cohort("all").within("LowerPriority").reclaim("LowerPriority");
    let borrower = |name: &str| preempting(name).has("cpu=0").while_borrowing(None);
    let mut scene = Scene::new()
        .cohorts([cohort("all").has("cpu=4")])
        .queues([borrower("strict").strict(), borrower("best-effort")])
        .holds("strict", "low cpu=2 p=-1")
        .holds("best-effort", "lower cpu=2 p=-2")
        .waits("strict", "high cpu=2 p=1")
        .waits("best-effort", "middle cpu=2");
    scene.run();
    assert_eq!(scene.going(), ["low", "lower"]);

    // When there turns out to be room for one of them only.
    scene.put_group(cohort("all").has("cpu=2"));

    // Then that is the one of the higher priority.
    assert_eq!(scene.settle(), ["high"]);
}
