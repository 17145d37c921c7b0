//! Incremental upgrades behind a user-provided Gateway or HTTPRoute.

use serde_json::{Value, json};

use super::{begin, service, serving, shares, watched};
use crate::tests::stage::Stage;
use crate::tests::version;

/// Returns a RayService with a user-provided route, which sends a tenth of the traffic to another
/// backend.
fn adopting() -> Stage {
    let mut service = service(50, 25, 5);
    service["metadata"]["annotations"] = json!({"sluice.dev/http-route": "shop"});
    let mut stage = Stage::new(service);
    stage.create("HTTPRoute", shop());
    stage.play(60);
    stage
}

fn shop() -> Value {
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
fn backends(stage: &Stage) -> Vec<(String, i64)> {
    let route = stage.object("HTTPRoute", "shop").expect("the route");
    let backends = route["spec"]["rules"][0]["backendRefs"].as_array().cloned().unwrap_or_default();
    let weighted = |backend: &Value| {
        (backend["name"].as_str().unwrap_or_default().to_owned(), backend["weight"].as_i64().unwrap_or(1))
    };
    backends.iter().map(weighted).collect()
}

fn recorded_route(stage: &Stage) -> Option<String> {
    let service = stage.service().expect("the service");
    service.metadata.annotations.unwrap_or_default().remove("sluice.dev/adopted-http-route")
}

fn backend(cluster: &str) -> String {
    format!("{cluster}-serve-svc")
}

#[test]
fn user_provided_route_is_split_and_otherwise_unchanged() {
    let mut stage = adopting();
    let old = stage.living()[0].clone();
    assert_eq!(backends(&stage), [(backend(&old), 900), ("canary".to_owned(), 100)]);
    assert_eq!(recorded_route(&stage).as_deref(), Some("shop"));
    assert!(stage.names("Gateway").is_empty() && stage.names("HTTPRoute") == ["shop"], "nothing else is created");

    begin(&mut stage, "75/100 25/50");

    let new = stage.named().1.expect("a pending cluster");
    assert_eq!(backends(&stage), [(backend(&old), 675), (backend(&new), 225), ("canary".to_owned(), 100)]);
    let mut expected = shop()["spec"].clone();
    let mut route = stage.object("HTTPRoute", "shop").expect("the route")["spec"].clone();
    let filters = expected["rules"][0]["backendRefs"][0]["filters"].clone();
    assert_eq!(route["rules"][0]["backendRefs"][1]["filters"], filters);
    for spec in [&mut expected, &mut route] {
        spec["rules"][0]["backendRefs"] = json!([]);
    }
    assert_eq!(route, expected);

    watched(&mut stage, 60);
    assert_eq!(stage.named(), (Some(new), None));
}

#[test]
fn route_overwritten_by_its_owner_is_split_again() {
    let mut stage = adopting();
    let old = stage.living()[0].clone();
    begin(&mut stage, "75/100 25/50");
    let split = backends(&stage);

    stage.meddle("HTTPRoute", "shop", json!({"spec": shop()["spec"]}));
    stage.play(1);

    assert_eq!(backends(&stage), split);
    assert_eq!(shares(&stage), "75/100 25/50", "{old} keeps its share");
}

#[test]
fn route_that_cannot_be_split_blocks_the_upgrade() {
    let mut stage = adopting();
    let old = stage.living()[0].clone();
    let own = json!({"name": backend(&old), "port": 8000, "weight": 9});
    let rules = json!([{"backendRefs": [own, {"name": "canary", "port": 80, "weight": 1}]}]);
    stage.meddle("HTTPRoute", "shop", json!({"spec": {"rules": rules}}));

    stage.edit(version("2.54.0"));
    stage.play(60);

    assert_eq!(shares(&stage), "100/100 0/0");
    let message = stage.message("UpgradeInProgress");
    assert!(message.contains("must be a multiple of 100 to be split, but is 9"), "{message}");
}

#[test]
fn upgrade_waits_for_a_missing_user_provided_route() {
    let mut stage = serving(50, 25, 5);
    stage.edit(json!({"metadata": {"annotations": {"sluice.dev/http-route": "shop"}}}));
    stage.edit(version("2.54.0"));
    stage.play(30);
    let message = stage.message("UpgradeInProgress");
    assert!(message.contains("HTTPRoute shop does not exist (annotation sluice.dev/http-route)"), "{message}");

    stage.create("HTTPRoute", shop());
    watched(&mut stage, 60);
    assert_eq!(shares(&stage), "100/100");
}

#[test]
fn route_that_is_no_longer_named_points_at_the_serve_service_again() {
    for patch in [
        json!({"metadata": {"annotations": {"sluice.dev/http-route": null}}}),
        json!({"spec": {"upgradeStrategy": {"type": "NewCluster", "clusterUpgradeOptions": null}}}),
    ] {
        let mut stage = adopting();
        stage.edit(patch);
        stage.play(10);
        assert_eq!(backends(&stage), [("chat-serve-svc".to_owned(), 900), ("canary".to_owned(), 100)]);
        assert_eq!(recorded_route(&stage), None);
    }
}

#[test]
fn deleted_ray_service_leaves_no_cluster_in_the_user_provided_route() {
    let mut stage = adopting();
    stage.delete("RayService", "chat");
    stage.play(30);
    assert!(stage.service().is_none());
    assert_eq!(backends(&stage)[0].0, "chat-serve-svc");
}

#[test]
fn route_is_recorded_before_it_is_split_despite_restarts() {
    for writes in 0..40 {
        let mut service = service(50, 25, 5);
        service["metadata"]["annotations"] = json!({"sluice.dev/http-route": "shop"});
        let mut stage = Stage::new(service);
        stage.create("HTTPRoute", shop());
        let mut written = 0;
        let end = stage.now + jiff::SignedDuration::from_secs(60);
        while written < writes && stage.now < end {
            let planned = stage.beat(end, &|index| written + index < writes);
            written += planned;
            let is_split = backends(&stage)[0].0 != "chat-serve-svc";
            assert!(!is_split || recorded_route(&stage).is_some(), "after {written} writes");
        }
        stage.edit(json!({"metadata": {"annotations": {"sluice.dev/http-route": null}}}));
        stage.restart();
        stage.play(60);
        assert_eq!(backends(&stage)[0].0, "chat-serve-svc", "after {writes} writes");
    }
}

#[test]
fn user_provided_gateway_is_used_unchanged() {
    let mut service = service(50, 25, 5);
    service["metadata"]["annotations"] = json!({"sluice.dev/gateway": "infra/public"});
    let mut stage = Stage::new(service);
    stage.play(30);
    assert!(stage.names("Gateway").is_empty());

    let listeners = json!([{"name": "https", "port": 443, "protocol": "HTTPS"}]);
    let spec = json!({"gatewayClassName": "their-own", "listeners": listeners});
    stage.create("Gateway", json!({"metadata": {"name": "public", "namespace": "infra"}, "spec": spec}));
    stage.play(30);
    stage.edit(version("2.54.0"));
    watched(&mut stage, 60);

    assert_eq!(shares(&stage), "100/100");
    assert_eq!(stage.object("Gateway", "public").expect("the object")["spec"], spec);
    let route = stage.object("HTTPRoute", "chat-httproute").expect("a route");
    assert_eq!(route["spec"]["parentRefs"], json!([{"name": "public", "namespace": "infra"}]));
}

/// Returns a RayService whose spec has just changed, and the name of the cluster that will be
/// created by default.
fn about_to_upgrade() -> (Stage, String) {
    let mut stage = serving(50, 25, 5);
    stage.edit(version("2.54.0"));
    let mut preview = stage.clone();
    preview.play(1);
    let new = preview.named().1.expect("a pending cluster");
    (stage, new)
}

#[test]
fn new_cluster_gets_no_name_that_a_route_still_references() {
    let (mut stage, name) = about_to_upgrade();
    let mut spec = stage.object("HTTPRoute", "chat-httproute").expect("the route")["spec"].clone();
    let backends = spec["rules"][0]["backendRefs"].as_array_mut().expect("backends");
    backends.push(json!({"name": backend(&name), "port": 8000, "weight": 50}));
    stage.meddle("HTTPRoute", "chat-httproute", json!({"spec": spec}));

    watched(&mut stage, 60);

    assert_ne!(stage.leads_to(), Some(name));
    assert_eq!(shares(&stage), "100/100");
}

#[test]
fn foreign_service_with_a_backend_name_gets_no_traffic_and_is_unchanged() {
    let (mut stage, new) = about_to_upgrade();
    let spec = json!({"selector": {"app": "theirs"}, "ports": [{"port": 8000}]});
    stage.create("Service", json!({"metadata": {"name": backend(&new), "namespace": "ml"}, "spec": spec}));

    watched(&mut stage, 60);

    assert_eq!(shares(&stage), "100/100 0/0");
    assert_eq!(stage.share(&new), 0);
    assert_eq!(stage.object("Service", &backend(&new)).expect("the object")["spec"], spec);
    let message = stage.message("UpgradeInProgress");
    assert!(
        message.contains(&format!("Service {}", backend(&new))) && message.contains("is not owned by it"),
        "{message}"
    );

    stage.forget("Service", &backend(&new));
    watched(&mut stage, 60);
    assert_eq!(stage.named(), (Some(new), None));
}

#[test]
fn deleted_route_is_recreated_with_the_same_shares() {
    let mut stage = serving(50, 25, 5);
    begin(&mut stage, "75/100 25/50");
    stage.forget("HTTPRoute", "chat-httproute");
    stage.play(1);
    let new = stage.named().1.expect("a pending cluster");
    assert_eq!(stage.share(&new), 25);
}
