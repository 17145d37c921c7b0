//! Benchmark of the scheduler, as a library: `main.rs` runs it in full, and a test runs it at small
//! scale to keep it working.
//!
//! Time is virtual, so the makespan shows the quality of the decisions and not the speed of the
//! machine: workloads arrive at given times, run for a given time once admitted, and nothing else
//! takes time. Real time is measured only inside the scheduler: [`sluice_queue::Scheduler::observe`] and
//! [`sluice_queue::Scheduler::run_cycle`]. Building the objects that the API server would send is
//! excluded.

mod backlog;
mod memory;
mod objects;
mod report;
mod run;
mod scenario;
mod scheduler_clock;
mod shapes;
mod simulated_cluster;
mod usage_audit;

use clap::ValueEnum;

pub use report::{Report, table};

/// A benchmark scenario.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Shape {
    /// 30 ClusterQueues in 5 cohorts, 15,000 workloads.
    Baseline,
    /// 1,000 ClusterQueues in 10 cohorts, 50,000 workloads.
    LargeScale,
    /// One ClusterQueue, 100,000 pending workloads of 1,000 shapes, one unit of quota released at a
    /// time.
    Backlog,
    /// 1,000 ClusterQueues with weights, half of which borrow quota that the other half reclaims.
    FairSharing,
}

/// Fraction of a shape to run; 1 is all of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scale(pub f64);

impl Scale {
    /// Scales `full`, the number in the whole shape; returns at least `least`.
    fn scale(self, full: usize, least: usize) -> usize {
        scaled(full, self.0).max(least)
    }

    /// Like [`scale`](Self::scale), for each of two numbers whose product is scaled.
    fn scale_root(self, full: usize, least: usize) -> usize {
        scaled(full, self.0.sqrt()).max(least)
    }
}

fn scaled(full: usize, factor: f64) -> usize {
    (full as f64 * factor).round() as usize
}

/// Error in a run: a bug in the scheduler or in the benchmark.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// An object of the scenario is invalid.
    #[error("failed to build an object of the scenario: {0}")]
    Object(#[from] serde_json::Error),
    /// Usage exceeds the quota.
    #[error("at {at} ms {holder} uses {held} of {resource}, more than its limit of {limit}")]
    OverQuota {
        /// Virtual time in milliseconds.
        at: i64,
        /// Name of the ClusterQueue or number of the tree, for display.
        holder: String,
        /// Name of the resource.
        resource: &'static str,
        /// Units in use.
        held: i64,
        /// Units that may be used.
        limit: i64,
    },
    /// A decision that the scenario cannot cause, or about an unknown object.
    #[error("at {at} ms the scheduler made an unexpected decision: {effect}")]
    UnexpectedDecision {
        /// Virtual time in milliseconds.
        at: i64,
        /// The decision.
        effect: String,
    },
    /// Applying decisions leads to new decisions without end.
    #[error("at {at} ms the scheduler does not converge")]
    DidNotConverge {
        /// Virtual time in milliseconds.
        at: i64,
    },
    /// Workloads preempt each other without end.
    #[error("at {at} ms workloads keep preempting each other after {evictions} evictions")]
    Flapping {
        /// Virtual time in milliseconds.
        at: i64,
        /// Number of evictions.
        evictions: u64,
    },
    /// Workloads are pending although nothing runs and no timer is left.
    #[error("at {at} ms no workload runs and {left} workloads are pending forever")]
    Starved {
        /// Virtual time in milliseconds.
        at: i64,
        /// Number of unfinished workloads.
        left: usize,
    },
    /// A latency could not be recorded.
    #[error("failed to record a latency: {0}")]
    Latency(#[from] hdrhistogram::RecordError),
    /// The histogram could not be created.
    #[error("failed to create a histogram: {0}")]
    Histogram(#[from] hdrhistogram::CreationError),
}

/// Runs one shape until all workloads have finished.
///
/// # Errors
/// If the scheduler violates an invariant; see [`BenchError`].
pub fn run(shape: Shape, scale: Scale) -> Result<Report, BenchError> {
    match shape {
        Shape::Baseline => run::run_scenario("baseline", &shapes::baseline(scale)?),
        Shape::LargeScale => run::run_scenario("large-scale", &shapes::large_scale(scale)?),
        Shape::FairSharing => run::run_scenario("fair-sharing", &shapes::fair_sharing(scale)?),
        Shape::Backlog => backlog::run(scale),
    }
}
