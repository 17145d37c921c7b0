//! The state that ways to upgrade a service are rehearsed on.

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

/// The state before the upgrade, at rest, with all that is applied beside the service.
#[derive(Debug, Clone)]
pub(super) struct Stage<'a> {
    snapshot: Snapshot,
    policy: &'a Policy,
    now: Timestamp,
    service: ObjectRef,
    /// Whether the service that there is goes before the new one comes.
    is_anew: bool,
}

impl<'a> Stage<'a> {
    /// Sets the stage; returns with it the service as it is to be.
    ///
    /// # Errors
    /// When the manifests aren't as they should be, or name not exactly one RayService.
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
            let wrong = |problem: String| PlanError::Manifest(format!("{reference}: {problem}"));
            match applied(snapshot.get(&reference), manifest).map_err(wrong)? {
                Some(Object::RayService(service)) => services.push(service.as_ref().clone()),
                Some(other) => rehearsal.put(&other),
                None => {}
            }
        }
        let one = <[RayService; 1]>::try_from(services);
        let [service] = one.map_err(|all| {
            PlanError::Manifest(format!("there are {} RayServices in it; it has to be exactly one", all.len()))
        })?;
        rehearsal.rest(|_| ())?;
        let stage =
            Self { snapshot: rehearsal.snapshot(), policy, now, service: ObjectRef::of(&service), is_anew: false };
        Ok((stage, service))
    }

    /// The service.
    pub(super) fn service(&self) -> &ObjectRef {
        &self.service
    }

    /// The cluster that serves, if there is one.
    ///
    /// # Errors
    /// When there is no telling.
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

    /// The same, with the service deleted before it is created again.
    pub(super) fn anew(&self) -> Self {
        Self { is_anew: true, ..self.clone() }
    }

    /// Rehearses that the service becomes this, with this nominal quota in the ClusterQueue that it is in, or with what there is.
    ///
    /// # Errors
    /// When there is no telling.
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
                let most = peak.entry(place).or_default();
                *most = amount.max(*most);
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

    /// The least quota with which the service can become this; `None` if none suffices.
    ///
    /// # Errors
    /// When there is no telling.
    pub(super) fn least_quota(&self, to: &RayService, outcome: &Outcome) -> Result<Option<Amounts>, PlanError> {
        let name = outcome.cluster_queue.as_deref().filter(|_| outcome.is_about_quota);
        let Some((name, queue)) = name.and_then(|name| Some((name, self.cluster_queue(name)?))) else {
            return Ok(None);
        };
        least(&nominal(queue), |quota| Ok(self.rehearse(to, Some((name, quota)))?.tried()))
    }

    /// What would have to be changed for this quota.
    pub(super) fn changes(&self, queue: &str, quota: &Amounts) -> Vec<QuotaChange> {
        let has = self.cluster_queue(queue).map(nominal).unwrap_or_default();
        let changes = quota.iter().map(|(place, to)| QuotaChange {
            cluster_queue: queue.to_owned(),
            flavor: place.flavor.clone(),
            resource: place.resource.clone(),
            from: has.get(place).copied().unwrap_or_default().display(&place.resource).to_string(),
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

    /// The uids of the clusters that the service has.
    fn members(&self, engine: &Engine) -> BTreeSet<String> {
        let uids =
            engine.look(&self.service, |sight| sight.job.members().into_iter().map(|member| member.uid).collect());
        uids.unwrap_or_default()
    }
}

/// The nominal quota of a ClusterQueue.
fn nominal(queue: &ClusterQueue) -> Amounts {
    let flavors = queue.spec.resource_groups.iter().flat_map(|group| &group.flavors);
    let quotas = flavors.flat_map(|flavor| flavor.resources.iter().map(|resource| (flavor.name.clone(), resource)));
    let amounts = quotas.map(|(flavor, quota)| {
        let amount = Amount::of(&quota.name, &quota.nominal_quota).unwrap_or_default();
        (Place { flavor, resource: quota.name.clone() }, amount)
    });
    amounts.collect()
}

/// The ClusterQueue with this nominal quota where it is named, and its own elsewhere.
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
