//! `sluice plan`: what a change would come to, before it is applied.

use std::io::Read;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use jiff::Timestamp;

use super::Failure;
use super::output::Output;
use super::state::{State, StateOptions};
use sluice_inspect::snapshot::manifests;
use sluice_inspect::upgrade::{self, Verdict};
use sluice_rayservice::incremental::machine::Percent;

/// What can be planned.
#[derive(Debug, Subcommand)]
pub(super) enum PlanCommand {
    /// Tell what applying a RayService would come to: whether it fits now or ever, what each strategy needs at its peak, the least
    /// quota that suffices, and who would lose quota to it. Nothing is changed.
    ///
    /// Exits with 0 when the upgrade fits, with 3 when it waits, with 4 when it never fits, and with 1 when there is no telling.
    Upgrade(UpgradeOptions),
}

/// What `sluice plan upgrade` can be told.
#[derive(Debug, Args)]
pub(super) struct UpgradeOptions {
    /// The manifest with the RayService as it is to be, and whatever is to be applied with it; - is standard input.
    #[arg(long, short, value_name = "FILE")]
    filename: PathBuf,
    /// The surge of an incremental upgrade, in percent [default: that of the manifest, or else the largest that does].
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(1..=100))]
    surge: Option<Percent>,
    #[command(flatten)]
    state: StateOptions,
    /// How to tell it.
    #[arg(long, short, value_enum, default_value_t = Output::Text)]
    output: Output,
}

/// Plans a change.
///
/// # Errors
/// When the state or the manifest can't be read, or there is no telling what would happen.
pub(super) fn run(command: PlanCommand) -> Result<ExitCode, Failure> {
    match command {
        PlanCommand::Upgrade(options) => upgrade(options),
    }
}

fn upgrade(options: UpgradeOptions) -> Result<ExitCode, Failure> {
    let path = options.filename.display();
    let text = read(&options.filename).map_err(|error| format!("reading {path}: {error}"))?;
    let State { snapshot, namespace, policy } = options.state.read()?;
    let manifests = manifests(&text, &namespace).map_err(|problem| format!("{path}: {problem}"))?;
    let plan = upgrade::plan(&snapshot, manifests, &policy, options.surge, Timestamp::now())?;
    options.output.print(&plan)?;
    Ok(ExitCode::from(match plan.verdict {
        Verdict::Fits => 0,
        Verdict::Waits => 3,
        Verdict::Never => 4,
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
