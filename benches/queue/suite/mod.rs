//! The benchmark of the queue core, as a library: `main.rs` beside this runs it in full, and a test runs it in small so
//! that it keeps working.
//!
//! Time is virtual, so a run shows what the decisions are worth and not how fast the machine is: workloads arrive at given
//! times, run for a given time once admitted, and nothing else takes any. What is measured in real time is only the
//! inside of the engine, [`sluice_queue::Engine::step`] and [`sluice_queue::Engine::cycle`]; making the objects that the API
//! server would send is not the engine's work.

mod backlog;
mod book;
mod clock;
mod memory;
mod objects;
mod report;
mod run;
mod scenario;
mod shapes;
mod world;

use clap::ValueEnum;

pub use report::{Report, table};

/// One of the shapes that are measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Shape {
    /// 30 ClusterQueues in 5 cohorts, 15,000 workloads.
    Baseline,
    /// 1,000 ClusterQueues in 10 cohorts, 50,000 workloads.
    LargeScale,
    /// One ClusterQueue, 100,000 waiting workloads of 1,000 shapes, one unit of quota freed at a time.
    Backlog,
    /// 1,000 ClusterQueues with weights, half of which borrow what the other half comes to take back.
    FairSharing,
}

/// How much of a shape is run; 1 is all of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scale(pub f64);

impl Scale {
    /// A number of things, of which `full` make the whole shape; never fewer than `least`.
    fn of(self, full: usize, least: usize) -> usize {
        scaled(full, self.0).max(least)
    }

    /// Like [`Self::of`], for two numbers whose product is to be scaled.
    fn root_of(self, full: usize, least: usize) -> usize {
        scaled(full, self.0.sqrt()).max(least)
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
fn scaled(full: usize, factor: f64) -> usize {
    (full as f64 * factor).round() as usize
}

/// What went wrong in a run. Each is a fault of the engine, or of the benchmark.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    /// An object of the scenario is none.
    #[error("building an object of the scenario: {0}")]
    Object(#[from] serde_json::Error),
    /// More is held than there is.
    #[error("at {at} ms {holder} holds {held} of {resource}, and there are {limit}")]
    OverQuota {
        /// Virtual time, in milliseconds.
        at: i64,
        /// Name of the ClusterQueue, or number of the tree.
        holder: String,
        /// The resource.
        resource: &'static str,
        /// Units held.
        held: i64,
        /// Units that there are.
        limit: i64,
    },
    /// An effect that nothing in the scenario gives rise to, or about something that is not there.
    #[error("at {at} ms the engine wants what makes no sense here: {effect}")]
    Unexpected {
        /// Virtual time, in milliseconds.
        at: i64,
        /// The effect.
        effect: String,
    },
    /// Carrying out what the engine wants makes it want something else, for ever.
    #[error("at {at} ms the engine does not come to rest")]
    Restless {
        /// Virtual time, in milliseconds.
        at: i64,
    },
    /// Workloads take each other's quota, for ever.
    #[error("at {at} ms there have been {evictions} evictions, and there is no end to it")]
    Flapping {
        /// Virtual time, in milliseconds.
        at: i64,
        /// How many.
        evictions: u64,
    },
    /// Nothing runs and nothing is going to happen, and workloads wait.
    #[error("at {at} ms nothing runs any more, and {left} workloads wait")]
    Starved {
        /// Virtual time, in milliseconds.
        at: i64,
        /// How many.
        left: usize,
    },
    /// A latency could not be recorded.
    #[error("recording a latency: {0}")]
    Latency(#[from] hdrhistogram::RecordError),
    /// The histogram could not be made.
    #[error("making a histogram: {0}")]
    Histogram(#[from] hdrhistogram::CreationError),
}

/// Runs one shape to its end.
///
/// # Errors
/// When the engine breaks an invariant; see [`Broken`].
pub fn run(shape: Shape, scale: Scale) -> Result<Report, Broken> {
    match shape {
        Shape::Baseline => run::to_the_end("baseline", &shapes::baseline(scale)?),
        Shape::LargeScale => run::to_the_end("large-scale", &shapes::large_scale(scale)?),
        Shape::FairSharing => run::to_the_end("fair-sharing", &shapes::fair_sharing(scale)?),
        Shape::Backlog => backlog::run(scale),
    }
}
