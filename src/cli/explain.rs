//! `sluice explain`: reports the queueing and admission state of one job.

use std::process::ExitCode;

use clap::Args;

use super::BoxError;
use super::output::OutputFormat;
use super::state::{LoadedState, StateSource};
use sluice_clock::Clock;
use sluice_engine::{Components, Engine};
use sluice_inspect::explain::explain;
use sluice_plan::ObjectId;

/// Options of `sluice explain`.
#[derive(Debug, Args)]
pub(super) struct ExplainOptions {
    /// Object to explain; KIND is rayservice, raycluster, rayjob, job, workload or pod
    #[arg(value_name = "KIND/NAME")]
    subject: Subject,
    #[command(flatten)]
    state: StateSource,
    /// Select the output format
    #[arg(long, short, value_enum, default_value_t = OutputFormat::Text)]
    output: OutputFormat,
}

/// Kind and name of the object to explain, as given on the command line.
#[derive(Debug, Clone)]
struct Subject {
    kind: &'static str,
    name: String,
}

impl std::str::FromStr for Subject {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (kind, name) = text.split_once('/').filter(|(_, name)| !name.is_empty()).ok_or("expected KIND/NAME")?;
        let kind = match kind.to_lowercase().as_str() {
            "rayservice" | "rayservices" => "RayService",
            "raycluster" | "rayclusters" => "RayCluster",
            "rayjob" | "rayjobs" => "RayJob",
            "job" | "jobs" => "Job",
            "workload" | "workloads" | "wl" => "Workload",
            "pod" | "pods" | "po" => "Pod",
            other => {
                return Err(format!(
                    "unknown kind {other:?}: expected rayservice, raycluster, rayjob, job, workload or pod"
                ));
            }
        };
        Ok(Self { kind, name: name.to_owned() })
    }
}

/// Prints the explanation of one job.
///
/// # Errors
/// If the state can't be read, or the object doesn't exist or isn't part of a job.
pub(super) fn run(options: ExplainOptions) -> Result<ExitCode, BoxError> {
    let LoadedState { snapshot, namespace, policy } = options.state.load()?;
    let engine = Engine::read_only(Components::ALL, policy.queue, snapshot.objects().to_vec(), Clock::system().now());
    let engine = engine.with_managed_jobs(policy.managed_jobs);
    let subject =
        ObjectId { kind: options.subject.kind.to_owned(), namespace: Some(namespace), name: options.subject.name };
    let explanation =
        explain(&engine, subject.clone()).ok_or_else(|| format!("{subject} not found, or not part of a job"))?;
    options.output.print(&explanation)?;
    Ok(ExitCode::SUCCESS)
}
