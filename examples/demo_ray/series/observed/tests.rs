use jiff::SignedDuration;
use rstest::rstest;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::*;

const WAITS: &str = "insufficient quota (fits only once nominalQuota is 5)";

fn object<K: DeserializeOwned>(name: &str, more: Value) -> K {
    let mut object = json!({"metadata": {"name": name, "namespace": "default"}});
    object.as_object_mut().expect("an object").extend(more.as_object().cloned().expect("an object"));
    serde_json::from_value(object).expect("an object of its kind")
}

fn cluster_spec(version: &str) -> Value {
    let container = json!({"name": "head", "image": format!("fruit:{version}")});
    json!({"headGroupSpec": {"rayStartParams": {}, "template": {"spec": {"containers": [container]}}}})
}

fn cluster(version: &str) -> Object {
    Object::RayCluster(object(&format!("fruit-{version}"), json!({"spec": cluster_spec(version)})))
}

/// Returns a service with this desired version, active cluster of `active`, pending for quota or
/// not.
fn service(wanted: &str, active: &str, waits: bool) -> Object {
    let condition = json!({
        "type": "sluice.dev/Admitted", "status": if waits { "False" } else { "True" },
        "reason": if waits { "ExceedsMaxQuota" } else { "Admitted" }, "message": if waits { WAITS } else { "" },
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    });
    let side = json!({"rayClusterName": format!("fruit-{active}"), "targetCapacity": 100, "trafficRoutedPercent": 100});
    Object::RayService(object(
        "fruit",
        json!({
            "spec": {"rayClusterConfig": cluster_spec(wanted)},
            "status": {"activeServiceStatus": side, "conditions": [condition]},
        }),
    ))
}

fn queue(cores: u32) -> Object {
    let resources = json!([{"name": "cpu", "nominalQuota": cores.to_string()}]);
    let groups = json!([{"coveredResources": ["cpu"], "flavors": [{"name": "f", "resources": resources}]}]);
    let usage = json!([{"name": "f", "resources": [{"name": "cpu", "total": "1500m"}]}]);
    Object::ClusterQueue(object(
        "team-a",
        json!({"spec": {"resourceGroups": groups}, "status": {"flavorsReservation": usage}}),
    ))
}

fn pod(version: &str, name: &str, is_gated: bool, phase: &str) -> Object {
    let mut pod: k8s_openapi::api::core::v1::Pod =
        object(name, json!({"spec": {"containers": [{"name": "ray", "resources": {"requests": {"cpu": "500m"}}}]}}));
    pod.status = serde_json::from_value(json!({"phase": phase})).expect("a status");
    pod.labels_mut().insert("ray.io/cluster".to_owned(), format!("fruit-{version}"));
    let gates = json!(if is_gated { vec![json!({"name": "kueue.x-k8s.io/elastic-job"})] } else { vec![] });
    pod.spec.as_mut().expect("a spec").scheduling_gates = serde_json::from_value(gates).expect("gates");
    Object::Pod(pod)
}

fn route(shares: &[(&str, i32)]) -> Object {
    let backends = shares
        .iter()
        .map(|(version, weight)| json!({"name": format!("fruit-{version}-serve-svc"), "port": 8000, "weight": weight}));
    let rules = json!([{"backendRefs": backends.collect::<Vec<_>>()}]);
    Object::HTTPRoute(object("fruit-httproute", json!({"spec": {"rules": rules}})))
}

/// Returns a history of changes, each at this time in seconds.
fn history(changes: Vec<(f64, Object)>) -> Vec<Change> {
    let at =
        |seconds: f64| Timestamp::UNIX_EPOCH + SignedDuration::try_from_secs_f64(seconds + 100.0).expect("seconds");
    let numbered = (1..).zip(changes);
    numbered
        .map(|(version, (seconds, object))| Change { version, observed_at: at(seconds), object, deleted: false })
        .collect()
}

fn start() -> Timestamp {
    Timestamp::UNIX_EPOCH + SignedDuration::from_secs(100)
}

#[test]
fn pending_upgrade_yields_its_events() {
    // Given a service that is upgraded, pending, gets more quota, and is promoted to the new
    // cluster,
    let mut changes = history(vec![
        (-5.0, queue(3)),
        (-4.0, cluster("1")),
        (-3.0, service("1", "1", false)),
        (10.0, service("2", "1", false)),
        (10.5, cluster("2")),
        (11.0, service("2", "1", true)),
        (20.0, service("2", "1", true)),
        (30.0, queue(5)),
        (31.0, service("2", "1", false)),
        (60.0, service("2", "2", false)),
        (70.0, cluster("1")),
    ]);
    changes.last_mut().expect("the last one").deleted = true;

    // when its history is read, then each event occurs once, and changes before the upgrade yield
    // none.
    let told: Vec<(f64, UpgradeEventKind)> =
        states_and_events(&changes, start()).1.into_iter().map(|event| (event.at, event.what)).collect();
    assert_eq!(
        told,
        [
            (10.0, UpgradeEventKind::Applied("2".to_owned())),
            (11.0, UpgradeEventKind::Waits(WAITS.to_owned())),
            (30.0, UpgradeEventKind::Raised(5.0)),
            (31.0, UpgradeEventKind::Admitted),
            (60.0, UpgradeEventKind::Promoted("2".to_owned())),
            (70.0, UpgradeEventKind::Gone("1".to_owned())),
        ]
    );
}

#[test]
fn standing_is_by_version() {
    let changes = history(vec![
        (0.0, cluster("1")),
        (0.0, cluster("2")),
        (0.0, queue(3)),
        (0.0, service("2", "1", false)),
        (0.0, pod("1", "a", false, "Running")),
        (0.0, pod("1", "b", false, "Running")),
        (0.0, pod("2", "c", false, "Running")),
        (0.0, pod("2", "gated", true, "Pending")),
        (0.0, pod("1", "over", false, "Succeeded")),
        (1.0, route(&[("1", 75), ("2", 25)])),
    ]);
    let (standings, _) = states_and_events(&changes, start());
    let by = |first: f64, second: f64| BTreeMap::from([("1".to_owned(), first), ("2".to_owned(), second)]);
    let expected = UpgradeState {
        at: 1.0,
        traffic: by(75.0, 25.0),
        capacity: BTreeMap::from([("1".to_owned(), 100.0)]),
        quota: 3.0,
        held: 1.5,
        used: by(1.0, 0.5),
    };
    assert_eq!(standings.last(), Some(&expected));
}

#[rstest]
#[case::what_was_before_stands_at_the_start(&[(-9.0, 3), (-5.0, 4)], &[(0.0, 4.0)])]
#[case::what_changes_is_told(&[(0.0, 3), (5.0, 4)], &[(0.0, 3.0), (5.0, 4.0)])]
#[case::what_stays_is_not(&[(0.0, 3), (5.0, 3)], &[(0.0, 3.0)])]
#[case::nothing_goes_back_in_time(&[(5.0, 3), (4.0, 4)], &[(5.0, 4.0)])]
fn quotas(#[case] changes: &[(f64, u32)], #[case] expected: &[(f64, f64)]) {
    let changes = history(changes.iter().map(|(at, cores)| (*at, queue(*cores))).collect());
    let found = states_and_events(&changes, start()).0.into_iter().map(|standing| (standing.at, standing.quota));
    assert_eq!(found.collect::<Vec<_>>(), expected);
}
