//! Kubernetes objects as the API server would send them.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};
use sluice_api::condition::{self, ConditionUpdate};
use sluice_api::kueue::{ClusterQueue, Cohort, LocalQueue, ResourceFlavor, Workload, names};

use super::BenchError;
use super::scenario::{Job, Queue, Units};

/// The only ResourceFlavor.
const FLAVOR: &str = "default";
/// Name of every LocalQueue. Each is in a namespace with the name of its ClusterQueue.
const LOCAL_QUEUE: &str = "queue";

/// Converts virtual time in milliseconds to a timestamp.
pub(super) fn timestamp(millisecond: i64) -> Timestamp {
    Timestamp::from_millisecond(millisecond).unwrap_or(Timestamp::MAX)
}

pub(super) fn flavor() -> ResourceFlavor {
    ResourceFlavor::new(FLAVOR, Default::default())
}

/// Builds a ClusterQueue with the nominal quota of each resource and an optional borrowing limit.
/// `rest` is the rest of the spec.
pub(super) fn queue(
    name: &str,
    tree: usize,
    nominal: Units,
    borrow: Option<i64>,
    rest: Value,
) -> Result<Queue, BenchError> {
    let resources: Vec<&str> = nominal.iter().map(|(resource, _)| *resource).collect();
    let quotas: Vec<Value> = nominal
        .iter()
        .map(|(resource, units)| {
            let mut quota = json!({"name": resource, "nominalQuota": units.to_string()});
            if let Some(limit) = borrow {
                quota["borrowingLimit"] = limit.to_string().into();
            }
            quota
        })
        .collect();
    let mut spec = rest;
    spec["namespaceSelector"] = json!({});
    spec["resourceGroups"] =
        json!([{"coveredResources": resources, "flavors": [{"name": FLAVOR, "resources": quotas}]}]);
    let mut object = ClusterQueue::new(name, serde_json::from_value(spec)?);
    object.metadata.generation = Some(1);
    let most = borrow.map(|limit| nominal.iter().map(|(resource, units)| (*resource, units + limit)).collect());
    Ok(Queue { object, tree, nominal, max_usage: most })
}

pub(super) fn cohort(name: &str, spec: Value) -> Result<Cohort, BenchError> {
    let mut object = Cohort::new(name, serde_json::from_value(spec)?);
    object.metadata.generation = Some(1);
    Ok(object)
}

pub(super) fn local_queue(queue: &Queue) -> Result<LocalQueue, BenchError> {
    let mut object = LocalQueue::new(LOCAL_QUEUE, serde_json::from_value(json!({"clusterQueue": queue.name()}))?);
    object.metadata.namespace = Some(queue.name().to_owned());
    object.metadata.generation = Some(1);
    Ok(object)
}

/// Builds a workload of one pod, created at `now`.
pub(super) fn workload(job: &Job, namespace: &str, now: Timestamp) -> Result<Workload, BenchError> {
    let requests: Value = job.requests.iter().map(|(resource, units)| (*resource, units.to_string())).collect();
    let container = json!({"name": "main", "image": "work", "resources": {"requests": requests}});
    let mut object = Workload::new(
        &job.name,
        serde_json::from_value(json!({
            "queueName": LOCAL_QUEUE,
            "priority": job.priority,
            "podSets": [{"name": "main", "count": 1, "template": {"spec": {"containers": [container]}}}],
        }))?,
    );
    object.metadata.namespace = Some(namespace.to_owned());
    object.metadata.uid = Some(format!("{namespace}-{}", job.name));
    object.metadata.generation = Some(1);
    object.metadata.creation_timestamp = Some(Time(now));
    Ok(object)
}

/// Returns the workload, finished at `now`.
pub(super) fn finished(workload: &Workload, now: Timestamp) -> Workload {
    let mut object = workload.clone();
    let verdict = ConditionUpdate {
        type_: names::FINISHED,
        status: true,
        reason: names::finished_reason::SUCCEEDED.into(),
        message: "Job finished successfully".into(),
        observed_generation: object.metadata.generation,
    };
    condition::set(&mut object.status.get_or_insert_default().conditions, now, verdict);
    object
}
