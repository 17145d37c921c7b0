//! `sluice explain`: where a job stands, and why.

use std::process::ExitCode;

use clap::Args;
use jiff::Timestamp;

use super::Failure;
use super::output::Output;
use super::state::{State, StateOptions};
use sluice_engine::{Engine, Halves};
use sluice_inspect::explain::explain;
use sluice_plan::ObjectRef;

/// What `sluice explain` can be told.
#[derive(Debug, Args)]
pub(super) struct ExplainOptions {
    /// What to explain, as KIND/NAME: a rayservice, raycluster, rayjob, job, workload or pod.
    subject: Subject,
    #[command(flatten)]
    state: StateOptions,
    /// How to tell it.
    #[arg(long, short, value_enum, default_value_t = Output::Text)]
    output: Output,
}

/// An object that somebody asks about, without its namespace.
#[derive(Debug, Clone)]
struct Subject {
    kind: &'static str,
    name: String,
}

impl std::str::FromStr for Subject {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (kind, name) = text.split_once('/').filter(|(_, name)| !name.is_empty()).ok_or("it is not KIND/NAME")?;
        let kind = match kind.to_lowercase().as_str() {
            "rayservice" | "rayservices" => "RayService",
            "raycluster" | "rayclusters" => "RayCluster",
            "rayjob" | "rayjobs" => "RayJob",
            "job" | "jobs" => "Job",
            "workload" | "workloads" | "wl" => "Workload",
            "pod" | "pods" | "po" => "Pod",
            other => {
                return Err(format!("kind {other:?} is none of rayservice, raycluster, rayjob, job, workload and pod"));
            }
        };
        Ok(Self { kind, name: name.to_owned() })
    }
}

/// Explains where a job stands.
///
/// # Errors
/// When the state can't be read, or there is no such job.
pub(super) fn run(options: ExplainOptions) -> Result<ExitCode, Failure> {
    let State { snapshot, namespace, policy } = options.state.read()?;
    let engine = Engine::onlooker(Halves::BOTH, policy.queue, snapshot.objects().to_vec(), Timestamp::now());
    let engine = engine.managing(policy.jobs);
    let subject = ObjectRef {
        api_version: String::new(),
        kind: options.subject.kind.to_owned(),
        plural: String::new(),
        namespace: Some(namespace),
        name: options.subject.name,
    };
    let explanation =
        explain(&engine, &subject).ok_or_else(|| format!("there is no {subject} that is a job, or a part of one"))?;
    options.output.print(&explanation)?;
    Ok(ExitCode::SUCCESS)
}
