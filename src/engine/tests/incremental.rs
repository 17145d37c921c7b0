//! Incremental upgrades, with quota for each step.

use std::collections::BTreeMap;

use rstest::rstest;
use serde_json::{Value, json};

use super::control_plane::ControlPlane;
use super::fixtures::{cluster_spec, control_plane, job_metadata, put_cluster, set_quota};
use sluice_queue::Settings;

/// Creates or upgrades a service with four workers of 1 CPU and one replica on each, with a surge
/// of 50 percent.
fn put_service(plane: &mut ControlPlane, name: &str, version: &str) {
    put_service_with_cluster(plane, name, cluster_spec(4, version));
}

fn put_service_with_cluster(plane: &mut ControlPlane, name: &str, mut cluster: Value) {
    cluster["suspend"] = json!(true);
    let serve = "applications: [{name: chat, import_path: a:b, deployments: [{name: model, num_replicas: 4}]}]";
    let options =
        json!({"maxSurgePercent": 50, "stepSizePercent": 25, "intervalSeconds": 5, "gatewayClassName": "traefik"});
    let strategy = json!({"type": "NewClusterWithIncrementalUpgrade", "clusterUpgradeOptions": options});
    let spec = json!({"serveConfigV2": serve, "upgradeStrategy": strategy, "rayClusterConfig": cluster});
    plane.apply("RayService", json!({"metadata": job_metadata(name, "low"), "spec": spec}));
}

fn serving(cpu: &str, services: &[&str]) -> ControlPlane {
    let mut plane = control_plane(Settings::default(), cpu);
    plane.apply("GatewayClass", json!({"metadata": {"name": "traefik"}, "spec": {"controllerName": "a"}}));
    for service in services {
        put_service(&mut plane, service, "2.53.0");
    }
    plane.advance(60);
    for service in services {
        assert_eq!(traffic_and_capacity(&plane, service), "100/100");
    }
    plane.most_running = 0;
    plane
}

/// Returns "traffic/capacity" of the active and the pending cluster from the status, in percent.
fn traffic_and_capacity(plane: &ControlPlane, service: &str) -> String {
    let status = plane.service(service).status.unwrap_or_default();
    let entries = [status.active_service_status, status.pending_service_status].into_iter().flatten();
    let shares =
        entries.filter_map(|entry| Some(format!("{}/{}", entry.traffic_routed_percent?, entry.target_capacity?)));
    shares.collect::<Vec<_>>().join(" ")
}

/// Returns the Ray versions of the clusters of a service.
fn versions(plane: &ControlPlane, service: &str) -> Vec<String> {
    let versions = plane.clusters_of_service(service).into_iter().map(|child| {
        let version = &plane.object("RayCluster", &child)["spec"]["rayVersion"];
        version.as_str().unwrap_or_default().to_owned()
    });
    versions.collect()
}

/// `owner` is the RayCluster that owns the user-provided Service.
#[rstest]
#[case::without_owner(None)]
#[case::of_a_standalone_cluster(Some("other"))]
fn user_provided_backend_of_a_route_keeps_its_traffic(#[case] owner: Option<&str>) {
    // Given a route with a user-provided backend that is named like the Service of a cluster,
    let backend = "chat-aaaaa-serve-svc";
    let mut plane = serving("9", &["chat"]);
    put_cluster(&mut plane, "other", "low", 0);
    plane.advance(10);
    let owner = owner.map(|name| {
        let uid = plane.object("RayCluster", name)["metadata"]["uid"].clone();
        json!({"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": name, "uid": uid, "controller": true})
    });
    let metadata = json!({"name": backend, "ownerReferences": owner.as_slice()});
    plane.apply("Service", json!({"metadata": metadata, "spec": {"selector": {"app": "theirs"}}}));
    let mut spec = plane.object("HTTPRoute", "chat-httproute")["spec"].clone();
    let backends = spec["rules"][0]["backendRefs"].as_array_mut().expect("backends");
    backends.push(json!({"name": backend, "port": 80, "weight": 100}));
    plane.apply("HTTPRoute", json!({"metadata": {"name": "chat-httproute"}, "spec": spec}));

    // when the service is upgraded, then the route keeps that backend.
    put_service(&mut plane, "chat", "2.54.0");
    plane.advance(180);
    assert_eq!(versions(&plane, "chat"), ["2.54.0"]);
    let backends = plane.object("HTTPRoute", "chat-httproute")["spec"]["rules"][0]["backendRefs"].clone();
    let is_kept = backends.as_array().is_some_and(|backends| backends.iter().any(|entry| entry["name"] == backend));
    assert!(is_kept, "{backends}");
}

#[test]
fn upgrade_needs_quota_for_the_active_cluster_a_head_and_the_surge() {
    // Given quota for a service of 5 CPUs, another head, and half of its workers,
    let mut plane = serving("8", &["chat"]);

    // when it is upgraded,
    put_service(&mut plane, "chat", "2.54.0");
    plane.advance(180);

    // then it completes, and the pods never exceeded the quota.
    assert_eq!(versions(&plane, "chat"), ["2.54.0"]);
    assert_eq!(traffic_and_capacity(&plane, "chat"), "100/100");
    assert_eq!(plane.most_running, 8);
    let new = plane.clusters_of_service("chat")[0].clone();
    assert_eq!(plane.ungated_pod_count(&new), 5);
}

#[test]
fn upgrade_without_quota_for_its_surge_is_pending_while_the_active_cluster_serves() {
    // Given quota that is one CPU short,
    let mut plane = serving("7", &["chat"]);

    // when a service is upgraded, then the upgrade is pending, reports the shortfall, and the
    // active cluster keeps serving;
    put_service(&mut plane, "chat", "2.54.0");
    plane.advance(120);
    assert_eq!(traffic_and_capacity(&plane, "chat"), "100/100 0/50");
    let why = plane.pending_message("RayService", "chat");
    assert!(why.contains("insufficient") && why.contains("cpu"), "{why}");
    assert_eq!(plane.most_running, 5);

    // and it proceeds when there is quota.
    set_quota(&mut plane, "8");
    plane.advance(180);
    assert_eq!(versions(&plane, "chat"), ["2.54.0"]);
    assert_eq!(plane.most_running, 8);
}

/// Returns a cluster with workers of another size: what the losing cluster releases never equals
/// what the gaining one requests.
fn with_larger_workers(version: &str) -> Value {
    let mut cluster = cluster_spec(4, version);
    let resources = json!({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": "1Gi"}});
    cluster["workerGroupSpecs"][0]["template"]["spec"]["containers"][0]["resources"] = resources;
    cluster
}

#[rstest]
#[case::of_the_same_shape(|plane: &mut ControlPlane| put_service(plane, "chat", "2.54.0"))]
#[case::of_another_shape(|plane: &mut ControlPlane| put_service_with_cluster(plane, "chat", with_larger_workers("2.54.0")))]
fn quota_moving_between_clusters_of_an_upgrade_admits_no_other_workload(#[case] upgrade: fn(&mut ControlPlane)) {
    // Given a service that is being upgraded, and a cluster pending for one CPU,
    let mut plane = serving("8", &["chat"]);
    upgrade(&mut plane);
    plane.advance(1);
    put_cluster(&mut plane, "greedy", "low", 0);

    // when the upgrade steps, then that cluster is not admitted before the end,
    for _ in 0..60 {
        if versions(&plane, "chat").len() < 2 {
            break;
        }
        plane.advance(1);
        let upgrading = plane.service("chat").status.unwrap_or_default().pending_service_status.is_some();
        assert!(!upgrading || plane.ungated_pod_count("greedy") == 0, "{}", traffic_and_capacity(&plane, "chat"));
    }
    plane.advance(120);

    // and it is admitted after the end.
    assert_eq!(versions(&plane, "chat"), ["2.54.0"]);
    assert_eq!(plane.ungated_pod_count("greedy"), 1);
    assert_eq!(plane.most_running, 8);
}

/// Acts as the Ray autoscaler of every cluster of a service: requests a worker per replica, and
/// removes workers that were idle for a minute.
fn autoscale(plane: &mut ControlPlane, service: &str, idle: &mut BTreeMap<String, u32>) {
    for child in plane.clusters_of_service(service) {
        let replicas = plane.object("RayCluster", &child)["spec"]["workerGroupSpecs"][0]["replicas"].as_u64();
        let Some((replicas, wanted)) = replicas.zip(plane.target_serve_replicas(&child)) else { continue };
        let since = idle.entry(child.clone()).or_default();
        *since = if wanted < replicas { *since + 1 } else { 0 };
        if wanted > replicas || *since > 60 {
            let pods = plane.ungated_pods(&child).filter_map(|pod| pod["metadata"]["name"].as_str());
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
fn upgrade_of_autoscaled_clusters_needs_no_more_than_its_surge() {
    // Given a service whose clusters are scaled by Ray's autoscaler,
    let autoscaled = |version: &str| {
        let mut cluster = cluster_spec(4, version);
        cluster["enableInTreeAutoscaling"] = json!(true);
        // The autoscaler container of the head needs quota too; here it requests nothing.
        cluster["autoscalerOptions"] = json!({"resources": {"requests": {"cpu": "0", "memory": "0"}, "limits": {}}});
        cluster
    };
    let mut plane = control_plane(Settings::default(), "8");
    plane.apply("GatewayClass", json!({"metadata": {"name": "traefik"}, "spec": {"controllerName": "a"}}));
    put_service_with_cluster(&mut plane, "chat", autoscaled("2.53.0"));
    let mut idle = BTreeMap::new();
    let mut play = |plane: &mut ControlPlane, seconds: u32| {
        for _ in 0..seconds {
            plane.advance(1);
            autoscale(plane, "chat", &mut idle);
        }
    };
    play(&mut plane, 60);
    assert_eq!(traffic_and_capacity(&plane, "chat"), "100/100");

    // when it is upgraded, then it completes as idle workers are removed, and the pods never
    // exceeded the quota.
    put_service_with_cluster(&mut plane, "chat", autoscaled("2.54.0"));
    play(&mut plane, 400);
    assert_eq!(versions(&plane, "chat"), ["2.54.0"]);
    assert_eq!(plane.ungated_pod_count(&plane.clusters_of_service("chat")[0]), 5);
    assert_eq!(plane.most_running, 8);
}

#[test]
fn upgrades_competing_for_a_surge_finish_one_after_the_other() {
    // Given two services, and quota for the surge of one of them,
    let mut plane = serving("13", &["chat", "mail"]);

    // when both are upgraded, then both upgrades complete.
    put_service(&mut plane, "chat", "2.54.0");
    put_service(&mut plane, "mail", "2.54.0");
    plane.advance(400);

    assert_eq!(versions(&plane, "chat"), ["2.54.0"]);
    assert_eq!(versions(&plane, "mail"), ["2.54.0"]);
    assert_eq!(plane.most_running, 13);
}

#[test]
fn cluster_with_traffic_is_not_preempted_as_a_surge() {
    // Given an upgrade that is halfway through,
    let mut plane = serving("8", &["chat"]);
    put_service(&mut plane, "chat", "2.54.0");
    while traffic_and_capacity(&plane, "chat") != "50/50 50/50"
        && traffic_and_capacity(&plane, "chat") != "50/50 50/100"
    {
        plane.advance(1);
    }
    let children = plane.clusters_of_service("chat");

    // when a workload of higher priority requests quota,
    put_cluster(&mut plane, "urgent", "high", 0);
    plane.advance(2);

    // then it preempts the whole service or nothing: no cluster with traffic stops alone.
    let running: Vec<usize> = children.iter().map(|child| plane.ungated_pod_count(child)).collect();
    assert!(running.iter().all(|pods| *pods > 0) || running.iter().all(|pods| *pods == 0), "{running:?}");
}

#[test]
fn rolled_back_upgrade_releases_its_quota() {
    let mut plane = serving("8", &["chat"]);
    put_service(&mut plane, "chat", "2.54.0");
    while !traffic_and_capacity(&plane, "chat").starts_with("25/50") {
        plane.advance(1);
    }

    put_service(&mut plane, "chat", "2.53.0");
    plane.advance(180);

    assert_eq!(versions(&plane, "chat"), ["2.53.0"]);
    assert_eq!(plane.ungated_pod_count(&plane.clusters_of_service("chat")[0]), 5);
    assert_eq!(plane.most_running, 8);
    put_cluster(&mut plane, "next", "low", 2);
    plane.advance(10);
    assert_eq!(plane.ungated_pod_count("next"), 3, "the surge is free again");
}
