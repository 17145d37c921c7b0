//! Lists the objects of one kind, then watches their changes.
//!
//! The watcher of kube 5 does not report the resource version of a list. Without it, an object created
//! while the list was under way looks like a deleted one, and a database restored from a backup goes
//! unnoticed: a watch from a version that it has yet to reach is silent.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::BoxStream;
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::core::Status;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::DefaultBackoff;
use kube::{Api, ResourceExt};
use thiserror::Error;
use tokio::time::Instant;

use crate::written_versions::WrittenVersions;
use sluice_engine::cluster_state::WatchedKind;
use sluice_engine::unused_fields;

/// Maximum number of objects in one response to a list, as in client-go.
const PAGE_SIZE: u32 = 500;
/// Time in seconds after which the API server ends a watch.
const WATCH_TIMEOUT_SECONDS: u32 = 290;
/// Time without an event after which the connection of a watch counts as dead.
const IDLE_TIMEOUT: Duration = Duration::from_secs(WATCH_TIMEOUT_SECONDS as u64 + 5);
/// Time after which a check of the history counts as unanswered.
const CHECK_TIMEOUT: Duration = Duration::from_secs(10);
/// Time after which a watch has ended because of its timeout, and not with the API server.
const LASTED_TIMEOUT: Duration = Duration::from_secs(WATCH_TIMEOUT_SECONDS as u64 - 5);

/// Observation of a list and watch.
#[derive(Debug)]
pub(super) enum Observation<K> {
    /// All objects, as of a resource version.
    Listed(Vec<Arc<K>>, u64),
    /// A new or changed object.
    Applied(K),
    /// The last state of a deleted object.
    Deleted(K),
    /// After the watch broke, the API server is not at an older version than before.
    Verified,
}

/// Error of a list or watch.
#[derive(Debug, Error)]
pub(super) enum ListWatchError {
    /// The objects can't be listed.
    #[error("listing: {0}")]
    List(#[source] kube::Error),
    /// The watch can't be opened, broke, or ended early. The API server may have been restored since.
    #[error("the watch broke{}", .0.as_ref().map(|error| format!(": {error}")).unwrap_or_default())]
    Broken(#[source] Option<kube::Error>),
    /// The API server reported an error in the watch.
    #[error("watching: the API server reports {}: {}", .0.reason, .0.message)]
    Reported(Box<Status>),
    /// A check of the history was not answered in time.
    #[error("checking the version of the API server: no response within {} s", CHECK_TIMEOUT.as_secs())]
    Unanswered,
    /// A resource version is not a number.
    #[error("reading the resource version: {0:?} is not a number")]
    Version(String),
    /// The API server is at an older version than one that it has reported before.
    #[error(transparent)]
    HistoryLost(#[from] HistoryLost),
}

/// The API server went back in time, as after a restore from a backup.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the API server is at resource version {found}, after it had reported version {seen}")]
pub struct HistoryLost {
    /// Newest version seen before.
    seen: u64,
    /// Version found now.
    found: u64,
}

/// List and watch of the objects of one kind.
pub(super) struct ListWatch<K> {
    api: Api<K>,
    label: Option<&'static str>,
    state: State<K>,
    /// Newest version that the list or watch has reported.
    version: u64,
    /// Versions that our writes have returned.
    written: WrittenVersions,
    /// Delays requests after a failure.
    backoff: DefaultBackoff,
    /// The next request waits for the backoff.
    is_backing_off: bool,
}

enum State<K> {
    /// A list is due.
    Unlisted,
    /// The watch broke, so the history of the API server has to be checked.
    Broken,
    /// A watch from the newest version is due.
    Unwatched,
    /// A watch that was opened at some time.
    Watching(BoxStream<'static, kube::Result<WatchEvent<K>>>, Instant),
}

impl<K: WatchedKind> ListWatch<K> {
    /// Creates a list and watch of the objects with a label, or of all objects.
    pub(super) fn new(api: Api<K>, label: Option<&'static str>, written: WrittenVersions) -> Self {
        let (state, backoff) = (State::Unlisted, DefaultBackoff::default());
        Self { api, label, state, version: 0, written, backoff, is_backing_off: false }
    }

    /// Waits for the next observation. After an error, the next call waits before it tries again; but the
    /// history is checked at once when the watch breaks.
    ///
    /// # Errors
    /// If a request fails. All but [`ListWatchError::HistoryLost`] are worth another try.
    pub(super) async fn next(&mut self) -> Result<Observation<K>, ListWatchError> {
        if std::mem::take(&mut self.is_backing_off)
            && let Some(pause) = self.backoff.next()
        {
            tokio::time::sleep(pause).await;
        }
        let result = self.observe().await;
        self.is_backing_off = !matches!(
            result,
            Ok(Observation::Listed(..) | Observation::Applied(_) | Observation::Deleted(_))
                | Err(ListWatchError::Broken(_))
        );
        if result.is_ok() && !self.is_backing_off {
            self.backoff.reset();
        }
        result
    }

    async fn observe(&mut self) -> Result<Observation<K>, ListWatchError> {
        loop {
            match &mut self.state {
                State::Unlisted => return self.list().await,
                State::Broken => return self.check_history().await,
                State::Unwatched => self.open_watch().await?,
                State::Watching(events, opened) => match tokio::time::timeout(IDLE_TIMEOUT, events.next()).await {
                    Ok(Some(Ok(event))) => {
                        if let Some(observation) = self.on_event(event)? {
                            return Ok(observation);
                        }
                    }
                    Ok(Some(Err(error))) => {
                        self.state = State::Broken;
                        return Err(ListWatchError::Broken(Some(error)));
                    }
                    Ok(None) if opened.elapsed() >= LASTED_TIMEOUT => self.state = State::Unwatched,
                    Ok(None) | Err(_) => {
                        self.state = State::Broken;
                        return Err(ListWatchError::Broken(None));
                    }
                },
            }
        }
    }

    /// Lists all pages. Every page of a list shows the state of the same version.
    async fn list(&mut self) -> Result<Observation<K>, ListWatchError> {
        let (mut objects, seen) = (Vec::new(), self.seen());
        let mut params = self.list_params(PAGE_SIZE);
        loop {
            let page = self.api.list(&params).await.map_err(ListWatchError::List)?;
            objects.extend(page.items.into_iter().map(unused_fields::strip));
            if let Some(token) = page.metadata.continue_.filter(|token| !token.is_empty()) {
                params = params.continue_token(&token);
                continue;
            }
            let version = parse_version(&page.metadata.resource_version.unwrap_or_default())?;
            check_version(seen, version)?;
            (self.state, self.version) = (State::Unwatched, version);
            return Ok(Observation::Listed(objects, version));
        }
    }

    /// Checks that the API server is not at an older version than the watch was. If it can't list this
    /// kind, decisions do not wait for that: the watches of other kinds broke with it, and check it too.
    async fn check_history(&mut self) -> Result<Observation<K>, ListWatchError> {
        let (params, seen) = (self.list_params(1), self.seen());
        let listed = tokio::time::timeout(CHECK_TIMEOUT, self.api.list(&params)).await;
        match listed.map_err(|_| ListWatchError::Unanswered)? {
            Ok(page) => {
                let found = parse_version(&page.metadata.resource_version.unwrap_or_default())?;
                check_version(seen, found)?;
            }
            Err(kube::Error::Api(status)) if !matches!(status.code, 429 | 503 | 504) => {}
            Err(error) => return Err(ListWatchError::List(error)),
        }
        self.state = State::Unwatched;
        Ok(Observation::Verified)
    }

    async fn open_watch(&mut self) -> Result<(), ListWatchError> {
        let params = WatchParams { label_selector: self.label.map(str::to_owned), ..WatchParams::default() };
        let params = params.timeout(WATCH_TIMEOUT_SECONDS);
        match self.api.watch(&params, &self.version.to_string()).await {
            Ok(events) => {
                self.state = State::Watching(events.boxed(), Instant::now());
                Ok(())
            }
            Err(kube::Error::Api(status)) => Err(self.on_reported_error(status)),
            Err(error) => {
                self.state = State::Broken;
                Err(ListWatchError::Broken(Some(error)))
            }
        }
    }

    fn on_event(&mut self, event: WatchEvent<K>) -> Result<Option<Observation<K>>, ListWatchError> {
        let version = match &event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) | WatchEvent::Deleted(object) => {
                object.resource_version().unwrap_or_default()
            }
            WatchEvent::Bookmark(bookmark) => bookmark.metadata.resource_version.clone(),
            WatchEvent::Error(status) => return Err(self.on_reported_error(status.clone())),
        };
        let version = parse_version(&version).inspect_err(|_| self.state = State::Unlisted)?;
        check_version(self.version, version)?;
        self.version = version;
        Ok(match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => Some(Observation::Applied(object)),
            WatchEvent::Deleted(object) => Some(Observation::Deleted(object)),
            WatchEvent::Bookmark(_) | WatchEvent::Error(_) => None,
        })
    }

    /// The versions from which an expired watch would continue are gone, so it begins with a list again. An
    /// API server that fails may be one that was just restarted.
    fn on_reported_error(&mut self, status: Box<Status>) -> ListWatchError {
        if status.code >= 500 {
            self.state = State::Broken;
            return ListWatchError::Broken(Some(kube::Error::Api(status)));
        }
        self.state = if status.code == 410 { State::Unlisted } else { State::Unwatched };
        ListWatchError::Reported(status)
    }

    /// Returns the newest version that the API server has reported in any way.
    fn seen(&self) -> u64 {
        self.version.max(self.written.newest(&K::kind(&())))
    }

    fn list_params(&self, limit: u32) -> ListParams {
        let params = ListParams { label_selector: self.label.map(str::to_owned), ..ListParams::default() };
        params.limit(limit)
    }
}

fn check_version(seen: u64, found: u64) -> Result<(), HistoryLost> {
    if found < seen { Err(HistoryLost { seen, found }) } else { Ok(()) }
}

fn parse_version(version: &str) -> Result<u64, ListWatchError> {
    version.parse().map_err(|_| ListWatchError::Version(version.to_owned()))
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::Mutex;

    use http::{Request, Response, StatusCode};
    use k8s_openapi::api::core::v1::Namespace;
    use kube::Client;
    use kube::client::Body;
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    /// Requests and responses of an API server: each request has to contain the text.
    type Script = Vec<(&'static str, u16, String)>;

    fn namespace(name: &str, version: u64) -> Value {
        json!({"metadata": {"name": name, "resourceVersion": version.to_string()}})
    }

    fn list(version: u64, items: &[Value], token: &str) -> String {
        let metadata = json!({"resourceVersion": version.to_string(), "continue": token});
        json!({"kind": "NamespaceList", "apiVersion": "v1", "metadata": metadata, "items": items}).to_string()
    }

    /// Returns the events of a watch, which ends after them.
    fn events(events: &[Value]) -> String {
        events.iter().map(|event| format!("{event}\n")).collect()
    }

    fn event(kind: &str, name: &str, version: u64) -> Value {
        json!({"type": kind, "object": namespace(name, version)})
    }

    fn bookmark(version: u64) -> Value {
        let metadata = json!({"resourceVersion": version.to_string()});
        json!({"type": "BOOKMARK", "object": {"kind": "Namespace", "apiVersion": "v1", "metadata": metadata}})
    }

    fn expired() -> Value {
        let status = json!({"status": "Failure", "reason": "Expired", "message": "too old", "code": 410});
        json!({"type": "ERROR", "object": status})
    }

    /// Describes an observation or error in a few words.
    fn describe(result: Result<Observation<Namespace>, ListWatchError>) -> String {
        match result {
            Ok(Observation::Listed(objects, version)) => {
                let names: Vec<String> = objects.iter().map(|object| object.name_any()).collect();
                format!("listed {} at {version}", names.join(" "))
            }
            Ok(Observation::Applied(object)) => format!("applied {}", object.name_any()),
            Ok(Observation::Deleted(object)) => format!("deleted {}", object.name_any()),
            Ok(Observation::Verified) => "verified".to_owned(),
            Err(ListWatchError::HistoryLost(lost)) => format!("lost {} after {}", lost.found, lost.seen),
            Err(ListWatchError::Broken(_)) => "broken".to_owned(),
            Err(ListWatchError::Reported(status)) => format!("reported {}", status.code),
            Err(ListWatchError::List(_)) => "not listed".to_owned(),
            Err(error) => error.to_string(),
        }
    }

    #[rstest]
    #[case::pages_are_one_list(
        vec![
            ("limit=500", 200, list(7, &[namespace("a", 3)], "next")),
            ("continue=next", 200, list(7, &[namespace("b", 5)], "")),
            ("resourceVersion=7", 200, events(&[event("ADDED", "c", 8), event("DELETED", "a", 9)])),
        ],
        0,
        &["listed a b at 7", "applied c", "deleted a"]
    )]
    #[case::broken_watch_continues_after_a_check(
        vec![
            ("limit=500", 200, list(7, &[], "")),
            ("watch=true", 200, events(&[event("ADDED", "c", 8)])),
            ("limit=1", 200, list(8, &[], "")),
            ("resourceVersion=8", 200, events(&[event("ADDED", "d", 9)])),
        ],
        0,
        &["listed  at 7", "applied c", "broken", "verified", "applied d"]
    )]
    #[case::history_is_lost(
        vec![
            ("limit=500", 200, list(7, &[], "")),
            ("watch=true", 200, events(&[bookmark(9)])),
            ("limit=1", 200, list(8, &[], "")),
        ],
        0,
        &["listed  at 7", "broken", "lost 8 after 9"]
    )]
    #[case::list_is_older_than_our_own_write(vec![("limit=500", 200, list(8, &[], ""))], 9, &["lost 8 after 9"])]
    #[case::event_is_older_than_the_list(
        vec![("limit=500", 200, list(7, &[], "")), ("watch=true", 200, events(&[event("ADDED", "c", 6)]))],
        0,
        &["listed  at 7", "lost 6 after 7"]
    )]
    #[case::expired_watch_lists_again(
        vec![
            ("limit=500", 200, list(7, &[], "")),
            ("watch=true", 200, events(&[expired()])),
            ("limit=500", 200, list(12, &[namespace("a", 3)], "")),
        ],
        0,
        &["listed  at 7", "reported 410", "listed a at 12"]
    )]
    #[case::relist_is_older(
        vec![
            ("limit=500", 200, list(7, &[], "")),
            ("watch=true", 200, events(&[expired()])),
            ("limit=500", 200, list(6, &[], "")),
        ],
        0,
        &["listed  at 7", "reported 410", "lost 6 after 7"]
    )]
    #[case::watch_that_fails_to_open_is_checked_too(
        vec![
            ("limit=500", 200, list(7, &[], "")),
            ("watch=true", 503, json!({"status": "Failure", "reason": "ServiceUnavailable", "code": 503}).to_string()),
            ("limit=1", 200, list(6, &[], "")),
        ],
        0,
        &["listed  at 7", "broken", "lost 6 after 7"]
    )]
    #[case::kind_that_cannot_be_listed_delays_no_decision(
        vec![
            ("limit=500", 200, list(7, &[], "")),
            ("watch=true", 200, events(&[])),
            ("limit=1", 500, json!({"status": "Failure", "reason": "InternalError", "code": 500}).to_string()),
        ],
        0,
        &["listed  at 7", "broken", "verified"]
    )]
    #[case::event_without_a_version_lists_again(
        vec![
            ("limit=500", 200, list(7, &[], "")),
            ("watch=true", 200, events(&[json!({"type": "ADDED", "object": {"metadata": {"name": "a"}}})])),
            ("limit=500", 200, list(8, &[], "")),
        ],
        0,
        &["listed  at 7", "reading the resource version: \"\" is not a number", "listed  at 8"]
    )]
    #[case::check_is_repeated_until_it_is_answered(
        vec![
            ("limit=500", 200, list(7, &[], "")),
            ("watch=true", 200, events(&[])),
            ("limit=1", 503, json!({"status": "Failure", "reason": "ServiceUnavailable", "code": 503}).to_string()),
            ("limit=1", 200, list(7, &[], "")),
        ],
        0,
        &["listed  at 7", "broken", "not listed", "verified"]
    )]
    #[tokio::test(start_paused = true)]
    async fn objects_are_listed_and_watched(#[case] script: Script, #[case] written: u64, #[case] expected: &[&str]) {
        // Given an API server, and a version that a write of ours has returned,
        let script = Arc::new(Mutex::new(VecDeque::from(script)));
        let respond = move |request: Request<Body>| {
            let next = script.lock().expect("one thread").pop_front();
            let (wanted, code, body) = next.unwrap_or_else(|| panic!("unexpected request: {}", request.uri()));
            assert!(request.uri().to_string().contains(wanted), "{wanted}: {}", request.uri());
            let mut response = Response::new(Body::from(body.into_bytes()));
            *response.status_mut() = StatusCode::from_u16(code).expect("a status code");
            async { Ok::<_, tower::BoxError>(response) }
        };
        let client = Client::new(tower::service_fn(respond), "default");
        let versions = WrittenVersions::default();
        if written > 0 {
            let object = serde_json::from_value(namespace("ours", written)).expect("a namespace");
            versions.record(&Namespace::wrap(Arc::new(object)));
        }

        // when its objects are listed and watched,
        let mut watch = ListWatch::<Namespace>::new(Api::all(client), None, versions);
        let mut observed = Vec::new();
        for _ in expected {
            observed.push(describe(watch.next().await));
        }

        // then these are the observations.
        assert_eq!(observed, expected);
    }
}
