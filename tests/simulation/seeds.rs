//! Runs many seeds, on every core, and tells what came of them.

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

/// After so many failures the rest isn't run.
const ENOUGH: usize = 3;

/// What came of many seeds.
#[derive(Debug, Default)]
pub struct Summary {
    /// How many were run.
    pub seeds: u64,
    /// How many upgrades went through in them.
    pub upgrades: usize,
    requests: u64,
    virtual_time: Duration,
    histories: BTreeMap<History, u64>,
    /// Those that failed, with what they broke first.
    pub failed: Vec<(u64, Report)>,
}

impl Summary {
    fn add(&mut self, seed: u64, report: Report) {
        self.seeds += 1;
        self.upgrades += report.coverage.upgrades;
        self.requests += report.requests;
        self.virtual_time += report.lasted;
        for history in report.coverage.seen() {
            *self.histories.entry(history.clone()).or_default() += 1;
        }
        if !report.found.is_empty() {
            self.failed.push((seed, report));
        }
    }

    /// Histories that happened in too few of the seeds for a clean run to say much of them.
    pub fn rare(&self) -> Vec<String> {
        let seldom = |history: &History| self.histories.get(history).is_none_or(|seeds| seeds * 100 < self.seeds);
        let wanted = History::wanted().into_iter().chain(self.histories.keys().cloned());
        wanted.filter(seldom).map(|history| history.to_string()).collect()
    }

    /// What a person reads.
    pub fn table(&self, took: Duration) -> String {
        let mut table = String::new();
        let minutes = took.as_secs_f64() / 60.0;
        let _ = writeln!(
            table,
            "{} seeds, {} upgrades ({:.0} a minute), {} requests, {} virtual hours in {:.0} s",
            self.seeds,
            self.upgrades,
            self.upgrades as f64 / minutes,
            self.requests,
            self.virtual_time.as_secs() / 3600,
            took.as_secs_f64()
        );
        for (history, seeds) in &self.histories {
            let percent = *seeds as f64 * 100.0 / self.seeds as f64;
            let _ = writeln!(table, "{percent:6.1} %  {history}");
        }
        table
    }
}

/// Runs seeds, until a few have broken something or all are done.
pub fn run_all(seeds: Range<u64>, case: fn(u64) -> Case) -> Summary {
    let summary = Mutex::new(Summary::default());
    on_every_core(seeds, |seed| {
        let report = run(&case(seed), false);
        let mut summary = summary.lock().expect("no thread has panicked");
        summary.add(seed, report);
        summary.failed.len() < ENOUGH
    });
    let mut summary = summary.into_inner().expect("no thread has panicked");
    summary.failed.sort_by_key(|(seed, _)| *seed);
    summary
}

/// Runs seeds until one is as wanted; which, and in what way.
pub fn first(seeds: Range<u64>, is_wanted: impl Fn(&Report) -> Option<String> + Sync) -> Option<(u64, String)> {
    let first = Mutex::new(None);
    on_every_core(seeds, |seed| {
        let wanted = is_wanted(&run(&Case::of(seed), false));
        let mut first = first.lock().expect("no thread has panicked");
        *first = first.take().or(wanted.map(|what| (seed, what)));
        first.is_none()
    });
    first.into_inner().expect("no thread has panicked")
}

/// Does something with each seed in turn, until it says that this is enough.
pub fn on_every_core(seeds: Range<u64>, go_on: impl Fn(u64) -> bool + Sync) {
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

/// Says what a seed broke, and leaves the case and its history, made short, in files.
pub fn told(case: &Case, report: &Report) -> String {
    let seed = case.seed;
    let Some(first) = report.found.first() else { return String::new() };
    println!("seed {seed} broke {}; it is being made short", first.breach);
    let begun = Instant::now();
    let short = shrunk(case, first.breach.invariant);
    let again = run(&short, true);
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("simulation");
    let file = folder.join(format!("seed-{seed}.yaml"));
    std::fs::create_dir_all(&folder).expect("a folder for what failed");
    let yaml = serde_saphyr::to_string(&short).expect("a case is plain data");
    std::fs::write(&file, &yaml).expect("a file for the case");
    std::fs::write(file.with_extension("trace"), &again.text).expect("a file for the history");
    let list = |report: &Report| report.found.iter().map(|found| format!("  {found}\n")).collect::<String>();
    format!(
        "seed {seed} broke\n{}made short in {:.0} s, it breaks\n{}{} and .trace:\n{yaml}",
        list(report),
        begun.elapsed().as_secs_f64(),
        list(&again),
        file.display(),
    )
}
