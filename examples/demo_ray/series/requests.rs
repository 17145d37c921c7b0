//! Aggregates requests by second.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use sluice_testkit::load::CompletedRequest;

/// Window of the latency percentiles, in seconds: large enough for p99 to cover more than one or
/// two requests.
pub const WINDOW: usize = 5;

/// The requests completed in one second.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RequestsInSecond {
    /// Number of requests answered by each version.
    pub answered: BTreeMap<String, u32>,
    /// Number of failed requests.
    pub failed: u32,
    /// Latencies over the last [`WINDOW`] seconds, if any request was answered.
    pub latency: Option<Latency>,
}

/// Latencies in milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
}

/// Totals of all requests.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RequestTotals {
    /// Number of requests.
    pub requests: usize,
    /// Number of failed requests.
    pub failed: usize,
    /// Latencies of the answered requests, if any.
    pub latency: Option<Latency>,
}

/// Returns the requests completed in each full second before `end`.
pub fn seconds(requests: &[CompletedRequest], end: Duration) -> Vec<RequestsInSecond> {
    let whole = usize::try_from(end.as_secs()).unwrap_or(usize::MAX);
    let mut seconds = vec![RequestsInSecond::default(); whole];
    let mut latencies = vec![Vec::new(); whole];
    for request in requests {
        let at = usize::try_from((request.scheduled_at + request.latency).as_secs()).unwrap_or(usize::MAX);
        let Some(second) = seconds.get_mut(at) else { continue };
        match &request.outcome {
            Ok(version) => {
                *second.answered.entry(version.clone()).or_default() += 1;
                latencies[at].push(milliseconds(request.latency));
            }
            Err(_) => second.failed += 1,
        }
    }
    for (at, second) in seconds.iter_mut().enumerate() {
        second.latency = latency(latencies[(at + 1).saturating_sub(WINDOW)..=at].concat());
    }
    seconds
}

/// Returns the totals of all requests.
pub fn total(requests: &[CompletedRequest]) -> RequestTotals {
    let answered = requests.iter().filter(|request| request.outcome.is_ok());
    let latencies: Vec<f64> = answered.map(|request| milliseconds(request.latency)).collect();
    RequestTotals { requests: requests.len(), failed: requests.len() - latencies.len(), latency: latency(latencies) }
}

/// Returns the requests sent after `from` and answered by `version`.
pub fn answered_since<'a>(
    requests: &'a [CompletedRequest],
    from: Duration,
    version: &'a str,
) -> impl Iterator<Item = &'a CompletedRequest> {
    requests.iter().filter(move |request| request.scheduled_at > from && request.outcome.as_deref() == Ok(version))
}

fn milliseconds(latency: Duration) -> f64 {
    latency.as_secs_f64() * 1000.0
}

fn latency(mut all: Vec<f64>) -> Option<Latency> {
    all.sort_by(f64::total_cmp);
    let at = |percent: usize| all.get((all.len() * percent).div_ceil(100).saturating_sub(1)).copied();
    Some(Latency { p50: at(50)?, p99: at(99)? })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn request(sent: f64, seconds: f64, answer: Result<&str, &str>) -> CompletedRequest {
        let answer = answer.map(str::to_owned).map_err(str::to_owned);
        CompletedRequest {
            scheduled_at: Duration::from_secs_f64(sent),
            latency: Duration::from_secs_f64(seconds),
            outcome: answer,
        }
    }

    #[test]
    fn request_counts_in_the_second_of_its_completion() {
        // Given a request completed immediately, one in the next second, one that fails, and one in
        // an incomplete second,
        let requests = [
            request(0.2, 0.1, Ok("1")),
            request(0.9, 0.3, Ok("2")),
            request(1.5, 0.1, Err("503")),
            request(1.9, 0.2, Ok("2")),
        ];

        // when they are aggregated, then each counts in the second of its completion.
        let found = seconds(&requests, Duration::from_secs_f64(2.5));
        let counts: Vec<(Vec<(&str, u32)>, u32)> = found
            .iter()
            .map(|second| (second.answered.iter().map(|(of, count)| (of.as_str(), *count)).collect(), second.failed))
            .collect();
        assert_eq!(counts, [(vec![("1", 1)], 0), (vec![("2", 1)], 1)]);
    }

    #[test]
    fn latencies_cover_the_window() {
        let requests: Vec<CompletedRequest> =
            (0_u8..8).map(|at| request(at.into(), f64::from(at) / 10.0, Ok("1"))).collect();
        let found = seconds(&requests, Duration::from_secs(8));
        let p50 = found.iter().map(|second| second.latency.map(|of| of.p50.round()));
        let expected = [0, 0, 100, 100, 200, 300, 400, 500].map(|of| Some(f64::from(of)));
        assert_eq!(p50.collect::<Vec<_>>(), expected);
    }

    #[rstest]
    #[case::none(0, None)]
    #[case::one(1, Some((1.0, 1.0)))]
    #[case::two(2, Some((1.0, 2.0)))]
    #[case::a_hundred(100, Some((50.0, 99.0)))]
    #[case::more(200, Some((100.0, 198.0)))]
    fn latency_percentiles(#[case] count: u32, #[case] expected: Option<(f64, f64)>) {
        let found = latency((1..=count).rev().map(f64::from).collect());
        assert_eq!(found.map(|of| (of.p50, of.p99)), expected);
    }

    #[test]
    fn total_separates_failed_and_answered_requests() {
        let requests = [request(0.0, 0.1, Ok("1")), request(0.0, 30.0, Err("no answer"))];
        let found = total(&requests);
        assert_eq!((found.requests, found.failed), (2, 1));
        assert_eq!(found.latency.map(|of| of.p99.round()), Some(100.0));
    }

    #[rstest]
    #[case::before_and_after("1", &[5.5])]
    #[case::of_the_other("2", &[6.0])]
    fn answered_since_filters_by_time_and_version(#[case] version: &str, #[case] expected: &[f64]) {
        let requests = [(4.5, "1"), (5.5, "1"), (6.0, "2")].map(|(sent, by)| request(sent, 0.1, Ok(by)));
        let found = answered_since(&requests, Duration::from_secs(5), version).map(|of| of.scheduled_at.as_secs_f64());
        assert_eq!(found.collect::<Vec<_>>(), expected);
    }
}
