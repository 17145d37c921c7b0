//! The watches of a run, merged into one stream.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::Sender;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::api::{ApiClient, Change, present_version, watch};
use crate::error::LoadError;
use crate::observed::{ObservedJob, ObservedMeta, ObservedRayCluster, ObservedWorkload, Watched};
use crate::plan::LoadPlan;
use crate::scenario::Kind;

/// Something that happened, with its time since the start of the run.
#[derive(Debug)]
pub(super) enum Observation {
    /// The API server has accepted an object.
    Created {
        /// Place of the object in the plan.
        item: usize,
        /// Time at which the request was sent.
        sent: Duration,
        /// Time of the answer.
        at: Duration,
    },
    /// A Workload was created or changed.
    Workload(ObservedWorkload, Duration),
    /// A Workload was deleted.
    WorkloadDeleted(ObservedMeta, Duration),
    /// A Job or RayCluster was created or changed.
    Gate {
        /// Its kind.
        kind: Kind,
        /// Its identity.
        metadata: ObservedMeta,
        /// True if it counts as admitted.
        is_open: bool,
        /// Time of the observation.
        at: Duration,
    },
    /// All writes of a run without a manager are answered.
    AllWritten,
}

/// Running watches. Dropping the value stops them.
pub(super) struct Feeds {
    _tasks: JoinSet<()>,
}

impl Feeds {
    /// Watches all Workloads, and the Jobs and RayClusters if the plan has any.
    ///
    /// # Errors
    /// If the API server doesn't answer.
    pub(super) async fn start(
        plan: &Arc<LoadPlan>,
        client: &ApiClient,
        observations: &Sender<Result<Observation, LoadError>>,
        started: Instant,
    ) -> Result<Self, LoadError> {
        let mut tasks = JoinSet::new();
        let feed = Feed { client: client.clone(), observations: observations.clone(), started };
        tasks.spawn(feed.clone().forward(present_version::<ObservedWorkload>(client).await?, workload_change));
        for kind in plan.kinds() {
            let feed = feed.clone();
            match kind {
                Kind::Workload => {}
                Kind::Job => {
                    tasks.spawn(feed.forward(present_version::<ObservedJob>(client).await?, job_change));
                }
                Kind::RayCluster => {
                    let version = present_version::<ObservedRayCluster>(client).await?;
                    tasks.spawn(feed.forward(version, ray_cluster_change));
                }
            }
        }
        Ok(Self { _tasks: tasks })
    }
}

#[derive(Clone)]
struct Feed {
    client: ApiClient,
    observations: Sender<Result<Observation, LoadError>>,
    started: Instant,
}

impl Feed {
    async fn forward<K: Watched>(self, version: String, observation: fn(Change<K>, Duration) -> Observation) {
        let observed = |change| observation(change, self.started.elapsed());
        if let Err(error) = watch(self.client.clone(), version, observed, &self.observations).await {
            // The run has ended if no one receives it.
            let _ = self.observations.send(Err(error.into())).await;
        }
    }
}

fn workload_change(change: Change<ObservedWorkload>, at: Duration) -> Observation {
    match change {
        Change::Applied(workload) => Observation::Workload(workload, at),
        Change::Deleted(workload) => Observation::WorkloadDeleted(workload.metadata, at),
    }
}

fn job_change(change: Change<ObservedJob>, at: Duration) -> Observation {
    let (metadata, is_open) = match change {
        Change::Applied(job) => (job.metadata, !job.spec.suspend),
        Change::Deleted(job) => (job.metadata, false),
    };
    Observation::Gate { kind: Kind::Job, metadata, is_open, at }
}

fn ray_cluster_change(change: Change<ObservedRayCluster>, at: Duration) -> Observation {
    let (metadata, is_open) = match change {
        Change::Applied(cluster) => (cluster.metadata, cluster.status.state.as_deref() == Some("ready")),
        Change::Deleted(cluster) => (cluster.metadata, false),
    };
    Observation::Gate { kind: Kind::RayCluster, metadata, is_open, at }
}
