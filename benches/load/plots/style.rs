//! Common look of the charts.

use plotters::backend::SVGBackend;
use plotters::chart::{ChartContext, SeriesLabelPosition};
use plotters::coord::Shift;
use plotters::coord::cartesian::Cartesian2d;
use plotters::coord::ranged1d::Ranged;
use plotters::prelude::{Color, DrawingArea, IntoDrawingArea, RGBColor};

use super::DrawError;

/// Size in pixels.
pub(super) const SIZE: (u32, u32) = (900, 480);
/// Fonts of similar width.
pub(super) const FONTS: &str = "Roboto, Helvetica, Arial, sans-serif";
/// Size of titles.
pub(super) const TITLE: u32 = 22;
/// Size of labels.
pub(super) const LABEL: u32 = 15;
/// Margin around a chart, in pixels.
pub(super) const MARGIN: u32 = 16;
/// Width of lines, in pixels.
pub(super) const LINE: u32 = 2;

/// Text and axes.
pub(super) const INK: RGBColor = RGBColor(0x1f, 0x29, 0x33);
/// Grid lines.
pub(super) const GRID: RGBColor = RGBColor(0xe4, 0xe7, 0xeb);
const PAPER: RGBColor = RGBColor(0xff, 0xff, 0xff);

/// Colors of lines and bars, distinguishable for color-blind readers.
pub(super) const COLORS: [RGBColor; 4] =
    [RGBColor(0x3b, 0x82, 0xc4), RGBColor(0xf0, 0xa0, 0x30), RGBColor(0x1b, 0x8a, 0x5a), RGBColor(0x9b, 0x59, 0xb6)];

/// A picture that a chart is drawn on.
pub(super) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Returns an empty picture, drawn into the string.
pub(super) fn picture(svg: &mut String) -> Result<Area<'_>, DrawError> {
    let area = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    area.fill(&PAPER)?;
    Ok(area)
}

/// Draws the names of the series.
pub(super) fn legend<'a, X, Y>(
    chart: &mut ChartContext<'a, SVGBackend<'a>, Cartesian2d<X, Y>>,
    position: SeriesLabelPosition,
) -> Result<(), DrawError>
where
    X: Ranged<ValueType = f64>,
    Y: Ranged<ValueType = f64>,
{
    chart
        .configure_series_labels()
        .position(position)
        .background_style(PAPER.mix(0.85))
        .border_style(GRID)
        .label_font((FONTS, LABEL, &INK))
        .draw()?;
    Ok(())
}

/// Returns the upper end of an axis for values up to this one.
pub(super) fn axis_end(max: f64) -> f64 {
    if max > 0.0 { max * 1.05 } else { 1.0 }
}
