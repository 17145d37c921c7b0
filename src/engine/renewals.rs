//! Clusters whose pods are made anew (`upgradeStrategy: Recreate`), and what is kept of what their pods are made from.

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

/// What a cluster's pods are made from, and what becomes of them.
pub(super) struct Footing {
    /// The revision that its quota is to be held for.
    pub(super) wanted: Name,
    /// The cluster as it is in that revision, if its spec has changed since and there is none of that yet.
    wanted_as: Option<RayCluster>,
    /// The revision that its pods are of, if that is an earlier one.
    pub(super) old: Option<Old>,
    /// Whether it isn't known yet what its pods are made from.
    unknown: bool,
}

/// An earlier revision that pods are of.
pub(super) struct Old {
    pub(super) name: Name,
    /// The cluster as it was in that revision, if that is kept.
    pub(super) cluster: Option<RayCluster>,
    /// Whether its pods make place for those that are wanted.
    pub(super) stops: bool,
}

impl Footing {
    /// Whose pods run or are made: of the revision that is wanted, unless those of an earlier one are there.
    pub(super) fn revision(&self) -> &Name {
        self.old.as_ref().map_or(&self.wanted, |old| &old.name)
    }

    /// The cluster as it was before its last edit, if what runs is to be looked after as that: until there is quota for what it is to be
    /// now, or at least it is kept what that is.
    pub(super) fn looked_after_as(&self) -> Option<&RayCluster> {
        match &self.old {
            Some(old) if !old.stops => old.cluster.as_ref(),
            Some(_) => None,
            None => self.wanted_as.as_ref(),
        }
    }

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
    /// What a cluster's pods are made from. One that belongs to a service or a job has only ever one revision: whoever it belongs to
    /// makes another cluster instead.
    pub(super) fn footing(&self, cluster: &RayCluster) -> Footing {
        let whole = |wanted, wanted_as, unknown| Footing { wanted, wanted_as, old: None, unknown };
        if !self.halves.ray_operator || !is_standalone(cluster) {
            return whole(None, None, false);
        }
        let history = self.history(cluster);
        let makeup = self.specs.makeup(&ObjectKey::of(cluster));
        let is_kept = makeup.is_some_and(|makeup| history.has(cluster, &makeup.essence));
        let as_in = |name: &Name| history.in_effect(cluster, name).filter(|_| !is_kept);
        let uid = cluster.metadata.uid.as_deref().unwrap_or_default();
        let slices = slices::slices_of(self.workloads_of(uid));
        let covering = slices::covering(&slices);
        let paid = covering.and_then(|slice| slice.record.members.first());
        let pods = self.all_pods(uid);
        // Those that wait behind a gate are as much in the way.
        let pods = pods.seen.into_iter().chain(self.arriving.made(uid));
        match history.stand(pods, paid.map(|share| revision::of_share(&share.uid).1)) {
            Stand::Whole(wanted) => {
                let wanted_as = as_in(&wanted);
                whole(wanted, wanted_as, history.is_empty())
            }
            Stand::Renewing { old, new } => {
                let (of_old, of_new) = (revision::share(uid, &old), revision::share(uid, &new));
                let takes_place = covering.is_some_and(|slice| {
                    slice.record.instead_of.iter().any(|displaced| displaced.uid == of_old && displaced.by == of_new)
                });
                let stops = takes_place || self.managed_cluster(cluster) == Managed::No;
                let in_effect = history.in_effect(cluster, &old);
                let wanted_as = as_in(&new);
                let old = Old { name: old, cluster: in_effect, stops };
                Footing { wanted: new, wanted_as, old: Some(old), unknown: false }
            }
        }
    }

    /// The revisions of a cluster that are kept.
    pub(super) fn history(&self, cluster: &RayCluster) -> History<'_> {
        let uid = cluster.metadata.uid.as_deref().unwrap_or_default();
        let objects = self.world.controller_revisions.under(&owned_by(uid)).map(AsRef::as_ref);
        History::of(objects.filter_map(|object| Some((object, self.specs.revision(&ObjectKey::of(object))?))))
    }

    /// What a footing means for the quota of a cluster.
    pub(super) fn renewal(&self, cluster: &RayCluster, footing: &Footing) -> Option<Renewal> {
        let old = footing.old.as_ref()?;
        let uid = cluster.metadata.uid.as_deref().unwrap_or_default();
        Some(Renewal { groups: self.wants_of_old(old), share: revision::share(uid, &old.name), stops: old.stops })
    }

    /// The groups of pods of the revision that is wanted.
    pub(super) fn wants_on(&self, cluster: &RayCluster, footing: &Footing) -> Arc<Groups> {
        match &footing.wanted_as {
            Some(earlier) => Makeup::of(earlier, self.halves.ray_operator).wanted,
            None => self.wants(cluster),
        }
    }

    /// The groups of pods of an earlier revision. If that isn't known, its pods are counted as what they are.
    fn wants_of_old(&self, old: &Old) -> Arc<Groups> {
        let makeup = old.cluster.as_ref().map(|cluster| Makeup::of(cluster, self.halves.ray_operator));
        makeup.map_or_else(|| Arc::new(Ok(Vec::new())), |makeup| makeup.wanted)
    }
}

/// The revision that a pod was made from, if it is a pod of a cluster of its own.
pub(super) fn share_of_pod(cluster_uid: &str, pod: &Pod) -> String {
    revision::share(cluster_uid, &revision::of_pod(pod))
}
