//! Clusters whose pods are recreated (`upgradeStrategy: Recreate`), and the revisions of their
//! specs.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;

use super::Engine;
use super::cluster_state::owner_key;
use super::owners::is_standalone;
use super::spec_cache::ClusterSpecInfo;
use sluice_api::ray::RayCluster;
use sluice_jobframework::ray_cluster::Recreation;
use sluice_jobframework::{PodGroupDemands, slices};
use sluice_plan::ObjectKey;
use sluice_raycluster::PodPolicy;
use sluice_raycluster::revision::{self, History, RevisionName, RevisionState};

/// Revisions of a cluster's pods during a recreation.
pub(super) struct RecreateState {
    /// Revision for which the cluster requests quota.
    pub(super) desired_revision: RevisionName,
    /// The cluster with the spec of that revision, if the current spec differs and has no revision
    /// yet.
    desired_cluster: Option<RayCluster>,
    /// Earlier revision of the existing pods; `None` if they have the desired revision.
    pub(super) old_revision: Option<OldRevision>,
    /// The cluster has no stored revision yet, so that of its pods is unknown.
    is_revision_unknown: bool,
}

/// An earlier revision that still has pods.
pub(super) struct OldRevision {
    /// Name of the revision.
    pub(super) name: RevisionName,
    /// The cluster with the spec of that revision; `None` if the revision is not stored.
    pub(super) cluster: Option<RayCluster>,
    /// The pods of this revision are deleted to make room for the desired one.
    pub(super) is_stopping: bool,
}

impl RecreateState {
    /// Returns the revision whose pods exist or are created: the old one while its pods exist, else
    /// the desired one.
    pub(super) fn current_revision(&self) -> &RevisionName {
        self.old_revision.as_ref().map_or(&self.desired_revision, |old| &old.name)
    }

    /// Returns the cluster by whose earlier spec the pods are reconciled, until the current spec
    /// has quota and a stored revision; `None` to reconcile by the current spec.
    pub(super) fn effective_cluster(&self) -> Option<&RayCluster> {
        match &self.old_revision {
            Some(old) if !old.is_stopping => old.cluster.as_ref(),
            Some(_) => None,
            None => self.desired_cluster.as_ref(),
        }
    }

    /// Returns the pod policy for the operator.
    pub(super) fn pod_policy(&self) -> PodPolicy {
        match &self.old_revision {
            Some(old) if old.is_stopping => PodPolicy::Recreate(self.desired_revision.clone()),
            Some(old) if old.cluster.is_none() => PodPolicy::Freeze,
            None if self.is_revision_unknown => PodPolicy::Freeze,
            _ => PodPolicy::Reconcile,
        }
    }
}

impl Engine {
    /// Returns the revisions of a cluster's pods. A cluster owned by a RayService or RayJob has
    /// only one: its owner creates a new cluster instead.
    pub(super) fn recreate_state(&self, cluster: &RayCluster) -> RecreateState {
        let without_old = |wanted, wanted_as, unknown| RecreateState {
            desired_revision: wanted,
            desired_cluster: wanted_as,
            old_revision: None,
            is_revision_unknown: unknown,
        };
        if !self.components.ray_operator || !is_standalone(cluster) {
            return without_old(RevisionName::Initial, None, false);
        }
        let history = self.revision_history(cluster);
        let spec_info = self.spec_cache.cluster_info(&ObjectKey::of(cluster));
        let is_stored = spec_info.is_some_and(|spec_info| history.is_current(cluster, &spec_info.pod_affecting_spec));
        let with_spec_of =
            |name: &RevisionName| if is_stored { None } else { history.effective_cluster(cluster, name) };
        let uid = cluster.metadata.uid.as_deref().unwrap_or_default();
        let slices = slices::slices_of(self.workloads_of(uid));
        let covering = slices::covering(&slices);
        let covered = covering.and_then(|slice| slice.record.members.first());
        let pods = self.observed_and_expected_pods(uid);
        // Gated pods of an old revision also block the new one.
        let pods = pods.observed.into_iter().chain(self.writes.expected_pods(uid));
        match history.state(pods, covered.map(|share| revision::parse_member_uid(&share.uid).1)) {
            RevisionState::Current(wanted) => {
                let wanted_as = with_spec_of(&wanted);
                without_old(wanted, wanted_as, history.is_empty())
            }
            RevisionState::Recreating { old, new } => {
                // Old pods stop only once a slice grants their quota to the new revision.
                let (of_old, of_new) = (revision::member_uid(uid, &old), revision::member_uid(uid, &new));
                let is_replaced = covering.is_some_and(|slice| {
                    slice
                        .record
                        .displaces
                        .iter()
                        .any(|displaced| displaced.uid == of_old && displaced.replaced_by == of_new)
                });
                let stops = is_replaced || !self.managed_cluster(cluster).needs_quota();
                let in_effect = history.effective_cluster(cluster, &old);
                let wanted_as = with_spec_of(&new);
                let old = OldRevision { name: old, cluster: in_effect, is_stopping: stops };
                RecreateState {
                    desired_revision: new,
                    desired_cluster: wanted_as,
                    old_revision: Some(old),
                    is_revision_unknown: false,
                }
            }
        }
    }

    /// Returns the stored revisions of a cluster.
    pub(super) fn revision_history(&self, cluster: &RayCluster) -> History<'_> {
        let uid = cluster.metadata.uid.as_deref().unwrap_or_default();
        let objects = self.cluster_state.controller_revisions.by_index(&owner_key(uid)).map(AsRef::as_ref);
        History::of(
            objects.filter_map(|object| Some((object, self.spec_cache.revision_content(&ObjectKey::of(object))?))),
        )
    }

    /// Returns the quota demand of the old revision; `None` if all pods have the desired revision.
    pub(super) fn recreation(&self, cluster: &RayCluster, state: &RecreateState) -> Option<Recreation> {
        let old = state.old_revision.as_ref()?;
        let uid = cluster.metadata.uid.as_deref().unwrap_or_default();
        Some(Recreation {
            groups: self.old_revision_groups(old),
            member_uid: revision::member_uid(uid, &old.name),
            is_stopping: old.is_stopping,
        })
    }

    /// Returns the pod groups of the desired revision.
    pub(super) fn desired_groups(&self, cluster: &RayCluster, state: &RecreateState) -> Arc<PodGroupDemands> {
        match &state.desired_cluster {
            Some(earlier) => ClusterSpecInfo::from_cluster(earlier, self.components.ray_operator).quota_groups,
            None => self.spec_groups(cluster),
        }
    }

    /// Returns the pod groups of an old revision. They are empty if the revision is not stored: its
    /// pods then count by their own requests.
    fn old_revision_groups(&self, old: &OldRevision) -> Arc<PodGroupDemands> {
        let spec_info =
            old.cluster.as_ref().map(|cluster| ClusterSpecInfo::from_cluster(cluster, self.components.ray_operator));
        spec_info.map_or_else(|| Arc::new(Ok(Vec::new())), |spec_info| spec_info.quota_groups)
    }
}

/// Returns the member uid of a pod: that of its cluster, with its revision if the cluster is
/// standalone.
pub(super) fn member_uid_of_pod(cluster_uid: &str, pod: &Pod) -> String {
    revision::member_uid(cluster_uid, &revision::pod_revision(pod))
}
