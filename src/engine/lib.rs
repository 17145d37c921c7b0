//! The engine owns all observed state and turns inputs into commands.
//!
//! Every decision of Sluice is made in [`Engine::step`], from values alone: no client, no clock, no
//! randomness. The `manager` feeds it watch events and write results and executes its commands; a
//! simulator can do the same.

mod arriving;
mod concerned;
mod doubts;
mod events;
mod habits;
pub mod in_flight;
mod in_use;
mod jobs;
mod making;
mod managed;
pub mod notebook;
pub mod pace;
mod planners;
mod priorities;
mod queueing;
mod ray_jobs;
mod renewals;
mod setbacks;
mod specs;
pub mod store;
pub mod tokens;
pub mod world;

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use arriving::Arriving;
use doubts::Doubts;
pub use habits::Habits;
use in_flight::{InFlight, WriteId};
pub use jobs::Sight;
use making::Making;
use notebook::Notebook;
use pace::Pace;
use planners::Planner;
use queueing::Queueing;
use setbacks::Setbacks;
use sluice_jobframework::managed::Rules;
use sluice_plan::ObjectKey;
use sluice_plan::ServeReply;
use sluice_plan::{Note, Plan, ServeCall, Write, WriteOp};
use sluice_queue as queue;
use sluice_rayservice::ServeObservation;
use specs::Specs;
use tokens::TokenKey;
use world::{Change, Listing, MemberId, Object, World};

/// Consecutive write conflicts of one planner that emit no Event.
const RACES_UNTOLD: u32 = 5;

/// An input to the engine: a watch event, a write result or a Serve reply.
#[derive(Debug)]
pub enum Event {
    /// A watch listed all objects in its scope.
    Listed(Scope, Listing),
    /// A watch observed a new or changed object.
    Applied(Object),
    /// A watch observed the deletion of an object.
    Deleted(Object),
    /// A write completed, failed, or timed out.
    Written {
        /// Id of the write.
        id: WriteId,
        /// The write that was sent.
        write: Box<Write>,
        /// Outcome of the write.
        result: Result<Answer, WriteError>,
    },
    /// A call to the Serve REST API completed or failed.
    Served(ServeReply),
}

/// The objects that one watch covers.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Scope {
    /// Kind of the objects, like `RayCluster`.
    pub kind: String,
    /// Namespace of the objects; `None` for all namespaces.
    pub namespace: Option<String>,
    /// Label key that the objects must have; `None` for no restriction.
    pub label: Option<&'static str>,
}

impl Scope {
    /// Reports whether this scope covers an object of its kind with this metadata.
    pub fn sees(&self, meta: &ObjectMeta) -> bool {
        let in_namespace = self.namespace.as_ref().is_none_or(|namespace| meta.namespace.as_ref() == Some(namespace));
        let has_label = |label| meta.labels.as_ref().is_some_and(|labels| labels.contains_key(label));
        in_namespace && self.label.is_none_or(has_label)
    }
}

/// Outcome of a write that the API server accepted.
#[derive(Debug)]
pub enum Answer {
    /// The object after the write.
    Object(Object),
    /// The object was deleted.
    Gone,
    /// The object is of a kind that the engine does not watch.
    Unwatched,
}

/// Error of a failed write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriteError {
    /// HTTP status code; `None` if no response arrived, in which case the write may have taken
    /// effect.
    pub code: Option<u16>,
    /// Message of the API server, or of the transport.
    pub message: String,
    /// The API server reported the target itself as not found, as opposed to its namespace or kind.
    pub absent: bool,
}

impl WriteError {
    /// Returns the error of a write without a response.
    pub fn unanswered(message: String) -> Self {
        Self { code: None, message, absent: false }
    }

    /// Reports whether the target was changed, created or deleted since the write was planned;
    /// replanning resolves that.
    pub fn is_race(&self) -> bool {
        matches!(self.code, Some(404 | 409))
    }
}

/// A command that the manager executes for the engine.
#[derive(Debug)]
pub enum Effect {
    /// Send a write and report its result under this id.
    Write(WriteId, Write),
    /// Emit a Kubernetes Event.
    Note(Note),
    /// Call the Serve REST API of a Ray cluster.
    Serve(ServeCall),
}

/// The enabled components of Sluice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Halves {
    /// Run the queue manager: quota, Workloads, and suspension of jobs.
    pub queue_manager: bool,
    /// Run the operator for RayClusters and RayServices.
    pub ray_operator: bool,
}

impl Halves {
    /// Enables all components.
    pub const BOTH: Self = Self { queue_manager: true, ray_operator: true };
}

/// Holds the observed state and plans writes, Events and Serve calls from it.
#[derive(Debug)]
pub struct Engine {
    halves: Halves,
    /// Selects the jobs to manage.
    rules: Rules,
    habits: Habits,
    world: World,
    specs: Specs,
    /// Scopes that still have to be listed before the first decision.
    unlisted: BTreeSet<Scope>,
    queueing: Queueing,
    serve: BTreeMap<ObjectKey, ServeObservation>,
    serve_calls: BTreeSet<(ObjectKey, &'static str)>,
    pace: Pace<Planner>,
    in_flight: InFlight<Planner>,
    doubts: Doubts<Planner>,
    making: Making,
    arriving: Arriving,
    setbacks: Setbacks,
    notebook: Notebook,
    tokens: TokenKey,
    /// Kubernetes Events about writes that are still in flight.
    untold: Vec<Untold>,
    stopping: bool,
}

/// Kubernetes Events to emit once all of these writes succeed, and to drop if one fails.
#[derive(Debug)]
struct Untold {
    writes: BTreeSet<WriteId>,
    notes: Vec<Note>,
}

impl Engine {
    /// Creates an engine that decides nothing until each of `scopes` has been listed. `tokens`
    /// derives the auth tokens of Ray clusters.
    pub fn new(
        halves: Halves,
        settings: queue::Settings,
        scopes: impl IntoIterator<Item = Scope>,
        tokens: TokenKey,
    ) -> Self {
        Self {
            halves,
            rules: Rules::default(),
            habits: Habits::default(),
            world: World::default(),
            specs: Specs::default(),
            unlisted: scopes.into_iter().collect(),
            queueing: Queueing::new(settings),
            serve: BTreeMap::new(),
            serve_calls: BTreeSet::new(),
            pace: Pace::default(),
            in_flight: InFlight::default(),
            doubts: Doubts::default(),
            making: Making::default(),
            arriving: Arriving::default(),
            setbacks: Setbacks::default(),
            notebook: Notebook::default(),
            tokens,
            untold: Vec::new(),
            stopping: false,
        }
    }

    /// Replaces the managed-jobs policy, [`Rules::default`].
    #[must_use]
    pub fn managing(mut self, rules: Rules) -> Self {
        self.rules = rules;
        self
    }

    /// Replaces the operator configuration, [`Habits::default`].
    #[must_use]
    pub fn operating(mut self, habits: Habits) -> Self {
        self.habits = habits;
        self
    }

    /// Creates an engine for queries: it has observed these objects and emits no commands. The
    /// scheduler has run one cycle, so its pending decisions can be inspected.
    pub fn onlooker(halves: Halves, settings: queue::Settings, objects: Vec<Object>, now: Timestamp) -> Self {
        let mut engine = Self::new(halves, settings, [], TokenKey::known());
        engine.stop();
        engine.step(now, objects.into_iter().map(Event::Applied));
        engine.queueing.cycle(now);
        engine
    }

    /// Returns the observed objects.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// Returns the scheduler, which knows admitted and pending workloads and their quota.
    pub fn queue(&self) -> &queue::Engine {
        self.queueing.queue()
    }

    /// Records the decision log of the scheduler, read by
    /// [`take_decision_log`](Self::take_decision_log).
    #[must_use]
    pub fn keeping_decision_log(mut self) -> Self {
        self.queueing.keep_log(true);
        self
    }

    /// Returns the lines recorded since the last call, each ending in a newline; empty if the log
    /// is not recorded.
    pub fn take_decision_log(&mut self) -> Vec<u8> {
        self.queueing.take_log()
    }

    /// Stops recording the decision log.
    pub fn end_decision_log(&mut self) {
        self.queueing.keep_log(false);
    }

    /// Processes the inputs in order and returns the resulting commands.
    pub fn step(&mut self, now: Timestamp, events: impl IntoIterator<Item = Event>) -> Vec<Effect> {
        let mut effects = Vec::new();
        for event in events {
            self.take_in(now, event, &mut effects);
        }
        if !self.is_synced() || self.stopping {
            return effects;
        }
        // The scheduler decides first: planners write its decisions in the same step.
        if self.halves.queue_manager {
            for planner in self.queueing.cycle(now) {
                self.pace.mark(planner);
            }
        }
        for cluster in self.arriving.expire(now) {
            self.pods_may_have_changed(&cluster);
        }
        for planner in self.doubts.expire(now) {
            self.pace.mark(planner);
        }
        for planner in self.pace.take_due(now) {
            let plan = self.plan(&planner, now);
            self.ask(now, planner, plan, &mut effects);
        }
        effects
    }

    /// Reports whether every scope has been listed once, so that the engine makes decisions.
    pub fn is_synced(&self) -> bool {
        self.unlisted.is_empty()
    }

    /// Stops planning, so that no write is in flight once the results of all sent writes arrive.
    pub fn stop(&mut self) {
        self.stopping = true;
    }

    /// Reports whether no write awaits its result.
    pub fn is_quiet(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// Returns the earliest time at which [`step`](Self::step) has work without new inputs; `None`
    /// if there is none, or before the engine is synced.
    pub fn next_wake(&self) -> Option<Timestamp> {
        let wakes = [self.pace.next(), self.queueing.wake_at(), self.arriving.next(), self.doubts.next()];
        if !self.is_synced() {
            return None;
        }
        wakes.into_iter().flatten().min()
    }

    fn take_in(&mut self, now: Timestamp, event: Event, effects: &mut Vec<Effect>) {
        match event {
            Event::Listed(scope, listing) => {
                let changes = self.world.relist(listing, &scope);
                self.unlisted.remove(&scope);
                changes.into_iter().for_each(|change| self.changed(now, &change));
            }
            Event::Applied(object) => self.applied(now, object),
            Event::Deleted(object) => {
                if let Some(change) = self.world.remove(&object) {
                    self.changed(now, &change);
                }
            }
            Event::Written { id, write, result } => self.written(now, id, &write, result, effects),
            Event::Served(reply) => self.served(reply),
        }
    }

    fn applied(&mut self, now: Timestamp, object: Object) {
        if let Some(change) = self.world.apply(object) {
            self.changed(now, &change);
        }
    }

    /// Updates all trackers from a change and enqueues the planners that it triggers.
    fn changed(&mut self, now: Timestamp, change: &Change) {
        for side in change.sides() {
            let reference = side.reference();
            let unblocked = self.in_flight.observed(&reference, change.is.is_none());
            let resolved = self.doubts.seen(&reference, change.is.as_ref().map(Object::meta));
            for planner in unblocked.into_iter().chain(resolved) {
                self.pace.mark(planner);
            }
        }
        if let (Some(Object::RayCluster(gone)), None) = (&change.was, &change.is) {
            self.serve.remove(&ObjectKey::of(gone.as_ref()));
            self.setbacks.forget(&ObjectKey::of(gone.as_ref()));
        }
        match &change.is {
            Some(object @ Object::Pod(pod)) => self.arriving.seen(&object.reference(), pod),
            Some(Object::Workload(slice)) => self.making.seen(slice),
            _ => {}
        }
        self.specs.see(change, self.halves);
        if self.halves.queue_manager {
            self.queueing.observe(now, change);
        }
        for planner in concerned::concerned(&self.world, self.halves, change) {
            self.pace.mark(planner);
        }
    }

    fn written(
        &mut self,
        now: Timestamp,
        id: WriteId,
        write: &Write,
        result: Result<Answer, WriteError>,
        effects: &mut Vec<Effect>,
    ) {
        // Trackers first: each has to know the outcome before any planner runs again.
        let gone = matches!(result, Ok(Answer::Gone)) || matches!(&result, Err(error) if error.code == Some(404));
        let planners = self.in_flight.answered(id, write, gone);
        let known = !matches!(&result, Err(error) if error.code.is_none());
        if result.is_ok() || gone {
            self.doubts.taken(write, gone).into_iter().for_each(|planner| self.pace.mark(planner));
        } else if !known && (self.world.is_as_planned(write) || self.is_unseen_slice(write)) {
            self.doubts.unanswered(write, now);
        }
        if let Some(cluster) = self.arriving.answered(id, known, now) {
            self.pods_may_have_changed(&cluster);
        }
        match result {
            Ok(answer) => {
                planners.iter().for_each(|planner| self.went_through(planner, write));
                self.tell_of(now, id, effects);
                if let Answer::Object(object) = answer {
                    self.applied(now, object);
                }
                planners.into_iter().for_each(|planner| self.pace.mark(planner));
            }
            Err(error) => {
                if error.absent
                    && let Some(change) = self.world.absent(write)
                {
                    self.changed(now, &change);
                }
                self.untold.retain(|untold| !untold.writes.contains(&id));
                self.queueing.refused(now, write, &error);
                // Conflicts are routine. If they persist, another object holds the name.
                let is_reported = |planner: &&Planner| !error.is_race() || self.pace.failures(planner) >= RACES_UNTOLD;
                let owners = planners.iter().filter(is_reported);
                let notes: Vec<Note> = owners.filter_map(|planner| self.failure_note(planner, write, &error)).collect();
                notes.into_iter().for_each(|note| self.tell(now, note, effects));
                planners.into_iter().for_each(|planner| self.failed(planner, write, &error, now));
            }
        }
    }

    /// Reports whether a write creates a slice that has not been observed yet.
    fn is_unseen_slice(&self, write: &Write) -> bool {
        let key = ObjectKey::new(write.target.namespace.clone().unwrap_or_default(), write.target.name.clone());
        making::made_for(write).is_some() && self.world.workloads.get(&key).is_none()
    }

    /// Enqueues the planners that depend on the pods of `cluster`.
    fn pods_may_have_changed(&mut self, cluster: &MemberId) {
        for planner in concerned::concerned_by_pods(&self.world, self.halves, cluster) {
            self.pace.mark(planner);
        }
    }

    fn served(&mut self, reply: ServeReply) {
        let cluster = ObjectKey::new(reply.namespace.clone(), reply.cluster.clone());
        self.serve_calls.remove(&(cluster.clone(), reply.kind()));
        if let Some(service) = planners::service_of_cluster(&self.world, &cluster) {
            self.serve.entry(cluster).or_default().observe(reply);
            self.pace.mark(Planner::RayService(service));
        }
    }

    /// Turns a plan into commands. Writes that are in backoff, blocked by an unacknowledged write,
    /// or whose objects have a write in flight are dropped; their planner runs again later.
    fn ask(&mut self, now: Timestamp, planner: Planner, mut plan: Plan, effects: &mut Vec<Effect>) {
        let has_writes = !plan.writes.is_empty();
        self.hold_back(&planner, &mut plan, now);
        self.pace.at(planner.clone(), plan.wake_at);
        let (mut sent, mut changed) = (BTreeSet::new(), BTreeSet::new());
        for write in plan.writes {
            let write = self.making.in_turn(write);
            if self.doubts.hold(&write, &planner) {
                continue;
            }
            if let Some(id) = self.in_flight.begin(&write, &planner) {
                let key = ObjectKey::new(write.target.namespace.clone().unwrap_or_default(), write.target.name.clone());
                let pod = if write.target.kind == "Pod" { self.world.pods.get(&key) } else { None };
                self.arriving.sent(id, &write, pod.map(AsRef::as_ref));
                self.making.sent(&write);
                if !matches!(write.op, WriteOp::PatchStatus(_)) {
                    changed.insert(write.target.clone());
                }
                effects.push(Effect::Write(id, write));
                sent.insert(id);
            }
        }
        plan.notes.retain(|note| note.tells_of.as_ref().is_none_or(|object| changed.contains(object)));
        for call in plan.serve_calls {
            let cluster = ObjectKey::new(call.namespace.clone(), call.cluster.clone());
            if self.serve_calls.insert((cluster, call.request.kind())) {
                effects.push(Effect::Serve(call));
            }
        }
        // Events about writes are deferred until all of them succeed. If none was sent, the planner
        // returns them again with its next plan.
        if !has_writes {
            plan.notes.into_iter().for_each(|note| self.tell(now, note, effects));
        } else if !sent.is_empty() && !plan.notes.is_empty() {
            self.untold.push(Untold { writes: sent, notes: plan.notes });
        }
    }

    /// Records that a write succeeded and emits the deferred Events whose last open write it was.
    fn tell_of(&mut self, now: Timestamp, id: WriteId, effects: &mut Vec<Effect>) {
        for untold in &mut self.untold {
            untold.writes.remove(&id);
        }
        let completed = self.untold.extract_if(.., |untold| untold.writes.is_empty());
        let notes: Vec<Note> = completed.flat_map(|untold| untold.notes).collect();
        notes.into_iter().for_each(|note| self.tell(now, note, effects));
    }

    /// Emits an Event unless an equal one was emitted recently.
    fn tell(&mut self, now: Timestamp, note: Note, effects: &mut Vec<Effect>) {
        if self.notebook.is_news(now, &note) {
            effects.push(Effect::Note(note));
        }
    }
}

#[cfg(test)]
mod tests;
