//! Creates the queues, and waits until a manager uses them.

use std::collections::HashSet;
use std::time::Duration;

use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde::Deserialize;
use sluice_api::condition;
use sluice_api::kueue::names;
use tokio::time::Instant;

use crate::api::{ApiClient, ApiError};
use crate::error::LoadError;
use crate::objects::{self, CLUSTER_QUEUES};
use crate::observed::ObservedMeta;
use crate::plan::LoadPlan;

/// Maximum time until all ClusterQueues are active.
const ACTIVE_TIMEOUT: Duration = Duration::from_secs(120);
/// Interval at which ClusterQueues are listed.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

#[derive(Debug, Deserialize)]
struct ClusterQueues {
    items: Vec<ListedQueue>,
}

#[derive(Debug, Deserialize)]
struct ListedQueue {
    metadata: ObservedMeta,
    #[serde(default)]
    status: QueueState,
}

#[derive(Debug, Default, Deserialize)]
struct QueueState {
    #[serde(default)]
    conditions: Vec<Condition>,
}

/// Creates flavor, ClusterQueues, namespaces and LocalQueues.
///
/// # Errors
/// If one exists already, or is rejected.
pub(super) async fn create_queues(plan: &LoadPlan, client: &ApiClient, concurrency: usize) -> Result<(), LoadError> {
    let objects = objects::queues(plan);
    // The flavor and each namespace precede what is in or refers to them.
    for resource in [objects::RESOURCE_FLAVORS, CLUSTER_QUEUES, objects::NAMESPACES, objects::LOCAL_QUEUES] {
        let of_kind = objects.iter().filter(|object| object.resource == resource);
        let created = stream::iter(of_kind).map(|object| client.create(object)).buffer_unordered(concurrency);
        match created.try_collect::<Vec<()>>().await {
            // The flavor is the same for all scenarios.
            Err(error) if resource == objects::RESOURCE_FLAVORS && error.is_conflict() => {}
            result => drop(result?),
        }
    }
    Ok(())
}

/// Waits until the manager reports that all ClusterQueues are active.
///
/// # Errors
/// If they are not in two minutes.
pub(super) async fn wait_until_active(plan: &LoadPlan, client: &ApiClient) -> Result<(), LoadError> {
    let end = Instant::now() + ACTIVE_TIMEOUT;
    loop {
        let inactive = count_inactive(plan, client).await?;
        if inactive == 0 {
            return Ok(());
        }
        if Instant::now() > end {
            return Err(LoadError::Inactive { timeout: ACTIVE_TIMEOUT, inactive, total: plan.queues.len() });
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

async fn count_inactive(plan: &LoadPlan, client: &ApiClient) -> Result<usize, ApiError> {
    let listed: ClusterQueues = client.list(CLUSTER_QUEUES, None).await?;
    let active = listed.items.iter().filter(|queue| condition::is_true(&queue.status.conditions, names::ACTIVE));
    let active: HashSet<&str> = active.map(|queue| queue.metadata.name.as_str()).collect();
    Ok(plan.queues.iter().filter(|queue| !active.contains(queue.name.as_str())).count())
}
