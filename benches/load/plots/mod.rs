//! Charts of a run, as SVG files.

mod admission;
mod memory;
mod quota;
mod requests;
mod style;

use std::path::Path;

use crate::error::LoadError;
use crate::report::Report;

/// Reason why a chart can't be drawn.
type DrawError = Box<dyn std::error::Error + Send + Sync>;

/// Draws a report into a string. Returns an empty one if the report has nothing to draw.
type Draw = fn(&Report) -> Result<String, DrawError>;

/// Charts by the ends of their file names.
const CHARTS: [(&str, Draw); 4] =
    [("admission", admission::draw), ("quota", quota::draw), ("requests", requests::draw), ("memory", memory::draw)];

/// Draws the charts of a report into a folder. A chart without data is omitted.
///
/// # Errors
/// If a chart can't be drawn or written.
pub fn draw(report: &Report, folder: &Path) -> Result<(), LoadError> {
    for (name, draw) in CHARTS {
        let path = folder.join(format!("{}-{}-{name}.svg", report.scenario, report.form.name()));
        let failed = |error: DrawError| LoadError::Chart { path: path.clone(), reason: error.to_string() };
        let svg = draw(report).map_err(failed)?;
        if !svg.is_empty() {
            std::fs::write(&path, svg).map_err(|source| LoadError::file("write", &path, source))?;
        }
    }
    Ok(())
}

/// Returns the title of a chart.
fn title(report: &Report, what: &str) -> String {
    format!("{}: {what} ({}, {} objects)", report.scenario, report.form.name(), report.objects)
}

#[cfg(test)]
mod tests;
