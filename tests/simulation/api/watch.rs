//! Watches: the changes of one kind as newline-delimited JSON, filtered for one client.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};

use super::kinds::ResourceKind;
use super::object_meta;
use super::selector::Selector;
use super::status_error::StatusError;
use super::store::{ObjectChange, Store};

/// Watch of one client and its position in the history.
#[derive(Debug)]
pub struct Watch {
    kind: &'static ResourceKind,
    namespace: String,
    selector: Selector,
    /// Events to send before any change.
    initial_events: Vec<Bytes>,
    /// Index of the next change of the kind to send.
    next_change: usize,
    /// Version up to which no change is sent. It is in the future after a restore from a backup.
    after: u64,
    /// Number of backups that had been restored when the watch was opened.
    restores: u64,
    timeout: Option<Duration>,
    wants_bookmarks: bool,
    is_closed: bool,
}

/// Starting point of a watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchStart {
    /// Begins with an ADDED event for each existing object.
    Now {
        /// Sends a bookmark after these initial events.
        ends_with_bookmark: bool,
    },
    /// Begins with the first change after this version.
    After(u64),
}

impl Watch {
    /// Opens a watch.
    pub fn open(
        store: &Store,
        kind: &'static ResourceKind,
        namespace: String,
        selector: Selector,
        start: WatchStart,
        (timeout, bookmarks): (Option<Duration>, bool),
    ) -> Self {
        let next = store.change_count(kind);
        let mut watch = Self {
            kind,
            namespace,
            selector,
            initial_events: Vec::new(),
            next_change: next,
            after: 0,
            restores: store.restores(),
            timeout,
            wants_bookmarks: bookmarks,
            is_closed: false,
        };
        match start {
            WatchStart::Now { ends_with_bookmark: announced } => {
                let matching = store
                    .range(kind, &watch.namespace, "")
                    .filter(|(_, stored)| watch.selector.matches(&stored.object));
                watch.initial_events = matching.map(|(_, stored)| encode_event("ADDED", &stored.body)).collect();
                if announced {
                    watch.initial_events.push(encode_bookmark(kind, store.version(), true));
                }
            }
            WatchStart::After(version) if version < store.compacted() => {
                watch.initial_events.push(expired_event(version, store.compacted()));
                watch.is_closed = true;
            }
            WatchStart::After(version) => {
                (watch.next_change, watch.after) = (store.changes_up_to(kind, version), version);
            }
        }
        watch
    }

    /// Returns the watched kind.
    pub fn kind(&self) -> &'static ResourceKind {
        self.kind
    }

    /// Returns the timeout that the client has asked for.
    pub fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    /// Returns true if the client allows bookmarks.
    pub fn wants_bookmarks(&self) -> bool {
        self.wants_bookmarks
    }

    /// Returns true if the server closes the watch after the events that `events` has returned.
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Returns true if a backup was restored since the watch was opened.
    pub fn is_broken(&self, store: &Store) -> bool {
        self.restores != store.restores()
    }

    /// Returns the encoded events since the last call.
    pub fn events(&mut self, store: &Store) -> Vec<Bytes> {
        let mut lines = std::mem::take(&mut self.initial_events);
        if self.is_closed {
            return lines;
        }
        for change in store.changes_of(self.kind, self.next_change) {
            if change.version <= store.compacted() {
                lines.push(expired_event(change.version - 1, store.compacted()));
                self.is_closed = true;
                break;
            }
            lines.extend(self.event_of_change(change).filter(|_| change.version > self.after));
        }
        self.next_change = store.change_count(self.kind);
        lines
    }

    /// Returns a bookmark with the version up to which all changes have been sent.
    pub fn bookmark(&self, store: &Store) -> Bytes {
        let missing = store.changes_of(self.kind, self.next_change).next();
        encode_bookmark(self.kind, missing.map_or(store.version(), |change| change.version - 1), false)
    }

    /// Returns the event of a change for this watch. An object that starts to match the selector is
    /// ADDED, one that no longer matches is DELETED; `None` if it matches neither before nor after.
    fn event_of_change(&self, change: &ObjectChange) -> Option<Bytes> {
        if !self.namespace.is_empty() && object_meta::namespace(&change.object) != self.namespace {
            return None;
        }
        let matched = change.before.as_ref().is_some_and(|before| self.selector.matches(before));
        let matches = !change.deleted && self.selector.matches(&change.object);
        match (matched, matches) {
            (false, false) => None,
            (false, true) => Some(encode_event("ADDED", &change.body)),
            (true, true) => Some(encode_event("MODIFIED", &change.body)),
            (true, false) if change.deleted => Some(encode_event("DELETED", &change.body)),
            (true, false) => {
                change.before.as_ref().map(|before| encode_event("DELETED", &with_version(before, change.version)))
            }
        }
    }
}

/// Returns the last matching state, with the version of the change after which it no longer
/// matches.
fn with_version(object: &Arc<Value>, version: u64) -> Vec<u8> {
    let mut object = Value::clone(object);
    object_meta::set_metadata(&mut object, "resourceVersion", version.to_string());
    object.to_string().into_bytes()
}

fn encode_event(change: &str, body: &[u8]) -> Bytes {
    let mut line = Vec::with_capacity(body.len() + 40);
    line.extend_from_slice(b"{\"type\":\"");
    line.extend_from_slice(change.as_bytes());
    line.extend_from_slice(b"\",\"object\":");
    line.extend_from_slice(body);
    line.extend_from_slice(b"}\n");
    line.into()
}

fn encode_bookmark(kind: &ResourceKind, version: u64, ends_initial_events: bool) -> Bytes {
    let mut object = json!({
        "kind": kind.kind,
        "apiVersion": kind.api_version(),
        "metadata": {"resourceVersion": version.to_string()},
    });
    if ends_initial_events {
        object["metadata"]["annotations"] = json!({"k8s.io/initial-events-end": "true"});
    }
    encode_event("BOOKMARK", object.to_string().as_bytes())
}

fn expired_event(version: u64, compacted: u64) -> Bytes {
    let error = StatusError::expired(format!("too old resource version: {version} ({compacted})"));
    encode_event("ERROR", error.status().to_string().as_bytes())
}
