//! The command line.

pub mod options;

use std::io::Write as _;

use clap::{Parser, Subcommand};

use crate::api::crds;
use crate::manager;
use options::{LogFormat, ManagerOptions, Settings};

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
}

/// Any reason for the command to fail, to be shown to the person who gave it.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Does what the command line says.
///
/// # Errors
/// When an option isn't allowed, the API server can't be reached, or the work ends by itself.
pub fn run() -> Result<(), Failure> {
    match CommandLine::parse().command {
        Command::Manager(options) => {
            let settings = options.settings()?;
            start_logging(&settings)?;
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
            runtime.block_on(manager::run(settings))
        }
        Command::Crds => Ok(std::io::stdout().write_all(crds::to_yaml().as_bytes())?),
    }
}

fn start_logging(settings: &Settings) -> Result<(), Failure> {
    let filter = tracing_subscriber::EnvFilter::try_new(&settings.log_level)
        .map_err(|error| format!("logLevel: {:?}: {error}", settings.log_level))?;
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match settings.log_format {
        LogFormat::Text => logs.init(),
        LogFormat::Json => logs.json().flatten_event(true).init(),
    }
    Ok(())
}
