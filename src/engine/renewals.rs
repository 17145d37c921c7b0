//! Clusters whose pods are recreated (`upgradeStrategy: Recreate`), and the revisions of their
//! specs.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;

use super::Engine;
use super::planners::is_standalone;
use super::specs::Makeup;
use super::world::owned_by;
use sluice_api::ray::RayCluster;
use sluice_jobframework::managed::Managed;
use sluice_jobframework::ray_cluster::Renewal;
use sluice_jobframework::{Groups, slices};
use sluice_plan::ObjectKey;
use sluice_raycluster::Task;
use sluice_raycluster::revision::{self, History, Name, Stand};

/// Revisions of a cluster's pods during a recreation.
pub(super) struct Footing {
    /// Revision for which the cluster requests quota.
    pub(super) wanted: Name,
    /// The cluster with the spec of that revision, if the current spec differs and has no revision
    /// yet.
    wanted_as: Option<RayCluster>,
    /// Earlier revision of the existing pods; `None` if they have the desired revision.
    pub(super) old: Option<Old>,
    /// The cluster has no stored revision yet, so that of its pods is unknown.
    unknown: bool,
}

/// An earlier revision that still has pods.
pub(super) struct Old {
    /// Name of the revision.
    pub(super) name: Name,
    /// The cluster with the spec of that revision; `None` if the revision is not stored.
    pub(super) cluster: Option<RayCluster>,
    /// The pods of this revision are deleted to make room for the desired one.
    pub(super) stops: bool,
}

impl Footing {
    /// Returns the revision whose pods exist or are created: the old one while its pods exist, else
    /// the desired one.
    pub(super) fn revision(&self) -> &Name {
        self.old.as_ref().map_or(&self.wanted, |old| &old.name)
    }

    /// Returns the cluster by whose earlier spec the pods are reconciled, until the current spec
    /// has quota and a stored revision; `None` to reconcile by the current spec.
    pub(super) fn looked_after_as(&self) -> Option<&RayCluster> {
        match &self.old {
            Some(old) if !old.stops => old.cluster.as_ref(),
            Some(_) => None,
            None => self.wanted_as.as_ref(),
        }
    }

    /// Returns the pod policy for the operator.
    pub(super) fn task(&self) -> Task {
        match &self.old {
            Some(old) if old.stops => Task::Renew(self.wanted.clone()),
            Some(old) if old.cluster.is_none() => Task::Rest,
            None if self.unknown => Task::Rest,
            _ => Task::Run,
        }
    }
}

impl Engine {
    /// Returns the revisions of a cluster's pods. A cluster owned by a RayService or RayJob has
    /// only one: its owner creates a new cluster instead.
    pub(super) fn footing(&self, cluster: &RayCluster) -> Footing {
        let without_old = |wanted, wanted_as, unknown| Footing { wanted, wanted_as, old: None, unknown };
        if !self.halves.ray_operator || !is_standalone(cluster) {
            return without_old(None, None, false);
        }
        let history = self.history(cluster);
        let makeup = self.specs.makeup(&ObjectKey::of(cluster));
        let is_stored = makeup.is_some_and(|makeup| history.has(cluster, &makeup.essence));
        let with_spec_of = |name: &Name| if is_stored { None } else { history.in_effect(cluster, name) };
        let uid = cluster.metadata.uid.as_deref().unwrap_or_default();
        let slices = slices::slices_of(self.workloads_of(uid));
        let covering = slices::covering(&slices);
        let covered = covering.and_then(|slice| slice.record.members.first());
        let pods = self.all_pods(uid);
        // Gated pods of an old revision also block the new one.
        let pods = pods.seen.into_iter().chain(self.arriving.made(uid));
        match history.stand(pods, covered.map(|share| revision::of_share(&share.uid).1)) {
            Stand::Whole(wanted) => {
                let wanted_as = with_spec_of(&wanted);
                without_old(wanted, wanted_as, history.is_empty())
            }
            Stand::Renewing { old, new } => {
                // Old pods stop only once a slice grants their quota to the new revision.
                let (of_old, of_new) = (revision::share(uid, &old), revision::share(uid, &new));
                let is_replaced = covering.is_some_and(|slice| {
                    slice.record.instead_of.iter().any(|displaced| displaced.uid == of_old && displaced.by == of_new)
                });
                let stops = is_replaced || self.managed_cluster(cluster) == Managed::No;
                let in_effect = history.in_effect(cluster, &old);
                let wanted_as = with_spec_of(&new);
                let old = Old { name: old, cluster: in_effect, stops };
                Footing { wanted: new, wanted_as, old: Some(old), unknown: false }
            }
        }
    }

    /// Returns the stored revisions of a cluster.
    pub(super) fn history(&self, cluster: &RayCluster) -> History<'_> {
        let uid = cluster.metadata.uid.as_deref().unwrap_or_default();
        let objects = self.world.controller_revisions.under(&owned_by(uid)).map(AsRef::as_ref);
        History::of(objects.filter_map(|object| Some((object, self.specs.revision(&ObjectKey::of(object))?))))
    }

    /// Returns the quota demand of the old revision; `None` if all pods have the desired revision.
    pub(super) fn renewal(&self, cluster: &RayCluster, footing: &Footing) -> Option<Renewal> {
        let old = footing.old.as_ref()?;
        let uid = cluster.metadata.uid.as_deref().unwrap_or_default();
        Some(Renewal { groups: self.wants_of_old(old), share: revision::share(uid, &old.name), stops: old.stops })
    }

    /// Returns the pod groups of the desired revision.
    pub(super) fn wants_on(&self, cluster: &RayCluster, footing: &Footing) -> Arc<Groups> {
        match &footing.wanted_as {
            Some(earlier) => Makeup::of(earlier, self.halves.ray_operator).wanted,
            None => self.wants(cluster),
        }
    }

    /// Returns the pod groups of an old revision. They are empty if the revision is not stored: its
    /// pods then count by their own requests.
    fn wants_of_old(&self, old: &Old) -> Arc<Groups> {
        let makeup = old.cluster.as_ref().map(|cluster| Makeup::of(cluster, self.halves.ray_operator));
        makeup.map_or_else(|| Arc::new(Ok(Vec::new())), |makeup| makeup.wanted)
    }
}

/// Returns the member uid of a pod: that of its cluster, with its revision if the cluster is
/// standalone.
pub(super) fn share_of_pod(cluster_uid: &str, pod: &Pod) -> String {
    revision::share(cluster_uid, &revision::of_pod(pod))
}
