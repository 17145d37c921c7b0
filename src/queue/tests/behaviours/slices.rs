//! Slices as Kueue's integration tests ask for them: growing, shrinking, taking over, evicting. B23, B24, B33, B55, and what
//! went wrong in Kueue (by the number of its issue); what only the engine's own rules decide is in `tests/slices.rs`.

use rstest::rstest;

use super::super::fixture::{key, replacing};
use super::scene::{Scene, queue};
use sluice_api::kueue::names;
use sluice_api::kueue::workload_status::ReclaimablePod;

fn usage(scene: &Scene, name: &str) -> String {
    let status = scene.cluster_queues[name].status.clone().unwrap_or_default();
    let mut totals = status.flavors_usage.into_iter().flat_map(|flavor| flavor.resources);
    totals.next().and_then(|usage| usage.total).map(|total| total.0).unwrap_or_default()
}

/// Creates the slices that replace one, all in the same second.
fn succeed(scene: &mut Scene, queue: &str, slices: &[(&str, &str)]) {
    for (slice, predecessor) in slices {
        let name = slice.split_whitespace().next().expect("a name");
        let mut apart = scene.clone();
        apart.submit_to(queue, slice);
        let workload = replacing(apart.workloads[&key(name)].clone(), predecessor);
        scene.put(workload);
    }
}

/// Two workers of 1 CPU and one coordinator of 2, of ten CPUs.
fn four_of_ten() -> Scene {
    let mut scene =
        Scene::new().queues([queue("q").has("cpu=10")]).waits("q", "s1 +worker n=2 cpu=1 +coordinator cpu=2");
    assert_eq!(scene.run(), ["s1"]);
    assert_eq!(usage(&scene, "q"), "4");
    succeed(&mut scene, "q", &[("s2 +worker n=2 cpu=1 +coordinator n=3 cpu=2", "s1")]);
    assert_eq!(scene.run(), ["s2"]);
    scene
}

/// Integration "should handle scale-up and in-place scale-down with workload slicing".
#[test]
fn b23_a_slice_grows_by_replacement_and_shrinks_in_place() {
    let mut scene = four_of_ten();
    assert_eq!(usage(&scene, "q"), "8");
    assert_eq!(scene.says("s1", names::FINISHED).0, "WorkloadSliceReplaced");

    scene.change("s2", |workload| workload.spec.pod_sets[1].count = 2);
    scene.run();

    assert_eq!(usage(&scene, "q"), "6");
    assert!(scene.is_true("s2", names::ADMITTED));
}

/// Integration "should not double-count quota for unchanged podSets during workload slicing".
#[test]
fn b24_pod_sets_that_stay_as_they_are_are_charged_once() {
    let mut scene = four_of_ten();
    scene.submit_to("q", "w2 n=2 cpu=1; w3 n=2 cpu=1 t=1100");

    assert_eq!(scene.run(), ["w2"]);
    assert_eq!(usage(&scene, "q"), "10");
}

/// Integration "Should preempt on-scale-up Workloads with lower priority when there is not enough quota".
#[test]
fn b33_a_slice_that_grows_evicts_a_lower_priority_and_lets_it_back_when_it_shrinks() {
    let queue = queue("q").has("cpu=2").within("LowerOrNewerEqualPriority");
    let mut scene = Scene::new().queues([queue]).waits("q", "low cpu=1 p=-1; high cpu=1 p=1");
    scene.run();
    succeed(&mut scene, "q", &[("high-2 n=2 cpu=1 p=1", "high")]);

    assert_eq!(scene.decide().evicted, ["low InClusterQueue"]);
    assert_eq!(scene.settle(), ["high-2"]);
    assert!(scene.is_true("high", names::FINISHED));

    scene.change("high-2", |workload| workload.spec.pod_sets[0].count = 1);
    assert_eq!(scene.run(), ["low"]);
}

/// "A slice is no victim of its successor": the predecessor has the lower rank of the two, and is left alone.
#[test]
fn b33_a_slice_never_evicts_its_predecessor() {
    let queue = queue("q").has("cpu=3").within("LowerOrNewerEqualPriority");
    let mut scene = Scene::new().queues([queue]).waits("q", "s1 n=2 cpu=1; other cpu=1 t=900");
    scene.run();
    succeed(&mut scene, "q", &[("s2 n=3 cpu=1 p=1 t=800", "s1")]);

    assert_eq!(scene.decide().evicted, ["other InClusterQueue"]);
    assert_eq!(scene.settle(), ["s2"]);
    assert_eq!(scene.holders(), ["s2"]);
}

/// "four same-second slices, chained replacements, admitted slice survives", of `pkg/workloadslicing`.
#[test]
fn b55_of_a_chain_made_in_one_second_the_last_holds_the_quota_once() {
    let mut scene = Scene::new().queues([queue("q").has("cpu=8")]).waits("q", "s1 cpu=2");
    scene.run();
    succeed(&mut scene, "q", &[("s2 n=2 cpu=2", "s1"), ("s3 n=3 cpu=2", "s2"), ("s4 n=4 cpu=2", "s3")]);

    scene.run();

    assert_eq!(scene.holders(), ["s4"]);
    assert_eq!(usage(&scene, "q"), "8");
    assert!(["s1", "s2", "s3"].iter().all(|slice| scene.is_true(slice, names::FINISHED)));
}

/// "forked claim in adversarial order, admitted fork wins over pending".
#[rstest]
#[case("s2", "s3")]
#[case("s3", "s2")]
fn b55_of_two_claims_the_admitted_one_holds(#[case] fits: &str, #[case] larger: &str) {
    let mut scene = Scene::new().queues([queue("q").has("cpu=4")]).waits("q", "s1 cpu=2");
    scene.run();
    let (fits_text, larger_text) = (format!("{fits} n=2 cpu=2"), format!("{larger} n=3 cpu=2"));
    succeed(&mut scene, "q", &[(&larger_text, "s1"), (&fits_text, "s1")]);

    assert_eq!(scene.run(), [fits]);
    assert_eq!(scene.holders(), [fits]);
    assert!(!scene.is_true(larger, names::FINISHED));
}

/// kubernetes-sigs/kueue#12670: fewer pods were left than had been reported as done, and the quota was never given back.
#[test]
fn a_slice_that_shrinks_below_what_is_done_gives_all_of_it_back() {
    let mut scene = Scene::new().queues([queue("q").has("cpu=3")]).waits("q", "s1 +head n=1 cpu=1 +worker n=2 cpu=1");
    scene.run();
    let done = vec![ReclaimablePod { name: "worker".into(), count: 2 }];
    scene.change("s1", |workload| workload.status.get_or_insert_default().reclaimable_pods = done);
    scene.run();
    assert_eq!(usage(&scene, "q"), "1");

    scene.change("s1", |workload| workload.spec.pod_sets[1].count = 1);
    scene.run();
    assert_eq!(usage(&scene, "q"), "1", "not less than what its head has");
    scene.submit_to("q", "next cpu=2");
    assert_eq!(scene.run(), ["next"]);

    scene.finish("s1");
    scene.finish("next");
    scene.run();
    assert_eq!(usage(&scene, "q"), "0");
}

/// Two flavors, the first of which has room for a head only.
fn heads_and_workers() -> Scene {
    let mut scene = Scene::new()
        .queues([queue("q").quota("small", "cpu=1").quota("large", "cpu=9")])
        .waits("q", "s1 +head cpu=1 +worker n=0 cpu=2");
    assert_eq!(scene.run(), ["s1"]);
    assert!(scene.place_of("s1").starts_with("small"));
    scene
}

/// kubernetes-sigs/kueue#14792: a pod set without pods binds its successor to no flavor.
#[test]
fn workers_that_come_where_there_were_none_get_any_flavor() {
    let mut scene = heads_and_workers();

    succeed(&mut scene, "q", &[("s2 +head cpu=1 +worker n=2 cpu=2", "s1")]);

    assert_eq!(scene.run(), ["s2"]);
    assert_eq!(scene.place_of("s2"), "small|large");
}

/// The same after all of them had gone in the meantime.
#[test]
fn workers_that_come_back_after_there_were_none_get_any_flavor() {
    let mut scene = heads_and_workers();
    succeed(&mut scene, "q", &[("s2 +head cpu=1 +worker n=2 cpu=2", "s1")]);
    scene.run();
    scene.change("s2", |workload| workload.spec.pod_sets[1].count = 0);
    scene.run();
    scene.put_queue(queue("q").quota("small", "cpu=9").quota("large", "cpu=0"));
    scene.run();

    succeed(&mut scene, "q", &[("s3 +head cpu=1 +worker n=3 cpu=2", "s2")]);

    assert_eq!(scene.run(), ["s3"]);
    assert_eq!(scene.place_of("s3"), "small|small");
}
