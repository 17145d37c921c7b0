//! Charts of a run, as SVG files.

mod admission;
mod memory;
mod quota;
mod requests;
mod style;

use std::path::Path;

use crate::error::LoadError;
use crate::report::Report;
use style::{Area, picture};

/// Reason why a chart can't be drawn.
type DrawError = Box<dyn std::error::Error + Send + Sync>;

/// Draws a report. Returns false if it has no data for the chart.
type Draw = fn(&Report, &Area<'_>) -> Result<bool, DrawError>;

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
        if let Some(svg) = render(report, draw).map_err(failed)? {
            std::fs::write(&path, svg).map_err(|source| LoadError::file("write", &path, source))?;
        }
    }
    Ok(())
}

/// Returns a chart as SVG; `None` if the report has no data for it.
fn render(report: &Report, draw: Draw) -> Result<Option<String>, DrawError> {
    let mut svg = String::new();
    let area = picture(&mut svg)?;
    let has_data = draw(report, &area)?;
    area.present()?;
    drop(area);
    Ok(has_data.then_some(svg))
}

/// Returns the title of a chart.
fn title(report: &Report, what: &str) -> String {
    format!("{}: {what} ({}, {} objects)", report.scenario, report.form.name(), report.objects)
}

#[cfg(test)]
mod tests;
