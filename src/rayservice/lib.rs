//! RayService operator: creates the RayClusters of a RayService (one active, at most one pending),
//! applies the Serve configuration, and routes requests through Services and Gateway API routes.
//!
//! [`plan`] is a pure function of the observed objects: it returns the writes and calls that bring
//! them to the desired state. Progress is read from the objects themselves (the serve Service
//! selects the active cluster, annotations on a cluster record the hash of its spec), so a
//! restarted process resumes at any point.

mod admission_timeout;
mod clusters;
mod desired;
#[cfg(test)]
mod fixtures;
pub mod incremental;
pub mod initializing_timeout;
mod ray_clusters;
mod serve;
pub mod serve_config_history;
mod serve_observation;
pub mod services;
pub mod spec_hash;
pub mod status;
mod suspend;
#[cfg(test)]
mod tests;
pub mod upgrade;
mod upgrade_failure;

use std::borrow::Cow;
use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube_core::ResourceExt;

use clusters::{ServiceCluster, ServiceClusters, active_cluster_name};
pub use desired::DesiredService;
use incremental::Rollout;
use incremental::gateway::TrafficRouting;
use ray_clusters::namespaced_name;
use sluice_api::condition;
use sluice_api::ray::{RayCluster, RayService, admission_annotations, is_managed_elsewhere, names};
use sluice_plan::{EventRecord, Plan, Write};
use sluice_raycluster::FieldError;
use suspend::SuspendPhase;
use upgrade::{BlockReason, UpgradeAction};

pub use serve_observation::ServeObservation;

/// Observed state of one RayService, the input of [`plan`].
pub struct ObservedService<'a> {
    /// The RayService.
    pub service: &'a RayService,
    /// Desired state from its spec, or the validation errors of that spec.
    pub desired: &'a Result<DesiredService, Vec<FieldError>>,
    /// RayClusters that it owns, including terminating ones.
    pub clusters: Vec<&'a RayCluster>,
    /// Head pods of its RayClusters.
    pub head_pods: Vec<&'a Pod>,
    /// Services that it owns.
    pub services: Vec<&'a Service>,
    /// EndpointSlices of the Service named [`services::serve_service_name`].
    pub endpoint_slices: Vec<&'a EndpointSlice>,
    /// Gateway, routes and backend Services that split traffic between its RayClusters.
    pub routing: TrafficRouting<'a>,
    /// Worker pods by RayCluster name, including terminating ones.
    pub worker_pods: BTreeMap<String, Vec<&'a Pod>>,
    /// Serve configurations stored for its RayClusters.
    pub stored_configs: Vec<serve_config_history::StoredServeConfig<'a>>,
    /// Observed state of Serve by RayCluster name.
    pub serve_observations: BTreeMap<String, &'a ServeObservation>,
    /// True if the RayService is queued: its RayClusters are created suspended.
    pub is_queued: bool,
    /// Operator default of `spec.upgradeStrategy.type`: NewCluster if true, None if false.
    pub default_zero_downtime: bool,
    /// Current time.
    pub now: Timestamp,
}

/// Observed state of one running RayService and the decisions derived from it.
struct ServiceContext<'a> {
    observed: &'a ObservedService<'a>,
    phase: SuspendPhase,
    clusters: ServiceClusters<'a>,
    desired: &'a Result<DesiredService, Vec<FieldError>>,
    action: UpgradeAction,
    /// Progress of the incremental upgrade; None if none is in progress.
    rollout: Option<Rollout>,
}

impl<'a> ServiceContext<'a> {
    fn new(observed: &'a ObservedService<'a>, phase: SuspendPhase) -> Self {
        let family = ServiceClusters::from_observed(observed);
        let (desired, spec) = (observed.desired, &observed.service.spec.ray_cluster_config);
        let wanted = desired.as_ref().map_or_else(
            |_| Cow::Owned(spec_hash::compute(spec)),
            |desired| Cow::Borrowed(&*desired.cluster_spec_hash),
        );
        let rivals = family.standby_clusters(observed.service, &wanted);
        let action = match desired {
            Ok(desired) => {
                let active = family.active.as_ref().map(|active| active.compare(spec, &wanted));
                let action = upgrade::decide(
                    active,
                    &rivals,
                    desired::effective_strategy(observed.service, observed.default_zero_downtime),
                );
                let noted = admission_annotations::timed_out_cluster_hash(&observed.service.metadata);
                let action = admission_timeout::apply_admission_timeout(action, noted, &wanted, active.is_some());
                let has_failed = upgrade_failure::failure_reason(observed.service, desired).is_some();
                let action = upgrade_failure::apply_failure(action, has_failed, active.is_some());
                incremental::roll_back_if_needed(observed, family.active.as_ref(), &family.inactive, action)
            }
            Err(_) => {
                UpgradeAction::Block { reason: BlockReason::InvalidSpec, pending: upgrade::current_pending(&rivals) }
            }
        };
        let transition = Rollout::from_observed(observed, family.active.as_ref(), &family.inactive, action);
        Self { observed, phase, clusters: family, desired, action, rollout: transition }
    }

    fn pending_cluster(&self) -> Option<&ServiceCluster<'a>> {
        self.action.pending_index().and_then(|index| self.clusters.inactive.get(index))
    }

    /// Returns the cluster that requests are routed to: the pending one as soon as it can serve,
    /// otherwise the active one. The status must name the active cluster before traffic leaves it;
    /// otherwise that cluster would be deleted immediately, like one that never served. During an
    /// incremental upgrade it is the cluster with most of the traffic.
    fn serving_cluster(&self) -> Option<&ServiceCluster<'a>> {
        if let Some(transition) = &self.rollout {
            let pending = self.pending_cluster().filter(|_| transition.is_pending_preferred());
            return pending.or(self.clusters.active.as_ref());
        }
        let can_take_over = |pending: &&ServiceCluster<'_>| {
            let desired = self.desired.as_ref().ok();
            let is_recorded = |active: &ServiceCluster<'_>| {
                active_cluster_name(self.observed.service) == Some(active.name().as_str())
            };
            matches!(self.action, UpgradeAction::UsePending(_))
                && self.clusters.active.as_ref().is_none_or(is_recorded)
                && desired.is_some_and(|desired| pending.is_running_config(desired.serve_config.hash()))
                && pending.has_serving_pods()
                && !pending.is_suspended()
        };
        self.pending_cluster().filter(can_take_over).or(self.clusters.active.as_ref())
    }
}

/// Plans the writes and calls that bring a RayService to its desired state.
///
/// An invalid spec does not affect running clusters: no new cluster is created, and the active one
/// is still reconciled.
pub fn plan(observed: &ObservedService<'_>) -> Plan {
    let service = observed.service;
    if is_managed_elsewhere(service.spec.managed_by.as_deref()) {
        return Plan::default();
    }
    if service.metadata.deletion_timestamp.is_some() {
        return plan_deletion(observed);
    }
    if !service.finalizers().iter().any(|finalizer| finalizer == names::SERVICE_FINALIZER) {
        // The finalizer must be in place before any child reserves quota.
        let mut protected = service.clone();
        protected.finalizers_mut().push(names::SERVICE_FINALIZER.to_owned());
        return Plan { writes: Vec::from_iter(Write::patch(service, &protected)), ..Plan::default() };
    }
    match SuspendPhase::from_service(service, !observed.clusters.is_empty()) {
        SuspendPhase::Running if initializing_timeout::has_timed_out(service) => {
            initializing_timeout::plan_timed_out(observed)
        }
        phase @ (SuspendPhase::Running | SuspendPhase::Resuming) => plan_running(&ServiceContext::new(observed, phase)),
        phase => suspend::plan(observed, phase),
    }
}

fn plan_running(context: &ServiceContext<'_>) -> Plan {
    let mut plan = Plan::default();
    let due = initializing_timeout::timeout_at(context.observed);
    if due.is_some_and(|due| initializing_timeout::record_timeout_when_due(context.observed, due, &mut plan)) {
        return plan;
    }
    ray_clusters::plan(context, &mut plan);
    admission_timeout::plan(context, &mut plan);
    upgrade_failure::plan(context, &mut plan);
    serve::plan_all(context, &mut plan);
    if let Some(child) = context.serving_cluster() {
        services::plan(context, child, &mut plan);
    }
    incremental::plan_routing(context, &mut plan);
    record_events(context, &mut plan);
    plan.write(status::running_status_write(context));
    plan
}

/// Deletes the RayClusters. Releases the finalizer once the last one is gone and no user-provided
/// route references them. The Services are garbage-collected with the RayService.
fn plan_deletion(observed: &ObservedService<'_>) -> Plan {
    let mut plan = Plan::default();
    ray_clusters::delete_all_clusters(observed.service, &observed.clusters, &mut plan);
    incremental::release_routes(observed, &mut plan);
    if observed.clusters.is_empty() && plan.writes.is_empty() {
        let mut released = observed.service.clone();
        released.finalizers_mut().retain(|finalizer| finalizer != names::SERVICE_FINALIZER);
        plan.write(Write::patch(observed.service, &released));
    }
    plan
}

/// Records Events for spec errors, blocked upgrades, invalid annotations and promotions that the
/// status does not report yet.
fn record_events(context: &ServiceContext<'_>, plan: &mut Plan) {
    let service = context.observed.service;
    let conditions = service.conditions();
    if let Err(problems) = context.desired {
        let text = status::join_errors(problems);
        let is_reported =
            condition::get(conditions, names::SPEC_REJECTED).is_some_and(|rejected| rejected.message == text);
        if !is_reported {
            plan.events.push(EventRecord::warning(service, "InvalidRayServiceSpec", text));
        }
    }
    if let (UpgradeAction::Block { reason: BlockReason::UpgradesDisabled, .. }, false) =
        (context.action, condition::is_true(conditions, status::UPGRADE_BLOCKED))
    {
        let text = "The spec requires a new RayCluster, but the upgrade strategy is None; \
             set spec.upgradeStrategy.type to NewCluster to upgrade";
        plan.events.push(EventRecord::warning(service, "UpgradeBlocked", text));
    }
    for error in desired::invalid_annotations(service) {
        let text = error.to_string();
        let reported = condition::get(conditions, condition::UNSUPPORTED);
        if !reported.is_some_and(|reported| reported.message.contains(&text)) {
            plan.events.push(EventRecord::warning(service, "InvalidAnnotation", text));
        }
    }
    if let Some(active) = &context.clusters.active
        && active_cluster_name(service).is_some_and(|previous| previous != active.name())
        && !ray_clusters::has_unrecorded_predecessor(context)
    {
        plan.events.push(EventRecord::normal(
            service,
            "Promoted",
            format!("RayCluster {} is now active", namespaced_name(active.cluster)),
        ));
    }
}
