//! Results of a run.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::progress::{ClassLatency, Snapshot};

/// Number of points of the distribution of times.
const CURVE_POINTS: u32 = 200;

/// Results of a run, as they are written to a file.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Name of the scenario.
    pub scenario: String,
    /// Source of the writes.
    pub form: Form,
    /// Fraction of the scenario that was run.
    pub scale: f64,
    /// Number of objects.
    pub objects: usize,
    /// Time from the first creation until the last object was done, in seconds.
    pub wall_seconds: f64,
    /// Number of admissions, repeated ones included.
    pub admissions: usize,
    /// Admissions divided by the wall time.
    pub admissions_per_second: f64,
    /// Number of Workloads that lost their quota before they finished.
    pub evictions: usize,
    /// Number of finished Workloads.
    pub finished: usize,
    /// Times to admission, by class.
    pub time_to_admission: Vec<ClassReport>,
    /// Mean fraction of the quota in use while Workloads were pending. `None` if none was.
    pub quota_use_while_pending: Option<f64>,
    /// Requests of all but the tool, by verb, kind and subresource.
    pub requests: BTreeMap<String, u64>,
    /// Requests of the tool.
    pub own_requests: BTreeMap<String, u64>,
    /// CPU time of the API server, in seconds. `None` if it does not report it.
    pub api_server_cpu_seconds: Option<f64>,
    /// CPU time and memory of the manager. `None` if there is none.
    pub manager: Option<ManagerReport>,
    /// The run, second by second.
    pub samples: Vec<Sample>,
}

/// Source of the writes of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Form {
    /// A manager and the tool.
    Run,
    /// The tool alone, as fast as the API server takes them.
    Floor,
}

impl Form {
    /// Returns the name, as in the names of files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Floor => "floor",
        }
    }
}

/// Times from the answer to the creation of an object until its first admission was seen, in milliseconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClassReport {
    /// Name of the class.
    pub class: String,
    /// Number of objects.
    pub count: usize,
    /// Number of those that were admitted.
    pub admitted: u64,
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Maximum.
    pub max: f64,
    /// Distribution: times, and the fraction of objects that were admitted within each.
    pub curve: Vec<(f64, f64)>,
}

/// CPU time and memory of the manager.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ManagerReport {
    /// CPU time in the run, in seconds.
    pub cpu_seconds: f64,
    /// Maximum of the resident memory since its start, in bytes.
    pub peak_bytes: u64,
}

/// The run at one time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Sample {
    /// Time since the start, in seconds.
    pub second: f64,
    /// Fraction of the whole quota that is used.
    pub quota_used: f64,
    /// Number of pending Workloads.
    pub pending: usize,
    /// Number of objects that are admitted and have not finished.
    pub running: usize,
    /// Number of objects that were created.
    pub created: usize,
    /// Number of Workloads that exist.
    pub workloads: usize,
    /// Resident memory of the manager, in bytes. `None` if there is none.
    pub manager_bytes: Option<u64>,
}

impl Report {
    /// Returns the number of writes of all clients: requests other than GET, LIST and WATCH.
    pub fn writes(&self) -> u64 {
        let all = self.requests.iter().chain(&self.own_requests);
        let is_write = |request: &str| !["GET ", "LIST ", "WATCH "].iter().any(|verb| request.starts_with(verb));
        all.filter(|(request, _)| is_write(request)).map(|(_, count)| count).sum()
    }

    /// Returns the main numbers as text.
    pub fn summary(&self) -> String {
        let mut text = format!(
            "{} ({}): {} objects in {:.1} s, {} admissions ({:.0} a second), {} evictions, {} writes",
            self.scenario,
            self.form.name(),
            self.objects,
            self.wall_seconds,
            self.admissions,
            self.admissions_per_second,
            self.evictions,
            self.writes(),
        );
        for class in &self.time_to_admission {
            let ClassReport { class, admitted, count, mean, p50, p99, .. } = class;
            text += &format!("\n  {class}: {admitted} of {count} admitted");
            if *admitted > 0 {
                text += &format!(", mean {mean:.0} ms, p50 {p50:.0} ms, p99 {p99:.0} ms");
            }
        }
        if let Some(used) = self.quota_use_while_pending {
            text += &format!("\n  quota used while Workloads are pending: {:.1} %", used * 100.0);
        }
        if let Some(cpu) = self.api_server_cpu_seconds {
            text += &format!("\n  API server: {cpu:.1} s CPU");
        }
        if let Some(ManagerReport { cpu_seconds, peak_bytes }) = self.manager {
            text += &format!("\n  manager: {cpu_seconds:.1} s CPU, {} MiB", peak_bytes >> 20);
        }
        text
    }
}

impl Sample {
    /// Creates a sample of a snapshot.
    pub fn new(second: f64, snapshot: Snapshot, manager_bytes: Option<u64>) -> Self {
        let Snapshot { quota_used, pending, running, created, workloads } = snapshot;
        Self { second, quota_used, pending, running, created, workloads, manager_bytes }
    }
}

impl From<&ClassLatency> for ClassReport {
    fn from(latency: &ClassLatency) -> Self {
        let times = &latency.times;
        Self {
            class: latency.name.clone(),
            count: latency.count,
            admitted: times.len(),
            mean: times.mean() / 1000.0,
            p50: quantile(times, 0.5),
            p99: quantile(times, 0.99),
            max: quantile(times, 1.0),
            curve: curve(times),
        }
    }
}

/// Returns a quantile, in milliseconds.
fn quantile(times: &Histogram<u64>, quantile: f64) -> f64 {
    times.value_at_quantile(quantile) as f64 / 1000.0
}

fn curve(times: &Histogram<u64>) -> Vec<(f64, f64)> {
    if times.is_empty() {
        return Vec::new();
    }
    let fractions = (0..=CURVE_POINTS).map(|point| f64::from(point) / f64::from(CURVE_POINTS));
    fractions.map(|fraction| (quantile(times, fraction), fraction)).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns the report of a run in which all numbers are one.
    pub(crate) fn report(form: Form) -> Report {
        Report {
            scenario: "test".into(),
            form,
            scale: 1.0,
            objects: 1,
            wall_seconds: 1.0,
            admissions: 1,
            admissions_per_second: 1.0,
            evictions: 1,
            finished: 1,
            time_to_admission: Vec::new(),
            quota_use_while_pending: Some(1.0),
            requests: BTreeMap::from([("PATCH workloads/status".into(), 1), ("GET leases".into(), 1)]),
            own_requests: BTreeMap::from([("POST workloads".into(), 1)]),
            api_server_cpu_seconds: Some(1.0),
            manager: None,
            samples: Vec::new(),
        }
    }

    #[test]
    fn times_are_in_milliseconds() {
        let mut times = Histogram::new(3).expect("a histogram");
        for millis in 1..=100 {
            times.record(millis * 1000).expect("in range");
        }

        let class = ClassReport::from(&ClassLatency { name: "a".into(), count: 200, times });

        assert_eq!((class.count, class.admitted), (200, 100));
        assert!((class.p50 - 50.0).abs() < 0.1 && (class.p99 - 99.0).abs() < 0.1, "{class:?}");
        assert_eq!(class.curve.len(), 201);
    }

    #[test]
    fn class_without_admissions_has_no_curve() {
        let times = Histogram::new(3).expect("a histogram");

        let class = ClassReport::from(&ClassLatency { name: "a".into(), count: 2, times });

        assert_eq!((class.admitted, class.curve.len()), (0, 0));
    }

    #[test]
    fn reads_are_not_writes() {
        let report = report(Form::Run);

        assert_eq!(report.writes(), 2);
    }
}
