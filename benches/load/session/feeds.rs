//! The watches of a run, merged into one stream.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::Sender;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::api::{ApiClient, Change, present_version, watch};
use crate::error::LoadError;
use crate::observed::{ObservedJob, ObservedMeta, ObservedRayCluster, ObservedRayService, ObservedWorkload, Watched};
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
    /// A Job, RayCluster or RayService was created or changed.
    Gate {
        /// Its kind; `Upgrade` for a RayService whose spec is upgraded.
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
    /// Watches all Workloads, and the Jobs, RayClusters and RayServices if the plan has any.
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
                // The watch of RayServices shows their upgrades.
                Kind::Upgrade => {}
                Kind::RayService => {
                    let version = present_version::<ObservedRayService>(client).await?;
                    let mut first_clusters = HashMap::new();
                    tasks.spawn(
                        feed.forward(version, move |change, at| ray_service_change(&mut first_clusters, change, at)),
                    );
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
    async fn forward<K: Watched>(
        self,
        version: String,
        mut observation: impl FnMut(Change<K>, Duration) -> Observation + Send,
    ) {
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

/// Returns the observation of a RayService. `first_clusters` has the RayCluster that served each
/// before its upgrade: the upgrade is complete once another one serves.
fn ray_service_change(
    first_clusters: &mut HashMap<String, String>,
    change: Change<ObservedRayService>,
    at: Duration,
) -> Observation {
    let service = match change {
        Change::Applied(service) => service,
        Change::Deleted(service) => {
            return Observation::Gate { kind: Kind::RayService, metadata: service.metadata, is_open: false, at };
        }
    };
    let (serving, key) = (service.serving_cluster(), service.metadata.key());
    let (kind, is_open) = if service.is_upgraded() {
        (Kind::Upgrade, serving.is_some_and(|serving| first_clusters.get(&key).is_some_and(|first| first != serving)))
    } else {
        if let Some(serving) = serving {
            first_clusters.insert(key, serving.to_owned());
        }
        (Kind::RayService, serving.is_some())
    };
    Observation::Gate { kind, metadata: service.metadata, is_open, at }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::objects::UPGRADED_RAY_VERSION;

    fn service(version: &str, active: &str, ready: &str, upgrading: &str) -> Change<ObservedRayService> {
        let condition = |type_: &str, status: &str| json!({"type": type_, "status": status, "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:05Z"});
        let object = json!({
            "metadata": {"namespace": "ns", "name": "s", "resourceVersion": "7"},
            "spec": {"rayClusterConfig": {"rayVersion": version}},
            "status": {
                "activeServiceStatus": {"rayClusterName": active},
                "conditions": [condition("Ready", ready), condition("UpgradeInProgress", upgrading)],
            },
        });
        Change::Applied(serde_json::from_value(object).expect("a RayService"))
    }

    #[test]
    fn upgrade_is_complete_once_another_cluster_serves() {
        let mut first = HashMap::new();
        let mut observe = |change| match ray_service_change(&mut first, change, Duration::ZERO) {
            Observation::Gate { kind, is_open, .. } => (kind, is_open),
            other => panic!("{other:?}"),
        };

        assert_eq!(observe(service("2.52.0", "", "False", "False")), (Kind::RayService, false));
        assert_eq!(observe(service("2.52.0", "a", "True", "False")), (Kind::RayService, true));
        // The status is still that of the old spec, then both clusters exist, then only the new one.
        assert_eq!(observe(service(UPGRADED_RAY_VERSION, "a", "True", "False")), (Kind::Upgrade, false));
        assert_eq!(observe(service(UPGRADED_RAY_VERSION, "b", "True", "True")), (Kind::Upgrade, false));
        assert_eq!(observe(service(UPGRADED_RAY_VERSION, "b", "True", "False")), (Kind::Upgrade, true));
    }
}
