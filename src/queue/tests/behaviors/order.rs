//! Scheduling order within a queue and between queues. B13–B16, B41, B50, B51, and cases of Kueue's
//! table on scheduling (`pkg/scheduler/scheduler_test.go`, `TestSchedule`).

use rstest::rstest;
use serde_json::json;

use super::scene::{CycleDecisions, Scene, cohort, queue};
use crate::Decision;
use sluice_api::kueue::names;

/// Integration "Should schedule workloads by their priority strictly".
#[test]
fn b13_strict_queue_admits_nothing_behind_its_head() {
    let mut scene = Scene::new()
        .queues([queue("q").has("cpu=5").strict()])
        .pending("q", "w1 cpu=2 p=100; w2 cpu=5 p=10; w3 cpu=1 p=1");

    assert_eq!(scene.run_until_stable(), ["w1"]);
}

/// Integration "Workloads not matching namespaceSelector should not block others".
#[test]
fn b14_head_of_unselected_namespace_does_not_block_the_queue() {
    let mut scene =
        Scene::new().queues([queue("q").has("cpu=5").strict()]).pending("q", "w1 cpu=2 p=100; w3 cpu=1 p=1");
    let mut unselected = scene.workload("w2", &[("main", 1, json!({"cpu": "5"}))]);
    unselected.spec.queue_name = Some("q".into());
    unselected.spec.priority = Some(10);
    scene.label_namespace("dep", "eng");
    let strict = json!({"matchLabels": {"dep": "eng"}});
    let mut scene = scene.queues([queue("q").has("cpu=5").strict().namespace_selector(strict)]);
    scene.put_in_namespace("another", unselected);

    assert_eq!(scene.run_until_stable(), ["w1", "w3"]);
}

/// Integration "Pending workload with StrictFIFO doesn't block other CQ from borrowing from a third
/// CQ".
#[test]
fn b15_pending_strict_head_reserves_only_nominal_quota() {
    let team = queue("team").within_cohort("c").has("cpu=5");
    let mut scene = Scene::new()
        .queues([queue("strict").within_cohort("c").has("cpu=5+0").strict(), team.clone()])
        .queues([queue("shared").within_cohort("c").has("cpu=5")])
        .admitted("strict", "held-1 cpu=3 p=10")
        .admitted("team", "held-2 cpu=5 p=1")
        .pending("strict", "head cpu=3 p=99")
        .pending("team", "borrows cpu=5 p=11; blocked cpu=1 p=10");

    assert_eq!(scene.decide().admitted, ["borrows@default"]);
    assert_eq!(scene.run_until_stable(), ["borrows"]);
}

/// Returns a queue in which `f1` runs and `f2` needs the whole quota, and two pending workloads
/// that would borrow the rest.
fn foundation_and_best_effort(reclaim: &str) -> Scene {
    let mut scene = Scene::new()
        .queues([queue("foundation").within_cohort("c").has("cpu=2").reclaims(reclaim).strict()])
        .queues([queue("best-effort").within_cohort("c").has("cpu=0")])
        .pending("foundation", "f1 cpu=1 p=1000");
    assert_eq!(scene.run_until_stable(), ["f1"]);
    scene.pending("foundation", "f2 cpu=2 p=1000").pending("best-effort", "b1 cpu=1 t=1002; b2 cpu=1 t=1003")
}

/// Integration "foundation-queue allows best-effort queue to use capacity until it is ready to
/// admit next workload".
#[test]
fn b16_lender_that_can_always_reclaim_lends_until_its_head_fits() {
    let mut scene = foundation_and_best_effort("Any");
    assert_eq!(scene.run_until_stable(), ["b1"]);

    scene.finish("f1");
    assert_eq!(scene.decide().evicted, ["b1 InCohortReclamation"]);
    assert_eq!(scene.run_until_stable(), [""; 0]);
    scene.release_quota("b1");

    assert_eq!(scene.run_until_stable(), ["f2"]);
}

/// Integration "foundation-queue blocks capacity when it is not sure that it can reclaim".
#[test]
fn b16_lender_that_may_be_unable_to_reclaim_reserves_quota() {
    let mut scene = foundation_and_best_effort("LowerPriority");
    assert_eq!(scene.run_until_stable(), [""; 0]);
    // One of two CPUs is used; the other is reserved for the pending head.
    let (_, why) = scene.reason_and_message("b1", names::QUOTA_RESERVED);
    assert!(
        why.contains("limited by the quota of cohort c: team/f1 holds 1, 2 is reserved for team/f2; fits"),
        "{why}"
    );

    scene.finish("f1");

    assert_eq!(scene.run_until_stable(), ["f2"]);
}

fn lender_and_borrower(reclaim: &str, strict: bool) -> Scene {
    let lender = queue("a").within_cohort("root").has("gpu=2").reclaims(reclaim);
    Scene::new()
        .queues([if strict { lender.strict() } else { lender }, queue("b").within_cohort("root").has("gpu=0")])
        .admitted("a", "a1 gpu=1")
        .pending("a", "a2 gpu=2")
        .pending("b", "b1 gpu=1")
}

/// "capacity (not) blocked when lending clusterqueue …", three times. In Kueue the head of any
/// queue reserves quota; that of a BestEffortFIFO queue for one cycle, after which it is parked and
/// the borrower is admitted. Here only the head of a StrictFIFO queue does.
#[rstest]
#[case::any("Any", true, &["b1@default"])]
#[case::lower_priority("LowerPriority", true, &[])]
#[case::never("Never", true, &[])]
#[case::any_best_effort("Any", false, &["b1@default"])]
#[case::lower_priority_best_effort("LowerPriority", false, &["b1@default"])]
#[case::never_best_effort("Never", false, &["b1@default"])]
fn b16_only_strict_lender_with_limited_reclaim_reserves_quota(
    #[case] reclaim: &str,
    #[case] strict: bool,
    #[case] admitted: &[&str],
) {
    let mut scene = lender_and_borrower(reclaim, strict);

    assert_eq!(scene.decide().admitted, admitted);
}

/// "in a hierarchical cohort, workload borrowing less is scheduled first".
#[test]
fn workload_borrowing_from_nearer_cohort_is_scheduled_first() {
    let mut scene = Scene::new()
        .cohorts([cohort("root"), cohort("near").with_parent("root").has("cpu=4")])
        .queues([
            queue("guaranteed").within_cohort("near").has("cpu=0"),
            queue("best-effort").within_cohort("root").has("cpu=0"),
        ])
        .pending("guaranteed", "g cpu=4")
        .pending("best-effort", "b cpu=4 p=3");

    assert_eq!(scene.decide().admitted, ["g@default"]);
}

/// "workload requiring reclaimation prioritized over wl in another full cq".
#[test]
fn reclaiming_workload_is_not_blocked_by_pending_workload_of_full_queue() {
    let member = |name: &str, quota: &str| queue(name).within_cohort("c").has(quota);
    let mut scene = Scene::new()
        .queues([member("q1", "gpu=10"), member("q2", "gpu=10").reclaims("Any"), member("q3", "gpu=0")])
        .admitted("q1", "held-1 gpu=5")
        .admitted("q3", "held-2 gpu=5; held-3 gpu=5 p=1")
        .pending("q1", "w1 gpu=10 t=1000")
        .pending("q2", "w2 gpu=10 t=1001");

    assert_eq!(scene.decide().evicted, ["held-2 InCohortReclamation"]);
    assert_eq!(scene.run_with_evictions(), ["w2"]);
}

/// "preemption while borrowing, workload waiting for preemption should not block a borrowing
/// workload in another CQ".
#[test]
fn pending_workload_without_candidates_does_not_block_borrower_of_another_queue() {
    let member = |name: &str, quota: &str| {
        queue(name).within_cohort("c").has(quota).reclaims("LowerPriority").preempts_while_borrowing(None)
    };
    let mut scene = Scene::new()
        .queues([queue("shared").within_cohort("c").has("cpu=4+0"), member("a", "cpu=0+3"), member("b", "cpu=0")])
        .admitted("a", "held cpu=2")
        .pending("a", "wa cpu=3 t=1001")
        .pending("b", "wb cpu=1 t=1002");

    assert_eq!(scene.decide().admitted, ["wb@default"]);
}

/// "prevent integer overflow …", twice, and with the sum of several pods.
#[rstest]
#[case::sum_of_pod_sets("in +one cpu=1000000m +two cpu=9223372036854775000m")]
#[case::conversion_to_milli_units("in cpu=9223372036854776")]
#[case::sum_of_pods("in n=2147483647 cpu=9223372036854775000m")]
#[case::exponent("in cpu=1e30")]
fn b41_overflowing_request_never_fits(#[case] workload: &str) {
    let mut scene = Scene::new().queues([queue("q").has("cpu=10000")]).pending("q", workload);

    assert_eq!(scene.run_until_stable(), [""; 0]);
    assert_eq!(scene.reason_and_message("in", "QuotaReserved").0, "ExceedsMaxQuota");
}

/// Integration "Should admit a fitting workload behind identical no-fit workloads": nine of the ten
/// are not nominated.
#[test]
fn b50_one_of_equivalent_workloads_is_nominated_and_fitting_one_behind_is_admitted() {
    let alike: Vec<String> = (0..10).map(|number| format!("large{number} cpu=10 t={number}")).collect();
    let mut scene =
        Scene::new().queues([queue("q").has("cpu=2")]).pending("q", &alike.join("; ")).pending("q", "small cpu=1 t=11");

    assert_eq!(scene.decide().admitted, ["small@default"]);
    assert!(scene.scheduler.decision_count() <= 3, "{} decisions", scene.scheduler.decision_count());
}

/// Integration "Should bulk-move equivalent workloads that need preemption but have no candidates".
#[test]
fn b50_one_of_equivalent_workloads_without_candidates_is_nominated() {
    let alike: Vec<String> = (0..10).map(|number| format!("alike{number} cpu=1 t={number}")).collect();
    let mut scene = Scene::new()
        .queues([queue("q").has("cpu=2").preempts_within("LowerPriority")])
        .admitted("q", "held cpu=2")
        .pending("q", &alike.join("; "));

    assert_eq!(scene.decide(), CycleDecisions::default());
    assert!(scene.scheduler.decision_count() <= 2, "{} decisions", scene.scheduler.decision_count());
    scene.submit_to("q", "important cpu=1 p=1");
    assert_eq!(scene.decide().evicted, ["held InClusterQueue"]);
    assert_eq!(scene.run_with_evictions(), ["important", "alike0"]);
}

/// Integration "Should collapse requeue requests to ClusterQueue", "… to Cohort": all changes
/// between two cycles are handled together.
#[rstest]
#[case::cluster_queue(|scene: &mut Scene, quota: String| scene.put_queue(queue("q").within_cohort("c").has(&quota)))]
#[case::cohort(|scene: &mut Scene, quota: String| scene.put_cohort_node(cohort("c").has(&quota)))]
fn b51_burst_of_quota_updates_causes_one_nomination(#[case] update: fn(&mut Scene, String)) {
    let mut scene = Scene::new().queues([queue("q").within_cohort("c").has("cpu=1")]).pending("q", "wl cpu=100");
    scene.run_until_stable();
    let before = scene.scheduler.decision_count();

    for quota in 2..12 {
        update(&mut scene, format!("cpu={quota}"));
    }
    scene.run_until_stable();

    let decisions = scene.scheduler.decision_count() - before;
    assert!((1..=5).contains(&decisions), "{decisions} decisions");
    update(&mut scene, "cpu=100".to_owned());
    assert_eq!(scene.run_until_stable(), ["wl"]);
}

/// The queueing strategy is mutable: integration "Should allow mutating the requeueingStrategy".
#[test]
fn queue_changed_to_best_effort_admits_workload_behind_its_head() {
    let q = || queue("q").has("cpu=5");
    let mut scene = Scene::new().queues([q().strict()]).pending("q", "w1 cpu=4 p=3; w2 cpu=3 p=2; w3 cpu=1 p=1");
    assert_eq!(scene.run_until_stable(), ["w1"]);

    scene.put_queue(q());

    assert_eq!(scene.run_until_stable(), ["w3"]);
}

/// Integration "Should admit two small workloads after a big one finishes".
#[test]
fn two_small_workloads_follow_a_large_one_in_one_cycle() {
    let mut scene = Scene::new()
        .queues([queue("q").has("cpu=5")])
        .pending("q", "large cpu=5 t=1; s1 cpu=2500m t=2; s2 cpu=2500m t=3");
    assert_eq!(scene.run_until_stable(), ["large"]);

    scene.finish("large");

    let effects = scene.cycle();
    assert_eq!(effects.iter().filter(|effect| matches!(effect, Decision::Admit { .. })).count(), 2);
}

#[test]
fn preemptors_with_reservations_are_ordered_by_priority_regardless_of_strategy() {
    // Given two preemptors with capacity reservations, one of them the head of a strict
    // ClusterQueue.
    let preempting =
        |name: &str| queue(name).within_cohort("all").preempts_within("LowerPriority").reclaims("LowerPriority");
    let borrower = |name: &str| preempting(name).has("cpu=0").preempts_while_borrowing(None);
    let mut scene = Scene::new()
        .cohorts([cohort("all").has("cpu=4")])
        .queues([borrower("strict").strict(), borrower("best-effort")])
        .admitted("strict", "low cpu=2 p=-1")
        .admitted("best-effort", "lower cpu=2 p=-2")
        .pending("strict", "high cpu=2 p=1")
        .pending("best-effort", "middle cpu=2");
    scene.run_until_stable();
    assert_eq!(scene.evicting(), ["low", "lower"]);

    // When the quota is lowered so that only one of them fits.
    scene.put_cohort_node(cohort("all").has("cpu=2"));

    // Then the one of higher priority is admitted.
    assert_eq!(scene.run_with_evictions(), ["high"]);
}
