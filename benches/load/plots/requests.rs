//! Requests by kind, those of the tool apart from those of all others.

use std::collections::BTreeMap;

use plotters::chart::{ChartBuilder, SeriesLabelPosition};
use plotters::element::{EmptyElement, Rectangle, Text};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, IntoFont, RGBColor, TextStyle};

use super::style::{Area, COLORS, FONTS, GRID, INK, LABEL, MARGIN, TITLE, axis_end, legend};
use super::{DrawError, title};
use crate::report::Report;

/// Maximum number of bars.
const BARS: usize = 12;
/// The most frequent kind has at most this many times the requests of a bar.
const RAREST: u64 = 200;
/// Part of the height of its row that a bar fills.
const FILLED: f64 = 0.7;

/// Number of requests of one kind.
#[derive(Debug, Clone, Default, PartialEq)]
struct Bar {
    request: String,
    /// Requests of all but the tool.
    others: u64,
    /// Requests of the tool.
    own: u64,
}

/// Draws the most frequent kinds of requests.
pub(super) fn draw(report: &Report, area: &Area<'_>) -> Result<bool, DrawError> {
    let bars = bars(&report.requests, &report.own_requests);
    let Some(most) = bars.iter().map(|bar| bar.others + bar.own).max() else { return Ok(false) };
    let rows = bars.len() as f64;
    let mut chart = ChartBuilder::on(area)
        .caption(title(report, "requests"), (FONTS, TITLE, &INK))
        .margin(MARGIN)
        .margin_right(70)
        .x_label_area_size(45)
        .y_label_area_size(230)
        .build_cartesian_2d(0.0..axis_end(most as f64), rows..0.0)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .light_line_style(GRID.mix(0.0))
        .bold_line_style(GRID)
        .label_style((FONTS, LABEL, &INK))
        .x_label_formatter(&|count: &f64| format!("{count:.0}"))
        .draw()?;
    for (others, label, color) in [(true, "all others", COLORS[0]), (false, "this tool", COLORS[1])] {
        let drawn = bars.iter().enumerate().map(|(row, bar)| rectangle(row, bar, others, color));
        chart
            .draw_series(drawn)?
            .label(label)
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 14, y + 5)], color.filled()));
    }
    chart.draw_series(bars.iter().enumerate().map(|(row, bar)| {
        let at = (0.0, row as f64 + 0.5);
        EmptyElement::at(at) + Text::new(bar.request.clone(), (-8, 0), label(HPos::Right))
    }))?;
    chart.draw_series(bars.iter().enumerate().map(|(row, bar)| {
        let count = bar.others + bar.own;
        let at = (count as f64, row as f64 + 0.5);
        EmptyElement::at(at) + Text::new(count.to_string(), (6, 0), label(HPos::Left))
    }))?;
    legend(&mut chart, SeriesLabelPosition::LowerRight)?;
    Ok(true)
}

/// Returns the most frequent kinds of requests, the most frequent first.
fn bars(others: &BTreeMap<String, u64>, own: &BTreeMap<String, u64>) -> Vec<Bar> {
    let count = |counts: &BTreeMap<String, u64>, request: &String| counts.get(request).copied().unwrap_or_default();
    let mut requests: Vec<&String> = others.keys().chain(own.keys()).collect();
    requests.sort();
    requests.dedup();
    let bar =
        |request: &String| Bar { request: request.clone(), others: count(others, request), own: count(own, request) };
    let mut bars: Vec<Bar> = requests.into_iter().map(bar).collect();
    bars.sort_by_key(|bar| std::cmp::Reverse(bar.others + bar.own));
    let most = bars.first().map_or(0, |bar| bar.others + bar.own);
    bars.retain(|bar| (bar.others + bar.own) * RAREST >= most);
    bars.truncate(BARS);
    bars
}

fn rectangle(row: usize, bar: &Bar, is_others: bool, color: RGBColor) -> Rectangle<(f64, f64)> {
    let (from, to) = if is_others { (0, bar.others) } else { (bar.others, bar.others + bar.own) };
    let top = row as f64 + (1.0 - FILLED) / 2.0;
    Rectangle::new([(from as f64, top), (to as f64, top + FILLED)], color.filled())
}

fn label(from: HPos) -> TextStyle<'static> {
    TextStyle::from((FONTS, LABEL).into_font()).color(&INK).pos(Pos::new(from, VPos::Center))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_frequent_requests_come_first() {
        let others = BTreeMap::from([("GET pods".to_owned(), 5), ("PATCH jobs".to_owned(), 2)]);
        let own = BTreeMap::from([("PATCH jobs".to_owned(), 4), ("POST jobs".to_owned(), 1)]);

        let bars = bars(&others, &own);

        let expected = Bar { request: "PATCH jobs".into(), others: 2, own: 4 };
        assert_eq!((bars.len(), &bars[0]), (3, &expected));
    }

    #[test]
    fn rare_requests_are_omitted() {
        let many = (0..20).map(|number| (format!("GET kind-{number}"), 5 + number)).collect();

        assert_eq!(bars(&many, &BTreeMap::new()).len(), BARS);
        let few = BTreeMap::from([("GET pods".to_owned(), 201), ("GET nodes".to_owned(), 1)]);
        assert_eq!(bars(&few, &BTreeMap::new()).len(), 1);
    }
}
