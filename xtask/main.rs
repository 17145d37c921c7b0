//! Generated and recorded files, and repository checks: `make generate`, `make golden`,
//! `make record-responses`, `make kueue-specs` and `make tidy`.

mod generated;
mod kueue_specs;
mod layers;
mod named_tests;
mod paths;
mod reference;
mod sources;
mod wording;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use sluice_testkit::{pod_corpus, recorded_responses};

/// Generates files and checks the repository
#[derive(Parser)]
enum Command {
    /// Regenerate config/crd and docs/reference from the code
    Generate,
    /// Record the objects that KubeRay creates in tests/integration/pods/golden
    RecordPods {
        /// Checkout of KubeRay, with the operator built as ray-operator/bin/kuberay
        #[arg(long, value_name = "DIRECTORY")]
        kuberay_source: PathBuf,
    },
    /// Record the responses of a real API server in tests/simulation/api/recorded/answers.yaml
    RecordResponses,
    /// Run Kueue's own integration specs against Sluice, and compare the results with docs/kueue-specs.md
    KueueSpecs {
        /// Suites to run; all by default
        suites: Vec<String>,
    },
    /// Check wording, doc comments, layers, and that generated files are fresh
    Tidy,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let result = match Command::parse() {
        Command::Generate => generated::write(&repository()),
        Command::RecordPods { kuberay_source } => {
            pod_corpus::record(&kuberay_source).await;
            Ok(Vec::new())
        }
        Command::RecordResponses => {
            recorded_responses::record().await;
            Ok(Vec::new())
        }
        Command::KueueSpecs { suites } => kueue_specs::run(&repository(), &suites).await,
        Command::Tidy => tidy(&repository()),
    };
    match result {
        Ok(problems) if problems.is_empty() => ExitCode::SUCCESS,
        Ok(problems) => {
            for problem in &problems {
                eprintln!("{problem}");
            }
            eprintln!("{} problems", problems.len());
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Error of a task, printed to standard error.
type Failure = Box<dyn std::error::Error>;

/// Runs every check; returns the problems found, each with its place and remedy.
fn tidy(root: &Path) -> Result<Vec<String>, Failure> {
    let sources = sources::read(root)?;
    let mut problems = wording::check(&sources);
    problems.extend(wording::check_docs(&sources));
    problems.extend(wording::check_constants(&sources));
    problems.extend(paths::check(root, &sources));
    problems.extend(named_tests::check(&sources));
    problems.extend(layers::check(root)?);
    problems.extend(generated::check(root)?);
    Ok(problems)
}

/// Returns the root of the repository, in which the xtask folder lies.
fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_owned).unwrap_or_default()
}
