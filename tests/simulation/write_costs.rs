//! Costs in writes, by verb and resource: a RayCluster until it is ready, an upgrade, and a queue of
//! pending workloads.

use std::collections::BTreeMap;
use std::time::Duration;

use rstest::rstest;
use serde_json::Value;

use crate::fault_free;
use crate::script::executor::Executor;
use crate::script::manifests::ScriptNamespace;
use crate::script::setup::{Quota, ResourceAmounts, Setup};
use crate::script::step::{Cluster, Group, Pods, Service, UserAction};
use crate::transport::reliable_client;
use crate::world::SharedWorld;

/// Requests of every pod: more than those of the init container of a worker.
const POD: ResourceAmounts = ResourceAmounts { cpu: 250, memory: 384, gpu: 0 };
/// Number of pods of every cluster.
const PODS: u32 = 2;
/// Time for which a cluster runs before it is deleted.
const RUN_TIME: Duration = Duration::from_secs(30);
/// Timeout of waiting for the next cluster.
const READY_TIMEOUT: Duration = Duration::from_secs(60);

/// Returns quota for this number of clusters.
fn quota_for(clusters: u32) -> ResourceAmounts {
    ResourceAmounts { cpu: PODS * clusters * POD.cpu, memory: PODS * clusters * POD.memory, gpu: 0 }
}

fn pods() -> Pods {
    let workers = Group { name: "small".into(), replicas: PODS - 1, hosts: 1, size: POD };
    Pods { version: 52, head: POD, groups: vec![workers] }
}

fn cluster(name: &str) -> UserAction {
    let queue = Some("team-a".into());
    UserAction::PutCluster(Cluster {
        name: name.into(),
        queue,
        priority: None,
        recreate: false,
        owned: false,
        pods: pods(),
    })
}

fn service() -> UserAction {
    let service = Service { name: "fruit".into(), queue: Some("team-a".into()), pods: pods(), ..Service::default() };
    UserAction::PutService(service)
}

fn upgrade() -> UserAction {
    UserAction::SetVersion { service: "fruit".into(), version: 53 }
}

fn set_quota(clusters: u32) -> UserAction {
    UserAction::SetQuota { queue: "team-a".into(), quotas: vec![Quota::with_nominal(quota_for(clusters))] }
}

/// Executes actions, each once the system is quiescent after the one before. Returns the writes that
/// the last one caused.
fn writes_of_last(quota: u32, actions: &[UserAction]) -> Vec<String> {
    fault_free::in_world(1, async |world| {
        let client = reliable_client(world);
        let place = ScriptNamespace::new("team");
        let people = Executor::new(&client, &place);
        people.set_up(&Setup::with_one_queue("team-a", quota_for(quota))).await.expect("a setup");
        fault_free::wait_until_quiescent(world).await.expect("rest");
        let mut before = BTreeMap::new();
        for action in actions {
            before = world.with(|world| world.writes.clone());
            people.execute(action).await.expect("an action");
            fault_free::wait_until_quiescent(world).await.expect("rest");
        }
        writes_since(world, &before)
    })
}

fn writes_since(world: &SharedWorld, before: &BTreeMap<String, u64>) -> Vec<String> {
    let now = world.with(|world| world.writes.clone());
    let since = now.into_iter().map(|(write, count)| {
        let count = count - before.get(&write).copied().unwrap_or_default();
        (write, count)
    });
    since.filter(|(_, count)| *count > 0).map(|(write, count)| format!("{count} {write}")).collect()
}

#[rstest]
#[case::cluster(1, &[cluster("a")], &[
    "1 create controllerrevisions",
    "6 create events",
    "2 create pods",
    "1 create services",
    "1 create workloads",
    "2 patch rayclusters",
    "1 patch the status of clusterqueues",
    "1 patch the status of localqueues",
    "2 patch the status of rayclusters",
    "1 patch the status of workloads",
])]
#[case::service(1, &[service()], &[
    "1 create controllerrevisions",
    "10 create events",
    "2 create pods",
    "1 create rayclusters",
    "3 create services",
    "1 create workloads",
    "1 patch pods",
    "2 patch rayclusters",
    "2 patch rayservices",
    "1 patch the status of clusterqueues",
    "1 patch the status of localqueues",
    "2 patch the status of rayclusters",
    "5 patch the status of rayservices",
    "1 patch the status of workloads",
])]
#[case::upgrade(2, &[service(), upgrade()], &[
    "1 create controllerrevisions",
    "14 create events",
    "2 create pods",
    "1 create rayclusters",
    "1 create services",
    "1 create workloads",
    "1 delete rayclusters",
    "1 delete workloads",
    "1 patch pods",
    "3 patch rayclusters",
    "2 patch services",
    "2 patch the status of clusterqueues",
    "2 patch the status of localqueues",
    "2 patch the status of rayclusters",
    "4 patch the status of rayservices",
    "3 patch the status of workloads",
    "2 patch workloads",
])]
#[case::upgrade_without_quota(1, &[service(), upgrade()], &[
    "1 create controllerrevisions",
    "5 create events",
    "1 create rayclusters",
    "1 create services",
    "1 create workloads",
    "1 patch the status of clusterqueues",
    "1 patch the status of localqueues",
    "1 patch the status of rayclusters",
    "4 patch the status of rayservices",
    "1 patch the status of workloads",
])]
#[case::admission_of_a_pending_upgrade(1, &[service(), upgrade(), set_quota(2)], &[
    "11 create events",
    "2 create pods",
    "1 delete rayclusters",
    "1 delete workloads",
    "1 patch pods",
    "3 patch rayclusters",
    "2 patch services",
    "2 patch the status of clusterqueues",
    "2 patch the status of localqueues",
    "3 patch the status of rayclusters",
    "3 patch the status of rayservices",
    "3 patch the status of workloads",
    "2 patch workloads",
])]
fn an_action_costs_these_writes(#[case] quota: u32, #[case] actions: &[UserAction], #[case] expected: &[&str]) {
    assert_eq!(writes_of_last(quota, actions), expected);
}

#[test]
fn pending_clusters_cost_few_writes() {
    const CLUSTERS: u64 = 40;
    // Given quota for four clusters, when forty are created, and each is deleted some time after it is ready,
    let (writes, minutes) = fault_free::in_world(1, async |world| {
        let client = reliable_client(world);
        let place = ScriptNamespace::new("team");
        let people = Executor::new(&client, &place);
        people.set_up(&Setup::with_one_queue("team-a", quota_for(4))).await.expect("a setup");
        for number in 0..CLUSTERS {
            people.execute(&cluster(&format!("c{number}"))).await.expect("a cluster");
        }
        for _ in 0..CLUSTERS {
            let name = ready_cluster(world).await;
            tokio::time::sleep(RUN_TIME).await;
            people
                .execute(&UserAction::DeleteCluster { cluster: name, orphan: false, foreground: false })
                .await
                .expect("a deletion");
        }
        fault_free::wait_until_quiescent(world).await.expect("rest");
        (world.with(|world| world.writes.clone()), world.time.elapsed().as_secs() / 60)
    });

    // then a cluster costs the same however long it is pending; only the first one gets new numbers, once a minute.
    let writes = |write: &str| writes.get(write).copied().unwrap_or_default();
    assert_eq!(writes("create workloads"), CLUSTERS);
    let bounds = [
        ("workloads", 2 * CLUSTERS + minutes),
        ("rayclusters", 5 * CLUSTERS + minutes),
        ("clusterqueues", 2 * CLUSTERS),
    ];
    for (plural, bound) in bounds {
        let count = writes(&format!("patch the status of {plural}"));
        assert!(count <= bound, "{count} statuses of {plural} are more than {bound}");
    }
}

/// Waits until a cluster is ready, and returns the name of the first one.
///
/// # Panics
/// Panics if none is within [`READY_TIMEOUT`].
async fn ready_cluster(world: &SharedWorld) -> String {
    let started = world.time.elapsed();
    loop {
        let ready = world.with(|world| {
            let mut clusters = world.api.list("RayCluster").map(AsRef::as_ref);
            let ready = clusters.find(|cluster: &&Value| {
                cluster["status"]["state"] == "ready" && cluster["metadata"]["deletionTimestamp"].is_null()
            });
            ready.and_then(|cluster| cluster["metadata"]["name"].as_str().map(str::to_owned))
        });
        if let Some(name) = ready {
            return name;
        }
        assert!(world.time.elapsed() < started + READY_TIMEOUT, "no cluster is ready within {READY_TIMEOUT:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
