//! Requests that come in at a steady rate, whatever becomes of those before.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::StatusCode;
use serde_json::Value;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};

use super::eventually_or_tell;
use super::http::Http;

/// How long an answer may take before the request counts as failed.
const PATIENCE: Duration = Duration::from_secs(30);

/// What became of one request: the version that answered, or why none did.
pub type Answer = Result<String, String>;

/// A request that is over.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// When it was due to be sent, since the load started.
    pub sent: Duration,
    /// How long it took from then on: one that is sent late counts as slow, as for whoever waits for it.
    pub latency: Duration,
    /// What became of it.
    pub answer: Answer,
}

/// Somebody who sends requests all the time, on a thread of its own, so that no work of a test keeps it from that. It ends with this
/// value.
pub struct Load {
    started: Instant,
    requests: Arc<Mutex<Vec<Request>>>,
    /// Sends no more once this is dropped.
    stop: oneshot::Sender<()>,
    thread: std::thread::JoinHandle<()>,
}

impl Load {
    /// Sends so many requests a second from now on.
    pub fn start(url: String, per_second: u32) -> Self {
        let (requests, started) = (Arc::new(Mutex::new(Vec::new())), Instant::now());
        let (stop, mut stopped) = oneshot::channel();
        let noted = requests.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let http = Arc::new(Http::new());
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
                        let answer = version_of(&http, &url).await;
                        let request = Request { sent: due - started, latency: due.elapsed(), answer };
                        noted.lock().expect("the requests").push(request);
                    });
                }
                under_way.join_all().await;
            });
        });
        Self { started, requests, stop, thread }
    }

    /// How long it has been sending.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// All requests that are over so far, in the order in which they were.
    pub fn requests(&self) -> Vec<Request> {
        self.requests.lock().expect("the requests").clone()
    }

    /// Sends no more; returns all requests, also those that were under way.
    pub async fn stop(self) -> Vec<Request> {
        let Self { requests, stop, thread, .. } = self;
        drop(stop);
        let ended = tokio::task::spawn_blocking(move || thread.join()).await;
        ended.expect("a thread to wait on").expect("the load ends well");
        std::mem::take(&mut requests.lock().expect("the requests"))
    }

    /// How many of the next requests each version answers.
    ///
    /// # Panics
    /// When any that was sent so far has failed.
    pub async fn next(&self, count: usize) -> BTreeMap<String, usize> {
        let from = self.requests().len();
        let requests = eventually_or_tell("requests are answered", async || {
            let requests = self.requests();
            if requests.len() >= from + count { Ok(requests) } else { Err(format!("but {}", requests.len() - from)) }
        })
        .await;
        assert_all_answered(&requests);
        let mut counts = BTreeMap::new();
        for version in requests[from..from + count].iter().flat_map(|request| &request.answer) {
            *counts.entry(version.clone()).or_default() += 1;
        }
        counts
    }
}

/// # Panics
/// When a request has failed.
pub fn assert_all_answered(requests: &[Request]) {
    let failed: Vec<&Request> = requests.iter().filter(|request| request.answer.is_err()).collect();
    assert!(
        failed.is_empty(),
        "{} of {} requests failed, the first one: {:?}",
        failed.len(),
        requests.len(),
        failed[0]
    );
}

/// Sends one request; returns the version that answers.
pub async fn version_of(http: &Http, url: &str) -> Answer {
    let answer = tokio::time::timeout(PATIENCE, http.ask("GET", url, String::new())).await;
    match answer.map_err(|_| format!("no answer in {PATIENCE:?}"))?? {
        (StatusCode::OK, body) => {
            let answer: Value = serde_json::from_str(&body).map_err(|error| format!("{error}: {body}"))?;
            answer["version"].as_str().map(str::to_owned).ok_or_else(|| format!("no version: {body}"))
        }
        (status, body) => Err(format!("{status}: {body}")),
    }
}
