//! Costs of idle services in writes, of unhealthy services in latency of others, and of upgrades in
//! failed requests.

use std::time::Duration;

use serde_json::Value;

use crate::cluster::{DashboardFault, FaultList, PodFaultInjector};
use crate::fault_free::{self, WorldOptions};
use crate::script::executor::Executor;
use crate::script::manifests::ScriptNamespace;
use crate::script::setup::{ResourceAmounts, Setup};
use crate::script::step::{Group, Pods, Service, UserAction};
use crate::transport::reliable_client;
use crate::world::SharedWorld;

const SERVICES: usize = 500;
/// Observation time once all services are ready.
const OBSERVATION_TIME: Duration = Duration::from_secs(300);
/// Timeout of waits.
const TIMEOUT: Duration = Duration::from_secs(600);

fn scene() -> Setup {
    Setup::with_one_queue("team-a", ResourceAmounts { cpu: 1_000_000, memory: 1_000_000, gpu: 0 })
}

fn service(name: &str) -> UserAction {
    let size = ResourceAmounts { cpu: 10, memory: 16, gpu: 0 };
    let small = Group { name: "small".into(), replicas: 1, hosts: 1, size };
    UserAction::PutService(Service {
        name: name.into(),
        queue: Some("team-a".into()),
        pods: Pods { version: 52, head: size, groups: vec![small] },
        ..Service::default()
    })
}

/// Returns the names of the ready services.
fn ready_services(world: &SharedWorld) -> Vec<String> {
    world.with(|world| {
        let is_ready = |service: &&Value| {
            let conditions = service.pointer("/status/conditions").and_then(Value::as_array);
            conditions
                .into_iter()
                .flatten()
                .any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
        };
        let services = world.api.list("RayService").map(AsRef::as_ref).filter(is_ready);
        services.map(|service| service["metadata"]["name"].as_str().unwrap_or_default().to_owned()).collect()
    })
}

/// Waits until `count` services are ready.
async fn wait_until_ready(world: &SharedWorld, count: usize) {
    let started = world.time.elapsed();
    while ready_services(world).len() < count {
        assert!(
            world.time.elapsed() < started + TIMEOUT,
            "only {} of {count} services are ready",
            ready_services(world).len()
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[test]
fn idle_services_cost_no_writes() {
    fault_free::in_world_with(1, WorldOptions { nodes: 8, ..WorldOptions::default() }, async |world| {
        let client = reliable_client(world);
        let place = ScriptNamespace::new("team");
        let people = Executor::new(&client, &place);
        people.set_up(&scene()).await.expect("a scene");
        for number in 0..SERVICES {
            people.execute(&service(&format!("s{number}"))).await.expect("a service");
        }
        wait_until_ready(world, SERVICES).await;
        fault_free::wait_until_quiescent(world).await.expect("rest");

        let writes = || world.with(|world| world.writes.values().sum::<u64>());
        let before = writes();
        assert!(before > 10 * u64::try_from(SERVICES).expect("a number"), "only {before} writes to create them");
        tokio::time::sleep(OBSERVATION_TIME).await;

        assert_eq!(writes() - before, 0, "writes in {OBSERVATION_TIME:?}");
        assert_eq!(ready_services(world).len(), SERVICES);
    });
}

/// Checks that a request to a service would be answered now. The error is the reason why not.
fn check_request(world: &SharedWorld, service: &str) -> Result<(), String> {
    let slice_of =
        |slice: &&Value| slice["metadata"]["labels"]["kubernetes.io/service-name"] == format!("{service}-serve-svc");
    world.with(|world| {
        let slices = world.api.list("EndpointSlice").map(AsRef::as_ref).filter(slice_of);
        let endpoints = slices.flat_map(|slice| slice["endpoints"].as_array().cloned().unwrap_or_default());
        let ready_endpoints: Vec<Value> =
            endpoints.filter(|endpoint| endpoint["conditions"]["ready"] == true).collect();
        if ready_endpoints.is_empty() {
            return Err("there is no ready endpoint".to_owned());
        }
        for endpoint in ready_endpoints {
            let uid = &endpoint["targetRef"]["uid"];
            let pod = world.api.list("Pod").find(|pod| pod["metadata"]["uid"] == *uid);
            let Some(pod) = pod else { return Err(format!("the pod of endpoint {endpoint} does not exist")) };
            let conditions = pod.pointer("/status/conditions").and_then(Value::as_array);
            let ready = conditions
                .into_iter()
                .flatten()
                .any(|condition| condition["type"] == "Ready" && condition["status"] == "True");
            if !ready || !pod["metadata"]["deletionTimestamp"].is_null() {
                return Err(format!("pod {} is not ready or is terminating", pod["metadata"]["name"]));
            }
        }
        Ok(())
    })
}

#[test]
fn b12_upgrade_under_ten_requests_per_second_fails_none() {
    fault_free::in_world(1, async |world| {
        // Given a ready service,
        let client = reliable_client(world);
        let place = ScriptNamespace::new("team");
        let people = Executor::new(&client, &place);
        people.set_up(&scene()).await.expect("a scene");
        people.execute(&service("well")).await.expect("a service");
        wait_until_ready(world, 1).await;
        fault_free::wait_until_quiescent(world).await.expect("rest");
        let clusters =
            || world.with(|world| world.api.list("RayCluster").map(|it| it["metadata"]["uid"].clone()).collect());
        let before: Vec<Value> = clusters();

        // when it is upgraded under load, then another cluster takes over and no request fails.
        people.execute(&UserAction::SetVersion { service: "well".into(), version: 53 }).await.expect("an upgrade");
        for number in 0..1500 {
            tokio::time::sleep(Duration::from_millis(100)).await;
            assert_eq!(check_request(world, "well"), Ok(()), "request {number}");
        }
        let after: Vec<Value> = clusters();
        assert!(after.len() == 1 && after != before, "{before:?} and then {after:?}");
    });
}

/// Returns the time until a service is ready and the duration of its upgrade, with other services
/// created before it.
fn start_and_upgrade_times(others: &[&str], fates: FaultList) -> (Duration, Duration) {
    fault_free::in_world_with(
        1,
        WorldOptions { cluster_faults: PodFaultInjector::listed(fates), ..WorldOptions::default() },
        async |world| {
            let client = reliable_client(world);
            let place = ScriptNamespace::new("team");
            let people = Executor::new(&client, &place);
            people.set_up(&scene()).await.expect("a scene");
            for other in others {
                people.execute(&service(other)).await.expect("a service");
                // The next dashboard must not be created before this one was called.
                tokio::time::sleep(Duration::from_secs(60)).await;
            }
            assert!(
                ready_services(world).is_empty(),
                "services with an unhealthy dashboard are ready: {:?}",
                ready_services(world)
            );
            let started = world.time.elapsed();
            people.execute(&service("well")).await.expect("a service");
            wait_until_ready(world, 1).await;
            let serves = world.time.elapsed();
            let upgrade = UserAction::SetVersion { service: "well".into(), version: 53 };
            people.execute(&upgrade).await.expect("an upgrade");
            fault_free::wait_until_quiescent(world).await.expect("rest");
            (serves - started, world.time.elapsed() - serves)
        },
    )
}

#[test]
fn unresponsive_dashboards_do_not_delay_other_services() {
    let alone = start_and_upgrade_times(&[], FaultList::default());

    let unhealthy = FaultList {
        dashboards: [(0, DashboardFault::Hangs), (1, DashboardFault::ReturnsHtml)].into(),
        ..FaultList::default()
    };
    let with_others = start_and_upgrade_times(&["silent", "babbling"], unhealthy);

    let latency = Duration::from_millis(500);
    assert!(
        with_others.0 <= alone.0 + latency && with_others.1 <= alone.1 + latency,
        "alone {alone:?}, with others {with_others:?}"
    );
}
