//! Copy of the cluster state on which the upgrade strategies are tried.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;

use super::PlanError;
use super::least::{Amounts, Place, least};
use super::outcome::{Outcome, usage, usage_by_job};
use super::timeline::Cluster;
use crate::apply::applied;
use crate::rehearsal::{Policy, Rehearsal};
use crate::remedies::QuotaChange;
use crate::snapshot::{Snapshot, reference_of};
use sluice_api::kueue::ClusterQueue;
use sluice_api::quantity::Amount;
use sluice_api::ray::{RayCluster, RayService};
use sluice_engine::world::Object;
use sluice_engine::{Engine, Sight};
use sluice_plan::ObjectRef;

/// State before the upgrade, at a fixpoint, with the manifests applied except the RayService.
#[derive(Debug, Clone)]
pub(super) struct Stage<'a> {
    snapshot: Snapshot,
    policy: &'a Policy,
    now: Timestamp,
    service: ObjectRef,
    /// True if the existing RayService is deleted before the new one is created.
    is_anew: bool,
}

impl<'a> Stage<'a> {
    /// Applies the manifests except the RayService, which is returned with the manifest applied.
    ///
    /// # Errors
    /// If a manifest is invalid, there isn't exactly one RayService, or the dry run doesn't
    /// converge.
    pub(super) fn of(
        snapshot: &Snapshot,
        manifests: Vec<Value>,
        policy: &'a Policy,
        now: Timestamp,
    ) -> Result<(Self, RayService), PlanError> {
        let mut rehearsal = Rehearsal::of(snapshot, policy, now);
        let mut services = Vec::new();
        for manifest in manifests {
            let reference = reference_of(&manifest).map_err(PlanError::Manifest)?;
            let invalid = |problem: String| PlanError::Manifest(format!("{reference}: {problem}"));
            match applied(snapshot.get(&reference), manifest).map_err(invalid)? {
                Some(Object::RayService(service)) => services.push(service.as_ref().clone()),
                Some(other) => rehearsal.put(&other),
                None => {}
            }
        }
        let one = <[RayService; 1]>::try_from(services);
        let [service] = one.map_err(|all| {
            PlanError::Manifest(format!("expected exactly one RayService in the manifest, found {}", all.len()))
        })?;
        rehearsal.rest(|_| ())?;
        let stage =
            Self { snapshot: rehearsal.snapshot(), policy, now, service: ObjectRef::of(&service), is_anew: false };
        Ok((stage, service))
    }

    /// Returns the reference to the RayService.
    pub(super) fn service(&self) -> &ObjectRef {
        &self.service
    }

    /// Returns the active cluster; None if there is none.
    ///
    /// # Errors
    /// If the dry run doesn't converge.
    pub(super) fn serving(&self) -> Result<Option<Cluster>, PlanError> {
        let mut rehearsal = Rehearsal::of(&self.snapshot, self.policy, self.now);
        rehearsal.rest(|_| ())?;
        let see = |sight: Sight<'_>| sight.job.members().into_iter().find(|member| !member.surge && !member.going);
        let Some(member) = rehearsal.engine().look(&self.service, see).flatten() else { return Ok(None) };
        let cluster = ObjectRef::named::<RayCluster>(self.service.namespace.clone(), member.name);
        Ok(match (self.snapshot.get(&self.service), self.snapshot.get(&cluster)) {
            (Some(Object::RayService(service)), Some(Object::RayCluster(cluster))) => {
                Some(Cluster::of(service, Some(cluster.as_ref().clone())))
            }
            _ => None,
        })
    }

    /// Returns a copy in which the RayService is deleted before the new one is created.
    pub(super) fn anew(&self) -> Self {
        Self { is_anew: true, ..self.clone() }
    }

    /// Applies the RayService `to` in a dry run; with `quota` as the nominal quota of the named
    /// ClusterQueue, or with the current quota if None.
    ///
    /// # Errors
    /// If the dry run doesn't converge.
    pub(super) fn rehearse(&self, to: &RayService, quota: Option<(&str, &Amounts)>) -> Result<Outcome, PlanError> {
        let mut rehearsal = Rehearsal::of(&self.snapshot, self.policy, self.now);
        if let Some(queue) = quota.and_then(|(queue, quota)| Some(with_quota(self.cluster_queue(queue)?, quota))) {
            rehearsal.put(&queue);
        }
        rehearsal.rest(|_| ())?;
        let before = usage_by_job(rehearsal.engine().world());
        let members_before = self.members(rehearsal.engine());
        let mut peak = Amounts::new();
        let mut see = |engine: &Engine| {
            let used = engine.look(&self.service, |sight| usage(sight.workloads));
            for (place, amount) in used.unwrap_or_default() {
                let highest = peak.entry(place).or_default();
                *highest = amount.max(*highest);
            }
        };
        see(rehearsal.engine());
        if self.is_anew {
            rehearsal.forget(&self.service);
        }
        rehearsal.put(&Object::RayService(Arc::new(to.clone())));
        rehearsal.rest(see)?;
        Ok(Outcome::of(rehearsal.engine(), &self.service, &members_before, &before, peak))
    }

    /// Returns the minimum quota with which the upgrade to `to` fits; None if no quota is
    /// sufficient.
    ///
    /// # Errors
    /// If a dry run doesn't converge.
    pub(super) fn least_quota(&self, to: &RayService, outcome: &Outcome) -> Result<Option<Amounts>, PlanError> {
        let name = if outcome.is_about_quota { outcome.cluster_queue.as_deref() } else { None };
        let Some((name, queue)) = name.and_then(|name| Some((name, self.cluster_queue(name)?))) else {
            return Ok(None);
        };
        least(&nominal(queue), |quota| Ok(self.rehearse(to, Some((name, quota)))?.tried()))
    }

    /// Returns the change of each nominal quota of `queue` to that of `quota`.
    pub(super) fn changes(&self, queue: &str, quota: &Amounts) -> Vec<QuotaChange> {
        let current = self.cluster_queue(queue).map(nominal).unwrap_or_default();
        let changes = quota.iter().map(|(place, to)| QuotaChange {
            cluster_queue: queue.to_owned(),
            flavor: place.flavor.clone(),
            resource: place.resource.clone(),
            from: current.get(place).copied().unwrap_or_default().display(&place.resource).to_string(),
            to: to.display(&place.resource).to_string(),
        });
        changes.collect()
    }

    fn cluster_queue(&self, name: &str) -> Option<&ClusterQueue> {
        match self.snapshot.get(&ObjectRef::named::<ClusterQueue>(None, name.to_owned()))? {
            Object::ClusterQueue(queue) => Some(queue),
            _ => None,
        }
    }

    /// Returns the uids of the RayClusters of the RayService.
    fn members(&self, engine: &Engine) -> BTreeSet<String> {
        let uids =
            engine.look(&self.service, |sight| sight.job.members().into_iter().map(|member| member.uid).collect());
        uids.unwrap_or_default()
    }
}

/// Returns the nominal quota of a ClusterQueue.
fn nominal(queue: &ClusterQueue) -> Amounts {
    let flavors = queue.spec.resource_groups.iter().flat_map(|group| &group.flavors);
    let quotas = flavors.flat_map(|flavor| flavor.resources.iter().map(|resource| (flavor.name.clone(), resource)));
    let amounts = quotas.map(|(flavor, quota)| {
        let amount = Amount::of(&quota.name, &quota.nominal_quota).unwrap_or_default();
        (Place { flavor, resource: quota.name.clone() }, amount)
    });
    amounts.collect()
}

/// Returns the ClusterQueue with the nominal quota of `quota`; entries that it doesn't name are
/// kept.
fn with_quota(queue: &ClusterQueue, quota: &Amounts) -> Object {
    let mut queue = queue.clone();
    for flavor in queue.spec.resource_groups.iter_mut().flat_map(|group| &mut group.flavors) {
        for resource in &mut flavor.resources {
            let place = Place { flavor: flavor.name.clone(), resource: resource.name.clone() };
            if let Some(amount) = quota.get(&place) {
                resource.nominal_quota = amount.quantity(&resource.name);
            }
        }
    }
    Object::ClusterQueue(Arc::new(queue))
}
