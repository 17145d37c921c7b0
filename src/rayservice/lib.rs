//! RayService operator: creates the RayClusters of a RayService (one active, at most one pending),
//! applies the Serve configuration, and routes requests through Services and Gateway API routes.
//!
//! [`plan`] is a pure function of the observed objects: it returns the writes and calls that bring
//! them to the desired state. Progress is read from the objects themselves (the serve Service
//! selects the active cluster, annotations on a cluster record the hash of its spec), so a
//! restarted process resumes at any point.

mod children;
mod failed;
mod family;
#[cfg(test)]
mod fixtures;
mod given_up;
mod goal;
pub mod hash;
pub mod incremental;
pub mod initializing;
pub mod kept;
mod observation;
mod serve;
pub mod services;
pub mod status;
mod suspend;
#[cfg(test)]
mod tests;
pub mod upgrade;

use std::borrow::Cow;
use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube_core::ResourceExt;

use children::place;
use family::{Child, Family, active_name};
pub use goal::Goal;
use incremental::Transition;
use incremental::ways::Ways;
use sluice_api::condition;
use sluice_api::ray::{RayCluster, RayService, is_managed_elsewhere, names, upgrade_choices};
use sluice_plan::{Note, Plan, Write};
use sluice_raycluster::Problem;
use suspend::Phase;
use upgrade::{Reason, Step};

pub use observation::ServeObservation;

/// Observed state of one RayService, the input of [`plan`].
pub struct View<'a> {
    /// The RayService.
    pub service: &'a RayService,
    /// Desired state from its spec, or the validation errors of that spec.
    pub goal: &'a Result<Goal, Vec<Problem>>,
    /// RayClusters that it owns, including terminating ones.
    pub children: Vec<&'a RayCluster>,
    /// Head pods of its RayClusters.
    pub head_pods: Vec<&'a Pod>,
    /// Services that it owns.
    pub services: Vec<&'a Service>,
    /// EndpointSlices of the Service named [`services::serve_service_name`].
    pub endpoint_slices: Vec<&'a EndpointSlice>,
    /// Gateway, routes and backend Services that split traffic between its RayClusters.
    pub ways: Ways<'a>,
    /// Worker pods by RayCluster name, including terminating ones.
    pub worker_pods: BTreeMap<String, Vec<&'a Pod>>,
    /// Serve configurations stored for its RayClusters.
    pub kept: Vec<kept::Kept<'a>>,
    /// Observed state of Serve by RayCluster name.
    pub serve: BTreeMap<String, &'a ServeObservation>,
    /// True if the RayService is queued: its RayClusters are created suspended.
    pub gated: bool,
    /// Operator default of `spec.upgradeStrategy.type`: NewCluster if true, None if false.
    pub upgrades: bool,
    /// Current time.
    pub now: Timestamp,
}

/// Observed state of one running RayService and the decisions derived from it.
struct Scene<'a> {
    view: &'a View<'a>,
    phase: Phase,
    family: Family<'a>,
    goal: &'a Result<Goal, Vec<Problem>>,
    step: Step,
    /// Progress of the incremental upgrade; None if none is in progress.
    transition: Option<Transition>,
}

impl<'a> Scene<'a> {
    fn of(observed: &'a View<'a>, phase: Phase) -> Self {
        let family = Family::of(observed);
        let (desired, spec) = (observed.goal, &observed.service.spec.ray_cluster_config);
        let wanted =
            desired.as_ref().map_or_else(|_| Cow::Owned(hash::of(spec)), |desired| Cow::Borrowed(&*desired.hash));
        let rivals = family.rivals(observed.service, &wanted);
        let action = match desired {
            Ok(desired) => {
                let active = family.active.as_ref().map(|active| active.fit(spec, &wanted));
                let action = upgrade::decide(active, &rivals, goal::strategy(observed.service, observed.upgrades));
                let noted = upgrade_choices::given_up(&observed.service.metadata);
                let action = given_up::decide(action, noted, &wanted, active.is_some());
                let has_failed = failed::reason(observed.service, desired).is_some();
                let action = failed::decide(action, has_failed, active.is_some());
                incremental::decide(observed, family.active.as_ref(), &family.others, action)
            }
            Err(_) => Step::Hold(Reason::Invalid, upgrade::current(&rivals)),
        };
        let transition = Transition::of(observed, family.active.as_ref(), &family.others, action);
        Self { view: observed, phase, family, goal: desired, step: action, transition }
    }

    fn pending(&self) -> Option<&Child<'a>> {
        self.step.pending().and_then(|index| self.family.others.get(index))
    }

    /// Returns the cluster that requests are routed to: the pending one as soon as it can serve,
    /// otherwise the active one. The status must name the active cluster before traffic leaves it;
    /// otherwise that cluster would be deleted immediately, like one that never served. During an
    /// incremental upgrade it is the cluster with most of the traffic.
    fn serving(&self) -> Option<&Child<'a>> {
        if let Some(transition) = &self.transition {
            let pending = self.pending().filter(|_| transition.prefers_pending());
            return pending.or(self.family.active.as_ref());
        }
        let can_take_over = |pending: &&Child<'_>| {
            let desired = self.goal.as_ref().ok();
            let is_recorded = |active: &Child<'_>| active_name(self.view.service) == Some(active.name().as_str());
            matches!(self.step, Step::Continue(_))
                && self.family.active.as_ref().is_none_or(is_recorded)
                && desired.is_some_and(|desired| pending.runs(desired.config.hash()))
                && pending.has_serve_pods()
                && !pending.is_suspended()
        };
        self.pending().filter(can_take_over).or(self.family.active.as_ref())
    }
}

/// Plans the writes and calls that bring a RayService to its desired state.
///
/// An invalid spec does not affect running clusters: no new cluster is created, and the active one
/// is still reconciled.
pub fn plan(observed: &View<'_>) -> Plan {
    let service = observed.service;
    if is_managed_elsewhere(service.spec.managed_by.as_deref()) {
        return Plan::default();
    }
    if service.metadata.deletion_timestamp.is_some() {
        return delete(observed);
    }
    if !service.finalizers().iter().any(|finalizer| finalizer == names::SERVICE_FINALIZER) {
        // The finalizer must be in place before any child reserves quota.
        let mut protected = service.clone();
        protected.finalizers_mut().push(names::SERVICE_FINALIZER.to_owned());
        return Plan { writes: Vec::from_iter(Write::patch(service, &protected)), ..Plan::default() };
    }
    match Phase::of(service, !observed.children.is_empty()) {
        Phase::Running if initializing::is_over(service) => initializing::end(observed),
        phase @ (Phase::Running | Phase::Resuming) => run(&Scene::of(observed, phase)),
        phase => suspend::plan(observed, phase),
    }
}

fn run(context: &Scene<'_>) -> Plan {
    let mut plan = Plan::default();
    let due = initializing::due(context.view);
    if due.is_some_and(|due| initializing::plan(context.view, due, &mut plan)) {
        return plan;
    }
    children::plan(context, &mut plan);
    given_up::plan(context, &mut plan);
    failed::plan(context, &mut plan);
    serve::plan_all(context, &mut plan);
    if let Some(child) = context.serving() {
        services::plan(context, child, &mut plan);
    }
    incremental::plan(context, &mut plan);
    record_events(context, &mut plan);
    plan.write(status::write(context));
    plan
}

/// Deletes the RayClusters. Releases the finalizer once the last one is gone and no user-provided
/// route references them. The Services are garbage-collected with the RayService.
fn delete(observed: &View<'_>) -> Plan {
    let mut plan = Plan::default();
    children::delete_all(observed.service, &observed.children, &mut plan);
    incremental::release(observed, &mut plan);
    if observed.children.is_empty() && plan.writes.is_empty() {
        let mut released = observed.service.clone();
        released.finalizers_mut().retain(|finalizer| finalizer != names::SERVICE_FINALIZER);
        plan.write(Write::patch(observed.service, &released));
    }
    plan
}

/// Records Events for spec errors, blocked upgrades, invalid annotations and promotions that the
/// status does not report yet.
fn record_events(context: &Scene<'_>, plan: &mut Plan) {
    let service = context.view.service;
    let conditions = service.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    if let Err(problems) = context.goal {
        let text = status::told(problems);
        let is_reported =
            condition::get(conditions, names::SPEC_REJECTED).is_some_and(|rejected| rejected.message == text);
        if !is_reported {
            plan.notes.push(Note::warning(service, "InvalidRayServiceSpec", text));
        }
    }
    if let (Step::Hold(Reason::NoUpgrades, _), false) =
        (context.step, condition::is_true(conditions, status::UPGRADE_HELD))
    {
        let text = "The spec requires a new RayCluster, but the upgrade strategy is None; \
             set spec.upgradeStrategy.type to NewCluster to upgrade";
        plan.notes.push(Note::warning(service, "UpgradeBlocked", text));
    }
    for text in goal::misread(service) {
        let reported = condition::get(conditions, condition::UNSUPPORTED);
        if !reported.is_some_and(|reported| reported.message.contains(&text)) {
            plan.notes.push(Note::warning(service, "InvalidAnnotation", text));
        }
    }
    if let Some(active) = &context.family.active
        && active_name(service).is_some_and(|previous| previous != active.name())
        && !children::has_unmarked_predecessor(context)
    {
        plan.notes.push(Note::normal(
            service,
            "Promoted",
            format!("RayCluster {} is now active", place(active.cluster)),
        ));
    }
}
