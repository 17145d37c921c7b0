//! Somebody who sees every change in the order in which it happens, and says what must not have been.

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

/// A decision may be on its way for so long after what it rests on has changed: as late as a watch may be, and a write after it.
const ON_THE_WAY: std::time::Duration = std::time::Duration::from_secs(25);

/// A breach, and when it was seen.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// When.
    pub at: Timestamp,
    /// What.
    pub breach: Breach,
}

impl std::fmt::Display for Found {
    /// With its time as the trace has it.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:9.3} {}", age(self.at).as_secs_f64(), self.breach)
    }
}

/// Who watches the world.
pub struct Observer {
    watchdog: Watchdog,
    serving: Serving,
    /// Through which histories this world went.
    pub coverage: Coverage,
    /// How upgrades in steps went.
    pub course: Course,
    found: Vec<Found>,
}

impl Observer {
    /// One that has seen nothing.
    pub fn new() -> Self {
        Self {
            watchdog: Watchdog::new(ON_THE_WAY),
            serving: Serving::new(ON_THE_WAY),
            coverage: Coverage::default(),
            course: Course::default(),
            found: Vec::new(),
        }
    }

    /// Takes in a change.
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

    /// Takes note of a breach that somebody else saw.
    pub fn breach(&mut self, at: Timestamp, breach: Breach) {
        self.found.push(Found { at, breach });
    }

    /// Takes note that a fault killed the process. (That it is started anew in the end is no crash.)
    pub fn crashed(&mut self) {
        self.coverage.crashed(self.watchdog.state());
    }

    /// What must not have been, so far.
    pub fn found(&self) -> &[Found] {
        &self.found
    }

    /// Everything as it is now.
    pub fn state(&self) -> &State {
        self.watchdog.state()
    }

    /// Who watches the invariants.
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
    K::deserialize(object).unwrap_or_else(|error| panic!("the API server took {object}, which is none: {error}"))
}
