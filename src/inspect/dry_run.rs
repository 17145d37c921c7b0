//! Dry run of a change: the engine decides on a copy of the state, and its writes go into the copy.
//! No time passes, the Ray dashboard never answers, and suspended jobs stop immediately.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde_json::{Value, json};
use thiserror::Error;

use super::snapshot::Snapshot;
use sluice_api::condition;
use sluice_engine::WriteId;
use sluice_engine::cluster_state::Object;
use sluice_engine::tokens::TokenKey;
use sluice_engine::{ApiServerLoad, Command, Components, Engine, EngineInput, WriteError, WriteOutcome};
use sluice_jobframework::managed::ManagedJobsPolicy;
use sluice_plan::{ObjectId, ObjectRef, Write, WriteOp};
use sluice_queue::Settings;

/// Iteration limit for detecting non-convergence.
const MAX_ITERATIONS: usize = 1000;

/// Error of a dry run that reaches no fixpoint.
#[derive(Debug, Error)]
#[error("dry run did not converge within {MAX_ITERATIONS} iterations; the last write was to {0}")]
pub struct DidNotConverge(String);

/// Scheduler settings and managed-jobs policy of a dry run.
#[derive(Debug, Clone, Default)]
pub struct PolicyConfig {
    /// Settings of the scheduler.
    pub queue: Settings,
    /// Policy that selects the managed jobs.
    pub managed_jobs: ManagedJobsPolicy,
}

/// Copy of the state, and an engine that reads and writes it. A clone goes on independently.
#[derive(Debug, Clone)]
pub struct DryRun {
    engine: Engine,
    now: Timestamp,
    objects: BTreeMap<ObjectId, Object>,
    version: u64,
    events: Vec<EngineInput>,
}

impl DryRun {
    /// Creates a dry run that starts with the objects of `snapshot`.
    pub fn start(snapshot: &Snapshot, policy: &PolicyConfig, now: Timestamp) -> Self {
        let tokens = TokenKey::insecure();
        let engine = Engine::new(Components::ALL, policy.queue.clone(), [], tokens)
            .with_managed_jobs(policy.managed_jobs.clone())
            .with_immediate_reports();
        let mut dry_run = Self { engine, now, objects: BTreeMap::new(), version: 0, events: Vec::new() };
        for object in snapshot.objects() {
            let version = object.meta().resource_version.as_ref().and_then(|version| version.parse().ok());
            dry_run.version = dry_run.version.max(version.unwrap_or(0));
            dry_run.objects.insert(ObjectId::from(&object.reference()), object.clone());
            dry_run.events.push(EngineInput::Applied(object.clone()));
        }
        dry_run
    }

    /// Returns the engine.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Returns the object with this kind, namespace and name; None if there is none.
    pub fn get(&self, reference: &ObjectRef) -> Option<&Object> {
        self.objects.get(&ObjectId::from(reference))
    }

    /// Returns the current objects.
    #[cfg(test)]
    pub(crate) fn snapshot(&self) -> Snapshot {
        Snapshot::new(self.objects.values().cloned())
    }

    /// Creates an object, or replaces the one with the same kind and name.
    pub fn apply(&mut self, object: &Object) {
        let name = ObjectId::from(&object.reference());
        match self.objects.get(&name).map(Object::manifest) {
            Some(held) => self.update(&name, &held, object.manifest()),
            None => self.create(&object.reference(), object.manifest()),
        }
    }

    /// Removes an object immediately, and deletes its dependents.
    pub fn remove_with_dependents(&mut self, reference: &ObjectRef) {
        self.remove(&ObjectId::from(reference));
    }

    /// Runs the engine until nothing is left to do at this moment; calls `see` after every step.
    ///
    /// # Errors
    /// If that takes more than `MAX_ITERATIONS` iterations.
    pub fn run_to_fixpoint(&mut self, mut see: impl FnMut(&Engine)) -> Result<(), DidNotConverge> {
        let mut last = String::new();
        for _ in 0..MAX_ITERATIONS {
            let is_due = self.engine.next_deadline().is_some_and(|wake| wake <= self.now);
            if self.events.is_empty() && !is_due && !self.stop_suspended_jobs() {
                return Ok(());
            }
            let events = std::mem::take(&mut self.events);
            for effect in self.engine.step(self.now, events) {
                // Events have no reader, and Serve calls no dashboard to answer them.
                if let Command::Write(id, write) = effect {
                    last = write.target.to_string();
                    self.answer(id, write);
                }
            }
            see(&self.engine);
        }
        Err(DidNotConverge(last))
    }

    fn answer(&mut self, id: WriteId, write: Write) {
        let result = self.execute(&write);
        self.events.push(EngineInput::Written { id, write: Box::new(write), result, load: ApiServerLoad::Low });
    }

    fn execute(&mut self, write: &Write) -> Result<WriteOutcome, WriteError> {
        let name = ObjectId::from(&write.target);
        let refused = |code, message: &str| WriteError {
            code: Some(code),
            message: message.to_owned(),
            target_not_found: code == 404,
            retry_after: None,
        };
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
            (WriteOp::Delete { .. }, Some(_)) => self.delete(&name),
        }
        let answer = match write.op {
            WriteOp::Create(_) => WriteOutcome::Untracked,
            _ => WriteOutcome::Deleted,
        };
        Ok(self.objects.get(&name).cloned().map_or(answer, WriteOutcome::Object))
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
        self.store(reference, object);
    }

    fn update(&mut self, name: &ObjectId, held: &Value, mut object: Value) {
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
            self.store(&reference, object);
            self.remove_if_finalized(name);
        }
    }

    /// Deletes an object: sets its deletion timestamp, and removes it if it has no finalizers.
    fn delete(&mut self, name: &ObjectId) {
        let Some(held) = self.objects.get(name) else { return };
        if held.meta().deletion_timestamp.is_none() {
            let (reference, mut terminating) = (held.reference(), held.manifest());
            terminating["metadata"]["deletionTimestamp"] = json!(Time(condition::whole_seconds(self.now)));
            self.store(&reference, terminating);
        }
        self.remove_if_finalized(name);
    }

    /// Removes a terminating object that has no finalizers.
    fn remove_if_finalized(&mut self, name: &ObjectId) {
        let Some(meta) = self.objects.get(name).map(Object::meta) else { return };
        let is_protected = meta.finalizers.as_ref().is_some_and(|finalizers| !finalizers.is_empty());
        if meta.deletion_timestamp.is_some() && !is_protected {
            self.remove(name);
        }
    }

    fn remove(&mut self, name: &ObjectId) {
        let Some(removed) = self.objects.remove(name) else { return };
        self.version += 1;
        let mut last = removed.manifest();
        last["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.events.extend(decode(&removed.reference(), last).map(EngineInput::Deleted));
        for orphan in self.dependents_of(&removed.meta().uid.iter().cloned().collect()) {
            self.delete(&orphan);
        }
    }

    fn store(&mut self, reference: &ObjectRef, mut object: Value) {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        if let Some(object) = decode(reference, object) {
            self.objects.insert(ObjectId::from(reference), object.clone());
            self.events.push(EngineInput::Applied(object));
        }
    }

    /// Returns the objects that have an owner with one of these uids.
    fn dependents_of(&self, owners: &BTreeSet<String>) -> Vec<ObjectId> {
        let is_owned =
            |meta: &ObjectMeta| meta.owner_references.iter().flatten().any(|owner| owners.contains(&owner.uid));
        let owned = self.objects.iter().filter(|(_, object)| is_owned(object.meta()));
        owned.map(|(name, _)| name.clone()).collect()
    }

    /// Acts for the other controllers: removes the pods of suspended Jobs and RayJobs, and the
    /// RayClusters of suspended RayJobs. Returns true if it removed anything.
    fn stop_suspended_jobs(&mut self) -> bool {
        let suspended = self.objects.values().filter(|object| match object {
            Object::BatchJob(job) => job.spec.as_ref().is_some_and(|spec| spec.suspend == Some(true)),
            Object::RayJob(job) => job.spec.suspend == Some(true),
            _ => false,
        });
        let suspended: BTreeSet<String> = suspended.filter_map(|job| job.meta().uid.clone()).collect();
        let stops = |name: &ObjectId| matches!(name.kind.as_str(), "Pod" | "RayCluster");
        let stopping: Vec<ObjectId> = self.dependents_of(&suspended).into_iter().filter(stops).collect();
        for name in &stopping {
            self.remove(name);
        }
        !stopping.is_empty()
    }
}

/// Decodes an object; None if its kind is not watched. Objects of the snapshot and of the engine's
/// writes always decode.
fn decode(reference: &ObjectRef, object: Value) -> Option<Object> {
    Object::decode(&reference.types(), object).ok().flatten()
}
