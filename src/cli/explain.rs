//! `sluice explain`: where a job stands, and why.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use jiff::Timestamp;

use super::Failure;
use crate::config::Configuration;
use crate::engine::plan::ObjectRef;
use crate::engine::{Engine, Halves};
use crate::inspect::explain::{Explanation, explain};
use crate::inspect::snapshot::Snapshot;
use crate::manager;

/// What `sluice explain` can be told.
#[derive(Debug, Args)]
pub(super) struct ExplainOptions {
    /// What to explain, as KIND/NAME: a rayservice, raycluster, rayjob, job, workload or pod.
    subject: Subject,
    /// Its namespace [default: that of the kubeconfig, or "default" with --from].
    #[arg(long, short, value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// A folder with the objects as YAML or JSON files, to be looked at in place of the cluster.
    #[arg(long, value_name = "FOLDER")]
    from: Option<PathBuf>,
    /// The configuration file of the manager, if it has one.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// How to tell it.
    #[arg(long, short, value_enum, default_value_t = Output::Text)]
    output: Output,
}

/// How something is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// For people.
    Text,
    /// For programs.
    Json,
    /// For programs.
    Yaml,
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
    let configuration = options.config.as_deref().map(configuration).transpose()?.unwrap_or_default();
    let (snapshot, namespace) = match &options.from {
        Some(folder) => (Snapshot::of_folder(folder)?, "default".to_owned()),
        None => of_cluster()?,
    };
    let halves = Halves { queue_manager: true, ray_operator: true };
    let engine = Engine::onlooker(halves, configuration.queue, snapshot.objects(), Timestamp::now());
    let engine = engine.managing(configuration.jobs);
    let subject = ObjectRef {
        api_version: String::new(),
        kind: options.subject.kind.to_owned(),
        plural: String::new(),
        namespace: Some(options.namespace.unwrap_or(namespace)),
        name: options.subject.name,
    };
    let explanation =
        explain(&engine, &subject).ok_or_else(|| format!("there is no {subject} that is a job, or a part of one"))?;
    print(&explanation, options.output)?;
    Ok(ExitCode::SUCCESS)
}

fn configuration(path: &Path) -> Result<Configuration, Failure> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("reading {}: {error}", path.display()))?;
    Ok(Configuration::from_yaml(&text).map_err(|error| format!("{}: {error}", path.display()))?)
}

fn of_cluster() -> Result<(Snapshot, String), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let client = manager::connect().await?;
        let namespace = client.default_namespace().to_owned();
        Ok((Snapshot::of_cluster(&client).await?, namespace))
    })
}

fn print(explanation: &Explanation, output: Output) -> Result<(), Failure> {
    match output {
        Output::Text => print!("{explanation}"),
        Output::Json => println!("{}", serde_json::to_string_pretty(explanation)?),
        Output::Yaml => print!("{}", serde_saphyr::to_string(explanation)?),
    }
    Ok(())
}
