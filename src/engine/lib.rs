//! The engine: one owner of all observed state, which turns events into effects.
//!
//! Every decision of Sluice is made in [`Engine::step`], from values alone: no client, no clock, no randomness. The shell
//! (`manager`) feeds it what the watches see and carries out what it asks for; a simulator can do the same.

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

/// How many lost races in a row nobody is told of.
const RACES_UNTOLD: u32 = 5;

/// Something that happened outside.
#[derive(Debug)]
pub enum Event {
    /// A watch saw all objects of a kind, in one namespace or in all.
    Listed(Scope, Listing),
    /// A watch saw an object that is new or has changed.
    Applied(Object),
    /// A watch saw that an object is gone.
    Deleted(Object),
    /// A write was answered, or given up.
    Written {
        /// Which write.
        id: WriteId,
        /// The write itself.
        write: Box<Write>,
        /// What became of it.
        result: Result<Answer, WriteError>,
    },
    /// A Ray dashboard answered, or didn't.
    Served(ServeReply),
}

/// What one watch sees.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Scope {
    /// A kind, like `RayCluster`.
    pub kind: String,
    /// A namespace, or `None` for all.
    pub namespace: Option<String>,
    /// Only objects that have this label; `None` for all.
    pub label: Option<&'static str>,
}

impl Scope {
    /// Whether it sees an object of its kind that has this metadata.
    pub fn sees(&self, meta: &ObjectMeta) -> bool {
        let is_there = self.namespace.as_ref().is_none_or(|namespace| meta.namespace.as_ref() == Some(namespace));
        let has = |label| meta.labels.as_ref().is_some_and(|labels| labels.contains_key(label));
        is_there && self.label.is_none_or(has)
    }
}

/// The API server's answer to a write that it took.
#[derive(Debug)]
pub enum Answer {
    /// The object as it is now.
    Object(Object),
    /// The object is gone.
    Gone,
    /// An object of a kind that isn't watched.
    Unwatched,
}

/// Why a write failed, as far as that is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriteError {
    /// The HTTP status; `None` when there was no answer, so that the write may have gone through all the same.
    pub code: Option<u16>,
    /// What the API server said, or what went wrong on the way.
    pub message: String,
    /// Whether the API server said that the object isn't there: the object itself, not its namespace or its kind.
    pub absent: bool,
}

impl WriteError {
    /// There was no answer.
    pub fn unanswered(message: String) -> Self {
        Self { code: None, message, absent: false }
    }

    /// The object has changed, come or gone since the write was planned; planning anew takes care of that.
    pub fn is_race(&self) -> bool {
        matches!(self.code, Some(404 | 409))
    }
}

/// Something to be done outside.
#[derive(Debug)]
pub enum Effect {
    /// Send a write, and report the answer under this id.
    Write(WriteId, Write),
    /// Show a person what happened.
    Note(Note),
    /// Call a Ray dashboard.
    Serve(ServeCall),
}

/// Which halves of Sluice run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Halves {
    /// Quota, workloads, and the gate.
    pub queue_manager: bool,
    /// RayClusters and RayServices.
    pub ray_operator: bool,
}

impl Halves {
    /// All of Sluice.
    pub const BOTH: Self = Self { queue_manager: true, ray_operator: true };
}

/// The engine.
#[derive(Debug)]
pub struct Engine {
    halves: Halves,
    /// Which jobs are managed.
    rules: Rules,
    habits: Habits,
    world: World,
    specs: Specs,
    /// What has to be listed before anything may be decided.
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
    /// Notes that tell of writes which have not been answered yet.
    untold: Vec<Untold>,
    stopping: bool,
}

/// Notes that are told once all of these writes have gone through, and never if one has not.
#[derive(Debug)]
struct Untold {
    writes: BTreeSet<WriteId>,
    notes: Vec<Note>,
}

impl Engine {
    /// An engine that decides nothing until each of `scopes` has been listed, and makes tokens from a key.
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

    /// Manages the jobs that these rules name, instead of those of [`Rules::default`].
    #[must_use]
    pub fn managing(mut self, rules: Rules) -> Self {
        self.rules = rules;
        self
    }

    /// Does these things where a spec leaves it open, instead of those of [`Habits::default`].
    #[must_use]
    pub fn operating(mut self, habits: Habits) -> Self {
        self.habits = habits;
        self
    }

    /// An engine that has seen these objects, and writes nothing: it is there to be asked. What its queue would decide next, it has.
    pub fn onlooker(halves: Halves, settings: queue::Settings, objects: Vec<Object>, now: Timestamp) -> Self {
        let mut engine = Self::new(halves, settings, [], TokenKey::known());
        engine.stop();
        engine.step(now, objects.into_iter().map(Event::Applied));
        engine.queueing.cycle(now);
        engine
    }

    /// All that was seen.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// Who holds which quota, and who waits.
    pub fn queue(&self) -> &queue::Engine {
        self.queueing.queue()
    }

    /// Keeps the queue's decision log, to be taken by [`take_decision_log`](Self::take_decision_log).
    #[must_use]
    pub fn keeping_decision_log(mut self) -> Self {
        self.queueing.keep_log(true);
        self
    }

    /// The lines of the decision log since this was last asked, each with its newline; none if it isn't kept.
    pub fn take_decision_log(&mut self) -> Vec<u8> {
        self.queueing.take_log()
    }

    /// Keeps the decision log no longer.
    pub fn end_decision_log(&mut self) {
        self.queueing.keep_log(false);
    }

    /// Takes in what happened, in order, and returns what is to be done about it.
    pub fn step(&mut self, now: Timestamp, events: impl IntoIterator<Item = Event>) -> Vec<Effect> {
        let mut effects = Vec::new();
        for event in events {
            self.take_in(now, event, &mut effects);
        }
        if !self.is_synced() || self.stopping {
            return effects;
        }
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

    /// Whether everything was listed at least once, so that decisions are being made.
    pub fn is_synced(&self) -> bool {
        self.unlisted.is_empty()
    }

    /// Decides nothing from now on, so that nothing new is under way when the last answers are in.
    pub fn stop(&mut self) {
        self.stopping = true;
    }

    /// Whether no write is waiting for its answer.
    pub fn is_quiet(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// When [`step`](Self::step) has something to do even if nothing happens.
    pub fn next_wake(&self) -> Option<Timestamp> {
        let wakes = [self.pace.next(), self.queueing.wake_at(), self.arriving.next(), self.doubts.next()];
        let wakes = wakes.into_iter().flatten();
        wakes.min().filter(|_| self.is_synced())
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

    /// Whatever an object's change concerns is planned anew.
    fn changed(&mut self, now: Timestamp, change: &Change) {
        for side in change.sides() {
            let reference = side.reference();
            let waited = self.in_flight.observed(&reference, change.is.is_none());
            let doubted = self.doubts.seen(&reference, change.is.as_ref().map(Object::meta));
            for planner in waited.into_iter().chain(doubted) {
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
                // A race is nothing to tell of, unless it is lost again and again: then somebody else has the name.
                let lasts = |planner: &&Planner| !error.is_race() || self.pace.failures(planner) >= RACES_UNTOLD;
                let owners = planners.iter().filter(lasts);
                let notes: Vec<Note> = owners.filter_map(|planner| self.failure_note(planner, write, &error)).collect();
                notes.into_iter().for_each(|note| self.tell(now, note, effects));
                planners.into_iter().for_each(|planner| self.failed(planner, write, &error, now));
            }
        }
    }

    /// Whether a write makes a slice that was not seen yet.
    fn is_unseen_slice(&self, write: &Write) -> bool {
        let key = ObjectKey::new(write.target.namespace.clone().unwrap_or_default(), write.target.name.clone());
        making::made_for(write).is_some() && self.world.workloads.get(&key).is_none()
    }

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

    /// Turns what a planner asks for into effects, as far as nothing of it is under way already.
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
                let pod = self.world.pods.get(&key).filter(|_| write.target.kind == "Pod");
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
        if !has_writes {
            plan.notes.into_iter().for_each(|note| self.tell(now, note, effects));
        } else if !sent.is_empty() && !plan.notes.is_empty() {
            self.untold.push(Untold { writes: sent, notes: plan.notes });
        }
    }

    /// A write has gone through: what is told of it can be told, unless it is told of other writes as well.
    fn tell_of(&mut self, now: Timestamp, id: WriteId, effects: &mut Vec<Effect>) {
        for untold in &mut self.untold {
            untold.writes.remove(&id);
        }
        let told = self.untold.extract_if(.., |untold| untold.writes.is_empty());
        let notes: Vec<Note> = told.flat_map(|untold| untold.notes).collect();
        notes.into_iter().for_each(|note| self.tell(now, note, effects));
    }

    fn tell(&mut self, now: Timestamp, note: Note, effects: &mut Vec<Effect>) {
        if self.notebook.is_news(now, &note) {
            effects.push(Effect::Note(note));
        }
    }
}

#[cfg(test)]
mod tests;
