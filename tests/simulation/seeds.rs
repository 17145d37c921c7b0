//! Runs many seeds on all cores and summarizes the results.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::case::Case;
use crate::coverage::History;
use crate::run::{Report, run};
use crate::shrink::shrunk;

/// Number of failures after which the remaining seeds are skipped.
const MAX_FAILURES: usize = 3;

/// Results of many seeds.
#[derive(Debug, Default)]
pub struct Summary {
    /// Number of seeds run.
    pub seeds: u64,
    /// Number of completed upgrades.
    pub upgrades: usize,
    requests: u64,
    virtual_time: Duration,
    histories: BTreeMap<History, u64>,
    /// Failed seeds and their reports.
    pub failed: Vec<(u64, Report)>,
}

impl Summary {
    fn add(&mut self, seed: u64, report: Report) {
        self.seeds += 1;
        self.upgrades += report.coverage.upgrades;
        self.requests += report.requests;
        self.virtual_time += report.virtual_time;
        for history in report.coverage.histories() {
            *self.histories.entry(history.clone()).or_default() += 1;
        }
        if !report.violations.is_empty() {
            self.failed.push((seed, report));
        }
    }

    /// Returns the histories that occurred in less than 1% of the seeds: too few for a clean run to
    /// prove much.
    pub fn rare_histories(&self) -> Vec<String> {
        let is_rare = |history: &History| self.histories.get(history).is_none_or(|seeds| seeds * 100 < self.seeds);
        let wanted = History::required().into_iter().chain(self.histories.keys().cloned());
        wanted.filter(is_rare).map(|history| history.to_string()).collect()
    }

    /// Returns a readable summary of a run that took `took`.
    pub fn table(&self, took: Duration) -> String {
        let mut table = String::new();
        let minutes = took.as_secs_f64() / 60.0;
        let _ = writeln!(
            table,
            "{} seeds, {} upgrades ({:.0} per minute), {} requests, {} virtual hours in {:.0} s",
            self.seeds,
            self.upgrades,
            self.upgrades as f64 / minutes,
            self.requests,
            self.virtual_time.as_secs() / 3600,
            took.as_secs_f64()
        );
        for (history, seeds) in &self.histories {
            let percent = *seeds as f64 * 100.0 / self.seeds as f64;
            let _ = writeln!(table, "{percent:6.1}%  {history}");
        }
        table
    }
}

/// Runs all seeds, or stops after [`MAX_FAILURES`] failures.
pub fn run_all(seeds: Range<u64>, case: fn(u64) -> Case) -> Summary {
    let summary = Mutex::new(Summary::default());
    for_each_seed(seeds, |seed| {
        let report = run(&case(seed), false);
        let mut summary = summary.lock().expect("no thread has panicked");
        summary.add(seed, report);
        summary.failed.len() < MAX_FAILURES
    });
    let mut summary = summary.into_inner().expect("no thread has panicked");
    summary.failed.sort_by_key(|(seed, _)| *seed);
    summary
}

/// Runs the cases of seeds until `is_wanted` accepts a report. Returns the seed and what `is_wanted`
/// returned for it.
pub fn find_seed(
    seeds: Range<u64>,
    case: fn(u64) -> Case,
    is_wanted: impl Fn(&Report) -> Option<String> + Sync,
) -> Option<(u64, String)> {
    let first = Mutex::new(None);
    for_each_seed(seeds, |seed| {
        let wanted = is_wanted(&run(&case(seed), false));
        let mut first = first.lock().expect("no thread has panicked");
        *first = first.take().or(wanted.map(|what| (seed, what)));
        first.is_none()
    });
    first.into_inner().expect("no thread has panicked")
}

/// Calls `go_on` with each seed, on all cores, until it returns false.
pub fn for_each_seed(seeds: Range<u64>, go_on: impl Fn(u64) -> bool + Sync) {
    let next = AtomicU64::new(seeds.start);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end || !go_on(seed) {
                        return next.store(seeds.end, Ordering::Relaxed);
                    }
                }
            });
        }
    });
}

/// Shrinks a failed case, writes the case and its history to files, and returns a description of
/// the violation. Empty if the report has none.
pub fn shrink_and_describe(case: &Case, report: &Report) -> String {
    let seed = case.seed;
    let Some(first) = report.violations.first() else { return String::new() };
    println!("seed {seed} violates {}; shrinking", first.violation);
    let started = Instant::now();
    let shrunk_case = shrunk(case, first.violation.invariant);
    let replay = run(&shrunk_case, true);
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("simulation");
    let file = directory.join(format!("seed-{seed}.yaml"));
    std::fs::create_dir_all(&directory).expect("the failure directory can be created");
    let yaml = serde_saphyr::to_string(&shrunk_case).expect("a case is plain data");
    std::fs::write(&file, &yaml).expect("the case can be written");
    std::fs::write(file.with_extension("trace"), &replay.text).expect("the history can be written");
    let list = |report: &Report| report.violations.iter().map(|found| format!("  {found}\n")).collect::<String>();
    format!(
        "seed {seed} violates\n{}shrunk in {:.0} s, it violates\n{}{} and .trace:\n{yaml}",
        list(report),
        started.elapsed().as_secs_f64(),
        list(&replay),
        file.display(),
    )
}
