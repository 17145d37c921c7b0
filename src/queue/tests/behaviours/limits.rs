//! What LimitRanges and RuntimeClasses add to pods, and what they allow: the second half of B21, and the integration tests of
//! Kueue about defaults (v0.19.2 `test/integration/singlecluster/scheduler/workload_controller_test.go`).

use rstest::rstest;
use serde_json::{Value, json};

use super::super::fixture::{at, key, replacing};
use super::scene::{Decided, Scene, queue};
use crate::Input;
use sluice_api::kueue::names;

fn small() -> Scene {
    Scene::new().queues([queue("q").has("cpu=5")])
}

fn container(bounds: &Value) -> Value {
    let mut item = bounds.clone();
    item["type"] = json!("Container");
    json!([item])
}

/// The resources of the first container of a workload that waits.
fn resources(scene: &mut Scene, name: &str, resources: Value) {
    scene.change(name, |workload| {
        workload.spec.pod_sets[0].template.0["spec"]["containers"][0]["resources"] = resources;
    });
}

fn runtime_class(scene: &mut Scene, name: &str, class: &str) {
    scene.change(name, |workload| {
        workload.spec.pod_sets[0].template.0["spec"]["runtimeClassName"] = json!(class);
    });
}

/// How much CPU a workload was admitted with.
fn charged(scene: &Scene, name: &str) -> String {
    let admission = scene.workloads[&key(name)].status.clone().and_then(|status| status.admission).unwrap_or_default();
    admission.pod_set_assignments[0].resource_usage.get("cpu").map(|quantity| quantity.0.clone()).unwrap_or_default()
}

fn wider(scene: &mut Scene) {
    scene.put_limit_range("limit", container(&json!({"min": {"cpu": "1"}, "max": {"cpu": "4"}})));
}

/// Integration "The workload's podSet resource requests are not valid", the entries about LimitRanges.
#[rstest]
#[case::above_the_maximum("Container", json!({"max": {"cpu": "1"}}), "requests 2 of cpu, which is more than the maximum of 1")]
#[case::below_the_minimum("Container", json!({"min": {"cpu": "3"}}), "requests 2 of cpu, which is less than the minimum of 3")]
#[case::a_pod_above("Pod", json!({"max": {"cpu": "1"}}), "requests 2 of cpu, which is more than the maximum of 1")]
#[case::a_pod_below("Pod", json!({"min": {"cpu": "3"}}), "requests 2 of cpu, which is less than the minimum of 3")]
fn b21_who_breaks_a_limit_range_waits_and_is_told_until_it_is_right(
    #[case] type_: &str,
    #[case] mut bounds: Value,
    #[case] told: &str,
    #[values(
        wider,
        |scene: &mut Scene| scene.delete_limit_range("limit"),
        |scene: &mut Scene| resources(scene, "w", json!({"requests": {"memory": "1Gi"}})),
    )]
    put_right: fn(&mut Scene),
    #[values(false, true)] restarted: bool,
) {
    let mut scene = Scene::new().queues([queue("q").has("cpu=5 memory=5Gi")]);
    bounds["type"] = json!(type_);
    scene.put_limit_range("limit", json!([bounds]));
    scene.submit_to("q", "w cpu=2");
    resources(&mut scene, "w", json!({"requests": {"cpu": "2"}, "limits": {"cpu": "3"}}));
    assert_eq!(scene.run(), [""; 0]);
    let (reason, message) = scene.says("w", names::QUOTA_RESERVED);
    assert_eq!(reason, "Misconfigured");
    let place = if type_ == "Pod" { "the pod" } else { "container \"c\"" };
    assert_eq!(message, format!("pod set main: {place} {told} set by LimitRange limit for a {type_}"));
    if restarted {
        scene.restart();
    }

    put_right(&mut scene);

    assert_eq!(scene.run(), ["w"]);
}

#[test]
fn b21_all_that_is_wrong_is_told_at_once() {
    let mut scene = small();
    scene.put_limit_range("low", container(&json!({"max": {"cpu": "1"}})));
    scene.put_limit_range("high", container(&json!({"min": {"memory": "1Gi"}})));
    scene.submit_to("q", "w +head cpu=2 +workers n=3 cpu=1 memory=1Mi");

    scene.run();

    assert_eq!(
        scene.says("w", names::QUOTA_RESERVED).1,
        "pod set head: container \"c\" requests 2 of cpu, which is more than the maximum of 1 set by LimitRange low \
         for a Container; pod set workers: container \"c\" requests 1Mi of memory, which is less than the minimum of 1Gi \
         set by LimitRange high for a Container"
    );
}

#[test]
fn b21_a_limit_range_of_another_namespace_is_none_of_its_business() {
    let mut scene = small();
    scene.submit_to("q", "a cpu=2");
    let mut elsewhere = serde_json::json!({"metadata": {"name": "limit", "namespace": "other"}});
    elsewhere["spec"] = json!({"limits": container(&json!({"max": {"cpu": "1"}, "defaultRequest": {"cpu": "1"}}))});
    let now = at(scene.now);
    scene.engine.observe(now, &Input::LimitRange(&serde_json::from_value(elsewhere).expect("a LimitRange")));

    assert_eq!(scene.run(), ["a"]);
}

/// Integration "Should use the range defined default requests, if provided" and "Should not use …", "The limits should be
/// used as request values", and "Should not use the limits … if the requests are set".
#[rstest]
#[case::by_default(json!({}), "3")]
#[case::as_requested(json!({"requests": {"cpu": "1"}}), "1")]
#[case::as_limited(json!({"limits": {"cpu": "2"}}), "2")]
#[case::as_requested_whatever_the_limit(json!({"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}), "1")]
fn b21_what_a_limit_range_gives_a_container_is_charged(#[case] asked: Value, #[case] expected: &str) {
    let mut scene = small();
    scene.put_limit_range("limits", container(&json!({"defaultRequest": {"cpu": "3"}})));
    scene.submit_to("q", "w cpu=1");
    resources(&mut scene, "w", asked);

    assert_eq!(scene.run(), ["w"]);
    assert_eq!(charged(&scene, "w"), expected);
}

/// Integration "Should sync the resource requests with the limit": with 3 and 2 of 5 all is used.
#[test]
fn b21_a_default_that_is_lowered_lets_in_who_waits_and_leaves_who_runs() {
    let mut scene = small();
    scene.put_limit_range("limits", container(&json!({"defaultRequest": {"cpu": "3"}})));
    scene.submit_to("q", "one n=1; two n=1 t=1001");
    for name in ["one", "two"] {
        resources(&mut scene, name, json!({}));
    }
    assert_eq!(scene.run(), ["one"]);
    let short = scene.says("two", names::QUOTA_RESERVED);
    assert_eq!(short.0, "WaitingForQuota", "{}", short.1);

    scene.put_limit_range("limits", container(&json!({"defaultRequest": {"cpu": "2"}})));

    assert_eq!(scene.run(), ["two"]);
    assert_eq!([charged(&scene, "one"), charged(&scene, "two")], ["3", "2"]);
    scene.submit_to("q", "three cpu=1m");
    assert_eq!(scene.run(), [""; 0], "nothing is left");
}

/// What runs is not touched, whether its quota is written down or only decided on.
#[rstest]
#[case::seen(true)]
#[case::not_seen_yet(false)]
fn b21_what_holds_quota_stays_and_is_charged_the_same_when_bounds_and_defaults_change(#[case] seen: bool) {
    let mut scene = Scene::new().queues([queue("q").has("cpu=5 memory=2Gi")]);
    scene.submit_to("q", "w cpu=3");
    let admitted = scene.cycle();
    if seen {
        admitted.iter().for_each(|effect| scene.carry_out(effect));
        scene.run();
    }

    let narrow = json!({"max": {"cpu": "1"}, "defaultRequest": {"cpu": "1", "memory": "1Gi"}});
    scene.put_limit_range("limits", container(&narrow));
    scene.submit_to("q", "more cpu=1 t=1; most cpu=1 t=2; other n=1 t=3");

    let mut decided = scene.decide();
    decided.admitted.retain(|name| !name.starts_with("w@"));
    assert_eq!(decided, Decided { admitted: vec!["more@default".into(), "most@default".into()], evicted: vec![] });
    if !seen {
        admitted.iter().for_each(|effect| scene.carry_out(effect));
    }
    scene.run();
    assert!(scene.holders().contains(&"w"));
    assert_eq!(charged(&scene, "w"), "3");
}

/// An admission that doesn't say how much was granted is counted by what the spec says, and so stays what it was.
#[test]
fn b21_an_admission_without_amounts_does_not_follow_a_default() {
    let mut scene = small().holds("q", "old n=2");
    scene.change("old", |workload| {
        let admission = workload.status.as_mut().and_then(|status| status.admission.as_mut()).expect("it is admitted");
        admission.pod_set_assignments[0].flavors.insert("cpu".into(), "default".into());
    });
    scene.put_limit_range("limits", container(&json!({"defaultRequest": {"cpu": "2"}})));

    scene.submit_to("q", "w cpu=5");

    assert_eq!(scene.run(), ["w"]);
}

/// An upgrade away from what has become too large: the pods that run are not made again.
#[rstest]
#[case::smaller_beside_it("+main n=2 cpu=1 +new n=2 cpu=500m", &["new"], "")]
#[case::more_of_it("+main n=3 cpu=1", &[], "pod set main: container \"c\" requests 1 of cpu")]
#[case::as_large_beside_it("+main n=2 cpu=1 +new n=1 cpu=1", &[], "pod set new: container \"c\" requests 1 of cpu")]
fn b21_bounds_that_became_too_narrow_leave_a_way_out(
    #[case] sets: &str,
    #[case] admitted: &[&str],
    #[case] told: &str,
) {
    let mut scene = small();
    scene.submit_to("q", "old n=2 cpu=1");
    scene.run();
    scene.put_limit_range("limits", container(&json!({"max": {"cpu": "500m"}})));

    let mut made = Scene::new().queues([queue("q").has("cpu=5")]);
    made.submit_to("q", &format!("new {sets}"));
    scene.put(replacing(made.workloads[&key("new")].clone(), "old"));

    assert_eq!(scene.run(), admitted);
    if !told.is_empty() {
        let (_, message) = scene.says("new", names::QUOTA_RESERVED);
        assert!(message.starts_with(told), "{message}");
    }
}

/// Integration "Should accumulate RuntimeClass's overhead" and "Should not accumulate …" of a class that is not there.
#[rstest]
#[case::of_the_class(Some(json!({"cpu": "1"})), json!({}), "2")]
#[case::of_a_class_that_is_not_there(None, json!({}), "1")]
#[case::of_the_pod(Some(json!({"cpu": "1"})), json!({"cpu": "250m"}), "1250m")]
fn b21_the_overhead_of_a_runtime_class_is_charged(
    #[case] class: Option<Value>,
    #[case] own: Value,
    #[case] expected: &str,
) {
    let mut scene = small();
    if let Some(overhead) = class {
        scene.put_runtime_class("kata", overhead);
    }
    scene.submit_to("q", "w cpu=1");
    runtime_class(&mut scene, "w", "kata");
    scene.change("w", |workload| workload.spec.pod_sets[0].template.0["spec"]["overhead"] = own);

    assert_eq!(scene.run(), ["w"]);
    assert_eq!(charged(&scene, "w"), expected);
}

/// Integration "Should sync the resource requests with the new overhead": 1+2 and 1+1 of 5.
#[rstest]
#[case::smaller(|scene: &mut Scene| scene.put_runtime_class("kata", json!({"cpu": "1"})), "2")]
#[case::gone(|scene: &mut Scene| scene.delete_runtime_class("kata"), "1")]
fn b21_an_overhead_that_is_lowered_lets_in_who_waits(#[case] lower: fn(&mut Scene), #[case] expected: &str) {
    let mut scene = small();
    scene.put_runtime_class("kata", json!({"cpu": "2"}));
    scene.submit_to("q", "one cpu=1; two cpu=1 t=1001");
    for name in ["one", "two"] {
        runtime_class(&mut scene, name, "kata");
    }
    assert_eq!(scene.run(), ["one"]);

    lower(&mut scene);

    assert_eq!(scene.run(), ["two"]);
    assert_eq!([charged(&scene, "one"), charged(&scene, "two")], ["3", expected]);
}

/// A limit on the pod counts what it requests, not what its class adds: the API server judges so.
#[test]
fn an_overhead_is_outside_of_bounds() {
    let mut scene = small();
    scene.put_runtime_class("kata", json!({"cpu": "1"}));
    scene.put_limit_range("limits", json!([{"type": "Pod", "max": {"cpu": "2"}}]));
    scene.submit_to("q", "w cpu=2");
    runtime_class(&mut scene, "w", "kata");

    assert_eq!(scene.run(), ["w"]);
    assert_eq!(charged(&scene, "w"), "3");
}
