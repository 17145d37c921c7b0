//! Dry run of a change: the engine decides on a copy of the state, and its writes go into the copy.
//! No time passes, the Ray dashboard never answers, and suspended jobs stop immediately.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde_json::{Value, json};
use thiserror::Error;

use super::snapshot::Snapshot;
use sluice_api::condition;
use sluice_engine::in_flight::WriteId;
use sluice_engine::tokens::TokenKey;
use sluice_engine::world::Object;
use sluice_engine::{Answer, Effect, Engine, Event, Halves, WriteError};
use sluice_jobframework::managed::Rules;
use sluice_plan::{ObjectRef, Write, WriteOp};
use sluice_queue::Settings;

/// Iteration limit for detecting non-convergence.
const MOST_ROUNDS: usize = 1000;

/// Error of a dry run that reaches no fixpoint.
#[derive(Debug, Error)]
#[error("dry run did not converge within {MOST_ROUNDS} iterations; the last write was to {0}")]
pub struct Restless(String);

/// Scheduler settings and managed-jobs policy of a dry run.
#[derive(Debug, Clone, Default)]
pub struct Policy {
    /// Settings of the scheduler.
    pub queue: Settings,
    /// Policy that selects the managed jobs.
    pub jobs: Rules,
}

/// Copy of the state, and an engine that reads and writes it.
#[derive(Debug)]
pub struct Rehearsal {
    engine: Engine,
    now: Timestamp,
    objects: BTreeMap<Name, Object>,
    version: u64,
    events: Vec<Event>,
}

/// Kind, namespace (empty if cluster-scoped) and name of an object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Name(String, String, String);

impl Name {
    fn of(reference: &ObjectRef) -> Self {
        Self(reference.kind.clone(), reference.namespace.clone().unwrap_or_default(), reference.name.clone())
    }
}

impl Rehearsal {
    /// Creates a dry run that starts with the objects of `snapshot`.
    pub fn of(snapshot: &Snapshot, policy: &Policy, now: Timestamp) -> Self {
        let tokens = TokenKey::known();
        let engine = Engine::new(Halves::BOTH, policy.queue.clone(), [], tokens).managing(policy.jobs.clone());
        let mut rehearsal = Self { engine, now, objects: BTreeMap::new(), version: 0, events: Vec::new() };
        for object in snapshot.objects() {
            let version = object.meta().resource_version.as_ref().and_then(|version| version.parse().ok());
            rehearsal.version = rehearsal.version.max(version.unwrap_or(0));
            rehearsal.objects.insert(Name::of(&object.reference()), object.clone());
            rehearsal.events.push(Event::Applied(object.clone()));
        }
        rehearsal
    }

    /// Returns the engine.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Returns the current objects.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::of(self.objects.values().cloned())
    }

    /// Creates an object, or replaces the one with the same kind and name.
    pub fn put(&mut self, object: &Object) {
        let name = Name::of(&object.reference());
        match self.objects.get(&name).map(Object::manifest) {
            Some(held) => self.update(&name, &held, object.manifest()),
            None => self.create(&object.reference(), object.manifest()),
        }
    }

    /// Removes an object immediately, and deletes its dependents.
    pub fn forget(&mut self, reference: &ObjectRef) {
        self.remove(&Name::of(reference));
    }

    /// Runs the engine until nothing is left to do at this moment; calls `see` after every step.
    ///
    /// # Errors
    /// If that takes more than [`MOST_ROUNDS`] iterations.
    pub fn rest(&mut self, mut see: impl FnMut(&Engine)) -> Result<(), Restless> {
        let mut last = String::new();
        for _ in 0..MOST_ROUNDS {
            let is_due = self.engine.next_wake().is_some_and(|wake| wake <= self.now);
            if self.events.is_empty() && !is_due && !self.stop_suspended() {
                return Ok(());
            }
            let events = std::mem::take(&mut self.events);
            for effect in self.engine.step(self.now, events) {
                // Events have no reader, and Serve calls no dashboard to answer them.
                if let Effect::Write(id, write) = effect {
                    last = write.target.to_string();
                    self.receive(id, write);
                }
            }
            see(&self.engine);
        }
        Err(Restless(last))
    }

    fn receive(&mut self, id: WriteId, write: Write) {
        let result = self.carry_out(&write);
        self.events.push(Event::Written { id, write: Box::new(write), result });
    }

    fn carry_out(&mut self, write: &Write) -> Result<Answer, WriteError> {
        let name = Name::of(&write.target);
        let refused =
            |code, message: &str| WriteError { code: Some(code), message: message.to_owned(), absent: code == 404 };
        match (&write.op, self.objects.get(&name)) {
            (WriteOp::Create(_), Some(_)) => return Err(refused(409, "already exists")),
            (WriteOp::Create(object), None) => self.create(&write.target, object.clone()),
            (_, None) => return Err(refused(404, "not found")),
            (WriteOp::Patch(body) | WriteOp::PatchStatus(body), Some(held)) => {
                let expected_version = body.pointer("/metadata/resourceVersion").and_then(Value::as_str);
                if expected_version.is_some_and(|version| Some(version) != held.meta().resource_version.as_deref()) {
                    return Err(refused(409, "the object has been modified"));
                }
                let held = held.manifest();
                let mut patched = held.clone();
                json_patch::merge(&mut patched, body);
                self.update(&name, &held, patched);
            }
            (WriteOp::Delete { .. }, Some(_)) => self.end(&name),
        }
        let answer = match write.op {
            WriteOp::Create(_) => Answer::Unwatched,
            _ => Answer::Gone,
        };
        Ok(self.objects.get(&name).cloned().map_or(answer, Answer::Object))
    }

    /// Stores a new object with the metadata that an API server would set. Unwatched kinds are
    /// ignored.
    fn create(&mut self, reference: &ObjectRef, mut object: Value) {
        if let Some(fields) = object.as_object_mut() {
            fields.remove("status");
        }
        let meta = &mut object["metadata"];
        meta["uid"] = json!(format!("dry-run-{}", self.version + 1));
        meta["creationTimestamp"] = json!(condition::whole_seconds(self.now));
        meta["generation"] = json!(1);
        self.change(reference, object);
    }

    fn update(&mut self, name: &Name, held: &Value, mut object: Value) {
        for field in ["resourceVersion", "uid", "creationTimestamp", "generation"] {
            object["metadata"][field] = held["metadata"][field].clone();
        }
        if object == *held {
            return;
        }
        if object["spec"] != held["spec"] {
            object["metadata"]["generation"] = json!(held["metadata"]["generation"].as_i64().unwrap_or(0) + 1);
        }
        if let Some(reference) = self.objects.get(name).map(Object::reference) {
            self.change(&reference, object);
            self.bury(name);
        }
    }

    /// Deletes an object: sets its deletion timestamp, and removes it if it has no finalizers.
    fn end(&mut self, name: &Name) {
        let Some(held) = self.objects.get(name) else { return };
        if held.meta().deletion_timestamp.is_none() {
            let (reference, mut terminating) = (held.reference(), held.manifest());
            terminating["metadata"]["deletionTimestamp"] = json!(Time(condition::whole_seconds(self.now)));
            self.change(&reference, terminating);
        }
        self.bury(name);
    }

    /// Removes a terminating object that has no finalizers.
    fn bury(&mut self, name: &Name) {
        let Some(meta) = self.objects.get(name).map(Object::meta) else { return };
        let is_protected = meta.finalizers.as_ref().is_some_and(|finalizers| !finalizers.is_empty());
        if meta.deletion_timestamp.is_some() && !is_protected {
            self.remove(name);
        }
    }

    fn remove(&mut self, name: &Name) {
        let Some(removed) = self.objects.remove(name) else { return };
        self.version += 1;
        let mut last = removed.manifest();
        last["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.events.extend(decoded(&removed.reference(), last).map(Event::Deleted));
        for orphan in self.owned_by(&removed.meta().uid.iter().cloned().collect()) {
            self.end(&orphan);
        }
    }

    fn change(&mut self, reference: &ObjectRef, mut object: Value) {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        if let Some(object) = decoded(reference, object) {
            self.objects.insert(Name::of(reference), object.clone());
            self.events.push(Event::Applied(object));
        }
    }

    /// Returns the objects that have an owner with one of these uids.
    fn owned_by(&self, owners: &BTreeSet<String>) -> Vec<Name> {
        let is_owned =
            |meta: &ObjectMeta| meta.owner_references.iter().flatten().any(|owner| owners.contains(&owner.uid));
        let owned = self.objects.iter().filter(|(_, object)| is_owned(object.meta()));
        owned.map(|(name, _)| name.clone()).collect()
    }

    /// Acts for the other controllers: removes the pods of suspended Jobs and RayJobs, and the
    /// RayClusters of suspended RayJobs. Returns true if it removed anything.
    fn stop_suspended(&mut self) -> bool {
        let suspended = self.objects.values().filter(|object| match object {
            Object::BatchJob(job) => job.spec.as_ref().is_some_and(|spec| spec.suspend == Some(true)),
            Object::RayJob(job) => job.spec.suspend == Some(true),
            _ => false,
        });
        let suspended: BTreeSet<String> = suspended.filter_map(|job| job.meta().uid.clone()).collect();
        let stops = |name: &Name| matches!(name.0.as_str(), "Pod" | "RayCluster");
        let stopping: Vec<Name> = self.owned_by(&suspended).into_iter().filter(stops).collect();
        for name in &stopping {
            self.remove(name);
        }
        !stopping.is_empty()
    }
}

/// Decodes an object; None if its kind is not watched. Objects of the snapshot and of the engine's
/// writes always decode.
fn decoded(reference: &ObjectRef, object: Value) -> Option<Object> {
    Object::decode(reference, object).ok().flatten()
}
