//! What Sluice would do about a change, played on a copy of the state: its engine decides as ever, and what it writes goes into
//! the copy. No time passes, nothing of Ray answers, and who has to stop has stopped at once.

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

/// After so many rounds the engine turns in circles.
const MOST_ROUNDS: usize = 1000;

/// There is no end to what is to be done.
#[derive(Debug, Error)]
#[error("after {MOST_ROUNDS} rounds there is still something to do; the last was about {0}")]
pub struct Restless(String);

/// What holds for the queue and for jobs.
#[derive(Debug, Clone, Default)]
pub struct Policy {
    /// For the queue as a whole.
    pub queue: Settings,
    /// For which jobs are managed.
    pub jobs: Rules,
}

/// A copy of the state, and the engine that sees it.
#[derive(Debug)]
pub struct Rehearsal {
    engine: Engine,
    now: Timestamp,
    objects: BTreeMap<Name, Object>,
    version: u64,
    events: Vec<Event>,
}

/// Kind, namespace and name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Name(String, String, String);

impl Name {
    fn of(reference: &ObjectRef) -> Self {
        Self(reference.kind.clone(), reference.namespace.clone().unwrap_or_default(), reference.name.clone())
    }
}

impl Rehearsal {
    /// Begins with what there is.
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

    /// The engine, to be asked.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// All objects, as they are now.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::of(self.objects.values().cloned())
    }

    /// Puts an object there, in place of the one that has its name, if there is one.
    pub fn put(&mut self, object: &Object) {
        let name = Name::of(&object.reference());
        match self.objects.get(&name).map(Object::manifest) {
            Some(held) => self.update(&name, &held, object.manifest()),
            None => self.create(&object.reference(), object.manifest()),
        }
    }

    /// Takes an object away, with all that it owns, as if they had never been.
    pub fn forget(&mut self, reference: &ObjectRef) {
        self.remove(&Name::of(reference));
    }

    /// Lets the engine do all that is to be done at this moment; `see` sees it after every step.
    ///
    /// # Errors
    /// When there is no end of it.
    pub fn rest(&mut self, mut see: impl FnMut(&Engine)) -> Result<(), Restless> {
        let mut last = String::new();
        for _ in 0..MOST_ROUNDS {
            let is_due = self.engine.next_wake().is_some_and(|wake| wake <= self.now);
            if self.events.is_empty() && !is_due && !self.stop_suspended() {
                return Ok(());
            }
            let events = std::mem::take(&mut self.events);
            for effect in self.engine.step(self.now, events) {
                // Nobody reads what is told, and nothing of Ray is there to answer.
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
            (WriteOp::Create(_), Some(_)) => return Err(refused(409, "it exists")),
            (WriteOp::Create(object), None) => self.create(&write.target, object.clone()),
            (_, None) => return Err(refused(404, "it is gone")),
            (WriteOp::Patch(body) | WriteOp::PatchStatus(body), Some(held)) => {
                let based_on = body.pointer("/metadata/resourceVersion").and_then(Value::as_str);
                if based_on.is_some_and(|version| Some(version) != held.meta().resource_version.as_deref()) {
                    return Err(refused(409, "it has changed"));
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

    /// An object of a kind that nobody watches is of no consequence.
    fn create(&mut self, reference: &ObjectRef, mut object: Value) {
        if let Some(fields) = object.as_object_mut() {
            fields.remove("status");
        }
        let meta = &mut object["metadata"];
        meta["uid"] = json!(format!("rehearsal-{}", self.version + 1));
        meta["creationTimestamp"] = json!(condition::whole_seconds(self.now));
        meta["generation"] = json!(1);
        self.change(reference, object);
    }

    fn update(&mut self, name: &Name, held: &Value, mut object: Value) {
        for kept in ["resourceVersion", "uid", "creationTimestamp", "generation"] {
            object["metadata"][kept] = held["metadata"][kept].clone();
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

    /// Begins the end of an object.
    fn end(&mut self, name: &Name) {
        let Some(held) = self.objects.get(name) else { return };
        if held.meta().deletion_timestamp.is_none() {
            let (reference, mut ending) = (held.reference(), held.manifest());
            ending["metadata"]["deletionTimestamp"] = json!(Time(condition::whole_seconds(self.now)));
            self.change(&reference, ending);
        }
        self.bury(name);
    }

    /// Removes an object that is to go, once nothing keeps it.
    fn bury(&mut self, name: &Name) {
        let Some(meta) = self.objects.get(name).map(Object::meta) else { return };
        let is_kept = meta.finalizers.as_ref().is_some_and(|finalizers| !finalizers.is_empty());
        if meta.deletion_timestamp.is_some() && !is_kept {
            self.remove(name);
        }
    }

    fn remove(&mut self, name: &Name) {
        let Some(gone) = self.objects.remove(name) else { return };
        self.version += 1;
        let mut last = gone.manifest();
        last["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.events.extend(decoded(&gone.reference(), last).map(Event::Deleted));
        for orphan in self.owned_by(&gone.meta().uid.iter().cloned().collect()) {
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

    /// The names of all that these owners own, by their uids.
    fn owned_by(&self, owners: &BTreeSet<String>) -> Vec<Name> {
        let is_owned =
            |meta: &ObjectMeta| meta.owner_references.iter().flatten().any(|owner| owners.contains(&owner.uid));
        let owned = self.objects.iter().filter(|(_, object)| is_owned(object.meta()));
        owned.map(|(name, _)| name.clone()).collect()
    }

    /// What others do with a job that is suspended: its pods go, and with a RayJob its cluster. Returns whether anything went.
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

/// The object, if it is of a kind that is watched. What was taken in before, or written by the engine, is as it should be.
fn decoded(reference: &ObjectRef, object: Value) -> Option<Object> {
    Object::decode(reference, object).ok().flatten()
}
