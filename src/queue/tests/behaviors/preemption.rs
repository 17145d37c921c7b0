//! Preemption from the first cycle to the admission of the preemptor. B26–B32, B34, and the cases
//! with several preemptors of Kueue's table on scheduling (`pkg/scheduler/scheduler_test.go`,
//! `TestSchedule`).

use rstest::rstest;

use super::scene::{QueueOrCohort, Scene, cohort, queue, three_teams};
use crate::{Decision, EvictionReason};

fn preempting_newer_equal_priority() -> Scene {
    Scene::new().queues([queue("q").has("cpu=4").preempts_within("LowerOrNewerEqualPriority")])
}

/// Returns three queues of 2 CPUs each; the second reclaims nothing.
fn three_queues() -> Scene {
    let member = |name: &str| queue(name).within_cohort("all").has("cpu=2");
    let taking = |name: &str| member(name).preempts_within("LowerPriority").reclaims("Any");
    Scene::new().queues([taking("alpha"), member("beta"), taking("gamma")])
}

/// Integration "Should not deadlock the preempting workloads": a workload whose admission is in
/// flight is evicted only once the admission is observed.
#[test]
fn b26_workload_with_unobserved_admission_is_not_evicted() {
    let queue = queue("q").has("cpu=1").preempts_within("LowerPriority");
    let mut scene = Scene::new().queues([queue]).pending("q", "w1 cpu=1 p=-10");
    assert_eq!(scene.decide().admitted, ["w1@default"]);
    scene.submit_to("q", "w2 cpu=1 p=10");

    assert_eq!(scene.decide().evicted, [""; 0]);
    assert_eq!(scene.run_with_evictions(), ["w1", "w2"]);
    assert!(scene.is_true("w2", "Admitted") && !scene.is_true("w1", "Admitted"));
}

/// Integration "Should preempt all necessary workloads in concurrent scheduling with different
/// priorities". In Kueue the second preemptor selects its target when the first is admitted; here
/// in the same cycle.
#[test]
fn b26_two_preemptors_with_overlapping_candidates_get_one_target_each() {
    let mut scene = three_queues()
        .admitted("beta", "beta-mid cpu=3; beta-high cpu=3 p=1")
        .pending("alpha", "alpha-mid cpu=2")
        .pending("gamma", "gamma-mid cpu=2");

    assert_eq!(scene.decide().evicted, ["beta-high InCohortReclamation", "beta-mid InCohortReclamation"]);
    let mut admitted = scene.run_with_evictions();
    admitted.sort();
    assert_eq!(admitted, ["alpha-mid", "gamma-mid"]);
}

/// Integration "… with the same priority (RecomputeAssignmentUponPreemptionTargetsOverlap=true)".
#[test]
fn b26_two_preemptors_evict_two_of_three_equal_workloads() {
    let mut scene = three_queues()
        .admitted("beta", "b0 cpu=2; b1 cpu=2; b2 cpu=2")
        .pending("alpha", "a cpu=2")
        .pending("gamma", "g cpu=2");

    assert_eq!(scene.decide().evicted.len(), 2);
    let mut admitted = scene.run_with_evictions();
    admitted.sort();
    assert_eq!(admitted, ["a", "g"]);
    assert_eq!(scene.holders().len(), 3);
}

/// Integration "Should preempt Workloads with lower priority when there is not enough quota".
#[test]
fn b27_lower_priority_is_preempted_and_readmitted_by_age() {
    let mut scene = preempting_newer_equal_priority()
        .pending("q", "low1 cpu=1 p=-1 t=1; low2 cpu=1 p=-1 t=2; mid cpu=1 t=3; high1 cpu=1 p=1 t=4");
    scene.run_until_stable();
    scene.submit_to("q", "low3 cpu=1 p=-1 t=5");
    assert_eq!(scene.run_until_stable(), [""; 0]);
    scene.submit_to("q", "high2 cpu=2 p=1 t=6");

    assert_eq!(scene.decide().evicted, ["low1 InClusterQueue", "low2 InClusterQueue"]);
    assert_eq!(scene.run_with_evictions(), ["high2"]);
    scene.finish("high2");
    assert_eq!(scene.run_until_stable(), ["low1", "low2"], "low3 is younger and stays pending");
}

/// Integration "Should preempt newer Workloads with the same priority when there is not enough
/// quota".
#[test]
fn b28_newest_of_equal_priority_is_preempted_by_an_older_one() {
    let mut scene = preempting_newer_equal_priority().pending("q", "w1 cpu=1 t=1; w2 cpu=1 t=2");
    scene.run_until_stable();
    scene.submit_to("q", "w3 cpu=3 t=3");
    assert_eq!(scene.run_until_stable(), [""; 0]);
    scene.submit_to("q", "w4 cpu=1 t=4");
    assert_eq!(scene.run_until_stable(), ["w4"]);

    scene.finish("w1");

    assert_eq!(scene.decide().evicted, ["w4 InClusterQueue"]);
    assert_eq!(scene.run_with_evictions(), ["w3"]);
}

/// Integration "Should issue preemption exactly once for each preempted workload".
#[test]
fn b29_each_target_is_evicted_exactly_once_per_preemption() {
    let low: Vec<String> = (1..=8).map(|number| format!("low{number} cpu=500m p=10")).collect();
    let mut scene = preempting_newer_equal_priority().pending("q", &low.join("; "));
    scene.run_until_stable();
    for (round, name) in ["first", "second"].into_iter().enumerate() {
        scene.decisions.clear();
        scene.submit_to("q", &format!("{name} cpu=4 p=100"));
        assert_eq!(scene.run_with_evictions(), [name]);

        let evicts =
            |effect: &&Decision| matches!(effect, Decision::Evict { reason: EvictionReason::Preempted(_), .. });
        assert_eq!(scene.decisions.iter().filter(evicts).count(), 8);
        for number in 1..=8 {
            let workload = &scene.workloads[&super::super::fixture::object_key(&format!("low{number}"))];
            let stats = workload.status.clone().unwrap_or_default().scheduling_stats.unwrap_or_default();
            let counts: Vec<(String, i32)> = stats.evictions.iter().map(|e| (e.reason.clone(), e.count)).collect();
            assert_eq!(counts, [("Preempted".to_owned(), i32::try_from(round).unwrap_or_default() + 1)]);
        }
        scene.finish(name);
        assert_eq!(scene.run_until_stable().len(), 8);
    }
}

/// Integration "Should include job UID in preemption condition when the label is set", and the
/// paths of the case after it.
#[test]
fn b30_preempted_condition_names_preemptor_and_reason() {
    let mut scene = three_queues()
        .admitted("alpha", "alpha-low cpu=1 p=-1")
        .admitted("beta", "beta-mid cpu=1; beta-high cpu=4 p=1");
    let mut workload = scene.workload("alpha-mid", &[("main", 1, serde_json::json!({"cpu": "2"}))]);
    workload.spec.queue_name = Some("alpha".into());
    workload.metadata.labels = Some([("kueue.x-k8s.io/job-uid".to_owned(), "job-1".to_owned())].into());
    scene.put(workload);

    assert_eq!(scene.decide().evicted, ["alpha-low InClusterQueue", "beta-mid InCohortReclamation"]);
    scene.run_until_stable();
    let by = "Preempted to accommodate a workload (UID: uid-alpha-mid, JobUID: job-1) due to";
    let (reason, message) = scene.reason_and_message("beta-mid", "Preempted");
    assert_eq!(reason, "InCohortReclamation");
    let expected = "reclamation within the cohort; preemptor path: /all/alpha; preemptee path: /all/beta";
    assert_eq!(message, format!("{by} {expected}"));
    assert_eq!(scene.reason_and_message("alpha-low", "Evicted").0, "Preempted");
    assert_eq!(scene.run_with_evictions(), ["alpha-mid"]);

    scene.finish("alpha-mid");
    let mut readmitted = scene.run_until_stable();
    readmitted.sort();
    assert_eq!(readmitted, ["alpha-low", "beta-mid"]);
    assert!(!scene.is_true("beta-mid", "Preempted"));
}

/// Integration "Should not preempt Workloads in the cohort, if the ClusterQueue requires
/// borrowing".
#[test]
fn b31_borrowing_workload_does_not_reclaim() {
    let mut scene = three_queues()
        .admitted("alpha", "a1 cpu=2 p=1")
        .admitted("beta", "b cpu=4 p=-1")
        .pending("alpha", "a2 cpu=2 p=1");

    assert_eq!(scene.decide().evicted, [""; 0]);
    assert_eq!(scene.run_until_stable(), [""; 0]);
}

/// Integration "workloads in guaranteed cq should have preferential access to the resources".
#[test]
fn b32_guaranteed_queue_reclaims_from_borrower_of_higher_priority() {
    let taking = |name: &str, of: &str| {
        queue(name).within_cohort(of).has("cpu=0").preempts_within("LowerPriority").reclaims("Any")
    };
    let mut scene = Scene::new()
        .cohorts([cohort("root"), cohort("guaranteed-c").with_parent("root").has("cpu=3")])
        .queues([taking("best-effort", "root"), taking("guaranteed", "guaranteed-c")])
        .pending("best-effort", "borrower cpu=3 p=1");
    assert_eq!(scene.run_until_stable(), ["borrower"]);
    scene.submit_to("guaranteed", "owner cpu=3");

    assert_eq!(scene.decide().evicted, ["borrower InCohortReclamation"]);
    assert_eq!(scene.run_with_evictions(), ["owner"]);
}

/// Integration "Should prevent other workloads from stealing quota when a preemptor is waiting for
/// multiple evictions", where the other workload would borrow too.
#[test]
fn b34_partially_released_quota_stays_reserved_for_preemptor() {
    let member = |name: &str, quota: &str, reclaim: &str| {
        queue(name)
            .within_cohort("all")
            .has(quota)
            .preempts_within("LowerPriority")
            .reclaims(reclaim)
            .preempts_while_borrowing(None)
    };
    let lower = "LowerPriority";
    let mut scene = Scene::new()
        .queues([member("alpha", "cpu=2", "Any"), member("beta", "cpu=2", lower), member("gamma", "cpu=0", lower)])
        .admitted("alpha", "wa cpu=1")
        .admitted("beta", "wb cpu=3")
        .pending("gamma", "wc cpu=1 p=-1");
    assert_eq!(scene.run_until_stable(), [""; 0]);
    scene.submit_to("alpha", "preemptor cpu=4 p=1");
    assert_eq!(scene.decide().evicted, ["wa InClusterQueue", "wb InCohortReclaimWhileBorrowing"]);
    scene.run_until_stable();

    scene.release_quota("wb");
    assert_eq!(scene.run_until_stable(), [""; 0], "three of four CPUs are released and reserved for the preemptor");
    assert_eq!(scene.reason_and_message("preemptor", "QuotaReserved").0, "WaitingForPreemptedWorkloads");
    scene.release_quota("wa");
    assert_eq!(scene.run_until_stable(), ["preemptor"]);
}

/// Integration "Should reclaim from cohort even if another CQ has pending workloads".
#[test]
fn strict_queue_reclaims_while_another_queue_waits_to_borrow() {
    let member = |name: &str| {
        queue(name).within_cohort("all").has("cpu=2").preempts_within("LowerPriority").reclaims("Any").strict()
    };
    let mut scene = Scene::new().queues([member("alpha"), member("beta")]).pending("alpha", "all cpu=4 p=1");
    scene.run_until_stable();
    scene.submit_to("alpha", "pending cpu=1");
    scene.run_until_stable();
    scene.submit_to("beta", "reclaims cpu=1 p=-1");

    assert_eq!(scene.decide().evicted, ["all InCohortReclamation"]);
    assert!(scene.run_with_evictions().contains(&"reclaims".to_owned()));
    assert!(!scene.is_true("all", "Admitted"));
}

/// Integration "should allow preempting workloads while borrowing", from a mostly shared quota.
#[test]
fn b43_preempted_borrower_is_readmitted_in_fallback_flavor() {
    let member = |name: &str, threshold: Option<i32>| {
        let queue = queue(name).within_cohort("all").quota("one", "cpu=1+10").quota("fallback", "cpu=10+0");
        queue
            .reclaims("LowerPriority")
            .preempts_while_borrowing(threshold)
            .flavor_fungibility("MayStopSearch", "MayStopSearch")
    };
    let mut scene = Scene::new()
        .queues([member("a-standard", Some(0)), member("b-standard", Some(0))])
        .queues([member("a-best-effort", None), member("b-best-effort", None)])
        .queues([queue("shared").within_cohort("all").quota("one", "cpu=10")])
        .admitted("a-best-effort", "a-low cpu=5@one p=-1")
        .admitted("b-best-effort", "b-low cpu=1@one p=-1")
        .admitted("b-standard", "b-high cpu=5@one p=1")
        .pending("a-standard", "very-high cpu=7 p=2");

    assert_eq!(scene.decide().evicted, ["a-low InCohortReclaimWhileBorrowing"]);
    let mut admitted = scene.run_with_evictions();
    admitted.sort();
    assert_eq!(admitted, ["a-low", "very-high"]);
    assert_eq!((scene.flavors_of("very-high").as_str(), scene.flavors_of("a-low").as_str()), ("one", "fallback"));
}

/// Integration "should allow preempting workloads while borrowing", with a threshold above all.
#[test]
fn b43_borrowing_queue_preempts_lower_priority() {
    let member = |name: &str, quota: &str| {
        queue(name).within_cohort("all").has(quota).preempts_within("LowerPriority").reclaims("Any")
    };
    let mut scene = Scene::new()
        .queues([
            member("a", "cpu=0+10"),
            member("b", "cpu=5+5").preempts_while_borrowing(Some(2)),
            member("c", "cpu=5"),
        ])
        .admitted("a", "mid cpu=4")
        .admitted("b", "b1 cpu=4 p=1")
        .pending("b", "b2 cpu=4 p=1");

    assert_eq!(scene.decide().evicted, ["mid InCohortReclaimWhileBorrowing"]);
    assert_eq!(scene.run_with_evictions(), ["b2"]);
}

/// Integration "Should be able to preempt when lending limit enabled".
#[test]
fn quota_lent_within_lending_limit_is_reclaimed() {
    let mut scene = Scene::new()
        .queues([
            queue("prod").within_cohort("all").has("cpu=5-4").reclaims("Any"),
            queue("dev").within_cohort("all").has("cpu=5"),
        ])
        .pending("dev", "w1 cpu=4; w2 cpu=5 p=1");
    scene.run_until_stable();
    scene.submit_to("prod", "w3 cpu=4");

    assert_eq!(scene.decide().evicted, ["w1 InCohortReclamation"]);
    assert_eq!(scene.run_with_evictions(), ["w3"]);
}

/// Integration "Should retry on failed preemptions": an eviction that was not written stays
/// pending.
#[test]
fn unwritten_eviction_stays_pending() {
    let mut scene = preempting_newer_equal_priority().pending("q", "low cpu=3 p=-1");
    scene.run_until_stable();
    scene.submit_to("q", "high cpu=3 p=1");
    assert_eq!(scene.decide().evicted, ["low InClusterQueue"]);

    assert_eq!(scene.decide().evicted, [""; 0], "an unchanged decision is not repeated");
    assert_eq!(scene.run_with_evictions(), ["high"]);
}

fn two_queues_of_two(change: impl Fn(QueueOrCohort) -> QueueOrCohort) -> Scene {
    let member = |name: &str| change(queue(name).within_cohort("other").has("cpu=2").preempts_within("LowerPriority"));
    Scene::new().queues([member("alpha"), member("beta")])
}

fn queues_of_one_and_two() -> Scene {
    let member =
        |name: &str, quota: &str| queue(name).within_cohort("other").has(quota).preempts_within("LowerPriority");
    Scene::new().queues([member("alpha", "cpu=1"), member("beta", "cpu=2")])
}

fn borrower_and_reclaimer() -> Scene {
    let member = |name: &str, quota: &str| queue(name).within_cohort("other").has(quota);
    Scene::new().queues([
        member("alpha", "cpu=50+50"),
        member("beta", "cpu=50+10").preempts_within("LowerPriority").reclaims("Any"),
    ])
}

fn two_reclaiming_queues() -> Scene {
    two_queues_of_two(|queue| queue.reclaims("Any"))
}

#[rstest]
// "preempt workloads in ClusterQueue and cohort".
#[case::within_queue_and_borrowers(
    three_teams().admitted("alpha", "spot cpu=100@spot; borrower cpu=60@on-demand").admitted("beta", "low1 cpu=30@on-demand p=-1; low2 cpu=10@on-demand p=-2")
        .pending("beta", "in cpu=20"),
    &[], &["borrower InCohortReclamation", "low2 InClusterQueue"])]
// "multiple CQs need preemption".
#[case::other_pending_workload_has_no_candidates(
    borrower_and_reclaimer().admitted("alpha", "all cpu=100").pending("alpha", "pending cpu=1 p=1").pending("beta", "in cpu=1 p=-1"),
    &[], &["all InCohortReclamation"])]
// "A workload is only eligible to do preemptions if it fits fully within nominal quota".
#[case::preemptor_must_fit_within_nominal_quota(
    two_reclaiming_queues().admitted("alpha", "a1 cpu=1 p=-1").admitted("beta", "b1 cpu=1 p=-1").pending("alpha", "in cpu=3 p=1"), &[], &[])]
// "multiple preemptions without borrowing".
#[case::each_queue_preempts_within_itself(
    two_queues_of_two(|queue| queue).admitted("alpha", "a1 cpu=2").admitted("beta", "b1 cpu=2").pending("alpha", "pa cpu=2 p=100").pending("beta", "pb cpu=2 p=100"),
    &[], &["a1 InClusterQueue", "b1 InClusterQueue"])]
// "multiple preemptions preemption possible after earlier workload fits".
#[case::preemption_after_an_admission(
    queues_of_one_and_two().admitted("beta", "b1 cpu=2").pending("alpha", "fits cpu=1 p=100").pending("beta", "in cpu=2 p=99"),
    &["fits@default"], &["b1 InClusterQueue"])]
// "multiple preemptions skip preemption when shared limited resource".
#[case::second_preemptor_does_not_fit_after_the_first(
    two_queues_of_two(|queue| queue.preempts_while_borrowing(None)).queues([queue("bank").within_cohort("other").has("cpu=1")])
        .admitted("alpha", "a1 cpu=2").admitted("beta", "b1 cpu=2").pending("alpha", "pa cpu=3 p=100").pending("beta", "pb cpu=3 p=99"),
    &[], &["a1 InClusterQueue"])]
// "preempt when workload requests zero of a resource not defined in ClusterQueue".
#[case::zero_request_for_uncovered_resource(
    Scene::new().queues([queue("q").has("cpu=4").preempts_within("LowerPriority")]).admitted("q", "low cpu=4 p=-1").pending("q", "in cpu=2 gpu=0"),
    &[], &["low InClusterQueue"])]
fn b26_preemptors_in_one_cycle_do_not_conflict(
    #[case] mut scene: Scene,
    #[case] admitted: &[&str],
    #[case] evicted: &[&str],
) {
    let decided = scene.decide();

    assert_eq!(decided.admitted, admitted);
    assert_eq!(decided.evicted, evicted);
}

#[test]
fn preemptor_is_admitted_to_the_flavor_it_preempted_in() {
    // Given a preemptor with a capacity reservation in the second flavor.
    let mut scene = Scene::new()
        .queues([queue("q").quota("on-demand", "cpu=2").quota("spot", "cpu=2").preempts_within("LowerPriority")])
        .admitted("q", "high cpu=2@on-demand p=1; low cpu=2@spot p=-1")
        .pending("q", "middle cpu=2");
    scene.run_until_stable();
    assert_eq!(scene.evicting(), ["low"]);

    // When the first flavor becomes available before the eviction finishes.
    scene.finish("high");

    // Then the preemptor gets its reservation, and the evicted workload gets the other flavor.
    assert_eq!(scene.run_with_evictions(), ["middle", "low"]);
    assert_eq!((scene.flavors_of("middle"), scene.flavors_of("low")), ("spot".to_owned(), "on-demand".to_owned()));
}
