//! Lists all objects that decisions depend on, for commands that read a cluster once.

use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::batch::v1::Job as BatchJob;
use k8s_openapi::api::core::v1::{LimitRange, Namespace, Pod, Service};
use k8s_openapi::api::node::v1::RuntimeClass;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::api::ListParams;
use kube::{Api, Client, Resource};
use thiserror::Error;

use sluice_api::kueue::{ClusterQueue, Cohort, LocalQueue, ResourceFlavor, Workload, WorkloadPriorityClass};
use sluice_api::ray::{RayCluster, RayJob, RayService, names};
use sluice_engine::cluster_state::{Object, WatchedKind, strip_and_wrap};
use sluice_jobframework::batch_job::JOB_NAME_LABEL;

/// Error of listing the objects of one kind.
#[derive(Debug, Error)]
#[error("listing {kind} objects: {source}")]
pub struct ListError {
    /// Kind of the objects.
    kind: String,
    /// Cause.
    source: Box<kube::Error>,
}

/// Lists the objects of every kind that decisions on quota and upgrades depend on, in all
/// namespaces.
///
/// # Errors
/// If the API server can't be reached, or refuses to list one of the kinds.
pub async fn list_objects(client: &Client) -> Result<Vec<Object>, ListError> {
    let mut objects = Vec::new();
    list::<ClusterQueue>(client, None, &mut objects).await?;
    list::<Cohort>(client, None, &mut objects).await?;
    list::<ResourceFlavor>(client, None, &mut objects).await?;
    list::<LocalQueue>(client, None, &mut objects).await?;
    list::<Workload>(client, None, &mut objects).await?;
    list::<WorkloadPriorityClass>(client, None, &mut objects).await?;
    list::<PriorityClass>(client, None, &mut objects).await?;
    list::<Namespace>(client, None, &mut objects).await?;
    list::<LimitRange>(client, None, &mut objects).await?;
    list::<RuntimeClass>(client, None, &mut objects).await?;
    list::<RayService>(client, None, &mut objects).await?;
    list::<RayCluster>(client, None, &mut objects).await?;
    list::<RayJob>(client, None, &mut objects).await?;
    list::<BatchJob>(client, None, &mut objects).await?;
    list::<Pod>(client, Some(names::CLUSTER_LABEL), &mut objects).await?;
    list::<Pod>(client, Some(JOB_NAME_LABEL), &mut objects).await?;
    list::<Service>(client, None, &mut objects).await?;
    list::<ControllerRevision>(client, Some(names::CLUSTER_LABEL), &mut objects).await?;
    Ok(objects)
}

async fn list<K: WatchedKind>(
    client: &Client,
    label: Option<&str>,
    objects: &mut Vec<Object>,
) -> Result<(), ListError> {
    let params = label.map_or_else(ListParams::default, |label| ListParams::default().labels(label));
    match Api::<K>::all(client.clone()).list(&params).await {
        Ok(listed) => objects.extend(listed.items.into_iter().map(strip_and_wrap)),
        // Where only Jobs are queued, the CRDs of Ray may be missing; then there are no such objects.
        Err(kube::Error::Api(status)) if status.code == 404 && K::group(&()) == RayCluster::group(&()) => {}
        Err(source) => return Err(ListError { kind: K::kind(&()).into_owned(), source: Box::new(source) }),
    }
    Ok(())
}
