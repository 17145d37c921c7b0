//! Checks the invariants on every change, in the order of the changes.

use jiff::Timestamp;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::api::Change;
use crate::course::Course;
use crate::coverage::Coverage;
use crate::serving::Serving;
use crate::time::age;
use sluice_testkit::history::{self, Object, State};
use sluice_testkit::invariants::{Breach, Watchdog};

/// Maximum age of the state that a decision is based on: the longest watch delay plus the write
/// that follows.
const ON_THE_WAY: std::time::Duration = std::time::Duration::from_secs(25);

/// A violation and the time at which it was seen.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// Virtual time.
    pub at: Timestamp,
    /// The violated invariant and a description.
    pub breach: Breach,
}

impl std::fmt::Display for Found {
    /// Formats the time in seconds since the start of the run, as the wire log does.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:9.3} {}", age(self.at).as_secs_f64(), self.breach)
    }
}

/// Observes all changes of a run.
pub struct Observer {
    watchdog: Watchdog,
    serving: Serving,
    /// Histories that occurred.
    pub coverage: Coverage,
    /// Capacity and traffic states of incremental upgrades.
    pub course: Course,
    found: Vec<Found>,
}

impl Observer {
    /// Returns an observer that has seen no change.
    pub fn new() -> Self {
        Self {
            watchdog: Watchdog::new(ON_THE_WAY),
            serving: Serving::new(ON_THE_WAY),
            coverage: Coverage::default(),
            course: Course::default(),
            found: Vec::new(),
        }
    }

    /// Records a change and checks the invariants.
    pub fn see(&mut self, now: Timestamp, change: &Change) {
        let Some(object) = typed(&change.kind.kind, &change.object) else { return };
        let change = history::Change { version: change.version, heard: now, object, gone: change.gone };
        self.coverage.before(self.watchdog.state(), &change);
        let mut breaches = self.watchdog.see(&change);
        breaches.extend(self.serving.see(self.watchdog.state(), &change));
        self.course.see(&change);
        self.coverage.after(self.watchdog.state(), &change);
        let found = breaches.into_iter().map(|breach| Found { at: now, breach });
        self.found.extend(found);
    }

    /// Records a violation that was detected elsewhere.
    pub fn breach(&mut self, at: Timestamp, breach: Breach) {
        self.found.push(Found { at, breach });
    }

    /// Records that a fault killed the process. (The restart at the end of a run does not count.)
    pub fn crashed(&mut self) {
        self.coverage.crashed(self.watchdog.state());
    }

    /// Returns the violations so far.
    pub fn found(&self) -> &[Found] {
        &self.found
    }

    /// Returns the current state of all objects.
    pub fn state(&self) -> &State {
        self.watchdog.state()
    }

    /// Returns the checker of the invariants that need no simulator.
    pub fn watchdog(&self) -> &Watchdog {
        &self.watchdog
    }
}

fn typed(kind: &str, object: &Value) -> Option<Object> {
    Some(match kind {
        "ClusterQueue" => Object::ClusterQueue(decode(object)),
        "Cohort" => Object::Cohort(decode(object)),
        "Workload" => Object::Workload(decode(object)),
        "RayService" => Object::RayService(decode(object)),
        "RayCluster" => Object::RayCluster(decode(object)),
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
