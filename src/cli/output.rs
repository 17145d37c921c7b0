//! Output formats of the commands.

use std::fmt::Display;

use clap::ValueEnum;
use serde::Serialize;

use super::BoxError;

/// Output format of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum OutputFormat {
    /// Print text and tables
    Text,
    /// Print JSON
    Json,
    /// Print YAML
    Yaml,
}

impl OutputFormat {
    /// Prints `report` to standard output in this format.
    ///
    /// # Errors
    /// If `report` can't be serialized.
    pub(super) fn print(self, report: &(impl Display + Serialize)) -> Result<(), BoxError> {
        match self {
            Self::Text => print!("{report}"),
            Self::Json => println!("{}", serde_json::to_string_pretty(report)?),
            Self::Yaml => print!("{}", serde_saphyr::to_string(report)?),
        }
        Ok(())
    }
}
