//! Checks the invariants on every change, in the order of the changes.

use jiff::Timestamp;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::api::{ApiServer, ObjectChange, kinds};
use crate::availability::AvailabilityChecker;
use crate::coverage::Coverage;
use crate::rollout_trace::RolloutTrace;
use crate::time::since_start;
use sluice_testkit::history::{self, Object, State};
use sluice_testkit::invariants::{InvariantChecker, Violation};

/// Maximum age of the state that a decision is based on: the longest watch delay plus the write
/// that follows.
const DECISION_LATENCY: std::time::Duration = std::time::Duration::from_secs(25);

/// A violation and the time at which it was seen.
#[derive(Debug, Clone, PartialEq)]
pub struct TimedViolation {
    /// Virtual time.
    pub at: Timestamp,
    /// The violated invariant and a description.
    pub violation: Violation,
}

impl std::fmt::Display for TimedViolation {
    /// Formats the time in seconds since the start of the run, as the wire log does.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:9.3} {}", since_start(self.at).as_secs_f64(), self.violation)
    }
}

/// Observes all changes of a run.
pub struct Observer {
    checker: InvariantChecker,
    availability: AvailabilityChecker,
    /// Histories that occurred.
    pub coverage: Coverage,
    /// Capacity and traffic states of incremental upgrades.
    pub rollout_trace: RolloutTrace,
    violations: Vec<TimedViolation>,
}

impl Observer {
    /// Returns an observer that has seen no change.
    pub fn new() -> Self {
        Self {
            checker: InvariantChecker::new(DECISION_LATENCY),
            availability: AvailabilityChecker::new(DECISION_LATENCY),
            coverage: Coverage::default(),
            rollout_trace: RolloutTrace::default(),
            violations: Vec::new(),
        }
    }

    /// Starts again with the objects that the API server has.
    pub fn restart(&mut self, now: Timestamp, api: &ApiServer) {
        let objects = kinds::all().iter().flat_map(|kind| api.list(&kind.kind).map(move |object| (&kind.kind, object)));
        let mut objects: Vec<Object> = objects.filter_map(|(kind, object)| to_typed(kind, object)).collect();
        // A pod is newer than its owner.
        objects.sort_by_key(|object| matches!(object, Object::Pod(_)));
        self.availability = AvailabilityChecker::new(DECISION_LATENCY);
        self.checker.restore(now, &objects);
        for object in objects {
            let change = history::Change { version: 0, observed_at: now, object, deleted: false };
            let _ = self.availability.observe(self.checker.state(), &change);
        }
    }

    /// Records a change and checks the invariants.
    pub fn observe(&mut self, now: Timestamp, change: &ObjectChange) {
        let Some(object) = to_typed(&change.kind.kind, &change.object) else { return };
        let change = history::Change { version: change.version, observed_at: now, object, deleted: change.deleted };
        self.coverage.observe_before(self.checker.state(), &change);
        let mut breaches = self.checker.observe(&change);
        breaches.extend(self.availability.observe(self.checker.state(), &change));
        self.rollout_trace.observe(&change);
        self.coverage.observe_after(self.checker.state(), &change);
        let found = breaches.into_iter().map(|breach| TimedViolation { at: now, violation: breach });
        self.violations.extend(found);
    }

    /// Records a violation that was detected elsewhere.
    pub fn record_violation(&mut self, at: Timestamp, breach: Violation) {
        self.violations.push(TimedViolation { at, violation: breach });
    }

    /// Records that a fault killed the process. (The restart at the end of a run does not count.)
    pub fn record_crash(&mut self) {
        self.coverage.record_crash(self.checker.state());
    }

    /// Returns the violations so far.
    pub fn violations(&self) -> &[TimedViolation] {
        &self.violations
    }

    /// Returns the current state of all objects.
    pub fn state(&self) -> &State {
        self.checker.state()
    }

    /// Returns the checker of the invariants that need no simulator.
    pub fn checker(&self) -> &InvariantChecker {
        &self.checker
    }
}

fn to_typed(kind: &str, object: &Value) -> Option<Object> {
    Some(match kind {
        "ClusterQueue" => Object::ClusterQueue(decode(object)),
        "Cohort" => Object::Cohort(decode(object)),
        "Workload" => Object::Workload(decode(object)),
        "RayService" => Object::RayService(decode(object)),
        "RayCluster" => Object::RayCluster(decode(object)),
        "Job" => Object::BatchJob(decode(object)),
        "Pod" => Object::Pod(decode(object)),
        "Service" => Object::Service(decode(object)),
        "HTTPRoute" => Object::HTTPRoute(decode(object)),
        _ => return None,
    })
}

fn decode<K: DeserializeOwned + for<'de> Deserialize<'de>>(object: &Value) -> K {
    K::deserialize(object)
        .unwrap_or_else(|error| panic!("the API server stored an object that does not decode: {object}: {error}"))
}
