//! The current state in a few lines of a terminal, as a function of the series.

use std::collections::BTreeMap;

use ratatui::Frame;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use crate::scenario::VERSIONS;
use crate::series::observed::UpgradeState;
use crate::series::requests::{RequestTotals, RequestsInSecond};

/// Height in lines.
pub const HEIGHT: u16 = 11;
/// Interval of the summaries without a terminal, in seconds.
const SUMMARY_INTERVAL: usize = 10;
/// Width of the label column, and maximum width of the bars.
const MARGIN: usize = 28;
const MAX_BAR_WIDTH: usize = 100;
/// Bars from empty to full.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// One color per version, as in the chart.
const COLORS: [Color; 2] = [Color::LightBlue, Color::Yellow];

/// The state at one point in time.
pub struct ViewState {
    pub seconds: Vec<RequestsInSecond>,
    pub standing: UpgradeState,
    pub total: RequestTotals,
}

impl ViewState {
    /// Reports whether a summary is due, if the last one was after `printed` seconds.
    pub fn summary_is_due(&self, printed: usize) -> bool {
        self.seconds.len() >= printed + SUMMARY_INTERVAL
    }

    /// Formats the state in one line.
    pub fn summary(&self) -> String {
        let last = self.seconds.last().cloned().unwrap_or_default();
        let latency = last.latency.unwrap_or_default();
        let per_version = |amounts: &BTreeMap<String, f64>| {
            let parts = VERSIONS.map(|version| format!("{}", amounts.get(version).unwrap_or(&0.0)));
            parts.join("/")
        };
        format!(
            "{:>6}.0s  {} requests, {} failed; {}/{} per second, p50 {:.0} ms, p99 {:.0} ms; traffic {}%, capacity {}%; CPU reserved {} \
             of {}",
            self.seconds.len(),
            self.total.requests,
            self.total.failed,
            answered(&last, VERSIONS[0]),
            answered(&last, VERSIONS[1]),
            latency.p50,
            latency.p99,
            per_version(&self.standing.traffic),
            per_version(&self.standing.capacity),
            self.standing.held,
            self.standing.quota,
        )
    }
}

/// Draws the state.
pub fn draw(frame: &mut Frame, moment: &ViewState) {
    let area = frame.area();
    frame.render_widget(Paragraph::new(lines(moment, area.width.into())), area);
}

/// Returns the lines for a terminal of this width.
fn lines(moment: &ViewState, width: usize) -> Vec<Line<'static>> {
    let room = width.saturating_sub(MARGIN + 1).min(MAX_BAR_WIDTH);
    let ViewState { seconds, standing, total } = moment;
    let last = seconds.last().cloned().unwrap_or_default();
    let recent = &seconds[seconds.len().saturating_sub(room)..];
    let most = recent.iter().flat_map(|second| second.answered.values()).copied().max().unwrap_or(1);
    let failures: Vec<u32> = recent.iter().map(|second| second.failed).collect();
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let summary = format!("{} s: {} requests, {} failed", seconds.len(), total.requests, total.failed);
    let mut lines = vec![Line::raw("─".repeat(width.min(MARGIN + MAX_BAR_WIDTH))), Line::styled(summary, bold)];
    for (version, color) in VERSIONS.iter().zip(COLORS) {
        let counts: Vec<u32> = recent.iter().map(|second| answered(second, version)).collect();
        let now = answered(&last, version);
        lines.push(row(&format!("version {version}, per s"), &now.to_string(), vec![(spark(&counts, most), color)]));
    }
    let alarm = if total.failed > 0 { Color::Red } else { Color::DarkGray };
    lines.push(row("failed, per s", &last.failed.to_string(), vec![(spark(&failures, 1), alarm)]));
    let latency = last.latency.unwrap_or_default();
    let slow: Vec<u32> = recent.iter().map(|second| whole(second.latency.unwrap_or_default().p99)).collect();
    let slowest = slow.iter().copied().max().unwrap_or(1);
    let figures = format!("{:.0}/{:.0}", latency.p50, latency.p99);
    lines.push(row("p50/p99, ms", &figures, vec![(spark(&slow, slowest), Color::Gray)]));
    for (title, amounts) in [("traffic, %", &standing.traffic), ("capacity, %", &standing.capacity)] {
        let [first, second] = VERSIONS.map(|version| amounts.get(version).copied().unwrap_or_default());
        lines.push(row(title, &format!("{first}/{second}"), bars(&[first, second], (first + second).max(100.0), room)));
    }
    let used = VERSIONS.map(|version| standing.used.get(version).copied().unwrap_or_default());
    let mut quota = bars(&used, standing.quota, room);
    let drawn: usize = quota.iter().map(|(bar, _)| bar.chars().count()).sum();
    let held = length(standing.held, standing.quota, room).saturating_sub(drawn);
    quota.push(("▒".repeat(held), Color::Gray));
    quota.push(("·".repeat(room.saturating_sub(drawn + held)), Color::DarkGray));
    lines.push(row("CPU reserved/quota", &format!("{}/{}", standing.held, standing.quota), quota));
    lines
}

fn row(title: &str, figure: &str, drawn: Vec<(String, Color)>) -> Line<'static> {
    let mut spans = vec![Span::raw(format!("{title:<19}{figure:>7}  "))];
    spans.extend(drawn.into_iter().map(|(text, color)| Span::styled(text, Style::new().fg(color))));
    Line::from(spans)
}

fn answered(second: &RequestsInSecond, version: &str) -> u32 {
    second.answered.get(version).copied().unwrap_or_default()
}

/// Returns a bar for each count, blank for zero.
fn spark(counts: &[u32], most: u32) -> String {
    let last = u32::try_from(BARS.len()).unwrap_or(u32::MAX) - 1;
    let bar = |count: u32| if count == 0 { ' ' } else { BARS[(count * last / most.max(1)).min(last) as usize] };
    counts.iter().map(|count| bar(*count)).collect()
}

/// Returns a bar for each version, one after the other.
fn bars(amounts: &[f64; 2], whole: f64, room: usize) -> Vec<(String, Color)> {
    let [first, second] = *amounts;
    let (first, both) = (length(first, whole, room), length(first + second, whole, room));
    vec![("█".repeat(first), COLORS[0]), ("█".repeat(both.saturating_sub(first)), COLORS[1])]
}

fn length(amount: f64, whole: f64, room: usize) -> usize {
    if whole > 0.0 { ((amount / whole).clamp(0.0, 1.0) * room as f64).round() as usize } else { 0 }
}

fn whole(milliseconds: f64) -> u32 {
    milliseconds.max(0.0).round() as u32
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::series::requests::Latency;

    fn both(first: f64, second: f64) -> BTreeMap<String, f64> {
        [("1".to_owned(), first), ("2".to_owned(), second)].into()
    }

    fn moment() -> ViewState {
        let second = |first: u32, second: u32| RequestsInSecond {
            answered: [("1".to_owned(), first), ("2".to_owned(), second)].into(),
            failed: 0,
            latency: Some(Latency { p50: 9.6, p99: 80.0 }),
        };
        let standing = UpgradeState {
            at: 2.0,
            traffic: both(75.0, 25.0),
            capacity: both(100.0, 50.0),
            quota: 5.0,
            held: 4.0,
            used: both(2.0, 1.0),
        };
        ViewState {
            seconds: vec![second(20, 0), second(15, 5)],
            standing,
            total: RequestTotals { requests: 40, failed: 0, latency: None },
        }
    }

    #[test]
    fn state_is_drawn() {
        let drawn: Vec<String> = lines(&moment(), MARGIN + 21).iter().map(ToString::to_string).collect();
        assert_eq!(
            drawn[1..],
            [
                "2 s: 40 requests, 0 failed",
                "version 1, per s        15  █▆",
                "version 2, per s         5   ▂",
                "failed, per s            0    ",
                "p50/p99, ms          10/80  ██",
                "traffic, %           75/25  ████████████████████",
                "capacity, %         100/50  ████████████████████",
                "CPU reserved/quota     4/5  ████████████▒▒▒▒····",
            ]
        );
        assert!(drawn.len() <= HEIGHT.into());
    }

    #[test]
    fn state_is_formatted_in_one_line() {
        assert_eq!(
            moment().summary(),
            "     2.0s  40 requests, 0 failed; 15/5 per second, p50 10 ms, p99 80 ms; traffic 75/25%, capacity 100/50%; CPU reserved 4 of 5"
        );
    }

    #[rstest]
    #[case::none(&[], 5, "")]
    #[case::nothing(&[0, 0], 5, "  ")]
    #[case::some(&[1, 10, 20], 20, "▁▄█")]
    #[case::more_than_all(&[9], 5, "█")]
    fn bars_of_counts(#[case] counts: &[u32], #[case] most: u32, #[case] expected: &str) {
        assert_eq!(spark(counts, most), expected);
    }
}
