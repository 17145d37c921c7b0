//! An upgrade on real Ray behind a real gateway under counted requests: it waits for quota, then
//! completes incrementally.
//!
//! `make demo-ray` runs it. It shows the state while it runs, draws a chart at the end, and fails if a request
//! failed, if the old version answered after the gateway had switched, or if an invariant of the
//! design was violated. With the `series.json` of an earlier run as its argument, it draws that run
//! again.

#![allow(clippy::disallowed_methods, reason = "scenarios run in real time")]
#![allow(missing_docs, unreachable_pub, reason = "in a binary, `pub` marks the interface between modules")]

mod chart;
mod scenario;
mod screen;
mod series;

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tokio::sync::mpsc;

use scenario::{REQUESTS_PER_SECOND, VERSIONS};
use screen::{Screen, ViewState};
use series::Series;
use series::observed::{self, Observer, UpgradeEventKind};
use series::requests;
use sluice_testkit::env::repository_root;
use sluice_testkit::history::{Change, Recorder};
use sluice_testkit::load::{CompletedRequest, LoadGenerator};
use sluice_testkit::process_node::ProcessNode;
use sluice_testkit::timeline::TimelinePrinter;
use sluice_testkit::traefik::Traefik;
use sluice_testkit::{TestEnv, invariants};

/// Interval between redraws of the view.
const FRAME: Duration = Duration::from_millis(250);

#[tokio::main]
async fn main() -> ExitCode {
    let folder =
        std::env::var_os("DEMO_RAY_DIR").map_or_else(|| repository_root().join(".cache/demo-ray"), PathBuf::from);
    std::fs::create_dir_all(&folder).expect("a directory for the chart");
    if let Some(file) = std::env::args().nth(1) {
        let text = std::fs::read_to_string(file).expect("the file of an earlier run");
        write_chart(&serde_json::from_str(&text).expect("its series"), &folder);
        return ExitCode::SUCCESS;
    }
    let began = Instant::now();
    let screen = Screen::new();
    let (series, problems) = run(&screen).await;
    screen.finish();
    write_chart(&series, &folder);
    println!("\n{} ({:.0?} in all)", summary(&series), began.elapsed());
    problems.iter().for_each(|problem| println!("VIOLATION  {problem}"));
    if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs the demo. Returns the measurements and the problems.
async fn run(screen: &Screen) -> (Series, Vec<String>) {
    screen.title("Starting a control plane, a node that runs pods as processes, Traefik and Sluice");
    let env = TestEnv::start_bare().await;
    let _node = ProcessNode::start(&env, scenario::images()).await;
    let traefik = Traefik::start(&env).await;
    let (live, mut changes) = mpsc::unbounded_channel();
    let recorder = Recorder::start(env.client.clone(), Some(live)).await;
    let _manager = env.manager().await;

    let mut output = LiveOutput { teller: TimelinePrinter::new(), observer: Observer::default() };
    tokio::select! {
        () = scenario::start_service(&env, screen) => {}
        never = output.follow(&mut changes, None, screen) => match never {},
    }
    let (load, start) = (LoadGenerator::start(scenario::request_url(), REQUESTS_PER_SECOND), Timestamp::now());
    let switched = tokio::select! {
        switched = scenario::run_upgrade(&env, &traefik, &load, screen) => switched,
        never = output.follow(&mut changes, Some(&load), screen) => match never {},
    };
    let end = load.elapsed();
    let requests = load.stop().await;
    let history = recorder.history().await;
    let (standings, events) = observed::states_and_events(&history, start);
    let seconds = requests::seconds(&requests, end);
    let series = Series { seconds, standings, events, total: requests::total(&requests) };
    let problems = problems(&series, &requests, switched, invariants::violations(&history));
    (series, problems)
}

/// Output state: printed changes and the observed state of the upgrade.
struct LiveOutput {
    teller: TimelinePrinter,
    observer: Observer,
}

impl LiveOutput {
    /// Prints each change and shows the current state, until the future is dropped.
    async fn follow(
        &mut self,
        changes: &mut mpsc::UnboundedReceiver<Change>,
        load: Option<&LoadGenerator>,
        screen: &Screen,
    ) -> Infallible {
        let mut frames = tokio::time::interval(FRAME);
        loop {
            tokio::select! {
                Some(change) = changes.recv() => {
                    self.observer.observe(&change);
                    self.teller.push(change);
                }
                _ = frames.tick() => {
                    self.teller.take_lines().iter().for_each(|line| screen.line(line));
                    if let Some(load) = load {
                        let (requests, elapsed) = (load.requests(), load.elapsed());
                        let standing = self.observer.state_at(elapsed.as_secs_f64());
                        let seconds = requests::seconds(&requests, elapsed);
                        screen.show(&ViewState { seconds, standing, total: requests::total(&requests) });
                    }
                }
            }
        }
    }
}

/// Returns the problems: failed requests, responses of the old version to requests sent after the
/// gateway had switched, and violated invariants.
fn problems(series: &Series, requests: &[CompletedRequest], switched: Duration, breaches: Vec<String>) -> Vec<String> {
    let mut problems: Vec<String> = breaches;
    let failures = requests.iter().filter_map(|request| Some((request.scheduled_at, request.outcome.as_ref().err()?)));
    problems.extend(failures.map(|(sent, why)| format!("the request sent after {sent:.1?} failed: {why}")));
    if !series.events.iter().any(|event| event.what == UpgradeEventKind::Promoted(VERSIONS[1].to_owned())) {
        problems.push("the new version was never promoted".to_owned());
    }
    let old = requests::answered_since(requests, switched, VERSIONS[0]);
    problems.extend(old.map(|request| {
        format!(
            "the old version answered the request sent after {:.1?}; the gateway had switched after {switched:.1?}",
            request.scheduled_at
        )
    }));
    problems
}

fn summary(series: &Series) -> String {
    let total = &series.total;
    let latency = total.latency.unwrap_or_default();
    format!(
        "{} requests, {} failed, p50 {:.0} ms, p99 {:.0} ms",
        total.requests, total.failed, latency.p50, latency.p99
    )
}

/// Writes the chart and its data to a directory.
fn write_chart(series: &Series, folder: &Path) {
    let text = serde_json::to_string(series).expect("series are numbers and words");
    let svg = chart::svg(series);
    let png = chart::png(&svg);
    for (name, bytes) in [("series.json", text.into_bytes()), ("demo-ray.svg", svg.into_bytes()), ("demo-ray.png", png)]
    {
        let file = folder.join(name);
        std::fs::write(&file, bytes).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        println!("{}", file.display());
    }
}
