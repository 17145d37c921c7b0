//! Errors of the tool.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::api::{ApiError, MetricsError};
use crate::process::ProcessError;
use crate::progress::{LatencyError, Violation};
use crate::scenario::ScenarioError;

/// Reason why a run fails.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The scenario can't be used.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// A request fails.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// The metrics of the API server can't be parsed.
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    /// The manager has ended.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// An invariant is broken.
    #[error("invariant violated after {seconds:.3} s: {violation}")]
    Violation {
        /// Time since the start of the run, in seconds.
        seconds: f64,
        /// The change that broke it.
        violation: Violation,
    },
    /// The run takes too long.
    #[error("timed out after {timeout:?}: {missing}")]
    TimedOut {
        /// Maximum time of a run.
        timeout: Duration,
        /// The objects that are not done, for display.
        missing: String,
    },
    /// No manager reports that it uses the ClusterQueues.
    #[error(
        "timed out after {timeout:?}: {inactive} of {total} ClusterQueues have no condition Active; does the manager run?"
    )]
    Inactive {
        /// Maximum time until they are active.
        timeout: Duration,
        /// Number of ClusterQueues that are not active.
        inactive: usize,
        /// Number of ClusterQueues.
        total: usize,
    },
    /// A time can't be recorded.
    #[error(transparent)]
    Latency(#[from] LatencyError),
    /// A file can't be read or written.
    #[error("failed to {what} {}: {source}", path.display())]
    File {
        /// Verb of the failed operation.
        what: &'static str,
        /// Its path.
        path: PathBuf,
        /// Error of the file system.
        source: std::io::Error,
    },
    /// A chart can't be drawn.
    #[error("failed to draw {}: {reason}", path.display())]
    Chart {
        /// Path of the file.
        path: PathBuf,
        /// Message of the drawing library.
        reason: String,
    },
    /// Runs of the suite failed.
    #[error("{failed} of {total} runs failed")]
    Suite {
        /// Number of runs that failed.
        failed: usize,
        /// Number of runs.
        total: usize,
    },
}

impl LoadError {
    /// Creates the error of a file.
    pub fn file(what: &'static str, path: &Path, source: std::io::Error) -> Self {
        Self::File { what, path: path.to_owned(), source }
    }
}
