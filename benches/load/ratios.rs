//! Comparison of runs with their floors, as a table.

use comfy_table::{CellAlignment, Table, TableStyle, presets};

use crate::report::{ClassReport, Report};

/// Columns of the comparison.
const COMPARISON: [&str; 11] = [
    "scenario",
    "objects",
    "wall: run / floor",
    "ratio",
    "writes: run / floor",
    "ratio",
    "API server CPU: run / floor",
    "ratio",
    "quota used",
    "manager CPU",
    "peak memory",
];

/// Columns of the times to admission.
const ADMISSION: [&str; 6] = ["scenario", "class", "admitted", "mean", "p50", "p99"];

/// A run and its floor.
#[derive(Debug, Clone)]
pub struct Comparison {
    /// The run with a manager.
    pub run: Report,
    /// The same writes without one.
    pub floor: Report,
}

impl Comparison {
    /// Returns the wall time as a multiple of the floor.
    pub fn wall(&self) -> f64 {
        self.run.wall_seconds / self.floor.wall_seconds
    }

    /// Returns the number of writes as a multiple of the floor.
    pub fn writes(&self) -> f64 {
        self.run.writes() as f64 / self.floor.writes() as f64
    }

    /// Returns the CPU time of the API server as a multiple of the floor. `None` if it is not
    /// reported.
    pub fn api_server_cpu(&self) -> Option<f64> {
        Some(self.run.api_server_cpu_seconds? / self.floor.api_server_cpu_seconds?)
    }

    fn row(&self) -> Vec<String> {
        let (run, floor) = (&self.run, &self.floor);
        let cpu = |report: &Report| report.api_server_cpu_seconds.map_or_else(none, |cpu| format!("{cpu:.1} s"));
        let manager = run.manager.as_ref();
        vec![
            run.scenario.clone(),
            run.objects.to_string(),
            format!("{:.1} s / {:.1} s", run.wall_seconds, floor.wall_seconds),
            ratio(self.wall()),
            format!("{} / {}", run.writes(), floor.writes()),
            ratio(self.writes()),
            format!("{} / {}", cpu(run), cpu(floor)),
            self.api_server_cpu().map_or_else(none, ratio),
            run.quota_use_while_pending.map_or_else(none, |used| format!("{:.1} %", used * 100.0)),
            manager.map_or_else(none, |manager| format!("{:.1} s", manager.cpu_seconds)),
            manager.map_or_else(none, |manager| format!("{} MiB", manager.peak_bytes >> 20)),
        ]
    }

    /// Returns one row for each class of which objects were admitted.
    fn admission_rows(&self) -> Vec<Vec<String>> {
        let admitted = self.run.time_to_admission.iter().filter(|class| class.admitted > 0);
        let row = |class: &ClassReport| {
            let mut row = vec![self.run.scenario.clone(), class.class.clone()];
            row.push(format!("{} of {}", class.admitted, class.count));
            row.extend([class.mean, class.p50, class.p99].map(|millis| format!("{millis:.0} ms")));
            row
        };
        admitted.map(row).collect()
    }
}

/// Returns the tables for a terminal.
pub fn text(comparisons: &[Comparison]) -> String {
    tables(comparisons, presets::NOTHING)
}

/// Returns the tables as Markdown.
pub fn markdown(comparisons: &[Comparison]) -> String {
    tables(comparisons, presets::ASCII_MARKDOWN)
}

/// Returns the comparison, and the times to admission of the runs.
fn tables(comparisons: &[Comparison], style: TableStyle) -> String {
    let compared = comparisons.iter().map(Comparison::row).collect();
    let admitted = comparisons.iter().flat_map(Comparison::admission_rows).collect();
    format!("{}\n{}", table(&COMPARISON, compared, style), table(&ADMISSION, admitted, style))
}

fn table(headings: &[&str], rows: Vec<Vec<String>>, style: TableStyle) -> String {
    let mut table = Table::new();
    table.load_style(style).set_header(headings).add_rows(rows);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let lines = table.lines().map(|line| line.trim_end().to_owned() + "\n");
    lines.collect()
}

fn ratio(value: f64) -> String {
    format!("{value:.2}")
}

fn none() -> String {
    "-".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Form;
    use crate::report::tests::report;

    fn comparison() -> Comparison {
        let mut run = report(Form::Run);
        run.wall_seconds = 3.0;
        run.requests.insert("PATCH jobs".into(), 5);
        Comparison { run, floor: Report { wall_seconds: 2.0, ..report(Form::Floor) } }
    }

    #[test]
    fn run_is_a_multiple_of_its_floor() {
        let comparison = comparison();

        assert_eq!((comparison.wall(), comparison.writes(), comparison.api_server_cpu()), (1.5, 3.5, Some(1.0)));
    }

    #[test]
    fn markdown_has_a_row_for_each_scenario() {
        let text = markdown(&[comparison(), comparison()]);

        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 7, "{text}");
        assert!(lines[2].starts_with("| test ") && lines[2].contains(" 1.50 |"), "{text}");
    }
}
