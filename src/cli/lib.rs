//! The command line.

mod explain;
pub mod options;
mod output;
mod plan;
mod replay;
mod state;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use options::{LogFormat, ManagerOptions, ResolvedOptions};
use sluice_api::crds;
use sluice_manager as manager;

/// Gates Ray workloads on GPU quota in Kubernetes.
#[derive(Debug, Parser)]
#[command(name = "sluice", version, about)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the queue manager and the Ray operator.
    Manager(Box<ManagerOptions>),
    /// Print the CustomResourceDefinitions that Sluice serves, as YAML.
    Crds,
    /// Tell why a job waits, what would let it run, and what it was granted.
    Explain(explain::ExplainOptions),
    /// Tell what a change would come to, before it is applied.
    #[command(subcommand)]
    Plan(plan::PlanCommand),
    /// Decide again what the manager decided, from the log that `manager --decision-log` wrote.
    ///
    /// Exits with 0 when every decision is made again, with 1 when one differs, and with 2 when the log can't be read.
    Replay {
        /// The log.
        file: PathBuf,
    },
}

/// Any reason for the command to fail, to be shown to the person who gave it.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Does what the command line says.
///
/// # Errors
/// When an option isn't allowed, the API server can't be reached, or the work ends by itself.
pub fn run() -> Result<ExitCode, Failure> {
    match CommandLine::parse().command {
        Command::Manager(options) => {
            let options = options.resolve()?;
            start_logging(&options)?;
            if !options.unsupported_fields.is_empty() {
                let fields = options.unsupported_fields.join(", ");
                tracing::warn!(fields, "the configuration file sets fields that Sluice doesn't act on");
            }
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
            runtime.block_on(manager::run(options.manager))?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Crds => {
            std::io::stdout().write_all(crds::to_yaml().as_bytes())?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Explain(options) => explain::run(options),
        Command::Plan(command) => plan::run(command),
        Command::Replay { file } => Ok(replay::run(&file)?),
    }
}

fn start_logging(options: &ResolvedOptions) -> Result<(), Failure> {
    let filter = tracing_subscriber::EnvFilter::try_new(&options.log_level)
        .map_err(|error| format!("--log-level: {:?}: {error}", options.log_level))?;
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match options.log_format {
        LogFormat::Text => logs.init(),
        LogFormat::Json => logs.json().flatten_event(true).init(),
    }
    Ok(())
}
