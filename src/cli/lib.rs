//! Command line of `sluice`.

mod explain;
pub mod options;
mod output;
mod plan;
mod replay;
mod state;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};

use options::{LogFormat, ManagerOptions, ResolvedOptions};
use sluice_api::crds;
use sluice_manager as manager;

/// Gates Ray workloads on GPU quota in Kubernetes.
#[derive(Debug, Parser)]
#[command(name = "sluice", version)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the queue manager and the Ray operator
    Manager(Box<ManagerOptions>),
    /// Print the CustomResourceDefinitions of Sluice as YAML
    Crds,
    /// Explain why a job is pending, what would unblock it, and which quota it holds
    Explain(explain::ExplainOptions),
    /// Preview the effect of a change before applying it
    #[command(subcommand)]
    Plan(plan::PlanCommand),
    /// Replay a decision log and report differences
    ///
    /// The log is one written by `sluice manager --decision-log FILE`. Exit code: 0 if every
    /// decision is the same, 1 if a decision differs, 2 if the log can't be read.
    Replay {
        /// Read the decision log from this file
        file: PathBuf,
    },
}

/// Error of a command, printed to standard error.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Returns the definition of the command line, from which its reference page is generated.
pub fn command() -> clap::Command {
    CommandLine::command()
}

/// Parses the command line and runs the command.
///
/// # Errors
/// If an option is invalid, the API server can't be reached, or the command fails.
pub fn run() -> Result<ExitCode, BoxError> {
    match CommandLine::parse().command {
        Command::Manager(options) => {
            let options = options.resolve()?;
            start_logging(&options)?;
            if !options.unsupported_fields.is_empty() {
                let fields = options.unsupported_fields.join(", ");
                tracing::warn!(fields, "ignoring unsupported fields of the configuration file");
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

fn start_logging(options: &ResolvedOptions) -> Result<(), BoxError> {
    let filter = tracing_subscriber::EnvFilter::try_new(&options.log_level)
        .map_err(|error| format!("--log-level: {:?}: {error}", options.log_level))?;
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match options.log_format {
        LogFormat::Text => logs.init(),
        LogFormat::Json => logs.json().flatten_event(true).init(),
    }
    Ok(())
}
