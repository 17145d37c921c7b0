//! Copy of the cluster state on which the upgrade strategies are tried.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;

use super::PlanError;
use super::min_quota::{FlavorResource, FlavorResourceAmounts, min_quota};
use super::outcome::{DryRunOutcome, usage, usage_by_job};
use super::timeline::PlannedCluster;
use crate::dry_run::{DryRun, PolicyConfig};
use crate::kubectl_apply::apply_manifest;
use crate::remediation::QuotaChange;
use crate::snapshot::{ManifestHeader, Snapshot};
use sluice_api::kueue::ClusterQueue;
use sluice_api::quantity::Amount;
use sluice_api::ray::{RayCluster, RayService};
use sluice_engine::cluster_state::Object;
use sluice_engine::{Engine, JobSnapshot};
use sluice_plan::ObjectRef;

/// State before the upgrade, at a fixpoint, with the manifests applied except the RayService.
#[derive(Debug, Clone)]
pub(super) struct Sandbox {
    /// Dry run that each attempt continues in a copy of its own: what the attempt does not change
    /// is not decided again.
    before: DryRun,
    service: ObjectRef,
    /// True if the existing RayService is deleted before the new one is created.
    deletes_first: bool,
}

impl Sandbox {
    /// Applies the manifests except the RayService, which is returned with the manifest applied.
    ///
    /// # Errors
    /// If a manifest is invalid, there isn't exactly one RayService, or the dry run doesn't
    /// converge.
    pub(super) fn new(
        snapshot: &Snapshot,
        manifests: Vec<Value>,
        policy: &PolicyConfig,
        now: Timestamp,
    ) -> Result<(Self, RayService), PlanError> {
        let mut dry_run = DryRun::start(snapshot, policy, now);
        let mut services = Vec::new();
        for manifest in manifests {
            let ManifestHeader { id, .. } = ManifestHeader::read(&manifest)?;
            let applied = apply_manifest(snapshot.get(id.clone()), manifest)
                .map_err(|source| PlanError::NotApplicable { object: Box::new(id), source })?;
            match applied {
                Some(Object::RayService(service)) => services.push(service.as_ref().clone()),
                Some(other) => dry_run.apply(&other),
                None => {}
            }
        }
        let one = <[RayService; 1]>::try_from(services);
        let [service] = one.map_err(|all| PlanError::NotOneService { found: all.len() })?;
        dry_run.run_to_fixpoint(|_| ())?;
        let sandbox = Self { before: dry_run, service: ObjectRef::of(&service), deletes_first: false };
        Ok((sandbox, service))
    }

    /// Returns the reference to the RayService.
    pub(super) fn service(&self) -> &ObjectRef {
        &self.service
    }

    /// Returns the active cluster; None if there is none.
    pub(super) fn active_cluster(&self) -> Option<PlannedCluster> {
        let see = |snapshot: JobSnapshot<'_>| {
            snapshot.job.members().into_iter().find(|member| !member.is_surge && !member.is_terminating)
        };
        let member = self.before.engine().with_job(&self.service, see).flatten()?;
        let cluster = ObjectRef::named::<RayCluster>(self.service.namespace.clone(), member.name);
        match (self.before.get(&self.service)?, self.before.get(&cluster)?) {
            (Object::RayService(service), Object::RayCluster(cluster)) => {
                Some(PlannedCluster::new(service, Some(cluster.as_ref().clone())))
            }
            _ => None,
        }
    }

    /// Returns a copy in which the RayService is deleted before the new one is created.
    pub(super) fn with_deletion_first(&self) -> Self {
        Self { deletes_first: true, ..self.clone() }
    }

    /// Applies the RayService `to` in a dry run; with `quota` as the nominal quota of the named
    /// ClusterQueue, or with the current quota if None.
    ///
    /// # Errors
    /// If the dry run doesn't converge.
    pub(super) fn try_upgrade(
        &self,
        to: &RayService,
        quota: Option<(&str, &FlavorResourceAmounts)>,
    ) -> Result<DryRunOutcome, PlanError> {
        let mut dry_run = self.before.clone();
        if let Some(queue) = quota.and_then(|(queue, quota)| Some(with_quota(self.cluster_queue(queue)?, quota))) {
            dry_run.apply(&queue);
        }
        dry_run.run_to_fixpoint(|_| ())?;
        let before = usage_by_job(dry_run.engine().cluster_state());
        let members_before = self.member_uids(dry_run.engine());
        let mut peak = FlavorResourceAmounts::new();
        let mut see = |engine: &Engine| {
            let used = engine.with_job(&self.service, |snapshot| usage(snapshot.workloads));
            for (place, amount) in used.unwrap_or_default() {
                let highest = peak.entry(place).or_default();
                *highest = amount.max(*highest);
            }
        };
        see(dry_run.engine());
        if self.deletes_first {
            dry_run.remove_with_dependents(&self.service);
        }
        dry_run.apply(&Object::RayService(Arc::new(to.clone())));
        dry_run.run_to_fixpoint(see)?;
        Ok(DryRunOutcome::evaluate(dry_run.engine(), &self.service, &members_before, &before, peak))
    }

    /// Returns the minimum quota with which the upgrade to `to` fits; None if no quota is
    /// sufficient.
    ///
    /// # Errors
    /// If a dry run doesn't converge.
    pub(super) fn min_quota(
        &self,
        to: &RayService,
        outcome: &DryRunOutcome,
    ) -> Result<Option<FlavorResourceAmounts>, PlanError> {
        let name = if outcome.may_need_quota { outcome.cluster_queue.as_deref() } else { None };
        let Some((name, queue)) = name.and_then(|name| Some((name, self.cluster_queue(name)?))) else {
            return Ok(None);
        };
        min_quota(&nominal_quota(queue), |quota| Ok(self.try_upgrade(to, Some((name, quota)))?.into_trial()))
    }

    /// Returns the change of each nominal quota of `queue` to that of `quota`.
    pub(super) fn quota_changes(&self, queue: &str, quota: &FlavorResourceAmounts) -> Vec<QuotaChange> {
        let current = self.cluster_queue(queue).map(nominal_quota).unwrap_or_default();
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
        match self.before.get(&ObjectRef::named::<ClusterQueue>(None, name.to_owned()))? {
            Object::ClusterQueue(queue) => Some(queue),
            _ => None,
        }
    }

    /// Returns the uids of the RayClusters of the RayService.
    fn member_uids(&self, engine: &Engine) -> BTreeSet<String> {
        let uids = engine
            .with_job(&self.service, |snapshot| snapshot.job.members().into_iter().map(|member| member.uid).collect());
        uids.unwrap_or_default()
    }
}

/// Returns the nominal quota of a ClusterQueue.
fn nominal_quota(queue: &ClusterQueue) -> FlavorResourceAmounts {
    let flavors = queue.spec.resource_groups.iter().flat_map(|group| &group.flavors);
    let quotas = flavors.flat_map(|flavor| flavor.resources.iter().map(|resource| (flavor.name.clone(), resource)));
    let amounts = quotas.map(|(flavor, quota)| {
        let amount = Amount::from_quantity(&quota.name, &quota.nominal_quota).unwrap_or_default();
        (FlavorResource { flavor, resource: quota.name.clone() }, amount)
    });
    amounts.collect()
}

/// Returns the ClusterQueue with the nominal quota of `quota`; entries that it doesn't name are
/// kept.
fn with_quota(queue: &ClusterQueue, quota: &FlavorResourceAmounts) -> Object {
    let mut queue = queue.clone();
    for flavor in queue.spec.resource_groups.iter_mut().flat_map(|group| &mut group.flavors) {
        for resource in &mut flavor.resources {
            let place = FlavorResource { flavor: flavor.name.clone(), resource: resource.name.clone() };
            if let Some(amount) = quota.get(&place) {
                resource.nominal_quota = amount.to_quantity(&resource.name);
            }
        }
    }
    Object::ClusterQueue(Arc::new(queue))
}
