//! Memory of the manager against the number of objects that were created.

use plotters::chart::ChartBuilder;
use plotters::element::Circle;
use plotters::style::Color;

use super::style::{Area, COLORS, FONTS, GRID, INK, LABEL, MARGIN, TITLE, axis_end};
use super::{DrawError, title};
use crate::report::{Report, Sample};

/// Bytes of a MiB.
const MIB: f64 = 1_048_576.0;

/// Draws one point for each sample.
pub(super) fn draw(report: &Report, area: &Area<'_>) -> Result<bool, DrawError> {
    let point = |sample: &Sample| Some((sample.created as f64, sample.manager_bytes? as f64 / MIB));
    let points: Vec<(f64, f64)> = report.samples.iter().filter_map(point).collect();
    if points.is_empty() {
        return Ok(false);
    }
    let (objects, memory) =
        points.iter().fold((0.0, 0.0), |most: (f64, f64), point| (most.0.max(point.0), most.1.max(point.1)));
    let mut chart = ChartBuilder::on(area)
        .caption(title(report, "memory of the manager"), (FONTS, TITLE, &INK))
        .margin(MARGIN)
        .x_label_area_size(45)
        .y_label_area_size(70)
        .build_cartesian_2d(0.0..axis_end(objects), 0.0..axis_end(memory))?;
    chart
        .configure_mesh()
        .light_line_style(GRID.mix(0.0))
        .bold_line_style(GRID)
        .label_style((FONTS, LABEL, &INK))
        .x_desc("created objects")
        .y_desc("resident MiB")
        .x_label_formatter(&|objects: &f64| format!("{objects:.0}"))
        .y_label_formatter(&|memory: &f64| format!("{memory:.0}"))
        .draw()?;
    chart.draw_series(points.into_iter().map(|point| Circle::new(point, 4, COLORS[0].filled())))?;
    Ok(true)
}
