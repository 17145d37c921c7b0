//! Time to admission by class, as the fraction of objects that were admitted within a time.

use plotters::chart::{ChartBuilder, SeriesLabelPosition};
use plotters::prelude::{IntoLogRange, PathElement};
use plotters::series::LineSeries;
use plotters::style::Color;

use super::style::{Area, COLORS, FONTS, GRID, INK, LABEL, LINE, MARGIN, TITLE, legend};
use super::{DrawError, title};
use crate::report::{ClassReport, Report};

/// Shortest time of the axis, in milliseconds.
const SHORTEST: f64 = 1.0;

/// Draws the distribution of each class.
pub(super) fn draw(report: &Report, area: &Area<'_>) -> Result<bool, DrawError> {
    let classes: Vec<&ClassReport> = report.time_to_admission.iter().filter(|class| class.admitted > 0).collect();
    let longest = classes.iter().map(|class| class.max).fold(10.0 * SHORTEST, f64::max);
    if classes.is_empty() {
        return Ok(false);
    }
    let mut chart = ChartBuilder::on(area)
        .caption(title(report, "time to admission"), (FONTS, TITLE, &INK))
        .margin(MARGIN)
        .x_label_area_size(45)
        .y_label_area_size(60)
        .build_cartesian_2d((SHORTEST..longest * 1.2).log_scale(), 0.0..1.0)?;
    chart
        .configure_mesh()
        .light_line_style(GRID.mix(0.0))
        .bold_line_style(GRID)
        .label_style((FONTS, LABEL, &INK))
        .x_desc("time to admission")
        .x_label_formatter(&|millis: &f64| duration(*millis))
        .y_label_formatter(&|fraction: &f64| format!("{:.0} %", fraction * 100.0))
        .draw()?;
    for (class, color) in classes.iter().zip(COLORS.iter().cycle()) {
        let points = class.curve.iter().map(|(millis, fraction)| (millis.max(SHORTEST), *fraction));
        let label = format!("{} (p50 {}, p99 {})", class.class, duration(class.p50), duration(class.p99));
        let style = color.stroke_width(LINE);
        chart
            .draw_series(LineSeries::new(points, style))?
            .label(label)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
    }
    legend(&mut chart, SeriesLabelPosition::UpperLeft)?;
    Ok(true)
}

/// Formats milliseconds.
fn duration(millis: f64) -> String {
    let (value, unit) = if millis >= 1000.0 { (millis / 1000.0, "s") } else { (millis, "ms") };
    let digits = usize::from(value < 10.0 && value.fract() != 0.0);
    format!("{value:.digits$} {unit}")
}
