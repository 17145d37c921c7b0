//! `sluice replay`: decides again what a decision log says was decided.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::ExitCode;

use sluice_queue::log::{Replay, ReplayError, replay};

/// The exit code when a decision differs.
const DIFFERS: u8 = 1;
/// The exit code when the log can't be read.
const UNREADABLE: u8 = 2;

/// Why the log can't be read.
#[derive(Debug, thiserror::Error)]
enum Unreadable {
    #[error("{0}")]
    File(#[from] io::Error),
    #[error("{0}")]
    Log(#[from] ReplayError),
}

/// Replays the log in `path`, and prints what came of it.
///
/// # Errors
/// When nothing can be printed.
pub(super) fn run(path: &Path) -> io::Result<ExitCode> {
    match replayed(path) {
        Ok(replay) => {
            io::stdout().write_all(told(&replay).as_bytes())?;
            Ok(if replay.first.is_none() { ExitCode::SUCCESS } else { DIFFERS.into() })
        }
        Err(error) => {
            writeln!(io::stderr(), "sluice: reading the decision log {}: {error}", path.display())?;
            Ok(UNREADABLE.into())
        }
    }
}

fn replayed(path: &Path) -> Result<Replay, Unreadable> {
    let mut failure = None;
    let lines = BufReader::new(File::open(path)?).split(b'\n');
    let replay = replay(lines.map_while(|line| line.map_err(|error| failure = Some(error)).ok()));
    // What was read before the failure may look cut off.
    failure.map_or_else(|| Ok(replay?), |error| Err(error.into()))
}

/// The table, and the first difference.
fn told(replay: &Replay) -> String {
    let rows = [
        ("sections", replay.sections),
        ("events", replay.events),
        ("cycles", replay.cycles),
        ("decisions", replay.decisions),
        ("differences", replay.differences),
        ("lines cut off", replay.cut_off),
    ];
    let mut text = String::new();
    for (what, count) in rows {
        // Writing to a String can't fail.
        let _ = writeln!(text, "{what:<14}{count:>10}");
    }
    if let Some(first) = &replay.first {
        let _ = writeln!(text, "{first}");
    }
    text
}
