//! Incremental upgrades behind a user-provided Gateway or HTTPRoute.

use serde_json::{Value, json};

use super::{incremental_service, recorded_shares, run_and_check, running_service, upgrade_until};
use crate::tests::harness::Harness;
use crate::tests::ray_version_patch;

/// Returns a RayService with a user-provided route, which sends a tenth of the traffic to another
/// backend.
fn service_with_user_route() -> Harness {
    let mut service = incremental_service(50, 25, 5);
    service["metadata"]["annotations"] = json!({"sluice.dev/http-route": "shop"});
    let mut harness = Harness::new(service);
    harness.create("HTTPRoute", shop_route());
    harness.run_for(60);
    harness
}

fn shop_route() -> Value {
    let filters = json!([{"type": "RequestHeaderModifier"}]);
    let backends = json!([
        {"name": "chat-serve-svc", "port": 8000, "weight": 900, "filters": filters},
        {"name": "canary", "port": 80, "weight": 100},
    ]);
    json!({
        "metadata": {"name": "shop", "namespace": "ml"},
        "spec": {
            "parentRefs": [{"name": "public", "namespace": "infra", "sectionName": "https"}],
            "hostnames": ["chat.example"],
            "rules": [{"matches": [{"path": {"type": "PathPrefix", "value": "/chat"}}], "backendRefs": backends}],
        },
    })
}

/// Returns names and weights of the backends of the route `shop`.
fn backends(harness: &Harness) -> Vec<(String, i64)> {
    let route = harness.object("HTTPRoute", "shop").expect("the route");
    let backends = route["spec"]["rules"][0]["backendRefs"].as_array().cloned().unwrap_or_default();
    let weighted = |backend: &Value| {
        (backend["name"].as_str().unwrap_or_default().to_owned(), backend["weight"].as_i64().unwrap_or(1))
    };
    backends.iter().map(weighted).collect()
}

fn recorded_route(harness: &Harness) -> Option<String> {
    let service = harness.service().expect("the service");
    service.metadata.annotations.unwrap_or_default().remove("sluice.dev/adopted-http-route")
}

fn backend(cluster: &str) -> String {
    format!("{cluster}-serve-svc")
}

#[test]
fn user_provided_route_is_split_and_otherwise_unchanged() {
    let mut harness = service_with_user_route();
    let old = harness.live_clusters()[0].clone();
    assert_eq!(backends(&harness), [(backend(&old), 900), ("canary".to_owned(), 100)]);
    assert_eq!(recorded_route(&harness).as_deref(), Some("shop"));
    assert!(
        harness.object_names("Gateway").is_empty() && harness.object_names("HTTPRoute") == ["shop"],
        "nothing else is created"
    );

    upgrade_until(&mut harness, "75/100 25/50");

    let new = harness.active_and_pending().1.expect("a pending cluster");
    assert_eq!(backends(&harness), [(backend(&old), 675), (backend(&new), 225), ("canary".to_owned(), 100)]);
    let mut expected = shop_route()["spec"].clone();
    let mut route = harness.object("HTTPRoute", "shop").expect("the route")["spec"].clone();
    let filters = expected["rules"][0]["backendRefs"][0]["filters"].clone();
    assert_eq!(route["rules"][0]["backendRefs"][1]["filters"], filters);
    for spec in [&mut expected, &mut route] {
        spec["rules"][0]["backendRefs"] = json!([]);
    }
    assert_eq!(route, expected);

    run_and_check(&mut harness, 60);
    assert_eq!(harness.active_and_pending(), (Some(new), None));
}

#[test]
fn route_overwritten_by_its_owner_is_split_again() {
    let mut harness = service_with_user_route();
    let old = harness.live_clusters()[0].clone();
    upgrade_until(&mut harness, "75/100 25/50");
    let split = backends(&harness);

    harness.patch_as_other_client("HTTPRoute", "shop", json!({"spec": shop_route()["spec"]}));
    harness.run_for(1);

    assert_eq!(backends(&harness), split);
    assert_eq!(recorded_shares(&harness), "75/100 25/50", "{old} keeps its share");
}

/// A process may be killed after it has sent traffic to a cluster, and before the status says so.
#[test]
fn cluster_with_capacity_is_deleted_late_if_the_owner_overwrites_the_route_and_takes_the_upgrade_back() {
    // Given an upgrade whose new cluster has capacity, and no traffic according to the status,
    let mut harness = service_with_user_route();
    let old = harness.live_clusters()[0].clone();
    upgrade_until(&mut harness, "100/100 0/50");

    // when the owner overwrites the route and takes the upgrade back,
    harness.patch_as_other_client("HTTPRoute", "shop", json!({"spec": shop_route()["spec"]}));
    harness.patch_service(ray_version_patch("2.53.0"));
    harness.run_for(30);

    // then the cluster stays for connections that may still use it, and goes later.
    assert_eq!(harness.live_clusters().len(), 2);
    harness.run_for(120);
    assert_eq!(harness.live_clusters(), [old]);
}

#[test]
fn route_that_cannot_be_split_blocks_the_upgrade() {
    let mut harness = service_with_user_route();
    let old = harness.live_clusters()[0].clone();
    let own = json!({"name": backend(&old), "port": 8000, "weight": 9});
    let rules = json!([{"backendRefs": [own, {"name": "canary", "port": 80, "weight": 1}]}]);
    harness.patch_as_other_client("HTTPRoute", "shop", json!({"spec": {"rules": rules}}));

    harness.patch_service(ray_version_patch("2.54.0"));
    harness.run_for(60);

    assert_eq!(recorded_shares(&harness), "100/100 0/0");
    let message = harness.message("UpgradeInProgress");
    assert!(message.contains("must be a multiple of 100 to be split, but is 9"), "{message}");
}

#[test]
fn upgrade_waits_for_a_missing_user_provided_route() {
    let mut harness = running_service(50, 25, 5);
    harness.patch_service(json!({"metadata": {"annotations": {"sluice.dev/http-route": "shop"}}}));
    harness.patch_service(ray_version_patch("2.54.0"));
    harness.run_for(30);
    let message = harness.message("UpgradeInProgress");
    assert!(message.contains("HTTPRoute shop does not exist (annotation sluice.dev/http-route)"), "{message}");

    harness.create("HTTPRoute", shop_route());
    run_and_check(&mut harness, 60);
    assert_eq!(recorded_shares(&harness), "100/100");
}

#[test]
fn route_that_is_no_longer_named_points_at_the_serve_service_again() {
    for patch in [
        json!({"metadata": {"annotations": {"sluice.dev/http-route": null}}}),
        json!({"spec": {"upgradeStrategy": {"type": "NewCluster", "clusterUpgradeOptions": null}}}),
    ] {
        let mut harness = service_with_user_route();
        harness.patch_service(patch);
        harness.run_for(10);
        assert_eq!(backends(&harness), [("chat-serve-svc".to_owned(), 900), ("canary".to_owned(), 100)]);
        assert_eq!(recorded_route(&harness), None);
    }
}

#[test]
fn deleted_ray_service_leaves_no_cluster_in_the_user_provided_route() {
    let mut harness = service_with_user_route();
    harness.delete("RayService", "chat");
    harness.run_for(30);
    assert!(harness.service().is_none());
    assert_eq!(backends(&harness)[0].0, "chat-serve-svc");
}

#[test]
fn route_is_recorded_before_it_is_split_despite_restarts() {
    for writes in 0..40 {
        let mut service = incremental_service(50, 25, 5);
        service["metadata"]["annotations"] = json!({"sluice.dev/http-route": "shop"});
        let mut harness = Harness::new(service);
        harness.create("HTTPRoute", shop_route());
        let mut written = 0;
        let end = harness.now + jiff::SignedDuration::from_secs(60);
        while written < writes && harness.now < end {
            let planned = harness.run_once(end, &|index| written + index < writes);
            written += planned;
            let is_split = backends(&harness)[0].0 != "chat-serve-svc";
            assert!(!is_split || recorded_route(&harness).is_some(), "after {written} writes");
        }
        harness.patch_service(json!({"metadata": {"annotations": {"sluice.dev/http-route": null}}}));
        harness.restart();
        harness.run_for(60);
        assert_eq!(backends(&harness)[0].0, "chat-serve-svc", "after {writes} writes");
    }
}

#[test]
fn user_provided_gateway_is_used_unchanged() {
    let mut service = incremental_service(50, 25, 5);
    service["metadata"]["annotations"] = json!({"sluice.dev/gateway": "infra/public"});
    let mut harness = Harness::new(service);
    harness.run_for(30);
    assert!(harness.object_names("Gateway").is_empty());

    let listeners = json!([{"name": "https", "port": 443, "protocol": "HTTPS"}]);
    let spec = json!({"gatewayClassName": "their-own", "listeners": listeners});
    harness.create("Gateway", json!({"metadata": {"name": "public", "namespace": "infra"}, "spec": spec}));
    harness.run_for(30);
    harness.patch_service(ray_version_patch("2.54.0"));
    run_and_check(&mut harness, 60);

    assert_eq!(recorded_shares(&harness), "100/100");
    assert_eq!(harness.object("Gateway", "public").expect("the object")["spec"], spec);
    let route = harness.object("HTTPRoute", "chat-httproute").expect("a route");
    assert_eq!(route["spec"]["parentRefs"], json!([{"name": "public", "namespace": "infra"}]));
}

/// Returns a RayService whose spec has just changed, and the name of the cluster that will be
/// created by default.
fn about_to_upgrade() -> (Harness, String) {
    let mut harness = running_service(50, 25, 5);
    harness.patch_service(ray_version_patch("2.54.0"));
    let mut preview = harness.clone();
    preview.run_for(1);
    let new = preview.active_and_pending().1.expect("a pending cluster");
    (harness, new)
}

#[test]
fn new_cluster_gets_no_name_that_a_route_still_references() {
    let (mut harness, name) = about_to_upgrade();
    let mut spec = harness.object("HTTPRoute", "chat-httproute").expect("the route")["spec"].clone();
    let backends = spec["rules"][0]["backendRefs"].as_array_mut().expect("backends");
    backends.push(json!({"name": backend(&name), "port": 8000, "weight": 50}));
    harness.patch_as_other_client("HTTPRoute", "chat-httproute", json!({"spec": spec}));

    run_and_check(&mut harness, 60);

    assert_ne!(harness.selected_cluster(), Some(name));
    assert_eq!(recorded_shares(&harness), "100/100");
}

#[test]
fn foreign_service_with_a_backend_name_gets_no_traffic_and_is_unchanged() {
    let (mut harness, new) = about_to_upgrade();
    let spec = json!({"selector": {"app": "theirs"}, "ports": [{"port": 8000}]});
    harness.create("Service", json!({"metadata": {"name": backend(&new), "namespace": "ml"}, "spec": spec}));

    run_and_check(&mut harness, 60);

    assert_eq!(recorded_shares(&harness), "100/100 0/0");
    assert_eq!(harness.traffic_share(&new), 0);
    assert_eq!(harness.object("Service", &backend(&new)).expect("the object")["spec"], spec);
    let message = harness.message("UpgradeInProgress");
    assert!(
        message.contains(&format!("Service {}", backend(&new))) && message.contains("is not owned by it"),
        "{message}"
    );

    harness.remove_object("Service", &backend(&new));
    run_and_check(&mut harness, 60);
    assert_eq!(harness.active_and_pending(), (Some(new), None));
}

#[test]
fn deleted_route_is_recreated_with_the_same_shares() {
    let mut harness = running_service(50, 25, 5);
    upgrade_until(&mut harness, "75/100 25/50");
    harness.remove_object("HTTPRoute", "chat-httproute");
    harness.run_for(1);
    let new = harness.active_and_pending().1.expect("a pending cluster");
    assert_eq!(harness.traffic_share(&new), 25);
}
