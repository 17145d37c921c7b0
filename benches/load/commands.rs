//! Command line.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use sluice_api::duration;

use crate::api::ApiClient;
use crate::error::LoadError;
use crate::plan::LoadPlan;
use crate::plots;
use crate::report::Report;
use crate::scenario::Scenario;
use crate::session::{self, SessionOptions};
use crate::suite;

/// Measure a queue manager under load.
#[derive(Debug, Parser)]
#[command(name = "load")]
pub struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run scenarios one after the other against an API server and a manager that run
    Run {
        /// Scenario files
        #[arg(required = true)]
        scenarios: Vec<PathBuf>,
        #[command(flatten)]
        server: ServerOptions,
        /// Process id of the manager
        #[arg(long)]
        manager_pid: u32,
        #[command(flatten)]
        options: RunOptions,
    },
    /// Make the writes of a scenario without a manager, as fast as the API server takes them
    Floor {
        /// Scenario file
        scenario: PathBuf,
        #[command(flatten)]
        server: ServerOptions,
        /// Make the writes of the manager with this kubeconfig, if policies allow them to it alone
        #[arg(long)]
        manager_kubeconfig: Option<PathBuf>,
        #[command(flatten)]
        options: RunOptions,
    },
    /// Run all scenarios on fresh control planes, without a manager and with Sluice, and compare
    Suite {
        /// Scenarios to run; all if omitted
        names: Vec<String>,
        /// Fraction of each scenario to run, above 0 and at most 1; its short form if omitted
        #[arg(long, value_parser = factor)]
        scale: Option<f64>,
        /// Binary of the manager
        #[arg(long, default_value = "target/release/sluice")]
        manager: PathBuf,
        #[command(flatten)]
        limits: Limits,
        /// Write the results into this folder
        #[arg(long)]
        output: PathBuf,
    },
}

#[derive(Debug, Args)]
struct ServerOptions {
    /// Kubeconfig of an administrator
    #[arg(long)]
    kubeconfig: PathBuf,
}

#[derive(Debug, Args)]
struct RunOptions {
    /// Fraction of each scenario to run, above 0 and at most 1
    #[arg(long, default_value_t = 1.0, value_parser = factor)]
    scale: f64,
    #[command(flatten)]
    limits: Limits,
    /// Write the results into this folder
    #[arg(long)]
    output: PathBuf,
}

/// Limits of each run.
#[derive(Debug, Clone, Copy, Args)]
pub struct Limits {
    /// Maximum number of creations in flight, and of other writes
    #[arg(long, default_value_t = 32, value_parser = concurrency)]
    pub concurrency: usize,
    /// Maximum time of a run
    #[arg(long, default_value = "20m", value_parser = timeout)]
    pub timeout: Duration,
}

impl Limits {
    /// Returns the options of a run of this fraction of a scenario.
    pub fn session(self, scale: f64) -> SessionOptions {
        SessionOptions { concurrency: self.concurrency, timeout: self.timeout, scale }
    }
}

/// Executes a command.
///
/// # Errors
/// If a run fails, or its results can't be written.
pub async fn execute(command_line: CommandLine) -> Result<(), LoadError> {
    match command_line.command {
        Command::Run { scenarios, server, manager_pid, options } => {
            for path in &scenarios {
                let client = ApiClient::connect(&server.kubeconfig).await?;
                let limits = options.limits.session(options.scale);
                let report = session::run(plan(path, options.scale)?, client, manager_pid, limits).await?;
                save(&report, &options.output)?;
            }
            Ok(())
        }
        Command::Floor { scenario, server, manager_kubeconfig, options } => {
            let user = ApiClient::connect(&server.kubeconfig).await?;
            let manager = match &manager_kubeconfig {
                Some(kubeconfig) => ApiClient::connect(kubeconfig).await?.counted_with(&user),
                None => user.clone(),
            };
            let limits = options.limits.session(options.scale);
            let report = session::floor(plan(&scenario, options.scale)?, user, manager, limits).await?;
            save(&report, &options.output)
        }
        Command::Suite { names, scale, manager, limits, output } => {
            suite::run(&suite::SuiteOptions { names, scale, manager, limits, output }).await
        }
    }
}

/// Returns the plan of a fraction of a scenario. Its name is that of the file.
fn plan(path: &Path, scale: f64) -> Result<LoadPlan, LoadError> {
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    Ok(LoadPlan::new(&name, &Scenario::read(path)?.scaled(scale)))
}

/// Writes a report and its charts into a folder, and prints its main numbers.
///
/// # Errors
/// If a file can't be written.
pub fn save(report: &Report, folder: &Path) -> Result<(), LoadError> {
    std::fs::create_dir_all(folder).map_err(|source| LoadError::file("create", folder, source))?;
    let path = folder.join(format!("{}-{}.json", report.scenario, report.form.name()));
    let json = serde_json::to_string_pretty(report).map_err(|source| LoadError::file("write", &path, source.into()))?;
    std::fs::write(&path, json + "\n").map_err(|source| LoadError::file("write", &path, source))?;
    plots::draw(report, folder)?;
    println!("{}", report.summary());
    Ok(())
}

fn factor(text: &str) -> Result<f64, String> {
    let factor: f64 = text.parse().map_err(|error| format!("{error}"))?;
    if factor > 0.0 && factor <= 1.0 { Ok(factor) } else { Err("must be above 0 and at most 1".to_owned()) }
}

fn concurrency(text: &str) -> Result<usize, String> {
    let number: usize = text.parse().map_err(|error| format!("{error}"))?;
    if (1..=1000).contains(&number) { Ok(number) } else { Err("must be 1 to 1000".to_owned()) }
}

fn timeout(text: &str) -> Result<Duration, String> {
    let parsed = duration::parse(text).and_then(|time| Duration::try_from(time).ok());
    parsed.ok_or_else(|| "must be a duration like 90s or 20m".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use rstest::rstest;

    use super::*;

    #[test]
    fn command_line_is_consistent() {
        CommandLine::command().debug_assert();
    }

    #[rstest]
    #[case::no_scenario(&["run", "--kubeconfig", "k", "--manager-pid", "1", "--output", "o"], "SCENARIOS")]
    #[case::no_manager(&["run", "a.yaml", "--kubeconfig", "k", "--output", "o"], "--manager-pid")]
    #[case::scale(&["floor", "a.yaml", "--kubeconfig", "k", "--output", "o", "--scale", "2"], "at most 1")]
    #[case::suite_scale(&["suite", "--output", "o", "--scale", "0"], "above 0")]
    #[case::timeout(&["suite", "--output", "o", "--timeout", "soon"], "duration like 90s")]
    fn error_names_the_option(#[case] arguments: &[&str], #[case] words: &str) {
        let error = CommandLine::try_parse_from([&["load"], arguments].concat()).expect_err("it is invalid");

        assert!(error.to_string().contains(words), "{error}");
    }
}
