//! `sluice replay`: replays a decision log and reports differences.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::ExitCode;

use sluice_queue::log::{ReplayError, ReplaySummary, replay};

/// Exit code if a decision differs.
const EXIT_DIFFERENT: u8 = 1;
/// Exit code if the log can't be read.
const EXIT_UNREADABLE: u8 = 2;

/// Error of reading the log.
#[derive(Debug, thiserror::Error)]
enum ReadLogError {
    #[error("{0}")]
    File(#[from] io::Error),
    #[error("{0}")]
    Log(#[from] ReplayError),
}

/// Replays the log in `path` and prints a summary.
///
/// # Errors
/// If the output can't be written.
pub(super) fn run(path: &Path) -> io::Result<ExitCode> {
    match replay_file(path) {
        Ok(replay) => {
            io::stdout().write_all(summary(&replay).as_bytes())?;
            Ok(if replay.first_difference.is_none() { ExitCode::SUCCESS } else { EXIT_DIFFERENT.into() })
        }
        Err(error) => {
            writeln!(io::stderr(), "sluice: reading the decision log {}: {error}", path.display())?;
            Ok(EXIT_UNREADABLE.into())
        }
    }
}

fn replay_file(path: &Path) -> Result<ReplaySummary, ReadLogError> {
    let mut failure = None;
    let lines = BufReader::new(File::open(path)?).split(b'\n');
    let replay = replay(lines.map_while(|line| line.map_err(|error| failure = Some(error)).ok()));
    // A read error truncates the input, which the replay would report as a cut-off line.
    failure.map_or_else(|| Ok(replay?), |error| Err(error.into()))
}

/// Returns the table of counts and the first difference.
fn summary(replay: &ReplaySummary) -> String {
    let rows = [
        ("sections", replay.sections),
        ("events", replay.inputs),
        ("cycles", replay.cycles),
        ("decisions", replay.decisions),
        ("differences", replay.differences),
        ("lines cut off", replay.truncated_lines),
    ];
    let mut text = String::new();
    for (label, count) in rows {
        // Writing to a String can't fail.
        let _ = writeln!(text, "{label:<14}{count:>10}");
    }
    if let Some(first) = &replay.first_difference {
        let _ = writeln!(text, "{first}");
    }
    text
}
