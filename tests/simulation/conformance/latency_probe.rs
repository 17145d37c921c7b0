//! Detects when all controllers have reacted to a change.
//!
//! A separate service is scaled up and down by one worker, in rounds. Each round passes through
//! every controller: the API server and its watches, both components of Sluice, the scheduler, the
//! kubelets, and the endpoint and garbage controllers. They process events in order. So if a
//! complete round passes without a change in a script's namespace, no controller has an event of
//! that script left to process, however slow the machine is.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::Client;
use serde_json::Value;
use tokio::sync::watch;

use super::dump::Dump;
use super::observer::NamespaceWatcher;
use super::quiescence::pending_work;
use crate::script::executor::Executor;
use crate::script::manifests::ScriptNamespace;
use crate::script::setup::{Flavor, Queue, Quota, ResourceAmounts, Setup};
use crate::script::step::{Group, Pods, Service, UserAction};

const NAME: &str = "canary";

/// Runs rounds until the receivers are dropped. `rounds` gets the start of each completed round.
pub(super) async fn run_rounds(
    client: Client,
    observer: Arc<NamespaceWatcher>,
    rounds: watch::Sender<Option<Instant>>,
) {
    let place = ScriptNamespace::new(NAME);
    let performer = Executor::new(&client, &place);
    performer.set_up(&setup()).await.expect("the probe's queue is accepted");
    performer.execute(&UserAction::PutService(service())).await.expect("the probe is accepted");
    let act = |replicas| UserAction::Scale { service: NAME.to_owned(), group: 0, replicas };
    wait_until_processed(&observer, &place, 1).await;
    while !rounds.is_closed() {
        let started = Instant::now();
        for replicas in [2, 1] {
            performer.execute(&act(replicas)).await.expect("the probe can be scaled");
            wait_until_processed(&observer, &place, replicas).await;
        }
        rounds.send_replace(Some(started));
    }
}

async fn wait_until_processed(observer: &NamespaceWatcher, place: &ScriptNamespace, workers: u32) {
    while !observer.with_objects(place, |objects| is_processed(objects, workers)) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// True if all controllers have processed a scale to `workers` workers.
fn is_processed(objects: &Dump, workers: u32) -> bool {
    let of_kind = |wanted| objects.iter().filter(move |((kind, _), _)| *kind == wanted).map(|(_, object)| object);
    let number = |object: &Value, pointer| object.pointer(pointer).and_then(Value::as_u64);
    let mut clusters = of_kind("RayCluster");
    let has_workers =
        clusters.all(|cluster| number(cluster, "/status/readyWorkerReplicas") == Some(u64::from(workers)));
    let takes_requests = of_kind("RayService")
        .any(|service| number(service, "/status/numServeEndpoints") == Some(u64::from(workers + 1)));
    let is_covered = of_kind("Workload").any(|workload| {
        let sets = workload.pointer("/status/admission/podSetAssignments").and_then(Value::as_array);
        let counts = sets.into_iter().flatten().filter_map(|set| set["count"].as_u64());
        counts.sum::<u64>() == u64::from(workers + 1)
    });
    has_workers
        && takes_requests
        && is_covered
        && of_kind("Pod").count() == workers as usize + 1
        && pending_work(objects.values()).is_none()
}

const POD: ResourceAmounts = ResourceAmounts { cpu: 200, memory: 256, gpu: 0 };

fn setup() -> Setup {
    let flavor = Flavor { name: "any".into(), dedicated: false };
    let quota = Quota { flavor: flavor.name.clone(), nominal: POD.times(10), borrowing: None, lending: None };
    let queue = Queue {
        name: NAME.into(),
        cohort: None,
        quotas: vec![quota],
        within_cluster_queue: None,
        reclaim: None,
        strict_fifo: false,
    };
    Setup { flavors: vec![flavor], queues: vec![queue], ..Setup::default() }
}

fn service() -> Service {
    let group = Group { name: "small".into(), replicas: 1, hosts: 1, size: POD };
    Service {
        name: NAME.into(),
        queue: Some(NAME.into()),
        priority: None,
        pods: Pods { version: 52, head: POD, groups: vec![group] },
        edition: 0,
        deletion_delay: 0,
        suspend: false,
        recreate: false,
        admission_timeout: None,
        incremental: None,
    }
}
