//! Workload slices as in Kueue's integration tests: scaling up and down, replacement, preemption.
//! B23, B24, B33, B55, and bugs of Kueue (by issue number). Rules that are specific to Sluice are
//! in `tests/slices.rs`.

use rstest::rstest;

use super::super::fixture::{object_key, replacing};
use super::scene::{Scene, queue};
use sluice_api::kueue::names;
use sluice_api::kueue::workload_status::ReclaimablePod;

fn usage(scene: &Scene, name: &str) -> String {
    let status = scene.cluster_queues[name].status.clone().unwrap_or_default();
    let mut totals = status.flavors_usage.into_iter().flat_map(|flavor| flavor.resources);
    totals.next().and_then(|usage| usage.total).map(|total| total.0).unwrap_or_default()
}

/// Creates replacement slices in the same second; each pair is a workload and its predecessor.
fn submit_replacements(scene: &mut Scene, queue: &str, slices: &[(&str, &str)]) {
    for (slice, predecessor) in slices {
        let name = slice.split_whitespace().next().expect("a name");
        let mut copy = scene.clone();
        copy.submit_to(queue, slice);
        let workload = replacing(copy.workloads[&object_key(name)].clone(), predecessor);
        scene.put(workload);
    }
}

/// Returns a queue of 10 CPUs with an admitted slice of 2 workers of 1 CPU and 3 coordinators of 2,
/// which replaced one with a single coordinator.
fn replaced_slice_of_ten() -> Scene {
    let mut scene =
        Scene::new().queues([queue("q").has("cpu=10")]).pending("q", "s1 +worker n=2 cpu=1 +coordinator cpu=2");
    assert_eq!(scene.run_until_stable(), ["s1"]);
    assert_eq!(usage(&scene, "q"), "4");
    submit_replacements(&mut scene, "q", &[("s2 +worker n=2 cpu=1 +coordinator n=3 cpu=2", "s1")]);
    assert_eq!(scene.run_until_stable(), ["s2"]);
    scene
}

/// Integration "should handle scale-up and in-place scale-down with workload slicing".
#[test]
fn b23_slice_scales_up_by_replacement_and_down_in_place() {
    let mut scene = replaced_slice_of_ten();
    assert_eq!(usage(&scene, "q"), "8");
    assert_eq!(scene.reason_and_message("s1", names::FINISHED).0, "WorkloadSliceReplaced");

    scene.update("s2", |workload| workload.spec.pod_sets[1].count = 2);
    scene.run_until_stable();

    assert_eq!(usage(&scene, "q"), "6");
    assert!(scene.is_true("s2", names::ADMITTED));
}

/// Integration "should not double-count quota for unchanged podSets during workload slicing".
#[test]
fn b24_unchanged_pod_sets_are_accounted_once() {
    let mut scene = replaced_slice_of_ten();
    scene.submit_to("q", "w2 n=2 cpu=1; w3 n=2 cpu=1 t=1100");

    assert_eq!(scene.run_until_stable(), ["w2"]);
    assert_eq!(usage(&scene, "q"), "10");
}

/// Integration "Should preempt on-scale-up Workloads with lower priority when there is not enough
/// quota".
#[test]
fn b33_scaled_up_slice_preempts_lower_priority_until_it_scales_down() {
    let queue = queue("q").has("cpu=2").preempts_within("LowerOrNewerEqualPriority");
    let mut scene = Scene::new().queues([queue]).pending("q", "low cpu=1 p=-1; high cpu=1 p=1");
    scene.run_until_stable();
    submit_replacements(&mut scene, "q", &[("high-2 n=2 cpu=1 p=1", "high")]);

    assert_eq!(scene.decide().evicted, ["low InClusterQueue"]);
    assert_eq!(scene.run_with_evictions(), ["high-2"]);
    assert!(scene.is_true("high", names::FINISHED));

    scene.update("high-2", |workload| workload.spec.pod_sets[0].count = 1);
    assert_eq!(scene.run_until_stable(), ["low"]);
}

/// A predecessor is never a preemption target of its replacement, even if it is the preferred
/// candidate.
#[test]
fn b33_replacement_slice_never_preempts_its_predecessor() {
    let queue = queue("q").has("cpu=3").preempts_within("LowerOrNewerEqualPriority");
    let mut scene = Scene::new().queues([queue]).pending("q", "s1 n=2 cpu=1; other cpu=1 t=900");
    scene.run_until_stable();
    submit_replacements(&mut scene, "q", &[("s2 n=3 cpu=1 p=1 t=800", "s1")]);

    assert_eq!(scene.decide().evicted, ["other InClusterQueue"]);
    assert_eq!(scene.run_with_evictions(), ["s2"]);
    assert_eq!(scene.holders(), ["s2"]);
}

/// "four same-second slices, chained replacements, admitted slice survives", of
/// `pkg/workloadslicing`.
#[test]
fn b55_last_slice_of_a_chain_created_in_one_second_holds_the_quota() {
    let mut scene = Scene::new().queues([queue("q").has("cpu=8")]).pending("q", "s1 cpu=2");
    scene.run_until_stable();
    submit_replacements(&mut scene, "q", &[("s2 n=2 cpu=2", "s1"), ("s3 n=3 cpu=2", "s2"), ("s4 n=4 cpu=2", "s3")]);

    scene.run_until_stable();

    assert_eq!(scene.holders(), ["s4"]);
    assert_eq!(usage(&scene, "q"), "8");
    assert!(["s1", "s2", "s3"].iter().all(|slice| scene.is_true(slice, names::FINISHED)));
}

/// "forked claim in adversarial order, admitted fork wins over pending".
#[rstest]
#[case("s2", "s3")]
#[case("s3", "s2")]
fn b55_admitted_replacement_wins_over_a_pending_one(#[case] fits: &str, #[case] larger: &str) {
    let mut scene = Scene::new().queues([queue("q").has("cpu=4")]).pending("q", "s1 cpu=2");
    scene.run_until_stable();
    let (fits_text, larger_text) = (format!("{fits} n=2 cpu=2"), format!("{larger} n=3 cpu=2"));
    submit_replacements(&mut scene, "q", &[(&larger_text, "s1"), (&fits_text, "s1")]);

    assert_eq!(scene.run_until_stable(), [fits]);
    assert_eq!(scene.holders(), [fits]);
    assert!(!scene.is_true(larger, names::FINISHED));
}

/// kubernetes-sigs/kueue#12670: fewer pods remained than were reported as reclaimable, and the
/// quota was never released.
#[test]
fn slice_scaled_below_reclaimable_pods_releases_all_their_quota() {
    let mut scene = Scene::new().queues([queue("q").has("cpu=3")]).pending("q", "s1 +head n=1 cpu=1 +worker n=2 cpu=1");
    scene.run_until_stable();
    let done = vec![ReclaimablePod { name: "worker".into(), count: 2 }];
    scene.update("s1", |workload| workload.status.get_or_insert_default().reclaimable_pods = done);
    scene.run_until_stable();
    assert_eq!(usage(&scene, "q"), "1");

    scene.update("s1", |workload| workload.spec.pod_sets[1].count = 1);
    scene.run_until_stable();
    assert_eq!(usage(&scene, "q"), "1", "the head still holds its quota");
    scene.submit_to("q", "next cpu=2");
    assert_eq!(scene.run_until_stable(), ["next"]);

    scene.finish("s1");
    scene.finish("next");
    scene.run_until_stable();
    assert_eq!(usage(&scene, "q"), "0");
}

/// Returns a queue with two flavors, the first of which fits only the head.
fn head_in_first_flavor() -> Scene {
    let mut scene = Scene::new()
        .queues([queue("q").quota("small", "cpu=1").quota("large", "cpu=9")])
        .pending("q", "s1 +head cpu=1 +worker n=0 cpu=2");
    assert_eq!(scene.run_until_stable(), ["s1"]);
    assert!(scene.flavors_of("s1").starts_with("small"));
    scene
}

/// kubernetes-sigs/kueue#14792: a pod set without pods does not pin its replacement to a flavor.
#[test]
fn first_workers_of_a_pod_set_get_any_flavor() {
    let mut scene = head_in_first_flavor();

    submit_replacements(&mut scene, "q", &[("s2 +head cpu=1 +worker n=2 cpu=2", "s1")]);

    assert_eq!(scene.run_until_stable(), ["s2"]);
    assert_eq!(scene.flavors_of("s2"), "small|large");
}

/// The same after all workers were removed by scaling down.
#[test]
fn workers_added_after_scale_to_zero_get_any_flavor() {
    let mut scene = head_in_first_flavor();
    submit_replacements(&mut scene, "q", &[("s2 +head cpu=1 +worker n=2 cpu=2", "s1")]);
    scene.run_until_stable();
    scene.update("s2", |workload| workload.spec.pod_sets[1].count = 0);
    scene.run_until_stable();
    scene.put_queue(queue("q").quota("small", "cpu=9").quota("large", "cpu=0"));
    scene.run_until_stable();

    submit_replacements(&mut scene, "q", &[("s3 +head cpu=1 +worker n=3 cpu=2", "s2")]);

    assert_eq!(scene.run_until_stable(), ["s3"]);
    assert_eq!(scene.flavors_of("s3"), "small|small");
}
