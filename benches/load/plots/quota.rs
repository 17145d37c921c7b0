//! Use of quota over time, next to the number of pending Workloads.

use plotters::chart::{ChartBuilder, SeriesLabelPosition};
use plotters::prelude::PathElement;
use plotters::series::LineSeries;
use plotters::style::Color;

use super::style::{Area, COLORS, FONTS, GRID, INK, LABEL, LINE, MARGIN, TITLE, axis_end, legend};
use super::{DrawError, title};
use crate::report::{Form, Report};

/// Upper end of the axes, as a multiple of the maximum: the legend is above the lines.
const ROOM: f64 = 1.25;

/// Draws the samples of a run; a floor has no quota.
pub(super) fn draw(report: &Report, area: &Area<'_>) -> Result<bool, DrawError> {
    let Some(last) = report.samples.last().filter(|_| report.form == Form::Run) else { return Ok(false) };
    let most = report.samples.iter().map(|sample| sample.pending as f64).fold(0.0, f64::max);
    let seconds = 0.0..axis_end(last.second);
    let mut chart = ChartBuilder::on(area)
        .caption(title(report, "use of quota"), (FONTS, TITLE, &INK))
        .margin(MARGIN)
        .x_label_area_size(45)
        .y_label_area_size(60)
        .right_y_label_area_size(70)
        .build_cartesian_2d(seconds.clone(), 0.0..ROOM)?
        .set_secondary_coord(seconds, 0.0..most.max(1.0) * ROOM);
    chart
        .configure_mesh()
        .light_line_style(GRID.mix(0.0))
        .bold_line_style(GRID)
        .label_style((FONTS, LABEL, &INK))
        .x_desc("seconds since the start")
        .y_desc("used quota")
        .x_label_formatter(&|second: &f64| format!("{second:.0}"))
        .y_label_formatter(&|fraction| percent(*fraction))
        .draw()?;
    chart
        .configure_secondary_axes()
        .label_style((FONTS, LABEL, &INK))
        .y_desc("pending Workloads")
        .y_label_formatter(&|pending: &f64| format!("{pending:.0}"))
        .draw()?;
    let (used, pending) = (COLORS[0].stroke_width(LINE), COLORS[1].stroke_width(LINE));
    let points = report.samples.iter().map(|sample| (sample.second, sample.quota_used));
    chart
        .draw_series(LineSeries::new(points, used))?
        .label("used quota")
        .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], used));
    let points = report.samples.iter().map(|sample| (sample.second, sample.pending as f64));
    chart
        .draw_secondary_series(LineSeries::new(points, pending))?
        .label("pending Workloads")
        .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], pending));
    legend(&mut chart, SeriesLabelPosition::UpperRight)?;
    Ok(true)
}

/// Formats a fraction; the room for the legend has no labels.
fn percent(fraction: f64) -> String {
    if fraction > 1.0 { String::new() } else { format!("{:.0} %", fraction * 100.0) }
}
