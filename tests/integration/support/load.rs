//! Requests that come in at a steady rate, whatever becomes of those before.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::StatusCode;
use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use super::eventually_or_tell;
use super::http::Http;

/// How long an answer may take before the request counts as failed.
const PATIENCE: Duration = Duration::from_secs(30);

/// What became of one request: the version that answered, or why none did.
pub type Answer = Result<String, String>;

/// Somebody who sends requests all the time. It ends with this value.
pub struct Load {
    answers: Arc<Mutex<Vec<Answer>>>,
    _task: JoinSet<()>,
}

impl Load {
    /// Sends so many requests a second from now on.
    pub fn start(url: String, per_second: u32) -> Self {
        let answers = Arc::new(Mutex::new(Vec::new()));
        let (noted, mut task) = (answers.clone(), JoinSet::new());
        task.spawn(async move {
            let http = Arc::new(Http::new());
            let mut ticks = tokio::time::interval(Duration::from_secs(1) / per_second);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
            let mut under_way = JoinSet::new();
            loop {
                ticks.tick().await;
                while under_way.try_join_next().is_some() {}
                let (http, url, noted) = (http.clone(), url.clone(), noted.clone());
                under_way.spawn(async move {
                    let answer = version_of(&http, &url).await;
                    noted.lock().expect("the answers").push(answer);
                });
            }
        });
        Self { answers, _task: task }
    }

    /// Everything that has come back so far, in the order in which it did.
    pub fn answers(&self) -> Vec<Answer> {
        self.answers.lock().expect("the answers").clone()
    }

    /// How many of the next requests each version answers.
    ///
    /// # Panics
    /// When any that was sent so far has failed.
    pub async fn next(&self, count: usize) -> BTreeMap<String, usize> {
        let from = self.answers().len();
        let answers = eventually_or_tell("requests are answered", async || {
            let answers = self.answers();
            if answers.len() >= from + count { Ok(answers) } else { Err(format!("but {}", answers.len() - from)) }
        })
        .await;
        assert_all_answered(&answers);
        let mut counts = BTreeMap::new();
        for version in answers[from..from + count].iter().flatten() {
            *counts.entry(version.clone()).or_default() += 1;
        }
        counts
    }
}

/// # Panics
/// When a request has failed.
fn assert_all_answered(answers: &[Answer]) {
    let failed: Vec<&String> = answers.iter().filter_map(|answer| answer.as_ref().err()).collect();
    assert!(failed.is_empty(), "{} of {} requests failed, the first one: {}", failed.len(), answers.len(), failed[0]);
}

/// Sends one request; returns the version that answers.
pub async fn version_of(http: &Http, url: &str) -> Result<String, String> {
    let answer = tokio::time::timeout(PATIENCE, http.ask("GET", url, String::new())).await;
    match answer.map_err(|_| format!("no answer in {PATIENCE:?}"))?? {
        (StatusCode::OK, body) => {
            let answer: Value = serde_json::from_str(&body).map_err(|error| format!("{error}: {body}"))?;
            answer["version"].as_str().map(str::to_owned).ok_or_else(|| format!("no version: {body}"))
        }
        (status, body) => Err(format!("{status}: {body}")),
    }
}
