//! Entry point of the `sluice` binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    match sluice_cli::run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("sluice: {error}");
            ExitCode::FAILURE
        }
    }
}
