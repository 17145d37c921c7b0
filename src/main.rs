//! The `sluice` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    match sluice::cli::run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sluice: {error}");
            ExitCode::FAILURE
        }
    }
}
