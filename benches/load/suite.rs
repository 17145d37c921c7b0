//! All scenarios on fresh control planes: the floor, and the run with Sluice.

use std::path::{Path, PathBuf};

use sluice_testkit::{TestEnv, TestEnvOptions};

use crate::api::ApiClient;
use crate::commands::{Limits, save};
use crate::error::LoadError;
use crate::plan::LoadPlan;
use crate::ratios::{self, Comparison};
use crate::report::Report;
use crate::scenario::{Kind, Scenario};
use crate::session;

/// The scenarios, in the order in which they are run.
pub const SCENARIOS: [&str; 8] =
    ["baseline", "large-scale", "jobs-burst", "jobs-paced", "clusters", "services", "deep", "mass"];

/// Flags of the manager: it logs as in production.
const MANAGER_FLAGS: [&str; 1] = ["--log-level=info"];

/// Options of the suite.
#[derive(Debug)]
pub struct SuiteOptions {
    /// Names of the scenarios; all if empty.
    pub names: Vec<String>,
    /// Fraction of each scenario to run. `None`: its short form.
    pub scale: Option<f64>,
    /// Binary of the manager.
    pub manager: PathBuf,
    /// Limits of each run.
    pub limits: Limits,
    /// Folder of the results.
    pub output: PathBuf,
}

/// Runs the scenarios, writes their results, and prints how they compare with their floors. A
/// scenario that fails doesn't keep the others from running.
///
/// # Errors
/// If a run fails, or results can't be written.
pub async fn run(options: &SuiteOptions) -> Result<(), LoadError> {
    let (mut comparisons, mut failed) = (Vec::new(), 0);
    let names: Vec<&str> = match options.names.as_slice() {
        [] => SCENARIOS.to_vec(),
        names => names.iter().map(String::as_str).collect(),
    };
    for name in &names {
        match compare(name, options).await {
            Ok(comparison) => comparisons.push(comparison),
            Err(error) => {
                failed += 1;
                eprintln!("{name}: {error}");
            }
        }
    }
    println!("{}", ratios::text(&comparisons));
    let path = options.output.join("summary.md");
    std::fs::create_dir_all(&options.output).map_err(|source| LoadError::file("create", &options.output, source))?;
    std::fs::write(&path, ratios::markdown(&comparisons)).map_err(|source| LoadError::file("write", &path, source))?;
    if failed == 0 { Ok(()) } else { Err(LoadError::Suite { failed, total: names.len() }) }
}

/// Runs a scenario without and with a manager.
async fn compare(name: &str, options: &SuiteOptions) -> Result<Comparison, LoadError> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("scenarios/{name}.yaml"));
    let scenario = Scenario::read(&path)?;
    let scale = options.scale.unwrap_or(scenario.short_scale);
    let plan = LoadPlan::new(name, &scenario.scaled(scale));
    let floor = floor(plan.clone(), options, scale).await?;
    save(&floor, &options.output)?;
    let run = with_manager(plan, options, scale).await?;
    save(&run, &options.output)?;
    Ok(Comparison { run, floor })
}

async fn floor(plan: LoadPlan, options: &SuiteOptions, scale: f64) -> Result<Report, LoadError> {
    let env = control_plane(&plan).await;
    let user = ApiClient::new(env.client.clone());
    let manager = ApiClient::new(env.manager_client().await).counted_with(&user);
    session::floor(plan, user, manager, options.limits.session(scale)).await
}

async fn with_manager(plan: LoadPlan, options: &SuiteOptions, scale: f64) -> Result<Report, LoadError> {
    let env = control_plane(&plan).await;
    let manager = env.manager_from(&options.manager, &MANAGER_FLAGS);
    let (name, client) = (plan.name.clone(), ApiClient::new(env.client.clone()));
    let result = session::run(plan, client, manager.id(), options.limits.session(scale)).await;
    if result.is_err() {
        let copy = options.output.join(format!("{name}-manager.log"));
        std::fs::copy(&manager.log, &copy).map_err(|source| LoadError::file("write", &copy, source))?;
    }
    result
}

/// Starts a control plane with fake nodes. The manager connects to its API server directly, unless
/// it needs the fake Ray dashboards, which a proxy in between serves.
async fn control_plane(plan: &LoadPlan) -> TestEnv {
    let needs_dashboards = plan.kinds().contains(&Kind::RayService);
    TestEnv::start_with(TestEnvOptions { direct: !needs_dashboards, ..TestEnvOptions::default() }).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scenario_file_is_run() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
        let files = std::fs::read_dir(folder).expect("the scenarios").map(|file| file.expect("a file").path());
        let mut names: Vec<String> =
            files.filter_map(|path| Some(path.file_stem()?.to_string_lossy().into_owned())).collect();
        names.sort();

        let mut scenarios = SCENARIOS;
        scenarios.sort_unstable();
        assert_eq!(names, scenarios);
    }
}
