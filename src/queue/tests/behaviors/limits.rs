//! Bounds and defaults of LimitRanges, and overhead of RuntimeClasses: the second half of B21, and
//! Kueue's integration tests of defaults (v0.19.2
//! `test/integration/singlecluster/scheduler/workload_controller_test.go`).

use rstest::rstest;
use serde_json::{Value, json};

use super::super::fixture::{edit_pod_spec, object_key, replacing, timestamp};
use super::scene::{CycleDecisions, Scene, queue};
use crate::Input;
use sluice_api::kueue::names;

fn five_cpu_queue() -> Scene {
    Scene::new().queues([queue("q").has("cpu=5")])
}

fn container_limits(bounds: &Value) -> Value {
    let mut item = bounds.clone();
    item["type"] = json!("Container");
    json!([item])
}

/// Sets the resources of the first container of a pending workload.
fn set_resources(scene: &mut Scene, name: &str, resources: Value) {
    scene.update(name, |workload| {
        edit_pod_spec(&mut workload.spec.pod_sets[0], |spec| spec["containers"][0]["resources"] = resources);
    });
}

fn set_runtime_class(scene: &mut Scene, name: &str, class: &str) {
    scene.update(name, |workload| {
        edit_pod_spec(&mut workload.spec.pod_sets[0], |spec| spec["runtimeClassName"] = json!(class));
    });
}

/// Returns the CPU usage in a workload's admission.
fn cpu_usage(scene: &Scene, name: &str) -> String {
    let admission =
        scene.workloads[&object_key(name)].status.clone().and_then(|status| status.admission).unwrap_or_default();
    admission.pod_set_assignments[0].resource_usage.get("cpu").map(|quantity| quantity.0.clone()).unwrap_or_default()
}

fn widen_limit_range(scene: &mut Scene) {
    scene.put_limit_range("limit", container_limits(&json!({"min": {"cpu": "1"}, "max": {"cpu": "4"}})));
}

/// Integration "The workload's podSet resource requests are not valid", the entries about
/// LimitRanges.
#[rstest]
#[case::container_above_maximum("Container", json!({"max": {"cpu": "1"}}), "requests 2 of cpu, which is more than the maximum of 1")]
#[case::container_below_minimum("Container", json!({"min": {"cpu": "3"}}), "requests 2 of cpu, which is less than the minimum of 3")]
#[case::pod_above_maximum("Pod", json!({"max": {"cpu": "1"}}), "requests 2 of cpu, which is more than the maximum of 1")]
#[case::pod_below_minimum("Pod", json!({"min": {"cpu": "3"}}), "requests 2 of cpu, which is less than the minimum of 3")]
fn b21_limit_range_violation_is_reported_until_corrected(
    #[case] type_: &str,
    #[case] mut bounds: Value,
    #[case] violation: &str,
    #[values(
        widen_limit_range,
        |scene: &mut Scene| scene.delete_limit_range("limit"),
        |scene: &mut Scene| set_resources(scene, "w", json!({"requests": {"memory": "1Gi"}})),
    )]
    correct: fn(&mut Scene),
    #[values(false, true)] restarted: bool,
) {
    let mut scene = Scene::new().queues([queue("q").has("cpu=5 memory=5Gi")]);
    bounds["type"] = json!(type_);
    scene.put_limit_range("limit", json!([bounds]));
    scene.submit_to("q", "w cpu=2");
    set_resources(&mut scene, "w", json!({"requests": {"cpu": "2"}, "limits": {"cpu": "3"}}));
    assert_eq!(scene.run_until_stable(), [""; 0]);
    let (reason, message) = scene.reason_and_message("w", names::QUOTA_RESERVED);
    assert_eq!(reason, "Misconfigured");
    let subject = if type_ == "Pod" { "the pod" } else { "container \"c\"" };
    let constraint = format!("pod set main: {subject} {violation} set by LimitRange limit for a {type_}");
    assert_eq!(message, format!("resources didn't satisfy LimitRange constraints: {constraint}"));
    if restarted {
        scene.restart();
    }

    correct(&mut scene);

    assert_eq!(scene.run_until_stable(), ["w"]);
}

#[test]
fn b21_all_limit_range_violations_are_reported_together() {
    let mut scene = five_cpu_queue();
    scene.put_limit_range("low", container_limits(&json!({"max": {"cpu": "1"}})));
    scene.put_limit_range("high", container_limits(&json!({"min": {"memory": "1Gi"}})));
    scene.submit_to("q", "w +head cpu=2 +workers n=3 cpu=1 memory=1Mi");

    scene.run_until_stable();

    assert_eq!(
        scene.reason_and_message("w", names::QUOTA_RESERVED).1,
        "resources didn't satisfy LimitRange constraints: pod set head: container \"c\" requests 2 of cpu, which is more than \
         the maximum of 1 set by LimitRange low for a Container; pod set workers: container \"c\" requests 1Mi of memory, \
         which is less than the minimum of 1Gi set by LimitRange high for a Container"
    );
}

#[test]
fn b21_limit_range_of_another_namespace_is_ignored() {
    let mut scene = five_cpu_queue();
    scene.submit_to("q", "a cpu=2");
    let mut limit_range = serde_json::json!({"metadata": {"name": "limit", "namespace": "other"}});
    limit_range["spec"] =
        json!({"limits": container_limits(&json!({"max": {"cpu": "1"}, "defaultRequest": {"cpu": "1"}}))});
    let now = timestamp(scene.now);
    scene.scheduler.observe(now, &Input::LimitRange(&serde_json::from_value(limit_range).expect("a LimitRange")));

    assert_eq!(scene.run_until_stable(), ["a"]);
}

/// Integration "Should use the range defined default requests, if provided" and "Should not use …",
/// "The limits should be used as request values", and "Should not use the limits … if the requests
/// are set".
#[rstest]
#[case::default_request(json!({}), "3")]
#[case::explicit_request(json!({"requests": {"cpu": "1"}}), "1")]
#[case::limit_without_request(json!({"limits": {"cpu": "2"}}), "2")]
#[case::request_and_limit(json!({"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}), "1")]
fn b21_usage_includes_default_requests_of_a_limit_range(#[case] requested: Value, #[case] expected: &str) {
    let mut scene = five_cpu_queue();
    scene.put_limit_range("limits", container_limits(&json!({"defaultRequest": {"cpu": "3"}})));
    scene.submit_to("q", "w cpu=1");
    set_resources(&mut scene, "w", requested);

    assert_eq!(scene.run_until_stable(), ["w"]);
    assert_eq!(cpu_usage(&scene, "w"), expected);
}

/// Integration "Should sync the resource requests with the limit": 3 and 2 use all of 5 CPUs.
#[test]
fn b21_lowered_default_admits_pending_workload_and_keeps_running_usage() {
    let mut scene = five_cpu_queue();
    scene.put_limit_range("limits", container_limits(&json!({"defaultRequest": {"cpu": "3"}})));
    scene.submit_to("q", "one n=1; two n=1 t=1001");
    for name in ["one", "two"] {
        set_resources(&mut scene, name, json!({}));
    }
    assert_eq!(scene.run_until_stable(), ["one"]);
    let short = scene.reason_and_message("two", names::QUOTA_RESERVED);
    assert_eq!(short.0, "WaitingForQuota", "{}", short.1);

    scene.put_limit_range("limits", container_limits(&json!({"defaultRequest": {"cpu": "2"}})));

    assert_eq!(scene.run_until_stable(), ["two"]);
    assert_eq!([cpu_usage(&scene, "one"), cpu_usage(&scene, "two")], ["3", "2"]);
    scene.submit_to("q", "three cpu=1m");
    assert_eq!(scene.run_until_stable(), [""; 0], "all quota is used");
}

/// An admitted workload is not affected, whether or not its admission is observed yet.
#[rstest]
#[case::admission_is_observed(true)]
#[case::admission_is_not_observed(false)]
fn b21_admitted_usage_does_not_change_with_bounds_and_defaults(#[case] seen: bool) {
    let mut scene = Scene::new().queues([queue("q").has("cpu=5 memory=2Gi")]);
    scene.submit_to("q", "w cpu=3");
    let admitted = scene.cycle();
    if seen {
        admitted.iter().for_each(|effect| scene.apply_decision(effect));
        scene.run_until_stable();
    }

    let narrow = json!({"max": {"cpu": "1"}, "defaultRequest": {"cpu": "1", "memory": "1Gi"}});
    scene.put_limit_range("limits", container_limits(&narrow));
    scene.submit_to("q", "more cpu=1 t=1; most cpu=1 t=2; other n=1 t=3");

    let mut decided = scene.decide();
    decided.admitted.retain(|name| !name.starts_with("w@"));
    assert_eq!(
        decided,
        CycleDecisions { admitted: vec!["more@default".into(), "most@default".into()], evicted: vec![] }
    );
    if !seen {
        admitted.iter().for_each(|effect| scene.apply_decision(effect));
    }
    scene.run_until_stable();
    assert!(scene.holders().contains(&"w"));
    assert_eq!(cpu_usage(&scene, "w"), "3");
}

/// An admission without resource usage is accounted by the spec's requests, without defaults.
#[test]
fn b21_admission_without_usage_ignores_defaults() {
    let mut scene = five_cpu_queue().admitted("q", "old n=2");
    scene.update("old", |workload| {
        let admission = workload.status.as_mut().and_then(|status| status.admission.as_mut()).expect("it is admitted");
        admission.pod_set_assignments[0].flavors.insert("cpu".into(), "default".into());
    });
    scene.put_limit_range("limits", container_limits(&json!({"defaultRequest": {"cpu": "2"}})));

    scene.submit_to("q", "w cpu=5");

    assert_eq!(scene.run_until_stable(), ["w"]);
}

/// Upgrade away from pods that have become too large: running pods are not recreated, so they are
/// exempt.
#[rstest]
#[case::smaller_pods_in_a_new_pod_set("+main n=2 cpu=1 +new n=2 cpu=500m", &["new"], "")]
#[case::more_pods_of_the_old_size("+main n=3 cpu=1", &[], "pod set main: container \"c\" requests 1 of cpu")]
#[case::pods_of_the_old_size_in_a_new_pod_set("+main n=2 cpu=1 +new n=1 cpu=1", &[], "pod set new: container \"c\" requests 1 of cpu")]
fn b21_replacement_may_keep_running_pods_that_violate_new_bounds(
    #[case] sets: &str,
    #[case] admitted: &[&str],
    #[case] expected: &str,
) {
    let mut scene = five_cpu_queue();
    scene.submit_to("q", "old n=2 cpu=1");
    scene.run_until_stable();
    scene.put_limit_range("limits", container_limits(&json!({"max": {"cpu": "500m"}})));

    let mut other = Scene::new().queues([queue("q").has("cpu=5")]);
    other.submit_to("q", &format!("new {sets}"));
    scene.put(replacing(other.workloads[&object_key("new")].clone(), "old"));

    assert_eq!(scene.run_until_stable(), admitted);
    if !expected.is_empty() {
        let (_, message) = scene.reason_and_message("new", names::QUOTA_RESERVED);
        let start = format!("resources didn't satisfy LimitRange constraints: {expected}");
        assert!(message.starts_with(&start), "{message}");
    }
}

/// Integration "Should accumulate RuntimeClass's overhead" and "Should not accumulate …" of a
/// missing class.
#[rstest]
#[case::overhead_of_the_class(Some(json!({"cpu": "1"})), json!({}), "2")]
#[case::missing_class(None, json!({}), "1")]
#[case::overhead_of_the_pod(Some(json!({"cpu": "1"})), json!({"cpu": "250m"}), "1250m")]
fn b21_usage_includes_overhead_of_runtime_class(
    #[case] class: Option<Value>,
    #[case] pod_overhead: Value,
    #[case] expected: &str,
) {
    let mut scene = five_cpu_queue();
    if let Some(overhead) = class {
        scene.put_runtime_class("kata", overhead);
    }
    scene.submit_to("q", "w cpu=1");
    set_runtime_class(&mut scene, "w", "kata");
    scene.update("w", |workload| {
        edit_pod_spec(&mut workload.spec.pod_sets[0], |spec| spec["overhead"] = pod_overhead);
    });

    assert_eq!(scene.run_until_stable(), ["w"]);
    assert_eq!(cpu_usage(&scene, "w"), expected);
}

/// Integration "Should sync the resource requests with the new overhead": 1+2 and 1+1 of 5.
#[rstest]
#[case::overhead_is_lowered(|scene: &mut Scene| scene.put_runtime_class("kata", json!({"cpu": "1"})), "2")]
#[case::class_is_deleted(|scene: &mut Scene| scene.delete_runtime_class("kata"), "1")]
fn b21_lowered_overhead_admits_pending_workload(#[case] lower: fn(&mut Scene), #[case] expected: &str) {
    let mut scene = five_cpu_queue();
    scene.put_runtime_class("kata", json!({"cpu": "2"}));
    scene.submit_to("q", "one cpu=1; two cpu=1 t=1001");
    for name in ["one", "two"] {
        set_runtime_class(&mut scene, name, "kata");
    }
    assert_eq!(scene.run_until_stable(), ["one"]);

    lower(&mut scene);

    assert_eq!(scene.run_until_stable(), ["two"]);
    assert_eq!([cpu_usage(&scene, "one"), cpu_usage(&scene, "two")], ["3", expected]);
}

/// A Pod limit applies to the requests without the overhead of the RuntimeClass, as in the API
/// server.
#[test]
fn overhead_is_not_subject_to_limit_range() {
    let mut scene = five_cpu_queue();
    scene.put_runtime_class("kata", json!({"cpu": "1"}));
    scene.put_limit_range("limits", json!([{"type": "Pod", "max": {"cpu": "2"}}]));
    scene.submit_to("q", "w cpu=2");
    set_runtime_class(&mut scene, "w", "kata");

    assert_eq!(scene.run_until_stable(), ["w"]);
    assert_eq!(cpu_usage(&scene, "w"), "3");
}
