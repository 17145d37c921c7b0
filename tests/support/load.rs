//! Open-loop load: sends requests at a constant rate, regardless of the outcome of earlier ones.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::StatusCode;
use serde_json::Value;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};

use super::eventually_or_err;
use super::http::HttpClient;

/// Timeout after which a request counts as failed.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Outcome of one request: the version of the application that answered, or an error.
pub type RequestOutcome = Result<String, String>;

/// A completed request.
#[derive(Debug, Clone, PartialEq)]
pub struct CompletedRequest {
    /// Scheduled send time, relative to the start of the load.
    pub scheduled_at: Duration,
    /// Time from the scheduled send time to the response, so that a late send counts as latency (no
    /// coordinated omission).
    pub latency: Duration,
    /// Outcome of the request.
    pub outcome: RequestOutcome,
}

/// Sends requests continuously from a separate thread, so that the test's own work cannot delay
/// them. Dropping the value stops it.
pub struct LoadGenerator {
    started: Instant,
    requests: Arc<Mutex<Vec<CompletedRequest>>>,
    /// Stops the load when dropped.
    stop: oneshot::Sender<()>,
    thread: std::thread::JoinHandle<()>,
}

impl LoadGenerator {
    /// Starts sending `per_second` requests per second.
    pub fn start(url: String, per_second: u32) -> Self {
        let (requests, started) = (Arc::new(Mutex::new(Vec::new())), Instant::now());
        let (stop, mut stopped) = oneshot::channel();
        let noted = requests.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let http = Arc::new(HttpClient::new());
                let mut ticks = tokio::time::interval_at(started, Duration::from_secs(1) / per_second);
                ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
                let mut under_way = JoinSet::new();
                loop {
                    let due = tokio::select! {
                        due = ticks.tick() => due,
                        _ = &mut stopped => break,
                    };
                    while under_way.try_join_next().is_some() {}
                    let (http, url, noted) = (http.clone(), url.clone(), noted.clone());
                    under_way.spawn(async move {
                        let answer = request_version(&http, &url).await;
                        let request =
                            CompletedRequest { scheduled_at: due - started, latency: due.elapsed(), outcome: answer };
                        noted.lock().expect("the requests").push(request);
                    });
                }
                under_way.join_all().await;
            });
        });
        Self { started, requests, stop, thread }
    }

    /// Returns the time since the start of the load.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Returns all completed requests, in the order of completion.
    pub fn requests(&self) -> Vec<CompletedRequest> {
        self.requests.lock().expect("the requests").clone()
    }

    /// Stops the load, waits for the requests in flight, and returns all requests.
    pub async fn stop(self) -> Vec<CompletedRequest> {
        let Self { requests, stop, thread, .. } = self;
        drop(stop);
        let ended = tokio::task::spawn_blocking(move || thread.join()).await;
        ended.expect("the load thread is joined").expect("the load thread does not panic");
        std::mem::take(&mut requests.lock().expect("the requests"))
    }

    /// Returns how many of the next `count` requests each version answers.
    ///
    /// # Panics
    /// Panics if any request so far has failed.
    pub async fn count_next(&self, count: usize) -> BTreeMap<String, usize> {
        let from = self.requests().len();
        let requests = eventually_or_err("requests are answered", async || {
            let requests = self.requests();
            if requests.len() >= from + count { Ok(requests) } else { Err(format!("but {}", requests.len() - from)) }
        })
        .await;
        assert_all_answered(&requests);
        let mut counts = BTreeMap::new();
        for version in requests[from..from + count].iter().flat_map(|request| &request.outcome) {
            *counts.entry(version.clone()).or_default() += 1;
        }
        counts
    }
}

/// Asserts that every request was answered.
///
/// # Panics
/// Panics if a request failed.
pub fn assert_all_answered(requests: &[CompletedRequest]) {
    let failed: Vec<&CompletedRequest> = requests.iter().filter(|request| request.outcome.is_err()).collect();
    assert!(
        failed.is_empty(),
        "{} of {} requests failed, the first one: {:?}",
        failed.len(),
        requests.len(),
        failed[0]
    );
}

/// Sends one request. Returns the version that answers, or an error after the timeout.
pub async fn request_version(http: &HttpClient, url: &str) -> RequestOutcome {
    let answer = tokio::time::timeout(REQUEST_TIMEOUT, http.send("GET", url, String::new())).await;
    match answer.map_err(|_| format!("no answer in {REQUEST_TIMEOUT:?}"))?? {
        (StatusCode::OK, body) => {
            let answer: Value = serde_json::from_str(&body).map_err(|error| format!("{error}: {body}"))?;
            answer["version"].as_str().map(str::to_owned).ok_or_else(|| format!("no version: {body}"))
        }
        (status, body) => Err(format!("{status}: {body}")),
    }
}
