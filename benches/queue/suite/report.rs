//! Results of a run, and their table.

use std::time::Duration;

use super::backlog::BacklogPoint;
use super::scenario::float;
use super::scheduler_clock::SchedulerClock;
use super::simulated_cluster::RunTotals;

/// Results of a run.
#[derive(Debug)]
pub struct Report {
    pub(super) name: &'static str,
    pub(super) workloads: usize,
    pub(super) totals: RunTotals,
    pub(super) clock: SchedulerClock,
    /// `None` if workloads have no given run time.
    pub(super) makespan: Option<Makespan>,
    /// Bytes that the scheduler keeps for each workload.
    pub(super) bytes: f64,
    /// Measurements by length of the backlog; empty for other shapes.
    pub(super) curve: Vec<BacklogPoint>,
}

/// Duration of the run, in milliseconds of virtual time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Makespan {
    pub(super) end: i64,
    /// Lower bound by quota if all workloads were submitted at the start.
    pub(super) bound: f64,
    /// Lower bound by quota with the actual submission times.
    pub(super) arrivals_bound: f64,
    /// Total units of quota.
    pub(super) quota: i64,
}

impl Report {
    fn rows(&self) -> Vec<(&'static str, String)> {
        let (tally, clock) = (&self.totals, &self.clock);
        let per_second = decimal(clock.decisions) / clock.total().as_secs_f64();
        let mut rows = vec![
            ("workloads", self.workloads.to_string()),
            ("admissions", tally.admissions.to_string()),
            ("evictions", tally.evictions.to_string()),
            ("decisions", clock.decisions.to_string()),
            ("inside the scheduler", format!("{:.3} s", clock.total().as_secs_f64())),
        ];
        rows.extend(clock.operations.iter().map(|(part, (count, time))| {
            let each = microseconds(time.div_f64(decimal(*count)));
            (part.name(), format!("{count} × {each} = {:.3} s", time.as_secs_f64()))
        }));
        rows.extend([
            ("decisions per second", format!("{per_second:.0}")),
            ("time per decision", microseconds(clock.total().div_f64(decimal(clock.decisions.max(1))))),
            ("cycle, median", quantile(&clock.cycle, 0.5)),
            ("cycle, p99", quantile(&clock.cycle, 0.99)),
            ("cycle, longest", quantile(&clock.cycle, 1.0)),
            ("bytes per workload", format!("{:.0}", self.bytes)),
        ]);
        if let Some(makespan) = self.makespan {
            let end = float(makespan.end);
            let capacity = float(makespan.quota) * end;
            let seconds = |milliseconds: f64| format!("{:.2} s", milliseconds / 1000.0);
            rows.extend([
                ("makespan (virtual)", seconds(end)),
                ("  bound by quota", seconds(makespan.bound)),
                ("  above the bound", percent(end / makespan.bound - 1.0)),
                ("  bound with arrivals", seconds(makespan.arrivals_bound)),
                ("  lost to evictions", percent(float(tally.wasted) / capacity)),
                ("  idle quota", percent(1.0 - float(tally.work + tally.wasted) / capacity)),
            ]);
        }
        rows
    }
}

fn decimal(count: u64) -> f64 {
    float(i64::try_from(count).unwrap_or(i64::MAX))
}

fn percent(part: f64) -> String {
    format!("{:.1} %", part * 100.0)
}

fn microseconds(time: Duration) -> String {
    format!("{:.2} µs", time.as_secs_f64() * 1e6)
}

fn quantile(times: &hdrhistogram::Histogram<u64>, quantile: f64) -> String {
    microseconds(Duration::from_nanos(times.value_at_quantile(quantile)))
}

/// Formats the results as a table.
pub fn table(report: &Report) -> String {
    let rows = report.rows().into_iter().map(|(name, value)| format!("  {name:<24}{value:>36}\n"));
    let mut text = format!("{}\n{}", report.name, rows.collect::<String>());
    if !report.curve.is_empty() {
        text += &format!(
            "  {:>10}{:>14}{:>14}{:>14}{:>14}{:>10}\n",
            "pending", "unit, median", "p99", "decisions", "per decision", "bytes"
        );
    }
    for point in &report.curve {
        text += &format!(
            "  {:>10}{:>14}{:>14}{:>14}{:>14}{:>10.0}\n",
            point.pending,
            quantile(&point.release_latency, 0.5),
            quantile(&point.release_latency, 0.99),
            point.decisions,
            microseconds(point.inside.div_f64(decimal(point.decisions.max(1)))),
            point.bytes
        );
    }
    text
}
