//! Upgrades in steps, each step paid for.

use std::collections::BTreeMap;

use rstest::rstest;
use serde_json::{Value, json};

use super::control_plane::ControlPlane;
use super::jobs::{cluster_spec, control_plane, meta, put_cluster, set_quota};
use sluice_queue::Settings;

/// Creates a service with four workers of 1 CPU and a replica on each, or upgrades it: by half of them at a time.
fn put(plane: &mut ControlPlane, name: &str, version: &str) {
    put_with(plane, name, cluster_spec(4, version));
}

fn put_with(plane: &mut ControlPlane, name: &str, mut cluster: Value) {
    cluster["suspend"] = json!(true);
    let serve = "applications: [{name: chat, import_path: a:b, deployments: [{name: model, num_replicas: 4}]}]";
    let options =
        json!({"maxSurgePercent": 50, "stepSizePercent": 25, "intervalSeconds": 5, "gatewayClassName": "traefik"});
    let strategy = json!({"type": "NewClusterWithIncrementalUpgrade", "clusterUpgradeOptions": options});
    let spec = json!({"serveConfigV2": serve, "upgradeStrategy": strategy, "rayClusterConfig": cluster});
    plane.apply("RayService", json!({"metadata": meta(name, "low"), "spec": spec}));
}

fn serving(cpu: &str, services: &[&str]) -> ControlPlane {
    let mut plane = control_plane(Settings::default(), cpu);
    plane.apply("GatewayClass", json!({"metadata": {"name": "traefik"}, "spec": {"controllerName": "a"}}));
    for service in services {
        put(&mut plane, service, "2.53.0");
    }
    plane.play(60);
    for service in services {
        assert_eq!(shares(&plane, service), "100/100");
    }
    plane.most_running = 0;
    plane
}

/// Traffic and capacity of the active and the pending cluster, as the status has them.
fn shares(plane: &ControlPlane, service: &str) -> String {
    let status = plane.service(service).status.unwrap_or_default();
    let entries = [status.active_service_status, status.pending_service_status].into_iter().flatten();
    let shares =
        entries.filter_map(|entry| Some(format!("{}/{}", entry.traffic_routed_percent?, entry.target_capacity?)));
    shares.collect::<Vec<_>>().join(" ")
}

/// Versions of the clusters that a service has.
fn versions(plane: &ControlPlane, service: &str) -> Vec<String> {
    let versions = plane.children(service).into_iter().map(|child| {
        let version = &plane.object("RayCluster", &child)["spec"]["rayVersion"];
        version.as_str().unwrap_or_default().to_owned()
    });
    versions.collect()
}

/// Whose Service it is that a route sends a part to.
#[rstest]
#[case::of_nobody(None)]
#[case::of_a_cluster_of_its_own(Some("other"))]
fn what_a_route_sends_to_a_service_of_others_is_theirs(#[case] owner: Option<&str>) {
    // Given a route that sends a part to a Service which is called like that of a cluster,
    let theirs = "chat-aaaaa-serve-svc";
    let mut plane = serving("9", &["chat"]);
    put_cluster(&mut plane, "other", "low", 0);
    plane.play(10);
    let owner = owner.map(|name| {
        let uid = plane.object("RayCluster", name)["metadata"]["uid"].clone();
        json!({"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": name, "uid": uid, "controller": true})
    });
    let metadata = json!({"name": theirs, "ownerReferences": owner.as_slice()});
    plane.apply("Service", json!({"metadata": metadata, "spec": {"selector": {"app": "theirs"}}}));
    let mut spec = plane.object("HTTPRoute", "chat-httproute")["spec"].clone();
    let backends = spec["rules"][0]["backendRefs"].as_array_mut().expect("backends");
    backends.push(json!({"name": theirs, "port": 80, "weight": 100}));
    plane.apply("HTTPRoute", json!({"metadata": {"name": "chat-httproute"}, "spec": spec}));

    // when the service is upgraded, then they go on getting it.
    put(&mut plane, "chat", "2.54.0");
    plane.play(180);
    assert_eq!(versions(&plane, "chat"), ["2.54.0"]);
    let backends = plane.object("HTTPRoute", "chat-httproute")["spec"]["rules"][0]["backendRefs"].clone();
    assert!(backends.as_array().is_some_and(|backends| backends.iter().any(|of| of["name"] == theirs)), "{backends}");
}

#[test]
fn an_upgrade_needs_what_serves_a_head_and_the_surge() {
    // Given quota for a service of 5 CPUs, another head, and half of its workers,
    let mut plane = serving("8", &["chat"]);

    // when it is upgraded,
    put(&mut plane, "chat", "2.54.0");
    plane.play(180);

    // then it gets there, and at no time did more run.
    assert_eq!(versions(&plane, "chat"), ["2.54.0"]);
    assert_eq!(shares(&plane, "chat"), "100/100");
    assert_eq!(plane.most_running, 8);
    let new = plane.children("chat")[0].clone();
    assert_eq!(plane.pods(&new), 5);
}

#[test]
fn an_upgrade_waits_for_its_surge_and_serves() {
    // Given quota that is one CPU short,
    let mut plane = serving("7", &["chat"]);

    // when a service is upgraded, then it waits, says so in numbers, and serves as before;
    put(&mut plane, "chat", "2.54.0");
    plane.play(120);
    assert_eq!(shares(&plane, "chat"), "100/100 0/50");
    let why = plane.waits_for("RayService", "chat");
    assert!(why.contains("insufficient") && why.contains("cpu"), "{why}");
    assert_eq!(plane.most_running, 5);

    // and it goes on by itself when there is quota.
    set_quota(&mut plane, "8");
    plane.play(180);
    assert_eq!(versions(&plane, "chat"), ["2.54.0"]);
    assert_eq!(plane.most_running, 8);
}

/// A worker of 2 CPUs and half as many of them: what one side gives is never just what the other one asks for.
fn of_another_shape(version: &str) -> Value {
    let mut cluster = cluster_spec(4, version);
    let resources = json!({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": "1Gi"}});
    cluster["workerGroupSpecs"][0]["template"]["spec"]["containers"][0]["resources"] = resources;
    cluster
}

#[rstest]
#[case::of_the_same_shape(|plane: &mut ControlPlane| put(plane, "chat", "2.54.0"))]
#[case::of_another_shape(|plane: &mut ControlPlane| put_with(plane, "chat", of_another_shape("2.54.0")))]
fn nobody_gets_what_goes_from_one_side_to_the_other(#[case] upgrade: fn(&mut ControlPlane)) {
    // Given a service that is upgraded, and a cluster that waits for one CPU,
    let mut plane = serving("8", &["chat"]);
    upgrade(&mut plane);
    plane.play(1);
    put_cluster(&mut plane, "greedy", "low", 0);

    // when the upgrade goes from step to step, then that gets nothing before the end,
    for _ in 0..60 {
        if versions(&plane, "chat").len() < 2 {
            break;
        }
        plane.play(1);
        let upgrading = plane.service("chat").status.unwrap_or_default().pending_service_status.is_some();
        assert!(!upgrading || plane.pods("greedy") == 0, "{}", shares(&plane, "chat"));
    }
    plane.play(120);

    // and then it does.
    assert_eq!(versions(&plane, "chat"), ["2.54.0"]);
    assert_eq!(plane.pods("greedy"), 1);
    assert_eq!(plane.most_running, 8);
}

/// Ray's autoscaler of every cluster of a service: it asks for a worker for each replica, and removes those that were idle for a minute.
fn autoscale(plane: &mut ControlPlane, service: &str, idle: &mut BTreeMap<String, u32>) {
    for child in plane.children(service) {
        let replicas = plane.object("RayCluster", &child)["spec"]["workerGroupSpecs"][0]["replicas"].as_u64();
        let Some((replicas, wanted)) = replicas.zip(plane.wanted_replicas(&child)) else { continue };
        let since = idle.entry(child.clone()).or_default();
        *since = if wanted < replicas { *since + 1 } else { 0 };
        if wanted > replicas || *since > 60 {
            let pods = plane.running(&child).filter_map(|pod| pod["metadata"]["name"].as_str());
            let workers: Vec<&str> = pods.filter(|name| name.contains("worker")).collect();
            let surplus = usize::try_from(replicas.saturating_sub(wanted)).expect("few");
            let idle = json!(workers.iter().take(surplus).collect::<Vec<_>>());
            let mut spec = plane.object("RayCluster", &child)["spec"].clone();
            spec["workerGroupSpecs"][0]["replicas"] = json!(wanted);
            spec["workerGroupSpecs"][0]["scaleStrategy"] = json!({"workersToDelete": idle});
            plane.apply("RayCluster", json!({"metadata": {"name": child}, "spec": spec}));
        }
    }
}

#[test]
fn with_rays_autoscaler_an_upgrade_needs_no_more_than_its_surge_either() {
    // Given a service whose clusters are scaled by Ray's autoscaler,
    let of = |version: &str| {
        let mut cluster = cluster_spec(4, version);
        cluster["enableInTreeAutoscaling"] = json!(true);
        // The autoscaler beside the head is charged too; here it costs nothing.
        cluster["autoscalerOptions"] = json!({"resources": {"requests": {"cpu": "0", "memory": "0"}, "limits": {}}});
        cluster
    };
    let mut plane = control_plane(Settings::default(), "8");
    plane.apply("GatewayClass", json!({"metadata": {"name": "traefik"}, "spec": {"controllerName": "a"}}));
    put_with(&mut plane, "chat", of("2.53.0"));
    let mut idle = BTreeMap::new();
    let mut play = |plane: &mut ControlPlane, seconds: u32| {
        for _ in 0..seconds {
            plane.play(1);
            autoscale(plane, "chat", &mut idle);
        }
    };
    play(&mut plane, 60);
    assert_eq!(shares(&plane, "chat"), "100/100");

    // when it is upgraded, then it gets there, as workers go after their minute, and at no time did more run.
    put_with(&mut plane, "chat", of("2.54.0"));
    play(&mut plane, 400);
    assert_eq!(versions(&plane, "chat"), ["2.54.0"]);
    assert_eq!(plane.pods(&plane.children("chat")[0]), 5);
    assert_eq!(plane.most_running, 8);
}

#[test]
fn upgrades_that_compete_for_a_surge_finish_one_after_the_other() {
    // Given two services, and quota for the surge of one of them,
    let mut plane = serving("13", &["chat", "mail"]);

    // when both are upgraded, then both get there,
    put(&mut plane, "chat", "2.54.0");
    put(&mut plane, "mail", "2.54.0");
    plane.play(400);

    assert_eq!(versions(&plane, "chat"), ["2.54.0"]);
    assert_eq!(versions(&plane, "mail"), ["2.54.0"]);
    assert_eq!(plane.most_running, 13);
}

#[test]
fn what_takes_requests_is_not_taken_as_a_surge() {
    // Given an upgrade that is half-way,
    let mut plane = serving("8", &["chat"]);
    put(&mut plane, "chat", "2.54.0");
    while shares(&plane, "chat") != "50/50 50/50" && shares(&plane, "chat") != "50/50 50/100" {
        plane.play(1);
    }
    let children = plane.children("chat");

    // when something more important wants quota,
    put_cluster(&mut plane, "urgent", "high", 0);
    plane.play(2);

    // then it gets it from the whole service or not at all: no cluster that requests are sent to stops alone.
    let running: Vec<usize> = children.iter().map(|child| plane.pods(child)).collect();
    assert!(running.iter().all(|pods| *pods > 0) || running.iter().all(|pods| *pods == 0), "{running:?}");
}

#[test]
fn an_upgrade_that_is_taken_back_gives_its_quota_back() {
    let mut plane = serving("8", &["chat"]);
    put(&mut plane, "chat", "2.54.0");
    while !shares(&plane, "chat").starts_with("25/50") {
        plane.play(1);
    }

    put(&mut plane, "chat", "2.53.0");
    plane.play(180);

    assert_eq!(versions(&plane, "chat"), ["2.53.0"]);
    assert_eq!(plane.pods(&plane.children("chat")[0]), 5);
    assert_eq!(plane.most_running, 8);
    put_cluster(&mut plane, "next", "low", 2);
    plane.play(10);
    assert_eq!(plane.pods("next"), 3, "the surge is free again");
}
