//! How something is told.

use std::fmt::Display;

use clap::ValueEnum;
use serde::Serialize;

use super::Failure;

/// How something is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Output {
    /// For people.
    Text,
    /// For programs.
    Json,
    /// For programs.
    Yaml,
}

impl Output {
    /// Prints what there is to tell.
    ///
    /// # Errors
    /// When it can't be written down.
    pub(super) fn print(self, told: &(impl Display + Serialize)) -> Result<(), Failure> {
        match self {
            Self::Text => print!("{told}"),
            Self::Json => println!("{}", serde_json::to_string_pretty(told)?),
            Self::Yaml => print!("{}", serde_saphyr::to_string(told)?),
        }
        Ok(())
    }
}
