//! Generated files and repository checks: `make generate` and `make tidy`.

mod generated;
mod layers;
mod paths;
mod reference;
mod sources;
mod wording;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;

/// Generates files and checks the repository
#[derive(Parser)]
enum Command {
    /// Regenerate config/crd and docs/reference from the code
    Generate,
    /// Check wording, doc comments, layers, and that generated files are fresh
    Tidy,
}

fn main() -> ExitCode {
    let result = match Command::parse() {
        Command::Generate => generated::write(&repository()),
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
    problems.extend(paths::check(root, &sources));
    problems.extend(layers::check(root)?);
    problems.extend(generated::check(root)?);
    Ok(problems)
}

/// Returns the root of the repository, in which the xtask folder lies.
fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_owned).unwrap_or_default()
}
