//! Prometheus metrics. Names and labels of the ClusterQueue metrics are Kueue's (Kueue 0.19
//! pkg/metrics/metrics.go), without the labels `status` and `replica_role`.

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use sluice_engine::{WriteError, WriteOutcome};
use sluice_plan::Write;
use sluice_queue::WorkloadCounts;

/// Labels of the ClusterQueue metrics.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ClusterQueueLabels {
    cluster_queue: String,
}

/// Labels of the write counter.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WriteLabels {
    kind: String,
    operation: String,
    result: String,
}

/// Metrics of the process.
#[derive(Debug, Clone)]
pub struct Metrics {
    registry: Arc<Registry>,
    pending: Family<ClusterQueueLabels, Gauge>,
    reserving: Family<ClusterQueueLabels, Gauge>,
    admitted: Family<ClusterQueueLabels, Gauge>,
    writes: Family<WriteLabels, Counter>,
    max_writes_in_flight: Gauge,
    step_duration: Histogram,
    decision_log_failures: Counter,
}

impl Default for Metrics {
    fn default() -> Self {
        let (pending, reserving, admitted) = (Family::default(), Family::default(), Family::default());
        let writes = Family::<WriteLabels, Counter>::default();
        let (max_writes_in_flight, decision_log_failures) = (Gauge::default(), Counter::default());
        // From 1 ms to 4 s: the shortest steps need no distinction, and the longest are a defect.
        let step_duration = Histogram::new(exponential_buckets(0.001, 2.0, 13));
        let mut registry = Registry::default();
        registry.register("kueue_pending_workloads", "Number of pending workloads, by ClusterQueue", pending.clone());
        registry.register(
            "kueue_reserving_active_workloads",
            "Number of workloads with reserved quota, by ClusterQueue",
            reserving.clone(),
        );
        registry.register(
            "kueue_admitted_active_workloads",
            "Number of admitted workloads, by ClusterQueue",
            admitted.clone(),
        );
        registry.register("sluice_writes", "Writes to the API server, by kind, operation and result", writes.clone());
        registry.register(
            "sluice_max_writes_in_flight",
            "Number of writes that can be in flight, as the latency of the API server allows",
            max_writes_in_flight.clone(),
        );
        registry.register(
            "sluice_step_duration_seconds",
            "Time of one step, which observes what has changed, decides and plans, and during which no other step starts",
            step_duration.clone(),
        );
        registry.register(
            "sluice_decision_log_failures",
            "Failed writes to the decision log",
            decision_log_failures.clone(),
        );
        Self {
            registry: Arc::new(registry),
            pending,
            reserving,
            admitted,
            writes,
            max_writes_in_flight,
            step_duration,
            decision_log_failures,
        }
    }
}

impl Metrics {
    /// Encodes all metrics in the OpenMetrics text format.
    pub fn encode_text(&self) -> String {
        let mut text = String::new();
        // Writing to a String can't fail.
        let _ = encode(&mut text, &self.registry);
        text
    }

    /// Counts a write by its result: `ok`, the HTTP status, or `unanswered`.
    pub fn record_write(&self, write: &Write, result: &Result<WriteOutcome, WriteError>) {
        let result = match result {
            Ok(_) => "ok".to_owned(),
            Err(WriteError { code: Some(code), .. }) => code.to_string(),
            Err(WriteError { code: None, .. }) => "unanswered".to_owned(),
        };
        let labels =
            WriteLabels { kind: write.target.kind.clone(), operation: write.op.operation().to_owned(), result };
        self.writes.get_or_create(&labels).inc();
    }

    /// Sets the number of writes that can be in flight.
    pub fn set_max_writes_in_flight(&self, limit: usize) {
        self.max_writes_in_flight.set(i64::try_from(limit).unwrap_or(i64::MAX));
    }

    /// Records the time that one step took.
    pub fn record_step(&self, duration: Duration) {
        self.step_duration.observe(duration.as_secs_f64());
    }

    /// Counts a failed write to the decision log.
    pub fn record_decision_log_failure(&self) {
        self.decision_log_failures.inc();
    }

    /// Sets the metrics of a ClusterQueue.
    pub fn set_cluster_queue(&self, name: &str, counts: WorkloadCounts) {
        let labels = ClusterQueueLabels { cluster_queue: name.to_owned() };
        for (family, value) in
            [(&self.pending, counts.pending), (&self.reserving, counts.reserving), (&self.admitted, counts.admitted)]
        {
            family.get_or_create(&labels).set(value.into());
        }
    }

    /// Removes the metrics of a deleted ClusterQueue.
    pub fn remove_cluster_queue(&self, name: &str) {
        let labels = ClusterQueueLabels { cluster_queue: name.to_owned() };
        for family in [&self.pending, &self.reserving, &self.admitted] {
            family.remove(&labels);
        }
    }
}
