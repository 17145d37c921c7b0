//! The RayService operator: clusters from a spec, one that serves and at most one that is to serve next; Serve configuration;
//! and the Services that requests come in by.
//!
//! [`plan`] is a function of what is observed: it names what separates the service from what its spec asks for. Where things
//! stand is read from the objects (who serves is where the serve Service leads to, a child is known by the hash of the spec that
//! it was made from), so that a process that starts anywhere in between goes on from there.

mod children;
mod failed;
mod family;
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
use kube::ResourceExt;

use crate::api::condition;
use crate::api::ray::{RayCluster, RayService, is_managed_elsewhere, names, upgrade_choices};
use crate::plan::{Note, Plan, Write};
use crate::raycluster::Problem;
use children::place;
use family::{Child, Family, active_name};
pub use goal::Goal;
use incremental::Transition;
use incremental::ways::Ways;
use suspend::Phase;
use upgrade::{Reason, Step};

pub use observation::ServeObservation;

/// What is known of one service.
pub struct View<'a> {
    /// The service.
    pub service: &'a RayService,
    /// What its spec asks for, or what is wrong with that.
    pub goal: &'a Result<Goal, Vec<Problem>>,
    /// The RayClusters that it owns, those that are being deleted included.
    pub children: Vec<&'a RayCluster>,
    /// The head pods of its clusters.
    pub head_pods: Vec<&'a Pod>,
    /// The Services that it owns.
    pub services: Vec<&'a Service>,
    /// The endpoints of the Service named [`services::serve_service_name`].
    pub endpoint_slices: Vec<&'a EndpointSlice>,
    /// The ways in by which its clusters get traffic in shares.
    pub ways: Ways<'a>,
    /// The worker pods of each of its clusters by the name of that; those that are being deleted included.
    pub worker_pods: BTreeMap<String, Vec<&'a Pod>>,
    /// The Serve configurations that are kept for its clusters.
    pub kept: Vec<kept::Kept<'a>>,
    /// What is known of Serve, by the name of the cluster.
    pub serve: BTreeMap<String, &'a ServeObservation>,
    /// Whether a queue decides when its clusters may have pods: every cluster is born suspended then.
    pub gated: bool,
    /// Whether another cluster is made for it where its spec doesn't say.
    pub upgrades: bool,
    /// The present.
    pub now: Timestamp,
}

/// What is known of one service that runs, and what follows from it.
struct Scene<'a> {
    view: &'a View<'a>,
    phase: Phase,
    family: Family<'a>,
    goal: &'a Result<Goal, Vec<Problem>>,
    step: Step,
    /// How far it is, if it is upgraded in steps.
    transition: Option<Transition>,
}

impl<'a> Scene<'a> {
    fn of(view: &'a View<'a>, phase: Phase) -> Self {
        let family = Family::of(view);
        let (goal, spec) = (view.goal, &view.service.spec.ray_cluster_config);
        let wanted = goal.as_ref().map_or_else(|_| Cow::Owned(hash::of(spec)), |goal| Cow::Borrowed(&*goal.hash));
        let rivals = family.rivals(view.service, &wanted);
        let step = match goal {
            Ok(goal) => {
                let active = family.active.as_ref().map(|active| active.fit(spec, &wanted));
                let step = upgrade::decide(active, &rivals, goal::strategy(view.service, view.upgrades));
                let noted = upgrade_choices::given_up(&view.service.metadata);
                let step = given_up::decide(step, noted, &wanted, active.is_some());
                let has_failed = failed::reason(view.service, goal).is_some();
                let step = failed::decide(step, has_failed, active.is_some());
                incremental::decide(view, family.active.as_ref(), &family.others, step)
            }
            Err(_) => Step::Hold(Reason::Invalid, upgrade::current(&rivals)),
        };
        let transition = Transition::of(view, family.active.as_ref(), &family.others, step);
        Self { view, phase, family, goal, step, transition }
    }

    fn pending(&self) -> Option<&Child<'a>> {
        self.step.pending().and_then(|index| self.family.others.get(index))
    }

    /// The child that requests are to be sent to: the pending one as soon as it can take them, and else the one that has
    /// taken them so far. Before that one is left, the status has to tell that it has served: else it would be deleted at
    /// once, as one that never has. In an upgrade in steps it is the one that gets most of the traffic.
    fn serving(&self) -> Option<&Child<'a>> {
        if let Some(transition) = &self.transition {
            let pending = self.pending().filter(|_| transition.prefers_pending());
            return pending.or(self.family.active.as_ref());
        }
        let takes_over = |pending: &&Child<'_>| {
            let goal = self.goal.as_ref().ok();
            let is_on_record = |active: &Child<'_>| active_name(self.view.service) == Some(active.name().as_str());
            matches!(self.step, Step::Continue(_))
                && self.family.active.as_ref().is_none_or(is_on_record)
                && goal.is_some_and(|goal| pending.runs(goal.config.hash()))
                && pending.has_serve_pods()
                && !pending.is_suspended()
        };
        self.pending().filter(takes_over).or(self.family.active.as_ref())
    }
}

/// Plans everything that separates a service from what its spec asks for.
///
/// A spec that makes no sense stops nothing that runs: nothing new is begun, and what serves is looked after as before.
pub fn plan(view: &View<'_>) -> Plan {
    let service = view.service;
    if is_managed_elsewhere(service.spec.managed_by.as_deref()) {
        return Plan::default();
    }
    if service.metadata.deletion_timestamp.is_some() {
        return delete(view);
    }
    if !service.finalizers().iter().any(|finalizer| finalizer == names::SERVICE_FINALIZER) {
        // Before anything holds quota it has to be certain that the service outlives it.
        let mut held = service.clone();
        held.finalizers_mut().push(names::SERVICE_FINALIZER.to_owned());
        return Plan { writes: Vec::from_iter(Write::patch(service, &held)), ..Plan::default() };
    }
    match Phase::of(service, !view.children.is_empty()) {
        Phase::Running if initializing::is_over(service) => initializing::end(view),
        phase @ (Phase::Running | Phase::Resuming) => run(&Scene::of(view, phase)),
        phase => suspend::plan(view, phase),
    }
}

fn run(scene: &Scene<'_>) -> Plan {
    let mut plan = Plan::default();
    let due = initializing::due(scene.view);
    if due.is_some_and(|due| initializing::plan(scene.view, due, &mut plan)) {
        return plan;
    }
    children::plan(scene, &mut plan);
    given_up::plan(scene, &mut plan);
    failed::plan(scene, &mut plan);
    serve::plan_all(scene, &mut plan);
    if let Some(child) = scene.serving() {
        services::plan(scene, child, &mut plan);
    }
    incremental::plan(scene, &mut plan);
    tell(scene, &mut plan);
    plan.write(status::write(scene));
    plan
}

/// Deletes the clusters, and lets the service go once the last of them is gone, and routes of others lead to none of them. Its Services go
/// with it.
fn delete(view: &View<'_>) -> Plan {
    let mut plan = Plan::default();
    children::delete_all(view.service, &view.children, &mut plan);
    incremental::release(view, &mut plan);
    if view.children.is_empty() && plan.writes.is_empty() {
        let mut released = view.service.clone();
        released.finalizers_mut().retain(|finalizer| finalizer != names::SERVICE_FINALIZER);
        plan.write(Write::patch(view.service, &released));
    }
    plan
}

fn tell(scene: &Scene<'_>, plan: &mut Plan) {
    let service = scene.view.service;
    let conditions = service.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    if let Err(problems) = scene.goal {
        let text = status::told(problems);
        let known = condition::get(conditions, names::SPEC_REJECTED).is_some_and(|rejected| rejected.message == text);
        if !known {
            plan.notes.push(Note::warning(service, "InvalidRayServiceSpec", text));
        }
    }
    if let (Step::Hold(Reason::NoUpgrades, _), false) =
        (scene.step, condition::is_true(conditions, status::UPGRADE_HELD))
    {
        let text = "Another RayCluster is wanted, and none is made as long as spec.upgradeStrategy.type is None";
        plan.notes.push(Note::warning(service, "UpgradeHeld", text));
    }
    for text in goal::misread(service) {
        let known = condition::get(conditions, condition::UNSUPPORTED);
        if !known.is_some_and(|known| known.message.contains(&text)) {
            plan.notes.push(Note::warning(service, "InvalidAnnotation", text));
        }
    }
    if let Some(active) = &scene.family.active
        && active_name(service).is_some_and(|before| before != active.name())
        && !children::has_unmarked_predecessor(scene)
    {
        plan.notes.push(Note::normal(service, "Promoted", format!("RayCluster {} serves now", place(active.cluster))));
    }
}
