//! `sluice plan`: previews the effect of a change before it is applied.

use std::io::Read;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};

use super::BoxError;
use super::output::OutputFormat;
use super::state::{LoadedState, StateSource};
use sluice_clock::Clock;
use sluice_inspect::snapshot::parse_manifests;
use sluice_inspect::upgrade::{self, PlanVerdict};
use sluice_rayservice::incremental::state_machine::Percent;

/// Changes that can be planned.
#[derive(Debug, Subcommand)]
pub(super) enum PlanCommand {
    /// Preview the upgrade of a RayService
    ///
    /// Reports whether the upgrade fits now, later or never; and for each strategy the peak usage,
    /// the minimum quota, and the jobs that would be preempted. Changes nothing.
    ///
    /// Exit code: 0 if the upgrade fits now, 3 if it would be pending, 4 if it can never fit, and
    /// 1 if the plan can't be made.
    Upgrade(UpgradeOptions),
}

/// Options of `sluice plan upgrade`.
#[derive(Debug, Args)]
pub(super) struct UpgradeOptions {
    /// Read the new RayService, and other objects applied with it, from this file; - for standard
    /// input
    #[arg(long, short, value_name = "FILE")]
    filename: PathBuf,
    /// Set maxSurgePercent of the incremental strategy [default: that of the manifest, else the
    /// largest that fits]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(1..=100))]
    surge: Option<Percent>,
    #[command(flatten)]
    state: StateSource,
    /// Select the output format
    #[arg(long, short, value_enum, default_value_t = OutputFormat::Text)]
    output: OutputFormat,
}

/// Prints the plan of a change.
///
/// # Errors
/// If the state or the manifest can't be read, or the dry run doesn't converge.
pub(super) fn run(command: PlanCommand) -> Result<ExitCode, BoxError> {
    match command {
        PlanCommand::Upgrade(options) => upgrade(options),
    }
}

fn upgrade(options: UpgradeOptions) -> Result<ExitCode, BoxError> {
    let path = options.filename.display();
    let text = read(&options.filename).map_err(|error| format!("reading {path}: {error}"))?;
    let LoadedState { snapshot, namespace, policy } = options.state.load()?;
    let manifests = parse_manifests(&text, &namespace).map_err(|problem| format!("{path}: {problem}"))?;
    let plan = upgrade::plan(&snapshot, manifests, &policy, options.surge, Clock::system().now())?;
    options.output.print(&plan)?;
    Ok(ExitCode::from(match plan.verdict {
        PlanVerdict::Fits => 0,
        PlanVerdict::Pending => 3,
        PlanVerdict::Never => 4,
    }))
}

fn read(path: &PathBuf) -> std::io::Result<String> {
    if path.as_os_str() != "-" {
        return std::fs::read_to_string(path);
    }
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    Ok(text)
}
