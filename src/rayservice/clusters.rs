//! Role of each RayCluster of a RayService. It is derived from the status and, where the status
//! lags behind, from the objects themselves, so that a status update lost in a crash is recovered.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube_core::ResourceExt;

use super::serve_observation::ServeObservation;
use super::spec_hash::{self, SpecMatch};
use super::upgrade::{ClusterRole, StandbyCluster};
use super::{ObservedService, incremental, services};
use sluice_api::condition;
use sluice_api::pod;
use sluice_api::ray::{RayCluster, RayClusterSpec, RayService, RayServiceStatus, names};
use sluice_plan::ServeStatus;

/// RayClusters of a RayService that are not terminating.
pub(super) struct ServiceClusters<'a> {
    /// Active cluster; None until one has served.
    pub(super) active: Option<ServiceCluster<'a>>,
    /// All other clusters, oldest first.
    pub(super) inactive: Vec<ServiceCluster<'a>>,
}

impl<'a> ServiceClusters<'a> {
    pub(super) fn from_observed(observed: &ObservedService<'a>) -> Self {
        let mut others: Vec<ServiceCluster<'a>> = observed
            .clusters
            .iter()
            .filter(|child| !is_terminating(child))
            .map(|child| ServiceCluster::from_observed(observed, child))
            .collect();
        others.sort_by_key(|child| (child.created_at(), child.name()));
        let active = Self::find_active_index(observed, &others).map(|index| others.remove(index));
        Self { active, inactive: others }
    }

    /// Returns the index of the active cluster: the one that the serve Service selects, whatever
    /// the status reports, because that is where requests go. During an incremental upgrade both
    /// clusters receive requests, so the status and the route decide.
    fn find_active_index(observed: &ObservedService<'a>, children: &[ServiceCluster<'a>]) -> Option<usize> {
        let incremental_active = incremental::effective_options(observed.service)
            .and_then(|_| incremental::find_active_index(observed, children));
        if incremental_active.is_some() {
            return incremental_active;
        }
        let index_of = |name: &str| children.iter().position(|child| child.name() == name);
        let selected = services::selected_cluster_name(observed).and_then(index_of);
        selected.or_else(|| active_cluster_name(observed.service).and_then(index_of))
    }

    /// Returns the inactive clusters, compared with the desired cluster whose hash is `wanted`.
    pub(super) fn standby_clusters(&self, service: &RayService, wanted: &str) -> Vec<StandbyCluster> {
        let spec = &service.spec.ray_cluster_config;
        let rival = |child: &ServiceCluster<'_>| StandbyCluster {
            spec_match: child.compare(spec, wanted),
            role: child.role(service),
        };
        self.inactive.iter().map(rival).collect()
    }
}

/// Returns the name of the active cluster from the status.
pub(super) fn active_cluster_name(service: &RayService) -> Option<&str> {
    cluster_name(service.status.as_ref()?.active_service_status.as_ref())
}

/// Returns the name of the pending cluster from the status.
pub(super) fn pending_cluster_name(service: &RayService) -> Option<&str> {
    cluster_name(service.status.as_ref()?.pending_service_status.as_ref())
}

fn cluster_name(status: Option<&RayServiceStatus>) -> Option<&str> {
    status?.ray_cluster_name.as_deref().filter(|name| !name.is_empty())
}

/// Returns true if the cluster is terminating.
pub(super) fn is_terminating(cluster: &RayCluster) -> bool {
    cluster.metadata.deletion_timestamp.is_some()
}

/// RayCluster of a RayService that is not terminating.
#[derive(Clone, Copy)]
pub(super) struct ServiceCluster<'a> {
    /// The RayCluster.
    pub(super) cluster: &'a RayCluster,
    /// Its head pod; None if there is none or it is terminating.
    pub(super) head_pod: Option<&'a Pod>,
    /// Observed state of Serve on it.
    pub(super) serve: &'a ServeObservation,
}

/// Observation of a cluster whose dashboard was never queried.
static NEVER_OBSERVED: ServeObservation = ServeObservation::never_observed();

impl<'a> ServiceCluster<'a> {
    fn from_observed(observed: &ObservedService<'a>, cluster: &'a RayCluster) -> Self {
        let is_head_of_cluster = |pod: &&Pod| {
            let controlled =
                pod.owner_references().iter().any(|owner| Some(&owner.uid) == cluster.metadata.uid.as_ref());
            controlled && !pod::is_terminating(pod)
        };
        let serve = observed.serve_observations.get(&cluster.name_any()).copied();
        Self {
            cluster,
            head_pod: observed.head_pods.iter().copied().find(is_head_of_cluster),
            serve: serve
                .filter(|observation| observation.is_of_cluster(cluster.metadata.uid.as_deref().unwrap_or_default()))
                .unwrap_or(&NEVER_OBSERVED),
        }
    }

    pub(super) fn name(&self) -> String {
        self.cluster.name_any()
    }

    fn created_at(&self) -> Option<Timestamp> {
        self.cluster.creation_timestamp().map(|time| time.0)
    }

    pub(super) fn compare(&self, spec: &RayClusterSpec, wanted: &str) -> SpecMatch {
        spec_hash::compare(spec, wanted, self.cluster)
    }

    fn role(&self, service: &RayService) -> ClusterRole {
        let name = self.name();
        if pending_cluster_name(service) == Some(name.as_str()) {
            ClusterRole::Pending
        } else if self.has_served(service) {
            ClusterRole::Draining
        } else {
            ClusterRole::New
        }
    }

    /// Returns true if it has served. A replaced cluster is annotated before the status drops its
    /// name.
    pub(super) fn has_served(&self, service: &RayService) -> bool {
        self.delete_after().is_some() || active_cluster_name(service) == Some(self.name().as_str())
    }

    /// Returns the deletion time of a cluster that was replaced; None for any other cluster. A
    /// value that cannot be parsed was tampered with and counts as expired.
    pub(super) fn delete_after(&self) -> Option<Timestamp> {
        let text = self.cluster.annotations().get(names::DELETE_AFTER_ANNOTATION)?;
        Some(text.parse().unwrap_or(Timestamp::MIN))
    }

    /// Returns true if it is suspended and therefore has no pods.
    pub(super) fn is_suspended(&self) -> bool {
        self.cluster.spec.suspend == Some(true)
    }

    /// Returns the time at which its head pod became ready, in whole seconds; None while it is not
    /// ready.
    pub(super) fn head_ready_since(&self) -> Option<Timestamp> {
        let conditions = self.cluster.status.as_ref()?.conditions.as_slice();
        let ready = condition::get_true(conditions, names::HEAD_POD_READY)?;
        Some(ready.last_transition_time.0)
    }

    /// Returns the Serve status reported by its current head pod for the configuration applied
    /// last; None if there is no such report.
    pub(super) fn current_status(&self) -> Option<&'a ServeStatus> {
        self.serve.current_status(self.head_ready_since()?, self.head_uid())
    }

    /// Returns true if its Serve status cannot be queried: the head is not ready or the dashboard
    /// does not respond.
    pub(super) fn is_unreachable(&self) -> bool {
        self.head_ready_since().is_none() || self.serve.is_not_responding()
    }

    /// Returns the UID of its head pod; None if there is none.
    pub(super) fn head_uid(&self) -> Option<&'a str> {
        self.head_pod?.metadata.uid.as_deref()
    }

    /// Returns the hash of the Serve configuration applied last; None if none was applied.
    pub(super) fn applied_config_hash(&self) -> Option<&'a str> {
        let annotated = || self.cluster.annotations().get(names::SERVE_CONFIG_HASH_ANNOTATION).map(String::as_str);
        self.serve.applied_config_hash().or_else(annotated)
    }

    /// Returns true if all applications of this configuration are running.
    pub(super) fn is_running_config(&self, config_hash: &str) -> bool {
        self.applied_config_hash() == Some(config_hash) && self.current_status().is_some_and(ServeStatus::is_running)
    }

    /// Returns true if it has a pod that can receive requests: a ready worker, or a ready head pod
    /// with the serve label.
    pub(super) fn has_serving_pods(&self) -> bool {
        let workers = self.cluster.status.as_ref().and_then(|status| status.ready_worker_replicas).unwrap_or(0);
        let head_serves = self.head_pod.is_some_and(|head| {
            head.labels().get(names::SERVE_LABEL).is_some_and(|serves| serves == "true") && pod::is_ready(head)
        });
        workers > 0 || head_serves
    }
}
