//! Upgrades in steps behind a Gateway or a route that is there already.

use serde_json::{Value, json};

use super::{begin, service, serving, shares, watched};
use crate::tests::stage::Stage;
use crate::tests::version;

/// A service that is reached by a route of others, which sends a tenth of what comes in to somebody else.
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

/// Names and weights of the backends of the route `shop`.
fn backends(stage: &Stage) -> Vec<(String, i64)> {
    let route = stage.object("HTTPRoute", "shop").expect("the route");
    let backends = route["spec"]["rules"][0]["backendRefs"].as_array().cloned().unwrap_or_default();
    let told = |backend: &Value| {
        (backend["name"].as_str().unwrap_or_default().to_owned(), backend["weight"].as_i64().unwrap_or(1))
    };
    backends.iter().map(told).collect()
}

fn noted(stage: &Stage) -> Option<String> {
    let service = stage.service().expect("the service");
    service.metadata.annotations.unwrap_or_default().remove("sluice.dev/adopted-http-route")
}

fn backend(cluster: &str) -> String {
    format!("{cluster}-serve-svc")
}

#[test]
fn a_route_of_others_is_divided_and_left_as_it_is_otherwise() {
    let mut stage = adopting();
    let old = stage.living()[0].clone();
    assert_eq!(backends(&stage), [(backend(&old), 900), ("canary".to_owned(), 100)]);
    assert_eq!(noted(&stage).as_deref(), Some("shop"));
    assert!(stage.names("Gateway").is_empty() && stage.names("HTTPRoute") == ["shop"], "nothing else is made");

    begin(&mut stage, "75/100 25/50");

    let new = stage.named().1.expect("it is pending");
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
fn a_route_that_its_owner_writes_anew_is_divided_as_before() {
    let mut stage = adopting();
    let old = stage.living()[0].clone();
    begin(&mut stage, "75/100 25/50");
    let divided = backends(&stage);

    stage.meddle("HTTPRoute", "shop", json!({"spec": shop()["spec"]}));
    stage.play(1);

    assert_eq!(backends(&stage), divided);
    assert_eq!(shares(&stage), "75/100 25/50", "{old} goes on");
}

#[test]
fn a_route_that_can_not_be_divided_holds_the_upgrade() {
    let mut stage = adopting();
    let old = stage.living()[0].clone();
    let own = json!({"name": backend(&old), "port": 8000, "weight": 9});
    let rules = json!([{"backendRefs": [own, {"name": "canary", "port": 80, "weight": 1}]}]);
    stage.meddle("HTTPRoute", "shop", json!({"spec": {"rules": rules}}));

    stage.edit(version("2.54.0"));
    stage.play(60);

    assert_eq!(shares(&stage), "100/100 0/0");
    let told = stage.message("UpgradeInProgress");
    assert!(told.contains("has to be a multiple of 100 there to be divided, and is 9"), "{told}");
}

#[test]
fn a_route_that_is_named_and_is_not_there_is_waited_for() {
    let mut stage = serving(50, 25, 5);
    stage.edit(json!({"metadata": {"annotations": {"sluice.dev/http-route": "shop"}}}));
    stage.edit(version("2.54.0"));
    stage.play(30);
    let told = stage.message("UpgradeInProgress");
    assert!(told.contains("there is no HTTPRoute shop, which annotation sluice.dev/http-route names"), "{told}");

    stage.create("HTTPRoute", shop());
    watched(&mut stage, 60);
    assert_eq!(shares(&stage), "100/100");
}

#[test]
fn a_route_that_is_not_named_any_more_leads_to_the_serve_service_again() {
    for patch in [
        json!({"metadata": {"annotations": {"sluice.dev/http-route": null}}}),
        json!({"spec": {"upgradeStrategy": {"type": "NewCluster", "clusterUpgradeOptions": null}}}),
    ] {
        let mut stage = adopting();
        stage.edit(patch);
        stage.play(10);
        assert_eq!(backends(&stage), [("chat-serve-svc".to_owned(), 900), ("canary".to_owned(), 100)]);
        assert_eq!(noted(&stage), None);
    }
}

#[test]
fn a_route_outlives_the_service_and_names_none_of_its_clusters() {
    let mut stage = adopting();
    stage.delete("RayService", "chat");
    stage.play(30);
    assert!(stage.service().is_none());
    assert_eq!(backends(&stage)[0].0, "chat-serve-svc");
}

#[test]
fn a_route_is_noted_before_it_is_divided_whenever_a_process_ends() {
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
            let is_divided = backends(&stage)[0].0 != "chat-serve-svc";
            assert!(!is_divided || noted(&stage).is_some(), "after {written} writes");
        }
        stage.edit(json!({"metadata": {"annotations": {"sluice.dev/http-route": null}}}));
        stage.restart();
        stage.play(60);
        assert_eq!(backends(&stage)[0].0, "chat-serve-svc", "after {writes} writes");
    }
}

#[test]
fn a_gateway_of_others_is_used_and_not_touched() {
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
    assert_eq!(stage.object("Gateway", "public").expect("it is there")["spec"], spec);
    let route = stage.object("HTTPRoute", "chat-httproute").expect("a route");
    assert_eq!(route["spec"]["parentRefs"], json!([{"name": "public", "namespace": "infra"}]));
}

/// A service that is to be upgraded now, with the cluster that will be made if nothing else is in the way.
fn about_to_upgrade() -> (Stage, String) {
    let mut stage = serving(50, 25, 5);
    stage.edit(version("2.54.0"));
    let mut elsewhere = stage.clone();
    elsewhere.play(1);
    let new = elsewhere.named().1.expect("it is pending");
    (stage, new)
}

#[test]
fn a_new_cluster_takes_no_name_that_a_route_still_sends_requests_to() {
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
fn a_service_of_others_that_has_the_name_of_a_clusters_gets_no_traffic_and_stays_as_it_is() {
    let (mut stage, new) = about_to_upgrade();
    let spec = json!({"selector": {"app": "theirs"}, "ports": [{"port": 8000}]});
    stage.create("Service", json!({"metadata": {"name": backend(&new), "namespace": "ml"}, "spec": spec}));

    watched(&mut stage, 60);

    assert_eq!(shares(&stage), "100/100 0/0");
    assert_eq!(stage.share(&new), 0);
    assert_eq!(stage.object("Service", &backend(&new)).expect("it is there")["spec"], spec);
    let told = stage.message("UpgradeInProgress");
    assert!(told.contains(&format!("Service {}", backend(&new))) && told.contains("isn't owned by it"), "{told}");

    stage.forget("Service", &backend(&new));
    watched(&mut stage, 60);
    assert_eq!(stage.named(), (Some(new), None));
}

#[test]
fn a_route_that_is_taken_away_is_made_anew_with_the_same_shares() {
    let mut stage = serving(50, 25, 5);
    begin(&mut stage, "75/100 25/50");
    stage.forget("HTTPRoute", "chat-httproute");
    stage.play(1);
    let new = stage.named().1.expect("it is pending");
    assert_eq!(stage.share(&new), 25);
}
