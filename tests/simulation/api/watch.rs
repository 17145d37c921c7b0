//! Watches: the changes of one kind as newline-delimited JSON, filtered for one client.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};

use super::fields;
use super::kinds::Kind;
use super::refusal::Refusal;
use super::selector::Selector;
use super::store::{Change, Store};

/// Watch of one client and its position in the history.
#[derive(Debug)]
pub struct Watch {
    kind: &'static Kind,
    namespace: String,
    selector: Selector,
    /// Events to send before any change.
    first: Vec<Bytes>,
    /// Index of the next change of the kind to send.
    next: usize,
    timeout: Option<Duration>,
    bookmarks: bool,
    over: bool,
}

/// Starting point of a watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// Begins with an ADDED event for each existing object.
    Now {
        /// Sends a bookmark after these initial events.
        announced: bool,
    },
    /// Begins with the first change after this version.
    After(u64),
}

impl Watch {
    /// Opens a watch.
    pub fn open(
        store: &Store,
        kind: &'static Kind,
        namespace: String,
        selector: Selector,
        start: Start,
        (timeout, bookmarks): (Option<Duration>, bool),
    ) -> Self {
        let next = store.change_count(kind);
        let mut watch = Self { kind, namespace, selector, first: Vec::new(), next, timeout, bookmarks, over: false };
        match start {
            Start::Now { announced } => {
                let matching = store
                    .range(kind, &watch.namespace, "")
                    .filter(|(_, stored)| watch.selector.matches(&stored.object));
                watch.first = matching.map(|(_, stored)| line("ADDED", &stored.body)).collect();
                if announced {
                    watch.first.push(bookmark(kind, store.version(), true));
                }
            }
            Start::After(version) if version < store.compacted() => {
                watch.first.push(too_old(version, store.compacted()));
                watch.over = true;
            }
            Start::After(version) => watch.next = store.changes_up_to(kind, version),
        }
        watch
    }

    /// Returns the watched kind.
    pub fn kind(&self) -> &'static Kind {
        self.kind
    }

    /// Returns the timeout that the client has asked for.
    pub fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    /// Returns true if the client allows bookmarks.
    pub fn wants_bookmarks(&self) -> bool {
        self.bookmarks
    }

    /// Returns true if the server closes the watch after the events that `events` has returned.
    pub fn is_over(&self) -> bool {
        self.over
    }

    /// Returns the encoded events since the last call.
    pub fn events(&mut self, store: &Store) -> Vec<Bytes> {
        let mut lines = std::mem::take(&mut self.first);
        if self.over {
            return lines;
        }
        for change in store.changes_of(self.kind, self.next) {
            if change.version <= store.compacted() {
                lines.push(too_old(change.version - 1, store.compacted()));
                self.over = true;
                break;
            }
            lines.extend(self.line_of(change));
        }
        self.next = store.change_count(self.kind);
        lines
    }

    /// Returns a bookmark with the version up to which all changes have been sent.
    pub fn bookmark(&self, store: &Store) -> Bytes {
        let missing = store.changes_of(self.kind, self.next).next();
        bookmark(self.kind, missing.map_or(store.version(), |change| change.version - 1), false)
    }

    /// Returns the event of a change for this watch. An object that starts to match the selector is
    /// ADDED, one that no longer matches is DELETED; `None` if it matches neither before nor after.
    fn line_of(&self, change: &Change) -> Option<Bytes> {
        if !self.namespace.is_empty() && fields::namespace(&change.object) != self.namespace {
            return None;
        }
        let matched = change.before.as_ref().is_some_and(|before| self.selector.matches(before));
        let matches = !change.gone && self.selector.matches(&change.object);
        match (matched, matches) {
            (false, false) => None,
            (false, true) => Some(line("ADDED", &change.body)),
            (true, true) => Some(line("MODIFIED", &change.body)),
            (true, false) if change.gone => Some(line("DELETED", &change.body)),
            (true, false) => change.before.as_ref().map(|before| line("DELETED", &as_of(before, change.version))),
        }
    }
}

/// Returns the last matching state, with the version of the change after which it no longer
/// matches.
fn as_of(object: &Arc<Value>, version: u64) -> Vec<u8> {
    let mut object = Value::clone(object);
    fields::set_metadata(&mut object, "resourceVersion", version.to_string());
    object.to_string().into_bytes()
}

fn line(change: &str, body: &[u8]) -> Bytes {
    let mut line = Vec::with_capacity(body.len() + 40);
    line.extend_from_slice(b"{\"type\":\"");
    line.extend_from_slice(change.as_bytes());
    line.extend_from_slice(b"\",\"object\":");
    line.extend_from_slice(body);
    line.extend_from_slice(b"}\n");
    line.into()
}

fn bookmark(kind: &Kind, version: u64, ends_initial_events: bool) -> Bytes {
    let mut object = json!({
        "kind": kind.kind,
        "apiVersion": kind.api_version(),
        "metadata": {"resourceVersion": version.to_string()},
    });
    if ends_initial_events {
        object["metadata"]["annotations"] = json!({"k8s.io/initial-events-end": "true"});
    }
    line("BOOKMARK", object.to_string().as_bytes())
}

fn too_old(version: u64, compacted: u64) -> Bytes {
    let error = Refusal::expired(format!("too old resource version: {version} ({compacted})"));
    line("ERROR", error.status().to_string().as_bytes())
}
