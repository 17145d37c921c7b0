//! Contents of each chart.

use std::collections::BTreeMap;
use std::ops::Range;

use plotters::prelude::RGBColor;
use plotters::style::text_anchor::HPos;

use super::canvas::{Canvas, LabelStyle};
use super::panel::{Panel, StepFunction};
use super::{ALARM, FAINT, INK, PAPER, SMALL, VERSIONS};
use crate::series::Series;
use crate::series::observed::UpgradeState;
use crate::series::requests::{Latency, RequestsInSecond, WINDOW};

/// Draws a chart in its panel.
type Draw<'a> = Box<dyn Fn(&Canvas<'_>, &Panel) + 'a>;
/// Selects a percentile.
type Percentile = fn(Latency) -> f64;

/// A chart without a position.
pub struct Chart<'a> {
    pub title: &'static str,
    /// Subtitle next to the title.
    pub aside: String,
    pub height: i32,
    pub values: Range<f64>,
    pub draw: Draw<'a>,
}

/// Returns all charts from top to bottom.
pub fn all(series: &Series) -> Vec<Chart<'_>> {
    vec![
        requests(&series.seconds),
        failed(series),
        latency(&series.seconds),
        percent("Traffic weight", "percent, in the HTTPRoute", &series.standings, |standing| &standing.traffic),
        percent("Target capacity", "percent, of Ray Serve", &series.standings, |standing| &standing.capacity),
        quota(&series.standings),
    ]
}

/// Returns the middle of each second with its value.
fn by_second(seconds: &[RequestsInSecond], value: impl Fn(&RequestsInSecond) -> Option<f64>) -> Vec<(f64, f64)> {
    let values = seconds.iter().enumerate().map(|(at, second)| Some((at as f64 + 0.5, value(second)?)));
    values.flatten().collect()
}

fn answered(second: &RequestsInSecond, version: &str) -> f64 {
    second.answered.get(version).copied().unwrap_or_default().into()
}

fn requests(seconds: &[RequestsInSecond]) -> Chart<'_> {
    let all = |second: &RequestsInSecond| VERSIONS.iter().map(|(version, ..)| answered(second, version)).sum::<f64>();
    let most = seconds.iter().map(all).fold(10.0, f64::max);
    let draw = move |canvas: &Canvas<'_>, panel: &Panel| {
        let ticks = [0.0, 10.0, 20.0, 30.0, 40.0].iter().filter(|tick| **tick <= most);
        panel.grid(canvas, &labeled(ticks));
        let mut below = panel.curve(&by_second(seconds, |_| Some(0.0)));
        for (at, (version, color, _)) in VERSIONS.iter().enumerate() {
            let sum =
                |second: &RequestsInSecond| VERSIONS[..=at].iter().map(|(version, ..)| answered(second, version)).sum();
            let above = panel.curve(&by_second(seconds, |second| Some(sum(second))));
            panel.between(canvas, above.clone(), &below, *color);
            below = above;
            if let Some((second, value)) = middle(seconds, at) {
                let words = LabelStyle { size: SMALL + 5, color: PAPER, bold: true, from: HPos::Center };
                canvas.write(&format!("version {version}"), (panel.x(second), panel.y(value)), words);
            }
        }
    };
    Chart {
        title: "Requests answered per second",
        aside: "by version".to_owned(),
        height: 250,
        values: 0.0..most * 1.08,
        draw: Box::new(draw),
    }
}

/// Returns a label position: the middle of the seconds in which a version answered most requests,
/// and half the height of its area there.
fn middle(seconds: &[RequestsInSecond], of: usize) -> Option<(f64, f64)> {
    let by = |second: &RequestsInSecond| VERSIONS.map(|(version, ..)| answered(second, version));
    let is_most = |counts: &[f64; 2]| 2.0 * counts[of] > counts.iter().sum();
    let most: Vec<(usize, [f64; 2])> =
        seconds.iter().map(by).enumerate().filter(|(_, counts)| is_most(counts)).collect();
    let (at, counts) = most.get(most.len() / 2)?;
    Some((*at as f64 + 0.5, counts[..of].iter().sum::<f64>() + counts[of] / 2.0))
}

fn failed(series: &Series) -> Chart<'_> {
    let most = series.seconds.iter().map(|second| second.failed).max().unwrap_or_default().max(1);
    let draw = move |canvas: &Canvas<'_>, panel: &Panel| {
        panel.grid(canvas, &[(0.0, "0".to_owned())]);
        let steps: StepFunction =
            series.seconds.iter().enumerate().map(|(at, of)| (at as f64, of.failed.into())).collect();
        let color = if series.total.failed == 0 { FAINT } else { ALARM };
        canvas.line(panel.stairs(&steps), color, 1.0, 5);
        panel.ends(canvas, &[(0.0, format!("{} failed", series.total.failed), color)]);
    };
    Chart {
        title: "Requests failed per second",
        aside: String::new(),
        height: 36,
        values: 0.0..f64::from(most),
        draw: Box::new(draw),
    }
}

fn latency(seconds: &[RequestsInSecond]) -> Chart<'_> {
    let most = seconds.iter().filter_map(|second| second.latency).map(|of| of.p99).fold(100.0, f64::max);
    let draw = move |canvas: &Canvas<'_>, panel: &Panel| {
        let ticks = [1.0, 10.0, 100.0, 1000.0, 10_000.0].iter().filter(|tick| **tick <= most);
        let ticks: Vec<(f64, String)> = ticks.map(|tick: &f64| (tick.log10(), format!("{tick}"))).collect();
        panel.grid(canvas, &ticks);
        let mut ends = Vec::new();
        let lines: [(&str, RGBColor, Percentile); 2] =
            [("p99", RGBColor(0x9a, 0xa5, 0xb1), |of| of.p99), ("p50", INK, |of| of.p50)];
        for (name, color, of) in lines {
            let values = by_second(seconds, |second| second.latency.map(|latency| of(latency).max(1.0).log10()));
            canvas.line(panel.curve(&values), color, 1.0, 4);
            let dark = if color == INK { INK } else { FAINT };
            ends.extend(values.last().map(|(_, value)| (*value, name.to_owned(), dark)));
        }
        panel.ends(canvas, &ends);
    };
    let aside = format!("milliseconds, of the last {WINDOW} seconds");
    Chart { title: "Latency", aside, height: 150, values: 0.0..most.log10() * 1.04, draw: Box::new(draw) }
}

/// Returns a value of a version over time, from its first occurrence on; zero where it is missing.
fn of_version<'a>(
    standings: &'a [UpgradeState],
    amounts: impl Fn(&'a UpgradeState) -> &'a BTreeMap<String, f64>,
    version: &str,
) -> StepFunction {
    let values = standings.iter().map(|standing| (standing.at, amounts(standing).get(version).copied()));
    let known = values.skip_while(|(_, value)| value.is_none());
    known.map(|(at, value)| (at, value.unwrap_or_default())).collect()
}

fn percent<'a>(
    title: &'static str,
    aside: &'static str,
    standings: &'a [UpgradeState],
    amounts: fn(&UpgradeState) -> &BTreeMap<String, f64>,
) -> Chart<'a> {
    let draw = move |canvas: &Canvas<'_>, panel: &Panel| {
        panel.grid(canvas, &labeled([0.0, 50.0, 100.0].iter()));
        let mut ends = Vec::new();
        for (version, color, dark) in &VERSIONS {
            let steps = of_version(standings, amounts, version);
            canvas.line(panel.stairs(&steps), *color, 1.0, 6);
            ends.extend(steps.last().map(|(_, value)| (*value, format!("version {version}"), *dark)));
        }
        panel.ends(canvas, &ends);
    };
    Chart { title, aside: aside.to_owned(), height: 130, values: 0.0..104.0, draw: Box::new(draw) }
}

fn quota(standings: &[UpgradeState]) -> Chart<'_> {
    let most = standings.iter().map(|standing| standing.quota).fold(1.0, f64::max);
    let draw = move |canvas: &Canvas<'_>, panel: &Panel| {
        let ticks: Vec<f64> = (0_u8..).map(f64::from).take_while(|tick| *tick <= most).collect();
        panel.grid(canvas, &labeled(ticks.iter()));
        let nothing: StepFunction = standings.iter().map(|standing| (standing.at, 0.0)).collect();
        let mut below = panel.stairs(&nothing);
        for (at, (_, color, _)) in VERSIONS.iter().enumerate() {
            let sum = |standing: &UpgradeState| {
                VERSIONS[..=at].iter().map(|(version, ..)| standing.used.get(*version).unwrap_or(&0.0)).sum()
            };
            let steps: StepFunction = standings.iter().map(|standing| (standing.at, sum(standing))).collect();
            let above = panel.stairs(&steps);
            panel.between(canvas, above.clone(), &below, *color);
            below = above;
        }
        let held: StepFunction = standings.iter().map(|standing| (standing.at, standing.held)).collect();
        canvas.line(panel.stairs(&held), INK, 1.0, 5);
        let quota: StepFunction = standings.iter().map(|standing| (standing.at, standing.quota)).collect();
        canvas.dashes(&panel.stairs(&quota), ALARM, 4);
        let last = standings.last().cloned().unwrap_or_default();
        let ends =
            [(last.quota, format!("quota {}", last.quota), ALARM), (last.held, format!("reserved {}", last.held), INK)];
        panel.ends(canvas, &ends);
    };
    let aside = "CPU cores; filled: requests of the pods".to_owned();
    Chart { title: "Quota of the queue", aside, height: 200, values: 0.0..most * 1.06, draw: Box::new(draw) }
}

fn labeled<'a>(ticks: impl Iterator<Item = &'a f64>) -> Vec<(f64, String)> {
    ticks.map(|tick| (*tick, format!("{tick}"))).collect()
}
