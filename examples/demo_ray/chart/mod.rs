//! The picture: stacked charts of one upgrade with a shared time axis, as a function of the series.

mod canvas;
mod panel;
mod panels;

use std::sync::Arc;

use plotters::prelude::RGBColor;
use plotters::style::text_anchor::HPos;
use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::{Options, Tree, fontdb};

use crate::series::Series;
use crate::series::observed::{UpgradeEvent, UpgradeEventKind};
use canvas::{Canvas, LabelStyle};
use panel::Panel;
use sluice_testkit::env::cache_dir;

/// Width in pixels: twice the display size, so that lines are smooth.
const WIDTH: i32 = 1800;
const LEFT: i32 = 120;
const RIGHT: i32 = 1600;
const TOP: i32 = 272;
/// Top of the event labels above the charts.
const WORDS: i32 = 148;
/// Gap between two charts, for a title.
const GAP: i32 = 70;
const LARGE: u32 = 42;
const SMALL: u32 = 25;

const PAPER: RGBColor = RGBColor(0xff, 0xff, 0xff);
const INK: RGBColor = RGBColor(0x1f, 0x29, 0x33);
const FAINT: RGBColor = RGBColor(0x5f, 0x6b, 0x7a);
const GRID: RGBColor = RGBColor(0xe4, 0xe7, 0xeb);
const SHADE: RGBColor = RGBColor(0xd9, 0xdf, 0xe7);
const ALARM: RGBColor = RGBColor(0xc0, 0x39, 0x2b);
/// Colors per version, distinguishable for color-blind readers: for areas, and darker for text.
const VERSIONS: [(&str, RGBColor, RGBColor); 2] = [
    ("1", RGBColor(0x3b, 0x82, 0xc4), RGBColor(0x1f, 0x5f, 0x9a)),
    ("2", RGBColor(0xf0, 0xa0, 0x30), RGBColor(0xa8, 0x62, 0x00)),
];

/// Returns the picture as an SVG.
pub fn svg(series: &Series) -> String {
    let end = series.seconds.len() as f64;
    let panels = panels::all(series);
    let mut top = TOP;
    let mut placed = Vec::new();
    for chart in panels {
        let panel = Panel { top, bottom: top + chart.height, seconds: 0.0..end.max(1.0), values: chart.values.clone() };
        top = panel.bottom + GAP;
        placed.push((panel, chart));
    }
    let bottom = top - GAP;
    let height = bottom + 96;
    let mut svg = String::new();
    let canvas = Canvas::new(&mut svg, (WIDTH.unsigned_abs(), height.unsigned_abs()), PAPER);
    if let Some((first, _)) = placed.first() {
        shade(&canvas, series, first, bottom);
        placed.iter().for_each(|(panel, chart)| (chart.draw)(&canvas, panel));
        title(&canvas, series);
        events(&canvas, series, first, bottom);
        placed.iter().for_each(|(panel, chart)| panel.title(&canvas, chart.title, &chart.aside));
        axis(&canvas, first, bottom);
    }
    drop(canvas);
    svg
}

/// Renders an SVG as a PNG of the same size.
///
/// # Panics
/// Panics if the font is not installed.
pub fn png(svg: &str) -> Vec<u8> {
    let mut fonts = fontdb::Database::new();
    for face in ["Roboto-Regular.ttf", "Roboto-Bold.ttf"] {
        let file = cache_dir().join("fonts/font_roboto/files").join(face);
        let font = std::fs::read(&file)
            .unwrap_or_else(|error| panic!("{} (make demo-ray installs it): {error}", file.display()));
        fonts.load_font_data(font);
    }
    let options = Options { fontdb: Arc::new(fonts), ..Options::default() };
    let tree = Tree::from_str(svg, &options).expect("an SVG");
    let size = tree.size().to_int_size();
    let mut pixels = Pixmap::new(size.width(), size.height()).expect("a nonempty picture");
    resvg::render(&tree, Transform::default(), &mut pixels.as_mut());
    pixels.encode_png().expect("a PNG")
}

fn title(canvas: &Canvas<'_>, series: &Series) {
    let words = LabelStyle { size: LARGE, color: INK, bold: true, from: HPos::Left };
    canvas.write("An upgrade waits for quota, then completes incrementally", (LEFT, 46), words);
    let (total, seconds) = (&series.total, series.seconds.len().max(1));
    let rate = total.requests / seconds;
    let text = format!(
        "Real Ray Serve behind Traefik, {rate} requests per second: {} requests, {} failed",
        total.requests, total.failed
    );
    canvas.write(&text, (LEFT, 98), LabelStyle { size: SMALL + 3, color: FAINT, bold: false, from: HPos::Left });
}

/// Returns the period in which the upgrade is pending, in seconds, and the message of its
/// condition.
fn pending_period(series: &Series) -> Option<(f64, f64, &str)> {
    let (from, why) = series.events.iter().find_map(|event| match &event.what {
        UpgradeEventKind::Waits(why) => Some((event.at, why.as_str())),
        _ => None,
    })?;
    let until = series.events.iter().find(|event| event.what == UpgradeEventKind::Admitted && event.at >= from);
    Some((from, until.map_or(series.seconds.len() as f64, |event| event.at), why))
}

fn shade(canvas: &Canvas<'_>, series: &Series, panel: &Panel, bottom: i32) {
    if let Some((from, until, _)) = pending_period(series) {
        canvas.block((panel.x(from), WORDS), (panel.x(until), bottom), SHADE, 0.55);
    }
}

/// Draws a vertical line with a label across all charts for each event.
fn events(canvas: &Canvas<'_>, series: &Series, panel: &Panel, bottom: i32) {
    for event in &series.events {
        let Some((label, from)) = label(event) else { continue };
        let x = panel.x(event.at);
        canvas.line(vec![(x, WORDS), (x, bottom)], FAINT, 0.8, 2);
        let anchor_x = if matches!(from, HPos::Left) { x + 10 } else { x - 10 };
        canvas.write(label, (anchor_x, WORDS + 14), LabelStyle { size: SMALL - 2, color: INK, bold: true, from });
    }
    if let Some((from, _, why)) = pending_period(series) {
        let text = format!("waits for quota: {}", shortfall_text(why));
        let words = LabelStyle { size: SMALL - 2, color: INK, bold: false, from: HPos::Left };
        canvas.write(&text, (panel.x(from) + 10, WORDS + 46), words);
    }
}

fn label(event: &UpgradeEvent) -> Option<(&'static str, HPos)> {
    match event.what {
        UpgradeEventKind::Applied(_) => Some(("upgrade applied", HPos::Right)),
        UpgradeEventKind::Raised(_) => Some(("quota raised", HPos::Left)),
        UpgradeEventKind::Promoted(_) => Some(("promoted", HPos::Right)),
        UpgradeEventKind::Gone(_) => Some(("old cluster deleted", HPos::Left)),
        UpgradeEventKind::Waits(_) | UpgradeEventKind::Admitted => None,
    }
}

/// Returns the part of a pending message that has the remedy, or else the first shortfall.
fn shortfall_text(why: &str) -> &str {
    let mut parts = why.split(['(', ')', ';']).map(str::trim);
    let remedy = parts.clone().find(|part| part.starts_with("fits"));
    let shortfall = parts.find_map(|part| part.find("insufficient quota").map(|at| &part[at..]));
    remedy.or(shortfall).unwrap_or(why)
}

fn axis(canvas: &Canvas<'_>, panel: &Panel, bottom: i32) {
    let words = LabelStyle { size: SMALL - 3, color: FAINT, bold: false, from: HPos::Center };
    canvas.line(vec![(LEFT, bottom), (RIGHT, bottom)], FAINT, 1.0, 2);
    let every = if panel.seconds.end > 160.0 { 30 } else { 20 };
    for second in (0..).map(|step| step * every).take_while(|second| f64::from(*second) <= panel.seconds.end) {
        let x = panel.x(f64::from(second));
        canvas.line(vec![(x, bottom), (x, bottom + 8)], FAINT, 1.0, 2);
        canvas.write(&format!("{second} s"), (x, bottom + 30), words);
    }
    let text = "seconds since the first request";
    canvas.write(text, (i32::midpoint(LEFT, RIGHT), bottom + 68), words);
}

#[cfg(test)]
mod tests;
