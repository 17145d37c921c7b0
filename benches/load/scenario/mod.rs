//! Scenarios: which queues there are and which load they get, read from a YAML file.

mod checks;
mod interval;
mod scale;

use std::path::{Path, PathBuf};

use serde::Deserialize;

pub use interval::Interval;

/// Error of a scenario file.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// The file can't be read.
    #[error("failed to read the scenario {}: {source}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Error of the file system.
        source: std::io::Error,
    },
    /// The file is not YAML, or a field is unknown, missing or of another type.
    #[error("failed to parse the scenario {}: {source}", path.display())]
    Parse {
        /// Path of the file.
        path: PathBuf,
        /// Error with the position in the file.
        source: Box<serde_saphyr::Error>,
    },
    /// Values are not allowed.
    #[error("the scenario {} is invalid:\n  {}", path.display(), problems.join("\n  "))]
    Invalid {
        /// Path of the file.
        path: PathBuf,
        /// One message for each invalid field, with its value and what is allowed.
        problems: Vec<String>,
    },
}

/// Queues, and the load that they get.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Scenario {
    /// Fraction of the load that the short form of the suite runs, above 0 and at most 1.
    pub short_scale: f64,
    /// Cohorts with their ClusterQueues.
    pub cohorts: Cohorts,
    /// The load, by class.
    pub classes: Vec<Class>,
    /// Class of which all objects are created before the first Workload is finished. `None`: a
    /// Workload is finished as soon as it has run.
    pub finish_after_created: Option<String>,
    /// Number of finished Workloads after which the run ends; the others stay as they are. `None`:
    /// the run ends once everything has finished.
    pub stop_after_finished: Option<usize>,
    /// Seed of random intervals.
    #[serde(default)]
    pub seed: u64,
}

/// Cohorts that are alike.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Cohorts {
    /// Number of cohorts.
    pub count: usize,
    /// ClusterQueues of each cohort.
    pub cluster_queues: ClusterQueues,
}

/// ClusterQueues that are alike. Each has a namespace and a LocalQueue.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClusterQueues {
    /// Number of ClusterQueues in each cohort.
    pub count: usize,
    /// Nominal quota of each, in CPUs.
    pub nominal_cpu: f64,
    /// Maximum that each borrows, in CPUs. `None`: no limit.
    pub borrowing_limit_cpu: Option<f64>,
    /// Scales the quota with the load.
    #[serde(default)]
    pub scale_quota: bool,
    /// Workloads that may be preempted.
    #[serde(default)]
    pub preemption: Preemption,
}

/// Workloads that may be preempted for one of a ClusterQueue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Preemption {
    /// Workloads of other ClusterQueues that borrow.
    #[serde(default)]
    pub reclaim_within_cohort: ReclaimWithinCohort,
    /// Workloads of the same ClusterQueue.
    #[serde(default)]
    pub within_cluster_queue: WithinClusterQueue,
}

/// Policy for Workloads of other ClusterQueues that borrow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub enum ReclaimWithinCohort {
    /// None is preempted.
    #[default]
    Never,
    /// Those of lower priority are.
    LowerPriority,
    /// All can be.
    Any,
}

/// Policy for Workloads of the same ClusterQueue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub enum WithinClusterQueue {
    /// None is preempted.
    #[default]
    Never,
    /// Those of lower priority are.
    LowerPriority,
    /// Those of lower priority are, and newer ones of the same.
    LowerOrNewerEqualPriority,
}

/// Objects of one size. Every ClusterQueue gets as many.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Class {
    /// Name, a lowercase DNS label.
    pub name: String,
    /// Kind of the objects.
    #[serde(default)]
    pub kind: Kind,
    /// Number of objects for each ClusterQueue.
    pub count: usize,
    /// Request of each pod, in CPUs.
    pub cpu: f64,
    /// Priority of the Workload; only for kind Workload.
    #[serde(default)]
    pub priority: i32,
    /// Time before each creation. `None`: all are created as fast as the API server takes them.
    pub every: Option<Interval>,
    /// Time from the admission until the Workload is finished; only for kind Workload. `None`: it
    /// runs until the end.
    pub run: Option<Interval>,
    /// Name of the class whose RayServices are upgraded; only for kind Upgrade.
    pub upgrades: Option<String>,
    /// Starts this class when another has reached a stage. `None`: it starts immediately.
    pub after: Option<After>,
    /// Scales the request with the load, and not the number of objects.
    #[serde(default)]
    pub scale_cpu: bool,
}

/// Kind of the created objects.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Deserialize)]
pub enum Kind {
    /// A Workload of one pod. The tool plays the part of its job.
    #[default]
    Workload,
    /// A suspended batch/v1 Job of one pod. It is admitted when `spec.suspend` is false.
    Job,
    /// A suspended RayCluster of a head and one worker. It is admitted when `status.state` is
    /// ready.
    RayCluster,
    /// A RayService of a head and one worker. It is admitted when it serves.
    RayService,
    /// An upgrade of a RayService to another version of Ray. It is admitted when the RayCluster of
    /// that version serves instead of the old one.
    Upgrade,
}

impl Kind {
    /// Returns true if its pods are those of RayClusters.
    pub fn is_ray(self) -> bool {
        matches!(self, Self::RayCluster | Self::RayService | Self::Upgrade)
    }

    /// Returns the number of pods of each object.
    pub fn pods(self) -> i64 {
        match self {
            Self::Workload | Self::Job => 1,
            Self::RayCluster | Self::RayService | Self::Upgrade => 2,
        }
    }
}

/// Start of a class.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct After {
    /// Name of the other class, which is listed before.
    pub class: String,
    /// Stage that all its objects have reached.
    pub is: Stage,
}

/// Stage of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Stage {
    /// The API server has accepted it.
    Created,
    /// It was admitted once.
    Admitted,
}

impl Scenario {
    /// Reads a scenario.
    ///
    /// # Errors
    /// If the file can't be read, is not a scenario, or has values that are not allowed.
    pub fn read(path: &Path) -> Result<Self, ScenarioError> {
        let text =
            std::fs::read_to_string(path).map_err(|source| ScenarioError::Read { path: path.to_owned(), source })?;
        let scenario: Self = serde_saphyr::from_str(&text)
            .map_err(|source| ScenarioError::Parse { path: path.to_owned(), source: Box::new(source) })?;
        let problems = scenario.problems();
        if problems.is_empty() { Ok(scenario) } else { Err(ScenarioError::Invalid { path: path.to_owned(), problems }) }
    }
}

#[cfg(test)]
mod tests;
