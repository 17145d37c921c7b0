//! Adapter between the engine and the scheduler: feeds it every change, and plans the writes for
//! its decisions.

use std::collections::BTreeSet;

use jiff::Timestamp;
use kube_core::ResourceExt;

use super::planners::Planner;
use super::world::{Change, Object, World};
use super::{WriteError, events, in_use};
use sluice_api::kueue::Workload;
use sluice_api::ray::RayCluster;
use sluice_jobframework::record::Record;
use sluice_plan::ObjectKey;
use sluice_plan::{ObjectRef, Plan, Write, WriteOp};
use sluice_queue::log::Recorder;
use sluice_queue::{self as queue, Effect, Event, Subject, status};

/// The scheduler and its decision log.
#[derive(Debug)]
pub(super) struct Queueing {
    queue: queue::Engine,
    watches_readiness: bool,
    /// Recorder of the decision log; `None` if it is off.
    recorder: Option<Recorder>,
}

impl Queueing {
    /// Creates an adapter around an empty scheduler.
    pub(super) fn new(settings: queue::Settings) -> Self {
        let watches_readiness = settings.wait_for_pods_ready.is_some();
        Self { watches_readiness, queue: queue::Engine::new(settings), recorder: None }
    }

    /// Turns the decision log on or off. Only a log recorded from the first input on can be
    /// replayed.
    pub(super) fn keep_log(&mut self, keep: bool) {
        self.recorder = keep.then(|| Recorder::new(&self.queue));
    }

    /// Returns the lines of the decision log since the last call.
    pub(super) fn take_log(&mut self) -> Vec<u8> {
        self.recorder.as_mut().map(Recorder::take).unwrap_or_default()
    }

    /// Returns the scheduler for queries.
    pub(super) fn queue(&self) -> &queue::Engine {
        &self.queue
    }

    /// Reports whether the scheduler uses pod readiness (`waitForPodsReady`), so that Workloads
    /// need the condition `PodsReady`.
    pub(super) fn watches_readiness(&self) -> bool {
        self.watches_readiness
    }

    /// Feeds a change to the scheduler.
    pub(super) fn observe(&mut self, now: Timestamp, change: &Change) {
        match change {
            Change { is: Some(object), .. } => self.observe_object(now, object),
            Change { was: Some(object), is: None } => self.observe_absence(now, object),
            Change { was: None, is: None } => {}
        }
    }

    /// Runs a scheduling cycle; returns the planners that write its decisions.
    pub(super) fn cycle(&mut self, now: Timestamp) -> Vec<Planner> {
        let effects = self.queue.cycle(now);
        if let Some(recorder) = &mut self.recorder {
            recorder.decided(now, &effects);
        }
        effects.iter().map(|effect| planner(effect.subject())).collect()
    }

    /// Returns the time at which a cycle is due without new inputs; `None` if none is.
    pub(super) fn wake_at(&self) -> Option<Timestamp> {
        self.queue.wake_at()
    }

    /// Feeds a failed write to the scheduler if the API server rejects the decision itself (HTTP
    /// 400, 403 or 422). Writes that failed otherwise are planned again.
    pub(super) fn refused(&mut self, now: Timestamp, write: &Write, error: &WriteError) {
        let Write { target, op: WriteOp::PatchStatus(_), .. } = write else { return };
        let key = ObjectKey::new(target.namespace.clone().unwrap_or_default(), target.name.clone());
        if target.kind == "Workload" && matches!(error.code, Some(400 | 403 | 422)) {
            self.tell(now, &Event::AdmissionRefused(&key));
        }
    }

    /// Reports whether the scheduler has decided to admit a Workload.
    pub(super) fn admits(&self, workload: &ObjectKey) -> bool {
        matches!(self.queue.effect(&Subject::Workload(workload.clone())), Some(Effect::Admit { .. }))
    }

    /// Returns the PodSets of a pending slice that are bound to flavors without headroom; see
    /// [`queue::Engine::pinned`].
    pub(super) fn pinned(&self, slice: &Workload) -> BTreeSet<String> {
        self.queue.pinned(&ObjectKey::of(slice))
    }

    /// Plans the decision about a Workload.
    pub(super) fn plan_workload(&self, world: &World, workload: &Workload, now: Timestamp) -> Plan {
        let mut plan = Plan::default();
        match self.queue.effect(&Subject::Workload(ObjectKey::of(workload))) {
            Some(Effect::SetInactive { .. }) => {
                let mut inactive = workload.clone();
                inactive.spec.active = Some(false);
                plan.write(Write::patch(workload, &inactive));
            }
            Some(effect) => {
                let mut decided = status::workload(workload, &effect, now);
                if let Effect::Admit { replaces: Some(replaced), .. } = &effect {
                    go_on_from(&mut decided, world.workloads.get(replaced).map(AsRef::as_ref), now);
                }
                let status = decided.status.as_ref();
                if let Some(write) = status.and_then(|status| Write::patch_status(workload, status)) {
                    // No cluster may be unsuspended on a slice that was just evicted, even
                    // partially (invariant I2).
                    let reclaims = matches!(effect, Effect::Evict { .. } | Effect::GiveBack { .. });
                    plan.write(if reclaims { write.while_quiet(clusters_of(workload)) } else { write });
                    plan.notes.extend(events::of(workload, &decided, &effect));
                }
            }
            None => {}
        }
        plan
    }

    /// Plans the finalizer and the status of a ClusterQueue, in this order. The finalizer of a
    /// terminating ClusterQueue is released once neither its status nor the scheduler counts a
    /// workload that holds its quota.
    pub(super) fn plan_cluster_queue(&self, world: &World, name: &str, now: Timestamp) -> Plan {
        let mut plan = Plan::default();
        let Some(queue) = world.cluster_queues.get(&ObjectKey::global(name)).map(AsRef::as_ref) else { return plan };
        let old = queue.status.clone().unwrap_or_default();
        let effect = self.queue.effect(&Subject::ClusterQueue(name.to_owned()));
        plan.write(in_use::hold(queue, effect.is_some() || old.reserving_workloads > 0));
        if let Some(Effect::ClusterQueueStatus { report, .. }) = effect {
            plan.write(Write::patch_status(queue, &status::cluster_queue(&old, &report, now)));
        }
        plan
    }

    /// Plans the status of a Cohort.
    pub(super) fn plan_cohort(&self, world: &World, name: &str) -> Plan {
        let mut plan = Plan::default();
        let effect = self.queue.effect(&Subject::Cohort(name.to_owned()));
        if let (Some(Effect::CohortStatus { report, .. }), Some(cohort)) =
            (effect, world.cohorts.get(&ObjectKey::global(name)))
        {
            plan.write(Write::patch_status(cohort.as_ref(), &status::cohort(&report)));
        }
        plan
    }

    /// Plans the status of a LocalQueue.
    pub(super) fn plan_local_queue(&self, world: &World, key: &ObjectKey, now: Timestamp) -> Plan {
        let mut plan = Plan::default();
        let effect = self.queue.effect(&Subject::LocalQueue(key.clone()));
        if let (Some(Effect::LocalQueueStatus { report, .. }), Some(queue)) = (effect, world.local_queues.get(key)) {
            let status = status::local_queue(&queue.status.clone().unwrap_or_default(), &report, now);
            plan.write(Write::patch_status(queue.as_ref(), &status));
        }
        plan
    }

    fn tell(&mut self, now: Timestamp, event: &Event<'_>) {
        if let Some(recorder) = &mut self.recorder {
            recorder.told(now, event);
        }
        self.queue.step(now, event);
    }

    fn observe_object(&mut self, now: Timestamp, object: &Object) {
        let event = match object {
            Object::ResourceFlavor(flavor) => Event::ResourceFlavor(flavor),
            Object::ClusterQueue(queue) => Event::ClusterQueue(queue),
            Object::Cohort(cohort) => Event::Cohort(cohort),
            Object::LocalQueue(queue) => Event::LocalQueue(queue),
            Object::Namespace(namespace) => Event::Namespace(namespace),
            Object::LimitRange(limit_range) => Event::LimitRange(limit_range),
            Object::RuntimeClass(class) => Event::RuntimeClass(class),
            Object::Workload(workload) => Event::Workload(workload),
            _ => return,
        };
        self.tell(now, &event);
    }

    fn observe_absence(&mut self, now: Timestamp, object: &Object) {
        match object {
            Object::ResourceFlavor(flavor) => self.tell(now, &Event::ResourceFlavorGone(&flavor.name_any())),
            Object::ClusterQueue(queue) => self.tell(now, &Event::ClusterQueueGone(&queue.name_any())),
            Object::Cohort(cohort) => self.tell(now, &Event::CohortGone(&cohort.name_any())),
            Object::LocalQueue(queue) => self.tell(now, &Event::LocalQueueGone(&ObjectKey::of(queue.as_ref()))),
            Object::Namespace(namespace) => self.tell(now, &Event::NamespaceGone(&namespace.name_any())),
            Object::LimitRange(limits) => self.tell(now, &Event::LimitRangeGone(&ObjectKey::of(limits.as_ref()))),
            Object::RuntimeClass(class) => self.tell(now, &Event::RuntimeClassGone(&class.name_any())),
            Object::Workload(workload) => self.tell(now, &Event::WorkloadGone(&ObjectKey::of(workload.as_ref()))),
            _ => {}
        }
    }
}

/// Carries the execution time of the replaced slice over to its successor: otherwise a job that
/// grows every hour would never reach its maximum. (In kueue v0.19.2 each slice starts from zero.)
fn go_on_from(slice: &mut Workload, replaced: Option<&Workload>, now: Timestamp) {
    if let (Some(status), Some(replaced), Some(_)) =
        (&mut slice.status, replaced, slice.spec.maximum_execution_time_seconds)
    {
        status.accumulated_past_execution_time_seconds = status::execution_time(replaced, now);
    }
}

/// Iterates over the clusters that a slice covers.
fn clusters_of(slice: &Workload) -> impl Iterator<Item = ObjectRef> {
    let members = Record::of(slice).unwrap_or_default().members.into_iter();
    members.map(|member| ObjectRef::named::<RayCluster>(slice.namespace(), member.name))
}

/// Returns the planner that writes the decisions about a target.
fn planner(subject: Subject) -> Planner {
    match subject {
        Subject::Workload(key) => Planner::Workload(key),
        Subject::ClusterQueue(name) => Planner::ClusterQueue(name),
        Subject::LocalQueue(key) => Planner::LocalQueue(key),
        Subject::Cohort(name) => Planner::Cohort(name),
    }
}
