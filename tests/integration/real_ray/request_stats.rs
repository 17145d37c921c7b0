//! Measurements of requests, and their printed summary.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use sluice_testkit::load::CompletedRequest;

/// Window of the throughput, as in Locust, whose curves KubeRay's guide to incremental upgrades
/// shows.
const WINDOW: Duration = Duration::from_secs(10);

/// Prints a one-line summary of the requests of a scenario.
pub(super) fn print_summary(scenario: &str, requests: &[CompletedRequest]) {
    let mut latencies: Vec<Duration> = requests.iter().map(|request| request.latency).collect();
    latencies.sort();
    let percentile = |percent: usize| latencies.get(latencies.len() * percent / 100).map_or(0, Duration::as_millis);
    let mut versions: BTreeMap<&str, usize> = BTreeMap::new();
    for version in requests.iter().flat_map(|request| &request.outcome) {
        *versions.entry(version).or_default() += 1;
    }
    let failed = requests.iter().filter(|request| request.outcome.is_err()).count();
    let seconds = requests.iter().map(|request| request.scheduled_at).max().unwrap_or_default().as_secs();
    let slowest = requests.iter().max_by_key(|request| request.latency);
    let slowest = slowest.map_or_else(String::new, |slowest| {
        format!(" (slowest {} ms, sent after {} s)", slowest.latency.as_millis(), slowest.scheduled_at.as_secs())
    });
    let by: Vec<String> = versions.iter().map(|(version, count)| format!("{count} by version {version}")).collect();
    println!(
        "{scenario}: {} requests in {seconds} s, {failed} failed, p50 {} ms, p99 {} ms{slowest}; answered {}",
        requests.len(),
        percentile(50),
        percentile(99),
        by.join(", ")
    );
}

/// Returns the number of answered requests in each window that ends within `during`, one second
/// apart.
pub(super) fn throughput(requests: &[CompletedRequest], during: Range<Duration>) -> Vec<usize> {
    let answered = requests.iter().filter(|request| request.outcome.is_ok());
    let answered: Vec<Duration> = answered.map(|request| request.scheduled_at + request.latency).collect();
    let ends = (0..).map(|second| during.start + Duration::from_secs(second)).take_while(|end| *end < during.end);
    let count = |end: Duration| {
        let window = end.saturating_sub(WINDOW)..end;
        answered.iter().filter(|at| window.contains(*at)).count()
    };
    ends.map(count).collect()
}

/// Returns the median.
pub(super) fn median(mut counts: Vec<usize>) -> usize {
    counts.sort_unstable();
    counts[counts.len() / 2]
}
